/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizing rows once for several products: prepared.h. Which rows two weights can share follows
 * from how they order and cut them, which the head keeps: the cut, and checksums of the permutation
 * and of the prescale. */
#include "prepared.h"

#include <stdatomic.h>
#include <string.h>

#include "../../base/checksum.h"
#include "../../base/compiler.h"
#include "../../base/error.h"
#include "../rows/rows.h"

static const char magic[8] = "quernqx";

struct head {
    char magic[8];
    uint64_t bytes; /* of the head and the rows */
    int64_t m;
    int32_t strategy, symmetric, x_dtype;
    int32_t taps; /* whose channels a group spans together; 1: columns are in order */
    struct qni_cut cut;
    uint64_t perm, prescale; /* checksums; 0: none */
};

enum { HEAD_BYTES = (sizeof(struct head) + 63) / 64 * 64 };

static uint64_t checksum_of(const qn_packed *w, int32_t section)
{
    struct qni_checksum sum;
    const size_t bytes = (size_t)w->head->section[section].bytes;
    if (bytes == 0)
        return 0;
    qni_checksum_start(&sum);
    qni_checksum_add(&sum, qni_section(w, section), bytes);
    return qni_checksum_note(&sum);
}

/* The kernels of a strategy lay rows out alike: what they read decides. */
static struct qni_row_layout layout_of(const struct qni_op *op)
{
    struct qni_matmul_kernel kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.reads = op->strategy == QN_STRATEGY_INT8_ROW ? QNI_READS_Q8 : QNI_READS_Q8B;
    return qni_row_layout_of(op, op->w[0]->head, &kernel);
}

static struct head head_of(const struct qni_op *op, const struct qni_row_layout *layout, int64_t m)
{
    const struct qni_packed_head *w = op->w[0]->head;
    struct head h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, magic, sizeof h.magic);
    h.bytes = HEAD_BYTES + qni_round_up(qni_prepared_bytes(layout, m), 64);
    h.m = m;
    h.strategy = op->strategy;
    h.symmetric = op->strategy == QN_STRATEGY_INT8_ROW || op->quant.symmetric;
    h.x_dtype = op->x.dtype;
    h.taps = w->format.blocks == QN_BLOCKS_CHANNELS ? w->kh * w->kw : 1;
    h.cut = layout->cut;
    h.perm = checksum_of(op->w[0], QNI_SECTION_PERM);
    h.prescale = checksum_of(op->w[0], QNI_SECTION_PRESCALE);
    return h;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Small work is not worth a fork: as many elements take the time of one. */
enum { CHEAP = 16384, ROWS_PER_ITEM = 4 };

static int32_t workers_of(const qn_ctx *ctx, const struct qni_op *op)
{
    const int64_t items = qni_ceil_div(op->m, ROWS_PER_ITEM);
    const int64_t most = op->m * op->k <= CHEAP ? 1 : qni_max(1, ctx->threads.n_threads);
    return (int32_t)qni_max(1, qni_min(items, most));
}

size_t qni_cpu_prepare_bytes(const qn_ctx *ctx, const struct qni_op *op)
{
    const struct qni_row_layout layout = layout_of(op);
    return HEAD_BYTES + qni_round_up(qni_prepared_bytes(&layout, op->m), 64) +
           (size_t)workers_of(ctx, op) * qni_round_up(qni_row_floats_bytes(op), 64);
}

struct job {
    const struct qni_op *op;
    const struct qni_rows *rows;
    const struct qni_row_layout *layout;
    struct qni_row_source source;
    struct qni_part part;
    struct qni_prepared out;
    uint8_t *floats;
    atomic_llong next;
};

static void work(void *arg, int32_t worker)
{
    struct job *j = arg;
    const struct qni_product_shape shape = {.m = j->op->m};
    uint8_t *const floats =
        j->floats + (size_t)worker * qni_round_up(qni_row_floats_bytes(j->op), 64);
    const struct qni_row_scratch scratch = qni_row_scratch_in(j->op, &shape, floats, floats);
    int64_t row;
    while ((row = (int64_t)atomic_fetch_add(&j->next, ROWS_PER_ITEM)) < j->op->m) {
        const struct qni_row_range range = {row, qni_min(ROWS_PER_ITEM, j->op->m - row), row};
        qni_prepare_rows(j->op, j->rows, &j->source, &j->part, j->layout, &range, &j->out,
                         &scratch);
    }
}

void qni_cpu_prepare(const qn_ctx *ctx, const struct qni_op *op, void *memory)
{
    const struct qni_row_layout layout = layout_of(op);
    const struct head head = head_of(op, &layout, op->m);
    struct job j;
    memset(&j, 0, sizeof j);
    j.op = op;
    j.rows = qni_rows_for(ctx->isa);
    j.layout = &layout;
    j.source = qni_source_of_matrix(&op->x);
    j.part.w = op->w[0];
    j.out = qni_prepared_in(&layout, (uint8_t *)memory + HEAD_BYTES, op->m);
    j.floats = (uint8_t *)memory + head.bytes;
    memcpy(memory, &head, sizeof head);
    if (op->m > 0)
        qni_parallel(&ctx->threads, workers_of(ctx, op), work, &j);
}

/* ---- reading --------------------------------------------------------------------------------- */

qn_status qni_cpu_prepared_check(const struct qni_op *op, size_t *bytes, qn_error *err)
{
    const struct qni_row_layout layout = layout_of(op);
    struct head head;
    memcpy(&head, op->prepared, sizeof head);
    if (memcmp(head.magic, magic, sizeof head.magic) != 0)
        return qni_fail(err, QN_E_VALUE, "prepared is not what qn_prepare() leaves in memory");
    const struct head own = head_of(op, &layout, op->x.shape[0]);
    if (head.strategy != own.strategy)
        return qni_fail(err, QN_E_ARGUMENT, "the prepared rows are for %s, strategy is %s",
                        qn_strategy_name(head.strategy), qn_strategy_name(op->strategy));
    if (head.symmetric != own.symmetric)
        return qni_fail(err, QN_E_ARGUMENT,
                        "the prepared rows were made with quant.symmetric %d, this is %d",
                        head.symmetric, own.symmetric);
    if (head.m != own.m || head.cut.k != own.cut.k)
        return qni_fail(err, QN_E_SHAPE, "the prepared rows are [%lld, %lld], x is [%lld, %lld]",
                        (long long)head.m, (long long)head.cut.k, (long long)own.m,
                        (long long)own.cut.k);
    if (head.x_dtype != own.x_dtype)
        return qni_fail(err, QN_E_DTYPE, "the prepared rows were of type %s, x is %s",
                        qn_dtype_name(head.x_dtype), qn_dtype_name(own.x_dtype));
    for (int32_t e = 0; e < op->n_w; e++) {
        const bool is_order = head.perm == checksum_of(op->w[e], QNI_SECTION_PERM);
        if (!is_order || head.prescale != checksum_of(op->w[e], QNI_SECTION_PRESCALE))
            return qni_fail(err, QN_E_LAYOUT,
                            "the prepared rows are for weights with another %s: prepare them again",
                            is_order ? "prescale" : "act-order");
    }
    if (head.taps != own.taps || head.bytes != own.bytes ||
        memcmp(&head.cut, &own.cut, sizeof head.cut) != 0)
        return qni_fail(err, QN_E_LAYOUT,
                        "the prepared rows are for weights with other groups along k (or another "
                        "x_block): prepare them again");
    *bytes = (size_t)head.bytes;
    return QN_OK;
}

struct qni_prepared qni_prepared_range(const struct qni_op *op, const struct qni_row_layout *layout,
                                       int64_t row, int64_t n)
{
    uint8_t *const memory = (uint8_t *)(uintptr_t)op->prepared; /* only read */
    struct qni_prepared p = qni_prepared_in(layout, memory + HEAD_BYTES, op->x.shape[0]);
    const size_t facts = (size_t)row * layout->ld_segment;
    p.rows = n;
    p.a += (size_t)row * layout->lda;
    p.row_scale += row;
    p.facts.sum += facts;
    if (layout->reads == QNI_READS_Q8B) {
        p.facts.scale += facts;
        p.facts.offset += facts;
        p.facts.total += facts;
    }
    return p;
}

void qni_prepared_copy(const struct qni_op *op, const struct qni_row_layout *l, int64_t row,
                       const struct qni_prepared *out, int64_t to)
{
    const struct qni_prepared p = qni_prepared_range(op, l, row, 1);
    const size_t facts = (size_t)to * l->ld_segment, bytes = l->ld_segment * sizeof(float);
    memcpy(out->a + (size_t)to * l->lda, p.a, (size_t)l->cut.units * QNI_UNIT);
    memcpy(out->facts.sum + facts, p.facts.sum, bytes);
    if (l->reads == QNI_READS_Q8) {
        out->row_scale[to] = p.row_scale[0];
        return;
    }
    memcpy(out->facts.scale + facts, p.facts.scale, bytes);
    memcpy(out->facts.offset + facts, p.facts.offset, bytes);
    memcpy(out->facts.total + facts, p.facts.total, bytes);
}
