/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests: processes made by fork(), each joined to each other by a socket. A callback
 * waits for others at most `limit_ms`; a rank that is gone is seen at once. */
#ifndef TEST_API_RANKS_H
#define TEST_API_RANKS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"

enum { MOST_RANKS = 4, PATIENCE_S = 120 };

struct ranks {
    int32_t rank, n;
    int socket[MOST_RANKS]; /* to each other rank; -1: to this one */
    int32_t limit_ms;
    struct {
        const void *send_from;
        size_t bytes;
        void *recv_to;
    } begun; /* what wait does; recv_to NULL: nothing is under way */
    int32_t n_begun;
    int32_t n_swaps, lost_at; /* exchanges so far; in this one (0: none) ... */
    bool is_lost;             /* ... this rank dies */
};

static inline int64_t ranks_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline qn_status ranks_fail(qn_error *err, int32_t rank, const char *what)
{
    if (err != NULL) {
        err->status = QN_E_PEER;
        err->offset = -1;
        snprintf(err->text, sizeof err->text, "rank %d %s", rank, what);
    }
    return QN_E_PEER;
}

/* Moves what a socket takes or has; false: the other end is gone. */
static inline bool ranks_move(int fd, bool out, uint8_t *data, size_t bytes, size_t *done)
{
    while (*done < bytes) {
        const ssize_t n = out ? send(fd, data + *done, bytes - *done, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(fd, data + *done, bytes - *done, MSG_DONTWAIT);
        if (n > 0)
            *done += (size_t)n;
        else if (n == 0 && !out)
            return false;
        else if (n < 0 && errno == EINTR)
            continue;
        else
            return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
    return true;
}

/* Sends `bytes` bytes at send_from + r * step to each rank r; receives as many to recv_to + r *
 * bytes. */
static inline qn_status ranks_swap(struct ranks *c, const void *send_from, size_t step,
                                   size_t bytes, void *recv_to, qn_error *err)
{
    size_t sent[MOST_RANKS] = {0}, got[MOST_RANKS] = {0};
    const int64_t end = ranks_now_ms() + c->limit_ms;
    if (++c->n_swaps == c->lost_at && c->is_lost)
        raise(SIGKILL);
    memcpy((uint8_t *)recv_to + (size_t)c->rank * bytes,
           (const uint8_t *)send_from + (size_t)c->rank * step, bytes);
    for (;;) {
        struct pollfd polls[MOST_RANKS];
        int32_t waiting = -1;
        for (int32_t r = 0; r < c->n; r++) {
            polls[r] = (struct pollfd){.fd = -1};
            if (r == c->rank)
                continue;
            uint8_t *const from = (uint8_t *)(uintptr_t)send_from + (size_t)r * step;
            uint8_t *const to = (uint8_t *)recv_to + (size_t)r * bytes;
            if (!ranks_move(c->socket[r], false, to, bytes, &got[r]) ||
                !ranks_move(c->socket[r], true, from, bytes, &sent[r]))
                return ranks_fail(err, r, "is gone");
            if (got[r] == bytes && sent[r] == bytes)
                continue;
            waiting = r;
            polls[r].fd = c->socket[r];
            polls[r].events =
                (short)((got[r] < bytes ? POLLIN : 0) | (sent[r] < bytes ? POLLOUT : 0));
        }
        if (waiting < 0)
            return QN_OK;
        const int64_t left = end - ranks_now_ms();
        if (left <= 0)
            return ranks_fail(err, waiting, "did not answer in time");
        (void)poll(polls, (nfds_t)c->n, (int)left);
    }
}

static inline qn_status ranks_all_gather(void *arg, const void *send_from, size_t bytes,
                                         void *recv_to, qn_error *err)
{
    return ranks_swap(arg, send_from, 0, bytes, recv_to, err);
}

static inline qn_status ranks_all_to_all(void *arg, const void *send_from, size_t bytes,
                                         void *recv_to, qn_error *err)
{
    return ranks_swap(arg, send_from, bytes, bytes, recv_to, err);
}

static inline qn_status ranks_all_reduce(void *arg, void *data, size_t count, qn_dtype dtype,
                                         qn_reduce reduce, qn_error *err)
{
    struct ranks *const c = arg;
    const size_t bytes = count * 4;
    uint8_t *const all = malloc(bytes * (size_t)c->n + 1);
    const qn_status status = ranks_swap(c, data, 0, bytes, all, err);
    for (size_t i = 0; status == QN_OK && i < count; i++) {
        int32_t v, sum = 0, most = INT32_MIN;
        float f, fsum = 0.0f;
        for (int32_t r = 0; r < c->n; r++) {
            memcpy(&v, all + (size_t)r * bytes + i * 4, 4);
            memcpy(&f, all + (size_t)r * bytes + i * 4, 4);
            sum = (int32_t)((uint32_t)sum + (uint32_t)v);
            most = v > most ? v : most;
            fsum += f;
        }
        const int32_t whole = reduce == QN_REDUCE_MAX ? most : sum;
        memcpy((uint8_t *)data + i * 4,
               dtype == QN_F32 ? (const void *)&fsum : (const void *)&whole, 4);
    }
    free(all);
    return status;
}

/* The latest moment at which the blocks may be there: what is changed meanwhile shows. */
static inline qn_status ranks_begin(void *arg, const void *send_from, size_t bytes, void *recv_to,
                                    qn_error *err)
{
    struct ranks *const c = arg;
    if (c->begun.recv_to != NULL)
        return ranks_fail(err, c->rank, "begins twice");
    c->begun.send_from = send_from;
    c->begun.bytes = bytes;
    c->begun.recv_to = recv_to;
    c->n_begun++;
    return QN_OK;
}

static inline qn_status ranks_wait(void *arg, qn_error *err)
{
    struct ranks *const c = arg;
    void *const to = c->begun.recv_to;
    if (to == NULL)
        return ranks_fail(err, c->rank, "waits for nothing");
    c->begun.recv_to = NULL;
    return ranks_swap(c, c->begun.send_from, 0, c->begun.bytes, to, err);
}

static inline qn_comm ranks_comm(struct ranks *c, bool with_all_to_all)
{
    qn_comm comm;
    qn_comm_init(&comm);
    comm.rank = c->rank;
    comm.n_ranks = c->n;
    comm.arg = c;
    comm.all_gather = ranks_all_gather;
    comm.all_reduce = ranks_all_reduce;
    comm.all_to_all = with_all_to_all ? ranks_all_to_all : NULL;
    return comm;
}

/* What a rank does; returns NULL, or what went wrong. */
typedef const char *(*rank_fn)(struct ranks *ranks, void *arg);

/* Starts n ranks. In a child: never returns. */
static inline void ranks_start(int32_t n, rank_fn work, void *arg, pid_t *children)
{
    int pair[MOST_RANKS][MOST_RANKS][2];
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = a + 1; b < n; b++)
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair[a][b]), 0);
    fflush(NULL);
    for (int32_t r = 0; r < n; r++) {
        children[r] = fork();
        assert_true(children[r] >= 0);
        if (children[r] != 0)
            continue;
        struct ranks own = {.rank = r, .n = n, .limit_ms = PATIENCE_S / 2 * 1000};
        for (int32_t a = 0; a < n; a++) {
            for (int32_t b = a + 1; b < n; b++) {
                for (int32_t side = 0; side < 2; side++) {
                    const int32_t owner = side == 0 ? a : b, other = side == 0 ? b : a;
                    if (owner == r)
                        own.socket[other] = pair[a][b][side];
                    else
                        close(pair[a][b][side]);
                }
            }
        }
        own.socket[r] = -1;
        alarm(PATIENCE_S);
        const char *const wrong = work(&own, arg);
        if (wrong != NULL)
            fprintf(stderr, "rank %d of %d: %s\n", r, n, wrong);
        fflush(NULL);
        _exit(wrong != NULL);
    }
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = a + 1; b < n; b++)
            for (int32_t side = 0; side < 2; side++)
                close(pair[a][b][side]);
}

/* Waits for a rank. may_die: by SIGKILL; returns whether it did. */
static inline bool ranks_expect(pid_t child, int32_t rank, bool may_die)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (may_die && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("rank %d failed (%s %d)", rank, WIFEXITED(status) ? "status" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return false;
}

static inline void ranks_run(int32_t n, rank_fn work, void *arg)
{
    pid_t children[MOST_RANKS];
    ranks_start(n, work, arg, children);
    for (int32_t r = 0; r < n; r++)
        ranks_expect(children[r], r, false);
}

#endif
