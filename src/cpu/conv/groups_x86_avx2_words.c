/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped convolutions of given codes with AVX2: x and weights as int16, sums as int32, exact for
 * all bytes and zero points. Contract: groups_kernel.h.
 *
 * vpmaddwd multiplies 16 words and adds pairs, vpaddd adds them to 8 sums: 16 products for two
 * instructions, of which a core takes two pairs a cycle at best (measured: 1.6). Taps of 3 x 3 of
 * stride 1 take 2.25 times fewer products in squares of 2 x 2 outputs (../simd/squares.h): |x less
 * its zero| <= 255, |y| <= 255 * 128 * k, and k < 16384 (the driver's refusals).
 *
 * Bound, of 3 x 3 taps: an output and a channel are 9 / 16 pairs of instructions tap by tap and 1 /
 * 4 in squares, which have besides, of each square, 32 additions for 16 channels and 8 + 16 for 8
 * outputs. */
#include "../../base/compiler.h"
#include "../simd/avx2.h"
#include "../simd/squares.h"
#include "kernel.h"

enum { LANES = 8, PAIR = 16, MOST = 8, TAPS = QNI_GROUPS_SQUARE_TAPS, PAIRED = 6 };
enum { BYTES = 0, UNBOUNDED_BYTES = 1, FLOATS = 2, WORDS = 3 };

QNI_TEMPLATE __m256i load(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}
QNI_TEMPLATE void store(void *at, __m256i v)
{
    _mm256_storeu_si256((__m256i *)at, v);
}
/* Load and store a vector, or half of one. */
QNI_TEMPLATE __m256i load_some(const void *at, const bool half)
{
    return half ? _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at)) : load(at);
}
QNI_TEMPLATE void store_some(void *at, __m256i v, const bool half)
{
    if (half)
        _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(v));
    else
        store(at, v);
}

/* ---- results --------------------------------------------------------------------------------- */

/* What the results of a vector go through. */
struct finish {
    __m256 scale, x_scale, bias, y_inv;
    __m256i order, y_zero, floor, flip;
};

static struct finish finish_of(const struct qni_groups_tile *t, int64_t vector)
{
    const int32_t zero = t->y_zero - (t->is_u8 ? 128 : 0); /* bytes are made signed, then flipped */
    const int32_t floor = zero < -128 ? -128 : zero > 127 ? 127 : zero;
    struct finish f;
    f.scale = _mm256_loadu_ps(t->scale + vector * LANES);
    f.order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    if (t->groups > 1)
        f.order = load(t->results);
    f.x_scale = _mm256_set1_ps(t->x_scale);
    f.bias = t->bias != NULL ? _mm256_loadu_ps(t->bias + vector * LANES) : _mm256_setzero_ps();
    f.y_inv = _mm256_set1_ps(t->y_inv);
    f.y_zero = _mm256_set1_epi16((int16_t)zero);
    f.floor = _mm256_set1_epi8((char)(t->relu ? floor : -128));
    f.flip = _mm256_set1_epi8((char)(t->is_u8 ? 0x80 : 0));
    return f;
}

/* turns: two groups share the vector. */
QNI_TEMPLATE __m256i code_of(const struct finish *f, __m256i d, const bool turns,
                             const bool unbounded)
{
    __m256 v = _mm256_mul_ps(f->scale, _mm256_cvtepi32_ps(d));
    if (turns)
        v = _mm256_permutevar8x32_ps(v, f->order);
    v = _mm256_mul_ps(_mm256_add_ps(_mm256_mul_ps(v, f->x_scale), f->bias), f->y_inv);
    if (unbounded) {
        const __m256 most = _mm256_set1_ps(0x1p21f), least = _mm256_set1_ps(-0x1p21f);
        const __m256 number = _mm256_cmp_ps(v, v, _CMP_ORD_Q);
        v = _mm256_and_ps(_mm256_min_ps(_mm256_max_ps(v, least), most), number);
    }
    return _mm256_cvtps_epi32(v);
}

/* Two outputs as words. What saturates here does so as a byte, zero point or not. */
QNI_TEMPLATE __m256i two_of(const struct finish *f, const __m256i *d, const bool turns,
                            const bool unbounded)
{
    const __m256i a = code_of(f, d[0], turns, unbounded), b = code_of(f, d[1], turns, unbounded);
    return _mm256_adds_epi16(_mm256_packs_epi32(a, b), f->y_zero);
}

/* Four outputs of a vector to where they go. Relu is a floor on the code: v <= 0 gives y_zero, and
 * any other v no less. */
QNI_TEMPLATE void put(const struct finish *f, const __m256i *d, void *const *to, const bool turns,
                      const int kind)
{
    if (kind <= UNBOUNDED_BYTES) {
        const __m256i a = two_of(f, d, turns, kind == UNBOUNDED_BYTES);
        const __m256i b = two_of(f, d + 2, turns, kind == UNBOUNDED_BYTES);
        __m256i v = _mm256_xor_si256(_mm256_max_epi8(_mm256_packs_epi16(a, b), f->floor), f->flip);
        v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        const __m128i low = _mm256_castsi256_si128(v), high = _mm256_extracti128_si256(v, 1);
        _mm_storel_epi64(to[0], low);
        _mm_storeh_pd(to[1], _mm_castsi128_pd(low));
        _mm_storel_epi64(to[2], high);
        _mm_storeh_pd(to[3], _mm_castsi128_pd(high));
        return;
    }
    QNI_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m256 v = _mm256_fmadd_ps(f->scale, _mm256_cvtepi32_ps(d[i]), _mm256_setzero_ps());
        const __m256i bits = kind == WORDS ? d[i] : _mm256_castps_si256(v);
        store(to[i], turns ? _mm256_permutevar8x32_epi32(bits, f->order) : bits);
    }
}

/* Outputs in memory. */
struct output_place {
    uint8_t *to;
    size_t row, column;
};

static struct output_place place_of(const struct qni_groups_tile *t, int64_t set, int64_t v)
{
    const size_t bytes = t->y != NULL ? 1 : sizeof(float);
    uint8_t *const first = t->y != NULL ? t->y : (uint8_t *)t->c;
    return (struct output_place){first + (size_t)(set * t->c_set + v * LANES) * bytes,
                                 (size_t)t->c_row * bytes, (size_t)t->c_column * bytes};
}

static int kind_of(const struct qni_groups_tile *t)
{
    if (t->y != NULL)
        return t->is_bounded ? BYTES : UNBOUNDED_BYTES;
    return t->raw_i32 ? WORDS : FLOATS;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Outputs side by side: where their inputs are, and their sums. Strides in words, and in sums. */
struct row {
    const int16_t *x;
    int64_t column;
    const int64_t *taps;
    int64_t n_taps, pairs;
    const int16_t *w;
    int64_t w_vector;
    int32_t *to;
    int64_t to_column;
};

/* A pair of channels of one output. In this order: compilers add products of two pairs first, for
 * which there are no registers (measured: 1.6 of the time). */
QNI_TEMPLATE void add_pair(uintptr_t x, const __m256i w, __m256i *sum, const int G)
{
    __m256i a;
    if (G == 2)
        __asm__("vpbroadcastq %[x], %[a]\n\t"
                "vpmaddwd %[w], %[a], %[a]\n\t"
                "vpaddd %[a], %[s], %[s]"
                : [a] "=&x"(a), [s] "+x"(*sum)
                : [x] "m"(*(const int16_t(*)[4])x), [w] "x"(w));
    else
        __asm__("vpbroadcastd %[x], %[a]\n\t"
                "vpmaddwd %[w], %[a], %[a]\n\t"
                "vpaddd %[a], %[s], %[s]"
                : [a] "=&x"(a), [s] "+x"(*sum)
                : [x] "m"(*(const int16_t(*)[2])x), [w] "x"(w));
}

/* sum[r * V + v] += two pairs of channels of T outputs, `column` bytes apart, G groups to a
 * vector. An address for three outputs: ../simd/groups.h says why. */
QNI_TEMPLATE void two_pairs(uintptr_t *at, uintptr_t column, const int16_t *w, int64_t next,
                            const int T, const int V, const int G, __m256i *sum)
{
    QNI_UNROLL
    for (int i = 0; i < 2; i++, w += PAIR) {
        const __m256i w0 = load(w), w1 = V > 1 ? load(w + next) : w0;
        QNI_UNROLL
        for (int r = 0; r < T; r++) {
            const uintptr_t x = at[r / 3] + (uintptr_t)(r % 3) * column + (uintptr_t)(i * G) * 4;
            if (V > 1)
                qni_squares_add_pair(x, w0, w1, sum + r * V);
            else
                add_pair(x, w0, sum + r, G);
        }
    }
    QNI_UNROLL
    for (int r = 0; r < T; r += 3) {
        at[r / 3] += (uintptr_t)(2 * G) * 4;
        QNI_KEEP_WORD(at[r / 3]);
    }
}

/* T outputs of V vectors. One loop: between two, compilers would put the sums into memory. */
QNI_TEMPLATE void add_pairs(const struct row *in, const int T, const int V, const int G)
{
    const uintptr_t column = (uintptr_t)in->column * sizeof(int16_t);
    const int16_t *w = in->w;
    __m256i sum[MOST];
    QNI_UNROLL
    for (int i = 0; i < T * V; i++)
        sum[i] = _mm256_setzero_si256();
    uintptr_t at[(MOST + 2) / 3];
    const int64_t *tap = in->taps;
    for (int64_t n = in->n_taps * in->pairs, left = 0; n > 0; n -= 2, left -= 2, w += 2 * PAIR) {
        if (left == 0) {
            at[0] = (uintptr_t)(in->x + *tap++);
            left = in->pairs;
            QNI_UNROLL
            for (int r = 3; r < T; r += 3)
                at[r / 3] = at[r / 3 - 1] + 3 * column;
        }
        two_pairs(at, column, w, in->w_vector, T, V, G, sum);
    }
    QNI_UNROLL
    for (int i = 0; i < T * V; i++)
        store(in->to + i / V * in->to_column + i % V * LANES, sum[i]);
}

#define ADD(T)                                                                                     \
    case T:                                                                                        \
        add_pairs(in, T *V > MOST ? 1 : T, V, G);                                                  \
        break;
QNI_TEMPLATE void add_some(const struct row *in, int64_t n, const int V, const int G)
{
    switch (n) {
        /* clang-format off */
        ADD(8) ADD(7) ADD(6) ADD(5) ADD(4) ADD(3) ADD(2)
    default:
        add_pairs(in, 1, V, G);
        /* clang-format on */
    }
}
#undef ADD

typedef void add_fn(const struct row *in, int64_t n);
static void add_one(const struct row *in, int64_t n)
{
    add_some(in, n, 1, 1);
}
static void add_two(const struct row *in, int64_t n)
{
    add_some(in, n, 2, 1);
}
static void add_turns(const struct row *in, int64_t n)
{
    add_some(in, n, 1, 2);
}

/* How a vector, or it and the next one, is summed: so many outputs at a time. */
struct form {
    add_fn *fn;
    int64_t most, vectors;
};

static struct form form_of(const struct qni_groups_tile *t, int64_t v)
{
    if (t->groups > 1)
        return (struct form){add_turns, MOST, 1};
    return v + 1 < t->vectors ? (struct form){add_two, MOST / 2, 2}
                              : (struct form){add_one, MOST, 1};
}

/* ---- tap by tap ------------------------------------------------------------------------------ */

/* n outputs, at most MOST, of a vector. sums: to_column apart. */
QNI_TEMPLATE void put_row(const struct finish *f, const int32_t *sums, int64_t step, int64_t n,
                          const struct output_place *p, const bool turns, const int kind)
{
    uint8_t nowhere[LANES * sizeof(float)];
    for (int64_t i = 0; i < n; i += 4) {
        __m256i d[4];
        void *to[4];
        for (int64_t j = 0; j < 4; j++) {
            d[j] = load(sums + (i + j < n ? i + j : i) * step);
            to[j] = i + j < n ? p->to + (size_t)(i + j) * p->column : nowhere;
        }
        put(f, d, to, turns, kind);
    }
}

QNI_TEMPLATE void rows_of(const struct qni_groups_tile *t, int64_t set, int64_t v,
                          const struct form *form, const int kind)
{
    int32_t sums[MOST * LANES];
    const int16_t *const x = (const int16_t *)(const void *)t->x + set * t->x_set;
    const int64_t next = t->n_taps * t->ci * LANES, vector = set * t->vectors + v;
    struct finish f[2];
    for (int64_t i = 0; i < form->vectors; i++)
        f[i] = finish_of(t, vector + i);
    struct row in = {.column = t->x_column,
                     .taps = t->taps,
                     .n_taps = t->n_taps,
                     .pairs = t->ci / 2,
                     .w = (const int16_t *)(const void *)t->w + vector * next,
                     .w_vector = next,
                     .to = sums,
                     .to_column = form->vectors * LANES};
    for (int64_t i = 0; i < t->rows; i++) {
        struct output_place p = place_of(t, set, v);
        p.to += (size_t)i * p.row;
        in.x = x + i * t->x_row;
        int64_t tiles = (t->columns + form->most - 1) / form->most;
        for (int64_t j = 0, n; j < t->columns; j += n, tiles--) {
            n = (t->columns - j + tiles - 1) / tiles;
            form->fn(&in, n);
            in.x += n * in.column;
            for (int64_t k = 0; k < form->vectors; k++) {
                struct output_place at = p;
                at.to += (size_t)(k * LANES) * (kind <= UNBOUNDED_BYTES ? 1 : sizeof(float));
                if (t->groups > 1)
                    put_row(&f[k], sums + k * LANES, in.to_column, n, &at, true, kind);
                else
                    put_row(&f[k], sums + k * LANES, in.to_column, n, &at, false, kind);
            }
            p.to += (size_t)n * p.column;
        }
    }
}

/* ---- squares --------------------------------------------------------------------------------- */

/* Rows of squares that are transformed together, and where in scratch:
 *     x      [TAPS][squares][inputs, and a vector behind the last]
 *     sums   of MOST at most, or of RUN squares and two vectors */
struct squares {
    int64_t row, rows, columns; /* of squares */
    int16_t *x;
    int64_t x_tap;
    int32_t *sums;
};

/* Two squares of 8 inputs, of which a vector holds two columns. Rows first; then columns of both
 * squares side by side. */
QNI_TEMPLATE void transform_two(const int16_t *from, int64_t row, int64_t tap, int16_t *to)
{
    __m256i x[4], columns[3][4];
    QNI_UNROLL
    for (int c = 0; c < 3; c++) {
        QNI_UNROLL
        for (int r = 0; r < 4; r++)
            x[r] = load(from + r * row + 16 * c);
        qni_squares_of_x(x, columns[c]);
    }
    QNI_UNROLL
    for (int r = 0; r < 4; r++) {
        int16_t *const at = to + 4 * r * tap;
        const __m256i a = columns[0][r], b = columns[1][r], c = columns[2][r];
        const __m256i x1 = _mm256_permute2x128_si256(a, b, 0x31);
        const __m256i x2 = _mm256_permute2x128_si256(b, c, 0x20);
        store(at, _mm256_sub_epi16(_mm256_permute2x128_si256(a, b, 0x20), x2));
        store(at + tap, _mm256_add_epi16(x1, x2));
        store(at + 2 * tap, _mm256_sub_epi16(x2, x1));
        store(at + 3 * tap, _mm256_sub_epi16(x1, _mm256_permute2x128_si256(b, c, 0x31)));
    }
}

/* A row of squares of 8 inputs. Behind an odd one whatever lies there is read. */
static void transform_eights(const struct qni_groups_tile *t, const struct squares *s,
                             const int16_t *from, int16_t *to)
{
    for (int64_t j = 0; j < s->columns; j += 2, from += 32, to += 16)
        transform_two(from, t->x_row, s->x_tap, to);
}

/* What comes of columns a and b of four rows. */
QNI_TEMPLATE void transform_column(const struct qni_groups_tile *t, const int16_t *from,
                                   const int a, const int b, const bool adds, const bool half,
                                   int64_t tap, int16_t *to)
{
    __m256i x[4], four[4];
    QNI_UNROLL
    for (int r = 0; r < 4; r++) {
        const __m256i u = load_some(from + r * t->x_row + a * t->x_column, half);
        const __m256i v = load_some(from + r * t->x_row + b * t->x_column, half);
        x[r] = adds ? _mm256_add_epi16(u, v) : _mm256_sub_epi16(u, v);
    }
    qni_squares_of_x(x, four);
    QNI_UNROLL
    for (int r = 0; r < 4; r++)
        store_some(to + 4 * r * tap, four[r], half);
}

/* 16 channels, or half of them, of a row of squares. What lies behind the last channel goes where
 * the first ones of the next square, or nothing, will be. */
QNI_TEMPLATE void transform_row(const struct qni_groups_tile *t, const struct squares *s,
                                const int16_t *from, int16_t *to, const bool half)
{
    for (int64_t j = 0; j < s->columns; j++, from += 2 * t->x_column, to += t->x_column) {
        transform_column(t, from, 0, 2, false, half, s->x_tap, to);
        transform_column(t, from, 1, 2, true, half, s->x_tap, to + s->x_tap);
        transform_column(t, from, 2, 1, false, half, s->x_tap, to + 2 * s->x_tap);
        transform_column(t, from, 1, 3, false, half, s->x_tap, to + 3 * s->x_tap);
    }
}

/* The last channels first. */
static void transform(const struct qni_groups_tile *t, const struct squares *s, int64_t set)
{
    const int16_t *const x = (const int16_t *)(const void *)t->x + set * t->x_set;
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t c = (t->x_column - 1) / 16 * 16; c >= 0; c -= 16) {
            const int16_t *const from = x + 2 * (s->row + i) * t->x_row + c;
            int16_t *const to = s->x + i * s->columns * t->x_column + c;
            if (t->x_column == 8)
                transform_eights(t, s, from, to);
            else if (t->x_column - c > 8)
                transform_row(t, s, from, to, false);
            else
                transform_row(t, s, from, to, true);
        }
}

/* Some squares that follow each other: where their inputs and weights are. */
struct squares_run {
    const int16_t *x, *w;
    int64_t first, n; /* which of the squares at hand */
    bool is_odd;      /* none has a second row of outputs */
};

/* How many squares and vectors are summed together, groups that take turns, quads of channels (0:
 * any number). */
struct how {
    int T, V, G, quads;
};

/* sum[r * V + v] += tap `tap` of T squares. */
QNI_TEMPLATE void add_tap(const struct qni_groups_tile *t, const struct squares *s,
                          const struct squares_run *in, int64_t tap, const struct how h,
                          __m256i *sum)
{
    const uintptr_t column = (uintptr_t)t->x_column * sizeof(int16_t);
    const int64_t next = TAPS * t->ci * LANES;
    const int16_t *w = in->w + tap * t->ci * LANES;
    uintptr_t at[(MOST + 2) / 3];
    at[0] = (uintptr_t)(in->x + tap * s->x_tap);
    QNI_UNROLL
    for (int r = 3; r < h.T; r += 3)
        at[r / 3] = at[r / 3 - 1] + 3 * column;
    if (h.quads != 0) {
        QNI_UNROLL
        for (int i = 0; i < h.quads; i++, w += 2 * PAIR)
            two_pairs(at, column, w, next, h.T, h.V, h.G, sum);
        return;
    }
    for (int64_t n = t->ci; n > 0; n -= 4, w += 2 * PAIR)
        two_pairs(at, column, w, next, h.T, h.V, h.G, sum);
}

/* Lines of T squares, of the first and the second output each: [4][2][T][V][LANES]. Of the fourth
 * row and column the weights are negative, so that nothing is to be turned. */
QNI_TEMPLATE void sum_run(const struct qni_groups_tile *t, const struct squares *s,
                          const struct squares_run *in, const int T, const int V, const int G,
                          const int quads)
{
    enum { MANY = 4 };
    const struct how h = {T, V, G, quads};
    int32_t *to = s->sums;
    for (int64_t c = 0; c < 4; c++) {
        __m256i first[MANY], second[MANY], both[MANY];
        QNI_UNROLL
        for (int i = 0; i < T * V; i++)
            both[i] = _mm256_setzero_si256();
        add_tap(t, s, in, 4 + c, h, both);
        QNI_UNROLL
        for (int i = 0; i < T * V; i++) {
            first[i] = second[i] = both[i];
            both[i] = _mm256_setzero_si256();
        }
        add_tap(t, s, in, c, h, first);
        if (!in->is_odd)
            add_tap(t, s, in, 12 + c, h, second);
        add_tap(t, s, in, 8 + c, h, both);
        QNI_UNROLL
        for (int i = 0; i < T * V; i++, to += LANES)
            store(to, _mm256_add_epi32(first[i], both[i]));
        QNI_UNROLL
        for (int i = 0; i < T * V; i++, to += LANES)
            store(to, _mm256_sub_epi32(second[i], both[i]));
    }
}

/* The outputs of a square from its lines, `step` apart. */
QNI_TEMPLATE void outputs_of(const int32_t *sums, int64_t step, __m256i *d)
{
    QNI_UNROLL
    for (int r = 0; r < 2; r++) {
        const int32_t *const at = sums + r * step;
        const __m256i a = load(at + 2 * step), b = load(at + 4 * step);
        const __m256i first = _mm256_add_epi32(_mm256_add_epi32(load(at), a), b);
        const __m256i second = _mm256_add_epi32(_mm256_sub_epi32(a, b), load(at + 6 * step));
        d[2 * r] = _mm256_srai_epi32(first, 2);
        d[2 * r + 1] = _mm256_srai_epi32(second, 2);
    }
}

/* Results of some squares, of a vector that groups share (TURNS), one of a group or the next of TWO
 * whose sums lie side by side. */
enum { TURNS = 0, ONE = 1, TWO = 2 };
QNI_TEMPLATE void put_squares(const struct qni_groups_tile *t, const struct squares *s,
                              const struct squares_run *in, const struct finish *f,
                              const int32_t *sums, const struct output_place *p, const int form,
                              const int kind)
{
    uint8_t nowhere[LANES * sizeof(float)];
    const int64_t next = (form == TWO ? 2 : 1) * LANES, step = in->n * next;
    int64_t i = in->first / s->columns, j = in->first % s->columns;
    for (int64_t k = 0; k < in->n; k++, sums += next, j++) {
        if (j == s->columns) {
            j = 0;
            i++;
        }
        const int64_t row = 2 * (s->row + i), column = 2 * j;
        const bool is_last = row + 1 == t->rows, ends = column + 1 == t->columns;
        uint8_t *const to = p->to + (size_t)row * p->row + (size_t)column * p->column;
        void *const four[4] = {to, ends ? nowhere : to + p->column, is_last ? nowhere : to + p->row,
                               ends || is_last ? nowhere : to + p->row + p->column};
        __m256i d[4];
        outputs_of(sums, step, d);
        put(f, d, four, form == TURNS, kind);
    }
}

#define SUM(T)                                                                                     \
    case T:                                                                                        \
        sum_run(t, s, in, T, V, G, quads);                                                         \
        break;
QNI_TEMPLATE void sum_any(const struct qni_groups_tile *t, const struct squares *s,
                          const struct squares_run *in, const int V, const int G, const int quads)
{
    switch (in->n) {
        /* clang-format off */
        SUM(4) SUM(3) SUM(2)
    default:
        sum_run(t, s, in, 1, V, G, quads);
        /* clang-format on */
    }
}
#undef SUM

static void sum_squares(const struct qni_groups_tile *t, const struct squares *s,
                        const struct squares_run *in)
{
    if (t->groups > 1 && t->ci == 4)
        sum_any(t, s, in, 1, 2, 1);
    else if (t->groups > 1)
        sum_any(t, s, in, 1, 2, 0);
    else if (t->ci == 8)
        sum_any(t, s, in, 1, 1, 2);
    else
        sum_any(t, s, in, 1, 1, 0);
}

/* Two vectors at once load fewer inputs, but have no registers for lines. [T][2][LANES] of first
 * and of second outputs: column c of T squares, of its first two taps, then of the others.
 * Functions of their own: of one with all taps, compilers keep the sums in memory. */
QNI_TEMPLATE void sum_half(const struct qni_groups_tile *t, const struct squares *s,
                           const struct squares_run *in, int64_t c, const int T, const bool begins,
                           int32_t *first, int32_t *second)
{
    const struct how h = {T, 2, 1, 0};
    __m256i sum[2 * PAIRED];
    QNI_UNROLL
    for (int i = 0; i < 2 * T; i++)
        sum[i] = _mm256_setzero_si256();
    add_tap(t, s, in, begins ? 4 + c : 8 + c, h, sum);
    QNI_UNROLL
    for (int i = 0; i < 2 * T; i++) {
        QNI_KEEP(sum[i]);
        if (begins) {
            store(second + i * LANES, sum[i]);
        } else {
            store(first + i * LANES, _mm256_add_epi32(load(first + i * LANES), sum[i]));
            sum[i] = _mm256_sub_epi32(load(second + i * LANES), sum[i]);
        }
        QNI_KEEP(sum[i]);
    }
    if (begins || !in->is_odd)
        add_tap(t, s, in, begins ? c : 12 + c, h, sum);
    QNI_UNROLL
    for (int i = 0; i < 2 * T; i++)
        store((begins ? first : second) + i * LANES, sum[i]);
}

#define SUM(T)                                                                                     \
    case T:                                                                                        \
        sum_half(t, s, in, c, T, begins, first, second);                                           \
        break;
QNI_TEMPLATE void sum_half_of(const struct qni_groups_tile *t, const struct squares *s,
                              const struct squares_run *in, int64_t c, const bool begins,
                              int32_t *first, int32_t *second)
{
    switch (in->n) {
        /* clang-format off */
        SUM(6) SUM(5) SUM(4) SUM(3) SUM(2)
    default:
        sum_half(t, s, in, c, 1, begins, first, second);
        /* clang-format on */
    }
}
#undef SUM
static QNI_NOINLINE void begin_lines(const struct qni_groups_tile *t, const struct squares *s,
                                     const struct squares_run *in, int64_t c, int32_t *first,
                                     int32_t *second)
{
    sum_half_of(t, s, in, c, true, first, second);
}
static QNI_NOINLINE void end_lines(const struct qni_groups_tile *t, const struct squares *s,
                                   const struct squares_run *in, int64_t c, int32_t *first,
                                   int32_t *second)
{
    sum_half_of(t, s, in, c, false, first, second);
}

/* Lines of some squares and two vectors, [4][2][squares][2][LANES], column by column: the weights
 * of one stay in the first cache. Squares from `last` on have no second outputs. */
static void sum_lines(const struct qni_groups_tile *t, const struct squares *s,
                      const struct squares_run *run, int64_t last)
{
    const int64_t line = run->n * 2 * LANES;
    for (int64_t c = 0; c < 4; c++) {
        struct squares_run in = *run;
        int32_t *to = s->sums + 2 * c * line;
        int64_t blocks = (run->n + PAIRED - 1) / PAIRED;
        for (int64_t i = 0; i < run->n; i += in.n, blocks--) {
            in.n = (run->n - i + blocks - 1) / blocks;
            in.is_odd = t->rows % 2 != 0 && run->first + i >= last;
            begin_lines(t, s, &in, c, to, to + line);
            end_lines(t, s, &in, c, to, to + line);
            in.x += in.n * t->x_column;
            to += in.n * 2 * LANES;
        }
    }
}

/* All squares at hand, and vectors v and v + 1 of a set. */
QNI_TEMPLATE void multiply_two(const struct qni_groups_tile *t, const struct squares *s,
                               int64_t set, int64_t v, const int kind)
{
    const int64_t vector = set * t->vectors + v, n = s->rows * s->columns;
    const int64_t last = ((t->rows + 1) / 2 - 1 - s->row) * s->columns;
    const int64_t most = t->ci > 16 ? QNI_GROUPS_RUN : QNI_GROUPS_RUN / 2;
    const struct finish f[2] = {finish_of(t, vector), finish_of(t, vector + 1)};
    const struct output_place p[2] = {place_of(t, set, v), place_of(t, set, v + 1)};
    const int16_t *const w = (const int16_t *)(const void *)t->w;
    struct squares_run run = {.x = s->x, .w = w + vector * TAPS * t->ci * LANES};
    for (; run.first < n; run.first += run.n) {
        run.n = n - run.first < most ? n - run.first : most;
        sum_lines(t, s, &run, last);
        for (int64_t i = 0; i < 2; i++)
            put_squares(t, s, &run, &f[i], s->sums + i * LANES, &p[i], TWO, kind);
        run.x += run.n * t->x_column;
    }
}

/* All squares at hand. */
QNI_TEMPLATE void multiply_squares(const struct qni_groups_tile *t, const struct squares *s,
                                   int64_t set, const int kind)
{
    int64_t v = 0;
    for (; v + 1 < t->vectors; v += 2)
        multiply_two(t, s, set, v, kind);
    for (; v < t->vectors; v++) {
        const int64_t vector = set * t->vectors + v, n = s->rows * s->columns;
        const int64_t last = ((t->rows + 1) / 2 - 1 - s->row) * s->columns;
        const struct finish f = finish_of(t, vector);
        const struct output_place p = place_of(t, set, v);
        const int16_t *const w = (const int16_t *)(const void *)t->w;
        struct squares_run run = {.x = s->x, .w = w + vector * TAPS * t->ci * LANES};
        int64_t blocks = (n + 3) / 4;
        for (; run.first < n; run.first += run.n, blocks--) {
            run.n = (n - run.first + blocks - 1) / blocks;
            run.is_odd = t->rows % 2 != 0 && run.first >= last;
            sum_squares(t, s, &run);
            if (t->groups > 1)
                put_squares(t, s, &run, &f, s->sums, &p, TURNS, kind);
            else
                put_squares(t, s, &run, &f, s->sums, &p, ONE, kind);
            run.x += run.n * t->x_column;
        }
    }
}

/* Computes a set, as many rows of squares at a time as leave their inputs in the first cache. */
QNI_TEMPLATE void squares_of(const struct qni_groups_tile *t, int64_t set, const int kind)
{
    const int64_t most = t->ci > 16 ? QNI_GROUPS_RUN : QNI_GROUPS_SQUARES;
    const int64_t rows = (t->rows + 1) / 2;
    struct squares s = {.columns = (t->columns + 1) / 2};
    const int64_t fit = most > s.columns ? most / s.columns : 1;
    const int64_t pieces = (rows + fit - 1) / fit;
    s.sums = t->scratch;
    s.x = (int16_t *)(void *)(s.sums + QNI_GROUPS_LINES);
    for (int64_t i = 0; i < pieces; i++, s.row += s.rows) {
        s.rows = (rows - s.row + pieces - i - 1) / (pieces - i);
        s.x_tap = s.rows * s.columns * t->x_column + 16;
        transform(t, &s, set);
        multiply_squares(t, &s, set, kind);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

QNI_TEMPLATE void tile_of(const struct qni_groups_tile *t, const int kind)
{
    for (int64_t set = 0; set < t->sets; set++) {
        if (t->in_squares) {
            squares_of(t, set, kind);
            continue;
        }
        for (int64_t v = 0; v < t->vectors;) {
            const struct form form = form_of(t, v);
            rows_of(t, set, v, &form, kind);
            v += form.vectors;
        }
    }
}

static bool words(const struct qni_groups_tile *t)
{
    switch (kind_of(t)) {
    case BYTES:
        tile_of(t, BYTES);
        break;
    case UNBOUNDED_BYTES:
        tile_of(t, UNBOUNDED_BYTES);
        break;
    case FLOATS:
        tile_of(t, FLOATS);
        break;
    default:
        tile_of(t, WORDS);
    }
    return true;
}

bool qni_groups_q8_q8n16_mr4_avx2(const struct qni_groups_tile *t)
{
    return words(t);
}
bool qni_groups_q8_q4n16_mr4_avx2(const struct qni_groups_tile *t)
{
    return words(t);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* n bytes less `zero`; flip: 0x80 for unsigned ones. Touches nothing else. */
QNI_TEMPLATE void widen(const uint8_t *from, int64_t n, const __m256i zero, const bool is_u8,
                        int16_t *to)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
        const __m256i w = is_u8 ? _mm256_cvtepu8_epi16(v) : _mm256_cvtepi8_epi16(v);
        store(to + i, _mm256_sub_epi16(w, zero));
    }
    const __m128i less = _mm256_castsi256_si128(zero);
    if (i + 8 <= n) {
        const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)(from + i));
        const __m128i w = is_u8 ? _mm_cvtepu8_epi16(v) : _mm_cvtepi8_epi16(v);
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm_sub_epi16(w, less));
        i += 8;
    }
    if (i + 4 <= n) {
        int32_t four;
        memcpy(&four, from + i, sizeof four);
        const __m128i v = _mm_cvtsi32_si128(four);
        const __m128i w = is_u8 ? _mm_cvtepu8_epi16(v) : _mm_cvtepi8_epi16(v);
        _mm_storel_epi64((__m128i *)(void *)(to + i), _mm_sub_epi16(w, less));
    }
}

/* Two groups of 4 channels, which take turns by pairs. */
QNI_TEMPLATE void widen_turns(const uint8_t *from, const __m256i zero, const bool is_u8,
                              int16_t *to)
{
    const __m128i turns = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i v = _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)(const void *)from), turns);
    const __m128i w = is_u8 ? _mm_cvtepu8_epi16(v) : _mm_cvtepi8_epi16(v);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_sub_epi16(w, _mm256_castsi256_si128(zero)));
}

/* Copies the channels of two groups so that they take turns; the last group may be missing. */
static void take_turns(const struct qni_groups_pixels *p, const uint8_t *from, int64_t n,
                       int16_t *to)
{
    for (int64_t g = 0; g < 2; g++)
        for (int64_t i = 0; i < p->ci; i++) {
            const int64_t at = g * p->ci + i;
            const int32_t byte = at >= n             ? p->zero
                                 : p->dtype == QN_U8 ? from[at]
                                                     : (int8_t)from[at];
            to[i / 2 * 4 + 2 * g + i % 2] = (int16_t)(byte - p->zero);
        }
}

/* n pixels of so many inputs of a set. */
QNI_TEMPLATE void widen_set(const struct qni_groups_pixels *p, const uint8_t *from, int64_t inputs,
                            const __m256i zero, const bool is_u8, int16_t *to)
{
    for (int64_t i = 0; i < p->n; i++, from += p->step, to += inputs)
        widen(from, inputs, zero, is_u8, to);
}

QNI_TEMPLATE void pixels_as(const struct qni_groups_pixels *p, const bool is_u8)
{
    const int64_t inputs = p->ci * p->groups;
    const __m256i zero = _mm256_set1_epi16((int16_t)p->zero);
    int16_t *set = (int16_t *)(void *)p->to;
    for (int64_t c = 0; c < p->channels; c += inputs, set += p->set) {
        const uint8_t *from = (const uint8_t *)p->from + c;
        const bool whole = c + inputs <= p->channels;
        if (p->groups == 1 && inputs == 8)
            widen_set(p, from, 8, zero, is_u8, set);
        else if (p->groups == 1 && inputs == 16)
            widen_set(p, from, 16, zero, is_u8, set);
        else if (p->groups == 1)
            widen_set(p, from, inputs, zero, is_u8, set);
        else if (inputs == 8 && whole)
            for (int64_t i = 0; i < p->n; i++)
                widen_turns(from + (size_t)i * p->step, zero, is_u8, set + i * 8);
        else
            for (int64_t i = 0; i < p->n; i++)
                take_turns(p, from + (size_t)i * p->step, p->channels - c, set + i * inputs);
    }
}

static void pixels_of(const struct qni_groups_pixels *p)
{
    if (p->dtype == QN_U8)
        pixels_as(p, true);
    else
        pixels_as(p, false);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* turns: to the lanes of this group; the first one clears those of the other. */
QNI_TEMPLATE void put_pair(const struct qni_groups_panel *p, __m256i v, const bool turns,
                           int16_t *to)
{
    if (turns) {
        const __m256i which = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        const __m256i odd = _mm256_setr_epi32(0, -1, 0, -1, 0, -1, 0, -1);
        v = _mm256_permutevar8x32_epi32(v, which);
        v = p->group == 0 ? _mm256_andnot_si256(odd, v) : _mm256_blendv_epi8(load(to), v, odd);
    }
    store(to, v);
}

/* A pair of channels of a quad of each tap: 9 taps to 16. */
QNI_TEMPLATE void square(const struct qni_groups_panel *p, int64_t quad, int64_t v, const int pair,
                         const bool is_nibble, const bool turns, int16_t *to)
{
    __m256i w[TAPS];
    qni_squares_weights(p->codes, p->ci / 4, quad, v, pair, is_nibble, 2, w);
    QNI_UNROLL
    for (int i = 0; i < TAPS; i++)
        put_pair(p, w[i], turns, to + i * p->ci * LANES);
}

/* A copy of the job: what is stored might be it. */
QNI_TEMPLATE void panel_as(const struct qni_groups_panel *job, const bool is_nibble,
                           const bool turns)
{
    const struct qni_groups_panel copy = *job, *const p = &copy;
    const int64_t quads = p->ci / 4, taps = p->k / p->ci;
    const int64_t vector = (p->in_squares ? TAPS : taps) * p->ci * LANES;
    for (int64_t v = 0; v < p->vectors; v++) {
        int16_t *to = (int16_t *)(void *)p->to + v * vector;
        const int64_t n = p->in_squares ? quads : taps * quads;
        for (int64_t q = 0; q < n; q++, to += 2 * PAIR)
            if (p->in_squares) {
                square(p, q, v, 0, is_nibble, turns, to);
                square(p, q, v, 1, is_nibble, turns, to + PAIR);
            } else {
                put_pair(p, qni_squares_pair(p->codes, q, v, 0, is_nibble), turns, to);
                put_pair(p, qni_squares_pair(p->codes, q, v, 1, is_nibble), turns, to + PAIR);
            }
    }
}

static void panel_of(const struct qni_groups_panel *p)
{
    if (p->code_bits == 4 && p->groups > 1)
        panel_as(p, true, true);
    else if (p->code_bits == 4)
        panel_as(p, true, false);
    else if (p->groups > 1)
        panel_as(p, false, true);
    else
        panel_as(p, false, false);
}

const struct qni_groups_helpers qni_groups_words_avx2 = {pixels_of, panel_of, LANES, true};
