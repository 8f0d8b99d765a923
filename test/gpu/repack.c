/* SPDX-License-Identifier: Apache-2.0 */
/* On a GPU: packing through the device gives the bytes that the host alone gives, for every format
 * and for many slabs; and a GPU whose memory is full says so and loses none of it. Ends with 77
 * where there is no GPU. With an argument: small shapes alone, for compute-sanitizer. */
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
        if (tell)
            printf("%s, %lld x %lld: %.1f ms through the device, %.1f ms by the host alone\n", spec,
                   (long long)w->n, (long long)w->k, 1e3 * (there - start), 1e3 * (here - there));
        packed->release(packed);
        host->release(host);
    }
    qn_weight_destroy(back);
    qn_weight_destroy(w);
}

/* All memory taken, in ever smaller pieces. */
static void fill_and_fail(const qn_ctx *ctx)
{
    enum { MOST = 4096 };
    static void *piece[MOST];
    const struct random_shape shape = {16384, 4096, 1, 1, 1};
    qn_error err = {QN_OK, -1, ""};
    qn_pack_options o;
    qn_pack_options_init(&o);
    struct qn_packed *packed = NULL;
    int n = 0;
    void *room = NULL;
    expect(qni_cuda_alloc(ctx, (size_t)40 << 20, &room, &err) == QN_OK, "40 MiB", "", &err);
    for (size_t bytes = (size_t)1 << 36; bytes >= (size_t)1 << 21;) {
        if (n < MOST && qni_cuda_alloc(ctx, bytes, &piece[n], NULL) == QN_OK)
            n++;
        else
            bytes /= 2;
    }
    struct qn_weight *w = random_weight(ctx, "int4:g128", shape, 2, false, true);
    if (w == NULL)
        exit(1);
    for (int i = 0; i < 3; i++) {
        const qn_status status = qni_cuda_pack(ctx, w, &o, &packed, &err);
        expect(status == QN_E_MEMORY && packed == NULL, "a full GPU packs", "int4:g128", &err);
    }
    printf("full: %s\n", err.text);
    /* Room for the blob of 37 MiB, not for the staging of 64 MiB. */
    qni_cuda_free(ctx->device.index, room);
    expect(qni_cuda_pack(ctx, w, &o, &packed, &err) == QN_E_MEMORY, "no room to stage", "int4:g128",
           &err);
    while (n > 0)
        qni_cuda_free(ctx->device.index, piece[--n]);
    err.text[0] = 0;
    expect(qni_cuda_pack(ctx, w, &o, &packed, &err) == QN_OK, "after that", "int4:g128", &err);
    if (packed != NULL)
        packed->release(packed);
    qn_weight_destroy(w);
}

int main(int argc, char **argv)
{
    struct qn_ctx ctx;
    (void)argv;
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
        for (int s = 0; s < N_RANDOM_SHAPES; s++)
            compare(&ctx, random_specs[f], random_shapes[s], (uint64_t)(100 * f + s), false);
    if (argc == 1) {
        const struct random_shape slabs = {3 * 200003, 2, 1, 1, 3}, rows = {40000, 4096, 1, 1, 1};
        compare(&ctx, "int4:pc", slabs, 1, true);
        compare(&ctx, "int4:g128:zp", rows, 2, true);
        compare(&ctx, "int8:g100", rows, 3, true);
        fill_and_fail(&ctx);
    }
    qni_cuda_close(&ctx);
    printf("%d failures\n", failures);
    return failures != 0;
}
