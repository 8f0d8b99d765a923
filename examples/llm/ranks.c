/* SPDX-License-Identifier: Apache-2.0 */
/* With MPI, if it is compiled with LLM_MPI:
 *
 *     mpicc -DLLM_MPI -Iinclude examples/llm/[a-z]*.c libquern.a -lcjson -lpthread -lm -o llm
 *     mpirun -np 2 ./llm --ranks MODEL -p "The capital of France is"
 */
#include "ranks.h"

#include <stdio.h>

bool ranks_agree(const qn_comm *comm, bool is_good)
{
    int32_t n_failed = !is_good;
    return comm->all_reduce(comm->arg, &n_failed, 1, QN_I32, QN_REDUCE_SUM, NULL) == QN_OK &&
           n_failed == 0;
}

#ifdef LLM_MPI
#include <quern/mpi.h>

static struct qn_mpi mpi;

bool ranks_open(qn_comm *comm)
{
    qn_error err = {QN_E_PEER, -1, "MPI does not start"};
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS ||
        qn_mpi_open(&mpi, MPI_COMM_WORLD, 60.0, comm, &err) != QN_OK) {
        fprintf(stderr, "llm: %s\n", err.text);
        return false;
    }
    return comm->rank == 0 || freopen("/dev/null", "w", stdout) != NULL;
}

void ranks_close(bool has_failed)
{
    if (has_failed)
        MPI_Abort(MPI_COMM_WORLD, 1);
    qn_mpi_close(&mpi);
    MPI_Finalize();
}

#else

bool ranks_open(qn_comm *comm)
{
    (void)comm;
    fprintf(stderr, "llm: --ranks: this program was compiled without MPI (ranks.c says how)\n");
    return false;
}

void ranks_close(bool has_failed)
{
    (void)has_failed;
}

#endif
