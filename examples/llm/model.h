/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder-only transformer (Llama, Mistral, Qwen 2 and 3, Gemma 3) on quern's products.
 *
 *     load_model()   weights.c      a checkpoint's weights, packed once; fused where that is exact
 *     session_...()  transformer.c  tokens in, logits out, with a cache of keys and values
 *     ranks_...()    ranks.c        several processes that have a part of each layer */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include <quern/quern.h>

#include "tokenizer.h"

struct config {
    int32_t n_layers, width, heads, kv_heads, head_dim, ffn, vocabulary, longest;
    float norm_eps, rope_base, rope_base_local, rope_factor; /* factor: positions are divided */
    float attention_scale, embedding_scale;
    int32_t window, window_period; /* every window_period-th layer sees all; 0: each does */
    bool rope_pairs_neighbours;    /* pairs (0, 1), (2, 3); else (0, d/2), (1, d/2 + 1) */
    bool act_is_gelu;              /* Gemma; else SiLU */
    bool norm_adds_one;            /* weights of norms are stored less 1 */
};

/* Outputs that read the same x, as one packed weight where their formats agree, else one by one. */
enum { MAX_PARTS = 3 };
struct projection {
    int32_t n_parts;
    qn_packed *w[MAX_PARTS];
    int32_t column[MAX_PARTS]; /* where the outputs of each begin */
    int32_t n, k;              /* of all together */
    bool is_shared;            /* its parts read the same quantized rows of x */
    qn_plan *plan[MAX_PARTS];
    qn_split split;          /* over ranks: columns gather their outputs, rows add their sums */
    qn_parallel *over_ranks; /* instead of plan where all ranks have all outputs; or NULL */
};

struct layer {
    struct projection qkv, out, gate_up, down;
    float *attention_norm, *ffn_norm;
    float *qkv_bias;                            /* or NULL */
    float *q_norm, *k_norm;                     /* per head, or NULL */
    float *post_attention_norm, *post_ffn_norm; /* or NULL */
};

struct model {
    qn_ctx *ctx;
    const qn_comm *comm;  /* or NULL: one process */
    struct config config; /* heads, kv_heads, ffn: of this rank */
    struct tokenizer *tokenizer;
    struct layer *layers;
    qn_packed *embedding; /* also the head, if that is tied */
    struct projection head;
    float *final_norm, *rope_factors; /* [head_dim / 2] or NULL */
    double weight_bytes;              /* packed, all that a token reads */
};

struct load_options {
    const char *quantize; /* for weights that are not quantized in the file: "int8:g32" */
    const qn_comm *comm;  /* the ranks that share the model, which outlive it; NULL: one process */
    bool is_quiet;
};

/* Prints what is wrong to stderr and returns NULL if the file cannot be run. */
struct model *load_model(qn_ctx *ctx, const char *path, const struct load_options *options);
void free_model(struct model *model);

struct session_options {
    qn_strategy strategy;
    int32_t longest; /* tokens of prompt and answer together */
    int32_t block;   /* tokens of a prompt that go through the layers at once */
};

struct session;
struct session *session_create(struct model *model, const struct session_options *options);
void session_destroy(struct session *s);
/* Append tokens; logits [vocabulary] of the last one, or of each (all: [count, vocabulary]).
 * NULL: the session is full or a product failed, and the reason was printed. */
const float *session_feed(struct session *s, const int32_t *tokens, int32_t count);
bool session_feed_all(struct session *s, const int32_t *tokens, int32_t count, float *logits);
int32_t session_length(const struct session *s);

#endif
