/* SPDX-License-Identifier: Apache-2.0 */
/* What `quern quantize` does with each tensor, decided before any byte is written. */
#ifndef CLI_QUANTIZE_H
#define CLI_QUANTIZE_H

#include "axes.h"
#include "source.h"

enum { FORMAT_TEXT = 48 };

struct recipe {
    qn_format format;
    char format_text[FORMAT_TEXT];
    qn_method method;
    qn_range range;
    int act_order, plain_scales;
    double damping, alpha;
    enum { PRESCALE_NONE, PRESCALE_AWQ, PRESCALE_SMOOTH } prescale;
    int is_usual; /* nobody has asked for this format */
};

struct item {
    const struct source_tensor *tensor;
    const char *name; /* of the output: the tensor's, or "NAME.7" of expert 7 */
    int is_quantized;
    int is_skipped;        /* by a rule that --all turns off */
    const char *reason;    /* why it is copied as it is */
    const char *scheme;    /* of what another program has quantized, or NULL */
    struct axes axes;      /* what the dimensions mean, and who says so: */
    const char *axes_from; /* "option", "graph", "bias", "name", "assumed" */
    int64_t expert, n, k;
    int32_t kh, kw, groups;
    qn_format format; /* the recipe's, but for weights of a graph that cannot have it so */
    int64_t index;              /* in the writer */
    double bytes_in, bytes_out; /* as estimated */
};

struct items {
    struct item *at;
    char **names; /* of experts */
    int64_t n, n_names, n_quantized, n_skipped;
    double bytes_in, bytes_out, bytes_to_quantize;
};

/* --format or --bits --group --scheme, --method and what belongs to it. 0 or the exit status. */
int recipe_from_args(const struct args *args, struct recipe *recipe);
/* Choose among the source's tensors by --include, --exclude and --conv-groups. */
int items_choose(const struct args *args, const struct source *source, const struct recipe *recipe,
                 struct items *items);
void items_free(struct items *items);
/* The table of --dry-run. */
void items_print(const struct items *items, const struct recipe *recipe);
cJSON *items_json(const struct items *items);

/* Sentences: what was skipped by which rule, and weights whose axes are the usual ones because
 * nothing tells. */
void items_notes(const struct items *items);

/* Why a weight of this name and shape had better not be quantized, or NULL: "embedding". to_folder:
 * in a format of Hugging Face's folders. */
const char *skip_reason(const char *name, int64_t n, int64_t k, int is_matrix, int to_folder);
/* What another program has quantized and has named this tensor of: "GPTQ"; or NULL. */
const char *foreign_scheme(const struct source *s, const char *name);

/* The parts of a weight that a writer wants to know beforehand. */
void item_parts(const struct item *item, const struct recipe *recipe, qn_weight_parts *parts);

/* --------------------------------------------------------------------------------- calibration */

/* Activations for one weight; all may be absent. */
struct calibration {
    qn_tensor samples; /* [rows, k] f32, in units of the scaled input if there is a prescale */
    float *importance; /* [k] mean of x^2 */
    float *prescale;   /* [k] */
};
/* Are there activations for every weight? 0 or the exit status. */
int calibration_check(const struct source *activations, const struct items *items);
/* Load and compute what the recipe needs; dense is the weight, [n, k]. */
int calibration_make(struct calibration *c, qn_ctx *ctx, const struct source *activations,
                     const struct item *item, const struct recipe *recipe, const qn_tensor *dense);
void calibration_free(struct calibration *c);

#endif
