/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that were built in. Everything in src/api reaches a backend through this table;
 * adding one adds a row to backend.c and a member to the union, and touches no operation. */
#ifndef QNI_API_BACKEND_H
#define QNI_API_BACKEND_H

#include "../base/context.h"
#include <quern/cuda.h>

#include "../cpu/backend.h"
#include "../cuda/backend.h"
#include "../quant/canonical.h"
#include "../quant/op.h"
#include "../quant/pack.h"
#include "../quant/packed.h"

/* What a backend chose for an operation. Plain data that a plan holds by value. */
union qni_choice {
    struct qni_cpu_choice cpu;
    struct qni_cuda_choice cuda;
};

/* What a plan tells about a choice, whatever the device. Texts are static. */
struct qni_choice_facts {
    const char *kernel;  /* of the largest m */
    uint64_t needs;      /* QN_ISA_ bits of that kernel; 0 on another device than the CPU */
    const char *machine; /* what it needs in words, where that is not in bits; else NULL */
    const char *note;    /* more about how it is done; NULL */
    int32_t n_threads;
    int32_t is_fallback;
    const char *stand_in;      /* runs where data rule `kernel` out; NULL: they cannot */
    const char *stand_in_when; /* which data, in words; only with stand_in */
    size_t scratch_bytes, shared_bytes, thread_bytes;
    int64_t block_m, block_n; /* rows and outputs of one piece of work */
    int32_t n_kernels;        /* rows in use, by rising m */
    const char *kernels[QNI_MAX_CHOICES];
    int64_t m_from[QNI_MAX_CHOICES];
    double predicted_us, roofline_us; /* 0: not known */
    double cost_times;                /* of the CPU's model, as set on the context; 0: not set */
    struct qni_cuda_terms terms;      /* where predicted_us comes from */
};

/* What only a device of its own has: memory, streams, time. Arguments are checked. */
struct qni_device_calls {
    qn_status (*count)(int32_t *count, qn_error *err);
    qn_status (*query)(int32_t index, qn_cuda_info *info, qn_error *err);
    qn_status (*set_stream)(qn_ctx *ctx, struct CUstream_st *stream);
    qn_status (*set_pdl)(qn_ctx *ctx, int32_t pdl);
    qn_status (*alloc)(const qn_ctx *ctx, size_t bytes, void **memory, qn_error *err);
    qn_status (*free)(int32_t device, void *memory);
    qn_status (*upload)(const qn_ctx *ctx, void *to, const void *from, size_t bytes, qn_error *err);
    qn_status (*download)(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                          qn_error *err);
    qn_status (*wait)(const qn_ctx *ctx, qn_error *err);
    qn_status (*measure)(qn_ctx *ctx, qn_cuda_call_fn call, void *arg, int32_t n_calls,
                         int32_t replays, double *us, qn_error *err);
    qn_status (*get_cost)(const qn_ctx *ctx, int32_t i, qn_cuda_cost *cost, qn_error *err);
    qn_status (*set_cost)(qn_ctx *ctx, const qn_cuda_cost *cost, qn_error *err);
    /* Is this memory of the context's device? name: for the sentence. */
    qn_status (*check_pointer)(const qn_ctx *ctx, const void *memory, const char *name,
                               qn_error *err);
};

struct qni_backend {
    const char *name;
    /* Can a context stand on this device? Fills the rest of ctx that only the backend knows;
     * detach (NULL: nothing to do) frees that. */
    qn_status (*attach)(qn_ctx *ctx, qn_error *err);
    void (*detach)(qn_ctx *ctx);
    /* NULL: the host itself. Memory of tensors, scratch and arena comes from here. */
    const struct qni_device_calls *device;
    qn_status (*select)(const qn_ctx *ctx, const struct qni_op *op, union qni_choice *choice,
                        qni_refusal_fn tell, void *arg);
    size_t (*scratch_bytes)(const union qni_choice *choice);
    void (*facts)(const union qni_choice *choice, struct qni_choice_facts *facts);
    qn_status (*run)(const qn_ctx *ctx, const struct qni_op *op, const union qni_choice *choice,
                     void *scratch, qn_error *err);
    qn_status (*pack_bytes)(const qn_ctx *ctx, const struct qn_weight *w,
                            const qn_pack_options *options, size_t *bytes, qn_error *err);
    qn_status (*pack)(const qn_ctx *ctx, const struct qn_weight *w, const qn_pack_options *options,
                      struct qn_packed **packed, qn_error *err);
    /* Into the caller's memory; NULL: not possible. */
    qn_status (*pack_into)(const qn_ctx *ctx, const struct qn_weight *w,
                           const qn_pack_options *options, void *buffer, size_t buffer_bytes,
                           struct qn_packed **packed, qn_error *err);
    /* Of a weight that comes block by block; NULL: not possible. */
    qn_status (*pack_source)(const qn_ctx *ctx, struct qni_weight_source *source,
                             const qn_pack_options *options, struct qn_packed **packed,
                             qn_error *err);
    qn_status (*unpack)(const qn_ctx *ctx, const struct qn_packed *packed,
                        struct qn_weight **weight, qn_error *err);
    const char *(*layout_name)(int32_t i);
    /* May weights from a file, whose head is consistent, be run? */
    qn_status (*packed_check)(const struct qn_packed *packed, qn_error *err);
    /* A copy of such weights on the device; NULL: they are run where they lie. */
    qn_status (*packed_upload)(const qn_ctx *ctx, const struct qn_packed *host,
                               struct qn_packed **packed, qn_error *err);
    /* NULL: not possible. */
    qn_status (*combine_rows)(const qn_ctx *ctx, const qn_combine_rows_args *args, qn_error *err);
    /* Rows of x quantized once for several products, and may op read such? NULL: not possible. */
    size_t (*prepare_bytes)(const qn_ctx *ctx, const struct qni_op *op);
    void (*prepare)(const qn_ctx *ctx, const struct qni_op *op, void *memory);
    qn_status (*prepared_check)(const struct qni_op *op, size_t *bytes, qn_error *err);
    qn_status (*quantize_rows)(const qn_ctx *ctx, const qn_quantize_rows_args *args, qn_error *err);
    /* The epilogue of op for the values x; op has no weights. NULL: this device has none. */
    qn_status (*finish)(const qn_ctx *ctx, const struct qni_op *op, qn_error *err);
};

/* What the caller wants of packing, checked; options may be NULL (weight.c). */
qn_status qni_read_pack_options(const qn_pack_options *options, qn_pack_options *own,
                                qn_error *err);

/* NULL: no such kind of device was built in. */
const struct qni_backend *qni_backend_of(int32_t device_kind);
/* The i-th that was built in; NULL past the end. */
const struct qni_backend *qni_backend_at(int32_t i);

#endif
