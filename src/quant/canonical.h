/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical weight: what every importer produces and every packer reads. The formula is in
 * quern/weights.h. All arrays are owned by the weight and complete: one scale per row and group,
 * also for per-tensor formats. */
#ifndef QNI_QUANT_CANONICAL_H
#define QNI_QUANT_CANONICAL_H

#include <quern/weights.h>
#include <string.h>

#include "../base/alloc.h"
#include "../base/exact.h"
#include "../base/half.h"

struct qn_weight {
    struct qni_allocator allocator;
    qn_format format;
    int64_t n, k, ci; /* k == kh * kw * ci */
    int32_t kh, kw, conv_groups;
    int64_t n_groups;
    int64_t first_row; /* of a module's rows that are loaded in pieces: where these begin, which
                          sentences about rows count from */
    uint8_t *codes; /* [n, k]: signed code + 2^(bits-1), or the table index; floats: the numbers */
    float *scale;   /* [n, n_groups]; floats: all 1 */
    int32_t *zero;  /* [n, n_groups] or NULL */
    float *offset;  /* [n, n_groups] or NULL */
    /* What scale (and a minimum) is made of, or all NULL: quern/weights.h. */
    int64_t n_supers;
    float *super_scale, *super_min; /* [n, n_supers] */
    int16_t *sub_scale, *sub_min;   /* [n, n_groups] */
    int32_t *perm;                  /* [k] or NULL */
    float *prescale;                /* [k] or NULL */
    float *table;                   /* [2^bits] for every codebook, else NULL */
};

/* Is there a weight of n outputs and k columns? Both fit int32, and rows without columns, which
 * cost a file nothing, are few. */
enum { QNI_MOST_EMPTY_ROWS = 1 << 24 };
static inline bool qni_is_weight_shape(int64_t n, int64_t k)
{
    return n >= 0 && k >= 0 && k <= INT32_MAX && n <= (k == 0 ? QNI_MOST_EMPTY_ROWS : INT32_MAX);
}

/* The group that position p of a row belongs to. ci: input channels (of one convolution group) per
 * tap. */
static inline int64_t qni_group_of(const qn_format *f, int64_t p, int64_t ci)
{
    if (f->group < 0)
        return 0;
    return f->blocks == QN_BLOCKS_CHANNELS ? p % ci / f->group : p / f->group;
}

static inline bool qni_is_float_format(const qn_format *f)
{
    return f->code == QN_CODE_FLOAT;
}

static inline bool qni_has_table(const qn_format *f)
{
    return f->code != QN_CODE_INT && f->code != QN_CODE_FLOAT;
}

/* Bytes of a position in the canonical form. */
static inline size_t qni_code_bytes(const qn_format *f)
{
    return f->code == QN_CODE_FLOAT ? (size_t)f->bits / 8 : 1;
}

/* Bytes of a row of the canonical form. */
static inline size_t qni_code_row_bytes(const struct qn_weight *w)
{
    return (size_t)w->k * qni_code_bytes(&w->format);
}

/* The i-th number of an array of floats of a type. */
static inline float qni_load_float(const void *at, qn_dtype dtype, int64_t i)
{
    uint32_t word;
    uint16_t half;
    if (dtype == QN_F32) {
        memcpy(&word, (const uint8_t *)at + 4 * i, sizeof word);
        return qni_float_of(word);
    }
    memcpy(&half, (const uint8_t *)at + 2 * i, sizeof half);
    return dtype == QN_F16 ? qni_f32_from_f16(half) : qni_f32_from_bf16(half);
}

/* The value a stored code stands for, before scale: an integer for QN_CODE_INT. Not of floats. */
static inline float qni_code_value(const struct qn_weight *w, uint8_t code)
{
    return w->table != NULL ? w->table[code] : (float)((int32_t)code - (1 << (w->format.bits - 1)));
}

/* The value that the code of position p of a row stands for, before scale; of weights that are
 * floats, too. */
static inline float qni_position_value(const struct qn_weight *w, int64_t row, int64_t p)
{
    const int64_t at = row * w->k + p;
    return qni_is_float_format(&w->format) ? qni_load_float(w->codes, w->format.scale_dtype, at)
                                           : qni_code_value(w, w->codes[at]);
}

/* The offset of a group in the form kernels use, w = scale * value + offset: fl(-zero * scale), or
 * the offset, or fl(2^(bits-1) * scale + minimum), or 0. */
static inline float qni_group_offset(const struct qn_weight *w, int64_t row, int64_t group)
{
    const int64_t i = row * w->n_groups + group;
    if (w->format.shift == QN_SHIFT_MIN)
        return qni_fmaf((float)(1 << (w->format.bits - 1)), w->scale[i], w->offset[i]);
    return w->zero != NULL     ? -(float)w->zero[i] * w->scale[i]
           : w->offset != NULL ? w->offset[i]
                               : 0.0f;
}

/* May a weight have super_scale and its kin? What is empty has none. */
static inline bool qni_may_have_supers(const qn_format *f, int64_t n, int64_t n_groups)
{
    return f->superblock > 0 && n > 0 && n_groups > 0;
}

/* Groups of a format's super-blocks have minima, integers of a common one. */
static inline bool qni_has_sub_min(const qn_format *f)
{
    return f->superblock > 0 && f->shift == QN_SHIFT_MIN;
}

/* The least and the largest integer that a group's scale may be of its super-block's. */
static inline int32_t qni_sub_least(const qn_format *f)
{
    return f->shift == QN_SHIFT_NONE ? -(1 << (f->superbits - 1)) : 0;
}
static inline int32_t qni_sub_most(const qn_format *f)
{
    return f->shift == QN_SHIFT_NONE ? (1 << (f->superbits - 1)) - 1 : (1 << f->superbits) - 1;
}

/* Scale (and minimum) of group g of a row from super_scale and its kin: the definition. */
static inline float qni_product_scale(const struct qn_weight *w, int64_t row, int64_t g)
{
    return w->super_scale[row * w->n_supers + g / w->format.superblock] *
           (float)w->sub_scale[row * w->n_groups + g];
}
static inline float qni_product_min(const struct qn_weight *w, int64_t row, int64_t g)
{
    return -(w->super_min[row * w->n_supers + g / w->format.superblock] *
             (float)w->sub_min[row * w->n_groups + g]);
}
/* Makes the scales and minima of a row, or of all rows, from the two levels of a weight that has
 * super_scale. */
void qni_weight_fill_row(struct qn_weight *w, int64_t row);
void qni_weight_fill_products(struct qn_weight *w);

/* One row in double: out[p] for every position p in the order of codes (perm and prescale not
 * applied). The definition of each format; everything else is compared with it. */
void qni_weight_row(const struct qn_weight *w, int64_t row, double *out);

/* Positions [first, first + n) of a row in f32, one rounding, in the order of codes (perm and
 * prescale not applied). */
void qni_decode_span(const struct qn_weight *w, int64_t row, int64_t first, int64_t n, float *out);

/* The codebook of a format: 2^bits values; NULL for integer codes and QN_CODE_TABLE. Static. */
const float *qni_code_table(qn_code code);

/* The rules of qn_weight_create() about values, for a weight that was filled from elsewhere (a
 * file): after QN_OK everything below may trust it. Same statuses. */
qn_status qni_weight_check(const qn_ctx *ctx, struct qn_weight *w, qn_error *err);
/* The last of these rules alone: no value, and nothing that a kernel makes of scale and code on the
 * way to one, is beyond f32. QN_E_VALUE. */
qn_status qni_weight_check_values(const struct qn_weight *w, qn_error *err);

/* Allocate a weight with room for everything that format and flags ask for (contents undefined;
 * table filled). */
qn_status qni_weight_alloc(const struct qni_allocator *a, const qn_weight_parts *geometry,
                           bool with_perm, bool with_prescale, struct qn_weight **weight,
                           qn_error *err);
/* Room for super_scale and its kin, which qni_weight_alloc() leaves NULL: for formats with
 * super-blocks. QN_E_MEMORY: nothing is allocated. */
qn_status qni_weight_alloc_supers(struct qn_weight *w, qn_error *err);
/* Free them; the scales stay. */
void qni_weight_drop_supers(struct qn_weight *w);

/* Positions [first, first + count) in the order of codes, which begin at the border of a group, as
 * a weight of their own: its x has the columns that these positions read, in their order. A
 * matrix. */
qn_status qni_weight_slice_positions(const qn_ctx *ctx, const struct qn_weight *weight,
                                     int64_t first, int64_t count, struct qn_weight **slice,
                                     qn_error *err);

#endif
