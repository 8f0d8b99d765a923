/* SPDX-License-Identifier: Apache-2.0 */
/* Rotations of positions that config.json scales (rope_scaling, or rope_parameters), as GGUF has
 * them: keys for "linear" and "yarn", and for "llama3" a tensor of what each frequency is divided
 * by. Other ways are told, not written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"

static double number_of(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

const cJSON *export_rope(const cJSON *config)
{
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    const cJSON *full = cJSON_GetObjectItemCaseSensitive(all, "full_attention");
    return cJSON_IsObject(full) ? full : all;
}

static const cJSON *scaling_of(const cJSON *config)
{
    const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    return cJSON_IsObject(scaling) ? scaling : export_rope(config);
}

static const char *kind_of(const cJSON *scaling)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(scaling, "rope_type");
    if (!cJSON_IsString(kind))
        kind = cJSON_GetObjectItemCaseSensitive(scaling, "type");
    return cJSON_IsString(kind) ? kind->valuestring : "default";
}

static qn_status put_number(const struct export *e, qn_writer *writer, const char *key,
                            qn_value_type type, double value, qn_error *err)
{
    const float f = (float)value;
    const uint32_t u = (uint32_t)value;
    char *name = must_print("%s.rope.scaling.%s", e->facts.arch, key);
    const qn_status status = qn_writer_value(
        writer, name, type, type == QN_VALUE_F32 ? (const void *)&f : (const void *)&u, 4, err);
    free(name);
    return status;
}

qn_status export_put_rope(const struct export *e, qn_writer *writer, qn_error *err)
{
    const cJSON *scaling = scaling_of(e->config);
    const char *kind = kind_of(scaling);
    const double factor = number_of(scaling, "factor", 1);
    const double old = number_of(scaling, "original_max_position_embeddings", 0);
    if (strcmp(kind, "default") == 0 || strcmp(kind, "llama3") == 0)
        return QN_OK;
    if ((strcmp(kind, "linear") != 0 && strcmp(kind, "yarn") != 0) || !(factor > 0)) {
        fprintf(stderr,
                "quern: config.json scales its rotations (rope_scaling of type %s), which the "
                "GGUF file does not say: long texts will come out worse\n",
                kind);
        return QN_OK;
    }
    char *name = must_print("%s.rope.scaling.type", e->facts.arch);
    qn_status status = qn_writer_value(writer, name, QN_VALUE_TEXT, kind, strlen(kind), err);
    free(name);
    if (status == QN_OK)
        status = put_number(e, writer, "factor", QN_VALUE_F32, factor, err);
    if (status == QN_OK && old >= 1 && old < 4e9)
        status = put_number(e, writer, "original_context_length", QN_VALUE_U32, old, err);
    return status;
}

/* Llama 3.1: frequencies of waves that are long beside the old context are divided by `factor`,
 * those of short waves stay, those between are mixed. */
static float llama3_factor(const cJSON *scaling, double frequency)
{
    const double factor = number_of(scaling, "factor", 8);
    const double low = number_of(scaling, "low_freq_factor", 1);
    const double high = number_of(scaling, "high_freq_factor", 4);
    const double old = number_of(scaling, "original_max_position_embeddings", 8192);
    const double turns = old * frequency / (2 * 3.14159265358979323846);
    if (turns > high)
        return 1.0f;
    if (turns < low || high == low)
        return (float)factor;
    const double smooth = (turns - low) / (high - low);
    return (float)(1 / ((1 - smooth) / factor + smooth));
}

float *export_rope_factors(const struct export *e, int64_t *count)
{
    enum { MOST = 4096 };
    const cJSON *scaling = scaling_of(e->config);
    const double heads = number_of(e->config, "num_attention_heads", 0);
    const double size = heads > 0 ? number_of(e->config, "hidden_size", 0) / heads : 0;
    const double dim = number_of(e->config, "head_dim", size);
    const double base =
        number_of(e->config, "rope_theta", number_of(export_rope(e->config), "rope_theta", 10000));
    *count = 0;
    if (!e->to_gguf || e->from_gguf || strcmp(kind_of(scaling), "llama3") != 0 || !(dim >= 2) ||
        dim > MOST || !(base > 0))
        return NULL;
    *count = (int64_t)dim / 2;
    float *factors = must_alloc((size_t)*count * sizeof *factors);
    for (int64_t i = 0; i < *count; i++)
        factors[i] = llama3_factor(scaling, pow(base, -2.0 * (double)i / dim));
    return factors;
}

void export_put_float(cJSON *object, const char *key, double value)
{
    const int is_whole = value > -1e15 && value < 1e15 && value == (double)(int64_t)value;
    char *text = is_whole ? must_print("%.1f", value) : must_print("%.9g", value);
    if (isfinite(value))
        cJSON_AddRawToObject(object, key, text);
    free(text);
}

void export_rope_of_gguf(const struct export *e, cJSON *config)
{
    static const char *const keys[][2] = {
        {"factor", "factor"}, {"original_context_length", "original_max_position_embeddings"}};
    const qn_file *file = e->metadata;
    qn_entry entry;
    char *name = must_print("%s.rope.scaling.type", e->facts.arch);
    const char *kind = qn_file_get_metadata(file, name);
    free(name);
    if (qn_checkpoint_tensor(e->model, "rope_freqs.weight", &entry) == QN_OK)
        fprintf(stderr, "quern: rope_freqs.weight scales the rotations, which the config.json made "
                        "of a GGUF file does not say; --config FOLDER carries the original's\n");
    if (kind == NULL || (strcmp(kind, "linear") != 0 && strcmp(kind, "yarn") != 0))
        return;
    cJSON *scaling = cJSON_AddObjectToObject(config, "rope_scaling");
    cJSON_AddStringToObject(scaling, "rope_type", kind);
    for (size_t i = 0; i < 2; i++) {
        name = must_print("%s.rope.scaling.%s", e->facts.arch, keys[i][0]);
        const char *value = qn_file_get_metadata(file, name);
        free(name);
        if (value == NULL)
            continue;
        if (i == 0)
            export_put_float(scaling, keys[i][1], strtod(value, NULL));
        else
            cJSON_AddNumberToObject(scaling, keys[i][1], strtod(value, NULL));
    }
}
