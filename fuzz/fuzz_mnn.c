/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an MNN model. */
#include "checkpoint_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_container(data, size);
    return 0;
}
