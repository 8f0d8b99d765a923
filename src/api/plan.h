/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: a validated operation and what the backend chose for it. */
#ifndef QNI_API_PLAN_H
#define QNI_API_PLAN_H

#include "backend.h"

/*
 * Complete in itself: neither the caller's arguments nor the weights are needed to explain it.
 * Nothing in it changes after creation but the bits that note which rows ran, so any number of
 * threads may run it.
 */
struct qn_plan {
    const qn_ctx *ctx;
    const struct qni_backend *backend;
    size_t bytes;           /* of this struct with its tail */
    _Atomic uint32_t ran;   /* bits of QNI_RAN_... */
    _Atomic uint32_t *note; /* of a run: &ran */
    union qni_choice choice;
    struct qni_op op;          /* as planned, data pointers NULL; w is the tail below */
    struct qn_packed stand_in; /* weights with a head and a codebook and nothing else */
    struct qni_packed_head head;
    float table[256];     /* the codebook */
    const qn_packed *w[]; /* [op.n_w], each the stand-in */
};

/* What the backend chooses. A strict operation's fallback is refused, and stands in choice. */
qn_status qni_choose(const qn_ctx *ctx, const struct qni_op *op, union qni_choice *choice,
                     qn_error *err);
/* op as validated without data. */
qn_status qni_plan_create(const qn_ctx *ctx, const struct qni_op *op, qn_plan **plan,
                          qn_error *err);
/* op as validated with data: is it what was planned, and run it. */
qn_status qni_plan_run(const qn_plan *plan, const struct qni_op *op, void *scratch,
                       size_t scratch_bytes, qn_error *err);
/* Choose and run without a plan. */
qn_status qni_direct_run(const qn_ctx *ctx, const struct qni_op *op, void *scratch,
                         size_t scratch_bytes, qn_error *err);
qn_status qni_direct_scratch(const qn_ctx *ctx, const struct qni_op *op, size_t *bytes,
                             qn_error *err);

/* qn_plan_explain() of op as validated without data, whether it can be planned or not. */
size_t qni_explain(const qn_ctx *ctx, const struct qni_op *op, char *text, size_t capacity);
/* The explanation where the arguments were refused: the reason why. */
size_t qni_explain_error(const qn_error *err, char *text, size_t capacity);

/* "matmul", ... of a qni_op. Static text. */
const char *qni_kind_name(int32_t kind);

#endif
