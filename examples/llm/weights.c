/* SPDX-License-Identifier: Apache-2.0 */
/* From a checkpoint to a model: configuration, tokenizer, weights. A weight goes from the file to
 * its packed form without anything of its size in between, so that memory holds the model once; q,
 * k, v and gate, up become one product where their formats agree, which rounds nothing. Where ranks
 * share the model each reads its part of a weight alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "describe.h"

/* What this rank has of `whole` outputs or columns. */
struct span {
    int32_t whole, first, n;
};

struct loading {
    struct model *model;
    const qn_checkpoint *checkpoint;
    const qn_file *file; /* the first one, which has a GGUF's metadata */
    const struct load_options *options;
    bool is_gguf;
    int32_t quantized_here;
    struct span kv_heads, ffn;
};

static struct span all_of(int32_t whole)
{
    return (struct span){whole, 0, whole};
}

/* Whole units only; false: there are too few of them for the ranks. */
static bool span_of(const struct loading *l, int32_t whole, int32_t unit, const char *what,
                    struct span *span)
{
    const qn_comm *comm = l->options->comm;
    int64_t first = 0, n = whole;
    if (comm != NULL)
        (void)qn_shard_range(whole, unit, comm->rank, comm->n_ranks, &first, &n);
    *span = (struct span){whole, (int32_t)first, (int32_t)n};
    return comm == NULL || (whole + unit - 1) / unit >= comm->n_ranks ||
           complain("%d ranks: the model has %d %s, in units of %d", comm->n_ranks, whole, what,
                    unit);
}

static struct span times(struct span span, int32_t by)
{
    return (struct span){span.whole * by, span.first * by, span.n * by};
}

/* ---- names ----------------------------------------------------------------------------------- */

/* What a tensor is called in a GGUF file and in a Hugging Face folder; %d: the layer. */
struct names {
    const char *gguf, *hugging_face;
};
static const struct names embedding_names = {"token_embd", "model.embed_tokens"};
static const struct names final_norm_names = {"output_norm", "model.norm"};
static const struct names head_names = {"output", "lm_head"};
static const struct names qkv_names[3] = {{"blk.%d.attn_q", "model.layers.%d.self_attn.q_proj"},
                                          {"blk.%d.attn_k", "model.layers.%d.self_attn.k_proj"},
                                          {"blk.%d.attn_v", "model.layers.%d.self_attn.v_proj"}};
static const struct names out_names = {"blk.%d.attn_output", "model.layers.%d.self_attn.o_proj"};
static const struct names gate_up_names[2] = {{"blk.%d.ffn_gate", "model.layers.%d.mlp.gate_proj"},
                                              {"blk.%d.ffn_up", "model.layers.%d.mlp.up_proj"}};
static const struct names down_names = {"blk.%d.ffn_down", "model.layers.%d.mlp.down_proj"};
static const struct names q_norm_names = {"blk.%d.attn_q_norm", "model.layers.%d.self_attn.q_norm"};
static const struct names k_norm_names = {"blk.%d.attn_k_norm", "model.layers.%d.self_attn.k_norm"};
static const struct names attention_norm_names = {"blk.%d.attn_norm",
                                                  "model.layers.%d.input_layernorm"};
static const struct names ffn_norm_names = {"blk.%d.ffn_norm",
                                            "model.layers.%d.post_attention_layernorm"};
/* Gemma has norms behind attention and network, too, and the name of the second one moves. */
static const struct names gemma_ffn_norm_names = {"blk.%d.ffn_norm",
                                                  "model.layers.%d.pre_feedforward_layernorm"};
static const struct names post_attention_names = {"blk.%d.post_attention_norm",
                                                  "model.layers.%d.post_attention_layernorm"};
static const struct names post_ffn_names = {"blk.%d.post_ffw_norm",
                                            "model.layers.%d.post_feedforward_layernorm"};

enum { NAME = 128 };
static const char *name_of(const struct loading *l, const struct names *names, int32_t layer,
                           const char *part, char name[NAME])
{
    const char *pattern = l->is_gguf ? names->gguf : names->hugging_face;
    const char *number = strstr(pattern, "%d");
    if (number == NULL)
        snprintf(name, NAME, "%s.%s", pattern, part);
    else
        snprintf(name, NAME, "%.*s%d%s.%s", (int)(number - pattern), pattern, layer, number + 2,
                 part);
    return name;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* count floats of a plain tensor; NULL: it is not there (fine if optional), or not of that size. */
static float *load_floats(const struct loading *l, const char *name, int64_t count,
                          bool is_optional, bool *is_good)
{
    qn_entry entry;
    if (qn_checkpoint_tensor(l->checkpoint, name, &entry) != QN_OK) {
        *is_good &= is_optional || complain("there is no tensor '%s'", name);
        return NULL;
    }
    float *values = malloc((size_t)count * sizeof *values);
    const qn_tensor out = qn_tensor_1d(values, QN_F32, count);
    qn_status status = values == NULL ? QN_E_MEMORY : QN_OK;
    if (status == QN_OK && (entry.tensor.rank != 1 || entry.tensor.shape[0] != count))
        status = QN_E_SHAPE;
    if (status == QN_OK)
        status = qn_entry_copy(&entry, &out);
    if (status != QN_OK) {
        free(values);
        *is_good &= complain("%s: %s", name, qn_status_text(status));
        return NULL;
    }
    return values;
}

/* The rectangle of a matrix that is not quantized in the file. */
static bool quantize_here(struct loading *l, const char *name, const qn_rectangle *part,
                          qn_weight **weight)
{
    qn_weight *whole = NULL;
    qn_entry entry;
    qn_error err = {QN_OK, -1, ""};
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    qn_status status = qn_checkpoint_tensor(l->checkpoint, name, &entry);
    if (status != QN_OK || entry.tensor.rank != 2)
        return complain("'%s' is no matrix", name);
    const int64_t n = entry.tensor.shape[0], k = entry.tensor.shape[1];
    float *values = malloc((size_t)n * (size_t)k * sizeof *values);
    const qn_tensor dense = qn_tensor_2d(values, QN_F32, n, k);
    if (values == NULL || qn_entry_copy(&entry, &dense) != QN_OK)
        return free(values), complain("'%s' cannot be read as floats", name);
    status = qn_format_parse(l->options->quantize, &how.format, &err);
    if (status == QN_OK)
        status = qn_quantize(l->model->ctx, &dense, &how, &whole, &err);
    free(values);
    if (status == QN_OK && (part->n < n || part->k < k)) {
        status = qn_weight_slice(l->model->ctx, whole, part->first_n, part->n, part->first_k,
                                 part->k, weight, &err);
        qn_weight_destroy(whole);
    } else {
        *weight = whole;
    }
    l->quantized_here++;
    return status == QN_OK || complain("%s: %s", name, err.text);
}

/* Where a matrix is; n, k: its shape. is_plain: it is not quantized in the file. */
static bool find_matrix(const struct loading *l, const char *name, qn_module_part *part, int64_t *n,
                        int64_t *k, bool *is_plain)
{
    qn_entry entry;
    qn_module module;
    qn_error err = {QN_OK, -1, ""};
    qn_module_init(&module);
    *part = (qn_module_part){qn_checkpoint_find(l->checkpoint, name), 0, -1};
    if (part->module < 0)
        return complain("there is no weight '%s'", name);
    if (qn_checkpoint_module(l->checkpoint, part->module, &module, &err) != QN_OK)
        return complain("%s: %s", name, err.text);
    *is_plain = module.role == QN_ROLE_TENSOR;
    *n = module.n;
    *k = module.k;
    if (*is_plain && (qn_checkpoint_tensor(l->checkpoint, name, &entry) != QN_OK ||
                      entry.tensor.rank != 2))
        return complain("'%s' is no matrix", name);
    if (*is_plain) {
        *n = entry.tensor.shape[0];
        *k = entry.tensor.shape[1];
    }
    return true;
}

static bool keep(struct loading *l, qn_status status, const qn_error *err, const qn_packed *packed)
{
    qn_packed_info info;
    qn_packed_info_init(&info);
    if (status != QN_OK)
        return complain("%s", err->text);
    qn_packed_query(packed, &info);
    l->model->weight_bytes += (double)info.bytes;
    return true;
}

static bool pack(struct loading *l, qn_weight *weight, qn_packed **packed)
{
    qn_error err = {QN_OK, -1, ""};
    const qn_status status = qn_pack(l->model->ctx, weight, NULL, packed, &err);
    qn_weight_destroy(weight);
    return keep(l, status, &err, *packed);
}

/* Quantized matrices of the file, joined along n: from its pages into the order of the kernels. */
static qn_status pack_straight(struct loading *l, int32_t count, const qn_module_part *parts,
                               qn_packed **packed, qn_error *err)
{
    const qn_status status = qn_checkpoint_pack(l->model->ctx, l->checkpoint, count, parts, NULL,
                                                packed, NULL, err);
    for (int32_t i = 0; status == QN_OK && i < count; i++)
        qn_checkpoint_forget(l->checkpoint, parts[i].module);
    return status;
}

/* One matrix, whatever it is in the file: the rows of part, and these columns of them. */
static bool load_matrix(struct loading *l, const char *name, const qn_module_part *part,
                        struct span k, bool is_plain, qn_packed **packed)
{
    qn_error err = {QN_OK, -1, ""};
    qn_weight *weight = NULL;
    const qn_rectangle cut = {part->first, part->n, k.first, k.n};
    if (is_plain)
        return quantize_here(l, name, &cut, &weight) && pack(l, weight, packed);
    if (k.n < k.whole) {
        if (qn_checkpoint_load_part(l->model->ctx, l->checkpoint, part->module, &cut, &weight, NULL,
                                    &err) != QN_OK)
            return complain("%s: %s", name, err.text);
        qn_checkpoint_forget(l->checkpoint, part->module);
        return pack(l, weight, packed);
    }
    const qn_status status = pack_straight(l, 1, part, packed, &err);
    return keep(l, status, &err, *packed);
}

/* Plain matrices, quantized here and joined. */
static bool quantize_joined(struct loading *l, int32_t count, char name[][NAME],
                            const qn_module_part *rows, struct span k, qn_packed **packed)
{
    qn_weight *part[MAX_PARTS] = {NULL}, *joined = NULL;
    bool is_good = true;
    for (int32_t i = 0; is_good && i < count; i++) {
        const qn_rectangle cut = {rows[i].first, rows[i].n, k.first, k.n};
        is_good = quantize_here(l, name[i], &cut, &part[i]);
    }
    is_good = is_good && (qn_weight_concat(l->model->ctx, count, (const qn_weight *const *)part,
                                           &joined, NULL) == QN_OK ||
                          complain("'%s' and those beside it cannot be joined", name[0]));
    for (int32_t i = 0; i < count; i++)
        qn_weight_destroy(part[i]);
    return is_good && pack(l, joined, packed);
}

/* Several weights as one product if that is exact, else side by side. n: outputs of each. */
static bool load_projection(struct loading *l, const struct names *names, int32_t count,
                            int32_t layer, const struct span *n, struct span k,
                            struct projection *p)
{
    char name[MAX_PARTS][NAME];
    qn_module_part part[MAX_PARTS];
    qn_error err = {QN_OK, -1, ""};
    bool is_plain[MAX_PARTS];
    int32_t plain = 0;
    p->k = k.n;
    p->split = k.n < k.whole ? QN_SPLIT_ROW : QN_SPLIT_COLUMN;
    for (int32_t i = 0; i < count; i++) {
        int64_t has_n, has_k;
        if (!find_matrix(l, name_of(l, &names[i], layer, "weight", name[i]), &part[i], &has_n,
                         &has_k, &is_plain[i]))
            return false;
        if (has_n != n[i].whole || has_k != k.whole)
            return complain("%s is [%lld, %lld], not [%d, %d]", name[i], (long long)has_n,
                            (long long)has_k, n[i].whole, k.whole);
        part[i].first = n[i].first;
        part[i].n = n[i].n;
        plain += is_plain[i];
        p->column[i] = p->n;
        p->n += n[i].n;
    }
    p->n_parts = 1;
    if (plain == count)
        return quantize_joined(l, count, name, part, k, &p->w[0]);
    if (plain == 0 && k.n == k.whole && pack_straight(l, count, part, &p->w[0], &err) == QN_OK)
        return keep(l, QN_OK, NULL, p->w[0]);
    for (int32_t i = 0; i < count; i++) {
        if (!load_matrix(l, name[i], &part[i], k, is_plain[i], &p->w[i]))
            return false;
        p->n_parts = i + 1;
    }
    return true;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* The largest group of columns that a weight has in any layer: it is not cut within one. */
static int32_t group_of(const struct loading *l, const struct names *names)
{
    char name[NAME];
    qn_format plain;
    int64_t most = 1;
    if (qn_format_parse(l->options->quantize, &plain, NULL) != QN_OK)
        return 1; /* it is named when a weight is quantized */
    for (int32_t i = 0; i < l->model->config.n_layers; i++) {
        qn_module module;
        qn_module_init(&module);
        const int64_t at = qn_checkpoint_find(l->checkpoint, name_of(l, names, i, "weight", name));
        if (at < 0 || qn_checkpoint_module(l->checkpoint, at, &module, NULL) != QN_OK)
            continue; /* it is missed when it is loaded */
        const int64_t group = module.role == QN_ROLE_TENSOR ? plain.group : module.format.group;
        most = group > most ? group : most;
    }
    return (int32_t)most;
}

/* Which heads and which columns of the network this rank has. */
static bool share_layers(struct loading *l)
{
    const struct config *c = &l->model->config;
    const int32_t columns = c->heads / c->kv_heads * c->head_dim; /* that read a head of keys */
    const int32_t group = group_of(l, &out_names);
    int32_t heads = 1, hidden = group_of(l, &down_names);
    while (heads < c->kv_heads && heads * columns % group != 0)
        heads++;
    hidden = hidden < 16 ? 16 : hidden; /* the product of gate and up takes 32 outputs at once */
    return span_of(l, c->kv_heads, heads, "heads of keys", &l->kv_heads) &&
           span_of(l, c->ffn, hidden, "columns of the network", &l->ffn);
}

static bool load_layer(struct loading *l, int32_t i)
{
    const struct config *c = &l->model->config;
    struct layer *layer = &l->model->layers[i];
    const struct span kv = times(l->kv_heads, c->head_dim);
    const struct span q = times(kv, c->heads / c->kv_heads);
    const struct span qkv[3] = {q, kv, kv}, gate_up[2] = {l->ffn, l->ffn};
    const struct span width = all_of(c->width);
    const bool is_gemma = c->act_is_gelu;
    char name[NAME];
    bool is_good = load_projection(l, qkv_names, 3, i, qkv, width, &layer->qkv) &&
                   load_projection(l, &out_names, 1, i, &width, q, &layer->out) &&
                   load_projection(l, gate_up_names, 2, i, gate_up, width, &layer->gate_up) &&
                   load_projection(l, &down_names, 1, i, &width, l->ffn, &layer->down);
    const struct {
        const struct names *names;
        float **to;
        int32_t n;
        bool is_optional;
    } norms[] = {
        {&attention_norm_names, &layer->attention_norm, c->width, false},
        {is_gemma ? &gemma_ffn_norm_names : &ffn_norm_names, &layer->ffn_norm, c->width, false},
        {&q_norm_names, &layer->q_norm, c->head_dim, true},
        {&k_norm_names, &layer->k_norm, c->head_dim, true},
        {is_gemma ? &post_attention_names : NULL, &layer->post_attention_norm, c->width, false},
        {is_gemma ? &post_ffn_names : NULL, &layer->post_ffn_norm, c->width, false},
    };
    for (size_t j = 0; is_good && j < sizeof norms / sizeof *norms; j++)
        if (norms[j].names != NULL)
            *norms[j].to = load_floats(l, name_of(l, norms[j].names, i, "weight", name), norms[j].n,
                                       norms[j].is_optional, &is_good);
    for (int32_t j = 0, at = 0; is_good && j < 3; at += qkv[j++].n) {
        float *bias = load_floats(l, name_of(l, &qkv_names[j], i, "bias", name), qkv[j].whole, true,
                                  &is_good);
        if (bias != NULL && layer->qkv_bias == NULL)
            layer->qkv_bias = calloc((size_t)layer->qkv.n, sizeof(float));
        if (bias != NULL && layer->qkv_bias != NULL)
            memcpy(layer->qkv_bias + at, bias + qkv[j].first, (size_t)qkv[j].n * sizeof *bias);
        free(bias);
    }
    return is_good;
}

static bool load_all(struct loading *l)
{
    struct model *model = l->model;
    struct config *c = &model->config;
    char name[NAME];
    bool is_good = true;
    model->layers = calloc((size_t)c->n_layers, sizeof *model->layers);
    if (model->layers == NULL)
        return complain("no memory");
    qn_module_part table;
    struct span vocabulary;
    int64_t n = 0, k = 0;
    bool is_plain = false;
    if (!find_matrix(l, name_of(l, &embedding_names, 0, "weight", name), &table, &n, &k, &is_plain))
        return false;
    /* There may be rows of padding behind the vocabulary. */
    if (n < model->tokenizer->count || n > 1 << 24 || k != c->width)
        return complain("the vocabulary has %d tokens of width %d, but %s is [%lld, %lld]",
                        model->tokenizer->count, c->width, name, (long long)n, (long long)k);
    c->vocabulary = (int32_t)n;
    table.n = n;
    if (!load_matrix(l, name, &table, all_of(c->width), is_plain, &model->embedding) ||
        !share_layers(l) || !span_of(l, c->vocabulary, 1, "tokens", &vocabulary))
        return false;
    if (qn_checkpoint_find(l->checkpoint, name_of(l, &head_names, 0, "weight", name)) >= 0) {
        is_good =
            load_projection(l, &head_names, 1, 0, &vocabulary, all_of(c->width), &model->head);
    } else if (model->comm != NULL) { /* the rank's tokens once more, as a weight of their own */
        is_good =
            load_projection(l, &embedding_names, 1, 0, &vocabulary, all_of(c->width), &model->head);
    } else {
        model->head = (struct projection){.n_parts = 1, .n = c->vocabulary, .k = c->width};
        model->head.w[0] = model->embedding;
    }
    if (is_good)
        model->final_norm = load_floats(l, name_of(l, &final_norm_names, 0, "weight", name),
                                        c->width, false, &is_good);
    if (l->is_gguf && is_good)
        model->rope_factors = load_floats(l, "rope_freqs.weight", c->head_dim / 2, true, &is_good);
    for (int32_t i = 0; is_good && i < c->n_layers; i++)
        is_good = load_layer(l, i);
    c->heads = c->heads / c->kv_heads * l->kv_heads.n;
    c->kv_heads = l->kv_heads.n;
    c->ffn = l->ffn.n;
    return is_good;
}

struct model *load_model(qn_ctx *ctx, const char *path, const struct load_options *options)
{
    qn_checkpoint *checkpoint = NULL;
    qn_error err = {QN_OK, -1, ""};
    if (qn_checkpoint_open(ctx, path, NULL, &checkpoint, &err) != QN_OK)
        return complain("%s", err.text), NULL;
    const qn_file *file = qn_checkpoint_file(checkpoint, 0);
    struct loading l = {.checkpoint = checkpoint, .options = options};
    l.is_gguf = qn_file_get_kind(file) == QN_FILE_GGUF;
    l.model = calloc(1, sizeof *l.model);
    bool is_good = l.model != NULL;
    if (is_good) {
        struct model *m = l.model;
        m->ctx = ctx;
        m->comm = options->comm != NULL && options->comm->n_ranks > 1 ? options->comm : NULL;
        is_good =
            (l.is_gguf ? gguf_describe(file, &m->config, &m->tokenizer)
                       : folder_describe(path, &m->config, &m->tokenizer, &m->rope_factors)) &&
            load_all(&l);
    }
    if (is_good && !options->is_quiet)
        fprintf(stderr, "%s: %d layers of width %d, %.1f MB packed\n", path,
                l.model->config.n_layers, l.model->config.width, l.model->weight_bytes / 1e6);
    if (is_good && l.quantized_here > 0 && !options->is_quiet)
        fprintf(stderr, "%d weights that were not quantized became %s\n", l.quantized_here,
                options->quantize);
    qn_checkpoint_close(checkpoint);
    if (!is_good) {
        free_model(l.model);
        return NULL;
    }
    return l.model;
}

static void free_projection(struct projection *p, const qn_packed *shared)
{
    qn_parallel_destroy(p->over_ranks);
    for (int32_t i = 0; i < MAX_PARTS; i++) {
        qn_plan_destroy(p->plan[i]);
        if (p->w[i] != shared)
            qn_packed_destroy(p->w[i]);
    }
}

void free_model(struct model *model)
{
    if (model == NULL)
        return;
    for (int32_t i = 0; model->layers != NULL && i < model->config.n_layers; i++) {
        struct layer *l = &model->layers[i];
        struct projection *const products[] = {&l->qkv, &l->out, &l->gate_up, &l->down};
        float *const floats[] = {l->attention_norm, l->ffn_norm, l->qkv_bias,
                                 l->q_norm,         l->k_norm,   l->post_attention_norm,
                                 l->post_ffn_norm};
        for (size_t j = 0; j < sizeof products / sizeof *products; j++)
            free_projection(products[j], NULL);
        for (size_t j = 0; j < sizeof floats / sizeof *floats; j++)
            free(floats[j]);
    }
    free_projection(&model->head, model->embedding);
    qn_packed_destroy(model->embedding);
    tokenizer_destroy(model->tokenizer);
    free(model->layers);
    free(model->final_norm);
    free(model->rope_factors);
    free(model);
}
