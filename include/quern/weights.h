/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights: their format, their canonical form, quantizers, and packing for a device.
 *
 * A canonical weight is W[n, k] of small codes with groups along k:
 *     value(code) = code                        integer codes, signed, in [-2^(bits-1), 2^(bits-1))
 *                 = table[code]                 codebooks, code in [0, 2^bits)
 *                 = the number itself           floats: all scales are 1
 *     w[n, p] = scale[n, g] * (value - zero[n, g])        or
 *     w[n, p] = scale[n, g] * value + offset[n, g]        or
 *     w[n, p] = scale[n, g] * (value + 2^(bits-1)) + offset[n, g]    (a minimum: codes from 0)
 * with g the group of position p. In formats with super-blocks the scales (and minima) of a group
 * are integers of a common one: scale[n, g] = super_scale[n, s] * sub_scale[n, g].
 * Position p reads input column perm[p] (identity unless act-order), and x is multiplied by
 * prescale[column] first (AWQ, SmoothQuant) if there is one. Convolutions: k = kh * kw * ci,
 * tap-major, ci (the channels of one convolution group) fastest; n counts all output channels. */
#ifndef QUERN_WEIGHTS_H
#define QUERN_WEIGHTS_H

#include "base.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a code means. */
typedef int32_t qn_code;
enum {
    QN_CODE_INT = 1,    /**< Integers of 2 to 8 bits. */
    QN_CODE_NF4 = 2,    /**< bitsandbytes' NormalFloat 4. */
    QN_CODE_IQ4_NL = 3, /**< ggml's non-linear 4-bit table of integers. */
    QN_CODE_E2M1 = 4,   /**< FP4: 0, .5, 1, 1.5, 2, 3, 4, 6 and negatives. */
    QN_CODE_E4M3 = 5,   /**< FP8 E4M3FN weights, 8 bits. */
    QN_CODE_TABLE = 6,  /**< A table given by the caller, 2^bits entries. */
    QN_CODE_FLOAT = 7   /**< Not quantized: numbers of scale_dtype, which is f32, f16 or bf16. */
};

/** How a group is shifted. */
typedef int32_t qn_shift;
enum {
    QN_SHIFT_NONE = 0,
    QN_SHIFT_ZERO = 1,   /**< Integer zero point. */
    QN_SHIFT_OFFSET = 2, /**< f32 offset. */
    QN_SHIFT_MIN = 3     /**< f32 minimum: the offset of codes that count from 0. Integers only. */
};

/** What a group spans. */
typedef int32_t qn_blocks;
enum {
    QN_BLOCKS_RUN = 0,     /**< `group` consecutive positions p (for a convolution: along taps, then
                                channels). */
    QN_BLOCKS_CHANNELS = 1 /**< `group` input channels of every tap together (MNN's blocks). */
};

enum { QN_GROUP_PER_CHANNEL = -1, QN_GROUP_PER_TENSOR = -2 };

/** A weight format as values. A plain struct; copy freely. Frozen layout. */
typedef struct qn_format {
    qn_code code;
    int32_t bits;  /**< 2 to 8; 4 for the FP4 and NF4 tables, 8 for E4M3; 16 or 32 for
                               floats. */
    int64_t group; /**< Positive, or QN_GROUP_PER_CHANNEL, QN_GROUP_PER_TENSOR. */
    qn_blocks blocks;
    qn_shift shift;
    qn_dtype scale_dtype; /**< Scales (and offsets) are rounded to this on quantizing: f32, f16,
                               bf16, E8M0, E4M3. */
    int32_t superblock;   /**< 0, or groups per super-block whose scales are small integers of a
                               common scale (K-quants). */
    int32_t superbits;    /**< Bits of these integers. */
    int32_t reserved;     /**< 0. */
} qn_format;

/**
 * The small language for weights: int4:g128, int4:g128:zp, int4:g64:off, int8:pc, int8:pt,
 * int3:g32, int4:c64 (blocks of 64 input channels x all taps), nf4:g64, fp8:pc, e2m1:g32:e8m0,
 * int4:g32:off:f16, and the names q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs
 * mxfp4 nvfp4, and f32 f16 bf16 for weights that are not quantized.
 * docs/formats.md has the grammar.
 * @return QN_OK; QN_E_FORMAT: err names the word that is wrong and what is possible.
 */
QN_API qn_status qn_format_parse(const char *text, qn_format *format, qn_error *err);
/** The canonical spelling; always terminated when capacity > 0. Returns the length it needs without
 * the end. */
QN_API size_t qn_format_print(const qn_format *format, char *text, size_t capacity);
/** @return QN_OK; QN_E_FORMAT: impossible combination; QN_E_ARGUMENT: reserved is not 0. */
QN_API qn_status qn_format_check(const qn_format *format, qn_error *err);
/** The i-th named format of the language ("q4_0", ...); NULL past the end. Static text. */
QN_API const char *qn_format_name(int32_t i);

/* ---------------------------------------------------------------------------- canonical weights */

typedef struct qn_weight qn_weight;

/**
 * The parts of a canonical weight, for importers and for reading one. Set by _init(). Arrays handed
 * to qn_weight_create() are copied; arrays from qn_weight_view() belong to the weight.
 */
typedef struct qn_weight_parts {
    size_t size;
    qn_format format;
    int64_t n;             /**< Outputs (all convolution groups together), at most 2^31 - 1; at
                                  most 2^24 where k is 0. */
    int64_t k;             /**< Reduction: kh * kw * ci, at most 2^31 - 1. */
    int32_t kh, kw;        /**< 1, 1 for matmul (default). */
    int32_t conv_groups;   /**< Default 1. n is divisible by it. */
    int32_t reserved;      /**< 0. */
    const uint8_t *codes;  /**< [n, k], one byte each: code + 2^(bits-1) for integers, the table
                                  index else. Floats: the numbers, bits / 8 bytes each. */
    const float *scale;    /**< [n, n_groups]; per tensor: n_groups = 1 and the value repeats.
                                  Floats: NULL, or all 1. */
    const int32_t *zero;   /**< [n, n_groups] for QN_SHIFT_ZERO, in the scale of signed codes;
                                  else NULL. */
    const float *offset;   /**< [n, n_groups] for QN_SHIFT_OFFSET and _MIN; else NULL. */
    const int32_t *perm;   /**< [k] or NULL: position p reads column perm[p]; a permutation. */
    const float *prescale; /**< [k] or NULL, by column. */
    const float *table;    /**< [2^bits] for QN_CODE_TABLE (read back for every codebook). */
    int64_t n_groups;      /**< Filled by qn_weight_view(); ignored on the way in. */
    /* Where scales come from in formats with super-blocks, s = g / format.superblock. All NULL: it
     * is not known. With them scale (and the offset of QN_SHIFT_MIN) may be left NULL; else they
     * must be the products, bit for bit. */
    const float *super_scale; /**< [n, n_supers], each a number of the format's scale_dtype. */
    const float *super_min;   /**< QN_SHIFT_MIN: [n, n_supers], likewise; else NULL. */
    const int16_t *sub_scale; /**< [n, n_groups]: scale = super_scale * sub_scale. From 0 to
                                   2^superbits - 1 for _OFFSET and _MIN, else signed and of so many
                                   bits. */
    const int16_t *sub_min;   /**< QN_SHIFT_MIN: [n, n_groups], offset = -(super_min * sub_min),
                                   from 0 to 2^superbits - 1; else NULL. */
    int64_t n_supers;         /**< Filled by qn_weight_view(); ignored on the way in. */
} qn_weight_parts;

static inline void qn_weight_parts_init(qn_weight_parts *parts)
{
    qn_zero_(parts, sizeof *parts);
    parts->size = sizeof *parts;
    parts->kh = parts->kw = parts->conv_groups = 1;
}
QN_API qn_status qn_weight_parts_init_sized(qn_weight_parts *parts, size_t size);

/** Groups of a row of k positions, given the convolution's ci (= k for matmul). 0 if the format is
 * impossible. */
QN_API int64_t qn_format_groups(const qn_format *format, int64_t k, int64_t ci);

/**
 * Check and copy the parts. n or k may be 0.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_FORMAT; QN_E_SHAPE: n, k, taps, groups disagree, or n or k is
 *         too large; QN_E_VALUE: a NaN or infinite scale or offset, a value or scale * code or
 *         scale * zero beyond f32, a code out of range, a perm that is no permutation, scales that
 *         are not the products of super_scale and sub_scale; QN_E_MEMORY; QN_E_VERSION: parts uses
 *         a field from the future.
 */
QN_API qn_status qn_weight_create(const qn_ctx *ctx, const qn_weight_parts *parts,
                                  qn_weight **weight, qn_error *err);
/** NULL is legal. */
QN_API void qn_weight_destroy(qn_weight *weight);
/** A view of the parts, valid as long as the weight. @return QN_OK; QN_E_ARGUMENT. */
QN_API qn_status qn_weight_view(const qn_weight *weight, qn_weight_parts *parts);
/**
 * Exact values in f32 (one rounding), original column order; prescale multiplied in if
 * apply_prescale. out: [n, k] f32.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE.
 */
QN_API qn_status qn_weight_dequantize(const qn_ctx *ctx, const qn_weight *weight,
                                      bool apply_prescale, const qn_tensor *out);

/**
 * Rows of a weight by index: row i of out is row ids[i] of what qn_weight_dequantize() gives,
 * rounded to the type of out. For embedding tables and tied heads. ids: [count] i32 or i64, which
 * may repeat; out: [count, k] f32, f16 or bf16, rows may be strided. Both in host memory, whatever
 * the context's device. Allocates nothing; the context's threads share the rows. A failed call has
 * not touched out.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_ALIGN; QN_E_OVERLAP;
 *         QN_E_DEVICE; QN_E_VALUE: an id is no row (err names it).
 */
QN_API qn_status qn_weight_rows(const qn_ctx *ctx, const qn_weight *weight, const qn_tensor *ids,
                                bool apply_prescale, const qn_tensor *out, qn_error *err);

/**
 * Outputs [first_n, first_n + n) and columns [first_k, first_k + k) of a weight, as a weight of its
 * own: a shard of tensor parallelism, one of several fused projections. Nothing is rounded; columns
 * that begin within a super-block leave super_scale and its kin behind. Columns
 * are those of x: with act-order the slice has those positions that read them, and its perm counts
 * from first_k. The slice owns its memory.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE: the range leaves the weight; QN_E_UNSUPPORTED: columns
 *         that do not begin and end at borders of groups (the last group may be cut short), a
 *         convolution's columns, or outputs that cut a convolution group; QN_E_MEMORY.
 */
QN_API qn_status qn_weight_slice(const qn_ctx *ctx, const qn_weight *weight, int64_t first_n,
                                 int64_t n, int64_t first_k, int64_t k, qn_weight **slice,
                                 qn_error *err);

/**
 * Weights that read the same x, joined along n: q, k and v, or gate and up, as one product. Nothing
 * is rounded; super_scale and its kin stay where every weight has them. Format, k, kernel size,
 * codebook, act-order and prescale must be the same; per-tensor scales that differ make the result
 * per channel. The result owns its memory.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_FORMAT, QN_E_SHAPE, QN_E_VALUE: err names the weight that
 *         cannot be joined, and why; QN_E_MEMORY.
 */
QN_API qn_status qn_weight_concat(const qn_ctx *ctx, int32_t count, const qn_weight *const *weights,
                                  qn_weight **joined, qn_error *err);

/** Where two weights differ. */
typedef struct qn_weight_difference {
    size_t size;
    int64_t count;       /**< Values that differ; 0: none. */
    int64_t row, column; /**< The first of them. */
    double a, b;         /**< Their values there. */
} qn_weight_difference;
static inline void qn_weight_difference_init(qn_weight_difference *difference)
{
    qn_zero_(difference, sizeof *difference);
    difference->size = sizeof *difference;
}
QN_API qn_status qn_weight_difference_init_sized(qn_weight_difference *difference, size_t size);
/**
 * Compare two weights of one shape value by value, exactly, whatever their formats: column by
 * column of x, each prescale multiplied in. A zero may have either sign.
 * @return QN_OK: also where they differ; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_MEMORY.
 */
QN_API qn_status qn_weight_compare(const qn_ctx *ctx, const qn_weight *a, const qn_weight *b,
                                   qn_weight_difference *difference, qn_error *err);

/**
 * The outputs ids[0], ids[1], ... of a matrix as a weight of its own, in that order; an output may
 * be taken more than once. Nothing is rounded.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_VALUE: an id is no output (err names it); QN_E_UNSUPPORTED:
 *         convolutions of several groups; QN_E_MEMORY.
 */
QN_API qn_status qn_weight_take(const qn_ctx *ctx, const qn_weight *weight, const int32_t *ids,
                                int64_t count, qn_weight **taken, qn_error *err);

/* ----------------------------------------------------------------------------------- quantizers */

/** How codes and scales are found. */
typedef int32_t qn_method;
enum {
    QN_METHOD_RTN = 0,    /**< Round to nearest from the range of the group. */
    QN_METHOD_SEARCH = 1, /**< Scale (and shift) minimising the squared error, weighted by
                               `importance` if given. */
    QN_METHOD_GPTQ = 2    /**< Error feedback along k from a Hessian. Scales come from the weights
                               as they are given, as those of RTN do, before any feedback. */
};
/** Symmetric scale of RTN for b bits: amax / (2^(b-1) - 1), / (2^(b-1) - 0.5), or signed extreme /
 * -2^(b-1). */
typedef int32_t qn_range;
enum {
    QN_RANGE_NARROW = 0, /**< /7. */
    QN_RANGE_HALF = 1,   /**< /7.5. */
    QN_RANGE_FULL = 2    /**< /-8, ggml's. */
};

/** Called with done and total work (rows); returns false to stop the work, which then gives
 * QN_E_CANCELLED. */
typedef bool (*qn_progress_fn)(void *arg, int64_t done, int64_t total);

typedef struct qn_quantize_options {
    size_t size;
    qn_format format;
    qn_method method;         /**< Default RTN. */
    qn_range range;           /**< Default NARROW; the ggml names use their own. */
    int32_t kh, kw;           /**< Geometry of a convolution; default 1. */
    int32_t conv_groups;      /**< Default 1. */
    int32_t act_order;        /**< GPTQ: columns by falling importance; needs k > 0. Default 0. */
    const float *importance;  /**< [k] or NULL: weights of the squared error (mean of x^2 by
                                     column). SEARCH, and GPTQ with search_scales. */
    const qn_tensor *hessian; /**< [k, k] f32 or f64, sum of x x^T; or NULL. GPTQ. */
    const qn_tensor *samples; /**< [samples, k] f32/f16/bf16 activations to make the Hessian from;
                                     or NULL. GPTQ. */
    double damping;           /**< GPTQ: fraction of the mean diagonal added; default 0.01. */
    const float *prescale;    /**< [k] or NULL: stored with the weight; W is divided by it before
                                     quantizing. */
    qn_progress_fn progress;  /**< NULL: silence. Called from the calling thread. */
    void *progress_arg;
    int32_t search_scales; /**< GPTQ: 1 (default): scales (and shifts) as SEARCH finds them;
                                     without importance a column counts as much as in GPTQ's own
                                     error. 0: from the range of the group, as RTN's. */
    int32_t reserved;      /**< 0. */
} qn_quantize_options;

static inline void qn_quantize_options_init(qn_quantize_options *options)
{
    qn_zero_(options, sizeof *options);
    options->size = sizeof *options;
    options->kh = options->kw = options->conv_groups = 1;
    options->damping = 0.01;
    options->search_scales = 1;
}
QN_API qn_status qn_quantize_options_init_sized(qn_quantize_options *options, size_t size);

/**
 * Quantize dense weights [n, k] (for a convolution [n, kh, kw, ci] flattened), f32, f16 or bf16;
 * rows may be strided. Deterministic whatever the number of threads.
 * To f32, f16 and bf16 each weight is rounded once, to the nearest, ties to even; method is RTN.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_FORMAT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_VALUE: a NaN
 *         or infinity in the weights (err names row and column), weights whose nearest codes are
 *         beyond f32 (from 2^127 on, as the format rounds) or whose nearest f16 or bf16 is
 *         infinite, or a Hessian that is not positive;
 *         QN_E_MEMORY; QN_E_CANCELLED; QN_E_VERSION.
 */
QN_API qn_status qn_quantize(const qn_ctx *ctx, const qn_tensor *dense,
                             const qn_quantize_options *options, qn_weight **weight, qn_error *err);

/**
 * SmoothQuant's scales: s_j = max(x_amax_j, 1e-5)^alpha / max(w_amax_j, 1e-5)^(1-alpha). The input
 * is divided by s and the weights multiplied: store 1 / s as prescale. dense: the weights [n, k];
 * x_amax, out: [k]; alpha in [0, 1].
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_VALUE: a NaN or an
 *         infinity; QN_E_MEMORY.
 */
QN_API qn_status qn_smooth_scales(const qn_ctx *ctx, const qn_tensor *dense, const float *x_amax,
                                  double alpha, float *out, qn_error *err);
/**
 * AWQ's scales: over a grid of exponents r in [0, 1), s_j = x_mean_j^r normalised, the one whose
 * RTN quantization of W * s minimises the error of samples. x_mean: [k] mean |x|; samples: [rows,
 * k]. out: [k], used like above. Formats with groups along a row only.
 * @return as above, and QN_E_FORMAT.
 */
QN_API qn_status qn_awq_scales(const qn_ctx *ctx, const qn_tensor *dense, const float *x_mean,
                               const qn_tensor *samples, const qn_format *format, float *out,
                               qn_error *err);

/* -------------------------------------------------------------------------------------- packing */

typedef struct qn_packed qn_packed;

typedef struct qn_pack_options {
    size_t size;
    const char *layout;   /**< NULL (default): the best for the context; or a name from
                                 qn_layout_name(). */
    int64_t x_block;      /**< Block of the int8-block strategy; 0 (default): the weight's group,
                                 at most 128. */
    int32_t without_sums; /**< 1: leave out column sums (smaller; asymmetric int8 activations then
                                 refuse). Compact layouts have none, and refuse nothing. */
    int32_t reserved;
} qn_pack_options;

static inline void qn_pack_options_init(qn_pack_options *options)
{
    qn_zero_(options, sizeof *options);
    options->size = sizeof *options;
}
QN_API qn_status qn_pack_options_init_sized(qn_pack_options *options, size_t size);

/** Facts about packed weights. text fields are static. */
typedef struct qn_packed_info {
    size_t size;
    qn_format format;
    int64_t n, k;
    int32_t kh, kw, conv_groups;
    qn_device device;
    const char *layout;
    size_t bytes; /**< All that the packed weights hold. */
    int64_t x_block;
    int32_t has_sums, has_perm, has_prescale;
} qn_packed_info;

static inline void qn_packed_info_init(qn_packed_info *info)
{
    qn_zero_(info, sizeof *info);
    info->size = sizeof *info;
}
QN_API qn_status qn_packed_info_init_sized(qn_packed_info *info, size_t size);

/** Bytes that qn_pack() would take. Same statuses. */
QN_API qn_status qn_pack_bytes(const qn_ctx *ctx, const qn_weight *weight,
                               const qn_pack_options *options, size_t *bytes);
/**
 * Pack for the context's device. The weight may be destroyed afterwards.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_LAYOUT: no such layout, or it cannot hold this format;
 *         QN_E_MEMORY; QN_E_DEVICE; QN_E_VERSION.
 */
QN_API qn_status qn_pack(const qn_ctx *ctx, const qn_weight *weight, const qn_pack_options *options,
                         qn_packed **packed, qn_error *err);
/**
 * qn_pack() into the caller's memory: buffer, at a multiple of 64 and at least qn_pack_bytes()
 * long, holds the packed weights until they are destroyed, and must not be changed in that time.
 * What lies behind them in the buffer is not touched. On the CPU.
 * @return as qn_pack(), and QN_E_ALIGN; QN_E_SCRATCH: the buffer is too small; QN_E_UNSUPPORTED: a
 *         context on a GPU.
 */
QN_API qn_status qn_pack_into(const qn_ctx *ctx, const qn_weight *weight,
                              const qn_pack_options *options, void *buffer, size_t buffer_bytes,
                              qn_packed **packed, qn_error *err);
/**
 * The bytes of packed weights where they lie, for a cache or a transport of the caller's; they are
 * what qn_packed_from_memory() takes, on machines of the same kind. Valid as long as the weights.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_DEVICE: they are not in host memory (qn_packed_copy()).
 */
QN_API qn_status qn_packed_data(const qn_packed *packed, const void **data, size_t *bytes);
/** Copy these bytes to host memory, from any device; bytes: qn_packed_info's. ctx: of the weights'
 * device. @return QN_OK; QN_E_ARGUMENT; QN_E_SCRATCH: to is too small; QN_E_DEVICE; QN_E_MEMORY. */
QN_API qn_status qn_packed_copy(const qn_ctx *ctx, const qn_packed *packed, void *to,
                                size_t capacity, qn_error *err);
/**
 * Use packed weights where they lie in memory: no copy is made on the CPU; to a GPU they are copied
 * as they are. The bytes are trusted as little as a file's (qn_packed_load()): all offsets, sizes
 * and indices are checked, codes and scales are not looked at. data: at a multiple of 64; unchanged
 * until release is called with release_arg (by qn_packed_destroy(); on a GPU at once; never by a
 * call that fails). release may be NULL.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_ALIGN; QN_E_CORRUPT; QN_E_VERSION; QN_E_LAYOUT: packed for
 *         another device or instruction set; QN_E_MEMORY.
 */
QN_API qn_status qn_packed_from_memory(const qn_ctx *ctx, const void *data, size_t bytes,
                                       qn_release_fn release, void *release_arg, qn_packed **packed,
                                       qn_error *err);
/** NULL is legal. Unmaps a file if the weights came from one. */
QN_API void qn_packed_destroy(qn_packed *packed);
QN_API qn_status qn_packed_query(const qn_packed *packed, qn_packed_info *info);
/**
 * Back to the canonical form: unpack(pack(w)) == w, bit for bit. Weights from a file are checked as
 * qn_weight_create() checks them.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_DEVICE; QN_E_LAYOUT; QN_E_CORRUPT; QN_E_VALUE: a scale that is
 *         not finite, a code that is no number, a perm that is no permutation; QN_E_MEMORY.
 */
QN_API qn_status qn_unpack(const qn_ctx *ctx, const qn_packed *packed, qn_weight **weight,
                           qn_error *err);
/**
 * Are packed weights what packing makes of their own codes and scales? Unpacks them, packs the
 * result again and compares every byte, which finds damaged column sums and padding that no other
 * check looks at. Takes the memory of both. For weights from files.
 * @return QN_OK; the statuses of qn_unpack() and qn_pack(); QN_E_CORRUPT: err names the section
 *         that differs.
 */
QN_API qn_status qn_packed_verify(const qn_ctx *ctx, const qn_packed *packed, qn_error *err);
/**
 * qn_weight_rows() of packed weights, so that an embedding table that is also the head need not be
 * kept twice. A row costs the decoding of the 16 rows of its panel. On the CPU.
 * @return as qn_weight_rows(), and QN_E_LAYOUT; QN_E_UNSUPPORTED: weights on a GPU.
 */
QN_API qn_status qn_packed_rows(const qn_ctx *ctx, const qn_packed *packed, const qn_tensor *ids,
                                bool apply_prescale, const qn_tensor *out, qn_error *err);
/** The i-th layout of the library; NULL past the end. Static text. */
QN_API const char *qn_layout_name(int32_t i);

#ifdef __cplusplus
}
#endif
#endif
