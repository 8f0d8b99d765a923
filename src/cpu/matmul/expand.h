/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of compact weights (quant/compact.h) made into what a kernel reads, shortly before it
 * does: codes in the wide layout, scales and offsets as f32, sums of code values. What is already
 * there in the form that kernels read is not copied. kernel.h has the functions that do it, one
 * struct of them for each instruction set, all made from one body (simd/expand_body.h).
 *
 *     planes of bits  --codes--> q4n16, t4n16, q8n16  (into a cache, where the kernel finds it)
 *                     --codes--> sums of code values
 *     scales of two levels, of one byte; minima; zero points  --scales--> scale, offset */
#ifndef QNI_CPU_MATMUL_EXPAND_H
#define QNI_CPU_MATMUL_EXPAND_H

#include "../backend.h"
#include "../layouts.h"

/* The instance for an instruction set. */
const struct qni_expand *qni_expand_for(uint64_t isa);

/* What of the panels of a product is made, and how much memory that takes. */
struct qni_expansion {
    const qn_packed *w;
    struct qni_compact compact;
    struct qni_cut cut;
    bool makes_codes, makes_scales, makes_offsets, makes_sums;
    bool is_read; /* the kernel reads them as they are: nothing is made */
    size_t codes_bytes, scale_bytes, sums_bytes; /* of a panel */
    int64_t panels;                              /* at a time: INT64_MAX if nothing is made */
};

/* What a kernel needs made of the weights w, which may be compact or wide. */
struct qni_expansion qni_expansion_of(const struct qni_op *op, const qn_packed *w,
                                      const struct qni_matmul_kernel *kernel);
/* What a kernel that reads them is told of them. */
struct qni_compact_panels qni_compact_panels_of(const struct qni_expansion *e,
                                                const int8_t *table8);
/* Memory of its panels, a multiple of 64: the same for all weights of a product. */
size_t qni_expansion_bytes(const struct qni_expansion *e);
/* Describe panels [panel, panel + t->n_panels) of compact weights, made in memory where need be.
 * The tile describes what all panels share. */
void qni_expand_panels(const struct qni_expand *functions, const struct qni_expansion *e,
                       int64_t panel, uint8_t *memory, struct qni_matmul_tile *t);

#define QNI_EXPAND(isa, needs) extern const struct qni_expand qni_expand_##isa;
#include "expand.inc"
#undef QNI_EXPAND

#endif
