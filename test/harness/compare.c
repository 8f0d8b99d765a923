/* SPDX-License-Identifier: Apache-2.0 */
/* y against the reference: equal bits where the numbers are EXACT, the bound of docs/numerics.md
 * elsewhere; and nothing but y may have changed in the memory y lies in. One NaN is as good as
 * another where a kernel is called alone, or f32 comes from a float strategy. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../src/quant/op.h"
#include "harness.h"

static bool is_int8(qn_strategy s)
{
    return s == QN_STRATEGY_INT8_ROW || s == QN_STRATEGY_INT8_BLOCK || s == QN_STRATEGY_INT8_STATIC;
}

static size_t extent_bytes(const qn_tensor *t)
{
    const size_t element = t->dtype == QN_F32 || t->dtype == QN_I32    ? 4
                           : t->dtype == QN_F16 || t->dtype == QN_BF16 ? 2
                                                                       : 1;
    int64_t last = 0;
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] == 0)
            return 0;
        last += (t->shape[d] - 1) * t->stride[d];
    }
    return (size_t)(last + 1) * element;
}

static double *doubles(struct check *c, const char *name, int64_t n)
{
    return check_memory(c, name, (size_t)n * sizeof(double), sizeof(double));
}

/* The written f32 steps must themselves agree with exact arithmetic within the error of quantizing.
 */
static void check_reference(struct check *c, const struct qni_ref_op *op, const float *v,
                            const double *slack, const double *p)
{
    for (int64_t at = 0; at < op->m * op->n; at++) {
        if (op->epilogue.bias.dtype == QN_I32 || !isfinite(slack[at]) || !isfinite(p[at]))
            continue;
        if (fabs(p[at]) > 1e37 || fabs((double)v[at] - p[at]) <= slack[at])
            continue;
        check_fail(
            c,
            "the reference disagrees with itself at [%lld, %lld]: %.9g in written steps, %.9g "
            "exact, %.3g allowed",
            (long long)(at / op->n), (long long)(at % op->n), (double)v[at], p[at], slack[at]);
        return;
    }
}

static void expect_int8(struct check *c, const struct qni_ref_op *op, const double *p,
                        struct check_expected *e)
{
    const int64_t n = op->m * op->n;
    float *v = check_memory(c, "v of the reference", (size_t)n * sizeof *v, sizeof *v);
    int32_t *d = check_memory(c, "d of the reference", (size_t)n * sizeof *d, sizeof *d);
    double *slack = doubles(c, "slack of the reference", n);
    if (!check_status(c, "qni_ref_exact", qni_ref_exact(op, v, d, slack), QN_OK, NULL))
        return;
    check_reference(c, op, v, slack, p);
    for (int64_t i = 0; i < op->m; i++)
        for (int64_t j = 0; j < op->n; j++) {
            const int64_t at = i * op->n + j;
            if (qni_ref_expert(op, i) >= 0)
                e->bits[at] = op->y.dtype == QN_I32 ? (uint32_t)d[at]
                                                    : qni_ref_epilogue_bits(op, i, j, v[at]);
        }
}

/* Kernels by their numerics, told by their names: qni_<op>_<reads>_<layout>_<variant>_<isa>. */
enum { PLAIN = 0, READS_BF16 = 1, DENSE = 2, READS_E4M3 = 3 };

static int class_of(const char *kernel)
{
    if (kernel != NULL && strstr(kernel, "_dense_") != NULL)
        return DENSE;
    if (kernel != NULL && strstr(kernel, "_matmul_e4m3") != NULL)
        return READS_E4M3;
    return kernel != NULL && strstr(kernel, "_bf16_") != NULL ? READS_BF16 : PLAIN;
}

/* The operation as it was before y was written: y may be the residual. */
static struct qni_ref_op op_before(const struct check_expected *e)
{
    struct qni_ref_op op = e->op;
    if (op.epilogue.residual.data == op.y.data)
        op.epilogue.residual.data = e->before;
    return op;
}

/* y and its error for kernels of one class. */
static bool expect_float(struct check *c, struct check_expected *e, int class)
{
    struct qni_ref_op op = op_before(e);
    op.no_subnormals = class != PLAIN;
    op.short_sums = class == READS_E4M3;
    e->error[class] = doubles(c, "error of the reference", op.m * op.n);
    if (!check_status(c, "qni_ref_product", qni_ref_product(&op, e->y, e->error[class]), QN_OK,
                      NULL))
        return false;
    for (int64_t i = 0; i < op.m; i++)
        for (int64_t j = 0; j < op.n && qni_ref_expert(&op, i) >= 0; j++) {
            const int64_t at = i * op.n + j;
            e->y[at] = qni_ref_epilogue(&op, i, j, e->y[at], &e->error[class][at]);
        }
    return true;
}

/* Every intermediate is a multiple of some power of two and small: whatever the order, there is one
 * result. */
static void expect_exact_float(struct check *c, const struct qni_ref_op *op, const double *p,
                               struct check_expected *e)
{
    for (int64_t i = 0; i < op->m; i++)
        for (int64_t j = 0; j < op->n && qni_ref_expert(op, i) >= 0; j++) {
            const int64_t at = i * op->n + j;
            if ((double)(float)p[at] != p[at])
                check_fail(c, "the harness: %.17g is no exact intermediate", p[at]);
            e->bits[at] = qni_ref_epilogue_bits(op, i, j, (float)p[at]);
        }
}

void check_expect(struct check *c, const struct qni_ref_op *op, int32_t data,
                  struct check_expected *e)
{
    const int64_t n = op->m * op->n;
    memset(e, 0, sizeof *e);
    e->op = *op;
    e->data = data;
    e->exact = is_int8(op->strategy) || (data == CHECK_EXACT && !qni_is_fp8(op->strategy));
    e->bits =
        check_memory(c, "bits of the reference", (size_t)n * sizeof *e->bits, sizeof *e->bits);
    e->y = doubles(c, "y of the reference", n);
    e->y_bytes = extent_bytes(&op->y);
    e->before = check_memory(c, "image of y", e->y_bytes, 4);
    e->after = check_memory(c, "second image of y", e->y_bytes, 1);
    memcpy(e->before, op->y.data, e->y_bytes);
    if (!e->exact)
        return;
    double *p = doubles(c, "p of the reference", n),
           *bound = doubles(c, "bound of the reference", n);
    if (!check_status(c, "qni_ref_product", qni_ref_product(op, p, bound), QN_OK, NULL))
        return;
    if (is_int8(op->strategy))
        expect_int8(c, op, p, e);
    else
        expect_exact_float(c, op, p, e);
}

void check_prepare_y(struct check *c, struct check_expected *e)
{
    (void)c;
    memcpy(e->op.y.data, e->before, e->y_bytes);
}

/* The row of x holds an infinity: y is what the epilogue makes of an infinity (relu may make a
 * number of it), or NaN. */
static bool infinity_is_good(const struct check_expected *e, int64_t i, int64_t j, uint32_t got)
{
    const struct qni_ref_op op = op_before(e);
    return qni_ref_is_nan(got, op.y.dtype) || got == qni_ref_epilogue_bits(&op, i, j, INFINITY) ||
           got == qni_ref_epilogue_bits(&op, i, j, -INFINITY);
}

/* A NaN of other bits than the one that there is. */
static bool is_other_nan(const struct check_expected *e, uint32_t got)
{
    const qn_dtype type = e->op.y.dtype;
    const bool is_half = type == QN_F16 || type == QN_BF16;
    const uint32_t nan = type == QN_F16 ? 0x7e00u : type == QN_BF16 ? 0x7fc0u : 0x7fc00000u;
    return e->one_nan && (is_half || is_int8(e->op.strategy)) && qni_ref_is_nan(got, type) &&
           got != nan;
}

/* Does element at of y hold what it must? Writes the difference in words. */
static bool element_is_good(const struct check_expected *e, int64_t i, int64_t j, int class,
                            char *text, size_t n)
{
    const qn_tensor *y = &e->op.y;
    const int64_t at = i * e->op.n + j;
    const uint32_t got = qni_ref_bits(y->data, y->dtype, qni_ref_at(&e->op, y, i, j));
    const double value = qni_ref_get(y->data, y->dtype, qni_ref_at(&e->op, y, i, j));
    if (is_other_nan(e, got)) {
        snprintf(text, n, "the NaN %x", got);
        return false;
    }
    if (e->exact) {
        const bool both_nan =
            qni_ref_is_nan(got, y->dtype) && qni_ref_is_nan(e->bits[at], y->dtype);
        /* The sign of a zero is nobody's promise where the order of a sum is free. */
        const bool both_zero = !is_int8(e->op.strategy) && value == 0.0 &&
                               qni_ref_get(&e->bits[at], y->dtype, 0) == 0.0;
        if (got == e->bits[at] || both_nan || both_zero)
            return true;
        snprintf(text, n, "%.9g (%x), must be %.9g (%x)", value, got,
                 qni_ref_get(&e->bits[at], y->dtype, 0), e->bits[at]);
        return false;
    }
    const double error = e->error[class][at];
    if (isinf(error) && infinity_is_good(e, i, j, got))
        return true;
    const bool is_code = y->dtype == QN_I8 || y->dtype == QN_U8;
    const double inv = y->dtype == QN_E4M3 ? (double)(1.0f / e->op.epilogue.y_scale) : 1.0;
    if (is_code ? qni_ref_within_codes(&e->op, got, e->y[at], error)
                : qni_ref_within(y->dtype, got, e->y[at] * inv, error * inv * (1.0 + 0x1p-23)))
        return true;
    snprintf(text, n, "%.9g, must be %.9g within %.3g and one rounding", value, e->y[at], error);
    return false;
}

/* Every byte around the elements of y is as before. */
static bool frame_is_whole(struct check *c, struct check_expected *e, const char *who)
{
    const qn_tensor *y = &e->op.y;
    const size_t element = y->dtype == QN_F32 || y->dtype == QN_I32    ? 4
                           : y->dtype == QN_F16 || y->dtype == QN_BF16 ? 2
                                                                       : 1;
    memcpy(e->after, y->data, e->y_bytes);
    for (int64_t i = 0; i < e->op.m; i++)
        for (int64_t j = 0; j < e->op.n && qni_ref_expert(&e->op, i) >= 0; j++) {
            const size_t at = (size_t)qni_ref_at(&e->op, y, i, j) * element;
            memcpy(e->after + at, e->before + at, element);
        }
    for (size_t at = 0; at < e->y_bytes; at++)
        if (e->after[at] != e->before[at]) {
            check_fail(c, "%s: byte %zu of the memory of y, no element of y, has changed", who, at);
            return false;
        }
    return true;
}

/* What y must be where weights are rounded to the type of x; numbers of that type may be subnormal,
 * as those of kernels that read bf16. */
static struct check_expected *expect_dense(struct check *c, struct check_expected *e,
                                           const char *kernel)
{
    if (e->dense == NULL) {
        struct qni_ref_op op = op_before(e);
        op.rounds_weights = qni_is_fp8(op.strategy) ? QN_F16 : op.x.dtype; /* of codes of e4m3 */
        op.rounds_in_place = strstr(kernel, "_sm") == NULL; /* on the CPU */
        e->dense = check_memory(c, "what a dense product must be", sizeof *e->dense, 16);
        check_expect(c, &op, e->data, e->dense);
        memcpy(e->dense->before, e->before, e->y_bytes);
    }
    return e->dense;
}

/* e must be ready for kernels of a class. */
static bool is_ready(struct check *c, struct check_expected *e, int class)
{
    return e->exact || e->error[class] != NULL || expect_float(c, e, class);
}

bool check_y(struct check *c, struct check_expected *e, const char *kernel, const char *who)
{
    int class = class_of(kernel);
    struct check_expected *few = NULL; /* of parts with few rows: a float row serves them */
    if (class == DENSE) {
        few = e->op.kind != QNI_MATMUL ? e : NULL;
        e = expect_dense(c, e, kernel);
        class = READS_BF16;
    }
    if (!is_ready(c, e, class) || (few != NULL && !is_ready(c, few, class)))
        return false;
    int64_t bad = 0, first_i = 0, first_j = 0;
    char first[200] = "", text[200], other[200];
    for (int64_t i = 0; i < e->op.m; i++)
        for (int64_t j = 0; j < e->op.n && qni_ref_expert(&e->op, i) >= 0; j++)
            if (!element_is_good(e, i, j, class, text, sizeof text) &&
                (few == NULL || !element_is_good(few, i, j, class, other, sizeof other)) &&
                bad++ == 0) {
                first_i = i;
                first_j = j;
                memcpy(first, text, sizeof first);
            }
    if (bad > 0)
        check_fail(c, "%s: %lld of %lld elements are wrong; y[%lld, %lld] is %s", who,
                   (long long)bad, (long long)(e->op.m * e->op.n), (long long)first_i,
                   (long long)first_j, first);
    return frame_is_whole(c, e, who) && bad == 0;
}

uint8_t *check_remember_y(struct check *c, const struct check_expected *e)
{
    uint8_t *image = check_memory(c, "earlier y", e->y_bytes, 4);
    memcpy(image, e->op.y.data, e->y_bytes);
    return image;
}

bool check_same_y(struct check *c, const struct check_expected *e, const uint8_t *image,
                  const char *who)
{
    const qn_tensor *y = &e->op.y;
    for (int64_t i = 0; i < e->op.m; i++)
        for (int64_t j = 0; j < e->op.n; j++) {
            const int64_t at = qni_ref_at(&e->op, y, i, j);
            const uint32_t a = qni_ref_bits(y->data, y->dtype, at),
                           b = qni_ref_bits(image, y->dtype, at);
            if (a == b || (qni_ref_is_nan(a, y->dtype) && qni_ref_is_nan(b, y->dtype)))
                continue;
            check_fail(c, "%s: y[%lld, %lld] has other bits (%x, not %x)", who, (long long)i,
                       (long long)j, a, b);
            return false;
        }
    return true;
}
