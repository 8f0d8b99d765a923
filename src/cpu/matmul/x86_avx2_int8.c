/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with AVX2. Contract and operand layouts: kernel.h; the
 * float steps: docs/numerics.md.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and adds pairs, saturating at int16. It never
 * saturates here, because its unsigned operand is never more than 15: nibbles as stored, or a byte
 * cut in two,
 *
 *     u = 16 high + low,     sum(u a) = 16 sum(high a) + sum(low a),
 *
 * and with it no code is special, -128 included. A pair is at most 2 * 15 * 128 = 3840 in
 * magnitude, and the 8 pairs of a unit add up to 30720 in int16 before they are widened. Codebooks
 * of integers are looked up as the two nibbles of value + 128. The bias of the stored codes comes
 * off once a segment:
 *     sum(w a) = sum(u a) - bias * sum(a).
 *
 * Six rows share each unpacked vector, five where a code is two of them, and one more where another
 * block would have to be begun for it. Bound: bytes of the codes
 * / bandwidth for few rows, then 1.5 products of 32 a cycle, for additions take turns where
 * products are made; half of that for bytes. Codes are asked for at an even pace however many rows
 * there are, or what memory takes for the first of them would add to what the others take. */
#include "../simd/avx2_q8.h"

enum {
    MR = 6,       /* rows of a block whose sums have registers */
    MR_TWICE = 5, /* where each code is two nibbles */
    MOST = MR + 1,
    QUADS = QNI_UNIT / 4,
    CHUNK = 8,    /* units that both halves of the outputs find in the first cache */
    SHORT = 4,    /* units of a segment */
    AHEAD = 2048, /* bytes: about 100 ns of one core's stream */
    LINE = 64
};

/* Unsigned nibbles of four positions of 8 outputs: all of a code, or its low and high part. */
struct nibbles {
    __m256i low, high;
};

/* The codebook: low and high nibbles of value + 128. */
struct table {
    __m256i low, high;
};

static inline struct table load_table(const int8_t *table8, const int kind)
{
    struct table t = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (kind == NIBBLE_TABLE) {
        const __m256i nibble = _mm256_set1_epi8(0x0f);
        const __m128i signed_values = _mm_loadu_si128((const __m128i *)(const void *)table8);
        const __m256i u =
            _mm256_broadcastsi128_si256(_mm_xor_si128(signed_values, _mm_set1_epi8((char)0x80)));
        t.low = _mm256_and_si256(u, nibble);
        t.high = _mm256_and_si256(_mm256_srli_epi16(u, 4), nibble);
    }
    return t;
}

/* Quad q (positions 4 q ..) of a unit, half h of the outputs. */
QNI_TEMPLATE struct nibbles unpack(const uint8_t *unit, const int q, const int h,
                                   const struct table *table, const int kind)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const int r = kind == BYTES ? q : q % 4;
    const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(unit + 64 * r + 32 * h));
    struct nibbles n = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (kind == BYTES) {
        n.low = _mm256_and_si256(v, nibble);
        n.high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
        return n;
    }
    n.low = _mm256_and_si256(q < 4 ? v : _mm256_srli_epi16(v, 4), nibble);
    if (kind == NIBBLE_TABLE) {
        n.high = _mm256_shuffle_epi8(table->high, n.low);
        n.low = _mm256_shuffle_epi8(table->low, n.low);
    }
    return n;
}

/* What is asked for next, and how far that moves on with a unit of one pass. */
struct ahead {
    const uint8_t *at;
    size_t step;
};

/* Halves of the outputs are met one after the other where there are twice as many sums. */
QNI_TEMPLATE int passes(const int kind)
{
    return kind == NIBBLES ? 1 : 2;
}

/* Lines of codes of a unit and a pass. */
QNI_TEMPLATE int lines_of(const int kind)
{
    return kind == NIBBLE_TABLE ? 2 : 4;
}

/* Rows of a block whose sums have registers. */
QNI_TEMPLATE int rows_of(const int kind)
{
    return kind == NIBBLES ? MR : MR_TWICE;
}

/* Products of one row more: stored, for sums in memory would wait for each other. */
struct stored {
    __m256i low[QUADS][2], high[QUADS][2];
};

QNI_TEMPLATE void store_product(__m256i *to, __m256i product)
{
    _mm256_store_si256(to, product);
    __asm__("" : "+m"(*to)); /* or compilers find registers for it, and none for others */
}

QNI_TEMPLATE __m256i sum_stored(__m256i (*product)[2], const int h)
{
    __m256i sum = product[0][h];
    QNI_UNROLL
    for (int q = 1; q < QUADS; q++) {
        sum = _mm256_add_epi16(sum, product[q][h]);
        QNI_KEEP(sum);
    }
    return sum;
}

/* A segment of a panel, or some units of it, and the first of the rows they meet. */
struct operands {
    const uint8_t *codes;
    const int8_t *a;
    size_t lda;
    int64_t units;
    const struct table *table;
    struct ahead ahead;
};

/* dot[i][h] = sum over units of u * a[i] for halves [first, first + halves) of the outputs, or is
 * more by that much if it goes on. */
QNI_TEMPLATE void dot_units(struct operands *o, const int mr, const int first, const int halves,
                            const int kind, const bool is_short, const bool goes_on, qni_dots *dot)
{
    const uint8_t *codes = o->codes, *ahead = o->ahead.at;
    const int8_t *a = o->a;
    const __m256i one = _mm256_set1_epi16(1), sixteen = _mm256_set1_epi16(16);
    __m256i sum[MOST][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < halves; h++)
        sum[i][h] = goes_on ? dot[i][first + h] : _mm256_setzero_si256();
    for (const int8_t *const end = a + o->units * QNI_UNIT; a < end; a += QNI_UNIT) {
        __m256i low[MOST][2], high[MOST][2];
        struct stored stored;
        QNI_UNROLL
        for (int q = 0; q < QUADS; q++) {
            struct nibbles n[2];
            if (is_short && first == 0 && (kind == BYTES || q < QUADS / 2))
                _mm_prefetch((const char *)codes + LINE * q + AHEAD, _MM_HINT_T0);
            if (!is_short && q < lines_of(kind))
                _mm_prefetch((const char *)ahead + LINE * q, _MM_HINT_T0);
            QNI_UNROLL
            for (int h = 0; h < halves; h++)
                n[h] = unpack(codes, q, first + h, o->table, kind);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256i x = quad(a + (size_t)i * o->lda + 4 * q);
                QNI_UNROLL
                for (int h = 0; h < halves; h++) {
                    const __m256i l = _mm256_maddubs_epi16(n[h].low, x);
                    if (i == rows_of(kind)) {
                        store_product(&stored.low[q][h], l);
                        if (kind != NIBBLES)
                            store_product(&stored.high[q][h], _mm256_maddubs_epi16(n[h].high, x));
                        continue;
                    }
                    low[i][h] = q == 0 ? l : _mm256_add_epi16(low[i][h], l);
                    QNI_KEEP(low[i][h]); /* or the compiler adds in another order, and spills */
                    if (kind == NIBBLES)
                        continue;
                    const __m256i m = _mm256_maddubs_epi16(n[h].high, x);
                    high[i][h] = q == 0 ? m : _mm256_add_epi16(high[i][h], m);
                    QNI_KEEP(high[i][h]);
                }
            }
        }
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            QNI_UNROLL
        for (int h = 0; h < halves; h++) {
            if (i == rows_of(kind)) {
                low[i][h] = sum_stored(stored.low, h);
                if (kind != NIBBLES)
                    high[i][h] = sum_stored(stored.high, h);
            }
            sum[i][h] = _mm256_add_epi32(sum[i][h], _mm256_madd_epi16(low[i][h], one));
            if (kind != NIBBLES)
                sum[i][h] = _mm256_add_epi32(sum[i][h], _mm256_madd_epi16(high[i][h], sixteen));
        }
        codes += kind == BYTES ? 512 : 256;
        ahead += is_short ? 0 : o->ahead.step;
    }
    o->ahead.at = ahead;
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < halves; h++)
        dot[i][first + h] = sum[i][h];
}

/* A segment: dot[i][h] = sum of u * a[i]. Moves on to the next one. */
QNI_TEMPLATE void dot_segment(struct operands *o, int64_t units, const int mr, const int kind,
                              const bool is_short, qni_dots *dot)
{
    const bool in_chunks = kind != NIBBLES && !is_short;
    bool goes_on = false;
    do {
        o->units = in_chunks && units > CHUNK ? CHUNK : units;
        if (kind == NIBBLES) {
            dot_units(o, mr, 0, 2, kind, is_short, false, dot);
        } else { /* twice as many sums: one half at a time */
            dot_units(o, mr, 0, 1, kind, is_short, goes_on, dot);
            dot_units(o, mr, 1, 1, kind, is_short, goes_on, dot);
        }
        o->codes += o->units * (kind == BYTES ? 512 : 256);
        o->a += o->units * QNI_UNIT;
        units -= o->units;
        goes_on = in_chunks;
    } while (in_chunks && units > 0);
}

/* Where the facts of rows and of a panel lie for the segment at hand: they move along, for short
 * segments would spend more on finding them than on products. */
struct facts {
    const int32_t *a_sum, *sums; /* sums, a_offset, a_total: only read where there are some */
    const float *a_scale, *a_offset, *a_total;
    const void *scale, *offset;
    size_t ld; /* from row to row */
};

/* int8-block. */
QNI_TEMPLATE void add_block(const struct qni_matmul_tile *t, struct facts *f, const __m256 *scale,
                            const int mr, const qni_dots *dot, qni_floats *acc)
{
    __m256 term[MOST][2];
    if (t->a_offset != NULL) {
        const __m256 sum[2] = {_mm256_cvtepi32_ps(load_i32(f->sums)),
                               _mm256_cvtepi32_ps(load_i32(f->sums + 8))};
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m256 offset = _mm256_broadcast_ss(f->a_offset + (size_t)i * f->ld);
            const __m256 sx = _mm256_broadcast_ss(f->a_scale + (size_t)i * f->ld);
            QNI_UNROLL
            for (int h = 0; h < 2; h++)
                term[i][h] = _mm256_fmadd_ps(sx, _mm256_cvtepi32_ps(dot[i][h]),
                                             _mm256_mul_ps(offset, sum[h]));
        }
        f->a_offset++, f->sums += QNI_PANEL;
    } else {
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m256 sx = _mm256_broadcast_ss(f->a_scale + (size_t)i * f->ld);
            QNI_UNROLL
            for (int h = 0; h < 2; h++)
                term[i][h] = _mm256_mul_ps(sx, _mm256_cvtepi32_ps(dot[i][h]));
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        acc[i][h] = _mm256_fmadd_ps(scale[h], term[i][h], acc[i][h]);
    f->a_scale++;
    if (t->offset == NULL)
        return;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const __m256 total = _mm256_broadcast_ss(f->a_total + (size_t)i * f->ld);
        QNI_UNROLL
        for (int h = 0; h < 2; h++)
            acc[i][h] =
                _mm256_fmadd_ps(qni_load8(f->offset, 0, h, t->scale_is_f16), total, acc[i][h]);
    }
    f->a_total++;
}

/* mr rows of one panel, all of k. */
QNI_TEMPLATE void panel_rows(const struct qni_matmul_tile *t, int64_t panel, int64_t row,
                             struct ahead *ahead, const int mr, const int kind, const bool is_short)
{
    const struct table table = load_table(t->table8, kind);
    const size_t fact = (size_t)row * t->ld_segment;
    const size_t step = QNI_PANEL * (t->scale_is_f16 ? 2 : 4); /* from group to group */
    const size_t group = (size_t)(panel * t->n_groups) * step;
    struct segment_place at = {panel, row, 0, 0, 0};
    struct operands o = {t->codes + (size_t)panel * t->codes_stride,
                         (const int8_t *)t->a + (size_t)row * t->lda,
                         t->lda,
                         0,
                         &table,
                         *ahead};
    const int64_t first = panel * t->n_segments * QNI_PANEL;
    struct facts f = {.a_sum = t->a_sum + fact, .ld = t->ld_segment};
    f.scale = (const char *)t->scale + group;
    if (t->a_scale != NULL)
        f.a_scale = t->a_scale + fact;
    if (t->a_offset != NULL)
        f.a_offset = t->a_offset + fact, f.sums = t->sums + first;
    if (t->offset != NULL && t->a_scale != NULL)
        f.a_total = t->a_total + fact;
    if (t->offset != NULL)
        f.offset = (const char *)t->offset + group;
    qni_floats acc[MOST];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (; at.group < t->n_groups; at.group++) {
        const int64_t end = group_end(t, at.group);
        __m256 scale[2];
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            scale[h] = qni_load8(f.scale, 0, h, t->scale_is_f16);
            if (kind == NIBBLE_TABLE && t->table8_doubled)
                scale[h] = _mm256_mul_ps(scale[h], _mm256_set1_ps(0.5f));
        }
        for (int64_t units; at.unit < end; at.segment++, at.unit += units, f.a_sum++) {
            qni_dots dot[MOST];
            units = segment_end(t, at.unit, end) - at.unit;
            dot_segment(&o, units, mr, kind, is_short, dot);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) { /* the bias of the stored codes */
                const __m256i sum = _mm256_set1_epi32(f.a_sum[(size_t)i * f.ld]);
                const __m256i off = _mm256_slli_epi32(sum, kind == NIBBLES ? 3 : 7);
                dot[i][0] = _mm256_sub_epi32(dot[i][0], off);
                dot[i][1] = _mm256_sub_epi32(dot[i][1], off);
            }
            if (t->a_scale != NULL)
                add_block(t, &f, scale, mr, (const qni_dots *)dot, acc);
            else
                add_q8(t, &at, (const qni_dots *)dot, scale, mr, acc);
        }
        f.scale = (const char *)f.scale + step;
        if (t->offset != NULL)
            f.offset = (const char *)f.offset + step;
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(t->c + (size_t)(row + i) * t->ldc + panel * QNI_PANEL + 8 * h, acc[i][h]);
    *ahead = o.ahead;
}

/* What a block of rows asks for while it meets a panel that `blocks` of them have yet to meet. One
 * alone has asked for its own codes, of several each asks for a share of the next panel's: only
 * where both panels stay in the second cache. */
QNI_TEMPLATE void aim(const struct qni_matmul_tile *t, int64_t panel, int64_t blocks,
                      struct ahead *ahead, const int kind)
{
    enum { FAR = 192 << 10 };
    const uint8_t *const codes = t->codes + (size_t)panel * t->codes_stride;
    const uint8_t *const next = codes + t->codes_stride;
    const bool is_far = t->codes_stride > FAR;
    if (is_far)
        ahead->at = codes + AHEAD;
    if (is_far || ahead->at < next) {
        ahead->step = (size_t)lines_of(kind) * LINE;
        return;
    }
    const ptrdiff_t steps = t->units * blocks * passes(kind);
    const ptrdiff_t left = panel + 1 < t->n_panels ? next + t->codes_stride - ahead->at : 0;
    ahead->step = left > 0 ? (size_t)((left + steps - 1) / steps) : 0;
}

/* A row more than there are registers for costs less than another block where it saves one, and
 * always where segments are a unit. Not for codebooks, and bytes of long segments. */
QNI_TEMPLATE int64_t blocks_of(const struct qni_matmul_tile *t, const int kind, const bool is_short)
{
    const int rows = rows_of(kind);
    const bool is_wide = kind != NIBBLE_TABLE && is_short;
    if (is_wide && t->segment_units == 1)
        return (t->m + rows) / (rows + 1);
    return (t->m - (is_wide && t->m > 1) + rows - 1) / rows;
}

/* Panels outside, rows inside: the codes of a panel come from memory once. Blocks differ by one row
 * at most, so that no number of rows leaves a rest that costs as much as more of them. */
QNI_TEMPLATE void panels(const struct qni_matmul_tile *t, const int kind, const bool is_short)
{
    const bool in_blocks = kind == NIBBLES && !is_short;
    const int64_t all = blocks_of(t, kind, is_short);
    struct ahead ahead = {t->codes + AHEAD, (size_t)lines_of(kind) * LINE};
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        int64_t blocks = all;
        for (int64_t row = 0, mr; row < t->m; row += mr, blocks--) {
            mr = (t->m - row) / blocks;
            if (!is_short && all > 1)
                aim(t, panel, blocks, &ahead, kind);
            switch (mr) {
            case 7:
                if (is_short && kind == NIBBLES)
                    panel_rows(t, panel, row, &ahead, 7, kind, is_short);
                break;
            case 6:
                if (kind == NIBBLES || (is_short && kind == BYTES))
                    panel_rows(t, panel, row, &ahead, 6, kind, is_short);
                break;
            case 5:
                panel_rows(t, panel, row, &ahead, 5, kind, is_short);
                break;
            case 4:
                panel_rows(t, panel, row, &ahead, 4, kind, is_short);
                break;
            case 3:
                if (!in_blocks)
                    panel_rows(t, panel, row, &ahead, 3, kind, is_short);
                break;
            case 2:
                if (!in_blocks)
                    panel_rows(t, panel, row, &ahead, 2, kind, is_short);
                break;
            default:
                if (!in_blocks)
                    panel_rows(t, panel, row, &ahead, 1, kind, is_short);
                break;
            }
        }
    }
}

/* Where segments are short, products and floats take longer than memory does, and a pointer more
 * than there are registers for shows. Nibbles of one block ask for their own codes either way, so
 * that blocks of four rows and more are all that others need. Functions of their own: in larger
 * ones gcc spills more. */
QNI_NOINLINE static void short_nibbles(const struct qni_matmul_tile *t)
{
    panels(t, NIBBLES, true);
}
QNI_NOINLINE static void long_nibbles(const struct qni_matmul_tile *t)
{
    panels(t, NIBBLES, false);
}
QNI_NOINLINE static void short_bytes(const struct qni_matmul_tile *t)
{
    panels(t, BYTES, true);
}
QNI_NOINLINE static void long_bytes(const struct qni_matmul_tile *t)
{
    panels(t, BYTES, false);
}

static bool is_short(const struct qni_matmul_tile *t)
{
    return t->segment_units <= SHORT;
}

/* Q8 and Q8B differ only after a segment, where the facts of the rows tell which it is. */
static void tile_nibbles(const struct qni_matmul_tile *t)
{
    (is_short(t) || t->m <= MOST ? short_nibbles : long_nibbles)(t);
}
static void tile_nibble_table(const struct qni_matmul_tile *t)
{
    panels(t, NIBBLE_TABLE, true);
}
static void tile_bytes(const struct qni_matmul_tile *t)
{
    (is_short(t) ? short_bytes : long_bytes)(t);
}

void qni_matmul_q8_q4n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile_nibbles(t);
}
void qni_matmul_q8_t4n16_mr5_avx2(const struct qni_matmul_tile *t)
{
    tile_nibble_table(t);
}
void qni_matmul_q8_q8n16_mr5_avx2(const struct qni_matmul_tile *t)
{
    tile_bytes(t);
}
void qni_matmul_q8b_q4n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile_nibbles(t);
}
void qni_matmul_q8b_t4n16_mr5_avx2(const struct qni_matmul_tile *t)
{
    tile_nibble_table(t);
}
void qni_matmul_q8b_q8n16_mr5_avx2(const struct qni_matmul_tile *t)
{
    tile_bytes(t);
}
