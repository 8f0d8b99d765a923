/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of a table, for each code of a tensor. */
#include "table.h"

enum { PART = 1 << 15 }; /* bytes of an item of a parallel loop */

struct look_up {
    const uint8_t *table, *x;
    uint8_t *y;
    int64_t count;
};

static void look_up_part(void *arg, int32_t item)
{
    const struct look_up *l = arg;
    const int64_t first = (int64_t)item * PART;
    const int64_t n = l->count - first < PART ? l->count - first : PART;
    const uint8_t *const table = l->table, *x = l->x + first;
    uint8_t *y = l->y + first;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { /* Loads of eight codes lie ahead of the stores. */
        const uint8_t a = table[x[i]], b = table[x[i + 1]], c = table[x[i + 2]],
                      d = table[x[i + 3]], e = table[x[i + 4]], f = table[x[i + 5]],
                      g = table[x[i + 6]], h = table[x[i + 7]];
        y[i] = a, y[i + 1] = b, y[i + 2] = c, y[i + 3] = d;
        y[i + 4] = e, y[i + 5] = f, y[i + 6] = g, y[i + 7] = h;
    }
    for (; i < n; i++)
        y[i] = table[x[i]];
}

struct ort_status *table_run(const struct program *p, struct ort_run *run, struct worker *worker)
{
    struct tensor x;
    struct ort_value *value = NULL;
    void *y = NULL;
    ORT_TRY(operand_get(p, run, &p->x, &x));
    ORT_TRY(p->api->run_output(run, (size_t)p->outputs[0], x.shape, (size_t)x.rank, &value));
    ORT_TRY(p->api->mutable_data(value, &y));
    struct look_up look_up = {p->table, x.data, y, x.count};
    const int64_t items = (x.count + PART - 1) / PART;
    if (items == 0)
        return NULL;
    if (items > INT32_MAX)
        return runtime_fail(p->api, ORT_NOT_IMPLEMENTED, "a tensor of %lld codes",
                            (long long)x.count);
    return runtime_check(p->api, p->what,
                         qn_parallel_for(worker->ctx, (int32_t)items, look_up_part, &look_up),
                         NULL);
}
