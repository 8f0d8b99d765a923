/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of LANES floats and the quantizers of docs/numerics.md on them, lane by lane: what the
 * include-templates of convolutions share. The file that includes them defines LANES, FMA, HAS_FMA,
 * SMALLER and LARGER (depthwise.h says what they are). Nothing here touches a tile. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/exact.h"

typedef float vec QNI_VECTOR(4 * LANES);
typedef int32_t ivec QNI_VECTOR(4 * LANES);
typedef uint32_t uvec QNI_VECTOR(4 * LANES);

QNI_TEMPLATE vec load(const float *at)
{
    vec v;
    memcpy(&v, at, sizeof v);
    return v;
}
QNI_TEMPLATE void store(float *at, vec v)
{
    memcpy(at, &v, sizeof v);
}
QNI_TEMPLATE vec splat(float x)
{
    return x - (vec){0};
}
QNI_TEMPLATE vec choose(ivec mask, vec yes, vec no)
{
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}
/* qni_rintf() */
QNI_TEMPLATE vec nearest(vec x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* acc = FMA(a, b, acc) where acc is still +0 if first: then one rounding of the product is the
 * same, and cheaper where there is no instruction. (A product of -0 must become +0.) */
QNI_TEMPLATE vec step(vec a, vec b, vec acc, bool first)
{
    return first ? a * b + splat(0.0f) : FMA(a, b, acc);
}

/* How a segment (or a whole patch) becomes codes: code = rint((x * before - low) * inv) - minus.
 * None needs a clamp: no |x| is beyond amax, so that |fl(x * inv)| <= 127 (1 + 2^-22) is rounded to
 * 127 at most; the same with x - lo, h and 255, for rounding is monotonic. */
struct quantizer {
    vec scale, offset, low, inv;
    ivec bad; /* codes are 0 */
};

/* The bits of the largest |x|; those of infinities and NaNs are beyond those of all numbers. */
enum { LAST_NUMBER = 0x7f7fffff };
QNI_TEMPLATE ivec size_bits(vec x)
{
    return (ivec)x & 0x7fffffff;
}

/* fl(a / 127) for a >= 2^-120: the remainder of a product, itself exact, corrects it (compared for
 * every a; divisions of vectors take 16 cycles each). */
QNI_TEMPLATE vec by_127(vec a)
{
    const vec q = a * (1.0f / 127.0f);
    return HAS_FMA ? FMA(FMA(splat(-127.0f), q, a), splat(1.0f / 127.0f), q) : a / 127.0f;
}

QNI_TEMPLATE struct quantizer symmetric_quantizer(ivec most)
{
    const vec amax = (vec)most, zero = splat(0.0f);
    const ivec bad = most > LAST_NUMBER, tiny = amax < 0x1p-120f;
    const vec safe = choose(tiny | bad, splat(1.0f), amax);
    const vec scale = choose(tiny, zero, by_127(safe));
    return (struct quantizer){choose(bad, splat(qni_float_of(0x7fc00000u)), scale), zero, zero,
                              choose(tiny, zero, 127.0f / safe), bad};
}

QNI_TEMPLATE struct quantizer asymmetric_quantizer(vec lo, vec hi, ivec most)
{
    struct quantizer q;
    q.bad = most > LAST_NUMBER;
    const vec h = choose(q.bad, splat(1.0f), hi * 0.5f - lo * 0.5f);
    const ivec tiny = h < 0x1p-120f;
    const vec safe = choose(tiny, splat(1.0f), h);
    q.scale = choose(tiny, splat(0.0f), safe / 127.5f);
    q.offset = choose(tiny, lo, FMA(splat(128.0f), q.scale, lo));
    q.scale = choose(q.bad, splat(qni_float_of(0x7fc00000u)), q.scale);
    q.offset = choose(q.bad, splat(0.0f), q.offset);
    q.low = lo * 0.5f;
    q.inv = choose(tiny, splat(0.0f), 255.0f / safe);
    q.bad |= tiny;
    return q;
}

QNI_TEMPLATE vec code_of(const struct quantizer *q, vec x, const bool symmetric)
{
    if (symmetric)
        return nearest(x * q->inv);
    return nearest((x * 0.5f - q->low) * q->inv) - 128.0f;
}
