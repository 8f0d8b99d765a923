/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights of any format with random contents, for tests of packing. Nothing here needs a
 * test framework. */
#ifndef TEST_UNIT_RANDOM_WEIGHT_H
#define TEST_UNIT_RANDOM_WEIGHT_H

#include "base/context.h"
#include "quant/canonical.h"
#include "random.h"

struct random_shape {
    int64_t n, ci;
    int32_t kh, kw, conv_groups;
};

/* Any code, any scale that f16 holds (or not), any zero point. */
static inline struct qn_weight *random_weight(const qn_ctx *ctx, const char *spec,
                                              struct random_shape s, uint64_t seed,
                                              bool with_columns, bool f16_scales)
{
    qn_weight_parts p;
    struct qn_weight *w;
    float table[256];
    qn_weight_parts_init(&p);
    if (qn_format_parse(spec, &p.format, NULL) != QN_OK)
        return NULL;
    p.n = s.n;
    p.k = s.ci * s.kh * s.kw;
    p.kh = s.kh;
    p.kw = s.kw;
    p.conv_groups = s.conv_groups;
    for (int i = 0; i < 256; i++)
        table[i] = (float)unit_in(&seed, -50, 50) * (f16_scales ? 1.0f : 0.7f);
    p.table = p.format.code == QN_CODE_TABLE ? table : NULL;
    const bool columns = with_columns && p.k > 0;
    if (qni_weight_alloc(&ctx->allocator, &p, columns, columns, &w, NULL) != QN_OK)
        return NULL;
    const bool is_float = qni_is_float_format(&w->format);
    for (int64_t i = 0; i < w->n * w->k && is_float; i++) {
        const float v = (float)unit_in(&seed, -999, 999) * 0x1p-8f;
        const uint16_t f16 = qni_f16_from_f32(v), bf16 = qni_bf16_from_f32(v);
        if (w->format.bits == 32)
            memcpy(w->codes + 4 * i, &v, sizeof v);
        else
            memcpy(w->codes + 2 * i, w->format.scale_dtype == QN_F16 ? &f16 : &bf16, sizeof f16);
    }
    for (int64_t i = 0; i < w->n * w->k && !is_float; i++)
        do
            w->codes[i] = (uint8_t)unit_in(&seed, 0, (1 << w->format.bits) - 1);
        while (w->format.code == QN_CODE_E4M3 && (w->codes[i] & 127) == 127);
    for (int64_t i = 0; i < w->n * w->n_groups && !is_float; i++) {
        w->scale[i] = (float)unit_in(&seed, 1, 1024) * (f16_scales ? 0x1p-12f : 0.1f);
        if (w->offset != NULL)
            w->offset[i] = (float)unit_in(&seed, -1024, 1024) * (f16_scales ? 0x1p-12f : 0.1f);
        if (w->zero != NULL)
            w->zero[i] = (int32_t)unit_in(&seed, -(1 << (w->format.bits - 1)),
                                          (1 << (w->format.bits - 1)) - 1);
    }
    for (int64_t i = 0; i < w->k && columns; i++) {
        w->perm[i] = (int32_t)((i + 5) % w->k);
        w->prescale[i] = 0.5f + (float)i;
    }
    return w;
}

/* The formats of the sweep (test/harness/weights.c), and more. */
static const char *const random_specs[] = {
    "int4:g128",  "int4:g128:zp", "int4:g32:off", "int4:g32",    "int4:g64:zp",  "int4:g100",
    "int4:pc",    "int4:pc:zp",   "int4:pt",      "int4:c64",    "int4:c8:zp",   "int3:g32",
    "int2:g16",   "int4:g7:off",  "int5:g32",     "int6:g16:zp", "int7:g48:off", "int8:pc",
    "int8:pt",    "int8:g32",     "int8:g100:zp", "int8:c4:off", "nf4:g64",      "iq4_nl",
    "e2m1:g32",   "e2m1:g16:off", "fp8:pc",       "fp8:g128",    "table4:g32",   "table3:g20",
    "table8:g64", "q4_0",         "q4_1",         "q5_1",        "q8_0",         "q4_k",
    "q6_k",       "mxfp4",        "nvfp4",        "int4:g1:zp",  "int4:g48:zp",  "int4:c16:off",
    "int8:c5:zp", "f32",          "f16",          "bf16",
};
enum { N_RANDOM_SPECS = (int)(sizeof random_specs / sizeof *random_specs) };

static const struct random_shape random_shapes[] = {
    {16, 64, 1, 1, 1}, {40, 300, 1, 1, 1}, {1, 1, 1, 1, 1},  {17, 33, 1, 1, 1}, {36, 20, 3, 3, 2},
    {40, 1, 3, 3, 40}, {24, 1, 3, 1, 8},   {0, 64, 1, 1, 1}, {5, 0, 1, 1, 1},   {51, 130, 1, 2, 3},
};
enum { N_RANDOM_SHAPES = (int)(sizeof random_shapes / sizeof *random_shapes) };

#endif
