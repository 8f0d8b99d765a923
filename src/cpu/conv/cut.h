/* SPDX-License-Identifier: Apache-2.0 */
/* How the work of a convolution is cut: all that the loops of an algorithm decide, and where their
 * scratch lies. A plan makes it once and carries it (struct qni_cpu_choice); a run follows it.
 * Plain data. */
#ifndef QNI_CPU_CONV_CUT_H
#define QNI_CPU_CONV_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- images of bytes: direct_shape.c --------------------------------------------------------- */

enum { QNI_DIRECT_TAPS = 64, QNI_DIRECT_PLANES = 8, QNI_DIRECT_PARTS = 16 };

/* Several groups that are convolved as one: direct_slabs.h. */
struct qni_slabs {
    int64_t groups, count;     /* groups of a slab; the last one may have fewer */
    int64_t channels, outputs; /* of a whole one */
    int64_t pixel;             /* channels, rounded up to whole steps */
    bool is_apart;             /* groups are convolved on their own, in one call */
};

/* An image of few channels as columns: direct_columns.h. */
struct qni_columns {
    int32_t depth, per_unit, n_taps; /* depth 0: not that kind of image */
    int64_t units;                   /* of a line of outputs */
    size_t line_bytes;
};

/* One axis of the planes. */
struct qni_plane_axis {
    int32_t n_planes;
    int64_t first[QNI_DIRECT_PLANES]; /* the input of element 0 */
    int32_t plane[QNI_DIRECT_PLANES]; /* of a tap */
    int64_t moved[QNI_DIRECT_PLANES]; /* of a tap */
    int64_t stride, extra;            /* inputs from element to element; the most moved */
};

/* Where the rows of a band come from: direct.c. */
enum {
    QNI_ROWS_IN_PLACE = 0,
    QNI_ROWS_IN_PLANES = 1,
    QNI_ROWS_OF_PATCHES = 2,
    QNI_ROWS_OF_COLUMNS = 3
};

struct qni_direct_shape {
    bool gathers;           /* the kernel reads planes or x itself (direct_kernel.h) */
    bool in_squares;        /* the same */
    int64_t side;           /* outputs of a square's side, else 1 */
    bool whole_lines;       /* rows of a line stay together: the kernel computes several at once */
    bool moves;             /* weights of slabs are moved (direct_slabs.h) */
    struct qni_slabs slabs; /* everything below is of one of them */
    struct qni_columns image_columns;
    int64_t tap_bytes; /* gathers */
    int32_t rows_are;  /* QNI_ROWS_... */
    bool has_runs;     /* patches: a row of taps is a run of bytes (direct_runs.h) */
    int64_t pixel;     /* bytes from row to row */
    int64_t n_taps, tap_steps, steps;
    int32_t step_bytes; /* direct_kernel.h */
    int32_t run;        /* planes of lines: neighbouring taps that are one to the kernel; else 0 */
    bool is_ragged;  /* channels end before the last step of a tap: the weights of what is read past
                     * them are zeros */
    bool is_padded;  /* planes: pixels are whole steps that end with zeros, so that weights of the
                     * next tap may lie there: none are moved */
    int64_t n_apart; /* groups of a slab that have planes of their own, and a block of outputs each;
                      * else 1 */
    struct qni_plane_axis axis[2];
    int64_t columns; /* from line to line of a plane; columns: units of a line */
    int64_t shared;  /* what a line reads past them: padding of the next line; behind the last one
                      * there is as much */
    /* Bands: of planes, images x output rows; of columns, rows of one image; else rows of the
     * product. */
    int64_t band_images, band_lines; /* planes, columns */
    int64_t bands_per_image;         /* where band_images is 1 */
    int64_t band_rows;               /* rows of a band at most, unused columns included */
    int64_t n_bands;
    size_t panel_bytes;                                /* of unpacked weights */
    int64_t n_blocks, blocks_per_item, items_per_band; /* of 32 outputs */
    int64_t n_items;                                   /* of all slabs */
    int32_t reads_codes; /* weights as they are packed: direct_kernel.h, row_sums */
    int32_t is_tall;     /* 64 rows of a, all that their taps meet, stay in the first cache */
    int64_t blocks_per_call;
    int64_t unpacked_blocks; /* that scratch holds, whatever the batch: all or those of a call */
    size_t a_bytes;          /* of a band's copy */
    size_t most_a_bytes;     /* for this batch and every smaller one */
    int64_t most_rows;
    size_t scratch_at[QNI_DIRECT_PARTS + 1]; /* of a thread: direct_shape.c; the last is the end */
};

/* ---- groups of few channels: groups_shape.c -------------------------------------------------- */

struct qni_groups_shape {
    /* Sets (groups_kernel.h), and how many there are in a block, whose weights are made at once. */
    int64_t lanes, groups_of_set, vectors, sets, block, n_blocks;
    int64_t inputs, outputs; /* of a set */
    bool is_dense;           /* outputs of all sets fill their vectors */
    bool in_squares;         /* groups_kernel.h */
    int64_t positions;       /* of the weights of an output: k, or those of squares */
    size_t element;          /* bytes of an element of x and w: floats or words */
    /* Outputs of a call, and all calls. */
    int64_t band, n_bands, columns, n_items;
    int64_t width, height; /* inputs that a call reads */
    /* What all calls share: places in shared scratch. */
    int64_t n_taps, n_segments;
    size_t taps, segments, results, inputs_at, places, shared_end;
    /* What a thread has: places in its own. */
    size_t w, scale, offset, sums, rows, x, line, buffer, c, kernel, epilogue, thread_end;
};

/* ---- groups of one channel ------------------------------------------------------------------- */

/* How channels that lie together are cut: depthwise_image.c. */
struct qni_image_cut {
    int64_t block, n_blocks; /* channels; the last block has up to 15 more */
    int64_t columns;         /* of a call: about equal */
    int64_t wide_rows;       /* of y, for which x of 16 bits is widened at once; 0: impossible */
    int64_t wide_columns;    /* the same; fewer than `columns` where that is seldom done */
    int64_t band, n_bands, n_items; /* rows of y */
    size_t wide;
    size_t w, line[3], words, c, end; /* private scratch of a thread */
};

/* A ring of rows of x as floats: n_slots rows, and one of zeros behind them (depthwise_ring.c). */
struct qni_ring {
    bool by_pixel;  /* lanes are pixels */
    bool is_apart;  /* a strip for each horizontal tap */
    bool is_cyclic; /* row iy lives in slot iy mod n_slots; else in that of the tap that reads it */
    int64_t tile;   /* outputs along a row */
    int64_t vector; /* floats from column to column */
    int64_t strip;  /* floats from strip to strip: taps if apart, else residues */
    int64_t n_strips;
    int64_t strip_columns;
    int64_t n_slots;
};

/* Where the private scratch of a thread has what. */
struct qni_ring_places {
    size_t in, rows, prescale, tags, panels, one, ring, c, line[4], end;
};

struct qni_ring_cut {
    struct qni_ring ring;
    struct qni_ring_places places;
    int64_t block, n_blocks; /* outputs of an item */
    int64_t band;            /* rows of an item, of whatever phase */
};

/* ---- all ------------------------------------------------------------------------------------- */

struct qni_conv_kernel; /* a row of kernels.inc */

struct qni_conv_cut {
    /* What it was made for. Runs of a smaller batch, or of x and y with other strides, make their
     * own: conv.c. */
    int64_t batch, xs[4], ys[4];
    size_t packed_bytes, codes_offset; /* of the weights: what may be read behind them */
    /* Runs where data rule the row out; NULL: they cannot. */
    const struct qni_conv_kernel *stand_in;
    union {
        struct qni_direct_shape direct;
        struct qni_groups_shape groups;
        struct qni_image_cut image;
        struct qni_ring_cut ring;
    } of;
};

#endif
