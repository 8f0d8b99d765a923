/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of packed weights from files. A hostile head may hold any numbers: first everything is put
 * in bounds in which no product overflows, then what follows from the shape is worked out again and
 * compared, then every section must have the size that the shape demands and lie inside the blob on
 * its own. What a layout makes of the sections is for its backend to check. */
#include <string.h>

#include "../base/compiler.h"
#include "../base/error.h"
#include "../base/size.h"
#include "canonical.h"
#include "compact.h"

static qn_status corrupt(qn_error *err, const char *what)
{
    return qni_fail(err, QN_E_CORRUPT, "the head of the packed weights is wrong: %s", what);
}

/* Names, types and what decides how to read the rest. */
static qn_status check_words(const struct qni_packed_head *h, qn_error *err)
{
    if (memcmp(h->magic, "quernpk", 8) != 0)
        return corrupt(err, "it does not begin with quernpk");
    if (h->version != 1 && h->version != QNI_COMPACT_VERSION)
        return qni_fail(err, QN_E_VERSION,
                        "the packed weights are of version %u; this library reads versions 1 and 2",
                        (unsigned)h->version);
    if (h->device_kind != QN_CPU && h->device_kind != QN_CUDA)
        return corrupt(err, "no such kind of device");
    if (h->layout[0] == 0 || memchr(h->layout, 0, sizeof h->layout) == NULL)
        return corrupt(err, "the layout's name is missing or has no end");
    const bool may_be_bytes = qni_is_compact(h) && h->format.scale_dtype == h->scale_dtype &&
                              h->format.shift != QN_SHIFT_OFFSET;
    const bool are_bytes = h->scale_dtype == QN_E8M0 || h->scale_dtype == QN_E4M3;
    if (h->scale_dtype != QN_F32 && h->scale_dtype != QN_F16 && !(may_be_bytes && are_bytes))
        return corrupt(err, "scales are neither f32 nor f16");
    const bool may_be_float = h->format.shift == QN_SHIFT_MIN;
    if (h->zero_dtype != QN_I32 && h->zero_dtype != QN_I8 &&
        !(may_be_float && (h->zero_dtype == QN_F16 || h->zero_dtype == QN_F32)))
        return corrupt(err, "zero points are neither i32 nor i8");
    qn_error why;
    if (qn_format_check(&h->format, &why) != QN_OK)
        return corrupt(err, why.text);
    return QN_OK;
}

/* After this: n and k < 2^31, and k = taps * ci. */
static qn_status check_shape(const struct qni_packed_head *h, qn_error *err)
{
    int64_t taps, k;
    if (!qni_is_weight_shape(h->n, h->k) || h->ci < 0 || h->kh < 1 || h->kw < 1 ||
        h->conv_groups < 1)
        return corrupt(err, "a dimension is negative or beyond all bounds");
    if (!qni_i64_mul(h->kh, h->kw, &taps) || !qni_i64_mul(taps, h->ci, &k) || k != h->k)
        return corrupt(err, "k is not kh * kw * ci");
    if (h->n % h->conv_groups != 0)
        return corrupt(err, "the outputs do not divide into the groups of the convolution");
    return QN_OK;
}

/* Groups, each padded to whole units, cut into segments: all of it follows from shape and format.
 * Units number at most max(k, groups) < 2^31. */
static qn_status check_cut(const struct qni_packed_head *h, qn_error *err)
{
    const int64_t n_groups = qn_format_groups(&h->format, h->k, h->ci);
    if (n_groups != h->n_groups)
        return corrupt(err, "the number of groups does not follow from k");
    if (h->x_block < 1 || h->segment_units < 1)
        return corrupt(err, "a segment is empty");
    const struct qni_cut cut = qni_packed_cut(h, true);
    if (h->group_units != cut.group_units ||
        h->units != qni_packed_units(h->device_kind, cut.units))
        return corrupt(err, "the number of units does not follow from k");
    if (h->segment_units != cut.segment_units)
        return corrupt(err, "a segment is longer than its group");
    if (h->n_segments != cut.n_segments)
        return corrupt(err, "the number of segments does not follow from k");
    if (h->panels != qni_packed_panels(h->n, h->ci, h->conv_groups))
        return corrupt(err, "the number of panels does not follow from n");
    if (h->n_runs < 0 || h->n_runs > h->k)
        return corrupt(err, "there are more runs than positions");
    return QN_OK;
}

/* Does the section take exactly count elements? */
static bool takes(const struct qni_packed_head *h, int32_t section, int64_t count, size_t element)
{
    size_t bytes;
    return qni_size_mul((size_t)count, element, &bytes) && h->section[section].bytes == bytes;
}

static bool takes_or_absent(const struct qni_packed_head *h, int32_t section, int64_t count,
                            size_t element)
{
    return h->section[section].bytes == 0 || takes(h, section, count, element);
}

static qn_status check_sizes(const struct qni_packed_head *h, qn_error *err)
{
    const qn_format *f = &h->format;
    const size_t scale = qni_packed_scale_bytes(h), zero = h->zero_dtype == QN_I8 ? 1 : 4;
    int64_t lanes, scales, codes, sums;
    if (!qni_i64_mul(h->panels, QNI_PANEL, &lanes) || !qni_i64_mul(lanes, h->n_groups, &scales) ||
        !qni_i64_mul(lanes, h->n_segments, &sums) || !qni_i64_mul(lanes, h->units, &codes) ||
        !qni_i64_mul(codes, QNI_UNIT, &codes) || codes > INT64_MAX / 4)
        return corrupt(err, "the weights exceed the address space");
    const uint64_t least = qni_is_compact(h) ? (uint64_t)(h->panels * qni_compact_units(h)) *
                                                   qni_packed_unit_bytes(f->bits)
                                             : (uint64_t)codes / 8 * (uint64_t)f->bits;
    const uint64_t bytes = h->section[QNI_SECTION_CODES].bytes;
    const bool is_exact = qni_is_compact(h) || qni_is_float_format(f);
    if (bytes < least || bytes > (is_exact ? least : (uint64_t)codes))
        return corrupt(err, "the codes do not have the size that n and k demand");
    const bool makes_scales = qni_is_compact(h) && h->format.superblock > 0 &&
                              h->section[QNI_SECTION_SCALE].bytes == 0;
    const int64_t unit = (int64_t)qni_packed_unit_scale_bytes(h); /* scales are bytes, then */
    if (!takes(h, QNI_SECTION_SCALE, makes_scales ? 0 : scales + unit, scale) ||
        !takes(h, QNI_SECTION_OFFSET, qni_packed_stores_offsets(h) ? scales : 0, scale) ||
        !takes(h, QNI_SECTION_ZERO, f->shift == QN_SHIFT_ZERO ? scales : 0, zero))
        return corrupt(err, "scales, offsets or zero points do not have one entry per group");
    if (!takes_or_absent(h, QNI_SECTION_SUMS, sums, 4))
        return corrupt(err, "the column sums do not have one entry per segment");
    if (!takes_or_absent(h, QNI_SECTION_PERM, h->k, 4) ||
        !takes_or_absent(h, QNI_SECTION_PRESCALE, h->k, 4))
        return corrupt(err, "the permutation or the prescale does not have k entries");
    if (!takes(h, QNI_SECTION_RUNS, h->n_runs, sizeof(struct qni_run)))
        return corrupt(err, "the runs do not have the size of their number");
    if (!qni_has_table(f) ? h->section[QNI_SECTION_TABLE].bytes != 0
                          : h->section[QNI_SECTION_TABLE].bytes < sizeof(float) << f->bits)
        return corrupt(err, "the codebook is too short, or the codes need none");
    return QN_OK;
}

/* Sections are few: each is compared with each. */
static qn_status check_places(const struct qni_packed_head *h, uint64_t bytes, qn_error *err)
{
    if (h->bytes < sizeof *h || h->bytes > bytes)
        return qni_fail(err, QN_E_CORRUPT,
                        "the packed weights need %llu bytes by their head, there are %llu",
                        (unsigned long long)h->bytes, (unsigned long long)bytes);
    for (int32_t i = 0; i < QNI_N_SECTIONS; i++) {
        const uint64_t offset = h->section[i].offset, size = h->section[i].bytes;
        if (size == 0 && offset == 0)
            continue;
        if (size == 0 || offset % QNI_BLOB_ALIGNMENT != 0 || offset < sizeof *h ||
            offset > h->bytes || size > h->bytes - offset)
            return corrupt(err, "a section is not aligned or not inside the blob");
        for (int32_t j = 0; j < i; j++)
            if (h->section[j].bytes != 0 && offset < h->section[j].offset + h->section[j].bytes &&
                h->section[j].offset < offset + size)
                return corrupt(err, "two sections overlap");
    }
    return QN_OK;
}

qn_status qni_packed_head_check(const struct qni_packed_head *head, uint64_t bytes, qn_error *err)
{
    if (bytes < sizeof *head)
        return corrupt(err, "it is cut short");
    QNI_TRY(check_words(head, err));
    QNI_TRY(check_shape(head, err));
    QNI_TRY(check_cut(head, err));
    QNI_TRY(check_places(head, bytes, err));
    return check_sizes(head, err);
}
