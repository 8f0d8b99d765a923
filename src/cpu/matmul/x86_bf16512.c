/* SPDX-License-Identifier: Apache-2.0 */
/* Planes of bf16 x 4- and 8-bit weights, or weights of bf16, with AVX-512 BF16. Contract and
 * operand layouts: kernel.h.
 *
 * vdpbf16ps multiplies pairs: lane j of a vector holds two neighbouring positions of output j, the
 * other operand the same two positions of x in every lane. A code of at most 8 bits is exact in
 * bf16, a product of two bf16 is exact in f32, and planes add up to x, in long sums within 2^-17
 * |x| (x86_amx_float.c has the same on tiles), so that
 *
 *     y = sum over groups of  scale * (sum over planes and pairs)  +  offset * total
 *
 * loses nothing else but f32 accumulation, two roundings a pair. The instruction takes subnormals
 * for zero, on both sides: an absolute error below 2^-126 a term.
 *
 * A vector of nibble codes is four vectors of pairs: vpermw, which looks only at the low five bits
 * of each half of a lane, finds bf16 in a table that holds the 16 values twice: the low nibbles of
 * bytes 0 and 2 at no shift, of 1 and 3 at 8, the high ones at 4 and 12; x comes in that order,
 * too. Bytes are converted through f32, whose upper half is the bf16. Weights of bf16 are pairs as
 * they lie. Six rows x two panels are in
 * registers, as in x86_avx512.c.
 *
 * Bound: bytes of the codes / bandwidth for few rows, then 2 m n k / (64 operations times the
 * instructions a cycle): one on Zen 4, where f32 has 32 operations a cycle. Half an instruction a
 * cycle on Sapphire Rapids, whose f32 rows are twice as fast as this one (docs/adr/0009); so who
 * chooses is select.c, by cpuid.h. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/avx512.h"
#include "../simd/bf16.h"
#include "kernel.h"

enum { NIBBLES = 0, BYTES = 1, BRAINS = 2 /* weights of bf16 */ };
enum { MR = 6, NR = 2, AHEAD = 2048 };

/* Vectors of a unit; pairs of a vector. */
QNI_TEMPLATE int64_t vectors_of(const int kind)
{
    return kind == NIBBLES ? 4 : kind == BYTES ? 8 : 16;
}
QNI_TEMPLATE int pairs_of(const int kind)
{
    return kind == NIBBLES ? 4 : kind == BYTES ? 2 : 1;
}

/* The q-th pair of positions of a vector of codes: bytes q and q + 2, or, of nibbles, the low ones
 * at 0 and 2, the high ones at 1 and 3. */
QNI_TEMPLATE __m512i pair_of(__m512i codes, const int q, const int kind, __m512i table)
{
    if (kind == BRAINS)
        return codes;
    if (kind == NIBBLES)
        return _mm512_permutexvar_epi16(q == 0   ? codes
                                        : q == 1 ? _mm512_srli_epi16(codes, 4)
                                        : q == 2 ? _mm512_srli_epi16(codes, 8)
                                                 : _mm512_srli_epi16(codes, 12),
                                        table);
    const __m512i first = _mm512_srai_epi32(_mm512_slli_epi32(codes, q == 0 ? 24 : 16), 24);
    const __m512i second = _mm512_srai_epi32(q == 0 ? _mm512_slli_epi32(codes, 8) : codes, 24);
    const __m512i f = _mm512_castps_si512(_mm512_cvtepi32_ps(first));
    const __m512i s = _mm512_castps_si512(_mm512_cvtepi32_ps(second));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(f, 16), s);
}

struct operand {
    const uint16_t *a[MR];
    const uint8_t *codes[NR];
    size_t step; /* elements, to the next plane or unit */
    int32_t planes;
    __m512i table;
};

/* Positions p and p + 1 of a row in every lane. */
static inline __m512bh pair_of_x(const uint16_t *a)
{
    int32_t both;
    memcpy(&both, a, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

/* sum[i][j] += pairs of the r-th vector of codes of a unit. */
QNI_TEMPLATE void add_vector(const struct operand *o, int64_t unit, int64_t r, const int mr,
                             const int nr, const int kind, const bool one_plane, __m512 (*sum)[NR])
{
    const int64_t at = (unit * vectors_of(kind) + r) * 64, p = (kind == BRAINS ? 2 : 4) * r;
    const size_t a = (size_t)(unit * (one_plane ? 1 : o->planes)) * o->step;
    const int pairs = pairs_of(kind);
    const int32_t planes = one_plane ? 1 : o->planes;
    __m512i codes[NR];
    QNI_UNROLL
    for (int j = 0; j < nr; j++) {
        codes[j] = _mm512_loadu_si512(o->codes[j] + at);
        _mm_prefetch((const char *)o->codes[j] + at + AHEAD, _MM_HINT_T0);
        if (kind == BYTES)
            codes[j] = _mm512_xor_si512(codes[j], _mm512_set1_epi8((char)0x80));
    }
    QNI_UNROLL
    for (int q = 0; q < pairs; q++) {
        /* shifts 0, 4, 8, 12: low (0, 1), high (0, 1), low (2, 3), high (2, 3) */
        const int64_t where = kind == NIBBLES ? p + q / 2 * 2 + q % 2 * 16 : p + 2 * q;
        __m512bh w[NR];
        QNI_UNROLL
        for (int j = 0; j < nr; j++)
            w[j] = (__m512bh)pair_of(codes[j], q, kind, o->table);
        for (int32_t plane = 0; plane < planes; plane++)
            QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m512bh x = pair_of_x(o->a[i] + a + (size_t)plane * o->step + where);
            QNI_UNROLL
            for (int j = 0; j < nr; j++)
                sum[i][j] = _mm512_dpbf16_ps(sum[i][j], w[j], x);
        }
    }
}

struct where {
    int64_t panel, row;
};

QNI_TEMPLATE struct operand operand_of(const struct qni_matmul_tile *t, struct where at,
                                       const int mr, const int nr, const int kind)
{
    struct operand o;
    o.table = kind == NIBBLES ? qni_bf16_of_nibbles(t->table8) : _mm512_setzero_si512();
    o.planes = t->planes;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const size_t row = qni_bf16_row(t->lda, t->m, at.row + i, &o.step);
        o.a[i] = (const uint16_t *)(const void *)((const char *)t->a + row);
    }
    o.step /= sizeof(uint16_t); /* the same for rows of a block */
    QNI_UNROLL
    for (int j = 0; j < nr; j++)
        o.codes[j] = t->codes + (size_t)(at.panel + j) * t->codes_stride;
    return o;
}

/* acc += scale * sum + offset * total, of group g. */
QNI_TEMPLATE void end_group(const struct qni_matmul_tile *t, struct where at, int64_t g,
                            const int mr, const int nr, __m512 (*sum)[NR], __m512 (*acc)[NR])
{
    const __m512 times = _mm512_set1_ps(t->table8 != NULL && t->table8_doubled ? 0.5f : 1.0f);
    QNI_UNROLL
    for (int j = 0; j < nr; j++) {
        const int64_t s = (at.panel + j) * t->n_groups + g;
        const __m512 scale = _mm512_mul_ps(qni_load16(t->scale, s, t->scale_is_f16), times);
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            acc[i][j] = _mm512_fmadd_ps(scale, sum[i][j], acc[i][j]);
        if (t->offset == NULL)
            continue;
        const __m512 offset = qni_load16(t->offset, s, t->scale_is_f16);
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const float total = t->a_total[(size_t)(at.row + i) * t->ld_segment + (size_t)g];
            acc[i][j] = _mm512_fmadd_ps(offset, _mm512_set1_ps(total), acc[i][j]);
        }
    }
}

/* mr rows x nr panels, all of k. */
QNI_TEMPLATE void block(const struct qni_matmul_tile *t, struct where at, const int mr,
                        const int nr, const int kind, const bool one_plane)
{
    const int64_t vectors = vectors_of(kind);
    const struct operand o = operand_of(t, at, mr, nr, kind);
    __m512 acc[MR][NR], sum[MR][NR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < nr; j++)
        acc[i][j] = _mm512_setzero_ps();
    for (int64_t g = 0, unit = 0; g < t->n_groups; g++) {
        const int64_t left = t->units - unit;
        const int64_t end = unit + (left < t->group_units ? left : t->group_units);
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            QNI_UNROLL
        for (int j = 0; j < nr; j++)
            sum[i][j] = _mm512_setzero_ps();
        for (; unit < end; unit++)
            for (int64_t r = 0; r < vectors; r++)
                add_vector(&o, unit, r, mr, nr, kind, one_plane, sum);
        end_group(t, at, g, mr, nr, sum, acc);
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < nr; j++)
        _mm512_storeu_ps(t->c + (size_t)(at.row + i) * t->ldc + (size_t)(at.panel + j) * QNI_PANEL,
                         acc[i][j]);
}

/* Rows [row, end) of one block of planes. */
QNI_TEMPLATE void rows_of(const struct qni_matmul_tile *t, int64_t panel, int64_t row, int64_t end,
                          const int nr, const int kind)
{
    struct where at = {panel, row};
    for (; at.row + MR <= end; at.row += MR)
        block(t, at, MR, nr, kind, true);
    switch (end - at.row) {
    case 5:
        block(t, at, 5, nr, kind, true);
        break;
    case 4:
        block(t, at, 4, nr, kind, true);
        break;
    case 3:
        block(t, at, 3, nr, kind, true);
        break;
    case 2:
        block(t, at, 2, nr, kind, true);
        break;
    case 1:
        block(t, at, 1, nr, kind, true);
        break;
    default:
        break;
    }
}

/* Several planes: x of f16 and f32, where the f32 rows are as fast or faster. */
static void several_planes(const struct qni_matmul_tile *t, int kind)
{
    for (struct where at = {0, 0}; at.panel < t->n_panels; at.panel++)
        for (at.row = 0; at.row < t->m; at.row++)
            if (kind == NIBBLES)
                block(t, at, 1, 1, NIBBLES, false);
            else if (kind == BRAINS)
                block(t, at, 1, 1, BRAINS, false);
            else
                block(t, at, 1, 1, BYTES, false);
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    if (t->planes > 1) {
        several_planes(t, kind);
        return;
    }
    for (int64_t row = 0; row < t->m; row += QNI_BF16_ROWS) {
        const int64_t end = t->m - row < QNI_BF16_ROWS ? t->m : row + QNI_BF16_ROWS;
        int64_t panel = 0;
        for (; panel + NR <= t->n_panels; panel += NR)
            rows_of(t, panel, row, end, NR, kind);
        if (panel < t->n_panels)
            rows_of(t, panel, row, end, 1, kind);
    }
}

/* Integers and codebooks of integers differ in their table alone. */
void qni_matmul_bf16_q4n16_mr6_bf16512(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_bf16_t4n16_mr6_bf16512(const struct qni_matmul_tile *t)
{
    qni_matmul_bf16_q4n16_mr6_bf16512(t);
}
void qni_matmul_bf16_q8n16_mr6_bf16512(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
void qni_matmul_bf16_b16n16_mr6_bf16512(const struct qni_matmul_tile *t)
{
    tile(t, BRAINS);
}
