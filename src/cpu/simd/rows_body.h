/* SPDX-License-Identifier: Apache-2.0 */
/* The row functions (rows/kernel.h) for one instruction set: included once by each of
 * rows_scalar.c, rows_x86_avx2.c and rows_x86_avx512.c.
 *
 * Parameters
 *   QNI_ROWS_ISA    the name of the instance, a word of rows/isa.inc: defines qni_rows_<ISA>
 *   QNI_ROWS_NEEDS  its QN_ISA_ bits
 *
 * The loops are plain C, written so that gcc and clang vectorise them for whatever flags the
 * including file has: branches are selections, extremes are integers, sums are integers. No step
 * depends on the order of another, nothing is fused but what says so, so every instance gives the
 * same bits. The only intrinsics are the conversions of f16, where the instruction exists and gives
 * the bits of half.h (widening, but for the payload of a NaN), and the moves of transpose.h; stores
 * that pass the caches by; and codes to floats and back and their sums, of which compilers make
 * more steps. */
#include <stdbool.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/half.h"
#include "../../base/size.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif
#if defined(__AVX2__)
#include "transpose.h"
#endif
/* Codes by the instructions for bytes: AVX-512 has one that packs, which compilers find. */
#if defined(__AVX2__) && !defined(__AVX512BW__)
#define QNI_ROWS_PACKS 1
#else
#define QNI_ROWS_PACKS 0
#endif

/* ---- conversions ----------------------------------------------------------------------------- */

static void widen_f16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
#endif
    for (; i < n; i++)
        dst[i] = qni_f32_from_f16(src[i]);
}

static void widen_bf16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = qni_f32_from_bf16(src[i]);
}

static void widen(float *dst, const void *src, qn_dtype dtype, const float *times, int64_t n)
{
    if (dtype == QN_F16)
        widen_f16(dst, src, n);
    else if (dtype == QN_BF16)
        widen_bf16(dst, src, n);
    else if (times == NULL)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    if (times == NULL)
        return;
    const float *const from = dtype == QN_F32 ? src : dst;
    for (int64_t i = 0; i < n; i++)
        dst[i] = from[i] * times[i];
}

static void widen_codes(float *restrict dst, const void *restrict src, qn_dtype dtype, int32_t zero,
                        int64_t n)
{
    const int8_t *const i8 = src;
    const uint8_t *const u8 = src;
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + 8 <= n; i += 8) {
        const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)(i8 + i));
        const __m256i words =
            dtype == QN_I8 ? _mm256_cvtepi8_epi32(codes) : _mm256_cvtepu8_epi32(codes);
        _mm256_storeu_ps(dst + i,
                         _mm256_cvtepi32_ps(_mm256_sub_epi32(words, _mm256_set1_epi32(zero))));
    }
#endif
    for (; i < n; i++)
        dst[i] = (float)((dtype == QN_I8 ? i8[i] : u8[i]) - zero);
}

static void narrow_f16(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(QNI_NAN_F32));
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(src + i);
        const __m256 one = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        _mm_storeu_si128((__m128i *)(dst + i), _mm256_cvtps_ph(one, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < n; i++)
        dst[i] = qni_f16_from_f32(src[i]);
}

QNI_TEMPLATE void sum_groups(const void *x, const bool is_bf16, const struct qni_cut *cut,
                             float *total)
{
    const float *const f32 = x;
    const uint16_t *const bf16 = x;
    for (int64_t g = 0; g < cut->n_groups; g++) {
        float part[16] = {0.0f};
        const int64_t first = g * cut->group_units * QNI_UNIT;
        const int64_t end = qni_min(first + cut->group_units * QNI_UNIT, cut->units * QNI_UNIT);
        for (int64_t i = first; i < end; i += 16)
            for (int64_t j = 0; j < 16; j++)
                part[j] += is_bf16 ? qni_f32_from_bf16(bf16[i + j]) : f32[i + j];
        for (int64_t n = 8; n > 0; n /= 2)
            for (int64_t j = 0; j < n; j++)
                part[j] += part[j + n];
        total[g] = part[0];
    }
}

static void total_of_groups(const float *x, const struct qni_cut *cut, float *total)
{
    sum_groups(x, false, cut, total);
}

static void total_of_bf16(const uint16_t *x, const struct qni_cut *cut, float *total)
{
    sum_groups(x, true, cut, total);
}

/* The bf16 next to each number, in the upper half of its word; what is finite stays so: beyond the
 * largest bf16 it is cut. */
#if defined(__AVX512BW__)
static inline __m512i upper_halves(__m512 v)
{
    const __m512i bits = _mm512_castps_si512(v), ones = _mm512_set1_epi32(0x7f800000);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_cut = _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, ones), ones) |
                             _mm512_cmpeq_epi32_mask(_mm512_and_si512(near, ones), ones);
    return _mm512_and_si512(_mm512_mask_mov_epi32(near, is_cut, bits),
                            _mm512_set1_epi32((int32_t)0xffff0000));
}
#else
static inline uint32_t upper_half(float v)
{
    const uint32_t bits = qni_bits_of(v), near = bits + 0x7fffu + (bits >> 16 & 1u);
    const bool is_cut = (bits & 0x7f800000u) == 0x7f800000u || (near & 0x7f800000u) == 0x7f800000u;
    return (is_cut ? bits : near) & 0xffff0000u;
}
#endif

static void split_planes(uint8_t *dst, size_t step, int32_t planes, float *x, int64_t units)
{
#if defined(__AVX512BW__)
    /* words of two vectors: the upper halves of 0 2 1 3, 4 6 5 7 ... */
    const __m512i order = _mm512_add_epi16(
        _mm512_broadcast_i64x2(_mm_setr_epi16(1, 5, 3, 7, 9, 13, 11, 15)),
        _mm512_set_epi64(0x0030003000300030, 0x0030003000300030, 0x0020002000200020,
                         0x0020002000200020, 0x0010001000100010, 0x0010001000100010, 0, 0));
    for (int64_t u = 0; u < units; u++, x += 32) {
        __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
        for (int32_t p = 0; p < planes; p++, dst += step) {
            const __m512i i = upper_halves(a), j = upper_halves(b);
            _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(i, order, j));
            a = _mm512_sub_ps(a, _mm512_castsi512_ps(i));
            b = _mm512_sub_ps(b, _mm512_castsi512_ps(j));
        }
    }
#else
    for (int64_t u = 0; u < units; u++, x += 32)
        for (int32_t p = 0; p < planes; p++, dst += step) {
            uint16_t upper[32];
            for (int32_t i = 0; i < 32; i++) {
                const uint32_t bits = upper_half(x[i]);
                upper[i / 4 * 4 + (i % 4 == 1   ? 2
                                   : i % 4 == 2 ? 1
                                                : i % 4)] = (uint16_t)(bits >> 16);
                x[i] -= qni_float_of(bits);
            }
            memcpy(dst, upper, sizeof upper);
        }
#endif
}

static void order_bf16(uint8_t *dst, size_t step, const uint16_t *x, int64_t units)
{
    for (int64_t u = 0; u < units; u++, x += 32, dst += step) {
#if defined(__AVX512BW__)
        const __m512i order = _mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
        _mm512_storeu_si512(dst, _mm512_shuffle_epi8(_mm512_loadu_si512(x), order));
#else
        uint16_t in_order[32];
        for (int32_t i = 0; i < 32; i += 4) {
            in_order[i] = x[i];
            in_order[i + 1] = x[i + 2];
            in_order[i + 2] = x[i + 1];
            in_order[i + 3] = x[i + 3];
        }
        memcpy(dst, in_order, sizeof in_order);
#endif
    }
}

/* qni_bf16_from_f32() with selections. */
static void narrow_bf16(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = qni_bits_of(src[i]);
        const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        dst[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? QNI_NAN_BF16 : rounded);
    }
}

/* qni_e4m3_from_f32() and back, with selections. */
static void to_e4m3(uint8_t *restrict dst, const float *restrict src, float times, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = qni_bits_of(src[i] * times), a = u & 0x7fffffffu;
        const uint32_t small = qni_bits_of(qni_float_of(a) + 0x1p14f) - 0x46800000u;
        const uint32_t normal = (a - 0x3c000000u + 0x7ffffu + (a >> 20 & 1u)) >> 20;
        const uint32_t near = a < 0x3c800000u ? small : normal > 0x7eu ? 0x7eu : normal;
        dst[i] = (uint8_t)(a > 0x7f800000u ? 0x7fu : (u >> 24 & 0x80u) | near);
    }
}

static void from_e4m3(float *restrict dst, const uint8_t *restrict src, float times, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = src[i], sign = (u & 0x80u) << 24, magnitude = u & 0x7fu;
        const float v = qni_float_of(magnitude << 20) * 0x1p120f;
        const uint32_t bits = magnitude == 0x7fu ? (uint32_t)QNI_NAN_F32 : qni_bits_of(v);
        dst[i] = qni_float_of(sign | bits) * times;
    }
}

/* ---- the quantizer --------------------------------------------------------------------------- */

static void range_magnitude(const float *x, int64_t n, struct qni_range *range)
{
    int32_t amax = range->amax;
    for (int64_t i = 0; i < n; i++) {
        const int32_t a = (int32_t)(qni_bits_of(x[i]) & 0x7fffffffu);
        amax = a > amax ? a : amax;
    }
    range->amax = amax;
}

static void range(const float *x, int64_t n, struct qni_range *range)
{
    int32_t amax = range->amax, lo = range->lo, hi = range->hi;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = (int32_t)qni_bits_of(x[i]), ordered = qni_ordered(bits);
        const int32_t a = bits & 0x7fffffff;
        amax = a > amax ? a : amax;
        lo = ordered < lo ? ordered : lo;
        hi = ordered > hi ? ordered : hi;
    }
    range->amax = amax;
    range->lo = lo;
    range->hi = hi;
}

/* rint(v) as an integer, |v| < 2^22: the sum's last bit counts ones, ties to even. */
QNI_TEMPLATE int32_t rint_of(float v)
{
    return (int32_t)qni_bits_of(v + 0x1.8p23f) - 0x4b400000;
}

#if QNI_ROWS_PACKS
QNI_TEMPLATE __m256i load_bytes(const void *at)
{
    return _mm256_loadu_si256(at);
}

/* 32 int32 as bytes, in order; codes that no scaling gives are saturated. */
QNI_TEMPLATE __m256i bytes_of(const __m256i *v, const bool is_signed)
{
    const __m256i a = _mm256_packs_epi32(v[0], v[1]), b = _mm256_packs_epi32(v[2], v[3]);
    const __m256i packed = is_signed ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b);
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sums of unsigned bytes, in four words of 64 bits. */
QNI_TEMPLATE __m256i add_bytes(__m256i sums, __m256i bytes)
{
    return _mm256_add_epi64(sums, _mm256_sad_epu8(bytes, _mm256_setzero_si256()));
}

QNI_TEMPLATE int64_t sum_of(__m256i sums)
{
    const __m128i two =
        _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)));
}

/* Codes of whole vectors of 32; how many there were. Conversions round as rint() does. */
QNI_TEMPLATE int64_t encode_vectors(const float *restrict x, int64_t n, float half_lo, float inv,
                                    const bool symmetric, int8_t *restrict codes, int32_t *sum)
{
    const __m256i top = _mm256_set1_epi8(-128);
    const __m256 half = _mm256_set1_ps(0.5f), low = _mm256_set1_ps(half_lo);
    const __m256 times = _mm256_set1_ps(inv);
    __m256i sums = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i v[4];
        QNI_UNROLL
        for (int j = 0; j < 4; j++) {
            __m256 at = _mm256_loadu_ps(x + i + 8 * j);
            if (!symmetric)
                at = _mm256_sub_ps(_mm256_mul_ps(at, half), low);
            v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(at, times));
        }
        const __m256i bytes = bytes_of(v, symmetric), other = _mm256_xor_si256(bytes, top);
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), symmetric ? bytes : other);
        sums = add_bytes(sums, symmetric ? other : bytes);
    }
    *sum = (int32_t)(sum_of(sums) - 128 * i);
    return i;
}
#endif

static int32_t encode_symmetric(const float *restrict x, int64_t n, float inv,
                                int8_t *restrict codes)
{
    int32_t sum = 0;
    int64_t i = 0;
#if QNI_ROWS_PACKS
    i = encode_vectors(x, n, 0.0f, inv, true, codes, &sum);
#endif
    for (; i < n; i++) {
        int32_t code = rint_of(x[i] * inv);
        code = code < -127 ? -127 : code;
        code = code > 127 ? 127 : code;
        codes[i] = (int8_t)code;
        sum += code;
    }
    return sum;
}

static int32_t encode_asymmetric(const float *restrict x, int64_t n, float half_lo, float inv,
                                 int8_t *restrict codes)
{
    int32_t sum = 0;
    int64_t i = 0;
#if QNI_ROWS_PACKS
    i = encode_vectors(x, n, half_lo, inv, false, codes, &sum);
#endif
    for (; i < n; i++) {
        int32_t code = rint_of((x[i] * 0.5f - half_lo) * inv) - 128;
        code = code < -128 ? -128 : code;
        code = code > 127 ? 127 : code;
        codes[i] = (int8_t)code;
        sum += code;
    }
    return sum;
}

static int32_t encode(const float *x, int64_t n, const struct qni_scaling *s, int32_t symmetric,
                      int8_t *codes)
{
    if (s->inv == 0.0f) {
        memset(codes, 0, (size_t)n);
        return 0;
    }
    return symmetric ? encode_symmetric(x, n, s->inv, codes)
                     : encode_asymmetric(x, n, s->half_lo, s->inv, codes);
}

QNI_TEMPLATE int32_t encode_quotients(const float *restrict x, int64_t n, float scale, int32_t zero,
                                      const int32_t lo, const int32_t hi, uint8_t *restrict codes)
{
    int32_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float w = x[i] / scale;
        w = w == w ? w : 0.0f;
        w = w < -0x1p21f ? -0x1p21f : w;
        w = w > 0x1p21f ? 0x1p21f : w;
        int32_t code = rint_of(w) + zero;
        code = code < lo ? lo : code;
        code = code > hi ? hi : code;
        codes[i] = (uint8_t)code;
        sum += code;
    }
    return sum;
}

static int32_t encode_linear(const float *x, int64_t n, float scale, int32_t zero, qn_dtype dtype,
                             uint8_t *codes)
{
    return dtype == QN_I8 ? encode_quotients(x, n, scale, zero, -128, 127, codes)
                          : encode_quotients(x, n, scale, zero, 0, 255, codes);
}

static void quantize_row(const float *x, const struct qni_cut *cut, int8_t *codes, int32_t *sum,
                         float *scale)
{
    struct qni_range r = qni_range_empty();
    range_magnitude(x, cut->units * 32, &r);
    const struct qni_scaling s = qni_scaling_of(&r, 1);
    *scale = s.scale;
    int64_t segment = 0, unit = 0;
    for (int64_t g = 0; g < cut->n_groups; g++) {
        const int64_t left = cut->units - unit;
        const int64_t end = unit + (left < cut->group_units ? left : cut->group_units);
        while (unit < end) {
            const int64_t n = end - unit < cut->segment_units ? end - unit : cut->segment_units;
            sum[segment++] = encode(x + unit * 32, n * 32, &s, 1, codes + unit * 32);
            unit += n;
        }
    }
}

static void quantize_block(const float *x, const struct qni_cut *cut, int32_t symmetric,
                           int8_t *codes, const struct qni_facts *facts)
{
    int64_t segment = 0, unit = 0;
    for (int64_t g = 0; g < cut->n_groups; g++) {
        const int64_t first = unit, left = cut->units - unit;
        const int64_t end = unit + (left < cut->group_units ? left : cut->group_units);
        while (unit < end) {
            const int64_t n = end - unit < cut->segment_units ? end - unit : cut->segment_units;
            const int64_t count = qni_cut_count(cut, g, unit - first, n), at = unit * 32;
            struct qni_range r = qni_range_empty();
            if (symmetric)
                range_magnitude(x + at, count, &r);
            else
                range(x + at, count, &r);
            const struct qni_scaling s = qni_scaling_of(&r, symmetric);
            const int32_t sum = encode(x + at, count, &s, symmetric, codes + at);
            memset(codes + at + count, 0, (size_t)(n * 32 - count));
            facts->sum[segment] = sum;
            facts->scale[segment] = s.scale;
            facts->offset[segment] = s.offset;
            facts->total[segment] = qni_fmaf(s.scale, (float)sum, s.offset * (float)count);
            segment++;
            unit += n;
        }
    }
}

/* Units of codes. */
QNI_TEMPLATE int32_t sum_units(const int8_t *codes, int64_t units)
{
#if QNI_ROWS_PACKS
    const __m256i top = _mm256_set1_epi8(-128);
    __m256i sums = _mm256_setzero_si256();
    for (int64_t u = 0; u < units; u++)
        sums = add_bytes(sums, _mm256_xor_si256(load_bytes(codes + u * QNI_UNIT), top));
    return (int32_t)(sum_of(sums) - 128 * QNI_UNIT * units);
#else
    int32_t total = 0;
    for (int64_t i = 0; i < units * QNI_UNIT; i++)
        total += codes[i];
    return total;
#endif
}

static void sum_codes(const int8_t *codes, const struct qni_cut *cut, int32_t *sum)
{
    int64_t segment = 0, unit = 0;
    for (int64_t g = 0; g < cut->n_groups; g++) {
        const int64_t left = cut->units - unit;
        const int64_t end = unit + (left < cut->group_units ? left : cut->group_units);
        while (unit < end) {
            const int64_t n = end - unit < cut->segment_units ? end - unit : cut->segment_units;
            sum[segment++] = sum_units(codes + unit * QNI_UNIT, n);
            unit += n;
        }
    }
}

/* ---- the epilogue ---------------------------------------------------------------------------- */

static void scale_row(float *v, const struct qni_scale_step *s)
{
    const int64_t n = s->n;
    if (s->from_i32) {
        const uint32_t x_sum = (uint32_t)s->x_sum;
        if (s->w_zero != NULL)
            for (int64_t i = 0; i < n; i++)
                v[i] = qni_float_of(qni_bits_of(v[i]) - (uint32_t)s->w_zero[i] * x_sum);
        if (s->bias_i32 != NULL)
            for (int64_t i = 0; i < n; i++)
                v[i] = qni_float_of(qni_bits_of(v[i]) + (uint32_t)s->bias_i32[i]);
        if (s->w_scale != NULL)
            for (int64_t i = 0; i < n; i++)
                v[i] = s->w_scale[i] * (float)(int32_t)qni_bits_of(v[i]) + 0.0f; /* no -0 */
    }
    if (s->x_scale != 1.0f)
        for (int64_t i = 0; i < n; i++)
            v[i] *= s->x_scale;
    if (s->row_scale != 1.0f)
        for (int64_t i = 0; i < n; i++)
            v[i] *= s->row_scale;
    if (s->col_scale != NULL)
        for (int64_t i = 0; i < n; i++)
            v[i] *= s->col_scale[i];
    if (s->bias != NULL)
        for (int64_t i = 0; i < n; i++)
            v[i] += s->bias[i];
}

static void add_scaled(float *restrict v, const float *restrict x, float times, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        v[i] += x[i] * times;
}

static void scale_to(float *y, const float *v, float times, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = qni_one_nan(v[i] * times);
}

static void scale_past(float *y, const float *v, float times, int64_t n)
{
#if defined(__AVX512F__)
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(QNI_NAN_F32));
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 a = _mm512_mul_ps(_mm512_loadu_ps(v + i), _mm512_set1_ps(times));
        const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
        _mm512_stream_ps(y + i, _mm512_mask_mov_ps(a, is_nan, nan));
    }
#elif defined(__AVX2__)
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(QNI_NAN_F32));
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 a = _mm256_mul_ps(_mm256_loadu_ps(v + i), _mm256_set1_ps(times));
        const __m256 is_nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
        _mm256_stream_ps(y + i, _mm256_blendv_ps(a, nan, is_nan));
    }
#else
    scale_to(y, v, times, n);
#endif
}

static void fence(void)
{
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

static void add_residual(float *v, const struct qni_finish_step *s)
{
    const int64_t n = s->n, stride = s->residual_stride;
    if (s->residual_dtype == QN_F32) {
        const float *const r = s->residual;
        if (stride == 1)
            for (int64_t i = 0; i < n; i++)
                v[i] += r[i];
        else
            for (int64_t i = 0; i < n; i++)
                v[i] += r[i * stride];
    } else if (s->residual_dtype == QN_I8) {
        const int8_t *const r = s->residual;
        for (int64_t i = 0; i < n; i++)
            v[i] += s->residual_scale * (float)(r[i * stride] - s->residual_zero);
    } else if (s->residual_dtype == QN_U8) {
        const uint8_t *const r = s->residual;
        for (int64_t i = 0; i < n; i++)
            v[i] += s->residual_scale * (float)(r[i * stride] - s->residual_zero);
    } else if (s->residual_dtype == QN_BF16) {
        const uint16_t *const r = s->residual;
        for (int64_t i = 0; i < n; i++)
            v[i] += qni_f32_from_bf16(r[i * stride]);
    } else {
        const uint16_t *const r = s->residual;
        for (int64_t i = 0; i < n; i++)
            v[i] += qni_f32_from_f16(r[i * stride]);
    }
}

/* min(max(slope v + shift, 0), 1); NaN passes. */
QNI_TEMPLATE float hard(float v, float slope, float shift)
{
    const float line = v * slope + shift, above = line > 1.0f ? 1.0f : line;
    return above < 0.0f ? 0.0f : above;
}

static void activate_more(float *v, int64_t n, const struct qni_finish_step *s)
{
    switch (s->act) {
    case QN_ACT_SIGMOID:
        for (int64_t i = 0; i < n; i++)
            v[i] = 1.0f / (1.0f + qni_exp_inline(-v[i]));
        break;
    case QN_ACT_TANH:
        for (int64_t i = 0; i < n; i++)
            v[i] = qni_tanh_inline(v[i]);
        break;
    case QN_ACT_HARDSWISH:
        for (int64_t i = 0; i < n; i++)
            v[i] *= hard(v[i], 0x1.555556p-3f, 0.5f);
        break;
    case QN_ACT_HARDSIGMOID:
        for (int64_t i = 0; i < n; i++)
            v[i] = hard(v[i], s->hard_slope, s->hard_shift);
        break;
    case QN_ACT_LEAKY_RELU:
        for (int64_t i = 0; i < n; i++)
            v[i] = v[i] < 0.0f ? v[i] * s->leaky_slope : v[i];
        break;
    default:
        break;
    }
}

static void activate(float *v, int64_t n, const struct qni_finish_step *s)
{
    switch (s->act) {
    case QN_ACT_RELU:
        for (int64_t i = 0; i < n; i++)
            v[i] = v[i] <= 0.0f ? 0.0f : v[i];
        break;
    case QN_ACT_RELU6:
        for (int64_t i = 0; i < n; i++) {
            const float a = v[i] <= 0.0f ? 0.0f : v[i];
            v[i] = a > 6.0f ? 6.0f : a;
        }
        break;
    case QN_ACT_GELU:
        for (int64_t i = 0; i < n; i++)
            v[i] = 0.5f * v[i] * (1.0f + qni_erf_inline(v[i] * 0x1.6a09e6p-1f));
        break;
    case QN_ACT_GELU_TANH:
        for (int64_t i = 0; i < n; i++) {
            const float cubic = qni_fmaf(0x1.6e4e26p-5f, v[i] * v[i], 1.0f);
            const float inner = v[i] * 0x1.988454p-1f * cubic;
            v[i] = 0.5f * v[i] * (1.0f + qni_tanh_inline(inner));
        }
        break;
    case QN_ACT_SILU:
        for (int64_t i = 0; i < n; i++)
            v[i] = v[i] / (1.0f + qni_exp_inline(-v[i]));
        break;
    default:
        activate_more(v, n, s);
        break;
    }
}

static void multiply(float *v, const struct qni_finish_step *s)
{
    const float *const f32 = s->factor;
    const uint16_t *const f16 = s->factor;
    if (s->factor_dtype == QN_F32)
        for (int64_t i = 0; i < s->n; i++)
            v[i] *= f32[i];
    else if (s->factor_dtype == QN_BF16)
        for (int64_t i = 0; i < s->n; i++)
            v[i] *= qni_f32_from_bf16(f16[i]);
    else
        for (int64_t i = 0; i < s->n; i++)
            v[i] *= qni_f32_from_f16(f16[i]);
}

static void clamp(float *v, int64_t n, float lo, float hi)
{
    for (int64_t i = 0; i < n; i++) {
        const float above = v[i] > hi ? hi : v[i];
        v[i] = v[i] < lo ? lo : above;
    }
}

/* saturate(rint(fl(v * inv)) + zero); a NaN counts as 0. */
QNI_TEMPLATE int32_t requantize(float v, float inv, int32_t zero, const int32_t lo,
                                const int32_t hi)
{
    float w = v * inv;
    w = w == w ? w : 0.0f;
    w = w < -0x1p21f ? -0x1p21f : w;
    w = w > 0x1p21f ? 0x1p21f : w;
    int32_t code = rint_of(w) + zero;
    code = code < lo ? lo : code;
    return code > hi ? hi : code;
}

#if QNI_ROWS_PACKS
/* Whole vectors of 32, next to each other; packing saturates. Returns how many. */
QNI_TEMPLATE int64_t store_vectors(const float *restrict v, const struct qni_finish_step *s,
                                   const bool is_signed, uint8_t *restrict y)
{
    const __m256 inv = _mm256_set1_ps(s->y_inv), most = _mm256_set1_ps(0x1p21f);
    const __m256i zero = _mm256_set1_epi32(s->y_zero);
    int64_t i = 0;
    for (; i + 32 <= s->n; i += 32) {
        __m256i code[4];
        QNI_UNROLL
        for (int j = 0; j < 4; j++) {
            __m256 w = _mm256_mul_ps(_mm256_loadu_ps(v + i + 8 * j), inv);
            w = _mm256_and_ps(w, _mm256_cmp_ps(w, w, _CMP_ORD_Q));
            w = _mm256_min_ps(_mm256_max_ps(w, _mm256_sub_ps(_mm256_setzero_ps(), most)), most);
            code[j] = _mm256_add_epi32(_mm256_cvtps_epi32(w), zero);
        }
        _mm256_storeu_si256((__m256i *)(void *)(y + i), bytes_of(code, is_signed));
    }
    return i;
}
#endif

static void store_bytes(const float *restrict v, const struct qni_finish_step *s)
{
    int64_t i = 0;
    const int64_t n = s->n, stride = s->y_stride;
    const float inv = s->y_inv;
    const int32_t zero = s->y_zero;
    uint8_t *restrict y = s->y;
#if QNI_ROWS_PACKS
    if (stride == 1)
        i = s->y_dtype == QN_I8 ? store_vectors(v, s, true, y) : store_vectors(v, s, false, y);
#endif
    if (s->y_dtype == QN_I8 && stride == 1)
        for (; i < n; i++)
            y[i] = (uint8_t)requantize(v[i], inv, zero, -128, 127);
    else if (s->y_dtype == QN_I8)
        for (; i < n; i++)
            y[i * stride] = (uint8_t)requantize(v[i], inv, zero, -128, 127);
    else if (stride == 1)
        for (; i < n; i++)
            y[i] = (uint8_t)requantize(v[i], inv, zero, 0, 255);
    else
        for (; i < n; i++)
            y[i * stride] = (uint8_t)requantize(v[i], inv, zero, 0, 255);
}

static void store_floats(const float *v, const struct qni_finish_step *s)
{
    float *const y = s->y;
    if (s->y_stride == 1)
        for (int64_t i = 0; i < s->n; i++)
            y[i] = qni_one_nan(v[i]);
    else
        for (int64_t i = 0; i < s->n; i++)
            y[i * s->y_stride] = qni_one_nan(v[i]);
}

static void store_words(const float *v, const struct qni_finish_step *s)
{
    float *const y = s->y; /* i32 results lie in v as their bits */
    if (s->y_stride == 1 && y != v)
        memcpy(y, v, (size_t)s->n * sizeof *v);
    else if (s->y_stride != 1)
        for (int64_t i = 0; i < s->n; i++)
            y[i * s->y_stride] = v[i];
}

static void store_halves(const float *v, const struct qni_finish_step *s)
{
    uint16_t *const y = s->y;
    if (s->y_dtype == QN_F16 && s->y_stride == 1)
        narrow_f16(y, v, s->n);
    else if (s->y_stride == 1)
        narrow_bf16(y, v, s->n);
    else if (s->y_dtype == QN_F16)
        for (int64_t i = 0; i < s->n; i++)
            y[i * s->y_stride] = qni_f16_from_f32(v[i]);
    else
        for (int64_t i = 0; i < s->n; i++)
            y[i * s->y_stride] = qni_bf16_from_f32(v[i]);
}

static void store_e4m3(const float *v, const struct qni_finish_step *s)
{
    uint8_t *const y = s->y;
    if (s->y_stride == 1)
        to_e4m3(y, v, s->y_inv, s->n);
    else
        for (int64_t i = 0; i < s->n; i++)
            to_e4m3(y + i * s->y_stride, v + i, s->y_inv, 1);
}

static void finish_line(float *v, const struct qni_finish_step *s)
{
    if (s->residual != NULL && !s->residual_after)
        add_residual(v, s);
    activate(v, s->n, s);
    if (s->factor != NULL)
        multiply(v, s);
    if (s->has_clamp)
        clamp(v, s->n, s->clamp_lo, s->clamp_hi);
    if (s->residual != NULL && s->residual_after)
        add_residual(v, s);
    if (s->y_dtype == QN_I8 || s->y_dtype == QN_U8)
        store_bytes(v, s);
    else if (s->y_dtype == QN_E4M3)
        store_e4m3(v, s);
    else if (s->y_dtype == QN_F16 || s->y_dtype == QN_BF16)
        store_halves(v, s);
    else if (s->y_dtype == QN_F32)
        store_floats(v, s);
    else
        store_words(v, s);
}

/* ---- planes to rows and back ----------------------------------------------------------------- */

/* Tiles of 16 x 16 keep both sides in the first cache. */
QNI_TEMPLATE void turn_plain(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane,
                             int64_t pixels, int64_t channels, const size_t element)
{
    for (int64_t i0 = 0; i0 < pixels; i0 += 16)
        for (int64_t c0 = 0; c0 < channels; c0 += 16)
            for (int64_t i = i0; i < pixels && i < i0 + 16; i++)
                for (int64_t c = c0; c < channels && c < c0 + 16; c++)
                    memcpy(dst + (size_t)i * ld + (size_t)c * element,
                           src + (size_t)c * plane + (size_t)i * element, element);
}

#if defined(__AVX2__)
/* The last block of each direction reaches back: what it writes twice is the same. Channels are the
 * outer loop: planes are pages apart, the pixels of a plane are neighbours. */
QNI_TEMPLATE void turn_blocks(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane,
                              int64_t pixels, int64_t channels, const size_t element)
{
    for (int64_t j = 0; j < channels; j += 16) {
        const int64_t c = j + 16 <= channels ? j : channels - 16;
        for (int64_t i = 0; i < pixels; i += 16) {
            const int64_t p = i + 16 <= pixels ? i : pixels - 16;
            uint8_t *const to = dst + (size_t)p * ld + (size_t)c * element;
            const uint8_t *const from = src + (size_t)c * plane + (size_t)p * element;
            if (element == 4)
                qni_turn16_u32(to, ld, from, plane);
            else if (element == 2)
                qni_turn16_u16(to, ld, from, plane);
            else
                qni_turn16_u8(to, ld, from, plane);
        }
    }
}
#endif

QNI_TEMPLATE void turn_elements(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane,
                                int64_t pixels, int64_t channels, const size_t element)
{
#if defined(__AVX2__)
    if (pixels >= 16 && channels >= 16) {
        turn_blocks(dst, ld, src, plane, pixels, channels, element);
        return;
    }
#endif
    turn_plain(dst, ld, src, plane, pixels, channels, element);
}

static void turn(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane, int64_t pixels,
                 int64_t channels, size_t element)
{
    if (element == 4)
        turn_elements(dst, ld, src, plane, pixels, channels, 4);
    else if (element == 2)
        turn_elements(dst, ld, src, plane, pixels, channels, 2);
    else
        turn_elements(dst, ld, src, plane, pixels, channels, 1);
}

/* ---- what overflowed ------------------------------------------------------------------------- */

/* As wide as registers: of wider ones gcc makes words in memory. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef uint32_t lanes QNI_VECTOR(4 * LANES);

/* The exponent of all ones, and no other, carries into the sign's place. */
QNI_TEMPLATE void collect(lanes *most, const float *v)
{
    QNI_UNROLL
    for (int i = 0; i < 16 / LANES; i++) {
        lanes bits;
        memcpy(&bits, v + i * LANES, sizeof bits);
        most[i] |= (bits & 0x7fffffffu) + 0x00800000u;
    }
}

static bool is_finite(const float *v, int64_t rows, int64_t n, int64_t ld)
{
    lanes most[16 / LANES] = {{0}};
    uint32_t all[16], rest = 0;
    for (int64_t r = 0; r < rows; r++, v += ld) {
        for (int64_t i = 0; i + 16 <= n; i += 16)
            collect(most, v + i);
        if (n >= 16 && n % 16 != 0) /* some twice */
            collect(most, v + n - 16);
        for (int64_t i = 0; n < 16 && i < n; i++)
            rest |= (qni_bits_of(v[i]) & 0x7fffffffu) + 0x00800000u;
    }
    memcpy(all, most, sizeof all);
    for (int i = 0; i < 16; i++)
        rest |= all[i];
    return rest >> 31 == 0;
}

#include "rows_floats.h"

#define QNI_ROWS_TEXT_(isa) #isa
#define QNI_ROWS_TEXT(isa)  QNI_ROWS_TEXT_(isa)
#define QNI_ROWS_NAME_(isa) qni_rows_##isa
#define QNI_ROWS_NAME(isa)  QNI_ROWS_NAME_(isa)

const struct qni_rows QNI_ROWS_NAME(QNI_ROWS_ISA) = {
    .name = QNI_ROWS_TEXT(QNI_ROWS_ISA),
    .needs = QNI_ROWS_NEEDS,
    .widen = widen,
    .widen_codes = widen_codes,
    .narrow_bf16 = narrow_bf16,
    .quantize_row = quantize_row,
    .quantize_block = quantize_block,
    .sum = sum_codes,
    .total = total_of_groups,
    .total_bf16 = total_of_bf16,
    .to_e4m3 = to_e4m3,
    .from_e4m3 = from_e4m3,
    .split = split_planes,
    .order_bf16 = order_bf16,
    .range = range,
    .encode = encode,
    .encode_linear = encode_linear,
    .add_scaled = add_scaled,
    .scale = scale_row,
    .scale_to = scale_to,
    .scale_past = scale_past,
    .fence = fence,
    .finish = finish_line,
    .float_rows = float_rows,
    .turn = turn,
    .is_finite = is_finite,
};

#undef QNI_ROWS_TEXT_
#undef QNI_ROWS_TEXT
#undef QNI_ROWS_NAME_
#undef QNI_ROWS_NAME
#undef QNI_ROWS_PACKS
#undef QNI_ROWS_ISA
#undef QNI_ROWS_NEEDS
