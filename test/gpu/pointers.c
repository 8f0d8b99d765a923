/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and weights of the wrong place: for every operand of every operation a status and a
 * sentence that names it, and the right call right afterwards. And what is legal gives the same
 * bits: managed, pinned, registered and pooled memory, and data between 16-byte boundaries. Ends
 * with 77 where there is no GPU. */
#include "scene.h"

/* ---- operands -------------------------------------------------------------------------------- */

static void wrong_places(struct scene *s)
{
    for (int32_t i = 0; i < s->n; i++) {
        const struct operand *o = &s->operand[i];
        const qn_tensor good = *o->tensor;
        const size_t element = qn_dtype_bytes(good.dtype);
        void *gone = NULL;
        o->tensor->data = o->host;
        expect_status("host memory", scene_run(s), QN_E_DEVICE, NULL, o->name);
        expect_status("host memory again", scene_run(s), QN_E_DEVICE, NULL, "is host memory");
        o->tensor->data = NULL;
        expect_status("no memory", scene_run(s), QN_E_ARGUMENT, NULL, o->name);
        (void)qn_cuda_alloc(s->ctx, o->bytes, &gone, NULL);
        (void)qn_cuda_free(s->ctx, gone);
        o->tensor->data = gone;
        expect_status("freed memory", scene_run(s), QN_E_DEVICE, NULL, o->name);
        o->tensor->data = (uint8_t *)good.data + 1;
        if (element > 1)
            expect_status("between elements", scene_run(s), QN_E_ALIGN, NULL, o->name);
        *o->tensor = good;
        o->tensor->device = (qn_device){QN_CPU, 0};
        expect_status("said to be on the host", scene_run(s), QN_E_DEVICE, NULL, o->name);
        o->tensor->device = (qn_device){QN_CUDA, 17};
        expect_status("said to be on GPU 17", scene_run(s), QN_E_DEVICE, NULL, o->name);
        *o->tensor = good;
    }
}

static void wrong_scratch(struct scene *s)
{
    if (s->scratch_bytes == 0)
        return;
    void *const host = aligned_alloc(64, (s->scratch_bytes + 63) / 64 * 64);
    expect_status("scratch on the host", scene_run_with(s, host, s->scratch_bytes), QN_E_DEVICE,
                  NULL, "scratch is host memory");
    expect_status("scratch not aligned",
                  scene_run_with(s, (uint8_t *)s->scratch + 16, s->scratch_bytes), QN_E_ALIGN, NULL,
                  "scratch");
    expect_status("too little scratch", scene_run_with(s, s->scratch, s->scratch_bytes - 1),
                  QN_E_SCRATCH, NULL, "scratch");
    expect_status("no scratch, no arena", scene_run_with(s, NULL, 0), QN_E_SCRATCH, NULL, "arena");
    expect_status("scratch is x", scene_run_with(s, s->operand[0].tensor->data, s->scratch_bytes),
                  QN_E_OVERLAP, NULL, "scratch");
    free(host);
}

/* ---- what is legal --------------------------------------------------------------------------- */

enum { MANAGED, PINNED, REGISTERED, POOLED, ODD, N_PLACES };
static const char *const place_names[N_PLACES] = {"managed", "pinned", "registered", "pooled",
                                                  "at an odd element"};

/* Memory of `bytes` in another place; base: what to free. NULL: this machine has no such memory. */
static void *take_place(const struct scene *s, int place, size_t bytes, size_t element, void **base)
{
    *base = NULL;
    cudaError_t code = cudaSuccess;
    switch (place) {
    case MANAGED:
        code = cudaMallocManaged(base, bytes, cudaMemAttachGlobal);
        break;
    case PINNED:
        code = cudaHostAlloc(base, bytes, cudaHostAllocMapped);
        break;
    case REGISTERED:
        *base = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        code = cudaHostRegister(*base, (bytes + 4095) / 4096 * 4096, cudaHostRegisterMapped);
        break;
    case POOLED:
        code = cudaMallocAsync(base, bytes, NULL);
        if (code == cudaSuccess)
            code = cudaStreamSynchronize(NULL);
        break;
    default:
        (void)qn_cuda_alloc(s->ctx, bytes + 64, base, NULL);
        break;
    }
    if (code != cudaSuccess) {
        printf("%s memory cannot be had: %s\n", place_names[place], cudaGetErrorName(code));
        (void)cudaGetLastError();
        return NULL;
    }
    return place == ODD ? (uint8_t *)*base + 3 * element : *base;
}

static void drop_place(const struct scene *s, int place, void *base)
{
    cudaError_t code = cudaSuccess;
    switch (place) {
    case MANAGED:
        code = cudaFree(base);
        break;
    case PINNED:
        code = cudaFreeHost(base);
        break;
    case REGISTERED:
        code = cudaHostUnregister(base);
        free(base);
        break;
    case POOLED:
        code = cudaFreeAsync(base, NULL);
        if (code == cudaSuccess)
            code = cudaStreamSynchronize(NULL);
        break;
    default:
        expect(qn_cuda_free(s->ctx, base) == QN_OK, "free", "");
        break;
    }
    expect(code == cudaSuccess, place_names[place], "cannot be freed");
}

static void right_places(struct scene *s, const uint8_t *wanted)
{
    for (int place = 0; place < N_PLACES; place++)
        for (int32_t i = 0; i < s->n; i++) {
            const struct operand *o = &s->operand[i];
            const qn_tensor good = *o->tensor;
            void *base;
            void *data = take_place(s, place, o->bytes, qn_dtype_bytes(good.dtype), &base);
            if (data == NULL)
                continue;
            if (cudaMemcpy(data, o->host, o->bytes, cudaMemcpyDefault) != cudaSuccess ||
                cudaDeviceSynchronize() != cudaSuccess)
                fail_here(place_names[place], "cannot be filled");
            o->tensor->data = data;
            expect_status(place_names[place], scene_run(s), QN_OK, NULL, "");
            expect_status("wait", qn_cuda_synchronize(s->ctx, NULL), QN_OK, NULL, "");
            /* cuBLASLt may take another way for data that are not aligned. */
            if (place != ODD || s->kind != SCENE_DENSE)
                scene_compare(s, wanted, place_names[place]);
            *o->tensor = good;
            drop_place(s, place, base);
        }
}

/* ---- weights --------------------------------------------------------------------------------- */

static void wrong_weights(qn_ctx *gpu, qn_ctx *cpu)
{
    const struct random_shape shape = {80, 200, 1, 1, 1};
    qn_packed *of_cpu = pack_some(cpu, "int4:g64", shape, 1);
    struct scene s, g;
    qn_weight *back = NULL;
    qn_plan *plan = NULL;
    qn_error err = {QN_OK, -1, ""};
    scene_start(&s, gpu, SCENE_MATMUL);
    const qn_packed *const of_gpu = s.args.matmul.w;
    expect_status("plan", qn_matmul_plan(gpu, &s.args.matmul, &plan, &err), QN_OK, &err, "");

    s.args.matmul.w = of_cpu;
    expect_status("weights of the CPU", scene_run(&s), QN_E_DEVICE, NULL, "w is packed for device");
    expect_status("in a plan", qn_matmul_run(plan, &s.args.matmul, s.scratch, s.scratch_bytes),
                  QN_E_DEVICE, NULL, "w is packed for device");
    err.text[0] = 0;
    expect_status("unpacked on the GPU", qn_unpack(gpu, of_cpu, &back, &err), QN_E_DEVICE, &err,
                  "device");
    expect_status("the GPU's unpacked on the CPU", qn_unpack(cpu, of_gpu, &back, &err), QN_E_DEVICE,
                  &err, "device");
    s.args.matmul.w = of_gpu;
    expect_status("the GPU's on the CPU", qn_matmul(cpu, &s.args.matmul, NULL, 0), QN_E_DEVICE,
                  NULL, "w is packed for device");

    /* The same numbers in another order: a plan refuses, a direct call looks anew. */
    qn_pack_options o;
    qn_packed *wide = NULL, *none = NULL;
    qn_pack_options_init(&o);
    o.layout = "q8frag";
    qn_weight *w = random_weight(gpu, "int4:g64", shape, 1, false, true);
    expect_status("q8frag", qn_pack(gpu, w, &o, &wide, &err), QN_OK, &err, "");
    s.args.matmul.w = wide;
    expect_status("another layout", qn_matmul_run(plan, &s.args.matmul, s.scratch, s.scratch_bytes),
                  QN_E_LAYOUT, NULL, "another way");
    o.layout = "q4n16";
    expect_status("a layout of CPUs", qn_pack(gpu, w, &o, &none, &err), QN_E_LAYOUT, &err, "q4n16");
    expect(none == NULL, "a layout of CPUs", "something was made");
    s.args.matmul.w = of_gpu;

    scene_start(&g, gpu, SCENE_GROUPED_IDS);
    const qn_packed *const expert = g.w[1];
    g.w[1] = of_cpu;
    expect_status("an expert of the CPU", scene_run(&g), QN_E_DEVICE, NULL,
                  "w[1] is packed for device 1:0");
    g.w[1] = expert;
    expect_status("the right call", scene_run(&g), QN_OK, NULL, "");
    scene_stop(&g);
    qn_plan_destroy(plan);
    qn_weight_destroy(w);
    qn_packed_destroy(wide);
    qn_packed_destroy(of_cpu);
    scene_stop(&s);
}

/* ---- the calls of quern/cuda.h --------------------------------------------------------------- */

static void wrong_copies(qn_ctx *ctx)
{
    qn_error err = {QN_OK, -1, ""};
    uint8_t host[64] = {0};
    void *memory = NULL;
    expect_status("alloc", qn_cuda_alloc(ctx, 64, &memory, &err), QN_OK, &err, "");
    expect_status("upload to the host", qn_cuda_upload(ctx, host, host + 32, 16, &err), QN_E_DEVICE,
                  &err, "host memory");
    expect_status("download from the host", qn_cuda_download(ctx, host, host + 32, 16, &err),
                  QN_E_DEVICE, &err, "host memory");
    expect_status("free of the host", qn_cuda_free(ctx, host), QN_E_DEVICE, &err, "");
    expect_status("free inside", qn_cuda_free(ctx, (uint8_t *)memory + 16), QN_E_DEVICE, &err, "");
    expect_status("free", qn_cuda_free(ctx, memory), QN_OK, NULL, "");
    expect_status("free again", qn_cuda_free(ctx, memory), QN_E_DEVICE, &err, "");
    expect_status("2^60 bytes", qn_cuda_alloc(ctx, (size_t)1 << 60, &memory, &err), QN_E_MEMORY,
                  &err, "bytes left");
    expect_status("reserve 2^60 bytes", qn_ctx_reserve(ctx, (size_t)1 << 60), QN_E_MEMORY, &err,
                  "");
    expect_status("wait", qn_cuda_synchronize(ctx, &err), QN_OK, &err, "");
}

/* An error that somebody else left in CUDA's per-thread state, and did not look at. */
static void errors_of_others(qn_ctx *ctx)
{
    struct scene s;
    void *memory;
    scene_start(&s, ctx, SCENE_MATMUL);
    (void)cudaMalloc(&memory, (size_t)1 << 60);
    expect_status("an error of the caller's", scene_run(&s), QN_E_DEVICE, NULL, "earlier");
    expect_status("after that", scene_run(&s), QN_OK, NULL, "");
    scene_stop(&s);
}

int main(void)
{
    qn_ctx *const gpu = context_on(QN_CUDA, 0), *const cpu = context_on(QN_CPU, 0);
    for (int32_t kind = 0; kind < N_SCENES; kind++) {
        struct scene s;
        size_t bytes = 0;
        scene_start(&s, gpu, kind);
        expect_status(s.name, scene_run(&s), QN_OK, NULL, "");
        uint8_t *const wanted = scene_result(&s, &bytes);
        scene_clear(&s);
        uint8_t *const cleared = scene_result(&s, &bytes);
        wrong_places(&s);
        wrong_scratch(&s);
        scene_compare(&s, cleared, "a refused call has written");
        expect_status(s.name, scene_run(&s), QN_OK, NULL, "");
        scene_compare(&s, wanted, "other bits after refusals");
        right_places(&s, wanted);
        free(wanted);
        free(cleared);
        scene_stop(&s);
    }
    wrong_weights(gpu, cpu);
    wrong_copies(gpu);
    errors_of_others(gpu);
    qn_ctx_destroy(gpu);
    qn_ctx_destroy(cpu);
    return report("pointers");
}
