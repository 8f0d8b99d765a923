/* SPDX-License-Identifier: Apache-2.0 */
/* quern on NVIDIA GPUs: streams, memory, and time. A context whose device is {QN_CUDA, i} runs the
 * same calls as one on the CPU (ops.h, weights.h) on tensors whose data lies on that device.
 *
 * Runs (qn_matmul_run() and its kin, the direct calls, qn_quantize_rows()) join the context's
 * stream and return before they are done. They allocate nothing, wait for nothing, compile nothing
 * and can be captured in a CUDA graph, which keeps the addresses that it saw: of tensors, weights,
 * scratch, and of the arena, which qn_ctx_reserve() moves. What fails on the device later is told
 * by qn_cuda_synchronize(), by the next call, or by the caller's own CUDA calls. What a kernel
 * cannot survive (an address that is none) ends the use of that device for the whole process; every
 * later call says so. Scratch lies on the device. Packing and unpacking wait for the device, and
 * refuse (QN_E_DEVICE) while the context's stream is being captured. No call leaves an error in
 * CUDA's per-thread state, or another device current than it found.
 *
 * This header needs no CUDA header. Where quern was built without CUDA, or finds no driver, every
 * function here returns QN_E_DEVICE with a sentence, and contexts on QN_CUDA cannot be made. */
#ifndef QUERN_CUDA_H
#define QUERN_CUDA_H

#include "base.h"
#include "context.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------- devices */

/**
 * How many GPUs there are: 0 is an answer, too. count may not be NULL. Any thread.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_DEVICE: built without CUDA, no driver, or a driver older than
 *         this library (*count is 0 then).
 */
QN_API qn_status qn_cuda_device_count(int32_t *count, qn_error *err);

/** What a GPU is. */
typedef struct qn_cuda_info {
    size_t size;
    char name[64];
    int32_t sm;              /**< 75, 80, 86, 89, 90, ... */
    int32_t multiprocessors;
    size_t memory_bytes;
    size_t l2_bytes;
    double bandwidth;        /**< Bytes a second that its memory is rated for; 0 if it does not
                                  say. */
    int32_t is_served;       /**< 1: this library has kernels for it. */
    int32_t reserved;
    double f16_ops;          /**< Products and sums a second that its tensor cores are rated for,
                                  f16 and bf16 into f32; 0 if unknown. */
    double int8_ops;         /**< The same for int8 into int32. */
} qn_cuda_info;

static inline void qn_cuda_info_init(qn_cuda_info *info)
{
    qn_zero_(info, sizeof *info);
    info->size = sizeof *info;
}
QN_API qn_status qn_cuda_info_init_sized(qn_cuda_info *info, size_t size);

/**
 * Facts of GPU number `index`, as the driver counts them. Any thread.
 * @return QN_OK; QN_E_ARGUMENT: info is NULL or its size unset; QN_E_DEVICE: no such GPU.
 */
QN_API qn_status qn_cuda_query(int32_t index, qn_cuda_info *info, qn_error *err);

/* ------------------------------------------------------------------------------------- streams */

/** A stream as CUDA's own headers declare it: cudaStream_t is a pointer to this. */
struct CUstream_st;

/**
 * From now on the context's work joins this stream (of its device). NULL is CUDA's default stream,
 * chosen on purpose; a new context has a stream of its own, which does not wait for the default
 * one. The stream is borrowed: it must outlive its use. One context for each stream is the advice:
 * no call on the context may be running, and scratch of the arena that work in the old stream still
 * uses would be used by the new one (synchronize first).
 * @return QN_OK; QN_E_ARGUMENT: ctx is NULL or on the CPU; QN_E_DEVICE: built without CUDA.
 */
QN_API qn_status qn_cuda_set_stream(qn_ctx *ctx, struct CUstream_st *stream);

/**
 * 1: launch with programmatic dependent launch: a kernel begins, and reads its weights, while the
 * one before it in the stream ends; x and y are touched after that. Right for streams in which
 * nobody writes weights between two calls. 0 (default): plain launches. GPUs before sm_90 ignore
 * it. Bits do not depend on it. Threads as above.
 * @return QN_OK; QN_E_ARGUMENT: ctx is NULL or on the CPU, pdl is neither 0 nor 1; QN_E_DEVICE.
 */
QN_API qn_status qn_cuda_set_pdl(qn_ctx *ctx, int32_t pdl);

/* -------------------------------------------------------------------------------------- memory */

/* Tensors and scratch may lie in any memory of the context's device (of this library, cudaMalloc(),
 * pools, a framework's), in managed memory, and in pinned host memory which the device knows by the
 * same address (slow: every access crosses the bus). Pageable host memory and memory of another GPU
 * are refused, QN_E_DEVICE. Pointers of 0 elements are not looked at. */

/**
 * Memory on the context's device, 256-byte aligned; the caller frees it with qn_cuda_free(). bytes
 * 0 gives NULL. For programs without CUDA calls of their own: any device memory will do for
 * tensors. Any thread.
 * @return QN_OK; QN_E_ARGUMENT: ctx or memory is NULL, ctx is on the CPU; QN_E_MEMORY (*memory is
 *         NULL); QN_E_DEVICE.
 */
QN_API qn_status qn_cuda_alloc(const qn_ctx *ctx, size_t bytes, void **memory, qn_error *err);
/** Waits until the device is idle. memory NULL is legal.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_DEVICE: memory did not come from the device, or the device is
 * lost. */
QN_API qn_status qn_cuda_free(const qn_ctx *ctx, void *memory);

/**
 * Copy between host and device in the order of the context's stream; return when it is done, so the
 * host memory may be anything. bytes 0: nothing happens, pointers may be NULL.
 * @return QN_OK; QN_E_ARGUMENT: a pointer is NULL, ctx is on the CPU; QN_E_DEVICE: the copy or
 *         anything before it in the stream has failed; device is host memory; the stream is being
 *         captured (the capture goes on without the copy).
 */
QN_API qn_status qn_cuda_upload(const qn_ctx *ctx, void *device, const void *host, size_t bytes,
                                qn_error *err);
QN_API qn_status qn_cuda_download(const qn_ctx *ctx, void *host, const void *device, size_t bytes,
                                  qn_error *err);
/**
 * Wait for all work of the context's stream.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_DEVICE: something in the stream has failed, err says what; the
 *         stream is being captured (the capture goes on).
 */
QN_API qn_status qn_cuda_synchronize(const qn_ctx *ctx, qn_error *err);

/* ---------------------------------------------------------------------------------------- time */

/** Make call number i of n_calls: with the context that is measured, and nothing that waits or
 * allocates. A failed status stops the measurement. */
typedef qn_status (*qn_cuda_call_fn)(void *arg, int32_t i);

/**
 * Time without the cost of launching: capture call(arg, 0) to call(arg, n_calls - 1) in a graph
 * (in a stream of its own, which is the context's until the function returns), replay it once
 * unmeasured and then `replays` times, and write the microseconds of each replay divided by n_calls
 * to us[replays]. Give each call weights of its own if they shall not come from the L2 cache.
 * Waits. No other call on the context may be running.
 * @return QN_OK; QN_E_ARGUMENT: NULL, ctx on the CPU, n_calls or replays less than 1; the first
 *         failed status of call; QN_E_MEMORY; QN_E_DEVICE: the calls cannot be captured, or failed.
 */
QN_API qn_status qn_cuda_measure(qn_ctx *ctx, qn_cuda_call_fn call, void *arg, int32_t n_calls,
                                 int32_t replays, double *us, qn_error *err);

/* --------------------------------------------------------------------------------------- costs */

/**
 * Plans choose kernels by a model of what m rows of x would cost:
 *     us = t0_us + max( bytes / bandwidth, steps * block_ns ) + before_us
 * A line of constants belongs to all kernels of one family that work on as many rows at a time,
 * with the same arithmetic, on codes of as many bits. The library brings constants for each GPU; a
 * program that has measured its own (`quern tune` does) sets them on its contexts.
 */
typedef struct qn_cuda_cost {
    size_t size;
    char family[16];    /**< "decode", "tile", "prefill", "rounded" (dense strategy). */
    int32_t rows;       /**< Of x, that a kernel works on at a time. */
    int32_t is_int8;    /**< 1: kernels of the int8 strategies. */
    int32_t bits;       /**< Of a code as it lies: 4 or 8. */
    int32_t is_given;   /**< 1: set on this context; 0: the library's. Ignored on the way in. */
    const char *kernel; /**< One of these kernels, static text; ignored on the way in. */
    double t0_us;       /**< Microseconds of a call whatever its size; 0 to 1e6. */
    double bandwidth;   /**< Bytes a second; 1e6 to 1e18. */
    double block_ns;    /**< Nanoseconds of a tile for 64 positions of k; 0 to 1e9. */
} qn_cuda_cost;

static inline void qn_cuda_cost_init(qn_cuda_cost *cost)
{
    qn_zero_(cost, sizeof *cost);
    cost->size = sizeof *cost;
}
QN_API qn_status qn_cuda_cost_init_sized(qn_cuda_cost *cost, size_t size);

/**
 * The i-th line that kernels of the context's GPU have, i from 0. Any thread that does not set one.
 * @return QN_OK; QN_E_ARGUMENT: NULL, size unset, ctx on the CPU; QN_E_NOT_FOUND: i is past the
 *         end; QN_E_DEVICE: built without CUDA.
 */
QN_API qn_status qn_cuda_get_cost(const qn_ctx *ctx, int32_t i, qn_cuda_cost *cost, qn_error *err);
/**
 * From now on plans of this context, and direct calls, count with these constants for the line of
 * this family, rows, is_int8 and bits. Plans that are there keep their kernels. No other call on
 * the context may be running. What is computed does not depend on it beyond the choice of kernels.
 * @return QN_OK; QN_E_ARGUMENT: NULL, size unset, ctx on the CPU; QN_E_NOT_FOUND: this GPU has no
 *         such line; QN_E_VALUE: a constant is out of its range, or no number; QN_E_DEVICE.
 */
QN_API qn_status qn_cuda_set_cost(qn_ctx *ctx, const qn_cuda_cost *cost, qn_error *err);

/** What the model says of the largest m of a plan. All 0 for depthwise convolutions, which have one
 * kernel, but roofline_us. */
typedef struct qn_cuda_prediction {
    size_t size;
    double us;
    double roofline_us; /**< By the rated speed of memory and arithmetic. */
    double bytes;       /**< What bandwidth divides. */
    double steps;       /**< What block_ns multiplies. */
    double before_us;   /**< Preparing rows of x, where the kernel cannot read them as they lie. */
} qn_cuda_prediction;

static inline void qn_cuda_prediction_init(qn_cuda_prediction *prediction)
{
    qn_zero_(prediction, sizeof *prediction);
    prediction->size = sizeof *prediction;
}
QN_API qn_status qn_cuda_prediction_init_sized(qn_cuda_prediction *prediction, size_t size);

/** @return QN_OK; QN_E_ARGUMENT: NULL, size unset, or the plan is for the CPU. */
QN_API qn_status qn_cuda_predict(const qn_plan *plan, qn_cuda_prediction *prediction);

#ifdef __cplusplus
}
#endif
#endif
