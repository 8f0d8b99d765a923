/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights: what is copied, what is refused, and that dequantizing gives one rounding of
 * the formula, in original columns. */
#include <math.h>

#include "quant/canonical.h"
#include "unit.h"

enum { N = 4, KH = 2, KW = 3, CI = 10, K = KH * KW * CI };

/* Parts with every array filled; the test takes away what it does not want. */
struct made {
    qn_weight_parts p;
    uint8_t codes[N * K];
    float scale[N * K], offset[N * K], prescale[K], table[256];
    int32_t zero[N * K], perm[K];
};

static void make(struct made *m, const char *spec, bool perm, bool prescale)
{
    uint64_t seed = 1;
    qn_weight_parts_init(&m->p);
    assert_int_equal(qn_format_parse(spec, &m->p.format, NULL), QN_OK);
    m->p.n = N;
    m->p.k = K;
    m->p.kh = KH;
    m->p.kw = KW;
    m->p.conv_groups = 2;
    for (int i = 0; i < N * K; i++) {
        const int code = (int)unit_in(&seed, 0, (1 << m->p.format.bits) - 1);
        const bool is_nan = m->p.format.code == QN_CODE_E4M3 && (code & 0x7f) == 0x7f;
        m->codes[i] = (uint8_t)(is_nan ? 0 : code);
        m->scale[i] = unit_normal(&seed);
        m->offset[i] = 10.0f * unit_normal(&seed);
        m->zero[i] = (int32_t)unit_in(&seed, -20, 20);
    }
    for (int i = 0; i < K; i++) {
        m->perm[i] = (i * 7 + 3) % K;
        m->prescale[i] = 0.5f + (float)i;
    }
    for (int i = 0; i < 256; i++)
        m->table[i] = unit_normal(&seed);
    m->p.codes = m->codes;
    m->p.scale = m->scale;
    m->p.zero = m->p.format.shift == QN_SHIFT_ZERO ? m->zero : NULL;
    m->p.offset = m->p.format.shift >= QN_SHIFT_OFFSET ? m->offset : NULL;
    m->p.perm = perm ? m->perm : NULL;
    m->p.prescale = prescale ? m->prescale : NULL;
    m->p.table = m->p.format.code == QN_CODE_TABLE ? m->table : NULL;
}

static const char *const specs[] = {
    "int4:g8",      "int4:g7:zp", "int5:c4:off",  "int8:pc:zp", "int2:pt",   "int3:c3:f16",
    "nf4:g16",      "iq4nl:c4",   "e2m1:g6:off",  "fp8:pc",     "table3:g5", "table8:c9:bf16",
    "int6:g4:zp",   "q4_0",       "q6_k",         "mxfp4",      "nvfp4",     "q4_1",
    "int5:g16:min", "q2_k",       "int8:g64:off",
};
enum { N_SPECS = (int)(sizeof specs / sizeof specs[0]) };

/* The formula of quern/weights.h in double, rounded once. */
static float expected(const struct made *m, const float *table, int64_t n_groups, int64_t row,
                      int64_t at)
{
    const qn_format *f = &m->p.format;
    const int64_t g = f->group < 0                      ? 0
                      : f->blocks == QN_BLOCKS_CHANNELS ? at % CI / f->group
                                                        : at / f->group;
    const int code = m->codes[row * K + at];
    double value = table != NULL ? (double)table[code] : (double)(code - (1 << (f->bits - 1)));
    if (f->shift == QN_SHIFT_ZERO)
        value -= (double)m->zero[row * n_groups + g];
    if (f->shift == QN_SHIFT_MIN)
        value = (double)code;
    const double product = (double)m->scale[row * n_groups + g] * value;
    /* product and offset are exact in double; their sum is too, but for 2^-29 of a float's unit */
    return (float)(f->shift >= QN_SHIFT_OFFSET ? product + (double)m->offset[row * n_groups + g]
                                               : product);
}

static void dequantizing_is_the_formula(void **state)
{
    (void)state;
    enum { LD = K + 3 };
    static float out[N * LD];
    struct unit_ctx u;
    for (int s = 0; s < N_SPECS; s++)
        for (int variant = 0; variant < 4; variant++)
            for (int32_t threads = 1; threads <= 2; threads++) {
                struct made m;
                qn_weight *w;
                double exact[K];
                unit_ctx_start(&u, threads);
                make(&m, specs[s], variant & 1, variant & 2);
                assert_int_equal(qn_weight_create(&u.ctx, &m.p, &w, NULL), QN_OK);
                qn_tensor t = qn_tensor_2d(out, QN_F32, N, K);
                t.stride[0] = LD;
                for (int i = 0; i < N * LD; i++)
                    out[i] = -1234.5f;
                assert_int_equal(qn_weight_dequantize(&u.ctx, w, variant & 2, &t), QN_OK);
                for (int64_t row = 0; row < N; row++) {
                    qni_weight_row(w, row, exact);
                    for (int64_t at = 0; at < K; at++) {
                        const int64_t column = variant & 1 ? m.perm[at] : at;
                        const float v = expected(&m, w->table, w->n_groups, row, at);
                        const float factor = variant & 2 ? m.prescale[column] : 1.0f;
                        assert_true((float)exact[at] == v);
                        assert_true(out[row * LD + column] == v * factor);
                    }
                    for (int64_t i = K; i < LD; i++)
                        assert_true(out[row * LD + i] == -1234.5f);
                }
                assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, &t), QN_OK);
                assert_true(out[variant & 1 ? m.perm[0] : 0] ==
                            expected(&m, w->table, w->n_groups, 0, 0));
                qn_weight_destroy(w);
                unit_ctx_stop(&u);
            }
}

static void parts_are_copied_and_seen_again(void **state)
{
    (void)state;
    struct unit_ctx u;
    unit_ctx_start(&u, 1);
    for (int s = 0; s < N_SPECS; s++) {
        struct made m;
        qn_weight *w;
        make(&m, specs[s], true, true);
        assert_int_equal(qn_weight_create(&u.ctx, &m.p, &w, NULL), QN_OK);
        qn_weight_parts p;
        qn_weight_parts_init(&p);
        assert_int_equal(qn_weight_view(w, &p), QN_OK);
        const size_t groups = (size_t)(N * p.n_groups);
        assert_int_equal(p.n_groups, qn_format_groups(&m.p.format, K, CI));
        assert_int_equal(p.n, N);
        assert_int_equal(p.k, K);
        assert_int_equal(p.kh * 10 + p.kw, KH * 10 + KW);
        assert_int_equal(p.conv_groups, 2);
        assert_true(p.codes != m.codes && p.scale != m.scale && p.perm != m.perm);
        assert_memory_equal(p.codes, m.codes, N * K);
        assert_memory_equal(p.scale, m.scale, groups * sizeof(float));
        assert_memory_equal(p.perm, m.perm, sizeof m.perm);
        assert_memory_equal(p.prescale, m.prescale, sizeof m.prescale);
        assert_true((p.zero != NULL) == (m.p.zero != NULL));
        assert_true((p.offset != NULL) == (m.p.offset != NULL));
        if (p.zero != NULL)
            assert_memory_equal(p.zero, m.zero, groups * sizeof(int32_t));
        if (p.offset != NULL)
            assert_memory_equal(p.offset, m.offset, groups * sizeof(float));
        assert_true((p.table == NULL) == (m.p.format.code == QN_CODE_INT));
        if (m.p.table != NULL)
            assert_memory_equal(p.table, m.table, sizeof(float) << m.p.format.bits);

        /* what was seen makes the same weight again */
        qn_weight *again;
        assert_int_equal(qn_weight_create(&u.ctx, &p, &again, NULL), QN_OK);
        assert_memory_equal(again->codes, w->codes, N * K);
        qn_weight_destroy(again);
        qn_weight_destroy(w);
    }
    assert_int_equal(qn_weight_view(NULL, NULL), QN_E_ARGUMENT);
    qn_weight_destroy(NULL);
    unit_ctx_stop(&u);
}

/* A struct of an older header, which ends before perm. */
static void shorter_structs_are_legal(void **state)
{
    (void)state;
    struct unit_ctx u;
    struct made m;
    qn_weight *w;
    unit_ctx_start(&u, 1);
    make(&m, "int4:g8", true, true);
    m.p.size = offsetof(qn_weight_parts, perm);
    assert_int_equal(qn_weight_create(&u.ctx, &m.p, &w, NULL), QN_OK);
    assert_null(w->perm);
    assert_null(w->prescale);
    const int32_t *untouched = m.p.perm;
    assert_int_equal(qn_weight_view(w, &m.p), QN_OK);
    assert_ptr_equal(m.p.perm, untouched);
    assert_int_equal(m.p.size, offsetof(qn_weight_parts, perm));
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
}

static struct unit_ctx refusing;

static void assert_refused(const struct made *m, qn_status status, const char *words)
{
    qn_error err = {QN_OK, 0, ""};
    qn_weight *w = (qn_weight *)&refusing;
    assert_int_equal(qn_weight_create(&refusing.ctx, &m->p, &w, &err), status);
    assert_null(w);
    assert_int_equal(err.status, status);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" is missing in: %s", words, err.text);
}

#define REFUSE(spec, change, status, words)                                                        \
    do {                                                                                           \
        struct made m;                                                                             \
        make(&m, (spec), true, true);                                                              \
        change;                                                                                    \
        assert_refused(&m, (status), (words));                                                     \
    } while (0)

static void inconsistent_parts_are_refused(void **state)
{
    (void)state;
    unit_ctx_start(&refusing, 1);
    REFUSE("int4:g8", m.p.size = 0, QN_E_ARGUMENT, "init");
    REFUSE("int4:g8", m.p.format.group = 0, QN_E_FORMAT, "group of 0");
    REFUSE("int4:g8", m.p.format.reserved = 1, QN_E_ARGUMENT, "format.reserved");
    REFUSE("int4:g8", m.p.codes = NULL, QN_E_ARGUMENT, "codes");
    REFUSE("int4:g8", m.p.scale = NULL, QN_E_ARGUMENT, "scales");
    REFUSE("int4:g8:zp", m.p.zero = NULL, QN_E_ARGUMENT, "zero points are missing");
    REFUSE("int4:g8", m.p.zero = m.zero, QN_E_ARGUMENT, "zero points are given");
    REFUSE("int4:g8:off", m.p.offset = NULL, QN_E_ARGUMENT, "offsets are missing");
    REFUSE("int4:g8:zp", m.p.offset = m.offset, QN_E_ARGUMENT, "offsets are given");
    REFUSE("table4:g8", m.p.table = NULL, QN_E_ARGUMENT, "table");
    REFUSE("int4:g8", m.p.n = -1, QN_E_SHAPE, "n -1");
    REFUSE("int4:g8", m.p.k = -1, QN_E_SHAPE, "k -1");
    REFUSE("int4:g8", m.p.kh = 0, QN_E_SHAPE, "0 x 3");
    REFUSE("int4:g8", m.p.kw = 7, QN_E_SHAPE, "2 x 7 taps");
    REFUSE("int4:g8", m.p.conv_groups = 3, QN_E_SHAPE, "3 groups");
    REFUSE("int4:g8", m.p.k = (int64_t)1 << 31, QN_E_SHAPE, "2^31");
    REFUSE("int4:g8", (m.p.n = INT64_MAX / 2, m.p.conv_groups = 1), QN_E_SHAPE, "at most 2^31");
    REFUSE("int4:g8", m.scale[9] = NAN, QN_E_VALUE, "row 1, group 1");
    REFUSE("int4:g8", m.scale[8] = INFINITY, QN_E_VALUE, "scale of row 1, group 0");
    REFUSE("int4:g8:off", m.offset[8] = -INFINITY, QN_E_VALUE, "offset of row 1, group 0");
    REFUSE("int4:g8:zp", m.zero[8] = 1 << 23, QN_E_VALUE, "zero point 8388608 of row 1");
    REFUSE("int4:g8", m.codes[K + 5] = 16, QN_E_VALUE, "code 16 at row 1, position 5");
    REFUSE("int7:g8", m.codes[0] = 128, QN_E_VALUE, "code 128 at row 0, position 0");
    REFUSE("nf4:g8", m.codes[2 * K - 1] = 255, QN_E_VALUE, "row 1, position 59");
    REFUSE("fp8:pc", m.codes[7] = 0xff, QN_E_VALUE, "code 255 at row 0, position 7 is NaN");
    REFUSE("fp8:pc", m.codes[7] = 0x7f, QN_E_VALUE, "code 127 at row 0, position 7 is NaN");
    REFUSE("int4:g8", m.prescale[4] = NAN, QN_E_VALUE, "prescale of column 4");
    REFUSE("int4:g8", m.prescale[4] = 0.0f, QN_E_VALUE, "prescale of column 4");
    REFUSE("table4:g8", m.table[15] = NAN, QN_E_VALUE, "entry 15");
    REFUSE("int4:g8", m.perm[3] = K, QN_E_VALUE, "position 3 reads 60");
    REFUSE("int4:g8", m.perm[3] = -1, QN_E_VALUE, "position 3 reads -1");
    REFUSE("int4:g8", m.perm[3] = m.perm[9], QN_E_VALUE, "comes twice");
    struct made m;
    qn_weight *w;
    make(&m, "int4:g8", false, false);
    assert_int_equal(qn_weight_create(NULL, &m.p, &w, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_weight_create(&refusing.ctx, NULL, &w, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_weight_create(&refusing.ctx, &m.p, NULL, NULL), QN_E_ARGUMENT);
    unit_ctx_stop(&refusing);
}

static void bad_outputs_are_refused(void **state)
{
    (void)state;
    static float out[N * K];
    struct unit_ctx u;
    struct made m;
    qn_weight *w;
    unit_ctx_start(&u, 1);
    make(&m, "int4:g8", false, false);
    assert_int_equal(qn_weight_create(&u.ctx, &m.p, &w, NULL), QN_OK);
    const qn_tensor good = qn_tensor_2d(out, QN_F32, N, K);
    qn_tensor t = good;
    assert_int_equal(qn_weight_dequantize(NULL, w, false, &t), QN_E_ARGUMENT);
    assert_int_equal(qn_weight_dequantize(&u.ctx, NULL, false, &t), QN_E_ARGUMENT);
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, NULL), QN_E_ARGUMENT);
    t.data = NULL;
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, &t), QN_E_ARGUMENT);
    t = qn_tensor_2d(out, QN_F16, N, K);
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, &t), QN_E_DTYPE);
    t = qn_tensor_2d(out, QN_F32, N, K - 1);
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, &t), QN_E_SHAPE);
    t = qn_tensor_1d(out, QN_F32, N * K);
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, &t), QN_E_SHAPE);
    t = good;
    t.stride[0] = K - 1; /* rows would overlap */
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, &t), QN_E_STRIDE);
    t = good;
    t.stride[1] = 2;
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, false, &t), QN_E_STRIDE);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct made m;
    make(&m, "table4:g8:off", true, true);
    for (int64_t fail_at = 1;; fail_at++) {
        struct unit_ctx u;
        qn_weight *w;
        unit_ctx_start(&u, 1);
        u.memory.fail_at = fail_at;
        const qn_status status = qn_weight_create(&u.ctx, &m.p, &w, NULL);
        const bool is_over = u.memory.calls < fail_at;
        assert_int_equal(status, is_over ? QN_OK : QN_E_MEMORY);
        qn_weight_destroy(w);
        unit_ctx_stop(&u);
        if (is_over)
            break;
        assert_true(fail_at < 20);
    }
}

static void empty_weights_are_legal(void **state)
{
    (void)state;
    struct unit_ctx u;
    static const int64_t shapes[][2] = {{0, 0}, {0, 60}, {4, 0}};
    static const char *const kinds[] = {"int4:g8:zp", "nf4:g8:off", "int8:pc"};
    unit_ctx_start(&u, 1);
    for (int i = 0; i < 9; i++) {
        struct made m;
        qn_weight *w;
        make(&m, kinds[i / 3], false, false);
        m.p.n = shapes[i % 3][0];
        m.p.k = shapes[i % 3][1];
        assert_int_equal(qn_weight_create(&u.ctx, &m.p, &w, NULL), QN_OK);
        const qn_tensor t = qn_tensor_2d(NULL, QN_F32, m.p.n, m.p.k);
        assert_int_equal(qn_weight_dequantize(&u.ctx, w, true, &t), QN_OK);
        qn_weight_destroy(w);
    }
    unit_ctx_stop(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequantizing_is_the_formula),
        cmocka_unit_test(parts_are_copied_and_seen_again),
        cmocka_unit_test(shorter_structs_are_legal),
        cmocka_unit_test(inconsistent_parts_are_refused),
        cmocka_unit_test(bad_outputs_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(empty_weights_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
