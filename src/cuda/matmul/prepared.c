/* SPDX-License-Identifier: Apache-2.0 */
/* From an operation to the structs of kernel.h: prepared.h. */
#include "prepared.h"

#include <string.h>

static bool is_image(const struct qni_op *op)
{
    return op->kind == QNI_CONV || op->kind == QNI_CONV_TRANSPOSE;
}

static bool has_section(const struct qni_op *op, int32_t section)
{
    return op->w[0]->head->section[section].bytes != 0;
}

struct qni_cuda_shape qni_cuda_shape_of(const struct qni_op *op)
{
    return (struct qni_cuda_shape){op->m, is_image(op) ? op->conv.groups : 1};
}

int32_t qni_cuda_planes(const struct qni_op *op)
{
    return qni_op_planes(op, has_section(op, QNI_SECTION_PRESCALE));
}

/* ---- prepared rows --------------------------------------------------------------------------- */

static void *place(uint8_t *memory, size_t *at, size_t bytes)
{
    void *const here = memory == NULL ? NULL : memory + *at;
    *at += qni_round_up(bytes, 256);
    return here;
}

size_t qni_cuda_rows_in(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                        const struct qni_cuda_shape *shape, uint8_t *memory,
                        struct qni_cuda_rows *rows)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const int32_t reads = kernel->reads;
    const bool is_int8 = reads == QNI_CUDA_READS_Q8 || reads == QNI_CUDA_READS_Q8B;
    const bool is_e4m3 = qni_cuda_reads_e4m3(reads);
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    const struct qni_cut cut = qni_packed_cut(head, reads == QNI_CUDA_READS_Q8B);
    const size_t all = (size_t)(shape->rows * shape->parts);
    const bool totals = !is_int8 && !is_e4m3 && qni_packed_has_offsets(head) && kernel->takes_total;
    /* Whole pieces of 16 bytes: prefill_short.cuh. */
    const size_t ld = is_e4m3   ? (size_t)qni_ceil_div(head->units, 4)
                      : is_int8 ? qni_round_up((size_t)cut.n_segments, 4)
                                : (size_t)cut.n_groups;
    const size_t facts = all * ld * 4;
    size_t at = 0;
    memset(rows, 0, sizeof *rows);
    rows->planes = reads == QNI_CUDA_READS_BF16 ? qni_cuda_planes(op) : 1;
    rows->columns = (int32_t)(head->units * QNI_CUDA_UNIT);
    rows->lda = (int64_t)rows->columns * (is_int8 || is_e4m3 ? 1 : 2);
    rows->plane_stride = (int64_t)qni_round_up(all * (size_t)rows->lda, 256);
    rows->part_rows = shape->rows;
    rows->x_zero = qni_op_x_zero(op);
    rows->x_scale = is_static && op->y.dtype != QN_I32 ? op->quant.x_scale : 1.0f;
    rows->ld_segment = (int32_t)ld;
    rows->a = place(memory, &at, (size_t)rows->plane_stride * (size_t)rows->planes);
    if ((reads == QNI_CUDA_READS_Q8 && !is_static) || reads == QNI_CUDA_READS_E4M3)
        rows->row_scale = place(memory, &at, all * 4);
    if (is_int8)
        rows->sum = place(memory, &at, facts);
    if (reads == QNI_CUDA_READS_E4M3B)
        rows->scale = place(memory, &at, facts);
    if (reads == QNI_CUDA_READS_Q8B) {
        rows->scale = place(memory, &at, facts);
        rows->offset = op->quant.symmetric ? NULL : place(memory, &at, facts);
    }
    if (reads == QNI_CUDA_READS_Q8B || totals)
        rows->total = place(memory, &at, facts);
    return at;
}

/* ---- rows as they lie ------------------------------------------------------------------------ */

/* Is row r of the patch matrix x + r * ldx, as it lies? */
static bool is_matrix(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    if (!is_image(op))
        return true;
    if (c->kh != 1 || c->kw != 1 || c->h != c->oh || c->w != c->ow)
        return false;
    for (int32_t i = 0; i < 2; i++)
        if (c->stride[i] != 1 || c->pad[i] != 0 || c->pad[i + 2] != 0)
            return false;
    return c->groups == 1 && (c->xs[1] == 1 || c->ci == 1) && c->xs[2] == c->w * c->xs[3] &&
           (c->batch == 1 || c->xs[0] == c->h * c->xs[2]);
}

static int64_t row_stride(const struct qni_op *op)
{
    if (is_image(op))
        return op->conv.xs[3];
    return op->x.shape[0] > 1 ? op->x.stride[0] : op->x.shape[1];
}

bool qni_cuda_lies_in_order(const struct qni_op *op)
{
    return is_matrix(op) && op->x_rows.rank == 0 && op->w[0]->head->n_runs <= 1 &&
           !has_section(op, QNI_SECTION_PERM);
}

bool qni_cuda_sorts_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    return op->kind == QNI_GROUPED && op->ids.rank != 0 && qni_cuda_reads_sorted(kernel->family);
}

bool qni_cuda_reads_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool same = (kernel->reads == QNI_CUDA_READS_F16 && op->x.dtype == QN_F16) ||
                      (kernel->reads == QNI_CUDA_READS_BF16 && op->x.dtype == QN_BF16);
    const bool summed = kernel->takes_total && qni_packed_has_offsets(head);
    return same && !summed && qni_cuda_lies_in_order(op) && !qni_cuda_sorts_x(op, kernel) &&
           !has_section(op, QNI_SECTION_PRESCALE);
}

bool qni_cuda_rows_as_they_lie(const struct qni_op *op, struct qni_cuda_rows *rows)
{
    const int64_t size = (int64_t)qn_dtype_bytes(op->x.dtype);
    /* One row alone has no stride: any multiple of 16 will do. */
    const int64_t lda =
        op->m > 1 ? row_stride(op) * size : (int64_t)qni_round_up((size_t)(op->k * size), 16);
    if ((uintptr_t)op->x.data % 16 != 0 || lda % 16 != 0 || op->k > INT32_MAX)
        return false;
    memset(rows, 0, sizeof *rows);
    rows->a = op->x.data;
    rows->lda = lda;
    rows->planes = 1;
    rows->columns = (int32_t)op->k;
    rows->part_rows = op->m;
    rows->x_scale = 1.0f;
    return true;
}

/* ---- rows that decode kernels quantize ------------------------------------------------------- */

enum {
    LYING_ROWS = 2,         /* with more of them the launch of a quantizer costs less */
    LYING_BYTES = 64 << 10, /* of x as it lies and of its codes, in shared memory */
};

/* Segments that a chunk holds whole; or one, if nobody asks for its sum. */
static bool has_whole_segments(const struct qni_packed_head *head, bool by_block)
{
    const struct qni_cut cut = qni_packed_cut(head, by_block);
    const int64_t units = cut.segment_units;
    if (cut.n_segments == 1)
        return !by_block && head->format.shift == QN_SHIFT_NONE;
    return (units == 1 || units == 2 || units == 4) &&
           (cut.n_groups == 1 || cut.group_units % units == 0);
}

bool qni_cuda_quantizes_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel, int64_t m)
{
    const bool by_block = op->strategy == QN_STRATEGY_INT8_BLOCK;
    const bool is_float = op->x.dtype == QN_F32 || op->x.dtype == QN_F16 || op->x.dtype == QN_BF16;
    const int32_t reads = by_block ? QNI_CUDA_READS_Q8B : QNI_CUDA_READS_Q8;
    if (kernel->family != QNI_CUDA_FAMILY_DECODE || kernel->mr != 8 || kernel->reads != reads ||
        (!by_block && op->strategy != QN_STRATEGY_INT8_ROW) || op->kind == QNI_GROUPED)
        return false;
    return is_float && qni_cuda_lies_in_order(op) && !has_section(op, QNI_SECTION_PRESCALE) &&
           has_whole_segments(op->w[0]->head, by_block) && m >= 1 && m <= LYING_ROWS &&
           m * op->k * (int64_t)(1 + qn_dtype_bytes(op->x.dtype)) <= LYING_BYTES;
}

bool qni_cuda_rows_to_quantize(const struct qni_op *op, struct qni_cuda_rows *rows)
{
    if (!qni_cuda_rows_as_they_lie(op, rows))
        return false;
    rows->lies = (int16_t)op->x.dtype;
    rows->symmetric = op->quant.symmetric != 0;
    return true;
}

/* ---- source ---------------------------------------------------------------------------------- */

static void describe_image(const struct qni_op *op, struct qni_cuda_source *s)
{
    const struct qni_conv *c = &op->conv;
    s->is_image = 1;
    s->h = c->h;
    s->w = c->w;
    s->oh = c->oh;
    s->ow = c->ow;
    memcpy(s->xs, c->xs, sizeof s->xs);
    s->kh = c->kh;
    s->kw = c->kw;
    for (int32_t i = 0; i < 2; i++) {
        s->stride[i] = c->stride[i];
        s->dilation[i] = c->dilation[i];
        s->pad[i] = c->pad[i];
    }
    s->transposed = op->kind == QNI_CONV_TRANSPOSE;
    s->ci = (int32_t)c->ci;
    s->parts = c->groups;
}

void qni_cuda_source_of(const struct qni_op *op, int32_t reads, struct qni_cuda_source *s)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const struct qni_cut cut = qni_packed_cut(head, reads == QNI_CUDA_READS_Q8B);
    memset(s, 0, sizeof *s);
    s->x = op->x.data;
    s->dtype = op->x.dtype;
    s->parts = 1;
    s->k = op->k;
    if (is_matrix(op)) {
        s->ldx = row_stride(op);
        s->index = op->x_rows.rank != 0 ? op->x_rows.data : NULL;
        s->x_rows = is_image(op) ? op->m : op->x.shape[0];
    } else {
        describe_image(op, s);
    }
    s->perm = qni_section(op->w[0], QNI_SECTION_PERM);
    s->prescale = qni_section(op->w[0], QNI_SECTION_PRESCALE);
    s->n_groups = (int32_t)cut.n_groups;
    s->group_units = (int32_t)cut.group_units;
    s->units = (int32_t)head->units;
    s->group_len = cut.group_len;
    s->last_len = cut.last_len;
    s->by_channel = head->format.blocks == QN_BLOCKS_CHANNELS && cut.n_groups > 1;
    s->group_channels = s->by_channel ? (int32_t)head->format.group : 0;
    s->segment_units = (int32_t)cut.segment_units;
    s->n_segments = (int32_t)cut.n_segments;
    s->symmetric = op->quant.symmetric;
    s->x_zero = qni_op_x_zero(op);
    s->reads = reads;
}

/* ---- sink ------------------------------------------------------------------------------------ */

/* Rows that follow each other evenly in y and in the residual need no division to be found. */
static bool is_even(const struct qni_conv *c, const int64_t s[4])
{
    return (c->oh == 1 || s[2] == c->ow * s[3]) && (c->batch == 1 || s[0] == c->oh * c->ow * s[3]);
}

static void place_image(const struct qni_op *op, struct qni_cuda_sink *s)
{
    const struct qni_conv *c = &op->conv;
    const bool residual = s->residual != NULL;
    const int64_t from[4] = {0, 2, 3, 1}; /* op->conv has batch, channel, row, column */
    s->is_image = !is_even(c, c->ys) || (residual && !is_even(c, c->rs));
    s->size[0] = c->oh;
    s->size[1] = c->ow;
    for (int32_t i = 0; i < 4; i++) {
        s->stride[i] = c->ys[from[i]];
        s->residual_stride[i] = residual ? c->rs[from[i]] : 0;
    }
}

void qni_cuda_sink_of(const struct qni_op *op, struct qni_cuda_sink *s)
{
    const qn_epilogue *e = &op->epilogue;
    memset(s, 0, sizeof *s);
    s->y = op->y.data;
    s->y_dtype = op->y.dtype;
    s->residual = e->residual.rank != 0 ? e->residual.data : NULL;
    s->residual_dtype = e->residual.dtype;
    s->residual_after = e->residual_after;
    if (is_image(op)) {
        place_image(op, s);
    } else {
        s->stride[2] = op->y.stride[0];
        s->stride[3] = 1;
        s->residual_stride[2] = e->residual.stride[0];
        s->residual_stride[3] = 1;
    }
    s->bias = e->bias.rank != 0 ? e->bias.data : NULL;
    s->bias_dtype = e->bias.dtype;
    s->bias_ld = e->bias.rank == 2 ? e->bias.stride[0] : 0;
    s->row_scale = e->row_scale.rank != 0 ? e->row_scale.data : NULL;
    s->col_scale = e->col_scale.rank != 0 ? e->col_scale.data : NULL;
    s->col_ld = e->col_scale.rank == 2 ? e->col_scale.stride[0] : 0;
    if (op->fp8 != NULL && op->x_scales.rank != 0) {
        s->x_scale = op->x_scales.data;
        s->x_index = op->x_rows.rank != 0 ? op->x_rows.data : NULL;
        s->x_rows = op->x.shape[0];
    }
    s->act = e->act;
    const qn_epilogue_more *const more = &op->more;
    const bool is_byte = e->residual.dtype == QN_I8 || e->residual.dtype == QN_U8;
    s->has_more =
        more->factor.rank != 0 || e->act > QN_ACT_SILU || (s->residual != NULL && is_byte);
    if (more->factor.rank != 0) {
        s->factor = more->factor.data;
        s->factor_dtype = more->factor.dtype;
        s->factor_stride = more->factor.stride[0];
    }
    s->leaky_slope = more->leaky_slope;
    s->hard_slope = more->hard_slope;
    s->hard_shift = more->hard_shift;
    s->residual_scale = more->residual_scale;
    s->residual_zero = more->residual_zero;
    s->has_clamp = e->clamp_lo > -3.402823466e+38f * 2.0f || e->clamp_hi < 3.402823466e+38f * 2.0f;
    s->clamp_lo = e->clamp_lo;
    s->clamp_hi = e->clamp_hi;
    s->y_inv = 1.0f / e->y_scale;
    s->y_zero = e->y_zero;
    const bool is_float = s->y_dtype == QN_F32 || s->y_dtype == QN_F16 || s->y_dtype == QN_BF16;
    s->is_plain = is_float && !s->is_image && s->stride[3] == 1 && s->bias == NULL &&
                  s->residual == NULL && s->row_scale == NULL && s->col_scale == NULL &&
                  s->x_scale == NULL && s->act == QN_ACT_NONE && !s->has_clamp && !s->has_more;
}
