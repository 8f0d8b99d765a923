/* SPDX-License-Identifier: Apache-2.0 */
/* The exported _init_sized() functions: defaults for callers that cannot use the inline ones of the
 * headers (base.h says how, docs/adr/0010 why). Each hands out what the inline one makes, as far as
 * the caller's struct reaches, so defaults stand in one place. */
#include <quern/cuda.h>
#include <quern/quern.h>

#include "../base/sized.h"

#define QNI_INIT_SIZED(type)                                                                       \
    qn_status type##_init_sized(type *given, size_t size)                                          \
    {                                                                                              \
        type own;                                                                                  \
        type##_init(&own);                                                                         \
        return qni_sized_init(given, size, &own, sizeof own);                                      \
    }

QNI_INIT_SIZED(qn_ctx_options)
QNI_INIT_SIZED(qn_ctx_info)
QNI_INIT_SIZED(qn_weight_parts)
QNI_INIT_SIZED(qn_quantize_options)
QNI_INIT_SIZED(qn_pack_options)
QNI_INIT_SIZED(qn_packed_info)
QNI_INIT_SIZED(qn_array)
QNI_INIT_SIZED(qn_file_options)
QNI_INIT_SIZED(qn_checkpoint_options)
QNI_INIT_SIZED(qn_module)
QNI_INIT_SIZED(qn_load_facts)
QNI_INIT_SIZED(qn_export_options)
QNI_INIT_SIZED(qn_export_info)
QNI_INIT_SIZED(qn_weight_difference)
QNI_INIT_SIZED(qn_plan_info)
QNI_INIT_SIZED(qn_matmul_args)
QNI_INIT_SIZED(qn_grouped_args)
QNI_INIT_SIZED(qn_conv_args)
QNI_INIT_SIZED(qn_epilogue_more)
QNI_INIT_SIZED(qn_prepare_args)
QNI_INIT_SIZED(qn_combine_rows_args)
QNI_INIT_SIZED(qn_quantize_rows_args)
QNI_INIT_SIZED(qn_finish_args)
QNI_INIT_SIZED(qn_comm)
QNI_INIT_SIZED(qn_parallel_args)
QNI_INIT_SIZED(qn_parallel_conv_args)
QNI_INIT_SIZED(qn_parallel_experts_args)
QNI_INIT_SIZED(qn_parallel_sum_args)
QNI_INIT_SIZED(qn_cuda_info)
QNI_INIT_SIZED(qn_cpu_cost)
QNI_INIT_SIZED(qn_cuda_cost)
QNI_INIT_SIZED(qn_cuda_prediction)

/* An epilogue has no size field: it lies inside other structs and never grows. */
qn_status qn_epilogue_init_sized(qn_epilogue *epilogue, size_t size)
{
    if (epilogue == NULL || size != sizeof *epilogue)
        return QN_E_ARGUMENT;
    qn_epilogue_init(epilogue);
    return QN_OK;
}
