/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "graph.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Numbers of fields (onnx.proto). */
enum { MODEL_IR = 1, MODEL_GRAPH = 7, MODEL_OPSET = 8 };
enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_OP = 4, NODE_ATTRIBUTE = 5, NODE_DOMAIN = 7 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_LOCATION = 14 };
enum { MOST_DEPTH = 32, MOST_STEPS = 8 };

/* ---------------------------------------------------------------------------------------- names */

static int order_of(struct bytes a, struct bytes b)
{
    const size_t less = a.size < b.size ? a.size : b.size;
    const int order = less == 0 ? 0 : memcmp(a.data, b.data, less);
    return order != 0 ? order : (a.size > b.size) - (a.size < b.size);
}

static int by_text(const void *a, const void *b)
{
    return order_of(((const struct graph_name *)a)->text, ((const struct graph_name *)b)->text);
}

int64_t graph_name(const struct graph *g, struct bytes text)
{
    const struct graph_name wanted = {.text = text};
    const struct graph_name *found =
        g->n_names == 0 ? NULL
                        : bsearch(&wanted, g->names, (size_t)g->n_names, sizeof wanted, by_text);
    return found == NULL ? -1 : found - g->names;
}

static void add_name(struct graph *g, struct bytes text)
{
    g->names = must_append(g->names, g->n_names, sizeof *g->names);
    g->names[g->n_names++] = (struct graph_name){text, 0, -1, -1};
}

/* Each once. */
static void sort_names(struct graph *g)
{
    int64_t kept = 0;
    if (g->n_names > 0)
        qsort(g->names, (size_t)g->n_names, sizeof *g->names, by_text);
    for (int64_t i = 0; i < g->n_names; i++)
        if (kept == 0 || order_of(g->names[kept - 1].text, g->names[i].text) != 0)
            g->names[kept++] = g->names[i];
    g->n_names = kept;
}

/* Calls act for every name that stands in a graph: of inputs and outputs of nodes, also within
 * bodies, and of initializers. depth 0: the model's graph. */
typedef void name_fn(struct graph *g, struct bytes name, int depth, int is_use);

static int is_external(struct bytes tensor)
{
    return message_value(tensor, TENSOR_LOCATION, 0) == 1;
}

static int walk_graph(struct graph *g, struct bytes graph, int depth, name_fn *act);

static int walk_node(struct graph *g, struct bytes node, int depth, name_fn *act)
{
    enum { TENSOR = 5, GRAPH = 6, GRAPHS = 11 };
    struct field f, a;
    while (next_field(&node, &f)) {
        if (f.is_bytes && (f.number == NODE_INPUT || f.number == NODE_OUTPUT))
            act(g, f.content, depth, f.number == NODE_INPUT);
        if (!f.is_bytes || f.number != NODE_ATTRIBUTE)
            continue;
        for (struct bytes rest = f.content; next_field(&rest, &a);) {
            if (a.is_bytes && a.number == TENSOR && is_external(a.content))
                return 0;
            if (a.is_bytes && (a.number == GRAPH || a.number == GRAPHS) &&
                !walk_graph(g, a.content, depth + 1, act))
                return 0;
        }
    }
    return node.size == 0;
}

static int walk_graph(struct graph *g, struct bytes graph, int depth, name_fn *act)
{
    struct field f;
    if (depth > MOST_DEPTH)
        return 0;
    while (next_field(&graph, &f)) {
        if (!f.is_bytes)
            continue;
        if (f.number == GRAPH_NODE && !walk_node(g, f.content, depth, act))
            return 0;
        if (f.number == GRAPH_INITIALIZER && depth > 0 && is_external(f.content))
            return 0;
        if (f.number == GRAPH_INITIALIZER)
            act(g, message_field(f.content, TENSOR_NAME), depth, 0);
        if (f.number == GRAPH_INPUT || f.number == GRAPH_OUTPUT)
            act(g, message_field(f.content, 1), depth, f.number == GRAPH_OUTPUT);
    }
    return graph.size == 0;
}

static void note_name(struct graph *g, struct bytes name, int depth, int is_use)
{
    (void)depth;
    (void)is_use;
    add_name(g, name);
}

static void count_use(struct graph *g, struct bytes name, int depth, int is_use)
{
    (void)depth;
    if (is_use)
        g->names[graph_name(g, name)].uses++;
}

/* ---------------------------------------------------------------------------- nodes and tensors */

int graph_is(struct bytes node, const char *op)
{
    const struct bytes domain = message_field(node, NODE_DOMAIN);
    return bytes_are(message_field(node, NODE_OP), op) &&
           (domain.size == 0 || bytes_are(domain, "ai.onnx") || bytes_are(domain, "com.microsoft"));
}

struct bytes graph_attribute(struct bytes node, const char *name)
{
    struct field f;
    while (next_field(&node, &f))
        if (f.is_bytes && f.number == NODE_ATTRIBUTE &&
            bytes_are(message_field(f.content, 1), name))
            return f.content;
    return (struct bytes){node.data, 0};
}

static int64_t integer(struct bytes node, const char *name, int64_t otherwise)
{
    return message_value(graph_attribute(node, name), 3, otherwise);
}

static float real(struct bytes node, const char *name, float otherwise)
{
    struct bytes attribute = graph_attribute(node, name);
    struct field f;
    while (next_field(&attribute, &f))
        if (f.number == 2 && !f.is_bytes && f.content.size == 4)
            memcpy(&otherwise, f.content.data, 4);
    return otherwise;
}

static int add_dim(struct graph_tensor *t, uint64_t value)
{
    if (t->rank < 4)
        t->shape[t->rank] = (int64_t)value;
    return ++t->rank;
}

static void add_tensor(struct graph *g, struct bytes message, struct bytes name, int64_t node)
{
    struct graph_tensor t = {.message = message, .id = graph_name(g, name), .node = node};
    struct field f;
    for (struct bytes rest = message; next_field(&rest, &f);) {
        if (f.number == TENSOR_DIMS && !f.is_bytes)
            add_dim(&t, f.value);
        if (f.number != TENSOR_DIMS || !f.is_bytes)
            continue;
        uint64_t value = 0;
        int shift = 0;
        for (size_t i = 0; i < f.content.size; i++) { /* packed */
            value |= shift < 64 ? (uint64_t)(f.content.data[i] & 127) << shift : 0;
            shift += 7;
            if (f.content.data[i] < 128) {
                add_dim(&t, value);
                value = 0;
                shift = 0;
            }
        }
    }
    const int64_t type = message_value(message, TENSOR_TYPE, 0);
    t.type = type > 0 && type < 64 ? (int)type : 0;
    t.is_external = is_external(message);
    t.name = must_print("%.*s", (int)name.size, (const char *)name.data);
    g->names[t.id].tensor = g->n_tensors;
    g->tensors = must_append(g->tensors, g->n_tensors, sizeof *g->tensors);
    g->tensors[g->n_tensors++] = t;
}

static void add_value(struct graph *g, struct bytes name)
{
    g->values = must_append(g->values, g->n_values, sizeof *g->values);
    g->values[g->n_values++] = graph_name(g, name);
}

static void add_node(struct graph *g, struct bytes message)
{
    struct graph_node n = {.message = message, .input = g->n_values};
    struct field f;
    for (struct bytes rest = message; next_field(&rest, &f);)
        if (f.is_bytes && f.number == NODE_INPUT) {
            add_value(g, f.content);
            n.n_inputs++;
        }
    n.output = g->n_values;
    for (struct bytes rest = message; next_field(&rest, &f);)
        if (f.is_bytes && f.number == NODE_OUTPUT) {
            add_value(g, f.content);
            g->names[g->values[g->n_values - 1]].maker = g->n_nodes;
            n.n_outputs++;
        }
    const struct bytes value = message_field(graph_attribute(message, "value"), 5);
    if (graph_is(message, "Constant") && n.n_outputs == 1 && value.size > 0)
        add_tensor(g, value, g->names[g->values[n.output]].text, g->n_nodes);
    g->nodes = must_append(g->nodes, g->n_nodes, sizeof *g->nodes);
    g->nodes[g->n_nodes++] = n;
}

/* ----------------------------------------------------------------------------------------- uses */

static int64_t input_of(const struct graph *g, int64_t node, int i)
{
    return i < g->nodes[node].n_inputs ? g->values[g->nodes[node].input + i] : -1;
}

/* Does Transpose swap two dimensions? */
static int is_swap(struct bytes node)
{
    struct bytes perm = graph_attribute(node, "perm");
    int64_t order[3] = {1, 0, 0};
    int n = 0;
    struct field f;
    if (perm.size == 0)
        return 1;
    while (next_field(&perm, &f)) {
        if (f.number != 8)
            continue;
        for (size_t i = 0; f.is_bytes && i < f.content.size; i++, n++)
            order[n < 3 ? n : 2] = f.content.data[i];
        if (!f.is_bytes) {
            order[n < 3 ? n : 2] = (int64_t)f.value;
            n++;
        }
    }
    return n == 2 && order[0] == 1 && order[1] == 0;
}

/* The constant that a node's second input comes from; -1: none. */
static int64_t trace(const struct graph *g, int64_t node, int *is_swapped, int *is_quantized)
{
    int64_t name = input_of(g, node, 1);
    for (int step = 0; step < MOST_STEPS && name >= 0; step++) {
        const struct graph_name *n = &g->names[name];
        if (n->tensor >= 0)
            return n->tensor;
        if (n->maker < 0)
            return -1;
        const struct bytes maker = g->nodes[n->maker].message;
        if (graph_is(maker, "DequantizeLinear") && !*is_quantized)
            *is_quantized = 1;
        else if (graph_is(maker, "Transpose") && is_swap(maker))
            *is_swapped = !*is_swapped;
        else if (!graph_is(maker, "Identity"))
            return -1;
        name = input_of(g, n->maker, 0);
    }
    return -1;
}

static enum graph_op op_of(struct bytes node)
{
    static const struct {
        const char *name;
        enum graph_op op;
    } ops[] = {{"MatMul", GRAPH_MATMUL},
               {"Gemm", GRAPH_GEMM},
               {"Conv", GRAPH_CONV},
               {"ConvTranspose", GRAPH_TRANSPOSED},
               {"MatMulNBits", GRAPH_NBITS}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (graph_is(node, ops[i].name))
            return ops[i].op;
    return GRAPH_OTHER;
}

static void set_axes(struct graph_use *u, const struct graph *g, int is_swapped)
{
    const struct bytes node = g->nodes[u->node].message;
    const int is_2d = g->tensors[u->tensor].rank == 4;
    const char *axes = "oi", *layout;
    if (u->op == GRAPH_CONV || u->op == GRAPH_TRANSPOSED)
        axes = u->op == GRAPH_CONV ? is_2d ? "oihw" : "oiw" : is_2d ? "iohw" : "iow";
    else if (u->op == GRAPH_MATMUL || (u->op == GRAPH_GEMM && integer(node, "transB", 0) == 0))
        axes = "io";
    layout = axes;
    if (is_swapped)
        axes = axes[0] == 'o' ? "io" : "oi";
    if (u->op == GRAPH_NBITS)
        layout = "io"; /* of the MatMul that would stand for it */
    strcpy(u->axes, axes);
    strcpy(u->layout, layout);
}

static void add_use(struct graph *g, int64_t i)
{
    const struct bytes node = g->nodes[i].message;
    int is_swapped = 0;
    struct graph_use u = {.op = op_of(node), .node = i};
    if (u.op == GRAPH_OTHER || g->nodes[i].n_outputs < 1)
        return;
    u.tensor = trace(g, i, &is_swapped, &u.is_quantized);
    const int rank = u.tensor < 0 ? 0 : g->tensors[u.tensor].rank;
    const int is_conv = u.op == GRAPH_CONV || u.op == GRAPH_TRANSPOSED;
    if (is_conv ? (rank != 3 && rank != 4) || is_swapped : u.op != GRAPH_NBITS && rank != 2)
        return;
    if (rank == 0)
        return;
    u.is_quantized |= u.op == GRAPH_NBITS;
    u.groups = is_conv ? integer(node, "group", 1) : 1;
    u.has_alpha = u.op == GRAPH_GEMM && real(node, "alpha", 1) != 1;
    u.is_plain = u.op == GRAPH_MATMUL || u.op == GRAPH_NBITS ||
                 (u.op == GRAPH_GEMM && !u.has_alpha && real(node, "beta", 1) == 1 &&
                  integer(node, "transA", 0) == 0);
    set_axes(&u, g, is_swapped);
    g->uses = must_append(g->uses, g->n_uses, sizeof *g->uses);
    g->uses[g->n_uses++] = u;
}

static int by_tensor(const void *a, const void *b)
{
    const struct graph_use *x = a, *y = b;
    return x->tensor != y->tensor ? (x->tensor > y->tensor) - (x->tensor < y->tensor)
                                  : (x->node > y->node) - (x->node < y->node);
}

static int by_weight(const void *a, const void *b)
{
    const struct graph_weight *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

static void gather(struct graph *g)
{
    if (g->n_uses > 0)
        qsort(g->uses, (size_t)g->n_uses, sizeof *g->uses, by_tensor);
    for (int64_t i = 0; i < g->n_uses; i++) {
        const struct graph_use *u = &g->uses[i];
        const int is_first = i == 0 || u->tensor != u[-1].tensor;
        const int type = g->tensors[u->tensor].type;
        if (is_first) {
            g->weights = must_append(g->weights, g->n_weights, sizeof *g->weights);
            g->weights[g->n_weights++] = (struct graph_weight){
                .tensor = &g->tensors[u->tensor],
                .uses = u,
                .is_plain = 1,
                .is_float = !u->is_quantized && (type == 1 || type == 10 || type == 16)};
        }
        struct graph_weight *w = &g->weights[g->n_weights - 1];
        w->n_uses++;
        w->is_mixed |= strcmp(u->axes, w->uses->axes) != 0 || u->groups != w->uses->groups ||
                       u->is_quantized != w->uses->is_quantized ||
                       (u->op == GRAPH_NBITS) != (w->uses->op == GRAPH_NBITS);
        w->differs |= strcmp(u->layout, w->uses->layout) != 0;
        w->is_plain &= u->is_plain;
        w->has_alpha |= u->has_alpha;
    }
    if (g->n_weights > 0)
        qsort(g->weights, (size_t)g->n_weights, sizeof *g->weights, by_weight);
}

const struct graph_weight *graph_find(const struct graph *g, const char *tensor)
{
    const struct graph_tensor named = {.name = (char *)(uintptr_t)tensor};
    const struct graph_weight wanted = {.tensor = &named};
    return g->n_weights == 0
               ? NULL
               : bsearch(&wanted, g->weights, (size_t)g->n_weights, sizeof wanted, by_weight);
}

/* ------------------------------------------------------------------------------------ the file */

static int map(struct graph *g)
{
    struct stat info;
    const int fd = open(g->path, O_RDONLY | O_CLOEXEC);
    int reason = fd < 0 || fstat(fd, &info) != 0 ? errno : 0;
    if (reason == 0 && info.st_size > 0) {
        g->file.size = (size_t)info.st_size;
        void *data = mmap(NULL, g->file.size, PROT_READ, MAP_PRIVATE, fd, 0);
        reason = data == MAP_FAILED ? errno : 0;
        g->file.data = reason == 0 ? data : NULL;
    }
    if (fd >= 0)
        close(fd);
    return reason == 0 ? 0
                       : complain(EXIT_INPUT, "check the path and its permissions", "%s: %s",
                                  g->path, strerror(reason));
}

static int corrupt(const struct graph *g)
{
    return complain(EXIT_INPUT, "save the model again, with data of the graph alone outside",
                    "%s: its graph cannot be kept: it is damaged, nested too deep, or has external "
                    "data within a node",
                    g->path);
}

static void read_model(struct graph *g)
{
    struct field f;
    for (struct bytes rest = g->file; next_field(&rest, &f);) {
        if (f.number == MODEL_IR && !f.is_bytes)
            g->ir = (int64_t)f.value;
        if (f.number == MODEL_GRAPH && f.is_bytes)
            g->model = f.content;
        if (f.number != MODEL_OPSET || !f.is_bytes)
            continue;
        const struct bytes domain = message_field(f.content, 1);
        if (domain.size == 0 || bytes_are(domain, "ai.onnx"))
            g->opset = message_value(f.content, 2, 0);
        g->has_microsoft |= bytes_are(domain, "com.microsoft");
    }
}

int graph_open(struct graph *g, const char *path)
{
    struct field f;
    *g = (struct graph){.path = must_copy(path)};
    const int status = map(g);
    if (status != 0)
        return status;
    read_model(g);
    if (!walk_graph(g, g->model, 0, note_name))
        return corrupt(g);
    sort_names(g);
    walk_graph(g, g->model, 0, count_use);
    for (struct bytes rest = g->model; next_field(&rest, &f);) {
        if (f.is_bytes && f.number == GRAPH_NODE)
            add_node(g, f.content);
        if (f.is_bytes && f.number == GRAPH_INITIALIZER)
            add_tensor(g, f.content, message_field(f.content, TENSOR_NAME), -1);
    }
    for (int64_t i = 0; i < g->n_nodes; i++)
        add_use(g, i);
    gather(g);
    return 0;
}

void graph_close(struct graph *g)
{
    if (g == NULL)
        return;
    for (int64_t i = 0; i < g->n_tensors; i++)
        free(g->tensors[i].name);
    if (g->file.data != NULL)
        munmap((void *)(uintptr_t)g->file.data, g->file.size);
    free(g->path);
    free(g->names);
    free(g->nodes);
    free(g->values);
    free(g->tensors);
    free(g->uses);
    free(g->weights);
    *g = (struct graph){0};
}
