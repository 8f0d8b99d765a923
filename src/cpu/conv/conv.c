/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of convolutions: a row of the table is chosen once, its algorithm cuts the work for a
 * plan, and every run follows that cut (driver.h). Where no row serves, a convolution is a product
 * of its patches. */
#include "driver.h"

#include <string.h>

#include "../../base/half.h"
#include "../../quant/reasons.h"
#include "../matmul/product.h"
#include "../rows/rows.h"

static const struct qni_conv_driver *driver_of(const struct qni_conv_kernel *kernel)
{
    switch (kernel->algorithm) {
    case QNI_CONV_GROUPS:
    case QNI_CONV_WORDS:
        return &qni_groups_driver;
    case QNI_CONV_CODES:
    case QNI_CONV_IMAGE:
        return &qni_image_driver;
    case QNI_CONV_RING:
        return &qni_ring_driver;
    default:
        return &qni_direct_driver;
    }
}

static void cut_for(const qn_ctx *ctx, const struct qni_op *op,
                    const struct qni_conv_kernel *kernel, struct qni_conv_cut *cut)
{
    const struct qni_packed_head *const head = op->w[0]->head;
    cut->batch = op->conv.batch;
    memcpy(cut->xs, op->conv.xs, sizeof cut->xs);
    memcpy(cut->ys, op->conv.ys, sizeof cut->ys);
    cut->packed_bytes = (size_t)head->bytes;
    cut->codes_offset = (size_t)head->section[QNI_SECTION_CODES].offset;
    driver_of(kernel)->cut(ctx, op, kernel, cut);
}

/* Is this the problem that the cut was made for? */
static bool is_cut_for(const struct qni_op *op, const struct qni_conv_cut *cut)
{
    const struct qni_packed_head *const head = op->w[0]->head;
    return cut->batch == op->conv.batch && memcmp(cut->xs, op->conv.xs, sizeof cut->xs) == 0 &&
           memcmp(cut->ys, op->conv.ys, sizeof cut->ys) == 0 && cut->packed_bytes == head->bytes &&
           cut->codes_offset == head->section[QNI_SECTION_CODES].offset;
}

qn_status qni_conv_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                          qni_refusal_fn tell, void *arg)
{
    const struct qni_conv_kernel *const chosen = qni_conv_choose(ctx, op, tell, arg);
    const bool is_depthwise = qni_is_depthwise(op);
    if (chosen == NULL && !is_depthwise)
        return qni_patches_select(ctx, op, choice, tell, arg);
    for (int32_t i = 0; tell != NULL && qni_matmul_kernel_at(i) != NULL; i++)
        tell(arg, qni_matmul_kernel_at(i)->name,
             is_depthwise ? QNI_WHY_LONE : "a row that makes no patches serves");
    if (chosen == NULL)
        return QN_E_UNSUPPORTED;
    memset(choice, 0, sizeof *choice);
    choice->conv = chosen;
    choice->n_choices = 1;
    choice->m_from[0] = 1;
    choice->kernel[0] = choice->main = &chosen->row;
    choice->n_threads = ctx->threads.n_threads;
    choice->cut.conv.stand_in = qni_conv_stand_in(ctx, chosen);
    if (choice->cut.conv.stand_in != NULL)
        choice->stand_in[0] = &choice->cut.conv.stand_in->row;
    cut_for(ctx, op, chosen, &choice->cut.conv);
    driver_of(chosen)->plan(ctx, op, choice);
    choice->scratch_bytes = choice->shared_bytes + (size_t)choice->n_threads * choice->thread_bytes;
    return QN_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void run_cut(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                    const struct qni_conv_cut *cut, void *scratch)
{
    struct qni_conv_run run = {
        .ctx = ctx,
        .op = op,
        .kernel = choice->conv,
        .stand_in = cut->stand_in,
        .cut = cut,
        .rows = qni_rows_for(ctx->isa),
        .shared = scratch,
        .shared_bytes = choice->shared_bytes,
        .thread_bytes = choice->thread_bytes,
        .n_threads = choice->n_threads,
    };
    run.patches = qni_patches_of(op, run.rows, 0, 0, false);
    const struct qni_row_sink sink = qni_conv_sink(op, &run.patches);
    run.epilogue = qni_epilogue_make(op, run.rows, &sink);
    driver_of(choice->conv)->run(&run);
}

void qni_conv_run(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                  void *scratch)
{
    if (choice->conv == NULL) {
        qni_patches_run(ctx, op, choice, scratch);
    } else if (is_cut_for(op, &choice->cut.conv)) {
        run_cut(ctx, op, choice, &choice->cut.conv, scratch);
    } else {
        struct qni_conv_cut own = {.stand_in = choice->cut.conv.stand_in};
        cut_for(ctx, op, choice->conv, &own);
        run_cut(ctx, op, choice, &own, scratch);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

static void begin_worker(void *arg, int32_t index)
{
    struct qni_conv_run *const run = arg;
    struct qni_conv_worker worker = {
        .run = run,
        .memory = run->shared + run->shared_bytes + (size_t)index * run->thread_bytes,
        .at = index * run->owned,
        .end = (index + 1) * run->owned,
    };
    run->thread(run->arg, &worker);
}

void qni_conv_share(struct qni_conv_run *run, int64_t n_items, bool has_owners,
                    qni_conv_thread_fn *thread, void *arg)
{
    const int64_t workers = qni_min(run->n_threads, n_items);
    if (workers <= 0)
        return;
    /* Of each worker all where there are few, three quarters where there are many. */
    const int64_t each = n_items / workers;
    run->owned = !has_owners ? 0 : each < 4 ? each : each * 3 / 4;
    run->n_items = n_items;
    run->thread = thread;
    run->arg = arg;
    atomic_store(&run->next, run->owned * workers);
    qni_parallel(&run->ctx->threads, (int32_t)workers, begin_worker, run);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

bool qni_conv_stores_bytes(const struct qni_conv_run *run, bool is_raw)
{
    const struct qni_op *const op = run->op;
    const qn_epilogue *const e = &op->epilogue;
    const qn_tensor *const bias = &e->bias;
    const bool is_bytes = op->y.dtype == QN_I8 || op->y.dtype == QN_U8;
    /* A bias of int32 is among the sums, or they leave the kernel as they are. */
    return is_bytes && !is_raw && e->residual.rank == 0 && e->row_scale.rank == 0 &&
           e->col_scale.rank == 0 && (e->act == QN_ACT_NONE || e->act == QN_ACT_RELU) &&
           !run->epilogue.finish.has_clamp &&
           (bias->rank == 0 || bias->dtype == QN_F32 || bias->dtype == QN_I32);
}

static float size_of(float v)
{
    return qni_float_of(qni_bits_of(v) & 0x7fffffffu);
}

bool qni_conv_is_bounded(const struct qni_conv_run *run, const float *scale, const float *bias,
                         const int32_t *sum_bias, float most_bias, int64_t n)
{
    const float y_inv = run->epilogue.finish.y_inv, x_scale = size_of(run->epilogue.x_scale);
    const float dot = 255.0f * 128.0f * (float)run->op->k * x_scale;
    uint32_t unbounded = 0; /* NaN are */
    for (int64_t j = 0; j < n; j++) {
        const float sum = sum_bias != NULL ? size_of((float)sum_bias[j]) * x_scale : 0.0f;
        const float added = bias != NULL ? size_of(bias[j]) : most_bias;
        const float size = size_of(scale[j]) * (dot + sum) + added;
        unbounded |= (uint32_t) !(size * y_inv < 0x1p21f);
    }
    return unbounded == 0;
}
