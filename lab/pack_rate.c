/* SPDX-License-Identifier: Apache-2.0 */
/* How fast weights are packed: canonical codes (a byte each) to what kernels read, into fresh
 * memory, beside memcpy of the codes by one thread into memory that was used before. Least of
 * several runs; bytes are those read and written.
 *
 *     gcc -O2 -Iinclude lab/pack_rate.c -o /tmp/pack_rate -Lbuild/release -lquern
 *     LD_LIBRARY_PATH=build/release /tmp/pack_rate 8192 8192 2 int4:g128 int8:pc q4_k */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <quern/quern.h>

enum { RUNS = 8 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int stop(const char *what, const qn_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->text);
    return 1;
}

static int measure(const qn_ctx *ctx, const qn_tensor *dense, const char *spec)
{
    qn_error err = {0};
    qn_quantize_options how;
    qn_packed_info info;
    qn_weight *w = NULL;
    double least = 1e30;
    qn_quantize_options_init(&how);
    qn_packed_info_init(&info);
    if (qn_format_parse(spec, &how.format, &err) || qn_quantize(ctx, dense, &how, &w, &err))
        return stop(spec, &err);
    for (int i = 0; i < RUNS; i++) {
        qn_packed *packed = NULL;
        const double begin = now_ms();
        if (qn_pack(ctx, w, NULL, &packed, &err))
            return stop(spec, &err);
        const double ms = now_ms() - begin;
        least = ms < least ? ms : least;
        qn_packed_query(packed, &info);
        qn_packed_destroy(packed);
    }
    const double bytes = (double)info.n * (double)info.k + (double)info.bytes;
    printf("%-16s %8.2f ms %6.2f GB/s\n", spec, least, bytes / least / 1e6);
    qn_weight_destroy(w);
    return 0;
}

static void copy(size_t bytes)
{
    char *from = malloc(bytes), *to = malloc(bytes);
    double least = 1e30;
    if (from == NULL || to == NULL)
        exit(1);
    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for (int i = 0; i < RUNS; i++) {
        const double begin = now_ms();
        memcpy(to, from, bytes);
        const double ms = now_ms() - begin;
        from[i] = to[bytes - 1 - (size_t)i]; /* so that no copy is left out */
        least = ms < least ? ms : least;
    }
    printf("%-16s %8.2f ms %6.2f GB/s\n", "memcpy", least, 2 * (double)bytes / least / 1e6);
    free(from);
    free(to);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return fprintf(stderr, "pack_rate N K THREADS FORMAT...\n"), 2;
    const int64_t shape[2] = {atoll(argv[1]), atoll(argv[2])};
    qn_error err = {0};
    qn_ctx *ctx = NULL;
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.n_threads = atoi(argv[3]);
    float *values = malloc(sizeof *values * (size_t)(shape[0] * shape[1]));
    if (values == NULL || qn_ctx_create(&options, &ctx, &err))
        return stop("context", &err);
    uint32_t state = 1;
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    const qn_tensor dense = qn_tensor_make(values, QN_F32, 2, shape);
    for (int i = 4; i < argc; i++)
        if (measure(ctx, &dense, argv[i]))
            return 1;
    copy((size_t)(shape[0] * shape[1]));
    free(values);
    qn_ctx_destroy(ctx);
    return 0;
}
