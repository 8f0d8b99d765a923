/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing kernels for GPUs that are not there: every row of kernels.inc, on made-up devices. What
 * must hold of any table and any constants: nothing that cannot serve is chosen, every m has a
 * kernel that takes it, every row that is not chosen says why. */
#include "unit.h"

#include <math.h>
#include <stdio.h>

#include "cuda/matmul/dense.h"
#include "cuda/matmul/prepared.h"
#include "cuda/matmul/select.h"
#include "quant/magnitude.h"

static int32_t never_launched(const struct qni_cuda_product *product,
                              const struct qni_cuda_experts *experts,
                              const struct qni_cuda_launch *launch)
{
    (void)product;
    (void)experts;
    (void)launch;
    return -1;
}

#define QNI_CUDA_KERNEL(fn, sm, exact, reads, layout, m_max, mr, family, takes_total)              \
    {#fn,                                                                                          \
     never_launched,                                                                               \
     sm,                                                                                           \
     exact,                                                                                        \
     QNI_CUDA_READS_##reads,                                                                       \
     QNI_CUDA_##layout,                                                                            \
     m_max,                                                                                        \
     mr,                                                                                           \
     QNI_CUDA_FAMILY_##family,                                                                     \
     takes_total},
static const struct qni_cuda_kernel rows[] = {
#include "cuda/matmul/kernels.inc"
};
#undef QNI_CUDA_KERNEL
enum { N_ROWS = (int)(sizeof rows / sizeof *rows), N_DENSE = 2 };

static const struct qni_cuda_facts gpus[] = {
    {"a T4", 75, 40, (size_t)16 << 30, 4 << 20, 320e9, 1, 65e12, 130e12, NULL, 0, NULL},
    {"an A100", 80, 108, (size_t)80 << 30, 40 << 20, 2039e9, 1, 312e12, 624e12, NULL, 0, NULL},
    {"an RTX 3090", 86, 82, (size_t)24 << 30, 6 << 20, 936e9, 1, 71e12, 142e12, NULL, 0, NULL},
    {"an L40", 89, 142, (size_t)48 << 30, 96 << 20, 864e9, 1, 181e12, 362e12, NULL, 0, NULL},
    {"an H100", 90, 132, (size_t)80 << 30, 50 << 20, 3352e9, 1, 989e12, 1978e12, NULL, 0, NULL},
    {"a later one", 120, 188, (size_t)96 << 30, 128 << 20, 1792e9, 1, 500e12, 1000e12, NULL, 0,
     NULL},
};
enum { N_GPUS = (int)(sizeof gpus / sizeof *gpus) };

/* A plain product with weights of which there is only a head. */
struct product {
    struct qni_op op;
    struct qni_packed_head head;
    struct qn_packed packed;
    const qn_packed *w[1];
    float table[16];
};

static void start_product(struct product *p, const char *layout, qn_strategy strategy, int64_t m)
{
    memset(p, 0, sizeof *p);
    p->head.n = 4096;
    p->head.k = p->head.ci = 4096;
    p->head.kh = p->head.kw = p->head.conv_groups = 1;
    p->head.n_groups = 32;
    p->head.units = 128;
    p->head.group_units = p->head.segment_units = 4;
    p->head.n_segments = 32;
    p->head.panels = 256;
    p->head.n_runs = 1;
    p->head.device_kind = QN_CUDA;
    p->head.format =
        (qn_format){.code = QN_CODE_INT, .bits = 4, .group = 128, .scale_dtype = QN_F16};
    p->head.section[QNI_SECTION_CODES].bytes = 4096 * 2048;
    p->head.section[QNI_SECTION_SCALE].bytes = 4096 * 32 * 2;
    p->head.section[QNI_SECTION_SUMS].bytes = 4096 * 32 * 4;
    snprintf(p->head.layout, sizeof p->head.layout, "%s", layout);
    p->packed.head = &p->head;
    p->packed.device.kind = QN_CUDA;
    p->w[0] = &p->packed;
    p->op.strategy = strategy;
    p->op.m = m;
    p->op.n = p->op.k = 4096;
    p->op.w = p->w;
    p->op.n_w = 1;
    const int64_t shape[2] = {m, 4096};
    p->op.x = qn_tensor_make(NULL, strategy == QN_STRATEGY_INT8_STATIC ? QN_I8 : QN_F16, 2, shape);
    p->op.y = qn_tensor_make(NULL, QN_F16, 2, shape);
    qn_epilogue_init(&p->op.epilogue);
    p->op.quant.x_scale = 1.0f;
}

static struct qni_cuda_offer offer_on(const struct qni_cuda_facts *gpu)
{
    return (struct qni_cuda_offer){rows, N_ROWS, gpu};
}

static qn_status choose(const struct qni_cuda_facts *gpu, const struct product *p,
                        struct qni_cuda_choice *choice, qni_refusal_fn tell, void *arg)
{
    const struct qni_cuda_offer offer = offer_on(gpu);
    memset(choice, 0, sizeof *choice);
    return qni_cuda_choose(&offer, &p->op, choice, tell, arg);
}

static void assert_serves(const struct qni_cuda_choice *c, const struct product *p,
                          const struct qni_cuda_facts *gpu)
{
    assert_in_range(c->n_choices, 1, QNI_MAX_CHOICES);
    assert_ptr_equal(c->main, c->kernel[c->n_choices - 1]);
    assert_int_equal(c->m_from[0], 0);
    for (int32_t i = 0; i < c->n_choices; i++) {
        const struct qni_cuda_kernel *k = c->kernel[i];
        const int64_t last = i + 1 < c->n_choices ? c->m_from[i + 1] - 1 : p->op.m;
        assert_true(gpu->sm >= k->sm && (!k->sm_exact || gpu->sm == k->sm));
        assert_true(k->m_max == 0 || last <= k->m_max);
        assert_true(i == 0 || c->m_from[i] > c->m_from[i - 1]);
    }
    assert_true(c->predicted_us > 0.0 && c->roofline_us > 0.0);
}

static void every_m_is_served_on_every_gpu(void **state)
{
    static const char *const layouts[] = {"q4frag", "q8frag", "t4frag", "t8frag"};
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++)
        for (size_t l = 0; l < 4; l++)
            for (int64_t m = 1; m <= 5000; m = m < 70 ? m + 1 : m * 3 / 2)
                for (qn_strategy s = QN_STRATEGY_FLOAT; s <= QN_STRATEGY_DENSE; s++) {
                    start_product(&p, layouts[l], s, m);
                    if (l >= 2 && s != QN_STRATEGY_FLOAT && s != QN_STRATEGY_DENSE)
                        continue; /* tables: below */
                    assert_int_equal(choose(&gpus[g], &p, &c, NULL, NULL), QN_OK);
                    assert_serves(&c, &p, &gpus[g]);
                }
}

static void experts_are_served_on_every_gpu(void **state)
{
    static const char *const layouts[] = {"q4frag", "q8frag", "t4frag", "t8frag"};
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++)
        for (int32_t i = 0; i < 12; i++)
            for (int64_t m = 1; m <= 5000; m *= 3)
                for (qn_strategy s = QN_STRATEGY_FLOAT; s <= QN_STRATEGY_DENSE; s++) {
                    start_product(&p, layouts[i / 3], s, m);
                    p.op.kind = QNI_GROUPED;
                    p.op.x.dtype = types[i % 3];
                    if (i / 3 >= 2 && s != QN_STRATEGY_FLOAT && s != QN_STRATEGY_DENSE)
                        continue; /* tables: below */
                    assert_int_equal(choose(&gpus[g], &p, &c, NULL, NULL), QN_OK);
                }
}

/* 13 to 16 rows of three planes are more than a decode kernel has room for beside its weights; two
 * planes, which long sums have, are not. */
static void rows_find_room_in_shared_memory(void **state)
{
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++)
        for (int32_t i = 0; i < 16; i++) {
            const int64_t m = 9 + i / 2;
            start_product(&p, "q4frag", QN_STRATEGY_FLOAT, m);
            p.op.x.dtype = QN_F32;
            p.op.kernel = "qni_matmul_bf16_q4frag_mr16_sm80";
            if (i % 2 != 0)
                p.op.k = 63;
            assert_int_equal(qni_cuda_planes(&p.op), 2 + i % 2);
            const bool has_room = i % 2 == 0 || m <= 12 || gpus[g].sm == 80 || gpus[g].sm == 90;
            assert_int_equal(choose(&gpus[g], &p, &c, NULL, NULL),
                             has_room && gpus[g].sm >= 80 ? QN_OK : QN_E_UNSUPPORTED);
        }
}

static void types_choose_what_is_read(void **state)
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (size_t t = 0; t < 3; t++) {
        start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 300);
        p.op.x.dtype = types[t];
        assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_OK);
        for (int32_t i = 0; i < c.n_choices; i++)
            assert_true(types[t] == QN_F16 || c.kernel[i]->reads == QNI_CUDA_READS_BF16);
        p.head.section[QNI_SECTION_PRESCALE].bytes = 4096 * 4;
        assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_OK);
        for (int32_t i = 0; i < c.n_choices; i++)
            assert_int_equal(c.kernel[i]->reads, QNI_CUDA_READS_BF16);
    }
}

struct heard {
    int32_t n;
    const char *last;
};

static void hear(void *arg, const char *kernel, const char *why)
{
    struct heard *h = arg;
    assert_non_null(kernel);
    assert_true(strlen(why) > 10);
    h->n++;
    h->last = why;
}

static void every_other_row_says_why(void **state)
{
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++) {
        struct heard h = {0, NULL};
        start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 100);
        assert_int_equal(choose(&gpus[g], &p, &c, hear, &h), QN_OK);
        int32_t distinct = 0;
        for (int32_t r = 0; r < N_ROWS; r++) {
            bool chosen = false;
            for (int32_t i = 0; i < c.n_choices; i++)
                chosen = chosen || c.kernel[i] == &rows[r];
            distinct += chosen;
        }
        assert_int_equal(h.n + distinct, N_ROWS + N_DENSE);
    }
}

static void a_name_is_obeyed_or_refused(void **state)
{
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t r = 0; r < N_ROWS; r++) {
        start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 7);
        p.op.kernel = rows[r].name;
        /* f16 as bf16 is two planes, and the decode kernel of 32 rows takes one. */
        const bool has_planes = rows[r].family == QNI_CUDA_FAMILY_DECODE && rows[r].mr == 32 &&
                                rows[r].reads == QNI_CUDA_READS_BF16;
        const bool fits =
            !has_planes && rows[r].layout == QNI_CUDA_Q4FRAG &&
            (rows[r].reads == QNI_CUDA_READS_F16 || rows[r].reads == QNI_CUDA_READS_BF16) &&
            (rows[r].m_max == 0 || rows[r].m_max >= 7) &&
            rows[r].family != QNI_CUDA_FAMILY_ROUNDED && rows[r].family != QNI_CUDA_FAMILY_IMAGE;
        assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), fits ? QN_OK : QN_E_UNSUPPORTED);
        if (fits)
            assert_ptr_equal(c.main, &rows[r]);
    }
    start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 7);
    p.op.kernel = "no such row";
    assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_E_UNSUPPORTED);
}

static void assert_refused(const struct product *p, const char *part)
{
    struct heard h = {0, ""};
    struct qni_cuda_choice c;
    assert_int_equal(choose(&gpus[4], p, &c, hear, &h), QN_E_UNSUPPORTED);
    assert_int_equal(c.n_choices, 0);
    assert_int_equal(h.n, N_ROWS + N_DENSE);
    assert_non_null(strstr(h.last, part));
}

static void what_cannot_be_is_refused(void **state)
{
    struct product p;
    (void)state;
    start_product(&p, "q4n16", QN_STRATEGY_FLOAT, 3);
    assert_refused(&p, "layout");
    start_product(&p, "q4frag", QN_STRATEGY_INT8_STATIC, 3);
    p.head.section[QNI_SECTION_PRESCALE].bytes = 4096 * 4;
    assert_refused(&p, "prescale");
    start_product(&p, "q4frag", QN_STRATEGY_INT8_STATIC, 3);
    p.head.section[QNI_SECTION_SUMS].bytes = 0;
    p.op.quant.x_zero = 1;
    assert_refused(&p, "sums");
    start_product(&p, "q4frag", QN_STRATEGY_INT8_BLOCK, 3);
    p.head.section[QNI_SECTION_SUMS].bytes = 0;
    assert_refused(&p, "sums");
    start_product(&p, "t4frag", QN_STRATEGY_INT8_ROW, 3);
    p.head.format.code = QN_CODE_NF4;
    p.head.section[QNI_SECTION_TABLE].bytes = 64;
    p.table[3] = 0.3f;
    p.packed.table = p.table;
    assert_refused(&p, "codebook");
    start_product(&p, "q4frag", QN_STRATEGY_INT8_STATIC, 3);
    p.op.y.dtype = QN_I32;
    assert_refused(&p, "int32");
    start_product(&p, "q4frag", QN_STRATEGY_FLOAT, (int64_t)1 << 32);
    assert_refused(&p, "2^31");
}

/* Kernels that divide by what there is of k are not asked where there is nothing. */
static void nothing_is_for_the_general_kernels(void **state)
{
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++)
        for (int64_t m = 1; m < 3000; m *= 3) {
            start_product(&p, "q4frag", QN_STRATEGY_FLOAT, m);
            p.op.k = p.head.k = p.head.ci = p.head.units = p.head.n_groups = 0;
            assert_int_equal(choose(&gpus[g], &p, &c, NULL, NULL), QN_OK);
            for (int32_t i = 0; i < c.n_choices; i++)
                assert_int_equal(c.kernel[i]->family, QNI_CUDA_FAMILY_TILE);
        }
}

static void tables_of_integers_are_integers(void **state)
{
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    start_product(&p, "t4frag", QN_STRATEGY_INT8_ROW, 3);
    p.head.format.code = QN_CODE_TABLE;
    p.head.section[QNI_SECTION_TABLE].bytes = 64;
    for (int32_t i = 0; i < 16; i++)
        p.table[i] = (float)(i * i - 100);
    p.packed.table = p.table;
    assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_OK);
    assert_int_equal(c.main->layout, QNI_CUDA_T4FRAG);
}

/* ---- the dense tier -------------------------------------------------------------------------- */

static bool has_dense(const struct qni_cuda_choice *c)
{
    bool has = false;
    for (int32_t i = 0; i < c->n_choices; i++)
        has = has || qni_cuda_is_dense(c->kernel[i]);
    return has;
}

/* What is said of the dense rows. */
struct heard_of_dense {
    const char *why[N_DENSE];
};

static void hear_of_dense(void *arg, const char *kernel, const char *why)
{
    struct heard_of_dense *h = arg;
    for (int32_t i = 0; i < N_DENSE; i++)
        if (strcmp(kernel, qni_cuda_dense_at(i)->name) == 0)
            h->why[i] = why;
}

/* What is said of one row. */
struct heard_of_row {
    const char *name, *why;
};

static void hear_of_row(void *arg, const char *kernel, const char *why)
{
    struct heard_of_row *h = arg;
    if (strcmp(kernel, h->name) == 0)
        h->why = why;
}

static void start_gpu(struct qni_cuda *cuda, const struct qni_cuda_facts *facts)
{
    memset(cuda, 0, sizeof *cuda);
    cuda->facts = *facts;
    cuda->facts.tuned = cuda->tuned;
}

/* The same GPU, with kernels of packed weights that are slow: what others are is no matter then. */
static void start_slow_gpu(struct qni_cuda *cuda, const struct qni_cuda_facts *facts)
{
    qn_cuda_cost cost;
    start_gpu(cuda, facts);
    for (int32_t i = 0; qni_cuda_cost_get(cuda, rows, N_ROWS, i, &cost, NULL) == QN_OK; i++) {
        cost.block_ns *= 10.0;
        assert_int_equal(qni_cuda_cost_set(cuda, rows, N_ROWS, &cost, NULL), QN_OK);
    }
}

static void the_dense_tier_serves_who_asks(void **state)
{
    struct qni_cuda slow;
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    start_slow_gpu(&slow, &gpus[4]);
    assert_null(qni_cuda_dense_at(N_DENSE));
    assert_null(qni_cuda_dense_at(-1));
    for (int32_t bf16 = 0; bf16 < 2; bf16++) {
        struct heard_of_dense h = {{NULL, NULL}};
        start_product(&p, "q4frag", QN_STRATEGY_DENSE, 4096);
        p.op.x.dtype = p.op.y.dtype = bf16 ? QN_BF16 : QN_F16;
        assert_int_equal(choose(&slow.facts, &p, &c, hear_of_dense, &h), QN_OK);
        assert_ptr_equal(c.main, qni_cuda_dense_at(bf16));
        assert_false(qni_cuda_is_dense(c.kernel[0])); /* few rows stay with the weights packed */
        assert_false(c.is_fallback);
        assert_non_null(strstr(c.note, "cuBLASLt"));
        assert_null(h.why[bf16]);
        assert_non_null(h.why[1 - bf16]);
        p.op.strategy = QN_STRATEGY_FLOAT; /* not asked for: told of */
        assert_int_equal(choose(&slow.facts, &p, &c, hear_of_dense, &h), QN_OK);
        assert_false(has_dense(&c));
        assert_non_null(strstr(h.why[bf16], "dense strategy"));
        assert_non_null(strstr(h.why[bf16], "faster"));
    }
    start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 1);
    struct heard_of_dense h = {{NULL, NULL}};
    assert_int_equal(choose(&gpus[4], &p, &c, hear_of_dense, &h), QN_OK);
    assert_null(strstr(h.why[0], "faster"));
    start_product(&p, "q4frag", QN_STRATEGY_DENSE, 7);
    p.op.kernel = qni_cuda_dense_at(0)->name;
    assert_int_equal(choose(&gpus[0], &p, &c, NULL, NULL), QN_OK);
    assert_ptr_equal(c.main, qni_cuda_dense_at(0));
}

static void without_its_library_floats_serve(void **state)
{
    struct qni_cuda slow;
    start_slow_gpu(&slow, &gpus[4]);
    struct qni_cuda_facts gpu = slow.facts;
    bool ever_wanted = false;
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    gpu.no_blas = "cuBLASLt is not here";
    for (int64_t m = 1; m < 5000; m *= 8) {
        struct heard_of_dense h = {{NULL, NULL}};
        start_product(&p, "q4frag", QN_STRATEGY_DENSE, m);
        assert_int_equal(choose(&slow.facts, &p, &c, NULL, NULL), QN_OK);
        const bool wanted = qni_cuda_is_dense(c.main);
        ever_wanted = ever_wanted || wanted;
        assert_int_equal(choose(&gpu, &p, &c, hear_of_dense, &h), QN_OK);
        assert_false(has_dense(&c));
        assert_ptr_equal(h.why[0], gpu.no_blas);
        assert_int_equal(c.is_fallback, wanted); /* which a strict plan refuses */
        if (wanted)
            assert_ptr_equal(c.note, gpu.no_blas);
    }
    assert_true(ever_wanted);
    start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 4096);
    assert_int_equal(choose(&gpu, &p, &c, NULL, NULL), QN_OK);
    assert_false(c.is_fallback);
    start_product(&p, "q4frag", QN_STRATEGY_DENSE, 4096);
    p.op.kernel = qni_cuda_dense_at(0)->name;
    assert_int_equal(choose(&gpu, &p, &c, NULL, NULL), QN_E_UNSUPPORTED);
}

static void what_is_not_for_the_dense_tier_says_why(void **state)
{
    static const char *const parts[] = {"16 bits",           "k is 0",   "expert",
                                        "convolution group", "prescale", "newer"};
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t i = 0; i < 6; i++) {
        struct heard_of_dense h = {{NULL, NULL}};
        start_product(&p, "q4frag", QN_STRATEGY_DENSE, 4096);
        if (i == 0)
            p.op.x.dtype = QN_F32;
        else if (i == 1)
            p.op.k = p.head.k = p.head.ci = p.head.units = p.head.n_groups = 0;
        else if (i == 2)
            p.op.kind = QNI_GROUPED;
        else if (i == 3)
            p.head.conv_groups = 2;
        else if (i == 4)
            p.head.section[QNI_SECTION_PRESCALE].bytes = 4096 * 4;
        if (i == 3 || i == 4) {
            p.op.kind = QNI_CONV;
            p.op.conv = (struct qni_conv){.batch = 1,
                                          .h = 64,
                                          .w = 64,
                                          .oh = 64,
                                          .ow = 64,
                                          .kh = 1,
                                          .kw = 1,
                                          .groups = i == 3 ? 2 : 1};
        }
        if (i == 5)
            p.op.x.dtype = p.op.y.dtype = QN_BF16; /* on a T4 */
        assert_int_equal(choose(&gpus[i == 5 ? 0 : 4], &p, &c, hear_of_dense, &h), QN_OK);
        assert_false(has_dense(&c));
        assert_non_null(strstr(h.why[i == 5], parts[i]));
    }
}

/* By ids, x of a routed product lies in any order: wgmma kernels want it sorted, others find it; by
 * offsets it is sorted as it lies. */
static void who_wants_sorted_rows_reads_no_x(void **state)
{
    struct product p;
    int32_t n_sorted = 0;
    (void)state;
    for (int32_t r = 0; r < N_ROWS; r++) {
        if (rows[r].reads != QNI_CUDA_READS_F16 || rows[r].family == QNI_CUDA_FAMILY_IMAGE)
            continue;
        const bool wgmma =
            rows[r].family == QNI_CUDA_FAMILY_PREFILL || rows[r].family == QNI_CUDA_FAMILY_ROUNDED;
        start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 1024);
        assert_true(qni_cuda_reads_x(&p.op, &rows[r]));
        p.op.kind = QNI_GROUPED;
        assert_true(qni_cuda_reads_x(&p.op, &rows[r])); /* by offsets */
        const int64_t shape[1] = {1024};
        p.op.ids = qn_tensor_make(NULL, QN_I32, 1, shape);
        assert_int_equal(qni_cuda_sorts_x(&p.op, &rows[r]), wgmma);
        assert_int_equal(qni_cuda_reads_x(&p.op, &rows[r]), !wgmma);
        n_sorted += wgmma;
    }
    assert_true(n_sorted >= 4);
}

/* Rows that round weights in registers: for the dense strategy alone, where they are cheapest, and
 * told of where they would be. */
static void weights_are_rounded_for_who_asks(void **state)
{
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t r = 0; r < N_ROWS; r++) {
        const struct qni_cuda_kernel *row = &rows[r];
        if (row->family != QNI_CUDA_FAMILY_ROUNDED || row->layout != QNI_CUDA_Q4FRAG)
            continue;
        const bool bf16 = row->reads == QNI_CUDA_READS_BF16;
        struct heard_of_row h = {row->name, NULL};
        start_product(&p, "q4frag", QN_STRATEGY_DENSE, 1024);
        p.head.scale_dtype = QN_F16;
        p.head.group_units = 1;
        p.head.n_groups = 128;
        p.op.x.dtype = p.op.y.dtype = bf16 ? QN_BF16 : QN_F16;
        assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_OK);
        assert_ptr_equal(c.main, row);
        assert_non_null(strstr(c.note, "registers"));
        assert_int_equal(qni_cuda_rounds_by_f16(&p.op), !bf16);
        p.op.strategy = QN_STRATEGY_FLOAT;
        assert_int_equal(choose(&gpus[4], &p, &c, hear_of_row, &h), QN_OK);
        assert_non_null(strstr(h.why, "faster"));
        p.op.m = 1;
        assert_int_equal(choose(&gpus[4], &p, &c, hear_of_row, &h), QN_OK);
        assert_null(strstr(h.why, "faster"));
        assert_non_null(strstr(h.why, "dense strategy"));
        p.op.kernel = row->name;
        assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_E_UNSUPPORTED);
        /* Weights that are exact in the type of x: for the float strategy as well. */
        p.op.kernel = NULL;
        p.op.m = 1024;
        p.packed.exact = bf16 ? QNI_EXACT_F16 : QNI_EXACT_BF16;
        assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_OK);
        assert_ptr_not_equal(c.main, row);
        assert_null(c.unrounded);
        p.packed.exact = bf16 ? QNI_EXACT_BF16 : QNI_EXACT_F16;
        assert_int_equal(choose(&gpus[4], &p, &c, NULL, NULL), QN_OK);
        assert_ptr_equal(c.main, row);
        assert_non_null(strstr(c.note, "exact"));
        assert_int_equal(c.unrounded->family, QNI_CUDA_FAMILY_PREFILL);
        assert_true(c.unrounded->reads == row->reads && c.unrounded->layout == row->layout);
    }
}

static void what_is_not_rounded_says_why(void **state)
{
    static const char *const parts[] = {"16 bits", "prescale", "8 bits", "another type"};
    struct qni_cuda_choice c;
    struct product p;
    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        struct heard_of_row h = {"qni_matmul_bf16_q4frag_mr128_dense_sm90a", NULL};
        start_product(&p, "q4frag", QN_STRATEGY_DENSE, 1024);
        p.op.x.dtype = i == 0 ? QN_F32 : i == 3 ? QN_F16 : QN_BF16;
        if (i == 1)
            p.head.section[QNI_SECTION_PRESCALE].bytes = 4096 * 4;
        p.head.format.shift = i == 2 ? QN_SHIFT_ZERO : QN_SHIFT_NONE;
        p.head.zero_dtype = QN_I32;
        assert_int_equal(choose(&gpus[4], &p, &c, hear_of_row, &h), QN_OK);
        assert_non_null(h.why);
        assert_non_null(strstr(h.why, parts[i]));
    }
    /* The short way: scales of f16 that a power of two leaves f16, and no offsets. */
    start_product(&p, "q4frag", QN_STRATEGY_DENSE, 1024);
    assert_false(qni_cuda_rounds_by_f16(&p.op));
    p.head.scale_dtype = QN_F16;
    assert_true(qni_cuda_rounds_by_f16(&p.op));
    p.packed.magnitude = 32767.0;
    assert_true(qni_cuda_rounds_by_f16(&p.op));
    p.packed.magnitude = 32768.0;
    assert_false(qni_cuda_rounds_by_f16(&p.op));
    p.packed.magnitude = 1.0;
    p.head.format.shift = QN_SHIFT_OFFSET;
    assert_false(qni_cuda_rounds_by_f16(&p.op));
}

/* The model: more rows never cost less, and nothing costs less than the memory allows. */
static void costs_rise_with_rows(void **state)
{
    struct product p;
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++)
        for (int32_t r = 0; r < N_ROWS; r++) {
            double before = 0.0;
            for (int64_t m = 1; m < 10000; m *= 3) {
                start_product(&p, "q4frag", QN_STRATEGY_FLOAT, m);
                const double us = qni_cuda_cost(&gpus[g], &p.op, &rows[r], m);
                assert_true(us >= before);
                assert_true(us * 1e-6 >= 4096.0 * 2048.0 / gpus[g].bandwidth);
                before = us;
            }
        }
}

/* ---- constants that are given ---------------------------------------------------------------- */

static int32_t count_lines(const struct qni_cuda *cuda)
{
    qn_cuda_cost cost;
    int32_t n = 0;
    while (qni_cuda_cost_get(cuda, rows, N_ROWS, n, &cost, NULL) == QN_OK)
        n++;
    return n;
}

/* Every row of a GPU has one line, what is given is read back, and nothing else changes. */
static void lines_are_kept(void **state)
{
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++) {
        struct qni_cuda cuda;
        start_gpu(&cuda, &gpus[g]);
        const int32_t n = count_lines(&cuda);
        assert_in_range(n, 1, QNI_CUDA_MAX_TUNED);
        for (int32_t i = 0; i < n; i++) {
            qn_cuda_cost cost, again, other;
            assert_int_equal(qni_cuda_cost_get(&cuda, rows, N_ROWS, i, &cost, NULL), QN_OK);
            assert_int_equal(cost.is_given, 0);
            assert_true(cost.bandwidth > 1e9 && cost.bandwidth <= gpus[g].bandwidth);
            assert_int_equal(qni_cuda_cost_get(&cuda, rows, N_ROWS, i + 1, &other, NULL),
                             i + 1 < n ? QN_OK : QN_E_NOT_FOUND);
            cost.t0_us = 3.0 + i;
            cost.bandwidth = 1e12 + i;
            cost.block_ns = 7.0;
            assert_int_equal(qni_cuda_cost_set(&cuda, rows, N_ROWS, &cost, NULL), QN_OK);
            assert_int_equal(cuda.facts.n_tuned, i + 1);
            assert_int_equal(qni_cuda_cost_get(&cuda, rows, N_ROWS, i, &again, NULL), QN_OK);
            assert_int_equal(again.is_given, 1);
            assert_true(again.t0_us == cost.t0_us && again.block_ns == 7.0);
            assert_true(again.bandwidth / cost.bandwidth - 1.0 < 1e-12);
            assert_int_equal(qni_cuda_cost_set(&cuda, rows, N_ROWS, &cost, NULL), QN_OK);
            assert_int_equal(cuda.facts.n_tuned, i + 1);
            if (i + 1 < n) {
                assert_int_equal(qni_cuda_cost_get(&cuda, rows, N_ROWS, i + 1, &again, NULL),
                                 QN_OK);
                assert_true(again.is_given == 0 && again.block_ns == other.block_ns);
            }
        }
    }
}

static void assert_cost_refused(const qn_cuda_cost *cost, qn_status status, const char *part)
{
    struct qni_cuda cuda;
    qn_error err = {0};
    start_gpu(&cuda, &gpus[0]);
    assert_int_equal(qni_cuda_cost_set(&cuda, rows, N_ROWS, cost, &err), status);
    assert_non_null(strstr(err.text, part));
    assert_int_equal(cuda.facts.n_tuned, 0);
}

static void impossible_constants_are_refused(void **state)
{
    struct qni_cuda t4;
    qn_cuda_cost good, bad;
    (void)state;
    start_gpu(&t4, &gpus[0]);
    assert_int_equal(qni_cuda_cost_get(&t4, rows, N_ROWS, 0, &good, NULL), QN_OK);
    const double numbers[] = {-1.0, 1e30, (double)NAN};
    for (size_t i = 0; i < 3; i++) {
        bad = good;
        bad.t0_us = numbers[i];
        assert_cost_refused(&bad, QN_E_VALUE, "t0_us");
        bad = good;
        bad.bandwidth = numbers[i];
        assert_cost_refused(&bad, QN_E_VALUE, "bandwidth");
        bad = good;
        bad.block_ns = numbers[i];
        assert_cost_refused(&bad, QN_E_VALUE, "block_ns");
    }
    bad = good;
    bad.rows = 77;
    assert_cost_refused(&bad, QN_E_NOT_FOUND, "77");
    bad = good;
    bad.bits = 5;
    assert_cost_refused(&bad, QN_E_NOT_FOUND, "5 bits");
    bad = good;
    memcpy(bad.family, "prefill", 8); /* a T4 has no such kernel */
    assert_cost_refused(&bad, QN_E_NOT_FOUND, "prefill");
    memset(bad.family, 'x', sizeof bad.family);
    assert_cost_refused(&bad, QN_E_NOT_FOUND, "xxx");
}

/* Each row that may serve is chosen once its line costs nothing, and what is predicted is what the
 * formula says. */
static void constants_decide(void **state)
{
    struct product p;
    struct qni_cuda_choice c;
    (void)state;
    start_product(&p, "q4frag", QN_STRATEGY_FLOAT, 13);
    for (int32_t i = 0;; i++) {
        struct qni_cuda cuda;
        qn_cuda_cost cost;
        start_gpu(&cuda, &gpus[4]);
        if (qni_cuda_cost_get(&cuda, rows, N_ROWS, i, &cost, NULL) != QN_OK) {
            assert_true(i >= 6);
            return;
        }
        if (cost.is_int8 || cost.bits != 4 || strcmp(cost.family, "rounded") == 0 ||
            (strcmp(cost.family, "decode") == 0 && cost.rows < 13))
            continue;
        cost.t0_us = 0.001;
        cost.bandwidth = 1e15;
        cost.block_ns = 0.001;
        assert_int_equal(qni_cuda_cost_set(&cuda, rows, N_ROWS, &cost, NULL), QN_OK);
        assert_int_equal(choose(&cuda.facts, &p, &c, NULL, NULL), QN_OK);
        assert_string_equal(c.main->name, cost.kernel);
        const double by_bytes = c.terms.bytes / 1e15 * 1e6, by_steps = c.terms.steps * 1e-6;
        const double us = 0.001 + (by_bytes > by_steps ? by_bytes : by_steps) + c.terms.before_us;
        assert_true(c.predicted_us / us - 1.0 < 1e-9 && us / c.predicted_us - 1.0 < 1e-9);
        assert_true(c.terms.bytes > 4096.0 * 2048.0 && c.terms.steps > 0.0);
    }
}

/* The kernel for the m that was planned is the cheapest for that m, whatever its range. */
static void the_planned_m_gets_the_cheapest(void **state)
{
    struct product p;
    struct qni_cuda_choice c;
    (void)state;
    for (int32_t g = 0; g < N_GPUS; g++)
        for (int64_t m = 1; m < 6000; m += 1 + m / 9) {
            start_product(&p, "q4frag", QN_STRATEGY_FLOAT, m);
            assert_int_equal(choose(&gpus[g], &p, &c, NULL, NULL), QN_OK);
            for (int32_t r = 0; r < N_ROWS; r++) {
                struct qni_cuda_choice named;
                p.op.kernel = rows[r].name;
                if (choose(&gpus[g], &p, &named, NULL, NULL) == QN_OK)
                    assert_true(c.predicted_us <= named.predicted_us * (1.0 + 1e-12));
            }
        }
}

/* On an H100 wgmma takes 0.4 to 0.6 of the time of tiles: lab/cuda/NOTES.md. */
static void short_segments_of_many_rows_take_wgmma(void **state)
{
    static const char *const layouts[] = {"q4frag", "q8frag"};
    struct product p;
    struct qni_cuda_choice c;
    (void)state;
    for (int32_t i = 0; i < 4 * N_GPUS; i++)
        for (int64_t m = 17, n = 4096; m <= 8192; m += m / 3, n = n == 4096 ? 14336 : 4096) {
            const struct qni_cuda_facts *gpu = &gpus[i / 4];
            start_product(&p, layouts[i & 1], QN_STRATEGY_INT8_BLOCK, m);
            p.head.group_units = p.head.segment_units = 1 + (i >> 1 & 1);
            p.head.n_groups = p.head.n_segments = 128 / p.head.group_units;
            p.head.n = p.op.n = n;
            p.head.panels = n / 16;
            p.head.format.bits = i & 1 ? 8 : 4;
            p.head.format.group = 32 * p.head.group_units;
            assert_int_equal(choose(gpu, &p, &c, NULL, NULL), QN_OK);
            const bool is_wgmma = c.main->family == QNI_CUDA_FAMILY_PREFILL;
            assert_int_equal(is_wgmma, gpu->sm == 90);
        }
}

/* ---- sizes of prepared rows ------------------------------------------------------------------ */

static void prepared_rows_do_not_overlap(void **state)
{
    static const struct qni_cuda_kernel kinds[] = {
        {.name = "f16", .reads = QNI_CUDA_READS_F16},
        {.name = "bf16", .reads = QNI_CUDA_READS_BF16},
        {.name = "q8", .reads = QNI_CUDA_READS_Q8},
        {.name = "q8b", .reads = QNI_CUDA_READS_Q8B},
    };
    struct product p;
    (void)state;
    start_product(&p, "q4frag", QN_STRATEGY_INT8_BLOCK, 77);
    p.op.x.dtype = QN_F32;
    for (size_t i = 0; i < 4; i++) {
        const struct qni_cuda_shape shape = {77, 1};
        uint8_t *const base = (uint8_t *)0x100000;
        struct qni_cuda_rows x, none;
        const size_t bytes = qni_cuda_rows_in(&p.op, &kinds[i], &shape, base, &x);
        assert_int_equal(qni_cuda_rows_in(&p.op, &kinds[i], &shape, NULL, &none), bytes);
        const int32_t planes = kinds[i].reads == QNI_CUDA_READS_BF16 ? 2 : 1;
        const uint8_t *at = base + x.plane_stride * planes;
        assert_int_equal(x.planes, planes);
        assert_true(x.plane_stride >= 77 * x.lda && x.lda % 16 == 0);
        const void *const arrays[] = {x.row_scale, x.sum, x.scale, x.offset, x.total};
        const size_t size[] = {77 * 4, 77 * 32 * 4, 77 * 32 * 4, 77 * 32 * 4, 77 * 32 * 4};
        for (size_t a = 0; a < 5; a++) {
            if (arrays[a] == NULL)
                continue;
            assert_true((const uint8_t *)arrays[a] >= at);
            at = (const uint8_t *)arrays[a] + size[a];
        }
        assert_true(at <= base + bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_m_is_served_on_every_gpu),
        cmocka_unit_test(experts_are_served_on_every_gpu),
        cmocka_unit_test(rows_find_room_in_shared_memory),
        cmocka_unit_test(types_choose_what_is_read),
        cmocka_unit_test(every_other_row_says_why),
        cmocka_unit_test(a_name_is_obeyed_or_refused),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(nothing_is_for_the_general_kernels),
        cmocka_unit_test(tables_of_integers_are_integers),
        cmocka_unit_test(the_dense_tier_serves_who_asks),
        cmocka_unit_test(without_its_library_floats_serve),
        cmocka_unit_test(what_is_not_for_the_dense_tier_says_why),
        cmocka_unit_test(who_wants_sorted_rows_reads_no_x),
        cmocka_unit_test(weights_are_rounded_for_who_asks),
        cmocka_unit_test(what_is_not_rounded_says_why),
        cmocka_unit_test(costs_rise_with_rows),
        cmocka_unit_test(lines_are_kept),
        cmocka_unit_test(impossible_constants_are_refused),
        cmocka_unit_test(constants_decide),
        cmocka_unit_test(the_planned_m_gets_the_cheapest),
        cmocka_unit_test(short_segments_of_many_rows_take_wgmma),
        cmocka_unit_test(prepared_rows_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
