/* SPDX-License-Identifier: Apache-2.0 */
/* A qn_comm over the program's own MPI (any MPI-3). A header alone: the library links no MPI.
 *
 *     struct qn_mpi mpi;
 *     qn_comm comm;
 *     qn_mpi_open(&mpi, MPI_COMM_WORLD, 30.0, &comm, &err);
 *     ... qn_parallel_plan(), qn_parallel_run() ...
 *     qn_mpi_close(&mpi);
 *
 * Collectives are started and tested, so that a rank that is lost ends in QN_E_PEER after the time
 * limit and not in a wait without end. What was started then is still under way: such a qn_mpi is
 * not closed but left alone, and the program ends by MPI_Abort() or without MPI_Finalize(). Whether
 * MPI itself survives a lost process is a matter of the MPI and of how it was started. One thread
 * at a time. */
#ifndef QUERN_MPI_H
#define QUERN_MPI_H

#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All-reduces of few ranks and few bytes are put together from messages. What OpenMPI 4.1 starts
 * and tests of its own (MPI_Iallreduce) takes 1.2 to 3.7 times as long as its MPI_Allreduce from
 * 1 to 256 KB, messages 0.8 to 1.25 from 4 KB on and 1.7 at 1 KB; MPICH's 1.0 to 1.27, messages
 * 0.75 to 0.95 up to 4 KB and 1.2 to 1.4 above (lab/all_reduce.c, two processes on a core each). */
enum {
    QN_MPI_FEW_RANKS = 8,
#ifdef OPEN_MPI
    QN_MPI_FEW_BYTES = 1 << 18
#else
    QN_MPI_FEW_BYTES = 1 << 12
#endif
};

struct qn_mpi {
    MPI_Comm comm;  /**< A duplicate: messages of the program never meet those of quern. */
    double limit_s; /**< Longest wait of one exchange; 0: without end. */
    MPI_Request begun; /**< What qn_mpi_all_gather_begin() has started. */
    char *others;      /**< What other ranks' messages bring; NULL: none are sent. */
    int rank, n_ranks;
};

/* Waits for what `code` says has been started. */
static inline qn_status qn_mpi_wait_(const struct qn_mpi *mpi, int code, MPI_Request *request,
                                     const char *what, qn_error *err)
{
    const double end = MPI_Wtime() + mpi->limit_s;
    int done = 0;
    while (code == MPI_SUCCESS && !done) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done && mpi->limit_s > 0.0 && MPI_Wtime() > end)
            return qn_comm_fail_(err, QN_E_PEER, what, ": another rank did not answer in time");
    }
    if (code != MPI_SUCCESS) {
        char why[MPI_MAX_ERROR_STRING + 3] = ": ";
        int length = 0;
        if (MPI_Error_string(code, why + 2, &length) != MPI_SUCCESS)
            why[2] = 0;
        return qn_comm_fail_(err, QN_E_PEER, what, why);
    }
    return QN_OK;
}

static inline qn_status qn_mpi_all_gather(void *arg, const void *send, size_t bytes, void *recv,
                                          qn_error *err)
{
    const struct qn_mpi *const mpi = (const struct qn_mpi *)arg;
    MPI_Request request = MPI_REQUEST_NULL;
    if (bytes > 0x7fffffffu)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Iallgather",
                             ": a block has more than 2^31 - 1 bytes");
    return qn_mpi_wait_(mpi,
                        MPI_Iallgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE,
                                       mpi->comm, &request),
                        &request, "MPI_Iallgather", err);
}

static inline qn_status qn_mpi_all_gather_begin(void *arg, const void *send, size_t bytes,
                                                void *recv, qn_error *err)
{
    struct qn_mpi *const mpi = (struct qn_mpi *)arg;
    if (bytes > 0x7fffffffu)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Iallgather",
                             ": a block has more than 2^31 - 1 bytes");
    if (MPI_Iallgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, mpi->comm,
                       &mpi->begun) != MPI_SUCCESS)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Iallgather", ": it does not start");
    return QN_OK;
}

static inline qn_status qn_mpi_wait(void *arg, qn_error *err)
{
    struct qn_mpi *const mpi = (struct qn_mpi *)arg;
    return qn_mpi_wait_(mpi, MPI_SUCCESS, &mpi->begun, "MPI_Iallgather", err);
}

static inline qn_status qn_mpi_all_to_all(void *arg, const void *send, size_t bytes, void *recv,
                                          qn_error *err)
{
    const struct qn_mpi *const mpi = (const struct qn_mpi *)arg;
    MPI_Request request = MPI_REQUEST_NULL;
    if (bytes > 0x7fffffffu)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Ialltoall",
                             ": a block has more than 2^31 - 1 bytes");
    return qn_mpi_wait_(mpi,
                        MPI_Ialltoall(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE,
                                      mpi->comm, &request),
                        &request, "MPI_Ialltoall", err);
}

/* to = to and from. */
static inline void qn_mpi_add_(void *to, const void *from, size_t count, qn_dtype dtype,
                               qn_reduce reduce)
{
    int32_t *const i32 = (int32_t *)to;
    float *const f32 = (float *)to;
    const int32_t *const more = (const int32_t *)from;
    const float *const f32_more = (const float *)from;
    for (size_t i = 0; i < count && dtype == QN_F32 && reduce == QN_REDUCE_SUM; i++)
        f32[i] += f32_more[i];
    for (size_t i = 0; i < count && dtype == QN_F32 && reduce == QN_REDUCE_MAX; i++)
        f32[i] = f32_more[i] > f32[i] ? f32_more[i] : f32[i];
    for (size_t i = 0; i < count && dtype != QN_F32 && reduce == QN_REDUCE_SUM; i++)
        i32[i] = (int32_t)((uint32_t)i32[i] + (uint32_t)more[i]);
    for (size_t i = 0; i < count && dtype != QN_F32 && reduce == QN_REDUCE_MAX; i++)
        i32[i] = more[i] > i32[i] ? more[i] : i32[i];
}

/* Block `rank` of n elements in n_ranks blocks: where it begins. */
static inline size_t qn_mpi_block_(const struct qn_mpi *mpi, size_t n, int rank)
{
    return n * (size_t)rank / (size_t)mpi->n_ranks;
}

/* Waits for messages to and from all others. */
static inline qn_status qn_mpi_wait_all_(const struct qn_mpi *mpi, int code, MPI_Request *requests,
                                         int n, qn_error *err)
{
    const double end = MPI_Wtime() + mpi->limit_s;
    MPI_Status statuses[2 * QN_MPI_FEW_RANKS];
    int done = 0;
    for (int times = 1; code == MPI_SUCCESS && !done; times++) {
        code = MPI_Testall(n, requests, &done, statuses);
        if (!done && mpi->limit_s > 0.0 && times % 64 == 0 && MPI_Wtime() > end)
            return qn_comm_fail_(err, QN_E_PEER, "all-reduce",
                                 ": another rank did not answer in time");
    }
    return code == MPI_SUCCESS
               ? QN_OK
               : qn_comm_fail_(err, QN_E_PEER, "all-reduce", ": a message failed");
}

/* Each rank adds one block of all ranks' data, in order of rank, and gives it to all. */
static inline qn_status qn_mpi_reduce_few_(const struct qn_mpi *mpi, char *data, size_t count,
                                           qn_dtype dtype, qn_reduce reduce, qn_error *err)
{
    enum { TAG = 7 };
    MPI_Request requests[2 * QN_MPI_FEW_RANKS];
    const size_t first = qn_mpi_block_(mpi, count, mpi->rank);
    const size_t own = qn_mpi_block_(mpi, count, mpi->rank + 1) - first;
    int n = 0, code = MPI_SUCCESS;
    for (int i = 1; i < mpi->n_ranks && code == MPI_SUCCESS; i++) {
        const int from = (mpi->rank + i) % mpi->n_ranks;
        code = MPI_Irecv(mpi->others + (size_t)from * own * 4, (int)(own * 4), MPI_BYTE, from, TAG,
                         mpi->comm, &requests[n++]);
    }
    for (int i = 1; i < mpi->n_ranks && code == MPI_SUCCESS; i++) {
        const int to = (mpi->rank + i) % mpi->n_ranks;
        const size_t at = qn_mpi_block_(mpi, count, to);
        code = MPI_Isend(data + at * 4, (int)((qn_mpi_block_(mpi, count, to + 1) - at) * 4),
                         MPI_BYTE, to, TAG, mpi->comm, &requests[n++]);
    }
    qn_status status = qn_mpi_wait_all_(mpi, code, requests, n, err);
    if (status != QN_OK)
        return status;
    char *const sum = mpi->others; /* block 0 is rank 0's */
    memcpy(mpi->others + (size_t)mpi->rank * own * 4, data + first * 4, own * 4);
    for (int r = 1; r < mpi->n_ranks; r++)
        qn_mpi_add_(sum, mpi->others + (size_t)r * own * 4, own, dtype, reduce);
    memcpy(data + first * 4, sum, own * 4);
    n = 0;
    for (int i = 1; i < mpi->n_ranks && code == MPI_SUCCESS; i++) {
        const int from = (mpi->rank + i) % mpi->n_ranks;
        const size_t at = qn_mpi_block_(mpi, count, from);
        code = MPI_Irecv(data + at * 4, (int)((qn_mpi_block_(mpi, count, from + 1) - at) * 4),
                         MPI_BYTE, from, TAG, mpi->comm, &requests[n++]);
    }
    for (int i = 1; i < mpi->n_ranks && code == MPI_SUCCESS; i++)
        code = MPI_Isend(data + first * 4, (int)(own * 4), MPI_BYTE, (mpi->rank + i) % mpi->n_ranks,
                         TAG, mpi->comm, &requests[n++]);
    return qn_mpi_wait_all_(mpi, code, requests, n, err);
}

static inline qn_status qn_mpi_all_reduce(void *arg, void *data, size_t count, qn_dtype dtype,
                                          qn_reduce reduce, qn_error *err)
{
    const struct qn_mpi *const mpi = (const struct qn_mpi *)arg;
    MPI_Request request = MPI_REQUEST_NULL;
    if (mpi->others != NULL && count * 4 <= QN_MPI_FEW_BYTES)
        return qn_mpi_reduce_few_(mpi, (char *)data, count, dtype, reduce, err);
    if (count > 0x7fffffffu)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Iallreduce", ": more than 2^31 - 1 elements");
    return qn_mpi_wait_(mpi,
                        MPI_Iallreduce(MPI_IN_PLACE, data, (int)count,
                                       dtype == QN_F32 ? MPI_FLOAT : MPI_INT32_T,
                                       reduce == QN_REDUCE_MAX ? MPI_MAX : MPI_SUM, mpi->comm,
                                       &request),
                        &request, "MPI_Iallreduce", err);
}

/** Collective over comm. limit_s: longest wait of one exchange; 0: without end. mpi and *to are
 * the caller's and stay where they are until qn_mpi_close().
 * @return QN_OK; QN_E_ARGUMENT; QN_E_PEER: MPI said no. */
static inline qn_status qn_mpi_open(struct qn_mpi *mpi, MPI_Comm comm, double limit_s, qn_comm *to,
                                    qn_error *err)
{
    if (mpi == NULL || to == NULL || !(limit_s >= 0.0)) {
        return qn_comm_fail_(err, QN_E_ARGUMENT, "qn_mpi_open",
                             ": mpi or comm is NULL, or the limit is no time");
    }
    mpi->limit_s = limit_s;
    if (MPI_Comm_dup(comm, &mpi->comm) != MPI_SUCCESS ||
        MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN) != MPI_SUCCESS)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Comm_dup", ": the communicator cannot be used");
    qn_comm_init(to);
    if (MPI_Comm_rank(mpi->comm, &to->rank) != MPI_SUCCESS ||
        MPI_Comm_size(mpi->comm, &to->n_ranks) != MPI_SUCCESS)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Comm_rank", ": the communicator cannot be used");
    mpi->rank = to->rank;
    mpi->n_ranks = to->n_ranks;
    mpi->others = to->n_ranks > 1 && to->n_ranks <= QN_MPI_FEW_RANKS
                      ? (char *)malloc(QN_MPI_FEW_BYTES + 4 * QN_MPI_FEW_RANKS)
                      : NULL;
    to->arg = mpi;
    to->all_gather = qn_mpi_all_gather;
    to->all_reduce = qn_mpi_all_reduce;
    to->all_to_all = qn_mpi_all_to_all;
    to->all_gather_begin = qn_mpi_all_gather_begin;
    to->wait = qn_mpi_wait;
    return QN_OK;
}

/** Collective. Not after a failed exchange. */
static inline void qn_mpi_close(struct qn_mpi *mpi)
{
    if (mpi == NULL)
        return;
    (void)MPI_Comm_free(&mpi->comm);
    free(mpi->others);
    mpi->others = NULL;
}

#ifdef __cplusplus
}
#endif
#endif
