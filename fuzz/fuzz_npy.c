/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes behind the magic of an npy file. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *whole = malloc(size + 6);
    FUZZ_EXPECT(whole != NULL);
    memcpy(whole, "\x93NUMPY", 6);
    if (size > 0)
        memcpy(whole + 6, data, size);
    uint8_t *copy = fuzz_copy(whole, size + 6);
    qn_file *file = fuzz_open(copy, size + 6);
    if (file != NULL)
        fuzz_touch(file, copy, size + 6);
    qn_file_close(file);
    free(copy);
    free(whole);
    return 0;
}
