/* SPDX-License-Identifier: Apache-2.0 */
/* Packing for a GPU, without one: memory of the device is the host's, copies are memcpy, and the
 * kernel that puts codes in their places is said again here, literally as src/cuda/kernel.h draws
 * the order. So three statements of that order are compared with each other: the host's packer, the
 * path through the device, and the contract. The fourth, the kernel itself, needs a GPU. */
#include "unit.h"

#include <math.h>

#include "cuda/backend.h"
#include "cuda/device.h"
#include "cuda/layouts.h"
#include "cuda/weights.h"
#include "quant/magnitude.h"
#include "random_weight.h"

/* ---- a device -------------------------------------------------------------------------------- */

static struct {
    int64_t calls, fail_at; /* the call that fails; 0: none */
    int64_t live, most_bytes, launches;
} device;

static qn_status count_call(qn_status status, qn_error *err)
{
    if (++device.calls != device.fail_at)
        return QN_OK;
    if (err != NULL)
        err->status = status;
    return status;
}

qn_status qni_cuda_alloc(const qn_ctx *ctx, size_t bytes, void **memory, qn_error *err)
{
    (void)ctx;
    assert_true(bytes > 0);
    *memory = NULL;
    if (count_call(QN_E_MEMORY, err) != QN_OK)
        return QN_E_MEMORY;
    device.live++;
    if ((int64_t)bytes > device.most_bytes)
        device.most_bytes = (int64_t)bytes;
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(*memory);
    memset(*memory, 0xa5, bytes);
    return QN_OK;
}

qn_status qni_cuda_free(int32_t index, void *memory)
{
    assert_int_equal(index, 3);
    device.live -= memory != NULL;
    free(memory);
    return QN_OK;
}

qn_status qni_cuda_upload(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                          qn_error *err)
{
    (void)ctx;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return count_call(QN_E_DEVICE, err);
}

qn_status qni_cuda_download(const qn_ctx *ctx, void *to, const void *from, size_t bytes,
                            qn_error *err)
{
    return qni_cuda_upload(ctx, to, from, bytes, err);
}

qn_status qni_cuda_begin(const qn_ctx *ctx, struct qni_cuda_scope *scope, qn_error *err)
{
    (void)ctx;
    memset(scope, 0, sizeof *scope);
    return count_call(QN_E_DEVICE, err);
}

qn_status qni_cuda_end(const qn_ctx *ctx, const struct qni_cuda_scope *scope, int32_t launched,
                       qn_error *err)
{
    (void)ctx;
    (void)scope;
    assert_int_equal(launched, 0);
    return count_call(QN_E_DEVICE, err);
}

/* ---- the contract, word for word ------------------------------------------------------------- */

static int contract_position(int s, int t, int j)
{
    const int of_j[4] = {2 * t, 2 * t + 8, 2 * t + 1, 2 * t + 9};
    return 16 * s + of_j[j];
}

static uint32_t word_at(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

struct place {
    int s, t, j;
};
static struct place contract_place(int position)
{
    for (int s = 0; s < 4; s++)
        for (int t = 0; t < 4; t++)
            for (int j = 0; j < 4; j++)
                if (contract_position(s, t, j) == position)
                    return (struct place){s, t, j};
    fail_msg("position %d is nowhere", position);
    return (struct place){0, 0, 0};
}

/* The stored code of an output (of the 16) and a position (of the 64) of a block. */
static int contract_code(const uint8_t *block, int bits, int output, struct place p)
{
    const int l = 4 * (output % 8) + p.t, is_second = output / 8;
    if (bits == 4)
        return word_at(block + 16 * l + 4 * p.s) >> 4 * (2 * p.j + is_second) & 15;
    const uint8_t *half = block + 512 * (p.s / 2);
    const int word = 2 * (p.s % 2) + is_second;
    return word_at(half + 16 * l + 4 * word) >> 8 * p.j & 255;
}

/* Of a step, the four A registers of mma.m16n8k16 in halves are (w >> 4 i) & 0x000f000f: rows g, g
 * + 8, g, g + 8 and columns 2 t, 2 t, 2 t + 8, 2 t + 8 and the next (PTX ISA, "Matrix fragments for
 * mma.m16n8k16"). */
static void nibbles_are_fragments(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 4; i++) {
            const int nibble_low = i, nibble_high = i + 4;
            const int column = 2 * t + (i / 2) * 8;
            assert_int_equal(contract_position(0, t, nibble_low / 2), column);
            assert_int_equal(contract_position(0, t, nibble_high / 2), column + 1);
            assert_int_equal(nibble_low % 2, i % 2); /* row g, or g + 8 */
            assert_int_equal(nibble_high % 2, i % 2);
        }
}

static int64_t canonical_of(const int64_t *runs, int32_t n_runs, int64_t position)
{
    for (int32_t i = 0; i < n_runs; i++)
        if (position >= runs[3 * i] && position < runs[3 * i] + runs[3 * i + 2])
            return runs[3 * i + 1] + position - runs[3 * i];
    return -1;
}

static void put_bits(uint8_t *block, int bits, int output, struct place p, int code)
{
    const int l = 4 * (output % 8) + p.t, is_second = output / 8;
    const int at = bits == 4 ? 16 * l + 4 * p.s + p.j
                             : 512 * (p.s / 2) + 16 * l + 4 * (2 * (p.s % 2) + is_second) + p.j;
    const int shift = bits == 4 ? 4 * is_second : 0;
    block[at] = (uint8_t)(block[at] | code << shift);
}

/* The sums of the values of a row of codes, segment by segment, where tables have that row. */
static void add_up(const struct qni_cuda_repack *args, const struct qni_cuda_repack_sums *to)
{
    for (int64_t lane = 0; to->sums != NULL && lane < 16 * (int64_t)args->panels_total; lane++)
        for (int64_t p = 0; p < 32 * (int64_t)to->units; p++) {
            const int64_t k = canonical_of(args->runs, args->n_runs, p), unit = p / 32;
            if (args->outputs[lane] < 0 || k < 0)
                continue;
            const int code = args->codes[args->outputs[lane] * args->k + k];
            const int64_t segment = unit / to->group_units * to->segments_per_group +
                                    unit % to->group_units / to->segment_units;
            to->sums[(lane / 16 * to->n_segments + segment) * 16 + lane % 8 * 2 + lane % 16 / 8] +=
                args->is_table ? args->value[code] : code - args->half;
        }
}

int32_t qni_cuda_repack_sm75(const struct qni_cuda_repack *args,
                             const struct qni_cuda_launch *launch)
{
    const int bits = args->layout == QNI_CUDA_Q4FRAG || args->layout == QNI_CUDA_T4FRAG ? 4 : 8;
    const int64_t bytes = 128 * bits;
    (void)launch;
    device.launches++;
    memset(args->packed, 0, (size_t)(args->panels_total * args->blocks * bytes));
    for (int64_t block = 0; block < args->blocks; block++)
        for (int position = 0; position < 64; position++) {
            const int64_t k = canonical_of(args->runs, args->n_runs, 64 * block + position);
            const struct place place = contract_place(position);
            for (int64_t lane = 0; lane < 16 * (int64_t)args->panels_total; lane++) {
                const int64_t output = args->outputs[lane];
                const int code = output < 0 || k < 0
                                     ? args->padding
                                     : args->codes[output * args->k + k] + args->shift;
                uint8_t *at = args->packed + (lane / 16 * args->blocks + block) * bytes;
                put_bits(at, bits, (int)(lane % 16), place, code);
            }
        }
    add_up(args, &args->sums[0]);
    add_up(args, &args->sums[1]);
    return 0;
}

/* ---- weights --------------------------------------------------------------------------------- */

static void assert_same(const char *spec, const struct qn_weight *a, const struct qn_weight *b)
{
    const size_t groups = (size_t)(a->n * a->n_groups) * 4, k = (size_t)a->k * 4;
    const bool same =
        a->n == b->n && a->k == b->k && a->ci == b->ci && a->n_groups == b->n_groups &&
        memcmp(&a->format, &b->format, sizeof a->format) == 0 &&
        (a->zero == NULL) == (b->zero == NULL) && (a->offset == NULL) == (b->offset == NULL) &&
        (a->perm == NULL) == (b->perm == NULL) && (a->table == NULL) == (b->table == NULL) &&
        memcmp(a->codes, b->codes, (size_t)(a->n * a->k)) == 0 &&
        memcmp(a->scale, b->scale, groups) == 0 &&
        (a->zero == NULL || memcmp(a->zero, b->zero, groups) == 0) &&
        (a->offset == NULL || memcmp(a->offset, b->offset, groups) == 0) &&
        (a->perm == NULL || memcmp(a->perm, b->perm, k) == 0) &&
        (a->prescale == NULL || memcmp(a->prescale, b->prescale, k) == 0) &&
        (a->table == NULL || memcmp(a->table, b->table, sizeof(float) << a->format.bits) == 0);
    if (!same)
        fail_msg("%s, %lld x %lld: unpacked weights differ", spec, (long long)a->n,
                 (long long)a->k);
}

static void start(struct unit_ctx *u)
{
    memset(&device, 0, sizeof device);
    unit_ctx_start(u, 2);
    u->ctx.device = (qn_device){QN_CUDA, 3};
}

static void stop(struct unit_ctx *u)
{
    assert_int_equal(device.live, 0);
    unit_ctx_stop(u);
}

static qn_pack_options options_of(const char *layout)
{
    qn_pack_options o;
    qn_pack_options_init(&o);
    o.layout = layout;
    return o;
}

/* Everything that must hold of a packed weight, whose blob is in host memory all the same. */
static void check_codes(const struct qn_weight *w, const struct qn_packed *packed)
{
    const struct qni_packed_head *h = packed->head;
    const uint8_t *codes = qni_section(packed, QNI_SECTION_CODES);
    const int64_t *runs = qni_section(packed, QNI_SECTION_RUNS);
    const int bits =
        h->section[QNI_SECTION_CODES].bytes == (uint64_t)(h->panels * h->units) * 256 ? 4 : 8;
    const int shift = w->table != NULL ? 0 : (1 << (bits - 1)) - (1 << (w->format.bits - 1));
    assert_int_equal(h->units % 2, 0);
    for (int64_t panel = 0; panel < h->panels; panel++)
        for (int64_t p = 0; p < 32 * h->units; p++) {
            const uint8_t *block = codes + (panel * h->units / 2 + p / 64) * 128 * bits;
            const struct place place = contract_place((int)(p % 64));
            const int64_t k = canonical_of(runs, h->n_runs, p);
            for (int j = 0; j < 16; j++) {
                const int stored = contract_code(block, bits, j, place);
                const int64_t output = qni_output_of(h, panel, j);
                if (output >= 0 && k >= 0)
                    assert_int_equal(stored, w->codes[output * w->k + k] + shift);
                else if (w->table == NULL)
                    assert_int_equal(stored, 1 << (bits - 1));
            }
        }
}

static float scale_at(const struct qn_packed *packed, size_t section, int is_f16, int64_t at)
{
    const uint8_t *from = packed->blob + section;
    if (!is_f16)
        return ((const float *)(const void *)from)[at];
    const uint16_t half = ((const uint16_t *)(const void *)from)[at]; /* positive, normal */
    const uint32_t as_f32 = (uint32_t)(half & 0x7fff) << 13;
    float v;
    memcpy(&v, &as_f32, sizeof v);
    return (half >> 15 ? -v : v) * 0x1p112f;
}

/* Outputs 0, 8, 1, 9, ...: lane group g has its two side by side at 2 g. */
static void check_tables(const struct qn_weight *w, const struct qn_packed *packed)
{
    const struct qni_packed_head *h = packed->head;
    const struct qni_cuda_weights v = qni_cuda_weights_of(packed, QNI_CUDA_READS_Q8);
    const int8_t *zero = (const int8_t *)packed->blob + v.zero;
    const int32_t *sums = (const int32_t *)(const void *)(packed->blob + v.sums);
    for (int64_t panel = 0; panel < h->panels; panel++)
        for (int64_t g = 0; g < v.n_groups; g++)
            for (int i = 0; i < 16; i++) {
                const int64_t at = (panel * v.n_groups + g) * 16 + i;
                const int64_t j = qni_output_of(h, panel, i / 2 + i % 2 * 8);
                const int64_t from = j * w->n_groups + g;
                assert_true(scale_at(packed, v.scale, v.scale_is_f16, at) ==
                            (j < 0 ? 0.0f : w->scale[from]));
                if (v.shift == QNI_CUDA_SHIFT_ZERO)
                    assert_int_equal(zero[at], j < 0 ? 0 : w->zero[from]);
                if (v.shift == QNI_CUDA_SHIFT_OFFSET)
                    assert_true(scale_at(packed, v.offset, v.scale_is_f16, at) ==
                                (j < 0 ? 0.0f : qni_group_offset(w, j, g)));
            }
    /* Sums of a row are those of its segments. */
    for (int64_t panel = 0; panel < h->panels && v.sums != 0 && w->table == NULL; panel++)
        for (int i = 0; i < 16; i++) {
            const int64_t j = qni_output_of(h, panel, i / 2 + i % 2 * 8);
            int64_t sum = 0, wanted = 0;
            for (int64_t s = 0; s < v.n_segments; s++)
                sum += sums[(panel * v.n_segments + s) * 16 + i];
            for (int64_t p = 0; p < w->k && j >= 0; p++)
                wanted += w->codes[j * w->k + p] - (1 << (w->format.bits - 1));
            assert_int_equal(sum, wanted);
        }
}

/* ---- magnitudes ------------------------------------------------------------------------------ */

/* Canonical and packed weights agree, and no weight is larger; nor is there more than the slack of
 * taking each largest number for itself. */
static void check_magnitude(const struct qn_weight *w, const struct qn_packed *packed)
{
    const double magnitude = qni_weight_magnitude(w);
    double most = 0.0;
    assert_true(qni_packed_magnitude(packed->head, packed->blob) == magnitude);
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t p = 0; p < w->k; p++) {
            const int64_t i = row * w->n_groups + qni_group_of(&w->format, p, w->ci);
            const double value = (double)qni_code_value(w, w->codes[row * w->k + p]);
            double v = (double)w->scale[i] * (value - (w->zero != NULL ? w->zero[i] : 0));
            v += w->format.shift == QN_SHIFT_MIN
                     ? (double)w->scale[i] * (double)(1 << (w->format.bits - 1))
                     : 0.0;
            v += w->offset != NULL && w->zero == NULL ? (double)w->offset[i] : 0.0;
            v *= w->prescale != NULL ? (double)w->prescale[w->perm != NULL ? w->perm[p] : p] : 1.0;
            most = v > most ? v : -v > most ? -v : most;
        }
    assert_true(most <= magnitude);
    for (qn_dtype type = QN_F16; type <= QN_BF16; type++) {
        const int32_t e = qni_magnitude_exponent(magnitude, type);
        const double top = type == QN_F16 ? 0x1p15 : 0x1p7;
        double scaled = magnitude;
        for (int32_t i = 0; i < e; i++)
            scaled *= 2.0;
        for (int32_t i = 0; i < -e; i++)
            scaled /= 2.0;
        assert_true(scaled < top && (magnitude == 0.0 || e == 126 || scaled >= top / 2));
    }
}

/* Products one by one: exact where it is said, and said where digits allow it at all. */
static bool is_short(double v, int32_t digits, double least)
{
    int exponent;
    const double m = ldexp(frexp(v, &exponent), digits);
    return v == 0.0 || (m == rint(m) && fabs(v) >= least);
}

static void check_exact(const struct qn_weight *w, const struct qn_packed *packed)
{
    const int32_t exact = qni_weight_exact(w);
    assert_int_equal(qni_packed_exact(packed->head, packed->blob), exact);
    for (qn_dtype type = QN_F16; type <= QN_BF16; type++) {
        const bool is_f16 = type == QN_F16;
        if ((exact & (is_f16 ? QNI_EXACT_F16 : QNI_EXACT_BF16)) == 0)
            continue;
        const double times = ldexp(1.0, qni_magnitude_exponent(qni_weight_magnitude(w), type));
        for (int64_t row = 0; row < w->n; row++)
            for (int64_t p = 0; p < w->k; p++) {
                const int64_t i = row * w->n_groups + qni_group_of(&w->format, p, w->ci);
                const double value = (double)qni_code_value(w, w->codes[row * w->k + p]);
                const double v = (double)w->scale[i] * (value - (w->zero != NULL ? w->zero[i] : 0));
                assert_true(is_short(v * times, is_f16 ? 11 : 8, 0x1p-14));
            }
    }
}

static void short_scales_are_exact(void **state)
{
    /* Scales of 8 digits and values of 3, or of 4 with zero points. */
    static const struct {
        const char *format;
        float scale, other;
        int32_t exact;
    } cases[] = {
        {"int4:g32", 0x1.fep-7f, 0x1p-7f, QNI_EXACT_F16},
        {"int4:g32", 0x1.fap-7f, 0x1p-7f, QNI_EXACT_F16},
        {"int4:g32", 0x1.ffp-7f, 0x1p-7f, 0},
        {"int4:g32", 0x1.fp-7f, 0x1p-7f, QNI_EXACT_F16 | QNI_EXACT_BF16},
        {"int4:g32", 0x1.8p-7f, 0x1p-32f, QNI_EXACT_F16}, /* 2^-32 times 2^18 is 2^-14 */
        {"int4:g32", 0x1.8p-7f, 0x1p-33f, 0},
        {"int4:g32", 0.0f, 0.0f, QNI_EXACT_F16 | QNI_EXACT_BF16},
        {"int4:g32", INFINITY, 1.0f, 0},
        {"int4:g32:zp", 0x1.fcp-7f, 0x1p-7f, QNI_EXACT_F16},
        {"int4:g32:zp", 0x1.fep-7f, 0x1p-7f, 0},
        {"int8:g32", 0x1.ep-7f, 0x1p-7f, QNI_EXACT_F16},
        {"int8:g32", 0x1.fp-7f, 0x1p-7f, 0},
        {"int4:g32:off", 1.0f, 1.0f, 0},
        {"nf4:g32", 1.0f, 1.0f, 0},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct unit_ctx u;
        const struct random_shape s = {16, 64, 1, 1, 1};
        start(&u);
        struct qn_weight *w = random_weight(&u.ctx, cases[c].format, s, 1, false, false);
        for (int64_t i = 0; i < w->n * w->n_groups; i++) {
            w->scale[i] = i == 5 ? cases[c].scale : cases[c].other;
            if (w->zero != NULL)
                w->zero[i] = (int32_t)(i % 16) - 8;
        }
        assert_int_equal(qni_weight_exact(w), cases[c].exact);
        qn_weight_destroy(w);
        stop(&u);
    }
}

static void exponents_stay_normal(void **state)
{
    (void)state;
    assert_int_equal(qni_magnitude_exponent(0.0, QN_F16), 0);
    assert_int_equal(qni_magnitude_exponent(1.0, QN_F16), 14); /* 1 < 2^1 */
    assert_int_equal(qni_magnitude_exponent(0x1.fffp0, QN_BF16), 6);
    assert_int_equal(qni_magnitude_exponent(0x1p-149, QN_F16), 126);
    assert_int_equal(qni_magnitude_exponent(0x1p300, QN_F16), -126);
}

static void every_format_goes_round(void **state)
{
    (void)state;
    for (int f = 0; f < N_RANDOM_SPECS; f++)
        for (int s = 0; s < N_RANDOM_SHAPES; s++) {
            struct unit_ctx u;
            struct qn_packed *host, *packed;
            struct qn_weight *back, *again;
            qn_error err = {QN_OK, -1, ""};
            start(&u);
            struct qn_weight *w =
                random_weight(&u.ctx, random_specs[f], random_shapes[s], (uint64_t)(100 * f + s),
                              s % 3 == 1, (f + s) % 2 == 0);
            qn_pack_options o = options_of(NULL);
            o.x_block = s % 4 == 1 ? 32 : 0;
            o.without_sums = s % 5 == 4;
            if (qni_is_float_format(&w->format)) { /* for CPUs alone */
                assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, &err), QN_E_LAYOUT);
                assert_non_null(strstr(err.text, "no GPU layout holds floats of "));
                qn_weight_destroy(w);
                stop(&u);
                continue;
            }
            assert_int_equal(qni_pack_host(&u.ctx, &qni_cuda_packing, w, &o, &host, &err), QN_OK);
            assert_int_equal(qni_packed_head_check(host->head, host->head->bytes, &err), QN_OK);
            check_codes(w, host);
            check_tables(w, host);
            check_magnitude(w, host);
            check_exact(w, host);
            assert_int_equal(qni_unpack_host(&u.ctx, &qni_cuda_packing, host, &back, &err), QN_OK);
            assert_same(random_specs[f], w, back);

            size_t bytes = 0;
            assert_int_equal(qni_cuda_pack_bytes(&u.ctx, w, &o, &bytes, &err), QN_OK);
            assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, &err), QN_OK);
            assert_int_equal(bytes, host->head->bytes);
            assert_memory_equal(packed->blob, host->blob, bytes);
            assert_memory_equal(packed->head, host->head, sizeof *host->head);
            assert_true(packed->magnitude == qni_weight_magnitude(w));
            assert_int_equal(packed->exact, qni_weight_exact(w));
            assert_int_equal(qni_cuda_unpack(&u.ctx, packed, &again, &err), QN_OK);
            assert_same(random_specs[f], w, again);
            packed->release(packed);
            host->release(host);
            qn_weight_destroy(w);
            qn_weight_destroy(back);
            qn_weight_destroy(again);
            stop(&u);
        }
}

/* ---- what the head says ---------------------------------------------------------------------- */

static void zero_points_stay_integers(void **state)
{
    (void)state;
    struct unit_ctx u;
    struct qn_packed *packed;
    const struct random_shape s = {16, 64, 1, 1, 1};
    const qn_pack_options o = options_of(NULL);
    start(&u);
    struct qn_weight *w = random_weight(&u.ctx, "int4:g32:zp", s, 1, false, true);
    w->scale[0] = 0x1.004p0f; /* in f16; -7 times that is not */
    w->zero[0] = 7;
    assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, NULL), QN_OK);
    struct qni_cuda_weights v = qni_cuda_weights_of(packed, QNI_CUDA_READS_F16);
    assert_int_equal(v.shift, QNI_CUDA_SHIFT_ZERO);
    assert_int_equal(v.scale_is_f16, 1);
    assert_true(v.zero != 0 && v.offset == 0);
    assert_int_equal(packed->head->section[QNI_SECTION_OFFSET].bytes, 0);
    packed->release(packed);
    for (int beyond = 0; beyond < 2; beyond++) {
        w->zero[0] = beyond == 0 ? 128 : -129;
        assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, NULL), QN_OK);
        v = qni_cuda_weights_of(packed, QNI_CUDA_READS_F16);
        assert_int_equal(v.shift, QNI_CUDA_SHIFT_OFFSET);
        assert_int_equal(v.scale_is_f16, 0); /* 129 * 1.0009765625 has no f16 */
        assert_true(v.zero == 0 && v.offset != 0);
        packed->release(packed);
    }
    qn_weight_destroy(w);
    stop(&u);
}

/* Worked out by hand. of: parts, panels, n; units, groups, units of a group; segments, units of a
 * segment, segments of a group. */
enum { F16 = QNI_CUDA_READS_F16, Q8 = QNI_CUDA_READS_Q8, Q8B = QNI_CUDA_READS_Q8B };
static const struct {
    const char *spec, *layout;
    struct random_shape s;
    int64_t x_block;
    int reads, of[9];
    int blocks; /* of 512 or 1024 bytes */
} numbers[] = {
    /* 300 = 2 x 128 + 44: 4 + 4 + 2 units */
    {"int4:g128", "q4frag", {40, 300, 1, 1, 1}, 0, F16, {1, 3, 40, 10, 3, 4, 3, 4, 1}, 15},
    {"int4:g128", "q8frag", {40, 300, 1, 1, 1}, 64, Q8B, {1, 3, 40, 10, 3, 4, 5, 2, 2}, 15},
    /* 3 units and one of padding */
    {"int8:pc", "q8frag", {16, 96, 1, 1, 1}, 0, Q8, {1, 1, 16, 4, 1, 3, 1, 3, 1}, 2},
    /* blocks of 8 channels x 9 taps = 72 (3 units), the last 4 x 9 = 36 (2); 18 outputs each */
    {"int4:c8", "q4frag", {36, 20, 3, 3, 2}, 0, Q8, {2, 2, 18, 8, 3, 3, 3, 3, 1}, 16},
    /* depthwise: panels across the groups */
    {"int8:pc", "q8frag", {40, 1, 3, 3, 40}, 0, F16, {1, 3, 40, 2, 1, 1, 1, 1, 1}, 3},
    {"nf4:g64", "t4frag", {1, 64, 1, 1, 1}, 0, F16, {1, 1, 1, 2, 1, 2, 1, 2, 1}, 1},
    {"fp8:pc", "t8frag", {1, 64, 1, 1, 1}, 0, F16, {1, 1, 1, 2, 1, 2, 1, 2, 1}, 1},
    /* int8-row cuts a long group at 32768 positions */
    {"int4:pc", "q4frag", {1, 32800, 1, 1, 1}, 0, Q8, {1, 1, 1, 1026, 1, 1025, 2, 1024, 2}, 513},
};

static void numbers_are_those_of_the_contract(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct unit_ctx u;
        struct qn_packed *packed;
        start(&u);
        struct qn_weight *w = random_weight(&u.ctx, numbers[i].spec, numbers[i].s, i, false, true);
        qn_pack_options o = options_of(numbers[i].layout);
        o.x_block = numbers[i].x_block;
        assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, NULL), QN_OK);
        const struct qni_cuda_weights v = qni_cuda_weights_of(packed, numbers[i].reads);
        assert_ptr_equal(v.blob, packed->blob);
        const int of[9] = {v.parts,      v.panels,        v.n,
                           v.units,      v.n_groups,      v.group_units,
                           v.n_segments, v.segment_units, v.segments_per_group};
        for (int j = 0; j < 9; j++)
            assert_int_equal(of[j], numbers[i].of[j]);
        const uint64_t block = numbers[i].layout[1] == '4' ? 512 : 1024;
        assert_int_equal(packed->head->section[QNI_SECTION_CODES].bytes,
                         block * (uint64_t)numbers[i].blocks);
        assert_int_equal(v.codes % 64, 0);
        assert_int_equal(packed->head->device_kind, QN_CUDA);
        assert_string_equal(packed->head->layout, numbers[i].layout);
        packed->release(packed);
        qn_weight_destroy(w);
        stop(&u);
    }
}

static void codebooks_of_integers_are_known(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int has, doubled;
        int first, last; /* of table8 */
    } cases[] = {
        {"iq4_nl", 1, 0, -127, 113}, {"e2m1:g32", 1, 1, 0, -12}, {"nf4:g64", 0, 0, 0, 0},
        {"fp8:pc", 0, 0, 0, 0},      {"int4:g32", 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct unit_ctx u;
        struct qn_packed *packed;
        const struct random_shape s = {16, 64, 1, 1, 1};
        const qn_pack_options o = options_of(NULL);
        start(&u);
        struct qn_weight *w = random_weight(&u.ctx, cases[i].spec, s, i, false, true);
        assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, NULL), QN_OK);
        const struct qni_cuda_weights v = qni_cuda_weights_of(packed, QNI_CUDA_READS_Q8);
        assert_int_equal(v.has_table8, cases[i].has);
        assert_int_equal(v.table8_doubled, cases[i].doubled);
        assert_int_equal(v.table8[0], cases[i].has ? cases[i].first : 0);
        assert_int_equal(v.table8[15], cases[i].has ? cases[i].last : 0);
        packed->release(packed);
        qn_weight_destroy(w);
        stop(&u);
    }
}

/* ---- refusals and failures ------------------------------------------------------------------- */

static void wrong_layouts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *layout, *text;
    } cases[] = {
        {"int4:g32", "q4n16", "no GPU layout \"q4n16\""},
        {"int4:g32", "t4frag", "layout t4frag holds codebooks"},
        {"int8:pc", "q4frag", "layout q4frag holds integers of 2 to 4 bits"},
        {"nf4:g64", "q4frag", "a codebook of 4 bits"},
        {"fp8:pc", "t4frag", "a codebook of 8 bits"},
        {"int4:g32", "", "no GPU layout"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct unit_ctx u;
        struct qn_packed *packed = NULL;
        qn_error err = {QN_OK, -1, ""};
        size_t bytes;
        const struct random_shape s = {16, 64, 1, 1, 1};
        const qn_pack_options o = options_of(cases[i].layout);
        start(&u);
        struct qn_weight *w = random_weight(&u.ctx, cases[i].spec, s, i, false, true);
        assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, &err), QN_E_LAYOUT);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].text);
        assert_int_equal(qni_cuda_pack_bytes(&u.ctx, w, &o, &bytes, &err), QN_E_LAYOUT);
        assert_int_equal(device.calls, 0);
        qn_weight_destroy(w);
        stop(&u);
    }
}

static void what_32_bits_cannot_count_is_refused(void **state)
{
    (void)state;
    struct qni_packed_head h;
    qn_error err = {QN_OK, -1, ""};
    memset(&h, 0, sizeof h);
    h.n = INT32_MAX - 16;
    h.units = INT32_MAX / 32;
    assert_int_equal(qni_cuda_head_fits(&h, &err), QN_OK);
    h.n++;
    assert_int_equal(qni_cuda_head_fits(&h, &err), QN_E_LAYOUT);
    assert_non_null(strstr(err.text, "outputs"));
    h.n--;
    h.units++;
    assert_int_equal(qni_cuda_head_fits(&h, &err), QN_E_LAYOUT);
    assert_non_null(strstr(err.text, "positions"));
}

/* Every call to the device and every allocation fails once: a status, nothing left behind. */
static void failures_leave_nothing(void **state)
{
    (void)state;
    const struct random_shape s = {40, 300, 1, 1, 1};
    const qn_pack_options o = options_of(NULL);
    for (int where = 0; where < 2; where++) {
        int64_t at = 0, failed = 0;
        qn_status status = QN_E_MEMORY;
        while (status != QN_OK) {
            struct unit_ctx u;
            struct qn_packed *packed = NULL;
            qn_error err = {QN_OK, -1, ""};
            start(&u);
            struct qn_weight *w = random_weight(&u.ctx, "int4:g128:zp", s, 9, true, true);
            *(where == 0 ? &device.fail_at : &u.memory.fail_at) =
                where == 0 ? ++at : u.memory.calls + ++at;
            status = qni_cuda_pack(&u.ctx, w, &o, &packed, &err);
            assert_int_equal(status == QN_OK, packed != NULL);
            assert_true(status == QN_OK || status == QN_E_MEMORY ||
                        (where == 0 && status == QN_E_DEVICE));
            failed += status != QN_OK;
            if (packed != NULL)
                packed->release(packed);
            assert_int_equal(device.live, 0);
            qn_weight_destroy(w);
            stop(&u);
        }
        /* device: 2 allocations, 4 copies, begin and end; host: handle, sections, outputs */
        assert_int_equal(failed, where == 0 ? 8 : 3);
    }
}

/* More panels than one slab holds, with convolution groups that end in a short panel. */
static void slabs_join(void **state)
{
    (void)state;
    struct unit_ctx u;
    struct qn_packed *host, *packed;
    const struct random_shape s = {3 * 200003, 2, 1, 1, 3};
    const qn_pack_options o = options_of(NULL);
    start(&u);
    struct qn_weight *w = random_weight(&u.ctx, "int4:pc", s, 4, false, true);
    assert_int_equal(qni_pack_host(&u.ctx, &qni_cuda_packing, w, &o, &host, NULL), QN_OK);
    assert_int_equal(qni_cuda_pack(&u.ctx, w, &o, &packed, NULL), QN_OK);
    assert_int_equal(device.launches, 2);
    assert_memory_equal(packed->blob, host->blob, host->head->bytes);
    packed->release(packed);
    host->release(host);
    qn_weight_destroy(w);
    stop(&u);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void blobs_move_as_they_are(void **state)
{
    (void)state;
    struct unit_ctx u;
    struct qn_packed *host, *packed;
    const struct random_shape s = {40, 300, 1, 1, 1};
    const qn_pack_options o = options_of(NULL);
    qn_error err = {QN_OK, -1, ""};
    start(&u);
    struct qn_weight *w = random_weight(&u.ctx, "iq4_nl", s, 7, true, true);
    assert_int_equal(qni_pack_host(&u.ctx, &qni_cuda_packing, w, &o, &host, NULL), QN_OK);
    assert_int_equal(qni_cuda_packed_check(host, &err), QN_OK);
    assert_int_equal(qni_cuda_packed_upload(&u.ctx, host, &packed, &err), QN_OK);
    const size_t bytes = (size_t)host->head->bytes;
    assert_ptr_not_equal(packed->blob, host->blob);
    assert_memory_equal(packed->blob, host->blob, bytes);
    assert_memory_equal(packed->table, w->table, 16 * sizeof *w->table);
    uint8_t piece[100];
    assert_int_equal(packed->read(&u.ctx, packed, 77, sizeof piece, piece, &err), QN_OK);
    assert_memory_equal(piece, host->blob + 77, sizeof piece);
    /* A CPU's layout is none of the GPU's. */
    struct qni_packed_head *head = (struct qni_packed_head *)(void *)host->owner;
    strcpy(head->layout, "t4n16");
    assert_int_equal(qni_cuda_packed_check(host, &err), QN_E_LAYOUT);
    assert_non_null(strstr(err.text, "none of the GPU's"));
    for (int64_t at = 1; at <= 2; at++) {
        struct qn_packed *none = NULL;
        device.fail_at = device.calls + at;
        assert_int_not_equal(qni_cuda_packed_upload(&u.ctx, host, &none, &err), QN_OK);
        assert_null(none);
    }
    packed->release(packed);
    host->release(host);
    qn_weight_destroy(w);
    stop(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nibbles_are_fragments),
        cmocka_unit_test(every_format_goes_round),
        cmocka_unit_test(short_scales_are_exact),
        cmocka_unit_test(exponents_stay_normal),
        cmocka_unit_test(zero_points_stay_integers),
        cmocka_unit_test(numbers_are_those_of_the_contract),
        cmocka_unit_test(codebooks_of_integers_are_known),
        cmocka_unit_test(wrong_layouts_are_refused),
        cmocka_unit_test(what_32_bits_cannot_count_is_refused),
        cmocka_unit_test(failures_leave_nothing),
        cmocka_unit_test(slabs_join),
        cmocka_unit_test(blobs_move_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
