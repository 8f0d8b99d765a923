/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's runtime, and the only file that names it: device.h. Every call's error is read here,
 * turned into a status and a sentence, and taken out of CUDA's per-thread state, where the next
 * call of somebody else would stumble over it. (An error that destroyed the device's context stays
 * with the device, and every later call says so.) The runtime is linked in and binds the driver
 * when it is first asked: without a driver these calls fail, and nothing else does.
 *
 * A stream that is being captured in a graph bears launches and nothing that waits: CUDA would
 * refuse the wait and throw the whole capture away. So what waits looks first, refuses by itself
 * and leaves the capture as it was; and what only might disturb somebody else's capture (memory,
 * work on streams of ours) is done with CUDA's thread told that it knows what it does. */
#include "device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "archs.h"
#include "blas.h"

/* ---- errors ---------------------------------------------------------------------------------- */

/* Errors that a kernel or the machine left: all that this process had on the device is lost. */
static bool is_fatal(cudaError_t code)
{
    switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorContextIsDestroyed:
        return true;
    default:
        return false;
    }
}

static qn_status fail(qn_error *err, cudaError_t code, const char *what)
{
    const qn_status status = code == cudaErrorMemoryAllocation ? QN_E_MEMORY : QN_E_DEVICE;
    (void)cudaGetLastError();
    if (is_fatal(code))
        return qni_fail(err, status,
                        "%s: earlier work on the GPU has failed, and this process can use it no "
                        "more: %s (%s)",
                        what, cudaGetErrorString(code), cudaGetErrorName(code));
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction)
        return qni_fail(err, status, "%s: this library has no kernel for the GPU's architecture",
                        what);
    if (code == cudaErrorStreamCaptureUnsupported || code == cudaErrorStreamCaptureInvalidated ||
        code == cudaErrorStreamCaptureImplicit)
        return qni_fail(err, status, "%s: not possible while the stream is being captured", what);
    return qni_fail(err, status, "%s: %s (%s)", what, cudaGetErrorString(code),
                    cudaGetErrorName(code));
}

static qn_status check(qn_error *err, cudaError_t code, const char *what)
{
    return code == cudaSuccess ? QN_OK : fail(err, code, what);
}

qn_status qni_cuda_launched(int32_t code, const char *what, qn_error *err)
{
    return check(err, (cudaError_t)code, what);
}

/* A function of the driver, which is not linked. */
static cudaError_t driver(const char *name, void **function)
{
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &result);
    if (code == cudaSuccess && result != cudaDriverEntryPointSuccess)
        return cudaErrorSymbolNotFound;
    return code;
}

/* The device's context goes onto the thread's stack of contexts, and off again. cudaSetDevice()
 * would do, but for the caller's device: putting that back makes a context if there is none yet,
 * half a gigabyte of a GPU that nobody uses. */
static void release(int32_t device)
{
    union {
        void *address;
        CUresult (*release)(CUdevice);
    } f;
    if (driver("cuDevicePrimaryCtxRelease", &f.address) == cudaSuccess)
        (void)f.release(device);
}
static cudaError_t push(int32_t device)
{
    union {
        void *address;
        CUresult (*retain)(CUcontext *, CUdevice);
        CUresult (*push)(CUcontext);
    } f;
    CUcontext context = NULL;
    cudaError_t code = driver("cuDevicePrimaryCtxRetain", &f.address);
    if (code == cudaSuccess && f.retain(&context, device) != CUDA_SUCCESS)
        code = cudaErrorDeviceUninitialized;
    if (code != cudaSuccess)
        return code;
    code = driver("cuCtxPushCurrent", &f.address);
    if (code == cudaSuccess && f.push(context) != CUDA_SUCCESS)
        code = cudaErrorDeviceUninitialized;
    if (code != cudaSuccess)
        release(device);
    return code;
}
static void pop(int32_t device)
{
    union {
        void *address;
        CUresult (*pop)(CUcontext *);
    } f;
    CUcontext context = NULL;
    if (driver("cuCtxPopCurrent", &f.address) == cudaSuccess)
        (void)f.pop(&context);
    release(device);
}

/* Make a device current; whether leave() has to put another one back. */
static cudaError_t enter(int32_t device, int32_t *is_pushed)
{
    int current = device;
    *is_pushed = 0;
    cudaError_t code = cudaGetDevice(&current);
    if (code != cudaSuccess || current == device)
        return code;
    code = push(device);
    *is_pushed = code == cudaSuccess;
    return code;
}

static void leave(int32_t device, int32_t is_pushed)
{
    if (is_pushed)
        pop(device);
}

/* A visit to a device for calls that are no launches: they are legal whatever some other stream
 * captures. */
struct visit {
    int32_t device, is_pushed, is_told;
    enum cudaStreamCaptureMode mode;
};

static cudaError_t visit(int32_t device, struct visit *v)
{
    v->device = device;
    v->is_pushed = 0;
    v->mode = cudaStreamCaptureModeRelaxed;
    v->is_told = 0;
    cudaError_t code = cudaInitDevice(device, 0, 0); /* the runtime holds its context from now on */
    if (code == cudaSuccess)
        code = enter(device, &v->is_pushed);
    if (code == cudaSuccess) /* makes a context on the current device */
        code = cudaThreadExchangeStreamCaptureMode(&v->mode);
    v->is_told = code == cudaSuccess;
    return code;
}

static void depart(struct visit *v)
{
    if (v->is_told)
        (void)cudaThreadExchangeStreamCaptureMode(&v->mode);
    leave(v->device, v->is_pushed);
}

/* For what waits for the context's stream. */
static cudaError_t visit_stream(const qn_ctx *ctx, struct visit *v)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t code = visit(ctx->device.index, v);
    if (code == cudaSuccess)
        code = cudaStreamIsCapturing(ctx->cuda->stream, &status);
    if (code == cudaSuccess && status != cudaStreamCaptureStatusNone)
        return cudaErrorStreamCaptureUnsupported;
    return code;
}

/* ---- devices and contexts -------------------------------------------------------------------- */

qn_status qni_cuda_count(int32_t *count, qn_error *err)
{
    int n = 0, driver = 0;
    const cudaError_t code = cudaGetDeviceCount(&n);
    *count = 0;
    if (code == cudaErrorNoDevice) {
        (void)cudaGetLastError();
        return QN_OK;
    }
    if (code == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        if (cudaDriverGetVersion(&driver) != cudaSuccess)
            (void)cudaGetLastError();
        if (driver == 0)
            return qni_fail(err, QN_E_DEVICE, "there is no NVIDIA driver on this machine: no CUDA");
        return qni_fail(err, QN_E_DEVICE,
                        "the NVIDIA driver is for CUDA %d.%d, older than this library (%d.%d)",
                        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                        CUDART_VERSION % 1000 / 10);
    }
    if (code != cudaSuccess)
        return fail(err, code, "counting the GPUs");
    *count = n;
    return QN_OK;
}

static int attribute(int32_t index, enum cudaDeviceAttr which)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return value;
}

/* f16 products with f32 sums of a multiprocessor and clock, as NVIDIA's whitepapers tell them; int8
 * does twice as many. */
static double products_per_clock(int32_t sm)
{
    return sm >= 90 ? 2048 : sm == 80 ? 1024 : 512;
}

qn_status qni_cuda_look(int32_t index, struct qni_cuda_facts *facts, qn_error *err)
{
    static struct cudaDeviceProp const none;
    struct cudaDeviceProp properties = none;
    int32_t count = 0;
    memset(facts, 0, sizeof *facts);
    QNI_TRY(qni_cuda_count(&count, err));
    if (index < 0 || index >= count)
        return qni_fail(err, QN_E_DEVICE, "there is no GPU %d: %d on this machine", index, count);
    QNI_TRY(check(err, cudaGetDeviceProperties(&properties, index), "asking the GPU"));
    snprintf(facts->name, sizeof facts->name, "%.63s", properties.name);
    facts->sm = properties.major * 10 + properties.minor;
    facts->multiprocessors = properties.multiProcessorCount;
    facts->memory_bytes = properties.totalGlobalMem;
    facts->l2_bytes = (size_t)properties.l2CacheSize;
    /* kHz times bits of the bus; both edges of the clock carry data. */
    facts->bandwidth = 2000.0 * attribute(index, cudaDevAttrMemoryClockRate) *
                       attribute(index, cudaDevAttrGlobalMemoryBusWidth) / 8.0;
    facts->is_served = qni_cuda_archs_serve(&qni_cuda_archs_built, facts->sm);
    facts->f16_ops = 2 * products_per_clock(facts->sm) * facts->multiprocessors * 1000.0 *
                     attribute(index, cudaDevAttrClockRate);
    facts->int8_ops = 2 * facts->f16_ops;
    return QN_OK;
}

qn_status qni_cuda_open(qn_ctx *ctx, qn_error *err)
{
    struct qni_cuda_facts facts;
    struct visit v;
    cudaStream_t stream = NULL;
    QNI_TRY(qni_cuda_look(ctx->device.index, &facts, err));
    if (!facts.is_served) {
        char archs[96];
        qni_cuda_archs_text(&qni_cuda_archs_built, archs, sizeof archs);
        return qni_fail(err, QN_E_DEVICE, "GPU %d (%s) is sm_%d; this library has kernels for %s",
                        ctx->device.index, facts.name, facts.sm, archs);
    }
    struct qni_cuda *cuda = qni_alloc_zero(&ctx->allocator, sizeof *cuda);
    if (cuda == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a context");
    cuda->blas = qni_cuda_blas_make(ctx);
    if (cuda->blas == NULL) {
        qni_free(&ctx->allocator, cuda, sizeof *cuda);
        return qni_fail(err, QN_E_MEMORY, "no memory for a context");
    }
    cudaError_t code = visit(ctx->device.index, &v);
    if (code == cudaSuccess)
        code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    depart(&v);
    if (code != cudaSuccess) {
        qni_cuda_blas_close(ctx, cuda->blas);
        qni_free(&ctx->allocator, cuda, sizeof *cuda);
        return fail(err, code, "making a stream");
    }
    cuda->facts = facts;
    cuda->facts.tuned = cuda->tuned;
    cuda->stream = cuda->own_stream = stream;
    ctx->cuda = cuda;
    return QN_OK;
}

void qni_cuda_close(qn_ctx *ctx)
{
    struct visit v;
    if (ctx->cuda == NULL)
        return;
    const cudaError_t code = visit(ctx->device.index, &v);
    qni_cuda_blas_close(ctx, ctx->cuda->blas);
    if (code == cudaSuccess)
        (void)cudaStreamDestroy(ctx->cuda->own_stream);
    (void)cudaGetLastError();
    depart(&v);
    qni_free(&ctx->allocator, ctx->cuda, sizeof *ctx->cuda);
    ctx->cuda = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

qn_status qni_cuda_alloc(const qn_ctx *ctx, size_t bytes, void **memory, qn_error *err)
{
    struct visit v;
    *memory = NULL;
    cudaError_t code = visit(ctx->device.index, &v);
    if (code == cudaSuccess)
        code = cudaMalloc(memory, bytes);
    depart(&v);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        *memory = NULL;
        return qni_fail(err, QN_E_MEMORY, "GPU %d has no %zu bytes left", ctx->device.index, bytes);
    }
    return check(err, code, "getting memory of the GPU");
}

qn_status qni_cuda_free(int32_t device, void *memory)
{
    struct visit v;
    if (memory == NULL)
        return QN_OK;
    cudaError_t code = visit(device, &v);
    if (code == cudaSuccess)
        code = cudaFree(memory);
    depart(&v);
    return check(NULL, code, "");
}

qn_status qni_cuda_check_pointer(const qn_ctx *ctx, const void *memory, const char *name,
                                 qn_error *err)
{
    struct cudaPointerAttributes facts;
    memset(&facts, 0, sizeof facts);
    const cudaError_t code = cudaPointerGetAttributes(&facts, memory);
    if (code != cudaSuccess && code != cudaErrorInvalidValue)
        return fail(err, code, name);
    if (code != cudaSuccess)
        (void)cudaGetLastError();
    if (code != cudaSuccess || facts.type == cudaMemoryTypeUnregistered ||
        (facts.type == cudaMemoryTypeHost && facts.devicePointer != memory))
        return qni_fail(err, QN_E_DEVICE, "%s is host memory: its data must lie on GPU %d", name,
                        ctx->device.index);
    if (facts.type == cudaMemoryTypeDevice && facts.device != ctx->device.index)
        return qni_fail(err, QN_E_DEVICE, "%s lies on GPU %d, the context is on GPU %d", name,
                        facts.device, ctx->device.index);
    return QN_OK;
}

static qn_status copy(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                      enum cudaMemcpyKind kind, qn_error *err)
{
    struct visit v;
    if (bytes == 0)
        return QN_OK;
    QNI_TRY(qni_cuda_check_pointer(ctx, kind == cudaMemcpyHostToDevice ? to : from, "device", err));
    cudaError_t code = visit_stream(ctx, &v);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(to, from, bytes, kind, ctx->cuda->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(ctx->cuda->stream);
    depart(&v);
    return check(err, code, "copying between host and GPU");
}

qn_status qni_cuda_upload(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                          qn_error *err)
{
    return copy(ctx, to, from, bytes, cudaMemcpyHostToDevice, err);
}

qn_status qni_cuda_download(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                            qn_error *err)
{
    return copy(ctx, to, from, bytes, cudaMemcpyDeviceToHost, err);
}

/* ---- launches -------------------------------------------------------------------------------- */

static void describe(const qn_ctx *ctx, struct qni_cuda_launch *launch)
{
    const struct qni_cuda *cuda = ctx->cuda;
    memset(launch, 0, sizeof *launch);
    launch->stream = cuda->stream;
    launch->pdl = cuda->pdl && cuda->facts.sm >= 90;
    launch->multiprocessors = cuda->facts.multiprocessors;
    launch->sm = cuda->facts.sm;
}

qn_status qni_cuda_enter(const qn_ctx *ctx, struct qni_cuda_scope *scope, qn_error *err)
{
    cudaError_t code = enter(ctx->device.index, &scope->is_pushed);
    if (code == cudaSuccess)
        code = cudaPeekAtLastError();
    if (code != cudaSuccess) {
        leave(ctx->device.index, scope->is_pushed);
        (void)fail(err, code, "an earlier launch or CUDA call of this thread has failed");
        if (err != NULL)
            err->status = QN_E_DEVICE; /* whatever went wrong there */
        return QN_E_DEVICE;
    }
    describe(ctx, &scope->launch);
    return QN_OK;
}

void qni_cuda_leave(const qn_ctx *ctx, const struct qni_cuda_scope *scope)
{
    leave(ctx->device.index, scope->is_pushed);
}

qn_status qni_cuda_begin(const qn_ctx *ctx, struct qni_cuda_scope *scope, qn_error *err)
{
    struct visit v;
    const cudaError_t code = visit_stream(ctx, &v);
    if (code != cudaSuccess) {
        depart(&v);
        return fail(err, code, "using the GPU");
    }
    scope->is_pushed = v.is_pushed;
    scope->capture_mode_before = (int32_t)v.mode;
    describe(ctx, &scope->launch);
    scope->launch.pdl = 0;
    return QN_OK;
}

qn_status qni_cuda_end(const qn_ctx *ctx, const struct qni_cuda_scope *scope, int32_t launched,
                       qn_error *err)
{
    struct visit v = {ctx->device.index, scope->is_pushed, 1,
                      (enum cudaStreamCaptureMode)scope->capture_mode_before};
    cudaError_t code = (cudaError_t)launched;
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(scope->launch.stream);
    depart(&v);
    return check(err, code, "work on the GPU");
}

qn_status qni_cuda_wait(const qn_ctx *ctx, qn_error *err)
{
    struct visit v;
    cudaError_t code = visit_stream(ctx, &v);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(ctx->cuda->stream);
    depart(&v);
    return check(err, code, "waiting for the stream");
}

/* ---- time ------------------------------------------------------------------------------------ */

struct clock {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
};

/* The calls as a graph. The stream is left without a capture whatever happens. */
static qn_status record(cudaStream_t stream, qn_cuda_call_fn call, void *arg, int32_t n_calls,
                        struct clock *clock, qn_error *err)
{
    QNI_TRY(check(err, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                  "beginning a capture"));
    qn_status status = QN_OK;
    for (int32_t i = 0; i < n_calls && status == QN_OK; i++)
        status = call(arg, i);
    const cudaError_t code = cudaStreamEndCapture(stream, &clock->graph);
    if (status != QN_OK) {
        (void)cudaGetLastError();
        return qni_fail(err, status, "the measured call failed: %s", qn_status_text(status));
    }
    QNI_TRY(check(err, code, "ending a capture"));
    return check(err, cudaGraphInstantiate(&clock->exec, clock->graph, 0), "making a graph");
}

static qn_status replay(cudaStream_t stream, const struct clock *clock, int32_t n_calls,
                        int32_t replays, double *us, qn_error *err)
{
    for (int32_t r = -1; r < replays; r++) {
        float ms = 0.0f;
        cudaError_t code = cudaEventRecord(clock->begin, stream);
        if (code == cudaSuccess)
            code = cudaGraphLaunch(clock->exec, stream);
        if (code == cudaSuccess)
            code = cudaEventRecord(clock->end, stream);
        if (code == cudaSuccess)
            code = cudaStreamSynchronize(stream);
        if (code == cudaSuccess)
            code = cudaEventElapsedTime(&ms, clock->begin, clock->end);
        QNI_TRY(check(err, code, "replaying a graph"));
        if (r >= 0)
            us[r] = (double)ms * 1000.0 / n_calls;
    }
    return QN_OK;
}

static qn_status measure(qn_ctx *ctx, qn_cuda_call_fn call, void *arg, int32_t n_calls,
                         int32_t replays, double *us, qn_error *err)
{
    struct clock clock = {NULL, NULL, NULL, NULL};
    cudaStream_t stream = NULL;
    void *const kept = ctx->cuda->stream;
    QNI_TRY(
        check(err, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
    qn_status status = check(err, cudaEventCreate(&clock.begin), "making an event");
    if (status == QN_OK)
        status = check(err, cudaEventCreate(&clock.end), "making an event");
    if (status == QN_OK) {
        ctx->cuda->stream = stream;
        status = record(stream, call, arg, n_calls, &clock, err);
        ctx->cuda->stream = kept;
    }
    if (status == QN_OK)
        status = replay(stream, &clock, n_calls, replays, us, err);
    if (clock.exec != NULL)
        (void)cudaGraphExecDestroy(clock.exec);
    if (clock.graph != NULL)
        (void)cudaGraphDestroy(clock.graph);
    if (clock.begin != NULL)
        (void)cudaEventDestroy(clock.begin);
    if (clock.end != NULL)
        (void)cudaEventDestroy(clock.end);
    (void)cudaStreamDestroy(stream);
    (void)cudaGetLastError();
    return status;
}

qn_status qni_cuda_measure(qn_ctx *ctx, qn_cuda_call_fn call, void *arg, int32_t n_calls,
                           int32_t replays, double *us, qn_error *err)
{
    struct visit v;
    QNI_TRY(qni_cuda_wait(ctx, err));
    qn_status status = check(err, visit(ctx->device.index, &v), "using the GPU");
    if (status == QN_OK)
        status = measure(ctx, call, arg, n_calls, replays, us, err);
    depart(&v);
    return status;
}
