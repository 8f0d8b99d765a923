/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing weights by name, and the output of quantize and pack. */
#include "output.h"

#include <fnmatch.h>
#include <stdlib.h>

#include "inputs.h"

const struct option_row options_output[] = {
    {"resume", 0, NULL, "continue what an interrupted run has left in FILE.part"},
    {"force", 0, NULL, "replace FILE if it exists"},
    {"quiet", 'q', NULL, "no progress"},
    {"json", 0, NULL, "the result as one JSON object"},
    {NULL, 0, NULL, NULL},
};

/* ------------------------------------------------------------------------------------- choosing */

static const char *const lists[N_LISTS] = {"include", "exclude", "conv-groups", "axes"};

int chosen_begin(struct chosen *c, const struct args *args)
{
    *c = (struct chosen){.args = args};
    for (int l = 0; l < N_LISTS; l++) {
        if (args_each(args, lists[l], MAX_PATTERNS - 1) != NULL)
            return complain(EXIT_USAGE, "use wider patterns", "%s: more than %d patterns",
                            args->command->name, MAX_PATTERNS - 1);
    }
    return 0;
}

static int matches(struct chosen *c, int list, const char *name)
{
    const char *pattern;
    int found = 0;
    for (int i = 0; (pattern = args_each(c->args, lists[list], i)) != NULL; i++) {
        if (fnmatch(pattern, name, 0) == 0)
            found = c->used[list][i] = 1;
    }
    return found;
}

const char *chosen_refusal(struct chosen *c, const char *name)
{
    const int is_in = matches(c, 0, name) || !args_has(c->args, lists[0]);
    return matches(c, 1, name) ? "excluded" : is_in ? NULL : "not included";
}

int chosen_check(const struct chosen *c, const char *what)
{
    const char *pattern;
    for (int l = 0; l < N_LISTS; l++) {
        for (int i = 0; (pattern = args_each(c->args, lists[l], i)) != NULL; i++) {
            if (!c->used[l][i])
                return complain(EXIT_USAGE, "'quern inspect FILE' lists the names",
                                "--%s '%s': no %s has such a name", lists[l], pattern,
                                l == GROUPS ? "convolution"
                                : l == AXES ? "tensor of as many dimensions"
                                            : what);
        }
    }
    return 0;
}

/* --------------------------------------------------------------------------------------- output */

int output_check(const struct args *args)
{
    if (args_has(args, "out") || args_has(args, "dry-run"))
        return 0;
    return complain(EXIT_USAGE, "add -o FILE, or --dry-run to see what would happen",
                    "%s: no output", args->command->name);
}

int output_place(const struct args *args)
{
    const char *const out = args_text(args, "out", NULL);
    qn_error err = {0};
    if (out == NULL || args_has(args, "dry-run"))
        return 0;
    char *part = must_print("%s.part", out);
    const char *input = input_at(out);
    int status = 0;
    if (input == NULL)
        input = input_at(part);
    free(part);
    if (input != NULL)
        return complain(EXIT_USAGE, "give the result a name of its own",
                        "%s: it is the input %s, which is read while the result is written", out,
                        input);
    const qn_status possible = qn_output_check(out, args_has(args, "force"), &err);
    if (possible != QN_OK)
        status = complain_output(out, possible, &err);
    return status;
}

/* What another run has left and this one does not use is said, whatever else is not. */
static void tell_discarded(const struct args *args, const qn_writer *writer)
{
    const char *const out = args_text(args, "out", NULL);
    int64_t done = 0, all = 0;
    if (qn_writer_discarded(writer, &done, &all) != QN_OK || (done == 0 && all >= 0))
        return;
    char *shown = text_shown(must_copy(out));
    if (all < 0)
        fprintf(stderr, "quern: %s.part: replaced; nothing in it could be continued\n", shown);
    else if (args_has(args, "resume"))
        fprintf(stderr,
                "quern: %s.part: %lld of %lld tensors that were done are made again: they are "
                "damaged, or of another run\n",
                shown, (long long)done, (long long)all);
    else
        fprintf(stderr,
                "quern: %s.part: %lld of %lld tensors that an interrupted run had done are thrown "
                "away; --resume would have kept them\n",
                shown, (long long)done, (long long)all);
    free(shown);
}

static qn_status begin(const struct args *args, qn_writer *writer, qn_error *err)
{
    const int is_forced = args_has(args, "force"), is_resumed = args_has(args, "resume");
    qn_status status = fingerprint_add(args, writer, err);
    if (status == QN_OK)
        status = qn_writer_begin(writer, is_forced, is_resumed, err);
    if (status != QN_E_RESUME || !is_forced)
        return status;
    char *why = text_shown(must_copy(err->text));
    fprintf(stderr, "quern: %s; thrown away, as --force says\n", why);
    free(why);
    return qn_writer_begin(writer, is_forced, 0, err);
}

int output_begin(const struct args *args, qn_writer *writer, int status)
{
    const int is_resumed = args_has(args, "resume");
    qn_error err = {0};
    if (status == 0) {
        const qn_status begun = begin(args, writer, &err);
        if (begun == QN_OK) {
            char *part = must_print("%s.part", args_text(args, "out", NULL));
            inputs_remove_on_loss(is_resumed ? NULL : part);
            free(part);
            tell_discarded(args, writer);
            return 0;
        }
        status = complain_output(args_text(args, "out", NULL), begun, &err);
    }
    qn_writer_abort(writer, is_resumed);
    return status;
}

int output_end(const struct args *args, qn_writer *writer, int64_t n, int status)
{
    const char *const out = args_text(args, "out", NULL);
    qn_error err = {0};
    inputs_remove_on_loss(NULL);
    if (status == 0)
        status = inputs_check();
    if (status == 0) {
        const qn_status finished = qn_writer_finish(writer, &err);
        return finished == QN_OK ? 0 : complain_output(out, finished, &err);
    }
    /* A failed disk or Ctrl-C: the work done is kept. A bad tensor, or the first one: nothing is
     * left behind. */
    int is_begun = 0;
    for (int64_t i = 0; i < n && !is_begun; i++)
        is_begun = qn_writer_is_done(writer, i);
    const int is_kept =
        status == EXIT_STOPPED || (status == EXIT_LIBRARY && is_begun) || args_has(args, "resume");
    qn_writer_abort(writer, is_kept);
    if (is_kept && status == EXIT_LIBRARY)
        complain(status, "the same command with --resume goes on from there",
                 "%s.part: holds what is done", out);
    return status == EXIT_STOPPED
               ? complain(status, "the same command with --resume goes on from there",
                          "stopped: what is done is kept in %s.part", out)
               : status;
}
