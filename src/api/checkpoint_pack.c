/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of a checkpoint straight to packed weights: here reading rows and packing them meet. What
 * joined modules have in common is found from a row of each: qn_weight_concat() joins these, and
 * what it makes has the format and the columns of the whole. */
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "../checkpoint/rows.h"
#include "backend.h"

struct modules {
    struct qni_weight_source source; /* first: fill() and make() get its address */
    qn_ctx serial;                /* the context with the calling thread alone */
    int32_t count;
    struct qni_module_rows *rows;
};

/* Rows [at, at + n) of a block as a weight of their own, in the format of their module. */
static struct qn_weight view_rows(const struct qn_weight *block, const qn_format *format,
                                  int64_t at, int64_t n)
{
    struct qn_weight view = *block;
    const int64_t groups = at * block->n_groups, supers = at * block->n_supers;
    view.format = *format;
    view.n = n;
    view.codes += at * block->k;
    view.scale += groups;
    view.zero = block->zero == NULL ? NULL : block->zero + groups;
    view.offset = block->offset == NULL ? NULL : block->offset + groups;
    view.super_scale = block->super_scale == NULL ? NULL : block->super_scale + supers;
    view.super_min = block->super_min == NULL ? NULL : block->super_min + supers;
    view.sub_scale = block->sub_scale == NULL ? NULL : block->sub_scale + groups;
    view.sub_min = block->sub_min == NULL ? NULL : block->sub_min + groups;
    return view;
}

static qn_status fill(const struct qni_weight_source *source, int64_t first,
                      struct qn_weight *block, int64_t counts[2], qn_error *err)
{
    const struct modules *m = (const struct modules *)(const void *)source;
    struct qni_rounding rounding = {0, 0};
    int64_t before = 0, done = 0;
    for (int32_t i = 0; i < m->count && done < block->n; i++) {
        const struct qni_module_rows *rows = &m->rows[i];
        const int64_t at = first + done - before, n = qni_min(rows->n - at, block->n - done);
        before += rows->n;
        if (n <= 0)
            continue;
        struct qn_weight view = view_rows(block, &rows->found.parts.format, done, n);
        QNI_TRY(qni_module_load(&m->serial, rows, at, &view, &rounding, err));
        done += n;
    }
    counts[0] += rounding.groups;
    counts[1] += rounding.rounded;
    return QN_OK;
}

static qn_status make(const struct qni_weight_source *source, const qn_ctx *ctx, int64_t n,
                      struct qn_weight **block, qn_error *err)
{
    const struct modules *m = (const struct modules *)(const void *)source;
    QNI_TRY(qni_module_room(ctx, &m->rows[0], n, block, err));
    (*block)->format = source->like->format;
    return QN_OK;
}

/* ---- what the modules have in common --------------------------------------------------------- */

static void destroy_all(qn_weight **weights, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        qn_weight_destroy(weights[i]);
}

/* Weights of every module, with all of its rows or the first one, joined. */
static qn_status join(const qn_ctx *ctx, const struct modules *m, bool whole, qn_weight **parts,
                      struct qni_rounding *rounding, qn_weight **joined, qn_error *err)
{
    int32_t made = 0;
    qn_status status = QN_OK;
    while (status == QN_OK && made < m->count) {
        const struct qni_module_rows *rows = &m->rows[made];
        const int64_t n = whole ? rows->n : qni_min(1, rows->n);
        status = qni_module_room(ctx, rows, n, &parts[made], err);
        if (status != QN_OK)
            break;
        status = qni_module_load(ctx, rows, 0, parts[made++], rounding, err);
    }
    if (status == QN_OK && m->count == 1) {
        *joined = parts[0];
        return QN_OK;
    }
    if (status == QN_OK)
        status = qn_weight_concat(ctx, m->count, (const qn_weight *const *)parts, joined, err);
    destroy_all(parts, made);
    return status;
}

static qn_status pack_whole(const qn_ctx *ctx, struct modules *m, qn_weight **parts,
                            const qn_pack_options *options, qn_packed **packed, qn_error *err)
{
    struct qni_rounding rounding = {0, 0};
    qn_weight *weight = NULL;
    QNI_TRY(join(ctx, m, true, parts, &rounding, &weight, err));
    const qn_status status =
        qni_backend_of(ctx->device.kind)->pack(ctx, weight, options, packed, err);
    qn_weight_destroy(weight);
    m->source.counts[0] = rounding.groups;
    m->source.counts[1] = rounding.rounded;
    return status;
}

static qn_status pack_blocks(const qn_ctx *ctx, struct modules *m, qn_weight **parts,
                             const qn_pack_options *options, qn_packed **packed, qn_error *err)
{
    struct qni_rounding unused = {0, 0};
    qn_weight *like = NULL;
    QNI_TRY(join(ctx, m, false, parts, &unused, &like, err));
    m->source.like = like;
    m->source.make = make;
    m->source.fill = fill;
    const qn_status status =
        qni_backend_of(ctx->device.kind)->pack_source(ctx, &m->source, options, packed, err);
    qn_weight_destroy(like);
    return status;
}

static qn_status pack_modules(const qn_ctx *ctx, const qn_checkpoint *checkpoint,
                              const qn_module_part *parts, struct modules *m, qn_weight **room,
                              const qn_pack_options *options, qn_packed **packed, qn_error *err)
{
    bool is_whole = qni_backend_of(ctx->device.kind)->pack_source == NULL;
    for (int32_t i = 0; i < m->count; i++) {
        QNI_TRY(qni_module_open(checkpoint, parts[i].module, parts[i].first, parts[i].n,
                                &m->rows[i], err));
        is_whole = is_whole || m->rows[i].found.parts.conv_groups > 1 || m->rows[i].n == 0;
        if (!qni_i64_add(m->source.n, m->rows[i].n, &m->source.n) || m->source.n > INT32_MAX)
            return qni_fail(err, QN_E_SHAPE, "the parts have more than 2^31 - 1 rows together");
    }
    m->serial = *ctx;
    m->serial.threads = (struct qni_threads){.n_threads = 1};
    return (is_whole ? pack_whole : pack_blocks)(ctx, m, room, options, packed, err);
}

qn_status qn_checkpoint_pack(const qn_ctx *ctx, const qn_checkpoint *checkpoint, int32_t count,
                             const qn_module_part *parts, const qn_pack_options *options,
                             qn_packed **packed, qn_load_facts *facts, qn_error *err)
{
    enum { MOST = 1 << 12 };
    struct modules m = {.count = count};
    qn_pack_options own;
    qn_packed *made = NULL;
    if (packed != NULL)
        *packed = NULL;
    if (ctx == NULL || checkpoint == NULL || parts == NULL || packed == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_checkpoint_pack: an argument is NULL");
    if (count < 1 || count > MOST)
        return qni_fail(err, QN_E_ARGUMENT, "count is %d; 1 to 4096 parts can be joined",
                        (int)count);
    QNI_TRY(qni_read_pack_options(options, &own, err));
    const size_t rows_bytes = (size_t)count * sizeof *m.rows;
    const size_t room_bytes = (size_t)count * sizeof(qn_weight *);
    m.rows = qni_alloc_zero(&ctx->allocator, rows_bytes);
    qn_weight **room = qni_alloc_zero(&ctx->allocator, room_bytes);
    qn_status status = m.rows != NULL && room != NULL
                           ? pack_modules(ctx, checkpoint, parts, &m, room, &own, &made, err)
                           : qni_fail(err, QN_E_MEMORY, "out of memory");
    qni_free(&ctx->allocator, room, room_bytes);
    qni_free(&ctx->allocator, m.rows, rows_bytes);
    const qn_load_facts counted = {sizeof counted, m.source.counts[0], m.source.counts[1]};
    if (status == QN_OK && facts != NULL &&
        qni_sized_write(facts, &counted, sizeof counted) != QN_OK)
        status = qni_fail(err, QN_E_ARGUMENT, "qn_checkpoint_pack: facts was not initialised");
    if (status == QN_OK)
        *packed = made;
    else
        qn_packed_destroy(made);
    return status;
}
