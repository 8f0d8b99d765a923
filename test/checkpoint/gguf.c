/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files made byte by byte: the hand-worked blocks of docs/checkpoints.md, what the loader of
 * ggml refuses, every truncation and every single bit flip, and memory that the file justifies. */
#include "files.h"

#include "base/half.h"
#include "checkpoint/checkpoint.h"

/* ---- a file under construction --------------------------------------------------------------- */

struct gguf {
    uint8_t bytes[4096];
    size_t size;
};

static void put(struct gguf *g, const void *bytes, size_t size)
{
    assert_true(g->size + size <= sizeof g->bytes);
    memcpy(g->bytes + g->size, bytes, size);
    g->size += size;
}
static void put_u32(struct gguf *g, uint32_t v)
{
    put(g, &v, 4);
}
static void put_u64(struct gguf *g, uint64_t v)
{
    put(g, &v, 8);
}
static void put_text(struct gguf *g, const char *text)
{
    put_u64(g, strlen(text));
    put(g, text, strlen(text));
}

static void begin(struct gguf *g, uint64_t n_tensors, uint64_t n_keys)
{
    memset(g, 0, sizeof *g);
    put(g, "GGUF", 4);
    put_u32(g, 3);
    put_u64(g, n_tensors);
    put_u64(g, n_keys);
}

static void put_alignment(struct gguf *g, uint32_t alignment)
{
    put_text(g, "general.alignment");
    put_u32(g, 4);
    put_u32(g, alignment);
}

static void put_tensor(struct gguf *g, const char *name, uint64_t k, uint64_t n, uint32_t type,
                       uint64_t offset)
{
    put_text(g, name);
    put_u32(g, 2);
    put_u64(g, k);
    put_u64(g, n);
    put_u32(g, type);
    put_u64(g, offset);
}

static void pad(struct gguf *g, size_t alignment)
{
    while (g->size % alignment != 0)
        put(g, "", 1);
}

/* One key, a Q8_0 tensor t [1, 32]. */
static void put_small(struct gguf *g)
{
    begin(g, 1, 1);
    put_alignment(g, 32);
    put_tensor(g, "t", 32, 1, 8, 0);
    pad(g, 32);
    put(g, "\x00\x34", 2); /* d = 0.25 */
    for (int i = 0; i < 32; i++)
        put(g, i == 0 ? "\xfc" : "\x01", 1);
}

static qn_status open_checkpoint(const qn_ctx *ctx, const uint8_t *bytes, size_t size,
                                 qn_checkpoint **c, qn_error *err)
{
    qn_file *file = NULL;
    *c = NULL;
    const qn_status status = open_bytes(ctx, bytes, size, &file, err);
    return status != QN_OK ? status
                           : qn_checkpoint_open_files(ctx, &file, 1, NULL, 0, NULL, c, err);
}

static void expect_refusal(const struct gguf *g, const char *word)
{
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    assert_error(open_bytes(ctx, g->bytes, g->size, &file, &err), QN_E_CORRUPT, word);
    assert_null(file);
    qn_ctx_destroy(ctx);
}

/* ---- blocks worked by hand ------------------------------------------------------------------- */

struct block {
    const char *name;
    uint32_t type;
    size_t bytes;
    struct {
        size_t at;
        uint8_t byte;
    } set[8];
    struct {
        int element;
        double value;
    } expect[5]; /* ends with two zeros in the same entry */
};

/* f16: 3800 = 0.5, bc00 = -1, 3400 = 0.25, 2c00 = 1/16, 2800 = 1/32, 2400 = 1/64, 4000 = 2. */
static const struct block blocks[] = {
    {"q4_0", 2, 18, {{1, 0x38}, {2, 0x21}}, {{16, -3}, {0, -3.5}}},
    {"q4_0 negative d", 2, 18, {{1, 0xb8}, {2, 0x21}}, {{16, 3}, {0, 3.5}}},
    {"q4_1", 3, 20, {{1, 0x38}, {3, 0xbc}, {4, 0x21}}, {{0, -0.5}, {17, -1}}},
    {"q5_0", 6, 22, {{1, 0x38}, {2, 1}, {4, 1}, {6, 0x21}}, {{16, 1}, {1, -8}, {0, 0.5}}},
    {"q5_1",
     7,
     24,
     {{1, 0x38}, {3, 0xbc}, {4, 1}, {6, 1}, {8, 0x21}},
     {{16, 8}, {1, -1}, {0, 7.5}}},
    {"q8_0", 8, 34, {{1, 0x34}, {2, 0xfc}}, {{0, -1}}},
    {"q4_k",
     12,
     144,
     {{1, 0x2c}, {3, 0x28}, {4, 0x80}, {8, 0x40}, {12, 0xa5}, {16 + 64, 7}},
     {{128, 15.375}, {129, -0.8125}}},
    {"q5_k",
     13,
     176,
     {{1, 0x2c}, {3, 0x28}, {4, 0x80}, {8, 0x40}, {12, 0xa5}, {16, 0x10}, {48 + 64, 7}},
     {{128, 52.375}}},
    {"q6_k",
     14,
     210,
     {{0, 0x21}, {32, 0x43}, {128, 0xe4}, {192, 2}, {194, 2}, {196, 2}, {198, 2}, {209, 0x38}},
     {{96, 20}, {64, 2}, {32, -13}, {0, -31}}},
    {"iq4_nl", 20, 18, {{1, 0x24}, {2, 0x0f}}, {{16, -1.984375}, {0, 1.765625}}},
    {"mxfp4", 39, 17, {{0, 127}, {1, 0x97}}, {{16, -0.5}, {0, 6}}},
    /* d = 1, of the first 16 sc = 3, mn = 2: dmin = 2 -> 3 q - 4. q = 2. */
    {"q2_k", 10, 84, {{0, 0x23}, {16, 2}, {81, 0x3c}, {83, 0x40}}, {{0, 2}, {1, -4}}},
    /* d = 1, scale 1 + 2 * 16 - 32 = 1; low bits 2, mask set: 2; mask clear: low bits 0 - 4. */
    {"q3_k", 11, 110, {{0, 1}, {32, 2}, {96, 1}, {104, 2}, {109, 0x3c}}, {{0, 2}, {1, -4}}},
    /* d = 1, ls = 1 | 2 << 4 - 32 = 1. */
    {"iq4_xs", 23, 136, {{1, 0x3c}, {2, 2}, {4, 1}, {8, 0x0f}}, {{16, -127}, {0, 113}}},
    {"nvfp4", 40, 36, {{0, 0x38}, {4, 0x97}}, {{8, -0.5}, {0, 6}}},
};

static void check_block(const qn_ctx *ctx, const struct block *b)
{
    static struct gguf g;
    qn_checkpoint *c = NULL;
    qn_weight *weight = NULL;
    qn_load_facts facts;
    float out[256];
    const uint64_t k = b->bytes == 36 ? 64 : b->bytes < 36 ? 32 : 256;
    begin(&g, 1, 0);
    put_tensor(&g, "w", k, 1, b->type, 0);
    pad(&g, 32);
    uint8_t *data = g.bytes + g.size;
    g.size += b->bytes;
    for (int i = 0; i < 8; i++)
        data[b->set[i].at] = (uint8_t)(data[b->set[i].at] | b->set[i].byte);
    assert_ok(open_checkpoint(ctx, g.bytes, g.size, &c, NULL));
    qn_load_facts_init(&facts);
    assert_ok(qn_checkpoint_load(ctx, c, 0, 0, -1, &weight, &facts, NULL));
    assert_int_equal(facts.rounded, 0);
    const qn_tensor to = qn_tensor_2d(out, QN_F32, 1, (int64_t)k);
    assert_ok(qn_weight_dequantize(ctx, weight, true, &to));
    for (int i = 0; i < 5 && (b->expect[i].value != 0 || b->expect[i].element != 0); i++)
        if ((double)out[b->expect[i].element] != b->expect[i].value)
            fail_msg("%s, element %d: %g, not %g", b->name, b->expect[i].element,
                     (double)out[b->expect[i].element], b->expect[i].value);
    qn_weight_destroy(weight);
    qn_checkpoint_close(c);
}

static void test_blocks(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        check_block(ctx, &blocks[i]);
    qn_ctx_destroy(ctx);
}

/* d = 1 and m = 2^-24: the sum of m and 8 d has 28 bits, and f32 would lose it. */
static void test_minima_are_exact(void **state)
{
    static struct gguf g;
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    qn_weight *weight = NULL;
    qn_load_facts facts;
    qn_weight_parts p;
    float out[64];
    char text[512];
    (void)state;
    begin(&g, 1, 0);
    put_tensor(&g, "w", 64, 1, 3, 0);
    pad(&g, 32);
    put(&g, "\x00\x3c\x01\x00", 4);
    g.size += 16;
    put(&g, "\x00\x3c\x00\x3c", 4);
    g.size += 16;
    assert_ok(open_checkpoint(ctx, g.bytes, g.size, &c, NULL));
    qn_load_facts_init(&facts);
    assert_ok(qn_checkpoint_load(ctx, c, 0, 0, -1, &weight, &facts, NULL));
    assert_int_equal(facts.groups, 2);
    assert_int_equal(facts.rounded, 0);
    qn_weight_parts_init(&p);
    assert_ok(qn_weight_view(weight, &p));
    assert_true(p.offset[0] == 0x1p-24f && p.offset[1] == 1.0f);
    const qn_tensor to = qn_tensor_2d(out, QN_F32, 1, 64);
    assert_ok(qn_weight_dequantize(ctx, weight, true, &to));
    assert_true(out[0] == 0x1p-24f && out[32] == 1.0f);
    assert_true(qn_checkpoint_provenance(c, 0, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "exact"));
    qn_weight_destroy(weight);
    qn_checkpoint_close(c);
    qn_ctx_destroy(ctx);
}

/* ---- what the loader of ggml refuses --------------------------------------------------------- */

static void test_heads(void **state)
{
    static struct gguf g;
    (void)state;
    for (uint32_t version = 0; version < 6; version++) {
        begin(&g, 0, 0);
        g.bytes[4] = (uint8_t)version;
        if (version != 2 && version != 3)
            expect_refusal(&g, "version");
    }
    begin(&g, 0, 0);
    memcpy(g.bytes + 4, "\0\0\0\3", 4);
    expect_refusal(&g, "big-endian");
    begin(&g, UINT64_MAX, 0);
    expect_refusal(&g, "room");
    begin(&g, 0, (uint64_t)1 << 40);
    expect_refusal(&g, "room");
    begin(&g, 1, 0);
    put_u64(&g, UINT64_MAX);
    g.size += 64;
    expect_refusal(&g, "2^26");
}

static void test_keys(void **state)
{
    static struct gguf g;
    static const uint32_t alignments[] = {0, 3, 33, 1u << 21, 1u << 30, 1u << 31};
    (void)state;
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        begin(&g, 0, 1);
        put_alignment(&g, alignments[i]);
        expect_refusal(&g, "power of two");
    }
    begin(&g, 0, 1);
    put_text(&g, "general.alignment");
    put_u32(&g, 10);
    put_u64(&g, 32);
    expect_refusal(&g, "no u32");
    begin(&g, 0, 2);
    put_alignment(&g, 32);
    put_alignment(&g, 32);
    expect_refusal(&g, "twice");
    begin(&g, 0, 1);
    put_text(&g, "");
    put_u32(&g, 4);
    put_u32(&g, 4);
    expect_refusal(&g, "without a name");
    begin(&g, 0, 1);
    put_text(&g, "a");
    put_u32(&g, 13);
    put_u64(&g, 0);
    expect_refusal(&g, "unknown type of values");
    begin(&g, 0, 1);
    put_text(&g, "a");
    put_u32(&g, 9);
    put_u32(&g, 9);
    put_u64(&g, 0);
    expect_refusal(&g, "array of arrays");
    begin(&g, 0, 1);
    put_text(&g, "a");
    put_u32(&g, 9);
    put_u32(&g, 10);
    put_u64(&g, (uint64_t)1 << 61);
    expect_refusal(&g, "2^26");
    begin(&g, 0, 1);
    put_text(&g, "a");
    put_u32(&g, 9);
    put_u32(&g, 8);
    put_u64(&g, 1 << 20);
    expect_refusal(&g, "longer than the file");
}

/* A tensor whose head is like that is refused with that word. */
static void expect_tensor(const char *name, uint32_t rank, const uint64_t *dims, uint32_t type,
                          uint64_t offset, const char *word)
{
    static struct gguf g;
    begin(&g, 1, 0);
    put_text(&g, name);
    put_u32(&g, rank);
    for (uint32_t i = 0; i < rank; i++)
        put_u64(&g, dims[i]);
    put_u32(&g, type);
    put_u64(&g, offset);
    pad(&g, 32);
    g.size += 256;
    expect_refusal(&g, word);
}

static void test_tensors(void **state)
{
    static const uint64_t one[] = {32, 1, 1, 1, 1}, odd[] = {33}, huge[] = {1u << 31, 1u << 31, 8},
                          zero[] = {32, 0}, negative[] = {UINT64_MAX - 31}, large[] = {1u << 20};
    (void)state;
    expect_tensor("t", 5, one, 0, 0, "four dimensions");
    expect_tensor("t", 1, odd, 8, 0, "whole number of blocks");
    expect_tensor("t", 3, huge, 0, 0, "overflows");
    expect_tensor("t", 2, zero, 0, 0, "impossible dimension");
    expect_tensor("t", 1, negative, 0, 0, "impossible dimension");
    expect_tensor("t", 1, large, 0, 0, "do not fit");
    expect_tensor("t", 1, one, 0, 32, "begin where");
    expect_tensor("t", 1, one, 0, UINT64_MAX, "begin where");
    static const uint32_t gone[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, UINT32_MAX};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        expect_tensor("t", 1, one, gone[i], 0, "unknown type");
    expect_tensor("a name of 64 bytes, which is one more than what ggml reads......", 1, one, 0, 0,
                  "63 bytes");
}

static void test_names(void **state)
{
    static struct gguf g;
    (void)state;
    begin(&g, 2, 0);
    put_tensor(&g, "t", 32, 1, 8, 0);
    put_tensor(&g, "t", 32, 1, 8, 64);
    pad(&g, 32);
    g.size += 128;
    expect_refusal(&g, "two tensors are named");
    begin(&g, 1, 0);
    put_u64(&g, 3);
    put(&g, "a\0b", 3);
    g.size += 64;
    expect_refusal(&g, "NUL");
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Whatever opens can be asked everything, and loads or is refused with words. */
static void use(const qn_ctx *ctx, const uint8_t *bytes, size_t size)
{
    qn_checkpoint *c = NULL;
    qn_error err = {QN_OK, -1, ""};
    const qn_status status = open_checkpoint(ctx, bytes, size, &c, &err);
    if (status != QN_OK) {
        assert_int_equal(err.status, status);
        assert_true(err.text[0] != 0);
        return;
    }
    for (int64_t i = 0; i < qn_checkpoint_count(c); i++) {
        qn_module m;
        qn_weight *weight = NULL;
        qn_module_init(&m);
        const qn_status found = qn_checkpoint_module(c, i, &m, &err);
        const qn_status loaded = qn_checkpoint_load(ctx, c, i, 0, -1, &weight, NULL, &err);
        assert_true((loaded == QN_OK) == (weight != NULL));
        assert_true(found == QN_OK || loaded == found);
        assert_true(loaded == QN_OK || err.text[0] != 0);
        qn_weight_destroy(weight);
    }
    qn_checkpoint_close(c);
}

static void test_damage(void **state)
{
    static struct gguf g;
    struct counted_ctx c;
    (void)state;
    put_small(&g);
    counted_make(&c);
    for (size_t size = 0; size <= g.size; size++) {
        uint8_t *copy = malloc(size + 1); /* an exact block, for AddressSanitizer */
        assert_non_null(copy);
        memcpy(copy, g.bytes, size);
        use(c.ctx, copy, size);
        counted_check(&c);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * g.size; bit++) {
        g.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        use(c.ctx, g.bytes, g.size);
        counted_check(&c);
        g.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(c.counter.largest_bytes < 1 << 16);
    counted_destroy(&c);
}

/* Texts of numbers, and what an array is told as. */
static void test_metadata(void **state)
{
    static struct gguf g;
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    (void)state;
    begin(&g, 0, 6);
    put_text(&g, "i8");
    put_u32(&g, 1);
    put(&g, "\xff", 1);
    put_text(&g, "u64");
    put_u32(&g, 10);
    put_u64(&g, UINT64_MAX);
    put_text(&g, "bool");
    put_u32(&g, 7);
    put(&g, "\1", 1);
    put_text(&g, "f32");
    put_u32(&g, 6);
    put(&g, "\0\0\xc0\x3f", 4);
    put_text(&g, "text");
    put_u32(&g, 8);
    put_text(&g, "llama");
    put_text(&g, "words");
    put_u32(&g, 9);
    put_u32(&g, 8);
    put_u64(&g, 2);
    put_text(&g, "a");
    put_text(&g, "b");
    assert_ok(open_bytes(ctx, g.bytes, g.size, &file, NULL));
    assert_int_equal(qn_file_get_kind(file), QN_FILE_GGUF);
    assert_string_equal(qn_file_get_metadata(file, "i8"), "-1");
    assert_string_equal(qn_file_get_metadata(file, "u64"), "18446744073709551615");
    assert_string_equal(qn_file_get_metadata(file, "bool"), "true");
    assert_string_equal(qn_file_get_metadata(file, "f32"), "1.5");
    assert_string_equal(qn_file_get_metadata(file, "text"), "llama");
    assert_string_equal(qn_file_get_metadata(file, "words"), "[2 x string]");
    qn_file_close(file);
    qn_ctx_destroy(ctx);
}

/* Rows without columns take no byte: their number is whatever the file says. */
static void test_no_columns(void **state)
{
    static struct gguf g;
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    qn_weight *weight = NULL;
    (void)state;
    begin(&g, 1, 0);
    put_tensor(&g, "w", 0, (uint64_t)1 << 50, 8, 0);
    pad(&g, 32);
    assert_ok(open_checkpoint(ctx, g.bytes, g.size, &c, NULL));
    assert_error(qn_checkpoint_load(ctx, c, 0, 0, -1, &weight, NULL, &err), QN_E_SHAPE,
                 "without columns");
    qn_checkpoint_close(c);
    qn_ctx_destroy(ctx);
}

/* Each allocation fails once. */
static void test_no_memory(void **state)
{
    static struct gguf g;
    (void)state;
    put_small(&g);
    for (int64_t refuse = 1;; refuse++) {
        struct counted_ctx c;
        qn_checkpoint *checkpoint = NULL;
        qn_weight *weight = NULL;
        counted_make(&c);
        c.counter.refuse = c.counter.calls + refuse;
        qn_status status = open_checkpoint(c.ctx, g.bytes, g.size, &checkpoint, NULL);
        if (status == QN_OK)
            status = qn_checkpoint_load(c.ctx, checkpoint, 0, 0, -1, &weight, NULL, NULL);
        assert_true(status == QN_OK || status == QN_E_MEMORY);
        const bool is_last = c.counter.calls < c.counter.refuse;
        assert_true(is_last == (status == QN_OK));
        qn_weight_destroy(weight);
        qn_checkpoint_close(checkpoint);
        c.counter.refuse = 0;
        counted_destroy(&c);
        if (is_last)
            return;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),    cmocka_unit_test(test_minima_are_exact),
        cmocka_unit_test(test_heads),     cmocka_unit_test(test_keys),
        cmocka_unit_test(test_tensors),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_damage),    cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_no_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
