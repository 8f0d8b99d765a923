/* SPDX-License-Identifier: Apache-2.0 */
/* qn_grouped: several experts of one shape, rows routed to them by offsets or by ids, empty
 * experts, rows that stay untouched, top-k reading of x. */
#include <string.h>

#include "suites.h"
#include "sweep.h"

struct grouped_case {
    const struct check_format *format;
    qn_strategy strategy;
    int32_t data, shape;
};

/* Ranges that rise, some of them empty, perhaps with rows before and behind that belong to nobody.
 */
static qn_tensor draw_offsets(struct check *c, int64_t m, int32_t n_experts)
{
    const int64_t n = n_experts + 1;
    const qn_tensor t = check_tensor(c, "offsets", QN_I32, 1, &n, false);
    int32_t *offsets = t.data;
    for (int32_t e = 0; e <= n_experts; e++)
        offsets[e] = (int32_t)check_random_in(&c->random, 0, m);
    for (int32_t a = 1; a <= n_experts; a++) /* insertion sort */
        for (int32_t b = a; b > 0 && offsets[b] < offsets[b - 1]; b--) {
            const int32_t swap = offsets[b];
            offsets[b] = offsets[b - 1];
            offsets[b - 1] = swap;
        }
    if (check_random_chance(&c->random, 60)) {
        offsets[0] = 0;
        offsets[n_experts] = (int32_t)m;
    }
    check_memory_freeze(t.data);
    return t;
}

static qn_tensor draw_ids(struct check *c, int64_t m, int32_t n_experts)
{
    const qn_tensor t = check_tensor(c, "ids", QN_I32, 1, &m, false);
    for (int64_t i = 0; i < m; i++)
        ((int32_t *)t.data)[i] = (int32_t)check_random_in(&c->random, -1, n_experts - 1);
    check_memory_freeze(t.data);
    return t;
}

static qn_tensor draw_x_rows(struct check *c, int64_t m, int64_t x_rows)
{
    const qn_tensor t = check_tensor(c, "x_rows", QN_I32, 1, &m, false);
    for (int64_t i = 0; i < m; i++)
        ((int32_t *)t.data)[i] = (int32_t)check_random_in(&c->random, 0, x_rows - 1);
    check_memory_freeze(t.data);
    return t;
}

static void grouped_case(struct check *c, const void *arg)
{
    const struct grouped_case *gc = arg;
    struct check_random *r = &c->random;
    const int64_t m = CHECK_OF(r, 0, 1, 2, 5, 8, 17, 33, 40), n = CHECK_OF(r, 1, 15, 16, 33, 50),
                  k = CHECK_OF(r, 1, 32, 33, 64, 100, 200), x_rows = CHECK_OF(r, 1, 4, 19);
    const int32_t n_experts = (int32_t)check_random_in(r, 1, SWEEP_MAX_EXPERTS);
    const bool is_static = gc->strategy == QN_STRATEGY_INT8_STATIC,
               routed = check_random_chance(r, 50);
    const struct check_weight_options o = {
        .format = gc->format->format,
        .n = n,
        .k = k,
        .kh = 1,
        .kw = 1,
        .conv_groups = 1,
        .data = gc->data,
        .perm = check_random_chance(r, 20),
        .prescale = !is_static && check_random_chance(r, 20),
        .f16_scales = check_random_chance(r, 40),
        .small = sweep_draw_small(c, gc->strategy, gc->data),
    };
    struct check_weight weights[SWEEP_MAX_EXPERTS];
    const struct qn_weight *w[SWEEP_MAX_EXPERTS];
    for (int32_t e = 0; e < n_experts; e++) {
        check_weight_make(c, &o, &weights[e]);
        memcpy(weights[e].table, weights[0].table,
               sizeof weights[e].table); /* one codebook for all */
        w[e] = &weights[e].w;
    }
    qn_grouped_args args;
    qn_grouped_args_init(&args);
    args.n_experts = n_experts;
    args.strategy = gc->strategy;
    args.x = check_tensor(c, "x", sweep_draw_x_type(c, gc->strategy), 2,
                          (const int64_t[]){routed ? x_rows : m, k}, true);
    check_fill_x(c, &args.x, gc->data, gc->data == CHECK_EXTREME);
    if (o.small && args.x.dtype != QN_F16)
        check_enlarge_x(c, &args.x);
    check_memory_freeze(args.x.data);
    const bool one_unit = is_static && sweep_is_one_unit(&weights[0]);
    args.y = check_tensor(c, "y", sweep_draw_y_type(c, gc->strategy, one_unit), 2,
                          (const int64_t[]){m, n}, true);
    if (routed)
        args.x_rows = draw_x_rows(c, m, x_rows);
    const bool by_ids = check_random_chance(r, 50);
    if (by_ids)
        args.ids = draw_ids(c, m, n_experts);
    else
        args.offsets = draw_offsets(c, m, n_experts);
    sweep_draw_quant(c, gc->strategy, args.x.dtype, &args.quant);
    args.x_scales = sweep_draw_x_scales(c, gc->strategy, &args.x);
    qn_epilogue_more more;
    qn_epilogue_more_init(&more);
    args.more = &more;
    const struct sweep_epilogue e = {&args.y, m, n, n_experts, false, one_unit, &more};
    sweep_draw_epilogue(c, &e, &args.epilogue);
    struct sweep s = {
        .calls = &sweep_grouped, .args = &args, .n_experts = n_experts, .weights = weights};
    s.data = gc->data;
    s.x_block = CHECK_OF(r, 0, 32, 64);
    s.layout = sweep_draw_layout(c, gc->strategy);
    if (sweep_is_int8(gc->strategy) && !check_weight_is_integer(&weights[0]))
        s.refusal = QN_E_UNSUPPORTED;
    check_about(c, "m=%lld n=%lld k=%lld experts=%d x=%s y=%s x_block=%lld act=%d %s%s%s%s",
                (long long)m, (long long)n, (long long)k, n_experts, qn_dtype_name(args.x.dtype),
                qn_dtype_name(args.y.dtype), (long long)s.x_block, args.epilogue.act,
                by_ids ? "ids" : "offsets", routed ? " x_rows" : "", o.perm ? " perm" : "",
                o.prescale ? " prescale" : "");
    qni_ref_grouped(&args, w, &s.op);
    sweep_use(&s, &args.y);
    sweep_use(&s, &args.x);
    sweep_use(&s, &args.x_scales);
    sweep_use(&s, &args.offsets);
    sweep_use(&s, &args.ids);
    sweep_use(&s, &args.x_rows);
    sweep_use_epilogue(&s, &args.epilogue);
    sweep_run(c, &s);
}

void check_api_grouped(struct check_suite *suite, const struct check_options *options)
{
    static const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                             QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_INT8_STATIC,
                                             QN_STRATEGY_DENSE, QN_STRATEGY_FP8_ROW,
                                             QN_STRATEGY_FP8_BLOCK, QN_STRATEGY_FP8_STATIC};
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats), shapes = options->quick ? 1 : 5;
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++)
        for (int32_t f = 0; f < n_formats; f++)
            for (int32_t shape = 0; shape < shapes; shape++) {
                const int32_t data = (f + shape) % CHECK_N_DATA;
                if (options->quick && (f + (int32_t)s) % 8 != 0)
                    continue;
                const struct grouped_case gc = {&formats[f], strategies[s], data, shape};
                check_case(suite, grouped_case, &gc, "%s/%s/%s/%d", qn_strategy_name(strategies[s]),
                           formats[f].name, check_data_names[data], shape);
            }
}
