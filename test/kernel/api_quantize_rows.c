/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize_rows: equal bits with the reference on every ISA mask and thread count; codes are as
 * near to x as half a step allows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "suites.h"

struct rows_case {
    int32_t data, shape;
    qn_dtype x_type, code_type;
    bool symmetric;
    int32_t linear; /* 0: none; 1: zero points are found; 2: scale and zero are given */
};

/* The outputs of one call. */
struct outputs {
    qn_tensor codes, scale, zero;
};

static bool is_byte(qn_dtype dtype)
{
    return dtype == QN_I8 || dtype == QN_U8 || dtype == QN_E4M3;
}

static size_t tensor_bytes(const qn_tensor *t)
{
    if (t->rank == 0 || t->shape[0] == 0 || t->shape[1] == 0)
        return 0;
    const size_t element = is_byte(t->dtype) ? 1 : 4;
    return (size_t)((t->shape[0] - 1) * t->stride[0] + t->shape[1]) * element;
}

/* The same strides and contents in other memory. */
static qn_tensor twin(struct check *c, const qn_tensor *t)
{
    qn_tensor copy = *t;
    if (t->rank == 0)
        return copy;
    copy.data = check_memory(c, "output of the reference", tensor_bytes(t), 4);
    memcpy(copy.data, t->data, tensor_bytes(t));
    return copy;
}

static bool same_output(struct check *c, const char *who, const char *what, const qn_tensor *a,
                        const qn_tensor *b)
{
    for (int64_t i = 0; a->rank != 0 && i < (int64_t)tensor_bytes(a) /
                                                (is_byte(a->dtype) ? 1 : 4);
         i++) {
        const uint32_t got = qni_ref_bits(a->data, a->dtype, i),
                       must = qni_ref_bits(b->data, b->dtype, i);
        if (got == must || (qni_ref_is_nan(got, a->dtype) && qni_ref_is_nan(must, b->dtype)))
            continue;
        check_fail(c, "%s: %s of row %lld, %lld is %.9g, must be %.9g", who, what,
                   (long long)(i / a->stride[0]), (long long)(i % a->stride[0]),
                   qni_ref_get(a->data, a->dtype, i), qni_ref_get(b->data, b->dtype, i));
        return false;
    }
    return true;
}

/* The definition itself: value = scale * code + offset is within half a step of x. */
static void check_steps(struct check *c, const qn_quantize_rows_args *a)
{
    const int64_t block = a->block > 0 ? a->block : a->x.shape[1];
    for (int64_t i = 0; i < a->x.shape[0]; i++)
        for (int64_t p = 0; p < a->x.shape[1]; p++) {
            const int64_t b = p / block;
            const double scale = qni_ref_get(a->scale.data, QN_F32, i * a->scale.stride[0] + b);
            const double offset = a->offset.rank != 0 ? qni_ref_get(a->offset.data, QN_F32,
                                                                    i * a->offset.stride[0] + b)
                                                      : 0.0;
            const double code =
                qni_ref_get(a->codes.data, a->codes.dtype, i * a->codes.stride[0] + p);
            const double x = qni_ref_get(a->x.data, a->x.dtype, i * a->x.stride[0] + p);
            /* e4m3: half of the last of 4 digits, or of the smallest number */
            const double step = a->codes.dtype == QN_E4M3
                                    ? fmax(0.0626 * fabs(code), 0x1p-10) * scale
                                    : 0.501 * scale;
            const double allowed = step + fabs(offset) * 0x1p-22 + 0x1p-119;
            if (isnan(scale) || fabs(scale * code + offset - x) <= allowed)
                continue;
            check_fail(c, "the reference takes %.9g for %.9g * %g + %.9g", x, scale, code, offset);
            return;
        }
}

/* The tensors of a call, x first. */
enum { N_TENSORS = 6 };
static void list_tensors(qn_quantize_rows_args *a, qn_tensor *list[N_TENSORS])
{
    list[0] = &a->x;
    list[1] = &a->codes;
    list[2] = &a->scale;
    list[3] = &a->offset;
    list[4] = &a->sum;
    list[5] = &a->zero;
}

/* Run on the device of the sweep: outputs there begin as they are here. */
static bool run_there(struct check *c, const qn_ctx *ctx, qn_quantize_rows_args *host,
                      const qn_quantize_rows_args *placed)
{
    const struct check_device *device = c->options->device;
    qn_quantize_rows_args there = *placed;
    qn_tensor *from[N_TENSORS], *to[N_TENSORS];
    list_tensors(host, from);
    list_tensors(&there, to);
    for (int32_t i = 0; i < N_TENSORS; i++)
        if (from[i]->rank != 0)
            device->send(c, to[i], from[i]);
    if (!check_status(c, "qn_quantize_rows", qn_quantize_rows(ctx, &there), QN_OK, NULL))
        return false;
    for (int32_t i = 1; i < N_TENSORS; i++)
        if (from[i]->rank != 0)
            device->fetch(c, to[i], from[i]);
    return true;
}

static qn_quantize_rows_args place_there(struct check *c, const qn_quantize_rows_args *host)
{
    qn_quantize_rows_args there = *host;
    qn_tensor *tensors[N_TENSORS];
    list_tensors(&there, tensors);
    for (int32_t i = 0; i < N_TENSORS; i++)
        if (tensors[i]->rank != 0)
            *tensors[i] = c->options->device->make(c, tensors[i]);
    return there;
}

/* Scales of all sizes and zero points of all codes. */
static void fill_given(struct check *c, qn_quantize_rows_args *a)
{
    for (int64_t i = 0; i < a->scale.shape[0]; i++)
        for (int64_t b = 0; b < a->scale.shape[1]; b++) {
            const float scale = (float)CHECK_OF(&c->random, 1, 2, 3, 5, 7, 100) / 64.0f;
            ((float *)a->scale.data)[i * a->scale.stride[0] + b] = scale;
            if (a->zero.rank != 0)
                ((uint8_t *)a->zero.data)[i * a->zero.stride[0] + b] =
                    (uint8_t)check_random_in(&c->random, 0, 255);
        }
}

/* Found zero points: scale * (code - zero) is within half a step of x, a rounding of the zero point
 * aside, and 0 is a value that codes have. */
static void check_linear_steps(struct check *c, const qn_quantize_rows_args *a)
{
    const bool is_whole = a->block == QN_GROUP_PER_TENSOR;
    const int64_t block = a->block > 0 ? a->block : a->x.shape[1];
    for (int64_t i = 0; i < a->x.shape[0]; i++)
        for (int64_t p = 0; p < a->x.shape[1]; p++) {
            const int64_t b = is_whole ? 0 : i * a->scale.stride[0] + p / block;
            const int64_t z = is_whole ? 0 : i * a->zero.stride[0] + p / block;
            const double scale = qni_ref_get(a->scale.data, QN_F32, b);
            const double zero = qni_ref_get(a->zero.data, a->zero.dtype, z);
            const double code =
                qni_ref_get(a->codes.data, a->codes.dtype, i * a->codes.stride[0] + p);
            const double x = qni_ref_get(a->x.data, a->x.dtype, i * a->x.stride[0] + p);
            if (isnan(scale) || fabs(scale * (code - zero) - x) <= 1.001 * scale + 0x1p-119)
                continue;
            check_fail(c, "the reference takes %.9g for %.9g * (%g - %g)", x, scale, code, zero);
            return;
        }
}

static void rows_case(struct check *c, const void *arg)
{
    const struct rows_case *rc = arg;
    struct check_random *r = &c->random;
    const int64_t m = CHECK_OF(r, 0, 1, 2, 3, 7, 16, 33),
                  k = CHECK_OF(r, 0, 1, 5, 15, 16, 17, 31, 32, 33, 64, 100, 127, 300);
    qn_quantize_rows_args args;
    qn_quantize_rows_args_init(&args);
    args.block = CHECK_OF(r, 0, 0, 1, 7, 16, 32, 48, 100, 128, 1000);
    if (rc->linear > 0 && check_random_chance(r, 40))
        args.block = QN_GROUP_PER_TENSOR;
    const bool is_whole = args.block == QN_GROUP_PER_TENSOR;
    const int64_t shape[2] = {m, args.block <= 0 ? 1 : (k + args.block - 1) / args.block};
    const int64_t one[2] = {1, 1};
    args.x = check_tensor(c, "x", rc->x_type, 2, (const int64_t[]){m, k}, true);
    check_fill_x(c, &args.x, rc->data, rc->data == CHECK_EXTREME);
    check_memory_freeze(args.x.data);
    args.codes = check_tensor(c, "codes", rc->code_type, 2, (const int64_t[]){m, k}, true);
    args.scale = check_tensor(c, "scale", QN_F32, 2, is_whole ? one : shape, true);
    args.given = rc->linear == 2;
    if (rc->linear == 1 || (rc->linear == 2 && check_random_chance(r, 70)))
        args.zero = check_tensor(c, "zero", rc->code_type, 2, is_whole ? one : shape, true);
    if (args.given)
        fill_given(c, &args);
    if (!rc->symmetric && rc->linear == 0)
        args.offset = check_tensor(c, "offset", QN_F32, 2, shape, true);
    if (rc->code_type != QN_E4M3 && check_random_chance(r, 70))
        args.sum = check_tensor(c, "sum", QN_I32, 2, shape, true);
    check_about(c, "m=%lld k=%lld block=%lld", (long long)m, (long long)k, (long long)args.block);
    const struct outputs before = {twin(c, &args.codes), twin(c, &args.scale), twin(c, &args.zero)};
    qn_quantize_rows_args expected = args;
    expected.codes = twin(c, &args.codes);
    expected.scale = twin(c, &args.scale);
    expected.offset = twin(c, &args.offset);
    expected.sum = twin(c, &args.sum);
    expected.zero = twin(c, &args.zero);
    check_status(c, "qni_ref_quantize_rows", qni_ref_quantize_rows(&expected), QN_OK, NULL);
    if (rc->linear == 0)
        check_steps(c, &expected);
    else if (rc->linear == 1)
        check_linear_steps(c, &expected);
    const qn_quantize_rows_args there = place_there(c, &args);
    const uint64_t *masks;
    const int32_t n_masks = check_masks(c->options, &masks);
    for (int32_t i = 0; i < n_masks && !c->failed; i++) {
        const int32_t threads = c->options->threads > 0
                                    ? c->options->threads
                                    : (int32_t)CHECK_OF(r, 1, 2, 5, CHECK_SERIAL);
        char who[80];
        snprintf(who, sizeof who, "%s, %d threads", check_mask_name(masks[i]), threads);
        memcpy(args.codes.data, before.codes.data, tensor_bytes(&args.codes));
        memcpy(args.scale.data, before.scale.data, tensor_bytes(&args.scale));
        if (args.zero.rank != 0)
            memcpy(args.zero.data, before.zero.data, tensor_bytes(&args.zero));
        const qn_ctx *ctx = check_context(c, masks[i], threads);
        const int64_t allocations = check_allocations();
        if (!run_there(c, ctx, &args, &there))
            return;
        if (check_allocations() != allocations)
            check_fail(c, "%s: qn_quantize_rows has allocated memory", who);
        if (same_output(c, who, "code", &args.codes, &expected.codes) &&
            same_output(c, who, "scale", &args.scale, &expected.scale) &&
            same_output(c, who, "offset", &args.offset, &expected.offset) &&
            same_output(c, who, "zero point", &args.zero, &expected.zero))
            same_output(c, who, "sum", &args.sum, &expected.sum);
    }
}

void check_api_quantize_rows(struct check_suite *suite, const struct check_options *options)
{
    static const qn_dtype x_types[] = {QN_F32, QN_F16, QN_BF16};
    static const struct {
        const char *name;
        qn_dtype type;
        bool symmetric;
        int32_t linear;
    } kinds[] = {{"symmetric", QN_I8, true, 0}, {"i8", QN_I8, false, 0},
                 {"u8", QN_U8, false, 0},       {"zero_u8", QN_U8, false, 1},
                 {"zero_i8", QN_I8, false, 1},  {"given_u8", QN_U8, false, 2},
                 {"given_i8", QN_I8, false, 2}, {"e4m3", QN_E4M3, true, 0}};
    const int32_t shapes = options->quick ? 1 : 20;
    for (size_t x = 0; x < 3; x++)
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
            for (int32_t data = 0; data < CHECK_N_DATA; data++)
                for (int32_t shape = 0; shape < shapes; shape++) {
                    const struct rows_case rc = {data,
                                                 shape,
                                                 x_types[x],
                                                 kinds[kind].type,
                                                 kinds[kind].symmetric,
                                                 kinds[kind].linear};
                    if (rc.linear > 0 && options->device->kind != QN_CPU)
                        continue;
                    check_case(suite, rows_case, &rc, "%s/%s/%s/%d", qn_dtype_name(x_types[x]),
                               kinds[kind].name, check_data_names[data], shape);
                }
}
