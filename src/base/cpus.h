/* SPDX-License-Identifier: Apache-2.0 */
/* CPUs: how many this process may use (affinity mask and cgroup quota), what a core's caches hold,
 * which one a thread is on. Only cpus.c reads /sys and names affinity. */
#ifndef QNI_BASE_CPUS_H
#define QNI_BASE_CPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* min(CPUs in the affinity mask, ceil(cgroup v1 or v2 quota)), at least 1. */
int32_t qni_threads_available(void);

/* The two kinds of quota files, as text: CPUs allowed, rounded up; 0 if there is no limit or the
 * text is not one. */
int64_t qni_cpus_from_cpu_max(const char *cpu_max);
int64_t qni_cpus_from_quota(const char *quota_us, const char *period_us);
/* The path of a process in the hierarchy that limits CPUs, from the text of /proc/self/cgroup. */
bool qni_cgroup_path(const char *text, bool v2, char *path, size_t capacity);

/* Data cache of level 1 to 3 that one core can fill, in bytes, 0 if unknown. */
size_t qni_cache_bytes(int32_t level);
/* The size that a folder under /sys/devices/system/cpu/cpu0/cache tells, from the texts of its
 * files; 0 if they are of another level, of instructions, or no such texts. */
size_t qni_cache_from_texts(int32_t level, const char *level_text, const char *type,
                            const char *size);

/* The CPU that this thread is on, -1 if the system does not say. */
int32_t qni_this_cpu(void);
/* Move this thread to one of its CPUs that is none of these, if there is one. Its mask is the same
 * afterwards. */
void qni_leave_cpus(const int32_t *cpus, int32_t n);

#endif
