/* SPDX-License-Identifier: Apache-2.0 */
/* The compiler's dialect, in one place: the C "template" idiom, unrolling, early return. */
#ifndef QNI_BASE_COMPILER_H
#define QNI_BASE_COMPILER_H

/* A function taking constant integer arguments, specialised at every call. The default way to
 * specialise. */
#define QNI_TEMPLATE static inline __attribute__((always_inline))

/* Unroll the next loop completely. Each compiler obeys its own spelling only. */
#if defined(__clang__)
#define QNI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define QNI_UNROLL _Pragma("GCC unroll 32")
#else
#define QNI_UNROLL
#endif

#define QNI_LIKELY(x) __builtin_expect(!!(x), 1)
#define QNI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define QNI_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Return a failed status to the caller. */
#define QNI_TRY(call)                                                                              \
    do {                                                                                           \
        const qn_status qni_try_status_ = (call);                                                  \
        if (qni_try_status_ != QN_OK)                                                              \
            return qni_try_status_;                                                                \
    } while (0)

#endif
