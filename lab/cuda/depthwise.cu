/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions by themselves: the kernels with windows beside the general one, images in turn so that none waits in L2.
 *
 *   nvcc -O3 -std=c++17 --fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc lab/cuda/depthwise.cu \
 *        src/cuda/conv/depthwise{,_channels,_planes}_sm75.cu -o depthwise && ./depthwise
 *
 * A line: microseconds of a call and the fraction of 3.35 TB/s that (x read once + y written once) is; in brackets the general
 * kernel, which is asked for by leaving out the last output. Some outputs are compared with sums in double. NOTES.md has the
 * figures. */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <quern/ops.h>

#include "cuda/kernel.h"

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (x);                                                                      \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s (line %d)\n", #x, cudaGetErrorString(e_), __LINE__);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { MOST_COPIES = 8 };

struct shape {
    int batch, channels, side, kernel, stride, dilation;
    bool nhwc;
    int dtype, y_dtype, strategy;
};

static int size_of(int dtype)
{
    return dtype == QN_F32 ? 4 : dtype == QN_I8 ? 1 : 2;
}

static uint32_t seed = 1;
static uint32_t draw()
{
    return (seed = seed * 1664525u + 1013904223u) >> 8;
}

static double median(const struct qni_cuda_depthwise *calls, int copies, int pdl)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    std::vector<double> times;
    const int repeats = 2 * copies;
    CHECK(cudaStreamCreate(&stream));
    const struct qni_cuda_launch launch = {stream, pdl, 132, 90};
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < repeats; i++)
        if (qni_cuda_depthwise_sm75(&calls[i % copies], &launch) != 0)
            exit(1);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 9; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i > 1)
            times.push_back(ms * 1e3 / repeats);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2];
}

static double value(const std::vector<uint8_t> &x, int dtype, size_t i)
{
    if (dtype == QN_F32)
        return ((const float *)x.data())[i];
    if (dtype == QN_I8)
        return ((const int8_t *)x.data())[i];
    const uint16_t bits = ((const uint16_t *)x.data())[i];
    if (dtype == QN_F16)
        return __half2float(__ushort_as_half(bits));
    const uint32_t wide = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &wide, 4);
    return v;
}

static void strides_of(const struct shape &s, int side, int64_t (&xs)[4]) /* batch, channel, row, column */
{
    const int64_t c = s.channels, area = (int64_t)side * side;
    xs[0] = c * area;
    xs[1] = s.nhwc ? 1 : area;
    xs[2] = s.nhwc ? c * side : side;
    xs[3] = s.nhwc ? c : 1;
}

static void measure(const struct shape &s)
{
    const int pad = s.dilation * (s.kernel - 1) / 2, taps = s.kernel * s.kernel;
    const int out = (s.side + 2 * pad - s.dilation * (s.kernel - 1) - 1) / s.stride + 1;
    const int panels = (s.channels + 15) / 16;
    const size_t nx = (size_t)s.batch * s.channels * s.side * s.side, ny = (size_t)s.batch * s.channels * out * out;
    std::vector<uint8_t> x(nx * size_of(s.dtype)), y(ny * size_of(s.y_dtype)), blob((size_t)panels * (1024 + 64));
    std::vector<int> codes((size_t)s.channels * taps);
    std::vector<float> scales(s.channels);
    for (size_t i = 0; i < nx; i++) {
        const float v = (float)(int)(draw() % 2001) * 1e-3f - 1.0f;
        if (s.dtype == QN_F32)
            ((float *)x.data())[i] = v;
        else if (s.dtype == QN_I8)
            ((int8_t *)x.data())[i] = (int8_t)draw();
        else if (s.dtype == QN_F16)
            ((__half *)x.data())[i] = __float2half(v);
        else
            ((uint16_t *)x.data())[i] = (uint16_t)(draw() % 0x80u + 0x3f00u + (draw() & 0x8000u));
    }
    for (int c = 0; c < s.channels; c++) {
        const int panel = c / 16, o = c % 16;
        scales[c] = 1e-3f * (float)(1 + c % 7);
        memcpy(&blob[(size_t)panels * 1024 + (size_t)(16 * panel + 2 * (o & 7) + (o >> 3)) * 4], &scales[c], 4);
        for (int t = 0; t < taps; t++) {
            const int code = (int)(draw() % 255) - 127, i = t & 15, step = t >> 4 & 3;
            const int lane = 4 * (o & 7) + ((i & 7) >> 1), j = 2 * (i & 1) + (i >> 3);
            codes[(size_t)c * taps + t] = code;
            blob[1024 * (size_t)panel + 512 * (step >> 1) + 16 * lane + 8 * (step & 1) + 4 * (o >> 3) + j] =
                (uint8_t)(code + 128);
        }
    }
    const size_t of_call = x.size() + y.size();
    const int copies = (int)std::min<size_t>(MOST_COPIES, std::max<size_t>(2, ((size_t)240 << 20) / of_call));
    uint8_t *dx[MOST_COPIES], *dy[MOST_COPIES], *dw;
    struct qni_cuda_depthwise calls[MOST_COPIES];
    CHECK(cudaMalloc(&dw, blob.size()));
    CHECK(cudaMemcpy(dw, blob.data(), blob.size(), cudaMemcpyHostToDevice));
    for (int i = 0; i < copies; i++) {
        struct qni_cuda_depthwise &d = calls[i];
        memset(&d, 0, sizeof d);
        CHECK(cudaMalloc(&dx[i], x.size()));
        CHECK(cudaMalloc(&dy[i], y.size()));
        CHECK(cudaMemcpy(dx[i], x.data(), x.size(), cudaMemcpyHostToDevice));
        d.source.x = dx[i];
        d.source.dtype = s.dtype;
        d.source.is_image = 1;
        d.source.h = d.source.w = s.side;
        d.source.oh = d.source.ow = out;
        strides_of(s, s.side, d.source.xs);
        d.source.kh = d.source.kw = s.kernel;
        d.source.ci = 1;
        d.source.k = taps;
        d.source.parts = s.channels;
        d.source.x_zero = s.strategy == QN_STRATEGY_INT8_STATIC ? 3 : 0;
        d.source.symmetric = 1;
        for (int a = 0; a < 2; a++) {
            d.source.stride[a] = s.stride;
            d.source.dilation[a] = s.dilation;
            d.source.pad[a] = pad;
        }
        d.source.n_groups = d.source.n_segments = 1;
        d.source.group_units = d.source.units = d.source.segment_units = 2;
        d.source.group_len = d.source.last_len = taps;
        d.w.blob = dw;
        d.w.scale = (size_t)panels * 1024;
        d.w.layout = QNI_CUDA_Q8FRAG;
        d.w.parts = 1;
        d.w.panels = panels;
        d.w.n = s.channels;
        d.w.units = d.w.group_units = d.w.segment_units = 2;
        d.w.n_groups = d.w.n_segments = d.w.segments_per_group = 1;
        int64_t ys[4];
        strides_of(s, out, ys);
        d.out.y = dy[i];
        d.out.y_dtype = s.y_dtype;
        d.out.stride[0] = ys[0];
        d.out.stride[1] = ys[2];
        d.out.stride[2] = ys[3];
        d.out.stride[3] = ys[1];
        d.out.y_inv = 1.0f / 0.5f;
        d.strategy = s.strategy;
        d.per_group = 1;
        d.x_scale = s.strategy == QN_STRATEGY_INT8_STATIC ? 0.05f : 1.0f;
        d.m = (int64_t)s.batch * out * out;
    }
    const double fast = median(calls, copies, 0), fast_pdl = median(calls, copies, 1);
    CHECK(cudaMemcpy(y.data(), dy[0], y.size(), cudaMemcpyDeviceToHost));
    double worst = 0;
    for (int i = 0; i < 2000; i++) {
        const int b = draw() % s.batch, c = draw() % s.channels, oy = draw() % out, ox = draw() % out;
        double sum = 0, magnitude = 1e-30;
        for (int t = 0; t < taps; t++) {
            const int iy = oy * s.stride - pad + t / s.kernel * s.dilation, ix = ox * s.stride - pad + t % s.kernel * s.dilation;
            int64_t xs[4];
            strides_of(s, s.side, xs);
            if (iy < 0 || iy >= s.side || ix < 0 || ix >= s.side)
                continue;
            const double v = value(x, s.dtype, (size_t)(b * xs[0] + c * xs[1] + iy * xs[2] + ix * xs[3])) -
                             calls[0].source.x_zero;
            sum += v * codes[(size_t)c * taps + t] * scales[c] * calls[0].x_scale;
            magnitude += fabs(v * codes[(size_t)c * taps + t] * scales[c] * calls[0].x_scale);
        }
        int64_t ys[4];
        strides_of(s, out, ys);
        const double got = value(y, s.y_dtype, (size_t)(b * ys[0] + c * ys[1] + oy * ys[2] + ox * ys[3]));
        if (s.y_dtype == QN_I8)
            worst = std::max(worst, fabs(got - std::min(127.0, std::max(-128.0, rint(sum * 2.0)))));
        else
            worst = std::max(worst, fabs(got - sum) / magnitude);
    }
    for (int i = 0; i < copies; i++)
        calls[i].m--;
    const double general = median(calls, copies, 0);
    static const char *const types[] = {"?", "f32", "f16", "bf16"};
    printf("%s %s->%s strategy %d  %d x %d x %d^2 k%d s%d d%d: %.1f us %.0f %% (PDL %.1f us %.0f %%)  [%.1f us]  error %.1e\n",
           s.nhwc ? "nhwc" : "nchw", s.dtype == QN_I8 ? "i8" : types[s.dtype - QN_F32 + 1],
           s.y_dtype == QN_I8 ? "i8" : types[s.y_dtype - QN_F32 + 1], s.strategy, s.batch, s.channels, s.side, s.kernel, s.stride,
           s.dilation, fast, of_call / fast / 3.35e4, fast_pdl, of_call / fast_pdl / 3.35e4, general, worst);
    fflush(stdout);
    for (int i = 0; i < copies; i++) {
        CHECK(cudaFree(dx[i]));
        CHECK(cudaFree(dy[i]));
    }
    CHECK(cudaFree(dw));
}

int main()
{
    for (const bool nhwc : {true, false}) {
        for (const int k : {3, 5, 7})
            for (const int stride : {1, 2})
                measure({16, 256, 56, k, stride, 1, nhwc, QN_F16, QN_F16, QN_STRATEGY_FLOAT});
        measure({16, 256, 56, 3, 1, 2, nhwc, QN_F16, QN_F16, QN_STRATEGY_FLOAT});
        measure({16, 256, 56, 4, 1, 1, nhwc, QN_F16, QN_F16, QN_STRATEGY_FLOAT});
        measure({16, 256, 56, 3, 1, 1, nhwc, QN_BF16, QN_BF16, QN_STRATEGY_FLOAT});
        measure({16, 256, 56, 3, 1, 1, nhwc, QN_F32, QN_F32, QN_STRATEGY_FLOAT});
        for (const int k : {3, 5, 7})
            for (const int stride : {1, 2})
                measure({16, 256, 56, k, stride, 1, nhwc, QN_I8, QN_I8, QN_STRATEGY_INT8_STATIC});
        for (const int k : {3, 5})
            for (const int strategy : {QN_STRATEGY_INT8_ROW, QN_STRATEGY_INT8_BLOCK})
                measure({16, 256, 56, k, 1, 1, nhwc, QN_F16, QN_F16, strategy});
        for (const int side : {112, 28, 14, 7})
            measure({32, side == 112 ? 64 : 512, side, 3, 1, 1, nhwc, QN_F16, QN_F16, QN_STRATEGY_FLOAT});
        measure({1, 512, 14, 3, 1, 1, nhwc, QN_F16, QN_F16, QN_STRATEGY_FLOAT});
    }
    return 0;
}
