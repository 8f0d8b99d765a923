/* SPDX-License-Identifier: Apache-2.0 */
/* What a product over several ranks says of itself. */
#include <stdarg.h>
#include <stdio.h>

#include "../base/compiler.h"
#include "product.h"

struct words {
    char *text;
    size_t capacity, length;
};

static void say(struct words *w, const char *format, ...) QNI_PRINTF(2, 3);
static void say(struct words *w, const char *format, ...)
{
    va_list arguments;
    const size_t left = w->length < w->capacity ? w->capacity - w->length : 0;
    va_start(arguments, format);
    const int n = vsnprintf(left > 0 ? w->text + w->length : NULL, left, format, arguments);
    va_end(arguments);
    w->length += n > 0 ? (size_t)n : 0;
}

static struct words begin(char *text, size_t capacity)
{
    if (capacity > 0)
        text[0] = 0;
    return (struct words){text, capacity, 0};
}

/* What a rank receives, and in how many exchanges: of reduced sums, twice what others have of each
 * part (they come in, and their sums go out). */
static void measure_exchange(const struct qn_parallel *p, double *bytes, double *exchanges)
{
    const double chunks = (double)((p->m + p->chunk - 1) / p->chunk);
    const double others = (double)(p->comm.n_ranks - 1);
    const double sums = 4.0 * (double)p->m * (double)p->n;
    const double reduced = 2.0 * others / (double)p->comm.n_ranks;
    const double asked = p->is_trusted ? 0.0 : 1.0; /* whether all are in this run */
    *bytes = *exchanges = 0.0;
    if (p->exchange == QNI_EXCHANGE_NOTHING || p->comm.n_ranks == 1)
        return;
    *exchanges = asked + chunks * (p->by_columns ? 2.0 : 1.0) + (p->is_quantized ? 1.0 : 0.0);
    if (p->exchange == QNI_EXCHANGE_INT32 || p->exchange == QNI_EXCHANGE_FAST)
        *bytes = reduced * (sums + (p->is_quantized ? 4.0 * (double)p->m : 0.0));
    else
        *bytes = others * (double)p->block_bytes * chunks * (p->by_columns ? 2.0 : 1.0);
}

static double seconds_of(const qn_comm *comm, double exchanges, double bytes)
{
    return comm->latency_s > 0.0 && comm->bytes_per_s > 0.0
               ? exchanges * comm->latency_s + bytes / comm->bytes_per_s
               : 0.0;
}

double qn_parallel_predict(const qn_parallel *plan)
{
    double bytes, exchanges;
    if (plan == NULL)
        return 0.0;
    measure_exchange(plan, &bytes, &exchanges);
    return seconds_of(&plan->comm, exchanges, bytes);
}

static void say_exchange(struct words *w, const struct qn_parallel *p)
{
    const double blocks = (double)p->block_bytes * (double)((p->m + p->chunk - 1) / p->chunk);
    const double sums = 4.0 * (double)p->m * (double)p->n;
    const double others = (double)(p->comm.n_ranks - 1);
    switch (p->exchange) {
    case QNI_EXCHANGE_NOTHING:
        say(w, "  exchange  nothing: each rank keeps its outputs\n"
               "  bits      those of one process\n");
        return;
    case QNI_EXCHANGE_Y:
        say(w,
            "  exchange  finished outputs are gathered: %.0f bytes to each rank\n"
            "  bits      those of one process\n",
            others * blocks);
        return;
    case QNI_EXCHANGE_INT32:
        say(w,
            "  exchange  %sint32 sums by all_reduce: %.0f bytes\n"
            "  bits      those of one process: integer sums have no order\n",
            p->is_quantized ? "the largest |x| of each row, then " : "", sums);
        return;
    case QNI_EXCHANGE_ORDERED:
        if (p->by_columns)
            say(w, "  exchange  f32 sums by all_to_all, then all_gather: %.0f bytes to each rank\n",
                2.0 * others * blocks);
        else
            say(w, "  exchange  f32 sums are gathered: %.0f bytes to each rank\n", others * blocks);
        say(w, "  bits      the same on all ranks and in every run: added in order of rank%s\n",
            p->sum_order == QN_SUM_EXACT
                ? "\n            (exact sums need int8-row or int8-static, and integer weights of "
                  "one group an output without offsets)"
                : "");
        return;
    default:
        say(w,
            "  exchange  f32 sums by the caller's all_reduce: %.0f bytes\n"
            "  bits      as the caller's all_reduce adds\n",
            sums);
    }
}

static void say_time(struct words *w, const qn_comm *comm, double seconds, const char *of)
{
    if (seconds > 0.0)
        say(w, "  time      %.1f us of exchanges%s (%.1f us each, %.3g GB/s)\n", seconds * 1e6, of,
            comm->latency_s * 1e6, comm->bytes_per_s / 1e9);
}

size_t qn_parallel_explain(const qn_parallel *plan, char *text, size_t capacity)
{
    struct words w = begin(text, capacity);
    if (plan == NULL) {
        say(&w, "the plan is NULL\n");
        return w.length;
    }
    say(&w, "product over %d ranks, split by %s; this is rank %d\n", plan->comm.n_ranks,
        qn_split_name(plan->split), plan->comm.rank);
    if (plan->split == QN_SPLIT_COLUMN)
        say(&w, "  weights   outputs %lld to %lld of %lld, k %lld\n", (long long)plan->first_n,
            (long long)(plan->first_n + plan->own_n), (long long)plan->n, (long long)plan->k);
    else
        say(&w, "  weights   %lld of %lld columns, %lld outputs\n", (long long)plan->own_k,
            (long long)plan->k, (long long)plan->n);
    if (plan->n_experts > 0)
        say(&w, "  experts   %d, of which each rank has such a part\n", plan->n_experts);
    say_exchange(&w, plan);
    say_time(&w, &plan->comm, qn_parallel_predict(plan), "");
    say(&w, "  rows      %lld at most, %lld at once; scratch %zu bytes\nthe rank's own product:\n",
        (long long)plan->m, (long long)plan->chunk, plan->scratch.bytes);
    const size_t left = w.length < capacity ? capacity - w.length : 0;
    return w.length + qn_plan_explain(plan->product, left > 0 ? text + w.length : NULL, left);
}

/* ---- calls without a plan -------------------------------------------------------------------- */

static void say_end(struct words *w, const struct qni_exchanged *e, const char *of)
{
    if (e->at_once > 0)
        say_time(w, &e->comm, seconds_of(&e->comm, e->exchanges, e->bytes), of);
    say(w, "  scratch   %zu bytes\n", e->scratch);
}

size_t qn_parallel_experts_explain(const qn_ctx *ctx, const qn_parallel_experts_args *args,
                                   char *text, size_t capacity)
{
    struct words w = begin(text, capacity);
    struct qni_exchanged e;
    qn_error err = {QN_OK, -1, ""};
    if (qni_parallel_experts_exchanged(ctx, args, &e, &err) != QN_OK) {
        say(&w, "%s\n", err.text);
        return w.length;
    }
    say(&w, "whole experts over %d ranks; this is rank %d\n", e.comm.n_ranks, e.comm.rank);
    say(&w, "  weights   experts %lld to %lld of %lld\n", (long long)e.first,
        (long long)(e.first + e.own), (long long)e.whole);
    if (e.at_once == 0)
        say(&w, "  exchange  nothing: there is one rank\n");
    else
        say(&w,
            "  exchange  rows of x to the rank of their expert, rows of y back, by %s: at most "
            "%lld\n            rows between two ranks in a round, %.0f bytes to each rank\n",
            e.comm.all_to_all != NULL ? "all_to_all" : "all_gather", (long long)e.at_once, e.bytes);
    say(&w, "  bits      those of one process%s\n",
        e.strategy == QN_STRATEGY_FLOAT ? ", or of another kernel where other rows meet" : "");
    say_end(&w, &e, " a round");
    return w.length;
}

size_t qn_parallel_conv_explain(const qn_ctx *ctx, const qn_parallel_conv_args *args, char *text,
                                size_t capacity)
{
    struct words w = begin(text, capacity);
    struct qni_exchanged e;
    qn_error err = {QN_OK, -1, ""};
    if (qni_parallel_conv_exchanged(ctx, args, &e, &err) != QN_OK) {
        say(&w, "%s\n", err.text);
        return w.length;
    }
    say(&w, "convolution over %d ranks, by output channels; this is rank %d\n", e.comm.n_ranks,
        e.comm.rank);
    say(&w, "  weights   %lld channels\n", (long long)e.own);
    if (e.at_once == 0)
        say(&w, "  exchange  nothing: each rank keeps its channels\n");
    else
        say(&w,
            "  exchange  finished channels, %lld to %lld of %lld from here, are gathered, %lld "
            "images\n            at once: %.0f bytes to each rank\n",
            (long long)e.first, (long long)(e.first + e.own), (long long)e.whole,
            (long long)e.at_once, e.bytes);
    say(&w, "  bits      those of one process\n");
    say_end(&w, &e, "");
    return w.length;
}
