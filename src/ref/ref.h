/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: every operation as plain loops, obviously right, never optimised, never shipped.
 *
 * Each operation exists twice. In double, from dequantized weights and real activations: what exact
 * arithmetic gives, with the largest error that docs/numerics.md allows beside it. And, for the
 * int8 strategies, in the f32 steps that docs/numerics.md writes, in the written order: the bits
 * that every kernel must give. Nothing here calls src/cpu or any unpacking of src/quant; canonical
 * codes are read directly.
 *
 * An operation is seen as a product P[m, n] of rows. Row i of a convolution is the output pixel
 * i = (batch * oh + oy) * ow + ox; the elements of y that belong to P[i, j] are found by
 * qni_ref_at(). */
#ifndef QNI_REF_REF_H
#define QNI_REF_REF_H

#include <quern/ops.h>

#include "../quant/canonical.h"

struct qni_ref_op {
    int32_t kind; /* QNI_MATMUL, ... of quant/op.h */
    qn_strategy strategy;
    const struct qn_weight *const *w; /* [n_w], canonical; borrowed */
    int32_t n_w;
    int64_t m, n, k; /* rows and columns of P; k of one convolution group */
    qn_tensor x, y;
    qn_tensor offsets, ids, x_rows; /* grouped */
    qn_epilogue epilogue;
    qn_epilogue_more more;
    qn_quant_args quant;
    qn_tensor x_scales;      /* fp8 strategies, given codes */
    int64_t x_block;         /* int8-block, as qn_packed_info tells it */
    bool no_subnormals;      /* float: its instructions take them for zero (reads bf16) */
    bool short_sums;         /* fp8: tensor cores of few bits add 128 positions */
    qn_dtype rounds_weights; /* dense: to f16 or bf16, once; 0: not */
    bool rounds_in_place;    /* dense: without the power of two that GPUs have for a tensor */
    qn_image image;          /* convolutions, from here on */
    int32_t stride[2], dilation[2], pad[2]; /* of pad only top and left: the rest is oh, ow */
    int64_t batch, ih, iw, oh, ow;
    int64_t kh, kw, ci, co, groups; /* ci, co: of one group */
};

/* From the arguments of the public calls; args->w is not looked at. */
void qni_ref_matmul(const qn_matmul_args *args, const struct qn_weight *const *w,
                    struct qni_ref_op *op);
void qni_ref_grouped(const qn_grouped_args *args, const struct qn_weight *const *w,
                     struct qni_ref_op *op);
void qni_ref_conv2d(const qn_conv_args *args, const struct qn_weight *const *w,
                    struct qni_ref_op *op);
void qni_ref_conv_transpose2d(const qn_conv_args *args, const struct qn_weight *const *w,
                              struct qni_ref_op *op);

/* Element of y (or of a residual of that shape) that P[i, j] becomes, in elements from its first.
 */
int64_t qni_ref_at(const struct qni_ref_op *op, const qn_tensor *tensor, int64_t i, int64_t j);
/* The expert of row i, or -1 for a row that is left untouched; 0 for every other operation. */
int64_t qni_ref_expert(const struct qni_ref_op *op, int64_t i);

/* The e4m3 next to v, ties to even. Beyond 448: that; an infinity only if it saturates, else
 * NaN. */
double qni_ref_e4m3(float v, bool saturates);
/* n values, f32, become the e4m3 numbers times one scale that the fp8 strategies make of them.
 * Returns the scale. */
float qni_ref_quantize_e4m3(double *values, int64_t n);
/* Row `row` of x, [k], as it is multiplied: codes less their zero point times the scale, and what
 * the fp8 strategies make of floats. */
void qni_ref_row(const struct qni_ref_op *op, int64_t row, double *values);

/* Any element type as double: element number `at` from data. */
double qni_ref_get(const void *data, qn_dtype dtype, int64_t at);
/* The bits of that element, in the low bits. */
uint32_t qni_ref_bits(const void *data, qn_dtype dtype, int64_t at);
bool qni_ref_is_nan(uint32_t bits, qn_dtype dtype);

/* ------------------------------------------------------------------------------------- weights */

/* value(code) of position p of a row. */
double qni_ref_value(const struct qn_weight *w, int64_t row, int64_t p);
/* Index into scale, zero and offset for position p of a row. */
int64_t qni_ref_group(const struct qn_weight *w, int64_t row, int64_t p);
/* What products add to scale x signed value, as f32: a minimum is rounded to it once. g: of
 * qni_ref_group(). */
float qni_ref_group_offset(const struct qn_weight *w, int64_t g);
/* W[n, k] by column, prescale multiplied in if asked; sizes (or NULL): |scale value| + |offset|,
 * the magnitude that the bound of the float strategies is made of. */
void qni_ref_dequantize(const struct qn_weight *w, bool apply_prescale, double *values,
                        double *sizes);

/* Gives weights as a dense product gets them: the f32 that qn_weight_dequantize() gives, prescale
 * and all, times 2^e rounded to f16 or bf16, and times 2^-e again. in_place: e is 0, but what is
 * beyond the type is rounded to as many digits. */
void qni_ref_round_weights(const struct qn_weight *w, qn_dtype dtype, bool in_place, double *values,
                           double *sizes);

/* Packed order and segments (docs/numerics.md): position order[q] of the codes comes q-th; segment
 * s is [start[s], start[s + 1]) of these. length: positions of a full segment. */
struct qni_ref_segments {
    int64_t n, *order, *start;
};
qn_status qni_ref_segments_make(const struct qn_weight *w, int64_t length,
                                struct qni_ref_segments *segments);
void qni_ref_segments_free(struct qni_ref_segments *segments);
/* The length for a strategy. */
int64_t qni_ref_segment_length(qn_strategy strategy, int64_t x_block);

/* --------------------------------------------------------------------------- activations, EXACT */

/* n values as one segment: symmetric gives offset 0. sum is that of the codes. */
struct qni_ref_segment {
    float scale, offset, total;
    int32_t sum;
};
struct qni_ref_segment qni_ref_quantize(const float *x, int64_t n, bool symmetric, int32_t *codes);
/* qn_quantize_rows(): writes the tensors of args. */
qn_status qni_ref_quantize_rows(const qn_quantize_rows_args *args);

/* ------------------------------------------------------------------------------------- products */

/* P[m, n] in exact arithmetic (double) on real activations, and beside it the error that a float
 * strategy may have. Where the row of x holds an infinity the bound is infinite, where it holds a
 * NaN the bound is NaN: what qni_ref_within() makes of that is the written policy. Untouched rows
 * of a grouped product are 0. */
qn_status qni_ref_product(const struct qni_ref_op *op, double *p, double *bound);

/* The int8 strategies, before the epilogue: v[m, n] by the f32 steps; or, if y is i32, the raw sums
 * d[m, n]. slack[m, n] (or NULL): how far v may be from exact arithmetic on unquantized
 * activations; infinite where non-finite activations void the question. QN_E_UNSUPPORTED: the
 * weight's values are no integers, also not when doubled. */
qn_status qni_ref_exact(const struct qni_ref_op *op, float *v, int32_t *d, double *slack);

/* ------------------------------------------------------------------------------------- epilogue */

/* v = P[i, j] with at most `error` of error: the value before the rounding to the type of y, in
 * double, and the largest error of an f32 epilogue on top of it. */
double qni_ref_epilogue(const struct qni_ref_op *op, int64_t i, int64_t j, double v, double *error);
/* The f32 steps, and the bits of y. */
float qni_ref_epilogue_f32(const struct qni_ref_op *op, int64_t i, int64_t j, float v);
uint32_t qni_ref_epilogue_bits(const struct qni_ref_op *op, int64_t i, int64_t j, float v);
/* Would a correct float kernel be allowed to store these bits? y, error: as from
 * qni_ref_epilogue(). */
bool qni_ref_within(qn_dtype dtype, uint32_t bits, double y, double error);
/* Would a correct kernel be allowed to store these codes (i8 and u8 outputs)? Those of what lies
 * within the error are. */
bool qni_ref_within_codes(const struct qni_ref_op *op, uint32_t bits, double y, double error);

#endif
