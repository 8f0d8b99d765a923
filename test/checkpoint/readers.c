/* SPDX-License-Identifier: Apache-2.0 */
/* One open file, many threads: looking up, copying, loading weights, forgetting pages, and letting
 * packed weights go in any order. Meant for ThreadSanitizer as much as for the answers. */
#include "files.h"

#include <pthread.h>

enum { N_THREADS = 4, ROUNDS = 60 };

struct shared {
    const qn_ctx *ctx;
    const qn_file *file;
    const qn_weight *weight;
    int failures;
};

static bool is_good_weight(const struct shared *s)
{
    qn_weight_parts p, q;
    qn_weight *loaded = NULL;
    qn_weight_parts_init(&p);
    qn_weight_parts_init(&q);
    if (qn_file_load_weight(s->ctx, s->file, "w", &loaded, NULL) != QN_OK)
        return false;
    qn_weight_view(s->weight, &p);
    qn_weight_view(loaded, &q);
    const bool is_same = memcmp(p.codes, q.codes, (size_t)(p.n * p.k)) == 0;
    qn_weight_destroy(loaded);
    return is_same;
}

static void *read_all(void *arg)
{
    struct shared *s = arg;
    int failures = 0;
    for (int i = 0; i < ROUNDS; i++) {
        qn_entry entry;
        float out[1000];
        const qn_tensor to = qn_tensor_1d(out, QN_F32, 1000);
        failures += qn_file_find(s->file, "x", &entry) != QN_OK;
        failures += qn_entry_copy(&entry, &to) != QN_OK;
        for (int j = 0; j < 1000; j++)
            failures += out[j] != (float)j;
        qn_file_forget(s->file, &entry);
        failures += !is_good_weight(s);
        failures += qn_file_get_metadata(s->file, "quern.weight.w") == NULL;
    }
    __atomic_add_fetch(&s->failures, failures, __ATOMIC_RELAXED);
    return NULL;
}

static void test_readers(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    qn_writer *writer = NULL;
    qn_weight_parts p;
    qn_file *file = NULL;
    float data[1000];
    const int64_t count = 1000;
    pthread_t threads[N_THREADS];
    (void)state;
    for (int i = 0; i < 1000; i++)
        data[i] = (float)i;
    qn_weight *weight = weight_make(ctx, "int4:g32", (struct shape){16, 256, 1, 1, 1}, 4);
    qn_weight_parts_init(&p);
    assert_ok(qn_weight_view(weight, &p));
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    assert_ok(qn_writer_add(writer, "x", QN_F32, 1, &count, NULL, NULL));
    assert_ok(qn_writer_add_weight(writer, "w", &p, NULL, NULL));
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    const qn_tensor t = qn_tensor_1d(data, QN_F32, 1000);
    assert_ok(qn_writer_put(writer, 0, &t, NULL));
    assert_ok(qn_writer_put_weight(writer, 1, weight, NULL));
    assert_ok(qn_writer_finish(writer, NULL));
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    struct shared shared = {ctx, file, weight, 0};
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, &shared), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(shared.failures, 0);
    qn_file_close(file);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

static void *let_go(void *arg)
{
    qn_packed *packed = arg;
    qn_packed_info info;
    qn_packed_info_init(&info);
    qn_packed_query(packed, &info);
    qn_packed_destroy(packed);
    return NULL;
}

/* The last one of many holders unmaps the file, whoever that is. */
static void test_holders(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x"), *name = "w";
    qn_ctx *ctx = ctx_make(1);
    qn_packed *packed = packed_make(ctx, "int4:g32", (struct shape){16, 64, 1, 1, 1}, 2, NULL);
    (void)state;
    assert_ok(qn_packed_save(ctx, path, 1, &name, (const qn_packed *const *)&packed, 0, NULL));
    qn_packed_destroy(packed);
    for (int round = 0; round < 20; round++) {
        qn_file *file = NULL;
        qn_packed *mapped[N_THREADS];
        pthread_t threads[N_THREADS];
        assert_ok(qn_file_open(ctx, path, &file, NULL));
        for (int i = 0; i < N_THREADS; i++)
            assert_ok(qn_packed_load(ctx, file, "w", &mapped[i], NULL));
        for (int i = 0; i < N_THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, let_go, mapped[i]), 0);
        qn_file_close(file);
        for (int i = 0; i < N_THREADS; i++)
            pthread_join(threads[i], NULL);
    }
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_holders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
