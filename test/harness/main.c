/* SPDX-License-Identifier: Apache-2.0 */
/* quern-check: the sweep over kernels, operations, formats, shapes, ISA masks and threads. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/harness.h"
#include "kernel/suites.h"

/* The suites of each device. */
struct suites {
    check_suite_fn *fn[64];
    const char *name[64];
    int32_t n;
};

static void add_suite(struct suites *s, check_suite_fn *fn, const char *name)
{
    s->fn[s->n] = fn;
    s->name[s->n++] = name;
}

static void find_suites(int32_t kind, struct suites *s)
{
    enum { CPU = QN_CPU, CUDA = QN_CUDA, BOTH = 0 };
#define CHECK_SUITE(name, function, where)                                                         \
    if ((where) == BOTH || (where) == kind)                                                        \
        add_suite(s, check_##function, name);
#include "kernel/suites.inc"
#undef CHECK_SUITE
}

static const char usage[] =
    "quern-check: compare every kernel and operation of quern with the reference.\n"
    "\n"
    "  --filter TEXT    only cases whose name contains TEXT, or matches it if it has * or ?\n"
    "  --list           print the names of the cases and stop\n"
    "  --quick          a small part of the sweep, for emulators and sanitizers\n"
    "  --isa NAMES      use these features at most (\"avx2\", \"portable\", \"-amx_int8\"): no ISA "
    "sweep\n"
    "  --threads N      only N threads; 0 (default) sweeps 1, 2, 5 and a caller's own\n"
    "  --seed N         other data (default 1)\n"
    "  --device NAME    cpu (default), cuda or cuda:1: suites that a GPU has no part in are left "
    "out\n"
    "  --separate       on a GPU, memory of its own for each operand (compute-sanitizer)\n"
    "  --jobs N         worker processes (default: one for each CPU); 0 runs all in this process\n"
    "  --verbose        a line for every case\n"
    "\n"
    "Exit status: 0 all is well, 1 a case failed, 2 the command line is wrong.\n"
    "\n"
    "  quern-check --quick\n"
    "  quern-check --filter 'api.matmul/int8-block/*' --isa avx2\n";

static int wrong(const char *what, const char *value)
{
    fprintf(stderr, "quern-check: %s%s%s; --help shows all options\n", what,
            value != NULL ? ": " : "", value != NULL ? value : "");
    return 2;
}

static bool number(const char *text, uint64_t largest, uint64_t *value)
{
    char *end;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 0);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || v > largest)
        return false;
    *value = v;
    return true;
}

/* Options that take a value. Returns an exit status, or -1 to go on. */
static int set_option(struct check_options *o, const char *name, const char *value)
{
    uint64_t v = 0;
    qn_error err;
    if (value == NULL)
        return wrong("a value is missing after", name);
    if (strcmp(name, "--filter") == 0) {
        o->filter = value;
    } else if (strcmp(name, "--isa") == 0) {
        if (qn_isa_parse(value, &o->isa, &err) != QN_OK)
            return wrong(err.text, NULL);
        o->isa_given = true;
    } else if (strcmp(name, "--seed") == 0) {
        if (!number(value, UINT64_MAX, &o->seed))
            return wrong("--seed is a number, not", value);
    } else if (strcmp(name, "--threads") == 0) {
        if (!number(value, 256, &v))
            return wrong("--threads is 0 to 256, not", value);
        o->threads = (int32_t)v;
    } else if (strcmp(name, "--jobs") == 0) {
        if (!number(value, 64, &v))
            return wrong("--jobs is 0 to 64, not", value);
        o->jobs = (int32_t)v;
    } else if (strcmp(name, "--device") == 0) {
        o->device = check_device_find(value, &o->device_index);
        if (o->device == NULL)
            return wrong("no such device", value);
    } else {
        return wrong("no such option", name);
    }
    return -1;
}

int main(int argc, char **argv)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct check_options o = {
        .isa = QN_ISA_ALL,
        .seed = 1,
        .jobs = cpus > 0 ? (int32_t)cpus : 1,
        .device = NULL,
    };
    o.device = check_device_find("cpu", &o.device_index);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--list") == 0) {
            o.list = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            o.quick = true;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            o.verbose = true;
        } else if (strcmp(argv[i], "--separate") == 0) {
            o.separate = true;
        } else {
            const int status = set_option(&o, argv[i], argv[i + 1]);
            if (status >= 0)
                return status;
            i++;
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* whole lines, for several processes write them */
    o.isa &= qn_isa_detect();
    struct suites suites = {.n = 0};
    find_suites(o.device->kind, &suites);
    return check_run(&o, suites.fn, suites.name, suites.n);
}
