/* SPDX-License-Identifier: Apache-2.0 */
/* From the order of the model to the canonical form: [n, kh, kw, ci], a byte a code, 2^(bits - 1)
 * added to signed ones; zero points of unsigned codes move with them. */
#include "weights.h"

#include <stdlib.h>
#include <string.h>

/* Where the code of output n, tap (ky, kx) and channel ci lies among the elements. */
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

static int32_t bits_of(int32_t type)
{
    return type == ORT_U4 || type == ORT_I4 ? 4 : 8;
}

static void gather_codes(const struct claim *c, const struct tensor *codes, uint8_t *out)
{
    struct walk w = walk_of(c);
    for (int64_t n = 0; n < c->n; n++) {
        int64_t first = first_of(c, &w, n);
        for (int64_t ky = 0; ky < w.kh; ky++)
            for (int64_t kx = 0; kx < w.kw; kx++) {
                int64_t at = first + ky * w.step_ky + kx * w.step_kx;
                for (int64_t ci = 0; ci < w.n_ci; ci++, at += w.step_ci)
                    *out++ = code_at(codes, at);
            }
    }
}

/* Zero points in the scale of signed codes, one an output; false where all are 0. */
static bool gather_zeros(const struct claim *c, const struct tensor *zeros, int32_t *out)
{
    int32_t half = 1 << (bits_of(zeros->type) - 1);
    bool any = false;
    for (int64_t n = 0; n < c->n; n++) {
        out[n] = (int32_t)code_at(zeros, zeros->count > 1 ? n : 0) - half;
        any = any || out[n] != 0;
    }
    return any;
}

struct ort_status *weights_pack(const struct graph *g, const struct claim *c, const qn_ctx *ctx,
                                const float *scale, qn_packed **packed)
{
    struct tensor codes, zeros = {0};
    qn_error error = {0};
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    if (!graph_constant(g, c->w, &codes) || codes.count != c->n * c->k ||
        (c->w_zero >= 0 && !graph_constant(g, c->w_zero, &zeros)))
        return runtime_fail(g->api, ORT_FAIL, "the weights of %s cannot be read",
                            g->nodes[c->anchor].op);
    size_t n = (size_t)c->n, count = (size_t)codes.count;
    uint8_t *bytes = malloc(count + 1);
    float *scales = malloc((n + 1) * sizeof *scales);
    int32_t *zero = malloc((n + 1) * sizeof *zero);
    qn_status status = bytes && scales && zero ? QN_OK : QN_E_MEMORY;
    if (status == QN_OK) {
        gather_codes(c, &codes, bytes);
        if (zeros.data == NULL) { /* An absent zero point is 0 of the codes' own type. */
            zeros = (struct tensor){.data = "\0", .type = codes.type, .count = 1};
        }
        bool shifted = gather_zeros(c, &zeros, zero);
        for (size_t i = 0; i < n; i++)
            scales[i] = scale != NULL ? scale[i] : 1.0f;
        qn_weight_parts_init(&parts);
        parts.format = (qn_format){.code = QN_CODE_INT, .bits = bits_of(codes.type),
                                   .group = QN_GROUP_PER_CHANNEL, .scale_dtype = QN_F32,
                                   .shift = shifted ? QN_SHIFT_ZERO : QN_SHIFT_NONE};
        parts.n = c->n;
        parts.k = c->k;
        if (c->kind != CLAIM_MATMUL) {
            parts.kh = (int32_t)c->kernel[0];
            parts.kw = (int32_t)c->kernel[1];
            parts.conv_groups = (int32_t)c->groups;
        }
        parts.codes = bytes;
        parts.scale = scales;
        parts.zero = shifted ? zero : NULL;
        status = qn_weight_create(ctx, &parts, &weight, &error);
    }
    if (status == QN_OK)
        status = qn_pack(ctx, weight, NULL, packed, &error);
    qn_weight_destroy(weight);
    free(bytes);
    free(scales);
    free(zero);
    return runtime_check(g->api, g->nodes[c->anchor].op, status, &error);
}
