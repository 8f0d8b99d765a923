/* SPDX-License-Identifier: Apache-2.0 */
/* What a model is, from its file (GGUF) or from the JSON beside its tensors (Hugging Face). */
#ifndef LLM_DESCRIBE_H
#define LLM_DESCRIBE_H

#include "model.h"

/* Print "llm: ..." to stderr; returns false. */
bool complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A number by its GGUF key (behind "ARCHITECTURE.") and its name in config.json; NULL: there is
 * none of that kind. */
typedef double setting_fn(const void *source, const char *gguf, const char *json, double otherwise);
bool config_fill(struct config *c, const char *architecture, setting_fn *setting,
                 const void *source);

bool gguf_describe(const qn_file *file, struct config *c, struct tokenizer **tokenizer);
/* rope_factors: from malloc, or NULL. */
bool folder_describe(const char *folder, struct config *c, struct tokenizer **tokenizer,
                     float **rope_factors);

/* The end of a turn has a token of its own in models that converse. */
void tokenizer_find_end_of_turn(struct tokenizer *t);

#endif
