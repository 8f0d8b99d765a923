/* SPDX-License-Identifier: Apache-2.0 */
/* bitsandbytes.
 *
 * NF4 and FP4: weight holds N K codes of 4 bits as bytes of any type, the first of a pair in the
 * high half; blocks of `blocksize` run over the flattened matrix, across rows where K is not a
 * multiple.
 *     w = quant_map[code] absmax[i / blocksize]
 * nested: absmax is u8, and stands for nested_quant_map[u8] nested_absmax[i / nested_blocksize] +
 * nested_offset, computed in f32 with two roundings as bitsandbytes does. shape and sizes are JSON
 * in the tensor weight.quant_state.bitsandbytes__nf4 (or __fp4). Canonical groups are of
 * gcd(K, blocksize) columns, so that none crosses a row: exact.
 *     byte 0x7f, absmax 2: 0, 2.
 *
 * LLM.int8: weight i8 [N, K], SCB f32 [N] is the largest magnitude of a row: w = q SCB / 127. The
 * scale SCB / 127 is rounded once, which loading counts. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/size.h"
#include "../settings.h"
#include "words.h"

enum { WEIGHT, ABSMAX, MAP, NESTED_ABSMAX, NESTED_MAP, STATE_NF4, STATE_FP4 };
enum { SCB = 1, FORMAT = 2 };
enum { BLOCK, NESTED_BLOCK }; /* found->fact; NESTED_BLOCK 0: absmax is plain */

/* ---- four bits ------------------------------------------------------------------------------- */

static bool heads_4bit(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    struct qni_tensor t;
    (void)head;
    return qni_checkpoint_part(c, stem, ".weight.quant_state.bitsandbytes__nf4", &t) ||
           qni_checkpoint_part(c, stem, ".weight.quant_state.bitsandbytes__fp4", &t);
}

static bool is_vector(const struct qni_tensor *t, qn_dtype dtype, int64_t count)
{
    return t->data != NULL && t->dtype == dtype &&
           t->bytes == (size_t)count * qn_dtype_bytes(dtype);
}

/* The numbers of the JSON that count, checked against each other. offset: nested_offset. */
static qn_status read_state(const struct qni_settings *s, struct qni_found *f, double *offset,
                            qn_error *err)
{
    const int32_t shape = qni_setting_at(s, 0, "shape");
    const int32_t first = shape < 0 ? -1 : s->list[shape].child;
    const int32_t second = first < 0 ? -1 : s->list[first].next;
    int64_t count = 0;
    if (!qni_setting_integer(s, first, &f->parts.n) ||
        !qni_setting_integer(s, second, &f->parts.k) || s->list[second].next >= 0 ||
        f->parts.n < 0 || f->parts.k < 0 || f->parts.k > INT32_MAX ||
        !qni_i64_mul(f->parts.n, f->parts.k, &count) || count > INT64_MAX / 16)
        return qni_fail(err, QN_E_CORRUPT, "its quant_state has no shape of two dimensions");
    if (!qni_setting_integer(s, qni_setting_at(s, 0, "blocksize"), &f->fact[BLOCK]) ||
        f->fact[BLOCK] < 1)
        return qni_fail(err, QN_E_CORRUPT, "its quant_state has no blocksize");
    const int32_t nested = qni_setting_at(s, 0, "nested_blocksize");
    if (nested >= 0 &&
        (!qni_setting_integer(s, nested, &f->fact[NESTED_BLOCK]) || f->fact[NESTED_BLOCK] < 1 ||
         !qni_setting_real(s, qni_setting_at(s, 0, "nested_offset"), offset)))
        return qni_fail(err, QN_E_CORRUPT, "its quant_state lacks numbers of the nested absmax");
    return QN_OK;
}

static qn_status check_4bit(const struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *w = &f->part[WEIGHT];
    const int64_t count = f->parts.n * f->parts.k, blocks = qni_ceil_div(count, f->fact[BLOCK]);
    const size_t packed = (size_t)(count / 2 + count % 2);
    const bool is_nested = f->fact[NESTED_BLOCK] != 0;
    if (w->bytes < packed || w->bytes - packed > 7)
        return qni_fail(err, QN_E_SHAPE, "weight has %llu bytes for [%lld, %lld] codes of 4 bits",
                        (unsigned long long)w->bytes, (long long)f->parts.n, (long long)f->parts.k);
    if (!is_vector(&f->part[ABSMAX], is_nested ? QN_U8 : QN_F32, blocks))
        return qni_fail(err, QN_E_SHAPE, "weight.absmax should be %lld numbers of type %s",
                        (long long)blocks, is_nested ? "u8" : "f32");
    if (is_nested &&
        (!is_vector(&f->part[NESTED_MAP], QN_F32, 256) ||
         !is_vector(&f->part[NESTED_ABSMAX], QN_F32, qni_ceil_div(blocks, f->fact[NESTED_BLOCK]))))
        return qni_fail(err, QN_E_SHAPE,
                        "weight.nested_quant_map should be f32 [256], weight.nested_absmax f32 "
                        "[%lld]",
                        (long long)qni_ceil_div(blocks, f->fact[NESTED_BLOCK]));
    return QN_OK;
}

static qn_status find_map(struct qni_found *f, qn_error *err)
{
    const float *nf4 = qni_code_table(QN_CODE_NF4);
    if (!is_vector(&f->part[MAP], QN_F32, 16))
        return qni_fail(err, QN_E_NOT_FOUND, "its tensor .weight.quant_map is not f32 [16]");
    memcpy(f->table, f->part[MAP].data, 16 * sizeof *f->table);
    f->parts.format.bits = 4;
    f->parts.format.code = QN_CODE_TABLE;
    if (memcmp(f->table, nf4, 16 * sizeof *nf4) == 0)
        f->parts.format.code = QN_CODE_NF4;
    qni_note(&f->notes, "format: %s, tensor .weight.quant_map",
             f->parts.format.code == QN_CODE_NF4 ? "nf4" : "a table of 16 values");
    return QN_OK;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static qn_status find_4bit(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                           qn_error *err)
{
    const bool is_nf4 = found->part[STATE_NF4].data != NULL;
    const struct qni_tensor *state = &found->part[is_nf4 ? STATE_NF4 : STATE_FP4];
    struct qni_settings settings;
    double offset = 0;
    (void)stem;
    if (state->dtype != QN_U8)
        return qni_fail(err, QN_E_DTYPE, "its quant_state is no text of bytes");
    qni_settings_start(qni_checkpoint_allocator(c), &settings);
    qn_status status =
        qni_settings_read((const char *)state->data, state->bytes, NULL, &settings, err);
    if (status == QN_OK)
        status = read_state(&settings, found, &offset, err);
    qni_settings_free(&settings);
    QNI_TRY(status);
    QNI_TRY(check_4bit(found, err));
    QNI_TRY(find_map(found, err));
    const int64_t k = found->parts.k, group = common_divisor(k, found->fact[BLOCK]);
    found->parts.format.group = group == k || group < 1 ? QN_GROUP_PER_CHANNEL : group;
    found->parts.format.scale_dtype = QN_F32;
    found->input_scale = (float)offset;
    found->role = QN_ROLE_LINEAR;
    qni_note(&found->notes, "shape: quant_state, shape");
    qni_note(&found->notes,
             "group: blocks of %lld over the flattened matrix (quant_state), held in "
             "groups of %lld that cross no row",
             (long long)found->fact[BLOCK], (long long)group);
    if (found->fact[NESTED_BLOCK] != 0)
        qni_note(&found->notes, "scales: nested, computed in f32 as bitsandbytes does");
    qni_note(&found->notes, "exact");
    return QN_OK;
}

static float float_at(const struct qni_tensor *t, int64_t i)
{
    float f;
    memcpy(&f, t->data + 4 * i, sizeof f);
    return f;
}

static float absmax_of(const struct qni_found *f, int64_t block)
{
    if (f->fact[NESTED_BLOCK] == 0)
        return float_at(&f->part[ABSMAX], block);
    const float value = float_at(&f->part[NESTED_MAP], f->part[ABSMAX].data[block]);
    const float scaled = value * float_at(&f->part[NESTED_ABSMAX], block / f->fact[NESTED_BLOCK]);
    return scaled + f->input_scale; /* the offset; one rounding each, no fma */
}

static void take_row_4bit(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct qni_source *x = arg;
    struct qn_weight *w = x->w;
    const int64_t start = (x->first + row) * w->k;
    const int64_t group = w->format.group > 0 ? w->format.group : w->k;
    const uint8_t *from = x->f->part[WEIGHT].data;
    uint8_t *codes = w->codes + row * w->k;
    for (int64_t i = 0; i < w->k; i++)
        codes[i] = from[(start + i) / 2] >> ((start + i) % 2 == 0 ? 4 : 0) & 15;
    for (int64_t g = 0; g < w->n_groups; g++)
        w->scale[row * w->n_groups + g] = absmax_of(x->f, (start + g * group) / x->f->fact[BLOCK]);
    rounding->groups += w->n_groups;
}

static qn_status load_4bit(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                           struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    (void)err;
    if (w->k > 0)
        qni_import_weight(ctx, found, first, w, take_row_4bit, rounding);
    return QN_OK;
}

/* ---- LLM.int8 -------------------------------------------------------------------------------- */

static bool heads_int8(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    struct qni_tensor t;
    return head->dtype == QN_I8 && head->rank == 2 && qni_checkpoint_part(c, stem, ".SCB", &t);
}

static qn_status find_int8(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                           qn_error *err)
{
    const struct qni_tensor *w = &found->part[WEIGHT], *format = &found->part[FORMAT];
    (void)c;
    (void)stem;
    found->parts.n = w->shape[0];
    found->parts.k = w->shape[1];
    if (format->data != NULL && (format->dtype != QN_U8 || format->bytes != 1))
        return qni_fail(err, QN_E_DTYPE, "its weight_format is no byte");
    if (format->data != NULL && format->data[0] != 0)
        return qni_fail(
            err, QN_E_FORMAT,
            "weight_format %d is an order of old GPUs, which bitsandbytes gave up; save "
            "the model again with a newer one",
            (int)format->data[0]);
    if (!is_vector(&found->part[SCB], QN_F32, found->parts.n))
        return qni_fail(err, QN_E_SHAPE, "SCB should be %lld numbers of type f32",
                        (long long)found->parts.n);
    found->parts.format.code = QN_CODE_INT;
    found->parts.format.bits = 8;
    found->parts.format.group = QN_GROUP_PER_CHANNEL;
    found->parts.format.scale_dtype = QN_F32;
    found->role = QN_ROLE_LINEAR;
    found->activation = QN_ACTIVATION_OTHER;
    qni_note(&found->notes, "format: int8, a scale an output: SCB / 127, SCB being the largest "
                            "magnitude of a row");
    qni_note(&found->notes, "activations: int8 a row, but for columns of outliers, which "
                            "bitsandbytes multiplies in f16");
    qni_note(&found->notes, "exact: codes; scales are rounded once to f32 (loading counts them)");
    return QN_OK;
}

static void take_row_int8(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct qni_source *x = arg;
    struct qn_weight *w = x->w;
    const int64_t n = x->first + row;
    const uint8_t *from = x->f->part[WEIGHT].data + n * w->k;
    const float most = float_at(&x->f->part[SCB], n);
    for (int64_t i = 0; i < w->k; i++)
        w->codes[row * w->k + i] = from[i] ^ 0x80;
    w->scale[row] = (float)((double)most / 127.0);
    rounding->rounded += (double)w->scale[row] * 127.0 != (double)most;
    rounding->groups++;
}

static qn_status load_int8(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                           struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    (void)err;
    qni_import_weight(ctx, found, first, w, take_row_int8, rounding);
    return QN_OK;
}

const struct qni_importer qni_import_bnb_4bit = {
    .name = "bitsandbytes",
    .parts = {".weight", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax",
              ".weight.nested_quant_map", ".weight.quant_state.bitsandbytes__nf4",
              ".weight.quant_state.bitsandbytes__fp4"},
    .named = ".weight",
    .heads = heads_4bit,
    .find = find_4bit,
    .load = load_4bit,
};

const struct qni_importer qni_import_bnb_int8 = {
    .name = "bitsandbytes",
    .parts = {".weight", ".SCB", ".weight_format"},
    .named = ".weight",
    .heads = heads_int8,
    .find = find_int8,
    .load = load_int8,
};
