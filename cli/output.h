/* SPDX-License-Identifier: Apache-2.0 */
/* What quantize and pack share, which make one file out of others, weight by weight: which of them
 * --include and --exclude name, and how the output begins and ends. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "cli.h"

/* --resume, --force, --quiet, --json. The command has --out and --dry-run of its own. */
extern const struct option_row options_output[];

/* ------------------------------------------------------------------------------------- choosing */

enum { MAX_PATTERNS = 64, GROUPS = 2, AXES = 3, N_LISTS = 4 };
struct chosen {
    const struct args *args;
    int used[N_LISTS][MAX_PATTERNS]; /* of --include, --exclude, --conv-groups, --axes: the patterns
                                        that some name has matched */
};
/* 0 or the exit status. */
int chosen_begin(struct chosen *c, const struct args *args);
/* Why the patterns leave a name out, or NULL. */
const char *chosen_refusal(struct chosen *c, const char *name);
/* Has every pattern matched a name? `what` has these names. 0 or the exit status. */
int chosen_check(const struct chosen *c, const char *what);

/* --------------------------------------------------------------------------------------- output */

/* Is there an --out, unless --dry-run is given? 0 or the exit status. */
int output_check(const struct args *args);
/* Could it be written? Asked before the work, when all inputs are open: none of them may be it. 0
 * or the exit status. */
int output_place(const struct args *args);
/* What the result depends on, for --resume (fingerprint.c). */
qn_status fingerprint_add(const struct args *args, qn_writer *writer, qn_error *err);
/* Begin to write what was declared with this status; 0, or the exit status without a writer. */
int output_begin(const struct args *args, qn_writer *writer, int status);
/* The end of writing n items with this status: the file appears under its name, or what is worth
 * resuming is kept. No writer is left. 0 or the exit status. */
int output_end(const struct args *args, qn_writer *writer, int64_t n, int status);

#endif
