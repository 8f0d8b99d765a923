/* SPDX-License-Identifier: Apache-2.0 */
/* A peer: a program that computes the same product with another library, so that `quern bench
 * --peers` can time both in turn. peer_main.c speaks with the command; one peer_<library>.c beside
 * it knows the library. Programs of their own, because then neither the command nor the library
 * links or loads anything of a peer, two peers that bring the same thread library do not meet in
 * one process, and a peer in Python is no different from one in C (peers.py).
 *
 * The conversation, a JSON object a line, on standard input and output:
 *
 *     peer     {"peer": "onednn", "version": "2.6.3"}       or {"skip": "why"}, and it ends
 *     command  {"do": "make", "op": "matmul", "m": ..., "x_file": ..., "w_file": ...}
 *     peer     {"ways": ["f32", "bf16"]}                    the ways it knows for this problem
 *     command  {"do": "run", "way": 0, "seconds": 0.1}
 *     peer     {"us": [101.5, 100.9, ...]}                  one number a call
 *     command  {"do": "result", "way": 0, "y_file": ...}
 *     peer     {"ok": true}                                 y is in the file
 *     command  {"do": "drop"}                               the end of the problem
 *     peer     {"ok": true}
 *
 * {"error": "why"} answers what cannot be done. Files hold f32 without a head: x in the order that
 * the problem says, w [n, k], y in the order of x's image (or [m, n]), in the scale of the exact
 * product. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stddef.h>
#include <stdint.h>

struct peer_problem {
    int is_conv, is_nhwc;
    int64_t m, n, k;
    int threads;
    size_t rotate_bytes; /* copies of the weights take turns until they are this much; 0: one */
    char strategy[16], x[8], y[8];
    float x_scale, y_scale; /* of int8 codes */
    int32_t x_zero;
    int64_t batch, ci, h, w, oh, ow, kh, kw, groups;
    int64_t stride[2], pad[4], dilation[2];
    const float *x_values, *w_values;
    size_t x_elements, y_elements;
};

/* One way to compute it. */
struct peer_way {
    const char *name;
    void *state;
    int (*run)(void *state);               /* once, with the next copy of the weights; 0: good */
    void (*result)(void *state, float *y); /* of the last run */
    void (*drop)(void *state);
};
enum { PEER_WAYS = 8 };

extern const char peer_name[];
const char *peer_version(void);
/* Fill ways; how many. Those that the library refuses are left out. */
int peer_make(const struct peer_problem *problem, struct peer_way ways[PEER_WAYS]);

/* Memory, or the end of the program. */
void *peer_alloc(size_t bytes);
/* How many copies of so many bytes the problem asks for. */
int peer_copies(const struct peer_problem *problem, size_t bytes);

#endif
