/* SPDX-License-Identifier: Apache-2.0 */
/* GPTQ as its authors wrote it: the recursion over rows of the upper factor of the inverse, in
 * double, for symmetric integers. A group's scale comes from its columns as earlier errors have
 * moved them, or from the original weights. */
#ifndef TEST_UNIT_TEXTBOOK_GPTQ_H
#define TEST_UNIT_TEXTBOOK_GPTQ_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { TEXTBOOK_K = 192 }; /* at most */

struct textbook {
    int64_t k, group;
    int32_t bits;
    bool from_original;
};

/* inverse = h^-1, by Gauss and Jordan; h is used up. */
static inline void textbook_invert(double *h, int64_t k, double *inverse)
{
    memset(inverse, 0, (size_t)(k * k) * sizeof *inverse);
    for (int64_t i = 0; i < k; i++)
        inverse[i * k + i] = 1.0;
    for (int64_t p = 0; p < k; p++) {
        const double d = h[p * k + p];
        for (int64_t j = 0; j < k; j++) {
            h[p * k + j] /= d;
            inverse[p * k + j] /= d;
        }
        for (int64_t i = 0; i < k; i++) {
            const double f = h[i * k + p];
            for (int64_t j = 0; j < k && i != p; j++) {
                h[i * k + j] -= f * h[p * k + j];
                inverse[i * k + j] -= f * inverse[p * k + j];
            }
        }
    }
}

/* h^-1 = U^T U with U upper, row by row. */
static inline void textbook_factor(const double *h, int64_t k, double *u)
{
    static double a[TEXTBOOK_K * TEXTBOOK_K], inverse[TEXTBOOK_K * TEXTBOOK_K];
    memcpy(a, h, (size_t)(k * k) * sizeof *a);
    textbook_invert(a, k, inverse);
    memset(u, 0, (size_t)(k * k) * sizeof *u);
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = i; j < k; j++) {
            double sum = inverse[i * k + j];
            for (int64_t p = 0; p < i; p++)
                sum -= u[p * k + i] * u[p * k + j];
            u[i * k + j] = i == j ? sqrt(sum) : sum / u[i * k + i];
        }
}

/* One row: what its codes are worth. u: of textbook_factor(). */
static inline void textbook_gptq(const struct textbook *t, const float *x, const double *u,
                                 double *out)
{
    const double most = ldexp(1.0, t->bits - 1) - 1.0;
    double w[TEXTBOOK_K], scale = 0.0;
    for (int64_t i = 0; i < t->k; i++)
        w[i] = (double)x[i];
    for (int64_t i = 0; i < t->k; i++) {
        if (i % t->group == 0) {
            double amax = 0.0;
            for (int64_t j = i; j < i + t->group && j < t->k; j++)
                amax = fmax(amax, fabs(t->from_original ? (double)x[j] : w[j]));
            scale = (double)(float)(amax / most);
        }
        out[i] = scale * fmin(fmax(rint(w[i] / scale), -most - 1.0), most);
        const double error = (w[i] - out[i]) / u[i * t->k + i];
        for (int64_t j = i; j < t->k; j++)
            w[j] -= error * u[i * t->k + j];
    }
}

#endif
