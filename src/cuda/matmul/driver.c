/* SPDX-License-Identifier: Apache-2.0 */
/* Launches, one after another: driver.h. What launchers get is made in prepared.c and weights.c. */
#include "driver.h"

#include <string.h>

#include "../../base/compiler.h"
#include "../../quant/magnitude.h"
#include "../fp8.h"
#include "../weights.h"
#include "dense.h"
#include "pixels.h"
#include "prepared.h"

/* ---- sizes ----------------------------------------------------------------------------------- */

enum {
    /* Prepared rows at once: enough that a chunk fills any GPU many times over, little enough to be
     * a side matter beside the weights. */
    CHUNK_BYTES = 64 << 20,
    /* Each chunk of a grouped product reads the weights of all experts. */
    GROUPED_BYTES = 256 << 20,
    /* Where only rows that are not aligned are prepared at all. */
    SPARE_BYTES = 8 << 20,
    CHUNK_ROWS = 128 /* a multiple of every tile */
};

const struct qni_cuda_kernel *qni_cuda_kernel_for(const struct qni_cuda_choice *c, int64_t m)
{
    int32_t i = c->n_choices - 1;
    while (i > 0 && c->m_from[i] > m)
        i--;
    return c->kernel[i];
}

static bool is_image(const struct qni_cuda_kernel *kernel)
{
    return kernel->family == QNI_CUDA_FAMILY_IMAGE;
}

/* Bytes of a copy of images, the largest over the kernels of a choice: of one at least, of all if
 * there is room. */
static size_t images_bytes(const struct qni_op *op, const struct qni_cuda_choice *c)
{
    size_t most = 0;
    for (int32_t i = 0; i < c->n_choices; i++) {
        const struct qni_cuda_kernel *k = c->kernel[i];
        struct qni_cuda_rows unused;
        if (!is_image(k))
            continue;
        const size_t limit = qni_cuda_pixels_lie(op, k) ? SPARE_BYTES : CHUNK_BYTES;
        const size_t one = qni_cuda_pixels_in(op, k, 1, NULL, &unused);
        const size_t all = qni_cuda_pixels_in(op, k, op->conv.batch, NULL, &unused);
        const size_t bytes = all <= limit ? all : one > limit ? one : limit;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Bytes of prepared rows, the largest over the kernels of a choice. */
static size_t rows_bytes(const struct qni_op *op, const struct qni_cuda_choice *c, int64_t rows)
{
    const struct qni_cuda_shape shape = {rows, qni_cuda_shape_of(op).parts};
    struct qni_cuda_rows unused;
    size_t most = 0;
    for (int32_t i = 0; i < c->n_choices; i++) {
        if (qni_cuda_is_dense(c->kernel[i]) || is_image(c->kernel[i]))
            continue;
        const size_t bytes = qni_cuda_rows_in(op, c->kernel[i], &shape, NULL, &unused);
        most = bytes > most ? bytes : most;
    }
    return most;
}

struct routes_layout {
    int64_t n_tiles;
    size_t tiles, rows, scratch, bytes; /* offsets; of everything */
};

static struct routes_layout lay_out_routes(const struct qni_op *op, int32_t mr, int64_t m)
{
    struct routes_layout l;
    size_t at = 0;
    l.n_tiles = qni_ceil_div(m, mr) + op->n_w;
    l.tiles = at;
    at += qni_round_up((size_t)l.n_tiles * 12, 256);
    l.rows = at;
    at += qni_round_up((size_t)m * 4, 256);
    l.scratch = at;
    at += qni_round_up(qni_cuda_route_bytes(m, op->n_w), 256);
    l.bytes = at;
    return l;
}

void qni_cuda_size(const struct qni_op *op, struct qni_cuda_choice *c)
{
    const bool grouped = op->kind == QNI_GROUPED;
    c->reads_x = 1;
    for (int32_t i = 0; i < c->n_choices; i++)
        c->reads_x = c->reads_x && (qni_cuda_is_dense(c->kernel[i]) || is_image(c->kernel[i]) ||
                                    qni_cuda_reads_x(op, c->kernel[i]));
    c->chunk = qni_max(op->m, 1);
    const size_t limit = c->reads_x ? SPARE_BYTES : grouped ? GROUPED_BYTES : CHUNK_BYTES;
    if (rows_bytes(op, c, c->chunk) > limit) {
        const size_t some = rows_bytes(op, c, CHUNK_ROWS);
        c->chunk = qni_min(c->chunk, qni_max(1, (int64_t)(limit / some)) * CHUNK_ROWS);
    }
    c->chunk_bytes = rows_bytes(op, c, c->chunk);
    const size_t images = images_bytes(op, c);
    c->chunk_bytes = images > c->chunk_bytes ? images : c->chunk_bytes;
    for (int32_t i = 0; i < c->n_choices && grouped; i++) {
        const struct routes_layout l = lay_out_routes(op, c->kernel[i]->mr, op->m);
        c->routes_bytes = l.bytes > c->routes_bytes ? l.bytes : c->routes_bytes;
    }
    c->scratch_bytes = c->chunk_bytes + c->routes_bytes;
    if (c->dense.scratch_bytes > c->scratch_bytes)
        c->scratch_bytes = c->dense.scratch_bytes;
    if (c->n_choices == 1 && qni_cuda_is_dense(c->main))
        c->chunk = c->dense.rows;
}

/* ---- a product ------------------------------------------------------------------------------- */

struct run {
    const struct qni_op *op;
    const struct qni_cuda_kernel *kernel;
    const struct qni_cuda_launch *launch;
    struct qni_cuda_launch after; /* how the next product is launched */
    struct qni_cuda_product product;
    struct qni_cuda_source source;
    uint8_t *prepared;
    qn_error *err;
};

/* May these two be told in one launch? Sections of the blob are where the head says. */
static bool is_same_blob(const struct qni_packed_head *a, const struct qni_packed_head *b)
{
    return a->scale_dtype == b->scale_dtype && a->zero_dtype == b->zero_dtype &&
           memcmp(a->section, b->section, sizeof a->section) == 0;
}

static qn_status launch_kernel(struct run *r, const struct qni_cuda_product *product,
                               const struct qni_cuda_experts *experts)
{
    const struct qni_cuda_launch how = r->after;
    r->after = *r->launch;
    return qni_cuda_launched(r->kernel->fn(product, experts, &how), r->kernel->name, r->err);
}

/* By which power of two weights are multiplied before they are rounded. */
static int32_t exponent_of(const struct run *r, const struct qn_packed *w)
{
    const bool rounds = r->kernel->family == QNI_CUDA_FAMILY_ROUNDED;
    return rounds ? qni_magnitude_exponent(w->magnitude, r->op->x.dtype) : 0;
}

/* Experts [first, end), those of equal make together, as many as a launch takes at a time. */
static qn_status launch_experts(struct run *r, int32_t first, int32_t end)
{
    const struct qni_op *op = r->op;
    struct qni_cuda_experts experts;
    for (int32_t e = first; e < end; e += experts.n) {
        int32_t least = INT8_MAX;
        memset(&experts, 0, sizeof experts);
        experts.first = e;
        while (experts.n < QNI_CUDA_MAX_EXPERTS && e + experts.n < end &&
               is_same_blob(op->w[e]->head, op->w[e + experts.n]->head)) {
            const int32_t exponent = exponent_of(r, op->w[e + experts.n]);
            least = exponent < least ? exponent : least;
            experts.blob[experts.n] = op->w[e + experts.n]->blob;
            experts.exponent[experts.n] = (int8_t)exponent;
            experts.n++;
        }
        r->product.w = qni_cuda_weights_of(op->w[e], r->kernel->reads);
        r->product.w.blob = NULL;
        r->product.w.exponent = least;
        QNI_TRY(launch_kernel(r, &r->product, &experts));
    }
    return QN_OK;
}

static qn_status launch_product(struct run *r)
{
    static const struct qni_cuda_experts none;
    if (r->op->kind == QNI_GROUPED)
        return launch_experts(r, 0, r->op->n_w);
    return launch_kernel(r, &r->product, &none);
}

/* May the product begin, and read weights, while its rows are quantized? Both launches are ours,
 * and the first began when all that was before it in the stream had ended; so that the caller's
 * word on programmatic launches, which is about what others launch, need not be asked. */
static bool begins_early(const struct run *r)
{
    return r->launch->sm >= 90 && r->kernel->family == QNI_CUDA_FAMILY_DECODE &&
           (r->kernel->reads == QNI_CUDA_READS_Q8 || r->kernel->reads == QNI_CUDA_READS_Q8B);
}

static qn_status prepare(struct run *r, int64_t row, int64_t n)
{
    const struct qni_cuda_shape shape = {n, qni_cuda_shape_of(r->op).parts};
    qni_cuda_rows_in(r->op, r->kernel, &shape, r->prepared, &r->product.x);
    r->source.row = row;
    r->source.n_rows = n;
    r->source.by_step = r->kernel->family == QNI_CUDA_FAMILY_PREFILL;
    r->source.to = r->product.x;
    r->product.m = n;
    r->product.row = row;
    if (n > 0 && begins_early(r))
        r->after.pdl = 1;
    if (qni_cuda_reads_e4m3(r->kernel->reads))
        return qni_cuda_fp8_prepare(r->op, &r->product.x, row, n, r->source.order, r->launch,
                                    r->err);
    return qni_cuda_launched(qni_cuda_prepare_sm75(&r->source, r->launch), "preparing rows",
                             r->err);
}

static bool has_own_columns(const struct qni_op *op)
{
    bool has = false;
    for (int32_t e = 0; e < op->n_w && op->kind == QNI_GROUPED; e++)
        has = has || op->w[e]->head->section[QNI_SECTION_PERM].bytes != 0 ||
              op->w[e]->head->section[QNI_SECTION_PRESCALE].bytes != 0;
    return has;
}

/* Experts with an order of columns or a prescale of their own: each prepares its rows, and theirs
 * alone, into what they share. */
static qn_status prepare_by_expert(struct run *r, int64_t row, int64_t n)
{
    const struct qni_op *op = r->op;
    r->source.offsets = op->offsets.rank != 0 ? op->offsets.data : NULL;
    r->source.ids = op->ids.rank != 0 ? op->ids.data : NULL;
    for (int32_t e = 0; e < op->n_w; e++) {
        r->source.expert = e;
        r->source.perm = qni_section(op->w[e], QNI_SECTION_PERM);
        r->source.prescale = qni_section(op->w[e], QNI_SECTION_PRESCALE);
        QNI_TRY(prepare(r, row, n));
    }
    return QN_OK;
}

/* Makes the routes of rows [row, row + m). */
static qn_status make_routes(struct run *r, uint8_t *memory, int64_t row, int64_t m)
{
    const struct qni_op *op = r->op;
    const struct routes_layout l = lay_out_routes(op, r->kernel->mr, m);
    const struct qni_cuda_route route = {
        .offsets = op->offsets.rank != 0 ? op->offsets.data : NULL,
        .ids = op->ids.rank != 0 ? op->ids.data : NULL,
        .row = row,
        .m = m,
        .n_experts = op->n_w,
        .mr = r->kernel->mr,
        .tiles = (int32_t *)(void *)(memory + l.tiles),
        .rows = (int32_t *)(void *)(memory + l.rows),
        .scratch = memory + l.scratch,
    };
    r->product.routes.tiles = route.tiles;
    r->product.routes.rows = route.rows;
    r->source.order = qni_cuda_sorts_x(op, r->kernel) ? route.rows : NULL;
    r->product.routes.n_tiles = (int32_t)l.n_tiles;
    return qni_cuda_launched(qni_cuda_route_sm75(&route, r->launch), "sorting rows by expert",
                             r->err);
}

/* Weights of a run may not be exact where those of its plan were: then the row that scales sums. */
static const struct qni_cuda_kernel *kernel_of_run(const struct qni_op *op,
                                                   const struct qni_cuda_choice *choice)
{
    const struct qni_cuda_kernel *k = qni_cuda_kernel_for(choice, op->m);
    const bool rounds = k->family == QNI_CUDA_FAMILY_ROUNDED && !qni_cuda_rounds_nothing(op);
    return rounds && op->strategy == QN_STRATEGY_FLOAT ? choice->unrounded : k;
}

/* Rows that the kernel fetches from x, or from copies of as many images as fit in `room` bytes. */
static qn_status run_images(struct run *r, size_t room)
{
    const struct qni_op *op = r->op;
    const int64_t rows = op->conv.oh * op->conv.ow;
    const int64_t pixels = qni_cuda_pixels_of_image(op, r->kernel);
    struct qni_cuda_rows unused;
    if (qni_cuda_pixels_of_x(op, r->kernel, &r->product.x))
        return launch_product(r);
    int64_t some = op->conv.batch;
    while (some > 1 && qni_cuda_pixels_in(op, r->kernel, some, NULL, &unused) > room)
        some = qni_ceil_div(some, 2);
    qni_cuda_pixels_source(op, r->kernel, &r->source);
    for (int64_t first = 0; first < op->conv.batch; first += some) {
        const int64_t n = qni_min(some, op->conv.batch - first);
        (void)qni_cuda_pixels_in(op, r->kernel, n, r->prepared, &r->product.x);
        r->source.row = first * pixels;
        r->source.n_rows = n * pixels;
        r->source.to = r->product.x;
        QNI_TRY(qni_cuda_launched(qni_cuda_prepare_sm75(&r->source, r->launch), "preparing images",
                                  r->err));
        r->product.m = n * rows;
        r->product.row = first * rows;
        QNI_TRY(launch_product(r));
    }
    return QN_OK;
}

qn_status qni_cuda_product_run(const struct qni_op *op, const struct qni_cuda_choice *choice,
                               void *scratch, const struct qni_cuda_launch *launch, qn_error *err)
{
    struct run r;
    memset(&r, 0, sizeof r);
    r.op = op;
    r.kernel = kernel_of_run(op, choice);
    r.launch = launch;
    r.after = *launch;
    r.prepared = scratch;
    r.err = err;
    r.product.w = qni_cuda_weights_of(op->w[0], r.kernel->reads);
    r.product.w.exponent = exponent_of(&r, op->w[0]);
    r.product.m = op->m;
    qni_cuda_sink_of(op, &r.product.out);
    if (is_image(r.kernel))
        return run_images(&r, choice->chunk_bytes);
    uint8_t *const routes = r.prepared + choice->chunk_bytes;
    if (qni_cuda_reads_x(op, r.kernel) && qni_cuda_rows_as_they_lie(op, &r.product.x)) {
        if (op->kind == QNI_GROUPED)
            QNI_TRY(make_routes(&r, routes, 0, op->m));
        return launch_product(&r);
    }
    if (launch->sm == 90 && qni_cuda_quantizes_x(op, r.kernel, op->m) &&
        qni_cuda_rows_to_quantize(op, &r.product.x))
        return launch_product(&r);
    qni_cuda_source_of(op, r.kernel->reads, &r.source);
    const bool is_by_expert = has_own_columns(op);
    for (int64_t row = 0; row < op->m; row += choice->chunk) {
        const int64_t n = qni_min(choice->chunk, op->m - row);
        if (op->kind == QNI_GROUPED)
            QNI_TRY(make_routes(&r, routes, row, n));
        QNI_TRY(is_by_expert ? prepare_by_expert(&r, row, n) : prepare(&r, row, n));
        QNI_TRY(launch_product(&r));
    }
    return QN_OK;
}

/* ---- groups of one channel ------------------------------------------------------------------- */

static int32_t reads_of(qn_strategy strategy)
{
    switch (strategy) {
    case QN_STRATEGY_INT8_ROW:
    case QN_STRATEGY_INT8_STATIC:
        return QNI_CUDA_READS_Q8;
    case QN_STRATEGY_INT8_BLOCK:
        return QNI_CUDA_READS_Q8B;
    default:
        return QNI_CUDA_READS_BF16; /* floats, whatever their type */
    }
}

qn_status qni_cuda_depthwise_run(const struct qni_op *op, const struct qni_cuda_launch *launch,
                                 qn_error *err)
{
    struct qni_cuda_depthwise d;
    const int32_t reads = reads_of(op->strategy);
    const bool scaled = op->strategy == QN_STRATEGY_INT8_STATIC && op->y.dtype != QN_I32;
    memset(&d, 0, sizeof d);
    qni_cuda_source_of(op, reads, &d.source);
    d.source.n_rows = op->m;
    d.w = qni_cuda_weights_of(op->w[0], reads);
    qni_cuda_sink_of(op, &d.out);
    d.strategy = op->strategy;
    d.per_group = (int32_t)op->conv.co;
    d.x_scale = scaled ? op->quant.x_scale : 1.0f;
    d.m = op->m;
    return qni_cuda_launched(qni_cuda_depthwise_sm75(&d, launch), "a depthwise convolution", err);
}
