/* SPDX-License-Identifier: Apache-2.0 */
/* The largest of a window. */
#include "pool.h"

#include <string.h>

/* Rows of y are the items of a parallel loop. Distances are elements. */
struct pool {
    const struct claim *c;
    const uint8_t *x;
    uint8_t *y;
    int64_t channels, in[2], out[2];
    int64_t x_image, x_row, x_column, y_image, y_row, y_column; /* bytes */
    int64_t planes;  /* channels that are images of their own: channels first */
    int64_t pad[2];
};

/* Elements side by side: the loop that the compiler makes vectors of. */
#define LARGER(name, type)                                                                         \
    static void larger_##name(void *to, const void *from, int64_t n)                               \
    {                                                                                              \
        type *const y = to;                                                                        \
        const type *const x = from;                                                                \
        for (int64_t i = 0; i < n; i++)                                                            \
            y[i] = x[i] > y[i] ? x[i] : y[i];                                                      \
    }
LARGER(f32, float)
LARGER(u8, uint8_t)
LARGER(i8, int8_t)

static int64_t bytes_of(const struct pool *p)
{
    return p->c->y_type == ORT_F32 ? 4 : 1;
}

static void larger(const struct pool *p, void *to, const void *from)
{
    if (p->c->y_type == ORT_F32)
        larger_f32(to, from, p->channels);
    else if (p->c->y_type == ORT_U8)
        larger_u8(to, from, p->channels);
    else
        larger_i8(to, from, p->channels);
}

/* One output of all channels; the first element of the window is what others are compared with. */
static void pool_one(const struct pool *p, const uint8_t *x, int64_t oy, int64_t ox, uint8_t *y)
{
    const struct claim *c = p->c;
    bool is_first = true;
    for (int64_t ky = 0; ky < c->kernel[0]; ky++) {
        const int64_t iy = oy * c->stride[0] + ky - p->pad[0];
        if (iy < 0 || iy >= p->in[0])
            continue;
        for (int64_t kx = 0; kx < c->kernel[1]; kx++) {
            const int64_t ix = ox * c->stride[1] + kx - p->pad[1];
            if (ix < 0 || ix >= p->in[1])
                continue;
            const uint8_t *at = x + iy * p->x_row + ix * p->x_column;
            if (is_first)
                memcpy(y, at, (size_t)(p->channels * bytes_of(p)));
            else
                larger(p, y, at);
            is_first = false;
        }
    }
}

static void pool_row(void *arg, int32_t item)
{
    const struct pool *p = arg;
    const int64_t image = item / p->out[0], oy = item % p->out[0];
    const uint8_t *x = p->x + image * p->x_image;
    uint8_t *y = p->y + image * p->y_image + oy * p->y_row;
    for (int64_t ox = 0; ox < p->out[1]; ox++)
        pool_one(p, x, oy, ox, y + ox * p->y_column);
}

/* Outputs of an axis, and what lies before input 0. */
static int64_t outputs(const struct claim *c, int32_t axis, int64_t size, int64_t *before)
{
    int64_t pad[2];
    claim_pad(c, axis, size, pad);
    *before = pad[0];
    const int64_t room = size + pad[0] + pad[1] - c->kernel[axis];
    return room < 0 ? 0 : room / c->stride[axis] + 1;
}

struct ort_status *pool_run(const struct program *p, struct ort_run *run, struct worker *worker)
{
    const struct claim *c = &p->claim;
    struct tensor x;
    struct ort_value *value = NULL;
    void *y = NULL;
    ORT_TRY(operand_get(p, run, &p->x, &x));
    if (x.rank != 4 || x.type != c->y_type)
        return runtime_fail(p->api, ORT_INVALID_ARGUMENT,
                            "an image of rank %d and type %d, where %d and %d were promised",
                            x.rank, x.type, 4, c->y_type);
    const int32_t h = c->channels_last ? 1 : 2, channel = c->channels_last ? 3 : 1;
    struct pool pool = {.c = c, .x = x.data, .channels = x.shape[channel], .planes = 1};
    int64_t shape[4] = {x.shape[0], x.shape[1], x.shape[2], x.shape[3]};
    for (int32_t axis = 0; axis < 2; axis++) {
        pool.in[axis] = x.shape[h + axis];
        shape[h + axis] = pool.out[axis] = outputs(c, axis, pool.in[axis], &pool.pad[axis]);
    }
    if (!c->channels_last) {
        pool.planes = pool.channels;
        pool.channels = 1;
    }
    ORT_TRY(p->api->run_output(run, (size_t)p->outputs[0], shape, 4, &value));
    ORT_TRY(p->api->mutable_data(value, &y));
    pool.y = y;
    pool.x_column = pool.y_column = pool.channels * bytes_of(&pool);
    pool.x_row = pool.in[1] * pool.x_column;
    pool.y_row = pool.out[1] * pool.y_column;
    pool.x_image = pool.in[0] * pool.x_row;
    pool.y_image = pool.out[0] * pool.y_row;
    const int64_t items = shape[0] * pool.planes * pool.out[0];
    if (items == 0 || pool.out[1] == 0 || pool.channels == 0)
        return NULL;
    if (items > INT32_MAX)
        return runtime_fail(p->api, ORT_NOT_IMPLEMENTED, "a pool of %lld rows", (long long)items);
    return runtime_check(p->api, "a pool",
                         qn_parallel_for(worker->ctx, (int32_t)items, pool_row, &pool), NULL);
}
