/* SPDX-License-Identifier: Apache-2.0 */
/* What a run depends on, for its part file: the version of quern, every option but those that
 * change nothing of the result, and the files that it reads. --resume goes on only where all of it
 * is the same.
 *
 * The options come from the command's own tables, so that a new one is part of the fingerprint
 * unless it is named here. */
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "output.h"

/* Where the result goes, how it is told, and what does the work; the calibration is an input. */
static const char *const without_effect[] = {
    "out", "resume", "force", "dry-run", "quiet", "json", "color", "help", "threads", "calibration",
};

static int has_effect(const struct option_row *row)
{
    for (size_t i = 0; i < sizeof without_effect / sizeof *without_effect; i++)
        if (strcmp(row->name, without_effect[i]) == 0)
            return 0;
    return 1;
}

/* All values given, in their order; NULL: it was not given. */
static char *values_of(const struct args *args, const struct option_row *row)
{
    char *text = NULL;
    const char *value;
    for (int i = 0; (value = args_each(args, row->name, i)) != NULL; i++) {
        char *more = text == NULL ? must_copy(row->arg != NULL ? value : "given")
                                  : must_print("%s %s", text, row->arg != NULL ? value : "given");
        free(text);
        text = more;
    }
    return text;
}

qn_status fingerprint_add(const struct args *args, qn_writer *writer, qn_error *err)
{
    char *version = must_print("%s (%s)", qn_version(), qn_commit());
    qn_status status = qn_writer_fingerprint(writer, "the version of quern", version, err);
    free(version);
    if (status == QN_OK)
        status = qn_writer_fingerprint(writer, "the command", args->command->name, err);
    for (int t = 0; t < MAX_TABLES && args->command->tables[t] != NULL; t++)
        for (const struct option_row *row = args->command->tables[t]; row->name != NULL; row++) {
            char *const value = has_effect(row) ? values_of(args, row) : NULL;
            char *const key = must_print("--%s", row->name);
            if (status == QN_OK && value != NULL)
                status = qn_writer_fingerprint(writer, key, value, err);
            free(key);
            free(value);
        }
    const char *const isa = args_has(args, "isa") ? NULL : getenv("QUERN_ISA");
    if (status == QN_OK && isa != NULL && isa[0] != '\0')
        status = qn_writer_fingerprint(writer, "QUERN_ISA", isa, err);
    return status == QN_OK ? inputs_fingerprint(writer, err) : status;
}
