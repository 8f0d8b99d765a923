/* SPDX-License-Identifier: Apache-2.0 */
/* The part file: how it is laid out, how a tensor gets into it, and how a later run finds out what
 * is already there. The form is described in writer.h. A tensor is noted as complete after its data
 * was given to the system; that order is all a killed process needs, and the checksum covers the
 * rest. */
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "writer.h"

/* A note of 0 says that a tensor is not there. */
static uint64_t note_of(const struct qni_checksum *sum)
{
    const uint64_t x = qni_checksum_end(sum);
    return x != 0 ? x : 1;
}

/* ---- a tensor -------------------------------------------------------------------------------- */

static uint64_t place(const qn_writer *writer, const struct qni_slot *slot)
{
    return writer->header_bytes + slot->offset;
}

qn_status qni_sink_open(struct qni_sink *sink, qn_writer *writer, struct qni_slot *slot,
                        qn_error *err)
{
    sink->writer = writer;
    sink->slot = slot;
    sink->written = 0;
    sink->used = 0;
    qni_checksum_start(&sink->sum);
    if (slot->done == 0)
        return QN_OK;
    slot->done = 0;
    return qni_journal_note(writer, slot, err);
}

static qn_status write_out(struct qni_sink *sink, const void *data, size_t bytes, qn_error *err)
{
    /* The last bytes of one tensor are the first of the next: never one too many. */
    if (bytes > sink->slot->bytes - sink->written)
        return qni_fail(err, QN_E_ARGUMENT, "more bytes than the tensor was declared with");
    QNI_TRY(qni_output_write(sink->writer->output, place(sink->writer, sink->slot) + sink->written,
                             data, bytes, err));
    qni_checksum_add(&sink->sum, data, bytes);
    sink->written += bytes;
    return QN_OK;
}

static qn_status flush(struct qni_sink *sink, qn_error *err)
{
    const size_t used = sink->used;
    sink->used = 0;
    return write_out(sink, sink->writer->buffer, used, err);
}

uint8_t *qni_sink_room(struct qni_sink *sink, size_t bytes, qn_error *err)
{
    if (sink->used + bytes > QNI_WRITER_BUFFER && flush(sink, err) != QN_OK)
        return NULL;
    uint8_t *room = sink->writer->buffer + sink->used;
    sink->used += bytes;
    return room;
}

qn_status qni_sink_put(struct qni_sink *sink, const void *data, size_t bytes, qn_error *err)
{
    /* In pieces that stay in a cache between the write and the checksum. */
    QNI_TRY(flush(sink, err));
    for (size_t at = 0; at < bytes; at += QNI_WRITER_BUFFER) {
        const size_t step = bytes - at < QNI_WRITER_BUFFER ? bytes - at : QNI_WRITER_BUFFER;
        QNI_TRY(write_out(sink, (const uint8_t *)data + at, step, err));
    }
    return QN_OK;
}

qn_status qni_sink_close(struct qni_sink *sink, qn_error *err)
{
    QNI_TRY(flush(sink, err));
    if (sink->written != sink->slot->bytes)
        return qni_fail(err, QN_E_ARGUMENT, "fewer bytes than the tensor was declared with");
    sink->slot->done = note_of(&sink->sum);
    return qni_journal_note(sink->writer, sink->slot, err);
}

/* ---- the journal ----------------------------------------------------------------------------- */

struct journal_head {
    char magic[8]; /* "quernjn2" */
    uint64_t count;
    uint64_t header_sum;
    uint64_t reserved[5];
};

static struct journal_head expected_head(const qn_writer *writer)
{
    struct journal_head head;
    struct qni_checksum sum;
    qni_checksum_start(&sum);
    qni_checksum_add(&sum, writer->header, writer->header_bytes);
    memset(&head, 0, sizeof head);
    memcpy(head.magic, "quernjn2", sizeof head.magic);
    head.count = writer->n_slots;
    head.header_sum = qni_checksum_end(&sum);
    return head;
}

qn_status qni_journal_note(qn_writer *writer, const struct qni_slot *slot, qn_error *err)
{
    const uint64_t at = writer->journal_start + sizeof(struct journal_head) +
                        (uint64_t)(slot - writer->slots) * sizeof slot->done;
    return qni_output_write(writer->output, at, &slot->done, sizeof slot->done, err);
}

/* The head goes last: what has one has everything before it. */
qn_status qni_journal_start(qn_writer *writer, qn_error *err)
{
    const struct journal_head head = expected_head(writer);
    for (size_t i = 0; i < writer->n_slots; i++)
        writer->slots[i].done = 0;
    QNI_TRY(qni_output_cut(writer->output, 0, err));
    QNI_TRY(qni_output_claim(writer->output, writer->part_bytes, err)); /* notes are zeros now */
    QNI_TRY(qni_output_write(writer->output, 0, writer->header, writer->header_bytes, err));
    return qni_output_write(writer->output, writer->journal_start, &head, sizeof head, err);
}

/* Is the file's header ours, byte for byte? */
static bool has_our_header(qn_writer *writer)
{
    for (size_t at = 0; at < writer->header_bytes; at += QNI_WRITER_BUFFER) {
        const size_t left = writer->header_bytes - at;
        const size_t step = left < QNI_WRITER_BUFFER ? left : QNI_WRITER_BUFFER;
        if (qni_output_read(writer->output, at, writer->buffer, step, NULL) != QN_OK ||
            memcmp(writer->buffer, writer->header + at, step) != 0)
            return false;
    }
    return true;
}

static bool is_intact(qn_writer *writer, const struct qni_slot *slot, uint64_t noted)
{
    struct qni_checksum sum;
    qni_checksum_start(&sum);
    for (size_t at = 0; at < slot->bytes; at += QNI_WRITER_BUFFER) {
        const size_t left = slot->bytes - at;
        const size_t step = left < QNI_WRITER_BUFFER ? left : QNI_WRITER_BUFFER;
        if (qni_output_read(writer->output, place(writer, slot) + at, writer->buffer, step, NULL) !=
            QN_OK)
            return false;
        qni_checksum_add(&sum, writer->buffer, step);
    }
    return note_of(&sum) == noted;
}

qn_status qni_journal_resume(qn_writer *writer, bool *is_same, qn_error *err)
{
    const struct journal_head head = expected_head(writer);
    struct journal_head found;
    const uint64_t size = (uint64_t)writer->output->found_bytes;
    *is_same = false;
    if (size != writer->part_bytes && size != writer->file_bytes)
        return QN_OK;
    if (!has_our_header(writer))
        return QN_OK;
    /* Without its journal a part file was interrupted between being finished and getting its name.
     */
    const bool is_finished = size == writer->file_bytes;
    if (!is_finished && (qni_output_read(writer->output, writer->journal_start, &found,
                                         sizeof found, NULL) != QN_OK ||
                         memcmp(&found, &head, sizeof head) != 0))
        return QN_OK;
    for (size_t i = 0; i < writer->n_slots; i++) {
        struct qni_slot *slot = &writer->slots[i];
        uint64_t noted = 0;
        if (is_finished) {
            slot->done = 1;
            continue;
        }
        QNI_TRY(qni_output_read(writer->output,
                                writer->journal_start + sizeof head + i * sizeof noted, &noted,
                                sizeof noted, err));
        slot->done = noted != 0 && is_intact(writer, slot, noted) ? noted : 0;
    }
    /* Should somebody rewrite a tensor of a file without journal, the note makes the file longer
     * than it is now but gives it no journal's head, so that an interruption costs everything and
     * risks nothing. */
    *is_same = true;
    return QN_OK;
}
