/* SPDX-License-Identifier: Apache-2.0 */
/* Block types of GGUF to the canonical form. A row is whole blocks; a block has its scales and its
 * codes together. Codes are stored as they are counted in the file, from 0, which is what the
 * canonical form keeps: value = code - 2^(bits-1).
 *
 *     d q                   scale d
 *     d (u - 2^(b-1))       scale d
 *     d u + m               scale d, minimum m
 *     d sc u - dmin mn      common scale d and minimum dmin, integers sc and mn
 * Nothing is rounded: products of an f16 and a small integer are exact in f32, the minimum is kept
 * beside the scale, and both levels of the scales stay as they are, so that the block can be
 * written back. The one thing that is lost is the second code of zero that NVFP4's scales have.
 * Types that need a grid of vectors (IQ1, IQ2, IQ3) or three values (TQ) have no canonical form and
 * are refused by name. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/half.h"
#include "../../base/size.h"
#include "../file.h"
#include "../gguf.h"
#include "import.h"

static float f16_at(const uint8_t *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return qni_f32_from_f16(half);
}

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

/* Byte j holds element j in its low half and element j + half in its high half. */
static void split_halves(const uint8_t *from, int32_t half, uint8_t *codes)
{
    for (int32_t j = 0; j < half; j++) {
        codes[j] = from[j] & 15;
        codes[j + half] = from[j] >> 4;
    }
}

/* The fifth bits of 32 elements, in order. */
static void add_fifth(const uint8_t *from, uint8_t *codes)
{
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    for (int32_t j = 0; j < 32; j++)
        codes[j] = (uint8_t)(codes[j] | (bits >> j & 1) << 4);
}

struct out { /* of one block */
    uint8_t *codes;
    float *scale, *offset;          /* by group */
    float *super_scale, *super_min; /* blocks of 256 */
    int16_t *sub_scale, *sub_min;   /* by group */
};

static void decode_q4_0(const uint8_t *b, const struct out *o)
{
    o->scale[0] = f16_at(b);
    split_halves(b + 2, 16, o->codes);
}

static void decode_q4_1(const uint8_t *b, const struct out *o)
{
    o->scale[0] = f16_at(b);
    o->offset[0] = f16_at(b + 2);
    split_halves(b + 4, 16, o->codes);
}

static void decode_q5_0(const uint8_t *b, const struct out *o)
{
    o->scale[0] = f16_at(b);
    split_halves(b + 6, 16, o->codes);
    add_fifth(b + 2, o->codes);
}

static void decode_q5_1(const uint8_t *b, const struct out *o)
{
    o->scale[0] = f16_at(b);
    o->offset[0] = f16_at(b + 2);
    split_halves(b + 8, 16, o->codes);
    add_fifth(b + 4, o->codes);
}

static void decode_q8_0(const uint8_t *b, const struct out *o)
{
    o->scale[0] = f16_at(b);
    for (int32_t j = 0; j < 32; j++)
        o->codes[j] = b[2 + j] ^ 0x80;
}

static void decode_mxfp4(const uint8_t *b, const struct out *o)
{
    o->scale[0] = qni_f32_from_e8m0(b[0]);
    split_halves(b + 1, 16, o->codes);
}

/* Four blocks of 16. Scales have no sign; 0x7f is 0, as ggml reads it. What has the sign's bit is
 * no scale, and becomes NaN, which is refused. */
static void decode_nvfp4(const uint8_t *b, const struct out *o)
{
    for (int32_t i = 0; i < 4; i++) {
        o->scale[i] = b[i] == 0x7f ? 0.0f : qni_f32_from_e4m3(b[i] < 0x80 ? b[i] : 0x7f);
        split_halves(b + 4 + 8 * i, 8, o->codes + 16 * i);
    }
}

/* ---- blocks of 256 --------------------------------------------------------------------------- */

/* Two bits of 256 elements: each 32 bytes hold four runs of 32. */
static void split_pairs(const uint8_t *from, uint8_t *codes)
{
    for (int32_t i = 0; i < 8; i++)
        for (int32_t l = 0; l < 32; l++)
            codes[32 * i + l] = from[i / 4 * 32 + l] >> (2 * (i % 4)) & 3;
}

static void decode_q2_k(const uint8_t *b, const struct out *o)
{
    *o->super_scale = f16_at(b + 80);
    *o->super_min = f16_at(b + 82);
    for (int32_t g = 0; g < 16; g++) {
        o->sub_scale[g] = b[g] & 15;
        o->sub_min[g] = b[g] >> 4;
    }
    split_pairs(b + 16, o->codes);
}

static void decode_q3_k(const uint8_t *b, const struct out *o)
{
    const uint8_t *scales = b + 96;
    *o->super_scale = f16_at(b + 108);
    for (int32_t g = 0; g < 16; g++) {
        const int32_t low = scales[g % 8] >> (g < 8 ? 0 : 4) & 15;
        const int32_t high = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
        o->sub_scale[g] = (int16_t)((low | high << 4) - 32);
    }
    split_pairs(b + 32, o->codes);
    for (int32_t i = 0; i < 256; i++)
        o->codes[i] = (uint8_t)(o->codes[i] | (b[i % 32] >> (i / 32) & 1) << 2);
}

/* Eight scales and minima of 6 bits in 12 bytes, behind d and dmin. */
static void scales_of_k(const uint8_t *b, const struct out *o)
{
    const uint8_t *q = b + 4;
    *o->super_scale = f16_at(b);
    *o->super_min = f16_at(b + 2);
    for (int32_t j = 0; j < 8; j++) {
        const int32_t sc = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | q[j - 4] >> 6 << 4;
        const int32_t mn = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | q[j] >> 6 << 4;
        o->sub_scale[j] = (int16_t)sc;
        o->sub_min[j] = (int16_t)mn;
    }
}

static void decode_q4_k(const uint8_t *b, const struct out *o)
{
    scales_of_k(b, o);
    for (int32_t i = 0; i < 4; i++)
        split_halves(b + 16 + 32 * i, 32, o->codes + 64 * i);
}

static void decode_q5_k(const uint8_t *b, const struct out *o)
{
    scales_of_k(b, o);
    for (int32_t i = 0; i < 4; i++)
        split_halves(b + 48 + 32 * i, 32, o->codes + 64 * i);
    for (int32_t i = 0; i < 256; i++)
        o->codes[i] = (uint8_t)(o->codes[i] | (b[16 + i % 32] >> (i / 32) & 1) << 4);
}

static void decode_q6_k(const uint8_t *b, const struct out *o)
{
    *o->super_scale = f16_at(b + 208);
    for (int32_t g = 0; g < 16; g++)
        o->sub_scale[g] = (int8_t)b[192 + g];
    split_halves(b, 32, o->codes);
    for (int32_t half = 0; half < 2; half++) {
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        uint8_t *codes = o->codes + 128 * half;
        for (int32_t l = 0; l < 32; l++) {
            codes[l] = (uint8_t)((low[l] & 15) | (high[l] & 3) << 4);
            codes[l + 32] = (uint8_t)((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4);
            codes[l + 64] = (uint8_t)(low[l] >> 4 | (high[l] >> 4 & 3) << 4);
            codes[l + 96] = (uint8_t)(low[l + 32] >> 4 | high[l] >> 6 << 4);
        }
    }
}

static void decode_iq4_xs(const uint8_t *b, const struct out *o)
{
    *o->super_scale = f16_at(b);
    const int32_t high = b[2] | b[3] << 8;
    for (int32_t j = 0; j < 8; j++) {
        const int32_t low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
        o->sub_scale[j] = (int16_t)((low | (high >> (2 * j) & 3) << 4) - 32);
        split_halves(b + 8 + 16 * j, 16, o->codes + 32 * j);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef void decode_fn(const uint8_t *block, const struct out *o);

static const struct kind {
    const char *type, *format;
    decode_fn *decode;
} kinds[] = {
    {"Q4_0", "q4_0", decode_q4_0},     {"Q4_1", "q4_1", decode_q4_1},
    {"Q5_0", "q5_0", decode_q5_0},     {"Q5_1", "q5_1", decode_q5_1},
    {"Q8_0", "q8_0", decode_q8_0},     {"Q2_K", "q2_k", decode_q2_k},
    {"Q3_K", "q3_k", decode_q3_k},     {"Q4_K", "q4_k", decode_q4_k},
    {"Q5_K", "q5_k", decode_q5_k},     {"Q6_K", "q6_k", decode_q6_k},
    {"IQ4_NL", "iq4_nl", decode_q4_0}, {"IQ4_XS", "iq4_xs", decode_iq4_xs},
    {"MXFP4", "mxfp4", decode_mxfp4},  {"NVFP4", "nvfp4", decode_nvfp4},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static int64_t kind_of(const char *type)
{
    for (int64_t i = 0; i < N_KINDS; i++)
        if (strcmp(kinds[i].type, type) == 0)
            return i;
    return -1;
}

static bool heads(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    (void)stem;
    if (head->dtype != QN_DTYPE_NONE)
        return false;
    const struct qni_ggml_type *type = qni_ggml_type_named(head->spelling);
    return type != NULL && type->elements > 1 &&
           qn_file_get_kind(qni_checkpoint_file_of(c, head->name)) == QN_FILE_GGUF;
}

static qn_role role_of(const char *name, int32_t rank)
{
    if (rank == 3)
        return QN_ROLE_EXPERTS;
    return strcmp(name, "token_embd.weight") == 0 ? QN_ROLE_EMBEDDING : QN_ROLE_LINEAR;
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    (void)c;
    const struct qni_tensor *t = &found->part[0];
    const int64_t kind = kind_of(t->spelling);
    if (kind < 0)
        return qni_fail(err, QN_E_FORMAT,
                        "GGUF type %s is not imported: it is no code times a scale; make the file "
                        "again as Q4_K, Q8_0 or another type of docs/checkpoints.md",
                        t->spelling);
    if (t->rank > 3 || t->rank < 1)
        return qni_fail(err, QN_E_FORMAT, "a quantized tensor of %d dimensions is no matrix",
                        (int)t->rank);
    QNI_TRY(qn_format_parse(kinds[kind].format, &found->parts.format, err));
    found->fact[0] = kind;
    found->parts.k = t->shape[t->rank - 1];
    found->parts.n = 1;
    for (int32_t i = 0; i + 1 < t->rank; i++)
        found->parts.n *= t->shape[i]; /* the file's reader has checked the product */
    found->has_supers = found->parts.format.superblock > 0;
    found->experts = t->rank == 3 ? t->shape[0] : 1;
    found->role = role_of(stem, t->rank);
    qni_note(&found->notes, "format: type %s of the tensor", t->spelling);
    qni_note(&found->notes, "shape: dimensions of the tensor, the fastest is k");
    qni_note(&found->notes, "exact");
    return QN_OK;
}

struct rows {
    const struct kind *kind;
    const struct qni_ggml_type *type;
    const uint8_t *from;
    struct qn_weight *w;
};

static void take_row(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct rows *r = arg;
    struct qn_weight *w = r->w;
    const int64_t blocks = w->k / r->type->elements;
    const int64_t groups = r->type->elements / w->format.group;
    const uint8_t *from = r->from + row * blocks * r->type->bytes;
    struct out o = {.codes = w->codes + row * w->k, .scale = w->scale + row * w->n_groups};
    if (w->offset != NULL)
        o.offset = w->offset + row * w->n_groups;
    for (int64_t i = 0; i < blocks; i++) {
        if (w->super_scale != NULL) {
            o.super_scale = w->super_scale + row * w->n_supers + i;
            o.sub_scale = w->sub_scale + row * w->n_groups + i * groups;
        }
        if (w->super_min != NULL) {
            o.super_min = w->super_min + row * w->n_supers + i;
            o.sub_min = w->sub_min + row * w->n_groups + i * groups;
        }
        r->kind->decode(from, &o);
        from += r->type->bytes;
        o.codes += r->type->elements;
        o.scale += groups;
        o.offset = o.offset == NULL ? NULL : o.offset + groups;
    }
    if (w->super_scale != NULL)
        qni_weight_fill_row(w, row);
    rounding->groups += w->n_groups;
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    (void)err;
    const struct qni_tensor *t = &found->part[0];
    struct rows r = {&kinds[found->fact[0]], qni_ggml_type_named(t->spelling), t->data, w};
    r.from += first * (w->k / r.type->elements) * r.type->bytes;
    qni_import_rows(ctx, w->n, take_row, &r, rounding);
    return QN_OK;
}

const struct qni_importer qni_import_gguf = {
    .name = "gguf", .parts = {""}, .named = "", .heads = heads, .find = find, .load = load,
    .along_k = {2}};
