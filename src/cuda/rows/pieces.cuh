/* SPDX-License-Identifier: Apache-2.0 */
/* A piece: 16 packed positions, one step of a block, that a lane has in its registers as they lie
 * in memory; and what becomes of it: its extremes, its codes, 16 halves. The four lanes of a block
 * trade their words, so that each writes 16 bytes of it. PLAIN: there is no prescale. */
#ifndef QNI_CUDA_ROWS_PIECES_CUH
#define QNI_CUDA_ROWS_PIECES_CUH

#include "prepare.cuh"

enum { BYTES = 0 };

/* Words of a piece as it lies in memory: DTYPE is QN_F32, QN_F16, QN_BF16, or BYTES. */
template <int DTYPE> static constexpr int WORDS = DTYPE == QN_F32 ? 16 : DTYPE == BYTES ? 4 : 8;

/* n (1 to 16) elements; behind them zeros. ONCE: nobody reads them again soon, so that the caches
 * had better keep the codes. */
template <int DTYPE, int ONCE>
ROWS_DEVICE void load_piece(const void *x, int64_t at, int32_t n, uint32_t (&raw)[WORDS<DTYPE>])
{
    constexpr int per_word = 16 / WORDS<DTYPE>;
    const uint8_t *const from = (const uint8_t *)x + at * (4 / per_word);
    if (n >= 16) {
#pragma unroll
        for (int i = 0; i < WORDS<DTYPE>; i += 4) {
            const uint4 *const here = (const uint4 *)(from + 4 * i);
            const uint4 four = ONCE ? __ldcs(here) : __ldg(here);
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

template <int DTYPE, int PLAIN>
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
    if (PLAIN || j.s.prescale == NULL)
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

template <int DTYPE> ROWS_DEVICE float half_value(uint32_t bits)
{
    return DTYPE == QN_F16 ? __half2float(__ushort_as_half((unsigned short)bits))
                           : __uint_as_float(bits << 16);
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
#endif

/* The extremes of a piece: of halves without widening them, two at a time. */
template <int DTYPE, int SYMMETRIC, int PLAIN>
ROWS_DEVICE void see_piece(const struct rows_job &j, const uint32_t (&raw)[WORDS<DTYPE>], int32_t n,
                           int32_t column, struct rows_extremes *seen)
{
#if __CUDA_ARCH__ >= 800
    if constexpr (DTYPE != QN_F32) {
        if ((PLAIN || j.s.prescale == NULL) && (n >= 16 || SYMMETRIC)) {
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
                    seen->lo = rows_min(seen->lo, half_value<DTYPE>(i ? lo >> 16 : lo & 0xffffu));
                seen->hi = rows_max(seen->hi, half_value<DTYPE>(i ? hi >> 16 : hi & 0xffffu));
            }
            return;
        }
    }
#endif
    float v[16];
    widen_piece<DTYPE, PLAIN>(j, raw, n, column, v);
    see_values(v, n, SYMMETRIC, seen);
}

/* Positions n and behind become 0. (With the mask as (1 << 8 left) - 1, ptxas 13.0 for sm_90a made
 * code that cut nothing.) */
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
template <int DTYPE, int SYMMETRIC, int PLAIN>
ROWS_DEVICE void encode_piece(const struct rows_job &j, const uint32_t (&raw)[WORDS<DTYPE>],
                              int32_t n, int32_t column, const struct rows_scaling &s,
                              uint32_t (&codes)[4])
{
    float v[16];
    widen_piece<DTYPE, PLAIN>(j, raw, n, column, v);
    if (!SYMMETRIC && DTYPE != QN_F32 && (PLAIN || j.s.prescale == NULL))
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
 * 8, 2t + 1, 2t + 9; lane s has those of step s, which is all that it wants by step, else word t =
 * s of all steps: a transpose in two exchanges. Every lane of the warp comes here. */
ROWS_DEVICE uint4 block_of_codes(const uint32_t (&c)[4], int32_t by_step)
{
    const uint32_t w0 = __byte_perm(c[0], c[2], 0x5140), w1 = __byte_perm(c[0], c[2], 0x7362);
    const uint32_t w2 = __byte_perm(c[1], c[3], 0x5140), w3 = __byte_perm(c[1], c[3], 0x7362);
    if (by_step)
        return make_uint4(w0, w1, w2, w3);
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
        const uint4 four = block_of_codes(codes, j.s.by_step);
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

/* ---- floats ---------------------------------------------------------------------------------- */

ROWS_DEVICE void store_halves(uint8_t *to, const uint32_t (&words)[8])
{
    *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
    *(uint4 *)(to + 16) = make_uint4(words[4], words[5], words[6], words[7]);
}

/* Each plane is the bf16 next to what the ones before left. */
ROWS_DEVICE void store_planes(const struct rows_job &j, uint8_t *to, float (&v)[16])
{
    for (int32_t plane = 0; plane < j.s.to.planes; plane++, to += j.s.to.plane_stride) {
        uint32_t words[8];
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            const uint32_t low = rows_upper(v[i]), high = rows_upper(v[i + 1]);
            words[i / 2] = __byte_perm(low, high, 0x7632);
            v[i] = __fsub_rn(v[i], __uint_as_float(low));
            v[i + 1] = __fsub_rn(v[i + 1], __uint_as_float(high));
        }
        store_halves(to, words);
    }
}

/* 16 values where the halves of a row begin at `to`. */
ROWS_DEVICE void store_floats(const struct rows_job &j, uint8_t *to, float (&v)[16])
{
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

/* ---- teams ----------------------------------------------------------------------------------- */

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

#endif
