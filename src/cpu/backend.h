/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU backend gives to src/api. Another backend gives the same functions under its own
 * name. */
#ifndef QNI_CPU_BACKEND_H
#define QNI_CPU_BACKEND_H

#include <quern/ops.h>

#include "../base/context.h"
#include "../quant/canonical.h"
#include "../quant/op.h"
#include "../quant/packed.h"
#include "../quant/rows.h"
#include "conv/cut.h"
#include "matmul/cut.h"

struct qni_matmul_kernel; /* a row of matmul/kernels.inc */
struct qni_conv_kernel;   /* a row of conv/kernels.inc */

/* What was chosen for an operation and every smaller m. Plain data, no pointer into the heap: copy
 * freely. */
struct qni_cpu_choice {
    int32_t n_choices;               /* rows in use, by rising m */
    int64_t m_from[QNI_MAX_CHOICES]; /* first m that row i serves */
    const struct qni_matmul_kernel *kernel[QNI_MAX_CHOICES];
    /* The row that runs instead where data rule row i out; NULL: they cannot. */
    const struct qni_matmul_kernel *stand_in[QNI_MAX_CHOICES];
    const struct qni_matmul_kernel *main; /* the row for the largest m */
    double predicted_us;                  /* by the cost model; 0: it has no line of main */
    double cost_times; /* what the context multiplies the cost of main with; 0: not set */
    /* rows of x prepared and multiplied at once */
    int64_t block_m;
    int64_t panels_per_task;
    int32_t n_threads;
    int32_t is_fallback;
    const struct qni_conv_kernel *conv; /* a row of the table of convolutions; NULL: of matmul */
    union {
        struct qni_conv_cut conv;       /* conv is not NULL */
        struct qni_product_cut product; /* conv is NULL */
    } cut;
    /* prepared rows, shared by all threads */
    size_t shared_bytes;
    size_t thread_bytes; /* private scratch of each */
    size_t fp8_bytes;    /* of rows as f32: fp8.h */
    size_t scratch_bytes;
};

/* Pure: depends on op and ctx alone. QN_E_UNSUPPORTED if no row serves; tell may be NULL. */
qn_status qni_cpu_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                         qni_refusal_fn tell, void *arg);
/* op: as selected, m at most that of the selection. scratch: choice->scratch_bytes, 64-byte
 * aligned. */
qn_status qni_cpu_run(const qn_ctx *ctx, const struct qni_op *op,
                      const struct qni_cpu_choice *choice, void *scratch);
/* qn_cpu_get_cost() and qn_cpu_set_cost(); arguments are not NULL. */
qn_status qni_cpu_cost_get(const qn_ctx *ctx, int32_t i, qn_cpu_cost *cost, qn_error *err);
qn_status qni_cpu_cost_set(qn_ctx *ctx, const qn_cpu_cost *cost, qn_error *err);
const char *qni_cpu_kernel_name(const struct qni_matmul_kernel *kernel);
uint64_t qni_cpu_kernel_needs(const struct qni_matmul_kernel *kernel);

qn_status qni_cpu_pack_bytes(const qn_ctx *ctx, const struct qn_weight *w,
                             const qn_pack_options *options, size_t *bytes, qn_error *err);
qn_status qni_cpu_pack(const qn_ctx *ctx, const struct qn_weight *w, const qn_pack_options *options,
                       struct qn_packed **packed, qn_error *err);
qn_status qni_cpu_unpack(const qn_ctx *ctx, const struct qn_packed *packed,
                         struct qn_weight **weight, qn_error *err);
/* Arguments are checked. */
qn_status qni_cpu_pack_into(const qn_ctx *ctx, const struct qn_weight *w,
                            const qn_pack_options *options, void *buffer, size_t buffer_bytes,
                            struct qn_packed **packed, qn_error *err);
struct qni_weight_source; /* src/quant/pack.h */
qn_status qni_cpu_pack_source(const qn_ctx *ctx, struct qni_weight_source *source,
                              const qn_pack_options *options, struct qn_packed **packed,
                              qn_error *err);
void qni_cpu_packed_rows(const qn_ctx *ctx, const struct qn_packed *packed,
                         const struct qni_row_lookup *rows);
const char *qni_cpu_layout_name(int32_t i);
/* May this blob be run? For weights from files, after qni_packed_head_check(): the layout is one of
 * ours, sections are as long as it says, and no index leaves its row. */
qn_status qni_cpu_combine_rows(const qn_ctx *ctx, const qn_combine_rows_args *args, qn_error *err);
/* Memory for the rows of op->x; op has weights, strategy and x. */
size_t qni_cpu_prepare_bytes(const qn_ctx *ctx, const struct qni_op *op);
void qni_cpu_prepare(const qn_ctx *ctx, const struct qni_op *op, void *memory);
/* May op read its op->prepared, which is aligned memory? *bytes: how long it is. QN_E_VALUE: not
 * what qn_prepare() leaves; QN_E_SHAPE, QN_E_DTYPE, QN_E_ARGUMENT, QN_E_LAYOUT: err says what
 * differs. */
qn_status qni_cpu_prepared_check(const struct qni_op *op, size_t *bytes, qn_error *err);
qn_status qni_cpu_packed_check(const struct qn_packed *packed, qn_error *err);

/* The activation quantizer on its own; all arguments validated. */
qn_status qni_cpu_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args);

/* y = epilogue(x), likewise; op has no weights. */
void qni_cpu_finish(const qn_ctx *ctx, const struct qni_op *op);

#endif
