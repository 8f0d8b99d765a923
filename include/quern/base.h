/* SPDX-License-Identifier: Apache-2.0 */
/* The words every other header uses: version, status, element types, devices and the tensor.
 *
 * Nothing in quern aborts, exits, prints, reads the environment or starts a thread behind the
 * caller's back. */
#ifndef QUERN_BASE_H
#define QUERN_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QN_VERSION_MAJOR 0
#define QN_VERSION_MINOR 1
#define QN_VERSION_PATCH 0

#if defined(_WIN32)
#define QN_API
#elif defined(__GNUC__)
#define QN_API __attribute__((visibility("default")))
#else
#define QN_API
#endif

/** What a call came to. Zero is success, every failure is negative; status.inc is the list. */
typedef int32_t qn_status;
enum {
#define QN_STATUS(name, value, sentence) QN_##name = (value),
#include "status.inc"
#undef QN_STATUS
    QN_STATUS_END_ = -1000
};

/** "E_SHAPE", and the sentence of status.inc. Static text, never NULL, also for unknown values. Any
 * thread. */
QN_API const char *qn_status_name(qn_status status);
QN_API const char *qn_status_text(qn_status status);

/** "0.1.0", and the commit the library was built from ("unknown" outside a checkout). Static
 * text. */
QN_API const char *qn_version(void);
QN_API const char *qn_commit(void);

/**
 * The wordy part of a failure. Owned by the caller, who may pass NULL wherever one is asked for.
 * Filled only when a call fails; a success leaves it alone.
 */
typedef struct qn_error {
    qn_status status;
    int64_t offset;    /**< Byte of the file the failure is about, or -1. */
    char text[496];    /**< One sentence naming the file, tensor or argument; always terminated. */
} qn_error;

/** Element types of tensors. The values cross the ABI and are written to files. */
typedef int32_t qn_dtype;
enum {
    QN_DTYPE_NONE = 0,
    QN_F32 = 1,
    QN_F16 = 2,
    QN_BF16 = 3,
    QN_I8 = 4,
    QN_U8 = 5,
    QN_I32 = 6,
    QN_I64 = 7,
    QN_F64 = 8,
    QN_E4M3 = 9,  /**< FP8 E4M3FN: largest 448, no infinity, 0x7f and 0xff are NaN. */
    QN_E8M0 = 10, /**< Power-of-two scale 2^(e-127); 255 is NaN. */
    QN_BOOL = 11,
    QN_I16 = 12,
    QN_U16 = 13,
    QN_U32 = 14,
    QN_U64 = 15,
    QN_E5M2 = 16
};

/** Bytes of one element; 0 for an unknown type. */
QN_API size_t qn_dtype_bytes(qn_dtype dtype);
/** "f32", "bf16", ...; "?" for an unknown type. Static text. */
QN_API const char *qn_dtype_name(qn_dtype dtype);

/** Where memory lives and work runs. The kinds are DLPack's values. */
typedef struct qn_device {
    int32_t kind;  /**< QN_CPU or QN_CUDA. */
    int32_t index; /**< Which one; 0 for the CPU. */
} qn_device;
enum { QN_CPU = 1, QN_CUDA = 2 };

enum { QN_MAX_RANK = 6 };

/**
 * A borrowed view of strided memory. Passed by value or const pointer; the library never frees
 * data. This layout is frozen: fields are neither moved nor removed.
 */
typedef struct qn_tensor {
    void *data;                  /**< First element; may be NULL when the tensor has no element. */
    qn_dtype dtype;
    int32_t rank;                /**< 0 (no tensor or a scalar) to QN_MAX_RANK. */
    qn_device device;
    int64_t shape[QN_MAX_RANK];
    int64_t stride[QN_MAX_RANK]; /**< In elements, not negative; the last is 1 unless an operation
                                      says otherwise. */
} qn_tensor;

/** Called once, on any thread, when the last user of borrowed memory is done with it. */
typedef void (*qn_release_fn)(void *arg);

/* Structs with a size field, and qn_epilogue, are never filled by hand from nothing: each has an
 * _init() function that sets its defaults and, in C, the size that this header gives it. A program
 * in another language calls the exported one of the same name with _sized at its end and hands it
 * the size of its own declaration: qn_matmul_args_init_sized(args, sizeof args). It fills what both
 * sides know, zeroes the rest and writes that size; it never writes beyond. The fields' order,
 * types and defaults are the contract; sizes grow. Any thread.
 * Each _init_sized() @return QN_OK; QN_E_ARGUMENT: the struct is NULL, or the size is that of no
 * version (a multiple of a pointer's, two at least; qn_epilogue: exactly its own, it lies inside
 * others and never grows). */

/* For the _init() functions: every struct with a size field is zeroed by the code that knows its
 * size. */
static inline void qn_zero_(void *memory, size_t bytes)
{
    unsigned char *at = (unsigned char *)memory;
    for (size_t i = 0; i < bytes; i++)
        at[i] = 0;
}

/** A contiguous (row-major) tensor of the given shape on the CPU. Cannot fail; shape is copied. */
QN_API qn_tensor qn_tensor_make(void *data, qn_dtype dtype, int32_t rank, const int64_t *shape);

/** Shorthands for ranks 1 and 2. */
QN_API qn_tensor qn_tensor_1d(void *data, qn_dtype dtype, int64_t n);
QN_API qn_tensor qn_tensor_2d(void *data, qn_dtype dtype, int64_t rows, int64_t columns);
/** A tensor that stands for "none" in an argument struct. */
QN_API qn_tensor qn_tensor_none(void);

/**
 * Number of elements, and bytes from the first to one past the last element.
 * @return QN_OK; QN_E_ARGUMENT: rank or a dimension out of range; QN_E_DTYPE; QN_E_STRIDE: the
 *         extent overflows.
 */
QN_API qn_status qn_tensor_extent(const qn_tensor *tensor, int64_t *elements, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
