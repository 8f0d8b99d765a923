/* SPDX-License-Identifier: Apache-2.0 */
/* The contract is in whole.h. The part file is made exclusively: a link or a file that somebody has
 * put there beforehand is never written to. */
#define _POSIX_C_SOURCE 200809L
#include "whole.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

int whole_begin(struct whole *w, const char *path)
{
    enum { ATTEMPTS = 100 };
    int fd = -1, reason = EEXIST;
    *w = (struct whole){.path = must_copy(path)};
    for (int i = 0; i < ATTEMPTS && fd < 0 && reason == EEXIST; i++) {
        free(w->part);
        w->part = must_print("%s.part.%ld.%d", path, (long)getpid(), i);
        fd = open(w->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        reason = errno;
    }
    if (fd >= 0) {
        w->file = fdopen(fd, "w");
        if (w->file != NULL)
            return 0;
        reason = errno;
        close(fd);
        unlink(w->part);
    }
    free(w->path);
    free(w->part);
    *w = (struct whole){0};
    return reason;
}

int whole_end(struct whole *w, int is_good)
{
    struct stat old;
    int reason = is_good ? 0 : EIO;
    if (reason == 0 && (fflush(w->file) != 0 || ferror(w->file) || fsync(fileno(w->file)) != 0))
        reason = errno != 0 ? errno : EIO;
    if (reason == 0 && stat(w->path, &old) == 0 && S_ISREG(old.st_mode))
        (void)fchmod(fileno(w->file), old.st_mode & 0777);
    if (fclose(w->file) != 0 && reason == 0)
        reason = errno;
    if (reason == 0 && rename(w->part, w->path) != 0)
        reason = errno;
    if (reason != 0)
        unlink(w->part);
    free(w->path);
    free(w->part);
    *w = (struct whole){0};
    return reason;
}
