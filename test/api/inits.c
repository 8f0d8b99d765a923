/* SPDX-License-Identifier: Apache-2.0 */
/* The exported defaults, found in the shared library by name as ctypes, Rust and Go find them: what
 * the inline functions of the headers give, whatever the size of the caller's struct, and nothing
 * beyond its end. */
#include "api.h"

#include <dlfcn.h>

#include <quern/cuda.h>

enum { MORE = 3 * sizeof(size_t), FILL = 0x5a };

typedef qn_status (*init_sized_fn)(void *given, size_t size);

static void *library;

/* ISO C has no conversion from an object's address to a function's. */
static void find(const char *name, void *function)
{
    void *const symbol = dlsym(library, name);
    if (symbol == NULL)
        fail_msg("%s is not exported", name);
    memcpy(function, &symbol, sizeof symbol);
}

static init_sized_fn find_init(const char *name)
{
    init_sized_fn init = NULL;
    find(name, &init);
    return init;
}

/* own: as the inline function leaves it. */
static void check_init(const char *name, const void *own, size_t bytes)
{
    const init_sized_fn init = find_init(name);
    unsigned char given[2048];
    assert_true(bytes + MORE + sizeof(size_t) <= sizeof given);
    /* Older callers end earlier, newer ones later. */
    for (size_t size = 2 * sizeof(size_t); size <= bytes + MORE; size += sizeof(size_t)) {
        memset(given, FILL, sizeof given);
        assert_int_equal(init(given, size), QN_OK);
        size_t said = 0;
        memcpy(&said, given, sizeof said);
        assert_int_equal(said, size);
        const size_t both = size < bytes ? size : bytes;
        assert_memory_equal(given + sizeof said, (const char *)own + sizeof said,
                            both - sizeof said);
        for (size_t i = both; i < sizeof given; i++)
            assert_int_equal(given[i], i < size ? 0 : FILL);
    }
    static const size_t bad[] = {0, 1, sizeof(size_t), 3 * sizeof(size_t) - 1, (size_t)1 << 40};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(given, FILL, sizeof given);
        assert_int_equal(init(given, bad[i]), QN_E_ARGUMENT);
        for (size_t j = 0; j < sizeof given; j++)
            assert_int_equal(given[j], FILL);
    }
    assert_int_equal(init(NULL, bytes), QN_E_ARGUMENT);
}

#define CHECK(type)                                                                                \
    do {                                                                                           \
        type own;                                                                                  \
        memset(&own, FILL, sizeof own);                                                            \
        type##_init(&own);                                                                         \
        check_init(#type "_init_sized", &own, sizeof own);                                         \
    } while (0)

static void test_defaults(void **state)
{
    (void)state;
    CHECK(qn_ctx_options);
    CHECK(qn_ctx_info);
    CHECK(qn_weight_parts);
    CHECK(qn_quantize_options);
    CHECK(qn_pack_options);
    CHECK(qn_packed_info);
    CHECK(qn_file_options);
    CHECK(qn_checkpoint_options);
    CHECK(qn_module);
    CHECK(qn_load_facts);
    CHECK(qn_export_options);
    CHECK(qn_export_info);
    CHECK(qn_weight_difference);
    CHECK(qn_plan_info);
    CHECK(qn_matmul_args);
    CHECK(qn_grouped_args);
    CHECK(qn_conv_args);
    CHECK(qn_epilogue_more);
    CHECK(qn_prepare_args);
    CHECK(qn_combine_rows_args);
    CHECK(qn_quantize_rows_args);
    CHECK(qn_cuda_info);
    CHECK(qn_cpu_cost);
    CHECK(qn_cuda_cost);
    CHECK(qn_cuda_prediction);
}

static void test_epilogue(void **state)
{
    qn_epilogue own, given[2], untouched[2];
    const init_sized_fn init = find_init("qn_epilogue_init_sized");
    (void)state;
    qn_epilogue_init(&own);
    memset(given, FILL, sizeof given);
    memset(untouched, FILL, sizeof untouched);
    assert_int_equal(init(&given[0], sizeof own - sizeof(size_t)), QN_E_ARGUMENT);
    assert_int_equal(init(&given[0], sizeof own + sizeof(size_t)), QN_E_ARGUMENT);
    assert_int_equal(init(NULL, sizeof own), QN_E_ARGUMENT);
    assert_memory_equal(given, untouched, sizeof given);
    assert_int_equal(init(&given[0], sizeof own), QN_OK);
    assert_memory_equal(&given[0], &own, sizeof own);
    assert_memory_equal(&given[1], &untouched[1], sizeof own);
}

static void test_tensors(void **state)
{
    qn_tensor (*make_1d)(void *, qn_dtype, int64_t) = NULL;
    qn_tensor (*make_2d)(void *, qn_dtype, int64_t, int64_t) = NULL;
    qn_tensor (*make_none)(void) = NULL;
    static const int64_t shape[2] = {3, 5};
    float data[15];
    (void)state;
    find("qn_tensor_1d", &make_1d);
    find("qn_tensor_2d", &make_2d);
    find("qn_tensor_none", &make_none);
    const qn_tensor one = make_1d(data, QN_F32, 3),
                    one_by_hand = qn_tensor_make(data, QN_F32, 1, shape);
    const qn_tensor two = make_2d(data, QN_F16, 3, 5),
                    two_by_hand = qn_tensor_make(data, QN_F16, 2, shape);
    const qn_tensor none = make_none();
    assert_memory_equal(&one, &one_by_hand, sizeof one);
    assert_memory_equal(&two, &two_by_hand, sizeof two);
    assert_int_equal(none.rank, 0);
    assert_int_equal(none.dtype, QN_DTYPE_NONE);
    assert_null(none.data);
}

/* A whole product through addresses alone. */
static void test_product_by_name(void **state)
{
    enum { M = 2, N = 16, K = 64 };
    float x[M * K], y[M * N], expected[M * N];
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_packed *w = packed_make(ctx, "int4:g32", (struct shape){.n = N, .k = K}, 1, NULL);
    fill_reals(x, M * K, 2);
    qn_matmul_args args, by_name;
    qn_matmul_args_init(&args);
    assert_int_equal(find_init("qn_matmul_args_init_sized")(&by_name, sizeof by_name), QN_OK);
    args.w = by_name.w = w;
    args.x = by_name.x = qn_tensor_2d(x, QN_F32, M, K);
    args.y = qn_tensor_2d(expected, QN_F32, M, N);
    by_name.y = qn_tensor_2d(y, QN_F32, M, N);
    assert_ok(matmul_in_arena(ctx, &args));
    assert_ok(matmul_in_arena(ctx, &by_name));
    assert_memory_equal(y, expected, sizeof y);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_epilogue),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_product_by_name),
    };
    library = dlopen(QN_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dlclose(library);
    return failed;
}
