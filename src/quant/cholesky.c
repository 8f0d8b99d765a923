/* SPDX-License-Identifier: Apache-2.0 */
/*
 * a = L L^T in double, in place of the lower triangle, by blocks of columns from the left:
 *     the diagonal block as in a textbook; the rows below it by substitution; then what lies right
 *     of the block loses the products of the rows below.
 * The last step is nearly all of the work. Its inner loop runs along a row with four columns of the
 * block at a time, which a compiler vectorises without reordering any sum: every element loses its
 * products in ascending order, whatever the number of threads.
 */
#include <math.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "hessian.h"

enum { BLOCK = 64, ROWS = 32 };

struct step {
    double *a;
    const double *across; /* [BLOCK, k]: the block's columns below the diagonal, transposed */
    int64_t k, first, last;
};

static bool factor_diagonal(double *a, int64_t k, int64_t first, int64_t last)
{
    for (int64_t j = first; j < last; j++) {
        double *row = a + j * k;
        for (int64_t i = first; i <= j; i++) {
            const double *other = a + i * k;
            double sum = row[i];
            for (int64_t p = first; p < i; p++)
                sum -= row[p] * other[p];
            if (i < j) {
                row[i] = sum / other[i];
            } else {
                if (!(sum > 0.0) || !isfinite(sum))
                    return false;
                row[j] = sqrt(sum);
            }
        }
    }
    return true;
}

static void solve_rows(void *arg, int32_t item)
{
    const struct step *s = arg;
    const int64_t begin = s->last + item * (int64_t)ROWS, end = qni_min(begin + ROWS, s->k);
    for (int64_t i = begin; i < end; i++) {
        double *row = s->a + i * s->k;
        for (int64_t j = s->first; j < s->last; j++) {
            const double *other = s->a + j * s->k;
            double sum = row[j];
            for (int64_t p = s->first; p < j; p++)
                sum -= row[p] * other[p];
            row[j] = sum / other[j];
        }
    }
}

static void subtract(double *restrict row, const double *restrict across, int64_t ld,
                     const double f[4], int64_t begin, int64_t end)
{
    const double *restrict b0 = across, *restrict b1 = across + ld;
    const double *restrict b2 = across + 2 * ld, *restrict b3 = across + 3 * ld;
    for (int64_t j = begin; j < end; j++)
        row[j] = (((row[j] - f[0] * b0[j]) - f[1] * b1[j]) - f[2] * b2[j]) - f[3] * b3[j];
}

static void update_rows(void *arg, int32_t item)
{
    const struct step *s = arg;
    const int64_t begin = s->last + item * (int64_t)ROWS, end = qni_min(begin + ROWS, s->k);
    enum { TILE = 512 }; /* 4 rows of it fit into the first-level cache */
    for (int64_t j = s->last; j < end; j += TILE)
        for (int64_t p = 0; p < s->last - s->first; p += 4)
            for (int64_t i = begin; i < end; i++) {
                double *row = s->a + i * s->k;
                subtract(row, s->across + p * s->k, s->k, row + s->first + p, j,
                         qni_min(j + TILE, i + 1));
            }
}

qn_status qni_cholesky(const qn_ctx *ctx, double *a, int64_t k, qn_error *err)
{
    const size_t bytes = (size_t)k * BLOCK * sizeof(double);
    double *across = qni_alloc(&ctx->allocator, bytes);
    if (across == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a factorization of size %lld",
                        (long long)k);
    bool is_positive = true;
    for (int64_t first = 0; first < k && is_positive; first += BLOCK) {
        struct step s = {a, across, k, first, qni_min(first + BLOCK, k)};
        const int32_t items = (int32_t)qni_ceil_div(k - s.last, ROWS);
        is_positive = factor_diagonal(a, k, first, s.last);
        if (!is_positive || items == 0)
            continue;
        qni_parallel(&ctx->threads, items, solve_rows, &s);
        for (int64_t p = 0; p < BLOCK; p++) /* more columns follow, so the block is a full one */
            for (int64_t i = s.last; i < k; i++)
                across[p * k + i] = a[i * k + first + p];
        qni_parallel(&ctx->threads, items, update_rows, &s);
    }
    qni_free(&ctx->allocator, across, bytes);
    return is_positive ? QN_OK
                       : qni_fail(err, QN_E_VALUE,
                                  "the Hessian is not positive definite; more damping may help");
}
