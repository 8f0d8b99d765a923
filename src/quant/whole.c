/* SPDX-License-Identifier: Apache-2.0 */
/* What needs all weights before the first code: the range for one scale per tensor, and the unit of
 * E4M3 scales. Numbers of rows are put together in the order of rows, whoever found them. */
#include <math.h>
#include <stdatomic.h>

#include "../base/error.h"
#include "../base/size.h"
#include "quantize.h"

static void find_ranges(struct qni_job *job, int64_t first, int64_t last, void *scratch)
{
    float *x = scratch, *spare = x + job->w->k;
    for (int64_t row = first; row < last; row++) {
        qni_job_read(job, row, x, spare);
        if (!qni_range_find(x, job->w->k, &job->facts[row].lo, &job->facts[row].hi))
            qni_job_mark_bad(job, row);
    }
}

static void find_errors(struct qni_job *job, int64_t first, int64_t last, void *scratch)
{
    float *x = scratch, *spare = x + job->w->k;
    for (int64_t row = first; row < last; row++) {
        qni_job_read(job, row, x, spare);
        job->facts[row].error =
            qni_params_error(&job->coder, &job->tensor, x, job->importance, job->w->k);
    }
}

static qn_status for_rows(struct qni_job *job, qni_rows_fn rows, qn_error *err)
{
    const int64_t k = job->w->k;
    const size_t scratch_bytes = (size_t)k * 2 * sizeof(float);
    return qni_job_run(job, rows, qni_max(1, (1 << 16) / k), scratch_bytes, err);
}

static qn_status total_error(struct qni_job *job, double *total, qn_error *err)
{
    QNI_TRY(for_rows(job, find_errors, err));
    *total = 0.0;
    for (int64_t row = 0; row < job->w->n; row++)
        *total += job->facts[row].error;
    return QN_OK;
}

/* The range of round-to-nearest first; a narrower one must be better to be taken. */
static qn_status search_tensor(struct qni_job *job, float lo, float hi, qn_error *err)
{
    enum { STEPS = 24 };
    struct qni_params best = job->tensor;
    double least;
    QNI_TRY(total_error(job, &least, err));
    for (int i = 1; i < STEPS; i++) {
        const float factor = 1.0f - 0.03f * (float)i;
        double error;
        job->tensor = qni_fit_range(&job->coder, lo * factor, hi * factor);
        QNI_TRY(total_error(job, &error, err));
        if (error < least) {
            least = error;
            best = job->tensor;
        }
    }
    job->tensor = best;
    return QN_OK;
}

static qn_status look(struct qni_job *job, qn_error *err)
{
    const int64_t n = job->w->n;
    QNI_TRY(for_rows(job, find_ranges, err));
    if (atomic_load(&job->bad_row) < n)
        return QN_OK;
    float lo = job->facts[0].lo, hi = job->facts[0].hi;
    for (int64_t row = 1; row < n; row++) {
        lo = job->facts[row].lo < lo ? job->facts[row].lo : lo;
        hi = job->facts[row].hi > hi ? job->facts[row].hi : hi;
    }
    if (job->w->format.scale_dtype == QN_E4M3)
        qni_coder_set_peak(&job->coder, hi > -lo ? hi : -lo);
    if (!job->is_tensor)
        return QN_OK;
    job->tensor = qni_fit_range(&job->coder, lo, hi);
    if (!isfinite(job->tensor.scale) || !isfinite(job->tensor.offset)) {
        qni_job_mark_bad(job, 0);
        return QN_OK;
    }
    return job->searches ? search_tensor(job, lo, hi, err) : QN_OK;
}

qn_status qni_whole_prepare(struct qni_job *job, qn_error *err)
{
    const qn_format *f = &job->w->format;
    job->is_tensor = f->group == QN_GROUP_PER_TENSOR;
    if (!job->is_tensor && f->scale_dtype != QN_E4M3)
        return QN_OK;
    const size_t bytes = (size_t)job->w->n * sizeof *job->facts;
    job->facts = qni_alloc(&job->ctx->allocator, bytes);
    if (job->facts == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for the ranges of %lld rows",
                        (long long)job->w->n);
    const qn_progress_fn progress = job->progress;
    job->progress = NULL; /* it counts rows that are done */
    const qn_status status = look(job, err);
    job->progress = progress;
    qni_free(&job->ctx->allocator, job->facts, bytes);
    job->facts = NULL;
    return status;
}
