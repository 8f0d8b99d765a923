/* SPDX-License-Identifier: Apache-2.0 */
/* CPUs: how many this process may use, what a core's caches hold, which one a thread is on. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpus.h"
#include "file.h"
#include "size.h"

/* ---- how many ---- */

static int64_t ceil_ratio(long long quota, long long period)
{
    return quota > 0 && period > 0 ? qni_ceil_div(quota, period) : 0;
}

int64_t qni_cpus_from_cpu_max(const char *cpu_max)
{
    char *end;
    const long long quota = strtoll(cpu_max, &end, 10); /* "max" reads as 0: no limit */
    if (end == cpu_max || *end != ' ')
        return 0;
    return ceil_ratio(quota, strtoll(end, NULL, 10));
}

int64_t qni_cpus_from_quota(const char *quota_us, const char *period_us)
{
    return ceil_ratio(strtoll(quota_us, NULL, 10), strtoll(period_us, NULL, 10)); /* -1: no limit */
}

/* Does a comma-separated list hold the word? */
static bool list_has(const char *list, size_t length, const char *word)
{
    const size_t n = strlen(word);
    for (size_t at = 0; at < length;) {
        const char *comma = memchr(list + at, ',', length - at);
        const size_t stop = comma != NULL ? (size_t)(comma - list) : length;
        if (stop - at == n && memcmp(list + at, word, n) == 0)
            return true;
        at = stop + 1;
    }
    return false;
}

/* Lines read "id:controllers:path"; version 2 has the id 0 and no controllers. */
bool qni_cgroup_path(const char *text, bool v2, char *path, size_t capacity)
{
    while (*text != 0) {
        const size_t length = strcspn(text, "\n");
        const char *first = memchr(text, ':', length);
        const char *second =
            first != NULL ? memchr(first + 1, ':', length - (size_t)(first + 1 - text)) : NULL;
        if (second != NULL) {
            const size_t controllers = (size_t)(second - first - 1);
            const size_t rest = length - (size_t)(second + 1 - text);
            const bool found = v2 ? controllers == 0 && first == text + 1 && *text == '0'
                                  : list_has(first + 1, controllers, "cpu");
            if (found && rest < capacity) {
                memcpy(path, second + 1, rest);
                path[rest] = 0;
                return true;
            }
        }
        text += length + (text[length] != 0);
    }
    return false;
}

static int64_t smaller_limit(int64_t a, int64_t b)
{
    return a == 0 ? b : b == 0 ? a : qni_min(a, b);
}

/* The quota of one folder, 0 if it has none. */
static int64_t folder_quota(const char *folder, bool v2)
{
    char name[1200], text[64], period[64];
    if (v2) {
        snprintf(name, sizeof name, "%s/cpu.max", folder);
        return qni_file_text(name, text, sizeof text) > 0 ? qni_cpus_from_cpu_max(text) : 0;
    }
    snprintf(name, sizeof name, "%s/cpu.cfs_quota_us", folder);
    const bool has_quota = qni_file_text(name, text, sizeof text) > 0;
    snprintf(name, sizeof name, "%s/cpu.cfs_period_us", folder);
    const bool has_period = qni_file_text(name, period, sizeof period) > 0;
    return has_quota && has_period ? qni_cpus_from_quota(text, period) : 0;
}

/* Limits of all folders from the process up to the mount apply. Inside a container the path may be
 * one of the host's that is not mounted here; then only its ends that exist are read, the mount
 * itself at least. */
static int64_t cgroup_quota(const char *memberships, bool v2)
{
    char folder[1100], path[1024];
    const char *mount = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    if (!qni_cgroup_path(memberships, v2, path, sizeof path))
        return 0;
    int64_t limit = 0;
    for (;;) {
        const size_t length = strlen(path);
        if (length > 0 && path[length - 1] == '/')
            path[length - 1] = 0;
        snprintf(folder, sizeof folder, "%s%s", mount, path);
        limit = smaller_limit(limit, folder_quota(folder, v2));
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return limit;
        *slash = 0;
    }
}

static int64_t affinity_count(void)
{
#if defined(__linux__)
    for (int cpus = 1024; cpus <= 1 << 16;
         cpus *= 4) { /* EINVAL: the kernel knows more CPUs than that */
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (set == NULL)
            break;
        const size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        const int failed = sched_getaffinity(0, bytes, set);
        const int count = failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (!failed)
            return count;
    }
#endif
    return sysconf(_SC_NPROCESSORS_ONLN);
}

int32_t qni_threads_available(void)
{
    char memberships[8192];
    int64_t limit = affinity_count();
    if (qni_file_text("/proc/self/cgroup", memberships, sizeof memberships) > 0) {
        limit = smaller_limit(limit, cgroup_quota(memberships, true));
        limit = smaller_limit(limit, cgroup_quota(memberships, false));
    }
    return (int32_t)qni_min(qni_max(limit, 1), 4096);
}

/* ---- caches ---- */

/* The whole text is one decimal number, perhaps with one letter of `units` behind it. */
static bool number_of(const char *text, const char *units, unsigned long long *value, char *unit)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    *unit = *end != 0 && strchr(units, *end) != NULL ? *end++ : 0;
    return errno == 0 && (*end == 0 || *end == '\n');
}

size_t qni_cache_from_texts(int32_t level, const char *level_text, const char *type,
                            const char *size)
{
    const unsigned long long most = UINT32_MAX; /* no cache has 4 GiB; and it fits a size_t */
    unsigned long long number;
    char unit;
    const bool holds_data = strncmp(type, "Data", 4) == 0 || strncmp(type, "Unified", 7) == 0;
    if (!number_of(level_text, "", &number, &unit) || number != (unsigned long long)level ||
        !holds_data || !number_of(size, "KMG", &number, &unit))
        return 0;
    const int shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
    return number <= most >> shift ? (size_t)(number << shift) : 0;
}

/* What one core can fill. sysconf() gives the third cache of a whole socket where each of its
 * groups of cores has one (AMD: glibc multiplies), and nothing on Arm. */
static size_t cache_from_kernel(int32_t level)
{
    static const char *const facts[] = {"level", "type", "size"};
    for (int i = 0; i < 8; i++) {
        char name[128], text[3][64];
        for (int f = 0; f < 3; f++) {
            snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i,
                     facts[f]);
            qni_file_text(name, text[f], sizeof text[f]);
        }
        const size_t bytes = qni_cache_from_texts(level, text[0], text[1], text[2]);
        if (bytes > 0)
            return bytes;
    }
    return 0;
}

size_t qni_cache_bytes(int32_t level)
{
    const size_t bytes = level >= 1 && level <= 3 ? cache_from_kernel(level) : 0;
    if (bytes > 0)
        return bytes;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                _SC_LEVEL3_CACHE_SIZE};
    const long known = level >= 1 && level <= 3 ? sysconf(names[level - 1]) : 0;
    return known > 0 ? (size_t)known : 0;
#else
    return 0;
#endif
}

/* ---- which one ---- */

#if defined(__linux__)
/* Bits for as many CPUs as the kernel may know; where it knows more, it says EINVAL. */
enum { MOST_CPUS = 8192 };

int32_t qni_this_cpu(void)
{
    return sched_getcpu();
}

void qni_leave_cpus(const int32_t *cpus, int32_t n)
{
    unsigned long mine[MOST_CPUS / (8 * sizeof(unsigned long))] = {0};
    unsigned long others[sizeof mine / sizeof *mine];
    if (sched_getaffinity(0, sizeof mine, (cpu_set_t *)mine) != 0)
        return;
    memcpy(others, mine, sizeof others);
    for (int32_t i = 0; i < n; i++)
        if (cpus[i] >= 0 && cpus[i] < MOST_CPUS)
            CPU_CLR_S((size_t)cpus[i], sizeof others, (cpu_set_t *)others);
    if (CPU_COUNT_S(sizeof others, (cpu_set_t *)others) == 0)
        return;
    if (sched_setaffinity(0, sizeof others, (cpu_set_t *)others) == 0)
        sched_setaffinity(0, sizeof mine, (cpu_set_t *)mine);
}
#else
int32_t qni_this_cpu(void)
{
    return -1;
}

void qni_leave_cpus(const int32_t *cpus, int32_t n)
{
    (void)cpus, (void)n;
}
#endif
