/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's report: one HTML file with a roofline plot and the table, drawn as SVG; no script, no
 * network, light and dark by the reader's preference.
 *
 * Roofline: operations a byte to the right, operations a second upwards, both logarithmic. Nothing
 * can be above min(bandwidth x intensity, peak). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"
#include "term.h"

enum { PLOT_W = 880, PLOT_H = 440, LEFT = 64, RIGHT = 96, TOP = 16, BOTTOM = 44 };

struct axes {
    double x0, x1, y0, y1; /* log10 */
};

static double px(const struct axes *a, double x)
{
    return LEFT + (log10(x) - a->x0) / (a->x1 - a->x0) * (PLOT_W - LEFT - RIGHT);
}

static double py(const struct axes *a, double y)
{
    return PLOT_H - BOTTOM - (log10(y) - a->y0) / (a->y1 - a->y0) * (PLOT_H - TOP - BOTTOM);
}

static const char style[] =
    "<style>\n"
    ":root{--paper:#fdfdfb;--ink:#1d2129;--soft:#667085;--line:#d9dce3;--a:#1668b8;--b:#b8541a;"
    "--good:#2e8b57;--bar:#cfe0f3}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#15181d;--ink:#e6e8ec;--soft:#98a2b3;"
    "--line:#343a45;--a:#6cb2f5;--b:#f0a06a;--good:#63c392;--bar:#244362}}\n"
    "body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;"
    "max-width:1080px;margin:2rem auto;padding:0 1rem}\n"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}\n"
    "p{color:var(--soft);max-width:70ch}svg{width:100%;height:auto;display:block}\n"
    "svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .soft{fill:var(--soft)}\n"
    "svg .num{font-variant-numeric:tabular-nums;text-anchor:end}\n"
    "svg .grid{stroke:var(--line);stroke-width:1}svg .roof{stroke:var(--ink);stroke-width:2;"
    "fill:none}\n"
    "svg .peak{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 3}\n"
    "svg .int8{fill:var(--a)}svg .float{fill:var(--b)}svg circle{fill-opacity:.8}\n"
    "svg .bar{fill:var(--bar)}svg .head{font-weight:600}\n"
    "</style>\n";

/* ------------------------------------------------------------------------------------ roofline */

/* The higher of the peaks of int8 strategies. */
static enum peak codes_peak(const struct demo *d)
{
    return peak_of(d->ctx, QN_STRATEGY_INT8_BLOCK, 4, "");
}

static void find_axes(const struct demo *d, struct axes *a)
{
    double least = 1e300, most = 0, low = 1e300, high = 0;
    for (int i = 0; i < d->n_rows; i++) {
        const double x = d->rows[i].ops / d->rows[i].bytes, y = d->rows[i].ops / d->rows[i].seconds;
        least = x < least ? x : least;
        most = x > most ? x : most;
        low = y < low ? y : low;
        high = y > high ? y : high;
    }
    const double top = measure_peak(d->ctx, codes_peak(d)), other = measure_peak(d->ctx, PEAK_F32);
    high = top > high ? top : high;
    high = other > high ? other : high;
    a->x0 = floor(log10(least));
    a->x1 = ceil(log10(most * 1.5));
    const double bend = log10((top > other ? top : other) / measure_bandwidth(d->ctx)) + 0.2;
    a->x1 = bend > a->x1 ? bend : a->x1;
    a->y0 = floor(log10(low));
    a->y1 = log10(high) + 0.25;
}

static void draw_grid(FILE *f, const struct axes *a)
{
    for (double e = ceil(a->x0); e <= a->x1; e++) {
        const double x = px(a, pow(10, e));
        fprintf(f, "<line class=grid x1=%.1f y1=%d x2=%.1f y2=%d />", x, TOP, x, PLOT_H - BOTTOM);
        fprintf(f, "<text class=soft x=%.1f y=%d text-anchor=middle>%g</text>\n", x,
                PLOT_H - BOTTOM + 18, pow(10, e));
    }
    for (double e = ceil(a->y0); e <= a->y1; e++) {
        const double y = py(a, pow(10, e));
        fprintf(f, "<line class=grid x1=%d y1=%.1f x2=%d y2=%.1f />", LEFT, y, PLOT_W - RIGHT, y);
        fprintf(f, "<text class=soft x=%d y=%.1f text-anchor=end>%g</text>\n", LEFT - 8, y + 4,
                pow(10, e) / 1e9);
    }
    fprintf(f, "<text class=soft x=%d y=%d text-anchor=middle>operations a byte</text>\n",
            (LEFT + PLOT_W - RIGHT) / 2, PLOT_H - 6);
    fprintf(f, "<text class=soft x=%d y=%d>Gop/s</text>\n", LEFT + 6, TOP + 12);
}

static void draw_roof(FILE *f, const struct axes *a, const struct demo *d)
{
    const double bandwidth = measure_bandwidth(d->ctx), x_end = pow(10, a->x1);
    const enum peak peaks[] = {codes_peak(d), peak_of(d->ctx, QN_STRATEGY_FLOAT, 4, "")};
    double top = 0;
    char rate[HUMAN];
    for (int i = 0; i < 2; i++) {
        const double peak = measure_peak(d->ctx, peaks[i]);
        top = peak > top ? peak : top;
    }
    for (int i = 0; i < 2; i++) {
        const double peak = measure_peak(d->ctx, peaks[i]);
        double bend = peak / bandwidth;
        bend = bend < pow(10, a->x0) ? pow(10, a->x0) : bend;
        if (bend < x_end && peak < top)
            fprintf(f, "<line class=peak x1=%.1f y1=%.1f x2=%d y2=%.1f />", px(a, bend),
                    py(a, peak), PLOT_W - RIGHT, py(a, peak));
        fprintf(f, "<text x=%d y=%.1f>%s</text><text class=soft x=%d y=%.1f>%s</text>\n",
                PLOT_W - RIGHT + 6, py(a, peak) + 4, peak_name(peaks[i]), PLOT_W - RIGHT + 6,
                py(a, peak) + 18, human_rate(peak, rate));
    }
    /* The slope begins where it enters the plot and ends at the highest peak or the right edge. */
    double x0 = pow(10, a->x0), x1 = top / bandwidth;
    if (bandwidth * x0 < pow(10, a->y0))
        x0 = pow(10, a->y0) / bandwidth;
    x1 = x1 < x0 ? x0 : x1 > x_end ? x_end : x1;
    const double y1 = bandwidth * x1 < top ? bandwidth * x1 : top;
    fprintf(f, "<polyline class=roof points=\"%.1f,%.1f %.1f,%.1f %d,%.1f\" />\n", px(a, x0),
            py(a, bandwidth * x0), px(a, x1), py(a, y1), PLOT_W - RIGHT, py(a, y1));
    const double middle = sqrt(x0 * x1);
    fprintf(f, "<text class=soft x=%.1f y=%.1f text-anchor=end>%.3g GB/s</text>\n",
            px(a, middle) - 8, py(a, bandwidth * middle) - 4, bandwidth / 1e9);
}

static void draw_points(FILE *f, const struct axes *a, const struct demo *d)
{
    for (int i = 0; i < d->n_rows; i++) {
        const struct demo_row *r = &d->rows[i];
        const double x = px(a, r->ops / r->bytes), y = py(a, r->ops / r->seconds);
        fprintf(f,
                r->section == 0 ? "<circle class=%s cx=%.1f cy=%.1f r=5>"
                                : "<path class=%s transform=\"translate(%.1f %.1f)\" "
                                  "d=\"M0-6 6 0 0 6-6 0Z\">",
                is_float_strategy(r->strategy) ? "float" : "int8", x, y);
        fprintf(f, "<title>%s, m %lld, %s, %s: %.3g Gop/s, %.0f %% of the limit</title></%s>\n",
                r->layer, (long long)r->m, r->weights, qn_strategy_name(r->strategy),
                r->ops / r->seconds / 1e9, 100 * r->bound / r->seconds,
                r->section == 0 ? "circle" : "path");
    }
}

static void draw_roofline(FILE *f, const struct demo *d)
{
    struct axes a;
    find_axes(d, &a);
    fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=img aria-label=\"roofline\">\n", PLOT_W,
            PLOT_H + 40);
    draw_grid(f, &a);
    draw_roof(f, &a, d);
    draw_points(f, &a, d);
    fputs("<g transform=\"translate(64 466)\"><circle class=int8 r=5 /><text x=12 y=4>int8 "
          "activations</text><circle class=float cx=140 r=5 /><text x=152 y=4>float activations"
          "</text><circle class=soft cx=280 r=5 /><text x=292 y=4>matmul</text>"
          "<path class=soft transform=\"translate(370 0)\" d=\"M0-6 6 0 0 6-6 0Z\" />"
          "<text x=382 y=4>convolution</text></g>\n</svg>\n",
          f);
}

/* --------------------------------------------------------------------------------------- table */

enum { ROW_H = 22, TABLE_W = 1040 };

struct place {
    const char *title;
    int x, is_number;
};
static const struct place places[] = {
    {"layer", 8, 0},   {"m", 190, 1},        {"weights", 204, 0}, {"strategy", 302, 0},
    {"size", 432, 1},  {"error", 496, 1},    {"time", 576, 1},    {"GB/s", 630, 1},
    {"Gop/s", 692, 1}, {"of limit", 814, 1}, {"kernel", 828, 0},
};
enum { N_PLACES = sizeof places / sizeof *places };

static void put(FILE *f, int column, int y, const char *style_class, const char *text)
{
    fprintf(f, "<text class=\"%s%s\" x=%d y=%d>%s</text>", places[column].is_number ? "num " : "",
            style_class, places[column].x, y, text);
}

static void draw_table_row(FILE *f, const struct demo_row *r, int y)
{
    char cell[128], human[HUMAN];
    const double fraction = r->bound / r->seconds;
    const double shown = fraction > 1 ? 1 : fraction;
    fprintf(f, "<g><title>%s: %s</title><rect class=bar x=705 y=%d width=%.1f height=%d />",
            r->layer, r->shape, y - 14, 113 * shown, ROW_H - 5);
    put(f, 0, y, "", r->layer);
    snprintf(cell, sizeof cell, "%lld", (long long)r->m);
    put(f, 1, y, "", cell);
    put(f, 2, y, "", r->weights);
    put(f, 3, y, is_float_strategy(r->strategy) ? "float" : "int8", qn_strategy_name(r->strategy));
    snprintf(cell, sizeof cell, "%.1f %%", 100 * r->size);
    put(f, 4, y, "", cell);
    put(f, 5, y, "", r->is_good ? human_error(r->error, human) : "WRONG");
    put(f, 6, y, "head", human_time(r->seconds, human));
    put(f, 7, y, "", human_number(r->bytes / r->seconds / 1e9, human));
    put(f, 8, y, "", human_number(r->ops / r->seconds / 1e9, human));
    snprintf(cell, sizeof cell, "%.0f %% %s", 100 * fraction,
             r->is_memory_bound ? "memory" : peak_name(r->peak));
    put(f, 9, y, "", cell);
    snprintf(cell, sizeof cell, "%.36s",
             strncmp(r->kernel, "qni_", 4) == 0 ? r->kernel + 4 : r->kernel);
    put(f, 10, y, "soft", cell);
    fputs("</g>\n", f);
}

static void draw_table(FILE *f, const struct demo *d)
{
    int rows = d->n_rows + 1, y = 16;
    for (int i = 0; i < d->n_rows; i++)
        rows += i == 0 || d->rows[i].section != d->rows[i - 1].section;
    fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=img aria-label=\"table of results\">\n", TABLE_W,
            rows * ROW_H + 8);
    for (int c = 0; c < N_PLACES; c++)
        put(f, c, y, "head", places[c].title);
    for (int i = 0; i < d->n_rows; i++) {
        const struct demo_row *r = &d->rows[i];
        if (i == 0 || r->section != d->rows[i - 1].section) {
            y += ROW_H;
            fprintf(f, "<text class=\"head soft\" x=8 y=%d>%s</text>\n", y,
                    demo_sections[r->section]);
        }
        y += ROW_H;
        fprintf(f, "<line class=grid x1=0 y1=%d x2=%d y2=%d />", y - 16, TABLE_W, y - 16);
        draw_table_row(f, r, y);
    }
    fputs("</svg>\n", f);
}

/* ---------------------------------------------------------------------------------------- file */

static void write_page(FILE *f, const struct demo *d)
{
    char isa[256], machine[192], memory[HUMAN], rate[HUMAN], int8[HUMAN];
    const enum peak floats = peak_of(d->ctx, QN_STRATEGY_FLOAT, 4, ""), codes = codes_peak(d);
    char *where;
    machine_words(d->ctx, machine, sizeof machine);
    if (d->info.device.kind == QN_CPU)
        where =
            must_print("%d thread%s, instructions: %s. Measured", d->info.n_threads,
                       d->info.n_threads == 1 ? "" : "s", isa_text(d->info.isa, isa, sizeof isa));
    else
        where = must_print("%s. Rated", machine);
    fprintf(f,
            "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
            "<meta name=viewport content=\"width=device-width\">\n"
            "<meta name=color-scheme content=\"light dark\">\n<title>quern demo</title>\n%s"
            "<h1>quern demo</h1>\n<p>quern %s (%s), %s limits: memory %s/s, %s %s (%s), "
            "%s %s (%s).</p>\n",
            style, qn_version(), qn_commit(), where, human_bytes(measure_bandwidth(d->ctx), memory),
            peak_name(floats), human_rate(measure_peak(d->ctx, floats), rate),
            peak_instruction(d->ctx, floats), peak_name(codes),
            human_rate(measure_peak(d->ctx, codes), int8), peak_instruction(d->ctx, codes));
    free(where);
    fputs("<h2>How near the limit</h2>\n<p>Each mark is one case; the line above it is what this "
          "machine could do at most. Left of the bend memory is the limit, right of it the "
          "instructions. Point at a mark for its name.</p>\n",
          f);
    draw_roofline(f, d);
    fprintf(f,
            "<h2>All cases</h2>\n<p>Size: of the same weights in f16. Error: root mean square "
            "deviation from the exact product with the weights before quantization, relative to "
            "it. Bar: fraction of the limit. %s</p>\n",
            d->notes);
    draw_table(f, d);
    fputs("</html>\n", f);
}

int demo_report(const struct demo *demo, const char *path)
{
    char *part = must_print("%s.part", path);
    FILE *file = fopen(part, "w");
    int is_bad = file == NULL;
    if (file != NULL) {
        write_page(file, demo);
        is_bad = ferror(file) != 0;
        is_bad |= fclose(file) != 0;
    }
    is_bad = is_bad || rename(part, path) != 0;
    const int reason = errno;
    if (is_bad && file != NULL)
        remove(part);
    free(part);
    if (is_bad)
        return complain(EXIT_LIBRARY, "name another place with --html FILE, or --html none",
                        "%s: the report cannot be written: %s", path, strerror(reason));
    return 0;
}
