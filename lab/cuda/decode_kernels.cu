/* SPDX-License-Identifier: Apache-2.0 */
/* The decode kernels of src/cuda/matmul by themselves, without a library around them: every case
 * against sums in double (f32 y, the bound of docs/numerics.md), then timed in CUDA graphs, weights
 * rotated past L2, with f16 y, without and with programmatic dependent launch. Reads the cases from
 * its arguments: n x k : bits : group (0: one) : shift (0 none, 1 zero, 2 offset) : m, m, ...
 *
 *   nvcc -O3 -std=c++17 --fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *     lab/cuda/decode_kernels.cu src/cuda/matmul/decode_{one_sm80,sm80,sm90a}.cu \
 *     -o decode_kernels &&
 *   ./decode_kernels 4096x4096:4:128:0:1,16 8192x8192:4:128:0:1,16 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

struct row {
    const char *name;
    qni_cuda_matmul_fn *fn;
    int bits, m_lo, m_hi;
};
static const row rows[] = {
    {"q4 mr1", qni_matmul_f16_q4frag_mr1_sm80, 4, 1, 1},
    {"q4 mr8", qni_matmul_f16_q4frag_mr8_sm80, 4, 1, 8},
    {"q4 mr16", qni_matmul_f16_q4frag_mr16_sm80, 4, 9, 16},
    {"q8 mr1", qni_matmul_f16_q8frag_mr1_sm80, 8, 1, 1},
    {"q8 mr8", qni_matmul_f16_q8frag_mr8_sm80, 8, 1, 8},
    {"q8 mr16", qni_matmul_f16_q8frag_mr16_sm80, 8, 9, 16},
    {"q4 wgmma", qni_matmul_f16_q4frag_mr32_sm90a, 4, 1, 32},
    {"q8 wgmma", qni_matmul_f16_q8frag_mr32_sm90a, 8, 1, 32},
};

__device__ double value_of(const qni_cuda_weights &w, int bits, int o, int p, double *offset)
{
    const int panel = o / 16, r = o % 16, g = r % 8, hi = r / 8, b = p / 64, s = p % 64 / 16;
    const int i = p % 16, t = i % 8 / 2, j = i % 2 * 2 + i / 8, lane = 4 * g + t;
    const size_t at = ((size_t)panel * (w.units / 2) + b) * (128 * bits);
    const uint8_t *codes = w.blob + w.codes + at;
    int code;
    if (bits == 4) {
        const uint32_t word = *(const uint32_t *)(codes + lane * 16 + s * 4);
        code = (int)(word >> (4 * (2 * j + hi)) & 15) - 8;
    } else {
        code = codes[s / 2 * 512 + lane * 16 + (s % 2 * 2 + hi) * 4 + j] - 128;
    }
    const int q = min(p / 32 / w.group_units, w.n_groups - 1);
    const size_t pair = ((size_t)panel * w.n_groups + q) * 16 + 2 * g + hi;
    double v = code;
    if (w.shift == QNI_CUDA_SHIFT_ZERO)
        v -= ((const int8_t *)(w.blob + w.zero))[pair];
    v *= (double)__half2float(((const __half *)(w.blob + w.scale))[pair]);
    *offset = 0;
    if (w.shift == QNI_CUDA_SHIFT_OFFSET)
        *offset = (double)__half2float(((const __half *)(w.blob + w.offset))[pair]);
    return v;
}
/* One thread block an output: the sum, and what the bound is made of. */
__global__ void check(const qni_cuda_weights w, int bits, int k, const __half *x, const int *outs,
                      double *to)
{
    __shared__ double part[256];
    double v = 0, size = 0;
    for (int p = threadIdx.x; p < k; p += 128) {
        double offset;
        const double a = (double)__half2float(x[(size_t)blockIdx.y * k + p]);
        const double value = value_of(w, bits, outs[blockIdx.x], p, &offset);
        v += a * (value + offset);
        size += fabs(a) * (fabs(value) + fabs(offset));
    }
    part[threadIdx.x] = v;
    part[128 + threadIdx.x] = size;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 128; i++)
            v += part[i], size += part[128 + i];
        to[2 * (blockIdx.y * gridDim.x + blockIdx.x)] = v;
        to[2 * (blockIdx.y * gridDim.x + blockIdx.x) + 1] = size;
    }
}
__global__ void fill(uint32_t *w, size_t n, uint32_t seed, int kind)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u + seed;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
        h *= 3266489917u;
        h ^= h >> 16;
        __half2 v;
        if (kind == 1) /* scales */
            v = __floats2half2_rn(0.01f + 0.0001f * (h & 63), 0.01f + 0.0001f * (h >> 8 & 63));
        else if (kind == 2) /* x: all sizes, of both signs */
            v = __floats2half2_rn(
                ldexpf((float)(h & 2047) - 1023.5f, -8 - (int)(h >> 11 & 3) * 4),
                ldexpf((float)(h >> 16 & 2047) - 1023.5f, -8 - (int)(h >> 27 & 3) * 4));
        if (kind == 3) /* zero points */
            h = (h & 0x0f0f0f0f) - 0x00000000;
        w[i] = kind == 1 || kind == 2 ? *(const uint32_t *)&v : h;
    }
}

static cudaStream_t stream;
static uint8_t *pool;
static __half *x;
static uint8_t *y;
static double *sums;
static int *outs_at;

static size_t up(size_t v)
{
    return (v + 255) / 256 * 256;
}

static double time_of(const row &r, qni_cuda_product p, qni_cuda_launch l, size_t bytes, int copies)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    static const qni_cuda_experts none = {};
    const int calls = copies * std::max(1, 40 / copies);
    const uint8_t *const first = p.w.blob;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int c = 0; c < calls; c++) {
        p.w.blob = first + bytes * (size_t)(c % copies);
        if (r.fn(&p, &none, &l) != 0)
            printf("launch failed\n");
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> times;
    cudaEvent_t e0, e1;
    CHECK(cudaEventCreate(&e0));
    CHECK(cudaEventCreate(&e1));
    for (int i = 0; i < 9; i++) {
        CHECK(cudaEventRecord(e0, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(e1, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, e0, e1));
        times.push_back(ms * 1e3f / calls);
    }
    std::sort(times.begin() + 1, times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return times[5];
}

static void run(int n, int k, int bits, int group, int shift, int m, bool timed)
{
    qni_cuda_product p;
    memset(&p, 0, sizeof p);
    const int units = (k + 63) / 64 * 2, panels = (n + 15) / 16;
    const int groups = group == 0 ? 1 : (k + group - 1) / group;
    p.w.layout = bits == 4 ? QNI_CUDA_Q4FRAG : QNI_CUDA_Q8FRAG;
    p.w.scale_is_f16 = 1;
    p.w.shift = shift;
    p.w.parts = 1;
    p.w.panels = panels;
    p.w.n = n;
    p.w.units = units;
    p.w.n_groups = groups;
    p.w.group_units = group == 0 ? units : group / 32;
    const size_t codes = (size_t)panels * units * (64 * bits);
    const size_t table = up((size_t)panels * groups * 32);
    p.w.codes = getenv("MISALIGNED") != NULL ? 64 : 0;
    p.w.scale = p.w.codes + up(codes);
    p.w.offset = p.w.scale + table;
    p.w.zero = p.w.offset + table;
    const size_t bytes = up(p.w.zero + table);
    const int copies = timed ? (int)std::min<size_t>(80, (size_t)640e6 / bytes + 2) : 1;
    for (int c = 0; c < copies; c++) {
        uint8_t *at = pool + bytes * c;
        fill<<<1024, 256, 0, stream>>>((uint32_t *)(at + p.w.codes), codes / 4, 7, 0);
        fill<<<256, 256, 0, stream>>>((uint32_t *)(at + p.w.scale), table / 4, 9, 1);
        fill<<<256, 256, 0, stream>>>((uint32_t *)(at + p.w.offset), table / 4, 10, 1);
        fill<<<256, 256, 0, stream>>>((uint32_t *)(at + p.w.zero), table / 4, 13, 3);
    }
    p.w.blob = pool;
    p.m = m;
    p.x.a = x;
    p.x.lda = (int64_t)k * 2;
    p.x.planes = 1;
    p.x.columns = k;
    p.x.part_rows = m;
    p.x.x_scale = 1;
    p.out.y = y;
    p.out.is_plain = 1;
    p.out.stride[2] = n;
    p.out.stride[3] = 1;
    fill<<<256, 256, 0, stream>>>((uint32_t *)x, (size_t)32 * k / 2, 11, 2);
    const int some = std::min(n, 256);
    int outs[256];
    for (int i = 0; i < some; i++)
        outs[i] = i < 32 ? i : i < 64 ? n - 64 + i : (int)((unsigned)rand() % (unsigned)n);
    CHECK(cudaMemcpy(outs_at, outs, sizeof outs, cudaMemcpyHostToDevice));
    check<<<dim3(some, m), 128, 0, stream>>>(p.w, bits, k, x, outs_at, sums);
    std::vector<double> want(some * m * 2);
    CHECK(cudaMemcpyAsync(want.data(), sums, want.size() * 8, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (const row &r : rows) {
        if (r.bits != bits || m < r.m_lo || m > r.m_hi ||
            (shift == QNI_CUDA_SHIFT_OFFSET && strstr(r.name, "wgmma") != NULL))
            continue;
        qni_cuda_launch l = {};
        l.stream = stream;
        l.multiprocessors = 132;
        l.sm = 90;
        static const qni_cuda_experts none = {};
        std::vector<float> got((size_t)m * n), again((size_t)m * n);
        double worst = 0, us[2] = {0, 0};
        bool same = true, refused = false;
        for (int pdl = 0; pdl < 2; pdl++) {
            l.pdl = pdl;
            p.out.y_dtype = QN_F32;
            CHECK(cudaMemsetAsync(y, 0xff, (size_t)m * n * 4, stream));
            refused = r.fn(&p, &none, &l) != 0;
            if (refused)
                break;
            CHECK(cudaStreamSynchronize(stream));
            CHECK(
                cudaMemcpy((pdl ? again : got).data(), y, got.size() * 4, cudaMemcpyDeviceToHost));
            p.out.y_dtype = QN_F16;
            if (timed)
                us[pdl] = time_of(r, p, l, bytes, copies);
        }
        if (refused)
            continue;
        same = memcmp(got.data(), again.data(), got.size() * 4) == 0;
        for (int i = 0; i < m; i++)
            for (int j = 0; j < some; j++) {
                const double *const w = &want[2 * (i * some + j)];
                const double d = std::fabs(w[0] - (double)got[(size_t)i * n + outs[j]]);
                const double bound = 2.0 * (k + 8) * 0x1p-24 * w[1];
                worst = d <= bound * worst ? worst : d / bound;
            }
        printf("%5dx%-5d w%d g%-3d shift%d m%-2d %-12s %6.2f %6.2f us  %.4f of the bound%s%s\n", n,
               k, bits, group, shift, m, r.name, us[0], us[1], worst, worst <= 1 ? "" : " WRONG",
               same ? "" : " DIFFERS");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&pool, (size_t)1400 << 20));
    CHECK(cudaMalloc(&x, 32 * 65536 * 2));
    CHECK(cudaMalloc(&y, 32 * 65536 * 4));
    CHECK(cudaMalloc(&sums, 256 * 32 * 16));
    CHECK(cudaMalloc(&outs_at, 256 * 4));
    bool timed = true;
    for (int i = 1; i < argc; i++) {
        int n, k, bits, group, shift, at = 0;
        if (strcmp(argv[i], "check") == 0 || strcmp(argv[i], "time") == 0) {
            timed = argv[i][0] == 't';
            continue;
        }
        if (sscanf(argv[i], "%dx%d:%d:%d:%d:%n", &n, &k, &bits, &group, &shift, &at) < 5)
            return 2;
        for (const char *s = argv[i] + at; *s != 0;) {
            char *end;
            const long m = strtol(s, &end, 10);
            run(n, k, bits, group, shift, (int)m, timed);
            s = *end == ',' ? end + 1 : end;
        }
    }
    return 0;
}
