/* SPDX-License-Identifier: Apache-2.0 */
/* The file in which constants of the cost models are kept: `quern tune` writes it, commands with
 * --tuning read it. JSON, one entry for each GPU and each processor by its name:
 *
 *     {"format": "quern tuning 1", "gpus": [{"gpu": "NVIDIA H100 80GB HBM3", "version": "...",
 *      "lines": [{"family": "decode", "rows": 8, "int8": false, "bits": 4, "t0_us": 4.2,
 *                 "gb_per_s": 2950, "block_ns": 16}, ...]}, ...],
 *      "cpus": [{"cpu": "AMD EPYC 9R14", "version": "...",
 *      "kernels": [{"kernel": "memory", "times": 1.4}, ...]}, ...]}
 */
#ifndef CLI_TUNING_H
#define CLI_TUNING_H

#include "cli.h"

/* $XDG_CONFIG_HOME/quern/tuning.json, or below ~/.config; NULL where neither is known. The caller
 * frees it. */
char *tuning_path(void);
/* A context uses what --tuning says, and on a GPU else the file of tuning_path() where it is. A
 * file that was asked for is checked in each case. Nothing happens for commands without the option.
 * 0 or the exit status. */
int tuning_use(const struct args *args, qn_ctx *ctx);

enum { MAX_LINES = 64 };
struct tuning {
    char gpu[64];
    qn_cuda_cost lines[MAX_LINES];
    int n;
};
enum { MAX_CPU_LINES = 128 };
struct tuning_cpu {
    char cpu[128];
    qn_cpu_cost lines[MAX_CPU_LINES];
    int n;
};
/* The processor's name, or "unknown". */
void tuning_cpu_name(char *out, size_t capacity);
/* Write or replace the entry of this GPU; folders are made, other entries stay. 0 or the exit
 * status. */
int tuning_save(const char *path, const struct tuning *tuning);
int tuning_save_cpu(const char *path, const struct tuning_cpu *tuning);
/* Measures the constants of the context's processor; path NULL: and reports them alone. 0 or the
 * exit status. */
int tune_cpu(const struct args *args, qn_ctx *ctx, const char *path);
/* Can the file be written, and what is there be kept? Before time is spent on measuring. */
int tuning_check(const char *path);

#endif
