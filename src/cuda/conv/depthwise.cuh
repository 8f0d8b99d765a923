/* SPDX-License-Identifier: Apache-2.0 */
/* What the depthwise kernels share: an output's weights out of the packed blob, the f32 steps of
 * the int8 strategies, and a few neighbouring outputs on their way through the epilogue to y. */
#ifndef QNI_CUDA_CONV_DEPTHWISE_CUH
#define QNI_CUDA_CONV_DEPTHWISE_CUH

#include "../epilogue.cuh"
#include "../rows.cuh"

/* How the patch is quantized. */
enum { DEPTHWISE_FLOATS = 0, DEPTHWISE_GIVEN = 1, DEPTHWISE_ROW = 2, DEPTHWISE_BLOCK = 3 };
enum { DEPTHWISE_BYTES = 0 }; /* beside QN_F32, QN_F16, QN_BF16: given codes */

/* Whole convolutions with a channel an output, windows kept in registers. DEPTHWISE_PASS: not of
 * this kind; anything else is what cudaGetLastError() said. */
enum { DEPTHWISE_PASS = -1 };
int32_t qni_cuda_depthwise_channels(const struct qni_cuda_depthwise *args,
                                    const struct qni_cuda_launch *launch); /* channels innermost */
int32_t
qni_cuda_depthwise_lines(const struct qni_cuda_depthwise *args,
                         const struct qni_cuda_launch *launch); /* columns innermost, whole words */
int32_t qni_cuda_depthwise_planes(const struct qni_cuda_depthwise *args,
                                  const struct qni_cuda_launch *launch); /* columns innermost */

static inline int32_t depthwise_kind(const struct qni_cuda_depthwise *args)
{
    return args->strategy == QN_STRATEGY_INT8_ROW      ? DEPTHWISE_ROW
           : args->strategy == QN_STRATEGY_INT8_BLOCK  ? DEPTHWISE_BLOCK
           : args->strategy == QN_STRATEGY_INT8_STATIC ? DEPTHWISE_GIVEN
                                                       : DEPTHWISE_FLOATS;
}

/* Kernels that are known while compiling: 0: 3 x 3, 1: 5 x 5, 2: 7 x 7, with stride 1 and any
 * dilation, or stride 2; 3: others. */
static inline int32_t depthwise_size(const struct qni_cuda_source *s)
{
    const bool is_square = s->kh == s->kw && (s->kh == 3 || s->kh == 5 || s->kh == 7);
    const bool is_even = s->stride[0] == s->stride[1] && s->stride[0] <= 2 &&
                         (s->stride[0] == 1 || (s->dilation[0] == 1 && s->dilation[1] == 1));
    return is_square && is_even ? (s->kh - 3) / 2 : 3;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The stored code of a packed position of output `output` of its panel: kernel.h draws the blocks.
 * */
ROWS_DEVICE uint32_t stored_code(const struct qni_cuda_weights &w, int32_t panel, int32_t output,
                                 int32_t position)
{
    const int32_t in_step = position & 15, step = (position >> 4) & 3;
    const int32_t lane = 4 * (output & 7) + ((in_step & 7) >> 1), upper = output >> 3;
    const int32_t j = 2 * (in_step & 1) + (in_step >> 3);
    const size_t block = (size_t)panel * (size_t)(w.units / 2) + (size_t)(position >> 6);
    const uint8_t *const codes = w.blob + w.codes;
    if (w.layout == QNI_CUDA_Q4FRAG || w.layout == QNI_CUDA_T4FRAG) {
        const uint32_t byte = __ldg(codes + 512 * block + 16 * lane + 4 * step + j);
        return byte >> (4 * upper) & 15u;
    }
    return __ldg(codes + 1024 * block + 512 * (step >> 1) + 16 * lane + 8 * (step & 1) + 4 * upper +
                 j);
}

ROWS_DEVICE float section_float(const struct qni_cuda_weights &w, size_t section, size_t at)
{
    const uint8_t *const from = w.blob + section;
    return w.scale_is_f16 ? __half2float(((const __half *)from)[at]) : ((const float *)from)[at];
}

/* An output's constants of a group. */
struct group_scale {
    float scale, offset, zero;
};
ROWS_DEVICE struct group_scale scale_of(const struct qni_cuda_weights &w, int32_t output,
                                        int32_t group)
{
    const int32_t in_panel = output & 15;
    const size_t slot = (size_t)(2 * (in_panel & 7) + (in_panel >> 3));
    const size_t at = ((size_t)(output >> 4) * (size_t)w.n_groups + (size_t)group) * 16 + slot;
    struct group_scale g = {section_float(w, w.scale, at), 0.0f, 0.0f};
    if (w.shift == QNI_CUDA_SHIFT_OFFSET)
        g.offset = section_float(w, w.offset, at);
    if (w.shift == QNI_CUDA_SHIFT_ZERO)
        g.zero = (float)((const int8_t *)(w.blob + w.zero))[at];
    return g;
}

/* The same for the int8 strategies: w = scale * value + offset, the values those of table8. */
ROWS_DEVICE struct group_scale exact_scale_of(const struct qni_cuda_weights &w, int32_t output,
                                              int32_t group)
{
    struct group_scale g = scale_of(w, output, group);
    if (w.shift == QNI_CUDA_SHIFT_ZERO)
        g.offset = __fmul_rn(-g.zero, g.scale);
    if (w.table8_doubled)
        g.scale = __fmul_rn(g.scale, 0.5f);
    return g;
}

ROWS_DEVICE int32_t column_of(const struct qni_cuda_source &s, int32_t t)
{
    return s.perm != NULL ? s.perm[t] : t;
}

/* Tap t (a canonical position), as the bits of a float; of an integer for the int8 strategies. */
template <int KIND>
ROWS_DEVICE uint32_t weight_at(const struct qni_cuda_depthwise &d, int32_t output, int32_t t)
{
    const struct qni_cuda_source &s = d.source;
    const int32_t group = s.n_groups <= 1 ? 0 : t / (int32_t)s.group_len;
    const int32_t position = 32 * group * s.group_units + t - group * (int32_t)s.group_len;
    const uint32_t code = stored_code(d.w, output >> 4, output & 15, position);
    const bool is_table = d.w.layout == QNI_CUDA_T4FRAG || d.w.layout == QNI_CUDA_T8FRAG;
    const int32_t bias = d.w.layout == QNI_CUDA_Q4FRAG ? 8 : 128;
    if (KIND != DEPTHWISE_FLOATS)
        return (uint32_t)(is_table ? d.w.table8[code & 15u] : (int32_t)code - bias);
    const float value =
        is_table ? ((const float *)(d.w.blob + d.w.table))[code] : (float)((int32_t)code - bias);
    const struct group_scale g = scale_of(d.w, output, group);
    const float v = __fmaf_rn(g.scale, value - g.zero, g.offset);
    return __float_as_uint(s.prescale != NULL ? v * s.prescale[column_of(s, t)] : v);
}

/* ---- int8 ------------------------------------------------------------------------------------ */

/* Integers of a segment, that floats hold exactly: sums of the products, of the codes of x, of
 * those of w; how many taps. */
struct segment_sums {
    float dot, x, w, n;
};

/* One segment of int8-row (then t is the plain product) or int8-block joins the sum. */
template <int KIND>
ROWS_DEVICE float add_segment(const struct group_scale &g, const struct rows_scaling &q,
                              const struct segment_sums &sums, bool symmetric, bool is_shifted,
                              float v)
{
    if (KIND == DEPTHWISE_ROW) {
        v = __fmaf_rn(g.scale, sums.dot, v);
        return is_shifted ? __fmaf_rn(g.offset, sums.x, v) : v;
    }
    const float low = __fmul_rn(q.offset, sums.w);
    const float t = symmetric ? __fmul_rn(q.scale, sums.dot) : __fmaf_rn(q.scale, sums.dot, low);
    const float total = __fmaf_rn(q.scale, sums.x, __fmul_rn(q.offset, sums.n));
    v = __fmaf_rn(g.scale, t, v);
    return is_shifted ? __fmaf_rn(g.offset, total, v) : v;
}

/* fl(a / b) where neither quotient nor steps on the way leave the normal numbers: Newton's step for
 * 1 / b, two for the quotient, as __fdiv_rn() does where it need not look for other cases. */
ROWS_DEVICE float divide_normal(float a, float b)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
    y = __fmaf_rn(y, __fmaf_rn(-b, y, 1.0f), y);
    float q = __fmul_rn(a, y);
    q = __fmaf_rn(__fmaf_rn(-b, q, a), y, q);
    return __fmaf_rn(__fmaf_rn(-b, q, a), y, q);
}

/* rows_scaling_of(), without its divisions' other cases where the range is of a common size. */
ROWS_DEVICE struct rows_scaling scaling_of(const struct rows_extremes &seen, bool symmetric)
{
    const float h =
        symmetric ? seen.hi : __fsub_rn(__fmul_rn(seen.hi, 0.5f), __fmul_rn(seen.lo, 0.5f));
    if (!(h >= 0x1p-60f && seen.hi <= 0x1p60f && (symmetric || seen.lo >= -0x1p60f)))
        return rows_scaling_of(rows_range_of(seen), symmetric);
    struct rows_scaling s = {divide_normal(h, symmetric ? 127.0f : 127.5f), 0.0f,
                             divide_normal(symmetric ? 127.0f : 255.0f, h), 0.0f, 0.0f};
    if (!symmetric) {
        s.lo = __fadd_rn(seen.lo, 0.0f);
        s.half_lo = __fmul_rn(s.lo, 0.5f);
        s.offset = __fmaf_rn(128.0f, s.scale, s.lo);
    }
    return s;
}

/* A patch of N taps by a kernel of one segment; w and x by tap. Codes are taken as floats: their
 * sums stay below N * 128 * 128 < 2^24. */
template <int KIND, int N>
ROWS_DEVICE float coded_patch(const float (&x)[N], const float (&w)[N], const struct group_scale &g,
                              float sum_w, bool symmetric, bool is_shifted)
{
    symmetric = symmetric || KIND == DEPTHWISE_ROW;
    struct rows_extremes seen = rows_no_extremes(symmetric);
#pragma unroll
    for (int t = 0; t < N; t++)
        rows_see(&seen, x[t], symmetric);
    const struct rows_scaling q = scaling_of(seen, symmetric);
    float dot = 0.0f, sum = 0.0f, c[N];
#pragma unroll
    for (int t = 0; t < N; t++) {
        c[t] = __fsub_rn(__uint_as_float(rows_encode(x[t], q, symmetric, false)), 0x1.8p23f);
        dot = __fmaf_rn(c[t], w[t], dot);
    }
    if (is_shifted) /* of ROW and BLOCK alike: nobody else asks */
#pragma unroll
        for (int t = 0; t < N; t++)
            sum = __fadd_rn(sum, c[t]);
    if (q.inv == 0.0f)
        dot = sum = 0.0f;
    const struct segment_sums sums = {dot, sum, sum_w, (float)N};
    const float v = add_segment<KIND>(g, q, sums, symmetric, is_shifted, 0.0f);
    return KIND == DEPTHWISE_ROW ? __fmul_rn(v, q.scale) : v;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* How sums become y: on the way that is cheapest. */
struct depthwise_out {
    int32_t is_bare;   /* y is the rounded sum */
    int32_t is_light;  /* steps that need nothing but the output's own constants */
    int32_t is_vector; /* neighbours in a thread are neighbours in y, and aligned */
};

static inline struct depthwise_out depthwise_out_of(const struct qni_cuda_sink *out)
{
    struct depthwise_out o = {};
    o.is_light = out->row_scale == NULL && out->residual == NULL && !out->has_more &&
                 (out->act == QN_ACT_NONE || out->act == QN_ACT_RELU || out->act == QN_ACT_RELU6);
    o.is_bare = o.is_light && out->col_scale == NULL && out->bias == NULL &&
                out->act == QN_ACT_NONE && !out->has_clamp;
    return o;
}

static inline int64_t depthwise_size_of(int32_t dtype)
{
    return dtype == QN_F32 || dtype == QN_I32 ? 4 : dtype == QN_F16 || dtype == QN_BF16 ? 2 : 1;
}

/* Do runs of n neighbours (axis `along` of y; 2 or 3) begin at multiples of their size? */
static inline bool depthwise_is_aligned(const struct qni_cuda_sink *out, int32_t along, int64_t n)
{
    const int64_t size = depthwise_size_of(out->y_dtype);
    if (out->stride[along] != 1 || (uintptr_t)out->y % (uintptr_t)(n * size) != 0)
        return false;
    for (int32_t i = 0; i < 4; i++)
        if (i != along && out->stride[i] % n != 0)
            return false;
    return true;
}

/* The steps of an output that are the same in every pixel. */
struct depthwise_steps {
    float col, bias, scale; /* scale: int8-static, of the weights */
    int32_t raw_bias;
};

template <int KIND>
ROWS_DEVICE struct depthwise_steps steps_of(const struct qni_cuda_depthwise &d, int32_t output)
{
    struct depthwise_steps s = {1.0f, 0.0f, 1.0f, 0};
    const struct qni_cuda_sink &out = d.out;
    if (out.col_scale != NULL)
        s.col = out.col_scale[output];
    if (out.bias != NULL && out.bias_dtype != QN_I32)
        s.bias = epilogue_load(out.bias, out.bias_dtype, output);
    if (KIND == DEPTHWISE_GIVEN) {
        s.scale = exact_scale_of(d.w, output, 0).scale;
        s.raw_bias = epilogue_raw_bias(out, output, 0);
    }
    return s;
}

/* int8-static, epilogue_is_raw(): v holds an integer, exactly; with its bias, as the bits of an
 * int32 if y is that. */
ROWS_DEVICE float raw_of(const struct qni_cuda_sink &out, const struct depthwise_steps &s, float v)
{
    const int32_t raw = __float2int_rn(v) + s.raw_bias;
    return out.y_dtype == QN_I32 ? __int_as_float(raw) : (float)raw;
}

/* The steps of epilogue_steps(), in its order, without those that are_light excludes. */
ROWS_DEVICE float light_steps(const struct qni_cuda_sink &out, const struct depthwise_steps &s,
                              float v)
{
    if (out.col_scale != NULL)
        v = __fmul_rn(v, s.col);
    if (out.bias != NULL && out.bias_dtype != QN_I32)
        v = __fadd_rn(v, s.bias);
    if (out.act != QN_ACT_NONE)
        v = v <= 0.0f ? 0.0f : v;
    if (out.act == QN_ACT_RELU6)
        v = v > 6.0f ? 6.0f : v;
    if (out.has_clamp) {
        const float above = v > out.clamp_hi ? out.clamp_hi : v;
        v = v < out.clamp_lo ? out.clamp_lo : above;
    }
    return v;
}

template <int N> ROWS_DEVICE void store_words(void *to, const uint32_t (&words)[N])
{
    if constexpr (N == 4)
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
    else if constexpr (N == 2)
        *(uint2 *)to = make_uint2(words[0], words[1]);
    else
        *(uint32_t *)to = words[0];
}

/* As epilogue_code(), for |v| that fmin and fmax have bounded: adding 1.5 * 2^23 rounds it. */
ROWS_DEVICE int32_t code_of(const struct qni_cuda_sink &out, float v)
{
    const bool is_signed = out.y_dtype == QN_I8;
    v *= out.y_inv;
    v = v == v ? v : 0.0f;
    v = fminf(fmaxf(v, -0x1p21f), 0x1p21f);
    const int32_t code = __float_as_int(__fadd_rn(v, 0x1.8p23f)) - 0x4b400000 + out.y_zero;
    return min(max(code, is_signed ? -128 : 0), is_signed ? 127 : 255);
}

template <int TYPE>
ROWS_DEVICE void store_single(const struct qni_cuda_sink &out, uint8_t *to, float v)
{
    if (TYPE == QN_F32)
        *(float *)to = out.y_dtype == QN_I32 ? v : qni_one_nan(v);
    else if (TYPE == QN_F16)
        *(uint16_t *)to = epilogue_f16(v);
    else if (TYPE == QN_BF16)
        *(uint16_t *)to = epilogue_bf16(v);
    else
        *to = (uint8_t)code_of(out, v);
}

/* N (2 or 4) neighbours. TYPE: QN_F32 (i32, too), QN_F16, QN_BF16, or DEPTHWISE_BYTES. */
template <int TYPE, int N>
ROWS_DEVICE void store_vector(const struct qni_cuda_sink &out, uint8_t *to, const float (&v)[N])
{
    if constexpr (TYPE == QN_F32) {
        uint32_t words[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            words[i] = __float_as_uint(out.y_dtype == QN_I32 ? v[i] : qni_one_nan(v[i]));
        store_words<N>(to, words);
    } else if constexpr (TYPE == DEPTHWISE_BYTES) {
        uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            word |= (uint32_t)(code_of(out, v[i]) & 0xff) << (8 * i);
        if (N == 4)
            *(uint32_t *)to = word;
        else
            *(uint16_t *)to = (uint16_t)word;
    } else {
        uint32_t pairs[N / 2];
#pragma unroll
        for (int i = 0; i < N; i += 2)
            pairs[i / 2] = epilogue_pair(v[i], v[i + 1], TYPE == QN_BF16);
        store_words<N / 2>(to, pairs);
    }
}

/* One output, its steps done. */
ROWS_DEVICE void store_one(const struct qni_cuda_sink &out, int64_t at, float v)
{
    if (out.y_dtype == QN_I32)
        ((int32_t *)out.y)[at] = __float_as_int(v);
    else
        epilogue_round(out, at, v);
}

#endif
