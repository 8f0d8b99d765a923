/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of tensors: the metadata key quern.xxh64.<tensor> holds the XXH64 of its data in 16
 * hexadecimal digits (1 in place of 0). The writer puts them into files with weights; comparing
 * them reads all data, and so is done on demand. quern.header.xxh64 holds that of the header, of
 * everything before the data, with zeros for its own digits. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../base/checksum.h"
#include "../base/error.h"
#include "file.h"

/* False: the text is no checksum. */
static bool parse(const char *text, uint64_t *sum)
{
    *sum = 0;
    for (int32_t i = 0; i < QNI_SUM_DIGITS; i++) {
        const char c = text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
            return false;
        *sum = *sum << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return text[QNI_SUM_DIGITS] == 0;
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

/* ---- the header ------------------------------------------------------------------------------ */

/* Where its checksum's digits are, as the writer writes it, or 0. No value of the metadata holds
 * this text: its quotes would be escaped. */
static size_t find_digits(const qn_file *file)
{
    static const char key[] = "\"" QNI_HEADER_SUM_KEY "\":\"";
    enum { KEY = sizeof key - 1 };
    const uint8_t *const bytes = file->mapping->bytes;
    for (size_t at = 8; at + KEY + QNI_SUM_DIGITS < file->data_start; at++)
        if (bytes[at] == '"' && memcmp(bytes + at, key, KEY) == 0)
            return at + KEY;
    return 0;
}

static uint64_t sum_of_header(const qn_file *file, size_t digits)
{
    const uint8_t *const bytes = file->mapping->bytes;
    const size_t after = digits + QNI_SUM_DIGITS;
    struct qni_checksum sum;
    qni_checksum_start(&sum);
    qni_checksum_add(&sum, bytes, digits);
    qni_checksum_add(&sum, "0000000000000000", QNI_SUM_DIGITS);
    qni_checksum_add(&sum, bytes + after, file->data_start - after);
    return qni_checksum_note(&sum);
}

qn_status qn_file_verify_header(const qn_file *file, int32_t *has_checksum, qn_error *err)
{
    char said[QNI_SHOWN];
    uint64_t wanted;
    if (has_checksum != NULL)
        *has_checksum = 0;
    if (file == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_file_verify_header: file is NULL");
    const char *const text = qn_file_get_metadata(file, QNI_HEADER_SUM_KEY);
    if (text == NULL && qn_file_get_metadata(file, QNI_HEADER_KEY) == NULL)
        return QN_OK;
    if (has_checksum != NULL)
        *has_checksum = 1;
    if (file->kind != QN_FILE_SAFETENSORS)
        return qni_fail_at(err, QN_E_CORRUPT, 0,
                           "the metadata have a checksum of a safetensors header, which this file "
                           "does not have");
    const size_t digits = text != NULL ? find_digits(file) : 0;
    if (digits == 0)
        return qni_fail_at(err, QN_E_CORRUPT, 8,
                           "the header is damaged: of its checksum only one of the keys "
                           "'" QNI_HEADER_KEY "' and '" QNI_HEADER_SUM_KEY "' is as it was "
                           "written; take a good copy of the file");
    if (!parse(text, &wanted))
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)digits,
                           "the checksum of the header is \"%s\", not 16 hexadecimal digits",
                           qni_shown(said, text));
    const uint64_t found = sum_of_header(file, digits);
    if (found == wanted && qn_file_get_metadata(file, QNI_HEADER_KEY) != NULL)
        return QN_OK;
    return qni_fail_at(err, QN_E_CORRUPT, (int64_t)digits,
                       "the header is damaged: it has the checksum %016" PRIx64
                       ", written was one with %016" PRIx64 "; take a good copy of the file",
                       found, wanted);
}

void qn_file_set_verify(qn_file *file, int32_t verify)
{
    if (file == NULL)
        return;
    file->is_verified = verify != 0;
    file->is_damaged = verify != 0 && qn_file_verify_header(file, NULL, NULL) != QN_OK;
}

qn_status qni_file_check_loaded(const qn_file *file, const qn_entry *entry, qn_error *err)
{
    char shown[QNI_SHOWN];
    int32_t has_checksum = 0;
    if (!file->is_verified)
        return QN_OK;
    if (file->is_damaged)
        return qn_file_verify_header(file, NULL, err);
    const qn_status status = qn_file_verify(file, entry->name, &has_checksum, err);
    if (status != QN_OK || has_checksum)
        return status;
    return qni_fail_at(err, QN_E_NOT_FOUND, entry->offset,
                       "tensor '%s' has no checksum to compare; write the file again, or load it "
                       "without qn_file_set_verify()",
                       qni_shown(shown, entry->name));
}
