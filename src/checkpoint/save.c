/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights into a file: <name>.codes (a bit stream, codes.h), .scale, .zero, .offset,
 * .perm, .prescale, .table and a description among the metadata. Types are chosen when a weight is
 * declared and are then a promise: a value that its type cannot hold exactly is refused, never
 * rounded. Loading gives back every bit (load.c). */
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/half.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "../quant/canonical.h"
#include "../quant/narrow.h"
#include "codes.h"
#include "describe.h"
#include "parts.h"
#include "writer.h"

/* ---- which types ----------------------------------------------------------------------------- */

static bool all_fit(qn_dtype dtype, const float *values, size_t count)
{
    uint8_t out[4];
    for (size_t i = 0; i < count; i++)
        if (!qni_narrow(dtype, values[i], out))
            return false;
    return true;
}

/*
 * E4M3 holds 2^-9 to 448, which are no scales of weights; therefore a tensor's scales share a unit,
 * a power of two. Is there one with which all are exact? The largest has the exponent 8 or less.
 */
static bool find_unit(const float *values, size_t count, float *unit)
{
    uint32_t top = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t exponent = qni_bits_of(values[i]) >> 23 & 255u;
        top = exponent > top ? exponent : top;
    }
    for (uint32_t e = 0; e <= 17; e++) { /* as the largest number's exponent: 8 to -9 */
        const uint32_t biased =
            top + 119 + e; /* unit = 2^(top - 127 - 8 + e), its inverse exact too */
        if (biased <= 127 || biased >= 127 + 254)
            continue;
        uint8_t out[4];
        size_t i = 0;
        *unit = qni_float_of((biased - 127) << 23);
        while (i < count && qni_narrow(QN_E4M3, values[i] / *unit, out) &&
               qni_bits_of(qni_f32_from_e4m3(out[0]) * *unit) == qni_bits_of(values[i]))
            i++;
        if (i == count)
            return true;
    }
    *unit = 1.0f;
    return count == 0;
}

/*
 * Scales and offsets of the format's type are exactly representable in it when quern or an importer
 * rounded them to it. Super-blocks multiply a scale with an integer, which needs more bits. Where
 * the values are at hand already they decide.
 */
static qn_dtype float_type(const qn_format *f, const float *values, size_t count)
{
    float unit;
    const bool is_exact = values == NULL              ? f->superblock == 0
                          : f->scale_dtype == QN_E4M3 ? find_unit(values, count, &unit)
                                                      : all_fit(f->scale_dtype, values, count);
    return is_exact ? f->scale_dtype : QN_F32;
}

/* Codes are signed and of at most 8 bits, and so are the zero points among them. */
static qn_dtype zero_type(const int32_t *values, size_t count)
{
    int32_t low = 0, high = 0;
    for (size_t i = 0; values != NULL && i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    return low >= INT8_MIN && high <= INT8_MAX     ? QN_I8
           : low >= INT16_MIN && high <= INT16_MAX ? QN_I16
                                                   : QN_I32;
}

static qn_status plan_weight(const qn_weight_parts *from, struct qni_weight_plan *plan,
                             qn_error *err)
{
    const qn_format *f = &from->format;
    int64_t count;
    memset(plan, 0, sizeof *plan);
    QNI_TRY(qni_describe_check(from, &plan->n_groups, err));
    count = from->n * plan->n_groups; /* both fit 31 bits */
    plan->format = *f;
    plan->n = from->n;
    plan->k = from->k;
    plan->kh = from->kh;
    plan->kw = from->kw;
    plan->conv_groups = from->conv_groups;
    plan->scale_dtype = float_type(f, from->scale, (size_t)count);
    if (f->shift == QN_SHIFT_ZERO)
        plan->zero_dtype = zero_type(from->zero, (size_t)count);
    /* With offsets and minima the scale's type is f32, f16 or bf16. */
    if (f->shift == QN_SHIFT_OFFSET || f->shift == QN_SHIFT_MIN)
        plan->offset_dtype = float_type(f, from->offset, (size_t)count);
    /* Quantizers and importers make them; who declares before that gives no scales either. */
    plan->has_supers = qni_may_have_supers(f, from->n, plan->n_groups) &&
                       (from->super_scale != NULL || from->scale == NULL);
    plan->has_perm = from->perm != NULL;
    plan->has_prescale = from->prescale != NULL;
    plan->has_table = f->code == QN_CODE_TABLE;
    return QN_OK;
}

/* ---- declaring ------------------------------------------------------------------------------- */

static qn_status declare_parts(qn_writer *writer, const char *name, char *full,
                               const struct qni_weight_plan *plan, qn_error *err)
{
    const size_t length = strlen(name);
    memcpy(full, name, length);
    for (int32_t i = 0; i < QNI_N_PARTS; i++) {
        struct qni_part part;
        if (!qni_part_of(plan, i, &part))
            continue;
        strcpy(full + length, qni_part_suffix(i));
        QNI_TRY(qni_writer_declare(writer, full, part.dtype, part.rank, part.shape, err));
    }
    return QN_OK;
}

qn_status qn_writer_add_weight(qn_writer *writer, const char *name, const qn_weight_parts *from,
                               int64_t *index, qn_error *err)
{
    struct qni_weight_plan plan;
    char text[QNI_DESCRIPTION_BYTES];
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_add_weight", err));
    if (name == NULL || from == NULL || writer->kind == QN_FILE_GGUF)
        return qni_fail(err, QN_E_ARGUMENT,
                        "qn_writer_add_weight: name or from is NULL, or a GGUF file is written");
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    QNI_TRY(qni_sized_read(&parts, sizeof parts, from, err));
    QNI_TRY(plan_weight(&parts, &plan, err));

    const size_t bytes = strlen(name) + 32; /* either prefix and every suffix fit */
    char *full = qni_alloc(&writer->allocator, bytes);
    if (full == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    const size_t n_slots = writer->n_slots, n_pairs = writer->n_pairs;
    qn_status status = declare_parts(writer, name, full, &plan, err);
    if (status == QN_OK) {
        qni_describe(&parts, text);
        snprintf(full, bytes, QNI_WEIGHT_KEY "%s", name);
        status = qn_writer_metadata(writer, full, text, err);
    }
    if (status == QN_OK)
        status = qni_writer_add_item(writer, writer->n_slots - n_slots, &plan, index, err);
    if (status != QN_OK)
        qni_writer_rewind(writer, n_slots, n_pairs);
    qni_free(&writer->allocator, full, bytes);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static qn_status put_codes(struct qni_sink *sink, const qn_weight *w, qn_error *err)
{
    /* Multiples of 8 codes are whole bytes; a piece fits the buffer. */
    const int64_t piece = QNI_WRITER_BUFFER / 8 * 8;
    const bool is_float = qni_is_float_format(&w->format);
    const int64_t row_bytes = (int64_t)qni_code_row_bytes(w); /* one a code, or of floats */
    const int32_t bits = is_float ? 8 : w->format.bits;
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t at = 0; at < row_bytes; at += piece) {
            const size_t step = (size_t)qni_min(piece, row_bytes - at);
            uint8_t *room = qni_sink_room(sink, qni_codes_bytes(step, bits), err);
            if (room == NULL)
                return QN_E_WRITE;
            if (is_float)
                memcpy(room, w->codes + row * row_bytes + at, step);
            else
                qni_codes_pack(w->codes + row * row_bytes + at, step, bits, room);
        }
    return QN_OK;
}

static qn_status put_floats(struct qni_sink *sink, qn_dtype dtype, const float *values,
                            const qn_weight *w, qn_error *err)
{
    const size_t count = (size_t)(w->n * w->n_groups), bytes = qn_dtype_bytes(dtype);
    const char *what = values == w->scale ? "scale" : "offset";
    uint8_t out[4];
    float unit = 1.0f;
    if (dtype == QN_E4M3)
        find_unit(values, count, &unit);
    for (size_t i = 0; i < count; i++) {
        if (!qni_narrow(dtype, values[i] / unit, out))
            return qni_fail(err, QN_E_VALUE,
                            "the %s %.9g of row %lld, group %lld is no %s; declare the weight with "
                            "its %ss at hand, or with a format of f32 scales",
                            what, (double)values[i], (long long)i / w->n_groups,
                            (long long)i % w->n_groups, qn_dtype_name(dtype), what);
        uint8_t *room = qni_sink_room(sink, bytes, err);
        if (room == NULL)
            return QN_E_WRITE;
        memcpy(room, out, bytes);
    }
    return QN_OK;
}

static qn_status put_zeros(struct qni_sink *sink, qn_dtype dtype, const qn_weight *w, qn_error *err)
{
    const size_t count = (size_t)(w->n * w->n_groups), bytes = qn_dtype_bytes(dtype);
    const int32_t limit = dtype == QN_I8 ? INT8_MAX : dtype == QN_I16 ? INT16_MAX : INT32_MAX;
    for (size_t i = 0; i < count; i++) {
        if (w->zero[i] > limit || w->zero[i] < -limit - 1)
            return qni_fail(err, QN_E_VALUE,
                            "the zero point %d of row %lld, group %lld is no %s; declare the "
                            "weight with its zero points at hand",
                            w->zero[i], (long long)i / w->n_groups, (long long)i % w->n_groups,
                            qn_dtype_name(dtype));
        uint8_t *room = qni_sink_room(sink, bytes, err);
        if (room == NULL)
            return QN_E_WRITE;
        memcpy(room, &w->zero[i], bytes); /* two's complement, little endian */
    }
    return QN_OK;
}

/* Common scales and minima: qni_weight_check() has seen that each is a number of the type. */
static qn_status put_supers(struct qni_sink *sink, qn_dtype dtype, const float *values,
                            const qn_weight *w, qn_error *err)
{
    const size_t bytes = qn_dtype_bytes(dtype);
    for (int64_t i = 0; i < w->n * w->n_supers; i++) {
        uint8_t out[4];
        qni_narrow(dtype, values[i], out);
        uint8_t *room = qni_sink_room(sink, bytes, err);
        if (room == NULL)
            return QN_E_WRITE;
        memcpy(room, out, bytes);
    }
    return QN_OK;
}

/* One byte each, which i8 and u8 hold alike. */
static qn_status put_subs(struct qni_sink *sink, const int16_t *values, const qn_weight *w,
                          qn_error *err)
{
    for (int64_t i = 0; i < w->n * w->n_groups; i++) {
        uint8_t *room = qni_sink_room(sink, 1, err);
        if (room == NULL)
            return QN_E_WRITE;
        *room = (uint8_t)values[i];
    }
    return QN_OK;
}

static qn_status put_unit(struct qni_sink *sink, const qn_weight *w, qn_error *err)
{
    float unit;
    find_unit(w->scale, (size_t)(w->n * w->n_groups), &unit);
    return qni_sink_put(sink, &unit, sizeof unit, err);
}

static qn_status put_part(struct qni_sink *sink, int32_t i, const struct qni_weight_plan *plan,
                          const qn_weight *w, qn_error *err)
{
    const size_t k = (size_t)w->k;
    switch (i) {
    case QNI_PART_CODES:
        return put_codes(sink, w, err);
    case QNI_PART_SCALE:
        return put_floats(sink, plan->scale_dtype, w->scale, w, err);
    case QNI_PART_ZERO:
        return put_zeros(sink, plan->zero_dtype, w, err);
    case QNI_PART_OFFSET:
        return put_floats(sink, plan->offset_dtype, w->offset, w, err);
    case QNI_PART_PERM:
        return qni_sink_put(sink, w->perm, k * sizeof *w->perm, err);
    case QNI_PART_PRESCALE:
        return qni_sink_put(sink, w->prescale, k * sizeof *w->prescale, err);
    case QNI_PART_UNIT:
        return put_unit(sink, w, err);
    case QNI_PART_SUPER_SCALE:
        return put_supers(sink, w->format.scale_dtype, w->super_scale, w, err);
    case QNI_PART_SUPER_MIN:
        return put_supers(sink, w->format.scale_dtype, w->super_min, w, err);
    case QNI_PART_SUB_SCALE:
        return put_subs(sink, w->sub_scale, w, err);
    case QNI_PART_SUB_MIN:
        return put_subs(sink, w->sub_min, w, err);
    default:
        return qni_sink_put(sink, w->table, sizeof *w->table << w->format.bits, err);
    }
}

static bool is_same_format(const qn_format *a, const qn_format *b)
{
    return a->code == b->code && a->bits == b->bits && a->group == b->group &&
           a->blocks == b->blocks && a->shift == b->shift && a->scale_dtype == b->scale_dtype &&
           a->superblock == b->superblock && a->superbits == b->superbits;
}

/* Is the weight what was declared? */
static qn_status check_weight(const struct qni_weight_plan *plan, const qn_weight *w,
                              const char *shown, qn_error *err)
{
    char was[96], is[96];
    if (!is_same_format(&plan->format, &w->format)) {
        qn_format_print(&plan->format, was, sizeof was);
        qn_format_print(&w->format, is, sizeof is);
        return qni_fail(err, QN_E_FORMAT, "weight '%s' was declared as %s and is %s", shown, was,
                        is);
    }
    if (plan->n != w->n || plan->k != w->k || plan->kh != w->kh || plan->kw != w->kw ||
        plan->conv_groups != w->conv_groups || plan->n_groups != w->n_groups)
        return qni_fail(err, QN_E_SHAPE, "weight '%s' has another shape than declared", shown);
    if (plan->has_supers != (w->super_scale != NULL))
        return qni_fail(err, QN_E_ARGUMENT,
                        "weight '%s' was declared %s scales of two levels, and is given otherwise",
                        shown, plan->has_supers ? "with" : "without");
    if (plan->has_perm != (w->perm != NULL) || plan->has_prescale != (w->prescale != NULL))
        return qni_fail(err, QN_E_ARGUMENT,
                        "weight '%s' was declared %s permutation and %s prescale, and is given "
                        "otherwise",
                        shown, plan->has_perm ? "with a" : "without",
                        plan->has_prescale ? "with a" : "without");
    return QN_OK;
}

static qn_status put_parts(qn_writer *writer, const struct qni_item *item, const qn_weight *w,
                           qn_error *err)
{
    struct qni_part part;
    uint32_t slot = item->slot;
    for (int32_t i = 0; i < QNI_N_PARTS; i++) {
        struct qni_sink sink;
        if (!qni_part_of(&item->plan, i, &part))
            continue;
        QNI_TRY(qni_sink_open(&sink, writer, &writer->slots[slot++], err));
        QNI_TRY(put_part(&sink, i, &item->plan, w, err));
        QNI_TRY(qni_sink_close(&sink, err));
    }
    return QN_OK;
}

qn_status qn_writer_put_weight(qn_writer *writer, int64_t index, const qn_weight *weight,
                               qn_error *err)
{
    char shown[QNI_SHOWN], file[QNI_SHOWN_PATH], name[QNI_SHOWN];
    qn_error inner = {QN_OK, -1, ""};
    QNI_TRY(qni_writer_expect(writer, true, "qn_writer_put_weight", err));
    if (index < 0 || index >= (int64_t)writer->n_items || !writer->items[index].is_weight ||
        weight == NULL)
        return qni_fail(err, QN_E_ARGUMENT,
                        "qn_writer_put_weight: index %lld is no weight of this "
                        "file%s",
                        (long long)index, weight == NULL ? ", or weight is NULL" : "");
    const struct qni_item *item = &writer->items[index];
    /* The first tensor is <name>.codes. */
    const char *codes = writer->texts + writer->slots[item->slot].name;
    snprintf(name, sizeof name, "%.*s", (int)qni_min((int64_t)strlen(codes) - 6, 80), codes);
    qni_shown(shown, name);
    QNI_TRY(check_weight(&item->plan, weight, shown, err));
    const qn_status status = put_parts(writer, item, weight, &inner);
    if (status == QN_OK)
        return QN_OK;
    return qni_fail_at(err, status, inner.offset, "%s: weight '%s': %s",
                       qni_shown_path(file, writer->path), shown, inner.text);
}
