/* SPDX-License-Identifier: Apache-2.0 */
/* From sums to y: every step of docs/numerics.md, "Epilogue", in its order, one rounding a step;
 * the bits are those of the CPU. Files that include this are compiled with --fmad=false, without
 * which neither the steps here nor the polynomials of base/exact.h would be rounded singly.
 *
 *     v -> * row_scale -> * col_scale -> + bias -> (+ residual) -> act (* factor) -> clamp
 *       -> (+ residual) -> f32, f16, bf16, or saturate(rint(v * y_inv) + y_zero)
 *
 * One element at a time: epilogue_row_of(), then epilogue_store(). A tile in shared memory:
 * epilogue_tile(). Raw int32 sums: epilogue_is_raw(). */
#ifndef QNI_CUDA_EPILOGUE_CUH
#define QNI_CUDA_EPILOGUE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <quern/ops.h>

#include "../base/exact.h"
#include "kernel.h"

#define EPILOGUE static __device__ __forceinline__

/* ---- places ---------------------------------------------------------------------------------- */

/* A row of the product: where it begins in y and in the residual, in elements, and its factor. */
struct epilogue_row {
    int64_t y, residual;
    float scale;
    int64_t factor;
};

EPILOGUE struct epilogue_row epilogue_row_of(const struct qni_cuda_sink &s, int64_t i)
{
    struct epilogue_row r = {i * s.stride[2], i * s.residual_stride[2], 1.0f,
                             s.has_more ? i * s.factor_stride : 0};
    if (s.row_scale != NULL)
        r.scale = s.row_scale[i];
    if (s.x_scale != NULL) {
        const int64_t from = s.x_index != NULL ? s.x_index[i] : i;
        r.scale *= from >= 0 && from < s.x_rows ? s.x_scale[from] : 0.0f;
    }
    if (!s.is_image)
        return r;
    int64_t line, column, image;
    if (i <= INT32_MAX) { /* a 64-bit division is a hundred instructions */
        line = (uint32_t)i / (uint32_t)s.size[1];
        column = i - line * s.size[1];
        image = (uint32_t)line / (uint32_t)s.size[0];
    } else {
        line = i / s.size[1];
        column = i - line * s.size[1];
        image = line / s.size[0];
    }
    line -= image * s.size[0];
    r.y = image * s.stride[0] + line * s.stride[1] + column * s.stride[2];
    r.residual =
        image * s.residual_stride[0] + line * s.residual_stride[1] + column * s.residual_stride[2];
    return r;
}

/* An element of f32, f16 or bf16. */
EPILOGUE float epilogue_load(const void *from, int32_t dtype, int64_t at)
{
    if (dtype == QN_F32)
        return ((const float *)from)[at];
    const uint16_t bits = ((const uint16_t *)from)[at];
    return dtype == QN_F16 ? __half2float(__ushort_as_half(bits)) : qni_f32_from_bf16(bits);
}

/* ---- steps ----------------------------------------------------------------------------------- */

EPILOGUE float epilogue_activate(float v, int32_t act)
{
    switch (act) {
    case QN_ACT_RELU:
        return v <= 0.0f ? 0.0f : v;
    case QN_ACT_RELU6:
        v = v <= 0.0f ? 0.0f : v;
        return v > 6.0f ? 6.0f : v;
    case QN_ACT_GELU:
        return 0.5f * v * (1.0f + qni_erf_inline(v * 0x1.6a09e6p-1f));
    case QN_ACT_GELU_TANH: {
        const float cubic = qni_fmaf(0x1.6e4e26p-5f, v * v, 1.0f);
        return 0.5f * v * (1.0f + qni_tanh_inline(v * 0x1.988454p-1f * cubic));
    }
    case QN_ACT_SILU:
        return v / (1.0f + qni_exp_inline(-v));
    default:
        return v;
    }
}

EPILOGUE float epilogue_hard(float v, float slope, float shift)
{
    const float y = v * slope + shift;
    return y > 1.0f ? 1.0f : y < 0.0f ? 0.0f : y;
}
/* The acts behind silu, too. */
EPILOGUE float epilogue_activate_any(const struct qni_cuda_sink &s, float v, int32_t act)
{
    switch (act) {
    case QN_ACT_SIGMOID:
        return 1.0f / (1.0f + qni_exp_inline(-v));
    case QN_ACT_TANH:
        return qni_tanh_inline(v);
    case QN_ACT_HARDSWISH:
        return v * epilogue_hard(v, 1.0f / 6.0f, 0.5f);
    case QN_ACT_HARDSIGMOID:
        return epilogue_hard(v, s.hard_slope, s.hard_shift);
    case QN_ACT_LEAKY_RELU:
        return v < 0.0f ? v * s.leaky_slope : v;
    default:
        return epilogue_activate(v, act);
    }
}

EPILOGUE float epilogue_clamp(const struct qni_cuda_sink &s, float v)
{
    if (!s.has_clamp)
        return v;
    const float above = v > s.clamp_hi ? s.clamp_hi : v;
    return v < s.clamp_lo ? s.clamp_lo : above;
}

EPILOGUE float epilogue_residual(const struct qni_cuda_sink &s, int64_t at)
{
    if (s.residual_dtype != QN_I8 && s.residual_dtype != QN_U8)
        return epilogue_load(s.residual, s.residual_dtype, at);
    const int32_t code = s.residual_dtype == QN_I8 ? ((const int8_t *)s.residual)[at]
                                                   : ((const uint8_t *)s.residual)[at];
    return s.residual_scale * (float)(code - s.residual_zero);
}

/* What comes after the bias, where s.has_more: apart, so that other products pay nothing. */
static __device__ __noinline__ float epilogue_more(const struct qni_cuda_sink *s, int64_t residual,
                                                   int64_t factor, float v)
{
    const float more = s->residual != NULL ? epilogue_residual(*s, residual) : 0.0f;
    if (s->residual != NULL && !s->residual_after)
        v += more;
    v = epilogue_activate_any(*s, v, s->act);
    if (s->factor != NULL)
        v *= epilogue_load(s->factor, s->factor_dtype, factor);
    v = epilogue_clamp(*s, v);
    return s->residual != NULL && s->residual_after ? v + more : v;
}

/* Output j (of all parts) of expert e, before it is rounded to the type of y. */
EPILOGUE float epilogue_steps(const struct qni_cuda_sink &s, const struct epilogue_row &row,
                              int32_t j, int32_t e, float v)
{
    if (s.row_scale != NULL || s.x_scale != NULL)
        v *= row.scale;
    if (s.col_scale != NULL)
        v *= s.col_scale[e * s.col_ld + j];
    if (s.bias != NULL && s.bias_dtype != QN_I32)
        v += epilogue_load(s.bias, s.bias_dtype, e * s.bias_ld + j);
    if (s.has_more)
        return epilogue_more(&s, row.residual + (int64_t)j * s.residual_stride[3], row.factor + j,
                             v);
    const float residual = s.residual == NULL
                               ? 0.0f
                               : epilogue_load(s.residual, s.residual_dtype,
                                               row.residual + (int64_t)j * s.residual_stride[3]);
    if (s.residual != NULL && !s.residual_after)
        v += residual;
    v = epilogue_activate(v, s.act);
    v = epilogue_clamp(s, v);
    if (s.residual != NULL && s.residual_after)
        v += residual;
    return v;
}

/* saturate(rint(v * inv) + zero); a NaN counts as 0. */
EPILOGUE int32_t epilogue_code(float v, float inv, int32_t zero, int32_t lo, int32_t hi)
{
    v *= inv;
    v = v == v ? v : 0.0f;
    v = fminf(fmaxf(v, -0x1p21f), 0x1p21f);
    return min(max(__float2int_rn(v) + zero, lo), hi);
}

/* The e4m3 next to v, at most 448; 0x7f for NaN. */
EPILOGUE uint32_t epilogue_e4m3(float v)
{
#if __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(v));
    return v == v ? two & 0xffu : 0x7fu;
#else
    return v == v ? qni_e4m3_from_f32(v) : 0x7fu;
#endif
}

/* Rounded to 16 bits as base/half.h does; every NaN is the CPU's, not the GPU's 0x7fff. */
EPILOGUE uint16_t epilogue_f16(float v)
{
    return v == v ? __half_as_ushort(__float2half_rn(v)) : (uint16_t)QNI_NAN_F16;
}
EPILOGUE uint16_t epilogue_bf16(float v)
{
    return v == v ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : (uint16_t)QNI_NAN_BF16;
}
/* Two of them: a below b. */
EPILOGUE uint32_t epilogue_pair(float a, float b, bool is_bf16)
{
    const uint32_t nan = is_bf16 ? QNI_NAN_BF16 : QNI_NAN_F16;
    uint32_t word;
    if (is_bf16) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
        word = *(const uint32_t *)&two;
    } else {
        const __half2 two = __floats2half2_rn(a, b);
        word = *(const uint32_t *)&two;
    }
    if (a != a)
        word = (word & 0xffff0000u) | nan;
    return b == b ? word : (word & 0xffffu) | nan << 16;
}

/* y[at] = v, rounded to its type. */
EPILOGUE void epilogue_round(const struct qni_cuda_sink &s, int64_t at, float v)
{
    if (s.y_dtype == QN_F32)
        ((float *)s.y)[at] = qni_one_nan(v);
    else if (s.y_dtype == QN_F16)
        ((uint16_t *)s.y)[at] = epilogue_f16(v);
    else if (s.y_dtype == QN_BF16)
        ((uint16_t *)s.y)[at] = epilogue_bf16(v);
    else if (s.y_dtype == QN_E4M3)
        ((uint8_t *)s.y)[at] = (uint8_t)epilogue_e4m3(v * s.y_inv);
    else if (s.y_dtype == QN_I8)
        ((int8_t *)s.y)[at] = (int8_t)epilogue_code(v, s.y_inv, s.y_zero, -128, 127);
    else
        ((uint8_t *)s.y)[at] = (uint8_t)epilogue_code(v, s.y_inv, s.y_zero, 0, 255);
}

/* The whole way of one element. */
EPILOGUE void epilogue_store(const struct qni_cuda_sink &s, const struct epilogue_row &row,
                             int32_t j, int32_t e, float v)
{
    if (!s.is_plain)
        v = epilogue_steps(s, row, j, e, v);
    epilogue_round(s, row.y + (int64_t)j * s.stride[3], v);
}

/* ---- raw sums -------------------------------------------------------------------------------- */

/* Do the int32 sums themselves get a bias, or leave as they are? Then the kernel keeps them for the
 * one group that there is, adds epilogue_raw_bias(), and stores the sum (y is i32) or goes on with
 * fma(scale_w, fl(sum), +0). */
EPILOGUE bool epilogue_is_raw(const struct qni_cuda_sink &s)
{
    return s.y_dtype == QN_I32 || (s.bias != NULL && s.bias_dtype == QN_I32);
}
EPILOGUE int32_t epilogue_raw_bias(const struct qni_cuda_sink &s, int32_t j, int32_t e)
{
    return s.bias != NULL && s.bias_dtype == QN_I32 ? ((const int32_t *)s.bias)[e * s.bias_ld + j]
                                                    : 0;
}

/* Of raw sums with integer zero points: sum of (x - x_zero) over row `row` of all parts as it was
 * prepared. blob: that of the weights. */
EPILOGUE int32_t epilogue_raw_row(const struct qni_cuda_rows &x, const struct qni_cuda_weights &w,
                                  const uint8_t *blob, int64_t row)
{
    int32_t sum = 0;
    for (int32_t s = 0; s < w.n_segments; s++) {
        sum += x.sum[row * x.ld_segment + s];
        if (x.x_zero != 0)
            sum -= x.x_zero * ((const int32_t *)(blob + w.counts))[s];
    }
    return sum;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* v[i * ld + j]: row i (0 ... rows), output `output` + j (0 ... outputs), of expert e, in shared
 * memory, ld a multiple of 4; i32 if y is. Row i of the tile is row `row` + (index != NULL ?
 * index[i] : i) of the sink. */
struct epilogue_tile {
    const float *v;
    int32_t ld, rows, outputs, output, expert;
    int64_t row;
    const int32_t *index;
};

EPILOGUE int64_t epilogue_number(const struct epilogue_tile &t, int32_t i)
{
    return t.row + (t.index != NULL ? t.index[i] : i);
}

/* Four outputs at once where nothing but the type is in the way. False: they are not aligned. */
EPILOGUE bool epilogue_store4(const struct qni_cuda_sink &s, int64_t at, const float *from)
{
    const float4 v = *(const float4 *)from;
    if (s.y_dtype == QN_F32) {
        float *const to = (float *)s.y + at;
        if (((uintptr_t)to & 15) != 0)
            return false;
        *(float4 *)to =
            make_float4(qni_one_nan(v.x), qni_one_nan(v.y), qni_one_nan(v.z), qni_one_nan(v.w));
        return true;
    }
    if (s.y_dtype == QN_E4M3) {
        uint8_t *const to = (uint8_t *)s.y + at;
        if (((uintptr_t)to & 3) != 0)
            return false;
        *(uint32_t *)to = epilogue_e4m3(v.x * s.y_inv) | epilogue_e4m3(v.y * s.y_inv) << 8 |
                          epilogue_e4m3(v.z * s.y_inv) << 16 | epilogue_e4m3(v.w * s.y_inv) << 24;
        return true;
    }
    uint16_t *const to = (uint16_t *)s.y + at;
    if (((uintptr_t)to & 7) != 0)
        return false;
    const bool is_bf16 = s.y_dtype == QN_BF16;
    *(uint2 *)to = make_uint2(epilogue_pair(v.x, v.y, is_bf16), epilogue_pair(v.z, v.w, is_bf16));
    return true;
}

EPILOGUE void epilogue_tile_plain(const struct qni_cuda_sink &s, const struct epilogue_tile &t,
                                  int32_t thread, int32_t threads)
{
    const int32_t lanes = t.outputs > 64 ? 32 : 16;
    const int32_t j0 = 4 * (thread & (lanes - 1)), step = threads / lanes;
#pragma unroll 1
    for (int32_t i = thread / lanes; i < t.rows; i += step) {
        const int64_t row = epilogue_number(t, i) * s.stride[2] + t.output;
        for (int32_t j = j0; j < t.outputs; j += 4 * lanes) {
            const float *const from = t.v + i * t.ld + j;
            if (t.outputs - j >= 4 && epilogue_store4(s, row + j, from))
                continue;
            for (int32_t q = 0; q < 4 && q < t.outputs - j; q++)
                epilogue_round(s, row + j + q, from[q]);
        }
    }
}

EPILOGUE void epilogue_tile_element(const struct qni_cuda_sink &s, const struct epilogue_tile &t,
                                    const struct epilogue_row &row, int32_t i, int32_t j)
{
    const float v = t.v[i * t.ld + j];
    if (s.y_dtype == QN_I32)
        ((int32_t *)s.y)[row.y + (int64_t)(t.output + j) * s.stride[3]] = __float_as_int(v);
    else
        epilogue_store(s, row, t.output + j, t.expert, v);
}

/* By `threads` threads, a multiple of 32, numbered by `thread`. Neighbouring threads write along
 * the memory of y: outputs, or rows where those lie side by side. The caller has made the tile
 * visible to them, and does not touch it before all are done. */
EPILOGUE void epilogue_tile_run(const struct qni_cuda_sink &s, const struct epilogue_tile &t,
                                int32_t thread, int32_t threads)
{
    if (s.is_plain) {
        epilogue_tile_plain(s, t, thread, threads);
        return;
    }
    const bool by_row = s.stride[3] == 1;
    const int32_t lane = thread & 31, warp = thread / 32, warps = threads / 32;
    const int32_t lines = by_row ? t.rows : 1, line0 = by_row ? warp : 0;
    const int32_t across = by_row ? t.outputs : t.rows, down = by_row ? 1 : t.outputs;
#pragma unroll 1
    for (int32_t a = line0; a < lines; a += warps)
#pragma unroll 1
        for (int32_t b = lane; b < across; b += 32) {
            const int32_t i = by_row ? a : b;
            const struct epilogue_row row = epilogue_row_of(s, epilogue_number(t, i));
#pragma unroll 1
            for (int32_t j = by_row ? b : warp; j < (by_row ? b + 1 : down); j += warps)
                epilogue_tile_element(s, t, row, i, j);
        }
}

#undef EPILOGUE
#endif
