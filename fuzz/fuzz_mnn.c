/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an MNN model: what opens has its tensors inside, and its weights load or are
 * refused. */
#include "checkpoint_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = fuzz_copy(data, size);
    qn_file *file = fuzz_open(copy, size);
    if (file != NULL) {
        fuzz_touch(file, copy, size);
        fuzz_checkpoint(file, NULL, 0);
    }
    free(copy);
    return 0;
}
