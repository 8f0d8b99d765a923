/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing rows: prepare.h. A row takes the shortest way there is: straight from x where x already
 * is what the next step reads, through `wide` where it must be converted or multiplied by the
 * prescale, through `packed` where its order changes. */
#include "prepared.h"

#include <string.h>

static bool is_static(const struct qni_op *op)
{
    return op->strategy == QN_STRATEGY_INT8_STATIC;
}

/* Are columns in the order of groups? */
static bool in_order(const struct qni_packed_head *head)
{
    const bool in_taps = head->format.blocks == QN_BLOCKS_CHANNELS && head->kh * head->kw > 1;
    return !in_taps && head->section[QNI_SECTION_PERM].bytes == 0;
}

struct qni_row_layout qni_row_layout_of(const struct qni_op *op, const struct qni_packed_head *head,
                                        const struct qni_matmul_kernel *kernel)
{
    enum { HALF = QNI_UNIT / 2, PAGE = 4096 };
    const int32_t reads = kernel->reads;
    const bool makes = (kernel->traits & QNI_MAKES_WEIGHTS) != 0;
    const bool prescaled = head->section[QNI_SECTION_PRESCALE].bytes != 0;
    const bool shifted = qni_packed_has_offsets(head) && head->k > 0 && head->n > 0;
    struct qni_row_layout l;
    memset(&l, 0, sizeof l);
    l.reads = reads;
    l.cut = qni_cut_of(head, reads);
    l.halves = l.cut.group_len <= HALF;
    const bool shares = (makes || (kernel->traits & QNI_SHARES_UNITS) != 0) && l.halves;
    l.units = shares ? qni_ceil_div(l.cut.units, 2) : l.cut.units;
    l.is_identity = l.units * QNI_UNIT == l.cut.k && in_order(head);
    if (shares ? l.cut.group_len != HALF : head->n_runs > 1)
        l.is_identity = false;
    l.is_short = (kernel->traits & QNI_TAKES_SHORT) != 0 && in_order(head) && head->n_runs <= 1 &&
                 (l.cut.n_groups == 1 || l.cut.group_len % QNI_UNIT == 0) && l.cut.k % 8 == 0;
    l.planes = qni_op_planes(op, prescaled);
    const size_t element = reads == QNI_READS_F32 ? 4 : reads == QNI_READS_BF16 ? 2 : 1;
    l.lda = qni_round_up((size_t)l.units * QNI_UNIT * element, 64);
    if (reads == QNI_READS_BF16)
        l.lda *= (size_t)l.planes;
    else if (l.lda / 64 % 2 == 0)
        l.lda += 64; /* an odd number of lines: rows begin in different sets of the first cache */
    if ((kernel->traits & QNI_ROUNDS_WEIGHTS) != 0 && l.lda % PAGE == 0)
        l.lda += PAGE / 4; /* spans of blocks of rows lie in different sets of the second cache */
    if (reads == QNI_READS_Q8 || reads == QNI_READS_Q8B) {
        l.ld_segment = (size_t)l.cut.n_segments;
        l.n_facts = reads == QNI_READS_Q8 ? 1 : 4;
    } else if (reads == QNI_READS_BF16 && shifted && !makes) {
        l.ld_segment = (size_t)l.cut.n_groups;
        l.n_facts = 1;
    }
    return l;
}

static size_t facts_bytes(const struct qni_row_layout *l, int64_t rows)
{
    return qni_round_up((size_t)rows * l->ld_segment * 4, 64);
}

size_t qni_prepared_bytes(const struct qni_row_layout *l, int64_t rows)
{
    return (size_t)rows * l->lda + qni_round_up((size_t)rows * 4, 64) +
           (size_t)l->n_facts * facts_bytes(l, rows);
}

struct qni_prepared qni_prepared_in(const struct qni_row_layout *l, void *memory, int64_t rows)
{
    struct qni_prepared p;
    uint8_t *at = memory;
    uint8_t *fact[4] = {NULL, NULL, NULL, NULL};
    p.rows = rows;
    p.a = at;
    at += (size_t)rows * l->lda;
    p.row_scale = (float *)(void *)at;
    at += qni_round_up((size_t)rows * 4, 64);
    for (int32_t i = 0; i < l->n_facts; i++, at += facts_bytes(l, rows))
        fact[i] = at;
    const bool sums = l->reads != QNI_READS_BF16;
    p.facts.sum = (int32_t *)(void *)(sums ? fact[0] : NULL);
    p.facts.scale = (float *)(void *)fact[1];
    p.facts.offset = (float *)(void *)fact[2];
    p.facts.total = (float *)(void *)(sums ? fact[3] : fact[0]);
    return p;
}

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t raw_ld(const struct qni_op *op)
{
    return qni_round_up((size_t)op->w[0]->head->k * qn_dtype_bytes(op->x.dtype), 64);
}

int64_t qni_strip_rows(const struct qni_op *op)
{
    const int64_t fit = 65536 / qni_max((int64_t)raw_ld(op), 64); /* with room in a cache */
    return qni_max(1, qni_min(fit, 64));
}

size_t qni_made_bytes(const struct qni_op *op, const struct qni_product_shape *shape)
{
    return qni_round_up(shape->source_bytes, 64) +
           (shape->is_made ? (size_t)qni_strip_rows(op) * raw_ld(op) : 0);
}

size_t qni_widened_bytes(const struct qni_op *op)
{
    return qni_round_up((size_t)op->w[0]->head->k * sizeof(float), 64);
}

size_t qni_row_floats_bytes(const struct qni_op *op)
{
    return qni_widened_bytes(op) + (size_t)op->w[0]->head->units * QNI_UNIT * sizeof(float);
}

struct qni_row_scratch qni_row_scratch_in(const struct qni_op *op,
                                          const struct qni_product_shape *shape, void *made,
                                          void *floats)
{
    struct qni_row_scratch s;
    s.source = made;
    s.raw = (uint8_t *)made + qni_round_up(shape->source_bytes, 64);
    s.raw_ld = raw_ld(op);
    s.strip = qni_strip_rows(op);
    s.wide = floats;
    s.packed = (float *)(void *)((uint8_t *)floats + qni_widened_bytes(op));
    return s;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Everything that is the same for the rows of a part. */
struct preparer {
    const struct qni_op *op;
    const struct qni_rows *rows;
    const struct qni_row_layout *layout;
    const struct qni_row_scratch *scratch;
    const struct qni_prepared *out;
    const struct qni_run *runs;
    int32_t n_runs;
    const int32_t *perm;
    const float *prescale;
};

/* Floats to packed order; padding is zeroed. */
static void place_floats(const struct preparer *p, float *dst, const float *src)
{
    int64_t end = 0;
    for (int32_t i = 0; i < p->n_runs; i++) {
        const struct qni_run *r = &p->runs[i];
        memset(dst + end, 0, (size_t)(r->dst - end) * sizeof *dst);
        if (p->perm == NULL)
            memcpy(dst + r->dst, src + r->src, (size_t)r->len * sizeof *dst);
        else
            for (int64_t q = 0; q < r->len; q++)
                dst[r->dst + q] = src[p->perm[r->src + q]];
        end = r->dst + r->len;
    }
    memset(dst + end, 0, (size_t)(p->layout->cut.units * QNI_UNIT - end) * sizeof *dst);
}

/* Loops of their own: bytes may be anything, the length of a run as well, unless somebody says that
 * they are not. */
static void flip_bytes(uint8_t *restrict dst, const uint8_t *restrict src, int64_t n, uint8_t flip)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = src[i] ^ flip;
}

static void pick_bytes(uint8_t *restrict dst, const uint8_t *restrict src,
                       const int32_t *restrict perm, int64_t n, uint8_t flip)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = src[perm[i]] ^ flip;
}

static void place_bytes(const struct preparer *p, uint8_t *dst, const uint8_t *src)
{
    const uint8_t flip = p->op->x.dtype == QN_U8 ? 0x80 : 0; /* code - 128 as int8 */
    int64_t end = 0;
    for (int32_t i = 0; i < p->n_runs; i++) {
        const struct qni_run *r = &p->runs[i];
        memset(dst + end, 0, (size_t)(r->dst - end));
        if (p->perm != NULL)
            pick_bytes(dst + r->dst, src, p->perm + r->src, r->len, flip);
        else if (flip != 0)
            flip_bytes(dst + r->dst, src + r->src, r->len, flip);
        else
            memcpy(dst + r->dst, src + r->src, (size_t)r->len);
        end = r->dst + r->len;
    }
    memset(dst + end, 0, (size_t)(p->layout->cut.units * QNI_UNIT - end));
}

/* The row as f32 in packed order: in `into` (never NULL), or where it already lies so. */
static const float *packed_floats(const struct preparer *p, const void *raw, float *into,
                                  bool must_copy)
{
    const qn_dtype dtype = p->op->x.dtype;
    const bool converts = dtype != QN_F32 || p->prescale != NULL;
    const float *columns = raw;
    if (converts) {
        float *const to = p->layout->is_identity ? into : p->scratch->wide;
        p->rows->widen(to, raw, dtype, p->prescale, p->layout->cut.k);
        columns = to;
    }
    if (!p->layout->is_identity)
        place_floats(p, into, columns);
    else if (converts || !must_copy)
        return columns;
    else
        memcpy(into, raw, (size_t)p->layout->cut.k * sizeof *into);
    return into;
}

/* The first halves of units, one after another. */
static void move_halves(float *packed, int64_t units)
{
    enum { HALF = QNI_UNIT / 2 };
    for (int64_t u = 1; u < units; u++)
        memcpy(packed + u * HALF, packed + u * QNI_UNIT, HALF * sizeof *packed);
    if (units % 2 != 0)
        memset(packed + units * HALF, 0, HALF * sizeof *packed);
}

/* Is a row of x the plane that the kernel reads, but for the order of every four? */
static bool is_plane(const struct preparer *p)
{
    const struct qni_row_layout *l = p->layout;
    return p->op->x.dtype == QN_BF16 && p->prescale == NULL && l->planes == 1 && l->is_identity &&
           (l->n_facts == 0 || l->units == l->cut.units);
}

static void prepare_row(const struct preparer *p, const void *raw, int64_t i)
{
    const struct qni_row_layout *l = p->layout;
    uint8_t *const a = p->out->a + (size_t)i * l->lda;
    const size_t fact = (size_t)i * l->ld_segment;
    const struct qni_facts *f = &p->out->facts;
    if (is_static(p->op)) {
        place_bytes(p, a, raw);
        p->out->row_scale[i] = p->op->quant.x_scale;
        p->rows->sum((const int8_t *)a, &l->cut, f->sum + fact);
    } else if (l->reads == QNI_READS_F32 && l->units < l->cut.units && !l->is_identity) {
        packed_floats(p, raw, p->scratch->packed, true);
        move_halves(p->scratch->packed, l->cut.units);
        memcpy(a, p->scratch->packed, (size_t)l->units * QNI_UNIT * sizeof(float));
    } else if (l->reads == QNI_READS_F32) {
        packed_floats(p, raw, (float *)(void *)a, true);
    } else if (l->reads == QNI_READS_BF16 && is_plane(p)) {
        if (l->n_facts > 0)
            p->rows->total_bf16(raw, &l->cut, f->total + fact);
        size_t step;
        const size_t at = qni_bf16_row(l->lda, p->out->rows, i, &step);
        p->rows->order_bf16(p->out->a + at, step, raw, l->units);
    } else if (l->reads == QNI_READS_BF16) {
        packed_floats(p, raw, p->scratch->packed, true);
        if (l->n_facts > 0)
            p->rows->total(p->scratch->packed, &l->cut, f->total + fact);
        if (l->units < l->cut.units && !l->is_identity)
            move_halves(p->scratch->packed, l->cut.units);
        size_t step;
        const size_t at = qni_bf16_row(l->lda, p->out->rows, i, &step);
        p->rows->split(p->out->a + at, step, l->planes, p->scratch->packed, l->units);
    } else {
        const float *x = packed_floats(p, raw, p->scratch->packed, false);
        const struct qni_facts here = {f->sum + fact, NULL, NULL, NULL};
        if (l->reads == QNI_READS_Q8) {
            p->rows->quantize_row(x, &l->cut, (int8_t *)a, here.sum, &p->out->row_scale[i]);
        } else {
            const struct qni_facts all = {here.sum, f->scale + fact, f->offset + fact,
                                          f->total + fact};
            p->rows->quantize_block(x, &l->cut, p->op->quant.symmetric, (int8_t *)a, &all);
        }
    }
}

/* Is a packed row x as it is, with padding behind it? */
static bool is_padded(const struct preparer *p)
{
    return p->n_runs == 1 && p->perm == NULL && p->runs[0].src == 0 && p->runs[0].dst == 0 &&
           p->layout->units == p->layout->cut.units;
}

static void pad_rows(const struct qni_row_layout *l, uint8_t *a, int64_t rows)
{
    const int64_t padding = l->units * QNI_UNIT - l->cut.k;
    if (l->is_identity || padding == 0)
        return;
    for (int64_t i = 0; i < rows; i++, a += l->lda)
        memset((float *)(void *)a + l->cut.k, 0, (size_t)padding * sizeof(float));
}

/* ---- many rows ------------------------------------------------------------------------------- */

void qni_prepare_rows(const struct qni_op *op, const struct qni_rows *rows,
                      const struct qni_row_source *source, const struct qni_part *part,
                      const struct qni_row_layout *layout, const struct qni_row_range *range,
                      const struct qni_prepared *out, const struct qni_row_scratch *scratch)
{
    const struct qni_packed_head *head = part->w->head;
    const struct preparer p = {
        .op = op,
        .rows = rows,
        .layout = layout,
        .scratch = scratch,
        .out = out,
        .runs = qni_section(part->w, QNI_SECTION_RUNS),
        .n_runs = head->n_runs,
        .perm = qni_section(part->w, QNI_SECTION_PERM),
        .prescale = qni_section(part->w, QNI_SECTION_PRESCALE),
    };
    if (op->prepared != NULL) {
        for (int64_t i = 0; i < range->n; i++) {
            int64_t row = range->row + i;
            if (source->index != NULL)
                row = source->index[row * source->index_stride];
            qni_prepared_copy(op, layout, row, out, range->to + i);
        }
        return;
    }
    if (source->fill == NULL) {
        const size_t ldx = (size_t)source->ldx * qn_dtype_bytes(source->dtype);
        for (int64_t i = 0; i < range->n; i++) {
            int64_t row = range->row + i;
            if (source->index != NULL)
                row = source->index[row * source->index_stride];
            prepare_row(&p, (const uint8_t *)source->x + (size_t)row * ldx, range->to + i);
        }
        return;
    }
    const bool as_they_are = layout->reads == QNI_READS_F32 && source->dtype == QN_F32 &&
                             p.prescale == NULL && (layout->is_identity || is_padded(&p));
    if (as_they_are) {
        uint8_t *const a = out->a + (size_t)range->to * layout->lda;
        source->fill(source->arg, part, range->row, range->n, a, layout->lda, scratch->source);
        pad_rows(layout, a, range->n);
        return;
    }
    for (int64_t i = 0; i < range->n; i += scratch->strip) {
        const int64_t n = qni_min(scratch->strip, range->n - i);
        source->fill(source->arg, part, range->row + i, n, scratch->raw, scratch->raw_ld,
                     scratch->source);
        for (int64_t j = 0; j < n; j++)
            prepare_row(&p, scratch->raw + (size_t)j * scratch->raw_ld, range->to + i + j);
    }
}
