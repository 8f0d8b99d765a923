/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: one blob that is the same in memory and in a file. The blob begins with a head
 * that says what it holds and where; every section is 64-byte aligned in it. Backends define the
 * sections' contents (docs/layouts.md). */
#ifndef QNI_QUANT_PACKED_H
#define QNI_QUANT_PACKED_H

#include <quern/weights.h>

#include "../base/alloc.h"

enum { QNI_BLOB_ALIGNMENT = 64 }; /* of the blob in memory, and of sections in it */

enum {
    QNI_SECTION_CODES = 0,   /* what kernels stream */
    QNI_SECTION_SCALE = 1,
    QNI_SECTION_OFFSET = 2,
    QNI_SECTION_SUMS = 3,    /* i32 column sums of code values per int8-block segment */
    QNI_SECTION_TABLE = 4,   /* f32 [2^bits] codebook */
    QNI_SECTION_RUNS = 5,    /* struct qni_run: packed positions <- canonical positions */
    QNI_SECTION_PERM = 6,    /* i32 [k]: canonical position -> column (act-order) */
    QNI_SECTION_PRESCALE = 7,/* f32 [k] by column */
    QNI_SECTION_ZERO = 8,    /* the integer zero points: for unpacking, or instead of offsets */
    QNI_SECTION_GROUP_SUMS = 9, /* the same per int8-row segment; absent where they equal SUMS */
    QNI_SECTION_COUNTS = 10, /* i32 real positions of each int8-row segment */
    QNI_SECTION_LEVELS = 11,    /* scales of two levels, or minima, as the canonical form has them:
                                levels.h. For unpacking and rows */
    QNI_N_SECTIONS = 12
};

/* Positions [dst, dst + len) of the packed order hold canonical positions [src, src + len);
 * positions in no run are padding (code value 0). Sorted by dst. */
struct qni_run {
    int64_t dst, src, len;
};

/* Fixed size, little endian, written to files as it is. */
struct qni_packed_head {
    char magic[8];             /* "quernpk" and 0 */
    uint32_t version;          /* 1 */
    int32_t device_kind;
    char layout[24];           /* its name; the identity of the packed weights */
    uint64_t isa;              /* features without which the layout cannot be read; 0 for the common
                                  CPU layouts */
    qn_format format;
    int64_t n, k, ci;
    int32_t kh, kw, conv_groups;
    int32_t scale_dtype;       /* QN_F32 or QN_F16, of SCALE and OFFSET */
    int32_t zero_dtype;  /* QN_I8 or QN_I32, of ZERO; with minima that LEVELS has without a
                                  second level QN_F16 or QN_F32, of these */
    int32_t n_runs;
    int64_t n_groups;          /* along k */
    int64_t x_block;           /* int8-block: real positions per segment */
    int64_t units;             /* of 32 packed positions along k */
    int64_t group_units;       /* units of every full group */
    int64_t segment_units;     /* units of every full segment; a group holds whole segments, its
                                  last may be short */
    int64_t n_segments;        /* along k */
    int64_t panels;            /* of 16 outputs: qni_packed_panels() */
    uint64_t bytes;            /* of the whole blob */
    struct {
        uint64_t offset, bytes; /* 0, 0: absent */
    } section[QNI_N_SECTIONS];
};

struct qni_mapping;            /* a mapped file with a reference count (src/checkpoint) */

struct qn_packed {
    struct qni_allocator allocator;
    qn_device device;
    const struct qni_packed_head *head;  /* the blob begins here (for CUDA: a host copy of the
                                            head) */
    const uint8_t *blob;                 /* on the device */
    const float *table;                  /* the codebook in host memory; NULL: none */
    double magnitude;                    /* qni_packed_magnitude(); 0 where nothing reads it */
    int32_t exact;                       /* qni_packed_exact(); likewise */
    void (*release)(struct qn_packed *); /* frees blob and struct */
    void *owner;                         /* of release */
    /* Bytes [at, at + bytes) of the blob to host memory, ctx being of the same device; NULL where
     * the blob lies in host memory. */
    qn_status (*read)(const qn_ctx *ctx, const struct qn_packed *packed, size_t at, size_t bytes,
                      void *to, qn_error *err);
};

/* Panels of 16 outputs. Every convolution group begins a new panel, so that a group is a product of
 * its own; but where a group has a single input channel (depthwise) panels run across the groups:
 * 16 groups lie side by side in one, and the depthwise kernels read them together. */
static inline int64_t qni_packed_panels(int64_t n, int64_t ci, int32_t conv_groups)
{
    if (ci == 1 || conv_groups == 1)
        return (n + 15) / 16;
    return conv_groups * ((n / conv_groups + 15) / 16);
}

/* GPU layouts have blocks of two units, and a panel holds whole blocks: there may be a unit of
 * padding behind those that the groups need. */
enum { QNI_MAX_BLOCK_UNITS = 2 };
static inline int64_t qni_packed_block_units(int32_t device_kind)
{
    return device_kind == QN_CUDA ? 2 : 1;
}
static inline int64_t qni_packed_units(int32_t device_kind, int64_t units)
{
    const int64_t block = qni_packed_block_units(device_kind);
    return (units + block - 1) / block * block;
}

/* Bytes of the codes of 32 positions x 16 outputs. */
static inline size_t qni_packed_unit_bytes(int32_t code_bits)
{
    return (size_t)(32 * 16 / 8 * code_bits);
}

/* Is a float added to what the scale makes of the codes? */
static inline bool qni_has_float_shift(const qn_format *f)
{
    return f->shift == QN_SHIFT_OFFSET || f->shift == QN_SHIFT_MIN;
}

/* Are there offsets? GPU kernels take integer zero points as they are if these fit int8, which
 * keeps scales in f16: -zero * scale would need f32. CPU kernels get the product. */
static inline bool qni_packed_has_offsets(const struct qni_packed_head *head)
{
    const bool keeps_zeros = head->device_kind == QN_CUDA && head->zero_dtype == QN_I8;
    return qni_has_float_shift(&head->format) ||
           (head->format.shift == QN_SHIFT_ZERO && !keeps_zeros);
}

static inline const void *qni_section(const struct qn_packed *p, int32_t i)
{
    return p->head->section[i].bytes == 0 ? NULL : p->blob + p->head->section[i].offset;
}

/* Are all numbers of a head consistent with each other and with the bytes there are? For blobs from
 * files. */
qn_status qni_packed_head_check(const struct qni_packed_head *head, uint64_t bytes, qn_error *err);

#endif
