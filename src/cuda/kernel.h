/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between the plain C of the CUDA backend and its kernels. Everything that crosses is
 * a plain struct of values and device pointers; a launcher checks nothing, allocates nothing, waits
 * for nothing, and returns what cudaGetLastError() said (0: launched).
 *
 *     source (matrix, gathered rows, patches of an image)
 *       --prepare--> rows in packed order: f16, planes of bf16, or int8 with its facts
 *       --matmul--> accumulators --epilogue--> y
 *
 * One order of codes serves every tensor-core instruction that the kernels use ("frag"). Codes of a
 * panel (16 outputs) lie block after block, a block being 64 packed positions = 4 steps of 16. Lane
 * l = 4 g + t of a warp (g = 0..7, t = 0..3) owns outputs g and g + 8 and, of step s, the positions
 *
 *     p(s, t, j) = 16 s + {2t, 2t + 8, 2t + 1, 2t + 9}[j]            j = 0..3
 *
 *   Q4FRAG, T4FRAG  512 bytes a block: lane l has the 16 bytes at 16 l; word s of them is step s;
 *                   nibble 2 j     = output g,     position p(s, t, j)
 *                   nibble 2 j + 1 = output g + 8, position p(s, t, j)
 *   Q8FRAG, T8FRAG  1024 bytes a block: two halves of 512 bytes (steps 0, 1 and 2, 3), in each lane
 *                   l has the 16 bytes at 16 l: words (step, output g), (step, output g + 8), (step
 *                   + 1, g), (step + 1, g + 8); byte j = position p(step, t, j)
 *
 * So, of a word w of Q4FRAG: w & 0x0f0f0f0f and (w >> 4) & 0x0f0f0f0f are the bytes of outputs g
 * and g + 8 (two registers of an int8 m16n8k32 A fragment, whose other two come from the next
 * word); and (w >> 4 i) & 0x000f000f, i = 0..3, is register i of the m16n8k16 (or wgmma) A fragment
 * in 16-bit halves, in the natural order of positions: x needs no shuffle there. For int8 products
 * x lies in the same order as the bytes do: QNI_CUDA_READS_Q8 below.
 *
 * Stored codes are unsigned: code + 8 or code + 128 for integers, the index for tables. Packed
 * positions are those of docs/layouts.md (every group padded to whole units of 32), with one unit
 * of padding behind if their number is odd; padding has the code of value 0 and x is 0 there. */
#ifndef QNI_CUDA_KERNEL_H
#define QNI_CUDA_KERNEL_H

#include <quern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { QNI_CUDA_UNIT = 32, QNI_CUDA_BLOCK = 64, QNI_CUDA_STEP = 16, QNI_CUDA_PANEL = 16 };
enum {
    QNI_CUDA_Q4FRAG = 0,
    QNI_CUDA_T4FRAG = 1,
    QNI_CUDA_Q8FRAG = 2,
    QNI_CUDA_T8FRAG = 3,
    QNI_CUDA_N_LAYOUTS = 4
};
/* What a matmul kernel reads as rows of x. */
enum {
    QNI_CUDA_READS_F16 = 0,  /* natural order: f16 x as it lies, or prepared */
    QNI_CUDA_READS_BF16 = 1, /* natural order: 1 to 3 planes that add up to x: qni_op_planes() */
    QNI_CUDA_READS_Q8 = 2,   /* int8, one scale a row (or given). Within each block of 64 positions
                                byte 16 t + 4 s + j holds position p(s, t, j); for wgmma byte
                                16 s + 4 t + j */
    QNI_CUDA_READS_Q8B = 3,  /* the same with scale, offset and sums per segment */
    QNI_CUDA_READS_E4M3 = 4, /* e4m3 in the order of Q8 for wgmma, one scale a row */
    QNI_CUDA_READS_E4M3B = 5 /* the same with one scale for each segment of 128 */
};
enum { QNI_CUDA_SHIFT_NONE = 0, QNI_CUDA_SHIFT_ZERO = 1, QNI_CUDA_SHIFT_OFFSET = 2 };

/* Where the sections of a blob of packed weights are (bytes from its begin; 0: absent) and how it
 * is cut. Tables of 16 outputs are in the order 0, 8, 1, 9, ..., 7, 15: lane group g finds its two
 * outputs side by side at 2 g. */
struct qni_cuda_weights {
    const uint8_t *blob; /* NULL where experts tell it */
    size_t codes;        /* [panels][blocks][512 or 1024] */
    size_t scale;        /* [panels][n_groups][16] f32 or f16 */
    size_t zero;         /* SHIFT_ZERO: [panels][n_groups][16] int8, w = scale * (value - zero) */
    size_t offset;       /* SHIFT_OFFSET: like scale, w = scale * value + offset */
    size_t sums;         /* [panels][n_segments][16] i32: sums of code values; of the segments that
                            the kernel's reads have */
    size_t counts;       /* [n_segments] i32, of Q8 */
    size_t table;        /* f32 [16] or [256] */
    int32_t layout, scale_is_f16, shift;
    int32_t table8_doubled; /* T4FRAG with int8 strategies: table8 holds doubled values */
    int32_t has_table8;
    int32_t table_is_short; /* T4FRAG: f16 and bf16 hold every value of the table */
    int8_t table8[16];
    int32_t parts;                     /* convolution groups, each with panels of its own; else 1 */
    int32_t panels;                    /* of a part */
    int32_t n;                         /* outputs of a part: the last panel may be short */
    int32_t units;                     /* of 32 positions; even */
    int32_t n_groups, group_units;     /* unit u belongs to group min(u / group_units, last) */
    int32_t n_segments, segment_units; /* of Q8 or Q8B. A group holds whole segments, its last
                                            may be short: segments_per_group each */
    int32_t segments_per_group;
    int32_t exponent; /* kernels that round weights: times 2^exponent (docs/numerics.md, "dense") */
};

/* Every weight of a grouped product; kernels take it by value. More experts: more launches. */
enum { QNI_CUDA_MAX_EXPERTS = 256 };
struct qni_cuda_experts {
    int32_t first, n; /* these experts of all; tiles of others are skipped */
    const uint8_t *blob[QNI_CUDA_MAX_EXPERTS];
    int8_t exponent[QNI_CUDA_MAX_EXPERTS]; /* each one's; the least is the weights' */
};

/* A convolution's rows, where nobody writes them out: row (b * oh + y) * ow + x is the channels of
 * pixels around (y, x), which the copy engine fetches from the image. Positions are 64
 * channels of a tap after another: for every stretch of `run` channels, for every tap. Around the
 * image there are zeros. */
struct qni_cuda_pixels {
    int32_t is_on;
    int32_t images, height, width, channels; /* of all parts and planes; of a pixel */
    int64_t pitch[3];                        /* bytes: image, row, column; multiples of 16 */
    int32_t oh, ow, kh, kw;
    int32_t stride[2], dilation[2], pad[2];
    int32_t ci, run;
    /* Part c of plane p begins at channel c * part_channels of image c * part_images + p *
     * plane_images. */
    int32_t part_channels, part_images, plane_images;
};

/* Rows as kernels read them; row r of part c is row c * part_rows + r of every array. */
struct qni_cuda_rows {
    const void *a;
    int64_t lda;          /* bytes, a multiple of 16; a is 16-byte aligned */
    int64_t plane_stride; /* bytes */
    int32_t planes;
    int32_t columns; /* elements that may be read of a row: units * 32, or fewer where x is
                               read as it lies; what lies behind counts as 0 */
    int64_t part_rows;
    const float *row_scale;              /* Q8, dynamic */
    const int32_t *sum;                  /* Q8, Q8B: [rows, ld_segment] sums of codes */
    const float *scale, *offset, *total; /* Q8B (offset NULL: symmetric); total also F16, BF16 with
                                            SHIFT_OFFSET: [rows, ld_segment] sums of x by group */
    int32_t ld_segment;
    int32_t x_zero;    /* int8-static */
    float x_scale;     /* int8-static; else 1 */
    int16_t lies;      /* a qn_dtype: rows of x as they lie, which the int8 decode kernels of sm_90
                       quantize as Q8 or Q8B says; 0: prepared */
    int16_t symmetric; /* of Q8B, where they lie */
    struct qni_cuda_pixels pixels;
};

/* Everything after the accumulator: docs/numerics.md, "Epilogue". Row i of a matrix is at i *
 * stride[2]; of an image i = (b * size[0] + r) * size[1] + c. */
struct qni_cuda_sink {
    void *y;
    int32_t y_dtype; /* i32: raw sums */
    int32_t is_image;
    int64_t size[2];
    int64_t stride[4];    /* elements: batch, row, column, output */
    const void *residual; /* NULL: none */
    int32_t residual_dtype, residual_after;
    int64_t residual_stride[4];
    const void *bias;   /* NULL: none */
    int32_t bias_dtype; /* f32, f16, bf16, i32 */
    const float *row_scale, *col_scale;
    const float *x_scale;   /* [x_rows], of rows of x: what their codes, as floats, are in units of;
                               NULL: 1 */
    const int32_t *x_index; /* row i of the product has that of x_index[i]; NULL: i */
    int64_t x_rows;
    int64_t bias_ld, col_ld; /* 0, or elements from expert to expert */
    int32_t act, has_clamp;
    float clamp_lo, clamp_hi;
    /* What few products have: a factor, residuals of codes, an act behind silu. */
    int32_t has_more;
    int32_t factor_dtype;
    const void *factor; /* NULL: none; f32, f16, bf16 */
    int64_t factor_stride;
    float leaky_slope, hard_slope, hard_shift;
    float residual_scale; /* of i8, u8 */
    int32_t residual_zero;
    float y_inv; /* i8, u8: fl(1 / y_scale) */
    int32_t y_zero;
    int32_t is_plain; /* nothing of all that: y is f32, f16 or bf16, rows contiguous */
};

/* A grouped product: rows sorted by expert and cut in tiles, both made on the device. */
struct qni_cuda_routes {
    const int32_t *tiles; /* [n_tiles][3]: expert, first in `rows`, count (0: nothing); NULL: rows
                             [0, m) of every part */
    const int32_t *rows;  /* [m]: rows of y, sorted. Rows of x are these, too; but kernels that read
                             them sorted have that of rows[i] as row i */
    int32_t n_tiles;      /* launched */
};

struct qni_cuda_product {
    struct qni_cuda_weights w;
    struct qni_cuda_rows x;
    struct qni_cuda_sink out;
    struct qni_cuda_routes routes;
    int64_t m;   /* rows of each part; grouped: of all experts together */
    int64_t row; /* number of the first row, for the sink: a chunk of a larger product */
};

/* How launches join a stream. */
struct qni_cuda_launch {
    void *stream; /* cudaStream_t */
    int32_t pdl;  /* 1: programmatic dependent launch, weights read before the wait */
    int32_t multiprocessors;
    int32_t sm; /* 75, 80, 86, 89, 90 */
};

typedef int32_t qni_cuda_matmul_fn(const struct qni_cuda_product *product,
                                   const struct qni_cuda_experts *experts,
                                   const struct qni_cuda_launch *launch);

/* Families of the cost model (matmul/tuning.inc). */
enum {
    QNI_CUDA_FAMILY_DECODE = 0,  /* streams the weights, few rows */
    QNI_CUDA_FAMILY_TILE = 1,    /* mma.sync */
    QNI_CUDA_FAMILY_PREFILL = 2, /* wgmma */
    QNI_CUDA_FAMILY_ROUNDED = 3, /* the same, weights rounded to the type of x: dense strategy */
    QNI_CUDA_N_FAMILIES = 4,
    QNI_CUDA_FAMILY_IMAGE = 4, /* PREFILL with rows fetched from an image; has its lines */
    QNI_CUDA_FAMILY_DENSE = 5  /* no row of the table, no line of tuning.inc: matmul/dense.h */
};

/* Tells whether a family reads rows that lie sorted. The copy engine brings x to wgmma kernels a
 * tile at a time: 128 rows by themselves would take it some twenty times as long as the products of
 * the tile. */
static inline bool qni_cuda_reads_sorted(int32_t family)
{
    return family == QNI_CUDA_FAMILY_PREFILL || family == QNI_CUDA_FAMILY_ROUNDED;
}

/* Whose lines of the cost model it has. */
static inline int32_t qni_cuda_cost_family(int32_t family)
{
    return family == QNI_CUDA_FAMILY_IMAGE ? QNI_CUDA_FAMILY_PREFILL : family;
}

static inline bool qni_cuda_reads_e4m3(int32_t reads)
{
    return reads == QNI_CUDA_READS_E4M3 || reads == QNI_CUDA_READS_E4M3B;
}

/* Shared memory of a multiprocessor, in KB; of GPUs that nobody here has seen, the least. */
static inline int32_t qni_cuda_shared_kb(int32_t sm)
{
    return sm == 90 ? 228 : sm == 80 ? 164 : 100;
}

/* A row of matmul/kernels.inc. */
struct qni_cuda_kernel {
    const char *name;
    qni_cuda_matmul_fn *fn;
    int32_t sm; /* least; 900 + 'a' kernels: 90 exactly */
    int32_t sm_exact;
    int32_t reads, layout;
    int32_t m_max;       /* of a tile: rows of a part or of one tile of routes; 0: any */
    int32_t mr;          /* rows it works on at a time: the tile of routes */
    int32_t family;      /* of the cost model */
    int32_t takes_total; /* 1: SHIFT_OFFSET needs x.total; 0: sums x itself */
};

#define QNI_CUDA_KERNEL(fn, sm, exact, reads, layout, m_max, mr, family, takes_total)              \
    qni_cuda_matmul_fn fn;
#include "matmul/kernels.inc"
#undef QNI_CUDA_KERNEL

/* ---------------------------------------------------------------------------------------- rows */

/* Rows of x from where they lie to rows as kernels read them: conversion, act-order, prescale,
 * padding of groups, patches, quantization and its facts, in one pass. All EXACT
 * (docs/numerics.md); sums of x by group in a fixed order. */
struct qni_cuda_source {
    const void *x;
    int32_t dtype; /* f32, f16, bf16, i8, u8 */
    int32_t is_image;
    int64_t ldx;          /* matrix: elements from row to row */
    const int32_t *index; /* matrix: row r is row index[r] of x; NULL: r. Rows with an index
                                 outside [0, x_rows) are zeros */
    int64_t x_rows;
    /* image: row (b * oh + y) * ow + x of part c, column (tap y, tap x, channel) */
    int64_t h, w, oh, ow, xs[4];
    int32_t kh, kw, stride[2], dilation[2], pad[2], transposed, ci;
    int64_t k;
    const int32_t *perm;   /* canonical position -> column; NULL */
    const float *prescale; /* by column; NULL */
    /* Packed order: group g begins at g * group_units * 32 and holds group_len positions (the last:
     * last_len). by_channel: its positions are (tap, channel), channel in [0, group_channels). */
    int32_t n_groups, group_units, units;
    int64_t group_len, last_len;
    int32_t by_channel, group_channels;
    int32_t segment_units, n_segments;
    int32_t symmetric;   /* Q8B */
    int32_t x_zero;      /* int8-static: as the code that padding of an image has (i8) */
    int64_t row, n_rows; /* of each part */
    int32_t parts;
    int32_t reads;
    /* Matrix: only rows of this expert, by one of the two as in qni_cuda_route; what belongs to the
     * others is not touched. Both NULL: all rows. */
    const int32_t *offsets, *ids;
    int32_t expert;
    /* Matrix: what is prepared as row i is row order[i] of [row, row + n_rows), -1: nothing is; as
     * routes have it. NULL: i. */
    const int32_t *order;
    int32_t by_step; /* int8: word t of step s at 16 s + 4 t of a block, as wgmma wants it */
    struct qni_cuda_rows to; /* its pointers are written; part_rows == n_rows */
};

int32_t qni_cuda_prepare_sm75(const struct qni_cuda_source *source,
                              const struct qni_cuda_launch *launch);

/* qn_quantize_rows(): the same quantizer; codes in natural order, strides in elements. */
struct qni_cuda_quantize_rows {
    const void *x;
    int32_t dtype; /* f32, f16, bf16 */
    int32_t is_u8; /* asymmetric codes + 128, offset that of code 0 */
    int64_t m, k, ldx;
    int64_t block; /* 0: the whole row */
    uint8_t *codes;
    float *scale, *offset; /* offset NULL: symmetric */
    int32_t *sum;          /* NULL: none */
    int64_t ld_codes, ld_scale, ld_offset, ld_sum;
};
int32_t qni_cuda_quantize_rows_sm75(const struct qni_cuda_quantize_rows *args,
                                    const struct qni_cuda_launch *launch);

/* Rows of x to e4m3 and further: row i is row `row` + (order != NULL ? order[i] : i) of the product
 * (order[i] < 0: nothing is written), which is row index[...] of x (out of [0, x_rows): zeros). */
enum {
    QNI_CUDA_FP8_CODES = 0, /* as they lie */
    QNI_CUDA_FP8_STEPS = 1, /* in the order of wgmma */
    QNI_CUDA_FP8_F16 = 2,   /* what the codes stand for */
    QNI_CUDA_FP8_F32 = 3    /* the same times the scale */
};
struct qni_cuda_fp8 {
    const void *x;
    int32_t dtype; /* f32, f16, bf16, or e4m3 */
    int64_t ldx, x_rows, k;
    int64_t m, row;
    const int32_t *order, *index;
    int64_t block; /* 128; 0: the row; CODES: any */
    float x_scale; /* static; 0: dynamic, or given */
    const float *given;
    int64_t ld_given;
    int32_t form;
    int32_t is_aligned; /* CODES: rows begin at multiples of 4 */
    int64_t columns;    /* that are written; zeros behind k */
    void *to;
    int64_t ld_to; /* bytes */
    float *scale;  /* NULL: nobody asks */
    int64_t ld_scale;
};
int32_t qni_cuda_fp8_sm75(const struct qni_cuda_fp8 *args, const struct qni_cuda_launch *launch);

/* Tiles of mr rows for a grouped product from offsets [n_experts + 1] or ids [m]; both arrays of
 * routes are written whole (n_tiles = ceil(m / mr) + n_experts). Rows are in ascending order within
 * an expert; what belongs to no tile (negative ids, what is out of range) is -1 behind them. With
 * offsets, rows are 0, 1, ... m - 1. scratch: qni_cuda_route_bytes(), 16-byte aligned. */
struct qni_cuda_route {
    const int32_t *offsets, *ids; /* the other is NULL */
    int64_t row, m;               /* rows [row, row + m), as 0 ... m - 1 */
    int32_t n_experts, mr;
    int32_t *tiles, *rows;
    void *scratch;
};
size_t qni_cuda_route_bytes(int64_t m, int32_t n_experts);
int32_t qni_cuda_route_sm75(const struct qni_cuda_route *args,
                            const struct qni_cuda_launch *launch);

/* A convolution whose groups have one input channel: panels run across the groups. x as it lies;
 * int8 strategies quantize each patch as prepare does. */
struct qni_cuda_depthwise {
    struct qni_cuda_source source; /* parts: groups; to: not used */
    struct qni_cuda_weights w;     /* parts 1, n: all outputs */
    struct qni_cuda_sink out;
    int32_t strategy;  /* qn_strategy */
    int32_t per_group; /* outputs of a group */
    float x_scale;
    int64_t m;
};
int32_t qni_cuda_depthwise_sm75(const struct qni_cuda_depthwise *args,
                                const struct qni_cuda_launch *launch);

/* Packed weights as plain rows of f16 or bf16 for a dense product: docs/numerics.md, "dense".
 * Panels [panel, panel + n_panels) of a single part; ld is units * 32. */
struct qni_cuda_dequantize {
    struct qni_cuda_weights w; /* shift ZERO also where zero_is_i32: int32 in place of int8 */
    int32_t zero_is_i32;
    int32_t panel, n_panels;
    int32_t is_bf16;
    float times;   /* a power of two: out = round(weight * times) */
    uint16_t *out; /* [n_panels * 16][units * 32], 16-byte aligned */
    /* Only where there is a prescale: group g has columns of canonical positions g * group_len ...
     * (the last: last_len of them). */
    const float *prescale; /* by column; NULL */
    const int32_t *perm;   /* canonical position -> column; NULL */
    int64_t group_len, last_len;
};
int32_t qni_cuda_dequantize_sm75(const struct qni_cuda_dequantize *args,
                                 const struct qni_cuda_launch *launch);

/* Sums [m][ld] in f32 through the epilogue to y: rows row + i, outputs output + j of the sink. */
struct qni_cuda_finish {
    const float *sums; /* 16-byte aligned */
    int64_t ld;        /* a multiple of 4 */
    int64_t m, row;
    int32_t n, output;
    struct qni_cuda_sink out;
};
int32_t qni_cuda_finish_sm75(const struct qni_cuda_finish *args,
                             const struct qni_cuda_launch *launch);

/* y = act(g) * u and what comes after it, from values v [m][2 n] in f32: g and u of output j are
 * outputs j and n + j, or 2 j and 2 j + 1. */
struct qni_cuda_gate {
    const float *v;
    int64_t m;
    int32_t n, by_pairs;
    int32_t act; /* out has none */
    struct qni_cuda_sink out;
};
int32_t qni_cuda_gate_sm75(const struct qni_cuda_gate *args, const struct qni_cuda_launch *launch);

/* offsets[e] = e * rows, e = 0 ... n: a batch as routes have it. */
struct qni_cuda_even {
    int32_t *offsets;
    int64_t rows;
    int32_t n;
};
int32_t qni_cuda_even_sm75(const struct qni_cuda_even *args, const struct qni_cuda_launch *launch);

/* qn_combine_rows(): y[t] = add[t] + sum of weights[t][j] * x[rows[t][j]], j after j, each product
 * and each sum rounded. Rows outside [0, x_rows) are left out. Strides in elements. */
struct qni_cuda_combine_rows {
    const void *x, *add;
    const float *weights;
    const int32_t *rows; /* NULL: t * top_k + j */
    int64_t x_rows, tokens, top_k, n;
    int64_t ldx, ld_add, ld_weights, ld_rows;
    int32_t x_dtype, add_dtype;
    struct qni_cuda_sink out; /* y, its type and stride[2] */
};
int32_t qni_cuda_combine_rows_sm75(const struct qni_cuda_combine_rows *args,
                                   const struct qni_cuda_launch *launch);

/* Where the sums of code values go, a section of qni_cuda_weights.sums with its cut: added to what
 * is there, integers in any order. sums NULL: not wanted. */
struct qni_cuda_repack_sums {
    int32_t *sums; /* [panels_total][n_segments][16] */
    int32_t units; /* those that belong to groups */
    int32_t group_units, n_segments, segment_units, segments_per_group;
};

/* Canonical codes [n][k] on the device to fragment order, and the sums of their values. outputs
 * [panels * 16]: which row of codes each row of a panel is, -1: padding. runs: struct qni_run of
 * the blob. */
struct qni_cuda_repack {
    uint8_t *codes; /* canonical, one byte each */
    uint8_t *packed;
    const int32_t *outputs;
    int32_t layout, panels_total;
    int64_t k, blocks;
    const int64_t *runs; /* (dst, src, len) triplets */
    int32_t n_runs;
    int32_t shift;   /* added to a code */
    int32_t padding; /* as stored */
    /* The value of a code is value[code] if is_table, else code - half. */
    int32_t half, is_table;
    int8_t value[16];
    struct qni_cuda_repack_sums sums[2]; /* by block; by row, if that is another cut */
};
int32_t qni_cuda_repack_sm75(const struct qni_cuda_repack *args,
                             const struct qni_cuda_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
