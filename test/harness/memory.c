/* SPDX-License-Identifier: Apache-2.0 */
/* Operands between guard pages, and the allocator that contexts of the harness use.
 *
 *     |no access|pattern ... operand|no access|     or     |no access|operand ... pattern|no
 * access|
 *
 * An access one byte past the operand is a crash; a write into the rest of its pages is found when
 * the pattern is compared. The handler of a crash finds out which operand the address is next to.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

enum { MAX_BLOCKS = 4096, PATTERN = 0xa5 };

struct block {
    const char *name;
    uint8_t *map; /* the first guard page */
    size_t map_bytes;
    uint8_t *data;
    size_t bytes;
    bool of_context; /* outlives cases; freed by the library */
    bool frozen;
};

/* One process runs one case at a time; only the library's threads may come here at once. */
static struct {
    pthread_mutex_t mutex;
    struct block block[MAX_BLOCKS];
    size_t n_blocks;
    int64_t allocations;
    size_t kept; /* live blocks of contexts when no case runs */
    struct check_crash *crash;
    char damage[200]; /* found when the library freed a block */
} memory = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *map_block(const char *name, size_t bytes, size_t alignment, bool at_front,
                       bool of_context)
{
    const size_t page = page_bytes();
    const size_t inside = (bytes + alignment + page - 1) / page * page;
    uint8_t *map = mmap(NULL, inside + 2 * page, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (mprotect(map + page, inside, PROT_READ | PROT_WRITE) != 0 ||
        memory.n_blocks == MAX_BLOCKS) {
        munmap(map, inside + 2 * page);
        return NULL;
    }
    memset(map + page, PATTERN, inside);
    uint8_t *data = map + page;
    if (!at_front)
        data += (inside - bytes) / alignment * alignment;
    memory.block[memory.n_blocks++] =
        (struct block){name, map, inside + 2 * page, data, bytes, of_context, false};
    return data;
}

/* The first byte outside the operand that has lost the pattern, as a distance; 0: none. */
static int64_t damaged(const struct block *b)
{
    const uint8_t *first = b->map + page_bytes(), *last = b->map + b->map_bytes - page_bytes();
    for (const uint8_t *p = b->data; p > first;)
        if (*--p != PATTERN)
            return p - b->data;
    for (const uint8_t *p = b->data + b->bytes; p < last; p++)
        if (*p != PATTERN)
            return p - (b->data + b->bytes) + 1;
    return 0;
}

static void unmap_block(size_t i)
{
    munmap(memory.block[i].map, memory.block[i].map_bytes);
    memory.block[i] = memory.block[--memory.n_blocks];
}

void *check_memory(struct check *c, const char *name, size_t bytes, size_t alignment)
{
    pthread_mutex_lock(&memory.mutex);
    void *data = map_block(name, bytes, alignment, check_random_chance(&c->random, 25), false);
    pthread_mutex_unlock(&memory.mutex);
    if (data == NULL) {
        fprintf(stderr, "quern-check: no memory for %zu bytes of %s\n", bytes, name);
        _exit(2);
    }
    return data;
}

static void protect(void *data, bool frozen)
{
    const size_t page = page_bytes();
    for (size_t i = 0; i < memory.n_blocks; i++) {
        struct block *b = &memory.block[i];
        if (b->data == data) {
            b->frozen = frozen;
            mprotect(b->map + page, b->map_bytes - 2 * page,
                     frozen ? PROT_READ : PROT_READ | PROT_WRITE);
        }
    }
}

void check_memory_freeze(void *data)
{
    protect(data, true);
}

void check_memory_thaw(void *data)
{
    protect(data, false);
}

/* ---------------------------------------------------------------------- the contexts' allocator */

void *check_alloc(void *arg, size_t bytes, size_t alignment)
{
    (void)arg;
    pthread_mutex_lock(&memory.mutex);
    memory.allocations++;
    void *data = map_block("memory of the library", bytes, alignment, false, true);
    pthread_mutex_unlock(&memory.mutex);
    return data;
}

void check_free(void *arg, void *data, size_t bytes)
{
    (void)arg;
    pthread_mutex_lock(&memory.mutex);
    bool found = false;
    for (size_t i = memory.n_blocks; i-- > 0 && !found;) {
        const struct block *b = &memory.block[i];
        if (!b->of_context || b->data != data)
            continue;
        found = true;
        const int64_t distance = damaged(b);
        if (distance != 0)
            snprintf(memory.damage, sizeof memory.damage,
                     "the library wrote %lld bytes %s a block of %zu bytes of its own",
                     (long long)(distance < 0 ? -distance : distance),
                     distance < 0 ? "before" : "past", b->bytes);
        if (b->bytes != bytes)
            snprintf(memory.damage, sizeof memory.damage,
                     "a block of %zu bytes was freed as one of %zu bytes", b->bytes, bytes);
        unmap_block(i);
    }
    if (!found && data != NULL)
        snprintf(memory.damage, sizeof memory.damage,
                 "the library freed an address that it had not allocated");
    pthread_mutex_unlock(&memory.mutex);
}

int64_t check_allocations(void)
{
    pthread_mutex_lock(&memory.mutex);
    const int64_t n = memory.allocations;
    pthread_mutex_unlock(&memory.mutex);
    return n;
}

size_t check_memory_of_contexts(void)
{
    size_t n = 0;
    for (size_t i = 0; i < memory.n_blocks; i++)
        n += memory.block[i].of_context;
    return n;
}

void check_memory_keep(size_t blocks)
{
    memory.kept += blocks;
}

void check_memory_end(struct check *c)
{
    if (memory.damage[0] != '\0')
        check_fail(c, "%s", memory.damage);
    memory.damage[0] = '\0';
    const size_t of_contexts = check_memory_of_contexts();
    if (of_contexts > memory.kept)
        check_fail(c, "%zu blocks of the library's memory were not freed",
                   of_contexts - memory.kept);
    memory.kept = of_contexts; /* a leak is told once */
    for (size_t i = memory.n_blocks; i-- > 0;) {
        const struct block *b = &memory.block[i];
        if (b->of_context)
            continue;
        const int64_t distance = damaged(b);
        if (distance != 0)
            check_fail(c, "a write %lld bytes %s the operand '%s' of %zu bytes",
                       (long long)(distance < 0 ? -distance : distance),
                       distance < 0 ? "before" : "past", b->name, b->bytes);
        unmap_block(i);
    }
}

/* -------------------------------------------------------------------------------------- crashes */

static struct sigaction earlier[NSIG];

/* Which operand is the address next to? Then whatever would have happened without this handler. */
static void crashed(int signal, siginfo_t *info, void *context)
{
    const uint8_t *at = info->si_addr;
    (void)context;
    for (size_t i = 0; i < memory.n_blocks && (signal == SIGSEGV || signal == SIGBUS); i++) {
        const struct block *b = &memory.block[i];
        if (at < b->map || at >= b->map + b->map_bytes)
            continue;
        struct check_crash *crash = memory.crash;
        crash->place = at < b->data               ? CHECK_BEFORE
                       : at >= b->data + b->bytes ? CHECK_BEHIND
                                                  : CHECK_INSIDE;
        crash->distance = at < b->data               ? b->data - at
                          : at >= b->data + b->bytes ? at - (b->data + b->bytes) + 1
                                                     : at - b->data;
        for (size_t n = 0; n + 1 < sizeof crash->operand && b->name[n] != '\0'; n++)
            crash->operand[n] = b->name[n];
    }
    sigaction(signal, &earlier[signal], NULL);
    if (info->si_code <= 0)
        raise(signal); /* sent by somebody: a fault comes again by itself */
}

void check_crash_handlers(struct check_crash *crash)
{
    static const int signals[] = {SIGSEGV, SIGILL, SIGBUS, SIGFPE};
    memory.crash = crash;
    static uint8_t stack[1 << 16]; /* the crash may be an overflow of the ordinary one */
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_sigaction = crashed, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigaction(signals[i], &action, &earlier[signals[i]]);
    }
}
