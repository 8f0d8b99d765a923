/* SPDX-License-Identifier: Apache-2.0 */
/* Starting as one of several processes, and measuring what lies between them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "output.h"
#include "ranks.h"

const struct option_row options_ranks[] = {
    {"join-mpi", 0, "FILE",
     "the file that joins this command to an MPI (default: quern-openmpi.so or quern-mpich.so "
     "beside the command, by the mpirun that started it)"},
    {"limit", 0, "SECONDS", "longest wait for another process (default 60)"},
    {NULL, 0, NULL, NULL},
};

/* Beside the command, or in lib/quern beside its folder. To be freed; NULL: neither is there. */
static char *find_file(const char *name)
{
    static const char *const folders[] = {"", QUERN_MPI_FOLDER};
    char command[4096];
    const ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
    if (length <= 0)
        return NULL;
    command[length] = '\0';
    char *const slash = strrchr(command, '/');
    if (slash == NULL)
        return NULL;
    slash[1] = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *const path = must_print("%s%s%s", command, folders[i], name);
        if (access(path, R_OK) == 0)
            return path;
        free(path);
    }
    return NULL;
}

/* POSIX has functions behind void *, C has not. */
static void *symbol_of(void *library, const char *name, void *function)
{
    void *const symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol;
}

static int load(const char *path, double limit, struct ranks *ranks)
{
    qn_error err = {0};
    ranks_open_fn *open = NULL;
    /* MPIs load parts of themselves, which look for MPI among what everybody sees. */
    void *const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        return complain(EXIT_LIBRARY, "build quern where that MPI is", "%s", dlerror());
    if (symbol_of(library, "quern_ranks_open", &open) == NULL ||
        symbol_of(library, "quern_ranks_close", &ranks->close) == NULL)
        return complain(EXIT_LIBRARY,
                        "--join-mpi takes quern-openmpi.so, quern-mpich.so or their like",
                        "%s: no file that joins quern to an MPI", path);
    const qn_status status = open(limit, &ranks->comm, &err);
    return status == QN_OK ? 0 : complain_status("MPI", status, &err);
}

int ranks_open(const struct args *args, struct ranks *ranks)
{
    const char *const name = getenv("OMPI_COMM_WORLD_SIZE") != NULL ? "quern-openmpi.so"
                             : getenv("PMI_SIZE") != NULL           ? "quern-mpich.so"
                                                                    : NULL;
    const char *const given = args_text(args, "join-mpi", NULL);
    double limit = 60;
    memset(ranks, 0, sizeof *ranks);
    qn_comm_init(&ranks->comm);
    int status = args_real(args, "limit", 0, 86400, &limit);
    if (status != 0 || (given == NULL && name == NULL))
        return status;
    char *const path = given != NULL ? must_copy(given) : find_file(name);
    if (path == NULL)
        return complain(EXIT_LIBRARY,
                        "install the MPI's compiler (Debian: libopenmpi-dev, libmpich-dev) and "
                        "build again, or give --join-mpi",
                        "%s is not beside the command", name);
    status = load(path, limit, ranks);
    free(path);
    return status;
}

int ranks_close(struct ranks *ranks, int status)
{
    fflush(stdout);
    if (ranks->close != NULL)
        ranks->close(status);
    return status;
}

qn_status ranks_slowest(const qn_comm *comm, double *seconds, qn_error *err)
{
    int32_t ns = *seconds < 2 ? (int32_t)(*seconds * 1e9) : 2000000000;
    if (comm->n_ranks == 1)
        return QN_OK;
    const qn_status status = comm->all_reduce(comm->arg, &ns, 1, QN_I32, QN_REDUCE_MAX, err);
    *seconds = ns * 1e-9;
    return status;
}

static int before(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of gathering blocks; of 4 bytes: of adding an integer. */
static qn_status time_exchange(const qn_comm *comm, uint8_t *send, size_t bytes, uint8_t *recv,
                               double *median, qn_error *err)
{
    enum { TIMES = 41 };
    double took[TIMES];
    int32_t one = 1;
    qn_status status = QN_OK;
    for (int i = -3; i < TIMES && status == QN_OK; i++) {
        const double begin = seconds_now();
        status = bytes == sizeof one
                     ? comm->all_reduce(comm->arg, &one, 1, QN_I32, QN_REDUCE_MAX, err)
                     : comm->all_gather(comm->arg, send, bytes, recv, err);
        took[i < 0 ? 0 : i] = seconds_now() - begin;
    }
    qsort(took, TIMES, sizeof *took, before);
    *median = took[TIMES / 2];
    return status == QN_OK ? ranks_slowest(comm, median, err) : status;
}

qn_status ranks_measure(qn_comm *comm, qn_error *err)
{
    enum { BLOCK = 1 << 20 };
    double least = 0, full = 0;
    if (comm->n_ranks == 1)
        return QN_OK;
    uint8_t *const send = must_alloc(BLOCK), *const recv =
                                                 must_alloc((size_t)comm->n_ranks * BLOCK);
    memset(send, 1, BLOCK);
    memset(recv, 2, (size_t)comm->n_ranks * BLOCK);
    qn_status status = time_exchange(comm, send, sizeof(int32_t), recv, &least, err);
    if (status == QN_OK)
        status = time_exchange(comm, send, BLOCK, recv, &full, err);
    free(send);
    free(recv);
    comm->latency_s = least;
    comm->bytes_per_s = full > least ? (double)(comm->n_ranks - 1) * BLOCK / (full - least) : 0;
    return status;
}

/* Sizes of what is exchanged, and how long that takes by the two numbers and by the clock. */
static void print_exchanges(const qn_comm *comm, const double *bytes, const double *took, int n)
{
    printf("%12s %12s %12s\n", "bytes", "measured us", "predicted us");
    for (int i = 0; i < n; i++)
        printf("%12.0f %12.1f %12.1f\n", bytes[i], took[i] * 1e6,
               (comm->latency_s + (comm->n_ranks - 1) * bytes[i] / comm->bytes_per_s) * 1e6);
}

int tune_comm(const struct args *args)
{
    enum { SIZES = 5, MOST = 1 << 20 };
    struct ranks ranks;
    qn_error err = {0};
    double bytes[SIZES], took[SIZES];
    int status = ranks_open(args, &ranks);
    if (status == 0 && ranks.comm.n_ranks == 1)
        status = complain(EXIT_USAGE, "mpirun -np 2 quern tune --comm",
                          "--comm needs more than one process");
    if (status != 0)
        return ranks_close(&ranks, status);
    const qn_comm *const comm = &ranks.comm;
    uint8_t *const send = must_alloc(MOST), *const recv = must_alloc((size_t)comm->n_ranks * MOST);
    memset(send, 1, MOST);
    qn_status measured = ranks_measure(&ranks.comm, &err);
    for (int i = 0; i < SIZES && measured == QN_OK; i++) {
        bytes[i] = i == 0 ? 64 : (double)(256 << (3 * i));
        measured = time_exchange(comm, send, (size_t)bytes[i], recv, &took[i], &err);
    }
    if (measured != QN_OK) {
        status = complain_status("--comm", measured, &err);
    } else if (comm->rank == 0 && args_has(args, "json")) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "ranks", comm->n_ranks);
        cJSON_AddNumberToObject(o, "latency_s", comm->latency_s);
        cJSON_AddNumberToObject(o, "bytes_per_s", comm->bytes_per_s);
        json_print(o, 1);
    } else if (comm->rank == 0) {
        printf("%d processes: latency_s %.3g, bytes_per_s %.3g\n", comm->n_ranks, comm->latency_s,
               comm->bytes_per_s);
        print_exchanges(comm, bytes, took, SIZES);
    }
    free(send);
    free(recv);
    return ranks_close(&ranks, status);
}
