/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights for the sweep, built by hand: tables, codes, scales and shifts of the three
 * generators.
 *
 *   exact    small values, scales 2^-2 to 2, shifts that are multiples of the scale: every w is a
 *            multiple of 1/4 below 256 with at most 8 significant bits (bf16 holds it), every sum
 * exact extreme  codes at their limits; scales zero, subnormal, negative, large normal   everything
 * a quantizer would make */
#include <math.h>
#include <string.h>

#include "../../src/base/half.h"
#include "harness.h"

const char *const check_data_names[CHECK_N_DATA] = {"exact", "extreme", "normal"};

#define INT(b, g, s)                                                                               \
    {                                                                                              \
        .code = QN_CODE_INT, .bits = b, .group = g, .shift = s, .scale_dtype = QN_F32              \
    }
#define CHANNELS(b, g, s)                                                                          \
    {                                                                                              \
        .code = QN_CODE_INT, .bits = b, .group = g, .blocks = QN_BLOCKS_CHANNELS, .shift = s,      \
        .scale_dtype = QN_F32                                                                      \
    }
#define CODES(c, b, g)                                                                             \
    {                                                                                              \
        .code = c, .bits = b, .group = g, .scale_dtype = QN_F32                                    \
    }

#define SUPER(c, b, g, s, groups, integers)                                                        \
    {                                                                                              \
        .code = c, .bits = b, .group = g, .shift = s, .scale_dtype = QN_F16, .superblock = groups, \
        .superbits = integers                                                                      \
    }

#define FLOATS(b, t)                                                                               \
    {                                                                                              \
        .code = QN_CODE_FLOAT, .bits = b, .group = QN_GROUP_PER_TENSOR, .scale_dtype = t           \
    }

static const struct check_format formats[] = {
    {"int4:g32", INT(4, 32, QN_SHIFT_NONE)},
    {"int4:g32:zp", INT(4, 32, QN_SHIFT_ZERO)},
    {"int4:g32:off", INT(4, 32, QN_SHIFT_OFFSET)},
    {"int4:g128", INT(4, 128, QN_SHIFT_NONE)},
    {"int4:g128:zp", INT(4, 128, QN_SHIFT_ZERO)},
    {"int4:g64:off", INT(4, 64, QN_SHIFT_OFFSET)},
    {"int4:pc", INT(4, QN_GROUP_PER_CHANNEL, QN_SHIFT_NONE)},
    {"int4:pc:zp", INT(4, QN_GROUP_PER_CHANNEL, QN_SHIFT_ZERO)},
    {"int4:pt", INT(4, QN_GROUP_PER_TENSOR, QN_SHIFT_NONE)},
    {"int4:g1:zp", INT(4, 1, QN_SHIFT_ZERO)},
    {"int4:g7", INT(4, 7, QN_SHIFT_NONE)},
    {"int4:g16:off", INT(4, 16, QN_SHIFT_OFFSET)},
    {"int4:g48:zp", INT(4, 48, QN_SHIFT_ZERO)},
    {"int3:g96", INT(3, 96, QN_SHIFT_NONE)},
    {"int4:g100:off", INT(4, 100, QN_SHIFT_OFFSET)},
    {"int2:g32:zp", INT(2, 32, QN_SHIFT_ZERO)},
    {"int3:g32", INT(3, 32, QN_SHIFT_NONE)},
    {"int5:g32:off", INT(5, 32, QN_SHIFT_OFFSET)},
    {"int6:g16", INT(6, 16, QN_SHIFT_NONE)},
    {"int7:g64:zp", INT(7, 64, QN_SHIFT_ZERO)},
    {"int8:g32", INT(8, 32, QN_SHIFT_NONE)},
    {"int8:g128:off", INT(8, 128, QN_SHIFT_OFFSET)},
    {"int8:pc", INT(8, QN_GROUP_PER_CHANNEL, QN_SHIFT_NONE)},
    {"int8:pc:zp", INT(8, QN_GROUP_PER_CHANNEL, QN_SHIFT_ZERO)},
    {"int8:pt", INT(8, QN_GROUP_PER_TENSOR, QN_SHIFT_NONE)},
    {"int8:g48:zp", INT(8, 48, QN_SHIFT_ZERO)},
    {"int4:c8", CHANNELS(4, 8, QN_SHIFT_NONE)},
    {"int4:c16:off", CHANNELS(4, 16, QN_SHIFT_OFFSET)},
    {"int8:c5:zp", CHANNELS(8, 5, QN_SHIFT_ZERO)},
    {"int4:g32:min", INT(4, 32, QN_SHIFT_MIN)},
    {"int5:g48:min", INT(5, 48, QN_SHIFT_MIN)},
    {"int8:pc:min", INT(8, QN_GROUP_PER_CHANNEL, QN_SHIFT_MIN)},
    {"int4:c16:min", CHANNELS(4, 16, QN_SHIFT_MIN)},
    {"int4:c64", CHANNELS(4, 64, QN_SHIFT_NONE)},
    {"int8:c128", CHANNELS(8, 128, QN_SHIFT_NONE)},
    {"q2_k", SUPER(QN_CODE_INT, 2, 16, QN_SHIFT_MIN, 16, 4)},
    {"q3_k", SUPER(QN_CODE_INT, 3, 16, QN_SHIFT_NONE, 16, 6)},
    {"q4_k", SUPER(QN_CODE_INT, 4, 32, QN_SHIFT_MIN, 8, 6)},
    {"q5_k", SUPER(QN_CODE_INT, 5, 32, QN_SHIFT_MIN, 8, 6)},
    {"q6_k", SUPER(QN_CODE_INT, 6, 16, QN_SHIFT_NONE, 16, 8)},
    {"iq4_xs", SUPER(QN_CODE_IQ4_NL, 4, 32, QN_SHIFT_NONE, 8, 6)},
    {"nf4:g64", CODES(QN_CODE_NF4, 4, 64)},
    {"iq4_nl:g32", CODES(QN_CODE_IQ4_NL, 4, 32)},
    {"e2m1:g32", CODES(QN_CODE_E2M1, 4, 32)},
    {"e2m1:g16", CODES(QN_CODE_E2M1, 4, 16)},
    {"fp8:pc", CODES(QN_CODE_E4M3, 8, QN_GROUP_PER_CHANNEL)},
    {"fp8:g128", CODES(QN_CODE_E4M3, 8, 128)},
    {"table4:g32", CODES(QN_CODE_TABLE, 4, 32)},
    {"table3:g20", CODES(QN_CODE_TABLE, 3, 20)},
    {"table8:g64", CODES(QN_CODE_TABLE, 8, 64)},
    {"f32", FLOATS(32, QN_F32)},
    {"f16", FLOATS(16, QN_F16)},
    {"bf16", FLOATS(16, QN_BF16)},
};

int32_t check_formats(const struct check_format **list)
{
    *list = formats;
    return (int32_t)(sizeof formats / sizeof *formats);
}

bool check_weight_is_integer(const struct check_weight *weight)
{
    const qn_format *f = &weight->w.format;
    if (f->code == QN_CODE_INT || f->code == QN_CODE_E2M1)
        return true;
    if (f->code == QN_CODE_FLOAT)
        return false;
    bool whole = f->bits <= 4;
    for (int i = 0; whole && i < 1 << f->bits; i++) {
        const float v = weight->table[i];
        whole = v >= -128.0f && v <= 127.0f && v == rintf(v);
    }
    return whole;
}

/* The codebooks, from their definitions. */
static void fill_table(struct check *c, const qn_format *f, int32_t data, float *table)
{
    static const float nf4[16] = {-1.0f,          -0.6961928010f, -0.5250730515f, -0.3949174881f,
                                  -0.2844413817f, -0.1847734302f, -0.0910500363f, 0.0f,
                                  0.0795802996f,  0.1609302014f,  0.2461123019f,  0.3379152417f,
                                  0.4407098293f,  0.5626170039f,  0.7229568362f,  1.0f};
    static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
    static const float e2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int i = 0; i < 1 << f->bits; i++) {
        const int exponent = (i >> 3) & 15, mantissa = i & 7;
        switch (f->code) {
        case QN_CODE_NF4:
            table[i] = nf4[i];
            break;
        case QN_CODE_IQ4_NL:
            table[i] = (float)iq4[i];
            break;
        case QN_CODE_E2M1:
            table[i] = i < 8 ? e2m1[i] : -e2m1[i - 8];
            break;
        case QN_CODE_E4M3:
            table[i] = exponent == 0 ? ldexpf((float)mantissa, -9)
                                     : ldexpf((float)(8 + mantissa), exponent - 10);
            table[i] = exponent == 15 && mantissa == 7 ? NAN : table[i];
            table[i] = i < 128 ? table[i] : -table[i];
            break;
        default:
            table[i] = data == CHECK_EXACT ? (float)check_random_in(&c->random, -60, 60) * 0.5f
                                           : (float)check_random_normal(&c->random);
            break;
        }
    }
}

/* Whether sums of this code's values stay exact: multiples of 1/2 of at most 8 bits. */
static bool code_is_small(const struct check_weight *weight, int32_t code)
{
    const qn_format *f = &weight->w.format;
    const float v =
        f->code == QN_CODE_INT ? (float)(code - (1 << (f->bits - 1))) : weight->table[code];
    return fabsf(v) <= 63.0f && v * 2.0f == rintf(v * 2.0f);
}

static uint8_t draw_code(struct check *c, const struct check_weight *weight, int32_t data)
{
    const qn_format *f = &weight->w.format;
    const int32_t last = (1 << f->bits) - 1;
    for (;;) {
        int32_t code = (int32_t)check_random_in(&c->random, 0, last);
        if (data == CHECK_EXTREME && check_random_chance(&c->random, 70))
            code = check_random_chance(&c->random, 50) ? 0 : last;
        if (f->code == QN_CODE_E4M3 && (code & 127) == 127)
            continue; /* NaN is no weight */
        if (data != CHECK_EXACT || code_is_small(weight, code))
            return (uint8_t)code;
    }
}

/* The largest x (2^128), prescale (2^3) and k (2^11) times code (2^8) and scale stay in f32. */
static float draw_small_scale(struct check *c, bool f16)
{
    static const float small[] = {0.0f, 0x1p-149f, -0x1.8p-126f, 0x1p-60f, 0x1.4p-40f, -0x1p-30f};
    static const float small_f16[] = {0.0f, 0x1p-24f, -0x1p-24f, 0x1p-23f};
    return f16 ? small_f16[check_random_in(&c->random, 0, 3)]
               : small[check_random_in(&c->random, 0, 5)];
}

static float draw_scale(struct check *c, int32_t data, bool f16)
{
    static const float extreme[] = {0.0f,  0x1p-24f, -0x1p-14f, 0.75f, 1.0f,
                                    -1.0f, 255.0f,   0x1p-15f,  0.125f};
    static const float extreme_f32[] = {0.0f,  0x1p-149f, 0x1.8p-130f, 1.0f,
                                        -3.0f, 0x1p40f,   0x1p-60f};
    if (data == CHECK_EXACT)
        return ldexpf(check_random_chance(&c->random, 10) ? -1.0f : 1.0f,
                      (int)check_random_in(&c->random, -2, 1));
    float s;
    if (data == CHECK_NORMAL)
        s = (float)(0.02 * (0.2 + fabs(check_random_normal(&c->random))));
    else if (f16)
        s = extreme[check_random_in(&c->random, 0, sizeof extreme / sizeof *extreme - 1)];
    else
        s = extreme_f32[check_random_in(&c->random, 0,
                                        sizeof extreme_f32 / sizeof *extreme_f32 - 1)];
    return f16 ? qni_f32_from_f16(qni_f16_from_f32(s)) : s;
}

/* A weight that is not quantized. Exact: a multiple of 1/4 of at most 8 bits. Extreme: what x of
 * 2^127 and a prescale make no infinity of, subnormal numbers, or zeros. */
static float draw_float(struct check *c, const struct check_weight_options *o)
{
    static const float extreme[] = {0.0f,      -0.0f,      1.0f,     -0.75f,    0x1p-24f,
                                    -0x1p-14f, 0x1.8p-20f, 65504.0f, -65504.0f, 0x1.fcp7f};
    static const float wide[] = {0x1p-149f, -0x1.8p-130f, 0x1p-126f, 0x1p40f, -0x1p60f};
    if (o->data == CHECK_EXACT)
        return (float)check_random_in(&c->random, -255, 255) * 0.25f;
    if (o->data == CHECK_NORMAL)
        return (float)(0.02 * check_random_normal(&c->random));
    if (o->small)
        return draw_small_scale(c, o->format.scale_dtype == QN_F16);
    if (o->format.scale_dtype != QN_F16 && check_random_chance(&c->random, 30))
        return wide[check_random_in(&c->random, 0, sizeof wide / sizeof *wide - 1)];
    return extreme[check_random_in(&c->random, 0, sizeof extreme / sizeof *extreme - 1)];
}

static void store_float(struct qn_weight *w, int64_t at, float v)
{
    const qn_dtype dtype = w->format.scale_dtype;
    const uint16_t half = dtype == QN_F16 ? qni_f16_from_f32(v) : qni_bf16_from_f32(v);
    if (dtype == QN_F32)
        memcpy(w->codes + 4 * at, &v, sizeof v);
    else
        memcpy(w->codes + 2 * at, &half, sizeof half);
}

static int64_t groups_of(const qn_format *f, int64_t k, int64_t ci)
{
    const int64_t along = f->blocks == QN_BLOCKS_CHANNELS ? ci : k;
    return f->group < 0 ? 1 : (along + f->group - 1) / f->group;
}

static void fill_groups(struct check *c, const struct check_weight_options *o,
                        struct check_weight *weight)
{
    struct qn_weight *w = &weight->w;
    const int32_t limit = o->data == CHECK_EXACT
                              ? (w->format.bits < 8 ? 1 << (w->format.bits - 1) : 63)
                              : 1 << (w->format.bits - 1);
    for (int64_t i = 0; i < w->n * w->n_groups; i++) {
        w->scale[i] =
            o->small ? draw_small_scale(c, o->f16_scales) : draw_scale(c, o->data, o->f16_scales);
        if (w->format.group == QN_GROUP_PER_TENSOR)
            w->scale[i] = w->scale[0];
        const int32_t zero = (int32_t)check_random_in(&c->random, -limit, limit - 1);
        if (w->zero != NULL)
            w->zero[i] = w->format.group == QN_GROUP_PER_TENSOR && i > 0 ? w->zero[0] : zero;
        if (w->offset == NULL)
            continue;
        const int32_t from_zero = w->format.shift == QN_SHIFT_MIN ? 1 << (w->format.bits - 1) : 0;
        float offset = o->data == CHECK_EXACT     ? w->scale[i] * (float)(zero - from_zero)
                       : o->small                 ? draw_small_scale(c, o->f16_scales)
                       : o->data == CHECK_EXTREME ? draw_scale(c, o->data, o->f16_scales)
                                                  : (float)(0.1 * check_random_normal(&c->random));
        if (o->f16_scales)
            offset = qni_f32_from_f16(qni_f16_from_f32(offset));
        w->offset[i] = w->format.group == QN_GROUP_PER_TENSOR && i > 0 ? w->offset[0] : offset;
    }
}

/* Scales and minima in two levels. Exact: powers of two, times integers of at most 3 bits; minima
 * that are multiples of the scale. */
static void fill_supers(struct check *c, const struct check_weight_options *o, struct qn_weight *w)
{
    const bool is_exact = o->data == CHECK_EXACT, has_min = w->super_min != NULL;
    const int32_t least = is_exact ? 1 : o->small ? 0 : qni_sub_least(&w->format);
    const int32_t most = is_exact ? 2 : o->small ? 7 : qni_sub_most(&w->format);
    const int32_t levels = 1 << (w->format.bits - 1);
    for (int64_t i = 0; i < w->n * w->n_supers; i++) {
        w->super_scale[i] = o->small ? draw_small_scale(c, true) : draw_scale(c, o->data, true);
        if (has_min)
            w->super_min[i] = is_exact   ? w->super_scale[i]
                              : o->small ? draw_small_scale(c, true)
                                         : draw_scale(c, o->data, true);
    }
    for (int64_t i = 0; i < w->n * w->n_groups; i++) {
        w->sub_scale[i] = (int16_t)check_random_in(&c->random, least, most);
        if (has_min)
            w->sub_min[i] = (int16_t)check_random_in(&c->random, 0, is_exact ? levels : most);
    }
    qni_weight_fill_products(w);
}

static void fill_columns(struct check *c, const struct check_weight_options *o, struct qn_weight *w)
{
    for (int64_t p = 0; w->perm != NULL && p < w->k; p++) { /* Fisher and Yates, inside out */
        const int64_t other = check_random_in(&c->random, 0, p);
        w->perm[p] = w->perm[other];
        w->perm[other] = (int32_t)p;
    }
    for (int64_t p = 0; w->prescale != NULL && p < w->k; p++)
        w->prescale[p] = o->data == CHECK_EXACT
                             ? ldexpf(1.0f, (int)check_random_in(&c->random, -1, 1))
                             : (float)exp(0.5 * check_random_normal(&c->random));
}

static void make_supers(struct check *c, struct qn_weight *w)
{
    w->n_supers = (w->n_groups + w->format.superblock - 1) / w->format.superblock;
    const size_t supers = (size_t)(w->n * w->n_supers) * sizeof(float);
    const size_t subs = (size_t)(w->n * w->n_groups) * sizeof(int16_t);
    w->super_scale = check_memory(c, "super_scale of the canonical weight", supers, 4);
    w->sub_scale = check_memory(c, "sub_scale of the canonical weight", subs, 2);
    if (!qni_has_sub_min(&w->format))
        return;
    w->super_min = check_memory(c, "super_min of the canonical weight", supers, 4);
    w->sub_min = check_memory(c, "sub_min of the canonical weight", subs, 2);
}

void check_weight_make(struct check *c, const struct check_weight_options *o,
                       struct check_weight *weight)
{
    struct qn_weight *w = &weight->w;
    memset(weight, 0, sizeof *weight);
    w->format = o->format;
    w->n = o->n;
    w->k = o->k;
    w->kh = o->kh;
    w->kw = o->kw;
    w->conv_groups = o->conv_groups;
    w->ci = o->k / (o->kh * o->kw);
    w->n_groups = groups_of(&o->format, o->k, w->ci);
    const size_t n_groups = (size_t)(w->n * w->n_groups), k = (size_t)w->k;
    const size_t each = qni_code_bytes(&o->format);
    w->codes = check_memory(c, "codes of the canonical weight", (size_t)w->n * k * each, each);
    w->scale = check_memory(c, "scale of the canonical weight", n_groups * sizeof(float), 4);
    if (o->format.shift == QN_SHIFT_ZERO)
        w->zero = check_memory(c, "zero of the canonical weight", n_groups * sizeof(int32_t), 4);
    if (o->format.shift >= QN_SHIFT_OFFSET)
        w->offset = check_memory(c, "offset of the canonical weight", n_groups * sizeof(float), 4);
    if (qni_may_have_supers(&o->format, w->n, w->n_groups))
        make_supers(c, w);
    if (o->perm)
        w->perm = check_memory(c, "perm of the canonical weight", k * sizeof(int32_t), 4);
    if (o->prescale)
        w->prescale = check_memory(c, "prescale of the canonical weight", k * sizeof(float), 4);
    if (qni_has_table(&o->format)) {
        w->table = weight->table;
        fill_table(c, &o->format, o->data, weight->table);
    }
    for (int64_t i = 0; i < w->n * w->k; i++)
        if (each > 1)
            store_float(w, i, draw_float(c, o));
        else
            w->codes[i] = draw_code(c, weight, o->data);
    for (int64_t i = 0; each > 1 && i < w->n * w->n_groups; i++)
        w->scale[i] = 1.0f;
    if (each > 1)
        ;
    else if (o->format.superblock > 0)
        fill_supers(c, o, w);
    else
        fill_groups(c, o, weight);
    fill_columns(c, o, w);
    qn_weight_parts *parts = &weight->parts;
    qn_weight_parts_init(parts);
    parts->format = o->format;
    parts->n = o->n;
    parts->k = o->k;
    parts->kh = o->kh;
    parts->kw = o->kw;
    parts->conv_groups = o->conv_groups;
    parts->codes = w->codes;
    parts->scale = w->scale;
    parts->zero = w->zero;
    parts->offset = w->offset;
    parts->perm = w->perm;
    parts->super_scale = w->super_scale;
    parts->super_min = w->super_min;
    parts->sub_scale = w->sub_scale;
    parts->sub_min = w->sub_min;
    parts->prescale = w->prescale;
    parts->table = o->format.code == QN_CODE_TABLE ? w->table : NULL;
}
