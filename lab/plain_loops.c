/* SPDX-License-Identifier: Apache-2.0 */
/* Is the portable matmul three times as fast as a loop nest? One thread, both compiled with -O3 for
 * the baseline instruction set, rounds interleaved, the fastest round of each counts.
 *
 *   cc -O3 -std=gnu11 -ffp-contract=off -Iinclude lab/plain_loops.c build/libquern.a \
 *      -lm -pthread -o /tmp/plain_loops && /tmp/plain_loops [ISA [N K [FORMAT]]]
 *
 * The nests are what one would write with care: codes a byte each, the scale taken out of the inner
 * loop, int8 products summed in int32 (which the compiler vectorises). Quantizing x is part of the
 * library's time only. */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static __attribute__((noinline)) void plain_float(const qn_weight_parts *w, const float *x,
                                                  int64_t m, float *y)
{
    const int64_t group = w->format.group > 0 ? w->format.group : w->k;
    const int32_t middle = 1 << (w->format.bits - 1);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < w->n; j++) {
            float sum = 0;
            for (int64_t g = 0; g < w->n_groups; g++) {
                float part = 0;
                for (int64_t p = g * group; p < (g + 1) * group; p++)
                    part += x[i * w->k + p] * (float)(w->codes[j * w->k + p] - middle);
                sum += part * w->scale[j * w->n_groups + g];
            }
            y[i * w->n + j] = sum;
        }
}

static __attribute__((noinline)) void plain_int8(const qn_weight_parts *w, const int8_t *x,
                                                 int64_t m, float *y)
{
    const int64_t group = w->format.group > 0 ? w->format.group : w->k;
    const int32_t middle = 1 << (w->format.bits - 1);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < w->n; j++) {
            float sum = 0;
            for (int64_t g = 0; g < w->n_groups; g++) {
                int32_t part = 0;
                for (int64_t p = g * group; p < (g + 1) * group; p++)
                    part += x[i * w->k + p] * (w->codes[j * w->k + p] - middle);
                sum += (float)part * w->scale[j * w->n_groups + g];
            }
            y[i * w->n + j] = sum * 0.01f;
        }
}

int main(int argc, char **argv)
{
    const int64_t n = argc > 3 ? atoll(argv[2]) : 512, k = argc > 3 ? atoll(argv[3]) : 4096;
    const int64_t most = 64;
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.n_threads = 1;
    qn_ctx *ctx;
    qn_weight *weight;
    qn_packed *packed;
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    if (qn_isa_parse(argc > 1 ? argv[1] : "portable", &options.isa_mask, NULL) != QN_OK ||
        qn_ctx_create(&options, &ctx, NULL) != QN_OK ||
        qn_format_parse(argc > 4 ? argv[4] : "int4:g128", &how.format, NULL) != QN_OK)
        return 2;
    float *dense = malloc((size_t)(n * k) * 4), *x = malloc((size_t)(most * k) * 4);
    float *y = malloc((size_t)(most * n) * 4);
    int8_t *codes = malloc((size_t)(most * k));
    for (int64_t i = 0; i < n * k; i++)
        dense[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int64_t i = 0; i < most * k; i++) {
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        codes[i] = (int8_t)(x[i] * 200);
    }
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, n, k);
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    if (qn_quantize(ctx, &w, &how, &weight, NULL) != QN_OK ||
        qn_weight_view(weight, &parts) != QN_OK ||
        qn_pack(ctx, weight, NULL, &packed, NULL) != QN_OK)
        return 2;
    const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                      QN_STRATEGY_INT8_BLOCK};
    const int64_t rows[] = {1, 2, 4, 8, 16, 64};
    for (int s = 0; s < 3; s++)
        for (int r = 0; r < 6; r++) {
            const int64_t m = rows[r];
            qn_matmul_args args;
            qn_matmul_args_init(&args);
            args.w = packed;
            args.x = qn_tensor_2d(x, QN_F32, m, k);
            args.y = qn_tensor_2d(y, QN_F32, m, n);
            args.strategy = strategies[s];
            size_t bytes;
            qn_plan *plan;
            qn_plan_info info;
            qn_plan_info_init(&info);
            if (qn_matmul_plan(ctx, &args, &plan, NULL) != QN_OK ||
                qn_plan_query(plan, &info) != QN_OK)
                return 2;
            bytes = qn_plan_scratch_bytes(plan);
            void *scratch = aligned_alloc(64, bytes + 64);
            double plain = 1e9, quern = 1e9;
            for (double end = now() + 1.0; now() < end;) {
                const double a = now();
                if (qn_matmul_run(plan, &args, scratch, bytes) != QN_OK)
                    return 2;
                const double b = now();
                if (s == 0)
                    plain_float(&parts, x, m, y);
                else
                    plain_int8(&parts, codes, m, y);
                const double c = now();
                quern = b - a < quern ? b - a : quern;
                plain = c - b < plain ? c - b : plain;
            }
            printf("%-10s m=%-3lld %9.1f us %7.2f Gop/s   plain %9.1f us   %5.2f times   %s\n",
                   qn_strategy_name(strategies[s]), (long long)m, quern * 1e6,
                   2e-9 * (double)(m * n * k) / quern, plain * 1e6, plain / quern, info.kernel);
            free(scratch);
            qn_plan_destroy(plan);
        }
    return 0;
}
