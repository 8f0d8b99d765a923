/* SPDX-License-Identifier: Apache-2.0 */
/* What a tensor of a language model is called in a Hugging Face folder and in a GGUF file, and what
 * else tells the two apart. */
#ifndef CLI_NAMES_H
#define CLI_NAMES_H

#include "cli.h"

/* Facts that both have: of config.json, or of a GGUF file's metadata. */
struct model_facts {
    const char *arch; /* GGUF's: "llama", "qwen2", ...; NULL: not one of those that are mapped */
    const char *class_name, *model_type; /* Hugging Face's */
    int64_t heads, kv_heads;             /* 0: not known */
};

/* config: of config.json (may be NULL). */
void facts_of_config(struct model_facts *facts, const cJSON *config);
void facts_of_gguf(struct model_facts *facts, const qn_file *file);

/* The other name, to be freed; NULL: there is none. arch: NULL is as "llama". */
char *name_to_gguf(const char *name, const char *arch);
char *name_to_hf(const char *name, const char *arch);
/* Heads whose rows GGUF has in another order than Hugging Face (the rotated halves of q and k of
 * architecture llama); 0: the same order. name: Hugging Face's. */
int64_t name_heads(const char *name, const struct model_facts *facts);
/* Row of GGUF's order -> row of Hugging Face's, of n rows. */
int64_t row_of_gguf(int64_t row, int64_t n, int64_t heads);
/* 1: GGUF's norm weights are 1 more (gemma). name: Hugging Face's. */
int name_is_shifted(const char *name, const struct model_facts *facts);

#endif
