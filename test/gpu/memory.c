/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU without memory, and a host without: every allocation on the way fails once, which is told
 * by a status and a sentence, loses not a byte on either side, and leaves a library that works. The
 * card is filled to the last piece and then given back a little at a time, so that packing stops at
 * a later allocation from time to time until it gets through. Nobody else may use the card. Ends
 * with 77 where there is no GPU. */
#include "scene.h"

enum { PIECES = 8192, STEP = 2 << 20, LAST = 24 };
static void *piece[PIECES];
static int n_pieces;

/* All memory taken, in ever smaller pieces; the last ones in the list are of STEP bytes. */
static void fill(const qn_ctx *ctx)
{
    void *last[LAST];
    for (int i = 0; i < LAST; i++)
        expect(qn_cuda_alloc(ctx, STEP, &last[i], NULL) == QN_OK, "filling", "no 2 MiB are left");
    for (size_t bytes = (size_t)1 << 36; bytes >= STEP;) {
        if (n_pieces < PIECES - LAST && qn_cuda_alloc(ctx, bytes, &piece[n_pieces], NULL) == QN_OK)
            n_pieces++;
        else
            bytes /= 2;
    }
    for (int i = 0; i < LAST; i++)
        piece[n_pieces++] = last[i];
}

static void give_back(const qn_ctx *ctx)
{
    while (n_pieces > 0)
        (void)qn_cuda_free(ctx, piece[--n_pieces]);
}

/* A counting allocator that refuses call number `refuse`. */
static struct {
    int64_t calls, live, refuse;
} host;

static void *count_alloc(void *arg, size_t bytes, size_t alignment)
{
    (void)arg;
    if (++host.calls == host.refuse)
        return NULL;
    host.live++;
    return aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

static void count_free(void *arg, void *memory, size_t bytes)
{
    (void)arg;
    (void)bytes;
    host.live -= memory != NULL;
    free(memory);
}

static qn_status open_counted(size_t arena_bytes, qn_ctx **ctx, qn_error *err)
{
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    o.device = (qn_device){QN_CUDA, 0};
    o.n_threads = 1;
    o.log = hear;
    o.alloc = count_alloc;
    o.free = count_free;
    o.arena_bytes = arena_bytes;
    *ctx = NULL;
    return qn_ctx_create(&o, ctx, err);
}

/* Pieces are given back until packing succeeds. */
static void packing_in_little_memory(qn_ctx *ctx)
{
    /* 10 MiB packed with its scales, 16 MiB of codes staged. */
    const struct random_shape shape = {4096, 4096, 1, 1, 1};
    qn_weight *const w = random_weight(ctx, "int4:g128", shape, 2, false, true);
    qn_packed *packed = NULL;
    qn_error err = {QN_OK, -1, ""};
    const int64_t live = host.live;
    int failed = 0;
    const int filled = n_pieces;
    qn_status status = QN_E_MEMORY;
    while (n_pieces > 0 && status != QN_OK) {
        const size_t before = free_bytes(home);
        err.text[0] = 0;
        status = qn_pack(ctx, w, NULL, &packed, &err);
        if (status == QN_OK)
            break;
        failed++;
        expect_status("packing", status, QN_E_MEMORY, &err, "GPU 0 has no");
        expect(packed == NULL, "packing", "something was made");
        expect(free_bytes(home) == before, "packing", "memory of the GPU is lost");
        expect(host.live == live, "packing", "memory of the host is lost");
        (void)qn_cuda_free(ctx, piece[--n_pieces]);
    }
    printf("packing failed %d times, then %d of %d pieces were enough\n", failed, filled - n_pieces,
           filled);
    expect(failed >= 8, "packing", "the card was not full");
    expect(status == QN_OK, "packing", "it never succeeds");
    qn_packed_destroy(packed);
    qn_weight_destroy(w);
}

/* What else takes memory; and a run, which takes none, but whose kernels the driver may have to
 * load first. */
static void other_calls_in_no_memory(qn_ctx *ctx, struct scene *s, const uint8_t *wanted)
{
    qn_ctx *none = NULL;
    void *memory = &none;
    qn_error err = {QN_OK, -1, ""};
    expect_status("alloc", qn_cuda_alloc(ctx, (size_t)64 << 20, &memory, &err), QN_E_MEMORY, &err,
                  "bytes left");
    expect(memory == NULL, "alloc", "a pointer is left");
    expect_status("reserve", qn_ctx_reserve(ctx, (size_t)64 << 20), QN_E_MEMORY, &err, "");
    const int64_t live = host.live;
    expect_status("a context", open_counted((size_t)64 << 20, &none, &err), QN_E_MEMORY, &err,
                  "memory");
    expect(none == NULL && host.live == live, "a context", "something is left of it");
    const qn_status status = scene_run(s);
    if (status != QN_OK)
        expect_status("a run", status, QN_E_MEMORY, NULL, "memory");
    else
        scene_compare(s, wanted, "other bits on a full card");
}

/* Call number 1, 2, 3... of the host's allocator fails. */
static void failing_host(void)
{
    const struct random_shape shape = {48, 300, 1, 1, 1};
    qn_error err = {QN_OK, -1, ""};
    const size_t before = free_bytes(home);
    int failed = 0;
    for (int64_t at = 1; failed >= 0; at++) {
        qn_ctx *ctx = NULL;
        qn_packed *packed = NULL;
        qn_weight *w = NULL, *back = NULL;
        host.calls = 0;
        host.refuse = at;
        err.text[0] = 0;
        qn_status status = open_counted(1 << 20, &ctx, &err);
        if (status == QN_OK) {
            w = random_weight(ctx, "int4:g128:zp", shape, 9, true, true);
            status = w == NULL ? QN_E_MEMORY : qn_pack(ctx, w, NULL, &packed, &err);
            if (w == NULL)
                snprintf(err.text, sizeof err.text, "no memory for a weight of this test");
        }
        if (status == QN_OK)
            status = qn_unpack(ctx, packed, &back, &err);
        host.refuse = 0;
        if (status != QN_OK)
            expect_status("a host without memory", status, QN_E_MEMORY, &err, "memory");
        failed = status == QN_OK ? -1 : failed + 1;
        qn_packed_destroy(packed);
        qn_weight_destroy(w);
        qn_weight_destroy(back);
        qn_ctx_destroy(ctx);
        expect(host.live == 0, "a host without memory", "memory of the host is lost");
        expect(at < 50, "a host without memory", "it never succeeds");
        if (at >= 50)
            break;
    }
    expect(free_bytes(home) == before, "a host without memory", "memory of the GPU is lost");
}

/* In whatever order they are destroyed that the headers allow, with work under way. */
static void destroy_order(void)
{
    for (int round = 0; round < 20; round++) {
        qn_ctx *first = NULL, *second = NULL;
        qn_plan *plan = NULL;
        struct scene s;
        qn_error err = {QN_OK, -1, ""};
        expect_status("first", open_counted(1 << 20, &first, &err), QN_OK, &err, "");
        expect_status("second", open_counted(0, &second, &err), QN_OK, &err, "");
        scene_start(&s, first, SCENE_PREFILL);
        expect_status("plan", qn_matmul_plan(first, &s.args.matmul, &plan, &err), QN_OK, &err, "");
        expect_status("run", qn_matmul_run(plan, &s.args.matmul, s.scratch, s.scratch_bytes), QN_OK,
                      NULL, "");
        qn_ctx_destroy(second); /* while the first one's work is under way */
        qn_plan_destroy(plan);
        scene_stop(&s); /* memory and weights that this work still reads: freeing waits */
        qn_ctx_destroy(first);
        expect_clean("destroyed");
        expect(host.live == 0, "destroyed", "memory of the host is lost");
    }
}

int main(void)
{
    qn_ctx *ctx = NULL;
    struct scene s;
    size_t bytes = 0;
    qn_error err = {QN_OK, -1, ""};
    qn_ctx_destroy(context_on(QN_CUDA, 0)); /* or the end */
    destroy_order();
    failing_host();
    const size_t before = free_bytes(home);
    expect_status("context", open_counted(0, &ctx, &err), QN_OK, &err, "");
    scene_start(&s, ctx, SCENE_MATMUL);
    expect_status("run", scene_run(&s), QN_OK, NULL, "");
    uint8_t *const wanted = scene_result(&s, &bytes);
    fill(ctx);
    other_calls_in_no_memory(ctx, &s, wanted);
    packing_in_little_memory(ctx);
    give_back(ctx);
    expect_status("run", scene_run(&s), QN_OK, NULL, "");
    scene_compare(&s, wanted, "other bits after a full card");
    free(wanted);
    scene_stop(&s);
    qn_ctx_destroy(ctx);
    expect(host.live == 0, "at the end", "memory of the host is lost");
    /* The driver keeps a little for itself: kernels that were loaded. */
    expect(free_bytes(home) + ((size_t)64 << 20) >= before, "at the end",
           "memory of the GPU is lost");
    return report("memory");
}
