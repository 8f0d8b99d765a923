/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal: colour only where a person looks, widths, bars, progress, tables.
 *
 * Standard output and standard error are judged apart. Piped output has no escape and no
 * carriage return; names are never shortened there. */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include <stdint.h>
#include <stdio.h>

enum style { PLAIN, BOLD, DIM, RED, GREEN, YELLOW, CYAN };

/* "auto", "always" or "never"; NO_COLOR makes auto never. Call once, at the start. */
void term_setup(const char *color);
int term_is_tty(FILE *file);
int term_has_color(FILE *file);
int term_has_utf8(void);
/* Columns of standard output: the terminal's, or 100 where there is none. */
int term_width(void);
const char *style_on(FILE *file, enum style style);
const char *style_off(FILE *file);

/* Columns that a UTF-8 text takes: one a code point, which is true of all that is drawn here. */
int text_width(const char *text);

/* A bar of `width` columns, filled to fraction in [0, 1]. out: 4 * width + 1 bytes. */
void draw_bar(char *out, int width, double fraction);
/* One column a value, eight heights (nine letters in ASCII). out: 4 * n + 1 bytes. */
void draw_spark(char *out, const double *values, int n);

/* "1.23 GB", "870 us", "3 min 20 s": written to text, which is returned. */
enum { HUMAN = 32 };
const char *human_bytes(double bytes, char text[HUMAN]);
const char *human_time(double seconds, char text[HUMAN]);
/* Three digits that matter, two decimals at most. */
const char *human_number(double value, char text[HUMAN]);
/* A rate with its unit: "426 Gop/s" or "15.7 Top/s". */
const char *human_rate(double per_second, char text[HUMAN]);
/* "0.41 %", or "2.1e-07" below what a percentage can show. */
const char *human_error(double fraction, char text[HUMAN]);

/* ------------------------------------------------------------------------------------ progress */

/* A bar on a terminal, drawn ten times a second; elsewhere the lines of progress_line() alone. */
struct progress {
    double total, done, begun, drawn, at_begin;
    int is_quiet, is_shown;
    int is_count; /* 1: things, not bytes: no rate is shown */
    char what[96];
};
void progress_begin(struct progress *p, double total, double already, int is_quiet);
void progress_set(struct progress *p, double done);
/* What is being worked on. */
void progress_what(struct progress *p, const char *what);
/* A line that stays: above the bar on a terminal, plain elsewhere. */
void progress_line(struct progress *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void progress_end(struct progress *p);
/* Bytes a second since the beginning, of what was not there already. */
double progress_rate(const struct progress *p);

/* -------------------------------------------------------------------------------------- tables */

struct column {
    const char *title; /* NULL ends the list */
    char align;        /* '<' or '>' */
    int min_width;     /* for tables printed row by row */
    int shrinks;       /* 1: shortened in the middle when the terminal is too narrow */
};
struct table;
struct table *table_create(const struct column *columns);
/* The next cell; a full row begins the next one. */
void table_cell(struct table *t, enum style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* An empty row with a title across all columns. */
void table_heading(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* All rows at once, each column as wide as it needs. */
void table_print(struct table *t);
/* Row by row: print the rows that are complete and not yet printed, in the least widths. */
void table_flow(struct table *t);
void table_destroy(struct table *t);

#endif
