/* SPDX-License-Identifier: Apache-2.0 */
/* Open checkpoints: the tables of tensors and modules, what the public calls answer from them, and
 * what importers may ask. Which tensors make a module is in import/; how paths become files in
 * gather.c. */
#include "checkpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "paths.h"

static const struct qni_importer *const importers[] = {
#define QNI_IMPORTER(name) &qni_import_##name,
#include "import/importers.inc"
#undef QNI_IMPORTER
};
enum { N_IMPORTERS = sizeof importers / sizeof *importers };

/* ---- tensors --------------------------------------------------------------------------------- */

static const struct qni_entry *entry_of(const qn_checkpoint *c, struct qni_ref ref)
{
    return &c->files[ref.file]->entries[ref.entry];
}

static void show_tensor(const qn_checkpoint *c, struct qni_ref ref, struct qni_tensor *t)
{
    const struct qni_entry *e = entry_of(c, ref);
    memset(t, 0, sizeof *t);
    t->name = e->name;
    t->spelling = e->spelling;
    t->dtype = e->is_fortran ? QN_DTYPE_NONE : e->dtype;
    t->rank = e->rank;
    memcpy(t->shape, e->shape, sizeof t->shape);
    t->data = qni_entry_data(c->files[ref.file], e);
    t->bytes = e->bytes;
}

/* Where the name is in by_name, or where it would be. */
static size_t lower_bound(const qn_checkpoint *c, const char *name)
{
    size_t low = 0, high = c->n_refs;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(entry_of(c, c->refs[c->by_name[middle]])->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t find_ref(const qn_checkpoint *c, const char *name)
{
    const size_t at = lower_bound(c, name);
    const bool found =
        at < c->n_refs && strcmp(entry_of(c, c->refs[c->by_name[at]])->name, name) == 0;
    return found ? (int64_t)c->by_name[at] : -1;
}

static int64_t find_part(const qn_checkpoint *c, const char *stem, const char *ending)
{
    char name[QNI_STEM + 64];
    const size_t a = strlen(stem), b = strlen(ending);
    if (a + b >= sizeof name)
        return -1;
    memcpy(name, stem, a);
    memcpy(name + a, ending, b + 1);
    return find_ref(c, name);
}

bool qni_checkpoint_part(const qn_checkpoint *c, const char *stem, const char *ending,
                         struct qni_tensor *tensor)
{
    const int64_t ref = find_part(c, stem, ending);
    memset(tensor, 0, sizeof *tensor);
    if (ref >= 0)
        show_tensor(c, c->refs[ref], tensor);
    return ref >= 0;
}

/* ---- configuration --------------------------------------------------------------------------- */

int32_t qni_checkpoint_setting(const qn_checkpoint *c, const char *key)
{
    return qni_setting_at(&c->config, c->quantization, key);
}

const struct qni_settings *qni_checkpoint_settings(const qn_checkpoint *c)
{
    return &c->config;
}

const char *qni_checkpoint_origin(const qn_checkpoint *c)
{
    return c->origin;
}

const char *qni_checkpoint_method(const qn_checkpoint *c)
{
    return c->method;
}

const qn_checkpoint_options *qni_checkpoint_get_options(const qn_checkpoint *c)
{
    return &c->options;
}

const struct qni_allocator *qni_checkpoint_allocator(const qn_checkpoint *c)
{
    return &c->allocator;
}

const qn_file *qni_checkpoint_file_of(const qn_checkpoint *c, const char *tensor)
{
    const int64_t ref = find_ref(c, tensor);
    return ref < 0 ? NULL : c->files[c->refs[ref].file];
}

struct tensor_place {
    const char *file, *outer, *key, *origin, *method;
};

qn_status qni_checkpoint_configure(qn_checkpoint *c, const char *name, const char *text,
                                   size_t size, qn_error *err)
{
    static const char *const wanted[] = {"quantization_config", "compression_config", "text_config",
                                         NULL};
    static const struct tensor_place places[] = {
        {"config.json", NULL, "quantization_config", "config.json, quantization_config", ""},
        {"config.json", NULL, "compression_config", "config.json, compression_config", ""},
        {"config.json", "text_config", "quantization_config",
         "config.json, text_config.quantization_config", ""},
        {"quantize_config.json", NULL, NULL, "quantize_config.json", "gptq"},
        {"quant_config.json", NULL, NULL, "quant_config.json", "awq"},
        {"hf_quant_config.json", NULL, "quantization", "hf_quant_config.json, quantization",
         "modelopt"},
    };
    const bool is_model = strcmp(name, "config.json") == 0;
    struct qni_settings *s = &c->config;
    qni_settings_free(s);
    QNI_TRY(qni_settings_read(text, size, is_model ? wanted : NULL, s, err));
    for (size_t i = 0; i < sizeof places / sizeof *places && c->quantization < 0; i++) {
        const struct tensor_place *p = &places[i];
        if (strcmp(p->file, name) != 0)
            continue;
        const int32_t outer = p->outer == NULL ? 0 : qni_setting_at(s, 0, p->outer);
        const int32_t node = p->key == NULL ? 0 : qni_setting_at(s, outer, p->key);
        if (node < 0 || s->list[node].kind != '{')
            continue;
        const char *method = qni_setting_text(s, qni_setting_at(s, node, "quant_method"));
        c->quantization = node;
        c->origin = p->origin;
        c->method = method != NULL ? method : p->method;
    }
    return QN_OK;
}

/* ---- the tables ------------------------------------------------------------------------------ */

qn_status qni_checkpoint_add(qn_checkpoint *c, qn_file *file, qn_error *err)
{
    void *files = c->files;
    const bool grown =
        qni_grow(&c->allocator, &files, &c->file_capacity, c->n_files, sizeof(qn_file *));
    c->files = files;
    if (!grown) {
        qn_file_close(file);
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    }
    c->files[c->n_files++] = file;
    return QN_OK;
}

static bool ref_before(const void *arg, uint32_t a, uint32_t b)
{
    const qn_checkpoint *c = arg;
    const int order = strcmp(entry_of(c, c->refs[a])->name, entry_of(c, c->refs[b])->name);
    return order < 0 || (order == 0 && a < b);
}

static bool module_before(const void *arg, uint32_t a, uint32_t b)
{
    const qn_checkpoint *c = arg;
    const int order = strcmp(c->modules[a].name, c->modules[b].name);
    return order < 0 || (order == 0 && a < b);
}

static uint32_t *sorted(const qn_checkpoint *c, size_t count, qni_before_fn before)
{
    uint32_t *list = qni_alloc(&c->allocator, count * sizeof *list);
    if (list == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        list[i] = (uint32_t)i;
    qni_sort(list, count, before, c);
    return list;
}

static qn_status index_tensors(qn_checkpoint *c, qn_error *err)
{
    char shown[QNI_SHOWN];
    size_t total = 0;
    for (size_t f = 0; f < c->n_files; f++)
        total += c->files[f]->n_entries;
    if (total > UINT32_MAX)
        return qni_fail(err, QN_E_CORRUPT, "more than 2^32 tensors");
    c->refs = qni_alloc(&c->allocator, total * sizeof *c->refs);
    if (c->refs == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < c->files[f]->n_entries; i++)
            c->refs[c->n_refs++] = (struct qni_ref){(uint32_t)f, c->files[f]->by_offset[i]};
    c->by_name = sorted(c, c->n_refs, ref_before);
    if (c->by_name == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t i = 1; i < c->n_refs; i++) {
        const char *name = entry_of(c, c->refs[c->by_name[i]])->name;
        if (strcmp(name, entry_of(c, c->refs[c->by_name[i - 1]])->name) == 0)
            return qni_fail(err, QN_E_CORRUPT, "two files hold a tensor '%s'",
                            qni_shown(shown, name));
    }
    return QN_OK;
}

/* The importer whose module this tensor heads, and the stem of its name. -1: none. */
static int32_t head_of(const qn_checkpoint *c, const struct qni_tensor *t, char stem[QNI_STEM])
{
    const size_t length = strlen(t->name);
    for (int32_t i = 0; i < N_IMPORTERS; i++) {
        const char *ending = importers[i]->parts[0];
        if (ending == NULL)
            continue; /* asks graphs */
        const size_t tail = strlen(ending);
        if (length - tail >= QNI_STEM || !qni_text_ends(t->name, ending))
            continue;
        memcpy(stem, t->name, length - tail);
        stem[length - tail] = 0;
        if (importers[i]->heads == NULL || importers[i]->heads(c, t, stem))
            return i;
    }
    return -1;
}

static int32_t importer_named(const char *name)
{
    int32_t i = 0;
    while (strcmp(importers[i]->name, name) != 0)
        i++;
    return i;
}

/* What each graph says of tensors. Without the file that one lies in, its link says nothing. */
static qn_status index_links(qn_checkpoint *c, qn_error *err)
{
    size_t total = 0;
    for (size_t f = 0; f < c->n_files; f++)
        total += c->files[f]->n_links;
    if (total == 0)
        return QN_OK;
    c->links = qni_alloc_zero(&c->allocator, c->n_refs * sizeof *c->links);
    if (c->links == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < c->files[f]->n_links; i++) {
            const struct qni_link *link = &c->files[f]->links[i];
            const int64_t ref = find_ref(c, link->part[0]);
            if (ref >= 0 && c->links[ref] == NULL)
                c->links[ref] = link;
        }
    return QN_OK;
}

static qn_status add_module(qn_checkpoint *c, uint32_t head, int32_t importer, const char *stem,
                            const char *named, qn_error *err)
{
    void *modules = c->modules;
    const bool grown =
        qni_grow(&c->allocator, &modules, &c->module_capacity, c->n_modules, sizeof *c->modules);
    c->modules = modules;
    const size_t a = strlen(stem), b = strlen(named), bytes = a + b + 1;
    char *name = grown ? qni_alloc(&c->allocator, bytes) : NULL;
    if (name == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    memcpy(name, stem, a);
    memcpy(name + a, named, b + 1);
    const struct qni_link *link = c->links == NULL ? NULL : c->links[head];
    c->modules[c->n_modules++] = (struct qni_module){name, bytes, head, importer, link};
    return QN_OK;
}

/* Mark the parts of the modules, then list heads and whatever nobody claimed. */
static qn_status index_modules(qn_checkpoint *c, uint8_t *claimed, qn_error *err)
{
    enum { FREE = 0, PART = 1, HEAD = 2 };
    char stem[QNI_STEM];
    struct qni_tensor t;
    for (size_t i = 0; i < c->n_refs; i++) {
        const struct qni_link *link = c->links == NULL ? NULL : c->links[i];
        if (link != NULL && link->importer != NULL) {
            claimed[i] = (uint8_t)(HEAD + importer_named(link->importer));
            for (int32_t p = 1; p < QNI_LINK_PARTS; p++) {
                const int64_t part = link->part[p] == NULL ? -1 : find_ref(c, link->part[p]);
                if (part >= 0 && claimed[part] == FREE)
                    claimed[part] = PART;
            }
            continue;
        }
        show_tensor(c, c->refs[i], &t);
        const int32_t importer = head_of(c, &t, stem);
        if (importer < 0)
            continue;
        claimed[i] = (uint8_t)(HEAD + importer);
        for (int32_t p = 1; importers[importer]->parts[p] != NULL; p++) {
            const int64_t part = find_part(c, stem, importers[importer]->parts[p]);
            if (part >= 0 && claimed[part] == FREE)
                claimed[part] = PART;
        }
    }
    for (size_t i = 0; i < c->n_refs; i++) {
        if (claimed[i] == PART)
            continue;
        show_tensor(c, c->refs[i], &t);
        if (claimed[i] == FREE) {
            QNI_TRY(add_module(c, (uint32_t)i, -1, t.name, "", err));
            continue;
        }
        if (c->links != NULL && c->links[i] != NULL && c->links[i]->importer != NULL) {
            QNI_TRY(add_module(c, (uint32_t)i, claimed[i] - HEAD, c->links[i]->name, "", err));
            continue;
        }
        const int32_t importer = head_of(c, &t, stem);
        QNI_TRY(add_module(c, (uint32_t)i, importer, stem, importers[importer]->named, err));
    }
    return QN_OK;
}

qn_status qni_checkpoint_index(qn_checkpoint *c, qn_error *err)
{
    char shown[QNI_SHOWN];
    QNI_TRY(index_tensors(c, err));
    QNI_TRY(index_links(c, err));
    uint8_t *claimed = qni_alloc_zero(&c->allocator, c->n_refs);
    if (claimed == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    const qn_status status = index_modules(c, claimed, err);
    qni_free(&c->allocator, claimed, c->n_refs);
    QNI_TRY(status);
    c->modules_by_name = sorted(c, c->n_modules, module_before);
    if (c->modules_by_name == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t i = 1; i < c->n_modules; i++) {
        const char *name = c->modules[c->modules_by_name[i]].name;
        if (strcmp(name, c->modules[c->modules_by_name[i - 1]].name) == 0)
            return qni_fail(err, QN_E_CORRUPT, "there is a weight '%s' in two forms",
                            qni_shown(shown, name));
    }
    return QN_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static qn_status start(const qn_ctx *ctx, const qn_checkpoint_options *options, qn_checkpoint **c,
                       qn_error *err)
{
    qn_checkpoint_options own;
    qn_checkpoint_options_init(&own);
    if (options != NULL)
        QNI_TRY(qni_sized_read(&own, sizeof own, options, err));
    if (own.gptq_zeros < QN_GPTQ_ZEROS_FOUND || own.gptq_zeros > QN_GPTQ_ZEROS_V2)
        return qni_fail(err, QN_E_ARGUMENT, "gptq_zeros is %d, which is none of its values",
                        (int)own.gptq_zeros);
    if (own.reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "reserved must be 0");
    if ((own.prefetch != 0 && own.prefetch != 1) || (own.lock != 0 && own.lock != 1))
        return qni_fail(err, QN_E_ARGUMENT, "prefetch and lock are 0 or 1");
    *c = qni_alloc_zero(&ctx->allocator, sizeof **c);
    if (*c == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    (*c)->allocator = ctx->allocator;
    (*c)->options = own;
    (*c)->quantization = -1;
    (*c)->origin = (*c)->method = "";
    qni_settings_start(&ctx->allocator, &(*c)->config);
    return QN_OK;
}

qn_status qn_checkpoint_open(const qn_ctx *ctx, const char *path,
                             const qn_checkpoint_options *options, qn_checkpoint **checkpoint,
                             qn_error *err)
{
    if (checkpoint != NULL)
        *checkpoint = NULL;
    if (ctx == NULL || path == NULL || checkpoint == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_checkpoint_open: ctx, path or checkpoint is NULL");
    qn_checkpoint *c = NULL;
    qn_error inner = {QN_OK, -1, ""};
    char shown[QNI_SHOWN_PATH];
    QNI_TRY(start(ctx, options, &c, err));
    qn_status status = qni_checkpoint_gather(ctx, path, c, &inner);
    /* What is said of a file in a folder names that file itself. */
    if (status != QN_OK && strncmp(inner.text, qni_shown_path(shown, path), strlen(shown)) == 0)
        qni_fail_at(err, status, inner.offset, "%s", inner.text);
    else if (status != QN_OK || (status = qni_checkpoint_index(c, &inner)) != QN_OK)
        qni_fail_at(err, status, inner.offset, "%s: %s", shown, inner.text);
    if (status != QN_OK) {
        qn_checkpoint_close(c);
        return status;
    }
    *checkpoint = c;
    return QN_OK;
}

/* Files that have changed hands are closed with the checkpoint, the others here. */
static qn_status take_files(qn_checkpoint *c, qn_file *const *files, int32_t n_files, qn_error *err)
{
    qn_status status = QN_OK;
    for (int32_t i = 0; i < n_files; i++) {
        if (c != NULL && status == QN_OK)
            status = qni_checkpoint_add(c, files[i], err);
        else
            qn_file_close(files[i]);
    }
    return status;
}

qn_status qn_checkpoint_open_files(const qn_ctx *ctx, qn_file *const *files, int32_t n_files,
                                   const char *config, size_t config_bytes,
                                   const qn_checkpoint_options *options, qn_checkpoint **checkpoint,
                                   qn_error *err)
{
    qn_checkpoint *c = NULL;
    qn_error inner = {QN_OK, -1, ""};
    bool is_whole = ctx != NULL && files != NULL && n_files > 0 && checkpoint != NULL;
    for (int32_t i = 0; files != NULL && i < n_files; i++)
        is_whole = is_whole && files[i] != NULL;
    if (checkpoint != NULL)
        *checkpoint = NULL;
    qn_status status = is_whole ? start(ctx, options, &c, err)
                                : qni_fail(err, QN_E_ARGUMENT,
                                           "qn_checkpoint_open_files: ctx, checkpoint or a file is "
                                           "NULL, or there is no file");
    const qn_status taken = take_files(c, files, files == NULL ? 0 : n_files, err);
    if (status == QN_OK)
        status = taken;
    if (status == QN_OK && config != NULL) {
        status = qni_checkpoint_configure(c, "config.json", config, config_bytes, &inner);
        if (status != QN_OK)
            qni_fail_at(err, status, inner.offset, "config: %s", inner.text);
    }
    if (status == QN_OK)
        status = qni_checkpoint_index(c, err);
    if (status != QN_OK)
        qn_checkpoint_close(c);
    else
        *checkpoint = c;
    return status;
}

void qn_checkpoint_close(qn_checkpoint *checkpoint)
{
    qn_checkpoint *c = checkpoint;
    if (c == NULL)
        return;
    const struct qni_allocator a = c->allocator;
    for (size_t i = 0; i < c->n_modules; i++)
        qni_free(&a, c->modules[i].name, c->modules[i].bytes);
    qni_free(&a, c->modules, c->module_capacity * sizeof *c->modules);
    qni_free(&a, c->modules_by_name, c->n_modules * sizeof *c->modules_by_name);
    qni_free(&a, c->by_name, c->n_refs * sizeof *c->by_name);
    size_t total = 0;
    for (size_t i = 0; i < c->n_files; i++) {
        total += c->files[i]->n_entries;
        qn_file_close(c->files[i]);
    }
    qni_free(&a, c->refs, total * sizeof *c->refs);
    if (c->links != NULL)
        qni_free(&a, c->links, c->n_refs * sizeof *c->links);
    qni_free(&a, c->files, c->file_capacity * sizeof *c->files);
    qni_settings_free(&c->config);
    qni_free(&a, c, sizeof *c);
}

/* ---- questions ------------------------------------------------------------------------------- */

const qn_file *qn_checkpoint_file(const qn_checkpoint *checkpoint, int64_t i)
{
    return checkpoint == NULL || i < 0 || i >= (int64_t)checkpoint->n_files ? NULL
                                                                            : checkpoint->files[i];
}

const char *qn_checkpoint_quantization(const qn_checkpoint *checkpoint)
{
    return checkpoint == NULL ? "" : checkpoint->method;
}

int64_t qn_checkpoint_count(const qn_checkpoint *checkpoint)
{
    return checkpoint == NULL ? 0 : (int64_t)checkpoint->n_modules;
}

int64_t qn_checkpoint_find(const qn_checkpoint *checkpoint, const char *name)
{
    const qn_checkpoint *c = checkpoint;
    for (size_t low = 0, high = c == NULL || name == NULL ? 0 : c->n_modules; low < high;) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, c->modules[c->modules_by_name[middle]].name);
        if (order == 0)
            return c->modules_by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

qn_status qn_checkpoint_tensor(const qn_checkpoint *checkpoint, const char *name, qn_entry *entry)
{
    if (checkpoint == NULL || name == NULL || entry == NULL)
        return QN_E_ARGUMENT;
    const int64_t ref = find_ref(checkpoint, name);
    return ref < 0 ? QN_E_NOT_FOUND
                   : qn_file_find(checkpoint->files[checkpoint->refs[ref].file], name, entry);
}

bool qni_checkpoint_has(const qn_checkpoint *c, int64_t i)
{
    return c != NULL && i >= 0 && i < (int64_t)c->n_modules;
}

/* The stem of a module's tensors: the head's name without its ending. */
static void stem_of(const qn_checkpoint *c, const struct qni_module *m, char stem[QNI_STEM])
{
    stem[0] = 0;
    if (m->link != NULL || m->importer < 0)
        return;
    const char *name = entry_of(c, c->refs[m->head])->name;
    const size_t length = strlen(name) - strlen(importers[m->importer]->parts[0]);
    memcpy(stem, name, length); /* shorter than QNI_STEM, or it would be no module */
    stem[length] = 0;
}

/* The tensor that is part p of a module that an importer reads, or -1. */
static int64_t part_of(const qn_checkpoint *c, const struct qni_module *m, const char *stem,
                       int32_t p)
{
    if (m->link != NULL)
        return m->link->part[p] == NULL ? -1 : find_ref(c, m->link->part[p]);
    return find_part(c, stem, importers[m->importer]->parts[p]);
}

static int32_t part_count(const struct qni_module *m)
{
    int32_t count = 1;
    if (m->importer < 0)
        return count;
    if (m->link != NULL)
        return QNI_LINK_PARTS;
    while (importers[m->importer]->parts[count] != NULL)
        count++;
    return count;
}

/* What follows the name of a weight in the name of its bias is "bias" for "weight". */
static const char *bias_of(const qn_checkpoint *c, const struct qni_module *m)
{
    char name[QNI_STEM + 16];
    const size_t length = strlen(m->name), tail = strlen("weight");
    if (m->link != NULL) {
        const int64_t bias = m->link->bias == NULL ? -1 : find_ref(c, m->link->bias);
        return bias < 0 ? NULL : entry_of(c, c->refs[bias])->name;
    }
    if (m->importer < 0 || length + 1 > sizeof name || !qni_text_ends(m->name, ".weight"))
        return NULL;
    memcpy(name, m->name, length + 1);
    memcpy(name + length - tail, "bias", sizeof "bias");
    const int64_t ref = find_ref(c, name);
    return ref < 0 ? NULL : entry_of(c, c->refs[ref])->name;
}

/* Shows what a plain tensor of a graph is there, and the order of its dimensions in the words of
 * the commands' --axes. */
static void show_use(const struct qni_link *link, struct qni_found *found)
{
    const bool is_conv = link->kind == QNI_LINK_CONV || link->kind == QNI_LINK_TRANSPOSED;
    found->role = is_conv                            ? QN_ROLE_CONV
                  : link->kind == QNI_LINK_EMBEDDING ? QN_ROLE_EMBEDDING
                                                     : QN_ROLE_LINEAR;
    qni_note(&found->notes, "role: %s", link->node);
    qni_note(&found->notes, "order: %s",
             link->kind == QNI_LINK_CONV         ? "oihw"
             : link->kind == QNI_LINK_TRANSPOSED ? "iohw"
             : link->is_rows                     ? "oi"
                                                 : "io");
}

const struct qni_importer *qni_checkpoint_importer(const struct qni_module *m)
{
    return m->importer < 0 ? NULL : importers[m->importer];
}

qn_status qni_checkpoint_find_module(const qn_checkpoint *c, const struct qni_module *m,
                                     struct qni_found *found, qn_error *err)
{
    char stem[QNI_STEM], shown[QNI_SHOWN];
    qn_error inner = {QN_OK, -1, ""};
    memset(found, 0, sizeof *found);
    qn_weight_parts_init(&found->parts);
    found->experts = 1;
    show_tensor(c, c->refs[m->head], &found->part[0]);
    found->link = m->link;
    if (m->importer < 0) {
        if (m->link != NULL)
            show_use(m->link, found);
        qni_import_find_floats(found);
        return QN_OK;
    }
    const struct qni_importer *importer = importers[m->importer];
    stem_of(c, m, stem);
    for (int32_t p = 1; p < part_count(m); p++) {
        const int64_t ref = part_of(c, m, stem, p);
        if (ref >= 0)
            show_tensor(c, c->refs[ref], &found->part[p]);
    }
    const struct qni_mapping *mapping = c->files[c->refs[m->head].file]->mapping;
    qni_mapping_sample(mapping, true);
    qn_status status = importer->find(c, stem, found, &inner);
    qni_mapping_sample(mapping, false);
    int64_t taps = 1;
    if (status == QN_OK && found->parts.format.code == QN_CODE_TABLE)
        found->parts.table = found->table;
    if (status == QN_OK && (!qni_i64_mul(found->parts.kh, found->parts.kw, &taps) || taps < 1))
        status = qni_fail(&inner, QN_E_SHAPE, "an impossible kernel");
    if (status == QN_OK)
        status = qn_format_check(&found->parts.format, &inner);
    /* No byte of the file would stand for its rows, of which there may be 2^60. */
    if (status == QN_OK && found->parts.k < 1 && found->parts.n > 0)
        status = qni_fail(&inner, QN_E_SHAPE, "it has %lld rows without columns",
                          (long long)found->parts.n);
    return status == QN_OK ? QN_OK
                           : qni_fail_at(err, status, inner.offset, "'%s': %s",
                                         qni_shown(shown, m->name), inner.text);
}

static void show_module(const qn_checkpoint *c, const struct qni_module *m,
                        const struct qni_found *found, qn_module *out)
{
    out->name = m->name;
    out->importer = m->importer < 0 ? "" : importers[m->importer]->name;
    out->dtype = found->part[0].spelling;
    out->bias = bias_of(c, m);
    out->role = found->role;
    out->activation = found->activation;
    out->format = found->parts.format;
    out->n = found->parts.n;
    out->k = found->parts.k;
    out->experts = found->experts;
    out->kh = found->parts.kh;
    out->kw = found->parts.kw;
    out->conv_groups = found->parts.conv_groups;
    out->has_perm = found->has_perm;
    out->has_prescale = found->has_prescale;
    if (found->activation == QN_ACTIVATION_INT8_STATIC) {
        out->input_scale = found->input_scale;
        out->input_zero = found->input_zero;
    }
    for (int32_t p = 0; p < QNI_MOST_PARTS; p++) {
        out->n_tensors += found->part[p].data != NULL;
        out->bytes += found->part[p].bytes;
    }
}

qn_status qn_checkpoint_module(const qn_checkpoint *checkpoint, int64_t i, qn_module *module,
                               qn_error *err)
{
    struct qni_found found;
    qn_module own;
    if (!qni_checkpoint_has(checkpoint, i) || module == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_checkpoint_module: no such module");
    const struct qni_module *m = &checkpoint->modules[i];
    const qn_status status = qni_checkpoint_find_module(checkpoint, m, &found, err);
    qn_module_init(&own);
    show_module(checkpoint, m, &found, &own);
    if (qni_sized_write(module, &own, sizeof own) != QN_OK)
        return qni_fail(err, QN_E_ARGUMENT, "qn_checkpoint_module: module was not initialised");
    return status;
}

qn_status qn_checkpoint_module_tensor(const qn_checkpoint *checkpoint, int64_t i, int32_t j,
                                      qn_entry *entry)
{
    struct qni_found found;
    if (!qni_checkpoint_has(checkpoint, i) || j < 0 || entry == NULL)
        return QN_E_ARGUMENT;
    qni_checkpoint_find_module(checkpoint, &checkpoint->modules[i], &found, NULL);
    for (int32_t p = 0; p < QNI_MOST_PARTS; p++)
        if (found.part[p].data != NULL && j-- == 0)
            return qn_checkpoint_tensor(checkpoint, found.part[p].name, entry);
    return QN_E_NOT_FOUND;
}

size_t qn_checkpoint_provenance(const qn_checkpoint *checkpoint, int64_t i, char *text,
                                size_t capacity)
{
    struct qni_found found;
    qn_error err = {QN_OK, -1, ""};
    if (capacity > 0 && text != NULL)
        text[0] = 0;
    if (!qni_checkpoint_has(checkpoint, i))
        return 0;
    if (qni_checkpoint_find_module(checkpoint, &checkpoint->modules[i], &found, &err) != QN_OK)
        qni_note(&found.notes, "refused: %s", err.text);
    if (capacity > 0 && text != NULL) {
        const size_t length = found.notes.used < capacity ? found.notes.used : capacity - 1;
        memcpy(text, found.notes.text, length);
        text[length] = 0;
    }
    return found.notes.used;
}

void qn_checkpoint_forget(const qn_checkpoint *checkpoint, int64_t i)
{
    char stem[QNI_STEM];
    if (!qni_checkpoint_has(checkpoint, i))
        return;
    const qn_checkpoint *c = checkpoint;
    const struct qni_module *m = &c->modules[i];
    stem_of(c, m, stem);
    for (int32_t p = 0; p < part_count(m); p++) {
        const int64_t ref = p == 0 ? (int64_t)m->head : part_of(c, m, stem, p);
        if (ref < 0)
            continue;
        const struct qni_entry *e = entry_of(c, c->refs[ref]);
        if (e->decoded != NULL)
            continue;
        qni_mapping_forget(c->files[c->refs[ref].file]->mapping, e->offset, e->bytes);
    }
}
