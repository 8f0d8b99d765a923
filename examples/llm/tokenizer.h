/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back, with the vocabulary of a model's file: byte-level BPE (Llama 3, Qwen,
 * SmolLM) and SentencePiece's pieces (Llama 2, Mistral, Gemma). */
#ifndef LLM_TOKENIZER_H
#define LLM_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_PIECES };

/* How text is cut into words before pairs are merged (BPE). */
enum word_rule {
    WORDS_GPT2,   /* numbers of any length, one blank before a word */
    WORDS_DIGITS, /* as GPT-2, every digit alone: SmolLM */
    WORDS_QWEN,   /* any one character before a word, every digit alone */
    WORDS_LLAMA3  /* the same, up to three digits */
};

struct tokenizer {
    enum tokenizer_kind kind;
    enum word_rule words;
    int32_t count;
    char **token;        /* [count] as the file spells them, owned */
    float *score;        /* [count], pieces */
    uint8_t *is_special; /* [count]: never made from ordinary text */
    int32_t *special;    /* [n_special] which these are */
    int32_t n_special;
    struct table *ids;             /* token -> id */
    struct table *ranks;           /* "left right" -> rank of the merge */
    int32_t bos, eos, end_of_turn; /* -1: none */
    bool adds_bos, adds_space;
};

/* Take over `count` tokens (each from malloc) and fill the rest with defaults. NULL: no memory. */
struct tokenizer *tokenizer_create(enum tokenizer_kind kind, int32_t count);
/* Call after token[] and is_special[] are filled. False: no memory, or a token is missing. */
bool tokenizer_index(struct tokenizer *t);
/* The i-th merge, "left right". */
bool tokenizer_add_merge(struct tokenizer *t, const char *pair, int32_t rank);
void tokenizer_destroy(struct tokenizer *t);

/* The id of a token by its spelling, or -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *token);
/* Tokens of text, from malloc; with_special: names of special tokens in the text are these tokens.
 * NULL: no memory. */
int32_t *tokenizer_encode(const struct tokenizer *t, const char *text, bool with_bos,
                          bool with_special, int32_t *count);
/* The bytes of a token; returns how many, at most capacity. */
size_t tokenizer_decode(const struct tokenizer *t, int32_t id, char *bytes, size_t capacity);

#endif
