/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers and writers need of the operating system: a file mapped for reading, shared by
 * everything that still looks at it, and an output that becomes visible under its name only when it
 * is complete. disk.c is the only file of the library that maps files (base/file.c opens them).
 *
 * Somebody who truncates a file while it is mapped makes reads of the lost part fail with SIGBUS;
 * no program can prevent that, and the library installs no signal handler. quern's own writers
 * never do it: they replace files, they do not change them. */
#ifndef QNI_CHECKPOINT_DISK_H
#define QNI_CHECKPOINT_DISK_H

#include <quern/checkpoint.h>

#include "../base/alloc.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* The bytes of a file with a reference count (atomic: holders may live in different threads). */
struct qni_mapping {
    struct qni_allocator allocator;
    const uint8_t *bytes;
    size_t size;
    const uint8_t *pages; /* mapped, from a page on; NULL: the bytes are the caller's */
    size_t pages_bytes;
    int32_t references;
    int32_t is_locked;
    qn_release_fn release; /* of the caller's bytes; NULL: nobody wants to know */
    void *release_arg;
};

/* The part of a file that the options name. fd stays open. @return QN_OK; QN_E_OPEN; QN_E_READ;
 * QN_E_ARGUMENT: the part leaves the file; QN_E_MEMORY. The sentence does not name the file. */
qn_status qni_mapping_open(const struct qni_allocator *a, int fd, const qn_file_options *options,
                           struct qni_mapping **mapping, qn_error *err);
/* Opens the path, maps what the options name of it, and closes it. Same statuses. */
qn_status qni_mapping_open_path(const struct qni_allocator *a, const char *path,
                                const qn_file_options *options, struct qni_mapping **mapping,
                                qn_error *err);
/* A mapping of memory that belongs to somebody else and outlives it. */
qn_status qni_mapping_borrow(const struct qni_allocator *a, const void *bytes, size_t size,
                             const qn_file_options *options, struct qni_mapping **mapping,
                             qn_error *err);
struct qni_mapping *qni_mapping_retain(struct qni_mapping *mapping);
/* NULL is legal. */
void qni_mapping_release(struct qni_mapping *mapping);
/* The whole pages in [offset, offset + bytes) may leave memory; they are read again when touched.
 */
void qni_mapping_forget(const struct qni_mapping *mapping, size_t offset, size_t bytes);

/* The pages that hold [offset, offset + bytes) are read ahead, if the system likes. */
void qni_mapping_prefetch(const struct qni_mapping *mapping, size_t offset, size_t bytes);
/* From here on (is_sampled 0: no longer) a few bytes are read here and there, and what lies around
 * them need not be fetched with them: on a large file that is not in memory each place else costs
 * megabytes. */
void qni_mapping_sample(const struct qni_mapping *mapping, bool is_sampled);

/* ---- writing --------------------------------------------------------------------------------- */

/* "<path>.part", opened and locked, on its way to `path`. */
struct qni_output {
    struct qni_allocator allocator;
    char *path, *part; /* both in one allocation */
    size_t text_bytes;
    int fd;
    int32_t overwrite, is_found;
    int32_t was_replaced; /* what was found could not be ours */
    int64_t found_bytes; /* what an earlier run left: its size, 0 if there was none */
};

/* qn_output_check(); the sentence does not name the path. */
qn_status qni_output_check(const struct qni_allocator *a, const char *path, int32_t overwrite,
                           qn_error *err);
/*
 * Open the part file, with what an earlier run left in it, or a new one. Only one process at a time
 * can have it. It belongs to us, nobody else may write to it, and it has one name.
 * @return QN_OK; QN_E_EXISTS: path exists and overwrite is 0; QN_E_OPEN; QN_E_MEMORY.
 */
qn_status qni_output_open(const struct qni_allocator *a, const char *path, int32_t overwrite,
                          struct qni_output **output, qn_error *err);
/* What an earlier run left goes: the part file is a new, empty one. @return QN_OK; QN_E_OPEN. */
qn_status qni_output_renew(struct qni_output *output, qn_error *err);
/* Make the file this long; what is new reads as zeros. @return QN_OK; QN_E_WRITE. */
qn_status qni_output_cut(struct qni_output *output, uint64_t bytes, qn_error *err);
/* Sets the size and, where the file system can, takes the space at once: a disk that is too full is
 * found before the work begins. @return QN_OK; QN_E_WRITE. */
qn_status qni_output_claim(struct qni_output *output, uint64_t bytes, qn_error *err);
/* @return QN_OK; QN_E_WRITE. */
qn_status qni_output_write(struct qni_output *output, uint64_t offset, const void *data,
                           size_t bytes, qn_error *err);
/* Read back what an earlier run wrote. @return QN_OK; QN_E_READ: also when the file ends before. */
qn_status qni_output_read(struct qni_output *output, uint64_t offset, void *data, size_t bytes,
                          qn_error *err);
/* All data to the disk. @return QN_OK; QN_E_WRITE. */
qn_status qni_output_sync(struct qni_output *output, qn_error *err);
/* Give the file, which must be synced, its name, and the mode of the file that it replaces, or what
 * the umask leaves. @return QN_OK; QN_E_WRITE; QN_E_EXISTS. */
qn_status qni_output_publish(struct qni_output *output, qn_error *err);
/* Close and free. keep_part 0 removes the part file if it was not published. NULL is legal. */
void qni_output_close(struct qni_output *output, int32_t keep_part);

#endif
