/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that are whole, each on one rank: rows of x go to the rank of their expert and come back
 * as rows of y. A round moves at most `piece` rows between any two ranks:
 *
 *     out block:  head, local expert of each row, rows of x        all_to_all
 *     product:    rows of all ranks, in order of rank and row      one qn_grouped()
 *     back block: head, rows of y                                  all_to_all
 *
 * All ranks make as many rounds as the fullest pair of ranks needs. */
#include <string.h>

#include "../api/check.h"
#include "../api/validate.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "product.h"

struct experts_call {
    const qn_ctx *ctx;
    qn_comm comm;
    qn_grouped_args g;
    qn_epilogue_more more;
    int32_t n_experts;                     /* of all ranks */
    int64_t n, k, columns;                 /* columns: of y */
    int64_t piece, rows;                   /* rows: n_ranks * piece, of one product */
    size_t x_row, y_row;                   /* bytes */
    size_t out_ids, out_block, back_block; /* out_ids: bytes of the list of experts */
    struct {
        size_t seen, send, recv, gathered, ids, x, y, product, bytes;
    } part;
    uint8_t *scratch;
    qn_error *err;
};

struct expert_head {
    int32_t status, count;
    int32_t reserved[14];
};
_Static_assert(sizeof(struct expert_head) == QNI_BLOCK_HEAD, "a head is a cache line");

/* The product of a round, without its data. */
static qn_grouped_args product_of(const struct experts_call *c)
{
    qn_grouped_args own = c->g;
    own.x = qn_tensor_2d(NULL, c->g.x.dtype, c->rows, c->k);
    own.y = qn_tensor_2d(NULL, c->g.y.dtype, c->rows, c->columns);
    own.ids = qn_tensor_1d(NULL, QN_I32, c->rows);
    own.x_rows = qn_tensor_none();
    own.error = c->err;
    return own;
}

static qn_status lay_out(struct experts_call *c)
{
    const size_t ranks = (size_t)c->comm.n_ranks, piece = (size_t)c->piece;
    size_t at = 0, product = 0, most;
    bool fits = qni_size_mul(piece, c->x_row > c->y_row ? c->x_row : c->y_row, &most) &&
                most <= SIZE_MAX / 4;
    c->out_ids = qni_round_up(piece * sizeof(int32_t), 64);
    c->out_block = fits ? QNI_BLOCK_HEAD + c->out_ids + qni_round_up(piece * c->x_row, 64) : 0;
    c->back_block = fits ? QNI_BLOCK_HEAD + qni_round_up(piece * c->y_row, 64) : 0;
    most = c->out_block > c->back_block ? c->out_block : c->back_block;
    fits = fits && qni_size_part(&at, ranks, sizeof(int64_t), &c->part.seen);
    fits = fits && qni_size_part(&at, ranks, most, &c->part.send);
    fits = fits && qni_size_part(&at, ranks, most, &c->part.recv);
    fits = fits && qni_size_part(&at, c->comm.all_to_all == NULL && ranks > 1 ? ranks * ranks : 0,
                                 most, &c->part.gathered);
    fits = fits && qni_size_part(&at, (size_t)c->rows, sizeof(int32_t), &c->part.ids);
    fits = fits && qni_size_part(&at, (size_t)c->rows, c->x_row, &c->part.x);
    fits = fits && qni_size_part(&at, (size_t)c->rows, c->y_row, &c->part.y);
    if (fits && c->g.n_experts > 0) {
        const qn_grouped_args own = product_of(c);
        QNI_TRY(qn_grouped_scratch(c->ctx, &own, &product));
    }
    fits = fits && qni_size_part(&at, 1, product, &c->part.product);
    c->part.bytes = at;
    return fits ? QN_OK : qni_fail(c->err, QN_E_SHAPE, "the exchange leaves the address space");
}

/* ---- arguments ------------------------------------------------------------------------------- */

static qn_status check_numbers(const struct experts_call *c, const qn_parallel_experts_args *a)
{
    int64_t first, count;
    if (a->reserved != 0)
        return qni_fail(c->err, QN_E_ARGUMENT, "reserved is not 0");
    if (a->n_experts < 1 || a->n < 0 || a->k < 0 || a->n > INT32_MAX || a->k > INT32_MAX)
        return qni_fail(
            c->err, QN_E_SHAPE,
            "n_experts is %d, n %lld and k %lld: there is an expert at least, and sides "
            "are int32",
            a->n_experts, (long long)a->n, (long long)a->k);
    if (a->piece < 1 || a->piece > INT32_MAX / c->comm.n_ranks)
        return qni_fail(c->err, QN_E_ARGUMENT,
                        "piece is %lld: it is 1 at least, and times n_ranks "
                        "an int32",
                        (long long)a->piece);
    (void)qn_shard_range(a->n_experts, 1, c->comm.rank, c->comm.n_ranks, &first, &count);
    if (count != c->g.n_experts)
        return qni_fail(c->err, QN_E_SHAPE,
                        "rank %d has experts %lld to %lld of %d, and grouped has %d weights",
                        c->comm.rank, (long long)first, (long long)(first + count), a->n_experts,
                        c->g.n_experts);
    return QN_OK;
}

static qn_status check_words(const struct experts_call *c)
{
    const qn_grouped_args *const g = &c->g;
    if (qni_is_none(&g->ids) || !qni_is_none(&g->offsets))
        return qni_fail(c->err, QN_E_UNSUPPORTED,
                        "experts over several ranks are told by ids, not by offsets or a batch");
    if (!qni_is_none(&g->epilogue.residual) || !qni_is_none(&g->epilogue.row_scale) ||
        !qni_is_none(&c->more.factor))
        return qni_fail(c->err, QN_E_UNSUPPORTED,
                        "residual, row_scale and factor belong to rows that other ranks multiply: "
                        "qn_combine_rows() comes after this call");
    if (g->prepared != NULL || !qni_is_none(&g->x_scales))
        return qni_fail(c->err, QN_E_UNSUPPORTED,
                        "experts over several ranks take neither prepared rows nor scales of x");
    return QN_OK;
}

static qn_status check_shapes(const struct experts_call *c)
{
    const qn_ctx *const ctx = c->ctx;
    const qn_grouped_args *const g = &c->g;
    QNI_TRY(qni_check_tensor(ctx, &g->x, "x", 2, QNI_FLOATS | QNI_BYTES, c->err));
    QNI_TRY(
        qni_check_tensor(ctx, &g->y, "y", 2, QNI_FLOATS | QNI_BYTES | QNI_TYPE(QN_I32), c->err));
    const int64_t x[2] = {g->x.shape[0], c->k}, y[2] = {g->y.shape[0], c->columns};
    QNI_TRY(qni_check_shape(&g->x, "x", x, c->err));
    QNI_TRY(qni_check_shape(&g->y, "y", y, c->err));
    QNI_TRY(qni_check_output(&g->y, "y", c->err));
    QNI_TRY(qni_check_tensor(ctx, &g->ids, "ids", 1, QNI_TYPE(QN_I32), c->err));
    QNI_TRY(qni_check_shape(&g->ids, "ids", y, c->err));
    if (qni_is_none(&g->x_rows) && x[0] != y[0])
        return qni_fail(c->err, QN_E_SHAPE,
                        "x has %lld rows and y %lld: without x_rows they are equal",
                        (long long)x[0], (long long)y[0]);
    if (!qni_is_none(&g->x_rows)) {
        QNI_TRY(qni_check_tensor(ctx, &g->x_rows, "x_rows", 1, QNI_TYPE(QN_I32), c->err));
        QNI_TRY(qni_check_shape(&g->x_rows, "x_rows", y, c->err));
    }
    for (int32_t e = 0; g->w != NULL && e < g->n_experts; e++) {
        QNI_TRY(qni_check_weights(ctx, g->w[e], e, c->err));
        if (g->w[e]->head->n != c->n || g->w[e]->head->k != c->k)
            return qni_fail(c->err, QN_E_SHAPE, "w[%d] is [%lld, %lld], and args says [%lld, %lld]",
                            e, (long long)g->w[e]->head->n, (long long)g->w[e]->head->k,
                            (long long)c->n, (long long)c->k);
    }
    return QN_OK;
}

/* From the caller's structs. Afterwards c can lay out its scratch. */
static qn_status read(struct experts_call *c, const qn_parallel_experts_args *a)
{
    qn_grouped_args_init(&c->g);
    qn_epilogue_more_init(&c->more);
    QNI_TRY(qni_sized_read(&c->g, sizeof c->g, a->grouped, c->err));
    if (c->g.more != NULL) {
        QNI_TRY(qni_sized_read(&c->more, sizeof c->more, c->g.more, c->err));
        c->g.more = &c->more;
    }
    if (c->ctx->device.kind != QN_CPU)
        return qni_fail(c->err, QN_E_UNSUPPORTED, "products over several ranks run on the CPU");
    QNI_TRY(check_numbers(c, a));
    QNI_TRY(check_words(c));
    c->n_experts = a->n_experts;
    c->n = a->n;
    c->k = a->k;
    c->columns = c->more.gate != QN_GATE_NONE ? a->n / 2 : a->n;
    c->piece = a->piece;
    c->rows = a->piece * c->comm.n_ranks;
    QNI_TRY(check_shapes(c));
    c->x_row = (size_t)c->k * qn_dtype_bytes(c->g.x.dtype);
    c->y_row = (size_t)c->columns * qn_dtype_bytes(c->g.y.dtype);
    struct qni_op op;
    const qn_grouped_args own = product_of(c);
    if (own.n_experts > 0)
        QNI_TRY(qni_validate_grouped(c->ctx, &own, QNI_WITHOUT_DATA, &op, c->err));
    return lay_out(c);
}

static qn_status check_data(const struct experts_call *c, size_t scratch_bytes)
{
    const qn_grouped_args *const g = &c->g;
    QNI_TRY(qni_check_scratch(c->scratch, scratch_bytes, c->part.bytes, c->err));
    QNI_TRY(qni_check_data(c->ctx, &g->x, "x", c->err));
    QNI_TRY(qni_check_data(c->ctx, &g->y, "y", c->err));
    QNI_TRY(qni_check_data(c->ctx, &g->ids, "ids", c->err));
    if (!qni_is_none(&g->x_rows))
        QNI_TRY(qni_check_data(c->ctx, &g->x_rows, "x_rows", c->err));
    QNI_TRY(qni_check_apart(&g->y, "y", &g->x, "x", c->err));
    QNI_TRY(qni_check_apart_bytes(&g->y, "y", c->scratch, c->part.bytes, "scratch", c->err));
    const int32_t *const ids = g->ids.data, *const rows = g->x_rows.data;
    for (int64_t i = 0; i < g->y.shape[0]; i++) {
        if (ids[i] >= c->n_experts)
            return qni_fail(c->err, QN_E_VALUE, "ids[%lld] is %d: there are %d experts",
                            (long long)i, ids[i], c->n_experts);
        if (ids[i] >= 0 && rows != NULL && (rows[i] < 0 || rows[i] >= g->x.shape[0]))
            return qni_fail(c->err, QN_E_VALUE, "x_rows[%lld] is %d: x has %lld rows", (long long)i,
                            rows[i], (long long)g->x.shape[0]);
    }
    return QN_OK;
}

/* ---- who has what ---------------------------------------------------------------------------- */

/* The rank of an expert, and its first expert. */
static int32_t owner_of(const struct experts_call *c, int32_t expert, int32_t *first)
{
    const int32_t each = c->n_experts / c->comm.n_ranks, more = c->n_experts % c->comm.n_ranks;
    const int32_t wide = more * (each + 1); /* experts of ranks that have one more */
    const int32_t rank = expert < wide ? expert / (each + 1) : more + (expert - wide) / each;
    *first = rank * each + (rank < more ? rank : more);
    return rank;
}

static int64_t *count_none(const struct experts_call *c)
{
    int64_t *const seen = (int64_t *)(void *)(c->scratch + c->part.seen);
    memset(seen, 0, (size_t)c->comm.n_ranks * sizeof *seen);
    return seen;
}

static int32_t rounds_of(const struct experts_call *c)
{
    int64_t *const seen = count_none(c), most = 0;
    int32_t first;
    for (int64_t i = 0; i < c->g.y.shape[0]; i++) {
        const int32_t id = ((const int32_t *)c->g.ids.data)[i];
        if (id >= 0)
            most = qni_max(most, ++seen[owner_of(c, id, &first)]);
    }
    return (int32_t)qni_ceil_div(most, c->piece);
}

/* ---- a round --------------------------------------------------------------------------------- */

static uint8_t *block_at(const struct experts_call *c, size_t part, int32_t rank, size_t bytes)
{
    return c->scratch + part + (size_t)rank * bytes;
}

static void write_head(uint8_t *block, qn_status status, int32_t count)
{
    const struct expert_head head = {.status = status, .count = count};
    memcpy(block, &head, sizeof head);
}

static struct expert_head read_head(const uint8_t *block)
{
    struct expert_head head;
    memcpy(&head, block, sizeof head);
    return head;
}

/* Rows of this round to their ranks (is_back: from them). */
static void walk(const struct experts_call *c, int32_t round, bool is_back)
{
    int64_t *const seen = count_none(c);
    const qn_grouped_args *const g = &c->g;
    for (int64_t i = 0; i < g->y.shape[0]; i++) {
        const int32_t id = ((const int32_t *)g->ids.data)[i];
        int32_t first = 0;
        const int32_t rank = id < 0 ? -1 : owner_of(c, id, &first);
        const int64_t at = id < 0 ? -1 : seen[rank]++ - round * c->piece;
        if (at < 0 || at >= c->piece)
            continue;
        if (is_back) {
            uint8_t *const y =
                (uint8_t *)g->y.data + (size_t)(i * g->y.stride[0]) * qn_dtype_bytes(g->y.dtype);
            memcpy(y,
                   block_at(c, c->part.recv, rank, c->back_block) + QNI_BLOCK_HEAD +
                       (size_t)at * c->y_row,
                   c->y_row);
            continue;
        }
        const int64_t row = qni_is_none(&g->x_rows) ? i : ((const int32_t *)g->x_rows.data)[i];
        uint8_t *const block = block_at(c, c->part.send, rank, c->out_block);
        const int32_t local = id - first;
        memcpy(block + QNI_BLOCK_HEAD + (size_t)at * sizeof local, &local, sizeof local);
        memcpy(block + QNI_BLOCK_HEAD + c->out_ids + (size_t)at * c->x_row,
               (const uint8_t *)g->x.data +
                   (size_t)(row * g->x.stride[0]) * qn_dtype_bytes(g->x.dtype),
               c->x_row);
        write_head(block, QN_OK, (int32_t)at + 1);
    }
}

static qn_status swap(const struct experts_call *c, size_t bytes, qn_status own)
{
    const qn_comm *const comm = &c->comm;
    const size_t ranks = (size_t)comm->n_ranks;
    uint8_t *const send = c->scratch + c->part.send, *const recv = c->scratch + c->part.recv;
    uint8_t *const all = c->scratch + c->part.gathered;
    qn_error *const err = qni_parallel_told(own, c->err);
    if (ranks == 1) {
        memcpy(recv, send, bytes);
        return QN_OK;
    }
    if (comm->all_to_all != NULL)
        return comm->all_to_all(comm->arg, send, bytes, recv, err);
    const qn_status told = comm->all_gather(comm->arg, send, ranks * bytes, all, err);
    for (size_t r = 0; told == QN_OK && r < ranks; r++)
        memcpy(recv + r * bytes, all + (r * ranks + (size_t)comm->rank) * bytes, bytes);
    return told;
}

/* Rows of all ranks, one below the other; as many as there are. */
static int64_t collect(const struct experts_call *c)
{
    int32_t *const ids = (int32_t *)(void *)(c->scratch + c->part.ids);
    int64_t rows = 0;
    for (int32_t r = 0; r < c->comm.n_ranks; r++) {
        const uint8_t *const block = block_at(c, c->part.recv, r, c->out_block);
        const size_t count = (size_t)read_head(block).count;
        memcpy(ids + rows, block + QNI_BLOCK_HEAD, count * sizeof *ids);
        memcpy(c->scratch + c->part.x + (size_t)rows * c->x_row,
               block + QNI_BLOCK_HEAD + c->out_ids, count * c->x_row);
        rows += (int64_t)count;
    }
    for (int64_t i = rows; i < c->rows; i++)
        ids[i] = -1;
    return rows;
}

/* What came of the rows, to the ranks they are of. The out blocks say how many each has. */
static void give_back(const struct experts_call *c, qn_status status)
{
    size_t row = 0;
    for (int32_t r = 0; r < c->comm.n_ranks; r++) {
        const int32_t count = read_head(block_at(c, c->part.recv, r, c->out_block)).count;
        uint8_t *const block = block_at(c, c->part.send, r, c->back_block);
        memcpy(block + QNI_BLOCK_HEAD, c->scratch + c->part.y + row * c->y_row,
               (size_t)count * c->y_row);
        write_head(block, status, count);
        row += (size_t)count;
    }
}

static qn_status do_round(const struct experts_call *c, int32_t round)
{
    for (int32_t r = 0; r < c->comm.n_ranks; r++)
        write_head(block_at(c, c->part.send, r, c->out_block), QN_OK, 0);
    walk(c, round, false);
    QNI_TRY(swap(c, c->out_block, QN_OK));
    const int64_t rows = collect(c);
    qn_status own = QN_OK;
    if (rows > 0) {
        qn_grouped_args product = product_of(c);
        const size_t bytes = c->part.bytes - c->part.product;
        product.x.data = c->scratch + c->part.x;
        product.y.data = c->scratch + c->part.y;
        product.ids.data = c->scratch + c->part.ids;
        own = qn_grouped(c->ctx, &product, c->scratch + c->part.product, bytes);
    }
    give_back(c, own);
    const qn_status told = swap(c, c->back_block, own);
    if (own != QN_OK || told != QN_OK)
        return own != QN_OK ? own : told;
    for (int32_t r = 0; r < c->comm.n_ranks; r++)
        if (read_head(block_at(c, c->part.recv, r, c->back_block)).status != QN_OK)
            return qni_fail(c->err, QN_E_PEER,
                            "rank %d failed during the run, and its own error says why", r);
    walk(c, round, true);
    return QN_OK;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* All are here with the same numbers; *rounds: of the rank that needs most. */
static qn_status agree(const struct experts_call *c, qn_status own, int32_t *rounds)
{
    static const char *const names[] = {"n", "k", "n_experts", "piece", "types", "strategies"};
    enum { FACTS = sizeof names / sizeof *names };
    struct qni_facts facts = {.n = FACTS + 1,
                              .n_same = FACTS,
                              .of = {(int32_t)c->n, (int32_t)c->k, c->n_experts, (int32_t)c->piece,
                                     c->g.x.dtype * 256 + c->g.y.dtype,
                                     c->g.strategy * 2 + c->g.quant.symmetric,
                                     own == QN_OK ? rounds_of(c) : 0}};
    QNI_TRY(qni_parallel_agree(&c->comm, own, &facts, "experts", c->err));
    const int32_t i = facts.differs;
    *rounds = facts.most[FACTS];
    return i < 0 ? QN_OK
                 : qni_fail(c->err, QN_E_PEER, "ranks have different %s (%d to %d)", names[i],
                            facts.least[i], facts.most[i]);
}

static qn_status open_call(const qn_ctx *ctx, const qn_parallel_experts_args *given,
                           struct experts_call *c, qn_parallel_experts_args *own, qn_error *err)
{
    memset(c, 0, sizeof *c);
    c->ctx = ctx;
    c->err = err;
    qn_parallel_experts_args_init(own);
    return qni_parallel_open(ctx, given, own, sizeof *own, &own->comm, &c->comm, err);
}

qn_status qn_parallel_experts_scratch(const qn_ctx *ctx, const qn_parallel_experts_args *args,
                                      size_t *bytes, qn_error *err)
{
    struct experts_call c;
    qn_parallel_experts_args own;
    if (bytes == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "bytes is NULL: there is no place for the result");
    QNI_TRY(open_call(ctx, args, &c, &own, err));
    QNI_TRY(read(&c, &own));
    *bytes = c.part.bytes;
    return QN_OK;
}

qn_status qni_parallel_experts_exchanged(const qn_ctx *ctx, const qn_parallel_experts_args *args,
                                         struct qni_exchanged *e, qn_error *err)
{
    struct experts_call c;
    qn_parallel_experts_args own;
    memset(e, 0, sizeof *e);
    QNI_TRY(open_call(ctx, args, &c, &own, err));
    QNI_TRY(read(&c, &own));
    const double ranks = (double)c.comm.n_ranks;
    e->comm = c.comm;
    (void)qn_shard_range(c.n_experts, 1, c.comm.rank, c.comm.n_ranks, &e->first, &e->own);
    e->whole = c.n_experts;
    e->scratch = c.part.bytes;
    e->strategy = c.g.strategy;
    if (c.comm.n_ranks == 1)
        return QN_OK;
    e->at_once = c.piece;
    e->exchanges = 2.0;
    e->bytes = (ranks - 1.0) * (c.comm.all_to_all != NULL ? 1.0 : ranks) *
               ((double)c.out_block + (double)c.back_block);
    return QN_OK;
}

qn_status qn_parallel_experts(const qn_ctx *ctx, const qn_parallel_experts_args *args,
                              void *scratch, size_t scratch_bytes, qn_error *err)
{
    struct experts_call c;
    qn_parallel_experts_args own;
    int32_t rounds = 0;
    QNI_TRY(open_call(ctx, args, &c, &own, err));
    c.scratch = scratch;
    qn_status status = read(&c, &own);
    if (status == QN_OK)
        status = check_data(&c, scratch_bytes);
    QNI_TRY(agree(&c, status, &rounds));
    for (int32_t i = 0; i < rounds; i++)
        QNI_TRY(do_round(&c, i));
    return QN_OK;
}
