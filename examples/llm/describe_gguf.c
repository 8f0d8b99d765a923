/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration and tokenizer from the metadata of a GGUF file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "describe.h"

struct gguf {
    const qn_file *file;
    const char *architecture;
};

static double setting(const void *source, const char *gguf, const char *json, double otherwise)
{
    const struct gguf *g = source;
    char key[128];
    (void)json;
    snprintf(key, sizeof key, "%s.%s", g->architecture, gguf);
    const char *text = qn_file_get_metadata(g->file, key);
    return text == NULL ? otherwise : strtod(text, NULL);
}

static bool read_tokens(const qn_file *file, struct tokenizer *t)
{
    qn_array tokens, types, scores;
    qn_array_init(&tokens);
    qn_array_init(&types);
    qn_array_init(&scores);
    const bool has_types = qn_file_array(file, "tokenizer.ggml.token_type", &types) == QN_OK &&
                           types.dtype == QN_I32 && types.count == t->count;
    const bool has_scores = qn_file_array(file, "tokenizer.ggml.scores", &scores) == QN_OK &&
                            scores.dtype == QN_F32 && scores.count == t->count;
    if (qn_file_array(file, "tokenizer.ggml.tokens", &tokens) != QN_OK)
        return false;
    for (int32_t i = 0; i < t->count; i++) {
        size_t bytes;
        const char *text = qn_array_next_text(&tokens, &bytes);
        t->token[i] = text == NULL ? NULL : calloc(1, bytes + 1);
        if (t->token[i] == NULL)
            return false;
        memcpy(t->token[i], text, bytes);
        int32_t type = 1;
        if (has_types)
            memcpy(&type, (const char *)types.data + 4 * (size_t)i, sizeof type);
        if (has_scores)
            memcpy(&t->score[i], (const char *)scores.data + 4 * (size_t)i, sizeof *t->score);
        t->is_special[i] = type == 3; /* control */
    }
    return tokenizer_index(t);
}

static bool read_merges(const qn_file *file, struct tokenizer *t)
{
    qn_array merges;
    char pair[1024];
    qn_array_init(&merges);
    if (qn_file_array(file, "tokenizer.ggml.merges", &merges) != QN_OK)
        return complain("the file has a BPE vocabulary without merges");
    const int32_t count = (int32_t)merges.count;
    for (int32_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = qn_array_next_text(&merges, &bytes);
        if (text == NULL || bytes >= sizeof pair)
            return false;
        memcpy(pair, text, bytes);
        pair[bytes] = 0;
        if (!tokenizer_add_merge(t, pair, i))
            return false;
    }
    return true;
}

static int32_t id_setting(const qn_file *file, const char *key)
{
    const char *text = qn_file_get_metadata(file, key);
    return text == NULL ? -1 : (int32_t)strtol(text, NULL, 10);
}

static bool is_true(const qn_file *file, const char *key, bool otherwise)
{
    const char *text = qn_file_get_metadata(file, key);
    return text == NULL ? otherwise : strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
}

static struct tokenizer *gguf_tokenizer(const qn_file *file)
{
    const char *kind = qn_file_get_metadata(file, "tokenizer.ggml.model");
    const char *rule = qn_file_get_metadata(file, "tokenizer.ggml.pre");
    const bool is_bpe = kind != NULL && strcmp(kind, "gpt2") == 0;
    qn_array tokens;
    qn_array_init(&tokens);
    if (kind == NULL || (!is_bpe && strcmp(kind, "llama") != 0))
        return complain("a tokenizer '%s' is none of gpt2, llama", kind == NULL ? "?" : kind), NULL;
    if (qn_file_array(file, "tokenizer.ggml.tokens", &tokens) != QN_OK || tokens.count > 1 << 24)
        return complain("the file has no vocabulary"), NULL;
    struct tokenizer *t =
        tokenizer_create(is_bpe ? TOKENIZER_BPE : TOKENIZER_PIECES, (int32_t)tokens.count);
    if (t == NULL || !read_tokens(file, t) || (is_bpe && !read_merges(file, t)))
        return complain("the vocabulary cannot be read"), tokenizer_destroy(t), NULL;
    t->words = rule == NULL                     ? WORDS_GPT2
               : strcmp(rule, "smollm") == 0    ? WORDS_DIGITS
               : strncmp(rule, "qwen", 4) == 0  ? WORDS_QWEN
               : strncmp(rule, "llama", 5) == 0 ? WORDS_LLAMA3
                                                : WORDS_GPT2;
    t->bos = id_setting(file, "tokenizer.ggml.bos_token_id");
    t->eos = id_setting(file, "tokenizer.ggml.eos_token_id");
    tokenizer_find_end_of_turn(t);
    t->adds_bos = is_true(file, "tokenizer.ggml.add_bos_token", !is_bpe);
    t->adds_space = is_true(file, "tokenizer.ggml.add_space_prefix", !is_bpe);
    return t;
}

bool gguf_describe(const qn_file *file, struct config *c, struct tokenizer **tokenizer)
{
    const struct gguf g = {file, qn_file_get_metadata(file, "general.architecture")};
    if (g.architecture == NULL)
        return complain("the file does not say which architecture the model has");
    if (!config_fill(c, g.architecture, setting, &g))
        return false;
    /* Converters to GGUF order the rows of llama's q and k so that pairs are neighbours, and add
     * the 1 to Gemma's norms. */
    c->rope_pairs_neighbours = strcmp(g.architecture, "llama") == 0;
    *tokenizer = gguf_tokenizer(file);
    return *tokenizer != NULL;
}
