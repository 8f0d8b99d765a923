/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions of images with their channels innermost, a channel an output:
 *
 *     y[i, j] = sum over taps of x[i, tap, j] * w[j, tap]
 *
 * A thread has V neighbouring channels, P outputs of a line and R lines. It takes the lines of its
 * window one after another, every element of them once, and adds each to all outputs that it
 * belongs to; so x comes from the caches (R + K - 1) / R * (P + K - 1) / P times and from memory
 * about once. Lanes lie along channels, so that every load and store of a warp is whole lines of
 * memory; a CTA keeps its channels and with them its weights. A dilation is as many convolutions
 * side by side (`phases`). Bound: the bytes of x and y; 7 x 7: the 49 fma of an output.
 *
 * Floats and int8-static, whose integers are taken as floats (exact below 2^24), sum on the way;
 * int8-row and int8-block have the window in registers and quantize each patch out of it. Kernels
 * that are not square or larger take the same way tap by tap. Not: transposed, several outputs a
 * channel, weights of several groups with int8 (depthwise_sm75.cu). */
#include "depthwise.cuh"

/* CTAS a multiprocessor, all at once: each keeps its weights and takes strips until the end. */
enum { THREADS = 256, TAPS_MAX = 128, CTAS = 2 };
enum { MOST_ACROSS = 1 << 24 }; /* elements from column to column: offsets in a line have 32 bits */

struct channels_job {
    struct qni_cuda_depthwise d;
    struct rows_divisor across, down, phases[2]; /* strips of a line, of a column */
    int64_t strips; /* of an image's lines and columns, of all images */
    int32_t strips_of_cta, tiles;
    int32_t lane_bits;     /* 1 << so many threads lie along channels */
    int32_t step[2];       /* outputs, and inputs, from neighbour to neighbour of a thread: lines,
                          columns */
    int64_t line_bytes;    /* of x from line to line of a window */
    uint32_t column_bytes; /* from column to column */
    uint32_t flip, hole;
    float zero; /* of given codes as they are read: 2^23 + 128 + x_zero */
    struct depthwise_out out;
};

/* ---- inputs ---------------------------------------------------------------------------------- */

template <int DTYPE> static constexpr int SIZE = DTYPE == QN_F32 ? 4 : DTYPE == 0 ? 1 : 2;

/* V elements as they lie, 4 to 16 bytes. */
template <int WORDS> ROWS_DEVICE void load_words(const uint8_t *from, uint32_t (&words)[WORDS])
{
    if constexpr (WORDS == 4) {
        const uint4 v = __ldg((const uint4 *)from);
        words[0] = v.x;
        words[1] = v.y;
        words[2] = v.z;
        words[3] = v.w;
    } else if constexpr (WORDS == 2) {
        const uint2 v = __ldg((const uint2 *)from);
        words[0] = v.x;
        words[1] = v.y;
    } else {
        words[0] = __ldg((const uint32_t *)from);
    }
}

template <int DTYPE, int V>
ROWS_DEVICE void widen(const struct channels_job &j, const uint32_t (&words)[V * SIZE<DTYPE> / 4],
                       float (&v)[V])
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        const uint32_t word = words[i * SIZE<DTYPE> / 4];
        if (DTYPE == QN_F32)
            v[i] = __uint_as_float(word);
        else if (DTYPE == QN_F16)
            v[i] = __half2float(__ushort_as_half((unsigned short)(i & 1 ? word >> 16 : word)));
        else if (DTYPE == QN_BF16)
            v[i] = __uint_as_float(i & 1 ? word & 0xffff0000u : word << 16);
        else /* 2^23 + (code + 128), less what j.zero says */
            v[i] = __fsub_rn(__uint_as_float(__byte_perm(word ^ j.flip, 0x4b000000u, 0x7440u + i)),
                             j.zero);
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

/* The outputs of a thread: the first, and what its first tap reads. */
struct strip {
    const uint8_t *x;
    int32_t in_y, in_x, out_y, out_x, image;
};

template <int P, int R>
ROWS_DEVICE struct strip strip_of(const struct channels_job &j, int64_t number, int32_t channel,
                                  int32_t size)
{
    const struct qni_cuda_source &s = j.d.source;
    const uint32_t line = rows_divide((uint32_t)number, j.across);
    const uint32_t column = (uint32_t)number - line * j.across.by;
    const uint32_t image = rows_divide(line, j.down);
    const uint32_t row = line - image * j.down.by;
    const uint32_t qx = rows_divide(column, j.phases[1]), qy = rows_divide(row, j.phases[0]);
    struct strip p;
    p.image = (int32_t)image;
    p.out_x = (int32_t)(qx * P * j.phases[1].by + column - qx * j.phases[1].by);
    p.out_y = (int32_t)(qy * R * j.phases[0].by + row - qy * j.phases[0].by);
    p.in_x = p.out_x * s.stride[1] - s.pad[1];
    p.in_y = p.out_y * s.stride[0] - s.pad[0];
    const int64_t at = image * s.xs[0] + p.in_y * s.xs[2] + p.in_x * s.xs[3] + channel;
    p.x = (const uint8_t *)s.x + at * size;
    return p;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Shared memory: floats [tap in the order of the kernel][channel of the CTA]. */
template <int KIND>
ROWS_DEVICE void keep_weights(const struct channels_job &j, int32_t first, int32_t width,
                              float *weights)
{
    const int32_t taps = (int32_t)j.d.source.k;
    for (int32_t i = (int32_t)threadIdx.x; i < taps * width; i += THREADS) {
        const int32_t t = i / width, output = first + i - t * width;
        float v = 0.0f;
        if (output < j.d.w.n) {
            const uint32_t bits = weight_at<KIND>(j.d, output, t);
            v = KIND == DEPTHWISE_FLOATS ? __uint_as_float(bits) : (float)(int32_t)bits;
        }
        weights[column_of(j.d.source, t) * width + i - t * width] = v;
    }
    __syncthreads();
}

template <int V> ROWS_DEVICE void read_weights(const float *weights, int32_t at, float (&w)[V])
{
#pragma unroll
    for (int i = 0; i < V; i += 2) {
        const float2 two = *(const float2 *)(weights + at + i);
        w[i] = two.x;
        w[i + 1] = two.y;
    }
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* What needs a place, many instructions or single stores: element by element, through shared
 * memory, so that it is there once. slots: [R * P * V][THREADS]. False: all is stored. */
template <int V, int P, int R>
ROWS_DEVICE bool finish_slowly(const struct channels_job &j, const struct strip &p, int32_t channel,
                               float *slots, float (&v)[R][P][V])
{
    const struct qni_cuda_sink &out = j.d.out;
    float *const own = slots + threadIdx.x;
#pragma unroll
    for (int i = 0; i < R * P * V; i++)
        own[i * THREADS] = v[i / (P * V)][i / V % P][i % V];
#pragma unroll 1
    for (int32_t i = 0; i < R * P * V; i++) {
        const int32_t y = p.out_y + i / (P * V) * j.step[0], x = p.out_x + i / V % P * j.step[1];
        if (y >= j.d.source.oh || x >= j.d.source.ow)
            continue;
        const int64_t row = (p.image * j.d.source.oh + y) * j.d.source.ow + x;
        const struct epilogue_row at = {0,
                                        p.image * out.residual_stride[0] +
                                            y * out.residual_stride[1] + x * out.residual_stride[2],
                                        out.row_scale != NULL ? out.row_scale[row] : 1.0f};
        float one = own[i * THREADS];
        if (!j.out.is_light && out.y_dtype != QN_I32)
            one = epilogue_steps(out, at, channel + i % V, 0, one);
        own[i * THREADS] = one;
        if (!j.out.is_vector)
            store_one(out,
                      p.image * out.stride[0] + y * out.stride[1] + x * out.stride[2] +
                          (channel + i % V) * out.stride[3],
                      one);
    }
    if (!j.out.is_vector)
        return false;
#pragma unroll
    for (int i = 0; i < R * P * V; i++)
        v[i / (P * V)][i / V % P][i % V] = own[i * THREADS];
    return true;
}

template <int TYPE, int V, int P, int R>
ROWS_DEVICE void store_all(const struct channels_job &j, const struct strip &p, int32_t channel,
                           const float (&v)[R][P][V])
{
    constexpr int64_t SIZE_Y = TYPE == QN_F32 ? 4 : TYPE == DEPTHWISE_BYTES ? 1 : 2;
    const struct qni_cuda_sink &out = j.d.out;
    uint8_t *line = (uint8_t *)out.y + (p.image * out.stride[0] + p.out_y * out.stride[1] +
                                        p.out_x * out.stride[2] + channel) *
                                           SIZE_Y;
    const int64_t down = j.step[0] * out.stride[1] * SIZE_Y;
    const uint32_t across = (uint32_t)(j.step[1] * out.stride[2] * SIZE_Y);
    uint32_t inside = 0;
#pragma unroll
    for (int i = 0; i < P; i++)
        inside |= (uint32_t)(p.out_x + i * j.step[1] < (int32_t)j.d.source.ow) << i;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t here = p.out_y + r * j.step[0] < (int32_t)j.d.source.oh ? inside : 0u;
#pragma unroll
        for (int i = 0; i < P; i++)
            if ((here & 1u << i) != 0)
                store_vector<TYPE, V>(out, line + i * across, v[r][i]);
        line += down;
    }
}

template <int KIND, int V, int P, int R>
ROWS_DEVICE void finish(const struct channels_job &j, const struct strip &p, int32_t channel,
                        float *slots, float (&v)[R][P][V])
{
    const struct qni_cuda_sink &out = j.d.out;
    const bool is_stepped = !j.out.is_bare && j.out.is_light && out.y_dtype != QN_I32;
    if (KIND == DEPTHWISE_GIVEN || is_stepped) {
        struct depthwise_steps steps[V];
#pragma unroll
        for (int i = 0; i < V; i++)
            steps[i] = steps_of<KIND>(j.d, channel + i);
        if (KIND == DEPTHWISE_GIVEN && epilogue_is_raw(out))
#pragma unroll
            for (int i = 0; i < R * P * V; i++) {
                float &one = v[i / (P * V)][i / V % P][i % V];
                one = raw_of(out, steps[i % V], one);
            }
        if (KIND == DEPTHWISE_GIVEN && out.y_dtype != QN_I32)
#pragma unroll
            for (int i = 0; i < R * P * V; i++) {
                float &one = v[i / (P * V)][i / V % P][i % V];
                one = __fmul_rn(__fmaf_rn(steps[i % V].scale, one, 0.0f), j.d.x_scale);
            }
        if (is_stepped)
#pragma unroll
            for (int i = 0; i < R * P * V; i++) {
                float &one = v[i / (P * V)][i / V % P][i % V];
                one = light_steps(out, steps[i % V], one);
            }
    }
    if (!j.out.is_light || !j.out.is_vector)
        if (!finish_slowly<V, P, R>(j, p, channel, slots, v))
            return;
    switch (out.y_dtype) {
    case QN_F16:
        store_all<QN_F16, V, P, R>(j, p, channel, v);
        break;
    case QN_BF16:
        store_all<QN_BF16, V, P, R>(j, p, channel, v);
        break;
    case QN_F32:
    case QN_I32:
        store_all<QN_F32, V, P, R>(j, p, channel, v);
        break;
    default:
        store_all<DEPTHWISE_BYTES, V, P, R>(j, p, channel, v);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Line r of the window: N columns of V channels, zeros outside. inside: bit c, column c. */
template <int DTYPE, int V, int N>
ROWS_DEVICE void read_line(const struct channels_job &j, const struct strip &p, int32_t r,
                           uint32_t inside, float (&v)[N][V])
{
    constexpr int WORDS = V * SIZE<DTYPE> / 4;
    const bool is_line = (uint32_t)(p.in_y + r * j.step[0]) < (uint32_t)j.d.source.h;
    const uint32_t here = is_line ? inside : 0u;
    const uint8_t *const line = p.x + r * j.line_bytes;
    uint32_t words[N][WORDS];
#pragma unroll
    for (int c = 0; c < N; c++) {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            words[c][i] = DTYPE == DEPTHWISE_BYTES ? j.hole : 0u;
        if ((here & 1u << c) != 0)
            load_words<WORDS>(line + c * j.column_bytes, words[c]);
    }
#pragma unroll
    for (int c = 0; c < N; c++)
        widen<DTYPE, V>(j, words[c], v[c]);
}

/* Square kernels: K taps a side, S the stride. */
template <int DTYPE, int K, int S, int V, int P, int R>
ROWS_DEVICE void sum_window(const struct channels_job &j, const struct strip &p, uint32_t inside,
                            const float *weights, int32_t width, const float (&kept)[9][V],
                            float (&v)[R][P][V])
{
    constexpr int N = (P - 1) * S + K;
#pragma unroll
    for (int r = 0; r < (R - 1) * S + K; r++) {
        float x[N][V];
        read_line<DTYPE, V, N>(j, p, r, inside, x);
#pragma unroll
        for (int o = 0; o < R; o++) {
            const int ky = r - o * S;
            if (ky < 0 || ky >= K)
                continue;
#pragma unroll
            for (int kx = 0; kx < K; kx++) {
                float w[V];
                if constexpr (K > 3)
                    read_weights<V>(weights, (ky * K + kx) * width, w);
#pragma unroll
                for (int i = 0; i < V; i++)
#pragma unroll
                    for (int q = 0; q < P; q++)
                        v[o][q][i] =
                            __fmaf_rn(x[q * S + kx][i], K > 3 ? w[i] : kept[(ky * K + kx) % 9][i],
                                      v[o][q][i]);
            }
        }
    }
}

template <int KIND, int DTYPE, int K, int S, int V, int P>
ROWS_DEVICE void code_window(const struct channels_job &j, const struct strip &p, uint32_t inside,
                             int32_t channel, const float *weights, int32_t width,
                             float (&v)[1][P][V])
{
    constexpr int N = (P - 1) * S + K;
    float x[K][N][V];
#pragma unroll
    for (int r = 0; r < K; r++)
        read_line<DTYPE, V, N>(j, p, r, inside, x[r]);
#pragma unroll
    for (int i = 0; i < V; i++) {
        const struct group_scale g = exact_scale_of(j.d.w, channel + i, 0);
        float w[K * K], sum_w = 0.0f;
#pragma unroll
        for (int t = 0; t < K * K; t++) {
            w[t] = weights[t * width + i];
            sum_w = __fadd_rn(sum_w, w[t]);
        }
#pragma unroll
        for (int q = 0; q < P; q++) {
            float patch[K * K];
#pragma unroll
            for (int t = 0; t < K * K; t++)
                patch[t] = x[t / K][q * S + t % K][i];
            v[0][q][i] = coded_patch<KIND, K * K>(patch, w, g, sum_w, j.d.source.symmetric != 0,
                                                  j.d.w.shift != QNI_CUDA_SHIFT_NONE);
        }
    }
}

/* Any kernel: every tap reads P columns. */
template <int DTYPE, int V, int P>
ROWS_DEVICE void sum_taps(const struct channels_job &j, const struct strip &p, const float *weights,
                          int32_t width, float (&v)[1][P][V])
{
    constexpr int WORDS = V * SIZE<DTYPE> / 4;
    const struct qni_cuda_source &s = j.d.source;
    const int64_t step = s.stride[1] * s.xs[3] * SIZE<DTYPE>;
    for (int32_t ky = 0; ky < s.kh; ky++) {
        const int32_t y = ky * s.dilation[0];
        const bool is_line = (uint32_t)(p.in_y + y) < (uint32_t)s.h;
        const uint8_t *const line = p.x + y * s.xs[2] * SIZE<DTYPE>;
#pragma unroll 2
        for (int32_t kx = 0; kx < s.kw; kx++) {
            const int32_t x = kx * s.dilation[1];
            const uint8_t *const from = line + x * s.xs[3] * SIZE<DTYPE>;
            uint32_t words[P][WORDS];
            float w[V];
#pragma unroll
            for (int q = 0; q < P; q++) {
#pragma unroll
                for (int i = 0; i < WORDS; i++)
                    words[q][i] = DTYPE == DEPTHWISE_BYTES ? j.hole : 0u;
                if (is_line && (uint32_t)(p.in_x + x + q * s.stride[1]) < (uint32_t)s.w)
                    load_words<WORDS>(from + q * step, words[q]);
            }
            read_weights<V>(weights, (ky * s.kw + kx) * width, w);
#pragma unroll
            for (int q = 0; q < P; q++) {
                float one[V];
                widen<DTYPE, V>(j, words[q], one);
#pragma unroll
                for (int i = 0; i < V; i++)
                    v[0][q][i] = __fmaf_rn(one[i], w[i], v[0][q][i]);
            }
        }
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* K 0: any kernel, tap by tap. */
template <int KIND, int DTYPE, int K, int S, int V, int P, int R>
static __global__ void __launch_bounds__(THREADS, 2)
    channels_kernel(const __grid_constant__ struct channels_job j)
{
    extern __shared__ float shared[];
    constexpr int N = K == 0 ? 1 : (P - 1) * S + K;
    rows_release();
    const int32_t lane = (int32_t)threadIdx.x & ((1 << j.lane_bits) - 1), width = V << j.lane_bits;
    const int32_t chunk = (int32_t)blockIdx.x / j.tiles;
    const int32_t first = ((int32_t)blockIdx.x - chunk * j.tiles) * width;
    const int32_t channel = first + lane * V;
    keep_weights<KIND>(j, first, width, shared);
    const float *const weights = shared + lane * V;
    float *const slots = shared + (int32_t)j.d.source.k * width;
    rows_wait();
    if (channel >= j.d.w.n)
        return;
    float kept[9][V];
    if constexpr (K == 3 && (KIND == DEPTHWISE_FLOATS || KIND == DEPTHWISE_GIVEN)) {
#pragma unroll
        for (int t = 0; t < 9; t++)
            read_weights<V>(weights, t * width, kept[t]);
    }
    const int64_t end = min((int64_t)(chunk + 1) * j.strips_of_cta, j.strips);
    for (int64_t at = (int64_t)chunk * j.strips_of_cta + ((int32_t)threadIdx.x >> j.lane_bits);
         at < end; at += THREADS >> j.lane_bits) {
        const struct strip p = strip_of<P, R>(j, at, channel, SIZE<DTYPE>);
        uint32_t inside = 0;
#pragma unroll
        for (int c = 0; c < N; c++)
            inside |= (uint32_t)((uint32_t)(p.in_x + c * j.step[1]) < (uint32_t)j.d.source.w) << c;
        float v[R][P][V] = {};
        if constexpr (K == 0)
            sum_taps<DTYPE, V, P>(j, p, weights, width, v);
        else if constexpr (KIND == DEPTHWISE_FLOATS || KIND == DEPTHWISE_GIVEN)
            sum_window<DTYPE, K, S, V, P, R>(j, p, inside, weights, width, kept, v);
        else
            code_window<KIND, DTYPE, K, S, V, P>(j, p, inside, channel, weights, width, v);
        finish<KIND, V, P, R>(j, p, channel, slots, v);
    }
}

/* ---- which kernel ---------------------------------------------------------------------------- */

struct variant {
    const void *kernel;
    int32_t v, p, r;
};
#define VARIANT(kind, dtype, k, s, v, p, r)                                                        \
    {                                                                                              \
        (const void *)channels_kernel<kind, dtype, k, s, v, p, r>, v, p, r                         \
    }
enum { ANY = 3, SIZES = 4 }; /* 3 x 3, 5 x 5, 7 x 7, any */
/* By size and stride. */
#define SUMMED(dtype)                                                                              \
    {                                                                                              \
        {VARIANT(DEPTHWISE_FLOATS, dtype, 3, 1, 2, 4, 4),                                          \
         VARIANT(DEPTHWISE_FLOATS, dtype, 3, 2, 2, 4, 2)},                                         \
            {VARIANT(DEPTHWISE_FLOATS, dtype, 5, 1, 2, 4, 2),                                      \
             VARIANT(DEPTHWISE_FLOATS, dtype, 5, 2, 2, 4, 2)},                                     \
            {VARIANT(DEPTHWISE_FLOATS, dtype, 7, 1, 2, 8, 2),                                      \
             VARIANT(DEPTHWISE_FLOATS, dtype, 7, 2, 2, 4, 2)},                                     \
            {VARIANT(DEPTHWISE_FLOATS, dtype, 0, 1, 2, 4, 1)},                                     \
    }
#define CODED(kind, dtype)                                                                         \
    {                                                                                              \
        {VARIANT(kind, dtype, 3, 1, 2, 4, 1), VARIANT(kind, dtype, 3, 2, 2, 2, 1)},                \
            {VARIANT(kind, dtype, 5, 1, 2, 2, 1), VARIANT(kind, dtype, 5, 2, 2, 1, 1)},            \
    }

static const struct variant *variant_of(const struct qni_cuda_source *s, int32_t kind, int32_t size)
{
    static const struct variant given[SIZES][2] = {
        {VARIANT(DEPTHWISE_GIVEN, 0, 3, 1, 4, 4, 2), VARIANT(DEPTHWISE_GIVEN, 0, 3, 2, 4, 4, 1)},
        {VARIANT(DEPTHWISE_GIVEN, 0, 5, 1, 4, 4, 1), VARIANT(DEPTHWISE_GIVEN, 0, 5, 2, 4, 2, 1)},
        {VARIANT(DEPTHWISE_GIVEN, 0, 7, 1, 4, 4, 1), VARIANT(DEPTHWISE_GIVEN, 0, 7, 2, 4, 2, 1)},
        {VARIANT(DEPTHWISE_GIVEN, 0, 0, 1, 4, 4, 1)}};
    static const struct variant floats[3][SIZES][2] = {SUMMED(QN_F32), SUMMED(QN_F16),
                                                       SUMMED(QN_BF16)};
    static const struct variant coded[2][3][SIZES][2] = {
        {CODED(DEPTHWISE_ROW, QN_F32), CODED(DEPTHWISE_ROW, QN_F16), CODED(DEPTHWISE_ROW, QN_BF16)},
        {CODED(DEPTHWISE_BLOCK, QN_F32), CODED(DEPTHWISE_BLOCK, QN_F16),
         CODED(DEPTHWISE_BLOCK, QN_BF16)}};
    const int32_t stride = size == ANY ? 0 : s->stride[0] - 1;
    if (kind == DEPTHWISE_GIVEN)
        return &given[size][stride];
    return kind == DEPTHWISE_FLOATS
               ? &floats[s->dtype - QN_F32][size][stride]
               : &coded[kind == DEPTHWISE_BLOCK][s->dtype - QN_F32][size][stride];
}

/* V neighbouring channels everywhere at an aligned place. */
static bool is_aligned(const struct qni_cuda_depthwise *args, int64_t v)
{
    const struct qni_cuda_source *const s = &args->source;
    const int64_t bytes = v * depthwise_size_of(s->dtype);
    if (s->xs[1] != 1 || args->w.n % v != 0 || (uintptr_t)s->x % (uintptr_t)bytes != 0)
        return false;
    return s->xs[0] % v == 0 && s->xs[2] % v == 0 && s->xs[3] % v == 0;
}

/* As many lanes along channels as leave the fewest idle, 4 to 32. */
static int32_t lane_bits_of(int64_t vectors)
{
    int64_t fewest = INT64_MAX;
    int32_t best = 5;
    for (int32_t bits = 5; bits >= 2; bits--) {
        const int64_t lanes = (vectors + (1 << bits) - 1) >> bits << bits;
        if (lanes < fewest) {
            fewest = lanes;
            best = bits;
        }
    }
    return best;
}

/* Strips of n neighbours of an axis of `length` outputs in so many phases. */
static int64_t strips_of(int64_t length, int64_t phases, int64_t n)
{
    return ((length + phases - 1) / phases + n - 1) / n * phases;
}

int32_t qni_cuda_depthwise_channels(const struct qni_cuda_depthwise *args,
                                    const struct qni_cuda_launch *launch)
{
    const struct qni_cuda_source *const s = &args->source;
    const int32_t kind = depthwise_kind(args), size = depthwise_size(s);
    const struct variant *const v = variant_of(s, kind, size);
    if (v->kernel == NULL || !is_aligned(args, v->v))
        return DEPTHWISE_PASS;
    struct channels_job j = {};
    j.d = *args;
    for (int32_t axis = 0; axis < 2; axis++) {
        j.step[axis] = size == ANY ? 1 : s->dilation[axis];
        j.phases[axis] = rows_divisor_of(j.step[axis]);
    }
    j.across = rows_divisor_of(strips_of(s->ow, j.step[1], v->p));
    j.down = rows_divisor_of(strips_of(s->oh, j.step[0], v->r));
    const int64_t lines = (int64_t)j.across.by * j.down.by;
    j.strips = args->m / (s->oh * s->ow) * lines;
    const int64_t vectors = args->w.n / v->v;
    j.lane_bits = lane_bits_of(vectors);
    j.tiles = (int32_t)((vectors + (1 << j.lane_bits) - 1) >> j.lane_bits);
    j.flip = s->dtype == QN_I8 ? 0x80808080u : 0u;
    j.hole = ((uint32_t)s->x_zero & 0xffu) * 0x01010101u ^ (s->dtype == QN_U8 ? 0x80808080u : 0u);
    j.zero = 0x1p23f + 128.0f + (float)s->x_zero;
    j.out = depthwise_out_of(&args->out);
    j.out.is_vector = depthwise_is_aligned(&args->out, 3, v->v);
    j.line_bytes = j.step[0] * s->xs[2] * depthwise_size_of(s->dtype);
    j.column_bytes = (uint32_t)(j.step[1] * s->xs[3] * depthwise_size_of(s->dtype));
    const int64_t width = (int64_t)v->v << j.lane_bits;
    const int64_t slots =
        j.out.is_light && j.out.is_vector ? 0 : (int64_t)v->v * v->p * v->r * THREADS;
    const int64_t bytes = (s->k * width + slots) * 4;
    if (j.strips > INT32_MAX / 2 || s->xs[3] * j.step[1] > MOST_ACROSS ||
        args->out.stride[2] * j.step[1] > MOST_ACROSS || s->k > TAPS_MAX || bytes > ROWS_SHARED)
        return DEPTHWISE_PASS;
    const int64_t pass = THREADS >> j.lane_bits, passes = (j.strips + pass - 1) / pass;
    const int64_t ctas = CTAS * (int64_t)launch->multiprocessors;
    j.strips_of_cta = (int32_t)(pass * ((passes * j.tiles + ctas - 1) / ctas));
    const int64_t grid = (j.strips + j.strips_of_cta - 1) / j.strips_of_cta * j.tiles;
    return rows_launch_shared(v->kernel, grid, dim3(THREADS), (size_t)bytes, &j, launch);
}
