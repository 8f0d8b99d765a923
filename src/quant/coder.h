/* SPDX-License-Identifier: Apache-2.0 */
/* Between the weights of a group and its codes: fitting scale and shift to a range (round to
 * nearest), encoding, and the error of a choice. Works on contiguous f32 values; who brings them in
 * that order is not its business. Nothing here allocates. */
#ifndef QNI_QUANT_CODER_H
#define QNI_QUANT_CODER_H

#include <quern/weights.h>

/* What a group's codes are decoded with; offset: of signed codes, or the minimum. In super-blocks
 * also what scale and minimum are products of. */
struct qni_params {
    float scale, offset;
    int32_t zero;
    float super_scale, super_min;
    int16_t sub_scale, sub_min;
};

struct qni_coder {
    qn_format format;
    qn_range range;
    float least, most; /* values of codes */
    float peak;     /* codebooks: the value of largest magnitude, positive if both ends have it */
    bool is_signed; /* the type of scales has a sign */
    float unit;     /* E4M3 scales: their power of two, chosen per tensor */
    int32_t bias;   /* integers: stored code = value + bias; 0 with minima, for which codes count
                       from 0 and `value` is the code */
    const float *table; /* by code; NULL for integers */
    int32_t n_values;   /* sorted codebook of up to 16 different values; 0 for integers and E4M3 */
    float middle[15];   /* a value above middle[i] is nearer to value i + 1 */
    uint8_t code[16];   /* of the i-th value */
    uint8_t zero_code;  /* whose value is nearest to 0 */
};

/* Is a float added to scale x value? */
static inline bool qni_coder_has_offset(const struct qni_coder *c)
{
    return c->format.shift == QN_SHIFT_OFFSET || c->format.shift == QN_SHIFT_MIN;
}

/* @return QN_OK; QN_E_FORMAT: also for QN_CODE_TABLE, which nothing can be quantized to, and for
 * floats. */
qn_status qni_coder_init(struct qni_coder *c, const qn_format *format, qn_range range,
                         qn_error *err);

/* The largest magnitude of the tensor, for formats that need it before any scale (E4M3 scales). */
void qni_coder_set_peak(struct qni_coder *c, float amax);

/* Round to nearest: parameters for values in [lo, hi]. Formats without super-blocks. */
struct qni_params qni_fit_range(const struct qni_coder *c, float lo, float hi);

/* The scale as the format can store it; at least what the rounding of its type makes of it. */
float qni_round_scale(const struct qni_coder *c, float scale);

/*
 * Parameters of a unit: of one group, or of a super-block's groups of `group` values (the last may
 * be short). weights (by value) or NULL. False: a value, or a scale that results, is not finite.
 */
bool qni_fit_rtn(const struct qni_coder *c, const float *x, int64_t n, int64_t group,
                 struct qni_params *params);
bool qni_fit_search(const struct qni_coder *c, const float *x, const float *weights, int64_t n,
                    int64_t group, struct qni_params *params);

/* Super-blocks: integers of a common scale (and offset) for the groups' wanted ones, in place. */
void qni_fit_super(const struct qni_coder *c, int64_t n_groups, struct qni_params *params);

/* Scale and offset of a group from the integers and the common numbers that it has. */
void qni_super_products(const struct qni_coder *c, struct qni_params *params);

void qni_encode(const struct qni_coder *c, const struct qni_params *p, const float *x, int64_t n,
                uint8_t *codes);
/* The value that a code stands for, as qn_weight_dequantize() gives it. */
float qni_decode(const struct qni_coder *c, const struct qni_params *p, uint8_t code);
/* Sum of weights[i] * (x[i] - decoded)^2 of the best codes for these parameters. */
double qni_params_error(const struct qni_coder *c, const struct qni_params *p, const float *x,
                        const float *weights, int64_t n);

#endif
