/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts of the sweep: one for each ISA mask and thread count, made when a case first asks for
 * it. */
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

enum { MAX_MASKS = 66, MAX_CONTEXTS = 256 };

struct entry {
    uint64_t mask;
    int32_t threads;
    qn_ctx *ctx;
};

static struct {
    struct entry entry[MAX_CONTEXTS];
    int32_t n;
} contexts;

int32_t check_masks(const struct check_options *options, const uint64_t **masks)
{
    static uint64_t list[MAX_MASKS];
    int32_t n = 0;
    uint64_t mask = qn_isa_detect() & options->isa;
    list[n++] = mask;
    const bool sweep = !options->isa_given && options->device->kind == QN_CPU;
    for (int bit = 63; bit >= 0 && sweep; bit--)
        if (((mask >> bit) & 1) != 0) {
            mask &= ~((uint64_t)1 << bit);
            list[n++] = mask;
        }
    *masks = list;
    return n;
}

const char *check_mask_name(uint64_t mask)
{
    mask &= qn_isa_detect();
    for (int bit = 63; bit >= 0; bit--)
        if (((mask >> bit) & 1) != 0) {
            const char *name = qn_isa_name((uint64_t)1 << bit);
            return name != NULL ? name : "?";
        }
    return "portable";
}

/* The caller's threads, at their least helpful: one after another, last one first. */
static void backwards(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    (void)arg;
    for (int32_t i = n; i-- > 0;)
        task(task_arg, i);
}

const qn_ctx *check_context(struct check *c, uint64_t mask, int32_t threads)
{
    if (c->options->device->kind != QN_CPU) {
        mask = qn_isa_detect();
        threads = 1;
    }
    for (int32_t i = 0; i < contexts.n; i++)
        if (contexts.entry[i].mask == mask && contexts.entry[i].threads == threads)
            return contexts.entry[i].ctx;
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.device = (qn_device){c->options->device->kind, c->options->device_index};
    options.isa_mask = mask;
    options.n_threads = threads;
    if (threads == CHECK_SERIAL) {
        options.n_threads = 3;
        options.parallel_for = backwards;
    }
    options.alloc = check_alloc;
    options.free = check_free;
    qn_error err = {QN_OK, -1, ""};
    struct entry entry = {mask, threads, NULL};
    const size_t before = check_memory_of_contexts();
    const qn_status status =
        contexts.n == MAX_CONTEXTS ? QN_E_MEMORY : qn_ctx_create(&options, &entry.ctx, &err);
    if (status != QN_OK) {
        fprintf(stderr, "quern-check: no context for isa %s, %d threads: %s\n",
                check_mask_name(mask), threads, err.text);
        _Exit(2);
    }
    check_memory_keep(check_memory_of_contexts() - before);
    contexts.entry[contexts.n++] = entry;
    return entry.ctx;
}

void check_contexts_end(void)
{
    while (contexts.n > 0)
        qn_ctx_destroy(contexts.entry[--contexts.n].ctx);
}
