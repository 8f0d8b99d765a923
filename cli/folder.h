/* SPDX-License-Identifier: Apache-2.0 */
/* quern inspect of a folder, or of an index of shards. */
#ifndef CLI_FOLDER_H
#define CLI_FOLDER_H

#include "cli.h"

/* The first operand is the folder, more are patterns of names. 0 or the exit status. */
int folder_inspect(const struct args *args, qn_ctx *ctx);

#endif
