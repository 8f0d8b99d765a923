/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a weight format: what parses prints to a text that parses to the same, and every
 * geometry gives a number of groups that is not negative. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), printed[128], again[128];
    qn_format f, g;
    qn_error err = {QN_OK, -1, ""};
    FUZZ_EXPECT(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = 0;
    memset(&f, 0, sizeof f);
    memset(&g, 0, sizeof g);
    if (qn_format_parse(text, &f, &err) == QN_OK) {
        FUZZ_EXPECT(qn_format_check(&f, NULL) == QN_OK);
        FUZZ_EXPECT(qn_format_print(&f, printed, sizeof printed) < sizeof printed);
        FUZZ_EXPECT(qn_format_parse(printed, &g, NULL) == QN_OK);
        FUZZ_EXPECT(qn_format_print(&g, again, sizeof again) < sizeof again);
        FUZZ_EXPECT(strcmp(printed, again) == 0);
        for (int64_t k = 0; k < 70; k += 23)
            FUZZ_EXPECT(qn_format_groups(&f, k, k) >= 0);
    } else {
        FUZZ_EXPECT(err.status == QN_E_FORMAT && err.text[0] != 0);
    }
    free(text);
    return 0;
}
