/* SPDX-License-Identifier: Apache-2.0 */
/* The dense tier where a sweep of small shapes does not go: rows and sums in several chunks, what a
 * run finds otherwise than planned, graphs, the same bits a hundred times. What y must be is told
 * by the float strategy: weights rounded to f16 move a sum of k products by some sqrt(k) * 2^-12 of
 * one, far below a hundredth of what such sums are. Without cuBLASLt there is nothing to check. */
#include <math.h>
#include <string.h>

#include <quern/cuda.h>

#include "../../src/base/half.h"
#include "suites.h"

/* f16 x, weights of 4 bits. */
struct dense_case {
    const char *name;
    int64_t m, n, k;
    qn_dtype y;
    bool perm, prescale, bias;
    bool f16_scales, short_scales; /* of 11 digits; of one */
};

struct product {
    qn_ctx *ctx;
    struct check_weight made;
    qn_weight *weight;
    qn_packed *packed;
    qn_matmul_args args;
    qn_tensor x, y, bias; /* on the host */
    float *expected;
    double rms;
};

static float value_at(const qn_tensor *t, int64_t at)
{
    return t->dtype == QN_F32 ? ((const float *)t->data)[at]
                              : qni_f32_from_f16(((const uint16_t *)t->data)[at]);
}

static bool make_weights(struct check *c, const struct dense_case *d, struct product *p)
{
    const struct check_weight_options o = {
        .format = {.code = QN_CODE_INT, .bits = 4, .group = 64, .scale_dtype = QN_F32},
        .n = d->n,
        .k = d->k,
        .kh = 1,
        .kw = 1,
        .conv_groups = 1,
        .data = CHECK_NORMAL,
        .perm = d->perm,
        .prescale = d->prescale,
        .f16_scales = d->f16_scales,
    };
    qn_error err = {QN_OK, -1, ""};
    p->ctx = (qn_ctx *)(uintptr_t)check_context(c, QN_ISA_ALL, 1); /* the harness made it */
    check_weight_make(c, &o, &p->made);
    for (int64_t i = 0; i < d->n * p->made.w.n_groups && d->short_scales; i++)
        p->made.w.scale[i] = ldexpf(1.0f, (int)(i % 5) - 7);
    return check_status(c, "qn_weight_create",
                        qn_weight_create(p->ctx, &p->made.parts, &p->weight, &err), QN_OK, &err) &&
           check_status(c, "qn_pack", qn_pack(p->ctx, p->weight, NULL, &p->packed, &err), QN_OK,
                        &err);
}

static void make_tensors(struct check *c, const struct dense_case *d, struct product *p)
{
    const struct check_device *device = c->options->device;
    qn_matmul_args_init(&p->args);
    p->x = check_tensor(c, "x", QN_F16, 2, (const int64_t[]){d->m, d->k}, false);
    p->y = check_tensor(c, "y", d->y, 2, (const int64_t[]){d->m, d->n}, false);
    check_fill_x(c, &p->x, CHECK_NORMAL, false);
    p->args.w = p->packed;
    p->args.x = device->make(c, &p->x);
    p->args.y = device->make(c, &p->y);
    device->send(c, &p->args.x, &p->x);
    if (d->bias) {
        p->bias = check_tensor(c, "bias", QN_F32, 1, &d->n, false);
        check_fill_x(c, &p->bias, CHECK_NORMAL, false);
        p->args.epilogue.bias = device->make(c, &p->bias);
        device->send(c, &p->args.epilogue.bias, &p->bias);
    }
}

static qn_status run(struct check *c, struct product *p)
{
    size_t bytes = 0;
    check_status(c, "qn_matmul_scratch", qn_matmul_scratch(p->ctx, &p->args, &bytes), QN_OK, NULL);
    return qn_matmul(p->ctx, &p->args, c->options->device->scratch(c, bytes), bytes);
}

/* y by the float strategy; from then on the dense tier is asked for. False: it is not there. */
static bool make_product(struct check *c, const struct dense_case *d, struct product *p)
{
    const int64_t n = d->m * d->n;
    qn_plan *plan = NULL;
    qn_error err = {QN_OK, -1, ""};
    memset(p, 0, sizeof *p);
    if (!make_weights(c, d, p))
        return false;
    make_tensors(c, d, p);
    check_status(c, "the float strategy", run(c, p), QN_OK, NULL);
    c->options->device->fetch(c, &p->args.y, &p->y);
    p->expected = check_memory(c, "y by floats", (size_t)n * 4, 4);
    for (int64_t i = 0; i < n; i++) {
        p->expected[i] = value_at(&p->y, i);
        p->rms += (double)p->expected[i] * (double)p->expected[i];
    }
    p->rms = sqrt(p->rms / (double)n);
    p->args.strategy = QN_STRATEGY_DENSE;
    p->args.kernel = "qni_matmul_f16_frag_dense_sm75";
    const qn_status status = qn_matmul_plan(p->ctx, &p->args, &plan, &err);
    qn_plan_destroy(plan);
    if (status == QN_E_UNSUPPORTED && strstr(err.text, "cuBLASLt") != NULL)
        return false;
    return check_status(c, "planning the dense tier", status, QN_OK, &err);
}

static void drop_product(struct product *p)
{
    qn_packed_destroy(p->packed);
    qn_weight_destroy(p->weight);
}

static void compare(struct check *c, struct product *p, const char *who)
{
    const int64_t n = p->y.shape[1];
    c->options->device->fetch(c, &p->args.y, &p->y);
    for (int64_t i = 0; i < p->y.shape[0] && !c->failed; i++)
        for (int64_t j = 0; j < n; j++) {
            const double expected = (double)p->expected[i * n + j];
            const double got = (double)value_at(&p->y, i * p->y.stride[0] + j);
            if (!(fabs(got - expected) <= p->rms / 64.0 + fabs(expected) / 512.0)) {
                check_fail(c, "%s: y[%lld, %lld] is %.9g, by floats %.9g", who, (long long)i,
                           (long long)j, got, expected);
                return;
            }
        }
}

/* ---- bits ------------------------------------------------------------------------------------ */

struct captured {
    const qn_plan *plan;
    const qn_matmul_args *args;
    void *scratch;
    size_t bytes;
};

static qn_status call_captured(void *arg, int32_t i)
{
    const struct captured *p = arg;
    (void)i;
    return qn_matmul_run(p->plan, p->args, p->scratch, p->bytes);
}

static void same_bits(struct check *c, struct product *p, const uint8_t *first, const char *who)
{
    c->options->device->fetch(c, &p->args.y, &p->y);
    const size_t bytes = (size_t)(p->y.shape[0] * p->y.shape[1]) * qn_dtype_bytes(p->y.dtype);
    if (memcmp(p->y.data, first, bytes) != 0)
        check_fail(c, "%s: other bits", who);
}

static void bits_case(struct check *c, const void *arg)
{
    struct product p;
    qn_error err = {QN_OK, -1, ""};
    qn_plan *plan = NULL;
    double us[2];
    if (make_product(c, arg, &p) &&
        check_status(c, "a plan", qn_matmul_plan(p.ctx, &p.args, &plan, &err), QN_OK, &err)) {
        struct captured call = {plan, &p.args, NULL, qn_plan_scratch_bytes(plan)};
        call.scratch = c->options->device->scratch(c, call.bytes);
        for (int32_t pdl = 0; pdl < 2; pdl++) { /* captured before it was ever run */
            check_status(c, "pdl", qn_cuda_set_pdl(p.ctx, pdl), QN_OK, NULL);
            check_status(c, "a graph", qn_cuda_measure(p.ctx, call_captured, &call, 3, 2, us, &err),
                         QN_OK, &err);
            compare(c, &p, "a graph");
        }
        qn_cuda_set_pdl(p.ctx, 0);
        const size_t bytes = (size_t)(p.y.shape[0] * p.y.shape[1]) * qn_dtype_bytes(p.y.dtype);
        uint8_t *const first = check_memory(c, "the first y", bytes, 4);
        memcpy(first, p.y.data, bytes);
        for (int32_t i = 0; i < 100 && !c->failed; i++) {
            check_status(c, "a run", call_captured(&call, 0), QN_OK, NULL);
            same_bits(c, &p, first, "a run after it");
        }
    }
    qn_plan_destroy(plan);
    drop_product(&p);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static void chunks_case(struct check *c, const void *arg)
{
    struct product p;
    if (make_product(c, arg, &p)) {
        check_status(c, "the dense tier", run(c, &p), QN_OK, NULL);
        compare(c, &p, "the dense tier");
    }
    drop_product(&p);
}

/* ---- otherwise than planned ------------------------------------------------------------------ */

/* One plan: a y between its natural alignments, rows of y far apart, x that is not aligned, an
 * activation, fewer rows. */
static void surprises_case(struct check *c, const void *arg)
{
    const struct dense_case *d = arg;
    const struct check_device *device = c->options->device;
    struct product p;
    qn_plan *plan = NULL;
    qn_error err = {QN_OK, -1, ""};
    if (!make_product(c, d, &p) ||
        !check_status(c, "a plan", qn_matmul_plan(p.ctx, &p.args, &plan, &err), QN_OK, &err)) {
        drop_product(&p);
        return;
    }
    const size_t bytes = qn_plan_scratch_bytes(plan);
    void *const scratch = device->scratch(c, bytes);
    const qn_matmul_args planned = p.args;
    const qn_tensor y = p.y;
    const int64_t wide[2] = {d->m, d->n + 3}, long_x[2] = {d->m, d->k + 1};
    p.y = check_tensor(c, "wide y", d->y, 2, wide, false);
    p.args.y = device->make(c, &p.y);
    p.args.y.shape[1] = p.y.shape[1] = d->n;
    check_status(c, "odd rows of y", qn_matmul_run(plan, &p.args, scratch, bytes), QN_OK, NULL);
    compare(c, &p, "odd rows of y");
    qn_tensor x = check_tensor(c, "long x", QN_F16, 2, long_x, false);
    for (int64_t i = 0; i < d->m; i++)
        memcpy((uint16_t *)x.data + i * (d->k + 1), (const uint16_t *)p.x.data + i * d->k,
               (size_t)d->k * 2);
    p.args = planned;
    p.y = y;
    p.args.x = device->make(c, &x);
    device->send(c, &p.args.x, &x);
    p.args.x.shape[1] = d->k;
    check_status(c, "odd rows of x", qn_matmul_run(plan, &p.args, scratch, bytes), QN_OK, NULL);
    compare(c, &p, "odd rows of x");
    p.args = planned;
    p.args.epilogue.act = QN_ACT_RELU;
    for (int64_t i = 0; i < d->m * d->n; i++)
        p.expected[i] = p.expected[i] > 0.0f ? p.expected[i] : 0.0f;
    check_status(c, "an activation", qn_matmul_run(plan, &p.args, scratch, bytes), QN_OK, NULL);
    compare(c, &p, "an activation");
    p.args.x.shape[0] = p.args.y.shape[0] = p.y.shape[0] = d->m / 3;
    check_status(c, "fewer rows", qn_matmul_run(plan, &p.args, scratch, bytes), QN_OK, NULL);
    compare(c, &p, "fewer rows");
    qn_plan_destroy(plan);
    drop_product(&p);
}

/* ---- exact weights --------------------------------------------------------------------------- */

static bool plan_named(struct check *c, struct product *p, const char *name, struct captured *call)
{
    qn_plan *plan = NULL;
    qn_error err = {QN_OK, -1, ""};
    p->args.kernel = name;
    const qn_status status = qn_matmul_plan(p->ctx, &p->args, &plan, &err);
    call->plan = plan;
    call->args = &p->args;
    call->bytes = plan != NULL ? qn_plan_scratch_bytes(plan) : 0;
    call->scratch = c->options->device->scratch(c, call->bytes);
    if (status == QN_E_UNSUPPORTED)
        return false; /* for another GPU, or left out of the build */
    return check_status(c, name, status, QN_OK, &err);
}

/* The float strategy may take a row that rounds weights where they are exact. A run with others is
 * done by the row that does not round, bit for bit. */
static void exact_case(struct check *c, const void *arg)
{
    const struct dense_case *d = arg;
    struct dense_case others = *d;
    struct product p, q;
    struct captured rounding, plain;
    others.short_scales = false;
    memset(&p, 0, sizeof p);
    memset(&q, 0, sizeof q);
    memset(&rounding, 0, sizeof rounding);
    memset(&plain, 0, sizeof plain);
    if (make_weights(c, d, &p) && make_weights(c, &others, &q)) {
        make_tensors(c, d, &p);
        make_tensors(c, &others, &q);
        if (plan_named(c, &q, "qni_matmul_f16_q4frag_mr128_sm90a", &plain) &&
            plan_named(c, &p, "qni_matmul_f16_q4frag_mr128_dense_sm90a", &rounding)) {
            const size_t bytes = (size_t)(d->m * d->n) * qn_dtype_bytes(d->y);
            uint8_t *const first = check_memory(c, "y by sums that are scaled", bytes, 4);
            check_status(c, "the plain row", call_captured(&plain, 0), QN_OK, NULL);
            c->options->device->fetch(c, &q.args.y, &q.y);
            memcpy(first, q.y.data, bytes);
            memset(q.y.data, 0, bytes);
            c->options->device->send(c, &q.args.y, &q.y);
            rounding.args = &q.args;
            q.args.kernel = p.args.kernel;
            check_status(c, "other weights", call_captured(&rounding, 0), QN_OK, NULL);
            same_bits(c, &q, first, "weights that are not exact");
            qn_plan *wrong = NULL;
            check_status(c, "weights that are not exact",
                         qn_matmul_plan(q.ctx, &q.args, &wrong, NULL), QN_E_UNSUPPORTED, NULL);
            qn_plan_destroy(wrong);
        }
    }
    qn_plan_destroy((qn_plan *)(uintptr_t)rounding.plan);
    qn_plan_destroy((qn_plan *)(uintptr_t)plain.plan);
    drop_product(&p);
    drop_product(&q);
}

void check_cuda_dense(struct check_suite *suite, const struct check_options *options)
{
    static const struct dense_case bits[] = {
        {"f16", 300, 1000, 2048, QN_F16, false, false, false, false, false},
        {"bias", 300, 1000, 2048, QN_F16, false, false, true, false, false},
        {"f32", 40, 264, 4096, QN_F32, true, true, false, false, false},
    };
    static const struct dense_case chunks[] = {
        {"rows", 5000, 48, 8192, QN_F16, true, false, false, false, false},
        {"sums", 9000, 4096, 64, QN_F16, false, false, true, false, false},
    };
    static const struct dense_case odd = {"odd", 200,   136,   256,   QN_F16,
                                          false, false, false, false, false};
    static const struct dense_case exact = {"exact", 300,   264,   512,  QN_F32,
                                            false,   false, false, true, true};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        check_case(suite, bits_case, &bits[i], "bits/%s", bits[i].name);
    check_case(suite, surprises_case, &odd, "surprises");
    check_case(suite, exact_case, &exact, "exact");
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks && !options->quick; i++)
        check_case(suite, chunks_case, &chunks[i], "chunks/%s", chunks[i].name);
}
