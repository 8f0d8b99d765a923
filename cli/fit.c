/* SPDX-License-Identifier: Apache-2.0 */
/* Fitting three constants: a compass search from several places. The model has a kink where bytes
 * and steps cost the same, so that it is no matter for gradients; three dimensions and some hundred
 * samples are few enough to try neighbours. */
#include <math.h>

#include "fit.h"

double fit_predict(const struct fit_line *line, const struct fit_sample *sample)
{
    const double by_bytes = sample->bytes / line->bandwidth * 1e6;
    const double by_steps = sample->steps * line->block_ns * 1e-3;
    return line->t0_us + fmax(by_bytes, by_steps) + sample->before_us;
}

struct problem_of_fit {
    const struct fit_sample *samples;
    int n;
    struct fit_line start;
    double fastest;
};

static double loss(const struct problem_of_fit *p, const struct fit_line *line)
{
    double sum = 0;
    if (line->t0_us < 0 || line->bandwidth > p->fastest)
        return INFINITY;
    for (int i = 0; i < p->n; i++) {
        const double e = log(fit_predict(line, &p->samples[i]) / p->samples[i].us) / 0.05;
        sum += p->samples[i].weight * (sqrt(1 + e * e) - 1);
    }
    /* A trifle: it decides only what the samples leave open. */
    const double b = log(line->bandwidth / p->start.bandwidth);
    const double s = log(line->block_ns / fmax(p->start.block_ns, 1e-3));
    return sum + 1e-3 * (b * b + s * s);
}

/* A step in direction d of 26: each constant stays, grows or shrinks. */
static struct fit_line step(const struct fit_line *from, int d, double size, double scale_us)
{
    const int t = d % 3 - 1, b = d / 3 % 3 - 1, s = d / 9 - 1;
    struct fit_line to = *from;
    to.t0_us += t * size * scale_us;
    if (to.t0_us < 0 && from->t0_us > 0)
        to.t0_us = 0;
    to.bandwidth *= exp(b * size);
    to.block_ns *= exp(s * size);
    return to;
}

static struct fit_line descend(const struct problem_of_fit *p, struct fit_line at, double scale_us)
{
    double here = loss(p, &at);
    for (double size = 0.4; size > 1e-4; size /= 2) {
        for (int moves = 0, moved = 1; moved && moves < 100; moves++) {
            moved = 0;
            struct fit_line best = at;
            for (int d = 0; d < 27; d++) {
                const struct fit_line next = step(&at, d, size, scale_us);
                const double there = loss(p, &next);
                if (there < here) {
                    here = there;
                    best = next;
                    moved = 1;
                }
            }
            at = best;
        }
    }
    return at;
}

struct fit_line fit_line_to(const struct fit_sample *samples, int n, const struct fit_line *start,
                            double fastest)
{
    struct problem_of_fit p = {samples, n, *start, fastest};
    double least_us = INFINITY, rate = 0, block_ns = INFINITY;
    if (n == 0)
        return *start;
    p.start.bandwidth = fmin(p.start.bandwidth, fastest);
    for (int i = 0; i < n; i++) {
        const double us = samples[i].us - samples[i].before_us;
        least_us = fmin(least_us, samples[i].us);
        if (us > 0) {
            rate = fmax(rate, samples[i].bytes / us * 1e6);
            if (samples[i].steps > 0)
                block_ns = fmin(block_ns, us / samples[i].steps * 1e3);
        }
    }
    struct fit_line best = descend(&p, p.start, least_us);
    /* From what the fastest samples say, with some of the time given to t0. */
    for (int i = 0; i < 4 && rate > 0 && block_ns < INFINITY; i++) {
        const double share = 0.25 * i;
        const struct fit_line from = {share * least_us, fmin(rate * (1 + share), fastest),
                                      block_ns};
        const struct fit_line found = descend(&p, from, least_us);
        if (loss(&p, &found) < loss(&p, &best))
            best = found;
    }
    return best;
}

struct fit_quality fit_quality_of(const struct fit_line *line, const struct fit_sample *samples,
                                  int n)
{
    struct fit_quality q = {1, 1, -1};
    double sum = 0, weights = 0;
    for (int i = 0; i < n; i++) {
        const double e = fabs(log(fit_predict(line, &samples[i]) / samples[i].us));
        sum += samples[i].weight * e;
        weights += samples[i].weight;
        if (q.worst_at < 0 || exp(e) > q.worst) {
            q.worst = exp(e);
            q.worst_at = i;
        }
    }
    q.typical = weights > 0 ? exp(sum / weights) : 1;
    return q;
}
