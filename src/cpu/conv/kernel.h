/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the kernels of convolutions (kernels.inc): what a row is. What its function takes
 * and does is the contract of its algorithm. */
#ifndef QNI_CPU_CONV_KERNEL_H
#define QNI_CPU_CONV_KERNEL_H

#include <quern/ops.h>

#include "depthwise_kernel.h"
#include "direct_kernel.h"
#include "groups_kernel.h"

/* A row of kernels.inc. It begins like a row of the matmul list, because a plan names either: a
 * convolution that no row here serves is a product of its patches. */
struct qni_conv_kernel {
    struct qni_matmul_kernel row; /* fn is NULL */
    qn_strategy strategy;         /* how its activations are quantized */
    int32_t algorithm;            /* QNI_CONV_TILES ... */
    union {
        qni_direct_kernel_fn *direct;
        qni_depthwise_kernel_fn *ring;
        qni_depthwise_image_fn *image;
        qni_groups_kernel_fn *groups;
    } fn;
    union {
        const struct qni_direct_helpers *direct;
        const struct qni_groups_helpers *groups;
        const void *image, *ring; /* have none */
    } helpers;
};
/* Row i; NULL past the end. */
const struct qni_conv_kernel *qni_conv_kernel_at(int32_t i);

/* Algorithms, the contracts of their functions and the members of the unions. */
enum {
    /* direct_kernel.h */
    QNI_CONV_TILES = 0,       /* steps of 64 positions, for tile instructions */
    QNI_CONV_GATHERS = 1,     /* bytes of x wherever they lie */
    QNI_CONV_WINOGRAD2X2 = 2, /* 3 x 3 taps of stride 1, in squares */
    QNI_CONV_WINOGRAD4X4 = 3,
    QNI_CONV_TOOM = 4, /* gathers long taps, four outputs at a time */
    /* groups_kernel.h */
    QNI_CONV_GROUPS = 5, /* floats */
    QNI_CONV_WORDS = 6,  /* words of 16 bits */
    /* depthwise_kernel.h */
    QNI_CONV_CODES = 7, /* a whole image of codes: 3 x 3 taps, stride 1 or 2 along a row, of which
                         * at most two columns lie outside at either end and
                         * QNI_DEPTHWISE_CODES_COLUMNS outputs are made */
    QNI_CONV_IMAGE = 8, /* a whole image of floats, where it lies */
    QNI_CONV_RING = 9   /* rows of floats in a ring: any taps and strides */
};
typedef qni_direct_kernel_fn qni_conv_fn_TILES, qni_conv_fn_GATHERS, qni_conv_fn_WINOGRAD2X2,
    qni_conv_fn_WINOGRAD4X4, qni_conv_fn_TOOM;
typedef qni_groups_kernel_fn qni_conv_fn_GROUPS, qni_conv_fn_WORDS;
typedef qni_depthwise_image_fn qni_conv_fn_CODES, qni_conv_fn_IMAGE;
typedef qni_depthwise_kernel_fn qni_conv_fn_RING;
#define QNI_CONV_TAKES_TILES       direct
#define QNI_CONV_TAKES_GATHERS     direct
#define QNI_CONV_TAKES_WINOGRAD2X2 direct
#define QNI_CONV_TAKES_WINOGRAD4X4 direct
#define QNI_CONV_TAKES_TOOM        direct
#define QNI_CONV_TAKES_GROUPS      groups
#define QNI_CONV_TAKES_WORDS       groups
#define QNI_CONV_TAKES_CODES       image
#define QNI_CONV_TAKES_IMAGE       image
#define QNI_CONV_TAKES_RING        ring

static inline bool qni_conv_is_direct(int32_t algorithm)
{
    return algorithm <= QNI_CONV_TOOM;
}
static inline bool qni_conv_is_depthwise(int32_t algorithm)
{
    return algorithm >= QNI_CONV_CODES;
}
static inline bool qni_conv_in_squares(int32_t algorithm)
{
    return algorithm == QNI_CONV_WINOGRAD2X2 || algorithm == QNI_CONV_WINOGRAD4X4;
}

/* What follows from a row's strategy: what it reads, and how exact it is. */
#define QNI_CONV_READS_FLOAT          QNI_READS_F32
#define QNI_CONV_READS_INT8_STATIC    QNI_READS_Q8
#define QNI_CONV_READS_INT8_ROW       QNI_READS_Q8
#define QNI_CONV_READS_INT8_BLOCK     QNI_READS_Q8B
#define QNI_CONV_NUMERICS_FLOAT       QNI_NUMERICS_BOUND
#define QNI_CONV_NUMERICS_INT8_STATIC QNI_NUMERICS_EXACT
#define QNI_CONV_NUMERICS_INT8_ROW    QNI_NUMERICS_EXACT
#define QNI_CONV_NUMERICS_INT8_BLOCK  QNI_NUMERICS_EXACT

#define QNI_CONV_KERNEL(fn, needs, layout, strategy, algorithm, m_min, mr, helpers)                \
    qni_conv_fn_##algorithm fn;
#include "kernels.inc"
#undef QNI_CONV_KERNEL

#endif
