/* SPDX-License-Identifier: Apache-2.0 */
/* MNN's IDSTQuan: NAME.weight is
 *     u8 dimensions; each u16 (u32 where is_wide); u8 size of a table, 0 for 256; the table, i8;
 *     indices into the sorted table as a stream of bits, the HIGHEST bit of each byte first
 * (storage 1), or plain i8 (storage 4), of weights [n, channels, taps]. NAME.alpha has a scale for
 * each output and block of channels x all taps; where it is asymmetric, pairs of minimum and scale:
 *     w = scale q + offset,  offset = minimum - least scale,
 * with least -128 where the file says 0. All is multiplied by quantScale (link->alpha). The offset
 * is a float: it is rounded once and counted, and is no whole number of scales in general.
 *     4 bits, minimum -1, scale 0.2, least -8: offset 0.6; byte 0x21 is w -0.6, -0.8. */
#include <stdlib.h>
#include <string.h>

#include "../../base/error.h"
#include "../../base/size.h"
#include "import.h"

enum { DENSE = 1, SPARSE = 2, PLAIN = 4 };
enum {
    START,
    BITS,
    SIZE,
    BLOCKS,
    CHANNELS
}; /* found->fact; START: of the stream; SIZE: of table */

static int by_value(const void *a, const void *b)
{
    return *(const int8_t *)a - *(const int8_t *)b;
}

/* Dimensions and table of the buffer. */
static qn_status read_header(struct qni_found *f, int64_t *count, qn_error *err)
{
    const struct qni_tensor *w = &f->part[QNI_LINK_CODES];
    const size_t each = f->link->is_wide ? 4 : 2;
    size_t at = 1;
    int8_t table[256];
    const size_t dimensions = w->bytes > 0 ? w->data[0] : 0;
    *count = 1;
    if (dimensions == 0 || w->bytes < 2 + dimensions * each)
        return qni_fail(err, QN_E_CORRUPT, "its buffer ends inside the dimensions");
    for (size_t i = 0; i < dimensions; i++, at += each) {
        uint32_t size = 0;
        memcpy(&size, w->data + at, each);
        if (!qni_i64_mul(*count, size, count))
            return qni_fail(err, QN_E_CORRUPT, "its dimensions overflow");
    }
    const size_t size = w->data[at] == 0 ? 256 : w->data[at];
    at++;
    if (size > w->bytes - at)
        return qni_fail(err, QN_E_CORRUPT, "its buffer ends inside the table");
    memcpy(table, w->data + at, size);
    qsort(table, size, 1, by_value);
    int32_t bits = 1;
    while ((size_t)1 << bits < size)
        bits++;
    if (bits < 2)
        return qni_fail(err, QN_E_FORMAT, "a table of %d values; from 3 on they are imported",
                        (int)size);
    const int32_t half = 1 << (bits - 1);
    bool is_linear = size == (size_t)1 << bits;
    for (size_t i = 0; i < size; i++) {
        is_linear = is_linear && table[i] == (int32_t)i - half;
        f->table[i] = (float)table[i];
    }
    f->parts.format.code = is_linear ? QN_CODE_INT : QN_CODE_TABLE;
    f->parts.format.bits = bits;
    f->fact[START] = (int64_t)(at + size);
    f->fact[BITS] = bits;
    f->fact[SIZE] = (int64_t)size;
    qni_note(&f->notes, "format: %d bits, %s", (int)bits,
             is_linear ? "its table is all integers" : "its table");
    if ((uint64_t)*count > (w->bytes - at - size) * 8 / (size_t)bits)
        return qni_fail(err, QN_E_SHAPE, "its buffer has fewer codes than its dimensions say");
    return QN_OK;
}

static qn_status find_geometry(struct qni_found *f, int64_t count, qn_error *err)
{
    const struct qni_link *link = f->link;
    const int64_t taps = (int64_t)link->kh * link->kw;
    if (link->n < 1 || taps < 1 || link->conv_groups < 1 || link->n % link->conv_groups != 0 ||
        count < 1 || count % link->n != 0 || count / link->n % taps != 0)
        return qni_fail(err, QN_E_SHAPE, "%lld weights are no %lld outputs of %lld taps",
                        (long long)count, (long long)link->n, (long long)taps);
    f->parts.n = link->n;
    f->parts.k = count / link->n;
    f->parts.kh = link->kh;
    f->parts.kw = link->kw;
    f->parts.conv_groups = link->conv_groups;
    f->fact[CHANNELS] = f->parts.k / taps;
    f->role = taps > 1 || link->conv_groups > 1 ? QN_ROLE_CONV : QN_ROLE_LINEAR;
    qni_note(&f->notes, "shape: %s, %d groups", link->node, (int)link->conv_groups);
    return QN_OK;
}

static qn_status find_blocks(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *a = &f->part[QNI_LINK_SCALE];
    const int64_t each = f->link->is_asymmetric ? 2 : 1, channels = f->fact[CHANNELS];
    const int64_t scales = a->data == NULL ? 0 : a->shape[0];
    const int64_t blocks = scales / each / f->parts.n;
    if (a->data == NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "it has no scales of 32 bits; those of 16 bits, which newer converters "
                        "write, are not read");
    if (blocks < 1 || blocks * each * f->parts.n != scales || channels % blocks != 0)
        return qni_fail(err, QN_E_SHAPE, "%lld scales for %lld outputs of %lld channels",
                        (long long)scales, (long long)f->parts.n, (long long)channels);
    f->fact[BLOCKS] = blocks;
    f->parts.format.scale_dtype = QN_F32;
    f->parts.format.group = blocks == 1 ? QN_GROUP_PER_CHANNEL : channels / blocks;
    if (blocks > 1 && f->link->kh * f->link->kw > 1)
        f->parts.format.blocks = QN_BLOCKS_CHANNELS;
    f->parts.format.shift = f->link->is_asymmetric ? QN_SHIFT_OFFSET : QN_SHIFT_NONE;
    qni_note(&f->notes, "group: %lld channels and all taps, from the count of alpha",
             (long long)(channels / blocks));
    qni_note(&f->notes, "offsets: %s",
             f->link->is_asymmetric
                 ? "minimum - least scale, readType; loading counts what is rounded"
                 : "none, readType is 0");
    return QN_OK;
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    const struct qni_link *link = found->link;
    int64_t count = (int64_t)found->part[QNI_LINK_CODES].bytes;
    (void)c;
    (void)stem;
    if (link->kind != QNI_LINK_CONV)
        return qni_fail(err, QN_E_FORMAT, "weights of %s are not imported", link->node);
    if (link->storage == SPARSE)
        return qni_fail(err, QN_E_FORMAT, "sparse weights (type 2) are not imported");
    if (link->storage != DENSE && link->storage != PLAIN)
        return qni_fail(err, QN_E_FORMAT, "weights of type %d are not known", (int)link->storage);
    if (link->storage == DENSE) {
        QNI_TRY(read_header(found, &count, err));
    } else {
        found->parts.format.code = QN_CODE_INT;
        found->parts.format.bits = 8;
        qni_note(&found->notes, "format: 8 bits, type 4 of IDSTQuan");
    }
    QNI_TRY(find_geometry(found, count, err));
    return find_blocks(found, err);
}

/* ---- loading --------------------------------------------------------------------------------- */

struct source {
    const struct qni_found *f;
    struct qn_weight *w;
    int64_t first;
    int32_t is_bad; /* a code beyond the table */
};

/* Code i of a stream whose first bit is the highest. */
static uint32_t high_code(const uint8_t *stream, int64_t i, int32_t bits)
{
    const int64_t at = i * bits;
    const int32_t used = (int32_t)(at % 8);
    uint32_t word = (uint32_t)stream[at / 8] << 8;
    if (used + bits > 8)
        word |= stream[at / 8 + 1];
    return word >> (16 - used - bits) & ((1u << bits) - 1);
}

static void take_row(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    struct source *x = (struct source *)(uintptr_t)arg;
    const struct qni_found *f = x->f;
    struct qn_weight *w = x->w;
    const uint8_t *data = f->part[QNI_LINK_CODES].data;
    const struct qni_tensor *a = &f->part[QNI_LINK_SCALE];
    const int64_t n = x->first + row, ci = f->fact[CHANNELS], taps = w->k / ci;
    const double times = (double)f->link->alpha;
    const double least = f->link->least == 0 ? -128 : (double)f->link->least;
    for (int64_t p = 0; p < w->k; p++) {
        const int64_t from = n * w->k + p % ci * taps + p / ci;
        uint32_t code = 0;
        if (f->link->storage == PLAIN)
            code = data[from] ^ 128u;
        else
            code = high_code(data + f->fact[START], from, (int32_t)f->fact[BITS]);
        if (w->table != NULL && code >= (uint32_t)f->fact[SIZE]) {
            __atomic_store_n(&x->is_bad, 1, __ATOMIC_RELAXED);
            code = 0;
        }
        w->codes[row * w->k + p] = (uint8_t)code;
    }
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t from = n * w->n_groups + g, at = row * w->n_groups + g;
        if (w->offset == NULL) {
            w->scale[at] = qni_import_round((double)qni_import_float(a, from) * times, rounding);
            continue;
        }
        const double minimum = (double)qni_import_float(a, 2 * from);
        const double scale = (double)qni_import_float(a, 2 * from + 1);
        w->scale[at] = qni_import_round(scale * times, rounding);
        w->offset[at] = qni_import_round((minimum - least * scale) * times, rounding);
    }
    rounding->groups += w->n_groups;
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    struct source x = {found, w, first, 0};
    qni_import_rows(ctx, w->n, take_row, &x, rounding);
    return x.is_bad == 0 ? QN_OK
                         : qni_fail(err, QN_E_VALUE, "a code is beyond its table of %d values",
                                    (int)found->fact[SIZE]);
}

const struct qni_importer qni_import_mnn = {
    .name = "mnn",
    .find = find,
    .load = load,
};
