/* SPDX-License-Identifier: Apache-2.0 */
/* The context from options and environment (this is where variables become options), the clock,
 * Ctrl-C, and printing JSON. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "term.h"
#include "tuning.h"

const struct option_row options_context[] = {
    {"device", 0, "DEVICE", "cpu (default), cuda or cuda:INDEX"},
    {"isa", 0, "LIST",
     "instructions that may be used: all, portable, avx2, -amx_int8, ...; else QUERN_ISA"},
    {"threads", 't', "N", "threads; 0: as many as this process may use; else QUERN_THREADS"},
    {NULL, 0, NULL, NULL},
};

const struct option_row options_tuning[] = {
    {"tuning", 0, "FILE",
     "choose kernels by the constants that 'quern tune' has written there (default on a GPU: where "
     "it writes them); none: by those of the library"},
    {NULL, 0, NULL, NULL},
};

static int read_device(const char *text, qn_device *device)
{
    int64_t index = 0;
    if (strcmp(text, "cpu") == 0) {
        device->kind = QN_CPU;
    } else if (strncmp(text, "cuda", 4) == 0 && (text[4] == '\0' || text[4] == ':')) {
        device->kind = QN_CUDA;
        if (text[4] == ':' && parse_int("--device cuda:", text + 5, 0, 63, &index) != 0)
            return EXIT_USAGE;
    } else {
        return complain(EXIT_USAGE, "cpu, cuda and cuda:INDEX are possible",
                        "--device '%s': no such device", text);
    }
    device->index = (int32_t)index;
    return 0;
}

static void log_line(void *arg, int32_t severity, const char *text)
{
    (void)arg;
    if (severity >= 2)
        fprintf(stderr, "quern: %s\n", text);
}

int context_make(const struct args *args, qn_ctx **ctx)
{
    return context_make_on(args, "cpu", ctx);
}

int context_make_on(const struct args *args, const char *device, qn_ctx **ctx)
{
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.log = args->command->shows_plans ? NULL : log_line;
    options.alloc = memory_alloc;
    options.free = memory_free;
    qn_error err = {0};
    int status = read_device(args_text(args, "device", device), &options.device);
    if (status != 0)
        return status;

    const char *variable = getenv("QUERN_ISA");
    const char *isa = args_text(args, "isa", variable);
    if (isa != NULL && isa[0] != '\0') {
        if (qn_isa_parse(isa, &options.isa_mask, &err) != QN_OK)
            return complain_status(args_has(args, "isa") ? "--isa" : "QUERN_ISA", QN_E_ARGUMENT,
                                   &err);
    }
    variable = getenv("QUERN_THREADS");
    const char *threads = args_text(args, "threads", variable);
    if (threads != NULL && threads[0] != '\0') {
        int64_t n;
        status = parse_int(args_has(args, "threads") ? "--threads" : "QUERN_THREADS", threads, 0,
                           1024, &n);
        if (status != 0)
            return status;
        options.n_threads = (int32_t)n;
    }
    const qn_status made = qn_ctx_create(&options, ctx, &err);
    if (made != QN_OK)
        return complain_status(args_text(args, "device", device), made, &err);
    status = tuning_use(args, *ctx);
    if (status != 0) {
        qn_ctx_destroy(*ctx);
        *ctx = NULL;
    }
    return status;
}

qn_device device_of(const qn_ctx *ctx)
{
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    return info.device;
}

const char *isa_text(uint64_t isa, char *text, size_t capacity)
{
    size_t length = 0;
    text[0] = '\0';
    for (int i = 0; i < 64 && length < capacity; i++) {
        const char *name = qn_isa_name(isa & (UINT64_C(1) << i));
        if ((isa >> i & 1) != 0 && name != NULL)
            length += (size_t)snprintf(text + length, capacity - length, "%s%s",
                                       length > 0 ? " " : "", name);
    }
    if (length == 0)
        snprintf(text, capacity, "portable");
    return text;
}

const char *isa_newest(uint64_t isa)
{
    for (int i = 63; i >= 0; i--) {
        const char *name = qn_isa_name(UINT64_C(1) << i);
        if ((isa >> i & 1) != 0 && name != NULL)
            return name;
    }
    return "portable";
}

static volatile sig_atomic_t stopped;

static void on_interrupt(int number)
{
    (void)number;
    stopped = 1;
}

void stop_on_interrupt(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)SA_RESETHAND; /* a second one kills as usual */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int is_stopped(void)
{
    return stopped != 0;
}

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sleep_seconds(double seconds)
{
    const struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}
