/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests that mpirun has started (QN_TEST_MPI): each ranks_run() of as many ranks as there
 * are processes runs in all of them, over quern/mpi.h; others are left out. */
#ifndef TEST_API_RANKS_MPI_H
#define TEST_API_RANKS_MPI_H

#include <quern/mpi.h>

#include "api.h"

enum { MOST_RANKS = 4 };

struct ranks {
    int32_t rank, n;
    struct qn_mpi mpi;
    qn_comm comm;
};

typedef const char *(*rank_fn)(struct ranks *ranks, void *arg);

static int ranks_n_run; /* of ranks_run() that were not left out */

static inline qn_status ranks_all_gather(void *arg, const void *send, size_t bytes, void *recv,
                                         qn_error *err)
{
    return qn_mpi_all_gather(&((struct ranks *)arg)->mpi, send, bytes, recv, err);
}

/* It is never called: for a qn_comm of which a test wants to see that it is refused. */
static inline qn_status ranks_wait(void *arg, qn_error *err)
{
    return qn_mpi_wait(&((struct ranks *)arg)->mpi, err);
}

static inline qn_comm ranks_comm(struct ranks *c, bool with_all_to_all)
{
    qn_comm comm = c->comm;
    if (comm.size == 0) { /* one rank, which exchanges nothing */
        qn_comm_init(&comm);
        comm.all_gather = qn_mpi_all_gather;
        comm.all_reduce = qn_mpi_all_reduce;
    }
    comm.all_to_all = with_all_to_all ? comm.all_to_all : NULL;
    comm.all_gather_begin = NULL; /* tests of overlap have one of their own */
    comm.wait = NULL;
    return comm;
}

static inline void ranks_run(int32_t n, rank_fn work, void *arg)
{
    struct ranks own;
    qn_error err = {QN_OK, -1, ""};
    int size = 0, is_there = 0;
    MPI_Initialized(&is_there);
    if (!is_there)
        MPI_Init(NULL, NULL);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != n)
        return;
    ranks_n_run++;
    memset(&own, 0, sizeof own);
    if (qn_mpi_open(&own.mpi, MPI_COMM_WORLD, 60.0, &own.comm, &err) != QN_OK)
        fail_msg("%s", err.text);
    own.rank = own.comm.rank;
    own.n = n;
    const char *const wrong = work(&own, arg);
    if (wrong != NULL) {
        fprintf(stderr, "rank %d of %d: %s\n", own.rank, n, wrong);
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    qn_mpi_close(&own.mpi);
}

/* The end of main(). */
static inline int ranks_end(int failed)
{
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        printf("%d cases on all ranks, %d tests failed\n", ranks_n_run, failed);
    MPI_Finalize();
    return failed != 0 || ranks_n_run == 0;
}

#endif
