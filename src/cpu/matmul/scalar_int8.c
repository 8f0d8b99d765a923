/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x packed codes in portable C: the definition that every other int8 kernel
 * matches bit for bit. Contract and operand layouts: kernel.h; the float steps: docs/numerics.md.
 *
 *     per segment   dot = sum(u a) - bias * sum(a),   u the codes as stored, unsigned
 *
 * Codes are widened once for all rows of a block to pairs of int16, in the order in which they lie
 * in their words: (0, 2) and (1, 3) of four positions. A product of pairs is then one step of the
 * baseline instruction set (simd/portable.h), exact in int32: 2 * 255 * 128 a step, 255 * 128 *
 * 32768 < 2^31 in all. Bound: 8 products of int8 a step, about 2.5 an instruction with the
 * broadcasts. */
#include <stddef.h>

#include "../../base/exact.h"
#include "../simd/portable.h"
#include "kernel.h"

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2 };
enum {
    ROWS = 32,       /* of a block: codes are widened once for so many */
    CHUNK_UNITS = 4, /* widened at a time: 4 KiB of codes, 16 KiB of activations */
    MR = 2,          /* rows whose sums stay in 8 registers */
    QUADS = QNI_UNIT / 4
};

/* Four positions of 16 outputs as pairs: [pair][output]. */
struct quad {
    int32_t pair[2][QNI_PANEL];
};

/* What a chunk of a segment is made of. */
struct chunk {
    struct quad codes[CHUNK_UNITS * QUADS];
    int32_t rows[ROWS][2][CHUNK_UNITS * QUADS]; /* [row][pair][quad] */
};

QNI_TEMPLATE void widen_words(struct quad *q, const uint8_t *words, int shift, uint32_t mask)
{
    QNI_UNROLL
    for (int j = 0; j < QNI_PANEL; j += 4) {
        const qni_u32x4 w = (qni_u32x4)qni_i32x4_load(words + 4 * j) >> shift;
        qni_i32x4_store(&q->pair[0][j], (qni_i32x4)(w & mask));
        qni_i32x4_store(&q->pair[1][j], (qni_i32x4)(w >> 8 & mask));
    }
}

static void widen_table(struct quad *q, const uint8_t *words, int shift, const int8_t *table)
{
    for (int j = 0; j < QNI_PANEL; j++)
        for (int pair = 0; pair < 2; pair++) {
            const int32_t low = table[words[4 * j + pair] >> shift & 15];
            const int32_t high = table[words[4 * j + pair + 2] >> shift & 15];
            q->pair[pair][j] = (int32_t)((uint32_t)high << 16 | ((uint32_t)low & 0xffffu));
        }
}

QNI_TEMPLATE void widen_codes(struct chunk *chunk, const uint8_t *codes, int64_t units,
                              const int kind, const int8_t *table)
{
    for (int64_t u = 0; u < units; u++) {
        struct quad *const q = chunk->codes + u * QUADS;
        for (int r = 0; r < (kind == BYTES ? 8 : 4); r++, codes += 64) {
            if (kind == BYTES) {
                widen_words(&q[r], codes, 0, 0x00ff00ffu);
            } else if (kind == NIBBLES) {
                widen_words(&q[r], codes, 0, 0x000f000fu);
                widen_words(&q[r + 4], codes, 4, 0x000f000fu);
            } else {
                widen_table(&q[r], codes, 0, table);
                widen_table(&q[r + 4], codes, 4, table);
            }
        }
    }
}

/* The int8 codes of a row in the same pairs: a word of two bytes is both of them, shifted. */
static void widen_row(int32_t out[2][CHUNK_UNITS * QUADS], const int8_t *a, int64_t units)
{
    for (int64_t i = 0; i < units * QUADS; i += 4) {
        const qni_i16x8 two = (qni_i16x8)qni_i32x4_load(a + 4 * i);
        const qni_i16x8 even = (qni_i16x8)((qni_u16x8)two << 8) >> 8;
        qni_i32x4_store(&out[0][i], (qni_i32x4)even);
        qni_i32x4_store(&out[1][i], (qni_i32x4)(two >> 8));
    }
}

/* dot[i][j] += sum over the chunk of u * a, for mr rows and 16 outputs. */
QNI_TEMPLATE void dot_rows(const struct chunk *chunk, int64_t row, int64_t quads, const int mr,
                           int32_t (*dot)[QNI_PANEL])
{
    qni_i32x4 sum[MR][4];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < 4; j++)
        sum[i][j] = qni_i32x4_load(&dot[i][4 * j]);
    for (int64_t q = 0; q < quads; q++)
        QNI_UNROLL
    for (int pair = 0; pair < 2; pair++) {
        qni_i32x4 a[MR];
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            a[i] = qni_i32x4_set(chunk->rows[row + i][pair][q]);
        QNI_UNROLL
        for (int j = 0; j < 4; j++) {
            const qni_i32x4 w = qni_i32x4_load(&chunk->codes[q].pair[pair][4 * j]);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                sum[i][j] += qni_i16x8_dot(w, a[i]);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < 4; j++)
        qni_i32x4_store(&dot[i][4 * j], sum[i][j]);
}

static void dot_chunk(const struct chunk *chunk, int64_t rows, int64_t units,
                      int32_t (*dot)[QNI_PANEL])
{
    int64_t i = 0;
    for (; i + MR <= rows; i += MR)
        dot_rows(chunk, i, units * QUADS, MR, dot + i);
    for (; i < rows; i++)
        dot_rows(chunk, i, units * QUADS, 1, dot + i);
}

/* The 16 scales, offsets or sums of one segment, as floats. */
struct segment {
    float scale[QNI_PANEL], offset[QNI_PANEL];
    const int32_t *sums;
    int32_t count;
};

static void load16(float out[QNI_PANEL], const void *rows, int64_t i, int32_t is_f16)
{
    if (!is_f16)
        memcpy(out, (const float *)rows + i * QNI_PANEL, QNI_PANEL * sizeof *out);
    else
        for (int j = 0; j < QNI_PANEL; j++)
            out[j] = qni_f32_from_f16(((const uint16_t *)rows)[i * QNI_PANEL + j]);
}

/* Four sums of the segment, corrected for the zero point of x. */
QNI_TEMPLATE qni_i32x4 without_zero(const struct qni_matmul_tile *t, const struct segment *s,
                                    const int32_t *dot, int j)
{
    const qni_i32x4 d = qni_i32x4_load(dot + j);
    return t->x_zero == 0 ? d : d - t->x_zero * qni_i32x4_load(s->sums + j);
}

static void add_q8(const struct qni_matmul_tile *t, const struct segment *s, const int32_t *dot,
                   size_t fact, float *c)
{
    const int32_t zero = t->x_zero != 0 && t->offset != NULL ? t->x_zero * s->count : 0;
    const qni_f32x4 sum = qni_f32x4_set((float)(t->a_sum[fact] - zero));
    for (int j = 0; j < QNI_PANEL; j += 4) {
        const qni_i32x4 d = without_zero(t, s, dot, j);
        if (t->raw_i32) {
            qni_i32x4_store(c + j, qni_i32x4_load(c + j) + d);
            continue;
        }
        qni_f32x4 v =
            qni_f32x4_fma(qni_f32x4_load(s->scale + j), qni_f32x4_from(d), qni_f32x4_load(c + j));
        if (t->offset != NULL)
            v = qni_f32x4_fma(qni_f32x4_load(s->offset + j), sum, v);
        qni_f32x4_store(c + j, v);
    }
}

static void add_q8b(const struct qni_matmul_tile *t, const struct segment *s, const int32_t *dot,
                    size_t fact, float *c)
{
    const qni_f32x4 scale = qni_f32x4_set(t->a_scale[fact]);
    for (int j = 0; j < QNI_PANEL; j += 4) {
        const qni_f32x4 d = qni_f32x4_from(qni_i32x4_load(dot + j));
        qni_f32x4 term;
        if (t->a_offset == NULL) {
            term = scale * d;
        } else {
            const qni_f32x4 sums = qni_f32x4_from(qni_i32x4_load(s->sums + j));
            term = qni_f32x4_fma(scale, d, qni_f32x4_set(t->a_offset[fact]) * sums);
        }
        qni_f32x4 v = qni_f32x4_fma(qni_f32x4_load(s->scale + j), term, qni_f32x4_load(c + j));
        if (t->offset != NULL)
            v = qni_f32x4_fma(qni_f32x4_load(s->offset + j), qni_f32x4_set(t->a_total[fact]), v);
        qni_f32x4_store(c + j, v);
    }
}

/* Where a segment is. */
struct segment_place {
    int64_t panel, row, rows, segment, unit, units;
};

/* One segment of one panel for a block of rows. */
QNI_TEMPLATE void add_segment(const struct qni_matmul_tile *t, const struct segment_place *at,
                              const struct segment *s, const int kind, const int reads)
{
    struct chunk chunk;
    int32_t dot[ROWS][QNI_PANEL];
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const int32_t bias = kind == NIBBLES ? 8 : kind == BYTES ? 128 : 0;
    const uint8_t *codes = t->codes + (size_t)at->panel * t->codes_stride + at->unit * unit_bytes;
    const int8_t *a = (const int8_t *)t->a + (size_t)at->row * t->lda + at->unit * QNI_UNIT;
    const size_t fact = (size_t)at->row * t->ld_segment + (size_t)at->segment;
    for (int64_t i = 0; i < at->rows; i++)
        for (int j = 0; j < QNI_PANEL; j++)
            dot[i][j] = -bias * t->a_sum[fact + (size_t)i * t->ld_segment];
    for (int64_t u = 0; u < at->units; u += CHUNK_UNITS) {
        const int64_t n = at->units - u < CHUNK_UNITS ? at->units - u : CHUNK_UNITS;
        widen_codes(&chunk, codes + u * unit_bytes, n, kind, t->table8);
        for (int64_t i = 0; i < at->rows; i++)
            widen_row(chunk.rows[i], a + (size_t)i * t->lda + u * QNI_UNIT, n);
        dot_chunk(&chunk, at->rows, n, dot);
    }
    float *c = t->c + (size_t)at->row * t->ldc + (size_t)at->panel * QNI_PANEL;
    for (int64_t i = 0; i < at->rows; i++, c += t->ldc) {
        if (reads == QNI_READS_Q8)
            add_q8(t, s, dot[i], fact + (size_t)i * t->ld_segment, c);
        else
            add_q8b(t, s, dot[i], fact + (size_t)i * t->ld_segment, c);
    }
}

QNI_TEMPLATE void panel_rows(const struct qni_matmul_tile *t, struct segment_place at,
                             const int kind, const int reads)
{
    struct segment s;
    for (int64_t i = 0; i < at.rows; i++)
        memset(t->c + (size_t)(at.row + i) * t->ldc + (size_t)at.panel * QNI_PANEL, 0,
               QNI_PANEL * sizeof *t->c);
    for (int64_t g = 0; g < t->n_groups; g++) {
        const int64_t left = t->units - at.unit;
        const int64_t end = at.unit + (left < t->group_units ? left : t->group_units);
        load16(s.scale, t->scale, at.panel * t->n_groups + g, t->scale_is_f16);
        for (int j = 0; kind == NIBBLE_TABLE && t->table8_doubled && j < QNI_PANEL; j++)
            s.scale[j] *= 0.5f;
        if (t->offset != NULL)
            load16(s.offset, t->offset, at.panel * t->n_groups + g, t->scale_is_f16);
        for (; at.unit < end; at.segment++, at.unit += at.units) {
            at.units = end - at.unit < t->segment_units ? end - at.unit : t->segment_units;
            s.sums = t->sums == NULL
                         ? NULL
                         : t->sums + (at.panel * t->n_segments + at.segment) * QNI_PANEL;
            s.count = reads == QNI_READS_Q8 && t->x_zero != 0 && t->offset != NULL
                          ? t->counts[at.segment]
                          : 0;
            add_segment(t, &at, &s, kind, reads);
        }
    }
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind, const int reads)
{
    for (int64_t panel = 0; panel < t->n_panels; panel++)
        for (int64_t row = 0; row < t->m; row += ROWS) {
            const struct segment_place at = {panel, row, t->m - row < ROWS ? t->m - row : ROWS,
                                             0,     0,   0};
            panel_rows(t, at, kind, reads);
        }
}

void qni_matmul_q8_q4n16_mr2_scalar(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES, QNI_READS_Q8);
}
void qni_matmul_q8_t4n16_mr2_scalar(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE, QNI_READS_Q8);
}
void qni_matmul_q8_q8n16_mr2_scalar(const struct qni_matmul_tile *t)
{
    tile(t, BYTES, QNI_READS_Q8);
}
void qni_matmul_q8b_q4n16_mr2_scalar(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES, QNI_READS_Q8B);
}
void qni_matmul_q8b_t4n16_mr2_scalar(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE, QNI_READS_Q8B);
}
void qni_matmul_q8b_q8n16_mr2_scalar(const struct qni_matmul_tile *t)
{
    tile(t, BYTES, QNI_READS_Q8B);
}
