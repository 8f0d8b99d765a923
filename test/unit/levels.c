/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of two levels: made from their integers alone, checked against their products, cut and
 * joined, packed and back, without memory. */
#include <math.h>

#include "unit.h"

#include "quant/canonical.h"

enum { N = 3, K = 80, GROUPS = 5, SUPERS = 2 };

/* int4:g16:min:f16:s4x6: super-blocks of 64 positions, the last one of one group. */
struct made {
    qn_weight_parts p;
    uint8_t codes[N * K];
    float super_scale[N * SUPERS], super_min[N * SUPERS], scale[N * GROUPS], offset[N * GROUPS];
    int16_t sub_scale[N * GROUPS], sub_min[N * GROUPS];
};

static void make(struct made *m, const char *spec)
{
    uint64_t seed = 5;
    memset(m, 0, sizeof *m);
    qn_weight_parts_init(&m->p);
    assert_int_equal(qn_format_parse(spec, &m->p.format, NULL), QN_OK);
    const bool has_min = m->p.format.shift == QN_SHIFT_MIN;
    const int least = m->p.format.shift == QN_SHIFT_NONE ? -32 : 0;
    for (int i = 0; i < N * K; i++)
        m->codes[i] = (uint8_t)unit_in(&seed, 0, (1 << m->p.format.bits) - 1);
    for (int i = 0; i < N * SUPERS; i++) {
        m->super_scale[i] = (float)unit_in(&seed, -900, 900) * 0x1p-14f;
        m->super_min[i] = (float)unit_in(&seed, -900, 900) * 0x1p-12f;
    }
    for (int i = 0; i < N * GROUPS; i++) {
        const int super = i / GROUPS * SUPERS + i % GROUPS / 4;
        m->sub_scale[i] = (int16_t)unit_in(&seed, least, least + 63);
        m->sub_min[i] = (int16_t)unit_in(&seed, 0, 63);
        m->scale[i] = m->super_scale[super] * (float)m->sub_scale[i];
        m->offset[i] = -(m->super_min[super] * (float)m->sub_min[i]);
    }
    m->p.n = N;
    m->p.k = K;
    m->p.codes = m->codes;
    m->p.super_scale = m->super_scale;
    m->p.sub_scale = m->sub_scale;
    m->p.super_min = has_min ? m->super_min : NULL;
    m->p.sub_min = has_min ? m->sub_min : NULL;
}

static qn_weight_parts view(const qn_weight *w)
{
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    assert_int_equal(qn_weight_view(w, &p), QN_OK);
    return p;
}

static void products_are_made(void **state)
{
    (void)state;
    static const char *const specs[] = {"int4:g16:min:f16:s4x6", "int3:g16:f16:s4x6"};
    for (int s = 0; s < 2; s++)
        for (int given = 0; given < 2; given++) {
            struct unit_ctx u;
            struct made m;
            qn_weight *w = NULL;
            make(&m, specs[s]);
            m.p.scale = given != 0 ? m.scale : NULL;
            m.p.offset = given != 0 && s == 0 ? m.offset : NULL;
            unit_ctx_start(&u, 1);
            assert_int_equal(qn_weight_create(&u.ctx, &m.p, &w, NULL), QN_OK);
            const qn_weight_parts p = view(w);
            assert_int_equal(p.n_supers, SUPERS);
            assert_memory_equal(p.scale, m.scale, sizeof m.scale);
            assert_memory_equal(p.super_scale, m.super_scale, sizeof m.super_scale);
            assert_memory_equal(p.sub_scale, m.sub_scale, sizeof m.sub_scale);
            if (s == 0) {
                assert_memory_equal(p.offset, m.offset, sizeof m.offset);
                assert_memory_equal(p.super_min, m.super_min, sizeof m.super_min);
                assert_memory_equal(p.sub_min, m.sub_min, sizeof m.sub_min);
            }
            float out[N * K];
            const qn_tensor t = qn_tensor_2d(out, QN_F32, N, K);
            assert_int_equal(qn_weight_dequantize(&u.ctx, w, true, &t), QN_OK);
            for (int i = 0; i < N * K; i++) {
                const int g = i / K * GROUPS + i % K / 16;
                const double value = (double)m.codes[i] - (s == 0 ? 0 : 4);
                assert_true(out[i] == (float)((double)m.scale[g] * value +
                                              (s == 0 ? (double)m.offset[g] : 0.0)));
            }
            qn_weight_destroy(w);
            unit_ctx_stop(&u);
        }
}

static void refused(struct made *m, qn_status status, const char *word)
{
    struct unit_ctx u;
    qn_weight *w = NULL;
    qn_error err = {QN_OK, -1, ""};
    unit_ctx_start(&u, 1);
    assert_int_equal(qn_weight_create(&u.ctx, &m->p, &w, &err), status);
    assert_null(w);
    if (strstr(err.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, word);
    unit_ctx_stop(&u);
}

#define REFUSE(spec, spoil, status, word)                                                          \
    do {                                                                                           \
        struct made m;                                                                             \
        make(&m, spec);                                                                            \
        spoil;                                                                                     \
        refused(&m, status, word);                                                                 \
    } while (0)

static void contradictions_are_refused(void **state)
{
    (void)state;
    static const char min[] = "int4:g16:min:f16:s4x6", none[] = "int3:g16:f16:s4x6";
    REFUSE(min, m.p.sub_scale = NULL, QN_E_ARGUMENT, "some are given");
    REFUSE(min, m.p.super_min = NULL, QN_E_ARGUMENT, "some are given");
    REFUSE(min, m.p.sub_min = NULL, QN_E_ARGUMENT, "some are given");
    REFUSE(none, m.p.sub_min = m.sub_min, QN_E_ARGUMENT, "not needed");
    REFUSE("int4:g16", m.p.scale = m.scale, QN_E_ARGUMENT, "no super-blocks");
    REFUSE(min, m.p.super_scale = NULL, QN_E_ARGUMENT, "some are given");
    REFUSE(min, m.sub_scale[7] = 64, QN_E_VALUE, "row 1, group 2 is out of range for 6 bits");
    REFUSE(min, m.sub_scale[7] = -1, QN_E_VALUE, "out of range");
    REFUSE(min, m.sub_min[7] = 64, QN_E_VALUE, "out of range");
    REFUSE(none, m.sub_scale[7] = 32, QN_E_VALUE, "out of range");
    REFUSE(none, m.sub_scale[7] = -33, QN_E_VALUE, "out of range");
    REFUSE(min, m.super_scale[3] = 1.0f + 0x1p-11f, QN_E_VALUE,
           "row 1, super-block 1 is no finite f16");
    REFUSE(min, m.super_min[3] = 0x1p-26f, QN_E_VALUE, "common minimum");
    REFUSE(min, m.super_min[3] = INFINITY, QN_E_VALUE, "not finite");
    REFUSE(min, m.super_scale[3] = NAN, QN_E_VALUE, "not finite");
    REFUSE(min, (m.p.scale = m.scale, m.scale[7] = 0.3f), QN_E_VALUE, "product of its two levels");
    REFUSE(min, (m.p.offset = m.offset, m.offset[7] = 0.3f), QN_E_VALUE, "product of its");
}

static void cutting_keeps_whole_super_blocks(void **state)
{
    (void)state;
    struct unit_ctx u;
    struct made m;
    qn_weight *w = NULL, *part = NULL, *joined = NULL;
    make(&m, "int4:g16:min:f16:s4x6");
    unit_ctx_start(&u, 1);
    assert_int_equal(qn_weight_create(&u.ctx, &m.p, &w, NULL), QN_OK);

    assert_int_equal(qn_weight_slice(&u.ctx, w, 1, 2, 64, 16, &part, NULL), QN_OK);
    qn_weight_parts p = view(part);
    assert_int_equal(p.n_supers, 1);
    assert_true(p.super_scale[0] == m.super_scale[3] && p.super_min[1] == m.super_min[5]);
    assert_true(p.sub_scale[0] == m.sub_scale[9] && p.sub_min[1] == m.sub_min[14]);
    qn_weight_destroy(part);

    assert_int_equal(qn_weight_slice(&u.ctx, w, 0, N, 0, 48, &part, NULL), QN_OK);
    p = view(part);
    assert_true(p.super_scale != NULL && p.sub_min[3] == m.sub_min[5]);
    qn_weight_destroy(part);

    /* begins within a super-block: the same values, their integers left behind */
    assert_int_equal(qn_weight_slice(&u.ctx, w, 0, N, 16, 64, &part, NULL), QN_OK);
    p = view(part);
    assert_true(p.super_scale == NULL && p.super_min == NULL && p.sub_scale == NULL);
    assert_true(p.scale[4] == m.scale[6] && p.offset[4] == m.offset[6]);

    const qn_weight *both[2] = {w, w};
    assert_int_equal(qn_weight_concat(&u.ctx, 2, both, &joined, NULL), QN_OK);
    p = view(joined);
    assert_memory_equal(p.super_min + N * SUPERS, m.super_min, sizeof m.super_min);
    assert_memory_equal(p.sub_scale + N * GROUPS, m.sub_scale, sizeof m.sub_scale);
    qn_weight_destroy(joined);
    qn_weight_destroy(part);

    assert_int_equal(qn_weight_slice(&u.ctx, w, 0, N, 16, 64, &part, NULL), QN_OK);
    qn_weight *other = NULL;
    assert_int_equal(qn_weight_slice(&u.ctx, w, 0, N, 0, 64, &other, NULL), QN_OK);
    both[0] = part;
    both[1] = other;
    assert_int_equal(qn_weight_concat(&u.ctx, 2, both, &joined, NULL), QN_OK);
    assert_null(view(joined).super_scale);
    qn_weight_destroy(joined);
    qn_weight_destroy(other);
    qn_weight_destroy(part);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
}

/* Every allocation fails once. */
static void no_memory_is_survived(void **state)
{
    (void)state;
    struct unit_ctx u;
    struct made m;
    make(&m, "int4:g16:min:f16:s4x6");
    unit_ctx_start(&u, 1);
    int64_t failed = 0;
    for (qn_status status = QN_E_MEMORY; status != QN_OK; failed++) {
        qn_weight *w = NULL, *part = NULL;
        u.memory.calls = 0;
        u.memory.fail_at = failed + 1;
        status = qn_weight_create(&u.ctx, &m.p, &w, NULL);
        if (status == QN_OK)
            status = qn_weight_slice(&u.ctx, w, 0, 1, 0, 64, &part, NULL);
        assert_true(status == QN_OK || (status == QN_E_MEMORY && part == NULL));
        u.memory.fail_at = 0;
        qn_weight_destroy(part);
        qn_weight_destroy(w);
        assert_int_equal(u.memory.live, 0);
    }
    assert_true(failed > 14);
    unit_ctx_stop(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_made),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(cutting_keeps_whole_super_blocks),
        cmocka_unit_test(no_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
