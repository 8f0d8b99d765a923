/* SPDX-License-Identifier: Apache-2.0 */
/* quern convert --to onnx: a model with one node for each weight - MatMulNBits, or DequantizeLinear
 * before Gemm or Conv - from an input "x.NAME" to an output "y.NAME", and the plain tensors as
 * initializers. What comes between the weights only the program knows that made the model. More
 * than 2^31 bytes, or --external-data, lie in a file beside it. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "whole.h"

/* ----------------------------------------------------------------------------------- protobuf */

struct message {
    uint8_t *data;
    size_t size, capacity;
};

static void put(struct message *m, const void *data, size_t size)
{
    if (m->size + size > m->capacity) {
        m->capacity = 2 * m->capacity + size + 64;
        m->data = must_grow(m->data, m->capacity);
    }
    if (size > 0)
        memcpy(m->data + m->size, data, size);
    m->size += size;
}

static void put_varint(struct message *m, uint64_t value)
{
    for (; value > 127; value >>= 7) {
        const uint8_t byte = (uint8_t)(value & 127) | 128;
        put(m, &byte, 1);
    }
    const uint8_t last = (uint8_t)value;
    put(m, &last, 1);
}

static void put_number(struct message *m, uint32_t field, int64_t value)
{
    put_varint(m, field << 3);
    put_varint(m, (uint64_t)value);
}

/* The beginning of a field of so many bytes. */
static void put_head(struct message *m, uint32_t field, size_t size)
{
    put_varint(m, field << 3 | 2);
    put_varint(m, size);
}

static void put_text(struct message *m, uint32_t field, const char *text)
{
    put_head(m, field, strlen(text));
    put(m, text, strlen(text));
}

/* A message as a field; it is freed. */
static void put_message(struct message *m, uint32_t field, struct message *inner)
{
    put_head(m, field, inner->size);
    put(m, inner->data, inner->size);
    free(inner->data);
    *inner = (struct message){0};
}

/* -------------------------------------------------------------------------------------- tensors */

static int data_type(const struct tensor_plan *plan)
{
    static const int types[] = {
        [QN_F32] = 1,   [QN_U8] = 2,    [QN_I8] = 3,    [QN_U16] = 4,  [QN_I16] = 5,  [QN_I32] = 6,
        [QN_I64] = 7,   [QN_BOOL] = 9,  [QN_F16] = 10,  [QN_F64] = 11, [QN_U32] = 12, [QN_U64] = 13,
        [QN_BF16] = 16, [QN_E4M3] = 17, [QN_E5M2] = 19, [QN_E8M0] = 24};
    return plan->type[0] != '\0' ? 22 /* INT4 */ : types[plan->dtype];
}

static void put_entry(struct message *m, const char *key, const char *value)
{
    struct message pair = {0};
    put_text(&pair, 1, key);
    put_text(&pair, 2, value);
    put_message(m, 13, &pair);
}

/* All of a TensorProto but the bytes of raw_data, which follow. location: of external data, NULL:
 * there are none. */
static struct message tensor_head(const struct tensor_plan *plan, const char *location,
                                  uint64_t offset)
{
    struct message m = {0};
    char text[32];
    for (int32_t i = 0; i < plan->rank; i++)
        put_number(&m, 1, plan->shape[i]);
    put_number(&m, 2, data_type(plan));
    put_text(&m, 8, plan->name);
    if (location == NULL) {
        put_head(&m, 9, plan->bytes);
        return m;
    }
    put_entry(&m, "location", location);
    snprintf(text, sizeof text, "%llu", (unsigned long long)offset);
    put_entry(&m, "offset", text);
    snprintf(text, sizeof text, "%llu", (unsigned long long)plan->bytes);
    put_entry(&m, "length", text);
    put_number(&m, 14, 1);
    return m;
}

/* ---------------------------------------------------------------------------------------- nodes */

static void put_attribute(struct message *node, const char *name, int64_t value)
{
    enum { INT = 2 };
    struct message m = {0};
    put_text(&m, 1, name);
    put_number(&m, 3, value);
    put_number(&m, 20, INT);
    put_message(node, 5, &m);
}

/* An input or output: f32, dimensions by number, or by name where they are open. */
static void put_value(struct message *graph, uint32_t field, const char *lead, const char *name,
                      const char *const *open, const int64_t *shape, int rank)
{
    struct message value = {0}, type = {0}, tensor = {0}, dims = {0};
    char *full = must_print("%s.%s", lead, name);
    for (int i = 0; i < rank; i++) {
        struct message dim = {0};
        if (open[i] != NULL)
            put_text(&dim, 2, open[i]);
        else
            put_number(&dim, 1, shape[i]);
        put_message(&dims, 1, &dim);
    }
    put_number(&tensor, 1, 1);
    put_message(&tensor, 2, &dims);
    put_message(&type, 1, &tensor);
    put_text(&value, 1, full);
    put_message(&value, 2, &type);
    put_message(graph, field, &value);
    free(full);
}

static void put_values(struct message *ends, const struct piece *p)
{
    static const char *const image_x[] = {"batch", NULL, "h", "w"};
    static const char *const image_y[] = {"batch", NULL, "oh", "ow"}, *const rows[] = {"m", NULL};
    const int64_t n = p->tensors[0].shape[0], taps = p->kh * p->kw;
    const int is_image = p->tensors[0].rank == 4;
    const int64_t in[2] = {0, p->k / taps * p->conv_groups}, out[2] = {0, n};
    put_value(ends, 11, "x", p->target, is_image ? image_x : rows, in, is_image ? 4 : 2);
    put_value(ends, 12, "y", p->target, is_image ? image_y : rows, out, is_image ? 4 : 2);
}

static void put_node(struct message *nodes, const struct piece *p)
{
    struct message m = {0}, pair = {0};
    const struct tensor_plan *t = p->tensors;
    char *x = must_print("x.%s", p->target), *y = must_print("y.%s", p->target);
    char *w = must_print("w.%s", p->target);
    put_text(&m, 1, x);
    if (strcmp(p->kind, "MatMulNBits") == 0) {
        const int at = p->is_symmetric ? 2 : 3;
        put_text(&m, 1, t[0].name);
        put_text(&m, 1, t[1].name);
        if (!p->is_symmetric || p->has_order)
            put_text(&m, 1, p->is_symmetric ? "" : t[2].name);
        if (p->has_order)
            put_text(&m, 1, t[at].name);
        put_attribute(&m, "K", p->k);
        put_attribute(&m, "N", t[0].shape[0]);
        put_attribute(&m, "bits", p->bits);
        put_attribute(&m, "block_size", t[0].shape[2] * 8 / p->bits);
        put_text(&m, 7, "com.microsoft");
    } else {
        for (int i = 0; i < p->n_tensors; i++)
            put_text(&pair, 1, t[i].name);
        put_text(&pair, 2, w);
        put_text(&pair, 4, "DequantizeLinear");
        put_attribute(&pair, "axis", 0);
        put_message(nodes, 1, &pair);
        put_text(&m, 1, w);
        put_attribute(&m, t[0].rank == 4 ? "group" : "transB", t[0].rank == 4 ? p->conv_groups : 1);
    }
    put_text(&m, 2, y);
    put_text(&m, 4,
             strcmp(p->kind, "MatMulNBits") == 0 ? p->kind
             : t[0].rank == 4                    ? "Conv"
                                                 : "Gemm");
    put_message(nodes, 1, &m);
    free(x);
    free(y);
    free(w);
}

/* ------------------------------------------------------------------------------------ the files */

static struct {
    struct whole model, data;
    const char *location; /* NULL: all in the model */
    uint64_t offset;
} files;

static int put_tensor(struct export *e, struct piece *piece, int i, const qn_tensor *tensor)
{
    const struct tensor_plan *plan = &piece->tensors[i];
    struct message head = tensor_head(plan, files.location, files.offset), key = {0};
    const size_t inside = files.location == NULL ? plan->bytes : 0;
    FILE *to = files.location == NULL ? files.model.file : files.data.file;
    put_head(&key, 5, head.size + inside);
    fwrite(key.data, 1, key.size, files.model.file);
    fwrite(head.data, 1, head.size, files.model.file);
    fwrite(tensor->data, 1, plan->bytes, to);
    files.offset += plan->bytes;
    free(head.data);
    free(key.data);
    (void)e;
    return 0;
}

/* What initializers take of the graph, in bytes. */
static uint64_t size_of_tensors(const struct export *e, const char *location)
{
    uint64_t total = 0, offset = 0;
    for (int64_t i = 0; i < e->n_pieces; i++)
        for (int t = 0; t < e->pieces[i].n_tensors; t++) {
            const struct tensor_plan *plan = &e->pieces[i].tensors[t];
            struct message head = tensor_head(plan, location, offset), key = {0};
            const size_t inside = location == NULL ? plan->bytes : 0;
            put_head(&key, 5, head.size + inside);
            total += key.size + head.size + inside;
            offset += plan->bytes;
            free(head.data);
            free(key.data);
        }
    return total;
}

static void put_opset(struct message *m, const char *domain, int64_t version)
{
    struct message opset = {0};
    if (domain[0] != '\0')
        put_text(&opset, 1, domain);
    put_number(&opset, 2, version);
    put_message(m, 8, &opset);
}

static int write_files(struct export *e, uint64_t tensors)
{
    enum { IR_VERSION = 10, OPSET = 21 };
    struct message model = {0}, nodes = {0}, ends = {0};
    int status = 0;
    for (int64_t i = 0; i < e->n_pieces; i++)
        if (e->pieces[i].how == PIECE_EXPORT) {
            put_node(&nodes, &e->pieces[i]);
            put_values(&ends, &e->pieces[i]);
        }
    put_text(&nodes, 2, "quern");
    put_number(&model, 1, IR_VERSION);
    put_text(&model, 2, "quern");
    put_opset(&model, "", OPSET);
    put_opset(&model, "com.microsoft", 1);
    put_head(&model, 7, nodes.size + tensors + ends.size);
    fwrite(model.data, 1, model.size, files.model.file);
    fwrite(nodes.data, 1, nodes.size, files.model.file);
    for (int64_t i = 0; i < e->n_pieces && status == 0; i++) {
        progress_what(&e->progress, e->pieces[i].name);
        status = is_stopped() ? EXIT_STOPPED : export_piece(e, &e->pieces[i], put_tensor);
        qn_checkpoint_forget(e->model, e->pieces[i].module);
        progress_set(&e->progress, e->progress.done + e->pieces[i].bytes);
    }
    fwrite(ends.data, 1, ends.size, files.model.file);
    free(model.data);
    free(nodes.data);
    free(ends.data);
    return status;
}

char *export_onnx_data(const struct export *e)
{
    const char *const slash = strrchr(e->out, '/');
    return must_print("%s/%s.data", e->part, slash != NULL ? slash + 1 : e->out);
}

int export_write_onnx(struct export *e, const char *path)
{
    char *data = export_onnx_data(e);
    memset(&files, 0, sizeof files);
    uint64_t tensors = size_of_tensors(e, NULL);
    if (args_has(e->args, "external-data") || tensors > INT32_MAX - (1 << 24)) {
        files.location = strrchr(data, '/') + 1;
        tensors = size_of_tensors(e, files.location);
    }
    int reason = whole_begin(&files.model, path), status = 0;
    if (reason == 0 && files.location != NULL) {
        reason = whole_begin(&files.data, data);
        if (reason != 0)
            whole_end(&files.model, 0);
    }
    if (reason == 0) {
        status = write_files(e, tensors);
        if (files.location != NULL)
            reason = whole_end(&files.data, status == 0);
        const int model = whole_end(&files.model, status == 0 && reason == 0);
        reason = reason != 0 ? reason : model;
    }
    free(data);
    if (status == 0 && reason != 0)
        status = complain(EXIT_LIBRARY, "make room", "%s: %s", path, strerror(reason));
    return status;
}
