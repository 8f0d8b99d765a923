/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of src/cpu/conv/kernels.inc that takes a whole image, on its own, through nothing but
 * its contract in conv/depthwise_kernel.h: each output is compared with the sum of its products in
 * double, and those of int8-static with what its steps make of it. */
#include <math.h>
#include <string.h>

#include "../../src/base/half.h"
#include "../../src/cpu/conv/kernel.h"
#include "depthwise_images.h"

struct image_case {
    const struct qni_conv_kernel *row;
    int32_t data;
};

/* No output: 61280 as f16, 1.3e36 as the others. */
static const uint32_t untouched = 0x7b7b7b7bu;

/* What a kernel of codes serves. */
static void draw_codes(struct check_random *r, struct qni_depthwise_image *m)
{
    m->taps[0] = m->taps[1] = 3;
    m->dilation[0] = m->dilation[1] = 1;
    m->stride[1] = check_random_in(r, 1, 2);
    m->first[1] = check_random_chance(r, 80) ? -check_random_in(r, 0, 2)
                                             : check_random_in(r, 0, m->in[1] - 1);
    m->out[1] = (m->in[1] - 1 - m->first[1]) / m->stride[1] + 1;
    if (check_random_chance(r, 30))
        m->out[1] = check_random_in(r, 1, m->out[1]);
}

static void draw(struct check *c, struct qni_depthwise_image *m, bool is_codes)
{
    struct check_random *r = &c->random;
    memset(m, 0, sizeof *m);
    m->n = CHECK_OF(r, 16, 17, 31, 32, 40, 64, 79, 130);
    for (int d = 0; d < 2; d++) {
        m->in[d] = check_random_in(r, 1, d == 0 ? 9 : 24);
        m->taps[d] = CHECK_OF(r, 1, 2, 3, 3, 3, 5, 5, 7);
        m->stride[d] = CHECK_OF(r, 1, 1, 2, 2, 3);
        m->dilation[d] = CHECK_OF(r, 1, 1, 1, 2, 3);
        /* Most windows are those of layers; some lie outside of the image altogether. */
        const int64_t reach = (m->taps[d] - 1) * m->dilation[d] + 1;
        m->first[d] = check_random_chance(r, 80) ? -check_random_in(r, 0, reach - 1)
                                                 : check_random_in(r, -3 * reach, m->in[d] + 2);
        const int64_t even = (m->in[d] - 1 - m->first[d]) / m->stride[d] + 1;
        m->out[d] = even >= 1 && even <= 40 && check_random_chance(r, 80)
                        ? even
                        : check_random_in(r, 1, d == 0 ? 9 : 24);
    }
    if (is_codes)
        draw_codes(r, m);
    m->x_column = m->n + check_random_in(r, 0, 9);
    m->x_row = m->in[1] * m->x_column + check_random_in(r, 0, 9);
    m->y_column = m->n + check_random_in(r, 0, 9);
    m->y_row = m->out[1] * m->y_column + check_random_in(r, 0, 9);
    m->w_tap = m->n + check_random_in(r, 0, 9);
    check_about(c,
                "%lldx%lld to %lldx%lld n=%lld taps=%lldx%lld stride=%lld,%lld dilation=%lld,%lld "
                "first=%lld,%lld",
                (long long)m->in[0], (long long)m->in[1], (long long)m->out[0],
                (long long)m->out[1], (long long)m->n, (long long)m->taps[0], (long long)m->taps[1],
                (long long)m->stride[0], (long long)m->stride[1], (long long)m->dilation[0],
                (long long)m->dilation[1], (long long)m->first[0], (long long)m->first[1]);
}

/* Small integers, whose sums are exact, or normal values, and some that are no numbers. */
static float *fill(struct check *c, const char *name, int64_t n, int32_t data, bool may_be_wild)
{
    struct check_random *r = &c->random;
    float *at = check_memory(c, name, (size_t)n * sizeof *at, sizeof *at);
    for (int64_t i = 0; i < n; i++)
        at[i] =
            data == CHECK_NORMAL ? (float)check_random_normal(r) : (float)check_random_in(r, -9, 9);
    for (int32_t i = 0; may_be_wild && data == CHECK_EXTREME && i < 3; i++)
        at[check_random_in(r, 0, n - 1)] = CHECK_OF(r, 0, 1) == 0 ? INFINITY : -NAN;
    check_memory_freeze(at);
    return at;
}

/* Codes of all sizes, x the same less their zero point, and weights of all sizes. */
static void fill_codes(struct check *c, struct qni_depthwise_image *m, int64_t n_x, int64_t n_w)
{
    struct check_random *r = &c->random;
    m->x_type = (qn_dtype)CHECK_OF(r, QN_I8, QN_U8);
    const int32_t lo = m->x_type == QN_I8 ? -128 : 0;
    uint8_t *codes = check_memory(c, "codes", (size_t)n_x, 1);
    float *x = check_memory(c, "x", (size_t)n_x * sizeof *x, sizeof *x);
    float *w = check_memory(c, "w", (size_t)n_w * sizeof *w, sizeof *w);
    const bool is_far = check_random_chance(r, 30);
    m->x_zero = (int32_t)CHECK_OF(r, lo, lo + 128, lo + 131, lo + 255);
    for (int64_t i = 0; i < n_x; i++) {
        const int32_t code = lo + (is_far ? 0 : (int32_t)check_random_in(r, 0, 255));
        codes[i] = (uint8_t)code;
        x[i] = (float)(code - m->x_zero);
    }
    for (int64_t i = 0; i < n_w; i++)
        w[i] = is_far ? -128.0f : (float)check_random_in(r, -128, 127);
    m->codes = codes;
    m->x = x;
    m->w = w;
    m->words = check_memory(c, "words", (size_t)((m->n + 15) / 16) * QNI_DEPTHWISE_WORDS, 64);
    check_memory_freeze(codes);
}

static int64_t extent(int64_t n_rows, int64_t row, int64_t columns, int64_t column, int64_t n)
{
    return (n_rows - 1) * row + (columns - 1) * column + n;
}

/* The steps of int8-static, docs/numerics.md; the result as y has it. */
static double given_steps(const struct qni_depthwise_image *m, double sum, int64_t at,
                          bool *is_finite)
{
    float v = (float)sum * m->w_scale[at] + 0.0f;
    v = v * m->x_scale;
    v = m->scale != NULL ? v * m->scale[at] : v;
    v = m->bias != NULL ? v + m->bias[at] : v;
    *is_finite = isfinite(v) != 0;
    if (m->is_relu)
        v = v <= 0.0f ? 0.0f : v > m->most ? m->most : v;
    if (m->y_type != QN_I8 && m->y_type != QN_U8)
        return (double)v;
    const float scaled = v * m->y_inv, lo = m->y_type == QN_I8 ? -128.0f : 0.0f;
    const float code = (isnan(scaled) ? 0.0f : rintf(scaled)) + (float)m->y_zero;
    return (double)(code < lo ? lo : code > lo + 255.0f ? lo + 255.0f : code);
}

static void compare(struct check *c, const struct qni_depthwise_image *m, int32_t data, int64_t at,
                    const int64_t out[2], bool *all_finite)
{
    double sum = 0.0, size = 0.0;
    for (int64_t ky = 0; ky < m->taps[0]; ky++)
        for (int64_t kx = 0; kx < m->taps[1]; kx++) {
            const int64_t y = m->first[0] + out[0] * m->stride[0] + ky * m->dilation[0];
            const int64_t x = m->first[1] + out[1] * m->stride[1] + kx * m->dilation[1];
            if (y < 0 || y >= m->in[0] || x < 0 || x >= m->in[1])
                continue;
            const double v = (double)m->x[y * m->x_row + x * m->x_column + at];
            const double w = (double)m->w[(ky * m->taps[1] + kx) * m->w_tap + at];
            sum += v * w;
            size += fabs(v * w);
        }
    bool is_finite = true;
    if (m->w_scale != NULL) {
        sum = given_steps(m, sum, at, &is_finite);
        size = 0.0;
    }
    if (m->w_scale == NULL && m->scale != NULL)
        sum *= (double)m->scale[at], size *= fabs((double)m->scale[at]);
    if (m->w_scale == NULL && m->bias != NULL)
        sum += (double)m->bias[at], size += fabs((double)m->bias[at]);
    if (m->w_scale == NULL)
        is_finite = isfinite(sum) != 0;
    if (m->w_scale == NULL && m->is_relu)
        sum = sum <= 0.0 ? 0.0 : sum > (double)m->most ? (double)m->most : sum;
    const double got = qni_ref_get(m->y, m->y_type, out[0] * m->y_row + out[1] * m->y_column + at);
    const bool is_exact = data != CHECK_NORMAL || m->w_scale != NULL;
    if (is_exact && m->y_type == QN_BF16 && isfinite(sum))
        sum = (double)qni_f32_from_bf16(qni_bf16_from_f32((float)sum));
    if (is_exact && m->y_type == QN_F16 && isfinite(sum))
        sum = (double)qni_f32_from_f16(qni_f16_from_f32((float)sum));
    /* Of a result rounded to 16 bits: half of its last place, more below the normal numbers. */
    const double last = m->y_type == QN_F16 ? 0x1p-11 : m->y_type == QN_BF16 ? 0x1p-8 : 0.0;
    const double bound =
        (data == CHECK_NORMAL ? (double)(m->taps[0] * m->taps[1] + 4) * 0x1p-23 * size : 0.0) +
        (is_exact ? 0.0 : last * fabs(sum) + (m->y_type == QN_F16 ? 0x1p-25 : 0.0));
    /* See depthwise_kernel.h of NaN as bf16. */
    const bool is_good = isnan(sum) && m->y_type == QN_BF16 ? true
                         : isfinite(sum)                    ? fabs(got - sum) <= bound
                         : isnan(sum)                       ? isnan(got)
                                                            : !isfinite(got);
    if (!is_good)
        check_fail(c, "y[%lld, %lld, %lld] is %.9g, must be %.9g within %.3g", (long long)out[0],
                   (long long)out[1], (long long)at, got, sum, bound);
    *all_finite = *all_finite && is_finite;
}

static void image_case(struct check *c, const void *arg)
{
    const struct image_case *ic = arg;
    struct check_random *r = &c->random;
    struct qni_depthwise_image m;
    const bool is_codes = ic->row->algorithm == QNI_CONV_CODES;
    draw(c, &m, is_codes);
    const int64_t taps = m.taps[0] * m.taps[1];
    const bool is_given = ic->row->strategy == QN_STRATEGY_INT8_STATIC;
    const int32_t integers = is_given ? CHECK_EXTREME : ic->data;
    const int64_t n_x = extent(m.in[0], m.x_row, m.in[1], m.x_column, m.n);
    const int64_t n_w = (taps - 1) * m.w_tap + m.n;
    if (is_codes) {
        fill_codes(c, &m, n_x, n_w);
    } else {
        m.x = fill(c, "x", n_x, integers, !is_given);
        m.w = fill(c, "w", n_w, integers, false);
    }
    m.w_scale = is_given ? fill(c, "w_scale", m.n, ic->data, true) : NULL;
    m.x_scale = CHECK_OF(r, 0, 1) == 0 ? 1.0f : 0.37f;
    m.y_inv = 0.71f;
    m.y_zero = (int32_t)CHECK_OF(r, 0, 0, 3, 100);
    m.scale = check_random_chance(r, 30) ? fill(c, "scale", m.n, ic->data, false) : NULL;
    m.bias = check_random_chance(r, 50) ? fill(c, "bias", m.n, ic->data, false) : NULL;
    m.is_relu = check_random_chance(r, 30);
    m.most = CHECK_OF(r, 0, 1) == 0 ? 6.0f : INFINITY;
    const int64_t n_y = extent(m.out[0], m.y_row, m.out[1], m.y_column, m.n);
    m.y_type = (qn_dtype)CHECK_OF(r, QN_F32, QN_F16, QN_BF16);
    if (is_given && (is_codes || check_random_chance(r, 50)))
        m.y_type = (qn_dtype)CHECK_OF(r, QN_I8, QN_U8);
    const size_t element = qn_dtype_bytes(m.y_type);
    m.y = check_memory(c, "y", (size_t)n_y * element, element);
    memset(m.y, 0x7b, (size_t)n_y * element);
    const bool told = ic->row->fn.image(&m);
    if (is_codes && !told && ic->data == CHECK_EXTREME)
        return; /* the driver serves these in another way */
    bool all_finite = true;
    int64_t seen = 0;
    for (int64_t i = 0; i < m.out[0]; i++)
        for (int64_t j = 0; j < m.out[1]; j++)
            for (int64_t at = 0; at < m.n && !c->failed; at++) {
                compare(c, &m, ic->data, at, (const int64_t[]){i, j}, &all_finite);
                if (element == 1) /* any byte may be a result */
                    ((uint8_t *)m.y)[i * m.y_row + j * m.y_column + at] = 0;
            }
    if (told != (all_finite || element == 1) && !c->failed)
        check_fail(c, "says that %s, but not so", told ? "all are finite" : "some are not finite");
    for (int64_t i = 0; i < n_y; i++)
        seen += memcmp((const uint8_t *)m.y + (size_t)i * element, &untouched, element) == 0;
    if (seen != n_y - m.out[0] * m.out[1] * m.n)
        check_fail(c, "what lies between the outputs has changed");
}

void check_depthwise_images(struct check_suite *suite, const struct check_options *options)
{
    const int32_t shapes = options->quick ? 12 : 60;
    const struct qni_conv_kernel *k;
    for (int32_t i = 0; (k = qni_conv_kernel_at(i)) != NULL; i++) {
        const bool takes_images = k->algorithm == QNI_CONV_IMAGE || k->algorithm == QNI_CONV_CODES;
        if (!takes_images || (k->row.needs & ~options->isa) != 0)
            continue;
        for (int32_t shape = 0; shape < shapes; shape++) {
            const struct image_case ic = {k, shape % CHECK_N_DATA};
            check_case(suite, image_case, &ic, "%s/%s/%d", k->row.name, check_data_names[ic.data],
                       shape);
        }
    }
}
