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

#include <mpi.h>

#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct qn_mpi {
    MPI_Comm comm;  /**< A duplicate: messages of the program never meet those of quern. */
    double limit_s; /**< Longest wait of one exchange; 0: without end. */
    MPI_Request begun; /**< What qn_mpi_all_gather_begin() has started. */
};

static inline qn_status qn_mpi_fail_(qn_error *err, const char *what, const char *why)
{
    size_t n = 0;
    if (err == NULL)
        return QN_E_PEER;
    err->status = QN_E_PEER;
    err->offset = -1;
    while (*what != 0 && n + 1 < sizeof err->text)
        err->text[n++] = *what++;
    while (*why != 0 && n + 1 < sizeof err->text)
        err->text[n++] = *why++;
    err->text[n] = 0;
    return QN_E_PEER;
}

/* Waits for what `code` says has been started. */
static inline qn_status qn_mpi_wait_(const struct qn_mpi *mpi, int code, MPI_Request *request,
                                     const char *what, qn_error *err)
{
    const double end = MPI_Wtime() + mpi->limit_s;
    int done = 0;
    while (code == MPI_SUCCESS && !done) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done && mpi->limit_s > 0.0 && MPI_Wtime() > end)
            return qn_mpi_fail_(err, what, ": another rank did not answer in time");
    }
    if (code != MPI_SUCCESS) {
        char why[MPI_MAX_ERROR_STRING + 3] = ": ";
        int length = 0;
        if (MPI_Error_string(code, why + 2, &length) != MPI_SUCCESS)
            why[2] = 0;
        return qn_mpi_fail_(err, what, why);
    }
    return QN_OK;
}

static inline qn_status qn_mpi_all_gather(void *arg, const void *send, size_t bytes, void *recv,
                                          qn_error *err)
{
    const struct qn_mpi *const mpi = (const struct qn_mpi *)arg;
    MPI_Request request = MPI_REQUEST_NULL;
    if (bytes > 0x7fffffffu)
        return qn_mpi_fail_(err, "MPI_Iallgather", ": a block has more than 2^31 - 1 bytes");
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
        return qn_mpi_fail_(err, "MPI_Iallgather", ": a block has more than 2^31 - 1 bytes");
    if (MPI_Iallgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, mpi->comm,
                       &mpi->begun) != MPI_SUCCESS)
        return qn_mpi_fail_(err, "MPI_Iallgather", ": it does not start");
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
        return qn_mpi_fail_(err, "MPI_Ialltoall", ": a block has more than 2^31 - 1 bytes");
    return qn_mpi_wait_(mpi,
                        MPI_Ialltoall(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE,
                                      mpi->comm, &request),
                        &request, "MPI_Ialltoall", err);
}

static inline qn_status qn_mpi_all_reduce(void *arg, void *data, size_t count, qn_dtype dtype,
                                          qn_reduce reduce, qn_error *err)
{
    const struct qn_mpi *const mpi = (const struct qn_mpi *)arg;
    MPI_Request request = MPI_REQUEST_NULL;
    if (count > 0x7fffffffu)
        return qn_mpi_fail_(err, "MPI_Iallreduce", ": more than 2^31 - 1 elements");
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
        (void)qn_mpi_fail_(err, "qn_mpi_open", ": mpi or comm is NULL, or the limit is no time");
        if (err != NULL)
            err->status = QN_E_ARGUMENT;
        return QN_E_ARGUMENT;
    }
    mpi->limit_s = limit_s;
    if (MPI_Comm_dup(comm, &mpi->comm) != MPI_SUCCESS ||
        MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN) != MPI_SUCCESS)
        return qn_mpi_fail_(err, "MPI_Comm_dup", ": the communicator cannot be used");
    qn_comm_init(to);
    if (MPI_Comm_rank(mpi->comm, &to->rank) != MPI_SUCCESS ||
        MPI_Comm_size(mpi->comm, &to->n_ranks) != MPI_SUCCESS)
        return qn_mpi_fail_(err, "MPI_Comm_rank", ": the communicator cannot be used");
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
    if (mpi != NULL)
        (void)MPI_Comm_free(&mpi->comm);
}

#ifdef __cplusplus
}
#endif
#endif
