/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX: worked examples of every form, damage, external data, and names. The models are made byte
 * by byte; ONNX Runtime judges in test/oracle/test_onnx_models.py. */
#include "damage.h"

/* ---- making models --------------------------------------------------------------------------- */

struct bytes {
    uint8_t data[4096];
    size_t size;
};

static void put(struct bytes *b, const void *data, size_t size)
{
    assert_true(b->size + size <= sizeof b->data);
    if (size > 0)
        memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_varint(struct bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7)
        put(b, &(uint8_t){(uint8_t)(value & 127) | 128}, 1);
    put(b, &(uint8_t){(uint8_t)value}, 1);
}

static void put_field(struct bytes *b, uint32_t number, const void *data, size_t size)
{
    put_varint(b, number << 3 | 2);
    put_varint(b, size);
    put(b, data, size);
}

static void put_text(struct bytes *b, uint32_t number, const char *text)
{
    put_field(b, number, text, strlen(text));
}

static void put_number(struct bytes *b, uint32_t number, uint64_t value)
{
    put_varint(b, number << 3);
    put_varint(b, value);
}

enum { FLOAT = 1, UINT8 = 2, INT8 = 3, INT32 = 6, UINT4 = 21, INT4 = 22 };
enum { INT32_DATA = 5, RAW_DATA = 9 };

/* shape: digits, each a dimension. */
static void put_tensor(struct bytes *graph, const char *name, int type, const char *shape,
                       uint32_t field, const void *data, size_t size)
{
    struct bytes t = {.size = 0};
    for (; *shape != 0; shape++)
        put_number(&t, 1, (uint64_t)(*shape - '0'));
    put_number(&t, 2, (uint64_t)type);
    put_text(&t, 8, name);
    put_field(&t, field, data, size);
    put_field(graph, 5, t.data, t.size);
}

/* inputs: names with blanks between; "-" is an absent one. attributes: name and value in turn. */
static void put_node(struct bytes *graph, const char *op, const char *domain, const char *inputs,
                     const char *output, const char *name, const char *attributes)
{
    struct bytes n = {.size = 0};
    char word[64], key[64];
    int used = 0, value = 0;
    for (; sscanf(inputs, "%63s%n", word, &used) == 1; inputs += used)
        put_text(&n, 1, strcmp(word, "-") == 0 ? "" : word);
    put_text(&n, 2, output);
    put_text(&n, 3, name);
    put_text(&n, 4, op);
    for (; sscanf(attributes, "%63s %d%n", key, &value, &used) == 2; attributes += used) {
        struct bytes a = {.size = 0};
        put_text(&a, 1, key);
        put_number(&a, 3, (uint64_t)value);
        put_field(&n, 5, a.data, a.size);
    }
    if (domain[0] != 0)
        put_text(&n, 7, domain);
    put_field(graph, 1, n.data, n.size);
}

static void finish(struct bytes *model, const struct bytes *graph)
{
    model->size = 0;
    put_number(model, 1, 10);
    put_text(model, 2, "test");
    put_field(model, 7, graph->data, graph->size);
}

static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
static const uint8_t quads[64] = {0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x0f};

#define NBITS(g, inputs)                                                                           \
    put_node(g, "MatMulNBits", "com.microsoft", inputs, "y", "/m/up/MatMul_Q4",                    \
             "K 4 N 2 bits 4 block_size 16")

/* ---- looking --------------------------------------------------------------------------------- */

struct opened {
    qn_ctx *ctx;
    qn_checkpoint *c;
    struct bytes model;
};

static void open_graph(struct opened *o, const struct bytes *graph)
{
    qn_file *file = NULL;
    qn_error err = {QN_OK, -1, ""};
    o->ctx = ctx_make(1);
    finish(&o->model, graph);
    if (open_bytes(o->ctx, o->model.data, o->model.size, &file, &err) != QN_OK)
        fail_msg("%s", err.text);
    assert_ok(qn_checkpoint_open_files(o->ctx, &file, 1, NULL, 0, NULL, &o->c, &err));
}

static void close_graph(struct opened *o)
{
    qn_checkpoint_close(o->c);
    qn_ctx_destroy(o->ctx);
}

/* The values of module `name`, at most 64. */
static void values_of(const struct opened *o, const char *name, const char *format, float *out)
{
    qn_weight *weight = NULL;
    qn_error err = {QN_OK, -1, ""};
    qn_weight_parts parts;
    char text[96];
    const int64_t i = qn_checkpoint_find(o->c, name);
    if (i < 0 || qn_checkpoint_load(o->ctx, o->c, i, 0, -1, &weight, NULL, &err) != QN_OK)
        fail_msg("%s: %s", name, i < 0 ? "is not there" : err.text);
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(weight, &parts));
    qn_format_print(&parts.format, text, sizeof text);
    assert_string_equal(text, format);
    assert_true(parts.n * parts.k <= 64);
    const qn_tensor to = qn_tensor_2d(out, QN_F32, parts.n, parts.k);
    assert_ok(qn_weight_dequantize(o->ctx, weight, true, &to));
    qn_weight_destroy(weight);
}

static void expect(const float *values, const float *wanted, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] != wanted[i])
            fail_msg("value %zu is %g instead of %g", i, (double)values[i], (double)wanted[i]);
}

/* ---- MatMulNBits ----------------------------------------------------------------------------- */

/* Without zero points 8 is meant, with packed ones each row has whole bytes, and floats are an
 * offset. */
static void test_zeros(void **state)
{
    struct opened o;
    float v[64];
    (void)state;
    struct bytes g = {.size = 0};
    put_tensor(&g, "m.up.weight_Q4", UINT8, "218", RAW_DATA, quads, 16);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, ones, 8);
    NBITS(&g, "x m.up.weight_Q4 s");
    open_graph(&o, &g);
    values_of(&o, "m.up.weight", "int4:g16", v);
    expect(v, (float[]){-7, -6, -5, -4, -8, -8, -8, -8}, 8);
    close_graph(&o);

    g.size = 0;
    put_tensor(&g, "onnx::MatMul_9", UINT8, "218", RAW_DATA, quads, 16);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, ones, 8);
    put_tensor(&g, "z", UINT8, "2", RAW_DATA, "\xf1\x02", 2);
    NBITS(&g, "x onnx::MatMul_9 s z");
    open_graph(&o, &g);
    values_of(&o, "m.up.weight", "int4:g16:zp", v);
    expect(v, (float[]){0, 1, 2, 3, -2, -2, -2, -2}, 8);
    close_graph(&o);

    g.size = 0;
    put_tensor(&g, "m.up.MatMul.qweight", UINT8, "218", RAW_DATA, quads, 16);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, ones, 8);
    put_tensor(&g, "z", FLOAT, "2", RAW_DATA, (float[]){1.5f, -2}, 8);
    NBITS(&g, "x m.up.MatMul.qweight s z");
    open_graph(&o, &g);
    values_of(&o, "m.up.weight", "int4:g16:off", v);
    expect(v, (float[]){-0.5f, 0.5f, 1.5f, 2.5f, 2, 2, 2, 2}, 8);
    close_graph(&o);
}

/* g_idx names the block of each column: 16 of block 1, then 16 of block 0. */
static void test_order(void **state)
{
    struct opened o;
    float v[64];
    uint8_t order[32], codes[16];
    (void)state;
    struct bytes g = {.size = 0};
    memset(order, 1, 16);
    memset(order + 16, 0, 16);
    memset(codes, 0x99, 16);
    put_tensor(&g, "w", UINT8, "128", RAW_DATA, codes, 16);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, (float[]){2, 5}, 8);
    struct bytes t = {.size = 0};
    put_number(&t, 1, 32);
    put_number(&t, 2, INT32);
    put_text(&t, 8, "g");
    put_field(&t, INT32_DATA, order, 32);
    put_field(&g, 5, t.data, t.size);
    put_node(&g, "MatMulNBits", "com.microsoft", "x w s - g", "y", "",
             "K 32 N 1 bits 4 block_size "
             "16");
    open_graph(&o, &g);
    values_of(&o, "w", "int4:g16", v);
    for (size_t i = 0; i < 32; i++)
        assert_true(v[i] == (i < 16 ? 5 : 2));
    close_graph(&o);
}

/* ---- QDQ and integer operators --------------------------------------------------------------- */

/* The usual zero point is 0 here, int4 is packed from the lowest bits on, also as numbers; blocks
 * run along k; Gemm turns. */
static void test_dequantize(void **state)
{
    struct opened o;
    float v[64];
    (void)state;
    struct bytes g = {.size = 0};
    put_tensor(&g, "a", UINT4, "42", INT32_DATA, "\x21\x43\xe5\x01\x07", 5); /* 0xe5 0x01: 229 */
    put_tensor(&g, "as", FLOAT, "22", RAW_DATA, (float[]){1, 2, 4, 8}, 16);
    put_node(&g, "DequantizeLinear", "", "a as", "ad", "", "axis 0 block_size 2");
    put_node(&g, "MatMul", "", "x ad", "y", "m", "");
    put_tensor(&g, "b", INT8, "23", RAW_DATA, "\xff\x02\x03\x04\x05\x80", 6);
    put_tensor(&g, "bs", FLOAT, "2", RAW_DATA, (float[]){1, 0.5f}, 8);
    put_tensor(&g, "bz", INT8, "2", INT32_DATA, "\x01\x00", 2);
    put_node(&g, "DequantizeLinear", "", "b bs bz", "bd", "", "axis 0");
    put_node(&g, "Gemm", "", "x bd bias", "z", "n", "transB 1");
    put_tensor(&g, "bias", FLOAT, "2", RAW_DATA, ones, 8);
    open_graph(&o, &g);
    /* [k, n]: 1 2, 3 4, 5 14, 7 0 */
    values_of(&o, "a", "int4:g2:zp", v);
    expect(v, (float[]){1, 3, 20, 28, 4, 8, 112, 0}, 8);
    values_of(&o, "b", "int8:pc:zp", v);
    expect(v, (float[]){-2, 1, 2, 2, 2.5f, -64}, 6);
    qn_module m;
    qn_module_init(&m);
    assert_ok(qn_checkpoint_module(o.c, qn_checkpoint_find(o.c, "b"), &m, NULL));
    assert_string_equal(m.bias, "bias");
    close_graph(&o);
}

/* Taps become the outer dimension, groups of ConvTranspose lie along its inputs, and x's scale is
 * kept. */
static void test_convolutions(void **state)
{
    static const uint8_t count[24] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                      12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};
    struct opened o;
    float v[64];
    (void)state;
    struct bytes g = {.size = 0};
    put_tensor(&g, "c", UINT8, "2212", RAW_DATA, count, 8);
    put_tensor(&g, "cs", FLOAT, "2", RAW_DATA, (float[]){1, 2}, 8);
    put_tensor(&g, "cz", UINT8, "2", RAW_DATA, "\0\x04", 2);
    put_tensor(&g, "xs", FLOAT, "", RAW_DATA, (float[]){0.5f}, 4);
    put_tensor(&g, "xz", UINT8, "", RAW_DATA, "\x82", 1);
    put_node(&g, "QLinearConv", "", "x xs xz c cs cz xs xz", "y", "c", "");
    put_tensor(&g, "t", INT8, "2212", RAW_DATA, count, 8);
    put_tensor(&g, "ts", FLOAT, "2", RAW_DATA, (float[]){1, 10}, 8);
    put_node(&g, "DequantizeLinear", "", "t ts", "td", "", "axis 1");
    put_node(&g, "ConvTranspose", "", "x td", "u", "", "group 2");
    open_graph(&o, &g);
    values_of(&o, "c", "int8:pc:zp", v); /* [n, tap, channel] of [n, channel, tap] */
    expect(v, (float[]){0, 2, 1, 3, 0, 4, 2, 6}, 8);
    values_of(&o, "t", "int8:pc", v); /* of [input, output of the group, tap] */
    expect(v, (float[]){0, 1, 20, 30, 4, 5, 60, 70}, 8);
    qn_module m;
    qn_module_init(&m);
    assert_ok(qn_checkpoint_module(o.c, qn_checkpoint_find(o.c, "c"), &m, NULL));
    assert_int_equal(m.activation, QN_ACTIVATION_INT8_STATIC);
    assert_true(m.input_scale == 0.5f && m.input_zero == 2 && m.role == QN_ROLE_CONV);
    assert_ok(qn_checkpoint_module(o.c, qn_checkpoint_find(o.c, "t"), &m, NULL));
    assert_int_equal(m.conv_groups, 2);
    close_graph(&o);
}

/* A MatMulInteger's scale is in the Mul that follows; without one it is 1. */
static void test_integer(void **state)
{
    struct opened o;
    float v[64];
    (void)state;
    struct bytes g = {.size = 0};
    put_tensor(&g, "w", UINT8, "21", RAW_DATA, "\x03\x05", 2);
    put_tensor(&g, "z", UINT8, "", RAW_DATA, "\x04", 1);
    put_tensor(&g, "s", FLOAT, "", RAW_DATA, (float[]){0.25f}, 4);
    put_node(&g, "MatMulInteger", "", "x w - z", "i", "", "");
    put_node(&g, "Cast", "", "i", "f", "", "to 1");
    put_node(&g, "Mul", "", "xs s", "p", "", "");
    put_node(&g, "Mul", "", "f p", "y", "", "");
    put_tensor(&g, "w1", INT8, "21", RAW_DATA, "\x03\xff", 2);
    put_node(&g, "MatMulInteger", "", "x w1", "i1", "", "");
    open_graph(&o, &g);
    values_of(&o, "w", "int8:pt:zp", v);
    expect(v, (float[]){-0.25f, 0.25f}, 2);
    values_of(&o, "w1", "int8:pt", v);
    expect(v, (float[]){3, -1}, 2);
    close_graph(&o);
}

/* Floats of products load as weights of their own type, whichever way they lie. */
static void test_floats(void **state)
{
    struct opened o;
    float v[64];
    (void)state;
    struct bytes g = {.size = 0};
    const float numbers[] = {1, 2, 3, 4, 5, 6};
    put_tensor(&g, "w", FLOAT, "23", RAW_DATA, numbers, 24);
    put_node(&g, "MatMul", "", "x w", "y", "", "");
    put_tensor(&g, "r", FLOAT, "23", RAW_DATA, numbers, 24);
    put_node(&g, "Gemm", "", "x r", "z", "", "transB 1");
    open_graph(&o, &g);
    values_of(&o, "w", "f32", v);
    expect(v, (float[]){1, 4, 2, 5, 3, 6}, 6);
    values_of(&o, "r", "f32", v);
    expect(v, numbers, 6);
    close_graph(&o);
}

/* ---- names, refusals, damage ----------------------------------------------------------------- */

/* Two modules that would be called the same keep the names of their tensors. */
static void test_names(void **state)
{
    struct opened o;
    (void)state;
    struct bytes g = {.size = 0};
    put_tensor(&g, "a.weight", FLOAT, "22", RAW_DATA, ones, 16);
    put_tensor(&g, "a.weight_quantized", INT8, "22", RAW_DATA, ones, 4);
    put_tensor(&g, "b.weight_Q4", INT8, "22", RAW_DATA, ones, 4);
    put_tensor(&g, "s", FLOAT, "", RAW_DATA, ones, 4);
    put_node(&g, "DequantizeLinear", "", "a.weight_quantized s", "d", "", "");
    put_node(&g, "MatMul", "", "x d", "y", "", "");
    put_node(&g, "DequantizeLinear", "", "b.weight_Q4 s", "e", "", "");
    put_node(&g, "MatMul", "", "x e", "z", "", "");
    put_node(&g, "MatMul", "", "x a.weight", "u", "", "");
    open_graph(&o, &g);
    assert_int_equal(qn_checkpoint_count(o.c), 3);
    assert_true(qn_checkpoint_find(o.c, "a.weight_quantized") >= 0);
    assert_true(qn_checkpoint_find(o.c, "b.weight") >= 0);
    qn_module m;
    qn_module_init(&m);
    assert_ok(qn_checkpoint_module(o.c, qn_checkpoint_find(o.c, "a.weight"), &m, NULL));
    assert_true(m.role == QN_ROLE_LINEAR && m.importer[0] == 0);
    close_graph(&o);
}

static void expect_refusal(const struct bytes *graph, const char *words)
{
    struct opened o;
    qn_error err = {QN_OK, -1, ""};
    qn_module m;
    qn_module_init(&m);
    open_graph(&o, graph);
    assert_true(qn_checkpoint_module(o.c, 0, &m, &err) != QN_OK);
    if (strstr(err.text, words) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, words);
    close_graph(&o);
}

static void test_refusals(void **state)
{
    (void)state;
    struct bytes g = {.size = 0};
    put_tensor(&g, "w", UINT8, "218", RAW_DATA, quads, 16);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, ones, 8);
    put_node(&g, "MatMulNBits", "com.microsoft", "x w s", "y", "",
             "K 4 N 2 bits 4 block_size 16 weight_prepacked 1");
    expect_refusal(&g, "prepacked");
    g.size = 0;
    put_tensor(&g, "w", UINT8, "218", RAW_DATA, quads, 16);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, ones, 8);
    put_node(&g, "MatMulNBits", "com.microsoft", "x w s", "y", "", "K 5 N 3 bits 4 block_size 16");
    expect_refusal(&g, "B should be 3 x 1 x 8");
    g.size = 0;
    put_tensor(&g, "w", INT8, "22", RAW_DATA, ones, 4);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, ones, 8);
    put_node(&g, "DequantizeLinear", "", "w s", "d", "", "axis 0");
    put_node(&g, "MatMul", "", "x d", "y", "", "");
    expect_refusal(&g, "along axis 0");
}

static void make_all(struct bytes *model)
{
    struct bytes g = {.size = 0};
    put_tensor(&g, "n", UINT8, "218", RAW_DATA, quads, 16);
    put_tensor(&g, "s", FLOAT, "2", RAW_DATA, ones, 8);
    put_tensor(&g, "z", UINT8, "2", RAW_DATA, "\x01\x02", 2);
    put_tensor(&g, "i", INT32, "4", INT32_DATA, "\0\0\0\0", 4);
    NBITS(&g, "x n s z i");
    put_tensor(&g, "a", INT4, "42", INT32_DATA, "\x21\x43\x65\x07", 4);
    put_tensor(&g, "as", FLOAT, "22", RAW_DATA, ones, 16);
    put_node(&g, "DequantizeLinear", "", "a as", "ad", "", "axis 0 block_size 2");
    put_node(&g, "MatMul", "", "x ad", "y", "m", "");
    put_tensor(&g, "c", UINT8, "2212", RAW_DATA, quads, 8);
    put_tensor(&g, "cz", UINT8, "2", RAW_DATA, "\0\x04", 2);
    put_tensor(&g, "xs", FLOAT, "", RAW_DATA, ones, 4);
    put_node(&g, "QLinearConv", "", "x xs - c s cz xs -", "y", "c", "group 2");
    finish(model, &g);
}

static void test_damage(void **state)
{
    struct bytes model;
    (void)state;
    make_all(&model);
    uint8_t *block = malloc(model.size);
    assert_non_null(block);
    memcpy(block, model.data, model.size);
    check_damage(block, model.size, NULL, "onnx");
    free(block);
}

static void test_no_memory(void **state)
{
    struct bytes model;
    (void)state;
    make_all(&model);
    check_no_memory(model.data, model.size, NULL);
}

/* ---- external data --------------------------------------------------------------------------- */

static qn_status open_external(const char *folder, const char *location, const char *offset,
                               qn_error *err)
{
    struct bytes g = {.size = 0}, t = {.size = 0}, e = {.size = 0}, model;
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    put_number(&t, 1, 2);
    put_number(&t, 1, 2);
    put_number(&t, 2, INT8);
    put_text(&t, 8, "w");
    put_text(&e, 1, "location");
    put_text(&e, 2, location);
    put_field(&t, 13, e.data, e.size);
    e.size = 0;
    put_text(&e, 1, "offset");
    put_text(&e, 2, offset);
    put_field(&t, 13, e.data, e.size);
    e.size = 0;
    put_text(&e, 1, "length");
    put_text(&e, 2, "4");
    put_field(&t, 13, e.data, e.size);
    put_number(&t, 14, 1);
    put_field(&g, 5, t.data, t.size);
    put_tensor(&g, "s", FLOAT, "", RAW_DATA, ones, 4);
    put_node(&g, "DequantizeLinear", "", "w s", "d", "", "");
    put_node(&g, "MatMul", "", "x d", "y", "", "");
    finish(&model, &g);
    file_write(in(folder, "m.onnx"), model.data, model.size);
    const qn_status status = qn_checkpoint_open(ctx, in(folder, "m.onnx"), NULL, &c, err);
    if (status == QN_OK) {
        float v[4];
        struct opened o = {.ctx = ctx, .c = c};
        assert_int_equal(qn_file_get_kind(qn_checkpoint_file(c, 1)), QN_FILE_ONNX_DATA);
        values_of(&o, "w", "int8:pt", v);
        expect(v, (float[]){3, 5, 4, 6}, 4);
        qn_checkpoint_forget(c, 0);
    }
    qn_checkpoint_close(c);
    qn_ctx_destroy(ctx);
    return status;
}

static void test_external(void **state)
{
    static const char *const outside[] = {
        "../b.data", "/etc/hostname", "sub/../../b.data", "..", "", "a//b", "a\\b", "link"};
    char *folder = folder_make();
    qn_error err = {QN_OK, -1, ""};
    (void)state;
    file_write(in(folder, "b.data"), "\1\2\3\4\5\6", 6);
    assert_ok(open_external(folder, "b.data", "2", &err));
    assert_int_equal(open_external(folder, "b.data", "3", &err), QN_E_CORRUPT);
    assert_non_null(strstr(err.text, "truncated"));
    assert_int_equal(open_external(folder, "b.data", "9223372036854775807", &err), QN_E_CORRUPT);
    assert_int_equal(open_external(folder, "b.data", "-1", &err), QN_E_CORRUPT);
    assert_int_equal(open_external(folder, "gone", "0", &err), QN_E_NOT_FOUND);
    assert_int_equal(symlink("/etc/hostname", in(folder, "link")), 0);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_int_equal(open_external(folder, outside[i], "0", &err), QN_E_CORRUPT);
    assert_int_equal(mkdir(in(folder, "sub"), 0700), 0);
    file_write(in(folder, "sub/b.data"), "\3\4\5\6", 4);
    assert_ok(open_external(folder, "sub/b.data", "0", &err));
    assert_int_equal(remove(in(folder, "sub/b.data")), 0);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zeros),      cmocka_unit_test(test_order),
        cmocka_unit_test(test_dequantize), cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_integer),    cmocka_unit_test(test_floats),
          cmocka_unit_test(test_names),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_external),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
