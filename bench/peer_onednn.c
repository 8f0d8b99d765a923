/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN 2: matmul and convolution in f32, bf16 and int8. The library chooses the weights' layout
 * and they are reordered before the time begins, as a program that knows oneDNN would do it.
 *
 * int8 is one scale a row of weights and one for the whole of x. Where the problem has x in f32
 * (the dynamic strategies), x is quantized before the time begins: oneDNN has no operation for it,
 * so its figure is what the product alone costs. */
#include "peer.h"

#include <math.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if DNNL_VERSION_MAJOR != 2
#error "written for the interface of oneDNN 2"
#endif

const char peer_name[] = "onednn";

const char *peer_version(void)
{
    static char text[32];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

static dnnl_engine_t engine;
static dnnl_stream_t stream;

struct product {
    const struct peer_problem *p;
    dnnl_primitive_t primitive;
    dnnl_memory_t x, y, *w;
    float x_scale, y_unit; /* what an int8 code of y is worth */
    float *w_scale;        /* [n], int8 */
    int copies, next;
};

/* ----------------------------------------------------------------------------------- plain data */

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *desc)
{
    dnnl_memory_t memory = NULL;
    return dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_ALLOCATE) == dnnl_success ? memory
                                                                                           : NULL;
}

static void *data_of(dnnl_memory_t memory)
{
    void *data = NULL;
    dnnl_memory_get_data_handle(memory, &data);
    return data;
}

static int reorder(dnnl_memory_t from, dnnl_memory_t to)
{
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t primitive = NULL;
    const dnnl_memory_desc_t *a = NULL, *b = NULL;
    dnnl_memory_get_memory_desc(from, &a);
    dnnl_memory_get_memory_desc(to, &b);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    int good =
        dnnl_reorder_primitive_desc_create(&desc, a, engine, b, engine, NULL) == dnnl_success &&
        dnnl_primitive_create(&primitive, desc) == dnnl_success &&
        dnnl_primitive_execute(primitive, stream, 2, args) == dnnl_success &&
        dnnl_stream_wait(stream) == dnnl_success;
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(desc);
    return good;
}

static int8_t code_of(float value, float scale)
{
    const float code = scale > 0 ? rintf(value / scale) : 0;
    return (int8_t)(code < -128 ? -128 : code > 127 ? 127 : code);
}

static float largest(const float *values, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
    return most;
}

/* values in a memory of the same shape in f32 or int8, in the plain order `plain` describes. */
static dnnl_memory_t filled(const struct product *g, const dnnl_memory_desc_t *plain, int is_w)
{
    const struct peer_problem *p = g->p;
    dnnl_memory_t memory = memory_of(plain);
    if (memory == NULL)
        return NULL;
    if (plain->data_type == dnnl_f32) {
        memcpy(data_of(memory), is_w ? p->w_values : p->x_values,
               (is_w ? (size_t)p->n * (size_t)p->k : p->x_elements) * sizeof(float));
        return memory;
    }
    int8_t *codes = data_of(memory);
    for (int64_t j = 0; is_w && j < p->n; j++)
        for (int64_t i = 0; i < p->k; i++)
            codes[j * p->k + i] = code_of(p->w_values[j * p->k + i], g->w_scale[j]);
    for (size_t i = 0; !is_w && i < p->x_elements; i++)
        codes[i] = code_of(p->x_values[i], g->x_scale);
    return memory;
}

/* --------------------------------------------------------------------------------- descriptions */

/* Shapes of x, w, y and the plain order that the files have. */
struct shapes {
    int x_rank, w_rank;
    dnnl_dims_t x, w, y;
    dnnl_format_tag_t x_tag, w_tag;
};

static struct shapes shapes_of(const struct peer_problem *p)
{
    struct shapes s = {2, 2, {p->m, p->k}, {p->k, p->n}, {p->m, p->n}, dnnl_ab, dnnl_ba};
    if (!p->is_conv)
        return s;
    const struct shapes conv = {
        4,
        p->groups > 1 ? 5 : 4,
        {p->batch, p->ci, p->h, p->w},
        {p->n, p->ci, p->kh, p->kw},
        {p->batch, p->n, p->oh, p->ow},
        p->is_nhwc ? dnnl_nhwc : dnnl_nchw,
        p->groups > 1 ? dnnl_gohwi : dnnl_ohwi,
    };
    s = conv;
    if (p->groups > 1) {
        const dnnl_dims_t grouped = {p->groups, p->n / p->groups, p->ci / p->groups, p->kh, p->kw};
        memcpy(s.w, grouped, sizeof grouped);
    }
    return s;
}

static dnnl_memory_desc_t described(int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                                    dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t desc;
    dnnl_memory_desc_init_by_tag(&desc, rank, dims, type, tag);
    return desc;
}

static dnnl_status_t describe(const struct peer_problem *p, const struct shapes *s,
                              dnnl_data_type_t type, dnnl_data_type_t y_type,
                              const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    const dnnl_memory_desc_t w = described(s->w_rank, s->w, type, dnnl_format_tag_any);
    const dnnl_memory_desc_t x = described(s->x_rank, s->x, type, s->x_tag);
    const dnnl_memory_desc_t y = described(s->x_rank, s->y, y_type, s->x_tag);
    if (!p->is_conv) {
        dnnl_matmul_desc_t desc;
        const dnnl_status_t status = dnnl_matmul_desc_init(&desc, &x, &w, NULL, &y);
        return status != dnnl_success ? status
                                      : dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
    }
    dnnl_convolution_desc_t desc;
    const dnnl_dims_t stride = {p->stride[0], p->stride[1]};
    const dnnl_dims_t dilation = {p->dilation[0] - 1, p->dilation[1] - 1};
    const dnnl_dims_t before = {p->pad[0], p->pad[1]}, after = {p->pad[2], p->pad[3]};
    const dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
        &desc, dnnl_forward_inference, dnnl_convolution_direct, &x, &w, NULL, &y, stride, dilation,
        before, after);
    return status != dnnl_success ? status
                                  : dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
}

/* ------------------------------------------------------------------------------------- products */

static void drop(void *state)
{
    struct product *g = state;
    for (int i = 0; i < g->copies && g->w != NULL; i++)
        dnnl_memory_destroy(g->w[i]);
    dnnl_memory_destroy(g->x);
    dnnl_memory_destroy(g->y);
    dnnl_primitive_destroy(g->primitive);
    free(g->w);
    free(g->w_scale);
    free(g);
}

static int run(void *state)
{
    struct product *g = state;
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, g->x}, {DNNL_ARG_WEIGHTS, g->w[g->next]}, {DNNL_ARG_DST, g->y}};
    g->next = (g->next + 1) % g->copies;
    return dnnl_primitive_execute(g->primitive, stream, 3, args) == dnnl_success &&
                   dnnl_stream_wait(stream) == dnnl_success
               ? 0
               : 1;
}

static void result(void *state, float *y)
{
    const struct product *g = state;
    const size_t n = g->p->y_elements;
    if (g->y_unit == 0) {
        memcpy(y, data_of(g->y), n * sizeof *y);
        return;
    }
    const int8_t *codes = data_of(g->y);
    for (size_t i = 0; i < n; i++)
        y[i] = g->y_unit * codes[i];
}

/* Scales of x, of each row of w, and what the library multiplies int32 sums by. */
static dnnl_primitive_attr_t int8_scales(struct product *g)
{
    const struct peer_problem *p = g->p;
    float *out = peer_alloc((size_t)p->n * sizeof *out);
    g->w_scale = peer_alloc((size_t)p->n * sizeof *g->w_scale);
    const int is_given = strcmp(p->strategy, "int8-static") == 0;
    g->x_scale = is_given ? p->x_scale : largest(p->x_values, p->x_elements) / 127;
    for (int64_t j = 0; j < p->n; j++) {
        g->w_scale[j] = largest(p->w_values + j * p->k, (size_t)p->k) / 127;
        out[j] = g->x_scale * g->w_scale[j] / (g->y_unit > 0 ? g->y_unit : 1);
    }
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_attr_create(&attr);
    dnnl_primitive_attr_set_output_scales(attr, p->n, 1 << 1, out);
    free(out);
    return attr;
}

/* The reordered weights, as often as asked for. */
static int copy_weights(struct product *g, const struct shapes *s, dnnl_data_type_t plain_type,
                        const_dnnl_primitive_desc_t pd)
{
    const dnnl_memory_desc_t plain = described(s->w_rank, s->w, plain_type, s->w_tag);
    const dnnl_memory_desc_t *packed = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_memory_t from = filled(g, &plain, 1);
    const int copies = peer_copies(g->p, dnnl_memory_desc_get_size(packed));
    g->w = peer_alloc(sizeof *g->w * (size_t)copies);
    int good = from != NULL;
    while (good && g->copies < copies) {
        dnnl_memory_t to = memory_of(packed);
        good = to != NULL && reorder(from, to);
        g->w[g->copies++] = to;
    }
    dnnl_memory_destroy(from);
    return good;
}

static struct product *make(const struct peer_problem *p, dnnl_data_type_t type)
{
    const struct shapes s = shapes_of(p);
    struct product *g = peer_alloc(sizeof *g);
    *g = (struct product){.p = p};
    const dnnl_data_type_t plain = type == dnnl_s8 ? dnnl_s8 : dnnl_f32;
    const int codes_out = type == dnnl_s8 && strcmp(p->y, "i8") == 0;
    const dnnl_data_type_t y_type = codes_out ? dnnl_s8 : dnnl_f32;
    g->y_unit = codes_out ? p->y_scale : 0;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr = type == dnnl_s8 ? int8_scales(g) : NULL;
    int good = describe(p, &s, type, y_type, attr, &pd) == dnnl_success &&
               dnnl_primitive_create(&g->primitive, pd) == dnnl_success &&
               copy_weights(g, &s, plain, pd);
    if (good) {
        const dnnl_memory_desc_t x_plain = described(s.x_rank, s.x, plain, s.x_tag);
        const dnnl_memory_desc_t x = described(s.x_rank, s.x, type, s.x_tag);
        const dnnl_memory_desc_t y = described(s.x_rank, s.y, y_type, s.x_tag);
        dnnl_memory_t from = filled(g, &x_plain, 0);
        g->x = memory_of(&x);
        g->y = memory_of(&y);
        good = from != NULL && g->x != NULL && g->y != NULL && reorder(from, g->x);
        dnnl_memory_destroy(from);
    }
    dnnl_primitive_attr_destroy(attr);
    dnnl_primitive_desc_destroy(pd);
    if (good)
        return g;
    drop(g);
    return NULL;
}

int peer_make(const struct peer_problem *p, struct peer_way ways[PEER_WAYS])
{
    static const struct {
        const char *name;
        dnnl_data_type_t type;
        int is_int8;
    } types[] = {
        {"int8 per channel", dnnl_s8, 1},
        {"bf16", dnnl_bf16, 0},
        {"f32", dnnl_f32, 0},
    };
    const int wants_int8 = strncmp(p->strategy, "int8", 4) == 0;
    int n = 0;
    if (engine == NULL &&
        (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success ||
         dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success))
        return 0;
    omp_set_num_threads(p->threads);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].is_int8 ? !wants_int8 : wants_int8 && types[i].type == dnnl_f32)
            continue;
        struct product *g = make(p, types[i].type);
        if (g != NULL)
            ways[n++] = (struct peer_way){types[i].name, g, run, result, drop};
    }
    return n;
}
