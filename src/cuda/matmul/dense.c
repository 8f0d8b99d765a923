/* SPDX-License-Identifier: Apache-2.0 */
/* The dense tier: dense.h. What is decided for a plan: how many outputs and rows at once, and
 * cuBLASLt's algorithms. What a run may find otherwise than planned (rows of x or of y that are not
 * aligned, an activation) goes the longer way in the same scratch. */
#include "dense.h"

#include <string.h>

#include "../../base/compiler.h"
#include "../../base/error.h"
#include "../../quant/magnitude.h"
#include "../weights.h"
#include "prepared.h"

/* ---- plan ------------------------------------------------------------------------------------ */

enum {
    /* Weights at once. They do not stay in a cache, whatever the size: y and x go through it, too.
     * So as many as are no burden beside a large model's. */
    WEIGHTS_BYTES = 256 << 20,
    SUMS_BYTES = 128 << 20,
    ROWS_BYTES = 64 << 20,
    /* Where rows or sums are there only for what may come otherwise than planned. */
    SPARE_BYTES = 16 << 20,
    WORKSPACE_BYTES = 32 << 20,
    ALIGNMENT = 256, /* of the parts of scratch */
    MANY = 256       /* rows or outputs: a multiple of any tile */
};

static int64_t ld_of(const struct qni_op *op)
{
    return op->w[0]->head->units * QNI_CUDA_UNIT;
}

/* Bytes for as many rows as the limit takes, but for some and not for more than there are. */
static size_t bytes_for(int64_t rows, int64_t row_bytes, int64_t limit)
{
    const int64_t most = qni_max(limit / row_bytes / MANY * MANY, MANY);
    return (size_t)(qni_min(rows, most) * row_bytes);
}

/* Rows that so many bytes hold, all or a multiple of MANY. */
static int64_t rows_in(size_t bytes, int64_t row_bytes, int64_t rows)
{
    const int64_t fit = (int64_t)bytes / row_bytes;
    return fit >= rows ? rows : qni_max(fit / MANY * MANY, 1);
}

static int64_t ld_sums(const struct qni_cuda_dense *d)
{
    return (int64_t)qni_round_up((size_t)d->outputs, 8);
}

/* A product of m rows and n outputs; it goes straight to y or to sums. */
static struct qni_cuda_gemm gemm_of(const struct qni_op *op, const struct qni_cuda_dense *d,
                                    bool direct, int64_t m, int64_t n)
{
    return (struct qni_cuda_gemm){
        .m = m,
        .n = n,
        .k = d->k,
        .ldx = ld_of(op),
        .ldw = ld_of(op),
        .ldd = direct ? (int64_t)qni_round_up((size_t)op->n, 8) : ld_sums(d),
        .dtype = op->x.dtype,
        .d_dtype = direct ? op->y.dtype : QN_F32,
        .d_alignment = 16,
    };
}

/* Algorithms for the planned rows and for fewer, by halves. */
static qn_status find_algorithms(const struct qni_cuda_blas *blas, const struct qni_op *op,
                                 int64_t rows, struct qni_cuda_dense *d)
{
    const int64_t n = qni_min(d->outputs, op->n);
    for (d->n_algos = 0; d->n_algos < QNI_CUDA_MAX_ALGOS && rows > 0; rows /= 2) {
        const struct qni_cuda_gemm gemm = gemm_of(op, d, d->is_direct, rows, n);
        struct qni_cuda_dense_algo *const at = &d->algo[d->n_algos];
        at->m = rows;
        QNI_TRY(qni_cuda_blas_find(blas, &gemm, WORKSPACE_BYTES, &at->how));
        if (at->how.workspace_bytes > d->workspace_bytes)
            d->workspace_bytes = (size_t)at->how.workspace_bytes;
        d->n_algos++;
    }
    return QN_OK;
}

qn_status qni_cuda_dense_plan(const struct qni_cuda_blas *blas, const struct qni_op *op,
                              const struct qni_cuda_kernel *row, struct qni_cuda_dense *d)
{
    const int64_t ld = ld_of(op), m = qni_max(op->m, 1);
    struct qni_cuda_sink out;
    (void)row;
    memset(d, 0, sizeof *d);
    qni_cuda_sink_of(op, &out);
    d->is_direct = qni_cuda_dense_is_direct(op, &out);
    d->reads_x = qni_cuda_dense_reads_x(op);
    d->k = d->reads_x ? op->k : ld;
    d->outputs = (int64_t)qni_round_up((size_t)op->n, QNI_CUDA_PANEL);
    const int64_t chunks = qni_ceil_div(op->n * ld * 2, WEIGHTS_BYTES);
    if (chunks > 1)
        d->outputs = (int64_t)qni_round_up((size_t)qni_ceil_div(op->n, chunks), MANY);
    d->weights_bytes = (size_t)(d->outputs * ld * 2);
    d->rows_bytes = bytes_for(m, ld * 2, d->reads_x ? SPARE_BYTES : ROWS_BYTES);
    d->sums_bytes = bytes_for(m, ld_sums(d) * 4, d->is_direct ? SPARE_BYTES : SUMS_BYTES);
    int64_t rows = m;
    if (!d->reads_x)
        rows = qni_min(rows, rows_in(d->rows_bytes, ld * 2, m));
    if (!d->is_direct)
        rows = qni_min(rows, rows_in(d->sums_bytes, ld_sums(d) * 4, m));
    d->rows = rows;
    QNI_TRY(find_algorithms(blas, op, rows, d));
    d->scratch_bytes = ALIGNMENT + qni_round_up(d->weights_bytes, ALIGNMENT) +
                       qni_round_up(d->rows_bytes, ALIGNMENT) +
                       qni_round_up(d->sums_bytes, ALIGNMENT) +
                       qni_round_up(d->workspace_bytes, ALIGNMENT);
    return QN_OK;
}

/* ---- run ------------------------------------------------------------------------------------- */

struct run {
    const struct qni_cuda_blas *blas;
    const struct qni_op *op;
    const struct qni_cuda_kernel *row;
    const struct qni_cuda_dense *d;
    const struct qni_cuda_launch *launch;
    qn_error *err;
    uint16_t *weights;
    uint8_t *prepared, *workspace;
    float *sums;
    struct qni_cuda_rows x; /* as they lie; else of the chunk */
    struct qni_cuda_sink out;
    struct qni_cuda_source source;
    bool as_it_lies, direct;
    float times, alpha; /* 2^e, 2^-e */
};

static float power_of_two(int32_t e)
{
    const uint32_t bits = (uint32_t)(e + 127) << 23;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void divide_scratch(struct run *r, void *scratch)
{
    uint8_t *at = (uint8_t *)scratch + (size_t)(-(uintptr_t)scratch % ALIGNMENT);
    r->weights = (uint16_t *)(void *)at;
    at += qni_round_up(r->d->weights_bytes, ALIGNMENT);
    r->prepared = at;
    at += qni_round_up(r->d->rows_bytes, ALIGNMENT);
    r->sums = (float *)(void *)at;
    at += qni_round_up(r->d->sums_bytes, ALIGNMENT);
    r->workspace = at;
}

/* Does cuBLASLt write y itself? */
static bool goes_to_y(const struct run *r)
{
    const int64_t row_bytes = r->out.stride[2] * (int64_t)qn_dtype_bytes(r->out.y_dtype);
    return qni_cuda_dense_is_direct(r->op, &r->out) && (uintptr_t)r->out.y % 16 == 0 &&
           (row_bytes % 16 == 0 || r->op->m == 1) &&
           (r->op->m == 1 || r->out.stride[2] >= r->op->n);
}

static qn_status dequantize(const struct run *r, int64_t output, int64_t n)
{
    const struct qn_packed *w = r->op->w[0];
    const struct qni_packed_head *head = w->head;
    const struct qni_cut cut = qni_packed_cut(head, false);
    struct qni_cuda_dequantize args;
    memset(&args, 0, sizeof args);
    args.w = qni_cuda_weights_of(w, r->row->reads);
    if (head->format.shift == QN_SHIFT_ZERO) { /* not fl(-zero * scale), which is one rounding
                                                  more */
        args.w.shift = QNI_CUDA_SHIFT_ZERO;
        args.w.zero = (size_t)head->section[QNI_SECTION_ZERO].offset;
        args.zero_is_i32 = head->zero_dtype == QN_I32;
    }
    args.panel = (int32_t)(output / QNI_CUDA_PANEL);
    args.n_panels = (int32_t)qni_ceil_div(n, QNI_CUDA_PANEL);
    args.is_bf16 = r->op->x.dtype == QN_BF16;
    args.times = r->times;
    args.out = r->weights;
    args.prescale = qni_section(w, QNI_SECTION_PRESCALE);
    args.perm = qni_section(w, QNI_SECTION_PERM);
    args.group_len = cut.group_len;
    args.last_len = cut.last_len;
    return qni_cuda_launched(qni_cuda_dequantize_sm75(&args, r->launch), "writing out weights",
                             r->err);
}

static qn_status prepare(struct run *r, int64_t row, int64_t n)
{
    struct qni_cuda_rows *x = &r->x;
    memset(x, 0, sizeof *x);
    x->a = r->prepared;
    x->lda = ld_of(r->op) * 2;
    x->plane_stride = x->lda * n;
    x->planes = 1;
    x->columns = (int32_t)ld_of(r->op);
    x->part_rows = n;
    x->x_scale = 1.0f;
    x->ld_segment = r->source.n_groups;
    r->source.row = row;
    r->source.n_rows = n;
    r->source.to = *x;
    return qni_cuda_launched(qni_cuda_prepare_sm75(&r->source, r->launch), "preparing rows",
                             r->err);
}

/* The plan's algorithm for the next larger number of rows. What was not planned for is asked for
 * now: work of the host alone. */
static qn_status algorithm_for(const struct run *r, const struct qni_cuda_gemm *gemm,
                               struct qni_cuda_gemm_algo *how)
{
    const struct qni_cuda_dense *d = r->d;
    if (r->direct != (d->is_direct != 0) || d->n_algos == 0) {
        if (qni_cuda_blas_find(r->blas, gemm, d->workspace_bytes, how) != QN_OK)
            return qni_fail(r->err, QN_E_UNSUPPORTED, "cuBLASLt knows no way to do the product");
        return QN_OK;
    }
    int32_t i = d->n_algos - 1;
    while (i > 0 && d->algo[i].m < gemm->m)
        i--;
    *how = d->algo[i].how;
    return QN_OK;
}

/* Rows [row, row + m) times outputs [output, output + n). */
static qn_status multiply(const struct run *r, int64_t row, int64_t m, int64_t output, int64_t n)
{
    const int64_t y_bytes = (int64_t)qn_dtype_bytes(r->out.y_dtype);
    const uint8_t *x = r->x.a;
    struct qni_cuda_gemm gemm = gemm_of(r->op, r->d, r->direct, m, n);
    struct qni_cuda_gemm_algo how;
    if (r->as_it_lies)
        x += row * r->x.lda;
    gemm.ldx = r->x.lda / 2;
    if (r->direct && r->op->m > 1)
        gemm.ldd = r->out.stride[2];
    const struct qni_cuda_gemm_data data = {
        .x = x,
        .w = r->weights,
        .d = r->direct ? (void *)((uint8_t *)r->out.y + (row * gemm.ldd + output) * y_bytes)
                       : (void *)r->sums,
        .workspace = r->workspace,
        .alpha = r->alpha,
    };
    QNI_TRY(algorithm_for(r, &gemm, &how));
    QNI_TRY(qni_cuda_blas_run(r->blas, &gemm, &how, &data, r->launch->stream, r->err));
    if (r->direct)
        return QN_OK;
    const struct qni_cuda_finish finish = {
        .sums = r->sums,
        .ld = gemm.ldd,
        .m = m,
        .row = row,
        .n = (int32_t)n,
        .output = (int32_t)output,
        .out = r->out,
    };
    return qni_cuda_launched(qni_cuda_finish_sm75(&finish, r->launch), "the epilogue", r->err);
}

qn_status qni_cuda_dense_run(const struct qni_cuda_blas *blas, const struct qni_op *op,
                             const struct qni_cuda_kernel *row, const struct qni_cuda_dense *dense,
                             void *scratch, const struct qni_cuda_launch *launch, qn_error *err)
{
    struct run r;
    memset(&r, 0, sizeof r);
    r.blas = blas;
    r.op = op;
    r.row = row;
    r.d = dense;
    r.launch = launch;
    r.err = err;
    const int32_t e = qni_magnitude_exponent(op->w[0]->magnitude, op->x.dtype);
    r.times = power_of_two(e);
    r.alpha = power_of_two(-e);
    divide_scratch(&r, scratch);
    qni_cuda_sink_of(op, &r.out);
    r.direct = goes_to_y(&r);
    r.as_it_lies = dense->reads_x && qni_cuda_rows_as_they_lie(op, &r.x);
    qni_cuda_source_of(op, row->reads, &r.source);
    r.source.prescale = NULL; /* the weights have it */
    int64_t rows = op->m;
    if (!r.as_it_lies)
        rows = qni_min(rows, rows_in(dense->rows_bytes, ld_of(op) * 2, op->m));
    if (!r.direct)
        rows = qni_min(rows, rows_in(dense->sums_bytes, ld_sums(dense) * 4, op->m));
    for (int64_t output = 0; output < op->n; output += dense->outputs) {
        const int64_t n = qni_min(dense->outputs, op->n - output);
        QNI_TRY(dequantize(&r, output, n));
        for (int64_t at = 0; at < op->m; at += rows) {
            const int64_t m = qni_min(rows, op->m - at);
            if (!r.as_it_lies && (output == 0 || rows < op->m))
                QNI_TRY(prepare(&r, at, m));
            QNI_TRY(multiply(&r, at, m, output, n));
        }
    }
    return QN_OK;
}
