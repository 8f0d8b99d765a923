/* SPDX-License-Identifier: Apache-2.0 */
/* Compact weights made wide (matmul/kernel.h) for one instruction set: included once by each of
 * expand_scalar.c, expand_x86_avx2.c and expand_x86_avx512.c.
 *
 * Parameters
 *   QNI_EXPAND_ISA    the name of the instance, a word of matmul/expand.inc
 *   QNI_EXPAND_NEEDS  its QN_ISA_ bits
 *
 * Vectors are as wide as registers, and a vector of 64 bytes of a unit is one of them or several:
 * every byte, and every lane of four of them, goes its own way, so that pieces need nothing of each
 * other. The steps are the compilers' common dialect, but for codebooks and numbers of 16 bits. */
#include <stdbool.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/half.h"
#include "../../base/size.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BW__)
enum { WIDTH = 64 };
#elif defined(__AVX2__)
enum { WIDTH = 32 };
#else
enum { WIDTH = 16 };
#endif
enum { LINE = 64, VECTORS = 8, HALF = VECTORS / 2, LANES = WIDTH / 4, AHEAD = 2048 };

/* Pieces in a loop: each is long. */
#if defined(__clang__)
#define QNI_AS_LOOP _Pragma("clang loop unroll(disable)")
#else
#define QNI_AS_LOOP _Pragma("GCC unroll 1")
#endif

typedef uint32_t word QNI_VECTOR(WIDTH);
typedef int32_t number QNI_VECTOR(WIDTH);
typedef float real QNI_VECTOR(WIDTH);

QNI_TEMPLATE word load_word(const void *at)
{
    word v;
    memcpy(&v, at, sizeof v);
    return v;
}
QNI_TEMPLATE void store_word(void *at, word v)
{
    memcpy(at, &v, sizeof v);
}
/* A word of four equal bytes. */
QNI_TEMPLATE word bytes_of(uint32_t byte)
{
    return (word){0} + byte * 0x01010101u;
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* The codes of a piece of a unit, from 0 on. */
QNI_TEMPLATE void take(const uint8_t *from, const int bits, word v[VECTORS])
{
    const int low = bits >= 4 ? 4 : 0;
    QNI_UNROLL
    for (int r = 0; r < VECTORS; r++)
        v[r] = bits == 8 ? load_word(from + LINE * r) : (word){0};
    if (bits == 8)
        return;
    if (low > 0) {
        QNI_UNROLL
        for (int r = 0; r < HALF; r++) {
            const word both = load_word(from + LINE * r);
            v[r] = both & bytes_of(15);
            v[r + HALF] = both >> 4 & bytes_of(15);
        }
        from += HALF * LINE;
    }
    if (bits & 2) {
        const word pair[2] = {load_word(from), load_word(from + LINE)};
        QNI_UNROLL
        for (int r = 0; r < VECTORS; r++)
            v[r] |= (pair[r % 2] >> r / 2 * 2 & bytes_of(3)) << low;
        from += 2 * LINE;
    }
    if (bits & 1) {
        const word one = load_word(from);
        QNI_UNROLL
        for (int r = 0; r < VECTORS; r++)
            v[r] |= (one >> r & bytes_of(1)) << (low + (bits & 2));
    }
}

/* Values + 128 of codes of a codebook of at most 16. */
QNI_TEMPLATE word look_up(const int8_t *table8, word codes)
{
#if defined(__AVX512BW__)
    const __m128i table = _mm_loadu_si128((const __m128i *)(const void *)table8);
    const __m512i values = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)codes);
    return (word)values ^ bytes_of(128);
#elif defined(__AVX2__)
    const __m128i table = _mm_loadu_si128((const __m128i *)(const void *)table8);
    const __m256i values =
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)codes);
    return (word)values ^ bytes_of(128);
#else
    uint8_t bytes[WIDTH];
    memcpy(bytes, &codes, sizeof bytes);
    for (int i = 0; i < WIDTH; i++)
        bytes[i] = (uint8_t)(table8[bytes[i]] + 128);
    return load_word(bytes);
#endif
}

/* Sums of the bytes of each lane of some vectors. */
QNI_TEMPLATE word sum_of(const word v[HALF], const int bits)
{
    const word even = bytes_of(0) + 0x00ff00ffu;
    word sum = {0};
    if (bits <= 5) { /* four times 31 are a byte */
        const word bytes = v[0] + v[1] + v[2] + v[3];
        sum = (bytes & even) + (bytes >> 8 & even);
    } else {
        QNI_UNROLL
        for (int r = 0; r < HALF; r++)
            sum += (v[r] & even) + (v[r] >> 8 & even);
    }
    return (sum & 0xffff) + (sum >> 16);
}

/* Where the sums of the next unit go. */
struct totals {
    int32_t *at;
    int64_t in_group, in_segment;
};

static inline void next_unit(struct totals *t, const struct qni_cut *cut)
{
    t->in_group++;
    t->in_segment++;
    if (t->in_group == cut->group_units || t->in_segment == cut->segment_units) {
        t->at += QNI_PANEL;
        t->in_segment = 0;
    }
    if (t->in_group == cut->group_units)
        t->in_group = 0;
}

/* Sums of a piece, of the first and of the second half of a unit. */
QNI_TEMPLATE void add_sums(const struct qni_expand_codes *e, const word v[VECTORS], const int bits,
                           const struct totals totals[2], int64_t lane)
{
    const struct qni_compact *const c = e->compact;
    const bool is_table = c->is_table != 0;
    const int32_t value0 = is_table ? 128 : 1 << (bits - 1);
    QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        word part[HALF];
        QNI_UNROLL
        for (int r = 0; r < HALF; r++)
            part[r] = bits <= 4 && is_table ? look_up(e->table8, v[HALF * h + r]) : v[HALF * h + r];
        const word sum = bits <= 4 && is_table ? sum_of(part, 8) : sum_of(part, bits);
        const uint32_t origin = (uint32_t)(value0 * QNI_UNIT / 2);
        if (totals[h].at != NULL)
            store_word(totals[h].at + lane, load_word(totals[h].at + lane) + sum - origin);
    }
}

/* The codes of a piece as kernels read them; second: of the unit that the second half goes to, or
 * NULL where it has none. */
QNI_TEMPLATE void put(const struct qni_compact *c, const word v[VECTORS], const int bits,
                      const bool halves, uint8_t *to, uint8_t *second)
{
    const word shift = bytes_of((uint32_t)c->shift), padding = bytes_of(c->padding);
    word wide[VECTORS];
    QNI_UNROLL
    for (int r = 0; r < VECTORS; r++)
        wide[r] = bits == 8 ? v[r] : v[r] + shift;
    if (bits <= 4 && c->wide_bits == 4) {
        QNI_UNROLL
        for (int r = 0; r < HALF; r++)
            store_word(to + LINE * r, wide[r] | (halves ? padding : wide[r + HALF]) << 4);
        QNI_UNROLL
        for (int r = 0; r < HALF && second != NULL; r++)
            store_word(second + LINE * r, wide[r + HALF] | padding << 4);
        return;
    }
    QNI_UNROLL
    for (int r = 0; r < HALF; r++) {
        store_word(to + LINE * r, wide[r]);
        store_word(to + LINE * (r + HALF), halves ? padding : wide[r + HALF]);
    }
    QNI_UNROLL
    for (int r = 0; r < HALF && second != NULL; r++) {
        store_word(second + LINE * r, wide[r + HALF]);
        store_word(second + LINE * (r + HALF), padding);
    }
}

QNI_TEMPLATE void expand(const struct qni_expand_codes *e, const int bits, const bool halves)
{
    const struct qni_compact c = *e->compact;
    const size_t wide_bytes = (size_t)(LINE * c.wide_bits);
    const uint8_t *from = e->from;
    uint8_t *to = e->to;
    struct totals totals[2] = {{e->sums, 0, 0}, {e->sums, 0, 0}};
    if (e->sums != NULL)
        memset(e->sums, 0, (size_t)e->cut->n_segments * QNI_PANEL * sizeof *e->sums);
    for (int64_t i = 0; i < c.units; i++, from += LINE * bits) {
        const bool is_whole = !halves || 2 * i + 1 < e->cut->units;
        for (int b = 0; b < bits; b++)
            __builtin_prefetch(from + AHEAD + LINE * b);
        if (halves && e->sums != NULL) {
            totals[1] = totals[0];
            next_unit(&totals[1], e->cut);
            totals[1].at = is_whole ? totals[1].at : NULL;
        }
        QNI_AS_LOOP
        for (int at = 0; at < LINE; at += WIDTH) {
            word v[VECTORS];
            take(from + at, bits, v);
            if (e->sums != NULL)
                add_sums(e, v, bits, totals, at / 4);
            if (to != NULL)
                put(&c, v, bits, halves, to + at,
                    halves && is_whole ? to + wide_bytes + at : NULL);
        }
        to = to == NULL ? NULL : to + (halves ? 2 : 1) * wide_bytes;
        if (e->sums == NULL)
            continue;
        if (halves && is_whole)
            totals[0] = totals[1];
        next_unit(&totals[0], e->cut);
        totals[1] = totals[0];
    }
}

/* A codebook's padding may stand for any value: what it brought to the last sums comes off. */
static void drop_padding(const struct qni_expand_codes *e)
{
    const struct qni_cut *const cut = e->cut;
    const int32_t unit = e->compact->halves ? QNI_UNIT / 2 : QNI_UNIT;
    const int32_t padding = (int32_t)((unit - cut->last_len % unit) % unit);
    const int32_t value = e->table8[e->compact->padding];
    int32_t *const last = e->sums + (cut->n_segments - 1) * QNI_PANEL;
    for (int32_t j = 0; j < QNI_PANEL; j++)
        last[j] -= padding * value;
}

QNI_VARIANTS void expand_whole(const struct qni_expand_codes *e, const int bits)
{
    expand(e, bits, false);
}
QNI_VARIANTS void expand_halves(const struct qni_expand_codes *e, const int bits)
{
    expand(e, bits, true);
}

static void expand_codes(const struct qni_expand_codes *e)
{
    switch (e->compact->bits) {
#define CASE(bits)                                                                                 \
    case bits:                                                                                     \
        e->compact->halves ? expand_halves(e, bits) : expand_whole(e, bits);                       \
        break
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
#undef CASE
    default:
        break;
    }
    if (e->compact->is_table && e->sums != NULL)
        drop_padding(e);
}

/* ---- scales ---------------------------------------------------------------------------------- */

QNI_TEMPLATE real load_real(const float *at)
{
    real v;
    memcpy(&v, at, sizeof v);
    return v;
}
QNI_TEMPLATE void store_real(float *at, real v)
{
    memcpy(at, &v, sizeof v);
}

static inline size_t type_bytes(qn_dtype dtype)
{
    return dtype == QN_F32 ? 4 : dtype == QN_F16 || dtype == QN_BF16 ? 2 : 1;
}

/* LANES integers of a byte. */
QNI_TEMPLATE number widen_lanes(const uint8_t *from, const bool is_signed)
{
#if defined(__AVX512BW__)
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)from);
    return (number)(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)from);
    return (number)(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
    number v;
    for (int j = 0; j < LANES; j++)
        v[j] = is_signed ? (int8_t)from[j] : from[j];
    return v;
#endif
}

/* LANES numbers of a byte: powers of two; E4M3, whose bits are those of an f32 if it is normal. */
QNI_TEMPLATE real widen_e8m0(const uint8_t *from)
{
    const word bits = (word)widen_lanes(from, false) << 23;
    return (real)(bits | ((word)(bits == 0) & 0x00400000u)); /* 0 is 2^-127 */
}
QNI_TEMPLATE real widen_e4m3(const uint8_t *from)
{
    const word byte = (word)widen_lanes(from, false), size = byte & 0x7fu;
    const word small = (word)(__builtin_convertvector((number)size, real) * 0x1p-9f);
    const word normal = (size << 20) + (120u << 23), is_small = (word)(size < 8u);
    return (real)((is_small & small) | (~is_small & normal) | (byte & 0x80u) << 24);
}

/* 16 numbers as f32. */
QNI_NOINLINE static void widen16(float to[QNI_PANEL], const void *from, qn_dtype dtype)
{
    const uint16_t *const halves = from;
    const uint8_t *const bytes = from;
    if (dtype == QN_F32)
        memcpy(to, from, QNI_PANEL * sizeof *to);
    for (int j = 0; j < QNI_PANEL && dtype == QN_BF16; j++)
        to[j] = qni_f32_from_bf16(halves[j]);
    for (int j = 0; j < QNI_PANEL && dtype == QN_E8M0; j += LANES)
        store_real(to + j, widen_e8m0(bytes + j));
    for (int j = 0; j < QNI_PANEL && dtype == QN_E4M3; j += LANES)
        store_real(to + j, widen_e4m3(bytes + j));
    if (dtype != QN_F16)
        return;
#if defined(__F16C__)
    for (int j = 0; j < QNI_PANEL; j += 8)
        _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + j))));
#else
    for (int j = 0; j < QNI_PANEL; j++)
        to[j] = qni_f32_from_f16(halves[j]);
#endif
}

/* Two integers in a byte: the minimum's is the upper one. */
enum { NO_MIN, TWO_BYTES, ONE_BYTE };

/* `e` is a copy, so that stores leave its fields in registers. */
QNI_TEMPLATE void super_blocks(const struct qni_expand_scales e, const int min,
                               const bool is_signed)
{
    const size_t common = QNI_PANEL * type_bytes(e.dtype);
    const uint8_t *at = e.levels;
    float super[QNI_PANEL], super_min[QNI_PANEL] = {0.0f};
    float *to = e.to, *offset = e.offset;
    for (int64_t first = 0; first < e.n_groups; first += e.superblock) {
        const int64_t n = qni_min(e.superblock, e.n_groups - first);
        widen16(super, at, e.dtype);
        at += common;
        if (min != NO_MIN) {
            widen16(super_min, at, e.dtype);
            at += common;
        }
        for (int64_t g = 0; g < n; g++, to += QNI_PANEL) {
            QNI_UNROLL
            for (int j = 0; j < QNI_PANEL; j += LANES) {
                number sub = widen_lanes(at + j, is_signed), sub_min = sub >> 4;
                if (min == TWO_BYTES)
                    sub_min = widen_lanes(at + QNI_PANEL + j, false);
                if (min == ONE_BYTE)
                    sub &= 15;
                const real scale = load_real(super + j) * __builtin_convertvector(sub, real);
                store_real(to + j, scale);
                if (min == NO_MIN)
                    continue;
                /* A power of two times the scale is exact: fma(half, scale, minimum). */
                const real least =
                    load_real(super_min + j) * __builtin_convertvector(sub_min, real);
                store_real(offset + j, scale * e.half - least);
            }
            at += min == TWO_BYTES ? 2 * QNI_PANEL : QNI_PANEL;
            offset = min == NO_MIN ? NULL : offset + QNI_PANEL;
        }
    }
}

static void two_levels(const struct qni_expand_scales *e)
{
    if (!e->has_min && e->is_signed)
        super_blocks(*e, NO_MIN, true);
    else if (!e->has_min)
        super_blocks(*e, NO_MIN, false);
    else if (e->shares)
        super_blocks(*e, ONE_BYTE, false);
    else
        super_blocks(*e, TWO_BYTES, false);
}

/* Offsets of a group that are stored, or made of zero points or minima. */
static void plain_offset(const struct qni_expand_scales *e, int64_t g, const float *scale)
{
    float *const offset = e->offset + g * QNI_PANEL;
    const int64_t at = g * QNI_PANEL;
    const uint8_t *const zero8 = e->zero;
    const int32_t *const zero32 = e->zero;
    if (e->levels != NULL) {
        widen16(offset, e->levels + (size_t)at * type_bytes(e->min_dtype), e->min_dtype);
        for (int j = 0; j < QNI_PANEL; j++)
            offset[j] = e->half * scale[j] + offset[j];
        return;
    }
    if (e->stored != NULL) {
        widen16(offset, (const uint8_t *)e->stored + (size_t)at * type_bytes(e->dtype),
                e->dtype);
        return;
    }
    for (int j = 0; j < QNI_PANEL && e->zero_is_i8; j += LANES)
        store_real(offset + j, __builtin_convertvector(widen_lanes(zero8 + at + j, true), real));
    for (int j = 0; j < QNI_PANEL && !e->zero_is_i8; j++)
        offset[j] = (float)zero32[at + j];
    for (int j = 0; j < QNI_PANEL; j++)
        offset[j] = -offset[j] * scale[j];
}

static void expand_scales(const struct qni_expand_scales *e)
{
    if (e->scale == NULL) {
        two_levels(e);
        return;
    }
    const size_t element = type_bytes(e->dtype);
    for (int64_t g = 0; g < e->n_groups; g++) {
        float *const scale = e->to + g * QNI_PANEL;
        widen16(scale, (const uint8_t *)e->scale + (size_t)(g * QNI_PANEL) * element, e->dtype);
        for (int j = 0; j < QNI_PANEL && e->dtype == QN_E4M3; j++)
            scale[j] *= e->unit;
        if (e->offset != NULL)
            plain_offset(e, g, scale);
    }
}

/* ---- the instance ---------------------------------------------------------------------------- */

#define QNI_EXPAND_CONCAT(a, b) a##b
#define QNI_EXPAND_NAME(isa)    QNI_EXPAND_CONCAT(qni_expand_, isa)
const struct qni_expand QNI_EXPAND_NAME(QNI_EXPAND_ISA) = {
    .needs = QNI_EXPAND_NEEDS,
    .codes = expand_codes,
    .scales = expand_scales,
};
