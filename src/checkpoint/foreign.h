/* SPDX-License-Identifier: Apache-2.0 */
/* Files of other kinds, by name. */
#ifndef QNI_CHECKPOINT_FOREIGN_H
#define QNI_CHECKPOINT_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "an ONNX model; save ...": what a file is whose first bytes these are, and what to do; NULL: not
 * known. At most 512 of them are read. */
const char *qni_foreign_kind(const uint8_t *bytes, size_t size);

#endif
