/* SPDX-License-Identifier: Apache-2.0 */
/* quern-rows: is the row that a plan chooses the fastest one of the table?
 *
 *     quern-rows [--isa NAMES] [--n N] [--k K] [--m M,...] [--weights FORMAT,...]
 *                [--strategy NAME,...] [--above RATIO] [--ms MILLISECONDS] [--all] [--times]
 *
 * For every format, strategy, type of x and m: the plan's choice and every other row of
 * kernels.inc that takes the problem by name run in turn, one thread, until each has had so many
 * milliseconds. The fastest run of each counts: what else the machine does can only add to it.
 * A choice that takes more than RATIO (1.15) times as long as another row is measured twice more,
 * each time for longer, and told if it does every time; --all tells every case. The last lines say
 * in how many cases the choice was within 10 % and 25 % of the best row. Exit status 1 if any was
 * told.
 *
 * --times instead prints the time of every row in microseconds, one a line: format, strategy, x, m,
 * row, time. The constants of src/cpu/matmul/tuning.inc are fitted to those. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <quern/quern.h>

#include "../src/cpu/matmul/kernel.h"

#define QNI_MATMUL_KERNEL(fn, needs, reads, layout, m_min, mr, numerics, traits, scratch) #fn,
static const char *const rows[] = {
#include "../src/cpu/matmul/kernels.inc"
    NULL};
#undef QNI_MATMUL_KERNEL

enum { MAX_ROWS = 128, MAX_M = 16, NAME = 64 };

struct options {
    uint64_t isa;
    int64_t n, k, m[MAX_M];
    int32_t n_m;
    double above, ms;
    bool all, times;
    const char *weights, *strategies;
};

/* Cells of the grid in which the choice was within a tenth and within a quarter of the best row. */
struct tally {
    int32_t cells, tenth, quarter;
};
static struct tally tally;

/* One format for one strategy and type of x. */
struct problem {
    const struct options *o;
    const qn_ctx *ctx;
    const qn_packed *w;
    const char *format;
    qn_strategy strategy;
    qn_dtype x_type;
    void *x;
    float *y;
};

struct runner {
    const char *name;
    qn_plan *plan;
    void *scratch;
    size_t bytes;
    double best; /* seconds */
};

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "quern-rows: %s: %s\n", what, why);
    exit(2);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(size_t bytes)
{
    void *const at = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (at == NULL)
        stop("memory", "there is none");
    memset(at, 0, (bytes + 64) / 64 * 64);
    return at;
}

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* ---- one problem ----------------------------------------------------------------------------- */

static qn_matmul_args args_of(const struct problem *p, int64_t m, const char *kernel)
{
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.w = p->w;
    args.x = qn_tensor_2d(p->x, p->x_type, m, p->o->k);
    args.y = qn_tensor_2d(p->y, QN_F32, m, p->o->n);
    args.strategy = p->strategy;
    args.quant.x_zero = p->x_type == QN_U8 ? 100 : 0;
    args.kernel = kernel;
    return args;
}

static bool begin(const struct problem *p, int64_t m, const char *kernel, struct runner *r)
{
    const qn_matmul_args args = args_of(p, m, kernel);
    qn_plan_info info;
    memset(r, 0, sizeof *r);
    if (qn_matmul_plan(p->ctx, &args, &r->plan, NULL) != QN_OK)
        return false;
    qn_plan_info_init(&info);
    qn_plan_query(r->plan, &info);
    r->name = info.kernel;
    r->bytes = qn_plan_scratch_bytes(r->plan);
    r->scratch = memory(r->bytes);
    r->best = 1e30;
    return true;
}

static void run_once(const struct problem *p, int64_t m, struct runner *r)
{
    const qn_matmul_args args = args_of(p, m, NULL);
    const double start = now();
    if (qn_matmul_run(r->plan, &args, r->scratch, r->bytes) != QN_OK)
        stop(r->name, "the run failed");
    const double took = now() - start;
    r->best = took < r->best ? took : r->best;
}

/* All of them in turn, in short stretches; one that is far behind after two has no more. */
static void measure(const struct problem *p, int64_t m, struct runner *all, int32_t n, double ms)
{
    enum { STRETCHES = 8, FAR = 2 };
    for (int32_t i = 0; i < n; i++)
        all[i].best = 1e30;
    for (int32_t s = 0; s < STRETCHES; s++)
        for (int32_t i = 0; i < n; i++) {
            const double until = now() + ms * 1e-3 / STRETCHES;
            if (s > 1 && all[i].best > FAR * all[0].best)
                continue;
            do
                run_once(p, m, &all[i]);
            while (now() < until);
        }
}

/* The fastest other row. */
static int32_t fastest(const struct runner *all, int32_t n)
{
    int32_t best = 1;
    for (int32_t i = 2; i < n; i++)
        best = all[i].best < all[best].best ? i : best;
    return best;
}

/* Is the choice behind, again and again? */
static bool is_behind(const struct problem *p, int64_t m, struct runner *all, int32_t n)
{
    enum { TRIES = 3 };
    for (int32_t try = 0; try < TRIES; try++) {
        measure(p, m, all, n, p->o->ms * (1 << try));
        if (all[0].best <= p->o->above * all[fastest(all, n)].best)
            return false;
    }
    return true;
}

static const char *word_of(qn_dtype type)
{
    return type == QN_F32 ? "f32" : type == QN_BF16 ? "bf16" : "u8";
}

/* Returns 1 if another row is faster. */
static int32_t try_rows(const struct problem *p, int64_t m)
{
    struct runner all[MAX_ROWS];
    int32_t n = 0, found = 0;
    if (!begin(p, m, NULL, &all[n++]))
        return 0;
    for (int32_t i = 0; rows[i] != NULL && n < MAX_ROWS; i++)
        if (strcmp(rows[i], all[0].name) != 0 && begin(p, m, rows[i], &all[n]))
            n++;
    if (p->o->times) {
        measure(p, m, all, n, p->o->ms);
        for (int32_t i = 0; i < n; i++)
            printf("%s %s %s %lld %s %.3f\n", p->format, qn_strategy_name(p->strategy),
                   word_of(p->x_type), (long long)m, all[i].name, 1e6 * all[i].best);
    } else if (n > 1) {
        found = is_behind(p, m, all, n);
        const struct runner *other = &all[fastest(all, n)];
        tally.cells++;
        tally.tenth += all[0].best <= 1.10 * other->best;
        tally.quarter += all[0].best <= 1.25 * other->best;
        if (found != 0 || p->o->all)
            printf("%-14s %-11s %-4s m %-4lld %9.1f us %-38s %9.1f us %-38s %5.2f%s\n", p->format,
                   qn_strategy_name(p->strategy), word_of(p->x_type), (long long)m,
                   1e6 * all[0].best, all[0].name, 1e6 * other->best, other->name,
                   all[0].best / other->best, found != 0 ? "  SLOWER" : "");
    }
    for (int32_t i = 0; i < n; i++) {
        qn_plan_destroy(all[i].plan);
        free(all[i].scratch);
    }
    fflush(stdout);
    return found;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static qn_weight *weight_of(const qn_ctx *ctx, const char *format, int64_t n, int64_t k)
{
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_error err = {0};
    uint64_t seed = 1;
    qn_weight_parts_init(&parts);
    if (qn_format_parse(format, &parts.format, &err) != QN_OK)
        stop(format, err.text);
    const int64_t groups = n * qn_format_groups(&parts.format, k, k);
    const bool is_float = parts.format.code == QN_CODE_FLOAT;
    const int64_t each = is_float ? parts.format.bits / 8 : 1;
    uint8_t *const codes = memory((size_t)(n * k * each));
    float *const scale = memory((size_t)groups * sizeof *scale);
    float *const offset = memory((size_t)groups * sizeof *offset);
    int32_t *const zero = memory((size_t)groups * sizeof *zero);
    for (int64_t i = 0; i < n * k * each && is_float; i++) /* one small number of either sign */
        codes[i] = i % each == each - 1 ? (uint8_t)(0x3c | (draw(&seed) & 0x80)) : 0;
    for (int64_t i = 0; i < n * k && !is_float; i++) {
        codes[i] = (uint8_t)(draw(&seed) & ((1u << parts.format.bits) - 1u));
        codes[i] ^= parts.format.code == QN_CODE_E4M3 && (codes[i] & 0x7fu) == 0x7fu;
    }
    for (int64_t i = 0; i < groups; i++) {
        scale[i] = 0.0078125f * (float)(1 + draw(&seed) % 8);
        offset[i] = 0.125f;
        zero[i] = (int32_t)(draw(&seed) % 5) - 2;
    }
    parts.n = n;
    parts.k = k;
    parts.codes = codes;
    parts.scale = is_float ? NULL : scale;
    parts.zero = parts.format.shift == QN_SHIFT_ZERO ? zero : NULL;
    parts.offset = parts.format.shift >= QN_SHIFT_OFFSET ? offset : NULL;
    if (qn_weight_create(ctx, &parts, &weight, &err) != QN_OK)
        stop(format, err.text);
    free(codes);
    free(scale);
    free(offset);
    free(zero);
    return weight;
}

/* Numbers of x, as far as its type has them: as those of language models, nearly normal, with
 * columns of outliers; given codes are uniform. */
static void fill_x(struct problem *p, int64_t elements)
{
    enum { STEP = 97, TIMES = 6 };
    uint64_t seed = 2;
    for (int64_t i = 0; i < elements; i++) {
        float v = -2.0f;
        for (int32_t j = 0; j < 4; j++)
            v += (float)(draw(&seed) & 0xffffu) * 0x1p-16f;
        if (p->x_type == QN_U8)
            v = (float)((int32_t)(draw(&seed) & 0xffffu) - 32768) * 0x1p-15f;
        else if (i % p->o->k % STEP == 11)
            v *= TIMES;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        if (p->x_type == QN_F32)
            ((float *)p->x)[i] = v;
        else if (p->x_type == QN_BF16)
            ((uint16_t *)p->x)[i] = (uint16_t)(bits >> 16);
        else
            ((uint8_t *)p->x)[i] = (uint8_t)(bits >> 15);
    }
}

static int32_t try_format(const struct options *o, const qn_ctx *ctx, const char *format,
                          qn_strategy strategy)
{
    static const qn_dtype float_types[] = {QN_F32, QN_BF16}, given[] = {QN_U8};
    const bool is_static = strategy == QN_STRATEGY_INT8_STATIC;
    const bool is_float = strategy == QN_STRATEGY_FLOAT;
    const int32_t n_types = is_float ? 2 : 1;
    qn_weight *const weight = weight_of(ctx, format, o->n, o->k);
    qn_packed *packed = NULL;
    int64_t most = 1;
    int32_t found = 0;
    if (qn_pack(ctx, weight, NULL, &packed, NULL) != QN_OK)
        stop(format, "cannot be packed");
    for (int32_t i = 0; i < o->n_m; i++)
        most = o->m[i] > most ? o->m[i] : most;
    for (int32_t t = 0; t < n_types; t++) {
        struct problem p = {.o = o, .ctx = ctx, .w = packed, .format = format};
        p.strategy = strategy;
        p.x_type = is_static ? given[0] : float_types[strategy == QN_STRATEGY_DENSE ? 1 : t];
        p.x = memory((size_t)(most * o->k) * sizeof(float));
        p.y = memory((size_t)(most * o->n) * sizeof(float));
        fill_x(&p, most * o->k);
        for (int32_t i = 0; i < o->n_m; i++)
            found += try_rows(&p, o->m[i]);
        free(p.x);
        free(p.y);
    }
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    return found;
}

/* The i-th word of a list with commas; false: there is none. */
static bool word_at(const char *list, int32_t i, char word[NAME])
{
    for (; i > 0 && list != NULL; i--)
        list = strchr(list, ',') == NULL ? NULL : strchr(list, ',') + 1;
    if (list == NULL)
        return false;
    snprintf(word, NAME, "%.*s", (int)strcspn(list, ","), list);
    return true;
}

static void read_options(int argc, char **argv, struct options *o)
{
    char word[NAME];
    const char *m = "1,2,4,8,16,32,64,128";
    for (int i = 1; i < argc; i++) {
        const char *const key = argv[i], *const value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(key, "--all") == 0 || strcmp(key, "--times") == 0) {
            o->all = o->all || key[2] == 'a';
            o->times = o->times || key[2] == 't';
            continue;
        }
        if (value == NULL)
            stop(key, "no such option, or its value is missing");
        i++;
        qn_error err = {0};
        if (strcmp(key, "--isa") == 0 && qn_isa_parse(value, &o->isa, &err) != QN_OK)
            stop(value, err.text);
        else if (strcmp(key, "--n") == 0)
            o->n = atoll(value);
        else if (strcmp(key, "--k") == 0)
            o->k = atoll(value);
        else if (strcmp(key, "--m") == 0)
            m = value;
        else if (strcmp(key, "--weights") == 0)
            o->weights = value;
        else if (strcmp(key, "--strategy") == 0)
            o->strategies = value;
        else if (strcmp(key, "--above") == 0)
            o->above = atof(value);
        else if (strcmp(key, "--ms") == 0)
            o->ms = atof(value);
        else if (strcmp(key, "--isa") != 0)
            stop(key, "no such option");
    }
    while (o->n_m < MAX_M && word_at(m, o->n_m, word))
        o->m[o->n_m++] = atoll(word);
    if (o->n < 1 || o->k < 1 || o->m[0] < 1)
        stop("--n, --k, --m", "numbers from 1 on");
}

int main(int argc, char **argv)
{
    struct options o = {
        .isa = QN_ISA_ALL,
        .n = 1024,
        .k = 1024,
        .above = 1.15,
        .ms = 2,
        .weights = "int4:g32,int4:g128,int4:g128:zp,int4:pc,int8:g32,int8:pc,int8:g128:zp,int6:g64,"
                   "q4_k,q6_k,nf4:g64,iq4_nl,mxfp4,nvfp4,fp8:pc,fp8:g128",
        .strategies = "float,dense,int8-row,int8-block,int8-static",
    };
    char format[NAME], name[NAME];
    int32_t found = 0;
    read_options(argc, argv, &o);
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_ctx_options_init(&options);
    options.n_threads = 1;
    options.isa_mask = o.isa;
    if (qn_ctx_create(&options, &ctx, NULL) != QN_OK)
        stop("context", "cannot be made");
    for (int32_t f = 0; word_at(o.weights, f, format); f++)
        for (int32_t s = 0; word_at(o.strategies, s, name); s++) {
            qn_strategy strategy;
            if (qn_strategy_parse(name, &strategy, NULL) != QN_OK)
                stop(name, "no such strategy");
            found += try_format(&o, ctx, format, strategy);
        }
    if (tally.cells > 0)
        printf("within 10 %% of the best row in %d of %d cells (%.1f %%), within 25 %% in %d (%.1f "
               "%%)\n",
               tally.tenth, tally.cells, 100.0 * tally.tenth / tally.cells, tally.quarter,
               100.0 * tally.quarter / tally.cells);
    printf("%d choices slower than another row by more than %.0f %%\n", found,
           100.0 * (o.above - 1.0));
    qn_ctx_destroy(ctx);
    return found > 0;
}
