/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons that rows of every table give for refusing an operation that is not theirs at all. They
 * are spelled here once, because they say little where nothing serves: what a row says that could
 * have served, but for one thing, governs (qni_reason_weight()). */
#ifndef QNI_QUANT_REASONS_H
#define QNI_QUANT_REASONS_H

#include <stdint.h>
#include <string.h>

#define QNI_WHY_NAME       "another kernel was asked for by name"
#define QNI_WHY_KIND       "is for another kind of operation"
#define QNI_WHY_LONE       "groups of one channel have kernels of their own"
#define QNI_WHY_STRATEGY   "reads another type of activations than the strategy gives"
#define QNI_WHY_LAYOUT     "reads another layout than the weights have"
#define QNI_WHY_FEATURE    "needs a CPU feature that is missing or masked"
#define QNI_WHY_NEWER      "needs a newer GPU"
#define QNI_WHY_GENERATION "is for one generation of GPUs, and this is another"

/* How near a row came to serving: the more, the more its reason says. */
static inline int32_t qni_reason_weight(const char *why)
{
    static const char *const far[] = {QNI_WHY_NAME,     QNI_WHY_KIND,      QNI_WHY_LONE,
                                      QNI_WHY_STRATEGY, QNI_WHY_LAYOUT,    QNI_WHY_FEATURE,
                                      QNI_WHY_NEWER,    QNI_WHY_GENERATION};
    const int32_t n = (int32_t)(sizeof far / sizeof *far);
    for (int32_t i = 0; i < n; i++)
        if (strcmp(why, far[i]) == 0)
            return i;
    return n;
}

#endif
