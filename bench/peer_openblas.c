/* SPDX-License-Identifier: Apache-2.0 */
/* OpenBLAS: y = x . w^T by cblas_sgemm, on the weights in f32. */
#include "peer.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

const char peer_name[] = "openblas";

const char *peer_version(void)
{
    const char *config = openblas_get_config(); /* "OpenBLAS 0.3.21 DYNAMIC_ARCH ..." */
    return strncmp(config, "OpenBLAS ", 9) == 0 ? config + 9 : config;
}

struct product {
    const struct peer_problem *p;
    float *w, *y;
    int copies, next;
};

static int run(void *state)
{
    struct product *g = state;
    const struct peer_problem *p = g->p;
    const float *w = g->w + (size_t)g->next * (size_t)p->n * (size_t)p->k;
    g->next = (g->next + 1) % g->copies;
    if (p->m == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)p->n, (blasint)p->k, 1.0f, w,
                    (blasint)p->k, p->x_values, 1, 0.0f, g->y, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)p->m, (blasint)p->n,
                    (blasint)p->k, 1.0f, p->x_values, (blasint)p->k, w, (blasint)p->k, 0.0f, g->y,
                    (blasint)p->n);
    return 0;
}

static void result(void *state, float *y)
{
    const struct product *g = state;
    memcpy(y, g->y, g->p->y_elements * sizeof *y);
}

static void drop(void *state)
{
    struct product *g = state;
    free(g->w);
    free(g->y);
    free(g);
}

int peer_make(const struct peer_problem *p, struct peer_way ways[PEER_WAYS])
{
    if (p->is_conv || strcmp(p->x, "f32") != 0)
        return 0;
    const size_t bytes = (size_t)p->n * (size_t)p->k * sizeof(float);
    struct product *g = peer_alloc(sizeof *g);
    openblas_set_num_threads(p->threads);
    *g = (struct product){.p = p, .copies = peer_copies(p, bytes)};
    g->w = peer_alloc(bytes * (size_t)g->copies);
    for (int i = 0; i < g->copies; i++)
        memcpy((char *)g->w + bytes * (size_t)i, p->w_values, bytes);
    g->y = peer_alloc(p->y_elements * sizeof *g->y);
    ways[0] = (struct peer_way){p->m == 1 ? "sgemv" : "sgemm", g, run, result, drop};
    return 1;
}
