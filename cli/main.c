/* SPDX-License-Identifier: Apache-2.0 */
/* quern: the table of commands, and what belongs to none of them. */
#define _XOPEN_SOURCE 700
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <string.h>

#include "cli.h"
#include "inputs.h"
#include "term.h"

static const struct command *const commands[] = {
    &command_info,
    &command_demo,
    &command_quantize,
    &command_pack,
    &command_convert,
    &command_inspect,
    &command_verify,
    &command_compare,
    &command_run,
    &command_bench,
    &command_explain,
    &command_tune,
    NULL,
};

/* Letters to change to get from a to b, for short words: the usual table, one row at a time. */
static int distance(const char *a, const char *b)
{
    int row[32];
    const int n = (int)strlen(b);
    if (n >= 31)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int above = row[j];
            int least = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < least)
                least = above + 1;
            if (row[j - 1] + 1 < least)
                least = row[j - 1] + 1;
            row[j] = least;
            diagonal = above;
        }
    }
    return row[n];
}

static const struct command *find(const char *name)
{
    for (int i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

static int unknown(const char *name)
{
    const struct command *nearest = NULL;
    int least = 3;
    for (int i = 0; commands[i] != NULL; i++) {
        const int d = distance(name, commands[i]->name);
        if (d < least) {
            least = d;
            nearest = commands[i];
        }
    }
    if (nearest == NULL)
        return complain(EXIT_USAGE, "'quern help' lists the commands", "%s: no such command", name);
    return complain(EXIT_USAGE, "'quern help' lists the commands",
                    "%s: no such command, perhaps %s was meant", name, nearest->name);
}

static int help(int argc, char **argv)
{
    if (argc < 3) {
        help_overview(stdout, commands);
        return EXIT_GOOD;
    }
    const struct command *command = find(argv[2]);
    if (command == NULL)
        return unknown(argv[2]);
    help_command(stdout, command);
    return EXIT_GOOD;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct args args;
    int status = args_parse(command, argc, argv, &args);
    if (status == 0) {
        term_setup(args_text(&args, "color", "auto"));
        status = command->run(&args);
    } else if (status < 0) {
        help_command(stdout, command);
        status = EXIT_GOOD;
    }
    args_free(&args);
    return status;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        help_overview(stderr, commands);
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return help(argc, argv);
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        printf("quern %s (%s)\n", qn_version(), qn_commit());
        return EXIT_GOOD;
    }
    if (strcmp(word, "--dump-options") == 0) {
        dump_options(commands);
        return EXIT_GOOD;
    }
    if (strcmp(word, "--dump-man") == 0) {
        dump_man(commands);
        return EXIT_GOOD;
    }
    if (word[0] == '-')
        return complain(EXIT_USAGE, "'quern help' shows what there is",
                        "%s: an option without a command", word);
    const struct command *command = find(word);
    return command == NULL ? unknown(word) : run(command, argc - 1, argv + 1);
}

/* Before anything is parsed: what cannot be parsed is a failure as well. */
static void find_json(int argc, char **argv)
{
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json_want();
    }
}

/* A limit on the size of files is an error of the write, told as any other. */
static void setup_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, NULL);
    inputs_watch();
}

int main(int argc, char **argv)
{
    setup_signals();
    term_setup("auto");
    find_json(argc, argv);
    const int status = dispatch(argc, argv);
    json_print_failure(status);
    /* A full disk behind a redirection shows only here. */
    if (fflush(stdout) != 0 || ferror(stdout))
        return complain(EXIT_LIBRARY, "is the disk full?", "standard output: writing failed");
    return status;
}
