/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = fuzz_copy(data, size);
    qn_file *file = fuzz_open(copy, size);
    if (file != NULL)
        fuzz_touch(file, copy, size);
    qn_file_close(file);
    free(copy);
    return 0;
}
