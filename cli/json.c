/* SPDX-License-Identifier: Apache-2.0 */
/* What --json prints: UTF-8 in which nothing is left that a terminal or an editor would obey, and
 * for a command that fails an object that says why. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static struct {
    int is_wanted;            /* --json is on the command line */
    int has_printed, is_list; /* an object is out; objects come one a line */
    char *error, *todo;       /* of the first complaint */
} json;

void json_want(void)
{
    json.is_wanted = 1;
}

int json_is_wanted(void)
{
    return json.is_wanted;
}

/* Paths are any bytes, JSON is UTF-8. */
static void make_utf8(cJSON *object)
{
    for (; object != NULL; object = object->next) {
        if (object->valuestring != NULL)
            text_utf8(object->valuestring);
        make_utf8(object->child);
    }
}

void json_print(cJSON *object, int is_one_line)
{
    make_utf8(object);
    char *text = is_one_line ? cJSON_PrintUnformatted(object) : cJSON_Print(object);
    if (text == NULL) {
        complain(EXIT_LIBRARY, "free some", "out of memory");
        exit(EXIT_LIBRARY);
    }
    char *escaped = text_escaped(text);
    puts(escaped);
    fflush(stdout);
    json.has_printed = 1;
    json.is_list = is_one_line;
    free(escaped);
    cJSON_free(text);
    cJSON_Delete(object);
}

void json_note_failure(const char *error, const char *todo)
{
    if (!json.is_wanted || json.error != NULL)
        return;
    json.error = must_copy(error);
    json.todo = must_copy(todo);
}

void json_print_failure(int status)
{
    const int is_told = json.has_printed && (!json.is_list || status == EXIT_DIFFERS);
    if (json.is_wanted && status != EXIT_GOOD && !is_told) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "error", json.error != NULL ? json.error : "failed");
        if (json.todo != NULL)
            cJSON_AddStringToObject(o, "todo", json.todo);
        cJSON_AddNumberToObject(o, "code", status);
        json_print(o, 1);
    }
    free(json.error);
    free(json.todo);
    json.error = json.todo = NULL;
}
