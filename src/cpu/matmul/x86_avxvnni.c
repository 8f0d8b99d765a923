/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with 256-bit VNNI (CPUs without AVX-512). Contract:
 * kernel.h.
 *
 * As the 512-bit kernel: the packed codes are the unsigned operand of vpdpbusd, their bias (8 or
 * 128) times the sum of the activations comes off once a segment, and 255 * 128 * 32768 < 2^31. A
 * panel is two halves of eight outputs; six rows by two halves are twelve sums in registers, which
 * hide the 5 cycles of vpdpbusd (ten would). Products are one function for each number of rows, and
 * sums pass through memory to the float steps, of which there is one for all: a segment of 128
 * positions is 192 cycles of products.
 *
 * Bound: bytes of the codes / bandwidth for small m, then 2 m n k / (64 operations x 2 a cycle). */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "../../base/compiler.h"
#include "kernel.h"

typedef __m256i ints;
typedef __m256 floats;

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2, KINDS = 3 };
enum { MR = 6, HALVES = 2 };

struct rows {
    const int8_t *a[MR];
};

/* What one block of rows has of a segment. */
struct sums {
    ints dot[MR][HALVES];
};

static inline floats load8(const void *rows, int64_t i, int half, int32_t is_f16)
{
    if (is_f16)
        return _mm256_cvtph_ps(_mm_loadu_si128(
            (const __m128i *)(const void *)((const uint16_t *)rows + 16 * i + 8 * half)));
    return _mm256_loadu_ps((const float *)rows + 16 * i + 8 * half);
}

static inline ints load_ints(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Four codes of eight outputs: low nibbles, high ones, or bytes. */
QNI_TEMPLATE ints unpack(const uint8_t *codes, const int kind, const bool high, ints table)
{
    const ints nibble = _mm256_set1_epi8(0x0f);
    ints v = load_ints(codes);
    if (kind == BYTES)
        return v;
    v = _mm256_and_si256(high ? _mm256_srli_epi16(v, 4) : v, nibble);
    return kind == NIBBLE_TABLE ? _mm256_shuffle_epi8(table, v) : v;
}

QNI_TEMPLATE void add_quad(const uint8_t *codes, const struct rows *rows, int64_t p, const int mr,
                           const int kind, const bool high, ints table, ints (*sum)[HALVES])
{
    const ints w0 = unpack(codes, kind, high, table), w1 = unpack(codes + 32, kind, high, table);
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        int32_t four;
        memcpy(&four, rows->a[i] + p, sizeof four);
        const ints x = _mm256_set1_epi32(four);
        sum[i][0] = _mm256_dpbusd_avx_epi32(sum[i][0], w0, x);
        sum[i][1] = _mm256_dpbusd_avx_epi32(sum[i][1], w1, x);
    }
}

/* dot[i][h] = sum over units of u * a[i] for outputs 8 h .. 8 h + 7. */
QNI_TEMPLATE void dot_units(const uint8_t *codes, const struct rows *from, int64_t units,
                            ints table, struct sums *to, const int mr, const int kind)
{
    const struct rows rows = *from;
    const int64_t end = units * QNI_UNIT;
    ints sum[MR][HALVES];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (int64_t at = 0; at < end; at += kind == BYTES ? 0 : 16)
        for (const int64_t next = at + 16; at < next; at += 4, codes += 64) {
            add_quad(codes, &rows, at, mr, kind, false, table, sum);
            if (kind != BYTES)
                add_quad(codes, &rows, at + 16, mr, kind, true, table, sum);
        }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        to->dot[i][0] = sum[i][0];
        to->dot[i][1] = sum[i][1];
    }
}

typedef void dot_fn(const uint8_t *codes, const struct rows *rows, int64_t units, ints table,
                    struct sums *sums);
#define DOT(kind, mr)                                                                              \
    static void dot_##kind##_##mr(const uint8_t *codes, const struct rows *rows, int64_t units,    \
                                  ints table, struct sums *sums)                                   \
    {                                                                                              \
        dot_units(codes, rows, units, table, sums, mr, kind);                                      \
    }
#define DOTS(kind) DOT(kind, 1) DOT(kind, 2) DOT(kind, 3) DOT(kind, 4) DOT(kind, 5) DOT(kind, 6)
DOTS(NIBBLES)
DOTS(NIBBLE_TABLE)
DOTS(BYTES)
#define LIST(kind)                                                                                 \
    {                                                                                              \
        dot_##kind##_1, dot_##kind##_2, dot_##kind##_3, dot_##kind##_4, dot_##kind##_5,            \
            dot_##kind##_6                                                                         \
    }
static dot_fn *const dots[KINDS][MR] = {LIST(NIBBLES), LIST(NIBBLE_TABLE), LIST(BYTES)};

/* ---- the float steps of docs/numerics.md ----------------------------------------------------- */

/* A segment of some rows and a panel. */
struct at {
    int64_t panel, row, group, segment;
    int64_t rows;
    int32_t bias;
    floats half; /* of scales, or 1 */
};

static ints column_sums(const struct qni_matmul_tile *t, const struct at *at, int half)
{
    return load_ints(t->sums + (at->panel * t->n_segments + at->segment) * 16 + 8 * half);
}

static floats scale_of(const struct qni_matmul_tile *t, const struct at *at, int half)
{
    const int64_t group = at->panel * t->n_groups + at->group;
    return _mm256_mul_ps(load8(t->scale, group, half, t->scale_is_f16), at->half);
}

static floats offset_of(const struct qni_matmul_tile *t, const struct at *at, int half)
{
    const int64_t group = at->panel * t->n_groups + at->group;
    return t->offset != NULL ? load8(t->offset, group, half, t->scale_is_f16) : _mm256_setzero_ps();
}

QNI_NOINLINE static void end_row(const struct qni_matmul_tile *t, const struct at *at,
                                 const struct sums *sums, floats (*acc)[HALVES])
{
    for (int h = 0; h < HALVES; h++) {
        const floats scale = scale_of(t, at, h), offset = offset_of(t, at, h);
        ints zero = _mm256_setzero_si256();
        if (t->x_zero != 0)
            zero = _mm256_mullo_epi32(column_sums(t, at, h), _mm256_set1_epi32(t->x_zero));
        for (int64_t i = 0; i < at->rows; i++) {
            const int32_t sum =
                t->a_sum[(size_t)(at->row + i) * t->ld_segment + (size_t)at->segment];
            const ints d = _mm256_sub_epi32(
                _mm256_sub_epi32(sums->dot[i][h], _mm256_set1_epi32(at->bias * sum)), zero);
            if (t->raw_i32) {
                acc[i][h] =
                    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(acc[i][h]), d));
                continue;
            }
            acc[i][h] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(d), acc[i][h]);
            if (t->offset == NULL)
                continue;
            const int32_t outside = t->x_zero == 0 ? 0 : t->x_zero * t->counts[at->segment];
            acc[i][h] = _mm256_fmadd_ps(offset, _mm256_set1_ps((float)(sum - outside)), acc[i][h]);
        }
    }
}

QNI_NOINLINE static void end_block(const struct qni_matmul_tile *t, const struct at *at,
                                   const struct sums *sums, floats (*acc)[HALVES])
{
    const bool is_shifted = t->a_offset != NULL, has_offset = t->offset != NULL;
    for (int h = 0; h < HALVES; h++) {
        const floats scale = scale_of(t, at, h), offset = offset_of(t, at, h);
        const floats w =
            is_shifted ? _mm256_cvtepi32_ps(column_sums(t, at, h)) : _mm256_setzero_ps();
        size_t f = (size_t)at->row * t->ld_segment + (size_t)at->segment;
        for (int64_t i = 0; i < at->rows; i++, f += t->ld_segment) {
            const floats sx = _mm256_set1_ps(t->a_scale[f]);
            const floats d = _mm256_cvtepi32_ps(
                _mm256_sub_epi32(sums->dot[i][h], _mm256_set1_epi32(at->bias * t->a_sum[f])));
            const floats term =
                is_shifted
                    ? _mm256_fmadd_ps(sx, d, _mm256_mul_ps(_mm256_set1_ps(t->a_offset[f]), w))
                    : _mm256_mul_ps(sx, d);
            acc[i][h] = _mm256_fmadd_ps(scale, term, acc[i][h]);
            if (has_offset)
                acc[i][h] = _mm256_fmadd_ps(offset, _mm256_set1_ps(t->a_total[f]), acc[i][h]);
        }
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static ints table_of(const struct qni_matmul_tile *t, int kind)
{
    if (kind != NIBBLE_TABLE)
        return _mm256_setzero_si256();
    return _mm256_xor_si256(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)t->table8)),
        _mm256_set1_epi8((char)0x80)); /* + 128 */
}

/* Some rows of one panel, all of k. */
static void panel_rows(const struct qni_matmul_tile *t, struct at at, int kind, bool is_block)
{
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const uint8_t *const codes = t->codes + (size_t)at.panel * t->codes_stride;
    const ints table = table_of(t, kind);
    dot_fn *const dot = dots[kind][at.rows - 1];
    struct rows rows = {{NULL}};
    floats acc[MR][HALVES];
    struct sums sums;
    for (int64_t i = 0; i < at.rows; i++) {
        rows.a[i] = (const int8_t *)t->a + (size_t)(at.row + i) * t->lda;
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    }
    for (int64_t unit = 0; at.group < t->n_groups; at.group++) {
        const int64_t left = t->units - unit,
                      end = unit + (left < t->group_units ? left : t->group_units);
        for (int64_t n; unit < end; unit += n, at.segment++) {
            n = end - unit < t->segment_units ? end - unit : t->segment_units;
            dot(codes + unit * unit_bytes, &rows, n, table, &sums);
            for (int64_t i = 0; i < at.rows; i++)
                rows.a[i] += n * QNI_UNIT;
            (is_block ? end_block : end_row)(t, &at, &sums, acc);
        }
    }
    for (int64_t i = 0; i < at.rows; i++) {
        float *const c = t->c + (size_t)(at.row + i) * t->ldc + (size_t)at.panel * QNI_PANEL;
        _mm256_storeu_ps(c, acc[i][0]);
        _mm256_storeu_ps(c + 8, acc[i][1]);
    }
}

/* Rows in blocks of almost equal size. */
static void job(const struct qni_matmul_tile *t, int kind, bool is_block)
{
    const int64_t blocks = (t->m + MR - 1) / MR;
    struct at at = {0};
    at.bias = kind == NIBBLES ? 8 : 128;
    at.half = _mm256_set1_ps(kind == NIBBLE_TABLE && t->table8_doubled ? 0.5f : 1.0f);
    for (; at.panel < t->n_panels; at.panel++)
        for (int64_t i = 0; i < blocks; i++) {
            at.row = t->m * i / blocks;
            at.rows = t->m * (i + 1) / blocks - at.row;
            panel_rows(t, at, kind, is_block);
        }
}

void qni_matmul_q8_q4n16_mr6_avxvnni(const struct qni_matmul_tile *t)
{
    job(t, NIBBLES, false);
}
void qni_matmul_q8_t4n16_mr6_avxvnni(const struct qni_matmul_tile *t)
{
    job(t, NIBBLE_TABLE, false);
}
void qni_matmul_q8_q8n16_mr6_avxvnni(const struct qni_matmul_tile *t)
{
    job(t, BYTES, false);
}
void qni_matmul_q8b_q4n16_mr6_avxvnni(const struct qni_matmul_tile *t)
{
    job(t, NIBBLES, true);
}
void qni_matmul_q8b_t4n16_mr6_avxvnni(const struct qni_matmul_tile *t)
{
    job(t, NIBBLE_TABLE, true);
}
void qni_matmul_q8b_q8n16_mr6_avxvnni(const struct qni_matmul_tile *t)
{
    job(t, BYTES, true);
}
