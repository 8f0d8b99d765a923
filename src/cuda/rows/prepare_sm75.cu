/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of x to what the matmul kernels read, where x comes in stretches of 16 neighbours: matrices,
 * and images with their channels innermost.
 *
 *     a piece is 16 packed positions, one step of a block: a lane has one (or a few) of them
 *     flat kernels     a lane a piece; what pieces share (a segment, a group) lies in one warp
 *     row kernel       a team of threads has a row, or a long segment, in its registers
 *
 * x is read once, 32 bytes a lane at a time, and codes are written once, 16 bytes a lane: the four
 * lanes of a block trade their words. So the time is that of the bytes, (size of x) + (size of the
 * rows), at the bandwidth of the memory; a row too long for the registers is read twice, the second
 * time mostly from the caches. Exact: rows.cuh. */
#include "prepare.cuh"

enum { THREADS = 256, BYTES = 0, MAX_WIDTH = 32 };

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Words of a piece as it lies in memory: DTYPE is QN_F32, QN_F16, QN_BF16, or BYTES. */
template <int DTYPE> static constexpr int WORDS = DTYPE == QN_F32 ? 16 : DTYPE == BYTES ? 4 : 8;

/* n (1 to 16) elements; behind them zeros. */
template <int DTYPE>
ROWS_DEVICE void load_piece(const void *x, int64_t at, int32_t n, uint32_t (&raw)[WORDS<DTYPE>])
{
    constexpr int per_word = 16 / WORDS<DTYPE>;
    const uint8_t *const from = (const uint8_t *)x + at * (4 / per_word);
    if (n >= 16) {
#pragma unroll
        for (int i = 0; i < WORDS<DTYPE>; i += 4) {
            const uint4 four = __ldg((const uint4 *)(from + 4 * i));
            raw[i] = four.x;
            raw[i + 1] = four.y;
            raw[i + 2] = four.z;
            raw[i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < WORDS<DTYPE>; i++) {
        raw[i] = 0;
#pragma unroll
        for (int e = 0; e < per_word; e++) {
            if (i * per_word + e >= n)
                continue;
            const uint8_t *const one = from + (i * per_word + e) * (4 / per_word);
            if (per_word == 1)
                raw[i] = *(const uint32_t *)one;
            else if (per_word == 2)
                raw[i] |= (uint32_t)(*(const uint16_t *)one) << (16 * e);
            else
                raw[i] |= (uint32_t)*one << (8 * e);
        }
    }
}

/* Piece q of a row: how many of its positions are real. Zeros (of int8-static: the code of zero)
 * where it lies outside. */
template <int DTYPE>
ROWS_DEVICE int32_t read_piece(const struct rows_job &j, const struct rows_row &row, int32_t q,
                               uint32_t (&raw)[WORDS<DTYPE>], int32_t *column)
{
    const struct rows_place p = rows_place_of(j, row, 16 * q);
    const int32_t n = min(p.n, 16);
    *column = p.column;
    uint32_t hole = 0;
    if (DTYPE == BYTES && j.s.is_image)
        hole = (uint32_t)(j.s.x_zero & 0xff) * 0x01010101u;
#pragma unroll
    for (int i = 0; i < WORDS<DTYPE>; i++)
        raw[i] = n > 0 ? hole : 0u;
    if (n > 0 && p.is_inside) {
        load_piece<DTYPE>(j.s.x, p.at, n, raw);
        if (DTYPE == BYTES && j.s.dtype == QN_U8)
#pragma unroll
            for (int i = 0; i < WORDS<DTYPE>; i++)
                raw[i] ^= 0x80808080u;
    }
    return n;
}

template <int DTYPE>
ROWS_DEVICE void widen_piece(const struct rows_job &j, const uint32_t (&raw)[WORDS<DTYPE>],
                             int32_t n, int32_t column, float (&v)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t word = raw[i * WORDS<DTYPE> / 16];
        const uint32_t half = DTYPE == QN_F32 ? 0u : i & 1 ? word >> 16 : word & 0xffffu;
        if (DTYPE == QN_F32)
            v[i] = __uint_as_float(word);
        else if (DTYPE == QN_F16)
            v[i] = __half2float(__ushort_as_half((unsigned short)half));
        else
            v[i] = __uint_as_float(i & 1 ? word & 0xffff0000u : word << 16);
    }
    if (j.s.prescale == NULL)
        return;
    if (n >= 16) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const float4 four = __ldg((const float4 *)(j.s.prescale + column + i));
            v[i] = __fmul_rn(v[i], four.x);
            v[i + 1] = __fmul_rn(v[i + 1], four.y);
            v[i + 2] = __fmul_rn(v[i + 2], four.z);
            v[i + 3] = __fmul_rn(v[i + 3], four.w);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (i < n)
                v[i] = __fmul_rn(v[i], j.s.prescale[column + i]);
    }
}

ROWS_DEVICE void see_values(const float (&v)[16], int32_t n, bool symmetric,
                            struct rows_extremes *seen)
{
    if (n >= 16 || symmetric) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            rows_see(seen, v[i], symmetric);
    } else {
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (i < n)
                rows_see(seen, v[i], symmetric);
    }
}

/* The larger and the smaller of two halves, pair by pair; NaN if either is. */
#if __CUDA_ARCH__ >= 800
template <int DTYPE> ROWS_DEVICE uint32_t max_pair(uint32_t a, uint32_t b)
{
    uint32_t m;
    if (DTYPE == QN_F16)
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    else
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}
template <int DTYPE> ROWS_DEVICE uint32_t min_pair(uint32_t a, uint32_t b)
{
    uint32_t m;
    if (DTYPE == QN_F16)
        asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    else
        asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}
template <int DTYPE> ROWS_DEVICE float half_of(uint32_t pair, int which)
{
    const uint32_t bits = which ? pair >> 16 : pair & 0xffffu;
    return DTYPE == QN_F16 ? __half2float(__ushort_as_half((unsigned short)bits))
                           : __uint_as_float(bits << 16);
}
#endif

/* The extremes of a piece: of halves without widening them, two at a time. */
template <int DTYPE, int SYMMETRIC>
ROWS_DEVICE void see_piece(const struct rows_job &j, const uint32_t (&raw)[WORDS<DTYPE>], int32_t n,
                           int32_t column, struct rows_extremes *seen)
{
#if __CUDA_ARCH__ >= 800
    if constexpr (DTYPE != QN_F32) {
        if (j.s.prescale == NULL && (n >= 16 || SYMMETRIC)) {
            const uint32_t magnitude = SYMMETRIC ? 0x7fff7fffu : 0xffffffffu;
            uint32_t lo = raw[0], hi = raw[0] & magnitude;
#pragma unroll
            for (int i = 1; i < 8; i++) {
                if (!SYMMETRIC)
                    lo = min_pair<DTYPE>(lo, raw[i]);
                hi = max_pair<DTYPE>(hi, raw[i] & magnitude);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!SYMMETRIC)
                    seen->lo = rows_min(seen->lo, half_of<DTYPE>(lo, i));
                seen->hi = rows_max(seen->hi, half_of<DTYPE>(hi, i));
            }
            return;
        }
    }
#endif
    float v[16];
    widen_piece<DTYPE>(j, raw, n, column, v);
    see_values(v, n, SYMMETRIC, seen);
}

/* Positions n and behind become 0. */
ROWS_DEVICE void cut_codes(uint32_t (&codes)[4], int32_t n)
{
    if (n >= 16)
        return;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const int32_t left = min(n - 4 * w, 4);
        codes[w] = left > 0 ? codes[w] & (0xffffffffu >> (32 - 8 * left)) : 0u;
    }
}

/* Codes in natural order: byte i is position i. */
template <int SYMMETRIC>
ROWS_DEVICE void encode_values(const float (&v)[16], const struct rows_scaling &s,
                               bool halves_exactly, uint32_t (&codes)[4])
{
    const uint32_t mask = rows_code_mask(s);
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint32_t c[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[i] = rows_encode(v[4 * w + i], s, SYMMETRIC, halves_exactly);
        const uint32_t low = __byte_perm(c[0], c[1], 0x0040);
        const uint32_t high = __byte_perm(c[2], c[3], 0x0040);
        codes[w] = __byte_perm(low, high, 0x5410) & mask;
    }
}
template <int DTYPE, int SYMMETRIC>
ROWS_DEVICE void encode_piece(const struct rows_job &j, const uint32_t (&raw)[WORDS<DTYPE>],
                              int32_t n, int32_t column, const struct rows_scaling &s,
                              uint32_t (&codes)[4])
{
    float v[16];
    widen_piece<DTYPE>(j, raw, n, column, v);
    if (!SYMMETRIC && DTYPE != QN_F32 && j.s.prescale == NULL)
        encode_values<SYMMETRIC>(v, s, true, codes);
    else
        encode_values<SYMMETRIC>(v, s, false, codes);
    cut_codes(codes, n);
}

ROWS_DEVICE int32_t sum_piece(const uint32_t (&codes)[4])
{
    int32_t sum = 0;
#pragma unroll
    for (int w = 0; w < 4; w++)
        sum = rows_add_bytes(codes[w], sum);
    return sum;
}

/* The codes of 4 lanes as the 64 bytes of their block. Word t of a step is its positions 2t, 2t +
 * 8, 2t + 1, 2t + 9; lane s has those of step s and wants word t = s of all steps: a transpose in
 * two exchanges. Every lane of the warp comes here. */
ROWS_DEVICE uint4 block_of_codes(const uint32_t (&c)[4])
{
    const uint32_t w0 = __byte_perm(c[0], c[2], 0x5140), w1 = __byte_perm(c[0], c[2], 0x7362);
    const uint32_t w2 = __byte_perm(c[1], c[3], 0x5140), w3 = __byte_perm(c[1], c[3], 0x7362);
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const uint32_t far0 = __shfl_xor_sync(0xffffffffu, odd ? w0 : w1, 1);
    const uint32_t far1 = __shfl_xor_sync(0xffffffffu, odd ? w2 : w3, 1);
    const uint32_t a0 = odd ? far0 : w0, a1 = odd ? w1 : far0; /* word `odd`, steps 2i, 2i + 1 */
    const uint32_t b0 = odd ? far1 : w2, b1 = odd ? w3 : far1; /* word 2 + odd */
    const uint32_t far2 = __shfl_xor_sync(0xffffffffu, high ? a0 : b0, 2);
    const uint32_t far3 = __shfl_xor_sync(0xffffffffu, high ? a1 : b1, 2);
    return high ? make_uint4(far2, far3, b0, b1) : make_uint4(a0, a1, far2, far3);
}

/* Every lane of the warp comes here, also one that has no piece. */
ROWS_DEVICE void store_codes(const struct rows_job &j, int64_t row, int32_t q, bool is_active,
                             int32_t n, int32_t column, const uint32_t (&codes)[4])
{
    uint8_t *const to = j.a + row * j.s.to.lda;
    if (!j.is_natural) {
        const uint4 four = block_of_codes(codes);
        if (is_active)
            *(uint4 *)(to + 64 * (q >> 2) + 16 * (q & 3)) = four;
        return;
    }
    if (!is_active)
        return;
    uint8_t *const at = to + column;
    if (n >= 16 && ((uintptr_t)at & 15) == 0) {
        *(uint4 *)at =
            make_uint4(codes[0] ^ j.flip, codes[1] ^ j.flip, codes[2] ^ j.flip, codes[3] ^ j.flip);
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < n)
            at[i] = (uint8_t)((codes[i / 4] ^ j.flip) >> (8 * (i & 3)));
}

/* ---- flat kernels ---------------------------------------------------------------------------- */

struct flat {
    int64_t row;
    int32_t q;
    bool is_active;
};

/* j.team 32: a row is cut in chunks of a warp each; less: so many lanes have a row. */
ROWS_DEVICE struct flat flat_of(const struct rows_job &j)
{
    const int64_t warp = (int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5);
    const int32_t lane = threadIdx.x & 31;
    struct flat f;
    if (j.team == 32) {
        f.row =
            warp <= INT32_MAX ? (int64_t)rows_divide((uint32_t)warp, j.chunks) : warp / j.chunks.by;
        f.q = (int32_t)(warp - f.row * j.chunks.by) * 32 + lane;
    } else {
        f.row = warp * (32 / j.team) + lane / j.team;
        f.q = lane & (j.team - 1);
    }
    f.is_active = f.row < j.n_rows && f.q < 2 * j.s.units;
    return f;
}

template <int DTYPE, int SYMMETRIC>
static __global__ void __launch_bounds__(THREADS)
    block_kernel(const __grid_constant__ struct rows_job j)
{
    rows_begin();
    const struct flat f = flat_of(j);
    struct rows_row row = {0, 0, 0, false};
    uint32_t raw[WORDS<DTYPE>] = {0};
    int32_t column = 0, n = 0;
    if (f.is_active) {
        row = rows_row_of(j, f.row);
        n = read_piece<DTYPE>(j, row, f.q, raw, &column);
    }
    struct rows_extremes seen = rows_no_extremes(SYMMETRIC);
    see_piece<DTYPE, SYMMETRIC>(j, raw, n, column, &seen);
    const struct rows_range range = rows_warp_range(rows_range_of(seen), j.width);
    const struct rows_scaling s = rows_scaling_of(range, SYMMETRIC);
    uint32_t codes[4];
    encode_piece<DTYPE, SYMMETRIC>(j, raw, n, column, s, codes);
    const int32_t sum = rows_warp_sum(sum_piece(codes), j.width);
    store_codes(j, f.row, f.q, f.is_active, n, column, codes);
    const int32_t segment = f.q / j.width;
    if (f.is_active && (f.q & (j.width - 1)) == 0 && segment < j.s.n_segments)
        rows_store_facts(j, s, f.row, segment, sum, rows_count(j, row, f.q / 2, j.width / 2));
}

/* Codes that are given: their order and their sums. */
static __global__ void __launch_bounds__(THREADS)
    given_kernel(const __grid_constant__ struct rows_job j)
{
    rows_begin();
    const struct flat f = flat_of(j);
    uint32_t codes[4] = {0, 0, 0, 0};
    int32_t column = 0, n = 0;
    if (f.is_active)
        n = read_piece<BYTES>(j, rows_row_of(j, f.row), f.q, codes, &column);
    cut_codes(codes, n);
    const int32_t sum = rows_warp_sum(sum_piece(codes), j.width);
    store_codes(j, f.row, f.q, f.is_active, n, column, codes);
    const int32_t segment = f.q / j.width;
    if (f.is_active && (f.q & (j.width - 1)) == 0 && segment < j.s.n_segments)
        j.sum[f.row * j.ld_sum + segment] = sum;
}

ROWS_DEVICE void store_halves(uint8_t *to, const uint32_t (&words)[8])
{
    *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
    *(uint4 *)(to + 16) = make_uint4(words[4], words[5], words[6], words[7]);
}

/* Each plane takes the upper 8 bits of the significand that the ones before left. */
ROWS_DEVICE void store_planes(const struct rows_job &j, uint8_t *to, float (&v)[16])
{
    for (int32_t plane = 0; plane < j.s.to.planes; plane++, to += j.s.to.plane_stride) {
        uint32_t words[8];
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            const uint32_t low = __float_as_uint(v[i]), high = __float_as_uint(v[i + 1]);
            words[i / 2] = __byte_perm(low, high, 0x7632);
            v[i] = __fsub_rn(v[i], __uint_as_float(low & 0xffff0000u));
            v[i + 1] = __fsub_rn(v[i + 1], __uint_as_float(high & 0xffff0000u));
        }
        store_halves(to, words);
    }
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS)
    convert_kernel(const __grid_constant__ struct rows_job j)
{
    rows_begin();
    const struct flat f = flat_of(j);
    uint32_t raw[WORDS<DTYPE>] = {0};
    int32_t column = 0, n = 0;
    if (f.is_active)
        n = read_piece<DTYPE>(j, rows_row_of(j, f.row), f.q, raw, &column);
    float v[16];
    widen_piece<DTYPE>(j, raw, n, column, v);
    if (j.total != NULL) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++)
            total = __fadd_rn(total, v[i]);
        total = rows_warp_total(total, j.width);
        const int32_t group = f.q / j.width;
        if (f.is_active && (f.q & (j.width - 1)) == 0 && group < j.s.n_groups)
            j.total[f.row * j.ld_sum + group] = total;
    }
    if (!f.is_active)
        return;
    uint8_t *const to = j.a + f.row * j.s.to.lda + 32 * (int64_t)f.q;
    if (j.s.reads == QNI_CUDA_READS_BF16) {
        store_planes(j, to, v);
        return;
    }
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        const __half2 two = __floats2half2_rn(v[i], v[i + 1]);
        words[i / 2] = *(const uint32_t *)&two;
    }
    store_halves(to, words);
}

/* ---- the row kernel -------------------------------------------------------------------------- */

/* Over a team: up to 32 lanes, or the whole CTA through `parts`, which is used once. */
ROWS_DEVICE struct rows_range team_range(const struct rows_job &j, struct rows_range r,
                                         struct rows_range *parts)
{
    r = rows_warp_range(r, min(j.team, 32));
    if (j.team <= 32)
        return r;
    if ((threadIdx.x & 31) == 0)
        parts[threadIdx.x >> 5] = r;
    __syncthreads();
    const int32_t lane = threadIdx.x & 31, warps = j.team >> 5;
    r = parts[lane < warps ? lane : 0];
    return rows_warp_range(r, 32);
}
ROWS_DEVICE int32_t team_sum(const struct rows_job &j, int32_t v, int32_t *parts)
{
    v = rows_warp_sum(v, min(j.team, 32));
    if (j.team <= 32)
        return v;
    if ((threadIdx.x & 31) == 0)
        parts[threadIdx.x >> 5] = v;
    __syncthreads();
    const int32_t lane = threadIdx.x & 31, warps = j.team >> 5;
    return rows_warp_sum(lane < warps ? parts[lane] : 0, 32);
}

/* The sum of a piece to that of its segment, for rows that have several. Integers: the order of the
 * additions does not show. */
ROWS_DEVICE void add_to_segment(const struct rows_job &j, int64_t row, int32_t q, bool is_active,
                                int32_t sum)
{
    if (j.width != 0) {
        sum = rows_warp_sum(sum, j.width);
        const int32_t segment = q / j.width;
        if (is_active && (q & (j.width - 1)) == 0 && segment < j.s.n_segments)
            j.sum[row * j.ld_sum + segment] = sum;
    } else if (is_active) {
        const int32_t segment = rows_segment_of(j, q >> 1);
        if (sum != 0 && segment < j.s.n_segments)
            atomicAdd(&j.sum[row * j.ld_sum + segment], sum);
    }
}

/* A piece of a row: its number, how many of its positions are real, and the column of the first. */
struct piece {
    int32_t q, n, column;
    bool is_active;
};

template <int DTYPE, int SYMMETRIC>
ROWS_DEVICE int32_t finish_piece(const struct rows_job &j, int64_t row, const struct piece &p,
                                 const uint32_t (&raw)[WORDS<DTYPE>], const struct rows_scaling &s)
{
    uint32_t codes[4];
    if constexpr (DTYPE == BYTES) {
#pragma unroll
        for (int w = 0; w < 4; w++)
            codes[w] = raw[w];
        cut_codes(codes, p.n);
    } else {
        encode_piece<DTYPE, SYMMETRIC>(j, raw, p.n, p.column, s, codes);
    }
    store_codes(j, row, p.q, p.is_active, p.n, p.column, codes);
    const int32_t sum = sum_piece(codes);
    if (j.spans == 1 && j.s.n_segments > 1)
        add_to_segment(j, row, p.q, p.is_active, sum);
    return sum;
}

/* PIECES of a thread stay in its registers; 0: there may be any number, read again for the codes.
 */
template <int DTYPE, int PIECES, int SYMMETRIC>
static __global__ void __launch_bounds__(512) row_kernel(const __grid_constant__ struct rows_job j)
{
    __shared__ struct rows_range ranges[32];
    __shared__ int32_t sums[32];
    rows_begin();
    constexpr int KEPT = PIECES == 0 ? 1 : PIECES;
    const int32_t thread = (int32_t)threadIdx.x, teams = (int32_t)blockDim.x / j.team;
    const int32_t lane = teams == 1 ? thread : thread & (j.team - 1); /* then a power of two */
    const int64_t at = (int64_t)blockIdx.x * teams + (teams == 1 ? 0 : thread / j.team);
    const int64_t row = j.spans == 1 ? at : at / j.spans;
    const int32_t span = (int32_t)(at - row * j.spans);
    const bool is_active = row < j.n_rows;
    struct rows_row from = {0, 0, 0, false};
    int32_t first = 0, units = 0;
    if (is_active) {
        from = rows_row_of(j, row);
        rows_span(j, span, &first, &units);
    }
    const int32_t begin = 2 * first + lane, end = 2 * (first + units);
    if (is_active && j.spans == 1 && j.s.n_segments > 1 && j.width == 0)
        for (int32_t i = lane; i < j.s.n_segments; i += j.team)
            j.sum[row * j.ld_sum + i] = 0;
    if (j.team <= 32)
        __syncwarp(); /* wider teams meet when they know the range */
    else if (DTYPE == BYTES)
        __syncthreads();
    uint32_t raw[KEPT][WORDS<DTYPE>];
    struct piece p[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        p[i].q = begin + i * j.team;
        p[i].is_active = p[i].q < end;
        p[i].n = p[i].column = 0;
#pragma unroll
        for (int w = 0; w < WORDS<DTYPE>; w++)
            raw[i][w] = 0;
        if (p[i].is_active && PIECES != 0)
            p[i].n = read_piece<DTYPE>(j, from, p[i].q, raw[i], &p[i].column);
    }
    struct rows_scaling s = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (DTYPE != BYTES) {
        struct rows_extremes seen = rows_no_extremes(SYMMETRIC);
        if (PIECES != 0) {
#pragma unroll
            for (int i = 0; i < KEPT; i++)
                see_piece<DTYPE, SYMMETRIC>(j, raw[i], p[i].n, p[i].column, &seen);
        } else {
            for (int32_t q = begin; q < end; q += j.team) {
                p[0].n = read_piece<DTYPE>(j, from, q, raw[0], &p[0].column);
                see_piece<DTYPE, SYMMETRIC>(j, raw[0], p[0].n, p[0].column, &seen);
            }
        }
        s = rows_scaling_of(team_range(j, rows_range_of(seen), ranges), SYMMETRIC);
    }
    int32_t sum = 0;
    if (PIECES != 0) {
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            sum += finish_piece<DTYPE, SYMMETRIC>(j, row, p[i], raw[i], s);
    } else {
        for (int32_t q = begin; q - lane < end; q += j.team) { /* whole warps */
            p[0].q = q;
            p[0].is_active = q < end;
            p[0].n = p[0].column = 0;
            if (q < end)
                p[0].n = read_piece<DTYPE>(j, from, q, raw[0], &p[0].column);
            sum += finish_piece<DTYPE, SYMMETRIC>(j, row, p[0], raw[0], s);
        }
    }
    const bool is_whole = j.spans > 1 || j.s.n_segments == 1 || j.s.reads == QNI_CUDA_READS_Q8B;
    if (is_whole)
        sum = team_sum(j, sum, sums);
    if (!is_active || lane != 0)
        return;
    if (j.s.reads == QNI_CUDA_READS_Q8B)
        rows_store_facts(j, s, row, span, sum, rows_count(j, from, first, units));
    else if (is_whole)
        j.sum[row * j.ld_sum] = sum;
    if (j.row_scale != NULL && j.s.reads == QNI_CUDA_READS_Q8)
        j.row_scale[row] = s.scale;
}

/* ---- which kernel ---------------------------------------------------------------------------- */

static bool is_multiple(int64_t elements, int64_t bytes)
{
    return elements * bytes % 16 == 0;
}

/* Are the 16 positions of a piece 16 aligned neighbours of x (as far as they are real)? */
static bool is_vector(const struct qni_cuda_source *s)
{
    const int64_t bytes = s->dtype == QN_F32 ? 4 : rows_is_given(s) ? 1 : 2;
    if (s->perm != NULL || (uintptr_t)s->x % 16 != 0 || (uintptr_t)s->prescale % 16 != 0)
        return false;
    if (s->by_channel && (s->group_channels % 16 != 0 || s->ci % 16 != 0))
        return false;
    if (!s->is_image)
        return is_multiple(s->ldx, bytes) &&
               (s->n_groups <= 1 || s->by_channel || is_multiple(s->group_len, bytes));
    for (int32_t i = 0; i < 4; i++)
        if (i != 1 && !is_multiple(s->xs[i], bytes))
            return false;
    return s->xs[1] == 1 && s->ci % 16 == 0 &&
           (s->n_groups <= 1 || s->by_channel || s->group_len % 16 == 0);
}

/* Lanes of a stretch of so many units, if such stretches follow each other evenly along the row and
 * fit into a warp; else 0. */
static int32_t width_of(const struct qni_cuda_source *s, int64_t units, int64_t stretches)
{
    if (stretches == 1) {
        int32_t width = 4;
        while (width < 2 * s->units)
            width *= 2;
        return width <= MAX_WIDTH ? width : 0;
    }
    const bool is_even = s->n_groups <= 1 || s->group_units % units == 0;
    return is_even && units <= MAX_WIDTH / 2 && (units & (units - 1)) == 0 ? (int32_t)(2 * units)
                                                                           : 0;
}

static int32_t run_flat(const void *kernel, struct rows_job *j,
                        const struct qni_cuda_launch *launch)
{
    const int64_t pieces = 2 * (int64_t)j->s.units;
    j->team = 4;
    while (j->team < pieces && j->team < 32)
        j->team *= 2;
    const int64_t chunks = (pieces + 31) / 32;
    j->chunks = rows_divisor_of(chunks);
    const int64_t warps = j->team == 32 ? j->n_rows * chunks : (j->n_rows * j->team + 31) / 32;
    return rows_launch(kernel, (warps + THREADS / 32 - 1) / (THREADS / 32), dim3(THREADS), j,
                       launch);
}

#define ROW_KERNELS(dtype, symmetric)                                                              \
    {                                                                                              \
        (const void *)row_kernel<dtype, 1, symmetric>,                                             \
            (const void *)row_kernel<dtype, 4, symmetric>,                                         \
            (const void *)row_kernel<dtype, 0, symmetric>                                          \
    }

/* Four pieces a thread keep enough bytes on their way; a few rows are done sooner by more threads.
 * A team has 512 threads at most, so 32768 positions stay in registers. */
static int32_t run_rows(struct rows_job *j, const struct qni_cuda_launch *launch)
{
    static const void *const kernels[2][4][3] = {{ROW_KERNELS(BYTES, 1), ROW_KERNELS(QN_F32, 0),
                                                  ROW_KERNELS(QN_F16, 0), ROW_KERNELS(QN_BF16, 0)},
                                                 {ROW_KERNELS(BYTES, 1), ROW_KERNELS(QN_F32, 1),
                                                  ROW_KERNELS(QN_F16, 1), ROW_KERNELS(QN_BF16, 1)}};
    const int64_t pieces = 2 * (int64_t)(j->spans == 1 ? j->s.units : j->span_units);
    const bool is_few = j->n_rows * j->spans <= 2 * (int64_t)launch->multiprocessors;
    const int32_t which = is_few && pieces <= 512 ? 0 : pieces <= 2048 ? 1 : 2;
    const int64_t threads = which == 0 ? pieces : which == 1 ? (pieces + 3) / 4 : 512;
    j->team = 4;
    while ((j->team < threads || j->team < j->width) && j->team < 32)
        j->team *= 2; /* segments of a width lie in one go of the team */
    if (threads > 32)
        j->team = (int32_t)(threads + 31) / 32 * 32;
    const int32_t teams = j->team > 32 ? 1 : 128 / j->team;
    const int64_t grid = (j->n_rows * j->spans + teams - 1) / teams;
    const bool symmetric = j->s.reads == QNI_CUDA_READS_Q8 || j->s.symmetric;
    const void *kernel = kernels[symmetric][rows_is_given(&j->s) ? 0 : j->s.dtype][which];
    return rows_launch(kernel, grid, dim3((unsigned)(teams * j->team)), j, launch);
}

static const void *block_kernel_of(int32_t dtype, bool symmetric)
{
    static const void *const kernels[3][2] = {
        {(const void *)block_kernel<QN_F32, 0>, (const void *)block_kernel<QN_F32, 1>},
        {(const void *)block_kernel<QN_F16, 0>, (const void *)block_kernel<QN_F16, 1>},
        {(const void *)block_kernel<QN_BF16, 0>, (const void *)block_kernel<QN_BF16, 1>}};
    return kernels[dtype - QN_F32][symmetric];
}

int32_t qni_cuda_rows_run(struct rows_job *j, const struct qni_cuda_launch *launch)
{
    static const void *const convert[3] = {(const void *)convert_kernel<QN_F32>,
                                           (const void *)convert_kernel<QN_F16>,
                                           (const void *)convert_kernel<QN_BF16>};
    const struct qni_cuda_source *s = &j->s;
    const bool is_float = s->reads == QNI_CUDA_READS_F16 || s->reads == QNI_CUDA_READS_BF16;
    if (j->n_rows == 0)
        return 0;
    if (!is_vector(s) || s->units == 0)
        return qni_cuda_rows_general(j, launch);
    j->spans = j->spans_per_group = 1;
    j->width = is_float ? width_of(s, s->group_units, s->n_groups)
                        : width_of(s, s->segment_units, s->n_segments);
    if (is_float)
        return j->total == NULL || j->width != 0 ? run_flat(convert[s->dtype - QN_F32], j, launch)
                                                 : qni_cuda_rows_general(j, launch);
    if (rows_is_given(s))
        return j->width != 0 ? run_flat((const void *)given_kernel, j, launch)
                             : run_rows(j, launch);
    if (s->reads == QNI_CUDA_READS_Q8 || s->n_segments == 1)
        return s->reads == QNI_CUDA_READS_Q8B && j->width != 0
                   ? run_flat(block_kernel_of(s->dtype, s->symmetric), j, launch)
                   : run_rows(j, launch);
    if (j->width != 0)
        return run_flat(block_kernel_of(s->dtype, s->symmetric), j, launch);
    const bool is_even = s->n_groups <= 1 || s->group_units % s->segment_units == 0;
    if (!is_even || s->segment_units % 2 != 0)
        return qni_cuda_rows_general(j, launch);
    j->spans = s->n_segments;
    j->span_units = s->segment_units;
    j->spans_per_group = j->segments_per_group;
    return run_rows(j, launch);
}

struct rows_job qni_cuda_rows_job(const struct qni_cuda_source *source)
{
    struct rows_job j = {};
    j.s = *source;
    struct qni_cuda_source *const s = &j.s;
    s->parts = s->parts > 1 ? s->parts : 1;
    s->segment_units = s->segment_units > 0 ? s->segment_units : 1;
    s->group_units = s->group_units > 0 ? s->group_units : 1;
    j.n_rows = s->n_rows * s->parts;
    j.segments_per_group = (s->group_units + s->segment_units - 1) / s->segment_units;
    j.group = rows_divisor_of(s->group_units);
    j.segment = rows_divisor_of(s->segment_units);
    j.ci = rows_divisor_of(s->ci);
    j.kw = rows_divisor_of(s->kw);
    j.oh = rows_divisor_of(s->oh);
    j.ow = rows_divisor_of(s->ow);
    j.is_plain = !s->is_image && !s->by_channel &&
                 (s->n_groups <= 1 || s->group_len == (int64_t)s->group_units * QNI_CUDA_UNIT);
    if (s->by_channel) {
        const int64_t taps = s->group_len / s->group_channels;
        j.channels = rows_divisor_of(s->group_channels);
        j.last_channels = rows_divisor_of(s->last_len / taps);
    }
    return j;
}

int32_t qni_cuda_prepare_sm75(const struct qni_cuda_source *source,
                              const struct qni_cuda_launch *launch)
{
    struct rows_job j = qni_cuda_rows_job(source);
    const struct qni_cuda_rows *const to = &source->to;
    j.a = (uint8_t *)const_cast<void *>(to->a);
    j.row_scale = const_cast<float *>(to->row_scale);
    j.sum = const_cast<int32_t *>(to->sum);
    j.scale = const_cast<float *>(to->scale);
    j.offset = const_cast<float *>(to->offset);
    j.total = const_cast<float *>(to->total);
    j.ld_sum = j.ld_scale = j.ld_offset = to->ld_segment;
    return qni_cuda_rows_run(&j, launch);
}
