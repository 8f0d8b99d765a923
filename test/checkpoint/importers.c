/* SPDX-License-Identifier: Apache-2.0 */
/* Every importer of safetensors against damage: a small model of each format, cut at every byte and
 * with every single bit turned over, its configuration too, and with each allocation failing once.
 * What still opens answers every question, and loads or is refused in words. */
#include "files.h"

#include "checkpoint/checkpoint.h"

struct part {
    const char *name, *dtype, *shape;
    size_t bytes;
    const char *fill; /* repeated; two characters are a byte */
};

struct model {
    const char *importer, *config;
    struct part parts[8];
};

#define GPTQ "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8}}"
#define AWQ  "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32}}"
#define CT                                                                                         \
    "{\"quantization_config\":{\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":4,"             \
    "\"type\":\"int\",\"group_size\":8},\"input_activations\":null}}}}"
#define STATE "7b2271756f74223a312c227368617065223a5b322c365d2c22626c6f636b73697a65223a347d"

static const struct model models[] = {
    {"gptq",
     GPTQ,
     {{"m.qweight", "I32", "[2,8]", 64, "9f"},
      {"m.qzeros", "I32", "[2,1]", 8, "77"},
      {"m.scales", "F16", "[2,8]", 32, "003c"},
      {"m.g_idx", "I32", "[16]", 64, "0000000001000000"}}},
    {"awq",
     AWQ,
     {{"m.qweight", "I32", "[32,1]", 128, "9f"},
      {"m.qzeros", "I32", "[1,1]", 4, "77"},
      {"m.scales", "F16", "[1,8]", 16, "003c"}}},
    {"awq",
     AWQ,
     {{"m.qweight", "I32", "[2,8]", 64, "9f"},
      {"m.qzeros", "I32", "[2,4]", 32, "77"},
      {"m.scales", "F16", "[2,32]", 128, "003c"}}},
    {"awq",
     AWQ,
     {{"m.qweight", "I16", "[1,64]", 128, "9f"},
      {"m.scaled_zeros", "F16", "[32,4]", 256, "00bc"},
      {"m.scales", "F16", "[32,4]", 256, "003c"}}},
    {"compressed-tensors",
     CT,
     {{"m.weight_packed", "I32", "[3,2]", 24, "9f"},
      {"m.weight_scale", "BF16", "[3,2]", 12, "803f"},
      {"m.weight_zero_point", "I32", "[1,2]", 8, "78"},
      {"m.weight_shape", "I64", "[2]", 16, "03000000000000001000000000000000"},
      {"m.weight_g_idx", "I32", "[16]", 64, "0000000001000000"}}},
    {"compressed-tensors",
     NULL,
     {{"m.weight_packed", "U8", "[2,8]", 16, "97"},
      {"m.weight_scale", "F8_E4M3", "[2,1]", 2, "38"},
      {"m.weight_global_scale", "F32", "[1]", 4, "00008040"}}},
    {"int8",
     CT,
     {{"m.weight", "I8", "[2,16]", 32, "fc"},
      {"m.weight_scale", "F32", "[2,2]", 16, "0000803f"},
      {"m.weight_zero_point", "I8", "[2,2]", 4, "01"}}},
    {"fp8",
     NULL,
     {{"m.weight", "F8_E4M3", "[2,8]", 16, "38"}, {"m.weight_scale_inv", "F32", "[1,1]", 4, "00"}}},
    {"bitsandbytes",
     NULL,
     {{"m.weight", "U8", "[6,1]", 6, "7f"},
      {"m.weight.absmax", "F32", "[3]", 12, "0000803f"},
      {"m.weight.quant_map", "F32", "[16]", 64, "0000803f"},
      {"m.weight.quant_state.bitsandbytes__fp4", "U8", "[38]", 38, STATE}}},
    {"bitsandbytes",
     NULL,
     {{"m.weight", "I8", "[2,4]", 8, "7f"}, {"m.SCB", "F32", "[2]", 8, "0000803f"}}},
    {"mxfp4",
     NULL,
     {{"m.up_blocks", "U8", "[2,3,1,16]", 96, "97"}, {"m.up_scales", "U8", "[2,3,1]", 6, "80"}}},
};
enum { N_MODELS = sizeof models / sizeof *models };

static int digit(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static uint8_t *model_make(const struct model *m, size_t *size)
{
    char header[2048] = "{";
    uint8_t data[1024];
    size_t at = 0, used = 1;
    for (int i = 0; i < 8 && m->parts[i].name != NULL; i++) {
        const struct part *p = &m->parts[i];
        const size_t length = strlen(p->fill) / 2;
        used +=
            (size_t)snprintf(header + used, sizeof header - used,
                             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                             i > 0 ? "," : "", p->name, p->dtype, p->shape, at, at + p->bytes);
        for (size_t j = 0; j < p->bytes; j++)
            data[at++] = (uint8_t)(digit(p->fill[2 * (j % length)]) * 16 +
                                   digit(p->fill[2 * (j % length) + 1]));
    }
    assert_true(used + 2 < sizeof header);
    strcpy(header + used, "}");
    return safetensors_make(header, data, at, size);
}

/* The status of the one module's loading, or of opening. */
static qn_status use(const qn_ctx *ctx, const uint8_t *bytes, size_t size, const char *config,
                     size_t config_bytes, const char *importer)
{
    qn_file *file = NULL;
    qn_checkpoint *c = NULL;
    qn_error err = {QN_OK, -1, ""};
    char text[256];
    qn_status status = open_bytes(ctx, bytes, size, &file, &err);
    if (status == QN_OK)
        status = qn_checkpoint_open_files(ctx, &file, 1, config, config_bytes, NULL, &c, &err);
    if (status != QN_OK) {
        assert_true(err.status == status && err.text[0] != 0);
        return status;
    }
    for (int64_t i = 0; i < qn_checkpoint_count(c); i++) {
        qn_module m;
        qn_weight *weight = NULL;
        qn_module_init(&m);
        const qn_status found = qn_checkpoint_module(c, i, &m, &err);
        if (m.importer[0] == 0)
            continue;
        assert_true(found == QN_OK || err.text[0] != 0);
        assert_int_equal(qn_checkpoint_find(c, m.name), i);
        qn_checkpoint_provenance(c, i, text, sizeof text);
        qn_checkpoint_forget(c, i);
        status = qn_checkpoint_load(ctx, c, i, 0, -1, &weight, NULL, &err);
        assert_true((status == QN_OK) == (weight != NULL));
        assert_true(found == QN_OK || found == QN_E_MEMORY || status == found);
        if (importer != NULL)
            assert_string_equal(m.importer, importer);
        qn_weight_destroy(weight);
    }
    qn_checkpoint_close(c);
    return status;
}

static void check_model(const struct model *m)
{
    struct counted_ctx c;
    size_t size = 0;
    uint8_t *bytes = model_make(m, &size);
    const size_t config_bytes = m->config == NULL ? 0 : strlen(m->config);
    counted_make(&c);
    const qn_status good = use(c.ctx, bytes, size, m->config, config_bytes, m->importer);
    if (good != QN_OK)
        fail_msg("%s does not load: %s", m->importer, qn_status_name(good));
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = malloc(cut + 1);
        assert_non_null(copy);
        memcpy(copy, bytes, cut);
        use(c.ctx, copy, cut, m->config, config_bytes, NULL);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        use(c.ctx, bytes, size, m->config, config_bytes, NULL);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    counted_check(&c);
    char *config = malloc(config_bytes + 1);
    assert_non_null(config);
    memcpy(config, m->config == NULL ? "" : m->config, config_bytes);
    for (size_t bit = 0; bit < 8 * config_bytes; bit++) {
        config[bit / 8] ^= (char)(1u << bit % 8);
        use(c.ctx, bytes, size, config, config_bytes, NULL);
        config[bit / 8] ^= (char)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < config_bytes; cut++)
        use(c.ctx, bytes, size, config, cut, NULL);
    assert_true(c.counter.largest_bytes < 1 << 16);
    counted_destroy(&c);
    free(config);
    free(bytes);
}

static void test_damage(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        check_model(&models[i]);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        size_t size = 0;
        uint8_t *bytes = model_make(&models[i], &size);
        const char *config = models[i].config;
        bool is_last = false;
        for (int64_t refuse = 1; !is_last; refuse++) {
            struct counted_ctx c;
            counted_make(&c);
            c.counter.refuse = c.counter.calls + refuse;
            const qn_status status =
                use(c.ctx, bytes, size, config, config == NULL ? 0 : strlen(config), NULL);
            is_last = c.counter.calls < c.counter.refuse;
            /* Where only a question failed for want of memory, loading asks again. */
            assert_true(status == QN_OK || (status == QN_E_MEMORY && !is_last));
            c.counter.refuse = 0;
            counted_destroy(&c);
        }
        free(bytes);
    }
}

/* Plain weights keep their names and are no modules of an importer. */
static void test_plain(void **state)
{
    static const struct model plain = {
        "", NULL, {{"m.weight", "F16", "[2,4]", 16, "003c"}, {"m.bias", "F32", "[2]", 8, "00"}}};
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    qn_checkpoint *c = NULL;
    qn_module m;
    size_t size = 0;
    (void)state;
    uint8_t *bytes = model_make(&plain, &size);
    assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
    assert_ok(qn_checkpoint_open_files(ctx, &file, 1, NULL, 0, NULL, &c, NULL));
    assert_int_equal(qn_checkpoint_count(c), 2);
    qn_module_init(&m);
    assert_ok(qn_checkpoint_module(c, qn_checkpoint_find(c, "m.weight"), &m, NULL));
    assert_string_equal(m.importer, "");
    assert_string_equal(m.dtype, "F16");
    assert_null(m.bias);
    qn_checkpoint_close(c);
    free(bytes);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
