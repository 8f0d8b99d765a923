/* SPDX-License-Identifier: Apache-2.0 */
/* Is the last run right? An independent double-precision answer from the canonical weight and the
 * codes that qn_quantize_rows() gives, for a sample of outputs that always holds the corners:
 *
 *     |y - sum x^ w| <= 2 (k + 8) 2^-24 sum |x^| (|scale value| + |offset|)  + one rounding of y
 *
 * x^ is what the strategy makes of x (docs/numerics.md), so the bound is tight for the int8
 * strategies too. A residual against random signs t then looks at all outputs of a product at once:
 * sum_n t_n y_mn = sum_k x^_mk (sum_n t_n w_nk); independent errors grow with sqrt(n). */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

enum { MAX_SAMPLE_N = 64, MAX_SAMPLE_M = 16 };

static int64_t group_of(const qn_weight_parts *w, int64_t position)
{
    const int64_t group = w->format.group;
    if (group < 0)
        return 0;
    const int64_t ci = w->k / ((int64_t)w->kh * w->kw);
    return w->format.blocks == QN_BLOCKS_CHANNELS ? position % ci / group : position / group;
}

static double half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, digits = h & 1023;
    const double size =
        exponent == 0 ? ldexp(digits, -24) : ldexp(1024 + digits, exponent - 25); /* finite */
    return h >> 15 != 0 ? -size : size;
}

double code_value(const qn_weight_parts *w, int64_t at)
{
    float whole;
    uint16_t half;
    if (w->format.code != QN_CODE_FLOAT)
        return w->table != NULL ? (double)w->table[w->codes[at]]
                                : w->codes[at] - (1 << (w->format.bits - 1));
    if (w->format.scale_dtype == QN_F32) {
        memcpy(&whole, w->codes + 4 * at, sizeof whole);
        return (double)whole;
    }
    memcpy(&half, w->codes + 2 * at, sizeof half);
    return w->format.scale_dtype == QN_F16 ? half_value(half) : (double)bf16_value(half);
}

/* `count` positions from p on, which are of one group. */
static void weight_piece(const qn_weight_parts *w, int64_t row, int64_t p, int64_t count,
                         double *out, double *size)
{
    const int64_t g = row * w->n_groups + group_of(w, p);
    const double scale = (double)w->scale[g];
    const double from_zero = w->format.shift == QN_SHIFT_MIN ? 1 << (w->format.bits - 1) : 0;
    const double offset = w->zero != NULL     ? -scale * w->zero[g]
                          : w->offset != NULL ? (double)w->offset[g] + from_zero * scale
                                              : 0;
    for (int64_t end = p + count; p < end; p++) {
        const int64_t at = w->perm != NULL ? w->perm[p] : p;
        const double value = code_value(w, row * w->k + p);
        out[at] = scale * value + offset;
        if (size != NULL)
            size[at] = fabs(scale * value) + fabs(offset);
    }
}

void weight_row(const qn_weight_parts *w, int64_t row, double *out, double *size)
{
    const int64_t group = w->format.group > 0 ? w->format.group : w->k;
    const int64_t piece = w->format.blocks == QN_BLOCKS_CHANNELS ? 1 : group;
    for (int64_t p = 0; p < w->k; p += piece)
        weight_piece(w, row, p, w->k - p < piece ? w->k - p : piece, out, size);
}

/* ------------------------------------------------------------------------- rows of activations */

struct checker {
    const struct workload *w;
    qn_weight_parts parts[MAX_WEIGHTS];
    int64_t *order;      /* positions, group after group */
    float *plain, *part; /* one row of x; a segment of it */
    int8_t *codes;
    double *x, *row, *size;
    double *reach; /* |scale x code| + |offset| of x: what rounding errors grow with */
    double sum_error, sum_exact, sum_model, sum_model_exact;
    struct verdict *verdict;
};

/* One row of the patch matrix, for the outputs of one convolution group. */
static void gather_patch(const struct checker *c, int64_t r, int64_t group)
{
    const struct conv_shape *s = &c->w->p.conv;
    const int64_t b = r / (s->oh * s->ow), oy = r / s->ow % s->oh, ox = r % s->ow;
    const int64_t ci = s->ci / s->groups;
    float *to = c->plain;
    for (int64_t ky = 0; ky < s->kh; ky++) {
        for (int64_t kx = 0; kx < s->kw; kx++) {
            int64_t iy = oy * s->stride[0] + ky * s->dilation[0] - s->pad[0];
            int64_t ix = ox * s->stride[1] + kx * s->dilation[1] - s->pad[1];
            int is_inside = 1;
            if (s->is_transposed) { /* the input that this tap adds here, if there is one */
                iy = oy + s->pad[0] - ky * s->dilation[0];
                ix = ox + s->pad[1] - kx * s->dilation[1];
                is_inside = iy % s->stride[0] == 0 && ix % s->stride[1] == 0;
                iy /= s->stride[0];
                ix /= s->stride[1];
            }
            is_inside &= iy >= 0 && iy < s->h && ix >= 0 && ix < s->w;
            for (int64_t i = 0; i < ci; i++) {
                const int64_t channel = group * ci + i;
                const int64_t at = s->image == QN_NHWC
                                       ? ((b * s->h + iy) * s->w + ix) * s->ci + channel
                                       : ((b * s->ci + channel) * s->h + iy) * s->w + ix;
                *to++ = is_inside ? c->w->x_exact[at] : 0.0f;
            }
        }
    }
}

/* Quantize `count` numbers of c->part as one segment and put what they became where they belong. */
static void quantize_segment(const struct checker *c, const int64_t *positions, int64_t count)
{
    const int is_block = c->w->p.strategy == QN_STRATEGY_INT8_BLOCK;
    float scale = 0, offset = 0;
    for (int64_t i = 0; i < count; i++)
        c->part[i] = c->plain[positions[i]];
    qn_quantize_rows_args a;
    qn_quantize_rows_args_init(&a);
    a.x = qn_tensor_2d(c->part, QN_F32, 1, count);
    a.codes = qn_tensor_2d(c->codes, QN_I8, 1, count);
    a.scale = qn_tensor_2d(&scale, QN_F32, 1, 1);
    if (is_block && !c->w->quant.symmetric)
        a.offset = qn_tensor_2d(&offset, QN_F32, 1, 1);
    qn_quantize_rows(c->w->host, &a);
    for (int64_t i = 0; i < count; i++) {
        c->x[positions[i]] = (double)scale * c->codes[i] + (double)offset;
        c->reach[positions[i]] = fabs((double)scale * c->codes[i]) + fabs((double)offset);
    }
}

/* The number that a code of e4m3 stands for. */
static double value_of_e4m3(uint8_t code)
{
    const int e = code >> 3 & 15, m = code & 7;
    const double v = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
    return (code & 128) != 0 ? -v : v;
}

/* The strategies of e4m3: columns [begin, begin + count) share a scale. */
static void quantize_e4m3(const struct checker *c, int64_t begin, int64_t count)
{
    float scale = c->w->quant.x_scale;
    qn_quantize_rows_args a;
    qn_quantize_rows_args_init(&a);
    a.x = qn_tensor_2d(c->part, QN_F32, 1, count);
    a.codes = qn_tensor_2d(c->codes, QN_E4M3, 1, count);
    a.scale = qn_tensor_2d(&scale, QN_F32, 1, 1);
    memcpy(c->part, c->plain + begin, sizeof *c->part * (size_t)count);
    qn_quantize_rows(c->w->host, &a);
    for (int64_t i = 0; i < count; i++) {
        c->x[begin + i] = (double)scale * value_of_e4m3((uint8_t)c->codes[i]);
        c->reach[begin + i] = fabs(c->x[begin + i]);
    }
}

/* c->x: what the strategy makes of the row in c->plain. */
static void quantize_row(const struct checker *c)
{
    const qn_weight_parts *w = &c->parts[0];
    if (c->w->p.strategy == QN_STRATEGY_INT8_ROW) {
        quantize_segment(c, c->order, w->k);
        return;
    }
    if (c->w->p.strategy == QN_STRATEGY_FP8_ROW) {
        quantize_e4m3(c, 0, w->k);
        return;
    }
    if (c->w->p.strategy == QN_STRATEGY_FP8_BLOCK) {
        for (int64_t at = 0; at < w->k; at += 128)
            quantize_e4m3(c, at, w->k - at < 128 ? w->k - at : 128);
        return;
    }
    if (c->w->p.strategy != QN_STRATEGY_INT8_BLOCK) {
        for (int64_t i = 0; i < w->k; i++) {
            c->x[i] = (double)c->plain[i];
            c->reach[i] = fabs(c->x[i]);
        }
        return;
    }
    /* Segments: pieces of x_block (whole units of 32) of each weight group. */
    const int64_t piece = (c->w->facts.x_block + 31) / 32 * 32;
    for (int64_t begin = 0; begin < w->k;) {
        int64_t end = begin;
        const int64_t group = group_of(w, c->order[begin]);
        while (end < w->k && end - begin < piece && group_of(w, c->order[end]) == group)
            end++;
        quantize_segment(c, c->order + begin, end - begin);
        begin = end;
    }
}

static void load_row(const struct checker *c, int64_t r, int64_t n)
{
    const struct workload *w = c->w;
    if (w->p.op == OP_CONV2D) {
        gather_patch(c, r, n / (w->p.n / w->p.conv.groups));
    } else {
        const int64_t source = w->p.op == OP_GROUPED ? w->x_rows[r] : r;
        memcpy(c->plain, w->x_exact + source * w->p.k, sizeof *c->plain * (size_t)w->p.k);
    }
    quantize_row(c);
}

/* ---------------------------------------------------------------------------------- one output */

/* y[r, n] as a double, and the half step of its type. */
static double output_at(const struct workload *w, int64_t r, int64_t n, double *half_step)
{
    int64_t at = r * w->p.n + n;
    if (w->p.op == OP_CONV2D && w->p.conv.image == QN_NCHW) {
        const int64_t plane = w->p.conv.oh * w->p.conv.ow;
        at = (r / plane * w->p.n + n) * plane + r % plane;
    }
    float value = 0;
    *half_step = 0;
    switch (w->p.y) {
    case QN_I8:
    case QN_U8:
        *half_step = 0.501 * (double)w->y_scale;
        return (w->p.y == QN_I8 ? ((const int8_t *)w->y)[at] : ((const uint8_t *)w->y)[at]) *
               (double)w->y_scale;
    case QN_I32:
        return ((const int32_t *)w->y)[at];
    default:
        floats_from((const uint8_t *)w->y + (size_t)at * qn_dtype_bytes(w->p.y), w->p.y, 1, &value);
        *half_step = fabs((double)value) * (w->p.y == QN_BF16 ? 0x1p-8 : 0x1p-11);
        if (w->p.y == QN_F32)
            *half_step = 0;
        return (double)value;
    }
}

static int is_clipped(const struct workload *w, double exact)
{
    const double code = exact / (double)w->y_scale;
    return (w->p.y == QN_I8 && fabs(code) > 126) || (w->p.y == QN_U8 && (code < 0.5 || code > 254));
}

static void check_output(struct checker *c, int64_t r, int64_t n, int which)
{
    const struct workload *w = c->w;
    struct verdict *v = c->verdict;
    double sum = 0, magnitude = 0, exact = 0, half_step;
    for (int64_t i = 0; i < w->p.k; i++) {
        sum += c->x[i] * c->row[i];
        magnitude += c->reach[i] * c->size[i];
        exact += (double)c->plain[i] * c->row[i];
    }
    const double y = output_at(w, r, n, &half_step);
    if (w->p.y == QN_I32) { /* raw sums: the weight's scale is left out */
        const double unit = (double)w->quant.x_scale * (double)c->parts[which].scale[n];
        sum /= unit;
        exact /= unit;
        magnitude /= unit;
    }
    if (is_clipped(w, exact))
        return;
    double bound = 2 * (double)(w->p.k + 8) * 0x1p-24 * magnitude + half_step + (double)FLT_MIN;
    if (strstr(w->info.kernel, "bf16") != NULL || strstr(w->info.kernel, "_e4m3") != NULL)
        bound += 0x1p-8 * magnitude;
    const double off = fabs(y - sum);
    v->checked++;
    if (!(off / bound <= v->worst))
        v->worst = off / bound;
    if (!(off <= bound) && v->is_good) {
        v->is_good = 0;
        snprintf(v->why, sizeof v->why, "y[%lld, %lld] is %.9g, expected %.9g within %.2g",
                 (long long)r, (long long)n, y, sum, bound);
    }
    c->sum_error += (y - exact) * (y - exact);
    c->sum_exact += exact * exact;
}

/* What the product would be with the weights as they were before quantization. */
static void compare_model(struct checker *c, int64_t r, int64_t n, int which, uint16_t *bits)
{
    double exact = 0, half_step;
    random_weight_row(c->w->seed + (uint64_t)which, n, c->w->p.k, bits);
    for (int64_t i = 0; i < c->w->p.k; i++)
        exact += (double)c->plain[i] * (double)bf16_value(bits[i]);
    const double y = output_at(c->w, r, n, &half_step);
    c->sum_model += (y - exact) * (y - exact);
    c->sum_model_exact += exact * exact;
}

/* The i-th of `taken` numbers out of [0, total): both ends, and in between not evenly. */
static int64_t pick(int64_t i, int64_t taken, int64_t total)
{
    if (taken == total || i == 0)
        return i;
    if (i == taken - 1)
        return total - 1;
    const int64_t step = (total - 1) / (taken - 1);
    uint64_t state = (uint64_t)i;
    return i * (total - 1) / (taken - 1) - (int64_t)(random_next(&state) % (uint64_t)step);
}

static void check_sample(struct checker *c)
{
    const struct workload *w = c->w;
    const int64_t n = w->p.n, rows = w->y_rows;
    const int64_t n_taken = n < MAX_SAMPLE_N ? n : MAX_SAMPLE_N;
    const int64_t rows_taken = rows < MAX_SAMPLE_M ? rows : MAX_SAMPLE_M;
    uint16_t *bits = must_alloc(sizeof *bits * (size_t)w->p.k);
    for (int64_t i = 0; i < rows_taken; i++) {
        const int64_t r = pick(i, rows_taken, rows);
        const int which = w->p.op == OP_GROUPED ? w->ids[r] % w->n_weights : 0;
        int64_t loaded = -1;
        for (int64_t j = 0; j < n_taken; j++) {
            const int64_t column = pick(j, n_taken, n);
            const int64_t group = w->p.op == OP_CONV2D ? column / (n / w->p.conv.groups) : 0;
            if (group != loaded)
                load_row(c, r, column);
            loaded = group;
            weight_row(&c->parts[which], column, c->row, c->size);
            check_output(c, r, column, which);
            compare_model(c, r, column, which, bits);
        }
    }
    free(bits);
}

/* ------------------------------------------------------------------------------------ residual */

/* For random signs t: the sums over n of t_n w_nk, and the roots of those of size squared. They
 * are of the weights alone, so all cases with these weights share them. */
static void fold_weights(struct checker *c, struct workload *w)
{
    uint64_t state = 99;
    w->folded = must_alloc(sizeof *w->folded * (size_t)w->p.k);
    w->spread = must_alloc(sizeof *w->spread * (size_t)w->p.k);
    w->sign = must_alloc((size_t)w->p.n + 1);
    for (int64_t j = 0; j < w->p.n; j++) {
        w->sign[j] = (random_next(&state) & 1) != 0 ? 1 : -1;
        weight_row(&c->parts[0], j, c->row, c->size);
        for (int64_t i = 0; i < w->p.k; i++) {
            w->folded[i] += w->sign[j] * c->row[i];
            w->spread[i] += c->size[i] * c->size[i];
        }
    }
    for (int64_t i = 0; i < w->p.k; i++)
        w->spread[i] = sqrt(w->spread[i]);
}

static void check_residual(struct checker *c, struct workload *w)
{
    const int64_t n = w->p.n, k = w->p.k;
    const double step = w->p.y == QN_F32 ? 0 : w->p.y == QN_BF16 ? 0x1p-8 : 0x1p-11;
    float *y = must_alloc(sizeof *y * (size_t)n);
    if (w->folded == NULL)
        fold_weights(c, w);
    for (int64_t r = 0; r < w->y_rows && c->verdict->is_good; r++) {
        double left = 0, right = 0, rounding = 0, spread = 0;
        load_row(c, r, 0);
        floats_from((const uint8_t *)w->y + (size_t)(r * n) * qn_dtype_bytes(w->p.y), w->p.y, n, y);
        for (int64_t j = 0; j < n; j++) {
            left += w->sign[j] * (double)y[j];
            rounding += (double)y[j] * (double)y[j];
        }
        for (int64_t i = 0; i < k; i++) {
            right += c->x[i] * w->folded[i];
            spread += c->reach[i] * w->spread[i];
        }
        /* spread >= the root of the sum over n of (sum |x| |w|)^2 */
        double bound = 2 * (double)(k + 8) * 0x1p-24 * spread + 8 * step * sqrt(rounding) + 1e-30;
        if (strstr(w->info.kernel, "bf16") != NULL)
            bound += 0x1p-8 * spread;
        if (!(fabs(left - right) <= bound)) {
            c->verdict->is_good = 0;
            snprintf(c->verdict->why, sizeof c->verdict->why,
                     "row %lld: its residual is %.3g, allowed are %.3g", (long long)r,
                     fabs(left - right), bound);
        }
    }
    free(y);
}

/* ---------------------------------------------------------------------------------------- both */

/* Positions ordered by group, and by position within one. */
static void order_positions(struct checker *c)
{
    const qn_weight_parts *w = &c->parts[0];
    int64_t at = 0;
    for (int64_t g = 0; g < w->n_groups || g == 0; g++) {
        if (w->format.blocks != QN_BLOCKS_CHANNELS) {
            for (; at < w->k; at++)
                c->order[at] = at;
            return;
        }
        for (int64_t p = 0; p < w->k; p++) {
            if (group_of(w, p) == g)
                c->order[at++] = p;
        }
    }
}

void workload_check(struct workload *w, int is_thorough, struct verdict *verdict)
{
    const size_t k = (size_t)w->p.k;
    struct checker c = {.w = w, .verdict = verdict};
    *verdict = (struct verdict){.is_good = 1};
    for (int i = 0; i < w->n_weights; i++) {
        qn_weight_parts_init(&c.parts[i]);
        qn_weight_view(w->weights[i], &c.parts[i]);
    }
    c.order = must_alloc(sizeof *c.order * k);
    c.plain = must_alloc(sizeof *c.plain * k);
    c.part = must_alloc(sizeof *c.part * k);
    c.codes = must_alloc(k);
    c.x = must_alloc(sizeof *c.x * k);
    c.reach = must_alloc(sizeof *c.reach * k);
    c.row = must_alloc(sizeof *c.row * k);
    c.size = must_alloc(sizeof *c.size * k);
    order_positions(&c);
    if (w->y_elements > 0)
        check_sample(&c);
    const int can_fold =
        w->p.op == OP_MATMUL && w->p.y != QN_I32 && w->p.y != QN_I8 && w->p.y != QN_U8;
    if (is_thorough && can_fold && verdict->is_good && w->y_elements > 0)
        check_residual(&c, w);
    verdict->error = c.sum_exact > 0 ? sqrt(c.sum_error / c.sum_exact) : sqrt(c.sum_error);
    verdict->model_error = c.sum_model_exact > 0 ? sqrt(c.sum_model / c.sum_model_exact) : 0;
    free(c.order);
    free(c.plain);
    free(c.part);
    free(c.codes);
    free(c.x);
    free(c.reach);
    free(c.row);
    free(c.size);
}
