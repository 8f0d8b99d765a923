/* SPDX-License-Identifier: Apache-2.0 */
/* W4A16 decode (m <= 16): which shape of kernel reads the weights fastest? NOTES.md beside this has the results.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a lab/cuda/decode.cu -o decode && ./decode
 *
 * Weights are the A operand of mma.m16n8k16 (16 outputs x 16 positions), tokens the B operand. A block is 16 outputs x 64
 * positions = 512 bytes: lane l holds 16 bytes, one word for each of four k16 steps. Position of step s, thread-in-group t, element
 * e (0, 1: the low pair of k, 2, 3: the high pair) is 16 t + 4 s + e, so that a lane's activations for a block are 16 consecutive
 * values. Nibble order of a word: pairs (row g, low), (row g + 8, low), (row g, high), (row g + 8, high) at bits 0/16, 4/20, 8/24, 12/28.
 *
 * A CTA owns R slabs of 16 outputs; its warps cut k; partial sums meet in shared memory in a fixed order. Group scales act on the
 * accumulators. With PDL, weights are asked for before the wait.                                               */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (x);                                                                      \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s (line %d)\n", #x, cudaGetErrorString(e_), __LINE__);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct args {
    const uint4 *w;        /* [n/16][k/64][32] */
    const __half2 *scale;  /* [n/16][groups][8]: rows g and g + 8 */
    const __half *x;       /* [m][k] */
    __half *y;             /* [m][n] */
    int n, k, m, group_blocks;
};

static __device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}
/* Eight nibbles to four half2 of (u - 8). 0x6400 is 1024: a nibble in its last bits counts ones, four bits higher sixteens. */
static __device__ __forceinline__ void dequant(uint32_t q, uint32_t (&a)[4])
{
    const __half2 bias = __float2half2_rn(1032.0f), scale16 = __float2half2_rn(0.0625f), bias16 = __float2half2_rn(-72.0f);
    uint32_t v0 = and_or(q, 0x000f000fu, 0x64006400u), v1 = and_or(q, 0x00f000f0u, 0x64006400u);
    const uint32_t h = q >> 8;
    uint32_t v2 = and_or(h, 0x000f000fu, 0x64006400u), v3 = and_or(h, 0x00f000f0u, 0x64006400u);
    __half2 r0 = __hsub2(*(__half2 *)&v0, bias), r2 = __hsub2(*(__half2 *)&v2, bias);
    __half2 r1 = __hfma2(*(__half2 *)&v1, scale16, bias16), r3 = __hfma2(*(__half2 *)&v3, scale16, bias16);
    a[0] = *(uint32_t *)&r0;
    a[1] = *(uint32_t *)&r1;
    a[2] = *(uint32_t *)&r2;
    a[3] = *(uint32_t *)&r3;
}
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Tokens i * 8 + gr of block b: two 16-byte pieces; rows past m read as zero. */
template <int MT> static __device__ __forceinline__ void load_x(const args &g, int b, int gr, int t, uint4 (&x)[MT][2])
{
#pragma unroll
    for (int i = 0; i < MT; i++) {
        const int row = i * 8 + gr;
        const uint4 *p = (const uint4 *)(g.x + (size_t)row * g.k + b * 64 + t * 16);
        x[i][0] = row < g.m ? __ldg(p) : make_uint4(0, 0, 0, 0);
        x[i][1] = row < g.m ? __ldg(p + 1) : make_uint4(0, 0, 0, 0);
    }
}

static __device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void copy4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* Persistent: CTA c works on slabs c, c + grid, ...; a warp has the same run of `per` blocks of every slab. Its weights form one
 * sequence over all its slabs; U blocks of it are always in flight, in shared memory. A lane reads back only what it copied
 * itself, so that no barrier is needed. */
template <int MT, int WARPS, int U, int CTAS, bool PDL>
__global__ void __launch_bounds__(WARPS * 32, CTAS) decode(const args g)
{
    extern __shared__ __align__(128) uint8_t shared[];
    float(*const part)[WARPS][16][MT * 8 + 1] = (float(*)[WARPS][16][MT * 8 + 1])(shared + WARPS * U * 640);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, gr = lane / 4, t = lane % 4;
    const int blocks = g.k / 64, per = blocks / WARPS, begin = warp * per;
    const int slabs = g.n / 16, mine = (slabs - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int groups = blocks / 2;
    const uint8_t *const ring = shared + warp * U * 640;
    const uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    const size_t slab_step = (size_t)gridDim.x * blocks * 32;
    const uint4 *next = g.w + ((size_t)blockIdx.x * blocks + begin) * 32 + lane; /* of block next_b */
    const uint32_t *next_scale = (const uint32_t *)g.scale + (size_t)blockIdx.x * groups * 8 + gr;
    const size_t scale_step = (size_t)gridDim.x * groups * 8;
    int next_b = 0, next_slab = 0;
    auto fetch = [&](int stage) {
        if (next_slab < mine) {
            copy16(ring_at + stage * 640 + lane * 16, next + next_b * 32);
            copy4(ring_at + stage * 640 + 512 + lane * 4, next_scale + ((begin + next_b) >> 1) * 8);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (++next_b == per) {
            next_b = 0;
            next_slab++;
            next += slab_step;
            next_scale += scale_step;
        }
    };
#pragma unroll
    for (int u = 0; u < U; u++)
        fetch(u);
    if (PDL) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
    uint4 x[MT][2];
    load_x<MT>(g, begin, gr, t, x);
    int stage = 0;
    for (int sl = 0; sl < mine; sl++) {
        const int slab = blockIdx.x + sl * gridDim.x;
        float sum[MT][4] = {}, acc[MT][4] = {};
        for (int b = 0; b < per; b++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(U - 1) : "memory");
            const uint4 w = *(const uint4 *)(ring + stage * 640 + lane * 16);
            const uint32_t scale_now = *(const uint32_t *)(ring + stage * 640 + 512 + lane * 4);
            const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t a[4];
                dequant(words[s], a);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint4 v = x[i][s / 2];
                    mma(sum[i], a, s % 2 ? v.z : v.x, s % 2 ? v.w : v.y);
                }
            }
            fetch(stage);
            stage = stage + 1 == U ? 0 : stage + 1;
            load_x<MT>(g, begin + (b + 1 < per ? b + 1 : 0), gr, t, x);
            if (b + 1 == per || ((begin + b) & 1) != 0) {
                const float2 sf = __half22float2(*(const __half2 *)&scale_now);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    acc[i][0] = fmaf(sum[i][0], sf.x, acc[i][0]);
                    acc[i][1] = fmaf(sum[i][1], sf.x, acc[i][1]);
                    acc[i][2] = fmaf(sum[i][2], sf.y, acc[i][2]);
                    acc[i][3] = fmaf(sum[i][3], sf.y, acc[i][3]);
                    sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0;
                }
            }
        }
        float (*const p)[16][MT * 8 + 1] = part[sl % 2];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            p[warp][gr][i * 8 + 2 * t] = acc[i][0];
            p[warp][gr][i * 8 + 2 * t + 1] = acc[i][1];
            p[warp][gr + 8][i * 8 + 2 * t] = acc[i][2];
            p[warp][gr + 8][i * 8 + 2 * t + 1] = acc[i][3];
        }
        __syncthreads(); /* one barrier a slab: the other buffer is free once all have passed the one before */
        for (int i = threadIdx.x; i < 16 * g.m; i += WARPS * 32) {
            float v = 0;
#pragma unroll
            for (int j = 0; j < WARPS; j++)
                v += p[j][i % 16][i / 16];
            g.y[(size_t)(i / 16) * g.n + slab * 16 + i % 16] = __float2half_rn(v);
        }
    }
}

typedef void (*launch_fn)(const args &, cudaStream_t);
template <int MT, int WARPS, int U, int CTAS, bool PDL> static void launch(const args &a, cudaStream_t s)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(std::min(a.n / 16, 132 * CTAS));
    c.blockDim = dim3(WARPS * 32);
    c.stream = s;
    c.dynamicSmemBytes = WARPS * U * 640 + 2 * WARPS * 16 * (MT * 8 + 1) * 4;
    static const cudaError_t raised = cudaFuncSetAttribute(
        decode<MT, WARPS, U, CTAS, PDL>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c.dynamicSmemBytes);
    CHECK(raised);
    cudaLaunchAttribute at[1];
    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = at;
    c.numAttrs = PDL ? 1 : 0;
    CHECK(cudaLaunchKernelEx(&c, decode<MT, WARPS, U, CTAS, PDL>, a));
}

static uint32_t seed = 1;
static uint32_t rnd()
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

int main()
{
    const int shapes[][2] = {{4096, 4096}, {14336, 4096}, {8192, 8192}, {28672, 8192}};
    struct variant {
        const char *name;
        int mt;
        launch_fn fn;
    } list[] = {
#define V(mt, w, u, c) {"mt" #mt " warps" #w " u" #u " ctas" #c, mt, launch<mt, w, u, c, false>}, \
        {"mt" #mt " warps" #w " u" #u " ctas" #c " pdl", mt, launch<mt, w, u, c, true>}
        V(1, 16, 4, 2), V(1, 16, 6, 2), V(1, 16, 8, 1), V(1, 8, 8, 3), V(1, 8, 6, 4), V(1, 8, 4, 4), V(1, 8, 10, 3), V(1, 4, 8, 6),
        V(2, 16, 4, 1), V(2, 16, 6, 1), V(2, 8, 8, 3), V(2, 8, 8, 2), V(2, 16, 8, 1), V(2, 16, 3, 2), V(2, 8, 6, 3),
    };
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (auto &sh : shapes) {
        const int n = sh[0], k = sh[1], blocks = k / 64, gb = 2, groups = k / 128;
        const size_t bytes = (size_t)n * k / 2, sbytes = (size_t)n * groups * 2;
        const int copies = (int)std::min<size_t>(64, (size_t)600e6 / bytes + 2);
        std::vector<uint8_t> code((size_t)n * k);
        for (auto &c : code)
            c = rnd() & 15;
        std::vector<__half> scale((size_t)n * groups), x((size_t)16 * k);
        std::vector<__half2> ps((size_t)n / 16 * groups * 8);
        for (auto &s : scale)
            s = __float2half(0.01f + 0.0001f * (float)(rnd() % 64));
        for (auto &v : x)
            v = __float2half((float)((int)(rnd() % 2001) - 1000) / 500.0f);
        std::vector<uint32_t> w(bytes / 4);
        for (int sl = 0; sl < n / 16; sl++)
            for (int b = 0; b < blocks; b++)
                for (int l = 0; l < 32; l++)
                    for (int s = 0; s < 4; s++) {
                        uint32_t word = 0;
                        for (int p = 0; p < 4; p++)
                            for (int e = 0; e < 2; e++) {
                                const int row = sl * 16 + l / 4 + p % 2 * 8;
                                const int pos = b * 64 + l % 4 * 16 + 4 * s + p / 2 * 2 + e;
                                word |= (uint32_t)code[(size_t)row * k + pos] << (4 * p + 16 * e);
                            }
                        w[(((size_t)sl * blocks + b) * 32 + l) * 4 + s] = word;
                    }
        for (int sl = 0; sl < n / 16; sl++)
            for (int q = 0; q < groups; q++)
                for (int r = 0; r < 8; r++)
                    ps[((size_t)sl * groups + q) * 8 + r] = __halves2half2(scale[(size_t)(sl * 16 + r) * groups + q],
                                                                          scale[(size_t)(sl * 16 + r + 8) * groups + q]);
        uint8_t *dw;
        __half *dx, *dy;
        __half2 *ds;
        CHECK(cudaMalloc(&dw, bytes * copies));
        CHECK(cudaMalloc(&ds, sbytes * copies));
        CHECK(cudaMalloc(&dx, x.size() * 2));
        CHECK(cudaMalloc(&dy, (size_t)16 * n * 2));
        for (int c = 0; c < copies; c++) {
            CHECK(cudaMemcpy(dw + bytes * c, w.data(), bytes, cudaMemcpyHostToDevice));
            CHECK(cudaMemcpy((char *)ds + sbytes * c, ps.data(), sbytes, cudaMemcpyHostToDevice));
        }
        CHECK(cudaMemcpy(dx, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
        for (int m : {1, 8, 16})
            for (auto &v : list) {
                if (v.mt != (m + 7) / 8)
                    continue;
                args a = {(const uint4 *)dw, ds, dx, dy, n, k, m, gb};
                CHECK(cudaMemset(dy, 0xff, (size_t)16 * n * 2));
                v.fn(a, stream);
                CHECK(cudaStreamSynchronize(stream));
                std::vector<__half> y((size_t)16 * n);
                CHECK(cudaMemcpy(y.data(), dy, y.size() * 2, cudaMemcpyDeviceToHost));
                double worst = 0, norm = 0;
                for (int trial = 0; trial < 200; trial++) {
                    const int i = (int)(rnd() % m), j = (int)(rnd() % n);
                    double exact = 0;
                    for (int p = 0; p < k; p++)
                        exact += (double)__half2float(x[(size_t)i * k + p]) * ((int)code[(size_t)j * k + p] - 8) *
                                 (double)__half2float(scale[(size_t)j * groups + p / 128]);
                    worst = std::max(worst, std::fabs(exact - (double)__half2float(y[(size_t)i * n + j])));
                    norm = std::max(norm, std::fabs(exact));
                }
                cudaGraph_t graph;
                cudaGraphExec_t exec;
                const int calls = copies * std::max(1, 64 / copies);
                CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                for (int c = 0; c < calls; c++) {
                    a.w = (const uint4 *)(dw + bytes * (c % copies));
                    a.scale = (const __half2 *)((char *)ds + sbytes * (c % copies));
                    v.fn(a, stream);
                }
                CHECK(cudaStreamEndCapture(stream, &graph));
                CHECK(cudaGraphInstantiate(&exec, graph, 0));
                std::vector<float> times;
                cudaEvent_t e0, e1;
                CHECK(cudaEventCreate(&e0));
                CHECK(cudaEventCreate(&e1));
                for (int r = 0; r < 9; r++) {
                    CHECK(cudaEventRecord(e0, stream));
                    CHECK(cudaGraphLaunch(exec, stream));
                    CHECK(cudaEventRecord(e1, stream));
                    CHECK(cudaStreamSynchronize(stream));
                    float ms;
                    CHECK(cudaEventElapsedTime(&ms, e0, e1));
                    times.push_back(ms * 1e3f / calls);
                }
                std::sort(times.begin() + 1, times.end());
                const double us = times[5];
                printf("%5d x %4d m %2d %-30s %7.2f us  %5.2f TB/s  err %.1e of %.1e%s\n", n, k, m, v.name, us,
                       (bytes + sbytes) / us * 1e-6, worst, norm, worst > norm * 2e-3 ? " WRONG" : "");
                CHECK(cudaGraphExecDestroy(exec));
                CHECK(cudaGraphDestroy(graph));
            }
        CHECK(cudaFree(dw));
        CHECK(cudaFree(ds));
        CHECK(cudaFree(dx));
        CHECK(cudaFree(dy));
    }
    return 0;
}
