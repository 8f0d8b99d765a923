/* SPDX-License-Identifier: Apache-2.0 */
/* What the methods of quantization share: the job, and how its rows are dealt to threads. */
#ifndef QNI_QUANT_QUANTIZE_H
#define QNI_QUANT_QUANTIZE_H

#include "../base/context.h"
#include "canonical.h"
#include "coder.h"
#include "dense.h"

/*
 * Rows are worked on in sequence order: groups are contiguous in it. For runs it is the order of
 * positions; channel blocks gather theirs from all taps.
 */
struct qni_job {
    const qn_ctx *ctx;
    struct qni_dense dense;
    struct qni_coder coder;
    qn_method method;
    struct qn_weight *w;
    const float *prescale; /* [k] by column, or NULL */
    int32_t *position;     /* [k]: sequence -> position; NULL if they are the same */
    bool searches;         /* scales by search, else by range */
    float *importance;     /* [k] in sequence order, of the prescaled input; or NULL */
    float *feedback;       /* GPTQ: [k, k] in sequence order, row j: what later columns take over
                                 from the error of column j */
    int64_t group, unit;   /* values of a full group; of a full super-block, else of a group */
    bool is_tensor;        /* one scale for all: */
    struct qni_params tensor;
    struct qni_row_facts {
        float lo, hi;
        double error; /* of `tensor` */
    } * facts;        /* [n] while whole.c works, else NULL */
    qn_progress_fn progress;
    void *progress_arg;
    _Atomic int64_t bad_row; /* the first that cannot be quantized; n if there is none */
};

/* Quantize rows [first, last). scratch is the item's own, of the size given to qni_job_run(). */
typedef void (*qni_rows_fn)(struct qni_job *job, int64_t first, int64_t last, void *scratch);

/* All rows, threaded, with progress. @return QN_OK; QN_E_MEMORY; QN_E_CANCELLED. bad_row tells the
 * rest. Work stops at the first chunk of rows that holds a bad one. */
qn_status qni_job_run(struct qni_job *job, qni_rows_fn rows, int64_t rows_per_item,
                      size_t scratch_bytes, qn_error *err);

/* Row of the dense weights, in columns divided by prescale, in sequence order. spare: [k] floats.
 */
void qni_job_read(const struct qni_job *job, int64_t row, float *out, float *spare);
/* Parameters of groups [group, group + n) of a row into the weight. */
void qni_job_store(const struct qni_job *job, int64_t row, int64_t group, int64_t n,
                   const struct qni_params *params);
/* Parameters of the unit of n values x at sequence `first` of a row; one for the tensor is taken as
 * it is. False: a value, or a scale that results, is not finite. */
bool qni_job_fit(const struct qni_job *job, const float *x, int64_t first, int64_t n,
                 struct qni_params *params);
void qni_job_mark_bad(struct qni_job *job, int64_t row);

/* What needs all weights before the first code: one scale for the tensor, the unit of E4M3 scales.
 * May leave a bad row. */
qn_status qni_whole_prepare(struct qni_job *job, qn_error *err);

/* Most groups in one unit. */
enum { QNI_UNIT_GROUPS = 1024 };

/* GPTQ: fill in feedback (and with act_order the weight's perm) from a Hessian or samples; then all
 * rows. */
qn_status qni_gptq_prepare(struct qni_job *job, const qn_quantize_options *options, qn_error *err);
qn_status qni_gptq_run(struct qni_job *job, qn_error *err);

#endif
