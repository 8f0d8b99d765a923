/* SPDX-License-Identifier: Apache-2.0 */
/* quern convert --to onnx: a model with one node for each weight - MatMulNBits, or DequantizeLinear
 * before Gemm or Conv - from an input "x.NAME" to an output "y.NAME", and the plain tensors as
 * initializers. What comes between the weights only the program knows that made the model; where
 * that is an ONNX model itself, export_graph.c keeps its graph. More than 2^31 bytes, or
 * --external-data, lie in a file beside it. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "message.h"
#include "whole.h"

/* -------------------------------------------------------------------------------------- tensors */

int onnx_data_type(const struct tensor_plan *plan)
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
    message_text(&pair, 1, key);
    message_text(&pair, 2, value);
    message_part(m, 13, &pair);
}

uint64_t onnx_place(uint64_t offset)
{
    enum { ALIGNMENT = 64 };
    return (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void onnx_put_place(struct message *tensor, const char *location, uint64_t offset, uint64_t bytes)
{
    char text[32];
    put_entry(tensor, "location", location);
    snprintf(text, sizeof text, "%llu", (unsigned long long)offset);
    put_entry(tensor, "offset", text);
    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    put_entry(tensor, "length", text);
    message_number(tensor, 14, 1);
}

/* All of a TensorProto but the bytes of raw_data, which follow. location: of external data, NULL:
 * there are none. */
static struct message tensor_head(const struct tensor_plan *plan, const char *location,
                                  uint64_t offset)
{
    struct message m = {0};
    for (int32_t i = 0; i < plan->rank; i++)
        message_number(&m, 1, plan->shape[i]);
    message_number(&m, 2, onnx_data_type(plan));
    message_text(&m, 8, plan->name);
    if (location == NULL) {
        message_head(&m, 9, plan->bytes);
        return m;
    }
    onnx_put_place(&m, location, offset, plan->bytes);
    return m;
}

/* ---------------------------------------------------------------------------------------- nodes */

void onnx_put_attribute(struct message *node, const char *name, int64_t value)
{
    enum { INT = 2 };
    struct message m = {0};
    message_text(&m, 1, name);
    message_number(&m, 3, value);
    message_number(&m, 20, INT);
    message_part(node, 5, &m);
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
            message_text(&dim, 2, open[i]);
        else
            message_number(&dim, 1, shape[i]);
        message_part(&dims, 1, &dim);
    }
    message_number(&tensor, 1, 1);
    message_part(&tensor, 2, &dims);
    message_part(&type, 1, &tensor);
    message_text(&value, 1, full);
    message_part(&value, 2, &type);
    message_part(graph, field, &value);
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
    message_text(&m, 1, x);
    if (strcmp(p->kind, "MatMulNBits") == 0) {
        const int at = p->is_symmetric ? 2 : 3;
        message_text(&m, 1, t[0].name);
        message_text(&m, 1, t[1].name);
        if (!p->is_symmetric || p->has_order)
            message_text(&m, 1, p->is_symmetric ? "" : t[2].name);
        if (p->has_order)
            message_text(&m, 1, t[at].name);
        onnx_put_attribute(&m, "K", p->k);
        onnx_put_attribute(&m, "N", t[0].shape[0]);
        onnx_put_attribute(&m, "bits", p->bits);
        onnx_put_attribute(&m, "block_size", t[0].shape[2] * 8 / p->bits);
        message_text(&m, 7, "com.microsoft");
    } else {
        for (int i = 0; i < p->n_tensors; i++)
            message_text(&pair, 1, t[i].name);
        message_text(&pair, 2, w);
        message_text(&pair, 4, "DequantizeLinear");
        onnx_put_attribute(&pair, "axis", t[1].rank > 1);
        if (t[1].rank > 1)
            onnx_put_attribute(&pair, "block_size", p->group);
        message_part(nodes, 1, &pair);
        message_text(&m, 1, w);
        onnx_put_attribute(&m, t[0].rank == 4 ? "group" : "transB",
                           t[0].rank == 4 ? p->conv_groups : 1);
    }
    message_text(&m, 2, y);
    message_text(&m, 4,
                 strcmp(p->kind, "MatMulNBits") == 0 ? p->kind
                 : t[0].rank == 4                    ? "Conv"
                                                     : "Gemm");
    message_part(nodes, 1, &m);
    free(x);
    free(y);
    free(w);
}

/* ------------------------------------------------------------------------------------ the files */

/* Where everything of the result lies. */
struct places {
    const char *location; /* of external data; NULL: all is in the model */
    uint64_t tensors;     /* bytes of the graph that the new tensors take */
    uint64_t end;         /* of their data, where they are external */
};

static struct {
    struct whole model, data;
    const char *location;
    uint64_t offset;
} files;

static int put_tensor(struct export *e, struct piece *piece, int i, const qn_tensor *tensor)
{
    static const uint8_t zeros[64];
    const struct tensor_plan *plan = &piece->tensors[i];
    const uint64_t place = files.location == NULL ? files.offset : onnx_place(files.offset);
    struct message head = tensor_head(plan, files.location, place), key = {0};
    const size_t inside = files.location == NULL ? plan->bytes : 0;
    FILE *to = files.location == NULL ? files.model.file : files.data.file;
    message_head(&key, 5, head.size + inside);
    fwrite(key.data, 1, key.size, files.model.file);
    fwrite(head.data, 1, head.size, files.model.file);
    fwrite(zeros, 1, (size_t)(place - files.offset), to);
    fwrite(tensor->data, 1, plan->bytes, to);
    files.offset = place + plan->bytes;
    free(head.data);
    free(key.data);
    (void)e;
    return 0;
}

static struct places places_of(const struct export *e, const char *location)
{
    struct places p = {.location = location};
    for (int64_t i = 0; i < e->n_pieces; i++)
        for (int t = 0; t < e->pieces[i].n_tensors; t++) {
            const struct tensor_plan *plan = &e->pieces[i].tensors[t];
            const uint64_t place = location == NULL ? p.end : onnx_place(p.end);
            struct message head = tensor_head(plan, location, place), key = {0};
            const size_t inside = location == NULL ? plan->bytes : 0;
            message_head(&key, 5, head.size + inside);
            p.tensors += key.size + head.size + inside;
            p.end = place + plan->bytes;
            free(head.data);
            free(key.data);
        }
    return p;
}

/* data: the path of external data, if there are to be any. */
static struct places find_places(const struct export *e, const char *data)
{
    struct places p = places_of(e, NULL);
    const uint64_t beside = e->graph != NULL ? graph_bytes(e, NULL, 0) : 0;
    if (args_has(e->args, "external-data") || graph_is_external(e) ||
        p.tensors + beside > INT32_MAX - (1 << 24))
        p = places_of(e, strrchr(data, '/') + 1);
    return p;
}

static void put_opset(struct message *m, const char *domain, int64_t version)
{
    struct message opset = {0};
    if (domain[0] != '\0')
        message_text(&opset, 1, domain);
    message_number(&opset, 2, version);
    message_part(m, 8, &opset);
}

static int write_tensors(struct export *e)
{
    int status = 0;
    for (int64_t i = 0; i < e->n_pieces && status == 0; i++) {
        progress_what(&e->progress, e->pieces[i].name);
        status = is_stopped() ? EXIT_STOPPED : export_piece(e, &e->pieces[i], put_tensor);
        qn_checkpoint_forget(e->model, e->pieces[i].module);
        export_progress(e, i, status);
    }
    return status;
}

/* One node for each weight. */
static int write_nodes(struct export *e, uint64_t tensors)
{
    enum { IR_VERSION = 10, OPSET = 21 };
    struct message model = {0}, nodes = {0}, ends = {0};
    for (int64_t i = 0; i < e->n_pieces; i++)
        if (e->pieces[i].how == PIECE_EXPORT) {
            put_node(&nodes, &e->pieces[i]);
            put_values(&ends, &e->pieces[i]);
        }
    message_text(&nodes, 2, "quern");
    message_number(&model, 1, IR_VERSION);
    message_text(&model, 2, "quern");
    put_opset(&model, "", OPSET);
    put_opset(&model, "com.microsoft", 1);
    message_head(&model, 7, nodes.size + tensors + ends.size);
    fwrite(model.data, 1, model.size, files.model.file);
    fwrite(nodes.data, 1, nodes.size, files.model.file);
    const int status = write_tensors(e);
    fwrite(ends.data, 1, ends.size, files.model.file);
    free(model.data);
    free(nodes.data);
    free(ends.data);
    return status;
}

/* Among the nodes of another model. What cannot be written shows when the files end. */
static int write_graph(struct export *e, const struct places *p)
{
    const uint64_t beside = graph_bytes(e, p->location, p->end);
    graph_front(e, p->tensors + beside, files.model.file, 0);
    const int status = write_tensors(e);
    if (status == 0)
        graph_back(e, p->location, p->end, files.model.file, files.data.file, 0);
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
    const struct places places = find_places(e, data);
    memset(&files, 0, sizeof files);
    files.location = places.location;
    int reason = whole_begin(&files.model, path), status = 0;
    if (reason == 0 && files.location != NULL) {
        reason = whole_begin(&files.data, data);
        if (reason != 0)
            whole_end(&files.model, 0);
    }
    if (reason == 0) {
        status = e->graph != NULL ? write_graph(e, &places) : write_nodes(e, places.tensors);
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

int export_verify_onnx(struct export *e, const char *path)
{
    if (e->graph == NULL)
        return 0;
    char *beside = export_onnx_data(e);
    const struct places p = find_places(e, beside);
    FILE *model = fopen(path, "rb");
    FILE *data = p.location != NULL ? fopen(beside, "rb") : NULL;
    int is_same = model != NULL && (p.location == NULL || data != NULL);
    if (is_same)
        is_same = graph_front(e, p.tensors + graph_bytes(e, p.location, p.end), model, 1) &&
                  fseeko(model, (off_t)p.tensors, SEEK_CUR) == 0 &&
                  (data == NULL || fseeko(data, (off_t)p.end, SEEK_SET) == 0) &&
                  graph_back(e, p.location, p.end, model, data, 1) && fgetc(model) == EOF &&
                  (data == NULL || fgetc(data) == EOF);
    if (model != NULL)
        fclose(model);
    if (data != NULL)
        fclose(data);
    free(beside);
    return is_same ? 0
                   : complain(EXIT_DIFFERS, "the disk may be bad; run it again",
                              "%s: what was written is not what was read back", path);
}
