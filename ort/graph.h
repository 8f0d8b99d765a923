/* SPDX-License-Identifier: Apache-2.0 */
/* A graph as it is read once: nodes and values by number, who makes a value and who reads it, types
 * and static shapes. Names and constants belong to the runtime's graph. */
#ifndef ORT_GRAPH_H
#define ORT_GRAPH_H

#include "runtime.h"

enum { GRAPH_MAX_RANK = 8 };

/* Numbers of values and nodes; -1 is none. */
struct graph_value {
    const char *name;
    const struct ort_value_info *info;
    int32_t producer;
    int32_t n_uses;      /* By nodes of this graph. */
    int32_t reader;      /* The node of the last use. */
    bool leaves;         /* A graph output, or read by a graph inside of a node. */
    bool is_constant;
    int32_t type;        /* enum ort_type; 0: unknown. */
    int32_t rank;        /* -1: unknown. */
    int64_t shape[GRAPH_MAX_RANK]; /* -1: known at run time only. */
};

struct graph_node {
    const struct ort_node *ort;
    const char *op;
    const char *domain;
    bool channels_last; /* x and y of this convolution are images with channels last. */
    int32_t n_inputs, n_outputs;
    int32_t *inputs, *outputs;
};

struct graph {
    const struct ort_api *api;
    int32_t n_nodes, n_values;
    struct graph_node *nodes;
    struct graph_value *values;
    int32_t *slots; /* Hash of names. */
    int32_t *operands;
    size_t n_slots, n_operands, max_operands;
};

struct ort_status *graph_read(const struct ort_api *api, const struct ort_graph *ort,
                              struct graph *graph);
void graph_free(struct graph *graph);

/* The value of that name, or -1. */
int32_t graph_find(const struct graph *graph, const char *name);
/* Input or output i of a node, -1 where there is none. */
int32_t node_input(const struct graph_node *node, int32_t i);
int32_t node_output(const struct graph_node *node, int32_t i);
/* domain "" is ONNX's own; images may lie either way. */
bool node_is(const struct graph_node *node, const char *domain, const char *op);

/* Attributes; the default where the node has none. ints: how many were read, at most max. */
int64_t node_int(const struct graph *graph, const struct graph_node *node, const char *name,
                 int64_t otherwise);
float node_float(const struct graph *graph, const struct graph_node *node, const char *name,
                 float otherwise);
size_t node_ints(const struct graph *graph, const struct graph_node *node, const char *name,
                 int64_t *values, size_t max);
void node_text(const struct graph *graph, const struct graph_node *node, const char *name,
               char *text, size_t capacity);

/* A tensor in memory: a constant, an input of a run. */
struct tensor {
    const void *data;
    int32_t type;
    int32_t rank;
    int64_t shape[GRAPH_MAX_RANK];
    int64_t count;
};
struct ort_status *tensor_of(const struct ort_api *api, const struct ort_value *value,
                             struct tensor *tensor);
/* The constant behind a value; false if it is none. */
bool graph_constant(const struct graph *graph, int32_t value, struct tensor *tensor);

#endif
