/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file: where every tensor goes and the JSON that says so. The same
 * declaration gives the same bytes, which is how a resumed run recognises its part file. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "writer.h"

/* Text that is counted first and written by a second walk. */
struct text {
    char *out; /* NULL: only count */
    size_t used;
};

static void put(struct text *t, const char *from, size_t bytes)
{
    if (t->out != NULL)
        memcpy(t->out + t->used, from, bytes);
    t->used += bytes;
}

static void put_plain(struct text *t, const char *from)
{
    put(t, from, strlen(from));
}

static void put_number(struct text *t, uint64_t number)
{
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, number);
    put(t, digits, (size_t)length);
}

static void put_escaped(struct text *t, const char *from)
{
    for (; *from != 0; from++) {
        char escaped[8];
        if (*from == '"' || *from == '\\') {
            put(t, "\\", 1);
            put(t, from, 1);
        } else if ((unsigned char)*from < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)*from);
            put(t, escaped, 6);
        } else {
            put(t, from, 1);
        }
    }
}

static void put_quoted(struct text *t, const char *from)
{
    put(t, "\"", 1);
    put_escaped(t, from);
    put(t, "\"", 1);
}

static void put_tensor(struct text *t, const char *texts, const struct qni_slot *slot)
{
    put_quoted(t, texts + slot->name);
    put_plain(t, ":{\"dtype\":\"");
    put_plain(t, qni_dtype_spelling(slot->dtype));
    put_plain(t, "\",\"shape\":[");
    for (int32_t i = 0; i < slot->rank; i++) {
        put_plain(t, i == 0 ? "" : ",");
        put_number(t, (uint64_t)slot->shape[i]);
    }
    put_plain(t, "],\"data_offsets\":[");
    put_number(t, slot->offset);
    put_plain(t, ",");
    put_number(t, slot->offset + slot->bytes);
    put_plain(t, "]}");
}

static const size_t alignments[] = {QNI_DATA_ALIGNMENT, 8, 4, 2, 1};
enum { N_ALIGNMENTS = 5 };

/* Files with weights say what the checksums of all their tensors are; a file of plain tensors has
 * nothing in it that others do not know. */
static bool has_sums(const qn_writer *writer)
{
    if (writer->kind == QN_FILE_GGUF)
        return false;
    for (size_t i = 0; i < writer->n_items; i++)
        if (writer->items[i].is_weight ||
            writer->slots[writer->items[i].slot].alignment == QNI_DATA_ALIGNMENT)
            return true;
    return false;
}

static const char zeros[] = "0000000000000000";

/* The numbers are not known before the data; zeros keep their places. */
static void put_sum_keys(struct text *t, qn_writer *writer)
{
    for (size_t i = 0; i < writer->n_slots; i++) {
        put_plain(t, i == 0 && writer->n_pairs == 0 ? "\"" QNI_SUM_KEY : ",\"" QNI_SUM_KEY);
        put_escaped(t, writer->texts + writer->slots[i].name);
        put_plain(t, "\":\"");
        writer->slots[i].sum_at = 8 + t->used;
        put_plain(t, zeros);
        put(t, "\"", 1);
    }
    put_plain(t, ",\"" QNI_HEADER_KEY "\":\"" QNI_HEADER_CHECKSUM "\",\"" QNI_HEADER_SUM_KEY
                 "\":\"");
    writer->header_sum_at = 8 + t->used;
    put_plain(t, zeros);
    put(t, "\"", 1);
}

static void put_digits(qn_writer *writer, size_t at, uint64_t sum)
{
    char digits[QNI_SUM_DIGITS + 1];
    snprintf(digits, sizeof digits, "%016" PRIx64, sum);
    memcpy(writer->header + at, digits, QNI_SUM_DIGITS);
}

qn_status qni_writer_put_sums(qn_writer *writer, qn_error *err)
{
    struct qni_checksum sum;
    if (!has_sums(writer))
        return QN_OK;
    for (size_t i = 0; i < writer->n_slots; i++)
        put_digits(writer, writer->slots[i].sum_at, writer->slots[i].done);
    qni_checksum_start(&sum);
    qni_checksum_add(&sum, writer->header, writer->header_bytes);
    put_digits(writer, writer->header_sum_at, qni_checksum_note(&sum));
    const qn_status status =
        qni_output_write(writer->output, 0, writer->header, writer->header_bytes, err);
    /* Ours stays the one that a run recognises its part file by. */
    for (size_t i = 0; i < writer->n_slots; i++)
        memcpy(writer->header + writer->slots[i].sum_at, zeros, QNI_SUM_DIGITS);
    memcpy(writer->header + writer->header_sum_at, zeros, QNI_SUM_DIGITS);
    return status;
}

static void put_header(struct text *t, qn_writer *writer)
{
    const bool with_sums = has_sums(writer);
    bool is_first = writer->n_pairs == 0 && !with_sums;
    put(t, "{", 1);
    if (!is_first) {
        put_plain(t, "\"__metadata__\":{");
        for (size_t i = 0; i < writer->n_pairs; i++) {
            put_plain(t, i == 0 ? "" : ",");
            put_quoted(t, writer->texts + writer->pairs[i].key);
            put(t, ":", 1);
            put_quoted(t, writer->texts + writer->pairs[i].value);
        }
        if (with_sums)
            put_sum_keys(t, writer);
        put(t, "}", 1);
    }
    for (int s = 0; s < N_ALIGNMENTS; s++)
        for (size_t i = 0; i < writer->n_slots; i++) {
            if (writer->slots[i].alignment != alignments[s])
                continue;
            put_plain(t, is_first ? "" : ",");
            is_first = false;
            put_tensor(t, writer->texts, &writer->slots[i]);
        }
    put(t, "}", 1);
}

/* A gapless file is aligned throughout if alignments get smaller on the way. */
static qn_status place_slots(qn_writer *writer, uint64_t *data_bytes, qn_error *err)
{
    *data_bytes = 0;
    for (int s = 0; s < N_ALIGNMENTS; s++)
        for (size_t i = 0; i < writer->n_slots; i++) {
            struct qni_slot *slot = &writer->slots[i];
            if (slot->alignment != alignments[s])
                continue;
            slot->offset = *data_bytes;
            *data_bytes += slot->bytes;
            if (*data_bytes < slot->bytes || *data_bytes > INT64_MAX / 2)
                return qni_fail(err, QN_E_ARGUMENT, "the tensors together are larger than 2^62");
        }
    return QN_OK;
}

qn_status qni_writer_layout(qn_writer *writer, qn_error *err)
{
    uint64_t data_bytes;
    struct text t = {NULL, 0};
    QNI_TRY(place_slots(writer, &data_bytes, err));
    put_header(&t, writer);
    const size_t size = qni_round_up(8 + t.used, QNI_DATA_ALIGNMENT);
    if (size - 8 > QNI_HEADER_LIMIT)
        return qni_fail(err, QN_E_ARGUMENT, "a header of %llu bytes; the format allows 100000000",
                        (unsigned long long)t.used);
    qni_free(&writer->allocator, writer->header, writer->header_bytes);
    writer->header_bytes = size;
    writer->header = qni_alloc(&writer->allocator, size);
    if (writer->header == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    const uint64_t length = size - 8;
    memcpy(writer->header, &length, sizeof length);
    memset(writer->header + 8, ' ', size - 8);
    t = (struct text){writer->header + 8, 0};
    put_header(&t, writer);
    writer->file_bytes = size + data_bytes;
    writer->journal_start = qni_round_up(writer->file_bytes, QNI_DATA_ALIGNMENT);
    return QN_OK;
}
