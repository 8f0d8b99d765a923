/* SPDX-License-Identifier: Apache-2.0 */
/* qn_conv2d and qn_conv_transpose2d: both image layouts, one and two dimensions, batches,
 * asymmetric padding, strides, dilations, groups, depthwise, 1 x 1; every strategy and format. */
#include <string.h>

#include <quern/cuda.h>

#include "../../src/cpu/conv/kernel.h"
#include "../../src/cuda/kernel.h"
#include "suites.h"
#include "sweep.h"

struct conv_case {
    const struct check_format *format;
    qn_strategy strategy;
    bool transpose;
    int32_t data, shape;
    const struct qni_conv_kernel *row; /* this row alone, with a shape that it serves; NULL: any */
    const char *gpu_row;               /* the same of a GPU's table */
};

/* From here on shapes have whole steps of 64 channels and enough outputs for a tile: convolutions
 * that read their image where it lies. */
enum { DIRECT_SHAPE = 1000 };
/* And from here on one channel a group, square kernels, images that several threads share. */
enum { DEPTHWISE_SHAPE = 2000 };
/* From this one on: few channels, lines of every length, as a network's first layer reads. */
enum { FIRST_SHAPE = 3000 };
/* And last: channels that end inside a step, outputs inside a panel, windows of layers. */
enum { RAGGED_SHAPE = 4000 };
/* Groups of a few to some channels, as in ResNeXt, RegNet and ShuffleNet. */
enum { GROUPED_SHAPE = 5000 };

/* Channels in steps of 64 and 128, and up to a few tiles of outputs and pixels: what a GPU fetches
 * from the image. */
enum { IMAGE_SHAPE = 6000 };

struct geometry {
    int64_t batch, h, w, ci, co, groups;
    int32_t kh, kw;
    bool flat; /* one dimension */
};

static struct geometry draw_direct(struct check *c, int32_t shape)
{
    struct check_random *r = &c->random;
    struct geometry g = {.batch = CHECK_OF(r, 1, 1, 2, 3, 5), .groups = 1};
    g.h = check_random_in(r, 4, 15);
    g.w = check_random_in(r, 4, 18);
    g.kh = shape % 3 == 0 ? 1 : (int32_t)CHECK_OF(r, 1, 2, 3, 3, 4);
    g.kw = shape % 3 == 0 ? 1 : (int32_t)CHECK_OF(r, 1, 3, 3, 5);
    g.ci = CHECK_OF(r, 64, 64, 128);
    g.co = CHECK_OF(r, 16, 32, 32, 33, 64, 79);
    if (shape % 4 == 3) { /* a first layer */
        g.ci = CHECK_OF(r, 1, 2, 3, 4);
        g.kh = (int32_t)CHECK_OF(r, 2, 3, 7);
        g.kw = (int32_t)CHECK_OF(r, 2, 3, 7);
    }
    return g;
}

static struct geometry draw_depthwise(struct check *c)
{
    struct check_random *r = &c->random;
    struct geometry g = {.batch = CHECK_OF(r, 1, 2, 3), .ci = 1, .co = 1};
    g.h = check_random_in(r, 5, 30);
    g.w = CHECK_OF(r, 7, 8, 12, 14, 16, 20, 23, 28, 36, 45, 70);
    g.kh = g.kw = (int32_t)CHECK_OF(r, 3, 3, 5, 7);
    g.groups = CHECK_OF(r, 3, 8, 12, 16, 24, 34, 64, 68, 147);
    return g;
}

static struct geometry draw_first(struct check *c, int32_t shape)
{
    struct check_random *r = &c->random;
    struct geometry g = {.batch = CHECK_OF(r, 1, 2, 3), .groups = 1};
    g.h = check_random_in(r, 6, 17);
    g.w = 6 + shape % 61;
    g.kh = (int32_t)check_random_in(r, 1, 9);
    g.kw = (int32_t)check_random_in(r, 1, 9);
    g.ci = CHECK_OF(r, 1, 2, 3, 3, 3, 4);
    g.co = CHECK_OF(r, 16, 24, 32, 64, 70);
    return g;
}

static struct geometry draw_ragged(struct check *c, int32_t shape)
{
    struct check_random *r = &c->random;
    struct geometry g = {.batch = CHECK_OF(r, 1, 1, 2, 3), .groups = 1};
    g.h = check_random_in(r, 4, 15);
    g.w = check_random_in(r, 4, 18);
    g.kh = g.kw = shape % 2 == 0 ? 1 : (int32_t)CHECK_OF(r, 2, 3, 3, 5);
    g.ci = CHECK_OF(r, 4, 5, 12, 16, 24, 32, 40, 48, 63, 72, 96, 112, 144, 160);
    g.co = CHECK_OF(r, 8, 16, 24, 40, 48, 80, 96, 112);
    return g;
}

/* Each case sums this in double for every kernel that serves it. */
static int64_t products_of(const struct geometry *g)
{
    return g->batch * g->groups * g->ci * g->co * g->kh * g->kw * g->h * g->w;
}

static struct geometry draw_grouped(struct check *c, int32_t shape)
{
    enum { MOST = 6000000 };
    struct check_random *r = &c->random;
    struct geometry g = {.batch = CHECK_OF(r, 1, 1, 2, 5)};
    g.h = check_random_in(r, 4, 15);
    g.w = check_random_in(r, 4, 18);
    g.kh = g.kw = shape % 3 == 0 ? 1 : (int32_t)CHECK_OF(r, 3, 3, 3, 2, 5);
    g.groups = CHECK_OF(r, 2, 3, 4, 5, 8, 16, 32, 33);
    g.ci = CHECK_OF(r, 2, 3, 4, 4, 8, 12, 16, 20, 24, 32, 48);
    g.co = CHECK_OF(r, g.ci, g.ci, g.ci, 1, 4, 17, 32, 32, 40);
    if (shape % 8 == 7)
        g.ci = CHECK_OF(r, 64, 72, 128);
    if (shape % 16 == 5) { /* more weights of a slab than are kept unpacked */
        g.groups = 2;
        g.ci = 32;
        g.co = 256;
        g.h = g.w = 7;
        g.kh = g.kw = 3;
    }
    if (products_of(&g) > MOST)
        g.batch = 1;
    for (; products_of(&g) > MOST && g.h * g.w > 20; g.w = g.w > 5 ? g.w - 1 : g.w)
        g.h = g.h > 4 ? g.h - 1 : g.h;
    while (products_of(&g) > MOST && g.groups > 2)
        g.groups /= 2;
    return g;
}

static struct geometry draw_image(struct check *c, int32_t shape)
{
    struct check_random *r = &c->random;
    struct geometry g = {.batch = CHECK_OF(r, 1, 2, 3), .groups = CHECK_OF(r, 1, 1, 1, 2)};
    g.h = check_random_in(r, 3, 15);
    g.w = check_random_in(r, 2, 18);
    g.kh = (int32_t)CHECK_OF(r, 1, 2, 3, 3, 4);
    g.kw = g.kh == 1 ? 2 : (int32_t)CHECK_OF(r, 1, 3, 3, 5);
    g.ci = shape % 3 == 0 ? 64 : CHECK_OF(r, 128, 128, 256);
    g.co = CHECK_OF(r, 16, 40, 128, 136, 200);
    if (g.ci == 256)
        g.co = CHECK_OF(r, 24, 70);
    return g;
}

/* What a row serves that was asked for by name. */
static struct geometry draw_for_row(struct check *c, const struct qni_conv_kernel *row)
{
    struct check_random *r = &c->random;
    struct geometry g = {.batch = CHECK_OF(r, 1, 1, 2, 3), .groups = 1, .kh = 3, .kw = 3};
    g.h = check_random_in(r, 6, 14);
    g.w = check_random_in(r, 6, 17);
    if (row->row.m_min > 1) { /* tiles of 16 outputs: 4 x 4 with a stride of 2 */
        g.h += 2;
        g.w += 2;
    }
    g.ci = CHECK_OF(r, 32, 64, 96, 160);
    g.co = CHECK_OF(r, 8, 16, 24, 40, 65);
    if (row->algorithm == QNI_CONV_TOOM) {
        g.ci = CHECK_OF(r, 3, 4);
        g.kh = g.kw = 7;
        g.w += 8; /* lines of four outputs and more */
    } else if (!qni_conv_is_direct(row->algorithm)) {
        g.groups = CHECK_OF(r, 2, 3, 4, 8);
        g.ci = CHECK_OF(r, 4, 8, 16);
        g.co = CHECK_OF(r, 3, 4, 8, 12, 16);
    }
    return g;
}

static void window_for_row(struct check *c, const struct qni_conv_kernel *row, qn_conv_args *args)
{
    const int32_t pad = row->algorithm == QNI_CONV_TOOM ? 3 : 1;
    const bool in_squares = qni_conv_in_squares(row->algorithm);
    int32_t stride = in_squares ? 1 : (int32_t)check_random_in(&c->random, 1, 2);
    if (pad == 3)
        stride = 2;
    args->image = QN_NHWC;
    for (int d = 0; d < 2; d++) {
        args->stride[d] = stride;
        args->dilation[d] = 1;
        args->pad[d] = args->pad[d + 2] = pad;
    }
}

/* The channels of a group, groups and taps. Every fourth shape is depthwise, every fourth 1 x 1. */
static struct geometry draw_geometry(struct check *c, int32_t shape)
{
    struct check_random *r = &c->random;
    if (shape >= IMAGE_SHAPE)
        return draw_image(c, shape);
    if (shape >= GROUPED_SHAPE)
        return draw_grouped(c, shape);
    if (shape >= RAGGED_SHAPE)
        return draw_ragged(c, shape);
    if (shape >= FIRST_SHAPE)
        return draw_first(c, shape);
    if (shape >= DEPTHWISE_SHAPE)
        return draw_depthwise(c);
    if (shape >= DIRECT_SHAPE)
        return draw_direct(c, shape);
    struct geometry g = {.batch = CHECK_OF(r, 1, 1, 2, 3)};
    g.flat = check_random_chance(r, 20);
    g.h = g.flat ? 1 : check_random_in(r, 1, 9);
    g.w = check_random_in(r, 1, 12);
    g.kh = g.flat ? 1 : (int32_t)CHECK_OF(r, 1, 2, 3, 3, 5);
    g.kw = (int32_t)CHECK_OF(r, 1, 2, 3, 3, 4);
    g.groups = CHECK_OF(r, 1, 1, 2, 3);
    g.ci = CHECK_OF(r, 1, 2, 3, 8, 16, 20, 33);
    g.co = CHECK_OF(r, 1, 2, 5, 16, 17);
    if (shape % 4 == 1) { /* depthwise, perhaps with a multiplier */
        g.groups = CHECK_OF(r, 1, 5, 16, 17, 40);
        g.ci = 1;
        g.co = CHECK_OF(r, 1, 1, 2);
    } else if (shape % 4 == 2) {
        g.kh = g.kw = 1;
    }
    return g;
}

/* As torch has it: less than the stride or the dilation; on a GPU than the stride. */
static int32_t most_out_pad(const struct check *c, const qn_conv_args *args, int d)
{
    const bool on_cpu = c->options->device->kind == QN_CPU;
    return on_cpu && args->dilation[d] > args->stride[d] ? args->dilation[d] - 1
                                                         : args->stride[d] - 1;
}

/* Strides, dilations and padding that leave an output. */
static void draw_window(struct check *c, const struct geometry *g, bool transpose,
                        qn_conv_args *args)
{
    struct check_random *r = &c->random;
    const int64_t in[2] = {g->h, g->w}, taps[2] = {g->kh, g->kw};
    for (int d = g->flat ? 1 : 0; d < 2; d++)
        for (;;) {
            args->stride[d] = (int32_t)CHECK_OF(r, 1, 1, 2, 3);
            args->dilation[d] = (int32_t)CHECK_OF(r, 1, 1, 1, 2, 3);
            args->pad[d] = (int32_t)check_random_in(r, 0, 3);
            args->pad[d + 2] = (int32_t)check_random_in(r, 0, 3);
            const int64_t reach = args->dilation[d] * (taps[d] - 1) + 1;
            const int64_t pads = args->pad[d] + args->pad[d + 2];
            if (transpose)
                args->out_pad[d] = (int32_t)check_random_in(r, 0, most_out_pad(c, args, d));
            if (transpose ? (in[d] - 1) * args->stride[d] - pads + reach + args->out_pad[d] >= 1
                          : in[d] + pads >= reach)
                break;
        }
}

/* The window of most layers: the same on both axes, half the kernel of padding. */
static void even_window(struct check *c, const struct geometry *g, qn_conv_args *args)
{
    struct check_random *r = &c->random;
    const int32_t stride = (int32_t)CHECK_OF(r, 1, 1, 2), dilation = (int32_t)CHECK_OF(r, 1, 1, 2);
    for (int d = 0; d < 2; d++) {
        args->stride[d] = stride;
        args->dilation[d] = stride == 1 && g->kh == 3 ? dilation : 1;
        args->pad[d] = args->pad[d + 2] = args->dilation[d] * (g->kh / 2);
    }
}

static void first_window(struct check *c, qn_conv_args *args)
{
    struct check_random *r = &c->random;
    for (int d = 0; d < 2; d++) {
        args->stride[d] = (int32_t)CHECK_OF(r, 1, 2, 2, 4);
        args->pad[d] = (int32_t)check_random_in(r, 2, 4);
        args->pad[d + 2] = (int32_t)check_random_in(r, 1, 4);
    }
}

static int64_t output_length(const qn_conv_args *a, bool transpose, int d, int64_t in, int64_t taps)
{
    const int64_t pads = a->pad[d] + a->pad[d + 2], reach = a->dilation[d] * (taps - 1) + 1;
    return transpose ? (in - 1) * a->stride[d] - pads + reach + a->out_pad[d]
                     : (in + pads - reach) / a->stride[d] + 1;
}

/* Rank and shape of an image tensor. */
static int32_t image_shape(const struct geometry *g, qn_image image, int64_t channels, int64_t h,
                           int64_t w, int64_t shape[4])
{
    const int64_t nchw[4] = {g->batch, channels, h, w}, ncw[4] = {g->batch, channels, w, 0};
    const int64_t nhwc[4] = {g->batch, h, w, channels}, nwc[4] = {g->batch, w, channels, 0};
    memcpy(shape, image == QN_NCHW ? (g->flat ? ncw : nchw) : (g->flat ? nwc : nhwc), sizeof nchw);
    return g->flat ? 3 : 4;
}

/* Of a row of Hopper's. */
static bool has_gpu_for(const struct check *c)
{
    qn_cuda_info gpu;
    qn_cuda_info_init(&gpu);
    return qn_cuda_query(c->options->device_index, &gpu, NULL) == QN_OK && gpu.sm == 90;
}

static void conv_case(struct check *c, const void *arg)
{
    const struct conv_case *cc = arg;
    struct check_random *r = &c->random;
    if (cc->gpu_row != NULL && !has_gpu_for(c))
        return;
    const struct geometry g =
        cc->row != NULL ? draw_for_row(c, cc->row) : draw_geometry(c, cc->shape);
    const bool is_plain =
        cc->row != NULL || cc->gpu_row != NULL; /* weights as every row of the table reads them */
    const bool is_static = cc->strategy == QN_STRATEGY_INT8_STATIC;
    const struct check_weight_options o = {
        .format = cc->format->format,
        .n = g.groups * g.co,
        .k = g.kh * g.kw * g.ci,
        .kh = g.kh,
        .kw = g.kw,
        .conv_groups = (int32_t)g.groups,
        .data = cc->data,
        .perm = !is_plain && check_random_chance(r, 10),
        .prescale = !is_plain && !is_static && check_random_chance(r, 15),
        .f16_scales = check_random_chance(r, 40),
        .small = sweep_draw_small(c, cc->strategy, cc->data),
    };
    struct check_weight weight;
    check_weight_make(c, &o, &weight);
    const bool one_unit = is_static && sweep_is_one_unit(&weight);
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.strategy = cc->strategy;
    args.image = (qn_image)check_random_in(r, QN_NCHW, QN_NHWC);
    if (cc->row != NULL)
        window_for_row(c, cc->row, &args);
    else if (cc->shape >= FIRST_SHAPE && cc->shape < RAGGED_SHAPE)
        first_window(c, &args);
    else if (cc->shape >= DEPTHWISE_SHAPE && cc->shape < IMAGE_SHAPE && check_random_chance(r, 75))
        even_window(c, &g, &args);
    else
        draw_window(c, &g, cc->transpose, &args);
    const int64_t oh = g.flat ? 1 : output_length(&args, cc->transpose, 0, g.h, g.kh);
    const int64_t ow = output_length(&args, cc->transpose, 1, g.w, g.kw);
    int64_t shape[4];
    int32_t rank = image_shape(&g, args.image, g.groups * g.ci, g.h, g.w, shape);
    const qn_dtype drawn = sweep_draw_x_type(c, cc->strategy);
    const bool is_f16 = cc->gpu_row != NULL && strstr(cc->gpu_row, "_f16_") != NULL;
    args.x = check_tensor(c, "x", is_f16 ? QN_F16 : drawn, rank, shape, true);
    check_fill_x(c, &args.x, cc->data, cc->data == CHECK_EXTREME && check_random_chance(r, 30));
    if (o.small && args.x.dtype != QN_F16)
        check_enlarge_x(c, &args.x);
    check_memory_freeze(args.x.data);
    rank = image_shape(&g, args.image, o.n, oh, ow, shape);
    args.y = check_tensor(c, "y", sweep_draw_y_type(c, cc->strategy, one_unit), rank, shape, true);
    sweep_draw_quant(c, cc->strategy, args.x.dtype, &args.quant);
    qn_epilogue_more more;
    qn_epilogue_more_init(&more);
    args.more = &more;
    const struct sweep_epilogue e = {&args.y, g.batch * oh * ow, o.n, 1, true, one_unit, &more};
    sweep_draw_epilogue(c, &e, &args.epilogue);
    struct sweep s = {.args = &args, .n_experts = 1, .weights = &weight, .data = cc->data};
    s.calls = cc->transpose ? &sweep_conv_transpose2d : &sweep_conv2d;
    s.x_block = CHECK_OF(r, 0, 0, 32, 64);
    s.layout = is_plain ? NULL : sweep_draw_layout(c, cc->strategy);
    if (sweep_is_int8(cc->strategy) && !check_weight_is_integer(&weight))
        s.refusal = QN_E_UNSUPPORTED;
    check_about(
        c,
        "%s batch=%lld %lldx%lld ci=%lld co=%lld groups=%lld taps=%dx%d stride=%d,%d "
        "dilation=%d,%d pad=%d,%d,%d,%d out=%lldx%lld x=%s y=%s x_block=%lld act=%d%s%s%s%s",
        args.image == QN_NCHW ? "nchw" : "nhwc", (long long)g.batch, (long long)g.h, (long long)g.w,
        (long long)g.ci, (long long)g.co, (long long)g.groups, g.kh, g.kw, args.stride[0],
        args.stride[1], args.dilation[0], args.dilation[1], args.pad[0], args.pad[1], args.pad[2],
        args.pad[3], (long long)oh, (long long)ow, qn_dtype_name(args.x.dtype),
        qn_dtype_name(args.y.dtype), (long long)s.x_block, args.epilogue.act, g.flat ? " flat" : "",
        o.perm ? " perm" : "", o.prescale ? " prescale" : "", args.quant.symmetric ? " sym" : "");
    const struct qn_weight *const w = &weight.w;
    if (cc->transpose)
        qni_ref_conv_transpose2d(&args, &w, &s.op);
    else
        qni_ref_conv2d(&args, &w, &s.op);
    sweep_use(&s, &args.y);
    sweep_use(&s, &args.x);
    sweep_use_epilogue(&s, &args.epilogue);
    if (cc->row != NULL)
        sweep_run_row(c, &s, cc->row->row.name);
    else if (cc->gpu_row != NULL)
        sweep_run_row(c, &s, cc->gpu_row);
    else
        sweep_run(c, &s);
}

static const qn_strategy strategies[5] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                          QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_INT8_STATIC,
                                          QN_STRATEGY_DENSE};

static void enumerate(struct check_suite *suite, const struct check_options *options,
                      bool transpose)
{
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats), shapes = options->quick ? 4 : 12;
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++)
        for (int32_t f = 0; f < n_formats; f++)
            for (int32_t shape = 0; shape < shapes; shape++) {
                const int32_t data = (f + shape / 4 + shape) % CHECK_N_DATA;
                if (options->quick && (f + shape * 5 + (int32_t)s) % 16 != 0)
                    continue;
                /* Mostly float's rows: only for what is chosen otherwise. */
                if (strategies[s] == QN_STRATEGY_DENSE && (f + shape) % 4 != 0)
                    continue;
                const struct conv_case cc = {&formats[f], strategies[s], transpose, data,
                                             shape,       NULL,          NULL};
                check_case(suite, conv_case, &cc, "%s/%s/%s/%d", qn_strategy_name(strategies[s]),
                           formats[f].name, check_data_names[data], shape);
            }
}

void check_api_conv2d(struct check_suite *suite, const struct check_options *options)
{
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats), shapes = options->quick ? 12 : 48;
    enumerate(suite, options, false);
    for (int32_t f = 0; f < n_formats; f++)
        for (int32_t i = 0; i < shapes / 4; i++) {
            const qn_strategy strategy = strategies[(i + f) % 4];
            const struct conv_case cc = {
                &formats[f],       strategy, false, (i / 4 + f) % CHECK_N_DATA,
                GROUPED_SHAPE + i, NULL,     NULL};
            check_case(suite, conv_case, &cc, "grouped/%s/%s/%s/%d", qn_strategy_name(strategy),
                       formats[f].name, check_data_names[cc.data], i);
        }
    for (int32_t f = 0; f < n_formats; f++) {
        if (strcmp(formats[f].name, "int8:pc") != 0 && strcmp(formats[f].name, "int4:pc") != 0)
            continue;
        for (int32_t i = 0; i < shapes; i++) {
            const struct conv_case cc = {&formats[f],
                                         QN_STRATEGY_INT8_STATIC,
                                         false,
                                         i % CHECK_N_DATA,
                                         DIRECT_SHAPE + i,
                                         NULL,
                                         NULL};
            check_case(suite, conv_case, &cc, "direct/%s/%s/%d", formats[f].name,
                       check_data_names[i % CHECK_N_DATA], i);
        }
        for (int32_t i = 0; i < 2 * shapes; i++) {
            const struct conv_case cc = {&formats[f],
                                         QN_STRATEGY_INT8_STATIC,
                                         false,
                                         i % CHECK_N_DATA,
                                         FIRST_SHAPE + i,
                                         NULL,
                                         NULL};
            check_case(suite, conv_case, &cc, "first/%s/%s/%d", formats[f].name,
                       check_data_names[i % CHECK_N_DATA], i);
        }
        for (int32_t i = 0; i < 2 * shapes; i++) {
            const struct conv_case cc = {&formats[f],
                                         QN_STRATEGY_INT8_STATIC,
                                         false,
                                         i % CHECK_N_DATA,
                                         RAGGED_SHAPE + i,
                                         NULL,
                                         NULL};
            check_case(suite, conv_case, &cc, "ragged/%s/%s/%d", formats[f].name,
                       check_data_names[i % CHECK_N_DATA], i);
        }
        for (int32_t i = 0; i < 3 * shapes; i++) {
            const struct conv_case cc = {&formats[f],
                                         strategies[i % 4],
                                         false,
                                         i % CHECK_N_DATA,
                                         GROUPED_SHAPE + shapes + i,
                                         NULL,
                                         NULL};
            check_case(suite, conv_case, &cc, "groups/%s/%s/%s/%d",
                       qn_strategy_name(strategies[i % 4]), formats[f].name,
                       check_data_names[i % CHECK_N_DATA], i);
        }
        for (int32_t i = 0; i < 4 * shapes; i++) {
            const struct conv_case cc = {
                &formats[f], strategies[i % 4], false, i % CHECK_N_DATA, DEPTHWISE_SHAPE + i, NULL,
                NULL};
            check_case(suite, conv_case, &cc, "depthwise/%s/%s/%s/%d",
                       qn_strategy_name(strategies[i % 4]), formats[f].name,
                       check_data_names[i % CHECK_N_DATA], i);
        }
    }
}

void check_api_conv_transpose2d(struct check_suite *suite, const struct check_options *options)
{
    enumerate(suite, options, true);
}

/* Every row of the table of convolutions, but for groups of one channel (depthwise_rows.c). */
static void enumerate_rows(struct check_suite *suite, const struct check_options *options,
                           bool of_groups)
{
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats), shapes = options->quick ? 6 : 36;
    const struct qni_conv_kernel *k;
    for (int32_t i = 0; (k = qni_conv_kernel_at(i)) != NULL; i++) {
        if (qni_conv_is_depthwise(k->algorithm) || (k->row.needs & ~options->isa) != 0 ||
            qni_conv_is_direct(k->algorithm) == of_groups)
            continue;
        const char *const wanted = k->row.layout == QNI_LAYOUT_Q4N16 ? "int4:pc" : "int8:pc";
        for (int32_t f = 0; f < n_formats; f++)
            for (int32_t shape = 0; strcmp(formats[f].name, wanted) == 0 && shape < shapes;
                 shape++) {
                const int32_t data = shape % CHECK_N_DATA;
                const struct conv_case cc = {&formats[f], k->strategy, false, data, shape, k, NULL};
                check_case(suite, conv_case, &cc, "%s/%s/%d", k->row.name, check_data_names[data],
                           shape);
            }
    }
}

void check_conv_rows(struct check_suite *suite, const struct check_options *options)
{
    enumerate_rows(suite, options, false);
}

void check_groups_rows(struct check_suite *suite, const struct check_options *options)
{
    enumerate_rows(suite, options, true);
}

/* ---- rows of a GPU's table ------------------------------------------------------------------- */

struct gpu_row {
    const char *name;
    int32_t sm, reads, layout, family;
};
#undef QNI_CUDA_KERNEL
#define QNI_CUDA_KERNEL(fn, sm, exact, reads, layout, m_max, mr, family, takes_total)              \
    {#fn, sm, QNI_CUDA_READS_##reads, QNI_CUDA_##layout, QNI_CUDA_FAMILY_##family},
static const struct gpu_row gpu_rows[] = {
#include "../../src/cuda/matmul/kernels.inc"
};
#undef QNI_CUDA_KERNEL

/* Formats that a layout holds: groups of whole units, of 64 and 128 channels, or none. */
static bool is_for(const struct gpu_row *row, const char *format)
{
    static const struct {
        int32_t layout, reads;
        const char *format;
    } pairs[] = {
        {QNI_CUDA_Q4FRAG, QNI_CUDA_READS_F16, "int4:g32:zp"},
        {QNI_CUDA_Q4FRAG, QNI_CUDA_READS_F16, "int4:g128"},
        {QNI_CUDA_Q4FRAG, QNI_CUDA_READS_F16, "int4:c64"},
        {QNI_CUDA_Q4FRAG, QNI_CUDA_READS_F16, "int4:pc"},
        {QNI_CUDA_Q4FRAG, QNI_CUDA_READS_Q8, "int4:pc"},
        {QNI_CUDA_Q4FRAG, QNI_CUDA_READS_Q8, "int4:g128"},
        {QNI_CUDA_Q8FRAG, QNI_CUDA_READS_F16, "int8:pc:zp"},
        {QNI_CUDA_Q8FRAG, QNI_CUDA_READS_F16, "int8:c128"},
        {QNI_CUDA_Q8FRAG, QNI_CUDA_READS_Q8, "int8:pc"},
        {QNI_CUDA_Q8FRAG, QNI_CUDA_READS_Q8, "int8:c128"},
        {QNI_CUDA_T4FRAG, QNI_CUDA_READS_F16, "nf4:g64"},
    };
    const int32_t reads =
        row->reads == QNI_CUDA_READS_BF16 ? (int32_t)QNI_CUDA_READS_F16 : row->reads;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].layout == row->layout && pairs[i].reads == reads &&
            strcmp(pairs[i].format, format) == 0)
            return true;
    return false;
}

/* Each row that fetches its rows from an image, by its name; and what is chosen for such shapes,
 * beside all rows that take them. */
void check_cuda_images(struct check_suite *suite, const struct check_options *options)
{
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats), shapes = options->quick ? 3 : 12;
    for (size_t i = 0; i < sizeof gpu_rows / sizeof *gpu_rows; i++) {
        const struct gpu_row *row = &gpu_rows[i];
        if (row->family != QNI_CUDA_FAMILY_IMAGE)
            continue;
        const qn_strategy strategy =
            row->reads == QNI_CUDA_READS_Q8 ? QN_STRATEGY_INT8_STATIC : QN_STRATEGY_FLOAT;
        for (int32_t f = 0; f < n_formats; f++)
            for (int32_t shape = 0; is_for(row, formats[f].name) && shape < shapes; shape++) {
                const int32_t data = shape % CHECK_N_DATA;
                /* Groups of 128 channels have as many. */
                const bool is_wide = strcmp(formats[f].name, "int8:c128") == 0;
                const int32_t drawn = IMAGE_SHAPE + (is_wide ? 3 * shape + 1 : shape);
                const struct conv_case named = {&formats[f], strategy, false,    data,
                                                drawn,       NULL,     row->name};
                const struct conv_case any = {&formats[f], strategy, false, data,
                                              drawn,       NULL,     NULL};
                check_case(suite, conv_case, &named, "%s/%s/%d", row->name, formats[f].name, shape);
                if (!options->quick)
                    check_case(suite, conv_case, &any, "any/%s/%s/%d", row->name, formats[f].name,
                               shape);
            }
    }
}
