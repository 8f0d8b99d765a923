/* SPDX-License-Identifier: Apache-2.0 */
/* One module of the source to tensors of the target, and the comparison of what was written with
 * what the source says. */
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "imports.h"
#include "source.h"

/* ------------------------------------------------------------------------------- order of rows */

/* The row of the source that is row `row` of the target. */
static int64_t source_row(const struct export *e, const struct piece *piece, int64_t row, int64_t n)
{
    if (e->to_gguf)
        return row_of_gguf(row, n, piece->heads);
    /* The inverse: halves become pairs. */
    const int64_t size = n / piece->heads, at = row % size, half = size / 2;
    return row - at + at % half * 2 + at / half;
}

static int can_rotate(const struct piece *piece, int64_t n)
{
    if (piece->heads == 0 || (n % piece->heads == 0 && n / piece->heads % 2 == 0))
        return 0;
    return complain(EXIT_INPUT, "leave it out with --exclude",
                    "%s: %lld rows are no %lld heads, as the configuration has them", piece->name,
                    (long long)n, (long long)piece->heads);
}

static void copy_rows(const struct export *e, const struct piece *piece, void *to, const void *from,
                      int64_t n, size_t row_bytes)
{
    for (int64_t row = 0; row < n; row++)
        memcpy((char *)to + (size_t)row * row_bytes,
               (const char *)from + (size_t)source_row(e, piece, row, n) * row_bytes, row_bytes);
}

static int reorder(const struct export *e, const struct piece *piece, qn_weight **weight)
{
    qn_weight_parts parts;
    qn_weight *ordered = NULL;
    qn_error err = {0};
    qn_weight_parts_init(&parts);
    qn_weight_view(*weight, &parts);
    const int failed = can_rotate(piece, parts.n);
    if (failed != 0)
        return failed;
    int32_t *rows = must_alloc(sizeof *rows * (size_t)parts.n);
    for (int64_t row = 0; row < parts.n; row++)
        rows[row] = (int32_t)source_row(e, piece, row, parts.n);
    const qn_status status = qn_weight_take(e->ctx, *weight, rows, parts.n, &ordered, &err);
    free(rows);
    if (status != QN_OK)
        return complain_status(piece->name, status, &err);
    qn_weight_destroy(*weight);
    *weight = ordered;
    return 0;
}

int export_load(struct export *e, const struct piece *piece, qn_weight **weight)
{
    qn_error err = {0};
    const qn_status status =
        qn_checkpoint_load(e->ctx, e->model, piece->module, 0, -1, weight, NULL, &err);
    if (status != QN_OK)
        return imports_complain(status, &err);
    return piece->heads > 0 ? reorder(e, piece, weight) : 0;
}

/* -------------------------------------------------------------------------------- plain tensors */

static struct tensor_plan *plan_next(struct piece *piece, int i, char *name)
{
    struct tensor_plan *plan = &piece->tensors[i];
    free(plan->name);
    plan->name = name;
    piece->n_tensors = i + 1;
    return plan;
}

static int give(struct export *e, struct piece *piece, int i, char *name, const qn_tensor *t,
                const char *type, size_t bytes, put_fn *put)
{
    struct tensor_plan *plan = plan_next(piece, i, name);
    plan->dtype = t->dtype;
    snprintf(plan->type, sizeof plan->type, "%s", type);
    plan->rank = t->rank;
    memcpy(plan->shape, t->shape, sizeof plan->shape);
    plan->bytes = bytes;
    return put(e, piece, i, t);
}

/* Norms of gemma are 1 more in GGUF: exactly, or not at all. */
static int shift_all(const struct piece *piece, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double sum = (double)x[i] + piece->shift;
        x[i] = (float)sum;
        if ((double)x[i] != sum)
            return complain(EXIT_INPUT, "--requantize rounds it",
                            "%s: element %lld plus %d is no f32 number", piece->name, (long long)i,
                            piece->shift);
    }
    return 0;
}

/* Is each value one of the narrow type? */
static int is_exact(const float *x, int64_t n, qn_dtype dtype)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        float back;
        const int64_t one = 1;
        const qn_tensor from = qn_tensor_make((void *)(uintptr_t)&x[i], QN_F32, 1, &one);
        qn_entry entry = {.tensor = from};
        qn_tensor to = qn_tensor_make(&half, dtype, 1, &one);
        if (qn_entry_copy(&entry, &to) != QN_OK)
            return 0;
        entry.tensor = to;
        to = qn_tensor_make(&back, QN_F32, 1, &one);
        if (qn_entry_copy(&entry, &to) != QN_OK || back != x[i])
            return 0;
    }
    return 1;
}

/* f32 [n, k] as the narrowest of f16, bf16 and f32 that holds it exactly. */
static int give_floats(struct export *e, struct piece *piece, float *x, int32_t rank,
                       const int64_t *shape, int64_t count, int keep_f32, put_fn *put)
{
    qn_dtype dtype = QN_F32;
    if (!keep_f32)
        dtype = is_exact(x, count, QN_F16) ? QN_F16 : is_exact(x, count, QN_BF16) ? QN_BF16 : dtype;
    qn_tensor t = qn_tensor_make(x, QN_F32, rank, shape);
    uint16_t *narrow = NULL;
    if (dtype != QN_F32) {
        qn_entry entry = {.tensor = t};
        narrow = must_alloc((size_t)count * sizeof *narrow);
        t = qn_tensor_make(narrow, dtype, rank, shape);
        qn_entry_copy(&entry, &t);
    }
    const int status = give(e, piece, 0, must_copy(piece->target), &t, "",
                            (size_t)count * qn_dtype_bytes(dtype), put);
    free(narrow);
    return status;
}

static int copy_tensor(struct export *e, struct piece *piece, put_fn *put)
{
    qn_entry entry;
    qn_status status = qn_checkpoint_tensor(e->model, piece->name, &entry);
    int64_t count;
    size_t bytes;
    if (status != QN_OK || entry.tensor.dtype == QN_DTYPE_NONE)
        return complain(EXIT_INPUT, "leave it out with --exclude",
                        "%s: tensors of type %s cannot be copied", piece->name, entry.dtype);
    if (qn_tensor_extent(&entry.tensor, &count, &bytes) != QN_OK)
        return complain(EXIT_INPUT, "fetch the file again", "%s: a bad shape", piece->name);
    const qn_tensor *t = &entry.tensor;
    const int is_float = t->dtype == QN_F32 || t->dtype == QN_F16 || t->dtype == QN_BF16;
    const int to_f32 = e->to_gguf && t->rank <= 1 && is_float;
    const int failed = piece->heads > 0 && t->rank > 0 ? can_rotate(piece, t->shape[0]) : 0;
    if (failed != 0)
        return failed;
    if ((to_f32 && t->dtype != QN_F32) || piece->shift != 0) {
        float *x = must_alloc((size_t)(count > 0 ? count : 1) * sizeof *x);
        qn_tensor f = qn_tensor_make(x, QN_F32, t->rank, t->shape);
        int result = qn_entry_copy(&entry, &f) == QN_OK ? shift_all(piece, x, count) : EXIT_INPUT;
        if (result == 0)
            result = give(e, piece, 0, must_copy(piece->target), &f, "", (size_t)count * 4, put);
        free(x);
        return result;
    }
    if (piece->heads == 0 && entry_is_plain(&entry))
        return give(e, piece, 0, must_copy(piece->target), t, "", entry.bytes, put);
    qn_tensor copy;
    int result = entry_load(piece->name, &entry, t->dtype, &copy);
    if (result != 0)
        return result;
    if (piece->heads > 0) {
        void *ordered = must_alloc(bytes);
        copy_rows(e, piece, ordered, copy.data, t->shape[0], bytes / (size_t)t->shape[0]);
        free(copy.data);
        copy.data = ordered;
    }
    result = give(e, piece, 0, must_copy(piece->target), &copy, "", bytes, put);
    free(copy.data);
    return result;
}

/* -------------------------------------------------------------------------------------- weights */

/* To be freed; NULL after a complaint. */
static float *dequantize(struct export *e, const struct piece *piece, const qn_weight *weight,
                         qn_weight_parts *parts)
{
    qn_weight_parts_init(parts);
    qn_weight_view(weight, parts);
    const size_t bytes = (size_t)parts->n * (size_t)parts->k * sizeof(float);
    if (!memory_is_there(bytes)) {
        complain(EXIT_LIBRARY, "free some memory", "%s: no memory for it in f32", piece->name);
        return NULL;
    }
    float *x = must_alloc(bytes);
    const qn_tensor out = qn_tensor_2d(x, QN_F32, parts->n, parts->k);
    qn_weight_dequantize(e->ctx, weight, true, &out);
    return x;
}

static int write_dense(struct export *e, struct piece *piece, put_fn *put)
{
    qn_weight *weight = NULL;
    qn_weight_parts parts;
    const int failed = export_load(e, piece, &weight);
    if (failed != 0)
        return failed;
    float *x = dequantize(e, piece, weight, &parts);
    qn_weight_destroy(weight);
    if (x == NULL)
        return EXIT_LIBRARY;
    const int64_t shape[2] = {parts.n, parts.k};
    const int status = give_floats(e, piece, x, 2, shape, parts.n * parts.k, 0, put);
    free(x);
    return status;
}

/* The other way: other codes, chosen anew. */
static int requantize(struct export *e, const struct piece *piece, qn_weight **weight)
{
    qn_weight_parts parts;
    qn_quantize_options options;
    qn_weight *made = NULL;
    qn_error err = {0};
    float *x = dequantize(e, piece, *weight, &parts);
    if (x == NULL)
        return EXIT_LIBRARY;
    qn_quantize_options_init(&options);
    options.format = e->format;
    const qn_tensor dense = qn_tensor_2d(x, QN_F32, parts.n, parts.k);
    const qn_status status = qn_quantize(e->ctx, &dense, &options, &made, &err);
    free(x);
    if (status != QN_OK)
        return complain_status(piece->name, status, &err);
    qn_weight_destroy(*weight);
    *weight = made;
    return 0;
}

static int refuse(const struct export *e, const struct piece *piece, qn_status status,
                  const qn_error *err)
{
    const char *const todo =
        e->is_requantized
            ? "give scales of f16 in groups that divide its columns (--format int4:g64:zp:f16), "
              "choose another --to, or leave it out with --exclude"
            : "choose another --to, --requantize to round it, or leave it out with --exclude";
    if (status == QN_E_MEMORY)
        return complain_status(piece->name, status, err);
    return complain(EXIT_INPUT, todo, "%s: %s", piece->name, err->text);
}

static int make_export(struct export *e, struct piece *piece, qn_weight **weight, qn_export **made)
{
    qn_export_options options;
    qn_error err = {0};
    qn_export_options_init(&options);
    options.target = e->graph == NULL ? e->target : piece->is_pair ? "onnx:qdq" : "onnx";
    options.scale_dtype = e->graph == NULL ? QN_DTYPE_NONE : piece->scale_dtype;
    options.group = e->group;
    options.activation = piece->activation;
    options.input_scale = piece->input_scale;
    options.input_zero = piece->input_zero;
    qn_status status = qn_export_create(e->ctx, *weight, &options, made, &err);
    if (status == QN_OK || status == QN_E_MEMORY || status == QN_E_ARGUMENT || !e->is_requantized)
        return status == QN_OK ? 0 : refuse(e, piece, status, &err);
    const int failed = requantize(e, piece, weight);
    if (failed != 0)
        return failed;
    piece->is_requantized = 1;
    status = qn_export_create(e->ctx, *weight, &options, made, &err);
    return status == QN_OK ? 0 : refuse(e, piece, status, &err);
}

/* The name of a weight without ".weight", with which all endings but ONNX's begin. */
static char *name_of(const struct export *e, const struct piece *piece, const char *ending)
{
    if (e->to_onnx)
        return must_print("%s%s", piece->target, ending);
    const size_t length = strlen(piece->target), tail = strlen(".weight");
    const int has_tail = length > tail && strcmp(piece->target + length - tail, ".weight") == 0;
    return must_print("%.*s%s", (int)(has_tail ? length - tail : length), piece->target, ending);
}

/* A tensor of a vector may have become one of blocks. */
static size_t bytes_of(const qn_tensor *t, int bits)
{
    size_t count = 1;
    for (int32_t d = 0; d < t->rank; d++)
        count *= (size_t)t->shape[d];
    return (count * (size_t)bits + 7) / 8;
}

static int write_export(struct export *e, struct piece *piece, put_fn *put)
{
    qn_weight *weight = NULL;
    qn_export *made = NULL;
    qn_export_info info;
    qn_entry entry;
    int status = export_load(e, piece, &weight);
    if (status == 0)
        status = make_export(e, piece, &weight, &made);
    qn_weight_destroy(weight);
    qn_export_info_init(&info);
    if (status != 0 || qn_export_query(made, &info) != QN_OK)
        return status;
    snprintf(piece->kind, sizeof piece->kind, "%s", info.kind);
    piece->bits = info.bits;
    piece->group = info.group;
    piece->is_symmetric = info.is_symmetric;
    piece->has_order = info.has_order;
    for (int i = 0; i < qn_export_count(made) && status == 0; i++) {
        qn_export_entry(made, i, &entry);
        const int is_block = entry.tensor.dtype == QN_DTYPE_NONE;
        qn_tensor t = entry.tensor;
        t.dtype = is_block ? QN_U8 : t.dtype;
        void *turned = e->graph == NULL
                           ? NULL
                           : graph_turn(piece, &t, is_block ? 4 : 8 * (int)qn_dtype_bytes(t.dtype));
        if (e->graph != NULL)
            entry.bytes = bytes_of(&t, is_block ? 4 : 8 * (int)qn_dtype_bytes(t.dtype));
        status =
            give(e, piece, i, e->to_gguf ? must_copy(piece->target) : name_of(e, piece, entry.name),
                 &t, is_block ? entry.dtype : "", entry.bytes, put);
        free(turned);
    }
    qn_export_destroy(made);
    return status;
}

int export_piece(struct export *e, struct piece *piece, put_fn *put)
{
    return piece->how == PIECE_COPY    ? copy_tensor(e, piece, put)
           : piece->how == PIECE_DENSE ? write_dense(e, piece, put)
                                       : write_export(e, piece, put);
}

/* ------------------------------------------------------------------------------------ comparing */

/* The tensor in the target has just these bytes. */
static int compare_bytes(struct export *e, struct piece *piece, int i, const qn_tensor *tensor)
{
    const struct tensor_plan *plan = &piece->tensors[i];
    qn_entry entry;
    if (qn_checkpoint_tensor(e->made, plan->name, &entry) == QN_OK && entry.bytes == plan->bytes &&
        (plan->bytes == 0 || memcmp(entry.tensor.data, tensor->data, plan->bytes) == 0))
        return 0;
    return complain(EXIT_DIFFERS, "the disk may be bad; run it again",
                    "%s: what was written is not what was read back", plan->name);
}

static int is_kept_in(const qn_checkpoint *model, int64_t module, const char *codes)
{
    qn_entry entry;
    return qn_checkpoint_module_tensor(model, module, 0, &entry) == QN_OK &&
           strcmp(entry.name, codes) == 0;
}

/* Modules of a graph are called as their nodes are, if their tensors have mere numbers. */
static int64_t find_made(const struct export *e, const struct piece *piece)
{
    const int64_t likely = qn_checkpoint_find(e->made, piece->target);
    if (is_kept_in(e->made, likely, piece->tensors[0].name))
        return likely;
    for (int64_t i = 0; i < qn_checkpoint_count(e->made); i++)
        if (is_kept_in(e->made, i, piece->tensors[0].name))
            return i;
    return -1;
}

int export_verify(struct export *e, struct piece *piece)
{
    qn_weight *source = NULL, *made = NULL;
    qn_weight_difference d;
    qn_error err = {0};
    /* Of Gemm's alpha, too, the reader makes scales. */
    const int is_scaled = piece->weight != NULL && piece->weight->has_alpha;
    if (piece->how != PIECE_EXPORT || piece->is_requantized || is_scaled)
        return export_piece(e, piece, compare_bytes);
    const int failed = export_load(e, piece, &source);
    if (failed != 0)
        return failed;
    const int64_t at =
        e->graph != NULL ? find_made(e, piece) : qn_checkpoint_find(e->made, piece->target);
    qn_status status =
        at < 0 ? QN_E_NOT_FOUND : qn_checkpoint_load(e->ctx, e->made, at, 0, -1, &made, NULL, &err);
    qn_weight_difference_init(&d);
    if (status == QN_OK)
        status = qn_weight_compare(e->ctx, source, made, &d, &err);
    qn_weight_destroy(source);
    qn_weight_destroy(made);
    if (status != QN_OK)
        return complain(EXIT_DIFFERS, "please report it",
                        "%s: what was written is not read back: %s", piece->target,
                        at < 0 ? "there is no such module" : err.text);
    if (d.count == 0)
        return 0;
    return complain(EXIT_DIFFERS, "please report it",
                    "%s: %lld values read back differ, the first in row %lld, column %lld: %.9g "
                    "instead of %.9g",
                    piece->target, (long long)d.count, (long long)d.row, (long long)d.column, d.b,
                    d.a);
}
