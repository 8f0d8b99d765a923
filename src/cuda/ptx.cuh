/* SPDX-License-Identifier: Apache-2.0 */
/* Single instructions that CUDA C++ has no name for, and what stands for them where the GPU has
 * none: asynchronous copies are plain ones below sm_80, programmatic dependent launch is nothing
 * below sm_90. */
#ifndef QNI_CUDA_PTX_CUH
#define QNI_CUDA_PTX_CUH

#include <cuda_runtime.h>

#include <stdint.h>

#define PTX static __device__ __forceinline__

/* ---- bits ------------------------------------------------------------------------------------ */

/* (a & mask) | bits and (a & mask) ^ bits, one instruction each. */
PTX uint32_t ptx_and_or(uint32_t a, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}
PTX uint32_t ptx_and_xor(uint32_t a, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}
/* Byte i of the result is byte (nibble i of order) of the eight bytes low, high. */
PTX uint32_t ptx_bytes(uint32_t low, uint32_t high, uint32_t order)
{
    return __byte_perm(low, high, order);
}

/* The same value, of which the compiler knows nothing: it keeps the register instead of computing
 * the value again wherever it is used, from the thread's number on. */
PTX uint32_t ptx_keep(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* ---- shared memory --------------------------------------------------------------------------- */

PTX uint32_t ptx_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 aligned bytes of global memory to shared memory, past L1; zeros if not valid (from must be an
 * address all the same). Done after ptx_copies_wait() and a barrier. */
PTX void ptx_copy16(uint32_t to, const void *from, bool valid)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
#else
    const uint4 v = valid ? __ldg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
#endif
}
/* The same with its first `bytes` (1 to 15) bytes, zeros behind them, byte by byte and at once. */
PTX void ptx_copy16_bytes(uint32_t to, const void *from, int bytes)
{
    uint32_t v[4] = {0, 0, 0, 0};
    for (int i = 0; i < 16; i++)
        if (i < bytes)
            v[i / 4] |= (uint32_t)((const uint8_t *)from)[i] << (8 * (i % 4));
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}
/* The same (0 to 16 bytes) by the copy engine where there is one. The compiler keeps the count in
 * the address's low bits, so that memcheck may take it for 16 bytes behind the first that count. */
PTX void ptx_copy16_part(uint32_t to, const void *from, int bytes)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
#else
    if (bytes == 16 || bytes == 0)
        ptx_copy16(to, from, bytes != 0);
    else
        ptx_copy16_bytes(to, from, bytes);
#endif
}
/* Ends a group of copies; waits until at most PENDING groups of this thread are on their way. */
PTX void ptx_copies_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> PTX void ptx_copies_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

/* 4 aligned bytes in the same way. */
PTX void ptx_copy4(uint32_t to, const void *from, bool valid)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
#else
    const uint32_t v = valid ? __ldg((const uint32_t *)from) : 0;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
#endif
}

/* Four matrices of 8 x 8 halves: lane l gives the address of row l % 8 of matrix l / 8 and gets
 * elements 2 (l % 4) and the next of row l / 4 of each. */
PTX void ptx_ldmatrix4(uint32_t (&d)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}
PTX void ptx_ldmatrix2(uint32_t (&d)[2], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(address)
                 : "memory");
}
PTX uint4 ptx_shared_load16(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

/* ---- global memory --------------------------------------------------------------------------- */

/* 16 aligned bytes that are read once: weights. They leave L1 to what is read again. Never written
 * while the kernel runs. */
PTX uint4 ptx_load16_once(const void *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* ---- programmatic dependent launch ----------------------------------------------------------- */

/* The launch behind this one may begin. */
PTX void ptx_dependents_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* What the launch before this one wrote is there from here on, and what it reads may be written. */
PTX void ptx_dependency_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#undef PTX
#endif
