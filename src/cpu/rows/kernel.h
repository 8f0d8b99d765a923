/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the row functions: everything that is done to activations before the matmul
 * kernels and to their results after. One struct of functions per instruction set, all made from
 * one body (simd/rows_body.h), and all EXACT: docs/numerics.md fixes every bit.
 *
 *     x, any float type --widen--> f32 --(driver: packed order)--> quantize_row, quantize_block,
 *                                                                  narrow
 *     tile of f32 or i32 --scale--> --finish--> y, any type
 *
 * No function reads or writes outside of the arrays it is given; none allocates or keeps state. */
#ifndef QNI_CPU_ROWS_KERNEL_H
#define QNI_CPU_ROWS_KERNEL_H

#include <quern/ops.h>

#include "../../base/exact.h"
#include "../../quant/cut.h"

/* Facts of the segments of one row, [n_segments] each. */
struct qni_facts {
    int32_t *sum;
    float *scale, *offset, *total;
};

/* The extremes of some floats: bits of the largest magnitude (more than those of the largest finite
 * number if one is not finite), and the extremes as integers that are ordered as the floats are. */
struct qni_range {
    int32_t amax, lo, hi;
};

/* What turns x into codes and back. inv == 0: all codes are 0. */
struct qni_scaling {
    float scale, offset, inv, half_lo;
};

/* What happens to one row of a tile first: products and the bias. Steps that are not asked for are
 * NULL, or 1. */
struct qni_scale_step {
    int64_t n;
    int32_t from_i32;      /* the row holds int32 sums */
    const int32_t *w_zero; /* times x_sum is taken away from them */
    int32_t x_sum;
    const int32_t *bias_i32; /* added to them */
    const float *w_scale;    /* from_i32: v = fl(w_scale * fl(sum)); NULL: y is i32 */
    float x_scale, row_scale;
    const float *col_scale, *bias;
};

/* What happens to a line (a row of a tile, or a column of it) last. Strides in elements. */
struct qni_finish_step {
    int64_t n;
    const void *residual; /* NULL: none */
    qn_dtype residual_dtype;
    int32_t residual_after;
    int64_t residual_stride;
    float residual_scale; /* of i8 and u8 */
    int32_t residual_zero;
    qn_act act;
    float leaky_slope, hard_slope, hard_shift;
    const void *factor; /* n floats next to each other; NULL: none */
    qn_dtype factor_dtype;
    int32_t has_clamp;
    float clamp_lo, clamp_hi;
    void *y;
    qn_dtype y_dtype;
    int64_t y_stride;
    float y_inv; /* i8, u8: fl(1 / y_scale) */
    int32_t y_zero;
};

/* Rows of floats to y, f32, next to each other, at once: what scale() and finish() do of each.
 * Distances in elements. */
struct qni_float_rows {
    int64_t rows, n, ldv, ldy, ldr;
    const float *v, *x_scale;      /* x_scale: [rows] or NULL */
    const float *col_scale, *bias; /* [n] or NULL */
    const float *residual;         /* or NULL */
    int32_t residual_after;
    qn_act act;               /* NONE, RELU or HARDSWISH */
    float clamp_lo, clamp_hi; /* infinite: none */
    float *y;                 /* may be v itself */
};

struct qni_rows {
    const char *name;
    uint64_t needs; /* QN_ISA_ bits */
    /* dst = src as f32; src is f32, f16 or bf16. times (may be NULL): dst = fl(src * times). */
    void (*widen)(float *dst, const void *src, qn_dtype dtype, const float *times, int64_t n);
    /* dst = i8 or u8 codes less their zero point. */
    void (*widen_codes)(float *dst, const void *src, qn_dtype dtype, int32_t zero, int64_t n);
    void (*narrow_bf16)(uint16_t *dst, const float *src, int64_t n);
    /* dst = e4m3 of fl(src * times): nearest, ties to even; beyond 448 that; NaN is 0x7f. */
    void (*to_e4m3)(uint8_t *dst, const float *src, float times, int64_t n);
    /* dst = fl(value of src * times). */
    void (*from_e4m3)(float *dst, const uint8_t *src, float times, int64_t n);
    /* x: units * 32 floats, padding 0. codes: as many. */
    void (*quantize_row)(const float *x, const struct qni_cut *cut, int8_t *codes, int32_t *sum,
                         float *scale);
    void (*quantize_block)(const float *x, const struct qni_cut *cut, int32_t symmetric,
                           int8_t *codes, const struct qni_facts *facts);
    /* Sums of given codes, padding 0, by segments. */
    void (*sum)(const int8_t *codes, const struct qni_cut *cut, int32_t *sum);
    /* Sums of f32 over each group, in one order whatever the instance. */
    void (*total)(const float *x, const struct qni_cut *cut, float *total);
    void (*total_bf16)(const uint16_t *x, const struct qni_cut *cut, float *total);
    /* x as planes of bf16 that add up to it: each is the number next to what the ones before left;
     * beyond the largest it is cut, so that no plane overflows. 32 positions of a plane lie
     * together, of every four in the order 0 2 1 3; `step` bytes on is the next plane, and after
     * the last one the next 32. x may be changed. */
    void (*split)(uint8_t *dst, size_t step, int32_t planes, float *x, int64_t units);
    /* The same of one plane that is there already. */
    void (*order_bf16)(uint8_t *dst, size_t step, const uint16_t *x, int64_t units);
    /* The parts of the quantizer, for rows that come in pieces: extend *range by n floats; encode n
     * floats and return the sum of their codes. */
    void (*range)(const float *x, int64_t n, struct qni_range *range);
    int32_t (*encode)(const float *x, int64_t n, const struct qni_scaling *s, int32_t symmetric,
                      int8_t *codes);
    /* Codes of n floats, i8 or u8: saturate(rint(fl(x / scale)) + zero), NaN as 0; their sum. */
    int32_t (*encode_linear)(const float *x, int64_t n, float scale, int32_t zero, qn_dtype dtype,
                             uint8_t *codes);
    /* v = fl(v + fl(x * times)) */
    void (*add_scaled)(float *v, const float *x, float times, int64_t n);
    void (*scale)(float *v, const struct qni_scale_step *step);
    /* y = v * times: all there is to do for most products. y may be v. As finish() does, it stores
     * one NaN for all (base/half.h). */
    void (*scale_to)(float *y, const float *v, float times, int64_t n);
    /* The same past the caches, where the instance can: y aligned to 64 bytes, n a multiple of 16.
     * fence() before others are told that y is there. */
    void (*scale_past)(float *y, const float *v, float times, int64_t n);
    void (*fence)(void);
    /* v is changed. y may be v itself (f32, stride 1). */
    void (*finish)(float *v, const struct qni_finish_step *step);
    void (*float_rows)(const struct qni_float_rows *rows);
    /* dst[i * ld + c * element] = src[c * plane + i * element]; i < pixels, c < channels; element:
     * 1, 2 or 4 bytes. */
    void (*turn)(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane, int64_t pixels,
                 int64_t channels, size_t element);
    /* Is there no infinity and no NaN in rows of n floats, ld apart? */
    bool (*is_finite)(const float *v, int64_t rows, int64_t n, int64_t ld);
};

/* What a step takes from the struct of the same name. */
static inline void qni_finish_add(struct qni_finish_step *step, const qn_epilogue_more *from)
{
    step->residual_scale = from->residual_scale;
    step->residual_zero = from->residual_zero;
    step->leaky_slope = from->leaky_slope;
    step->hard_slope = from->hard_slope;
    step->hard_shift = from->hard_shift;
}

#define QNI_ROWS(isa, needs) extern const struct qni_rows qni_rows_##isa;
#include "isa.inc"
#undef QNI_ROWS

/* ---- what every instance shares: docs/numerics.md, "Activations" ----------------------------- */

static inline struct qni_range qni_range_empty(void)
{
    const struct qni_range r = {0, INT32_MAX, INT32_MIN};
    return r;
}

/* Order-preserving: negative floats have their magnitude's bits turned round. Its own inverse. */
static inline int32_t qni_ordered(int32_t bits)
{
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

/* A zero is +0 whatever its sign, so that the result does not depend on which zero came first. */
static inline float qni_ordered_value(int32_t ordered)
{
    return qni_float_of((uint32_t)qni_ordered(ordered)) + 0.0f;
}

static inline struct qni_scaling qni_scaling_of(const struct qni_range *r, int32_t symmetric)
{
    struct qni_scaling s = {0.0f, 0.0f, 0.0f, 0.0f};
    if (r->amax >= 0x7f800000) {
        s.scale = qni_float_of(0x7fc00000u);
        return s;
    }
    if (symmetric) {
        const float amax = qni_float_of((uint32_t)r->amax);
        if (amax >= 0x1p-120f) {
            s.scale = amax / 127.0f;
            s.inv = 127.0f / amax;
        }
        return s;
    }
    const float lo = r->lo > r->hi ? 0.0f : qni_ordered_value(r->lo);
    const float hi = r->lo > r->hi ? 0.0f : qni_ordered_value(r->hi);
    s.half_lo = lo / 2.0f;
    const float h = hi / 2.0f - s.half_lo;
    s.offset = lo;
    if (h >= 0x1p-120f) {
        s.scale = h / 127.5f;
        s.inv = 255.0f / h;
        s.offset = qni_fmaf(128.0f, s.scale, lo);
    }
    return s;
}

/* Scale and integer zero point of ONNX's DynamicQuantizeLinear: the range takes 0 in. */
struct qni_linear {
    float scale;
    int32_t zero;
};
static inline struct qni_linear qni_linear_of(const struct qni_range *r, qn_dtype dtype)
{
    const float least = dtype == QN_I8 ? -128.0f : 0.0f, most = least + 255.0f;
    struct qni_linear l = {1.0f, 0};
    if (r->amax >= 0x7f800000) {
        l.scale = qni_float_of(0x7fc00000u);
        return l;
    }
    const float low = r->lo > r->hi ? 0.0f : qni_ordered_value(r->lo);
    const float high = r->lo > r->hi ? 0.0f : qni_ordered_value(r->hi);
    const float lo = low < 0.0f ? low : 0.0f, hi = high > 0.0f ? high : 0.0f;
    const float width = hi - lo;
    l.scale = width <= 0x1.fffffep127f ? width / 255.0f : hi / 255.0f - lo / 255.0f;
    if (l.scale == 0.0f)
        l.scale = 1.0f;
    float zero = least - lo / l.scale;
    zero = zero < least ? least : zero;
    zero = zero > most ? most : zero;
    l.zero = (int32_t)qni_rintf(zero);
    return l;
}

#endif
