/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan, or an operation without one, says about itself, as text and as numbers. Real numbers
 * are written in fixed point from integers: the decimal mark of the C library depends on the locale
 * of the program. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../base/compiler.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "plan.h"
#include "refusals.h"

const char *qni_kind_name(int32_t kind)
{
    static const char *const kinds[] = {"matmul", "matmul_grouped", "conv2d", "conv_transpose2d"};
    return kinds[kind];
}

/* ---------------------------------------------------------------------------------------- facts */

struct traffic {
    double weights, x, y, ops;
};

static double elements_of(const qn_tensor *t)
{
    double n = 1.0;
    for (int32_t d = 0; d < t->rank; d++)
        n *= (double)t->shape[d];
    return n;
}

/* What a kernel reads of packed weights: not the parts that only unpacking needs, as the last two
 * are unless scales and offsets are made of them. */
static double weight_bytes(const struct qni_packed_head *head)
{
    static const int32_t hot[] = {QNI_SECTION_CODES, QNI_SECTION_SCALE, QNI_SECTION_OFFSET,
                                  QNI_SECTION_TABLE, QNI_SECTION_LEVELS, QNI_SECTION_ZERO};
    double bytes = 0.0;
    const size_t n = sizeof hot / sizeof *hot - (qni_is_compact(head) ? 0 : 2);
    for (size_t i = 0; i < n; i++)
        bytes += (double)head->section[hot[i]].bytes;
    return bytes;
}

/* The fewest bytes that must move and the operations that must be done, whatever the kernel. */
static struct traffic traffic_of(const struct qni_op *op)
{
    double rows = (double)op->m, x = elements_of(&op->x);
    if (op->kind == QNI_CONV_TRANSPOSE) /* every input pixel meets every tap */
        rows = (double)op->conv.batch * (double)op->conv.h * (double)op->conv.w;
    if (op->kind == QNI_GROUPED)
        x = (double)qni_min(op->m, op->x.shape[0]) * (double)op->k;
    return (struct traffic){
        .weights = weight_bytes(op->w[0]->head) * (double)qni_min(op->n_w, op->m),
        .x = x * (double)qn_dtype_bytes(op->x.dtype),
        .y = elements_of(&op->y) * (double)qn_dtype_bytes(op->y.dtype),
        .ops = 2.0 * rows * (double)op->n * (double)op->k,
    };
}

/* The int8 strategies are defined to the bit (docs/numerics.md). */
static bool is_exact(qn_strategy strategy)
{
    return strategy == QN_STRATEGY_INT8_ROW || strategy == QN_STRATEGY_INT8_BLOCK ||
           strategy == QN_STRATEGY_INT8_STATIC;
}

qn_status qn_plan_query(const qn_plan *plan, qn_plan_info *info)
{
    if (plan == NULL)
        return QN_E_ARGUMENT;
    struct qni_choice_facts facts = {.kernel = NULL};
    plan->backend->facts(&plan->choice, &facts);
    const struct traffic traffic = traffic_of(&plan->op);
    qn_plan_info own;
    qn_plan_info_init(&own);
    own.kernel = facts.kernel;
    own.isa = facts.needs;
    own.n_threads = facts.n_threads;
    own.is_fallback = facts.is_fallback;
    own.is_exact = is_exact(plan->op.strategy);
    own.ran = (int32_t)atomic_load_explicit(plan->note, memory_order_relaxed);
    own.stand_in = facts.stand_in;
    own.scratch_bytes = facts.scratch_bytes;
    own.bytes = traffic.weights + traffic.x + traffic.y;
    own.ops = traffic.ops;
    return qni_sized_write(info, &own, sizeof own);
}

qn_status qn_cpu_predict(const qn_plan *plan, double *us)
{
    if (plan == NULL || us == NULL || plan->ctx->device.kind != QN_CPU)
        return QN_E_ARGUMENT;
    struct qni_choice_facts facts = {.kernel = NULL};
    plan->backend->facts(&plan->choice, &facts);
    *us = facts.predicted_us;
    return QN_OK;
}

qn_status qn_cuda_predict(const qn_plan *plan, qn_cuda_prediction *prediction)
{
    if (plan == NULL || plan->ctx->device.kind != QN_CUDA)
        return QN_E_ARGUMENT;
    struct qni_choice_facts facts = {.kernel = NULL};
    plan->backend->facts(&plan->choice, &facts);
    qn_cuda_prediction own;
    qn_cuda_prediction_init(&own);
    own.us = facts.predicted_us;
    own.roofline_us = facts.roofline_us;
    own.bytes = facts.terms.bytes;
    own.steps = facts.terms.steps;
    own.before_us = facts.terms.before_us;
    return qni_sized_write(prediction, &own, sizeof own);
}

/* ----------------------------------------------------------------------------------------- text */

struct writer {
    char *text;
    size_t capacity;
    size_t length; /* that all of it needs, whether it fits or not */
};

QNI_PRINTF(2, 3) static void put(struct writer *w, const char *format, ...)
{
    va_list args;
    const bool fits = w->length < w->capacity;
    va_start(args, format);
    const int n = vsnprintf(fits ? w->text + w->length : NULL, fits ? w->capacity - w->length : 0,
                            format, args);
    va_end(args);
    if (n > 0)
        w->length += (size_t)n;
}

/* Two decimals, with a unit of a thousand, a million, ... before `unit`. */
static void put_real(struct writer *w, double value, const char *unit)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    size_t i = 0;
    for (; value >= 1000.0 && i + 1 < sizeof prefixes / sizeof *prefixes; i++)
        value /= 1000.0;
    const long long hundredths = (long long)(value * 100.0 + 0.5);
    put(w, "%lld.%02lld %s%s", hundredths / 100, hundredths % 100, prefixes[i], unit);
}

static void put_features(struct writer *w, uint64_t bits)
{
    if (bits == 0)
        put(w, "any CPU");
    const char *separator = "";
    for (int i = 0; i < 64; i++) {
        const char *name = qn_isa_name((uint64_t)1 << i);
        if ((bits >> i & 1) != 0) {
            put(w, "%s%s", separator, name != NULL ? name : "?");
            separator = ", ";
        }
    }
}

static void put_problem(struct writer *w, const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    char format[96];
    put(w, "%s: m %lld, n %lld, k %lld; x %s, y %s; strategy %s%s\n", qni_kind_name(op->kind),
        (long long)op->m, (long long)op->n, (long long)op->k, qn_dtype_name(op->x.dtype),
        qn_dtype_name(op->y.dtype), qn_strategy_name(op->strategy), op->strict ? ", strict" : "");
    if (op->kind == QNI_CONV || op->kind == QNI_CONV_TRANSPOSE)
        put(w,
            "image: %lld of %lld x %lld to %lld x %lld; %d groups of %lld to %lld channels, %d x "
            "%d taps\n",
            (long long)c->batch, (long long)c->h, (long long)c->w, (long long)c->oh,
            (long long)c->ow, c->groups, (long long)c->ci, (long long)c->co, c->kh, c->kw);
    qn_format_print(&op->w[0]->head->format, format, sizeof format);
    put(w, "weights: %s packed as %.24s", format, op->w[0]->head->layout);
    if (op->kind == QNI_GROUPED)
        put(w, ", %d experts", op->n_w);
    put(w, "\n");
    if (op->more.gate != QN_GATE_NONE)
        put(w, "gate: %s, y = act(one) * the other\n",
            op->more.gate == QN_GATE_HALVES ? "the two halves of the outputs"
                                              : "pairs of outputs");
    if (op->is_prepared)
        put(w, "rows of x: prepared before, once for all products that read them\n");
}

/* What only a device of its own tells: a note, and the time that the choice went by. */
static void put_device(struct writer *w, const struct qni_choice_facts *f)
{
    if (f->note != NULL)
        put(w, "how: %s\n", f->note);
    if (f->predicted_us <= 0.0)
        return;
    put(w, "predicted: ");
    put_real(w, f->predicted_us, "us");
    put(w, "; roofline ");
    put_real(w, f->roofline_us, "us");
    put(w, "\n");
}

static void put_choice(struct writer *w, const qn_ctx *ctx, const struct qni_op *op,
                       const union qni_choice *choice)
{
    struct qni_choice_facts f = {.kernel = NULL};
    qni_backend_of(ctx->device.kind)->facts(choice, &f);
    put(w, "kernel: %s (", f.kernel);
    if (f.machine != NULL)
        put(w, "%s", f.machine);
    else
        put_features(w, f.needs);
    put(w, "), %s%s\n",
        is_exact(op->strategy) ? "the same bits on every CPU" : "within the bound of its strategy",
        f.is_fallback ? ", a fallback" : "");
    for (int32_t i = 0; i < f.n_kernels && f.n_kernels > 1; i++)
        put(w, "  from m = %lld: %s\n", (long long)f.m_from[i], f.kernels[i]);
    if (f.stand_in != NULL)
        put(w, "  where %s: %s\n", f.stand_in_when, f.stand_in);
    if (f.machine != NULL) {
        put(w, "rows prepared at once: %lld\nscratch: %zu bytes on the device\n",
            (long long)f.block_m, f.scratch_bytes);
        put_device(w, &f);
        return;
    }
    put(w, "blocks: %lld rows x %lld outputs on %d thread%s\n", (long long)f.block_m,
        (long long)f.block_n, f.n_threads, f.n_threads == 1 ? "" : "s");
    put(w, "scratch: %zu bytes (%zu shared, %zu for each thread)\n", f.scratch_bytes,
        f.shared_bytes, f.thread_bytes);
    if (f.predicted_us > 0.0) {
        put(w, "predicted: ");
        put_real(w, f.predicted_us, "us");
        if (f.cost_times > 0.0) {
            put(w, "; the kernel's cost as set on the context: ");
            put_real(w, f.cost_times, "times the library's");
        }
        put(w, "\n");
    }
}

static void put_roofline(struct writer *w, const qn_ctx *ctx, const struct qni_op *op)
{
    const struct traffic t = traffic_of(op);
    const double bytes = t.weights + t.x + t.y;
    put(w, "moves: ");
    put_real(w, bytes, "B");
    put(w, " at least (weights ");
    put_real(w, t.weights, "B");
    put(w, ", x ");
    put_real(w, t.x, "B");
    put(w, ", y ");
    put_real(w, t.y, "B");
    put(w, ")\nwork: ");
    put_real(w, t.ops, "op");
    if (bytes > 0.0) {
        put(w, ", ");
        put_real(w, t.ops / bytes, "op");
        put(w, " for each byte: bound by memory where the %s does more in the time of one byte",
            ctx->device.kind == QN_CPU ? "CPU" : "GPU");
    }
    put(w, "\n");
}

static void put_refusal(void *arg, const char *kernel, const char *why)
{
    put(arg, "  %s: %s\n", kernel, why);
}

static struct writer begin(char *text, size_t capacity)
{
    const struct writer w = {text, text == NULL ? 0 : capacity, 0};
    if (w.capacity > 0)
        text[0] = '\0';
    return w;
}

/* What was chosen, and why not the rest. */
static void put_all(struct writer *w, const qn_ctx *ctx, const struct qni_op *op,
                    const union qni_choice *choice)
{
    put_problem(w, op);
    if (choice != NULL) {
        put_choice(w, ctx, op, choice);
        put_roofline(w, ctx, op);
    }
    put(w, "refused:\n");
    union qni_choice again;
    memset(&again, 0, sizeof again);
    (void)qni_backend_of(ctx->device.kind)->select(ctx, op, &again, put_refusal, w);
}

size_t qn_plan_explain(const qn_plan *plan, char *text, size_t capacity)
{
    struct writer w = begin(text, capacity);
    if (plan == NULL)
        return 0;
    put_all(&w, plan->ctx, &plan->op, &plan->choice);
    return w.length;
}

size_t qni_explain(const qn_ctx *ctx, const struct qni_op *op, char *text, size_t capacity)
{
    struct writer w = begin(text, capacity);
    union qni_choice choice;
    qn_error err = {QN_OK, -1, ""};
    const qn_status status = qni_choose(ctx, op, &choice, &err);
    if (status == QN_E_UNSUPPORTED) {
        struct qni_refusals refusals;
        qni_refusals_gather(ctx, op, &refusals);
        qni_refusals_govern(&refusals, err.text, sizeof err.text);
        put(&w, "no kernel serves this: %s\n", err.text);
    } else if (status != QN_OK) {
        put(&w, "%s\n", err.text);
    }
    put_all(&w, ctx, op, status == QN_OK || status == QN_E_FALLBACK ? &choice : NULL);
    return w.length;
}

size_t qni_explain_error(const qn_error *err, char *text, size_t capacity)
{
    struct writer w = begin(text, capacity);
    put(&w, "%s: %s\n", qn_status_name(err->status), err->text);
    return w.length;
}
