/* SPDX-License-Identifier: Apache-2.0 */
/* Going on where an earlier run ended: what its part file holds, whether it is of the same run -
 * the same declaration, made from the same facts - and which of its tensors can be believed. The
 * form of the file is described in writer.h and docs/formats.md. Nothing in it is trusted: somebody
 * else's file never gets here (disk.c), a damaged one costs what is damaged. */
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "writer.h"

struct note {      /* per tensor, in the order of declaration */
    uint64_t done; /* 0, or the checksum of its data */
    uint64_t item;
};
struct tail { /* the last bytes of the file */
    char magic[8];
    uint64_t journal_start, n_slots, n_items, facts_bytes;
    uint64_t header_sum, facts_sum;
    uint64_t tail_sum; /* of everything above */
};
static const char magic[8] = {'q', 'u', 'e', 'r', 'n', 'j', 'n', '3'};
enum { MOST_FACTS = 1 << 24 };

static uint64_t sum_of(const void *bytes, size_t size)
{
    struct qni_checksum sum;
    qni_checksum_start(&sum);
    qni_checksum_add(&sum, bytes, size);
    return qni_checksum_end(&sum);
}

static const char *our_facts(const qn_writer *writer)
{
    return writer->facts_bytes > 0 ? writer->facts : "";
}

static uint64_t facts_start(uint64_t journal_start, uint64_t n_slots)
{
    return journal_start + n_slots * sizeof(struct note);
}

static uint64_t tail_start(const struct tail *t)
{
    return qni_round_up(facts_start(t->journal_start, t->n_slots) + t->facts_bytes, 8);
}

static struct tail our_tail(const qn_writer *writer)
{
    struct tail t = {.journal_start = writer->journal_start,
                     .n_slots = writer->n_slots,
                     .n_items = writer->n_items,
                     .facts_bytes = writer->facts_bytes};
    memcpy(t.magic, magic, sizeof magic);
    t.header_sum = sum_of(writer->header, writer->header_bytes);
    t.facts_sum = sum_of(our_facts(writer), writer->facts_bytes);
    t.tail_sum = sum_of(&t, offsetof(struct tail, tail_sum));
    return t;
}

/* ---- facts ----------------------------------------------------------------------------------- */

/* The pair behind `at`, which ends before `end`; NULL: there is none. */
static const char *next_fact(const char *at, const char *end, const char **key, const char **value)
{
    const char *const key_end = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
    const char *const value_end =
        key_end != NULL ? memchr(key_end + 1, 0, (size_t)(end - key_end - 1)) : NULL;
    if (value_end == NULL)
        return NULL;
    *key = at;
    *value = key_end + 1;
    return value_end + 1;
}

static const char *find_fact(const char *facts, size_t bytes, const char *wanted)
{
    const char *key, *value;
    for (const char *at = facts; (at = next_fact(at, facts + bytes, &key, &value)) != NULL;)
        if (strcmp(key, wanted) == 0)
            return value;
    return NULL;
}

qn_status qn_writer_fingerprint(qn_writer *writer, const char *key, const char *value,
                                qn_error *err)
{
    char shown[QNI_SHOWN];
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_fingerprint", err));
    if (key == NULL || value == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_fingerprint: key or value is NULL");
    if (find_fact(our_facts(writer), writer->facts_bytes, key) != NULL)
        return qni_fail(err, QN_E_EXISTS, "the fingerprint has '%s' already",
                        qni_shown(shown, key));
    const size_t key_bytes = strlen(key) + 1, value_bytes = strlen(value) + 1;
    if (key_bytes > MOST_FACTS || value_bytes > MOST_FACTS ||
        writer->facts_bytes + key_bytes + value_bytes > MOST_FACTS)
        return qni_fail(err, QN_E_ARGUMENT, "a fingerprint of more than 16 MiB; give a digest");
    const size_t needed = writer->facts_bytes + key_bytes + value_bytes;
    if (needed > writer->facts_capacity) {
        const size_t capacity = 2 * needed;
        char *larger = qni_alloc(&writer->allocator, capacity);
        if (larger == NULL)
            return qni_fail(err, QN_E_MEMORY, "out of memory");
        if (writer->facts_bytes > 0)
            memcpy(larger, writer->facts, writer->facts_bytes);
        qni_free(&writer->allocator, writer->facts, writer->facts_capacity);
        writer->facts = larger;
        writer->facts_capacity = capacity;
    }
    memcpy(writer->facts + writer->facts_bytes, key, key_bytes);
    memcpy(writer->facts + writer->facts_bytes + key_bytes, value, value_bytes);
    writer->facts_bytes = needed;
    return QN_OK;
}

struct difference {
    const char *key, *found, *ours; /* NULL: there is no such fact */
    int count;
};

static void add_difference(struct difference *d, const char *key, const char *found,
                           const char *ours)
{
    if (d->count++ > 0)
        return;
    d->key = key;
    d->found = found;
    d->ours = ours;
}

static void compare_facts(const qn_writer *writer, const char *found, size_t found_bytes,
                          struct difference *d)
{
    const char *key, *value;
    const char *at = our_facts(writer), *end = at + writer->facts_bytes;
    while ((at = next_fact(at, end, &key, &value)) != NULL) {
        const char *const other = find_fact(found, found_bytes, key);
        if (other == NULL || strcmp(other, value) != 0)
            add_difference(d, key, other, value);
    }
    for (at = found; (at = next_fact(at, found + found_bytes, &key, &value)) != NULL;)
        if (find_fact(our_facts(writer), writer->facts_bytes, key) == NULL)
            add_difference(d, key, value, NULL);
}

static qn_status refuse(const qn_writer *writer, const struct difference *d, qn_error *err)
{
    char key[QNI_SHOWN], found[QNI_SHOWN], ours[QNI_SHOWN], more[32] = "";
    qni_shown(key, d->key);
    qni_shown(found, d->found != NULL ? d->found : "");
    qni_shown(ours, d->ours != NULL ? d->ours : "");
    const char *const quote[2] = {"", "'"};
    if (d->count > 1)
        snprintf(more, sizeof more, ", and %d more", d->count - 1);
    return qni_fail(err, QN_E_RESUME,
                    "its .part is of another run: %s was %s%s%s and is %s%s%s%s; %lld of %lld "
                    "tensors are done in it",
                    key, quote[d->found != NULL], d->found != NULL ? found : "not given",
                    quote[d->found != NULL], quote[d->ours != NULL],
                    d->ours != NULL ? ours : "not given", quote[d->ours != NULL], more,
                    (long long)writer->n_lost, (long long)writer->n_found);
}

/* Are the part file's facts ours? *is_known false: they cannot be read. */
static qn_status check_facts(qn_writer *writer, const struct tail *t, bool *is_known, qn_error *err)
{
    struct difference d = {NULL, NULL, NULL, 0};
    const size_t bytes = (size_t)t->facts_bytes;
    char *found = qni_alloc(&writer->allocator, bytes);
    if (found == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    *is_known = qni_output_read(writer->output, facts_start(t->journal_start, t->n_slots), found,
                                bytes, NULL) == QN_OK &&
                sum_of(found, bytes) == t->facts_sum;
    if (*is_known)
        compare_facts(writer, found, bytes, &d);
    const qn_status status = d.count > 0 ? refuse(writer, &d, err) : QN_OK;
    qni_free(&writer->allocator, found, bytes);
    return status;
}

/* ---- what is there --------------------------------------------------------------------------- */

/* The tail of any run's part file; false: it has none. */
static bool read_tail(qn_writer *writer, struct tail *t)
{
    const uint64_t size = (uint64_t)writer->output->found_bytes;
    if (size < sizeof *t || qni_output_read(writer->output, size - sizeof *t, t, sizeof *t, NULL))
        return false;
    return memcmp(t->magic, magic, sizeof magic) == 0 &&
           t->tail_sum == sum_of(t, offsetof(struct tail, tail_sum)) && t->journal_start <= size &&
           t->n_slots <= size / sizeof(struct note) && t->facts_bytes <= MOST_FACTS &&
           tail_start(t) + sizeof *t == size;
}

/* Tensors and weights that are noted as complete: all tensors of an item follow each other. */
static int64_t count_done(qn_writer *writer, const struct tail *t)
{
    struct note *const notes = (struct note *)(void *)writer->buffer;
    const uint64_t most = QNI_WRITER_BUFFER / sizeof *notes;
    uint64_t item = 0;
    int64_t done = 0;
    bool is_whole = false; /* no tensor of the item is missing so far */
    for (uint64_t first = 0; first < t->n_slots; first += most) {
        const uint64_t n = t->n_slots - first < most ? t->n_slots - first : most;
        if (qni_output_read(writer->output, t->journal_start + first * sizeof *notes, notes,
                            (size_t)n * sizeof *notes, NULL) != QN_OK)
            return done;
        for (uint64_t i = 0; i < n; i++) {
            const bool begins = first + i == 0 || notes[i].item != item;
            done += begins && is_whole;
            is_whole = (begins || is_whole) && notes[i].done != 0;
            item = notes[i].item;
        }
    }
    return done + is_whole;
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
        if (qni_output_read(writer->output, qni_slot_place(writer, slot) + at, writer->buffer, step,
                            NULL) != QN_OK)
            return false;
        qni_checksum_add(&sum, writer->buffer, step);
    }
    return qni_checksum_note(&sum) == noted;
}

static qn_status believe_slots(qn_writer *writer, qn_error *err)
{
    for (size_t i = 0; i < writer->n_slots; i++) {
        struct qni_slot *slot = &writer->slots[i];
        struct note note;
        QNI_TRY(qni_output_read(writer->output, writer->journal_start + i * sizeof note, &note,
                                sizeof note, err));
        slot->done = note.done != 0 && is_intact(writer, slot, note.done) ? note.done : 0;
    }
    for (size_t i = 0; i < writer->n_items; i++)
        writer->n_lost -= qn_writer_is_done(writer, (int64_t)i);
    return QN_OK;
}

qn_status qni_journal_look(qn_writer *writer, int32_t resume, bool *is_same, qn_error *err)
{
    const struct tail ours = our_tail(writer);
    struct tail found;
    *is_same = false;
    writer->part_bytes = tail_start(&ours) + sizeof ours;
    writer->n_lost = 0;
    writer->n_found = writer->output->found_bytes > 0 || writer->output->was_replaced ? -1 : 0;
    for (size_t i = 0; i < writer->n_slots; i++)
        writer->slots[i].done = 0;
    if (!read_tail(writer, &found))
        return QN_OK;
    bool is_known = true;
    writer->n_found = (int64_t)found.n_items;
    writer->n_lost = count_done(writer, &found);
    if (!resume)
        return QN_OK;
    QNI_TRY(check_facts(writer, &found, &is_known, err));
    if (!is_known || memcmp(&found, &ours, sizeof found) != 0 || !has_our_header(writer))
        return QN_OK;
    *is_same = true;
    return believe_slots(writer, err);
}

qn_status qn_writer_discarded(const qn_writer *writer, int64_t *done, int64_t *all)
{
    if (writer == NULL || done == NULL || all == NULL || writer->output == NULL)
        return QN_E_ARGUMENT;
    *done = writer->n_lost;
    *all = writer->n_found;
    return QN_OK;
}

/* ---- our own --------------------------------------------------------------------------------- */

qn_status qni_journal_note(qn_writer *writer, const struct qni_slot *slot, qn_error *err)
{
    const uint64_t at =
        writer->journal_start + (uint64_t)(slot - writer->slots) * sizeof(struct note);
    return qni_output_write(writer->output, at, &slot->done, sizeof slot->done, err);
}

/* The tail goes last: what has one has everything before it. */
static qn_status write_journal(qn_writer *writer, qn_error *err)
{
    const struct tail tail = our_tail(writer);
    struct note *const notes = (struct note *)(void *)writer->buffer;
    const size_t most = QNI_WRITER_BUFFER / sizeof *notes;
    for (size_t first = 0, item = 0; first < writer->n_slots; first += most) {
        const size_t n = writer->n_slots - first < most ? writer->n_slots - first : most;
        for (size_t i = 0; i < n; i++) { /* tensors follow each other as their items do */
            const size_t slot = first + i;
            while (slot >= writer->items[item].slot + writer->items[item].n_slots)
                item++;
            notes[i] = (struct note){writer->slots[slot].done, item};
        }
        QNI_TRY(qni_output_write(writer->output, writer->journal_start + first * sizeof *notes,
                                 notes, n * sizeof *notes, err));
    }
    QNI_TRY(qni_output_write(writer->output, facts_start(writer->journal_start, writer->n_slots),
                             our_facts(writer), writer->facts_bytes, err));
    return qni_output_write(writer->output, tail_start(&tail), &tail, sizeof tail, err);
}

qn_status qni_journal_start(qn_writer *writer, qn_error *err)
{
    for (size_t i = 0; i < writer->n_slots; i++)
        writer->slots[i].done = 0;
    QNI_TRY(qni_output_renew(writer->output, err));
    QNI_TRY(qni_output_claim(writer->output, writer->part_bytes, err));
    QNI_TRY(qni_output_write(writer->output, 0, writer->header, writer->header_bytes, err));
    return write_journal(writer, err);
}

void qni_journal_restore(qn_writer *writer)
{
    if (qni_output_cut(writer->output, writer->part_bytes, NULL) == QN_OK &&
        qni_output_write(writer->output, 0, writer->header, writer->header_bytes, NULL) == QN_OK)
        (void)write_journal(writer, NULL);
}
