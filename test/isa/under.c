/* SPDX-License-Identifier: Apache-2.0 */
/* quern-under NAMES COMMAND...: run a test with QUERN_ISA=NAMES, as a smaller machine would. 77
 * (skipped) where this machine lacks one of these features, or has no other: the test has been run
 * as it is then, or is run under the name of what there is. */
#define _POSIX_C_SOURCE 200809L /* setenv() */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <quern/context.h>

enum { USAGE = 2, SKIPPED = 77 };

int main(int argc, char **argv)
{
    uint64_t mask = 0;
    qn_error err = {0};
    if (argc < 3) {
        fprintf(stderr, "usage: %s NAMES COMMAND...\n", argv[0]);
        return USAGE;
    }
    if (qn_isa_parse(argv[1], &mask, &err) != QN_OK) {
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
        return USAGE;
    }
    const uint64_t here = qn_isa_detect();
    if ((mask & ~here) != 0 || mask == here) {
        printf("skipped: %s %s\n", argv[1],
               mask == here ? "is all of this machine" : "is not on this machine");
        return SKIPPED;
    }
    if (setenv("QUERN_ISA", argv[1], 1) == 0)
        execvp(argv[2], argv + 2);
    fprintf(stderr, "%s: %s: %s\n", argv[0], argv[2], strerror(errno));
    return USAGE;
}
