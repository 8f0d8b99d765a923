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

namespace qni_wgmma
{

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
template <int COUNT> static __device__ __forceinline__ void hold(int32_t (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(d[i])::"memory");
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
/* Of rows of 64 bytes with the 64-byte swizzle: eight are 512 bytes. */
static __device__ __forceinline__ uint64_t narrow_descriptor(uint32_t tile)
{
    return (uint64_t)(32u | 2u << 30) << 32 | tile;
}

/* add 0: d is overwritten. */
template <int TOKENS> struct product;
/* Of signed bytes: 32 positions, sums in int32. Register i of A has, of output g + 8 (i % 2), the
 * four positions that lie at bytes 16 (i / 2) + 4 t of a row of B. */
template <int TOKENS> struct product_of_bytes;
/* Of e4m3, the same with sums in f32 (of fewer than 24 bits within the tensor core). */
template <int TOKENS> struct product_of_e4m3;

/* clang-format off */
#define QNI_D4(T, i) T(d[i]), T(d[i + 1]), T(d[i + 2]), T(d[i + 3])
#define QNI_D8(T, i) QNI_D4(T, i), QNI_D4(T, i + 4)
#define QNI_D16(T, i) QNI_D8(T, i), QNI_D8(T, i + 8)
#define QNI_D32(T, i) QNI_D16(T, i), QNI_D16(T, i + 16)
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

QNI_WGMMA_PRODUCT(8, "%0,%1,%2,%3", "%4", "%5", "%6", "%7", "%8", "%9", QNI_D4("+f", 0))
QNI_WGMMA_PRODUCT(16, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "%11", "%12", "%13",
                  QNI_D8("+f", 0))
QNI_WGMMA_PRODUCT(24, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", "%12", "%13", "%14", "%15", "%16",
                  "%17", QNI_D8("+f", 0), QNI_D4("+f", 8))
QNI_WGMMA_PRODUCT(32, QNI_R0, "%16", "%17", "%18", "%19", "%20", "%21",
                  QNI_D16("+f", 0))
QNI_WGMMA_PRODUCT(64, QNI_R0 "," QNI_R16, "%32", "%33", "%34", "%35", "%36", "%37",
                  QNI_D32("+f", 0))
QNI_WGMMA_PRODUCT(96, QNI_R0 "," QNI_R16 "," QNI_R32, "%48", "%49", "%50", "%51", "%52", "%53",
                  QNI_D32("+f", 0), QNI_D16("+f", 32))
QNI_WGMMA_PRODUCT(128, QNI_R0 "," QNI_R16 "," QNI_R32 "," QNI_R48, "%64", "%65", "%66", "%67",
                  "%68", "%69", QNI_D32("+f", 0), QNI_D32("+f", 32))
QNI_WGMMA_PRODUCT(256, QNI_R0 "," QNI_R16 "," QNI_R32 "," QNI_R48 "," QNI_R64, "%128", "%129",
                  "%130", "%131", "%132", "%133", QNI_D32("+f", 0), QNI_D32("+f", 32),
                  QNI_D32("+f", 64), QNI_D32("+f", 96))

#define QNI_WGMMA_BYTES(TOKENS, LIST, A0, A1, A2, A3, DESC, ADD, ...)                              \
    template <> struct product_of_bytes<TOKENS> {                                                  \
        template <bool IS_NARROW>                                                                  \
        static __device__ __forceinline__ void run(int32_t (&d)[TOKENS / 2], const uint32_t *a,    \
                                                   uint32_t tile, int32_t add)                     \
        {                                                                                          \
            asm volatile("{.reg .pred add; setp.ne.s32 add, " ADD ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #TOKENS "k32.s32.s8.s8 "              \
                         "{" LIST "}, {" A0 "," A1 "," A2 "," A3 "}, " DESC ", add;}"              \
                         : __VA_ARGS__                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),                             \
                           "l"(IS_NARROW ? narrow_descriptor(tile) : descriptor(tile)), "r"(add)   \
                         : "memory");                                                              \
        }                                                                                          \
    };

QNI_WGMMA_BYTES(8, "%0,%1,%2,%3", "%4", "%5", "%6", "%7", "%8", "%9", QNI_D4("+r", 0))
QNI_WGMMA_BYTES(16, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "%11", "%12", "%13",
                QNI_D8("+r", 0))
QNI_WGMMA_BYTES(32, QNI_R0, "%16", "%17", "%18", "%19", "%20", "%21", QNI_D16("+r", 0))
QNI_WGMMA_BYTES(64, QNI_R0 "," QNI_R16, "%32", "%33", "%34", "%35", "%36", "%37",
                QNI_D32("+r", 0))
QNI_WGMMA_BYTES(128, QNI_R0 "," QNI_R16 "," QNI_R32 "," QNI_R48, "%64", "%65", "%66", "%67",
                "%68", "%69", QNI_D32("+r", 0), QNI_D32("+r", 32))
QNI_WGMMA_BYTES(256, QNI_R0 "," QNI_R16 "," QNI_R32 "," QNI_R48 "," QNI_R64, "%128", "%129",
                "%130", "%131", "%132", "%133", QNI_D32("+r", 0), QNI_D32("+r", 32),
                QNI_D32("+r", 64), QNI_D32("+r", 96))

#define QNI_WGMMA_E4M3(TOKENS, LIST, A0, A1, A2, A3, DESC, ADD, ...)                               \
    template <> struct product_of_e4m3<TOKENS> {                                                   \
        static __device__ __forceinline__ void run(float (&d)[TOKENS / 2], const uint32_t *a,      \
                                                   uint32_t tile, int32_t add)                     \
        {                                                                                          \
            asm volatile("{.reg .pred add; setp.ne.s32 add, " ADD ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #TOKENS "k32.f32.e4m3.e4m3 "          \
                         "{" LIST "}, {" A0 "," A1 "," A2 "," A3 "}, " DESC ", add, 1, 1;}"        \
                         : __VA_ARGS__                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(tile)),      \
                           "r"(add)                                                                \
                         : "memory");                                                              \
        }                                                                                          \
    };

QNI_WGMMA_E4M3(16, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "%11", "%12", "%13",
               QNI_D8("+f", 0))
QNI_WGMMA_E4M3(32, QNI_R0, "%16", "%17", "%18", "%19", "%20", "%21", QNI_D16("+f", 0))
QNI_WGMMA_E4M3(64, QNI_R0 "," QNI_R16, "%32", "%33", "%34", "%35", "%36", "%37",
               QNI_D32("+f", 0))
QNI_WGMMA_E4M3(128, QNI_R0 "," QNI_R16 "," QNI_R32 "," QNI_R48, "%64", "%65", "%66", "%67",
               "%68", "%69", QNI_D32("+f", 0), QNI_D32("+f", 32))

#undef QNI_WGMMA_E4M3
#undef QNI_WGMMA_BYTES
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
