/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights on NEON: everything but the integer products, which
 * differ between instruction sets. Contract and operand layouts: matmul/kernel.h; float steps:
 * docs/numerics.md.
 *
 * Parameters, defined by the including file before and undefined here at the end:
 *   QNI_NEON_NAME(kind)   the kernel's name from its reads_layout part, e.g. q8_q4n16
 *   QNI_NEON_MR           rows in registers at a time, 1 to 8
 *   dot_units()           a QNI_TEMPLATE function of the including file:
 *                         void dot_units(const uint8_t *codes, const int8_t *const *rows, int64_t
 *                         units,
 *                                        const int mr, const int kind, int8x16_t table, struct
 *                                        qni_i32x16 *dot)
 *                         dot[i] = sum of value * activation over `units` units; rows[i] points at
 *                         the first. Exact. */
#ifndef QNI_NEON_NAME
#error "define the parameters first"
#endif

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2 };

/* 16 signed values of a vector of codes: nibbles lie in the low halves already. */
QNI_TEMPLATE int8x16_t value_of(uint8x16_t code, const int kind, int8x16_t table)
{
    if (kind == NIBBLE_TABLE)
        return vqtbl1q_s8(table, code);
    if (kind == BYTES)
        return vreinterpretq_s8_u8(veorq_u8(code, vdupq_n_u8(0x80)));
    return vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(8));
}

QNI_TEMPLATE void dot_units(const uint8_t *codes, const int8_t *const *rows, int64_t units,
                            const int mr, const int kind, int8x16_t table, struct qni_i32x16 *dot);

struct at {
    int64_t panel, row, group, segment;
};

QNI_TEMPLATE void add_q8(const struct qni_matmul_tile *t, struct at at,
                         const struct qni_i32x16 *dot, const struct qni_f32x16 *scale, const int mr,
                         struct qni_f32x16 *acc)
{
    const int32_t *const sums =
        t->sums == NULL ? NULL : t->sums + (at.panel * t->n_segments + at.segment) * 16;
    for (int i = 0; i < mr; i++) {
        const size_t f = (size_t)(at.row + i) * t->ld_segment + (size_t)at.segment;
        struct qni_f32x16 offset = {
            {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)}};
        float32x4_t sum = vdupq_n_f32(0);
        if (t->offset != NULL) {
            const int32_t zero = t->x_zero == 0 ? 0 : t->x_zero * t->counts[at.segment];
            offset = qni_load16(t->offset, at.panel * t->n_groups + at.group, t->scale_is_f16);
            sum = vdupq_n_f32((float)(t->a_sum[f] - zero));
        }
        for (int q = 0; q < 4; q++) {
            int32x4_t d = dot[i].v[q];
            if (t->x_zero != 0)
                d = vmlsq_n_s32(d, vld1q_s32(sums + 4 * q), t->x_zero);
            if (t->raw_i32) {
                acc[i].v[q] =
                    vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(acc[i].v[q]), d));
                continue;
            }
            acc[i].v[q] = vfmaq_f32(acc[i].v[q], scale->v[q], vcvtq_f32_s32(d));
            if (t->offset != NULL)
                acc[i].v[q] = vfmaq_f32(acc[i].v[q], offset.v[q], sum);
        }
    }
}

QNI_TEMPLATE void add_q8b(const struct qni_matmul_tile *t, struct at at,
                          const struct qni_i32x16 *dot, const struct qni_f32x16 *scale,
                          const int mr, struct qni_f32x16 *acc)
{
    const int32_t *const sums =
        t->sums == NULL ? NULL : t->sums + (at.panel * t->n_segments + at.segment) * 16;
    for (int i = 0; i < mr; i++) {
        const size_t f = (size_t)(at.row + i) * t->ld_segment + (size_t)at.segment;
        const float32x4_t sx = vdupq_n_f32(t->a_scale[f]);
        struct qni_f32x16 offset = {
            {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)}};
        if (t->offset != NULL)
            offset = qni_load16(t->offset, at.panel * t->n_groups + at.group, t->scale_is_f16);
        for (int q = 0; q < 4; q++) {
            const float32x4_t d = vcvtq_f32_s32(dot[i].v[q]);
            const float32x4_t term =
                t->a_offset == NULL ? vmulq_f32(sx, d)
                                    : vfmaq_f32(vmulq_f32(vdupq_n_f32(t->a_offset[f]),
                                                          vcvtq_f32_s32(vld1q_s32(sums + 4 * q))),
                                                sx, d);
            acc[i].v[q] = vfmaq_f32(acc[i].v[q], scale->v[q], term);
            if (t->offset != NULL)
                acc[i].v[q] = vfmaq_f32(acc[i].v[q], offset.v[q], vdupq_n_f32(t->a_total[f]));
        }
    }
}

/* mr rows of one panel, all of k. */
QNI_TEMPLATE void panel_rows(const struct qni_matmul_tile *t, int64_t panel, int64_t row,
                             const int mr, const int kind, const int reads)
{
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const uint8_t *const codes = t->codes + (size_t)panel * t->codes_stride;
    const int8x16_t table = kind == NIBBLE_TABLE ? vld1q_s8(t->table8) : vdupq_n_s8(0);
    struct qni_f32x16 acc[QNI_NEON_MR];
    for (int i = 0; i < mr; i++)
        for (int q = 0; q < 4; q++)
            acc[i].v[q] = vdupq_n_f32(0);
    struct at at = {panel, row, 0, 0};
    for (int64_t unit = 0; at.group < t->n_groups; at.group++) {
        const int64_t left = t->units - unit,
                      end = unit + (left < t->group_units ? left : t->group_units);
        struct qni_f32x16 scale =
            qni_load16(t->scale, panel * t->n_groups + at.group, t->scale_is_f16);
        if (kind == NIBBLE_TABLE && t->table8_doubled)
            for (int q = 0; q < 4; q++)
                scale.v[q] = vmulq_n_f32(scale.v[q], 0.5f);
        for (; unit < end; at.segment++) {
            const int64_t n = end - unit < t->segment_units ? end - unit : t->segment_units;
            const int8_t *rows[QNI_NEON_MR];
            struct qni_i32x16 dot[QNI_NEON_MR];
            for (int i = 0; i < mr; i++)
                rows[i] = (const int8_t *)t->a + (size_t)(row + i) * t->lda + unit * QNI_UNIT;
            dot_units(codes + unit * unit_bytes, rows, n, mr, kind, table, dot);
            if (reads == QNI_READS_Q8)
                add_q8(t, at, dot, &scale, mr, acc);
            else
                add_q8b(t, at, dot, &scale, mr, acc);
            unit += n;
        }
    }
    for (int i = 0; i < mr; i++)
        for (int q = 0; q < 4; q++)
            vst1q_f32(t->c + (size_t)(row + i) * t->ldc + (size_t)panel * QNI_PANEL + 4 * q,
                      acc[i].v[q]);
}

QNI_TEMPLATE void tile_rows(const struct qni_matmul_tile *t, const int kind, const int reads)
{
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        int64_t row = 0;
        for (; row + QNI_NEON_MR <= t->m; row += QNI_NEON_MR)
            panel_rows(t, panel, row, QNI_NEON_MR, kind, reads);
        for (; row + 2 <= t->m; row += 2)
            panel_rows(t, panel, row, 2, kind, reads);
        if (row < t->m)
            panel_rows(t, panel, row, 1, kind, reads);
    }
}

void QNI_NEON_NAME(q8_q4n16)(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLES, QNI_READS_Q8);
}
void QNI_NEON_NAME(q8_t4n16)(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLE_TABLE, QNI_READS_Q8);
}
void QNI_NEON_NAME(q8_q8n16)(const struct qni_matmul_tile *t)
{
    tile_rows(t, BYTES, QNI_READS_Q8);
}
void QNI_NEON_NAME(q8b_q4n16)(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLES, QNI_READS_Q8B);
}
void QNI_NEON_NAME(q8b_t4n16)(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLE_TABLE, QNI_READS_Q8B);
}
void QNI_NEON_NAME(q8b_q8n16)(const struct qni_matmul_tile *t)
{
    tile_rows(t, BYTES, QNI_READS_Q8B);
}

#undef QNI_NEON_NAME
#undef QNI_NEON_MR
