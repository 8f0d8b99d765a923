/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of tensors: the metadata key quern.xxh64.<tensor> holds the XXH64 of its data in 16
 * hexadecimal digits (1 in place of 0). The writer puts them into files with weights; comparing
 * them reads all data, and so is done on demand. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../base/checksum.h"
#include "../base/error.h"
#include "file.h"

enum { DIGITS = 16 };

/* False: the text is no checksum. */
static bool parse(const char *text, uint64_t *sum)
{
    *sum = 0;
    for (int32_t i = 0; i < DIGITS; i++) {
        const char c = text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
            return false;
        *sum = *sum << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return text[DIGITS] == 0;
}

/* The text that the file has for a tensor; *text NULL: none. */
static qn_status find(const qn_file *file, const char *name, const char **text, qn_error *err)
{
    const size_t bytes = strlen(name) + sizeof QNI_SUM_KEY;
    char *key = qni_alloc(&file->allocator, bytes);
    if (key == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    snprintf(key, bytes, QNI_SUM_KEY "%s", name);
    *text = qn_file_get_metadata(file, key);
    qni_free(&file->allocator, key, bytes);
    return QN_OK;
}

static qn_status compare(const qn_file *file, const qn_entry *entry, const char *text,
                         qn_error *err)
{
    struct qni_checksum sum;
    char shown[QNI_SHOWN], said[QNI_SHOWN];
    uint64_t wanted;
    if (!parse(text, &wanted))
        return qni_fail_at(err, QN_E_CORRUPT, entry->offset,
                           "the checksum of tensor '%s' is \"%s\", not 16 hexadecimal digits",
                           qni_shown(shown, entry->name), qni_shown(said, text));
    qni_checksum_start(&sum);
    /* Tensors of a type without arithmetic have no view. */
    qni_checksum_add(&sum, file->mapping->bytes + entry->offset, entry->bytes);
    const uint64_t found = qni_checksum_note(&sum);
    if (found == wanted)
        return QN_OK;
    return qni_fail_at(err, QN_E_CORRUPT, entry->offset,
                       "tensor '%s' is damaged: its data have the checksum %016" PRIx64
                       ", written were data with %016" PRIx64 "; take a good copy of the file",
                       qni_shown(shown, entry->name), found, wanted);
}

qn_status qn_file_verify(const qn_file *file, const char *name, int32_t *has_checksum,
                         qn_error *err)
{
    char shown[QNI_SHOWN];
    const char *text = NULL;
    qn_entry entry;
    if (has_checksum != NULL)
        *has_checksum = 0;
    if (file == NULL || name == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_file_verify: file or name is NULL");
    if (qn_file_find(file, name, &entry) != QN_OK)
        return qni_fail(err, QN_E_NOT_FOUND, "there is no tensor '%s'", qni_shown(shown, name));
    const qn_status status = find(file, name, &text, err);
    if (status != QN_OK || text == NULL)
        return status;
    if (has_checksum != NULL)
        *has_checksum = 1;
    return compare(file, &entry, text, err);
}

void qn_file_set_verify(qn_file *file, int32_t verify)
{
    if (file != NULL)
        file->is_verified = verify != 0;
}

qn_status qni_file_check_loaded(const qn_file *file, const qn_entry *entry, qn_error *err)
{
    char shown[QNI_SHOWN];
    int32_t has_checksum = 0;
    if (!file->is_verified)
        return QN_OK;
    const qn_status status = qn_file_verify(file, entry->name, &has_checksum, err);
    if (status != QN_OK || has_checksum)
        return status;
    return qni_fail_at(err, QN_E_NOT_FOUND, entry->offset,
                       "tensor '%s' has no checksum to compare; write the file again, or load it "
                       "without qn_file_set_verify()",
                       qni_shown(shown, entry->name));
}
