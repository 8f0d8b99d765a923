/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill kernel of src/cuda/matmul/prefill_sm90a.cu by itself: every shape of tile, checked
 * against sums in double and timed beside cuBLAS (fp16 weights). NOTES.md has the results.
 *
 *   nvcc -O3 -std=c++17 -Iinclude -gencode=arch=compute_90a,code=sm_90a lab/cuda/prefill.cu \
 *        -o prefill -ldl && ./prefill check && ./prefill time
 *
 * Codes are random bytes: every byte is a pair of codes. Weights rotate over at least 160 MB. */
#ifdef LAB_SMALL /* a few forms, for quick trials */
#include "../../src/cuda/matmul/prefill_kernel.cuh"
#else
#include "../../src/cuda/matmul/prefill_dense_q8_sm90a.cu"
#include "../../src/cuda/matmul/prefill_dense_sm90a.cu"
#endif
#if !defined(LAB_SMALL) && !defined(LAB_DENSE) /* LAB_DENSE: those that round weights alone */
#define LAB_ALL
#include "../../src/cuda/matmul/prefill_q8_sm90a.cu"
#include "../../src/cuda/matmul/prefill_sm90a.cu"
#include "../../src/cuda/matmul/prefill_t4_sm90a.cu"
#endif

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (cudaError_t)(x);                                                         \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s (line %d)\n", #x, cudaGetErrorString(e_), __LINE__);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static __device__ uint32_t mix(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(z >> 32);
}
static __global__ void fill_bytes(uint32_t *to, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull)
        to[i] = mix(i + seed * 1000003);
}
/* What: 0: f16 about N(0, 1); 1: bf16; 2: f16 scales; 3: f32 scales; 4: zeros in -8..7 */
static __global__ void fill(void *to, size_t n, int what, uint64_t seed)
{
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        const uint32_t r = mix(i + seed * 7777777);
        const float v = ((float)(r & 0xffff) + (float)(r >> 16)) * (1.0f / 32768) - 2;
        if (what == 0)
            ((__half *)to)[i] = __float2half(v * 1.2f);
        else if (what == 1)
            ((__nv_bfloat16 *)to)[i] = __float2bfloat16(v * 1.2f);
        else if (what == 2)
            ((__half *)to)[i] = __float2half(0.01f + 0.003f * v);
        else if (what == 3)
            ((float *)to)[i] = 0.01f + 0.003f * v;
        else
            ((int8_t *)to)[i] = (int8_t)((int)(r % 16) - 8);
    }
}

/* Sums of x by group, of a row: y[row][group]. */
static __global__ void sum_groups_of_x(const void *x, int ldx, int k, int group, int n_groups,
                                       int bf16, float *total)
{
    const int g = (int)threadIdx.x;
    if (g >= n_groups)
        return;
    double sum = 0;
    for (int p = g * group; p < min(k, (g + 1) * group); p++) {
        const size_t i = (size_t)blockIdx.x * ldx + p;
        sum += bf16 ? (double)__bfloat162float(((const __nv_bfloat16 *)x)[i])
                    : (double)__half2float(((const __half *)x)[i]);
    }
    total[(size_t)blockIdx.x * n_groups + g] = (float)sum;
}

static __host__ __device__ int expert_of(int64_t row, int experts)
{
    return (int)((row * 7 + row / 5) % experts);
}

/* One warp a sample: the definition, in double, from the packed bytes. result: y, sum of |x w|. */
static __global__ void reference(const struct qni_cuda_product p, int bits, int bf16, int experts,
                                 size_t blob_bytes, const int64_t *samples, int count, int rounded,
                                 double2 *result)
{
    const int s = (int)(blockIdx.x * 8 + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    if (s >= count)
        return;
    const int64_t row = samples[2 * s], n = samples[2 * s + 1], panel = n / 16;
    const int o = (int)(n % 16), blocks = p.w.units / 2;
    const uint8_t *const blob = p.w.blob + (experts ? expert_of(row, experts) : 0) * blob_bytes;
    double sum = 0, magnitude = 0;
    for (int pos = lane; pos < p.x.columns; pos += 32) {
        const int b = pos / 64, step = pos % 64 / 16, in = pos % 16;
        const int t = in % 8 / 2, j = in % 2 * 2 + in / 8, l = o % 8 * 4 + t;
        const uint8_t *block = blob + p.w.codes + (panel * blocks + b) * (bits == 4 ? 512 : 1024);
        int code;
        if (bits == 4) {
            const uint32_t w = ((const uint32_t *)block)[l * 4 + step];
            code = (int)(w >> (4 * (2 * j + o / 8)) & 15) - 8;
        } else {
            const int word = step % 2 * 2 + o / 8;
            code = (int)block[step / 2 * 512 + l * 16 + word * 4 + j] - 128;
        }
        const int group = min(pos / 32 / p.w.group_units, p.w.n_groups - 1);
        const size_t fact = (panel * p.w.n_groups + group) * 16 + o % 8 * 2 + o / 8;
        const double scale = p.w.scale_is_f16
                                 ? (double)__half2float(((const __half *)(blob + p.w.scale))[fact])
                                 : (double)((const float *)(blob + p.w.scale))[fact];
        if (p.w.shift == QNI_CUDA_SHIFT_ZERO)
            code -= ((const int8_t *)(blob + p.w.zero))[fact];
        const uint8_t *xr = (const uint8_t *)p.x.a + row * p.x.lda;
        const double x = bf16 ? (double)__bfloat162float(((const __nv_bfloat16 *)xr)[pos])
                              : (double)__half2float(((const __half *)xr)[pos]);
        double w = scale * code;
        if (p.w.shift == QNI_CUDA_SHIFT_OFFSET)
            w += p.w.scale_is_f16
                     ? (double)__half2float(((const __half *)(blob + p.w.offset))[fact])
                     : (double)((const float *)(blob + p.w.offset))[fact];
        if (rounded) { /* fl(scale * code + offset), times 2^e, to the type of x, once */
            const float v = (float)w * exp2f((float)p.w.exponent);
            w = (bf16 ? (double)__bfloat162float(__float2bfloat16(v))
                      : (double)__half2float(__float2half(v))) *
                exp2(-(double)p.w.exponent);
        }
        sum += w * x;
        magnitude += fabs(w * x);
    }
    for (int i = 16; i > 0; i /= 2) {
        sum += __shfl_xor_sync(~0u, sum, i);
        magnitude += __shfl_xor_sync(~0u, magnitude, i);
    }
    if (lane == 0)
        result[s] = make_double2(sum, magnitude);
}
typedef int32_t run_fn(const struct qni_cuda_product *, const struct qni_cuda_launch *, int splits);
template <class F>
static int32_t run(const struct qni_cuda_product *p, const struct qni_cuda_launch *l, int splits)
{
    return start<F>(p, NULL, l, splits);
}
template <class F>
static int32_t run_routes(const struct qni_cuda_product *p, const struct qni_cuda_experts *e,
                          const struct qni_cuda_launch *l)
{
    return start<form<F::bf16, F::bits, F::tokens, F::mode, true>>(p, e, l, 1);
}
struct variant {
    int bf16, bits, tokens, mode;
    run_fn *fn;
    qni_cuda_matmul_fn *routed;
    int rounding;
};
#define R(bf16, bits, tokens, mode, how)                                                           \
    {                                                                                              \
        bf16, bits, tokens, mode, run<form<bf16, bits, tokens, mode, how == BY_F32, false, how>>,  \
            NULL, how                                                                              \
    }
#define R3(bf16, bits, mode, how)                                                                  \
    R(bf16, bits, 64, mode, how), R(bf16, bits, 128, mode, how), R(bf16, bits, 256, mode, how)
#define W(bf16, bits, tokens)                                                                      \
    {                                                                                              \
        bf16, bits, tokens, WHOLE, run<form<bf16, bits, tokens, WHOLE, false>>, NULL               \
    }
#define V(bf16, bits, tokens, mode)                                                                \
    {                                                                                              \
        bf16, bits, tokens, mode, run<form<bf16, bits, tokens, mode, false>>,                      \
            run_routes<form<bf16, bits, tokens, mode, true>>                                       \
    }
#define V3(bf16, bits, tokens)                                                                     \
    V(bf16, bits, tokens, PAIRS), V(bf16, bits, tokens, BLOCKS), V(bf16, bits, tokens, UNITS)
#ifndef LAB_ALL
#define S(tokens, mode)                                                                            \
    {                                                                                              \
        0, 4, tokens, mode, run<form<0, 4, tokens, mode, false>>, NULL                             \
    }
static const struct variant variants[] = {
    S(128, PAIRS), S(64, PAIRS), S(256, WHOLE), S(128, WHOLE), S(128, BLOCKS), S(128, UNITS),
};
static qni_cuda_matmul_fn *entry_of(int, int, int)
{
    return NULL;
}
#else
static const struct variant variants[] = {
    V3(0, 4, 64), V3(0, 4, 128), V3(1, 4, 128), V3(0, 8, 128), V3(1, 8, 128), V(0, 4, 96, PAIRS),
    W(0, 4, 64),  W(0, 4, 128),  W(0, 4, 256),  W(1, 4, 256),  W(0, 8, 256),
};
/* As the library launches them: the kernel chooses its form. */
static qni_cuda_matmul_fn *entry_of(int bf16, int bits, int rows)
{
    static qni_cuda_matmul_fn *const list[8] = {
        qni_matmul_f16_q4frag_mr64_sm90a,  qni_matmul_f16_q4frag_mr128_sm90a,
        qni_matmul_f16_q8frag_mr64_sm90a,  qni_matmul_f16_q8frag_mr128_sm90a,
        qni_matmul_bf16_q4frag_mr64_sm90a, qni_matmul_bf16_q4frag_mr128_sm90a,
        qni_matmul_bf16_q8frag_mr64_sm90a, qni_matmul_bf16_q8frag_mr128_sm90a};
    return list[bf16 * 4 + (bits == 8) * 2 + (rows == 128)];
}
#endif

#ifndef LAB_SMALL
static const struct variant rounded[] = {
    R3(0, 4, PAIRS, BY_F16), R3(0, 4, UNITS, BY_F16), R3(0, 4, UNITS, BY_F32),
    R3(1, 4, UNITS, BY_F32), R3(0, 8, PAIRS, BY_F16), R3(0, 8, UNITS, BY_F16),
    R3(0, 8, UNITS, BY_F32), R3(1, 8, UNITS, BY_F32),
};
static qni_cuda_matmul_fn *dense_of(int bf16, int bits)
{
    return bits == 4 ? bf16 ? qni_matmul_bf16_q4frag_mr128_dense_sm90a
                            : qni_matmul_f16_q4frag_mr128_dense_sm90a
           : bf16    ? qni_matmul_bf16_q8frag_mr128_dense_sm90a
                     : qni_matmul_f16_q8frag_mr128_dense_sm90a;
}
#endif

struct shape_of {
    int n, k, m, bits, group, bf16, zero, scale_is_f16, y_dtype, parts;
};
/* Everything on the device, `copies` of the weights. */
struct problem {
    struct qni_cuda_product p;
    uint8_t *blobs;
    size_t blob_bytes;
    int copies;
    void *x, *y;
    float *total;
    size_t y_elements;
};
static struct problem make(const struct shape_of &s, size_t rotate)
{
    struct problem q = {};
    struct qni_cuda_weights &w = q.p.w;
    const int group = s.group ? s.group : s.k;
    w.group_units = (group + 31) / 32;
    w.n_groups = (s.k + group - 1) / group;
    w.units = (s.k + 31) / 32;
    w.units += w.units & 1;
    w.panels = (s.n + 15) / 16;
    w.n = s.n;
    w.parts = s.parts;
    w.scale_is_f16 = s.scale_is_f16;
    w.shift = s.zero;
    w.exponent = (s.bf16 ? 7 : 15) - (s.bits == 4 ? -1 : 3); /* scales are below 1/60 */
    w.layout = s.bits == 4 ? QNI_CUDA_Q4FRAG : QNI_CUDA_Q8FRAG;
    const size_t panels = (size_t)w.panels * s.parts, facts = panels * w.n_groups * 16;
    w.codes = 256;
    w.scale = w.codes + panels * (w.units / 2) * 128 * s.bits;
    w.zero = w.scale + facts * 4;
    w.offset = w.zero + facts;
    q.blob_bytes = (w.offset + facts * 4 + 255) / 256 * 256;
    q.copies = (int)std::min<size_t>(64, rotate / q.blob_bytes + 1);
    CHECK(cudaMalloc(&q.blobs, q.blob_bytes * q.copies));
    fill_bytes<<<1024, 256>>>((uint32_t *)q.blobs, q.blob_bytes / 4, 1);
    fill<<<1024, 256>>>(q.blobs + w.scale, facts, s.scale_is_f16 ? 2 : 3, 5);
    fill<<<1024, 256>>>(q.blobs + w.zero, facts, 4, 6);
    fill<<<1024, 256>>>(q.blobs + w.offset, facts, s.scale_is_f16 ? 2 : 3, 7);
    for (int c = 1; c < q.copies; c++)
        CHECK(cudaMemcpy(q.blobs + q.blob_bytes * c, q.blobs, q.blob_bytes,
                         cudaMemcpyDeviceToDevice));
    w.blob = q.blobs;
    const int ldx = (s.k + 7) / 8 * 8;
    CHECK(cudaMalloc(&q.x, (size_t)ldx * s.m * s.parts * 2));
    fill<<<1024, 256>>>(q.x, (size_t)ldx * s.m * s.parts, s.bf16, 3);
    q.p.x.a = q.x;
    q.p.x.lda = ldx * 2;
    q.p.x.planes = 1;
    q.p.x.columns = s.k;
    q.p.x.part_rows = s.m;
    q.p.x.x_scale = 1;
    if (s.zero == QNI_CUDA_SHIFT_OFFSET) {
        CHECK(cudaMalloc(&q.total, (size_t)s.m * w.n_groups * 4));
        sum_groups_of_x<<<s.m, 1024>>>(q.x, ldx, s.k, group, w.n_groups, s.bf16, q.total);
        q.p.x.total = q.total;
        q.p.x.ld_segment = w.n_groups;
    }
    q.y_elements = (size_t)s.m * s.n * s.parts;
    CHECK(cudaMalloc(&q.y, q.y_elements * 4));
    q.p.out.y = q.y;
    q.p.out.y_dtype = s.y_dtype;
    q.p.out.is_plain = 1;
    q.p.out.stride[2] = (int64_t)s.n * s.parts;
    q.p.out.stride[3] = 1;
    q.p.m = s.m;
    CHECK(cudaDeviceSynchronize());
    return q;
}
static void release(struct problem &q)
{
    CHECK(cudaFree(q.blobs));
    CHECK(cudaFree(q.x));
    CHECK(cudaFree(q.y));
    CHECK(cudaFree(q.total));
}

/* The worst error as a fraction of the bound of docs/numerics.md (c = 1), of samples; -1: holes. */
static double check(const struct shape_of &s, struct problem &q, const std::vector<int64_t> &at,
                    const std::vector<double2> &exact)
{
    double worst = 0;
    std::vector<uint8_t> y(q.y_elements * (s.y_dtype == QN_F32 ? 4 : 2));
    CHECK(cudaMemcpy(y.data(), q.y, y.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < q.y_elements; i++)
        if (s.y_dtype == QN_F32 ? std::isnan(((float *)y.data())[i])
                                : ((uint16_t *)y.data())[i] == 0xffff)
            return -1;
    for (size_t i = 0; i < exact.size(); i++) {
        const int64_t e = at[2 * i] * s.n + at[2 * i + 1];
        double v, step;
        if (s.y_dtype == QN_F32) {
            v = ((float *)y.data())[e];
            step = 0;
        } else if (s.y_dtype == QN_F16) {
            v = (double)__half2float(((__half *)y.data())[e]);
            step = std::ldexp(1.0, -11);
        } else {
            v = (double)__bfloat162float(((__nv_bfloat16 *)y.data())[e]);
            step = std::ldexp(1.0, -8);
        }
        const double bound = (s.k + 8) * std::ldexp(1.0, -24) * exact[i].y +
                             1.001 * step * std::fabs(exact[i].x) + 1e-7;
        worst = std::max(worst, std::fabs(v - exact[i].x) / bound);
        if (!(std::fabs(v - exact[i].x) / bound < 1e9))
            worst = 1e9;
    }
    return worst;
}
static void sample(const struct shape_of &s, struct problem &q, int count, std::vector<int64_t> &at,
                   std::vector<double2> &exact, int experts = 0, int rounded = 0)
{
    uint64_t seed = 12345;
    at.resize(2 * count);
    exact.resize(count);
    for (int i = 0; i < count; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        at[2 * i] = i < 8 ? s.m - 1 - i % 2 * (s.m - 1) : (int64_t)((seed >> 33) % s.m);
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        at[2 * i + 1] = i < 8 ? s.n - 1 - i / 2 % 2 * (s.n - 1) : (int64_t)((seed >> 33) % s.n);
    }
    int64_t *samples;
    double2 *result;
    CHECK(cudaMalloc(&samples, at.size() * 8));
    CHECK(cudaMalloc(&result, count * sizeof(double2)));
    CHECK(cudaMemcpy(samples, at.data(), at.size() * 8, cudaMemcpyHostToDevice));
    reference<<<(count + 7) / 8, 256>>>(q.p, s.bits, s.bf16, experts, q.blob_bytes, samples, count,
                                        rounded, result);
    CHECK(cudaMemcpy(exact.data(), result, count * sizeof(double2), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(samples));
    CHECK(cudaFree(result));
}

template <class F> static double time_graph(cudaStream_t stream, int calls, F call)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int c = 0; c < calls; c++)
        call(c);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> times;
    cudaEvent_t e0, e1;
    CHECK(cudaEventCreate(&e0));
    CHECK(cudaEventCreate(&e1));
    for (int r = 0; r < 6; r++) {
        CHECK(cudaEventRecord(e0, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(e1, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, e0, e1));
        if (r > 0)
            times.push_back(ms * 1e3f / calls);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(e0));
    CHECK(cudaEventDestroy(e1));
    return times[times.size() / 2];
}

/* cuBLAS, if this machine has it: y = x . w^T in f16. */
struct blas {
    void *handle;
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
};
static struct blas open_blas(cudaStream_t stream)
{
    struct blas b = {};
    void *lib = dlopen("libcublas.so.13", RTLD_NOW);
    if (!lib) {
        printf("no cuBLAS: %s\n", dlerror());
        return b;
    }
    int (*create)(void **) = (int (*)(void **))dlsym(lib, "cublasCreate_v2");
    int (*set)(void *, cudaStream_t) =
        (int (*)(void *, cudaStream_t))dlsym(lib, "cublasSetStream_v2");
    int (*work)(void *, void *, size_t) =
        (int (*)(void *, void *, size_t))dlsym(lib, "cublasSetWorkspace_v2");
    b.gemm = (decltype(b.gemm))dlsym(lib, "cublasGemmEx");
    void *space;
    CHECK(cudaMalloc(&space, 64 << 20));
    if (create(&b.handle) || set(b.handle, stream) || work(b.handle, space, 64 << 20))
        b.gemm = NULL;
    return b;
}
static double time_blas(const struct blas &b, cudaStream_t stream, int n, int k, int m)
{
    if (!b.gemm)
        return 0;
    const size_t bytes = (size_t)n * k * 2;
    const int copies = (int)std::min<size_t>(16, (size_t)160e6 / bytes + 1);
    __half *w, *x, *y;
    CHECK(cudaMalloc(&w, bytes * copies));
    CHECK(cudaMalloc(&x, (size_t)m * k * 2));
    CHECK(cudaMalloc(&y, (size_t)m * n * 2));
    fill<<<1024, 256>>>(w, (size_t)n * k * copies, 0, 1); /* signs, as weights have: power */
    fill<<<1024, 256>>>(x, (size_t)m * k, 0, 2);
    CHECK(cudaDeviceSynchronize());
    const float one = 1, zero = 0;
    auto call = [&](int c) {
        if (b.gemm(b.handle, 1, 0, n, m, k, &one, w + (size_t)n * k * (c % copies), 2, k, x, 2, k,
                   &zero, y, 2, n, 68, -1))
            printf("cublas failed\n");
    };
    call(0);
    CHECK(cudaStreamSynchronize(stream));
    const double us = time_graph(stream, (size_t)m * n * k > (1ull << 36) ? 4 : 20, call);
    CHECK(cudaFree(w));
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
    return us;
}

static bool fits(const struct qni_cuda_weights &w, int mode)
{
    return mode == WHOLE
               ? w.n_groups == 1
               : w.n_groups == 1 || mode == UNITS || w.group_units % (mode == PAIRS ? 4 : 2) == 0;
}

static int tiles_of(const struct qni_cuda_product &p, int tokens)
{
    return (p.w.panels + PANELS - 1) / PANELS * p.w.parts * (int)((p.m + tokens - 1) / tokens);
}

static int failures;
static void check_all(cudaStream_t stream, bool quick)
{
    const struct shape_of shapes[] = {
        {128, 128, 128, 4, 128, 0, 0, 1, QN_F16, 1},
        {256, 512, 192, 4, 128, 0, 0, 1, QN_F32, 1},
        {1040, 1024, 200, 4, 128, 0, 1, 1, QN_F16, 1},
        {1000, 1000, 131, 4, 64, 0, 1, 0, QN_F16, 1},
        {520, 992, 300, 4, 32, 0, 1, 1, QN_F16, 1},
        {264, 672, 65, 4, 96, 0, 1, 1, QN_F32, 1},
        {2048, 2048, 520, 4, 0, 0, 0, 0, QN_BF16, 1},
        {1040, 1024, 200, 4, 128, 1, 1, 1, QN_BF16, 1},
        {1000, 1000, 131, 4, 32, 1, 0, 0, QN_F32, 1},
        {1040, 1024, 200, 8, 128, 0, 1, 1, QN_F16, 1},
        {1000, 1000, 131, 8, 32, 0, 1, 0, QN_F16, 1},
        {777, 777, 77, 8, 128, 1, 1, 1, QN_BF16, 1},
        {520, 608, 300, 8, 32, 1, 0, 0, QN_F32, 1},
        {136, 4096, 17, 8, 0, 0, 0, 0, QN_F16, 1},
        {4096, 4096, 1000, 4, 128, 0, 0, 1, QN_F16, 1},
        {17, 40, 3, 4, 32, 0, 1, 1, QN_F32, 1},
        {1000, 1000, 131, 4, 128, 0, QNI_CUDA_SHIFT_OFFSET, 0, QN_F16, 1},
        {520, 672, 150, 4, 32, 0, QNI_CUDA_SHIFT_OFFSET, 1, QN_F32, 1},
        {520, 4096, 150, 8, 64, 1, QNI_CUDA_SHIFT_OFFSET, 1, QN_BF16, 1},
    };
    for (auto &s : shapes) {
        struct problem q = make(s, 0);
        std::vector<int64_t> at;
        std::vector<double2> exact;
        sample(s, q, 8000, at, exact);
        struct qni_cuda_launch l = {stream, 0, 132, 90};
        printf("n %d k %d m %d w%d g%d bf16 %d zero %d f16s %d y %d:", s.n, s.k, s.m, s.bits,
               s.group, s.bf16, s.zero, s.scale_is_f16, s.y_dtype);
        for (auto &v : variants) {
            if (v.bits != s.bits || v.bf16 != s.bf16 || !fits(q.p.w, v.mode))
                continue;
            for (int splits : {1, 2}) {
                if (splits > 1 && tiles_of(q.p, v.tokens) % 132 > 66)
                    continue;
                CHECK(cudaMemset(q.y, 0xff, q.y_elements * 4));
                CHECK(v.fn(&q.p, &l, splits));
                CHECK(cudaStreamSynchronize(stream));
                const double e = check(s, q, at, exact);
                if (e < 0 || e > 1) {
                    printf(" [t%d mode%d split%d: %g WRONG]", v.tokens, v.mode, splits, e);
                    failures++;
                } else if (splits == 1) {
                    printf(" %.3f", e);
                }
            }
        }
        for (int rows : {64, 128}) {
            if (entry_of(s.bf16, s.bits, rows) == NULL)
                continue;
            CHECK(cudaMemset(q.y, 0xff, q.y_elements * 4));
            CHECK(entry_of(s.bf16, s.bits, rows)(&q.p, NULL, &l));
            CHECK(cudaStreamSynchronize(stream));
            const double e = check(s, q, at, exact);
            if (e < 0 || e > 1) {
                printf(" [mr%d: %g WRONG]", rows, e);
                failures++;
            }
        }
        printf("\n");
        fflush(stdout);
        release(q);
        if (failures > 20 || quick)
            break;
    }
}

#ifndef LAB_SMALL
static bool takes(const struct variant &v, const struct shape_of &s, const struct problem &q)
{
    return v.bits == s.bits && v.bf16 == s.bf16 && fits(q.p.w, v.mode) &&
           (v.rounding == BY_F32 || (s.scale_is_f16 && s.zero != QNI_CUDA_SHIFT_OFFSET));
}

/* Forms that round weights. Rows of x with a single one show weights: those bit by bit. */
static __global__ void fill_ones(uint16_t *x, int ldx, int m, int bf16)
{
    for (int p = (int)threadIdx.x; p < ldx; p += 256)
        x[(size_t)blockIdx.x * ldx + p] = p == (int)blockIdx.x % ldx ? (bf16 ? 0x3f80 : 0x3c00) : 0;
}
static void check_rounded(cudaStream_t stream, bool quick)
{
    const int zero = QNI_CUDA_SHIFT_ZERO, offset = QNI_CUDA_SHIFT_OFFSET;
    std::vector<struct shape_of> shapes;
    for (int bits : {4, 8})
        for (int bf16 : {0, 1})
            for (int shift : {0, zero, offset})
                for (int group : {128, 64, 32, 96, 0})
                    for (int f16s : {1, 0}) {
                        if (shift == offset && group == 0)
                            continue; /* totals are of 1024 groups at most, of 1024 threads */
                        const int y = group == 64 ? (bf16 ? QN_BF16 : QN_F16) : QN_F32;
                        shapes.push_back({520, 992, 300, bits, group, bf16, shift, f16s, y, 1});
                    }
    shapes.push_back({4096, 4096, 1000, 4, 32, 0, 0, 1, QN_F16, 1});
    shapes.push_back({4096, 4096, 1000, 4, 128, 0, 0, 1, QN_F16, 1});
    shapes.push_back({17, 40, 3, 4, 32, 0, 1, 1, QN_F32, 1});
    double worst = 0;
    int runs = 0;
    for (auto &s : shapes)
        for (int ones = 0; ones < 2; ones++) {
            if (ones && (s.y_dtype != QN_F32))
                continue;
            struct problem q = make(s, 0);
            std::vector<int64_t> at;
            std::vector<double2> exact;
            if (ones)
                fill_ones<<<s.m, 256>>>((uint16_t *)q.x, (int)q.p.x.lda / 2, s.m, s.bf16);
            sample(s, q, quick ? 2000 : 20000, at, exact, 0, 1);
            struct qni_cuda_launch l = {stream, 0, 132, 90};
            auto judge = [&](const char *who, int tokens, int mode, int how, int splits) {
                double e = check(s, q, at, exact);
                if (ones && e >= 0) {
                    std::vector<float> y(q.y_elements);
                    CHECK(cudaMemcpy(y.data(), q.y, q.y_elements * 4, cudaMemcpyDeviceToHost));
                    for (size_t i = 0; i < exact.size(); i++)
                        if ((double)y[at[2 * i] * s.n + at[2 * i + 1]] != exact[i].x)
                            e = 1e6;
                }
                runs++;
                worst = std::max(worst, e);
                if ((e < 0 || e > 1) && failures++ < 40)
                    printf("%s n %d k %d m %d w%d g%d bf16 %d zero %d f16s %d y %d ones %d: t%d "
                           "mode%d how%d split%d: %g WRONG\n",
                           who, s.n, s.k, s.m, s.bits, s.group, s.bf16, s.zero, s.scale_is_f16,
                           s.y_dtype, ones, tokens, mode, how, splits, e);
            };
            for (auto &v : rounded)
                for (int splits : {1, 2}) {
                    if (!takes(v, s, q) || (splits > 1 && tiles_of(q.p, v.tokens) % 132 > 66))
                        continue;
                    CHECK(cudaMemset(q.y, 0xff, q.y_elements * 4));
                    CHECK(v.fn(&q.p, &l, splits));
                    CHECK(cudaStreamSynchronize(stream));
                    judge("form", v.tokens, v.mode, v.rounding, splits);
                }
            CHECK(cudaMemset(q.y, 0xff, q.y_elements * 4));
            CHECK(dense_of(s.bf16, s.bits)(&q.p, NULL, &l));
            CHECK(cudaStreamSynchronize(stream));
            judge("row", 0, 0, 0, 0);
            release(q);
        }
    printf("rounded: %d runs, worst %.3f\n", runs, worst);
    fflush(stdout);
}
#endif

/* Rows dealt to experts, each with weights of its own; tiles as the router makes them. */
static void check_routes(cudaStream_t stream)
{
    const int experts = 5;
    for (int in_order = 0; in_order < 2; in_order++)
        for (int y_dtype : {QN_F16, QN_F32}) {
            const struct shape_of s = {392, 1024, 700, 4, 128, 0, 0, 1, y_dtype, 1};
            struct problem q = make(s, (size_t)experts * 392 * 1024);
            q.copies = std::max(q.copies, experts);
            for (int e = 0; e < experts; e++)
                fill_bytes<<<64, 256>>>((uint32_t *)(q.blobs + e * q.blob_bytes + q.p.w.codes),
                                        (q.p.w.scale - q.p.w.codes) / 4, 100 + e);
            std::vector<int64_t> at;
            std::vector<double2> exact;
            sample(s, q, 8000, at, exact, in_order ? 1 : experts);
            struct qni_cuda_launch l = {stream, 0, 132, 90};
            struct qni_cuda_experts ex = {0, in_order ? 1 : experts};
            for (int e = 0; e < ex.n; e++)
                ex.blob[e] = q.blobs + e * q.blob_bytes;
            for (auto &v : variants) {
                if (v.bits != 4 || v.bf16 || v.routed == NULL)
                    continue;
                std::vector<int32_t> rows, tiles;
                for (int e = 0; e < ex.n; e++) {
                    const int begin = (int)rows.size();
                    for (int r = 0; r < s.m; r++)
                        if (expert_of(r, ex.n) == e)
                            rows.push_back(r);
                    for (int i = begin; i < (int)rows.size(); i += v.tokens) {
                        tiles.push_back(e);
                        tiles.push_back(i);
                        tiles.push_back(std::min((int)rows.size() - i, v.tokens));
                    }
                    for (int i = 0; i < 3; i++)
                        tiles.push_back(0);
                }
                int32_t *d;
                CHECK(cudaMalloc(&d, (rows.size() + tiles.size()) * 4));
                CHECK(cudaMemcpy(d, rows.data(), rows.size() * 4, cudaMemcpyHostToDevice));
                CHECK(cudaMemcpy(d + rows.size(), tiles.data(), tiles.size() * 4,
                                 cudaMemcpyHostToDevice));
                struct qni_cuda_product p = q.p;
                p.w.blob = NULL;
                p.routes.rows = in_order ? NULL : d;
                p.routes.tiles = d + rows.size();
                p.routes.n_tiles = (int)tiles.size() / 3;
                CHECK(cudaMemset(q.y, 0xff, q.y_elements * 4));
                CHECK(v.routed(&p, &ex, &l));
                CHECK(cudaStreamSynchronize(stream));
                const double e = check(s, q, at, exact);
                if (e < 0 || e > 1) {
                    printf("routes: in order %d t%d mode%d: %g WRONG\n", in_order, v.tokens, v.mode,
                           e);
                    failures++;
                }
                CHECK(cudaFree(d));
            }
            release(q);
        }
    printf("routes checked\n");
}

/* Every shape of tile that is not hopeless, one line. */
static void time_shape(cudaStream_t stream, const struct blas &b, const struct shape_of &s)
{
    const bool large = (size_t)s.m * s.n * s.k > (1ull << 36);
    printf("%5d x %4d m %4d w%d%s g%d%s |", s.n, s.k, s.m, s.bits, s.bf16 ? " bf16" : "", s.group,
           s.zero ? " zero" : "");
    struct problem q = make(s, (size_t)160e6);
    double best = 1e9;
    for (auto &v : variants) {
        if (v.bits != s.bits || v.bf16 != s.bf16 || !fits(q.p.w, v.mode) ||
            (fits(q.p.w, BLOCKS) && v.mode == UNITS) || (fits(q.p.w, PAIRS) && v.mode == BLOCKS) ||
            (s.m > 192 && v.tokens < 96) || (s.m <= 64 && v.tokens > 64))
            continue;
        for (int splits : {1, 2}) {
            if (splits > 1 && tiles_of(q.p, v.tokens) % 132 > 66)
                continue;
            struct qni_cuda_launch l = {stream, 0, 132, 90};
            const double us = time_graph(stream, large ? 4 : 20, [&](int c) {
                q.p.w.blob = q.blobs + q.blob_bytes * (c % q.copies);
                CHECK(v.fn(&q.p, &l, splits));
            });
            printf(" %d%sk%d:%.1f", v.tokens,
                   v.mode == WHOLE    ? "w"
                   : v.mode == PAIRS  ? ""
                   : v.mode == BLOCKS ? "b"
                                      : "u",
                   splits, us);
            best = std::min(best, us);
        }
    }
    /* What the library would launch and cuBLAS, by turns: the clock falls as the chip gets warm. */
    struct qni_cuda_launch l = {stream, 0, 132, 90};
    qni_cuda_matmul_fn *const entry = entry_of(s.bf16, s.bits, s.m <= 64 ? 64 : 128);
    double times[2][3] = {};
    for (int i = 0; i < 3 && entry != NULL; i++) {
        times[0][i] = time_blas(b, stream, s.n, s.k, s.m);
        times[1][i] = time_graph(stream, large ? 4 : 20, [&](int c) {
            q.p.w.blob = q.blobs + q.blob_bytes * (c % q.copies);
            CHECK(entry(&q.p, NULL, &l));
        });
    }
    for (auto &t : times)
        std::sort(t, t + 3);
    printf(" | cublas %.1f chosen %.1f", times[0][1], times[1][1]);
    q.p.w.blob = q.blobs;
    printf(" | %.1f, %.0f TF\n", best, 2e-6 * (double)s.m * s.n * s.k / best);
    fflush(stdout);
    release(q);
}
static void time_all(cudaStream_t stream, const struct blas &b, bool others)
{
    const int sizes[][2] = {{4096, 4096}, {14336, 4096}, {8192, 8192}, {28672, 8192}};
    if (!others) {
        for (auto &size : sizes)
            for (int m : {64, 128, 256, 1024, 4096})
                time_shape(stream, b, {size[0], size[1], m, 4, 128, 0, 0, 1, QN_F16, 1});
        return;
    }
    const struct shape_of more[] = {
        {4096, 4096, 1024, 8, 128, 0, 0, 1, QN_F16, 1},
        {14336, 4096, 256, 8, 128, 0, 0, 1, QN_F16, 1},
        {8192, 8192, 4096, 8, 128, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 128, 1, 0, 1, QN_BF16, 1},
        {8192, 8192, 4096, 4, 128, 1, 0, 1, QN_BF16, 1},
        {4096, 4096, 1024, 8, 128, 1, 0, 1, QN_BF16, 1},
        {4096, 4096, 1024, 4, 32, 0, 0, 1, QN_F16, 1},
        {8192, 8192, 4096, 4, 32, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 64, 0, 0, 1, QN_F16, 1},
        {8192, 8192, 4096, 4, 64, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 0, 0, 0, 1, QN_F16, 1},
        {8192, 8192, 4096, 4, 0, 0, 0, 0, QN_F16, 1},
        {4096, 4096, 1024, 4, 128, 0, 1, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 128, 1, 1, 1, QN_BF16, 1},
        {4096, 4096, 200, 4, 128, 0, 0, 1, QN_F16, 1},
        {14336, 4096, 200, 4, 128, 0, 0, 1, QN_F16, 1},
        {8192, 8192, 3000, 4, 128, 0, 0, 1, QN_F16, 1},
        {13824, 5120, 512, 4, 128, 0, 0, 1, QN_F16, 1},
        {3584, 18944, 512, 4, 128, 0, 0, 1, QN_F16, 1},
        {4100, 4000, 1000, 4, 128, 0, 0, 1, QN_F32, 1},
    };
    for (auto &s : more)
        time_shape(stream, b, s);
}

#ifdef LAB_ALL
/* Tables: integers, which are one piece of 16 bits, and fractions of 24 bits, which are two or
 * three. */
static void time_tables(cudaStream_t stream)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int fractions = 0; fractions < 2; fractions++)
            for (int group : {128, 32}) {
                const struct shape_of s = {8192, 8192, 1024, 4, group, bf16, 0, 1, QN_F16, 1};
                struct problem q = make(s, (size_t)160e6);
                float table[16];
                for (int i = 0; i < 16; i++)
                    table[i] = fractions ? (float)(i - 7) / 7.3f : (float)(i * i - 112);
                q.p.w.table = 64;
                for (int c = 0; c < q.copies; c++)
                    CHECK(cudaMemcpy(q.blobs + q.blob_bytes * c + 64, table, 64,
                                     cudaMemcpyHostToDevice));
                struct qni_cuda_launch l = {stream, 0, 132, 90};
                const double us = time_graph(stream, 10, [&](int c) {
                    q.p.w.blob = q.blobs + q.blob_bytes * (c % q.copies);
                    CHECK((bf16 ? qni_matmul_bf16_t4frag_mr128_sm90a
                                : qni_matmul_f16_t4frag_mr128_sm90a)(&q.p, NULL, &l));
                });
                q.p.w.blob = q.blobs;
                printf("table %dx%d m %d g%d %s %s: %.1f\n", s.n, s.k, s.m, group,
                       bf16 ? "bf16" : "f16", fractions ? "fractions" : "integers", us);
                release(q);
            }
}
/* 4096 rows dealt to 8 experts evenly: sorted before, or by rows. */
static void time_routes(cudaStream_t stream)
{
    const struct shape_of s = {4096, 4096, 4096, 4, 128, 0, 0, 1, QN_F16, 1};
    const int experts = 8, each = s.m / experts;
    struct problem q = make(s, (size_t)experts * 4096 * 4096);
    for (int sorted = 0; sorted < 2; sorted++) {
        std::vector<int32_t> all;
        for (int i = 0; i < s.m; i++)
            all.push_back(sorted ? i : i % each * experts + i / each);
        for (int i = 0; i < s.m; i += 128) {
            all.push_back(i / each);
            all.push_back(i);
            all.push_back(128);
        }
        int32_t *d;
        CHECK(cudaMalloc(&d, all.size() * 4));
        CHECK(cudaMemcpy(d, all.data(), all.size() * 4, cudaMemcpyHostToDevice));
        struct qni_cuda_experts ex = {0, experts};
        for (int e = 0; e < experts; e++)
            ex.blob[e] = q.blobs + (e % q.copies) * q.blob_bytes;
        struct qni_cuda_product p = q.p;
        p.w.blob = NULL;
        p.routes.rows = d;
        p.routes.tiles = d + s.m;
        p.routes.n_tiles = s.m / 128;
        struct qni_cuda_launch l = {stream, 0, 132, 90};
        printf("8 experts of 4096x4096, 4096 rows, %s: %.1f\n", sorted ? "sorted" : "by rows",
               time_graph(stream, 10, [&](int) { CHECK(entry_of(0, 4, 128)(&p, &ex, &l)); }));
        CHECK(cudaFree(d));
    }
    release(q);
}
#endif

/* What the chip does meanwhile: clock in MHz and watts, after some time of the same again. */
struct gauge {
    void *device;
    int (*clock)(void *, int, unsigned *), (*power)(void *, unsigned *);
};
static struct gauge open_gauge(void)
{
    struct gauge g = {};
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (lib == NULL)
        return g;
    int (*init)(void) = (int (*)(void))dlsym(lib, "nvmlInit_v2");
    int (*handle)(unsigned, void **) =
        (int (*)(unsigned, void **))dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
    g.clock = (decltype(g.clock))dlsym(lib, "nvmlDeviceGetClockInfo");
    g.power = (decltype(g.power))dlsym(lib, "nvmlDeviceGetPowerUsage");
    if (init() != 0 || handle(0, &g.device) != 0)
        g.device = NULL;
    return g;
}
template <class F>
static void read_gauge(const struct gauge &g, cudaStream_t stream, double us, const char *who,
                       F call)
{
    unsigned mhz = 0, milliwatts = 0;
    if (g.device == NULL)
        return;
    const int calls = (int)(120e3 / us) + 1;
    for (int i = 0; i < calls; i++)
        call(i);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(90))
        ;
    g.clock(g.device, 1, &mhz);
    g.power(g.device, &milliwatts);
    CHECK(cudaStreamSynchronize(stream));
    printf(" %s %u MHz %u W", who, mhz, milliwatts / 1000);
}

#ifndef LAB_SMALL
/* Rows that round weights beside those that do not and cuBLAS, by turns. */
static void time_rounded(cudaStream_t stream, const struct blas &b, const struct gauge &g,
                         const struct shape_of &s, bool forms)
{
    const bool large = (size_t)s.m * s.n * s.k > (1ull << 36);
    const int calls = large ? 4 : 20;
    struct problem q = make(s, (size_t)160e6);
    struct qni_cuda_launch l = {stream, 0, 132, 90};
    printf("%5d x %5d m %4d w%d%s g%d%s%s |", s.n, s.k, s.m, s.bits, s.bf16 ? " bf16" : "", s.group,
           s.zero == 1   ? " zero"
           : s.zero == 2 ? " offset"
                         : "",
           s.scale_is_f16 ? "" : " f32s");
    double times[3][3] = {};
    auto entry = [&](qni_cuda_matmul_fn *fn) {
        return time_graph(stream, calls, [&](int c) {
            q.p.w.blob = q.blobs + q.blob_bytes * (c % q.copies);
            CHECK(fn(&q.p, NULL, &l));
        });
    };
    for (int i = 0; i < 3; i++) {
        times[0][i] = s.bf16 ? 0 : time_blas(b, stream, s.n, s.k, s.m);
        times[1][i] = entry(dense_of(s.bf16, s.bits));
        if (entry_of(s.bf16, s.bits, 128) != NULL)
            times[2][i] = entry(entry_of(s.bf16, s.bits, s.m <= 64 ? 64 : 128));
    }
    for (auto &t : times)
        std::sort(t, t + 3);
    printf(" cublas %.1f dense %.1f float %.1f | of cublas %.3f, %.0f TF", times[0][1], times[1][1],
           times[2][1], times[1][1] / times[0][1], 2e-6 * (double)s.m * s.n * s.k / times[1][1]);
    for (auto &v : rounded)
        for (int splits = 1; forms && splits < 3; splits++) {
            if (!takes(v, s, q) ||
                (fits(q.p.w, PAIRS) && v.mode != PAIRS && v.rounding == BY_F16) ||
                (s.m > 256 && v.tokens < 128) || (s.m <= 64 && v.tokens > 64) ||
                (splits > 1 && tiles_of(q.p, v.tokens) % 132 > 66))
                continue;
            printf(" %d%s%sk%d:%.1f", v.tokens, v.mode == PAIRS ? "" : "u",
                   v.rounding == BY_F32 ? "f" : "", splits, time_graph(stream, calls, [&](int c) {
                       q.p.w.blob = q.blobs + q.blob_bytes * (c % q.copies);
                       CHECK(v.fn(&q.p, &l, splits));
                   }));
        }
    if (s.m >= 1024) {
        qni_cuda_matmul_fn *const dense = dense_of(s.bf16, s.bits);
        read_gauge(g, stream, times[1][1], "| dense", [&](int c) {
            q.p.w.blob = q.blobs + q.blob_bytes * (c % q.copies);
            CHECK(dense(&q.p, NULL, &l));
        });
    }
    printf("\n");
    fflush(stdout);
    release(q);
}
static void time_dense(cudaStream_t stream, const struct blas &b, bool others)
{
    const int sizes[][2] = {{4096, 4096}, {14336, 4096}, {8192, 8192}, {28672, 8192}};
    const struct gauge g = open_gauge();
    for (int group : {128, 32})
        for (auto &size : sizes)
            for (int m : {64, 256, 1024, 4096})
                if (!others)
                    time_rounded(stream, b, g, {size[0], size[1], m, 4, group, 0, 0, 1, QN_F16, 1},
                                 m != 4096);
    const struct shape_of more[] = {
        {4096, 4096, 1024, 4, 64, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 128, 0, 1, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 32, 0, 1, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 32, 0, 2, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 128, 0, 0, 0, QN_F16, 1},
        {4096, 4096, 1024, 8, 128, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 1024, 8, 32, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 1024, 4, 128, 1, 0, 1, QN_BF16, 1},
        {4096, 4096, 1024, 4, 32, 1, 0, 1, QN_BF16, 1},
        {8192, 8192, 4096, 4, 128, 1, 0, 1, QN_BF16, 1},
        {8192, 8192, 4096, 8, 128, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 128, 4, 64, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 200, 4, 128, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 512, 4, 128, 0, 0, 1, QN_F16, 1},
        {4096, 4096, 2048, 4, 128, 0, 0, 1, QN_F16, 1},
        {13824, 5120, 512, 4, 128, 0, 0, 1, QN_F16, 1},
        {3584, 18944, 512, 4, 128, 0, 0, 1, QN_F16, 1},
        {8192, 8192, 3000, 4, 128, 0, 0, 1, QN_F16, 1},
    };
    for (auto &s : more)
        if (others)
            time_rounded(stream, b, g, s, true);
}
#endif

/* One launch of every form, for profilers and sanitizers: n k m group */
static void one(cudaStream_t stream, char **v)
{
    const struct shape_of s = {atoi(v[0]), atoi(v[1]), atoi(v[2]), 4,      atoi(v[3]),
                               0,          1,          1,          QN_F16, 1};
    struct problem q = make(s, 0);
    struct qni_cuda_launch l = {stream, 0, 132, 90};
    for (auto &k : variants)
        if (k.bits == 4 && !k.bf16 && fits(q.p.w, k.mode)) {
            CHECK(k.fn(&q.p, &l, 1));
            CHECK(k.fn(&q.p, &l, 2));
        }
    CHECK(cudaStreamSynchronize(stream));
    release(q);
}

int main(int argc, char **argv)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "one") && i + 4 < argc)
            one(stream, argv + i + 1);
        if (!strcmp(argv[i], "quick"))
            check_all(stream, true);
        if (!strcmp(argv[i], "check")) {
            check_all(stream, false);
            check_routes(stream);
        }
#ifndef LAB_SMALL
        if (!strcmp(argv[i], "rounded"))
            check_rounded(stream, false);
        if (!strcmp(argv[i], "dense") && !failures)
            time_dense(stream, open_blas(stream), false);
        if (!strcmp(argv[i], "moredense") && !failures)
            time_dense(stream, open_blas(stream), true);
#endif
        if (!strcmp(argv[i], "time") && !failures)
            time_all(stream, open_blas(stream), false);
#ifdef LAB_ALL
        if (!strcmp(argv[i], "tables"))
            time_tables(stream);
        if (!strcmp(argv[i], "routes"))
            time_routes(stream);
#endif
        if (!strcmp(argv[i], "more") && !failures)
            time_all(stream, open_blas(stream), true);
    }
    printf(failures ? "%d failures\n" : "ok\n", failures);
    return failures != 0;
}
