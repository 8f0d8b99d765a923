/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking, as far as all backends do it alike: sections, scales, sums, runs. A
 * backend adds the order of its codes, and the order of the outputs in its tables. The bytes depend
 * on the weight and the options alone: not on threads, and no byte is left undefined. */
#ifndef QNI_QUANT_PACK_H
#define QNI_QUANT_PACK_H

#include "../base/context.h"
#include "../base/half.h"
#include "canonical.h"
#include "compact.h"
#include "geometry.h"
#include "packed.h"

/* A row of a layouts.inc. */
struct qni_layout {
    const char *name;
    int32_t layout;    /* the backend's number for it */
    int32_t code_bits;  /* as kernels read them: 4 or 8; of floats 16 or 32 */
    int32_t is_table;   /* codes go through a codebook */
    qn_dtype floats;    /* the type of numbers that are not quantized; else 0 */
    int32_t is_compact; /* compact.h: layout and code_bits are those of what kernels read */
    const char *codes; /* what it holds, in words */
};

/* Codes of a unit as they are stored, one output after another. */
struct qni_unit_codes {
    uint8_t code[QNI_PANEL][QNI_UNIT];
};

/* The order of codes in a block: qni_packed_block_units() units of a panel, QNI_UNIT * QNI_PANEL *
 * code_bits / 8 bytes each. */
typedef void qni_store_codes_fn(const struct qni_unit_codes *units, int32_t code_bits,
                                uint8_t *out);
/* Stores n blocks of a unit each, of outputs whose codes lie at rows[], as code + add; sums[i] are
 * those of what is stored of unit i. */
typedef void qni_store_rows_fn(const uint8_t *const rows[QNI_PANEL], int64_t n, int32_t code_bits,
                               uint8_t add, uint8_t *out, int32_t (*sums)[QNI_PANEL]);
typedef void qni_load_codes_fn(const uint8_t *in, int32_t code_bits, struct qni_unit_codes *units);
/* Floats: where in a unit a position of the first output is, in bytes; those of the other outputs
 * follow it, qni_float_step() apart. */
typedef size_t qni_float_place_fn(qn_dtype floats, int64_t position);
static inline size_t qni_float_step(qn_dtype floats)
{
    return floats == QN_F16 ? 2 : 4;
}

/* What packing must know of a backend. */
struct qni_packing {
    const char *device; /* in sentences: "CPU" */
    int32_t device_kind;
    int32_t n_layouts;
    const struct qni_layout
        *layouts;             /* a weight without a wish goes into the first that takes it */
    uint8_t lanes[QNI_PANEL]; /* tables of 16: the row of codes that a lane belongs to */
    qni_store_codes_fn *store;
    qni_store_rows_fn *store_rows; /* NULL: unit by unit */
    qni_load_codes_fn *load;
    qni_float_place_fn *float_place; /* NULL: no layout has floats */
    bool prefers_compact;            /* where a weight without a wish gets smaller so */
};

/* Can the layout hold weights of this format? */
bool qni_layout_holds(const struct qni_layout *layout, const qn_format *format);

/* NULL past the end, or for an unknown name. */
const struct qni_layout *qni_packing_layout(const struct qni_packing *packing, int32_t i);
const struct qni_layout *qni_packing_find(const struct qni_packing *packing, const char *name);

/* ---- packing --------------------------------------------------------------------------------- */

/* A packing, planned: the head is complete. */
struct qni_pack {
    const struct qni_packing *packing;
    const struct qn_weight *w;
    struct qni_packed_head head;
    const struct qni_layout *layout;
    struct qni_cut cut, row_cut; /* segments of int8-block; of int8-row */
    int32_t half, shift;         /* integers: value = code - half, stored = code + shift */
    int32_t has_values;          /* integers, or a codebook of integers: there may be sums */
    int16_t value[256];          /* of a codebook's codes */
    uint8_t padding;             /* as kernels read it */
    struct qni_compact compact;  /* of compact layouts */
    float scale_unit;            /* of scales of E4M3 */
};

/* Tells which of a weight's numbers the narrow types hold, all of them exactly: zero points int8;
 * minima, offsets and scales f16. Of several weights, below each other, each is true where it is
 * true of all. */
struct qni_pack_widths {
    bool zeros, minima, shifts, scales;
    bool powers; /* scales of formats with E8M0 are such */
    float unit;  /* scales of formats with E4M3 are such, times this; 0: they are not */
};
/* Are scales such numbers (E8M0, E4M3), times the unit? */
bool qni_pack_fits_bytes(const struct qn_weight *w, qn_dtype dtype, float unit);
struct qni_pack_widths qni_pack_measure(const struct qn_weight *w);

/* QN_E_LAYOUT; QN_E_MEMORY: beyond the address space. */
qn_status qni_pack_plan(const struct qni_packing *packing, const struct qn_weight *w,
                        const qn_pack_options *options, struct qni_pack *pack, qn_error *err);
/* Plans where the widths are known: no array of w with an entry by row is looked at. */
qn_status qni_pack_plan_widths(const struct qni_packing *packing, const struct qn_weight *w,
                               const struct qni_pack_widths *fit, const qn_pack_options *options,
                               struct qni_pack *pack, qn_error *err);
/* Write every byte of the planned blob. Without codes: for a backend that makes them elsewhere,
 * with their sums, which become zero; the section of the codes is left out, and what lies behind
 * moves up to its place. */
void qni_pack_write(const struct qni_threads *threads, const struct qni_pack *pack, bool with_codes,
                    uint8_t *blob);
/* Writes the blob piece by piece: first all that is not by output, and then outputs [first, first +
 * rows->n). first is a multiple of QNI_PANEL, and so is rows->n but at the end of a weight without
 * groups of outputs. Threads may write different rows at once. */
void qni_pack_write_head(const struct qni_pack *pack, uint8_t *blob);
void qni_pack_write_rows(const struct qni_pack *pack, const struct qn_weight *rows, int64_t first,
                         uint8_t *blob);
/* The bytes of the codes' section with its padding: what a blob without codes lacks. */
size_t qni_pack_codes_bytes(const struct qni_packed_head *head);

/* Both, into memory of the context. */
qn_status qni_pack_host(const qn_ctx *ctx, const struct qni_packing *packing,
                        const struct qn_weight *w, const qn_pack_options *options,
                        struct qn_packed **packed, qn_error *err);

/* A complete blob as packed weights, whose memory they free if it is given as the owner. */
qn_status qni_pack_adopt(const qn_ctx *ctx, uint8_t *blob, void *owner, struct qn_packed **packed,
                         qn_error *err);

/* Where the rows of a weight come from that is never in memory as a whole. */
struct qni_weight_source {
    const struct qn_weight *like; /* its format, k, what is by column and which arrays it has; one
                                     convolution group; its rows are not looked at */
    int64_t n;
    /* Room for n rows. */
    qn_status (*make)(const struct qni_weight_source *source, const qn_ctx *ctx, int64_t n,
                      struct qn_weight **rows, qn_error *err);
    /* Rows [first, first + rows->n), by the calling thread. What it counts is added to counts. */
    qn_status (*fill)(const struct qni_weight_source *source, int64_t first, struct qn_weight *rows,
                      int64_t counts[2], qn_error *err);
    int64_t counts[2]; /* out: of all rows */
};
/* Pack them, into memory of the context, block by block: beside the result there are as many blocks
 * as threads, of 16 to 128 rows and together of 32 MiB at most if 16 rows a thread allow that. The
 * same bytes as of the whole weight. An error is that of the first block that has one. */
qn_status qni_pack_source(const qn_ctx *ctx, const struct qni_packing *packing,
                          struct qni_weight_source *source, const qn_pack_options *options,
                          struct qn_packed **packed, qn_error *err);

/* Both, into memory of the caller's, which is 64-byte aligned. QN_E_SCRATCH: it is too small. */
qn_status qni_pack_host_into(const qn_ctx *ctx, const struct qni_packing *packing,
                             const struct qn_weight *w, const qn_pack_options *options,
                             void *buffer, size_t buffer_bytes, struct qn_packed **packed,
                             qn_error *err);

/* ---- and back -------------------------------------------------------------------------------- */

/* A number of the SCALE or OFFSET section. */
static inline float qni_load_scale(const void *section, int32_t dtype, int64_t at)
{
    return dtype == QN_F16    ? qni_f32_from_f16(((const uint16_t *)section)[at])
           : dtype == QN_E8M0 ? qni_f32_from_e8m0(((const uint8_t *)section)[at])
           : dtype == QN_E4M3 ? qni_f32_from_e4m3(((const uint8_t *)section)[at])
                              : ((const float *)section)[at];
}

/* The block of wide codes that a unit begins, or that one unit of compact codes; `codes` is the
 * section. */
void qni_packed_load(const struct qni_packing *packing, const struct qni_layout *layout,
                     const struct qn_packed *packed, int64_t panel, int64_t unit,
                     struct qni_unit_codes *block);

/* May this blob, which lies in host memory, be run? For weights from files, after
 * qni_packed_head_check(): the layout is one of the backend's, sections are as long as it says, and
 * no index leaves its row. QN_E_LAYOUT; QN_E_CORRUPT. */
qn_status qni_packed_check(const struct qni_packing *packing, const struct qn_packed *packed,
                           qn_error *err);
/* The blob lies in host memory. */
qn_status qni_unpack_host(const qn_ctx *ctx, const struct qni_packing *packing,
                          const struct qn_packed *packed, struct qn_weight **weight, qn_error *err);

#endif
