/* SPDX-License-Identifier: Apache-2.0 */
/* Every importer of safetensors against damage: a small model of each format, cut at every byte and
 * with every single bit turned over, its configuration too, and with each allocation failing once.
 * What still opens answers every question, and loads or is refused in words. */
#include "damage.h"

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

static void test_damage(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        size_t size = 0;
        uint8_t *bytes = model_make(&models[i], &size);
        check_damage(bytes, size, models[i].config, models[i].importer);
        free(bytes);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        size_t size = 0;
        uint8_t *bytes = model_make(&models[i], &size);
        check_no_memory(bytes, size, models[i].config);
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
