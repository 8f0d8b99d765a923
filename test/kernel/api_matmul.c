/* SPDX-License-Identifier: Apache-2.0 */
/* qn_matmul: every strategy x weight format x generator, with shapes, types, strides, epilogues,
 * act-order and prescale drawn by the seed. */
#include <string.h>

#include "suites.h"
#include "sweep.h"

struct matmul_case {
    const struct check_format *format;
    qn_strategy strategy;
    int32_t data, shape;
    bool is_plain; /* rows for tiles, and nothing to do to the sums but to scale them */
};

static void draw_shape(struct check *c, const struct matmul_case *mc, int64_t *m, int64_t *n,
                       int64_t *k)
{
    const int32_t shape = mc->shape;
    struct check_random *r = &c->random;
    *m = CHECK_OF(r, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65);
    *n = CHECK_OF(r, 1, 2, 15, 16, 17, 31, 32, 33, 48, 65, 100);
    *k = CHECK_OF(r, 1, 7, 31, 32, 33, 63, 64, 65, 96, 100, 128, 129, 200, 257, 300);
    if (shape == 2) { /* a long one, and not much else */
        *m = check_random_in(r, 1, 9);
        *n = check_random_in(r, 1, 40);
        *k = CHECK_OF(r, 512, 777, 1024, 1500);
    } else if (shape == 4 && mc->format->format.group < 0 && sweep_is_int8(mc->strategy)) {
        *m = check_random_in(r, 1, 3); /* longer than a segment of 32768 */
        *n = check_random_in(r, 1, 20);
        *k = CHECK_OF(r, 32768, 32769, 33000, 40000);
    } else if (mc->is_plain) {
        *m = CHECK_OF(r, 17, 33, 65);
        *n = CHECK_OF(r, 16, 33, 100);
        *k = check_random_in(r, 1, 300);
    } else if (shape == 3) { /* nothing at all along one dimension */
        int64_t *const zero[] = {m, n, k};
        *zero[check_random_in(r, 0, 2)] = 0;
    }
}

static void matmul_case(struct check *c, const void *arg)
{
    const struct matmul_case *mc = arg;
    struct check_random *r = &c->random;
    int64_t m, n, k;
    draw_shape(c, mc, &m, &n, &k);
    const bool is_static = mc->strategy == QN_STRATEGY_INT8_STATIC;
    const struct check_weight_options o = {
        .format = mc->format->format,
        .n = n,
        .k = k,
        .kh = 1,
        .kw = 1,
        .conv_groups = 1,
        .data = mc->data,
        .perm = check_random_chance(r, 20),
        .prescale = k > 0 && check_random_chance(r, is_static ? 3 : 20),
        .f16_scales = check_random_chance(r, 40),
        .small = sweep_draw_small(c, mc->strategy, mc->data),
    };
    struct check_weight weight;
    check_weight_make(c, &o, &weight);
    const bool one_unit = is_static && sweep_is_one_unit(&weight);
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = mc->strategy;
    args.x =
        check_tensor(c, "x", sweep_draw_x_type(c, mc->strategy), 2, (const int64_t[]){m, k}, true);
    check_fill_x(c, &args.x, mc->data, mc->data == CHECK_EXTREME);
    if (o.small && args.x.dtype != QN_F16)
        check_enlarge_x(c, &args.x);
    check_memory_freeze(args.x.data);
    const qn_dtype y = mc->is_plain ? (qn_dtype)CHECK_OF(r, QN_F32, QN_F32, QN_BF16)
                                    : sweep_draw_y_type(c, mc->strategy, one_unit);
    args.y = check_tensor(c, "y", y, 2, (const int64_t[]){m, n}, true);
    sweep_draw_quant(c, mc->strategy, args.x.dtype, &args.quant);
    args.x_scales = sweep_draw_x_scales(c, mc->strategy, &args.x);
    /* Now and then an integer bias where it has no unit. */
    const bool no_unit = is_static && !one_unit && !mc->is_plain && check_random_chance(r, 10);
    qn_epilogue_more more;
    qn_epilogue_more_init(&more);
    args.more = &more;
    const struct sweep_epilogue e = {&args.y, m, n, 1, false, one_unit || no_unit,
                                      &more};
    if (!mc->is_plain)
        sweep_draw_epilogue(c, &e, &args.epilogue);
    struct sweep s = {.calls = &sweep_matmul, .args = &args, .n_experts = 1, .weights = &weight};
    s.data = mc->data;
    s.x_block = CHECK_OF(r, 0, 0, 32, 64, 100, 256);
    s.layout = sweep_draw_layout(c, mc->strategy);
    s.without_sums = args.quant.symmetric && check_random_chance(r, 30);
    if (sweep_is_int8(mc->strategy) && !check_weight_is_integer(&weight))
        s.refusal = QN_E_UNSUPPORTED;
    if (is_static && o.prescale)
        s.refusal = QN_E_UNSUPPORTED;
    else if (no_unit && args.epilogue.bias.dtype == QN_I32)
        s.refusal = QN_E_DTYPE;
    check_about(c, "m=%lld n=%lld k=%lld x=%s y=%s x_block=%lld act=%d%s%s%s%s%s%s", (long long)m,
                (long long)n, (long long)k, qn_dtype_name(args.x.dtype),
                qn_dtype_name(args.y.dtype), (long long)s.x_block, args.epilogue.act,
                o.perm ? " perm" : "", o.prescale ? " prescale" : "", o.f16_scales ? " f16" : "",
                args.quant.symmetric ? " sym" : "", args.epilogue.bias.rank != 0 ? " bias" : "",
                args.epilogue.residual.rank != 0 ? " residual" : "");
    const struct qn_weight *const w = &weight.w;
    qni_ref_matmul(&args, &w, &s.op);
    sweep_use(&s, &args.y);
    sweep_use(&s, &args.x);
    sweep_use(&s, &args.x_scales);
    sweep_use_epilogue(&s, &args.epilogue);
    sweep_run(c, &s);
}

void check_api_matmul(struct check_suite *suite, const struct check_options *options)
{
    static const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                             QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_INT8_STATIC,
                                             QN_STRATEGY_DENSE, QN_STRATEGY_FP8_ROW,
                                             QN_STRATEGY_FP8_BLOCK, QN_STRATEGY_FP8_STATIC};
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats), shapes = options->quick ? 1 : 8;
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++)
        for (int32_t f = 0; f < n_formats; f++)
            for (int32_t data = 0; data < CHECK_N_DATA; data++)
                for (int32_t shape = 0; shape < shapes; shape++) {
                    /* Quick: every third of these, each strategy and format still meeting one. */
                    if (options->quick && (f + data + (int32_t)s) % 3 != 0)
                        continue;
                    const struct matmul_case mc = {&formats[f], strategies[s], data, shape, false};
                    check_case(suite, matmul_case, &mc, "%s/%s/%s/%d",
                               qn_strategy_name(strategies[s]), formats[f].name,
                               check_data_names[data], shape);
                }
    for (int32_t f = 0; f < n_formats; f++)
        for (int32_t data = 0; data < CHECK_N_DATA; data++)
            for (int32_t is_static = 0; is_static < 2; is_static++) {
                const qn_strategy s = is_static ? QN_STRATEGY_INT8_STATIC : QN_STRATEGY_INT8_ROW;
                const struct matmul_case mc = {&formats[f], s, data, 0, true};
                if (formats[f].format.group == QN_GROUP_PER_CHANNEL)
                    check_case(suite, matmul_case, &mc, "%s/%s/%s/plain", qn_strategy_name(s),
                               formats[f].name, check_data_names[data]);
            }
}
