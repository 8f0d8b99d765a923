/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA graphs: every operation is captured before it was ever run (nothing may be loaded, allocated
 * or waited for that a capture does not bear), in CUDA's strictest mode, and replays to the bits of
 * a direct call. What cannot be captured is refused with a status and a sentence, and the capture
 * goes on. Ends with 77 where there is no GPU. */
#include <pthread.h>

#include "scene.h"

static void begin(cudaStream_t stream, const char *what)
{
    expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, what,
           "no capture begins");
}

/* The graph; NULL (and a failure) if the capture was spoiled. */
static cudaGraphExec_t end(cudaStream_t stream, const char *what)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const cudaError_t code = cudaStreamEndCapture(stream, &graph);
    if (code != cudaSuccess || graph == NULL) {
        fail_here(what, cudaGetErrorName(code));
        (void)cudaGetLastError();
        return NULL;
    }
    expect(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, what, "no graph is made");
    expect(cudaGraphDestroy(graph) == cudaSuccess, what, "the graph is not destroyed");
    expect_clean(what);
    return exec;
}

static void replay(cudaGraphExec_t exec, cudaStream_t stream, const char *what)
{
    if (exec == NULL)
        return;
    expect(cudaGraphLaunch(exec, stream) == cudaSuccess &&
               cudaStreamSynchronize(stream) == cudaSuccess,
           what, "the replay fails");
    expect_clean(what);
}

/* Captured first, run afterwards (but for the dense tier: cuBLASLt is not ours). */
static void first_use(qn_ctx *ctx, cudaStream_t stream, int32_t kind)
{
    struct scene s;
    size_t bytes = 0;
    scene_start(&s, ctx, kind);
    if (kind == SCENE_DENSE)
        expect_status(s.name, scene_run(&s), QN_OK, NULL, "");
    begin(stream, s.name);
    expect_status(s.name, scene_run(&s), QN_OK, NULL, "");
    cudaGraphExec_t exec = end(stream, s.name);
    expect_status(s.name, scene_run(&s), QN_OK, NULL, "");
    uint8_t *const wanted = scene_result(&s, &bytes);
    for (int i = 0; i < 3; i++) {
        scene_clear(&s);
        replay(exec, stream, s.name);
        scene_compare(&s, wanted, "a replay has other bits");
    }
    if (exec != NULL)
        (void)cudaGraphExecDestroy(exec);
    free(wanted);
    scene_stop(&s);
}

static qn_status none(void *arg, int32_t i)
{
    (void)arg;
    (void)i;
    return QN_OK;
}

/* Calls that wait for the stream which is being captured. */
static void refused_calls(qn_ctx *ctx, cudaStream_t stream)
{
    struct scene s;
    size_t bytes = 0;
    double us[1];
    qn_error err = {QN_OK, -1, ""};
    qn_packed *packed = NULL;
    qn_weight *back = NULL;
    void *memory = NULL;
    scene_start(&s, ctx, SCENE_MATMUL);
    expect_status("run", scene_run(&s), QN_OK, NULL, "");
    uint8_t *const wanted = scene_result(&s, &bytes), *const other = calloc(1, bytes);
    qn_weight *const w =
        random_weight(ctx, "int4:g64", (struct random_shape){40, 64, 1, 1, 1}, 1, false, true);
    scene_clear(&s);
    const size_t before = free_bytes(home);

    begin(stream, "capture");
    expect_status("run", scene_run(&s), QN_OK, NULL, "");
    const char *const word = "captured";
    void *const y = s.operand[0].tensor->data;
    expect_status("wait", qn_cuda_synchronize(ctx, &err), QN_E_DEVICE, &err, word);
    expect_status("upload", qn_cuda_upload(ctx, y, other, bytes, &err), QN_E_DEVICE, &err, word);
    expect_status("download", qn_cuda_download(ctx, other, y, bytes, &err), QN_E_DEVICE, &err,
                  word);
    expect_status("pack", qn_pack(ctx, w, NULL, &packed, &err), QN_E_DEVICE, &err, word);
    expect(packed == NULL, "pack", "something was made");
    expect_status("unpack", qn_unpack(ctx, s.w[0], &back, &err), QN_E_DEVICE, &err, word);
    expect_status("measure", qn_cuda_measure(ctx, none, NULL, 1, 1, us, &err), QN_E_DEVICE, &err,
                  word);
    /* Memory does not wait for a stream. */
    expect_status("alloc", qn_cuda_alloc(ctx, 1 << 20, &memory, &err), QN_OK, &err, "");
    expect_status("free", qn_cuda_free(ctx, memory), QN_OK, NULL, "");
    expect_status("reserve", qn_ctx_reserve(ctx, 1 << 20), QN_OK, NULL, "");
    expect_status("in the new arena", scene_run_with(&s, NULL, 0), QN_OK, NULL, "");
    cudaGraphExec_t exec = end(stream, "a capture with refused calls in it");

    expect(free_bytes(home) + ((size_t)4 << 20) >= before, "refused calls", "memory is lost");
    replay(exec, stream, "replay");
    scene_compare(&s, wanted, "a replay has other bits");
    if (exec != NULL)
        (void)cudaGraphExecDestroy(exec);
    qn_weight_destroy(w);
    free(wanted);
    free(other);
    scene_stop(&s);
}

/* Everything that a context does on streams of its own, while somebody else captures. */
static void *other_work(void *arg)
{
    qn_ctx *const ctx = context_on(QN_CUDA, 0);
    struct scene s;
    size_t bytes = 0;
    (void)arg;
    for (int32_t kind = 0; kind < N_SCENES; kind++) {
        if (kind == SCENE_DENSE)
            continue; /* what cuBLASLt does when it is opened is not ours to promise */
        scene_start(&s, ctx, kind);
        expect_status(s.name, scene_run(&s), QN_OK, NULL, "");
        free(scene_result(&s, &bytes));
        scene_stop(&s);
    }
    qn_ctx_destroy(ctx);
    return NULL;
}

static void beside_a_capture(qn_ctx *ctx, cudaStream_t stream)
{
    struct scene s;
    pthread_t thread;
    scene_start(&s, ctx, SCENE_MATMUL);
    begin(stream, "beside");
    expect_status("run", scene_run(&s), QN_OK, NULL, "");
    (void)other_work(NULL);
    expect(pthread_create(&thread, NULL, other_work, NULL) == 0, "beside", "no thread");
    (void)pthread_join(thread, NULL);
    cudaGraphExec_t exec = end(stream, "a capture with other contexts beside it");
    replay(exec, stream, "replay");
    if (exec != NULL)
        (void)cudaGraphExecDestroy(exec);
    scene_stop(&s);
}

int main(void)
{
    cudaStream_t stream = NULL;
    qn_ctx *const ctx = context_on(QN_CUDA, 0);
    expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream", "");
    expect_status("stream", qn_cuda_set_stream(ctx, stream), QN_OK, NULL, "");
    for (int32_t pdl = 0; pdl < 2; pdl++) {
        expect_status("pdl", qn_cuda_set_pdl(ctx, pdl), QN_OK, NULL, "");
        for (int32_t kind = 0; kind < N_SCENES; kind++)
            first_use(ctx, stream, kind);
    }
    expect_status("pdl", qn_cuda_set_pdl(ctx, 0), QN_OK, NULL, "");
    refused_calls(ctx, stream);
    beside_a_capture(ctx, stream);
    qn_ctx_destroy(ctx);
    expect(cudaStreamDestroy(stream) == cudaSuccess, "stream", "not destroyed");
    return report("capture");
}
