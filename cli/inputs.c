/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are mapped: the contract is in inputs.h. A handler of SIGBUS cannot be told which file
 * it is about, so the files are remembered for as long as the process lives. */
#define _POSIX_C_SOURCE   200809L
#define _FILE_OFFSET_BITS 64
#include "inputs.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct input {
    const char *path, *shown;
    struct stat facts;
};

/* A handler reads these: an input is complete before it is counted. */
static struct input *inputs;
static volatile sig_atomic_t n_inputs;
static const char *volatile lost_part;

void input_note(const char *path)
{
    struct input input = {.path = path};
    if (stat(path, &input.facts) != 0) /* who opens it will say why */
        return;
    struct input *more = must_alloc(sizeof *more * ((size_t)n_inputs + 1));
    if (n_inputs > 0)
        memcpy(more, inputs, sizeof *more * (size_t)n_inputs);
    input.path = must_copy(path);
    input.shown = text_shown(must_copy(path));
    more[n_inputs] = input;
    struct input *const old = inputs;
    inputs = more;
    n_inputs++;
    free(old);
}

qn_status input_open(const qn_ctx *ctx, const char *path, qn_file **file, qn_error *err)
{
    input_note(path);
    return qn_file_open(ctx, path, file, err);
}

/* Is it the same file, with other content? One that was replaced under its name is still mapped as
 * it was. */
static int is_changed(const struct input *input)
{
    struct stat now;
    const struct stat *const then = &input->facts;
    return stat(input->path, &now) == 0 && now.st_dev == then->st_dev &&
           now.st_ino == then->st_ino &&
           (now.st_size != then->st_size || now.st_mtim.tv_sec != then->st_mtim.tv_sec ||
            now.st_mtim.tv_nsec != then->st_mtim.tv_nsec);
}

int inputs_check(void)
{
    for (int i = 0; i < n_inputs; i++)
        if (is_changed(&inputs[i]))
            return complain(EXIT_INPUT, "run it again when no program writes to the file",
                            "%s: it was changed while it was read", inputs[i].path);
    return 0;
}

void inputs_remove_on_loss(const char *part)
{
    const char *const before = lost_part;
    lost_part = part != NULL ? must_copy(part) : NULL;
    free((char *)(uintptr_t)before);
}

/* ---- what they are --------------------------------------------------------------------------- */

/* Small files are read whole; of large ones the header (safetensors begin with its length), and
 * chunks in equal steps to the end. */
enum { WHOLE = 16 << 20, MOST_HEADER = 100 << 20, CHUNK = 4096, N_CHUNKS = 1024 };

static uint64_t digest(uint64_t sum, const uint8_t *bytes, size_t n)
{
    for (size_t at = 0; at < n; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, n - at < 8 ? n - at : 8);
        sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 29;
    }
    return sum;
}

static uint64_t digest_range(uint64_t sum, FILE *file, int64_t from, int64_t bytes)
{
    static uint8_t chunk[16 * CHUNK];
    size_t got = 1;
    if (fseeko(file, (off_t)from, SEEK_SET) != 0)
        return sum;
    for (int64_t left = bytes; left > 0 && got > 0; left -= (int64_t)got) {
        got = fread(chunk, 1, left < (int64_t)sizeof chunk ? (size_t)left : sizeof chunk, file);
        sum = digest(sum, chunk, got);
    }
    return sum;
}

static uint64_t digest_file(const char *path, int64_t size)
{
    FILE *file = fopen(path, "rb");
    uint64_t length = 0, sum = (uint64_t)size + 1;
    if (file == NULL)
        return 0;
    if (size <= WHOLE) {
        sum = digest_range(sum, file, 0, size);
    } else {
        if (fread(&length, 1, sizeof length, file) != sizeof length || length > MOST_HEADER)
            length = CHUNK;
        const int64_t start = (int64_t)length + 8, step = (size - start) / N_CHUNKS;
        sum = digest_range(sum, file, 0, start);
        for (int64_t i = 0; i < N_CHUNKS; i++)
            sum = digest_range(sum, file, start + i * step, step < CHUNK ? step : CHUNK);
        sum = digest_range(sum, file, size - CHUNK, CHUNK);
    }
    fclose(file);
    return sum;
}

static qn_status add_fact(qn_writer *writer, const char *what, int i, const char *name, char *value,
                          qn_error *err)
{
    char *key = must_print("%s of input %d (%s)", what, i + 1, name);
    const qn_status status = qn_writer_fingerprint(writer, key, value, err);
    free(key);
    free(value);
    return status;
}

static qn_status add_input(qn_writer *writer, int i, qn_error *err)
{
    const struct input *const input = &inputs[i];
    const char *slash = strrchr(input->path, '/');
    const char *const name = slash != NULL ? slash + 1 : input->path;
    const struct timespec then = input->facts.st_mtim;
    struct tm parts;
    char day[32] = "";
    char *key = must_print("input %d", i + 1);
    qn_status status = qn_writer_fingerprint(writer, key, name, err);
    free(key);
    if (gmtime_r(&then.tv_sec, &parts) != NULL)
        strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &parts);
    if (status == QN_OK)
        status = add_fact(writer, "the size", i, name,
                          must_print("%lld bytes", (long long)input->facts.st_size), err);
    if (status == QN_OK)
        status = add_fact(writer, "the content", i, name,
                          must_print("%016llx", (unsigned long long)digest_file(
                                                    input->path, (int64_t)input->facts.st_size)),
                          err);
    if (status == QN_OK)
        status = add_fact(writer, "the time", i, name,
                          must_print("%s.%09ld UTC", day, (long)then.tv_nsec), err);
    return status;
}

qn_status inputs_fingerprint(qn_writer *writer, qn_error *err)
{
    qn_status status = QN_OK;
    for (int i = 0; i < n_inputs && status == QN_OK; i++)
        status = add_input(writer, i, err);
    return status;
}

const char *input_at(const char *path)
{
    struct stat now;
    if (stat(path, &now) != 0)
        return NULL;
    for (int i = 0; i < n_inputs; i++)
        if (now.st_dev == inputs[i].facts.st_dev && now.st_ino == inputs[i].facts.st_ino)
            return inputs[i].path;
    return NULL;
}

/* ---- SIGBUS: only what a handler may call ---------------------------------------------------- */

static void say_to(int file, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        const ssize_t done = write(file, text, left);
        if (done <= 0)
            return;
        text += done;
        left -= (size_t)done;
    }
}

static void say(const char *text)
{
    say_to(STDERR_FILENO, text);
}

static const char *name_of_shorter(void)
{
    struct stat now;
    for (int i = 0; i < n_inputs; i++)
        if (stat(inputs[i].path, &now) == 0 && now.st_size < inputs[i].facts.st_size)
            return inputs[i].shown;
    return NULL;
}

static void on_bus_error(int number, siginfo_t *info, void *machine)
{
    static volatile sig_atomic_t is_told;
    (void)machine;
    if (info->si_code <= 0) { /* sent by a process, not by a read */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (__atomic_exchange_n(&is_told, 1, __ATOMIC_RELAXED))
        for (;;) /* another thread tells it and ends the process */
            pause();
    const char *const shorter = name_of_shorter();
    if (isatty(STDERR_FILENO))
        say("\n");
    say("quern: ");
    say(shorter != NULL ? shorter : "an input file");
    say(shorter != NULL ? ": it became shorter while it was read" : ": its disk failed");
    say("; fetch or make it again\n");
    if (json_is_wanted()) /* without the name, which would have to be escaped */
        say_to(STDOUT_FILENO, shorter != NULL
                                  ? "{\"error\":\"an input file became shorter while it "
                                    "was read\",\"code\":3}\n"
                                  : "{\"error\":\"the disk of an input file failed\","
                                    "\"code\":3}\n");
    if (lost_part != NULL)
        unlink(lost_part);
    _exit(EXIT_INPUT);
}

void inputs_watch(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_bus_error;
    sigaction(SIGBUS, &action, NULL);
}
