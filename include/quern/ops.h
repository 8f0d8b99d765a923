/* SPDX-License-Identifier: Apache-2.0 */
/* Products and convolutions with quantized weights, and the quantizer of activations.
 *
 *     y = act( scale * (x . W^T) + bias + residual )
 *
 * Every operation comes as a plan (chosen once, run often) and as one direct call that plans on the
 * stack. Neither a run nor a direct call allocates, prints, or leaves the threads of its context.
 * The numbers are defined in docs/numerics.md: equal inputs give equal bits on any number of
 * threads; the int8 strategies on any CPU. */
#ifndef QUERN_OPS_H
#define QUERN_OPS_H

#include "base.h"
#include "context.h"
#include "weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What is done about the activations. */
typedef int32_t qn_strategy;
enum {
    QN_STRATEGY_FLOAT = 0,       /**< Weight-only: activations stay f32, f16 or bf16. */
    QN_STRATEGY_INT8_ROW = 1,    /**< Dynamic int8, symmetric, one scale a row. */
    QN_STRATEGY_INT8_BLOCK = 2,  /**< Dynamic int8, one scale and offset per block along k. */
    QN_STRATEGY_INT8_STATIC = 3, /**< x is int8 or uint8 with a given scale and zero point. */
    QN_STRATEGY_DENSE = 4,       /**< Weights dequantized, then a plain dense product: weights may
                                      be rounded once to the type of x where that is faster (f16,
                                      bf16 on a GPU; bf16 on a CPU with AMX, for many rows); else
                                      as FLOAT. The plan names the kernel. */
    /* x becomes e4m3 (FP8) codes times scales, then as FLOAT, with any weights; those of format
     * e4m3 meet it on the FP8 tensor cores of Hopper GPUs. Not for convolutions. */
    QN_STRATEGY_FP8_ROW = 5,     /**< Dynamic e4m3, one scale a row; or given: x_scales. */
    QN_STRATEGY_FP8_BLOCK = 6,   /**< Dynamic e4m3, one scale for each 128 columns of a row; or
                                      given: x_scales. */
    QN_STRATEGY_FP8_STATIC = 7   /**< One scale for all, x_scale: x is e4m3, or floats that are
                                      divided by it and rounded to e4m3. */
};
QN_API const char *qn_strategy_name(qn_strategy strategy);
QN_API qn_status qn_strategy_parse(const char *text, qn_strategy *strategy, qn_error *err);

typedef int32_t qn_act;
enum {
    QN_ACT_NONE = 0,
    QN_ACT_RELU = 1,
    QN_ACT_RELU6 = 2,
    QN_ACT_GELU = 3,      /**< x/2 (1 + erf(x / sqrt 2)). */
    QN_ACT_GELU_TANH = 4, /**< The tanh approximation. */
    QN_ACT_SILU = 5,      /**< x / (1 + exp(-x)). */
    QN_ACT_SIGMOID = 6,   /**< 1 / (1 + exp(-x)). */
    QN_ACT_TANH = 7,
    QN_ACT_HARDSWISH = 8,   /**< x min(max(x / 6 + 1/2, 0), 1). */
    QN_ACT_HARDSIGMOID = 9, /**< min(max(hard_slope x + hard_shift, 0), 1): qn_epilogue_more. */
    QN_ACT_LEAKY_RELU = 10  /**< x, or leaky_slope x below 0: qn_epilogue_more. */
};

/**
 * What happens to a product before it is stored, in this order:
 *   v = acc * row_scale[m] * col_scale[n];  v += bias[n];  v += residual (before);  v = act(v);
 *   v = min(max(v, clamp_lo), clamp_hi);    v += residual (after);
 *   int8, uint8 output: y = saturate(round_half_even(v * (1 / y_scale)) + y_zero).
 *   e4m3 output: y = e4m3(v * (1 / y_scale)), at most 448 in magnitude.
 * rank 0 tensors mean "none". All tensors are borrowed.
 */
typedef struct qn_epilogue {
    qn_tensor bias;         /**< [n] f32, f16, bf16; with int8-static also i32 (in units of x_scale
                                 * weight scale, added to the integers, which then are exact sums,
                                 zero points included; for weights that can give y of type i32). */
    qn_tensor residual;     /**< Shape of y; f32, f16, bf16; also i8, u8: scale * (code - zero) of
                                 qn_epilogue_more. May be y itself, element by element. */
    int32_t residual_after; /**< 0 (default): before the activation. */
    qn_act act;
    float clamp_lo, clamp_hi; /**< Default -inf, inf. Both 0, as in a struct that was only
                                   zeroed: QN_E_VALUE. */
    qn_tensor row_scale;    /**< [rows of y] f32. */
    qn_tensor col_scale;    /**< [n] f32. */
    float y_scale;          /**< For int8, uint8 and e4m3 outputs, where 0 is refused; default 1. */
    int32_t y_zero;         /**< For int8 and uint8 outputs. */
} qn_epilogue;

/** A fresh epilogue: nothing happens. */
static inline void qn_epilogue_init(qn_epilogue *epilogue)
{
    qn_zero_(epilogue, sizeof *epilogue);
    epilogue->clamp_lo = -3.402823466e+38f * 2.0f; /* -inf without <math.h> */
    epilogue->clamp_hi = 3.402823466e+38f * 2.0f;
    epilogue->y_scale = 1.0f;
}
QN_API qn_status qn_epilogue_init_sized(qn_epilogue *epilogue, size_t size);

/** Products that are gated by other outputs of the same weights: y[m, n / 2] = act(g) * u. */
typedef int32_t qn_gate;
enum {
    QN_GATE_NONE = 0,
    QN_GATE_HALVES = 1, /**< g are the first n / 2 outputs, u the others, as qn_weight_concat()
                             joins gate and up. n is a multiple of 32. */
    QN_GATE_PAIRS = 2   /**< Outputs 2 j are g, outputs 2 j + 1 are u. n is even. */
};

/**
 * More of an epilogue, for those who need it: `more` of an argument struct. NULL there stands for
 * the defaults here. Set by _init().
 */
typedef struct qn_epilogue_more {
    size_t size;
    float leaky_slope;      /**< Of QN_ACT_LEAKY_RELU; finite; default 0.01. */
    float hard_slope;       /**< Of QN_ACT_HARDSIGMOID; finite; default 1/6 (torch; ONNX: 0.2). */
    float hard_shift;       /**< Likewise; default 0.5. */
    float residual_scale;   /**< Of a residual of i8 or u8; positive; default 1. */
    int32_t residual_zero;  /**< Likewise, a value of its type; default 0. */
    qn_gate gate;           /**< Default none. Of matmul and grouped: y and the residual, which is
                                 added after, are [m, n / 2], bias and col_scale [n] of all outputs.
                                 v = act(g) * u comes before the clamp. */
    qn_tensor factor;       /**< Shape of y, f32, f16, bf16: v = act(v) * factor, before the clamp.
                                 Of matmul and grouped, without a gate. Default none. */
} qn_epilogue_more;

static inline void qn_epilogue_more_init(qn_epilogue_more *more)
{
    qn_zero_(more, sizeof *more);
    more->size = sizeof *more;
    more->leaky_slope = 0.01f;
    more->hard_slope = 1.0f / 6.0f;
    more->hard_shift = 0.5f;
    more->residual_scale = 1.0f;
}
QN_API qn_status qn_epilogue_more_init_sized(qn_epilogue_more *more, size_t size);

/** Given quantization of int8-static inputs, and choices of the dynamic strategies. */
typedef struct qn_quant_args {
    float x_scale;            /**< int8-static and fp8-static, where 0 is refused; default 1. */
    int32_t x_zero;
    int32_t symmetric;        /**< int8-block: 1 = no offset (amax / 127); default 0. */
    int32_t reserved;
} qn_quant_args;

/* Words of failures. Runs, direct calls, sizes of scratch and shapes return a status and have no
 * qn_error argument. Their argument structs have `error`: NULL (default), or a qn_error of the
 * caller's that a failing call fills with its status and one sentence that names the argument; a
 * call that succeeds leaves it alone. Every failure has a sentence, with a log callback or without.
 * It is borrowed for the call, and it is all that a call writes of its caller's words: threads that
 * share one argument struct give each its own copy of the struct, with an error of its own, or
 * none. Calls with a qn_error argument use that, and this one where it is NULL. Plans keep
 * neither. */

/* ---------------------------------------------------------------------------------------- plans */

typedef struct qn_plan qn_plan;

/** NULL is legal. */
QN_API void qn_plan_destroy(qn_plan *plan);
/** Scratch that a run of this plan needs at most (64-byte aligned); 0 is a real answer. */
QN_API size_t qn_plan_scratch_bytes(const qn_plan *plan);
/**
 * Why: the chosen kernel, tiles, split, scratch, bytes, operations and roofline; then every other
 * row with its reason for refusing. Plain lines of text. Returns the length needed without the end;
 * always terminated when capacity > 0.
 */
QN_API size_t qn_plan_explain(const qn_plan *plan, char *text, size_t capacity);

/** The facts of a plan, for programs. Texts are static. */
typedef struct qn_plan_info {
    size_t size;
    const char *kernel;     /**< Name of the row that serves the largest number of rows of x. */
    uint64_t isa;           /**< What that kernel needs. */
    int32_t n_threads;
    int32_t is_fallback;    /**< 1: a kernel of a slower class than this machine could run stands
                                 in. */
    int32_t is_exact;       /**< 1: the same bits on every CPU. */
    int32_t ran;            /**< What runs of the plan took so far: 0 none yet, 1 kernel (or, for
                                 fewer rows of x, the row that qn_plan_explain() names for them),
                                 2 stand_in, 3 both, each for a part of the rows. */
    size_t scratch_bytes;
    double bytes;           /**< Fewest bytes that must move: weights, x, y. */
    double ops;             /**< 2 m n k. */
    const char *stand_in;   /**< The row that runs where the data rule kernel out, such as rows of
                                 x with too many outliers; NULL: they cannot. */
} qn_plan_info;
static inline void qn_plan_info_init(qn_plan_info *info)
{
    qn_zero_(info, sizeof *info);
    info->size = sizeof *info;
}
QN_API qn_status qn_plan_info_init_sized(qn_plan_info *info, size_t size);
QN_API qn_status qn_plan_query(const qn_plan *plan, qn_plan_info *info);

/**
 * On a CPU, plans of products choose kernels of vectors by a model of what m rows of x would cost:
 *     us = t0 + max( bytes of weights / bandwidth, cost of the kernel / threads )
 * with constants of the library for each kernel, measured on one processor per instruction set. A
 * program that has measured another processor (`quern tune` does) multiplies them on its contexts.
 */
typedef struct qn_cpu_cost {
    size_t size;
    char kernel[64];  /**< The row, or "memory": the time to read weights. */
    double times;     /**< What the library's constants are multiplied with; 0.01 to 100. */
    int32_t is_given; /**< 1: set on this context; 0: the library's, times is 1. Ignored on the way
                           in. */
    int32_t reserved;
} qn_cpu_cost;
static inline void qn_cpu_cost_init(qn_cpu_cost *cost)
{
    qn_zero_(cost, sizeof *cost);
    cost->size = sizeof *cost;
    cost->times = 1.0;
}
QN_API qn_status qn_cpu_cost_init_sized(qn_cpu_cost *cost, size_t size);
/**
 * The i-th line of the model that the context's instructions can run, i from 0, which is "memory".
 * Any thread that does not set one.
 * @return QN_OK; QN_E_ARGUMENT: NULL, size unset, ctx on a GPU; QN_E_NOT_FOUND: i is past the end.
 */
QN_API qn_status qn_cpu_get_cost(const qn_ctx *ctx, int32_t i, qn_cpu_cost *cost, qn_error *err);
/**
 * From now on plans of this context, and direct calls, multiply the constants of this line. A row
 * that the context's instructions cannot run is legal: nothing chooses it. Plans that are there
 * keep their kernels. No other call on the context may be running. What int8 strategies compute
 * does not depend on it; float strategies may get another kernel, within the same bound.
 * @return QN_OK; QN_E_ARGUMENT: NULL, size unset, ctx on a GPU; QN_E_NOT_FOUND: there is no such
 *         line; QN_E_VALUE: times is out of its range, or no number; QN_E_MEMORY; QN_E_VERSION:
 *         cost uses a field from the future.
 */
QN_API qn_status qn_cpu_set_cost(qn_ctx *ctx, const qn_cpu_cost *cost, qn_error *err);
/**
 * What the model says of the largest m of a plan, in microseconds; 0 where it says nothing:
 * convolutions, tiles of AMX, fp8.
 * @return QN_OK; QN_E_ARGUMENT: NULL, or the plan is of a GPU.
 */
QN_API qn_status qn_cpu_predict(const qn_plan *plan, double *us);

/* --------------------------------------------------------------------------------------- matmul */

/** Y[m, n] = epilogue( X[m, k] . W[n, k]^T ). Begin with qn_matmul_args_init(). */
typedef struct qn_matmul_args {
    size_t size;
    const qn_packed *w;    /**< Borrowed. */
    qn_tensor x;           /**< [m, k]; rows may be strided, columns may not. f32, f16, bf16; i8, u8
                                for int8-static; fp8 strategies also e4m3. [..., k] of a higher rank
                                is m rows, too, where these lie at one distance; then y, residual
                                and factor have the same leading dimensions. */
    qn_tensor y;           /**< [m, n]; rows may be strided. f32, f16, bf16, i8, u8 (on a GPU i8 and
                                u8 of int8-static alone); fp8 strategies also e4m3; int8-static also
                                i32 (raw sums of (x - x_zero) * (w - zero), exact, nothing else;
                                only for integer weights of one group an output without offsets,
                                zero points of 8 bits, and sums that int32 holds: with 8 bits and
                                zero points k up to 33025). Must not overlap x. */
    qn_epilogue epilogue;
    qn_strategy strategy;
    int32_t strict;        /**< 1: QN_E_FALLBACK rather than a slower class of kernel. */
    qn_quant_args quant;
    const char *kernel;    /**< NULL (default), or the name of the row to use; else
                                QN_E_UNSUPPORTED. */
    qn_error *error;       /**< NULL (default), or where a failing call puts its sentence. */
    const void *prepared;  /**< NULL (default), or what qn_prepare() left of x. Then x tells type
                                and shape alone, and its data may be NULL. */
    const qn_epilogue_more *more; /**< NULL (default), or more of the epilogue. Borrowed. */
    qn_tensor x_scales;    /**< fp8-row and fp8-block with x of e4m3: [rows of x, 1] or [rows of x,
                                k / 128 rounded up] f32, as qn_quantize_rows() gives them; else
                                none. */
} qn_matmul_args;
static inline void qn_matmul_args_init(qn_matmul_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    qn_epilogue_init(&args->epilogue);
    args->quant.x_scale = 1.0f;
}
QN_API qn_status qn_matmul_args_init_sized(qn_matmul_args *args, size_t size);

/**
 * Choose how to do this product and any other with the same types and weights and at most as many
 * rows. Data pointers are not looked at (they may be NULL).
 * From run to run may change: pointers, strides (images: not between planes and pixels), scales,
 * zero points (not from 0 to another), activation, clamp, and weights of the same make.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE: negative, beyond the address
 *         space, or rows of y on each other (those of x may be); QN_E_VALUE: a NaN, a clamp of 0 to
 *         0, or a scale or zero point out of range; QN_E_UNSUPPORTED; QN_E_LAYOUT; QN_E_FALLBACK;
 *         QN_E_DEVICE: a tensor or the weights are elsewhere; QN_E_VERSION: args uses a field from
 *         the future; QN_E_MEMORY.
 */
QN_API qn_status qn_matmul_plan(const qn_ctx *ctx, const qn_matmul_args *args, qn_plan **plan,
                                qn_error *err);
/**
 * Compute y. Threads: plan and weights may be shared by many callers; scratch may not. scratch NULL
 * uses the context's arena.
 * Calls that use the arena at the same time wait for each other.
 * @return what qn_matmul_plan() returns, and QN_E_SCRATCH; QN_E_ALIGN: scratch to 64 bytes, data to
 *         its elements; QN_E_OVERLAP: y and anything else that is used (slices side by side in one
 *         matrix are apart). A failed call has not touched y.
 */
QN_API qn_status qn_matmul_run(const qn_plan *plan, const qn_matmul_args *args, void *scratch,
                               size_t scratch_bytes);
/** Plan and run in one; scratch as told by qn_matmul_scratch(). */
QN_API qn_status qn_matmul(const qn_ctx *ctx, const qn_matmul_args *args, void *scratch,
                           size_t scratch_bytes);
QN_API qn_status qn_matmul_scratch(const qn_ctx *ctx, const qn_matmul_args *args, size_t *bytes);
/**
 * What qn_plan_explain() would say of the plan for these arguments, without making one; and where
 * none can be made, why. The first line has the reason that governs ("no kernel serves this: ...",
 * the sentence of a bad argument behind its status, what a strict plan refuses), the rest the
 * problem and each row's own reason. Data pointers are not looked at. For people: the status and
 * the sentence for programs come from qn_matmul_plan(). Any thread; nothing is allocated. ctx and
 * args NULL give that as text. Returns the length needed without the end; always terminated when
 * capacity > 0; text may be NULL if it is 0.
 */
QN_API size_t qn_matmul_explain(const qn_ctx *ctx, const qn_matmul_args *args, char *text,
                                size_t capacity);

/* -------------------------------------------------------------------------------- prepared rows */

/**
 * Rows of x that several products read (q, k and v; gate and up; experts), quantized once. They are
 * for weights that order and cut k as args->w does: the same groups (int8-row: with the same
 * padding), x_block, act-order and prescale; of any codes, shifts and n. A product's bits are those
 * that it has without.
 */
typedef struct qn_prepare_args {
    size_t size;
    const qn_packed *w;    /**< One of the weights. Borrowed for the call. */
    qn_tensor x;           /**< [m, k] f32, f16, bf16; rows may be strided, columns may not. */
    qn_strategy strategy;  /**< QN_STRATEGY_INT8_ROW (default) or QN_STRATEGY_INT8_BLOCK. */
    int32_t reserved;      /**< 0. */
    qn_quant_args quant;   /**< symmetric, as of the products. */
    qn_error *error;       /**< NULL (default), or where a failing call puts its sentence. */
} qn_prepare_args;
static inline void qn_prepare_args_init(qn_prepare_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    args->strategy = QN_STRATEGY_INT8_ROW;
    args->quant.x_scale = 1.0f;
}
QN_API qn_status qn_prepare_args_init_sized(qn_prepare_args *args, size_t size);
/** Bytes of memory that qn_prepare() needs for x of this shape. Data are not looked at.
 * @return as qn_prepare(). */
QN_API qn_status qn_prepare_bytes(const qn_ctx *ctx, const qn_prepare_args *args, size_t *bytes);
/**
 * Quantize x into memory of the caller's, at a multiple of 64. Neither x nor the weights are needed
 * afterwards; any number of threads may read the memory, which may be copied (to a multiple of 64)
 * and used by any context on the CPU. Allocates nothing; the context's threads share the rows. On a
 * GPU each product quantizes its own rows: QN_E_UNSUPPORTED.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_ALIGN; QN_E_OVERLAP;
 *         QN_E_DEVICE; QN_E_SCRATCH: memory is too small; QN_E_UNSUPPORTED; QN_E_VERSION.
 * Products with prepared rows return, besides their own, QN_E_VALUE: memory that qn_prepare() did
 * not fill; QN_E_LAYOUT: weights that order or cut k in another way; QN_E_SHAPE, QN_E_DTYPE,
 * QN_E_ARGUMENT: rows of another x, strategy or symmetry.
 */
QN_API qn_status qn_prepare(const qn_ctx *ctx, const qn_prepare_args *args, void *memory,
                            size_t memory_bytes);

/* -------------------------------------------------------------------------------- grouped (MoE) */

/**
 * Row r of Y = epilogue( X[source(r)] . W[expert(r)]^T ). Either offsets or ids tells the expert:
 *   offsets [n_experts + 1] i32: rows offsets[e] to offsets[e+1] belong to expert e (empty ones are
 *       legal); rows in none of these ranges are left untouched;
 *   ids [rows of y] i32: the expert of each row, in any order; a negative id leaves that row of y
 *       untouched.
 * x_rows [rows of y] i32, optional: the row of X that row r reads (top-k routing); default r.
 * Or neither: a batch, x [n_experts, m, k] and y [n_experts, m, n], residual and factor as y.
 */
typedef struct qn_grouped_args {
    size_t size;
    const qn_packed *const *w; /**< [n_experts], all of one shape, format and layout. */
    int32_t n_experts;
    int32_t strict;
    qn_tensor x, y;            /**< As for matmul. */
    qn_tensor offsets, ids, x_rows;
    qn_epilogue epilogue;      /**< bias and col_scale: [n] for all experts, or [n_experts, n]. */
    qn_strategy strategy;
    int32_t reserved;
    qn_quant_args quant;
    const char *kernel;
    qn_error *error;           /**< NULL (default), or where a failing call puts its sentence. */
    const void *prepared;      /**< As for matmul: all rows of x, of which x_rows takes some. */
    const qn_epilogue_more *more;   /**< NULL (default), or more of the epilogue. Borrowed. */
    qn_tensor x_scales;        /**< As for matmul; by the rows of x. */
} qn_grouped_args;
static inline void qn_grouped_args_init(qn_grouped_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    qn_epilogue_init(&args->epilogue);
    args->quant.x_scale = 1.0f;
}
QN_API qn_status qn_grouped_args_init_sized(qn_grouped_args *args, size_t size);
/** Like the calls of matmul. A bad id or offset is found by the run: QN_E_VALUE. On a GPU,
 * where nobody waits to look at them, rows with a bad id or outside of all ranges are left
 * untouched, and a bad entry of x_rows reads zeros. */
QN_API qn_status qn_grouped_plan(const qn_ctx *ctx, const qn_grouped_args *args, qn_plan **plan,
                                 qn_error *err);
QN_API qn_status qn_grouped_run(const qn_plan *plan, const qn_grouped_args *args, void *scratch,
                                size_t scratch_bytes);
QN_API qn_status qn_grouped(const qn_ctx *ctx, const qn_grouped_args *args, void *scratch,
                            size_t scratch_bytes);
QN_API qn_status qn_grouped_scratch(const qn_ctx *ctx, const qn_grouped_args *args, size_t *bytes);
QN_API size_t qn_grouped_explain(const qn_ctx *ctx, const qn_grouped_args *args, char *text,
                                 size_t capacity);

/**
 * The rows of a token's experts become one: y[t] = add[t] + the sum over j of weights[t, j] *
 * x[rows[t, j]], in f32, one rounding a step, in the order of j. Begin with
 * qn_combine_rows_args_init().
 */
typedef struct qn_combine_rows_args {
    size_t size;
    qn_tensor x;       /**< [rows, n] f32, f16, bf16: what qn_grouped() gave. */
    qn_tensor weights; /**< [tokens, top_k] f32. */
    qn_tensor rows;    /**< [tokens, top_k] i32; a negative one is left out. None (default): row
                            t * top_k + j, and x has tokens * top_k rows. */
    qn_tensor y;       /**< [tokens, n] f32, f16, bf16. */
    qn_tensor add;     /**< Shape of y; f32, f16, bf16: a shared expert, a residual; may be y
                            itself. None (default): 0. */
    qn_error *error;   /**< NULL (default), or where a failing call puts its sentence. */
} qn_combine_rows_args;
static inline void qn_combine_rows_args_init(qn_combine_rows_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
}
QN_API qn_status qn_combine_rows_args_init_sized(qn_combine_rows_args *args, size_t size);
/**
 * No scratch. The same bits on every CPU and any number of threads. A failed call has not touched
 * y.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_ALIGN; QN_E_OVERLAP;
 *         QN_E_DEVICE; QN_E_VALUE: an entry of rows is beyond x; QN_E_UNSUPPORTED: on a GPU;
 *         QN_E_VERSION.
 */
QN_API qn_status qn_combine_rows(const qn_ctx *ctx, const qn_combine_rows_args *args);

/* ---------------------------------------------------------------------------------- convolution */

typedef int32_t qn_image;
enum { QN_NCHW = 0, QN_NHWC = 1 };

/**
 * Convolution (or its transpose) in two dimensions; one dimension is h = 1. Size, groups and
 * channels of the kernel come from w.
 *   conv2d:           oh = (h + pad_top + pad_bottom - dilation_h (kh - 1) - 1) / stride_h + 1
 *   conv_transpose2d: oh = (h - 1) stride_h - pad_top - pad_bottom + dilation_h (kh - 1) + 1
 *                          + out_pad_h
 * Padding is zero; for int8-static it is x_zero (a real zero). With dynamic strategies the rows
 * that are quantized are the patches: a convolution is exactly the matmul of its patch matrix. The
 * transposed weight is stored like the other: W[co, kh, kw, ci], tap (ky, kx) adds x[iy, ix] to
 * y[iy stride + ky dilation - pad].
 */
typedef struct qn_conv_args {
    size_t size;
    const qn_packed *w;
    qn_tensor x;             /**< Rank 4, or 3 without h; any strides for NCHW and NHWC as long as
                                  the innermost is 1. */
    qn_tensor y;
    qn_image image;          /**< Of x, y and residual; default NCHW. */
    int32_t stride[2];       /**< h, w; default 1. */
    int32_t dilation[2];     /**< Default 1. */
    int32_t pad[4];          /**< top, left, bottom, right; default 0; not negative. */
    int32_t out_pad[2];      /**< Transposed only: less than the stride or the dilation. */
    int32_t strict;
    qn_strategy strategy;
    qn_epilogue epilogue;    /**< row_scale must be none. */
    qn_quant_args quant;
    const char *kernel;
    qn_error *error;         /**< NULL (default), or where a failing call puts its sentence. */
    const qn_epilogue_more *more; /**< NULL (default), or more of the epilogue. Borrowed. */
} qn_conv_args;
static inline void qn_conv_args_init(qn_conv_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    args->stride[0] = args->stride[1] = args->dilation[0] = args->dilation[1] = 1;
    qn_epilogue_init(&args->epilogue);
    args->quant.x_scale = 1.0f;
}
QN_API qn_status qn_conv_args_init_sized(qn_conv_args *args, size_t size);
/** Shape of y for these arguments: fills args->y's shape, rank and contiguous strides (dtype and
 * data stay; a device that was not set becomes that of x). Needs no context. A failed call has not
 * touched y, and tells args->error why.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_VERSION: args uses a field from the future. */
QN_API qn_status qn_conv2d_shape(qn_conv_args *args);
QN_API qn_status qn_conv_transpose2d_shape(qn_conv_args *args);
/** Like the calls of matmul. */
QN_API qn_status qn_conv2d_plan(const qn_ctx *ctx, const qn_conv_args *args, qn_plan **plan,
                                qn_error *err);
QN_API qn_status qn_conv2d_run(const qn_plan *plan, const qn_conv_args *args, void *scratch,
                               size_t scratch_bytes);
QN_API qn_status qn_conv2d(const qn_ctx *ctx, const qn_conv_args *args, void *scratch,
                           size_t scratch_bytes);
QN_API qn_status qn_conv2d_scratch(const qn_ctx *ctx, const qn_conv_args *args, size_t *bytes);
QN_API size_t qn_conv2d_explain(const qn_ctx *ctx, const qn_conv_args *args, char *text,
                                size_t capacity);
QN_API qn_status qn_conv_transpose2d_plan(const qn_ctx *ctx, const qn_conv_args *args,
                                          qn_plan **plan, qn_error *err);
QN_API qn_status qn_conv_transpose2d_run(const qn_plan *plan, const qn_conv_args *args,
                                         void *scratch, size_t scratch_bytes);
QN_API qn_status qn_conv_transpose2d(const qn_ctx *ctx, const qn_conv_args *args, void *scratch,
                                     size_t scratch_bytes);
QN_API qn_status qn_conv_transpose2d_scratch(const qn_ctx *ctx, const qn_conv_args *args,
                                             size_t *bytes);
QN_API size_t qn_conv_transpose2d_explain(const qn_ctx *ctx, const qn_conv_args *args, char *text,
                                          size_t capacity);

/* ------------------------------------------------------------------------- activation quantizer */

/**
 * Quantization of rows on its own. block 0: one scale a row; else one per `block` columns (the last
 * may be short). Symmetric: scale = amax / 127, codes in [-127, 127]. Asymmetric: value = scale *
 * code + offset. u8 codes (asymmetric only): code + 128 of the int8 one, offset adjusted.
 *
 * With integer zero points, value = scale * (code - zero), codes i8 or u8 and whole:
 *   zero, given 0: ONNX's DynamicQuantizeLinear, block by block: lo = min(0, x), hi = max(0, x),
 *       scale = (hi - lo) / 255 (1 where both are 0), zero = round(saturate(least - lo / scale)),
 *       with least -128 or 0; a block with an infinity or a NaN has a scale of NaN and zero 0;
 *   given 1: ONNX's QuantizeLinear: scale and zero (none: 0) are read;
 * and code = saturate(round_half_even(x / scale) + zero), where a NaN counts as 0. Only of these,
 * block may be QN_GROUP_PER_TENSOR: one scale for all of x. On the CPU.
 *
 * e4m3 codes (symmetric, without sums): scale = amax / 448; what fp8-row (block 0) and fp8-block
 * (block 128) do to x.
 */
typedef struct qn_quantize_rows_args {
    size_t size;
    qn_tensor x;        /**< [m, k] f32, f16, bf16. */
    qn_tensor codes;    /**< [m, k] i8, u8 or e4m3. */
    qn_tensor scale;    /**< [m, blocks] f32; [1, 1] per tensor. */
    qn_tensor offset;   /**< [m, blocks] f32; none = symmetric. */
    qn_tensor sum;      /**< [m, blocks] i32, sum of codes; or none. [m, 1] per tensor. */
    int64_t block;
    qn_error *error;    /**< NULL (default), or where a failing call puts its sentence. */
    qn_tensor zero;     /**< As scale, of the codes' type; none (default): no zero points. */
    int32_t given;      /**< 1: scale and zero are read, not found. Default 0. */
    int32_t reserved;   /**< 0. */
} qn_quantize_rows_args;
static inline void qn_quantize_rows_args_init(qn_quantize_rows_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
}
QN_API qn_status qn_quantize_rows_args_init_sized(qn_quantize_rows_args *args, size_t size);
/**
 * No scratch.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_ALIGN; QN_E_OVERLAP;
 *         QN_E_DEVICE; QN_E_VERSION; QN_E_VALUE: a given scale that is not positive and finite;
 *         QN_E_UNSUPPORTED: zero points or given scales on a GPU.
 */
QN_API qn_status qn_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args);

/* ------------------------------------------------------------------------------ epilogue alone */

/** What happens to a product, of values that come from elsewhere: sums that several processes
 * added, another library's product. Begin with qn_finish_args_init(). */
typedef struct qn_finish_args {
    size_t size;
    qn_tensor v;          /**< [m, n] f32; rows may be strided. */
    qn_tensor y;          /**< [m, n] f32, f16, bf16, i8, u8; rows may be strided. Must not overlap
                               v, but may be v itself. */
    qn_epilogue epilogue; /**< As for matmul; bias of a floating type. */
    qn_error *error;      /**< NULL (default), or where a failing call puts its sentence. */
    const qn_epilogue_more *more; /**< NULL (default), or more of the epilogue. Borrowed. */
} qn_finish_args;
static inline void qn_finish_args_init(qn_finish_args *args)
{
    qn_zero_(args, sizeof *args);
    args->size = sizeof *args;
    qn_epilogue_init(&args->epilogue);
}
QN_API qn_status qn_finish_args_init_sized(qn_finish_args *args, size_t size);
/**
 * y = epilogue(v), with the bits that a product gives whose sums are v. No scratch. On the CPU.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_VALUE; QN_E_ALIGN;
 *         QN_E_OVERLAP; QN_E_DEVICE; QN_E_UNSUPPORTED: a context of a GPU; QN_E_VERSION.
 */
QN_API qn_status qn_finish(const qn_ctx *ctx, const qn_finish_args *args);

#ifdef __cplusplus
}
#endif
#endif
