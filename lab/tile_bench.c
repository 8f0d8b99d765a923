/* SPDX-License-Identifier: Apache-2.0 */
/* One int8 matmul kernel on one thread: checked against plain loops, then timed in turn with a
 * streaming read of the same bytes and with as many products of tiles from registers.
 *
 *   cc -O3 -std=gnu11 -march=native -ffp-contract=off -Iinclude lab/tile_bench.c
 *   src/cpu/matmul/x86_vnni512.c \
 *      src/cpu/matmul/x86_amx.c -lm -o /tmp/tile_bench && /tmp/tile_bench KERNEL M GROUP [N] [K]
 *
 * The weights (n x k) are cut in panels and every panel is used once per pass; passes rotate over
 * copies larger than the last level cache when M is small (WARM=1: one copy; SYM=1: no offsets).
 * LDC=4096: c has rows so far apart, and groups of 0, whole rows, are scaled by row as y is; FAR=1: c is
 * larger than caches.
 * Figures: us a pass (median), GB/s of codes, TOP/s. */
#include "bench.h"

#include <immintrin.h>
#include <math.h>
#include <stdio.h>

#include "../src/cpu/matmul/kernel.h"

#define LAB_KERNELS(X)                                                                             \
    X(q8_q4n16_mr8_vnni512)                                                                        \
    X(q8_q8n16_mr8_vnni512)                                                                        \
    X(q8_t4n16_mr8_vnni512)                                                                        \
    X(q8b_q4n16_mr8_vnni512)                                                                       \
    X(q8b_q8n16_mr8_vnni512)                                                                       \
    X(q8b_t4n16_mr8_vnni512)                                                                       \
    X(q8_q4n16_mr32_amx)                                                                           \
    X(q8_q8n16_mr32_amx)                                                                           \
    X(q8_t4n16_mr32_amx)                                                                           \
    X(q8b_q4n16_mr32_amx)                                                                          \
    X(q8b_q8n16_mr32_amx)                                                                          \
    X(q8b_t4n16_mr32_amx)
#define X(name) qni_matmul_kernel_fn qni_matmul_##name;
LAB_KERNELS(X)
#undef X
static const struct {
    const char *name;
    qni_matmul_kernel_fn *fn;
} list[] = {
#define X(name) {#name, qni_matmul_##name},
    LAB_KERNELS(X)
#undef X
};

/* Value of the code at position p of output j of a panel. */
static int code_at(const struct qni_matmul_tile *t, const uint8_t *codes, int bytes, int64_t p,
                   int j)
{
    const int64_t u = p / 32, q = p % 32;
    if (bytes)
        return codes[u * 512 + q / 4 * 64 + j * 4 + q % 4] - 128;
    const uint8_t v = codes[u * 256 + q % 16 / 4 * 64 + j * 4 + q % 4];
    const int nibble = q < 16 ? v & 15 : v >> 4;
    return t->table8 != NULL ? t->table8[nibble] : nibble - 8;
}

/* A segment: units [unit, end) of one group. */
struct segment {
    int64_t group, unit, end;
};

/* Those of a row; their number, too. */
static struct segment *segments_of(struct qni_matmul_tile *t)
{
    struct segment *all = room((size_t)t->units * sizeof *all);
    t->n_segments = 0;
    for (int64_t g = 0; g < t->n_groups; g++) {
        const int64_t first = g * t->group_units, left = t->units - first;
        const int64_t end = first + (left < t->group_units ? left : t->group_units);
        for (int64_t unit = first; unit < end; unit += t->segment_units) {
            const int64_t e = unit + t->segment_units < end ? unit + t->segment_units : end;
            all[t->n_segments++] = (struct segment){g, unit, e};
        }
    }
    return all;
}

static int check(const struct qni_matmul_tile *t, const struct segment *segments, int bytes,
                 int block)
{
    int bad = 0;
    for (int64_t trial = 0; trial < 400; trial++) {
        const int64_t i = trial < 40 ? trial % t->m : rnd() % t->m,
                      col = rnd() % (t->n_panels * 16);
        const int64_t panel = col / 16;
        const int j = (int)(col % 16);
        const uint8_t *const codes = t->codes + panel * (int64_t)t->codes_stride;
        float acc = 0;
        for (int64_t s = 0; s < t->n_segments; s++) {
            int dot = 0, sum_w = 0;
            for (int64_t p = segments[s].unit * 32; p < segments[s].end * 32; p++) {
                const int w = code_at(t, codes, bytes, p, j);
                dot += w * ((const int8_t *)t->a)[i * (int64_t)t->lda + p];
                sum_w += w;
            }
            const int64_t f = i * (int64_t)t->ld_segment + s;
            const float sw =
                ((const float *)t->scale)[(panel * t->n_groups + segments[s].group) * 16 + j];
            if (block) {
                const float term =
                    t->a_offset ? fmaf(t->a_scale[f], (float)dot, t->a_offset[f] * (float)sum_w)
                                : t->a_scale[f] * (float)dot;
                acc = fmaf(sw, term, acc);
            } else {
                acc = fmaf(sw, (float)(dot - t->x_zero * sum_w), acc);
            }
        }
        if (t->row_scale != NULL)
            acc *= t->row_scale[i];
        bad += memcmp(&acc, &t->c[i * (int64_t)t->ldc + col], 4) != 0;
    }
    return bad;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Four products of full tiles so many times, on numbers that are not zero: with zeros the tiles
 * take less power and the clock rises by a fifth. */
static void tiles_alone(int64_t n)
{
    static int8_t numbers[2][1024];
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_per_row[16];
        uint8_t rows[16];
    } c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++)
        c.bytes_per_row[i] = 64, c.rows[i] = 16;
    for (int i = 0; numbers[0][0] == 0 && i < 1024; i++)
        numbers[0][i] = (int8_t)(rnd() % 255 - 127), numbers[1][i] = (int8_t)(rnd() % 16 - 8);
    numbers[0][0] = 1;
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
    _tile_loadd(4, numbers[0], 64);
    _tile_loadd(5, numbers[0], 64);
    _tile_loadd(6, numbers[1], 64);
    _tile_loadd(7, numbers[1], 64);
    for (int64_t i = 0; i < n; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "q8_q4n16_mr8_vnni512";
    const int64_t m = argc > 2 ? atoll(argv[2]) : 1, group = argc > 3 ? atoll(argv[3]) : 128;
    const int64_t n = argc > 4 ? atoll(argv[4]) : 2048, k = argc > 5 ? atoll(argv[5]) : 4096;
    const int bytes = strstr(name, "_q8n16") != NULL, block = strncmp(name, "q8b", 3) == 0;
    const int table = strstr(name, "_t4n16") != NULL;
    qni_matmul_kernel_fn *fn = NULL;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(list[i].name, name) == 0)
            fn = list[i].fn;
    if (fn == NULL || !may_use_tiles())
        return 2;
    static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
    struct qni_matmul_tile t;
    memset(&t, 0, sizeof t);
    t.m = m;
    t.units = (k + 31) / 32;
    t.group_units = group == 0 ? t.units : (group + 31) / 32;
    t.n_groups = (t.units + t.group_units - 1) / t.group_units;
    t.segment_units = block && t.group_units > 4 ? 4 : t.group_units;
    const struct segment *const segments = segments_of(&t);
    t.lda = (size_t)t.units * 32 + 64;
    t.ld_segment = (size_t)t.n_segments;
    t.n_panels = n / 16;
    t.codes_stride = (size_t)t.units * (bytes ? 512 : 256);
    t.table8 = table ? values : NULL;
    int8_t *a = room((size_t)m * t.lda);
    int32_t *a_sum = room((size_t)m * t.ld_segment * 4);
    float *a_scale = room((size_t)m * t.ld_segment * 4),
          *a_offset = room((size_t)m * t.ld_segment * 4);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t p = 0; p < t.units * 32; p++)
            a[i * (int64_t)t.lda + p] = (int8_t)(rnd() % 256 - 128);
        for (int64_t s = 0; s < t.n_segments; s++) {
            for (int64_t p = segments[s].unit * 32; p < segments[s].end * 32; p++)
                a_sum[i * t.n_segments + s] += a[i * (int64_t)t.lda + p];
            a_scale[i * t.n_segments + s] = 0.001f + (float)(rnd() % 100) * 1e-4f;
            a_offset[i * t.n_segments + s] = (float)(rnd() % 100) * 1e-3f;
        }
    }
    t.a = a, t.a_sum = a_sum, t.a_scale = a_scale;
    t.a_offset = block && getenv("SYM") == NULL ? a_offset : NULL;
    const size_t size = t.codes_stride * (size_t)t.n_panels;
    const int copies = getenv("WARM") != NULL ? 1 : m > 64 ? 2 : (int)(700e6 / (double)size) + 1;
    uint8_t *codes = room(size * (size_t)copies);
    for (size_t i = 0; i < size; i++)
        codes[i] = (uint8_t)rnd();
    for (int c = 1; c < copies; c++)
        memcpy(codes + size * (size_t)c, codes, size);
    float *scale = room((size_t)n * (size_t)t.n_groups * 4);
    for (int64_t i = 0; i < n * t.n_groups; i++)
        scale[i] = 0.01f + (float)(rnd() % 1000) * 1e-5f;
    int32_t *sums = room((size_t)n * (size_t)t.n_segments * 4);
    for (int64_t pn = 0; pn < t.n_panels; pn++)
        for (int j = 0; j < 16; j++)
            for (int64_t s = 0; s < t.n_segments; s++)
                for (int64_t p = segments[s].unit * 32; p < segments[s].end * 32; p++)
                    sums[(pn * t.n_segments + s) * 16 + j] +=
                        code_at(&t, codes + (size_t)pn * t.codes_stride, bytes, p, j);
    t.codes = codes, t.scale = scale, t.sums = sums;
    t.x_zero = block ? 0 : 3;
    t.ldc = (size_t)n + 16;
    if (getenv("LDC") != NULL && !block && group == 0) {
        t.ldc = strtoul(getenv("LDC"), NULL, 10);
        t.row_scale = a_scale;
        t.c_is_far = getenv("FAR") != NULL;
    }
    t.c = room((size_t)m * t.ldc * 4);
    t.scratch = room(2 << 20);
    fn(&t);
    const int bad = check(&t, segments, bytes, block);
    static struct times kernel, tiles, reads;
    volatile uint64_t sink = 0;
    const double begin = now();
    for (int r = 0; once_more(&kernel, begin, 4e5); r++) {
        t.codes = codes + size * (size_t)(r % copies);
        double s = now();
        fn(&t);
        add_time(&kernel, s);
        s = now();
        tiles_alone((m + 31) / 32 * ((n + 31) / 32) * ((k + 63) / 64));
        add_time(&tiles, s);
        if (copies == 1)
            continue;
        const uint64_t *q = (const uint64_t *)(codes + size * (size_t)((r + copies / 2) % copies));
        s = now();
        uint64_t x[8] = {0};
        for (size_t i = 0; i < size / 8; i += 8)
            for (int j = 0; j < 8; j++)
                x[j] += q[i + (size_t)j];
        for (int j = 0; j < 8; j++)
            sink += x[j];
        add_time(&reads, s);
    }
    (void)sink;
    const double us = median(&kernel);
    printf(
        "%-24s m %4lld g %4lld n %lld k %lld: %s  %7.1f us (least %7.1f)  %5.2f GB/s (reads %5.2f)"
        "  %5.2f TOP/s, %4.1f %% of tiles alone\n",
        name, (long long)m, (long long)group, (long long)n, (long long)k, bad ? "WRONG" : "exact",
        us, kernel.us[0], (double)size / us * 1e-3,
        reads.n == 0 ? 0.0 : (double)size / median(&reads) * 1e-3,
        2.0 * (double)(m * n) * (double)k / us * 1e-6, 100 * median(&tiles) / us);
    return bad != 0;
}
