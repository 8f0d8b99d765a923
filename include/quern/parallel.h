/* SPDX-License-Identifier: Apache-2.0 */
/* One product over several processes: every rank holds a shard of the weights, and what ranks tell
 * each other goes through callbacks over the caller's own MPI (quern/mpi.h), NCCL or sockets. The
 * library opens no connection and starts no process.
 *
 *     column   outputs are cut: rank r has rows of W, reads all of x, and computes its columns of y
 *     row      k is cut: rank r has columns of W and of x, and the sums of all ranks are added
 *
 * A block of two layers is a column product, whatever stands between, and a row product: nothing is
 * exchanged in the middle. docs/guide/parallel.md says which bits come out. */
#ifndef QUERN_PARALLEL_H
#define QUERN_PARALLEL_H

#include "base.h"
#include "checkpoint.h"
#include "context.h"
#include "ops.h"
#include "weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------- ranks */

typedef int32_t qn_reduce;
enum { QN_REDUCE_SUM = 0, QN_REDUCE_MAX = 1 };

/* Callbacks return when their result is there, or fail with a status and, where err is not NULL, a
 * sentence. To bound the time that they wait for others is their own work (QN_E_PEER). */

/** Every rank gives `bytes` bytes; recv gets those of all ranks, in order of rank. */
typedef qn_status (*qn_all_gather_fn)(void *arg, const void *send, size_t bytes, void *recv,
                                      qn_error *err);
/** data[i] becomes the sum or the maximum over all ranks, the same bits on each. dtype: QN_I32,
 * whose sums wrap, or QN_F32. */
typedef qn_status (*qn_all_reduce_fn)(void *arg, void *data, size_t count, qn_dtype dtype,
                                      qn_reduce reduce, qn_error *err);
/** Block i of send ([n_ranks] blocks of `bytes`) goes to rank i, block i of recv comes from
 * there. */
typedef qn_status (*qn_all_to_all_fn)(void *arg, const void *send, size_t bytes, void *recv,
                                      qn_error *err);

/** Waits for what all_gather_begin has started. */
typedef qn_status (*qn_wait_fn)(void *arg, qn_error *err);

/**
 * How this process talks to the others. All ranks make the same calls in the same order. After a
 * failure the ranks no longer agree on what comes next: a qn_comm that failed must not be used
 * again.
 */
typedef struct qn_comm {
    size_t size;
    int32_t rank, n_ranks;
    void *arg;
    qn_all_gather_fn all_gather;
    qn_all_reduce_fn all_reduce;
    qn_all_to_all_fn all_to_all; /**< NULL (default), or for ordered sums over more than two ranks:
                                      they then move 2 blocks instead of n_ranks. */
    double latency_s;   /**< Seconds of an exchange of few bytes among all ranks, and ... */
    double bytes_per_s; /**< ... bytes a second that a rank receives of many, as `quern tune --comm`
                             measures them; 0 (default): unknown. For predictions alone. */
    qn_all_gather_fn all_gather_begin; /**< NULL (default), or for overlap: starts what all_gather
                                            does and returns at once; one is under way at a time,
                                            and its blocks stay until ... */
    qn_wait_fn wait;                   /**< ... this says that it is done. Both or none. */
} qn_comm;
static inline void qn_comm_init(qn_comm *comm)
{
    qn_zero_(comm, sizeof *comm);
    comm->size = sizeof *comm;
    comm->n_ranks = 1;
}
QN_API qn_status qn_comm_init_sized(qn_comm *comm, size_t size);

/* For callbacks: a failure and its sentence, of two parts; err may be NULL. Returns status. */
static inline qn_status qn_comm_fail_(qn_error *err, qn_status status, const char *what,
                                      const char *why)
{
    size_t n = 0;
    if (err == NULL)
        return status;
    err->status = status;
    err->offset = -1;
    while (*what != 0 && n + 1 < sizeof err->text)
        err->text[n++] = *what++;
    while (*why != 0 && n + 1 < sizeof err->text)
        err->text[n++] = *why++;
    err->text[n] = 0;
    return status;
}

/* --------------------------------------------------------------------------------------- shards */

typedef int32_t qn_split;
enum { QN_SPLIT_COLUMN = 0, QN_SPLIT_ROW = 1 };
/** "column", "row"; "?" for an unknown value. Static text. */
QN_API const char *qn_split_name(qn_split split);

/**
 * The part of [0, extent) that a rank has when nothing but whole units are dealt out (the last unit
 * may be short), as evenly as they go: the first ranks have one more. 231 units over two ranks are
 * 116 and 115. A rank may have nothing.
 * @return QN_OK; QN_E_ARGUMENT.
 */
QN_API qn_status qn_shard_range(int64_t extent, int64_t unit, int32_t rank, int32_t n_ranks,
                                int64_t *first, int64_t *count);

/**
 * A rank's shard of a weight, without rounding. Column: outputs, in whole convolution groups; of
 * convolutions too. Row: whole groups of k (any columns where an output has a single group), of
 * matrices only. With act-order a row shard has whole groups in the order of codes, so that any
 * number of ranks divides any act-order; its x is then not a range of columns, and
 * qn_weight_shard_columns() tells which it is.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_UNSUPPORTED: rows of a convolution; QN_E_MEMORY.
 */
QN_API qn_status qn_weight_shard(const qn_ctx *ctx, const qn_weight *weight, qn_split split,
                                 int32_t rank, int32_t n_ranks, qn_weight **shard, qn_error *err);

/**
 * Which columns of the whole x a rank's row shard reads: column i of its x is column columns[i] of
 * the whole. Without act-order a range. capacity: elements of columns; *count: how many there are
 * (columns may be NULL with capacity 0).
 * The layer before, cut by column, computes just these if its shard is made by qn_weight_take().
 * @return QN_OK; QN_E_ARGUMENT: also where capacity is less than *count; QN_E_UNSUPPORTED.
 */
QN_API qn_status qn_weight_shard_columns(const qn_weight *weight, int32_t rank, int32_t n_ranks,
                                         int32_t *columns, int64_t capacity, int64_t *count,
                                         qn_error *err);

/**
 * A rank's shard of module i of a checkpoint, as qn_checkpoint_load() and then qn_weight_shard()
 * make it; by column of experts the shard of each one, one below the other. Of the files only the
 * bytes of the shard are read, as qn_checkpoint_load_part() says; row shards of weights with
 * act-order are cut from the whole, which is in memory meanwhile.
 * @return as qn_checkpoint_load() and as qn_weight_shard().
 */
QN_API qn_status qn_checkpoint_load_shard(const qn_ctx *ctx, const qn_checkpoint *checkpoint,
                                          int64_t i, qn_split split, int32_t rank, int32_t n_ranks,
                                          qn_weight **shard, qn_error *err);

/* ------------------------------------------------------------------------------------- products */

/** How the partial sums of a row product are added. */
typedef int32_t qn_sum_order;
enum {
    QN_SUM_EXACT = 0,  /**< Default. int8-row and int8-static of weights with one group an output:
                            the int32 sums are added, and the result has the bits of one process.
                            Else as ORDERED; the plan tells which. */
    QN_SUM_ORDERED = 1, /**< f32 sums are gathered and added in order of rank: the same bits on all
                            ranks and in every run; not those of one process. */
    QN_SUM_FAST = 2    /**< f32 sums by the caller's all_reduce: its bits. */
};

/**
 * A product that all ranks compute together, or products of experts (grouped). Ranks with the
 * same arguments but for w, x (row), y and the data of tensors make one product; what differs is
 * found by qn_parallel_plan().
 *
 * matmul, by split:
 *   column   w: the rank's outputs. x: all of x, the same on all ranks. bias, col_scale: of the
 *            rank's outputs. y and residual: [m, n of the rank], or with gather_y [m, n of all].
 *   row      w: the rank's columns. x: [m, k of the rank]. y, bias, residual, scales: of all n
 *            outputs, the same on all ranks; they count once. Every rank gets all of y.
 *
 * grouped: likewise, with a shard of every expert on each rank; bias and col_scale may be of each
 * expert. ids tell the experts, the same ones on all ranks; rows of a negative id are left
 * untouched, and offsets and batches are refused.
 *
 * Prepared rows of x (qn_prepare()) are for column products that gather nothing.
 */
typedef struct qn_parallel_args {
    size_t size;
    const qn_comm *comm;          /**< Borrowed by a plan until it is destroyed. */
    const qn_matmul_args *matmul; /**< The product, or NULL with ... */
    qn_split split;
    int32_t gather_y;       /**< Column: 1: every rank gets all of y. Default 0: nothing is
                                       exchanged. */
    qn_sum_order sum_order; /**< Row. */
    int32_t is_trusted;     /**< 1: a run does not ask first whether all ranks are in it with
                                       the same m and good arguments, which takes one short
                                       exchange. A rank that calls otherwise may then leave the
                                       others waiting for their callback's time limit. */
    const qn_grouped_args *grouped; /**< ... this: products of experts. Default NULL. */
} qn_parallel_args;
static inline void qn_parallel_args_init(qn_parallel_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
}
QN_API qn_status qn_parallel_args_init_sized(qn_parallel_args *args, size_t size);

typedef struct qn_parallel qn_parallel;

/**
 * Plan on all ranks at once: every rank must call it. Ranks compare what they were given before
 * anything else; where one rank fails or differs, every rank fails, and err names the rank and what
 * it is about. Data pointers are not looked at. For the CPU.
 * @return as qn_matmul_plan(), and QN_E_PEER: another rank failed or differs, or what the
 *         callbacks return.
 */
QN_API qn_status qn_parallel_plan(const qn_ctx *ctx, const qn_parallel_args *args,
                                  qn_parallel **plan, qn_error *err);
/** NULL is legal. */
QN_API void qn_parallel_destroy(qn_parallel *plan);
/** Scratch of a run of at most the planned m, aligned to 64 bytes. */
QN_API size_t qn_parallel_scratch_bytes(const qn_parallel *plan);
/** Seconds that a run of the planned m spends in exchanges, by comm->latency_s and bytes_per_s; 0
 * where these are unknown, nothing is exchanged, or plan is NULL. */
QN_API double qn_parallel_predict(const qn_parallel *plan);
/**
 * Split, what is exchanged and how many bytes of it, how long that takes if it can be predicted,
 * whose bits come out; then what qn_plan_explain() says of the rank's own product. Like
 * qn_plan_explain().
 */
QN_API size_t qn_parallel_explain(const qn_parallel *plan, char *text, size_t capacity);
/**
 * Compute y on all ranks at once. args: as planned, m at most the planned one and the same on all
 * ranks. Nothing is allocated. One run of a qn_comm at a time.
 * @return as qn_matmul_run(), and QN_E_PEER as above. Where any rank's arguments are bad no rank
 *         has touched y; a rank that is lost later may leave y half written.
 */
QN_API qn_status qn_parallel_run(const qn_parallel *plan, const qn_parallel_args *args,
                                 void *scratch, size_t scratch_bytes, qn_error *err);

/* -------------------------------------------------------------------------- experts, each whole */

/**
 * Products of experts, each of which one rank has, for tokens of all ranks: rows of x are sent to
 * the rank of their expert, multiplied there, and what comes out is sent back. Rank r has experts
 * qn_shard_range(n_experts, 1, r, n_ranks), in grouped->w; grouped->n_experts is their number,
 * which may be 0. x, y, ids (of all experts) and x_rows are the rank's own tokens, as many as it
 * has; all else is the same on all ranks. bias and col_scale: [n], or [experts of the rank, n].
 * What belongs to rows of y (residual, row_scale, factor) is not sent and refused:
 * qn_combine_rows() adds it.
 * int8 strategies have the bits of one process; float ones may choose a kernel by how many rows
 * meet, and differ within their bound.
 */
typedef struct qn_parallel_experts_args {
    size_t size;
    const qn_comm *comm;            /**< With all_to_all; without it all_gather moves n_ranks times
                                         as much. */
    const qn_grouped_args *grouped; /**< Told by ids. */
    int32_t n_experts;              /**< Of all ranks. */
    int32_t reserved;               /**< 0. */
    int64_t n, k;                   /**< Outputs and columns of each expert, which a rank without
                                         experts cannot see. */
    int64_t piece;                  /**< Rows that one rank sends another at once; more rows take
                                         more rounds. Scratch is for n_ranks * piece rows. The same
                                         on all ranks; default 64. */
} qn_parallel_experts_args;
static inline void qn_parallel_experts_args_init(qn_parallel_experts_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    args->piece = 64;
}
QN_API qn_status qn_parallel_experts_args_init_sized(qn_parallel_experts_args *args, size_t size);
/** Scratch of a call, aligned to 64 bytes, for any number of tokens. Data are not looked at; asks
 * no rank. @return as qn_grouped_scratch(). */
QN_API qn_status qn_parallel_experts_scratch(const qn_ctx *ctx,
                                             const qn_parallel_experts_args *args, size_t *bytes,
                                             qn_error *err);
/**
 * On all ranks at once, also those without tokens or experts. Nothing is allocated. For the CPU.
 * @return as qn_grouped(), and QN_E_PEER: another rank failed or differs, or what the callbacks
 *         return. Where any rank's arguments are bad no rank has touched y; what fails later may
 *         leave y half written.
 */
QN_API qn_status qn_parallel_experts(const qn_ctx *ctx, const qn_parallel_experts_args *args,
                                     void *scratch, size_t scratch_bytes, qn_error *err);

/**
 * What a round of such a call exchanges, how many bytes of it, how long that takes if it can be
 * predicted, whose bits come out; if the call would be refused, why. Data are not looked at; asks
 * no rank. text and capacity like those of qn_plan_explain().
 */
QN_API size_t qn_parallel_experts_explain(const qn_ctx *ctx, const qn_parallel_experts_args *args,
                                          char *text, size_t capacity);

/* ------------------------------------------------------------------------------- convolutions */

/**
 * A convolution that is cut along its outputs: column shards of qn_weight_shard(). x: what the
 * rank's weights read, that is all channels, or, of weights with convolution groups, those of the
 * rank's groups. bias and col_scale: of the rank's outputs. y and residual: with the rank's
 * channels, or with gather_y all of them, on every rank. The bits of one process.
 */
typedef struct qn_parallel_conv_args {
    size_t size;
    const qn_comm *comm;
    const qn_conv_args *conv;
    int32_t is_transposed; /**< 1: qn_conv_transpose2d(). */
    int32_t gather_y;      /**< 1: every rank gets all channels. Default 0: nothing is exchanged. */
    int32_t is_trusted;    /**< As of qn_parallel_args. */
    int32_t conv_groups;   /**< With gather_y: groups of the whole weights; default 1. */
} qn_parallel_conv_args;
static inline void qn_parallel_conv_args_init(qn_parallel_conv_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    args->conv_groups = 1;
}
QN_API qn_status qn_parallel_conv_args_init_sized(qn_parallel_conv_args *args, size_t size);
/** Scratch of a call, aligned to 64 bytes. Data are not looked at; asks no rank.
 * @return as qn_conv2d_scratch(). */
QN_API qn_status qn_parallel_conv_scratch(const qn_ctx *ctx, const qn_parallel_conv_args *args,
                                          size_t *bytes, qn_error *err);
/** On all ranks at once. Nothing is allocated. For the CPU.
 * @return as qn_conv2d(), and as qn_parallel_run(). */
QN_API qn_status qn_parallel_conv(const qn_ctx *ctx, const qn_parallel_conv_args *args,
                                  void *scratch, size_t scratch_bytes, qn_error *err);

/** As qn_parallel_experts_explain(), of all that a call exchanges. */
QN_API size_t qn_parallel_conv_explain(const qn_ctx *ctx, const qn_parallel_conv_args *args,
                                       char *text, size_t capacity);

/* ----------------------------------------------------------------------------------------- sums */

/**
 * y = epilogue(sum of v over all ranks), for parts that are not one matmul's: experts. Where each
 * rank has some experts, and zeros in the rows of others, the sum has the bits of one process (but
 * for the sign of a zero); where each rank has a row shard of every expert, it is a row product's.
 * All ranks give the same but for the data of tensors.
 */
typedef struct qn_parallel_sum_args {
    size_t size;
    const qn_comm *comm;
    qn_tensor v;            /**< [m, n] f32: this rank's part; rows may be strided. */
    qn_tensor y;            /**< [m, n], on every rank; as of qn_finish(). */
    qn_epilogue epilogue;   /**< Once, after the sum; as of qn_finish(). */
    qn_sum_order sum_order; /**< EXACT (default) and ORDERED: added in order of rank. */
    int32_t is_trusted;     /**< As of qn_parallel_args. */
} qn_parallel_sum_args;
static inline void qn_parallel_sum_args_init(qn_parallel_sum_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    qn_epilogue_init(&args->epilogue);
}
QN_API qn_status qn_parallel_sum_args_init_sized(qn_parallel_sum_args *args, size_t size);
/** Scratch of a sum of this shape, aligned to 64 bytes. Data are not looked at; asks no rank.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_VERSION. */
QN_API qn_status qn_parallel_sum_scratch(const qn_parallel_sum_args *args, size_t *bytes,
                                         qn_error *err);
/** On all ranks at once. Nothing is allocated. @return as qn_finish(), and as qn_parallel_run(). */
QN_API qn_status qn_parallel_sum(const qn_ctx *ctx, const qn_parallel_sum_args *args, void *scratch,
                                 size_t scratch_bytes, qn_error *err);

#ifdef __cplusplus
}
#endif
#endif
