/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a convolution out of its image (qni_cuda_pixels, kernel.h), for the prefill kernel: the
 * copy engine walks over output pixels by itself, from line to line and from image to image, and
 * fetches the channels that lie at an offset from each, that of the tap; zeros where there is no
 * pixel. So a tile of x is one copy, as it is of a matrix, into the same places. */
#ifndef QNI_CUDA_MATMUL_PREFILL_PIXELS_CUH
#define QNI_CUDA_MATMUL_PREFILL_PIXELS_CUH

#include "prefill.cuh"

namespace
{

__device__ __forceinline__ void copy_pixels_if(uint32_t to, const CUtensorMap *map, int channel,
                                               int column, int row, int image, int right, int down,
                                               uint32_t bar, uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %9, 0;\n"
                 "@really cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::"
                 "complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%8], {%6, %7};}" ::"r"(to),
                 "l"(map), "r"(channel), "r"(column), "r"(row), "r"(image), "h"((uint16_t)right),
                 "h"((uint16_t)down), "r"(bar), "r"(really)
                 : "memory");
}

/* A stretch of channels of a tap, and the one after it. */
struct tap {
    int first, end, channel, x, y;
};
__device__ __forceinline__ void next_tap(const struct qni_cuda_pixels &v, tap &t, int step)
{
    t.channel += step;
    if (t.channel < t.end)
        return;
    t.channel = t.first;
    if (++t.x < v.kw)
        return;
    t.x = 0;
    if (++t.y < v.kh)
        return;
    t.y = 0;
    t.first = t.channel = t.end;
    t.end = min(t.end + v.run, v.ci);
}

/* As feed_tiles (prefill_feed.cuh). Behind the last block there may be one more: of channels that
 * no pixel has. A warp. */
template <class F>
__device__ __forceinline__ void feed_pixels(const CUtensorMap *map, const arguments &a, ring r)
{
    constexpr int STEP = QNI_CUDA_BLOCK * F::blocks / F::x_tiles;
    const struct qni_cuda_pixels &v = a.p.x.pixels;
    const uint32_t first = threadIdx.x % 32 == 0;
    place at;
    for (int round = 0; find_place<F>(a, round, at); round++) {
        const int line = at.first / v.ow, image = line / v.oh;
        const int column = (at.first - line * v.ow) * v.stride[1] - v.pad[1];
        const int row = (line - image * v.oh) * v.stride[0] - v.pad[0];
        tap t = {0, min(v.run, v.ci), 0, 0, 0};
        for (int b = 0; b < at.begin; b += F::blocks / F::x_tiles)
            next_tap(v, t, STEP);
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks) {
            int channel[F::x_tiles], right[F::x_tiles], down[F::x_tiles];
#pragma unroll
            for (int j = 0; j < F::x_tiles; j++) {
                channel[j] = t.channel < v.ci ? at.part * v.part_channels + t.channel : v.channels;
                right[j] = t.x * v.dilation[1];
                down[j] = t.y * v.dilation[0];
                next_tap(v, t, STEP);
            }
#pragma unroll 1
            for (int i = 0; i < a.p.x.planes * r.pieces; i++) {
                const uint32_t full = r.full + r.stage * 8, to = r.data + r.stage * F::stage_bytes;
                const int plane = F::table ? i / r.pieces : i;
                const int of = image + at.part * v.part_images + plane * v.plane_images;
                barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
                barrier_expect_if(full, F::x_bytes, first);
#pragma unroll
                for (int j = 0; j < F::x_tiles; j++)
                    copy_pixels_if(to + j * F::tile_bytes, map, channel[j], column, row, of,
                                   right[j], down[j], full, first);
                advance<F::stages>(r);
            }
        }
    }
}

typedef decltype(&cuTensorMapEncodeIm2col) encode_pixels_fn;

/* The image as the copy engine sees it: channels, columns, rows, images; output pixel (0, 0) has
 * its tap (0, 0) at -pad, the last (out - 1) strides from there. */
template <class F>
bool describe_pixels(encode_pixels_fn encode, const struct qni_cuda_rows &x, CUtensorMap *map)
{
    const struct qni_cuda_pixels &v = x.pixels;
    const cuuint64_t size[4] = {(cuuint64_t)v.channels, (cuuint64_t)v.width, (cuuint64_t)v.height,
                                (cuuint64_t)v.images};
    const cuuint64_t pitch[3] = {(cuuint64_t)v.pitch[2], (cuuint64_t)v.pitch[1],
                                 (cuuint64_t)v.pitch[0]};
    const int near[2] = {-v.pad[1], -v.pad[0]};
    const int far[2] = {(v.ow - 1) * v.stride[1] - v.pad[1] - (v.width - 1),
                        (v.oh - 1) * v.stride[0] - v.pad[0] - (v.height - 1)};
    const cuuint32_t step[4] = {1, (cuuint32_t)v.stride[1], (cuuint32_t)v.stride[0], 1};
    const CUtensorMapDataType type = F::integers ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : F::bf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return encode(map, type, 4, (void *)(uintptr_t)x.a, size, pitch, near, far,
                  QNI_CUDA_BLOCK * F::blocks / F::x_tiles, F::tokens, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  F::tile_bytes / F::tokens == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                  : CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} /* namespace */

#endif
