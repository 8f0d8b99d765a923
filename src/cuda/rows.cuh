/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels that read x share: where the element of a packed position lies (a row of a
 * matrix, or the patch of an output pixel), and the quantizer of docs/numerics.md:
 *
 *     position --groups--> canonical position --act-order--> column --tap, channel--> element of x
 *     symmetric     inv = 127 / amax            code = rint(x * inv)
 *     asymmetric    h = hi/2 - lo/2, inv = 255 / h    code = rint((x/2 - lo/2) * inv) - 128
 *
 * No code is clamped: |x| <= amax, so |fl(x inv)| <= 127 (1 + 2^-24)^2 < 127.5; and rounding is
 * monotone, so 0 <= fl(x/2 - lo/2) <= h and the product stays below 255.5. Every step is written as
 * an intrinsic, so that no compiler flag fuses two of them. */
#ifndef QNI_CUDA_ROWS_CUH
#define QNI_CUDA_ROWS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../base/exact.h"
#include "kernel.h"

#define ROWS_DEVICE static __device__ __forceinline__

/* ---- division by a constant of the launch ---------------------------------------------------- */

/* n / by for n < 2^31: shift = ceil(log2 by), times = floor(2^32 (2^shift - by) / by) + 1, and the
 * quotient is (mulhi(n, times) + n) >> shift (Granlund and Montgomery). */
struct rows_divisor {
    uint32_t by, times, shift;
};

static inline struct rows_divisor rows_divisor_of(int64_t by)
{
    struct rows_divisor d = {1, 1, 0};
    if (by <= 1 || by > INT32_MAX)
        return d;
    d.by = (uint32_t)by;
    while ((UINT64_C(1) << d.shift) < d.by)
        d.shift++;
    const uint64_t excess = (UINT64_C(1) << d.shift) - d.by;
    d.times = (uint32_t)((excess << 32) / d.by + 1);
    return d;
}

ROWS_DEVICE uint32_t rows_divide(uint32_t n, const struct rows_divisor &d)
{
    return (__umulhi(n, d.times) + n) >> d.shift;
}

/* ---- the work of a launch -------------------------------------------------------------------- */

/* What a kernel is told: the caller's source and what the host derived from it. A span is what has
 * one team of threads: a row (Q8), a segment (Q8B, codes that are given) or a group. */
struct rows_job {
    struct qni_cuda_source s;
    struct rows_divisor group, segment, ci, kw, channels, last_channels, oh, ow, chunks;
    int64_t n_rows; /* of all parts */
    int32_t segments_per_group;
    int32_t spans, span_units, spans_per_group; /* of a row; within a group */
    int32_t team;                               /* threads of a span */
    int32_t is_plain; /* a matrix whose positions are canonical ones as they are: groups of whole
                         units, or one */
    int32_t width; /* lanes of a segment (or group, for totals) that is a power of two and aligned
                      throughout; 0: it is not */
    /* qn_quantize_rows(): codes where their columns are, facts with strides of their own */
    int32_t is_natural;
    uint32_t flip; /* 0x80808080: u8, whose offset is that of code 0 */
    int64_t ld_sum, ld_scale, ld_offset;
    uint8_t *a;
    int32_t *sum;
    float *scale, *offset, *total, *row_scale;
};

/* ---- planes of bf16 -------------------------------------------------------------------------- */

/* The bf16 next to v, in the upper half of a word; what is finite stays so: beyond the largest bf16
 * it is cut. What it leaves of v is exact in f32, at most 2^-9 |v|. */
ROWS_DEVICE uint32_t rows_upper(float v)
{
    const uint32_t bits = __float_as_uint(v), near = bits + 0x7fffu + (bits >> 16 & 1u);
    const bool is_cut =
        ((bits & 0x7f800000u) == 0x7f800000u) | ((near & 0x7f800000u) == 0x7f800000u);
    return (is_cut ? bits : near) & 0xffff0000u;
}

/* ---- where x is ------------------------------------------------------------------------------ */

/* A row of the product: its first element; of an image, where tap (0, 0) would read. */
struct rows_row {
    int64_t base;
    int32_t y, x;
    bool is_valid;
};

ROWS_DEVICE int64_t rows_part_of(const struct rows_job &j, int64_t *row)
{
    if (j.s.parts == 1)
        return 0;
    const int64_t part = *row / j.s.n_rows;
    *row -= part * j.s.n_rows;
    return part;
}

/* Of a matrix: which row of the product is prepared as this one; negative: none. */
ROWS_DEVICE int64_t rows_number(const struct rows_job &j, int64_t row)
{
    if (j.s.order == NULL)
        return row + j.s.row;
    const int32_t from = j.s.order[row];
    return from < 0 ? -1 : from + j.s.row;
}

/* Is there a row, and of the expert that is asked for, if one is? */
ROWS_DEVICE bool rows_is_wanted(const struct rows_job &j, int64_t row)
{
    if (j.s.order == NULL && j.s.ids == NULL && j.s.offsets == NULL)
        return true;
    row = rows_number(j, row);
    if (row < 0)
        return false;
    if (j.s.ids != NULL)
        return __ldg(j.s.ids + row) == j.s.expert;
    return j.s.offsets == NULL ||
           (row >= __ldg(j.s.offsets + j.s.expert) && row < __ldg(j.s.offsets + j.s.expert + 1));
}

/* row: of all parts. */
ROWS_DEVICE struct rows_row rows_row_of(const struct rows_job &j, int64_t row)
{
    const struct qni_cuda_source &s = j.s;
    struct rows_row r = {0, 0, 0, true};
    const int64_t part = rows_part_of(j, &row);
    if (!s.is_image) {
        row = rows_number(j, row);
        if (s.index != NULL) {
            const int32_t from = s.index[row];
            r.is_valid = from >= 0 && from < s.x_rows;
            row = r.is_valid ? from : 0;
        }
        r.base = row * s.ldx;
        return r;
    }
    int64_t line, image;
    row += s.row;
    if (row <= INT32_MAX) {
        line = rows_divide((uint32_t)row, j.ow);
        image = rows_divide((uint32_t)line, j.oh);
    } else {
        line = row / s.ow;
        image = line / s.oh;
    }
    const int32_t x = (int32_t)(row - line * s.ow), y = (int32_t)(line - image * s.oh);
    r.base = image * s.xs[0] + part * s.ci * s.xs[1];
    r.y = s.transposed ? y + s.pad[0] : y * s.stride[0] - s.pad[0];
    r.x = s.transposed ? x + s.pad[1] : x * s.stride[1] - s.pad[1];
    return r;
}

/* The input that a tap reads on one axis, or -1: a hole or padding. */
ROWS_DEVICE int32_t rows_input(const struct qni_cuda_source &s, int32_t axis, int32_t origin,
                               int32_t tap)
{
    const int32_t reach = tap * s.dilation[axis];
    int32_t at = s.transposed ? origin - reach : origin + reach;
    if (s.transposed && s.stride[axis] > 1) {
        if (at < 0 || at % s.stride[axis] != 0)
            return -1;
        at /= s.stride[axis];
    }
    const int32_t limit = (int32_t)(axis == 0 ? s.h : s.w);
    return at < limit ? at : -1; /* below 0 it says so itself */
}

/* A packed position: its column, and its element unless that lies outside. n: real positions from
 * here to the end of the group (or of a plain row); none: padding. */
struct rows_place {
    int64_t at;
    int32_t column, n;
    bool is_inside;
};

ROWS_DEVICE int32_t rows_group_of(const struct rows_job &j, int32_t unit)
{
    const int32_t g = (int32_t)rows_divide((uint32_t)unit, j.group);
    return g < j.s.n_groups ? g : j.s.n_groups - 1;
}

/* The canonical position, before act-order, of position i of group g. */
ROWS_DEVICE int32_t rows_canonical(const struct rows_job &j, int32_t g, int32_t i)
{
    const struct qni_cuda_source &s = j.s;
    if (!s.by_channel)
        return g * (int32_t)s.group_len + i;
    const struct rows_divisor &d = g + 1 == s.n_groups ? j.last_channels : j.channels;
    const int32_t tap = (int32_t)rows_divide((uint32_t)i, d);
    return tap * s.ci + g * s.group_channels + i - tap * (int32_t)d.by;
}

ROWS_DEVICE struct rows_place rows_place_of(const struct rows_job &j, const struct rows_row &row,
                                            int32_t position)
{
    const struct qni_cuda_source &s = j.s;
    struct rows_place p = {0, 0, 0, false};
    if (j.is_plain) {
        p.n = max((int32_t)s.k - position, 0);
        p.column = position;
        if (s.perm != NULL && p.n > 0)
            p.column = __ldg(s.perm + position);
        p.at = row.base + p.column;
        p.is_inside = row.is_valid;
        return p;
    }
    const int32_t g = rows_group_of(j, position >> 5);
    const int32_t i = position - g * s.group_units * QNI_CUDA_UNIT;
    p.n = (int32_t)(g + 1 == s.n_groups ? s.last_len : s.group_len) - i;
    if (p.n <= 0) {
        p.n = 0;
        return p;
    }
    p.column = rows_canonical(j, g, i);
    if (s.perm != NULL)
        p.column = s.perm[p.column];
    p.at = row.base + p.column;
    p.is_inside = row.is_valid;
    if (!s.is_image)
        return p;
    const int32_t tap = (int32_t)rows_divide((uint32_t)p.column, j.ci);
    const int32_t channel = p.column - tap * s.ci;
    const int32_t ky = (int32_t)rows_divide((uint32_t)tap, j.kw);
    const int32_t y = rows_input(s, 0, row.y, ky), x = rows_input(s, 1, row.x, tap - ky * s.kw);
    p.at = row.base + y * s.xs[2] + x * s.xs[3] + channel * s.xs[1];
    p.is_inside = y >= 0 && x >= 0;
    return p;
}

ROWS_DEVICE float rows_element(const void *x, int32_t dtype, int64_t at)
{
    if (dtype == QN_F32)
        return __ldg((const float *)x + at);
    const uint16_t bits = __ldg((const uint16_t *)x + at);
    return dtype == QN_F16 ? __half2float(__ushort_as_half(bits))
                           : __uint_as_float((uint32_t)bits << 16);
}

/* The value that is multiplied; 0 outside. */
ROWS_DEVICE float rows_value(const struct rows_job &j, const struct rows_place &p)
{
    float v = p.n > 0 && p.is_inside ? rows_element(j.s.x, j.s.dtype, p.at) : 0.0f;
    if (p.n > 0 && j.s.prescale != NULL)
        v = __fmul_rn(v, j.s.prescale[p.column]);
    return v;
}

/* A code that is given, as int8; outside the image that of a zero. */
ROWS_DEVICE int32_t rows_given(const struct rows_job &j, const struct rows_place &p)
{
    if (p.n <= 0)
        return 0;
    if (!p.is_inside)
        return j.s.is_image ? j.s.x_zero : 0;
    const int32_t code = __ldg((const int8_t *)j.s.x + p.at);
    return j.s.dtype == QN_U8 ? (int8_t)(code ^ 0x80) : code;
}

/* The segment of a unit; that of padding behind the last group is past the end. */
ROWS_DEVICE int32_t rows_segment_of(const struct rows_job &j, int32_t unit)
{
    const int32_t g = rows_group_of(j, unit);
    const int32_t within = unit - g * j.s.group_units;
    return g * j.segments_per_group + (int32_t)rows_divide((uint32_t)within, j.segment);
}

/* The units [first, first + n) of a span; what lies behind the last group belongs to the last. */
ROWS_DEVICE void rows_span(const struct rows_job &j, int32_t span, int32_t *first, int32_t *n)
{
    const int32_t last = j.s.n_groups - 1, g = min(span / j.spans_per_group, last);
    *first = g * j.s.group_units + (span - g * j.spans_per_group) * j.span_units;
    if (j.spans == 1)
        *first = 0;
    *n = span + 1 == j.spans ? j.s.units - *first
                             : min(j.span_units, (g + 1) * j.s.group_units - *first);
}

/* ---- the quantizer --------------------------------------------------------------------------- */

/* As integers that are ordered like the floats: lo and hi; symmetric: hi alone, the bits of the
 * largest magnitude. A NaN comes out above infinity. */
struct rows_range {
    int32_t lo, hi;
};
struct rows_scaling {
    float scale, offset, inv, half_lo, lo;
};

ROWS_DEVICE int32_t rows_ordered(int32_t bits)
{
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

/* The larger, or the smaller; NaN if either is. */
ROWS_DEVICE float rows_max(float a, float b)
{
#if __CUDA_ARCH__ >= 800
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
#else
    return b <= a || a != a ? a : b;
#endif
}
ROWS_DEVICE float rows_min(float a, float b)
{
#if __CUDA_ARCH__ >= 800
    float m;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
#else
    return b >= a || a != a ? a : b;
#endif
}

/* The extremes that a thread has seen. */
struct rows_extremes {
    float lo, hi;
};
ROWS_DEVICE struct rows_extremes rows_no_extremes(bool symmetric)
{
    const float infinity = __int_as_float(0x7f800000);
    const struct rows_extremes e = {infinity, symmetric ? 0.0f : -infinity};
    return e;
}
ROWS_DEVICE void rows_see(struct rows_extremes *e, float v, bool symmetric)
{
    if (!symmetric)
        e->lo = rows_min(e->lo, v);
    e->hi = rows_max(e->hi, symmetric ? fabsf(v) : v);
}
ROWS_DEVICE struct rows_range rows_range_of(const struct rows_extremes &e)
{
    struct rows_range r = {rows_ordered(__float_as_int(e.lo)), rows_ordered(__float_as_int(e.hi))};
    r.hi = e.hi != e.hi ? INT32_MAX : r.hi;
    return r;
}

/* Over the lanes of a group of `width` lanes of the warp. */
ROWS_DEVICE struct rows_range rows_warp_range(struct rows_range r, int32_t width)
{
    for (int32_t step = width / 2; step > 0; step /= 2) {
        r.lo = min(r.lo, __shfl_xor_sync(0xffffffffu, r.lo, step));
        r.hi = max(r.hi, __shfl_xor_sync(0xffffffffu, r.hi, step));
    }
    return r;
}
ROWS_DEVICE int32_t rows_warp_sum(int32_t v, int32_t width)
{
    for (int32_t step = width / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}
ROWS_DEVICE float rows_warp_total(float v, int32_t width)
{
    for (int32_t step = width / 2; step > 0; step /= 2)
        v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

ROWS_DEVICE struct rows_scaling rows_scaling_of(const struct rows_range &r, bool symmetric)
{
    struct rows_scaling s = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    const int32_t minus_infinity = (int32_t)0x807fffff; /* ordered */
    if (r.hi >= 0x7f800000 || (!symmetric && r.lo <= minus_infinity)) {
        s.scale = __int_as_float(0x7fc00000);
        return s;
    }
    if (symmetric) {
        const float amax = __int_as_float(r.hi);
        if (amax >= 0x1p-120f) {
            s.scale = __fdiv_rn(amax, 127.0f);
            s.inv = __fdiv_rn(127.0f, amax);
        }
        return s;
    }
    const bool is_empty = r.lo > r.hi;
    s.lo = is_empty ? 0.0f : __fadd_rn(__int_as_float(rows_ordered(r.lo)), 0.0f);
    const float hi = is_empty ? 0.0f : __fadd_rn(__int_as_float(rows_ordered(r.hi)), 0.0f);
    s.half_lo = __fmul_rn(s.lo, 0.5f);
    const float h = __fsub_rn(__fmul_rn(hi, 0.5f), s.half_lo);
    s.offset = s.lo;
    if (h >= 0x1p-120f) {
        s.scale = __fdiv_rn(h, 127.5f);
        s.inv = __fdiv_rn(255.0f, h);
        s.offset = __fmaf_rn(128.0f, s.scale, s.lo);
    }
    return s;
}

/* A float whose lowest byte is the code of v: adding 1.5 * 2^23 leaves the integer, rounded to
 * even, in the last bits; the 128 less of the asymmetric code is even, and so turns no tie. What
 * comes out where inv is 0 is no code: rows_code_mask(). halves_exactly: v / 2 is a float, as that
 * of every f16 and bf16 is; then one fma is the two steps. */
ROWS_DEVICE uint32_t rows_encode(float v, const struct rows_scaling &s, bool symmetric,
                                 bool halves_exactly)
{
    if (symmetric)
        return __float_as_uint(__fadd_rn(__fmul_rn(v, s.inv), 0x1.8p23f));
    const float above =
        halves_exactly ? __fmaf_rn(v, 0.5f, -s.half_lo) : __fsub_rn(__fmul_rn(v, 0.5f), s.half_lo);
    return __float_as_uint(__fadd_rn(__fmul_rn(above, s.inv), 0x1.8p23f - 128.0f));
}
ROWS_DEVICE uint32_t rows_code_mask(const struct rows_scaling &s)
{
    return s.inv == 0.0f ? 0u : 0xffffffffu;
}
ROWS_DEVICE int32_t rows_add_bytes(uint32_t codes, int32_t sum)
{
    return __dp4a((int32_t)codes, 0x01010101, sum);
}

/* Real positions of `units` units of a row, from unit `first` of a group on. */
ROWS_DEVICE int32_t rows_count(const struct rows_job &j, const struct rows_row &row, int32_t first,
                               int32_t units)
{
    return min(rows_place_of(j, row, 32 * first).n, 32 * units);
}

/* Facts of a segment with `count` real positions. */
ROWS_DEVICE void rows_store_facts(const struct rows_job &j, const struct rows_scaling &s,
                                  int64_t row, int32_t segment, int32_t sum, int32_t count)
{
    if (j.sum != NULL)
        j.sum[row * j.ld_sum + segment] = j.flip != 0 ? sum + 128 * count : sum;
    j.scale[row * j.ld_scale + segment] = s.scale;
    if (j.offset != NULL)
        j.offset[row * j.ld_offset + segment] = j.flip != 0 ? s.lo : s.offset;
    if (j.total != NULL)
        j.total[row * j.ld_sum + segment] =
            __fmaf_rn(s.scale, (float)sum, __fmul_rn(s.offset, (float)count));
}

/* Where the code of a packed position lies in a row: byte 16 t + 4 s + j of its block, or, by step,
 * 16 s + 4 t + j. */
ROWS_DEVICE int32_t rows_byte_of(int32_t position, int32_t by_step)
{
    const int32_t in_step = position & 15, s = (position >> 4) & 3, t = (in_step & 7) >> 1;
    return (position & ~63) + (by_step ? 16 * s + 4 * t : 16 * t + 4 * s) + 2 * (in_step & 1) +
           (in_step >> 3);
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Programmatic dependent launch: what comes behind may begin; what lies before must be done
 * (weights may be read sooner). Both are nothing in a launch without it. */
ROWS_DEVICE void rows_release(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
ROWS_DEVICE void rows_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
ROWS_DEVICE void rows_begin(void)
{
    rows_release();
    rows_wait();
}

enum { ROWS_SHARED = 47 << 10 }; /* bytes of shared memory that a kernel has unasked for */

static inline int32_t rows_launch_shared(const void *kernel, int64_t grid, dim3 block,
                                         size_t shared_bytes, const void *args,
                                         const struct qni_cuda_launch *launch)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)launch->stream;
    if (shared_bytes > ROWS_SHARED)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)shared_bytes);
    config.attrs = &attribute;
    config.numAttrs = launch->pdl && launch->sm >= 90 ? 1 : 0;
    void *list[1] = {const_cast<void *>(args)};
    (void)cudaLaunchKernelExC(&config, kernel, list);
    return (int32_t)cudaGetLastError();
}
static inline int32_t rows_launch(const void *kernel, int64_t grid, dim3 block, const void *args,
                                  const struct qni_cuda_launch *launch)
{
    return rows_launch_shared(kernel, grid, block, 0, args, launch);
}

#endif
