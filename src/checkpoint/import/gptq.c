/* SPDX-License-Identifier: Apache-2.0 */
/* GPTQ: w[n, k] = scales[g(k), n] * (u[k, n] - z[g(k), n]), b = 2 to 8 bits.
 *
 *     qweight  words [ceil(k b / word), n]     a column is a stream of bits along k
 *     qzeros   words [groups, n b / word]      a row is a stream of bits along n
 *     scales   f16, bf16 or f32 [groups, n]
 *     g_idx    i32 [k], optional: the group of each column of x (act-order)
 * All of b, n, k and the number of groups follow from the shapes. Format "gptq_p" of 3 bits, and
 * 5, 6 and 7 bits always, keep planes instead of streams (codes.h).
 *
 * Format "gptq" (v1) stores z - 1, "gptq_v2" stores z, and labels lie: where weights are symmetric
 * the zeros themselves tell (2^(b-1) - 1 or 2^(b-1), everywhere). Where they are not, the label
 * counts only if the program that wrote it is known to have meant it. A stored 2^b - 1 of v1 is 2^b
 * to some readers and 0 to others. A case that stays open is refused and decided by
 * qn_checkpoint_options.gptq_zeros.
 *
 * With act-order the columns of a group lie apart. perm is the stable order of g_idx, so that each
 * group becomes a run of positions.
 * Example: qweight 0x76543210, qzeros 0x77777777 (v1), scale 0.5: w[0..7] = -4, -3.5, ..., -0.5. */
#include <string.h>

#include "../../base/context.h"
#include "../../base/error.h"
#include "../../base/size.h"
#include "../codes.h"
#include "../settings.h"
#include "words.h"

enum { QWEIGHT, QZEROS, SCALES, G_IDX };
/* The places in found->fact. UNIFORM: the stored zero + 1, or 0; IS_FOUND: nobody chose how zeros
 * are stored; PLANES: 1 if codes are kept in planes. */
enum { BITS, WORD, GROUPS, GROUP, ZEROS, UNIFORM, IS_FOUND, PLANES };
enum { SAMPLE = 4096 }; /* zeros that are looked at before loading */

/* ---- shapes ---------------------------------------------------------------------------------- */

static qn_status find_shape(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *q = &f->part[QWEIGHT], *z = &f->part[QZEROS], *s = &f->part[SCALES];
    const int32_t word = qni_word_bits(q->dtype);
    if (s->data == NULL || z->data == NULL)
        return qni_fail(err, QN_E_NOT_FOUND, "its tensor %s is missing",
                        s->data == NULL ? ".scales" : ".qzeros");
    if (q->rank != 2 || z->rank != 2 || s->rank != 2 || word == 0 ||
        qni_word_bits(z->dtype) != word || !qni_import_is_float(s->dtype))
        return qni_fail(err, QN_E_DTYPE,
                        "qweight and qzeros must be matrices of the same words, scales one of f16, "
                        "bf16 or f32");
    const int64_t n = s->shape[1], groups = s->shape[0];
    if (q->shape[1] != n && n > 0 && q->shape[1] == 2 * n)
        return qni_fail(err, QN_E_FORMAT,
                        "qweight is in the order of Marlin's kernels, which is not imported; use "
                        "the checkpoint that it was made from");
    if (q->shape[1] != n || z->shape[0] != groups)
        return qni_fail(
            err, QN_E_SHAPE, "qweight has %lld columns, scales %lld; qzeros %lld rows, scales %lld",
            (long long)q->shape[1], (long long)n, (long long)z->shape[0], (long long)groups);
    const int64_t bits = n > 0 && z->shape[1] <= n ? z->shape[1] * word / n : 0;
    if (bits < 2 || bits > 8 || bits * n != z->shape[1] * word)
        return qni_fail(err, QN_E_FORMAT,
                        "qzeros has %lld words for %lld columns: no 2 to 8 bits each",
                        (long long)z->shape[1], (long long)n);
    f->fact[BITS] = bits;
    f->fact[WORD] = word;
    f->fact[GROUPS] = groups;
    f->parts.n = n;
    qni_note(&f->notes, "bits: %lld, from the %lld words of qzeros for %lld columns",
             (long long)bits, (long long)z->shape[1], (long long)n);
    return QN_OK;
}

static qn_status find_k(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *q = &f->part[QWEIGHT], *g = &f->part[G_IDX];
    const int64_t bits = f->fact[BITS], word = f->fact[WORD], rows = q->shape[0];
    if (rows > INT32_MAX / word)
        return qni_fail(err, QN_E_SHAPE, "qweight has %lld rows", (long long)rows);
    if (g->data != NULL && (g->rank != 1 || (g->dtype != QN_I32 && g->dtype != QN_I64)))
        return qni_fail(err, QN_E_DTYPE, "g_idx is no vector of integers");
    const int64_t k = g->data != NULL ? g->shape[0] : rows * word / bits;
    if (k > INT32_MAX || qni_ceil_div(k * bits, word) != rows ||
        (g->data == NULL && k * bits != rows * word))
        return qni_fail(err, QN_E_SHAPE, "%lld rows of qweight do not make %lld codes of %lld bits",
                        (long long)rows, (long long)k, (long long)bits);
    f->parts.k = k;
    qni_note(&f->notes, "k: %lld, %s", (long long)k,
             g->data != NULL ? "the length of g_idx" : "from the rows of qweight");
    return QN_OK;
}

/* The group from the configuration, or from the shapes where that leaves no choice. */
static qn_status find_group(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const int64_t groups = f->fact[GROUPS], k = f->parts.k;
    int64_t group = 0;
    const bool said = qni_setting_integer(s, qni_checkpoint_setting(c, "group_size"), &group);
    const char *from = qni_checkpoint_origin(c);
    if (groups == 1) {
        group = k;
        from = "scales has one row";
    } else if (!said || group < 1 || group > k || qni_ceil_div(k, group) != groups) {
        if (said && qni_checkpoint_setting(c, "dynamic") < 0)
            return qni_fail(err, QN_E_SHAPE,
                            "%s says group_size %lld, but scales has %lld rows for k = %lld", from,
                            (long long)group, (long long)groups, (long long)k);
        if (groups < 1 || k % groups != 0)
            return qni_fail(err, QN_E_FORMAT,
                            "%lld groups do not divide k = %lld; open the folder with its "
                            "quantize_config.json, which says group_size",
                            (long long)groups, (long long)k);
        group = k / groups;
        from = "k over the rows of scales";
    }
    f->fact[GROUP] = group;
    f->parts.format.group = groups == 1 ? QN_GROUP_PER_CHANNEL : group;
    qni_note(&f->notes, "group: %lld, %s", (long long)group, from);
    return QN_OK;
}

/* Planes or streams? */
static qn_status find_planes(const char *label, struct qni_found *f, qn_error *err)
{
    const int64_t bits = f->fact[BITS];
    const bool is_planar = label != NULL && strcmp(label, "gptq_p") == 0;
    if (label != NULL && !is_planar && strcmp(label, "gptq") != 0 && strcmp(label, "gptq_v2") != 0)
        return qni_fail(err, QN_E_FORMAT,
                        "checkpoint_format is neither gptq nor gptq_v2 nor gptq_p");
    const bool has_only_planes = bits > 4 && bits < 8;
    if (!has_only_planes && !(is_planar && bits == 3))
        return QN_OK;
    if (f->fact[WORD] != 32 || f->parts.k % 32 != 0 || f->parts.n % 32 != 0)
        return qni_fail(err, QN_E_FORMAT,
                        "[%lld, %lld] of %lld bits in words of %lld: planes have words of 32 bits "
                        "for 32 codes each",
                        (long long)f->parts.n, (long long)f->parts.k, (long long)bits,
                        (long long)f->fact[WORD]);
    f->fact[PLANES] = 1;
    qni_note(&f->notes, "codes: planes of bits, %s",
             has_only_planes ? "as all codes of 5 to 7 bits" : "checkpoint_format gptq_p");
    return QN_OK;
}

/* ---- act-order ------------------------------------------------------------------------------- */

static struct qni_order order_of(const struct qni_found *f)
{
    return (struct qni_order){f->parts.k, f->fact[GROUP], f->fact[GROUPS]};
}

static qn_status find_order(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *g = &f->part[G_IDX];
    const struct qni_order order = order_of(f);
    const qni_order_kind kind = qni_import_order_of(g, &order);
    if (kind == QNI_ORDER_NONE || kind == QNI_ORDER_TRIVIAL) {
        qni_note(&f->notes, "order: columns as they are, %s",
                 g->data == NULL ? "there is no g_idx" : "g_idx is k / group");
        return QN_OK;
    }
    if (kind == QNI_ORDER_ZERO) {
        const int32_t is_ordered =
            qni_setting_flag(qni_checkpoint_settings(c), qni_checkpoint_setting(c, "desc_act"));
        if (is_ordered != 0)
            return qni_fail(err, QN_E_FORMAT,
                            "g_idx is all 0 although there are %lld groups, and no desc_act: false "
                            "says that it does not count",
                            (long long)f->fact[GROUPS]);
        qni_note(&f->notes, "order: columns as they are; g_idx is all 0, and desc_act is false");
        return QN_OK;
    }
    f->has_perm = true;
    qni_note(&f->notes, "order: act-order, the stable order of g_idx");
    return QN_OK;
}

/* ---- zeros ----------------------------------------------------------------------------------- */

static uint32_t stored_zero(const struct qni_found *f, int64_t group, int64_t n)
{
    const struct qni_tensor *z = &f->part[QZEROS];
    const int64_t row = z->shape[1] * (f->fact[WORD] / 8);
    if (f->fact[PLANES] != 0)
        return qni_planes_code(z->data + group * row, 4, n, (int32_t)f->fact[BITS]);
    return qni_stream_code(z->data + group * row, n, (int32_t)f->fact[BITS]);
}

/* The value that the first zeros all have, or -1. */
static int64_t sample_zeros(const struct qni_found *f)
{
    const int64_t groups = f->fact[GROUPS], n = f->parts.n;
    int64_t left = SAMPLE, value = -1;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < n && left > 0; i++, left--) {
            const int64_t now = stored_zero(f, g, i);
            if (value >= 0 && now != value)
                return -1;
            value = now;
        }
    return value;
}

/* Did a program that means v1 by "gptq" write this? */
static bool is_proven_v1(const qn_checkpoint *c, const char *label, const char **proof)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const int32_t list = qni_setting_at(s, qni_checkpoint_setting(c, "meta"), "quantizer");
    if (label == NULL && qni_checkpoint_origin(c)[0] != 0) {
        *proof = "no checkpoint_format, which came with v2";
        return true;
    }
    for (int32_t i = list < 0 ? -1 : s->list[list].child; i >= 0; i = s->list[i].next) {
        const char *text = qni_setting_text(s, i);
        const bool is_model = text != NULL && strncmp(text, "gptqmodel:", 10) == 0;
        if (is_model && text[10] >= '0' && text[10] < '5' && text[11] == '.') {
            *proof = "meta.quantizer is a gptqmodel before 5";
            return true;
        }
        if (text != NULL &&
            (strncmp(text, "auto_gptq", 9) == 0 || strncmp(text, "autogptq", 8) == 0)) {
            *proof = "meta.quantizer is auto_gptq";
            return true;
        }
        if (text != NULL && strncmp(text, "quern:", 6) == 0) {
            *proof = "meta.quantizer is quern";
            return true;
        }
        if (is_model)
            return false;
    }
    return false;
}

static qn_status decide_asymmetric(const qn_checkpoint *c, struct qni_found *f, const char *label,
                                   qn_error *err)
{
    const char *proof = "";
    if (label != NULL && strcmp(label, "gptq") != 0) {
        f->fact[ZEROS] = QN_GPTQ_ZEROS_V2;
        qni_note(&f->notes, "zeros: stored as they are (v2), checkpoint_format %s", label);
        return QN_OK;
    }
    if (f->fact[BITS] > 4 && f->fact[BITS] < 8) {
        f->fact[ZEROS] = QN_GPTQ_ZEROS_V2;
        qni_note(&f->notes, "zeros: stored as they are (v2), as with all codes of 5 to 7 bits");
        return QN_OK;
    }
    if (!is_proven_v1(c, label, &proof))
        return qni_fail(err, QN_E_FORMAT,
                        "its zeros differ, and whether they are stored as z or as z - 1 is told by "
                        "a label that newer programs set wrongly; choose with gptq_zeros (v1, "
                        "v1-wrap or v2)");
    f->fact[ZEROS] = QN_GPTQ_ZEROS_V1;
    f->fact[IS_FOUND] = 1;
    qni_note(&f->notes, "zeros: stored less 1 (v1), %s", proof);
    return QN_OK;
}

static qn_status find_zeros(const qn_checkpoint *c, struct qni_found *f, const char *label,
                            qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const int64_t bits = f->fact[BITS], half = (int64_t)1 << (bits - 1);
    const int32_t sym = qni_setting_flag(s, qni_checkpoint_setting(c, "sym"));
    const int64_t wanted = qni_checkpoint_get_options(c)->gptq_zeros;
    const int64_t value = sample_zeros(f);
    f->parts.format.shift = QN_SHIFT_ZERO;
    if (wanted != QN_GPTQ_ZEROS_FOUND) {
        f->fact[ZEROS] = wanted;
        qni_note(&f->notes, "zeros: %s, the caller's choice",
                 wanted == QN_GPTQ_ZEROS_V2   ? "stored as they are (v2)"
                 : wanted == QN_GPTQ_ZEROS_V1 ? "stored less 1 (v1)"
                                              : "stored less 1, modulo 2^bits (v1-wrap)");
        return QN_OK;
    }
    if (sym == 0 || (value != half && value != half - 1))
        return decide_asymmetric(c, f, label, err);
    f->parts.format.shift = QN_SHIFT_NONE;
    f->fact[ZEROS] = value == half ? QN_GPTQ_ZEROS_V2 : QN_GPTQ_ZEROS_V1;
    f->fact[UNIFORM] = value + 1;
    const bool says_v2 = label != NULL && strcmp(label, "gptq") != 0;
    qni_note(&f->notes, "zeros: symmetric, stored %s: label says %s; all zeros are %lld, so %s",
             value == half ? "as they are" : "less 1",
             label == NULL ? "nothing"
             : says_v2     ? "v2"
                           : "v1",
             (long long)value, value == half ? "v2" : "v1");
    return QN_OK;
}

/* ---- the module ------------------------------------------------------------------------------ */

static qn_status check_config(const qn_checkpoint *c, const struct qni_found *f, qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    int64_t bits = 0;
    if (strcmp(qni_checkpoint_method(c), "awq") == 0)
        return qni_fail(err, QN_E_CORRUPT, "%s says awq, but its tensors have the shapes of GPTQ",
                        qni_checkpoint_origin(c));
    if (qni_setting_integer(s, qni_checkpoint_setting(c, "bits"), &bits) && bits != f->fact[BITS] &&
        qni_checkpoint_setting(c, "dynamic") < 0)
        return qni_fail(err, QN_E_CORRUPT, "%s says %lld bits, its tensors have %lld",
                        qni_checkpoint_origin(c), (long long)bits, (long long)f->fact[BITS]);
    return QN_OK;
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const char *label = qni_setting_text(s, qni_checkpoint_setting(c, "checkpoint_format"));
    (void)stem;
    label = label != NULL ? label : qni_setting_text(s, qni_checkpoint_setting(c, "format"));
    QNI_TRY(find_shape(found, err));
    QNI_TRY(check_config(c, found, err));
    QNI_TRY(find_k(found, err));
    QNI_TRY(find_planes(label, found, err));
    qn_format *format = &found->parts.format;
    format->code = QN_CODE_INT;
    format->bits = (int32_t)found->fact[BITS];
    format->scale_dtype = found->part[SCALES].dtype;
    QNI_TRY(find_group(c, found, err));
    QNI_TRY(find_order(c, found, err));
    QNI_TRY(find_zeros(c, found, label, err));
    found->role = QN_ROLE_LINEAR;
    qni_note(&found->notes, "exact");
    return QN_OK;
}

struct columns {
    const struct qni_found *f;
    struct qn_weight *w;
    int64_t first;
    int64_t *bad; /* 1 + group * n + column of a zero that must not be; atomic */
};
/* Columns of a tile, and those whose words share a cache line. */
enum { TILE = 128, LINE = 16 };

static bool can_take_nibbles(const struct columns *x, int64_t rows)
{
    return x->w->format.bits == 4 && x->f->fact[WORD] == 32 && rows % 4 == 0 && x->w->k % 32 == 0;
}

/* 4 bits in words of 32: four words of four columns are turned, and are 32 codes of each. All
 * columns of the tile at once, so that the file's rows are read by several lines. */
static void take_nibbles(const struct columns *x, int64_t row, int64_t rows)
{
    enum { AHEAD = 8 }; /* words of a column */
    const struct qni_found *f = x->f;
    const int64_t k = x->w->k, stride = f->parts.n * 4;
    const uint8_t *from = f->part[QWEIGHT].data + (x->first + row) * 4;
    uint8_t *codes = x->w->codes + row * k;
    for (int64_t p = 0; p < k; p += 32, from += 4 * stride)
        for (int64_t j = 0; j < rows; j += 4) {
            qni_words4 words[4];
            for (int64_t i = 0; i < 4; i++)
                memcpy(&words[i], from + i * stride + 4 * j, sizeof words[i]);
            for (int64_t i = 0; i < 4 && j % 16 == 0 && p + 8 * AHEAD < k; i++)
                QNI_WILL_READ(from + (AHEAD + i) * stride + 4 * j);
            qni_transpose_words(words);
            for (int64_t i = 0; i < 4; i++)
                qni_split_codes((qni_codes16)words[i], codes + (j + i) * k + p);
        }
}

/* A column's words, one below the other, become bytes at the end of its row of codes, and are
 * unpacked towards the beginning: reading stays ahead of writing. */
static void take_codes(const struct columns *x, int64_t row, int64_t rows)
{
    const struct qni_found *f = x->f;
    struct qn_weight *w = x->w;
    const size_t k = (size_t)w->k, word = (size_t)f->fact[WORD] / 8;
    const int32_t bits = w->format.bits;
    const size_t packed = qni_codes_bytes(k, bits), stride = (size_t)f->parts.n * word;
    const uint8_t *from = f->part[QWEIGHT].data + (size_t)(x->first + row) * word;
    uint8_t *codes = w->codes + (size_t)row * k;
    for (size_t at = 0; at < packed; at += word, from += stride)
        for (int64_t j = 0; j < rows; j++)
            memcpy(codes + (size_t)j * k + (k - packed) + at, from + (size_t)j * word,
                   packed - at < word ? packed - at : word);
    for (int64_t j = 0; j < rows && bits < 8; j++, codes += k)
        if (f->fact[PLANES] != 0)
            qni_planes_unpack(codes + k - packed, k, bits, codes);
        else
            qni_codes_unpack(codes + k - packed, k, bits, codes);
}

/* Act-order: position by position, since neighbours lie apart in the file. */
static void take_permuted(const struct columns *x, int64_t row, int64_t rows)
{
    const struct qni_found *f = x->f;
    struct qn_weight *w = x->w;
    const int32_t bits = w->format.bits, word = (int32_t)f->fact[WORD] / 8;
    const int64_t stride = f->parts.n * word;
    const uint8_t *from = f->part[QWEIGHT].data + (x->first + row) * word;
    for (int64_t p = 0; p < w->k && f->fact[PLANES] != 0; p++)
        for (int64_t j = 0; j < rows; j++)
            w->codes[(row + j) * w->k + p] = (uint8_t)qni_planes_code(
                from + j * word, (size_t)stride, w->perm[p], bits);
    for (int64_t p = 0; p < w->k && f->fact[PLANES] == 0; p++) {
        const int64_t at = (int64_t)w->perm[p] * bits, next = at / 8 + 1;
        const int32_t shift = (int32_t)(at % 8);
        const uint8_t *low = from + at / 8 / word * stride + at / 8 % word;
        const uint8_t *high = shift + bits > 8 ? from + next / word * stride + next % word : low;
        for (int64_t j = 0; j < rows; j++, low += word, high += word) {
            const uint32_t both = (uint32_t)*low | (uint32_t)*high << 8;
            w->codes[(row + j) * w->k + p] = (uint8_t)(both >> shift & ((1u << bits) - 1));
        }
    }
}

static void take_groups(struct columns *x, int64_t n)
{
    const struct qni_found *f = x->f;
    struct qn_weight *w = x->w;
    const int64_t column = x->first + n, most = (int64_t)1 << f->fact[BITS];
    const int64_t mode = f->fact[ZEROS], uniform = f->fact[UNIFORM] - 1;
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t at = n * w->n_groups + g, stored = stored_zero(f, g, column);
        int64_t zero = stored + (mode != QN_GPTQ_ZEROS_V2);
        const bool is_open = zero == most && f->fact[IS_FOUND] != 0;
        if (mode == QN_GPTQ_ZEROS_V1_WRAP)
            zero %= most;
        if (uniform >= 0 ? stored != uniform : is_open)
            __atomic_store_n(x->bad, 1 + g * f->parts.n + column, __ATOMIC_RELAXED);
        w->scale[at] = qni_import_float(&f->part[SCALES], g * f->parts.n + column);
        if (w->zero != NULL)
            w->zero[at] = (int32_t)(zero - most / 2);
    }
}

static void take_tile(const void *arg, int64_t tile, struct qni_rounding *rounding)
{
    struct columns x = *(const struct columns *)arg;
    const int64_t row = tile * TILE, rows = qni_min(TILE, x.w->n - row);
    if (x.w->perm == NULL && can_take_nibbles(&x, rows))
        take_nibbles(&x, row, rows);
    else
        for (int64_t i = 0; i < rows; i += LINE)
            (x.w->perm != NULL ? take_permuted : take_codes)(&x, row + i, qni_min(LINE, rows - i));
    for (int64_t i = row; i < row + rows; i++)
        take_groups(&x, i);
    rounding->groups += rows * x.w->n_groups;
}

static qn_status fail_zero(const struct qni_found *f, int64_t bad, qn_error *err)
{
    const long long group = (bad - 1) / f->parts.n, column = (bad - 1) % f->parts.n;
    if (f->fact[UNIFORM] > 0)
        return qni_fail(err, QN_E_VALUE,
                        "the zero of output %lld, group %lld is not %lld as those before; choose "
                        "how zeros are stored with gptq_zeros (v1, v1-wrap or v2)",
                        column, group, (long long)f->fact[UNIFORM] - 1);
    return qni_fail(
        err, QN_E_VALUE,
        "output %lld, group %lld stores the zero 2^%lld - 1, which stands for 2^%lld to "
        "some programs and for 0 to others; choose with gptq_zeros (v1 or v1-wrap)",
        column, group, (long long)f->fact[BITS], (long long)f->fact[BITS]);
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    int64_t bad = 0;
    struct columns x = {found, w, first, &bad};
    const struct qni_order order = order_of(found);
    if (w->perm != NULL)
        QNI_TRY(qni_import_sort_columns(ctx, &found->part[G_IDX], &order, w->perm, err));
    if (w->k > 0)
        qni_import_rows(ctx, qni_ceil_div(w->n, TILE), take_tile, &x, rounding);
    return bad == 0 ? QN_OK : fail_zero(found, bad, err);
}

/* Whole words of planes of 4 and 2 bits may be half of 32 codes. */
static bool can_cut(const struct qni_found *found)
{
    return found->fact[PLANES] == 0 || found->fact[BITS] != 6;
}

const struct qni_importer qni_import_gptq = {
    .name = "gptq",
    .parts = {".qweight", ".qzeros", ".scales", ".g_idx"},
    .named = ".weight",
    .find = find,
    .load = load,
    .can_cut = can_cut,
    .along_k = {1, 1, 1},
};
