/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of packed weights: good ones pass, and every number of a good one that is changed is
 * noticed, before anything could be indexed with it. */
#include "base/size.h"
#include "quant/packed.h"
#include "unit.h"

/* A head as a backend lays it out, from the contract in quant/packed.h. */
static void add(struct qni_packed_head *h, int32_t section, uint64_t bytes)
{
    if (bytes == 0)
        return;
    h->section[section].offset = h->bytes;
    h->section[section].bytes = bytes;
    h->bytes = qni_round_up(h->bytes + bytes, 64);
}

struct shape {
    const char *spec;
    int64_t n, ci;
    int32_t kh, kw, conv_groups;
    int64_t segment_units;
    int64_t groups, group_units, units, segments, panels; /* worked out by hand */
};

static const struct shape shapes[] = {
    /* 300 = 2 x 128 + 44: 4 + 4 + 2 units; segments of 4 units */
    {"int4:g128:zp", 40, 300, 1, 1, 1, 4, 3, 4, 10, 3, 3},
    /* segments of 3 units: 2 in a full group, 1 in the last */
    {"int4:g128:off", 16, 300, 1, 1, 1, 3, 3, 4, 10, 5, 1},
    /* blocks of 8 channels x 9 taps = 72 (3 units); the last of 4 x 9 = 36 (2 units) */
    {"int8:c8", 24, 20, 3, 3, 2, 3, 3, 3, 8, 3, 2},
    /* one group; depthwise panels run across groups */
    {"int8:pc", 40, 1, 3, 3, 40, 1, 1, 1, 1, 1, 3},
    {"nf4:g64", 1, 64, 1, 1, 1, 2, 1, 2, 2, 1, 1},
    {"int4:g32", 0, 64, 1, 1, 1, 1, 2, 1, 2, 2, 0},
    {"int4:g32", 5, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1},
    {"int8:pc", 5, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1},
};
enum { N_SHAPES = (int)(sizeof shapes / sizeof shapes[0]) };

static void make(const struct shape *s, struct qni_packed_head *h)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, "quernpk", 8);
    h->version = 1;
    h->device_kind = QN_CPU;
    memcpy(h->layout, "q4n16", 6);
    assert_int_equal(qn_format_parse(s->spec, &h->format, NULL), QN_OK);
    h->n = s->n;
    h->k = s->ci * s->kh * s->kw;
    h->ci = s->ci;
    h->kh = s->kh;
    h->kw = s->kw;
    h->conv_groups = s->conv_groups;
    h->scale_dtype = QN_F16;
    h->zero_dtype = QN_I8;
    h->n_runs = h->k > 0 ? 1 : 0;
    h->n_groups = s->groups;
    h->x_block = 32 * s->segment_units;
    h->units = s->units;
    h->group_units = s->group_units;
    h->segment_units = s->segment_units;
    h->n_segments = s->segments;
    h->panels = s->panels;
    h->bytes = qni_round_up(sizeof *h, 64);
    const uint64_t lanes = (uint64_t)s->panels * 16;
    const uint64_t bits = h->format.bits > 4 ? 8 : 4;
    const bool has_shift = h->format.shift != QN_SHIFT_NONE;
    add(h, QNI_SECTION_CODES, lanes * (uint64_t)s->units * 32 * bits / 8);
    add(h, QNI_SECTION_SCALE, lanes * (uint64_t)s->groups * 2);
    add(h, QNI_SECTION_OFFSET, has_shift ? lanes * (uint64_t)s->groups * 2 : 0);
    add(h, QNI_SECTION_SUMS, lanes * (uint64_t)s->segments * 4);
    add(h, QNI_SECTION_TABLE, h->format.code != QN_CODE_INT ? 64 : 0);
    add(h, QNI_SECTION_RUNS, (uint64_t)h->n_runs * sizeof(struct qni_run));
    add(h, QNI_SECTION_PERM, (uint64_t)h->k * 4);
    add(h, QNI_SECTION_PRESCALE, (uint64_t)h->k * 4);
    add(h, QNI_SECTION_ZERO, h->format.shift == QN_SHIFT_ZERO ? lanes * (uint64_t)s->groups : 0);
}

static void good_heads_pass(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        struct qni_packed_head h;
        qn_error err;
        make(&shapes[i], &h);
        if (qni_packed_head_check(&h, h.bytes, &err) != QN_OK)
            fail_msg("shape %d: %s", i, err.text);
        assert_int_equal(qni_packed_head_check(&h, h.bytes + 10, NULL), QN_OK);
        assert_int_equal(qni_packed_head_check(&h, h.bytes - 1, NULL), QN_E_CORRUPT);
    }
}

static void short_ones_are_refused(void **state)
{
    (void)state;
    struct qni_packed_head h;
    make(&shapes[0], &h);
    for (uint64_t bytes = 0; bytes < h.bytes; bytes += 7)
        assert_int_equal(qni_packed_head_check(&h, bytes, NULL), QN_E_CORRUPT);
}

#define REFUSE(change, wanted)                                                                     \
    do {                                                                                           \
        struct qni_packed_head h;                                                                  \
        qn_error err = {QN_OK, 0, ""};                                                             \
        make(&shapes[0], &h);                                                                      \
        const uint64_t bytes = h.bytes;                                                            \
        change;                                                                                    \
        assert_int_equal(qni_packed_head_check(&h, bytes, &err), (wanted));                        \
        assert_int_equal(err.status, (wanted));                                                    \
    } while (0)

static void wrong_numbers_are_refused(void **state)
{
    (void)state;
    REFUSE(h.magic[0] = 'Q', QN_E_CORRUPT);
    REFUSE(h.magic[7] = 1, QN_E_CORRUPT);
    REFUSE(h.version = 3, QN_E_VERSION);
    REFUSE(h.version = 2, QN_E_CORRUPT); /* has no offsets */
    REFUSE(h.device_kind = 3, QN_E_CORRUPT);
    REFUSE(h.layout[0] = 0, QN_E_CORRUPT);
    REFUSE(memset(h.layout, 'x', sizeof h.layout), QN_E_CORRUPT);
    REFUSE(h.format.bits = 64, QN_E_CORRUPT);
    REFUSE(h.format.group = 0, QN_E_CORRUPT);
    REFUSE(h.format.group = INT64_MIN, QN_E_CORRUPT);
    REFUSE(h.format.group = 100, QN_E_CORRUPT);
    REFUSE(h.format.shift = QN_SHIFT_NONE, QN_E_CORRUPT);
    REFUSE(h.format.code = QN_CODE_NF4, QN_E_CORRUPT);
    REFUSE(h.format.reserved = 1, QN_E_CORRUPT);
    REFUSE(h.scale_dtype = QN_BF16, QN_E_CORRUPT);
    REFUSE(h.scale_dtype = QN_F32, QN_E_CORRUPT);
    REFUSE(h.zero_dtype = QN_I16, QN_E_CORRUPT);
    REFUSE(h.zero_dtype = QN_I32, QN_E_CORRUPT);
    REFUSE(h.n = -1, QN_E_CORRUPT);
    REFUSE(h.n = 49, QN_E_CORRUPT);
    REFUSE(h.n = INT64_MAX, QN_E_CORRUPT);
    REFUSE((h.n = (int64_t)1 << 39, h.panels = (int64_t)1 << 35), QN_E_CORRUPT);
    REFUSE(h.k = -1, QN_E_CORRUPT);
    REFUSE(h.k = 301, QN_E_CORRUPT);
    REFUSE(h.k = INT64_MAX, QN_E_CORRUPT);
    REFUSE(h.ci = 0, QN_E_CORRUPT);
    REFUSE(h.ci = -300, QN_E_CORRUPT);
    REFUSE((h.ci = -300, h.kh = -1), QN_E_CORRUPT);
    REFUSE(h.kh = 0, QN_E_CORRUPT);
    REFUSE(h.kw = 2, QN_E_CORRUPT);
    REFUSE((h.kh = 1 << 30, h.kw = 1 << 30, h.ci = INT64_MAX), QN_E_CORRUPT);
    REFUSE(h.conv_groups = 0, QN_E_CORRUPT);
    REFUSE(h.conv_groups = 3, QN_E_CORRUPT);
    REFUSE(h.n_groups = 4, QN_E_CORRUPT);
    REFUSE(h.n_groups = INT64_MAX, QN_E_CORRUPT);
    REFUSE(h.x_block = 0, QN_E_CORRUPT);
    REFUSE(h.units = 11, QN_E_CORRUPT);
    REFUSE(h.units = -1, QN_E_CORRUPT);
    REFUSE(h.group_units = 0, QN_E_CORRUPT);
    REFUSE(h.group_units = 5, QN_E_CORRUPT);
    REFUSE(h.segment_units = 0, QN_E_CORRUPT);
    REFUSE(h.segment_units = 5, QN_E_CORRUPT);
    REFUSE(h.segment_units = 2, QN_E_CORRUPT);
    REFUSE(h.n_segments = 4, QN_E_CORRUPT);
    REFUSE(h.panels = 2, QN_E_CORRUPT);
    REFUSE(h.n_runs = -1, QN_E_CORRUPT);
    REFUSE(h.n_runs = 2, QN_E_CORRUPT);
    REFUSE(h.n_runs = INT32_MAX, QN_E_CORRUPT);
    REFUSE(h.bytes = 0, QN_E_CORRUPT);
    REFUSE(h.bytes = UINT64_MAX, QN_E_CORRUPT);
}

/* Each section in turn: absent, misplaced, too long, too short, over another one. */
static void wrong_sections_are_refused(void **state)
{
    (void)state;
    for (int32_t i = 0; i < QNI_N_SECTIONS; i++) {
        struct qni_packed_head whole;
        make(&shapes[0], &whole);
        if (whole.section[i].bytes == 0)
            continue;
        REFUSE(h.section[i].bytes = 0, QN_E_CORRUPT); /* with a place, but nothing there */
        REFUSE(h.section[i].bytes += 64, QN_E_CORRUPT);
        REFUSE(h.section[i].bytes -= 1, QN_E_CORRUPT);
        REFUSE(h.section[i].bytes = UINT64_MAX, QN_E_CORRUPT);
        REFUSE(h.section[i].offset += 1, QN_E_CORRUPT);
        REFUSE(h.section[i].offset = 0, QN_E_CORRUPT);
        REFUSE(h.section[i].offset = h.bytes, QN_E_CORRUPT);
        REFUSE(h.section[i].offset = UINT64_MAX - 63, QN_E_CORRUPT);
        REFUSE(h.section[i].offset =
                   h.section[i == QNI_SECTION_CODES ? QNI_SECTION_SCALE : QNI_SECTION_CODES].offset,
               QN_E_CORRUPT);
        if (i == QNI_SECTION_PERM || i == QNI_SECTION_PRESCALE || i == QNI_SECTION_SUMS) {
            /* these may be left out altogether */
            whole.section[i].offset = whole.section[i].bytes = 0;
            assert_int_equal(qni_packed_head_check(&whole, whole.bytes, NULL), QN_OK);
        }
    }
    REFUSE(h.section[QNI_SECTION_TABLE].bytes = 64, QN_E_CORRUPT);
    REFUSE(h.section[QNI_SECTION_TABLE].offset = 64, QN_E_CORRUPT);
}

/* Random damage: never a crash (the sanitizers watch), and what passes still adds up. */
static void random_damage_is_harmless(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int passed = 0;
    for (int round = 0; round < 400000; round++) {
        struct qni_packed_head h;
        make(&shapes[round % N_SHAPES], &h);
        const uint64_t bytes = h.bytes;
        for (int64_t hits = unit_in(&seed, 1, 3); hits > 0; hits--)
            ((uint8_t *)&h)[unit_in(&seed, 0, (int64_t)sizeof h - 1)] ^=
                (uint8_t)(1u << unit_in(&seed, 0, 7));
        if (qni_packed_head_check(&h, bytes, NULL) != QN_OK)
            continue;
        passed++;
        assert_true(h.bytes <= bytes && h.k == h.ci * h.kh * h.kw);
        for (int32_t i = 0; i < QNI_N_SECTIONS; i++)
            assert_true(h.section[i].offset + h.section[i].bytes <= bytes);
    }
    assert_true(passed < 200000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_heads_pass),           cmocka_unit_test(short_ones_are_refused),
        cmocka_unit_test(wrong_numbers_are_refused), cmocka_unit_test(wrong_sections_are_refused),
        cmocka_unit_test(random_damage_is_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
