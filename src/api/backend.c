/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backends, and the CPU's row of it. */
#include "backend.h"

#include "../base/error.h"
#include "isa.h"

static qn_status cpu_attach(qn_ctx *ctx, qn_error *err)
{
    if (ctx->device.index != 0)
        return qni_fail(err, QN_E_DEVICE, "there is one CPU device, index 0, not %d",
                        ctx->device.index);
    for (int32_t level = 1; level <= 3; level++)
        ctx->cache_bytes[level - 1] = qni_cache_bytes(level);
    return QN_OK;
}

static qn_status cpu_select(const qn_ctx *ctx, const struct qni_op *op, union qni_choice *choice,
                            qni_refusal_fn tell, void *arg)
{
    return qni_cpu_select(ctx, op, &choice->cpu, tell, arg);
}

static size_t cpu_scratch_bytes(const union qni_choice *choice)
{
    return choice->cpu.scratch_bytes;
}

static void cpu_facts(const union qni_choice *choice, struct qni_choice_facts *facts)
{
    const struct qni_cpu_choice *c = &choice->cpu;
    facts->kernel = qni_cpu_kernel_name(c->main);
    facts->needs = qni_cpu_kernel_needs(c->main);
    facts->n_threads = c->n_threads;
    facts->is_fallback = c->is_fallback;
    facts->scratch_bytes = c->scratch_bytes;
    facts->shared_bytes = c->shared_bytes;
    facts->thread_bytes = c->thread_bytes;
    facts->block_m = c->block_m;
    facts->block_n = c->panels_per_task * 16;
    facts->n_kernels = c->n_choices;
    for (int32_t i = 0; i < c->n_choices; i++) {
        facts->kernels[i] = qni_cpu_kernel_name(c->kernel[i]);
        facts->m_from[i] = c->m_from[i];
    }
}

static qn_status cpu_run(const qn_ctx *ctx, const struct qni_op *op, const union qni_choice *choice,
                         void *scratch)
{
    return qni_cpu_run(ctx, op, &choice->cpu, scratch);
}

static const struct qni_backend cpu = {
    .name = "cpu",
    .attach = cpu_attach,
    .select = cpu_select,
    .scratch_bytes = cpu_scratch_bytes,
    .facts = cpu_facts,
    .run = cpu_run,
    .pack_bytes = qni_cpu_pack_bytes,
    .pack = qni_cpu_pack,
    .unpack = qni_cpu_unpack,
    .layout_name = qni_cpu_layout_name,
    .packed_check = qni_cpu_packed_check,
    .quantize_rows = qni_cpu_quantize_rows,
};

static const struct {
    int32_t device_kind;
    const struct qni_backend *backend;
} backends[] = {
    {QN_CPU, &cpu},
};
enum { N_BACKENDS = (int)(sizeof backends / sizeof *backends) };

const struct qni_backend *qni_backend_of(int32_t device_kind)
{
    for (int i = 0; i < N_BACKENDS; i++) {
        if (backends[i].device_kind == device_kind)
            return backends[i].backend;
    }
    return NULL;
}

const struct qni_backend *qni_backend_at(int32_t i)
{
    return i >= 0 && i < N_BACKENDS ? backends[i].backend : NULL;
}
