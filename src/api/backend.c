/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backends: the CPU's row, and CUDA's where it was built in. */
#include "backend.h"

#include <string.h>

#include "../base/cpus.h"
#include "../base/error.h"
#if QN_BUILD_CUDA
#include "../cuda/device.h"
#endif
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
    facts->stand_in = c->n_choices > 0 && c->stand_in[c->n_choices - 1] != NULL
                          ? qni_cpu_kernel_name(c->stand_in[c->n_choices - 1])
                          : NULL;
    facts->stand_in_when = c->conv != NULL
                               ? "scales or biases are too large for it, or a run has another "
                                 "activation"
                               : "rows of x have too many outliers";
    facts->scratch_bytes = c->scratch_bytes;
    facts->shared_bytes = c->shared_bytes;
    facts->thread_bytes = c->thread_bytes;
    facts->block_m = c->block_m;
    facts->block_n = c->panels_per_task * 16;
    facts->predicted_us = c->predicted_us;
    facts->cost_times = c->cost_times;
    facts->n_kernels = c->n_choices;
    for (int32_t i = 0; i < c->n_choices; i++) {
        facts->kernels[i] = qni_cpu_kernel_name(c->kernel[i]);
        facts->m_from[i] = c->m_from[i];
    }
}

static qn_status cpu_run(const qn_ctx *ctx, const struct qni_op *op, const union qni_choice *choice,
                         void *scratch, qn_error *err)
{
    (void)err; /* what is checked cannot fail */
    return qni_cpu_run(ctx, op, &choice->cpu, scratch);
}

static qn_status cpu_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args,
                                   qn_error *err)
{
    (void)err;
    return qni_cpu_quantize_rows(ctx, args);
}

static qn_status cpu_finish(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    (void)err;
    qni_cpu_finish(ctx, op);
    return QN_OK;
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
    .pack_into = qni_cpu_pack_into,
    .pack_source = qni_cpu_pack_source,
    .unpack = qni_cpu_unpack,
    .layout_name = qni_cpu_layout_name,
    .packed_check = qni_cpu_packed_check,
    .combine_rows = qni_cpu_combine_rows,
    .prepare_bytes = qni_cpu_prepare_bytes,
    .prepare = qni_cpu_prepare,
    .prepared_check = qni_cpu_prepared_check,
    .quantize_rows = cpu_quantize_rows,
    .finish = cpu_finish,
};

#if QN_BUILD_CUDA

static qn_status cuda_select(const qn_ctx *ctx, const struct qni_op *op, union qni_choice *choice,
                             qni_refusal_fn tell, void *arg)
{
    return qni_cuda_select(ctx, op, &choice->cuda, tell, arg);
}

static size_t cuda_scratch_bytes(const union qni_choice *choice)
{
    return choice->cuda.scratch_bytes;
}

static void cuda_facts(const union qni_choice *choice, struct qni_choice_facts *facts)
{
    const struct qni_cuda_choice *c = &choice->cuda;
    facts->kernel = qni_cuda_kernel_name(c, c->main);
    facts->machine = qni_cuda_kernel_machine(c->main);
    facts->note = c->note;
    facts->n_threads = 1;
    facts->is_fallback = c->is_fallback;
    facts->scratch_bytes = c->scratch_bytes;
    facts->shared_bytes = c->chunk_bytes + c->routes_bytes;
    facts->block_m = c->chunk;
    facts->block_n = c->n;
    facts->n_kernels = c->n_choices;
    for (int32_t i = 0; i < c->n_choices; i++) {
        facts->kernels[i] = qni_cuda_kernel_name(c, c->kernel[i]);
        facts->m_from[i] = c->m_from[i];
    }
    facts->predicted_us = c->predicted_us;
    facts->roofline_us = c->roofline_us;
    facts->terms = c->terms;
}

static qn_status cuda_run(const qn_ctx *ctx, const struct qni_op *op,
                          const union qni_choice *choice, void *scratch, qn_error *err)
{
    return qni_cuda_run(ctx, op, &choice->cuda, scratch, err);
}

static qn_status cuda_query(int32_t index, qn_cuda_info *info, qn_error *err)
{
    struct qni_cuda_facts facts;
    QNI_TRY(qni_cuda_look(index, &facts, err));
    memcpy(info->name, facts.name, sizeof info->name);
    info->sm = facts.sm;
    info->multiprocessors = facts.multiprocessors;
    info->memory_bytes = facts.memory_bytes;
    info->l2_bytes = facts.l2_bytes;
    info->bandwidth = facts.bandwidth;
    info->f16_ops = facts.f16_ops;
    info->int8_ops = facts.int8_ops;
    info->is_served = facts.is_served;
    return QN_OK;
}

static qn_status cuda_set_stream(qn_ctx *ctx, struct CUstream_st *stream)
{
    ctx->cuda->stream = stream;
    return QN_OK;
}

static qn_status cuda_set_pdl(qn_ctx *ctx, int32_t pdl)
{
    ctx->cuda->pdl = pdl;
    return QN_OK;
}

static const struct qni_device_calls cuda_device = {
    .count = qni_cuda_count,
    .query = cuda_query,
    .set_stream = cuda_set_stream,
    .set_pdl = cuda_set_pdl,
    .alloc = qni_cuda_alloc,
    .free = qni_cuda_free,
    .upload = qni_cuda_upload,
    .download = qni_cuda_download,
    .wait = qni_cuda_wait,
    .measure = qni_cuda_measure,
    .get_cost = qni_cuda_get_cost,
    .set_cost = qni_cuda_set_cost,
    .check_pointer = qni_cuda_check_pointer,
};

static const struct qni_backend cuda = {
    .name = "cuda",
    .attach = qni_cuda_open,
    .detach = qni_cuda_close,
    .device = &cuda_device,
    .select = cuda_select,
    .scratch_bytes = cuda_scratch_bytes,
    .facts = cuda_facts,
    .run = cuda_run,
    .pack_bytes = qni_cuda_pack_bytes,
    .pack = qni_cuda_pack,
    .unpack = qni_cuda_unpack,
    .layout_name = qni_cuda_layout_name,
    .packed_check = qni_cuda_packed_check,
    .packed_upload = qni_cuda_packed_upload,
    .combine_rows = qni_cuda_combine_rows,
    .quantize_rows = qni_cuda_quantize_rows,
};

#endif

static const struct {
    int32_t device_kind;
    const struct qni_backend *backend;
} backends[] = {
    {QN_CPU, &cpu},
#if QN_BUILD_CUDA
    {QN_CUDA, &cuda},
#endif
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
