/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of direct convolutions alone, against the steps of docs/numerics.md one after the
 * other: every way through them (weights as they are packed or not, tall blocks, sums that are
 * floats), numbers of rows and outputs that do not fill tiles, sums at the end of what f32 holds
 * exactly, codes halfway between two integers, scales that are no numbers; patches of every shape;
 * pixels and columns of images of few channels.
 * Bytes that are not the kernel's to write stay as they are. */
#include <math.h>
#include <stdio.h>

#include "cpu/cpuid.h"
#include "cpu/conv/kernel.h"
#include "unit.h"

#if QN_BUILD_X86_AMX

enum { MOST_ROWS = 230, MOST_STEPS = 18, MOST_PANELS = 5, LD = MOST_PANELS * 16 + 32 };
enum { A_BYTES = (MOST_ROWS + 64) * 256 };

static _Alignas(64) int8_t a[A_BYTES];
static _Alignas(64) uint8_t b[MOST_PANELS * MOST_STEPS * QNI_DIRECT_STEP_BYTES];
static _Alignas(64) uint8_t scratch[QNI_DIRECT_SCRATCH];
static uint8_t y[MOST_ROWS * LD];
static uint8_t *places[MOST_ROWS];
static int32_t row_sums[MOST_ROWS], zero[MOST_PANELS * 16 + 32];
static float scale[MOST_PANELS * 16 + 32], bias[MOST_PANELS * 16 + 32];
static uint64_t state = 1;

/* How values are drawn: any; the ends of the range only, so that sums are as far out as they get;
 * steps of one half, so that every other code is halfway. */
enum { ANY = 0, ENDS = 1, HALVES = 2, N_DATA = 3 };

static int32_t draw_value(int32_t data)
{
    return data == ENDS ? (unit_in(&state, 0, 15) == 0 ? 127 : -128)
                        : (int32_t)unit_in(&state, -128, 127);
}

static int32_t value_at(const struct qni_direct_tile *t, int64_t j, int64_t position)
{
    const uint8_t byte = t->b[(size_t)(j / 16) * t->b_panel + (size_t)(position / 4 * 64) +
                              (size_t)(j % 16 * 4 + position % 4)];
    return t->row_sums != NULL ? byte - 128 : (int8_t)byte;
}

/* Bytes of a tap that are multiplied. */
static int64_t tap_bytes(const struct qni_direct_tile *t)
{
    return t->tap_steps > 1 ? t->tap_steps * 64 : t->step_bytes;
}

static int64_t dot_of(const struct qni_direct_tile *t, int64_t row, int64_t j)
{
    int64_t sum = 0;
    for (int64_t tap = 0; tap < t->n_taps; tap++)
        for (int64_t i = 0; i < tap_bytes(t); i++)
            sum += t->a[t->taps[tap] + row * (int64_t)t->pixel + i] *
                   value_at(t, j, tap * t->tap_steps * 64 + i);
    return sum - t->zero[j];
}

static uint8_t code_of(const struct qni_direct_tile *t, int64_t row, int64_t j)
{
    float v = t->scale[j] * (float)dot_of(t, row, j);
    v = v * t->x_scale;
    if (t->has_bias)
        v = v + t->bias[j];
    if (t->relu)
        v = v > 0 ? v : isnan(v) ? v : 0.0f;
    v = v * t->y_inv;
    const float most = 0x1p21f;
    const int64_t code = (isnan(v) ? 0
                                   : (int64_t)rintf(v < -most  ? -most
                                                    : v > most ? most
                                                               : v)) +
                         t->y_zero;
    const int64_t lo = t->is_u8 ? 0 : -128, hi = lo + 255;
    return (uint8_t)(code < lo ? lo : code > hi ? hi : code);
}

static void check(const struct qni_direct_tile *t)
{
    memset(y, 0x5a, sizeof y);
    qni_conv_q8_q8n16_mr32_amx(t);
    for (int64_t i = 0; i < MOST_ROWS; i++)
        for (int64_t j = 0; j < LD; j++) {
            const bool ours = i < t->rows && j < t->n;
            const uint8_t must = ours ? code_of(t, i, j) : 0x5a, is = y[i * LD + j];
            if (is != must)
                fail_msg("y[%d, %d] is %d, must be %d: rows %d, n %d, taps %d of %d (%d), sums %d, "
                         "tall %d, near %d, bounded %d, u8 %d, relu %d, y zero %d",
                         (int)i, (int)j, is, must, (int)t->rows, (int)t->n, (int)t->n_taps,
                         (int)t->tap_steps, t->step_bytes, t->row_sums != NULL, t->is_tall,
                         t->is_near, t->is_bounded, t->is_u8, t->relu, t->y_zero);
        }
}

/* Scales so that codes lie in and around the range, and the rest of what outputs need. */
static void draw_outputs(struct qni_direct_tile *t, int32_t data, bool unbounded)
{
    const int64_t k = t->n_taps * t->tap_steps * 64;
    const float step = 200.0f / (sqrtf((float)k) * 5500.0f);
    for (int j = 0; j < MOST_PANELS * 16 + 32; j++) {
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
}

static void fill(struct qni_direct_tile *t, int32_t data)
{
    for (int i = 0; i < A_BYTES; i++)
        a[i] = (int8_t)(data == HALVES ? unit_in(&state, -2, 2) : draw_value(data));
    for (size_t i = 0; i < sizeof b; i++) {
        const int32_t v = data == HALVES ? (int32_t)unit_in(&state, -1, 1) : draw_value(data);
        b[i] = (uint8_t)(t->row_sums != NULL ? v + 128 : v);
    }
    for (int64_t i = 0; t->row_sums != NULL && i < t->rows; i++) {
        row_sums[i] = 0;
        for (int64_t tap = 0; tap < t->n_taps; tap++)
            for (int64_t p = 0; p < tap_bytes(t); p++)
                row_sums[i] += 128 * t->a[t->taps[tap] + i * (int64_t)t->pixel + p];
    }
}

static void bytes(void **unused)
{
    (void)unused;
    static const int64_t rows[] = {1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 61, 64, 65, 81, 97, 222};
    static const int32_t taps_of[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4},
                                         {3, 3}, {9, 2}, {9, 1}, {2, 4}};
    if (!(qni_cpuid_detect() & QN_ISA_AMX_INT8))
        skip();
    for (int i = 0; i < MOST_ROWS; i++)
        places[i] = y + i * LD;
    for (size_t i = 0; i < 16 * 8 * 8; i++) {
        const int32_t *const shape = taps_of[i / 16 % 8], data = (int32_t)(i / 7 % N_DATA);
        int64_t taps[9];
        struct qni_direct_tile t = {.a = a, .taps = taps, .b = b, .y = places, .scratch = scratch};
        t.rows = rows[i % 16];
        t.n_taps = shape[0];
        t.tap_steps = shape[1];
        t.step_bytes =
            shape[1] > 1 || unit_in(&state, 0, 1) ? 64 : (int32_t)unit_in(&state, 1, 16) * 4;
        t.pixel = (size_t)(64 * shape[1]);
        for (int64_t tap = 0; tap < shape[0]; tap++)
            taps[tap] = (tap / 3 * 8 + tap % 3) * (int64_t)t.pixel;
        t.b_panel = (size_t)(shape[0] * shape[1]) * QNI_DIRECT_STEP_BYTES;
        t.n_panels = unit_in(&state, 1, MOST_PANELS);
        t.n = t.n_panels * 16 - (unit_in(&state, 0, 2) == 0 ? unit_in(&state, 1, 15) : 0);
        t.row_sums = unit_in(&state, 0, 3) > 0 ? row_sums : NULL;
        t.is_tall = unit_in(&state, 0, 1) == 1;
        t.kind = QNI_DIRECT_BYTES;
        t.has_bias = unit_in(&state, 0, 1) == 1;
        t.has_zero = unit_in(&state, 0, 3) == 0;
        t.relu = unit_in(&state, 0, 2) == 0;
        t.is_u8 = unit_in(&state, 0, 2) == 0;
        t.y_zero = unit_in(&state, 0, 1) == 0 ? 0
                   : t.is_u8                  ? (int32_t)unit_in(&state, 0, 255)
                                              : (int32_t)unit_in(&state, -128, 127);
        t.scale = scale;
        t.bias = bias;
        t.zero = zero;
        t.is_near = !t.has_zero && shape[0] * shape[1] <= (data == ENDS ? 4 : QNI_DIRECT_NEAR);
        fill(&t, data);
        draw_outputs(&t, data, unit_in(&state, 0, 5) == 0);
        check(&t);
    }
}

/* Rows of an image's lines, each run a little further on. */
static void runs(void **unused)
{
    (void)unused;
    if (!(qni_cpuid_detect() & QN_ISA_AMX_INT8))
        skip();
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (uint8_t)unit_random(&state);
    for (int run = 1; run <= 64; run++)
        for (int64_t kh = 1; kh <= 11; kh += 2) {
            const size_t line = 640, step = (size_t)unit_in(&state, 1, 9);
            const size_t pixel = ((size_t)kh * (size_t)run + 63) / 64 * 64;
            struct qni_direct_runs r = {b, line, step, (size_t)run, pixel, kh, 20, (uint8_t *)a};
            memset(a, 0x5a, sizeof a);
            qni_direct_images_amx.runs(&r);
            for (size_t i = 0; i < 21 * pixel; i++) {
                const size_t patch = i / pixel, at = i % pixel;
                uint8_t must = at < (size_t)kh * (size_t)run
                                   ? b[at / (size_t)run * line + patch * step + at % (size_t)run]
                                   : 0;
                must = patch < 20 ? must : 0x5a;
                assert_int_equal((uint8_t)a[i], must);
            }
        }
}

/* Pixels of one to four channels, near each other or in planes, as four bytes each. */
static void pixels(void **unused)
{
    (void)unused;
    if (!(qni_cpuid_detect() & QN_ISA_AMX_INT8))
        skip();
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (uint8_t)unit_random(&state);
    for (int32_t ci = 1; ci <= 4; ci++)
        for (int64_t n = 1; n <= 50; n++)
            for (int planes = 0; planes < 2; planes++) {
                const int64_t plane = planes ? unit_in(&state, n, 99) : 0;
                const int64_t all = planes ? (ci - 1) * plane + n : ci * n;
                const uint8_t *const from = b + sizeof b - all; /* no byte behind the last one */
                const uint8_t flip = unit_in(&state, 0, 1) ? 0x80 : 0;
                const struct qni_direct_pixels p = {from, plane, n, ci, flip, (uint8_t *)a};
                memset(a, 0x5a, 512);
                qni_direct_images_amx.pixels(&p);
                for (int64_t i = 0; i < 4 * n; i++) {
                    const int64_t at = planes ? i % 4 * plane + i / 4 : i / 4 * ci + i % 4;
                    const uint8_t must = i % 4 < ci ? from[at] ^ flip : 0;
                    assert_int_equal((uint8_t)a[i], must);
                }
                for (int64_t i = 4 * n + 60; i < 512; i++)
                    assert_int_equal((uint8_t)a[i], 0x5a);
            }
}

static void columns(void **unused)
{
    (void)unused;
    if (!(qni_cpuid_detect() & QN_ISA_AMX_INT8))
        skip();
    static const int32_t ways[][2] = {{4, 1}, {4, 2}, {4, 4}, {8, 1}, {8, 2}};
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (uint8_t)unit_random(&state);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
        for (int64_t units = 1; units <= 70; units++) {
            const int32_t depth = ways[way][0], stride = ways[way][1];
            const int64_t line = 4 * (stride * units + 32);
            struct qni_direct_columns c = {
                .depth = depth, .stride = stride, .units = units, .dst = (uint8_t *)a};
            for (int r = 0; r < depth; r++)
                c.line[r] = b + sizeof b - (size_t)(line * (depth - r));
            memset(a, 0x5a, (size_t)(units + 17) * 64);
            qni_direct_images_amx.columns(&c);
            for (int64_t i = 0; i < 64 * units; i++) {
                const int64_t column = i / 64 * stride + i % 64 / (4 * depth);
                const uint8_t must = c.line[i / 4 % depth][4 * column + i % 4];
                assert_int_equal((uint8_t)a[i], must);
            }
            for (int64_t i = 64 * (units + 16); i < 64 * (units + 17); i++)
                assert_int_equal((uint8_t)a[i], 0x5a);
        }
}

/* Pixels of any number of channels to that many bytes, or to whole steps that end with zeros. */
static void spread(void **unused)
{
    enum { PIXELS = 5, GAP = 3, MOST = 200 };
    static uint8_t from[PIXELS * (MOST + GAP)];
    (void)unused;
    if (!(qni_cpuid_detect() & QN_ISA_AMX_INT8))
        skip();
    for (int64_t i = 0; i < (int64_t)sizeof from; i++)
        from[i] = (uint8_t)unit_in(&state, 0, 255);
    for (int64_t channels = 1; channels <= MOST; channels++)
        for (int32_t whole = 0; whole < 2; whole++) {
            const uint8_t flip = channels % 3 == 0 ? 0x80 : 0;
            const int64_t step = channels + GAP;
            const int64_t pixel = whole ? (channels + 63) / 64 * 64 : channels;
            const struct qni_direct_spread s = {from,  (size_t)step, PIXELS,      channels,
                                                pixel, flip,         (uint8_t *)a};
            memset(a, 0x5a, (size_t)(pixel * PIXELS + 64));
            qni_direct_images_amx.spread(&s);
            for (int64_t i = 0; i < pixel * PIXELS; i++) {
                const int64_t at = i % pixel;
                const uint8_t must = at < channels ? from[i / pixel * step + at] ^ flip : 0;
                assert_int_equal((uint8_t)a[i], must);
            }
            for (int64_t i = pixel * PIXELS; i < pixel * PIXELS + 64; i++)
                assert_int_equal((uint8_t)a[i], 0x5a);
        }
}

#else

static void bytes(void **unused)
{
    (void)unused;
    skip();
}
static void runs(void **unused)
{
    (void)unused;
    skip();
}
static void pixels(void **unused)
{
    (void)unused;
    skip();
}
static void columns(void **unused)
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes), cmocka_unit_test(runs),
                                       cmocka_unit_test(pixels), cmocka_unit_test(columns),
                                       cmocka_unit_test(spread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
