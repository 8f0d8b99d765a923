/* SPDX-License-Identifier: Apache-2.0 */
/* AWQ, 4 bits, w[n, k] = s (u - z), in three layouts that share the names of their tensors and are
 * told apart by types and shapes (K, N, groups of G along k):
 *
 *   gemm       qweight i32 [K, N/8], qzeros i32 [K/G, N/8], scales [K/G, N]. Half-byte i of a word
 *              is column 0 2 4 6 1 3 5 7 of its eight: the word of codes 0..7 is 0x75316420.
 *   gemv       qweight i32 [N, K/8], qzeros i32 [N, Wz], scales [N, 8 Wz]: rows are streams along
 *              k; columns of zeros and scales beyond the groups are padding.
 *   gemv_fast  qweight i16 [N/4, K], scales and qzeros (llm-awq: scaled_zeros) floats [8 Wz, N]
 *              that are -s z: w = u s + zeros. Half-bytes are those of four rows in runs of 64
 *              columns, see fast_column().
 * Wz = ceil(ceil(K/G / 8) / m) m with m = 1, 2, 4 for G >= 128, 64, 32.
 *
 * gemm and gemv are exact. gemv_fast has offset = zeros + 8 s, which loading counts where f32 does
 * not hold it. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/size.h"
#include "../codes.h"
#include "../settings.h"
#include "words.h"

enum { QWEIGHT, QZEROS, SCALES, SCALED_ZEROS };
enum { LAYOUT, GROUPS }; /* found->fact */
enum { NOT_AWQ, GEMM, GEMV, FAST };

/* ---- which layout ---------------------------------------------------------------------------- */

static bool is_word(qn_dtype dtype)
{
    return dtype == QN_I32 || dtype == QN_U32;
}

/* By types and shapes alone. GPTQ's scales have as many columns as its qweight; its qzeros, also
 * with words of 16 bits, are no floats. */
static int64_t layout_of(const struct qni_tensor *q, const struct qni_tensor *s,
                         const struct qni_tensor *zeros)
{
    if (q->rank != 2 || s->rank != 2)
        return NOT_AWQ;
    if (q->dtype == QN_I16 && qni_import_is_float(zeros->dtype) && q->shape[0] > 0 &&
        q->shape[0] == s->shape[1] / 4 && s->shape[1] % 4 == 0)
        return FAST;
    if (!is_word(q->dtype) || s->shape[1] == q->shape[1])
        return NOT_AWQ;
    if (s->shape[1] % 8 == 0 && q->shape[1] == s->shape[1] / 8)
        return GEMM;
    return q->shape[0] == s->shape[0] ? GEMV : NOT_AWQ;
}

static bool heads(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    struct qni_tensor scales, zeros;
    qni_checkpoint_part(c, stem, ".scales", &scales);
    if (!qni_checkpoint_part(c, stem, ".scaled_zeros", &zeros))
        qni_checkpoint_part(c, stem, ".qzeros", &zeros);
    return layout_of(head, &scales, &zeros) != NOT_AWQ ||
           strcmp(qni_checkpoint_method(c), "awq") == 0;
}

static qn_status check_config(const qn_checkpoint *c, qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const char *version = qni_setting_text(s, qni_checkpoint_setting(c, "version"));
    int64_t bits = 4;
    const bool has_bits = qni_setting_integer(s, qni_checkpoint_setting(c, "bits"), &bits) ||
                          qni_setting_integer(s, qni_checkpoint_setting(c, "w_bit"), &bits);
    if (has_bits && bits != 4)
        return qni_fail(err, QN_E_FORMAT, "%s says %lld bits; AWQ has 4", qni_checkpoint_origin(c),
                        (long long)bits);
    if (version != NULL && (version[0] | 32) == 'm')
        return qni_fail(err, QN_E_FORMAT,
                        "version marlin is in the order of its kernels, which is not imported; use "
                        "the checkpoint that it was made from");
    if (strcmp(qni_checkpoint_method(c), "gptq") == 0)
        return qni_fail(err, QN_E_CORRUPT, "%s says gptq, but its tensors have the shapes of AWQ",
                        qni_checkpoint_origin(c));
    return QN_OK;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int64_t zeros_width(int64_t k, int64_t group)
{
    const int64_t m = group >= 128 ? 1 : group == 64 ? 2 : 4;
    return qni_ceil_div(qni_ceil_div(qni_ceil_div(k, group), 8), m) * m;
}

/* The configuration's group_size, or what follows from the shapes. 0: neither. */
static int64_t said_group(const qn_checkpoint *c, int64_t k)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    int64_t group = 0;
    if (!qni_setting_integer(s, qni_checkpoint_setting(c, "group_size"), &group))
        qni_setting_integer(s, qni_checkpoint_setting(c, "q_group_size"), &group);
    return group == -1 ? k : group;
}

/* In files of AutoAWQ's `gemm` version rows of scales are groups. */
static qn_status group_of_gemm(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const int64_t k = f->parts.k, groups = f->part[SCALES].shape[0], said = said_group(c, k);
    if (groups < 1 || k % groups != 0 || (said > 0 && said * groups != k))
        return qni_fail(err, QN_E_SHAPE, "scales has %lld rows for k = %lld%s", (long long)groups,
                        (long long)k, said > 0 ? ", which is not what group_size says" : "");
    f->fact[GROUPS] = groups;
    f->parts.format.group = groups == 1 ? QN_GROUP_PER_CHANNEL : k / groups;
    qni_note(&f->notes, "group: %lld, k over the rows of scales", (long long)(k / groups));
    return QN_OK;
}

/* In files of the versions `gemv` and `gemv_fast` scales are padded, so that only one of the usual
 * groups may fit. */
static qn_status group_of_padded(const qn_checkpoint *c, struct qni_found *f, int64_t width,
                                 qn_error *err)
{
    static const int64_t usual[] = {128, 64, 32};
    const int64_t k = f->parts.k;
    int64_t group = said_group(c, k), fitting = 0;
    if (group <= 0)
        for (size_t i = 0; i < 3; i++) {
            const bool fits = k % usual[i] == 0 && 8 * zeros_width(k, usual[i]) == width;
            group = fits ? usual[i] : group;
            fitting += fits;
        }
    if (fitting > 1 || group <= 0)
        return qni_fail(err, QN_E_FORMAT,
                        "its scales are padded and do not tell the group; open the folder with its "
                        "configuration, which says group_size");
    if (k % group != 0 || (group < 128 && group != 64 && group != 32) ||
        8 * zeros_width(k, group) != width)
        return qni_fail(err, QN_E_SHAPE,
                        "scales of width %lld are not those of k = %lld, group %lld",
                        (long long)width, (long long)k, (long long)group);
    f->fact[GROUPS] = k / group;
    f->parts.format.group = group == k ? QN_GROUP_PER_CHANNEL : group;
    qni_note(&f->notes, "group: %lld, %s", (long long)group,
             fitting > 0 ? "the only one with scales of this width" : qni_checkpoint_origin(c));
    return QN_OK;
}

/* ---- the module ------------------------------------------------------------------------------ */

static qn_status find_words(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *q = &f->part[QWEIGHT], *z = &f->part[QZEROS], *s = &f->part[SCALES];
    const bool is_gemm = f->fact[LAYOUT] == GEMM;
    if (q->shape[is_gemm ? 1 : 0] > INT32_MAX / 8 || q->shape[is_gemm ? 0 : 1] > INT32_MAX / 8)
        return qni_fail(err, QN_E_SHAPE, "qweight is larger than any weight");
    f->parts.n = is_gemm ? q->shape[1] * 8 : q->shape[0];
    f->parts.k = is_gemm ? q->shape[0] : q->shape[1] * 8;
    f->parts.format.shift = QN_SHIFT_ZERO;
    if (z->data != NULL && !is_word(z->dtype))
        return qni_fail(err, QN_E_DTYPE, "qzeros has not the words of qweight");
    QNI_TRY(qni_import_expect(z, ".qzeros", s->shape[0], s->shape[1] / 8, err));
    if (s->shape[1] % 8 != 0)
        return qni_fail(err, QN_E_SHAPE, "scales has %lld columns, no multiple of 8",
                        (long long)s->shape[1]);
    return is_gemm ? group_of_gemm(c, f, err) : group_of_padded(c, f, s->shape[1], err);
}

static qn_status find_fast(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *q = &f->part[QWEIGHT], *s = &f->part[SCALES];
    if (f->part[SCALED_ZEROS].data != NULL)
        f->part[QZEROS] = f->part[SCALED_ZEROS];
    const struct qni_tensor *z = &f->part[QZEROS];
    f->part[SCALED_ZEROS] = (struct qni_tensor){.name = NULL};
    f->parts.n = s->shape[1];
    f->parts.k = q->shape[1];
    f->parts.format.shift = QN_SHIFT_OFFSET;
    QNI_TRY(qni_import_expect(z, ".qzeros (or .scaled_zeros)", s->shape[0], s->shape[1], err));
    if (!qni_import_is_float(z->dtype))
        return qni_fail(err, QN_E_DTYPE, "zeros of gemv_fast are floats");
    if (f->parts.k % 64 != 0)
        return qni_fail(err, QN_E_SHAPE, "k = %lld is no multiple of 64", (long long)f->parts.k);
    return group_of_padded(c, f, s->shape[0], err);
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    static const char *const names[] = {"", "gemm", "gemv", "gemv_fast"};
    const struct qni_tensor *s = &found->part[SCALES];
    (void)stem;
    QNI_TRY(check_config(c, err));
    if (s->data == NULL)
        return qni_fail(err, QN_E_NOT_FOUND, "its tensor .scales is missing");
    const bool is_llm_awq = found->part[SCALED_ZEROS].data != NULL;
    found->fact[LAYOUT] =
        layout_of(&found->part[QWEIGHT], s, &found->part[is_llm_awq ? SCALED_ZEROS : QZEROS]);
    if (found->fact[LAYOUT] == NOT_AWQ)
        return qni_fail(err, QN_E_SHAPE,
                        "qweight and scales have the shapes of none of AWQ's layouts");
    if (!qni_import_is_float(s->dtype))
        return qni_fail(err, QN_E_DTYPE, "scales must be f16, bf16 or f32");
    found->role = QN_ROLE_LINEAR;
    found->parts.format.code = QN_CODE_INT;
    found->parts.format.bits = 4;
    found->parts.format.scale_dtype = s->dtype;
    qni_note(&found->notes, "layout: %s, from types and shapes of qweight and scales",
             names[found->fact[LAYOUT]]);
    QNI_TRY(found->fact[LAYOUT] == FAST ? find_fast(c, found, err) : find_words(c, found, err));
    qni_note(&found->notes,
             found->fact[LAYOUT] == FAST
                 ? "exact: scales; offsets = zeros + 8 scales, rounded where f32 does not hold the "
                   "sum (loading counts them)"
                 : "exact");
    return QN_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

struct source {
    const struct qni_found *f;
    struct qn_weight *w;
    int64_t first;
};

/* Columns of a tile, whose words are a cache line; runs of 32 of them. */
enum { TILE = 128, MOST_RUNS = TILE / 32 };

/* Where column 0..7 of a word stands in it. */
static const int32_t half_byte[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static uint32_t gemm_code(const struct qni_tensor *t, int64_t row, int64_t column)
{
    const uint32_t word = qni_import_u32(t, row * t->shape[1] + column / 8);
    return word >> (4 * half_byte[column % 8]) & 15;
}

/* Rows [row, row + 8) of w, the columns of one word: eight rows of the file become 8 x 8 bytes, are
 * turned, and are eight codes of each. */
static void take_gemm_word(const struct source *x, int64_t row)
{
    const struct qni_tensor *q = &x->f->part[QWEIGHT];
    struct qn_weight *w = x->w;
    const int64_t word = (x->first + row) / 8, words = q->shape[1];
    for (int64_t p = 0; p < w->k; p += 8) {
        const int64_t count = qni_min(8, w->k - p);
        uint64_t block[8] = {0};
        for (int64_t i = 0; i < count; i++) {
            const uint64_t u = qni_import_u32(q, (p + i) * words + word);
            /* Half-bytes 0 4 1 5 2 6 3 7 to bytes 0..7: the low ones of each 16 bits first. */
            const uint64_t even =
                (u & 0xf) | (u & 0xf0) << 12 | (u & 0xf00) << 24 | (u & 0xf000) << 36;
            const uint64_t high = u >> 16;
            const uint64_t odd =
                (high & 0xf) | (high & 0xf0) << 12 | (high & 0xf00) << 24 | (high & 0xf000) << 36;
            block[i] = even | odd << 8;
        }
        qni_transpose_bytes(block);
        for (int64_t j = 0; j < 8; j++)
            memcpy(w->codes + (row + j) * w->k + p, &block[j], (size_t)count);
    }
}

/* Takes the columns of four words at 16 rows of the file: two blocks of 16 x 16 bytes, of low and
 * of high half-bytes, become codes of 32 columns, whose rows begin at `codes`. */
static void turn_gemm_words(const uint8_t *from, int64_t stride, uint8_t *codes, int64_t k)
{
    static const int32_t column[2][4] = {{0, 4, 1, 5}, {2, 6, 3, 7}}; /* of a word's bytes */
    for (int32_t half = 0; half < 2; half++) {
        qni_codes16 block[16];
        for (int64_t i = 0; i < 16; i++) {
            memcpy(&block[i], from + i * stride, sizeof block[i]);
            block[i] = (half == 0 ? block[i] : block[i] >> 4) & 15;
        }
        qni_transpose16(block);
        for (int64_t i = 0; i < 16; i++)
            memcpy(codes + (i / 4 * 8 + column[half][i % 4]) * k, &block[i], sizeof block[i]);
    }
}

/* Takes `runs` times 32 columns side by side, up to those of a cache line of the file, where k is a
 * multiple of 16, so that the line is read once. */
static void take_gemm_words(const struct source *x, int64_t row, int64_t runs)
{
    enum { AHEAD = 32 };
    const struct qni_tensor *q = &x->f->part[QWEIGHT];
    const int64_t k = x->w->k, stride = q->shape[1] * 4;
    const uint8_t *from = q->data + (x->first + row) / 8 * 4;
    for (int64_t p = 0; p < k; p += 16, from += 16 * stride) {
        for (int64_t i = 0; i < 16 && p + AHEAD < k; i++)
            QNI_WILL_READ(from + (AHEAD + i) * stride);
        for (int64_t run = 0; run < runs; run++)
            turn_gemm_words(from + 16 * run, stride, x->w->codes + (row + 32 * run) * k + p, k);
    }
}

static void take_gemm(const struct source *x, int64_t row, int64_t rows)
{
    const struct qni_tensor *q = &x->f->part[QWEIGHT];
    struct qn_weight *w = x->w;
    for (int64_t i = row; i < row + rows;) {
        const int64_t runs = qni_min(MOST_RUNS, (row + rows - i) / 32);
        if ((x->first + i) % 8 == 0 && runs > 0 && w->k % 16 == 0) {
            take_gemm_words(x, i, runs);
            i += 32 * runs;
            continue;
        }
        if ((x->first + i) % 8 == 0 && i + 8 <= row + rows) {
            take_gemm_word(x, i);
            i += 8;
            continue;
        }
        for (int64_t p = 0; p < w->k; p++) /* a range of rows that cuts a word */
            w->codes[i * w->k + p] = (uint8_t)gemm_code(q, p, x->first + i);
        i++;
    }
    for (int64_t g = 0; g < w->n_groups; g++)
        for (int64_t i = row; i < row + rows; i++) {
            const int64_t n = x->first + i, at = i * w->n_groups + g;
            w->zero[at] = (int32_t)gemm_code(&x->f->part[QZEROS], g, n) - 8;
            w->scale[at] = qni_import_float(&x->f->part[SCALES], g * x->f->parts.n + n);
        }
}

static void take_gemv(const struct source *x, int64_t row)
{
    const struct qni_tensor *q = &x->f->part[QWEIGHT], *z = &x->f->part[QZEROS];
    const struct qni_tensor *s = &x->f->part[SCALES];
    struct qn_weight *w = x->w;
    const int64_t n = x->first + row;
    qni_codes_unpack(q->data + n * q->shape[1] * 4, (size_t)w->k, 4, w->codes + row * w->k);
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t at = row * w->n_groups + g;
        w->zero[at] = (int32_t)qni_stream_code(z->data + n * z->shape[1] * 4, g, 4) - 8;
        w->scale[at] = qni_import_float(s, n * s->shape[1] + g);
    }
}

/* The column of x at place p of a run of 32: pairs of columns of the four eights in turn, and then
 * the even ones of each eight before the odd ones. */
static int64_t fast_column(int64_t p)
{
    const int64_t eight = p / 8, t = p % 8, turned = t < 4 ? 2 * t : 2 * (t - 4) + 1;
    const int64_t q = eight * 8 + turned; /* place before the second step */
    return q / 2 % 4 * 8 + q / 8 * 2 + q % 2;
}

/* A block of 64 words of 16 bits: 16 for each of four rows, each of four columns. */
static void take_fast(const struct source *x, int64_t row)
{
    const struct qni_tensor *q = &x->f->part[QWEIGHT];
    struct qn_weight *w = x->w;
    const int64_t n = x->first + row;
    const uint8_t *from = q->data + 2 * (n / 4 * q->shape[1] + n % 4 * 16);
    uint8_t *codes = w->codes + row * w->k;
    int64_t column[64];
    for (int64_t p = 0; p < 64; p++)
        column[p] = p / 32 * 32 + fast_column(p % 32);
    for (int64_t k = 0; k < w->k; k += 64, from += 128, codes += 64)
        for (int64_t p = 0; p < 64; p++)
            codes[column[p]] = from[p / 2] >> (4 * (p % 2)) & 15;
}

static void take_fast_groups(const struct source *x, int64_t row, struct qni_rounding *rounding)
{
    const struct qni_tensor *z = &x->f->part[QZEROS], *s = &x->f->part[SCALES];
    struct qn_weight *w = x->w;
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t from = g * x->f->parts.n + x->first + row, at = row * w->n_groups + g;
        w->scale[at] = qni_import_float(s, from);
        w->offset[at] = qni_import_round(
            (double)qni_import_float(z, from) + 8.0 * (double)w->scale[at], rounding);
    }
}

static void take_tile(const void *arg, int64_t tile, struct qni_rounding *rounding)
{
    const struct source *x = arg;
    const int64_t row = tile * TILE, rows = qni_min(TILE, x->w->n - row);
    if (x->f->fact[LAYOUT] == GEMM)
        take_gemm(x, row, rows);
    for (int64_t i = row; i < row + rows && x->f->fact[LAYOUT] != GEMM; i++) {
        if (x->f->fact[LAYOUT] == GEMV) {
            take_gemv(x, i);
        } else {
            take_fast(x, i);
            take_fast_groups(x, i, rounding);
        }
    }
    rounding->groups += rows * x->w->n_groups;
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    const struct source x = {found, w, first};
    (void)err;
    qni_import_rows(ctx, qni_ceil_div(w->n, TILE), take_tile, &x, rounding);
    return QN_OK;
}

/* The zeros of the others are packed, or padded, along k. */
static bool can_cut(const struct qni_found *found)
{
    return found->fact[LAYOUT] == GEMM;
}

const struct qni_importer qni_import_awq = {
    .name = "awq",
    .parts = {".qweight", ".qzeros", ".scales", ".scaled_zeros"},
    .named = ".weight",
    .heads = heads,
    .find = find,
    .load = load,
    .along_k = {1, 1, 1},
    .can_cut = can_cut,
};
