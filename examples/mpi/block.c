/* SPDX-License-Identifier: Apache-2.0 */
/* A feed-forward block y = x + down . silu(up . x) over the ranks of MPI, with the bits of one
 * process: up is cut by column, down by row, and between them nothing is exchanged.
 *
 *     mpicc -Iinclude examples/mpi/block.c build/release/libquern.a -lpthread -lm -o block
 *     mpirun -np 4 ./block
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quern/mpi.h>
#include <quern/quern.h>

enum { M = 3, WIDTH = 200, HIDDEN = 700, REPEATS = 20 };

/* A layer's weights: whole, or this rank's part. */
struct layer {
    qn_weight *weight;
    qn_packed *packed;
};

static qn_status make_layer(const qn_ctx *ctx, const qn_comm *comm, qn_split split, int64_t n,
                            int64_t k, struct layer *layer, qn_error *err)
{
    qn_quantize_options how;
    qn_weight *whole = NULL;
    float *const dense = malloc((size_t)(n * k) * sizeof *dense);
    if (dense == NULL)
        return QN_E_MEMORY;
    for (int64_t i = 0; i < n * k; i++)
        dense[i] = (float)((i * 7919 + n) % 255 - 127) / 2000.0f; /* your weights */
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, n, k);
    qn_quantize_options_init(&how);
    qn_status status = qn_format_parse("int8:pc", &how.format, err);
    if (status == QN_OK)
        status = qn_quantize(ctx, &w, &how, &whole, err);
    if (status == QN_OK)
        status =
            qn_weight_shard(ctx, whole, split, comm->rank, comm->n_ranks, &layer->weight, err);
    if (status == QN_OK)
        status = qn_pack(ctx, layer->weight, NULL, &layer->packed, err);
    qn_weight_destroy(whole);
    free(dense);
    return status;
}

/* What a rank needs to compute the block: plans, scratch, and its part of the hidden values. */
struct block {
    struct layer up, down;
    qn_matmul_args up_args, down_args;
    qn_parallel_args up_parallel, down_parallel;
    qn_parallel *up_plan, *down_plan;
    float *hidden;
    void *scratch;
    size_t scratch_bytes;
};

static qn_status block_make(const qn_ctx *ctx, const qn_comm *comm, float *x, float *y,
                            struct block *b, qn_error *err)
{
    int64_t first = 0, own = 0;
    memset(b, 0, sizeof *b);
    qn_status status = make_layer(ctx, comm, QN_SPLIT_COLUMN, HIDDEN, WIDTH, &b->up, err);
    if (status == QN_OK)
        status = make_layer(ctx, comm, QN_SPLIT_ROW, WIDTH, HIDDEN, &b->down, err);
    if (status != QN_OK)
        return status;
    (void)qn_shard_range(HIDDEN, 1, comm->rank, comm->n_ranks, &first, &own);
    b->hidden = malloc((size_t)(M * own + 1) * sizeof *b->hidden);
    if (b->hidden == NULL)
        return QN_E_MEMORY;
    qn_matmul_args_init(&b->up_args);
    b->up_args.w = b->up.packed;
    b->up_args.strategy = QN_STRATEGY_INT8_ROW;
    b->up_args.x = qn_tensor_2d(x, QN_F32, M, WIDTH);
    b->up_args.y = qn_tensor_2d(b->hidden, QN_F32, M, own);
    b->up_args.epilogue.act = QN_ACT_SILU;
    b->down_args = b->up_args;
    b->down_args.w = b->down.packed;
    b->down_args.x = b->up_args.y;
    b->down_args.y = qn_tensor_2d(y, QN_F32, M, WIDTH);
    b->down_args.epilogue.act = QN_ACT_NONE;
    b->down_args.epilogue.residual = b->up_args.x;
    qn_parallel_args_init(&b->up_parallel);
    b->up_parallel.comm = comm;
    b->up_parallel.matmul = &b->up_args;
    b->down_parallel = b->up_parallel;
    b->down_parallel.matmul = &b->down_args;
    b->down_parallel.split = QN_SPLIT_ROW;
    status = qn_parallel_plan(ctx, &b->up_parallel, &b->up_plan, err);
    if (status == QN_OK)
        status = qn_parallel_plan(ctx, &b->down_parallel, &b->down_plan, err);
    const size_t up = qn_parallel_scratch_bytes(b->up_plan);
    const size_t down = qn_parallel_scratch_bytes(b->down_plan);
    b->scratch_bytes = ((up > down ? up : down) + 63) / 64 * 64;
    b->scratch = aligned_alloc(64, b->scratch_bytes + 64);
    return status != QN_OK || b->scratch != NULL ? status : QN_E_MEMORY;
}

static qn_status block_run(const struct block *b, qn_error *err)
{
    const qn_status status =
        qn_parallel_run(b->up_plan, &b->up_parallel, b->scratch, b->scratch_bytes, err);
    if (status != QN_OK)
        return status;
    return qn_parallel_run(b->down_plan, &b->down_parallel, b->scratch, b->scratch_bytes, err);
}

static void block_free(struct block *b)
{
    qn_parallel_destroy(b->up_plan);
    qn_parallel_destroy(b->down_plan);
    qn_packed_destroy(b->up.packed);
    qn_packed_destroy(b->down.packed);
    qn_weight_destroy(b->up.weight);
    qn_weight_destroy(b->down.weight);
    free(b->hidden);
    free(b->scratch);
}

int main(int argc, char **argv)
{
    static float x[M * WIDTH], y[M * WIDTH], alone[M * WIDTH];
    static char text[16384];
    qn_error err = {QN_OK, -1, "the block failed"};
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    struct qn_mpi mpi;
    struct block shared, whole;
    qn_comm comm, self;
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 1;
    qn_ctx_options_init(&options);
    options.n_threads = 1;
    qn_comm_init(&self); /* one process, as it is without MPI */
    for (int i = 0; i < M * WIDTH; i++)
        x[i] = (float)(i % 23 - 11) / 11.0f;
    memset(&shared, 0, sizeof shared);
    memset(&whole, 0, sizeof whole);
    bool failed = qn_mpi_open(&mpi, MPI_COMM_WORLD, 30.0, &comm, &err) ||
                  qn_ctx_create(&options, &ctx, &err) ||
                  block_make(ctx, &comm, x, y, &shared, &err) || block_run(&shared, &err) ||
                  block_make(ctx, &self, x, alone, &whole, &err) || block_run(&whole, &err);
    const double begin = MPI_Wtime();
    for (int i = 0; i < REPEATS && !failed; i++)
        failed = block_run(&shared, &err) != QN_OK;
    const double us = (MPI_Wtime() - begin) * 1e6 / REPEATS;
    const bool same = !failed && memcmp(y, alone, sizeof y) == 0;
    if (failed)
        printf("rank %d: %s\n", comm.rank, err.text);
    else if (comm.rank == 0)
        printf("%d ranks, %.1f us a block, y[0][0] = %g, bits of one process: %s\n", comm.n_ranks,
               us, (double)y[0], same ? "yes" : "no");
    if (!failed && comm.rank == 0) {
        (void)qn_parallel_explain(shared.down_plan, text, sizeof text);
        printf("%.*s\n", (int)strcspn(text, ":") + 1, text);
    }
    block_free(&shared);
    block_free(&whole);
    qn_ctx_destroy(ctx);
    if (!failed)
        qn_mpi_close(&mpi);
    MPI_Finalize();
    return !same;
}
