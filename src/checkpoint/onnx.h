/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of the ONNX reader share: tables of the graph's tensors and nodes, spans into
 * the file, which live only while it is opened. onnx.c reads messages and makes the file's tensors;
 * onnx_graph.c finds out which nodes use which of them as weights. */
#ifndef QNI_CHECKPOINT_ONNX_H
#define QNI_CHECKPOINT_ONNX_H

#include "file.h"
#include "proto.h"

struct qni_onnx_type {
    const char *spelling;
    int32_t bits; /* of an element; 0: no numbers */
    qn_dtype dtype;
    uint32_t field; /* that has the values where raw_data is absent */
};
/* NULL: TensorProto has no such data type. */
const struct qni_onnx_type *qni_onnx_type(uint64_t data_type);

struct qni_onnx_tensor {
    struct qni_span name, message, raw, location;
    const struct qni_onnx_type *type;
    int32_t rank;
    int64_t shape[QN_MAX_RANK];
    uint64_t bytes; /* of its elements */
    uint64_t offset, length;
    bool has_raw, is_external, has_length;
    bool is_decoded; /* its values are numbers of the message that memory has otherwise */
};

struct qni_onnx_node {
    struct qni_span message, op, domain, name;
    uint32_t input, n_inputs, output, n_outputs; /* runs of values */
};

struct qni_onnx_value { /* an input or output of a node */
    struct qni_span name;
    uint32_t node, place;
};

/* A link whose texts are still spans; size 0: none. */
struct qni_onnx_draft {
    struct qni_link link;
    uint32_t node, head; /* of tensors */
    struct qni_span part[QNI_LINK_PARTS], bias;
    bool is_plain_name; /* called as its tensor is */
};

struct qni_onnx {
    struct qni_allocator allocator;
    const uint8_t *bytes;
    struct qni_onnx_tensor *tensors;
    struct qni_onnx_node *nodes;
    struct qni_onnx_value *inputs, *outputs;
    struct qni_onnx_draft *drafts;
    size_t n_tensors, n_nodes, n_inputs, n_outputs, n_drafts;
    size_t tensor_capacity, node_capacity, input_capacity, output_capacity, draft_capacity;
    uint32_t *tensors_by_name, *inputs_by_name, *outputs_by_name;
};

/* Fill in drafts. @return QN_OK; QN_E_MEMORY. */
qn_status qni_onnx_link(struct qni_onnx *x, qn_error *err);
/* The tensor of a name, or -1. */
int64_t qni_onnx_find_text(const struct qni_onnx *x, const char *name);
/* The bytes that the texts of a draft need at the most: its parts' names, and what these two write:
 * the name of its module, and what uses it. Both return the bytes used, ends included. */
size_t qni_onnx_text_bytes(const struct qni_onnx *x, const struct qni_onnx_draft *d);
size_t qni_onnx_name(const struct qni_onnx *x, const struct qni_onnx_draft *d, char *out);
size_t qni_onnx_describe(const struct qni_onnx *x, const struct qni_onnx_draft *d, char *out);

#endif
