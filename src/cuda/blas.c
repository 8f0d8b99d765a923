/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that names cuBLASLt: blas.h. Its matrices are stored by columns, so a row-major
 * D = X W^T is told as its transpose, D^T[n, m] = (W^T)^T[n, k] X^T[k, m], which is how they lie.
 * Descriptors are made on the stack; what the library keeps on the host is its own matter. */
#include "blas.h"

#include <stdatomic.h>
#include <string.h>

#include "../base/error.h"
#include "device.h"

#if QN_HAS_CUBLASLT

#include <cublasLt.h>
#include <dlfcn.h>

/* ---- the library ----------------------------------------------------------------------------- */

#define QNI_BLAS_CALLS(call)                                                                       \
    call(cublasLtCreate) call(cublasLtDestroy) call(cublasLtGetVersion) call(cublasLtMatmul)       \
        call(cublasLtMatmulAlgoGetHeuristic) call(cublasLtMatmulDescInit_internal)                 \
            call(cublasLtMatmulDescSetAttribute) call(cublasLtMatrixLayoutInit_internal)           \
                call(cublasLtMatmulPreferenceInit_internal)                                        \
                    call(cublasLtMatmulPreferenceSetAttribute)

struct library {
    const char *why; /* not NULL: there is none, and nothing else here */
    void *file;
    cublasLtHandle_t handle;
#define QNI_BLAS_MEMBER(name) __typeof__(&name) name;
    QNI_BLAS_CALLS(QNI_BLAS_MEMBER)
#undef QNI_BLAS_MEMBER
};

/* Nobody has opened it; somebody is writing down that he has; it is there to read. */
enum { CLOSED = 0, BUSY = 1, OPEN = 2 };

struct qni_cuda_blas {
    _Atomic int32_t state;
    struct library lt;
};

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(((struct qni_cuda_gemm_algo *)0)->words),
               "an algorithm is kept as words");

/* Opens the library of the version that the header is of, or of the one before or after it: what is
 * used here has not changed between them. */
static void *open_library(void)
{
    static const char *const names[] = {
#if CUBLAS_VER_MAJOR >= 13
        "libcublasLt.so.13",
        "libcublasLt.so.12"
#else
        "libcublasLt.so.12",
        "libcublasLt.so.13"
#endif
    };
    void *file = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && file == NULL; i++)
        file = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return file;
}

/* A pointer to an object as one to a function, which C does not convert. */
static int find_call(void *file, const char *name, void *call)
{
    void *const found = dlsym(file, name);
    memcpy(call, &found, sizeof found);
    return found != NULL;
}

static int find_calls(struct library *lt)
{
    int all = 1;
#define QNI_BLAS_FIND(name) all &= find_call(lt->file, #name, &lt->name);
    QNI_BLAS_CALLS(QNI_BLAS_FIND)
#undef QNI_BLAS_FIND
    return all;
}

/* The context's device is current. */
static const char *start(struct library *lt)
{
    lt->file = open_library();
    if (lt->file == NULL)
        return "cuBLASLt (libcublasLt.so.13 or .12) was not found on this machine";
    if (!find_calls(lt) || lt->cublasLtGetVersion() / 10000 < 12)
        return "the cuBLASLt of this machine is of another version";
    if (lt->cublasLtCreate(&lt->handle) != CUBLAS_STATUS_SUCCESS) {
        lt->handle = NULL;
        return "cuBLASLt was found, but does not start on this GPU";
    }
    return NULL;
}

static void stop(struct library *lt)
{
    if (lt->handle != NULL)
        (void)lt->cublasLtDestroy(lt->handle);
    if (lt->file != NULL)
        (void)dlclose(lt->file);
}

/* Whoever is first to write it down has opened it; who opens it at the same time lets it go, and
 * waits for the end of a copy at most. */
static void open_once(struct qni_cuda_blas *b)
{
    int32_t expected = CLOSED;
    struct library lt;
    memset(&lt, 0, sizeof lt);
    lt.why = start(&lt);
    if (atomic_compare_exchange_strong(&b->state, &expected, BUSY)) {
        b->lt = lt;
        atomic_store(&b->state, OPEN);
        return;
    }
    stop(&lt);
    while (atomic_load(&b->state) != OPEN)
        continue;
}

struct qni_cuda_blas *qni_cuda_blas_make(const qn_ctx *ctx)
{
    return qni_alloc_zero(&ctx->allocator, sizeof(struct qni_cuda_blas));
}

void qni_cuda_blas_close(const qn_ctx *ctx, struct qni_cuda_blas *b)
{
    if (b == NULL)
        return;
    stop(&b->lt);
    qni_free(&ctx->allocator, b, sizeof *b);
}

const struct qni_cuda_blas *qni_cuda_blas_of(const qn_ctx *ctx, const char **why)
{
    struct qni_cuda_blas *const b = ctx->cuda->blas;
    if (atomic_load(&b->state) != OPEN) {
        struct qni_cuda_scope scope;
        *why = "the GPU was not ready when cuBLASLt was looked for";
        if (qni_cuda_enter(ctx, &scope, NULL) != QN_OK)
            return NULL;
        open_once(b);
        qni_cuda_leave(ctx, &scope);
    }
    *why = b->lt.why;
    return b->lt.why == NULL ? b : NULL;
}

/* ---- products -------------------------------------------------------------------------------- */

struct views {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t w, x, d;
};

static cudaDataType_t type_of(qn_dtype dtype)
{
    return dtype == QN_F32 ? CUDA_R_32F : dtype == QN_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static int lay_out(const struct library *lt, cublasLtMatrixLayoutOpaque_t *to, qn_dtype dtype,
                   int64_t rows, int64_t columns, int64_t ld)
{
    return lt->cublasLtMatrixLayoutInit_internal(to, sizeof *to, type_of(dtype), (uint64_t)rows,
                                                 (uint64_t)columns, ld) == CUBLAS_STATUS_SUCCESS;
}

static int describe(const struct library *lt, const struct qni_cuda_gemm *g, struct views *v)
{
    const int32_t transposed = CUBLAS_OP_T;
    return lt->cublasLtMatmulDescInit_internal(&v->product, sizeof v->product, CUBLAS_COMPUTE_32F,
                                               CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatmulDescSetAttribute(&v->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
           lay_out(lt, &v->w, g->dtype, g->k, g->n, g->ldw) &&
           lay_out(lt, &v->x, g->dtype, g->k, g->m, g->ldx) &&
           lay_out(lt, &v->d, g->d_dtype, g->n, g->m, g->ldd);
}

struct wish {
    cublasLtMatmulPreferenceAttributes_t what;
    uint64_t value;
    size_t bytes; /* of the attribute; little endian, as every machine with a GPU is */
};

qn_status qni_cuda_blas_find(const struct qni_cuda_blas *b, const struct qni_cuda_gemm *g,
                             size_t workspace_bytes, struct qni_cuda_gemm_algo *algo)
{
    const struct wish wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes, 8},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 16, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 16, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint64_t)g->d_alignment, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint64_t)g->d_alignment, 4},
    };
    const struct library *const lt = &b->lt;
    struct views v;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int n_found = 0;
    memset(&found, 0, sizeof found);
    if (!describe(lt, g, &v) || lt->cublasLtMatmulPreferenceInit_internal(
                                    &preference, sizeof preference) != CUBLAS_STATUS_SUCCESS)
        return QN_E_UNSUPPORTED;
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        if (lt->cublasLtMatmulPreferenceSetAttribute(&preference, wishes[i].what, &wishes[i].value,
                                                     wishes[i].bytes) != CUBLAS_STATUS_SUCCESS)
            return QN_E_UNSUPPORTED;
    if (lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, &v.product, &v.w, &v.x, &v.d, &v.d,
                                           &preference, 1, &found,
                                           &n_found) != CUBLAS_STATUS_SUCCESS ||
        n_found < 1 || found.state != CUBLAS_STATUS_SUCCESS ||
        found.workspaceSize > workspace_bytes)
        return QN_E_UNSUPPORTED;
    memcpy(algo->words, &found.algo, sizeof algo->words);
    algo->workspace_bytes = found.workspaceSize;
    return QN_OK;
}

qn_status qni_cuda_blas_run(const struct qni_cuda_blas *b, const struct qni_cuda_gemm *g,
                            const struct qni_cuda_gemm_algo *algo,
                            const struct qni_cuda_gemm_data *data, void *stream, qn_error *err)
{
    const struct library *const lt = &b->lt;
    const float zero = 0.0f;
    struct views v;
    cublasLtMatmulAlgo_t how;
    memcpy(&how, algo->words, sizeof how);
    if (!describe(lt, g, &v))
        return qni_fail(err, QN_E_DEVICE, "cuBLASLt does not take the product's description");
    const cublasStatus_t status = lt->cublasLtMatmul(
        lt->handle, &v.product, &data->alpha, data->w, &v.w, data->x, &v.x, &zero, data->d, &v.d,
        data->d, &v.d, &how, data->workspace, (size_t)algo->workspace_bytes, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        return qni_fail(err, QN_E_DEVICE, "cuBLASLt refuses a product (its status %d)",
                        (int)status);
    return QN_OK;
}

#else /* built without the header */

struct qni_cuda_blas {
    char none;
};

struct qni_cuda_blas *qni_cuda_blas_make(const qn_ctx *ctx)
{
    return qni_alloc_zero(&ctx->allocator, sizeof(struct qni_cuda_blas));
}

void qni_cuda_blas_close(const qn_ctx *ctx, struct qni_cuda_blas *blas)
{
    qni_free(&ctx->allocator, blas, sizeof *blas);
}

const struct qni_cuda_blas *qni_cuda_blas_of(const qn_ctx *ctx, const char **why)
{
    (void)ctx;
    *why = "this library was built without cuBLASLt's header";
    return NULL;
}

qn_status qni_cuda_blas_find(const struct qni_cuda_blas *blas, const struct qni_cuda_gemm *gemm,
                             size_t workspace_bytes, struct qni_cuda_gemm_algo *algo)
{
    (void)blas;
    (void)gemm;
    (void)workspace_bytes;
    (void)algo;
    return QN_E_UNSUPPORTED;
}

qn_status qni_cuda_blas_run(const struct qni_cuda_blas *blas, const struct qni_cuda_gemm *gemm,
                            const struct qni_cuda_gemm_algo *algo,
                            const struct qni_cuda_gemm_data *data, void *stream, qn_error *err)
{
    (void)blas;
    (void)gemm;
    (void)algo;
    (void)data;
    (void)stream;
    return qni_fail(err, QN_E_DEVICE, "this library was built without cuBLASLt's header");
}

#endif
