/* SPDX-License-Identifier: Apache-2.0 */
/* A fork is seen in the child and in its children, not in the parent; with a page that the kernel
 * clears and without. */
#define _DEFAULT_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "base/origin.h"
#include "unit.h"

static void count(void *arg)
{
    ++*(int *)arg;
}

/* In a child: past until renewed, once; then the same for a child of the child. */
static int look(struct qni_origin *o, int generations)
{
    int renewed = 0, status = 0;
    if (!qni_origin_is_past(o))
        return 1;
    qni_origin_renew(o, count, &renewed);
    qni_origin_renew(o, count, &renewed);
    if (qni_origin_is_past(o) || renewed != 1)
        return 2;
    if (generations == 1)
        return 0;
    const pid_t child = fork();
    if (child == 0)
        _exit(look(o, generations - 1));
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 3;
}

static void a_fork_is_seen(void **state)
{
    (void)state;
    const struct qni_allocator a = qni_allocator_default();
    for (int by_number = 0; by_number < 2; by_number++) {
        struct qni_origin o;
        int renewed = 0, status = -1;
        assert_true(qni_origin_make(&o, &a));
        struct qni_origin made = o;
        if (by_number) { /* as where no page is cleared: a mark of ours, which children inherit */
            static _Atomic int32_t mark;
            atomic_store(&mark, (int32_t)getpid());
            o.mark = &mark;
            o.is_cleared = false;
        }
        assert_false(qni_origin_is_past(&o));
        qni_origin_renew(&o, count, &renewed);
        assert_int_equal(renewed, 0);
        const pid_t child = fork();
        if (child == 0)
            _exit(look(&o, 3));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_false(qni_origin_is_past(&o));
        qni_origin_end(&made, &a);
        qni_origin_end(&made, &a);
    }
}

/* Memory that goes back is inherited again, as whoever gets it next expects. */
static void pages_go_back_whole(void **state)
{
    (void)state;
    const struct qni_allocator a = qni_allocator_default();
    struct qni_origin o = {0};
    int status = -1;
    assert_true(qni_origin_make(&o, &a));
    const size_t bytes = o.bytes;
    qni_origin_end(&o, &a);
    uint8_t *again = qni_alloc(&a, bytes);
    memset(again, 7, bytes);
    const pid_t child = fork();
    if (child == 0) {
        int wrong = 0;
        for (size_t i = 0; i < bytes; i++)
            wrong |= again[i] != 7;
        _exit(wrong);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    qni_free(&a, again, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_is_seen),
        cmocka_unit_test(pages_go_back_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
