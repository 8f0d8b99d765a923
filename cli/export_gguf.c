/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of GGUF files: carried from a GGUF source as they are, or made of config.json and
 * tokenizer.json; and the other way round, config.json of a GGUF source's metadata. */
#include <stdlib.h>
#include <string.h>

#include "export.h"

/* -------------------------------------------------------------------------------------- writing */

static qn_status put_text(qn_writer *writer, const char *key, const char *text, qn_error *err)
{
    return qn_writer_value(writer, key, QN_VALUE_TEXT, text, strlen(text), err);
}

static qn_status put_u32(qn_writer *writer, const char *key, double value, qn_error *err)
{
    const uint32_t number = (uint32_t)value;
    return qn_writer_value(writer, key, QN_VALUE_U32, &number, sizeof number, err);
}

static qn_status put_f32(qn_writer *writer, const char *key, double value, qn_error *err)
{
    const float number = (float)value;
    return qn_writer_value(writer, key, QN_VALUE_F32, &number, sizeof number, err);
}

/* An array that grows: u32 type, u64 count, elements. */
struct array {
    char *bytes;
    size_t used, room;
    uint64_t count;
};

static void array_put(struct array *a, const void *from, size_t bytes)
{
    while (a->used + bytes > a->room) {
        a->room = a->room == 0 ? 4096 : 2 * a->room;
        a->bytes = must_grow(a->bytes, a->room);
    }
    if (bytes > 0)
        memcpy(a->bytes + a->used, from, bytes);
    a->used += bytes;
}

static void array_begin(struct array *a, uint32_t type)
{
    const uint64_t none = 0;
    *a = (struct array){0};
    array_put(a, &type, sizeof type);
    array_put(a, &none, sizeof none);
}

static void array_text(struct array *a, const char *text, size_t length)
{
    const uint64_t n = length;
    array_put(a, &n, sizeof n);
    array_put(a, text, length);
    a->count++;
}

static qn_status array_end(struct array *a, qn_writer *writer, const char *key, qn_error *err)
{
    memcpy(a->bytes + 4, &a->count, sizeof a->count);
    const qn_status status = qn_writer_value(writer, key, QN_VALUE_ARRAY, a->bytes, a->used, err);
    free(a->bytes);
    return status;
}

/* ------------------------------------------------------------------------------------ tokenizer */

/* A file of the folder, with a zero byte behind it, or NULL; to be freed. used: NULL, or its
 * bytes. */
static char *read_text(const struct export *e, const char *name, size_t *used)
{
    enum { MOST = 256 << 20 };
    char *path = must_print("%s/%s", e->folder, name);
    FILE *file = fopen(path, "rb");
    free(path);
    if (file == NULL)
        return NULL;
    size_t length = 0, room = 1 << 20, n;
    char *text = must_alloc(room);
    while ((n = fread(text + length, 1, room - 1 - length, file)) > 0 && length < MOST) {
        length += n;
        if (length == room - 1)
            text = must_grow(text, room *= 2);
    }
    fclose(file);
    text[length] = '\0';
    if (used != NULL)
        *used = length;
    return text;
}

static cJSON *read_json(const struct export *e, const char *name)
{
    size_t used = 0;
    char *text = read_text(e, name, &used);
    cJSON *object = text == NULL ? NULL : cJSON_ParseWithLength(text, used);
    free(text);
    return object;
}

static double number_of(const cJSON *config, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    if (cJSON_IsArray(item))
        item = cJSON_GetArrayItem(item, 0);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

struct token {
    const char *text;
    int32_t type; /* 1: normal, 3: control, 4: of the user, 5: unused, 6: a byte */
};

static int is_byte_token(const char *text)
{
    return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>';
}

/* The highest id of any token, and 1. */
static int64_t count_tokens(const cJSON *vocab, const cJSON *added)
{
    const cJSON *t;
    double n = 0;
    cJSON_ArrayForEach(t, vocab) n = t->valuedouble >= n ? t->valuedouble + 1 : n;
    cJSON_ArrayForEach(t, added)
    {
        const cJSON *id = cJSON_GetObjectItemCaseSensitive(t, "id");
        n = cJSON_IsNumber(id) && id->valuedouble >= n ? id->valuedouble + 1 : n;
    }
    return n < 1e9 ? (int64_t)n : (int64_t)1e9;
}

/* Tokens by their ids, added ones included: `rows` of them, which is how many the model embeds
 * (tokens beyond these have no embedding), or all where that is not known, 0. To be freed. */
static struct token *take_tokens(const cJSON *tokenizer, int64_t rows, int64_t *count)
{
    enum { MOST = 1 << 22 };
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(tokenizer, "model");
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(tokenizer, "added_tokens");
    const cJSON *t;
    const int64_t n = rows > 0 ? rows : count_tokens(vocab, added);
    if (!cJSON_IsObject(vocab) || n < 1 || n > MOST)
        return NULL;
    struct token *tokens = must_alloc((size_t)n * sizeof *tokens);
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (struct token){NULL, 5};
    cJSON_ArrayForEach(t, vocab)
    {
        if (t->valuedouble >= 0 && t->valuedouble < (double)n)
            tokens[(int64_t)t->valuedouble] =
                (struct token){t->string, is_byte_token(t->string) ? 6 : 1};
    }
    cJSON_ArrayForEach(t, added)
    {
        const cJSON *id = cJSON_GetObjectItemCaseSensitive(t, "id");
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(t, "content");
        const cJSON *special = cJSON_GetObjectItemCaseSensitive(t, "special");
        if (cJSON_IsNumber(id) && id->valuedouble >= 0 && id->valuedouble < (double)n &&
            cJSON_IsString(content))
            tokens[(int64_t)id->valuedouble] =
                (struct token){content->valuestring, cJSON_IsTrue(special) ? 3 : 4};
    }
    *count = n;
    return tokens;
}

/* Rows of the embedding: what vocab_size says may be more or less. 0: neither is known. */
static int64_t embedded_tokens(const struct export *e)
{
    for (int64_t i = 0; i < e->n_pieces; i++) {
        const struct piece *p = &e->pieces[i];
        if (strcmp(p->target, "token_embd.weight") == 0 && p->n_tensors == 1 &&
            p->tensors[0].rank == 2)
            return p->tensors[0].shape[0];
    }
    const double size = number_of(e->config, "vocab_size", 0);
    return size >= 1 && size < 1e9 ? (int64_t)size : 0;
}

/* llama.cpp cuts text into words by rules with names; which, the tokenizer tells. */
static const char *rule_of(const cJSON *tokenizer)
{
    const cJSON *pre = cJSON_GetObjectItemCaseSensitive(tokenizer, "pre_tokenizer");
    char *text = pre == NULL ? NULL : cJSON_PrintUnformatted(pre);
    const char *rule = "default";
    if (text != NULL && strstr(text, "\\\\p{Lu}") != NULL)
        rule = strstr(text, "\\\\p{N}{1,3}") != NULL ? "gpt-4o" : "tekken";
    else if (text != NULL && strstr(text, "\\\\p{N}{1,3}") != NULL)
        rule = "llama-bpe";
    else if (text != NULL && strstr(text, "|\\\\p{N}|") != NULL)
        rule = "qwen2";
    else if (text != NULL && strstr(text, "\"individual_digits\":true") != NULL)
        rule = "smollm";
    else if (text != NULL && strstr(text, "\"use_regex\":true") != NULL)
        rule = "gpt-2";
    cJSON_free(text);
    return rule;
}

static qn_status put_merges(qn_writer *writer, const cJSON *merges, qn_error *err)
{
    struct array a;
    const cJSON *m;
    array_begin(&a, QN_VALUE_TEXT);
    cJSON_ArrayForEach(m, merges)
    {
        const cJSON *left = cJSON_GetArrayItem(m, 0), *right = cJSON_GetArrayItem(m, 1);
        if (cJSON_IsString(m)) {
            array_text(&a, m->valuestring, strlen(m->valuestring));
        } else if (cJSON_IsString(left) && cJSON_IsString(right)) {
            char *pair = must_print("%s %s", left->valuestring, right->valuestring);
            array_text(&a, pair, strlen(pair));
            free(pair);
        }
    }
    return array_end(&a, writer, "tokenizer.ggml.merges", err);
}

static qn_status put_tokens(qn_writer *writer, const struct token *tokens, int64_t count,
                            int with_scores, qn_error *err)
{
    struct array texts, types, scores;
    array_begin(&texts, QN_VALUE_TEXT);
    array_begin(&types, QN_VALUE_I32);
    array_begin(&scores, QN_VALUE_F32);
    for (int64_t i = 0; i < count; i++) {
        char unused[32];
        const float score = -(float)i;
        snprintf(unused, sizeof unused, "[PAD%lld]", (long long)i);
        const char *text = tokens[i].text != NULL ? tokens[i].text : unused;
        array_text(&texts, text, strlen(text));
        array_put(&types, &tokens[i].type, sizeof tokens[i].type);
        types.count++;
        array_put(&scores, &score, sizeof score);
        scores.count++;
    }
    qn_status status = array_end(&texts, writer, "tokenizer.ggml.tokens", err);
    if (status == QN_OK && with_scores)
        status = array_end(&scores, writer, "tokenizer.ggml.scores", err);
    else
        free(scores.bytes);
    if (status == QN_OK)
        return array_end(&types, writer, "tokenizer.ggml.token_type", err);
    free(types.bytes);
    return status;
}

static qn_status put_flag(qn_writer *writer, const char *key, int is_on, qn_error *err)
{
    const uint8_t flag = is_on != 0;
    return qn_writer_value(writer, key, QN_VALUE_BOOL, &flag, 1, err);
}

/* SentencePiece puts a space before a text unless the model says otherwise (gemma's does); its
 * tokenizer.json has a step for that, of the normalizer or the pre-tokenizer. */
static int adds_space(const cJSON *tokenizer)
{
    static const char *const steps[] = {"normalizer", "pre_tokenizer"};
    int found = 0;
    for (size_t i = 0; i < 2; i++) {
        const cJSON *step = cJSON_GetObjectItemCaseSensitive(tokenizer, steps[i]);
        char *text = step == NULL ? NULL : cJSON_PrintUnformatted(step);
        found = found || (text != NULL && (strstr(text, "\"type\":\"Prepend\"") != NULL ||
                                           strstr(text, "\"prepend_scheme\":\"first\"") != NULL ||
                                           strstr(text, "\"prepend_scheme\":\"always\"") != NULL ||
                                           strstr(text, "\"add_prefix_space\":true") != NULL));
        cJSON_free(text);
    }
    return found;
}

static int64_t token_id(const struct token *tokens, int64_t count, const cJSON *text)
{
    for (int64_t i = 0; cJSON_IsString(text) && i < count; i++)
        if (tokens[i].text != NULL && strcmp(tokens[i].text, text->valuestring) == 0)
            return i;
    return -1;
}

/* What tokenizer_config.json says: with which tokens a text begins and ends, how chats look (which
 * may be a file of its own). */
static qn_status put_habits(const struct export *e, qn_writer *writer, qn_error *err)
{
    static const char *const flags[][2] = {{"add_bos_token", "tokenizer.ggml.add_bos_token"},
                                           {"add_eos_token", "tokenizer.ggml.add_eos_token"}};
    cJSON *config = read_json(e, "tokenizer_config.json");
    const cJSON *chat = cJSON_GetObjectItemCaseSensitive(config, "chat_template");
    char *own = read_text(e, "chat_template.jinja", NULL);
    const char *text = cJSON_IsString(chat) ? chat->valuestring : own;
    qn_status status = QN_OK;
    for (size_t i = 0; i < 2 && status == QN_OK; i++) {
        const cJSON *flag = cJSON_GetObjectItemCaseSensitive(config, flags[i][0]);
        if (cJSON_IsBool(flag))
            status = put_flag(writer, flags[i][1], cJSON_IsTrue(flag), err);
    }
    if (status == QN_OK && text != NULL)
        status = put_text(writer, "tokenizer.chat_template", text, err);
    free(own);
    cJSON_Delete(config);
    return status;
}

static qn_status put_tokenizer(const struct export *e, qn_writer *writer, qn_error *err)
{
    static const char *const ids[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                         {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                         {"pad_token_id", "tokenizer.ggml.padding_token_id"}};
    cJSON *tokenizer = e->folder == NULL ? NULL : read_json(e, "tokenizer.json");
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(tokenizer, "model");
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(model, "byte_fallback");
    const int is_spm = cJSON_IsTrue(bytes);
    int64_t count = 0;
    struct token *tokens = take_tokens(tokenizer, embedded_tokens(e), &count);
    qn_status status = QN_OK;
    if (tokens == NULL) {
        fprintf(stderr, "quern: no tokenizer.json with a vocabulary: the GGUF file has no "
                        "tokenizer, and llama.cpp will not load it\n");
        cJSON_Delete(tokenizer);
        return QN_OK;
    }
    status = put_text(writer, "tokenizer.ggml.model", is_spm ? "llama" : "gpt2", err);
    if (status == QN_OK)
        status =
            put_text(writer, "tokenizer.ggml.pre", is_spm ? "default" : rule_of(tokenizer), err);
    if (status == QN_OK)
        status = put_tokens(writer, tokens, count, is_spm, err);
    if (status == QN_OK && !is_spm)
        status = put_merges(writer, cJSON_GetObjectItemCaseSensitive(model, "merges"), err);
    for (size_t i = 0; i < 3 && status == QN_OK; i++) {
        const double id = number_of(e->config, ids[i][0], -1);
        if (id >= 0)
            status = put_u32(writer, ids[i][1], id, err);
    }
    const int64_t unknown =
        token_id(tokens, count, cJSON_GetObjectItemCaseSensitive(model, "unk_token"));
    if (status == QN_OK && unknown >= 0)
        status = put_u32(writer, "tokenizer.ggml.unknown_token_id", (double)unknown, err);
    if (status == QN_OK && is_spm)
        status =
            put_flag(writer, "tokenizer.ggml.add_space_prefix", adds_space(tokenizer), err);
    free(tokens);
    cJSON_Delete(tokenizer);
    return status == QN_OK ? put_habits(e, writer, err) : status;
}

/* ------------------------------------------------------------------------------- of config.json */

static const struct number {
    const char *hf, *gguf;
    int is_float;
    double otherwise; /* what transformers takes; -1: it must be there, or is left out */
} numbers[] = {
    {"num_hidden_layers", "block_count", 0, -1},
    {"max_position_embeddings", "context_length", 0, -1},
    {"hidden_size", "embedding_length", 0, -1},
    {"intermediate_size", "feed_forward_length", 0, -1},
    {"num_attention_heads", "attention.head_count", 0, -1},
    {"num_key_value_heads", "attention.head_count_kv", 0, -1},
    {"head_dim", "attention.key_length", 0, -1},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", 1, 1e-6},
    {"rope_theta", "rope.freq_base", 1, 10000},
    {"vocab_size", "vocab_size", 0, -1},
    {"sliding_window", "attention.sliding_window", 0, -1},
    {"attn_logit_softcapping", "attn_logit_softcapping", 1, -1},
    {"final_logit_softcapping", "final_logit_softcapping", 1, -1},
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

/* rope_theta may lie among what is said of rotations. */
static double find_number(const cJSON *config, const struct number *n)
{
    return number_of(config, n->hf, number_of(export_rope(config), n->hf, n->otherwise));
}

/* The number that llama.cpp gives the type of a model that has no quantized weight. */
static uint32_t plain_type(const struct export *e)
{
    static const struct {
        qn_dtype dtype;
        uint32_t number;
    } types[] = {{QN_F16, 1}, {QN_BF16, 32}, {QN_F32, 0}};
    double most = 0;
    uint32_t found = 1;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        double bytes = 0;
        for (int64_t i = 0; i < e->n_pieces; i++)
            if (e->pieces[i].n_tensors == 1 && e->pieces[i].tensors[0].rank > 1 &&
                e->pieces[i].tensors[0].dtype == types[t].dtype)
                bytes += e->pieces[i].bytes;
        found = bytes > most ? types[t].number : found;
        most = bytes > most ? bytes : most;
    }
    return found;
}

/* The number that llama.cpp gives the type that most weights have (its enum llama_ftype). */
static uint32_t file_type(const struct export *e)
{
    static const struct {
        const char *type;
        uint32_t number;
    } types[] = {{"Q4_0", 2},    {"Q4_1", 3},    {"Q8_0", 7},   {"Q5_0", 8},  {"Q5_1", 9},
                 {"Q2_K", 10},   {"Q3_K", 12},   {"Q4_K", 15},  {"Q5_K", 17}, {"Q6_K", 18},
                 {"IQ4_NL", 25}, {"IQ4_XS", 30}, {"MXFP4", 38}, {"NVFP4", 39}};
    double most = 0;
    uint32_t found = plain_type(e);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        double bytes = 0;
        for (int64_t i = 0; i < e->n_pieces; i++)
            if (e->pieces[i].how == PIECE_EXPORT && strcmp(e->pieces[i].kind, types[t].type) == 0)
                bytes += e->pieces[i].bytes;
        found = bytes > most ? types[t].number : found;
        most = bytes > most ? bytes : most;
    }
    return found;
}

static qn_status put_config(struct export *e, qn_writer *writer, qn_error *err)
{
    const char *arch = e->facts.arch;
    const double size = number_of(e->config, "hidden_size", 0);
    const double heads = number_of(e->config, "num_attention_heads", 1);
    const double head = number_of(e->config, "head_dim", heads > 0 ? size / heads : 0);
    qn_status status = put_text(writer, "general.architecture", arch, err);
    if (status == QN_OK)
        status = put_text(writer, "general.type", "model", err);
    if (status == QN_OK)
        status = put_u32(writer, "general.file_type", file_type(e), err);
    if (status == QN_OK)
        status = put_u32(writer, "general.quantization_version", 2, err);
    for (int i = 0; i < N_NUMBERS && status == QN_OK; i++) {
        const double value = find_number(e->config, &numbers[i]);
        char *key = must_print("%s.%s", arch, numbers[i].gguf);
        if (value >= 0)
            status = numbers[i].is_float ? put_f32(writer, key, value, err)
                                         : put_u32(writer, key, value, err);
        if (status == QN_OK && value >= 0 && strcmp(numbers[i].hf, "head_dim") == 0) {
            char *other = must_print("%s.attention.value_length", arch);
            status = put_u32(writer, other, value, err);
            free(other);
        }
        free(key);
    }
    char *rope = must_print("%s.rope.dimension_count", arch);
    if (status == QN_OK)
        status = put_u32(writer, rope, head, err);
    free(rope);
    if (status == QN_OK)
        status = export_put_rope(e, writer, err);
    return status == QN_OK ? put_tokenizer(e, writer, err) : status;
}

/* Everything but how the data are aligned and what type they have. */
static qn_status carry(const struct export *e, qn_writer *writer, qn_error *err)
{
    const qn_file *file = e->metadata;
    const char *key, *value;
    qn_status status = QN_OK;
    for (int64_t i = 0; status == QN_OK && qn_file_metadata(file, i, &key, &value) == QN_OK; i++) {
        qn_value_type type;
        const void *bytes;
        size_t count;
        if (strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0)
            continue;
        if (strcmp(key, "general.file_type") == 0) {
            status = put_u32(writer, key, file_type(e), err);
            continue;
        }
        status = qn_file_value(file, key, &type, &bytes, &count);
        if (status == QN_OK)
            status = qn_writer_value(writer, key, type, bytes, count, err);
    }
    return status;
}

int export_metadata(struct export *e, qn_writer *writer)
{
    qn_error err = {0};
    if (!e->from_gguf && e->facts.arch == NULL)
        return complain(EXIT_INPUT, "--config FOLDER says where it is",
                        "%s: no config.json with a model_type that GGUF files are made of: llama, "
                        "mistral, qwen2, qwen3, gemma, gemma2, gemma3_text",
                        e->source);
    const qn_status status = e->from_gguf ? carry(e, writer, &err) : put_config(e, writer, &err);
    return status == QN_OK ? 0 : complain_output(e->out, status, &err);
}

/* ------------------------------------------------------------------------- of a GGUF's metadata */

/* Later gemmas divide scores by the root of a number that GGUF does not have: llama.cpp knows that
 * it is the size of a head, but in those of 27 billion weights, by their layers. */
static void add_query_scale(cJSON *config, const char *arch)
{
    enum { GEMMA2_27B = 46, GEMMA3_27B = 62 };
    const double layers = number_of(config, "num_hidden_layers", 0);
    const double heads = number_of(config, "num_attention_heads", 1);
    const double share = number_of(config, "hidden_size", 0) / (heads > 0 ? heads : 1);
    const int is_2 = strcmp(arch, "gemma2") == 0;
    if (!is_2 && strcmp(arch, "gemma3") != 0)
        return;
    const int is_27b = layers == (is_2 ? GEMMA2_27B : GEMMA3_27B);
    cJSON_AddNumberToObject(config, "query_pre_attn_scalar",
                            is_27b ? share : number_of(config, "head_dim", share));
}

cJSON *export_config_of_gguf(const struct export *e)
{
    const qn_file *file = e->metadata;
    const struct model_facts *f = &e->facts;
    qn_entry entry;
    cJSON *config = cJSON_CreateObject();
    if (f->arch == NULL)
        return config;
    cJSON *list = cJSON_AddArrayToObject(config, "architectures");
    cJSON_AddItemToArray(list, cJSON_CreateString(f->class_name));
    cJSON_AddStringToObject(config, "model_type", f->model_type);
    for (int i = 0; i < N_NUMBERS; i++) {
        char *key = must_print("%s.%s", f->arch, numbers[i].gguf);
        const char *value = qn_file_get_metadata(file, key);
        free(key);
        if (value != NULL && numbers[i].is_float)
            export_put_float(config, numbers[i].hf, strtod(value, NULL));
        else if (value != NULL)
            cJSON_AddNumberToObject(config, numbers[i].hf, strtod(value, NULL));
    }
    add_query_scale(config, f->arch);
    if (qn_checkpoint_tensor(e->model, "token_embd.weight", &entry) == QN_OK &&
        cJSON_GetObjectItemCaseSensitive(config, "vocab_size") == NULL)
        cJSON_AddNumberToObject(config, "vocab_size", (double)entry.tensor.shape[0]);
    cJSON_AddBoolToObject(config, "tie_word_embeddings",
                          qn_checkpoint_tensor(e->model, "output.weight", &entry) != QN_OK);
    cJSON_AddStringToObject(config, "hidden_act",
                            strncmp(f->arch, "gemma", 5) == 0 ? "gelu_pytorch_tanh" : "silu");
    export_rope_of_gguf(e, config);
    cJSON_AddStringToObject(config, "torch_dtype", "float16");
    const char *bos = qn_file_get_metadata(file, "tokenizer.ggml.bos_token_id");
    const char *eos = qn_file_get_metadata(file, "tokenizer.ggml.eos_token_id");
    if (bos != NULL)
        cJSON_AddNumberToObject(config, "bos_token_id", strtod(bos, NULL));
    if (eos != NULL)
        cJSON_AddNumberToObject(config, "eos_token_id", strtod(eos, NULL));
    return config;
}
