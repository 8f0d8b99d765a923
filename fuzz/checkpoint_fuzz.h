/* SPDX-License-Identifier: Apache-2.0 */
/* Asking an open checkpoint everything, for the fuzz targets of containers and importers. */
#ifndef FUZZ_CHECKPOINT_FUZZ_H
#define FUZZ_CHECKPOINT_FUZZ_H

#include "fuzz.h"

#include "checkpoint/checkpoint.h"

static inline void fuzz_weight(const qn_weight *weight)
{
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    FUZZ_EXPECT(qn_weight_view(weight, &p) == QN_OK);
    if (p.n * p.k > 1 << 16)
        return;
    float *out = malloc((size_t)(p.n * p.k) * sizeof *out + 1);
    FUZZ_EXPECT(out != NULL);
    const qn_tensor to = qn_tensor_2d(out, QN_F32, p.n, p.k);
    FUZZ_EXPECT(qn_weight_dequantize(fuzz_context(), weight, true, &to) == QN_OK);
    free(out);
}

/* Every module: facts, provenance, all of it, and its last row, which is the same there. */
static inline void fuzz_modules(const qn_checkpoint *c)
{
    char text[300];
    for (int64_t i = 0; i < qn_checkpoint_count(c); i++) {
        qn_module m;
        qn_weight *weight = NULL, *row = NULL;
        qn_error err = {QN_OK, -1, ""};
        qn_module_init(&m);
        const qn_status found = qn_checkpoint_module(c, i, &m, &err);
        FUZZ_EXPECT(found == QN_OK || err.text[0] != 0);
        FUZZ_EXPECT(qn_checkpoint_find(c, m.name) == i);
        qn_checkpoint_provenance(c, i, text, sizeof text);
        FUZZ_EXPECT(strlen(text) < sizeof text);
        const qn_status status =
            qn_checkpoint_load(fuzz_context(), c, i, 0, -1, &weight, NULL, &err);
        FUZZ_EXPECT((status == QN_OK) == (weight != NULL));
        FUZZ_EXPECT(status == QN_OK || err.text[0] != 0);
        FUZZ_EXPECT(found == QN_OK || status != QN_OK);
        if (weight != NULL && m.n > 0) {
            fuzz_weight(weight);
            const qn_status last =
                qn_checkpoint_load(fuzz_context(), c, i, m.n - 1, 1, &row, NULL, &err);
            FUZZ_EXPECT(last == QN_OK || (last == QN_E_UNSUPPORTED && m.conv_groups > 1));
        }
        qn_weight_destroy(weight);
        qn_weight_destroy(row);
    }
}

/* file: taken over. */
static inline void fuzz_checkpoint(qn_file *file, const char *config, size_t config_bytes)
{
    qn_checkpoint *c = NULL;
    qn_error err = {QN_OK, -1, ""};
    const qn_status status =
        qn_checkpoint_open_files(fuzz_context(), &file, 1, config, config_bytes, NULL, &c, &err);
    FUZZ_EXPECT((status == QN_OK) == (c != NULL));
    FUZZ_EXPECT(status == QN_OK || err.text[0] != 0);
    if (c != NULL)
        fuzz_modules(c);
    qn_checkpoint_close(c);
}

/* Bytes as a file of a container: what opens has its tensors inside, and its weights load or are
 * refused. */
static inline void fuzz_container(const uint8_t *data, size_t size)
{
    uint8_t *copy = fuzz_copy(data, size);
    qn_file *file = fuzz_open(copy, size);
    if (file != NULL) {
        fuzz_touch(file, copy, size);
        fuzz_checkpoint(file, NULL, 0);
    }
    free(copy);
}

#endif
