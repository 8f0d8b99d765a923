/* SPDX-License-Identifier: Apache-2.0 */
/* One operation through the public API, on every ISA mask, with every kernel that takes it, on
 * several thread counts, planned and direct: what the suites api.* share. */
#ifndef CHECK_SWEEP_H
#define CHECK_SWEEP_H

#include "harness/harness.h"

enum { SWEEP_MAX_EXPERTS = 6, SWEEP_MAX_OPERANDS = 12 };

/* The four calls of an operation. args is its argument struct; `sweep` sets what changes from run
 * to run through set(). */
struct sweep_calls {
    const char *name;
    qn_status (*plan)(const qn_ctx *ctx, const void *args, qn_plan **plan, qn_error *err);
    qn_status (*run)(const qn_plan *plan, const void *args, void *scratch, size_t bytes);
    qn_status (*direct)(const qn_ctx *ctx, const void *args, void *scratch, size_t bytes);
    qn_status (*scratch)(const qn_ctx *ctx, const void *args, size_t *bytes);
    void (*set)(void *args, const qn_packed *const *w, const char *kernel);
};
extern const struct sweep_calls sweep_matmul, sweep_grouped, sweep_conv2d, sweep_conv_transpose2d;

struct sweep {
    const struct sweep_calls *calls;
    void *args;
    int32_t n_experts; /* 1 but for grouped */
    const struct check_weight *weights;
    int64_t x_block;      /* pack option */
    const char *layout;   /* pack option; where it is refused, the default */
    int32_t without_sums; /* pack option */
    qn_status refusal;    /* QN_OK, or what planning must return */
    struct qni_ref_op op; /* made from args by the suite; x_block is filled in by sweep_run() */
    qn_tensor *operand[SWEEP_MAX_OPERANDS]; /* of args: what goes to the device; y is the first */
    int32_t n_operands;
    int32_t data;
};

/* Tell of a tensor of args, y first (and of an epilogue's tensors); one of rank 0 is none. */
void sweep_use(struct sweep *s, qn_tensor *operand);
void sweep_use_epilogue(struct sweep *s, qn_epilogue *epilogue);
void sweep_run(struct check *c, struct sweep *s);
/* One row alone, with all features: it must not refuse. */
void sweep_run_row(struct check *c, struct sweep *s, const char *kernel);

/* An epilogue of random parts for a y of m rows, n columns (rank 2) or an image. n_experts > 1:
 * bias and col_scale may be by expert. one_unit: an i32 bias is allowed (int8-static). */
struct sweep_epilogue {
    const qn_tensor *y;
    int64_t m, n;
    int32_t n_experts;
    bool image, one_unit;
    qn_epilogue_more *more; /* fresh from its init */
};
void sweep_draw_epilogue(struct check *c, const struct sweep_epilogue *o, qn_epilogue *epilogue);

/* Small weights for very large x? Only where the numbers promise that no sum overflows on the way
 * (docs/numerics.md). */
bool sweep_draw_small(struct check *c, qn_strategy strategy, int32_t data);
/* NULL (mostly), or the name of a layout that kernels of this strategy read. */
const char *sweep_draw_layout(struct check *c, qn_strategy strategy);
/* Types of x and y for a strategy. raw: y may be i32. */
qn_dtype sweep_draw_x_type(struct check *c, qn_strategy strategy);
qn_dtype sweep_draw_y_type(struct check *c, qn_strategy strategy, bool raw);
void sweep_draw_quant(struct check *c, qn_strategy strategy, qn_dtype x_type, qn_quant_args *quant);
/* Scales of given e4m3 codes, or none. */
qn_tensor sweep_draw_x_scales(struct check *c, qn_strategy strategy, const qn_tensor *x);
bool sweep_is_int8(qn_strategy strategy);
bool sweep_is_fp8(qn_strategy strategy);
/* Integer weights whose sums are in one unit: one group, no offset. */
bool sweep_is_one_unit(const struct check_weight *weight);

#endif
