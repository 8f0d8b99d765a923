/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX to ONNX: a model in which weights are quantized, or quantized otherwise, and all else stays
 * as it is, byte by byte. A node that takes such a weight becomes MatMulNBits (and Add, where Gemm
 * has a third input), or takes what a DequantizeLinear before it makes; nodes and initializers that
 * nobody uses then are left out. Tensors of the source that lie outside the model are carried along
 * to the file beside the result.
 *
 * The graph of the result is: the source's fields, new nodes in the place of old ones; the new
 * tensors; tensors with external data; inputs for the new tensors, which IR versions below 4 ask
 * for. What comes before and behind the graph is untouched, but for operator sets that are added.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "imports.h"
#include "inputs.h"

enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, MODEL_GRAPH = 7, MODEL_OPSET = 8 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP = 4, NODE_ATTRIBUTE = 5 };
enum { NODE_DOMAIN = 7, TENSOR_NAME = 8, TENSOR_RAW = 9, TENSOR_PLACE = 13, TENSOR_LOCATION = 14 };
enum { ONNX_FLOAT = 1, ONNX_FLOAT16 = 10, ONNX_BFLOAT16 = 16 };

struct run { /* bytes of the source, or NULL: of `made`, from `at` on */
    const uint8_t *data;
    size_t at, size;
};

enum fate { STAYS, CHANGED, LEFT_OUT };

struct rewriting {
    struct message made, inputs, opsets;
    struct run *runs;
    int64_t n_runs, *externals, n_externals;
    struct run *changes; /* of nodes that are CHANGED */
    uint8_t *fates;      /* of nodes */
    int64_t *uses;       /* of names, that are left */
    struct bytes front, back;
    int needs_microsoft;
};

/* ------------------------------------------------------------------------------------- choosing */

int graph_begin(struct export *e)
{
    qn_error err = {0};
    if (e->graph_path == NULL)
        return 0;
    input_note(e->graph_path);
    const qn_status status = qn_checkpoint_open(e->ctx, e->graph_path, NULL, &e->graph_model, &err);
    if (status != QN_OK)
        return complain_status(e->graph_path, status, &err);
    e->graph = must_alloc(sizeof *e->graph);
    return graph_open(e->graph, e->graph_path);
}

void graph_end(struct export *e)
{
    struct rewriting *r = e->rewriting;
    if (r != NULL) {
        free(r->made.data);
        free(r->inputs.data);
        free(r->opsets.data);
        free(r->runs);
        free(r->externals);
        free(r->changes);
        free(r->fates);
        free(r->uses);
    }
    free(r);
    graph_close(e->graph);
    free(e->graph);
    qn_checkpoint_close(e->graph_model);
}

/* Is one of the names taken that new tensors and values would have? */
static int is_taken(const struct graph *g, const struct piece *p)
{
    enum { MOST = 6 };
    static const char *const endings[2][MOST] = {
        {"_Q2", "_Q4", "_Q8", "_scales", "_zero_points", "_g_idx"},
        {"_quantized", "_scale", "_zero_point", "_dequantized"}};
    int taken = 0;
    for (int i = 0; i < MOST && endings[p->is_pair][i] != NULL && !taken; i++) {
        char *name = must_print("%s%s", p->target, endings[p->is_pair][i]);
        taken = graph_name(g, (struct bytes){(const uint8_t *)name, strlen(name)}) >= 0;
        free(name);
    }
    return taken;
}

static qn_dtype scale_type(const qn_module *m, const struct graph_weight *w)
{
    if (w->is_float)
        return w->tensor->type == ONNX_FLOAT16    ? QN_F16
               : w->tensor->type == ONNX_BFLOAT16 ? QN_BF16
                                                  : QN_F32;
    return m->format.scale_dtype;
}

int graph_takes(const struct export *e, const qn_module *m, struct piece *p)
{
    qn_entry codes;
    const int is_own = strcmp(m->importer, "onnx") == 0;
    const char *tensor = m->name;
    if (is_own && qn_checkpoint_module_tensor(e->model, p->module, 0, &codes) == QN_OK)
        tensor = codes.name;
    const struct graph_weight *w = graph_find(e->graph, tensor);
    if (w == NULL || w->is_mixed || m->importer[0] == '\0' || w->is_float == is_own)
        return 0;
    const int is_conv = w->uses->op == GRAPH_CONV || w->uses->op == GRAPH_TRANSPOSED;
    const int is_nbits = w->uses->op == GRAPH_NBITS;
    p->weight = w;
    p->is_pair = is_conv || !w->is_plain || strchr(e->target, ':') != NULL;
    p->scale_dtype = scale_type(m, w);
    p->is_one_scale = m->format.group == QN_GROUP_PER_TENSOR;
    if (is_own && (is_nbits != p->is_pair || w->has_alpha || m->activation != QN_ACTIVATION_NONE ||
                   (m->role == QN_ROLE_EMBEDDING && strcmp(w->uses->axes, "oi") != 0)))
        return 0;
    if (p->scale_dtype != QN_F32 && p->scale_dtype != QN_F16 && p->scale_dtype != QN_BF16)
        return 0;
    p->target = must_copy(m->name);
    while (is_taken(e->graph, p)) {
        char *longer = must_print("%s_quern", p->target);
        free(p->target);
        p->target = longer;
    }
    return 1;
}

/* ---------------------------------------------------------------------------------- the layouts */

struct layout {
    int64_t groups, outputs, channels, taps; /* outputs of a group; channels, or blocks of them */
    int64_t shape[4];
    int rank, is_turned;
};

/* The layout in which the nodes take a weight that comes from a tensor [n, ...] whose rows have
 * `columns` values. */
static struct layout layout_of(const struct piece *p, int64_t n, int64_t columns)
{
    const char *const text = p->weight->uses->layout;
    struct layout l = {.is_turned = text[0] == 'i', .rank = (int)strlen(text)};
    l.groups = l.is_turned && l.rank > 2 ? p->conv_groups : 1;
    l.outputs = n / l.groups;
    l.taps = (int64_t)p->kh * p->kw;
    l.channels = columns / l.taps;
    l.shape[0] = l.is_turned ? l.groups * l.channels : n;
    l.shape[1] = l.is_turned ? l.outputs : l.channels;
    l.shape[2] = l.rank == 3 ? p->kw : p->kh;
    l.shape[3] = p->kw;
    return l;
}

static uint64_t get_bits(const uint8_t *from, int bits, int64_t i)
{
    uint64_t value = 0;
    if (bits == 4)
        return from[i / 2] >> (i % 2 * 4) & 15;
    memcpy(&value, from + i * (bits / 8), (size_t)bits / 8);
    return value;
}

static void put_bits(uint8_t *to, int bits, int64_t i, uint64_t value)
{
    if (bits == 4)
        to[i / 2] = (uint8_t)(to[i / 2] | value << (i % 2 * 4));
    else
        memcpy(to + i * (bits / 8), &value, (size_t)bits / 8);
}

void *graph_turn(const struct piece *p, qn_tensor *t, int bits)
{
    const int64_t n = t->shape[0];
    const int is_vector = t->rank == 1;
    int64_t columns = is_vector ? 0 : 1;
    for (int32_t d = 1; d < t->rank; d++)
        columns *= t->shape[d];
    /* A scale for each output is one for each group's output there: blocks as long as a group. */
    const int is_spread = is_vector && p->weight->uses->layout[0] == 'i' && p->conv_groups > 1;
    if (is_spread && p->is_one_scale)
        t->shape[0] /= p->conv_groups; /* all are the same */
    if (!p->is_pair || (is_vector && (!is_spread || p->is_one_scale)))
        return NULL;
    const struct layout l = layout_of(p, n, is_spread ? (int64_t)p->kh * p->kw : columns);
    const int64_t count = n * l.channels * l.taps;
    t->rank = l.rank;
    memcpy(t->shape, l.shape, sizeof l.shape);
    if (!l.is_turned)
        return NULL;
    uint8_t *to = must_alloc(((size_t)count * (size_t)bits + 7) / 8 + 8);
    memset(to, 0, ((size_t)count * (size_t)bits + 7) / 8);
    for (int64_t c = 0; c < l.channels; c++)
        for (int64_t row = 0; row < n; row++)
            for (int64_t tap = 0; tap < l.taps; tap++) {
                const int64_t from = is_spread ? row : (row * l.channels + c) * l.taps + tap;
                const int64_t group = row / l.outputs, o = row % l.outputs;
                put_bits(to, bits, ((group * l.channels + c) * l.outputs + o) * l.taps + tap,
                         get_bits(t->data, bits, from));
            }
    t->data = to;
    return to;
}

/* ---------------------------------------------------------------------------------------- nodes */

static struct bytes text_of(const struct graph *g, int64_t node, int i)
{
    const struct graph_node *n = &g->nodes[node];
    return i < n->n_inputs ? g->names[g->values[n->input + i]].text : (struct bytes){NULL, 0};
}

static void put_bytes(struct message *m, uint32_t field, struct bytes b)
{
    message_head(m, field, b.size);
    message_put(m, b.data, b.size);
}

/* All fields of a node but those: a bit for each number. */
static void put_others(struct message *m, struct bytes node, uint32_t without)
{
    struct field f;
    while (next_field(&node, &f))
        if (f.number > 31 || (without >> f.number & 1) == 0)
            message_put(m, f.whole.data, f.whole.size);
}

static void put_dequantize(struct export *e, struct message *to, const struct piece *p)
{
    const struct tensor_plan *t = p->tensors;
    const int is_block = t[1].rank > 1, is_turned = p->weight->uses->layout[0] == 'i';
    const int is_narrow = p->bits == 4, is_half = p->scale_dtype != QN_F32;
    const int least = is_narrow || is_block ? GRAPH_OPSET_OF_BLOCKS : is_half ? 19 : 13;
    struct message m = {0};
    char *out = must_print("%s_dequantized", p->target);
    char *name = must_print("%s_DequantizeLinear", p->target);
    for (int i = 0; i < p->n_tensors; i++)
        message_text(&m, NODE_INPUT, t[i].name);
    message_text(&m, NODE_OUTPUT, out);
    message_text(&m, NODE_NAME, name);
    message_text(&m, NODE_OP, "DequantizeLinear");
    onnx_put_attribute(&m, "axis", is_block != is_turned);
    if (is_block)
        onnx_put_attribute(&m, "block_size",
                           p->group > 0 ? p->group : p->k / ((int64_t)p->kh * p->kw));
    if (e->graph->opset < least) {
        message_text(&m, NODE_DOMAIN, "com.microsoft");
        e->rewriting->needs_microsoft = 1;
    }
    message_part(to, GRAPH_NODE, &m);
    free(out);
    free(name);
}

/* What the node made, plus its third or sixth input, which another operator does not take. */
static void put_add(struct message *to, struct bytes node, const char *product, struct bytes bias)
{
    struct message m = {0};
    message_text(&m, NODE_INPUT, product);
    put_bytes(&m, NODE_INPUT, bias);
    put_bytes(&m, NODE_OUTPUT, message_field(node, NODE_OUTPUT));
    message_text(&m, NODE_OP, "Add");
    message_part(to, GRAPH_NODE, &m);
}

static void put_outputs(struct message *m, struct bytes node, const char *product)
{
    if (product != NULL)
        message_text(m, NODE_OUTPUT, product);
    else
        put_bytes(m, NODE_OUTPUT, message_field(node, NODE_OUTPUT));
}

static void put_nbits(struct export *e, struct message *to, const struct piece *p,
                      const struct graph_use *u, const char *product)
{
    const struct bytes node = e->graph->nodes[u->node].message;
    const struct tensor_plan *t = p->tensors;
    struct message m = {0};
    put_bytes(&m, NODE_INPUT, text_of(e->graph, u->node, 0));
    message_text(&m, NODE_INPUT, t[0].name);
    message_text(&m, NODE_INPUT, t[1].name);
    if (!p->is_symmetric || p->has_order)
        message_text(&m, NODE_INPUT, p->is_symmetric ? "" : t[2].name);
    if (p->has_order)
        message_text(&m, NODE_INPUT, t[p->is_symmetric ? 2 : 3].name);
    put_outputs(&m, node, product);
    put_others(&m, node,
               1u << NODE_INPUT | 1u << NODE_OUTPUT | 1u << NODE_OP | 1u << NODE_ATTRIBUTE |
                   1u << NODE_DOMAIN);
    message_text(&m, NODE_OP, "MatMulNBits");
    message_text(&m, NODE_DOMAIN, "com.microsoft");
    onnx_put_attribute(&m, "K", p->k);
    onnx_put_attribute(&m, "N", t[0].shape[0]);
    onnx_put_attribute(&m, "bits", p->bits);
    onnx_put_attribute(&m, "block_size", t[0].shape[2] * 8 / p->bits);
    message_part(to, GRAPH_NODE, &m);
    e->rewriting->needs_microsoft = 1;
}

/* The node itself with another second input; MatMulNBits as MatMul. */
static void put_pair(struct export *e, struct message *to, const struct piece *p,
                     const struct graph_use *u, const char *product)
{
    const struct bytes node = e->graph->nodes[u->node].message;
    const int is_nbits = u->op == GRAPH_NBITS;
    const int inputs = is_nbits ? 2 : e->graph->nodes[u->node].n_inputs;
    char *weight = must_print("%s_dequantized", p->target);
    struct message m = {0};
    for (int i = 0; i < inputs; i++)
        if (i == 1)
            message_text(&m, NODE_INPUT, weight);
        else
            put_bytes(&m, NODE_INPUT, text_of(e->graph, u->node, i));
    if (is_nbits) {
        put_outputs(&m, node, product);
        message_text(&m, NODE_OP, "MatMul");
    }
    put_others(&m, node,
               1u << NODE_INPUT | (is_nbits ? 1u << NODE_OUTPUT | 1u << NODE_OP |
                                                  1u << NODE_ATTRIBUTE | 1u << NODE_DOMAIN
                                            : 0));
    message_part(to, GRAPH_NODE, &m);
    free(weight);
}

static void change_use(struct export *e, const struct piece *p, int i)
{
    struct rewriting *r = e->rewriting;
    const struct graph_use *u = &p->weight->uses[i];
    const struct graph_node *n = &e->graph->nodes[u->node];
    const struct bytes bias = u->op == GRAPH_GEMM && !p->is_pair   ? text_of(e->graph, u->node, 2)
                              : u->op == GRAPH_NBITS && p->is_pair ? text_of(e->graph, u->node, 5)
                                                                   : (struct bytes){NULL, 0};
    char *product = bias.size > 0 ? must_print("%s_product_%d", p->target, i) : NULL;
    struct run change = {NULL, r->made.size, 0};
    if (p->is_pair && i == 0)
        put_dequantize(e, &r->made, p);
    if (p->is_pair)
        put_pair(e, &r->made, p, u, product);
    else
        put_nbits(e, &r->made, p, u, product);
    if (product != NULL)
        put_add(&r->made, n->message, product, bias);
    free(product);
    change.size = r->made.size - change.at;
    r->changes[u->node] = change;
    r->fates[u->node] = CHANGED;
    for (int k = 1; k < n->n_inputs && k < (u->op == GRAPH_NBITS ? 5 : 2); k++)
        r->uses[e->graph->values[n->input + k]]--;
}

static int is_dead(const struct export *e, int64_t name)
{
    return name >= 0 && e->graph->names[name].uses > 0 && e->rewriting->uses[name] == 0;
}

/* Nodes are in the order of their work, so that those that make a value come before its users. */
static void leave_out(struct export *e)
{
    static const char *const ops[] = {"DequantizeLinear", "Transpose", "Identity", "Constant"};
    struct rewriting *r = e->rewriting;
    const struct graph *g = e->graph;
    for (int64_t i = g->n_nodes - 1; i >= 0; i--) {
        const struct graph_node *n = &g->nodes[i];
        int is_known = 0;
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            is_known |= graph_is(n->message, ops[o]);
        if (r->fates[i] != STAYS || n->n_outputs != 1 || !is_known ||
            !is_dead(e, g->values[n->output]))
            continue;
        r->fates[i] = LEFT_OUT;
        for (int k = 0; k < n->n_inputs; k++)
            r->uses[g->values[n->input + k]]--;
    }
}

/* ------------------------------------------------------------------------------------- the plan */

static void add_run(struct rewriting *r, const uint8_t *data, size_t at, size_t size)
{
    struct run *last = r->n_runs > 0 ? &r->runs[r->n_runs - 1] : NULL;
    if (last != NULL && data != NULL && last->data != NULL && last->data + last->size == data) {
        last->size += size;
        return;
    }
    r->runs = must_append(r->runs, r->n_runs, sizeof *r->runs);
    r->runs[r->n_runs++] = (struct run){data, at, size};
}

static void plan_initializer(struct export *e, const struct field *f)
{
    struct rewriting *r = e->rewriting;
    const int64_t id = graph_name(e->graph, message_field(f->content, TENSOR_NAME));
    const int64_t tensor = e->graph->names[id].tensor;
    if (is_dead(e, id))
        return;
    if (!e->graph->tensors[tensor].is_external) {
        add_run(r, f->whole.data, 0, f->whole.size);
        return;
    }
    r->externals = must_append(r->externals, r->n_externals, sizeof *r->externals);
    r->externals[r->n_externals++] = tensor;
}

static void plan_fields(struct export *e)
{
    struct rewriting *r = e->rewriting;
    int64_t node = 0;
    struct field f;
    for (struct bytes rest = e->graph->model; next_field(&rest, &f);) {
        if (f.is_bytes && f.number == GRAPH_NODE) {
            if (r->fates[node] == CHANGED)
                add_run(r, NULL, r->changes[node].at, r->changes[node].size);
            else if (r->fates[node] == STAYS)
                add_run(r, f.whole.data, 0, f.whole.size);
            node++;
        } else if (f.is_bytes && f.number == GRAPH_INITIALIZER) {
            plan_initializer(e, &f);
        } else if (!f.is_bytes || f.number != GRAPH_INPUT ||
                   !is_dead(e, graph_name(e->graph, message_field(f.content, 1)))) {
            add_run(r, f.whole.data, 0, f.whole.size);
        }
    }
}

/* Writes a ValueInfoProto: { name, type { tensor_type { elem_type, shape { dim { dim_value } } } }
 * }. */
static void put_input(struct message *to, const struct tensor_plan *t)
{
    struct message value = {0}, type = {0}, tensor = {0}, dims = {0};
    for (int32_t i = 0; i < t->rank; i++) {
        struct message dim = {0};
        message_number(&dim, 1, t->shape[i]);
        message_part(&dims, 1, &dim);
    }
    message_number(&tensor, 1, onnx_data_type(t));
    message_part(&tensor, 2, &dims);
    message_part(&type, 1, &tensor);
    message_text(&value, 1, t->name);
    message_part(&value, 2, &type);
    message_part(to, GRAPH_INPUT, &value);
}

static void plan_model(struct export *e)
{
    enum { FIRST_WITHOUT_INPUTS = 4 };
    struct rewriting *r = e->rewriting;
    const struct graph *g = e->graph;
    struct field f;
    for (struct bytes rest = g->file; next_field(&rest, &f);)
        if (f.number == MODEL_GRAPH && f.is_bytes) {
            r->front = (struct bytes){g->file.data, (size_t)(f.whole.data - g->file.data)};
            r->back = rest;
        }
    for (int64_t i = 0; i < e->n_pieces && g->ir < FIRST_WITHOUT_INPUTS; i++)
        for (int t = 0; t < e->pieces[i].n_tensors; t++)
            put_input(&r->inputs, &e->pieces[i].tensors[t]);
    if (r->needs_microsoft && !g->has_microsoft) {
        struct message opset = {0};
        message_text(&opset, 1, "com.microsoft");
        message_number(&opset, 2, 1);
        message_part(&r->opsets, MODEL_OPSET, &opset);
    }
}

int graph_plan(struct export *e)
{
    const struct graph *g = e->graph;
    if (g == NULL)
        return 0;
    struct rewriting *r = e->rewriting = must_alloc(sizeof *r);
    *r = (struct rewriting){.n_runs = 0};
    r->changes = must_alloc(sizeof *r->changes * (size_t)(g->n_nodes + 1));
    r->fates = must_alloc((size_t)g->n_nodes + 1);
    r->uses = must_alloc(sizeof *r->uses * (size_t)(g->n_names + 1));
    memset(r->fates, STAYS, (size_t)g->n_nodes + 1);
    for (int64_t i = 0; i < g->n_names; i++)
        r->uses[i] = g->names[i].uses;
    for (int64_t i = 0; i < e->n_pieces; i++) {
        const struct piece *p = &e->pieces[i];
        if (p->is_pair && p->weight->differs)
            return complain(EXIT_INPUT, "leave it out with --exclude",
                            "%s: nodes take it in different layouts, which one DequantizeLinear "
                            "does not make",
                            p->name);
        if (p->is_pair && p->tensors[1].rank > 1 && g->opset < GRAPH_OPSET_OF_BLOCKS)
            return complain(EXIT_INPUT,
                            "leave it out with --exclude, or convert the model to that operator "
                            "set first (onnx.version_converter)",
                            "%s: its groups need the blocks of DequantizeLinear, which operator "
                            "set %d has and the model's, %lld, has not",
                            p->name, GRAPH_OPSET_OF_BLOCKS, (long long)g->opset);
        for (int u = 0; u < p->weight->n_uses; u++)
            change_use(e, p, u);
    }
    leave_out(e);
    plan_fields(e);
    for (int64_t i = 0; i < r->n_externals; i++) {
        const struct graph_tensor *t = &g->tensors[r->externals[i]];
        qn_entry entry;
        if (qn_checkpoint_tensor(e->graph_model, t->name, &entry) != QN_OK ||
            (entry.bytes > 0 && entry.tensor.data == NULL))
            return complain(EXIT_INPUT, "save the model again with this tensor inside",
                            "%s: its external data cannot be carried along", t->name);
    }
    plan_model(e);
    return 0;
}

/* -------------------------------------------------------------------------------------- writing */

int graph_is_external(const struct export *e)
{
    return e->graph != NULL && e->rewriting->n_externals > 0;
}

/* A tensor that is carried along: all that its message says but where its data are. */
static struct message carried_head(const struct graph_tensor *t, const char *location,
                                   uint64_t offset, uint64_t bytes)
{
    struct message m = {0};
    put_others(&m, t->message, 1u << TENSOR_PLACE | 1u << TENSOR_LOCATION | 1u << TENSOR_RAW);
    onnx_put_place(&m, location, offset, bytes);
    return m;
}

uint64_t graph_bytes(const struct export *e, const char *location, uint64_t offset)
{
    const struct rewriting *r = e->rewriting;
    uint64_t total = r->inputs.size;
    qn_entry entry;
    for (int64_t i = 0; i < r->n_runs; i++)
        total += r->runs[i].size;
    for (int64_t i = 0; location != NULL && i < r->n_externals; i++) {
        const struct graph_tensor *t = &e->graph->tensors[r->externals[i]];
        struct message key = {0};
        if (qn_checkpoint_tensor(e->graph_model, t->name, &entry) != QN_OK)
            continue;
        offset = onnx_place(offset);
        struct message head = carried_head(t, location, offset, entry.bytes);
        message_head(&key, GRAPH_INITIALIZER, head.size);
        total += key.size + head.size;
        offset += entry.bytes;
        free(head.data);
        free(key.data);
    }
    return total;
}

/* Bytes to a file, or the question whether they are there. */
static int pass(FILE *file, const void *data, size_t size, int is_check)
{
    enum { PIECE = 1 << 16 };
    static uint8_t read[PIECE];
    if (!is_check)
        return size == 0 || fwrite(data, 1, size, file) == size;
    for (size_t at = 0; at < size; at += PIECE) {
        const size_t part = size - at < PIECE ? size - at : PIECE;
        if (fread(read, 1, part, file) != part ||
            memcmp(read, (const uint8_t *)data + at, part) != 0)
            return 0;
    }
    return 1;
}

int graph_front(const struct export *e, uint64_t bytes, FILE *model, int is_check)
{
    const struct rewriting *r = e->rewriting;
    struct message key = {0};
    message_head(&key, MODEL_GRAPH, bytes);
    int is_same = pass(model, r->front.data, r->front.size, is_check) &&
                  pass(model, key.data, key.size, is_check);
    free(key.data);
    for (int64_t i = 0; i < r->n_runs && is_same; i++) {
        const struct run *run = &r->runs[i];
        is_same = pass(model, run->data != NULL ? run->data : r->made.data + run->at, run->size,
                       is_check);
    }
    return is_same;
}

/* Zeros up to where the tensor's data begin. */
static int pass_gap(FILE *data, uint64_t from, uint64_t to, int is_check)
{
    static const uint8_t zeros[64];
    return pass(data, zeros, (size_t)(to - from), is_check);
}

int graph_back(const struct export *e, const char *location, uint64_t offset, FILE *model,
               FILE *data, int is_check)
{
    const struct rewriting *r = e->rewriting;
    int is_same = 1;
    for (int64_t i = 0; i < r->n_externals && is_same; i++) {
        const struct graph_tensor *t = &e->graph->tensors[r->externals[i]];
        struct message key = {0};
        qn_entry entry;
        if (qn_checkpoint_tensor(e->graph_model, t->name, &entry) != QN_OK)
            return 0;
        const uint64_t place = onnx_place(offset);
        struct message head = carried_head(t, location, place, entry.bytes);
        message_head(&key, GRAPH_INITIALIZER, head.size);
        is_same = pass(model, key.data, key.size, is_check) &&
                  pass(model, head.data, head.size, is_check) &&
                  pass_gap(data, offset, place, is_check) &&
                  pass(data, entry.tensor.data, entry.bytes, is_check);
        offset = place + entry.bytes;
        free(head.data);
        free(key.data);
    }
    return is_same && pass(model, r->inputs.data, r->inputs.size, is_check) &&
           pass(model, r->back.data, r->back.size, is_check) &&
           pass(model, r->opsets.data, r->opsets.size, is_check);
}
