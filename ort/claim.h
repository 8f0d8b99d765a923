/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes are claimed: one operator that quern computes and what can be fused around it. The
 * same search runs twice, over the whole graph when the runtime asks what is claimed, and over the
 * nodes of a claim when it asks for the program. */
#ifndef ORT_CLAIM_H
#define ORT_CLAIM_H

#include "graph.h"
#include "settings.h"

enum claim_kind {
    CLAIM_QUANTIZE,
    CLAIM_POOL,
    CLAIM_TABLE,
    CLAIM_MATMUL,
    CLAIM_CONV,
    CLAIM_CONV_TRANSPOSE
};

/* How the codes of a weight lie in the model. */
enum weight_order {
    ORDER_KN,   /* [k, n]: MatMul. */
    ORDER_NK,   /* [n, k]: Gemm with transB, MatMulNBits. */
    ORDER_OIHW, /* [n, ci, kh, kw] or [n, ci, kw]: Conv. */
    ORDER_IOHW  /* [ci, n / groups, kh, kw]: ConvTranspose. */
};

enum { CLAIM_MAX_NODES = 16, CLAIM_MAX_FACTORS = 2 };

/* Values are numbers of the graph, -1 where there is none. */
struct claim {
    enum claim_kind kind;
    int32_t nodes[CLAIM_MAX_NODES];
    int32_t n_nodes;
    int32_t anchor;              /* The operator itself. */
    /* x: floats; or given codes with a zero point and a scale. */
    int32_t x, x_scale, x_zero;
    bool x_is_codes;
    bool x_is_quantized_here;    /* DynamicQuantizeMatMul: floats, one scale for all of x. */
    int32_t x_type;              /* enum ort_type of x_is_codes' codes or of floats. */
    /* w: codes, with scales and zero points in the model; or floats to be quantized. */
    int32_t w, w_scale, w_zero;
    enum weight_order order;
    bool w_is_floats;
    int32_t nbits;               /* MatMulNBits' codes, packed in bytes; 0: one tensor of codes. */
    int64_t w_block;             /* Along the reduction; 0: one scale an output, or for all. */
    int64_t n, k;
    qn_strategy strategy;
    qn_format format;            /* Of floats that are quantized on load. */
    /* What follows. */
    int32_t sum_bias;            /* i32, added to the sums. */
    int32_t factors[CLAIM_MAX_FACTORS];
    int32_t n_factors;
    int32_t bias, residual;
    int32_t residual_after;
    qn_act act;
    float clamp_lo, clamp_hi;
    bool has_clamp;
    int32_t y_scale, y_zero;
    int32_t y, y_type;           /* The last value, and enum ort_type. */
    int32_t rank;                /* Of y; -1: known at run time only. */
    /* Convolutions. */
    int32_t n_axes;              /* 1 or 2 */
    int64_t groups, kernel[2], stride[2], dilation[2], pad[4], out_pad[2];
    bool pads_same, pads_upper;
    bool channels_last;          /* x, y and the residual are [n, h, w, channels]. */
    char reason[200];            /* Why an operator of ours is not claimed. */
};

/* Is this node an operator that could be claimed, whatever its form? */
bool claim_concerns(const struct graph *graph, const struct settings *settings, int32_t node);
/* Claim the node and what can be fused around it. False: reason says why not. */
bool claim_find(const struct graph *graph, const struct settings *settings, int32_t node,
                struct claim *claim);

/* ---- between the files of the search ---- */

/* Refuse with a reason. Always false. */
bool claim_refuse(struct claim *claim, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Take a node into the claim; false where it is full. */
bool claim_add(struct claim *claim, int32_t node);
/* MatMulInteger, ConvInteger and their kin: x and w are codes. */
bool claim_integers(const struct graph *graph, struct claim *claim);
/* MatMulNBits. */
bool claim_nbits(const struct graph *graph, const struct settings *settings, struct claim *claim);
/* MatMul, Gemm, Conv, ConvTranspose whose weights are dequantized, or floats to be quantized. */
bool claim_floats(const struct graph *graph, const struct settings *settings, struct claim *claim);
bool floats_concern(const struct graph *graph, const struct settings *settings, int32_t node);
/* Attributes of a convolution, by the shape of its weights. */
bool claim_geometry(const struct graph *graph, struct claim *claim);
/* Reads pads and auto_pad of a node whose image has n_axes axes. */
bool claim_padding(const struct graph *graph, struct claim *claim, const struct graph_node *node);
/* What lies before and behind an axis (0: h, 1: w) of this size: the padding that is given, or that
 * of auto_pad SAME, which makes as many outputs as ceil(size / stride). */
void claim_pad(const struct claim *claim, int32_t axis, int64_t size, int64_t pad[2]);
/* MaxPool. */
bool claim_pool(const struct graph *graph, struct claim *claim);
/* A DequantizeLinear, what works on each number alone, a QuantizeLinear: a function of codes. */
bool claim_table(const struct graph *graph, struct claim *claim);
bool table_concerns(const struct graph *graph, int32_t node);
/* Whatever follows that an epilogue can do. */
void claim_epilogue(const struct graph *graph, struct claim *claim);

/* Is this one number, or one an output channel of y? Where its shape is known. */
bool value_by_channel(const struct graph *graph, const struct claim *claim, int32_t value);
/* A constant tensor of one number of that type. */
bool value_is_number(const struct graph *graph, int32_t value, int32_t type);
/* The number of elements where it is known, else -1. */
int64_t value_count(const struct graph *graph, int32_t value);

#endif
