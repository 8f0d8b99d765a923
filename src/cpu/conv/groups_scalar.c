/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernels of grouped convolutions: simd/groups.h on vectors of four floats, which
 * every compiler turns into the vectors of the baseline (SSE2, NEON) or into four scalars. Multiply
 * and add are rounded apart; the bits of the int8 kernels do not depend on that. */
#include "../../base/half.h"
#include "kernel.h"

#define LANES            4
#define TILE             8
#define PAIR             2
#define APART            0
#define MADD(a, b, c)    ((a) * (b) + (c))
#define FMA(a, b, c)     fused(a, b, c)
#define HAS_FMA          0
#define SMALLER(a, b)    choose((a) < (b), a, b)
#define LARGER(a, b)     choose((a) > (b), a, b)
#define LARGER_INT(a, b) ((ivec)choose((a) > (b), (vec)(a), (vec)(b)))
#define SHUFFLE(v, w)    ((vec){(v)[(w)[0]], (v)[(w)[1]], (v)[(w)[2]], (v)[(w)[3]]})
#define REPEAT(at, n)    ((vec){(at)[0], (at)[1 % (n)], (at)[2 % (n)], (at)[3 % (n)]})
#define WIDEN_F16(src, n, dst)                                                                     \
    for (int64_t i = 0; i < (n); i++)                                                              \
    (dst)[i] = qni_f32_from_f16((src)[i])

#include "../../base/compiler.h"
#include "../../base/exact.h"

typedef float four QNI_VECTOR(16);

static inline four fused(four a, four b, four c)
{
    return (four){qni_fmaf(a[0], b[0], c[0]), qni_fmaf(a[1], b[1], c[1]),
                  qni_fmaf(a[2], b[2], c[2]), qni_fmaf(a[3], b[3], c[3])};
}

enum { VECTOR = LANES };

#include "../simd/groups.h"

bool qni_groups_f32_rows_mr8_scalar(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_mr8_scalar(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_row_scalar(const struct qni_groups_tile *tile)
{
    return row_groups(tile);
}
bool qni_groups_q8b_rows_block_scalar(const struct qni_groups_tile *tile)
{
    return block_groups(tile);
}
const struct qni_groups_helpers qni_groups_helpers_scalar = {pixels_of, panel_of, VECTOR, false};
