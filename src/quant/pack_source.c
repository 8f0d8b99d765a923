/* SPDX-License-Identifier: Apache-2.0 */
/* Packing a weight that is never in memory as a whole: threads take blocks of rows in turn, let the
 * source fill one, and write its panels while its codes lie in the cache.
 *
 * The head says how wide scales and zero points are, which all rows decide. It is planned for what
 * the first block needs; where a later one needs more, the pass ends, and the next one is planned
 * for both. Widths only grow, so that there are at most seven passes, and nearly always one. */
#include <string.h>

#include "../base/compiler.h"
#include "../base/error.h"
#include "../base/size.h"
#include "pack.h"

enum { MOST_ROWS = 128, SCRATCH = 32 << 20 };

struct slot { /* of a thread */
    struct qn_weight *rows;
    int64_t held;        /* the block that it has already, or -1 */
    int64_t failed;      /* the block that err is about, or -1 */
    qn_status status;
    qn_error err;
    int64_t counts[2];
};

struct pass {
    const struct qni_weight_source *source;
    const struct qni_pack *pack;
    struct qni_pack_widths fit; /* that the plan is made for */
    struct slot *slots;
    int64_t per_block, next;    /* rows; the next block, atomic */
    int32_t stopped, unfit[6];  /* atomic */
    uint8_t *blob;
};

static int64_t rows_of(const struct pass *p, int64_t block)
{
    return qni_min(p->per_block, p->source->n - block * p->per_block);
}

static bool fill(struct pass *p, struct slot *slot, int64_t block)
{
    slot->rows->n = rows_of(p, block);
    slot->status = p->source->fill(p->source, block * p->per_block, slot->rows, slot->counts,
                                   &slot->err);
    slot->failed = slot->status == QN_OK ? -1 : block;
    return slot->status == QN_OK;
}

/* Do the rows need wider types than those that were planned for? */
static bool needs_more(struct pass *p, const struct qn_weight *rows)
{
    const struct qni_pack_widths fit = qni_pack_measure(rows);
    const bool has_unit = p->fit.unit != 0.0f;
    const bool unfit[6] = {p->fit.zeros && !fit.zeros,
                           p->fit.minima && !fit.minima,
                           p->fit.shifts && !fit.shifts,
                           p->fit.scales && !fit.scales,
                           p->fit.powers && !fit.powers,
                           has_unit && !qni_pack_fits_bytes(rows, QN_E4M3, p->fit.unit)};
    bool any = false;
    for (int32_t i = 0; i < 6; i++)
        if (unfit[i]) {
            __atomic_store_n(&p->unfit[i], 1, __ATOMIC_RELAXED);
            any = true;
        }
    return any;
}

static void run_slot(void *arg, int32_t i)
{
    struct pass *p = arg;
    struct slot *slot = &p->slots[i];
    const int64_t blocks = qni_ceil_div(p->source->n, p->per_block);
    while (!__atomic_load_n(&p->stopped, __ATOMIC_RELAXED)) {
        const int64_t held = slot->held;
        const int64_t block =
            held >= 0 ? held : __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
        slot->held = -1;
        if (block >= blocks)
            return;
        if ((held < 0 && !fill(p, slot, block)) || needs_more(p, slot->rows)) {
            __atomic_store_n(&p->stopped, 1, __ATOMIC_RELAXED);
            return;
        }
        qni_pack_write_rows(p->pack, slot->rows, block * p->per_block, p->blob);
    }
}

/* The error of the first block that has one: every block before it was taken, and looked at to its
 * end. */
static qn_status first_error(const struct slot *slots, int32_t n, qn_error *err)
{
    const struct slot *first = NULL;
    for (int32_t i = 0; i < n; i++)
        if (slots[i].failed >= 0 && (first == NULL || slots[i].failed < first->failed))
            first = &slots[i];
    if (first == NULL)
        return QN_OK;
    if (err != NULL)
        *err = first->err;
    return first->status;
}

/* One pass with the widths of p->fit. done: no row needed more. */
static qn_status run_pass(const qn_ctx *ctx, struct pass *p, int32_t n_slots,
                          const struct qni_packing *packing, const qn_pack_options *options,
                          struct qn_packed **packed, bool *done, qn_error *err)
{
    struct qn_weight shape = *p->source->like;
    struct qni_pack plan;
    shape.n = p->source->n;
    QNI_TRY(qni_pack_plan_widths(packing, &shape, &p->fit, options, &plan, err));
    const size_t bytes = (size_t)plan.head.bytes;
    p->blob = qni_alloc(&ctx->allocator, bytes);
    if (p->blob == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %zu bytes of packed weights", bytes);
    p->pack = &plan;
    p->stopped = 0;
    memset(p->unfit, 0, sizeof p->unfit);
    qni_pack_write_head(&plan, p->blob);
    qni_parallel(&ctx->threads, n_slots, run_slot, p);
    qn_status status = first_error(p->slots, n_slots, err);
    *done = !p->stopped;
    if (status == QN_OK && *done)
        status = qni_pack_adopt(ctx, p->blob, p->blob, packed, err);
    if (status != QN_OK || !*done)
        qni_free(&ctx->allocator, p->blob, bytes);
    return status;
}

static qn_status run_passes(const qn_ctx *ctx, struct pass *p, int32_t n_slots,
                            const struct qni_packing *packing, const qn_pack_options *options,
                            struct qn_packed **packed, qn_error *err)
{
    bool done = false;
    if (!fill(p, &p->slots[0], 0))
        return first_error(p->slots, 1, err);
    p->fit = qni_pack_measure(p->slots[0].rows);
    p->slots[0].held = 0;
    p->next = 1;
    while (!done) {
        QNI_TRY(run_pass(ctx, p, n_slots, packing, options, packed, &done, err));
        p->fit.zeros = p->fit.zeros && !p->unfit[0];
        p->fit.minima = p->fit.minima && !p->unfit[1];
        p->fit.shifts = p->fit.shifts && !p->unfit[2];
        p->fit.scales = p->fit.scales && !p->unfit[3];
        p->fit.powers = p->fit.powers && !p->unfit[4];
        p->fit.unit = p->unfit[5] ? 0.0f : p->fit.unit;
        p->next = 0;
        for (int32_t i = 0; i < n_slots && !done; i++) {
            p->slots[i].held = -1;
            memset(p->slots[i].counts, 0, sizeof p->slots[i].counts);
        }
    }
    return QN_OK;
}

/* What a row takes in a block. */
static int64_t row_bytes(const struct qn_weight *w)
{
    const int64_t per_group = 4 + (w->zero != NULL ? 4 : 0) + (w->offset != NULL ? 4 : 0) +
                              (w->super_scale != NULL ? 4 : 0);
    return w->k + w->n_groups * per_group;
}

static int32_t choose_blocks(const qn_ctx *ctx, struct pass *p)
{
    const int64_t bytes = qni_max(1, row_bytes(p->source->like)) * QNI_PANEL, n = p->source->n;
    const int64_t threads = qni_max(1, ctx->threads.n_threads);
    /* Panels a block: few enough for the memory, and for every thread to have some. */
    int64_t panels = qni_min(MOST_ROWS / QNI_PANEL, SCRATCH / threads / bytes);
    panels = qni_max(1, qni_min(panels, n / QNI_PANEL / (4 * threads)));
    p->per_block = panels * QNI_PANEL;
    const int64_t slots = qni_min(threads, qni_ceil_div(n, p->per_block));
    return (int32_t)qni_max(1, qni_min(slots, SCRATCH / (bytes * panels)));
}

static void free_slots(const qn_ctx *ctx, const struct pass *p, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (p->slots[i].rows == NULL)
            continue;
        p->slots[i].rows->n = rows_of(p, 0); /* as it was made */
        qn_weight_destroy(p->slots[i].rows);
    }
    qni_free(&ctx->allocator, p->slots, (size_t)n * sizeof *p->slots);
}

qn_status qni_pack_source(const qn_ctx *ctx, const struct qni_packing *packing,
                          struct qni_weight_source *source, const qn_pack_options *options,
                          struct qn_packed **packed, qn_error *err)
{
    struct pass p = {.source = source};
    const int32_t n_slots = choose_blocks(ctx, &p);
    qn_status status = QN_OK;
    p.slots = qni_alloc_zero(&ctx->allocator, (size_t)n_slots * sizeof *p.slots);
    if (p.slots == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (int32_t i = 0; i < n_slots && status == QN_OK; i++) {
        p.slots[i].held = p.slots[i].failed = -1;
        status = source->make(source, ctx, rows_of(&p, 0), &p.slots[i].rows, err);
    }
    if (status == QN_OK)
        status = run_passes(ctx, &p, n_slots, packing, options, packed, err);
    source->counts[0] = source->counts[1] = 0;
    for (int32_t i = 0; i < n_slots; i++) {
        source->counts[0] += p.slots[i].counts[0];
        source->counts[1] += p.slots[i].counts[1];
    }
    free_slots(ctx, &p, n_slots);
    return status;
}
