/* SPDX-License-Identifier: Apache-2.0 */
/* Loops that do nothing but multiply and add, as fast as one core can: the ceilings of the
 * roofline.
 *
 * Each keeps enough independent accumulators to hide the latency of its instruction (4 or 5 cycles
 * at 2 a cycle ask for 10). The values stay finite and are given back through a volatile, so that
 * no compiler can leave the work out. A row is used only where the context's ISA has its bits. */
#include "measure.h"

static _Thread_local volatile float float_sink; /* each thread has its own */
static _Thread_local volatile int int_sink;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <string.h>

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { CHAINS = 12 };

/* One loop on vectors: `start` makes an accumulator, `step` is the instruction. */
#define VECTOR_LOOP(name, isa, type, start, step, sum, sink, ops)                                  \
    __attribute__((target(isa))) static double name(long rounds)                                   \
    {                                                                                              \
        type a[CHAINS];                                                                            \
        UNROLL for (int i = 0; i < CHAINS; i++) a[i] = start;                                      \
        for (long r = 0; r < rounds; r++) {                                                        \
            UNROLL for (int i = 0; i < CHAINS; i++)                                                \
            {                                                                                      \
                a[i] = step(a[i]);                                                                 \
                __asm__ volatile("" : "+v"(a[i])); /* all chains are equal: hide it */             \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (int i = 0; i < CHAINS; i++) sink = sum(a[i]);                                  \
        return (double)rounds * CHAINS * (ops);                                                    \
    }

/* x * 0.5 + 0.5 stays at 1. */
#define FMA512(x) _mm512_fmadd_ps(x, _mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f))
#define FMA256(x) _mm256_fmadd_ps(x, _mm256_set1_ps(0.5f), _mm256_set1_ps(0.5f))
#define MUL128(x) _mm_add_ps(_mm_mul_ps(x, _mm_set1_ps(0.5f)), _mm_set1_ps(0.5f))
#define LOW512(x) _mm512_cvtss_f32(x)
#define LOW256(x) _mm256_cvtss_f32(x)
VECTOR_LOOP(fma512, "avx512f", __m512, _mm512_set1_ps(1.0f), FMA512, LOW512, float_sink, 32)
VECTOR_LOOP(fma256, "avx2,fma", __m256, _mm256_set1_ps(1.0f), FMA256, LOW256, float_sink, 16)
VECTOR_LOOP(mul128, "sse2", __m128, _mm_set1_ps(1.0f), MUL128, _mm_cvtss_f32, float_sink, 8)

#define ONES512     _mm512_set1_epi8(1)
#define ONES256     _mm256_set1_epi8(1)
#define DOT512(x)   _mm512_dpbusd_epi32(x, ONES512, ONES512)
#define DOT256(x)   _mm256_dpbusd_avx_epi32(x, ONES256, ONES256)
#define FIRST512(x) _mm_cvtsi128_si32(_mm512_castsi512_si128(x))
#define FIRST256(x) _mm_cvtsi128_si32(_mm256_castsi256_si128(x))
VECTOR_LOOP(dot512, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), DOT512, FIRST512,
            int_sink, 128)
VECTOR_LOOP(dot256, "avx2,avxvnni", __m256i, _mm256_setzero_si256(), DOT256, FIRST256, int_sink, 64)

/* Without VNNI a product and its sum are two instructions. The products depend on nothing that the
 * sums do, as in a kernel (sums that were factors, too, gave 95 to 142 Gop/s on one core of a
 * Zen 3, where these always give 165). In 8 steps sums are widened once, or never; that they are
 * widened into themselves saves registers, not time. */
enum { STEPS = 8 };
#define SUM_LOOP(name, isa, type, zero, step, widen, sum, ops)                                     \
    __attribute__((target(isa))) static double name(long rounds)                                   \
    {                                                                                              \
        type a[CHAINS], factor = zero;                                                             \
        UNROLL for (int i = 0; i < CHAINS; i++) a[i] = zero;                                       \
        for (long r = 0; r < rounds; r++) {                                                        \
            for (int s = 0; s < STEPS; s++) {                                                      \
                UNROLL for (int i = 0; i < CHAINS; i++)                                            \
                {                                                                                  \
                    __asm__ volatile("" : "+v"(factor));                                           \
                    a[i] = step(a[i], factor);                                                     \
                    __asm__ volatile("" : "+v"(a[i]));                                             \
                }                                                                                  \
            }                                                                                      \
            UNROLL for (int i = 0; i < CHAINS; i++) a[i] = widen(a[i], a[i]);                      \
        }                                                                                          \
        UNROLL for (int i = 0; i < CHAINS; i++) int_sink = sum(a[i]);                              \
        return (double)rounds * CHAINS * STEPS * (ops);                                            \
    }
#define FIRST(x, y)   (x)
#define MADD512(x, y) _mm512_add_epi32(x, _mm512_madd_epi16(y, _mm512_set1_epi16(1)))
#define MADD256(x, y) _mm256_add_epi32(x, _mm256_madd_epi16(y, _mm256_set1_epi16(1)))
#define BYTE512(x, y) _mm512_add_epi16(x, _mm512_maddubs_epi16(y, ONES512))
#define BYTE256(x, y) _mm256_add_epi16(x, _mm256_maddubs_epi16(y, ONES256))
#define PAIRS256(x, y)                                                                             \
    MADD256(x, _mm256_add_epi16(_mm256_maddubs_epi16(y, ONES256),                                  \
                                _mm256_maddubs_epi16(y, _mm256_set1_epi8(2))))
/* Codes of 4 bits: 8 pairs of products, of at most 2 * 15 * 128, fit 16 bits. Codes of 8 bits: a
 * pair overflows them. So factors have 16 bits, or rows of x lose what two pairs cannot hold, which
 * lists add (AVX2: x86_avx2_int8_outliers.c); the limit is without lists. */
SUM_LOOP(madd512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), MADD512, FIRST, FIRST512, 64)
SUM_LOOP(byte512, "avx512f,avx512bw", __m512i, _mm512_setzero_si512(), BYTE512, MADD512, FIRST512,
         128)
SUM_LOOP(byte256, "avx2", __m256i, _mm256_setzero_si256(), BYTE256, MADD256, FIRST256, 64)
SUM_LOOP(pairs256, "avx2", __m256i, _mm256_setzero_si256(), PAIRS256, FIRST, FIRST256, 128)
#define MADD128(x) _mm_add_epi32(x, _mm_madd_epi16(x, _mm_set1_epi16(1)))
VECTOR_LOOP(madd128, "sse2", __m128i, _mm_setzero_si128(), MADD128, _mm_cvtsi128_si32, int_sink, 16)

#define PAIRS512(x) _mm512_dpbf16_ps(x, (__m512bh)ZEROS512, (__m512bh)ZEROS512)
#define ZEROS512    _mm512_setzero_si512()
VECTOR_LOOP(bf16_512, "avx512f,avx512bf16", __m512, _mm512_set1_ps(1.0f), PAIRS512, LOW512,
            float_sink, 64)

/* Eight tiles of 16 rows x 64 bytes: four accumulators, two of each operand. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

/* In static memory: gcc's _tile_loadconfig() tells the compiler of the first 8 bytes only, so
 * stores to a local one are taken for dead. */
#define EIGHT(x)                                                                                   \
    {                                                                                              \
        x, x, x, x, x, x, x, x, 0                                                                  \
    }
static const struct tile_config config = {1, 0, {0}, EIGHT(64), EIGHT(16)};

/* Operands are numbers (60; 0.0115 as bf16): tiles of zeros are multiplied faster than any others,
 * in 16.0 ns instead of 19.4 for four products, and no work is like that. */
__attribute__((target("amx-tile"))) static void tiles_begin(void)
{
    uint8_t numbers[1024];
    memset(numbers, 0x3c, sizeof numbers);
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, numbers, 64);
    _tile_loadd(5, numbers, 64);
    _tile_loadd(6, numbers, 64);
    _tile_loadd(7, numbers, 64);
}

#define TILE_LOOP(name, isa, step, ops)                                                            \
    __attribute__((target(isa))) static double name(long rounds)                                   \
    {                                                                                              \
        tiles_begin();                                                                             \
        for (long r = 0; r < rounds; r++) {                                                        \
            step(0, 4, 6);                                                                         \
            step(1, 4, 7);                                                                         \
            step(2, 5, 6);                                                                         \
            step(3, 5, 7);                                                                         \
        }                                                                                          \
        _tile_release();                                                                           \
        return (double)rounds * 4 * (ops);                                                         \
    }
TILE_LOOP(tiles_int8, "amx-tile,amx-int8", _tile_dpbssd, 2.0 * 16 * 16 * 64)
TILE_LOOP(tiles_bf16, "amx-tile,amx-bf16", _tile_dpbf16ps, 2.0 * 16 * 16 * 32)
#endif

#if !defined(__x86_64__) || !defined(__GNUC__)
/* What any compiler makes vectors of: 64 sums side by side. */
static double plain_f32(long rounds)
{
    float a[64], b[64];
    for (int i = 0; i < 64; i++) {
        a[i] = (float)i;
        b[i] = 0.5f + float_sink;
    }
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < 64; i++)
            a[i] = a[i] * b[i] + 0.5f;
    }
    for (int i = 0; i < 64; i++)
        float_sink = a[i] * 0.0f;
    return (double)rounds * 128;
}

static double plain_int8(long rounds)
{
    int32_t a[64] = {0};
    int16_t b[64];
    for (int i = 0; i < 64; i++)
        b[i] = (int16_t)((int_sink & 63) + i);
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < 64; i++)
            a[i] = (a[i] & 255) + b[i] * (b[i] + (int16_t)(r & 1));
    }
    for (int i = 0; i < 64; i++)
        int_sink = a[i];
    return (double)rounds * 128;
}
#endif

const struct peak_row peak_rows[] = {
#if defined(__x86_64__) && defined(__GNUC__)
    {PEAK_F32, QN_ISA_AVX512, "vfmadd zmm", fma512},
    {PEAK_F32, QN_ISA_AVX2, "vfmadd ymm", fma256},
    {PEAK_BF16, QN_ISA_AMX_BF16, "tdpbf16ps", tiles_bf16},
    {PEAK_BF16, QN_ISA_BF16_512, "vdpbf16ps zmm", bf16_512},
    {PEAK_BF16, QN_ISA_AVX512, "vfmadd zmm", fma512},
    {PEAK_BF16, QN_ISA_AVX2, "vfmadd ymm", fma256},
    {PEAK_INT8, QN_ISA_AMX_INT8, "tdpbssd", tiles_int8},
    {PEAK_INT8, QN_ISA_VNNI512, "vpdpbusd zmm", dot512},
    {PEAK_INT8, QN_ISA_AVX512, "vpmaddwd zmm", madd512},
    {PEAK_INT8, QN_ISA_AVX_VNNI, "vpdpbusd ymm", dot256},
    {PEAK_INT8, QN_ISA_AVX2, "vpmaddubsw ymm, two to a vpmaddwd", pairs256},
    {PEAK_INT4, QN_ISA_AVX512, "vpmaddubsw zmm", byte512},
    {PEAK_INT4, QN_ISA_AVX2, "vpmaddubsw ymm", byte256},
    {PEAK_F32, 0, "mulps xmm, addps xmm", mul128},
    {PEAK_BF16, 0, "mulps xmm, addps xmm", mul128},
    {PEAK_INT8, 0, "pmaddwd xmm", madd128},
#else
    {PEAK_F32, 0, "plain C", plain_f32},
    {PEAK_BF16, 0, "plain C", plain_f32},
    {PEAK_INT8, 0, "plain C", plain_int8},
#endif
    {PEAK_F32, 0, NULL, NULL},
};
