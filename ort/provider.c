/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime asks of a session's provider: which nodes it takes, and how to run them. */
#include "provider.h"

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct provider {
    struct ort_provider ort; /* First: the runtime's pointers are ours. */
    const struct ort_api *api;
    const struct ort_logger *logger;
    struct settings settings;
    struct workers workers;
};

struct compute {
    struct ort_compute ort;
    struct program *program;
};

static void tell(const struct provider *self, const char *text)
{
    int severity = self->settings.log ? ORT_LOG_WARNING : ORT_LOG_INFO;
    (void)runtime_ok(self->api, self->api->log(self->logger, severity, text, "quern", 0, "claims"));
}

static void tell_claim(const struct provider *self, const struct graph *g, const struct claim *c,
                       bool claimed)
{
    char text[512];
    const struct graph_node *node = &g->nodes[c->anchor];
    int32_t y = node_output(node, 0);
    const char *name = y >= 0 ? g->values[y].name : "?";
    if (claimed)
        snprintf(text, sizeof text, "quern: claimed: %s (%s) and %d more nodes", node->op, name,
                 c->n_nodes - 1);
    else
        snprintf(text, sizeof text, "quern: left to ONNX Runtime: %s (%s): %s", node->op, name,
                 c->reason);
    tell(self, text);
}

/* In which pass over the nodes one is looked at: operators with weights, pools that lie between
 * them, what is left between codes. */
static int32_t pass_of(const struct graph *g, int32_t node)
{
    return node_is(&g->nodes[node], "", "MaxPool")            ? 1
           : node_is(&g->nodes[node], "", "DequantizeLinear") ? 2
                                                              : 0;
}

/* Does a claim lie before or behind this pool, with nothing between them that minds how images
 * lie? Only there is it worth more than the runtime's own. */
static bool is_between_claims(const struct graph *g, const bool *taken, int32_t pool)
{
    enum { FAR = 6 };
    if (g->nodes[pool].channels_last)
        return true;
    int32_t back = node_input(&g->nodes[pool], 0), ahead = node_output(&g->nodes[pool], 0);
    for (int32_t i = 0; i < FAR && back >= 0 && g->values[back].producer >= 0; i++) {
        if (taken[g->values[back].producer])
            return true;
        back = node_input(&g->nodes[g->values[back].producer], 0);
    }
    for (int32_t i = 0; i < FAR && ahead >= 0 && g->values[ahead].reader >= 0; i++) {
        if (taken[g->values[ahead].reader])
            return true;
        ahead = node_output(&g->nodes[g->values[ahead].reader], 0);
    }
    return false;
}

static struct ort_status *claim_all(const struct provider *self, const struct graph *g,
                                    struct ort_support *support, bool *taken)
{
    const struct ort_fusion fusion = {ORT_INTERFACE, true};
    const struct ort_node *nodes[CLAIM_MAX_NODES];
    struct claim claim;
    int32_t n_claims = 0, n_nodes = 0;
    for (int32_t at = 0; at < 3 * g->n_nodes; at++) {
        const int32_t i = at % g->n_nodes, pass = at / g->n_nodes;
        if (taken[i] || pass_of(g, i) != pass || !claim_concerns(g, &self->settings, i) ||
            (pass == 1 && !is_between_claims(g, taken, i)))
            continue;
        bool claimed = claim_find(g, &self->settings, i, &claim);
        for (int32_t j = 0; claimed && j < claim.n_nodes; j++)
            if (taken[claim.nodes[j]])
                claimed = claim_refuse(&claim, "a node that it needs belongs to another claim");
        tell_claim(self, g, &claim, claimed);
        if (!claimed)
            continue;
        for (int32_t j = 0; j < claim.n_nodes; j++) {
            nodes[j] = g->nodes[claim.nodes[j]].ort;
            taken[claim.nodes[j]] = true;
        }
        ORT_TRY(self->api->claim_nodes(support, nodes, (size_t)claim.n_nodes, &fusion));
        n_claims++;
        n_nodes += claim.n_nodes;
    }
    char text[128];
    snprintf(text, sizeof text, "quern: %d of %d nodes in %d claims", n_nodes, g->n_nodes,
             n_claims);
    tell(self, text);
    return NULL;
}

static struct ort_status *get_capability(struct ort_provider *ort, const struct ort_graph *graph,
                                         struct ort_support *support)
{
    const struct provider *self = (const struct provider *)ort;
    struct graph g;
    ORT_TRY(graph_read(self->api, graph, &g));
    bool *taken = calloc((size_t)g.n_nodes + 1, sizeof *taken);
    struct ort_status *status =
        taken == NULL ? runtime_no_memory(self->api) : claim_all(self, &g, support, taken);
    free(taken);
    graph_free(&g);
    return status;
}

static struct ort_status *create_state(struct ort_compute *ort, void *context, void **state)
{
    (void)context;
    *state = ((struct compute *)ort)->program;
    return NULL;
}

static struct ort_status *compute(struct ort_compute *ort, void *state, struct ort_run *run)
{
    (void)ort;
    return program_run(state, run);
}

static void release_state(struct ort_compute *ort, void *state)
{
    (void)ort;
    (void)state; /* The program belongs to the compute info. */
}

/* The claim that the nodes of a fused graph were made from: the search, once more. */
static struct ort_status *claim_again(const struct provider *self, const struct graph *g,
                                      struct claim *claim)
{
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (claim_concerns(g, &self->settings, i) &&
            claim_find(g, &self->settings, i, claim) && claim->n_nodes == g->n_nodes)
            return NULL;
    return runtime_fail(self->api, ORT_FAIL,
                        "ONNX Runtime changed %d nodes after they were claimed (the first is %s)",
                        g->n_nodes, g->n_nodes > 0 ? g->nodes[0].op : "missing");
}

static struct ort_status *read_names(const struct ort_api *api, const struct ort_node *node,
                                     bool outputs, const char ***names, size_t *count)
{
    ORT_TRY(outputs ? api->n_outputs(node, count) : api->n_inputs(node, count));
    const struct ort_value_info **infos = calloc(*count + 1, sizeof *infos);
    *names = calloc(*count + 1, sizeof **names);
    struct ort_status *status = infos && *names ? NULL : runtime_no_memory(api);
    if (status == NULL && *count > 0)
        status = outputs ? api->outputs(node, infos, *count) : api->inputs(node, infos, *count);
    for (size_t i = 0; status == NULL && i < *count; i++) {
        (*names)[i] = "";
        if (infos[i] != NULL)
            status = api->value_name(infos[i], &(*names)[i]);
    }
    free((void *)infos);
    return status;
}

static struct ort_status *compile_one(struct provider *self, const struct ort_graph *graph,
                                      const struct ort_node *fused, struct program **program)
{
    const struct ort_api *api = self->api;
    struct program_names names = {NULL, NULL, 0, 0};
    struct graph g;
    struct claim claim;
    ORT_TRY(graph_read(api, graph, &g));
    struct ort_status *status = claim_again(self, &g, &claim);
    if (status == NULL)
        status = read_names(api, fused, false, &names.inputs, &names.n_inputs);
    if (status == NULL)
        status = read_names(api, fused, true, &names.outputs, &names.n_outputs);
    if (status == NULL)
        status = program_build(&self->workers, &g, &claim, &names, program);
    free((void *)names.inputs);
    free((void *)names.outputs);
    graph_free(&g);
    return status;
}

static struct ort_status *compile(struct ort_provider *ort, const struct ort_graph **graphs,
                                  const struct ort_node **fused, size_t count,
                                  struct ort_compute **computes, struct ort_node **contexts)
{
    struct provider *self = (struct provider *)ort;
    (void)contexts;
    for (size_t i = 0; i < count; i++) {
        struct compute *made = calloc(1, sizeof *made);
        if (made == NULL)
            return runtime_no_memory(self->api);
        made->ort = (struct ort_compute){ORT_INTERFACE, create_state, compute, release_state};
        struct ort_status *status = compile_one(self, graphs[i], fused[i], &made->program);
        if (status != NULL) {
            free(made);
            return status;
        }
        computes[i] = &made->ort;
    }
    return NULL;
}

static void release_computes(struct ort_provider *ort, struct ort_compute **computes, size_t count)
{
    (void)ort;
    for (size_t i = 0; i < count; i++) {
        struct compute *made = (struct compute *)computes[i];
        if (made != NULL)
            program_free(made->program);
        free(made);
    }
}

/* Images with channels last: the order in which convolutions read whole rows of channels. The
 * runtime turns x and y of the convolutions that were claimed, moves the turns through what lies
 * between them, and asks once more what is claimed. */
static struct ort_status *preferred_layout(struct ort_provider *ort, int *layout)
{
    *layout = ((const struct provider *)ort)->settings.channels_last ? ORT_CHANNELS_LAST
                                                                     : ORT_CHANNELS_FIRST;
    return NULL;
}

static struct ort_status *should_convert_layout(struct ort_provider *ort, const char *domain,
                                                const char *op, int layout, int *answer)
{
    (void)ort;
    (void)domain;
    *answer = layout == ORT_CHANNELS_LAST &&
              (strcmp(op, "Conv") == 0 || strcmp(op, "ConvTranspose") == 0 ||
               strcmp(op, "QLinearConv") == 0 || strcmp(op, "MaxPool") == 0);
    return NULL;
}

static const char *name(const struct ort_provider *ort)
{
    (void)ort;
    return PROVIDER_NAME;
}

struct ort_status *provider_create(const struct ort_api *api, const struct ort_logger *logger,
                                   const struct settings *settings, struct ort_provider **provider)
{
    struct provider *self = calloc(1, sizeof *self);
    if (self == NULL)
        return runtime_no_memory(api);
    struct ort_status *status = workers_init(&self->workers, api, settings);
    if (status != NULL) {
        free(self);
        return status;
    }
    self->ort.version = ORT_INTERFACE;
    self->ort.get_name = name;
    self->ort.get_capability = get_capability;
    self->ort.compile = compile;
    self->ort.release_computes = release_computes;
    self->ort.preferred_layout = preferred_layout;
    self->ort.should_convert_layout = should_convert_layout;
    self->api = api;
    self->logger = logger;
    self->settings = *settings;
    *provider = &self->ort;
    return NULL;
}

void provider_free(struct ort_provider *ort)
{
    struct provider *self = (struct provider *)ort;
    if (self == NULL)
        return;
    workers_free(&self->workers);
    free(self);
}
