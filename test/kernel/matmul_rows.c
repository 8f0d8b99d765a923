/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of src/cpu/matmul/kernels.inc on its own, through nothing but kernel.h: weights are
 * packed here from the drawing in that header, code by code, each operand between guard pages. A
 * new row is tested from the moment it is in the list. */
#include <math.h>
#include <string.h>

#include "../../src/base/half.h"
#include "../../src/cpu/matmul/kernel.h"
#include "suites.h"

#define QNI_MATMUL_KERNEL(fn, needs, reads, layout, m_min, mr, numerics, traits, scratch)          \
    {#fn,                                                                                          \
     fn,                                                                                           \
     (needs),                                                                                      \
     QNI_READS_##reads,                                                                            \
     QNI_LAYOUT_##layout,                                                                          \
     m_min,                                                                                        \
     mr,                                                                                           \
     QNI_NUMERICS_##numerics,                                                                      \
     traits,                                                                                       \
     {scratch}},
static const struct qni_matmul_kernel kernels[] = {
#include "../../src/cpu/matmul/kernels.inc"
    {NULL, NULL, 0, 0, 0, 0, 0, 0, 0, {0}}};
#undef QNI_MATMUL_KERNEL

/* STEADY: all codes are the lowest there are, over many short groups: sums that a kernel lets run
 * on grow as fast as they can. LONG: many rows; of int8 in one segment. CUT: many rows of int8 in
 * segments of some units. */
enum kind { PLAIN, STEADY, LONG, CUT };

struct row_case {
    const struct qni_matmul_kernel *kernel;
    int32_t data, shape;
    enum kind kind;
};

/* What a case has drawn. */
struct drawn {
    const struct qni_matmul_kernel *kernel;
    int32_t data;
    int64_t m, n, k, panels;
    int64_t x_block;
    int32_t x_zero;
    bool symmetric, raw, f16_scales;
    bool scaled; /* the kernel gets a row_scale */
    struct check_weight weight;
    struct qni_ref_segments segments; /* in canonical positions */
    int64_t *packed_at;               /* [k] packed position of the q-th position in packed order */
    struct qni_matmul_tile tile;
    bool is_steady;
    int64_t apart; /* rows of c are so far apart, 0: as they come */
};

static bool is_nibble(const struct qni_matmul_kernel *k)
{
    return k->layout == QNI_LAYOUT_Q4N16 || k->layout == QNI_LAYOUT_T4N16;
}

static bool is_table(const struct qni_matmul_kernel *k)
{
    return k->layout == QNI_LAYOUT_T4N16 || k->layout == QNI_LAYOUT_T8N16;
}

/* The type of weights that are not quantized, or 0. */
static qn_dtype floats_of(const struct qni_matmul_kernel *k)
{
    return k->layout == QNI_LAYOUT_F32N16   ? QN_F32
           : k->layout == QNI_LAYOUT_H16N16 ? QN_F16
           : k->layout == QNI_LAYOUT_B16N16 ? QN_BF16
                                            : 0;
}

static size_t unit_bytes_of(const struct qni_matmul_kernel *k)
{
    const qn_dtype floats = floats_of(k);
    return floats != 0 ? QNI_UNIT * QNI_PANEL * qn_dtype_bytes(floats) : is_nibble(k) ? 256 : 512;
}

/* Float rows on bf16 tiles want codes that bf16 holds: integers, directly or by table8. */
static bool wants_integers(const struct qni_matmul_kernel *k)
{
    return k->reads != QNI_READS_F32;
}

static bool is_int8(const struct qni_matmul_kernel *k)
{
    return k->reads == QNI_READS_Q8 || k->reads == QNI_READS_Q8B;
}

/* Many rows go another way than few. */
static bool takes_long(const struct qni_matmul_kernel *k)
{
    return (k->traits & (QNI_TAKES_SCALE | QNI_SPLITS_ROW_OUTLIERS)) ||
           (k->reads == QNI_READS_BF16 && k->mr == 32);
}

/* -------------------------------------------------------------------------------------- drawing */

static qn_format draw_format(struct check *c, const struct qni_matmul_kernel *kernel, int64_t k)
{
    struct check_random *r = &c->random;
    qn_format f = {.code = QN_CODE_INT, .scale_dtype = QN_F32};
    f.group =
        CHECK_OF(r, 32, 32, 64, 128, 7, 16, 16, 48, 96, 100, QN_GROUP_PER_CHANNEL, k > 0 ? k : 1);
    f.shift = (qn_shift)check_random_in(r, QN_SHIFT_NONE, QN_SHIFT_OFFSET);
    if (floats_of(kernel) != 0)
        return (qn_format){.code = QN_CODE_FLOAT,
                           .bits = 8 * (int32_t)qn_dtype_bytes(floats_of(kernel)),
                           .group = QN_GROUP_PER_TENSOR,
                           .scale_dtype = floats_of(kernel)};
    switch (kernel->layout) {
    case QNI_LAYOUT_Q4N16:
        f.bits = (int32_t)CHECK_OF(r, 2, 3, 4, 4, 4);
        break;
    case QNI_LAYOUT_Q8N16:
        f.bits = (int32_t)CHECK_OF(r, 5, 6, 7, 8, 8, 8);
        break;
    case QNI_LAYOUT_T8N16:
        f.code = (qn_code)CHECK_OF(r, QN_CODE_E4M3, QN_CODE_TABLE);
        if (wants_integers(kernel)) /* or what bf16 has all digits of */
            f.code = QN_CODE_E4M3;
        f.bits = f.code == QN_CODE_E4M3 ? 8 : (int32_t)CHECK_OF(r, 5, 8);
        break;
    default:
        f.code = (qn_code)(wants_integers(kernel) ? CHECK_OF(r, QN_CODE_IQ4_NL, QN_CODE_E2M1)
                                                  : CHECK_OF(r, QN_CODE_NF4, QN_CODE_IQ4_NL,
                                                             QN_CODE_E2M1, QN_CODE_TABLE));
        f.bits = f.code == QN_CODE_TABLE ? (int32_t)CHECK_OF(r, 3, 4) : 4;
        break;
    }
    return f;
}

/* Rows of the weight past n are what a packer pads a panel with: value 0 if there is one, scale 0.
 */
static void blank_rows(struct check_weight *weight, int64_t first)
{
    struct qn_weight *w = &weight->w;
    uint8_t blank = 0;
    if (w->format.code == QN_CODE_FLOAT) {
        const size_t row = (size_t)w->k * qni_code_bytes(&w->format);
        memset(w->codes + (size_t)first * row, 0, (size_t)(w->n - first) * row);
        return;
    }
    if (w->format.code == QN_CODE_INT)
        blank = (uint8_t)(1 << (w->format.bits - 1));
    else
        while (blank < (1 << w->format.bits) - 1 && w->table[blank] != 0.0f)
            blank++;
    for (int64_t i = first * w->k; i < w->n * w->k; i++)
        w->codes[i] = blank;
    for (int64_t i = first * w->n_groups; i < w->n * w->n_groups; i++) {
        w->scale[i] = 0.0f;
        if (w->zero != NULL)
            w->zero[i] = 0;
        if (w->offset != NULL)
            w->offset[i] = 0.0f;
    }
}

static void draw_steady(struct check *c, struct drawn *d, struct check_weight_options *o)
{
    d->m = CHECK_OF(&c->random, 1, 16, 33);
    d->panels = 1;
    d->n = 16;
    d->k = o->k = 8192;
    d->raw = d->scaled = false;
    o->n = d->n;
    o->format.group = d->m > 16 ? 32 : CHECK_OF(&c->random, 32, 64);
    o->format.shift = QN_SHIFT_NONE;
    o->format.bits = is_nibble(d->kernel) ? 4 : 8;
}

/* More rows, panels or chunks of k than a kernel takes at a time. */
static void draw_long(struct check *c, const struct row_case *rc, struct drawn *d)
{
    struct check_random *r = &c->random;
    d->m = CHECK_OF(r, 129, 131, 144, 160, 177, 255, 256, 257, 304, 320, 321, 340);
    d->panels = rc->shape % 3 == 0 ? CHECK_OF(r, 9, 10, 13) : CHECK_OF(r, 1, 2, 3);
    d->n = 16 * d->panels - CHECK_OF(r, 0, 0, 1, 15);
    d->k = d->panels > 3 ? CHECK_OF(r, 512, 545) : CHECK_OF(r, 512, 513, 1024, 1025, 1088, 2100);
    d->apart = CHECK_OF(r, 0, 512, 512);
}

/* Segments that are all whole, or that are not. */
static void draw_cut(struct check *c, struct drawn *d, struct check_weight_options *o)
{
    struct check_random *r = &c->random;
    d->raw = d->scaled = false;
    o->format.group = CHECK_OF(r, 128, 128, 256, 512);
    o->k = d->k = CHECK_OF(r, 256, 384, 512, 640, 1000, 1024, 1152, 1280, 1300, 2048);
}

static void draw(struct check *c, const struct row_case *rc, struct drawn *d)
{
    struct check_random *r = &c->random;
    const struct qni_matmul_kernel *kernel = rc->kernel;
    const int64_t mr = kernel->mr;
    const int64_t ms[] = {1, mr, mr + 1, 2 * mr + 1, mr > 1 ? mr - 1 : 1, 2 * mr - 1};
    memset(d, 0, sizeof *d);
    d->kernel = kernel;
    d->data = rc->data;
    d->m = ms[rc->shape % 6];
    if ((kernel->traits & (QNI_TAKES_SPANS | QNI_SPLITS_ROW_OUTLIERS)) && rc->shape % 3 == 2)
        /* several blocks, and copies */
        d->m = CHECK_OF(r, mr + 1, mr + 2, mr + 3, 14, 15, 16, 29, 43, 60, 256, 257, 300);
    d->panels = CHECK_OF(r, 1, 1, 2, 3, rc->shape % 5 == 4 ? 9 : 2);
    d->n = 16 * d->panels - (check_random_chance(r, 50) ? 0 : check_random_in(r, 1, 15));
    d->k = CHECK_OF(r, 1, 5, 31, 32, 33, 64, 96, 100, 128, 129, 200, 256, 300, 520,
                    d->m * d->panels < 100 ? 2100 : 160);
    if (kernel->traits & QNI_MAKES_WEIGHTS) /* it may ask for long sums */
        d->k = CHECK_OF(r, 512, 513, 544, 640, 1000, 1025, 1088, 2100);
    if (kernel->traits & QNI_ROUNDS_WEIGHTS) /* or does not */
        d->k = CHECK_OF(r, d->k, d->k, 1, 33, 96, 100, 160, 300);
    if (kernel->reads == QNI_READS_BF16 && mr == 32 && d->m >= 2 * mr) /* or do something else */
        d->k = CHECK_OF(r, d->k, 1000, 1025, 1025, 1088, 1500, 2100);
    if (rc->kind == LONG || rc->kind == CUT)
        draw_long(c, rc, d);
    struct check_weight_options o = {
        .n = 16 * d->panels, .k = d->k, .kh = 1, .kw = 1, .conv_groups = 1};
    o.format = draw_format(c, kernel, d->k);
    if (d->k == 1025 && d->m >= 2 * mr && floats_of(kernel) == 0 && check_random_chance(r, 50)) {
        o.format.group = 32; /* 33 units: the last is alone, and no offsets come after it */
        o.format.shift = QN_SHIFT_NONE;
    }
    o.data = rc->data;
    d->raw = kernel->reads == QNI_READS_Q8 && !is_table(kernel) && check_random_chance(r, 20);
    d->scaled = (kernel->traits & QNI_TAKES_SCALE) && !d->raw && check_random_chance(r, 50);
    if (d->raw || d->scaled || (rc->kind == LONG && is_int8(kernel)))
        o.format.group = QN_GROUP_PER_CHANNEL;
    if (d->raw || d->scaled)
        o.format.shift = QN_SHIFT_NONE;
    if (rc->kind == CUT)
        draw_cut(c, d, &o);
    /* Integer zero points make offsets that f16 seldom holds. */
    d->f16_scales = o.format.shift != QN_SHIFT_ZERO && check_random_chance(r, 50);
    o.f16_scales = d->f16_scales;
    d->is_steady = rc->kind == STEADY;
    if (d->is_steady)
        draw_steady(c, d, &o);
    check_weight_make(c, &o, &d->weight);
    if (d->is_steady)
        memset(d->weight.w.codes, 0, (size_t)(d->weight.w.n * d->weight.w.k));
    blank_rows(&d->weight, d->n);
    d->x_block = CHECK_OF(r, 32, 32, 64, 100, 128, 1024);
    if (o.format.group == 96) /* pieces of two units and of one */
        d->x_block = 64;
    d->symmetric = check_random_chance(r, 40);
    d->x_zero = check_random_chance(r, 50) ? 0 : (int32_t)check_random_in(r, -128, 127);
    if (rc->kind == CUT) {
        d->x_block = CHECK_OF(r, 128, 128, 256);
        d->x_zero = check_random_chance(r, 80) ? 0 : d->x_zero;
    }
    if (d->is_steady) {
        d->x_block = 128;
        d->symmetric = true;
        d->x_zero = 0;
    }
    check_about(c, "m=%lld n=%lld k=%lld code=%d bits=%d group=%lld shift=%d x_block=%lld %s%s%s%s",
                (long long)d->m, (long long)d->n, (long long)d->k, o.format.code, o.format.bits,
                (long long)o.format.group, o.format.shift, (long long)d->x_block,
                d->f16_scales ? "f16 " : "", d->symmetric ? "sym " : "", d->raw ? "raw" : "",
                d->scaled ? "scaled" : "");
}

/* -------------------------------------------------------------------------------------- weights */

static int64_t units_of(int64_t positions)
{
    return (positions + QNI_UNIT - 1) / QNI_UNIT;
}

/* Groups begin at whole units; so do segments, since theirs are whole units long. */
static void lay_out(struct check *c, struct drawn *d)
{
    const struct qn_weight *w = &d->weight.w;
    struct qni_matmul_tile *t = &d->tile;
    const int64_t length = d->kernel->reads == QNI_READS_Q8    ? 32768
                           : d->kernel->reads == QNI_READS_Q8B ? units_of(d->x_block) * QNI_UNIT
                                                               : (int64_t)1 << 40;
    const int64_t group = w->format.group < 0 || w->format.group > w->k ? w->k : w->format.group;
    check_status(c, "segments", qni_ref_segments_make(w, length, &d->segments), QN_OK, NULL);
    d->packed_at = check_memory(c, "packed positions", (size_t)w->k * sizeof *d->packed_at, 8);
    t->n_panels = d->panels;
    t->n_groups = w->n_groups;
    t->group_units = units_of(group);
    t->segment_units = units_of(length) < t->group_units ? units_of(length) : t->group_units;
    t->n_segments = d->segments.n;
    for (int64_t q = 0; q < w->k; q++)
        d->packed_at[q] = q / group * t->group_units * QNI_UNIT + q % group;
    t->units = d->packed_at[w->k - 1] / QNI_UNIT + 1;
}

static void put_code(const struct drawn *d, uint8_t *codes, int64_t row, int64_t position,
                     uint8_t u)
{
    const int64_t unit_bytes = is_nibble(d->kernel) ? 256 : 512;
    const int64_t lane = row % QNI_PANEL, in_unit = position % QNI_UNIT;
    uint8_t *unit =
        codes + row / QNI_PANEL * (int64_t)d->tile.codes_stride + position / QNI_UNIT * unit_bytes;
    if (!is_nibble(d->kernel)) {
        unit[in_unit / 4 * 64 + lane * 4 + in_unit % 4] = u;
        return;
    }
    uint8_t *byte = &unit[in_unit % 16 / 4 * 64 + lane * 4 + in_unit % 4];
    *byte = in_unit < 16 ? (uint8_t)((*byte & 0xf0) | u) : (uint8_t)((*byte & 0x0f) | (u << 4));
}

/* As kernel.h draws it. */
static void put_float(const struct drawn *d, uint8_t *codes, int64_t row, int64_t position,
                      const uint8_t *bytes)
{
    const qn_dtype floats = floats_of(d->kernel);
    const size_t each = qn_dtype_bytes(floats);
    const int64_t lane = row % QNI_PANEL, p = position % QNI_UNIT;
    const int64_t vector = p / 4 * 2 + p % 2, half = p % 4 / 2; /* of bf16 */
    const int64_t at =
        floats == QN_BF16 ? vector * 32 + lane * 2 + half : p * QNI_PANEL + lane; /* elements */
    memcpy(codes + row / QNI_PANEL * (int64_t)d->tile.codes_stride +
               position / QNI_UNIT * (int64_t)unit_bytes_of(d->kernel) + at * (int64_t)each,
           bytes, each);
}

static void pack_floats(struct check *c, struct drawn *d)
{
    const struct qn_weight *w = &d->weight.w;
    const size_t each = qni_code_bytes(&w->format);
    d->tile.codes_stride = (size_t)d->tile.units * unit_bytes_of(d->kernel);
    const size_t bytes = d->tile.codes_stride * (size_t)d->panels;
    uint8_t *codes = check_memory(c, "codes", bytes, 64);
    memset(codes, 0, bytes);
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t q = 0; q < w->k; q++)
            put_float(d, codes, row, d->packed_at[q],
                      w->codes + (size_t)(row * w->k + d->segments.order[q]) * each);
    check_memory_freeze(codes);
    d->tile.codes = codes;
}

static void pack_codes(struct check *c, struct drawn *d)
{
    const struct qn_weight *w = &d->weight.w;
    struct qni_matmul_tile *t = &d->tile;
    const size_t unit_bytes = is_nibble(d->kernel) ? 256 : 512;
    const int32_t bias = is_nibble(d->kernel) ? 8 : 128, own = 1 << (w->format.bits - 1);
    uint8_t padding = is_table(d->kernel) ? 0 : (uint8_t)bias;
    while (is_table(d->kernel) && padding < (1 << w->format.bits) - 1 && w->table[padding] != 0.0f)
        padding++;
    t->codes_stride = (size_t)t->units * unit_bytes;
    const size_t bytes = t->codes_stride * (size_t)d->panels;
    uint8_t *codes = check_memory(c, "codes", bytes, 64);
    memset(codes, is_nibble(d->kernel) ? padding * 17 : padding, bytes);
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t q = 0; q < w->k; q++) {
            const int32_t code = w->codes[row * w->k + d->segments.order[q]];
            put_code(d, codes, row, d->packed_at[q],
                     (uint8_t)(is_table(d->kernel) ? code : code - own + bias));
        }
    check_memory_freeze(codes);
    t->codes = codes;
}

/* [panels, n_groups, 16] of f32 or f16. */
static const void *pack_scales(struct check *c, const struct drawn *d, const char *name,
                               bool offset)
{
    const struct qn_weight *w = &d->weight.w;
    const size_t element = d->f16_scales ? 2 : 4;
    const qn_tensor t = {.data = check_memory(c, name, (size_t)(w->n * w->n_groups) * element, 64),
                         .dtype = d->f16_scales ? QN_F16 : QN_F32};
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t g = 0; g < w->n_groups; g++) {
            const int64_t from = row * w->n_groups + g;
            const float v = !offset ? w->scale[from] : qni_ref_group_offset(w, from);
            check_put(&t, (row / 16 * w->n_groups + g) * 16 + row % 16, (double)v);
        }
    check_memory_freeze(t.data);
    return t.data;
}

/* [panels, n_groups, 16] of i8 or i32. */
static const void *pack_zeros(struct check *c, struct drawn *d)
{
    const struct qn_weight *w = &d->weight.w;
    const int64_t n = w->n * w->n_groups;
    int32_t *wide = check_memory(c, "zero", (size_t)n * sizeof *wide, 64);
    int8_t *narrow = check_memory(c, "narrow zero", (size_t)n, 64);
    bool fits = true;
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t g = 0; g < w->n_groups; g++) {
            const int32_t zero = w->zero[row * w->n_groups + g];
            const int64_t at = (row / 16 * w->n_groups + g) * 16 + row % 16;
            wide[at] = zero;
            narrow[at] = (int8_t)zero;
            fits = fits && narrow[at] == zero;
        }
    check_memory_freeze(wide);
    check_memory_freeze(narrow);
    d->tile.zero_is_i8 = fits;
    return fits ? (const void *)narrow : wide;
}

/* [panels, n_segments, 16] */
static const int32_t *pack_sums(struct check *c, const struct drawn *d)
{
    const struct qn_weight *w = &d->weight.w;
    const int64_t n = d->segments.n;
    const double factor = w->format.code == QN_CODE_E2M1 ? 2.0 : 1.0;
    int32_t *sums = check_memory(c, "sums", (size_t)(w->n * n) * sizeof *sums, 64);
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t s = 0; s < n; s++) {
            double sum = 0.0;
            for (int64_t q = d->segments.start[s]; q < d->segments.start[s + 1]; q++)
                sum += qni_ref_value(w, row, d->segments.order[q]) * factor;
            sums[(row / 16 * n + s) * 16 + row % 16] = (int32_t)sum;
        }
    check_memory_freeze(sums);
    return sums;
}

static void pack_weights(struct check *c, struct drawn *d)
{
    const struct qn_weight *w = &d->weight.w;
    struct qni_matmul_tile *t = &d->tile;
    if (floats_of(d->kernel) != 0)
        pack_floats(c, d);
    else
        pack_codes(c, d);
    t->scale_is_f16 = d->f16_scales;
    t->scale = pack_scales(c, d, "scale", false);
    if (w->zero != NULL || w->offset != NULL)
        t->offset = pack_scales(c, d, "offset", true);
    if (w->zero != NULL)
        t->zero = pack_zeros(c, d);
    const bool need_sums = d->kernel->reads == QNI_READS_Q8B ? !d->symmetric : t->x_zero != 0;
    if (is_int8(d->kernel) && (need_sums || check_random_chance(&c->random, 50)))
        t->sums = pack_sums(c, d);
    if (t->x_zero != 0 && t->offset != NULL) {
        int32_t *counts = check_memory(c, "counts", (size_t)d->segments.n * sizeof *counts, 64);
        for (int64_t s = 0; s < d->segments.n; s++)
            counts[s] = (int32_t)(d->segments.start[s + 1] - d->segments.start[s]);
        t->counts = counts;
    } else if (check_random_chance(&c->random, 50)) {
        t->counts = check_memory(c, "counts that nobody may read", 0, 64);
    }
    if (!is_table(d->kernel))
        return;
    const size_t entries = is_nibble(d->kernel) ? 16 : 256;
    float *table = check_memory(c, "table", entries * sizeof *table, 64);
    memset(table, 0, entries * sizeof *table);
    memcpy(table, w->table, sizeof *table << w->format.bits);
    t->table = table;
    t->is_e4m3 = w->format.code == QN_CODE_E4M3 && check_random_chance(&c->random, 80);
    if (check_weight_is_integer(&d->weight)) {
        int8_t *table8 = check_memory(c, "table8", 16, 16);
        t->table8_doubled = w->format.code == QN_CODE_E2M1;
        for (int i = 0; i < 16; i++)
            table8[i] = (int8_t)(table[i] * (t->table8_doubled ? 2.0f : 1.0f));
        t->table8 = table8;
    }
}

/* ---------------------------------------------------------------------------------- activations */

/* [m, n_groups] sum of a row over each group, for the offsets. */
static const float *sum_groups(struct check *c, const struct drawn *d, const qn_tensor *x)
{
    const struct qni_ref_segments *s = &d->segments; /* of a float kernel: the groups */
    float *total = check_memory(c, "a_total", (size_t)(d->m * s->n) * sizeof *total, 4);
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t g = 0; g < s->n; g++) {
            float sum = 0.0f;
            for (int64_t q = s->start[g]; q < s->start[g + 1]; q++)
                sum += (float)qni_ref_get(x->data, x->dtype, i * x->stride[0] + s->order[q]);
            total[i * s->n + g] = sum;
        }
    return total;
}

/* Where kernel.h puts position p of a plane of row i. */
static uint16_t *bf16_at(const struct qni_matmul_tile *t, uint8_t *a, int64_t i, int32_t plane,
                         int64_t p)
{
    static const int64_t place[4] = {0, 2, 1, 3};
    const int64_t block = i / 32, rows = (block + 1) * 32 <= t->m ? 32 : t->m % 32;
    const int64_t unit = p / 32, within = p % 32 / 4 * 4 + place[p % 4];
    const int64_t element = ((unit * t->planes + plane) * rows + i % 32) * 32 + within;
    return (uint16_t *)(a + (size_t)(block * 32) * t->lda) + element;
}

/* Of position q in a row of floats. */
static int64_t place_of(const struct drawn *d, int64_t q, int32_t shares)
{
    const int64_t within = d->packed_at[q] % QNI_UNIT;
    return ((d->packed_at[q] - within) >> shares) + within;
}

/* May rows end with their last position? */
static bool may_be_short(const struct drawn *d, int32_t shares)
{
    bool in_order = (d->kernel->traits & QNI_TAKES_SHORT) != 0 && d->m > QNI_FEW_ROWS;
    for (int64_t q = 0; in_order && q < d->k; q++)
        in_order = place_of(d, q, shares) == q;
    return in_order && d->k % 8 == 0;
}

static void prepare_floats(struct check *c, struct drawn *d, const qn_tensor *x)
{
    struct qni_matmul_tile *t = &d->tile;
    const bool bf16 = d->kernel->reads == QNI_READS_BF16;
    const bool makes = d->kernel->traits & QNI_MAKES_WEIGHTS;
    const int64_t group = d->weight.w.format.group;
    t->halves = group > 0 && group <= QNI_UNIT / 2;
    const int32_t shares = (makes || (d->kernel->traits & QNI_SHARES_UNITS)) && t->halves;
    const int64_t units = (t->units + shares) >> shares;
    /* The caller's own f32 x is used where it needs no padding, and then it may be anywhere. */
    const bool fits = !bf16 && (units * QNI_UNIT == d->k || may_be_short(d, shares));
    const bool callers = fits && check_random_chance(&c->random, 50);
    t->positions = callers ? d->k : t->units * QNI_UNIT >> t->halves;
    const int64_t elements = callers ? d->k : units * QNI_UNIT;
    const size_t row_bytes = (size_t)elements * (bf16 ? 2 : 4);
    if (bf16 && t->offset != NULL && !makes) {
        t->a_total = sum_groups(c, d, x);
        t->ld_segment = (size_t)d->segments.n;
    }
    t->planes = !bf16 ? 0 : x->dtype == QN_BF16 ? 1 : x->dtype == QN_F16 || makes ? 2 : 3;
    t->lda = callers ? row_bytes + 4 * (size_t)check_random_in(&c->random, 0, 5)
                     : (row_bytes + 63) / 64 * 64 * (size_t)(bf16 ? t->planes : 1);
    const size_t bytes = t->lda * (size_t)(d->m - 1) + (bf16 ? t->lda : row_bytes);
    uint8_t *a = check_memory(c, "a", bytes, callers ? 4 : 64);
    memset(a, 0, bytes);
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t q = 0; q < d->k; q++) {
            float rest =
                (float)qni_ref_get(x->data, x->dtype, i * x->stride[0] + d->segments.order[q]);
            const int64_t at = place_of(d, q, shares);
            if (!bf16)
                ((float *)(a + (size_t)i * t->lda))[at] = rest;
            for (int32_t plane = 0; plane < t->planes; plane++) {
                uint16_t *to = bf16_at(t, a, i, plane, at);
                *to = qni_bf16_from_f32(rest);
                rest = isfinite(rest) ? rest - qni_f32_from_bf16(*to) : 0.0f;
            }
        }
    check_memory_freeze(a);
    t->a = a;
}

/* The reference has scales of x times those of rows, one rounding each: those of x are 1 here. */
static void prepare_scales(struct check *c, struct drawn *d, qn_tensor *row_scale)
{
    *row_scale = check_tensor(c, "row_scale", QN_F32, 1, (const int64_t[]){d->m}, false);
    float *scale = row_scale->data;
    for (int64_t i = 0; i < d->m; i++)
        scale[i] = (float)check_random_in(&c->random, 1, 1 << 24) * 0x1p-20f;
    check_memory_freeze(scale);
    d->tile.row_scale = scale;
}

static void prepare_int8(struct check *c, struct drawn *d, const qn_tensor *x)
{
    struct qni_matmul_tile *t = &d->tile;
    const bool block = d->kernel->reads == QNI_READS_Q8B;
    const int64_t n = d->segments.n;
    const size_t row_bytes = (size_t)t->units * QNI_UNIT;
    t->ld_segment = (size_t)n + (size_t)check_random_in(&c->random, 0, 3);
    const size_t facts = (t->ld_segment * (size_t)(d->m - 1) + (size_t)n) * 4;
    t->lda = (row_bytes + 63) / 64 * 64;
    int8_t *a = check_memory(c, "a", t->lda * (size_t)d->m, 64);
    int32_t *sum = check_memory(c, "a_sum", facts, 4);
    float *scale = block ? check_memory(c, "a_scale", facts, 4) : NULL;
    float *offset = block && !d->symmetric ? check_memory(c, "a_offset", facts, 4) : NULL;
    float *total = block ? check_memory(c, "a_total", facts, 4) : NULL;
    float *row = check_memory(c, "row", (size_t)d->k * sizeof *row, 4);
    int32_t *codes = check_memory(c, "row codes", (size_t)d->k * sizeof *codes, 4);
    memset(a, 0x55, t->lda * (size_t)d->m); /* past the units lies anything */
    for (int64_t i = 0; i < d->m; i++) {
        memset(a + (size_t)i * t->lda, 0, row_bytes);
        for (int64_t q = 0; q < d->k; q++)
            row[q] = (float)qni_ref_get(x->data, x->dtype, i * x->stride[0] + d->segments.order[q]);
        for (int64_t s = 0; s < n; s++) {
            const int64_t first = d->segments.start[s], count = d->segments.start[s + 1] - first;
            const size_t at = (size_t)i * t->ld_segment + (size_t)s;
            struct qni_ref_segment f = {0};
            if (block)
                f = qni_ref_quantize(row + first, count, d->symmetric, codes + first);
            for (int64_t q = first; q < first + count; q++) {
                if (!block)
                    f.sum += codes[q] = (int32_t)row[q];
                a[(size_t)i * t->lda + (size_t)d->packed_at[q]] = (int8_t)codes[q];
            }
            sum[at] = f.sum;
            if (block)
                scale[at] = f.scale;
            if (block)
                total[at] = f.total;
            if (offset != NULL)
                offset[at] = f.offset;
        }
    }
    check_memory_freeze(a);
    t->a = a;
    t->a_sum = sum;
    t->a_scale = scale;
    t->a_offset = offset;
    t->a_total = total;
}

/* ------------------------------------------------------------------------------------- one case */

static bool all_finite(const struct qni_matmul_tile *t)
{
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t j = 0; j < t->n_panels * QNI_PANEL; j++)
            if (!isfinite(t->c[(size_t)i * t->ldc + (size_t)j]))
                return false;
    return true;
}

static void row_case(struct check *c, const void *arg)
{
    const struct row_case *rc = arg;
    struct drawn d;
    draw(c, rc, &d);
    const struct qni_matmul_kernel *kernel = d.kernel;
    struct qni_matmul_tile *t = &d.tile;
    static const qn_dtype float_types[] = {QN_F32, QN_F16, QN_BF16};
    const bool rounds = kernel->traits & QNI_ROUNDS_WEIGHTS;
    const int32_t type = (rc->shape + rc->shape / 6) % 3; /* every type meets every m */
    const qn_dtype x_type = kernel->reads == QNI_READS_Q8    ? QN_I8
                            : kernel->reads == QNI_READS_F32 ? QN_F32
                            : rounds                         ? QN_BF16
                                                             : float_types[type];
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.strategy = kernel->reads == QNI_READS_Q8    ? QN_STRATEGY_INT8_STATIC
                    : kernel->reads == QNI_READS_Q8B ? QN_STRATEGY_INT8_BLOCK
                                                     : QN_STRATEGY_FLOAT;
    args.x = check_tensor(c, "x", x_type, 2, (const int64_t[]){d.m, d.k}, false);
    check_fill_x(c, &args.x, rc->data, rc->data == CHECK_EXTREME);
    for (int64_t i = 0; i < d.m * d.k && d.is_steady; i++)
        check_put(&args.x, i, x_type == QN_I8 ? -128.0 : -1.0);
    const int64_t columns = d.apart > 0 ? d.apart : 16 * d.panels;
    args.y = check_tensor(c, "c", d.raw ? QN_I32 : QN_F32, 2, (const int64_t[]){d.m, columns},
                          d.apart == 0);
    args.y.shape[1] = 16 * d.panels;
    args.quant.symmetric = d.symmetric;
    args.quant.x_zero = kernel->reads == QNI_READS_Q8 ? d.x_zero : 0;
    t->x_zero = args.quant.x_zero;
    t->raw_i32 = d.raw;
    t->m = d.m;
    t->c = args.y.data;
    t->ldc = (size_t)args.y.stride[0];
    if (d.scaled)
        prepare_scales(c, &d, &args.epilogue.row_scale);
    const bool looks = kernel->traits & QNI_LOOKS;
    t->c_is_far = (d.scaled || looks) && (uintptr_t)t->c % 64 == 0 && t->ldc % QNI_PANEL == 0 &&
                  check_random_chance(&c->random, 50);
    bool is_finite = true;
    t->is_finite = &is_finite;
    lay_out(c, &d);
    pack_weights(c, &d);
    if (is_int8(kernel))
        prepare_int8(c, &d, &args.x);
    else
        prepare_floats(c, &d, &args.x);
    const size_t scratch = qni_kernel_bytes(kernel, t->m, t->lda);
    if (scratch > 0)
        t->scratch = check_memory(c, "scratch", scratch, 64);
    const struct qn_weight *const w = &d.weight.w;
    struct qni_ref_op op;
    qni_ref_matmul(&args, &w, &op);
    op.x_block = d.x_block;
    struct check_expected expected;
    check_expect(c, &op, rc->data, &expected);
    int32_t kept = 0;
    t->kept = &kept;
    kernel->fn(t);
    const bool splits = (kernel->traits & QNI_SPLITS_ROW_OUTLIERS) != 0;
    if (!splits || kept != QNI_TOO_MANY_OUTLIERS)
        check_y(c, &expected, kernel->name, "kernel");
    if (looks && is_finite != all_finite(t))
        check_fail(c, "%s: told that results are %s", kernel->name, is_finite ? "finite" : "not");
    qni_ref_segments_free(&d.segments);
}

void check_matmul_rows(struct check_suite *suite, const struct check_options *options)
{
    const int32_t shapes = options->quick ? 2 : 24;
    for (const struct qni_matmul_kernel *k = kernels; k->name != NULL; k++) {
        if ((k->needs & ~options->isa) != 0)
            continue;
        for (int32_t data = 0; data < CHECK_N_DATA; data++)
            for (int32_t shape = 0; shape < shapes; shape++) {
                const struct row_case rc = {k, data, shape, PLAIN};
                check_case(suite, row_case, &rc, "%s/%s/%d", k->name, check_data_names[data],
                           shape);
            }
        for (int32_t shape = 0; shape < shapes && takes_long(k); shape++) {
            const struct row_case rc = {k, CHECK_NORMAL, shape, LONG};
            check_case(suite, row_case, &rc, "%s/long/%d", k->name, shape);
        }
        for (int32_t shape = 0; shape < shapes && is_int8(k) && k->mr == 32; shape++) {
            const struct row_case rc = {k, CHECK_NORMAL, shape, CUT};
            check_case(suite, row_case, &rc, "%s/cut/%d", k->name, shape);
        }
        const struct row_case steady = {k, CHECK_NORMAL, 0, STEADY};
        if (is_int8(k) && !is_table(k))
            check_case(suite, row_case, &steady, "%s/steady", k->name);
    }
}
