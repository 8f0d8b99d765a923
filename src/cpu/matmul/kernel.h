/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between the matmul driver and its kernels, on the CPU.
 *
 *     c[i, j] = sum over groups g of   scale[g, j] * sum_{p in g} a[i, p] * value[p, j]
 *                                   + offset[g, j] * sum_{p in g} a[i, p]
 *
 * i: rows of this job; j: outputs of its panels; p: packed positions along k. docs/numerics.md
 * fixes the order and rounding of every step for the EXACT kernels (int8), and the bound of the
 * others.
 *
 * Packed order: canonical positions, every group padded to whole units of 32 (activation 0, code
 * value 0).
 *
 *   group 0                       group 1                 last group, may be short
 *   |unit|unit|unit|unit| ...     |unit|unit| ...         |unit|
 *   <-- segment --><-- segment -->                            a segment never leaves its group
 *
 * Codes of a panel (16 outputs), unit after unit, for a unit of 32 positions; u = code + 8 or + 128
 * (unsigned):
 *   Q4N16, T4N16   256 bytes: vector r of 64 bytes, r = 0..3, lane j of 4 bytes, byte b:
 *                  low nibble = position 4 r + b, high nibble = position 16 + 4 r + b, of output j
 *   Q8N16, T8N16   512 bytes: vector r of 64 bytes, r = 0..7, lane j, byte b = position 4 r + b of
 *                  output j
 *   F32N16         2048 bytes: position p is 16 f32, one an output
 *   H16N16         1024 bytes: position p is 16 f16
 *   B16N16         1024 bytes: vectors of 64 bytes, lane j two bf16 of output j: vector 2 r has the
 *                  positions 4 r and 4 r + 2, vector 2 r + 1 those behind them, 4 r + 1 and 4 r + 3
 * Floats have no scale: the section is there, all 1, and kernels need not read it.
 * Integer codes of 2 and 3 bits are stored as those of 4 bits, 5 to 7 as those of 8. T layouts go
 * through a table.
 *
 * Rows of bf16 planes lie in blocks of QNI_BF16_ROWS, and the last block has the remaining rows. A
 * block of r rows has [units][planes][r][32] elements: what a tile of A takes lies together. Of
 * every four positions the two in the middle change places: 0 2 1 3.
 * Groups of at most 16 positions leave half of their units of codes empty. Kernels that make
 * weights have nothing to scale at the end of a group, and for them and others that can such groups
 * share units of a: two to a unit, and an odd last one with zeros.
 *
 * A kernel writes c for all m rows and all 16 * n_panels outputs (those past n are garbage-free:
 * padding codes have value 0 and scale 0); kernels that read bf16 write each result once. It reads
 * no byte outside the given arrays, calls no libc but memcpy and memset, and allocates nothing. */
#ifndef QNI_CPU_MATMUL_KERNEL_H
#define QNI_CPU_MATMUL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <quern/context.h>

#include "../../quant/cut.h"

/* What a kernel reads as activations. Rows are row-major in packed order, padded with zeros to
 * whole units. */
enum {
    QNI_READS_F32 = 0,  /* float */
    QNI_READS_BF16 = 1, /* uint16_t bf16 in 1 to 3 planes, in blocks */
    QNI_READS_Q8 = 2,   /* int8_t; one scale a row, applied after the kernel (int8-row,
                           int8-static) */
    QNI_READS_Q8B = 3   /* int8_t; scale, offset and sums per segment (int8-block) */
};
enum {
    QNI_LAYOUT_Q4N16 = 0,
    QNI_LAYOUT_T4N16 = 1,
    QNI_LAYOUT_Q8N16 = 2,
    QNI_LAYOUT_T8N16 = 3,
    QNI_LAYOUT_H16N16 = 4,
    QNI_LAYOUT_B16N16 = 5,
    QNI_LAYOUT_F32N16 = 6,
    QNI_N_LAYOUTS = 7,
    QNI_LAYOUT_ROWS = -1 /* any: the driver expands them */
};
enum { QNI_NUMERICS_EXACT = 0, QNI_NUMERICS_BOUND = 1 };
/* What kernels may do. */
enum {
    QNI_TAKES_SCALE = 1,   /* takes a row_scale: results of one segment need not pass through memory
                              of their own on the way to y */
    QNI_MAKES_WEIGHTS = 2, /* makes floats of the weights, once for all rows of a job: any codebook,
                              any group; the rows of a job need not fit a cache. Reads no totals.
                              Shares units, too */
    QNI_TAKES_SPANS = 4,   /* copies rows, a span of k at a time: the rows of a job need not fit a
                              cache, wherever they lie */
    QNI_ROUNDS_WEIGHTS = 8, /* rounds them once to bf16: for the dense strategy, x in one plane */
    QNI_SHARES_UNITS = 16,  /* reads rows of groups of at most 16 positions in halves of units */
    QNI_LOOKS = 32,         /* tells whether all results are finite, and takes all panels at once */
    QNI_SPLITS_ROW_OUTLIERS = 128, /* clamps rows to what int16 sums hold, once for all panels, and
                                    lists the remainder. If lists would be too long, or there are
                                    several segments, it sets *kept to QNI_TOO_MANY_OUTLIERS and
                                    leaves c to another row */
    QNI_SPLITS = 256,       /* writes each result once where qni_splits(), all panels at once */
    QNI_READS_COMPACT = 2048, /* int8: reads compact weights as they lie where tile.compact says
                                 so, and counts sums of Q8B itself; up to QNI_COMPACT_ROWS rows of
                                 up to QNI_COMPACT_SEGMENTS segments in registers */
    QNI_COPIES_ROWS = 1024, /* makes digits of up to QNI_COPIED_ROWS rows, as long as these */
    QNI_TAKES_SHORT = 512   /* F32: more than QNI_FEW_ROWS rows need no padding, of a multiple of
                                 8 positions */
};
enum { QNI_FEW_ROWS = 12, QNI_COPIED_ROWS = 3 };
enum { QNI_COMPACT_ROWS = 8, QNI_COMPACT_SEGMENTS = 4096 };

/* Memory for rows without their outliers, each 64 bytes longer, and how many rows of lda bytes are
 * split at a time. */
enum { QNI_CLAMPED_BYTES = 64 * (4096 + 64), QNI_CLAMPED_ROWS = 64, QNI_CLAMPED_BLOCK = 4 };
static inline int64_t qni_clamped_rows(size_t lda)
{
    const int64_t fit = QNI_CLAMPED_BYTES / ((int64_t)lda + 64) / QNI_CLAMPED_BLOCK;
    const int64_t most = fit * QNI_CLAMPED_BLOCK;
    return most < QNI_CLAMPED_ROWS ? most : QNI_CLAMPED_ROWS;
}

/* In *kept of kernels with QNI_SPLITS_ROW_OUTLIERS: too many, use the other row of the plan. */
enum { QNI_TOO_MANY_OUTLIERS = -1 };

/* Rows of a block of bf16 planes. */
enum { QNI_BF16_ROWS = 32 };

/* Where in bytes the first plane of a row begins, and how far it is from there to the next plane,
 * or from the last one to the next unit. */
static inline size_t qni_bf16_row(size_t lda, int64_t m, int64_t row, size_t *step)
{
    const int64_t first = row - row % QNI_BF16_ROWS, left = m - first;
    *step = (size_t)(left < QNI_BF16_ROWS ? left : QNI_BF16_ROWS) * 64;
    return (size_t)first * lda + (size_t)(row - first) * 64;
}

/* Compact weights as they lie (quant/compact.h, quant/levels.h), all panels of them. */
struct qni_compact_panels {
    int32_t bits, halves;     /* of codes: how they lie; halves: groups share units */
    int32_t is_narrow;        /* they are not those of the layout */
    int32_t bias;             /* the code of value 0; of codebooks 128 */
    int32_t padding_sum;      /* codebooks: what the values of padding add up to in an output */
    int32_t scale_type;       /* of what lies at `scale`: QNI_SCALE_ ... */
    float unit;               /* bytes: of E4M3 */
    const uint8_t *scale;     /* of one level */
    size_t scale_stride;      /* bytes from panel to panel */
    const uint8_t *levels;    /* two levels: super-blocks; or minima [n_groups, 16] of f16 or f32 */
    size_t levels_stride;
    int32_t super_shift;      /* log2 of groups in a super-block; -1: one level */
    size_t super_bytes, common_bytes, group_bytes;
    int32_t has_min, is_signed, shares; /* of integers of two levels; minima of two levels */
    int32_t min_is_f16;       /* one level */
    float half;               /* minima: the code of value 0 */
    const void *zero;         /* zero points, offsets being made of them */
    int32_t zero_is_i8;
    size_t zero_stride;
};
/* In super-blocks f16 and f32 alone. */
enum { QNI_SCALE_F32 = 0, QNI_SCALE_F16 = 1, QNI_SCALE_E8M0 = 2, QNI_SCALE_E4M3 = 3 };

struct qni_matmul_tile {
    /* activations */
    const void *a; /* [m] rows of units * 32 elements */
    size_t lda;    /* bytes from row to row (BF16: of a row, all planes of it together),
                                 a multiple of 64, all of which may be read;
                                 a is 64-byte aligned. The caller's f32 x is neither */
    int64_t m;
    int64_t positions;     /* F32 of kernels with QNI_TAKES_SHORT: how many there are of a row */
    int32_t planes;        /* BF16: how many, as qni_op_planes() has it */
    int32_t halves;        /* groups have at most 16 positions, second halves of units are padding;
                                 shared units of a hold two first ones */
    const int32_t *a_sum;  /* Q8, Q8B: [m, n_segments] sum of codes (segments as docs/numerics.md
                                 cuts them for Q8 or Q8B) */
    const float *a_scale;  /* Q8B: [m, n_segments] */
    const float *a_offset; /* Q8B: [m, n_segments], NULL if symmetric */
    const float *a_total;  /* Q8B: [m, n_segments] real sum of the segment: fma(scale, sum,
                                 offset * count). BF16 with offsets: [m, n_groups] sum of x over
                                 the group, rows ld_segment apart */
    size_t ld_segment;     /* elements from row to row in these four */
    int32_t x_zero;        /* Q8: zero point of int8-static, else 0 */
    /* weights: everything of the first panel, and how far to the next */
    const uint8_t *codes;
    size_t codes_stride; /* bytes */
    const void *scale;   /* [n_groups, 16], f32 or f16 */
    const void *offset;  /* the same, or NULL */
    const void *zero;    /* [n_groups, 16], i8 or i32, or NULL: what offsets are made of. Only
                                 read where weights are rounded, or zero points taken away from
                                 codes */
    int32_t zero_is_i8;
    const int32_t *sums;    /* [n_segments, 16] sum of code values of each segment, or NULL */
    const int32_t *counts;  /* [n_segments] real positions of each segment (only read where x_zero
                                 meets an offset) */
    const float *table;     /* T layouts: [16] or [256] values */
    int32_t is_e4m3;        /* T8N16: these are the values of E4M3 (no code is a NaN) */
    const int8_t *table8;   /* T4N16 with integer values (doubled for E2M1): [16], or NULL; Q8,
                                 Q8B and BF16 need it (BF16 of T8N16: a table that bf16 holds) */
    int32_t table8_doubled; /* 1: scale counts half where table8 is used */
    const struct qni_compact_panels *compact; /* NULL: none read so. Or codes lie so, there
                                 are no sums, and scale and offset tell only whether there are */
    int64_t compact_panel;    /* the first one */
    int64_t n_panels;
    int32_t padding; /* how many outputs of the last panel nobody asks for: their results may be
                                 any finite numbers */
    int64_t units, n_groups, group_units, segment_units, n_segments;
    int32_t scale_is_f16;
    int32_t raw_i32; /* Q8, one group: c receives int32 sums (x_zero corrected) instead of
                                 floats; no offset, no zero */
    /* result */
    float *c;               /* [m, ldc] */
    size_t ldc;             /* elements */
    int32_t c_is_far;       /* with row_scale, is_finite or qni_splits(): c and its rows are aligned
                                 to 64 bytes, and all of y is more than the second cache holds, so
                                 stores may pass the caches by */
    bool *is_finite;        /* of kernels that look: made false if some result is not */
    const float *row_scale; /* [m] or NULL: what c is multiplied by last, rounded once more. Only
                                 of kernels that take it, one segment, no offset, no raw_i32 */
    /* private memory of this thread, 64-byte aligned */
    void *scratch;
    int32_t *kept; /* what scratch still holds of these rows, in the kernel's own code; 0 if it is
                      the first call that has them. NULL: nobody asks; never of kernels with
                      QNI_SPLITS_ROW_OUTLIERS */
};

/* Q8B: rows and segments for which kernels with QNI_SPLITS keep results in memory of their own, so
 * that each is written once. */
enum { QNI_SPLIT_ROWS = 128, QNI_SPLIT_SEGMENTS = 128 };
static inline bool qni_splits(const struct qni_matmul_tile *t)
{
    return t->m >= QNI_SPLIT_ROWS && t->segment_units == 4 && t->n_segments > 1 &&
           t->n_segments <= QNI_SPLIT_SEGMENTS && t->n_segments * 4 == t->units &&
           t->group_units % 4 == 0;
}

typedef void qni_matmul_kernel_fn(const struct qni_matmul_tile *tile);

/* Jobs of so few rows get the smaller of a kernel's two scratches. */
enum { QNI_SMALL_ROWS = 8 };
/* In kernels.inc: bytes of scratch for any m, and for at most QNI_SMALL_ROWS rows. */
#define QNI_SCRATCH(any, small) any, small

/* A row of kernels.inc. */
struct qni_matmul_kernel {
    const char *name;
    qni_matmul_kernel_fn *fn;
    uint64_t needs; /* QN_ISA_ bits */
    int32_t reads, layout;
    int32_t m_min; /* tiles: fewest rows that they serve; else 1: cost.h tells */
    int32_t mr;    /* rows it works on at a time; jobs are multiples of it where
                                 possible */
    int32_t numerics;
    int32_t traits; /* QNI_TAKES_SCALE ... */
    /* private scratch for any k and m; for small m, 0: the same. On top of that of small m comes
     * memory for the rows that a kernel transforms: qni_kernel_bytes() */
    size_t scratch_bytes[2];
};

/* Rows that a kernel transforms, for small jobs of m. Blocks of fewer rows are of three and
 * four, and may end two behind the last one. */
static inline size_t qni_copied_rows(const struct qni_matmul_kernel *kernel, int64_t m)
{
    if ((kernel->traits & QNI_SPLITS_ROW_OUTLIERS) != 0)
        return (size_t)m + 2;
    const bool copies = (kernel->traits & QNI_COPIES_ROWS) != 0;
    return copies ? (size_t)(m < QNI_COPIED_ROWS ? m : QNI_COPIED_ROWS) : 0;
}

/* Scratch for jobs of at most m rows of lda bytes. */
static inline size_t qni_kernel_bytes(const struct qni_matmul_kernel *kernel, int64_t m, size_t lda)
{
    const size_t any = kernel->scratch_bytes[0], small = kernel->scratch_bytes[1];
    if (m > QNI_SMALL_ROWS || small == 0)
        return any;
    const size_t bytes = small + qni_copied_rows(kernel, m) * (lda + 64);
    return bytes < any ? bytes : any;
}

/* ---- making compact weights wide: expand.h --------------------------------------------------- */

/* The codes of one panel. */
struct qni_expand_codes {
    const struct qni_compact *compact;
    const struct qni_cut *cut; /* of the sums */
    const int8_t *table8;      /* of codebooks: values, if there are sums */
    const uint8_t *from;
    uint8_t *to;   /* NULL: they are read where they are */
    int32_t *sums; /* [n_segments, 16]; NULL: nobody reads them */
};

/* Scales and offsets of one panel. */
struct qni_expand_scales {
    int64_t n_groups;
    qn_dtype dtype; /* of scale (plain) or of what is common to a super-block (two levels) */
    float unit;     /* of scales of E4M3 */
    const void *scale;     /* plain: [n_groups, 16]; NULL: two levels */
    const uint8_t *levels; /* two levels: levels.h; else minima [n_groups, 16], or NULL */
    qn_dtype min_dtype;    /* of minima of one level */
    int32_t superblock;
    int32_t is_signed, has_min, shares; /* two levels: of the integers; two share a byte */
    float half;                         /* minima: the code of value 0 */
    const void *zero;                   /* integer zero points, or NULL */
    int32_t zero_is_i8;
    const void *stored; /* offsets of the type of scales, or NULL */
    float *to, *offset; /* [n_groups, 16]; NULL: they are read where they are, or there are none */
};

struct qni_expand {
    uint64_t needs; /* QN_ISA_ bits */
    void (*codes)(const struct qni_expand_codes *e);
    void (*scales)(const struct qni_expand_scales *e);
};

#define QNI_MATMUL_KERNEL(fn, needs, reads, layout, m_min, mr, numerics, traits, scratch)          \
    qni_matmul_kernel_fn fn;
#include "kernels.inc"
#undef QNI_MATMUL_KERNEL

#endif
