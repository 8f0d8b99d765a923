/* SPDX-License-Identifier: Apache-2.0 */
/* How fast does memory go while two bytes are read for one that is written? That is what quantizing f16 rows to int8 can reach.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a lab/cuda/mix.cu -o mix && ./mix
 *
 * 4096 x 4096 halves in, as many bytes out (a byte of each: nothing is computed), six copies of x in turn; codes go to one place, as
 * they do in a plan's scratch, or to six. Ways: 32 bytes in and 16 out a thread, once or in several pieces, with all the threads
 * that it takes or a persistent grid; hints to the caches on either side; tiles by bulk copies through a ring in shared memory, back
 * by bulk copies. NOTES.md has the figures. */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (x);                                                                      \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s (line %d)\n", #x, cudaGetErrorString(e_), __LINE__);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { COPIES = 6, THREADS = 256 };
static const size_t PIECES = (size_t)4096 * 4096 / 16; /* of 32 bytes */

/* ---- threads --------------------------------------------------------------------------------- */

/* How loads and stores ask the caches: 0 plainly; loads 1 streaming, 2 not into L1, first out of L2; stores 1 streaming,
 * 2 last out of L2. */
template <int HOW> static __device__ __forceinline__ uint4 load(const uint4 *p, uint64_t policy)
{
    uint4 v;
    if (HOW == 0)
        return __ldg(p);
    if (HOW == 1)
        return __ldcs(p);
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p), "l"(policy));
    return v;
}
template <int HOW> static __device__ __forceinline__ void store(uint4 *p, uint4 v, uint64_t policy)
{
    if (HOW == 0)
        *p = v;
    else if (HOW == 1)
        __stcs(p, v);
    else
        asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
                     "r"(v.w), "l"(policy)
                     : "memory");
}
static __device__ __forceinline__ uint64_t first_out()
{
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
static __device__ __forceinline__ uint64_t last_out()
{
    uint64_t p;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}
static __device__ __forceinline__ uint4 pack(uint4 a, uint4 b)
{
    return make_uint4(__byte_perm(a.x, a.y, 0x7531), __byte_perm(a.z, a.w, 0x7531), __byte_perm(b.x, b.y, 0x7531),
                      __byte_perm(b.z, b.w, 0x7531));
}
static __device__ __forceinline__ void begin()
{
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
}

/* EACH pieces a thread at a time, a CTA's worth apart; the grid may be smaller than the work. */
template <int EACH, int IN, int OUT>
static __global__ void __launch_bounds__(THREADS) plain(const uint4 *x, uint4 *codes, int tiles)
{
    begin();
    const uint64_t first = first_out(), last = last_out();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const size_t at = (size_t)tile * EACH * THREADS + threadIdx.x;
        uint4 a[EACH], b[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            a[i] = load<IN>(x + 2 * (at + i * THREADS), first);
            b[i] = load<IN>(x + 2 * (at + i * THREADS) + 1, first);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            store<OUT>(codes + at + i * THREADS, pack(a[i], b[i]), last);
    }
}

/* ---- bulk copies ----------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void wait_for(uint64_t *barrier, uint32_t phase)
{
    uint32_t done = 0;
    for (int i = 0; i < 10000000 && !done; i++)
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_at(barrier)), "r"(phase)
                     : "memory");
}

/* Tiles of BYTES of x; STAGES of them on their way. HINTS: x is first out of L2. */
template <int BYTES, int STAGES, int HINTS>
static __global__ void __launch_bounds__(THREADS) bulk(const uint8_t *x, uint8_t *codes, int tiles)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ __align__(8) uint64_t full[STAGES];
    uint8_t *const out = memory + STAGES * BYTES;
    const uint64_t first = first_out(), last = last_out();
    const auto ask = [&](int stage, int tile) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(&full[stage])), "r"(BYTES)
                     : "memory");
        if (HINTS)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
                         "%4;" ::"r"(shared_at(memory + stage * BYTES)),
                         "l"(x + (size_t)tile * BYTES), "r"(BYTES), "r"(shared_at(&full[stage])), "l"(first)
                         : "memory");
        else
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             shared_at(memory + stage * BYTES)),
                         "l"(x + (size_t)tile * BYTES), "r"(BYTES), "r"(shared_at(&full[stage]))
                         : "memory");
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(&full[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    begin();
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++)
            if (blockIdx.x + i * gridDim.x < tiles)
                ask(i, blockIdx.x + i * gridDim.x);
    int stage = 0, phase = 0, turn = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        uint8_t *const to = out + (turn & 1) * (BYTES / 2);
        if (threadIdx.x == 0)
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        wait_for(&full[stage], (uint32_t)phase);
        __syncthreads();
        const uint4 *const from = (const uint4 *)(memory + stage * BYTES);
        for (int i = threadIdx.x; i < BYTES / 32; i += THREADS)
            ((uint4 *)to)[i] = pack(from[2 * i], from[2 * i + 1]);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            if (HINTS)
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
                                 codes + (size_t)tile * (BYTES / 2)),
                             "r"(shared_at(to)), "r"(BYTES / 2), "l"(last)
                             : "memory");
            else
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(codes + (size_t)tile * (BYTES / 2)),
                             "r"(shared_at(to)), "r"(BYTES / 2)
                             : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            if (tile + STAGES * (int)gridDim.x < tiles)
                ask(stage, tile + STAGES * (int)gridDim.x);
        }
        turn++;
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- reading alone, writing alone ------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS) reading(const uint4 *x, uint4 *codes, int tiles)
{
    begin();
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = __ldg(x + ((size_t)tile * 8 + i) * THREADS + threadIdx.x);
            sum = make_uint4(sum.x ^ v.x, sum.y ^ v.y, sum.z ^ v.z, sum.w ^ v.w);
        }
    if (sum.x == 0x12345678u && sum.y == 0x9abcdef0u)
        codes[threadIdx.x] = sum;
}
static __global__ void __launch_bounds__(THREADS) writing(const uint4 *x, uint4 *codes, int tiles)
{
    begin();
    codes[(size_t)blockIdx.x * THREADS + threadIdx.x] = make_uint4((uint32_t)(size_t)x, tiles, 0, 0);
}

/* ---- times ----------------------------------------------------------------------------------- */

static uint8_t *x[COPIES], *codes[COPIES];

static double time_of(const void *kernel, int grid, size_t shared, int tiles, int pdl, int places)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    std::vector<double> times;
    const int repeats = 24;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < repeats; i++) {
        cudaLaunchAttribute a = {};
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t c = {};
        c.gridDim = dim3(grid);
        c.blockDim = dim3(THREADS);
        c.dynamicSmemBytes = shared;
        c.stream = stream;
        c.attrs = &a;
        c.numAttrs = pdl;
        void *args[3] = {&x[i % COPIES], &codes[i % places], &tiles};
        CHECK(cudaLaunchKernelExC(&c, kernel, args));
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int i = 0; i < 11; i++) {
        float ms;
        CHECK(cudaEventRecord(from, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(to, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&ms, from, to));
        if (i > 1)
            times.push_back(ms * 1e3 / repeats);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2];
}

static void line(const char *name, const void *kernel, int grid, size_t shared, int tiles, double bytes)
{
    const double us[4] = {time_of(kernel, grid, shared, tiles, 0, 1), time_of(kernel, grid, shared, tiles, 1, 1),
                          time_of(kernel, grid, shared, tiles, 0, COPIES), time_of(kernel, grid, shared, tiles, 1, COPIES)};
    printf("%-52s", name);
    for (const double t : us)
        printf("  %6.2f (%.1f %%)", t, bytes / t / 3.35e4);
    printf("\n");
    fflush(stdout);
}

int main()
{
    const double mixed = (double)PIECES * 48;
    for (int i = 0; i < COPIES; i++) {
        CHECK(cudaMalloc(&x[i], PIECES * 32));
        CHECK(cudaMalloc(&codes[i], PIECES * 16));
        CHECK(cudaMemset(x[i], i + 1, PIECES * 32));
    }
    printf("us (fraction of 3.35 TB/s): codes to one place, with PDL; codes to six places, with PDL\n");
    char name[128];
#define READ(grid)                                                                                 \
    snprintf(name, sizeof name, "reading alone, %d CTAs", grid);                                   \
    line(name, (const void *)reading, grid, 0, (int)(PIECES * 2 / 8 / THREADS), (double)PIECES * 32)
    READ(132 * 4);
    READ(4096);
    line("writing alone", (const void *)writing, (int)(PIECES / THREADS), 0, 0, (double)PIECES * 16);
#define PLAIN(each, in, out, grid)                                                                 \
    do {                                                                                           \
        const int tiles = (int)(PIECES / THREADS / each), g = grid == 0 ? tiles : grid;            \
        snprintf(name, sizeof name, "plain, %d pieces a thread, in %d, out %d, %d CTAs", each, in, out, g); \
        line(name, (const void *)plain<each, in, out>, g, 0, tiles, mixed);                        \
    } while (0)
    PLAIN(1, 0, 0, 0);
    PLAIN(1, 1, 0, 0);
    PLAIN(1, 0, 1, 0);
    PLAIN(1, 1, 1, 0);
    PLAIN(1, 2, 0, 0);
    PLAIN(1, 0, 2, 0);
    PLAIN(1, 2, 2, 0);
    PLAIN(2, 0, 0, 0);
    PLAIN(2, 2, 2, 0);
    PLAIN(4, 0, 0, 0);
    PLAIN(4, 2, 0, 0);
    PLAIN(4, 2, 2, 0);
    PLAIN(4, 1, 1, 0);
    PLAIN(1, 0, 0, 132 * 8);
    PLAIN(2, 0, 0, 132 * 6);
    PLAIN(4, 0, 0, 132 * 4);
    PLAIN(4, 2, 2, 132 * 4);
    PLAIN(8, 0, 0, 132 * 2);
    PLAIN(8, 2, 2, 132 * 2);
#define BULK(bytes, stages, hints, each)                                                           \
    do {                                                                                           \
        snprintf(name, sizeof name, "bulk, tiles of %d KB, %d on their way, hints %d, %d CTAs", bytes >> 10, stages, hints, \
                 132 * each);                                                                      \
        line(name, (const void *)bulk<bytes, stages, hints>, 132 * each, bytes *stages + bytes,    \
             (int)(PIECES * 32 / bytes), mixed);                                                   \
    } while (0)
    BULK(4096, 4, 0, 4);
    BULK(8192, 4, 0, 2);
    BULK(8192, 4, 0, 4);
    BULK(8192, 4, 1, 4);
    BULK(16384, 3, 0, 2);
    BULK(16384, 4, 0, 2);
    BULK(16384, 4, 1, 2);
    BULK(32768, 4, 0, 1);
    BULK(32768, 4, 1, 1);
    BULK(8192, 3, 0, 6);
    return 0;
}
