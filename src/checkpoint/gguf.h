/* SPDX-License-Identifier: Apache-2.0 */
/* The element types of GGUF files. */
#ifndef QNI_CHECKPOINT_GGUF_H
#define QNI_CHECKPOINT_GGUF_H

#include <quern/base.h>

struct qni_ggml_type {
    int32_t id;
    const char *name;
    int32_t elements, bytes; /* of a block */
    qn_dtype dtype;          /* QN_DTYPE_NONE: blocks of several elements */
};

/* NULL: no such type. */
const struct qni_ggml_type *qni_ggml_type(int64_t id);
const struct qni_ggml_type *qni_ggml_type_named(const char *name);

#endif
