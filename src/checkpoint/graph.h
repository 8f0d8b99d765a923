/* SPDX-License-Identifier: Apache-2.0 */
/* Containers that are graphs: ONNX and MNN. There the nodes say which tensors make a module and how
 * it is laid out; the tensors' names tell nothing. The reader of such a file leaves a list of links
 * in it, one for each weight that a node it knows uses, and checkpoint.c makes modules of them. */
#ifndef QNI_CHECKPOINT_GRAPH_H
#define QNI_CHECKPOINT_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

/* What the node does with the weight. */
typedef int32_t qni_link_kind;
enum {
    QNI_LINK_MATRIX = 1,     /* [k, n], or [n, k] where is_rows */
    QNI_LINK_NBITS = 2,      /* MatMulNBits: [n, blocks of k, bytes] */
    QNI_LINK_CONV = 3,       /* [n, ci, taps...] */
    QNI_LINK_TRANSPOSED = 4, /* ConvTranspose: [inputs, n of a group, taps...] */
    QNI_LINK_EMBEDDING = 5   /* [n, k], rows are looked up */
};

enum { QNI_LINK_PARTS = 6 };
enum { /* the parts; the first is there in any case */
       QNI_LINK_CODES,
       QNI_LINK_SCALE,
       QNI_LINK_ZERO,
       QNI_LINK_ORDER, /* g_idx */
       QNI_LINK_X_SCALE,
       QNI_LINK_X_ZERO
};

/* Texts belong to the file. */
struct qni_link {
    const char *importer;             /* NULL: a plain tensor of which the role is known */
    const char *name;                 /* of the module's weight */
    const char *part[QNI_LINK_PARTS]; /* names of tensors, or NULL */
    const char *bias;                 /* name of a tensor, or NULL */
    const char *node;                 /* what uses it: "MatMul '/layers.0/up/MatMul'" */
    qni_link_kind kind;
    bool is_rows, is_dynamic; /* x becomes 8 bits at run time */
    bool has_scale;           /* the operator has one, though no constant is it */
    int32_t bits;             /* of QNI_LINK_NBITS */
    int32_t axis;             /* of scales, in the stored tensor */
    int32_t prepacked;        /* of QNI_LINK_NBITS: the order of another program */
    int32_t conv_groups;
    int64_t n, k, block; /* as the node's attributes say; block 0: scales are not blocked */
    float alpha;         /* multiplies the weight: of Gemm, MNN's quantScale */
    /* MNN: how the buffer is kept (IDSTQuan's type), what stands for the least code, whether alpha
     * has minima, whether dimensions are of 32 bits. */
    int32_t kh, kw, storage, least;
    bool is_asymmetric, is_wide;
};

#endif
