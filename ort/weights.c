/* SPDX-License-Identifier: Apache-2.0 */
/* From the order of the model to the canonical form: [n, kh, kw, ci], a byte a code, 2^(bits - 1)
 * added to signed ones; zero points of unsigned codes move with them. */
#include "weights.h"

#include <stdlib.h>
#include <string.h>

/* Where the element of output n, tap (ky, kx) and channel ci lies. */
struct walk {
    int64_t n_ci, kh, kw;
    int64_t step_ci, step_ky, step_kx;
};

static struct walk walk_of(const struct claim *c)
{
    struct walk w = {c->k, 1, 1, 1, 0, 0};
    int64_t taps = c->kernel[0] * c->kernel[1];
    if (c->order == ORDER_KN) {
        w.step_ci = c->n;
    } else if (c->order != ORDER_NK) {
        w.n_ci = c->k / taps;
        w.kh = c->kernel[0];
        w.kw = c->kernel[1];
        w.step_ky = c->kernel[1];
        w.step_kx = 1;
        w.step_ci = c->order == ORDER_OIHW ? taps : c->n / c->groups * taps;
    }
    return w;
}

static int64_t first_of(const struct claim *c, const struct walk *w, int64_t n)
{
    int64_t taps = w->kh * w->kw, of_group = c->n / c->groups;
    if (c->order == ORDER_KN)
        return n;
    if (c->order == ORDER_IOHW)
        return ((n / of_group) * w->n_ci * of_group + n % of_group) * taps;
    return n * c->k;
}

static int32_t bits_of(int32_t type)
{
    return type == ORT_U4 || type == ORT_I4 ? 4 : 8;
}

/* Element i, with 2^(bits - 1) added where it is signed. */
static uint8_t code_at(const struct tensor *codes, int64_t i)
{
    const uint8_t *bytes = codes->data;
    if (codes->type == ORT_U8)
        return bytes[i];
    if (codes->type == ORT_I8)
        return (uint8_t)(bytes[i] ^ 0x80);
    uint8_t four = (uint8_t)(i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15);
    return codes->type == ORT_U4 ? four : (uint8_t)(four ^ 8);
}

/* Element i of rows of packed codes of 2, 4 or 8 bits, low bits first. */
static uint8_t bits_at(const uint8_t *row, int64_t i, int32_t bits)
{
    int64_t at = i * bits;
    return (uint8_t)((row[at / 8] >> (at % 8)) & ((1 << bits) - 1));
}

/* What goes into a canonical weight. */
struct parts {
    const struct claim *c;
    struct tensor codes, scales, zeros;
    int64_t n_groups;
    int32_t bits;
    uint8_t *code;
    float *scale, *offset, *dense;
    int32_t *zero;
    bool is_shifted;
};

static void gather(const struct parts *p)
{
    const struct claim *c = p->c;
    const struct walk w = walk_of(c);
    const float *floats = p->codes.data;
    uint8_t *code = p->code;
    float *dense = p->dense;
    for (int64_t n = 0; n < c->n; n++) {
        int64_t first = first_of(c, &w, n);
        for (int64_t ky = 0; ky < w.kh; ky++)
            for (int64_t kx = 0; kx < w.kw; kx++) {
                int64_t at = first + ky * w.step_ky + kx * w.step_kx;
                for (int64_t ci = 0; ci < w.n_ci; ci++, at += w.step_ci) {
                    if (c->w_is_floats)
                        *dense++ = floats[at];
                    else
                        *code++ = code_at(&p->codes, at);
                }
            }
    }
}

static void gather_nbits(const struct parts *p)
{
    const struct claim *c = p->c;
    const uint8_t *row = p->codes.data;
    int64_t row_bytes = p->n_groups * (c->w_block * c->nbits / 8);
    for (int64_t n = 0; n < c->n; n++, row += row_bytes)
        for (int64_t k = 0; k < c->k; k++)
            p->code[n * c->k + k] = bits_at(row, k, c->nbits);
}

/* Where the scale of output n and group g lies among the model's. */
static int64_t scale_index(const struct parts *p, int64_t n, int64_t g)
{
    const struct claim *c = p->c;
    if (p->scales.count == 1 && p->zeros.count <= 1)
        return 0;
    if (c->w_block == 0)
        return c->order == ORDER_IOHW ? n % (c->n / c->groups) : n;
    if (c->order == ORDER_KN)
        return g * c->n + n;
    if (c->order == ORDER_NK)
        return n * p->n_groups + g;
    /* A convolution: the model has [n, blocks, taps], groups are [n, taps, blocks]. */
    int64_t taps = c->kernel[0] * c->kernel[1], blocks = p->n_groups / taps;
    return (n * blocks + g % blocks) * taps + g / blocks;
}

/* The zero point at place i of the model's, of output n and group g, in codes without a sign. */
static float zero_at(const struct parts *p, int64_t n, int64_t g)
{
    const struct claim *c = p->c;
    if (p->zeros.data == NULL) /* Absent: 0 of signed codes; of MatMulNBits the middle. */
        return c->nbits == 0 && (p->codes.type == ORT_U8 || p->codes.type == ORT_U4)
                   ? 0.0f
                   : (float)(1 << (p->bits - 1));
    int64_t i = p->zeros.count == 1 ? 0 : scale_index(p, n, g);
    if (p->zeros.type == ORT_F32)
        return ((const float *)p->zeros.data)[i];
    if (c->nbits == 0)
        return (float)code_at(&p->zeros, i);
    int64_t row_bytes = (p->n_groups * c->nbits + 7) / 8;
    return (float)bits_at((const uint8_t *)p->zeros.data + n * row_bytes, g, c->nbits);
}

static void gather_scales(struct parts *p, const struct weights_factor *times)
{
    const float half = (float)(1 << (p->bits - 1));
    const float *scales = p->scales.data;
    bool offsets = p->zeros.type == ORT_F32;
    for (int64_t n = 0; n < p->c->n; n++)
        for (int64_t g = 0; g < p->n_groups; g++) {
            int64_t at = n * p->n_groups + g;
            int64_t i = p->scales.count == 1 ? 0 : scale_index(p, n, g);
            float scale = scales == NULL ? 1.0f : scales[i];
            float zero = zero_at(p, n, g) - half;
            if (times != NULL)
                scale = times->x_scale * scale / times->y_scale;
            p->scale[at] = scale;
            p->zero[at] = offsets ? 0 : (int32_t)zero;
            p->offset[at] = offsets ? -scale * zero : 0.0f;
            p->is_shifted = p->is_shifted || zero != 0.0f;
        }
}

static qn_status create(const struct parts *p, const qn_ctx *ctx, qn_weight **weight,
                        qn_error *error)
{
    const struct claim *c = p->c;
    bool offsets = p->zeros.type == ORT_F32;
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    parts.format = (qn_format){.code = QN_CODE_INT,
                               .bits = p->bits,
                               .group = c->w_block > 0 ? c->w_block : QN_GROUP_PER_CHANNEL,
                               .scale_dtype = QN_F32,
                               .shift = !p->is_shifted ? QN_SHIFT_NONE
                                        : offsets      ? QN_SHIFT_OFFSET
                                                       : QN_SHIFT_ZERO};
    parts.n = c->n;
    parts.k = c->k;
    if (c->kind != CLAIM_MATMUL) {
        parts.kh = (int32_t)c->kernel[0];
        parts.kw = (int32_t)c->kernel[1];
        parts.conv_groups = (int32_t)c->groups;
    }
    parts.codes = p->code;
    parts.scale = p->scale;
    parts.zero = p->is_shifted && !offsets ? p->zero : NULL;
    parts.offset = p->is_shifted && offsets ? p->offset : NULL;
    return qn_weight_create(ctx, &parts, weight, error);
}

static qn_status quantize(const struct parts *p, const qn_ctx *ctx, qn_weight **weight,
                          qn_error *error)
{
    const struct claim *c = p->c;
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    options.format = c->format;
    if (c->kind != CLAIM_MATMUL) {
        options.kh = (int32_t)c->kernel[0];
        options.kw = (int32_t)c->kernel[1];
        options.conv_groups = (int32_t)c->groups;
    }
    qn_tensor dense = qn_tensor_2d(p->dense, QN_F32, c->n, c->k);
    return qn_quantize(ctx, &dense, &options, weight, error);
}

static qn_status gather_all(struct parts *p, const struct weights_factor *times)
{
    const struct claim *c = p->c;
    size_t count = (size_t)(c->n * c->k), scales = (size_t)(c->n * p->n_groups);
    if (c->w_is_floats) {
        p->dense = malloc((count + 1) * sizeof *p->dense);
        if (p->dense == NULL)
            return QN_E_MEMORY;
        gather(p);
        return QN_OK;
    }
    p->code = malloc(count + 1);
    p->scale = malloc((scales + 1) * sizeof *p->scale);
    p->zero = malloc((scales + 1) * sizeof *p->zero);
    p->offset = malloc((scales + 1) * sizeof *p->offset);
    if (p->code == NULL || p->scale == NULL || p->zero == NULL || p->offset == NULL)
        return QN_E_MEMORY;
    if (c->nbits != 0)
        gather_nbits(p);
    else
        gather(p);
    gather_scales(p, times);
    return QN_OK;
}

static bool read_constants(const struct graph *g, struct parts *p)
{
    const struct claim *c = p->c;
    return graph_constant(g, c->w, &p->codes) &&
           (c->nbits != 0 || p->codes.count == c->n * c->k) &&
           (c->w_scale < 0 || graph_constant(g, c->w_scale, &p->scales)) &&
           (c->w_zero < 0 || graph_constant(g, c->w_zero, &p->zeros));
}

struct ort_status *weights_pack(const struct graph *g, const struct claim *c, const qn_ctx *ctx,
                                const struct weights_factor *times, qn_packed **packed)
{
    struct parts p = {.c = c};
    qn_error error = {0};
    qn_weight *weight = NULL;
    if (!read_constants(g, &p))
        return runtime_fail(g->api, ORT_FAIL, "the weights of %s cannot be read",
                            g->nodes[c->anchor].op);
    p.bits = c->nbits != 0 ? c->nbits : bits_of(p.codes.type);
    p.n_groups = c->w_block > 0 ? (c->k + c->w_block - 1) / c->w_block : 1;
    qn_status status = gather_all(&p, times);
    if (status == QN_OK)
        status = c->w_is_floats ? quantize(&p, ctx, &weight, &error)
                                : create(&p, ctx, &weight, &error);
    if (status == QN_OK)
        status = qn_pack(ctx, weight, NULL, packed, &error);
    qn_weight_destroy(weight);
    free(p.code);
    free(p.scale);
    free(p.zero);
    free(p.offset);
    free(p.dense);
    return runtime_check(g->api, g->nodes[c->anchor].op, status, &error);
}
