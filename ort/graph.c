/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the runtime's graph through its C interface. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static size_t slot_of(const struct graph *g, const char *name)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (const char *at = name; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    size_t slot = (size_t)hash & (g->n_slots - 1);
    while (g->slots[slot] >= 0 && strcmp(g->values[g->slots[slot]].name, name) != 0)
        slot = (slot + 1) & (g->n_slots - 1);
    return slot;
}

int32_t graph_find(const struct graph *g, const char *name)
{
    return g->slots[slot_of(g, name)];
}

static void read_shape(const struct graph *g, struct graph_value *value)
{
    const struct ort_api *api = g->api;
    const struct ort_type_info *type = NULL;
    const struct ort_tensor_info *info = NULL;
    size_t rank = 0;
    int element = 0;
    value->rank = -1;
    if (!runtime_ok(api, api->value_type(value->info, &type)) || type == NULL ||
        !runtime_ok(api, api->cast_to_tensor_info(type, &info)) || info == NULL)
        return;
    if (runtime_ok(api, api->element_type(info, &element)))
        value->type = element;
    /* An unknown rank reads as rank 0, and before interface 24 nothing tells them apart. */
    if (api->has_shapes && !api->has_shape(info))
        return;
    if (!runtime_ok(api, api->rank(info, &rank)) || rank > GRAPH_MAX_RANK ||
        (rank == 0 && !api->has_shapes && !value->is_constant))
        return;
    if (rank == 0 || runtime_ok(api, api->dimensions(info, value->shape, rank)))
        value->rank = (int32_t)rank;
}

/* The number of a value, which is made if it is new; -1 for an absent operand. */
static int32_t number_of(struct graph *g, const struct ort_value_info *info)
{
    const char *name = NULL;
    if (info == NULL || !runtime_ok(g->api, g->api->value_name(info, &name)) || name == NULL ||
        name[0] == '\0')
        return -1;
    size_t slot = slot_of(g, name);
    if (g->slots[slot] >= 0)
        return g->slots[slot];
    struct graph_value *value = &g->values[g->n_values];
    memset(value, 0, sizeof *value);
    value->name = name;
    value->info = info;
    value->producer = value->reader = -1;
    if (!runtime_ok(g->api, g->api->is_graph_output(info, &value->leaves)))
        value->leaves = true;
    if (!runtime_ok(g->api, g->api->is_constant(info, &value->is_constant)))
        value->is_constant = false;
    read_shape(g, value);
    g->slots[slot] = g->n_values;
    return g->n_values++;
}

static struct ort_status *read_operands(struct graph *g, struct graph_node *node, bool outputs)
{
    size_t count = 0;
    const struct ort_value_info *infos[256];
    ORT_TRY(outputs ? g->api->n_outputs(node->ort, &count) : g->api->n_inputs(node->ort, &count));
    if (count > 256) /* No operator of ours: it is left with none. */
        count = 0;
    else if (count > 0)
        ORT_TRY(outputs ? g->api->outputs(node->ort, infos, count)
                        : g->api->inputs(node->ort, infos, count));
    int32_t *numbers = g->operands + g->n_operands;
    g->n_operands += count;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = number_of(g, infos[i]);
        if (numbers[i] < 0)
            continue;
        struct graph_value *value = &g->values[numbers[i]];
        int32_t self = (int32_t)(node - g->nodes);
        if (outputs) {
            value->producer = self;
        } else {
            value->n_uses++;
            value->reader = self;
        }
    }
    *(outputs ? &node->outputs : &node->inputs) = numbers;
    *(outputs ? &node->n_outputs : &node->n_inputs) = (int32_t)count;
    return NULL;
}

static struct ort_status *read_nodes(struct graph *g, const struct ort_node *const *nodes)
{
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct graph_node *node = &g->nodes[i];
        node->ort = nodes[i];
        ORT_TRY(g->api->operator_type(node->ort, &node->op));
        ORT_TRY(g->api->operator_domain(node->ort, &node->domain));
        /* Where the runtime puts operators whose images it has turned for us. */
        node->channels_last = strcmp(node->domain, "com.ms.internal.nhwc") == 0;
        if (node->channels_last || strcmp(node->domain, "ai.onnx") == 0)
            node->domain = "";
        ORT_TRY(read_operands(g, node, false));
        ORT_TRY(read_operands(g, node, true));
    }
    /* Readers that are no nodes here: graphs inside of If, Loop and Scan. */
    for (int32_t i = 0; i < g->n_values; i++) {
        struct graph_value *value = &g->values[i];
        size_t consumers = 0;
        if (value->producer >= 0 && !value->leaves &&
            runtime_ok(g->api, g->api->n_consumers(value->info, &consumers)) &&
            consumers > (size_t)value->n_uses)
            value->leaves = true;
    }
    return NULL;
}

static struct ort_status *count_operands(struct graph *g, const struct ort_node *const *nodes)
{
    for (int32_t i = 0; i < g->n_nodes; i++) {
        size_t n_inputs = 0, n_outputs = 0;
        ORT_TRY(g->api->n_inputs(nodes[i], &n_inputs));
        ORT_TRY(g->api->n_outputs(nodes[i], &n_outputs));
        g->max_operands += n_inputs + n_outputs;
    }
    return NULL;
}

struct ort_status *graph_read(const struct ort_api *api, const struct ort_graph *ort,
                              struct graph *g)
{
    size_t n_nodes = 0;
    memset(g, 0, sizeof *g);
    g->api = api;
    ORT_TRY(api->n_nodes(ort, &n_nodes));
    const struct ort_node **nodes = calloc(n_nodes + 1, sizeof *nodes);
    struct ort_status *status = nodes == NULL ? runtime_no_memory(api) : NULL;
    if (status == NULL && n_nodes > 0)
        status = api->nodes(ort, nodes, n_nodes);
    g->n_nodes = (int32_t)n_nodes;
    if (status == NULL)
        status = count_operands(g, nodes);
    for (g->n_slots = 64; g->n_slots < 2 * g->max_operands;)
        g->n_slots *= 2;
    g->nodes = calloc(n_nodes + 1, sizeof *g->nodes);
    g->values = calloc(g->max_operands + 1, sizeof *g->values);
    g->operands = calloc(g->max_operands + 1, sizeof *g->operands);
    g->slots = malloc(g->n_slots * sizeof *g->slots);
    if (status == NULL &&
        (g->nodes == NULL || g->values == NULL || g->operands == NULL || g->slots == NULL))
        status = runtime_no_memory(api);
    if (status == NULL) {
        memset(g->slots, 0xff, g->n_slots * sizeof *g->slots);
        status = read_nodes(g, nodes);
    }
    free((void *)nodes);
    if (status != NULL)
        graph_free(g);
    return status;
}

void graph_free(struct graph *g)
{
    free(g->nodes);
    free(g->values);
    free(g->operands);
    free(g->slots);
    memset(g, 0, sizeof *g);
}

int32_t node_input(const struct graph_node *node, int32_t i)
{
    return i < node->n_inputs ? node->inputs[i] : -1;
}

int32_t node_output(const struct graph_node *node, int32_t i)
{
    return i < node->n_outputs ? node->outputs[i] : -1;
}

bool node_is(const struct graph_node *node, const char *domain, const char *op)
{
    return strcmp(node->op, op) == 0 && strcmp(node->domain, domain) == 0;
}

static const struct ort_attribute *attribute(const struct graph *g, const struct graph_node *node,
                                             const char *name)
{
    const struct ort_attribute *found = NULL;
    return runtime_ok(g->api, g->api->attribute(node->ort, name, &found)) ? found : NULL;
}

/* A single value; false: the node has none of that name and type, and *value is not to be used. */
static bool read_single(const struct graph *g, const struct graph_node *node, const char *name,
                        int32_t type, void *value, size_t value_bytes)
{
    const struct ort_attribute *found = attribute(g, node, name);
    size_t bytes = 0;
    return found != NULL &&
           runtime_ok(g->api, g->api->read_attribute(found, type, value, value_bytes, &bytes));
}

int64_t node_int(const struct graph *g, const struct graph_node *node, const char *name,
                 int64_t otherwise)
{
    int64_t value = otherwise;
    return read_single(g, node, name, ORT_ATTRIBUTE_INT, &value, sizeof value) ? value : otherwise;
}

float node_float(const struct graph *g, const struct graph_node *node, const char *name,
                 float otherwise)
{
    float value = otherwise;
    const bool has_one = read_single(g, node, name, ORT_ATTRIBUTE_FLOAT, &value, sizeof value);
    return has_one ? value : otherwise;
}

size_t node_ints(const struct graph *g, const struct graph_node *node, const char *name,
                 int64_t *values, size_t max)
{
    const struct ort_attribute *found = attribute(g, node, name);
    size_t bytes = 0;
    if (found == NULL || !runtime_ok(g->api, g->api->read_attribute(found, ORT_ATTRIBUTE_INTS,
                                                                    values, max * sizeof *values,
                                                                    &bytes)))
        return 0;
    return bytes / sizeof *values;
}

void node_text(const struct graph *g, const struct graph_node *node, const char *name, char *text,
               size_t capacity)
{
    const struct ort_attribute *found = attribute(g, node, name);
    size_t bytes = 0;
    memset(text, 0, capacity);
    if (found != NULL && !runtime_ok(g->api, g->api->read_attribute(found, ORT_ATTRIBUTE_STRING,
                                                                    text, capacity - 1, &bytes)))
        text[0] = '\0';
}

static struct ort_status *copy_shape(const struct ort_api *api, const struct ort_value *value,
                                     int *type, int64_t *shape, size_t *rank)
{
    struct ort_tensor_info *info = NULL;
    ORT_TRY(api->type_and_shape(value, &info));
    struct ort_status *status = api->element_type(info, type);
    if (status == NULL)
        status = api->rank(info, rank);
    if (status == NULL && *rank > 0 && *rank <= GRAPH_MAX_RANK)
        status = api->dimensions(info, shape, *rank);
    api->release_tensor_info(info);
    return status;
}

struct ort_status *tensor_of(const struct ort_api *api, const struct ort_value *value,
                             struct tensor *tensor)
{
    const int64_t *shape = tensor->shape;
    size_t rank = 0;
    int type = 0;
    memset(tensor, 0, sizeof *tensor);
    if (api->has_shapes)
        ORT_TRY(api->shape_in_place(value, &type, &shape, &rank));
    else
        ORT_TRY(copy_shape(api, value, &type, tensor->shape, &rank));
    if (rank > GRAPH_MAX_RANK)
        return runtime_fail(api, ORT_INVALID_ARGUMENT, "a tensor of rank %zu; %d is the most", rank,
                            GRAPH_MAX_RANK);
    tensor->type = type;
    tensor->rank = (int32_t)rank;
    tensor->count = 1;
    for (size_t i = 0; i < rank; i++) {
        tensor->shape[i] = shape[i];
        tensor->count *= shape[i];
    }
    return api->data(value, &tensor->data);
}

bool graph_constant(const struct graph *g, int32_t value, struct tensor *tensor)
{
    const struct ort_value *found = NULL;
    return value >= 0 && g->values[value].is_constant &&
           runtime_ok(g->api, g->api->initializer(g->values[value].info, &found)) &&
           found != NULL && runtime_ok(g->api, tensor_of(g->api, found, tensor));
}
