/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 16 x 16 (16 x 32 for bytes) fragments of weights with 8 rows of x, as one warp makes
 * them: c += A . B. Lane l = 4 g + t holds
 *
 *     16-bit   a[0]: outputs g, positions 2t, 2t + 1    a[1]: g + 8     a[2], a[3]: positions + 8
 *              b[0]: row g, positions 2t, 2t + 1        b[1]: positions + 8
 *     bytes    a[0]: output g, positions 4t ... 4t + 3  a[1]: g + 8     a[2], a[3]: positions + 16
 *              b[0]: row g, positions 4t ... 4t + 3     b[1]: positions + 16
 *     c        c[0], c[1]: output g, rows 2t, 2t + 1    c[2], c[3]: output g + 8
 *
 * sm_75 has halves of the f16 instruction and quarters of the int8 one, with the same fragments. It
 * has no bf16: there lanes pass their operands round and multiply in f32, 64 steps for one
 * instruction, correct and slow. */
#ifndef QNI_CUDA_MMA_CUH
#define QNI_CUDA_MMA_CUH

#include <cuda_runtime.h>

#include <stdint.h>

#define MMA static __device__ __forceinline__

MMA void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, "
            "{%6}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(i == 0 ? b0 : b1));
#endif
}

#if __CUDA_ARCH__ < 800
/* One of the two bf16 of a word. */
MMA float mma_bf16_half(uint32_t word, int upper)
{
    return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
}
/* Lane 4 g + q holds positions 2q, 2q + 1 of output g; lane 8 t + q those of row 2t, lane 8 t + 4 +
 * q those of row 2t + 1. */
MMA void mma_bf16_in_turns(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    const int lane = (int)threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll 1
    for (int q = 0; q < 4; q++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t a0 = __shfl_sync(0xffffffffu, a[2 * k], 4 * g + q);
            const uint32_t a1 = __shfl_sync(0xffffffffu, a[2 * k + 1], 4 * g + q);
            const uint32_t b0 = __shfl_sync(0xffffffffu, b[k], 8 * t + q);
            const uint32_t b1 = __shfl_sync(0xffffffffu, b[k], 8 * t + 4 + q);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                c[0] = __fmaf_rn(mma_bf16_half(a0, i), mma_bf16_half(b0, i), c[0]);
                c[1] = __fmaf_rn(mma_bf16_half(a0, i), mma_bf16_half(b1, i), c[1]);
                c[2] = __fmaf_rn(mma_bf16_half(a1, i), mma_bf16_half(b0, i), c[2]);
                c[3] = __fmaf_rn(mma_bf16_half(a1, i), mma_bf16_half(b1, i), c[3]);
            }
        }
}
#endif

MMA void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const uint32_t b[2] = {b0, b1};
    mma_bf16_in_turns(c, a, b);
#endif
}

/* int32 sums of products of bytes, wrapping: weights signed or unsigned, x signed. */
#define QNI_MMA_BYTES(name, type)                                                                  \
    MMA void name(int32_t(&c)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1)                 \
    {                                                                                              \
        QNI_MMA_BYTES_BODY(type)                                                                   \
    }
#if __CUDA_ARCH__ >= 800
#define QNI_MMA_BYTES_BODY(type)                                                                   \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0,%1,%2,%3}, "                    \
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                   \
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
#define QNI_MMA_BYTES_BODY(type)                                                                   \
    _Pragma("unroll") for (int i = 0; i < 4; i++) asm(                                             \
        "mma.sync.aligned.m8n8k16.row.col.s32." type ".s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" :     \
        "+r"(c[2 * (i & 1)]), "+r"(c[2 * (i & 1) + 1]) : "r"(a[i]), "r"(i < 2 ? b0 : b1));
#endif
QNI_MMA_BYTES(mma_s8, "s8")
QNI_MMA_BYTES(mma_u8, "u8")
#undef QNI_MMA_BYTES
#undef QNI_MMA_BYTES_BODY

#undef MMA
#endif
