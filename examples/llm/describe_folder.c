/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration and tokenizer of a Hugging Face folder: config.json, tokenizer.json,
 * tokenizer_config.json, read with cJSON. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "describe.h"

/* NULL: not there, or no JSON; the reason was printed if the file is needed. */
static cJSON *read_json(const char *folder, const char *name, bool is_needed)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    cJSON *json = NULL;
    char *text = NULL;
    long size = 0;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) > 0 && size < 1 << 28 &&
        fseek(f, 0, SEEK_SET) == 0)
        text = malloc((size_t)size);
    if (text != NULL && fread(text, 1, (size_t)size, f) == (size_t)size)
        json = cJSON_ParseWithLength(text, (size_t)size);
    if (json == NULL && is_needed)
        complain("%s: %s", path, f == NULL ? "there is no such file" : "this is no JSON");
    if (f != NULL)
        fclose(f);
    free(text);
    return json;
}

/* ---- configuration --------------------------------------------------------------------------- */

static double setting(const void *source, const char *gguf, const char *json, double otherwise)
{
    (void)gguf;
    const cJSON *config = source;
    const cJSON *v = json == NULL ? NULL : cJSON_GetObjectItemCaseSensitive(config, json);
    if (v == NULL && json != NULL) /* newer files keep rope_theta here */
        v = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(config, "rope_parameters"), json);
    return cJSON_IsNumber(v) ? v->valuedouble : otherwise;
}

/* Llama 3 slows the long waves: each pair's angle is divided by a factor. */
static float *llama3_factors(const cJSON *scaling, const struct config *c)
{
    const double factor = setting(scaling, NULL, "factor", 1);
    const double low = setting(scaling, NULL, "low_freq_factor", 1);
    const double high = setting(scaling, NULL, "high_freq_factor", 4);
    const double old = setting(scaling, NULL, "original_max_position_embeddings", 8192);
    const int32_t half = c->head_dim / 2;
    float *factors = malloc((size_t)half * sizeof *factors);
    for (int32_t j = 0; factors != NULL && j < half; j++) {
        const double wave = 2 * acos(-1.0) * pow((double)c->rope_base, (double)j / half);
        const double smooth = (old / wave - low) / (high - low);
        factors[j] = (float)(wave < old / high  ? 1.0
                             : wave > old / low ? factor
                                                : 1.0 / ((1 - smooth) / factor + smooth));
    }
    return factors;
}

static bool read_scaling(const cJSON *config, struct config *c, float **factors)
{
    const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(scaling, "rope_type");
    if (kind == NULL)
        kind = cJSON_GetObjectItemCaseSensitive(scaling, "type");
    const char *name = cJSON_GetStringValue(kind);
    if (name == NULL || strcmp(name, "default") == 0)
        return true;
    if (strcmp(name, "linear") == 0) {
        c->rope_factor = (float)setting(scaling, NULL, "factor", 1);
        return true;
    }
    if (strcmp(name, "llama3") != 0)
        return complain("rope_scaling of type '%.40s' is not computed here", name);
    *factors = llama3_factors(scaling, c);
    return *factors != NULL;
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static bool put_token(struct tokenizer *t, int32_t id, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    if (id < 0 || id >= t->count)
        return complain("tokenizer.json: the id %d is out of range", id);
    free(t->token[id]);
    t->token[id] = malloc(bytes);
    return t->token[id] != NULL && memcpy(t->token[id], text, bytes) != NULL;
}

static bool read_vocabulary(const cJSON *json, const cJSON *vocabulary, struct tokenizer *t)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, vocabulary)
    {
        if (!cJSON_IsNumber(entry) || !put_token(t, entry->valueint, entry->string))
            return false;
    }
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(json, "added_tokens"))
    {
        const cJSON *id = cJSON_GetObjectItemCaseSensitive(entry, "id");
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "content"));
        if (!cJSON_IsNumber(id) || text == NULL || !put_token(t, id->valueint, text))
            return false;
        t->is_special[id->valueint] =
            cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(entry, "special")) ? 1 : 0;
    }
    for (int32_t i = 0; i < t->count; i++)
        if (t->token[i] == NULL && !put_token(t, i, ""))
            return false;
    return tokenizer_index(t);
}

/* "a b", or ["a", "b"]. With pieces, the score of what a merge makes says when it comes. */
static bool read_merges(const cJSON *merges, struct tokenizer *t)
{
    const cJSON *merge;
    int32_t rank = 0;
    for (int32_t i = 0; t->kind == TOKENIZER_PIECES && i < t->count; i++)
        t->score[i] = -1e30f;
    cJSON_ArrayForEach(merge, merges)
    {
        char pair[2048];
        const char *text = cJSON_GetStringValue(merge);
        const char *a = cJSON_GetStringValue(cJSON_GetArrayItem(merge, 0));
        const char *b = cJSON_GetStringValue(cJSON_GetArrayItem(merge, 1));
        if (text != NULL)
            snprintf(pair, sizeof pair, "%.2047s", text);
        else if (a != NULL && b != NULL)
            snprintf(pair, sizeof pair, "%.1000s %.1000s", a, b);
        else
            return complain("tokenizer.json: merge %d is no pair", rank);
        if (t->kind == TOKENIZER_BPE) {
            if (!tokenizer_add_merge(t, pair, rank))
                return false;
        } else {
            char *blank = strchr(pair, ' ');
            if (blank != NULL)
                memmove(blank, blank + 1, strlen(blank));
            const int32_t id = tokenizer_find(t, pair);
            if (id >= 0 && t->score[id] < -1e29f)
                t->score[id] = -(float)rank;
        }
        rank++;
    }
    return true;
}

/* Is this text anywhere in that part of the JSON? */
static bool mentions(const cJSON *json, const char *part, const char *text)
{
    const cJSON *node = cJSON_GetObjectItemCaseSensitive(json, part);
    char *printed = node == NULL ? NULL : cJSON_PrintUnformatted(node);
    const bool found = printed != NULL && strstr(printed, text) != NULL;
    cJSON_free(printed);
    return found;
}

static enum word_rule rule_of(const cJSON *json)
{
    if (mentions(json, "pre_tokenizer", "\\\\p{N}{1,3}"))
        return WORDS_LLAMA3;
    if (mentions(json, "pre_tokenizer", "\\\\r\\\\n\\\\p{L}\\\\p{N}"))
        return WORDS_QWEN;
    return mentions(json, "pre_tokenizer", "\"individual_digits\":true") ? WORDS_DIGITS
                                                                         : WORDS_GPT2;
}

static int32_t id_of(const cJSON *config, const char *key)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(config, key);
    id = cJSON_IsArray(id) ? cJSON_GetArrayItem(id, 0) : id;
    return cJSON_IsNumber(id) ? id->valueint : -1;
}

static struct tokenizer *make_tokenizer(const cJSON *config, const cJSON *json, const cJSON *more)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    const cJSON *vocabulary = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    const cJSON *merges = cJSON_GetObjectItemCaseSensitive(model, "merges");
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(json, "added_tokens"), *entry;
    if (!cJSON_IsObject(vocabulary) || !cJSON_IsArray(merges))
        return complain("tokenizer.json holds no BPE model"), NULL;
    int32_t count = 0;
    cJSON_ArrayForEach(entry, vocabulary) count =
        entry->valueint >= count ? entry->valueint + 1 : count;
    cJSON_ArrayForEach(entry, added) count =
        id_of(entry, "id") >= count ? id_of(entry, "id") + 1 : count;
    const bool is_bytes =
        mentions(json, "pre_tokenizer", "ByteLevel") || mentions(json, "decoder", "ByteLevel");
    struct tokenizer *t =
        count > 1 << 24 ? NULL
                        : tokenizer_create(is_bytes ? TOKENIZER_BPE : TOKENIZER_PIECES, count);
    if (t == NULL || !read_vocabulary(json, vocabulary, t) || !read_merges(merges, t))
        return complain("the vocabulary cannot be read"), tokenizer_destroy(t), NULL;
    t->words = rule_of(json);
    t->bos = id_of(config, "bos_token_id");
    t->eos = id_of(config, "eos_token_id");
    tokenizer_find_end_of_turn(t);
    const cJSON *adds = cJSON_GetObjectItemCaseSensitive(more, "add_bos_token");
    t->adds_bos = cJSON_IsBool(adds) ? cJSON_IsTrue(adds)
                                     : t->bos >= 0 && t->bos < count &&
                                           mentions(json, "post_processor", t->token[t->bos]);
    t->adds_space = mentions(json, "normalizer", "Prepend");
    return t;
}

bool folder_describe(const char *folder, struct config *c, struct tokenizer **tokenizer,
                     float **rope_factors)
{
    cJSON *whole = read_json(folder, "config.json", true);
    cJSON *json = whole == NULL ? NULL : read_json(folder, "tokenizer.json", true);
    cJSON *more = read_json(folder, "tokenizer_config.json", false);
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(whole, "text_config");
    const cJSON *config = cJSON_IsObject(inner) ? inner : whole;
    const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "model_type"));
    bool is_good = json != NULL;
    if (is_good && kind == NULL)
        is_good = complain("%s/config.json has no model_type", folder);
    is_good =
        is_good && config_fill(c, kind, setting, config) && read_scaling(config, c, rope_factors);
    c->norm_adds_one = c->act_is_gelu;
    *tokenizer = is_good ? make_tokenizer(config, json, more) : NULL;
    cJSON_Delete(whole);
    cJSON_Delete(json);
    cJSON_Delete(more);
    return *tokenizer != NULL;
}
