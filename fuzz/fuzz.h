/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz targets share: a context, and inputs opened as files that are only memory. An input
 * is copied to a block of its exact size (at a multiple of 64), so that AddressSanitizer sees every
 * byte read too much. A property that does not hold ends the process, which is what libFuzzer looks
 * for. */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#define _DEFAULT_SOURCE /* this header comes first: posix_memalign */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quern/quern.h>

#include "base/context.h"
#include "checkpoint/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_EXPECT(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline const qn_ctx *fuzz_context(void)
{
    static qn_ctx *ctx;
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.n_threads = 1;
    if (ctx == NULL)
        FUZZ_EXPECT(qn_ctx_create(&options, &ctx, NULL) == QN_OK);
    return ctx;
}

static inline uint8_t *fuzz_copy(const uint8_t *data, size_t size)
{
    void *copy = NULL;
    FUZZ_EXPECT(posix_memalign(&copy, 64, size > 0 ? size : 1) == 0);
    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

/* NULL if it is no file. copy must live until the file and all that came from it are gone. */
static inline qn_file *fuzz_open(const uint8_t *copy, size_t size)
{
    qn_file *file = NULL;
    qn_error err = {QN_OK, -1, ""};
    const qn_status status = qn_file_open_memory(fuzz_context(), copy, size, NULL, &file, &err);
    FUZZ_EXPECT((status == QN_OK) == (file != NULL));
    FUZZ_EXPECT(status == QN_OK || (err.status == status && err.text[0] != 0));
    FUZZ_EXPECT(status == QN_OK || status == QN_E_CORRUPT || status == QN_E_DTYPE);
    FUZZ_EXPECT(err.offset <= (int64_t)size);
    return file;
}

/* Everything that can be asked of an open file is inside it and agrees with itself. */
static inline void fuzz_touch(const qn_file *file, const uint8_t *copy, size_t size)
{
    qn_entry entry, found;
    const char *key = NULL, *value = NULL;
    for (int64_t i = 0; i < qn_file_count(file); i++) {
        FUZZ_EXPECT(qn_file_entry(file, i, &entry) == QN_OK);
        FUZZ_EXPECT(qn_file_find(file, entry.name, &found) == QN_OK);
        FUZZ_EXPECT(found.offset == entry.offset && found.bytes == entry.bytes);
        FUZZ_EXPECT(entry.offset >= -1 && entry.offset <= (int64_t)size);
        if (entry.offset >= 0) /* else it is no run of bytes of the file */
            FUZZ_EXPECT(entry.bytes <= size - (size_t)entry.offset);
        if (entry.tensor.dtype == QN_DTYPE_NONE)
            continue;
        int64_t elements = 0;
        size_t bytes = 0;
        FUZZ_EXPECT(qn_tensor_extent(&entry.tensor, &elements, &bytes) == QN_OK);
        FUZZ_EXPECT(bytes == entry.bytes);
        if (entry.offset >= 0)
            FUZZ_EXPECT((const uint8_t *)entry.tensor.data == copy + entry.offset);
        double *out = malloc((size_t)elements * sizeof *out + 1);
        FUZZ_EXPECT(out != NULL);
        const qn_tensor to = qn_tensor_make(out, QN_F64, entry.tensor.rank, entry.tensor.shape);
        const qn_status status = qn_entry_copy(&entry, &to);
        FUZZ_EXPECT(status == QN_OK || status == QN_E_DTYPE);
        free(out);
        qn_file_forget(file, &entry);
    }
    for (int64_t i = 0; qn_file_metadata(file, i, &key, &value) == QN_OK; i++)
        FUZZ_EXPECT(qn_file_get_metadata(file, key) == value);
}

#endif
