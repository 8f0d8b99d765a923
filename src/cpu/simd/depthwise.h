/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise kernels for vectors of any width: an include-template. Contract: conv/kernel.h.
 *
 * Parameters, defined by the including file and undefined here:
 *     LANES            floats in a vector: 4, 8 or 16
 *     MR               vectors of 16 lanes kept in registers at a time; MR * 16 / LANES sums
 *                      hide the latency of the multiply-add
 *     MADD(a, b, c)    a * b + c, rounded once or twice
 *     FMA(a, b, c)     a * b + c, rounded once
 * Gives the functions float_tile, given_tile, row_tile and block_tile. The bits of the last
 * three do not depend on the parameters: their sums are integers, the rest is element by element
 * in the order of docs/numerics.md.
 *
 * Bound: the inputs come from the first cache; 2 loads and 1 multiply-add a tap and vector (MR
 * share the weight's load). */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/exact.h"

typedef float vec QNI_VECTOR(4 * LANES);
typedef int32_t ivec QNI_VECTOR(4 * LANES);

QNI_TEMPLATE vec load(const float *at)
{
    vec v;
    memcpy(&v, at, sizeof v);
    return v;
}
QNI_TEMPLATE void store(float *at, vec v)
{
    memcpy(at, &v, sizeof v);
}
QNI_TEMPLATE vec splat(float x)
{
    return x - (vec){0};
}
QNI_TEMPLATE vec choose(ivec mask, vec yes, vec no)
{
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}
QNI_TEMPLATE vec smaller(vec a, vec b)
{
    return choose(a < b, a, b);
}
QNI_TEMPLATE vec larger(vec a, vec b)
{
    return choose(a > b, a, b);
}
/* All bits where x is an infinity or a NaN. */
QNI_TEMPLATE ivec not_finite(vec x)
{
    return ((ivec)x & 0x7f800000) == 0x7f800000;
}
/* qni_rintf() */
QNI_TEMPLATE vec nearest(vec x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}
QNI_TEMPLATE vec input(const struct qni_depthwise_tile *t, int64_t tap, int64_t at)
{
    const vec x = t->in[tap] != NULL ? load(t->in[tap] + at) : splat(0.0f);
    return t->prescale != NULL ? x * t->prescale[tap] : x;
}

/* sum[r] += inputs of vector r times weights, taps [from, to), lanes from `lane` on. at: element
 * of vector 0. */
QNI_TEMPLATE void add_products(const struct qni_depthwise_tile *t, int64_t from, int64_t to,
                               int64_t at, int64_t lane, const int rows, vec *sum)
{
    for (int64_t tap = from; tap < to; tap++) {
        const vec w = load(t->w + 16 * tap + lane);
        const float *in = t->in[tap] + at + lane;
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] = MADD(load(in + r * t->advance), w, sum[r]);
    }
}

QNI_TEMPLATE void float_rows(const struct qni_depthwise_tile *t, int64_t v, const int rows)
{
    QNI_UNROLL
    for (int lane = 0; lane < 16; lane += LANES) {
        vec sum[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] = splat(0.0f);
        add_products(t, 0, t->n_taps, v * t->advance, lane, rows, sum);
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            store(t->c + t->ldc * (v + r) + lane, sum[r]);
    }
}

static void float_tile(const struct qni_depthwise_tile *t)
{
    int64_t v = 0;
    for (; v + MR <= t->vectors; v += MR)
        float_rows(t, v, MR);
    for (; v < t->vectors; v++)
        float_rows(t, v, 1);
}

/* acc = FMA(a, b, acc) where acc is still +0 if first: then one rounding of the product is the
 * same, and cheaper where there is no instruction. (A product of -0 must become +0.) */
QNI_TEMPLATE vec step(vec a, vec b, vec acc, bool first)
{
    return first ? a * b + splat(0.0f) : FMA(a, b, acc);
}

/* Exact sums of integers over a segment, as int32. Inputs are integers already. */
QNI_TEMPLATE void given_segment(const struct qni_depthwise_tile *t, int64_t s, int64_t v,
                                int64_t lane, const int rows, ivec *dot, ivec *sum)
{
    QNI_UNROLL
    for (int r = 0; r < rows; r++)
        dot[r] = sum[r] = (ivec){0};
    for (int64_t from = t->segments[s]; from < t->segments[s + 1]; from += QNI_EXACT_TAPS) {
        const int64_t left = t->segments[s + 1] - from;
        const int64_t to = from + (left < QNI_EXACT_TAPS ? left : QNI_EXACT_TAPS);
        vec part[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            part[r] = splat(0.0f);
        add_products(t, from, to, v * t->advance, lane, rows, part);
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            dot[r] += __builtin_convertvector(part[r], ivec);
        if (t->offset == NULL)
            continue;
        for (int64_t tap = from; tap < to; tap++)
            QNI_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] += __builtin_convertvector(load(t->in[tap] + (v + r) * t->advance + lane), ivec);
    }
}

QNI_TEMPLATE void given_rows(const struct qni_depthwise_tile *t, int64_t v, const int rows)
{
    QNI_UNROLL
    for (int lane = 0; lane < 16; lane += LANES) {
        vec acc[MR];
        ivec dot[MR], sum[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            acc[r] = splat(0.0f);
        for (int64_t s = 0; s < t->n_segments; s++) {
            given_segment(t, s, v, lane, rows, dot, sum);
            if (t->raw_i32) {
                QNI_UNROLL
                for (int r = 0; r < rows; r++)
                    acc[r] = (vec)((ivec)acc[r] + dot[r]);
                continue;
            }
            const vec scale = load(t->scale + 16 * s + lane);
            QNI_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r] = step(scale, __builtin_convertvector(dot[r], vec), acc[r], s == 0);
            if (t->offset == NULL)
                continue;
            const vec offset = load(t->offset + 16 * s + lane);
            QNI_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r] = FMA(offset, __builtin_convertvector(sum[r], vec), acc[r]);
        }
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            store(t->c + t->ldc * (v + r) + lane, acc[r]);
    }
}

static void given_tile(const struct qni_depthwise_tile *t)
{
    int64_t v = 0;
    for (; v + MR <= t->vectors; v += MR)
        given_rows(t, v, MR);
    for (; v < t->vectors; v++)
        given_rows(t, v, 1);
}

/* How a segment (or a whole patch) becomes codes: code = clamp(rint((x * before - low) * inv) -
 * minus). */
struct quantizer {
    vec scale, offset, low, inv;
    ivec bad;
};

QNI_TEMPLATE struct quantizer symmetric_quantizer(const struct qni_depthwise_tile *t, int64_t from,
                                                  int64_t to, int64_t at)
{
    vec amax = splat(0.0f);
    struct quantizer q = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f), (ivec){0}};
    for (int64_t tap = from; tap < to; tap++) {
        const vec x = input(t, tap, at);
        q.bad |= not_finite(x);
        amax = larger((vec)((ivec)x & 0x7fffffff), amax);
    }
    const ivec tiny = amax < 0x1p-120f;
    const vec safe = choose(tiny | q.bad, splat(1.0f), amax);
    q.scale = choose(tiny, splat(0.0f), safe / 127.0f);
    q.scale = choose(q.bad, splat(qni_float_of(0x7fc00000u)), q.scale);
    q.inv = choose(tiny, splat(0.0f), 127.0f / safe);
    return q;
}

QNI_TEMPLATE struct quantizer asymmetric_quantizer(const struct qni_depthwise_tile *t, int64_t from,
                                                   int64_t to, int64_t at)
{
    struct quantizer q = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f), (ivec){0}};
    vec lo = input(t, from, at), hi = lo;
    for (int64_t tap = from; tap < to; tap++) {
        const vec x = input(t, tap, at);
        q.bad |= not_finite(x);
        lo = smaller(x, lo);
        hi = larger(x, hi);
    }
    const vec h = choose(q.bad, splat(1.0f), hi * 0.5f - lo * 0.5f);
    const ivec tiny = h < 0x1p-120f;
    const vec safe = choose(tiny, splat(1.0f), h);
    q.scale = choose(tiny, splat(0.0f), safe / 127.5f);
    q.offset = choose(tiny, lo, FMA(splat(128.0f), q.scale, lo));
    q.scale = choose(q.bad, splat(qni_float_of(0x7fc00000u)), q.scale);
    q.offset = choose(q.bad, splat(0.0f), q.offset);
    q.low = lo * 0.5f;
    q.inv = choose(tiny, splat(0.0f), 255.0f / safe);
    q.bad |= tiny; /* codes are 0 in both cases */
    return q;
}

QNI_TEMPLATE vec code_of(const struct quantizer *q, vec x, const int symmetric)
{
    vec code;
    if (symmetric) {
        code = nearest(choose(q->bad, splat(0.0f), x * q->inv));
        return smaller(larger(code, splat(-127.0f)), splat(127.0f));
    }
    code = nearest(choose(q->bad, splat(0.0f), (x * 0.5f - q->low) * q->inv)) - 128.0f;
    code = smaller(larger(code, splat(-128.0f)), splat(127.0f));
    return choose(q->bad, splat(0.0f), code);
}

/* Exact sums over taps [first, last) of code * value and of the codes. */
QNI_TEMPLATE void coded_sums(const struct qni_depthwise_tile *t, const struct quantizer *q,
                             int64_t s, int64_t at, int64_t lane, const int symmetric, vec *dot,
                             vec *sum)
{
    ivec dots = {0}, sums = {0};
    for (int64_t from = t->segments[s]; from < t->segments[s + 1]; from += QNI_EXACT_TAPS) {
        const int64_t left = t->segments[s + 1] - from;
        const int64_t to = from + (left < QNI_EXACT_TAPS ? left : QNI_EXACT_TAPS);
        vec d = splat(0.0f), c = splat(0.0f);
        for (int64_t tap = from; tap < to; tap++) {
            const vec code = code_of(q, input(t, tap, at), symmetric);
            d = MADD(code, load(t->w + 16 * tap + lane), d);
            c += code;
        }
        dots += __builtin_convertvector(d, ivec);
        sums += __builtin_convertvector(c, ivec);
    }
    *dot = __builtin_convertvector(dots, vec);
    *sum = __builtin_convertvector(sums, vec);
}

static void row_tile(const struct qni_depthwise_tile *t)
{
    for (int64_t v = 0; v < t->vectors; v++)
        for (int64_t lane = 0; lane < 16; lane += LANES) {
            const int64_t at = v * t->advance + lane;
            const struct quantizer q = symmetric_quantizer(t, 0, t->n_taps, at);
            vec acc = splat(0.0f), dot, sum;
            for (int64_t s = 0; s < t->n_segments; s++) {
                coded_sums(t, &q, s, at, lane, 1, &dot, &sum);
                acc = step(load(t->scale + 16 * s + lane), dot, acc, s == 0);
                if (t->offset != NULL)
                    acc = FMA(load(t->offset + 16 * s + lane), sum, acc);
            }
            store(t->c + t->ldc * v + lane, acc * q.scale);
        }
}

QNI_TEMPLATE void block_vector(const struct qni_depthwise_tile *t, int64_t v, int64_t lane,
                               const int symmetric)
{
    const int64_t at = v * t->advance + lane;
    vec acc = splat(0.0f), dot, sum;
    for (int64_t s = 0; s < t->n_segments; s++) {
        const int64_t from = t->segments[s], to = t->segments[s + 1];
        const struct quantizer q = symmetric ? symmetric_quantizer(t, from, to, at)
                                             : asymmetric_quantizer(t, from, to, at);
        coded_sums(t, &q, s, at, lane, symmetric, &dot, &sum);
        const vec x =
            symmetric ? q.scale * dot : FMA(q.scale, dot, q.offset * load(t->sums + 16 * s + lane));
        acc = FMA(load(t->scale + 16 * s + lane), x, acc);
        if (t->offset != NULL) {
            const vec total = FMA(q.scale, sum, q.offset * (float)(to - from));
            acc = FMA(load(t->offset + 16 * s + lane), total, acc);
        }
    }
    store(t->c + t->ldc * v + lane, acc);
}

static void block_tile(const struct qni_depthwise_tile *t)
{
    for (int64_t v = 0; v < t->vectors; v++)
        for (int64_t lane = 0; lane < 16; lane += LANES)
            if (t->symmetric)
                block_vector(t, v, lane, 1);
            else
                block_vector(t, v, lane, 0);
}

#undef LANES
#undef MR
#undef MADD
#undef FMA
