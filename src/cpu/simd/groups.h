/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of grouped convolutions for vectors of any width: an include-template. Contract:
 * conv/groups_kernel.h.
 *
 * Parameters, defined by the including file and undefined here:
 *     LANES            floats in a vector: 4, 8 or 16
 *     TILE             outputs side by side of one vector that are kept in registers: 8 to 14
 *     PAIR             the same of two vectors of a group; 8 at most
 *     APART            the same of floats, wherever the outputs lie; 6, or 0: only side by side
 *     MADD(a, b, c)    a * b + c, rounded once or twice
 *     FMA(a, b, c)     a * b + c, rounded once
 *     HAS_FMA          1: FMA is an instruction
 *     SMALLER(a, b)    a < b ? a : b, lane by lane
 *     LARGER(a, b)     a > b ? a : b
 *     LARGER_INT(a, b) the same of int32
 *     SHUFFLE(v, which) lane j is lane which[j] of v
 *     REPEAT(at, n)    the n (1, 2, 4) floats there again and again
 *     WIDEN_F16(src, n, dst)
 * Gives the functions plain_groups (float and int8-static), row_groups, block_groups, and
 * pixels_of, panel_of. The bits of the int8 ones do not depend on the parameters.
 *
 * Bound: one multiply-add and one load for LANES sums; weights are loaded once for a tile. */
#include "lanes.h"

/* Lanes moved by n, the first ones to the end. */
#if LANES == 16
#define TURN(v, n)                                                                                 \
    QNI_PICK(v, v, (n)&15, ((n) + 1) & 15, ((n) + 2) & 15, ((n) + 3) & 15, ((n) + 4) & 15,         \
             ((n) + 5) & 15, ((n) + 6) & 15, ((n) + 7) & 15, ((n) + 8) & 15, ((n) + 9) & 15,       \
             ((n) + 10) & 15, ((n) + 11) & 15, ((n) + 12) & 15, ((n) + 13) & 15, ((n) + 14) & 15,  \
             ((n) + 15) & 15)
#elif LANES == 8
#define TURN(v, n)                                                                                 \
    QNI_PICK(v, v, (n)&7, ((n) + 1) & 7, ((n) + 2) & 7, ((n) + 3) & 7, ((n) + 4) & 7,              \
             ((n) + 5) & 7, ((n) + 6) & 7, ((n) + 7) & 7)
#else
#define TURN(v, n) QNI_PICK(v, v, (n)&3, ((n) + 1) & 3, ((n) + 2) & 3, ((n) + 3) & 3)
#endif

QNI_TEMPLATE ivec load_int(const int32_t *at)
{
    ivec v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* ---- products -------------------------------------------------------------------------------- */

/* T outputs side by side: where their inputs are. */
struct inputs {
    const float *x;
    int64_t column;      /* from output to output */
    const int64_t *taps; /* NULL: evenly spaced by `step` */
    int64_t step;
};

QNI_TEMPLATE const float *tap_of(const struct inputs *in, int64_t tap)
{
    return in->x + (in->taps != NULL ? in->taps[tap] : tap * in->step);
}

/* What a tile sums, and where to. */
struct sums {
    int64_t vector, segment; /* vector: the first one, of all */
    float *to;
    int64_t column;
    bool in_order; /* as results */
    vec bad;       /* NaN: a sum was not finite */
};

/* sum[r * V + v] = inputs of output r times weights of vector v, taps of a segment. G groups; U
 * divides the channels. */
QNI_TEMPLATE void add_products(const struct qni_groups_tile *t, const struct inputs *in,
                               const struct sums *out, const int T, const int V, const int G,
                               const int U, vec *sum)
{
    const int64_t from = t->segments[out->segment], to = t->segments[out->segment + 1];
    const int64_t next = t->n_taps * t->ci * LANES;
    const uintptr_t column = (uintptr_t)in->column * sizeof(float);
    QNI_UNROLL
    for (int i = 0; i < T * V; i++)
        sum[i] = splat(0.0f);
    const float *w = t->w + (out->vector * t->n_taps + from) * t->ci * LANES;
    /* One loop: between two, compilers would put the sums into memory. An address for three outputs
     * each: one more index is free, an addition for each output is not. */
    uintptr_t at[(TILE + 2) / 3];
    int64_t tap = from, left = 0;
    for (int64_t n = (to - from) * t->ci; n > 0; n -= U, left -= U, w += U * LANES) {
        if (left == 0) {
            at[0] = (uintptr_t)tap_of(in, tap++);
            left = t->ci;
            QNI_UNROLL
            for (int r = 3; r < T; r += 3)
                at[r / 3] = at[r / 3 - 1] + 3 * column;
        }
        QNI_UNROLL
        for (int i = 0; i < U; i++) {
            const vec w0 = load(w + i * LANES), w1 = V > 1 ? load(w + next + i * LANES) : w0;
            QNI_UNROLL
            for (int r = 0; r < T; r++) {
                const uintptr_t x = at[r / 3] + (uintptr_t)(r % 3) * column;
                const vec a = REPEAT((const float *)x + i * G, G);
                sum[r * V] = MADD(a, w0, sum[r * V]);
                if (V > 1)
                    sum[r * V + 1] = MADD(a, w1, sum[r * V + 1]);
            }
        }
        QNI_UNROLL
        for (int r = 0; r < T; r += 3) {
            at[r / 3] += (uintptr_t)(U * G) * sizeof(float);
            QNI_KEEP_WORD(at[r / 3]);
        }
    }
}

/* The sums of a vector in the order of its results. */
QNI_TEMPLATE vec in_order(const struct qni_groups_tile *t, vec sums, bool has_groups)
{
    return has_groups ? SHUFFLE(sums, load_int(t->results)) : sums;
}

/* Sums of T outputs and V vectors. */
QNI_TEMPLATE void sum_tile(const struct qni_groups_tile *t, const struct inputs *in, const int T,
                           const int V, const int G, struct sums *out)
{
    vec sum[TILE + PAIR];
    if (t->ci % 4 == 0)
        add_products(t, in, out, T, V, G, 4, sum);
    else
        add_products(t, in, out, T, V, G, 1, sum);
    vec total = sum[0];
    QNI_UNROLL
    for (int i = 1; i < T * V; i++)
        total += sum[i];
    out->bad = MADD(total, splat(0.0f), out->bad);
    if (out->in_order) {
        QNI_UNROLL
        for (int i = 0; i < T * V; i++)
            sum[i] = in_order(t, sum[i], G > 1);
    }
    QNI_UNROLL
    for (int i = 0; i < T * V; i++)
        store(out->to + i / V * out->column + i % V * LANES, sum[i]);
}

typedef void sum_fn(const struct qni_groups_tile *t, const struct inputs *in, int64_t n,
                    struct sums *out);

/* n outputs, at most `most`. */
#define SUM(T)                                                                                     \
    case T:                                                                                        \
        sum_tile(t, in, T <= most ? T : 1, V, G, out);                                             \
        break;
QNI_TEMPLATE void sum_some(const struct qni_groups_tile *t, const struct inputs *in, int64_t n,
                           const int most, const int V, const int G, struct sums *out)
{
    switch (n) {
        /* clang-format off */
#if TILE > 8
        SUM(14) SUM(13) SUM(12) SUM(11) SUM(10) SUM(9)
#endif
        SUM(8) SUM(7) SUM(6) SUM(5) SUM(4) SUM(3) SUM(2)
    default:
        sum_tile(t, in, 1, V, G, out);
        /* clang-format on */
    }
}
#undef SUM

#define SUMS(name, most, V, G)                                                                     \
    static void name(const struct qni_groups_tile *t, const struct inputs *in, int64_t n,          \
                     struct sums *out)                                                             \
    {                                                                                              \
        sum_some(t, in, n, most, V, G, out);                                                       \
    }
SUMS(sum_one, TILE, 1, 1)
SUMS(sum_two, PAIR, 2, 1)
SUMS(sum_of_2, TILE, 1, 2)
SUMS(sum_of_4, TILE, 1, 4)

/* How the vectors of a tile are summed: `vectors` of them, of up to `most` outputs at a time. */
struct form {
    sum_fn *fn;
    int64_t most, vectors;
};

/* For vector v of a set, and the next one if there is one. */
static struct form form_of(const struct qni_groups_tile *t, int64_t v)
{
    if (t->groups > 1)
        return (struct form){t->groups == 2 ? sum_of_2 : sum_of_4, TILE, 1};
    return v + 1 < t->vectors ? (struct form){sum_two, PAIR, 2} : (struct form){sum_one, TILE, 1};
}

/* ---- floats and given codes ------------------------------------------------------------------ */

/* Sums of the inputs of a segment, for weights with offsets: each lane's group. */
static vec sum_inputs(const struct qni_groups_tile *t, const struct inputs *in, int64_t s,
                      int64_t r)
{
    vec sum = splat(0.0f);
    for (int64_t tap = t->segments[s]; tap < t->segments[s + 1]; tap++) {
        const float *x = tap_of(in, tap) + r * in->column;
        for (int64_t i = 0; i < t->ci; i++, x += t->groups)
            sum += t->groups == 4 ? REPEAT(x, 4) : t->groups == 2 ? REPEAT(x, 2) : REPEAT(x, 1);
    }
    return sum;
}

/* Exact sums over segment s to results in c, which has those of the segments before. */
static void finish_given(const struct qni_groups_tile *t, const struct inputs *in, int64_t n,
                         int64_t vectors, const struct sums *sums, float *c)
{
    const int64_t s = sums->segment;
    for (int64_t v = 0; v < vectors; v++) {
        const int64_t at = ((sums->vector + v) * t->n_segments + s) * LANES;
        const vec scale = load(t->scale + at);
        for (int64_t r = 0; r < n; r++) {
            const vec sum = load(sums->to + r * sums->column + v * LANES);
            float *const to = c + r * t->c_column + v * LANES;
            vec acc;
            if (t->raw_i32)
                acc = (vec) __builtin_convertvector(sum, ivec);
            else
                acc = s == 0 ? step(scale, sum, sum, true) : FMA(scale, sum, load(to));
            if (t->offset != NULL)
                acc = FMA(load(t->offset + at), sum_inputs(t, in, s, r), acc);
            store(to, in_order(t, acc, t->groups > 1 && s + 1 == t->n_segments));
        }
    }
}

/* A row of outputs of a vector or two in tiles of about equal length. */
static void plain_row(const struct qni_groups_tile *t, const struct form *form, const float *x,
                      int64_t vector, float *c, vec *bad)
{
    float buffer[2 * TILE * LANES]; /* rows of two vectors */
    const bool direct = t->scale == NULL;
    struct sums sums = {vector, 0, buffer, 2 * LANES, direct, *bad};
    struct inputs in = {x, t->x_column, t->taps, 0};
    int64_t tiles = (t->columns + form->most - 1) / form->most;
    for (int64_t j = 0, n; j < t->columns; j += n, tiles--) {
        n = (t->columns - j + tiles - 1) / tiles;
        float *const to = c + j * t->c_column;
        in.x = x + j * t->x_column;
        if (direct) {
            sums.to = to;
            sums.column = t->c_column;
            form->fn(t, &in, n, &sums);
            continue;
        }
        for (sums.segment = 0; sums.segment < t->n_segments; sums.segment++) {
            form->fn(t, &in, n, &sums);
            finish_given(t, &in, n, form->vectors, &sums, to);
        }
    }
    *bad = sums.bad;
}

/* ---- floats of two vectors ------------------------------------------------------------------- */

#if APART > 0
/* T outputs anywhere: an address for each, and one index for all. */
QNI_TEMPLATE void sum_apart(const struct qni_groups_tile *t, const float *const *x, const float *w,
                            float *const *to, const int T, const int U, vec *bad)
{
    const int64_t next = t->n_taps * t->ci * LANES, *tap = t->taps;
    vec sum[2 * APART];
    QNI_UNROLL
    for (int i = 0; i < 2 * T; i++)
        sum[i] = splat(0.0f);
    uintptr_t at[APART], index = 0;
    QNI_UNROLL
    for (int r = 0; r < T; r++)
        at[r] = (uintptr_t)x[r];
    for (int64_t n = t->n_taps * t->ci, left = 0; n > 0; n -= U, left -= U, w += U * LANES) {
        if (left == 0) {
            index = (uintptr_t)*tap++ * sizeof(float);
            left = t->ci;
        }
        QNI_UNROLL
        for (int i = 0; i < U; i++) {
            const vec w0 = load(w + i * LANES), w1 = load(w + next + i * LANES);
            QNI_UNROLL
            for (int r = 0; r < T; r++) {
                const vec a = REPEAT((const float *)(at[r] + index) + i, 1);
                sum[2 * r] = MADD(a, w0, sum[2 * r]);
                sum[2 * r + 1] = MADD(a, w1, sum[2 * r + 1]);
            }
        }
        index += (uintptr_t)U * sizeof(float);
        QNI_KEEP_WORD(index);
    }
    vec total = sum[0];
    QNI_UNROLL
    for (int i = 1; i < 2 * T; i++)
        total += sum[i];
    *bad = MADD(total, splat(0.0f), *bad);
    QNI_UNROLL
    for (int i = 0; i < 2 * T; i++)
        store(to[i / 2] + i % 2 * LANES, sum[i]);
}

#define SUM(T)                                                                                     \
    case T:                                                                                        \
        sum_apart(t, x, w, to, T, U, bad);                                                         \
        break;
QNI_TEMPLATE void sum_some_apart(const struct qni_groups_tile *t, const float *const *x,
                                 const float *w, float *const *to, int64_t n, const int U, vec *bad)
{
    switch (n) {
        /* clang-format off */
        SUM(6) SUM(5) SUM(4) SUM(3) SUM(2)
    default:
        sum_apart(t, x, w, to, 1, U, bad);
        /* clang-format on */
    }
}
#undef SUM

/* All outputs of two vectors, row after row: short rows, too, fill the registers. */
static void plain_pair(const struct qni_groups_tile *t, const float *x, int64_t vector, float *c,
                       vec *bad)
{
    const float *const w = t->w + vector * t->n_taps * t->ci * LANES;
    const int64_t n = t->rows * t->columns;
    int64_t tiles = (n + APART - 1) / APART, i = 0, j = 0;
    for (int64_t p = 0, n_rows; p < n; p += n_rows, tiles--) {
        const float *from[APART];
        float *to[APART];
        n_rows = (n - p + tiles - 1) / tiles;
        for (int64_t r = 0; r < n_rows; r++) {
            from[r] = x + i * t->x_row + j * t->x_column;
            to[r] = c + i * t->c_row + j * t->c_column;
            j = j + 1 < t->columns ? j + 1 : 0;
            i += j == 0;
        }
        if (t->ci % 4 == 0)
            sum_some_apart(t, from, w, to, n_rows, 4, bad);
        else
            sum_some_apart(t, from, w, to, n_rows, 1, bad);
    }
}
#endif

/* ---- a tile ---------------------------------------------------------------------------------- */

static bool plain_groups(const struct qni_groups_tile *t)
{
    vec bad = splat(0.0f);
    for (int64_t set = 0; set < t->sets; set++)
        for (int64_t v = 0; v < t->vectors;) {
            const struct form form = form_of(t, v);
#if APART > 0
            if (t->scale == NULL && form.vectors == 2) {
                plain_pair(t, t->x + set * t->x_set, set * t->vectors + v,
                           t->c + set * t->c_set + v * LANES, &bad);
                v += form.vectors;
                continue;
            }
#endif
            for (int64_t i = 0; i < t->rows; i++)
                plain_row(t, &form, t->x + set * t->x_set + i * t->x_row, set * t->vectors + v,
                          t->c + set * t->c_set + v * LANES + i * t->c_row, &bad);
            v += form.vectors;
        }
    const ivec is_good = bad == bad;
    bool all = true;
    for (int i = 0; i < LANES; i++)
        all = all && is_good[i] != 0;
    return all;
}

/* ---- codes of patches ------------------------------------------------------------------------ */

/* Patches become codes first, one next to the other, and facts of their segments:
 *     codes   [CODED][n_taps][inputs of a set], and some behind
 *     facts   [n_segments][CODED][scale, offset, sum of codes][lanes] */
enum { CODED = PAIR, FACTS = 3 * LANES };

struct coded {
    bool is_row;
    float *codes, *facts;
    int64_t column, step;
};

QNI_TEMPLATE struct coded coded_of(const struct qni_groups_tile *t, bool is_row)
{
    struct coded c;
    c.is_row = is_row;
    c.step = t->ci * t->groups;
    c.column = (t->n_taps * c.step + 2 * LANES - 1) / LANES * LANES;
    c.codes = t->scratch;
    c.facts = c.codes + CODED * c.column;
    return c;
}

QNI_TEMPLATE float *fact_of(const struct coded *c, int64_t s, int64_t r)
{
    return c->facts + (s * CODED + r) * FACTS;
}

/* What all lanes of a group have in common: its lanes take turns. */
#if LANES == 16
#define EACH_TURN(t, DO)                                                                           \
    do {                                                                                           \
        DO(8);                                                                                     \
        DO(4);                                                                                     \
        if ((t)->groups <= 2)                                                                      \
            DO(2);                                                                                 \
        if ((t)->groups == 1)                                                                      \
            DO(1);                                                                                 \
    } while (0)
#elif LANES == 8
#define EACH_TURN(t, DO)                                                                           \
    do {                                                                                           \
        DO(4);                                                                                     \
        if ((t)->groups <= 2)                                                                      \
            DO(2);                                                                                 \
        if ((t)->groups == 1)                                                                      \
            DO(1);                                                                                 \
    } while (0)
#else
#define EACH_TURN(t, DO)                                                                           \
    do {                                                                                           \
        if ((t)->groups <= 2)                                                                      \
            DO(2);                                                                                 \
        if ((t)->groups == 1)                                                                      \
            DO(1);                                                                                 \
    } while (0)
#endif

QNI_TEMPLATE ivec most_of(const struct qni_groups_tile *t, ivec m)
{
#define MOST(n) m = LARGER_INT(m, TURN(m, n))
    EACH_TURN(t, MOST);
    return m;
}
QNI_TEMPLATE vec largest_of(const struct qni_groups_tile *t, vec m)
{
#define LARGEST(n) m = LARGER(m, TURN(m, n))
    EACH_TURN(t, LARGEST);
    return m;
}
QNI_TEMPLATE vec total_of(const struct qni_groups_tile *t, vec m)
{
#define TOTAL(n) m += TURN(m, n)
    EACH_TURN(t, TOTAL);
    return m;
}

/* A vector of inputs of a tap; lanes past the last one are zero, or inputs of the same group
 * (asymmetric extremes know no zero of their own). */
QNI_TEMPLATE vec inputs_of(const struct qni_groups_tile *t, const float *x, int64_t left,
                           const bool plain, const bool repeat)
{
    vec v = load(x);
    if (plain || left >= LANES)
        return v;
    for (int j = 0; j < LANES; j++)
        if (j >= left)
            v[j] = repeat ? x[j % t->groups] : 0.0f;
    return v;
}

QNI_TEMPLATE struct quantizer quantizer_of(const struct qni_groups_tile *t, const float *x,
                                           int64_t from, int64_t to, const bool plain,
                                           const bool symmetric)
{
    ivec most = {0};
    const int64_t n = t->ci * t->groups;
    vec lo = splat(0.0f), hi = lo;
    if (!symmetric && from < to)
        lo = hi = inputs_of(t, x + t->taps[from], n, plain, true);
    for (int64_t tap = from; tap < to; tap++)
        for (int64_t i = 0; i < n; i += LANES) {
            const vec v = inputs_of(t, x + t->taps[tap] + i, n - i, plain, true);
            most = LARGER_INT(most, size_bits(v));
            if (!symmetric) {
                lo = SMALLER(v, lo);
                hi = LARGER(v, hi);
            }
        }
    most = most_of(t, most);
    if (symmetric)
        return symmetric_quantizer(most);
    return asymmetric_quantizer(-largest_of(t, -lo), largest_of(t, hi), most);
}

/* Segment s of a patch to codes, and its facts. */
QNI_TEMPLATE void encode(const struct qni_groups_tile *t, const float *x, const struct quantizer *q,
                         int64_t s, const struct coded *c, int64_t r, const bool plain,
                         const bool symmetric)
{
    const int64_t n = t->ci * t->groups;
    const bool sums = t->offset != NULL;
    vec sum = splat(0.0f);
    for (int64_t tap = t->segments[s]; tap < t->segments[s + 1]; tap++) {
        float *const to = c->codes + r * c->column + tap * c->step;
        for (int64_t i = 0; i < n; i += LANES) {
            const vec v = load(x + t->taps[tap] + i);
            const vec code = code_of(q, v, symmetric);
            store(to + i, code);
            if (sums)
                sum += plain ? code : inputs_of(t, to + i, n - i, false, false);
        }
    }
    float *const fact = fact_of(c, s, r);
    store(fact, q->scale);
    store(fact + LANES, q->offset);
    if (sums)
        store(fact + 2 * LANES, total_of(t, sum));
}

QNI_TEMPLATE void encode_patch(const struct qni_groups_tile *t, const float *x,
                               const struct coded *c, int64_t r, const bool is_row,
                               const bool plain, const bool symmetric)
{
    struct quantizer q = {.inv = splat(0.0f)};
    if (is_row)
        q = quantizer_of(t, x, 0, t->n_taps, plain, true);
    for (int64_t s = 0; s < t->n_segments; s++) {
        if (!is_row)
            q = quantizer_of(t, x, t->segments[s], t->segments[s + 1], plain, symmetric);
        encode(t, x, &q, s, c, r, plain, symmetric);
    }
}

typedef void encode_fn(const struct qni_groups_tile *t, const float *x, const struct coded *c,
                       int64_t r);
#define ENCODE(name, is_row, symmetric)                                                            \
    static void name(const struct qni_groups_tile *t, const float *x, const struct coded *c,       \
                     int64_t r)                                                                    \
    {                                                                                              \
        if (t->ci * t->groups % LANES == 0)                                                        \
            encode_patch(t, x, c, r, is_row, true, symmetric);                                     \
        else                                                                                       \
            encode_patch(t, x, c, r, is_row, false, symmetric);                                    \
    }
ENCODE(encode_row, true, true)
ENCODE(encode_symmetric, false, true)
ENCODE(encode_asymmetric, false, false)

/* acc after a segment of int8-block. */
QNI_TEMPLATE vec add_block(const struct qni_groups_tile *t, const float *fact, int64_t s,
                           int64_t at, vec dot, vec acc)
{
    const vec x_scale = load(fact), is_number = (vec)(x_scale == x_scale);
    vec x = x_scale * dot;
    if (!t->symmetric)
        x = FMA(x_scale, dot, load(fact + LANES) * load(t->sums + at));
    acc = FMA(load(t->scale + at), choose((ivec)is_number, x, x_scale), acc);
    if (t->offset == NULL)
        return acc;
    const float count = (float)((t->segments[s + 1] - t->segments[s]) * t->ci);
    const vec total = FMA(x_scale, load(fact + 2 * LANES), load(fact + LANES) * count);
    return FMA(load(t->offset + at), choose((ivec)is_number, total, x_scale), acc);
}

QNI_TEMPLATE vec add_row(const struct qni_groups_tile *t, const float *fact, int64_t s, int64_t at,
                         vec dot, vec acc)
{
    const vec scale = load(t->scale + at), x_scale = load(fact);
    acc = s == 0 ? step(scale, dot, acc, true) : FMA(scale, dot, acc);
    if (t->offset != NULL)
        acc = FMA(load(t->offset + at), load(fact + 2 * LANES), acc);
    return s + 1 < t->n_segments ? acc : choose(x_scale == x_scale, acc * x_scale, x_scale);
}

static void finish_coded(const struct qni_groups_tile *t, const struct coded *from, int64_t n,
                         int64_t vectors, const struct sums *sums, float *c)
{
    const int64_t s = sums->segment;
    for (int64_t v = 0; v < vectors; v++) {
        const int64_t at = ((sums->vector + v) * t->n_segments + s) * LANES;
        for (int64_t r = 0; r < n; r++) {
            const vec dot = load(sums->to + r * sums->column + v * LANES);
            float *const to = c + r * t->c_column + v * LANES;
            const float *const fact = fact_of(from, s, r);
            const vec acc = s == 0 ? splat(0.0f) : load(to);
            const vec now = from->is_row ? add_row(t, fact, s, at, dot, acc)
                                         : add_block(t, fact, s, at, dot, acc);
            store(to, in_order(t, now, t->groups > 1 && s + 1 == t->n_segments));
        }
    }
}

/* n outputs, whose patches are codes. */
static void coded_tile(const struct qni_groups_tile *t, const struct coded *codes, int64_t set,
                       int64_t n, float *c)
{
    float buffer[2 * TILE * LANES]; /* rows of two vectors */
    struct sums sums = {0, 0, buffer, 2 * LANES, false, splat(0.0f)};
    const struct inputs in = {codes->codes, codes->column, NULL, codes->step};
    for (int64_t v = 0; v < t->vectors;) {
        const struct form form = form_of(t, v);
        sums.vector = set * t->vectors + v;
        for (sums.segment = 0; sums.segment < t->n_segments; sums.segment++) {
            form.fn(t, &in, n, &sums);
            finish_coded(t, codes, n, form.vectors, &sums, c + v * LANES);
        }
        v += form.vectors;
    }
}

static void coded_groups(const struct qni_groups_tile *t, encode_fn *to_codes, bool is_row)
{
    const struct coded codes = coded_of(t, is_row);
    const int64_t most = (t->columns + CODED - 1) / CODED;
    for (int64_t set = 0; set < t->sets; set++)
        for (int64_t i = 0; i < t->rows; i++) {
            const float *const x = t->x + set * t->x_set + i * t->x_row;
            float *const c = t->c + set * t->c_set + i * t->c_row;
            int64_t tiles = most;
            for (int64_t j = 0, n; j < t->columns; j += n, tiles--) {
                n = (t->columns - j + tiles - 1) / tiles;
                for (int64_t r = 0; r < n; r++)
                    to_codes(t, x + (j + r) * t->x_column, &codes, r);
                coded_tile(t, &codes, set, n, c + j * t->c_column);
            }
        }
}

static bool row_groups(const struct qni_groups_tile *t)
{
    coded_groups(t, encode_row, true);
    return true;
}

static bool block_groups(const struct qni_groups_tile *t)
{
    coded_groups(t, t->symmetric ? encode_symmetric : encode_asymmetric, false);
    return true;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void widen(const void *src, qn_dtype dtype, int32_t zero, int64_t n, float *dst)
{
    const int8_t *const i8 = src;
    const uint8_t *const u8 = src;
    const uint16_t *const u16 = src;
    if (dtype == QN_I8)
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)(i8[i] - zero);
    else if (dtype == QN_U8)
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)(u8[i] - zero);
    else if (dtype == QN_BF16)
        for (int64_t i = 0; i < n; i++)
            dst[i] = qni_float_of((uint32_t)u16[i] << 16);
    else if (dtype == QN_F16)
        WIDEN_F16(u16, n, dst);
    else
        memcpy(dst, src, (size_t)n * sizeof *dst);
}

/* Channels of a pixel, n of them, to one set, whose groups take turns. Those of the last set may be
 * missing. */
QNI_TEMPLATE void take_turns(const struct qni_groups_pixels *p, const float *from, int64_t n,
                             float *to)
{
    for (int64_t g = 0; g < p->groups; g++)
        for (int64_t i = 0; i < p->ci; i++)
            to[i * p->groups + g] = g * p->ci < n ? from[g * p->ci + i] : 0.0f;
}

static void pixels_of(const struct qni_groups_pixels *p)
{
    const int64_t inputs = p->ci * p->groups;
    const bool is_vector = p->groups > 1 && inputs == LANES;
    const ivec which = load_int(p->inputs);
    const uint8_t *at = p->from;
    float *to = p->to;
    for (int64_t i = 0; i < p->n; i++, at += p->step, to += inputs) {
        const float *from = (const float *)(const void *)at;
        if (p->dtype != QN_F32) {
            widen(at, p->dtype, p->zero, p->channels, p->buffer);
            from = p->buffer;
        }
        float *set = to;
        for (int64_t c = 0; c < p->channels; c += inputs, set += p->set) {
            if (p->groups == 1 && inputs % LANES == 0)
                for (int64_t j = 0; j < inputs; j += LANES)
                    store(set + j, load(from + c + j));
            else if (p->groups == 1)
                memcpy(set, from + c, (size_t)inputs * sizeof *set);
            else if (is_vector && c + LANES <= p->channels)
                store(set, SHUFFLE(load(from + c), which));
            else
                take_turns(p, from + c, p->channels - c, set);
        }
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Values of codes. */
QNI_TEMPLATE vec values_of(const struct qni_groups_panel *p, ivec codes, const bool has_table)
{
    if (!has_table)
        return __builtin_convertvector(codes, vec) - p->bias;
    vec value;
    for (int j = 0; j < LANES; j++)
        value[j] = p->table[codes[j]] * p->times;
    return value;
}

/* Vector v of a position's outputs: its codes to weights. plain: integers, neither offset nor
 * prescale; which, mine: where they go in a vector that groups share. */
QNI_TEMPLATE void make_weights(const struct qni_groups_panel *p,
                               const struct qni_groups_place *place, int64_t v, ivec which,
                               ivec mine, ivec codes, const bool plain, const bool shared)
{
    float *const to = p->to + (v * p->k + place->at) * LANES;
    const int64_t at = 16 * place->scale + v * LANES;
    vec value = values_of(p, codes & (p->code_bits == 4 ? 15 : 255), !plain && p->table != NULL);
    if (p->scale != NULL)
        value *= load(p->scale + at);
    if (!plain && p->offset != NULL)
        value += load(p->offset + at);
    if (!plain && p->scale != NULL)
        value *= place->prescale;
    if (shared)
        value = choose(mine, SHUFFLE(value, which), p->group == 0 ? splat(0.0f) : load(to));
    store(to, value);
}

/* Four integers side by side, which have one scale (a group is whole units); the first ones of
 * `words` are the lowest bits. */
QNI_TEMPLATE void make_quad(const struct qni_groups_panel *p, const struct qni_groups_place *place,
                            int64_t v, ivec words)
{
    const vec scale = load(p->scale + 16 * place->scale + v * LANES);
    float *const to = p->to + (v * p->k + place->at) * LANES;
    QNI_UNROLL
    for (int j = 0; j < 4; j++) {
        const ivec codes = words >> 8 * j & (p->code_bits == 4 ? 15 : 255);
        store(to + j * LANES, values_of(p, codes, false) * scale);
    }
}

/* Positions of a quad of codes share their words. A copy of the job: what is stored might be it. */
QNI_TEMPLATE void make_vector(const struct qni_groups_panel *job, int64_t v, const bool plain,
                              const bool shared)
{
    const struct qni_groups_panel copy = *job, *const p = &copy;
    ivec which, mine;
    for (int j = 0; j < LANES; j++) {
        which[j] = (int32_t)(j / p->groups);
        mine[j] = j % p->groups == p->group ? -1 : 0;
    }
    for (int64_t i = 0; i < p->k;) {
        const struct qni_groups_place *const place = &p->places[i];
        const int32_t *const at = (const int32_t *)(const void *)(p->codes + place->bytes);
        const ivec words = load_int(at + v * LANES);
        const bool is_quad =
            i + 3 < p->k && place[3].bytes == place->bytes && place[3].shift == place->shift + 24;
        const bool is_even = is_quad && p->scale != NULL && place[1].at == place->at + 1 &&
                             place[2].at == place->at + 2 && place[3].at == place->at + 3;
        if (plain && !shared && is_even) {
            make_quad(p, place, v, words >> place->shift);
        } else if (is_quad) {
            QNI_UNROLL
            for (int j = 0; j < 4; j++)
                make_weights(p, place + j, v, which, mine, words >> (place->shift + 8 * j), plain,
                             shared);
        } else {
            make_weights(p, place, v, which, mine, words >> place->shift, plain, shared);
        }
        i += is_quad ? 4 : 1;
    }
}

static void panel_of(const struct qni_groups_panel *p)
{
    const bool plain = p->table == NULL && p->offset == NULL && !p->has_prescale;
    for (int64_t v = 0; v < p->vectors; v++)
        if (plain && p->groups == 1)
            make_vector(p, v, true, false);
        else if (plain)
            make_vector(p, v, true, true);
        else
            make_vector(p, v, false, p->groups > 1);
}

#undef LANES
#undef PAIR
#undef APART
#undef MADD
#undef FMA
#undef HAS_FMA
#undef SMALLER
#undef LARGER
#undef LARGER_INT
#undef SHUFFLE
#undef REPEAT
#undef TILE
#undef WIDEN_F16
#undef EACH_TURN
#undef MOST
#undef LARGEST
#undef TOTAL
#undef SUMS
#undef ENCODE
#undef TURN
