/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the quantizer tell each other. */
#ifndef QNI_CUDA_ROWS_PREPARE_CUH
#define QNI_CUDA_ROWS_PREPARE_CUH

#include "../rows.cuh"

/* Rows of any kind that the job describes: chooses kernel and spans. `job` holds everything but the
 * spans, the team and the width. */
int32_t qni_cuda_rows_run(struct rows_job *job, const struct qni_cuda_launch *launch);

/* The job of a source; where results go is left to the caller. */
struct rows_job qni_cuda_rows_job(const struct qni_cuda_source *source);

/* Rows of a matrix in any order and at any address, through shared memory; width and spans (1) are
 * known. What does not fit goes on to the next. */
int32_t qni_cuda_rows_staged(struct rows_job *job, const struct qni_cuda_launch *launch);

/* Anything: one position a lane, or (images whose columns are neighbours) one pixel a lane. */
int32_t qni_cuda_rows_general(struct rows_job *job, const struct qni_cuda_launch *launch);

static inline bool rows_is_given(const struct qni_cuda_source *s)
{
    return s->dtype == QN_I8 || s->dtype == QN_U8;
}

#endif
