/* SPDX-License-Identifier: Apache-2.0 */
/* MXFP4 in blocks, as gpt-oss has its experts, w = e2m1 2^(s - 127):
 *
 *     X_blocks   u8 [experts, N, K / 32, 16]: consecutive pairs along K, the first in the low half
 *     X_scales   u8 (or E8M0) [experts, N, K / 32]
 *
 * or without experts, a dimension less. The weight is called X, and its rows are those of all
 * experts, one below the other. gate_up_proj has rows of gate and up in turn, and keeps them so.
 * Example: byte 0x97 with the scale 0x80 (2): 12 and -1. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/size.h"
#include "../codes.h"
#include "import.h"

enum { BLOCKS, SCALES };
enum { BLOCK = 32, BLOCK_BYTES = 16 };

static bool is_bytes(const struct qni_tensor *t)
{
    return t->data != NULL && (t->dtype == QN_U8 || t->dtype == QN_E8M0);
}

/* Other programs end names so, too: the types and dimensions decide. */
static bool heads(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    struct qni_tensor scales;
    return head->dtype == QN_U8 && (head->rank == 3 || head->rank == 4) &&
           head->shape[head->rank - 1] == BLOCK_BYTES &&
           qni_checkpoint_part(c, stem, "_scales", &scales) && is_bytes(&scales);
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    const struct qni_tensor *q = &found->part[BLOCKS];
    struct qni_tensor *s = &found->part[SCALES];
    const bool has_experts = q->rank == 4;
    const int64_t *const shape = q->shape + has_experts;
    const int64_t experts = has_experts ? q->shape[0] : 1;
    (void)c;
    (void)stem;
    if (s->rank != q->rank - 1 ||
        memcmp(s->shape, q->shape, (size_t)s->rank * sizeof *s->shape) != 0)
        return qni_fail(err, QN_E_SHAPE, "_scales has not one scale for each block of _blocks");
    if (experts < 1 || !qni_i64_mul(experts, shape[0], &found->parts.n) ||
        shape[1] > INT32_MAX / BLOCK)
        return qni_fail(err, QN_E_SHAPE, "_blocks has no experts, or is larger than any weight");
    found->parts.k = shape[1] * BLOCK;
    QNI_TRY(qn_format_parse("mxfp4", &found->parts.format, err));
    s->dtype = QN_E8M0; /* also where it is declared as bytes */
    found->experts = experts;
    found->role = has_experts ? QN_ROLE_EXPERTS : QN_ROLE_LINEAR;
    qni_note(&found->notes, "format: mxfp4, from the types and shapes of _blocks and _scales");
    if (has_experts)
        qni_note(&found->notes, "experts: %lld, the first dimension", (long long)experts);
    qni_note(&found->notes, "exact");
    return QN_OK;
}

static void take_row(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct qni_source *x = arg;
    struct qn_weight *w = x->w;
    const int64_t n = x->first + row, blocks = w->n_groups;
    qni_codes_unpack(x->f->part[BLOCKS].data + n * blocks * BLOCK_BYTES, (size_t)w->k, 4,
                     w->codes + row * w->k);
    for (int64_t g = 0; g < blocks; g++)
        w->scale[row * blocks + g] = qni_import_float(&x->f->part[SCALES], n * blocks + g);
    rounding->groups += blocks;
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    (void)err;
    qni_import_weight(ctx, found, first, w, take_row, rounding);
    return QN_OK;
}

const struct qni_importer qni_import_mx_blocks = {
    .name = "mxfp4",
    .parts = {"_blocks", "_scales"},
    .named = "",
    .heads = heads,
    .find = find,
    .load = load,
};
