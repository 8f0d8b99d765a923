/* SPDX-License-Identifier: Apache-2.0 */
/* Every depthwise row of src/cpu/conv/kernels.inc that reads a ring, on its own, through nothing
 * but its contract in conv/depthwise_kernel.h: each output (vector, lane) is compared with the
 * reference's product of one row and one output. Rows of whole images: depthwise_images.c. */
#include <math.h>
#include <string.h>

#include "../../src/cpu/conv/kernel.h"
#include "depthwise_images.h"
#include "suites.h"

struct row_case {
    const struct qni_conv_kernel *row;
    int32_t data, shape;
};

enum { LANES = QNI_DEPTHWISE_LANES };

struct drawn {
    const struct qni_conv_kernel *row;
    struct check_weight weight; /* 16 outputs: one a lane */
    struct qni_ref_segments segments;
    struct qni_depthwise_tile tile;
    qn_tensor x; /* [taps, elements]: what in[] points into */
    int32_t zero;
};

static void draw(struct check *c, const struct row_case *rc, struct drawn *d)
{
    struct check_random *r = &c->random;
    const bool is_float = rc->row->strategy == QN_STRATEGY_FLOAT;
    memset(d, 0, sizeof *d);
    d->row = rc->row;
    struct qni_depthwise_tile *t = &d->tile;
    t->n_taps = CHECK_OF(r, 1, 2, 4, 9, 9, 25, 49, rc->shape == 3 ? 1100 : 7);
    t->vectors = CHECK_OF(r, 1, rc->row->row.mr, rc->row->row.mr + 1, 2 * rc->row->row.mr + 1, 5);
    t->advance = CHECK_OF(r, 16, 16, 32, 1, 48, 7);
    t->ldc = LANES + check_random_in(r, 0, 20);
    t->symmetric = rc->row->strategy == QN_STRATEGY_INT8_BLOCK && check_random_chance(r, 50);
    t->raw_i32 = rc->row->strategy == QN_STRATEGY_INT8_STATIC && check_random_chance(r, 25);
    d->zero =
        rc->row->strategy == QN_STRATEGY_INT8_STATIC ? (int32_t)check_random_in(r, -128, 127) : 0;
    struct check_weight_options o = {
        .n = LANES, .k = t->n_taps, .kh = 1, .kw = 1, .conv_groups = 1};
    o.format.code = QN_CODE_INT;
    o.format.bits = 8;
    o.format.scale_dtype = QN_F32;
    o.format.group = t->raw_i32 ? QN_GROUP_PER_CHANNEL : CHECK_OF(r, 1, 4, 9, 32, 33, 2000);
    o.format.shift =
        t->raw_i32 ? QN_SHIFT_NONE : (qn_shift)CHECK_OF(r, QN_SHIFT_NONE, QN_SHIFT_OFFSET);
    o.data = rc->data;
    o.prescale = (rc->row->strategy == QN_STRATEGY_INT8_ROW ||
                  rc->row->strategy == QN_STRATEGY_INT8_BLOCK) &&
                 check_random_chance(r, 30);
    check_weight_make(c, &o, &d->weight);
    const int64_t elements = (t->vectors - 1) * t->advance + LANES;
    const qn_dtype type = rc->row->strategy == QN_STRATEGY_INT8_STATIC ? QN_I8 : QN_F32;
    d->x = check_tensor(c, "x", type, 2, (const int64_t[]){t->n_taps, elements}, false);
    check_fill_x(c, &d->x, rc->data, rc->data == CHECK_EXTREME && !is_float);
    check_about(c, "taps=%lld vectors=%lld advance=%lld group=%lld%s%s%s", (long long)t->n_taps,
                (long long)t->vectors, (long long)t->advance, (long long)o.format.group,
                t->symmetric ? " sym" : "", t->raw_i32 ? " raw" : "",
                o.prescale ? " prescale" : "");
}

/* Each tap's inputs in memory of its own: an over-read of any is a crash. */
static const float *const *make_inputs(struct check *c, struct drawn *d)
{
    const struct qni_depthwise_tile *t = &d->tile;
    const int64_t elements = d->x.shape[1];
    const float **in = check_memory(c, "in", (size_t)t->n_taps * sizeof *in, sizeof *in);
    for (int64_t tap = 0; tap < t->n_taps; tap++) {
        float *row = check_memory(c, "in[t]", (size_t)elements * sizeof *row, sizeof *row);
        /* A tap that lies outside everywhere. */
        const bool hole =
            d->row->strategy == QN_STRATEGY_INT8_BLOCK && check_random_chance(&c->random, 10);
        for (int64_t i = 0; i < elements; i++) {
            if (hole)
                check_put(&d->x, tap * elements + i, 0.0);
            row[i] = (float)(qni_ref_get(d->x.data, d->x.dtype, tap * elements + i) - d->zero);
        }
        check_memory_freeze(row);
        in[tap] = hole ? NULL : row;
    }
    return in;
}

static float *floats(struct check *c, const char *name, int64_t n)
{
    return check_memory(c, name, (size_t)n * sizeof(float), 64);
}

static void make_weights(struct check *c, struct drawn *d)
{
    struct qni_depthwise_tile *t = &d->tile;
    const struct qn_weight *w = &d->weight.w;
    const bool is_float = d->row->strategy == QN_STRATEGY_FLOAT;
    float *values = floats(c, "w", t->n_taps * LANES);
    double *dense = check_memory(c, "dense", (size_t)(t->n_taps * LANES) * sizeof *dense, 8);
    qni_ref_dequantize(w, true, dense, NULL);
    for (int64_t tap = 0; tap < t->n_taps; tap++)
        for (int64_t lane = 0; lane < LANES; lane++)
            values[tap * LANES + lane] =
                is_float ? (float)dense[lane * w->k + tap] : (float)qni_ref_value(w, lane, tap);
    t->w = values;
    if (is_float)
        return;
    check_status(c, "segments", qni_ref_segments_make(w, 32768, &d->segments), QN_OK, NULL);
    const int64_t n = t->n_segments = d->segments.n;
    int32_t *segments = check_memory(c, "segments", (size_t)(n + 1) * sizeof *segments, 4);
    float *scale = floats(c, "scale", n * LANES), *sums = floats(c, "sums", n * LANES);
    float *offset = w->offset != NULL ? floats(c, "offset", n * LANES) : NULL;
    for (int64_t s = 0; s <= n; s++)
        segments[s] = (int32_t)d->segments.start[s];
    for (int64_t s = 0; s < n; s++)
        for (int64_t lane = 0; lane < LANES; lane++) {
            double sum = 0.0;
            for (int64_t tap = segments[s]; tap < segments[s + 1]; tap++)
                sum += qni_ref_value(w, lane, tap);
            sums[s * LANES + lane] = (float)sum;
            scale[s * LANES + lane] = w->scale[qni_ref_group(w, lane, segments[s])];
            if (offset != NULL)
                offset[s * LANES + lane] =
                    qni_ref_group_offset(w, qni_ref_group(w, lane, segments[s]));
        }
    t->segments = segments;
    t->scale = scale;
    t->offset = offset;
    t->sums = sums;
    t->prescale = w->prescale;
}

/* One lane of one vector as a product of one row and one output. */
static void compare_lane(struct check *c, const struct drawn *d, int32_t data, int64_t v,
                         int64_t lane)
{
    const struct qni_depthwise_tile *t = &d->tile;
    struct qn_weight one = d->weight.w;
    one.n = 1;
    one.codes += lane * one.k;
    one.scale += lane * one.n_groups;
    one.offset = one.offset != NULL ? one.offset + lane * one.n_groups : NULL;
    const struct qn_weight *const w = &one;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = d->row->strategy;
    args.quant.symmetric = t->symmetric;
    args.quant.x_zero = d->zero;
    args.x = d->x;
    args.x.data = (uint8_t *)d->x.data + (v * t->advance + lane) * (d->x.dtype == QN_I8 ? 1 : 4);
    args.x.shape[0] = 1;
    args.x.stride[0] = 0;
    args.x.shape[1] = t->n_taps;
    args.x.stride[1] = d->x.stride[0];
    args.y.data = t->c + v * t->ldc + lane;
    args.y.dtype = t->raw_i32 ? QN_I32 : QN_F32;
    args.y.rank = 2;
    args.y.shape[0] = args.y.shape[1] = args.y.stride[0] = args.y.stride[1] = 1;
    struct qni_ref_op op;
    qni_ref_matmul(&args, &w, &op);
    op.x_block = 32768;
    const uint32_t got = qni_ref_bits(args.y.data, args.y.dtype, 0);
    const double value = qni_ref_get(args.y.data, args.y.dtype, 0);
    if (args.strategy == QN_STRATEGY_FLOAT) {
        double p, bound;
        check_status(c, "qni_ref_product", qni_ref_product(&op, &p, &bound), QN_OK, NULL);
        if (data == CHECK_EXACT ? value != p : !qni_ref_within(QN_F32, got, p, bound))
            check_fail(c, "c[%lld, %lld] is %.9g, must be %.9g within %.3g", (long long)v,
                       (long long)lane, value, p, bound);
        return;
    }
    float exact;
    int32_t raw;
    check_status(c, "qni_ref_exact", qni_ref_exact(&op, &exact, &raw, NULL), QN_OK, NULL);
    const uint32_t must = qni_ref_bits(t->raw_i32 ? (const void *)&raw : &exact, args.y.dtype, 0);
    if (got != must && !(qni_ref_is_nan(got, args.y.dtype) && qni_ref_is_nan(must, args.y.dtype)))
        check_fail(c, "c[%lld, %lld] is %.9g, must be %.9g", (long long)v, (long long)lane, value,
                   t->raw_i32 ? (double)raw : (double)exact);
}

static void row_case(struct check *c, const void *arg)
{
    const struct row_case *rc = arg;
    struct drawn d;
    draw(c, rc, &d);
    struct qni_depthwise_tile *t = &d.tile;
    const size_t c_bytes = (size_t)((t->vectors - 1) * t->ldc + LANES) * sizeof(float);
    t->in = make_inputs(c, &d);
    make_weights(c, &d);
    t->c = check_memory(c, "c", c_bytes, 4);
    memset(t->c, 0x5a, c_bytes);
    rc->row->fn.ring(t);
    for (int64_t v = 0; v < t->vectors; v++) {
        for (int64_t lane = 0; lane < LANES && !c->failed; lane++)
            compare_lane(c, &d, rc->data, v, lane);
        for (int64_t i = LANES; v + 1 < t->vectors && i < t->ldc; i++)
            if (qni_ref_bits(t->c, QN_F32, v * t->ldc + i) != 0x5a5a5a5au)
                check_fail(c, "what lies between the vectors of c has changed");
    }
    qni_ref_segments_free(&d.segments);
}

void check_depthwise_rows(struct check_suite *suite, const struct check_options *options)
{
    const int32_t shapes = options->quick ? 2 : 16;
    const struct qni_conv_kernel *k;
    for (int32_t i = 0; (k = qni_conv_kernel_at(i)) != NULL; i++) {
        if (k->algorithm != QNI_CONV_RING || (k->row.needs & ~options->isa) != 0)
            continue;
        for (int32_t data = 0; data < CHECK_N_DATA; data++)
            for (int32_t shape = 0; shape < shapes; shape++) {
                const struct row_case rc = {k, data, shape};
                check_case(suite, row_case, &rc, "%s/%s/%d", k->row.name, check_data_names[data],
                           shape);
            }
    }
    check_depthwise_images(suite, options);
}
