/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are mapped: the contract is in inputs.h. A handler of SIGBUS cannot be told which file
 * it is about, so the files are remembered for as long as the process lives. */
#define _POSIX_C_SOURCE 200809L
#include "inputs.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct input {
    const char *path, *shown;
    struct stat facts;
};

/* A handler reads these: an input is complete before it is counted. */
static struct input *inputs;
static volatile sig_atomic_t n_inputs;
static const char *volatile lost_part;

static void note(const char *path)
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
    note(path);
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
