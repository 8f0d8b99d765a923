/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions whose outputs are cut over ranks. Each rank computes its channels where they lie in
 * y; with gather_y some images at a time are packed, gathered, and placed on every rank. */
#include <string.h>

#include "../api/check.h"
#include "../api/validate.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "../quant/packed.h"
#include "product.h"

/* Images are gathered in blocks of about as many bytes. */
enum { BLOCK_BYTES = 1 << 20 };

struct conv_call {
    const qn_ctx *ctx;
    qn_comm comm;
    qn_conv_args args; /* as given */
    qn_conv_args own;  /* with the rank's channels of y and residual */
    int32_t is_transposed, gather, is_trusted;
    int32_t channel;        /* which dimension of y the channels are */
    int64_t unit;           /* outputs that are not cut: of a convolution group */
    int64_t images, pixels; /* images: at once */
    size_t block, product;  /* bytes */
    uint8_t *scratch;
    qn_error *err;
};

static qn_status range_of(const struct conv_call *c, int32_t rank, int64_t *first, int64_t *n)
{
    return qn_shard_range(c->args.y.shape[c->channel], c->unit, rank, c->comm.n_ranks, first, n);
}

/* Some channels of a tensor of y's shape. */
static qn_tensor channels_of(const struct conv_call *c, const qn_tensor *t, int64_t first,
                             int64_t n)
{
    qn_tensor part = *t;
    if (qni_is_none(t))
        return part;
    part.shape[c->channel] = n;
    if (t->data != NULL && n > 0)
        part.data =
            (uint8_t *)t->data + (size_t)(first * t->stride[c->channel]) * qn_dtype_bytes(t->dtype);
    return part;
}

static qn_status check_shard(struct conv_call *c, int32_t conv_groups)
{
    int64_t first = 0, n = 0;
    const struct qni_packed_head *const head = c->args.w->head;
    c->own = c->args;
    if (!c->gather)
        return QN_OK;
    if (c->args.y.rank != 3 && c->args.y.rank != 4)
        return qni_fail(c->err, QN_E_SHAPE, "y has rank %d, not 3 or 4", c->args.y.rank);
    c->channel = c->args.image == QN_NHWC ? c->args.y.rank - 1 : 1;
    QNI_TRY(qni_check_tensor(c->ctx, &c->args.y, "y", c->args.y.rank, ~0u, c->err));
    const int64_t all = c->args.y.shape[c->channel];
    if (conv_groups < 1 || all % conv_groups != 0)
        return qni_fail(c->err, QN_E_ARGUMENT, "conv_groups is %d, and y has %lld channels",
                        conv_groups, (long long)all);
    c->unit = conv_groups > 1 ? qni_max(1, all / conv_groups) : 1;
    (void)range_of(c, c->comm.rank, &first, &n);
    if (n != head->n)
        return qni_fail(c->err, QN_E_SHAPE,
                        "the weights have %lld outputs, and of the %lld channels of y, in %d "
                        "convolution groups, rank %d has %lld (qn_weight_shard() cuts them so)",
                        (long long)head->n, (long long)all, conv_groups, c->comm.rank,
                        (long long)n);
    c->own.y = channels_of(c, &c->args.y, first, n);
    c->own.epilogue.residual = channels_of(c, &c->args.epilogue.residual, first, n);
    return QN_OK;
}

/* Sizes of what is exchanged. */
static qn_status lay_out(struct conv_call *c)
{
    int64_t first, widest;
    const qn_tensor *const y = &c->args.y;
    size_t image = 0;
    bool fits = true;
    QNI_TRY(c->is_transposed ? qn_conv_transpose2d_scratch(c->ctx, &c->own, &c->product)
                             : qn_conv2d_scratch(c->ctx, &c->own, &c->product));
    c->product = qni_round_up(c->product, 64);
    if (!c->gather || c->comm.n_ranks == 1)
        return QN_OK;
    (void)range_of(c, 0, &first, &widest);
    c->pixels = 1;
    for (int32_t d = 1; d < y->rank; d++)
        c->pixels *= d == c->channel ? 1 : y->shape[d];
    fits = qni_size_mul((size_t)(c->pixels * widest), qn_dtype_bytes(y->dtype), &image);
    c->images = qni_min(qni_max(1, y->shape[0]),
                        qni_max(1, BLOCK_BYTES / (int64_t)(image > 0 ? image : 1)));
    fits = fits && qni_size_mul((size_t)c->images, image, &c->block) && c->block < SIZE_MAX / 4 &&
           qni_size_mul(c->block + QNI_BLOCK_HEAD + 64, (size_t)c->comm.n_ranks + 1, &image);
    c->block = QNI_BLOCK_HEAD + qni_round_up(c->block, 64);
    return fits ? QN_OK : qni_fail(c->err, QN_E_SHAPE, "the exchange leaves the address space");
}

static size_t scratch_of(const struct conv_call *c)
{
    const bool exchanges = c->gather && c->comm.n_ranks > 1;
    return c->product + (exchanges ? c->block * ((size_t)c->comm.n_ranks + 1) : 0);
}

static qn_status read(struct conv_call *c, const qn_parallel_conv_args *a)
{
    struct qni_op op;
    qn_conv_args_init(&c->args);
    QNI_TRY(qni_sized_read(&c->args, sizeof c->args, a->conv, c->err));
    QNI_TRY(qni_check_flag(a->is_transposed, "is_transposed", c->err));
    QNI_TRY(qni_check_flag(a->gather_y, "gather_y", c->err));
    QNI_TRY(qni_check_flag(a->is_trusted, "is_trusted", c->err));
    if (c->ctx->device.kind != QN_CPU)
        return qni_fail(c->err, QN_E_UNSUPPORTED, "products over several ranks run on the CPU");
    if (a->gather_y && c->args.more != NULL && c->args.more->factor.rank != 0)
        return qni_fail(c->err, QN_E_UNSUPPORTED,
                        "a convolution over several ranks that gathers y takes no factor");
    QNI_TRY(qni_check_weights(c->ctx, c->args.w, -1, c->err));
    c->is_transposed = a->is_transposed;
    c->gather = a->gather_y;
    c->is_trusted = a->is_trusted;
    QNI_TRY(check_shard(c, a->conv_groups));
    c->own.error = c->err;
    QNI_TRY(qni_validate_conv(c->ctx, &c->own, c->is_transposed ? QNI_CONV_TRANSPOSE : QNI_CONV,
                              QNI_WITHOUT_DATA, &op, c->err));
    return lay_out(c);
}

static qn_status check_data(const struct conv_call *c, size_t scratch_bytes)
{
    struct qni_op op;
    QNI_TRY(qni_check_scratch(c->scratch, scratch_bytes, scratch_of(c), c->err));
    if (c->gather)
        QNI_TRY(qni_check_data(c->ctx, &c->args.y, "y", c->err));
    QNI_TRY(qni_check_apart_bytes(&c->args.y, "y", c->scratch, scratch_of(c), "scratch", c->err));
    return qni_validate_conv(c->ctx, &c->own, c->is_transposed ? QNI_CONV_TRANSPOSE : QNI_CONV,
                             QNI_WITH_DATA, &op, c->err);
}

/* All are here, with the same y. */
static qn_status agree(const struct conv_call *c, qn_status own)
{
    enum { SIDES = 4 };
    struct qni_facts facts = {.n = SIDES + 2, .n_same = SIDES + 2};
    if (c->is_trusted || !c->gather)
        return own;
    for (int32_t i = 0; i < SIDES && i < c->args.y.rank; i++)
        facts.of[i] = (int32_t)c->args.y.shape[i];
    facts.of[SIDES] = c->args.y.dtype;
    facts.of[SIDES + 1] = c->channel;
    QNI_TRY(qni_parallel_agree(&c->comm, own, &facts, "a convolution", c->err));
    const int32_t i = facts.differs;
    return i < 0 ? QN_OK
                 : qni_fail(c->err, QN_E_PEER, "ranks have a y of different %s (%d and %d)",
                            i < SIDES    ? "shapes"
                            : i == SIDES ? "types"
                                         : "orders of images",
                            facts.least[i], facts.most[i]);
}

/* Images [image, image + images) of a rank's channels, into a block or out of it. Within a block
 * channels lie as they do in y. */
static void move(const struct conv_call *c, int64_t image, int64_t images, int32_t rank,
                 uint8_t *block, bool out)
{
    int64_t first, n;
    const qn_tensor *const y = &c->args.y;
    const size_t element = qn_dtype_bytes(y->dtype);
    (void)range_of(c, rank, &first, &n);
    const qn_tensor part = channels_of(c, y, first, n);
    const bool has_h = part.rank == 4;
    const size_t run = (size_t)part.shape[part.rank - 1] * element;
    for (int64_t i = 0; i < images; i++)
        for (int64_t a = 0; a < part.shape[1]; a++)
            for (int64_t b = 0; b < (has_h ? part.shape[2] : 1); b++) {
                const int64_t at = (image + i) * part.stride[0] + a * part.stride[1] +
                                   (has_h ? b * part.stride[2] : 0);
                uint8_t *const there = (uint8_t *)part.data + (size_t)at * element;
                memcpy(out ? there : block, out ? block : there, run);
                block += run;
            }
}

/* own: what came of this rank's convolution. */
static qn_status gather(const struct conv_call *c, qn_status own)
{
    const qn_comm *const comm = &c->comm;
    uint8_t *const send = c->scratch + c->product, *const recv = send + c->block;
    const int64_t all = c->args.y.shape[0];
    for (int64_t at = 0; at < all && c->pixels > 0; at += c->images) {
        const int64_t images = qni_min(c->images, all - at);
        memcpy(send, &own, sizeof own);
        if (own == QN_OK)
            move(c, at, images, comm->rank, send + QNI_BLOCK_HEAD, false);
        const qn_status told =
            comm->all_gather(comm->arg, send, c->block, recv, qni_parallel_told(own, c->err));
        if (own != QN_OK || told != QN_OK)
            return own != QN_OK ? own : told;
        for (int32_t r = 0; r < comm->n_ranks; r++) {
            qn_status status;
            memcpy(&status, recv + (size_t)r * c->block, sizeof status);
            if (status != QN_OK)
                return qni_fail(c->err, QN_E_PEER,
                                "rank %d failed during the run, and its own error says why", r);
        }
        for (int32_t r = 0; r < comm->n_ranks; r++)
            if (r != comm->rank)
                move(c, at, images, r, recv + (size_t)r * c->block + QNI_BLOCK_HEAD, true);
    }
    return own;
}

static qn_status open_call(const qn_ctx *ctx, const qn_parallel_conv_args *given,
                           struct conv_call *c, qn_parallel_conv_args *own, qn_error *err)
{
    memset(c, 0, sizeof *c);
    c->ctx = ctx;
    c->err = err;
    qn_parallel_conv_args_init(own);
    return qni_parallel_open(ctx, given, own, sizeof *own, &own->comm, &c->comm, err);
}

qn_status qn_parallel_conv_scratch(const qn_ctx *ctx, const qn_parallel_conv_args *args,
                                   size_t *bytes, qn_error *err)
{
    struct conv_call c;
    qn_parallel_conv_args own;
    if (bytes == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "bytes is NULL: there is no place for the result");
    QNI_TRY(open_call(ctx, args, &c, &own, err));
    QNI_TRY(read(&c, &own));
    *bytes = scratch_of(&c);
    return QN_OK;
}

qn_status qni_parallel_conv_exchanged(const qn_ctx *ctx, const qn_parallel_conv_args *args,
                                      struct qni_exchanged *e, qn_error *err)
{
    struct conv_call c;
    qn_parallel_conv_args own;
    memset(e, 0, sizeof *e);
    QNI_TRY(open_call(ctx, args, &c, &own, err));
    QNI_TRY(read(&c, &own));
    e->comm = c.comm;
    e->own = e->whole = c.args.w->head->n;
    e->scratch = scratch_of(&c);
    e->strategy = c.args.strategy;
    if (!c.gather)
        return QN_OK;
    (void)range_of(&c, c.comm.rank, &e->first, &e->own);
    e->whole = c.args.y.shape[c.channel];
    if (c.comm.n_ranks == 1)
        return QN_OK;
    const double times = (double)qni_ceil_div(c.args.y.shape[0], c.images);
    e->at_once = c.images;
    e->exchanges = times + (c.is_trusted ? 0.0 : 1.0);
    e->bytes = times * (double)(c.comm.n_ranks - 1) * (double)c.block;
    return QN_OK;
}

qn_status qn_parallel_conv(const qn_ctx *ctx, const qn_parallel_conv_args *args, void *scratch,
                           size_t scratch_bytes, qn_error *err)
{
    struct conv_call c;
    qn_parallel_conv_args own;
    QNI_TRY(open_call(ctx, args, &c, &own, err));
    c.scratch = scratch;
    qn_status status = read(&c, &own);
    c.gather = own.gather_y; /* of bad arguments, too: the others ask */
    c.is_trusted = own.is_trusted;
    if (status == QN_OK)
        status = check_data(&c, scratch_bytes);
    QNI_TRY(agree(&c, status));
    status = c.is_transposed ? qn_conv_transpose2d(ctx, &c.own, c.scratch, c.product)
                             : qn_conv2d(ctx, &c.own, c.scratch, c.product);
    return c.gather && c.comm.n_ranks > 1 ? gather(&c, status) : status;
}
