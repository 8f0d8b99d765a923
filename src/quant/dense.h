/* SPDX-License-Identifier: Apache-2.0 */
/* Dense weights or activations as a caller has them: rows of f32, f16 or bf16, possibly strided. */
#ifndef QNI_QUANT_DENSE_H
#define QNI_QUANT_DENSE_H

#include <quern/base.h>

struct qni_dense {
    const uint8_t *data;
    qn_dtype dtype;
    int64_t n, k;
    int64_t row_bytes;
};

/* @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE: not of rank 2; QN_E_DTYPE; QN_E_STRIDE. */
qn_status qni_dense_open(const qn_tensor *tensor, const char *name, struct qni_dense *dense,
                         qn_error *err);

/* One row in f32, exactly. */
void qni_dense_read(const struct qni_dense *dense, int64_t row, float *out);

/*
 * Smallest and largest of n >= 1 values; false if one is infinite or NaN.
 *
 * Floats order like their bits read as integers once the negative ones are flipped, infinities and
 * NaN at both ends. Integer minima vectorise where those of floats, for the sake of NaN, do not.
 */
bool qni_range_find(const float *x, int64_t n, float *lo, float *hi);

/* Where the first infinity or NaN is, or -1. */
int64_t qni_find_bad(const float *x, int64_t n);

#endif
