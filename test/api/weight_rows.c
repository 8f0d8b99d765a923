/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of weights by index, slices, joined weights, and tasks on the context's threads. Everything
 * is compared with qn_weight_dequantize(), bit by bit. */
#include "api.h"

enum { N = 37, K = 200, COUNT = 50 };

static qn_ctx *ctx;

static int start(void **state)
{
    (void)state;
    return qn_ctx_create(NULL, &ctx, NULL) == QN_OK ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

/* A quantized weight; with_columns: act-order and a prescale. */
static qn_weight *make(const char *spec, int64_t n, int64_t k, uint64_t seed, bool with_columns)
{
    float *dense = malloc((size_t)(n * k) * sizeof *dense);
    float *prescale = malloc((size_t)k * sizeof *prescale);
    int32_t *perm = malloc((size_t)k * sizeof *perm);
    for (int64_t i = 0; i < n * k; i++)
        dense[i] = sinf((float)(seed * 7919 + (uint64_t)i * 31));
    for (int64_t i = 0; i < k; i++) {
        prescale[i] = 0.5f + (float)(i % 7);
        perm[i] = (int32_t)(k - 1 - i);
    }
    const qn_tensor t = qn_tensor_2d(dense, QN_F32, n, k);
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    assert_int_equal(qn_format_parse(spec, &how.format, NULL), QN_OK);
    qn_weight *w = NULL, *ordered = NULL;
    assert_int_equal(qn_quantize(ctx, &t, &how, &w, NULL), QN_OK);
    if (with_columns) {
        qn_weight_parts parts;
        qn_weight_parts_init(&parts);
        assert_int_equal(qn_weight_view(w, &parts), QN_OK);
        parts.perm = perm;
        parts.prescale = prescale;
        assert_int_equal(qn_weight_create(ctx, &parts, &ordered, NULL), QN_OK);
        qn_weight_destroy(w);
        w = ordered;
    }
    free(dense);
    free(prescale);
    free(perm);
    return w;
}

static float *dequantized(const qn_weight *w, bool apply_prescale)
{
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    assert_int_equal(qn_weight_view(w, &parts), QN_OK);
    float *out = malloc((size_t)(parts.n * parts.k + 1) * sizeof *out);
    const qn_tensor t = qn_tensor_2d(out, QN_F32, parts.n, parts.k);
    assert_int_equal(qn_weight_dequantize(ctx, w, apply_prescale, &t), QN_OK);
    return out;
}

static const char *const specs[] = {
    "int4:g32", "int4:g32:zp", "int4:g24:off", "int8:pc", "int3:g40",     "nf4:g64", "fp8:pc",
    "int5:pt",  "q4_0",        "mxfp4",        "q4_1",    "int4:g24:min", "q2_k",    "q3_k",
    "q4_k",     "q5_k",        "q6_k",         "iq4_xs",  "f32",          "f16",     "bf16"};
enum { N_SPECS = (int)(sizeof specs / sizeof *specs) };

/* ---- rows ---- */

static void ids_make(int64_t *ids, int32_t *ids32)
{
    for (int i = 0; i < COUNT; i++) {
        ids[i] = (i * 17 + 5) % N;
        ids32[i] = (int32_t)ids[i];
    }
}

static void test_rows(void **state)
{
    (void)state;
    enum { LD = K + 5 };
    int64_t ids[COUNT];
    int32_t ids32[COUNT];
    static float out[COUNT * LD], again[COUNT * LD];
    ids_make(ids, ids32);
    for (int s = 0; s < N_SPECS; s++)
        for (int variant = 0; variant < 4; variant++) {
            const bool apply = (variant & 2) != 0;
            qn_weight *w = make(specs[s], N, K, 1, variant & 1);
            qn_packed *packed = NULL;
            assert_int_equal(qn_pack(ctx, w, NULL, &packed, NULL), QN_OK);
            float *expected = dequantized(w, apply);
            qn_tensor t = qn_tensor_2d(out, QN_F32, COUNT, K);
            qn_tensor u = qn_tensor_2d(again, QN_F32, COUNT, K);
            t.stride[0] = u.stride[0] = LD;
            for (int i = 0; i < COUNT * LD; i++)
                out[i] = again[i] = -77.0f;
            const qn_tensor wide = qn_tensor_1d(ids, QN_I64, COUNT);
            const qn_tensor narrow = qn_tensor_1d(ids32, QN_I32, COUNT);
            assert_int_equal(qn_weight_rows(ctx, w, &wide, apply, &t, NULL), QN_OK);
            assert_int_equal(qn_packed_rows(ctx, packed, &narrow, apply, &u, NULL), QN_OK);
            for (int i = 0; i < COUNT; i++) {
                assert_memory_equal(out + i * LD, expected + ids[i] * K, K * sizeof(float));
                for (int j = K; j < LD; j++)
                    assert_true(out[i * LD + j] == -77.0f);
            }
            assert_memory_equal(out, again, sizeof out);
            free(expected);
            qn_packed_destroy(packed);
            qn_weight_destroy(w);
        }
}

static void test_rows_of_16_bits(void **state)
{
    (void)state;
    static uint16_t half[COUNT * K];
    int64_t ids[COUNT];
    int32_t ids32[COUNT];
    ids_make(ids, ids32);
    qn_weight *w = make("int4:g32", N, K, 1, true);
    float *expected = dequantized(w, false);
    for (qn_dtype dtype = QN_F16; dtype <= QN_BF16; dtype++) {
        const qn_tensor t = qn_tensor_2d(half, dtype, COUNT, K);
        const qn_tensor which = qn_tensor_1d(ids, QN_I64, COUNT);
        assert_int_equal(qn_weight_rows(ctx, w, &which, false, &t, NULL), QN_OK);
        for (int i = 0; i < COUNT; i++)
            for (int j = 0; j < K; j++) {
                const float v = expected[ids[i] * K + j];
                /* within half a unit of 11 or 8 bits */
                float back;
                if (dtype == QN_BF16) {
                    const uint32_t bits = (uint32_t)half[i * K + j] << 16;
                    memcpy(&back, &bits, sizeof back);
                    assert_true(fabsf(back - v) <= fabsf(v) * 0x1p-8f);
                } else {
                    const int e = (half[i * K + j] >> 10 & 31) - 25;
                    back = ldexpf((float)((half[i * K + j] & 1023) + (e > -25 ? 1024 : 0)),
                                  e > -25 ? e : -24);
                    assert_true(fabsf(back - fabsf(v)) <= fabsf(v) * 0x1p-11f + 0x1p-25f);
                }
            }
    }
    free(expected);
    qn_weight_destroy(w);
}

static void test_rows_bad(void **state)
{
    (void)state;
    static float out[3 * K];
    int64_t ids[3] = {0, N, 1};
    qn_weight *w = make("int4:g32", N, K, 1, false);
    qn_packed *packed = NULL;
    assert_int_equal(qn_pack(ctx, w, NULL, &packed, NULL), QN_OK);
    qn_tensor t = qn_tensor_2d(out, QN_F32, 3, K), which = qn_tensor_1d(ids, QN_I64, 3);
    out[0] = 5.0f;
    assert_error(qn_weight_rows(ctx, w, &which, false, &t, &err), QN_E_VALUE, "ids[1]");
    assert_error(qn_packed_rows(ctx, packed, &which, false, &t, &err), QN_E_VALUE, "ids[1]");
    ids[1] = -1;
    assert_error(qn_weight_rows(ctx, w, &which, false, &t, &err), QN_E_VALUE, "-1");
    assert_true(out[0] == 5.0f);
    ids[1] = 2;
    t.shape[1] = K - 1;
    assert_error(qn_weight_rows(ctx, w, &which, false, &t, &err), QN_E_SHAPE, "out");
    t = qn_tensor_2d(out, QN_I8, 3, K);
    assert_error(qn_weight_rows(ctx, w, &which, false, &t, &err), QN_E_DTYPE, "out");
    t = qn_tensor_2d(out, QN_F32, 3, K);
    t.device.kind = QN_CUDA;
    assert_error(qn_weight_rows(ctx, w, &which, false, &t, &err), QN_E_DEVICE, "out");
    t = qn_tensor_2d(ids, QN_F32, 3, K);
    assert_error(qn_weight_rows(ctx, w, &which, false, &t, &err), QN_E_OVERLAP, "ids");
    t = qn_tensor_2d(NULL, QN_F32, 3, K);
    assert_error(qn_weight_rows(ctx, w, &which, false, &t, &err), QN_E_ARGUMENT, "out");
    assert_error(qn_weight_rows(ctx, NULL, &which, false, &t, &err), QN_E_ARGUMENT,
                 "weight is NULL");
    which.shape[0] = t.shape[0] = 0;
    assert_int_equal(qn_weight_rows(ctx, w, &which, false, &t, NULL), QN_OK);
    qn_packed_destroy(packed);
    qn_weight_destroy(w);
}

/* ---- slices ---- */

static void check_slice(const qn_weight *w, int64_t first_n, int64_t n, int64_t first_k, int64_t k)
{
    qn_weight *slice = NULL;
    qn_error err = {QN_OK, -1, ""};
    const qn_status status = qn_weight_slice(ctx, w, first_n, n, first_k, k, &slice, &err);
    if (status != QN_OK)
        fail_msg("%s", err.text);
    float *whole = dequantized(w, true), *part = dequantized(slice, true);
    for (int64_t i = 0; i < n; i++)
        assert_memory_equal(part + i * k, whole + (first_n + i) * K + first_k,
                            (size_t)k * sizeof(float));
    free(whole);
    free(part);
    qn_weight_destroy(slice);
}

static void test_slices(void **state)
{
    (void)state;
    for (int s = 0; s < N_SPECS; s++)
        for (int variant = 0; variant < 2; variant++) {
            qn_weight *w = make(specs[s], N, K, 2, variant != 0);
            qn_weight_parts parts;
            qn_weight_parts_init(&parts);
            assert_int_equal(qn_weight_view(w, &parts), QN_OK);
            const int64_t group = parts.format.group > 0 ? parts.format.group : 50;
            check_slice(w, 0, N, 0, K);
            check_slice(w, 5, 20, 0, K);
            check_slice(w, N, 0, 0, K);
            check_slice(w, 3, 4, 0, 0);
            if (variant == 0 || parts.format.group < 0) {
                check_slice(w, 5, 20, group, 2 * group);
                check_slice(w, 0, N, group, K - group);
                check_slice(w, 0, N, group, group + 3);
            }
            /* The order is reversed: the first columns are the last groups, the last one short. */
            if (variant == 1 && parts.format.group > 0)
                check_slice(w, 1, 9, 0, K % group + group);
            qn_weight_destroy(w);
        }
}

static void test_slices_bad(void **state)
{
    (void)state;
    qn_weight *w = make("int4:g32", N, K, 2, false), *ordered = make("int4:g32", N, K, 2, true);
    qn_weight *slice = w;
    assert_error(qn_weight_slice(ctx, w, 0, N + 1, 0, K, &slice, &err), QN_E_SHAPE, "outputs");
    assert_null(slice);
    assert_error(qn_weight_slice(ctx, w, -1, 1, 0, K, &slice, &err), QN_E_SHAPE, "-1");
    assert_error(qn_weight_slice(ctx, w, 0, N, K, 1, &slice, &err), QN_E_SHAPE, "columns");
    assert_error(qn_weight_slice(ctx, w, 0, N, 16, 64, &slice, &err), QN_E_UNSUPPORTED, "group 0");
    assert_error(qn_weight_slice(ctx, ordered, 0, N, 32, 64, &slice, &err), QN_E_UNSUPPORTED,
                 "act-order");
    assert_error(qn_weight_slice(ctx, NULL, 0, N, 0, K, &slice, &err), QN_E_ARGUMENT,
                 "weight is NULL");
    assert_int_equal(qn_weight_slice(ctx, w, 0, N, 0, K, NULL, NULL), QN_E_ARGUMENT);
    qn_weight_destroy(w);
    qn_weight_destroy(ordered);
}

static void test_slices_of_convolutions(void **state)
{
    (void)state;
    qn_weight *w = make("int4:pc", 12, 36, 3, false), *conv = NULL, *slice = NULL;
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    assert_int_equal(qn_weight_view(w, &parts), QN_OK);
    parts.kh = parts.kw = 3;
    parts.conv_groups = 4;
    assert_int_equal(qn_weight_create(ctx, &parts, &conv, NULL), QN_OK);
    assert_error(qn_weight_slice(ctx, conv, 0, 12, 0, 18, &slice, &err), QN_E_UNSUPPORTED,
                 "outputs only");
    assert_error(qn_weight_slice(ctx, conv, 1, 3, 0, 36, &slice, &err), QN_E_UNSUPPORTED,
                 "convolution group");
    assert_int_equal(qn_weight_slice(ctx, conv, 3, 6, 0, 36, &slice, NULL), QN_OK);
    qn_weight_parts got;
    qn_weight_parts_init(&got);
    assert_int_equal(qn_weight_view(slice, &got), QN_OK);
    assert_int_equal(got.conv_groups, 2);
    assert_int_equal(got.kh * 10 + got.kw, 33);
    assert_memory_equal(got.codes, parts.codes + 3 * 36, 6 * 36);
    qn_weight_destroy(slice);
    qn_weight_destroy(conv);
    qn_weight_destroy(w);
}

/* ---- joined ---- */

static void test_joined(void **state)
{
    (void)state;
    for (int s = 0; s < N_SPECS; s++)
        for (int variant = 0; variant < 2; variant++) {
            qn_weight *part[3], *joined = NULL;
            for (int i = 0; i < 3; i++)
                part[i] = make(specs[s], 10 + 7 * i, K, (uint64_t)i + 5, variant != 0);
            assert_int_equal(
                qn_weight_concat(ctx, 3, (const qn_weight *const *)part, &joined, NULL), QN_OK);
            float *all = dequantized(joined, true);
            int64_t at = 0;
            for (int i = 0; i < 3; i++) {
                float *one = dequantized(part[i], true);
                assert_memory_equal(all + at * K, one, (size_t)(10 + 7 * i) * K * sizeof(float));
                at += 10 + 7 * i;
                free(one);
                qn_weight_destroy(part[i]);
            }
            free(all);
            qn_weight_destroy(joined);
        }
}

static void assert_not_joined(qn_weight *a, qn_weight *b, qn_status status, const char *words)
{
    const qn_weight *const both[2] = {a, b};
    qn_weight *joined = a;
    assert_error(qn_weight_concat(ctx, 2, both, &joined, &err), status, words);
    assert_null(joined);
    qn_weight_destroy(b);
}

static void test_joined_bad(void **state)
{
    (void)state;
    qn_weight *a = make("int4:g32", 8, K, 1, false), *joined = NULL;
    assert_not_joined(a, make("int4:g64", 8, K, 1, false), QN_E_FORMAT, "weight 1");
    assert_not_joined(a, make("int4:g32", 8, K - 8, 1, false), QN_E_SHAPE, "other inputs");
    assert_not_joined(a, make("int4:g32", 8, K, 1, true), QN_E_VALUE, "act-order");
    assert_not_joined(a, NULL, QN_E_ARGUMENT, "weight 1 is NULL");
    const qn_weight *const one[1] = {a};
    assert_int_equal(qn_weight_concat(ctx, 0, one, &joined, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_weight_concat(ctx, 1, one, &joined, NULL), QN_OK);
    qn_weight_destroy(joined);
    qn_weight_destroy(a);
}

/* ---- tasks ---- */

static void mark(void *arg, int32_t i)
{
    ((uint8_t *)arg)[i]++;
}

static void test_parallel_for(void **state)
{
    (void)state;
    static uint8_t done[1000];
    for (int round = 0; round < 20; round++)
        assert_int_equal(qn_parallel_for(ctx, 1000, mark, done), QN_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(done[i], 20);
    assert_int_equal(qn_parallel_for(ctx, 0, mark, NULL), QN_OK);
    assert_int_equal(qn_parallel_for(ctx, -5, mark, NULL), QN_OK);
    assert_int_equal(qn_parallel_for(NULL, 1, mark, done), QN_E_ARGUMENT);
    assert_int_equal(qn_parallel_for(ctx, 1, NULL, done), QN_E_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_rows_of_16_bits),
        cmocka_unit_test(test_rows_bad),     cmocka_unit_test(test_slices),
        cmocka_unit_test(test_slices_bad),   cmocka_unit_test(test_slices_of_convolutions),
        cmocka_unit_test(test_joined),       cmocka_unit_test(test_joined_bad),
        cmocka_unit_test(test_parallel_for),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
