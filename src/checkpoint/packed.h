/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights that lie in a file. The part of qn_packed_load() that knows files; whether the
 * blob suits a device is asked in src/api. */
#ifndef QNI_CHECKPOINT_PACKED_H
#define QNI_CHECKPOINT_PACKED_H

#include <quern/checkpoint.h>

#include "../base/alloc.h"
#include "../quant/packed.h"

/*
 * Packed weights that use the mapping of the file where they lie and keep it alive. Their head is a
 * copy: what was checked stays as it was even if somebody changes the file. The head is consistent
 * with itself and with the bytes there are; sections have not been looked at.
 * @return QN_OK; QN_E_NOT_FOUND; QN_E_CORRUPT; QN_E_VERSION; QN_E_MEMORY.
 */
qn_status qni_packed_map(const struct qni_allocator *a, const qn_file *file, const char *name,
                         qn_packed **packed, qn_error *err);

/* A head as the JSON text that stands in the metadata. */
enum { QNI_PACKED_WORDS = 512 };
void qni_packed_words(const struct qni_packed_head *head, char out[QNI_PACKED_WORDS]);
/* Does a text from a file say what the head says? Fields that it lacks, as those of earlier
 * versions do, and unknown ones are no contradiction. QN_E_CORRUPT names the field and both values;
 * QN_E_MEMORY. */
qn_status qni_packed_words_agree(const struct qni_allocator *a, const char *words,
                                 const struct qni_packed_head *head, qn_error *err);

#endif
