/* SPDX-License-Identifier: Apache-2.0 */
/* The exponential functions of the epilogue as functions; their bodies and derivations are in
 * exact.h. */
#include "exact.h"

float qni_expf(float x)
{
    return qni_exp_inline(x);
}

float qni_erff(float x)
{
    return qni_erf_inline(x);
}

float qni_tanhf(float x)
{
    return qni_tanh_inline(x);
}
