/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights on a GPU. The codes go over in canonical order, a slab of panels at a time through
 * a staging buffer of bounded size; a kernel puts them in their places and adds up the sums of
 * their values. What there is once for a group of codes or less often (scales, zero points, where
 * columns go) is made by the host (src/quant/pack.c) and copied. The blob is the same, byte for
 * byte, as the one that the host alone would make. Back again, and to files, goes the blob as it
 * is. */
#include <string.h>

#include "../base/compiler.h"
#include "../base/error.h"
#include "../quant/magnitude.h"
#include "backend.h"
#include "device.h"
#include "layouts.h"

/* Staged at a time: enough to hide what a copy and a launch cost. One panel is staged whole,
 * however long its rows. */
enum { SLAB_BYTES = 64 << 20, SLAB_PANELS = 1 << 15, PLACES_ALIGNMENT = 256 };

struct cuda_packed {
    struct qn_packed packed; /* first: release() gets its address */
    struct qni_packed_head head;
    float table[256];
};

static void release(struct qn_packed *packed)
{
    const struct qni_allocator allocator = packed->allocator;
    (void)qni_cuda_free(packed->device.index, packed->owner);
    qni_free(&allocator, packed, sizeof(struct cuda_packed));
}

static qn_status read_blob(const qn_ctx *ctx, const struct qn_packed *packed, size_t at,
                           size_t bytes, void *to, qn_error *err)
{
    return qni_cuda_download(ctx, to, packed->blob + at, bytes, err);
}

/* Memory on the device, and what the host keeps: a head, and a codebook if there is one. */
static qn_status make_packed(const qn_ctx *ctx, const struct qni_packed_head *head,
                             const float *table, size_t table_bytes, struct cuda_packed **packed,
                             qn_error *err)
{
    void *blob;
    struct cuda_packed *p = qni_alloc_zero(&ctx->allocator, sizeof *p);
    if (p == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for packed weights");
    const qn_status status = qni_cuda_alloc(ctx, (size_t)head->bytes, &blob, err);
    if (status != QN_OK) {
        qni_free(&ctx->allocator, p, sizeof *p);
        return status;
    }
    p->head = *head;
    if (table != NULL)
        memcpy(p->table, table, table_bytes);
    p->packed.allocator = ctx->allocator;
    p->packed.device = ctx->device;
    p->packed.head = &p->head;
    p->packed.blob = blob;
    p->packed.table = table != NULL ? p->table : NULL;
    p->packed.release = release;
    p->packed.owner = blob;
    p->packed.read = read_blob;
    *packed = p;
    return QN_OK;
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* Rows of canonical codes that a slab of panels holds: outputs of neighbouring panels are
 * neighbours, too. */
struct slab {
    int64_t panel, n_panels;
    int64_t first, end;
    int32_t *outputs; /* [n_panels * 16], from first on; -1: padding */
};

static void look_up_outputs(const struct qni_packed_head *head, struct slab *s)
{
    s->first = s->end = 0;
    for (int64_t i = 0; i < s->n_panels * QNI_PANEL; i++) {
        const int64_t j = qni_output_of(head, s->panel + i / QNI_PANEL, i % QNI_PANEL);
        if (i == 0)
            s->first = j; /* no panel is empty */
        if (j >= 0)
            s->end = j + 1;
        s->outputs[i] = j < 0 ? -1 : (int32_t)(j - s->first);
    }
}

/* Where the kernel adds up sums of a slab; the host left zeros there. */
static struct qni_cuda_repack_sums sums_of(const struct qni_packed_head *h, int32_t section,
                                           const struct qni_cut *cut, int64_t panel, uint8_t *blob)
{
    uint8_t *const all = blob + h->section[section].offset;
    const bool wanted = h->section[section].bytes != 0;
    return (struct qni_cuda_repack_sums){
        .sums = wanted ? (int32_t *)(void *)all + panel * cut->n_segments * QNI_PANEL : NULL,
        .units = (int32_t)cut->units,
        .group_units = (int32_t)cut->group_units,
        .n_segments = (int32_t)cut->n_segments,
        .segment_units = (int32_t)cut->segment_units,
        .segments_per_group = (int32_t)qni_cut_per_group(cut),
    };
}

static void describe_values(const struct qni_pack *p, struct qni_cuda_repack *args)
{
    args->is_table = p->w->table != NULL;
    args->half = p->half;
    for (int32_t i = 0; args->is_table && p->has_values && i < 1 << p->w->format.bits; i++)
        args->value[i] = (int8_t)p->value[i]; /* 16 at most: qni_table_integers() */
}

static qn_status repack_slab(const qn_ctx *ctx, const struct qni_pack *p, const struct slab *s,
                             uint8_t *blob, uint8_t *staged, size_t codes_at, qn_error *err)
{
    const struct qni_packed_head *h = &p->head;
    const int64_t k = p->w->k;
    const size_t panel_bytes = (size_t)h->units * qni_packed_unit_bytes(p->layout->code_bits);
    struct qni_cuda_repack args = {
        .codes = staged + codes_at,
        .packed = blob + h->section[QNI_SECTION_CODES].offset + (size_t)s->panel * panel_bytes,
        .outputs = (const int32_t *)(const void *)staged,
        .layout = p->layout->layout,
        .panels_total = (int32_t)s->n_panels,
        .k = k,
        .blocks = h->units / QNI_MAX_BLOCK_UNITS,
        .runs = (const int64_t *)(const void *)(blob + h->section[QNI_SECTION_RUNS].offset),
        .n_runs = h->n_runs,
        .shift = p->w->table != NULL ? 0 : p->shift,
        .padding = p->padding,
        .sums = {sums_of(h, QNI_SECTION_SUMS, &p->cut, s->panel, blob),
                 sums_of(h, QNI_SECTION_GROUP_SUMS, &p->row_cut, s->panel, blob)},
    };
    struct qni_cuda_scope scope;
    describe_values(p, &args);
    QNI_TRY(qni_cuda_upload(ctx, staged, s->outputs,
                            (size_t)s->n_panels * QNI_PANEL * sizeof *s->outputs, err));
    QNI_TRY(qni_cuda_upload(ctx, args.codes, p->w->codes + s->first * k,
                            (size_t)((s->end - s->first) * k), err));
    QNI_TRY(qni_cuda_begin(ctx, &scope, err));
    return qni_cuda_end(ctx, &scope, qni_cuda_repack_sm75(&args, &scope.launch), err);
}

static qn_status repack(const qn_ctx *ctx, const struct qni_pack *p, uint8_t *blob, qn_error *err)
{
    const struct qni_packed_head *h = &p->head;
    const int64_t row_bytes = QNI_PANEL * p->w->k;
    if (h->section[QNI_SECTION_CODES].bytes == 0)
        return QN_OK;
    const int64_t most = qni_max(1, qni_min(SLAB_PANELS, SLAB_BYTES / row_bytes));
    const int64_t per_slab = qni_min(h->panels, most);
    struct slab s = {.panel = 0};
    const size_t places = (size_t)per_slab * QNI_PANEL * sizeof *s.outputs;
    const size_t codes_at = qni_round_up(places, PLACES_ALIGNMENT);
    void *staged;
    QNI_TRY(qni_cuda_alloc(ctx, codes_at + (size_t)(per_slab * row_bytes), &staged, err));
    s.outputs = qni_alloc(&ctx->allocator, places);
    qn_status status = s.outputs != NULL ? QN_OK : qni_fail(err, QN_E_MEMORY, "out of memory");
    for (; status == QN_OK && s.panel < h->panels; s.panel += per_slab) {
        s.n_panels = qni_min(per_slab, h->panels - s.panel);
        look_up_outputs(h, &s);
        status = repack_slab(ctx, p, &s, blob, staged, codes_at, err);
    }
    qni_free(&ctx->allocator, s.outputs, places);
    (void)qni_cuda_free(ctx->device.index, staged);
    return status;
}

/* ---- packing --------------------------------------------------------------------------------- */

static qn_status plan_pack(const struct qn_weight *w, const qn_pack_options *options,
                           struct qni_pack *p, qn_error *err)
{
    QNI_TRY(qni_pack_plan(&qni_cuda_packing, w, options, p, err));
    return qni_cuda_head_fits(&p->head, err);
}

/* All sections but the codes, around the place that these will have; the sums as zeros. */
static qn_status upload_rest(const qn_ctx *ctx, const struct qni_pack *p, uint8_t *blob,
                             qn_error *err)
{
    const size_t codes = qni_pack_codes_bytes(&p->head);
    const size_t before = (size_t)p->head.section[QNI_SECTION_CODES].offset; /* 0: there are none */
    const size_t bytes = (size_t)p->head.bytes - codes;
    uint8_t *rest = qni_alloc(&ctx->allocator, bytes);
    if (rest == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %zu bytes of packed weights", bytes);
    qni_pack_write(&ctx->threads, p, false, rest);
    qn_status status = qni_cuda_upload(ctx, blob, rest, before, err);
    if (status == QN_OK)
        status = qni_cuda_upload(ctx, blob + before + codes, rest + before, bytes - before, err);
    qni_free(&ctx->allocator, rest, bytes);
    return status;
}

qn_status qni_cuda_pack_bytes(const qn_ctx *ctx, const struct qn_weight *w,
                              const qn_pack_options *options, size_t *bytes, qn_error *err)
{
    (void)ctx;
    struct qni_pack p;
    QNI_TRY(plan_pack(w, options, &p, err));
    *bytes = (size_t)p.head.bytes;
    return QN_OK;
}

qn_status qni_cuda_pack(const qn_ctx *ctx, const struct qn_weight *w,
                        const qn_pack_options *options, struct qn_packed **packed, qn_error *err)
{
    struct qni_pack p;
    struct cuda_packed *made = NULL;
    QNI_TRY(plan_pack(w, options, &p, err));
    QNI_TRY(make_packed(ctx, &p.head, w->table, sizeof(float) << w->format.bits, &made, err));
    made->packed.magnitude = qni_weight_magnitude(w);
    made->packed.exact = qni_weight_exact(w);
    qn_status status = upload_rest(ctx, &p, made->packed.owner, err);
    if (status == QN_OK)
        status = repack(ctx, &p, made->packed.owner, err);
    if (status != QN_OK) {
        release(&made->packed);
        return status;
    }
    *packed = &made->packed;
    return QN_OK;
}

/* ---- and back -------------------------------------------------------------------------------- */

qn_status qni_cuda_unpack(const qn_ctx *ctx, const struct qn_packed *packed,
                          struct qn_weight **weight, qn_error *err)
{
    const size_t bytes = (size_t)packed->head->bytes;
    uint8_t *blob = qni_alloc(&ctx->allocator, bytes);
    if (blob == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %zu bytes of packed weights", bytes);
    const struct qn_packed host = {.head = packed->head, .blob = blob};
    qn_status status = qni_cuda_download(ctx, blob, packed->blob, bytes, err);
    if (status == QN_OK)
        status = qni_unpack_host(ctx, &qni_cuda_packing, &host, weight, err);
    qni_free(&ctx->allocator, blob, bytes);
    return status;
}

const char *qni_cuda_layout_name(int32_t i)
{
    const struct qni_layout *layout = qni_packing_layout(&qni_cuda_packing, i);
    return layout == NULL ? NULL : layout->name;
}

qn_status qni_cuda_packed_check(const struct qn_packed *packed, qn_error *err)
{
    QNI_TRY(qni_packed_check(&qni_cuda_packing, packed, err));
    return qni_cuda_head_fits(packed->head, err);
}

qn_status qni_cuda_packed_upload(const qn_ctx *ctx, const struct qn_packed *host,
                                 struct qn_packed **packed, qn_error *err)
{
    struct cuda_packed *made = NULL;
    const struct qni_packed_head *h = host->head;
    QNI_TRY(
        make_packed(ctx, h, host->table, (size_t)h->section[QNI_SECTION_TABLE].bytes, &made, err));
    made->packed.magnitude = qni_packed_magnitude(h, host->blob);
    made->packed.exact = qni_packed_exact(h, host->blob);
    const qn_status status =
        qni_cuda_upload(ctx, made->packed.owner, host->blob, (size_t)h->bytes, err);
    if (status != QN_OK) {
        release(&made->packed);
        return status;
    }
    *packed = &made->packed;
    return QN_OK;
}
