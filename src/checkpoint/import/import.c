/* SPDX-License-Identifier: Apache-2.0 */
/* What importers share: notes, elements of tensors whatever their type, rows by threads. */
#include "import.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../../base/context.h"
#include "../../base/error.h"
#include "../../base/half.h"
#include "../../base/size.h"

void qni_note(struct qni_notes *notes, const char *format, ...)
{
    va_list list;
    const size_t left = sizeof notes->text - notes->used;
    const size_t lead = notes->used > 0;
    if (left < 2)
        return;
    if (lead > 0)
        notes->text[notes->used] = '\n';
    va_start(list, format);
    const int wanted = vsnprintf(notes->text + notes->used + lead, left - lead, format, list);
    va_end(list);
    const size_t length = wanted < 0 ? 0 : (size_t)wanted;
    notes->used += lead + (length < left - lead ? length : left - lead - 1);
}

qn_status qni_import_expect(const struct qni_tensor *t, const char *what, int64_t a, int64_t b,
                            qn_error *err)
{
    if (t->data == NULL)
        return qni_fail(err, QN_E_NOT_FOUND, "its tensor %s is missing", what);
    const bool is_flat = t->rank == 1 && b == 1 && t->shape[0] == a;
    if (is_flat || (t->rank == 2 && t->shape[0] == a && t->shape[1] == b))
        return QN_OK;
    return qni_fail(err, QN_E_SHAPE,
                    "its tensor %s should be [%lld, %lld] and has %d dimensions, the first of %lld",
                    what, (long long)a, (long long)b, (int)t->rank,
                    (long long)(t->rank > 0 && t->rank <= QN_MAX_RANK ? t->shape[0] : 1));
}

bool qni_import_is_float(qn_dtype dtype)
{
    return dtype == QN_F32 || dtype == QN_F16 || dtype == QN_BF16;
}

float qni_import_float(const struct qni_tensor *t, int64_t i)
{
    float f = 0;
    uint16_t half = 0;
    switch (t->dtype) {
    case QN_F32:
        memcpy(&f, t->data + 4 * i, sizeof f);
        return f;
    case QN_F16:
        memcpy(&half, t->data + 2 * i, sizeof half);
        return qni_f32_from_f16(half);
    case QN_BF16:
        memcpy(&half, t->data + 2 * i, sizeof half);
        return qni_f32_from_bf16(half);
    case QN_E4M3:
        return qni_f32_from_e4m3(t->data[i]);
    default:
        return qni_f32_from_e8m0(t->data[i]);
    }
}

int64_t qni_import_int(const struct qni_tensor *t, int64_t i)
{
    int64_t wide = 0;
    int32_t word = 0;
    switch (t->dtype) {
    case QN_I64:
        memcpy(&wide, t->data + 8 * i, sizeof wide);
        return wide;
    case QN_I32:
        memcpy(&word, t->data + 4 * i, sizeof word);
        return word;
    case QN_I8:
        return (int8_t)t->data[i];
    default:
        return t->data[i];
    }
}

float qni_import_round(double x, struct qni_rounding *r)
{
    const float f = (float)x;
    r->rounded += (double)f != x;
    return f;
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct job {
    qni_import_row_fn *take;
    const void *arg;
    int64_t n, per_item;
    struct qni_rounding *rounding;
};

static void run_item(void *arg, int32_t item)
{
    const struct job *j = arg;
    struct qni_rounding own = {0, 0};
    const int64_t first = item * j->per_item, last = qni_min(first + j->per_item, j->n);
    for (int64_t i = first; i < last; i++)
        j->take(j->arg, i, &own);
    __atomic_add_fetch(&j->rounding->groups, own.groups, __ATOMIC_RELAXED);
    __atomic_add_fetch(&j->rounding->rounded, own.rounded, __ATOMIC_RELAXED);
}

void qni_import_rows(const qn_ctx *ctx, int64_t n, qni_import_row_fn *take, const void *arg,
                     struct qni_rounding *rounding)
{
    enum { ITEMS = 256 };
    struct job job = {take, arg, n, qni_max(1, qni_ceil_div(n, ITEMS)), rounding};
    qni_parallel(&ctx->threads, (int32_t)qni_ceil_div(n, job.per_item), run_item, &job);
}

void qni_import_weight(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                       struct qn_weight *w, qni_import_row_fn *take, struct qni_rounding *rounding)
{
    const struct qni_source source = {found, w, first};
    qni_import_rows(ctx, w->n, take, &source, rounding);
}
