/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a module's tensors along k. A tensor has its codes, or one value for each group, along
 * one dimension (qni_importer.along_k). Along the first dimension a range of k is a range of bytes:
 * a view. Along the last it is a run of bytes in every row, which is copied. Places that do not
 * fall on whole elements - words, blocks of GGUF - are not cut here; the caller then loads whole
 * rows. */
#include "cut.h"

#include "../base/error.h"
#include "../base/size.h"
#include "gguf.h"

/* What a tensor is cut into: elements [first, first + count) of `extent` along k. */
struct k_range {
    int64_t extent, first, count; /* extent 0: the tensor stays whole */
    bool is_last;                 /* of its dimensions */
};

/* Codes of the module's main tensor: one an element, or `bits` of each element's bits. */
static bool range_of_codes(const struct qni_found *f, const struct qni_tensor *t, int64_t first_k,
                           int64_t k, struct k_range *p)
{
    const struct qni_ggml_type *const block =
        t->dtype == QN_DTYPE_NONE ? qni_ggml_type_named(t->spelling) : NULL;
    const int64_t all = f->parts.k, bits = f->parts.format.bits;
    const int64_t element = 8 * (int64_t)qn_dtype_bytes(t->dtype);
    p->first = first_k;
    p->count = k;
    if (block != NULL) {
        p->extent /= block->elements;
        p->first /= block->elements;
        p->count /= block->elements;
        return first_k % block->elements == 0 && k % block->elements == 0;
    }
    if (p->extent == all)
        return true;
    p->first = element == 0 ? 0 : first_k * bits / element;
    p->count = element == 0 ? 0 : k * bits / element;
    return element != 0 && p->extent * element == all * bits && first_k * bits % element == 0 &&
           k * bits % element == 0;
}

/* One value a group. */
static bool range_of_groups(const struct qni_found *f, int64_t first_k, int64_t k,
                            struct k_range *p)
{
    const int64_t group = f->parts.format.group, all = f->parts.k;
    if (p->extent == 1) {
        p->extent = 0;
        return true; /* one value for all of k */
    }
    if (group < 1 || p->extent != qni_ceil_div(all, group) || first_k % group != 0 ||
        ((first_k + k) % group != 0 && first_k + k != all))
        return false;
    p->first = first_k / group;
    p->count = qni_ceil_div(first_k + k, group) - p->first;
    return true;
}

static bool range_of_part(const struct qni_found *f, int32_t part, int32_t along, int64_t first_k,
                          int64_t k, struct k_range *p)
{
    const struct qni_tensor *const t = &f->part[part];
    memset(p, 0, sizeof *p);
    if (t->data == NULL || along == 0)
        return true;
    p->is_last = along == 2;
    if (p->is_last && t->rank < 2)
        return part != 0; /* one value a row, or one for all */
    p->extent = t->shape[p->is_last ? t->rank - 1 : 0];
    return part == 0 ? range_of_codes(f, t, first_k, k, p) : range_of_groups(f, first_k, k, p);
}

/* Rows of a tensor whose columns are copied. */
static int64_t rows_of(const struct qni_tensor *t)
{
    int64_t rows = 1;
    for (int32_t d = 0; d + 1 < t->rank; d++)
        rows *= t->shape[d];
    return rows;
}

static qn_status copy_columns(struct qni_copies *cut, int32_t part, const struct k_range *p,
                              int64_t row, int64_t rows, struct qni_tensor *t, qn_error *err)
{
    const int64_t all = rows_of(t);
    const size_t row_bytes = all > 0 ? t->bytes / (size_t)all : 0;
    const size_t element = p->extent > 0 ? row_bytes / (size_t)p->extent : 0;
    const size_t bytes = (size_t)p->count * element;
    const uint8_t *from = t->data + (size_t)row * row_bytes + (size_t)p->first * element;
    uint8_t *to = qni_alloc(&cut->allocator, (size_t)rows * bytes + 1);
    if (to == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    cut->copy[part] = to;
    cut->bytes[part] = (size_t)rows * bytes + 1;
    for (int64_t i = 0; i < rows; i++, from += row_bytes, to += bytes)
        memcpy(to, from, bytes);
    t->data = cut->copy[part];
    t->bytes = (size_t)rows * bytes;
    t->shape[1] = t->shape[t->rank - 1] / p->extent * p->count; /* of GGUF: elements, not blocks */
    t->shape[0] = rows;
    t->rank = 2;
    return QN_OK;
}

static void view_rows(const struct k_range *p, struct qni_tensor *t)
{
    const size_t row_bytes = p->extent > 0 ? t->bytes / (size_t)p->extent : 0;
    t->data += (size_t)p->first * row_bytes;
    t->bytes = (size_t)p->count * row_bytes;
    t->shape[0] = p->count;
}

qn_status qni_cut_module(const struct qni_allocator *allocator, const struct qni_importer *importer,
                         const qn_rectangle *range, struct qni_found *found, struct qni_copies *cut,
                         bool *is_cut, qn_error *err)
{
    struct k_range ranges[QNI_MOST_PARTS];
    const int64_t first = range->first_n, n = range->n, first_k = range->first_k, k = range->k;
    /* Rows can be left out, too, if all tensors but those of a single value have one each. */
    bool has_rows = true;
    *is_cut = false;
    cut->allocator = *allocator;
    cut->first = first;
    if (found->file != NULL && qni_file_can_cut(found, first_k, k)) {
        found->first_k = first_k; /* what loads it reads the pieces where they lie */
        found->parts.k = k;
        *is_cut = true;
        return QN_OK;
    }
    if (importer->along_k[0] == 0 || found->has_perm || found->has_prescale || found->parts.k < 1 ||
        (importer->can_cut != NULL && !importer->can_cut(found)))
        return QN_OK;
    for (int32_t i = 0; i < QNI_MOST_PARTS; i++) {
        const struct qni_tensor *const t = &found->part[i];
        if (!range_of_part(found, i, importer->along_k[i], first_k, k, &ranges[i]))
            return QN_OK;
        if (t->data != NULL && importer->along_k[i] != 0)
            has_rows = has_rows && ranges[i].extent > 0 && ranges[i].is_last &&
                       rows_of(t) == found->parts.n;
    }
    *is_cut = true;
    for (int32_t i = 0; i < QNI_MOST_PARTS; i++) {
        struct qni_tensor *const t = &found->part[i];
        if (ranges[i].extent == 0)
            continue;
        if (!ranges[i].is_last)
            view_rows(&ranges[i], t);
        else
            QNI_TRY(copy_columns(cut, i, &ranges[i], has_rows ? first : 0,
                                 has_rows ? n : rows_of(t), t, err));
    }
    found->parts.k = k;
    if (has_rows) {
        found->parts.n = n;
        cut->first = 0;
    }
    return QN_OK;
}

void qni_cut_free(struct qni_copies *cut)
{
    for (int32_t i = 0; i < QNI_MOST_PARTS; i++)
        if (cut->copy[i] != NULL)
            qni_free(&cut->allocator, cut->copy[i], cut->bytes[i]);
}
