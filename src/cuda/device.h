/* SPDX-License-Identifier: Apache-2.0 */
/* The device as the plain C of this folder sees it: memory, copies, and the launches of packing.
 * Nothing here is for hot calls: every function waits for what it asks of the device. Each failure
 * gives a status and a sentence and leaves no sticky error behind. */
#ifndef QNI_CUDA_DEVICE_H
#define QNI_CUDA_DEVICE_H

#include "../base/context.h"
#include "kernel.h"

/* Memory of the context's device, 256-byte aligned; bytes > 0. QN_E_MEMORY; QN_E_DEVICE. */
qn_status qni_cuda_alloc(const qn_ctx *ctx, size_t bytes, void **memory, qn_error *err);
/* NULL is legal. Needs no context: packed weights may outlive theirs. */
void qni_cuda_free(int32_t device, void *memory);

/* Host to device and back; done when the call returns. bytes may be 0. QN_E_DEVICE. */
qn_status qni_cuda_upload(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                          qn_error *err);
qn_status qni_cuda_download(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                            qn_error *err);

/* How a launch outside of a caller's stream goes: _begin makes the context's device current and
 * tells stream (one that the default stream does not wait for) and machine; _end takes what the
 * launcher returned and waits for the work. QN_E_DEVICE. */
qn_status qni_cuda_begin(const qn_ctx *ctx, struct qni_cuda_launch *launch, qn_error *err);
qn_status qni_cuda_end(const qn_ctx *ctx, const struct qni_cuda_launch *launch, int32_t launched,
                       qn_error *err);

#endif
