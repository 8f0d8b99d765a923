/* SPDX-License-Identifier: Apache-2.0 */
/* The layers. Products are quern's, planned once for the largest block of tokens; what lies between
 * them (norms, rotations, attention, gates) is plain C, dealt out to the context's threads by
 * qn_parallel_for(). Nothing allocates after session_create(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "model.h"

struct session {
    struct model *model;
    qn_strategy strategy;
    int32_t longest, block, length;
    float *keys, *values; /* [layer][kv head], each as attention.h has it */
    float *x, *h, *qkv, *mixed, *gate_up, *gated, *logits;
    float *turns[2];          /* cos, sin pairs of a block: global and local positions */
    void *scratch, *prepared; /* prepared: rows of x that several products read */
    size_t scratch_bytes, prepared_bytes;
};

/* ---- work between products ------------------------------------------------------------------- */

/* What a task of this token block needs to know. */
struct work {
    struct session *s;
    const struct layer *layer;
    int32_t index;    /* of the layer */
    int32_t m, first; /* tokens of the block, and the position of its first */
    bool is_local;
    /* norms */
    const float *in, *weight, *add;
    float *out;
};

static float sum_of_squares(const float *x, int32_t n)
{
    float part[16] = {0};
    for (int32_t i = 0; i + 16 <= n; i += 16)
        for (int32_t j = 0; j < 16; j++)
            part[j] += x[i + j] * x[i + j];
    float sum = 0.0f;
    for (int32_t i = n / 16 * 16; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t j = 0; j < 16; j++)
        sum += part[j];
    return sum;
}

/* out = norm(x) * weight, plus `add`, which may be out; so may x. */
static void normalize(const struct config *c, const float *x, const float *weight, const float *add,
                      int32_t n, float *out)
{
    const float scale = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + c->norm_eps);
    const float one = c->norm_adds_one ? 1.0f : 0.0f;
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] * scale * (weight[i] + one) + (add != NULL ? add[i] : 0.0f);
}

static void norm_task(void *arg, int32_t i)
{
    const struct work *w = arg;
    const struct config *c = &w->s->model->config;
    const size_t at = (size_t)i * (size_t)c->width;
    normalize(c, w->in + at, w->weight, w->add != NULL ? w->add + at : NULL, c->width, w->out + at);
}

/* out = norm(in) * weight, plus `add` where there is one. */
static void norm(struct work *w, const float *in, const float *weight, const float *add, float *out)
{
    w->in = in;
    w->weight = weight;
    w->add = add;
    w->out = out;
    qn_parallel_for(w->s->model->ctx, w->m, norm_task, w);
}

/* ---- positions ------------------------------------------------------------------------------- */

/* [m][head_dim / 2][cos, sin] of the positions of a block. */
static void turns_make(const struct session *s, int32_t m, float base, float factor, float *turns)
{
    const int32_t half = s->model->config.head_dim / 2;
    const float *factors = s->model->rope_factors;
    for (int32_t j = 0; j < half; j++) {
        const double slow = factors != NULL ? (double)factors[j] : 1.0;
        const double a_position = pow((double)base, -(double)j / (double)half);
        for (int32_t i = 0; i < m; i++) {
            const double angle = (double)(s->length + i) / (double)factor / slow * a_position;
            turns[2 * (i * half + j)] = (float)cos(angle);
            turns[2 * (i * half + j) + 1] = (float)sin(angle);
        }
    }
}

static void rotate(const struct config *c, const float *turns, float *head)
{
    const int32_t half = c->head_dim / 2, step = c->rope_pairs_neighbours ? 1 : half;
    for (int32_t j = 0; j < half; j++) {
        float *a = head + (c->rope_pairs_neighbours ? 2 * j : j), *b = a + step;
        const float x = *a, y = *b, cosine = turns[2 * j], sine = turns[2 * j + 1];
        *a = x * cosine - y * sine;
        *b = x * sine + y * cosine;
    }
}

static float *cache_of(const struct session *s, float *cache, int32_t layer, int32_t kv_head)
{
    const struct config *c = &s->model->config;
    return cache + ((size_t)layer * (size_t)c->kv_heads + (size_t)kv_head) *
                       attention_cache_floats(s->longest, c->head_dim);
}

/* One token: heads are normalised and turned, its key and value go to the cache. */
static void position_task(void *arg, int32_t i)
{
    const struct work *w = arg;
    const struct session *s = w->s;
    const struct config *c = &s->model->config;
    const int32_t d = c->head_dim, n_turned = c->heads + c->kv_heads;
    float *row = s->qkv + (size_t)i * (size_t)w->layer->qkv.n;
    const float *turns = s->turns[w->is_local] + (size_t)i * (size_t)d;
    for (int32_t j = 0; w->layer->qkv_bias != NULL && j < w->layer->qkv.n; j++)
        row[j] += w->layer->qkv_bias[j];
    for (int32_t h = 0; h < n_turned; h++) {
        const float *weight = h < c->heads ? w->layer->q_norm : w->layer->k_norm;
        if (weight != NULL)
            normalize(c, row + h * d, weight, NULL, d, row + h * d);
        rotate(c, turns, row + h * d);
    }
    for (int32_t h = 0; h < c->kv_heads; h++)
        attention_put(cache_of(s, s->keys, w->index, h), cache_of(s, s->values, w->index, h),
                      w->first + i, d, row + (c->heads + h) * d, row + (n_turned + h) * d);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Item: one head of keys and ATTENTION_ROWS queries that read it: of a token's heads, then of the
 * next token's. */
static void attention_task(void *arg, int32_t item)
{
    const struct work *w = arg;
    const struct session *s = w->s;
    const struct config *c = &s->model->config;
    const int32_t d = c->head_dim, sharing = c->heads / c->kv_heads;
    const int32_t n_rows = w->m * sharing, items = (n_rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    /* The last tokens read most positions, so that they are begun first. */
    const int32_t kv = item % c->kv_heads,
                  begin = (items - 1 - item / c->kv_heads) * ATTENTION_ROWS;
    struct attention a = {.keys = cache_of(s, s->keys, w->index, kv),
                          .values = cache_of(s, s->values, w->index, kv),
                          .head_dim = d,
                          .scale = c->attention_scale};
    for (int32_t r = 0; r < ATTENTION_ROWS; r++) {
        const int32_t row = begin + r < n_rows ? begin + r : n_rows - 1;
        const int32_t token = row / sharing, head = kv * sharing + row % sharing;
        const int32_t end = w->first + token + 1;
        a.end[r] = end;
        a.begin[r] = w->is_local && end > c->window ? end - c->window : 0;
        a.q[r] = s->qkv + (size_t)token * (size_t)w->layer->qkv.n + head * d;
        a.out[r] = s->mixed + ((size_t)token * (size_t)c->heads + (size_t)head) * (size_t)d;
    }
    attention_rows(&a);
}

static void attention(struct work *w)
{
    const struct config *c = &w->s->model->config;
    const int32_t n_rows = w->m * (c->heads / c->kv_heads);
    qn_parallel_for(w->s->model->ctx, (n_rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS * c->kv_heads,
                    attention_task, w);
}

/* ---- the gated network ----------------------------------------------------------------------- */

/* One weight of gate and up: the product does it all (QN_GATE_HALVES). */
static bool is_gated(const struct projection *p)
{
    return p->n_parts == 1 && p->n % 32 == 0;
}

/* Two weights: what remains. */
static void gate_task(void *arg, int32_t i)
{
    const struct work *w = arg;
    const struct config *c = &w->s->model->config;
    const float *gate = w->s->gate_up + (size_t)i * 2 * (size_t)c->ffn, *up = gate + c->ffn;
    float *out = w->s->gated + (size_t)i * (size_t)c->ffn;
    for (int32_t j = 0; j < c->ffn; j++) {
        const float g = gate[j];
        const float a = c->act_is_gelu
                            ? 0.5f * g * (1.0f + tanhf(0.7978845608f * (g + 0.044715f * g * g * g)))
                            : g / (1.0f + expf(-g));
        out[j] = a * up[j];
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Do all parts order and cut columns alike, so that they can read the same quantized rows? */
static bool have_like_rows(const struct projection *p)
{
    qn_packed_info first, info;
    qn_packed_info_init(&first);
    qn_packed_info_init(&info);
    qn_packed_query(p->w[0], &first);
    for (int32_t i = 0; i < p->n_parts; i++) {
        qn_packed_query(p->w[i], &info);
        if (info.has_perm || info.has_prescale || info.device.kind != QN_CPU ||
            info.format.group != first.format.group || info.x_block != first.x_block)
            return false;
    }
    return true;
}

static qn_prepare_args rows_of(const struct session *s, const struct projection *p, const float *x,
                               int32_t m)
{
    qn_prepare_args rows;
    qn_prepare_args_init(&rows);
    rows.w = p->w[0];
    rows.strategy = s->strategy;
    rows.x = qn_tensor_2d((void *)(uintptr_t)x, QN_F32, m, p->k);
    return rows;
}

/* What all ranks compute together: each has some rows or columns of W, all get all of y. That they
 * agree is not asked (is_trusted), for they run the same program on the same tokens. */
static qn_parallel_args shared_args(const struct session *s, const struct projection *p,
                                    qn_matmul_args *matmul, int32_t m)
{
    const int32_t n = p->split == QN_SPLIT_ROW ? p->n : s->model->config.vocabulary;
    qn_parallel_args args;
    qn_parallel_args_init(&args);
    qn_matmul_args_init(matmul);
    matmul->w = p->w[0];
    matmul->strategy = s->strategy;
    matmul->x = qn_tensor_2d(NULL, QN_F32, m, p->k);
    matmul->y = qn_tensor_2d(NULL, QN_F32, m, n);
    args.comm = s->model->comm;
    args.matmul = matmul;
    args.split = p->split;
    args.gather_y = p->split == QN_SPLIT_COLUMN;
    args.is_trusted = 1;
    return args;
}

static bool project_together(struct session *s, const struct projection *p, const float *x,
                             int32_t m, const float *residual, float *y)
{
    qn_matmul_args matmul;
    qn_error err = {QN_OK, -1, ""};
    const qn_parallel_args args = shared_args(s, p, &matmul, m);
    matmul.x.data = (void *)(uintptr_t)x;
    matmul.y.data = y;
    if (residual != NULL) {
        matmul.epilogue.residual = matmul.y;
        matmul.epilogue.residual.data = (void *)(uintptr_t)residual;
    }
    if (qn_parallel_run(p->over_ranks, &args, s->scratch, s->scratch_bytes, &err) == QN_OK)
        return true;
    fprintf(stderr, "llm: a product of all ranks failed: %s\n", err.text);
    return false;
}

static bool plan_together(struct session *s, struct projection *p, bool has_residual)
{
    qn_matmul_args matmul;
    qn_error err = {QN_OK, -1, ""};
    const qn_parallel_args args = shared_args(s, p, &matmul, s->block);
    if (has_residual)
        matmul.epilogue.residual = matmul.y;
    qn_parallel_destroy(p->over_ranks);
    p->over_ranks = NULL;
    if (qn_parallel_plan(s->model->ctx, &args, &p->over_ranks, &err) != QN_OK) {
        fprintf(stderr, "llm: %s\n", err.text);
        return false;
    }
    const size_t bytes = qn_parallel_scratch_bytes(p->over_ranks);
    s->scratch_bytes = bytes > s->scratch_bytes ? bytes : s->scratch_bytes;
    return true;
}

/* y[m, n] = x[m, k] . W^T, plus `residual`, which may be y. */
static bool project(struct session *s, const struct projection *p, const float *x, int32_t m,
                    const float *residual, float *y)
{
    if (p->over_ranks != NULL)
        return project_together(s, p, x, m, residual, y);
    const qn_prepare_args rows = rows_of(s, p, x, m);
    if (p->is_shared && qn_prepare(s->model->ctx, &rows, s->prepared, s->prepared_bytes) != QN_OK) {
        fprintf(stderr, "llm: the rows of a product cannot be prepared\n");
        return false;
    }
    for (int32_t i = 0; i < p->n_parts; i++) {
        const int32_t next = i + 1 < p->n_parts ? p->column[i + 1] : p->n;
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.w = p->w[i];
        args.strategy = s->strategy;
        args.x = qn_tensor_2d((void *)(uintptr_t)x, QN_F32, m, p->k);
        args.y = qn_tensor_2d(y + p->column[i], QN_F32, m, next - p->column[i]);
        args.y.stride[0] = p->n;
        args.prepared = p->is_shared ? s->prepared : NULL;
        if (residual != NULL) {
            args.epilogue.residual = args.y;
            args.epilogue.residual.data = (void *)(uintptr_t)(residual + p->column[i]);
        }
        const qn_status status = qn_matmul_run(p->plan[i], &args, s->scratch, s->scratch_bytes);
        if (status != QN_OK) {
            fprintf(stderr, "llm: a product failed: %s\n", qn_status_text(status));
            return false;
        }
    }
    return true;
}

static bool plan_projection(struct session *s, struct projection *p, bool has_residual)
{
    const qn_prepare_args rows = rows_of(s, p, NULL, s->block);
    size_t prepared = 0;
    const bool is_dynamic =
        s->strategy == QN_STRATEGY_INT8_ROW || s->strategy == QN_STRATEGY_INT8_BLOCK;
    p->is_shared = is_dynamic && p->n_parts > 1 && have_like_rows(p);
    if (p->is_shared && qn_prepare_bytes(s->model->ctx, &rows, &prepared) != QN_OK)
        return false;
    s->prepared_bytes = prepared > s->prepared_bytes ? prepared : s->prepared_bytes;
    for (int32_t i = 0; i < p->n_parts; i++) {
        const int32_t next = i + 1 < p->n_parts ? p->column[i + 1] : p->n;
        qn_error err = {QN_OK, -1, ""};
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.w = p->w[i];
        args.strategy = s->strategy;
        args.x = qn_tensor_2d(NULL, QN_F32, s->block, p->k);
        args.y = qn_tensor_2d(NULL, QN_F32, s->block, next - p->column[i]);
        args.y.stride[0] = p->n;
        args.prepared = p->is_shared ? p : NULL; /* data are not looked at */
        if (has_residual)
            args.epilogue.residual = args.y;
        qn_plan_destroy(p->plan[i]);
        p->plan[i] = NULL;
        if (qn_matmul_plan(s->model->ctx, &args, &p->plan[i], &err) != QN_OK) {
            fprintf(stderr, "llm: %s\n", err.text);
            return false;
        }
        const size_t bytes = qn_plan_scratch_bytes(p->plan[i]);
        s->scratch_bytes = bytes > s->scratch_bytes ? bytes : s->scratch_bytes;
    }
    return true;
}

/* y[m, n / 2] = act(gate) * up, of one weight. */
static qn_matmul_args gated_args(const struct session *s, const struct projection *p, int32_t m,
                                 qn_epilogue_more *more)
{
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    qn_epilogue_more_init(more);
    more->gate = QN_GATE_HALVES;
    args.more = more;
    args.w = p->w[0];
    args.strategy = s->strategy;
    args.epilogue.act = s->model->config.act_is_gelu ? QN_ACT_GELU_TANH : QN_ACT_SILU;
    args.x = qn_tensor_2d(s->h, QN_F32, m, p->k);
    args.y = qn_tensor_2d(s->gated, QN_F32, m, p->n / 2);
    return args;
}

static bool plan_gated(struct session *s, struct projection *p)
{
    qn_epilogue_more more;
    qn_error err = {QN_OK, -1, ""};
    const qn_matmul_args args = gated_args(s, p, s->block, &more);
    qn_plan_destroy(p->plan[0]);
    p->plan[0] = NULL;
    if (qn_matmul_plan(s->model->ctx, &args, &p->plan[0], &err) != QN_OK) {
        fprintf(stderr, "llm: %s\n", err.text);
        return false;
    }
    const size_t bytes = qn_plan_scratch_bytes(p->plan[0]);
    s->scratch_bytes = bytes > s->scratch_bytes ? bytes : s->scratch_bytes;
    return true;
}

static bool gate_and_up(struct session *s, const struct projection *p, int32_t m, struct work *w)
{
    qn_epilogue_more more;
    const qn_matmul_args args = gated_args(s, p, m, &more);
    if (!is_gated(p)) {
        if (!project(s, p, s->h, m, NULL, s->gate_up))
            return false;
        qn_parallel_for(s->model->ctx, m, gate_task, w);
        return true;
    }
    const qn_status status = qn_matmul_run(p->plan[0], &args, s->scratch, s->scratch_bytes);
    if (status != QN_OK)
        fprintf(stderr, "llm: a gated product failed: %s\n", qn_status_text(status));
    return status == QN_OK;
}

/* ---- a block of tokens ----------------------------------------------------------------------- */

static bool run_layer(struct session *s, int32_t index, int32_t m)
{
    const struct model *model = s->model;
    const struct config *c = &model->config;
    const struct layer *l = &model->layers[index];
    struct work w = {.s = s, .layer = l, .index = index, .m = m, .first = s->length};
    w.is_local = c->window_period > 0 && (index + 1) % c->window_period != 0;
    const bool posts = l->post_attention_norm != NULL;
    norm(&w, s->x, l->attention_norm, NULL, s->h);
    if (!project(s, &l->qkv, s->h, m, NULL, s->qkv))
        return false;
    qn_parallel_for(model->ctx, m, position_task, &w);
    attention(&w);
    if (!project(s, &l->out, s->mixed, m, posts ? NULL : s->x, posts ? s->h : s->x))
        return false;
    if (posts)
        norm(&w, s->h, l->post_attention_norm, s->x, s->x);
    norm(&w, s->x, l->ffn_norm, NULL, s->h);
    if (!gate_and_up(s, &l->gate_up, m, &w))
        return false;
    if (!project(s, &l->down, s->gated, m, posts ? NULL : s->x, posts ? s->h : s->x))
        return false;
    if (posts)
        norm(&w, s->h, l->post_ffn_norm, s->x, s->x);
    return true;
}

static bool run_block(struct session *s, const int32_t *tokens, int32_t m)
{
    const struct model *model = s->model;
    const struct config *c = &model->config;
    const qn_tensor ids = qn_tensor_1d((void *)(uintptr_t)tokens, QN_I32, m);
    const qn_tensor rows = qn_tensor_2d(s->x, QN_F32, m, c->width);
    qn_error err = {QN_OK, -1, ""};
    if (qn_packed_rows(model->ctx, model->embedding, &ids, true, &rows, &err) != QN_OK) {
        fprintf(stderr, "llm: %s\n", err.text);
        return false;
    }
    for (size_t i = 0; c->embedding_scale != 1.0f && i < (size_t)m * (size_t)c->width; i++)
        s->x[i] *= c->embedding_scale;
    turns_make(s, m, c->rope_base, c->rope_factor, s->turns[0]);
    turns_make(s, m, c->rope_base_local, 1.0f, s->turns[1]);
    for (int32_t i = 0; i < c->n_layers; i++)
        if (!run_layer(s, i, m))
            return false;
    s->length += m;
    return true;
}

/* Logits of the last n tokens of a block of m. */
static bool run_head(struct session *s, int32_t m, int32_t n, float *logits)
{
    struct work w = {.s = s, .m = n};
    norm(&w, s->x + (size_t)(m - n) * (size_t)s->model->config.width, s->model->final_norm, NULL,
         s->h);
    return project(s, &s->model->head, s->h, n, NULL, logits);
}

/* logits_of_all: NULL, or [count, vocabulary]. */
static bool feed(struct session *s, const int32_t *tokens, int32_t count, float *logits_of_all)
{
    if (count < 1 || count > s->longest - s->length) {
        fprintf(stderr, "llm: %d tokens after %d exceed the session's %d\n", count, s->length,
                s->longest);
        return false;
    }
    for (int32_t at = 0; at < count;) {
        const int32_t m = count - at < s->block ? count - at : s->block;
        float *logits = logits_of_all == NULL
                            ? s->logits
                            : logits_of_all + (size_t)at * (size_t)s->model->config.vocabulary;
        const bool is_last = at + m == count;
        if (!run_block(s, tokens + at, m))
            return false;
        if ((is_last || logits_of_all != NULL) &&
            !run_head(s, m, logits_of_all == NULL ? 1 : m, logits))
            return false;
        at += m;
    }
    return true;
}

const float *session_feed(struct session *s, const int32_t *tokens, int32_t count)
{
    return feed(s, tokens, count, NULL) ? s->logits : NULL;
}

bool session_feed_all(struct session *s, const int32_t *tokens, int32_t count, float *logits)
{
    return feed(s, tokens, count, logits);
}

int32_t session_length(const struct session *s)
{
    return s->length;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* A product whose outputs all ranks need. */
static bool plan_for_all(struct session *s, struct projection *p, bool has_residual)
{
    return s->model->comm != NULL ? plan_together(s, p, has_residual)
                                  : plan_projection(s, p, has_residual);
}

static bool plan_all(struct session *s)
{
    const struct config *c = &s->model->config;
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer *l = &s->model->layers[i];
        const bool adds = l->post_attention_norm == NULL;
        if (!plan_projection(s, &l->qkv, false) || !plan_for_all(s, &l->out, adds) ||
            !plan_for_all(s, &l->down, adds))
            return false;
        if (is_gated(&l->gate_up) ? !plan_gated(s, &l->gate_up)
                                  : !plan_projection(s, &l->gate_up, false))
            return false;
    }
    return plan_for_all(s, &s->model->head, false);
}

static float *floats(size_t n)
{
    return aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
}

struct session *session_create(struct model *model, const struct session_options *options)
{
    const struct config *c = &model->config;
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->model = model;
    s->strategy = options->strategy;
    s->longest = options->longest;
    s->block = options->block < options->longest ? options->block : options->longest;
    const size_t m = (size_t)s->block, width = (size_t)c->width, d = (size_t)c->head_dim;
    const size_t cache =
        (size_t)c->n_layers * (size_t)c->kv_heads * attention_cache_floats(s->longest, c->head_dim);
    s->keys = floats(cache);
    s->values = floats(cache);
    s->x = floats(m * width);
    s->h = floats(m * width);
    s->qkv = floats(m * d * (size_t)(c->heads + 2 * c->kv_heads));
    s->mixed = floats(m * d * (size_t)c->heads);
    s->gate_up = floats(m * 2 * (size_t)c->ffn);
    s->gated = floats(m * (size_t)c->ffn);
    s->logits = floats((size_t)c->vocabulary);
    s->turns[0] = floats(m * d);
    s->turns[1] = floats(m * d);
    const bool has_all = s->keys && s->values && s->x && s->h && s->qkv && s->mixed && s->gate_up &&
                         s->gated && s->logits && s->turns[0] && s->turns[1];
    if (has_all && plan_all(s)) {
        s->scratch = aligned_alloc(64, (s->scratch_bytes + 64) / 64 * 64);
        s->prepared = aligned_alloc(64, (s->prepared_bytes + 64) / 64 * 64);
    } else if (!has_all) {
        fprintf(stderr, "llm: no memory for a session of %d tokens\n", s->longest);
    }
    if (s->scratch == NULL || s->prepared == NULL)
        return session_destroy(s), NULL;
    return s;
}

void session_destroy(struct session *s)
{
    if (s == NULL)
        return;
    float *const memory[] = {s->keys,  s->values, s->x,        s->h,        s->qkv,    s->mixed,
                             s->gated, s->logits, s->turns[0], s->turns[1], s->gate_up};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    free(s->scratch);
    free(s->prepared);
    free(s);
}
