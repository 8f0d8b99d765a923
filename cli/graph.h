/* SPDX-License-Identifier: Apache-2.0 */
/* An ONNX model as its bytes: which nodes multiply by which constant, so that weights can be
 * quantized within their graph (export_graph.c). The library's reader says what the weights are
 * worth; here are places in the file. Bodies of If and Loop, and functions, are not rewritten: only
 * the names that they use of the graph are known. */
#ifndef CLI_GRAPH_H
#define CLI_GRAPH_H

#include "cli.h"
#include "message.h"

enum { GRAPH_OPSET_OF_BLOCKS = 21 }; /* of which DequantizeLinear has blocks */

enum graph_op { GRAPH_OTHER, GRAPH_MATMUL, GRAPH_GEMM, GRAPH_CONV, GRAPH_TRANSPOSED, GRAPH_NBITS };

struct graph_name {
    struct bytes text;
    int64_t uses;   /* inputs of nodes, outputs of the graph, names in bodies */
    int64_t maker;  /* the node that makes it, or -1 */
    int64_t tensor; /* the constant that it is, or -1 */
};

struct graph_node {
    struct bytes message;
    int64_t input, output; /* first of values */
    int n_inputs, n_outputs;
};

struct graph_tensor {
    struct bytes message;
    char *name;
    int64_t id;   /* of names */
    int64_t node; /* of Constant; -1: an initializer */
    int type;     /* of its elements, as the format numbers them */
    int rank;
    int64_t shape[4]; /* of rank up to 4 */
    int is_external;
};

/* A node whose second input is a constant: a weight, or comes of one through DequantizeLinear,
 * Transpose and Identity. */
struct graph_use {
    enum graph_op op;
    int64_t node, tensor;
    char axes[8];     /* of the tensor: "io", "oihw" */
    char layout[8];   /* as the node takes it */
    int64_t groups;   /* of a convolution */
    int is_quantized; /* behind DequantizeLinear, or of MatMulNBits */
    int is_plain;     /* MatMulNBits could stand for it */
    int has_alpha;    /* a factor of Gemm */
};

struct graph_weight { /* a constant with all of its uses as a weight */
    const struct graph_tensor *tensor;
    const struct graph_use *uses;
    int n_uses;
    int is_mixed; /* its uses do not agree on what its dimensions are */
    int differs;  /* they take it in different layouts */
    int is_plain, is_float, has_alpha;
};

struct graph {
    char *path;
    struct bytes file, model; /* model: the GraphProto */
    int64_t ir, opset;        /* versions; of the operators without a domain */
    int has_microsoft;
    struct graph_name *names;
    int64_t n_names;
    struct graph_node *nodes;
    int64_t n_nodes;
    int64_t *values; /* names of inputs and outputs */
    int64_t n_values;
    struct graph_tensor *tensors;
    int64_t n_tensors;
    struct graph_use *uses;
    int64_t n_uses;
    struct graph_weight *weights; /* by name */
    int64_t n_weights;
};

/* 0, or the exit status. graph_close() in any case. The library has opened the file before. */
int graph_open(struct graph *g, const char *path);
void graph_close(struct graph *g);
/* The weight that a tensor is, or NULL. */
const struct graph_weight *graph_find(const struct graph *g, const char *tensor);
/* The name's place in names, or -1. */
int64_t graph_name(const struct graph *g, struct bytes text);
/* An attribute's message; of size 0: there is none. */
struct bytes graph_attribute(struct bytes node, const char *name);
/* Is the node that operator, of ONNX itself (or of com.microsoft)? */
int graph_is(struct bytes node, const char *op);

#endif
