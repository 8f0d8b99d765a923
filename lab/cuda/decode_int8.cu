/* SPDX-License-Identifier: Apache-2.0 */
/* The int8 decode kernels of src/cuda/matmul/decode_int8_sm80.cu by themselves: every kind of
 * segments, checked bit for bit against the definition (one thread an output, docs/numerics.md) and
 * timed. NOTES.md has the results.
 *
 *   nvcc -O3 -std=c++17 --fmad=false -Iinclude -gencode=arch=compute_90a,code=sm_90a \
 *        lab/cuda/decode_int8.cu -o decode_int8
 *   ./decode_int8 check; ./decode_int8 time; ./decode_int8 experts
 *   compute-sanitizer --tool racecheck ./decode_int8 few
 *
 * Codes are random bytes: every byte is a pair of codes. Weights rotate over at least 400 MB. */
#include "../../src/cuda/matmul/decode_int8_sm80.cu"

#include <algorithm>
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
/* what: 0: bytes; 1: f16 scales; 2: f32 scales; 3: zeros in -8..7; 4: small integers */
static __global__ void fill(void *to, size_t n, int what, uint64_t seed)
{
    for (size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        const uint32_t r = mix(i + seed * 7777777);
        const float v = ((float)(r & 0xffff) + (float)(r >> 16)) * (1.0f / 32768) - 2;
        if (what == 0)
            ((uint8_t *)to)[i] = (uint8_t)r;
        else if (what == 1)
            ((__half *)to)[i] = __float2half(0.01f + 0.003f * v);
        else if (what == 2)
            ((float *)to)[i] = 0.01f + 0.003f * v;
        else if (what == 3)
            ((int8_t *)to)[i] = (int8_t)((int)(r % 16) - 8);
        else
            ((int32_t *)to)[i] = (int32_t)(r % 4001) - 2000;
    }
}

/* The unit of padding behind an odd number of units: values of 0, x of 0. */
static __global__ void pad(struct qni_cuda_weights w, uint8_t *blob, int bits, uint8_t *x,
                           int64_t lda, int64_t rows)
{
    const int panel = (int)blockIdx.x, lane = (int)threadIdx.x;
    uint8_t *const block =
        blob + w.codes + ((int64_t)(panel + 1) * (w.units / 2) - 1) * (bits == 4 ? 512 : 1024);
    const uint4 zero = make_uint4(0x80808080, 0x80808080, 0x80808080, 0x80808080);
    if (bits == 8)
        ((uint4 *)(block + 512))[lane] = zero;
    else
        ((uint2 *)block)[lane * 2 + 1] = make_uint2(0x88888888, 0x88888888);
    if (panel == 0)
        for (int64_t r = lane; r < rows; r += 32)
            for (int b = 0; b < 64; b++)
                if (b % 16 >= 8)
                    x[(r + 1) * lda - 64 + b] = 0;
}

struct shape {
    int n, k, m, bits, group, segment; /* positions; 0: all of k */
    int f16, shift, q8b, offsets, parts, plain;
};
struct problem {
    struct qni_cuda_product p;
    struct shape s;
    uint8_t *blobs, *rows;
    size_t blob_bytes;
    int copies;
    float *y, *expect;
};

static struct problem make(const struct shape &s, size_t rotate)
{
    struct problem q = {};
    struct qni_cuda_weights &w = q.p.w;
    const int group = s.group ? s.group : s.k, segment = s.segment ? s.segment : group;
    q.s = s;
    w.group_units = (group + 31) / 32;
    w.n_groups = (s.k + group - 1) / group;
    w.units = (w.n_groups - 1) * w.group_units + (s.k - (w.n_groups - 1) * group + 31) / 32;
    const int real = w.units;
    w.units += w.units & 1;
    w.segment_units = std::min((segment + 31) / 32, w.group_units);
    w.segments_per_group = (w.group_units + w.segment_units - 1) / w.segment_units;
    w.n_segments =
        (w.n_groups - 1) * w.segments_per_group +
        (real - (w.n_groups - 1) * w.group_units + w.segment_units - 1) / w.segment_units;
    w.panels = (s.n + 15) / 16;
    w.n = s.n;
    w.parts = s.parts;
    w.scale_is_f16 = s.f16;
    w.shift = s.shift;
    w.layout = s.bits == 4 ? QNI_CUDA_Q4FRAG : QNI_CUDA_Q8FRAG;
    const size_t panels = (size_t)w.panels * s.parts, facts = panels * w.n_groups * 16;
    w.codes = 256;
    w.scale = w.codes + panels * (w.units / 2) * 128 * s.bits;
    w.zero = (w.scale + facts * 4 + 15) / 16 * 16;
    w.offset = (w.zero + facts + 15) / 16 * 16;
    w.counts = w.offset + facts * 4;
    q.blob_bytes = (w.counts + w.n_segments * 4 + 255) / 256 * 256;
    q.copies = (int)std::min<size_t>(128, rotate / q.blob_bytes + 1);
    CHECK(cudaMalloc(&q.blobs, q.blob_bytes * q.copies));
    fill<<<1024, 256>>>(q.blobs, q.blob_bytes, 0, 1);
    fill<<<1024, 256>>>(q.blobs + w.scale, facts, s.f16 ? 1 : 2, 5);
    fill<<<1024, 256>>>(q.blobs + w.zero, facts, 3, 6);
    fill<<<1024, 256>>>(q.blobs + w.offset, facts, s.f16 ? 1 : 2, 7);
    fill<<<16, 256>>>(q.blobs + w.counts, w.n_segments, 4, 8);
    for (int c = 1; c < q.copies; c++) {
        CHECK(cudaMemcpy(q.blobs + q.blob_bytes * c, q.blobs, q.blob_bytes,
                         cudaMemcpyDeviceToDevice));
        fill<<<1024, 256>>>(q.blobs + q.blob_bytes * c, w.scale, 0, 100 + c);
        fill<<<1024, 256>>>(q.blobs + q.blob_bytes * c + w.scale, facts, s.f16 ? 1 : 2, 200 + c);
    }
    w.blob = q.blobs;
    struct qni_cuda_rows &x = q.p.x;
    const size_t all = (size_t)s.m * s.parts, per = (all * w.n_segments * 4 + 255) / 256 * 256;
    const size_t row = (size_t)w.units * 32, codes = (all * row + 255) / 256 * 256;
    CHECK(cudaMalloc(&q.rows, codes + per * 4 + all * 4));
    fill<<<1024, 256>>>(q.rows, codes, 0, 3);
    if (real != w.units)
        pad<<<(unsigned)panels, 32>>>(w, q.blobs, s.bits, q.rows, (int64_t)row, (int64_t)all);
    fill<<<64, 256>>>(q.rows + codes, all * w.n_segments, 2, 11);
    fill<<<64, 256>>>(q.rows + codes + per, all * w.n_segments, 2, 12);
    fill<<<64, 256>>>(q.rows + codes + per * 2, all * w.n_segments, 2, 13);
    fill<<<64, 256>>>(q.rows + codes + per * 3, all * w.n_segments, 4, 14);
    fill<<<64, 256>>>(q.rows + codes + per * 4, all, 2, 15);
    x.a = q.rows;
    x.lda = (int64_t)row;
    x.planes = 1;
    x.columns = (int32_t)row;
    x.part_rows = s.m;
    x.ld_segment = w.n_segments;
    x.x_scale = 1;
    x.sum = (const int32_t *)(q.rows + codes + per * 3);
    if (s.q8b) {
        x.scale = (const float *)(q.rows + codes);
        x.offset = s.offsets ? (const float *)(q.rows + codes + per) : NULL;
        x.total = (const float *)(q.rows + codes + per * 2);
    } else {
        x.x_zero = s.offsets ? 17 : 0;
        x.row_scale = (const float *)(q.rows + codes + per * 4);
    }
    const size_t outputs = all * s.n;
    CHECK(cudaMalloc(&q.y, outputs * 4));
    CHECK(cudaMalloc(&q.expect, outputs * 4));
    q.p.out.y = q.y;
    q.p.out.y_dtype = QN_F32;
    q.p.out.is_plain = s.plain;
    q.p.out.stride[2] = (int64_t)s.n * s.parts;
    q.p.out.stride[3] = 1;
    q.p.m = s.m;
    CHECK(cudaDeviceSynchronize());
    return q;
}
static void release(struct problem &q)
{
    CHECK(cudaFree(q.blobs));
    CHECK(cudaFree(q.rows));
    CHECK(cudaFree(q.y));
    CHECK(cudaFree(q.expect));
}

/* The definition: a thread an output. */
static __global__ void reference(const struct qni_cuda_product p, int bits, int q8b, float *y)
{
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    const int part = (int)blockIdx.z, r = (int)blockIdx.y, n = (int)i, o = n % 16;
    if (n >= p.w.n)
        return;
    const int64_t panel = (int64_t)part * p.w.panels + n / 16, row = part * p.x.part_rows + r;
    const int blocks = p.w.units / 2;
    const int8_t *const x = (const int8_t *)p.x.a + row * p.x.lda;
    float acc = 0;
    for (int s = 0; s < p.w.n_segments; s++) {
        const int q = s / p.w.segments_per_group;
        const int group_end = q == p.w.n_groups - 1 ? p.w.units : (q + 1) * p.w.group_units;
        const int begin =
            q * p.w.group_units + (s - q * p.w.segments_per_group) * p.w.segment_units;
        const int end =
            s + 1 == p.w.n_segments ? group_end : min(begin + p.w.segment_units, group_end);
        int dot = 0, sum = 0;
        for (int pos = begin * 32; pos < end * 32; pos++) {
            const int b = pos / 64, step = pos % 64 / 16, in = pos % 16;
            const int t = in % 8 / 2, j = in % 2 * 2 + in / 8, l = o % 8 * 4 + t;
            const uint8_t *block =
                p.w.blob + p.w.codes + (panel * blocks + b) * (bits == 4 ? 512 : 1024);
            int code;
            if (bits == 4) {
                const uint32_t w = ((const uint32_t *)block)[l * 4 + step];
                code = (int)(w >> (4 * (2 * j + o / 8)) & 15) - 8;
            } else {
                const int word = step % 2 * 2 + o / 8;
                code = (int)block[step / 2 * 512 + l * 16 + word * 4 + j] - 128;
            }
            dot += code * x[b * 64 + 16 * t + 4 * step + j];
            sum += code;
        }
        const size_t fact = (panel * p.w.n_groups + q) * 16 + o % 8 * 2 + o / 8;
        const float scale = p.w.scale_is_f16
                                ? __half2float(((const __half *)(p.w.blob + p.w.scale))[fact])
                                : ((const float *)(p.w.blob + p.w.scale))[fact];
        float t, offset = 0;
        const int64_t at = row * p.x.ld_segment + s;
        if (!q8b)
            t = (float)(dot - p.x.x_zero * sum);
        else if (p.x.offset != NULL)
            t = __fmaf_rn(p.x.scale[at], (float)dot, __fmul_rn(p.x.offset[at], (float)sum));
        else
            t = __fmul_rn(p.x.scale[at], (float)dot);
        acc = __fmaf_rn(scale, t, acc);
        if (p.w.shift == QNI_CUDA_SHIFT_ZERO)
            offset = __fmul_rn(-(float)((const int8_t *)(p.w.blob + p.w.zero))[fact], scale);
        else if (p.w.shift == QNI_CUDA_SHIFT_OFFSET)
            offset = p.w.scale_is_f16
                         ? __half2float(((const __half *)(p.w.blob + p.w.offset))[fact])
                         : ((const float *)(p.w.blob + p.w.offset))[fact];
        if (p.w.shift != QNI_CUDA_SHIFT_NONE)
            acc =
                __fmaf_rn(offset,
                          q8b ? p.x.total[at]
                              : (float)(p.x.sum[at] -
                                        p.x.x_zero * ((const int32_t *)(p.w.blob + p.w.counts))[s]),
                          acc);
    }
    if (!q8b)
        acc = __fmul_rn(acc, p.x.row_scale[row]);
    y[(int64_t)r * p.w.n * p.w.parts + part * p.w.n + n] = acc;
}

static qni_cuda_matmul_fn *entry_of(const struct shape &s)
{
    static qni_cuda_matmul_fn *const list[8] = {
        qni_matmul_q8_q4frag_mr8_sm80,  qni_matmul_q8_q4frag_mr16_sm80,
        qni_matmul_q8_q8frag_mr8_sm80,  qni_matmul_q8_q8frag_mr16_sm80,
        qni_matmul_q8b_q4frag_mr8_sm80, qni_matmul_q8b_q4frag_mr16_sm80,
        qni_matmul_q8b_q8frag_mr8_sm80, qni_matmul_q8b_q8frag_mr16_sm80};
    return list[s.q8b * 4 + (s.bits == 8) * 2 + (s.m > 8)];
}

static struct qni_cuda_launch launch_of(cudaStream_t stream, int pdl)
{
    struct qni_cuda_launch how = {};
    how.stream = stream;
    how.pdl = pdl;
    how.multiprocessors = 132;
    how.sm = 90;
    return how;
}

/* Outputs that differ in a bit, of two runs (the second with programmatic dependent launch). */
static int64_t check(const struct shape &s, cudaStream_t stream)
{
    struct problem q = make(s, 1);
    const size_t count = (size_t)s.m * s.n * s.parts;
    reference<<<dim3((unsigned)(s.n + 255) / 256, (unsigned)s.m, (unsigned)s.parts), 256>>>(
        q.p, s.bits, s.q8b, q.expect);
    CHECK(cudaDeviceSynchronize());
    std::vector<uint32_t> y(count), expect(count);
    CHECK(cudaMemcpy(expect.data(), q.expect, count * 4, cudaMemcpyDeviceToHost));
    int64_t bad = 0;
    for (int pdl = 0; pdl < 2; pdl++) {
        const struct qni_cuda_launch how = launch_of(stream, pdl);
        CHECK(cudaMemset(q.y, 0xff, count * 4));
        CHECK(cudaDeviceSynchronize());
        CHECK(entry_of(s)(&q.p, NULL, &how));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaMemcpy(y.data(), q.y, count * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < count; i++)
            bad += y[i] != expect[i];
    }
    release(q);
    return bad;
}
static int check_all(cudaStream_t stream)
{
    static const int ns[] = {16, 33, 260, 1000, 4096, 9001},
                     ks[] = {20, 100, 512, 1056, 4096, 6000};
    static const int groups[] = {32, 64, 96, 128, 256, 0};
    int64_t cases = 0, failed = 0;
    uint32_t seed = 1;
    for (int i = 0; i < 700; i++) {
        seed = seed * 1664525 + 1013904223;
        uint32_t r = seed >> 4;
        struct shape s = {};
        s.m = 1 + i % 16;
        s.bits = (i / 16) % 2 ? 8 : 4;
        s.q8b = (i / 32) % 2;
        s.offsets = (i / 64) % 2;
        s.shift = r % 4 == 3 ? 0 : (int)(r % 4);
        s.f16 = (int)(r / 4) % 2;
        s.group = groups[r / 8 % 6];
        s.segment = s.q8b ? 32 << r / 64 % 4 : 0;
        s.n = ns[r / 256 % 6];
        s.k = ks[r / 2048 % 6];
        if (i % 61 == 60)
            s.k = 18944;
        if (i % 97 == 96)
            s.k = 40000; /* x in stretches, long segments */
        s.parts = r / 65536 % 8 == 0 ? 3 : 1;
        s.plain = i % 3 != 0;
        const int64_t bad = check(s, stream);
        cases++;
        failed += bad != 0;
        if (bad != 0 && failed < 20)
            printf("FAIL n %d k %d m %d bits %d group %d segment %d f16 %d shift %d q8b %d offsets "
                   "%d parts %d: %lld\n",
                   s.n, s.k, s.m, s.bits, s.group, s.segment, s.f16, s.shift, s.q8b, s.offsets,
                   s.parts, (long long)bad);
    }
    printf("%lld cases, %lld failed\n", (long long)cases, (long long)failed);
    return failed != 0;
}

/* A problem of each kind, of several chunks, for a sanitizer. */
static int check_few(cudaStream_t stream)
{
    static const int cut[][3] = {{32, 32, 1}, {64, 64, 1}, {128, 128, 1}, {256, 256, 1},
                                 {32, 0, 0},  {0, 128, 1}, {0, 0, 1},     {0, 0, 0}};
    int failed = 0;
    for (int i = 0; i < 8 * 2 * 3; i++) {
        struct shape s = {};
        s.n = i % 16 == 0 ? 2200 : 140; /* two panels a CTA, or one */
        s.k = 2112;
        s.m = i / 16 == 0 ? 1 : i / 16 == 1 ? 5 : 13;
        s.bits = i / 8 % 2 ? 8 : 4;
        s.group = cut[i % 8][0];
        s.segment = cut[i % 8][1];
        s.q8b = cut[i % 8][2];
        s.f16 = 1;
        s.shift = i % 3;
        s.offsets = i % 2;
        s.parts = 1;
        s.plain = 1;
        const int64_t bad = check(s, stream);
        failed += bad != 0;
        if (bad != 0)
            printf("FAIL %d: %lld\n", i, (long long)bad);
    }
    printf("few: %d failed\n", failed);
    return failed != 0;
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
    for (int r = 0; r < 9; r++) {
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

static const struct kind {
    const char *name;
    int bits, group, segment, f16, q8b, offsets;
} kinds[] = {{"q4_0 x q8_1", 4, 32, 32, 1, 1, 0},       {"q4_0 x q8 + offset", 4, 32, 32, 1, 1, 1},
             {"q8_0 x q8_1", 8, 32, 32, 1, 1, 0},       {"q8_0 x q8 + offset", 8, 32, 32, 1, 1, 1},
             {"int4:g128 block", 4, 128, 128, 1, 1, 1}, {"int4:g128 row", 4, 128, 128, 1, 0, 0},
             {"int8:pc row", 8, 0, 0, 0, 0, 0},         {"int8:pc block", 8, 0, 128, 0, 1, 1}};

static void time_all(cudaStream_t stream, int which)
{
    static const int shapes[4][2] = {{4096, 4096}, {14336, 4096}, {8192, 8192}, {28672, 8192}};
    static const int ms[] = {1, 4, 16};
    for (int i = 0; i < 8; i++)
        for (int m = 0; m < 3; m++) {
            if (which >= 0 && i != which)
                continue;
            printf("%-20s m=%-3d", kinds[i].name, ms[m]);
            for (int j = 0; j < 4; j++) {
                const struct shape s = {shapes[j][0],
                                        shapes[j][1],
                                        ms[m],
                                        kinds[i].bits,
                                        kinds[i].group,
                                        kinds[i].segment,
                                        kinds[i].f16,
                                        0,
                                        kinds[i].q8b,
                                        kinds[i].offsets,
                                        1,
                                        1};
                struct problem q = make(s, (size_t)400 << 20);
                double us[2];
                for (int pdl = 0; pdl < 2; pdl++) {
                    const struct qni_cuda_launch how = launch_of(stream, pdl);
                    us[pdl] = time_graph(stream, 24, [&](int c) {
                        q.p.w.blob = q.blobs + (size_t)(c % q.copies) * q.blob_bytes;
                        CHECK(entry_of(s)(&q.p, NULL, &how));
                    });
                }
                printf("  %6.2f/%6.2f", us[0], us[1]);
                release(q);
            }
            printf("\n");
            fflush(stdout);
        }
}

/* Experts: `tiles` of them have `each` rows, the others none. Checked against products of one. */
static const struct mixture {
    const char *name;
    int experts, tiles, each, n, k;
} mixtures[] = {
    {"8 experts, all", 8, 8, 2, 14336, 4096}, {"8 experts, 2", 8, 2, 1, 14336, 4096},
    {"64 experts, 8", 64, 8, 1, 2048, 7168},  {"64 experts, all", 64, 64, 4, 2048, 7168},
    {"128 experts, 8", 128, 8, 1, 768, 2048}, {"128 experts, 56", 128, 56, 1, 768, 2048}};

static int time_experts(cudaStream_t stream)
{
    int failed = 0;
    for (int i = 0; i < 12; i++) {
        const struct mixture &mix = mixtures[i / 2];
        const struct kind &kind = kinds[i % 2 ? 6 : 0];
        struct shape s = {
            mix.n, mix.k,    mix.tiles * mix.each, kind.bits, kind.group, kind.segment, kind.f16,
            0,     kind.q8b, kind.offsets,         1,         1};
        struct problem q = make(s, (size_t)4 << 30);
        static struct qni_cuda_experts experts[12];
        const int n_tiles = (s.m + 7) / 8 + mix.experts;
        std::vector<int32_t> tiles(3 * n_tiles, 0), rows;
        for (int t = 0; t < mix.tiles; t++) {
            tiles[3 * t] = t * (mix.experts / mix.tiles);
            tiles[3 * t + 1] = t * mix.each;
            tiles[3 * t + 2] = mix.each;
        }
        for (int r = 0; r < s.m; r++)
            rows.push_back(s.m - 1 - r);
        int32_t *routes;
        CHECK(cudaMalloc(&routes, (tiles.size() + rows.size()) * 4));
        CHECK(cudaMemcpy(routes, tiles.data(), tiles.size() * 4, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(routes + tiles.size(), rows.data(), rows.size() * 4,
                         cudaMemcpyHostToDevice));
        const int apart = mix.experts == 8 ? 8 : 1; /* other blobs each time, past L2 */
        for (int e = 0; e < 12; e++) {
            experts[e].n = mix.experts;
            for (int x = 0; x < mix.experts; x++)
                experts[e].blob[x] = q.blobs + (size_t)((e * apart + x) % q.copies) * q.blob_bytes;
        }
        const struct qni_cuda_launch how = launch_of(stream, 0);
        struct shape one = s;
        one.m = mix.each;
        /* each expert's rows by themselves: last first */
        struct qni_cuda_product p = q.p;
        for (int t = 0; t < mix.tiles; t++)
            for (int r = 0; r < mix.each; r++) {
                const int row = s.m - 1 - (t * mix.each + r);
                p.w.blob = experts[0].blob[tiles[3 * t]];
                p.x = q.p.x;
                p.x.a = (const uint8_t *)q.p.x.a + row * q.p.x.lda;
                p.x.sum += (int64_t)row * p.x.ld_segment;
                if (s.q8b) {
                    p.x.scale += (int64_t)row * p.x.ld_segment;
                    p.x.total += (int64_t)row * p.x.ld_segment;
                } else
                    p.x.row_scale += row;
                p.out.y = q.expect + (int64_t)row * s.n;
                p.m = 1;
                reference<<<dim3((unsigned)(s.n + 255) / 256, 1, 1), 256>>>(
                    p, s.bits, s.q8b, q.expect + (int64_t)row * s.n);
            }
        q.p.w.blob = NULL;
        q.p.routes.tiles = routes;
        q.p.routes.rows = routes + tiles.size();
        q.p.routes.n_tiles = n_tiles;
        const size_t count = (size_t)s.m * s.n;
        std::vector<uint32_t> y(count), expect(count);
        CHECK(entry_of(one)(&q.p, &experts[0], &how));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(y.data(), q.y, count * 4, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(expect.data(), q.expect, count * 4, cudaMemcpyDeviceToHost));
        int64_t bad = 0;
        for (size_t j = 0; j < count; j++)
            bad += y[j] != expect[j];
        const double us =
            time_graph(stream, 12, [&](int c) { CHECK(entry_of(one)(&q.p, &experts[c], &how)); });
        const double bytes = (double)q.p.w.zero * mix.tiles;
        printf("%-16s %-16s %9.2f us  %6.2f MB  %5.2f TB/s  %lld differ\n", mix.name, kind.name, us,
               bytes * 1e-6, bytes / us * 1e-6, (long long)bad);
        fflush(stdout);
        failed += bad != 0;
        CHECK(cudaFree(routes));
        release(q);
    }
    return failed != 0;
}

int main(int argc, char **argv)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const char *what = argc > 1 ? argv[1] : "check";
    if (strcmp(what, "check") == 0)
        return check_all(stream);
    if (strcmp(what, "few") == 0)
        return check_few(stream);
    if (strcmp(what, "experts") == 0)
        return time_experts(stream);
    time_all(stream, argc > 2 ? atoi(argv[2]) : -1);
    return 0;
}
