/* SPDX-License-Identifier: Apache-2.0 */
/* Where the float decode kernels put things in shared memory (decode_plan_shared), on the host and
 * for GPUs that this machine need not have: for every size, type and number of rows that select.c
 * gives them there is room for a chunk of x, nothing lies outside, and the CTAs share out all
 * panels. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/decode.cuh"

static long checked;

static void expect(bool is_true, const char *what, const struct decode &d, int32_t sm)
{
    if (is_true)
        return;
    fprintf(
        stderr,
        "%s: sm_%d, m %d, %d planes, %d panels, %d chunks, slots of %d bytes, %d deep, %d CTAs\n",
        what, sm, d.m, d.x.planes, d.panels, d.chunks, d.slot_bytes, d.depth, d.ctas);
    exit(1);
}

static void plan(const struct qni_cuda_product &p, int32_t sm, int32_t units, int32_t rows,
                 int32_t cluster, bool is_stacked)
{
    struct qni_cuda_launch launch = {};
    launch.sm = sm;
    launch.multiprocessors = sm == 90 ? 132 : 82;
    struct decode d;
    decode_plan(&d, &p, &launch, units, rows);
    d.stacked = is_stacked ? p.x.planes : 1;
    expect(decode_plan_shared(&d, &launch, launch.multiprocessors, cluster, units, 2), "no room", d,
           sm);
    const int64_t x = (int64_t)d.m * d.x.planes * d.x_stride;
    expect(d.bytes <= decode_shared_limit(&launch, 1), "too much", d, sm);
    expect(d.at_sums >= d.at_ring + DECODE_WARPS * d.depth * d.slot_bytes &&
               d.at_x >= d.at_sums + (DECODE_WARPS + d.share) * d.m * d.stacked * 80 &&
               d.bytes >= d.at_x + x,
           "one thing in another", d, sm);
    expect(d.depth >= 1 && d.depth <= DECODE_MAX_DEPTH && d.stretch >= 1 && d.stretch <= d.chunks &&
               d.x_stride >= d.stretch * units * 64,
           "a stretch", d, sm);
    expect(d.ctas % cluster == 0 && d.ctas * (int64_t)d.share + d.more == d.panels &&
               d.more < d.ctas,
           "panels are left over", d, sm);
    checked++;
}

int main(void)
{
    static const int32_t gpus[] = {80, 86, 89, 90, 120};
    static const int32_t panels[] = {1, 2, 3, 131, 256, 1792, 8016, 16000, 400000};
    static const int32_t units[] = {1, 5, 16, 128, 592, 4096, 100000};
    static const int32_t groups[] = {1, 2, 3, 4, 5, 8, 32, 1 << 20};
    for (int32_t sm : gpus)
        for (int32_t n : panels)
            for (int32_t k : units)
                for (int32_t group : groups)
                    for (int32_t shift = 0; shift < 3; shift++)
                        for (int32_t m = 1; m <= 16; m++)
                            for (int32_t planes = 1; planes <= 3; planes++) {
                                struct qni_cuda_product p = {};
                                p.m = m;
                                p.w.panels = n;
                                p.w.n = n * 16;
                                p.w.parts = 1;
                                p.w.units = k;
                                p.w.group_units = group;
                                p.w.n_groups = (k + group - 1) / group;
                                p.w.shift = shift;
                                p.x.columns = k * 32;
                                p.x.planes = planes;
                                /* select.c: is_tight() */
                                if (planes > 2 && m > 12 && qni_cuda_shared_kb(sm) < 160)
                                    continue;
                                const bool is_stacked = planes > 1 && m * planes <= 16;
                                const int32_t rows = m > 8 ? 16 : 8;
                                for (int32_t is_f16 = 0; is_f16 < 2; is_f16++) {
                                    p.w.scale_is_f16 = is_f16;
                                    plan(p, sm, 16, rows, sm == 90 && n > 1 ? 2 : 1, is_stacked);
                                    plan(p, sm, 8, rows, 1, is_stacked);
                                }
                            }
    printf("%ld plans\n", checked);
    return 0;
}
