/* SPDX-License-Identifier: Apache-2.0 */
/* Folders, names and symbolic links. Nothing is opened here but folders. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE

#include "paths.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../base/error.h"
#include "file.h"

_Static_assert(QNI_PATH >= PATH_MAX, "realpath() writes so much");

bool qni_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool qni_path_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool qni_path_join(char out[QNI_PATH], const char *folder, const char *name)
{
    const size_t a = strlen(folder), b = strlen(name);
    if (a + b + 2 > QNI_PATH)
        return false;
    memcpy(out, folder, a);
    out[a] = '/';
    memcpy(out + a + 1, name, b + 1);
    return true;
}

bool qni_path_folder(char out[QNI_PATH], const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);
    if (length >= QNI_PATH)
        return false;
    memcpy(out, slash == NULL ? "." : path, length);
    out[length] = 0;
    return true;
}

const char *qni_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

bool qni_text_ends(const char *text, const char *ending)
{
    const size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

/* Is `path` below `folder`? Both are real paths. */
static bool is_below(const char *path, const char *folder)
{
    const size_t length = strlen(folder);
    if (strncmp(path, folder, length) != 0)
        return false;
    return path[length] == '/' || (length > 0 && folder[length - 1] == '/');
}

/* Finds the folder .../blobs that belongs to .../snapshots/<revision> or to a folder below it. */
static bool blobs_of(const char *folder, char out[QNI_PATH])
{
    static const char snapshots[] = "/snapshots/", blobs[] = "/blobs";
    const char *found = NULL;
    for (const char *at = folder; (at = strstr(at, snapshots)) != NULL; at++)
        found = at;
    if (found == NULL || found[sizeof snapshots - 1] == 0)
        return false;
    memcpy(out, folder, (size_t)(found - folder));
    memcpy(out + (found - folder), blobs, sizeof blobs);
    return true;
}

static bool is_plain(const char *name)
{
    return name[0] != 0 && strchr(name, '/') == NULL && strchr(name, '\\') == NULL &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Every word of a/b/c is the name of a file. */
static bool is_plain_path(const char *name)
{
    char word[QNI_PATH];
    for (const char *end; (end = strchr(name, '/')) != NULL; name = end + 1) {
        const size_t length = (size_t)(end - name);
        if (length >= sizeof word)
            return false;
        memcpy(word, name, length);
        word[length] = 0;
        if (!is_plain(word))
            return false;
    }
    return is_plain(name);
}

/* is_wide: in folders below, too. */
static qn_status inside(const char *folder, const char *name, bool is_wide, char out[QNI_PATH],
                        qn_error *err)
{
    char shown[QNI_SHOWN], real[QNI_PATH], home[QNI_PATH], blobs[QNI_PATH];
    qni_shown(shown, name);
    if (is_wide ? !is_plain_path(name) : !is_plain(name))
        return qni_fail(err, QN_E_CORRUPT, "'%s' is not the name of a file in the folder", shown);
    if (!qni_path_join(out, folder, name) || realpath(folder, home) == NULL)
        return qni_fail(err, QN_E_OPEN, "the path of '%s' is too long or not there", shown);
    if (realpath(out, real) == NULL)
        return qni_fail(err, QN_E_NOT_FOUND, "the file '%s' is missing", shown);
    if (is_below(real, home) || (blobs_of(home, blobs) && is_below(real, blobs)))
        return QN_OK;
    return qni_fail(err, QN_E_CORRUPT, "'%s' is a symbolic link out of the folder", shown);
}

qn_status qni_path_inside(const char *folder, const char *name, char out[QNI_PATH], qn_error *err)
{
    return inside(folder, name, false, out, err);
}

qn_status qni_path_below(const char *folder, const char *name, char out[QNI_PATH], qn_error *err)
{
    return inside(folder, name, true, out, err);
}

qn_status qni_path_only(const char *folder, const char *ending, char name[QNI_PATH], int32_t *count,
                        qn_error *err)
{
    DIR *open = opendir(folder);
    *count = 0;
    if (open == NULL)
        return qni_fail(err, QN_E_OPEN, "the folder cannot be read");
    for (struct dirent *e; (e = readdir(open)) != NULL;) {
        if (e->d_name[0] == '.' || !qni_text_ends(e->d_name, ending))
            continue;
        (*count)++;
        snprintf(name, QNI_PATH, "%s", e->d_name);
    }
    closedir(open);
    return QN_OK;
}
