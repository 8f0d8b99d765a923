/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill kernel for rows of int8 with short segments (src/cuda/matmul/prefill_short.cuh) by
 * itself: bits against a plain kernel, times of each tile. NOTES.md has the results.
 *
 *   nvcc -O3 -std=c++17 --fmad=false -Iinclude -gencode=arch=compute_90a,code=sm_90a \
 *        lab/cuda/prefill_int8.cu -o prefill_int8 && ./prefill_int8
 *
 * -DLAB_BITS=8, -DLAB_MODE=BLOCKS, -DLAB_ONE=64 for others. Weights rotate over at least 100 MB. */
#include "../../src/cuda/matmul/prefill_kernel.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#ifndef LAB_BITS
#define LAB_BITS 4
#endif
#ifndef LAB_MODE
#define LAB_MODE UNITS
#endif

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
/* 0: bytes; 1: f16 about 0.01; 2: f32 about 0.01; 3: zeros from -8 to 7 */
static __global__ void fill(void *to, size_t n, int what, uint64_t seed)
{
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        const uint32_t r = mix(i + seed * 7777777);
        const float v = ((float)(r & 0xffff) + (float)(r >> 16)) * (1.0f / 32768) - 2;
        if (what == 0)
            ((uint8_t *)to)[i] = (uint8_t)(r >> 7);
        else if (what == 1)
            ((__half *)to)[i] = __float2half(0.01f + 0.003f * v);
        else if (what == 2)
            ((float *)to)[i] = 0.01f + 0.003f * v;
        else
            ((int8_t *)to)[i] = (int8_t)((int)(r % 16) - 8);
    }
}
static __device__ int code_of(const struct qni_cuda_weights &w, int n, int block, int byte)
{
    const int step = byte / 16, t = byte % 16 / 4, j = byte % 4, o = n % 16, l = o % 8 * 4 + t;
    const uint8_t *at = w.blob + w.codes +
                        ((size_t)(n / 16) * (w.units / 2) + block) * (LAB_BITS == 4 ? 512 : 1024);
    if (LAB_BITS == 4)
        return (int)(((const uint32_t *)at)[l * 4 + step] >> (4 * (2 * j + o / 8)) & 15) - 8;
    return (int)at[step / 2 * 512 + l * 16 + (step % 2 * 2 + o / 8) * 4 + j] - 128;
}
static __global__ void make_sums(const struct qni_cuda_weights w)
{
    const int i = blockIdx.x * 256 + threadIdx.x, n = i / w.n_segments, s = i % w.n_segments;
    if (n >= w.n)
        return;
    int sum = 0;
    for (int u = s * w.segment_units; u < (s + 1) * w.segment_units; u++)
        for (int k = 0; k < 32; k++)
            sum += code_of(w, n, u / 2, u % 2 * 32 + k);
    ((int32_t *)(w.blob +
                 w.sums))[((size_t)(n / 16) * w.n_segments + s) * 16 + n % 8 * 2 + n % 16 / 8] =
        sum;
}
/* By the definition: docs/numerics.md. One thread a sample. */
static __global__ void reference(const struct qni_cuda_product p, int count, int *wrong)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count)
        return;
    const struct qni_cuda_weights &w = p.w;
    const uint32_t r = mix(i + 99);
    const int64_t row = i < 2 * p.m ? i / 2 : mix(r) % p.m;
    const int n = r % w.n;
    float acc = 0;
    for (int s = 0; s < w.n_segments; s++) {
        int dot = 0;
        for (int u = s * w.segment_units; u < (s + 1) * w.segment_units; u++)
            for (int k = 0; k < 32; k++) {
                const int byte = u % 2 * 32 + k;
                dot += code_of(w, n, u / 2, byte) *
                       ((const int8_t *)p.x.a)[row * p.x.lda + u / 2 * 64 + byte];
            }
        const int g = w.n_groups > 1 ? s : 0;
        const size_t fact = ((size_t)(n / 16) * w.n_groups + g) * 16 + n % 8 * 2 + n % 16 / 8;
        const size_t sums = ((size_t)(n / 16) * w.n_segments + s) * 16 + n % 8 * 2 + n % 16 / 8;
        const float scale = w.scale_is_f16
                                ? __half2float(((const __half *)(w.blob + w.scale))[fact])
                                : ((const float *)(w.blob + w.scale))[fact];
        const int sum = ((const int32_t *)(w.blob + w.sums))[sums];
        const int64_t at = row * p.x.ld_segment + s;
        const float t = p.x.offset != NULL
                            ? fmaf(p.x.scale[at], (float)dot, p.x.offset[at] * (float)sum)
                            : p.x.scale[at] * (float)dot;
        acc = fmaf(scale, t, acc);
        if (w.shift == QNI_CUDA_SHIFT_ZERO)
            acc =
                fmaf(-(float)((const int8_t *)(w.blob + w.zero))[fact] * scale, p.x.total[at], acc);
    }
    if (((const float *)p.out.y)[row * p.out.stride[2] + n] != acc)
        atomicAdd(wrong, 1);
}

typedef int32_t run_fn(const struct qni_cuda_product *, const struct qni_cuda_experts *,
                       const struct qni_cuda_launch *, int splits);
static const struct {
    int tokens;
    run_fn *fn;
} variants[] = {
#ifdef LAB_ONE
    {LAB_ONE, start<form8<Q8B, LAB_BITS, LAB_ONE, LAB_MODE, false>>},
#else
    {16, start<form8<Q8B, LAB_BITS, 16, LAB_MODE, false>>},
    {32, start<form8<Q8B, LAB_BITS, 32, LAB_MODE, false>>},
    {64, start<form8<Q8B, LAB_BITS, 64, LAB_MODE, false>>},
    {128, start<form8<Q8B, LAB_BITS, 128, LAB_MODE, false>>},
#endif
};

/* Blobs of one weight, one after the other. */
static struct qni_cuda_weights weights_of(int n, int k, int zeros, size_t *bytes)
{
    struct qni_cuda_weights w = {};
    w.layout = LAB_BITS == 4 ? QNI_CUDA_Q4FRAG : QNI_CUDA_Q8FRAG;
    w.parts = 1;
    w.panels = (n + 15) / 16;
    w.n = n;
    w.units = (k + 63) / 64 * 2;
    w.segment_units = w.group_units = LAB_MODE == UNITS ? 1 : LAB_MODE == BLOCKS ? 2 : 4;
    w.n_segments = w.n_groups = (k / 32 + w.group_units - 1) / w.group_units;
    w.segments_per_group = 1;
    w.scale_is_f16 = 1;
    w.shift = zeros ? QNI_CUDA_SHIFT_ZERO : QNI_CUDA_SHIFT_NONE;
    size_t at = 0;
    const auto take = [&](size_t size) {
        const size_t from = at;
        at = (at + size + 255) / 256 * 256;
        return from;
    };
    w.codes = take((size_t)w.panels * (w.units / 2) * (LAB_BITS == 4 ? 512 : 1024));
    w.scale = take((size_t)w.panels * w.n_groups * 32);
    w.zero = take((size_t)w.panels * w.n_groups * 16);
    w.sums = take((size_t)w.panels * w.n_segments * 64);
    *bytes = at;
    return w;
}

static void lab(int n, int k, int m, int zeros, int symmetric, bool timed)
{
    size_t bytes;
    struct qni_cuda_product p = {};
    p.w = weights_of(n, k, zeros, &bytes);
    const int copies = timed ? (int)(100e6 / bytes) + 2 : 1, ld = (p.w.n_segments + 3) / 4 * 4;
    uint8_t *blobs, *x;
    float *facts, *y;
    int *wrong;
    CHECK(cudaMalloc(&blobs, bytes * copies));
    CHECK(cudaMalloc(&x, (size_t)m * p.w.units * 32));
    CHECK(cudaMalloc(&facts, ((size_t)m * ld * 3 + m + 64) * 4));
    CHECK(cudaMalloc(&y, (size_t)m * n * 4));
    CHECK(cudaMallocManaged(&wrong, 4));
    for (int c = 0; c < copies; c++) {
        struct qni_cuda_weights w = p.w;
        w.blob = blobs + c * bytes;
        fill<<<1024, 256>>>(blobs + c * bytes, bytes, 0, c);
        fill<<<256, 256>>>(blobs + c * bytes + w.scale, (size_t)w.panels * w.n_groups * 16, 1, c);
        fill<<<256, 256>>>(blobs + c * bytes + w.zero, (size_t)w.panels * w.n_groups * 16, 3, c);
        make_sums<<<(n * w.n_segments + 255) / 256, 256>>>(w);
    }
    fill<<<1024, 256>>>(x, (size_t)m * p.w.units * 32, 0, 5);
    fill<<<1024, 256>>>(facts, (size_t)m * ld * 3 + m, 2, 6);
    p.w.blob = blobs;
    p.x.a = x;
    p.x.lda = p.x.columns = p.w.units * 32;
    p.x.planes = 1;
    p.x.part_rows = p.m = m;
    p.x.ld_segment = ld;
    p.x.x_scale = 1.0f;
    p.x.scale = facts;
    p.x.offset = symmetric ? NULL : facts + (size_t)m * ld;
    p.x.total = facts + 2 * (size_t)m * ld;
    p.out.y = y;
    p.out.y_dtype = QN_F32;
    p.out.stride[2] = n;
    p.out.stride[3] = 1;
    p.out.is_plain = 1;
    const double ops = 2.0 * m * n * k;
    for (const auto &v : variants) {
        const struct qni_cuda_launch one = {NULL, 0, 132, 90};
        p.w.blob = blobs;
        p.out.y_dtype = QN_F32;
        CHECK(cudaMemset(y, 0xff, (size_t)m * n * 4));
        *wrong = 0;
        CHECK(v.fn(&p, NULL, &one, 1));
        CHECK(cudaDeviceSynchronize());
        reference<<<400, 256>>>(p, 100000, wrong);
        CHECK(cudaDeviceSynchronize());
        printf("%5d x %5d m %4d zeros %d sym %d tokens %3d: wrong %d", n, k, m, zeros, symmetric,
               v.tokens, *wrong);
        if (timed) {
            p.out.y_dtype = QN_F16;
            cudaStream_t s;
            cudaGraph_t g;
            cudaGraphExec_t e;
            CHECK(cudaStreamCreate(&s));
            CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
            const struct qni_cuda_launch in = {s, 0, 132, 90};
            for (int c = 0; c < copies; c++) {
                p.w.blob = blobs + c * bytes;
                CHECK(v.fn(&p, NULL, &in, 1));
            }
            CHECK(cudaStreamEndCapture(s, &g));
            CHECK(cudaGraphInstantiate(&e, g, 0));
            std::vector<float> us;
            cudaEvent_t t0, t1;
            CHECK(cudaEventCreate(&t0));
            CHECK(cudaEventCreate(&t1));
            for (int i = 0; i < 12; i++) {
                CHECK(cudaEventRecord(t0, s));
                CHECK(cudaGraphLaunch(e, s));
                CHECK(cudaEventRecord(t1, s));
                CHECK(cudaEventSynchronize(t1));
                float ms;
                CHECK(cudaEventElapsedTime(&ms, t0, t1));
                us.push_back(ms * 1e3f / copies);
            }
            std::sort(us.begin(), us.end());
            printf("  %8.2f us  %6.1f TOP/s", us[6], ops / us[6] * 1e-6);
        }
        printf("\n");
        fflush(stdout);
    }
    CHECK(cudaFree(blobs));
    CHECK(cudaFree(x));
    CHECK(cudaFree(facts));
    CHECK(cudaFree(y));
    CHECK(cudaFree(wrong));
}

int main()
{
    lab(200, 224, 70, 0, 0, false);
    lab(200, 4096, 300, 1, 0, false);
    lab(144, 4096, 130, 1, 1, false);
    for (int m : {64, 256, 1024, 4096})
        lab(4096, 4096, m, 0, 0, true);
    lab(4096, 4096, 4096, 0, 1, true);
    lab(4096, 4096, 4096, 1, 0, true);
    return 0;
}
