/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of GPUs over the program's own NCCL. A header alone: the library links no NCCL.
 *
 *     struct qn_nccl nccl;
 *     qn_comm comm;
 *     qn_nccl_open(&nccl, communicator, stream, rank, n_ranks, 30.0, &comm, &err);
 *     qn_cuda_set_stream(ctx, stream);
 *     qn_nccl_plan(ctx, &nccl, QN_SPLIT_ROW, &matmul, &product, &err);
 *     qn_nccl_run(&product, &matmul, scratch, scratch_bytes, &err);   captured, or run, many times
 *
 * Two kinds of calls. What ranks agree on (plans, errors, the callbacks of qn_comm) passes through
 * the host: it waits, at most the time limit, and ends in QN_E_PEER and an aborted communicator
 * where a rank is lost. What moves tensors joins the stream: it waits for nothing, allocates
 * nothing, and can be captured in a CUDA graph; a rank that is lost then shows where the program
 * waits for its stream: qn_nccl_wait() is such a wait with a limit.
 *
 * A process for each GPU, or one process with a thread, a struct qn_nccl and a qn_ctx for each GPU,
 * whose device is the thread's current one. One thread at a time uses a struct qn_nccl. */
#ifndef QUERN_NCCL_H
#define QUERN_NCCL_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the host sends at once; longer blocks go in pieces. */
enum { QN_NCCL_PIECE = 1 << 16 };

struct qn_nccl {
    ncclComm_t comm;     /**< Borrowed; NULL once it has been aborted. */
    cudaStream_t stream; /**< Borrowed: that of the context. */
    int32_t rank, n_ranks;
    double limit_s;      /**< Longest wait of the host; 0: without end. */
    char *staged;        /**< On the device: a piece to send, then one of each rank. */
};

static inline qn_status qn_nccl_cuda_(cudaError_t code, const char *what, qn_error *err)
{
    if (code == cudaSuccess)
        return QN_OK;
    (void)cudaGetLastError(); /* what is told here is not told again */
    return qn_comm_fail_(err, QN_E_DEVICE, what, cudaGetErrorString(code));
}

static inline qn_status qn_nccl_nccl_(ncclResult_t code, const char *what, qn_error *err)
{
    return code == ncclSuccess || code == ncclInProgress
               ? QN_OK
               : qn_comm_fail_(err, QN_E_PEER, what, ncclGetErrorString(code));
}

static inline double qn_nccl_now_(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** NCCL's name of an element type. false: it is not summed. */
static inline bool qn_nccl_type_(qn_dtype dtype, ncclDataType_t *type)
{
    *type = dtype == QN_F32    ? ncclFloat32
            : dtype == QN_F16  ? ncclFloat16
            : dtype == QN_BF16 ? ncclBfloat16
                               : ncclInt32;
    return dtype == QN_F32 || dtype == QN_F16 || dtype == QN_BF16 || dtype == QN_I32;
}

static inline qn_status qn_nccl_check_(const struct qn_nccl *nccl, const char *what, qn_error *err)
{
    return nccl->comm != NULL ? QN_OK
                              : qn_comm_fail_(err, QN_E_PEER, what,
                                              "the communicator was aborted after a failure");
}

/* ---- in the stream: no wait, no allocation, capturable --------------------------------------- */

/** Every rank gives `bytes` bytes of its device; recv, on each device, gets those of all ranks. */
static inline qn_status qn_nccl_all_gather(const struct qn_nccl *nccl, const void *send,
                                           size_t bytes, void *recv, qn_error *err)
{
    const qn_status status = qn_nccl_check_(nccl, "all-gather: ", err);
    return status != QN_OK ? status
                           : qn_nccl_nccl_(ncclAllGather(send, recv, bytes, ncclInt8, nccl->comm,
                                                         nccl->stream),
                                           "ncclAllGather: ", err);
}

/** data[count] on each device becomes the sum or the maximum of all ranks': f32, f16, bf16 (NCCL's
 * order and roundings, the same bits on all ranks) or i32, which is exact. */
static inline qn_status qn_nccl_all_reduce(const struct qn_nccl *nccl, void *data, size_t count,
                                           qn_dtype dtype, qn_reduce reduce, qn_error *err)
{
    ncclDataType_t type;
    const qn_status status = qn_nccl_check_(nccl, "all-reduce: ", err);
    if (status != QN_OK)
        return status;
    if (!qn_nccl_type_(dtype, &type))
        return qn_comm_fail_(err, QN_E_DTYPE, "all-reduce: ", "not of f32, f16, bf16 or i32");
    return qn_nccl_nccl_(ncclAllReduce(data, data, count, type,
                                       reduce == QN_REDUCE_MAX ? ncclMax : ncclSum, nccl->comm,
                                       nccl->stream),
                         "ncclAllReduce: ", err);
}

/** Rank r's recv[count] becomes the sum of all ranks' send[r * count ...]: for layers that go on
 * with a part of the rows. Types as above. */
static inline qn_status qn_nccl_reduce_scatter(const struct qn_nccl *nccl, const void *send,
                                               void *recv, size_t count, qn_dtype dtype,
                                               qn_error *err)
{
    ncclDataType_t type;
    const qn_status status = qn_nccl_check_(nccl, "reduce-scatter: ", err);
    if (status != QN_OK)
        return status;
    if (!qn_nccl_type_(dtype, &type))
        return qn_comm_fail_(err, QN_E_DTYPE, "reduce-scatter: ", "not of f32, f16, bf16 or i32");
    return qn_nccl_nccl_(
        ncclReduceScatter(send, recv, count, type, ncclSum, nccl->comm, nccl->stream),
        "ncclReduceScatter: ", err);
}

/* ---- through the host: with a time limit ----------------------------------------------------- */

/** Waits for the stream, at most the time limit. A rank that is lost, or a failure of NCCL, aborts
 * the communicator: the stream then comes to its end, and every later call says so. Not while the
 * stream is being captured.
 * @return QN_OK; QN_E_PEER; QN_E_DEVICE. */
static inline qn_status qn_nccl_wait(struct qn_nccl *nccl, qn_error *err)
{
    const double end = qn_nccl_now_() + nccl->limit_s;
    qn_status status = qn_nccl_check_(nccl, "waiting: ", err);
    while (status == QN_OK) {
        const cudaError_t done = cudaStreamQuery(nccl->stream);
        ncclResult_t state = ncclSuccess;
        if (done == cudaSuccess)
            return QN_OK;
        if (done != cudaErrorNotReady)
            return qn_nccl_cuda_(done, "the stream: ", err);
        (void)cudaGetLastError(); /* "not ready" is no error */
        status = qn_nccl_nccl_(ncclCommGetAsyncError(nccl->comm, &state), "NCCL: ", err);
        if (status == QN_OK)
            status = qn_nccl_nccl_(state, "NCCL: ", err);
        if (status == QN_OK && nccl->limit_s > 0.0 && qn_nccl_now_() > end)
            status = qn_comm_fail_(err, QN_E_PEER, "NCCL: ",
                                   "another rank did not answer in time");
    }
    if (nccl->comm != NULL)
        (void)ncclCommAbort(nccl->comm);
    nccl->comm = NULL;
    return status;
}

/* qn_comm's callbacks: host memory, through `staged`. */

static inline qn_status qn_nccl_gather_piece_(struct qn_nccl *nccl, const char *send, size_t bytes,
                                              char *recv, size_t pitch, qn_error *err)
{
    char *const all = nccl->staged + QN_NCCL_PIECE;
    qn_status status = qn_nccl_check_(nccl, "all-gather: ", err);
    if (status == QN_OK)
        status = qn_nccl_cuda_(cudaMemcpyAsync(nccl->staged, send, bytes, cudaMemcpyHostToDevice,
                                               nccl->stream),
                               "cudaMemcpyAsync: ", err);
    if (status == QN_OK)
        status = qn_nccl_all_gather(nccl, nccl->staged, bytes, all, err);
    if (status == QN_OK) /* before the host reads: a copy back would wait without a limit */
        status = qn_nccl_wait(nccl, err);
    if (status == QN_OK)
        status = qn_nccl_cuda_(cudaMemcpy2DAsync(recv, pitch, all, bytes, bytes,
                                                 (size_t)nccl->n_ranks, cudaMemcpyDeviceToHost,
                                                 nccl->stream),
                               "cudaMemcpy2DAsync: ", err);
    return status == QN_OK ? qn_nccl_wait(nccl, err) : status;
}

static inline qn_status qn_nccl_host_all_gather(void *arg, const void *send, size_t bytes,
                                                void *recv, qn_error *err)
{
    const size_t piece = QN_NCCL_PIECE;
    qn_status status = QN_OK;
    for (size_t at = 0; at < bytes && status == QN_OK; at += piece)
        status = qn_nccl_gather_piece_((struct qn_nccl *)arg, (const char *)send + at,
                                       bytes - at < piece ? bytes - at : piece, (char *)recv + at,
                                       bytes, err);
    return status;
}

static inline qn_status qn_nccl_host_all_reduce(void *arg, void *data, size_t count, qn_dtype dtype,
                                                qn_reduce reduce, qn_error *err)
{
    struct qn_nccl *const nccl = (struct qn_nccl *)arg;
    const size_t most = QN_NCCL_PIECE;
    qn_status status = qn_nccl_check_(nccl, "all-reduce: ", err);
    for (size_t at = 0; at < count * 4 && status == QN_OK; at += most) {
        const size_t bytes = count * 4 - at < most ? count * 4 - at : most;
        char *const piece = (char *)data + at;
        status = qn_nccl_cuda_(cudaMemcpyAsync(nccl->staged, piece, bytes, cudaMemcpyHostToDevice,
                                               nccl->stream),
                               "cudaMemcpyAsync: ", err);
        if (status == QN_OK)
            status = qn_nccl_all_reduce(nccl, nccl->staged, bytes / 4, dtype, reduce, err);
        if (status == QN_OK)
            status = qn_nccl_wait(nccl, err);
        if (status == QN_OK)
            status = qn_nccl_cuda_(cudaMemcpyAsync(piece, nccl->staged, bytes,
                                                   cudaMemcpyDeviceToHost, nccl->stream),
                                   "cudaMemcpyAsync: ", err);
        if (status == QN_OK)
            status = qn_nccl_wait(nccl, err);
    }
    return status;
}

/** Every rank tells its status; QN_OK if all are. Else the rank's own, or QN_E_PEER. For whatever a
 * program does on its own before it enqueues exchanges: no rank then waits for one that failed. */
static inline qn_status qn_nccl_agree(struct qn_nccl *nccl, qn_status own, qn_error *err)
{
    int32_t failed = own != QN_OK;
    const qn_status told = qn_nccl_host_all_reduce(nccl, &failed, 1, QN_I32, QN_REDUCE_MAX,
                                                   own == QN_OK ? err : NULL);
    if (own != QN_OK || told != QN_OK)
        return own != QN_OK ? own : told;
    return failed == 0 ? QN_OK
                       : qn_comm_fail_(err, QN_E_PEER, "another rank failed, ",
                                       "and its own error says why");
}

/** communicator: one of n_ranks, in which this process (or thread) is `rank`; borrowed, as stream.
 * The device is the current one. *to, for products of CPU contexts and for agreements, is filled
 * with callbacks; nccl stays where it is until qn_nccl_close().
 * @return QN_OK; QN_E_ARGUMENT; QN_E_MEMORY: no memory on the device. */
static inline qn_status qn_nccl_open(struct qn_nccl *nccl, ncclComm_t communicator,
                                     cudaStream_t stream, int32_t rank, int32_t n_ranks,
                                     double limit_s, qn_comm *to, qn_error *err)
{
    void *staged = NULL;
    if (nccl == NULL || communicator == NULL || to == NULL || rank < 0 || rank >= n_ranks ||
        !(limit_s >= 0.0))
        return qn_comm_fail_(err, QN_E_ARGUMENT, "qn_nccl_open: ",
                             "NULL, a rank beyond n_ranks, or a limit that is no time");
    if (cudaMalloc(&staged, ((size_t)n_ranks + 1) * QN_NCCL_PIECE) != cudaSuccess) {
        (void)cudaGetLastError();
        return qn_comm_fail_(err, QN_E_MEMORY, "qn_nccl_open: ", "no memory on the device");
    }
    nccl->comm = communicator;
    nccl->stream = stream;
    nccl->rank = rank;
    nccl->n_ranks = n_ranks;
    nccl->limit_s = limit_s;
    nccl->staged = (char *)staged;
    qn_comm_init(to);
    to->rank = rank;
    to->n_ranks = n_ranks;
    to->arg = nccl;
    to->all_gather = qn_nccl_host_all_gather;
    to->all_reduce = qn_nccl_host_all_reduce;
    return QN_OK;
}

/** The communicator stays the caller's, unless it was aborted (comm is NULL): then NCCL has freed
 * it. */
static inline void qn_nccl_close(struct qn_nccl *nccl)
{
    if (nccl != NULL)
        (void)cudaFree(nccl->staged);
}

/* ---- products -------------------------------------------------------------------------------- */

/**
 * A product that all ranks' GPUs compute together: the rank's own, planned, and an exchange in the
 * stream. args of the whole call, as of qn_parallel_args:
 *   QN_SPLIT_COLUMN  w: the rank's outputs; bias, col_scale of these; y [m, n of all] on every
 *                    rank, without residual: the bits of one GPU.
 *   QN_SPLIT_ROW     w, x: the rank's columns; y [m, n] in one piece, of f32, f16, bf16 or i32. y
 *                    is summed as NCCL adds, in its own type; i32 (int8-static) is exact. bias and
 *                    residual are added by rank 0, before the sum; activation, clamp, scales and
 *                    gates would come after it, and are refused.
 */
typedef struct qn_nccl_product {
    struct qn_nccl *nccl;
    qn_split split;
    qn_plan *plan;
    qn_dtype y_type;
    int64_t m, n, own_n, widest;
    int64_t *n_of;         /* column: outputs of each rank */
    size_t scratch_bytes;  /**< Of a run, on the device, aligned to 256 bytes. */
    size_t own_bytes;      /* of it, of the rank's own product */
} qn_nccl_product;

static inline size_t qn_nccl_round_(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* The rank's own product; y: where its outputs go. */
static inline qn_matmul_args qn_nccl_own_(const qn_nccl_product *p, const qn_matmul_args *args,
                                          void *part)
{
    qn_matmul_args own = *args;
    if (p->split == QN_SPLIT_COLUMN) {
        own.y.data = part;
        own.y.shape[1] = p->own_n;
        own.y.stride[0] = p->own_n;
    } else if (p->nccl->rank != 0) {
        own.epilogue.bias = qn_tensor_none();
        own.epilogue.residual = qn_tensor_none();
    }
    return own;
}

static inline qn_status qn_nccl_check_args_(const qn_nccl_product *p, const qn_matmul_args *a,
                                            qn_error *err)
{
    const qn_epilogue *const e = &a->epilogue;
    if (a->y.rank != 2 || a->x.rank != 2)
        return qn_comm_fail_(err, QN_E_SHAPE, "x and y ", "are matrices over several GPUs");
    if (p->split == QN_SPLIT_COLUMN)
        return e->residual.rank == 0 && a->more == NULL && a->prepared == NULL
                   ? QN_OK
                   : qn_comm_fail_(err, QN_E_UNSUPPORTED, "a column product over several GPUs ",
                                   "takes no residual, prepared rows or more of an epilogue");
    if (e->act != QN_ACT_NONE || e->clamp_lo >= -3.402823466e+38f ||
        e->clamp_hi <= 3.402823466e+38f || e->row_scale.rank != 0 || e->col_scale.rank != 0 ||
        a->more != NULL)
        return qn_comm_fail_(err, QN_E_UNSUPPORTED, "a row product over several GPUs ",
                             "adds bias and residual alone: activation, clamp and scales come "
                             "after the sum");
    if (a->y.dtype != QN_F32 && a->y.dtype != QN_F16 && a->y.dtype != QN_BF16 &&
        a->y.dtype != QN_I32)
        return qn_comm_fail_(err, QN_E_DTYPE, "y of a row product over several GPUs ",
                             "is f32, f16, bf16 or i32");
    return a->y.shape[0] <= 1 || a->y.stride[0] == a->y.shape[1]
               ? QN_OK
               : qn_comm_fail_(err, QN_E_STRIDE, "y of a row product over several GPUs ",
                               "lies in one piece");
}

static inline void qn_nccl_destroy(qn_nccl_product *product)
{
    if (product == NULL)
        return;
    qn_plan_destroy(product->plan);
    free(product->n_of);
    product->plan = NULL;
    product->n_of = NULL;
}

/* What a rank says of its arguments: all the same on all ranks, but for n of column products. */
enum { QN_NCCL_FACTS_ = 8 };

static inline void qn_nccl_state_(const qn_nccl_product *p, const qn_matmul_args *a,
                                  const qn_packed_info *info, int64_t facts[QN_NCCL_FACTS_])
{
    facts[0] = p->split == QN_SPLIT_COLUMN ? info->n : 0;
    facts[1] = p->split;
    facts[2] = a->x.shape[0];
    facts[3] = a->y.shape[1];
    facts[4] = a->y.dtype;
    facts[5] = a->strategy;
    facts[6] = p->split == QN_SPLIT_COLUMN ? info->k : 0;
    facts[7] = a->x.dtype;
}

static inline qn_status qn_nccl_compare_(qn_nccl_product *p, const int64_t *all, qn_error *err)
{
    int64_t sum = 0;
    for (int32_t r = 0; r < p->nccl->n_ranks; r++) {
        const int64_t *const facts = all + (size_t)r * QN_NCCL_FACTS_;
        for (int f = 1; f < QN_NCCL_FACTS_; f++)
            if (facts[f] != all[f])
                return qn_comm_fail_(err, QN_E_PEER, "ranks differ in split, m, n, k, strategy or ",
                                     "types: they make no product together");
        p->n_of[r] = facts[0];
        sum += facts[0];
        p->widest = facts[0] > p->widest ? facts[0] : p->widest;
    }
    return p->split == QN_SPLIT_ROW || sum == p->n
               ? QN_OK
               : qn_comm_fail_(err, QN_E_SHAPE, "y ", "has not the outputs of all ranks together");
}

static inline qn_status qn_nccl_plan_own_(const qn_ctx *ctx, qn_nccl_product *p,
                                          const qn_matmul_args *args, qn_error *err)
{
    const qn_matmul_args own = qn_nccl_own_(p, args, NULL);
    const qn_status status = qn_matmul_plan(ctx, &own, &p->plan, err);
    const size_t part = qn_nccl_round_((size_t)(p->m * p->widest) * qn_dtype_bytes(p->y_type));
    p->own_bytes = qn_nccl_round_(qn_plan_scratch_bytes(p->plan));
    p->scratch_bytes = p->own_bytes;
    if (p->split == QN_SPLIT_COLUMN)
        p->scratch_bytes += part * ((size_t)p->nccl->n_ranks + 1);
    return status;
}

/** On all ranks at once; ranks compare their arguments, and where one fails all do. Data pointers
 * are not looked at. Allocates and waits. *product: qn_nccl_destroy() frees what it holds.
 * @return as qn_matmul_plan(), and QN_E_PEER. */
static inline qn_status qn_nccl_plan(const qn_ctx *ctx, struct qn_nccl *nccl, qn_split split,
                                     const qn_matmul_args *args, qn_nccl_product *product,
                                     qn_error *err)
{
    const size_t ranks = (size_t)nccl->n_ranks;
    int64_t facts[QN_NCCL_FACTS_] = {0};
    int64_t *const all = (int64_t *)malloc(ranks * sizeof facts);
    qn_packed_info info;
    qn_packed_info_init(&info);
    qn_zero_(product, sizeof *product);
    product->nccl = nccl;
    product->split = split;
    product->n_of = (int64_t *)malloc(ranks * sizeof *product->n_of);
    qn_status status = all != NULL && product->n_of != NULL ? QN_OK : QN_E_MEMORY;
    if (status == QN_OK && args->w == NULL)
        status = qn_comm_fail_(err, QN_E_ARGUMENT, "w ", "is NULL");
    if (status == QN_OK)
        status = qn_packed_query(args->w, &info);
    if (status == QN_OK)
        status = qn_nccl_check_args_(product, args, err);
    if (status == QN_OK) {
        product->own_n = info.n;
        product->m = args->x.shape[0];
        product->n = args->y.shape[1];
        product->y_type = args->y.dtype;
        qn_nccl_state_(product, args, &info, facts);
    }
    status = qn_nccl_agree(nccl, status, err);
    if (status == QN_OK)
        status = qn_nccl_host_all_gather(nccl, facts, sizeof facts, all, err);
    if (status == QN_OK) {
        status = qn_nccl_compare_(product, all, err);
        if (status == QN_OK)
            status = qn_nccl_plan_own_(ctx, product, args, err);
        status = qn_nccl_agree(nccl, status, err);
    }
    free(all);
    if (status != QN_OK)
        qn_nccl_destroy(product);
    return status;
}

static inline qn_status qn_nccl_gather_y_(const qn_nccl_product *p, const qn_matmul_args *args,
                                          char *part, qn_error *err)
{
    const size_t element = qn_dtype_bytes(p->y_type);
    const size_t block = qn_nccl_round_((size_t)(p->m * p->widest) * element);
    const int64_t m = args->x.shape[0];
    qn_status status = qn_nccl_all_gather(p->nccl, part, block, part + block, err);
    int64_t first = 0;
    for (int32_t r = 0; r < p->nccl->n_ranks && status == QN_OK; r++) {
        const size_t row = (size_t)p->n_of[r] * element;
        if (row > 0 && m > 0)
            status = qn_nccl_cuda_(
                cudaMemcpy2DAsync((char *)args->y.data + (size_t)first * element,
                                  (size_t)args->y.stride[0] * element,
                                  part + block * ((size_t)r + 1), row, row, (size_t)m,
                                  cudaMemcpyDeviceToDevice, p->nccl->stream),
                "cudaMemcpy2DAsync: ", err);
        first += p->n_of[r];
    }
    return status;
}

/** Joins the stream, on all ranks, with the same m (at most the planned one). Allocates nothing,
 * waits for nothing, asks nobody: capturable. Where a rank's own product is refused it still
 * exchanges, so that the others come to an end; their y is then of no use, and qn_nccl_agree()
 * after the run tells them. Arguments that are not what was planned exchange nothing: the others
 * then end by the limit of qn_nccl_wait(). scratch: product->scratch_bytes, of the device.
 * @return as qn_matmul_run(), and QN_E_PEER: NCCL said no. */
static inline qn_status qn_nccl_run(const qn_nccl_product *product, const qn_matmul_args *args,
                                    void *scratch, size_t scratch_bytes, qn_error *err)
{
    const qn_nccl_product *const p = product;
    if (scratch_bytes < p->scratch_bytes || (scratch == NULL && p->scratch_bytes > 0))
        return qn_comm_fail_(err, QN_E_SCRATCH, "scratch ",
                             "is smaller than product->scratch_bytes");
    char *const part = (char *)scratch + p->own_bytes;
    qn_status status = qn_nccl_check_args_(p, args, err);
    if (status == QN_OK && (args->x.shape[0] > p->m || args->y.shape[1] != p->n ||
                            args->y.dtype != p->y_type))
        status = qn_comm_fail_(err, QN_E_SHAPE, "x and y ", "are not what was planned");
    if (status != QN_OK)
        return status;
    qn_matmul_args own = qn_nccl_own_(p, args, part);
    if (err != NULL)
        own.error = err;
    status = qn_matmul_run(p->plan, &own, scratch, p->own_bytes);
    const qn_status told =
        p->split == QN_SPLIT_COLUMN
            ? qn_nccl_gather_y_(p, args, part, status == QN_OK ? err : NULL)
            : qn_nccl_all_reduce(p->nccl, args->y.data, (size_t)(args->x.shape[0] * p->n),
                                 p->y_type, QN_REDUCE_SUM, status == QN_OK ? err : NULL);
    return status != QN_OK ? status : told;
}

#ifdef __cplusplus
}
#endif
#endif
