/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of the GPU's table of matmul kernels by its name, on weights and activations of its own
 * kind: the tile's rows, and some more where it takes more, compared with the reference; then in a
 * graph, and a hundred times, bit for bit. So each kernel meets the sanitizers, whatever a plan
 * would choose. */
#include <quern/cuda.h>
#include <string.h>

#include "../../src/cuda/kernel.h"
#include "suites.h"

struct row {
    const char *name;
    int32_t sm, exact, reads, layout, m_max, mr, family;
};
#undef QNI_CUDA_KERNEL
#define QNI_CUDA_KERNEL(fn, sm, exact, reads, layout, m_max, mr, family, takes_total)              \
    {#fn,                                                                                          \
     sm,                                                                                           \
     exact,                                                                                        \
     QNI_CUDA_READS_##reads,                                                                       \
     QNI_CUDA_##layout,                                                                            \
     m_max,                                                                                        \
     mr,                                                                                           \
     QNI_CUDA_FAMILY_##family},
static const struct row rows[] = {
#include "../../src/cuda/matmul/kernels.inc"
};
#undef QNI_CUDA_KERNEL

struct kernel_case {
    const struct row *row;
    int64_t m, n;
    int32_t first; /* problem; a wide case is this one alone */
    bool f16_scales;
};

/* Problems of a row, the hardest first: not every row takes every shift, group and type of x. */
enum { N_PROBLEMS = 4, N_WIDE = 4 };
static const struct problem {
    int64_t group, k;
    qn_shift shift; /* of integers in float strategies */
    bool f32;       /* x of rows that read bf16; else it is bf16 */
} problems[N_PROBLEMS + N_WIDE] = {
    {64, 160, QN_SHIFT_ZERO, true},
    {64, 160, QN_SHIFT_ZERO, false},
    {32, 256, QN_SHIFT_NONE, false},
    {128, 256, QN_SHIFT_NONE, false},
    /* With outputs for every multiprocessor: kernels that share panels out otherwise then. */
    {128, 4160, QN_SHIFT_ZERO, false},
    {64, 1184, QN_SHIFT_NONE, false},
    {32, 544, QN_SHIFT_ZERO, false},
    {1024, 1024, QN_SHIFT_NONE, false},
};

static bool is_e4m3(const struct row *row)
{
    return row->reads == QNI_CUDA_READS_E4M3 || row->reads == QNI_CUDA_READS_E4M3B;
}

static bool is_int8(const struct row *row)
{
    return row->reads == QNI_CUDA_READS_Q8 || row->reads == QNI_CUDA_READS_Q8B;
}

/* Weights that the row's layout holds and its strategy can read. */
static qn_format format_of(const struct row *row, const struct problem *p)
{
    const bool is_table = row->layout == QNI_CUDA_T4FRAG || row->layout == QNI_CUDA_T8FRAG;
    qn_format f = {.code = QN_CODE_INT, .bits = 4, .scale_dtype = QN_F32};
    f.group = p->group;
    if (row->layout == QNI_CUDA_Q8FRAG || row->layout == QNI_CUDA_T8FRAG)
        f.bits = 8;
    if (is_table)
        f.code = f.bits == 8 ? QN_CODE_E4M3 : is_int8(row) ? QN_CODE_IQ4_NL : QN_CODE_NF4;
    if (!is_table && !is_int8(row))
        f.shift = p->shift;
    return f;
}

/* A plan of this row. NULL: it does not take the problem, or is not on this GPU (*is_here: 0).
 * The last problem is taken by every row that is here. */
static qn_plan *plan_row(struct check *c, const qn_ctx *ctx, const struct row *row,
                         qn_matmul_args *args, bool is_last, bool *is_here)
{
    qn_plan *plan = NULL;
    qn_cuda_info gpu;
    qn_error err = {QN_OK, -1, ""};
    qn_cuda_info_init(&gpu);
    check_status(c, "query", qn_cuda_query(c->options->device_index, &gpu, &err), QN_OK, &err);
    args->kernel = row->name;
    const qn_status status = qn_matmul_plan(ctx, args, &plan, &err);
    const bool fits = row->exact ? gpu.sm == row->sm : gpu.sm >= row->sm;
    /* What was left out of the build (QN_ONLY) is not even refused with a reason. */
    *is_here = fits && (status == QN_OK || strstr(err.text, row->name) != NULL);
    if (!fits || (status == QN_E_UNSUPPORTED && !is_last))
        check_status(c, "a row that does not serve", status, QN_E_UNSUPPORTED, &err);
    else if (*is_here)
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
    qn_error err = {QN_OK, -1, ""};
    double us[1];
    check_prepare_y(c, expected);
    device->send(c, &call->args->y, &expected->op.y);
    check_status(c, "a graph",
                 qn_cuda_measure((qn_ctx *)(uintptr_t)ctx, run_call, call, 2, 1, us, &err), QN_OK,
                 &err);
    device->fetch(c, &call->args->y, &expected->op.y);
    check_same_y(c, expected, image, "a graph");
    for (int32_t i = 0; i < 100 && !c->failed; i++) {
        check_status(c, "a run", run_call(call, i), QN_OK, NULL);
        device->fetch(c, &call->args->y, &expected->op.y);
        check_same_y(c, expected, image, "the same again");
    }
}

/* What the reference says of host tensors; bounds are made later, so the weight stays. */
static void expect_product(struct check *c, const qn_matmul_args *args,
                           const struct qn_weight *const *canonical,
                           struct check_expected *expected)
{
    struct qni_ref_op op;
    qn_packed_info info;
    qn_packed_info_init(&info);
    memset(expected, 0, sizeof *expected);
    qni_ref_matmul(args, canonical, &op);
    check_status(c, "qn_packed_query", qn_packed_query(args->w, &info), QN_OK, NULL);
    op.x_block = info.x_block;
    check_expect(c, &op, CHECK_NORMAL, expected);
}

/* Plan by name, run, compare. */
static bool run_problem(struct check *c, const struct kernel_case *k, qn_matmul_args *args,
                        const struct check_weight *weight, bool is_last, bool *is_here)
{
    const struct check_device *device = c->options->device;
    const qn_ctx *ctx = check_context(c, QN_ISA_ALL, 1);
    const qn_tensor x = args->x, y = args->y;
    const struct qn_weight *const canonical = &weight->w;
    struct check_expected expected;
    expect_product(c, args, &canonical, &expected);
    args->x = device->make(c, &x);
    args->y = device->make(c, &y);
    device->send(c, &args->x, &x);
    qn_plan *const plan = plan_row(c, ctx, k->row, args, is_last, is_here);
    if (plan == NULL)
        return false;
    const size_t bytes = qn_plan_scratch_bytes(plan);
    struct call call = {plan, args, device->scratch(c, bytes), bytes};
    check_prepare_y(c, &expected);
    device->send(c, &args->y, &expected.op.y);
    check_status(c, k->row->name, run_call(&call, 0), QN_OK, NULL);
    device->fetch(c, &args->y, &expected.op.y);
    if (check_y(c, &expected, k->row->name, k->row->name) && !c->options->quick)
        run_often(c, ctx, &call, &expected);
    qn_plan_destroy(plan);
    return true;
}

static void kernel_case(struct check *c, const void *arg)
{
    const struct kernel_case *k = arg;
    const int32_t end = k->first < N_PROBLEMS ? N_PROBLEMS : k->first + 1;
    const struct row *row = k->row;
    const qn_ctx *ctx = check_context(c, QN_ISA_ALL, 1);
    bool done = false, is_here = true;
    for (int32_t i = k->first; i < end && !done && is_here && !c->failed; i++) {
        const struct problem *p = &problems[i];
        const struct check_weight_options o = {.format = format_of(row, p),
                                               .n = k->n,
                                               .k = p->k,
                                               .kh = 1,
                                               .kw = 1,
                                               .conv_groups = 1,
                                               .data = CHECK_NORMAL,
                                               .f16_scales = k->f16_scales};
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
        args.strategy = row->reads == QNI_CUDA_READS_E4M3        ? QN_STRATEGY_FP8_ROW
                        : row->reads == QNI_CUDA_READS_E4M3B     ? QN_STRATEGY_FP8_BLOCK
                        : row->reads == QNI_CUDA_READS_Q8        ? QN_STRATEGY_INT8_ROW
                        : row->reads == QNI_CUDA_READS_Q8B       ? QN_STRATEGY_INT8_BLOCK
                        : row->family == QNI_CUDA_FAMILY_ROUNDED ? QN_STRATEGY_DENSE
                                                                 : QN_STRATEGY_FLOAT;
        const qn_dtype other = p->f32 || is_int8(row) || is_e4m3(row) ? QN_F32 : QN_BF16;
        const qn_dtype x_type = row->reads == QNI_CUDA_READS_F16 ? QN_F16 : other;
        args.x = check_tensor(c, "x", x_type, 2, (const int64_t[]){k->m, p->k}, false);
        args.y = check_tensor(c, "y", QN_F32, 2, (const int64_t[]){k->m, k->n}, false);
        check_fill_x(c, &args.x, CHECK_NORMAL, false);
        if (!c->failed)
            done = run_problem(c, k, &args, &weight, i == end - 1, &is_here);
        qn_packed_destroy(packed);
    }
}

static void wide_case(struct check_suite *suite, const struct row *row, int32_t problem, int64_t m)
{
    const struct kernel_case wide = {row, m, 4096 - 40 * (problem % 2), problem, false};
    check_case(suite, kernel_case, &wide, "%s/%lldx%lldx%lld", row->name, (long long)m,
               (long long)wide.n, (long long)problems[problem].k);
}

/* Few rows of x times weights that give every multiprocessor panels in fours; and more rows than
 * the kernel works on at a time, where it takes them. */
static void wide_cases(struct check_suite *suite, const struct row *row)
{
    for (int32_t i = N_PROBLEMS; i < N_PROBLEMS + N_WIDE; i++) {
        for (int64_t m = row->mr; m > row->mr / 2; m -= (row->mr + 4) / 5)
            wide_case(suite, row, i, m);
        if (row->m_max > row->mr) {
            wide_case(suite, row, i, row->mr + 1);
            wide_case(suite, row, i, row->m_max);
        }
    }
}

/* Weights rounded on the way: scales of f16 have a way of their own, groups of pairs of blocks a
 * form of their own, and few rows tiles of fewer. */
static void rounded_cases(struct check_suite *suite, const struct row *row)
{
    for (int32_t i = 0; i < 3 * N_WIDE; i++) {
        const struct problem *p = &problems[N_PROBLEMS + i / 3];
        const struct kernel_case k = {row, i % 3 == 0 ? 40 : 128 * (i % 3) + 5,
                                      i % 3 == 0 ? 264 : 136, N_PROBLEMS + i / 3, true};
        check_case(suite, kernel_case, &k, "%s/f16/%lldx%lldx%lld/g%lld", row->name, (long long)k.m,
                   (long long)k.n, (long long)p->k, (long long)p->group);
    }
}

/* Quick: the partly filled tile alone, if there is one. */
void check_cuda_kernels(struct check_suite *suite, const struct check_options *options)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum { N = 72 };
        if (rows[i].family == QNI_CUDA_FAMILY_IMAGE) /* api_conv.c */
            continue;
        const struct kernel_case some = {&rows[i], rows[i].mr + 3, N, 0, false};
        const struct kernel_case all = {&rows[i], rows[i].mr, N, 0, false};
        const bool is_short = rows[i].m_max != 0;
        if (is_short || !options->quick)
            check_case(suite, kernel_case, &all, "%s/%lld", rows[i].name, (long long)all.m);
        if (!is_short)
            check_case(suite, kernel_case, &some, "%s/%lld", rows[i].name, (long long)some.m);
        if (is_short && !options->quick)
            wide_cases(suite, &rows[i]);
        if (rows[i].family == QNI_CUDA_FAMILY_ROUNDED)
            rounded_cases(suite, &rows[i]);
    }
}
