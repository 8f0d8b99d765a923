/* SPDX-License-Identifier: Apache-2.0 */
/* Tables: cells are collected as text, widths are found at the end (or given, for tables that
 * appear row by row). */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "term.h"

enum {
    MAX_COLUMNS = 16,
    GAP = 2,
    MOST_CELLS = 1 << 16 /* kept; a longer table gets its widths from these, and then flows */
};

struct cell {
    char *text;
    enum style style;
    int is_heading; /* the only cell of its row */
};

struct table {
    const struct column *columns;
    int n_columns, width[MAX_COLUMNS];
    struct cell *cells;
    size_t n_cells, capacity, printed;
    int has_title;
};

struct table *table_create(const struct column *columns)
{
    struct table *t = must_alloc(sizeof *t);
    t->columns = columns;
    while (t->n_columns < MAX_COLUMNS && columns[t->n_columns].title != NULL) {
        const struct column *c = &columns[t->n_columns];
        const int title = text_width(c->title);
        t->width[t->n_columns++] = c->min_width > title ? c->min_width : title;
    }
    return t;
}

static void add(struct table *t, char *text, enum style style, int is_heading);

void table_cell(struct table *t, enum style style, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    add(t, text_shown(must_print_list(format, list)), style, 0);
    va_end(list);
}

void table_heading(struct table *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    add(t, text_shown(must_print_list(format, list)), BOLD, 1);
    va_end(list);
    for (int i = 1; i < t->n_columns; i++)
        add(t, must_copy(""), PLAIN, 1);
}

/* Shortens in the middle, where names differ least; text holds at least width + 4 bytes. */
static void shorten(char *text, int width)
{
    const int length = (int)strlen(text);
    if (text_width(text) != length || length <= width || width < 5)
        return; /* only plain ASCII is cut */
    const int head = (width - 2) / 2, tail = width - 2 - head;
    memmove(text + head + 2, text + length - tail, (size_t)tail + 1);
    text[head] = text[head + 1] = '.';
}

static void print_cell(const struct table *t, int column, const char *text, enum style style)
{
    const int pad = t->width[column] - text_width(text);
    const int is_last = column == t->n_columns - 1;
    const int before = t->columns[column].align == '>' && pad > 0 ? pad : 0;
    const int after = is_last ? 0 : (pad > 0 ? pad - before : 0) + GAP;
    printf("%*s%s%s%s%*s", before, "", style_on(stdout, style), text,
           style == PLAIN ? "" : style_off(stdout), after, "");
}

static void print_rows(struct table *t, size_t end)
{
    if (!t->has_title && t->n_columns > 0) {
        for (int i = 0; i < t->n_columns; i++)
            print_cell(t, i, t->columns[i].title, BOLD);
        putchar('\n');
        t->has_title = 1;
    }
    for (; t->printed < end; t->printed += (size_t)t->n_columns) {
        const struct cell *row = &t->cells[t->printed];
        if (row[0].is_heading)
            printf("%s%s%s", style_on(stdout, BOLD), row[0].text, style_off(stdout));
        for (int i = 0; i < t->n_columns && !row[0].is_heading; i++)
            print_cell(t, i, row[i].text, row[i].style);
        putchar('\n');
    }
    fflush(stdout);
}

void table_print(struct table *t)
{
    int total = 0;
    for (size_t i = 0; i < t->n_cells; i++) {
        const int width = text_width(t->cells[i].text), column = (int)(i % (size_t)t->n_columns);
        if (!t->cells[i].is_heading && width > t->width[column])
            t->width[column] = width;
    }
    for (int i = 0; i < t->n_columns; i++)
        total += t->width[i] + (i > 0 ? GAP : 0);
    for (int i = 0; i < t->n_columns && term_is_tty(stdout); i++) {
        const int over = total - term_width();
        if (over <= 0 || !t->columns[i].shrinks)
            continue;
        const int least = 12 < t->width[i] ? 12 : t->width[i];
        const int now = t->width[i] - over > least ? t->width[i] - over : least;
        total -= t->width[i] - now;
        t->width[i] = now;
        for (size_t c = (size_t)i; c < t->n_cells; c += (size_t)t->n_columns) {
            if (!t->cells[c].is_heading)
                shorten(t->cells[c].text, now);
        }
    }
    print_rows(t, t->n_cells - t->n_cells % (size_t)t->n_columns);
}

static void add(struct table *t, char *text, enum style style, int is_heading)
{
    if (t->n_cells == t->capacity) {
        t->capacity = t->capacity > 0 ? 2 * t->capacity : 64;
        t->cells = must_grow(t->cells, sizeof *t->cells * t->capacity);
    }
    t->cells[t->n_cells++] = (struct cell){text, style, is_heading};
    if (t->n_cells < MOST_CELLS || t->n_cells % (size_t)t->n_columns != 0)
        return;
    table_print(t);
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i].text);
    t->n_cells = t->printed = 0;
}

void table_flow(struct table *t)
{
    print_rows(t, t->n_cells - t->n_cells % (size_t)t->n_columns);
}

void table_destroy(struct table *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i].text);
    free(t->cells);
    free(t);
}
