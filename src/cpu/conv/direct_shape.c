/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a direct convolution: direct_shape.h. */
#include "direct_shape.h"

#include <string.h>

#include "../layouts.h"
#include "../rows/epilogue.h"
#include "direct_columns.h"
#include "direct_runs.h"

enum {
    CALL_BYTES = 768 * 1024,    /* weights that pass by every 32 rows, in the second cache */
    UNPACKED_BYTES = 24 * 1024, /* the same, unpacked and in the first cache */
    SLAB_BYTES = 40 * 1024,     /* the same, of few rows: a call more costs more (measured) */
    TURNED_BYTES = 128 * 1024,  /* of y, written as rows and read to be planes */
    KEPT_BYTES = 128 * 1024,    /* unpacked once for all bands */
    PATCH_BYTES = 256 * 1024,   /* patches: written and read at once */
    COLUMN_BYTES = 256 * 1024,  /* columns: the same */
    BAND_BYTES = 640 * 1024, /* a third of the second cache: weights and y pass through it, too */
    GATHERED_BYTES = 192 * 1024, /* the same where rows gather, whose second cache is smaller */
    BAND_ROWS = 2048,
    FAR_BYTES = 960 * 1024,   /* half of the second cache: x and y pass by, too */
    PARTS_BYTES = 192 * 1024, /* of y, in parts of rows, before they crowd (measured) */
    FIRST_BYTES = 32 * 1024,  /* of the first cache, for unpacked weights of a block */
    STAYS_BYTES = 42 * 1024   /* of the first cache, while weights pass by */
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Nanoseconds of a core, measured on a 3.9 GHz AMX machine; only their ratios matter. Four products
 * take 19.6, storing their tiles 17, and the way to bytes 75 if no product hides it. */
static double block_ns(int64_t steps)
{
    const double products = 17 + 19.6 * (double)steps;
    return products > 75 ? products : 75;
}
static double copy_ns(double bytes)
{
    return bytes / 20;
}

/* Is row r of the patch matrix x + r * stride, as it lies? */
static bool is_in_place(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    for (int32_t i = 0; i < 2; i++)
        if ((i == 0 ? c->kh : c->kw) != 1 || c->stride[i] != 1 || c->pad[i] != 0)
            return false;
    return op->x.dtype == QN_I8 && c->xs[1] == 1 && c->groups * c->ci >= 4 && c->oh == c->h &&
           c->ow == c->w && c->xs[2] == c->w * c->xs[3] &&
           (c->batch == 1 || c->xs[0] == c->h * c->xs[2]);
}

bool qni_direct_has_planes(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    const int64_t taps = (int64_t)c->kh * c->kw;
    /* An image in planes is turned line by line, once for all taps. Of 1 x 1 the patches are that,
     * and all of an image is one line. */
    const bool turns = c->groups == 1 ? c->xs[3] == 1 && taps > 1 : c->w == 1 || c->stride[1] == 1;
    return (c->xs[1] == 1 || turns) && taps <= QNI_DIRECT_TAPS && c->kh <= QNI_DIRECT_PLANES &&
           c->kw <= QNI_DIRECT_PLANES;
}

/* Planes by the phase of the stride (one for all taps of a phase), or one for every tap. */
static struct qni_plane_axis plane_axis(const struct qni_axis *a, bool by_tap)
{
    struct qni_plane_axis p;
    memset(&p, 0, sizeof p);
    p.stride = a->stride;
    for (int32_t tap = 0; tap < a->taps; tap++) {
        const int64_t reach = (int64_t)tap * a->dilation;
        const int64_t first = (by_tap ? reach : reach % a->stride) - a->pad;
        int32_t which = 0;
        while (which < p.n_planes && p.first[which] != first)
            which++;
        p.first[which] = first;
        p.n_planes = (int32_t)qni_max(p.n_planes, which + 1);
        p.plane[tap] = which;
        p.moved[tap] = by_tap ? 0 : reach / a->stride;
        p.extra = qni_max(p.extra, p.moved[tap]);
    }
    return p;
}

/* May the last `shared` elements of a plane's lines be the first ones of the next line? Each is
 * read as padding in both or not at all. */
static bool may_share(const struct qni_plane_axis *p, int32_t taps, const struct qni_axis *x,
                      int64_t shared)
{
    const int64_t columns = x->out + p->extra - shared;
    for (int32_t tap = 0; tap < taps; tap++) {
        const int64_t first = p->first[p->plane[tap]];
        const int64_t before = first < 0 ? qni_ceil_div(-first, p->stride) : 0;
        const int64_t end = first >= x->in ? 0 : (x->in - 1 - first) / p->stride + 1;
        const int64_t beyond = x->out + p->moved[tap] - columns; /* read of the next line */
        if (beyond > 0 && (end > columns || before < beyond))
            return false;
    }
    return true;
}

static void count_columns(const struct qni_op *op, struct qni_direct_shape *s)
{
    const struct qni_axis x = qni_conv_axis(op, 1);
    s->shared = s->axis[1].extra;
    while (!may_share(&s->axis[1], op->conv.kw, &x, s->shared))
        s->shared--;
    s->columns = x.out + s->axis[1].extra - s->shared;
}

static int64_t line_rows(const struct qni_direct_shape *s, int64_t lines)
{
    return lines * s->columns;
}

static void choose_planes(const struct qni_op *op, struct qni_direct_shape *s)
{
    const struct qni_axis y = qni_conv_axis(op, 0), x = qni_conv_axis(op, 1);
    s->rows_are = QNI_ROWS_IN_PLANES;
    s->pixel = s->slabs.pixel;
    s->axis[0] = plane_axis(&y, false);
    s->axis[1] = plane_axis(&x, false);
    count_columns(op, s);
    const struct qni_plane_axis apart = plane_axis(&x, true);
    /* Tiles of 16 rows: those of a small image may be there for nothing anyway. */
    const int64_t lines = op->conv.batch * y.out;
    const int64_t tiles = qni_ceil_div(lines * s->columns - (s->columns - x.out), 16);
    const int64_t needed = qni_ceil_div(lines * x.out, 16);
    const double in_vain = (double)(tiles - needed) / 2 * block_ns(s->steps) * (double)s->n_blocks;
    const double more = (double)(apart.n_planes - s->axis[1].n_planes) *
                        (double)qni_plane_bytes(s, op->conv.batch, y.out) * s->axis[0].n_planes;
    if (in_vain > copy_ns(more)) {
        s->axis[1] = apart;
        count_columns(op, s);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Planes of lines as they lie in x, with their padding: a row of the product begins every `stride`
 * pixels, and taps that are neighbours are one run of bytes, whatever the channels. One plane
 * serves all taps of a row of the kernel. */
static void count_lines(const struct qni_op *op, struct qni_direct_shape *s)
{
    const struct qni_axis x = qni_conv_axis(op, 1);
    const int64_t reach = (int64_t)(x.taps - 1) * x.dilation + 1;
    const int64_t pixels = (x.out - 1) * x.stride + reach;
    /* What a line reads past its end is the padding of the next one, or there is no such thing. */
    s->columns = x.out;
    while (s->columns * x.stride < pixels &&
           (pixels - s->columns * x.stride > x.pad || s->columns * x.stride - x.pad < x.in))
        s->columns++;
    s->shared = qni_ceil_div(qni_max(0, pixels - s->columns * x.stride), x.stride);
}

static void as_lines(const struct qni_op *op, struct qni_direct_shape *s)
{
    const struct qni_conv *c = &op->conv;
    const struct qni_axis y = qni_conv_axis(op, 0);
    s->rows_are = QNI_ROWS_IN_PLANES;
    s->run = c->dilation[1] == 1 ? c->kw : 1;
    s->n_taps = (int64_t)c->kh * (c->kw / s->run);
    s->tap_steps = qni_ceil_div(s->run * c->ci, QNI_DIRECT_STEP);
    s->steps = s->n_taps * s->tap_steps;
    s->pixel = (int64_t)c->stride[1] * c->ci;
    s->axis[0] = plane_axis(&y, false);
    memset(&s->axis[1], 0, sizeof s->axis[1]);
    s->axis[1].n_planes = 1;
    s->axis[1].first[0] = -c->pad[1];
    s->axis[1].stride = 1;
    count_lines(op, s);
}

/* Lines instead of patches, of an image? A piece of a patch takes about as long to find as to copy;
 * steps end with every tap of lines. */
static bool lines_pay(const struct qni_op *op, const struct qni_direct_shape *lines,
                      const struct qni_direct_shape *patches)
{
    const struct qni_conv *c = &op->conv;
    const double outputs = (double)(c->oh * c->ow), piece_ns = 9;
    const double columns = (double)lines->columns / (double)c->ow;
    const double blocks = outputs / 32 * (double)lines->n_blocks;
    const double copy = outputs * (double)patches->pixel;
    const double find =
        qni_has_runs(op, patches->pixel) || c->xs[1] != 1 ? 0 : outputs * c->kh * piece_ns;
    const double planes = (double)qni_band_planes(lines) * (double)qni_plane_bytes(lines, 1, c->oh);
    return copy_ns(planes) + blocks * columns * block_ns(lines->steps) <
           copy_ns(copy) + find + blocks * block_ns(patches->steps);
}

/* ---- pixels that end with zeros -------------------------------------------------------------- */

static void as_padded(const struct qni_op *op, struct qni_direct_shape *s)
{
    choose_planes(op, s);
    s->is_padded = true;
}

/* What a pixel takes besides its copy: its sum, and the zeros behind its channels. */
static double pixels_ns(const struct qni_direct_shape *s)
{
    return (double)(s->pixel == QNI_DIRECT_STEP ? 1.5 : 3);
}

/* Planes of whole steps instead of lines, of an image? Weights stay where they are, and rows of
 * tiles are whole lines of the cache, but there are more steps. Of rows of lines half begin inside
 * a line of the cache, or most do: a tile takes longer to load (measured: 1.1 and 1.35 for all). So
 * it does if weights that are moved leave the first cache. */
static bool padding_pays(const struct qni_op *op, const struct qni_direct_shape *padded,
                         const struct qni_direct_shape *lines)
{
    const struct qni_conv *c = &op->conv;
    const double tiles = (double)c->oh / 32 * (double)lines->n_blocks;
    const double torn = c->ci % 32 == 0 ? 1.1 : 1.35;
    const int64_t block = lines->steps * 2 * QNI_DIRECT_STEP_BYTES;
    const double far = block > FIRST_BYTES ? 1.25 : 1;
    const double steps = 19.6 * (double)lines->steps * torn * far;
    const double moved = (double)(block * lines->n_blocks) / 36;
    const double planes =
        (double)qni_band_planes(padded) * (double)qni_plane_bytes(padded, 1, c->oh);
    const double line = (double)qni_plane_bytes(lines, 1, c->oh);
    return copy_ns(planes) + planes / (double)padded->pixel * pixels_ns(padded) +
               tiles * (double)padded->columns * block_ns(padded->steps) <
           copy_ns(line) + moved + tiles * (double)lines->columns * (17 + steps);
}

/* Rows of a 1 x 1 copied to whole steps, of an image, instead of all weights? */
static bool padding_unpacks_less(const struct qni_op *op, const struct qni_direct_shape *s)
{
    const double pixels = (double)(op->conv.oh * op->conv.ow), each = 3;
    const double weights = (double)(s->n_blocks * s->steps) * 2 * QNI_DIRECT_STEP_BYTES;
    return op->w[0]->head->units % 2 != 0 &&
           copy_ns(pixels * (double)s->slabs.pixel) + pixels * each < weights / 15;
}

/* ---- bands ----------------------------------------------------------------------------------- */

static int64_t band_bytes(const struct qni_direct_shape *s)
{
    return s->gathers ? GATHERED_BYTES : BAND_BYTES;
}

static int64_t even_bands(int64_t bands, int64_t most, int64_t threads)
{
    const int64_t even = qni_ceil_div(bands, threads) * threads;
    return qni_min(qni_max(bands, even), most);
}

/* Whole images while several fit and every thread gets some; else lines of one. */
static void cut_planes(const struct qni_op *op, struct qni_direct_shape *s, int64_t threads)
{
    const struct qni_conv *c = &op->conv;
    const int64_t image = qni_band_planes(s) * (int64_t)qni_plane_bytes(s, 1, c->oh);
    const int64_t line = qni_band_planes(s) * s->columns * s->pixel;
    const int64_t room = band_bytes(s) / s->n_apart - qni_band_planes(s) * s->shared * s->pixel;
    const int64_t fit =
        qni_min(band_bytes(s) / s->n_apart / image, BAND_ROWS / line_rows(s, c->oh));
    s->bands_per_image = 1;
    s->band_images = 1;
    s->band_lines = c->oh;
    if (fit >= 1 && c->batch >= threads) {
        const int64_t images = qni_min(fit, qni_ceil_div(c->batch, threads));
        s->n_bands = even_bands(qni_ceil_div(c->batch, images), c->batch, threads);
        s->band_images = qni_ceil_div(c->batch, s->n_bands);
        s->n_bands = qni_ceil_div(c->batch, s->band_images);
    } else {
        int64_t lines = qni_max(1, qni_min(room / line - s->axis[0].extra, BAND_ROWS / s->columns));
        lines -= lines > s->side ? lines % s->side : 0;
        const int64_t least = qni_ceil_div(threads, c->batch);
        int64_t bands = qni_max(qni_ceil_div(c->oh, lines), qni_min(least, c->oh));
        s->band_lines = qni_ceil_div(c->oh, bands);
        const int64_t even = qni_ceil_div(s->band_lines, s->side) * s->side;
        s->band_lines = even <= lines ? even : s->band_lines;
        s->bands_per_image = qni_ceil_div(c->oh, s->band_lines);
        s->n_bands = c->batch * s->bands_per_image;
    }
    s->band_rows = line_rows(s, s->band_lines) * s->band_images;
    s->a_bytes = qni_band_bytes(s, s->band_images, s->band_lines);
}

/* Bytes of rows that are not read where they lie. */
static size_t row_copies(const struct qni_direct_shape *s, int64_t rows)
{
    if (s->rows_are == QNI_ROWS_OF_PATCHES)
        return (size_t)(rows * s->pixel);
    return s->is_ragged ? (size_t)(QNI_DIRECT_TAIL * s->steps * QNI_DIRECT_STEP) : 0;
}

static void cut_rows(const struct qni_op *op, struct qni_direct_shape *s, int64_t threads)
{
    const int64_t most = band_bytes(s);
    const int64_t bytes = s->rows_are == QNI_ROWS_OF_PATCHES ? qni_min(most, PATCH_BYTES) : most;
    const int64_t fit = qni_max(32, qni_min(bytes / s->pixel, BAND_ROWS) / 32 * 32);
    const int64_t bands = even_bands(qni_ceil_div(op->m, fit), op->m, threads);
    s->band_rows =
        qni_max(32, qni_min(fit, (int64_t)qni_round_up((size_t)qni_ceil_div(op->m, bands), 32)));
    s->n_bands = qni_ceil_div(op->m, s->band_rows);
    s->a_bytes = row_copies(s, s->band_rows);
}

/* Lines of one image; of each thread as many bands. */
static int64_t most_lines(const struct qni_op *op, const struct qni_direct_shape *s)
{
    return qni_max(1, qni_min(op->conv.oh, COLUMN_BYTES / (s->columns * s->pixel)));
}
enum { BEHIND_COLUMNS = 16 * QNI_DIRECT_STEP };

static void cut_columns(const struct qni_op *op, struct qni_direct_shape *s, int64_t threads)
{
    const struct qni_conv *c = &op->conv;
    const int64_t least = qni_ceil_div(c->oh, most_lines(op, s));
    int64_t bands = least;
    while (c->batch * bands % threads != 0 && bands < 2 * least + threads)
        bands++;
    s->band_images = 1;
    s->band_lines = qni_ceil_div(c->oh, qni_min(bands, c->oh));
    s->bands_per_image = qni_ceil_div(c->oh, s->band_lines);
    s->n_bands = c->batch * s->bands_per_image;
    s->band_rows = line_rows(s, s->band_lines);
    s->a_bytes = (size_t)(s->band_rows * s->pixel) + BEHIND_COLUMNS;
}

/* All outputs as one band, if that stays in the cache. */
static bool as_one_band(const struct qni_op *op, struct qni_direct_shape *s)
{
    const struct qni_conv *c = &op->conv;
    if (s->rows_are == QNI_ROWS_IN_PLANES) {
        s->band_images = c->batch;
        s->band_lines = c->oh;
        s->bands_per_image = 1;
        s->band_rows = line_rows(s, c->oh) * c->batch;
        s->a_bytes = qni_band_bytes(s, c->batch, c->oh);
    } else {
        s->band_rows = (int64_t)qni_round_up((size_t)op->m, 32);
        s->a_bytes = row_copies(s, s->band_rows);
    }
    s->n_bands = 1;
    return s->band_rows <= BAND_ROWS && op->m * s->pixel <= BAND_BYTES && s->a_bytes <= BAND_BYTES;
}

static int64_t clamped(size_t bytes, int64_t least, int64_t most)
{
    const int64_t capped = bytes < (size_t)most ? (int64_t)bytes : most;
    return capped > least ? capped : least;
}

/* Bands of a smaller batch may hold more: all of it; and its planes may be those that this batch
 * has not chosen. */
static void most_of(const struct qni_op *op, struct qni_direct_shape *s)
{
    const struct qni_conv *c = &op->conv;
    int64_t bytes = (int64_t)s->a_bytes, rows = s->band_rows;
    if (s->rows_are == QNI_ROWS_OF_COLUMNS) {
        rows = line_rows(s, most_lines(op, s));
        bytes = rows * s->pixel + BEHIND_COLUMNS;
    } else if (s->rows_are != QNI_ROWS_IN_PLANES) {
        const size_t all = s->rows_are == QNI_ROWS_OF_PATCHES ? (size_t)(op->m * s->pixel) : 0;
        bytes = clamped(all, bytes, BAND_BYTES);
        rows = qni_max(rows, qni_min(BAND_ROWS, op->m + 31));
    }
    for (int by_tap = 0; s->rows_are == QNI_ROWS_IN_PLANES && by_tap < 2; by_tap++) {
        const struct qni_axis x = qni_conv_axis(op, 1);
        struct qni_direct_shape v = *s;
        if (s->run == 0) {
            v.axis[1] = plane_axis(&x, by_tap == 1);
            count_columns(op, &v);
        }
        const int64_t least = (int64_t)qni_band_bytes(&v, 1, 1);
        const size_t all = qni_band_bytes(&v, c->batch, c->oh);
        bytes = qni_max(bytes, clamped(all, least, BAND_BYTES));
        rows = qni_max(rows, qni_max(line_rows(&v, 1),
                                     qni_min(BAND_ROWS, line_rows(&v, c->oh) * c->batch + 31)));
    }
    s->most_a_bytes = (size_t)bytes;
    s->most_rows = rows;
}

/* Nanoseconds of the thread that has most to do. */
static double item_ns(const struct qni_op *op, const struct qni_direct_shape *s, int64_t threads)
{
    const double items = (double)qni_ceil_div(s->n_bands * s->items_per_band, threads);
    const double weights = (double)(s->blocks_per_item * s->steps) * 2 * QNI_DIRECT_STEP_BYTES;
    /* The last rows of a band are a block of half as many if they fit. */
    const double blocks = (double)(qni_ceil_div(s->band_rows, 16) * s->blocks_per_item) / 2;
    /* All that a thread reads of the weights, once: if its second cache cannot keep it from call to
     * call, it comes from afar. */
    const double read = s->items_per_band == 1 ? weights : weights * items;
    const double far = read > FAR_BYTES ? read / 60 : 0;
    /* Parts of rows of y lie in part of a cache's sets, and many of them push each other out. */
    const double parts = (double)(s->band_rows * s->blocks_per_item * 32);
    const double crowd =
        s->items_per_band > 1 && parts > PARTS_BYTES ? (parts - PARTS_BYTES) / 10 : 0;
    /* A line of y with outputs of two threads goes back and forth (measured: 8 to 10 ns a row). */
    const int64_t bytes = (int64_t)qn_dtype_bytes(op->y.dtype);
    const bool has_edges = op->conv.ys[1] == 1 && (s->blocks_per_item * 32 * bytes % 64 != 0 ||
                                                   op->conv.ys[3] * bytes % 64 != 0);
    const double torn = s->items_per_band > 1 && has_edges ? 9 * (double)s->band_rows : 0;
    return far + crowd + torn +
           items * (copy_ns((double)s->a_bytes) + (s->reads_codes ? 0 : weights / 15) +
                    blocks * block_ns(s->steps));
}

static int64_t squares_of(const struct qni_op *op, int64_t side)
{
    const struct qni_conv *c = &op->conv;
    return c->batch * qni_ceil_div(c->oh, side) * qni_ceil_div(c->ow, side);
}

/* Weights are used as they are packed where unpacking would be for few rows, or where the weights
 * of a block are more than the first cache keeps: then a block of rows has to stay in it. */
static void choose_order(const struct qni_op *op, struct qni_direct_shape *s)
{
    if (s->gathers) {
        s->blocks_per_call = s->blocks_per_item;
        s->unpacked_blocks = s->in_squares ? s->n_blocks : 0;
        if (s->in_squares && s->n_bands == 1 &&
            squares_of(op, s->side) <= qni_direct_squares_most(op->conv.ci, s->side))
            s->blocks_per_call = s->unpacked_blocks = 1; /* used once: in the second cache */
        if (qni_direct_turns(op))
            s->blocks_per_call =
                qni_max(1, qni_min(s->blocks_per_call, TURNED_BYTES / (32 * s->band_rows)));
        return;
    }
    enum { FEW_ROWS = 512, LONG = 16, MANY = 32 };
    const struct qni_packed_head *head = op->w[0]->head;
    const struct qni_layout *layout = qni_layout_find(head->layout);
    /* The last step of the last tap may end behind the codes: so must what is there to read. */
    const uint64_t codes_end =
        head->section[QNI_SECTION_CODES].offset + head->section[QNI_SECTION_CODES].bytes;
    const bool ends =
        s->is_padded ? head->bytes - codes_end >= QNI_DIRECT_STEP_BYTES : head->units % 2 == 0;
    const bool whole = layout != NULL && layout->layout == QNI_LAYOUT_Q8N16 && ends;
    /* The sum of what a row meets is made of sums that begin where rows do. */
    const bool is_even = s->run == 0 || s->run == op->conv.kw;
    s->reads_codes =
        whole && is_even && s->rows_are != QNI_ROWS_OF_COLUMNS && !qni_direct_parts_taps(op, s) &&
        !s->moves &&
        (s->band_rows <= FEW_ROWS || s->steps >= LONG || s->n_blocks * s->steps > MANY);
    const int64_t reach = s->rows_are == QNI_ROWS_IN_PLANES
                              ? s->axis[0].extra * s->band_images * s->columns + s->axis[1].extra
                              : 0;
    const int64_t planes = s->rows_are == QNI_ROWS_IN_PLANES ? qni_band_planes(s) : 1;
    const int64_t met = qni_min(64 + reach, s->band_rows + reach) * planes;
    s->is_tall = s->reads_codes && s->steps >= LONG && met * s->pixel <= STAYS_BYTES;
    s->panel_bytes =
        s->slabs.is_apart ? qni_slab_panel_bytes(op) : (size_t)s->steps * QNI_DIRECT_STEP_BYTES;
    const int64_t block = 2 * (int64_t)s->panel_bytes;
    const int64_t slab = s->slabs.is_apart ? QNI_APART_BYTES : SLAB_BYTES;
    const int64_t most_unpacked = s->moves ? slab : UNPACKED_BYTES;
    s->unpacked_blocks = qni_max(1, qni_min(s->n_blocks, most_unpacked / block));
    if (s->n_blocks * block <= KEPT_BYTES)
        s->unpacked_blocks = s->n_blocks;
    const bool many = s->moves && s->band_rows > FEW_ROWS;
    const int64_t most = s->reads_codes ? CALL_BYTES : many ? UNPACKED_BYTES : most_unpacked;
    s->blocks_per_call = qni_max(1, qni_min(s->blocks_per_item, most / block));
    if (qni_direct_turns(op))
        s->blocks_per_call =
            qni_max(1, qni_min(s->blocks_per_call, TURNED_BYTES / (32 * s->band_rows)));
}

/* ---- rows that gather ------------------------------------------------------------------------ */

/* Does no tap of any output read outside of x, where pixels are whole? */
static bool reads_inside(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    for (int32_t i = 0; i < 2; i++) {
        const struct qni_axis a = qni_conv_axis(op, i);
        if (a.pad != 0 || (a.out - 1) * a.stride + (int64_t)(a.taps - 1) * a.dilation >= a.in)
            return false;
    }
    return c->xs[1] == 1 && (int64_t)c->kh * c->kw <= QNI_DIRECT_TAPS;
}

bool qni_direct_has_lines(const struct qni_op *op)
{
    return reads_inside(op) || qni_direct_has_planes(op);
}

/* Rows are gathered once for all outputs, so what decides is how few copies there are before. */
static struct qni_direct_shape gathered_shape(const struct qni_op *op, int32_t algorithm)
{
    const bool in_squares = qni_conv_in_squares(algorithm);
    const struct qni_conv *c = &op->conv;
    const int64_t taps = (int64_t)c->kh * c->kw;
    struct qni_direct_shape s;
    memset(&s, 0, sizeof s);
    s.gathers = true;
    s.in_squares = in_squares;
    s.whole_lines = in_squares || algorithm == QNI_CONV_TOOM;
    s.side = algorithm == QNI_CONV_WINOGRAD4X4 ? 4 : in_squares ? 2 : 1;
    s.slabs = (struct qni_slabs){1, c->groups, c->ci, c->co, c->ci, false};
    s.n_apart = 1;
    s.n_blocks = qni_ceil_div(c->co, 32);
    s.blocks_per_item = s.n_blocks;
    s.items_per_band = 1;
    s.step_bytes = QNI_DIRECT_STEP;
    if (reads_inside(op) && !s.whole_lines) {
        s.rows_are = QNI_ROWS_IN_PLACE;
        s.n_taps = taps;
        s.pixel = c->xs[3];
        s.tap_bytes = c->ci;
    } else if (qni_direct_has_planes(op)) {
        as_lines(op, &s);
        s.tap_bytes = s.run * c->ci;
    } else {
        s.rows_are = QNI_ROWS_OF_PATCHES;
        s.n_taps = 1;
        s.pixel = op->w[0]->head->units * QNI_UNIT;
        s.tap_bytes = op->k;
    }
    s.tap_steps = qni_ceil_div(s.tap_bytes, QNI_DIRECT_STEP);
    s.steps = s.n_taps * s.tap_steps;
    s.reads_codes = !in_squares;
    if (in_squares)
        s.panel_bytes = (size_t)qni_direct_squares_taps(s.side) * qni_direct_squares_tap(c->ci);
    return s;
}

/* Nanoseconds of the thread that has most to do, at 3.2 GHz with AVX2; only their ratios matter. */
static double gathered_ns(const struct qni_op *op, const struct qni_direct_shape *s,
                          int64_t threads)
{
    enum { ROWS = 64 };
    const double channels = (double)op->conv.ci;
    const double items = (double)qni_ceil_div(s->n_bands * s->items_per_band, threads);
    const double rows = (double)qni_min(s->band_rows, op->m), k = (double)op->k;
    const double outputs = (double)(s->blocks_per_item * 32);
    const double blocks = (double)qni_ceil_div((int64_t)rows, ROWS);
    if (s->in_squares)
        return channels * outputs * (s->side == 4 ? 1.8 : 0.8) +
               items * (copy_ns((double)s->a_bytes) + rows * channels * 0.12 +
                        rows * k * outputs / (s->side == 4 ? 220 : 150));
    return items * (copy_ns((double)s->a_bytes) + rows * k * 0.12 + blocks * k * outputs * 0.03 +
                    rows * k * outputs / 85);
}

bool qni_direct_turns(const struct qni_op *op)
{
    return qn_dtype_bytes(op->y.dtype) == 1 && op->conv.ys[1] != 1 && op->conv.ys[3] == 1;
}

static struct qni_direct_shape tiled_shape(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    const struct qni_packed_head *head = op->w[0]->head;
    const int64_t taps = (int64_t)c->kh * c->kw;
    const struct qni_columns columns = qni_columns_of(op);
    struct qni_direct_shape s;
    memset(&s, 0, sizeof s);
    s.image_columns = columns;
    s.slabs = qni_slabs_of(op);
    s.moves = qni_slabs_move(op);
    s.side = 1;
    s.n_apart = s.slabs.is_apart ? s.slabs.groups : 1;
    s.n_blocks = qni_ceil_div(s.slabs.outputs, 32);
    s.blocks_per_item = s.n_blocks;
    s.items_per_band = 1;
    s.n_taps = taps;
    s.tap_steps = s.slabs.pixel / QNI_DIRECT_STEP;
    s.steps = taps * s.tap_steps;
    s.pixel = c->xs[3];
    s.is_ragged = s.slabs.pixel * s.slabs.count != c->ci * c->groups;
    const bool has_planes = qni_direct_has_planes(op);
    const bool turns_lines = c->xs[1] != 1 && c->stride[1] != 1;
    const bool in_planes = c->groups > 1 || (!s.is_ragged && !turns_lines);
    const bool may_pad = has_planes && s.is_ragged && !turns_lines && c->groups == 1 &&
                         (c->ci % 4 == 0 || taps == 1);
    struct qni_direct_shape padded = s;
    if (s.slabs.is_apart) {
        as_lines(op, &s);
        s.n_taps *= s.tap_steps;
        s.tap_steps = 1;
    } else if (is_in_place(op)) {
        s.rows_are = QNI_ROWS_IN_PLACE;
        if (may_pad && padding_unpacks_less(op, &s))
            as_padded(op, &s);
    } else if (has_planes && in_planes) {
        choose_planes(op, &s);
    } else if (columns.depth != 0) {
        s.rows_are = QNI_ROWS_OF_COLUMNS;
        s.n_taps = s.steps = columns.n_taps;
        s.tap_steps = 1;
        s.pixel = QNI_DIRECT_STEP;
        s.columns = columns.units;
    } else {
        struct qni_direct_shape lines = s;
        s.rows_are = QNI_ROWS_OF_PATCHES;
        s.n_taps = 1;
        s.steps = s.tap_steps = qni_ceil_div(head->units, 2);
        s.pixel = s.steps * QNI_DIRECT_STEP;
        if (has_planes) /* else there are more taps than planes */
            as_lines(op, &lines);
        if (has_planes && (lines.n_taps == 1 || lines.run * c->ci % 4 == 0) &&
            lines_pay(op, &lines, &s))
            s = lines;
        if (may_pad && s.run != 0 && s.steps * 2 > padded.steps) {
            as_padded(op, &padded);
            if (padding_pays(op, &padded, &s))
                s = padded;
        }
    }
    const bool is_lone =
        !s.slabs.is_apart && s.tap_steps == 1 && (s.run != 0 || s.rows_are == QNI_ROWS_IN_PLACE);
    s.step_bytes = QNI_DIRECT_STEP;
    if (is_lone)
        s.step_bytes = (int32_t)qni_round_up((size_t)(qni_max(s.run, 1) * s.slabs.channels), 4);
    if (s.slabs.is_apart) /* a tap for each step */
        s.step_bytes = (int32_t)(taps * c->ci / s.n_taps);
    return s;
}

/* ---- scratch --------------------------------------------------------------------------------- */

/* Places the parts of a thread's scratch, in the order in which qni_direct_scratch_in() takes
 * them. */
static void place_scratch(const struct qni_op *op, struct qni_direct_shape *s)
{
    const size_t panel = s->gathers ? s->panel_bytes : (size_t)s->steps * QNI_DIRECT_STEP_BYTES;
    const size_t rows = (size_t)s->most_rows, words = (size_t)s->n_blocks * 32 * sizeof(float);
    const struct qni_patches p = qni_patches_of(op, NULL, 0, 0, false);
    const bool planes = s->rows_are == QNI_ROWS_IN_PLANES;
    const size_t line = s->rows_are == QNI_ROWS_OF_COLUMNS ? qni_columns_bytes(&s->image_columns)
                        : qni_direct_parts_taps(op, s)     ? panel
                        : s->moves                         ? qni_slab_panel_bytes(op)
                        : planes                           ? 0
                        : s->has_runs                      ? qni_runs_bytes(op)
                                                           : qni_patches_line_bytes(&p);
    /* The last row of a plane reads as many bytes as others do. */
    const size_t behind = s->run != 0 ? (size_t)(s->tap_steps * QNI_DIRECT_STEP) : 0;
    const size_t bytes[QNI_DIRECT_PARTS] = {
        s->gathers ? QNI_DIRECT_SCRATCH_GATHERS : QNI_DIRECT_SCRATCH,
        (size_t)(s->in_squares ? s->n_blocks : s->unpacked_blocks) * 2 * panel,
        s->most_a_bytes + behind,
        rows * sizeof(int64_t),
        s->gathers ? rows * sizeof(int64_t) : 0,
        rows * sizeof(uint8_t *),
        (size_t)op->n + 64,
        (s->whole_lines ? rows : QNI_DIRECT_WORDS) * 32 * sizeof(float),
        sizeof(struct qni_epilogue_scratch),
        line,
        words,
        words,
        words,
        rows * sizeof(int32_t),
        planes ? s->most_a_bytes / (size_t)s->pixel * sizeof(int32_t) : 0,
        qni_direct_turns(op) ? rows * 32 + TURNED_BYTES : 0};
    s->scratch_at[0] = 0;
    for (int i = 0; i < QNI_DIRECT_PARTS; i++)
        s->scratch_at[i + 1] = s->scratch_at[i] + qni_round_up(bytes[i], 64);
}

struct qni_direct_shape qni_direct_shape_of(const qn_ctx *ctx, const struct qni_op *op,
                                            int32_t algorithm)
{
    const bool gathers = algorithm != QNI_CONV_TILES;
    struct qni_direct_shape s = gathers ? gathered_shape(op, algorithm) : tiled_shape(op);
    /* Slabs are work for as many threads. */
    const int64_t threads = qni_ceil_div(ctx->threads.n_threads, s.slabs.count);
    struct qni_direct_shape one = s;
    if (s.rows_are == QNI_ROWS_IN_PLANES)
        cut_planes(op, &s, threads);
    else if (s.rows_are == QNI_ROWS_OF_COLUMNS)
        cut_columns(op, &s, threads);
    else
        cut_rows(op, &s, threads);
    if (s.rows_are != QNI_ROWS_OF_COLUMNS && threads > 1 && s.n_blocks > 1 &&
        as_one_band(op, &one)) {
        one.blocks_per_item = qni_ceil_div(one.n_blocks, threads);
        one.items_per_band = qni_ceil_div(one.n_blocks, one.blocks_per_item);
        choose_order(op, &one);
        choose_order(op, &s);
        const double now = gathers ? gathered_ns(op, &s, threads) : item_ns(op, &s, threads);
        const double then = gathers ? gathered_ns(op, &one, threads) : item_ns(op, &one, threads);
        if (then < 0.95 * now)
            s = one;
    }
    choose_order(op, &s);
    most_of(op, &s);
    s.n_items = s.slabs.count * s.n_bands * s.items_per_band;
    s.has_runs = !gathers && s.rows_are == QNI_ROWS_OF_PATCHES && qni_has_runs(op, s.pixel);
    place_scratch(op, &s);
    return s;
}

struct qni_direct_scratch qni_direct_scratch_in(const struct qni_direct_shape *s, uint8_t *memory)
{
    const size_t *const at = s->scratch_at;
    return (struct qni_direct_scratch){
        .kernel = memory + at[0],
        .b = memory + at[1],
        .a = (int8_t *)memory + at[2],
        .real = (int64_t *)(void *)(memory + at[3]),
        .at = (int64_t *)(void *)(memory + at[4]),
        .y = (uint8_t **)(void *)(memory + at[5]),
        .nowhere = memory + at[6],
        .c = (float *)(void *)(memory + at[7]),
        .epilogue = (struct qni_epilogue_scratch *)(void *)(memory + at[8]),
        .line = memory + at[9],
        .scale = (float *)(void *)(memory + at[10]),
        .bias = (float *)(void *)(memory + at[11]),
        .zero = (int32_t *)(void *)(memory + at[12]),
        .sums = (int32_t *)(void *)(memory + at[13]),
        .pixels = (int32_t *)(void *)(memory + at[14]),
        .turned = memory + at[15],
    };
}

size_t qni_direct_scratch_bytes(const qn_ctx *ctx, const struct qni_op *op, int32_t algorithm,
                                const struct qni_direct_shape *shape)
{
    size_t most = shape->scratch_at[QNI_DIRECT_PARTS];
    if (op->conv.xs[1] != 1 && op->conv.h * op->conv.w > 1)
        return most;
    /* Pixels without gaps, and pixels and rows with them. */
    struct qni_op any = *op;
    any.conv.xs[1] = 1;
    for (int64_t gap = 0; gap < 2; gap++) {
        any.conv.xs[3] = op->conv.groups * op->conv.ci + gap;
        any.conv.xs[2] = op->conv.w * any.conv.xs[3] + gap;
        any.conv.xs[0] = op->conv.h * any.conv.xs[2] + gap;
        const struct qni_direct_shape s = qni_direct_shape_of(ctx, &any, algorithm);
        const size_t bytes = s.scratch_at[QNI_DIRECT_PARTS];
        most = bytes > most ? bytes : most;
    }
    return most;
}
