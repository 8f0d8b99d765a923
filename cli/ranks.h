/* SPDX-License-Identifier: Apache-2.0 */
/* Several processes of this command, started by mpirun. MPI is not linked: a file beside the
 * command (quern-openmpi.so, quern-mpich.so; made where the build finds these MPIs) is loaded, by
 * the variables that the mpirun of each sets. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include <quern/parallel.h>

/* What such a file has: "quern_ranks_open" and "quern_ranks_close". */
typedef qn_status ranks_open_fn(double limit_s, qn_comm *comm, qn_error *err);
typedef void ranks_close_fn(int has_failed);

struct ranks {
    qn_comm comm;
    ranks_close_fn *close; /* NULL: one process, without MPI */
};

struct args;
/* 0 or the exit status. */
int ranks_open(const struct args *args, struct ranks *ranks);
/* status: the exit status; where it is a failure the other processes end as well. Returns it. */
int ranks_close(struct ranks *ranks, int status);
/* Measure and set comm.latency_s and comm.bytes_per_s. On all ranks at once. */
qn_status ranks_measure(qn_comm *comm, qn_error *err);
/* The largest of all ranks' times. */
qn_status ranks_slowest(const qn_comm *comm, double *seconds, qn_error *err);

/* quern tune --comm. */
int tune_comm(const struct args *args);
/* Does `quern bench --parallel`, on every rank. */
int bench_parallel(const struct args *args, const char *way);

#endif
