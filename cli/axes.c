/* SPDX-License-Identifier: Apache-2.0 */
#include "axes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char letters[] = "oihwe";

int axes_parse(const char *text, struct axes *axes)
{
    const size_t rank = strlen(text);
    *axes = (struct axes){.at = {-1, -1, -1, -1, -1}};
    if (rank < 2 || rank > 4)
        return 0;
    for (size_t d = 0; d < rank; d++) {
        const char *letter = strchr(letters, text[d]);
        if (letter == NULL || axes->at[letter - letters] >= 0)
            return 0;
        axes->at[letter - letters] = (int)d;
    }
    const int *at = axes->at;
    if (at[AXIS_O] < 0 || at[AXIS_I] < 0 || (at[AXIS_H] >= 0 && at[AXIS_W] < 0) ||
        (at[AXIS_E] >= 0 && at[AXIS_W] >= 0))
        return 0;
    axes->rank = (int)rank;
    memcpy(axes->text, text, rank + 1);
    return 1;
}

int64_t axes_size(const struct axes *axes, const qn_tensor *tensor, enum axis axis)
{
    return axes->at[axis] < 0 ? 1 : tensor->shape[axes->at[axis]];
}

static int64_t stride(const struct axes *axes, const qn_tensor *tensor, enum axis axis)
{
    return axes->at[axis] < 0 ? 0 : tensor->stride[axes->at[axis]];
}

int axes_are_transposed(const struct axes *axes)
{
    return axes->at[AXIS_I] == 0 && axes->at[AXIS_O] == 1 && axes->at[AXIS_W] > 1;
}

int axes_geometry(const struct axes *axes, const qn_tensor *tensor, int64_t groups, int64_t *n,
                  int64_t *k)
{
    const int64_t o = axes_size(axes, tensor, AXIS_O), i = axes_size(axes, tensor, AXIS_I);
    const int64_t taps = axes_size(axes, tensor, AXIS_H) * axes_size(axes, tensor, AXIS_W);
    const int is_transposed = axes_are_transposed(axes);
    if (groups < 1 || (is_transposed ? i : o) % groups != 0)
        return 0;
    *n = is_transposed ? o * groups : o;
    *k = (is_transposed ? i / groups : i) * taps;
    return 1;
}

void axes_gather(const struct axes *axes, const qn_tensor *tensor, int64_t expert, int64_t groups,
                 const qn_tensor *rows)
{
    const size_t bytes = qn_dtype_bytes(tensor->dtype);
    const int64_t kh = axes_size(axes, tensor, AXIS_H), kw = axes_size(axes, tensor, AXIS_W);
    const int64_t n = rows->shape[0], ci = rows->shape[1] / (kh * kw);
    const int64_t each = axes_are_transposed(axes) ? n / groups : n; /* outputs along their axis */
    const int64_t step = stride(axes, tensor, AXIS_I);
    const uint8_t *const from =
        (const uint8_t *)tensor->data + (size_t)(expert * stride(axes, tensor, AXIS_E)) * bytes;
    uint8_t *to = rows->data;
    for (int64_t r = 0; r < n; r++) {
        for (int64_t t = 0; t < kh * kw; t++) {
            int64_t at = r % each * stride(axes, tensor, AXIS_O) + r / each * ci * step +
                         t / kw * stride(axes, tensor, AXIS_H) +
                         t % kw * stride(axes, tensor, AXIS_W);
            for (int64_t i = 0; i < ci; i++, at += step, to += bytes) {
                if (bytes == 2)
                    memcpy(to, from + 2 * at, 2);
                else if (bytes == 4)
                    memcpy(to, from + 4 * at, 4);
                else
                    memcpy(to, from + (int64_t)bytes * at, bytes);
            }
        }
    }
}

int origin_find(const qn_file *file, const char *weight, struct origin *origin)
{
    char *key = must_print(ORIGIN_KEY "%s", weight);
    const char *text = qn_file_get_metadata(file, key);
    char order[8];
    long long expert, groups;
    int end = 0;
    free(key);
    if (text == NULL || sscanf(text, "%7s %9lld %9lld %n", order, &expert, &groups, &end) < 3 ||
        end == 0 || expert < 0 || groups < 1 || !axes_parse(order, &origin->axes))
        return 0;
    origin->expert = expert;
    origin->groups = groups;
    origin->tensor = text + end;
    return 1;
}

int origin_fits(const struct origin *origin, const qn_tensor *tensor, int64_t n, int64_t k)
{
    int64_t rows, columns;
    return tensor->rank == origin->axes.rank &&
           origin->expert < axes_size(&origin->axes, tensor, AXIS_E) &&
           axes_geometry(&origin->axes, tensor, origin->groups, &rows, &columns) && rows == n &&
           columns == k;
}
