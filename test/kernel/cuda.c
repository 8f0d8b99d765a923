/* SPDX-License-Identifier: Apache-2.0 */
/* What only a GPU can get wrong: pointers of other places, work in several chunks, more experts
 * than one launch takes, failures that must leave nothing behind. */
#include <quern/cuda.h>
#include <string.h>

#include "../../src/base/exact.h"
#include "../../src/base/half.h"
#include "suites.h"

/* A product with f32 x on the device, and what it stands on. */
struct product {
    const qn_ctx *ctx;
    struct check_weight made;
    qn_weight *weight;
    qn_packed *packed;
    qn_matmul_args args;
    qn_tensor x, y; /* on the host */
};

static bool make_product(struct check *c, struct product *p, int64_t m, int64_t n, int64_t k)
{
    const struct check_weight_options o = {
        .format = {.code = QN_CODE_INT, .bits = 4, .group = 64, .scale_dtype = QN_F32},
        .n = n,
        .k = k,
        .kh = 1,
        .kw = 1,
        .conv_groups = 1,
        .data = CHECK_NORMAL};
    qn_error err = {QN_OK, -1, ""};
    memset(p, 0, sizeof *p);
    p->ctx = check_context(c, QN_ISA_ALL, 1);
    check_weight_make(c, &o, &p->made);
    if (!check_status(c, "qn_weight_create",
                      qn_weight_create(p->ctx, &p->made.parts, &p->weight, &err), QN_OK, &err) ||
        !check_status(c, "qn_pack", qn_pack(p->ctx, p->weight, NULL, &p->packed, &err), QN_OK,
                      &err))
        return false;
    qn_matmul_args_init(&p->args);
    p->x = check_tensor(c, "x", QN_F32, 2, (const int64_t[]){m, k}, false);
    p->y = check_tensor(c, "y", QN_F32, 2, (const int64_t[]){m, n}, false);
    check_fill_x(c, &p->x, CHECK_NORMAL, false);
    p->args.w = p->packed;
    p->args.x = c->options->device->make(c, &p->x);
    p->args.y = c->options->device->make(c, &p->y);
    c->options->device->send(c, &p->args.x, &p->x);
    c->options->device->send(c, &p->args.y, &p->y);
    return true;
}

static void drop_product(struct product *p)
{
    qn_packed_destroy(p->packed);
    qn_weight_destroy(p->weight);
}

static qn_status run_product(struct check *c, struct product *p)
{
    size_t bytes = 0;
    check_status(c, "qn_matmul_scratch", qn_matmul_scratch(p->ctx, &p->args, &bytes), QN_OK, NULL);
    return qn_matmul(p->ctx, &p->args, c->options->device->scratch(c, bytes), bytes);
}

/* Every wrong pointer has its status, y is not touched, and the right call works afterwards. */
static void pointers_case(struct check *c, const void *arg)
{
    struct product p;
    size_t bytes = 0;
    (void)arg;
    if (make_product(c, &p, 5, 33, 128)) {
        const qn_matmul_args good = p.args;
        check_status(c, "scratch", qn_matmul_scratch(p.ctx, &good, &bytes), QN_OK, NULL);
        void *const scratch = c->options->device->scratch(c, bytes);
        p.args.x.data = p.x.data;
        check_status(c, "x on the host", qn_matmul(p.ctx, &p.args, scratch, bytes), QN_E_DEVICE,
                     NULL);
        p.args = good;
        p.args.y.data = p.y.data;
        check_status(c, "y on the host", qn_matmul(p.ctx, &p.args, scratch, bytes), QN_E_DEVICE,
                     NULL);
        p.args = good;
        p.args.x.device = (qn_device){QN_CPU, 0};
        check_status(c, "x said to be on the host", qn_matmul(p.ctx, &p.args, scratch, bytes),
                     QN_E_DEVICE, NULL);
        p.args = good;
        p.args.x.data = (uint8_t *)good.x.data + 2;
        check_status(c, "x between elements", qn_matmul(p.ctx, &p.args, scratch, bytes), QN_E_ALIGN,
                     NULL);
        p.args = good;
        check_status(c, "no scratch", qn_matmul(p.ctx, &p.args, NULL, 0), QN_E_SCRATCH, NULL);
        void *const here = check_memory(c, "scratch on the host", bytes, 64);
        check_status(c, "scratch on the host", qn_matmul(p.ctx, &p.args, here, bytes), QN_E_DEVICE,
                     NULL);
        check_status(c, "scratch that is not aligned",
                     qn_matmul(p.ctx, &p.args, (uint8_t *)scratch + 16, bytes), QN_E_ALIGN, NULL);
        check_status(c, "the right call", qn_matmul(p.ctx, &p.args, scratch, bytes), QN_OK, NULL);
        c->options->device->fetch(c, &p.args.y, &p.y);
    }
    drop_product(&p);
}

/* Rows in several chunks of scratch are the rows of as many calls. */
static void chunks_case(struct check *c, const void *arg)
{
    struct product p;
    (void)arg;
    if (make_product(c, &p, 12345, 40, 1600)) {
        /* By name: a plan may choose another kernel for fewer rows, with another order of sums. */
        p.args.kernel = "qni_matmul_bf16_q4frag_mr64_sm75";
        check_status(c, "all rows", run_product(c, &p), QN_OK, NULL);
        c->options->device->fetch(c, &p.args.y, &p.y);
        uint8_t *const all = check_memory(c, "all rows", 12345 * 40 * 4, 4);
        memcpy(all, p.y.data, 12345 * 40 * 4);
        const qn_matmul_args whole = p.args;
        for (int64_t row = 0; row < 12345 && !c->failed; row += 4115) {
            p.args.x.data = (float *)whole.x.data + row * 1600;
            p.args.y.data = (float *)whole.y.data + row * 40;
            p.args.x.shape[0] = p.args.y.shape[0] = 4115;
            check_status(c, "some rows", run_product(c, &p), QN_OK, NULL);
        }
        c->options->device->fetch(c, &whole.y, &p.y);
        if (memcmp(all, p.y.data, 12345 * 40 * 4) != 0)
            check_fail(c, "rows in chunks differ from rows in calls of their own");
    }
    drop_product(&p);
}

/* Routed rows in several chunks of scratch are those of as many calls, by ids and by offsets;
 * experts with orders of columns of their own prepare what is theirs. */
enum { CHUNKED_ROWS = 12345, CHUNKED_PART = 4115, CHUNKED_N = 40, CHUNKED_K = 1600, CHUNKED = 3 };

static qn_status run_grouped(struct check *c, const qn_ctx *ctx, const qn_grouped_args *g)
{
    size_t bytes = 0;
    check_status(c, "scratch", qn_grouped_scratch(ctx, g, &bytes), QN_OK, NULL);
    return qn_grouped(ctx, g, c->options->device->scratch(c, bytes), bytes);
}

static bool make_experts(struct check *c, const qn_ctx *ctx, bool perm, qn_weight **weights,
                         qn_packed **packed)
{
    for (int32_t e = 0; e < CHUNKED; e++) {
        const struct check_weight_options o = {
            .format = {.code = QN_CODE_INT, .bits = 8, .group = 64, .scale_dtype = QN_F32},
            .n = CHUNKED_N,
            .k = CHUNKED_K,
            .kh = 1,
            .kw = 1,
            .conv_groups = 1,
            .perm = perm,
            .data = CHECK_NORMAL};
        struct check_weight made;
        qn_error err = {QN_OK, -1, ""};
        check_weight_make(c, &o, &made);
        if (!check_status(c, "qn_weight_create",
                          qn_weight_create(ctx, &made.parts, &weights[e], &err), QN_OK, &err) ||
            !check_status(c, "qn_pack", qn_pack(ctx, weights[e], NULL, &packed[e], &err), QN_OK,
                          &err))
            return false;
    }
    return true;
}

static void compare_routed(struct check *c, const struct product *p, qn_grouped_args *g,
                           const qn_tensor *ids, const qn_tensor *offsets)
{
    const size_t bytes = (size_t)CHUNKED_ROWS * CHUNKED_N * 4;
    uint8_t *const all = check_memory(c, "all rows", bytes, 4);
    const qn_grouped_args whole = *g;
    g->ids = *ids;
    check_status(c, "all rows", run_grouped(c, p->ctx, g), QN_OK, NULL);
    c->options->device->fetch(c, &whole.y, &p->y);
    memcpy(all, p->y.data, bytes);
    *g = whole;
    g->offsets = *offsets;
    check_status(c, "all rows by offsets", run_grouped(c, p->ctx, g), QN_OK, NULL);
    c->options->device->fetch(c, &whole.y, &p->y);
    if (memcmp(all, p->y.data, bytes) != 0)
        check_fail(c, "rows by offsets differ from the same by ids");
    *g = whole;
    g->ids = *ids;
    for (int64_t row = 0; row < CHUNKED_ROWS && !c->failed; row += CHUNKED_PART) {
        g->x.data = (float *)whole.x.data + row * CHUNKED_K;
        g->y.data = (float *)whole.y.data + row * CHUNKED_N;
        g->ids.data = (int32_t *)ids->data + row;
        g->x.shape[0] = g->y.shape[0] = g->ids.shape[0] = CHUNKED_PART;
        check_status(c, "some rows", run_grouped(c, p->ctx, g), QN_OK, NULL);
    }
    c->options->device->fetch(c, &whole.y, &p->y);
    if (memcmp(all, p->y.data, bytes) != 0)
        check_fail(c, "routed rows in chunks differ from rows in calls of their own");
}

static void routed_chunks_case(struct check *c, const void *arg)
{
    struct product p;
    const bool perm = *(const bool *)arg;
    qn_weight *weights[CHUNKED] = {NULL};
    qn_packed *packed[CHUNKED] = {NULL};
    const int64_t m = CHUNKED_ROWS, n_offsets = CHUNKED + 1;
    if (make_product(c, &p, m, CHUNKED_N, CHUNKED_K) &&
        make_experts(c, p.ctx, perm, weights, packed)) {
        const qn_tensor ids = check_tensor(c, "ids", QN_I32, 1, &m, false);
        const qn_tensor offsets = check_tensor(c, "offsets", QN_I32, 1, &n_offsets, false);
        const qn_packed *w[CHUNKED];
        qn_grouped_args g;
        qn_grouped_args_init(&g);
        for (int64_t e = 0; e <= CHUNKED; e++) {
            ((int32_t *)offsets.data)[e] = (int32_t)(e * m / CHUNKED);
            if (e < CHUNKED)
                w[e] = packed[e];
        }
        for (int64_t e = 0, i = 0; i < m; i++) {
            e += i >= ((const int32_t *)offsets.data)[e + 1];
            ((int32_t *)ids.data)[i] = (int32_t)e;
        }
        const qn_tensor on_ids = c->options->device->make(c, &ids);
        const qn_tensor on_offsets = c->options->device->make(c, &offsets);
        c->options->device->send(c, &on_ids, &ids);
        c->options->device->send(c, &on_offsets, &offsets);
        g.w = w;
        g.n_experts = CHUNKED;
        g.x = p.args.x;
        g.y = p.args.y;
        compare_routed(c, &p, &g, &on_ids, &on_offsets);
    }
    for (int32_t e = 0; e < CHUNKED; e++) {
        qn_packed_destroy(packed[e]);
        qn_weight_destroy(weights[e]);
    }
    drop_product(&p);
}

/* More experts than a launch takes; each row as by qn_matmul() with its expert. int8: equal bits
 * whatever the kernel. */
enum { EXPERTS = 300, ROWS = 700, N = 24, K = 96 };

static void experts_case(struct check *c, const void *arg)
{
    struct product p[1];
    (void)arg;
    if (make_product(c, p, ROWS, N, K)) {
        const qn_packed *w[EXPERTS];
        const int64_t n_offsets = EXPERTS + 1;
        const qn_tensor host = check_tensor(c, "offsets", QN_I32, 1, &n_offsets, false);
        int32_t *const offsets = host.data;
        for (int32_t e = 0; e <= EXPERTS; e++)
            offsets[e] = e < EXPERTS ? e * ROWS / EXPERTS : ROWS;
        for (int32_t e = 0; e < EXPERTS; e++)
            w[e] = p->packed;
        qn_grouped_args g;
        qn_grouped_args_init(&g);
        g.w = w;
        g.n_experts = EXPERTS;
        g.strategy = p->args.strategy = QN_STRATEGY_INT8_ROW;
        g.x = p->args.x;
        g.y = p->args.y;
        g.offsets = c->options->device->make(c, &host);
        c->options->device->send(c, &g.offsets, &host);
        size_t bytes = 0;
        check_status(c, "scratch", qn_grouped_scratch(p->ctx, &g, &bytes), QN_OK, NULL);
        check_status(c, "qn_grouped",
                     qn_grouped(p->ctx, &g, c->options->device->scratch(c, bytes), bytes), QN_OK,
                     NULL);
        c->options->device->fetch(c, &g.y, &p->y);
        uint8_t *const routed = check_memory(c, "routed rows", ROWS * N * 4, 4);
        memcpy(routed, p->y.data, ROWS * N * 4);
        check_status(c, "qn_matmul", run_product(c, p), QN_OK, NULL);
        c->options->device->fetch(c, &p->args.y, &p->y);
        if (memcmp(routed, p->y.data, ROWS * N * 4) != 0)
            check_fail(c, "300 experts of equal weights differ from one");
    }
    drop_product(p);
}

/* A hundred runs of one plan: equal bits. */
static void repeat_case(struct check *c, const void *arg)
{
    struct product p;
    const int64_t m = *(const int64_t *)arg;
    if (make_product(c, &p, m, 1000, 2048)) {
        const size_t bytes = (size_t)m * 1000 * 4;
        uint8_t *const first = check_memory(c, "the first y", bytes, 4);
        size_t scratch_bytes = 0;
        check_status(c, "scratch", qn_matmul_scratch(p.ctx, &p.args, &scratch_bytes), QN_OK, NULL);
        void *const scratch = c->options->device->scratch(c, scratch_bytes);
        for (int32_t i = 0; i < 100 && !c->failed; i++) {
            check_status(c, "a run", qn_matmul(p.ctx, &p.args, scratch, scratch_bytes), QN_OK,
                         NULL);
            c->options->device->fetch(c, &p.args.y, &p.y);
            if (i == 0)
                memcpy(first, p.y.data, bytes);
            else if (memcmp(first, p.y.data, bytes) != 0)
                check_fail(c, "run %d of m=%lld has other bits", i, (long long)m);
        }
    }
    drop_product(&p);
}

/* The numbers of a gate, or of a factor: act(a) * b, between the clamps, plus the residual. */
static float gated(float a, float b, float residual)
{
    const float v = a / (1.0f + qni_expf(-a)) * b;
    return (v < -2.0f ? -2.0f : v > 1.5f ? 1.5f : v) + residual;
}

/* Bit for bit what the plain product, whose sums are the same, and the steps of docs/numerics.md
 * give one after the other. */
static void gate_case(struct check *c, const void *arg)
{
    enum { TOKENS = 7, OUTPUTS = 96, COLUMNS = 128 };
    const qn_gate gate = *(const qn_gate *)arg;
    const int64_t columns = gate == QN_GATE_NONE ? OUTPUTS : OUTPUTS / 2;
    const int64_t shape[2] = {TOKENS, columns};
    struct product p;
    if (make_product(c, &p, TOKENS, OUTPUTS, COLUMNS)) {
        qn_epilogue_more more;
        qn_epilogue_more_init(&more);
        check_status(c, "the plain product", run_product(c, &p), QN_OK, NULL);
        c->options->device->fetch(c, &p.args.y, &p.y);
        const qn_tensor y = check_tensor(c, "y of the gate", QN_F32, 2, shape, false);
        const qn_tensor other = check_tensor(c, "residual, factor", QN_F32, 2, shape, false);
        check_fill_x(c, &other, CHECK_NORMAL, false);
        const qn_tensor other_there = c->options->device->make(c, &other);
        c->options->device->send(c, &other_there, &other);
        p.args.y = c->options->device->make(c, &y);
        c->options->device->send(c, &p.args.y, &y);
        more.gate = gate;
        if (gate == QN_GATE_NONE)
            more.factor = other_there;
        p.args.more = &more;
        p.args.epilogue.act = QN_ACT_SILU;
        p.args.epilogue.clamp_lo = -2.0f;
        p.args.epilogue.clamp_hi = 1.5f;
        p.args.epilogue.residual = other_there;
        p.args.epilogue.residual_after = 1;
        check_status(c, "the gate", run_product(c, &p), QN_OK, NULL);
        c->options->device->fetch(c, &p.args.y, &y);
        for (int64_t i = 0; i < TOKENS && !c->failed; i++)
            for (int64_t j = 0; j < columns && !c->failed; j++) {
                const float *const row = (const float *)p.y.data + i * p.y.stride[0];
                const float more_of = ((const float *)other.data)[i * other.stride[0] + j];
                const float a = gate == QN_GATE_PAIRS ? row[2 * j] : row[j];
                const float b = gate == QN_GATE_PAIRS    ? row[2 * j + 1]
                                : gate == QN_GATE_HALVES ? row[OUTPUTS / 2 + j]
                                                         : more_of;
                const float want = gated(a, b, more_of);
                const float got = ((const float *)y.data)[i * y.stride[0] + j];
                if (memcmp(&want, &got, sizeof got) != 0)
                    check_fail(c, "y[%lld, %lld] is %.9g, not %.9g", (long long)i, (long long)j,
                               (double)got, (double)want);
            }
    }
    drop_product(&p);
}

/* A batch of weights has the bits of each product alone. */
static void batch_case(struct check *c, const void *arg)
{
    enum { WEIGHTS = 5, EACH = 7, OUTPUTS = 40, COLUMNS = 128 };
    const size_t bytes = WEIGHTS * EACH * OUTPUTS * sizeof(float);
    struct product p;
    (void)arg;
    if (make_product(c, &p, WEIGHTS * EACH, OUTPUTS, COLUMNS)) {
        const qn_packed *w[WEIGHTS];
        qn_grouped_args g;
        qn_grouped_args_init(&g);
        for (int32_t i = 0; i < WEIGHTS; i++)
            w[i] = p.packed;
        g.w = w;
        g.n_experts = WEIGHTS;
        g.strategy = p.args.strategy = QN_STRATEGY_INT8_BLOCK;
        const int64_t x_shape[3] = {WEIGHTS, EACH, COLUMNS}, y_shape[3] = {WEIGHTS, EACH, OUTPUTS};
        qn_tensor *const tensors[2] = {&g.x, &g.y};
        const qn_tensor *const flat[2] = {&p.args.x, &p.args.y};
        for (int32_t t = 0; t < 2; t++) {
            *tensors[t] = *flat[t];
            tensors[t]->rank = 3;
            for (int32_t i = 0; i < 3; i++)
                tensors[t]->shape[i] = t == 0 ? x_shape[i] : y_shape[i];
            tensors[t]->stride[2] = 1;
            tensors[t]->stride[1] = flat[t]->stride[0];
            tensors[t]->stride[0] = EACH * flat[t]->stride[0];
        }
        size_t scratch = 0;
        qn_error err = {QN_OK, -1, ""};
        g.error = &err;
        check_status(c, "scratch", qn_grouped_scratch(p.ctx, &g, &scratch), QN_OK, &err);
        check_status(c, "a batch",
                     qn_grouped(p.ctx, &g, c->options->device->scratch(c, scratch), scratch), QN_OK,
                     &err);
        c->options->device->fetch(c, &p.args.y, &p.y);
        uint8_t *const batch = check_memory(c, "y of the batch", bytes, 4);
        memcpy(batch, p.y.data, bytes);
        check_status(c, "one product", run_product(c, &p), QN_OK, NULL);
        c->options->device->fetch(c, &p.args.y, &p.y);
        if (memcmp(batch, p.y.data, bytes) != 0)
            check_fail(c, "a batch of equal weights differs from one product");
    }
    drop_product(&p);
}

/* qn_combine_rows(): the f32 steps as they are written; rows that x has not are left out. */
static void combine_case(struct check *c, const void *arg)
{
    enum { TOKENS = 9, TOP_K = 3, OUTPUTS = 300, X_ROWS = 20 };
    const bool adds = *(const bool *)arg;
    const struct check_device *const device = c->options->device;
    const qn_ctx *const ctx = check_context(c, QN_ISA_ALL, 1);
    const qn_tensor x = check_tensor(c, "x", QN_F16, 2, (const int64_t[]){X_ROWS, OUTPUTS}, true);
    const qn_tensor weights =
        check_tensor(c, "weights", QN_F32, 2, (const int64_t[]){TOKENS, TOP_K}, true);
    const qn_tensor rows =
        check_tensor(c, "rows", QN_I32, 2, (const int64_t[]){TOKENS, TOP_K}, false);
    const qn_tensor y = check_tensor(c, "y", QN_F32, 2, (const int64_t[]){TOKENS, OUTPUTS}, true);
    const qn_tensor *const all[4] = {&x, &weights, &rows, &y};
    qn_combine_rows_args args;
    qn_error err = {QN_OK, -1, ""};
    check_fill_x(c, &x, CHECK_NORMAL, false);
    check_fill_x(c, &weights, CHECK_NORMAL, false);
    check_fill_x(c, &y, CHECK_NORMAL, false);
    for (int32_t i = 0; i < TOKENS * TOP_K; i++)
        ((int32_t *)rows.data)[i] = (int32_t)check_random_in(&c->random, -3, X_ROWS + 1);
    float *const want = (float *)(void *)check_memory(c, "sums", TOKENS * OUTPUTS * 4, 4);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < OUTPUTS; i++) {
            volatile float sum = adds ? ((const float *)y.data)[t * y.stride[0] + i] : 0.0f;
            for (int64_t j = 0; j < TOP_K; j++) {
                const int32_t row = ((const int32_t *)rows.data)[t * TOP_K + j];
                if (row < 0 || row >= X_ROWS)
                    continue;
                volatile float one = ((const float *)weights.data)[t * weights.stride[0] + j];
                one = one * qni_f32_from_f16(((const uint16_t *)x.data)[row * x.stride[0] + i]);
                sum = sum + one;
            }
            want[t * OUTPUTS + i] = sum;
        }
    qn_combine_rows_args_init(&args);
    qn_tensor *const there[4] = {&args.x, &args.weights, &args.rows, &args.y};
    for (int32_t i = 0; i < 4; i++) {
        *there[i] = device->make(c, all[i]);
        device->send(c, there[i], all[i]);
    }
    if (adds)
        args.add = args.y;
    args.error = &err;
    check_status(c, "qn_combine_rows", qn_combine_rows(ctx, &args), QN_OK, &err);
    device->fetch(c, &args.y, &y);
    for (int64_t t = 0; t < TOKENS && !c->failed; t++)
        if (memcmp((const float *)y.data + t * y.stride[0], want + t * OUTPUTS, OUTPUTS * 4) != 0)
            check_fail(c, "token %lld is not the sum of its rows", (long long)t);
}

static qn_status fails(void *arg, int32_t i)
{
    (void)arg;
    return i == 1 ? QN_E_SHAPE : QN_OK;
}

/* The calls of quern/cuda.h with arguments that are not right. */
static void calls_case(struct check *c, const void *arg)
{
    const qn_ctx *ctx = check_context(c, QN_ISA_ALL, 1);
    qn_ctx *own = (qn_ctx *)(uintptr_t)ctx;
    qn_error err = {QN_OK, -1, ""};
    qn_cuda_info info;
    int32_t count = 0;
    void *memory = NULL;
    double us[3];
    (void)arg;
    qn_cuda_info_init(&info);
    check_status(c, "count", qn_cuda_device_count(&count, &err), QN_OK, &err);
    check_status(c, "query", qn_cuda_query(0, &info, &err), QN_OK, &err);
    if (count < 1 || info.sm < 75 || info.multiprocessors < 1 || info.is_served != 1)
        check_fail(c, "%d GPUs; sm_%d, %d multiprocessors", count, info.sm, info.multiprocessors);
    check_status(c, "no such GPU", qn_cuda_query(count, &info, &err), QN_E_DEVICE, &err);
    check_status(c, "count NULL", qn_cuda_device_count(NULL, NULL), QN_E_ARGUMENT, NULL);
    check_status(c, "pdl 2", qn_cuda_set_pdl(own, 2), QN_E_ARGUMENT, NULL);
    check_status(c, "0 bytes", qn_cuda_alloc(ctx, 0, &memory, &err), QN_OK, &err);
    check_status(c, "2^60 bytes", qn_cuda_alloc(ctx, (size_t)1 << 60, &memory, &err), QN_E_MEMORY,
                 &err);
    check_status(c, "free NULL", qn_cuda_free(ctx, NULL), QN_OK, NULL);
    check_status(c, "a call that fails", qn_cuda_measure(own, fails, NULL, 2, 3, us, &err),
                 QN_E_SHAPE, &err);
    check_status(c, "no calls", qn_cuda_measure(own, fails, NULL, 0, 3, us, &err), QN_E_ARGUMENT,
                 &err);
    check_status(c, "nothing is left behind", qn_cuda_synchronize(ctx, &err), QN_OK, &err);
}

void check_cuda(struct check_suite *suite, const struct check_options *options)
{
    static const int64_t rows[] = {1, 13, 100, 300};
    check_case(suite, calls_case, NULL, "calls");
    check_case(suite, pointers_case, NULL, "pointers");
    check_case(suite, experts_case, NULL, "experts");
    check_case(suite, batch_case, NULL, "batch");
    static const bool adds[] = {false, true};
    check_case(suite, combine_case, &adds[0], "combine_rows");
    check_case(suite, combine_case, &adds[1], "combine_rows/add");
    static const qn_gate gates[] = {QN_GATE_NONE, QN_GATE_HALVES, QN_GATE_PAIRS};
    static const char *const gate_names[] = {"factor", "halves", "pairs"};
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++)
        check_case(suite, gate_case, &gates[i], "gate/%s", gate_names[i]);
    static const bool perms[] = {false, true};
    if (!options->quick) {
        check_case(suite, chunks_case, NULL, "chunks");
        check_case(suite, routed_chunks_case, &perms[0], "routed_chunks");
        check_case(suite, routed_chunks_case, &perms[1], "routed_chunks/perm");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_case(suite, repeat_case, &rows[i], "repeat/%lld", (long long)rows[i]);
}
