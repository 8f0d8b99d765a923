/* SPDX-License-Identifier: Apache-2.0 */
/* The dense tier in its two parts: writing out packed weights, and cuBLASLt's algorithms.
 *
 *   nvcc -O3 -std=c++17 --fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc lab/cuda/dense.cu \
 *        src/cuda/rows/dequantize_sm75.cu -lcublas -lcublasLt -o dense && ./dense
 *
 * First, the kernel of src/cuda/rows on W4 and W8 in groups of 128, checked against the host, eight weights in turn in a graph,
 * beside bytes / 3.0 TB/s. Then, on f16 weights of 15 values times a scale, what the heuristics of cuBLASLt offer: the first
 * algorithm with the preferences of src/cuda/blas.c, with others, the second and third, and cublasGemmEx, each three times in a
 * graph, in turn, median (second best) of 15. Is the first as good as any, and do our preferences cost something? docs/adr/0008. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda/kernel.h"

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        const int e_ = (int)(x);                                                                   \
        if (e_ != 0) {                                                                             \
            printf("%s: %d (line %d)\n", #x, e_, __LINE__);                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static cudaStream_t stream;

static cudaGraphExec_t record(const std::function<void(int)> &call, int n)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++)
        call(i);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static float replay(cudaGraphExec_t exec, int n)
{
    static cudaEvent_t begin, end;
    float ms = 0.0f;
    if (begin == NULL) {
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
    }
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms * 1e3f / n;
}

/* ---- writing out ----------------------------------------------------------------------------- */

enum { COPIES = 8, GROUP = 128 };

/* Output j, position p of a blob: codes, then scales. */
static float weight_at(const std::vector<uint8_t> &blob, const struct qni_cuda_weights &w, int k, int j, int p)
{
    const int is4 = w.layout == QNI_CUDA_Q4FRAG, g = j % 8, high = j % 16 / 8;
    const int step = p % 64 / 16, in = p % 16, t = in % 8 / 2, at = in % 2 * 2 + in / 8, lane = 4 * g + t;
    const size_t block = ((size_t)(j / 16) * (k / 64) + p / 64) * (is4 ? 512 : 1024);
    const int byte = is4 ? blob[block + 16 * lane + 4 * step + at] >> (4 * high) & 15
                         : blob[block + 512 * (step / 2) + 16 * lane + 8 * (step % 2) + 4 * high + at];
    __half scale;
    memcpy(&scale, &blob[w.scale + 2 * (((size_t)(j / 16) * (k / GROUP) + p / GROUP) * 16 + 2 * g + high)], 2);
    return __half2float(scale) * (float)(byte - (is4 ? 8 : 128));
}

static void write_out(int n, int k, int layout)
{
    const size_t codes = (size_t)n * k / (layout == QNI_CUDA_Q4FRAG ? 2 : 1), out_bytes = (size_t)n * k * 2;
    std::vector<uint8_t> blob(codes + (size_t)n * k / GROUP * 2);
    std::vector<uint16_t> out(out_bytes / 2);
    uint8_t *copy[COPIES];
    struct qni_cuda_launch launch = {};
    struct qni_cuda_dequantize args = {};
    for (size_t i = 0; i < codes; i++)
        blob[i] = (uint8_t)(rand() >> 7);
    for (size_t i = codes; i < blob.size(); i += 2) { /* f16 near 0.01 */
        const uint16_t bits = (uint16_t)(0x2000 + (rand() & 0x3ff));
        memcpy(&blob[i], &bits, 2);
    }
    for (int i = 0; i < COPIES; i++) {
        CHECK(cudaMalloc(&copy[i], blob.size()));
        CHECK(cudaMemcpy(copy[i], blob.data(), blob.size(), cudaMemcpyHostToDevice));
    }
    CHECK(cudaMalloc(&args.out, out_bytes));
    args.w.scale = codes;
    args.w.layout = layout;
    args.w.scale_is_f16 = 1;
    args.w.units = k / 32;
    args.w.n_groups = k / GROUP;
    args.w.group_units = GROUP / 32;
    args.n_panels = n / 16;
    args.times = 4.0f;
    launch.stream = stream;
    const cudaGraphExec_t exec = record(
        [&](int i) {
            args.w.blob = copy[i];
            CHECK(qni_cuda_dequantize_sm75(&args, &launch));
        },
        COPIES);
    std::vector<float> us;
    for (int i = 0; i < 9; i++)
        us.push_back(replay(exec, COPIES));
    std::sort(us.begin(), us.end());
    CHECK(cudaMemcpy(out.data(), args.out, out_bytes, cudaMemcpyDeviceToHost));
    int bad = 0;
    for (int i = 0; i < 100000; i++) {
        const int j = rand() % n, p = rand() % k;
        const __half expected = __float2half_rn(weight_at(blob, args.w, k, j, p) * 4.0f);
        uint16_t bits;
        memcpy(&bits, &expected, 2);
        bad += bits != out[(size_t)j * k + p];
    }
    const double bytes = (double)(blob.size() + out_bytes);
    printf("%5d x %d W%d: %.1f us, %.2f TB/s; at 3.0 TB/s %.1f; %d of 100000 wrong\n", n, k,
           layout == QNI_CUDA_Q4FRAG ? 4 : 8, us[4], bytes / us[4] * 1e-6, bytes / 3.0e6, bad);
    for (int i = 0; i < COPIES; i++)
        CHECK(cudaFree(copy[i]));
    CHECK(cudaFree(args.out));
    CHECK(cudaGraphExecDestroy(exec));
}

/* ---- products -------------------------------------------------------------------------------- */

static __global__ void fill(__half *to, size_t n, bool is_weight, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u ^ seed;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        h ^= h >> 16;
        float v = 0.0f;
        for (int b = 0; b < 4; b++)
            v += (float)(h >> (8 * b) & 255) / 255.0f - 0.5f;
        to[i] = __float2half(is_weight ? (float)((int)(h % 15) - 7) * (float)(64 + i / GROUP % 7) : 1.7f * v);
    }
}

struct way {
    const char *name;
    uint32_t alignment, reductions;
    uint64_t workspace;
    int rank; /* among what the heuristics tell; -1: cublasGemmEx */
};

static bool find(cublasLtHandle_t lt, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t *const layouts,
                 const struct way &way, cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found[4];
    int n = 0;
    CHECK(cublasLtMatmulPreferenceCreate(&wish));
    CHECK(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &way.workspace, 8));
    CHECK(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &way.reductions, 4));
    for (int a = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; a <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; a++)
        CHECK(cublasLtMatmulPreferenceSetAttribute(wish, (cublasLtMatmulPreferenceAttributes_t)a, &way.alignment, 4));
    CHECK(cublasLtMatmulAlgoGetHeuristic(lt, product, layouts[0], layouts[1], layouts[2], layouts[2], wish, 4, found, &n));
    CHECK(cublasLtMatmulPreferenceDestroy(wish));
    if (n > way.rank)
        *algo = found[way.rank].algo;
    return n > way.rank;
}

static void multiply(cublasLtHandle_t lt, cublasHandle_t blas, void *workspace, int m, int n, int k)
{
    static const struct way ways[] = {
        {"ours", 16, 2, 32 << 20, 0},      {"aligned to 256", 256, 2, 32 << 20, 0}, {"any reduction", 16, 7, 32 << 20, 0},
        {"no workspace", 16, 0, 0, 0},     {"second", 16, 2, 32 << 20, 1},          {"third", 16, 2, 32 << 20, 2},
        {"GemmEx", 0, 0, 0, -1},
    };
    enum { WAYS = sizeof ways / sizeof *ways };
    const float alpha = 0x1p-8f, zero = 0.0f;
    const int32_t transposed = CUBLAS_OP_T;
    __half *x, *w, *y;
    CHECK(cudaMalloc(&x, (size_t)m * k * 2));
    CHECK(cudaMalloc(&w, (size_t)n * k * 2));
    CHECK(cudaMalloc(&y, (size_t)m * n * 2));
    fill<<<1024, 256>>>(w, (size_t)n * k, true, 1);
    fill<<<1024, 256>>>(x, (size_t)m * k, false, 2);
    CHECK(cudaDeviceSynchronize());
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layouts[3];
    CHECK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4));
    CHECK(cublasLtMatrixLayoutCreate(&layouts[0], CUDA_R_16F, k, n, k));
    CHECK(cublasLtMatrixLayoutCreate(&layouts[1], CUDA_R_16F, k, m, k));
    CHECK(cublasLtMatrixLayoutCreate(&layouts[2], CUDA_R_16F, n, m, n));
    cudaGraphExec_t exec[WAYS];
    bool is_there[WAYS];
    for (int v = 0; v < WAYS; v++) {
        cublasLtMatmulAlgo_t algo = {};
        is_there[v] = ways[v].rank < 0 || find(lt, product, layouts, ways[v], &algo);
        const auto call = [&](int) {
            if (ways[v].rank < 0)
                CHECK(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &alpha, w, CUDA_R_16F, k, x, CUDA_R_16F, k, &zero,
                                   y, CUDA_R_16F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
            else
                CHECK(cublasLtMatmul(lt, product, &alpha, w, layouts[0], x, layouts[1], &zero, y, layouts[2], y, layouts[2],
                                     &algo, workspace, 32 << 20, stream));
        };
        if (!is_there[v])
            continue;
        call(0);
        CHECK(cudaStreamSynchronize(stream));
        exec[v] = record(call, 3);
    }
    std::vector<float> us[WAYS];
    for (int i = 0; i < 15; i++)
        for (int v = 0; v < WAYS; v++)
            if (is_there[v])
                us[v].push_back(replay(exec[v], 3));
    printf("m %d, %d x %d:", m, n, k);
    for (int v = 0; v < WAYS; v++)
        if (is_there[v]) {
            std::sort(us[v].begin(), us[v].end());
            printf(" %s %.1f (%.1f)%s", ways[v].name, us[v][7], us[v][1], v + 1 < WAYS ? "," : "\n");
        }
    CHECK(cudaFree(x));
    CHECK(cudaFree(w));
    CHECK(cudaFree(y));
}

int main()
{
    static const int shapes[][3] = {{4096, 4096, 4096},  {4096, 14336, 4096}, {4096, 8192, 8192}, {4096, 14336, 8192},
                                    {2048, 14336, 4096}, {1024, 8192, 8192},  {1024, 4096, 4096}};
    cublasLtHandle_t lt;
    cublasHandle_t blas;
    void *workspace;
    CHECK(cudaStreamCreate(&stream));
    for (int layout = QNI_CUDA_Q4FRAG; layout <= QNI_CUDA_Q8FRAG; layout += QNI_CUDA_Q8FRAG - QNI_CUDA_Q4FRAG) {
        write_out(4096, 4096, layout);
        write_out(14336, 4096, layout);
        write_out(8192, 8192, layout);
    }
    CHECK(cublasLtCreate(&lt));
    CHECK(cublasCreate(&blas));
    CHECK(cudaMalloc(&workspace, 32 << 20));
    CHECK(cublasSetStream(blas, stream));
    CHECK(cublasSetWorkspace(blas, workspace, 32 << 20));
    for (const auto &s : shapes)
        multiply(lt, blas, workspace, s[0], s[1], s[2]);
    return 0;
}
