/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA backend gives to src/api: the functions of the CPU's backend.h, under their own
 * names. Plain C without CUDA's headers; whether it is built in is the matter of src/api. */
#ifndef QNI_CUDA_BACKEND_H
#define QNI_CUDA_BACKEND_H

#include <quern/cuda.h>
#include <quern/ops.h>

#include "../base/context.h"
#include "../quant/canonical.h"
#include "../quant/op.h"
#include "../quant/packed.h"
#include "blas.h"

struct qni_cuda_kernel; /* a row of matmul/kernels.inc, or of the dense tier */

/* The terms of the cost model: us = t0 + max( bytes / bandwidth, steps * block_ns ) + before. */
struct qni_cuda_terms {
    double bytes; /* that must move */
    double steps; /* turns * blocks: what a multiprocessor does one after another */
    double before_us;
};

/* What the dense tier needs of a choice (matmul/dense.h). */
enum { QNI_CUDA_MAX_ALGOS = 4 };
struct qni_cuda_dense {
    int64_t k;       /* that are multiplied: of x as it lies, or packed positions */
    int64_t outputs; /* whose weights are written out at once: whole panels */
    int64_t rows;    /* of a product */
    int32_t reads_x, is_direct; /* x as it lies and y by cuBLASLt itself, if they are aligned */
    size_t weights_bytes, rows_bytes, sums_bytes, workspace_bytes, scratch_bytes;
    int32_t n_algos;
    struct qni_cuda_dense_algo {
        int64_t m; /* for at most so many rows; falling */
        struct qni_cuda_gemm_algo how;
    } algo[QNI_CUDA_MAX_ALGOS];
};

/* What was chosen for an operation and every smaller m. Plain data, no pointer into the heap. */
struct qni_cuda_choice {
    int32_t n_choices; /* rows in use, by rising m */
    int64_t m_from[QNI_MAX_CHOICES];
    const struct qni_cuda_kernel *kernel[QNI_MAX_CHOICES];
    const struct qni_cuda_kernel *main; /* the row for the largest m; NULL: depthwise */
    /* Float strategy: for a row that rounds weights, where a run brings some that are not exact. */
    const struct qni_cuda_kernel *unrounded;
    int32_t is_depthwise;
    int32_t is_fallback;
    int32_t reads_x;     /* 1: rows of x are read as they lie if they are 16-byte aligned */
    int64_t chunk;       /* rows (of each part) that are prepared at once */
    size_t chunk_bytes;  /* prepared rows */
    size_t routes_bytes; /* tiles and rows of a grouped product, with what makes them */
    size_t fp8_bytes;    /* rows of e4m3 as floats: fp8.h */
    size_t gate_bytes;   /* what a gate is made of, in f32: backend.c */
    size_t even_bytes;   /* where the rows of a batch begin */
    size_t scratch_bytes;
    int64_t n;                        /* outputs of a part */
    const char *note;                 /* for the plan's text; static, or NULL */
    double predicted_us, roofline_us; /* for the planned m */
    struct qni_cuda_terms terms;
    struct qni_cuda_dense dense; /* where one of the kernels is of the dense tier */
};

/* Pure: depends on op and on the facts of the context's device. QN_E_UNSUPPORTED if no row serves;
 * tell may be NULL. */
qn_status qni_cuda_select(const qn_ctx *ctx, const struct qni_op *op,
                          struct qni_cuda_choice *choice, qni_refusal_fn tell, void *arg);
/* Launches, and does not wait. op: as selected, m at most that of the selection. scratch:
 * choice->scratch_bytes on the device, 64-byte aligned. QN_E_DEVICE: a pointer is of another place,
 * or CUDA refuses. */
qn_status qni_cuda_run(const qn_ctx *ctx, const struct qni_op *op,
                       const struct qni_cuda_choice *choice, void *scratch, qn_error *err);
/* qn_cuda_get_cost(), qn_cuda_set_cost(): arguments are not NULL. */
qn_status qni_cuda_get_cost(const qn_ctx *ctx, int32_t i, qn_cuda_cost *cost, qn_error *err);
qn_status qni_cuda_set_cost(qn_ctx *ctx, const qn_cuda_cost *cost, qn_error *err);
/* kernel may be NULL: depthwise. Static texts: the row's name, and for which GPUs it is. */
const char *qni_cuda_kernel_name(const struct qni_cuda_choice *choice,
                                 const struct qni_cuda_kernel *kernel);
const char *qni_cuda_kernel_machine(const struct qni_cuda_kernel *kernel);

qn_status qni_cuda_pack_bytes(const qn_ctx *ctx, const struct qn_weight *w,
                              const qn_pack_options *options, size_t *bytes, qn_error *err);
qn_status qni_cuda_pack(const qn_ctx *ctx, const struct qn_weight *w,
                        const qn_pack_options *options, struct qn_packed **packed, qn_error *err);
qn_status qni_cuda_unpack(const qn_ctx *ctx, const struct qn_packed *packed,
                          struct qn_weight **weight, qn_error *err);
const char *qni_cuda_layout_name(int32_t i);
/* For weights from files, after qni_packed_head_check(); their blob is in host memory. */
qn_status qni_cuda_packed_check(const struct qn_packed *packed, qn_error *err);
/* Weights that have passed that check, from host memory to the context's device. */
qn_status qni_cuda_packed_upload(const qn_ctx *ctx, const struct qn_packed *host,
                                 struct qn_packed **packed, qn_error *err);

qn_status qni_cuda_combine_rows(const qn_ctx *ctx, const qn_combine_rows_args *args, qn_error *err);
/* The activation quantizer on its own; all arguments validated. Launches, and does not wait. */
qn_status qni_cuda_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args,
                                 qn_error *err);

#endif
