/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an ONNX model: what opens has its tensors inside, and its weights load or are
 * refused. The bytes that make it one are put in front. */
#include "checkpoint_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t lead[] = {0x08, 0x0a, 0x12, 0x00};
    uint8_t *whole = malloc(size + sizeof lead);
    FUZZ_EXPECT(whole != NULL);
    memcpy(whole, lead, sizeof lead);
    if (size > 0)
        memcpy(whole + sizeof lead, data, size);
    size += sizeof lead;
    uint8_t *copy = fuzz_copy(whole, size);
    free(whole);
    qn_file *file = fuzz_open(copy, size);
    if (file != NULL) {
        fuzz_touch(file, copy, size);
        fuzz_checkpoint(file, NULL, 0);
    }
    free(copy);
    return 0;
}
