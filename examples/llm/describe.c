/* SPDX-License-Identifier: Apache-2.0 */
/* What both kinds of checkpoints say, under different names. */
#include "describe.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("llm: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return false;
}

bool config_fill(struct config *c, const char *architecture, setting_fn *setting,
                 const void *source)
{
    static const char *const known[] = {"llama", "mistral", "qwen2",
                                        "qwen3", "gemma3",  "gemma3_text"};
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known |= strcmp(architecture, known[i]) == 0;
    if (!is_known)
        return complain("architecture '%.40s' is none of llama, mistral, qwen2, qwen3, gemma3",
                        architecture);
    const bool is_gemma = strncmp(architecture, "gemma3", 6) == 0;
    const struct {
        int32_t *to;
        const char *gguf, *json;
        double otherwise, most;
    } wholes[] = {
        {&c->n_layers, "block_count", "num_hidden_layers", 0, 1000},
        {&c->width, "embedding_length", "hidden_size", 0, 1 << 20},
        {&c->heads, "attention.head_count", "num_attention_heads", 0, 1024},
        {&c->kv_heads, "attention.head_count_kv", "num_key_value_heads", -1, 1024},
        {&c->ffn, "feed_forward_length", "intermediate_size", 0, 1 << 20},
        {&c->longest, "context_length", "max_position_embeddings", 2048, 1 << 30},
        {&c->head_dim, "attention.key_length", "head_dim", -1, 1024},
        {&c->window, "attention.sliding_window", "sliding_window", 0, 1 << 30},
    };
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        const double v = setting(source, wholes[i].gguf, wholes[i].json, wholes[i].otherwise);
        *wholes[i].to = v >= -1 && v <= wholes[i].most ? (int32_t)v : 0;
    }
    c->kv_heads = c->kv_heads < 0 ? c->heads : c->kv_heads;
    c->head_dim = c->head_dim < 0 && c->heads > 0 ? c->width / c->heads : c->head_dim;
    c->norm_eps = (float)setting(source, "attention.layer_norm_rms_epsilon", "rms_norm_eps", 1e-5);
    c->rope_base = (float)setting(source, "rope.freq_base", "rope_theta", is_gemma ? 1e6 : 1e4);
    c->rope_base_local = (float)setting(source, "rope.freq_base_swa", "rope_local_base_freq", 1e4);
    c->rope_factor = (float)setting(source, "rope.scaling.factor", NULL, 1.0);
    c->act_is_gelu = is_gemma;
    c->embedding_scale = is_gemma ? sqrtf((float)c->width) : 1.0f;
    c->window_period = is_gemma ? 6 : 0;
    if (c->n_layers < 1 || c->width < 1 || c->heads < 1 || c->kv_heads < 1 || c->ffn < 1 ||
        c->heads % c->kv_heads != 0 || c->head_dim < 2 || c->head_dim % 2 != 0 ||
        (is_gemma && c->window < 1))
        return complain("the configuration is incomplete or impossible: %d layers, width %d, "
                        "%d heads, %d for keys, each of %d, network %d",
                        c->n_layers, c->width, c->heads, c->kv_heads, c->head_dim, c->ffn);
    c->attention_scale = 1.0f / sqrtf((float)c->head_dim);
    return true;
}

void tokenizer_find_end_of_turn(struct tokenizer *t)
{
    static const char *const names[] = {"<end_of_turn>", "<|im_end|>", "<|eot_id|>"};
    for (size_t i = 0; t->end_of_turn < 0 && i < sizeof names / sizeof *names; i++)
        t->end_of_turn = tokenizer_find(t, names[i]);
}
