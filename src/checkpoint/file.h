/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an open file: a table of tensors and texts that the readers of each kind fill and
 * everything else reads. A file does not change after it was opened, so any number of threads may
 * use it. All memory a hostile file can make us use is a small multiple of the bytes it really has.
 */
#ifndef QNI_CHECKPOINT_FILE_H
#define QNI_CHECKPOINT_FILE_H

#include <quern/checkpoint.h>

#include "disk.h"
#include "graph.h"

/* A tensor of the file, checked: its bytes lie inside the mapping and its shape fits them. */
struct qni_entry {
    const char *name;
    const char *spelling; /* of the type, as the file has it */
    qn_dtype dtype;       /* QN_DTYPE_NONE: the library has no such type, or no such rank */
    int32_t rank;         /* as in the file, also above QN_MAX_RANK: then there is no shape */
    size_t offset, bytes; /* in the mapping */
    const uint8_t *decoded; /* NULL, or the bytes: the mapping has them in another form */
    int64_t shape[QN_MAX_RANK];
    bool is_fortran; /* the first dimension runs fastest */
};

struct qni_text {
    const char *key, *value;
    size_t array; /* GGUF: where in the mapping an array's type, count and elements begin; else 0 */
    size_t at;    /* GGUF: where the value begins */
    uint32_t type;
};

/* A tensor whose data lie in another file, as an ONNX graph declares it; the entry's offset and
 * bytes are places there. */
struct qni_external {
    struct qni_entry entry;
    const char *location; /* relative to the graph's folder; not checked */
    bool is_to_end;       /* no length is given */
};

struct qn_file {
    struct qni_allocator allocator;
    struct qni_mapping *mapping;
    char *path; /* that it was opened by, or NULL */
    size_t path_bytes;
    qn_file_kind kind;
    struct qni_entry *entries;
    size_t n_entries, entry_capacity;
    uint32_t *by_offset, *by_name; /* [n_entries] */
    struct qni_text *texts;        /* metadata */
    size_t n_texts, text_capacity;
    uint32_t *by_key;  /* [n_texts] */
    uint32_t *weights; /* [n_weights]: the texts that describe one */
    size_t n_weights;
    char *strings; /* what all names point into */
    size_t string_bytes;
    bool is_verified;  /* loads compare checksums: qn_file_set_verify(); */
    bool is_damaged;   /* then: the header is not what its checksum says */
    size_t data_start; /* safetensors and GGUF: where the data begins */
    uint8_t *decoded;  /* what the entries' decoded points into */
    size_t decoded_bytes;
    struct qni_external *externals;
    size_t n_externals, external_capacity;
    struct qni_link *links; /* of graphs */
    size_t n_links, link_capacity;
};

/* The bytes of a tensor. */
static inline const uint8_t *qni_entry_data(const qn_file *file, const struct qni_entry *e)
{
    return e->decoded != NULL ? e->decoded : file->mapping->bytes + e->offset;
}

/* The metadata of a key, or NULL. */
const struct qni_text *qni_metadata_find(const qn_file *file, const char *key);

/* Metadata keys that describe a quantized weight or packed weights: this and the name. */
#define QNI_WEIGHT_KEY "quern.weight."
#define QNI_PACKED_KEY "quern.packed."
/* The checksum of a tensor: 16 hexadecimal digits. */
#define QNI_SUM_KEY "quern.xxh64."
/* The checksum of the header with zeros for its own digits; and, so that its key cannot be lost
 * without being missed, that there is one. */
#define QNI_HEADER_SUM_KEY  "quern.header.xxh64"
#define QNI_HEADER_KEY      "quern.header"
#define QNI_HEADER_CHECKSUM "xxh64"
enum { QNI_SUM_DIGITS = 16 };

/* Before a tensor is loaded: if the file is one whose checksums are compared, its data and the
 * header, if that has a checksum, must be those that were written. QN_E_CORRUPT; QN_E_NOT_FOUND: it
 * has no checksum. */
qn_status qni_file_check_loaded(const qn_file *file, const qn_entry *entry, qn_error *err);

/* The readers: fill entries, texts and strings from file->mapping. */
qn_status qni_safetensors_read(qn_file *file, qn_error *err);
/* The check that needs the order of the data: no holes, no overlap, nothing left over. */
qn_status qni_safetensors_coverage(const qn_file *file, qn_error *err);
qn_status qni_npy_read(qn_file *file, qn_error *err);
qn_status qni_gguf_read(qn_file *file, qn_error *err);
qn_status qni_onnx_read(qn_file *file, qn_error *err);
/* Do the bytes begin as an ONNX model does? */
bool qni_onnx_is(const uint8_t *bytes, size_t size);
qn_status qni_mnn_read(qn_file *file, qn_error *err);
/* Are the bytes a flatbuffer with a list of operators where MNN has it? */
bool qni_mnn_is(const uint8_t *bytes, size_t size);
/* Fill a file that is mapped already with those of graph->externals from `first` on that lie where
 * the first does. @return QN_OK; QN_E_CORRUPT: a tensor leaves the file; QN_E_MEMORY. */
qn_status qni_onnx_fill_data(const qn_file *graph, size_t first, qn_file *file, qn_error *err);
/* Open that file: the path is where the location leads. @return as qn_file_open_path(). */
qn_status qni_file_open_data(const qn_ctx *ctx, const qn_file *graph, size_t first,
                             const char *path, const qn_file_options *options, qn_file **file,
                             qn_error *err);

/* Room for one more element in an array of the file or writer; the array may move. False: no
 * memory. */
bool qni_grow(const struct qni_allocator *a, void **array, size_t *capacity, size_t count,
              size_t element_bytes);

/* Order indices. before() is a strict order; equal elements must not exist. In place, no recursion,
 * no worst case: the order of a hostile file's names is the attacker's choice. */
typedef bool (*qni_before_fn)(const void *arg, uint32_t a, uint32_t b);
void qni_sort(uint32_t *indices, size_t count, qni_before_fn before, const void *arg);

/* The spelling that safetensors has for a type, or NULL; and the type of a spelling, QN_DTYPE_NONE
 * if the library has no such type. bits (may be NULL): of an element, 0 if the spelling is unknown.
 */
const char *qni_dtype_spelling(qn_dtype dtype);
qn_dtype qni_dtype_parse(const char *spelling, int32_t *bits);

/* A tensor view's strides from its shape. The product of the dimensions that are not 0 must fit. */
void qni_tensor_strides(qn_tensor *tensor, bool is_fortran);

/* A text of a file, fit for a sentence to a person: at most 80 bytes, no control characters. */
enum { QNI_SHOWN = 88 };
const char *qni_shown(char out[QNI_SHOWN], const char *text);
/* A path as it was given, likewise; of one of more than 240 bytes the end, which tells more. */
enum { QNI_SHOWN_PATH = 256 };
const char *qni_shown_path(char out[QNI_SHOWN_PATH], const char *path);

#endif
