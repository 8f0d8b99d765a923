/* SPDX-License-Identifier: Apache-2.0 */
/* Operands on a GPU, through the public header alone. A worker takes one piece of memory and cuts a
 * case's operands from it, each between two strips of a pattern that are compared when the case
 * ends. With --separate every operand is an allocation of its own, and compute-sanitizer watches
 * its ends. An error that a kernel leaves spoils the device for the whole process, so the worker
 * dies of it, and the next one goes on behind this case. */
#include <quern/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { MAX_OPERANDS = 64, STRIP = 256, PATTERN = 0xa5 };

struct operand {
    uint8_t *strip; /* the first one */
    size_t offset;  /* of the data behind the beginning of the strip */
    size_t bytes;
};

static struct {
    const qn_ctx *ctx;
    uint8_t *pool;
    size_t pool_bytes, used;
    struct operand operand[MAX_OPERANDS];
    int32_t n;
} cuda;

static size_t extent(const qn_tensor *t)
{
    int64_t last = 0;
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] == 0)
            return 0;
        last += (t->shape[d] - 1) * t->stride[d];
    }
    return (size_t)(last + 1) * qn_dtype_bytes(t->dtype);
}

/* The device is lost to this process. */
static void die(const char *what, const qn_error *err)
{
    fprintf(stderr, "quern-check: %s: %s\n", what, err->text);
    fflush(stderr);
    abort();
}

static void copy_in(void *to, const void *from, size_t bytes)
{
    qn_error err = {QN_OK, -1, ""};
    if (qn_cuda_upload(cuda.ctx, to, from, bytes, &err) != QN_OK)
        die("copying to the GPU", &err);
}

static void copy_out(void *to, const void *from, size_t bytes)
{
    qn_error err = {QN_OK, -1, ""};
    if (qn_cuda_download(cuda.ctx, to, from, bytes, &err) != QN_OK)
        die("copying from the GPU", &err);
}

static void begin(struct check *c)
{
    qn_error err = {QN_OK, -1, ""};
    cuda.ctx = check_context(c, QN_ISA_ALL, 1);
    for (size_t mib = 768; cuda.pool == NULL && !c->options->separate && mib >= 48; mib /= 2) {
        void *pool = NULL;
        if (qn_cuda_alloc(cuda.ctx, mib << 20, &pool, &err) == QN_OK) {
            cuda.pool = pool;
            cuda.pool_bytes = mib << 20;
        }
    }
    if (cuda.pool == NULL && !c->options->separate)
        die("memory of the GPU", &err);
}

/* bytes, `shift` bytes behind a multiple of 256. */
static void *place(struct check *c, size_t bytes, size_t shift)
{
    qn_error err = {QN_OK, -1, ""};
    uint8_t pattern[STRIP];
    void *memory = NULL;
    if (cuda.ctx == NULL)
        begin(c);
    struct operand *o = &cuda.operand[cuda.n];
    const size_t all = (2 * STRIP + shift + bytes + STRIP) / STRIP * STRIP;
    if (cuda.n == MAX_OPERANDS || (cuda.pool != NULL && cuda.used + all > cuda.pool_bytes)) {
        fprintf(stderr, "quern-check: a case with too much memory of the GPU\n");
        _Exit(2);
    }
    cuda.n++;
    if (cuda.pool == NULL) {
        if (qn_cuda_alloc(cuda.ctx, bytes + shift > 0 ? bytes + shift : 1, &memory, &err) != QN_OK)
            die("memory of the GPU", &err);
        *o = (struct operand){memory, shift, bytes};
        return (uint8_t *)memory + shift;
    }
    *o = (struct operand){cuda.pool + cuda.used, STRIP + shift, bytes};
    cuda.used += all;
    memset(pattern, PATTERN, sizeof pattern);
    copy_in(o->strip, pattern, STRIP);
    copy_in(o->strip + o->offset + bytes, pattern, STRIP);
    return o->strip + o->offset;
}

qn_tensor check_cuda_make(struct check *c, const qn_tensor *host)
{
    qn_tensor t = *host;
    const size_t element = qn_dtype_bytes(t.dtype);
    /* Half of all operands are aligned as allocators do it, the others to their elements. */
    const size_t shift = check_random_chance(&c->random, 50)
                             ? 0
                             : element * (size_t)check_random_in(&c->random, 0, 15);
    t.device = (qn_device){QN_CUDA, c->options->device_index};
    t.data = place(c, extent(host), shift);
    return t;
}

void check_cuda_send(struct check *c, const qn_tensor *device, const qn_tensor *host)
{
    (void)c;
    copy_in(device->data, host->data, extent(host));
}

void check_cuda_fetch(struct check *c, const qn_tensor *device, const qn_tensor *host)
{
    qn_error err = {QN_OK, -1, ""};
    (void)c;
    if (qn_cuda_synchronize(cuda.ctx, &err) != QN_OK)
        die("the GPU", &err);
    copy_out(host->data, device->data, extent(host));
}

void *check_cuda_scratch(struct check *c, size_t bytes)
{
    return bytes > 0 ? place(c, bytes, 0) : NULL;
}

void check_cuda_end(struct check *c)
{
    uint8_t strip[2][STRIP];
    for (int32_t i = 0; i < cuda.n; i++) {
        const struct operand *o = &cuda.operand[i];
        if (cuda.pool == NULL) {
            qn_cuda_free(cuda.ctx, o->strip);
            continue;
        }
        copy_out(strip[0], o->strip, STRIP);
        copy_out(strip[1], o->strip + o->offset + o->bytes, STRIP);
        for (int32_t side = 0; side < 2; side++)
            for (int32_t at = 0; at < STRIP; at++)
                if (strip[side][at] != PATTERN) {
                    check_fail(c, "operand %d of %zu bytes on the GPU: a write %s it", i, o->bytes,
                               side == 0 ? "before" : "behind");
                    break;
                }
    }
    cuda.n = 0;
    cuda.used = 0;
}
