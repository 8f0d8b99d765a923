/* SPDX-License-Identifier: Apache-2.0 */
/* What one claim came to: packed weights, and where each operand of a run is found. */
#ifndef ORT_PROGRAM_H
#define ORT_PROGRAM_H

#include "claim.h"
#include "workers.h"

/* An input of the fused node by its place, or a constant of the model, copied. */
struct operand {
    int32_t input; /* -1: the constant, or none where that has no data. */
    struct tensor constant;
};

struct program {
    const struct ort_api *api;
    struct workers *workers;
    struct claim claim;     /* Numbers of values mean nothing any more. */
    const char *what;       /* Static: the operator's name. */
    qn_packed *w;
    struct operand x, x_scale_operand, x_zero, factors[CLAIM_MAX_FACTORS], sum_bias, bias, residual;
    float x_scale, y_scale; /* Constants that are not in the packed scales; 1 where they are. */
    int32_t y_zero;
    uint8_t table[256];     /* CLAIM_TABLE: the code of y for each byte of x. */
    int32_t *zeros;         /* A bias of n zeros: asks for exact sums where codes of w have zero
                               points. */
    int32_t outputs[3];     /* Places among the fused node's outputs; -1: nobody wants it. */
};

/* graph: the nodes of the claim; inputs, outputs: names of those of the fused node. */
struct program_names {
    const char **inputs, **outputs;
    size_t n_inputs, n_outputs;
};
struct ort_status *program_build(struct workers *workers, const struct graph *graph,
                                 const struct claim *claim, const struct program_names *names,
                                 struct program **program);
void program_free(struct program *program);

struct ort_status *program_run(const struct program *program, struct ort_run *run);

/* The tensor of an operand in this run; without data where there is none. */
struct ort_status *operand_get(const struct program *program, const struct ort_run *run,
                               const struct operand *operand, struct tensor *tensor);
/* DynamicQuantizeLinear. */
struct ort_status *quantize_run(const struct program *program, struct ort_run *run,
                                struct worker *worker);

#endif
