/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of any model: the names of one in the other, their rows in one order, their values. */
#define _GNU_SOURCE
#include "models.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "source.h"

int model_open(struct model *m, const struct args *args, qn_ctx *ctx, const char *path)
{
    *m = (struct model){.c = NULL};
    const int status = imports_open(args, ctx, path, &m->c);
    if (status != 0)
        return status;
    m->is_gguf = qn_file_get_kind(qn_checkpoint_file(m->c, 0)) == QN_FILE_GGUF;
    if (m->is_gguf)
        facts_of_gguf(&m->facts, qn_checkpoint_file(m->c, 0));
    return 0;
}

void model_close(struct model *m)
{
    qn_checkpoint_close(m->c);
    *m = (struct model){.c = NULL};
}

int models_are_foreign(qn_ctx *ctx, const char *a, const char *b)
{
    const char *const paths[2] = {a, b};
    int found = 0;
    for (int i = 0; i < 2; i++) {
        qn_checkpoint *c = NULL;
        if (qn_checkpoint_open(ctx, paths[i], NULL, &c, NULL) == QN_OK)
            found = found || imports_is_foreign(c);
        qn_checkpoint_close(c);
    }
    return found;
}

/* The facts of the GGUF file, if one of the two is such: it has the metadata that names are mapped
 * by. */
static const struct model_facts *facts_of(const struct model *a, const struct model *b)
{
    return a->is_gguf ? &a->facts : &b->facts;
}

/* What was made of a GGUF file may have its names, and its order of rows. */
static int has_same_name(const struct model *m, const char *name)
{
    return qn_checkpoint_find(m->c, name) >= 0;
}

char *model_name(const struct model *from, const struct model *to, const char *name)
{
    const char *arch = facts_of(from, to)->arch;
    if (has_same_name(to, name))
        return must_copy(name);
    char *mapped = from->is_gguf == to->is_gguf ? NULL
                   : from->is_gguf              ? name_to_hf(name, arch)
                                                : name_to_gguf(name, arch);
    return mapped != NULL ? mapped : must_copy(name);
}

void model_type(const struct model *m, int64_t i, char *text, size_t capacity)
{
    qn_module module;
    qn_module_init(&module);
    const qn_status status = qn_checkpoint_module(m->c, i, &module, NULL);
    if (status == QN_OK && module.importer[0] != '\0')
        qn_format_print(&module.format, text, capacity);
    else
        snprintf(text, capacity, "%s", status == QN_OK ? module.dtype : "refused");
}

/* Rows of GGUF's order go where Hugging Face has them, and norms lose their 1. */
static void turn(const struct model *m, const char *name, qn_tensor *rows)
{
    char *hf = name_to_hf(name, m->facts.arch);
    const int64_t n = rows->shape[0], k = rows->shape[1];
    const int64_t heads = hf != NULL ? name_heads(hf, &m->facts) : 0;
    float *from = rows->data;
    if (heads > 0 && n % heads == 0 && n / heads % 2 == 0) {
        float *to = must_alloc(sizeof *to * (size_t)n * (size_t)k);
        for (int64_t row = 0; row < n; row++)
            memcpy(to + row_of_gguf(row, n, heads) * k, from + row * k, sizeof *to * (size_t)k);
        free(from);
        rows->data = to;
    }
    for (int64_t i = 0; hf != NULL && name_is_shifted(hf, &m->facts) && i < n * k; i++)
        from[i] -= 1.0f;
    free(hf);
}

static int weight_values(const struct model *m, qn_ctx *ctx, int64_t i, qn_tensor *rows,
                         int64_t *group)
{
    qn_weight *weight = NULL;
    qn_weight_parts parts;
    qn_error err = {0};
    const qn_status status = qn_checkpoint_load(ctx, m->c, i, 0, -1, &weight, NULL, &err);
    if (status != QN_OK)
        return imports_complain(status, &err);
    qn_weight_parts_init(&parts);
    qn_weight_view(weight, &parts);
    const size_t bytes = sizeof(float) * (size_t)parts.n * (size_t)parts.k;
    *group = parts.format.group > 0 ? parts.format.group : parts.k;
    *rows = qn_tensor_2d(must_alloc(bytes), QN_F32, parts.n, parts.k);
    qn_weight_dequantize(ctx, weight, true, rows);
    qn_weight_destroy(weight);
    return 0;
}

int model_values(const struct model *m, const struct model *to, qn_ctx *ctx, int64_t i,
                 qn_tensor *rows, int64_t *group)
{
    qn_module module;
    qn_entry entry;
    qn_error err = {0};
    int status;
    qn_module_init(&module);
    *group = 0;
    const qn_status found = qn_checkpoint_module(m->c, i, &module, &err);
    if (found != QN_OK)
        return imports_complain(found, &err);
    if (module.importer[0] != '\0') {
        status = weight_values(m, ctx, i, rows, group);
    } else {
        const qn_status there = qn_checkpoint_tensor(m->c, module.name, &entry);
        const qn_dtype d = there == QN_OK ? entry.tensor.dtype : QN_DTYPE_NONE;
        if (d != QN_F32 && d != QN_F16 && d != QN_BF16 && d != QN_F64)
            return -1;
        status = entry_load_rows(module.name, &entry, QN_F32, rows);
    }
    if (status == 0 && m->is_gguf && !to->is_gguf && !has_same_name(to, module.name))
        turn(m, module.name, rows);
    qn_checkpoint_forget(m->c, i);
    return status;
}

/* -------------------------------------------------------------------------------------- picking */

static int find_picked(struct picked_module *p, const char *name)
{
    qn_error err = {0};
    p->at = qn_checkpoint_find(p->c, name);
    if (p->at < 0)
        return complain(EXIT_INPUT, "'quern inspect' lists the names", "%s: no module of that name",
                        name);
    const qn_status status = qn_checkpoint_module(p->c, p->at, &p->facts, &err);
    if (status != QN_OK)
        return imports_complain(status, &err);
    if (p->facts.importer[0] == '\0' && p->facts.format.code != QN_CODE_FLOAT) {
        qn_checkpoint_close(p->c);
        p->c = NULL;
    }
    return 0;
}

int model_pick(const struct args *args, qn_ctx *ctx, const char *text, struct picked_module *p)
{
    char *path = must_copy(text), *name = NULL;
    int status = 0;
    p->c = NULL;
    p->at = -1;
    qn_module_init(&p->facts);
    while (access(path, F_OK) != 0 && (name = strrchr(path, ':')) != NULL)
        *name = '\0';
    const size_t length = strlen(path);
    if (access(path, F_OK) == 0 && text[length] == ':' &&
        qn_checkpoint_open(ctx, path, NULL, &p->c, NULL) == QN_OK) {
        const int is_foreign = imports_is_foreign(p->c);
        qn_checkpoint_close(p->c);
        p->c = NULL;
        status = is_foreign ? imports_open(args, ctx, path, &p->c) : 0;
        if (is_foreign && status == 0)
            status = find_picked(p, text + length + 1);
    }
    free(path);
    return status;
}
