/* SPDX-License-Identifier: Apache-2.0 */
/* The order of codes on the CPU, as kernel.h draws it: four positions of an output are a 32-bit
 * lane, 16 lanes a vector. Everything else about packing is src/quant/pack.c. */
#include <string.h>

#include "../../base/compiler.h"
#include "../backend.h"
#include "../layouts.h"
#include "../simd/portable.h"
#include "product.h"

static void store_unit(const struct qni_unit_codes *unit, int32_t code_bits, uint8_t *out)
{
    for (int32_t r = 0; r < (code_bits == 4 ? 4 : 8); r++)
        for (int32_t j = 0; j < QNI_PANEL; j++, out += 4) {
            uint32_t word, high;
            memcpy(&word, &unit->code[j][4 * r], sizeof word);
            if (code_bits == 4) {
                memcpy(&high, &unit->code[j][16 + 4 * r], sizeof high);
                word |= high << 4; /* nibbles: nothing crosses a byte */
            }
            memcpy(out, &word, sizeof word);
        }
}

/* Whole units of rows in memory: the same bytes, by vectors of four words of an output, which
 * become words of four outputs. For sums two codes are added while they are bytes. */

QNI_TEMPLATE qni_u32x4 load_words(const uint8_t *at, qni_u8x16 add)
{
    qni_u8x16 v;
    memcpy(&v, at, sizeof v);
    return (qni_u32x4)(v + add);
}

/* Four outputs of a unit. */
QNI_TEMPLATE void store_four(const uint8_t *const rows[4], int64_t at, int32_t code_bits,
                             qni_u8x16 add, uint8_t *out, int32_t sums[4])
{
    const qni_u32x4 bytes = {0x00ff00ff, 0x00ff00ff, 0x00ff00ff, 0x00ff00ff};
    const qni_u32x4 nibbles = {0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f};
    qni_u32x4 sum = {0};
    for (int32_t half = 0; half < (code_bits == 4 ? 1 : 2); half++) {
        qni_u32x4 v[4], part = {0};
        for (int32_t j = 0; j < 4; j++) {
            v[j] = load_words(rows[j] + at + 16 * half, add);
            if (code_bits == 4)
                v[j] |= load_words(rows[j] + at + 16, add) << 4;
        }
        qni_u32x4_transpose(v);
        for (int32_t r = 0; r < 4; r++) {
            memcpy(out + (4 * half + r) * 4 * QNI_PANEL, &v[r], sizeof v[r]);
            part += code_bits == 4 ? (v[r] & nibbles) + (v[r] >> 4 & nibbles)
                                   : (v[r] & bytes) + (v[r] >> 8 & bytes);
        }
        sum += code_bits == 4 ? (part & bytes) + (part >> 8 & bytes) : part;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    memcpy(sums, &sum, sizeof sum);
}

static void store_rows(const uint8_t *const rows[QNI_PANEL], int64_t n, int32_t code_bits,
                       uint8_t add, uint8_t *out, int32_t (*sums)[QNI_PANEL])
{
    const size_t unit_bytes = (size_t)(QNI_UNIT * QNI_PANEL / 8 * code_bits);
    const qni_u8x16 all = (qni_u8x16){0} + add;
    for (int64_t i = 0; i < n; i++, out += unit_bytes)
        for (int32_t j = 0; j < QNI_PANEL; j += 4) {
            if (code_bits == 4)
                store_four(rows + j, i * QNI_UNIT, 4, all, out + 4 * j, sums[i] + j);
            else
                store_four(rows + j, i * QNI_UNIT, 8, all, out + 4 * j, sums[i] + j);
        }
}

static void load_unit(const uint8_t *in, int32_t code_bits, struct qni_unit_codes *unit)
{
    for (int32_t r = 0; r < (code_bits == 4 ? 4 : 8); r++)
        for (int32_t j = 0; j < QNI_PANEL; j++, in += 4) {
            uint32_t word;
            memcpy(&word, in, sizeof word);
            const uint32_t low = code_bits == 4 ? word & 0x0f0f0f0fu : word;
            const uint32_t high = word >> 4 & 0x0f0f0f0fu;
            memcpy(&unit->code[j][4 * r], &low, sizeof low);
            if (code_bits == 4)
                memcpy(&unit->code[j][16 + 4 * r], &high, sizeof high);
        }
}

#define QNI_LAYOUT(name, layout, code_bits, is_table, floats, is_compact, codes)                   \
    {name, QNI_LAYOUT_##layout, code_bits, is_table, floats, is_compact, codes},
static const struct qni_layout layouts[] = {
#include "../layouts.inc"
};
#undef QNI_LAYOUT

const struct qni_packing qni_cpu_packing = {
    .device = "CPU",
    .device_kind = QN_CPU,
    .n_layouts = (int32_t)(sizeof layouts / sizeof *layouts),
    .layouts = layouts,
    .lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    .store = store_unit,
    .store_rows = store_rows,
    .load = load_unit,
    .float_place = qni_layout_float_place,
};

/* For weights without a wish: does the processor have a kernel that reads compact ones as they lie?
 * Where it has none, panels are made wide before each call, which costs more than the bytes that
 * compact weights save (lab/cpu/NOTES.md); so do tiles of AMX: nvfp4 took them twice as long. */
static struct qni_packing packing_for(const qn_ctx *ctx)
{
    struct qni_packing packing = qni_cpu_packing;
    const struct qni_matmul_kernel *kernel;
    const bool has_tiles = (ctx->isa & QN_ISA_AMX_INT8) != 0; /* read wide ones only */
    for (int32_t i = 0; !has_tiles && (kernel = qni_matmul_kernel_at(i)) != NULL; i++)
        packing.prefers_compact |= (kernel->traits & QNI_READS_COMPACT) != 0 &&
                                   (kernel->needs & ~ctx->isa) == 0;
    return packing;
}

qn_status qni_cpu_pack_bytes(const qn_ctx *ctx, const struct qn_weight *w,
                             const qn_pack_options *options, size_t *bytes, qn_error *err)
{
    const struct qni_packing packing = packing_for(ctx);
    struct qni_pack p;
    QNI_TRY(qni_pack_plan(&packing, w, options, &p, err));
    *bytes = (size_t)p.head.bytes;
    return QN_OK;
}

qn_status qni_cpu_pack(const qn_ctx *ctx, const struct qn_weight *w, const qn_pack_options *options,
                       struct qn_packed **packed, qn_error *err)
{
    const struct qni_packing packing = packing_for(ctx);
    return qni_pack_host(ctx, &packing, w, options, packed, err);
}

qn_status qni_cpu_pack_into(const qn_ctx *ctx, const struct qn_weight *w,
                            const qn_pack_options *options, void *buffer, size_t buffer_bytes,
                            struct qn_packed **packed, qn_error *err)
{
    const struct qni_packing packing = packing_for(ctx);
    return qni_pack_host_into(ctx, &packing, w, options, buffer, buffer_bytes, packed, err);
}

qn_status qni_cpu_pack_source(const qn_ctx *ctx, struct qni_weight_source *source,
                              const qn_pack_options *options, struct qn_packed **packed,
                              qn_error *err)
{
    const struct qni_packing packing = packing_for(ctx);
    return qni_pack_source(ctx, &packing, source, options, packed, err);
}

qn_status qni_cpu_unpack(const qn_ctx *ctx, const struct qn_packed *packed,
                         struct qn_weight **weight, qn_error *err)
{
    return qni_unpack_host(ctx, &qni_cpu_packing, packed, weight, err);
}

void qni_cpu_packed_rows(const qn_ctx *ctx, const struct qn_packed *packed,
                         const struct qni_row_lookup *rows)
{
    qni_packed_rows(ctx, &qni_cpu_packing, packed, rows);
}

qn_status qni_cpu_packed_check(const struct qn_packed *packed, qn_error *err)
{
    return qni_packed_check(&qni_cpu_packing, packed, err);
}
