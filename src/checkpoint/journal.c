/* SPDX-License-Identifier: Apache-2.0 */
/* How a tensor gets into the part file. It is noted as complete after its data was given to the
 * system; that order is all a killed process needs, and the checksum covers the rest. */
#include <string.h>

#include "../base/error.h"
#include "writer.h"

/* ---- a tensor -------------------------------------------------------------------------------- */

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
    QNI_TRY(qni_output_write(sink->writer->output,
                             qni_slot_place(sink->writer, sink->slot) + sink->written, data, bytes,
                             err));
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
    sink->slot->done = qni_checksum_note(&sink->sum);
    return qni_journal_note(sink->writer, sink->slot, err);
}
