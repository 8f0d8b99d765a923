/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of the GPU's table of matmul kernels by its name, on weights and activations of its own
 * kind: the tile's rows, and some more where it takes more, compared with the reference; then in a
 * graph, and a hundred times, bit for bit. So each kernel meets the sanitizers, whatever a plan
 * would choose. */
#include <quern/cuda.h>
#include <string.h>

#include "suites.h"

enum { READS_F16, READS_BF16, READS_Q8, READS_Q8B };
enum { LAYOUT_Q4FRAG, LAYOUT_T4FRAG, LAYOUT_Q8FRAG, LAYOUT_T8FRAG };
struct row {
    const char *name;
    int32_t sm, exact, reads, layout, m_max, mr;
};
#define QNI_CUDA_KERNEL(fn, sm, exact, reads, layout, m_max, mr, family, takes_total)              \
    {#fn, sm, exact, READS_##reads, LAYOUT_##layout, m_max, mr},
static const struct row rows[] = {
#include "../../src/cuda/matmul/kernels.inc"
};
#undef QNI_CUDA_KERNEL

struct kernel_case {
    const struct row *row;
    int64_t m;
};

/* Weights that the row's layout holds and its strategy can read. */
static qn_format format_of(const struct row *row)
{
    const bool is_int8 = row->reads == READS_Q8 || row->reads == READS_Q8B;
    const bool is_table = row->layout == LAYOUT_T4FRAG || row->layout == LAYOUT_T8FRAG;
    qn_format f = {.code = QN_CODE_INT, .bits = 4, .group = 64, .scale_dtype = QN_F32};
    if (row->layout == LAYOUT_Q8FRAG || row->layout == LAYOUT_T8FRAG)
        f.bits = 8;
    if (is_table)
        f.code = f.bits == 8 ? QN_CODE_E4M3 : is_int8 ? QN_CODE_IQ4_NL : QN_CODE_NF4;
    if (!is_table && !is_int8)
        f.shift = QN_SHIFT_ZERO;
    return f;
}

/* A plan of this row; NULL: it cannot be on this GPU. */
static qn_plan *plan_row(struct check *c, const qn_ctx *ctx, const struct row *row,
                         qn_matmul_args *args)
{
    qn_plan *plan = NULL;
    qn_cuda_info gpu;
    qn_error err = {QN_OK, -1, ""};
    qn_cuda_info_init(&gpu);
    check_status(c, "query", qn_cuda_query(c->options->device_index, &gpu, &err), QN_OK, &err);
    args->kernel = row->name;
    const qn_status status = qn_matmul_plan(ctx, args, &plan, &err);
    const bool fits = row->exact ? gpu.sm == row->sm : gpu.sm >= row->sm;
    if (!fits)
        check_status(c, "a row of another GPU", status, QN_E_UNSUPPORTED, &err);
    /* What was left out of the build (QN_ONLY) is not even refused with a reason. */
    else if (status != QN_E_UNSUPPORTED || strstr(err.text, row->name) != NULL)
        check_status(c, row->name, status, QN_OK, &err);
    return plan;
}

struct call {
    const qn_plan *plan;
    const qn_matmul_args *args;
    void *scratch;
    size_t bytes;
};

static qn_status run_call(void *arg, int32_t i)
{
    const struct call *p = arg;
    (void)i;
    return qn_matmul_run(p->plan, p->args, p->scratch, p->bytes);
}

/* In a graph, and again and again. */
static void run_often(struct check *c, const qn_ctx *ctx, struct call *call,
                      struct check_expected *expected)
{
    const struct check_device *device = c->options->device;
    const uint8_t *image = check_remember_y(c, expected);
    const int32_t times = c->options->quick ? 3 : 100;
    qn_error err = {QN_OK, -1, ""};
    double us[1];
    check_prepare_y(c, expected);
    device->send(c, &call->args->y, &expected->op.y);
    check_status(c, "a graph",
                 qn_cuda_measure((qn_ctx *)(uintptr_t)ctx, run_call, call, 2, 1, us, &err), QN_OK,
                 &err);
    device->fetch(c, &call->args->y, &expected->op.y);
    check_same_y(c, expected, image, "a graph");
    for (int32_t i = 0; i < times && !c->failed; i++) {
        check_status(c, "a run", run_call(call, i), QN_OK, NULL);
        device->fetch(c, &call->args->y, &expected->op.y);
        check_same_y(c, expected, image, "the same again");
    }
}

static void kernel_case(struct check *c, const void *arg)
{
    enum { N = 72, K = 160 };
    const struct kernel_case *k = arg;
    const struct row *row = k->row;
    const struct check_weight_options o = {.format = format_of(row),
                                           .n = N,
                                           .k = K,
                                           .kh = 1,
                                           .kw = 1,
                                           .conv_groups = 1,
                                           .data = CHECK_NORMAL};
    const qn_ctx *ctx = check_context(c, QN_ISA_ALL, 1);
    const struct check_device *device = c->options->device;
    struct check_weight weight;
    qn_weight *w = NULL;
    qn_packed *packed = NULL;
    qn_error err = {QN_OK, -1, ""};
    qn_matmul_args args;
    check_weight_make(c, &o, &weight);
    check_status(c, "qn_weight_create", qn_weight_create(ctx, &weight.parts, &w, &err), QN_OK,
                 &err);
    check_status(c, "qn_pack", qn_pack(ctx, w, NULL, &packed, &err), QN_OK, &err);
    qn_weight_destroy(w);
    qn_matmul_args_init(&args);
    args.w = packed;
    args.strategy = row->reads == READS_Q8    ? QN_STRATEGY_INT8_ROW
                    : row->reads == READS_Q8B ? QN_STRATEGY_INT8_BLOCK
                                              : QN_STRATEGY_FLOAT;
    /* bf16 as it is, or f32 in three planes, which the kernels of sm_90a do not read. */
    const qn_dtype x_type = row->reads == READS_F16                                       ? QN_F16
                            : row->reads == READS_BF16 && (row->exact || k->m == row->mr) ? QN_BF16
                                                                                          : QN_F32;
    args.x = check_tensor(c, "x", x_type, 2, (const int64_t[]){k->m, K}, false);
    args.y = check_tensor(c, "y", QN_F32, 2, (const int64_t[]){k->m, N}, false);
    check_fill_x(c, &args.x, CHECK_NORMAL, false);

    struct check_expected expected;
    struct qni_ref_op op;
    const struct qn_weight *const canonical = &weight.w;
    memset(&expected, 0, sizeof expected);
    qni_ref_matmul(&args, &canonical, &op);
    qn_packed_info info;
    qn_packed_info_init(&info);
    check_status(c, "qn_packed_query", qn_packed_query(packed, &info), QN_OK, NULL);
    op.x_block = info.x_block;
    check_expect(c, &op, CHECK_NORMAL, &expected);
    const qn_tensor x = args.x, y = args.y;
    args.x = device->make(c, &x);
    args.y = device->make(c, &y);
    device->send(c, &args.x, &x);
    qn_plan *const plan = plan_row(c, ctx, row, &args);
    if (plan != NULL) {
        const size_t bytes = qn_plan_scratch_bytes(plan);
        struct call call = {plan, &args, device->scratch(c, bytes), bytes};
        check_prepare_y(c, &expected);
        device->send(c, &args.y, &expected.op.y);
        check_status(c, row->name, run_call(&call, 0), QN_OK, NULL);
        device->fetch(c, &args.y, &expected.op.y);
        if (check_y(c, &expected, row->name, row->name))
            run_often(c, ctx, &call, &expected);
    }
    qn_plan_destroy(plan);
    qn_packed_destroy(packed);
}

void check_cuda_kernels(struct check_suite *suite, const struct check_options *options)
{
    (void)options;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct kernel_case some = {&rows[i], rows[i].mr + 3}, all = {&rows[i], rows[i].mr};
        check_case(suite, kernel_case, &all, "%s/%lld", rows[i].name, (long long)all.m);
        if (rows[i].m_max == 0)
            check_case(suite, kernel_case, &some, "%s/%lld", rows[i].name, (long long)some.m);
    }
}
