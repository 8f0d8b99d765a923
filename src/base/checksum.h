/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of data in files: XXH64 with seed 0, whose description is public, so that other
 * programs can compare it too. It tells data that are there from data that are not (a flipped bit,
 * a torn write, zeros) at several gigabytes a second; it is no defence against people. */
#ifndef QNI_BASE_CHECKSUM_H
#define QNI_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Data that come piece by piece; how they are cut changes nothing. */
struct qni_checksum {
    uint64_t lane[4];
    uint64_t bytes;
    uint8_t rest[32]; /* the last bytes % 32 */
};

void qni_checksum_start(struct qni_checksum *sum);
void qni_checksum_add(struct qni_checksum *sum, const void *data, size_t bytes);
/* The checksum of everything added so far; more may follow. */
uint64_t qni_checksum_end(const struct qni_checksum *sum);
/* The checksum of everything added so far, with 1 in place of 0, for places where 0 says that there
 * is none. */
uint64_t qni_checksum_note(const struct qni_checksum *sum);

#endif
