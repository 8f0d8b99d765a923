/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with AVX-512 VNNI. Contract and operand layouts:
 * kernel.h.
 *
 * vpdpbusd multiplies unsigned by signed bytes and adds four products to an int32 lane. The packed
 * codes are unsigned, u = w + bias (8 for nibbles, 128 for bytes and for tables of integers), so
 * they are the unsigned operand as stored and the bias comes off once per segment:   sum(w a) =
 * sum(u a) - bias * sum(a). 255 * 128 * 32768 < 2^31: no segment overflows, and integer sums are
 * exact in any order.
 *
 * One panel (16 outputs) fills one vector; `mr` rows of activations share each unpacked vector,
 * each row's four bytes arriving through a broadcast from memory. A row of fewer than three needs
 * several accumulators a row to hide the 5 cycles of vpdpbusd. Bound: bytes of the codes /
 * bandwidth for m up to about 8, then 2 m n k / (128 operations x 2 a cycle). */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2 }; /* how codes become unsigned bytes */
enum { MR = 8, AHEAD = 2048 };                     /* bytes: about 100 ns of one core's stream */

struct rows {
    const int8_t *a[MR];
};

/* Four unsigned codes a lane, positions 4 r .. 4 r + 3 (low) and 16 + 4 r .. (high) of a unit. */
QNI_TEMPLATE void unpack_nibbles(const uint8_t *codes, int r, const int kind, __m512i table,
                                 __m512i *low, __m512i *high)
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i v = _mm512_loadu_si512(codes + 64 * r);
    *low = _mm512_and_si512(v, nibble);
    *high = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
    if (kind == NIBBLE_TABLE) {
        *low = _mm512_shuffle_epi8(table, *low);
        *high = _mm512_shuffle_epi8(table, *high);
    }
}

QNI_TEMPLATE __m512i quad(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm512_set1_epi32(four);
}

/* dot[i] = sum over `units` units of u * a[i]; `at` is the packed position of the first. */
QNI_TEMPLATE void dot_units(const uint8_t *codes, const struct rows *rows, int64_t at,
                            int64_t units, const int mr, const int kind, __m512i table,
                            __m512i *dot)
{
    enum { CHAINS = 4 };
    const int chains = mr == 1 ? 4 : mr == 2 ? 2 : 1;
    const int vectors = kind == BYTES ? 8 : 4;
    __m512i sum[MR * CHAINS];
    QNI_UNROLL
    for (int i = 0; i < mr * chains; i++)
        sum[i] = _mm512_setzero_si512();
    for (int64_t u = 0; u < units; u++, at += QNI_UNIT, codes += 64 * vectors) {
        QNI_UNROLL
        for (int r = 0; r < vectors; r++)
            _mm_prefetch((const char *)codes + AHEAD + 64 * r, _MM_HINT_T0);
        if (kind == BYTES) {
            QNI_UNROLL
            for (int r = 0; r < 8; r++) {
                const __m512i w = _mm512_loadu_si512(codes + 64 * r);
                QNI_UNROLL
                for (int i = 0; i < mr; i++) {
                    __m512i *const s = &sum[i * chains + r % chains];
                    *s = _mm512_dpbusd_epi32(*s, w, quad(rows->a[i] + at + 4 * r));
                }
            }
        } else {
            QNI_UNROLL
            for (int r = 0; r < 4; r++) {
                __m512i low, high;
                unpack_nibbles(codes, r, kind, table, &low, &high);
                QNI_UNROLL
                for (int i = 0; i < mr; i++) {
                    __m512i *const s = &sum[i * chains + 2 * r % chains];
                    __m512i *const t = &sum[i * chains + (2 * r + 1) % chains];
                    *s = _mm512_dpbusd_epi32(*s, low, quad(rows->a[i] + at + 4 * r));
                    *t = _mm512_dpbusd_epi32(*t, high, quad(rows->a[i] + at + 16 + 4 * r));
                }
            }
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        dot[i] = sum[i * chains];
        QNI_UNROLL
        for (int j = 1; j < chains; j++)
            dot[i] = _mm512_add_epi32(dot[i], sum[i * chains + j]);
    }
}

/* Where a segment's facts are and what they do to the accumulators: the float steps of
 * docs/numerics.md. */
struct at {
    int64_t panel, row, group, segment;
};

QNI_TEMPLATE void add_q8(const struct qni_matmul_tile *t, struct at at, const __m512i *dot,
                         __m512 scale, const int mr, __m512 *acc)
{
    const int32_t *const sums =
        t->sums == NULL ? NULL : t->sums + (at.panel * t->n_segments + at.segment) * 16;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const size_t f = (size_t)(at.row + i) * t->ld_segment + (size_t)at.segment;
        __m512i d = dot[i];
        if (t->x_zero != 0)
            d = _mm512_sub_epi32(
                d, _mm512_mullo_epi32(_mm512_loadu_si512(sums), _mm512_set1_epi32(t->x_zero)));
        if (t->raw_i32) {
            acc[i] = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(acc[i]), d));
            continue;
        }
        acc[i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(d), acc[i]);
        if (t->offset != NULL) {
            const int32_t zero = t->x_zero == 0 ? 0 : t->x_zero * t->counts[at.segment];
            const __m512 offset =
                qni_load16(t->offset, at.panel * t->n_groups + at.group, t->scale_is_f16);
            acc[i] = _mm512_fmadd_ps(offset, _mm512_set1_ps((float)(t->a_sum[f] - zero)), acc[i]);
        }
    }
}

QNI_TEMPLATE void add_q8b(const struct qni_matmul_tile *t, struct at at, const __m512i *dot,
                          __m512 scale, const int mr, __m512 *acc)
{
    const bool shifted = t->a_offset != NULL;
    __m512 sums = _mm512_setzero_ps(), offset = _mm512_setzero_ps();
    if (shifted)
        sums = _mm512_cvtepi32_ps(
            _mm512_loadu_si512(t->sums + (at.panel * t->n_segments + at.segment) * 16));
    if (t->offset != NULL)
        offset = qni_load16(t->offset, at.panel * t->n_groups + at.group, t->scale_is_f16);
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const size_t f = (size_t)(at.row + i) * t->ld_segment + (size_t)at.segment;
        const __m512 sx = _mm512_set1_ps(t->a_scale[f]), d = _mm512_cvtepi32_ps(dot[i]);
        const __m512 term =
            shifted ? _mm512_fmadd_ps(sx, d, _mm512_mul_ps(_mm512_set1_ps(t->a_offset[f]), sums))
                    : _mm512_mul_ps(sx, d);
        acc[i] = _mm512_fmadd_ps(scale, term, acc[i]);
        if (t->offset != NULL)
            acc[i] = _mm512_fmadd_ps(offset, _mm512_set1_ps(t->a_total[f]), acc[i]);
    }
}

/* mr rows of one panel, all of k. */
QNI_TEMPLATE void panel_rows(const struct qni_matmul_tile *t, int64_t panel, int64_t row,
                             const int mr, const int kind, const int reads)
{
    const int bias = kind == NIBBLES ? 8 : 128;
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    const __m512i table =
        kind == NIBBLE_TABLE
            ? _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t->table8)),
                               _mm512_set1_epi8((char)0x80)) /* + 128 */
            : _mm512_setzero_si512();
    struct rows rows;
    __m512 acc[MR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        rows.a[i] = (const int8_t *)t->a + (size_t)(row + i) * t->lda;
        acc[i] = _mm512_setzero_ps();
    }
    struct at at = {panel, row, 0, 0};
    for (int64_t unit = 0; at.group < t->n_groups; at.group++) {
        const int64_t left = t->units - unit,
                      end = unit + (left < t->group_units ? left : t->group_units);
        __m512 scale = qni_load16(t->scale, panel * t->n_groups + at.group, t->scale_is_f16);
        if (kind == NIBBLE_TABLE && t->table8_doubled)
            scale = _mm512_mul_ps(scale, _mm512_set1_ps(0.5f));
        for (; unit < end; at.segment++) {
            const int64_t n = end - unit < t->segment_units ? end - unit : t->segment_units;
            __m512i dot[MR];
            dot_units(codes, &rows, unit * QNI_UNIT, n, mr, kind, table, dot);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const size_t f = (size_t)(row + i) * t->ld_segment + (size_t)at.segment;
                dot[i] = _mm512_sub_epi32(dot[i], _mm512_set1_epi32(bias * t->a_sum[f]));
            }
            if (reads == QNI_READS_Q8)
                add_q8(t, at, dot, scale, mr, acc);
            else
                add_q8b(t, at, dot, scale, mr, acc);
            codes += n * unit_bytes;
            unit += n;
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        _mm512_storeu_ps(t->c + (size_t)(row + i) * t->ldc + (size_t)panel * QNI_PANEL, acc[i]);
}

/* Panels outside, rows inside: the codes of a panel come from memory once and from the cache for
 * the other rows. */
QNI_TEMPLATE void tile_rows(const struct qni_matmul_tile *t, const int kind, const int reads)
{
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        int64_t row = 0;
        for (; row + MR <= t->m; row += MR)
            panel_rows(t, panel, row, MR, kind, reads);
        switch (t->m - row) {
        case 7:
            panel_rows(t, panel, row, 7, kind, reads);
            break;
        case 6:
            panel_rows(t, panel, row, 6, kind, reads);
            break;
        case 5:
            panel_rows(t, panel, row, 5, kind, reads);
            break;
        case 4:
            panel_rows(t, panel, row, 4, kind, reads);
            break;
        case 3:
            panel_rows(t, panel, row, 3, kind, reads);
            break;
        case 2:
            panel_rows(t, panel, row, 2, kind, reads);
            break;
        case 1:
            panel_rows(t, panel, row, 1, kind, reads);
            break;
        default:
            break;
        }
    }
}

void qni_matmul_q8_q4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLES, QNI_READS_Q8);
}
void qni_matmul_q8_t4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLE_TABLE, QNI_READS_Q8);
}
void qni_matmul_q8_q8n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    tile_rows(t, BYTES, QNI_READS_Q8);
}
void qni_matmul_q8b_q4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLES, QNI_READS_Q8B);
}
void qni_matmul_q8b_t4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLE_TABLE, QNI_READS_Q8B);
}
void qni_matmul_q8b_q8n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    tile_rows(t, BYTES, QNI_READS_Q8B);
}
