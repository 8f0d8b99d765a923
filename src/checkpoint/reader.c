/* SPDX-License-Identifier: Apache-2.0 */
/* Open files: finding the kind, the table of tensors and texts, and the views that the public calls
 * give out. What a kind's header means is read in safetensors.c, npy.c and gguf.c; the system is
 * asked in disk.c. Nothing here trusts a number before the reader of the kind has checked it. */
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "file.h"
#include "foreign.h"
#include "json.h"

/* ---- small tools ----------------------------------------------------------------------------- */

bool qni_grow(const struct qni_allocator *a, void **array, size_t *capacity, size_t count,
              size_t element_bytes)
{
    if (count < *capacity)
        return true;
    const size_t wanted = *capacity < 8 ? 16 : *capacity * 2;
    size_t bytes;
    if (wanted < *capacity || wanted > UINT32_MAX || !qni_size_mul(wanted, element_bytes, &bytes))
        return false;
    void *larger = qni_alloc(a, bytes);
    if (larger == NULL)
        return false;
    if (count > 0)
        memcpy(larger, *array, count * element_bytes);
    qni_free(a, *array, *capacity * element_bytes);
    *array = larger;
    *capacity = wanted;
    return true;
}

static void sift_down(uint32_t *heap, size_t root, size_t count, qni_before_fn before,
                      const void *arg)
{
    const uint32_t moving = heap[root];
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && before(arg, heap[child], heap[child + 1]))
            child++;
        if (!before(arg, moving, heap[child]))
            break;
        heap[root] = heap[child];
    }
    heap[root] = moving;
}

/* Heapsort. Headers are usually written in order, so that is looked at first. */
void qni_sort(uint32_t *indices, size_t count, qni_before_fn before, const void *arg)
{
    size_t ordered = 1;
    while (ordered < count && before(arg, indices[ordered - 1], indices[ordered]))
        ordered++;
    if (ordered >= count)
        return;
    for (size_t root = count / 2; root-- > 0;)
        sift_down(indices, root, count, before, arg);
    for (size_t last = count - 1; last > 0; last--) {
        const uint32_t largest = indices[0];
        indices[0] = indices[last];
        indices[last] = largest;
        sift_down(indices, 0, last, before, arg);
    }
}

void qni_tensor_strides(qn_tensor *tensor, bool is_fortran)
{
    int64_t step = 1;
    for (int32_t i = 0; i < tensor->rank; i++) {
        const int32_t d = is_fortran ? i : tensor->rank - 1 - i;
        tensor->stride[d] = step;
        step *= tensor->shape[d] == 0 ? 1 : tensor->shape[d];
    }
}

/* C0, DEL, C1 (c2 80 to c2 9f), and what turns the direction of text (d8 9c; e2 80 8e, 8f, a8 to
 * ae; e2 81 a6 to a9): a terminal may obey them. */
static bool is_obeyed(const uint8_t *at, size_t length)
{
    if (length == 3 && at[0] == 0xe2 && at[1] == 0x80)
        return at[2] == 0x8e || at[2] == 0x8f || (at[2] >= 0xa8 && at[2] <= 0xae);
    if (length == 3 && at[0] == 0xe2 && at[1] == 0x81)
        return at[2] >= 0xa6 && at[2] <= 0xa9;
    return at[0] < 0x20 || at[0] == 0x7f || (length == 2 && at[0] == 0xc2 && at[1] < 0xa0) ||
           (length == 2 && at[0] == 0xd8 && at[1] == 0x9c);
}

/* At most `most` bytes, and three dots for what does not fit. */
static void show(char *out, size_t most, const char *text)
{
    const size_t size = strlen(text);
    size_t used = 0;
    for (size_t at = 0; at < size;) {
        const uint8_t *from = (const uint8_t *)text + at;
        const size_t length = qni_utf8_length(from, size - at);
        if (used + length > most) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        const bool is_control = is_obeyed(from, length);
        if (length == 0 || is_control)
            out[used++] = '?';
        else
            memcpy(out + used, from, length);
        used += length == 0 || is_control ? 0 : length;
        at += length == 0 ? 1 : length;
    }
    out[used] = 0;
}

const char *qni_shown(char out[QNI_SHOWN], const char *text)
{
    show(out, 80, text);
    return out;
}

const char *qni_shown_path(char out[QNI_SHOWN_PATH], const char *path)
{
    const size_t size = strlen(path), most = QNI_SHOWN_PATH - 16;
    const size_t skipped = size > most ? size - most : 0;
    size_t used = 0;
    /* UTF-8's continuations begin with the bits 10: not in the middle of a letter. */
    const char *from = path + skipped;
    if (skipped > 0) {
        memcpy(out, "...", 3);
        used = 3;
        while (((uint8_t)*from & 0xc0) == 0x80)
            from++;
    }
    show(out + used, most, from);
    return out;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool name_before(const void *arg, uint32_t a, uint32_t b)
{
    const qn_file *file = arg;
    const int order = strcmp(file->entries[a].name, file->entries[b].name);
    return order < 0 || (order == 0 && a < b);
}

static bool key_before(const void *arg, uint32_t a, uint32_t b)
{
    const qn_file *file = arg;
    const int order = strcmp(file->texts[a].key, file->texts[b].key);
    return order < 0 || (order == 0 && a < b);
}

static bool offset_before(const void *arg, uint32_t a, uint32_t b)
{
    const qn_file *file = arg;
    const struct qni_entry *x = &file->entries[a], *y = &file->entries[b];
    if (x->offset != y->offset)
        return x->offset < y->offset;
    return x->bytes != y->bytes ? x->bytes < y->bytes : a < b;
}

static uint32_t *numbers(const struct qni_allocator *a, size_t count)
{
    uint32_t *list = qni_alloc(a, count * sizeof *list);
    for (size_t i = 0; list != NULL && i < count; i++)
        list[i] = (uint32_t)i;
    return list;
}

static bool is_weight_key(const char *key)
{
    return strncmp(key, QNI_WEIGHT_KEY, strlen(QNI_WEIGHT_KEY)) == 0;
}

/* Orders, and what only they can show: names that occur twice. */
static qn_status index_file(qn_file *file, qn_error *err)
{
    const struct qni_allocator *a = &file->allocator;
    char shown[QNI_SHOWN];
    file->by_offset = numbers(a, file->n_entries);
    file->by_name = numbers(a, file->n_entries);
    file->by_key = numbers(a, file->n_texts);
    if (file->by_offset == NULL || file->by_name == NULL || file->by_key == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qni_sort(file->by_offset, file->n_entries, offset_before, file);
    qni_sort(file->by_name, file->n_entries, name_before, file);
    qni_sort(file->by_key, file->n_texts, key_before, file);
    for (size_t i = 1; i < file->n_entries; i++) {
        const struct qni_entry *entry = &file->entries[file->by_name[i]];
        if (strcmp(entry->name, file->entries[file->by_name[i - 1]].name) == 0)
            return qni_fail_at(err, QN_E_CORRUPT, (int64_t)entry->offset,
                               "two tensors are named '%s'", qni_shown(shown, entry->name));
    }
    for (size_t i = 1; i < file->n_texts; i++) {
        const char *key = file->texts[file->by_key[i]].key;
        if (strcmp(key, file->texts[file->by_key[i - 1]].key) == 0)
            return qni_fail_at(err, QN_E_CORRUPT, 8, "the metadata has the key '%s' twice",
                               qni_shown(shown, key));
    }
    for (size_t i = 0; i < file->n_texts; i++)
        file->n_weights += is_weight_key(file->texts[i].key);
    file->weights = qni_alloc(a, file->n_weights * sizeof *file->weights);
    if (file->weights == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t i = 0, found = 0; i < file->n_texts; i++)
        if (is_weight_key(file->texts[i].key))
            file->weights[found++] = (uint32_t)i;
    return QN_OK;
}

static qn_status read_any(qn_file *file, qn_error *err)
{
    const uint8_t *bytes = file->mapping->bytes;
    const size_t size = file->mapping->size;
    if (size == 0)
        return qni_fail_at(err, QN_E_CORRUPT, 0, "the file is empty");
    if (size >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0) {
        file->kind = QN_FILE_NPY;
        return qni_npy_read(file, err);
    }
    /* As a safetensors header it would be longer than any may be. */
    if (size >= 4 && memcmp(bytes, "GGUF", 4) == 0) {
        file->kind = QN_FILE_GGUF;
        return qni_gguf_read(file, err);
    }
    if (qni_onnx_is(bytes, size)) {
        file->kind = QN_FILE_ONNX;
        return qni_onnx_read(file, err);
    }
    if (qni_mnn_is(bytes, size)) {
        file->kind = QN_FILE_MNN;
        return qni_mnn_read(file, err);
    }
    file->kind = QN_FILE_SAFETENSORS;
    const qn_status status = qni_safetensors_read(file, err);
    const char *foreign = qni_foreign_kind(bytes, size);
    /* A safetensors file may begin with any of these bytes, so they only explain a failure. */
    if (status == QN_E_CORRUPT && foreign != NULL && err != NULL && err->offset <= 8)
        return qni_fail_at(err, QN_E_CORRUPT, 0,
                           "no safetensors, npy, GGUF, ONNX or MNN file but %s", foreign);
    return status;
}

/* The file whose bytes are mapped: it takes the mapping over, also on failure. graph: the ONNX
 * graph that says what is in it, from its external tensor `first` on; NULL: the file says it. */
static qn_status read_mapped(const struct qni_allocator *a, struct qni_mapping *mapping,
                             const qn_file *graph, size_t first, qn_file **file, qn_error *err)
{
    qn_file *f = qni_alloc_zero(a, sizeof *f);
    if (f == NULL) {
        qni_mapping_release(mapping);
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    }
    f->allocator = *a;
    f->mapping = mapping;
    qn_status status = graph != NULL ? qni_onnx_fill_data(graph, first, f, err) : read_any(f, err);
    if (status == QN_OK)
        status = index_file(f, err);
    if (status == QN_OK && f->kind == QN_FILE_SAFETENSORS)
        status = qni_safetensors_coverage(f, err);
    if (status != QN_OK) {
        qn_file_close(f);
        return status;
    }
    *file = f;
    return QN_OK;
}

/* Reads a mapped file. Where that fails, the caller keeps the memory, and `release` is not called.
 */
static qn_status read_file(const qn_ctx *ctx, struct qni_mapping *mapping,
                           const qn_file_options *options, qn_file **file, qn_error *err)
{
    mapping->release = NULL;
    const qn_status status = read_mapped(&ctx->allocator, mapping, NULL, 0, file, err);
    if (status == QN_OK)
        mapping->release = options->release;
    return status;
}

/* ctx and file are there, and the options are of this version. */
static qn_status begin_open(const char *function, const qn_ctx *ctx, bool has_source,
                            const qn_file_options *options, qn_file_options *own, qn_file **file,
                            qn_error *err)
{
    if (file != NULL)
        *file = NULL;
    if (ctx == NULL || !has_source || file == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s: an argument is NULL", function);
    qn_file_options_init(own);
    if (options != NULL)
        QNI_TRY(qni_sized_read(own, sizeof *own, options, err));
    if ((own->prefetch != 0 && own->prefetch != 1) || (own->lock != 0 && own->lock != 1))
        return qni_fail(err, QN_E_ARGUMENT, "%s: prefetch and lock are 0 or 1", function);
    return QN_OK;
}

static qn_status has_no_release(const char *function, const qn_file_options *own, qn_error *err)
{
    return own->release == NULL
               ? QN_OK
               : qni_fail(err, QN_E_ARGUMENT, "%s: release is for qn_file_open_memory() alone",
                          function);
}

static qn_status keep_path(qn_file *file, const char *path, qn_error *err)
{
    const size_t bytes = strlen(path) + 1;
    file->path = qni_alloc(&file->allocator, bytes);
    if (file->path == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    memcpy(file->path, path, bytes);
    file->path_bytes = bytes;
    return QN_OK;
}

const char *qn_file_path(const qn_file *file)
{
    return file == NULL ? NULL : file->path;
}

qn_status qn_file_open_path(const qn_ctx *ctx, const char *path, const qn_file_options *options,
                            qn_file **file, qn_error *err)
{
    qn_file_options own;
    qn_error inner = {QN_OK, -1, ""};
    char shown[QNI_SHOWN_PATH];
    struct qni_mapping *mapping = NULL;
    QNI_TRY(begin_open("qn_file_open_path", ctx, path != NULL, options, &own, file, err));
    QNI_TRY(has_no_release("qn_file_open_path", &own, err));
    qn_status status = qni_mapping_open_path(&ctx->allocator, path, &own, &mapping, &inner);
    if (status == QN_OK)
        status = read_file(ctx, mapping, &own, file, &inner);
    if (status == QN_OK)
        status = keep_path(*file, path, &inner);
    if (status == QN_OK)
        return QN_OK;
    qn_file_close(*file);
    *file = NULL;
    return qni_fail_at(err, status, inner.offset, "%s: %s", qni_shown_path(shown, path),
                       inner.text);
}

qn_status qni_file_open_data(const qn_ctx *ctx, const qn_file *graph, size_t first,
                             const char *path, const qn_file_options *options, qn_file **file,
                             qn_error *err)
{
    qn_error inner = {QN_OK, -1, ""};
    char shown[QNI_SHOWN_PATH];
    struct qni_mapping *mapping = NULL;
    *file = NULL;
    qn_status status = qni_mapping_open_path(&ctx->allocator, path, options, &mapping, &inner);
    if (status == QN_OK)
        status = read_mapped(&ctx->allocator, mapping, graph, first, file, &inner);
    if (status == QN_OK)
        status = keep_path(*file, path, &inner);
    if (status == QN_OK)
        return QN_OK;
    qn_file_close(*file);
    *file = NULL;
    return qni_fail_at(err, status, inner.offset, "%s: %s", qni_shown_path(shown, path),
                       inner.text);
}

qn_status qn_file_open(const qn_ctx *ctx, const char *path, qn_file **file, qn_error *err)
{
    if (ctx == NULL || path == NULL || file == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_file_open: ctx, path or file is NULL");
    return qn_file_open_path(ctx, path, NULL, file, err);
}

qn_status qn_file_open_descriptor(const qn_ctx *ctx, int32_t descriptor,
                                  const qn_file_options *options, qn_file **file, qn_error *err)
{
    qn_file_options own;
    qn_error inner = {QN_OK, -1, ""};
    struct qni_mapping *mapping = NULL;
    QNI_TRY(begin_open("qn_file_open_descriptor", ctx, true, options, &own, file, err));
    QNI_TRY(has_no_release("qn_file_open_descriptor", &own, err));
    qn_status status = qni_mapping_open(&ctx->allocator, descriptor, &own, &mapping, &inner);
    if (status == QN_OK)
        status = read_file(ctx, mapping, &own, file, &inner);
    return status == QN_OK ? QN_OK
                           : qni_fail_at(err, status, inner.offset, "the file of descriptor %d: %s",
                                         descriptor, inner.text);
}

qn_status qn_file_open_memory(const qn_ctx *ctx, const void *data, size_t bytes,
                              const qn_file_options *options, qn_file **file, qn_error *err)
{
    qn_file_options own;
    qn_error inner = {QN_OK, -1, ""};
    struct qni_mapping *mapping = NULL;
    QNI_TRY(begin_open("qn_file_open_memory", ctx, data != NULL || bytes == 0, options, &own, file,
                       err));
    qn_status status =
        bytes <= SIZE_MAX / 2
            ? qni_mapping_borrow(&ctx->allocator, data, bytes, &own, &mapping, &inner)
            : qni_fail(&inner, QN_E_ARGUMENT, "is larger than the address space");
    if (status == QN_OK)
        status = read_file(ctx, mapping, &own, file, &inner);
    return status == QN_OK
               ? QN_OK
               : qni_fail_at(err, status, inner.offset, "the file in memory: %s", inner.text);
}

void qn_file_close(qn_file *file)
{
    if (file == NULL)
        return;
    const struct qni_allocator a = file->allocator;
    qni_free(&a, file->entries, file->entry_capacity * sizeof *file->entries);
    qni_free(&a, file->by_offset, file->n_entries * sizeof *file->by_offset);
    qni_free(&a, file->by_name, file->n_entries * sizeof *file->by_name);
    qni_free(&a, file->texts, file->text_capacity * sizeof *file->texts);
    qni_free(&a, file->by_key, file->n_texts * sizeof *file->by_key);
    qni_free(&a, file->weights, file->n_weights * sizeof *file->weights);
    qni_free(&a, file->strings, file->string_bytes);
    qni_free(&a, file->path, file->path_bytes);
    qni_free(&a, file->decoded, file->decoded_bytes);
    qni_free(&a, file->externals, file->external_capacity * sizeof *file->externals);
    qni_free(&a, file->links, file->link_capacity * sizeof *file->links);
    qni_mapping_release(file->mapping);
    qni_free(&a, file, sizeof *file);
}

/* ---- looking --------------------------------------------------------------------------------- */

qn_file_kind qn_file_get_kind(const qn_file *file)
{
    return file == NULL ? 0 : file->kind;
}

int64_t qn_file_count(const qn_file *file)
{
    return file == NULL ? 0 : (int64_t)file->n_entries;
}

static void show_entry(const qn_file *file, const struct qni_entry *from, qn_entry *entry)
{
    memset(entry, 0, sizeof *entry);
    entry->name = from->name;
    entry->dtype = from->spelling;
    entry->offset = from->decoded == NULL ? (int64_t)from->offset : -1;
    entry->bytes = from->bytes;
    entry->tensor = qn_tensor_none();
    entry->tensor.dtype = from->dtype;
    entry->tensor.device.kind = QN_CPU;
    /* The shape is worth knowing even where the elements cannot be used. */
    if (from->rank <= QN_MAX_RANK) {
        entry->tensor.rank = from->rank;
        memcpy(entry->tensor.shape, from->shape, sizeof from->shape);
        qni_tensor_strides(&entry->tensor, from->is_fortran);
    }
    const uint8_t *data = qni_entry_data(file, from);
    entry->tensor.data = (void *)(uintptr_t)data; /* read-only memory, as the contract says */
    if (from->dtype == QN_DTYPE_NONE)
        return;
    entry->is_aligned = (uintptr_t)data % qn_dtype_bytes(from->dtype) == 0;
}

qn_status qn_file_entry(const qn_file *file, int64_t i, qn_entry *entry)
{
    if (file == NULL || entry == NULL || i < 0 || i >= (int64_t)file->n_entries)
        return QN_E_ARGUMENT;
    show_entry(file, &file->entries[file->by_offset[i]], entry);
    return QN_OK;
}

qn_status qn_file_find(const qn_file *file, const char *name, qn_entry *entry)
{
    if (file == NULL || name == NULL || entry == NULL)
        return QN_E_ARGUMENT;
    for (size_t low = 0, high = file->n_entries; low < high;) {
        const size_t middle = low + (high - low) / 2;
        const struct qni_entry *found = &file->entries[file->by_name[middle]];
        const int order = strcmp(name, found->name);
        if (order == 0) {
            show_entry(file, found, entry);
            return QN_OK;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return QN_E_NOT_FOUND;
}

qn_status qn_file_metadata(const qn_file *file, int64_t i, const char **key, const char **value)
{
    if (file == NULL || i < 0)
        return QN_E_ARGUMENT;
    if (i >= (int64_t)file->n_texts)
        return QN_E_NOT_FOUND;
    if (key != NULL)
        *key = file->texts[i].key;
    if (value != NULL)
        *value = file->texts[i].value;
    return QN_OK;
}

const struct qni_text *qni_metadata_find(const qn_file *file, const char *key)
{
    for (size_t low = 0, high = file->n_texts; low < high;) {
        const size_t middle = low + (high - low) / 2;
        const struct qni_text *found = &file->texts[file->by_key[middle]];
        const int order = strcmp(key, found->key);
        if (order == 0)
            return found;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *qn_file_get_metadata(const qn_file *file, const char *key)
{
    const struct qni_text *text = file == NULL || key == NULL ? NULL : qni_metadata_find(file, key);
    return text == NULL ? NULL : text->value;
}

int64_t qn_file_weight_count(const qn_file *file)
{
    return file == NULL ? 0 : (int64_t)file->n_weights;
}

const char *qn_file_weight_name(const qn_file *file, int64_t i)
{
    if (file == NULL || i < 0 || i >= (int64_t)file->n_weights)
        return NULL;
    return file->texts[file->weights[i]].key + strlen(QNI_WEIGHT_KEY);
}

static bool is_inside(const qn_file *file, const qn_entry *entry)
{
    if (file == NULL || entry == NULL || entry->offset < 0)
        return false;
    const size_t offset = (size_t)entry->offset, size = file->mapping->size;
    return offset <= size && entry->bytes <= size - offset;
}

void qn_file_forget(const qn_file *file, const qn_entry *entry)
{
    if (is_inside(file, entry))
        qni_mapping_forget(file->mapping, (size_t)entry->offset, entry->bytes);
}

void qn_file_prefetch(const qn_file *file, const qn_entry *entry)
{
    if (is_inside(file, entry))
        qni_mapping_prefetch(file->mapping, (size_t)entry->offset, entry->bytes);
}
