/* SPDX-License-Identifier: Apache-2.0 */
/* Products too large for the reference, by a residual against a random vector (Freivalds): with r
 * of signs, sum_j r_j y[i, j]  =  sum_p x[i, p] (sum_j r_j w[j, p]) costs m n + n k + m k instead
 * of m n k, and so does the sum of the bounds. Equal bits for any number of threads are asked for
 * as well. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suites.h"
#include "sweep.h"

/* Floats of a y that second caches do not hold, so that stores may pass the caches by. */
enum { FAR = 1 << 19 };

struct large_case {
    qn_strategy strategy;
    const struct check_format *format;
    int64_t m, n, k;
};

/* By column: sum_j r_j w[j, p], and sum_j of |scale value| + |offset|. */
struct columns {
    double *signed_sum, *size_sum;
};

static struct columns sum_columns(struct check *c, const struct qn_weight *w, const int8_t *signs)
{
    const size_t k = (size_t)w->k;
    struct columns s = {check_memory(c, "column sums", k * sizeof(double), 8),
                        check_memory(c, "column sizes", k * sizeof(double), 8)};
    double *value = check_memory(c, "one row", k * sizeof(double), 8);
    double *size = check_memory(c, "one row's sizes", k * sizeof(double), 8);
    memset(s.signed_sum, 0, k * sizeof(double));
    memset(s.size_sum, 0, k * sizeof(double));
    for (int64_t j = 0; j < w->n; j++) {
        struct qn_weight row = *w; /* one row as a weight of its own */
        row.n = 1;
        row.codes = w->codes + j * w->k;
        row.scale = w->scale + j * w->n_groups;
        row.zero = w->zero != NULL ? w->zero + j * w->n_groups : NULL;
        row.offset = w->offset != NULL ? w->offset + j * w->n_groups : NULL;
        qni_ref_dequantize(&row, true, value, size);
        for (int64_t p = 0; p < w->k; p++) {
            s.signed_sum[p] += signs[j] * value[p];
            s.size_sum[p] += size[p];
        }
    }
    return s;
}

static void check_residual(struct check *c, const struct large_case *lc, const qn_tensor *x,
                           const qn_tensor *y, const struct columns *s, const int8_t *signs)
{
    for (int64_t i = 0; i < lc->m; i++) {
        double residual = 0.0, size = 0.0, amax = 0.0, sizes = 0.0;
        for (int64_t p = 0; p < lc->k; p++) {
            const double v = qni_ref_get(x->data, x->dtype, i * x->stride[0] + p);
            residual -= v * s->signed_sum[p];
            size += fabs(v) * s->size_sum[p];
            sizes += s->size_sum[p];
            amax = fmax(amax, fabs(v));
        }
        for (int64_t j = 0; j < lc->n; j++)
            residual += signs[j] * qni_ref_get(y->data, y->dtype, i * y->stride[0] + j);
        /* int8: codes are off by half a step of at most 2 amax / 255, mostly not all to one side:
         * the sum of m n k independent errors is far below this; a wrong panel is far above. */
        const double step = lc->strategy == QN_STRATEGY_FLOAT ? 0.0 : 0.501 * amax / 127.0;
        const double allowed = 2.0 * (double)(lc->k + 8) * 0x1p-24 * size + step * sizes * 0.05;
        if (fabs(residual) <= allowed)
            continue;
        check_fail(c, "row %lld: the residual is %.6g, at most %.6g is allowed", (long long)i,
                   residual, allowed);
        return;
    }
}

static void large_case(struct check *c, const void *arg)
{
    const struct large_case *lc = arg;
    const struct check_weight_options o = {.format = lc->format->format,
                                           .n = lc->n,
                                           .k = lc->k,
                                           .kh = 1,
                                           .kw = 1,
                                           .conv_groups = 1,
                                           .data = CHECK_NORMAL};
    struct check_weight made;
    check_weight_make(c, &o, &made);
    int8_t *signs = check_memory(c, "signs", (size_t)lc->n, 1);
    for (int64_t j = 0; j < lc->n; j++)
        signs[j] = check_random_chance(&c->random, 50) ? 1 : -1;
    const struct columns sums = sum_columns(c, &made.w, signs);
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = lc->strategy;
    args.x = check_tensor(c, "x", QN_F32, 2, (const int64_t[]){lc->m, lc->k}, true);
    check_fill_x(c, &args.x, CHECK_NORMAL, false);
    check_memory_freeze(args.x.data);
    args.y = check_tensor(c, "y", QN_F32, 2, (const int64_t[]){lc->m, lc->n}, true);
    if (lc->m * lc->n > FAR) { /* lines of it are whole */
        const size_t bytes = (size_t)(lc->m * lc->n) * sizeof(float);
        args.y = qn_tensor_2d(check_memory(c, "y", bytes, 64), QN_F32, lc->m, lc->n);
    }
    const size_t y_bytes = (size_t)((lc->m - 1) * args.y.stride[0] + lc->n) * sizeof(float);
    uint8_t *first = check_memory(c, "y of one thread", y_bytes, 4);
    const uint64_t *masks;
    check_masks(c->options, &masks);
    static const int32_t counts[] = {1, 2, 5, CHECK_SERIAL};
    for (size_t t = 0; t < sizeof counts / sizeof *counts && !c->failed; t++) {
        if (c->options->threads > 0 && t > 0)
            break;
        const qn_ctx *ctx =
            check_context(c, masks[0], c->options->threads > 0 ? c->options->threads : counts[t]);
        qn_weight *weight = NULL;
        qn_packed *packed = NULL;
        qn_error err = {0};
        size_t bytes = 0;
        if (check_status(c, "qn_weight_create", qn_weight_create(ctx, &made.parts, &weight, &err),
                         QN_OK, &err) &&
            check_status(c, "qn_pack", qn_pack(ctx, weight, NULL, &packed, &err), QN_OK, &err)) {
            args.w = packed;
            const qn_tensor x = args.x, y = args.y;
            args.x = c->options->device->make(c, &x);
            args.y = c->options->device->make(c, &y);
            check_status(c, "qn_matmul_scratch", qn_matmul_scratch(ctx, &args, &bytes), QN_OK,
                         NULL);
            void *scratch = c->options->device->scratch(c, bytes);
            c->options->device->send(c, &args.x, &x);
            c->options->device->send(c, &args.y, &y);
            const qn_status status = qn_matmul(ctx, &args, scratch, bytes);
            if (status == QN_OK)
                c->options->device->fetch(c, &args.y, &y);
            args.x = x;
            args.y = y;
            if (check_status(c, "qn_matmul", status, QN_OK, NULL)) {
                check_residual(c, lc, &args.x, &args.y, &sums, signs);
                if (t == 0)
                    memcpy(first, args.y.data, y_bytes);
                else if (memcmp(first, args.y.data, y_bytes) != 0)
                    check_fail(c, "other bits with %d threads than with one", counts[t]);
            }
        }
        qn_packed_destroy(packed);
        qn_weight_destroy(weight);
    }
}

/* The usual ones, and for floats those that have kernels of their own for many rows. */
static bool is_checked(const char *format, qn_strategy strategy)
{
    static const char *const formats[] = {"int4:g128:zp", "int8:pc",  "int4:g64:off",
                                          "int4:g32:off", "int6:g16", "e2m1:g32",
                                          "nf4:g64",      "fp8:g128"};
    const size_t n = strategy == QN_STRATEGY_FLOAT ? sizeof formats / sizeof *formats : 3;
    for (size_t i = 0; i < n; i++)
        if (strcmp(format, formats[i]) == 0)
            return true;
    return false;
}

void check_api_large(struct check_suite *suite, const struct check_options *options)
{
    static const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                             QN_STRATEGY_INT8_BLOCK};
    static const int64_t shapes[][3] = {
        {1, 1000, 2048}, {37, 400, 1100}, {130, 300, 800}, {229, 72, 1300}, {257, 2064, 64}};
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats);
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies && !options->quick; s++)
        for (int32_t f = 0; f < n_formats; f++) {
            if (!is_checked(formats[f].name, strategies[s]))
                continue;
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                const struct large_case lc = {strategies[s], &formats[f], shapes[i][0],
                                              shapes[i][1], shapes[i][2]};
                check_case(suite, large_case, &lc, "%s/%s/%lldx%lldx%lld",
                           qn_strategy_name(lc.strategy), formats[f].name, (long long)lc.m,
                           (long long)lc.n, (long long)lc.k);
            }
        }
}
