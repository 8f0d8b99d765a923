/* SPDX-License-Identifier: Apache-2.0 */
/* Exports: the public calls, and what exporters share. What a format cannot hold exactly is refused
 * with the place, the value, and the other targets that could hold the weight. */
#include "export.h"

#include <stdio.h>
#include <string.h>

#include "../../base/context.h"
#include "../../base/error.h"
#include "../../base/size.h"
#include "../../base/sized.h"
#include "../../quant/narrow.h"
#include "../file.h"

static const struct qni_exporter *const exporters[] = {
#define QNI_EXPORTER(name) &qni_export_##name,
#include "exporters.inc"
#undef QNI_EXPORTER
};
enum { N_EXPORTERS = sizeof exporters / sizeof *exporters };

const char *qn_export_target(int32_t i)
{
    return i >= 0 && i < N_EXPORTERS ? exporters[i]->name : NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

bool qni_export_narrow(qn_dtype dtype, float value, uint8_t out[4])
{
    return qni_narrow(dtype, value == 0 ? 0.0f : value, out); /* of zeros the positive one */
}

void qni_export_put_scale(const struct qn_export *x, uint8_t *data, int64_t at, float scale)
{
    uint8_t narrow[4];
    const size_t bytes = qn_dtype_bytes(x->scale_dtype);
    qni_export_narrow(x->scale_dtype, scale, narrow);
    memcpy(data + (size_t)at * bytes, narrow, bytes);
}

bool qni_export_zero(const struct qn_weight *w, int64_t at, int32_t *zero)
{
    *zero = 0;
    if (w->zero != NULL)
        *zero = w->zero[at];
    const int32_t from_zero = w->format.shift == QN_SHIFT_MIN ? 1 << (w->format.bits - 1) : 0;
    *zero -= from_zero; /* codes that count from 0 */
    if (w->offset == NULL || w->offset[at] == 0)
        return true;
    const double quotient = -(double)w->offset[at] / (double)w->scale[at];
    if (!(quotient > -65536 && quotient < 65536))
        return false;
    *zero = (int32_t)quotient - from_zero;
    return (double)(int32_t)quotient * (double)w->scale[at] == -(double)w->offset[at];
}

static const char *const type_names[] = {
    [QN_F32] = "f32", [QN_F16] = "f16", [QN_BF16] = "bf16", [QN_E4M3] = "E4M3", [QN_E8M0] = "E8M0"};

static bool scales_fit(const struct qn_weight *w, qn_dtype dtype, int64_t *bad)
{
    uint8_t out[4];
    for (int64_t i = 0; i < w->n * w->n_groups; i++)
        if (!qni_export_narrow(dtype, w->scale[i], out)) {
            *bad = i;
            return false;
        }
    return true;
}

qn_status qni_export_scale_type(struct qn_export *x, const qn_dtype *allowed, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const qn_dtype only = x->options.scale_dtype, own = w->format.scale_dtype;
    int64_t bad = 0;
    for (int32_t pass = 0; pass < 2; pass++)
        for (const qn_dtype *d = allowed; *d != QN_DTYPE_NONE; d++) {
            if ((only != QN_DTYPE_NONE && *d != only) || (pass == 0 && *d != own))
                continue;
            if (scales_fit(w, *d, &bad)) {
                x->scale_dtype = *d;
                return QN_OK;
            }
        }
    char names[64] = "";
    for (const qn_dtype *d = allowed; *d != QN_DTYPE_NONE; d++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                 d == allowed ? "" : " or ", type_names[*d]);
    scales_fit(w, allowed[0], &bad);
    return qni_fail(err, QN_E_VALUE, "row %lld, group %lld: scale %.9g is no %s number",
                    (long long)(bad / w->n_groups), (long long)(bad % w->n_groups),
                    (double)w->scale[bad], names);
}

qn_status qni_export_zeros(struct qn_export *x, int64_t least, int64_t most, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const int32_t half = 1 << (x->bits - 1);
    int32_t zero = 0;
    x->is_symmetric = true;
    for (int64_t i = 0; i < w->n * w->n_groups; i++) {
        if (!qni_export_zero(w, i, &zero))
            return qni_fail(err, QN_E_VALUE,
                            "row %lld, group %lld: offset %.9g is no whole number of its scale "
                            "%.9g, and the format has integer zero points",
                            (long long)(i / w->n_groups), (long long)(i % w->n_groups),
                            (double)w->offset[i], (double)w->scale[i]);
        if (zero + half < least || zero + half > most)
            return qni_fail(err, QN_E_VALUE,
                            "row %lld, group %lld: zero point %lld is outside of the format's "
                            "%lld to %lld",
                            (long long)(i / w->n_groups), (long long)(i % w->n_groups),
                            (long long)(zero + half), (long long)least, (long long)most);
        x->is_symmetric = x->is_symmetric && zero == 0;
    }
    return QN_OK;
}

qn_status qni_export_integers(const struct qn_export *x, qn_error *err)
{
    if (x->w->format.code != QN_CODE_INT)
        return qni_fail(err, QN_E_FORMAT,
                        "its codes stand for values of a table, and the format "
                        "has integers");
    return QN_OK;
}

qn_status qni_export_groups(struct qn_export *x, bool must_divide, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const int64_t own = w->format.group < 0 ? w->k : w->format.group, wanted = x->options.group;
    x->group = wanted == 0 ? own : wanted == -1 ? w->k : wanted;
    if (x->group < 1 || (own != x->group && (own < x->group || own % x->group != 0)))
        return qni_fail(err, QN_E_FORMAT, "groups of %lld do not divide its groups of %lld columns",
                        (long long)x->group, (long long)own);
    if (must_divide && w->k % x->group != 0)
        return qni_fail(err, QN_E_FORMAT, "the last group of its %lld columns is shorter than %lld",
                        (long long)w->k, (long long)x->group);
    x->groups = qni_ceil_div(w->k, x->group);
    x->is_per_row = x->group >= w->k;
    return QN_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

struct qni_out *qni_export_add(struct qn_export *x, const char *ending, qn_dtype dtype,
                               int64_t rows, int64_t columns, qn_error *err)
{
    struct qni_out *out = &x->out[x->n_out];
    *out = (struct qni_out){.ending = ending, .dtype = dtype, .rank = columns < 0 ? 1 : 2};
    out->shape[0] = rows;
    out->shape[1] = columns < 0 ? 0 : columns;
    out->bytes = (size_t)(rows * (columns < 0 ? 1 : columns)) *
                 (dtype == QN_DTYPE_NONE ? 1 : qn_dtype_bytes(dtype));
    out->data = qni_alloc_zero(&x->allocator, out->bytes);
    if (out->data == NULL) {
        qni_fail(err, QN_E_MEMORY, "out of memory");
        return NULL;
    }
    x->n_out++;
    return out;
}

qn_status qni_export_order(struct qn_export *x, const char *ending, qn_error *err)
{
    struct qni_out *out = qni_export_add(x, ending, QN_I32, x->w->k, -1, err);
    if (out == NULL)
        return QN_E_MEMORY;
    int32_t *g_idx = (int32_t *)(void *)out->data;
    for (int64_t p = 0; p < x->w->k; p++)
        g_idx[x->w->perm != NULL ? x->w->perm[p] : p] = (int32_t)(p / x->group);
    return QN_OK;
}

struct rows_job {
    struct qn_export *x;
    qni_export_rows_fn *put;
    int64_t each;
};

static void run_rows(void *arg, int32_t item)
{
    const struct rows_job *j = arg;
    const int64_t first = item * j->each;
    j->put(j->x, first, qni_min(first + j->each, j->x->w->n));
}

void qni_export_rows(struct qn_export *x, int64_t multiple, qni_export_rows_fn *put)
{
    enum { ITEMS = 64 };
    const int64_t each =
        (int64_t)qni_round_up((size_t)qni_ceil_div(qni_max(x->w->n, 1), ITEMS), (size_t)multiple);
    struct rows_job job = {x, put, each};
    qni_parallel(&x->ctx->threads, (int32_t)qni_ceil_div(x->w->n, each), run_rows, &job);
}

const char *qni_export_asked(const struct qn_export *x)
{
    const char *colon = strchr(x->options.target, ':');
    return colon == NULL ? "" : colon + 1;
}

/* ---- the public calls ------------------------------------------------------------------------ */

static const struct qni_exporter *find_exporter(const char *target)
{
    const size_t length = strcspn(target, ":");
    for (int32_t i = 0; i < N_EXPORTERS; i++)
        if (strlen(exporters[i]->name) == length &&
            strncmp(exporters[i]->name, target, length) == 0)
            return exporters[i];
    return NULL;
}

/* What no target has. */
static qn_status check_any(const struct qni_exporter *exporter, const struct qn_weight *w,
                           qn_error *err)
{
    if (qni_is_float_format(&w->format))
        return qni_fail(err, QN_E_FORMAT,
                        "it is not quantized: write it as a plain tensor of type %s",
                        qn_dtype_name(w->format.scale_dtype));
    if (w->prescale != NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "it scales its input by column (a prescale), which only quern's own files "
                        "hold");
    const bool is_conv = w->kh != 1 || w->kw != 1 || w->conv_groups != 1;
    if (w->format.blocks != QN_BLOCKS_RUN || (is_conv && !exporter->takes_convolutions))
        return qni_fail(err, QN_E_FORMAT, "it is a convolution, which %s hold",
                        w->format.blocks == QN_BLOCKS_RUN ? "ONNX and quern's own files"
                                                          : "only quern's own files");
    if (w->n < 1 || w->k < 1)
        return qni_fail(err, QN_E_SHAPE, "it is empty");
    return QN_OK;
}

/* "; ct or gguf could hold it": the targets whose check is content. */
static void name_others(const struct qn_export *asked, const struct qni_exporter *refused,
                        char *text, size_t capacity)
{
    char names[96] = "";
    for (int32_t i = 0; i < N_EXPORTERS; i++) {
        struct qn_export x = {.ctx = asked->ctx, .w = asked->w};
        qn_export_options_init(&x.options);
        x.options.target = exporters[i]->name;
        if (exporters[i] == refused || check_any(exporters[i], x.w, NULL) != QN_OK ||
            exporters[i]->check(&x, NULL) != QN_OK)
            continue;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s, ", exporters[i]->name);
    }
    snprintf(text, capacity, "; %squern could hold it", names);
}

static qn_status make(struct qn_export *x, qn_error *err)
{
    qn_error inner = {QN_OK, -1, ""};
    char others[160] = "";
    const struct qni_exporter *exporter = find_exporter(x->options.target);
    if (exporter == NULL)
        return qni_fail(err, QN_E_ARGUMENT,
                        "no such target; awq, gptq, gptq_v2, gptq_p, ct, bnb, gguf and onnx are");
    qn_status status = check_any(exporter, x->w, &inner);
    if (status == QN_OK) {
        status = exporter->check(x, &inner);
        if (status != QN_OK)
            name_others(x, exporter, others, sizeof others);
    }
    if (status != QN_OK)
        return qni_fail(err, status, "%s cannot hold it: %s%s", x->options.target, inner.text,
                        others);
    return exporter->write(x, err);
}

qn_status qn_export_create(const qn_ctx *ctx, const qn_weight *weight,
                           const qn_export_options *options, qn_export **made, qn_error *err)
{
    qn_export_options own;
    qn_export_options_init(&own);
    if (made != NULL)
        *made = NULL;
    if (ctx == NULL || weight == NULL || options == NULL || made == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_export_create: an argument is NULL");
    QNI_TRY(qni_sized_read(&own, sizeof own, options, err));
    if (own.target == NULL || own.reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "qn_export_create: target is NULL, or reserved not 0");
    struct qn_export *x = qni_alloc_zero(&ctx->allocator, sizeof *x);
    if (x == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    x->allocator = ctx->allocator;
    x->ctx = ctx;
    x->w = weight;
    x->options = own;
    x->has_order = weight->perm != NULL;
    const qn_status status = make(x, err);
    x->ctx = NULL;
    x->w = NULL;
    x->options.target = NULL;
    if (status != QN_OK) {
        qn_export_destroy(x);
        return status;
    }
    *made = x;
    return QN_OK;
}

void qn_export_destroy(qn_export *made)
{
    if (made == NULL)
        return;
    const struct qni_allocator a = made->allocator;
    for (int32_t i = 0; i < made->n_out; i++)
        qni_free(&a, made->out[i].data, made->out[i].bytes);
    qni_free(&a, made, sizeof *made);
}

int64_t qn_export_count(const qn_export *made)
{
    return made == NULL ? 0 : made->n_out;
}

qn_status qn_export_entry(const qn_export *made, int64_t i, qn_entry *entry)
{
    if (made == NULL || entry == NULL || i < 0 || i >= made->n_out)
        return QN_E_ARGUMENT;
    const struct qni_out *out = &made->out[i];
    memset(entry, 0, sizeof *entry);
    entry->name = out->ending;
    entry->dtype = out->type != NULL ? out->type : qni_dtype_spelling(out->dtype);
    entry->bytes = out->bytes;
    entry->is_aligned = 1;
    entry->tensor = qn_tensor_make(out->data, out->dtype, out->rank, out->shape);
    return QN_OK;
}

qn_status qn_export_query(const qn_export *made, qn_export_info *info)
{
    qn_export_info own;
    if (made == NULL || info == NULL)
        return QN_E_ARGUMENT;
    qn_export_info_init(&own);
    own.kind = made->kind;
    own.bits = made->bits;
    own.group = made->is_per_row ? -1 : made->group;
    own.is_symmetric = made->is_symmetric;
    own.has_order = made->has_order;
    return qni_sized_write(info, &own, sizeof own);
}
