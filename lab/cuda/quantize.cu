/* SPDX-License-Identifier: Apache-2.0 */
/* The online quantization of a product with int8 blocks on both sides, with offsets: what does one pass over x win?
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc lab/cuda/quantize.cu \
 *        src/cuda/rows/{prepare,staged,general}_sm75.cu -o quantize && ./quantize
 *
 * The straightforward version is the loop that one writes first: for each block of 128 positions, (1) a CTA a row finds the
 * extremes, writes scale, offset and sum, and quantizes; (2) an int8 product of the block into int32 [m, n]; (3) every int32 becomes
 * scale_a scale_b dot + ... and is added to y. Its cost is not arithmetic: 3 launches a block, 256 bytes of a row at a time, and 12
 * bytes a result a block for the int32 matrix and y. Here are the loop (quantization alone, and all of it), the same quantizer
 * launched once for all blocks, and the one pass of src/cuda/rows, which writes the fragment order besides. Results of the loop are
 * compared with doubles, codes of the pass with the loop's up to their different roundings. NOTES.md has the figures. */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "cuda/kernel.h"

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (x);                                                                      \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s (line %d)\n", #x, cudaGetErrorString(e_), __LINE__);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { BLOCK = 128, THREADS = 128, TILE = 64, COPIES = 6 };

/* (1) Block `first / BLOCK` of every row; blockIdx.y: further blocks, where all are done at once. */
static __global__ void quantize_block(const __half *x, int ldx, int first, int8_t *codes, int ld_codes, float *scale,
                                      float *offset, int32_t *sum, int ld_facts)
{
    __shared__ float lows[THREADS / 32], highs[THREADS / 32];
    __shared__ int sums[THREADS / 32];
    const int row = blockIdx.x, t = threadIdx.x, lane = t & 31, warp = t >> 5;
    first += blockIdx.y * BLOCK;
    float lo = INFINITY, hi = -INFINITY;
    for (int i = t; i < BLOCK; i += THREADS) {
        const float v = __half2float(x[(size_t)row * ldx + first + i]);
        lo = fminf(lo, v);
        hi = fmaxf(hi, v);
    }
    for (int s = 16; s > 0; s /= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, s));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, s));
    }
    if (lane == 0) {
        lows[warp] = lo;
        highs[warp] = hi;
    }
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) {
        lo = fminf(lo, lows[i]);
        hi = fmaxf(hi, highs[i]);
    }
    const float step = (hi - lo) / 255.0f, s = step > 1e-30f ? step : 1.0f, o = hi - s * 127.0f;
    int total = 0;
    for (int i = t; i < BLOCK; i += THREADS) {
        const float v = __half2float(x[(size_t)row * ldx + first + i]);
        const int q = max(-128, min(127, (int)rintf((v - o) / s)));
        codes[(size_t)row * ld_codes + blockIdx.y * BLOCK + i] = (int8_t)q;
        total += q;
    }
    for (int k = 16; k > 0; k /= 2)
        total += __shfl_xor_sync(~0u, total, k);
    if (lane == 0)
        sums[warp] = total;
    __syncthreads();
    if (t == 0) {
        total = 0;
        for (int i = 0; i < THREADS / 32; i++)
            total += sums[i];
        scale[(size_t)row * ld_facts + blockIdx.y] = s;
        offset[(size_t)row * ld_facts + blockIdx.y] = o;
        sum[(size_t)row * ld_facts + blockIdx.y] = total;
    }
}

/* (2) dot[m, n] = codes[m, BLOCK] . w[n, first + BLOCK]^T on tensor cores: a CTA of 4 warps 64 x 64. */
static __global__ void multiply(const int8_t *codes, const int8_t *w, int ldw, int32_t *dot, int n)
{
    using namespace nvcuda;
    const int row = blockIdx.y * TILE + (threadIdx.x >> 5) * 16, column = blockIdx.x * TILE;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> c[4];
    for (int j = 0; j < 4; j++)
        wmma::fill_fragment(c[j], 0);
    for (int k = 0; k < BLOCK; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> a;
        wmma::load_matrix_sync(a, (const signed char *)codes + (size_t)row * BLOCK + k, BLOCK);
        for (int j = 0; j < 4; j++) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> b;
            wmma::load_matrix_sync(b, (const signed char *)w + (size_t)(column + 16 * j) * ldw + k, ldw);
            wmma::mma_sync(c[j], a, b, c[j]);
        }
    }
    for (int j = 0; j < 4; j++)
        wmma::store_matrix_sync(dot + (size_t)row * n + column + 16 * j, c[j], n, wmma::mem_row_major);
}

/* (3) y += sum over the block of (sa qa + oa)(sb qb + ob). */
static __global__ void accumulate(const int32_t *dot, __half *y, const float *sa, const float *oa, const int32_t *suma,
                                  const float *sb, const float *ob, const int32_t *sumb, int groups, int group, int m, int n)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j >= n || i >= m)
        return;
    const float s = sb[(size_t)j * groups + group], o = ob[(size_t)j * groups + group];
    const float v = sa[i] * s * (float)dot[(size_t)i * n + j] + sa[i] * o * (float)suma[i] +
                    oa[i] * s * (float)sumb[(size_t)j * groups + group] + oa[i] * o * (float)BLOCK;
    y[(size_t)i * n + j] = __float2half(__half2float(y[(size_t)i * n + j]) + v);
}

/* Median microseconds of a run of `body`, recorded once; the argument counts the copies of x. */
static double time_of(const std::function<void(int, cudaStream_t)> &body, int repeats)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    std::vector<double> times;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < repeats; i++)
        body(i % COPIES, stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 9; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i > 1)
            times.push_back(ms * 1e3 / repeats);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2];
}

template <class T> static T *on_device(size_t n)
{
    T *p;
    CHECK(cudaMalloc(&p, n * sizeof(T)));
    CHECK(cudaMemset(p, 0, n * sizeof(T)));
    return p;
}

static void measure(int m, int n, int k)
{
    const int groups = k / BLOCK;
    std::vector<__half> x((size_t)m * k);
    std::vector<int8_t> w((size_t)n * k);
    std::vector<float> sb((size_t)n * groups), ob((size_t)n * groups);
    std::vector<int32_t> sumb((size_t)n * groups);
    uint32_t seed = 1;
    for (auto &v : x)
        v = __float2half((float)(int32_t)(seed = seed * 1664525u + 1013904223u) / 2147483648.0f + 0.25f);
    for (auto &v : w)
        v = (int8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    for (size_t i = 0; i < sb.size(); i++) {
        sb[i] = 1e-3f * (float)(1 + i % 7);
        ob[i] = 1e-2f * (float)((int)(i % 5) - 2);
        for (int p = 0; p < BLOCK; p++)
            sumb[i] += w[i / groups * k + i % groups * BLOCK + p];
    }
    __half *dx[COPIES], *y = on_device<__half>((size_t)m * n);
    for (int i = 0; i < COPIES; i++) {
        dx[i] = on_device<__half>(x.size());
        CHECK(cudaMemcpy(dx[i], x.data(), x.size() * 2, cudaMemcpyHostToDevice));
    }
    int8_t *dw = on_device<int8_t>(w.size()), *codes = on_device<int8_t>((size_t)m * k);
    float *dsb = on_device<float>(sb.size()), *dob = on_device<float>(sb.size());
    int32_t *dsumb = on_device<int32_t>(sb.size()), *dot = on_device<int32_t>((size_t)m * n);
    float *scale = on_device<float>((size_t)m * groups), *offset = on_device<float>((size_t)m * groups);
    float *total = on_device<float>((size_t)m * groups);
    int32_t *sum = on_device<int32_t>((size_t)m * groups);
    CHECK(cudaMemcpy(dw, w.data(), w.size(), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dsb, sb.data(), sb.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dob, ob.data(), ob.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dsumb, sumb.data(), sumb.size() * 4, cudaMemcpyHostToDevice));

    const auto loop = [&](int copy, cudaStream_t s, bool with_product) {
        if (with_product)
            CHECK(cudaMemsetAsync(y, 0, (size_t)m * n * 2, s));
        for (int g = 0; g < groups; g++) {
            quantize_block<<<m, THREADS, 0, s>>>(dx[copy], k, g * BLOCK, codes, BLOCK, scale, offset, sum, 1);
            if (!with_product)
                continue;
            multiply<<<dim3(n / TILE, m / TILE), 128, 0, s>>>(codes, dw + g * BLOCK, k, dot, n);
            accumulate<<<dim3((n + 255) / 256, m), 256, 0, s>>>(dot, y, scale, offset, sum, dsb, dob, dsumb, groups, g, m, n);
        }
    };
    const double all = time_of([&](int i, cudaStream_t s) { loop(i, s, true); }, 2);
    std::vector<__half> got((size_t)m * n);
    CHECK(cudaMemcpy(got.data(), y, got.size() * 2, cudaMemcpyDeviceToHost));
    double worst = 0;
    for (int t = 0; t < 200; t++) {
        const size_t i = (size_t)t * 7919 % m, j = (size_t)t * 104729 % n;
        double exact = 0, size = 0;
        for (int p = 0; p < k; p++) {
            const size_t g = j * groups + p / BLOCK;
            const double v = __half2float(x[i * k + p]) * ((double)sb[g] * w[j * k + p] + ob[g]);
            exact += v;
            size += fabs(v);
        }
        worst = std::max(worst, fabs(__half2float(got[i * n + j]) - exact) / size);
    }
    const double loop_quantizer = time_of([&](int i, cudaStream_t s) { loop(i, s, false); }, 10);
    const double one_launch = time_of(
        [&](int i, cudaStream_t s) {
            quantize_block<<<dim3(m, groups), THREADS, 0, s>>>(dx[i], k, 0, codes, k, scale, offset, sum, groups);
        },
        20);
    struct qni_cuda_source source = {};
    source.dtype = QN_F16;
    source.ldx = source.k = k;
    source.x_rows = source.n_rows = m;
    source.parts = 1;
    source.n_groups = source.n_segments = groups;
    source.group_units = source.segment_units = BLOCK / 32;
    source.units = k / 32;
    source.group_len = source.last_len = BLOCK;
    source.reads = QNI_CUDA_READS_Q8B;
    source.to.a = codes;
    source.to.lda = k;
    source.to.sum = sum;
    source.to.scale = scale;
    source.to.offset = offset;
    source.to.total = total;
    source.to.ld_segment = groups;
    const double pass = time_of(
        [&](int i, cudaStream_t s) {
            const struct qni_cuda_launch launch = {s, 0, 132, 90};
            source.x = dx[i];
            if (qni_cuda_prepare_sm75(&source, &launch) != 0)
                exit(1);
        },
        20);
    const double bytes = (double)m * k * 3 + (double)m * groups * 16;
    printf("m %d n %d k %d: three-kernel loop %.0f us (error %.1e of sum |x w|), its quantizer alone %.1f us;\n"
           "    the same, all blocks in one launch %.1f us; the pass %.2f us = %.0f GB/s: %.1f times the loop's quantizer\n",
           m, n, k, all, worst, loop_quantizer, one_launch, pass, bytes / pass * 1e-3, loop_quantizer / pass);
    for (int i = 0; i < COPIES; i++)
        CHECK(cudaFree(dx[i]));
    for (void *p : {(void *)y, (void *)dw, (void *)codes, (void *)dsb, (void *)dob, (void *)dsumb, (void *)dot, (void *)scale,
                    (void *)offset, (void *)total, (void *)sum})
        CHECK(cudaFree(p));
}

/* The pass alone, by kind of scale: codes to one place, as in a plan, and to COPIES of them. */
static void passes(int m, int k)
{
    const int blocks = k / BLOCK;
    __half *x[COPIES];
    int8_t *codes[COPIES];
    std::vector<__half> values((size_t)m * k);
    uint32_t seed = 1;
    for (auto &v : values)
        v = __float2half((float)(int32_t)(seed = seed * 1664525u + 1013904223u) / 2147483648.0f);
    for (int i = 0; i < COPIES; i++) {
        x[i] = on_device<__half>(values.size());
        codes[i] = on_device<int8_t>(values.size());
        CHECK(cudaMemcpy(x[i], values.data(), values.size() * 2, cudaMemcpyHostToDevice));
    }
    float *facts = on_device<float>((size_t)m * blocks * 4);
    printf("m %d k %d:", m, k);
    for (const int kind : {0, 1, 2}) { /* a row has one scale; blocks, symmetric; with offsets */
        struct qni_cuda_source s = {};
        const int n = kind == 0 ? 1 : blocks, each = k / n;
        s.dtype = QN_F16;
        s.ldx = s.k = k;
        s.x_rows = s.n_rows = m;
        s.parts = 1;
        s.n_groups = s.n_segments = n;
        s.group_units = s.segment_units = each / 32;
        s.units = k / 32;
        s.group_len = s.last_len = each;
        s.symmetric = kind != 2;
        s.reads = kind == 0 ? QNI_CUDA_READS_Q8 : QNI_CUDA_READS_Q8B;
        s.to.lda = k;
        s.to.sum = (int32_t *)facts;
        s.to.scale = s.to.row_scale = facts + (size_t)m * blocks;
        s.to.offset = kind == 2 ? facts + (size_t)m * blocks * 2 : nullptr;
        s.to.total = kind == 0 ? nullptr : facts + (size_t)m * blocks * 3;
        s.to.ld_segment = n;
        printf("  |");
        for (const int places : {1, (int)COPIES})
            for (const int pdl : {0, 1})
                printf(" %6.2f", time_of(
                                     [&](int i, cudaStream_t stream) {
                                         const struct qni_cuda_launch launch = {stream, pdl, 132, 90};
                                         s.x = x[i];
                                         s.to.a = codes[i % places];
                                         if (qni_cuda_prepare_sm75(&s, &launch) != 0)
                                             exit(1);
                                     },
                                     24));
    }
    printf("\n");
    for (int i = 0; i < COPIES; i++) {
        CHECK(cudaFree(x[i]));
        CHECK(cudaFree(codes[i]));
    }
    CHECK(cudaFree(facts));
}

int main(int argc, char **)
{
    printf("us of the pass: row | blocks | blocks with offsets; codes to one place, with PDL, to six, with PDL\n");
    for (const int m : {1, 16, 64, 256, 1024, 4096})
        passes(m, 4096);
    passes(4096, 512);
    passes(4096, 8192);
    if (argc > 1)
        return 0;
    measure(64, 4096, 4096);
    measure(1024, 4096, 4096);
    measure(4096, 4096, 4096);
    return 0;
}
