/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between the driver of direct convolutions and its kernels: int8-static with one
 * scale an output, no offsets, one group.
 *
 *     dot[r, j] = sum over taps t, channels i of  a[taps[t] + r * pixel + i] * value[t, i, j]
 *     d         = dot - zero[j]                                  zero = x_zero * sum of values
 *     v         = fl(fma(scale[j], fl(d), 0) * x_scale)
 *     y         = docs/numerics.md, with a bias and a relu at most       (bytes), or
 *     c[r, j]   = fma(scale[j], fl(d), 0), or d                          (floats, raw)
 *
 * Rows are outputs. They need no gathering: the input of tap t lies the same distance from the
 * input of tap 0 for every output, and outputs follow each other evenly (direct.c makes it so).
 * A tap is read in whole steps of 64 bytes (the only step of a tap: step_bytes), which may reach
 * past its channels into whatever lies there: the values are zeros past the real ones, or a is
 * (b_back).
 *
 * value comes in panels of 16 outputs, 64 positions of a panel in 1024 bytes: vector p of 64 bytes,
 * lane j, byte b = position 4 p + b of output j. That is a B tile of AMX, and it is how 8-bit codes
 * are packed. With row_sums the bytes are these codes, value + 128 as unsigned, and
 *     dot[r, j] = (the same sum over codes) - row_sums[r],   row_sums[r] = 128 * sum of a's bytes
 * A block is two panels. Blocks change fastest, so that the rows of a stay in the first cache while
 * all weights pass by: with one block to a tile it is the weights that stay.
 *
 * Algorithms that gather (kernel.h: GATHERS, TOOM) read the bytes that the weights multiply and no
 * more, and weights as they are packed, whatever the layout. Row r begins at a + at[r], wherever
 * that is, and taps are tap_bytes long and follow each other in the weights without gaps:
 *
 *     dot[r, j] = sum over taps t, bytes i < tap_bytes of
 *                 (a[at[r] + taps[t] + i] ^ flip) * value[t * tap_bytes + i, j]
 *
 * TOOM takes lines of at least four outputs, whose rows are 6 or 8 bytes apart, the same in all
 * lines, and taps of 3 to 4 times as much: qni_direct_fits_toom().
 *
 * WINOGRAD2X2 and WINOGRAD4X4 take 3 x 3 taps of stride 1 in squares of 2 x 2 or 4 x 4 outputs
 * (../simd/squares.h). Rows are a grid: lines of `width` outputs, of each of so
 * many images in turn. Output (0, 0) of the first image reads pixels of `pixel` channels from a +
 * taps[0] on; lines of an image are taps[1] - taps[0] apart, and those of the other images lie
 * between them evenly. Weights are words, pairs of channels beside each other:
 *
 *     b[panel][products][channels / 2][16 outputs][2], each of the 36 or 16 products
 *     qni_direct_squares_tap() */
#ifndef QNI_CPU_CONV_DIRECT_KERNEL_H
#define QNI_CPU_CONV_DIRECT_KERNEL_H

#include "../matmul/kernel.h"

enum { QNI_DIRECT_STEP = 64, QNI_DIRECT_STEP_BYTES = 1024, QNI_DIRECT_NEAR = 8 };
enum { QNI_DIRECT_BYTES = 0, QNI_DIRECT_FLOATS = 1, QNI_DIRECT_RAW = 2 };

struct qni_direct_tile {
    const int8_t *a;
    size_t pixel;          /* bytes from row to row */
    const int64_t *at;     /* [rows] gathers: bytes from a to each row, instead of pixel */
    int64_t tap_bytes;     /* gathers */
    int64_t width, images; /* squares */
    int32_t has_x; /* squares: scratch holds what the last call made of the same rows, if they were
                    * no more than qni_direct_squares_most() */
    uint8_t flip;  /* of the bytes of a: gathers */
    const int64_t *taps; /* bytes */
    int64_t n_taps;
    int64_t tap_steps;  /* of 64 channels */
    int32_t step_bytes; /* 64, or less (a multiple of 4) where a tap has one step and no more */
    size_t a_block;     /* bytes from the rows of a block to those of the next: 0, or groups that
                         * have a block of outputs each. With row_sums it is 0 */
    int64_t rows;
    const uint8_t *b; /* n_taps * tap_steps steps of the first panel */
    size_t b_panel;   /* bytes from panel to panel */
    size_t b_back; /* by which a tap's weights begin before the end of the last tap's 1024 bytes a
                       * step: a is zeros there, or step_bytes less */
    int64_t n_panels;
    const int32_t *row_sums; /* [rows]; NULL: b is signed values */
    int32_t kind;
    const float *scale; /* [n_panels * 16, rounded up to 32], as zero and bias */
    const int32_t *zero;
    int32_t has_zero; /* else zero is all 0 */
    /* bytes */
    uint8_t *const *y; /* [rows] where output `column` of a row goes, minus column */
    int64_t column;
    int64_t n; /* outputs, of n_panels * 16 */
    const float *bias;
    int32_t has_bias; /* else bias is all 0 */
    float x_scale, y_inv;
    int32_t y_zero, relu, is_u8;
    int32_t is_bounded; /* no v * y_inv is a NaN or beyond +-2^21 */
    int32_t is_tall;    /* weights come from the second cache, 64 rows of a stay in the first: with
                      * row_sums only */
    int32_t is_near;    /* no d is beyond +-2^22, has_zero is 0, at most QNI_DIRECT_NEAR steps */
    float *c;           /* floats, raw: [rows, 32], one block */
    void *scratch;      /* scratch_bytes of the row, 64-byte aligned, of this thread */
};

/* Rows of a block, of at most `most`: even, so that no block is left with a few, and whole tiles of
 * mr rows, of which most has a whole number. */
static inline int64_t qni_direct_even_rows(int64_t rows, int64_t most, int64_t mr)
{
    const int64_t blocks = (rows + most - 1) / most;
    return blocks == 0 ? 0 : ((rows + blocks - 1) / blocks + mr - 1) / mr * mr;
}

/* Rows that are multiplied together, and the range of their positions. */
struct qni_direct_range {
    int64_t row, rows, from, n;
};

/* The order in which kernels that gather multiply a tile: blocks of rows, panels whose sums wait in
 * memory, and ranges of positions, which change fastest. */
struct qni_direct_walk {
    const struct qni_direct_tile *t;
    int64_t rows, length, panels; /* of a block, a range and a set of panels at most */
    int64_t k;
    struct qni_direct_range p;
    int64_t first, end; /* panels of the set */
    bool is_long;       /* a panel has several ranges: sums wait for panels - first of them */
};

/* panels: whose sums there is memory for; where there is one range, all panels are a set. */
static inline struct qni_direct_walk
qni_direct_walk_of(const struct qni_direct_tile *t, int64_t rows, int64_t length, int64_t panels)
{
    const int64_t k = t->n_taps * t->tap_bytes;
    return (struct qni_direct_walk){
        .t = t,
        .rows = rows,
        .length = length,
        .panels = k > length ? panels : t->n_panels,
        .k = k,
        .p = {0, 0, -length, 0},
        .is_long = k > length,
    };
}

/* The next block, set and range; false: there are no more. */
static inline bool qni_direct_walk_next(struct qni_direct_walk *w)
{
    struct qni_direct_range *const p = &w->p;
    p->from += w->length;
    if (p->from >= w->k) {
        p->from = 0;
        w->first += w->panels;
    }
    if (w->first >= w->t->n_panels) {
        w->first = 0;
        p->row += w->rows;
    }
    const int64_t rows = w->t->rows - p->row, panels = w->t->n_panels - w->first;
    const int64_t n = w->k - p->from;
    p->rows = rows < w->rows ? rows : w->rows;
    p->n = n < w->length ? n : w->length;
    w->end = w->first + (panels < w->panels ? panels : w->panels);
    return rows > 0 && panels > 0 && n > 0;
}

typedef void qni_direct_kernel_fn(const struct qni_direct_tile *tile);
/* Units of 32 positions of a panel's packed codes as signed values, padded with zeros to whole
 * steps; squares: 9 taps of whole units, as words (above). */
typedef void qni_direct_unpack_fn(const uint8_t *codes, int64_t units, uint8_t *out);
/* 128 times the sum of `bytes` (a multiple of 64) bytes of each row. */
typedef void qni_direct_sums_fn(const int8_t *a, size_t pixel, int64_t rows, int64_t bytes,
                                int32_t *sums);

/* n patches of kh runs of bytes, one after the other and then zeros up to `pixel` bytes, a multiple
 * of 64: run ky of patch i is lines[ky * line + i * step ...]. Reads no other byte of lines. */
struct qni_direct_runs {
    const uint8_t *lines;
    size_t line, step, run, pixel;
    int64_t kh, n;
    uint8_t *dst; /* 64-byte aligned */
};
typedef void qni_direct_runs_fn(const struct qni_direct_runs *runs);

/* Columns of an image of few channels: every pixel is four bytes, `depth` (4 or 8) rows of the
 * image make a column of 4 * depth bytes, and unit i, 64 bytes, is columns i * stride and on.
 *
 *     unit i, column c, row r, byte b = line[r][4 * (i * stride + c) + b]
 *
 * stride: 1, 2 or the columns of a unit. Reads 4 * (stride * units + 32) bytes of a line, and
 * writes up to 16 units more than there are. */
struct qni_direct_columns {
    const uint8_t *line[8];
    int32_t depth, stride;
    int64_t units;
    uint8_t *dst; /* 64-byte aligned */
};
typedef void qni_direct_columns_fn(const struct qni_direct_columns *columns);

/* n pixels as four bytes each: channels (at most 4), then zeros; bytes are changed by flip. Pixels
 * are `channels` bytes, one after the other, or (plane not 0) one byte in each of so many planes,
 * which are `plane` bytes apart. Writes up to 15 pixels more. */
struct qni_direct_pixels {
    const uint8_t *from;
    int64_t plane, n;
    int32_t channels;
    uint8_t flip;
    uint8_t *to;
};
typedef void qni_direct_pixels_fn(const struct qni_direct_pixels *pixels);

/* n pixels of so many channels, `step` bytes apart, as `pixel` bytes each: channels, changed by
 * flip, then zeros up to a multiple of 64 bytes, if pixel is more. Touches no other byte. */
struct qni_direct_spread {
    const uint8_t *from;
    size_t step;
    int64_t n, channels, pixel;
    uint8_t flip;
    uint8_t *to;
};
typedef void qni_direct_spread_fn(const struct qni_direct_spread *spread);

/* How images become rows: what an ISA file has of each. Where rows gather it is spread() alone. */
struct qni_direct_images {
    qni_direct_runs_fn *runs;
    qni_direct_pixels_fn *pixels;
    qni_direct_columns_fn *columns;
    qni_direct_spread_fn *spread;
};
extern const struct qni_direct_images qni_direct_images_amx, qni_direct_images_avx2;

/* What a row has besides its function. */
struct qni_direct_helpers {
    qni_direct_unpack_fn *unpack; /* NULL: the kernel reads weights as they are packed */
    qni_direct_sums_fn *sums;     /* tiles */
    const struct qni_direct_images *images;
};
extern const struct qni_direct_helpers qni_direct_tiles_q8_amx, qni_direct_tiles_q4_amx;
extern const struct qni_direct_helpers qni_direct_winograd4x4_q8_avx2,
    qni_direct_winograd4x4_q4_avx2, qni_direct_winograd2x2_q8_avx2, qni_direct_winograd2x2_q4_avx2;
extern const struct qni_direct_helpers qni_direct_gathers_avx2, qni_direct_gathers_neon,
    qni_direct_gathers_dotprod, qni_direct_gathers_i8mm;

/* Bytes of a tile's scratch for kernels that multiply tiles, and for those that gather. */
enum { QNI_DIRECT_SCRATCH = 12288, QNI_DIRECT_SCRATCH_GATHERS = 500 * 1024 };

/* Toom: positions at most, and whether taps of so many bytes, rows `step` bytes apart, are for it:
 * no more than 4 steps, and 8 bytes that begin after 2 of them lie in a tap. */
enum { QNI_DIRECT_TOOM_POSITIONS = 364 };
static inline bool qni_direct_fits_toom(int64_t step, int64_t tap_bytes, int64_t k)
{
    return (step == 6 || step == 8) && tap_bytes > 3 * step && tap_bytes <= 4 * step &&
           tap_bytes >= 2 * step + 8 && k <= QNI_DIRECT_TOOM_POSITIONS;
}

/* Squares: scratch, so that it stays in the second cache; channels at most, and of 4 x 4 (sums of
 * more would not be exact); squares of a tile, which pieces are multiples of; bytes of lines of
 * outputs; words by which planes of x are apart, so that they do not all meet in one set of the
 * first cache. */
enum {
    QNI_DIRECT_SQUARES_SCRATCH = 352 * 1024,
    QNI_DIRECT_SQUARES_CHANNELS = 3072,
    QNI_DIRECT_SQUARES_FEW = 224,
    QNI_DIRECT_SQUARES_MR = 6,
    QNI_DIRECT_SQUARES_LINES = 8192,
    QNI_DIRECT_SQUARES_APART = 32
};
/* Sums of a square of so many outputs a side. */
static inline int64_t qni_direct_squares_taps(int64_t side)
{
    return (side + 2) * (side + 2);
}
/* Bytes of one of them of the weights of a panel: more than its words, for the same reason. */
static inline size_t qni_direct_squares_tap(int64_t channels)
{
    return (size_t)channels * QNI_PANEL * sizeof(int16_t) + 128;
}
/* Squares whose transformed inputs and sums fit into scratch. */
static inline int64_t qni_direct_squares_most(int64_t channels, int64_t side)
{
    const int64_t taps = qni_direct_squares_taps(side);
    const int64_t each = taps * (2 * channels + QNI_PANEL * (int64_t)sizeof(int32_t));
    const int64_t rest = QNI_DIRECT_SQUARES_LINES + 2 * taps * QNI_DIRECT_SQUARES_APART;
    const int64_t most = (QNI_DIRECT_SQUARES_SCRATCH - rest) / each;
    return most > QNI_DIRECT_SQUARES_MR ? most / QNI_DIRECT_SQUARES_MR * QNI_DIRECT_SQUARES_MR : 1;
}

#endif
