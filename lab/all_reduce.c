/* SPDX-License-Identifier: Apache-2.0 */
/* What quern/mpi.h's all-reduce costs beside the MPI's own, in turn, medians of many:
 *
 *     mpicc -O2 -Iinclude lab/all_reduce.c build/release/libquern.a -lpthread -lm -o all_reduce
 *     mpirun -np 2 --bind-to core ./all_reduce
 *
 * Found with OpenMPI 4.1.4 and MPICH 4.0.2: MPICH's MPI_Iallreduce is as fast as its MPI_Allreduce
 * from 16 KB on; OpenMPI's is not, and messages of the header's own are. 64 KB: OpenMPI 0.89 to
 * 0.97 of MPI_Allreduce (MPI_Iallreduce 1.34 to 1.45), MPICH 1.03.
 * Columns: bytes, us of MPI_Allreduce(), of qn_mpi_all_reduce(), of MPI_Iallreduce() and
 * MPI_Test(), and the last two over the first. */
#include <stdio.h>
#include <stdlib.h>

#include <quern/mpi.h>
#include <quern/quern.h>

enum { MOST = 1 << 18, TURNS = 801, WAYS = 3 };

static int before(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void reduce(struct qn_mpi *mpi, int way, float *data, int count)
{
    MPI_Request request;
    int done = 0;
    if (way == 0)
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, mpi->comm);
    if (way == 1)
        (void)qn_mpi_all_reduce(mpi, data, (size_t)count, QN_F32, QN_REDUCE_SUM, NULL);
    if (way == 2) {
        MPI_Iallreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, mpi->comm, &request);
        while (!done)
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    static float data[MOST / sizeof(float)];
    static double took[WAYS][TURNS];
    struct qn_mpi mpi;
    qn_comm comm;
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS ||
        qn_mpi_open(&mpi, MPI_COMM_WORLD, 60.0, &comm, NULL) != QN_OK)
        return 1;
    for (int bytes = 64; bytes <= MOST; bytes *= 4) {
        const int count = bytes / (int)sizeof(float);
        for (int turn = 0; turn < TURNS; turn++)
            for (int way = 0; way < WAYS; way++) {
                MPI_Barrier(mpi.comm);
                const double begin = MPI_Wtime();
                reduce(&mpi, way, data, count);
                took[way][turn] = (MPI_Wtime() - begin) * 1e6;
            }
        for (int way = 0; way < WAYS; way++)
            qsort(took[way], TURNS, sizeof(double), before);
        const double own = took[0][TURNS / 2];
        if (comm.rank == 0)
            printf("%8d %8.2f %8.2f %8.2f   %.2f %.2f\n", bytes, own, took[1][TURNS / 2],
                   took[2][TURNS / 2], took[1][TURNS / 2] / own, took[2][TURNS / 2] / own);
    }
    qn_mpi_close(&mpi);
    MPI_Finalize();
    return 0;
}
