/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights out of a file: the reverse of save.c, bit for bit. The description and the
 * tensors must agree in every shape before anything is allocated, so a weight never needs more
 * memory than a small multiple of its bytes in the file. Values are checked too: what would make a
 * kernel read out of bounds or an engine compute NaN in silence is refused. */
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "../quant/canonical.h"
#include "cut.h"
#include "describe.h"
#include "parts.h"

/* What a weight's name leads to. */
struct found {
    qn_weight_parts parts; /* geometry */
    struct qni_weight_plan plan;
    qn_entry entry[QNI_N_PARTS];
    bool has[QNI_N_PARTS];
};

static qn_status find_description(const qn_file *file, const char *name, char *full,
                                  const char **text, qn_error *err)
{
    const size_t prefix = strlen(QNI_WEIGHT_KEY);
    memcpy(full, QNI_WEIGHT_KEY, prefix);
    memcpy(full + prefix, name, strlen(name) + 1);
    *text = qn_file_get_metadata(file, full);
    return *text != NULL ? QN_OK : qni_fail(err, QN_E_NOT_FOUND, "is not in the file");
}

static void find_parts(const qn_file *file, const char *name, char *full, struct found *found)
{
    const size_t length = strlen(name);
    memcpy(full, name, length);
    for (int32_t i = 0; i < QNI_N_PARTS; i++) {
        memcpy(full + length, qni_part_suffix(i), strlen(qni_part_suffix(i)) + 1);
        found->has[i] = qn_file_find(file, full, &found->entry[i]) == QN_OK;
    }
}

static bool is_one_of(qn_dtype dtype, const qn_dtype *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == dtype)
            return true;
    return false;
}

/* The types that each part may be kept in. Those of scale, zero and offset are the file's choice.
 */
static bool is_possible(int32_t i, qn_dtype dtype)
{
    static const qn_dtype scales[] = {QN_F32, QN_F16, QN_BF16, QN_E8M0, QN_E4M3};
    static const qn_dtype zeros[] = {QN_I8, QN_I16, QN_I32};
    if (i == QNI_PART_SCALE)
        return is_one_of(dtype, scales, 5);
    if (i == QNI_PART_OFFSET)
        return is_one_of(dtype, scales, 3);
    if (i == QNI_PART_ZERO)
        return is_one_of(dtype, zeros, 3);
    return dtype == (i == QNI_PART_CODES ? QN_U8 : i == QNI_PART_PERM ? QN_I32 : QN_F32);
}

/* The plan that the description and the types in the file make; then every shape must follow. */
static qn_status check_parts(struct found *found, qn_error *err)
{
    struct qni_weight_plan *plan = &found->plan;
    const qn_format *f = &found->parts.format;
    int64_t n_groups = 0;
    qn_error why = {QN_OK, -1, ""};
    memset(plan, 0, sizeof *plan);
    if (qni_describe_check(&found->parts, &n_groups, &why) != QN_OK)
        return qni_fail(err, QN_E_CORRUPT, "its description is impossible: %s", why.text);
    plan->format = *f;
    plan->n = found->parts.n;
    plan->k = found->parts.k;
    plan->n_groups = n_groups;
    const qn_entry *entry = found->entry;
    plan->scale_dtype = entry[QNI_PART_SCALE].tensor.dtype;
    plan->zero_dtype = entry[QNI_PART_ZERO].tensor.dtype;
    plan->offset_dtype = entry[QNI_PART_OFFSET].tensor.dtype;
    plan->has_supers =
        qni_may_have_supers(f, plan->n, n_groups) && found->has[QNI_PART_SUPER_SCALE];
    plan->has_perm = found->has[QNI_PART_PERM];
    plan->has_prescale = found->has[QNI_PART_PRESCALE];
    plan->has_table = f->code == QN_CODE_TABLE;
    const bool has_min = plan->has_supers && qni_has_sub_min(f);
    const bool wanted[QNI_N_PARTS] = {
        true,
        !plan->has_supers,
        f->shift == QN_SHIFT_ZERO,
        f->shift == QN_SHIFT_OFFSET || (f->shift == QN_SHIFT_MIN && !has_min),
        plan->has_perm,
        plan->has_prescale,
        plan->has_table,
        !plan->has_supers && plan->scale_dtype == QN_E4M3,
        plan->has_supers,
        has_min,
        plan->has_supers,
        has_min,
    };
    for (int32_t i = 0; i < QNI_N_PARTS; i++) {
        struct qni_part part;
        if (wanted[i] != found->has[i])
            return qni_fail(err, QN_E_CORRUPT, "its tensor %s is %s", qni_part_suffix(i),
                            wanted[i] ? "missing" : "there although the format has none");
        if (!wanted[i])
            continue;
        qni_part_of(plan, i, &part);
        const qn_tensor *tensor = &entry[i].tensor;
        if (i >= QNI_PART_SUPER_SCALE ? tensor->dtype != part.dtype
                                      : !is_possible(i, tensor->dtype))
            return qni_fail_at(err, QN_E_CORRUPT, entry[i].offset, "its tensor %s has a bad type",
                               qni_part_suffix(i));
        if (tensor->rank != part.rank ||
            memcmp(tensor->shape, part.shape, (size_t)part.rank * sizeof *part.shape) != 0)
            return qni_fail_at(err, QN_E_CORRUPT, entry[i].offset,
                               "its tensor %s has not the shape that its description asks for",
                               qni_part_suffix(i));
    }
    return QN_OK;
}

static qn_status find_weight(const qn_file *file, const char *name, struct found *found,
                             qn_error *err)
{
    const struct qni_allocator *a = &file->allocator;
    const char *text = NULL;
    const size_t bytes = strlen(name) + 32;
    char *full = qni_alloc(a, bytes);
    if (full == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qn_status status = find_description(file, name, full, &text, err);
    if (status == QN_OK)
        status = qni_describe_parse(a, text, &found->parts, err);
    if (status == QN_OK) {
        find_parts(file, name, full, found);
        status = check_parts(found, err);
    }
    qni_free(a, full, bytes);
    return status;
}

static qn_status name_weight(const char *name, qn_status status, const qn_error *inner,
                             qn_error *err)
{
    char shown[QNI_SHOWN];
    return qni_fail_at(err, status, inner->offset, "weight '%s': %s", qni_shown(shown, name),
                       inner->text);
}

qn_status qn_file_weight_info(const qn_file *file, const char *name, qn_weight_parts *parts,
                              size_t *bytes, qn_error *err)
{
    struct found found;
    qn_error inner = {QN_OK, -1, ""};
    if (file == NULL || name == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_file_weight_info: file or name is NULL");
    const qn_status status = find_weight(file, name, &found, &inner);
    if (status != QN_OK)
        return name_weight(name, status, &inner, err);
    if (bytes != NULL) {
        *bytes = 0; /* the parts do not overlap, so the sum is less than the file */
        for (int32_t i = 0; i < QNI_N_PARTS; i++)
            *bytes += found.has[i] ? found.entry[i].bytes : 0;
    }
    if (parts != NULL) {
        found.parts.n_groups = found.plan.n_groups;
        if (qni_sized_write(parts, &found.parts, sizeof found.parts) != QN_OK)
            return qni_fail(err, QN_E_ARGUMENT, "qn_file_weight_info: parts was not initialised");
    }
    return QN_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Element i of a matrix in a file, whose rows may lie apart. */
static const uint8_t *element_at(const qn_tensor *t, int64_t i)
{
    const int64_t columns = t->shape[1];
    return (const uint8_t *)t->data +
           (size_t)(i / columns * t->stride[0] + i % columns) * qn_dtype_bytes(t->dtype);
}

static void load_zeros(const qn_entry *entry, int32_t *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *const from = element_at(&entry->tensor, i);
        int16_t wide;
        if (entry->tensor.dtype == QN_I8) {
            out[i] = (int8_t)*from;
        } else if (entry->tensor.dtype == QN_I16) {
            memcpy(&wide, from, sizeof wide);
            out[i] = wide;
        } else {
            memcpy(&out[i], from, sizeof *out);
        }
    }
}

struct code_rows {
    const uint8_t *from;
    size_t row_bytes;
    const qn_weight *w;
};

static bool load_row(const void *arg, int64_t row)
{
    const struct code_rows *const c = arg;
    const qn_weight *const w = c->w;
    if (qni_is_float_format(&w->format)) {
        const size_t bytes = qni_code_row_bytes(w);
        memcpy(w->codes + (size_t)row * bytes, c->from + (size_t)row * c->row_bytes, bytes);
        return true;
    }
    return qni_codes_unpack(c->from + (size_t)row * c->row_bytes, (size_t)w->k, w->format.bits,
                            w->codes + row * w->k);
}

static qn_status load_codes(const qn_ctx *ctx, const qn_entry *entry, const qn_weight *w,
                            qn_error *err)
{
    if (w->n == 0 || w->k == 0)
        return QN_OK;
    const struct code_rows c = {entry->tensor.data, (size_t)entry->tensor.stride[0], w};
    const int64_t bad = qni_parallel_rows(&ctx->threads, w->n, load_row, &c);
    if (bad >= 0)
        return qni_fail_at(err, QN_E_VALUE, entry->offset + bad * (int64_t)c.row_bytes,
                           "row %lld of its .codes does not end in zeros",
                           (long long)(w->first_row + bad));
    return QN_OK;
}

/* Types and shapes were compared before. */
static void load_floats(const qn_entry *entry, float *out)
{
    const qn_tensor *const t = &entry->tensor;
    const qn_tensor to = t->rank == 2 ? qn_tensor_2d(out, QN_F32, t->shape[0], t->shape[1])
                                      : qn_tensor_1d(out, QN_F32, t->shape[0]);
    qn_entry_copy(entry, &to);
}

static void load_subs(const qn_entry *entry, int16_t *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *const from = element_at(&entry->tensor, i);
        out[i] = entry->tensor.dtype == QN_I8 ? (int8_t)*from : (int16_t)*from;
    }
}

/* Two levels, and the scales and minima that they make. */
static void load_supers(const qn_entry *entry, qn_weight *w)
{
    const int64_t count = w->n * w->n_groups;
    load_floats(&entry[QNI_PART_SUPER_SCALE], w->super_scale);
    load_subs(&entry[QNI_PART_SUB_SCALE], w->sub_scale, count);
    if (w->sub_min != NULL) {
        load_floats(&entry[QNI_PART_SUPER_MIN], w->super_min);
        load_subs(&entry[QNI_PART_SUB_MIN], w->sub_min, count);
    }
    qni_weight_fill_products(w);
}

static qn_status load_arrays(const qn_ctx *ctx, const struct found *found, qn_weight *w,
                             qn_error *err)
{
    const qn_entry *entry = found->entry;
    QNI_TRY(load_codes(ctx, &entry[QNI_PART_CODES], w, err));
    if (w->super_scale != NULL)
        load_supers(entry, w);
    else
        load_floats(&entry[QNI_PART_SCALE], w->scale);
    if (found->has[QNI_PART_UNIT]) {
        float unit;
        load_floats(&entry[QNI_PART_UNIT], &unit);
        for (int64_t i = 0; i < w->n * w->n_groups; i++)
            w->scale[i] *= unit;
    }
    if (w->zero != NULL)
        load_zeros(&entry[QNI_PART_ZERO], w->zero, w->n * w->n_groups);
    if (found->has[QNI_PART_OFFSET])
        load_floats(&entry[QNI_PART_OFFSET], w->offset);
    if (w->perm != NULL && w->k > 0)
        memcpy(w->perm, entry[QNI_PART_PERM].tensor.data, (size_t)w->k * sizeof *w->perm);
    if (w->prescale != NULL)
        load_floats(&entry[QNI_PART_PRESCALE], w->prescale);
    return qni_weight_check(ctx, w, err);
}

/* ---- a part of a weight ---------------------------------------------------------------------- */

bool qni_file_can_cut(const struct qni_found *found, int64_t first_k, int64_t k)
{
    const qn_weight_parts *const p = &found->parts;
    const int64_t end = first_k + k, group = p->format.group;
    int64_t unit = group > 0 ? group : 1;
    if (group > 0 && p->format.superblock > 0)
        unit *= p->format.superblock;
    return !found->has_perm && p->kh * p->kw <= 1 && p->conv_groups <= 1 && k > 0 &&
           first_k % unit == 0 && (end % unit == 0 || end == p->k) &&
           first_k * p->format.bits % 8 == 0 && (k * p->format.bits % 8 == 0 || end == p->k);
}

/* Columns [first, first + count) of rows [row, row + rows) of a matrix. */
static void narrow_part(qn_tensor *t, int64_t row, int64_t rows, int64_t first, int64_t count)
{
    t->data = (uint8_t *)t->data + (size_t)(row * t->stride[0] + first) * qn_dtype_bytes(t->dtype);
    t->shape[0] = rows;
    t->shape[1] = count;
}

/* What is found becomes a view of its part. The range was checked. */
static void narrow(struct found *f, const qn_rectangle *r)
{
    const int64_t group = f->plan.format.group > 0 ? f->plan.format.group : f->plan.k;
    const int64_t g = group > 0 ? r->first_k / group : 0;
    const bool is_whole_k = r->first_k == 0 && r->k == f->plan.k;
    const int64_t n_groups = is_whole_k || f->plan.n_groups <= 1
                                 ? f->plan.n_groups
                                 : qni_ceil_div(r->first_k + r->k, group) - g;
    const int64_t super = qni_max(f->plan.format.superblock, 1);
    for (int32_t i = 0; i < QNI_N_PARTS; i++) {
        qn_tensor *const t = &f->entry[i].tensor;
        if (!f->has[i])
            continue;
        if (i == QNI_PART_PRESCALE) {
            t->data = (float *)t->data + r->first_k;
            t->shape[0] = r->k;
        }
        if (t->rank != 2)
            continue;
        if (is_whole_k)
            narrow_part(t, r->first_n, r->n, 0, t->shape[1]);
        else if (i == QNI_PART_CODES)
            narrow_part(t, r->first_n, r->n, r->first_k * f->plan.format.bits / 8,
                        (int64_t)qni_codes_bytes((size_t)r->k, f->plan.format.bits));
        else if (i == QNI_PART_SUPER_SCALE || i == QNI_PART_SUPER_MIN)
            narrow_part(t, r->first_n, r->n, g / super, qni_ceil_div(n_groups, super));
        else
            narrow_part(t, r->first_n, r->n, f->plan.n_groups <= 1 ? 0 : g, n_groups);
    }
    f->plan.n = f->parts.n = r->n;
    f->plan.k = f->parts.k = r->k;
    f->plan.n_groups = n_groups;
}

qn_status qni_file_load_range(const qn_ctx *ctx, const qn_file *file, const char *name,
                              const qn_rectangle *range, qn_weight **weight, qn_error *err)
{
    struct found found;
    float table[256];
    qn_error inner = {QN_OK, -1, ""};
    qn_weight *w = NULL;
    *weight = NULL;
    qn_status status = find_weight(file, name, &found, &inner);
    for (int32_t i = 0; status == QN_OK && i < QNI_N_PARTS; i++)
        if (found.has[i])
            status = qni_file_check_loaded(file, &found.entry[i], &inner);
    if (status == QN_OK && range != NULL &&
        (range->first_n + range->n > found.plan.n || range->first_k + range->k > found.plan.k))
        status = qni_fail(&inner, QN_E_CORRUPT, "the file was changed since it was opened");
    if (status == QN_OK && range != NULL)
        narrow(&found, range);
    if (status == QN_OK && found.plan.has_table) {
        load_floats(&found.entry[QNI_PART_TABLE], table); /* 2^bits entries, at most 256 */
        found.parts.table = table;
    }
    if (status == QN_OK)
        status = qni_weight_alloc(&ctx->allocator, &found.parts, found.plan.has_perm,
                                  found.plan.has_prescale, &w, &inner);
    if (status == QN_OK && found.plan.has_supers)
        status = qni_weight_alloc_supers(w, &inner);
    if (status == QN_OK) {
        w->first_row = range == NULL ? 0 : range->first_n;
        status = load_arrays(ctx, &found, w, &inner);
        w->first_row = 0;
    }
    if (status != QN_OK) {
        qn_weight_destroy(w);
        return name_weight(name, status, &inner, err);
    }
    *weight = w;
    return QN_OK;
}

qn_status qn_file_load_weight(const qn_ctx *ctx, const qn_file *file, const char *name,
                              qn_weight **weight, qn_error *err)
{
    if (ctx == NULL || file == NULL || name == NULL || weight == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_file_load_weight: an argument is NULL");
    return qni_file_load_range(ctx, file, name, NULL, weight, err);
}
