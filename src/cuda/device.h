/* SPDX-License-Identifier: Apache-2.0 */
/* The device as the plain C of this folder sees it: memory, copies, streams and errors. device.c
 * alone sees CUDA's headers. Each failure gives a status and a sentence and leaves no error behind
 * in CUDA's own state; the caller's current device is what it was when a function returns.
 *
 * What hot calls use says so; every other function may wait or allocate. */
#ifndef QNI_CUDA_DEVICE_H
#define QNI_CUDA_DEVICE_H

#include <quern/cuda.h>

#include "../base/context.h"
#include "kernel.h"

/* A line of the cost model (matmul/tuning.inc): bandwidth in GB/s. */
struct qni_cuda_costs {
    int32_t sm, family, mr, is_int8, bits, outputs, splits;
    double t0_us, bandwidth, block_ns;
};
enum { QNI_CUDA_MAX_TUNED = 32 };

/* What a GPU is. */
struct qni_cuda_facts {
    char name[64];
    int32_t sm, multiprocessors;
    size_t memory_bytes, l2_bytes;
    double bandwidth; /* bytes a second, rated; 0: unknown */
    int32_t is_served;
    double f16_ops, int8_ops; /* products and sums a second of the tensor cores, rated */
    const struct qni_cuda_costs *tuned; /* that a context was given, before those of the table */
    int32_t n_tuned;
    const char *no_blas; /* why there is no cuBLASLt, a static text; NULL: there is, or nobody has
                            asked */
};

struct qni_cuda_blas; /* blas.h */

/* What a context on a GPU has (qn_ctx.cuda). */
struct qni_cuda {
    struct qni_cuda_facts facts;
    void *stream;     /* cudaStream_t that work joins */
    void *own_stream; /* made with the context */
    int32_t pdl;
    struct qni_cuda_costs tuned[QNI_CUDA_MAX_TUNED]; /* facts.n_tuned of them */
    struct qni_cuda_blas *blas;                      /* for the dense tier */
};

/* ---- devices and contexts -------------------------------------------------------------------- */

qn_status qni_cuda_count(int32_t *count, qn_error *err);
qn_status qni_cuda_look(int32_t index, struct qni_cuda_facts *facts, qn_error *err);
/* Fills ctx->cuda for ctx->device. QN_E_DEVICE: no driver, no such device, none of the kernels that
 * were built runs on it; QN_E_MEMORY. */
qn_status qni_cuda_open(qn_ctx *ctx, qn_error *err);
/* Nothing happens where nothing was opened. */
void qni_cuda_close(qn_ctx *ctx);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory of the context's device, 256-byte aligned; bytes > 0. QN_E_MEMORY; QN_E_DEVICE. */
qn_status qni_cuda_alloc(const qn_ctx *ctx, size_t bytes, void **memory, qn_error *err);
/* Waits until the device is idle. NULL is legal. Needs no context: packed weights may outlive
 * theirs. QN_E_DEVICE: it is none of the device's memory. */
qn_status qni_cuda_free(int32_t device, void *memory);

/* Host to device and back; done when the call returns. bytes may be 0. QN_E_DEVICE; also while the
 * stream is being captured, and the capture goes on. */
qn_status qni_cuda_upload(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                          qn_error *err);
qn_status qni_cuda_download(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                            qn_error *err);
/* QN_E_DEVICE: the pointer is none of this context's device (or of memory that the device may read
 * as its own). name: what it is, for the sentence. For hot calls. */
qn_status qni_cuda_check_pointer(const qn_ctx *ctx, const void *memory, const char *name,
                                 qn_error *err);

/* ---- launches -------------------------------------------------------------------------------- */

/* Around the launches of a hot call: _enter makes the device current, refuses if an error of an
 * earlier launch is pending, and tells launchers what they need; _leave puts the caller's device
 * back. Neither waits. */
struct qni_cuda_scope {
    struct qni_cuda_launch launch;
    int32_t is_pushed, capture_mode_before;
};
qn_status qni_cuda_enter(const qn_ctx *ctx, struct qni_cuda_scope *scope, qn_error *err);
void qni_cuda_leave(const qn_ctx *ctx, const struct qni_cuda_scope *scope);
/* What a launcher returned as a status. */
qn_status qni_cuda_launched(int32_t code, const char *what, qn_error *err);

/* How a launch outside of a hot call goes: _begin makes the context's device current and tells
 * stream and machine; _end takes what the launcher returned, waits for the work and makes the
 * device current that was so before. QN_E_DEVICE; also while the stream is being captured, and the
 * capture goes on. _end follows a _begin that succeeded, in the same thread. */
qn_status qni_cuda_begin(const qn_ctx *ctx, struct qni_cuda_scope *scope, qn_error *err);
qn_status qni_cuda_end(const qn_ctx *ctx, const struct qni_cuda_scope *scope, int32_t launched,
                       qn_error *err);

/* QN_E_DEVICE; also while the stream is being captured, and the capture goes on. */
qn_status qni_cuda_wait(const qn_ctx *ctx, qn_error *err);
/* As qn_cuda_measure(), arguments checked. */
qn_status qni_cuda_measure(qn_ctx *ctx, qn_cuda_call_fn call, void *arg, int32_t n_calls,
                           int32_t replays, double *us, qn_error *err);

#endif
