/* SPDX-License-Identifier: Apache-2.0 */
/* What --json prints: UTF-8 in which nothing is left that a terminal or an editor would obey, and
 * for a command that fails an object that says why. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
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

/* The text of an object, escaped; ends it. The caller frees it. */
static char *text_of(cJSON *object, int is_one_line)
{
    make_utf8(object);
    char *text = is_one_line ? cJSON_PrintUnformatted(object) : cJSON_Print(object);
    if (text == NULL) {
        complain(EXIT_LIBRARY, "free some", "out of memory");
        exit(EXIT_LIBRARY);
    }
    char *escaped = text_escaped(text);
    cJSON_free(text);
    cJSON_Delete(object);
    return escaped;
}

void json_print(cJSON *object, int is_one_line)
{
    char *text = text_of(object, is_one_line);
    puts(text);
    fflush(stdout);
    json.has_printed = 1;
    json.is_list = is_one_line;
    free(text);
}

/* ---- long lists ------------------------------------------------------------------------------ */

struct json_list {
    FILE *file; /* without a name: what was added so far */
    int64_t n;
};

struct json_list *json_list_begin(cJSON *head, const char *key)
{
    struct json_list *list = must_alloc(sizeof *list);
    char *text = text_of(head, 1);
    list->file = tmpfile();
    list->n = 0;
    if (list->file == NULL) {
        complain(EXIT_LIBRARY, "make room in the folder for temporary files",
                 "no temporary file can be made");
        exit(EXIT_LIBRARY);
    }
    text[strlen(text) - 1] = 0; /* its closing brace comes at the end */
    fprintf(list->file, "%s%s\"%s\":[\n", text, text[1] == 0 ? "" : ",", key);
    free(text);
    return list;
}

void json_list_add(struct json_list *list, cJSON *item)
{
    char *text = text_of(item, 1);
    fprintf(list->file, "%s%s", list->n++ > 0 ? ",\n" : "", text);
    free(text);
}

void json_list_print(struct json_list *list, cJSON *tail)
{
    char buffer[1 << 14];
    char *text = text_of(tail, 1);
    const char *rest = text[1] == '}' ? "" : ",";
    fprintf(list->file, "\n]%s%s", rest, text + 1);
    free(text);
    if (fflush(list->file) != 0 || ferror(list->file) != 0) {
        complain(EXIT_LIBRARY, "make room in the folder for temporary files",
                 "the temporary file of the list cannot be written");
        exit(EXIT_LIBRARY);
    }
    rewind(list->file);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, list->file)) > 0;)
        fwrite(buffer, 1, n, stdout);
    putchar('\n');
    fflush(stdout);
    json.has_printed = 1;
    json.is_list = 0;
    json_list_drop(list);
}

void json_list_drop(struct json_list *list)
{
    if (list == NULL)
        return;
    fclose(list->file);
    free(list);
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
