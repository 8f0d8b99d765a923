/* SPDX-License-Identifier: Apache-2.0 */
/* The eight tiles as the AMX kernels use them: 0..3 hold C as [row half][panel], 4 and 5 the two
 * row halves of A, 6 and 7 two panels of B. C in memory is [32][32] of four bytes. The
 * configuration belongs to the thread: a job configures at its start and calls _tile_release() at
 * its end. Only files compiled for AMX include this. */
#ifndef QNI_CPU_SIMD_AMX_H
#define QNI_CPU_SIMD_AMX_H

#if !defined(__AMX_TILE__) && !defined(__AMXTILE__) /* gcc, clang 14 */
#error "needs the flags of an AMX file: see cmake/isa.cmake"
#endif

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Layout of LDTILECFG's operand, palette 1. */
struct qni_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
};

/* k_bytes: of a row of A in one product, 64 or 32. With 16 rows or fewer the second half is not
 * there; its tiles are configured all the same, since an unused tile costs nothing. */
static inline void qni_amx_configure(int64_t rows, int32_t k_bytes)
{
    struct qni_tile_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    const uint8_t first = (uint8_t)(rows < 16 ? rows : 16);
    const uint8_t second = (uint8_t)(rows <= 16 ? 1 : rows < 32 ? rows - 16 : 16);
    for (int i = 0; i < 8; i++)
        c.bytes_per_row[i] = 64;
    c.rows[0] = c.rows[1] = c.rows[4] = first;
    c.rows[2] = c.rows[3] = c.rows[5] = second;
    c.rows[6] = c.rows[7] = (uint8_t)(k_bytes / 4);
    c.bytes_per_row[4] = c.bytes_per_row[5] = (uint16_t)k_bytes;
    /* gcc 12 declares only 8 of the 64 bytes as read, so that the stores above could vanish. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

static inline void qni_amx_zero(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void qni_amx_store(void *c, bool second)
{
    char *const at = c;
    _tile_stored(0, at, 128);
    _tile_stored(1, at + 64, 128);
    if (second) {
        _tile_stored(2, at + 2048, 128);
        _tile_stored(3, at + 2112, 128);
    }
}

#endif
