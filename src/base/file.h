/* SPDX-License-Identifier: Apache-2.0 */
/* The only place that opens files: the machine's facts under /proc and /sys, and what
 * src/checkpoint reads and writes. */
#ifndef QNI_BASE_FILE_H
#define QNI_BASE_FILE_H

#include <stddef.h>

enum {
    QNI_FILE_READ = 0,
    QNI_FILE_NEW = 1,    /* write and read; fails with EEXIST if the name is taken. Nobody but the
                            owner may write to it, whatever the umask allows */
    QNI_FILE_FOLDER = 2, /* a directory, for fsync after a rename */
    QNI_FILE_FOUND = 3   /* write and read what is there; never through a symbolic link */
};

/* A descriptor (closed by exec), or -1 with errno set. Never waits for the other end of a pipe. */
int qni_file_open(const char *path, int how);

/* The text of a small file, always terminated; what does not fit is cut. The length, or -1 (text is
 * then empty). */
ptrdiff_t qni_file_text(const char *path, char *text, size_t capacity);

#endif
