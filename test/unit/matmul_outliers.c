/* SPDX-License-Identifier: Apache-2.0 */
/* The matmul row that splits outliers from rows of x, alone, against sums one after the other: more
 * rows and positions than are multiplied at a time; columns of x that span little, much, or all
 * bytes, so that each kind of product is chosen, lists are long and short, and the row refuses. */
#include "cpu/cpuid.h"
#include "cpu/matmul/kernel.h"
#include "unit.h"

#if QN_BUILD_X86_AVX2

enum { MOST_ROWS = 260, MOST_PANELS = 5, MOST_UNITS = 31, MOST_K = MOST_UNITS * 32 };
enum { N = MOST_PANELS * 16, SCRATCH = 393216, PAD = 16 };
enum { SMALL = 0, BELL = 1, ANY = 2, ENDS = 3, SOME = 4 };
/* For x alone: a bell with longer tails; ends of one sign. */
enum { TAILS = 5, END = 6, N_X_DATA = 7 };

static _Alignas(64) uint8_t scratch[SCRATCH];
static _Alignas(64) int8_t x[MOST_ROWS * MOST_K];
static uint8_t codes[MOST_PANELS * MOST_K * 16];
static float scale[N];
static int8_t w[N * MOST_K];
static int32_t y[MOST_ROWS * (N + PAD)], facts[MOST_ROWS], sums[N];
static uint64_t state = 1;

static int32_t draw(int32_t data, int32_t lo, int64_t at)
{
    const int32_t small = (int32_t)unit_in(&state, -12, 12);
    switch (data) {
    case SMALL:
        return small;
    case BELL:
        return (int32_t)(unit_in(&state, -42, 42) + unit_in(&state, -42, 42) +
                         unit_in(&state, -43, 43));
    case ANY:
        return (int32_t)unit_in(&state, lo, 127);
    case ENDS:
        return unit_in(&state, 0, 1) == 0 ? lo : 127;
    case TAILS:
        return small + (int32_t)(at % 3 == 0 ? unit_in(&state, -50, 50) : 0);
    case END:
        return lo;
    default: /* some columns alone */
        return at % 29 == 11 ? (int32_t)unit_in(&state, lo, 127) : small;
    }
}

struct scene {
    qni_matmul_kernel_fn *kernel;
    int32_t *kept;
    int64_t m, panels, units;
    int32_t x_data, w_data, x_zero;
};

static void make(const struct scene *s)
{
    const int64_t k = s->units * 32;
    memset(facts, 0, sizeof facts);
    for (int64_t i = 0; i < s->m * k; i++) {
        x[i] = (int8_t)draw(s->x_data, s->x_zero == 0 ? -127 : -128, i % k);
        facts[i / k] += x[i];
    }
    for (int64_t j = 0; j < s->panels * 16; j++) {
        sums[j] = 0;
        scale[j] = 1.0f;
        for (int64_t p = 0; p < k; p++) {
            w[j * k + p] = (int8_t)draw(s->w_data, -128, p);
            sums[j] += w[j * k + p];
            codes[(j / 16 * k + p / 4 * 4) * 16 + j % 16 * 4 + p % 4] =
                (uint8_t)(w[j * k + p] + 128);
        }
    }
}

/* False: the row refused. */
static bool check(const struct scene *s)
{
    const int64_t k = s->units * 32, n = s->panels * 16;
    const struct qni_matmul_tile t = {
        .a = x,
        .lda = (size_t)k,
        .m = s->m,
        .a_sum = facts,
        .ld_segment = 1,
        .x_zero = s->x_zero,
        .codes = codes,
        .codes_stride = (size_t)k * 16,
        .scale = scale,
        .sums = sums,
        .n_panels = s->panels,
        .units = s->units,
        .n_groups = 1,
        .group_units = s->units,
        .segment_units = s->units,
        .n_segments = 1,
        .raw_i32 = 1,
        .c = (float *)(void *)y,
        .ldc = (size_t)(n + PAD),
        .scratch = scratch,
        .kept = s->kept,
    };
    memset(y, 0xa5, sizeof y);
    s->kernel(&t);
    if (*s->kept == QNI_TOO_MANY_OUTLIERS)
        return false;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < n + PAD; j++) {
            int32_t exact = (int32_t)0xa5a5a5a5;
            if (j < n) {
                exact = -s->x_zero * sums[j];
                for (int64_t p = 0; p < k; p++)
                    exact += x[i * k + p] * w[j * k + p];
            }
            assert_int_equal(y[i * (n + PAD) + j], exact);
        }
    return true;
}

/* The second call finds what the first one kept. */
static void test_outliers(void **unused)
{
    static const int64_t rows[] = {1, 2, 3, 5, 7, 10, 13, 24, 65, 130};
    int32_t n_served[N_X_DATA] = {0}, n_refused[N_X_DATA] = {0};
    (void)unused;
    if ((QN_ISA_AVX2 & ~qni_cpuid_detect()) != 0)
        skip();
    for (int32_t i = 0; i < N_X_DATA * 20; i++) {
        struct scene s = {.m = rows[i * 7 % 10], .panels = 1 + i % MOST_PANELS};
        int32_t kept = 0;
        s.kernel = qni_matmul_q8_q8n16_mr4_outliers_avx2;
        s.kept = &kept;
        s.x_data = i % N_X_DATA;
        s.w_data = i % 3 == 0 ? BELL : i % 3 == 1 ? ANY : ENDS;
        s.x_zero = i % 3 == 0 ? (int32_t)unit_in(&state, -128, 127) : 0;
        s.units = i % 4 == 0 ? MOST_UNITS : unit_in(&state, 1, 29);
        if (s.m <= 24 && i % 5 == 0)
            s.panels = 1, s.units = 150;
        make(&s);
        const bool served = check(&s);
        if (i % 2 == 0)
            kept = 0;
        assert_true(check(&s) == served);
        n_served[s.x_data] += served;
        n_refused[s.x_data] += !served;
    }
    /* Small values and a few outliers are what the row is for, all bytes are not. */
    assert_int_equal(n_refused[SMALL], 0);
    assert_true(n_served[SOME] > 0 && n_served[TAILS] > 0);
    assert_true(n_refused[ENDS] > 0 && n_refused[END] > 0);
}

#else

static void test_outliers(void **unused)
{
    (void)unused;
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_outliers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
