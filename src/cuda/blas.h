/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt as the plain C of this folder sees it; blas.c alone knows its header. The library is
 * never linked: the first plan of the dense strategy on a context opens it by name, makes a handle
 * and keeps both until the context is closed. A machine without it, or a build without its header,
 * has no dense tier, and a sentence that says so.
 *
 *     D[m, n] = alpha * X[m, k] . W[n, k]^T          rows of all three side by side
 *
 * Products of f16 or bf16, sums in f32. How a product is cut is asked of the library's heuristics
 * once, by qni_cuda_blas_find(), and kept by who asked; split sums go through workspace in f32 and
 * are added up in a fixed order, so that equal calls give equal bits. qni_cuda_blas_run() joins the
 * stream, and neither waits nor takes device memory. */
#ifndef QNI_CUDA_BLAS_H
#define QNI_CUDA_BLAS_H

#include "../base/context.h"

struct qni_cuda_blas;

struct qni_cuda_gemm {
    int64_t m, n, k;
    int64_t ldx, ldw, ldd; /* elements */
    qn_dtype dtype;        /* of X and W: f16 or bf16 */
    qn_dtype d_dtype;      /* that, or f32 */
    int32_t d_alignment;   /* bytes, of D and its rows; X and W: 16 */
};

/* An algorithm of the library, as it tells it. It serves any m, n and strides, aligned as well. */
struct qni_cuda_gemm_algo {
    uint64_t words[8];
    uint64_t workspace_bytes; /* 16-byte aligned */
};

/* A place for the library, where nothing is opened yet. NULL: no memory. */
struct qni_cuda_blas *qni_cuda_blas_make(const qn_ctx *ctx);
/* Closes what was opened. blas may be NULL. */
void qni_cuda_blas_close(const qn_ctx *ctx, struct qni_cuda_blas *blas);
/* The context's library, opened if need be. Any thread. NULL: *why says why, a static text. */
const struct qni_cuda_blas *qni_cuda_blas_of(const qn_ctx *ctx, const char **why);

/* How to do this product with at most so much workspace. QN_E_UNSUPPORTED. The context's device is
 * current. */
qn_status qni_cuda_blas_find(const struct qni_cuda_blas *blas, const struct qni_cuda_gemm *gemm,
                             size_t workspace_bytes, struct qni_cuda_gemm_algo *algo);

struct qni_cuda_gemm_data {
    const void *x, *w;
    void *d;
    void *workspace;
    float alpha;
};
/* QN_E_DEVICE. The context's device is current; stream: a cudaStream_t. */
qn_status qni_cuda_blas_run(const struct qni_cuda_blas *blas, const struct qni_cuda_gemm *gemm,
                            const struct qni_cuda_gemm_algo *algo,
                            const struct qni_cuda_gemm_data *data, void *stream, qn_error *err);

#endif
