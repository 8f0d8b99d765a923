/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a quern file: every weight that loads can be dequantized to numbers. */
#include "fuzz.h"

static void use(const qn_weight *weight)
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
    for (int64_t i = 0; i < p.n * p.k; i++)
        FUZZ_EXPECT(out[i] == out[i]);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = fuzz_copy(data, size);
    qn_file *file = fuzz_open(copy, size);
    for (int64_t i = 0; i < qn_file_weight_count(file); i++) {
        const char *name = qn_file_weight_name(file, i);
        qn_weight *weight = NULL;
        qn_error err = {QN_OK, -1, ""};
        const qn_status info = qn_file_weight_info(file, name, NULL, NULL, NULL);
        const qn_status status = qn_file_load_weight(fuzz_context(), file, name, &weight, &err);
        FUZZ_EXPECT((status == QN_OK) == (weight != NULL));
        FUZZ_EXPECT(status == QN_OK || err.text[0] != 0);
        FUZZ_EXPECT(info == QN_OK || info == status);
        if (weight != NULL)
            use(weight);
        qn_weight_destroy(weight);
    }
    qn_file_close(file);
    free(copy);
    return 0;
}
