/* SPDX-License-Identifier: Apache-2.0 */
/* The row functions of src/cpu/rows on their own, every instance of isa.inc: conversions, the
 * activation quantizer, the two halves of the epilogue. All are EXACT: equal bits with the
 * reference, operands between guard pages. */
#include <math.h>
#include <string.h>

#include "../../src/base/half.h"
#include "../../src/cpu/rows/kernel.h"
#include "suites.h"

#define QNI_ROWS(isa, needs) &qni_rows_##isa,
static const struct qni_rows *const instances[] = {
#include "../../src/cpu/rows/isa.inc"
};
#undef QNI_ROWS

struct rows_case {
    const struct qni_rows *rows;
    int32_t data, shape;
};

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* ---------------------------------------------------------------------------------- conversions */

/* What the bits of a half mean, from the definition. */
static double half_value(uint32_t bits, int exponent_bits)
{
    const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = (int)bits & ((1 << mantissa_bits) - 1);
    double v = exponent == 0
                   ? ldexp(mantissa, 1 - bias - mantissa_bits)
                   : ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    if (exponent == (1 << exponent_bits) - 1)
        v = mantissa == 0 ? (double)INFINITY : (double)NAN;
    return (bits & 0x8000u) != 0 ? -v : v;
}

/* All 65536 halves, in pieces of odd lengths, with and without factors. */
static void widen_case(struct check *c, const void *arg)
{
    const struct qni_rows *rows = ((const struct rows_case *)arg)->rows;
    const qn_dtype type = ((const struct rows_case *)arg)->shape == 0 ? QN_F16 : QN_BF16;
    for (int64_t first = 0; first < 65536 && !c->failed;) {
        const int64_t n = check_random_in(&c->random, 1, 3000);
        const int64_t count = n < 65536 - first ? n : 65536 - first;
        uint16_t *src = check_memory(c, "src", (size_t)count * 2, 2);
        float *dst = check_memory(c, "dst", (size_t)count * 4, 4);
        float *times = check_memory(c, "times", (size_t)count * 4, 4);
        const bool with_times = check_random_chance(&c->random, 50);
        for (int64_t i = 0; i < count; i++) {
            src[i] = (uint16_t)(first + i);
            times[i] = (float)check_random_normal(&c->random);
        }
        rows->widen(dst, src, type, with_times ? times : NULL, count);
        for (int64_t i = 0; i < count && !c->failed; i++) {
            const float v = (float)half_value(src[i], type == QN_F16 ? 5 : 8);
            if (!same_float(dst[i], with_times ? v * times[i] : v))
                check_fail(c, "%s %04x becomes %.9g, must be %.9g", qn_dtype_name(type), src[i],
                           (double)dst[i], (double)(with_times ? v * times[i] : v));
        }
        first += count;
    }
}

/* All 256 codes and more of them, from some place in the middle on. */
static void codes_case(struct check *c, const void *arg)
{
    const struct qni_rows *rows = ((const struct rows_case *)arg)->rows;
    const bool is_signed = ((const struct rows_case *)arg)->shape == 0;
    const int64_t n = check_random_in(&c->random, 256, 300);
    const int32_t zero = (int32_t)check_random_in(&c->random, is_signed ? -128 : 0, 127);
    const int64_t first = check_random_in(&c->random, 0, 250);
    uint8_t *src = check_memory(c, "src", (size_t)(n - first), 1);
    float *dst = check_memory(c, "dst", (size_t)(n - first) * 4, 4);
    for (int64_t i = first; i < n; i++)
        src[i - first] = (uint8_t)i;
    rows->widen_codes(dst, src, is_signed ? QN_I8 : QN_U8, zero, n - first);
    for (int64_t i = 0; i < n - first && !c->failed; i++) {
        const float v = (float)((is_signed ? (int8_t)src[i] : src[i]) - zero);
        if (!same_float(dst[i], v))
            check_fail(c, "code %d becomes %.9g, must be %.9g", src[i], (double)dst[i], (double)v);
    }
}

/* bf16: nearest, ties to even, from the definition: one of the two neighbours, the nearer one. */
static void narrow_case(struct check *c, const void *arg)
{
    const struct qni_rows *rows = ((const struct rows_case *)arg)->rows;
    const int64_t n = check_random_in(&c->random, 1, 200);
    float *src = check_memory(c, "src", (size_t)n * 4, 4);
    uint16_t *dst = check_memory(c, "dst", (size_t)n * 2, 2);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)check_random_next(&c->random);
        if (check_random_chance(&c->random, 30))
            bits = (bits & 0xffff0000u) | 0x8000u; /* a tie */
        src[i] = qni_float_of(bits);
    }
    rows->narrow_bf16(dst, src, n);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = qni_bits_of(src[i]), down = bits >> 16, rest = bits & 0xffffu;
        const uint32_t must =
            rest > 0x8000u || (rest == 0x8000u && (down & 1u) != 0) ? down + 1 : down;
        if (isnan(src[i]) ? !isnan(half_value(dst[i], 8)) : dst[i] != must)
            check_fail(c, "%.9g becomes %04x, must be %04x", (double)src[i], dst[i], must);
    }
}

/* Planes to rows, whatever the sizes: each element once, and nothing beside them. */
static void turn_case(struct check *c, const void *arg)
{
    const struct qni_rows *rows = ((const struct rows_case *)arg)->rows;
    struct check_random *r = &c->random;
    const size_t element = (size_t)CHECK_OF(r, 1, 2, 4);
    const int64_t pixels = CHECK_OF(r, 1, 7, 15, 16, 17, 31, 33, 64, 100);
    const int64_t channels = CHECK_OF(r, 1, 3, 15, 16, 17, 32, 40, 65);
    const size_t plane = ((size_t)pixels + (size_t)check_random_in(r, 0, 9)) * element;
    const size_t ld = ((size_t)channels + (size_t)check_random_in(r, 0, 9)) * element;
    const size_t from = (size_t)(channels - 1) * plane + (size_t)pixels * element;
    const size_t to = (size_t)(pixels - 1) * ld + (size_t)channels * element;
    uint8_t *src = check_memory(c, "src", from, element);
    uint8_t *dst = check_memory(c, "dst", to, element);
    uint8_t *must = check_memory(c, "must", to, element);
    for (size_t i = 0; i < from; i++)
        src[i] = (uint8_t)check_random_next(r);
    for (size_t i = 0; i < to; i++)
        dst[i] = must[i] = (uint8_t)check_random_next(r);
    for (int64_t i = 0; i < pixels; i++)
        for (int64_t j = 0; j < channels; j++)
            memcpy(must + (size_t)i * ld + (size_t)j * element,
                   src + (size_t)j * plane + (size_t)i * element, element);
    check_memory_freeze(src);
    rows->turn(dst, ld, src, plane, pixels, channels, element);
    if (memcmp(dst, must, to) != 0)
        check_fail(c, "%lld pixels, %lld channels of %zu bytes differ", (long long)pixels,
                   (long long)channels, element);
}

/* Infinities and NaNs of either sign are found wherever they are, and nothing else is. */
static void finite_case(struct check *c, const void *arg)
{
    static const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffffffffu, 0x7f800001u};
    const struct qni_rows *rows = ((const struct rows_case *)arg)->rows;
    struct check_random *r = &c->random;
    const int64_t n = CHECK_OF(r, 1, 15, 16, 17, 40), lines = CHECK_OF(r, 1, 2, 5);
    const int64_t ld = n + check_random_in(r, 0, 3), count = (lines - 1) * ld + n;
    float *v = check_memory(c, "v", (size_t)count * sizeof *v, 4);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)check_random_next(r);
        const bool is_bad = (bits & 0x7f800000u) == 0x7f800000u;
        v[i] = qni_float_of(is_bad ? 0xff7fffffu : bits);
        if (i % ld >= n)
            v[i] = qni_float_of(bad[i % 5]); /* between the lines */
    }
    if (!rows->is_finite(v, lines, n, ld))
        check_fail(c, "numbers are not finite");
    for (int64_t i = 0; i < count; i++) {
        const float was = v[i];
        if (i % ld >= n)
            continue;
        v[i] = qni_float_of(bad[check_random_in(r, 0, 4)]);
        if (rows->is_finite(v, lines, n, ld))
            check_fail(c, "%08x at %lld of %lld is finite", qni_bits_of(v[i]), (long long)i,
                       (long long)n);
        v[i] = was;
    }
}

/* Stores past the caches are stores. */
static void past_case(struct check *c, const void *arg)
{
    const struct qni_rows *rows = ((const struct rows_case *)arg)->rows;
    struct check_random *r = &c->random;
    const int64_t n = 16 * check_random_in(r, 1, 9);
    const float times = (float)check_random_in(r, -9, 9) / 8.0f;
    float *v = check_memory(c, "v", (size_t)n * sizeof *v, 4);
    float *y = check_memory(c, "y", (size_t)n * sizeof *y, 64);
    float *must = check_memory(c, "y through the caches", (size_t)n * sizeof *y, 4);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)check_random_in(r, -999, 999) / 7.0f;
    rows->scale_to(must, v, times, n);
    rows->scale_past(y, v, times, n);
    rows->fence();
    for (int64_t i = 0; i < n; i++)
        if (y[i] != must[i] || must[i] != v[i] * times)
            check_fail(c, "%lld of %lld is %.9g and %.9g, must be %.9g", (long long)i, (long long)n,
                       (double)y[i], (double)must[i], (double)(v[i] * times));
}

/* ------------------------------------------------------------------------------------ quantizer */

/* A row in packed order: groups of whole units, the last one perhaps short. */
struct packed_row {
    struct qni_cut cut;
    float *x;
    int64_t *at; /* [k] */
};

static struct packed_row draw_row(struct check *c, int32_t data, bool bad)
{
    struct check_random *r = &c->random;
    struct packed_row p = {.cut.k = CHECK_OF(r, 1, 16, 31, 32, 33, 64, 100, 129, 300, 1000)};
    const int64_t k = p.cut.k;
    int64_t group = CHECK_OF(r, 7, 16, 32, 48, 64, 100, 128, k);
    group = group < k ? group : k;
    p.cut.n_groups = (k + group - 1) / group;
    p.cut.group_units = (group + 31) / 32;
    p.cut.group_len = group;
    p.cut.last_len = k - (p.cut.n_groups - 1) * group;
    p.cut.units = (p.cut.n_groups - 1) * p.cut.group_units + (p.cut.last_len + 31) / 32;
    p.cut.segment_units = CHECK_OF(r, 1, 2, 4, 1024);
    if (p.cut.segment_units > p.cut.group_units)
        p.cut.segment_units = p.cut.group_units;
    p.x = check_memory(c, "x", (size_t)p.cut.units * 128, 64);
    p.at = check_memory(c, "at", (size_t)k * sizeof *p.at, 8);
    memset(p.x, 0, (size_t)p.cut.units * 128);
    const qn_tensor x = check_tensor(c, "plain x", QN_F32, 2, (const int64_t[]){1, k}, false);
    check_fill_x(c, &x, data, bad);
    for (int64_t q = 0; q < k; q++) {
        p.at[q] = q / group * p.cut.group_units * 32 + q % group;
        p.x[p.at[q]] = ((const float *)x.data)[q];
    }
    /* Segments: whole units inside a group. */
    for (int64_t g = 0; g < p.cut.n_groups; g++) {
        const int64_t units =
            g + 1 < p.cut.n_groups ? p.cut.group_units : (p.cut.last_len + 31) / 32;
        p.cut.n_segments += (units + p.cut.segment_units - 1) / p.cut.segment_units;
    }
    return p;
}

/* The next segment of a row that begins at position q: its length. */
static int64_t segment_length(const struct qni_cut *cut, int64_t q)
{
    const int64_t in_group = q % cut->group_len;
    const int64_t group_end =
        q - in_group + cut->group_len < cut->k ? cut->group_len - in_group : cut->k - q;
    return group_end < cut->segment_units * 32 ? group_end : cut->segment_units * 32;
}

static void compare_codes(struct check *c, const struct packed_row *p, const int8_t *codes,
                          int64_t q, int64_t n, const int32_t *must)
{
    for (int64_t i = 0; i < n; i++)
        if (codes[p->at[q + i]] != must[i])
            check_fail(c, "code %lld is %d, must be %d", (long long)(q + i), codes[p->at[q + i]],
                       must[i]);
}

static void check_padding(struct check *c, const struct packed_row *p, const int8_t *codes)
{
    int64_t sum = 0, real = 0;
    for (int64_t i = 0; i < p->cut.units * 32; i++)
        sum += codes[i] < 0 ? -codes[i] : codes[i];
    for (int64_t q = 0; q < p->cut.k; q++)
        real += codes[p->at[q]] < 0 ? -codes[p->at[q]] : codes[p->at[q]];
    if (sum != real)
        check_fail(c, "a code of the padding is not 0");
}

static void quantize_case(struct check *c, const void *arg)
{
    const struct rows_case *rc = arg;
    const struct packed_row p = draw_row(c, rc->data, rc->data == CHECK_EXTREME);
    const int64_t n = p.cut.n_segments;
    const bool block = rc->shape % 3 != 0, symmetric = rc->shape % 3 != 1;
    int8_t *codes = check_memory(c, "codes", (size_t)p.cut.units * 32, 64);
    int32_t *must = check_memory(c, "expected codes", (size_t)p.cut.k * 4, 4);
    float *flat = check_memory(c, "row", (size_t)p.cut.k * 4, 4);
    const struct qni_facts facts = {
        check_memory(c, "sum", (size_t)n * 4, 4), check_memory(c, "scale", (size_t)n * 4, 4),
        check_memory(c, "offset", (size_t)n * 4, 4), check_memory(c, "total", (size_t)n * 4, 4)};
    float row_scale = 0.0f;
    check_about(c, "k=%lld group=%lld segment=%lld", (long long)p.cut.k, (long long)p.cut.group_len,
                (long long)p.cut.segment_units * 32);
    for (int64_t q = 0; q < p.cut.k; q++)
        flat[q] = p.x[p.at[q]];
    if (block)
        rc->rows->quantize_block(p.x, &p.cut, symmetric, codes, &facts);
    else
        rc->rows->quantize_row(p.x, &p.cut, codes, facts.sum, &row_scale);
    const float must_scale = block ? 0.0f : qni_ref_quantize(flat, p.cut.k, true, must).scale;
    if (!same_float(row_scale, must_scale))
        check_fail(c, "the row's scale is %.9g, must be %.9g", (double)row_scale,
                   (double)must_scale);
    for (int64_t s = 0, q = 0; s < n && !c->failed; s++) {
        const int64_t count = segment_length(&p.cut, q);
        struct qni_ref_segment f = {0};
        if (block)
            f = qni_ref_quantize(flat + q, count, symmetric, must + q);
        for (int64_t i = 0; i < count && !block; i++)
            f.sum += must[q + i];
        compare_codes(c, &p, codes, q, count, must + q);
        if (facts.sum[s] != f.sum)
            check_fail(c, "sum %lld is %d, must be %d", (long long)s, facts.sum[s], f.sum);
        if (block && !(same_float(facts.scale[s], f.scale) && same_float(facts.total[s], f.total) &&
                       (symmetric || same_float(facts.offset[s], f.offset))))
            check_fail(c, "facts %lld are %.9g %.9g %.9g, must be %.9g %.9g %.9g", (long long)s,
                       (double)facts.scale[s], (double)facts.offset[s], (double)facts.total[s],
                       (double)f.scale, (double)f.offset, (double)f.total);
        q += count;
    }
    check_padding(c, &p, codes);
    for (int64_t s = 0; s < n; s++)
        facts.sum[s] = -1;
    rc->rows->sum(codes, &p.cut, facts.sum);
    for (int64_t s = 0, q = 0; s < n; s++) {
        int32_t sum = 0;
        const int64_t end = q + segment_length(&p.cut, q);
        for (; q < end; q++)
            sum += codes[p.at[q]];
        if (facts.sum[s] != sum)
            check_fail(c, "sum(): %lld is %d, must be %d", (long long)s, facts.sum[s], sum);
    }
}

/* ------------------------------------------------------------------------------------- epilogue */

/* A tile row through scale and finish, as the epilogue of a matmul of one row. */
static void finish_case(struct check *c, const void *arg)
{
    const struct rows_case *rc = arg;
    struct check_random *r = &c->random;
    static const qn_dtype y_types[] = {QN_F32, QN_F16, QN_BF16, QN_I8, QN_U8};
    const int64_t n = CHECK_OF(r, 1, 7, 8, 15, 16, 17, 31, 33, 64, 100);
    const int64_t y_stride = check_random_chance(r, 60) ? 1 : check_random_in(r, 2, 9);
    struct qni_ref_op op = {.kind = 0, .m = 1, .n = n, .groups = 1, .co = n};
    qn_epilogue *e = &op.epilogue;
    qn_epilogue_init(e);
    op.y = check_tensor(c, "y", y_types[rc->shape % 5], 2, (const int64_t[]){n, y_stride}, false);
    op.y.stride[0] = 0;
    op.y.stride[1] = y_stride;
    e->act = (qn_act)check_random_in(r, QN_ACT_NONE, QN_ACT_LEAKY_RELU);
    qn_epilogue_more_init(&op.more);
    op.more.leaky_slope = (float)(0.01 * (double)check_random_in(r, -10, 150));
    op.more.hard_slope = (float)(0.1 * (double)check_random_in(r, -10, 20));
    op.more.residual_scale = (float)(0.003 * (double)check_random_in(r, 1, 300));
    op.more.residual_zero = (int32_t)check_random_in(r, 0, 127);
    e->y_scale = (float)(0.01 * (double)check_random_in(r, 1, 300));
    e->y_zero = (int32_t)check_random_in(r, 0, 127);
    float *v = check_memory(c, "v", (size_t)n * 4, 4),
          *raw = check_memory(c, "raw", (size_t)n * 4, 4);
    const qn_tensor x = {
        .data = raw, .dtype = QN_F32, .rank = 2, .shape = {1, n}, .stride = {n, 1}};
    check_fill_x(c, &x, rc->data == CHECK_EXTREME ? CHECK_EXTREME : CHECK_NORMAL,
                 rc->data == CHECK_EXTREME);
    for (int64_t j = 0; j < n && rc->data == CHECK_NORMAL; j++)
        raw[j] *= 4.0f;
    memcpy(v, raw, (size_t)n * 4);
    struct qni_scale_step scale = {.n = n, .x_scale = 1.0f, .row_scale = 1.0f};
    struct qni_finish_step finish = {.n = n,
                                     .act = e->act,
                                     .y = op.y.data,
                                     .y_dtype = op.y.dtype,
                                     .y_stride = y_stride,
                                     .y_inv = 1.0f / e->y_scale,
                                     .y_zero = e->y_zero};
    qni_finish_add(&finish, &op.more);
    if (check_random_chance(r, 50)) {
        e->bias = check_tensor(c, "bias", QN_F32, 1, &n, false);
        check_fill_x(c, &e->bias, CHECK_NORMAL, false);
        scale.bias = e->bias.data;
    }
    if (check_random_chance(r, 50)) {
        e->col_scale = check_tensor(c, "col_scale", QN_F32, 1, &n, false);
        check_fill_x(c, &e->col_scale, CHECK_NORMAL, false);
        scale.col_scale = e->col_scale.data;
    }
    if (check_random_chance(r, 50)) {
        const qn_dtype type = (qn_dtype)CHECK_OF(r, QN_F32, QN_F16, QN_BF16, QN_I8, QN_U8);
        e->residual =
            check_tensor(c, "residual", type, 2, (const int64_t[]){n, y_stride}, false);
        check_fill_x(c, &e->residual, CHECK_NORMAL, false);
        e->residual.stride[0] = 0;
        e->residual.stride[1] = y_stride;
        e->residual_after = check_random_chance(r, 50);
        finish.residual = e->residual.data;
        finish.residual_dtype = e->residual.dtype;
        finish.residual_stride = y_stride;
        finish.residual_after = e->residual_after;
    }
    if (check_random_chance(r, 40)) {
        e->clamp_lo = finish.clamp_lo = -0.5f;
        e->clamp_hi = finish.clamp_hi = 1.5f;
        finish.has_clamp = 1;
    }
    const float x_scale = scale.x_scale = check_random_chance(r, 50) ? 1.0f : 0.37f;
    check_about(c, "n=%lld act=%d y=%s stride=%lld", (long long)n, e->act,
                qn_dtype_name(op.y.dtype), (long long)y_stride);
    rc->rows->scale(v, &scale);
    rc->rows->finish(v, &finish);
    for (int64_t j = 0; j < n && !c->failed; j++) {
        const uint32_t must = qni_ref_epilogue_bits(&op, 0, j, raw[j] * x_scale);
        const uint32_t got = qni_ref_bits(op.y.data, op.y.dtype, j * y_stride);
        if (got != must && !(qni_ref_is_nan(got, op.y.dtype) && qni_ref_is_nan(must, op.y.dtype)))
            check_fail(c, "v = %.9g becomes %x, must be %x", (double)raw[j], got, must);
        double error = 0.0;
        const double y = qni_ref_epilogue(&op, 0, j, (double)(raw[j] * x_scale), &error);
        const bool is_code = op.y.dtype == QN_I8 || op.y.dtype == QN_U8;
        const bool is_near = is_code ? qni_ref_within_codes(&op, got, y, error)
                                     : qni_ref_within(op.y.dtype, got, y, error);
        if (isfinite(raw[j]) && !is_near)
            check_fail(c, "v = %.9g becomes %.9g, in exact arithmetic %.9g within %.3g",
                       (double)raw[j], qni_ref_get(&got, op.y.dtype, 0), y, error);
    }
}

void check_rows(struct check_suite *suite, const struct check_options *options)
{
    for (size_t i = 0; i < sizeof instances / sizeof *instances; i++) {
        const struct qni_rows *rows = instances[i];
        if ((rows->needs & ~options->isa) != 0)
            continue;
        for (int32_t shape = 0; shape < 2; shape++) {
            const struct rows_case rc = {rows, CHECK_NORMAL, shape};
            check_case(suite, widen_case, &rc, "widen/%s/%d", rows->name, shape);
            check_case(suite, codes_case, &rc, "codes/%s/%d", rows->name, shape);
            check_case(suite, turn_case, &rc, "turn/%s/%d", rows->name, shape);
            check_case(suite, finite_case, &rc, "finite/%s/%d", rows->name, shape);
            check_case(suite, past_case, &rc, "past/%s/%d", rows->name, shape);
        }
        for (int32_t data = 0; data < CHECK_N_DATA; data++)
            for (int32_t shape = 0; shape < (options->quick ? 5 : 60); shape++) {
                const struct rows_case rc = {rows, data, shape};
                if (data == 0)
                    check_case(suite, narrow_case, &rc, "narrow/%s/%d", rows->name, shape);
                check_case(suite, quantize_case, &rc, "quantize/%s/%s/%d", rows->name,
                           check_data_names[data], shape);
                check_case(suite, finish_case, &rc, "finish/%s/%s/%d", rows->name,
                           check_data_names[data], shape);
            }
    }
}
