/* SPDX-License-Identifier: Apache-2.0 */
/* The order of codes on a GPU, as kernel.h draws it. A block is 64 positions of 16 outputs; lane l
 * = 4 g + t of a warp owns outputs g and g + 8 and, of step s of 16 positions, the four that an
 * mma.sync A fragment wants of it. Plain C without a device: the kernel that does the same on one
 * is repack_sm75.cu. */
#include "layouts.h"

#include <string.h>

#include "../base/error.h"
#include "kernel.h"

_Static_assert((int)QNI_CUDA_UNIT == (int)QNI_UNIT && (int)QNI_CUDA_PANEL == (int)QNI_PANEL &&
                   (int)QNI_CUDA_BLOCK == QNI_UNIT * QNI_MAX_BLOCK_UNITS,
               "kernels and packing cut rows alike");

enum { LANES = 32, STEPS = QNI_CUDA_BLOCK / QNI_CUDA_STEP, PAIRS = 2, WORD = 4 };

/* Position j of lane group t in step s. */
static inline int32_t position(int32_t s, int32_t t, int32_t j)
{
    return QNI_CUDA_STEP * s + 2 * t + (j & 1) * 8 + (j >> 1);
}

/* Where byte j of the word of (lane, step, output g or g + 8) is in a block of byte codes. */
static inline int32_t byte_place(int32_t lane, int32_t s, int32_t high, int32_t j)
{
    return s / 2 * LANES * 4 * WORD + lane * 4 * WORD + (s % 2 * PAIRS + high) * WORD + j;
}

static inline int32_t nibble_place(int32_t lane, int32_t s, int32_t j)
{
    return lane * STEPS * WORD + s * WORD + j;
}

static void store_block(const struct qni_unit_codes *units, int32_t code_bits, uint8_t *out)
{
    for (int32_t lane = 0; lane < LANES; lane++)
        for (int32_t s = 0; s < STEPS; s++)
            for (int32_t j = 0; j < WORD; j++) {
                const int32_t g = lane / 4, p = position(s, lane % 4, j);
                const uint8_t low = units[p / QNI_UNIT].code[g][p % QNI_UNIT];
                const uint8_t high = units[p / QNI_UNIT].code[g + 8][p % QNI_UNIT];
                if (code_bits == 4) {
                    out[nibble_place(lane, s, j)] = (uint8_t)(low | high << 4);
                } else {
                    out[byte_place(lane, s, 0, j)] = low;
                    out[byte_place(lane, s, 1, j)] = high;
                }
            }
}

static void load_block(const uint8_t *in, int32_t code_bits, struct qni_unit_codes *units)
{
    for (int32_t lane = 0; lane < LANES; lane++)
        for (int32_t s = 0; s < STEPS; s++)
            for (int32_t j = 0; j < WORD; j++) {
                const int32_t g = lane / 4, p = position(s, lane % 4, j);
                const uint8_t both = in[nibble_place(lane, s, j)];
                const bool nibbles = code_bits == 4;
                units[p / QNI_UNIT].code[g][p % QNI_UNIT] =
                    nibbles ? both & 15 : in[byte_place(lane, s, 0, j)];
                units[p / QNI_UNIT].code[g + 8][p % QNI_UNIT] =
                    nibbles ? (uint8_t)(both >> 4) : in[byte_place(lane, s, 1, j)];
            }
}

#define QNI_LAYOUT(name, layout, code_bits, is_table, floats, is_compact, codes)                   \
    {name, QNI_CUDA_##layout, code_bits, is_table, floats, is_compact, codes},
static const struct qni_layout layouts[] = {
#include "layouts.inc"
};
#undef QNI_LAYOUT

const struct qni_packing qni_cuda_packing = {
    .device = "GPU",
    .device_kind = QN_CUDA,
    .n_layouts = (int32_t)(sizeof layouts / sizeof *layouts),
    .layouts = layouts,
    .lanes = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15},
    .store = store_block,
    .load = load_block,
};

qn_status qni_cuda_head_fits(const struct qni_packed_head *head, qn_error *err)
{
    if (head->n > INT32_MAX - QNI_PANEL)
        return qni_fail(err, QN_E_LAYOUT, "GPU kernels count outputs in 31 bits; there are %lld",
                        (long long)head->n);
    if (head->units > INT32_MAX / QNI_UNIT)
        return qni_fail(err, QN_E_LAYOUT,
                        "GPU kernels count positions in 31 bits; with its groups padded to units "
                        "of 32 a row has %lld units",
                        (long long)head->units);
    return QN_OK;
}
