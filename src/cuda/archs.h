/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs the kernels that were built can run on. Machine code for sm_XY runs on sm_XZ, Z >= Y;
 * that of an architecture with a letter (90a) on that one alone; PTX on its own architecture and
 * every later one, through the driver's compiler. */
#ifndef QNI_CUDA_ARCHS_H
#define QNI_CUDA_ARCHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QNI_CUDA_MAX_ARCHS = 16 };

/* Ten times the number, + 1 where there is a letter: 800, 901. */
struct qni_cuda_archs {
    int32_t n;
    int32_t code[QNI_CUDA_MAX_ARCHS];
    int32_t ptx; /* 90; 0: none */
};

extern const struct qni_cuda_archs qni_cuda_archs_built;

bool qni_cuda_archs_serve(const struct qni_cuda_archs *archs, int32_t sm);
/* "sm_80, sm_90a and GPUs after sm_90"; cut at its end if it is too long. */
void qni_cuda_archs_text(const struct qni_cuda_archs *archs, char *text, size_t bytes);

#endif
