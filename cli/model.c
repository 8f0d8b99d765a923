/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint to try things on: blocks shaped like Llama-3-8B's, f16, written tensor by tensor. */
#include <stdlib.h>
#include <string.h>

#include "demo.h"
#include "term.h"

struct shape {
    const char *name;
    int64_t n, k; /* k 0: one dimension */
};
static const struct shape block[] = {
    {"input_layernorm.weight", 4096, 0},     {"self_attn.q_proj.weight", 4096, 4096},
    {"self_attn.k_proj.weight", 1024, 4096}, {"self_attn.v_proj.weight", 1024, 4096},
    {"self_attn.o_proj.weight", 4096, 4096}, {"post_attention_layernorm.weight", 4096, 0},
    {"mlp.gate_proj.weight", 14336, 4096},   {"mlp.up_proj.weight", 14336, 4096},
    {"mlp.down_proj.weight", 4096, 14336},
};
enum { N_BLOCK = sizeof block / sizeof *block };

static const struct shape *shape_at(int64_t i)
{
    return &block[i % N_BLOCK];
}

static double bytes_of(const struct shape *s)
{
    return 2.0 * (double)s->n * (double)(s->k > 0 ? s->k : 1);
}

static qn_status declare(qn_writer *writer, int64_t count, qn_error *err)
{
    qn_status status = qn_writer_metadata(writer, "format", "pt", err);
    for (int64_t i = 0; i < count && status == QN_OK; i++) {
        const struct shape *s = shape_at(i);
        const int64_t shape[2] = {s->n, s->k};
        int64_t index;
        char *name = must_print("model.layers.%lld.%s", (long long)(i / N_BLOCK), s->name);
        status = qn_writer_add(writer, name, QN_F16, s->k > 0 ? 2 : 1, shape, &index, err);
        free(name);
    }
    return status;
}

/* Row by row: bf16 bits of the generator are f32 numbers, which become f16. */
static qn_status write_tensor(qn_writer *writer, int64_t i, qn_error *err)
{
    const struct shape *s = shape_at(i);
    const int64_t k = s->k > 0 ? s->k : s->n, rows = s->k > 0 ? s->n : 1;
    uint16_t *bits = must_alloc(sizeof *bits * (size_t)k);
    float *row = must_alloc(sizeof *row * (size_t)k);
    uint16_t *half = must_alloc(sizeof *half * (size_t)rows * (size_t)k);
    for (int64_t r = 0; r < rows; r++) {
        random_weight_row((uint64_t)i + 1000, r, k, bits);
        for (int64_t j = 0; j < k; j++)
            row[j] = s->k > 0 ? bf16_value(bits[j]) : 1 + bf16_value(bits[j]);
        floats_to(row, QN_F16, k, half + r * k);
    }
    const int64_t shape[2] = {s->n, s->k};
    const qn_tensor tensor = qn_tensor_make(half, QN_F16, s->k > 0 ? 2 : 1, shape);
    const qn_status status = qn_writer_put(writer, i, &tensor, err);
    free(bits);
    free(row);
    free(half);
    return status;
}

int demo_make_model(qn_ctx *ctx, const char *path, double gigabytes, int is_forced)
{
    double total = 0, done = 0;
    int64_t count = 0;
    while (total < gigabytes * 1e9)
        total += bytes_of(shape_at(count++));
    qn_writer *writer = NULL;
    qn_error err = {0};
    struct progress progress;
    qn_status status = qn_writer_create(ctx, path, &writer, &err);
    if (status == QN_OK)
        status = declare(writer, count, &err);
    if (status == QN_OK)
        status = qn_writer_begin(writer, is_forced, 0, &err);
    progress_begin(&progress, total, 0, 0);
    for (int64_t i = 0; i < count && status == QN_OK && !is_stopped(); i++) {
        progress_what(&progress, shape_at(i)->name);
        status = write_tensor(writer, i, &err);
        progress_set(&progress, done += bytes_of(shape_at(i)));
    }
    progress_end(&progress);
    if (status != QN_OK || is_stopped()) {
        qn_writer_abort(writer, 0);
        return status != QN_OK ? complain_output(path, status, &err)
                               : complain(EXIT_STOPPED, "run it again when ready",
                                          "stopped: %s was not written", path);
    }
    status = qn_writer_finish(writer, &err);
    if (status != QN_OK)
        return complain_output(path, status, &err);
    char a[HUMAN];
    printf("%s: %lld tensors of f16, %s\n", path, (long long)count, human_bytes(total, a));
    return EXIT_GOOD;
}
