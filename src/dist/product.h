/* SPDX-License-Identifier: Apache-2.0 */
/* A product over several ranks, planned: what is exchanged, and the rank's own product. */
#ifndef QNI_DIST_PRODUCT_H
#define QNI_DIST_PRODUCT_H

#include "../base/context.h"
#include <quern/parallel.h>

/* What the ranks do with their products. */
enum qni_exchange {
    QNI_EXCHANGE_NOTHING, /* column: each keeps its outputs */
    QNI_EXCHANGE_Y,       /* column: finished outputs are gathered */
    QNI_EXCHANGE_INT32,   /* row: int32 sums are added, then finished */
    QNI_EXCHANGE_ORDERED, /* row: f32 sums are gathered, added in order of rank, then finished */
    QNI_EXCHANGE_FAST     /* row: f32 sums are added by the caller's all_reduce, then finished */
};

/* Every block that ranks exchange begins with the status of the rank that sent it. */
enum { QNI_BLOCK_HEAD = 64 };

/* Where the parts of a run's scratch begin, and how many bytes it has. */
struct qni_parallel_scratch {
    size_t sums;       /* [chunk, n] f32 or i32, and one element more that counts failures */
    size_t send, recv; /* blocks */
    size_t amax;       /* [m + 1] i32: bits of each row's largest |x|; failures */
    size_t codes;      /* [chunk, k] i8 */
    size_t product;    /* of the rank's own product */
    size_t bytes;
};

struct qn_parallel {
    const qn_ctx *ctx;
    size_t bytes; /* of this struct with its tail */
    qn_comm comm;
    qn_split split;
    enum qni_exchange exchange;
    int32_t is_quantized; /* INT32: x is quantized to int8 rows here, by what all ranks have */
    int32_t by_columns;   /* ORDERED: each rank adds some columns of all ranks (all_to_all) */
    int32_t overlaps;     /* blocks of a chunk are gathered while the next chunk is computed */
    int32_t is_trusted;
    int32_t n_experts; /* 0: one product */
    qn_sum_order sum_order;
    int64_t m;              /* most rows of a run */
    int64_t n, k;           /* of the whole product */
    int64_t own_n, first_n; /* outputs of this rank's weights; column: which of n they are */
    int64_t own_k;
    int64_t widest;     /* outputs of the rank that has most; by_columns: added by a rank */
    int64_t chunk;      /* rows that are exchanged at once */
    size_t block_bytes; /* of one rank */
    qn_plan *product;
    struct qni_parallel_scratch scratch;
    float w_scale[]; /* INT32: [n] scales of the weights; [n_experts, n] */
};

/* What is computed: a product, or products of experts, of which `all` then has what both have, with
 * the first expert's weights. */
struct qni_parallel_job {
    qn_matmul_args all;
    qn_grouped_args grouped;
    int32_t is_grouped;
};

/* From the caller's structs. */
qn_status qni_parallel_read(const qn_parallel_args *args, struct qni_parallel_job *job,
                            qn_error *err);
/* Experts are told by ids, row by row. */
qn_status qni_parallel_check_experts(const struct qni_parallel_job *job, qn_error *err);
/* Products of experts with what `own`, one product, says; rows [row, row + rows) of the routing. */
qn_grouped_args qni_parallel_experts_of(const struct qni_parallel_job *job,
                                        const qn_matmul_args *own, int64_t row, int64_t rows);
/* The expert of a row; negative: none. 0 of one product. */
static inline int32_t qni_parallel_expert(const struct qni_parallel_job *job, int64_t row)
{
    return job == NULL || !job->is_grouped ? 0 : ((const int32_t *)job->grouped.ids.data)[row];
}
/* The row of x that a row of y reads. */
static inline int64_t qni_parallel_x_row(const struct qni_parallel_job *job, int64_t row)
{
    return job == NULL || !job->is_grouped || job->grouped.x_rows.rank == 0
               ? row
               : ((const int32_t *)job->grouped.x_rows.data)[row];
}
/* Validation of the job, with this as its product. */
qn_status qni_parallel_validate(const qn_ctx *ctx, const struct qni_parallel_job *job,
                                const qn_matmul_args *own, int with_data, qn_error *err);

/* The rank's own product of rows [row, row + rows) of args, to y. */
qn_matmul_args qni_parallel_product(const struct qn_parallel *p, const qn_matmul_args *args,
                                    int64_t row, int64_t rows, const qn_tensor *y);
/* Rows [row, row + rows) of a tensor that has one row for each row of y; none stays none. */
qn_tensor qni_parallel_rows_of(const qn_tensor *t, int64_t row, int64_t rows);
/* The residual and y of the rank's own outputs. */
qn_tensor qni_parallel_columns_of(const struct qn_parallel *p, const qn_tensor *t);

/* Rows that were quantized before (args->prepared) are all of k in one piece and all of m in one
 * call: what is cut by row, or exchanged in chunks, cannot take them. */
qn_status qni_parallel_check_prepared(const struct qn_parallel_args *args,
                                      const qn_matmul_args *matmul, qn_error *err);

/* The caller's qn_comm, as one of this version, that can be used. */
qn_status qni_parallel_check_comm(const qn_comm *given, qn_comm *own, qn_error *err);
/* Both take a product whose numbers are set: the first tells how many rows are exchanged at once,
 * the second lays out the parts of scratch. */
int64_t qni_parallel_chunk(const struct qn_parallel *p);
qn_status qni_parallel_lay_out(struct qn_parallel *p, qn_dtype y, qn_error *err);

/* Where an exchange's sentence goes: nowhere on a rank that has a failure of its own to tell. */
static inline qn_error *qni_parallel_told(qn_status own, qn_error *err)
{
    return own == QN_OK ? err : NULL;
}

/* Numbers that ranks tell each other, and what came of it. */
enum { QNI_MOST_FACTS = 8 };
struct qni_facts {
    int32_t n, n_same;                                   /* the first n_same are the same on all */
    int32_t of[QNI_MOST_FACTS];                          /* this rank's */
    int32_t least[QNI_MOST_FACTS], most[QNI_MOST_FACTS]; /* of all ranks */
    int32_t differs; /* the first that should be the same and is not; -1: none */
};
/* All ranks tell each other `status` and facts (NULL: none). QN_OK if all statuses are, whether or
 * not facts differ; the rank's own status if that is not; else QN_E_PEER, and the sentence names
 * the rank. what: how the sentence begins. */
qn_status qni_parallel_agree(const qn_comm *comm, qn_status status, struct qni_facts *facts,
                             const char *what, qn_error *err);
/* What a call without a plan exchanges, for words about it: of experts in a round. */
struct qni_exchanged {
    qn_comm comm;
    int64_t first, own, whole; /* channels or experts of this rank, of how many */
    int64_t at_once;           /* images, or rows between two ranks; 0: nothing is exchanged */
    double exchanges, bytes;   /* bytes: that a rank receives */
    size_t scratch;
    qn_strategy strategy;
};
qn_status qni_parallel_conv_exchanged(const qn_ctx *ctx, const qn_parallel_conv_args *args,
                                      struct qni_exchanged *e, qn_error *err);
qn_status qni_parallel_experts_exchanged(const qn_ctx *ctx, const qn_parallel_experts_args *args,
                                         struct qni_exchanged *e, qn_error *err);

/* The beginning of a call without a plan: the caller's struct and its comm. own: fresh from its
 * _init(); from: its field comm. */
qn_status qni_parallel_open(const qn_ctx *ctx, const void *given, void *own, size_t own_bytes,
                            const qn_comm *const *from, qn_comm *comm, qn_error *err);

#endif
