/* SPDX-License-Identifier: Apache-2.0 */
/* What the command loads for `mpirun -np N quern bench --parallel`: quern/mpi.h, compiled for one
 * MPI. The command itself links none. */
#include <stdlib.h>

#include <quern/mpi.h>

#include "../ranks.h"

static struct qn_mpi mpi;

__attribute__((visibility("default"))) qn_status quern_ranks_open(double limit_s, qn_comm *comm,
                                                                  qn_error *err)
{
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS)
        return qn_comm_fail_(err, QN_E_PEER, "MPI_Init", ": MPI does not start");
    return qn_mpi_open(&mpi, MPI_COMM_WORLD, limit_s, comm, err);
}

__attribute__((visibility("default"))) void quern_ranks_close(int has_failed)
{
    if (has_failed)
        MPI_Abort(MPI_COMM_WORLD, has_failed); /* ends the others, which may wait for this one */
    qn_mpi_close(&mpi);
    MPI_Finalize();
}

/* Typed once more, so that the compiler compares them with what the command calls. */
__attribute__((unused)) static ranks_open_fn *const open_type = quern_ranks_open;
__attribute__((unused)) static ranks_close_fn *const close_type = quern_ranks_close;
