/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma of Hopper with weights from registers: d (+)= A . B, A 64 outputs x 16 positions in the
 * fragments of kernel.h (each warp of a warpgroup 16 outputs), B n tokens x 16 positions in shared
 * memory, K-major with the 128-byte swizzle that tensor copies write, d in f32: d[4 i + j] of lane
 * 4 g + t is output g + 8 (j / 2), token 8 i + 2 t + j % 2.
 *
 * The product runs on while the warp goes on: until wait() says that it is over, d and a must not
 * be written or read. hold() tells the compiler that what lies behind it sees new values. */
#ifndef QNI_CUDA_WGMMA_CUH
#define QNI_CUDA_WGMMA_CUH

#include <cstdint>

namespace qni_wgmma {

static __device__ __forceinline__ void fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Returns when at most PENDING commits of this warp are unfinished. */
template <int PENDING> static __device__ __forceinline__ void wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int COUNT> static __device__ __forceinline__ void hold(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* A tile of rows of 128 bytes at an address that is a multiple of 1024: eight rows are 1024 bytes
 * apart from the next eight. What varies is the address in units of 16 bytes, below 2^14: a step of
 * 16 positions is 32 bytes further, or 2. */
static __device__ __forceinline__ uint32_t tile(uint32_t shared_address)
{
    return shared_address >> 4;
}
static __device__ __forceinline__ uint64_t descriptor(uint32_t tile)
{
    return (uint64_t)(64u | 1u << 30) << 32 | tile;
}

/* add 0: d is overwritten. */
template <int TOKENS> struct product;

/* clang-format off */
#define QNI_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]),                      \
                  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define QNI_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define QNI_D16(i) QNI_D8(i), QNI_D8(i + 8)
#define QNI_D32(i) QNI_D16(i), QNI_D16(i + 16)
#define QNI_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define QNI_R16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define QNI_R32 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define QNI_R48 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define QNI_R64                                                                                    \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" ","                          \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" ","                          \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" ","              \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define QNI_WGMMA(TOKENS, TYPE, LIST, A0, A1, A2, A3, DESC, ADD, ...)                              \
    asm volatile("{.reg .pred add; setp.ne.s32 add, " ADD ", 0;\n"                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #TOKENS "k16.f32." TYPE "." TYPE " "          \
                 "{" LIST "}, "                                                                    \
                 "{" A0 "," A1 "," A2 "," A3 "}, " DESC ", add, 1, 1, 0;}"                         \
                 : __VA_ARGS__                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(tile)), "r"(add)     \
                 : "memory")
#define QNI_WGMMA_PRODUCT(TOKENS, LIST, A0, A1, A2, A3, DESC, ADD, ...)                            \
    template <> struct product<TOKENS> {                                                           \
        template <bool IS_BF16>                                                                    \
        static __device__ __forceinline__ void run(float (&d)[TOKENS / 2], const uint32_t *a,      \
                                                   uint32_t tile, int32_t add)                     \
        {                                                                                          \
            if (IS_BF16)                                                                           \
                QNI_WGMMA(TOKENS, "bf16", LIST, A0, A1, A2, A3, DESC, ADD, __VA_ARGS__);           \
            else                                                                                   \
                QNI_WGMMA(TOKENS, "f16", LIST, A0, A1, A2, A3, DESC, ADD, __VA_ARGS__);            \
        }                                                                                          \
    };

QNI_WGMMA_PRODUCT(8, "%0,%1,%2,%3", "%4", "%5", "%6", "%7", "%8", "%9", QNI_D4(0))
QNI_WGMMA_PRODUCT(16, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "%11", "%12", "%13", QNI_D8(0))
QNI_WGMMA_PRODUCT(24, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", "%12", "%13", "%14", "%15", "%16",
                  "%17", QNI_D8(0), QNI_D4(8))
QNI_WGMMA_PRODUCT(32, QNI_R0, "%16", "%17", "%18", "%19", "%20", "%21", QNI_D16(0))
QNI_WGMMA_PRODUCT(64, QNI_R0 "," QNI_R16, "%32", "%33", "%34", "%35", "%36", "%37", QNI_D32(0))
QNI_WGMMA_PRODUCT(96, QNI_R0 "," QNI_R16 "," QNI_R32, "%48", "%49", "%50", "%51", "%52", "%53",
                  QNI_D32(0), QNI_D16(32))
QNI_WGMMA_PRODUCT(128, QNI_R0 "," QNI_R16 "," QNI_R32 "," QNI_R48, "%64", "%65", "%66", "%67",
                  "%68", "%69", QNI_D32(0), QNI_D32(32))
QNI_WGMMA_PRODUCT(256, QNI_R0 "," QNI_R16 "," QNI_R32 "," QNI_R48 "," QNI_R64, "%128", "%129",
                  "%130", "%131", "%132", "%133", QNI_D32(0), QNI_D32(32), QNI_D32(64),
                  QNI_D32(96))

#undef QNI_WGMMA_PRODUCT
#undef QNI_WGMMA
#undef QNI_R0
#undef QNI_R16
#undef QNI_R32
#undef QNI_R48
#undef QNI_R64
#undef QNI_D32
#undef QNI_D16
#undef QNI_D4
#undef QNI_D8
/* clang-format on */

} /* namespace qni_wgmma */

#endif
