/* SPDX-License-Identifier: Apache-2.0 */
/* The float kernel of tiles on one thread: checked against sums in double, then timed.
 *
 *   cc -O3 -std=gnu11 -march=native -ffp-contract=off -Iinclude lab/float_bench.c
 *   src/cpu/matmul/x86_amx_float.c \
 *      -lm -o /tmp/float_bench && /tmp/float_bench M PLANES GROUP [N] [K] [COPIES]
 *
 * 4-bit weights with offsets, f32 scales; GROUP 0: per channel. A call has 32 panels at most. LDC=:
 * elements from row to row of the results, N + 16 if not given; FAR=1: their stores may pass the
 * caches by. Figures: us for all panels (median, least) and ns a tile of B. */
#include "bench.h"

#include <math.h>
#include <stdio.h>

#include "../src/cpu/matmul/kernel.h"

qni_matmul_kernel_fn qni_matmul_bf16_q4n16_mr32_amx;

enum { PANELS = 32 };

/* Planes of x in the order of kernel.h; x keeps what they hold. */
static void split(const struct qni_matmul_tile *t, float *x, uint8_t *a, int64_t k)
{
    static const int64_t place[4] = {0, 2, 1, 3};
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t p = 0; p < k; p++) {
            size_t step, at = qni_bf16_row(t->lda, t->m, i, &step);
            at += (size_t)(p / 32 * t->planes) * step;
            float left = x[i * k + p];
            for (int32_t plane = 0; plane < t->planes; plane++, at += step) {
                uint32_t bits;
                memcpy(&bits, &left, 4);
                const uint16_t upper = (uint16_t)(bits >> 16);
                memcpy(a + at + 2 * (p % 32 / 4 * 4 + place[p % 4]), &upper, 2);
                bits &= 0xffff0000u;
                float cut;
                memcpy(&cut, &bits, 4);
                left -= cut;
            }
            x[i * k + p] -= left;
        }
}

/* The largest error of some results, as a part of the bound of docs/numerics.md. */
static double error_of(const struct qni_matmul_tile *t, const float *x, int64_t k, int64_t n)
{
    double worst = 0;
    for (int64_t trial = 0; trial < 600; trial++) {
        const int64_t i = trial % t->m, j = trial == 0 ? n - 1 : rnd() % n;
        double sum = 0, all = 0;
        for (int64_t p = 0; p < k; p++) {
            const uint8_t v = t->codes[j / 16 * (int64_t)t->codes_stride + p / 32 * 256 +
                                       p % 16 / 4 * 64 + j % 16 * 4 + p % 4];
            const int64_t g = (j / 16 * t->n_groups + p / 32 / t->group_units) * 16 + j % 16;
            const double value = (double)((p % 32 < 16 ? v & 15 : v >> 4) - 8);
            const double scaled = ((const float *)t->scale)[g] * value;
            const double offset = ((const float *)t->offset)[g];
            sum += x[i * k + p] * (scaled + offset);
            all += fabs(x[i * k + p]) * (fabs(scaled) + fabs(offset));
        }
        const double e = fabs(sum - t->c[i * (int64_t)t->ldc + j]) / (all * (double)(k + 8));
        worst = e * 0x1p23 > worst ? e * 0x1p23 : worst;
    }
    return worst;
}

static void all_panels(const struct qni_matmul_tile *t, size_t copy, size_t bytes)
{
    for (int64_t p = 0; p < t->n_panels; p += PANELS) {
        struct qni_matmul_tile part = *t;
        const int64_t facts = p * t->n_groups * 16;
        part.n_panels = t->n_panels - p < PANELS ? t->n_panels - p : PANELS;
        part.codes += copy * bytes + (size_t)p * t->codes_stride;
        part.scale = (const float *)t->scale + facts;
        part.offset = (const float *)t->offset + facts;
        part.c += p * 16;
        qni_matmul_bf16_q4n16_mr32_amx(&part);
    }
}

int main(int argc, char **argv)
{
    const int64_t group = argc > 3 ? atoll(argv[3]) : 128, n = argc > 4 ? atoll(argv[4]) : 512;
    const int64_t k = argc > 5 ? atoll(argv[5]) : 4096;
    const size_t copies = argc > 6 ? (size_t)atoll(argv[6]) : 1;
    if (k % 32 != 0 || n % 16 != 0 || !may_use_tiles())
        return 2;
    struct qni_matmul_tile t;
    memset(&t, 0, sizeof t);
    t.m = argc > 1 ? atoll(argv[1]) : 8;
    t.planes = argc > 2 ? atoi(argv[2]) : 3;
    t.units = k / 32;
    t.group_units = group == 0 ? t.units : group / 32;
    t.n_groups = (t.units + t.group_units - 1) / t.group_units;
    t.ld_segment = (size_t)t.n_groups;
    t.lda = (size_t)(t.units * t.planes) * 64;
    t.n_panels = n / 16;
    t.codes_stride = (size_t)t.units * 256;
    t.ldc = getenv("LDC") != NULL ? (size_t)atoll(getenv("LDC")) : (size_t)n + 16;
    t.c_is_far = getenv("FAR") != NULL;
    const size_t bytes = t.codes_stride * (size_t)t.n_panels, facts = (size_t)(n * t.n_groups);
    float *x = room((size_t)(t.m * k) * 4), *total = room((size_t)(t.m * t.n_groups) * 4);
    float *scale = room(facts * 4), *offset = room(facts * 4);
    uint8_t *a = room((size_t)t.m * t.lda), *codes = room(bytes * copies);
    for (int64_t i = 0; i < t.m * k; i++)
        x[i] = (float)((int32_t)(rnd() % 2000001) - 1000000) * 1e-6f;
    split(&t, x, a, k);
    for (int64_t i = 0; i < t.m * k; i++)
        total[i / k * t.n_groups + i % k / 32 / t.group_units] += x[i];
    for (size_t i = 0; i < bytes * copies; i++)
        codes[i] = i < bytes ? (uint8_t)rnd() : codes[i - bytes];
    for (size_t i = 0; i < facts; i++) {
        scale[i] = 0.01f + (float)(rnd() % 1000) * 1e-5f;
        offset[i] = (float)((int32_t)(rnd() % 1000) - 500) * 1e-4f;
    }
    t.a = a, t.a_total = total, t.codes = codes, t.scale = scale, t.offset = offset;
    t.c = room((size_t)t.m * t.ldc * 4);
    t.scratch = room(1 << 20);
    t.is_finite = &(bool){true};
    all_panels(&t, 0, bytes);
    const double error = error_of(&t, x, k, n);
    static struct times times;
    for (const double begin = now(); once_more(&times, begin, 5e5);) {
        const double start = now();
        all_panels(&t, (size_t)times.n % copies, bytes);
        add_time(&times, start);
    }
    const double us = median(&times);
    printf("m %3lld planes %d g %4lld: %s, %8.1f us (least %8.1f), %6.2f ns a tile of B\n",
           (long long)t.m, t.planes, (long long)group, error < 1 ? "good" : "WRONG", us,
           times.us[0], us * 1e3 / (double)(t.units * t.n_panels));
    return error < 1 ? 0 : 1;
}
