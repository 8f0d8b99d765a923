/* SPDX-License-Identifier: Apache-2.0 */
/* Complaints, and memory that is there or ends the process with a sentence. */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "term.h"

int complain(int status, const char *todo, const char *text, ...)
{
    va_list list;
    va_start(list, text);
    char *line = text_shown(must_print_list(text, list));
    va_end(list);
    fflush(stdout);
    fprintf(stderr, "%squern:%s %s; %s\n", style_on(stderr, RED), style_off(stderr), line, todo);
    if (status != EXIT_GOOD)
        json_note_failure(line, todo);
    free(line);
    return status;
}

/* What a person can do about a status, and what the process then ends with. */
static const struct advice {
    qn_status status;
    int exit;
    const char *todo;
} advices[] = {
    {QN_E_ARGUMENT, EXIT_USAGE, "check the values given"},
    {QN_E_SHAPE, EXIT_INPUT, "'quern inspect FILE' shows the shapes"},
    {QN_E_DTYPE, EXIT_INPUT, "choose another type or strategy"},
    {QN_E_STRIDE, EXIT_INPUT, "check the shapes"},
    {QN_E_VALUE, EXIT_INPUT, "repair the tensor, or leave it out with --exclude"},
    {QN_E_FORMAT, EXIT_USAGE, "formats look like int4:g128, int8:pc or q4_k"},
    {QN_E_MEMORY, EXIT_LIBRARY, "free some memory or take a smaller problem"},
    {QN_E_DEVICE, EXIT_LIBRARY, "'quern info' lists the devices"},
    {QN_E_UNSUPPORTED, EXIT_LIBRARY, "another strategy, type or format may be served"},
    {QN_E_LAYOUT, EXIT_INPUT, "pack the weights again for this device"},
    {QN_E_FALLBACK, EXIT_LIBRARY, "leave out --strict to accept the slower kernel"},
    {QN_E_OPEN, EXIT_INPUT, "check the path and its permissions"},
    {QN_E_READ, EXIT_INPUT, "check the disk"},
    {QN_E_WRITE, EXIT_LIBRARY, "make room there or write to another place"},
    {QN_E_CORRUPT, EXIT_INPUT, "fetch or make the file again"},
    {QN_E_NOT_FOUND, EXIT_INPUT, "'quern inspect FILE' lists the names"},
    {QN_E_EXISTS, EXIT_USAGE, "choose another name, or --force to replace it"},
    {QN_E_VERSION, EXIT_INPUT, "use the version of quern that wrote it, or a newer one"},
    {QN_E_RESUME, EXIT_USAGE,
     "give what was given then, or leave out --resume (or add --force) to begin anew"},
    {QN_E_CANCELLED, EXIT_STOPPED, "run it again when ready"},
};

/* "no kernel serves this: reason, reason", out of the library's "...: kernel: reason; kernel: ...":
 * without --kernel, which kernel said so matters to nobody. */
static char *refusals(const char *text)
{
    char *out = must_copy("no kernel serves this");
    for (const char *at = strstr(text, "qni_"); at != NULL; at = strstr(at, "qni_")) {
        const char *reason = at + strcspn(at, ":;");
        at = reason + strcspn(reason + (*reason != '\0'), ";") + (*reason != '\0');
        if (*reason != ':')
            break;
        char *one = must_print("%.*s", (int)(at - reason - 2), reason + 2);
        if (strstr(out, one) == NULL) {
            char *more = must_print("%s%s%s", out, strchr(out, ':') != NULL ? ", " : ": ", one);
            free(out);
            out = more;
        }
        free(one);
    }
    const char *behind = strstr(text, ": ");
    if (strchr(out, ':') == NULL && behind != NULL) { /* no row has the name that was asked for */
        free(out);
        return must_copy(behind + 2);
    }
    return out;
}

int complain_status(const char *what, qn_status status, const qn_error *err)
{
    const char *why = err != NULL && err->text[0] != '\0' ? err->text : qn_status_text(status);
    struct advice advice = {status, EXIT_LIBRARY, "this is a defect of quern if it stays"};
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        if (advices[i].status == status)
            advice = advices[i];
    }
    /* The library's sentence often begins with the same name or path. */
    const size_t length = strlen(what);
    if (length > 0 && strncmp(why, what, length) == 0 && strncmp(why + length, ": ", 2) == 0)
        why += length + 2;
    /* Some of its sentences about files say themselves what to do. */
    const char *own_todo = status == QN_E_CORRUPT ? strstr(why, "; ") : NULL;
    if (own_todo != NULL)
        return complain(advice.exit, own_todo + 2, "%s: %.*s", what, (int)(own_todo - why), why);
    if (status != QN_E_UNSUPPORTED)
        return complain(advice.exit, advice.todo, "%s: %s", what, why);
    char *short_why = refusals(why);
    complain(advice.exit, advice.todo, "%s: %s", what, short_why);
    free(short_why);
    return advice.exit;
}

int complain_output(const char *path, qn_status status, const qn_error *err)
{
    const int exit_status = complain_status(path, status, err);
    return exit_status == EXIT_INPUT ? EXIT_LIBRARY : exit_status;
}

_Noreturn static void no_memory(size_t bytes)
{
    char wanted[HUMAN], left[HUMAN];
    const double there = memory_left();
    /* Not by complain(), which takes memory. */
    fprintf(stderr,
            "quern: memory: %s are needed, %s are left%s; free some or take a smaller problem\n",
            human_bytes((double)bytes, wanted), human_bytes(there, left),
            (double)bytes < there ? ", but this process may not have them" : "");
    if (json_is_wanted())
        printf("{\"error\":\"memory: %s are needed, %s are left\",\"code\":%d}\n", wanted, left,
               EXIT_LIBRARY);
    exit(EXIT_LIBRARY);
}

/* Large memory is touched at once: what comes after sees the remaining memory. */
void *must_alloc(size_t bytes)
{
    const size_t taken = bytes > 0 ? bytes : 1;
    const int is_large = memory_is_large(taken);
    if (!memory_is_there(taken))
        no_memory(taken);
    void *memory = is_large ? malloc(taken) : calloc(1, taken);
    if (memory == NULL)
        no_memory(taken);
    return is_large ? memset(memory, 0, taken) : memory;
}

void *must_align(size_t bytes)
{
    void *memory = NULL;
    if (!memory_is_there(bytes) || posix_memalign(&memory, 64, bytes > 0 ? bytes : 64) != 0)
        no_memory(bytes);
    return memory_is_large(bytes) ? memset(memory, 0, bytes) : memory;
}

void *must_grow(void *memory, size_t bytes)
{
    void *grown = memory_is_there(bytes) ? realloc(memory, bytes > 0 ? bytes : 1) : NULL;
    if (grown == NULL)
        no_memory(bytes);
    return grown;
}

void *must_append(void *array, int64_t n, size_t size)
{
    const int is_full = n == 0 || (n >= 64 && (n & (n - 1)) == 0);
    const size_t count = n == 0 ? 64 : 2 * (size_t)n;
    return is_full ? must_grow(array, count * size) : array;
}

char *must_copy(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    return memcpy(must_alloc(bytes), text, bytes);
}

char *must_print_list(const char *format, va_list list)
{
    va_list again;
    va_copy(again, list);
    const int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = must_alloc((size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, list);
    return text;
}

char *must_print(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    char *text = must_print_list(format, list);
    va_end(list);
    return text;
}
