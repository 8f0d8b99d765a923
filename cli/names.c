/* SPDX-License-Identifier: Apache-2.0 */
/* The names of tensors in Hugging Face folders and in GGUF files: one table, used by convert and
 * compare. "#" is the number of the layer. */
#include "names.h"

#include <stdlib.h>
#include <string.h>

static const struct family {
    const char *arch, *class_name, *model_type;
    int is_rotated, is_gemma; /* q and k in another order; norms shifted, four norms a layer */
} families[] = {
    {"llama", "LlamaForCausalLM", "llama", 1, 0},
    {"llama", "MistralForCausalLM", "mistral", 1, 0},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", 0, 0},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", 0, 0},
    {"gemma", "GemmaForCausalLM", "gemma", 0, 1},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", 0, 2},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", 0, 2},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

static const struct pair {
    const char *hf, *gguf;
    int gemma; /* 0: any; 1: all but the later gemmas; 2: these alone */
} pairs[] = {
    {"model.embed_tokens", "token_embd", 0},
    {"model.norm", "output_norm", 0},
    {"lm_head", "output", 0},
    {"model.layers.#.input_layernorm", "blk.#.attn_norm", 0},
    {"model.layers.#.self_attn.q_proj", "blk.#.attn_q", 0},
    {"model.layers.#.self_attn.k_proj", "blk.#.attn_k", 0},
    {"model.layers.#.self_attn.v_proj", "blk.#.attn_v", 0},
    {"model.layers.#.self_attn.o_proj", "blk.#.attn_output", 0},
    {"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm", 0},
    {"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm", 0},
    {"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm", 1},
    {"model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm", 2},
    {"model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm", 2},
    {"model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm", 2},
    {"model.layers.#.mlp.gate_proj", "blk.#.ffn_gate", 0},
    {"model.layers.#.mlp.up_proj", "blk.#.ffn_up", 0},
    {"model.layers.#.mlp.down_proj", "blk.#.ffn_down", 0},
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

static int gemma_of(const char *arch)
{
    for (int i = 0; i < N_FAMILIES && arch != NULL; i++)
        if (strcmp(families[i].arch, arch) == 0)
            return families[i].is_gemma;
    return 0;
}

/* ---- facts ----------------------------------------------------------------------------------- */

static void take_family(struct model_facts *facts, const struct family *f)
{
    facts->arch = f->arch;
    facts->class_name = f->class_name;
    facts->model_type = f->model_type;
}

void facts_of_config(struct model_facts *facts, const cJSON *config)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(config, "num_attention_heads");
    const cJSON *kv = cJSON_GetObjectItemCaseSensitive(config, "num_key_value_heads");
    *facts = (struct model_facts){0};
    for (int i = 0; i < N_FAMILIES && cJSON_IsString(type); i++)
        if (strcmp(families[i].model_type, type->valuestring) == 0)
            take_family(facts, &families[i]);
    facts->heads = cJSON_IsNumber(heads) ? (int64_t)heads->valuedouble : 0;
    facts->kv_heads = cJSON_IsNumber(kv) ? (int64_t)kv->valuedouble : facts->heads;
}

static int64_t number_of(const qn_file *file, const char *arch, const char *key)
{
    char *full = must_print("%s.%s", arch, key);
    const char *text = qn_file_get_metadata(file, full);
    free(full);
    return text != NULL ? strtoll(text, NULL, 10) : 0;
}

void facts_of_gguf(struct model_facts *facts, const qn_file *file)
{
    const char *arch = qn_file_get_metadata(file, "general.architecture");
    *facts = (struct model_facts){0};
    for (int i = N_FAMILIES - 1; i >= 0 && arch != NULL; i--)
        if (strcmp(families[i].arch, arch) == 0)
            take_family(facts, &families[i]);
    if (arch == NULL)
        return;
    facts->heads = number_of(file, arch, "attention.head_count");
    facts->kv_heads = number_of(file, arch, "attention.head_count_kv");
    facts->kv_heads = facts->kv_heads > 0 ? facts->kv_heads : facts->heads;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Does name follow the pattern, with a rest of ".weight" or ".bias"? layer: "" without one. */
static int matches(const char *pattern, const char *name, char layer[12], const char **rest)
{
    layer[0] = '\0';
    for (; *pattern != '\0'; pattern++) {
        size_t digits = 0;
        if (*pattern == '#') {
            while (name[digits] >= '0' && name[digits] <= '9' && digits < 10)
                digits++;
            if (digits == 0)
                return 0;
            memcpy(layer, name, digits);
            layer[digits] = '\0';
            name += digits;
        } else if (*name++ != *pattern) {
            return 0;
        }
    }
    *rest = name;
    return strcmp(name, ".weight") == 0 || strcmp(name, ".bias") == 0;
}

static char *fill(const char *pattern, const char *layer, const char *rest)
{
    const char *mark = strchr(pattern, '#');
    if (mark == NULL)
        return must_print("%s%s", pattern, rest);
    return must_print("%.*s%s%s%s", (int)(mark - pattern), pattern, layer, mark + 1, rest);
}

static char *other_name(const char *name, const char *arch, int to_gguf)
{
    char layer[12];
    const char *rest;
    const int kind = gemma_of(arch) == 2 ? 2 : 1;
    for (int i = 0; i < N_PAIRS; i++) {
        const char *from = to_gguf ? pairs[i].hf : pairs[i].gguf;
        if ((pairs[i].gemma == 0 || pairs[i].gemma == kind) && matches(from, name, layer, &rest))
            return fill(to_gguf ? pairs[i].gguf : pairs[i].hf, layer, rest);
    }
    return NULL;
}

char *name_to_gguf(const char *name, const char *arch)
{
    return other_name(name, arch, 1);
}

char *name_to_hf(const char *name, const char *arch)
{
    return other_name(name, arch, 0);
}

int64_t name_heads(const char *name, const struct model_facts *facts)
{
    char layer[12];
    const char *rest;
    if (facts->arch == NULL || strcmp(facts->arch, "llama") != 0)
        return 0;
    if (matches("model.layers.#.self_attn.q_proj", name, layer, &rest))
        return facts->heads;
    return matches("model.layers.#.self_attn.k_proj", name, layer, &rest) ? facts->kv_heads : 0;
}

int64_t row_of_gguf(int64_t row, int64_t n, int64_t heads)
{
    const int64_t size = n / heads, at = row % size;
    return row - at + at % 2 * (size / 2) + at / 2;
}

int name_is_shifted(const char *name, const struct model_facts *facts)
{
    const char *norm = strstr(name, "norm.weight");
    return norm != NULL && norm[strlen("norm.weight")] == '\0' && gemma_of(facts->arch) > 0;
}
