/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the context. Plain facts: everything below src/api reads them and changes nothing. */
#ifndef QNI_BASE_CONTEXT_H
#define QNI_BASE_CONTEXT_H

#include <quern/context.h>

#include "alloc.h"
#include "threads.h"

struct qni_cuda;

struct qn_ctx {
    struct qni_allocator allocator;
    struct qni_threads threads;
    qn_device device;
    uint64_t isa;            /* detected and not masked */
    size_t cache_bytes[3];
    int32_t bf16_is_fast;    /* of src/cpu/cpuid.h */
    qn_log_fn log;
    void *log_arg;
    void *arena;             /* scratch of calls that pass none; on the context's device */
    size_t arena_bytes;
    struct qni_cuda *cuda;   /* src/cuda/device.h; NULL on the CPU */
    float *cost_times;       /* of the CPU's cost model (cpu/matmul/cost.h); NULL: all are 1 */
    size_t cost_bytes;
};

#endif
