/* SPDX-License-Identifier: Apache-2.0 */
/* Several GPUs in one process: contexts on two of them, used by two threads at the same time and by
 * one thread in turns, plainly and through graphs, with the bits of one GPU alone (the same on two
 * of a kind). Memory and weights of the other GPU are refused. The caller's device stays current
 * whatever happens. Ends with 77 where there are fewer than two GPUs. */
#include <cuda.h>
#include <pthread.h>

#include "scene.h"

enum { GPUS = 2, ROUNDS = 25 };

struct side {
    int32_t index;
    qn_ctx *ctx;
    cudaStream_t stream;
    struct scene scene[N_SCENES];
    uint8_t *wanted[N_SCENES];
    cudaGraphExec_t exec[N_SCENES];
};

static void start(struct side *a, int32_t index)
{
    a->index = index;
    a->ctx = context_on(QN_CUDA, index);
    (void)cudaSetDevice(index);
    expect(cudaStreamCreateWithFlags(&a->stream, cudaStreamNonBlocking) == cudaSuccess, "stream",
           "none");
    (void)cudaSetDevice(home);
    expect_status("stream", qn_cuda_set_stream(a->ctx, a->stream), QN_OK, NULL, "");
    for (int32_t kind = 0; kind < N_SCENES; kind++)
        scene_start(&a->scene[kind], a->ctx, kind);
}

static void stop(struct side *a)
{
    for (int32_t kind = 0; kind < N_SCENES; kind++) {
        scene_stop(&a->scene[kind]);
        if (a->exec[kind] != NULL)
            (void)cudaGraphExecDestroy(a->exec[kind]);
    }
    qn_ctx_destroy(a->ctx);
    expect(cudaStreamDestroy(a->stream) == cudaSuccess, "stream", "not destroyed");
}

static void check(struct side *a, int32_t kind, const char *what)
{
    scene_compare(&a->scene[kind], a->wanted[kind], what);
}

static void replay(struct side *a, int32_t kind)
{
    (void)cudaSetDevice(a->index);
    expect(cudaGraphLaunch(a->exec[kind], a->stream) == cudaSuccess, a->scene[kind].name,
           "no replay");
    (void)cudaSetDevice(home);
}

/* Captured with GPU `home` current, and replayed. */
static void capture(struct side *a)
{
    for (int32_t kind = 0; kind < N_SCENES; kind++) {
        struct scene *const s = &a->scene[kind];
        cudaGraph_t graph = NULL;
        if (a->exec[kind] != NULL) /* not while a stream is captured: CUDA ends the capture */
            (void)cudaGraphExecDestroy(a->exec[kind]);
        a->exec[kind] = NULL;
        expect(cudaStreamBeginCapture(a->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess,
               s->name, "no capture begins");
        expect_status(s->name, scene_run(s), QN_OK, NULL, "");
        expect(cudaStreamEndCapture(a->stream, &graph) == cudaSuccess &&
                   cudaGraphInstantiate(&a->exec[kind], graph, 0) == cudaSuccess,
               s->name, "no graph is made");
        (void)cudaGraphDestroy(graph);
        scene_clear(s);
        replay(a, kind);
        check(a, kind, "a replay has other bits");
    }
}

/* Plain runs and replays by turns, as fast as they go. */
static void *work(void *arg)
{
    struct side *const a = arg;
    for (int round = 0; round < ROUNDS; round++)
        for (int32_t kind = 0; kind < N_SCENES; kind++) {
            struct scene *const s = &a->scene[kind];
            scene_clear(s);
            if (round % 2 == 0)
                expect_status(s->name, scene_run(s), QN_OK, NULL, "");
            else
                replay(a, kind);
            check(a, kind, "with two threads: other bits");
        }
    return NULL;
}

static void in_turns(struct side a[GPUS])
{
    for (int round = 0; round < ROUNDS; round++)
        for (int32_t kind = 0; kind < N_SCENES; kind++) {
            for (int i = 0; i < GPUS; i++) {
                scene_clear(&a[i].scene[kind]);
                expect_status("in turns", scene_run(&a[i].scene[kind]), QN_OK, NULL, "");
            }
            for (int i = 0; i < GPUS; i++)
                check(&a[i], kind, "in turns: other bits");
        }
}

/* Every operand, scratch and the weights of the other GPU. */
static void of_the_other_gpu(struct side a[GPUS])
{
    for (int i = 0; i < GPUS; i++)
        for (int32_t kind = 0; kind < N_SCENES; kind++) {
            struct scene *const s = &a[i].scene[kind], *const t = &a[!i].scene[kind];
            for (int32_t j = 0; j < s->n; j++) {
                const qn_tensor good = *s->operand[j].tensor;
                s->operand[j].tensor->data = t->operand[j].tensor->data;
                expect_status("memory of the other GPU", scene_run(s), QN_E_DEVICE, NULL,
                              s->operand[j].name);
                *s->operand[j].tensor = *t->operand[j].tensor;
                expect_status("tensors of the other GPU", scene_run(s), QN_E_DEVICE, NULL,
                              s->operand[j].name);
                *s->operand[j].tensor = good;
            }
            if (s->scratch_bytes > 0)
                expect_status("scratch of the other GPU",
                              scene_run_with(s, t->scratch, s->scratch_bytes), QN_E_DEVICE, NULL,
                              "scratch");
            expect_status("the right call", scene_run(s), QN_OK, NULL, "");
        }
    qn_error err = {QN_OK, -1, ""};
    qn_weight *back = NULL;
    for (int i = 0; i < GPUS; i++) {
        qn_matmul_args *const m = &a[i].scene[SCENE_MATMUL].args.matmul;
        const qn_packed *const good = m->w, *const other = a[!i].scene[SCENE_MATMUL].args.matmul.w;
        m->w = other;
        expect_status("weights of the other GPU", scene_run(&a[i].scene[SCENE_MATMUL]), QN_E_DEVICE,
                      NULL, "w is packed for device");
        m->w = good;
        expect_status("unpacking them", qn_unpack(a[i].ctx, other, &back, &err), QN_E_DEVICE, &err,
                      "device");
        qn_matmul_args *const o = &a[!i].scene[SCENE_MATMUL].args.matmul;
        expect_status("upload to the other GPU", qn_cuda_upload(a[i].ctx, o->y.data, &err, 4, &err),
                      QN_E_DEVICE, &err, "the context is on GPU");
    }
}

/* Who works on GPU 1 alone makes no context on GPU 0. First of all, as others make one later. */
static void alone_on_the_second(void)
{
    union {
        void *address;
        CUresult (*state)(CUdevice, unsigned *, int *);
    } f = {NULL};
    enum cudaDriverEntryPointQueryResult result;
    unsigned flags = 0;
    int is_active[GPUS] = {-1, -1};
    struct scene s;
    qn_ctx *const ctx = context_on(QN_CUDA, 1);
    scene_start(&s, ctx, SCENE_DECODE);
    expect_status("GPU 1 alone", scene_run(&s), QN_OK, NULL, "");
    if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &f.address, 12000,
                                         cudaEnableDefault, &result) == cudaSuccess)
        for (int i = 0; i < GPUS; i++)
            (void)f.state(i, &flags, &is_active[i]);
    expect(is_active[0] == 0 && is_active[1] == 1, "GPU 1 alone", "there is a context on GPU 0");
    scene_stop(&s);
    qn_ctx_destroy(ctx);
    expect_clean("GPU 1 alone");
}

int main(void)
{
    static struct side a[GPUS];
    qn_cuda_info info[GPUS];
    qn_error err = {QN_OK, -1, ""};
    int32_t count = 0;
    pthread_t thread[GPUS];
    size_t bytes = 0;
    if (qn_cuda_device_count(&count, &err) != QN_OK || count < GPUS) {
        printf("skipped: %d GPUs\n", count);
        return 77;
    }
    alone_on_the_second();
    for (int i = 0; i < GPUS; i++) {
        start(&a[i], i);
        qn_cuda_info_init(&info[i]);
        expect_status("query", qn_cuda_query(i, &info[i], &err), QN_OK, &err, "");
    }
    const bool are_alike = strcmp(info[0].name, info[1].name) == 0 &&
                           info[0].multiprocessors == info[1].multiprocessors;
    for (int i = 0; i < GPUS; i++)
        for (int32_t kind = 0; kind < N_SCENES; kind++) {
            expect_status("alone", scene_run(&a[i].scene[kind]), QN_OK, NULL, "");
            a[i].wanted[kind] = scene_result(&a[i].scene[kind], &bytes);
            if (i > 0 && are_alike)
                expect(memcmp(a[i].wanted[kind], a[0].wanted[kind], bytes) == 0,
                       a[i].scene[kind].name, "the GPUs have other bits");
        }
    /* The second time with the other GPU current. */
    for (home = 0; home < GPUS; home++) {
        (void)cudaSetDevice(home);
        for (int i = 0; i < GPUS; i++)
            capture(&a[i]);
        in_turns(a);
        of_the_other_gpu(a);
    }
    home = 0;
    (void)cudaSetDevice(home);
    for (int i = 0; i < GPUS; i++)
        expect(pthread_create(&thread[i], NULL, work, &a[i]) == 0, "thread", "none");
    for (int i = 0; i < GPUS; i++)
        (void)pthread_join(thread[i], NULL);
    for (int i = 0; i < GPUS; i++)
        stop(&a[i]);
    for (int i = 0; i < GPUS; i++)
        for (int32_t kind = 0; kind < N_SCENES; kind++)
            free(a[i].wanted[kind]);
    expect_clean("at the end");
    return report("devices");
}
