/* SPDX-License-Identifier: Apache-2.0 */
/* A text file of the command's own - a report, constants of a GPU - that appears under its name
 * when it is complete, made beside it under a name that nobody else has. */
#ifndef CLI_WHOLE_H
#define CLI_WHOLE_H

#include <stdio.h>

struct whole {
    FILE *file;
    char *path, *part;
};
/* 0, or errno. */
int whole_begin(struct whole *w, const char *path);
/* On the disk, and named; not if is_good is 0 or writing failed: then nothing is left. 0 or errno.
 * A file that is replaced hands on its mode. */
int whole_end(struct whole *w, int is_good);

#endif
