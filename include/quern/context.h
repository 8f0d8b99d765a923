/* SPDX-License-Identifier: Apache-2.0 */
/* The context: which device, which instructions, whose threads, whose memory. All state hangs from
 * it. */
#ifndef QUERN_CONTEXT_H
#define QUERN_CONTEXT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Instruction-set features. A bit here is a bundle that implies all it needs; masks remove bits.
 * The values are stable: they are written into packed files.
 */
enum {
    QN_ISA_AVX2 = 1 << 0,       /**< AVX2, FMA, F16C: Haswell, Zen. */
    QN_ISA_AVX_VNNI = 1 << 1,   /**< 256-bit VNNI in VEX form: Alder Lake, Zen 5. */
    QN_ISA_AVX512 = 1 << 2,     /**< AVX-512 F, BW, DQ, VL, CD: Skylake-SP. */
    QN_ISA_VNNI512 = 1 << 3,    /**< + AVX-512 VNNI, VBMI: Ice Lake, Zen 4. */
    QN_ISA_BF16_512 = 1 << 4,   /**< + AVX-512 BF16: Cooper Lake, Zen 4. */
    QN_ISA_FP16_512 = 1 << 5,   /**< + AVX-512 FP16: Sapphire Rapids. */
    QN_ISA_AMX_INT8 = 1 << 6,   /**< + AMX tiles, int8 products, permitted by the kernel: Sapphire
                                     Rapids. */
    QN_ISA_AMX_BF16 = 1 << 7,   /**< + AMX bf16 products. */
    QN_ISA_NEON = 1 << 16,      /**< Armv8-A Advanced SIMD. */
    QN_ISA_DOTPROD = 1 << 17,   /**< + sdot, udot. */
    QN_ISA_I8MM = 1 << 18       /**< + smmla, usmmla. */
};
#define QN_ISA_ALL (~(uint64_t)0)
/** Only the portable kernels: the standard every other kernel is compared with. */
#define QN_ISA_PORTABLE ((uint64_t)0)

/** What this machine has (before any mask); asks the CPU and the kernel once per call. Any
 * thread. */
QN_API uint64_t qn_isa_detect(void);
/** "avx2", "amx_int8", ... of a single bit; NULL for a bit without a name. Static text. */
QN_API const char *qn_isa_name(uint64_t bit);
/**
 * Read "avx512", "-amx_int8,-amx_bf16", "portable", "all": names select features and everything
 * below them, names after a minus remove from all. @return QN_OK; QN_E_ARGUMENT: unknown name (err
 * tells which).
 */
QN_API qn_status qn_isa_parse(const char *text, uint64_t *mask, qn_error *err);

/** One item of parallel work: task(arg, i) for an i in [0, n). */
typedef void (*qn_task_fn)(void *arg, int32_t i);
/**
 * The caller's threads: run task(task_arg, i) once for every i in [0, n), in any order, on any
 * threads, one after another or at once; return when all are done. Correct results never depend on
 * the concurrency.
 */
typedef void (*qn_parallel_for_fn)(void *arg, int32_t n, qn_task_fn task, void *task_arg);

/** Memory for contexts, plans and weights (never used by hot calls). alignment is a power of two <=
 * 4096. */
typedef void *(*qn_alloc_fn)(void *arg, size_t bytes, size_t alignment);
typedef void (*qn_free_fn)(void *arg, void *memory, size_t bytes);

/** What contexts use that are given neither: for an alloc of your own that counts or limits, and
 * then takes this. On Linux 4 MiB and more ask for large pages. arg is not looked at.
 * @return NULL: there is no memory, or alignment is no power of two. */
QN_API void *qn_memory_alloc(void *arg, size_t bytes, size_t alignment);
QN_API void qn_memory_free(void *arg, void *memory, size_t bytes);

/** Severity for the log callback: 0 debug, 1 information, 2 warning. Without a callback nothing is
 * written. Calls that have no qn_error argument (runs, direct calls, sizes of scratch) tell it in a
 * sentence why they fail, as a warning, before they return, whether or not the `error` of their
 * arguments gets the sentence too; so it may be called by any thread that uses the context, and
 * must not call quern. */
typedef void (*qn_log_fn)(void *arg, int32_t severity, const char *text);

typedef struct qn_ctx_options {
    size_t size;                     /**< sizeof as the caller was compiled; set by _init(). */
    qn_device device;                /**< Default: the CPU. */
    uint64_t isa_mask;               /**< Features that may be used; default QN_ISA_ALL. 0 is
                                          QN_ISA_PORTABLE: right, and slow. */
    int32_t n_threads;               /**< 0 (default): as many as affinity and cgroup quota allow.
                                          1: no thread is made. */
    qn_parallel_for_fn parallel_for; /**< NULL (default): the context's own pool. */
    void *parallel_arg;
    qn_alloc_fn alloc;               /**< NULL (default): qn_memory_alloc(). */
    qn_free_fn free;                 /**< Goes with alloc: both or none. */
    void *alloc_arg;
    qn_log_fn log;                   /**< NULL (default): silence. */
    void *log_arg;
    size_t arena_bytes;              /**< Scratch kept by the context for calls that pass none;
                                          default 0. */
} qn_ctx_options;

static inline void qn_ctx_options_init(qn_ctx_options *options)
{
    qn_zero_(options, sizeof *options);
    options->size = sizeof *options;
    options->device.kind = QN_CPU;
    options->isa_mask = QN_ISA_ALL;
}
QN_API qn_status qn_ctx_options_init_sized(qn_ctx_options *options, size_t size);

/** fork(): a context of the CPU goes on in the child, at whatever moment the fork came and whatever
 * other threads were doing. Its calls run on the calling thread alone there (the pool's threads
 * stay with the parent; results are the same), its arena is the child's own, and it may be
 * destroyed. Not so what a call of another thread was making at that moment, and contexts of a
 * GPU, whose driver does not survive a fork. */
typedef struct qn_ctx qn_ctx;

/**
 * Make a context. options NULL means all defaults.
 * @return QN_OK; QN_E_ARGUMENT; QN_E_DEVICE: no such device (the CPU always exists); QN_E_MEMORY;
 *         QN_E_VERSION: options uses a field from the future.
 */
QN_API qn_status qn_ctx_create(const qn_ctx_options *options, qn_ctx **ctx, qn_error *err);

/** Stop its threads and free it. NULL is legal. No call may be using it; weights and plans made
 * with it must be gone. */
QN_API void qn_ctx_destroy(qn_ctx *ctx);

/**
 * Grow (never shrink) the context's scratch arena. Not while a call that uses the arena runs.
 * @return QN_OK; QN_E_MEMORY (the old arena stays).
 */
QN_API qn_status qn_ctx_reserve(qn_ctx *ctx, size_t bytes);

/** What the context came to. */
typedef struct qn_ctx_info {
    size_t size;
    qn_device device;
    uint64_t isa;          /**< Detected and not masked. */
    int32_t n_threads;     /**< Work is cut for so many. */
    size_t arena_bytes;
    size_t cache_bytes[3]; /**< Data caches of level 1 to 3 that one core can fill, as the machine
                                reports them; 0 if it does not. */
} qn_ctx_info;

static inline void qn_ctx_info_init(qn_ctx_info *info)
{
    qn_zero_(info, sizeof *info);
    info->size = sizeof *info;
}
QN_API qn_status qn_ctx_info_init_sized(qn_ctx_info *info, size_t size);

/**
 * Run task(arg, i) once for every i in [0, n) on the context's threads (its pool, or the caller's
 * parallel_for), and return when all are done: for what an engine does between products, so that it
 * needs no second pool. Items may run in any order; a pool that is busy with another call runs them
 * on the calling thread. A task must not call the context itself. n <= 0: nothing is run.
 * Nothing is allocated. @return QN_OK; QN_E_ARGUMENT: ctx or task is NULL.
 */
QN_API qn_status qn_parallel_for(const qn_ctx *ctx, int32_t n, qn_task_fn task, void *arg);

/** @return QN_OK; QN_E_ARGUMENT: NULL or size unset. */
QN_API qn_status qn_ctx_query(const qn_ctx *ctx, qn_ctx_info *info);

#ifdef __cplusplus
}
#endif
#endif
