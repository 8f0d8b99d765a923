/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an ONNX model; those that make it one are put in front. */
#include "checkpoint_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t lead[] = {0x08, 0x0a, 0x12, 0x00};
    uint8_t *whole = malloc(size + sizeof lead);
    FUZZ_EXPECT(whole != NULL);
    memcpy(whole, lead, sizeof lead);
    if (size > 0)
        memcpy(whole + sizeof lead, data, size);
    fuzz_container(whole, size + sizeof lead);
    free(whole);
    return 0;
}
