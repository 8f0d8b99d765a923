/* SPDX-License-Identifier: Apache-2.0 */
/* The file in which constants of the GPU's cost model are kept: `quern tune` writes it, commands
 * with --tuning read it. JSON, one entry for each GPU by its name:
 *
 *     {"format": "quern tuning 1", "gpus": [{"gpu": "NVIDIA H100 80GB HBM3", "version": "...",
 *      "lines": [{"family": "decode", "rows": 8, "int8": false, "bits": 4, "t0_us": 4.2,
 *                 "gb_per_s": 2950, "block_ns": 16}, ...]}, ...]}
 */
#ifndef CLI_TUNING_H
#define CLI_TUNING_H

#include "cli.h"

/* $XDG_CONFIG_HOME/quern/tuning.json, or below ~/.config; NULL where neither is known. The caller
 * frees it. */
char *tuning_path(void);
/* What --tuning says, else the file of tuning_path() where it is, is used by a context on a GPU; a
 * file that was asked for is checked in each case. Nothing happens for commands without the option.
 * 0 or the exit status. */
int tuning_use(const struct args *args, qn_ctx *ctx);

enum { MAX_LINES = 64 };
struct tuning {
    char gpu[64];
    qn_cuda_cost lines[MAX_LINES];
    int n;
};
/* Write or replace the entry of this GPU; folders are made, other entries stay. 0 or the exit
 * status. */
int tuning_save(const char *path, const struct tuning *tuning);
/* Can the file be written, and what is there be kept? Before time is spent on measuring. */
int tuning_check(const char *path);

#endif
