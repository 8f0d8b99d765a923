/* SPDX-License-Identifier: Apache-2.0 */
/* Images as the copy engine reads them: pixels.h. */
#include "pixels.h"

#include <string.h>

#include "../../base/compiler.h"
#include "../../quant/geometry.h"
#include "prepared.h"

/* What a descriptor of the copy engine holds: corners of the box of pixels that are read in a byte,
 * steps up to 8, offsets of taps in a byte without a sign. */
enum { LEAST_CORNER = -128, MOST_CORNER = 127, MOST_STEP = 8, MOST_OFFSET = 255 };

static bool reads_int8(const struct qni_cuda_kernel *kernel)
{
    return kernel->reads == QNI_CUDA_READS_Q8;
}

/* Codes of a copy have the padding around them, whose code need not be 0. */
static int64_t border(const struct qni_op *op, const struct qni_cuda_kernel *kernel, int32_t side)
{
    return reads_int8(kernel) ? op->conv.pad[side] : 0;
}
static int64_t height_of(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    return op->conv.h + border(op, kernel, 0) + border(op, kernel, 2);
}
static int64_t width_of(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    return op->conv.w + border(op, kernel, 1) + border(op, kernel, 3);
}

/* Channels that follow each other for a tap. */
static int64_t run_of(const struct qni_op *op)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool by_channel = head->format.blocks == QN_BLOCKS_CHANNELS && head->n_groups > 1;
    return by_channel ? head->format.group : op->conv.ci;
}

/* The last pixel that a tap (0, 0) reads, from the last of the image. */
static int64_t corner(int64_t out, int32_t stride, int64_t pad, int64_t in)
{
    return (out - 1) * stride - pad - (in - 1);
}

static bool has_window(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    const struct qni_conv *c = &op->conv;
    const int64_t in[2] = {height_of(op, kernel), width_of(op, kernel)};
    const int64_t out[2] = {c->oh, c->ow}, taps[2] = {c->kh, c->kw};
    for (int32_t d = 0; d < 2; d++) {
        const int64_t pad = c->pad[d] - border(op, kernel, d);
        const int64_t far = corner(out[d], c->stride[d], pad, in[d]);
        if (c->stride[d] > MOST_STEP || -pad < LEAST_CORNER || far < LEAST_CORNER ||
            far > MOST_CORNER || (taps[d] - 1) * c->dilation[d] > MOST_OFFSET ||
            in[d] > INT32_MAX || out[d] > INT32_MAX)
            return false;
    }
    return true;
}

const char *qni_cuda_pixels_refusal(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    const struct qni_packed_head *head = op->w[0]->head;
    if (op->kind != QNI_CONV)
        return "is for convolutions";
    const int64_t run = run_of(op);
    if (qni_cuda_lies_in_order(op))
        return "fetches taps, and these rows are pixels as they lie";
    if (reads_int8(kernel) && op->strategy != QN_STRATEGY_INT8_STATIC)
        return "takes given codes: those of int8-row depend on the row";
    if (op->conv.ci % QNI_CUDA_BLOCK != 0 || run % QNI_CUDA_BLOCK != 0 || op->m == 0)
        return "fetches 64 channels of a tap at a time";
    if (head->section[QNI_SECTION_PERM].bytes != 0 ||
        head->section[QNI_SECTION_PRESCALE].bytes != 0)
        return "takes columns as they lie: no act-order, no prescale";
    if (head->units * QNI_CUDA_UNIT != op->k || (run == op->conv.ci && head->n_runs > 1))
        return "takes groups of whole units of 32 positions";
    if (qni_packed_has_offsets(head) || (reads_int8(kernel) && head->format.shift != QN_SHIFT_NONE))
        return "has no sums of a row, which offsets of weights are multiplied by";
    if (!has_window(op, kernel))
        return "holds strides up to 8, padding up to 128 and windows up to 256";
    return NULL;
}

/* ---- the view -------------------------------------------------------------------------------- */

/* All but where pixels are. */
static void start_view(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                       struct qni_cuda_rows *rows)
{
    const struct qni_conv *c = &op->conv;
    struct qni_cuda_pixels *v = &rows->pixels;
    memset(rows, 0, sizeof *rows);
    rows->planes = kernel->reads == QNI_CUDA_READS_BF16 ? qni_cuda_planes(op) : 1;
    rows->columns = (int32_t)op->k;
    rows->x_zero = qni_op_x_zero(op);
    rows->x_scale = reads_int8(kernel) && op->y.dtype != QN_I32 ? op->quant.x_scale : 1.0f;
    rows->ld_segment = 4;
    v->is_on = 1;
    v->height = (int32_t)height_of(op, kernel);
    v->width = (int32_t)width_of(op, kernel);
    v->oh = (int32_t)c->oh;
    v->ow = (int32_t)c->ow;
    v->kh = c->kh;
    v->kw = c->kw;
    for (int32_t d = 0; d < 2; d++) {
        v->stride[d] = c->stride[d];
        v->dilation[d] = c->dilation[d];
        v->pad[d] = c->pad[d] - (int32_t)border(op, kernel, d);
    }
    v->ci = (int32_t)c->ci;
    v->run = (int32_t)qni_min(run_of(op), c->ci);
}

bool qni_cuda_pixels_lie(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    const struct qni_conv *c = &op->conv;
    const bool same = (kernel->reads == QNI_CUDA_READS_F16 && op->x.dtype == QN_F16) ||
                      (kernel->reads == QNI_CUDA_READS_BF16 && op->x.dtype == QN_BF16);
    const int64_t each = 16 / (int64_t)qn_dtype_bytes(op->x.dtype);
    return same && c->xs[1] == 1 && c->xs[0] % each == 0 && c->xs[2] % each == 0 &&
           c->xs[3] % each == 0 && c->xs[0] >= 0 && c->xs[2] >= 0 && c->xs[3] >= 0;
}

/* The distance between pixels, rows or images. Where there is one alone, the copy engine still
 * wants a distance. */
static int64_t pitch_of(int64_t count, int64_t stride, int64_t least)
{
    return count > 1 && stride > 0 ? stride : least;
}

bool qni_cuda_pixels_of_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                          struct qni_cuda_rows *rows)
{
    const struct qni_conv *c = &op->conv;
    const int64_t size = (int64_t)qn_dtype_bytes(op->x.dtype);
    if (!qni_cuda_pixels_lie(op, kernel) || (uintptr_t)op->x.data % 16 != 0)
        return false;
    start_view(op, kernel, rows);
    struct qni_cuda_pixels *v = &rows->pixels;
    rows->a = op->x.data;
    rows->lda = (int64_t)c->ci * size;
    rows->part_rows = op->m;
    v->channels = (int32_t)c->ci * c->groups;
    v->images = (int32_t)c->batch;
    v->part_channels = (int32_t)c->ci;
    v->pitch[2] = size * pitch_of(c->w, c->xs[3], v->channels);
    v->pitch[1] = size * pitch_of(c->h, c->xs[2], c->w * (v->pitch[2] / size));
    v->pitch[0] = size * pitch_of(c->batch, c->xs[0], c->h * (v->pitch[1] / size));
    return true;
}

/* ---- the copy -------------------------------------------------------------------------------- */

int64_t qni_cuda_pixels_of_image(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    return height_of(op, kernel) * width_of(op, kernel);
}

size_t qni_cuda_pixels_in(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                          int64_t images, uint8_t *memory, struct qni_cuda_rows *rows)
{
    const int64_t pixels = images * qni_cuda_pixels_of_image(op, kernel);
    const size_t all = (size_t)(pixels * op->conv.groups);
    start_view(op, kernel, rows);
    struct qni_cuda_pixels *v = &rows->pixels;
    rows->lda = op->conv.ci * (reads_int8(kernel) ? 1 : 2);
    rows->plane_stride = (int64_t)all * rows->lda;
    rows->part_rows = pixels;
    v->channels = v->ci;
    v->part_images = (int32_t)images;
    v->plane_images = (int32_t)images * op->conv.groups;
    v->images = v->plane_images * rows->planes;
    v->pitch[2] = rows->lda;
    v->pitch[1] = v->width * v->pitch[2];
    v->pitch[0] = v->height * v->pitch[1];
    const size_t bytes = qni_round_up((size_t)rows->plane_stride * (size_t)rows->planes, 256);
    rows->a = memory;
    /* Those who order codes add them up, too. */
    const size_t sums = reads_int8(kernel) ? qni_round_up(all * 4 * 4, 256) : 0;
    rows->sum = sums != 0 && memory != NULL ? (const int32_t *)(void *)(memory + bytes) : NULL;
    return bytes + sums;
}

void qni_cuda_pixels_source(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                            struct qni_cuda_source *s)
{
    const struct qni_conv *c = &op->conv;
    memset(s, 0, sizeof *s);
    s->x = op->x.data;
    s->dtype = op->x.dtype;
    s->is_image = 1;
    s->h = c->h;
    s->w = c->w;
    s->oh = height_of(op, kernel);
    s->ow = width_of(op, kernel);
    memcpy(s->xs, c->xs, sizeof s->xs);
    s->kh = s->kw = 1;
    for (int32_t d = 0; d < 2; d++) {
        s->stride[d] = s->dilation[d] = 1;
        s->pad[d] = (int32_t)border(op, kernel, d);
    }
    s->ci = (int32_t)c->ci;
    s->parts = c->groups;
    s->k = s->group_len = s->last_len = c->ci;
    s->n_groups = s->n_segments = 1;
    s->units = s->group_units = s->segment_units = (int32_t)(c->ci / QNI_CUDA_UNIT);
    s->x_zero = qni_op_x_zero(op);
    s->reads = kernel->reads;
    s->by_step = 1;
}
