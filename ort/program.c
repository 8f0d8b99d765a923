/* SPDX-License-Identifier: Apache-2.0 */
/* From a claim to a program: constants are copied (they die with the runtime's graph), weights are
 * packed. */
#include "program.h"

#include "table.h"
#include "weights.h"

#include <stdlib.h>
#include <string.h>

static size_t bytes_of(const struct tensor *t)
{
    bool one = t->type == ORT_U8 || t->type == ORT_I8;
    return (size_t)t->count * (one ? 1 : t->type == ORT_I64 ? 8 : 4);
}

static struct ort_status *operand_find(const struct graph *g, int32_t value,
                                       const struct program_names *names, struct operand *operand)
{
    struct tensor constant;
    operand->input = -1;
    if (value < 0)
        return NULL;
    if (graph_constant(g, value, &constant)) {
        size_t bytes = bytes_of(&constant);
        void *copy = malloc(bytes + 1);
        if (copy == NULL)
            return runtime_no_memory(g->api);
        memcpy(copy, constant.data, bytes);
        operand->constant = constant;
        operand->constant.data = copy;
        return NULL;
    }
    for (size_t i = 0; i < names->n_inputs; i++)
        if (strcmp(names->inputs[i], g->values[value].name) == 0) {
            operand->input = (int32_t)i;
            return NULL;
        }
    return runtime_fail(g->api, ORT_FAIL, "%s is no input of the fused node",
                        g->values[value].name);
}

static int32_t output_find(const struct graph *g, int32_t value, const struct program_names *names)
{
    for (size_t i = 0; value >= 0 && i < names->n_outputs; i++)
        if (strcmp(names->outputs[i], g->values[value].name) == 0)
            return (int32_t)i;
    return -1;
}

static struct ort_status *find_operands(struct program *p, const struct graph *g,
                                        const struct program_names *names)
{
    const struct claim *c = &p->claim;
    const struct {
        int32_t value;
        struct operand *operand;
    } wanted[] = {
        {c->x, &p->x},           {c->x_scale, &p->x_scale_operand},   {c->x_zero, &p->x_zero},
        {c->bias, &p->bias},     {c->sum_bias, &p->sum_bias}, {c->residual, &p->residual},
        {c->n_factors > 0 ? c->factors[0] : -1, &p->factors[0]},
        {c->n_factors > 1 ? c->factors[1] : -1, &p->factors[1]},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        ORT_TRY(operand_find(g, wanted[i].value, names, wanted[i].operand));
    const struct graph_node *anchor = &g->nodes[c->anchor];
    for (int32_t i = 0; i < 3; i++) {
        int32_t value = c->kind == CLAIM_QUANTIZE ? node_output(anchor, i) : i == 0 ? c->y : -1;
        p->outputs[i] = output_find(g, value, names);
    }
    return NULL;
}

/* Constants that a claim has made sure of. */
static float number(const struct graph *g, int32_t value, float otherwise)
{
    struct tensor t;
    return graph_constant(g, value, &t) ? *(const float *)t.data : otherwise;
}

static int32_t zero_number(const struct graph *g, int32_t value)
{
    struct tensor t;
    if (!graph_constant(g, value, &t))
        return 0;
    return t.type == ORT_I8 ? *(const int8_t *)t.data : *(const uint8_t *)t.data;
}

/* Chooses which of the constant scales go into the packed weights. Where both do, codes of y are
 * those of ONNX Runtime's own requantization, which multiplies once. */
static struct weights_factor merge_scales(struct program *p, const struct graph *g)
{
    const struct claim *c = &p->claim;
    struct weights_factor times = {1.0f, 1.0f};
    bool codes = c->y_type == ORT_U8 || c->y_type == ORT_I8;
    p->x_scale = p->y_scale = 1.0f;
    if (c->x_scale >= 0 && g->values[c->x_scale].is_constant) {
        if (c->w_block == 0)
            times.x_scale = number(g, c->x_scale, 1.0f);
        else
            p->x_scale = number(g, c->x_scale, 1.0f);
        free((void *)p->x_scale_operand.constant.data);
        p->x_scale_operand.constant = (struct tensor){0};
    }
    if (codes) {
        float scale = number(g, c->y_scale, 1.0f);
        if (c->w_block == 0 && c->bias < 0 && c->n_factors == 0 &&
            (c->act == QN_ACT_NONE || c->act == QN_ACT_RELU)) {
            times.y_scale = scale;
            p->claim.clamp_lo /= scale;
            p->claim.clamp_hi /= scale;
        } else {
            p->y_scale = scale;
        }
        p->y_zero = zero_number(g, c->y_zero);
    }
    return times;
}

/* Zero points of weights are offsets in f32 unless there is a bias of integers. */
static struct ort_status *ask_for_exact_sums(struct program *p)
{
    const struct claim *c = &p->claim;
    qn_packed_info info;
    qn_packed_info_init(&info);
    if (!c->x_is_codes || c->w_block != 0 || c->y_type == ORT_I32 ||
        qn_packed_query(p->w, &info) != QN_OK || info.format.shift == QN_SHIFT_NONE)
        return NULL;
    p->zeros = calloc((size_t)c->n + 1, sizeof *p->zeros);
    return p->zeros == NULL ? runtime_no_memory(p->api) : NULL;
}

static struct ort_status *pack(struct program *p, const struct graph *g)
{
    const struct claim *c = &p->claim;
    struct worker *worker = NULL;
    if (c->kind == CLAIM_QUANTIZE || c->kind == CLAIM_POOL)
        return NULL;
    if (c->kind == CLAIM_TABLE)
        return table_fill(g, c, p->table);
    const struct weights_factor times = merge_scales(p, g);
    ORT_TRY(worker_take(p->workers, NULL, &worker));
    struct ort_status *status =
        weights_pack(g, c, worker->ctx, c->w_is_floats ? NULL : &times, &p->w);
    worker_return(worker);
    return status != NULL ? status : ask_for_exact_sums(p);
}

struct ort_status *program_build(struct workers *workers, const struct graph *g,
                                 const struct claim *claim, const struct program_names *names,
                                 struct program **program)
{
    static const char *const kinds[] = {"DynamicQuantizeLinear",
                                        "a pool",
                                        "a function of codes",
                                        "a product",
                                        "a convolution",
                                        "a transposed convolution"};
    struct program *p = calloc(1, sizeof *p);
    if (p == NULL)
        return runtime_no_memory(g->api);
    p->api = g->api;
    p->workers = workers;
    p->claim = *claim;
    p->what = kinds[claim->kind];
    struct ort_status *status = find_operands(p, g, names);
    if (status == NULL)
        status = pack(p, g);
    if (status != NULL) {
        program_free(p);
        return status;
    }
    *program = p;
    return NULL;
}

void program_free(struct program *p)
{
    if (p == NULL)
        return;
    struct operand *operands[] = {&p->x, &p->x_scale_operand, &p->x_zero, &p->factors[0],
                                  &p->factors[1], &p->sum_bias, &p->bias, &p->residual};
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
        free((void *)operands[i]->constant.data);
    qn_packed_destroy(p->w);
    free(p->zeros);
    free(p);
}

struct ort_status *operand_get(const struct program *p, const struct ort_run *run,
                               const struct operand *operand, struct tensor *tensor)
{
    const struct ort_value *value = NULL;
    *tensor = operand->constant;
    if (operand->input < 0)
        return NULL;
    ORT_TRY(p->api->run_input(run, (size_t)operand->input, &value));
    return value == NULL ? NULL : tensor_of(p->api, value, tensor);
}
