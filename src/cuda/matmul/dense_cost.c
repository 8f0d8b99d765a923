/* SPDX-License-Identifier: Apache-2.0 */
/* The dense tier to choose from: its rows, what they are not for, and what they would cost
 * (dense.h). Pure, as select.c is. */
#include "dense.h"

#include <string.h>

#include "../../base/compiler.h"
#include "../../quant/magnitude.h"
#include "prepared.h"

static const struct qni_cuda_kernel rows_of_tier[] = {
#define QNI_CUDA_DENSE(fn, oldest, type)                                                           \
    {.name = #fn, .sm = (oldest), .reads = QNI_CUDA_READS_##type, .family = QNI_CUDA_FAMILY_DENSE},
#include "others.inc"
#undef QNI_CUDA_DENSE
};
enum { N_ROWS = (int)(sizeof rows_of_tier / sizeof *rows_of_tier) };

const struct qni_cuda_kernel *qni_cuda_dense_at(int32_t i)
{
    return i >= 0 && i < N_ROWS ? &rows_of_tier[i] : NULL;
}

static bool has_section(const struct qni_op *op, int32_t section)
{
    return op->w[0]->head->section[section].bytes != 0;
}

static bool is_image(const struct qni_op *op)
{
    return op->kind == QNI_CONV || op->kind == QNI_CONV_TRANSPOSE;
}

/* ---- choice ---------------------------------------------------------------------------------- */

const char *const qni_cuda_dense_unasked =
    "rounds weights to the type of x, which the dense strategy is to be asked for";

const char *qni_cuda_dense_refusal(const struct qni_cuda_kernel *row, const struct qni_op *op,
                                   const struct qni_cuda_facts *facts)
{
    const qn_dtype type = row->reads == QNI_CUDA_READS_F16 ? QN_F16 : QN_BF16;
    if (op->kernel != NULL && strcmp(op->kernel, row->name) != 0)
        return "another kernel was asked for by name";
    if (op->strategy != QN_STRATEGY_FLOAT && op->strategy != QN_STRATEGY_DENSE)
        return "reads another type of activations than the strategy gives";
    if (op->x.dtype == QN_F32)
        return "rounds weights to the type of x, and multiplies types of 16 bits";
    if (op->x.dtype != type)
        return "reads another type of activations than the strategy gives";
    if (op->k == 0 || op->n == 0)
        return "is for products of something, and n or k is 0";
    if (op->kind == QNI_GROUPED)
        return "multiplies by one weight: how many rows an expert has is known on the device alone";
    if (op->w[0]->head->conv_groups > 1)
        return "multiplies one convolution group";
    if (is_image(op) && has_section(op, QNI_SECTION_PRESCALE))
        return "multiplies the prescale into weights that are not those of a convolution";
    if (facts->sm < row->sm)
        return "needs a newer GPU";
    if (op->strategy != QN_STRATEGY_DENSE)
        return qni_cuda_dense_unasked;
    return facts->no_blas;
}

const char *qni_cuda_rounded_refusal(int32_t reads, const struct qni_op *op)
{
    const qn_dtype type = reads == QNI_CUDA_READS_F16 ? QN_F16 : QN_BF16;
    if (op->x.dtype == QN_F32)
        return "rounds weights to the type of x, and multiplies types of 16 bits";
    if (op->x.dtype != type)
        return "reads another type of activations than the strategy gives";
    for (int32_t i = 0; i < op->n_w; i++) {
        const struct qni_packed_head *head = op->w[i]->head;
        if (head->section[QNI_SECTION_PRESCALE].bytes != 0)
            return "rounds weights without a prescale, which belongs to them here";
        if (head->format.shift == QN_SHIFT_ZERO && qni_packed_has_offsets(head))
            return "takes zero points of 8 bits off codes, and some are larger";
    }
    return op->strategy == QN_STRATEGY_DENSE || qni_cuda_rounds_nothing(op)
               ? NULL
               : qni_cuda_dense_unasked;
}

bool qni_cuda_rounds_nothing(const struct qni_op *op)
{
    int32_t exact = op->x.dtype == QN_F16 ? QNI_EXACT_F16 : QNI_EXACT_BF16;
    for (int32_t i = 0; i < op->n_w; i++)
        exact &= op->w[i]->exact;
    return exact != 0;
}

bool qni_cuda_rounds_by_f16(const struct qni_op *op)
{
    bool all = op->x.dtype == QN_F16;
    for (int32_t i = 0; i < op->n_w; i++) {
        const struct qni_packed_head *head = op->w[i]->head;
        all = all && head->scale_dtype == QN_F16 && !qni_packed_has_offsets(head) &&
              qni_magnitude_exponent(op->w[i]->magnitude, QN_F16) >= 0;
    }
    return all;
}

/* The model takes cuBLASLt to compute 128 x 256 outputs a tile, as a multiprocessor does them one
 * after another: 0.77 of what it is rated for, with few tiles each cut in up to four. */
enum { TILE_ROWS = 128, TILE_OUTPUTS = 256, PIECES = 4 };

struct qni_cuda_costs qni_cuda_dense_costs(const struct qni_cuda_facts *facts)
{
    const double each = facts->f16_ops / (double)qni_max(1, facts->multiprocessors);
    const double rated = facts->bandwidth > 0.0 ? facts->bandwidth : 500e9;
    const double block_ops = 2.0 * TILE_ROWS * TILE_OUTPUTS * QNI_CUDA_BLOCK;
    return (struct qni_cuda_costs){
        .family = QNI_CUDA_FAMILY_DENSE,
        .t0_us = 3.0,
        .bandwidth = 0.8e-9 * rated,
        .block_ns = block_ops / (0.77 * (each > 0.1e12 ? each : 1e12)) * 1e9,
    };
}

bool qni_cuda_dense_is_direct(const struct qni_op *op, const struct qni_cuda_sink *out)
{
    return out->is_plain && (out->y_dtype == QN_F32 || out->y_dtype == op->x.dtype);
}

bool qni_cuda_dense_reads_x(const struct qni_op *op)
{
    return qni_cuda_lies_in_order(op) && op->k % 8 == 0;
}

/* Written and read again at the speed of memory, after a launch. */
static double pass_us(const struct qni_cuda_costs *costs, double bytes)
{
    return 2.0 + bytes / costs->bandwidth * 1e-3;
}

struct qni_cuda_terms qni_cuda_dense_terms(const struct qni_cuda_facts *facts,
                                           const struct qni_op *op, int64_t m)
{
    const struct qni_cuda_costs costs = qni_cuda_dense_costs(facts);
    const struct qni_packed_head *head = op->w[0]->head;
    const double weights = (double)op->n * (double)head->units * QNI_CUDA_UNIT;
    const double x = (double)m * (double)head->units * QNI_CUDA_UNIT * 2.0;
    const double y = (double)m * (double)op->n * (double)qn_dtype_bytes(op->y.dtype);
    const double turns = (double)(qni_ceil_div(m, TILE_ROWS) * qni_ceil_div(op->n, TILE_OUTPUTS)) /
                         (double)qni_max(1, facts->multiprocessors);
    int32_t pieces = 1;
    while (2 * pieces <= PIECES && 2 * pieces * turns <= 1.0)
        pieces *= 2;
    const double steps = turns > 1.0 ? turns : 1.0 / pieces;
    struct qni_cuda_sink out;
    qni_cuda_sink_of(op, &out);
    struct qni_cuda_terms terms = {
        .bytes = 2.0 * weights + x + y,
        .steps = steps * (double)qni_ceil_div(head->units, 2),
        .before_us =
            pass_us(&costs, (double)head->section[QNI_SECTION_CODES].bytes +
                                (double)head->section[QNI_SECTION_SCALE].bytes + 2.0 * weights),
    };
    if (!qni_cuda_dense_reads_x(op))
        terms.before_us += pass_us(&costs, 2.0 * x);
    if (!qni_cuda_dense_is_direct(op, &out))
        terms.before_us += pass_us(&costs, 8.0 * (double)m * (double)op->n);
    return terms;
}
