/* SPDX-License-Identifier: Apache-2.0 */
/* Machines and devices that are not what they should be, each in a process of its own: no driver,
 * no visible GPU, an index that is none, and a device that a kernel has ruined. Every call has a
 * status and a sentence, and the CPU goes on computing in the same process. Ends with 77 where
 * there is no GPU. */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"

static void cpu_works(void)
{
    enum { M = 3, N = 40, K = 64 };
    static float x[M * K], y[M * N];
    qn_ctx *const ctx = context_on(QN_CPU, 0);
    qn_packed *const w = pack_some(ctx, "int4:g32", (struct random_shape){N, K, 1, 1, 1}, 1);
    qn_matmul_args a;
    qn_matmul_args_init(&a);
    a.w = w;
    a.x = qn_tensor_2d(x, QN_F32, M, K);
    a.y = qn_tensor_2d(y, QN_F32, M, N);
    for (int i = 0; i < M * K; i++)
        x[i] = 1.0f;
    y[0] = y[M * N - 1] = 12345.0f;
    const qn_status reserved = qn_ctx_reserve(ctx, 1 << 20);
    const qn_status status = qn_matmul(ctx, &a, NULL, 0);
    expect(reserved == QN_OK && status == QN_OK, "the CPU", qn_status_name(status));
    expect(y[0] != 12345.0f && y[M * N - 1] != 12345.0f, "the CPU", "nothing was computed");
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

/* ---- children -------------------------------------------------------------------------------- */

static void expect_words(const char *what, qn_status got, const qn_error *err, const char *word)
{
    if (got != QN_E_DEVICE || strstr(err->text, word) == NULL) {
        printf("'%s' does not say '%s'\n", err->text, word);
        fail_here(what, qn_status_name(got));
    }
}

static int without_gpus(const char *word, bool is_answer)
{
    qn_error err = {QN_OK, -1, ""};
    qn_ctx *ctx = NULL;
    qn_cuda_info info;
    int32_t count = -1;
    qn_cuda_info_init(&info);
    const qn_status status = qn_cuda_device_count(&count, &err);
    expect(count == 0, "count", "it is not 0");
    expect((status == QN_OK) == is_answer, "count", qn_status_name(status));
    if (!is_answer)
        expect_words("count", status, &err, word);
    expect_words("query", qn_cuda_query(0, &info, &err), &err, word);
    expect_words("context", open_context((qn_device){QN_CUDA, 0}, &ctx, &err), &err, word);
    expect(ctx == NULL, "context", "something was made");
    printf("%s\n", err.text);
    cpu_works();
    return report("without GPUs");
}

/* A kernel reads rows of x that are said to be 1 GiB apart, behind memory of a few KiB. */
static int ruined(void)
{
    qn_ctx *const ctx = context_on(QN_CUDA, 0);
    qn_ctx *other = NULL;
    struct scene s;
    qn_error err = {QN_OK, -1, ""};
    qn_packed *packed = NULL;
    void *memory = NULL;
    const char *const word = "earlier work on the GPU has failed";
    scene_start(&s, ctx, SCENE_MATMUL);
    qn_weight *const w =
        random_weight(ctx, "int4:g64", (struct random_shape){40, 64, 1, 1, 1}, 1, false, true);
    expect_status("a run", scene_run(&s), QN_OK, NULL, "");
    expect_status("all is well", qn_cuda_synchronize(ctx, &err), QN_OK, &err, "");
    /* Scratch and y lie before x, so that no argument can be seen to be wrong. */
    const size_t part = (size_t)8 << 20;
    uint8_t *block = NULL;
    (void)qn_cuda_alloc(ctx, 3 * part, (void **)&block, NULL);
    s.args.matmul.y.data = block;
    s.scratch = block + part;
    s.args.matmul.x.data = block + 3 * part - 4096;
    s.args.matmul.x.stride[0] = (int64_t)1 << 28;
    (void)scene_run(&s); /* the first launch goes well; a later one may already hear of it */
    expect_words("wait", qn_cuda_synchronize(ctx, &err), &err, word);
    printf("%s\n", err.text);
    for (int i = 0; i < 3; i++) {
        heard[0] = 0;
        const qn_status status = scene_run(&s);
        expect(status == QN_E_DEVICE && strstr(heard, word) != NULL, "the next run", heard);
        expect_words("wait", qn_cuda_synchronize(ctx, &err), &err, word);
        expect_words("alloc", qn_cuda_alloc(ctx, 4096, &memory, &err), &err, word);
        expect_words("pack", qn_pack(ctx, w, NULL, &packed, &err), &err, word);
        const qn_status created = open_context((qn_device){QN_CUDA, 0}, &other, &err);
        expect(created == QN_E_DEVICE && err.text[0] != 0, "a new context",
               qn_status_name(created));
        cpu_works();
    }
    qn_weight_destroy(w);
    for (int32_t i = 0; i < s.n_w; i++)
        qn_packed_destroy((qn_packed *)(uintptr_t)s.w[i]);
    qn_ctx_destroy(ctx);
    return report("a ruined device");
}

/* ---- this process ---------------------------------------------------------------------------- */

/* This program again, with a word and a changed environment. */
static void child(const char *word, const char *name, const char *value)
{
    fflush(NULL);
    const pid_t pid = fork();
    int status = -1;
    if (pid == 0) {
        char *const arguments[] = {(char *)(uintptr_t) "machine", (char *)(uintptr_t)word, NULL};
        if (name != NULL)
            setenv(name, value, 1);
        execv("/proc/self/exe", arguments);
        _exit(3);
    }
    (void)waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        printf("status %#x\n", (unsigned)status);
        fail_here(word, "the process failed");
    }
}

/* A folder whose libcuda.so.1 is an empty file: the loader finds that one first, and no driver. */
static void without_driver(void)
{
    char folder[] = "/tmp/quern-XXXXXX", file[64], path[4096];
    const char *const before = getenv("LD_LIBRARY_PATH");
    if (mkdtemp(folder) == NULL)
        exit(1);
    snprintf(file, sizeof file, "%s/libcuda.so.1", folder);
    FILE *const f = fopen(file, "w");
    if (f == NULL || fclose(f) != 0)
        exit(1);
    snprintf(path, sizeof path, "%s%s%s", folder, before != NULL ? ":" : "",
             before != NULL ? before : "");
    child("no-driver", "LD_LIBRARY_PATH", path);
    (void)unlink(file);
    (void)rmdir(folder);
}

static void indices(void)
{
    static const int32_t wrong[] = {-1, 1000, INT32_MAX, INT32_MIN};
    qn_error err = {QN_OK, -1, ""};
    qn_cuda_info info;
    int32_t count = 0;
    qn_cuda_info_init(&info);
    expect_status("count", qn_cuda_device_count(&count, &err), QN_OK, &err, "");
    for (size_t i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
        const int32_t index = i == 0 ? count : wrong[i - 1];
        qn_ctx *ctx = NULL;
        err.text[0] = 0;
        expect_status("query", qn_cuda_query(index, &info, &err), QN_E_DEVICE, &err,
                      "there is no GPU");
        expect_status("context", open_context((qn_device){QN_CUDA, index}, &ctx, &err), QN_E_DEVICE,
                      &err, "there is no GPU");
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "no-driver") == 0)
        return without_gpus("no NVIDIA driver", false);
    if (argc > 1 && strcmp(argv[1], "no-device") == 0)
        return without_gpus("there is no GPU 0", true);
    if (argc > 1)
        return ruined();
    qn_ctx_destroy(context_on(QN_CUDA, 0)); /* or the end */
    indices();
    without_driver();
    child("no-device", "CUDA_VISIBLE_DEVICES", "");
    child("ruined", NULL, NULL);
    expect_clean("all children");
    return report("machine");
}
