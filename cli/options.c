/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: getopt_long() fed from a command's tables, and typed look-ups of what was
 * given. A word that a table lists as a choice is checked here, so no command has to. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const struct option_row options_common[] = {
    {"color", 0, "auto|always|never", "colour the output; auto: on a terminal, unless NO_COLOR"},
    {"help", 'h', NULL, "show this text"},
    {NULL, 0, NULL, NULL},
};

enum { MAX_OPTIONS = 80, FIRST_VALUE = 256 };

struct flat {
    const struct option_row *rows[MAX_OPTIONS];
    struct option longs[MAX_OPTIONS + 1];
    char shorts[2 * MAX_OPTIONS + 3];
    int n;
};

static void flatten(const struct command *command, struct flat *flat)
{
    char *letter = flat->shorts;
    *letter++ = ':';
    flat->n = 0;
    for (int t = 0; t < MAX_TABLES && command->tables[t] != NULL; t++) {
        for (const struct option_row *row = command->tables[t]; row->name != NULL; row++) {
            flat->rows[flat->n] = row;
            flat->longs[flat->n] =
                (struct option){row->name, row->arg != NULL ? required_argument : no_argument, NULL,
                                FIRST_VALUE + flat->n};
            flat->n++;
            if (row->letter != 0) {
                *letter++ = row->letter;
                if (row->arg != NULL)
                    *letter++ = ':';
            }
        }
    }
    *letter = '\0';
    flat->longs[flat->n] = (struct option){NULL, 0, NULL, 0};
}

static const struct option_row *row_of(const struct flat *flat, int value)
{
    if (value >= FIRST_VALUE && value < FIRST_VALUE + flat->n)
        return flat->rows[value - FIRST_VALUE];
    for (int i = 0; i < flat->n; i++) {
        if (flat->rows[i]->letter == value && value != 0)
            return flat->rows[i];
    }
    return NULL;
}

/* Is value one of the words of "a|b|c"? */
static int is_choice(const char *choices, const char *value)
{
    const size_t length = strlen(value);
    for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, value, length) == 0 && (at[length] == '|' || at[length] == '\0'))
            return 1;
    }
    return 0;
}

static int bad_option(const struct command *command, const struct flat *flat, int sign,
                      const char *word)
{
    char *todo = must_print("'quern help %s' lists the options", command->name);
    int status;
    const struct option_row *row = row_of(flat, optopt);
    if (sign == ':' && row != NULL)
        status = complain(EXIT_USAGE, todo, "%s: --%s needs a value (%s)", command->name, row->name,
                          row->arg);
    else if (row != NULL)
        status = complain(EXIT_USAGE, todo, "%s: --%s takes no value", command->name, row->name);
    else if (optopt != 0 && optopt < FIRST_VALUE)
        status = complain(EXIT_USAGE, todo, "%s: -%c: no such option", command->name, optopt);
    else
        status = complain(EXIT_USAGE, todo, "%s: %s: no such option, or not only one",
                          command->name, word);
    free(todo);
    return status;
}

/* A word that is none of the choices; another option may have it. */
static int bad_choice(const struct command *command, const struct flat *flat,
                      const struct option_row *row)
{
    for (int i = 0; i < flat->n; i++) {
        const struct option_row *other = flat->rows[i];
        if (other->arg != NULL && strchr(other->arg, '|') != NULL && is_choice(other->arg, optarg))
            return complain(EXIT_USAGE, "choose one of these",
                            "%s: --%s '%s': expected %s, perhaps --%s %s was meant", command->name,
                            row->name, optarg, row->arg, other->name, optarg);
    }
    return complain(EXIT_USAGE, "choose one of these", "%s: --%s '%s': expected %s", command->name,
                    row->name, optarg, row->arg);
}

/* "-" is no stream here: inputs are mapped, and outputs appear when they are complete. */
static int no_stream(const struct command *command, const struct option_row *row)
{
    static const char *const outputs[] = {"out", "html", "make-model", NULL};
    for (int i = 0; outputs[i] != NULL; i++)
        if (strcmp(row->name, outputs[i]) == 0)
            return complain(EXIT_USAGE, "give the name of a file; ./- is one that is called -",
                            "%s: --%s -: results are written to files, not to standard output",
                            command->name, row->name);
    return complain(EXIT_USAGE, "give the name of a file; ./- is one that is called -",
                    "%s: --%s -: files are mapped, standard input cannot be", command->name,
                    row->name);
}

static int check_operands(const struct command *c, const struct args *args)
{
    const int n = args->n_operands;
    for (int i = 0; i < n && strncmp(c->operands, "FILE", 4) == 0; i++)
        if (strcmp(args->operands[i], "-") == 0 && (i == 0 || strstr(c->operands, "GLOB") == NULL))
            return complain(EXIT_USAGE, "give the name of a file; ./- is one that is called -",
                            "%s: -: files are mapped, standard input cannot be", c->name);
    for (int i = 0; i < n; i++)
        if (args->operands[i][0] == '\0')
            return complain(EXIT_USAGE, "give names, or leave it out", "%s: argument %d: empty",
                            c->name, i + 1);
    if (n >= c->min_operands && (c->max_operands < 0 || n <= c->max_operands))
        return 0;
    char *todo = must_print("'quern help %s' shows how it is used", c->name);
    int status;
    if (n < c->min_operands)
        status =
            complain(EXIT_USAGE, todo, "%s: too few arguments, expected %s", c->name, c->operands);
    else
        status = complain(EXIT_USAGE, todo, "%s: %s: one argument too many", c->name,
                          args->operands[c->max_operands]);
    free(todo);
    return status;
}

int args_parse(const struct command *command, int argc, char **argv, struct args *args)
{
    struct flat flat;
    flatten(command, &flat);
    *args = (struct args){.command = command};
    args->given = must_alloc(sizeof *args->given * (size_t)(argc + 1));
    opterr = 0;
    optind = 1;
    for (;;) {
        const int value = getopt_long(argc, argv, flat.shorts, flat.longs, NULL);
        if (value < 0)
            break;
        if (value == '?' || value == ':')
            return bad_option(command, &flat, value, argv[optind - 1]);
        const struct option_row *row = row_of(&flat, value);
        if (strcmp(row->name, "help") == 0)
            return -1;
        if (row->arg != NULL && strchr(row->arg, '|') != NULL && !is_choice(row->arg, optarg))
            return bad_choice(command, &flat, row);
        if (row->arg != NULL && strncmp(row->arg, "FILE", 4) == 0 && strcmp(optarg, "-") == 0)
            return no_stream(command, row);
        if (row->arg != NULL && strncmp(row->arg, "FILE", 4) == 0 && optarg[0] == '\0')
            return complain(EXIT_USAGE, "give the name of a file", "%s: --%s: empty", command->name,
                            row->name);
        args->given[args->n_given++] = (struct given){row, optarg};
    }
    args->operands = argv + optind;
    args->n_operands = argc - optind;
    return check_operands(command, args);
}

void args_free(struct args *args)
{
    free(args->given);
    args->given = NULL;
}

const char *args_text(const struct args *args, const char *name, const char *otherwise)
{
    for (int i = args->n_given - 1; i >= 0; i--) {
        if (strcmp(args->given[i].row->name, name) == 0)
            return args->given[i].value;
    }
    return otherwise;
}

char *args_words(const struct args *args)
{
    char *words = must_print("quern %s", args->command->name);
    for (int i = 0; i < args->n_given; i++) {
        const struct given *g = &args->given[i];
        if (strcmp(g->row->name, "json") == 0 || strcmp(g->row->name, "color") == 0 ||
            strcmp(g->row->name, "peer-folder") == 0)
            continue;
        char *more = must_print("%s --%s%s%s", words, g->row->name, g->value != NULL ? " " : "",
                                g->value != NULL ? g->value : "");
        free(words);
        words = more;
    }
    return words;
}

int args_has(const struct args *args, const char *name)
{
    return args_each(args, name, 0) != NULL;
}

const char *args_each(const struct args *args, const char *name, int i)
{
    for (int at = 0; at < args->n_given; at++) {
        if (strcmp(args->given[at].row->name, name) == 0 && i-- == 0)
            return args->given[at].value != NULL ? args->given[at].value : "";
    }
    return NULL;
}

int parse_int(const char *what, const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0)
        return complain(EXIT_USAGE, "give a whole number", "%s '%s': not a number", what, text);
    if (value < lo || value > hi)
        return complain(EXIT_USAGE, "choose a value in between", "%s %s: outside %lld to %lld",
                        what, text, (long long)lo, (long long)hi);
    *out = value;
    return 0;
}

int parse_real(const char *what, const char *text, double lo, double hi, double *out)
{
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || isnan(value))
        return complain(EXIT_USAGE, "give a number", "%s '%s': not a number", what, text);
    if (value < lo || value > hi)
        return complain(EXIT_USAGE, "choose a value in between", "%s %s: outside %g to %g", what,
                        text, lo, hi);
    *out = value;
    return 0;
}

int parse_list(const char *what, const char *text, int64_t lo, int64_t hi, int64_t *out, int max,
               int *n)
{
    char *copy = must_copy(text);
    int status = 0;
    char *rest = NULL;
    *n = 0;
    for (char *word = strtok_r(copy, ",", &rest); word != NULL && status == 0;
         word = strtok_r(NULL, ",", &rest)) {
        if (*n == max)
            status = complain(EXIT_USAGE, "run the command several times",
                              "%s '%s': more than %d values", what, text, max);
        else
            status = parse_int(what, word, lo, hi, &out[(*n)++]);
    }
    free(copy);
    if (status == 0 && *n == 0)
        status = complain(EXIT_USAGE, "give numbers separated by commas", "%s: empty", what);
    return status;
}

static const char *option_label(const char *name, char label[64])
{
    snprintf(label, 64, "--%s", name);
    return label;
}

int args_int(const struct args *args, const char *name, int64_t lo, int64_t hi, int64_t *out)
{
    const char *text = args_text(args, name, NULL);
    char label[64];
    return text == NULL ? 0 : parse_int(option_label(name, label), text, lo, hi, out);
}

int args_real(const struct args *args, const char *name, double lo, double hi, double *out)
{
    const char *text = args_text(args, name, NULL);
    char label[64];
    return text == NULL ? 0 : parse_real(option_label(name, label), text, lo, hi, out);
}
