/* SPDX-License-Identifier: Apache-2.0 */
/* What the decode kernel of decode_sm90a.cu is launched with (quads_plan), for sizes of all kinds:
 * everything has its own place in shared memory, clusters share out all quads, slots belong to one
 * warpgroup each, and no plan is refused for want of room that a smaller one had. */
#include "unit.h"

#include "cuda/matmul/decode_quads.h"

enum { LIMIT = 227 * 1024, MACHINES = 132 };

static struct qni_cuda_product product_of(int32_t n, int32_t units, int32_t group_units, int64_t m,
                                          int32_t shift, int32_t is_f16)
{
    struct qni_cuda_product p;
    memset(&p, 0, sizeof p);
    p.m = m;
    p.x.planes = 1;
    p.x.columns = units * QNI_CUDA_UNIT;
    p.w.n = n;
    p.w.parts = 1;
    p.w.panels = (n + 15) / 16;
    p.w.units = units;
    p.w.group_units = group_units;
    p.w.n_groups = (units + group_units - 1) / group_units;
    p.w.shift = shift;
    p.w.scale_is_f16 = is_f16;
    return p;
}

static void check(const struct quad_plan *e, const struct qni_cuda_product *p, int32_t bits)
{
    const int32_t rows = quads_rows(p->m), most = e->share + (e->more > 0);
    const int32_t length = (e->stages + e->slices - 1) / e->slices;
    const int32_t quads = (p->w.panels + 3) / 4;
    assert_true(rows >= p->m && e->slices == 1 << e->slices_bits);
    assert_int_equal(64 >> e->slices_bits, 1 << e->each_bits);
    assert_true((int64_t)e->share * e->clusters + e->more == quads && e->more < e->clusters);
    assert_true(e->clusters * e->slices <= MACHINES && e->clusters >= 1 && e->share >= 1);
    assert_true((int64_t)e->stages * QUADS_UNITS >= p->w.units);
    /* One thing behind the other, within the limit, and where the copy engine can write. */
    assert_true(e->at_x >= QUADS_FIXED && e->at_x % 1024 == 0 && e->at_ring % 1024 == 0);
    assert_true(e->at_ring - e->at_x >= length * QUADS_BLOCKS * rows * 128);
    assert_true(e->at_stage - e->at_ring >= e->depth * e->slot_bytes);
    assert_true(e->at_sums - e->at_stage >= e->n_stage * e->sums);
    assert_true(e->bytes - e->at_sums >= e->n_sums * e->sums && e->bytes <= LIMIT);
    assert_true(e->slot_bytes % 128 == 0 && e->slot_bytes >= e->expect);
    assert_int_equal(e->expect, QUADS_PANELS * QUADS_BLOCKS * 128 * bits + e->tables + e->zeros);
    assert_true(e->sums % 128 == 0 && e->tables % 128 == 0);
    assert_true(e->sums >= QUADS_GROUPS * 64 * (rows + 4) * 4);
    assert_true(e->n_stage >= 1 && e->n_stage <= 2 && e->n_sums <= 2);
    assert_true((e->slices == 1) == (e->n_sums == 0));
    assert_true(most == 1 || e->n_stage + e->n_sums >= 1);
    assert_true(e->depth % QUADS_GROUPS == 0 && e->depth >= QUADS_GROUPS &&
                e->depth <= QUADS_MAX_STAGES);
    /* A stage has whole groups, or groups have whole stages. */
    if (e->rows > 1)
        assert_int_equal(e->rows * p->w.group_units, QUADS_UNITS);
    else if (p->w.n_groups > 1)
        assert_int_equal(e->period * QUADS_UNITS, p->w.group_units);
}

static void every_plan_has_room(void **state)
{
    static const int32_t outputs[] = {1, 16, 17, 64, 1000, 4096, 14336, 28672, 128256, 4000000};
    static const int32_t units[] = {2, 6, 16, 34, 128, 160, 256, 592, 1024, 4096, 100000};
    static const int32_t groups[] = {1, 2, 3, 4, 8, 16, 24, 1 << 20};
    int32_t served = 0, refused = 0;
    (void)state;
    for (size_t n = 0; n < sizeof outputs / sizeof *outputs; n++)
        for (size_t k = 0; k < sizeof units / sizeof *units; k++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
                for (int32_t shift = 0; shift < 3; shift++)
                    for (int32_t kind = 0; kind < 4; kind++) {
                        bool before = true; /* with fewer rows */
                        for (int64_t m = 9; m <= 34; m += 5) {
                            const struct qni_cuda_product p =
                                product_of(outputs[n], units[k], groups[g], m, shift, kind % 2);
                            const int32_t bits = kind / 2 ? 8 : 4;
                            struct quad_plan e;
                            const bool fits = quads_plan(&e, &p, bits, MACHINES, LIMIT);
                            assert_true(before || !fits);
                            assert_false(fits && (shift == QNI_CUDA_SHIFT_OFFSET || m > 32));
                            if (fits)
                                check(&e, &p, bits);
                            served += fits;
                            refused += !fits;
                            before = fits;
                        }
                    }
    assert_true(served > 1000 && refused > 1000);
}

/* Figures of lab/cuda/NOTES.md: these would be slower otherwise. */
static void known_sizes_are_cut_well(void **state)
{
    static const int32_t known[][4] = {
        /* n, k, m, slices */
        {4096, 4096, 16, 2},  {14336, 4096, 16, 1}, {8192, 8192, 16, 2}, {28672, 8192, 16, 2},
        {3584, 18944, 16, 8}, {14336, 4096, 24, 2}, {28672, 8192, 32, 4}};
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct qni_cuda_product p =
            product_of(known[i][0], known[i][1] / 32, 4, known[i][2], 0, 1);
        struct quad_plan e;
        assert_true(quads_plan(&e, &p, 4, MACHINES, LIMIT));
        assert_int_equal(e.slices, known[i][3]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_has_room),
        cmocka_unit_test(known_sizes_are_cut_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
