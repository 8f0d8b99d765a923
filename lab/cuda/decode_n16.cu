/* SPDX-License-Identifier: Apache-2.0 */
/* W4A16 decode (m <= 16) from the CPU's packed layout Q4N16 (docs/layouts.md): can one layout serve both? NOTES.md has the results.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a lab/cuda/decode_n16.cu -o decode && ./decode
 *
 * A unit is 16 outputs x 32 positions = 256 bytes: vector r (64 bytes, r = 0..3), lane j (output), byte b: low nibble position 4 r + b,
 * high nibble position 16 + 4 r + b. A warp takes the same unit of two panels: lane (g, t) loads the 16 bytes of panel g / 4, vector t,
 * outputs 4 (g % 4) .. + 3: four words, one an output. Words 0 and 1 are rows g and g + 8 of one mma.m16n8k16, words 2 and 3 of another;
 * the low nibbles of a word are its k pairs (bytes 0 and 2, bytes 1 and 3), the high nibbles those of the next mma. The order of k inside
 * a unit is the activations' business: lane t needs positions 4 t .. 4 t + 3 and 16 + 4 t .. + 3, as (0, 2), (1, 3).       */
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
    const uint8_t *w;      /* Q4N16: [n/16][k/32][256] */
    const __half *scale;   /* [n/16][groups][16] */
    const __half *x;       /* [m][k] */
    __half *y;             /* [m][n] */
    int n, k, m, group_units;
};

static __device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}
/* The nibbles of a word as half2 of (u - 8): low[0] bytes 0 and 2, low[1] bytes 1 and 3, high[] the same of the high nibbles. */
static __device__ __forceinline__ void dequant(uint32_t q, uint32_t (&low)[2], uint32_t (&high)[2])
{
    const __half2 bias = __float2half2_rn(1032.0f), scale16 = __float2half2_rn(0.0625f), bias16 = __float2half2_rn(-72.0f);
    const uint32_t h = q >> 8;
    uint32_t v0 = and_or(q, 0x000f000fu, 0x64006400u), v1 = and_or(h, 0x000f000fu, 0x64006400u);
    uint32_t v2 = and_or(q, 0x00f000f0u, 0x64006400u), v3 = and_or(h, 0x00f000f0u, 0x64006400u);
    __half2 r0 = __hsub2(*(__half2 *)&v0, bias), r1 = __hsub2(*(__half2 *)&v1, bias);
    __half2 r2 = __hfma2(*(__half2 *)&v2, scale16, bias16), r3 = __hfma2(*(__half2 *)&v3, scale16, bias16);
    low[0] = *(uint32_t *)&r0;
    low[1] = *(uint32_t *)&r1;
    high[0] = *(uint32_t *)&r2;
    high[1] = *(uint32_t *)&r3;
}
static __device__ __forceinline__ uint4 load_once(const uint8_t *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Tokens i * 8 + gr of unit u: two pieces of four values; rows past m read as zero. */
template <int MT> static __device__ __forceinline__ void load_x(const args &g, int u, int gr, int t, uint2 (&x)[MT][2])
{
#pragma unroll
    for (int i = 0; i < MT; i++) {
        const int row = i * 8 + gr;
        const uint2 *p = (const uint2 *)(g.x + (size_t)row * g.k + u * 32 + t * 4);
        x[i][0] = row < g.m ? __ldg(p) : make_uint2(0, 0);
        x[i][1] = row < g.m ? __ldg(p + 4) : make_uint2(0, 0);
    }
}
/* (0, 1), (2, 3) to (0, 2), (1, 3) */
static __device__ __forceinline__ void swap_middle(uint2 v, uint32_t &even, uint32_t &odd)
{
    even = __byte_perm(v.x, v.y, 0x5410);
    odd = __byte_perm(v.x, v.y, 0x7632);
}

/* Persistent: CTA c works on pairs of panels c, c + grid, ...; a warp has the same run of `per` units of each. U loads in flight. */
template <int MT, int WARPS, int U, int CTAS, bool PDL>
__global__ void __launch_bounds__(WARPS * 32, CTAS) decode(const args g)
{
    __shared__ float part[WARPS][32][MT * 8 + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, gr = lane / 4, t = lane % 4;
    const int units = g.k / 32, per = units / WARPS, begin = warp * per;
    const int pairs = g.n / 32, mine = (pairs - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int groups = units / g.group_units;
    const size_t step = (size_t)gridDim.x * 2 * units * 256, scale_step = (size_t)gridDim.x * 2 * groups * 16;
    const int panel = 2 * blockIdx.x + gr / 4, in_panel = gr % 4 * 4;
    const uint8_t *next = g.w + ((size_t)panel * units + begin) * 256 + t * 64 + in_panel * 4;
    const __half *next_scale = g.scale + (size_t)panel * groups * 16 + in_panel;
    int next_u = 0, next_pair = 0;
    uint4 w[U];
    uint2 sc[U];
#define FETCH(u)                                                                                   \
    do {                                                                                           \
        if (next_pair < mine) {                                                                    \
            w[u] = load_once(next + next_u * 256);                                                 \
            if ((begin + next_u) % 4 == 3 || next_u + 1 == per)                                    \
                sc[u] = __ldg((const uint2 *)(next_scale + (begin + next_u) / 4 * 16));            \
        }                                                                                          \
        if (++next_u == per) {                                                                     \
            next_u = 0;                                                                            \
            next_pair++;                                                                           \
            next += step;                                                                          \
            next_scale += scale_step;                                                              \
        }                                                                                          \
    } while (0)
#pragma unroll
    for (int u = 0; u < U; u++)
        FETCH(u);
    if (PDL) {
        asm volatile("griddepcontrol.launch_dependents;");
        asm volatile("griddepcontrol.wait;" ::: "memory");
    }
    uint2 x[MT][2];
    load_x<MT>(g, begin, gr, t, x);
    for (int pr = 0; pr < mine; pr++) {
        float sum[2][MT][4] = {}, acc[2][MT][4] = {};
        for (int u0 = 0; u0 < per; u0 += U) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int unit = u0 + u;
                const uint32_t words[4] = {w[u].x, w[u].y, w[u].z, w[u].w};
                const uint2 scale_now = sc[u];
                FETCH(u);
                uint32_t b[MT][4];
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    swap_middle(x[i][0], b[i][0], b[i][1]);
                    swap_middle(x[i][1], b[i][2], b[i][3]);
                }
                load_x<MT>(g, begin + (unit + 1 < per ? unit + 1 : 0), gr, t, x);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t l0[2], h0[2], l1[2], h1[2];
                    dequant(words[2 * h], l0, h0);
                    dequant(words[2 * h + 1], l1, h1);
                    const uint32_t low[4] = {l0[0], l1[0], l0[1], l1[1]}, high[4] = {h0[0], h1[0], h0[1], h1[1]};
#pragma unroll
                    for (int i = 0; i < MT; i++) {
                        mma(sum[h][i], low, b[i][0], b[i][1]);
                        mma(sum[h][i], high, b[i][2], b[i][3]);
                    }
                }
                if ((begin + unit) % 4 == 3 || unit + 1 == per) {
                    const float2 s01 = __half22float2(*(const __half2 *)&scale_now.x);
                    const float2 s23 = __half22float2(*(const __half2 *)&scale_now.y);
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int i = 0; i < MT; i++) {
                            const float a = h ? s23.x : s01.x, c = h ? s23.y : s01.y;
                            acc[h][i][0] = fmaf(sum[h][i][0], a, acc[h][i][0]);
                            acc[h][i][1] = fmaf(sum[h][i][1], a, acc[h][i][1]);
                            acc[h][i][2] = fmaf(sum[h][i][2], c, acc[h][i][2]);
                            acc[h][i][3] = fmaf(sum[h][i][3], c, acc[h][i][3]);
                            sum[h][i][0] = sum[h][i][1] = sum[h][i][2] = sum[h][i][3] = 0;
                        }
                }
            }
        }
        const int out = gr / 4 * 16 + in_panel;
        __syncthreads();
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < MT; i++) {
                part[warp][out + 2 * h][i * 8 + 2 * t] = acc[h][i][0];
                part[warp][out + 2 * h][i * 8 + 2 * t + 1] = acc[h][i][1];
                part[warp][out + 2 * h + 1][i * 8 + 2 * t] = acc[h][i][2];
                part[warp][out + 2 * h + 1][i * 8 + 2 * t + 1] = acc[h][i][3];
            }
        __syncthreads();
        for (int i = threadIdx.x; i < 32 * g.m; i += WARPS * 32) {
            float v = 0;
#pragma unroll
            for (int j = 0; j < WARPS; j++)
                v += part[j][i % 32][i / 32];
            g.y[(size_t)(i / 32) * g.n + (blockIdx.x + pr * gridDim.x) * 32 + i % 32] = __float2half_rn(v);
        }
    }
}

typedef void (*launch_fn)(const args &, cudaStream_t);
template <int MT, int WARPS, int U, int CTAS, bool PDL> static void launch(const args &a, cudaStream_t s)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(std::min(a.n / 32, 132 * CTAS));
    c.blockDim = dim3(WARPS * 32);
    c.stream = s;
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
        V(1, 16, 2, 2), V(1, 16, 4, 2), V(1, 16, 4, 1), V(1, 8, 4, 3), V(1, 8, 4, 4), V(1, 8, 8, 2), V(1, 8, 2, 4),
        V(2, 16, 2, 1), V(2, 16, 4, 1), V(2, 8, 4, 2), V(2, 8, 2, 3), V(2, 8, 8, 2),
    };
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (auto &sh : shapes) {
        const int n = sh[0], k = sh[1], units = k / 32, gu = 4, groups = k / 128;
        const size_t bytes = (size_t)n * k / 2, sbytes = (size_t)n * groups * 2;
        const int copies = (int)std::min<size_t>(64, (size_t)600e6 / bytes + 2);
        std::vector<uint8_t> code((size_t)n * k);
        for (auto &c : code)
            c = rnd() & 15;
        std::vector<__half> scale((size_t)n * groups), x((size_t)16 * k);
        std::vector<__half> ps((size_t)n * groups);
        for (auto &s : scale)
            s = __float2half(0.01f + 0.0001f * (float)(rnd() % 64));
        for (auto &v : x)
            v = __float2half((float)((int)(rnd() % 2001) - 1000) / 500.0f);
        std::vector<uint8_t> w(bytes);
        for (int p = 0; p < n / 16; p++)
            for (int u = 0; u < units; u++)
                for (int r = 0; r < 4; r++)
                    for (int j = 0; j < 16; j++)
                        for (int b = 0; b < 4; b++) {
                            const uint8_t *row = &code[(size_t)(p * 16 + j) * k + u * 32 + 4 * r + b];
                            w[((size_t)p * units + u) * 256 + r * 64 + j * 4 + b] = (uint8_t)(row[0] | row[16] << 4);
                        }
        for (int o = 0; o < n; o++)
            for (int q = 0; q < groups; q++)
                ps[((size_t)(o / 16) * groups + q) * 16 + o % 16] = scale[(size_t)o * groups + q];
        uint8_t *dw;
        __half *dx, *dy;
        __half *ds;
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
                args a = {dw, ds, dx, dy, n, k, m, gu};
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
                    a.w = dw + bytes * (c % copies);
                    a.scale = (const __half *)((char *)ds + sbytes * (c % copies));
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
