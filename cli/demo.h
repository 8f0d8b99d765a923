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
    double plain; /* the same by plain loops over f32 weights; 0: not measured */
    enum peak peak;
    int is_memory_bound, is_good;
    const char *outlier; /* "far from the limit" of this machine, "from the caches"; or NULL */
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
    char machine[192], date[DATE_TEXT];
    double load; /* of the machine when it began; below 0: unknown */
};

extern const char *const demo_sections[2];
/* What to do next: pairs of words and a command; NULL, NULL ends. */
extern const struct example demo_next[];
/* "ffn.down m 1 int4:g128". */
enum { ROW_NAME = 160 };
const char *demo_row_name(const struct demo_row *row, char text[ROW_NAME]);

/* The report as one HTML file, written beside and renamed. 0 or the exit status. */
int demo_report(const struct demo *demo, const char *path);

/* A checkpoint of at least `gigabytes` of f16 weights, shaped like Llama-3-8B's. 0 or the exit
 * status. */
int demo_make_model(qn_ctx *ctx, const char *path, double gigabytes, int is_forced);

#endif
