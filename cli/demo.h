/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo measures, for its table and its report. */
#ifndef CLI_DEMO_H
#define CLI_DEMO_H

#include "measure.h"
#include "problem.h"

struct demo_row {
    char layer[64], shape[64], weights[48], kernel[96];
    int section; /* 0: language model, 1: convolutions */
    int64_t m, n, k;
    qn_strategy strategy;
    double size;  /* packed bytes over those of f16 */
    double error; /* rms against the product with the unquantized weights, relative */
    double seconds, bytes, ops, bound;
    enum peak peak;
    int is_memory_bound, is_good;
};

struct demo {
    qn_ctx *ctx;
    qn_ctx_info info;
    struct demo_row *rows;
    int n_rows;
    double budget, began, quantize_rate;
    int cut;         /* outputs of matmul layers are divided by this */
    int cold_missed; /* cases whose copies did not exceed the last level cache */
    char *notes;     /* what was scaled, sentences */
};

extern const char *const demo_sections[2];

/* The report as one HTML file, written beside and renamed. 0 or the exit status. */
int demo_report(const struct demo *demo, const char *path);

/* A checkpoint of at least `gigabytes` of f16 weights, shaped like Llama-3-8B's. 0 or the exit
 * status. */
int demo_make_model(qn_ctx *ctx, const char *path, double gigabytes, int is_forced);

#endif
