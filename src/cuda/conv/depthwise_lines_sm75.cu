/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions of images with their columns innermost, the common ones of those that
 * depthwise_planes_sm75.cu takes: square kernels with half their size of padding on the left, lines
 * of x that begin at words. A thread has P neighbours of R lines and reads its window by itself, in
 * words, so that nobody waits for a tile: what two threads read comes from L1. Words are asked for
 * before the weights are decoded. Bound: the bytes of x and y, once each. */
#include "depthwise.cuh"

enum { THREADS = 256, P = 4 };

struct lines_job {
    struct qni_cuda_depthwise d;
    struct rows_divisor channels, items, strips_x; /* of an image; of a plane; of a line */
    int64_t n;                                     /* items of all planes */
    int32_t slots;                                 /* planes that a CTA may meet */
    uint32_t flip, hole;
    float zero; /* of given codes: 2^23 + 128 + x_zero */
    struct depthwise_out out;
};

template <int DTYPE> static constexpr int EACH = DTYPE == QN_F32 ? 1 : DTYPE == 0 ? 4 : 2;

/* Of the window's columns: elements before the first in its word, columns, words. */
template <int DTYPE, int K>
static constexpr int SHIFT = (EACH<DTYPE> - K / 2 % EACH<DTYPE>) % EACH<DTYPE>;
template <int K, int S> static constexpr int COLUMNS = (P - 1) * S + K;
template <int DTYPE, int K, int S>
static constexpr int WORDS = (SHIFT<DTYPE, K> + COLUMNS<K, S> + EACH<DTYPE> - 1) / EACH<DTYPE>;

template <int DTYPE> ROWS_DEVICE float value_of(const struct lines_job &j, uint32_t word, int i)
{
    if (DTYPE == QN_F32)
        return __uint_as_float(word);
    if (DTYPE == QN_F16)
        return __half2float(__ushort_as_half((unsigned short)(i & 1 ? word >> 16 : word)));
    if (DTYPE == QN_BF16)
        return __uint_as_float(i & 1 ? word & 0xffff0000u : word << 16);
    return __fsub_rn(__uint_as_float(__byte_perm(word ^ j.flip, 0x4b000000u, 0x7440u + i)), j.zero);
}

/* Outputs [y, y + R) x [x, x + P) of plane `channel`; number counts planes through all images. */
struct item {
    uint32_t number;
    int32_t image, channel, y, x;
};
template <int R> ROWS_DEVICE struct item item_of(const struct lines_job &j, uint32_t i)
{
    struct item it;
    it.number = rows_divide(i, j.items);
    const uint32_t within = i - it.number * j.items.by, line = rows_divide(within, j.strips_x);
    it.image = (int32_t)rows_divide(it.number, j.channels);
    it.channel = (int32_t)(it.number - (uint32_t)it.image * j.channels.by);
    it.y = (int32_t)line * R;
    it.x = (int32_t)(within - line * j.strips_x.by) * P;
    return it;
}

/* weights: [slots][K][K rounded up to 4]. */
template <int KIND, int K>
ROWS_DEVICE void keep_weights(const struct lines_job &j, uint32_t first, float *weights)
{
    constexpr int LD = (K + 3) / 4 * 4;
    for (int32_t i = (int32_t)threadIdx.x; i < K * K * j.slots; i += THREADS) {
        const int32_t slot = i / (K * K), t = i - slot * K * K;
        const uint32_t number = first + (uint32_t)slot;
        const int32_t channel = (int32_t)(number - rows_divide(number, j.channels) * j.channels.by);
        const uint32_t bits = weight_at<KIND>(j.d, channel, t);
        const int32_t column = column_of(j.d.source, t), ky = column / K;
        weights[(slot * K + ky) * LD + column - ky * K] =
            KIND == DEPTHWISE_FLOATS ? __uint_as_float(bits) : (float)(int32_t)bits;
    }
}

/* ---- x --------------------------------------------------------------------------------------- */

template <int DTYPE, int K, int S, int R>
ROWS_DEVICE void read_window(const struct lines_job &j, const struct item &it,
                             uint32_t (&words)[(R - 1) * S + K][WORDS<DTYPE, K, S>])
{
    constexpr int LINES = (R - 1) * S + K, N = WORDS<DTYPE, K, S>, SIZE = 4 / EACH<DTYPE>;
    const struct qni_cuda_source &s = j.d.source;
    const int32_t x = it.x * S - K / 2 - SHIFT<DTYPE, K>, y = it.y * S - s.pad[0];
    const uint8_t *line =
        (const uint8_t *)s.x + (it.image * s.xs[0] + it.channel * s.xs[1] + y * s.xs[2] + x) * SIZE;
    uint32_t inside = 0;
#pragma unroll
    for (int c = 0; c < N; c++)
        inside |= (uint32_t)((uint32_t)(x + c * EACH<DTYPE>) < (uint32_t)s.w) << c;
#pragma unroll
    for (int r = 0; r < LINES; r++) {
        const uint32_t here = (uint32_t)(y + r) < (uint32_t)s.h ? inside : 0u;
#pragma unroll
        for (int c = 0; c < N; c++) {
            words[r][c] = j.hole;
            if ((here & 1u << c) != 0)
                words[r][c] = __ldg((const uint32_t *)line + c);
        }
        line += s.xs[2] * SIZE;
    }
}

template <int DTYPE, int K, int S, int R>
ROWS_DEVICE void sum_window(const struct lines_job &j, const float *weights,
                            const uint32_t (&words)[(R - 1) * S + K][WORDS<DTYPE, K, S>],
                            float (&v)[R][P])
{
    constexpr int N = COLUMNS<K, S>, LD = (K + 3) / 4 * 4;
#pragma unroll
    for (int r = 0; r < (R - 1) * S + K; r++) {
        float x[N];
#pragma unroll
        for (int c = 0; c < N; c++)
            x[c] = value_of<DTYPE>(j, words[r][(SHIFT<DTYPE, K> + c) / EACH<DTYPE>],
                                   (SHIFT<DTYPE, K> + c) % EACH<DTYPE>);
#pragma unroll
        for (int o = 0; o < R; o++) {
            const int ky = r - o * S;
            if (ky < 0 || ky >= K)
                continue;
            float w[LD];
#pragma unroll
            for (int i = 0; i < LD; i += 4) {
                const float4 four = *(const float4 *)(weights + ky * LD + i);
                w[i] = four.x;
                w[i + 1] = four.y;
                w[i + 2] = four.z;
                w[i + 3] = four.w;
            }
#pragma unroll
            for (int kx = 0; kx < K; kx++)
#pragma unroll
                for (int q = 0; q < P; q++)
                    v[o][q] = __fmaf_rn(x[q * S + kx], w[kx], v[o][q]);
        }
    }
}

/* ---- y --------------------------------------------------------------------------------------- */

template <int TYPE, int R>
ROWS_DEVICE void store_all(const struct lines_job &j, const struct item &it, const float (&v)[R][P])
{
    constexpr int64_t SIZE = TYPE == QN_F32 ? 4 : TYPE == DEPTHWISE_BYTES ? 1 : 2;
    const struct qni_cuda_sink &out = j.d.out;
    const int32_t lines = (int32_t)j.d.source.oh - it.y, columns = (int32_t)j.d.source.ow - it.x;
    uint8_t *to = (uint8_t *)out.y + (it.image * out.stride[0] + it.y * out.stride[1] + it.x +
                                      it.channel * out.stride[3]) *
                                         SIZE;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (r < lines && j.out.is_vector)
            store_vector<TYPE, P>(out, to, v[r]);
#pragma unroll
        for (int q = 0; q < P; q++)
            if (r < lines && q < columns && !j.out.is_vector)
                store_single<TYPE>(out, to + q * SIZE, v[r][q]);
        to += out.stride[1] * SIZE;
    }
}

template <int KIND, int R>
ROWS_DEVICE void finish(const struct lines_job &j, const struct item &it, float (&v)[R][P])
{
    const struct qni_cuda_sink &out = j.d.out;
    const bool is_stepped = !j.out.is_bare && out.y_dtype != QN_I32;
    if (KIND == DEPTHWISE_GIVEN || is_stepped) {
        const struct depthwise_steps steps = steps_of<KIND>(j.d, it.channel);
        if (KIND == DEPTHWISE_GIVEN && epilogue_is_raw(out))
#pragma unroll
            for (int i = 0; i < R * P; i++)
                v[i / P][i % P] = raw_of(out, steps, v[i / P][i % P]);
        if (KIND == DEPTHWISE_GIVEN && out.y_dtype != QN_I32)
#pragma unroll
            for (int i = 0; i < R * P; i++)
                v[i / P][i % P] =
                    __fmul_rn(__fmaf_rn(steps.scale, v[i / P][i % P], 0.0f), j.d.x_scale);
        if (is_stepped)
#pragma unroll
            for (int i = 0; i < R * P; i++)
                v[i / P][i % P] = light_steps(out, steps, v[i / P][i % P]);
    }
    switch (out.y_dtype) {
    case QN_F16:
        store_all<QN_F16, R>(j, it, v);
        break;
    case QN_BF16:
        store_all<QN_BF16, R>(j, it, v);
        break;
    case QN_F32:
    case QN_I32:
        store_all<QN_F32, R>(j, it, v);
        break;
    default:
        store_all<DEPTHWISE_BYTES, R>(j, it, v);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int KIND, int DTYPE, int K, int S, int R>
static __global__ void __launch_bounds__(THREADS, K == 3 ? 3 : 2)
    lines_kernel(const __grid_constant__ struct lines_job j)
{
    extern __shared__ float4 shared[];
    float *const weights = (float *)shared;
    rows_release();
    const uint32_t first = rows_divide(blockIdx.x * THREADS, j.items);
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    const struct item it = item_of<R>(j, i < j.n ? i : 0);
    uint32_t words[(R - 1) * S + K][WORDS<DTYPE, K, S>];
    rows_wait();
    read_window<DTYPE, K, S, R>(j, it, words);
    keep_weights<KIND, K>(j, first, weights);
    __syncthreads();
    if (i >= j.n)
        return;
    float v[R][P] = {};
    sum_window<DTYPE, K, S, R>(j, weights + (it.number - first) * (K * ((K + 3) / 4 * 4)), words,
                               v);
    finish<KIND, R>(j, it, v);
}

/* ---- which kernel ---------------------------------------------------------------------------- */

struct variant {
    const void *kernel;
    int32_t r;
};
#define VARIANT(kind, dtype, k, s, r)                                                              \
    {                                                                                              \
        (const void *)lines_kernel<kind, dtype, k, s, r>, r                                        \
    }
#define VARIANTS(kind, dtype)                                                                      \
    {                                                                                              \
        {VARIANT(kind, dtype, 3, 1, 4), VARIANT(kind, dtype, 3, 2, 2)},                            \
            {VARIANT(kind, dtype, 5, 1, 4), VARIANT(kind, dtype, 5, 2, 2)},                        \
            {VARIANT(kind, dtype, 7, 1, 4), VARIANT(kind, dtype, 7, 2, 2)},                        \
    }

/* Is every line of x whole words at aligned places? */
static bool is_words(const struct qni_cuda_source *s)
{
    const int64_t each = 4 / depthwise_size_of(s->dtype);
    return (uintptr_t)s->x % 4 == 0 && s->w % each == 0 && s->xs[0] % each == 0 &&
           s->xs[1] % each == 0 && s->xs[2] % each == 0;
}

int32_t qni_cuda_depthwise_lines(const struct qni_cuda_depthwise *args,
                                 const struct qni_cuda_launch *launch)
{
    static const struct variant variants[4][3][2] = {
        VARIANTS(DEPTHWISE_GIVEN, 0), VARIANTS(DEPTHWISE_FLOATS, QN_F32),
        VARIANTS(DEPTHWISE_FLOATS, QN_F16), VARIANTS(DEPTHWISE_FLOATS, QN_BF16)};
    const struct qni_cuda_source *const s = &args->source;
    const int32_t kind = depthwise_kind(args), size = depthwise_size(s);
    struct lines_job j = {};
    j.d = *args;
    j.out = depthwise_out_of(&args->out);
    if ((kind != DEPTHWISE_FLOATS && kind != DEPTHWISE_GIVEN) || size > 2 || s->xs[3] != 1 ||
        s->dilation[0] != 1 || s->dilation[1] != 1 || s->pad[1] != s->kw / 2 || !is_words(s) ||
        !j.out.is_light || args->out.stride[2] != 1)
        return DEPTHWISE_PASS;
    const struct variant *const v =
        &variants[kind == DEPTHWISE_GIVEN ? 0 : s->dtype - QN_F32 + 1][size][s->stride[0] - 1];
    const int64_t across = (s->ow + P - 1) / P, down = (s->oh + v->r - 1) / v->r;
    const int64_t planes = args->m / (s->oh * s->ow) * args->w.n;
    j.channels = rows_divisor_of(args->w.n);
    j.items = rows_divisor_of(across * down);
    j.strips_x = rows_divisor_of(across);
    j.n = planes * across * down;
    j.slots = (int32_t)((THREADS - 1) / (across * down) + 2);
    j.flip = s->dtype == QN_I8 ? 0x80808080u : 0u;
    if (kind == DEPTHWISE_GIVEN)
        j.hole =
            ((uint32_t)s->x_zero & 0xffu) * 0x01010101u ^ (s->dtype == QN_U8 ? 0x80808080u : 0u);
    j.zero = 0x1p23f + 128.0f + (float)s->x_zero;
    j.out.is_vector = s->ow % P == 0 && depthwise_is_aligned(&args->out, 2, P);
    const int64_t bytes = (int64_t)j.slots * s->kh * ((s->kw + 3) / 4 * 4) * 4;
    if (j.n > INT32_MAX / 2 || bytes > ROWS_SHARED)
        return DEPTHWISE_PASS;
    return rows_launch_shared(v->kernel, (j.n + THREADS - 1) / THREADS, dim3(THREADS),
                              (size_t)bytes, &j, launch);
}
