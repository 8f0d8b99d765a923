/* SPDX-License-Identifier: Apache-2.0 */
/* A folder: two bytes say how long the configuration is, then it, then a safetensors file. */
#include "checkpoint_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const size_t wanted = (size_t)data[0] | (size_t)data[1] << 8, left = size - 2;
    const size_t length = wanted < left ? wanted : left;
    uint8_t *config = fuzz_copy(data + 2, length);
    uint8_t *copy = fuzz_copy(data + 2 + length, left - length);
    qn_file *file = fuzz_open(copy, left - length);
    if (file != NULL)
        fuzz_checkpoint(file, (const char *)config, length);
    free(copy);
    free(config);
    return 0;
}
