/* SPDX-License-Identifier: Apache-2.0 */
/* What the texts of the kernel say about CPUs, and leaving one. */
#define _GNU_SOURCE
#include <sched.h>

#include "base/cpus.h"
#include "unit.h"

static void quotas_are_read(void **state)
{
    (void)state;
    assert_int_equal(qni_cpus_from_cpu_max("max 100000\n"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("200000 100000\n"), 2);
    assert_int_equal(qni_cpus_from_cpu_max("150000 100000\n"), 2);
    assert_int_equal(qni_cpus_from_cpu_max("50000 100000"), 1);
    assert_int_equal(qni_cpus_from_cpu_max(""), 0);
    assert_int_equal(qni_cpus_from_cpu_max("100000"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("100000 0"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("-5 100000"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("99999999999999999999 1"), INT64_MAX);
    assert_int_equal(qni_cpus_from_quota("-1\n", "100000\n"), 0);
    assert_int_equal(qni_cpus_from_quota("250000\n", "100000\n"), 3);
    assert_int_equal(qni_cpus_from_quota("", ""), 0);
}

static void memberships_are_read(void **state)
{
    (void)state;
    static const char both[] = "12:cpuset:/a\n9:cpu,cpuacct:/docker/abc\n2:memory:/m\n0::/v2/x\n";
    char path[64];
    assert_true(qni_cgroup_path(both, true, path, sizeof path));
    assert_string_equal(path, "/v2/x");
    assert_true(qni_cgroup_path(both, false, path, sizeof path));
    assert_string_equal(path, "/docker/abc");
    assert_true(qni_cgroup_path("3:cpuacct,cpu:/b", false, path, sizeof path));
    assert_string_equal(path, "/b");
    assert_true(qni_cgroup_path("0::/\n", true, path, sizeof path));
    assert_string_equal(path, "/");
    assert_true(qni_cgroup_path("0::/odd:name\n", true, path, sizeof path));
    assert_string_equal(path, "/odd:name");
    assert_false(qni_cgroup_path("0::/\n", false, path, sizeof path));
    assert_false(qni_cgroup_path("5:cpuset:/a\n6:cpuacct:/b\n", false, path, sizeof path));
    assert_false(qni_cgroup_path("1:name=systemd:/\n", true, path, sizeof path));
    assert_false(qni_cgroup_path("", true, path, sizeof path));
    assert_false(qni_cgroup_path("garbage\n\n::\n", true, path, sizeof path));
    assert_false(qni_cgroup_path("0::/longer than the room for it", true, path, 8));
}

static void caches_are_read(void **state)
{
    (void)state;
    assert_int_equal(qni_cache_from_texts(1, "1\n", "Data\n", "32K\n"), 32 << 10);
    assert_int_equal(qni_cache_from_texts(3, "3\n", "Unified\n", "32768K\n"), 32 << 20);
    assert_int_equal(qni_cache_from_texts(3, "3", "Unified", "96M"), 96 << 20);
    assert_int_equal(qni_cache_from_texts(3, "3", "Unified", "1G"), 1 << 30);
    assert_int_equal(qni_cache_from_texts(2, "2", "Unified", "524288"), 512 << 10);
    assert_int_equal(qni_cache_from_texts(1, "1", "Instruction", "32K"), 0);
    assert_int_equal(qni_cache_from_texts(2, "3", "Unified", "32K"), 0);
    assert_int_equal(qni_cache_from_texts(1, "", "", ""), 0);
    assert_int_equal(qni_cache_from_texts(0, "", "Data", "32K"), 0);
    static const char *const sizes[] = {
        "",
        "K",
        "-32K",
        "0K",
        "0",
        " 32K",
        "+32K",
        "32KK",
        "32K K",
        "32X",
        "0x20",
        "4194304K",
        "4096M",
        "4G",
        "99999999999999999999K",
        "18014398509481985K",
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(qni_cache_from_texts(1, "1", "Data", sizes[i]), 0);
    static const char *const levels[] = {"-1", "1x", "01x", "4294967297", "99999999999999999999"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        assert_int_equal(qni_cache_from_texts(1, levels[i], "Data", "32K"), 0);
}

static void this_machine_has_threads(void **state)
{
    (void)state;
    assert_true(qni_threads_available() >= 1);
    assert_true(qni_threads_available() <= 4096);
    assert_int_equal(qni_cache_bytes(0), 0);
    assert_int_equal(qni_cache_bytes(9), 0);
    const size_t first = qni_cache_bytes(1), second = qni_cache_bytes(2);
    assert_true(first == 0 || second == 0 || first < second);
}

/* At once another CPU, and the mask is the same; nothing happens where there is no other one. */
static void a_thread_leaves_its_cpu(void **state)
{
    (void)state;
    cpu_set_t before, after, one;
    const int32_t cpu = qni_this_cpu(), unknown[] = {-1, 1 << 20};
    if (cpu < 0)
        skip();
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    qni_leave_cpus(&cpu, 1);
    assert_int_equal(qni_this_cpu(), cpu);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&one, &after));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    int32_t left = 0;
    for (int32_t i = 0; i < 20; i++) {
        const int32_t here = qni_this_cpu();
        qni_leave_cpus(&here, 1);
        left += qni_this_cpu() != here;
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
    }
    assert_true(left >= (CPU_COUNT(&before) > 1 ? 15 : 0));
    qni_leave_cpus(unknown, 2);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotas_are_read),         cmocka_unit_test(memberships_are_read),
        cmocka_unit_test(caches_are_read),         cmocka_unit_test(this_machine_has_threads),
        cmocka_unit_test(a_thread_leaves_its_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
