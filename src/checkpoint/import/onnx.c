/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX, w = (q - z) s, whose nodes say where q, z and s lie (graph.h):
 *
 *   MatMulNBits   B u8 [N, blocks, bytes]: block_size codes u a block, the lowest bits first, the
 *                 tail of K padded; z 2^(bits-1) if there is none, u8 [N, bytes] in the same order,
 *                 each row padded to whole bytes, or floats [N, blocks]; s [N, blocks]. g_idx [K]:
 *                 the block of each column.
 *                     block_size 16, byte 0x21, s 1, no z: w0 = 1 - 8, w1 = 2 - 8.
 *   the others    q of 8, 4 or 2 bits, signed or not, E4M3 or E2M1, the lowest bits first; z 0 if
 *                 there is none, of q's type; s one for the tensor, one an output, or one for each
 *                 block of inputs. Matrices are [K, N], or [N, K] where the node turns them; those
 *                 of Conv [N, channels, taps], of ConvTranspose [channels, N / groups, taps].
 *
 * Integer operators without scales have s 1, unless a Mul that follows has one. Gemm's alpha is
 * multiplied into s. A float z makes an offset (2^(bits-1) - z) s, rounded once and counted. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/size.h"
#include "words.h"

enum {         /* found->fact */
       BITS,   /* of a stored code */
       SIGNED, /* codes are two's complement */
       BLOCK,  /* MatMulNBits: bytes of a block; else blocked scales: inputs a block, or 0 */
       BLOCKS, /* of a row */
       TAPS,
       OUTPUTS, /* ConvTranspose: of a group */
       HAS_SCALE,
       ZERO_BYTES /* MatMulNBits: of a row of zeros; 0: they are floats or there are none */
};

static int64_t count_of(const struct qni_tensor *t)
{
    int64_t product = 1; /* fits: the reader has checked it */
    for (int32_t i = 0; i < t->rank; i++)
        product *= t->shape[i];
    return product;
}

/* ---- types ----------------------------------------------------------------------------------- */

static const struct kind {
    const char *spelling;
    int32_t bits;
    bool is_signed;
    qn_code code;
} kinds[] = {
    {"INT8", 8, true, QN_CODE_INT},           {"UINT8", 8, false, QN_CODE_INT},
    {"INT4", 4, true, QN_CODE_INT},           {"UINT4", 4, false, QN_CODE_INT},
    {"INT2", 2, true, QN_CODE_INT},           {"UINT2", 2, false, QN_CODE_INT},
    {"FLOAT8E4M3FN", 8, false, QN_CODE_E4M3}, {"FLOAT4E2M1", 4, false, QN_CODE_E2M1},
};

static bool is_scale_type(const struct qni_tensor *t)
{
    return t->data != NULL && (qni_import_is_float(t->dtype) || t->dtype == QN_E8M0);
}

static qn_status take_kind(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *w = &f->part[QNI_LINK_CODES], *z = &f->part[QNI_LINK_ZERO];
    const struct kind *kind = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].spelling, w->spelling) == 0)
            kind = &kinds[i];
    if (kind == NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "weights of type %s are not imported; integers of 8, 4 and 2 bits, "
                        "FLOAT8E4M3FN and FLOAT4E2M1 are",
                        w->spelling);
    if (w->rank > QN_MAX_RANK)
        return qni_fail(err, QN_E_SHAPE, "it has %d dimensions", (int)w->rank);
    if (z->data != NULL && strcmp(z->spelling, w->spelling) != 0)
        return qni_fail(err, QN_E_DTYPE, "its zero points are of type %s, its codes of %s",
                        z->spelling, w->spelling);
    f->fact[BITS] = kind->bits;
    f->fact[SIGNED] = kind->is_signed;
    f->parts.format.bits = kind->bits;
    f->parts.format.code = kind->code;
    qni_note(&f->notes, "format: %s, type of its tensor", w->spelling);
    return QN_OK;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static qn_status find_conv(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *w = &f->part[QNI_LINK_CODES];
    const int64_t groups = f->link->conv_groups;
    const bool is_transposed = f->link->kind == QNI_LINK_TRANSPOSED;
    if (w->rank != 3 && w->rank != 4)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "a convolution in %d dimensions is not imported; in 1 and 2 they are",
                        (int)w->rank - 2);
    const int64_t kh = w->rank == 4 ? w->shape[2] : 1, kw = w->shape[w->rank - 1];
    const int64_t ci = w->shape[is_transposed ? 0 : 1];
    if (kh < 1 || kw < 1 || kh > INT32_MAX || kw > INT32_MAX || groups < 1 ||
        w->shape[0] % groups != 0)
        return qni_fail(err, QN_E_SHAPE, "%lld groups do not divide its %lld channels",
                        (long long)groups, (long long)w->shape[0]);
    f->role = QN_ROLE_CONV;
    f->parts.kh = (int32_t)kh;
    f->parts.kw = (int32_t)kw;
    f->parts.conv_groups = (int32_t)groups;
    f->fact[TAPS] = kh * kw;
    f->fact[OUTPUTS] = w->shape[1];
    f->parts.k = kh * kw * (is_transposed ? ci / groups : ci);
    /* A file without elements may have any other dimension. */
    if (!is_transposed)
        f->parts.n = w->shape[0];
    else if (!qni_i64_mul(w->shape[1], groups, &f->parts.n))
        return qni_fail(err, QN_E_SHAPE, "its groups overflow");
    qni_note(&f->notes, "shape: %s, %d groups", f->link->node, (int)groups);
    return QN_OK;
}

static qn_status find_shape(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *w = &f->part[QNI_LINK_CODES];
    if (count_of(w) == 0)
        return qni_fail(err, QN_E_SHAPE, "it has no elements");
    if (f->link->kind == QNI_LINK_CONV || f->link->kind == QNI_LINK_TRANSPOSED)
        return find_conv(f, err);
    if (w->rank != 2)
        return qni_fail(err, QN_E_UNSUPPORTED, "a product of %d dimensions is not imported",
                        (int)w->rank);
    f->role = f->link->kind == QNI_LINK_EMBEDDING ? QN_ROLE_EMBEDDING : QN_ROLE_LINEAR;
    f->parts.n = w->shape[f->link->is_rows ? 0 : 1];
    f->parts.k = w->shape[f->link->is_rows ? 1 : 0];
    qni_note(&f->notes, "shape: %s, stored [%s]", f->link->node,
             f->link->is_rows ? "n, k" : "k, n");
    return QN_OK;
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* The dimension of the stored tensor that the outputs are. */
static int32_t output_axis(const struct qni_link *link)
{
    const bool is_first = link->kind == QNI_LINK_CONV || link->is_rows;
    return is_first ? 0 : 1;
}

static qn_status find_blocks(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *w = &f->part[QNI_LINK_CODES], *s = &f->part[QNI_LINK_SCALE];
    const int64_t block = f->link->block;
    const int32_t axis = f->link->axis;
    if (axis == output_axis(f->link) || axis > 1)
        return qni_fail(err, QN_E_FORMAT,
                        "its scales are blocks of %lld along axis %d; those along the inputs are "
                        "held",
                        (long long)block, (int)axis);
    bool fits = s->rank == w->rank;
    for (int32_t i = 0; fits && i < w->rank; i++)
        fits = s->shape[i] == (i == axis ? qni_ceil_div(w->shape[i], block) : w->shape[i]);
    if (!fits)
        return qni_fail(err, QN_E_SHAPE, "its scales have not the shape of blocks of %lld",
                        (long long)block);
    const bool is_transposed = f->link->kind == QNI_LINK_TRANSPOSED;
    const int64_t groups = is_transposed ? f->parts.conv_groups : 1;
    const int64_t channels = w->shape[axis] / groups;
    if ((f->fact[TAPS] > 1 || groups > 1) && channels % block != 0)
        return qni_fail(err, QN_E_FORMAT, "blocks of %lld channels do not divide the %lld of a tap",
                        (long long)block, (long long)channels);
    f->fact[BLOCK] = block;
    f->fact[BLOCKS] = s->shape[axis] / groups;
    f->parts.format.group = block;
    qni_note(&f->notes, "group: %lld, block_size of DequantizeLinear", (long long)block);
    return QN_OK;
}

static qn_status find_scales(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *w = &f->part[QNI_LINK_CODES], *s = &f->part[QNI_LINK_SCALE];
    f->parts.format.scale_dtype = QN_F32;
    f->parts.format.group = QN_GROUP_PER_TENSOR;
    f->fact[HAS_SCALE] = s->data != NULL;
    if (s->data == NULL && f->link->has_scale)
        return qni_fail(err, QN_E_FORMAT, "its scale is no constant of the graph");
    if (s->data == NULL) {
        qni_note(&f->notes, "scale: 1, %s has none and no constant follows", f->link->node);
        return QN_OK;
    }
    if (!is_scale_type(s) || s->rank > QN_MAX_RANK)
        return qni_fail(err, QN_E_DTYPE, "its scales are of type %s", s->spelling);
    if (f->link->alpha == 1.0f)
        f->parts.format.scale_dtype = s->dtype;
    else
        qni_note(&f->notes, "scale: times alpha %g of %s", (double)f->link->alpha, f->link->node);
    if (f->link->block > 0)
        return find_blocks(f, err);
    const int64_t outputs = w->shape[output_axis(f->link)];
    if (count_of(s) == 1) {
        qni_note(&f->notes, "group: one scale for the tensor, from its shape");
        return QN_OK;
    }
    if (f->link->axis != output_axis(f->link) || count_of(s) != outputs)
        return qni_fail(err, QN_E_FORMAT,
                        "it has %lld scales along axis %d; one for each of the %lld outputs, or "
                        "blocks of inputs, are held",
                        (long long)count_of(s), (int)f->link->axis, (long long)outputs);
    f->parts.format.group = QN_GROUP_PER_CHANNEL;
    qni_note(&f->notes, "group: one scale an output, from its shape");
    return QN_OK;
}

static uint32_t raw_code(const struct qni_found *f, const struct qni_tensor *t, int64_t i)
{
    return qni_stream_code(t->data, i, (int32_t)f->fact[BITS]);
}

/* The integer of a stored code less half of all codes, if they have no sign. */
static int32_t signed_code(const struct qni_found *f, uint32_t code)
{
    const int32_t half = 1 << (f->fact[BITS] - 1);
    return f->fact[SIGNED] != 0 ? (int32_t)(code ^ (uint32_t)half) - half : (int32_t)code - half;
}

static qn_status find_zeros(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *z = &f->part[QNI_LINK_ZERO], *s = &f->part[QNI_LINK_SCALE];
    const int64_t count = z->data == NULL ? 0 : count_of(z);
    const bool has_sign = f->fact[SIGNED] != 0;
    if (z->data != NULL && count != (s->data == NULL ? 1 : count_of(s)))
        return qni_fail(err, QN_E_SHAPE, "its zero points have not the shape of its scales");
    bool are_zero = true;
    for (int64_t i = 0; i < count && are_zero; i++)
        are_zero = raw_code(f, z, i) == 0;
    if (f->parts.format.code != QN_CODE_INT) {
        if (!are_zero)
            return qni_fail(err, QN_E_FORMAT, "floats of 8 or 4 bits with zero points");
        return QN_OK;
    }
    if (are_zero && has_sign) {
        qni_note(&f->notes, "zeros: 0, %s",
                 z->data != NULL ? "all of its zero points are" : "none");
        return QN_OK;
    }
    f->parts.format.shift = QN_SHIFT_ZERO;
    qni_note(&f->notes, "zeros: %s",
             z->data != NULL ? "its zero points" : "0, the usual one of DequantizeLinear");
    return QN_OK;
}

/* ---- activations ----------------------------------------------------------------------------- */

static void find_activation(struct qni_found *f)
{
    const struct qni_tensor *s = &f->part[QNI_LINK_X_SCALE], *z = &f->part[QNI_LINK_X_ZERO];
    f->activation = QN_ACTIVATION_NONE;
    if (f->link->is_dynamic) {
        f->activation = QN_ACTIVATION_OTHER;
        qni_note(&f->notes, "activations: 8 bits, one scale a tensor found at run time");
        return;
    }
    if (s->data == NULL) {
        qni_note(&f->notes, "activations: as they are");
        return;
    }
    const bool is_one =
        qni_import_is_float(s->dtype) && count_of(s) == 1 && (z->data == NULL || count_of(z) == 1);
    const bool is_byte = z->data == NULL || z->dtype == QN_U8 || z->dtype == QN_I8;
    f->activation = is_one && is_byte ? QN_ACTIVATION_INT8_STATIC : QN_ACTIVATION_OTHER;
    if (f->activation == QN_ACTIVATION_OTHER) {
        qni_note(&f->notes, "activations: others than 8 bits of one scale");
        return;
    }
    const bool is_unsigned = z->data == NULL || z->dtype == QN_U8;
    f->input_scale = qni_import_float(s, 0);
    f->input_zero = (z->data == NULL ? 0 : (int32_t)qni_import_int(z, 0)) - (is_unsigned ? 128 : 0);
    qni_note(&f->notes, "activations: 8 bits of a fixed scale, %s%s", f->link->node,
             is_unsigned ? "; zero point less 128, for x is unsigned there" : "");
}

/* ---- MatMulNBits ----------------------------------------------------------------------------- */

static qn_status find_nbits_zeros(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *z = &f->part[QNI_LINK_ZERO];
    const int64_t row = qni_ceil_div(f->fact[BLOCKS] * f->fact[BITS], 8);
    if (z->data == NULL) {
        qni_note(&f->notes, "zeros: 2^(bits - 1), the usual one of MatMulNBits");
        return QN_OK;
    }
    if (z->dtype == QN_U8 && count_of(z) == f->parts.n * row) {
        f->fact[ZERO_BYTES] = row;
        f->parts.format.shift = QN_SHIFT_ZERO;
        qni_note(&f->notes, "zeros: its zero points, packed");
        return QN_OK;
    }
    if (!qni_import_is_float(z->dtype) || count_of(z) != f->parts.n * f->fact[BLOCKS])
        return qni_fail(err, QN_E_SHAPE,
                        "its zero points are neither %lld packed bytes nor %lld floats",
                        (long long)(f->parts.n * row), (long long)(f->parts.n * f->fact[BLOCKS]));
    f->parts.format.shift = QN_SHIFT_OFFSET;
    qni_note(&f->notes, "offsets: (2^(bits - 1) - zero point) scale, zero points are floats; "
                        "loading counts what is rounded");
    return QN_OK;
}

static qn_status find_order(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *g = &f->part[QNI_LINK_ORDER];
    const struct qni_order order = {f->parts.k, f->link->block, f->fact[BLOCKS]};
    if (g->data == NULL)
        return QN_OK;
    if (g->dtype != QN_I32 || count_of(g) < f->parts.k)
        return qni_fail(err, QN_E_SHAPE, "its g_idx is no vector of %lld integers",
                        (long long)f->parts.k);
    f->has_perm = qni_import_order_of(g, &order) != QNI_ORDER_TRIVIAL;
    qni_note(&f->notes, "order: %s", f->has_perm ? "tensor g_idx" : "as stored, g_idx is trivial");
    return QN_OK;
}

static qn_status find_nbits(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *w = &f->part[QNI_LINK_CODES], *s = &f->part[QNI_LINK_SCALE];
    const struct qni_link *link = f->link;
    const int64_t block = link->block;
    int64_t bytes = 0;
    if (link->prepacked != 0)
        return qni_fail(err, QN_E_FORMAT,
                        "its weights are prepacked for one kernel; use the model before that");
    if (link->bits < 2 || link->bits > 8 || block < 16 || block > 1 << 20 ||
        (block & (block - 1)) != 0)
        return qni_fail(err, QN_E_FORMAT,
                        "%d bits in blocks of %lld; 2 to 8 bits in blocks of a "
                        "power of two from 16 on are known",
                        (int)link->bits, (long long)block);
    if (link->n < 1 || link->k < 1 || link->n > INT32_MAX || link->k > INT32_MAX)
        return qni_fail(err, QN_E_SHAPE, "N and K of its node are no numbers of rows and columns");
    const int64_t blocks = qni_ceil_div(link->k, block), blob = block * link->bits / 8;
    if (!qni_i64_mul(link->n * blocks, blob, &bytes) || w->dtype != QN_U8 || count_of(w) != bytes)
        return qni_fail(err, QN_E_SHAPE, "B should be %lld x %lld x %lld bytes", (long long)link->n,
                        (long long)blocks, (long long)blob);
    if (!is_scale_type(s) || count_of(s) != link->n * blocks)
        return qni_fail(err, QN_E_SHAPE, "its scales should be %lld x %lld floats",
                        (long long)link->n, (long long)blocks);
    f->role = QN_ROLE_LINEAR;
    f->parts.n = link->n;
    f->parts.k = link->k;
    f->parts.format.code = QN_CODE_INT;
    f->parts.format.bits = link->bits;
    f->parts.format.group = block;
    f->parts.format.scale_dtype = s->dtype;
    f->fact[BITS] = link->bits;
    f->fact[BLOCK] = blob;
    f->fact[BLOCKS] = blocks;
    qni_note(&f->notes, "format: %d bits in blocks of %lld, attributes of %s", (int)link->bits,
             (long long)block, link->node);
    QNI_TRY(find_nbits_zeros(f, err));
    return find_order(f, err);
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    (void)c;
    (void)stem;
    if (found->link->kind == QNI_LINK_NBITS) {
        QNI_TRY(find_nbits(found, err));
    } else {
        QNI_TRY(take_kind(found, err));
        QNI_TRY(find_shape(found, err));
        QNI_TRY(find_scales(found, err));
        QNI_TRY(find_zeros(found, err));
    }
    find_activation(found);
    if (found->parts.format.shift != QN_SHIFT_OFFSET && found->link->alpha == 1.0f)
        qni_note(&found->notes, "exact");
    return QN_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

struct source {
    const struct qni_found *f;
    struct qn_weight *w;
    int64_t first;
};

/* Where position p of row n stands in the stored tensor. */
static int64_t place_of(const struct qni_found *f, int64_t n, int64_t p)
{
    const int64_t taps = f->fact[TAPS], outputs = f->fact[OUTPUTS];
    if (taps == 0)
        return f->link->is_rows ? n * f->parts.k + p : p * f->parts.n + n;
    const int64_t ci = f->parts.k / taps, c = p % ci, t = p / ci;
    if (f->link->kind == QNI_LINK_CONV)
        return (n * ci + c) * taps + t;
    return ((n / outputs * ci + c) * outputs + n % outputs) * taps + t;
}

static int64_t scale_place(const struct qni_found *f, int64_t n, int64_t g)
{
    const int64_t taps = f->fact[TAPS], blocks = f->fact[BLOCKS];
    if (f->parts.format.group == QN_GROUP_PER_TENSOR)
        return 0;
    if (f->parts.format.group == QN_GROUP_PER_CHANNEL)
        return f->link->kind == QNI_LINK_TRANSPOSED ? n % f->fact[OUTPUTS] : n;
    const int64_t outputs = f->fact[OUTPUTS], group = n / (outputs > 0 ? outputs : 1);
    if (taps > 0 && f->link->kind == QNI_LINK_TRANSPOSED)
        return ((group * blocks + g % blocks) * outputs + n % outputs) * taps + g / blocks;
    if (taps > 0)
        return (n * blocks + g % blocks) * taps + g / blocks;
    return f->link->is_rows ? n * blocks + g : g * f->parts.n + n;
}

static void take_scales(const struct source *x, int64_t row, struct qni_rounding *rounding)
{
    const struct qni_found *f = x->f;
    const struct qni_tensor *z = &f->part[QNI_LINK_ZERO];
    struct qn_weight *w = x->w;
    const double alpha = (double)f->link->alpha;
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t at = row * w->n_groups + g, from = scale_place(f, x->first + row, g);
        const float s = f->fact[HAS_SCALE] ? qni_import_float(&f->part[QNI_LINK_SCALE], from) : 1;
        w->scale[at] = qni_import_round((double)s * alpha, rounding);
        if (w->zero != NULL) /* of per-tensor codes without a scale one zero point stands for all */
            w->zero[at] = signed_code(f, z->data == NULL ? 0 : raw_code(f, z, from));
    }
    rounding->groups += w->n_groups;
}

enum { TILE = 64 };

static void take_tile(const void *arg, int64_t tile, struct qni_rounding *rounding)
{
    const struct source *x = arg;
    const struct qni_found *f = x->f;
    struct qn_weight *w = x->w;
    const int64_t row = tile * TILE, end = qni_min(row + TILE, w->n);
    const struct qni_tensor *codes = &f->part[QNI_LINK_CODES];
    const int32_t half =
        w->format.code == QN_CODE_INT && f->fact[SIGNED] ? 1 << (f->fact[BITS] - 1) : 0;
    /* The rows of a tile inside, so that columns of the file are read in runs. */
    for (int64_t p = 0; p < w->k; p++)
        for (int64_t i = row; i < end; i++) {
            const uint32_t code = raw_code(f, codes, place_of(f, x->first + i, p));
            w->codes[i * w->k + p] = (uint8_t)(code ^ (uint32_t)half);
        }
    for (int64_t i = row; i < end; i++)
        take_scales(x, i, rounding);
}

static void take_nbits(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct source *x = arg;
    const struct qni_found *f = x->f;
    const struct qni_tensor *s = &f->part[QNI_LINK_SCALE], *z = &f->part[QNI_LINK_ZERO];
    struct qn_weight *w = x->w;
    const int64_t n = x->first + row, blocks = f->fact[BLOCKS];
    const uint8_t *from = f->part[QNI_LINK_CODES].data + n * blocks * f->fact[BLOCK];
    const int32_t bits = w->format.bits, half = 1 << (bits - 1);
    uint8_t *codes = w->codes + row * w->k;
    for (int64_t p = 0; p < w->k; p++) {
        const int64_t at = w->perm != NULL ? w->perm[p] : p;
        codes[p] = (uint8_t)qni_stream_code(from, at, bits);
    }
    for (int64_t g = 0; g < blocks; g++) {
        const int64_t at = row * blocks + g;
        w->scale[at] = qni_import_float(s, n * blocks + g);
        if (w->zero != NULL)
            w->zero[at] =
                (int32_t)qni_stream_code(z->data + n * f->fact[ZERO_BYTES], g, bits) - half;
        if (w->offset != NULL)
            w->offset[at] = qni_import_round(
                ((double)half - (double)qni_import_float(z, n * blocks + g)) * (double)w->scale[at],
                rounding);
    }
    rounding->groups += blocks;
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    const struct source x = {found, w, first};
    const struct qni_order order = {w->k, found->link->block, found->fact[BLOCKS]};
    if (w->perm != NULL)
        QNI_TRY(qni_import_sort_columns(ctx, &found->part[QNI_LINK_ORDER], &order, w->perm, err));
    if (found->link->kind == QNI_LINK_NBITS)
        qni_import_rows(ctx, w->n, take_nbits, &x, rounding);
    else
        qni_import_rows(ctx, qni_ceil_div(w->n, TILE), take_tile, &x, rounding);
    return QN_OK;
}

const struct qni_importer qni_import_onnx = {
    .name = "onnx",
    .find = find,
    .load = load,
};
