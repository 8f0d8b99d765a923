/* SPDX-License-Identifier: Apache-2.0 */
/* Which constants of an ONNX graph are weights. A node that multiplies by weights names them, or
 * names a value that DequantizeLinear or Transpose makes of them; the way back is followed for a
 * few steps. Scales of integer operators, which have none, are looked for in the Mul that comes
 * after them, where quantizers of ONNX Runtime put them.
 *
 * A module is called as its tensor is, without what quantizers add ("_Q4", "_quantized",
 * ".qweight"), or, where the tensor has a mere number ("onnx::MatMul_211"), as the node is:
 * "/model/layers.0/up_proj/MatMul_Q4" becomes "model.layers.0.up_proj.weight". */
#include <stdio.h>

#include "../base/error.h"
#include "onnx.h"

enum { NO_INPUT = -1, MOST_STEPS = 8 };

/* The operators and the places of their inputs. */
static const struct operator
{
    const char *name;
    bool is_microsoft, is_traced; /* traced: the weight may come out of DequantizeLinear */
    qni_link_kind kind;
    int8_t weight, scale, zero, order, x_scale, x_zero, bias;
}
operators[] = {
    {"MatMulNBits", 1, 0, QNI_LINK_NBITS, 1, 2, 3, 4, -1, -1, 5},
    {"MatMul", 0, 1, QNI_LINK_MATRIX, 1, -1, -1, -1, -1, -1, -1},
    {"Gemm", 0, 1, QNI_LINK_MATRIX, 1, -1, -1, -1, -1, -1, 2},
    {"Conv", 0, 1, QNI_LINK_CONV, 1, -1, -1, -1, -1, -1, 2},
    {"ConvTranspose", 0, 1, QNI_LINK_TRANSPOSED, 1, -1, -1, -1, -1, -1, 2},
    {"Gather", 0, 1, QNI_LINK_EMBEDDING, 0, -1, -1, -1, -1, -1, -1},
    {"QLinearMatMul", 0, 0, QNI_LINK_MATRIX, 3, 4, 5, -1, 1, 2, -1},
    {"QLinearConv", 0, 0, QNI_LINK_CONV, 3, 4, 5, -1, 1, 2, 8},
    {"QGemm", 1, 0, QNI_LINK_MATRIX, 3, 4, 5, -1, 1, 2, 6},
    {"MatMulInteger", 0, 0, QNI_LINK_MATRIX, 1, -1, 3, -1, -1, -1, -1},
    {"ConvInteger", 0, 0, QNI_LINK_CONV, 1, -1, 3, -1, -1, -1, -1},
    {"MatMulIntegerToFloat", 1, 0, QNI_LINK_MATRIX, 1, 3, 5, -1, 2, 4, 6},
    {"DynamicQuantizeMatMul", 1, 0, QNI_LINK_MATRIX, 1, 2, 3, -1, -1, -1, 4},
};

/* ---- names ----------------------------------------------------------------------------------- */

static bool tensor_before(const void *arg, uint32_t a, uint32_t b)
{
    const struct qni_onnx *x = arg;
    const int order = qni_span_order(x->bytes, x->tensors[a].name, x->tensors[b].name);
    return order < 0 || (order == 0 && a < b);
}

static bool input_before(const void *arg, uint32_t a, uint32_t b)
{
    const struct qni_onnx *x = arg;
    const int order = qni_span_order(x->bytes, x->inputs[a].name, x->inputs[b].name);
    return order < 0 || (order == 0 && a < b);
}

static bool output_before(const void *arg, uint32_t a, uint32_t b)
{
    const struct qni_onnx *x = arg;
    const int order = qni_span_order(x->bytes, x->outputs[a].name, x->outputs[b].name);
    return order < 0 || (order == 0 && a < b);
}

static uint32_t *sorted(const struct qni_onnx *x, size_t count, qni_before_fn before)
{
    uint32_t *list = qni_alloc(&x->allocator, count * sizeof *list);
    for (size_t i = 0; list != NULL && i < count; i++)
        list[i] = (uint32_t)i;
    if (list != NULL)
        qni_sort(list, count, before, x);
    return list;
}

static int64_t find_tensor(const struct qni_onnx *x, const uint8_t *text, struct qni_span name)
{
    for (size_t low = 0, high = x->n_tensors; low < high;) {
        const size_t middle = low + (high - low) / 2;
        const struct qni_span own = x->tensors[x->tensors_by_name[middle]].name;
        const size_t less = own.size < name.size ? own.size : name.size;
        int order = memcmp(text + name.at, x->bytes + own.at, less);
        if (order == 0)
            order = (name.size > own.size) - (name.size < own.size);
        if (order == 0)
            return x->tensors_by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

int64_t qni_onnx_find_text(const struct qni_onnx *x, const char *name)
{
    return find_tensor(x, (const uint8_t *)name, (struct qni_span){0, (uint32_t)strlen(name)});
}

static int64_t constant(const struct qni_onnx *x, struct qni_span name)
{
    return name.size == 0 ? -1 : find_tensor(x, x->bytes, name);
}

/* The node that makes a value, or NULL. */
static const struct qni_onnx_node *maker_of(const struct qni_onnx *x, struct qni_span name)
{
    for (size_t low = 0, high = name.size == 0 ? 0 : x->n_outputs; low < high;) {
        const size_t middle = low + (high - low) / 2;
        const struct qni_onnx_value *v = &x->outputs[x->outputs_by_name[middle]];
        const int order = qni_span_order(x->bytes, name, v->name);
        if (order == 0)
            return &x->nodes[v->node];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* The only use of a value, or NULL: none, or several. */
static const struct qni_onnx_value *use_of(const struct qni_onnx *x, struct qni_span name)
{
    size_t low = 0;
    for (size_t high = name.size == 0 ? 0 : x->n_inputs; low < high;) {
        const size_t middle = low + (high - low) / 2;
        if (qni_span_order(x->bytes, x->inputs[x->inputs_by_name[middle]].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (name.size == 0 || low >= x->n_inputs)
        return NULL;
    const struct qni_onnx_value *found = &x->inputs[x->inputs_by_name[low]];
    if (qni_span_order(x->bytes, found->name, name) != 0)
        return NULL;
    const bool is_only =
        low + 1 == x->n_inputs ||
        qni_span_order(x->bytes, x->inputs[x->inputs_by_name[low + 1]].name, name) != 0;
    return is_only ? found : NULL;
}

static struct qni_span input_of(const struct qni_onnx *x, const struct qni_onnx_node *n, int32_t i)
{
    return i < 0 || (uint32_t)i >= n->n_inputs ? (struct qni_span){0, 0}
                                               : x->inputs[n->input + (uint32_t)i].name;
}

static struct qni_span output_of(const struct qni_onnx *x, const struct qni_onnx_node *n)
{
    return n->n_outputs == 0 ? (struct qni_span){0, 0} : x->outputs[n->output].name;
}

static bool is_op(const struct qni_onnx *x, const struct qni_onnx_node *n, const char *op)
{
    return n != NULL && qni_span_is(x->bytes, n->op, op);
}

/* ---- attributes ------------------------------------------------------------------------------ */

/* The attribute of that name, at its value: field 2 a float, 3 an integer, 8 integers. */
static bool attribute(const struct qni_onnx *x, const struct qni_onnx_node *n, const char *name,
                      uint32_t field, struct qni_proto *value)
{
    struct qni_proto p = qni_proto_of(x->bytes, n->message);
    while (qni_proto_next(&p)) {
        if (p.field != 5 || p.wire != QNI_WIRE_BYTES)
            continue;
        struct qni_proto a = qni_proto_of(x->bytes, p.span);
        bool is_it = false, found = false;
        while (qni_proto_next(&a)) {
            is_it = is_it || (a.field == 1 && a.wire == QNI_WIRE_BYTES &&
                              qni_span_is(x->bytes, a.span, name));
            if (a.field == field && !found) {
                *value = a;
                found = true;
            }
        }
        if (is_it && found)
            return true;
    }
    return false;
}

static int64_t integer(const struct qni_onnx *x, const struct qni_onnx_node *n, const char *name,
                       int64_t usual)
{
    struct qni_proto value;
    if (!attribute(x, n, name, 3, &value) || value.wire != QNI_WIRE_VARINT)
        return usual;
    return (int64_t)value.number;
}

static float real(const struct qni_onnx *x, const struct qni_onnx_node *n, const char *name,
                  float usual)
{
    struct qni_proto value;
    float f;
    if (!attribute(x, n, name, 2, &value) || value.wire != QNI_WIRE_32)
        return usual;
    memcpy(&f, x->bytes + value.span.at, sizeof f);
    return f;
}

/* Does Transpose swap two dimensions? */
static bool is_swap(const struct qni_onnx *x, const struct qni_onnx_node *n)
{
    struct qni_proto value;
    if (!attribute(x, n, "perm", 8, &value))
        return true; /* it turns the order of all around */
    if (value.wire == QNI_WIRE_BYTES)
        return value.span.size == 2 && x->bytes[value.span.at] == 1 &&
               x->bytes[value.span.at + 1] == 0;
    struct qni_proto next = value; /* one by one */
    return value.number == 1 && qni_proto_next(&next) && next.field == 8 && next.number == 0;
}

/* ---- the way back from a node's input -------------------------------------------------------- */

struct source {
    int64_t tensor; /* -1: no constant */
    bool is_quantized, is_swapped;
    bool is_scale_swapped; /* between the constant and DequantizeLinear */
    struct qni_span scale, zero;
    int64_t axis, block;
};

static void take_scales(const struct qni_onnx *x, const struct qni_onnx_node *n, struct source *s)
{
    s->is_quantized = true;
    s->is_scale_swapped = false;
    s->scale = input_of(x, n, 1);
    s->zero = input_of(x, n, 2);
    s->axis = integer(x, n, "axis", 1);
    s->block = integer(x, n, "block_size", 0);
}

static struct source trace(const struct qni_onnx *x, struct qni_span name)
{
    struct source s = {.tensor = -1};
    for (int32_t step = 0; step < MOST_STEPS; step++) {
        s.tensor = constant(x, name);
        if (s.tensor >= 0)
            return s;
        const struct qni_onnx_node *n = maker_of(x, name);
        if (is_op(x, n, "DequantizeLinear") && !s.is_quantized) {
            take_scales(x, n, &s);
        } else if (is_op(x, n, "QuantizeLinear") && s.is_quantized) {
            s.is_quantized = false; /* plain floats that are rounded at run time */
        } else if (is_op(x, n, "Transpose") && is_swap(x, n)) {
            s.is_swapped = !s.is_swapped;
            s.is_scale_swapped = !s.is_scale_swapped;
        } else if (!is_op(x, n, "Identity")) {
            return s;
        }
        name = input_of(x, n, 0);
    }
    return s;
}

static void keep_part(const struct qni_onnx *x, struct qni_onnx_draft *d, int32_t part,
                      struct qni_span name)
{
    if (constant(x, name) >= 0)
        d->part[part] = name;
}

/* What x goes through: fixed scales around it, or 8 bits that are found at run time. */
static void find_activation(const struct qni_onnx *x, const struct qni_onnx_node *n,
                            struct qni_onnx_draft *d)
{
    const struct qni_onnx_node *maker = maker_of(x, input_of(x, n, 0));
    d->link.is_dynamic = is_op(x, maker, "DynamicQuantizeLinear");
    if (!is_op(x, maker, "DequantizeLinear") ||
        !is_op(x, maker_of(x, input_of(x, maker, 0)), "QuantizeLinear"))
        return;
    keep_part(x, d, QNI_LINK_X_SCALE, input_of(x, maker, 1));
    keep_part(x, d, QNI_LINK_X_ZERO, input_of(x, maker, 2));
}

/* The other input of the node that alone uses a value, if it is `op`; *out: what it makes. */
static struct qni_span other_of(const struct qni_onnx *x, struct qni_span value, const char *op,
                                struct qni_span *out)
{
    const struct qni_onnx_value *use = use_of(x, value);
    if (use == NULL || !is_op(x, &x->nodes[use->node], op))
        return (struct qni_span){0, 0};
    *out = output_of(x, &x->nodes[use->node]);
    return input_of(x, &x->nodes[use->node], use->place == 0 ? 1 : 0);
}

/* Integer sums become floats and are multiplied by x's scale times the weights'. *sum: the last
 * value of that chain. */
static void find_scale_after(const struct qni_onnx *x, struct qni_onnx_draft *d,
                             struct qni_span *sum)
{
    const struct qni_onnx_value *use = use_of(x, *sum);
    if (use == NULL || !is_op(x, &x->nodes[use->node], "Cast"))
        return;
    *sum = output_of(x, &x->nodes[use->node]);
    const struct qni_span factor = other_of(x, *sum, "Mul", sum);
    const struct qni_onnx_node *maker = maker_of(x, factor);
    if (factor.size == 0)
        return;
    d->link.has_scale = true;
    keep_part(x, d, QNI_LINK_SCALE, factor);
    for (int32_t i = 0; is_op(x, maker, "Mul") && i < 2; i++)
        keep_part(x, d, QNI_LINK_SCALE, input_of(x, maker, i));
}

static void find_bias(const struct qni_onnx *x, const struct operator* op,
                      const struct qni_onnx_node *n, struct qni_span sum, struct qni_onnx_draft *d)
{
    if (op->bias >= 0) {
        const struct source s = trace(x, input_of(x, n, op->bias));
        if (s.tensor >= 0 && !s.is_swapped)
            d->bias = x->tensors[s.tensor].name;
        return;
    }
    const int64_t t = constant(x, other_of(x, sum, "Add", &sum));
    if (t >= 0 && x->tensors[t].rank == 1)
        d->bias = x->tensors[t].name;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* Where scales stand in the stored tensor, and which of its dimensions the outputs are. */
static void take_layout(const struct qni_onnx *x, const struct qni_onnx_node *n,
                        const struct source *s, struct qni_onnx_draft *d)
{
    struct qni_link *link = &d->link;
    const int32_t rank = x->tensors[s->tensor].rank;
    int64_t axis = s->axis < 0 ? s->axis + rank : s->axis;
    const bool is_turned = integer(x, n, "transB", 0) == 1 && is_op(x, n, "Gemm");
    link->is_rows = link->kind == QNI_LINK_EMBEDDING || (is_turned != s->is_swapped);
    if (s->is_scale_swapped && (axis == 0 || axis == 1))
        axis = 1 - axis;
    link->axis = axis < 0 || axis > QN_MAX_RANK ? QN_MAX_RANK : (int32_t)axis;
    link->block = s->block < 0 ? 0 : s->block;
}

/* A weight that a way back has found. false: it is none. */
static bool take_traced(const struct qni_onnx *x, const struct operator* op,
                        const struct qni_onnx_node *n, struct qni_onnx_draft *d)
{
    const struct source s = trace(x, input_of(x, n, op->weight));
    const bool is_matrix = op->kind == QNI_LINK_MATRIX || op->kind == QNI_LINK_EMBEDDING;
    if (s.tensor < 0)
        return false;
    const int32_t rank = x->tensors[s.tensor].rank;
    if (is_matrix ? rank < 2 : rank < 3 || s.is_swapped)
        return false;
    if (op->kind == QNI_LINK_EMBEDDING && (s.is_swapped || integer(x, n, "axis", 0) != 0))
        return false;
    if (s.is_quantized &&
        (constant(x, s.scale) < 0 || (s.zero.size > 0 && constant(x, s.zero) < 0)))
        return false;
    const qn_dtype dtype = x->tensors[s.tensor].type->dtype;
    const bool is_float = dtype == QN_F32 || dtype == QN_F16 || dtype == QN_BF16 || dtype == QN_F64;
    if (!s.is_quantized && (!is_float || (is_matrix && rank != 2)))
        return false;
    d->head = (uint32_t)s.tensor;
    take_layout(x, n, &s, d);
    if (!s.is_quantized)
        return true;
    d->link.importer = "onnx";
    d->part[QNI_LINK_SCALE] = s.scale;
    keep_part(x, d, QNI_LINK_ZERO, s.zero);
    return true;
}

/* A weight that the operator itself takes with its scales. */
static bool take_named(const struct qni_onnx *x, const struct operator* op,
                       const struct qni_onnx_node *n, struct qni_onnx_draft *d)
{
    const int64_t weight = constant(x, input_of(x, n, op->weight));
    const struct qni_span zero = input_of(x, n, op->zero), scale = input_of(x, n, op->scale);
    if (weight < 0 || x->tensors[weight].rank < 2 || (zero.size > 0 && constant(x, zero) < 0) ||
        (op->scale >= 0 && constant(x, scale) < 0))
        return false;
    d->link.importer = "onnx";
    d->head = (uint32_t)weight;
    d->link.is_rows =
        op->kind == QNI_LINK_MATRIX && is_op(x, n, "QGemm") && integer(x, n, "transB", 0) == 1;
    d->link.axis = op->kind == QNI_LINK_CONV || d->link.is_rows ? 0 : 1;
    d->link.is_dynamic = is_op(x, n, "DynamicQuantizeMatMul");
    keep_part(x, d, QNI_LINK_SCALE, scale);
    keep_part(x, d, QNI_LINK_ZERO, zero);
    keep_part(x, d, QNI_LINK_ORDER, input_of(x, n, op->order));
    keep_part(x, d, QNI_LINK_X_SCALE, input_of(x, n, op->x_scale));
    keep_part(x, d, QNI_LINK_X_ZERO, input_of(x, n, op->x_zero));
    return true;
}

static void take_attributes(const struct qni_onnx *x, const struct operator* op,
                            const struct qni_onnx_node *n, struct qni_link *link)
{
    const int64_t groups = integer(x, n, "group", 1);
    link->conv_groups = groups < 1 || groups > INT32_MAX ? 0 : (int32_t)groups;
    link->alpha = is_op(x, n, "Gemm") || is_op(x, n, "QGemm") ? real(x, n, "alpha", 1.0f) : 1.0f;
    if (op->kind != QNI_LINK_NBITS)
        return;
    const int64_t bits = integer(x, n, "bits", 4);
    link->bits = bits < 0 || bits > 64 ? 0 : (int32_t)bits;
    link->n = integer(x, n, "N", -1);
    link->k = integer(x, n, "K", -1);
    link->block = integer(x, n, "block_size", -1);
    link->prepacked = integer(x, n, "weight_prepacked", 0) != 0;
}

static qn_status link_node(struct qni_onnx *x, uint32_t i, qn_error *err)
{
    const struct qni_onnx_node *n = &x->nodes[i];
    const bool is_plain = n->domain.size == 0 || qni_span_is(x->bytes, n->domain, "ai.onnx");
    const bool is_microsoft = qni_span_is(x->bytes, n->domain, "com.microsoft");
    const struct operator* op = NULL;
    struct qni_onnx_draft d = {.node = i};
    for (size_t o = 0; o < sizeof operators / sizeof *operators && op == NULL; o++)
        if (is_op(x, n, operators[o].name) && (operators[o].is_microsoft ? is_microsoft : is_plain))
            op = &operators[o];
    if (op == NULL)
        return QN_OK;
    struct qni_span sum = output_of(x, n);
    d.link.kind = op->kind;
    if (!(op->is_traced ? take_traced(x, op, n, &d) : take_named(x, op, n, &d)))
        return QN_OK;
    d.part[QNI_LINK_CODES] = x->tensors[d.head].name;
    take_attributes(x, op, n, &d.link);
    if (is_op(x, n, "MatMulInteger") || is_op(x, n, "ConvInteger"))
        find_scale_after(x, &d, &sum);
    if (op->kind != QNI_LINK_EMBEDDING) {
        if (op->x_scale < 0 && !d.link.is_dynamic)
            find_activation(x, n, &d);
        find_bias(x, op, n, sum, &d);
    }
    void *drafts = x->drafts;
    const bool grown =
        qni_grow(&x->allocator, &drafts, &x->draft_capacity, x->n_drafts, sizeof *x->drafts);
    x->drafts = drafts;
    if (!grown)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    x->drafts[x->n_drafts++] = d;
    return QN_OK;
}

static bool draft_before(const void *arg, uint32_t a, uint32_t b)
{
    const struct qni_onnx *x = arg;
    const uint32_t i = x->drafts[a].head, j = x->drafts[b].head;
    return i != j ? i < j : a < b;
}

/* Keeps the first of several nodes that use one tensor. */
static qn_status drop_repeats(struct qni_onnx *x, qn_error *err)
{
    uint32_t *order = sorted(x, x->n_drafts, draft_before);
    if (order == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t i = 1; i < x->n_drafts; i++)
        if (x->drafts[order[i]].head == x->drafts[order[i - 1]].head)
            x->drafts[order[i]].link.kind = 0;
    size_t kept = 0;
    for (size_t i = 0; i < x->n_drafts; i++)
        if (x->drafts[i].link.kind != 0)
            x->drafts[kept++] = x->drafts[i];
    qni_free(&x->allocator, order, x->n_drafts * sizeof *order);
    x->n_drafts = kept;
    return QN_OK;
}

qn_status qni_onnx_link(struct qni_onnx *x, qn_error *err)
{
    x->tensors_by_name = sorted(x, x->n_tensors, tensor_before);
    x->inputs_by_name = sorted(x, x->n_inputs, input_before);
    x->outputs_by_name = sorted(x, x->n_outputs, output_before);
    if (x->tensors_by_name == NULL || x->inputs_by_name == NULL || x->outputs_by_name == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (uint32_t i = 0; i < x->n_nodes; i++)
        QNI_TRY(link_node(x, i, err));
    return drop_repeats(x, err);
}

/* ---- names of modules ------------------------------------------------------------------------ */

enum { LONGEST_WORD = 16 };

static bool cut(char *text, size_t *length, const char *ending)
{
    const size_t tail = strlen(ending);
    if (*length <= tail || memcmp(text + *length - tail, ending, tail) != 0)
        return false;
    *length -= tail;
    text[*length] = 0;
    return true;
}

/* A node's name as that of a weight: without the operator's, and dots between its words. */
static size_t name_of_node(char *out, size_t length)
{
    static const char *const made[] = {"_Q4", "_Q8", "_Q2", "_quant", "_quantized"};
    static const char *const ops[] = {"/MatMul", "/Gemm", "/Conv", "/ConvTranspose", "/Gather"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        cut(out, &length, made[i]);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        cut(out, &length, ops[i]);
    const size_t lead = out[0] == '/';
    length -= lead;
    memmove(out, out + lead, length + 1);
    for (size_t i = 0; i < length; i++)
        if (out[i] == '/')
            out[i] = '.';
    memcpy(out + length, ".weight", sizeof ".weight");
    return length + sizeof ".weight";
}

size_t qni_onnx_text_bytes(const struct qni_onnx *x, const struct qni_onnx_draft *d)
{
    const struct qni_onnx_node *n = &x->nodes[d->node];
    size_t bytes = d->bias.size + 1;
    for (int32_t i = 0; i < QNI_LINK_PARTS; i++)
        bytes += d->part[i].size + 1;
    bytes += x->tensors[d->head].name.size + n->name.size + LONGEST_WORD;
    return bytes + n->op.size + n->name.size + LONGEST_WORD;
}

static void copy(const struct qni_onnx *x, struct qni_span s, char *out)
{
    memcpy(out, x->bytes + s.at, s.size);
    out[s.size] = 0;
}

size_t qni_onnx_name(const struct qni_onnx *x, const struct qni_onnx_draft *d, char *out)
{
    static const char *const made[] = {"_quantized", "_quant", "_Q4", "_Q8", "_Q2"};
    const struct qni_span head = x->tensors[d->head].name, node = x->nodes[d->node].name;
    size_t length = head.size;
    copy(x, head, out);
    if (d->link.importer == NULL)
        return length + 1;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (cut(out, &length, made[i]))
            break;
    if (strncmp(out, "onnx::", 6) == 0 && node.size > 0 &&
        memchr(x->bytes + node.at, 0, node.size) == NULL) {
        copy(x, node, out);
        return name_of_node(out, node.size);
    }
    if (cut(out, &length, ".MatMul.qweight") || cut(out, &length, ".qweight")) {
        memcpy(out + length, ".weight", sizeof ".weight");
        length += strlen(".weight");
    }
    return length + 1;
}

size_t qni_onnx_describe(const struct qni_onnx *x, const struct qni_onnx_draft *d, char *out)
{
    const struct qni_onnx_node *n = &x->nodes[d->node];
    copy(x, n->op, out);
    size_t used = strlen(out);
    if (n->name.size > 0) {
        out[used++] = ' ';
        copy(x, n->name, out + used);
        used += strlen(out + used);
    }
    return used + 1;
}
