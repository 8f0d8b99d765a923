/* SPDX-License-Identifier: Apache-2.0 */
/* On a GPU: packing through the device gives the bytes that the host alone gives, for every format
 * and for many slabs, and how long both take. Ends with 77 where there is no GPU. With an argument:
 * "small" packs small shapes alone, for compute-sanitizer; "large" also one of 28672 x 8192. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/backend.h"
#include "cuda/device.h"
#include "cuda/layouts.h"
#include "unit/random_weight.h"

static int failures;

static void expect(bool is_true, const char *what, const char *spec, const qn_error *err)
{
    if (is_true)
        return;
    failures++;
    printf("FAILED: %s: %s%s%s\n", spec, what, err->text[0] != 0 ? ": " : "", err->text);
}

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void compare(const qn_ctx *ctx, const char *spec, struct random_shape shape, uint64_t seed,
                    bool tell)
{
    struct qn_packed *host = NULL, *packed = NULL;
    struct qn_weight *back = NULL;
    qn_error err = {QN_OK, -1, ""};
    qn_pack_options o;
    qn_pack_options_init(&o);
    struct qn_weight *w = random_weight(ctx, spec, shape, seed, seed % 3 == 1, seed % 2 == 0);
    if (w == NULL)
        exit(1);
    const double start = seconds();
    expect(qni_cuda_pack(ctx, w, &o, &packed, &err) == QN_OK, "pack", spec, &err);
    const double there = seconds();
    expect(qni_pack_host(ctx, &qni_cuda_packing, w, &o, &host, &err) == QN_OK, "host", spec, &err);
    const double here = seconds();
    if (packed != NULL && host != NULL) {
        const size_t bytes = (size_t)host->head->bytes;
        uint8_t *blob = malloc(bytes);
        expect(packed->read(ctx, packed, 0, bytes, blob, &err) == QN_OK, "read", spec, &err);
        expect(memcmp(blob, host->blob, bytes) == 0, "the bytes differ", spec, &err);
        free(blob);
        expect(qni_cuda_unpack(ctx, packed, &back, &err) == QN_OK, "unpack", spec, &err);
        expect(back != NULL && memcmp(back->codes, w->codes, (size_t)(w->n * w->k)) == 0,
               "other codes", spec, &err);
        const double gb = 1e-9 * (double)w->n * (double)w->k;
        if (tell)
            printf("%s, %lld x %lld: %.1f ms through the device (%.2f GB of codes a second), "
                   "%.1f ms by the host alone (%.2f)\n",
                   spec, (long long)w->n, (long long)w->k, 1e3 * (there - start),
                   gb / (there - start), 1e3 * (here - there), gb / (here - there));
        packed->release(packed);
        host->release(host);
    }
    qn_weight_destroy(back);
    qn_weight_destroy(w);
}

/* Floats have no layout on GPUs; unit/cuda_pack.c asks how they are refused. */
static bool is_float(const char *spec)
{
    return strcmp(spec, "f32") == 0 || strcmp(spec, "f16") == 0 || strcmp(spec, "bf16") == 0;
}

int main(int argc, char **argv)
{
    struct qn_ctx ctx;
    qn_error err = {QN_OK, -1, ""};
    memset(&ctx, 0, sizeof ctx);
    ctx.allocator = qni_allocator_default();
    ctx.threads.n_threads = 1;
    ctx.device = (qn_device){QN_CUDA, 0};
    if (qni_cuda_open(&ctx, &err) != QN_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    for (int f = 0; f < N_RANDOM_SPECS; f++)
        for (int s = 0; s < N_RANDOM_SHAPES && !is_float(random_specs[f]); s++)
            compare(&ctx, random_specs[f], random_shapes[s], (uint64_t)(100 * f + s), false);
    const char *const which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "small") != 0) {
        const struct random_shape slabs = {3 * 200003, 2, 1, 1, 3}, rows = {20000, 4096, 1, 1, 1};
        compare(&ctx, "int4:pc", slabs, 1, true);
        compare(&ctx, "int4:g128:zp", rows, 2, true);
        compare(&ctx, "int8:g100", rows, 3, true);
        compare(&ctx, "iq4_nl", rows, 4, true);
    }
    if (strcmp(which, "large") == 0) {
        const struct random_shape large = {28672, 8192, 1, 1, 1};
        compare(&ctx, "int4:g128", large, 2, true);
        compare(&ctx, "int8:pc", large, 2, true);
    }
    qni_cuda_close(&ctx);
    printf("%d failures\n", failures);
    return failures != 0;
}
