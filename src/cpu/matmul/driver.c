/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of driver.h. A worker is one task of the context's threads, with private scratch of its
 * own; workers take items from shared counters until none is left. Which worker computes an item
 * changes nothing about it. */
#include "driver.h"

#include <stdatomic.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../rows/rows.h"
#include "overflow.h"
#include "prepared.h"
#include "product.h"

enum { LISTS = 16 };

/* Everything workers read. */
struct product_run {
    const qn_ctx *ctx;
    const struct qni_op *op;
    const struct qni_cpu_choice *choice;
    const struct qni_product *product;
    const struct qni_rows *rows;
    const struct qni_product_cut *cut;    /* of the choice */
    const struct qni_row_layout *layouts; /* of the kernels of the choice: the cut's, or own */
    struct qni_row_layout own[QNI_MAX_CHOICES];
    const struct qni_expand *expand;
    struct qni_product_shape shape;
    struct qni_epilogue epilogue;
    int64_t block; /* rows of a unit */
    int64_t n_units;
    int64_t panels_per_item;
    int64_t rows_per_item;
    int64_t items_per_rows, items_per_unit;
    uint8_t *shared, *private;
    size_t thread_bytes;
    /* Of the wave: units [first_unit, end_unit), their rows in shared memory. */
    int64_t first_unit, end_unit, first_row;
    int64_t rows_per_piece, pieces_per_unit;
    int64_t n_items;
    atomic_llong next;
    int64_t n_lists; /* list i has the units of the wave whose number is i, modulo n_lists */
    atomic_llong next_of[LISTS];
};

/* Rows of a part that are worked on together. before: rows of the product's units before it. */
struct unit {
    const struct qni_part *part;
    int64_t row, rows, before;
    const struct qni_matmul_kernel *kernel, *stand_in; /* of the choice */
    struct qni_row_layout layout;
    struct qni_expansion expansion;
};

/* Where a search for a unit left off: units are asked for in mostly rising order. */
struct cursor {
    int64_t part, first_unit, before;
};

static int64_t units_of(const struct product_run *r, const struct qni_part *part)
{
    return part->n_panels <= 0 ? 0 : qni_ceil_div(part->n_rows, r->block);
}

static struct unit find_unit(const struct product_run *r, int64_t index, struct cursor *c)
{
    if (index < c->first_unit)
        *c = (struct cursor){0, 0, 0};
    const struct qni_part *part = &r->product->parts[c->part];
    while (index >= c->first_unit + units_of(r, part)) {
        c->before += units_of(r, part) > 0 ? part->n_rows : 0;
        c->first_unit += units_of(r, part);
        c->part++;
        part++;
    }
    struct unit u;
    const int64_t done = (index - c->first_unit) * r->block;
    u.part = part;
    u.row = part->row + done;
    u.rows = qni_min(r->block, part->n_rows - done);
    u.before = c->before + done;
    const int32_t i = qni_choice_index(r->choice, part->n_rows);
    u.kernel = r->choice->kernel[i];
    u.stand_in = r->choice->stand_in[i];
    u.layout = r->layouts[i];
    u.expansion = qni_expansion_of(r->op, part->w, u.kernel);
    return u;
}

/* ---- what a kernel is told ------------------------------------------------------------------- */

static void describe_weights(const struct product_run *r, const struct unit *u,
                             struct qni_matmul_tile *t, int8_t table8[16])
{
    const qn_packed *w = u->part->w;
    const struct qni_cut *cut = &u->layout.cut;
    const bool per_row = u->kernel->reads != QNI_READS_Q8B;
    const bool own_sums = per_row && w->head->section[QNI_SECTION_GROUP_SUMS].bytes != 0;
    t->codes = qni_section(w, QNI_SECTION_CODES);
    t->codes_stride = (size_t)w->head->units * qni_layout_unit_bytes(u->kernel->layout);
    t->scale = qni_section(w, QNI_SECTION_SCALE);
    t->offset = qni_section(w, QNI_SECTION_OFFSET);
    t->zero = qni_section(w, QNI_SECTION_ZERO);
    t->zero_is_i8 = w->head->zero_dtype == QN_I8;
    t->sums = qni_section(w, own_sums ? QNI_SECTION_GROUP_SUMS : QNI_SECTION_SUMS);
    t->counts = qni_section(w, QNI_SECTION_COUNTS);
    t->table = qni_section(w, QNI_SECTION_TABLE);
    t->is_e4m3 = w->head->format.code == QN_CODE_E4M3;
    if (u->kernel->layout == QNI_LAYOUT_T4N16) {
        const int32_t times = qni_table_integers(w->head->format.code, t->table, 16, table8);
        t->table8 = times != 0 ? table8 : NULL;
        t->table8_doubled = times == 2;
    }
    t->units = cut->units;
    t->n_groups = cut->n_groups;
    t->group_units = cut->group_units;
    t->segment_units = cut->segment_units;
    t->n_segments = cut->n_segments;
    t->scale_is_f16 = w->head->scale_dtype == QN_F16;
    t->raw_i32 = r->epilogue.raw;
    if (t->raw_i32) /* the epilogue takes zero points away from the sums */
        t->offset = t->zero = NULL;
}

/* Rows that need no preparing: f32 x, read where it lies. */
static const float *rows_in_place(const struct product_run *r, const struct unit *u)
{
    const struct qni_row_source *s = &r->product->source;
    const bool is_short = u->layout.is_short && u->rows > QNI_FEW_ROWS;
    const bool in_place = u->kernel->reads == QNI_READS_F32 && s->dtype == QN_F32 &&
                          s->fill == NULL && s->index == NULL &&
                          (u->layout.is_identity || is_short) &&
                          u->part->w->head->section[QNI_SECTION_PRESCALE].bytes == 0;
    return in_place ? (const float *)s->x + u->row * s->ldx : NULL;
}

/* Rows that were prepared for several products, and follow each other there. */
static bool are_ready(const struct product_run *r)
{
    const struct qni_row_source *s = &r->product->source;
    return r->op->prepared != NULL && s->index == NULL && s->fill == NULL;
}

static void describe_rows(const struct product_run *r, const struct unit *u,
                          const struct qni_prepared *prepared, struct qni_matmul_tile *t)
{
    const struct qni_row_layout *l = &u->layout;
    const float *in_place = rows_in_place(r, u);
    t->a = in_place != NULL ? (const void *)in_place : prepared->a;
    t->lda = in_place != NULL ? (size_t)r->product->source.ldx * sizeof(float) : l->lda;
    t->m = u->rows;
    t->positions = l->is_short ? l->cut.k : l->cut.units * QNI_UNIT >> l->halves;
    t->planes = l->planes;
    t->halves = l->halves;
    t->a_sum = prepared->facts.sum;
    t->a_scale = prepared->facts.scale;
    t->a_offset = r->op->quant.symmetric ? NULL : prepared->facts.offset;
    t->a_total = prepared->facts.total;
    t->ld_segment = l->ld_segment;
    t->x_zero = qni_op_x_zero(r->op);
}

/* Move a description from the first panel to others of the part, n of them. */
static void move_to_panels(const struct product_run *r, const struct unit *u,
                           const struct qni_thread_scratch *scratch, struct qni_matmul_tile *t,
                           int64_t panel, int64_t n)
{
    t->n_panels = n;
    panel += u->part->panel;
    if (qni_is_compact(u->part->w->head)) {
        qni_expand_panels(r->expand, &u->expansion, panel, scratch->weights, t);
        return;
    }
    const int64_t rows = panel * t->n_groups * QNI_PANEL;
    const size_t scale = t->scale_is_f16 ? 2 : 4;
    if (t->units == 0) /* k = 0: no section, and no offsets from NULL */
        return;
    t->codes += (size_t)panel * t->codes_stride;
    t->scale = (const uint8_t *)t->scale + (size_t)rows * scale;
    if (t->offset != NULL)
        t->offset = (const uint8_t *)t->offset + (size_t)rows * scale;
    if (t->zero != NULL)
        t->zero = (const uint8_t *)t->zero + rows * (t->zero_is_i8 ? 1 : 4);
    if (t->sums != NULL)
        t->sums += panel * t->n_segments * QNI_PANEL;
}

/* Panels of a call of the kernel. Floats of vectors copy x once for all of them; a few more sums
 * than the second cache holds beside x cost less than another copy. */
static int64_t tile_panels(const struct qni_matmul_kernel *kernel, int64_t rows)
{
    enum { FLOATS = 32 };
    const int64_t panels = qni_kernel_panels(kernel, rows);
    return kernel->reads == QNI_READS_F32 ? qni_min(panels, FLOATS) : panels;
}

/* Panels of a call of the kernel; fewer where compact weights are widened in memory for it. */
static int64_t step_of(const struct unit *u)
{
    return qni_min(tile_panels(u->kernel, u->rows), u->expansion.panels);
}

/* ---- multiplying ----------------------------------------------------------------------------- */

static void multiply(const struct product_run *r, struct qni_matmul_tile *t, const struct unit *u)
{
    const bool may_refuse = u->stand_in != NULL;
    if (t->units > 0) {
        if (!may_refuse || *t->kept != QNI_TOO_MANY_OUTLIERS)
            u->kernel->fn(t);
        const bool refused = may_refuse && *t->kept == QNI_TOO_MANY_OUTLIERS;
        if (refused)
            u->stand_in->fn(t);
        if (may_refuse)
            qni_op_note(r->op, refused ? QNI_RAN_STAND_IN : QNI_RAN_KERNEL);
        return;
    }
    for (int64_t i = 0; i < t->m; i++) /* k = 0: the empty sum */
        memset(t->c + (size_t)i * t->ldc, 0, (size_t)t->n_panels * QNI_PANEL * sizeof *t->c);
}

/* Sums that overflowed on the way are made again from x. */
static void recompute_overflowed(const struct product_run *r, const struct unit *u,
                                 const struct qni_matmul_tile *t, int64_t panel,
                                 struct qni_thread_scratch *scratch)
{
    const int64_t n = t->n_panels * QNI_PANEL;
    if (u->kernel->numerics != QNI_NUMERICS_BOUND)
        return;
    /* k = 0: nobody has looked, and all is zero */
    const bool looks = (u->kernel->traits & QNI_LOOKS) != 0;
    if (QNI_LIKELY(looks ? *t->is_finite : r->rows->is_finite(t->c, t->m, n, (int64_t)t->ldc)))
        return;
    const struct qni_row_scratch rows =
        qni_row_scratch_in(r->op, &r->shape, scratch->made, scratch->after_tile);
    const struct qni_overflow_tile tile = {
        .part = u->part,
        .row = u->row,
        .rows = u->rows,
        .panel = u->part->panel + panel,
        .n_panels = t->n_panels,
        .c = t->c,
        .ldc = t->ldc,
        .rounds = (u->kernel->traits & QNI_ROUNDS_WEIGHTS) != 0,
    };
    qni_overflow_recompute(r->op, r->rows, &r->product->source, &tile, &rows);
    scratch->kept = 0; /* the kernel's memory holds floats of rows now */
}

/* Does the kernel multiply by the scales of x itself? Each result is written once, then. */
static bool kernel_scales(const struct product_run *r, const struct unit *u,
                          const struct qni_matmul_tile *t)
{
    const bool has_offsets = t->offset != NULL || u->expansion.makes_offsets;
    return (u->kernel->traits & QNI_TAKES_SCALE) && r->epilogue.is_store && t->n_segments == 1 &&
           !has_offsets;
}

/* What a tile points to beside the weights: the codebook as integers, how compact ones lie. */
struct weights_beside {
    int8_t table8[16];
    struct qni_compact_panels compact;
};

/* All that the tiles of a unit share. What the kernel keeps between tiles is of this unit alone. */
static void begin_tile(const struct product_run *r, const struct unit *u,
                       const struct qni_prepared *prepared, struct qni_thread_scratch *scratch,
                       struct weights_beside *beside, struct qni_matmul_tile *all)
{
    memset(all, 0, sizeof *all);
    describe_weights(r, u, all, beside->table8);
    if (u->expansion.is_read) {
        beside->compact = qni_compact_panels_of(&u->expansion, all->table8);
        all->compact = &beside->compact;
    }
    describe_rows(r, u, prepared, all);
    all->scratch = scratch->kernel;
    all->kept = &scratch->kept;
    if (scratch->unit != u->before)
        scratch->kept = 0;
    scratch->unit = u->before;
}

/* Outputs of n panels that the part does not have. */
static int32_t padding_of(const struct unit *u, int64_t output, int64_t n)
{
    return (int32_t)qni_max(0, output + n * QNI_PANEL - u->part->n);
}

/* Panels [panel, end) of a unit whose rows are ready: tile by tile to y. */
static void multiply_panels(const struct product_run *r, const struct unit *u,
                            const struct qni_prepared *prepared, struct qni_thread_scratch *scratch,
                            int64_t panel, int64_t end)
{
    /* More rows of y would lie in too few sets of the first cache while sums are added to them. */
    enum { DIRECT_ROWS = 16, SHORT_UNITS = 8 };
    struct weights_beside beside;
    struct qni_matmul_tile all;
    size_t ldy = 0;
    begin_tile(r, u, prepared, scratch, &beside, &all);
    float *direct = NULL;
    const bool is_scaled = kernel_scales(r, u, &all);
    if (is_scaled)
        all.row_scale = prepared->row_scale;
    const bool splits =
        (u->kernel->traits & QNI_SPLITS) != 0 && r->epilogue.is_store && qni_splits(&all);
    /* Floats of one span to which nothing else happens: where all panels go to y in one call. */
    const bool is_short = (u->kernel->traits & QNI_TAKES_SHORT) != 0 && all.units <= SHORT_UNITS &&
                          u->part->n % QNI_PANEL == 0 && r->epilogue.is_store;
    const bool is_once = is_scaled || splits || is_short || u->kernel->reads == QNI_READS_BF16;
    if (u->rows <= DIRECT_ROWS || is_once)
        direct = qni_epilogue_direct(&r->epilogue, u->part, u->row, u->rows, &ldy);
    const bool scaled =
        u->kernel->reads == QNI_READS_Q8 && r->op->strategy != QN_STRATEGY_INT8_STATIC;
    /* One call for all panels that go to y: a kernel that writes each result once does more at a
     * time so. */
    const bool looks = (u->kernel->traits & QNI_LOOKS) != 0;
    const bool is_whole = (is_scaled || looks || splits) && direct != NULL &&
                          u->expansion.panels == INT64_MAX;
    const int64_t row_bytes = u->part->n * (int64_t)sizeof *all.c;
    const int64_t cache = (int64_t)r->ctx->cache_bytes[1];
    const bool is_far = u->rows * row_bytes > cache;
    all.c_is_far = is_whole && (uintptr_t)direct % 64 == 0 && ldy % QNI_PANEL == 0 &&
                   (is_scaled ? u->rows : u->part->n_rows) * row_bytes > cache;
    if (splits && !all.c_is_far)
        direct = NULL;
    const int64_t step = is_whole && direct != NULL ? end - panel : step_of(u);
    while (panel < end) {
        struct qni_matmul_tile t = all;
        bool is_finite = true;
        const int64_t output = panel * QNI_PANEL;
        const int64_t full = (u->part->n - output) / QNI_PANEL; /* panels without padding */
        int64_t n = qni_min(step, end - panel);
        const bool to_y = direct != NULL && full > 0;
        if (to_y)
            n = qni_min(n, full);
        move_to_panels(r, u, scratch, &t, panel, n);
        t.padding = padding_of(u, output, n);
        t.is_finite = &is_finite;
        t.c_is_far = all.c_is_far && to_y;
        t.c = to_y ? direct + output : scratch->tile;
        t.ldc = to_y ? ldy : (size_t)(n * QNI_PANEL + QNI_TILE_PAD);
        multiply(r, &t, u);
        recompute_overflowed(r, u, &t, panel, scratch);
        const struct qni_epilogue_tile tile = {
            .part = u->part,
            .row = u->row,
            .rows = u->rows,
            .output = output,
            .n = qni_min(n * QNI_PANEL, u->part->n - output),
            .c = t.c,
            .ldc = t.ldc,
            .x_scale = scaled ? prepared->row_scale : NULL,
            .is_scaled = is_scaled,
            .is_far = is_far,
            .x_sum = prepared->facts.sum,
            .ld_sum = u->layout.ld_segment,
            .n_sums = u->layout.cut.n_segments,
            .k = u->layout.cut.k,
        };
        qni_epilogue_run(&r->epilogue, &tile, scratch->epilogue);
        panel += n;
    }
}

/* Panels [panel, end) of weights whose outputs gate each other: the gates, and the outputs half of
 * all panels further on, are two tiles of which the epilogue makes one. */
static void multiply_halves(const struct product_run *r, const struct unit *u,
                            const struct qni_prepared *prepared, struct qni_thread_scratch *scratch,
                            int64_t panel, int64_t end)
{
    struct weights_beside beside;
    struct qni_matmul_tile all;
    begin_tile(r, u, prepared, scratch, &beside, &all);
    const int64_t step = qni_max(step_of(u) / 2, 1);
    for (; panel < end; panel += step) {
        const int64_t n = qni_min(step, end - panel), output = panel * QNI_PANEL;
        const size_t ldc = (size_t)(n * QNI_PANEL + QNI_TILE_PAD);
        float *const c[2] = {scratch->tile, scratch->tile + (size_t)u->rows * ldc};
        for (int32_t half = 0; half < 2; half++) {
            struct qni_matmul_tile t = all;
            bool is_finite = true;
            const int64_t at = panel + half * u->part->n_panels;
            move_to_panels(r, u, scratch, &t, at, n);
            t.padding = padding_of(u, output, n);
            t.is_finite = &is_finite;
            t.c = c[half];
            t.ldc = ldc;
            multiply(r, &t, u);
            recompute_overflowed(r, u, &t, at, scratch);
        }
        const bool scaled =
            u->kernel->reads == QNI_READS_Q8 && r->op->strategy != QN_STRATEGY_INT8_STATIC;
        const struct qni_epilogue_tile tile = {
            .part = u->part,
            .row = u->row,
            .rows = u->rows,
            .output = output,
            .n = qni_min(n * QNI_PANEL, u->part->n - output),
            .c = c[0],
            .ldc = ldc,
            .other = c[1],
            .x_scale = scaled ? prepared->row_scale : NULL,
            .x_sum = prepared->facts.sum,
            .ld_sum = u->layout.ld_segment,
            .n_sums = u->layout.cut.n_segments,
            .k = u->layout.cut.k,
        };
        qni_epilogue_run(&r->epilogue, &tile, scratch->epilogue);
    }
}

/* Rows per call: fewer than a unit has for kernels that split outliers. */
static int64_t rows_per_call(const struct unit *u)
{
    const int64_t most = qni_clamped_rows(u->layout.lda);
    if (!(u->kernel->traits & QNI_SPLITS_ROW_OUTLIERS) || u->rows <= most ||
        u->layout.cut.n_segments > 1)
        return u->rows;
    return qni_even_rows(u->rows, most, QNI_CLAMPED_BLOCK);
}

/* Rows [row, row + n) of a unit, if there are such. */
QNI_NOINLINE static void multiply_strip(const struct product_run *r, const struct unit *u,
                                        const struct qni_prepared *prepared, int64_t row, int64_t n,
                                        struct qni_thread_scratch *scratch, int64_t panel)
{
    struct unit strip = *u;
    struct qni_prepared rows = *prepared;
    strip.row += row;
    strip.before += row;
    strip.rows = qni_min(n, u->rows - row);
    if (row > 0) { /* only of Q8 */
        rows.a += (size_t)row * u->layout.lda;
        rows.row_scale += row;
        rows.facts.sum += (size_t)row * u->layout.ld_segment;
    }
    const int64_t end = qni_min(panel + r->panels_per_item, u->part->n_panels);
    if (strip.rows > 0 && r->op->more.gate == QN_GATE_HALVES)
        multiply_halves(r, &strip, &rows, scratch, panel, end);
    else if (strip.rows > 0)
        multiply_panels(r, &strip, &rows, scratch, panel, end);
}

/* Items for each thread. Each is a step of a shared counter and a call of the kernel: a single row
 * of a small product loses more by those than by a thread that comes late. Two items rather than
 * eight take 0.82 to 0.89 of the time of int4:g32 weights of 576 x 576, 576 x 1536, 1536 x 576 and
 * 2048 x 2048 (int8-block, m = 1, AVX2, two threads, in turns), but 1.05 of that of 4096 x 4096. */
static int64_t items_of_thread(const struct product_run *r)
{
    enum { FEW = 2, MANY = 8, SMALL = 1 << 22 };
    const int64_t weights = r->shape.n_panels * QNI_PANEL * r->op->w[0]->head->k;
    return r->shape.m == 1 && weights <= SMALL ? FEW : MANY;
}

/* Panels of an item, so that there are several items for each thread, but no crumbs: kernels like
 * pairs and eights of panels. */
static void cut_items(struct product_run *r, int64_t rows)
{
    const int64_t wanted = items_of_thread(r) * (int64_t)r->choice->n_threads;
    const int64_t strips = qni_ceil_div(r->block, rows);
    int64_t panels = r->shape.n_panels * r->n_units * strips / wanted;
    if (r->choice->main->reads == QNI_READS_F32) /* long items: no more than a call of the kernel */
        panels = qni_min(panels, tile_panels(r->choice->main, r->block));
    panels = panels >= 8 ? panels / 8 * 8 : panels >= 2 ? panels / 2 * 2 : 1;
    r->rows_per_item = rows;
    r->panels_per_item = qni_min(panels, r->shape.n_panels);
    r->items_per_rows = qni_ceil_div(r->shape.n_panels, r->panels_per_item);
    r->items_per_unit = r->items_per_rows * strips;
}

/* ---- private: every item is on its own ------------------------------------------------------- */

static void private_scratch(struct product_run *r, int32_t worker, struct qni_thread_scratch *s,
                            struct qni_row_scratch *rows)
{
    *s = qni_thread_scratch_in(r->cut, r->private + (size_t)worker * r->thread_bytes);
    *rows = qni_row_scratch_in(r->op, &r->shape, s->made, s->floats);
}

static void work_privately(void *arg, int32_t worker)
{
    struct product_run *r = arg;
    struct qni_thread_scratch scratch;
    struct qni_row_scratch row_scratch;
    struct cursor cursor = {0, 0, 0};
    struct unit u;
    struct qni_prepared prepared;
    int64_t ready = -1, item;
    private_scratch(r, worker, &scratch, &row_scratch);
    while ((item = (int64_t)atomic_fetch_add(&r->next, 1)) < r->n_items) {
        const int64_t index = item / r->items_per_unit;
        const int64_t panel = item % r->items_per_unit * r->panels_per_item;
        if (index != ready) {
            u = find_unit(r, index, &cursor);
            prepared = qni_prepared_in(&u.layout, scratch.prepared, u.rows);
            const struct qni_row_range range = {u.row, u.rows, 0};
            if (are_ready(r))
                prepared = qni_prepared_range(r->op, &u.layout, u.row, u.rows);
            else if (rows_in_place(r, &u) == NULL)
                qni_prepare_rows(r->op, r->rows, &r->product->source, u.part, &u.layout, &range,
                                 &prepared, &row_scratch);
            ready = index;
        }
        const int64_t n = rows_per_call(&u);
        for (int64_t row = 0; row < u.rows; row += n)
            multiply_strip(r, &u, &prepared, row, n, &scratch, panel);
    }
}

/* ---- shared: prepare together, join, multiply together --------------------------------------- */

static struct qni_prepared shared_rows(const struct product_run *r, const struct unit *u)
{
    if (are_ready(r))
        return qni_prepared_range(r->op, &u->layout, u->row, u->rows);
    return qni_prepared_in(
        &u->layout, r->shared + (size_t)(u->before - r->first_row) * r->cut->shared_row_bytes,
        u->rows);
}

static void prepare_pieces(void *arg, int32_t worker)
{
    struct product_run *r = arg;
    struct qni_thread_scratch scratch;
    struct qni_row_scratch row_scratch;
    struct cursor cursor = {0, 0, 0};
    int64_t item;
    private_scratch(r, worker, &scratch, &row_scratch);
    while ((item = (int64_t)atomic_fetch_add(&r->next, 1)) < r->n_items) {
        const struct unit u = find_unit(r, r->first_unit + item / r->pieces_per_unit, &cursor);
        const int64_t first = item % r->pieces_per_unit * r->rows_per_piece;
        const struct qni_row_range range = {u.row + first,
                                            qni_min(r->rows_per_piece, u.rows - first), first};
        if (range.n <= 0)
            continue;
        const struct qni_prepared prepared = shared_rows(r, &u);
        qni_prepare_rows(r->op, r->rows, &r->product->source, u.part, &u.layout, &range, &prepared,
                         &row_scratch);
    }
}

/* A worker stays with a unit while there is work in it: its rows, most of what fits in the second
 * cache, are there then. Codes, which stream, are read by each. */
static void multiply_items(void *arg, int32_t worker)
{
    struct product_run *r = arg;
    struct qni_thread_scratch scratch;
    struct qni_row_scratch row_scratch;
    struct cursor cursor = {0, 0, 0};
    const int64_t units = r->end_unit - r->first_unit;
    private_scratch(r, worker, &scratch, &row_scratch);
    for (int64_t tried = 0; tried < r->n_lists; tried++) {
        const int64_t list = (worker + tried) % r->n_lists;
        const int64_t n_items = qni_ceil_div(units - list, r->n_lists) * r->items_per_unit;
        int64_t item;
        while ((item = (int64_t)atomic_fetch_add(&r->next_of[list], 1)) < n_items) {
            const int64_t unit = list + item / r->items_per_unit * r->n_lists;
            const struct unit u = find_unit(r, r->first_unit + unit, &cursor);
            const int64_t in_unit = item % r->items_per_unit;
            const struct qni_prepared prepared = shared_rows(r, &u);
            multiply_strip(r, &u, &prepared, in_unit / r->items_per_rows * r->rows_per_item,
                           r->rows_per_item, &scratch,
                           in_unit % r->items_per_rows * r->panels_per_item);
        }
    }
}

static void fork(struct product_run *r, int64_t n_items, qn_task_fn work)
{
    r->n_items = n_items;
    atomic_store(&r->next, 0);
    qni_parallel(&r->ctx->threads, (int32_t)qni_min(r->choice->n_threads, n_items), work, r);
}

static void run_shared(struct product_run *r)
{
    const int64_t capacity = (int64_t)(r->choice->shared_bytes / r->cut->shared_row_bytes);
    const int64_t row_elements = r->op->w[0]->head->units * QNI_UNIT;
    struct cursor cursor = {0, 0, 0};
    r->rows_per_piece = qni_max(1, qni_min(32768 / qni_max(row_elements, 1), 16));
    r->pieces_per_unit = qni_ceil_div(r->block, r->rows_per_piece);
    for (r->first_unit = 0; r->first_unit < r->n_units; r->first_unit = r->end_unit) {
        int64_t end_row = 0;
        for (r->end_unit = r->first_unit; r->end_unit < r->n_units; r->end_unit++) {
            const struct unit u = find_unit(r, r->end_unit, &cursor);
            if (r->end_unit == r->first_unit)
                r->first_row = u.before;
            end_row = u.before + u.rows;
            if (end_row - r->first_row > capacity && !are_ready(r))
                break;
        }
        if (!are_ready(r))
            fork(r, (r->end_unit - r->first_unit) * r->pieces_per_unit, prepare_pieces);
        const struct unit first = find_unit(r, r->first_unit, &cursor);
        if (first.rows == r->block)
            cut_items(r, rows_per_call(&first));
        r->n_lists = qni_min(qni_min(r->end_unit - r->first_unit, r->choice->n_threads), LISTS);
        for (int64_t i = 0; i < r->n_lists; i++)
            atomic_store(&r->next_of[i], 0);
        fork(r, (r->end_unit - r->first_unit) * r->items_per_unit, multiply_items);
    }
}

/* ---- which order ----------------------------------------------------------------------------- */

static bool all_in_place(const struct product_run *r)
{
    struct cursor cursor = {0, 0, 0};
    for (int64_t i = 0; i < r->n_units; i++) {
        const struct unit u = find_unit(r, i, &cursor);
        if (rows_in_place(r, &u) == NULL)
            return false;
    }
    return true;
}

/* Rows, parts and panels as they are now. */
static void measure(struct product_run *r)
{
    const struct qni_product *p = r->product;
    r->shape.n_parts = p->n_parts;
    r->shape.is_made = p->source.fill != NULL;
    r->shape.source_bytes = p->source.scratch_bytes;
    for (int64_t i = 0; i < p->n_parts; i++) {
        const struct qni_part *part = &p->parts[i];
        r->shape.m += part->n_panels > 0 ? part->n_rows : 0;
        r->shape.part_m = qni_max(r->shape.part_m, part->n_rows);
        r->shape.n_panels = qni_max(r->shape.n_panels, part->n_panels);
    }
    const struct qni_product_shape *const planned = &r->cut->shape;
    const bool is_planned = r->shape.part_m == planned->part_m &&
                            r->shape.n_parts == planned->n_parts &&
                            r->shape.n_panels == planned->n_panels;
    r->block = r->choice->block_m;
    if (!is_planned) /* fewer rows */
        r->block = qni_min(qni_unit_rows(r->ctx, &r->shape, r->choice), r->block);
    for (int64_t i = 0; i < p->n_parts; i++)
        r->n_units += units_of(r, &p->parts[i]);
}

void qni_product_run(const qn_ctx *ctx, const struct qni_op *op,
                     const struct qni_cpu_choice *choice, const struct qni_product *product,
                     void *scratch)
{
    enum { CHEAP = 16384 }; /* elements that are prepared in the time of a fork and a join */
    struct product_run r;
    memset(&r, 0, sizeof r);
    r.ctx = ctx;
    r.op = op;
    r.choice = choice;
    r.product = product;
    r.rows = qni_rows_for(ctx->isa);
    r.expand = qni_expand_for(ctx->isa);
    r.epilogue = qni_epilogue_make(op, r.rows, &product->sink);
    r.shared = scratch;
    r.private = (uint8_t *)scratch + qni_round_up(choice->shared_bytes, 64);
    r.thread_bytes = choice->thread_bytes;
    r.cut = &choice->cut.product;
    r.layouts = r.cut->layout;
    if (product->has_own_weights) {
        for (int32_t i = 0; i < choice->n_choices; i++)
            r.own[i] = qni_row_layout_of(op, product->parts->w->head, choice->kernel[i]);
        r.layouts = r.own;
    }
    measure(&r);
    if (r.n_units == 0)
        return;

    const int64_t elements = r.shape.m * op->w[0]->head->units * QNI_UNIT;
    /* Floats of vectors take so long that a unit more or less would show in a thread. */
    const bool long_units = choice->main->reads == QNI_READS_F32 || qni_cuts_bytes(choice->main);
    const int64_t even = long_units ? 8 : 3;
    /* Tiles of floats gain more from calls of all panels than from another's help at the end. */
    const bool comes_out = (choice->main->traits & QNI_LOOKS) != 0 && product->n_parts == 1 &&
                           r.n_units % choice->n_threads == 0;
    const bool alone = r.n_units >= (comes_out ? 2 : even) * choice->n_threads;
    if (choice->n_threads == 1 || alone) {
        r.panels_per_item = r.shape.n_panels;
        r.items_per_unit = 1;
        fork(&r, r.n_units, work_privately);
        return;
    }
    cut_items(&r, r.block);
    if (elements <= CHEAP || all_in_place(&r))
        fork(&r, r.n_units * r.items_per_unit, work_privately);
    else
        run_shared(&r);
}

/* ---- a plain matmul -------------------------------------------------------------------------- */

struct qni_row_source qni_source_of_matrix(const qn_tensor *x)
{
    const struct qni_row_source s = {
        .dtype = x->dtype, .x = x->data, .ldx = x->shape[0] > 1 ? x->stride[0] : x->shape[1]};
    return s;
}

void qni_matmul_run(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                    void *scratch)
{
    const int64_t n_halves = op->more.gate == QN_GATE_HALVES ? 2 : 1;
    const struct qni_part part = {
        .w = op->w[0],
        .n_panels = op->w[0]->head->panels / n_halves,
        .n = op->n / n_halves,
        .n_rows = op->m,
    };
    const struct qni_product product = {
        .source = qni_source_of_matrix(&op->x),
        .sink = qni_sink_of_matrix(&op->y, &op->epilogue.residual),
        .parts = &part,
        .n_parts = 1,
    };
    qni_product_run(ctx, op, choice, &product, scratch);
}
