/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of int8 products with AVX2, exact for all bytes. vpmaddubsw multiplies unsigned by signed
 * bytes and adds two products in int16, where they saturate. They do not if x is in [0, top] and
 * what is positive of the weights that meet in a lane is at most most = 32767 / top together, and
 * what is negative, too: 128 for all bytes. Then as many vpmaddubsw as the same limit holds for may
 * be added in int16 before vpmaddwd with ones widens them:
 *
 *     lanes of two positions     3 instructions for 32 products, and half a load of x
 *     of four ("joined")         2.5
 *
 * So weights are made smaller where a lane has too much, and the rest, which few outputs and
 * positions have, is a list for each output. x that meets it is turned, so that its lanes are rows:
 *
 *     w = within + rest      sum x w = sum x within (tiles)  +  sum over a list of x rest (columns)
 *
 * With a bell of weights whose largest is 3.5 sigma one in a hundred lanes of two has too much, and
 * one in ten of four; where the largest is from 5 sigma on, few have. Whether lanes are joined is
 * the choice of every 16 outputs, by counting.
 *
 *     x   bytes less the smallest, as they lie
 *     w   "quads": four positions of 16 outputs in 64 bytes, dword j of output j
 *
 * 2 rows x 32 outputs, or 4 x 16: 8 registers for sums, w from the first cache. */
#ifndef QNI_CPU_SIMD_PAIRS_H
#define QNI_CPU_SIMD_PAIRS_H

#include "../../base/compiler.h"
#include "../direct/kernel.h"
#include "avx2.h"
#include "transpose.h"

/* Positions that meet at a time, as many bytes from row to row; rows of a tile; of turned x. */
enum { QNI_PAIRS_DEPTH = 384, QNI_PAIRS_ROWS = 4, QNI_PAIRS_TURNED = 256 };
enum { QNI_PAIRS_VECTORS = 4 }; /* of a row of a tile at most */
enum { QNI_PAIRS_QUAD = 64, QNI_PAIRS_OUTPUTS = 16 };

/* What is left of weights of one output. */
struct qni_pairs_rest {
    int32_t n;
    int16_t w[QNI_PAIRS_DEPTH], at[QNI_PAIRS_DEPTH];
};
/* Two of them as they are multiplied. group, of the first of so many such pairs as may be added in
 * int16 (of x less its middle the sum is one): how many, and 128 times what all their weights add
 * up to. */
struct qni_pairs_two {
    int16_t at[2];
    int8_t w[2];
    int16_t group;
};
_Static_assert(sizeof(struct qni_pairs_two) == 8, "four of them to a vector");
_Static_assert(QNI_PAIRS_DEPTH >= 2 * 127 + 16, "zeros behind a list of one group");
enum { QNI_PAIRS_GROUP = 127, QNI_PAIRS_GROUP_SUM = 255 };

/* Weights of 16 outputs. over_four: of every 8 positions and 8 outputs, two bits for each lane of
 * four positions that has too much. */
struct qni_pairs_w {
    _Alignas(64) int8_t quads[QNI_PAIRS_DEPTH * QNI_PAIRS_OUTPUTS];
    int32_t sums[QNI_PAIRS_OUTPUTS];
    uint32_t over_four[QNI_PAIRS_DEPTH / 4];
    int32_t most;
    bool is_joined;
    struct qni_pairs_rest rest[QNI_PAIRS_OUTPUTS];
    int32_t first[QNI_PAIRS_OUTPUTS + 1]; /* of each output in list */
    struct qni_pairs_two list[QNI_PAIRS_OUTPUTS * QNI_PAIRS_DEPTH + 8];
};

/* The same as tiles and columns meet them. */
struct qni_pairs_ready {
    const int8_t *quads;
    const int32_t *sums, *first;
    const struct qni_pairs_two *list;
    bool is_joined;
};
QNI_TEMPLATE struct qni_pairs_ready qni_pairs_ready_of(const struct qni_pairs_w *w)
{
    return (struct qni_pairs_ready){w->quads, w->sums, w->first, w->list, w->is_joined};
}

/* ---- x --------------------------------------------------------------------------------------- */

/* Rows of n bytes, a multiple of 32: takes the smallest from all, and says which it was and what
 * the largest is now. Leaves bytes that take more than half of all values as they are: it would
 * gain little. */
QNI_INLINE int32_t qni_pairs_settle(uint8_t *x, int64_t rows, int64_t n, int32_t *top)
{
    enum { WIDE = 160, LOOK = 8 };
    __m256i least = _mm256_set1_epi8(-1), most = _mm256_setzero_si256();
    uint8_t low[32], high[32];
    int32_t lo = 255, hi = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i += 32) {
            const __m256i v =
                _mm256_loadu_si256((const __m256i *)(const void *)(x + r * QNI_PAIRS_DEPTH + i));
            least = _mm256_min_epu8(least, v);
            most = _mm256_max_epu8(most, v);
        }
        if (r % LOOK != 0 && r + 1 < rows)
            continue;
        _mm256_storeu_si256((__m256i *)(void *)low, least);
        _mm256_storeu_si256((__m256i *)(void *)high, most);
        for (int i = 0; i < 32; i++) {
            lo = low[i] < lo ? low[i] : lo;
            hi = high[i] > hi ? high[i] : hi;
        }
        *top = 255;
        if (hi - lo > WIDE)
            return 0;
    }
    const __m256i less = _mm256_set1_epi8((char)lo);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i += 32) {
            __m256i *const v = (__m256i *)(void *)(x + r * QNI_PAIRS_DEPTH + i);
            _mm256_storeu_si256(v, _mm256_sub_epi8(_mm256_loadu_si256(v), less));
        }
    *top = hi - lo > 0 ? hi - lo : 1;
    return lo;
}

/* Rows (rounded up to 32) of n bytes, a multiple of 16, to n rows of QNI_PAIRS_TURNED. */
static void qni_pairs_turn(const uint8_t *x, int64_t rows, int64_t n, uint8_t *to)
{
    for (int64_t r = 0; r < rows; r += 32)
        for (int64_t i = 0; i < n; i += 16)
            qni_turn32_u8(to + i * QNI_PAIRS_TURNED + r, QNI_PAIRS_TURNED,
                          x + r * QNI_PAIRS_DEPTH + i, QNI_PAIRS_DEPTH);
}

/* ---- w --------------------------------------------------------------------------------------- */

QNI_TEMPLATE __m256i qni_pairs_load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
QNI_TEMPLATE void qni_pairs_store(void *to, const __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* Units of 32 positions, 256 bytes of nibbles of value + 8, as quads of values. */
QNI_TEMPLATE void qni_pairs_of_nibbles(const uint8_t *from, int64_t units, int8_t *to)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f), eight = _mm256_set1_epi8(8);
    for (; units > 0; units--, to += 256)
        for (int i = 0; i < 256; i += 32, from += 32, to += 32) {
            const __m256i v = qni_pairs_load(from), high = _mm256_srli_epi16(v, 4);
            qni_pairs_store(to, _mm256_sub_epi8(_mm256_and_si256(v, nibble), eight));
            qni_pairs_store(to + 256, _mm256_sub_epi8(_mm256_and_si256(high, nibble), eight));
        }
}

/* What is positive in lanes of two weights, and what is negative. */
struct qni_pairs_lanes {
    __m256i above, below;
};
QNI_TEMPLATE struct qni_pairs_lanes qni_pairs_lanes_of(const __m256i v)
{
    const __m256i ones = _mm256_set1_epi8(1);
    const __m256i all = _mm256_maddubs_epi16(ones, v);
    struct qni_pairs_lanes l;
    l.above = _mm256_maddubs_epi16(_mm256_max_epi8(v, _mm256_setzero_si256()), ones);
    l.below = _mm256_sub_epi16(l.above, all);
    return l;
}

/* 8 positions of 8 outputs: lanes of four that have too much, two bits each, and of two, one bit;
 * and sums of lanes of four. */
struct qni_pairs_over {
    uint32_t four, two;
    __m256i all;
};
QNI_TEMPLATE struct qni_pairs_over qni_pairs_half(const int8_t *quad, const __m256i flip,
                                                  const __m256i most)
{
    const struct qni_pairs_lanes a =
        qni_pairs_lanes_of(_mm256_xor_si256(qni_pairs_load(quad), flip));
    const struct qni_pairs_lanes b =
        qni_pairs_lanes_of(_mm256_xor_si256(qni_pairs_load(quad + QNI_PAIRS_QUAD), flip));
    const __m256i above = _mm256_add_epi16(a.above, b.above);
    const __m256i below = _mm256_add_epi16(a.below, b.below);
    const __m256i over_a = _mm256_cmpgt_epi16(_mm256_max_epi16(a.above, a.below), most);
    const __m256i over_b = _mm256_cmpgt_epi16(_mm256_max_epi16(b.above, b.below), most);
    const __m256i over = _mm256_cmpgt_epi16(_mm256_max_epi16(above, below), most);
    struct qni_pairs_over o;
    o.four = (uint32_t)_mm256_movemask_epi8(over);
    o.two = (uint32_t)_mm256_movemask_epi8(_mm256_packs_epi16(over_a, over_b));
    o.all = _mm256_sub_epi16(above, below);
    return o;
}

QNI_TEMPLATE void qni_pairs_widen(const int8_t *from, __m256i *v)
{
    const __m256i bytes = qni_pairs_load(from);
    v[0] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    v[1] = _mm256_srai_epi16(bytes, 8);
}
QNI_TEMPLATE void qni_pairs_narrow(const __m256i *v, int8_t *to)
{
    const __m256i even = _mm256_and_si256(v[0], _mm256_set1_epi16(0xff));
    qni_pairs_store(to, _mm256_or_si256(even, _mm256_slli_epi16(v[1], 8)));
}

struct qni_pairs_taken {
    __m256i w, at, over; /* how much, of which position behind the lane's first; from which lanes */
    bool is_all;
};

/* Takes from the largest value of every lane that is beyond `most` what it has too much, or all.
 * One sign at a time, the positive first. */
QNI_TEMPLATE struct qni_pairs_taken qni_pairs_take(__m256i *v, const int n, const __m256i most)
{
    struct qni_pairs_taken t;
    const __m256i none = _mm256_setzero_si256();
    __m256i above = none, below = none, high = none, low = none;
    QNI_UNROLL
    for (int i = 0; i < n; i++) {
        above = _mm256_add_epi16(above, _mm256_max_epi16(v[i], none));
        below = _mm256_add_epi16(below, _mm256_min_epi16(v[i], none));
        high = _mm256_max_epi16(high, v[i]);
        low = _mm256_min_epi16(low, v[i]);
    }
    const __m256i up = _mm256_subs_epu16(above, most);
    const __m256i down = _mm256_min_epi16(_mm256_add_epi16(below, most), none);
    const __m256i is_up = _mm256_cmpgt_epi16(up, none), has_down = _mm256_cmpgt_epi16(none, down);
    const __m256i is_down = _mm256_andnot_si256(is_up, has_down);
    const __m256i largest = _mm256_blendv_epi8(low, high, is_up);
    const __m256i again = _mm256_or_si256(
        _mm256_or_si256(_mm256_cmpgt_epi16(up, high), _mm256_cmpgt_epi16(low, down)),
        _mm256_and_si256(is_up, has_down));
    t.w = _mm256_or_si256(_mm256_min_epi16(up, high),
                          _mm256_and_si256(is_down, _mm256_max_epi16(down, low)));
    t.at = none;
    t.over = _mm256_or_si256(is_up, is_down);
    t.is_all = _mm256_testz_si256(again, again);
    __m256i left = t.over;
    QNI_UNROLL
    for (int i = 0; i < n; i++) {
        const __m256i is = _mm256_and_si256(left, _mm256_cmpeq_epi16(v[i], largest));
        const __m256i behind = _mm256_set1_epi16((int16_t)(i % 2 + i / 2 * 4));
        left = _mm256_andnot_si256(is, left);
        v[i] = _mm256_sub_epi16(v[i], _mm256_and_si256(is, t.w));
        t.at = _mm256_or_si256(t.at, _mm256_and_si256(is, behind));
    }
    return t;
}

/* n values of 16 lanes, 8 outputs, of which some have too much: the rest goes to the outputs'
 * lists. at: of the first position. */
QNI_TEMPLATE void qni_pairs_lessen(__m256i *v, const int n, const __m256i most, int64_t at,
                                   struct qni_pairs_rest *rest)
{
    int16_t taken[16], where[16];
    const __m256i first =
        _mm256_add_epi16(_mm256_set1_epi16((int16_t)at), _mm256_set1_epi32(2 << 16));
    for (bool is_all = false; !is_all;) {
        const struct qni_pairs_taken t = qni_pairs_take(v, n, most);
        is_all = t.is_all;
        qni_pairs_store(taken, t.w);
        qni_pairs_store(where, _mm256_add_epi16(t.at, first));
        for (uint32_t bits = (uint32_t)_mm256_movemask_epi8(t.over) & 0x55555555u; bits != 0;
             bits &= bits - 1) {
            const int lane = __builtin_ctz(bits) / 2;
            struct qni_pairs_rest *const r = &rest[lane / 2];
            r->at[r->n] = where[lane];
            r->w[r->n++] = taken[lane];
        }
    }
}

static void qni_pairs_lessen_four(struct qni_pairs_w *w, int64_t chunks)
{
    const __m256i most = _mm256_set1_epi16((int16_t)w->most);
    for (int64_t i = 0; i < 2 * chunks; i++) {
        int8_t *const quad = w->quads + i / 2 * 2 * QNI_PAIRS_QUAD + i % 2 * 32;
        struct qni_pairs_rest *const rest = w->rest + i % 2 * 8;
        __m256i v[4];
        if (w->over_four[i] == 0)
            continue;
        qni_pairs_widen(quad, v);
        qni_pairs_widen(quad + QNI_PAIRS_QUAD, v + 2);
        qni_pairs_lessen(v, 4, most, i / 2 * 8, rest);
        qni_pairs_narrow(v, quad);
        qni_pairs_narrow(v + 2, quad + QNI_PAIRS_QUAD);
    }
}

/* A list of any length. Two of a pair do not saturate. */
static struct qni_pairs_two *qni_pairs_groups_of(const struct qni_pairs_rest *rest, int32_t most,
                                                 struct qni_pairs_two *to)
{
    struct qni_pairs_two *first = to;
    int32_t sum = 0, size = 0;
    bool is_odd = false;
    for (int32_t i = 0; i < rest->n; i++) {
        const int32_t v = rest->w[i], more = v < 0 ? -v : v;
        if (size + more > QNI_PAIRS_GROUP_SUM || to - first == QNI_PAIRS_GROUP) {
            first->group = (int16_t)(sum * 128 + (to - first));
            first = to;
            sum = size = 0;
            is_odd = false;
        }
        sum += v;
        size += more;
        const int32_t both = is_odd ? to[-1].w[0] + v : v;
        if (is_odd && both <= most && both >= -most) {
            to[-1].at[1] = rest->at[i];
            to[-1].w[1] = (int8_t)v;
            is_odd = false;
        } else {
            *to++ = (struct qni_pairs_two){{rest->at[i], rest->at[i]}, {(int8_t)v, 0}, 0};
            is_odd = true;
        }
    }
    if (to > first)
        first->group = (int16_t)(sum * 128 + (to - first));
    return to;
}

QNI_TEMPLATE int32_t qni_pairs_total(const __m256i v)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* A list of one group, as most are: how many pairs it has, or 0 if it is none. Writes up to 7 more.
 */
QNI_TEMPLATE int32_t qni_pairs_one_group(struct qni_pairs_rest *rest, const __m256i most,
                                         struct qni_pairs_two *to)
{
    enum { MOST = 2 * QNI_PAIRS_GROUP };
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256(), size = sum, over = sum;
    const int32_t n = rest->n;
    if (n > MOST)
        return 0;
    qni_pairs_store(rest->w + n, _mm256_setzero_si256());
    rest->at[n] = 0;
    for (int32_t i = 0; i < n; i += 16) {
        const __m256i w = qni_pairs_load(rest->w + i), at = qni_pairs_load(rest->at + i);
        const __m256i both = _mm256_madd_epi16(w, ones);
        const __m256i bytes = _mm256_packs_epi16(w, w);
        const __m256i words = _mm256_unpacklo_epi16(bytes, _mm256_setzero_si256());
        const __m256i low = _mm256_unpacklo_epi32(at, words);
        const __m256i high = _mm256_unpackhi_epi32(at, words);
        sum = _mm256_add_epi32(sum, both);
        size = _mm256_add_epi32(size, _mm256_madd_epi16(_mm256_abs_epi16(w), ones));
        over = _mm256_or_si256(over, _mm256_cmpgt_epi32(_mm256_abs_epi32(both), most));
        qni_pairs_store(to + i / 2, _mm256_permute2x128_si256(low, high, 0x20));
        qni_pairs_store(to + i / 2 + 4, _mm256_permute2x128_si256(low, high, 0x31));
    }
    if (!_mm256_testz_si256(over, over) || qni_pairs_total(size) > QNI_PAIRS_GROUP_SUM)
        return 0;
    to->group = (int16_t)(qni_pairs_total(sum) * 128 + (n + 1) / 2);
    return (n + 1) / 2;
}

/* Of each output what its list has to pairs, in groups. */
static void qni_pairs_list(struct qni_pairs_w *w)
{
    const __m256i most = _mm256_set1_epi32(w->most);
    struct qni_pairs_two *to = w->list;
    for (int j = 0; j < QNI_PAIRS_OUTPUTS; j++) {
        struct qni_pairs_rest *const rest = &w->rest[j];
        w->first[j] = (int32_t)(to - w->list);
        if (rest->n == 0)
            continue;
        const int32_t n = qni_pairs_one_group(rest, most, to);
        to = n != 0 ? to + n : qni_pairs_groups_of(rest, w->most, to);
    }
    w->first[QNI_PAIRS_OUTPUTS] = (int32_t)(to - w->list);
}

static int32_t qni_pairs_most(int32_t top)
{
    return 32767 / top < 1024 ? 32767 / top : 1024;
}

/* A lane of two of 64 of a chunk, as packed words are. */
QNI_TEMPLATE void qni_pairs_enter(struct qni_pairs_w *w, uint32_t lane, int16_t taken)
{
    const uint32_t i = lane % 64, output = i / 32 * 8 + i / 16 % 2 * 4 + i % 8 / 2;
    struct qni_pairs_rest *const r = &w->rest[output];
    r->at[r->n] = (int16_t)(lane / 64 * 8 + i / 8 % 2 * 4 + i % 2 * 2);
    r->w[r->n++] = taken;
}

/* Weights of lanes of two, from codes to w->quads. Those that have too much are two weights of one
 * sign, of which the first takes all of it: the second alone never has. Which ones do is written
 * down four at a time, whether there are so many or not: nobody foresees how many a chunk has. What
 * lies so far ahead is asked for. */
static void qni_pairs_lessen_two(struct qni_pairs_w *w, const int8_t *codes, uint8_t flip,
                                 int64_t chunks, ptrdiff_t ahead)
{
    enum { SOME = 4, LANES = 64 };
    const __m256i ones8 = _mm256_set1_epi8(1), low = _mm256_set1_epi16(0xff);
    const __m256i ones = _mm256_set1_epi16(1), most = _mm256_set1_epi16((int16_t)w->most);
    const __m256i least = _mm256_sub_epi16(_mm256_setzero_si256(), most);
    const __m256i flips = _mm256_set1_epi8((char)flip);
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    int8_t taken[QNI_PAIRS_DEPTH / 8 * LANES];
    uint16_t over[QNI_PAIRS_DEPTH / 8 * LANES + SOME];
    int64_t n = 0;
    int8_t *quads = w->quads;
    for (int64_t c = 0; c < chunks; c++, codes += 2 * QNI_PAIRS_QUAD, quads += 2 * QNI_PAIRS_QUAD) {
        uint64_t bits = 0;
        _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)codes + ahead + QNI_PAIRS_QUAD, _MM_HINT_T1);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i rest[2];
            QNI_UNROLL
            for (int q = 0; q < 2; q++) {
                const int64_t at = q * QNI_PAIRS_QUAD + h * 32;
                const __m256i v = _mm256_xor_si256(qni_pairs_load(codes + at), flips);
                const __m256i both = _mm256_maddubs_epi16(ones8, v);
                const __m256i within = _mm256_min_epi16(_mm256_max_epi16(both, least), most);
                rest[q] = _mm256_sub_epi16(both, within);
                sum[h] = _mm256_add_epi16(sum[h], both);
                qni_pairs_store(quads + at, _mm256_sub_epi8(v, _mm256_and_si256(rest[q], low)));
            }
            const __m256i packed = _mm256_packs_epi16(rest[0], rest[1]);
            const __m256i none = _mm256_cmpeq_epi8(packed, _mm256_setzero_si256());
            qni_pairs_store(taken + c * LANES + h * 32, packed);
            bits |= (uint64_t)(uint32_t)~_mm256_movemask_epi8(none) << h * 32;
        }
        int left = __builtin_popcountll(bits);
        uint16_t *to = over + n;
        n += left;
        for (; left > 0; left -= SOME)
            QNI_UNROLL
        for (int i = 0; i < SOME; i++, bits &= bits - 1)
            *to++ = (uint16_t)(c * LANES + __builtin_ctzll(bits | UINT64_C(1) << 63));
    }
    for (int64_t i = 0; i < n; i++)
        qni_pairs_enter(w, over[i], taken[over[i]]);
    qni_pairs_store(w->sums, _mm256_madd_epi16(sum[0], ones));
    qni_pairs_store(w->sums + 8, _mm256_madd_epi16(sum[1], ones));
}

/* The same of four, of which w->quads has the values. */
static void qni_pairs_count(struct qni_pairs_w *w, int64_t chunks)
{
    const __m256i most = _mm256_set1_epi16((int16_t)w->most), ones = _mm256_set1_epi16(1);
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t i = 0; i < 2 * chunks; i++) {
        const int8_t *const quad = w->quads + i / 2 * 2 * QNI_PAIRS_QUAD + i % 2 * 32;
        const struct qni_pairs_over o = qni_pairs_half(quad, _mm256_setzero_si256(), most);
        w->over_four[i] = o.four;
        sum[i % 2] = _mm256_add_epi32(sum[i % 2], _mm256_madd_epi16(o.all, ones));
    }
    qni_pairs_store(w->sums, sum[0]);
    qni_pairs_store(w->sums + 8, sum[1]);
}

/* Do lanes of four pay, of so many rows? Some chunks are looked at. Costs in sixteenths of a cycle
 * (measured): a row and a chunk of lanes of two 4.1 cycles, of four 3.6; a lane that has too much
 * 0.4 for a row, and once 8 of two, of four 44, or hardly anything where weights are kept for other
 * rows. */
static bool qni_pairs_joins(const struct qni_pairs_w *w, const int8_t *codes, uint8_t flip,
                            int64_t chunks, int64_t rows, bool is_kept)
{
    enum { TWO = 66, FOUR = 58, LESSEN_TWO = 128, LESSEN = 700, KEPT = 50, REST = 6, LOOK = 8 };
    const __m256i most = _mm256_set1_epi16((int16_t)w->most);
    const __m256i flips = _mm256_set1_epi8((char)flip);
    const int64_t step = (chunks + LOOK - 1) / LOOK;
    int64_t seen = 0, n_two = 0, n_four = 0;
    for (int64_t i = 0; i < chunks; i += step, seen++)
        for (int h = 0; h < 2; h++) {
            const struct qni_pairs_over o =
                qni_pairs_half(codes + 2 * i * QNI_PAIRS_QUAD + h * 32, flips, most);
            n_two += __builtin_popcount(o.two);
            n_four += __builtin_popcount(o.four) / 2;
        }
    const int64_t two = (is_kept ? KEPT : LESSEN_TWO) + REST * rows;
    const int64_t four = (is_kept ? KEPT : LESSEN) + REST * rows;
    return FOUR * seen * rows + four * n_four <= TWO * seen * rows + two * n_two;
}

/* Weights of chunks of 8 positions, from codes, which are changed by flip, or w->quads, as x in
 * [0, top] can meet them, rows of it. Of few rows lanes are not counted. */
static void qni_pairs_part_of(struct qni_pairs_w *w, const int8_t *codes, uint8_t flip,
                              int64_t chunks, int64_t rows, int32_t top, bool is_kept,
                              ptrdiff_t ahead)
{
    enum { FEW = 128 };
    const __m256i flips = _mm256_set1_epi8((char)flip);
    w->most = qni_pairs_most(top);
    for (int j = 0; j < QNI_PAIRS_OUTPUTS; j++)
        w->rest[j].n = 0;
    w->is_joined =
        (is_kept || rows >= FEW) && qni_pairs_joins(w, codes, flip, chunks, rows, is_kept);
    if (w->is_joined) {
        for (int64_t i = 0; codes != w->quads && i < 2 * chunks * QNI_PAIRS_QUAD; i += 32)
            qni_pairs_store(w->quads + i, _mm256_xor_si256(qni_pairs_load(codes + i), flips));
        qni_pairs_count(w, chunks);
        qni_pairs_lessen_four(w, chunks);
    } else {
        qni_pairs_lessen_two(w, codes, flip, chunks, ahead);
    }
    qni_pairs_list(w);
}

/* The same of values that are in w->quads. */
QNI_INLINE void qni_pairs_part(struct qni_pairs_w *w, int64_t chunks, int64_t rows, int32_t top,
                               bool is_kept)
{
    qni_pairs_part_of(w, w->quads, 0, chunks, rows, top, is_kept, 0);
}

/* ---- sums ---------------------------------------------------------------------------------- */

/* A group of some times 32 rows of an output, as int16 in the order of unpacked bytes. With
 * m = 128, sum x w = m sum w + sum (x - m) w. This is the second, which is int16 whatever sums are
 * on the way, so they begin with -m sum w. x is turned, and begins with these rows. */
QNI_TEMPLATE const struct qni_pairs_two *
qni_pairs_group(const uint8_t *x, const struct qni_pairs_two *list, const int some, __m256i *part)
{
    const __m256i less = _mm256_set1_epi16((int16_t) - (list->group & ~QNI_PAIRS_GROUP));
    QNI_UNROLL
    for (int i = 0; i < 2 * some; i++)
        part[i] = less;
    for (int32_t left = list->group & QNI_PAIRS_GROUP; left > 0; left--, list++) {
        const uint8_t *const a = x + list->at[0] * QNI_PAIRS_TURNED;
        const uint8_t *const b = x + list->at[1] * QNI_PAIRS_TURNED;
        int16_t two;
        memcpy(&two, list->w, sizeof two);
        const __m256i w = _mm256_set1_epi16(two);
        QNI_UNROLL
        for (int i = 0; i < some; i++) {
            const __m256i xa = qni_pairs_load(a + 32 * i), xb = qni_pairs_load(b + 32 * i);
            const __m256i low = _mm256_maddubs_epi16(_mm256_unpacklo_epi8(xa, xb), w);
            const __m256i high = _mm256_maddubs_epi16(_mm256_unpackhi_epi8(xa, xb), w);
            part[2 * i] = _mm256_add_epi16(part[2 * i], low);
            part[2 * i + 1] = _mm256_add_epi16(part[2 * i + 1], high);
        }
    }
    return list;
}

enum { QNI_PAIRS_RUN = 128 };

/* Groups of 8 outputs, from at[] of the list on, of some times 32 rows: words of 16 outputs. */
QNI_TEMPLATE void qni_pairs_groups(const uint8_t *x, const struct qni_pairs_ready *w,
                                   const int32_t *at, const int32_t *end, const int some,
                                   int16_t *to)
{
    int16_t columns[8 * QNI_PAIRS_RUN];
    for (int j = 0; j < 8; j++) {
        __m256i part[8];
        QNI_UNROLL
        for (int i = 0; i < 2 * some; i++)
            part[i] = _mm256_setzero_si256();
        if (at[j] != end[j])
            qni_pairs_group(x, w->list + at[j], some, part);
        QNI_UNROLL
        for (int i = 0; i < 2 * some; i++)
            qni_pairs_store(columns + j * QNI_PAIRS_RUN + 16 * i, part[i]);
    }
    for (int i = 0; i < 2 * some; i++) {
        int16_t *const row = to + (i / 2 * 32 + i % 2 * 8) * QNI_PAIRS_OUTPUTS;
        __m256i turned[8];
        qni_turn8_words(columns + 16 * i, QNI_PAIRS_RUN, turned);
        QNI_UNROLL
        for (int r = 0; r < 8; r++) {
            int16_t *const low = row + r * QNI_PAIRS_OUTPUTS;
            _mm_storeu_si128((__m128i *)(void *)low, _mm256_castsi256_si128(turned[r]));
            _mm_storeu_si128((__m128i *)(void *)(low + 16 * QNI_PAIRS_OUTPUTS),
                             _mm256_extracti128_si256(turned[r], 1));
        }
    }
}

/* One group of each of 16 lists, from at[] on, which moves behind it: words of so many rows, and
 * what is constant is added to middle. Writes, and reads of turned x, up to 127 rows more. */
static void qni_pairs_round(const uint8_t *x, const struct qni_pairs_ready *w, int32_t *at,
                            int64_t rows, int16_t *to, int32_t *middle)
{
    const int32_t *const end = w->first + 1;
    for (int64_t row = 0; row < rows; row += QNI_PAIRS_RUN)
        for (int h = 0; h < QNI_PAIRS_OUTPUTS; h += 8) {
            int16_t *const words = to + row * QNI_PAIRS_OUTPUTS + h;
            if (rows - row > QNI_PAIRS_RUN / 2)
                qni_pairs_groups(x + row, w, at + h, end + h, 4, words);
            else
                qni_pairs_groups(x + row, w, at + h, end + h, 2, words);
        }
    for (int j = 0; j < QNI_PAIRS_OUTPUTS; j++)
        if (at[j] != end[j]) {
            const int32_t group = w->list[at[j]].group;
            middle[j] += group & ~QNI_PAIRS_GROUP;
            at[j] += group & QNI_PAIRS_GROUP;
        }
}

/* Four bytes, for every output. */
QNI_TEMPLATE __m256i qni_pairs_four(const uint8_t *x)
{
    float four;
    memcpy(&four, x, sizeof four);
    return _mm256_castps_si256(_mm256_set1_ps(four));
}

/* *sum += x times 8 outputs of a quad. In this order, with w from memory: compilers load it first,
 * for which there are no registers. */
QNI_TEMPLATE void qni_pairs_add_two(const __m256i x, const int8_t *w, const __m256i ones,
                                    __m256i *sum)
{
    __m256i t;
    __asm__("vpmaddubsw %[w], %[x], %[t]\n\t"
            "vpmaddwd %[ones], %[t], %[t]\n\t"
            "vpaddd %[t], %[sum], %[sum]"
            : [t] "=&x"(t), [sum] "+x"(*sum)
            : [w] "m"(*(const int8_t(*)[32])w), [x] "x"(x), [ones] "x"(ones));
}

/* The same of two quads, joined. */
QNI_TEMPLATE void qni_pairs_add_four(const __m256i *x, const int8_t *w, const __m256i ones,
                                     __m256i *sum)
{
    __m256i t, u;
    __asm__("vpmaddubsw %[v], %[x], %[t]\n\t"
            "vpmaddubsw %[w], %[y], %[u]\n\t"
            "vpaddw %[u], %[t], %[t]\n\t"
            "vpmaddwd %[ones], %[t], %[t]\n\t"
            "vpaddd %[t], %[sum], %[sum]"
            : [t] "=&x"(t), [u] "=&x"(u), [sum] "+x"(*sum)
            : [v] "m"(*(const int8_t(*)[32])w), [w] "m"(*(const int8_t(*)[32])(w + QNI_PAIRS_QUAD)),
              [x] "x"(x[0]), [y] "x"(x[1]), [ones] "x"(ones));
}

/* Bytes that are asked for while others are multiplied, at an even pace. */
struct qni_pairs_ahead {
    const uint8_t *at;
    int64_t step;
};

/* sum[i] += all chunks of 8 positions of row i and 16 outputs of each of `panels`. Asks for
 * what is `ahead`, a step with each chunk, if that is not NULL. */
QNI_TEMPLATE void qni_pairs_add(const uint8_t *x, const int8_t *const *panel, int64_t chunks,
                                const int mr, const int panels, const bool is_joined,
                                const struct qni_pairs_ahead *const ahead,
                                __m256i (*sum)[QNI_PAIRS_VECTORS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *w[2] = {panel[0], panel[panels - 1]};
    const uint8_t *next = ahead == NULL ? NULL : ahead->at;
    for (; chunks > 0; chunks--, x += 8, w[0] += 2 * QNI_PAIRS_QUAD, w[1] += 2 * QNI_PAIRS_QUAD) {
        if (ahead != NULL) {
            _mm_prefetch((const char *)next, _MM_HINT_T1);
            next += ahead->step;
        }
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m256i both[2] = {qni_pairs_four(x + i * QNI_PAIRS_DEPTH),
                                     qni_pairs_four(x + i * QNI_PAIRS_DEPTH + 4)};
            QNI_UNROLL
            for (int v = 0; v < 2 * panels; v++) {
                const int8_t *const at = w[v / 2] + v % 2 * 32;
                if (is_joined) {
                    qni_pairs_add_four(both, at, ones, &sum[i][v]);
                } else {
                    qni_pairs_add_two(both[0], at, ones, &sum[i][v]);
                    qni_pairs_add_two(both[1], at + QNI_PAIRS_QUAD, ones, &sum[i][v]);
                }
            }
        }
    }
}

#endif
