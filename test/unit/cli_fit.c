/* SPDX-License-Identifier: Apache-2.0 */
/* Fitting the cost model to times that are made up: the constants that made them are found again,
 * also through noise, single bad samples, and where samples say little. */
#include "unit.h"

#include <math.h>

#include "../../cli/fit.h"

enum { N = 60 };

/* Products of growing size and rows, as a kernel with tiles of 64 rows would be asked for. */
static void make_samples(const struct fit_line *truth, double noise, struct fit_sample *samples)
{
    uint64_t state = 11;
    for (int i = 0; i < N; i++) {
        const double size = 8e6 * pow(2, i % 6), rows = pow(2, i / 6);
        samples[i].bytes = size + rows * 16384;
        samples[i].steps = 64 * ceil(rows / 64) * ceil(size / 8e6 / 2);
        samples[i].before_us = i % 2 == 0 ? 0 : 2 + rows / 100;
        samples[i].weight = 1;
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const double random = (double)(state >> 11) / 9007199254740992.0 * 2 - 1;
        samples[i].us = fit_predict(truth, &samples[i]) * exp(noise * random);
    }
}

static const struct fit_line truths[] = {
    {4.5, 2.9e12, 20}, {0, 2.5e12, 40}, {20, 1.5e12, 60}, {6, 3.2e12, 30}};
static const struct fit_line start = {10, 1e12, 1000};

static void assert_close(double a, double b, double tolerance)
{
    assert_true(fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b)));
}

static void constants_are_found_again(void **state)
{
    struct fit_sample samples[N];
    (void)state;
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        make_samples(&truths[i], 0, samples);
        const struct fit_line found = fit_line_to(samples, N, &start, 3.35e12);
        const struct fit_quality q = fit_quality_of(&found, samples, N);
        assert_true(q.worst < 1.01 && q.typical <= q.worst);
        assert_close(found.bandwidth, truths[i].bandwidth, 0.01);
        assert_close(found.block_ns, truths[i].block_ns, 0.01);
        assert_true(fabs(found.t0_us - truths[i].t0_us) < 0.1);
    }
}

static void noise_and_bad_samples_do_not_bend_it(void **state)
{
    struct fit_sample samples[N];
    (void)state;
    make_samples(&truths[0], 0.03, samples);
    samples[7].us *= 10; /* somebody else had the GPU */
    samples[31].us *= 4;
    const struct fit_line found = fit_line_to(samples, N, &start, 3.35e12);
    const struct fit_quality q = fit_quality_of(&found, samples, N);
    assert_close(found.bandwidth, truths[0].bandwidth, 0.03);
    assert_close(found.block_ns, truths[0].block_ns, 0.03);
    assert_true(fabs(found.t0_us - truths[0].t0_us) < 0.3);
    assert_int_equal(q.worst_at, 7);
    assert_true(q.worst > 9 && q.worst < 11);
}

static void nothing_is_negative_or_too_fast(void **state)
{
    struct fit_sample samples[N];
    (void)state;
    make_samples(&truths[1], 0.2, samples);
    for (int i = 0; i < N; i++)
        samples[i].us = fmax(samples[i].us - 3, 0.5); /* a t0 below 0 would fit best */
    struct fit_line found = fit_line_to(samples, N, &start, 2e12);
    assert_true(found.t0_us >= 0 && found.bandwidth > 0 && found.bandwidth <= 2e12);
    assert_true(found.block_ns > 0);
    found = fit_line_to(samples, 0, &start, 2e12);
    assert_true(found.t0_us == start.t0_us && found.block_ns == start.block_ns);
}

/* All samples wait for steps: the bandwidth stays as it was. */
static void what_is_not_seen_stays(void **state)
{
    struct fit_sample samples[N];
    const struct fit_line truth = {5, 3e12, 400}, near = {5, 2e12, 300};
    (void)state;
    make_samples(&truth, 0, samples);
    for (int i = 0; i < N; i++) {
        samples[i].steps += 1000;
        samples[i].us = fit_predict(&truth, &samples[i]);
    }
    const struct fit_line found = fit_line_to(samples, N, &near, 3.35e12);
    assert_close(found.bandwidth, near.bandwidth, 0.02);
    assert_close(found.block_ns, truth.block_ns, 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_are_found_again),
        cmocka_unit_test(noise_and_bad_samples_do_not_bend_it),
        cmocka_unit_test(nothing_is_negative_or_too_fast),
        cmocka_unit_test(what_is_not_seen_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
