/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a writer. An item is what the caller counts by index: a tensor, or a quantized
 * weight of several tensors. Tensors keep the order of declaration but for their alignment:
 * packed weights come first, then larger elements, so that everything is aligned behind a header
 * that ends at a multiple of 64 although the format allows no gaps.
 *
 * The part file: header and data as they will be, then the journal: per tensor a checksum, 0 until
 * the tensor is completely written; the facts that the run depends on (qn_writer_fingerprint); a
 * tail that tells where all this is. A resumed run believes a checksum only after reading the data
 * again, so a power failure that lost some of it costs that tensor and nothing else. The journal is
 * cut off before the file gets its name; a part file without one is never believed. */
#ifndef QNI_CHECKPOINT_WRITER_H
#define QNI_CHECKPOINT_WRITER_H

#include <quern/checkpoint.h>

#include "../base/checksum.h"
#include "disk.h"
#include "file.h"
#include "gguf.h"

enum { QNI_WRITER_BUFFER = 1 << 20, QNI_DATA_ALIGNMENT = 64, QNI_HEADER_LIMIT = 100000000 };

struct qni_slot { /* a tensor */
    size_t name;  /* in texts */
    qn_dtype dtype;
    int32_t rank;
    int64_t shape[QN_MAX_RANK];
    size_t bytes;
    size_t alignment; /* of its data: an element's bytes, or QNI_DATA_ALIGNMENT; divides bytes */
    uint64_t offset;  /* in the data, known from begin on */
    uint64_t done;    /* 0, or the checksum of what was written */
    size_t sum_at;    /* where the header has room for it, known from begin on; 0: it has none */
    const struct qni_ggml_type *block; /* of a GGUF file: shape counts bytes, this elements: */
    int32_t block_rank;
    int64_t block_shape[QN_MAX_RANK];
};

/* What a weight was declared as; the tensors follow each other in this order. */
struct qni_weight_plan {
    qn_format format;
    int64_t n, k, n_groups;
    int32_t kh, kw, conv_groups;
    qn_dtype scale_dtype, zero_dtype, offset_dtype; /* as stored; NONE: no such tensor */
    bool has_perm, has_prescale, has_table;
    bool has_supers; /* scales (and minima) in two levels, instead of their products */
};

struct qni_item {
    uint32_t slot, n_slots;
    bool is_weight;
    struct qni_weight_plan plan;
};

/* A set of texts by their places in qn_writer.texts; 0 marks an empty cell, so places count from 1.
 */
struct qni_names {
    size_t *cells;
    size_t capacity, count;
};

struct qn_writer {
    struct qni_allocator allocator;
    char *path;
    size_t path_bytes;
    char *texts;
    size_t texts_used, texts_capacity;
    struct qni_slot *slots;
    size_t n_slots, slot_capacity;
    struct qni_item *items;
    size_t n_items, item_capacity;
    struct qni_pair {
        size_t key, value;
    } * pairs; /* metadata */
    size_t n_pairs, pair_capacity;
    struct qni_names tensor_names, keys;
    qn_file_kind kind;
    struct qni_value { /* metadata of a GGUF file */
        size_t key;
        int32_t type;
        size_t at, bytes; /* in values_data */
    } * values;
    size_t n_values, value_capacity;
    uint8_t *values_data;
    size_t values_bytes, values_capacity;
    char *facts; /* of qn_writer_fingerprint(): key, 0, value, 0, ... */
    size_t facts_bytes, facts_capacity;
    /* From begin on. */
    struct qni_output *output;
    char *header;
    size_t header_bytes; /* with the length in front; a multiple of QNI_DATA_ALIGNMENT */
    size_t header_sum_at; /* its own checksum, as of sum_at */
    uint64_t file_bytes, journal_start, part_bytes;
    int64_t n_lost, n_found; /* of qn_writer_discarded() */
    uint8_t *buffer;         /* [QNI_WRITER_BUFFER] */
};

/* A tensor being written piece by piece, through the writer's buffer. */
struct qni_sink {
    qn_writer *writer;
    struct qni_slot *slot;
    uint64_t written;
    size_t used; /* of the buffer */
    struct qni_checksum sum;
};

/* Is the writer there and (not) begun? */
qn_status qni_writer_expect(const qn_writer *writer, bool begun, const char *call, qn_error *err);
/* Declare one tensor. The caller has checked its own arguments. */
qn_status qni_writer_declare(qn_writer *writer, const char *name, qn_dtype dtype, int32_t rank,
                             const int64_t *shape, qn_error *err);
/* Is the name free and usable? */
qn_status qni_writer_check_name(const qn_writer *writer, const char *name, qn_error *err);
/* Make an item of the last n_slots tensors. */
qn_status qni_writer_add_item(qn_writer *writer, size_t n_slots, const struct qni_weight_plan *plan,
                              int64_t *index, qn_error *err);
/* Forget tensors and metadata declared since; for declarations of several that fail half way. */
void qni_writer_rewind(qn_writer *writer, size_t n_slots, size_t n_pairs);

/* qn_writer_finish() that may also leave nothing behind when it fails. */
qn_status qni_writer_finish(qn_writer *writer, int32_t keep_part, qn_error *err);

/* Places of all tensors, and the header's text, with zeros for checksums. */
qn_status qni_writer_layout(qn_writer *writer, qn_error *err);
/* Lays out a GGUF file, which has no checksums (gguf_header.c). */
qn_status qni_gguf_layout(qn_writer *writer, qn_error *err);
/* Keep a key; its place in texts. 0: no memory. */
size_t qni_writer_keep_key(qn_writer *writer, const char *key);
bool qni_writer_has_key(const qn_writer *writer, const char *key);
/* All tensors are written: the header gets their checksums, in the file only. */
qn_status qni_writer_put_sums(qn_writer *writer, qn_error *err);

/* Begin a tensor: from here on it counts as not written. */
qn_status qni_sink_open(struct qni_sink *sink, qn_writer *writer, struct qni_slot *slot,
                        qn_error *err);
/* Room for bytes (at most QNI_WRITER_BUFFER) in the buffer, which the caller fills; NULL on
 * failure. */
uint8_t *qni_sink_room(struct qni_sink *sink, size_t bytes, qn_error *err);
/* Straight from the caller's memory, without the buffer. */
qn_status qni_sink_put(struct qni_sink *sink, const void *data, size_t bytes, qn_error *err);
/* The tensor is complete: note it in the journal. */
qn_status qni_sink_close(struct qni_sink *sink, qn_error *err);

/* The journal (resume.c). look: what an earlier run left, and can it be continued? slots that are
 * complete are then marked. QN_E_RESUME: the facts differ. start: a part file of our own, with
 * header and an empty journal. restore: the journal that was cut off again, as far as possible. */
qn_status qni_journal_look(qn_writer *writer, int32_t resume, bool *is_same, qn_error *err);
qn_status qni_journal_start(qn_writer *writer, qn_error *err);
void qni_journal_restore(qn_writer *writer);
qn_status qni_journal_note(qn_writer *writer, const struct qni_slot *slot, qn_error *err);

/* Where the data of a tensor begins. */
static inline uint64_t qni_slot_place(const qn_writer *writer, const struct qni_slot *slot)
{
    return writer->header_bytes + slot->offset;
}

#endif
