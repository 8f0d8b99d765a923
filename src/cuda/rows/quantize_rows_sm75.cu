/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize_rows() on the device: the quantizer of prepare_sm75.cu with codes where their columns
 * are and facts by strides of their own. A block is a group with a single segment. */
#include "prepare.cuh"

int32_t qni_cuda_quantize_rows_sm75(const struct qni_cuda_quantize_rows *args,
                                    const struct qni_cuda_launch *launch)
{
    const int64_t block = args->block > 0 ? args->block : args->k;
    const int64_t blocks = args->block > 0 ? (args->k + block - 1) / block : 1;
    struct qni_cuda_source s = {};
    s.x = args->x;
    s.dtype = args->dtype;
    s.ldx = args->ldx;
    s.k = args->k;
    s.n_rows = args->m;
    s.parts = 1;
    s.n_groups = s.n_segments = (int32_t)blocks;
    s.group_len = block;
    s.last_len = args->k - (blocks - 1) * block;
    s.group_units = s.segment_units = (int32_t)((block + QNI_CUDA_UNIT - 1) / QNI_CUDA_UNIT);
    const int64_t last_units = (s.last_len + QNI_CUDA_UNIT - 1) / QNI_CUDA_UNIT;
    const int64_t units = blocks == 0 ? 0 : (blocks - 1) * s.group_units + last_units;
    s.units = (int32_t)(units + units % 2);
    s.symmetric = args->offset == NULL;
    s.reads = QNI_CUDA_READS_Q8B;
    struct rows_job j = qni_cuda_rows_job(&s);
    j.s.to.lda = args->ld_codes;
    j.is_natural = 1;
    j.flip = args->is_u8 ? 0x80808080u : 0u;
    j.a = args->codes;
    j.scale = args->scale;
    j.offset = args->offset;
    j.sum = args->sum;
    j.ld_scale = args->ld_scale;
    j.ld_offset = args->ld_offset;
    j.ld_sum = args->ld_sum;
    return qni_cuda_rows_run(&j, launch);
}
