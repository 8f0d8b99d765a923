/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of models that any program has written, as compare and run see them: by Hugging Face's
 * names, rows in Hugging Face's order, values in f32. */
#ifndef CLI_MODELS_H
#define CLI_MODELS_H

#include "imports.h"
#include "names.h"

struct model {
    qn_checkpoint *c;
    struct model_facts facts;
    int is_gguf;
};
/* 0 or the exit status; model_close() in any case. */
int model_open(struct model *m, const struct args *args, qn_ctx *ctx, const char *path);
void model_close(struct model *m);
/* Is one of them a model that only the importers read? */
int models_are_foreign(qn_ctx *ctx, const char *a, const char *b);

/* The name in `to` of what is called `name` in `from`; to be freed. */
char *model_name(const struct model *from, const struct model *to, const char *name);
/* The format of a module, or the type of its tensor. */
void model_type(const struct model *m, int64_t i, char *text, size_t capacity);
/* Values of a module as rows of f32, to be freed; group: of a quantized weight, or 0. to: the model
 * that it is compared with, which decides whether rows change their order. 0, -1: it is no tensor
 * of floats, or the exit status. */
int model_values(const struct model *m, const struct model *to, qn_ctx *ctx, int64_t i,
                 qn_tensor *rows, int64_t *group);

/* A weight picked as PATH:NAME out of a model (PATH may be a folder). */
struct picked_module {
    qn_checkpoint *c; /* to be closed; NULL: there is no such model, or it is none of importers' */
    int64_t at;
    qn_module facts;
};
/* 0 or the exit status; to be closed in any case. */
int model_pick(const struct args *args, qn_ctx *ctx, const char *text, struct picked_module *p);

#endif
