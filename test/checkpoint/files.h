/* SPDX-License-Identifier: Apache-2.0 */
/* What the checkpoint tests share: a folder of their own, files made byte by byte, files that are
 * only memory (an exact block, so that AddressSanitizer sees every byte read too much). */
#ifndef TEST_CHECKPOINT_FILES_H
#define TEST_CHECKPOINT_FILES_H

#define _DEFAULT_SOURCE /* this header comes first: mkdtemp, lstat */

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/api.h"

#include "base/context.h"
#include "checkpoint/file.h"

/* ---- folders and files ----------------------------------------------------------------------- */

/* A fresh folder; its path ends without a slash. */
static inline char *folder_make(void)
{
    static char path[64];
    strcpy(path, "/tmp/quern-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline const char *in(const char *folder, const char *name)
{
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* How many things a folder holds. */
static inline int folder_count(const char *folder)
{
    DIR *open = opendir(folder);
    int count = 0;
    assert_non_null(open);
    for (struct dirent *e; (e = readdir(open)) != NULL;)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(open);
    return count;
}

static inline void folder_remove(const char *folder)
{
    DIR *open = opendir(folder);
    assert_non_null(open);
    for (struct dirent *e; (e = readdir(open)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            assert_int_equal(remove(in(folder, e->d_name)), 0);
    closedir(open);
    assert_int_equal(rmdir(folder), 0);
}

static inline void file_write(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* All of a file (to be freed). */
static inline uint8_t *file_bytes(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(*size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, f), *size);
    fclose(f);
    return bytes;
}

static inline bool file_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

/* ---- files in memory ------------------------------------------------------------------------- */

/* Header text and data to a safetensors file; the header is padded to a multiple of 8 unless it is
 * to stay as it is. */
static inline uint8_t *safetensors_make(const char *header, const void *data, size_t data_bytes,
                                        size_t *size)
{
    const size_t text = strlen(header), length = (text + 7) / 8 * 8;
    const uint64_t n = length;
    *size = 8 + length + data_bytes;
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    memcpy(bytes, &n, 8);
    memset(bytes + 8, ' ', length);
    memcpy(bytes + 8, header, text);
    if (data_bytes > 0)
        memcpy(bytes + 8 + length, data, data_bytes);
    return bytes;
}

/* Open memory as a file. The bytes must outlive it. */
static inline qn_status open_bytes(const qn_ctx *ctx, const void *bytes, size_t size,
                                   qn_file **file, qn_error *err)
{
    return qn_file_open_memory(ctx, bytes, size, NULL, file, err);
}

/* A context whose memory is counted; all of it must be back when it is destroyed. */
struct counted_ctx {
    struct counter counter;
    qn_ctx *ctx;
    int64_t live; /* of the context alone */
};
static inline void counted_make(struct counted_ctx *c)
{
    qn_ctx_options options;
    memset(c, 0, sizeof *c);
    options_counted(&options, &c->counter);
    options.n_threads = 1;
    assert_ok(qn_ctx_create(&options, &c->ctx, NULL));
    c->live = c->counter.live;
    c->counter.largest_bytes = 0;
}
static inline void counted_check(const struct counted_ctx *c)
{
    assert_int_equal(c->counter.live, c->live);
}
static inline void counted_destroy(struct counted_ctx *c)
{
    counted_check(c);
    qn_ctx_destroy(c->ctx);
    assert_int_equal(c->counter.live, 0);
}

#endif
