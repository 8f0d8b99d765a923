/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions of sizes that reach every path of the driver, against the reference: dead taps
 * left out (channels in whole units), lines and rings longer than a tile, taps further apart
 * than a tile, more taps than a float sum is exact for. Every case runs on 1, 2 and 3 threads:
 * equal bits, and nothing written but y. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "contexts.h"
#include "ref/ref.h"

enum { GUARD = 64 };

struct geometry {
    int64_t batch, h, w, ci, co;
    int32_t groups, kh, kw, stride[2], dilation[2], pad[4];
    bool transposed;
    qn_image image;
    const char *format;
    qn_strategy strategy;
    int32_t symmetric;
    bool large; /* all numbers near the end of their range */
};

static void print_geometry(const struct geometry *g)
{
    print_error("%s %s %s, %s%s: %lld x %lldx%lld, ci %lld co %lld groups %d, taps %dx%d, stride "
                "%d,%d dilation %d,%d pad %d,%d,%d,%d\n",
                g->transposed ? "transposed" : "conv", g->image == QN_NCHW ? "nchw" : "nhwc",
                g->format, qn_strategy_name(g->strategy), g->symmetric ? " symmetric" : "",
                (long long)g->batch, (long long)g->h, (long long)g->w, (long long)g->ci,
                (long long)g->co, g->groups, g->kh, g->kw, g->stride[0], g->stride[1],
                g->dilation[0], g->dilation[1], g->pad[0], g->pad[1], g->pad[2], g->pad[3]);
}

static qn_weight *make_weight(const struct geometry *g)
{
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    assert_int_equal(qn_format_parse(g->format, &parts.format, NULL), QN_OK);
    parts.n = g->co * g->groups;
    parts.k = g->kh * g->kw * g->ci;
    parts.kh = g->kh;
    parts.kw = g->kw;
    parts.conv_groups = g->groups;
    const int64_t n_groups = qn_format_groups(&parts.format, parts.k, g->ci);
    const int64_t codes = parts.n * parts.k, scales = parts.n * n_groups;
    uint8_t *code = malloc((size_t)codes);
    float *scale = malloc((size_t)scales * sizeof *scale);
    float *offset = malloc((size_t)scales * sizeof *offset);
    int32_t *zero = malloc((size_t)scales * sizeof *zero);
    for (int64_t i = 0; i < codes; i++)
        code[i] = (uint8_t)pick(g->large ? (1 << parts.format.bits) - 2 : 0,
                                (1 << parts.format.bits) - 1);
    for (int64_t i = 0; i < scales; i++) {
        scale[i] = (float)pick(1, 200) * 0.0003f;
        offset[i] = real() * 0.1f;
        zero[i] = pick(-3, 3);
    }
    parts.codes = code;
    parts.scale = scale;
    parts.offset = parts.format.shift >= QN_SHIFT_OFFSET ? offset : NULL;
    parts.zero = parts.format.shift == QN_SHIFT_ZERO ? zero : NULL;
    qn_weight *weight = NULL;
    qn_error err = {.text = ""};
    if (qn_weight_create(contexts[0], &parts, &weight, &err) != QN_OK)
        fail_msg("%s", err.text);
    free(code);
    free(scale);
    free(offset);
    free(zero);
    return weight;
}

static void fill_x(const qn_tensor *x, bool large)
{
    int64_t n;
    size_t bytes;
    assert_int_equal(qn_tensor_extent(x, &n, &bytes), QN_OK);
    for (int64_t i = 0; i < n; i++)
        if (x->dtype == QN_F32)
            ((float *)x->data)[i] = large ? 3.0f - 0.01f * (float)pick(0, 2) : real();
        else if (x->dtype == QN_BF16)
            ((uint16_t *)x->data)[i] =
                qni_bf16_from_f32(large ? 3.0f - 0.02f * (float)pick(0, 1) : real());
        else
            ((uint8_t *)x->data)[i] =
                (uint8_t)(large ? (x->dtype == QN_I8 ? 127 : 255) - pick(0, 1) : pick(0, 255));
}

static void image_shape(const struct geometry *g, int64_t channels, int64_t shape[4])
{
    const int64_t nchw[4] = {g->batch, channels, g->h, g->w},
                  nhwc[4] = {g->batch, g->h, g->w, channels};
    memcpy(shape, g->image == QN_NCHW ? nchw : nhwc, sizeof nchw);
}

/* Arguments but for the weights; x and y allocated, y between guards. */
static void make_args(const struct geometry *g, const qn_packed *w, qn_conv_args *args)
{
    const bool is_static = g->strategy == QN_STRATEGY_INT8_STATIC;
    int64_t shape[4];
    qn_conv_args_init(args);
    args->w = w;
    args->image = g->image;
    args->strategy = g->strategy;
    memcpy(args->stride, g->stride, sizeof args->stride);
    memcpy(args->dilation, g->dilation, sizeof args->dilation);
    memcpy(args->pad, g->pad, sizeof args->pad);
    args->quant.symmetric = g->symmetric;
    if (is_static) {
        args->quant.x_scale = 0.013f;
        args->quant.x_zero = pick(1, 100);
    }
    args->epilogue.act = g->large ? QN_ACT_NONE : QN_ACT_RELU6;
    image_shape(g, g->ci * g->groups, shape);
    const qn_dtype x_type = is_static    ? (pick(0, 1) ? QN_I8 : QN_U8)
                            : pick(0, 1) ? QN_F32
                                         : QN_BF16;
    args->x = qn_tensor_make(NULL, x_type, 4, shape);
    int64_t n;
    size_t bytes;
    assert_int_equal(qn_tensor_extent(&args->x, &n, &bytes), QN_OK);
    args->x.data = malloc(bytes);
    fill_x(&args->x, g->large);
    args->y.dtype = is_static && pick(0, 1) ? QN_I8 : QN_F32;
    args->epilogue.y_scale = 0.05f;
    args->epilogue.y_zero = is_static ? -7 : 0;
    assert_int_equal(g->transposed ? qn_conv_transpose2d_shape(args) : qn_conv2d_shape(args),
                     QN_OK);
    assert_int_equal(qn_tensor_extent(&args->y, &n, &bytes), QN_OK);
    args->y.data = (uint8_t *)malloc(bytes + 2 * GUARD) + GUARD;
}

static void run_on(const struct geometry *g, const qn_ctx *ctx, const qn_conv_args *args,
                   size_t bytes)
{
    size_t scratch_bytes = 0;
    uint8_t *y = (uint8_t *)args->y.data - GUARD;
    memset(y, 0x5a, bytes + 2 * GUARD);
    assert_int_equal(g->transposed ? qn_conv_transpose2d_scratch(ctx, args, &scratch_bytes)
                                   : qn_conv2d_scratch(ctx, args, &scratch_bytes),
                     QN_OK);
    uint8_t *scratch = aligned_alloc(64, (scratch_bytes + 127) / 64 * 64);
    memset(scratch, 0xff, (scratch_bytes + 127) / 64 * 64); /* NaN and -1: nothing is left over */
    assert_int_equal(g->transposed ? qn_conv_transpose2d(ctx, args, scratch, scratch_bytes)
                                   : qn_conv2d(ctx, args, scratch, scratch_bytes),
                     QN_OK);
    for (int32_t i = 0; i < 63; i++)
        assert_int_equal(scratch[scratch_bytes + (size_t)i], 0xff);
    free(scratch);
    for (int32_t i = 0; i < GUARD; i++) {
        assert_int_equal(y[i], 0x5a);
        assert_int_equal(y[GUARD + bytes + (size_t)i], 0x5a);
    }
}

static bool agrees(const struct qni_ref_op *op)
{
    const size_t n = (size_t)(op->m * op->n);
    const bool exact = op->strategy != QN_STRATEGY_FLOAT;
    double *p = malloc(n * sizeof *p), *error = malloc(n * sizeof *error);
    float *v = malloc(n * sizeof *v);
    int32_t *d = malloc(n * sizeof *d);
    assert_int_equal(exact ? qni_ref_exact(op, v, d, error) : qni_ref_product(op, p, error), QN_OK);
    bool good = true;
    for (int64_t i = 0; i < op->m && good; i++)
        for (int64_t j = 0; j < op->n && good; j++) {
            const int64_t at = i * op->n + j;
            const uint32_t got =
                qni_ref_bits(op->y.data, op->y.dtype, qni_ref_at(op, &op->y, i, j));
            if (exact) {
                good = got == qni_ref_epilogue_bits(op, i, j, v[at]);
            } else {
                double bound = error[at];
                const double y = qni_ref_epilogue(op, i, j, p[at], &bound);
                good = qni_ref_within(op->y.dtype, got, y, bound);
            }
            if (!good)
                print_error("y[%lld, %lld] is wrong\n", (long long)i, (long long)j);
        }
    free(p);
    free(error);
    free(v);
    free(d);
    return good;
}

static void check_geometry(const struct geometry *g)
{
    qn_weight *weight = make_weight(g);
    qn_packed *packed = NULL;
    qn_error err = {.text = ""};
    if (qn_pack(contexts[0], weight, NULL, &packed, &err) != QN_OK)
        fail_msg("%s", err.text);
    qn_conv_args args;
    make_args(g, packed, &args);
    int64_t n;
    size_t bytes;
    assert_int_equal(qn_tensor_extent(&args.y, &n, &bytes), QN_OK);
    uint8_t *first = malloc(bytes);
    bool good = true;
    for (int32_t i = 0; i < N_CONTEXTS; i++) {
        run_on(g, contexts[i], &args, bytes);
        if (i == 0)
            memcpy(first, args.y.data, bytes);
        good = good && memcmp(first, args.y.data, bytes) == 0;
    }
    struct qni_ref_op op;
    const struct qn_weight *const w = weight;
    if (g->transposed)
        qni_ref_conv_transpose2d(&args, &w, &op);
    else
        qni_ref_conv2d(&args, &w, &op);
    op.x_block = 0;
    qn_packed_info info;
    qn_packed_info_init(&info);
    assert_int_equal(qn_packed_query(packed, &info), QN_OK);
    op.x_block = info.x_block;
    good = agrees(&op) && good;
    if (!good)
        print_geometry(g);
    assert_true(good);
    free(first);
    free(args.x.data);
    free((uint8_t *)args.y.data - GUARD);
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
}

/* Every strategy with every format of a list. */
static void check_all(struct geometry *g, const char *const *formats, size_t n)
{
    static const struct {
        qn_strategy strategy;
        int32_t symmetric;
    } strategies[] = {{QN_STRATEGY_FLOAT, 0},
                      {QN_STRATEGY_INT8_ROW, 0},
                      {QN_STRATEGY_INT8_BLOCK, 0},
                      {QN_STRATEGY_INT8_BLOCK, 1},
                      {QN_STRATEGY_INT8_STATIC, 0}};
    for (size_t f = 0; f < n; f++)
        for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++) {
            g->format = formats[f];
            g->strategy = strategies[s].strategy;
            g->symmetric = strategies[s].symmetric;
            g->image = (qn_image)pick(0, 1);
            check_geometry(g);
        }
}

#define CHECK_ALL(g, ...)                                                                          \
    check_all((g), (const char *const[]){__VA_ARGS__},                                             \
              sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* Channels in whole units, or vectors of four: the phases of a transposed convolution leave dead
 * taps out. */
static void transposed_phases(void **state)
{
    (void)state;
    random_state = 1;
    for (int32_t round = 0; round < 9; round++) {
        struct geometry g = {.batch = pick(1, 2),
                             .h = pick(1, 5),
                             .w = pick(1, 6),
                             .ci = round < 6 ? 32 * pick(1, 4) : 4 * pick(1, 12),
                             .co = pick(1, 40),
                             .groups = pick(1, 2),
                             .kh = pick(1, 4),
                             .kw = pick(1, 4),
                             .stride = {pick(1, 3), pick(1, 3)},
                             .dilation = {pick(1, 2), pick(1, 3)},
                             .transposed = true};
        const int32_t ph = g.dilation[0] * (g.kh - 1) / 2, pw = g.dilation[1] * (g.kw - 1) / 2;
        for (int32_t i = 0; i < 4; i++)
            g.pad[i] = pick(0, i % 2 == 0 ? ph : pw);
        CHECK_ALL(&g, "int4:pc", "int8:pc:zp", "int4:g32", "int4:g32:off", "int8:g64", "int4:c32",
                  "int4:c64:zp", "iq4_nl", "e2m1:g32", "int3:g96");
        if (round >= 6)
            CHECK_ALL(&g, "int8:pc", "int6:pc:off");
    }
}

/* Rows longer than a segment, a line or a tile; more rows than a block. */
static void long_rows(void **state)
{
    (void)state;
    random_state = 2;
    for (int32_t round = 0; round < 4; round++) {
        struct geometry g = {.batch = 1,
                             .h = pick(3, 6),
                             .w = pick(60, 300),
                             .ci = pick(2, 20),
                             .co = pick(1, 18),
                             .groups = pick(1, 2),
                             .kh = pick(1, 3),
                             .kw = pick(1, 4),
                             .stride = {1, pick(1, 3)},
                             .dilation = {1, round == 3 ? 50 : pick(1, 3)},
                             .pad = {pick(0, 2), pick(0, 2), pick(0, 2), pick(0, 2)},
                             .transposed = round == 1};
        if (g.w + g.pad[1] + g.pad[3] <= g.dilation[1] * (g.kw - 1))
            g.kw = 2;
        CHECK_ALL(&g, "int4:g16", "int8:pc");
    }
}

static void depthwise(void **state)
{
    (void)state;
    random_state = 3;
    for (int32_t round = 0; round < 24; round++) {
        struct geometry g = {.batch = pick(1, 2),
                             .h = pick(1, 20),
                             .w = round % 3 == 0 ? pick(200, 600) : pick(1, 70),
                             .ci = 1,
                             .co = pick(1, 4) == 1 ? pick(2, 3) : 1,
                             .groups = pick(2, 90),
                             .kh = pick(1, 5),
                             .kw = pick(1, 5),
                             .stride = {pick(1, 3), pick(1, 3)},
                             .dilation = {pick(1, 3), pick(1, 3)},
                             .pad = {pick(0, 3), pick(0, 3), pick(0, 3), pick(0, 3)},
                             .transposed = round % 4 == 3};
        if (g.transposed) {
            for (int32_t i = 0; i < 4; i++)
                g.pad[i] = 0;
            g.w = g.w % 50 + 1;
        }
        if (!g.transposed && g.h + g.pad[0] + g.pad[2] <= g.dilation[0] * (g.kh - 1))
            g.kh = 1;
        if (!g.transposed && g.w + g.pad[1] + g.pad[3] <= g.dilation[1] * (g.kw - 1))
            g.kw = 1;
        CHECK_ALL(&g, round % 2 == 0 ? "int8:pc" : "int4:pc:zp", "int4:g4:off");
    }
}

/* Taps so far apart that they get strips and slots of their own. */
static void depthwise_far_taps(void **state)
{
    (void)state;
    random_state = 4;
    for (int32_t round = 0; round < 6; round++) {
        struct geometry g = {.batch = 1,
                             .h = 90,
                             .w = 100,
                             .ci = 1,
                             .co = 1,
                             .groups = pick(2, 20),
                             .kh = 3,
                             .kw = 3,
                             .stride = {pick(1, 40), pick(1, 40)},
                             .dilation = {pick(10, 40), pick(20, 40)},
                             .pad = {0, 20, 30, 5}};
        CHECK_ALL(&g, "int8:pc:zp");
        g.transposed = true;
        g.h = g.w = 4;
        memset(g.pad, 0, sizeof g.pad);
        CHECK_ALL(&g, "int8:pc:zp");
    }
}

/* More taps than a float can add up exactly, with the largest codes there are. */
static void depthwise_many_taps(void **state)
{
    (void)state;
    random_state = 5;
    struct geometry g = {.batch = 1,
                         .h = 1,
                         .w = 1300,
                         .ci = 1,
                         .co = 1,
                         .groups = 18,
                         .kh = 1,
                         .kw = 1200,
                         .stride = {1, 1},
                         .dilation = {1, 1},
                         .pad = {0, 20, 0, 20},
                         .large = true};
    CHECK_ALL(&g, "int8:pc", "int8:g900:zp", "int4:g128");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposed_phases),   cmocka_unit_test(long_rows),
        cmocka_unit_test(depthwise),           cmocka_unit_test(depthwise_far_taps),
        cmocka_unit_test(depthwise_many_taps),
    };
    return cmocka_run_group_tests(tests, make_contexts, destroy_contexts);
}
