/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with 256-bit VNNI (CPUs without AVX-512). Contract:
 * kernel.h.
 *
 * As the 512-bit kernel: the packed codes are the unsigned operand of vpdpbusd, their bias (8 or
 * 128) times the sum of the activations comes off once a segment, and 255 * 128 * 32768 < 2^31. A
 * panel is two halves of eight outputs; four rows by two halves are eight sums in registers.
 *
 * Bound: bytes of the codes / bandwidth for small m, then 2 m n k / (64 operations x 2 a cycle). */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "../../base/compiler.h"
#include "kernel.h"

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2 };
enum { MR = 4 };

struct rows {
    const int8_t *a[MR];
};
struct at {
    int64_t panel, row, group, segment;
    int half;
};

static inline __m256 load8(const void *rows, int64_t i, int half, int32_t is_f16)
{
    if (is_f16)
        return _mm256_cvtph_ps(_mm_loadu_si128(
            (const __m128i *)(const void *)((const uint16_t *)rows + 16 * i + 8 * half)));
    return _mm256_loadu_ps((const float *)rows + 16 * i + 8 * half);
}

QNI_TEMPLATE __m256i quad(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm256_set1_epi32(four);
}

QNI_TEMPLATE void add_codes(__m256i w, const struct rows *rows, int64_t p, const int mr,
                            const int half, __m256i (*sum)[2])
{
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i][half] = _mm256_dpbusd_avx_epi32(sum[i][half], w, quad(rows->a[i] + p));
}

/* sum[i][h] = sum over units of u * a[i] for outputs 8 h .. 8 h + 7. */
QNI_TEMPLATE void dot_units(const uint8_t *codes, const struct rows *rows, int64_t at,
                            int64_t units, const int mr, const int kind, __m256i table,
                            __m256i (*sum)[2])
{
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    const int vectors = kind == BYTES ? 8 : 4;
    for (int64_t u = 0; u < units; u++, at += QNI_UNIT)
        for (int r = 0; r < vectors; r++, codes += 64) {
            QNI_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i v =
                    _mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * h));
                if (kind == BYTES) {
                    add_codes(v, rows, at + 4 * r, mr, h, sum);
                    continue;
                }
                __m256i low = _mm256_and_si256(v, nibble);
                __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
                if (kind == NIBBLE_TABLE) {
                    low = _mm256_shuffle_epi8(table, low);
                    high = _mm256_shuffle_epi8(table, high);
                }
                add_codes(low, rows, at + 4 * r, mr, h, sum);
                add_codes(high, rows, at + 16 + 4 * r, mr, h, sum);
            }
        }
}

/* The float steps of docs/numerics.md for one segment of one half. */
QNI_TEMPLATE __m256 add_q8(const struct qni_matmul_tile *t, struct at at, size_t fact, __m256i d,
                           __m256 scale, __m256 acc)
{
    if (t->x_zero != 0) {
        const int32_t *const sums =
            t->sums + (at.panel * t->n_segments + at.segment) * 16 + 8 * at.half;
        d = _mm256_sub_epi32(
            d, _mm256_mullo_epi32(_mm256_loadu_si256((const __m256i *)(const void *)sums),
                                  _mm256_set1_epi32(t->x_zero)));
    }
    if (t->raw_i32)
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(acc), d));
    acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(d), acc);
    if (t->offset == NULL)
        return acc;
    const int32_t zero = t->x_zero == 0 ? 0 : t->x_zero * t->counts[at.segment];
    return _mm256_fmadd_ps(
        load8(t->offset, at.panel * t->n_groups + at.group, at.half, t->scale_is_f16),
        _mm256_set1_ps((float)(t->a_sum[fact] - zero)), acc);
}

QNI_TEMPLATE __m256 add_q8b(const struct qni_matmul_tile *t, struct at at, size_t fact, __m256i dot,
                            __m256 scale, __m256 acc)
{
    const __m256 sx = _mm256_set1_ps(t->a_scale[fact]), d = _mm256_cvtepi32_ps(dot);
    __m256 term;
    if (t->a_offset != NULL) {
        const int32_t *const sums =
            t->sums + (at.panel * t->n_segments + at.segment) * 16 + 8 * at.half;
        const __m256 w =
            _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)sums));
        term = _mm256_fmadd_ps(sx, d, _mm256_mul_ps(_mm256_set1_ps(t->a_offset[fact]), w));
    } else {
        term = _mm256_mul_ps(sx, d);
    }
    acc = _mm256_fmadd_ps(scale, term, acc);
    if (t->offset == NULL)
        return acc;
    return _mm256_fmadd_ps(
        load8(t->offset, at.panel * t->n_groups + at.group, at.half, t->scale_is_f16),
        _mm256_set1_ps(t->a_total[fact]), acc);
}

/* mr rows of one panel, all of k. */
QNI_TEMPLATE void panel_rows(const struct qni_matmul_tile *t, int64_t panel, int64_t row,
                             const int mr, const int kind, const int reads)
{
    const int bias = kind == NIBBLES ? 8 : 128;
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const uint8_t *const codes = t->codes + (size_t)panel * t->codes_stride;
    const __m256i table = kind == NIBBLE_TABLE
                              ? _mm256_xor_si256(_mm256_broadcastsi128_si256(_mm_loadu_si128(
                                                     (const __m128i *)(const void *)t->table8)),
                                                 _mm256_set1_epi8((char)0x80)) /* + 128 */
                              : _mm256_setzero_si256();
    struct rows rows;
    __m256 acc[MR][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        rows.a[i] = (const int8_t *)t->a + (size_t)(row + i) * t->lda;
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    }
    struct at at = {panel, row, 0, 0, 0};
    for (int64_t unit = 0; at.group < t->n_groups; at.group++) {
        const int64_t left = t->units - unit,
                      end = unit + (left < t->group_units ? left : t->group_units);
        const float half = kind == NIBBLE_TABLE && t->table8_doubled ? 0.5f : 1.0f;
        for (; unit < end; at.segment++) {
            const int64_t n = end - unit < t->segment_units ? end - unit : t->segment_units;
            __m256i dot[MR][2];
            dot_units(codes + unit * unit_bytes, &rows, unit * QNI_UNIT, n, mr, kind, table, dot);
            QNI_UNROLL
            for (at.half = 0; at.half < 2; at.half++) {
                const __m256 scale = _mm256_mul_ps(
                    load8(t->scale, panel * t->n_groups + at.group, at.half, t->scale_is_f16),
                    _mm256_set1_ps(half));
                QNI_UNROLL
                for (int i = 0; i < mr; i++) {
                    const size_t f = (size_t)(row + i) * t->ld_segment + (size_t)at.segment;
                    const __m256i d =
                        _mm256_sub_epi32(dot[i][at.half], _mm256_set1_epi32(bias * t->a_sum[f]));
                    acc[i][at.half] = reads == QNI_READS_Q8
                                          ? add_q8(t, at, f, d, scale, acc[i][at.half])
                                          : add_q8b(t, at, f, d, scale, acc[i][at.half]);
                }
            }
            unit += n;
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        float *const c = t->c + (size_t)(row + i) * t->ldc + (size_t)panel * QNI_PANEL;
        _mm256_storeu_ps(c, acc[i][0]);
        _mm256_storeu_ps(c + 8, acc[i][1]);
    }
}

QNI_TEMPLATE void tile_rows(const struct qni_matmul_tile *t, const int kind, const int reads)
{
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        int64_t row = 0;
        for (; row + MR <= t->m; row += MR)
            panel_rows(t, panel, row, MR, kind, reads);
        switch (t->m - row) {
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

void qni_matmul_q8_q4n16_mr4_avxvnni(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLES, QNI_READS_Q8);
}
void qni_matmul_q8_t4n16_mr4_avxvnni(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLE_TABLE, QNI_READS_Q8);
}
void qni_matmul_q8_q8n16_mr4_avxvnni(const struct qni_matmul_tile *t)
{
    tile_rows(t, BYTES, QNI_READS_Q8);
}
void qni_matmul_q8b_q4n16_mr4_avxvnni(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLES, QNI_READS_Q8B);
}
void qni_matmul_q8b_t4n16_mr4_avxvnni(const struct qni_matmul_tile *t)
{
    tile_rows(t, NIBBLE_TABLE, QNI_READS_Q8B);
}
void qni_matmul_q8b_q8n16_mr4_avxvnni(const struct qni_matmul_tile *t)
{
    tile_rows(t, BYTES, QNI_READS_Q8B);
}
