/* SPDX-License-Identifier: Apache-2.0 */
/* A weight as blocks of a GGUF type: "gguf" takes the first type below that holds every value, and
 * "gguf:q4_1" only that one. Blocks are in blocks.c and blocks_k.c. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "../../base/context.h"
#include "../../base/error.h"
#include "../../base/size.h"
#include "../gguf.h"
#include "export.h"

enum { TYPE }; /* fact: of qni_blocks */

static bool is_named(const char *type, const char *asked)
{
    for (; *type != 0 && *asked != 0; type++, asked++)
        if (tolower((unsigned char)*type) != tolower((unsigned char)*asked))
            return false;
    return *type == *asked;
}

struct question {
    const struct qn_weight *w;
    const struct qni_block *block;
    int64_t elements, bytes, each;
    uint8_t *out;   /* NULL: only ask */
    int64_t bad_at; /* 1 + row * k + p; atomic */
};

/* The first place of all, whichever thread finds its own first. */
static bool is_before(struct question *q, int64_t place)
{
    const int64_t bad = __atomic_load_n(&q->bad_at, __ATOMIC_RELAXED);
    return bad != 0 && bad < place;
}

static void note_bad(struct question *q, int64_t place)
{
    int64_t bad = __atomic_load_n(&q->bad_at, __ATOMIC_RELAXED);
    while ((bad == 0 || place < bad) &&
           !__atomic_compare_exchange_n(&q->bad_at, &bad, place, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        continue;
}

static void run_blocks(void *arg, int32_t item)
{
    struct question *q = arg;
    const int64_t first = item * q->each, last = qni_min(first + q->each, q->w->n);
    for (int64_t row = first; row < last; row++) {
        if (is_before(q, 1 + row * q->w->k))
            return;
        for (int64_t p = 0; p < q->w->k; p += q->elements) {
            uint8_t *out =
                q->out == NULL
                    ? NULL
                    : q->out + (row * (q->w->k / q->elements) + p / q->elements) * q->bytes;
            if (!q->block->put(q->w, row, p, out)) {
                note_bad(q, 1 + row * q->w->k + p);
                return;
            }
        }
    }
}

/* 0: all blocks hold their values; else 1 + the place of one that does not; -1: rows are no whole
 * blocks. */
static int64_t for_blocks(const struct qn_export *x, const struct qni_block *block, uint8_t *out)
{
    const struct qni_ggml_type *type = qni_ggml_type_named(block->type);
    struct question q = {x->w, block, type->elements, type->bytes, 0, out, 0};
    if (x->w->k % type->elements != 0)
        return -1;
    q.each = qni_ceil_div(x->w->n, 64);
    qni_parallel(&x->ctx->threads, (int32_t)qni_ceil_div(x->w->n, q.each), run_blocks, &q);
    return q.bad_at;
}

static qn_status refuse(const struct qn_export *x, int64_t bad, const char *type, qn_error *err)
{
    const struct qn_weight *w = x->w;
    if (bad < 0)
        return qni_fail(err, QN_E_SHAPE, "%lld columns are no whole blocks of any type for it",
                        (long long)w->k);
    const int64_t row = (bad - 1) / w->k, at = qni_block_at(w, row, (bad - 1) % w->k);
    char shift[48] = "";
    if (w->offset != NULL)
        snprintf(shift, sizeof shift, ", offset %.9g", (double)w->offset[at]);
    if (w->zero != NULL)
        snprintf(shift, sizeof shift, ", zero point %d", (int)w->zero[at]);
    return qni_fail(err, QN_E_VALUE,
                    "row %lld, columns from %lld on: scale %.9g%s with codes of %d bits are no "
                    "block of %s",
                    (long long)row, (long long)((bad - 1) % w->k), (double)w->scale[at], shift,
                    (int)w->format.bits, type);
}

static qn_status check(struct qn_export *x, qn_error *err)
{
    const char *asked = qni_export_asked(x);
    int64_t bad = -1, reason = -1;
    bool is_known = asked[0] == 0;
    if (x->w->perm != NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "its columns are in another order (act-order), which "
                        "GGUF does not have");
    for (int64_t i = 0; qni_blocks[i].type != NULL; i++) {
        if (asked[0] != 0 && !is_named(qni_blocks[i].type, asked))
            continue;
        is_known = true;
        bad = for_blocks(x, &qni_blocks[i], NULL);
        if (bad != 0) {
            reason = bad > 0 ? bad : reason;
            continue;
        }
        x->fact[TYPE] = i;
        x->bits = x->w->format.bits;
        x->is_symmetric = x->w->zero == NULL && x->w->offset == NULL;
        x->group = qni_ggml_type_named(qni_blocks[i].type)->elements;
        strcpy(x->kind, qni_blocks[i].type);
        return QN_OK;
    }
    if (!is_known)
        return qni_fail(err, QN_E_ARGUMENT, "no block type %s is written", asked);
    return refuse(x, reason, asked[0] != 0 ? asked : "any type", err);
}

static qn_status write(struct qn_export *x, qn_error *err)
{
    const struct qni_block *block = &qni_blocks[x->fact[TYPE]];
    const struct qni_ggml_type *type = qni_ggml_type_named(block->type);
    const int64_t row_bytes = x->w->k / type->elements * type->bytes;
    struct qni_out *out = qni_export_add(x, ".weight", QN_DTYPE_NONE, x->w->n, row_bytes, err);
    if (out == NULL)
        return QN_E_MEMORY;
    out->type = type->name;
    out->shape[1] = x->w->k;
    for_blocks(x, block, out->data);
    return QN_OK;
}

const struct qni_exporter qni_export_gguf = {.name = "gguf", .check = check, .write = write};
