/* SPDX-License-Identifier: Apache-2.0 */
/* One row of f16 x times weights of 4 or 8 bits, in whole numbers and without any error until the
 * scale of a group: y = sum over groups of scale * (sum of x (code - zero)) [+ offset * sum of x].
 *
 * An f16 is a multiple of 2^-24 below 2^16, so x * 2^24 is an integer of 41 bits: six digits of 8
 * bits, from -128 to 127 each. The digits of one row are six of the eight columns that an int8
 * product has anyway, and a weight becomes a byte for less than half of the instructions that make
 * it an f16, in products half as many: 36 cycles of a scheduler for a block of 64 positions of 4
 * bits instead of 75 (lab/cuda/NOTES.md). Sums of a digit are exact (128 * 128 * 128 = 2^21 in a
 * step); times 256^digit * 2^-24, they are added up in f32 like the sums of any other kernel.
 *
 *     x + (1.5 * 2^28 + 2^-24 * 0x8080808080)    in f64 has X + 0x8080808080 in its lower bits, X =
 *                                                x * 2^24: a byte less 128 is a digit
 *
 * A row that holds an infinity or a NaN gives NaN. decode.cuh: how chunks of weights arrive, and
 * which warp has which. Digits lie in shared memory in the order in which lanes hold them: 400
 * bytes a block, [digit][lane t][step][4 positions], of which the last 16 keep lanes that write out
 * of each other's banks. */
#include "../decode.cuh"
#include "../dequant.cuh"
#include "../epilogue.cuh"
#include "../mma.cuh"

enum { DIGITS = 6, DIGIT_BYTES = 64, BLOCK_BYTES = DIGITS * DIGIT_BYTES + 16 };

#define INLINE static __device__ __forceinline__

/* ---- digits of x ----------------------------------------------------------------------------- */

/* Sixteen elements of x from p on, zeros behind the columns. */
INLINE void load_step(uint32_t (&v)[8], const uint8_t *x, int32_t p, int32_t columns)
{
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const int32_t left = columns - p - 2 * i;
        uint4 four = make_uint4(0, 0, 0, 0);
        if (left >= 8)
            four = *(const uint4 *)(x + (size_t)(p + 2 * i) * 2);
        v[i] = four.x;
        v[i + 1] = four.y;
        v[i + 2] = four.z;
        v[i + 3] = four.w;
        if (left > 0 && left < 8)
#pragma unroll
            for (int j = 0; j < 7; j++)
                if (j < left)
                    v[i + j / 2] |= (uint32_t)((const uint16_t *)x)[p + 2 * i + j] << j % 2 * 16;
    }
}

/* Byte j of word i becomes byte i of word j. */
INLINE void transpose_bytes(uint32_t (&w)[4])
{
    const uint32_t a = ptx_bytes(w[0], w[1], 0x5140), b = ptx_bytes(w[2], w[3], 0x5140);
    const uint32_t c = ptx_bytes(w[0], w[1], 0x7362), e = ptx_bytes(w[2], w[3], 0x7362);
    w[0] = ptx_bytes(a, b, 0x5410);
    w[1] = ptx_bytes(a, b, 0x7632);
    w[2] = ptx_bytes(c, e, 0x5410);
    w[3] = ptx_bytes(c, e, 0x7632);
}

/* The digits of a step to their places; `strange` becomes NaN where an element is none. */
INLINE void store_step(uint8_t *to, const uint32_t (&v)[8], float &strange)
{
    const double lift = 0x1.8p28 + 0x1.0101010100p15;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float2 a = __half22float2(*(const __half2 *)&v[t]);
        const float2 b = __half22float2(*(const __half2 *)&v[t + 4]);
        const float four[4] = {a.x, b.x, a.y, b.y};
        uint32_t low[4], high[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const double sum = (double)four[j] + lift;
            low[j] = (uint32_t)__double2loint(sum);
            high[j] = (uint32_t)__double2hiint(sum);
            strange = fmaf(four[j], 0.0f, strange);
        }
        transpose_bytes(low);
        transpose_bytes(high);
#pragma unroll
        for (int i = 0; i < DIGITS; i++)
            *(uint32_t *)(to + i * DIGIT_BYTES + t * 16) = i < 4   ? low[i] ^ 0x80808080
                                                           : i < 5 ? high[i - 4] ^ 0x80808080
                                                                   : high[i - 4];
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Where a lane finds its part of a chunk, and what its two columns are worth. */
struct one_lane {
    const uint8_t *codes, *table, *zero, *digits;
    float worth[2], less[2];
};

/* Sums of a lane: outputs g and g + 8, two digits each; and of the digits alone. They begin where
 * an f32 has its whole numbers side by side: as f32 such a sum is 1.5 * 2^23 more than it is. */
enum { ONE_BEGIN = 0x4b400000 };
struct one_sums {
    int32_t products[4], x[4];
};

/* A fragment of bytes of one unit, and what one of them stands for. */
template <int BITS> INLINE void bytes_of(uint32_t (&a)[4], const uint32_t *words)
{
    if (BITS == 4) {
        dequant_q4_bytes16(a[0], a[1], words[0]);
        dequant_q4_bytes16(a[2], a[3], words[1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = dequant_q8_bytes(words[i]);
    }
}

INLINE float2 pair_at(const uint8_t *at, int32_t is_f16)
{
    return is_f16 ? __half22float2(*(const __half2 *)at) : *(const float2 *)at;
}

/* Scales what has been summed. A zero point takes sums beyond what the trick with f32 holds. */
template <int BITS, int SHIFT>
INLINE void scale_sums(const struct decode &d, float (&all)[4], const struct one_sums &s,
                       const struct one_lane &in, int32_t at)
{
    const float2 scale = pair_at(in.table + at, d.scale_is_f16);
    float2 offset = make_float2(0.0f, 0.0f);
    char2 zero = make_char2(0, 0);
    if (SHIFT == QNI_CUDA_SHIFT_OFFSET)
        offset = pair_at(in.table + d.rows * d.row_bytes + at, d.scale_is_f16);
    if (SHIFT == QNI_CUDA_SHIFT_ZERO)
        zero = *(const char2 *)(in.zero + (d.scale_is_f16 ? at / 2 : at / 4));
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float worth = in.worth[j & 1];
        float sum;
        if (SHIFT == QNI_CUDA_SHIFT_ZERO) {
            const int32_t z = (j < 2 ? zero.x : zero.y) * (BITS == 4 ? 16 : 1);
            sum = (float)(s.products[j] - z * s.x[j & 1]) * worth;
        } else {
            sum = fmaf(__int_as_float(s.products[j]), worth, in.less[j & 1]);
        }
        all[j] = fmaf(sum, j < 2 ? scale.x : scale.y, all[j]);
        if (SHIFT == QNI_CUDA_SHIFT_OFFSET) {
            const float x = (float)s.x[j & 1] * (BITS == 4 ? worth * 16.0f : worth);
            all[j] = fmaf(x, j < 2 ? offset.x : offset.y, all[j]);
        }
    }
}

/* A chunk: 512 positions of 4 bits or 256 of 8. SPAN: units to a row of tables, 1 or 2, or 4 where
 * there are more. */
template <int BITS, int SHIFT, int SPAN>
INLINE void chunk(const struct decode &d, float (&all)[4], const struct one_lane &in)
{
    enum { BLOCK = 128 * BITS, BLOCKS = DECODE_CHUNK / BLOCK };
    const int32_t begin = SHIFT == QNI_CUDA_SHIFT_ZERO ? 0 : ONE_BEGIN;
#pragma unroll
    for (int b = 0; b < BLOCKS; b += 2) {
        uint32_t words[2][BLOCK / 128];
        uint4 x[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int i = 0; i < BLOCK / 512; i++)
                *(uint4 *)(words[e] + 4 * i) =
                    *(const uint4 *)(in.codes + (b + e) * BLOCK + i * 512);
            x[e] = *(const uint4 *)(in.digits + (b + e) * BLOCK_BYTES);
        }
        struct one_sums s;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const uint32_t ones[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101};
            const uint4 at = x[u / 2];
            uint32_t a[4];
            if (u % SPAN == 0)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    s.products[j] = begin;
                    s.x[j] = 0;
                }
            bytes_of<BITS>(a, words[u / 2] + u % 2 * (BLOCK / 256));
            mma_s8(s.products, a, u % 2 == 0 ? at.x : at.z, u % 2 == 0 ? at.y : at.w);
            if (SHIFT != QNI_CUDA_SHIFT_NONE)
                mma_s8(s.x, ones, u % 2 == 0 ? at.x : at.z, u % 2 == 0 ? at.y : at.w);
            if ((u + 1) % SPAN == 0)
                scale_sums<BITS, SHIFT>(d, all, s, in,
                                        ((2 * b + u + 1 - SPAN) * d.table_step) & -d.row_bytes);
        }
    }
}

/* What a warp has of one panel, to its place in shared memory: 16 outputs, all digits together. */
INLINE void put_sums(float (&all)[4], float *to, bool add, int32_t lane)
{
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        float v = all[j] + all[j + 1];
        v += __shfl_xor_sync(0xffffffffu, v, 1);
        v += __shfl_xor_sync(0xffffffffu, v, 2);
        float *const at = to + (lane >> 2) + j * 4;
        if ((lane & 3) == 0)
            *at = add ? *at + v : v;
        all[j] = all[j + 1] = 0.0f;
    }
}

/* Apart, so that its polynomials cost the fast path no register. */
static __device__ __noinline__ void store_any(const struct qni_cuda_sink *out, int64_t row,
                                              int32_t j, int32_t expert, float v)
{
    epilogue_store(*out, epilogue_row_of(*out, row), j, expert, v);
}

/* Which outputs a CTA has, of which part or expert. */
struct one_place {
    int32_t first, count, part, expert;
};

/* Adds what the warps have of each output, in their order, and stores it. */
INLINE void finish(const struct decode &d, const struct qni_cuda_sink &out, const float *sums,
                   const struct decode_rows &rows, const struct one_place &place, bool is_strange)
{
    const int64_t row = d.row + (rows.index != NULL ? rows.index[0] : 0);
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < place.count * 16; i += DECODE_THREADS) {
        const int32_t o = place.first * 16 + i;
        const float *const at = sums + (i >> 4) * (16 * DECODE_WARPS) + (i & 15);
        float v = 0.0f;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            v += at[w * 16];
        v = is_strange ? __int_as_float(0x7fffffff) : v;
        if (o >= d.n)
            continue;
        if (out.is_plain)
            epilogue_round(out, row * out.stride[2] + place.part * d.n + o, v);
        else
            store_any(&out, row, place.part * d.n + o, place.expert, v);
    }
}

/* ---- chunks in turns ------------------------------------------------------------------------- */

/* Chunks of a CTA in the order in which they lie, stretch after stretch: warp w has those whose
 * number is w modulo 8. All rings of decode.cuh are one here, of d.depth slots, a multiple of 8:
 * chunk i goes to slot i modulo depth, and who has read a slot asks for what comes there next. */
struct one_walk {
    int32_t s, len, p, c; /* stretch at s, of len chunks; chunk c of panel p */
};
INLINE void walk_on(const struct decode &d, int32_t count, struct one_walk &f, int32_t by)
{
    f.c += by;
#pragma unroll 1
    while (f.c >= f.len && f.s < d.chunks) {
        f.c -= f.len;
        if (++f.p == count) {
            f.p = 0;
            f.s += d.stretch;
            f.len = min(d.stretch, d.chunks - f.s);
        }
    }
}
INLINE struct one_walk walk_to(const struct decode &d, int32_t count, int32_t i)
{
    struct one_walk f = {0, min(d.stretch, d.chunks), 0, 0};
    walk_on(d, count, f, i);
    return f;
}
/* Asks for the chunk at f, if there is one, into a slot that all lanes have read. */
template <int UNITS>
INLINE void ask_for(const struct decode &d, const uint8_t *blob, int32_t panel,
                    const struct one_walk &f, uint32_t slot, uint32_t bar, int32_t lane)
{
    if (f.s < d.chunks) {
        struct decode_walk at;
        at.s = f.s;
        at.c = f.c;
        at.panel = panel + f.p;
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
            const bool last = f.s + f.c == d.chunks - 1;
            decode_walk_point<UNITS>(d, blob, at);
            if (d.in_line == 0 || (last && d.ragged))
                decode_ask_any<UNITS>(d, at, blob, slot, bar, lane);
            else
                decode_ask(d, at, slot, bar, last ? d.last_bytes : DECODE_CHUNK);
        }
#else
        decode_ask_any<UNITS>(d, at, blob, slot, bar, lane);
#endif
    }
#if __CUDA_ARCH__ < 900
    ptx_copies_commit();
#endif
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int BITS, int SHIFT, int SPAN>
static __global__ void __launch_bounds__(DECODE_THREADS, 2)
    decode_one(const __grid_constant__ struct decode d,
               const __grid_constant__ struct qni_cuda_sink out,
               const __grid_constant__ struct qni_cuda_experts experts)
{
    enum { UNITS = DECODE_CHUNK / (64 * BITS), STEPS = UNITS * 2 };
    extern __shared__ __align__(128) uint8_t shared[];
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const int32_t cta = (int32_t)blockIdx.y, count = d.share + (cta < d.more);
    const int32_t first = cta * d.share + min(cta, d.more);
    const uint32_t bars = ptx_shared(shared), ring = bars + (uint32_t)d.at_ring;
    const uint8_t *blob = d.blob;
    struct decode_rows rows = {NULL, 0, 1};
    int32_t part = 0, expert = 0;

    if (d.routes.tiles != NULL) { /* which weights, the launch before this one may have decided */
        ptx_dependency_wait();
        const int32_t *const tile = d.routes.tiles + 3 * blockIdx.x;
        expert = tile[0];
        if (tile[2] == 0 || expert < experts.first || expert >= experts.first + experts.n)
            return;
        blob = experts.blob[expert - experts.first];
        rows.index = d.routes.rows + tile[1];
    } else {
        part = (int32_t)blockIdx.x;
        rows.base = part * d.x.part_rows;
    }
    /* nvcc 13.0 may take a pointer chosen between two parameters for always the second. */
    asm volatile("" : "+l"(blob));
    /* x first, which would wait behind weights; but weights first where x is not there yet. */
    const int32_t step = (int32_t)threadIdx.x, steps = min(d.stretch, d.chunks) * STEPS;
    uint32_t some[8] = {};
    const bool x_first = !d.pdl || d.routes.tiles != NULL;
    if (x_first && step < steps)
        load_step(some, decode_x_row(d, rows, 0), step * 16, d.x.columns);
    const int32_t panel = part * d.panels + first;
    struct one_walk f = walk_to(d, count, warp);
#if __CUDA_ARCH__ >= 900
#pragma unroll 1
    for (int32_t i = warp + lane * DECODE_WARPS; i < d.depth; i += 32 * DECODE_WARPS)
        decode_bar_init(bars + 8 * (uint32_t)i, 1);
    decode_bar_fence();
    __syncwarp();
#endif
#pragma unroll 1
    for (int32_t i = warp; i < d.depth; i += DECODE_WARPS) {
        ask_for<UNITS>(d, blob, panel, f, ring + (uint32_t)(i * d.slot_bytes),
                       bars + 8 * (uint32_t)i, lane);
        walk_on(d, count, f, DECODE_WARPS);
    }
    ptx_dependents_launch();
    float *const sums = (float *)(shared + d.at_sums);
    if (d.stretch < d.chunks || d.chunks < DECODE_WARPS)
        for (int32_t i = (int32_t)threadIdx.x; i < count * 16 * DECODE_WARPS; i += DECODE_THREADS)
            sums[i] = 0.0f;
    if (!x_first) {
        ptx_dependency_wait();
        if (step < steps)
            load_step(some, decode_x_row(d, rows, 0), step * 16, d.x.columns);
    } else {
        ptx_dependency_wait();
    }
    const uint8_t *const x = decode_x_row(d, rows, 0);

    const int32_t g = lane >> 2, t = lane & 3;
    struct one_lane in;
#pragma unroll
    for (int j = 0; j < 2; j++) { /* 256^(2 t + j) * 2^-24, and a weight is 16 times too large */
        const int32_t exponent = 8 * (2 * t + j) - 24 - (BITS == 4 ? 4 : 0);
        in.worth[j] = t == 3 ? 0.0f : __int_as_float((127 + exponent) << 23);
        in.less[j] = -12582912.0f * in.worth[j];
    }
    const uint8_t *const codes = shared + d.at_ring + lane * 16;
    const uint8_t *const table = shared + d.at_ring + DECODE_CHUNK + g * (d.scale_is_f16 ? 4 : 8);
    const uint8_t *const zero = shared + d.at_ring + DECODE_CHUNK + d.rows * d.row_bytes + g * 2;
    const uint8_t *const digits = shared + d.at_x + (g < DIGITS ? lane : lane - 8) * 16;
    float all[4] = {}, strange = 0.0f;
    bool is_strange = false;
    struct one_walk r = walk_to(d, count, warp);
    int32_t slot = warp, parity = 0;
#pragma unroll 1
    for (int32_t at = 0; at < d.chunks; at += d.stretch) {
        const int32_t len = min(d.stretch, d.chunks - at);
        if (at > 0) {
            __syncthreads();
            if (step < len * STEPS)
                load_step(some, x, (at * STEPS + step) * 16, d.x.columns);
        }
#pragma unroll 1
        for (int32_t i = step; i < len * STEPS; i += DECODE_THREADS) {
            if (i != step)
                load_step(some, x, (at * STEPS + i) * 16, d.x.columns);
            store_step(shared + d.at_x + (i >> 2) * BLOCK_BYTES + (i & 3) * 4, some, strange);
        }
        is_strange = __syncthreads_or(strange != 0.0f) != 0;
#pragma unroll 1
        while (r.s == at) {
            const uint32_t bar = bars + 8 * (uint32_t)slot;
#if __CUDA_ARCH__ >= 900
            decode_bar_wait(bar, parity);
#else
            if (d.depth == DECODE_WARPS)
                ptx_copies_wait<0>();
            else
                ptx_copies_wait<DECODE_MIN_DEPTH - 1>();
            __syncwarp();
#endif
            const int32_t begin = slot * d.slot_bytes, p = r.p;
            in.codes = codes + begin;
            in.table = table + begin;
            in.zero = zero + begin;
            in.digits = digits + r.c * (UNITS / 2 * BLOCK_BYTES);
            chunk<BITS, SHIFT, SPAN>(d, all, in);
            __syncwarp();
            ask_for<UNITS>(d, blob, panel, f, ring + (uint32_t)begin, bar, lane);
            walk_on(d, count, f, DECODE_WARPS);
            walk_on(d, count, r, DECODE_WARPS);
            slot += DECODE_WARPS;
            if (slot >= d.depth) {
                slot -= d.depth;
                parity ^= 1;
            }
            if (r.p != p || r.s != at)
                put_sums(all, sums + (p * DECODE_WARPS + warp) * 16, at > 0, lane);
        }
    }
    __syncthreads();
    const struct one_place place = {first, count, part, expert};
    finish(d, out, sums, rows, place, is_strange);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* CTAs for the panels of a part or of a tile, as in decode_sm80.cu; but no CTA has more panels than
 * what fits: rings of 50 KB, sums of 512 bytes a panel, digits of a chunk. */
static int32_t ctas_for(const struct decode *d, const struct qni_cuda_product *p,
                        const struct qni_cuda_launch *launch)
{
    if (p->routes.tiles != NULL) {
        const int32_t each = (4 * DECODE_WARPS + d->chunks - 1) / d->chunks;
        return (d->panels + each - 1) / each;
    }
    const int32_t most = launch->sm == 90 ? 96 : 32;
    const int32_t ctas = (launch->multiprocessors + p->w.parts - 1) / p->w.parts;
    return (d->panels + ctas * most - 1) / (ctas * most) * ctas;
}

/* Where things lie; depth: as much as `limit` bytes have room for. x: bytes of a chunk's digits. */
static int32_t plan_depth(struct decode *d, int32_t x, int32_t limit, int32_t most)
{
    const int32_t sums = (d->share + 1) * 64 * DECODE_WARPS;
    const int64_t room = (int64_t)limit - d->at_ring - sums - 128 - (int64_t)d->stretch * x;
    const int32_t each = (int32_t)(room / d->slot_bytes / DECODE_WARPS);
    d->depth = (each < most ? each : most) * DECODE_WARPS;
    d->at_sums = d->at_ring + d->depth * d->slot_bytes;
    d->at_x = (d->at_sums + sums + 127) / 128 * 128;
    d->bytes = d->at_x + d->stretch * x;
    return each;
}
/* Two or three slots a warp and a second CTA on the multiprocessor, of the launch behind this one,
 * or else up to five slots. Before sm_90, where copies of a warp are counted, two. */
static void plan_shared(struct decode *d, const struct qni_cuda_launch *launch, int32_t x)
{
    const bool is_ring = launch->sm == 90;
    const int32_t one = decode_shared_limit(launch, 1), two = decode_shared_limit(launch, 2);
    d->stretch = d->chunks < 4096 ? d->chunks : 4096;
    if (d->stretch == d->chunks && plan_depth(d, x, two, is_ring ? 3 : 2) >= 2)
        return;
    for (int32_t least = 2; least >= 1; least--)
        for (d->stretch = d->chunks < 4096 ? d->chunks : 4096;; d->stretch = (d->stretch + 1) / 2) {
            if (plan_depth(d, x, one, is_ring ? 5 : 2) >= least)
                return;
            if (d->stretch == 1)
                break;
        }
}

template <int BITS, int SHIFT>
static int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                      const struct qni_cuda_launch *launch)
{
    enum { UNITS = DECODE_CHUNK / (64 * BITS), SPAN = SHIFT == QNI_CUDA_SHIFT_NONE ? 4 : 2 };
    struct decode d;
    decode_plan(&d, p, launch, UNITS, 1);
    decode_plan_share(&d, ctas_for(&d, p, launch), 1);
    plan_shared(&d, launch, UNITS / 2 * BLOCK_BYTES);
    const void *const kernel = d.rows == UNITS       ? (const void *)decode_one<BITS, SHIFT, 1>
                               : 2 * d.rows == UNITS ? (const void *)decode_one<BITS, SHIFT, 2>
                                                     : (const void *)decode_one<BITS, SHIFT, SPAN>;
    return decode_launch(kernel, &d, p, experts, launch);
}

#define DECODE_KERNEL(name, bits)                                                                  \
    extern "C" int32_t name(const struct qni_cuda_product *p,                                      \
                            const struct qni_cuda_experts *experts,                                \
                            const struct qni_cuda_launch *how)                                     \
    {                                                                                              \
        if (p->w.shift == QNI_CUDA_SHIFT_OFFSET)                                                   \
            return launch<bits, QNI_CUDA_SHIFT_OFFSET>(p, experts, how);                           \
        if (p->w.shift == QNI_CUDA_SHIFT_ZERO)                                                     \
            return launch<bits, QNI_CUDA_SHIFT_ZERO>(p, experts, how);                             \
        return launch<bits, QNI_CUDA_SHIFT_NONE>(p, experts, how);                                 \
    }
DECODE_KERNEL(qni_matmul_f16_q4frag_mr1_sm80, 4)
DECODE_KERNEL(qni_matmul_f16_q8frag_mr1_sm80, 8)
