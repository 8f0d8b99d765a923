/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions of images with their columns innermost, a channel an output. A CTA brings
 * the part of a plane (or of several small ones) that its outputs read into shared memory, as f32
 * and with its padding, so that nothing behind that asks what lies outside; then a thread takes P
 * neighbours of R lines out of there, every line of its window once. x is read from memory once but
 * for the lines that two CTAs share. Bound: the bytes of x and y, and 3 wavefronts of shared memory
 * for 32 outputs of 3 x 3.
 *
 * Given codes (as their differences from the zero point) and codes of int8-row and int8-block are
 * integers in floats: depthwise.cuh. Kernels that are not square, or dilated, go tap by tap. Not:
 * what depthwise_channels_sm75.cu does not. */
#include "depthwise.cuh"

enum { THREADS = 256, LINES = 4, TAPS_MAX = 128 };
/* Bytes of a tile: several CTAs share a multiprocessor; but more where its lines are long. */
enum { TILE_BYTES = 24 << 10, TILE_MOST = 40 << 10, ITEMS = 256 };

struct planes_job {
    struct qni_cuda_depthwise d;
    struct rows_divisor channels, tiles_y,
        tiles_x; /* of a CTA's tile: image, planes, lines, columns */
    struct rows_divisor items, strips_y, strips_x; /* of a plane in the tile; threads' outputs */
    struct rows_divisor in_h;
    int32_t planes, tile_h, tile_w; /* planes of a CTA; outputs */
    int32_t in_w, ld;               /* inputs of a line, floats from line to line */
    int32_t row_bits;               /* 1 << so many threads bring a line */
    int32_t is_word;                /* lines of x begin at multiples of 4 bytes */
    int32_t taps_ld;                /* floats from kernel line to kernel line */
    uint32_t flip;
    struct depthwise_out out;
};

/* ---- staging --------------------------------------------------------------------------------- */

template <int DTYPE> static constexpr int SIZE = DTYPE == QN_F32 ? 4 : DTYPE == 0 ? 1 : 2;

template <int DTYPE>
ROWS_DEVICE float value_of(const struct planes_job &j, uint32_t word, int32_t i)
{
    if (DTYPE == QN_F32)
        return __uint_as_float(word);
    if (DTYPE == QN_F16)
        return __half2float(__ushort_as_half((unsigned short)(i & 1 ? word >> 16 : word)));
    if (DTYPE == QN_BF16)
        return __uint_as_float(i & 1 ? word & 0xffff0000u : word << 16);
    return (float)((int8_t)((word ^ j.flip) >> (8 * i)) - j.d.source.x_zero);
}

/* The first input of a tile. */
struct corner {
    int64_t image;
    int32_t plane, y, x;
};

/* WORD: 4 bytes of x at a time. Lines of a thread are `apart`; what lies outside is zero. */
template <int DTYPE, int WORD>
ROWS_DEVICE void stage(const struct planes_job &j, const struct corner &c, float *tile)
{
    constexpr int EACH = WORD ? 4 / SIZE<DTYPE> : 1, AT_ONCE = 4;
    const struct qni_cuda_source &s = j.d.source;
    const int32_t lanes = 1 << j.row_bits, lane = (int32_t)threadIdx.x & (lanes - 1);
    const int32_t apart = THREADS >> j.row_bits, ends = c.x + j.ld;
    const int32_t rows = j.planes * (int32_t)j.in_h.by;
    const uint8_t *const image = (const uint8_t *)s.x + c.image * s.xs[0] * SIZE<DTYPE>;
    /* c.x may be negative: division downwards */
    for (int32_t x = (c.x & ~(EACH - 1)) + lane * EACH; x < ends; x += lanes * EACH) {
        const bool is_column = (uint32_t)x < (uint32_t)s.w;
#pragma unroll 1
        for (int32_t row0 = (int32_t)threadIdx.x >> j.row_bits; row0 < rows;
             row0 += AT_ONCE * apart) {
            uint32_t words[AT_ONCE];
            bool is_inside[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int32_t row = row0 + i * apart;
                const int32_t plane = (int32_t)rows_divide((uint32_t)row, j.in_h);
                const int32_t y = c.y + row - plane * (int32_t)j.in_h.by;
                is_inside[i] = is_column && row < rows && (uint32_t)y < (uint32_t)s.h &&
                               c.plane + plane < j.d.w.n;
                const uint8_t *const from =
                    image + ((c.plane + plane) * s.xs[1] + y * s.xs[2] + x) * SIZE<DTYPE>;
                words[i] = 0;
                if (is_inside[i]) {
                    if (WORD || DTYPE == QN_F32)
                        words[i] = __ldg((const uint32_t *)from);
                    else if (SIZE<DTYPE> == 2)
                        words[i] = __ldg((const uint16_t *)from);
                    else
                        words[i] = __ldg(from);
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int32_t row = row0 + i * apart;
                float *const to = tile + row * j.ld + x - c.x;
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (row < rows && x + e >= c.x && x + e < ends)
                        to[e] = is_inside[i] ? value_of<DTYPE>(j, words[i], e) : 0.0f;
            }
        }
    }
}

ROWS_DEVICE void stage_any(const struct planes_job &j, const struct corner &c, float *tile)
{
    switch (j.d.source.dtype) {
    case QN_F32:
        stage<QN_F32, 0>(j, c, tile);
        break;
    case QN_F16:
        if (j.is_word)
            stage<QN_F16, 1>(j, c, tile);
        else
            stage<QN_F16, 0>(j, c, tile);
        break;
    case QN_BF16:
        if (j.is_word)
            stage<QN_BF16, 1>(j, c, tile);
        else
            stage<QN_BF16, 0>(j, c, tile);
        break;
    default:
        if (j.is_word)
            stage<DEPTHWISE_BYTES, 1>(j, c, tile);
        else
            stage<DEPTHWISE_BYTES, 0>(j, c, tile);
    }
}

/* weights: [planes][line of the kernel][taps_ld]. */
template <int KIND>
ROWS_DEVICE void keep_weights(const struct planes_job &j, int32_t first, float *weights)
{
    const struct qni_cuda_source &s = j.d.source;
    const int32_t taps = (int32_t)s.k, n = min(j.planes, j.d.w.n - first);
    for (int32_t i = (int32_t)threadIdx.x; i < taps * n; i += THREADS) {
        const int32_t plane = i / taps, t = i - plane * taps;
        const uint32_t bits = weight_at<KIND>(j.d, first + plane, t);
        const int32_t column = column_of(s, t), ky = column / s.kw;
        weights[(plane * s.kh + ky) * j.taps_ld + column - ky * s.kw] =
            KIND == DEPTHWISE_FLOATS ? __uint_as_float(bits) : (float)(int32_t)bits;
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* N floats from a place that 16 bytes divide. */
template <int N> ROWS_DEVICE void read_floats(const float *from, float (&v)[N])
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        if (i + 2 < N) {
            const float4 four = *(const float4 *)(from + i);
            v[i] = four.x;
            v[i + 1] = four.y;
            v[i + 2] = four.z;
            if (i + 3 < N)
                v[i + 3] = four.w;
        } else if (i + 1 < N) {
            const float2 two = *(const float2 *)(from + i);
            v[i] = two.x;
            v[i + 1] = two.y;
        } else {
            v[i] = from[i];
        }
    }
}

template <int K, int S, int P, int R>
ROWS_DEVICE void sum_window(const struct planes_job &j, const float *from, const float *weights,
                            float (&v)[R][P])
{
    constexpr int N = (P - 1) * S + K, LD = (K + 3) / 4 * 4;
#pragma unroll
    for (int r = 0; r < (R - 1) * S + K; r++) {
        float x[N];
        read_floats<N>(from + r * j.ld, x);
#pragma unroll
        for (int o = 0; o < R; o++) {
            const int ky = r - o * S;
            if (ky < 0 || ky >= K)
                continue;
            float w[K];
            read_floats<K>(weights + ky * LD, w);
#pragma unroll
            for (int kx = 0; kx < K; kx++)
#pragma unroll
                for (int q = 0; q < P; q++)
                    v[o][q] = __fmaf_rn(x[q * S + kx], w[kx], v[o][q]);
        }
    }
}

template <int KIND, int K, int S, int P, int R>
ROWS_DEVICE void code_window(const struct planes_job &j, int32_t output, const float *from,
                             const float *weights, float (&v)[R][P])
{
    constexpr int N = (P - 1) * S + K, LD = (K + 3) / 4 * 4;
    const struct group_scale g = exact_scale_of(j.d.w, output, 0);
    float w[K * K], sum_w = 0.0f;
#pragma unroll
    for (int t = 0; t < K * K; t++) {
        w[t] = weights[t / K * LD + t % K];
        sum_w = __fadd_rn(sum_w, w[t]);
    }
#pragma unroll 1
    for (int r = 0; r < R; r++) {
        float x[K][N];
#pragma unroll
        for (int y = 0; y < K; y++)
            read_floats<N>(from + (r * S + y) * j.ld, x[y]);
#pragma unroll
        for (int q = 0; q < P; q++) {
            float patch[K * K];
#pragma unroll
            for (int t = 0; t < K * K; t++)
                patch[t] = x[t / K][q * S + t % K];
            const float one = coded_patch<KIND, K * K>(
                patch, w, g, sum_w, j.d.source.symmetric != 0, j.d.w.shift != QNI_CUDA_SHIFT_NONE);
#pragma unroll
            for (int o = 0; o < R; o++)
                v[o][q] = o == r ? one : v[o][q];
        }
    }
}

/* Any kernel; P is 1. */
template <int R>
ROWS_DEVICE void sum_taps(const struct planes_job &j, const float *from, const float *weights,
                          float (&v)[R][1])
{
    const struct qni_cuda_source &s = j.d.source;
    const int32_t down = s.stride[0] * j.ld;
    for (int32_t ky = 0; ky < s.kh; ky++)
        for (int32_t kx = 0; kx < s.kw; kx++) {
            const float w = weights[ky * j.taps_ld + kx];
            const float *const at = from + ky * s.dilation[0] * j.ld + kx * s.dilation[1];
#pragma unroll
            for (int r = 0; r < R; r++)
                v[r][0] = __fmaf_rn(at[r * down], w, v[r][0]);
        }
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Outputs [y, y + R) x [x, x + P) of a plane. */
struct patch {
    int64_t image;
    int32_t plane, y, x, lines, columns; /* that exist */
};

/* What needs a place, many instructions or single stores: element by element, through shared
 * memory, so that it is there once. slots: [R * P][THREADS]. False: all is stored. */
template <int P, int R>
ROWS_DEVICE bool finish_slowly(const struct planes_job &j, const struct patch &p, bool is_vector,
                               float *slots, float (&v)[R][P])
{
    const struct qni_cuda_sink &out = j.d.out;
    float *const own = slots + threadIdx.x;
#pragma unroll
    for (int i = 0; i < R * P; i++)
        own[i * THREADS] = v[i / P][i % P];
#pragma unroll 1
    for (int32_t i = 0; i < R * P; i++) {
        if (i / P >= p.lines || i % P >= p.columns)
            continue;
        const int32_t y = p.y + i / P, x = p.x + i % P;
        const int64_t row = (p.image * j.d.source.oh + y) * j.d.source.ow + x;
        const struct epilogue_row at = {0,
                                        p.image * out.residual_stride[0] +
                                            y * out.residual_stride[1] + x * out.residual_stride[2],
                                        out.row_scale != NULL ? out.row_scale[row] : 1.0f};
        float one = own[i * THREADS];
        if (!j.out.is_light && out.y_dtype != QN_I32)
            one = epilogue_steps(out, at, p.plane, 0, one);
        own[i * THREADS] = one;
        if (!is_vector)
            store_one(out,
                      p.image * out.stride[0] + y * out.stride[1] + x * out.stride[2] +
                          p.plane * out.stride[3],
                      one);
    }
    if (!is_vector)
        return false;
#pragma unroll
    for (int i = 0; i < R * P; i++)
        v[i / P][i % P] = own[i * THREADS];
    return true;
}

/* Steps are done. VECTOR: the P columns of a line at once. */
template <int TYPE, int VECTOR, int P, int R>
ROWS_DEVICE void store_all(const struct planes_job &j, const struct patch &p,
                           const float (&v)[R][P])
{
    constexpr int64_t SIZE_Y = TYPE == QN_F32 ? 4 : TYPE == DEPTHWISE_BYTES ? 1 : 2;
    const struct qni_cuda_sink &out = j.d.out;
    uint8_t *to =
        (uint8_t *)out.y +
        (p.image * out.stride[0] + p.y * out.stride[1] + p.x + p.plane * out.stride[3]) * SIZE_Y;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if constexpr (VECTOR != 0)
            if (r < p.lines)
                store_vector<TYPE, P>(out, to, v[r]);
#pragma unroll
        for (int q = 0; q < P && !VECTOR; q++)
            if (r < p.lines && q < p.columns)
                store_single<TYPE>(out, to + q * SIZE_Y, v[r][q]);
        to += out.stride[1] * SIZE_Y;
    }
}
template <int VECTOR, int P, int R>
ROWS_DEVICE void store_any(const struct planes_job &j, const struct patch &p,
                           const float (&v)[R][P])
{
    switch (j.d.out.y_dtype) {
    case QN_F16:
        store_all<QN_F16, VECTOR, P, R>(j, p, v);
        break;
    case QN_BF16:
        store_all<QN_BF16, VECTOR, P, R>(j, p, v);
        break;
    case QN_F32:
    case QN_I32:
        store_all<QN_F32, VECTOR, P, R>(j, p, v);
        break;
    default:
        store_all<DEPTHWISE_BYTES, VECTOR, P, R>(j, p, v);
    }
}

template <int KIND, int P, int R>
ROWS_DEVICE void finish(const struct planes_job &j, const struct patch &p, float *slots,
                        float (&v)[R][P])
{
    const struct qni_cuda_sink &out = j.d.out;
    const bool is_stepped = !j.out.is_bare && j.out.is_light && out.y_dtype != QN_I32;
    if (KIND == DEPTHWISE_GIVEN || is_stepped) {
        const struct depthwise_steps steps = steps_of<KIND>(j.d, p.plane);
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
    if (!j.out.is_light || out.stride[2] != 1)
        if (!finish_slowly<P, R>(j, p, out.stride[2] == 1, slots, v))
            return;
    if constexpr (P > 1)
        if (j.out.is_vector) {
            store_any<1, P, R>(j, p, v);
            return;
        }
    store_any<0, P, R>(j, p, v);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* K 0: any kernel, tap by tap. Shared memory: the tile, the weights, slots of steps. */
template <int KIND, int K, int S, int P, int R>
static __global__ void __launch_bounds__(THREADS, KIND >= DEPTHWISE_ROW ? 2 : 4)
    planes_kernel(const __grid_constant__ struct planes_job j)
{
    extern __shared__ float4 shared[];
    float *const tile = (float *)shared;
    const int32_t tile_floats = j.planes * (int32_t)j.in_h.by * j.ld;
    float *const weights = tile + tile_floats;
    const struct qni_cuda_source &s = j.d.source;
    float *const slots = weights + j.planes * s.kh * j.taps_ld;
    rows_release();
    const uint32_t number = blockIdx.x, line = rows_divide(number, j.tiles_x);
    const uint32_t of_image = rows_divide(line, j.tiles_y);
    const uint32_t image = rows_divide(of_image, j.channels);
    const int32_t first = (int32_t)(of_image - image * j.channels.by) * j.planes;
    const int32_t out_x = (int32_t)(number - line * j.tiles_x.by) * j.tile_w;
    const int32_t out_y = (int32_t)(line - of_image * j.tiles_y.by) * j.tile_h;
    rows_wait();
    const struct corner c = {image, first, out_y * s.stride[0] - s.pad[0],
                             out_x * s.stride[1] - s.pad[1]};
    keep_weights<KIND>(j, first, weights);
    stage_any(j, c, tile);
    __syncthreads();
    const int32_t items = min(j.planes, j.d.w.n - first) * (int32_t)j.items.by;
    for (int32_t i = (int32_t)threadIdx.x; i < items; i += THREADS) {
        const uint32_t plane = rows_divide((uint32_t)i, j.items);
        const uint32_t within = (uint32_t)i - plane * j.items.by;
        const uint32_t down = rows_divide(within, j.strips_x);
        const int32_t y = (int32_t)down * R;
        const int32_t x = (int32_t)(within - down * j.strips_x.by) * P;
        const struct patch p = {image,
                                first + (int32_t)plane,
                                out_y + y,
                                out_x + x,
                                min(j.tile_h - y, (int32_t)s.oh - out_y - y),
                                min(j.tile_w - x, (int32_t)s.ow - out_x - x)};
        const float *const from =
            tile + ((int32_t)plane * (int32_t)j.in_h.by + y * s.stride[0]) * j.ld + x * s.stride[1];
        const float *const w = weights + (int32_t)plane * s.kh * j.taps_ld;
        float v[R][P] = {};
        if constexpr (K == 0)
            sum_taps<R>(j, from, w, v);
        else if constexpr (KIND == DEPTHWISE_FLOATS || KIND == DEPTHWISE_GIVEN)
            sum_window<K, S, P, R>(j, from, w, v);
        else
            code_window<KIND, K, S, P, R>(j, p.plane, from, w, v);
        if (p.lines > 0 && p.columns > 0)
            finish<KIND, P, R>(j, p, slots, v);
    }
}

/* ---- which kernel ---------------------------------------------------------------------------- */

struct variant {
    const void *kernel;
    int32_t p;
};
#define VARIANT(kind, k, s, p)                                                                     \
    {                                                                                              \
        (const void *)planes_kernel<kind, k, s, p, LINES>, p                                       \
    }
#define SUMMED(kind)                                                                               \
    {                                                                                              \
        {VARIANT(kind, 3, 1, 4), VARIANT(kind, 3, 2, 4)},                                          \
            {VARIANT(kind, 5, 1, 4), VARIANT(kind, 5, 2, 4)},                                      \
            {VARIANT(kind, 7, 1, 4), VARIANT(kind, 7, 2, 4)}, {VARIANT(kind, 0, 1, 1), {NULL, 0}}, \
    }
#define CODED(kind)                                                                                \
    {                                                                                              \
        {VARIANT(kind, 3, 1, 4), VARIANT(kind, 3, 2, 4)},                                          \
            {VARIANT(kind, 5, 1, 4), VARIANT(kind, 5, 2, 4)},                                      \
    }
enum { ANY = 3, SIZES = 4 }; /* 3 x 3, 5 x 5, 7 x 7, any */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Outputs of a tile: whole planes, several if they are small; else some lines of one. */
static void cut(struct planes_job *j, int32_t p)
{
    const struct qni_cuda_source *const s = &j->d.source;
    const int64_t reach_y = (s->kh - 1) * s->dilation[0] + 1;
    const int64_t reach_x = (s->kw - 1) * s->dilation[1] + 1;
    j->tile_w = (int32_t)(s->ow <= 512 ? s->ow : 256);
    const int64_t columns = ceil_div(j->tile_w, p) * p;
    j->in_w = (int32_t)((columns - 1) * s->stride[1] + reach_x);
    j->ld = (j->in_w + 3) / 4 * 4;
    const int64_t of_line = j->ld * (int64_t)sizeof(float);
    const int64_t whole = ceil_div(s->oh, LINES) * LINES;
    for (int64_t bytes = TILE_BYTES;; bytes = TILE_MOST) {
        const int64_t lines = (bytes / of_line - reach_y) / s->stride[0] + 1;
        const int64_t fit = lines >= whole ? whole : lines / LINES * LINES;
        j->tile_h = (int32_t)(fit < 0 ? 0 : fit);
        if (j->tile_h >= 16 || j->tile_h == whole || bytes == TILE_MOST)
            break;
    }
    if (j->tile_h == 0)
        return;
    const int64_t in_h = (j->tile_h - 1) * s->stride[0] + reach_y;
    j->in_h = rows_divisor_of(in_h);
    j->strips_x = rows_divisor_of(columns / p);
    const int64_t items = columns / p * (j->tile_h / LINES);
    j->items = rows_divisor_of(items);
    int64_t planes = j->tile_h == whole && j->tile_w == s->ow ? ITEMS / items : 1;
    const int64_t fit = TILE_BYTES / (in_h * of_line);
    planes = planes > fit ? fit : planes;
    j->planes = (int32_t)(planes < 1 ? 1 : planes > j->d.w.n ? j->d.w.n : planes);
}

/* Lines of x that 4-byte loads may begin at. */
static bool is_word(const struct qni_cuda_source *s)
{
    const int64_t each = 4 / depthwise_size_of(s->dtype);
    return (uintptr_t)s->x % 4 == 0 && s->w % each == 0 && s->xs[0] % each == 0 &&
           s->xs[1] % each == 0 && s->xs[2] % each == 0;
}

int32_t qni_cuda_depthwise_planes(const struct qni_cuda_depthwise *args,
                                  const struct qni_cuda_launch *launch)
{
    static const struct variant variants[4][SIZES][2] = {
        SUMMED(DEPTHWISE_FLOATS), SUMMED(DEPTHWISE_GIVEN), CODED(DEPTHWISE_ROW),
        CODED(DEPTHWISE_BLOCK)};
    const struct qni_cuda_source *const s = &args->source;
    const int32_t kind = depthwise_kind(args);
    const bool is_dilated = s->dilation[0] != 1 || s->dilation[1] != 1;
    const int32_t size = is_dilated ? ANY : depthwise_size(s);
    const struct variant *const v = &variants[kind][size][size == ANY ? 0 : s->stride[0] - 1];
    /* 7 x 7 outputs of 3 x 3, f16: 15.0 us, the general kernel 12.8: less to read than to stage. */
    const bool is_tiny = kind == DEPTHWISE_FLOATS && s->k <= 9 && s->oh * s->ow <= 64;
    if (v->kernel == NULL || s->xs[3] != 1 || s->k > TAPS_MAX || is_tiny)
        return DEPTHWISE_PASS;
    struct planes_job j = {};
    j.d = *args;
    cut(&j, v->p);
    if (j.tile_h == 0)
        return DEPTHWISE_PASS;
    const int64_t tiles_y = ceil_div(s->oh, j.tile_h), tiles_x = ceil_div(s->ow, j.tile_w);
    const int64_t channels = ceil_div(args->w.n, j.planes);
    j.channels = rows_divisor_of(channels);
    j.tiles_y = rows_divisor_of(tiles_y);
    j.tiles_x = rows_divisor_of(tiles_x);
    j.row_bits = 5;
    j.is_word = is_word(s);
    const int64_t loads = j.is_word ? j.ld * depthwise_size_of(s->dtype) / 4 + 1 : j.ld;
    while (j.row_bits > 2 && (1 << (j.row_bits - 1)) >= loads)
        j.row_bits--;
    j.taps_ld = (s->kw + 3) / 4 * 4;
    j.flip = s->dtype == QN_U8 ? 0x80808080u : 0u;
    j.out = depthwise_out_of(&args->out);
    /* runs of P outputs end where lines do */
    j.out.is_vector = v->p > 1 && s->ow % v->p == 0 && depthwise_is_aligned(&args->out, 2, v->p);
    const int64_t slots =
        j.out.is_light && args->out.stride[2] == 1 ? 0 : (int64_t)v->p * LINES * THREADS;
    const int64_t bytes =
        4 * ((int64_t)j.planes * j.in_h.by * j.ld + (int64_t)j.planes * s->kh * j.taps_ld + slots);
    const int64_t grid = args->m / (s->oh * s->ow) * channels * tiles_y * tiles_x;
    if (grid > INT32_MAX / 2 || bytes > ROWS_SHARED)
        return DEPTHWISE_PASS;
    return rows_launch_shared(v->kernel, grid, dim3(THREADS), (size_t)bytes, &j, launch);
}
