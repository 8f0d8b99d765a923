/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of the GPU's cost model out of measured times. Pure: it only computes. */
#ifndef CLI_FIT_H
#define CLI_FIT_H

/* One measured call and the model's terms of it (qn_cuda_prediction). */
struct fit_sample {
    double us;
    double bytes, steps, before_us;
    double weight; /* how much it counts, in (0, 1] */
};

/* A line predicts us = t0_us + max( bytes / bandwidth * 1e6, steps * block_ns * 1e-3 ) + before_us.
 */
struct fit_line {
    double t0_us, bandwidth, block_ns;
};

double fit_predict(const struct fit_line *line, const struct fit_sample *sample);

/*
 * The line that deviates least, by a sum over samples of weight * (sqrt(1 + (e / 0.05)^2) - 1) with
 * e = ln(predicted / measured): squares within 5 %, amounts beyond, so that a single bad sample
 * does not bend the line. Nothing is negative. What no sample says anything about stays near
 * `start`. bandwidth is at most `fastest`. n 0: start.
 */
struct fit_line fit_line_to(const struct fit_sample *samples, int n, const struct fit_line *start,
                            double fastest);

/* How far predictions are from samples, as ratios above 1: by the weights typically, and at most
 * (worst_at: which sample; -1 without any). */
struct fit_quality {
    double typical, worst;
    int worst_at;
};
struct fit_quality fit_quality_of(const struct fit_line *line, const struct fit_sample *samples,
                                  int n);

#endif
