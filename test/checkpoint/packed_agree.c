/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights whose parts contradict each other: every table that follows from the shape is
 * compared with it, the head with the metadata, and what is unpacked with the rules of canonical
 * weights. */
#include "packed_bytes.h"

struct scene {
    struct counted_ctx c;
    uint8_t *bytes;
    size_t size, blob;
};

static struct qni_packed_head *head_of(const struct scene *s)
{
    return (struct qni_packed_head *)(void *)(s->bytes + s->blob);
}

static void *section_of(const struct scene *s, int32_t i)
{
    assert_true(head_of(s)->section[i].bytes > 0);
    return s->bytes + s->blob + head_of(s)->section[i].offset;
}

static void scene_make(struct scene *s, const char *spec, struct shape shape)
{
    counted_make(&s->c);
    s->bytes = saved_bytes(s->c.ctx, spec, shape, &s->size, &s->blob);
}

static void scene_destroy(struct scene *s)
{
    free(s->bytes);
    counted_destroy(&s->c);
}

static qn_status load(struct scene *s, qn_packed **packed, qn_error *why)
{
    return try_load(s->c.ctx, s->bytes, s->size, packed, why);
}

/* Loaded, and then refused by qn_unpack(). */
static void expect_no_unpacking(struct scene *s, qn_status wanted, const char *words)
{
    qn_packed *packed = NULL;
    qn_weight *weight = NULL;
    assert_ok(load(s, &packed, NULL));
    assert_error(qn_unpack(s->c.ctx, packed, &weight, &err), wanted, words);
    assert_null(weight);
    qn_packed_destroy(packed);
}

/* Two runs that bring the same codes leave codes that nobody writes. */
static void test_runs(void **state)
{
    const struct shape shape = {18, 72, 1, 1, 1};
    struct scene s;
    qn_packed *packed = NULL;
    (void)state;
    scene_make(&s, "nf4:g16", shape);
    struct qni_run *run = section_of(&s, QNI_SECTION_RUNS);
    assert_int_equal(head_of(&s)->n_runs, 5);
    assert_ok(load(&s, &packed, NULL));
    qn_packed_destroy(packed);
    packed = NULL;
    run[1].src = 0; /* overlaps */
    assert_error(load(&s, &packed, &err), QN_E_CORRUPT, "run 1");
    run[1].src = 16;
    for (int i = 0; i < 2; i++) /* a partition, but of another order than that of the format */
        run[i].src = 16 - run[i].src;
    assert_error(load(&s, &packed, &err), QN_E_CORRUPT, "run 0");
    for (int i = 0; i < 2; i++)
        run[i].src = 16 - run[i].src;
    run[1].dst += 16; /* not where kernels expect the group */
    assert_error(load(&s, &packed, &err), QN_E_CORRUPT, "run 1");
    run[1].dst -= 16;
    assert_ok(load(&s, &packed, NULL));
    qn_packed_destroy(packed);
    scene_destroy(&s);
}

static void test_counts_and_codebook(void **state)
{
    const struct shape shape = {18, 72, 1, 1, 1};
    struct scene s;
    qn_packed *packed = NULL;
    (void)state;
    scene_make(&s, "int4:g32", shape);
    int32_t *counts = section_of(&s, QNI_SECTION_COUNTS);
    counts[2]++;
    assert_error(load(&s, &packed, &err), QN_E_CORRUPT, "count of segment 2 is 9, by its shape 8");
    scene_destroy(&s);
    scene_make(&s, "nf4:g16", shape);
    float *table = section_of(&s, QNI_SECTION_TABLE);
    table[3] = 0.5f;
    assert_error(load(&s, &packed, &err), QN_E_CORRUPT, "entry 3 of the codebook");
    scene_destroy(&s);
}

/* Codes and scales are not read on loading; unpacking looks at each. */
static void test_values(void **state)
{
    const struct shape shape = {18, 72, 1, 1, 1};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct scene s;
    (void)state;
    for (int i = 0; i < 3; i++) {
        scene_make(&s, "int4:g24", shape);
        if (head_of(&s)->scale_dtype == QN_F16)
            ((uint16_t *)section_of(&s, QNI_SECTION_SCALE))[2] = i == 0 ? 0x7e00 : 0x7c00;
        else
            ((float *)section_of(&s, QNI_SECTION_SCALE))[2] = bad[i];
        expect_no_unpacking(&s, QN_E_VALUE, "scale");
        scene_destroy(&s);
    }
    scene_make(&s, "fp8:pc", shape);
    ((uint8_t *)section_of(&s, QNI_SECTION_CODES))[0] = 0x7f;
    expect_no_unpacking(&s, QN_E_VALUE, "NaN");
    scene_destroy(&s);
}

/* Every field of the metadata against the head. */
static void test_metadata(void **state)
{
    static const struct {
        const char *from, *to, *words;
    } edits[] = {
        {"\\\"n\\\":24", "\\\"n\\\":25", "weights 'w': n is 25 in the metadata and 24 in the head"},
        {"\\\"k\\\":72", "\\\"k\\\":70", "k is 70 in the metadata and 72 in the head"},
        {"\\\"kh\\\":1", "\\\"kh\\\":2", "kh is 2 in the metadata and 1 in the head"},
        {"\\\"kw\\\":1", "\\\"kw\\\":3", "kw is 3 in the metadata and 1 in the head"},
        {"\\\"conv_groups\\\":1", "\\\"conv_groups\\\":2", "conv_groups is 2"},
        {"\\\"x_block\\\":24", "\\\"x_block\\\":31", "x_block is 31"},
        {"\\\"sums\\\":1", "\\\"sums\\\":0", "sums is 0 in the metadata and 1 in the head"},
        {"\\\"counts\\\":1", "\\\"counts\\\":0", "counts is 0 in the metadata and 1 in the head"},
        {"\\\"perm\\\":0", "\\\"perm\\\":1", "perm is 1 in the metadata and 0 in the head"},
        {"\\\"prescale\\\":0", "\\\"prescale\\\":1", "prescale is 1"},
        {"\\\"version\\\":1", "\\\"version\\\":2", "version is 2"},
        {"int4:g24", "int3:g24", "format is int3:g24 in the metadata and int4:g24 in the head"},
        {"int4:g24", "int4:g64", "format is int4:g64"},
        {"q4n16", "q8n16", "layout is q8n16 in the metadata and q4n16 in the head"},
        {"0x0", "0x1", "isa is 0x1 in the metadata and 0x0 in the head"},
        {"cpu", "gpu", "device is gpu in the metadata and cpu in the head"},
        {"{\\\"version", "[\\\"version", "metadata"},
        {"\\\"n\\\":24", "\\\"n\\\":-4", "metadata"},
    };
    const struct shape shape = {24, 72, 1, 1, 1};
    struct scene s;
    qn_packed *packed = NULL;
    (void)state;
    scene_make(&s, "int4:g24", shape); /* in no compact layout */
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        edit_header(s.bytes, edits[i].from, edits[i].to);
        assert_error(load(&s, &packed, &err), QN_E_CORRUPT, edits[i].words);
        edit_header(s.bytes, edits[i].to, edits[i].from);
    }
    /* The head of other weights: consistent, but not what the metadata says. */
    head_of(&s)->n = 25;
    assert_error(load(&s, &packed, &err), QN_E_CORRUPT,
                 "n is 24 in the metadata and 25 in the head");
    head_of(&s)->n = 24;
    head_of(&s)->isa = 1;
    assert_error(load(&s, &packed, &err), QN_E_CORRUPT, "isa");
    head_of(&s)->isa = 0;
    /* What earlier versions wrote had fewer fields: what is there must agree. */
    edit_header(s.bytes, "\\\"x_block\\\"", "\\\"y_block\\\"");
    edit_header(s.bytes, "\\\"sums\\\"", "\\\"umms\\\"");
    edit_header(s.bytes, "quern.packed.w", "quern.parked.w");
    assert_ok(load(&s, &packed, NULL));
    qn_packed_destroy(packed);
    scene_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_counts_and_codebook),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
