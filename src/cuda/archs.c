/* SPDX-License-Identifier: Apache-2.0 */
/* The architectures that cmake/cuda.cmake compiled kernels for: archs.h. */
#include "archs.h"

#include <stdio.h>

#ifndef QN_CUDA_CODE /* no kernel was compiled */
#define QN_CUDA_CODE   0
#define QN_CUDA_PTX    0
#define QN_CUDA_N_CODE 0
#endif

const struct qni_cuda_archs qni_cuda_archs_built = {QN_CUDA_N_CODE, {QN_CUDA_CODE}, QN_CUDA_PTX};

bool qni_cuda_archs_serve(const struct qni_cuda_archs *archs, int32_t sm)
{
    for (int32_t i = 0; i < archs->n; i++) {
        const int32_t number = archs->code[i] / 10;
        const bool is_near = number / 10 == sm / 10 && number <= sm;
        if (archs->code[i] % 10 == 0 ? is_near : number == sm)
            return true;
    }
    return archs->ptx != 0 && sm >= archs->ptx;
}

void qni_cuda_archs_text(const struct qni_cuda_archs *archs, char *text, size_t bytes)
{
    size_t at = 0;
    snprintf(text, bytes, "no GPU");
    for (int32_t i = 0; i < archs->n && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%ssm_%d%s", i == 0 ? "" : ", ",
                               archs->code[i] / 10, archs->code[i] % 10 != 0 ? "a" : "");
    if (archs->ptx != 0 && at < bytes)
        snprintf(text + at, bytes - at, " and GPUs after sm_%d", archs->ptx);
}
