/* SPDX-License-Identifier: Apache-2.0 */
/* The compiler's dialect, in one place: the C "template" idiom, unrolling, early return. */
#ifndef QNI_BASE_COMPILER_H
#define QNI_BASE_COMPILER_H

/* A function taking constant integer arguments, specialised at every call. The default way to
 * specialise. QNI_INLINE: a small function of a header; nvcc makes both for the GPU, too. */
#if defined(__CUDACC__)
#define QNI_TEMPLATE static __host__ __device__ __forceinline__
#define QNI_INLINE   static inline __host__ __device__
#else
#define QNI_TEMPLATE static inline __attribute__((always_inline))
#define QNI_INLINE   static inline
#endif

/* Sanitized builds keep loops, and templates of many instances: their checks make unrolled kernels
 * take minutes to compile and find nothing more. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QNI_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QNI_SANITIZED 1
#endif

#define QNI_NOINLINE __attribute__((noinline))
/* Runs once where others run often: better small than fast. */
#define QNI_SMALL __attribute__((cold, noinline))

/* A template whose many instances are the same but for steps left out: one function that decides as
 * it runs would be as right. */
#if defined(QNI_SANITIZED)
#define QNI_VARIANTS QNI_NOINLINE static
#else
#define QNI_VARIANTS QNI_TEMPLATE
#endif

/* Unroll the next loop completely. Each compiler obeys its own spelling only. */
#if defined(QNI_SANITIZED)
#define QNI_UNROLL
#elif defined(__clang__)
#define QNI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define QNI_UNROLL _Pragma("GCC unroll 32")
#else
#define QNI_UNROLL
#endif

/* A type of `bytes` bytes that arithmetic works on element by element: typedef float four
 * QNI_VECTOR(16). */
#define QNI_VECTOR(bytes) __attribute__((vector_size(bytes)))
/* Elements of two vectors, those of the second counted on. */
#define QNI_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* QNI_KEEP holds a loaded vector in a register. Compilers would rather load it again in each
 * instruction that uses it, at the price of as many loads as there are uses. */
#if defined(__x86_64__)
#define QNI_KEEP(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define QNI_KEEP(v) __asm__("" : "+w"(v))
#else
#define QNI_KEEP(v) ((void)0)
#endif

/* What was in this register stays in it until here, so that no result takes its place and is moved
 * back later; and instructions before and after stay so. */
#if defined(__x86_64__)
#define QNI_KEPT(v) __asm__ volatile("" ::"v"(v))
#else
#define QNI_KEPT(v) ((void)0)
#endif

/* QNI_IN_MEMORY holds a vector in memory. Compilers would rather find a register for it, and have
 * none for others then. */
#if defined(__GNUC__)
#define QNI_IN_MEMORY(v) __asm__("" : "+m"(v))
#else
#define QNI_IN_MEMORY(v) ((void)0)
#endif

/* QNI_KEEP_WORD is QNI_KEEP for a whole number that grows from turn to turn. Compilers would rather
 * hold all of its later values, in more registers than there are. */
#if defined(__GNUC__)
#define QNI_KEEP_WORD(v) __asm__("" : "+r"(v))
#else
#define QNI_KEEP_WORD(v) ((void)0)
#endif

/* The line is going to be written. */
#define QNI_WILL_WRITE(at) __builtin_prefetch(at, 1)
/* The line is going to be read. */
#define QNI_WILL_READ(at) __builtin_prefetch(at)

/* Tells the core that this is a waiting loop. */
#if defined(__x86_64__) || defined(__i386__)
#define QNI_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define QNI_PAUSE() __asm__ volatile("yield")
#else
#define QNI_PAUSE() ((void)0)
#endif

#define QNI_LIKELY(x)           __builtin_expect(!!(x), 1)
#define QNI_UNLIKELY(x)         __builtin_expect(!!(x), 0)
#define QNI_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Return a failed status to the caller. */
#define QNI_TRY(call)                                                                              \
    do {                                                                                           \
        const qn_status qni_try_status_ = (call);                                                  \
        if (qni_try_status_ != QN_OK)                                                              \
            return qni_try_status_;                                                                \
    } while (0)

#endif
