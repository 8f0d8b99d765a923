/* SPDX-License-Identifier: Apache-2.0 */
/* What the terminal is, and what is drawn on it: colour, bars, human numbers, progress. */
#define _DEFAULT_SOURCE
#include "term.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

static struct {
    int color[2], tty[2]; /* standard output, standard error */
    int utf8, width;
} term;

static int index_of(FILE *file)
{
    return file == stderr;
}

void term_setup(const char *color)
{
    const char *no_color = getenv("NO_COLOR");
    const char *kind = getenv("TERM");
    const int may =
        (no_color == NULL || no_color[0] == '\0') && (kind == NULL || strcmp(kind, "dumb") != 0);
    term.tty[0] = isatty(STDOUT_FILENO);
    term.tty[1] = isatty(STDERR_FILENO);
    for (int i = 0; i < 2; i++)
        term.color[i] =
            strcmp(color, "always") == 0 || (strcmp(color, "auto") == 0 && may && term.tty[i]);
    /* Letters only: numbers keep the decimal point, which programs read. */
    setlocale(LC_CTYPE, "");
    term.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    struct winsize size;
    term.width = 100;
    if (term.tty[0] && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        term.width = size.ws_col;
    const char *columns = getenv("COLUMNS");
    if (columns != NULL && atoi(columns) >= 20)
        term.width = atoi(columns);
}

int term_is_tty(FILE *file)
{
    return term.tty[index_of(file)];
}

int term_has_color(FILE *file)
{
    return term.color[index_of(file)];
}

int term_has_utf8(void)
{
    return term.utf8;
}

int term_width(void)
{
    return term.width;
}

const char *style_on(FILE *file, enum style style)
{
    static const char *const codes[] = {
        [PLAIN] = "",         [BOLD] = "\033[1m",    [DIM] = "\033[2m",   [RED] = "\033[31m",
        [GREEN] = "\033[32m", [YELLOW] = "\033[33m", [CYAN] = "\033[36m",
    };
    return term.color[index_of(file)] ? codes[style] : "";
}

const char *style_off(FILE *file)
{
    return term.color[index_of(file)] ? "\033[0m" : "";
}

int text_width(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

void draw_bar(char *out, int width, double fraction)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    fraction = fraction >= 0 ? (fraction > 1 ? 1 : fraction) : 0;
    const int steps = (int)(fraction * width * 8 + 0.5);
    for (int i = 0; i < width; i++) {
        const char *cell;
        if (term.utf8)
            cell = i < steps / 8 ? "█" : i == steps / 8 && steps % 8 > 0 ? eighths[steps % 8] : " ";
        else
            cell = i < (steps + 4) / 8 ? "#" : ".";
        out = stpcpy(out, cell);
    }
    *out = '\0';
}

void draw_spark(char *out, const double *values, int n)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char letters[] = " .:-=+*#@";
    double most = 0;
    for (int i = 0; i < n; i++)
        most = values[i] > most ? values[i] : most;
    for (int i = 0; i < n; i++) {
        int level = most > 0 ? (int)(values[i] / most * 8 + 0.5) : 0;
        if (level == 0 && values[i] > 0)
            level = 1; /* rare is not never */
        if (term.utf8)
            out = stpcpy(out, blocks[level]);
        else
            *out++ = letters[level];
    }
    *out = '\0';
}

/* Three digits that matter. */
static int digits_after(double value)
{
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

const char *human_number(double value, char text[HUMAN])
{
    snprintf(text, HUMAN, "%.*f", digits_after(value), value);
    return text;
}

const char *human_bytes(double bytes, char text[HUMAN])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int i = 0;
    while (bytes >= 999.5 && i < 4) {
        bytes /= 1000;
        i++;
    }
    snprintf(text, HUMAN, "%.*f %s", i == 0 ? 0 : digits_after(bytes), bytes, units[i]);
    return text;
}

const char *human_time(double seconds, char text[HUMAN])
{
    if (seconds >= 3600)
        snprintf(text, HUMAN, "%d h %02d min", (int)(seconds / 3600), (int)fmod(seconds / 60, 60));
    else if (seconds >= 100)
        snprintf(text, HUMAN, "%d min %02d s", (int)(seconds / 60), (int)fmod(seconds, 60));
    else if (seconds >= 0.9995)
        snprintf(text, HUMAN, "%.*f s", digits_after(seconds), seconds);
    else if (seconds >= 0.9995e-3)
        snprintf(text, HUMAN, "%.*f ms", digits_after(seconds * 1e3), seconds * 1e3);
    else
        snprintf(text, HUMAN, "%.*f us", digits_after(seconds * 1e6), seconds * 1e6);
    return text;
}

const char *human_rate(double per_second, char text[HUMAN])
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    int i = 0;
    while (i < 3 || (per_second >= 9995 && i < 5)) { /* from Gop/s upwards */
        per_second /= 1000;
        i++;
    }
    snprintf(text, HUMAN, "%.*f %sop/s", digits_after(per_second), per_second, units[i]);
    return text;
}

const char *human_error(double fraction, char text[HUMAN])
{
    if (fraction == 0)
        snprintf(text, HUMAN, "0");
    else if (fraction < 1e-4)
        snprintf(text, HUMAN, "%.1e", fraction);
    else
        snprintf(text, HUMAN, "%.*f %%", fraction < 0.0995 ? 2 : 1, fraction * 100);
    return text;
}

/* ------------------------------------------------------------------------------------ progress */

void progress_begin(struct progress *p, double total, double already, int is_quiet)
{
    *p = (struct progress){.total = total, .done = already, .at_begin = already};
    p->is_quiet = is_quiet;
    p->begun = seconds_now();
}

double progress_rate(const struct progress *p)
{
    const double took = seconds_now() - p->begun;
    return took > 0 ? (p->done - p->at_begin) / took : 0;
}

static void erase(struct progress *p)
{
    if (p->is_shown)
        fputs("\r\033[K", stderr);
    p->is_shown = 0;
}

static void draw(struct progress *p)
{
    char bar[4 * 24 + 1], rate[HUMAN], left[HUMAN];
    const double speed = progress_rate(p);
    draw_bar(bar, 24, p->total > 0 ? p->done / p->total : 1);
    const int room = term.width - 72 > 0 ? term.width - 72 : 0;
    erase(p);
    fprintf(stderr, "%s%s%s %3.0f %%  %s%s%s left  %.*s", style_on(stderr, CYAN), bar,
            style_off(stderr), p->total > 0 ? 100 * p->done / p->total : 100,
            p->is_count ? "" : human_bytes(speed, rate), p->is_count ? "" : "/s  ",
            speed > 0 ? human_time((p->total - p->done) / speed, left) : "?", room < 95 ? room : 95,
            p->what);
    fflush(stderr);
    p->is_shown = 1;
}

void progress_set(struct progress *p, double done)
{
    p->done = done;
    const double now = seconds_now();
    if (p->is_quiet || !term.tty[1] || now - p->drawn < 0.1)
        return;
    p->drawn = now;
    draw(p);
}

void progress_what(struct progress *p, const char *what)
{
    snprintf(p->what, sizeof p->what, "%s", what);
    text_shown(p->what); /* a letter that was cut, too */
}

void progress_line(struct progress *p, const char *format, ...)
{
    if (p->is_quiet)
        return;
    erase(p);
    va_list list;
    va_start(list, format);
    char *line = text_shown(must_print_list(format, list));
    va_end(list);
    fprintf(stderr, "%s\n", line);
    free(line);
}

void progress_end(struct progress *p)
{
    erase(p);
    fflush(stderr);
}
