/* SPDX-License-Identifier: Apache-2.0 */
/* Opening files. Interrupted calls are repeated; nothing is inherited by child processes. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "file.h"

int qni_file_open(const char *path, int how)
{
    const int flags = how == QNI_FILE_NEW      ? O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW
                      : how == QNI_FILE_FOUND  ? O_RDWR | O_NOFOLLOW
                      : how == QNI_FILE_FOLDER ? O_RDONLY | O_DIRECTORY
                                               : O_RDONLY;
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0644);
    while (fd < 0 && errno == EINTR);
    return fd;
}

ptrdiff_t qni_file_text(const char *path, char *text, size_t capacity)
{
    text[0] = 0;
    const int fd = qni_file_open(path, QNI_FILE_READ);
    if (fd < 0)
        return -1;
    size_t length = 0;
    ssize_t got = 0;
    while (length + 1 < capacity) {
        got = read(fd, text + length, capacity - 1 - length);
        if (got > 0)
            length += (size_t)got;
        else if (got == 0 || errno != EINTR)
            break;
    }
    close(fd);
    if (got < 0)
        length = 0;
    text[length] = 0;
    return got < 0 ? -1 : (ptrdiff_t)length;
}
