/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPTQ: columns one after the other, each taking over what the errors of earlier ones suggest.
 *
 * The error to keep small is d^T H d, d = w - q. With H = R R^T, R upper triangular (Cholesky from
 * the last column to the first), it is the sum over i of (sum over j <= i of R[j,i] d[j])^2: with
 * the errors before i known, term i is smallest where
 *     q[i] = round(e[i]),   e[i] = w[i] + sum over j < i of d[j] * R[j,i] / R[i,i].
 * With given scales these are the same q as those of the usual recursion over the rows of the
 * inverse's factor (each step leaves the remaining weights at their conditional optimum), but from
 * one factorization, with nothing inverted, and with nothing fed back, exactly, where H is
 * diagonal.
 *
 * Scales of a group are taken from w, not from e: e holds what columns before the group ask of it,
 * as if the columns between had no errors of their own to come, and its range is too wide. (The
 * usual recursion, which takes them from its conditional optimum, is between the two; at 3 and 2
 * bits scales of w are the best of the three: test/oracle/test_gptq_scales.py.) Term i has the
 * weight R[i,i]^2, which is what a search of scales weighs the columns by.
 *
 * e is kept up to date lazily: within a block of columns at once, beyond it once per block, so that
 * the long update is a matrix product. Rows do not know of each other; the sum of one e is always
 * in ascending order.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "../base/compiler.h"
#include "../base/error.h"
#include "../base/size.h"
#include "hessian.h"

enum { BLOCK = 128, ROWS = 16 };

/* ---- the matrix of feedback ---- */

/* Columns by falling importance; equal ones keep their order. Shell sort with an index as the last
 * word, so that the order is strict. */
static void sort_columns(int32_t *column, const double *diagonal, int64_t k)
{
    int64_t gap = 1;
    while (gap < k / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int64_t i = gap; i < k; i++) {
            const int32_t c = column[i];
            int64_t at = i;
            for (; at >= gap; at -= gap) {
                const int32_t other = column[at - gap];
                const double a = diagonal[other], b = diagonal[c];
                if (a > b || (a == b && other < c))
                    break;
                column[at] = other;
            }
            column[at] = c;
        }
}

static qn_status order_columns(struct qni_job *job, struct qni_hessian *h, bool act_order,
                               qn_error *err)
{
    const struct qn_weight *w = job->w;
    if (act_order && (int64_t)w->kh * w->kw * w->conv_groups != 1)
        return qni_fail(err, QN_E_ARGUMENT, "act_order is for matrices, not for convolutions");
    for (int64_t s = 0; s < w->k; s++)
        h->column[s] = job->position != NULL ? job->position[s] : (int32_t)s;
    if (act_order) {
        sort_columns(h->column, h->diagonal, w->k);
        memcpy(w->perm, h->column, (size_t)w->k * sizeof *w->perm);
    }
    return QN_OK;
}

/* R[j,i] is the factor's [k-1-j, k-1-i]: see hessian.h. */
static void make_feedback(const struct qni_hessian *h, float *feedback)
{
    const int64_t k = h->k;
    memset(feedback, 0, (size_t)k * (size_t)k * sizeof *feedback);
    for (int64_t j = 0; j < k; j++)
        for (int64_t i = j + 1; i < k; i++) {
            const int64_t a = k - 1 - j, b = k - 1 - i;
            feedback[j * k + i] = (float)(h->a[a * k + b] / h->a[b * k + b]);
        }
}

/* R[i,i]^2, of which the largest is 1: sums of squares may exceed f32. */
static qn_status make_weights(struct qni_job *job, const struct qni_hessian *h, qn_error *err)
{
    const int64_t k = h->k;
    double most = 0.0;
    job->importance = qni_alloc(&job->ctx->allocator, (size_t)k * sizeof *job->importance);
    if (job->importance == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %lld columns", (long long)k);
    for (int64_t a = 0; a < k; a++)
        most = fmax(most, h->a[a * k + a]);
    for (int64_t i = 0; i < k; i++) {
        const int64_t a = k - 1 - i;
        const double part = h->a[a * k + a] / most;
        job->importance[i] = (float)(part * part);
    }
    return QN_OK;
}

static qn_status prepare(struct qni_job *job, struct qni_hessian *h, const qn_quantize_options *o,
                         qn_error *err)
{
    QNI_TRY(qni_hessian_diagonal(h, job->ctx, o, err));
    QNI_TRY(order_columns(job, h, o->act_order != 0, err));
    QNI_TRY(qni_hessian_fill(h, job->ctx, o, err));
    QNI_TRY(qni_cholesky(job->ctx, h->a, h->k, err));
    make_feedback(h, job->feedback);
    return job->searches && o->importance == NULL ? make_weights(job, h, err) : QN_OK;
}

qn_status qni_gptq_prepare(struct qni_job *job, const qn_quantize_options *options, qn_error *err)
{
    const struct qni_allocator *a = &job->ctx->allocator;
    struct qni_hessian h = {.k = job->w->k};
    const size_t k = (size_t)h.k;
    size_t square, bytes;
    if (!qni_size_mul(k, k, &square) || !qni_size_mul(square, sizeof(double), &bytes))
        return qni_fail(err, QN_E_MEMORY, "a Hessian of size %lld exceeds memory", (long long)h.k);
    h.a = qni_alloc(a, bytes);
    h.column = qni_alloc(a, k * sizeof *h.column);
    h.diagonal = qni_alloc(a, k * sizeof *h.diagonal);
    job->feedback = qni_alloc(a, square * sizeof *job->feedback);
    qn_status status = QN_OK;
    if (h.a == NULL || h.column == NULL || h.diagonal == NULL || job->feedback == NULL)
        status = qni_fail(err, QN_E_MEMORY, "no memory for a Hessian of size %lld", (long long)h.k);
    else
        status = prepare(job, &h, options, err);
    qni_free(a, h.a, bytes);
    qni_free(a, h.column, k * sizeof *h.column);
    qni_free(a, h.diagonal, k * sizeof *h.diagonal);
    return status;
}

/* ---- rows ---- */

/* Up to ROWS rows at work. */
struct rows {
    struct qni_job *job;
    int64_t first, count;
    float *w, *e;              /* [ROWS, k]: the weights, and what they should be by now */
    float *d;                  /* [ROWS, BLOCK]: errors in this block */
    struct qni_params *params; /* [ROWS, QNI_UNIT_GROUPS]: of the current unit */
};

static bool start_unit(const struct rows *r, int64_t at)
{
    struct qni_job *job = r->job;
    const int64_t n = qni_min(job->unit, job->w->k - at);
    for (int64_t i = 0; i < r->count; i++) {
        struct qni_params *params = r->params + i * QNI_UNIT_GROUPS;
        if (!qni_job_fit(job, r->w + i * job->w->k + at, at, n, params)) {
            qni_job_mark_bad(job, r->first + i);
            return false;
        }
        qni_job_store(job, r->first + i, at / job->group, qni_ceil_div(n, job->group), params);
    }
    return true;
}

/* Adds the error d of a column, times its feedback, to columns [from, stop) of the row. */
static void feed(float *restrict e, const float *restrict feedback, float d, int64_t from,
                 int64_t stop)
{
    for (int64_t i = from; i < stop; i++)
        e[i] += d * feedback[i];
}

/* False: feedback left the range of f32. */
static bool quantize_column(const struct rows *r, int64_t s, int64_t block, int64_t stop)
{
    struct qni_job *job = r->job;
    const int64_t k = job->w->k, group = s % job->unit / job->group;
    const int64_t position = job->position != NULL ? job->position[s] : s;
    for (int64_t i = 0; i < r->count; i++) {
        const struct qni_params *p = r->params + i * QNI_UNIT_GROUPS + group;
        uint8_t *code = job->w->codes + (r->first + i) * k + position;
        float *e = r->e + i * k;
        if (!isfinite(e[s])) {
            qni_job_mark_bad(job, r->first + i);
            return false;
        }
        qni_encode(&job->coder, p, e + s, 1, code);
        const float d = r->w[i * k + s] - qni_decode(&job->coder, p, *code);
        r->d[i * BLOCK + s - block] = d;
        feed(e, job->feedback + s * k, d, s + 1, stop);
    }
    return true;
}

/* Feeds the errors of all columns of a block to all columns behind it, in tiles that stay in cache.
 */
static void feed_block(const struct rows *r, int64_t block, int64_t stop)
{
    enum { TILE = 512 };
    const int64_t k = r->job->w->k;
    for (int64_t t = stop; t < k; t += TILE)
        for (int64_t s = block; s < stop; s++)
            for (int64_t i = 0; i < r->count; i++)
                feed(r->e + i * k, r->job->feedback + s * k, r->d[i * BLOCK + s - block], t,
                     qni_min(t + TILE, k));
}

static void quantize_rows(struct qni_job *job, int64_t first, int64_t last, void *scratch)
{
    const int64_t k = job->w->k;
    struct rows r = {job, first, last - first, scratch, NULL, NULL, NULL};
    r.e = r.w + ROWS * k;
    r.d = r.e + ROWS * k;
    r.params = (struct qni_params *)(void *)(r.d + ROWS * BLOCK);
    for (int64_t i = 0; i < r.count; i++) {
        float lo, hi;
        qni_job_read(job, first + i, r.w + i * k, r.e + i * k); /* e: still spare */
        memcpy(r.e + i * k, r.w + i * k, (size_t)k * sizeof *r.e);
        if (!qni_range_find(r.w + i * k, k, &lo, &hi)) {
            qni_job_mark_bad(job, first + i);
            return;
        }
    }
    for (int64_t block = 0; block < k;) {
        const int64_t stop = qni_min(block + BLOCK, k);
        for (int64_t s = block; s < stop; s++) {
            if (s % job->unit == 0 && !start_unit(&r, s))
                return;
            if (!quantize_column(&r, s, block, stop))
                return;
        }
        feed_block(&r, block, stop);
        block = stop;
    }
}

qn_status qni_gptq_run(struct qni_job *job, qn_error *err)
{
    const size_t floats = (size_t)job->w->k * 2 * ROWS + ROWS * BLOCK;
    const size_t params = (size_t)ROWS * QNI_UNIT_GROUPS * sizeof(struct qni_params);
    return qni_job_run(job, quantize_rows, ROWS, floats * sizeof(float) + params, err);
}
