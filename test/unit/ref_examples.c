/* SPDX-License-Identifier: Apache-2.0 */
/* The reference against numbers that a person can verify with a pencil: every expected value below
 * is worked out in the comment beside it. What the sweep compares kernels with is itself tested
 * here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"
#include "ref/ref.h"

/* A weight over arrays of the test. */
static struct qn_weight weight(qn_code code, int32_t bits, int64_t group, int64_t n, int64_t k,
                               uint8_t *codes, float *scale)
{
    struct qn_weight w;
    memset(&w, 0, sizeof w);
    w.format.code = code;
    w.format.bits = bits;
    w.format.group = group;
    w.n = n;
    w.k = w.ci = k;
    w.kh = w.kw = w.conv_groups = 1;
    w.n_groups = group < 0 ? 1 : (k + group - 1) / group;
    w.codes = codes;
    w.scale = scale;
    return w;
}

static qn_tensor tensor(void *data, qn_dtype dtype, int32_t rank, const int64_t *shape)
{
    qn_tensor t = {.data = data, .dtype = dtype, .rank = rank, .device = {QN_CPU, 0}};
    int64_t stride = 1;
    for (int32_t d = rank - 1; d >= 0; d--) {
        t.shape[d] = shape[d];
        t.stride[d] = stride;
        stride *= shape[d];
    }
    return t;
}

static qn_tensor matrix(void *data, qn_dtype dtype, int64_t rows, int64_t columns)
{
    return tensor(data, dtype, 2, (const int64_t[]){rows, columns});
}

static void assert_near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-12 * (1.0 + fabs(expected)))) /* a NaN fails, too */
        fail_msg("%.17g, expected %.17g", got, expected);
}

/* -------------------------------------------------------------------------------------- weights */

/* 4-bit codes 0, 8, 15 are -8, 0, 7. Group 0 (two positions): scale 0.5; group 1: scale 2. */
static void dequantize_groups(void **state)
{
    (void)state;
    uint8_t codes[] = {0, 8, 15};
    float scale[] = {0.5f, 2.0f};
    const struct qn_weight w = weight(QN_CODE_INT, 4, 2, 1, 3, codes, scale);
    double values[3], sizes[3];
    qni_ref_dequantize(&w, true, values, sizes);
    assert_near(values[0], -4.0);
    assert_near(values[1], 0.0);
    assert_near(values[2], 14.0);
    assert_near(sizes[2], 14.0);
}

/* Zero point 3: 2 (-8 - 3) = -22, and |2 * -8| + |2 * 3| = 22. Float offset 1: 2 * -8 + 1 = -15. */
static void dequantize_shifts(void **state)
{
    (void)state;
    uint8_t codes[] = {0};
    float scale[] = {2.0f}, offset[] = {1.0f};
    int32_t zero[] = {3};
    struct qn_weight w = weight(QN_CODE_INT, 4, 32, 1, 1, codes, scale);
    double value, size;
    w.zero = zero;
    qni_ref_dequantize(&w, true, &value, &size);
    assert_near(value, -22.0);
    assert_near(size, 22.0);
    w.zero = NULL;
    w.offset = offset;
    qni_ref_dequantize(&w, true, &value, &size);
    assert_near(value, -15.0);
    assert_near(size, 17.0);
}

/* Act-order: position 0 reads column 2. Column 2 is then prescaled by 10. */
static void dequantize_order(void **state)
{
    (void)state;
    uint8_t codes[] = {9, 10, 11}; /* 1, 2, 3 */
    float scale[] = {1.0f}, prescale[] = {1.0f, 1.0f, 10.0f};
    int32_t perm[] = {2, 0, 1};
    struct qn_weight w = weight(QN_CODE_INT, 4, QN_GROUP_PER_CHANNEL, 1, 3, codes, scale);
    w.perm = perm;
    w.prescale = prescale;
    double values[3];
    qni_ref_dequantize(&w, true, values, NULL);
    assert_near(values[0], 2.0);
    assert_near(values[1], 3.0);
    assert_near(values[2], 10.0);
    qni_ref_dequantize(&w, false, values, NULL);
    assert_near(values[2], 1.0);
}

/* Blocks of 2 channels, 2 taps of 3 channels. Positions (tap, channel): 00 01 02 10 11 12. Groups:
 * channels 0, 1 of both taps; channel 2 of both. Packed order 00 01 10 11 | 02 12. */
static void segments_of_channel_blocks(void **state)
{
    (void)state;
    uint8_t codes[6] = {0};
    float scale[] = {1.0f, 3.0f};
    struct qn_weight w = weight(QN_CODE_INT, 4, 2, 1, 6, codes, scale);
    w.format.blocks = QN_BLOCKS_CHANNELS;
    w.kw = 2;
    w.ci = 3;
    w.n_groups = 2;
    struct qni_ref_segments s;
    assert_int_equal(qni_ref_segments_make(&w, 32, &s), QN_OK);
    static const int64_t order[] = {0, 1, 3, 4, 2, 5};
    assert_int_equal(s.n, 2);
    for (int i = 0; i < 6; i++)
        assert_int_equal(s.order[i], order[i]);
    assert_int_equal(s.start[1], 4);
    assert_int_equal(s.start[2], 6);
    assert_int_equal(qni_ref_group(&w, 0, 5), 1);
    qni_ref_segments_free(&s);
}

/* --------------------------------------------------------------------------------------- matmul */

/* x = [1 2; 3 4], W = [1 -1; 2 3] (rows are outputs): y = x W^T = [-1 8; -1 18]; bias [10 20],
 * relu. */
static void matmul_2x2(void **state)
{
    (void)state;
    uint8_t codes[] = {9, 7, 10, 11};
    float scale[] = {1.0f, 1.0f}, x[] = {1, 2, 3, 4}, y[4], bias[] = {10.0f, -20.0f};
    const struct qn_weight w = weight(QN_CODE_INT, 4, QN_GROUP_PER_CHANNEL, 2, 2, codes, scale);
    const struct qn_weight *const list = &w;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.x = matrix(x, QN_F32, 2, 2);
    args.y = matrix(y, QN_F32, 2, 2);
    args.epilogue.bias = tensor(bias, QN_F32, 1, (const int64_t[]){2});
    args.epilogue.act = QN_ACT_RELU;
    struct qni_ref_op op;
    qni_ref_matmul(&args, &list, &op);
    double p[4], bound[4], error = 0.0;
    assert_int_equal(qni_ref_product(&op, p, bound), QN_OK);
    assert_near(p[0], -1.0);
    assert_near(p[1], 8.0);
    assert_near(p[2], -1.0);
    assert_near(p[3], 18.0);
    /* 2 (k + 8) 2^-24 sum |x w|, k = 2, sum |3 * 2| + |4 * 3| = 18; the rest is below 2^-140. */
    assert_near(bound[3], 2.0 * 10.0 * 0x1p-24 * 18.0);
    assert_near(qni_ref_epilogue(&op, 1, 0, p[2], &error), 9.0);
    error = 0.0;
    assert_near(qni_ref_epilogue(&op, 1, 1, p[3], &error), 0.0);
    assert_true(qni_ref_epilogue_f32(&op, 1, 0, -1.0f) == 9.0f);
}

/* QLinearMatMul of the ONNX documentation: a = [130 126], zero 128, scale 0.5: [1 -1]. b = [3 1],
 * scale 0.25: 3 - 1 = 2 raw, 2 * 0.5 * 0.25 = 0.25. (130 - 128) * 3 + (126 - 128) * 1 = 4 raw; y =
 * 4 * 0.125 = 0.5; scale 0.1, zero 10: 0.5 / 0.1 + 10 = 15. */
static void qlinear_matmul(void **state)
{
    (void)state;
    uint8_t codes[] = {3 + 128, 1 + 128}, x[] = {130, 126}, y[1];
    float scale[] = {0.25f};
    const struct qn_weight w = weight(QN_CODE_INT, 8, QN_GROUP_PER_CHANNEL, 1, 2, codes, scale);
    const struct qn_weight *const list = &w;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.x = matrix(x, QN_U8, 1, 2);
    args.y = matrix(y, QN_U8, 1, 1);
    args.quant.x_scale = 0.5f;
    args.quant.x_zero = 128;
    args.epilogue.y_scale = 0.1f;
    args.epilogue.y_zero = 10;
    struct qni_ref_op op;
    qni_ref_matmul(&args, &list, &op);
    float v;
    int32_t d;
    double slack, p, bound;
    assert_int_equal(qni_ref_exact(&op, &v, &d, &slack), QN_OK);
    assert_int_equal(d, 4);
    assert_true(v == 0.5f);
    assert_int_equal(qni_ref_epilogue_bits(&op, 0, 0, v), 15);
    assert_int_equal(qni_ref_product(&op, &p, &bound), QN_OK);
    assert_near(p, 0.5);
}

/* The same with an integer bias of 7: (4 + 7) * 0.125 = 1.375. */
static void integer_bias(void **state)
{
    (void)state;
    uint8_t codes[] = {3 + 128, 1 + 128};
    int8_t x[] = {2, -2};
    int32_t bias[] = {7}, d;
    float scale[] = {0.25f}, y[1], v;
    const struct qn_weight w = weight(QN_CODE_INT, 8, QN_GROUP_PER_CHANNEL, 1, 2, codes, scale);
    const struct qn_weight *const list = &w;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.x = matrix(x, QN_I8, 1, 2);
    args.y = matrix(y, QN_F32, 1, 1);
    args.quant.x_scale = 0.5f;
    args.epilogue.bias = tensor(bias, QN_I32, 1, (const int64_t[]){1});
    struct qni_ref_op op;
    qni_ref_matmul(&args, &list, &op);
    assert_int_equal(qni_ref_exact(&op, &v, &d, NULL), QN_OK);
    assert_int_equal(d, 4);
    assert_true(v == 1.375f);
    assert_true(qni_ref_epilogue_f32(&op, 0, 0, v) == 1.375f); /* not added again */
}

/* int8-row: x = [127 -1], scale 1, codes themselves; w = 0.5 [1 2] with zero point 1: 0.5 (0 * 127
 * + 1 * -1) = -0.5. In steps: dot = 125, acc = 62.5; sum = 126, offset -0.5: acc = 62.5 - 63 =
 * -0.5. */
static void int8_row(void **state)
{
    (void)state;
    uint8_t codes[] = {9, 10};
    int32_t zero[] = {1};
    float scale[] = {0.5f}, x[] = {127.0f, -1.0f}, y[1], v;
    struct qn_weight w = weight(QN_CODE_INT, 4, 32, 1, 2, codes, scale);
    w.zero = zero;
    const struct qn_weight *const list = &w;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = QN_STRATEGY_INT8_ROW;
    args.x = matrix(x, QN_F32, 1, 2);
    args.y = matrix(y, QN_F32, 1, 1);
    struct qni_ref_op op;
    double slack;
    qni_ref_matmul(&args, &list, &op);
    assert_int_equal(qni_ref_exact(&op, &v, NULL, &slack), QN_OK);
    assert_true(v == -0.5f);
    assert_true(slack > 0.0 && slack < 2.0); /* half a step of 1 times 0.5 (1 + 2 + 1 + 1) */
}

/* int8-block of E2M1: 6 * -3 with scale 1. x = [0 1]: lo 0, hi 1, scale 1/255, offset 128/255;
 * codes -128, 127. */
static void int8_block_e2m1(void **state)
{
    (void)state;
    static float table[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    uint8_t codes[] = {7, 13}; /* 6, -3 */
    float scale[] = {1.0f}, x[] = {0.0f, 1.0f}, y[1], v;
    struct qn_weight w = weight(QN_CODE_E2M1, 4, 32, 1, 2, codes, scale);
    w.table = table;
    const struct qn_weight *const list = &w;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = QN_STRATEGY_INT8_BLOCK;
    args.x = matrix(x, QN_F32, 1, 2);
    args.y = matrix(y, QN_F32, 1, 1);
    struct qni_ref_op op;
    qni_ref_matmul(&args, &list, &op);
    op.x_block = 32;
    assert_int_equal(qni_ref_exact(&op, &v, NULL, NULL), QN_OK);
    /* dot = -128 * 12 + 127 * -6 = -2298, sum_w = 6: (-2298 + 128 * 6) / 255 / 2 = -3. */
    assert_true(fabsf(v + 3.0f) < 1e-5f);
}

/* Rows 0 and 2 go to expert 1 (w = 3), row 1 to nobody, row 3 to expert 0 (w = 2); x rows [5 7]. */
static void grouped_ids(void **state)
{
    (void)state;
    uint8_t two[] = {10}, three[] = {11};
    float scale[] = {1.0f}, x[] = {5.0f, 7.0f}, y[4];
    int32_t ids[] = {1, -1, 1, 0}, rows[] = {0, 0, 1, 1};
    const struct qn_weight a = weight(QN_CODE_INT, 4, 32, 1, 1, two, scale);
    const struct qn_weight b = weight(QN_CODE_INT, 4, 32, 1, 1, three, scale);
    const struct qn_weight *const list[] = {&a, &b};
    const int64_t four = 4;
    qn_grouped_args args;
    qn_grouped_args_init(&args);
    args.n_experts = 2;
    args.x = matrix(x, QN_F32, 2, 1);
    args.y = matrix(y, QN_F32, 4, 1);
    args.ids = tensor(ids, QN_I32, 1, &four);
    args.x_rows = tensor(rows, QN_I32, 1, &four);
    struct qni_ref_op op;
    double p[4], bound[4];
    qni_ref_grouped(&args, list, &op);
    assert_int_equal(qni_ref_product(&op, p, bound), QN_OK);
    assert_near(p[0], 15.0);
    assert_int_equal(qni_ref_expert(&op, 1), -1);
    assert_near(p[2], 21.0);
    assert_near(p[3], 14.0);
}

/* Offsets [0 0 2 3]: expert 0 is empty, rows 0 and 1 are expert 1's, row 2 expert 2's, row 3
 * nobody's. */
static void grouped_offsets(void **state)
{
    (void)state;
    uint8_t codes[] = {9};
    int32_t offsets[] = {0, 0, 2, 3};
    float scale[] = {1.0f};
    const struct qn_weight w = weight(QN_CODE_INT, 4, 32, 1, 1, codes, scale);
    const struct qn_weight *const list[] = {&w, &w, &w};
    qn_grouped_args args;
    qn_grouped_args_init(&args);
    args.n_experts = 3;
    args.y = matrix(NULL, QN_F32, 4, 1);
    args.offsets = tensor(offsets, QN_I32, 1, (const int64_t[]){4});
    struct qni_ref_op op;
    qni_ref_grouped(&args, list, &op);
    assert_int_equal(qni_ref_expert(&op, 0), 1);
    assert_int_equal(qni_ref_expert(&op, 1), 1);
    assert_int_equal(qni_ref_expert(&op, 2), 2);
    assert_int_equal(qni_ref_expert(&op, 3), -1);
}

/* --------------------------------------------------------------------------------- convolutions */

/* x = 1 2 3      w = 1 1      valid:  1+2+4+5 = 12  2+3+5+6 = 16
 *     4 5 6          1 1              4+5+7+8 = 24  5+6+8+9 = 28
 *     7 8 9      padding 1 above and left only: the corner sees 1 alone. */
static void conv_3x3(void **state)
{
    (void)state;
    uint8_t codes[] = {9, 9, 9, 9};
    float scale[] = {1.0f}, x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, y[9];
    struct qn_weight w = weight(QN_CODE_INT, 4, 32, 1, 4, codes, scale);
    w.kh = w.kw = 2;
    w.ci = 1;
    const struct qn_weight *const list = &w;
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.x = tensor(x, QN_F32, 4, (const int64_t[]){1, 1, 3, 3});
    args.y = tensor(y, QN_F32, 4, (const int64_t[]){1, 1, 2, 2});
    struct qni_ref_op op;
    double p[9], bound[9];
    qni_ref_conv2d(&args, &list, &op);
    assert_int_equal(qni_ref_product(&op, p, bound), QN_OK);
    assert_near(p[0], 12.0);
    assert_near(p[1], 16.0);
    assert_near(p[2], 24.0);
    assert_near(p[3], 28.0);
    args.pad[0] = args.pad[1] = 1;
    args.y = tensor(y, QN_F32, 4, (const int64_t[]){1, 1, 3, 3});
    qni_ref_conv2d(&args, &list, &op);
    assert_int_equal(qni_ref_product(&op, p, bound), QN_OK);
    assert_near(p[0], 1.0);
    assert_near(p[1], 3.0);
    assert_near(p[3], 5.0);
    assert_near(p[8], 28.0);
}

/* One dimension, NHWC, 2 groups of one channel, dilation 2: y[x, g] = w[g] . (x[x], x[x + 2]).
 * Channel 0 is 1 2 3 4, w = (1 2): 1 + 6 = 7, 2 + 8 = 10. Channel 1 is 10 20 30 40, w = (3 -1): 30
 * - 30 = 0, 60 - 40 = 20. */
static void conv_1d_groups(void **state)
{
    (void)state;
    uint8_t codes[] = {9, 10, 11, 7};
    float scale[] = {1.0f, 1.0f}, x[] = {1, 10, 2, 20, 3, 30, 4, 40}, y[4];
    struct qn_weight w = weight(QN_CODE_INT, 4, QN_GROUP_PER_CHANNEL, 2, 2, codes, scale);
    w.kw = 2;
    w.ci = 1;
    w.conv_groups = 2;
    const struct qn_weight *const list = &w;
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.image = QN_NHWC;
    args.dilation[1] = 2;
    args.x = tensor(x, QN_F32, 3, (const int64_t[]){1, 4, 2});
    args.y = tensor(y, QN_F32, 3, (const int64_t[]){1, 2, 2});
    struct qni_ref_op op;
    double p[4], bound[4];
    qni_ref_conv2d(&args, &list, &op);
    assert_int_equal(qni_ref_product(&op, p, bound), QN_OK);
    assert_near(p[0], 7.0);
    assert_near(p[1], 0.0);
    assert_near(p[2], 10.0);
    assert_near(p[3], 20.0);
    assert_int_equal(qni_ref_at(&op, &args.y, 1, 0), 2); /* pixel 1, channel 0 */
}

/* x = (1 2), stride 2, w = (1 10 100): 1 lands on 0 1 2, 2 on 2 3 4: 1 10 102 20 200. Padding 1 on
 * the left takes the first away. */
static void conv_transpose_1d(void **state)
{
    (void)state;
    uint8_t codes[] = {128 + 1, 128 + 10, 128 + 100};
    float scale[] = {1.0f}, x[] = {1, 2}, y[5];
    struct qn_weight w = weight(QN_CODE_INT, 8, QN_GROUP_PER_CHANNEL, 1, 3, codes, scale);
    w.kw = 3;
    w.ci = 1;
    const struct qn_weight *const list = &w;
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.stride[1] = 2;
    args.x = tensor(x, QN_F32, 3, (const int64_t[]){1, 1, 2});
    args.y = tensor(y, QN_F32, 3, (const int64_t[]){1, 1, 5});
    struct qni_ref_op op;
    double p[5], bound[5];
    qni_ref_conv_transpose2d(&args, &list, &op);
    assert_int_equal(qni_ref_product(&op, p, bound), QN_OK);
    static const double all[] = {1, 10, 102, 20, 200};
    for (int i = 0; i < 5; i++)
        assert_near(p[i], all[i]);
    args.pad[1] = 1;
    args.y = tensor(y, QN_F32, 3, (const int64_t[]){1, 1, 4});
    qni_ref_conv_transpose2d(&args, &list, &op);
    assert_int_equal(qni_ref_product(&op, p, bound), QN_OK);
    for (int i = 0; i < 4; i++)
        assert_near(p[i], all[i + 1]);
}

/* Static int8: padding counts as the zero point. x = (5), zero 3, w = (1 1 1), padding 1 each side:
 * only the middle tap contributes, 5 - 3 = 2. */
static void conv_static_padding(void **state)
{
    (void)state;
    uint8_t codes[] = {129, 129, 129}, x[] = {5};
    float scale[] = {1.0f}, v;
    int32_t y[1], d;
    struct qn_weight w = weight(QN_CODE_INT, 8, QN_GROUP_PER_CHANNEL, 1, 3, codes, scale);
    w.kw = 3;
    w.ci = 1;
    const struct qn_weight *const list = &w;
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.quant.x_zero = 3;
    args.pad[1] = args.pad[3] = 1;
    args.x = tensor(x, QN_U8, 3, (const int64_t[]){1, 1, 1});
    args.y = tensor(y, QN_I32, 3, (const int64_t[]){1, 1, 1});
    struct qni_ref_op op;
    qni_ref_conv2d(&args, &list, &op);
    assert_int_equal(qni_ref_exact(&op, &v, &d, NULL), QN_OK);
    assert_int_equal(d, 2);
}

/* ---------------------------------------------------------------------------------- activations */

/* amax 254, scale 2: codes 127, -1 (a tie of -0.5 goes to even, -0), 1 (1.5 goes to 2). */
static void quantize_symmetric(void **state)
{
    (void)state;
    const float x[] = {254.0f, -1.0f, 3.0f, -254.0f};
    int32_t codes[4];
    const struct qni_ref_segment s = qni_ref_quantize(x, 4, true, codes);
    assert_true(s.scale == 2.0f && s.offset == 0.0f);
    assert_int_equal(codes[0], 127);
    assert_int_equal(codes[1], 0);
    assert_int_equal(codes[2], 2);
    assert_int_equal(codes[3], -127);
    assert_int_equal(s.sum, 2);
    assert_true(s.total == 4.0f);
}

/* [0 255]: scale 1, offset 128, codes -128 and 127; the sum of both is 255 = 1 * -1 + 128 * 2. */
static void quantize_asymmetric(void **state)
{
    (void)state;
    const float x[] = {0.0f, 255.0f}, constant[] = {-3.0f, -3.0f};
    int32_t codes[2];
    struct qni_ref_segment s = qni_ref_quantize(x, 2, false, codes);
    assert_true(s.scale == 1.0f && s.offset == 128.0f && s.total == 255.0f);
    assert_int_equal(codes[0], -128);
    assert_int_equal(codes[1], 127);
    s = qni_ref_quantize(constant, 2, false, codes);
    assert_true(s.scale == 0.0f && s.offset == -3.0f && s.total == -6.0f);
    assert_int_equal(codes[0], 0);
}

static void quantize_bad(void **state)
{
    (void)state;
    const float x[] = {1.0f, NAN}, tiny[] = {0x1p-121f, 0.0f};
    int32_t codes[2];
    assert_true(isnan(qni_ref_quantize(x, 2, true, codes).scale));
    assert_int_equal(codes[0], 0);
    assert_true(isnan(qni_ref_quantize(x, 2, false, codes).scale));
    assert_true(qni_ref_quantize(tiny, 2, true, codes).scale == 0.0f);
}

/*
 * DynamicQuantizeLinear of the ONNX documentation: [0 2 -3 -2.5 1.34 0.5] gives 153 255 0 26 221
 * 179 with scale 5 / 255. Ours has the same range here (it holds 0), hence the same scale; but ours
 * keeps the lower end exact where ONNX moves it to a whole zero point (-3 is -153 steps of
 * 0.0196...: exactly whole), so codes agree.
 */
static void dynamic_quantize_linear(void **state)
{
    (void)state;
    float x[] = {0.0f, 2.0f, -3.0f, -2.5f, 1.34f, 0.5f}, scale[1], offset[1];
    uint8_t codes[6];
    int32_t sum[1];
    static const uint8_t expected[] = {153, 255, 0, 26, 221, 179};
    qn_quantize_rows_args args;
    qn_quantize_rows_args_init(&args);
    args.x = matrix(x, QN_F32, 1, 6);
    args.codes = matrix(codes, QN_U8, 1, 6);
    args.scale = matrix(scale, QN_F32, 1, 1);
    args.offset = matrix(offset, QN_F32, 1, 1);
    args.sum = matrix(sum, QN_I32, 1, 1);
    assert_int_equal(qni_ref_quantize_rows(&args), QN_OK);
    assert_true(fabsf(scale[0] - 0.0196078438f) < 2e-9f);
    assert_true(offset[0] == -3.0f);
    /* -2.5 and 0.5 lie at 25.5 and 178.5 steps: ties, which ONNX sees from its zero point, ours
     * from -3. */
    for (int i = 0; i < 6; i++)
        assert_true(codes[i] == expected[i] || ((i == 3 || i == 5) && codes[i] == expected[i] - 1));
    int32_t total = 0;
    for (int i = 0; i < 6; i++)
        total += codes[i];
    assert_int_equal(sum[0], total);
}

/* ------------------------------------------------------------------------------------- epilogue */

static void requantize_ties(void **state)
{
    (void)state;
    struct qni_ref_op op;
    memset(&op, 0, sizeof op);
    qn_epilogue_init(&op.epilogue);
    op.y.dtype = QN_I8;
    op.epilogue.y_scale = 2.0f;
    assert_int_equal((int8_t)qni_ref_epilogue_bits(&op, 0, 0, 1.0f), 0); /* 0.5 to even */
    assert_int_equal((int8_t)qni_ref_epilogue_bits(&op, 0, 0, 3.0f), 2); /* 1.5 to even */
    assert_int_equal((int8_t)qni_ref_epilogue_bits(&op, 0, 0, -1e30f), -128);
    op.epilogue.y_zero = 5;
    assert_int_equal((int8_t)qni_ref_epilogue_bits(&op, 0, 0, NAN), 5);
    op.y.dtype = QN_U8;
    assert_int_equal(qni_ref_epilogue_bits(&op, 0, 0, INFINITY), 255);
}

/* silu(0) = 0, gelu(large) = large, relu6(7) = 6; the f32 steps are near the functions they stand
 * for. */
static void activations(void **state)
{
    (void)state;
    static const qn_act acts[] = {QN_ACT_RELU, QN_ACT_RELU6, QN_ACT_GELU, QN_ACT_GELU_TANH,
                                  QN_ACT_SILU};
    struct qni_ref_op op;
    memset(&op, 0, sizeof op);
    qn_epilogue_init(&op.epilogue);
    for (size_t a = 0; a < sizeof acts / sizeof *acts; a++) {
        op.epilogue.act = acts[a];
        for (float v = -12.0f; v <= 12.0f; v += 0.0078125f) {
            double error = 0.0;
            const double y = qni_ref_epilogue(&op, 0, 0, (double)v, &error);
            assert_true(fabs((double)qni_ref_epilogue_f32(&op, 0, 0, v) - y) <= error);
        }
    }
    op.epilogue.act = QN_ACT_RELU6;
    assert_true(qni_ref_epilogue_f32(&op, 0, 0, 7.0f) == 6.0f);
    op.epilogue.act = QN_ACT_GELU;
    assert_true(qni_ref_epilogue_f32(&op, 0, 0, 20.0f) == 20.0f);
    assert_true(fabsf(qni_ref_epilogue_f32(&op, 0, 0, 1.0f) - 0.841344746f) < 1e-6f); /* Phi(1) */
    op.epilogue.act = QN_ACT_SILU;
    assert_true(qni_ref_epilogue_f32(&op, 0, 0, 0.0f) == 0.0f);
    assert_true(isnan(qni_ref_epilogue_f32(&op, 0, 0, NAN)));
}

/* What a float kernel may store: the bound, one rounding to the type, infinity only beyond the
 * largest number. */
static void within(void **state)
{
    (void)state;
    assert_true(qni_ref_within(QN_BF16, 0x3f80, 1.0 + 0x1p-8, 0.0));    /* a tie, to even */
    assert_false(qni_ref_within(QN_BF16, 0x3f80, 1.0 + 0x1.8p-8, 0.0)); /* nearer to 1 + 2^-7 */
    assert_true(qni_ref_within(QN_F16, 0x7c00, 65530.0, 0.0));          /* rounds to infinity */
    assert_false(qni_ref_within(QN_F16, 0x7c00, 65000.0, 0.0));
    assert_false(qni_ref_within(QN_F32, 0x7fc00000u, 1.0, 0.5)); /* NaN is no number */
    assert_true(
        qni_ref_within(QN_F32, 0x7f800000u, 5.0, (double)INFINITY)); /* x held an infinity */
    assert_false(qni_ref_within(QN_F32, 0x3f800000u, 5.0, (double)INFINITY));
    assert_false(qni_ref_within(QN_F32, 0x7f800000u, 5.0, (double)NAN)); /* x held a NaN */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequantize_groups),
        cmocka_unit_test(dequantize_shifts),
        cmocka_unit_test(dequantize_order),
        cmocka_unit_test(segments_of_channel_blocks),
        cmocka_unit_test(matmul_2x2),
        cmocka_unit_test(qlinear_matmul),
        cmocka_unit_test(integer_bias),
        cmocka_unit_test(int8_row),
        cmocka_unit_test(int8_block_e2m1),
        cmocka_unit_test(grouped_ids),
        cmocka_unit_test(grouped_offsets),
        cmocka_unit_test(conv_3x3),
        cmocka_unit_test(conv_1d_groups),
        cmocka_unit_test(conv_transpose_1d),
        cmocka_unit_test(conv_static_padding),
        cmocka_unit_test(quantize_symmetric),
        cmocka_unit_test(quantize_asymmetric),
        cmocka_unit_test(quantize_bad),
        cmocka_unit_test(dynamic_quantize_linear),
        cmocka_unit_test(requantize_ties),
        cmocka_unit_test(activations),
        cmocka_unit_test(within),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
