/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of convolutions: a row of the table is chosen once, and the loops of its algorithm
 * plan and run it. Where no row serves it is a product of patches. */
#include "conv.h"

#include <string.h>

#include "../../quant/reasons.h"
#include "../matmul/product.h"

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

void qni_conv_run(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                  void *scratch)
{
    if (choice->conv == NULL) {
        qni_patches_run(ctx, op, choice, scratch);
    } else if (is_cut_for(op, &choice->cut.conv)) {
        driver_of(choice->conv)->run(ctx, op, choice, scratch);
    } else {
        struct qni_cpu_choice own = *choice;
        cut_for(ctx, op, choice->conv, &own.cut.conv);
        driver_of(choice->conv)->run(ctx, op, &own, scratch);
    }
}
