/* SPDX-License-Identifier: Apache-2.0 */
/* Direct rows that gather, and those of squares, alone, against the steps of docs/numerics.md one
 * after the other: taps of any length, wherever they lie, in memory that ends with them; more
 * positions than are widened at a time; rows and outputs that do not fill tiles; the ends of what
 * bytes hold; small weights with a few large ones, and x of few values; codes halfway between two
 * integers; scales that are no numbers. */
#include <math.h>
#include <stdlib.h>

#include "cpu/cpuid.h"
#include "cpu/conv/kernel.h"
#include "unit.h"

#if QN_BUILD_X86_AVX2

enum { MOST_ROWS = 300, MOST_PANELS = 18, MOST_N = MOST_PANELS * 16 + 16 };

static _Alignas(64) uint8_t scratch[QNI_DIRECT_SCRATCH_GATHERS];
static uint8_t y[MOST_ROWS * MOST_N], *places[MOST_ROWS];
static float scale[MOST_N], bias[MOST_N], c[MOST_ROWS * 32];
static int32_t zero[MOST_N];
static int64_t at[MOST_ROWS];
static uint64_t state = 1;

enum { ANY = 0, ENDS = 1, HALVES = 2, TAILS = 3, N_DATA = 4 };

static int32_t draw_value(int32_t data, bool is_nibble)
{
    const int32_t most = is_nibble ? 7 : 127;
    if (data == HALVES)
        return (int32_t)unit_in(&state, -1, 1);
    if (data == TAILS && unit_in(&state, 0, 20) != 0)
        return (int32_t)unit_in(&state, -most / 4, most / 4);
    return data == ENDS ? (unit_in(&state, 0, 15) == 0 ? most : -most - 1)
                        : (int32_t)unit_in(&state, -most - 1, most);
}

/* Codes of x: any, or those from `low` on. */
static int8_t draw_x(int32_t data, int32_t low)
{
    if (low == -128)
        return (int8_t)draw_value(data, false);
    const int64_t v = unit_in(&state, low, low + 127);
    return (int8_t)(data == ENDS ? (v % 2 == 0 ? low : low + 127) : v);
}

/* The value of a position of output j. */
static int32_t value_at(const struct qni_direct_tile *t, int64_t j, int64_t p, bool is_nibble)
{
    const uint8_t *const panel = t->b + (size_t)(j / 16) * t->b_panel;
    const int64_t lane = j % 16 * 4 + p % 4, quad = p % 32 / 4;
    if (!is_nibble)
        return panel[p / 4 * 64 + lane] - 128;
    const uint8_t byte = panel[p / 32 * 256 + quad % 4 * 64 + lane];
    return (quad < 4 ? byte & 15 : byte >> 4) - 8;
}

static int32_t dot_of(const struct qni_direct_tile *t, int64_t row, int64_t j, bool is_nibble)
{
    int64_t sum = 0;
    for (int64_t tap = 0; tap < t->n_taps; tap++)
        for (int64_t i = 0; i < t->tap_bytes; i++)
            sum += (int8_t)(t->a[t->at[row] + t->taps[tap] + i] ^ (int8_t)t->flip) *
                   value_at(t, j, tap * t->tap_bytes + i, is_nibble);
    return (int32_t)(sum - t->zero[j]);
}

static uint8_t code_of(const struct qni_direct_tile *t, int32_t dot, int64_t j)
{
    const float most = 0x1p21f;
    float v = t->scale[j] * (float)dot;
    v = v * t->x_scale;
    v = v + t->bias[j];
    if (t->relu)
        v = v > 0 ? v : isnan(v) ? v : 0.0f;
    v = v * t->y_inv;
    v = isnan(v) ? 0 : v < -most ? -most : v > most ? most : v;
    const int64_t code = (int64_t)rintf(v) + t->y_zero, lo = t->is_u8 ? 0 : -128, hi = lo + 255;
    return (uint8_t)(code < lo ? lo : code > hi ? hi : code);
}

static void check(const struct qni_direct_tile *t, const struct qni_conv_kernel *row)
{
    const bool is_nibble = row->row.layout == QNI_LAYOUT_Q4N16;
    struct qni_direct_tile made = *t;
    const int64_t channels = (int64_t)t->pixel;
    const int64_t side = row->algorithm == QNI_CONV_WINOGRAD4X4 ? 4 : 2;
    if (row->helpers.direct->unpack != NULL)
        made.b_panel = (size_t)qni_direct_squares_taps(side) * qni_direct_squares_tap(channels);
    uint8_t *const words =
        malloc(row->helpers.direct->unpack != NULL ? (size_t)t->n_panels * made.b_panel : 1);
    assert_non_null(words);
    if (row->helpers.direct->unpack != NULL) {
        made.b = words;
        for (int64_t i = 0; i < t->n_panels; i++)
            row->helpers.direct->unpack(t->b + (size_t)i * t->b_panel, 9 * (int64_t)t->pixel / 32,
                                        words + (size_t)i * made.b_panel);
    }
    memset(y, 0x5a, sizeof y);
    row->fn.direct(&made);
    free(words);
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < t->n_panels * 16; j++) {
            const int32_t dot = dot_of(t, i, j, is_nibble);
            const float word = t->scale[j] * (float)dot + 0.0f;
            if (t->kind == QNI_DIRECT_RAW)
                assert_memory_equal(&t->c[i * 32 + j], &dot, sizeof dot);
            else if (t->kind == QNI_DIRECT_FLOATS)
                assert_memory_equal(&t->c[i * 32 + j], &word, sizeof word);
            else
                assert_int_equal(y[i * MOST_N + j], j < t->n ? code_of(t, dot, j) : 0x5a);
        }
    for (int64_t i = 0; i < MOST_ROWS; i++)
        for (int64_t j = i < t->rows ? t->n : 0; j < MOST_N; j++)
            assert_int_equal(y[i * MOST_N + j], 0x5a);
}

static void draw_outputs(struct qni_direct_tile *t, int32_t data, bool unbounded)
{
    const float k = (float)(t->n_taps * t->tap_bytes), step = 200.0f / (sqrtf(k) * 5500.0f);
    for (int j = 0; j < MOST_N; j++) {
        const float r = (float)unit_in(&state, 1, 1000) / 1000.0f;
        scale[j] = data == HALVES ? 0.5f : data == ENDS ? r * 0x1p-14f : r * step;
        bias[j] = t->has_bias && data != HALVES ? (float)unit_in(&state, -300, 300) / 7.0f : 0;
        zero[j] = t->has_zero ? (int32_t)unit_in(&state, -100000, 100000) : 0;
        if (unbounded && j % 5 == 0)
            scale[j] = j % 2 == 0 ? INFINITY : 1e30f;
    }
    t->x_scale = data == HALVES ? 1.0f : (float)unit_in(&state, 800, 1200) / 1000.0f;
    t->y_inv = data == HALVES ? 1.0f : (float)unit_in(&state, 800, 1200) / 1000.0f;
    t->is_bounded = !unbounded;
    t->relu = unit_in(&state, 0, 2) == 0;
    t->is_u8 = unit_in(&state, 0, 2) == 0;
    t->y_zero = unit_in(&state, 0, 1) == 0 ? 0
                : t->is_u8                 ? (int32_t)unit_in(&state, 0, 255)
                                           : (int32_t)unit_in(&state, -128, 127);
}

/* Past the last position are values of 0, as packing leaves them. */
static void fill_weights(uint8_t *b, const struct qni_direct_tile *t, int32_t data, bool is_nibble)
{
    const int64_t k = t->n_taps * t->tap_bytes;
    memset(b, is_nibble ? 0x88 : 0x80, (size_t)t->n_panels * t->b_panel);
    for (int64_t j = 0; j < t->n_panels * 16; j++)
        for (int64_t p = 0; p < k; p++) {
            uint8_t *const panel = b + (size_t)(j / 16) * t->b_panel;
            const int64_t lane = j % 16 * 4 + p % 4, quad = p % 32 / 4;
            const int32_t v = draw_value(data, is_nibble);
            uint8_t *const to =
                panel + (is_nibble ? p / 32 * 256 + quad % 4 * 64 : p / 4 * 64) + lane;
            if (!is_nibble)
                *to = (uint8_t)(v + 128);
            else
                *to = (uint8_t)(quad < 4 ? (*to & 0xf0) | (v + 8) : (*to & 15) | (v + 8) << 4);
        }
}

/* Rows and taps anywhere: the last byte that they meet. */
static int64_t scatter(struct qni_direct_tile *t, int64_t *taps)
{
    int64_t end = 0, reach = 0;
    for (int64_t i = 0; i < t->rows; i++) {
        at[i] = unit_in(&state, 0, 500);
        end = at[i] > end ? at[i] : end;
    }
    for (int64_t i = 0; i < t->n_taps; i++) {
        taps[i] = unit_in(&state, 0, 700);
        reach = taps[i] > reach ? taps[i] : reach;
    }
    return end + reach + t->tap_bytes;
}

/* Lines of at least 4 neighbours whose taps are 3 to 4 times as long as they are apart (TOOM in
 * kernel.h). */
static int64_t follow(struct qni_direct_tile *t, int64_t *taps)
{
    const int64_t step = unit_in(&state, 3, 4) * 2, least = 4;
    if (t->rows < 4)
        t->rows = 4;
    do
        t->tap_bytes = unit_in(&state, 3 * step + 1, 4 * step);
    while (!qni_direct_fits_toom(step, t->tap_bytes, t->tap_bytes));
    if (t->n_taps * t->tap_bytes > QNI_DIRECT_TOOM_POSITIONS)
        t->n_taps = QNI_DIRECT_TOOM_POSITIONS / t->tap_bytes;
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = unit_in(&state, least, 20);
        n = n < t->rows - i && t->rows - i - n >= 4 ? n : t->rows - i;
        const int64_t first = unit_in(&state, 0, 500);
        for (int64_t j = 0; j < n; j++)
            at[i + j] = first + j * step;
    }
    int64_t end = 0, reach = 0;
    for (int64_t i = 0; i < t->rows; i++)
        end = at[i] > end ? at[i] : end;
    for (int64_t i = 0; i < t->n_taps; i++) {
        taps[i] = unit_in(&state, 0, 700);
        reach = taps[i] > reach ? taps[i] : reach;
    }
    return end + reach + t->tap_bytes;
}

/* The same of the grid that squares are of. */
static int64_t lay_out(struct qni_direct_tile *t, int64_t *taps)
{
    const bool is_many = unit_in(&state, 0, 9) == 0; /* as many as squares of 4 x 4 hold */
    t->pixel = is_many ? QNI_DIRECT_SQUARES_FEW : (size_t)unit_in(&state, 1, 3) * 32;
    t->tap_bytes = 3 * (int64_t)t->pixel;
    t->n_taps = 3;
    t->images = is_many ? 1 : unit_in(&state, 1, 3);
    t->width = unit_in(&state, 1, is_many ? 6 : 15);
    const int64_t most = MOST_ROWS / (t->images * t->width);
    const int64_t lines = unit_in(&state, 1, most < 9 ? most : 9) * t->images;
    const int64_t pixels = t->width + unit_in(&state, 0, 3);
    const int64_t line = pixels * (int64_t)t->pixel;
    t->rows = lines * t->width;
    for (int64_t i = 0; i < t->rows; i++)
        at[i] = i / t->width * line + i % t->width * (int64_t)t->pixel;
    for (int64_t i = 0; i < 3; i++)
        taps[i] = i * t->images * line;
    return at[t->rows - 1] + taps[2] + t->tap_bytes;
}

/* A tile whose operands end where what it may read does. */
static void one(const struct qni_conv_kernel *row, int32_t index)
{
    static const int64_t bytes_of[] = {1, 3, 4, 7, 13, 16, 21, 29, 32, 64, 80, 256, 300};
    const int32_t data = index % N_DATA;
    const bool is_nibble = row->row.layout == QNI_LAYOUT_Q4N16;
    int64_t taps[12];
    struct qni_direct_tile t = {.at = at, .taps = taps, .y = places, .scratch = scratch};
    t.rows = unit_in(&state, 0, 3) == 0 ? unit_in(&state, 60, MOST_ROWS) : unit_in(&state, 1, 12);
    t.n_taps = unit_in(&state, 0, 1) ? 1 : unit_in(&state, 1, 12);
    t.tap_bytes = bytes_of[(size_t)unit_in(&state, 0, 12)];
    t.kind = unit_in(&state, 0, 3) == 0 ? (int32_t)unit_in(&state, 1, 2) : QNI_DIRECT_BYTES;
    t.n_panels = t.kind != QNI_DIRECT_BYTES ? unit_in(&state, 1, 2)
                 : t.rows > 12              ? unit_in(&state, 1, 3)
                                            : unit_in(&state, 1, MOST_PANELS);
    t.n = t.n_panels * 16 - (unit_in(&state, 0, 2) == 0 ? unit_in(&state, 1, 15) : 0);
    if (t.kind != QNI_DIRECT_BYTES)
        t.n = 0;
    t.flip = row->helpers.direct->unpack == NULL && unit_in(&state, 0, 2) == 0 ? 0x80 : 0;
    const bool follows = row->algorithm == QNI_CONV_TOOM || unit_in(&state, 0, 7) == 0;
    const size_t a_bytes = (size_t)(row->helpers.direct->unpack != NULL ? lay_out(&t, taps)
                                    : follows                           ? follow(&t, taps)
                                                                        : scatter(&t, taps));
    const int64_t k = t.n_taps * t.tap_bytes, units = (k + 31) / 32;
    int8_t *const a = malloc(a_bytes);
    t.b_panel = (size_t)units * (is_nibble ? 256 : 512);
    uint8_t *const b = malloc((size_t)t.n_panels * t.b_panel);
    assert_non_null(a);
    assert_non_null(b);
    const int32_t low = unit_in(&state, 0, 1) == 0 ? -128 : (int32_t)unit_in(&state, -100, 0);
    for (size_t i = 0; i < a_bytes; i++)
        a[i] = (int8_t)((uint8_t)draw_x(data, low) ^ t.flip);
    fill_weights(b, &t, data, is_nibble);
    t.a = a;
    t.b = b;
    t.c = c;
    t.scale = scale;
    t.bias = bias;
    t.zero = zero;
    t.has_bias = unit_in(&state, 0, 1) == 1;
    t.has_zero = unit_in(&state, 0, 3) == 0;
    draw_outputs(&t, data, unit_in(&state, 0, 5) == 0);
    check(&t, row);
    free(a);
    free(b);
}

static void tiles(void **unused)
{
    (void)unused;
    const uint64_t isa = qni_cpuid_detect();
    if (!(isa & QN_ISA_AVX2))
        skip();
    for (int i = 0; i < MOST_ROWS; i++)
        places[i] = y + i * MOST_N;
    const struct qni_conv_kernel *k;
    for (int32_t r = 0; (k = qni_conv_kernel_at(r)) != NULL; r++)
        for (int32_t i = 0; i < 300; i++)
            if (qni_conv_is_direct(k->algorithm) && k->algorithm != QNI_CONV_TILES &&
                (k->row.needs & ~isa) == 0)
                one(k, i);
}

/* Pixels of any number of channels to that many bytes, or to whole steps that end with zeros. */
static void spread(void **unused)
{
    enum { PIXELS = 5, GAP = 3, MOST = 200 };
    (void)unused;
    if (!(qni_cpuid_detect() & QN_ISA_AVX2))
        skip();
    for (int64_t channels = 1; channels <= MOST; channels++)
        for (int32_t whole = 0; whole < 2; whole++) {
            const uint8_t flip = channels % 3 == 0 ? 0x80 : 0;
            const int64_t step = channels + GAP;
            const int64_t pixel = whole ? (channels + 63) / 64 * 64 : channels;
            uint8_t *const from = malloc((size_t)(PIXELS * step - GAP));
            uint8_t *const to = malloc((size_t)(PIXELS * pixel));
            assert_non_null(from);
            assert_non_null(to);
            for (int64_t i = 0; i < PIXELS * step - GAP; i++)
                from[i] = (uint8_t)unit_in(&state, 0, 255);
            const struct qni_direct_spread s = {from,  (size_t)step, PIXELS, channels,
                                                pixel, flip,         to};
            qni_direct_images_avx2.spread(&s);
            for (int64_t i = 0; i < pixel * PIXELS; i++) {
                const int64_t p = i % pixel;
                const uint8_t must = p < channels ? from[i / pixel * step + p] ^ flip : 0;
                assert_int_equal(to[i], must);
            }
            free(from);
            free(to);
        }
}

#else

static void tiles(void **unused)
{
    (void)unused;
    skip();
}
static void spread(void **unused)
{
    (void)unused;
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles), cmocka_unit_test(spread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
