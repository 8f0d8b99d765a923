/* SPDX-License-Identifier: Apache-2.0 */
/* Models whose weights another program has quantized: what convert and inspect share. */
#ifndef CLI_IMPORTS_H
#define CLI_IMPORTS_H

#include "cli.h"

/* --gptq-zeros */
extern const struct option_row options_imports[];

/* Open what the path names, with the decisions of the options; its files are inputs. */
qn_status imports_try(const struct args *args, qn_ctx *ctx, const char *path, qn_checkpoint **model,
                      qn_error *err);
/* Opens a model like imports_try(), and complains where it cannot. Returns 0 or the exit status. */
int imports_open(const struct args *args, qn_ctx *ctx, const char *path, qn_checkpoint **model);
/* A module that cannot be imported. The exit status. */
int imports_complain(qn_status status, const qn_error *err);
/* Is it a GGUF file, or does any module need an importer? Then inspect shows modules. */
int imports_is_foreign(const qn_checkpoint *model);
/* Does `quern inspect` for such a model; the operands after the first are patterns of names. */
int imports_inspect(const struct args *args, const qn_checkpoint *model);

#endif
