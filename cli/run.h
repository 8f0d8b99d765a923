/* SPDX-License-Identifier: Apache-2.0 */
/* quern run: what one product or convolution is made of. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "axes.h"
#include "ranks.h"

struct task {
    qn_ctx *ctx;
    qn_packed *w;
    qn_packed_info facts;
    qn_tensor x, y, bias, residual;
    qn_dtype y_dtype;
    enum { MATMUL, CONV, TRANSPOSE } op;
    qn_epilogue epilogue;
    qn_quant_args quant;
    qn_strategy strategy;
    qn_conv_args conv;   /* geometry; also filled for the run */
    struct axes axes;    /* of plain weights; rank 0: the usual ones */
    int64_t conv_groups; /* 0: as x needs them */
    char *kernel;
    int strict;
    char kernel_used[96];
    double seconds;
    void *sent[4]; /* counterparts of operands on a GPU */
    int n_sent;
    /* --parallel */
    const char *way;     /* column, row, block; NULL: one process */
    struct ranks ranks;
    qn_packed *down;     /* block: the second product's */
    int is_down;         /* what is loaded now */
    int64_t n, k;        /* of the whole weights; of a block its outputs and inputs */
    int64_t hidden;      /* of a block */
    int32_t conv_groups_of_all;
    int32_t *columns;    /* of x that this rank's row shard reads; of hidden values, in a block */
    int64_t n_columns;
};

/* Packs the shard of a weight that belongs to this rank of --parallel, and destroys the weight. */
qn_status run_pack_shard(struct task *t, qn_weight *weight, qn_error *err);
/* Run over all ranks; t->y on every one. */
qn_status run_over_ranks(struct task *t, qn_error *err);
/* The residual in the shape in which the operation sees y. */
qn_tensor run_shaped(const qn_tensor *tensor, const qn_tensor *like);

#endif
