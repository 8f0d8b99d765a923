/* SPDX-License-Identifier: Apache-2.0 */
/* Is there memory for it? Linux gives out more than it has and kills who touches it, without a
 * word; so whatever is large is compared first with what the machine and the process's control
 * group can still give. Small pieces are not looked at. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { LARGE = 64 << 20 };

/* The number behind `key` in a file of such lines, or at its beginning (key ""); -1: none. */
static double number_in(const char *path, const char *key)
{
    char line[256];
    double number = -1;
    FILE *file = fopen(path, "r");
    while (file != NULL && number < 0 && fgets(line, sizeof line, file) != NULL) {
        char *end, *at = line + strlen(key);
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        const double value = strtod(at, &end);
        if (end != at) /* else "max" */
            number = value;
    }
    if (file != NULL)
        fclose(file);
    return number;
}

static double kilobytes(const char *key)
{
    const double value = number_in("/proc/meminfo", key);
    return value < 0 ? -1 : value * 1024;
}

/* What the group at `folder` can still take, page cache given back; or `otherwise`. */
static double left_in(const char *folder, double otherwise)
{
    static const char *const names[2][4] = {
        {"memory.max", "memory.current", "memory.stat", "file "},
        {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_cache "}};
    for (int version = 0; version < 2; version++) {
        double value[3];
        for (int i = 0; i < 3; i++) {
            char path[700]; /* no memory is taken to ask for memory */
            snprintf(path, sizeof path, "%s/%s", folder, names[version][i]);
            value[i] = number_in(path, i < 2 ? "" : names[version][3]);
        }
        const double cache = value[2] > 0 ? value[2] : 0;
        const double left = value[0] - value[1] + cache;
        if (value[0] >= 0 && value[1] >= 0 && left < otherwise)
            otherwise = left;
    }
    return otherwise;
}

/* The memory that is left in the control group of this process and in the groups around it. */
static double left_in_groups(double otherwise)
{
    char line[512], folder[600];
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const int is_v1 = strstr(line, ":memory:/") != NULL;
        char *path = strrchr(line, ':');
        if (path == NULL || (!is_v1 && strncmp(line, "0::", 3) != 0))
            continue;
        path++;
        for (char *slash; (slash = strrchr(path, '/')) != NULL; *slash = '\0') {
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", is_v1 ? "/memory" : "", path);
            otherwise = left_in(folder, otherwise);
        }
        snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", is_v1 ? "/memory" : "");
        otherwise = left_in(folder, otherwise);
    }
    if (file != NULL)
        fclose(file);
    return otherwise;
}

double memory_left(void)
{
    const double available = kilobytes("MemAvailable:"), swap = kilobytes("SwapFree:");
    /* Neither is there: some other system, which may know better. */
    return left_in_groups(available < 0 ? 1e300 : available + (swap > 0 ? swap : 0));
}

int memory_is_there(size_t bytes)
{
    return bytes < LARGE || (double)bytes + LARGE < memory_left();
}

int memory_is_large(size_t bytes)
{
    return bytes >= LARGE;
}

void *memory_alloc(void *arg, size_t bytes, size_t alignment)
{
    (void)arg;
    if (bytes > SIZE_MAX / 2 || !memory_is_there(bytes))
        return NULL;
    return qn_memory_alloc(NULL, bytes, alignment);
}

void memory_free(void *arg, void *memory, size_t bytes)
{
    qn_memory_free(arg, memory, bytes);
}
