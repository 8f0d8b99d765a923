/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a product before it is stored: scales, bias, residual, activation, clamp,
 * requantization. Once in double with the C library's functions and an error carried along, once in
 * the f32 steps of docs/numerics.md with the polynomials of base/exact.c, which are part of the
 * definition. */
#include <math.h>

#include "../base/exact.h"
#include "../quant/op.h"
#include "ref.h"

/* The operands of one output, 0 or 1 where there is none. */
struct operands {
    bool row, col, bias, residual;
    double row_scale, col_scale, bias_value, residual_value;
};

/* [n], or [n_experts, n]. */
static int64_t by_output(const struct qni_ref_op *op, const qn_tensor *t, int64_t i, int64_t j)
{
    return t->rank == 2 ? qni_ref_expert(op, i) * t->stride[0] + j * t->stride[1]
                        : j * t->stride[0];
}

static struct operands operands_of(const struct qni_ref_op *op, int64_t i, int64_t j)
{
    const qn_epilogue *e = &op->epilogue;
    struct operands o = {
        .row = e->row_scale.rank != 0,
        .col = e->col_scale.rank != 0,
        .bias = e->bias.rank != 0 && e->bias.dtype != QN_I32, /* i32: already among the integers */
        .residual = e->residual.rank != 0,
    };
    if (o.row)
        o.row_scale = qni_ref_get(e->row_scale.data, QN_F32, i * e->row_scale.stride[0]);
    if (o.col)
        o.col_scale = qni_ref_get(e->col_scale.data, QN_F32, by_output(op, &e->col_scale, i, j));
    if (o.bias)
        o.bias_value = qni_ref_get(e->bias.data, e->bias.dtype, by_output(op, &e->bias, i, j));
    if (o.residual)
        o.residual_value =
            qni_ref_get(e->residual.data, e->residual.dtype, qni_ref_at(op, &e->residual, i, j));
    if (o.residual && (e->residual.dtype == QN_I8 || e->residual.dtype == QN_U8))
        o.residual_value = (double)(op->more.residual_scale *
                                    ((float)o.residual_value - (float)op->more.residual_zero));
    return o;
}

/* --------------------------------------------------------------------------------------- double */

/* Largest slopes: gelu 1.129, gelu_tanh 1.129, silu 1.0998. The polynomials add an error relative
 * to v. */
static double hard(double v, double slope, double shift)
{
    const double y = slope * v + shift;
    return y < 0.0 ? 0.0 : y > 1.0 ? 1.0 : y;
}

/* Largest slopes: sigmoid 1/4, tanh 1, hardswish 3/2. */
static double activate_more(const struct qni_ref_op *op, double v, double *error)
{
    const double slope = op->more.hard_slope, leaky = op->more.leaky_slope;
    double y = v, steepest = 1.0, size = 1.0;
    switch (op->epilogue.act) {
    case QN_ACT_SIGMOID:
        y = 1.0 / (1.0 + exp(-v));
        break;
    case QN_ACT_TANH:
        y = tanh(v);
        break;
    case QN_ACT_HARDSWISH:
        y = v * hard(v, 1.0 / 6.0, 0.5);
        steepest = 1.5;
        size = fabs(v);
        break;
    case QN_ACT_HARDSIGMOID:
        y = hard(v, slope, op->more.hard_shift);
        steepest = fabs(slope);
        size = fabs(slope * v) + fabs((double)op->more.hard_shift) + 1.0;
        break;
    case QN_ACT_LEAKY_RELU:
        y = v < 0.0 ? leaky * v : v;
        steepest = fmax(1.0, fabs(leaky));
        size = fabs(y);
        break;
    default:
        return y;
    }
    *error = steepest * *error + size * 0x1p-20 + 0x1p-149;
    return y;
}

static double activate(const struct qni_ref_op *op, double v, double *error)
{
    const qn_act act = op->epilogue.act;
    double y = v;
    switch (act) {
    case QN_ACT_RELU:
        y = v > 0.0 ? v : v <= 0.0 ? 0.0 : v;
        break;
    case QN_ACT_RELU6:
        y = v > 6.0 ? 6.0 : v > 0.0 ? v : v <= 0.0 ? 0.0 : v;
        break;
    case QN_ACT_GELU:
        y = 0.5 * v * (1.0 + erf(v * 0.70710678118654752440));
        break;
    case QN_ACT_GELU_TANH:
        y = 0.5 * v * (1.0 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
        break;
    case QN_ACT_SILU:
        y = v / (1.0 + exp(-v));
        break;
    default:
        return activate_more(op, v, error);
    }
    if (act != QN_ACT_RELU && act != QN_ACT_RELU6)
        *error = 1.13 * *error + fabs(v) * 0x1p-20 + 0x1p-149;
    return y;
}

/* One rounded step whose result is y. */
static void step(double *error, double y)
{
    *error += fabs(y) * 0x1p-24 + 0x1p-149;
}

double qni_ref_epilogue(const struct qni_ref_op *op, int64_t i, int64_t j, double v, double *error)
{
    const qn_epilogue *e = &op->epilogue;
    const struct operands o = operands_of(op, i, j);
    if (o.row) {
        v *= o.row_scale;
        *error *= fabs(o.row_scale);
        step(error, v);
    }
    if (o.col) {
        v *= o.col_scale;
        *error *= fabs(o.col_scale);
        step(error, v);
    }
    if (o.bias) {
        v += o.bias_value;
        step(error, v);
    }
    if (o.residual && !e->residual_after) {
        v += o.residual_value;
        step(error, v);
    }
    v = activate(op, v, error);
    v = v < (double)e->clamp_lo   ? (double)e->clamp_lo
        : v > (double)e->clamp_hi ? (double)e->clamp_hi
                                  : v;
    if (o.residual && e->residual_after) {
        v += o.residual_value;
        step(error, v);
    }
    return v;
}

/* ----------------------------------------------------------------------------------- f32, EXACT */

static float hard_f32(float v, float slope, float shift)
{
    const float y = v * slope + shift;
    return y > 1.0f ? 1.0f : y < 0.0f ? 0.0f : y;
}

static float activate_f32(const struct qni_ref_op *op, float v)
{
    switch (op->epilogue.act) {
    case QN_ACT_RELU:
        return v > 0.0f ? v : isnan(v) ? v : 0.0f;
    case QN_ACT_RELU6:
        return v > 6.0f ? 6.0f : v > 0.0f ? v : isnan(v) ? v : 0.0f;
    case QN_ACT_GELU:
        return 0.5f * v * (1.0f + qni_erff(v * 0x1.6a09e6p-1f));
    case QN_ACT_GELU_TANH:
        return 0.5f * v *
               (1.0f + qni_tanhf(v * 0x1.988454p-1f * fmaf(0x1.6e4e26p-5f, v * v, 1.0f)));
    case QN_ACT_SILU:
        return v / (1.0f + qni_expf(-v));
    case QN_ACT_SIGMOID:
        return 1.0f / (1.0f + qni_expf(-v));
    case QN_ACT_TANH:
        return qni_tanhf(v);
    case QN_ACT_HARDSWISH:
        return v * hard_f32(v, 1.0f / 6.0f, 0.5f);
    case QN_ACT_HARDSIGMOID:
        return hard_f32(v, op->more.hard_slope, op->more.hard_shift);
    case QN_ACT_LEAKY_RELU:
        return v < 0.0f ? v * op->more.leaky_slope : v;
    default:
        return v;
    }
}

float qni_ref_epilogue_f32(const struct qni_ref_op *op, int64_t i, int64_t j, float v)
{
    const qn_epilogue *e = &op->epilogue;
    const struct operands o = operands_of(op, i, j);
    if (o.row)
        v *= (float)o.row_scale;
    if (o.col)
        v *= (float)o.col_scale;
    if (o.bias)
        v += (float)o.bias_value;
    if (o.residual && !e->residual_after)
        v += (float)o.residual_value;
    v = activate_f32(op, v);
    v = v < e->clamp_lo ? e->clamp_lo : v > e->clamp_hi ? e->clamp_hi : v;
    if (o.residual && e->residual_after)
        v += (float)o.residual_value;
    return v;
}

static uint32_t requantize(const qn_epilogue *e, qn_dtype dtype, float v)
{
    const float lo = dtype == QN_U8 ? 0.0f : -128.0f, hi = dtype == QN_U8 ? 255.0f : 127.0f;
    const float inv = 1.0f / e->y_scale;
    float r = v * inv;
    if (isnan(r))
        return (uint32_t)e->y_zero & 0xffu;
    r = r < -0x1p21f ? -0x1p21f : r > 0x1p21f ? 0x1p21f : r;
    r = rintf(r) + (float)e->y_zero;
    r = r < lo ? lo : r > hi ? hi : r;
    return (uint32_t)(int32_t)r & 0xffu;
}

static uint32_t e4m3_bits(float v)
{
    const double value = qni_ref_e4m3(v, true);
    for (uint32_t c = 0; c < 256 && !isnan(value); c++) {
        const uint8_t code = (uint8_t)c;
        if (qni_ref_get(&code, QN_E4M3, 0) == value && (c >= 128) == (signbit(value) != 0))
            return c;
    }
    return 0x7f;
}

uint32_t qni_ref_epilogue_bits(const struct qni_ref_op *op, int64_t i, int64_t j, float v)
{
    v = qni_ref_epilogue_f32(op, i, j, v);
    switch (op->y.dtype) {
    case QN_F16:
        return qni_f16_from_f32(v);
    case QN_BF16:
        return qni_bf16_from_f32(v);
    case QN_E4M3:
        return e4m3_bits(v * (1.0f / op->epilogue.y_scale));
    case QN_I8:
    case QN_U8:
        return requantize(&op->epilogue, op->y.dtype, v);
    default:
        return qni_bits_of(v);
    }
}

/* ----------------------------------------------------------------------------------- comparison */

bool qni_ref_within(qn_dtype dtype, uint32_t bits, double y, double error)
{
    const double got = qni_ref_get(&bits, dtype, 0);
    if (dtype == QN_E4M3 && isfinite(y) && isfinite(error)) {
        const double near = fmax(fmin(y, 448.0), -448.0); /* 4 digits, or units of 2^-9 */
        return fabs(got - near) <= error + (fabs(near) + error) * 0x1p-4 + 0x1p-10;
    }
    if (isnan(error) || isnan(y))
        return isinf(error) ? !isfinite(got) : isnan(got);
    if (isinf(error))
        return !isfinite(got);
    /* One rounding to the type of y: 2^-p for p significant bits, or half of its smallest number.
     */
    const double half_unit = dtype == QN_F16 ? 0x1p-11 : dtype == QN_BF16 ? 0x1p-8 : 0x1p-24;
    const double tiny = dtype == QN_F16 ? 0x1p-25 : dtype == QN_BF16 ? 0x1p-134 : 0x1p-150;
    const double largest = dtype == QN_F16    ? 65504.0
                           : dtype == QN_BF16 ? 0x1.fep127
                                              : 0x1.fffffep127;
    const double allowed = error + (fabs(y) + error) * half_unit + tiny;
    if (isinf(got)) /* only where a value within the bound rounds to infinity */
        return (got > 0 ? y : -y) + allowed > largest;
    return fabs(got - y) <= allowed;
}

/* A bound of a code, as a code: rounded to the side that it bounds. */
static double code_of(const struct qni_ref_op *op, double v, double slack, bool is_lower)
{
    const double least = op->y.dtype == QN_U8 ? 0.0 : -128.0;
    const double quotient = v / (double)op->epilogue.y_scale;
    const double loose = slack + fabs(quotient) * 0x1p-22 + 0x1p-22;
    const double whole = is_lower ? ceil(quotient - loose - 0.5) : floor(quotient + loose + 0.5);
    return fmin(fmax(whole + (double)op->epilogue.y_zero, least), least + 255.0);
}

bool qni_ref_within_codes(const struct qni_ref_op *op, uint32_t bits, double y, double error)
{
    const double got = qni_ref_get(&bits, op->y.dtype, 0);
    const double slack = error / (double)op->epilogue.y_scale;
    if (isnan(error) || isnan(y))
        return got == (double)op->epilogue.y_zero;
    if (isinf(error))
        return true;
    return got >= code_of(op, y, slack, true) && got <= code_of(op, y, slack, false);
}
