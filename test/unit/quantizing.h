/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizing in a test: what fails says why. */
#ifndef TEST_UNIT_QUANTIZING_H
#define TEST_UNIT_QUANTIZING_H

#include <quern/weights.h>

#include "unit.h"

static inline qn_quantize_options options_of(const char *spec)
{
    qn_quantize_options o;
    qn_error err;
    qn_quantize_options_init(&o);
    if (qn_format_parse(spec, &o.format, &err) != QN_OK)
        fail_msg("%s", err.text);
    return o;
}

static inline qn_quantize_options options_with(const char *spec, qn_method method)
{
    qn_quantize_options o = options_of(spec);
    o.method = method;
    return o;
}

static inline qn_weight *quantize(struct unit_ctx *u, const qn_quantize_options *o, const float *x,
                                  int64_t n, int64_t k)
{
    qn_weight *w = NULL;
    qn_error err;
    const qn_tensor t = qn_tensor_2d((void *)(uintptr_t)x, QN_F32, n, k);
    if (qn_quantize(&u->ctx, &t, o, &w, &err) != QN_OK)
        fail_msg("%s", err.text);
    return w;
}

#endif
