/* SPDX-License-Identifier: Apache-2.0 */
/* A problem - operation, shape, types - and the workload made from it: random weights, packed as
 * often as caches demand, activations, outputs, plan, scratch. Used by bench, explain and demo.
 *
 * Weights are bf16 numbers of a fixed seed, spread as in trained models (normal, rows of different
 * size, a few columns and single weights far out); row i depends on the seed and i alone. */
#ifndef CLI_PROBLEM_H
#define CLI_PROBLEM_H

#include "cli.h"

enum op { OP_MATMUL, OP_GROUPED, OP_CONV2D };

/* A row of bench/shapes.inc; what an operation has no use for is 0. */
struct layer {
    enum op op;
    const char *model, *name;
    int64_t n, k;
    int32_t experts, top_k;
    int32_t ci, side, kernel, stride, groups;
};
/* The i-th layer of the list; NULL past the end. */
const struct layer *layer_at(int i);
struct conv_shape {
    int64_t batch, ci, h, w, oh, ow;
    int32_t kh, kw, groups;
    int32_t stride[2], pad[4], dilation[2], out_pad[2];
    int is_transposed; /* conv_transpose2d */
    qn_image image;
};

struct problem {
    enum op op;
    const char *layer; /* "llama3-8b attn.qkv", or "" */
    int64_t m, n, k;   /* convolution: m = batch oh ow, n = co, k = kh kw ci / groups */
    int32_t experts, top_k;
    struct conv_shape conv;
    qn_format format;
    char weights[48]; /* the format's canonical spelling */
    qn_strategy strategy;
    qn_dtype x, y;
    const char *kernel; /* a row by name, or NULL */
    int strict;
};

const char *op_name(enum op op);
/* The name of the operation, where convolutions are conv2d or conv_transpose2d. */
const char *problem_op_name(const struct problem *p);
/* Images and kernel of a convolution as fields of an object: all but stride, padding, dilation. */
void json_add_images(cJSON *object, const struct conv_shape *c);
/* Sizes of the convolution's output from its input, and m, n, k. 0 or EXIT_USAGE. */
int problem_complete(struct problem *p);
/* A problem of a layer with m rows (of tokens, or images). */
void problem_of_layer(struct problem *p, const struct layer *layer, int64_t m);

/* The lists of one command line: every layer x m x weights x strategy. */
struct problem_list {
    struct problem *items;
    int n;
    char **texts; /* owned */
    int n_texts;
};
/* 0 or the exit status. */
int problems_from_args(const struct args *args, struct problem_list *list);
void problems_free(struct problem_list *list);

/* "3x5" or "3"; "1" or "top,left,bottom,right". 0 or EXIT_USAGE after the error was told. */
int parse_pair(const char *what, const char *text, int64_t lo, int64_t out[2]);
int parse_pads(const char *what, const char *text, int32_t pad[4]);
/* A kernel's name as the library has it, also from the short form that tables show. */
char *kernel_name(const char *text);
/* QN_DTYPE_NONE for a word that is no type. */
qn_dtype dtype_parse(const char *text);

/* -------------------------------------------------------------------------------------- random */

/* One row of k weights as bf16; the same for the same seed and row. */
void random_weight_row(uint64_t seed, int64_t row, int64_t k, uint16_t *out);
/* n activations: normal; every 97th column large, as in language models, where `columns` > 0. */
void random_activations(uint64_t seed, int64_t n, int64_t columns, float *out);
uint64_t random_next(uint64_t *state);
float bf16_value(uint16_t bits);
/* What a weight's code at [n, k] stands for, before its scale. */
double code_value(const qn_weight_parts *w, int64_t at);

/* ------------------------------------------------------------------------------------ workload */

enum { MAX_WEIGHTS = 4 }; /* different experts at most; more experts reuse them in turn */

struct workload {
    struct problem p;
    qn_ctx *ctx;  /* where it runs */
    qn_ctx *host; /* quantizes and checks: the same on the CPU */
    qn_device device;
    uint64_t seed;
    qn_weight *weights[MAX_WEIGHTS];
    int n_weights;
    qn_packed **packed; /* copies * max(1, experts) */
    int copies, next;
    size_t packed_bytes; /* of one copy (all its experts) */
    qn_packed_info facts;
    double make_seconds, quantize_seconds, pack_seconds; /* of the last */
    float *x_exact;                                      /* what x holds, in f32 */
    void *x, *y, *scratch;
    struct {
        void *x, *y, *ids, *x_rows, *scratch;
    } at; /* the same on the device; on the CPU, the same */
    int64_t x_elements, y_elements, y_rows;
    size_t scratch_bytes;
    qn_quant_args quant;
    float y_scale;
    int32_t *ids, *x_rows; /* grouped */
    qn_plan *plan;
    qn_plan_info info;
    double *folded, *spread; /* what the check of all outputs needs of weights[0]; NULL: not yet */
    int8_t *sign;
};

/* Make the weights, pack one copy, make x, y and the plan. 0 or the exit status. */
int workload_make(struct workload *w, qn_ctx *ctx, const struct problem *p);
/* Only what planning needs: no activations. */
int workload_plan(struct workload *w, qn_ctx *ctx, const struct problem *p);
/* The two halves of workload_make(): the first packs the weights, once; the second plans. */
int workload_weights(struct workload *w, qn_ctx *ctx, const struct problem *p);
int workload_choose(struct workload *w);
/* What the library says of it, with weights and whether it can be planned or not: as
 * qn_matmul_explain(). */
size_t workload_explain(const struct workload *w, char *text, size_t capacity);
/* Plans again, with the same weights, for another number of rows (or images) and another strategy.
 */
int workload_again(struct workload *w, int64_t m, qn_strategy strategy);
/* More copies, until all of them are `bytes` together or `seconds` are over. */
int workload_rotate(struct workload *w, size_t bytes, double seconds);
/* Run once with the next copy. A GPU may not be done on return. */
qn_status workload_run(struct workload *w);
/* Wait until y is in w->y. */
qn_status workload_finish(struct workload *w, qn_error *err);
void workload_free(struct workload *w);
/* n numbers of any float type from and to f32. */
void floats_from(const void *from, qn_dtype dtype, int64_t n, float *to);
void floats_to(const float *from, qn_dtype dtype, int64_t n, void *to);
/* Bytes that have to move at least (weights of active experts, x, y), and operations. */
double workload_bytes(const struct workload *w);
double workload_ops(const struct workload *w);

/* --------------------------------------------------------------------------------------- check */

struct verdict {
    int is_good;
    double error; /* rms of y - exact over rms of exact; exact: x times the quantized weights */
    double model_error; /* the same against the weights before quantization */
    double worst;       /* largest deviation from what the strategy defines, over its bound */
    int64_t checked;
    char why[160]; /* when not good */
};
/* Compare y (of the last run) with sums in double: all outputs, or a thousand of them; if thorough,
 * also the residual of all of them against random signs (Freivalds). */
void workload_check(struct workload *w, int is_thorough, struct verdict *verdict);

/* Row `row` of a weight in double, by input column, without prescale; and |scale value| + |offset|
 * of each (may be NULL), what rounding errors grow with. */
void weight_row(const qn_weight_parts *parts, int64_t row, double *out, double *size);

/* -------------------------------------------------------------------------------------- timing */

struct timing {
    double median, p10, p90; /* seconds */
    int runs;
};
/* Times of single runs; of very many the last ones. Begins as zeros. */
struct samples {
    double *at;
    int runs;
};
void samples_add(struct samples *samples, double seconds);
void samples_free(struct samples *samples);
struct timing timing_of(const struct samples *samples);
/* Run for so long, at least `least` times, and note each. */
qn_status workload_sample(struct workload *w, double seconds, int least, struct samples *samples);
/* Run for min_seconds, at least 3 times. */
qn_status workload_time(struct workload *w, double min_seconds, struct timing *timing);

#endif
