/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of packed weights depend on the weight and the options alone: not on what memory held
 * before, not on threads, and not on whether units go through the vectors that pack whole ones side
 * by side or one by one. Layouts themselves: pack.c of quern-check. */
#include "unit.h"

#include "cpu/layouts.h"
#include "quant/pack.h"
#include "random_weight.h"

static uint8_t *write(const struct unit_ctx *u, const struct qni_packing *packing,
                      const struct qn_weight *w, int before)
{
    qn_pack_options options;
    struct qni_pack p;
    qn_pack_options_init(&options);
    assert_int_equal(qni_pack_plan(packing, w, &options, &p, NULL), QN_OK);
    uint8_t *const blob = aligned_alloc(64, (size_t)p.head.bytes);
    assert_non_null(blob);
    memset(blob, before, (size_t)p.head.bytes);
    qni_pack_write(&u->ctx.threads, &p, true, blob);
    return blob;
}

static void assert_same_bytes(const char *spec, int shape, const uint8_t *a, const uint8_t *b)
{
    const struct qni_packed_head *h = (const struct qni_packed_head *)a;
    for (uint64_t i = 0; i < h->bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s, shape %d: byte %llu of %llu differs", spec, shape, (unsigned long long)i,
                     (unsigned long long)h->bytes);
}

static void nothing_else_decides(void **state)
{
    (void)state;
    static const struct random_shape more[] = {{32, 4096, 1, 1, 1}, {48, 2080, 1, 1, 1}};
    struct unit_ctx one, three;
    unit_ctx_start(&one, 1);
    unit_ctx_start(&three, 3);
    struct qni_packing by_units = qni_cpu_packing;
    assert_non_null(by_units.store_rows);
    by_units.store_rows = NULL;
    for (int f = 0; f < N_RANDOM_SPECS; f++)
        for (int s = 0; s < N_RANDOM_SHAPES + 2; s++) {
            const struct random_shape shape =
                s < N_RANDOM_SHAPES ? random_shapes[s] : more[s - N_RANDOM_SHAPES];
            struct qn_weight *w = random_weight(&one.ctx, random_specs[f], shape,
                                                (uint64_t)(100 * f + s), s % 2 == 0, f % 3 == 0);
            assert_non_null(w);
            uint8_t *const whole = write(&one, &qni_cpu_packing, w, 0xa5);
            uint8_t *const threads = write(&three, &qni_cpu_packing, w, 0);
            uint8_t *const units = write(&one, &by_units, w, 0x5a);
            assert_same_bytes(random_specs[f], s, whole, threads);
            assert_same_bytes(random_specs[f], s, whole, units);
            free(whole);
            free(threads);
            free(units);
            qn_weight_destroy(w);
        }
    unit_ctx_stop(&one);
    unit_ctx_stop(&three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_else_decides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
