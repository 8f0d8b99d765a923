/* SPDX-License-Identifier: Apache-2.0 */
/* Which AVX-512 instruction multiplies fastest, and what it does to the numbers: the measurement
 * behind docs/adr/0009. From registers, 12 independent sums (more than latency times rate):
 *
 *     vfmadd231ps   16 products of f32, sums in f32
 *     vdpbf16ps     32 products of bf16, sums in f32
 *     vfmadd231ph   32 products of f16, sums in f16
 *
 * then a dot product of 4096 normal x (f16) and integers of 4 bits both ways, against double.
 *
 *     gcc -O2 -march=sapphirerapids lab/isa_rates.c -o /tmp/isa_rates -lm && /tmp/isa_rates */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUMS = 12, STEPS = 20000, PASSES = 200 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Written out, so that nothing but these instructions is in the loop. */
#define FOUR(name, a, b, c, d)                                                                     \
    name " %%zmm30, %%zmm31, %%zmm" a "\n" name " %%zmm30, %%zmm31, %%zmm" b "\n" name             \
         " %%zmm30, %%zmm31, %%zmm" c "\n" name " %%zmm30, %%zmm31, %%zmm" d "\n"
#define TIMER(function, name)                                                                      \
    static double function(void)                                                                   \
    {                                                                                              \
        double best = 1e9;                                                                         \
        for (int pass = 0; pass < PASSES; pass++) {                                                \
            const double begin = now();                                                            \
            for (int step = 0; step < STEPS; step++)                                               \
                __asm__ volatile(FOUR(name, "0", "1", "2", "3") FOUR(name, "4", "5", "6", "7")     \
                                     FOUR(name, "8", "9", "10", "11")::                            \
                                         : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", \
                                           "zmm7", "zmm8", "zmm9", "zmm10", "zmm11");              \
            const double took = now() - begin;                                                     \
            best = took < best ? took : best;                                                      \
        }                                                                                          \
        return best;                                                                               \
    }
TIMER(f32_sums, "vfmadd231ps")
TIMER(bf16_sums, "vdpbf16ps")
TIMER(f16_sums, "vfmadd231ph")

static void rate(const char *name, double best, int products)
{
    const double n = (double)STEPS * SUMS;
    printf("%-12s %6.2f G instructions/s, %7.1f G multiply-adds/s\n", name, 1e-9 * n / best,
           1e-9 * n * products / best);
}

/* One lane of each way of adding up n products, f16 x against f16 codes. */
static void errors(int n)
{
    double worst32 = 0.0, worst16 = 0.0, size = 0.0;
    srand(1);
    for (int t = 0; t < 200; t++) {
        double exact = 0.0, magnitude = 0.0;
        float s32 = 0.0f;
        __m128h s16 = _mm_setzero_ph();
        for (int p = 0; p < n; p++) {
            const double u = ((double)rand() + 1.0) / ((double)RAND_MAX + 2.0);
            const double v = (double)rand() / (double)RAND_MAX;
            const _Float16 x = (_Float16)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
            const _Float16 w = (_Float16)(rand() % 16 - 8);
            exact += (double)x * (double)w;
            magnitude += fabs((double)x * (double)w);
            s32 = fmaf((float)x, (float)w, s32);
            s16 = _mm_fmadd_ph(_mm_set1_ph(x), _mm_set1_ph(w), s16);
        }
        worst32 = fmax(worst32, fabs((double)s32 - exact) / magnitude);
        worst16 = fmax(worst16, fabs((double)_mm_cvtsh_h(s16) - exact) / magnitude);
        size = fmax(size, magnitude);
    }
    printf("k = %5d: error / sum |x w|: f32 sums %.1e, f16 sums %.1e; sum |x w| up to %.0f\n", n,
           worst32, worst16, size);
}

int main(void)
{
    /* 1 in f32; as f16, and as bf16, still numbers with a normal product */
    __asm__ volatile(
        "vbroadcastss %0, %%zmm30\n vbroadcastss %0, %%zmm31\n vpxord %%zmm0, %%zmm0, %%zmm0"
        :
        : "m"((const float){1.0f})
        : "zmm0", "zmm30", "zmm31");
    for (int repeat = 0; repeat < 3; repeat++) {
        rate("vfmadd231ps", f32_sums(), 16);
        rate("vdpbf16ps", bf16_sums(), 32);
        rate("vfmadd231ph", f16_sums(), 32);
    }
    errors(128);
    errors(4096);
    errors(14336);
    return 0;
}
