/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of words of grouped convolutions, alone, against sums one after the other: with and
 * without squares, of even and odd images, one or two groups to a vector, channels that do not fill
 * vectors, and all codes and zero points at the ends of what bytes hold. */
#include <stdlib.h>

#include "cpu/cpuid.h"
#include "cpu/conv/kernel.h"
#include "unit.h"

#if QN_BUILD_X86_AVX2

enum { LANES = 8, MOST_TAPS = 9, MOST_CI = 64, MOST_CO = 40, SIDE = 11 };
enum { ANY = 0, LOWEST = 1, HIGHEST = 2, ENDS = 3, N_DATA = 4 };

static uint64_t state = 1;

struct scene {
    int64_t ci, co, groups, kernel, rows, columns, stride, width, height, inputs, vectors, set;
    int64_t taps[MOST_TAPS];
    bool squares, is_u8, is_nibble;
    int32_t data, zero;
    int32_t *values; /* [groups][co][taps][ci] */
    uint8_t *x;      /* [height][width][groups][ci] */
    int16_t *words, *w;
    void *scratch;
};

static int32_t draw(const struct scene *s, int32_t lo, int32_t hi)
{
    const int32_t data =
        s->data == ENDS ? (unit_in(&state, 0, 3) == 0 ? LOWEST : HIGHEST) : s->data;
    return data == ANY ? (int32_t)unit_in(&state, lo, hi) : data == LOWEST ? lo : hi;
}

static int64_t n_taps(const struct scene *s)
{
    return s->kernel * s->kernel;
}

/* Panels of a group, of 16 outputs, as packing makes them, and the words of all of them. */
static void make_weights(struct scene *s)
{
    const int64_t k = n_taps(s) * s->ci, units = (k + 31) / 32, panels = (s->co + 15) / 16;
    const size_t bytes = (size_t)units * (s->is_nibble ? 256 : 512);
    const int32_t half = s->is_nibble ? 8 : 128;
    const int64_t positions = s->squares ? QNI_GROUPS_SQUARE_TAPS * s->ci : k;
    uint8_t *const codes = malloc(bytes);
    assert_non_null(codes);
    for (int64_t g = 0; g < s->groups; g++)
        for (int64_t panel = 0; panel < panels; panel++) {
            memset(codes, s->is_nibble ? 0x88 : 0x80, bytes);
            for (int64_t j = 16 * panel; j < s->co && j < 16 * panel + 16; j++)
                for (int64_t p = 0; p < k; p++) {
                    const int32_t value = draw(s, -half, half - 1);
                    const int64_t lane = j % 16 * 4 + p % 4, quad = p % 32 / 4;
                    s->values[(g * s->co + j) * k + p] = value;
                    uint8_t *const low = codes + p / 4 * 64 + lane;
                    uint8_t *const both = codes + p / 32 * 256 + quad % 4 * 64 + lane;
                    if (!s->is_nibble)
                        *low = (uint8_t)(value + half);
                    else if (quad < 4)
                        *both = (uint8_t)((*both & 0xf0) | (value + half));
                    else
                        *both = (uint8_t)((*both & 0x0f) | (value + half) << 4);
                }
            const int64_t left = (s->co - 16 * panel + LANES - 1) / LANES;
            const struct qni_groups_panel job = {
                .codes = codes,
                .code_bits = s->is_nibble ? 4 : 8,
                .k = k,
                .vectors = s->groups > 1 ? 1
                           : left < 2    ? left
                                         : 2,
                .groups = s->groups,
                .group = g,
                .ci = s->ci,
                .in_squares = s->squares,
                .to = (float *)(void *)(s->w + 2 * panel * positions * LANES),
            };
            qni_groups_words_avx2.panel(&job);
        }
    free(codes);
}

static void make_x(struct scene *s)
{
    const int64_t channels = s->groups * s->ci, n = s->width * s->height;
    const struct qni_groups_pixels pixels = {
        .from = s->x,
        .step = (size_t)channels,
        .dtype = s->is_u8 ? QN_U8 : QN_I8,
        .zero = s->zero,
        .n = n,
        .channels = channels,
        .ci = s->ci,
        .groups = s->groups,
        .to = (float *)(void *)s->words,
        .set = n * channels,
    };
    for (int64_t i = 0; i < n * channels; i++)
        s->x[i] = (uint8_t)draw(s, s->is_u8 ? 0 : -128, s->is_u8 ? 255 : 127);
    qni_groups_words_avx2.pixels(&pixels);
}

static int32_t sum_of(const struct scene *s, int64_t row, int64_t column, int64_t group, int64_t j)
{
    int64_t sum = 0;
    const int64_t k = n_taps(s) * s->ci;
    for (int64_t t = 0; t < n_taps(s); t++) {
        const int64_t y = row * s->stride + t / s->kernel, x = column * s->stride + t % s->kernel;
        const uint8_t *const at = s->x + ((y * s->width + x) * s->groups + group) * s->ci;
        for (int64_t i = 0; i < s->ci; i++)
            sum += ((s->is_u8 ? at[i] : (int8_t)at[i]) - s->zero) *
                   (int64_t)s->values[(group * s->co + j) * k + t * s->ci + i];
    }
    return (int32_t)sum;
}

static void check(const struct scene *s)
{
    const int32_t segments[2] = {0, (int32_t)n_taps(s)};
    const int32_t results[LANES] = {0, 2, 4, 6, 1, 3, 5, 7};
    const int64_t lanes = s->vectors * LANES, n = s->rows * s->columns * lanes;
    float *const scale = calloc((size_t)lanes, sizeof *scale);
    int32_t *const c = malloc((size_t)n * sizeof *c);
    assert_non_null(scale);
    assert_non_null(c);
    const struct qni_groups_tile tile = {
        .x = (const float *)(const void *)s->words,
        .x_row = s->stride * s->width * s->inputs,
        .x_column = s->stride * s->inputs,
        .x_set = s->width * s->height * s->inputs,
        .taps = s->taps,
        .n_taps = n_taps(s),
        .ci = s->ci,
        .rows = s->rows,
        .columns = s->columns,
        .sets = 1,
        .vectors = s->vectors,
        .groups = s->groups,
        .results = results,
        .segments = segments,
        .n_segments = 1,
        .w = (const float *)(const void *)s->w,
        .scale = scale,
        .raw_i32 = true,
        .c = (float *)(void *)c,
        .c_row = s->columns * lanes,
        .c_column = lanes,
        .c_set = lanes,
        .scratch = s->scratch,
        .in_squares = s->squares,
    };
    assert_true(s->is_nibble ? qni_groups_q8_q4n16_mr4_avx2(&tile)
                             : qni_groups_q8_q8n16_mr4_avx2(&tile));
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t column = 0; column < s->columns; column++)
            for (int64_t i = 0; i < s->groups * s->co; i++) {
                const int64_t group = s->groups > 1 ? i / 4 : 0, j = s->groups > 1 ? i % 4 : i;
                assert_int_equal(c[(row * s->columns + column) * lanes + i],
                                 sum_of(s, row, column, group, j));
            }
    free(scale);
    free(c);
}

static void one(struct scene *s)
{
    const int64_t rows = s->rows + (s->squares ? s->rows % 2 : 0);
    const int64_t columns = s->columns + (s->squares ? s->columns % 2 : 0);
    s->inputs = s->groups * s->ci;
    s->vectors = s->groups > 1 ? 1 : (s->co + LANES - 1) / LANES;
    s->height = (rows - 1) * s->stride + s->kernel;
    s->width = (columns - 1) * s->stride + s->kernel;
    for (int64_t t = 0; t < n_taps(s); t++)
        s->taps[t] = (t / s->kernel * s->width + t % s->kernel) * s->inputs;
    const int64_t positions = (s->squares ? QNI_GROUPS_SQUARE_TAPS : n_taps(s)) * s->ci;
    const size_t x = (size_t)(s->height * s->width * s->inputs);
    s->values = malloc((size_t)(s->groups * s->co * n_taps(s) * s->ci) * sizeof *s->values);
    s->x = malloc(x);
    s->words = malloc((x + QNI_GROUPS_LANES) * sizeof *s->words);
    s->w = calloc((size_t)((s->co + 15) / 16 * 2 * LANES * positions), sizeof *s->w);
    s->scratch = malloc(qni_groups_squares_bytes(s->inputs));
    assert_true(s->values != NULL && s->x != NULL && s->words != NULL && s->w != NULL &&
                s->scratch != NULL);
    memset(s->words, 0, (x + QNI_GROUPS_LANES) * sizeof *s->words);
    make_weights(s);
    make_x(s);
    check(s);
    free(s->values);
    free(s->x);
    free(s->words);
    free(s->w);
    free(s->scratch);
}

static void words(void **unused)
{
    static const int64_t channels[] = {4, 8, 12, 16, 20, 24, 28, 32, 36, MOST_CI};
    (void)unused;
    if (!(qni_cpuid_detect() & QN_ISA_AVX2))
        skip();
    for (int32_t i = 0; i < 480; i++) {
        struct scene s = {.stride = 1, .kernel = 3};
        s.data = i % N_DATA;
        s.squares = i / N_DATA % 2 == 0;
        s.is_u8 = i / 8 % 2 == 0;
        s.is_nibble = i / 16 % 3 == 0;
        s.groups = i / 48 % 4 == 0 ? 2 : 1;
        s.ci = channels[(size_t)unit_in(&state, 0, 9)];
        s.co = s.groups > 1 ? 4 : (int64_t)unit_in(&state, 5, MOST_CO);
        s.rows = (int64_t)unit_in(&state, 1, SIDE);
        s.columns = (int64_t)unit_in(&state, 1, SIDE);
        s.zero = s.is_u8 ? draw(&s, 0, 255) : draw(&s, -128, 127);
        if (s.data != ANY) /* as far from the codes as can be */
            s.zero = (s.is_u8 ? 128 : 0) + (s.data == LOWEST ? 127 : -128);
        if (!s.squares) {
            s.stride = (int64_t)unit_in(&state, 1, 2);
            s.kernel = (int64_t)unit_in(&state, 1, 3);
        }
        one(&s);
    }
}

#else

static void words(void **unused)
{
    (void)unused;
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
