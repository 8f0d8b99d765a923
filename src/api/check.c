/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of single arguments (check.h). Nothing here looks at elements. */
#include "check.h"

#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "backend.h"
#include "../base/size.h"

static qn_status fail_type(const qn_tensor *t, const char *name, unsigned types, qn_error *err)
{
    char list[96] = "";
    size_t at = 0;
    for (qn_dtype d = 1; d < 32 && err != NULL; d++) {
        if ((types & QNI_TYPE(d)) != 0 && at < sizeof list)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at > 0 ? ", " : "",
                                   qn_dtype_name(d));
    }
    return qni_fail(err, QN_E_DTYPE, "%s has type %s; possible here: %s", name,
                    qn_dtype_name(t->dtype), list);
}

/* Bytes from the first to one past the last element; false if they do not fit in memory. */
static bool extent(const qn_tensor *t, size_t *bytes)
{
    const int64_t size = (int64_t)qn_dtype_bytes(t->dtype);
    int64_t last = 0;
    for (int32_t d = 0; d < t->rank; d++) {
        int64_t reach;
        if (t->shape[d] == 0) {
            *bytes = 0;
            return true;
        }
        if (!qni_i64_mul(t->shape[d] - 1, t->stride[d], &reach) || !qni_i64_add(last, reach, &last))
            return false;
    }
    if (!qni_i64_add(last, 1, &last) || !qni_i64_mul(last, size, &last) ||
        (uint64_t)last > PTRDIFF_MAX)
        return false;
    *bytes = (size_t)last;
    return true;
}

qn_status qni_check_tensor(const qn_ctx *ctx, const qn_tensor *t, const char *name, int32_t rank,
                           unsigned types, qn_error *err)
{
    if (t->rank != rank)
        return qni_fail(err, QN_E_SHAPE, "%s has rank %d, not %d", name, t->rank, rank);
    if (t->dtype <= 0 || t->dtype >= 32 || (types & QNI_TYPE(t->dtype)) == 0)
        return fail_type(t, name, types, err);
    if (t->device.kind != ctx->device.kind || t->device.index != ctx->device.index)
        return qni_fail(err, QN_E_DEVICE, "%s is on device %d:%d, the context on %d:%d", name,
                        t->device.kind, t->device.index, ctx->device.kind, ctx->device.index);
    for (int32_t d = 0; d < rank; d++) {
        if (t->shape[d] < 0)
            return qni_fail(err, QN_E_SHAPE, "%s: dimension %d is %lld", name, d,
                            (long long)t->shape[d]);
        if (t->stride[d] < 0)
            return qni_fail(err, QN_E_STRIDE, "%s: stride %d is negative (%lld)", name, d,
                            (long long)t->stride[d]);
    }
    if (t->shape[rank - 1] > 1 && t->stride[rank - 1] != 1 && !qni_is_empty(t))
        return qni_fail(err, QN_E_STRIDE, "%s: the innermost stride is %lld, not 1", name,
                        (long long)t->stride[rank - 1]);
    size_t bytes;
    if (!extent(t, &bytes))
        return qni_fail(err, QN_E_STRIDE, "%s reaches beyond the address space", name);
    return QN_OK;
}

qn_status qni_check_shape(const qn_tensor *t, const char *name, const int64_t *shape, qn_error *err)
{
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] != shape[d])
            return qni_fail(err, QN_E_SHAPE, "%s: dimension %d is %lld, not %lld", name, d,
                            (long long)t->shape[d], (long long)shape[d]);
    }
    return QN_OK;
}

/*
 * With the dimensions sorted by stride, elements are all apart if each stride is at least the
 * extent of everything inside it. (Interleavings such as strides 2 and 3 that miss each other by
 * arithmetic are refused too.)
 */
qn_status qni_check_output(const qn_tensor *t, const char *name, qn_error *err)
{
    int32_t order[QN_MAX_RANK];
    int32_t n = 0;
    if (qni_is_empty(t))
        return QN_OK;
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] == 1)
            continue;
        int32_t at = n++;
        for (; at > 0 && t->stride[order[at - 1]] > t->stride[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    int64_t inside = 1; /* cannot overflow: the whole extent was checked */
    for (int32_t i = 0; i < n; i++) {
        const int32_t d = order[i];
        if (t->stride[d] < inside)
            return qni_fail(err, QN_E_STRIDE,
                            "%s: stride %d is %lld, but what it steps over takes %lld elements",
                            name, d, (long long)t->stride[d], (long long)inside);
        inside += (t->shape[d] - 1) * t->stride[d];
    }
    return QN_OK;
}

qn_status qni_check_place(const qn_ctx *ctx, const void *memory, const char *name, qn_error *err)
{
    if (ctx->device.kind == QN_CPU)
        return QN_OK;
    return qni_backend_of(ctx->device.kind)->device->check_pointer(ctx, memory, name, err);
}

qn_status qni_check_data(const qn_ctx *ctx, const qn_tensor *t, const char *name, qn_error *err)
{
    if (t->rank == 0 || qni_is_empty(t))
        return QN_OK;
    if (t->data == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s: data is NULL", name);
    if ((uintptr_t)t->data % qn_dtype_bytes(t->dtype) != 0)
        return qni_fail(err, QN_E_ALIGN, "%s: data is not aligned to its elements of %zu bytes",
                        name, qn_dtype_bytes(t->dtype));
    return qni_check_place(ctx, t->data, name, err);
}

/*
 * The tensor as a column of a matrix with rows of `pitch` bytes: every stride is a multiple of the
 * pitch, or lies inside one row. width: bytes of a row that it covers.
 */
static bool is_column(const qn_tensor *t, uint64_t pitch, uint64_t *width)
{
    const uint64_t size = qn_dtype_bytes(t->dtype);
    *width = size;
    for (int32_t d = 0; d < t->rank; d++) {
        const uint64_t step = (uint64_t)t->stride[d] * size;
        if (t->shape[d] == 1)
            continue;
        if (step < pitch)
            *width += (uint64_t)(t->shape[d] - 1) * step;
        else if (step % pitch != 0)
            return false;
    }
    return *width <= pitch;
}

/* Modulo the pitch both tensors are intervals on a circle; these must not meet. */
static bool are_columns_apart(const qn_tensor *y, const qn_tensor *x)
{
    const uintptr_t a = (uintptr_t)y->data, b = (uintptr_t)x->data;
    for (int32_t d = 0; d < y->rank; d++) {
        const uint64_t pitch = (uint64_t)y->stride[d] * qn_dtype_bytes(y->dtype);
        uint64_t y_width, x_width;
        if (y->shape[d] == 1 || pitch == 0 || !is_column(y, pitch, &y_width) ||
            !is_column(x, pitch, &x_width))
            continue;
        const uint64_t from = b >= a ? (b - a) % pitch : (pitch - (a - b) % pitch) % pitch;
        if (from >= y_width && from + x_width <= pitch)
            return true;
    }
    return false;
}

static bool do_ranges_meet(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t p = (uintptr_t)a, q = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && (p < q ? q - p < a_bytes : p - q < b_bytes);
}

qn_status qni_check_apart(const qn_tensor *y, const char *y_name, const qn_tensor *x,
                          const char *x_name, qn_error *err)
{
    size_t y_bytes = 0, x_bytes = 0;
    if (x->rank == 0 || !extent(y, &y_bytes) || !extent(x, &x_bytes))
        return QN_OK;
    if (do_ranges_meet(y->data, y_bytes, x->data, x_bytes) && !are_columns_apart(y, x))
        return qni_fail(err, QN_E_OVERLAP, "%s overlaps %s", y_name, x_name);
    return QN_OK;
}

qn_status qni_check_apart_bytes(const qn_tensor *y, const char *y_name, const void *memory,
                                size_t bytes, const char *name, qn_error *err)
{
    size_t y_bytes = 0;
    if (extent(y, &y_bytes) && do_ranges_meet(y->data, y_bytes, memory, bytes))
        return qni_fail(err, QN_E_OVERLAP, "%s overlaps %s", y_name, name);
    return QN_OK;
}

qn_status qni_check_scratch(const void *scratch, size_t bytes, size_t needed, qn_error *err)
{
    const size_t there = scratch == NULL ? 0 : bytes;
    if (there < needed)
        return qni_fail(err, QN_E_SCRATCH, "scratch has %zu bytes, %zu are needed", there, needed);
    if ((uintptr_t)scratch % 64 != 0)
        return qni_fail(err, QN_E_ALIGN, "scratch is not aligned to 64 bytes");
    return QN_OK;
}

qn_status qni_check_flag(int32_t flag, const char *name, qn_error *err)
{
    if (flag != 0 && flag != 1)
        return qni_fail(err, QN_E_ARGUMENT, "%s is %d: 0 or 1 is possible", name, flag);
    return QN_OK;
}

/* "w", or "w[3]" of many. */
static const char *name_of(int32_t expert, char text[24])
{
    if (expert < 0)
        return "w";
    snprintf(text, 24, "w[%d]", expert);
    return text;
}

qn_status qni_check_weights(const qn_ctx *ctx, const qn_packed *w, int32_t expert, qn_error *err)
{
    char text[24];
    if (w == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL", name_of(expert, text));
    if (w->device.kind != ctx->device.kind || w->device.index != ctx->device.index)
        return qni_fail(err, QN_E_DEVICE, "%s is packed for device %d:%d, the context is on %d:%d",
                        name_of(expert, text), w->device.kind, w->device.index, ctx->device.kind,
                        ctx->device.index);
    if ((w->head->isa & ~ctx->isa) != 0)
        return qni_fail(err, QN_E_LAYOUT,
                        "%s is packed as %.24s, which needs CPU features that the context lacks",
                        name_of(expert, text), w->head->layout);
    return QN_OK;
}

bool qni_same_table(const qn_packed *a, const qn_packed *b)
{
    const uint64_t bytes = a->head->section[QNI_SECTION_TABLE].bytes;
    if (bytes != b->head->section[QNI_SECTION_TABLE].bytes)
        return false;
    return bytes == 0 || memcmp(a->table, b->table, (size_t)bytes) == 0;
}

qn_status qni_check_flat(qn_tensor *t, const char *name, const qn_tensor *like, qn_error *err)
{
    const int32_t last = t->rank - 1;
    int64_t rows = 1, step = 0;
    if (qni_is_none(t) || (t->rank == 2 && like->rank == 2))
        return QN_OK;
    if (t->rank != like->rank || t->rank < 2 || t->rank > QN_MAX_RANK)
        return qni_fail(err, QN_E_SHAPE, "%s has rank %d, not %d", name, t->rank, like->rank);
    for (int32_t d = last - 1; d >= 0; d--) {
        const int64_t n = t->shape[d];
        if (n != like->shape[d] || n < 0)
            return qni_fail(err, QN_E_SHAPE, "%s: dimension %d is %lld, not %lld", name, d,
                            (long long)n, (long long)like->shape[d]);
        int64_t all, next;
        if (!qni_i64_mul(rows, n, &all) || !qni_i64_mul(step, rows, &next))
            return qni_fail(err, QN_E_SHAPE, "%s has more rows than fit in 64 bits", name);
        if (n > 1 && rows > 1 && t->stride[d] != next)
            return qni_fail(err, QN_E_STRIDE,
                            "%s: the rows of dimensions 0 to %d do not lie at one distance", name,
                            last - 1);
        if (n > 1 && rows == 1)
            step = t->stride[d];
        rows = all;
    }
    qn_tensor flat = *t;
    flat.rank = 2;
    flat.shape[0] = rows;
    flat.shape[1] = t->shape[last];
    flat.stride[0] = rows > 1 ? step : qni_max(t->shape[last], 0);
    flat.stride[1] = t->stride[last];
    *t = flat;
    return QN_OK;
}
