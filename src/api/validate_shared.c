/* SPDX-License-Identifier: Apache-2.0 */
/* What every operation checks alike: types, given quantization, epilogue, data pointers and
 * overlap. */
#include <float.h>
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "check.h"
#include "validate.h"

static bool is_finite(float f)
{
    return f - f == 0.0f;
}

static bool is_byte(qn_dtype dtype)
{
    return dtype == QN_I8 || dtype == QN_U8;
}

/* A zero point is a value of the type it belongs to. */
static qn_status check_zero(int32_t zero, qn_dtype dtype, const char *name, qn_error *err)
{
    const int32_t lo = dtype == QN_I8 ? -128 : 0, hi = dtype == QN_I8 ? 127 : 255;
    if (zero < lo || zero > hi)
        return qni_fail(err, QN_E_VALUE, "%s is %d: for %s it lies in %d to %d", name, zero,
                        qn_dtype_name(dtype), lo, hi);
    return QN_OK;
}

static qn_status check_scale(float scale, const char *name, qn_error *err)
{
    if (scale == 0.0f)
        return qni_fail(err, QN_E_VALUE, "%s is 0, not positive: the struct's _init() sets 1",
                        name);
    if (!is_finite(scale) || !(scale > 0.0f))
        return qni_fail(err, QN_E_VALUE, "%s must be positive and finite", name);
    return QN_OK;
}

/* int32 results and biases are in units of one scale: the weights are integers of one group without
 * an offset; zero points are integers in the same unit. (E2M1 is multiplied in halves.) */
static qn_status check_one_unit(const struct qni_op *op, const char *what, qn_error *err)
{
    const qn_format *format = &op->w[0]->head->format;
    const bool has_zeros = format->shift == QN_SHIFT_ZERO;
    if (op->w[0]->head->n_groups > 1 || qni_has_float_shift(format) || format->code != QN_CODE_INT)
        return qni_fail(err, QN_E_DTYPE,
                        "%s of type i32 needs integer weights of one group an output (zero points "
                        "are no matter, offsets are)",
                        what);
    for (int32_t e = 0; has_zeros && e < op->n_w; e++)
        if (op->w[e]->head->zero_dtype != QN_I8)
            return qni_fail(err, QN_E_DTYPE,
                            "%s of type i32 needs zero points of 8 bits, and some of the weights' "
                            "are less than -128 or more than 127",
                            what);
    /* |x - x_zero| * |w - zero| * k, at most, is an int32: then so is every sum on the way. */
    const int64_t x_zero = qni_op_x_zero(op), half = (int64_t)1 << (format->bits - 1);
    const int64_t x = qni_max(127 - x_zero, x_zero + 128), w = has_zeros ? half + 127 : half;
    if (op->k > INT32_MAX / (x * w))
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "%s of type i32: int32 sums are exact up to k = %lld with these types and "
                        "this x_zero, and k is %lld",
                        what, (long long)(INT32_MAX / (x * w)), (long long)op->k);
    return QN_OK;
}

static qn_status check_static(const struct qni_op *op, qn_error *err)
{
    const struct qni_packed_head *head = op->w[0]->head;
    QNI_TRY(check_scale(op->quant.x_scale, "x_scale", err));
    QNI_TRY(check_zero(op->quant.x_zero, op->x.dtype, "x_zero", err));
    if (head->section[QNI_SECTION_PRESCALE].bytes != 0)
        return qni_fail(
            err, QN_E_UNSUPPORTED,
            "the weights ask for a prescale of x, which int8-static inputs cannot take any more");
    return op->y.dtype == QN_I32 ? check_one_unit(op, "y", err) : QN_OK;
}

/* Scales of x that are given belong to codes that are. */
static qn_status check_x_scales(const struct qni_op *op, qn_error *err)
{
    const bool wants = op->x.dtype == QN_E4M3 && op->strategy != QN_STRATEGY_FP8_STATIC;
    const int64_t shape[2] = {op->x.shape[0], qni_fp8_scales(op)};
    if (qni_is_none(&op->x_scales) == !wants)
        return wants ? qni_check_shape(&op->x_scales, "x_scales", shape, err) : QN_OK;
    if (!wants)
        return qni_fail(err, QN_E_ARGUMENT,
                        "x_scales belong to x of type e4m3 with fp8-row or fp8-block");
    return qni_fail(err, QN_E_ARGUMENT, "x of type e4m3 with %s needs x_scales",
                    qn_strategy_name(op->strategy));
}

static qn_status check_fp8(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    if (op->strategy == QN_STRATEGY_FP8_STATIC) {
        QNI_TRY(check_scale(op->quant.x_scale, "x_scale", err));
        if (1.0f / op->quant.x_scale > FLT_MAX)
            return qni_fail(err, QN_E_VALUE, "x_scale is so small that 1 / x_scale overflows");
    }
    if (!qni_is_none(&op->x_scales))
        QNI_TRY(qni_check_tensor(ctx, &op->x_scales, "x_scales", 2, QNI_TYPE(QN_F32), err));
    return check_x_scales(op, err);
}

qn_status qni_validate_types(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    if (op->strategy < QN_STRATEGY_FLOAT || op->strategy > QN_STRATEGY_FP8_STATIC)
        return qni_fail(err, QN_E_ARGUMENT, "strategy is %d: see qn_strategy", op->strategy);
    QNI_TRY(qni_check_flag(op->strict, "strict", err));
    QNI_TRY(qni_check_flag(op->quant.symmetric, "quant.symmetric", err));
    if (op->quant.reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "quant.reserved is not 0");
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    const bool is_fp8 = qni_is_fp8(op->strategy);
    const unsigned e4m3 = is_fp8 ? QNI_TYPE(QN_E4M3) : 0;
    const unsigned x_types = is_static ? QNI_BYTES : QNI_FLOATS | e4m3;
    const unsigned more = is_static ? QNI_BYTES | QNI_TYPE(QN_I32) : QNI_BYTES;
    const unsigned y_types = QNI_FLOATS | more | e4m3;
    QNI_TRY(qni_check_tensor(ctx, &op->x, "x", op->x.rank, x_types, err));
    QNI_TRY(qni_check_tensor(ctx, &op->y, "y", op->y.rank, y_types, err));
    if (is_fp8)
        return check_fp8(ctx, op, err);
    if (!qni_is_none(&op->x_scales))
        return qni_fail(err, QN_E_ARGUMENT,
                        "x_scales belong to x of type e4m3 with fp8-row or fp8-block");
    return is_static ? check_static(op, err) : QN_OK;
}

/* [n], or for grouped products [n_experts, n]. */
static qn_status check_by_column(const qn_ctx *ctx, const struct qni_op *op, const qn_tensor *t,
                                 const char *name, unsigned types, qn_error *err)
{
    if (qni_is_none(t))
        return QN_OK;
    const bool by_expert = op->kind == QNI_GROUPED && t->rank == 2;
    const int64_t shape[2] = {by_expert ? op->n_w : op->n, op->n};
    QNI_TRY(qni_check_tensor(ctx, t, name, by_expert ? 2 : 1, types, err));
    return qni_check_shape(t, name, shape, err);
}

static qn_status check_bias(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    const qn_tensor *bias = &op->epilogue.bias;
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    const unsigned types = is_static ? QNI_FLOATS | QNI_TYPE(QN_I32) : QNI_FLOATS;
    QNI_TRY(check_by_column(ctx, op, bias, "bias", types, err));
    return !qni_is_none(bias) && bias->dtype == QN_I32 ? check_one_unit(op, "bias", err) : QN_OK;
}

static qn_status check_row_scale(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    const qn_tensor *scale = &op->epilogue.row_scale;
    if (qni_is_none(scale))
        return QN_OK;
    if (op->kind == QNI_CONV || op->kind == QNI_CONV_TRANSPOSE)
        return qni_fail(err, QN_E_ARGUMENT, "a convolution takes no row_scale");
    QNI_TRY(qni_check_tensor(ctx, scale, "row_scale", 1, QNI_TYPE(QN_F32), err));
    return qni_check_shape(scale, "row_scale", &op->m, err);
}

static qn_status check_function(const qn_epilogue *e, qn_error *err)
{
    if (e->act < QN_ACT_NONE || e->act > QN_ACT_LEAKY_RELU)
        return qni_fail(err, QN_E_ARGUMENT, "act is %d: see qn_act", e->act);
    const bool is_lo_nan = e->clamp_lo != e->clamp_lo;
    if (is_lo_nan || e->clamp_hi != e->clamp_hi)
        return qni_fail(err, QN_E_VALUE, "clamp_%s is NaN", is_lo_nan ? "lo" : "hi");
    if (e->clamp_lo > e->clamp_hi)
        return qni_fail(err, QN_E_ARGUMENT, "clamp_lo is greater than clamp_hi");
    /* What an epilogue holds that was not initialised, and nobody means. */
    if (e->clamp_lo == 0.0f && e->clamp_hi == 0.0f)
        return qni_fail(err, QN_E_VALUE,
                        "clamp_lo and clamp_hi are both 0, which would make every output 0: begin "
                        "with qn_epilogue_init(), which sets no clamp");
    return qni_check_flag(e->residual_after, "residual_after", err);
}

static qn_status check_residual(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    const qn_tensor *residual = &op->epilogue.residual;
    const unsigned types = QNI_FLOATS | QNI_BYTES;
    if (qni_is_none(residual))
        return QN_OK;
    QNI_TRY(qni_check_tensor(ctx, residual, "residual", op->y.rank, types, err));
    QNI_TRY(qni_check_shape(residual, "residual", op->y.shape, err));
    if (!is_byte(residual->dtype))
        return QN_OK;
    QNI_TRY(check_scale(op->more.residual_scale, "residual_scale", err));
    return check_zero(op->more.residual_zero, residual->dtype, "residual_zero", err);
}

static bool is_product(const struct qni_op *op)
{
    return op->kind == QNI_MATMUL || op->kind == QNI_GROUPED;
}

static qn_status check_gate(const struct qni_op *op, qn_error *err)
{
    enum { TWO_PANELS = 32 };
    const qn_gate gate = op->more.gate;
    const int64_t whole = gate == QN_GATE_HALVES ? TWO_PANELS : 2;
    if (gate < QN_GATE_NONE || gate > QN_GATE_PAIRS)
        return qni_fail(err, QN_E_ARGUMENT, "gate is %d: see qn_gate", gate);
    if (gate == QN_GATE_NONE)
        return QN_OK;
    if (!is_product(op))
        return qni_fail(err, QN_E_ARGUMENT, "a convolution takes no gate");
    if (op->n % whole != 0)
        return qni_fail(err, QN_E_SHAPE,
                        "the weights have %lld outputs: a gate by %s needs a multiple of %lld",
                        (long long)op->n, gate == QN_GATE_HALVES ? "halves" : "pairs",
                        (long long)whole);
    if (!qni_is_none(&op->epilogue.residual) && !op->epilogue.residual_after)
        return qni_fail(err, QN_E_ARGUMENT, "with a gate the residual is added after: set "
                                            "residual_after");
    return QN_OK;
}

qn_status qni_validate_more(const qn_epilogue_more *given, struct qni_op *op, qn_error *err)
{
    qn_epilogue_more *const f = &op->more;
    qn_epilogue_more_init(f);
    if (given == NULL)
        return QN_OK;
    QNI_TRY(qni_sized_read(f, sizeof *f, given, err));
    if (!is_finite(f->leaky_slope) || !is_finite(f->hard_slope) || !is_finite(f->hard_shift))
        return qni_fail(err, QN_E_VALUE,
                        "leaky_slope, hard_slope and hard_shift must be finite");
    return check_gate(op, err);
}

static qn_status check_factor(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    const qn_tensor *factor = &op->more.factor;
    if (qni_is_none(factor))
        return QN_OK;
    if (!is_product(op) || op->more.gate != QN_GATE_NONE)
        return qni_fail(err, QN_E_ARGUMENT,
                        "a factor is for matmul and grouped products without a gate");
    QNI_TRY(qni_check_tensor(ctx, factor, "factor", op->y.rank, QNI_FLOATS, err));
    return qni_check_shape(factor, "factor", op->y.shape, err);
}

/* Raw sums leave the operation as they are. */
static qn_status check_raw(const struct qni_op *op, qn_error *err)
{
    const qn_epilogue *e = &op->epilogue;
    if (op->more.gate != QN_GATE_NONE || !qni_is_none(&op->more.factor) ||
        !qni_is_none(&e->bias) || !qni_is_none(&e->residual) || !qni_is_none(&e->row_scale) ||
        !qni_is_none(&e->col_scale) || e->act != QN_ACT_NONE || e->clamp_lo >= -FLT_MAX ||
        e->clamp_hi <= FLT_MAX)
        return qni_fail(err, QN_E_ARGUMENT,
                        "y of type i32 takes the raw sums: the epilogue must be empty");
    return QN_OK;
}

qn_status qni_validate_epilogue(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    const qn_epilogue *e = &op->epilogue;
    QNI_TRY(check_function(e, err));
    QNI_TRY(check_bias(ctx, op, err));
    QNI_TRY(check_by_column(ctx, op, &e->col_scale, "col_scale", QNI_TYPE(QN_F32), err));
    QNI_TRY(check_row_scale(ctx, op, err));
    QNI_TRY(check_residual(ctx, op, err));
    QNI_TRY(check_factor(ctx, op, err));
    if (op->y.dtype == QN_I32)
        return check_raw(op, err);
    if (!is_byte(op->y.dtype) && op->y.dtype != QN_E4M3)
        return QN_OK;
    QNI_TRY(check_scale(e->y_scale, "y_scale", err));
    if (1.0f / e->y_scale > FLT_MAX)
        return qni_fail(err, QN_E_VALUE, "y_scale is so small that 1 / y_scale overflows");
    if (op->y.dtype == QN_E4M3 && e->y_zero != 0)
        return qni_fail(err, QN_E_VALUE, "y_zero is %d: e4m3 outputs have no zero point",
                        e->y_zero);
    return op->y.dtype == QN_E4M3 ? QN_OK : check_zero(e->y_zero, op->y.dtype, "y_zero", err);
}

/* The residual may be y itself: every element is read before it is written. */
static bool is_in_place(const qn_tensor *y, const qn_tensor *residual)
{
    return residual->data == y->data && residual->dtype == y->dtype &&
           memcmp(residual->stride, y->stride, (size_t)y->rank * sizeof *y->stride) == 0;
}

qn_status qni_validate_data(const qn_ctx *ctx, struct qni_op *op, qn_error *err)
{
    static const double nothing[1] = {0.0};
    const qn_epilogue *e = &op->epilogue;
    const struct {
        const qn_tensor *tensor;
        const char *name;
    } read[] = {{&op->x, "x"},
                {&e->bias, "bias"},
                {&e->residual, "residual"},
                {&e->row_scale, "row_scale"},
                {&e->col_scale, "col_scale"},
                {&op->offsets, "offsets"},
                {&op->ids, "ids"},
                {&op->x_rows, "x_rows"},
                {&op->x_scales, "x_scales"},
                {&op->more.factor, "factor"}};
    QNI_TRY(qni_check_data(ctx, &op->y, "y", err));
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        const qn_tensor *t = read[i].tensor;
        if (qni_is_none(t) || (t == &op->x && op->is_prepared))
            continue;
        QNI_TRY(qni_check_data(ctx, t, read[i].name, err));
        if (t != &e->residual || !is_in_place(&op->y, t))
            QNI_TRY(qni_check_apart(&op->y, "y", t, read[i].name, err));
    }
    for (int32_t i = 0; i < op->n_w; i++) {
        const qn_packed *w = op->w[i];
        QNI_TRY(qni_check_apart_bytes(&op->y, "y", w->blob, (size_t)w->head->bytes,
                                      "the packed weights", err));
    }
    if (op->x.data == NULL)
        op->x.data = (void *)(uintptr_t)nothing; /* never read, never written */
    return QN_OK;
}
