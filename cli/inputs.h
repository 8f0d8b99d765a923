/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the command maps. Another program may cut or rewrite one meanwhile: what was read then
 * is of no use, and a read beyond the new end ends in SIGBUS, in whatever thread it happens. */
#ifndef CLI_INPUTS_H
#define CLI_INPUTS_H

#include "cli.h"

/* qn_file_open(), and remember how large and how old the file was before. */
qn_status input_open(const qn_ctx *ctx, const char *path, qn_file **file, qn_error *err);
/* Remember a file that a call of the library's opens, or has just opened. */
void input_note(const char *path);
/* Have all files stayed what they were? 0, or the exit status after the one that has not was named.
 * What is made of them may appear under its name only after this. */
int inputs_check(void);
/* Name, size, age and a digest of each, among the facts that the writer's file depends on. */
qn_status inputs_fingerprint(qn_writer *writer, qn_error *err);
/* Is this path, by whatever name, one of them? Its name, or NULL. */
const char *input_at(const char *path);
/* From here on SIGBUS names the file that became shorter, and ends the process with EXIT_INPUT. */
void inputs_watch(void);
/* What SIGBUS removes before it does: an output that is begun; NULL: nothing. */
void inputs_remove_on_loss(const char *part);

#endif
