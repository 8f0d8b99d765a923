/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that could be quantized and had better not be: the rules of `quern quantize` without
 * --all. They look at the module that owns a weight - "model.embed_tokens" of
 * "model.embed_tokens.weight" - word by word, and at shapes. docs/cli.md lists them.
 *
 * An embedding is read by row, not multiplied; a router decides between experts, where a small
 * error changes the whole result; norms and tiny matrices have hardly any bytes. Programs that read
 * folders of GPTQ, AWQ, compressed-tensors and bitsandbytes take a language model's head for plain
 * floats. */
#include <ctype.h>
#include <string.h>

#include "quantize.h"

enum { WORD = 40, TINY = 1024, NARROW = 16 };

/* The last part of the name but "weight" and the like: "gate_proj" of "layers.0.gate_proj.weight".
 * In small letters, in *length. */
static const char *owner_of(const char *name, size_t *length)
{
    static const char *const tails[] = {".weight", "/kernel:0", "/kernel", ".kernel",
                                        "/embeddings:0"};
    *length = strlen(name);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        const size_t tail = strlen(tails[i]);
        if (*length > tail && strcmp(name + *length - tail, tails[i]) == 0) {
            *length -= tail;
            break;
        }
    }
    size_t begin = *length;
    while (begin > 0 && strchr("./", name[begin - 1]) == NULL)
        begin--;
    *length -= begin;
    return name + begin;
}

/* Calls is_it for each word of the owner, "gate", "proj". */
static int any_word(const char *name, int (*is_it)(const char *word))
{
    size_t length, used = 0;
    const char *owner = owner_of(name, &length);
    char word[WORD];
    for (size_t i = 0; i <= length; i++) {
        const int is_letter = i < length && isalpha((unsigned char)owner[i]);
        if (is_letter && used + 1 < sizeof word)
            word[used++] = (char)tolower((unsigned char)owner[i]);
        if (!is_letter && used > 0) {
            word[used] = '\0';
            if (is_it(word))
                return 1;
            used = 0;
        }
    }
    return 0;
}

static int is_one_of(const char *word, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strcmp(word, *words) == 0)
            return 1;
    return 0;
}

static int is_embedding(const char *word)
{
    static const char *const words[] = {"wte", "embd", NULL};
    return strncmp(word, "embed", 5) == 0 || is_one_of(word, words);
}

static int is_position(const char *word)
{
    static const char *const words[] = {"wpe", "position", "positions", "positional", NULL};
    return is_one_of(word, words);
}

static int is_router(const char *word)
{
    static const char *const words[] = {"router", "routers", NULL};
    return is_one_of(word, words);
}

static int is_norm(const char *word)
{
    static const char *const words[] = {"ln", "bn", NULL};
    const size_t length = strlen(word);
    return is_one_of(word, words) || (length >= 4 && strcmp(word + length - 4, "norm") == 0);
}

static int owner_is(const char *name, const char *const *owners)
{
    size_t length;
    const char *owner = owner_of(name, &length);
    for (; *owners != NULL; owners++)
        if (strlen(*owners) == length && strncmp(owner, *owners, length) == 0)
            return 1;
    return 0;
}

/* "gate" is a router where there are fewer outputs than inputs: the gate of a feed-forward layer,
 * which some models call the same, has more. */
static int is_gate(const char *name, int64_t n, int64_t k)
{
    static const char *const gates[] = {
        "gate", "wg", "gate_inp", "ffn_gate_inp", "moe_gate", "shared_expert_gate", NULL};
    return n < k && owner_is(name, gates);
}

const char *skip_reason(const char *name, int64_t n, int64_t k, int is_matrix, int to_folder)
{
    static const char *const heads[] = {"lm_head", NULL};
    static const char *const positions[] = {"pos_emb",   "pos_bias",  "rel_pos",
                                            "rel_pos_h", "rel_pos_w", "relative_attention_bias",
                                            NULL};
    static const char *const shared[] = {"shared", NULL}; /* T5's embedding */
    if (any_word(name, is_position) || owner_is(name, positions))
        return "position table";
    if (any_word(name, is_embedding) || owner_is(name, shared))
        return "embedding";
    if (to_folder && owner_is(name, heads))
        return "head, which readers of that format expect as it is";
    if (any_word(name, is_router) || is_gate(name, n, k))
        return "router";
    if (any_word(name, is_norm))
        return "norm";
    if (n * k < TINY)
        return "tiny, fewer than 1024 weights";
    if (is_matrix && (n < NARROW || k < NARROW))
        return "tiny, fewer than 16 outputs or inputs";
    return NULL;
}
