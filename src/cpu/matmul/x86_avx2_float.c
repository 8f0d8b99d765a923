/* SPDX-License-Identifier: Apache-2.0 */
/* f32 activations x 4- and 8-bit weights, and weights that are floats, with AVX2 and FMA. Contract
 * and operand layouts: kernel.h.
 *
 * Few rows: codes become floats in registers and meet the activations at once; scale and offset
 * enter once a group:   y = sum over groups of  scale * (sum a * value) + offset * (sum a).
 * One to three rows and nibbles: avx2_digits.h.
 * Many rows: weights, fma(scale, value, offset), are made once for all rows and multiplied with six
 * rows at a time:
 *
 *     for spans of k               whose rows, copied close together, stay in the second cache
 *       for panels                 whose weights stay in the first
 *         for blocks of rows       whose sums come from c and go there
 *
 * Four bytes of a lane are four positions of an output. An integer comes to the top of a lane by a
 * shuffle and is converted there, 2^24 or 2^28 times as large: two instructions for 8 weights
 * (weights that are made, 2^23 + code, take one more and stay what they are). Values of a codebook
 * of 16 are looked up byte by byte, 32 codes at a time, and put together: four shuffles for 8
 * weights, three where the values are bf16. FP8 becomes f16 by a shift.
 * Bound: few rows, bytes of the codes / bandwidth or (2.5 + m) instructions on four ports (three)
 * and m on two of them for 8 weights; many rows, 2 m n k / (32 operations a cycle). */
#include "../../base/compiler.h"
#include "../simd/avx2.h"
#include "../simd/avx2_digits.h"
#include "kernel.h"

enum {
    NIBBLES = 0,
    NIBBLE_TABLE = 1,
    NIBBLE_SHORT = 2, /* a codebook of bf16 */
    BYTES = 3,
    BYTE_E4M3 = 4,
    BYTE_TABLE = 5,
    HALVES = 6, /* floats: f16 */
    BRAINS = 7, /* bf16 */
    FLOATS = 8
};
enum {
    MR = 6,       /* rows of a block: 12 sums in registers */
    AHEAD = 2048, /* bytes: about 100 ns of one core's stream */
    SPAN = 256,   /* positions: 16 KiB of weights in the first cache */
    ROWS = 256,   /* 256 KiB of them in the second cache */
    DEEP = 4,     /* positions of a step of many rows */
    FEW = 4,      /* of codebooks */
    GROUPS = 512  /* of few rows, whose sums of a are made at a time */
};

struct span_scratch {
    union {
        struct {
            float w[SPAN][QNI_PANEL];
            float a[ROWS * SPAN + 16];
        };
        float total[2 * MR][GROUPS];
        struct digits digits;
    };
};
_Static_assert(sizeof(struct span_scratch) == 278592, "kernels.inc says so");
_Static_assert(offsetof(struct span_scratch, a[QNI_SMALL_ROWS * SPAN + 16]) <= 46080 &&
                   offsetof(struct span_scratch, total[QNI_SMALL_ROWS]) <= 46080 &&
                   offsetof(struct digits, a) + DIGIT_EXTRA <= 46080,
               "and so for few rows");
_Static_assert(2 * MR <= (int)QNI_FEW_ROWS, "rows of more have no padding");

QNI_TEMPLATE bool are_nibbles(const int kind)
{
    return kind == NIBBLES || kind == NIBBLE_TABLE || kind == NIBBLE_SHORT;
}
QNI_TEMPLATE bool are_integers(const int kind)
{
    return kind == NIBBLES || kind == BYTES;
}
/* Bytes of a vector of kernel.h, or of four positions of floats; of a unit. */
QNI_TEMPLATE int64_t vector_bytes(const int kind)
{
    return kind == FLOATS ? 256 : kind >= HALVES ? 128 : 64;
}
QNI_TEMPLATE int64_t unit_bytes_of(const int kind)
{
    return (are_nibbles(kind) ? 4 : 8) * vector_bytes(kind);
}
static inline int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Positions that a unit of codes has. */
static inline int64_t positions_of(const struct qni_matmul_tile *t)
{
    return t->halves ? QNI_UNIT / 2 : QNI_UNIT;
}

/* ---- values of codes ------------------------------------------------------------------------- */

/* Byte i of the 16 values of a codebook is in plane i. */
struct table {
    __m256i plane[4];
    const float *values;
};

static void load_table(struct table *t, const float *values, const int kind)
{
    t->values = values;
    if (kind != NIBBLE_TABLE && kind != NIBBLE_SHORT)
        return;
    uint8_t bytes[16][4], plane[4][16];
    memcpy(bytes, values, sizeof bytes);
    for (int i = 0; i < 16; i++)
        for (int b = 0; b < 4; b++)
            plane[b][i] = bytes[i][b];
    for (int b = 0; b < 4; b++)
        t->plane[b] =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)plane[b]));
}

/* Half h of a vector of codes: 8 outputs. */
QNI_TEMPLATE __m256i load_codes(const uint8_t *vector, const int h)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(vector + 32 * h));
}

/* Nibbles as bytes. */
QNI_TEMPLATE __m256i nibbles_of(__m256i codes, const int part)
{
    return _mm256_and_si256(part == 0 ? codes : _mm256_srli_epi16(codes, 4), _mm256_set1_epi8(15));
}

/* Index of a shuffle: byte b of each lane of four becomes byte `to`, the others zero. */
QNI_TEMPLATE __m256i byte_to(const int b, const int to)
{
    const __m256i words = _mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12);
    const int rest = (int)(0x80808080u & ~(0xffu << 8 * to));
    return _mm256_add_epi32(_mm256_slli_epi32(words, 8 * to),
                            _mm256_set1_epi32(rest + (b << 8 * to)));
}

/* Byte b of each word: in the low bits of 2^23 it makes 2^23 + byte, which less 2^23 and the middle
 * of the codes is the code. */
QNI_TEMPLATE __m256 code_of(__m256i bytes, const int b, const float middle)
{
    const __m256i one = _mm256_set1_epi32(0x4b000000);
    const __m256i bits = _mm256_or_si256(_mm256_shuffle_epi8(bytes, byte_to(b, 0)), one);
    return _mm256_sub_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p23f + middle));
}

/* Transposes each half of 16 bytes, four outputs of four positions: positions come first. */
QNI_TEMPLATE __m256i by_position(__m256i bytes)
{
    return _mm256_shuffle_epi8(bytes, _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7,
                                                       11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10,
                                                       14, 3, 7, 11, 15));
}

QNI_TEMPLATE void look_up(__m256i nibbles, const struct table *t, const int kind, __m256 *v)
{
    const __m256i at = by_position(nibbles);
    const __m256i b2 = _mm256_shuffle_epi8(t->plane[2], at);
    const __m256i b3 = _mm256_shuffle_epi8(t->plane[3], at);
    __m256i low = _mm256_setzero_si256(), high = low;
    if (kind == NIBBLE_TABLE) {
        const __m256i b0 = _mm256_shuffle_epi8(t->plane[0], at);
        const __m256i b1 = _mm256_shuffle_epi8(t->plane[1], at);
        low = _mm256_unpacklo_epi8(b0, b1);
        high = _mm256_unpackhi_epi8(b0, b1);
    }
    const __m256i first = _mm256_unpacklo_epi8(b2, b3), second = _mm256_unpackhi_epi8(b2, b3);
    v[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, first));
    v[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, first));
    v[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(high, second));
    v[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(high, second));
}

/* f16 has the digits of E4M3 one place lower, a bias that is 8 more, and the same way to write what
 * is smallest. */
QNI_TEMPLATE void from_e4m3(__m256i codes, __m256 *v)
{
    const __m256i both = _mm256_permute4x64_epi64(by_position(codes), 0xd8);
    const __m128i even = _mm_setr_epi8(-1, 0, -1, 1, -1, 2, -1, 3, -1, 8, -1, 9, -1, 10, -1, 11);
    const __m256i at = _mm256_broadcastsi128_si256(even);
    const __m256i next =
        _mm256_setr_epi8(-1, 4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1, 4, -1, 5,
                         -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15);
    const __m256i bits = _mm256_set1_epi16((short)0xbf80);
    const __m256i evens =
        _mm256_and_si256(_mm256_srai_epi16(_mm256_shuffle_epi8(both, at), 1), bits);
    const __m256i odds =
        _mm256_and_si256(_mm256_srai_epi16(_mm256_shuffle_epi8(both, next), 1), bits);
    v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(evens));
    v[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(odds));
    v[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(evens, 1));
    v[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(odds, 1));
    QNI_UNROLL
    for (int b = 0; b < 4; b++)
        v[b] = _mm256_mul_ps(v[b], _mm256_set1_ps(256));
}

/* Four positions of half h of the outputs. */
QNI_TEMPLATE void floats_of(const uint8_t *at, const int h, const int kind, __m256 *v)
{
    QNI_UNROLL
    for (int b = 0; b < 4 && kind == FLOATS; b++)
        v[b] = _mm256_loadu_ps((const float *)(const void *)(at + 64 * b + 32 * h));
    QNI_UNROLL
    for (int b = 0; b < 4 && kind == HALVES; b++)
        v[b] =
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at + 32 * b + 16 * h)));
    QNI_UNROLL
    for (int b = 0; b < 2 && kind == BRAINS; b++) {
        const __m256i pair = load_codes(at + 64 * b, h);
        const __m256i high = _mm256_set1_epi32((int)0xffff0000);
        v[b] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
        v[b + 2] = _mm256_castsi256_ps(_mm256_and_si256(pair, high));
    }
}

/* Four positions of 8 outputs. */
QNI_TEMPLATE void values_of(__m256i codes, const int part, const struct table *t, const int kind,
                            __m256 *v)
{
    if (kind == NIBBLE_TABLE || kind == NIBBLE_SHORT) {
        look_up(nibbles_of(codes, part), t, kind, v);
        return;
    }
    if (kind == BYTE_E4M3) {
        from_e4m3(codes, v);
        return;
    }
    const __m256i bytes = kind == NIBBLES ? nibbles_of(codes, part) : codes;
    QNI_UNROLL
    for (int b = 0; b < 4; b++) {
        const __m256i index =
            _mm256_and_si256(_mm256_srli_epi32(codes, 8 * b), _mm256_set1_epi32(255));
        v[b] = kind == BYTE_TABLE ? _mm256_i32gather_ps(t->values, index, 4)
                                  : code_of(bytes, b, kind == BYTES ? 128 : 8);
    }
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* Rows of a block: as many sums as there are registers for beside the values of two vectors of
 * codes. */
QNI_TEMPLATE int few_of(const int kind)
{
    return kind == BYTES || kind >= HALVES ? MR : kind == NIBBLES ? 2 : FEW;
}

/* Sums of a group. One or two rows have two chains, so that none waits for its multiply-adds. */
struct sums {
    __m256 dot[MR][2][2];
};

/* Integers at the top of a lane are larger by this. */
QNI_TEMPLATE float larger_by(const int kind)
{
    return kind == NIBBLES ? 0x1p28f : kind == BYTES ? 0x1p24f : 1;
}

/* Are numbers so small that nothing that is larger by 2^28 overflows? */
static bool are_small(const struct qni_matmul_tile *t)
{
    enum { TWO_60 = 0x5d800000 };
    __m256i large = _mm256_setzero_si256();
    for (int64_t i = 0; i < t->m; i++) {
        const float *a = (const float *)(const void *)((const char *)t->a + (size_t)i * t->lda);
        for (const float *const end = a + t->units * positions_of(t); a < end; a += 8) {
            const __m256i size = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(a)),
                                                  _mm256_set1_epi32(INT32_MAX));
            large = _mm256_or_si256(large, _mm256_cmpgt_epi32(size, _mm256_set1_epi32(TWO_60)));
        }
    }
    return _mm256_testz_si256(large, large);
}

/* Bytes that are the code at their top, signed. */
QNI_TEMPLATE __m256i signed_bytes(__m256i codes, const int part, const int kind)
{
    if (kind == BYTES)
        return _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
    const __m256i top = _mm256_set1_epi8((char)0xf0);
    const __m256i flipped = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x88));
    return _mm256_and_si256(part == 0 ? _mm256_slli_epi16(flipped, 4) : flipped, top);
}

QNI_TEMPLATE __m256 signed_code(__m256i bytes, const int b)
{
    return _mm256_cvtepi32_ps(b == 3 ? _mm256_and_si256(bytes, _mm256_set1_epi32((int)0xff000000))
                                     : _mm256_shuffle_epi8(bytes, byte_to(b, 3)));
}

/* Constants of rows of nibbles. There they stay: in registers they would take those of sums. */
static const struct {
    uint8_t flip[32], high[32];
    int8_t to_top[3][32]; /* shuffles: byte b of each word becomes its top */
    uint32_t top[8];
} nibble_constants = {
#define FOUR(...)  __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define EIGHT(...) FOUR(__VA_ARGS__), FOUR(__VA_ARGS__)
#define TO_TOP(b)  -1, -1, -1, b, -1, -1, -1, b + 4, -1, -1, -1, b + 8, -1, -1, -1, b + 12
    {EIGHT(0x88, 0x88, 0x88, 0x88)},
    {EIGHT(0xf0, 0xf0, 0xf0, 0xf0)},
    {{TO_TOP(0), TO_TOP(0)}, {TO_TOP(1), TO_TOP(1)}, {TO_TOP(2), TO_TOP(2)}},
    {EIGHT(0xff000000u)},
#undef TO_TOP
#undef EIGHT
#undef FOUR
};

/* signed_bytes() of nibbles. */
QNI_TEMPLATE __m256i signed_nibbles(const uint8_t *codes, const int part)
{
    __m256i v = load_codes(codes, 0);
    __asm__ volatile("vpxor %1, %0, %0" : "+x"(v) : "m"(nibble_constants.flip));
    if (part == 0)
        v = _mm256_slli_epi16(v, 4);
    __asm__ volatile("vpand %1, %0, %0" : "+x"(v) : "m"(nibble_constants.high));
    return v;
}

/* signed_code(). */
QNI_TEMPLATE __m256 signed_nibble(__m256i bytes, const int b)
{
    if (b == 3) {
        __asm__ volatile("vpand %1, %0, %0" : "+x"(bytes) : "m"(nibble_constants.top));
        return _mm256_cvtepi32_ps(bytes);
    }
    __m256i v;
    __asm__("vpshufb %2, %1, %0" : "=x"(v) : "x"(bytes), "m"(nibble_constants.to_top[b]));
    return _mm256_cvtepi32_ps(v);
}

/* A row of both halves: compilers left alone find more moves for it. */
QNI_TEMPLATE void add_row(__m256 (*dot)[2], __m256 v, __m256 w, const float *a)
{
    __m256 x;
    __asm__("vbroadcastss %[a], %[x]\n\t"
            "vfmadd231ps %[x], %[v], %[s]\n\t"
            "vfmadd231ps %[x], %[w], %[t]"
            : [s] "+x"(dot[0][0]), [t] "+x"(dot[1][0]), [x] "=&x"(x)
            : [v] "x"(v), [w] "x"(w), [a] "m"(*a));
}

/* Four positions of nibbles, from p on, and three rows or more. */
QNI_TEMPLATE void add_nibbles(struct sums *s, const uint8_t *codes, const float *const *a,
                              int64_t p, const int part, const int mr)
{
    __m256i low = signed_nibbles(codes, part), high = signed_nibbles(codes + 32, part);
    QNI_UNROLL
    for (int b = 0; b < 4; b++) {
        if (mr == MR) /* no register is left for it */
            QNI_IN_MEMORY(high);
        const __m256 v = signed_nibble(low, b), w = signed_nibble(high, b);
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            add_row(s->dot[i], v, w, a[i] + p + b);
    }
}

/* A vector of codes, or the low or high nibbles of it: four positions from p on. */
QNI_TEMPLATE void add_vector(struct sums *s, const uint8_t *codes, const float *const *a, int64_t p,
                             const int part, const struct table *t, const int mr, const int kind)
{
    const int chains = mr <= 2 ? 2 : 1;
    if (are_integers(kind)) {
        /* In the order that is written here; with fewer sums compilers find better ones. */
        const bool in_order = kind == BYTES && (mr == 4 || mr == 5);
        __m256i low = signed_bytes(load_codes(codes, 0), part, kind);
        __m256i high = signed_bytes(load_codes(codes, 1), part, kind);
        QNI_UNROLL
        for (int b = 0; b < 4; b++) {
            __m256 v = signed_code(low, b), w = signed_code(high, b);
            if (in_order) {
                QNI_KEEP(v);
                QNI_KEEP(w);
            }
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256 x = _mm256_broadcast_ss(a[i] + p + b);
                s->dot[i][0][b % chains] = _mm256_fmadd_ps(v, x, s->dot[i][0][b % chains]);
                s->dot[i][1][b % chains] = _mm256_fmadd_ps(w, x, s->dot[i][1][b % chains]);
                QNI_KEEP(s->dot[i][0][b % chains]);
                QNI_KEEP(s->dot[i][1][b % chains]);
                if (in_order)
                    QNI_KEPT(x);
            }
            if (in_order) {
                QNI_KEPT(v);
                QNI_KEPT(w);
            }
        }
        return;
    }
    QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256 v[4];
        if (kind >= HALVES)
            floats_of(codes, h, kind, v);
        else
            values_of(load_codes(codes, h), part, t, kind, v);
        QNI_UNROLL
        for (int b = 0; b < 4; b++)
            QNI_UNROLL
        for (int i = 0; i < mr; i++)
            s->dot[i][h][b % chains] =
                _mm256_fmadd_ps(v[b], _mm256_broadcast_ss(a[i] + p + b), s->dot[i][h][b % chains]);
    }
}

/* 16 positions. Integers of 4 bits take so few instructions that a loop would show. */
QNI_TEMPLATE void add_vectors(struct sums *s, const uint8_t *codes, const float *const *a,
                              int64_t p, const int part, const struct table *t, const int mr,
                              const int kind)
{
    if (kind == NIBBLES) {
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            if (part == 0)
                _mm_prefetch((const char *)codes + 64 * r + AHEAD, _MM_HINT_T0);
            add_vector(s, codes + 64 * r, a, p + 4 * r, part, t, mr, kind);
        }
        return;
    }
    for (int r = 0; r < 4; r++, codes += vector_bytes(kind)) {
        QNI_UNROLL
        for (int line = 0; line < vector_bytes(kind); line += 64)
            _mm_prefetch((const char *)codes + line + AHEAD, _MM_HINT_T0);
        add_vector(s, codes, a, p + 4 * r, part, t, mr, kind);
    }
}

/* Groups [group, group + groups) of a tile's few rows. */
struct stretch {
    const struct qni_matmul_tile *t;
    const struct table *table;
    struct span_scratch *s;
    int64_t group, groups;
};

/* Sums of a. */
static void add_totals(const struct stretch *n)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t step = positions_of(t);
    for (int64_t i = 0; i < t->m; i++) {
        const float *a = (const float *)(const void *)((const char *)t->a + (size_t)i * t->lda);
        for (int64_t g = 0; g < n->groups; g++) {
            const int64_t unit = (n->group + g) * t->group_units;
            const int64_t units = at_most(t->group_units, t->units - unit);
            __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (int64_t u = unit; u < unit + units; u++)
                for (int64_t p = u * step; p < (u + 1) * step; p += 16) {
                    sum[0] = _mm256_add_ps(sum[0], _mm256_loadu_ps(a + p));
                    sum[1] = _mm256_add_ps(sum[1], _mm256_loadu_ps(a + p + 8));
                }
            n->s->total[i][g] = qni_sum8(_mm256_add_ps(sum[0], sum[1]));
        }
    }
}

static void begin_stretch(struct stretch *n)
{
    n->groups = at_most(n->t->n_groups - n->group, GROUPS);
    if (n->t->offset != NULL)
        add_totals(n);
}

/* mr rows of a panel. */
QNI_TEMPLATE void few_rows(const struct stretch *n, int64_t panel, int64_t row, const int mr,
                           const int kind)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t unit_bytes = unit_bytes_of(kind), first = n->group * t->group_units;
    const uint8_t *codes =
        t->codes + (size_t)panel * t->codes_stride + (size_t)(first * unit_bytes);
    float *const to = t->c + (size_t)row * t->ldc + panel * QNI_PANEL;
    const float *a[MR];
    __m256 c[MR][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        a[i] = (const float *)(const void *)((const char *)t->a + (size_t)(row + i) * t->lda);
        QNI_UNROLL
        for (int h = 0; h < 2; h++)
            c[i][h] = n->group == 0 ? _mm256_setzero_ps()
                                    : _mm256_loadu_ps(to + (size_t)i * t->ldc + 8 * h);
    }
    const int64_t step = positions_of(t);
    int64_t p = first * step;
    for (int64_t g = 0; g < n->groups; g++) {
        const int64_t end = at_most((n->group + g + 1) * t->group_units, t->units) * step;
        struct sums s;
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            QNI_UNROLL
        for (int h = 0; h < 2; h++)
            s.dot[i][h][0] = s.dot[i][h][1] = _mm256_setzero_ps();
        for (; p < end; p += step, codes += unit_bytes) {
            add_vectors(&s, codes, a, p, 0, n->table, mr, kind);
            if (t->halves)
                continue;
            if (are_nibbles(kind))
                add_vectors(&s, codes, a, p + 16, 1, n->table, mr, kind);
            else
                add_vectors(&s, codes + unit_bytes / 2, a, p + 16, 0, n->table, mr, kind);
        }
        const int64_t at = panel * t->n_groups + n->group + g;
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256 scale = qni_load8(t->scale, at, h, t->scale_is_f16);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                __m256 dot = s.dot[i][h][0];
                if (mr <= 2)
                    dot = _mm256_add_ps(dot, s.dot[i][h][1]);
                if (are_integers(kind))
                    dot = _mm256_mul_ps(dot, _mm256_set1_ps(1 / larger_by(kind)));
                c[i][h] = _mm256_fmadd_ps(scale, dot, c[i][h]);
            }
            if (t->offset == NULL)
                continue;
            const __m256 offset = qni_load8(t->offset, at, h, t->scale_is_f16);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                c[i][h] =
                    _mm256_fmadd_ps(offset, _mm256_broadcast_ss(&n->s->total[row + i][g]), c[i][h]);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(to + (size_t)i * t->ldc + 8 * h, c[i][h]);
}

/* Three rows of nibbles and more, of a panel. Between groups c is in memory: registers are for
 * sums. */
QNI_TEMPLATE void rows_of_nibbles(const struct stretch *n, int64_t panel, int64_t row, const int mr)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t step = positions_of(t), first = n->group * t->group_units;
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride + (size_t)first * 256;
    float *const to = t->c + (size_t)row * t->ldc + panel * QNI_PANEL;
    const float *a[MR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        a[i] = (const float *)(const void *)((const char *)t->a + (size_t)(row + i) * t->lda);
        for (int h = 0; h < 2 && n->group == 0; h++)
            _mm256_storeu_ps(to + (size_t)i * t->ldc + 8 * h, _mm256_setzero_ps());
    }
    int64_t p = first * step;
    for (int64_t g = 0; g < n->groups; g++) {
        const int64_t end = at_most((n->group + g + 1) * t->group_units, t->units) * step;
        const int64_t at = panel * t->n_groups + n->group + g;
        struct sums s;
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            s.dot[i][0][0] = s.dot[i][1][0] = _mm256_setzero_ps();
        for (; p < end; p += step, codes += 256) {
            QNI_UNROLL
            for (int r = 0; r < 4; r++) {
                _mm_prefetch((const char *)codes + 64 * r + AHEAD, _MM_HINT_T0);
                add_nibbles(&s, codes + 64 * r, a, p + 4 * r, 0, mr);
            }
            if (t->halves)
                continue;
            QNI_UNROLL
            for (int r = 0; r < 4; r++)
                add_nibbles(&s, codes + 64 * r, a, p + 16 + 4 * r, 1, mr);
        }
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256 scale = qni_load8(t->scale, at, h, t->scale_is_f16);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                float *const y = to + (size_t)i * t->ldc + 8 * h;
                const __m256 dot = _mm256_mul_ps(s.dot[i][h][0], _mm256_set1_ps(0x1p-28f));
                __m256 c = _mm256_fmadd_ps(scale, dot, _mm256_loadu_ps(y));
                if (t->offset != NULL)
                    c = _mm256_fmadd_ps(qni_load8(t->offset, at, h, t->scale_is_f16),
                                        _mm256_broadcast_ss(&n->s->total[row + i][g]), c);
                _mm256_storeu_ps(y, c);
            }
        }
    }
}

/* In one function gcc moves and spills more. */
QNI_NOINLINE static void three_of_nibbles(const struct stretch *n, int64_t panel, int64_t row)
{
    rows_of_nibbles(n, panel, row, 3);
}
QNI_NOINLINE static void four_of_nibbles(const struct stretch *n, int64_t panel, int64_t row)
{
    rows_of_nibbles(n, panel, row, 4);
}
QNI_NOINLINE static void five_of_nibbles(const struct stretch *n, int64_t panel, int64_t row)
{
    rows_of_nibbles(n, panel, row, 5);
}
QNI_NOINLINE static void six_of_nibbles(const struct stretch *n, int64_t panel, int64_t row)
{
    rows_of_nibbles(n, panel, row, 6);
}

/* Two blocks at most, that differ by one row at most. */
static void some_nibbles(const struct qni_matmul_tile *t)
{
    struct stretch n = {.t = t, .s = t->scratch};
    const int64_t each = t->m <= MR ? t->m : (t->m + 1) / 2;
    for (; n.group < t->n_groups; n.group += n.groups) {
        begin_stretch(&n);
        for (int64_t panel = 0; panel < t->n_panels; panel++)
            for (int64_t row = 0; row < t->m; row += each)
                switch (at_most(t->m - row, each)) {
                case 6:
                    six_of_nibbles(&n, panel, row);
                    break;
                case 5:
                    five_of_nibbles(&n, panel, row);
                    break;
                case 4:
                    four_of_nibbles(&n, panel, row);
                    break;
                default:
                    three_of_nibbles(&n, panel, row);
                    break;
                }
    }
}

QNI_TEMPLATE void few(const struct qni_matmul_tile *t, const struct table *table, const int kind)
{
    const int64_t each = t->m <= few_of(kind) ? t->m : (t->m + 1) / 2;
    struct stretch n = {.t = t, .table = table, .s = t->scratch};
    for (; n.group < t->n_groups; n.group += n.groups) {
        begin_stretch(&n);
        for (int64_t panel = 0; panel < t->n_panels; panel++)
            for (int64_t row = 0; row < t->m; row += each)
                switch (at_most(t->m - row, each)) {
                case 6:
                    if (few_of(kind) >= 6)
                        few_rows(&n, panel, row, 6, kind);
                    break;
                case 5:
                    if (few_of(kind) >= 5)
                        few_rows(&n, panel, row, 5, kind);
                    break;
                case 4:
                    if (few_of(kind) >= 4)
                        few_rows(&n, panel, row, 4, kind);
                    break;
                case 3:
                    if (few_of(kind) >= 3)
                        few_rows(&n, panel, row, 3, kind);
                    break;
                case 2:
                    few_rows(&n, panel, row, 2, kind);
                    break;
                default:
                    few_rows(&n, panel, row, 1, kind);
                    break;
                }
    }
}

/* In a function with more beside them gcc spills more. */
QNI_NOINLINE static void few_nibbles(const struct qni_matmul_tile *t, const struct table *table)
{
    few(t, table, NIBBLES);
}
QNI_NOINLINE static void few_bytes(const struct qni_matmul_tile *t, const struct table *table)
{
    few(t, table, BYTES);
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* A span of k, for rows [row, row + rows) of the tile. Rows are copied, those of a block together:
 * at a position, its x of the first row, of the second and so on, so that a block is one stream.
 * Copies have no positions of padding. */
struct span {
    const struct qni_matmul_tile *t;
    struct span_scratch *s;
    const struct table *table;
    int64_t row, rows;
    int64_t unit, units;
    int64_t positions; /* of a row, a multiple of 8 */
};

/* 8 rows of 8 become columns. */
static inline void transpose(__m256 *r)
{
    __m256 v[8];
    QNI_UNROLL
    for (int i = 0; i < 8; i += 4) {
        const __m256 low = _mm256_unpacklo_ps(r[i], r[i + 1]);
        const __m256 high = _mm256_unpackhi_ps(r[i], r[i + 1]);
        const __m256 next_low = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
        const __m256 next_high = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        v[i] = _mm256_shuffle_ps(low, next_low, 0x44);
        v[i + 1] = _mm256_shuffle_ps(low, next_low, 0xee);
        v[i + 2] = _mm256_shuffle_ps(high, next_high, 0x44);
        v[i + 3] = _mm256_shuffle_ps(high, next_high, 0xee);
    }
    QNI_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
}

/* mr rows, of which the last may stand for others as well: what a store has more than mr is written
 * over by the next one. */
static float *copy_block(const struct span *n, int64_t row, int64_t mr, float *to)
{
    const char *const rows = (const char *)n->t->a + (size_t)(n->row + row) * n->t->lda;
    const float *from[MR];
    QNI_UNROLL
    for (int i = 0; i < MR; i++)
        from[i] = (const float *)(const void *)(rows + (size_t)at_most(i, mr - 1) * n->t->lda) +
                  n->unit * positions_of(n->t);
    for (int64_t p = 0; p < n->positions; p += 8) {
        __m256 r[8];
        QNI_UNROLL
        for (int i = 0; i < 8; i++)
            r[i] = i < MR ? _mm256_loadu_ps(from[i] + p) : _mm256_setzero_ps();
        transpose(r);
        QNI_UNROLL
        for (int i = 0; i < 8; i++, to += mr)
            _mm256_storeu_ps(to, r[i]);
    }
    return to;
}

/* Rows of the next block: blocks differ by one row at most. */
static inline int64_t block_rows(int64_t rows)
{
    return rows / ((rows + MR - 1) / MR);
}

static void copy_rows(const struct span *n)
{
    float *to = n->s->a;
    for (int64_t row = 0, mr; row < n->rows; row += mr) {
        mr = block_rows(n->rows - row);
        to = copy_block(n, row, mr, to);
    }
}

struct group {
    __m256 scale[2], offset[2];
};

static inline struct group group_of(const struct qni_matmul_tile *t, int64_t row)
{
    struct group g;
    QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        g.scale[h] = qni_load8(t->scale, row, h, t->scale_is_f16);
        g.offset[h] =
            t->offset == NULL ? _mm256_setzero_ps() : qni_load8(t->offset, row, h, t->scale_is_f16);
    }
    return g;
}

/* A unit of a panel, of which `halves` has no more than 16 positions. */
QNI_TEMPLATE void expand(float (*w)[QNI_PANEL], const uint8_t *codes, ptrdiff_t ahead,
                         const struct group *g, const struct table *table, bool halves,
                         const int kind)
{
    const int vectors = halves || are_nibbles(kind) ? 4 : 8;
    for (int r = 0; r < vectors; r++, codes += vector_bytes(kind)) {
        QNI_UNROLL
        for (int line = 0; line < vector_bytes(kind); line += 64)
            _mm_prefetch((const char *)codes + line + ahead, _MM_HINT_T1);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i words = load_codes(codes, h);
            __m256 v[4];
            if (kind >= HALVES)
                floats_of(codes, h, kind, v);
            else
                values_of(words, 0, table, kind, v);
            QNI_UNROLL
            for (int b = 0; b < 4; b++)
                _mm256_store_ps(&w[4 * r + b][8 * h],
                                _mm256_fmadd_ps(g->scale[h], v[b], g->offset[h]));
            if (!are_nibbles(kind) || halves)
                continue;
            values_of(words, 1, table, kind, v);
            QNI_UNROLL
            for (int b = 0; b < 4; b++)
                _mm256_store_ps(&w[16 + 4 * r + b][8 * h],
                                _mm256_fmadd_ps(g->scale[h], v[b], g->offset[h]));
        }
    }
}

/* Weights of a panel; what is asked for ahead is so far from its codes. */
QNI_TEMPLATE void make(const struct span *n, int64_t panel, ptrdiff_t ahead, const int kind)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t unit_bytes = unit_bytes_of(kind);
    const int64_t unit_positions = positions_of(t);
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride + n->unit * unit_bytes;
    float(*w)[QNI_PANEL] = n->s->w;
    struct group group = {{_mm256_setzero_ps()}, {_mm256_setzero_ps()}};
    for (int64_t u = 0; u < n->units; u++, codes += unit_bytes, w += unit_positions) {
        if (u == 0 || (n->unit + u) % t->group_units == 0)
            group = group_of(t, panel * t->n_groups + (n->unit + u) / t->group_units);
        expand(w, codes, ahead, &group, n->table, t->halves, kind);
    }
}

/* mr rows of c += a * w, in ascending order. The first span begins at zero. A busy second thread of
 * the core leaves half of the instructions, so that there are no more than it takes: several
 * positions a step, in the order that is written here. */
QNI_VARIANTS void multiply_rows(const struct span *n, int64_t row, int64_t panel, const int mr,
                                const int nh)
{
    const struct qni_matmul_tile *t = n->t;
    const size_t ldc = t->ldc;
    const float(*w)[QNI_PANEL] = (const float(*)[QNI_PANEL])n->s->w;
    const float *a = n->s->a + row * n->positions;
    float *const c = t->c + (size_t)(n->row + row) * ldc + panel * QNI_PANEL;
    __m256 sum[MR][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        _mm_prefetch((const char *)(c + (size_t)(mr + i) * ldc), _MM_HINT_T0);
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
        if (n->unit > 0) {
            sum[i][0] = _mm256_loadu_ps(c + (size_t)i * ldc);
            if (nh > 1)
                sum[i][1] = _mm256_loadu_ps(c + (size_t)i * ldc + 8);
        }
    }
    for (const float *const end = a + n->positions * mr; a < end; a += DEEP * mr, w += DEEP) {
        QNI_UNROLL
        for (int p = 0; p < DEEP; p++) {
            __m256 w0 = _mm256_load_ps(w[p]), w1 = _mm256_load_ps(w[p] + 8);
            QNI_KEEP(w0);
            QNI_KEEP(w1);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256 x = _mm256_broadcast_ss(a + p * mr + i);
                sum[i][0] = _mm256_fmadd_ps(w0, x, sum[i][0]);
                QNI_KEEP(sum[i][0]);
                if (nh > 1) {
                    sum[i][1] = _mm256_fmadd_ps(w1, x, sum[i][1]);
                    QNI_KEEP(sum[i][1]);
                }
                QNI_KEPT(x);
            }
            QNI_KEPT(w0);
            QNI_KEPT(w1);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        _mm256_storeu_ps(c + (size_t)i * ldc, sum[i][0]);
        _mm256_storeu_ps(c + (size_t)i * ldc + 8, sum[i][1]);
    }
}

/* The first nh halves of a panel; the other one, of padding, is zero. */
QNI_TEMPLATE void multiply_halves(const struct span *n, int64_t panel, const int nh)
{
    for (int64_t row = 0, mr; row < n->rows; row += mr) {
        mr = block_rows(n->rows - row);
        switch (mr) {
        case 6:
            multiply_rows(n, row, panel, 6, nh);
            break;
        case 5:
            multiply_rows(n, row, panel, 5, nh);
            break;
        case 4:
            multiply_rows(n, row, panel, 4, nh);
            break;
        case 3:
            multiply_rows(n, row, panel, 3, nh);
            break;
        case 2:
            multiply_rows(n, row, panel, 2, nh);
            break;
        default:
            multiply_rows(n, row, panel, 1, nh);
            break;
        }
    }
}

static void multiply(const struct span *n, int64_t panel)
{
    if (panel + 1 == n->t->n_panels && n->t->padding >= QNI_PANEL / 2)
        multiply_halves(n, panel, 1);
    else
        multiply_halves(n, panel, 2);
}

QNI_TEMPLATE void one_span(const struct span *n, const int kind)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t bytes = (int64_t)t->codes_stride, unit_bytes = unit_bytes_of(kind);
    copy_rows(n);
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        /* Codes of the next panel, or of the next span of the first one. */
        const int64_t ahead =
            panel + 1 < t->n_panels ? bytes : n->units * unit_bytes - panel * bytes;
        make(n, panel, ahead, kind);
        multiply(n, panel);
    }
}

QNI_TEMPLATE void many(const struct qni_matmul_tile *t, const struct table *table, const int kind)
{
    const int64_t most = SPAN / QNI_UNIT << t->halves, blocks = (t->m + ROWS - 1) / ROWS;
    struct span n = {.t = t, .s = t->scratch, .table = table};
    for (int64_t i = 0; i < blocks; i++, n.row += n.rows) {
        n.rows = (t->m - n.row) / (blocks - i);
        for (n.unit = 0; n.unit < t->units; n.unit += n.units) {
            n.units = at_most(t->units - n.unit, most);
            const int64_t step = positions_of(t);
            n.positions = at_most(n.units * step, t->positions - n.unit * step);
            one_span(&n, kind);
        }
    }
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    struct table table;
    load_table(&table, t->table, kind);
    /* Two blocks of few rows of integers take less than as many of weights that are made. */
    const int64_t most = kind == NIBBLES  ? 2 * (MR - 1)
                         : kind == BYTES  ? 2 * MR
                         : kind >= HALVES ? MR
                                          : FEW;
    const bool is_few = t->m <= most;
    if (kind == NIBBLES && few_digits(t, t->scratch, AHEAD))
        return;
    if (!is_few || (are_integers(kind) && !are_small(t)))
        many(t, &table, kind);
    else if (kind == NIBBLES)
        t->m > 2 ? some_nibbles(t) : few_nibbles(t, &table);
    else if (kind == BYTES)
        few_bytes(t, &table);
    else
        few(t, &table, kind);
}

void qni_matmul_f32_q4n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_f32_t4n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    uint32_t all = 0;
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, t->table + i, sizeof bits);
        all |= bits;
    }
    if ((all & 0xffff) == 0)
        tile(t, NIBBLE_SHORT);
    else
        tile(t, NIBBLE_TABLE);
}
void qni_matmul_f32_q8n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
void qni_matmul_f32_t8n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    if (t->is_e4m3)
        tile(t, BYTE_E4M3);
    else
        tile(t, BYTE_TABLE);
}
void qni_matmul_f32_h16n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, HALVES);
}
void qni_matmul_f32_b16n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, BRAINS);
}
void qni_matmul_f32_f32n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, FLOATS);
}
