/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's report: one HTML file with a roofline plot and the table, drawn as SVG; no script, no
 * network, light and dark by the reader's preference.
 *
 * Roofline: operations a byte to the right, operations a second upwards, both logarithmic. Nothing
 * can be above min(bandwidth x intensity, peak). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"
#include "term.h"
#include "whole.h"

enum { LEFT = 52, TOP = 16, BOTTOM = 44, MAX_LABELS = 8 };

/* The plot is drawn twice: wide, and for a telephone, whose letters are as large. */
struct axes {
    double x0, x1, y0, y1; /* log10 */
    int wide, high, right; /* of the plot; of its right margin */
    int is_narrow;
};

static double px(const struct axes *a, double x)
{
    return LEFT + (log10(x) - a->x0) / (a->x1 - a->x0) * (a->wide - LEFT - a->right);
}

static double py(const struct axes *a, double y)
{
    return a->high - BOTTOM - (log10(y) - a->y0) / (a->y1 - a->y0) * (a->high - TOP - BOTTOM);
}

static const char style[] =
    "<style>\n"
    ":root{--paper:#fdfdfb;--ink:#1d2129;--soft:#5b6575;--line:#d9dce3;--a:#1668b8;--b:#b8541a;"
    "--good:#2e8b57;--bar:#cfe0f3}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#15181d;--ink:#e6e8ec;--soft:#a3adbb;"
    "--line:#343a45;--a:#6cb2f5;--b:#f0a06a;--good:#63c392;--bar:#244362}}\n"
    "*{box-sizing:border-box}\n"
    "body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;"
    "max-width:1240px;margin:2rem auto;padding:0 1rem}\n"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}\n"
    "p{max-width:75ch}.soft{color:var(--soft)}svg{width:100%;height:auto;display:block}\n"
    "svg text{font:12px system-ui,sans-serif;fill:var(--ink);paint-order:stroke;"
    "stroke:var(--paper);stroke-width:3px}svg .soft{fill:var(--soft)}"
    "svg .mark{font-weight:600}\n"
    "svg .grid{stroke:var(--line);stroke-width:1}svg .roof{stroke:var(--ink);stroke-width:2;"
    "fill:none}\n"
    "svg .peak{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 3}\n"
    "svg .int8{fill:var(--a)}svg .float{fill:var(--b)}svg circle{fill-opacity:.8}\n"
    "svg .outlier{stroke:var(--ink);stroke-width:1.5}\n"
    ".key i{display:inline-block;width:.7em;height:.7em;margin:0 .35em 0 1em;"
    "background:var(--soft);border-radius:50%}.key .int8{background:var(--a)}"
    ".key .float{background:var(--b)}.key .conv{border-radius:0;transform:rotate(45deg)}\n"
    "table{border-collapse:collapse;width:100%;font-size:13px}\n"
    "th,td{padding:.2rem .4rem;border-top:1px solid var(--line);text-align:left;"
    "white-space:nowrap}\n"
    "th{border-top:0}.num{text-align:right;font-variant-numeric:tabular-nums}\n"
    "td.int8{color:var(--a)}td.float{color:var(--b)}td.time{font-weight:600}\n"
    "td.limit{background:linear-gradient(to right,var(--bar) var(--part),transparent 0)}\n"
    "td.kernel{color:var(--soft);font-size:11px;white-space:normal;overflow-wrap:anywhere}\n"
    "th.part{padding-top:1rem}tr.outlier td:first-child{border-left:3px solid var(--b)}\n"
    ".mark{color:var(--b)}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--bar);"
    "padding:.6rem;margin:.2rem 0 1rem;border-radius:4px}\n"
    ".narrow{display:none}\n"
    "@media(max-width:900px){thead{display:none}table,tbody,tr{display:block}"
    "tr{border-top:1px solid var(--line);padding:.4rem 0}"
    "th,td{display:block;border:0;padding:0 .3rem;text-align:left;white-space:normal}"
    "td{display:flex;justify-content:space-between;gap:1rem}"
    "td::before{content:attr(data-of);color:var(--soft)}"
    "td:first-child{font-weight:600}td:first-child::before{content:none}"
    "table{font-size:15px}td.kernel{font-size:13px}}\n"
    "@media(max-width:620px){.wide{display:none}.narrow{display:block}}\n"
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

/* What others wrote, in HTML. */
static void put_text(FILE *f, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
            fprintf(f, "&#%d;", *text);
        else
            fputc(*text, f);
    }
}

static void draw_grid(FILE *f, const struct axes *a)
{
    for (double e = ceil(a->x0); e <= a->x1; e++) {
        const double x = px(a, pow(10, e));
        fprintf(f, "<line class=grid x1=%.1f y1=%d x2=%.1f y2=%d />", x, TOP, x, a->high - BOTTOM);
        fprintf(f, "<text class=soft x=%.1f y=%d text-anchor=middle>%g</text>\n", x,
                a->high - BOTTOM + 18, pow(10, e));
    }
    for (double e = ceil(a->y0); e <= a->y1; e++) {
        const double y = py(a, pow(10, e));
        fprintf(f, "<line class=grid x1=%d y1=%.1f x2=%d y2=%.1f />", LEFT, y, a->wide - a->right,
                y);
        fprintf(f, "<text class=soft x=%d y=%.1f text-anchor=end>%g</text>\n", LEFT - 8, y + 4,
                pow(10, e) / 1e9);
    }
    fprintf(f, "<text class=soft x=%d y=%d text-anchor=middle>operations a byte</text>\n",
            (LEFT + a->wide - a->right) / 2, a->high - 6);
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
                    py(a, peak), a->wide - a->right, py(a, peak));
        if (a->is_narrow && peak < top) /* where no mark can be: above the slope */
            fprintf(f, "<text class=soft x=%d y=%d>dashed: %s, %s</text>\n", LEFT + 6, TOP + 30,
                    peak_name(peaks[i]), human_rate(peak, rate));
        else if (a->is_narrow)
            fprintf(f, "<text x=%d y=%.1f text-anchor=end>%s, %s</text>\n", a->wide - a->right,
                    py(a, peak) - 5, peak_name(peaks[i]), human_rate(peak, rate));
        else
            fprintf(f, "<text x=%d y=%.1f>%s</text><text class=soft x=%d y=%.1f>%s</text>\n",
                    a->wide - a->right + 6, py(a, peak) + 4, peak_name(peaks[i]),
                    a->wide - a->right + 6, py(a, peak) + 18, human_rate(peak, rate));
    }
    /* The slope begins where it enters the plot and ends at the highest peak or the right edge. */
    double x0 = pow(10, a->x0), x1 = top / bandwidth;
    if (bandwidth * x0 < pow(10, a->y0))
        x0 = pow(10, a->y0) / bandwidth;
    x1 = x1 < x0 ? x0 : x1 > x_end ? x_end : x1;
    const double y1 = bandwidth * x1 < top ? bandwidth * x1 : top;
    fprintf(f, "<polyline class=roof points=\"%.1f,%.1f %.1f,%.1f %d,%.1f\" />\n", px(a, x0),
            py(a, bandwidth * x0), px(a, x1), py(a, y1), a->wide - a->right, py(a, y1));
    const double middle = sqrt(x0 * x1);
    fprintf(f, "<text class=soft x=%.1f y=%.1f text-anchor=end>%.3g GB/s</text>\n",
            px(a, middle) - 8, py(a, bandwidth * middle) - 4, bandwidth / 1e9);
}

static void draw_points(FILE *f, const struct axes *a, const struct demo *d)
{
    for (int i = 0; i < d->n_rows; i++) {
        const struct demo_row *r = &d->rows[i];
        const double x = px(a, r->ops / r->bytes), y = py(a, r->ops / r->seconds);
        const char *kind = is_float_strategy(r->strategy) ? "float" : "int8";
        char name[ROW_NAME];
        if (r->section == 0)
            fprintf(f, "<circle class=\"%s%s\" cx=%.1f cy=%.1f r=5>", kind,
                    r->outlier != NULL ? " outlier" : "", x, y);
        else
            fprintf(f,
                    "<path class=\"%s%s\" transform=\"translate(%.1f %.1f)\" "
                    "d=\"M0-6 6 0 0 6-6 0Z\">",
                    kind, r->outlier != NULL ? " outlier" : "", x, y);
        fprintf(f, "<title>%s: %.3g Gop/s, %.0f %% of the limit</title></%s>\n",
                demo_row_name(r, name), r->ops / r->seconds / 1e9, 100 * r->bound / r->seconds,
                r->section == 0 ? "circle" : "path");
    }
}

/* Outliers have a number at their mark, and their names in the lower right corner, which no mark is
 * near: what is right of the bend and far below the limit would be slower than plain loops. */
static void draw_labels(FILE *f, const struct axes *a, const struct demo *d)
{
    double taken[MAX_LABELS][2], y = a->high - BOTTOM - 8;
    int n = 0, total = 0;
    for (int i = 0; i < d->n_rows; i++)
        total += d->rows[i].outlier != NULL;
    total = total < MAX_LABELS ? total : MAX_LABELS;
    for (int i = 0; i < d->n_rows && n < total; i++) {
        const struct demo_row *r = &d->rows[i];
        if (r->outlier == NULL)
            continue;
        double at_x = px(a, r->ops / r->bytes) + 8, at_y = py(a, r->ops / r->seconds) + 4;
        for (int other = 0; other < n; other++) /* beside the one that is there */
            if (fabs(taken[other][0] - at_x) < 10 && fabs(taken[other][1] - at_y) < 12)
                at_x += 12;
        taken[n][0] = at_x;
        taken[n++][1] = at_y;
        fprintf(f, "<text class=mark x=%.1f y=%.1f>%d</text>", at_x, at_y, n);
        fprintf(f, "<text x=%d y=%.1f text-anchor=end>%d: %s, m %lld%s%s</text>\n",
                a->wide - a->right - 4, y - 16 * (total - n), n, r->layer, (long long)r->m,
                a->is_narrow ? "" : ", ", a->is_narrow ? "" : r->weights);
    }
}

static void draw_roofline(FILE *f, const struct demo *d, int is_narrow)
{
    struct axes a = {.wide = is_narrow ? 380 : 1080,
                     .high = is_narrow ? 420 : 480,
                     .right = is_narrow ? 20 : 96,
                     .is_narrow = is_narrow};
    find_axes(d, &a);
    fprintf(f, "<svg class=%s viewBox=\"0 0 %d %d\" role=img aria-label=\"roofline\">\n",
            is_narrow ? "narrow" : "wide", a.wide, a.high);
    draw_grid(f, &a);
    draw_points(f, &a, d);
    draw_roof(f, &a, d);
    draw_labels(f, &a, d);
    fputs("</svg>\n", f);
}

/* --------------------------------------------------------------------------------------- table */

static void put(FILE *f, const char *title, const char *style_class, const char *text)
{
    fprintf(f, "<td class=\"%s\" data-of=\"%s\">", style_class, title);
    put_text(f, text);
    fputs("</td>", f);
}

static void draw_table_row(FILE *f, const struct demo_row *r)
{
    char cell[128], human[HUMAN];
    const double fraction = r->bound / r->seconds, shown = fraction > 1 ? 1 : fraction;
    fprintf(f, "<tr%s title=\"", r->outlier != NULL ? " class=outlier" : "");
    put_text(f, r->shape);
    fputs("\">", f);
    snprintf(cell, sizeof cell, "%s%s", r->layer, r->outlier != NULL ? " *" : "");
    put(f, "layer", "", cell);
    snprintf(cell, sizeof cell, "%lld", (long long)r->m);
    put(f, "m", "num", cell);
    put(f, "weights", "", r->weights);
    put(f, "strategy", is_float_strategy(r->strategy) ? "float" : "int8",
        qn_strategy_name(r->strategy));
    snprintf(cell, sizeof cell, "%.1f %%", 100 * r->size);
    put(f, "size", "num", cell);
    put(f, "error", "num", r->is_good ? human_error(r->error, human) : "WRONG");
    put(f, "time", "num time", human_time(r->seconds, human));
    put(f, "plain f32", "num", r->plain > 0 ? human_time(r->plain, human) : "-");
    snprintf(cell, sizeof cell, "%.1f x", r->plain / r->seconds);
    put(f, "faster", "num", r->plain > 0 ? cell : "-");
    put(f, "GB/s", "num", human_number(r->bytes / r->seconds / 1e9, human));
    put(f, "Gop/s", "num", human_number(r->ops / r->seconds / 1e9, human));
    fprintf(
        f,
        "<td class=\"limit num\" data-of=\"of the limit\" style=\"--part:%.0f%%\"><span>%.0f %% "
        "%s</span></td>",
        100 * shown, 100 * fraction, r->is_memory_bound ? "memory" : peak_name(r->peak));
    put(f, "kernel", "kernel", strncmp(r->kernel, "qni_", 4) == 0 ? r->kernel + 4 : r->kernel);
    fputs("</tr>\n", f);
}

static void draw_table(FILE *f, const struct demo *d)
{
    static const struct {
        const char *title;
        int is_number;
    } columns[] = {{"layer", 0},  {"m", 1},     {"weights", 0}, {"strategy", 0},
                   {"size", 1},   {"error", 1}, {"time", 1},    {"plain f32", 1},
                   {"faster", 1}, {"GB/s", 1},  {"Gop/s", 1},   {"of the limit", 1},
                   {"kernel", 0}};
    enum { N_COLUMNS = sizeof columns / sizeof *columns };
    fputs("<table>\n<thead><tr>", f);
    for (int c = 0; c < N_COLUMNS; c++)
        fprintf(f, "<th%s>%s</th>", columns[c].is_number ? " class=num" : "", columns[c].title);
    fputs("</tr></thead>\n<tbody>\n", f);
    for (int i = 0; i < d->n_rows; i++) {
        const struct demo_row *r = &d->rows[i];
        if (i == 0 || r->section != d->rows[i - 1].section)
            fprintf(f, "<tr><th class=part colspan=%d>%s</th></tr>\n", N_COLUMNS,
                    demo_sections[r->section]);
        draw_table_row(f, r);
    }
    fputs("</tbody>\n</table>\n", f);
    for (int i = 0; i < d->n_rows; i++) {
        char name[ROW_NAME];
        if (d->rows[i].outlier != NULL)
            fprintf(f, "<div><span class=mark>*</span> %s: %s</div>\n",
                    demo_row_name(&d->rows[i], name), d->rows[i].outlier);
    }
}

/* ---------------------------------------------------------------------------------------- file */

static void write_head(FILE *f, const struct demo *d)
{
    char isa[256], memory[HUMAN], rate[HUMAN], int8[HUMAN];
    const enum peak floats = peak_of(d->ctx, QN_STRATEGY_FLOAT, 4, ""), codes = codes_peak(d);
    const int is_cpu = d->info.device.kind == QN_CPU;
    fprintf(f,
            "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
            "<meta name=viewport content=\"width=device-width\">\n"
            "<meta name=color-scheme content=\"light dark\">\n<title>quern demo</title>\n%s"
            "<h1>quern demo</h1>\n<p>",
            style);
    put_text(f, d->machine);
    if (is_cpu)
        fprintf(f, "; %d thread%s, %s", d->info.n_threads, d->info.n_threads == 1 ? "" : "s",
                isa_text(d->info.isa, isa, sizeof isa));
    fprintf(f, "<br>\n%s", d->date);
    if (d->load >= 0)
        fprintf(f, ", load average %.1f when it began", d->load);
    fprintf(f,
            "; quern %s (%s)</p>\n<p class=soft>%s limits: memory %s/s, %s %s (%s), %s %s "
            "(%s).</p>\n",
            qn_version(), qn_commit(), is_cpu ? "Measured" : "Rated",
            human_bytes(measure_bandwidth(d->ctx), memory), peak_name(floats),
            human_rate(measure_peak(d->ctx, floats), rate), peak_instruction(d->ctx, floats),
            peak_name(codes), human_rate(measure_peak(d->ctx, codes), int8),
            peak_instruction(d->ctx, codes));
}

static void write_page(FILE *f, const struct demo *d)
{
    write_head(f, d);
    fputs("<h2>How near the limit</h2>\n<p class=soft>Each mark is one case; the line above it is "
          "what this machine could do at most. Left of the bend memory is the limit, right of it "
          "the instructions. Named are the cases that stand out.</p>\n"
          "<p class=key><i class=int8></i>int8 activations<i class=float></i>float activations"
          "<i></i>matmul<i class=conv></i>convolution</p>\n",
          f);
    draw_roofline(f, d, 0);
    draw_roofline(f, d, 1);
    fprintf(f,
            "<h2>All cases</h2>\n<p class=soft>Size: of the same weights in f16. Error: root mean "
            "square deviation from the exact product with the weights before quantization, "
            "relative to it. Plain f32: the same product by plain C loops over f32 weights on as "
            "many threads, measured on some of its outputs (of a convolution, without gathering "
            "its patches); faster: that time over ours. Bar: fraction of the limit. %s</p>\n",
            d->notes);
    draw_table(f, d);
    fputs("<h2>Next steps</h2>\n", f);
    for (const struct example *e = demo_next; e->what != NULL; e++)
        fprintf(f, "<div>%s</div><pre>%s</pre>\n", e->what, e->command);
    fputs("</html>\n", f);
}

int demo_report(const struct demo *demo, const char *path)
{
    struct whole page;
    int reason = whole_begin(&page, path);
    if (reason == 0) {
        write_page(page.file, demo);
        reason = whole_end(&page, 1);
    }
    if (reason != 0)
        return complain(EXIT_LIBRARY, "name another place with --html FILE, or --html none",
                        "%s: the report cannot be written: %s", path, strerror(reason));
    return 0;
}
