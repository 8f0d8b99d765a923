/* SPDX-License-Identifier: Apache-2.0 */
/* What every command of quern shares: the tables of commands and options, the parsed command line,
 * errors with their exit statuses, and the context made from options and environment.
 *
 * A command's options are written once, in its tables: parsing, --help, the man page (--dump-man)
 * and bash completion (--dump-options) are made from them. The command sees the public headers of
 * the library only. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>

#include <quern/cuda.h>
#include <quern/quern.h>

#define PRINTF(text, first) __attribute__((format(printf, text, first)))

/* What the process says when it ends. */
enum {
    EXIT_GOOD = 0,
    EXIT_DIFFERS = 1, /* compare or a verification failed */
    EXIT_USAGE = 2,
    EXIT_INPUT = 3,    /* a file that cannot be read, or is not what it should be */
    EXIT_LIBRARY = 4,  /* the library, the device or the output failed */
    EXIT_STOPPED = 130 /* Ctrl-C */
};

/* -------------------------------------------------------------------------------- command line */

struct option_row {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* short form, or 0 */
    const char *arg;  /* NULL: a switch; "a|b|c": only these words; else a name: "FILE" */
    const char *help;
};

struct example {
    const char *what, *command; /* NULL, NULL ends a list */
};

struct args;

enum { MAX_TABLES = 6 };
struct command {
    const char *name;
    const char *summary;                         /* one line, no full stop */
    const char *operands;                        /* "FILE...", or "" */
    const char *about;                           /* paragraphs, separated by an empty line */
    const struct option_row *tables[MAX_TABLES]; /* NULL after the last */
    const struct example *examples;
    int min_operands, max_operands; /* max -1: any number */
    int shows_plans;                /* 1: what the library would warn of is in the output anyway */
    int (*run)(const struct args *args);
};

extern const struct command command_info, command_demo, command_quantize, command_inspect,
    command_pack, command_convert, command_compare, command_run, command_bench, command_explain,
    command_tune, command_verify;

/* Tables that several commands use. */
extern const struct option_row options_common[];  /* --help, --color */
extern const struct option_row options_context[]; /* --device, --isa, --threads */
extern const struct option_row options_tuning[];  /* --tuning */
extern const struct option_row options_ranks[];   /* --join-mpi, --limit */
extern const struct option_row options_problem[]; /* the shape and types of bench and explain */

struct given {
    const struct option_row *row;
    const char *value;
};
struct args {
    const struct command *command;
    struct given *given;
    int n_given;
    char **operands;
    int n_operands;
};

/* Parse argv[1..] of a command. 0 and filled args, or the exit status after an error was told;
 * -1: help was asked for. args_free() in each case. */
int args_parse(const struct command *command, int argc, char **argv, struct args *args);
void args_free(struct args *args);
/* The last value given, or otherwise; 1 if a switch was given; the i-th value or NULL. */
const char *args_text(const struct args *args, const char *name, const char *otherwise);
int args_has(const struct args *args, const char *name);
const char *args_each(const struct args *args, const char *name, int i);
/* The command line again, "quern bench --n 64", without --json, --color and --peer-folder, which
 * change no figure; the caller frees it. */
char *args_words(const struct args *args);
/* Numbers within limits. out keeps its
 * value when the option is absent. 0, or EXIT_USAGE after the error was told. */
int args_int(const struct args *args, const char *name, int64_t lo, int64_t hi, int64_t *out);
int args_real(const struct args *args, const char *name, double lo, double hi, double *out);
/* parse_int() and parse_real() read a text that is no option's value: `what` names it in the error.
 */
int parse_int(const char *what, const char *text, int64_t lo, int64_t hi, int64_t *out);
int parse_real(const char *what, const char *text, double lo, double hi, double *out);
/* "1,8,64" -> numbers; at most max of them. n gets the count. */
int parse_list(const char *what, const char *text, int64_t lo, int64_t hi, int64_t *out, int max,
               int *n);

void help_overview(FILE *to, const struct command *const *commands);
void help_command(FILE *to, const struct command *command);
void dump_options(const struct command *const *commands);
void dump_man(const struct command *const *commands);

/* ---------------------------------------------------------------------------------- complaints */

/* "quern: <text>; <todo>" on standard error; text is "what: why". Returns the exit status. */
int complain(int status, const char *todo, const char *text, ...) PRINTF(3, 4);
/* A failure of the library about `what`: its own words, what to do about them, its exit status. */
int complain_status(const char *what, qn_status status, const qn_error *err);
/* Complains about a file that was to be written: the exit status is never EXIT_INPUT. */
int complain_output(const char *path, qn_status status, const qn_error *err);
/* Memory of the command itself; ends the process with a sentence when there is none. */
void *must_alloc(size_t bytes);
void *must_align(size_t bytes); /* to 64 bytes */
void *must_grow(void *memory, size_t bytes);
/* An array that doubles, with room for element n, where it holds those before; NULL at n = 0. */
void *must_append(void *array, int64_t n, size_t size);
char *must_copy(const char *text);
char *must_print(const char *format, ...) PRINTF(1, 2);
char *must_print_list(const char *format, va_list list);

/* Bytes that this process may still take: of the machine, of its control group. */
double memory_left(void);
/* Are so many there? Small amounts always are. */
int memory_is_there(size_t bytes);
int memory_is_large(size_t bytes);
/* A context's allocator: NULL where memory is not there. */
void *memory_alloc(void *arg, size_t bytes, size_t alignment);
void memory_free(void *arg, void *memory, size_t bytes);
/* What a terminal would obey - controls, bytes that are no UTF-8 - becomes '?', in place. */
char *text_shown(char *text);
/* Bytes that are no UTF-8 become '?', in place. */
char *text_utf8(char *text);
/* JSON again, with what a terminal would obey as \uXXXX; to be freed. */
char *text_escaped(const char *json);

/* ------------------------------------------------------------------------------------- context */

/* --device, --isa, --threads; else QUERN_ISA, QUERN_THREADS. 0 or the exit status. */
int context_make(const struct args *args, qn_ctx **ctx);
/* Makes a context like context_make(), on `device` ("cpu", "cuda") where --device is not given. */
int context_make_on(const struct args *args, const char *device, qn_ctx **ctx);
/* Where a context's work runs. */
qn_device device_of(const qn_ctx *ctx);
/* "avx2 avx512 ...", of all bits of a mask; "portable" for none. Written to text, returned. */
const char *isa_text(uint64_t isa, char *text, size_t capacity);
/* The newest feature of the mask, what a benchmark line calls its isa. */
const char *isa_newest(uint64_t isa);

/* From now on the first Ctrl-C only sets a flag; a second one kills as usual. */
void stop_on_interrupt(void);
int is_stopped(void);

double seconds_now(void);
void sleep_seconds(double seconds);

/* One line (or indented, for a single document) of JSON; frees the object. */
void json_print(cJSON *object, int is_one_line);
/* An object whose last member is a list of any length, kept in a temporary file until it is known
 * that the command succeeds: {head..., "key": [items], tail...}. head, items and tail are freed. */
struct json_list;
struct json_list *json_list_begin(cJSON *head, const char *key);
void json_list_add(struct json_list *list, cJSON *item);
void json_list_print(struct json_list *list, cJSON *tail);
/* Without printing it. NULL is legal. */
void json_list_drop(struct json_list *list);
/* --json is on the command line: a failure prints an object, too. */
void json_want(void);
int json_is_wanted(void);
/* Keep the first complaint for json_print_failure(). */
void json_note_failure(const char *error, const char *todo);
/* {"error", "todo", "code"} on standard output, if --json wants it, the command failed, and what it
 * printed does not say so itself. Frees what was kept. */
void json_print_failure(int status);

#endif
