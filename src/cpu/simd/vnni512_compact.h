/* SPDX-License-Identifier: Apache-2.0 */
/* Compact weights (quant/compact.h) in registers of AVX-512, for the kernels of x86_vnni512.c:
 * codes of half a unit from planes of bits, scales and offsets of a group from what makes them. */
#ifndef QNI_CPU_SIMD_VNNI512_COMPACT_H
#define QNI_CPU_SIMD_VNNI512_COMPACT_H

#include "../../base/compiler.h"
#include "../matmul/kernel.h"
#include "avx512.h"

typedef uint32_t qni_u32x16 QNI_VECTOR(64);

/* To lower bits of words; by less than nothing, to higher ones. */
QNI_TEMPLATE __m512i qni_move_bits(__m512i v, const int by)
{
    return by >= 0 ? (__m512i)((qni_u32x16)v >> (by >= 0 ? by : 0))
                   : (__m512i)((qni_u32x16)v << (by < 0 ? -by : 0));
}

/* Half a unit of codes, from 0 on: vectors 4 h to 4 h + 3. */
QNI_TEMPLATE void qni_take_half(const uint8_t *from, const int bits, int64_t h, __m512i v[4])
{
    const int low = bits >= 4 ? 4 : 0;
    const __m128i by = _mm_cvtsi64_si128(4 * h);
    if (bits == 8) {
        QNI_UNROLL
        for (int r = 0; r < 4; r++)
            v[r] = _mm512_loadu_si512(from + 64 * (4 * h + r));
        return;
    }
    QNI_UNROLL
    for (int r = 0; r < 4; r++)
        v[r] = low == 0 ? _mm512_setzero_si512()
                        : _mm512_and_si512(_mm512_srl_epi16(_mm512_loadu_si512(from + 64 * r), by),
                                           _mm512_set1_epi8(15));
    from += low > 0 ? 256 : 0;
    if (bits & 2) {
        const __m512i mask = _mm512_set1_epi8((char)(3 << low));
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            const __m512i two = _mm512_srl_epi16(_mm512_loadu_si512(from + 64 * (r % 2)), by);
            const __m512i in_place = qni_move_bits(two, r / 2 * 2 - low);
            v[r] = _mm512_or_si512(v[r], _mm512_and_si512(in_place, mask));
        }
        from += 128;
    }
    if (bits & 1) {
        const int left = low + (bits & 2);
        const __m512i mask = _mm512_set1_epi8((char)(1 << left));
        const __m512i one = _mm512_srl_epi16(_mm512_loadu_si512(from), by);
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            v[r] = _mm512_or_si512(v[r], _mm512_and_si512(qni_move_bits(one, r - left), mask));
        }
    }
}

/* Half a unit of codes whose number of bits is known at run time alone. */
QNI_NOINLINE static void qni_take_bits(const uint8_t *from, int64_t bits, int64_t h, __m512i v[4])
{
    switch (bits) {
    case 2:
        qni_take_half(from, 2, h, v);
        break;
    case 3:
        qni_take_half(from, 3, h, v);
        break;
    case 4:
        qni_take_half(from, 4, h, v);
        break;
    case 5:
        qni_take_half(from, 5, h, v);
        break;
    case 6:
        qni_take_half(from, 6, h, v);
        break;
    case 7:
        qni_take_half(from, 7, h, v);
        break;
    default:
        qni_take_half(from, 8, h, v);
        break;
    }
}

/* A unit of planes of bits as unsigned bytes, and count += these. Groups that share units have no
 * second half, and nobody reads one. */
QNI_TEMPLATE void qni_unpack_planes(const struct qni_matmul_tile *t, const uint8_t *codes,
                                    int64_t unit, __m512i table, const bool counts, uint8_t *out,
                                    __m512i *count)
{
    const int64_t bits = t->compact->bits;
    const bool halves = t->compact->halves != 0;
    codes += (halves ? unit >> 1 : unit) * 64 * bits;
    for (int64_t h = 0; h < (halves ? 1 : 2); h++) {
        __m512i v[4];
        qni_take_bits(codes, bits, halves ? unit & 1 : h, v);
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            v[r] = t->table8 != NULL ? _mm512_shuffle_epi8(table, v[r]) : v[r];
            _mm512_store_si512(out + 256 * h + 64 * r, v[r]);
            if (counts)
                *count = _mm512_dpbusd_epi32(*count, v[r], _mm512_set1_epi8(1));
        }
    }
}

/* 16 scales of bytes. */
static inline __m512 qni_load_bytes16(const uint8_t *at, int32_t type, float unit)
{
    const __m512i w = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    if (type == QNI_SCALE_E8M0) {
        const __m512i least = _mm512_set1_epi32(0x00400000); /* 0 is 2^-127 */
        return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(w, 23), least));
    }
    const __m512i size = _mm512_and_si512(w, _mm512_set1_epi32(0x7f));
    const __m512i normal =
        _mm512_add_epi32(_mm512_slli_epi32(size, 20), _mm512_set1_epi32(120 << 23));
    const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(size), _mm512_set1_ps(0x1p-9f));
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(8));
    const __m512 v = _mm512_mask_mov_ps(_mm512_castsi512_ps(normal), is_small, small);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(w, _mm512_set1_epi32(0x80)), 24);
    return _mm512_mul_ps(_mm512_or_ps(v, _mm512_castsi512_ps(sign)), _mm512_set1_ps(unit));
}

static inline __m512 qni_load_i8(const uint8_t *at, bool is_signed)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
    return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes)
                                        : _mm512_cvtepu8_epi32(bytes));
}

static inline void qni_two_levels16(const struct qni_compact_panels *c, int64_t panel,
                                    int64_t group, __m512 *scale, __m512 *offset)
{
    const int64_t super = group >> c->super_shift, first = super << c->super_shift;
    const uint8_t *const common =
        c->levels + (size_t)panel * c->levels_stride + (size_t)super * c->super_bytes;
    const uint8_t *const sub = common + c->common_bytes + (size_t)(group - first) * c->group_bytes;
    const int32_t is_f16 = c->scale_type == QNI_SCALE_F16;
    if (c->shares) {
        const __m512i both =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)sub));
        *scale = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
        *offset = _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4));
    } else {
        *scale = qni_load_i8(sub, c->is_signed != 0);
        *offset = c->has_min ? qni_load_i8(sub + 16, false) : _mm512_setzero_ps();
    }
    *scale = _mm512_mul_ps(qni_load16(common, 0, is_f16), *scale);
    if (c->has_min) { /* a power of two times the scale is exact */
        const __m512 least = _mm512_mul_ps(qni_load16(common, 1, is_f16), *offset);
        *offset = _mm512_fmsub_ps(*scale, _mm512_set1_ps(c->half), least);
    }
}

/* Scales and offsets of a group. */
QNI_NOINLINE static void qni_affine16(const struct qni_compact_panels *c, int64_t panel,
                                      int64_t group, __m512 *scale, __m512 *offset)
{
    const size_t lane = (size_t)group * 16;
    if (c->super_shift >= 0) {
        qni_two_levels16(c, panel, group, scale, offset);
        return;
    }
    const uint8_t *const scales = c->scale + (size_t)panel * c->scale_stride;
    *scale = c->scale_type >= QNI_SCALE_E8M0
                 ? qni_load_bytes16(scales + lane, c->scale_type, c->unit)
                 : qni_load16(scales, group, c->scale_type == QNI_SCALE_F16);
    *offset = _mm512_setzero_ps();
    if (c->levels != NULL)
        *offset = _mm512_fmadd_ps(*scale, _mm512_set1_ps(c->half),
                                  qni_load16(c->levels + (size_t)panel * c->levels_stride, group,
                                             c->min_is_f16));
    if (c->zero == NULL)
        return;
    const uint8_t *const zeros = (const uint8_t *)c->zero + (size_t)panel * c->zero_stride;
    const __m512 zero = c->zero_is_i8
                            ? qni_load_i8(zeros + lane, true)
                            : _mm512_cvtepi32_ps(_mm512_loadu_si512(zeros + 4 * lane));
    *offset = _mm512_mul_ps(_mm512_xor_ps(zero, _mm512_set1_ps(-0.0f)), *scale);
}

#endif
