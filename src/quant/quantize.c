/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize(): checks, the order of work, and round-to-nearest and search, which look at one
 * group at a time. Each row is quantized by one thread from its own values alone, so the number of
 * threads cannot be seen in the result. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "../base/error.h"
#include "../base/half.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "quantize.h"

/* ---- dealing rows ---- */

/* A chunk is what lies between two calls of progress: a few items for each thread, so that a thread
 * that is held up is not waited for long. An item of round-to-nearest takes about 100 us. */
enum { ITEMS_PER_THREAD = 4 };

struct chunk {
    struct qni_job *job;
    qni_rows_fn rows;
    int64_t first, rows_per_item;
    char *scratch;
    size_t scratch_bytes;
};

static void run_item(void *arg, int32_t i)
{
    const struct chunk *c = arg;
    const int64_t first = c->first + i * c->rows_per_item;
    const int64_t last = qni_min(first + c->rows_per_item, c->job->w->n);
    c->rows(c->job, first, last, c->scratch + (size_t)i * c->scratch_bytes);
}

static bool report(const struct qni_job *job, int64_t done)
{
    return job->progress == NULL || job->progress(job->progress_arg, done, job->w->n);
}

qn_status qni_job_run(struct qni_job *job, qni_rows_fn rows, int64_t rows_per_item,
                      size_t scratch_bytes, qn_error *err)
{
    const int64_t n = job->w->n;
    const int64_t n_items = qni_min(qni_max(1, job->ctx->threads.n_threads) * ITEMS_PER_THREAD,
                                    qni_ceil_div(n, rows_per_item));
    scratch_bytes = qni_round_up(scratch_bytes, 64);
    const size_t bytes = (size_t)n_items * scratch_bytes;
    struct chunk c = {job, rows, 0, rows_per_item, NULL, scratch_bytes};
    c.scratch = qni_alloc(&job->ctx->allocator, bytes);
    if (c.scratch == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for the scratch of %lld rows",
                        (long long)(n_items * rows_per_item));
    qn_status status = QN_OK;
    while (c.first < n && status == QN_OK && atomic_load(&job->bad_row) == n) {
        const int64_t left = qni_ceil_div(n - c.first, rows_per_item);
        qni_parallel(&job->ctx->threads, (int32_t)qni_min(n_items, left), run_item, &c);
        c.first = qni_min(n, c.first + n_items * rows_per_item);
        if (!report(job, c.first) && c.first < n)
            status = qni_fail(err, QN_E_CANCELLED, "stopped after %lld of %lld rows",
                              (long long)c.first, (long long)n);
    }
    qni_free(&job->ctx->allocator, c.scratch, bytes);
    return status;
}

void qni_job_mark_bad(struct qni_job *job, int64_t row)
{
    int64_t first = atomic_load(&job->bad_row);
    while (row < first && !atomic_compare_exchange_weak(&job->bad_row, &first, row)) {
    }
}

/* ---- a row ---- */

void qni_job_read(const struct qni_job *job, int64_t row, float *out, float *spare)
{
    const struct qn_weight *w = job->w;
    float *columns = job->position != NULL || w->perm != NULL ? spare : out;
    qni_dense_read(&job->dense, row, columns);
    for (int64_t i = 0; job->prescale != NULL && i < w->k; i++)
        columns[i] /= job->prescale[i];
    if (columns == out)
        return;
    for (int64_t s = 0; s < w->k; s++) {
        const int64_t p = job->position != NULL ? job->position[s] : s;
        out[s] = columns[w->perm != NULL ? w->perm[p] : p];
    }
}

void qni_job_store(const struct qni_job *job, int64_t row, int64_t group, int64_t n,
                   const struct qni_params *params)
{
    struct qn_weight *w = job->w;
    const int64_t at = row * w->n_groups + group;
    for (int64_t g = 0; g < n; g++) {
        w->scale[at + g] = params[g].scale;
        if (w->zero != NULL)
            w->zero[at + g] = params[g].zero;
        if (w->offset != NULL)
            w->offset[at + g] = params[g].offset;
        if (w->super_scale == NULL)
            continue;
        const int64_t super = row * w->n_supers + (group + g) / w->format.superblock;
        w->super_scale[super] = params[g].super_scale;
        w->sub_scale[at + g] = params[g].sub_scale;
        if (w->sub_min == NULL)
            continue;
        w->super_min[super] = params[g].super_min;
        w->sub_min[at + g] = params[g].sub_min;
    }
}

bool qni_job_fit(const struct qni_job *job, const float *x, int64_t first, int64_t n,
                 struct qni_params *params)
{
    if (job->is_tensor) {
        float lo, hi;
        params[0] = job->tensor;
        return qni_range_find(x, n, &lo, &hi);
    }
    if (job->searches)
        return qni_fit_search(&job->coder, x,
                              job->importance != NULL ? job->importance + first : NULL, n,
                              job->group, params);
    return qni_fit_rtn(&job->coder, x, n, job->group, params);
}

/* Quantizes rows [first, last); scratch holds two rows of floats and a row of codes. */
static void quantize_rows(struct qni_job *job, int64_t first, int64_t last, void *scratch)
{
    const struct qn_weight *w = job->w;
    struct qni_params params[QNI_UNIT_GROUPS];
    float *x = scratch, *spare = x + w->k;
    for (int64_t row = first; row < last; row++) {
        uint8_t *codes = w->codes + row * w->k;
        uint8_t *out = job->position != NULL ? (uint8_t *)(spare + w->k) : codes;
        qni_job_read(job, row, x, spare);
        for (int64_t at = 0; at < w->k; at += job->unit) {
            const int64_t n = qni_min(job->unit, w->k - at);
            if (!qni_job_fit(job, x + at, at, n, params)) {
                qni_job_mark_bad(job, row);
                return;
            }
            qni_job_store(job, row, at / job->group, qni_ceil_div(n, job->group), params);
            for (int64_t g = 0; g * job->group < n; g++)
                qni_encode(&job->coder, &params[g], x + at + g * job->group,
                           qni_min(job->group, n - g * job->group), out + at + g * job->group);
        }
        for (int64_t s = 0; job->position != NULL && s < w->k; s++)
            codes[job->position[s]] = out[s];
    }
}

/* Floats: the nearest number of the type, ties to even. */
static bool round_float(const struct qn_weight *w, float x, uint8_t *to)
{
    const qn_dtype dtype = w->format.scale_dtype;
    uint16_t half;
    if (dtype == QN_F32) {
        memcpy(to, &x, sizeof x);
        return isfinite(x);
    }
    half = dtype == QN_F16 ? qni_f16_from_f32(x) : qni_bf16_from_f32(x);
    memcpy(to, &half, sizeof half);
    return isfinite(qni_load_float(to, dtype, 0));
}

static void round_rows(struct qni_job *job, int64_t first, int64_t last, void *scratch)
{
    const struct qn_weight *w = job->w;
    const size_t each = qni_code_bytes(&w->format);
    float *x = scratch, *spare = x + w->k;
    for (int64_t row = first; row < last; row++) {
        uint8_t *to = w->codes + (size_t)row * qni_code_row_bytes(w);
        bool is_good = true;
        qni_job_read(job, row, x, spare);
        for (int64_t i = 0; i < w->k; i++, to += each)
            is_good &= round_float(w, x[i], to);
        if (!is_good) {
            qni_job_mark_bad(job, row);
            return;
        }
    }
}

/* ---- the job ---- */

static qn_status read_options(const qn_quantize_options *from, qn_quantize_options *o,
                              qn_error *err)
{
    qn_quantize_options_init(o);
    QNI_TRY(qni_sized_read(o, sizeof *o, from, err));
    if (o->method < QN_METHOD_RTN || o->method > QN_METHOD_GPTQ)
        return qni_fail(err, QN_E_ARGUMENT, "method %d is none of QN_METHOD_RTN, _SEARCH, _GPTQ",
                        (int)o->method);
    if (o->act_order != 0 && o->method != QN_METHOD_GPTQ)
        return qni_fail(err, QN_E_ARGUMENT, "act_order goes with QN_METHOD_GPTQ");
    if (o->search_scales != 0 && o->search_scales != 1)
        return qni_fail(err, QN_E_ARGUMENT, "search_scales is %d: 0 or 1 is possible",
                        (int)o->search_scales);
    if (o->reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "reserved is not 0");
    if (qni_is_float_format(&o->format) && o->method != QN_METHOD_RTN)
        return qni_fail(err, QN_E_ARGUMENT,
                        "weights become %s by rounding each of them: QN_METHOD_RTN; there are no "
                        "scales to search",
                        qn_dtype_name(o->format.scale_dtype));
    return QN_OK;
}

static qn_status check_columns(const qn_quantize_options *o, int64_t k, qn_error *err)
{
    for (int64_t i = 0; o->prescale != NULL && i < k; i++)
        if (!isfinite(o->prescale[i]) || o->prescale[i] == 0.0f)
            return qni_fail(err, QN_E_VALUE, "the prescale of column %lld is 0 or not finite",
                            (long long)i);
    for (int64_t i = 0; o->importance != NULL && i < k; i++)
        if (!isfinite(o->importance[i]) || o->importance[i] < 0.0f)
            return qni_fail(err, QN_E_VALUE,
                            "the importance of column %lld is negative or not finite",
                            (long long)i);
    return QN_OK;
}

/* Channel blocks: the sequence runs through the blocks, in each through the taps. */
static qn_status make_position(struct qni_job *job, qn_error *err)
{
    const struct qn_weight *w = job->w;
    const int64_t taps = (int64_t)w->kh * w->kw, block = w->format.group;
    job->group = w->format.group < 0 ? qni_max(w->k, 1) : qni_min(block, qni_max(w->k, 1));
    if (w->format.blocks == QN_BLOCKS_CHANNELS && taps > 1 && w->k > 0) {
        job->position = qni_alloc(&job->ctx->allocator, (size_t)w->k * sizeof *job->position);
        if (job->position == NULL)
            return qni_fail(err, QN_E_MEMORY, "no memory for %lld positions", (long long)w->k);
        int64_t s = 0;
        for (int64_t c = 0; c < w->ci; c += block)
            for (int64_t tap = 0; tap < taps; tap++)
                for (int64_t i = c; i < qni_min(c + block, w->ci); i++)
                    job->position[s++] = (int32_t)(tap * w->ci + i);
        job->group = qni_min(block, w->ci) * taps;
    }
    const int64_t groups = w->format.superblock > 0 ? w->format.superblock : 1;
    job->unit = job->group * groups;
    return QN_OK;
}

/* Errors of prescaled weights are seen through x * prescale. */
static qn_status make_importance(struct qni_job *job, const float *importance, qn_error *err)
{
    const struct qn_weight *w = job->w;
    if (importance == NULL || !job->searches)
        return QN_OK;
    job->importance = qni_alloc(&job->ctx->allocator, (size_t)w->k * sizeof(float));
    if (job->importance == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %lld columns", (long long)w->k);
    for (int64_t s = 0; s < w->k; s++) {
        const int64_t position = job->position != NULL ? job->position[s] : s;
        const int64_t column = w->perm != NULL ? w->perm[position] : position;
        const float p = job->prescale != NULL ? job->prescale[column] : 1.0f;
        job->importance[s] = importance[column] * p * p;
    }
    return QN_OK;
}

static qn_status prepare(struct qni_job *job, const qn_quantize_options *o, qn_error *err)
{
    struct qn_weight *w = job->w;
    job->prescale = o->prescale;
    job->progress = o->progress;
    job->progress_arg = o->progress_arg;
    atomic_init(&job->bad_row, w->n);
    if (o->prescale != NULL)
        memcpy(w->prescale, o->prescale, (size_t)w->k * sizeof(float));
    QNI_TRY(make_position(job, err));
    for (int64_t p = 0; w->perm != NULL && p < w->k; p++)
        w->perm[p] = (int32_t)p;
    if (w->n == 0 || w->k == 0 || qni_is_float_format(&w->format))
        return QN_OK;
    job->searches =
        job->method == QN_METHOD_SEARCH || (job->method == QN_METHOD_GPTQ && o->search_scales != 0);
    if (job->method == QN_METHOD_GPTQ)
        QNI_TRY(qni_gptq_prepare(job, o, err)); /* orders columns */
    QNI_TRY(make_importance(job, o->importance, err));
    return qni_whole_prepare(job, err);
}

/* x: the row, prescaled. */
static void fail_to_round(const struct qni_job *job, int64_t row, const float *x, qn_error *err)
{
    const struct qn_weight *w = job->w;
    uint8_t unused[4];
    int64_t column = 0;
    while (column + 1 < w->k && round_float(w, x[column], unused))
        column++;
    qni_fail(err, QN_E_VALUE, "the weight at row %lld, column %lld is %g, too large for %s",
             (long long)row, (long long)column, (double)x[column],
             qn_dtype_name(w->format.scale_dtype));
}

/* The row is read again: the message costs nothing where nothing is wrong. */
static qn_status explain_bad_row(struct qni_job *job, qn_error *err)
{
    const struct qn_weight *w = job->w;
    const int64_t row = atomic_load(&job->bad_row);
    const size_t bytes = (size_t)w->k * 2 * sizeof(float);
    float *x = qni_alloc(&job->ctx->allocator, bytes);
    if (x == NULL)
        return qni_fail(err, QN_E_VALUE, "row %lld holds a NaN or an infinity", (long long)row);
    qni_dense_read(&job->dense, row, x);
    int64_t column = qni_find_bad(x, w->k);
    if (column >= 0) {
        qni_fail(err, QN_E_VALUE, "the weight at row %lld, column %lld is %s", (long long)row,
                 (long long)column, isnan(x[column]) ? "NaN" : "infinite");
    } else {
        for (int64_t i = 0; w->prescale != NULL && i < w->k; i++)
            x[i] /= w->prescale[i];
        column = qni_find_bad(x, w->k);
        if (column >= 0)
            qni_fail(err, QN_E_VALUE,
                     "the weight at row %lld, column %lld overflows when divided by its prescale",
                     (long long)row, (long long)column);
        else if (qni_is_float_format(&w->format))
            fail_to_round(job, row, x, err);
        else if (job->method == QN_METHOD_GPTQ)
            qni_fail(err, QN_E_VALUE,
                     "a scale of row %lld is too large for the type %s, or what the Hessian makes "
                     "of its errors leaves the range of f32: raise the damping",
                     (long long)row, qn_dtype_name(w->format.scale_dtype));
        else
            qni_fail(err, QN_E_VALUE, "a scale of row %lld is too large for the type %s",
                     (long long)row, qn_dtype_name(w->format.scale_dtype));
    }
    qni_free(&job->ctx->allocator, x, bytes);
    return QN_E_VALUE;
}

/* About 2^16 weights an item. */
static int64_t rows_per_item(int64_t k)
{
    return qni_max(1, (1 << 16) / k);
}

static qn_status run(struct qni_job *job, qn_error *err)
{
    const struct qn_weight *w = job->w;
    if (w->n == 0 || (w->k == 0 && qni_is_float_format(&w->format)))
        return QN_OK;
    if (w->k == 0) { /* per channel there is a group all the same */
        const struct qni_params none = {.scale = 0.0f};
        for (int64_t i = 0; i < w->n * w->n_groups; i++)
            qni_job_store(job, 0, i, 1, &none);
        return QN_OK;
    }
    if (job->method == QN_METHOD_GPTQ && atomic_load(&job->bad_row) == w->n)
        QNI_TRY(qni_gptq_run(job, err));
    else if (atomic_load(&job->bad_row) == w->n)
        QNI_TRY(qni_job_run(job, qni_is_float_format(&w->format) ? round_rows : quantize_rows,
                            rows_per_item(w->k), (size_t)w->k * (2 * sizeof(float) + 1), err));
    return atomic_load(&job->bad_row) < w->n ? explain_bad_row(job, err) : QN_OK;
}

static void free_job(struct qni_job *job)
{
    const struct qni_allocator *a = &job->ctx->allocator;
    const size_t k = (size_t)job->w->k;
    qni_free(a, job->position, k * sizeof *job->position);
    qni_free(a, job->importance, k * sizeof *job->importance);
    qni_free(a, job->feedback, k * k * sizeof *job->feedback);
}

qn_status qn_quantize(const qn_ctx *ctx, const qn_tensor *dense, const qn_quantize_options *options,
                      qn_weight **weight, qn_error *err)
{
    qn_quantize_options o;
    struct qni_job job = {.ctx = ctx};
    if (weight != NULL)
        *weight = NULL;
    if (ctx == NULL || dense == NULL || weight == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx, dense or weight is NULL");
    QNI_TRY(read_options(options, &o, err));
    if (!qni_is_float_format(&o.format))
        QNI_TRY(qni_coder_init(&job.coder, &o.format, o.range, err));
    QNI_TRY(qni_dense_open(dense, "the tensor of weights", &job.dense, err));
    QNI_TRY(check_columns(&o, job.dense.k, err));
    job.method = o.method;

    qn_weight_parts geometry;
    qn_weight_parts_init(&geometry);
    geometry.format = o.format;
    geometry.n = job.dense.n;
    geometry.k = job.dense.k;
    geometry.kh = o.kh;
    geometry.kw = o.kw;
    geometry.conv_groups = o.conv_groups;
    QNI_TRY(qni_weight_alloc(&ctx->allocator, &geometry, o.act_order != 0, o.prescale != NULL,
                             &job.w, err));
    qn_status status = qni_may_have_supers(&o.format, job.w->n, job.w->n_groups)
                           ? qni_weight_alloc_supers(job.w, err)
                           : QN_OK;
    if (status == QN_OK)
        status = prepare(&job, &o, err);
    if (status == QN_OK)
        status = run(&job, err);
    if (status == QN_OK) /* the nearest code of the largest f32 may be beyond it */
        status = qni_weight_check_values(job.w, err);
    free_job(&job);
    if (status == QN_OK)
        *weight = job.w;
    else
        qn_weight_destroy(job.w);
    return status;
}
