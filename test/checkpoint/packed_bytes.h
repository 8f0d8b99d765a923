/* SPDX-License-Identifier: Apache-2.0 */
/* A file with packed weights as bytes in memory, which a test damages and loads. */
#ifndef TEST_CHECKPOINT_PACKED_BYTES_H
#define TEST_CHECKPOINT_PACKED_BYTES_H

#include "files.h"

#include "quant/packed.h"

/* A saved file as aligned memory: a mapping begins on a page, malloc does not. */
static inline uint8_t *saved_bytes(const qn_ctx *ctx, const char *spec, struct shape s,
                                   size_t *size, size_t *blob)
{
    const char *folder = folder_make(), *path = in(folder, "x"), *name = "w";
    qn_packed *packed = packed_make(ctx, spec, s, 9, NULL);
    qn_file *file = NULL;
    qn_entry entry;
    assert_ok(qn_packed_save(ctx, path, 1, &name, (const qn_packed *const *)&packed, 0, NULL));
    qn_packed_destroy(packed);
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    assert_ok(qn_file_find(file, "w.packed", &entry));
    *blob = (size_t)entry.offset;
    qn_file_close(file);
    uint8_t *bytes = file_bytes(path, size), *aligned = take(*size);
    memcpy(aligned, bytes, *size);
    free(bytes);
    folder_remove(folder);
    return aligned;
}

static inline qn_status try_load(const qn_ctx *ctx, const uint8_t *bytes, size_t size,
                                 qn_packed **packed, qn_error *err)
{
    qn_file *file = NULL;
    const qn_status opened = open_bytes(ctx, bytes, size, &file, err);
    if (opened != QN_OK)
        return opened;
    const qn_status status = qn_packed_load(ctx, file, "w", packed, err);
    assert_int_equal(status == QN_OK, *packed != NULL);
    qn_file_close(file);
    return status;
}

/* Replace the first `from` of a file's header by `to`, which is as long. */
static inline void edit_header(uint8_t *bytes, const char *from, const char *to)
{
    uint64_t length;
    assert_int_equal(strlen(from), strlen(to));
    memcpy(&length, bytes, sizeof length);
    for (size_t at = 8; at + strlen(from) <= 8 + length; at++)
        if (memcmp(bytes + at, from, strlen(from)) == 0) {
            memcpy(bytes + at, to, strlen(to));
            return;
        }
    fail_msg("the header has no %s", from);
}

/* Metadata that contradict nothing, for tests that change a head. */
static inline void hide_words(uint8_t *bytes)
{
    edit_header(bytes, "quern.packed.w", "quern.hidden.w");
}

#endif
