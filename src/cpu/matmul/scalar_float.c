/* SPDX-License-Identifier: Apache-2.0 */
/* f32 activations x packed codes, or weights that are floats, in portable C. Contract and operand
 * layouts: kernel.h.
 *
 * Two ways, by the number of rows.
 *   few rows    codes become floats in registers, four outputs at a time, and meet the activations
 *               at once:  y = sum over groups of  scale * (sum a * value) + offset * (sum a).
 *   more rows   a chunk of a panel is made floats, scale and offset included, and multiplied with
 *               all rows of the job like any dense matrix:  y = sum a * fma(scale, value, offset).
 * Codebooks take the second way only: looking a value up costs more than storing it. So do floats.
 *
 * Rounding: values are exact in f32 (integers of 8 bits, table entries), so that each way has one
 * rounding a weight or group besides those of the products and sums.
 * Bound: 4 multiply-adds in two instructions (the baseline has no fused one). */
#include <stdbool.h>
#include <stddef.h>

#include "../../base/exact.h"
#include "../simd/portable.h"
#include "kernel.h"

enum {
    NIBBLES = 0,
    NIBBLE_TABLE = 1,
    BYTES = 2,
    BYTE_TABLE = 3,
    HALVES = 4, /* floats: f16 */
    BRAINS = 5, /* bf16 */
    FLOATS = 6
};
enum {
    FEW = 2,         /* rows of the first way: 16 registers hold their sums */
    MR = 3,          /* rows of the second: 12 sums in registers */
    CHUNK_UNITS = 4, /* 8 KiB of floats, in the first-level cache with a few rows */
    CHUNK = CHUNK_UNITS * QNI_UNIT
};

static void load16(float out[QNI_PANEL], const void *rows, int64_t i, int32_t is_f16)
{
    if (!is_f16)
        memcpy(out, (const float *)rows + i * QNI_PANEL, QNI_PANEL * sizeof *out);
    else
        for (int j = 0; j < QNI_PANEL; j++)
            out[j] = qni_f32_from_f16(((const uint16_t *)rows)[i * QNI_PANEL + j]);
}

/* The signed code of `bits` bits whose lowest bit is `at` of every word; stored codes are unsigned,
 * and flipping their highest bit (flip) makes them signed. */
QNI_TEMPLATE qni_i32x4 signed_code(qni_i32x4 words, const int at, const int bits)
{
    return (qni_i32x4)((qni_u32x4)words << (32 - bits - at)) >> (32 - bits);
}

QNI_TEMPLATE qni_i32x4 load_words(const uint8_t *words, const int kind)
{
    const uint32_t flip = kind == NIBBLES ? 0x88888888u : 0x80808080u;
    return qni_i32x4_load(words) ^ (int32_t)flip;
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* Position p of row i of a unit times the codes of four outputs. */
struct few {
    qni_f32x4 dot[FEW][4]; /* of a group */
    qni_f32x4 sum[FEW];    /* of a group: of a, in four parts */
};

QNI_TEMPLATE void few_unit(struct few *f, const uint8_t *codes, const float *const a[FEW],
                           const int mr, const int kind)
{
    const int bits = kind == NIBBLES ? 4 : 8;
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int p = 0; p < QNI_UNIT; p += 4)
        f->sum[i] += qni_f32x4_load(a[i] + p);
    for (int r = 0; r < (kind == NIBBLES ? 4 : 8); r++, codes += 64)
        QNI_UNROLL
    for (int j = 0; j < 4; j++) {
        const qni_i32x4 words = load_words(codes + 16 * j, kind);
        QNI_UNROLL
        for (int b = 0; b < 4; b++) {
            const qni_f32x4 low = qni_f32x4_from(signed_code(words, 8 * b, bits));
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                f->dot[i][j] += low * qni_f32x4_set(a[i][4 * r + b]);
            if (kind == NIBBLES) {
                const qni_f32x4 high = qni_f32x4_from(signed_code(words, 8 * b + 4, bits));
                QNI_UNROLL
                for (int i = 0; i < mr; i++)
                    f->dot[i][j] += high * qni_f32x4_set(a[i][16 + 4 * r + b]);
            }
        }
    }
}

QNI_TEMPLATE void few_rows(const struct qni_matmul_tile *t, int64_t panel, const int mr,
                           const int kind)
{
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    const float *a[FEW];
    qni_f32x4 c[FEW][4];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        a[i] = (const float *)(const void *)((const char *)t->a + (size_t)i * t->lda);
        QNI_UNROLL
        for (int j = 0; j < 4; j++)
            c[i][j] = qni_f32x4_set(0.0f);
    }
    for (int64_t g = 0, unit = 0; g < t->n_groups; g++) {
        const int64_t left = t->units - unit;
        const int64_t end = unit + (left < t->group_units ? left : t->group_units);
        struct few f;
        memset(&f, 0, sizeof f);
        for (; unit < end; unit++, codes += kind == NIBBLES ? 256 : 512) {
            few_unit(&f, codes, (const float *const *)a, mr, kind);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                a[i] += QNI_UNIT;
        }
        float scale[QNI_PANEL], offset[QNI_PANEL];
        load16(scale, t->scale, panel * t->n_groups + g, t->scale_is_f16);
        if (t->offset != NULL)
            load16(offset, t->offset, panel * t->n_groups + g, t->scale_is_f16);
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const float sum = (f.sum[i][0] + f.sum[i][1]) + (f.sum[i][2] + f.sum[i][3]);
            QNI_UNROLL
            for (int j = 0; j < 4; j++) {
                c[i][j] += qni_f32x4_load(scale + 4 * j) * f.dot[i][j];
                if (t->offset != NULL)
                    c[i][j] += qni_f32x4_load(offset + 4 * j) * qni_f32x4_set(sum);
            }
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < 4; j++)
        qni_f32x4_store(t->c + (size_t)i * t->ldc + panel * QNI_PANEL + 4 * j, c[i][j]);
}

/* ---- more rows ------------------------------------------------------------------------------- */

/* A chunk of a panel, dense: [position][output]. */
struct dense {
    float w[CHUNK][QNI_PANEL];
};

/* Scale and offset of a group, and the codebook. */
struct group {
    float scale[QNI_PANEL], offset[QNI_PANEL];
    const float *table;
};

QNI_TEMPLATE void expand_position(float *w, const uint8_t *words, const int b, const int shift,
                                  const struct group *g, const int kind)
{
    const int bits = kind == NIBBLES || kind == NIBBLE_TABLE ? 4 : 8;
    if (kind == NIBBLE_TABLE || kind == BYTE_TABLE) {
        for (int j = 0; j < QNI_PANEL; j++)
            w[j] = g->table[words[4 * j + b] >> shift & ((1 << bits) - 1)];
        QNI_UNROLL
        for (int j = 0; j < QNI_PANEL; j += 4)
            qni_f32x4_store(w + j, qni_f32x4_load(w + j) * qni_f32x4_load(g->scale + j) +
                                       qni_f32x4_load(g->offset + j));
        return;
    }
    QNI_UNROLL
    for (int j = 0; j < QNI_PANEL; j += 4) {
        const qni_i32x4 code = signed_code(load_words(words + 4 * j, kind), 8 * b + shift, bits);
        qni_f32x4_store(w + j, qni_f32x4_from(code) * qni_f32x4_load(g->scale + j) +
                                   qni_f32x4_load(g->offset + j));
    }
}

/* Floats are as they are; those of 16 bits become wider. */
QNI_TEMPLATE void expand_floats(struct dense *d, const uint8_t *at, int64_t units, const int kind)
{
    for (int64_t p = 0; p < units * QNI_UNIT && kind != BRAINS; p++)
        for (int j = 0; j < QNI_PANEL; j++, at += kind == FLOATS ? 4 : 2) {
            uint16_t half;
            if (kind == FLOATS) {
                memcpy(&d->w[p][j], at, sizeof d->w[p][j]);
                continue;
            }
            memcpy(&half, at, sizeof half);
            d->w[p][j] = qni_f32_from_f16(half);
        }
    for (int64_t p = 0; p < units * QNI_UNIT && kind == BRAINS; p += p % 4 == 1 ? 3 : 1)
        for (int j = 0; j < QNI_PANEL; j++, at += 4) { /* p and p + 2 */
            uint16_t pair[2];
            memcpy(pair, at, sizeof pair);
            d->w[p][j] = qni_f32_from_bf16(pair[0]);
            d->w[p + 2][j] = qni_f32_from_bf16(pair[1]);
        }
}

QNI_TEMPLATE void expand(struct dense *d, const uint8_t *codes, int64_t units,
                         const struct group *g, const int kind)
{
    const bool nibbles = kind == NIBBLES || kind == NIBBLE_TABLE;
    if (kind >= HALVES) {
        expand_floats(d, codes, units, kind);
        return;
    }
    for (int64_t u = 0; u < units; u++) {
        float(*const w)[QNI_PANEL] = d->w + u * QNI_UNIT;
        for (int r = 0; r < (nibbles ? 4 : 8); r++, codes += 64)
            QNI_UNROLL
        for (int b = 0; b < 4; b++) {
            expand_position(w[4 * r + b], codes, b, 0, g, kind);
            if (nibbles)
                expand_position(w[16 + 4 * r + b], codes, b, 4, g, kind);
        }
    }
}

/* mr rows of c += a * w, positions in ascending order. */
QNI_TEMPLATE void multiply_rows(const struct dense *d, const char *a, size_t lda, int64_t n,
                                const int mr, float *c, size_t ldc)
{
    qni_f32x4 sum[MR][4];
    const float *row[MR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        row[i] = (const float *)(const void *)(a + (size_t)i * lda);
        QNI_UNROLL
        for (int j = 0; j < 4; j++)
            sum[i][j] = qni_f32x4_load(c + (size_t)i * ldc + 4 * j);
    }
    for (int64_t p = 0; p < n; p++) {
        qni_f32x4 x[MR];
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            x[i] = qni_f32x4_set(row[i][p]);
        QNI_UNROLL
        for (int j = 0; j < 4; j++) {
            const qni_f32x4 w = qni_f32x4_load(&d->w[p][4 * j]);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                sum[i][j] += w * x[i];
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < 4; j++)
        qni_f32x4_store(c + (size_t)i * ldc + 4 * j, sum[i][j]);
}

static void multiply(const struct qni_matmul_tile *t, const struct dense *d, int64_t panel,
                     int64_t unit, int64_t units)
{
    const char *a = (const char *)t->a + (size_t)unit * QNI_UNIT * sizeof(float);
    float *c = t->c + panel * QNI_PANEL;
    int64_t i = 0;
    for (; i + MR <= t->m; i += MR, a += MR * t->lda, c += MR * t->ldc)
        multiply_rows(d, a, t->lda, units * QNI_UNIT, MR, c, t->ldc);
    for (; i < t->m; i++, a += t->lda, c += t->ldc)
        multiply_rows(d, a, t->lda, units * QNI_UNIT, 1, c, t->ldc);
}

QNI_TEMPLATE void more_rows(const struct qni_matmul_tile *t, int64_t panel, const int kind)
{
    const int64_t unit_bytes = kind == FLOATS                            ? 2048
                               : kind >= HALVES                          ? 1024
                               : kind == NIBBLES || kind == NIBBLE_TABLE ? 256
                                                                         : 512;
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    struct dense d;
    struct group group;
    group.table = t->table;
    memset(group.offset, 0, sizeof group.offset);
    for (int64_t i = 0; i < t->m; i++)
        memset(t->c + (size_t)i * t->ldc + panel * QNI_PANEL, 0, QNI_PANEL * sizeof *t->c);
    for (int64_t g = 0, unit = 0; g < t->n_groups; g++) {
        const int64_t left = t->units - unit;
        const int64_t end = unit + (left < t->group_units ? left : t->group_units);
        load16(group.scale, t->scale, panel * t->n_groups + g, t->scale_is_f16);
        if (t->offset != NULL)
            load16(group.offset, t->offset, panel * t->n_groups + g, t->scale_is_f16);
        while (unit < end) {
            const int64_t n = end - unit < CHUNK_UNITS ? end - unit : CHUNK_UNITS;
            expand(&d, codes, n, &group, kind);
            multiply(t, &d, panel, unit, n);
            codes += n * unit_bytes;
            unit += n;
        }
    }
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        if (t->m == 1 && (kind == NIBBLES || kind == BYTES))
            few_rows(t, panel, 1, kind);
        else if (t->m == 2 && (kind == NIBBLES || kind == BYTES))
            few_rows(t, panel, 2, kind);
        else
            more_rows(t, panel, kind);
    }
}

void qni_matmul_f32_q4n16_mr3_scalar(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_f32_t4n16_mr3_scalar(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE);
}
void qni_matmul_f32_q8n16_mr3_scalar(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
void qni_matmul_f32_t8n16_mr3_scalar(const struct qni_matmul_tile *t)
{
    tile(t, BYTE_TABLE);
}
void qni_matmul_f32_h16n16_mr3_scalar(const struct qni_matmul_tile *t)
{
    tile(t, HALVES);
}
void qni_matmul_f32_b16n16_mr3_scalar(const struct qni_matmul_tile *t)
{
    tile(t, BRAINS);
}
void qni_matmul_f32_f32n16_mr3_scalar(const struct qni_matmul_tile *t)
{
    tile(t, FLOATS);
}
