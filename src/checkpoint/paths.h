/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of a checkpoint's files: what stands in a folder, and whether a name out of somebody's
 * index stays in it. */
#ifndef QNI_CHECKPOINT_PATHS_H
#define QNI_CHECKPOINT_PATHS_H

#include <quern/base.h>
#include <stdbool.h>

#include "../base/alloc.h"

enum { QNI_PATH = 4096 };

bool qni_path_is_folder(const char *path);
bool qni_path_exists(const char *path);
/* folder + "/" + name. False: too long. */
bool qni_path_join(char out[QNI_PATH], const char *folder, const char *name);
/* All up to the last slash, "." if there is none. False: too long. */
bool qni_path_folder(char out[QNI_PATH], const char *path);
/* What follows the last slash. */
const char *qni_path_name(const char *path);
bool qni_text_ends(const char *text, const char *ending);

/*
 * A file of the folder by a name that came from a file: one plain name, and, where it is a symbolic
 * link, one that stays in the folder. The cache of the Hugging Face hub is the exception: of a
 * folder .../snapshots/<revision>, or one below it, links may lead to .../blobs.
 * @return QN_OK; QN_E_CORRUPT: the name leaves the folder; QN_E_NOT_FOUND: there is no such file.
 */
qn_status qni_path_inside(const char *folder, const char *name, char out[QNI_PATH], qn_error *err);
/* Makes the path of a file in the folder or in one below it from a relative path. */
qn_status qni_path_below(const char *folder, const char *name, char out[QNI_PATH], qn_error *err);

/* The only file of a folder whose name ends so. count: how many there are; name: one of them. */
qn_status qni_path_only(const char *folder, const char *ending, char name[QNI_PATH], int32_t *count,
                        qn_error *err);

#endif
