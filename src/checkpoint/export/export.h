/* SPDX-License-Identifier: Apache-2.0 */
/* What an exporter is: one file that turns a canonical weight into the tensors of another program's
 * format, exactly, or refuses. It is the mirror of an importer (../import/import.h): it sees codes
 * and scales, never kernels or paths. exporters.inc is the list of all; docs/checkpoints.md says
 * how to add one.
 *
 * An exporter is asked two things:
 *   check   Can the format hold each value of the weight? Sets what kind of the format it takes,
 *           its bits and its group; the sentence of a refusal names row, group and value.
 *   write   Declare the tensors and fill them. It trusts check.
 * Values are integers v = code - 2^(bits-1), shifted by a zero point, times a scale: a format with
 * more bits, or with smaller groups that divide the weight's own, holds them just as well. */
#ifndef QNI_CHECKPOINT_EXPORT_H
#define QNI_CHECKPOINT_EXPORT_H

#include <quern/checkpoint.h>

#include "../../base/compiler.h"
#include "../../quant/canonical.h"

enum { QNI_MOST_OUT = 6, QNI_KIND_TEXT = 32 };

struct qni_out { /* a tensor of an export */
    const char *ending;   /* of its name, after the stem: ".qweight" */
    qn_dtype dtype;       /* QN_DTYPE_NONE: blocks, `type` says which */
    const char *type;     /* of blocks: ggml's name */
    int32_t rank;
    int64_t shape[QN_MAX_RANK];
    uint8_t *data;        /* zeros when it is declared */
    size_t bytes;
};

struct qn_export {
    struct qni_allocator allocator;
    const qn_ctx *ctx;         /* only while it is made */
    const struct qn_weight *w; /* likewise */
    qn_export_options options;
    char kind[QNI_KIND_TEXT];  /* "gemm", "pack-quantized", "Q4_0" */
    int32_t bits;              /* of a code of the target */
    int64_t group, groups;     /* columns a group, k where a row is one; groups of a row */
    bool is_per_row;           /* one group a row */
    bool is_symmetric;         /* no zero points but the middle */
    bool has_order;            /* act-order */
    qn_dtype scale_dtype;
    int64_t fact[4];           /* the exporter's own, from check for write */
    struct qni_out out[QNI_MOST_OUT];
    int32_t n_out;
};

struct qni_exporter {
    const char *name;
    bool takes_convolutions;
    qn_status (*check)(struct qn_export *x, qn_error *err);
    qn_status (*write)(struct qn_export *x, qn_error *err);
};

#define QNI_EXPORTER(name) extern const struct qni_exporter qni_export_##name;
#include "exporters.inc"
#undef QNI_EXPORTER

/* ---- tools for exporters --------------------------------------------------------------------- */

/* The kind of the format that options.target asks for behind its colon, or "". */
const char *qni_export_asked(const struct qn_export *x);

/* Only integers; QN_E_FORMAT says what the weight has instead. */
qn_status qni_export_integers(const struct qn_export *x, qn_error *err);
/* Set group, groups and is_per_row from the weight and options.group. must_divide: whether every
 * group must be whole. */
qn_status qni_export_groups(struct qn_export *x, bool must_divide, qn_error *err);
/* The first of `allowed` (QN_DTYPE_NONE ends the list) that holds all scales exactly, the one of
 * the weight's own format before the others; or options.scale_dtype alone. */
qn_status qni_export_scale_type(struct qn_export *x, const qn_dtype *allowed, qn_error *err);
/* All zero points as codes of the target's bits, zero + 2^(bits-1), lie in [least, most]; sets
 * is_symmetric. An offset counts as a zero point where it is one, exactly. */
qn_status qni_export_zeros(struct qn_export *x, int64_t least, int64_t most, qn_error *err);

/* The weight's own place of group g (of the target) of a row: for scale, zero, offset. */
static inline int64_t qni_export_at(const struct qn_export *x, int64_t row, int64_t g)
{
    const qn_format *f = &x->w->format;
    return row * x->w->n_groups + (f->group < 0 ? 0 : g * x->group / f->group);
}
/* The zero point at a place, as a signed code. False: an offset that is none. */
bool qni_export_zero(const struct qn_weight *w, int64_t at, int32_t *zero);
/* Code of a position in the target's bits, counted from 0. */
static inline uint32_t qni_export_code(const struct qn_export *x, int64_t row, int64_t p)
{
    const int32_t wider = (1 << (x->bits - 1)) - (1 << (x->w->format.bits - 1));
    return (uint32_t)(x->w->codes[row * x->w->k + p] + wider);
}
/* x as a number of that type, if it is one exactly (but for the sign of 0). */
bool qni_export_narrow(qn_dtype dtype, float value, uint8_t out[4]);
/* Scales of the target in the type that was found, at element `at` of the data. */
void qni_export_put_scale(const struct qn_export *x, uint8_t *data, int64_t at, float scale);

/* A tensor of zeros; NULL: no memory, and err says so. */
struct qni_out *qni_export_add(struct qn_export *x, const char *ending, qn_dtype dtype,
                               int64_t rows, int64_t columns, qn_error *err);
/* g_idx, i32 [k]: the group of each column, of a weight with a perm. */
qn_status qni_export_order(struct qn_export *x, const char *ending, qn_error *err);

/* Work on runs of rows by the context's threads: put(x, first, last). */
typedef void qni_export_rows_fn(struct qn_export *x, int64_t first, int64_t last);
void qni_export_rows(struct qn_export *x, int64_t multiple, qni_export_rows_fn *put);

/* OR the low `bits` of code i into a stream of little-endian bits that was zero. */
static inline void qni_export_stream(uint8_t *stream, int64_t i, int32_t bits, uint32_t code)
{
    const int64_t at = i * bits;
    const uint32_t wide = code << (at % 8);
    stream[at / 8] = (uint8_t)(stream[at / 8] | (wide & 255));
    if (wide > 255)
        stream[at / 8 + 1] = (uint8_t)(stream[at / 8 + 1] | wide >> 8);
}

/* ---- GGUF: blocks.c, blocks_k.c ----- */

/* One block of a row: positions [p, p + elements). False: it does not hold these values. out may
 * be NULL, to ask only; bad gets the position within the block's row. */
typedef bool qni_block_fn(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out);
struct qni_block {
    const char *type;
    qni_block_fn *put;
};
extern const struct qni_block qni_blocks[];
/* The value of a position without its zero point, and the place of its group. */
static inline int32_t qni_block_value(const struct qn_weight *w, int64_t row, int64_t p)
{
    return (int32_t)w->codes[row * w->k + p] - (1 << (w->format.bits - 1));
}
static inline int64_t qni_block_at(const struct qn_weight *w, int64_t row, int64_t p)
{
    return row * w->n_groups + (w->format.group < 0 ? 0 : p / w->format.group);
}
/* Do positions [p, p + count) share a group? */
static inline bool qni_block_is_one(const struct qn_weight *w, int64_t p, int64_t count)
{
    return w->format.group < 0 || p / w->format.group == (p + count - 1) / w->format.group;
}
bool qni_block_q2_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out);
bool qni_block_q3_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out);
bool qni_block_q4_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out);
bool qni_block_q5_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out);
bool qni_block_q6_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out);
bool qni_block_iq4_xs(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out);

#endif
