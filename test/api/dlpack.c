/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack in and out, with the header of the system: every type, borrowed and owned, and tensors
 * that quern cannot take. */
#include "api.h"

#include <quern/dlpack.h>

static const int64_t shape[3] = {2, 3, 5};

static void test_types(void **state)
{
    (void)state;
    int n = 0;
    for (qn_dtype d = -3; d < 40; d++) {
        DLDataType type = {0, 0, 0};
        const qn_status status = qn_dtype_to_dlpack(d, &type);
        if (qn_dtype_bytes(d) == 0) {
            assert_int_equal(status, QN_E_DTYPE);
            continue;
        }
        qn_dtype back = QN_DTYPE_NONE;
        n++;
        assert_ok(status);
        assert_int_equal(type.bits, 8 * qn_dtype_bytes(d));
        assert_int_equal(type.lanes, 1);
        assert_ok(qn_dtype_from_dlpack(type, &back));
        assert_int_equal(back, d);
    }
    assert_int_equal(n, 16);
    const DLDataType bf16 = {kDLBfloat, 16, 1};
    qn_dtype d;
    assert_ok(qn_dtype_from_dlpack(bf16, &d));
    assert_int_equal(d, QN_BF16);
}

static void test_bad_types(void **state)
{
    (void)state;
    static const DLDataType bad[] = {
        {kDLFloat, 32, 2},   {kDLFloat, 32, 0},        {kDLFloat, 128, 1}, {kDLInt, 4, 1},
        {kDLComplex, 64, 1}, {kDLOpaqueHandle, 64, 1}, {200, 8, 1},        {kDLBfloat, 32, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_dtype d = 77;
        assert_status(qn_dtype_from_dlpack(bad[i], &d), QN_E_DTYPE);
        assert_int_equal(d, 77);
    }
    assert_status(qn_dtype_from_dlpack(bad[0], NULL), QN_E_ARGUMENT);
    assert_status(qn_dtype_to_dlpack(QN_F32, NULL), QN_E_ARGUMENT);
}

static void test_devices(void **state)
{
    (void)state;
    static const struct {
        DLDevice from;
        qn_device to;
    } good[] = {{{kDLCPU, 0}, {QN_CPU, 0}},
                {{kDLCUDA, 3}, {QN_CUDA, 3}},
                {{kDLCUDAHost, 3}, {QN_CPU, 0}},
                {{kDLCUDAManaged, 1}, {QN_CUDA, 1}}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        qn_device device;
        assert_ok(qn_device_from_dlpack(good[i].from, &device));
        assert_memory_equal(&device, &good[i].to, sizeof device);
    }
    const DLDevice bad = {kDLVulkan, 0};
    qn_device device;
    assert_status(qn_device_from_dlpack(bad, &device), QN_E_DEVICE);
    assert_status(qn_device_from_dlpack(good[0].from, NULL), QN_E_ARGUMENT);
}

/* Borrowed out and in: the same tensor, strides and all. */
static void test_borrowed(void **state)
{
    (void)state;
    float data[64];
    qn_tensor t = qn_tensor_make(data, QN_F32, 3, shape), back;
    t.stride[0] = 20;
    qn_dlpack holder;
    assert_ok(qn_tensor_to_dlpack(&t, NULL, NULL, &holder));
    const DLTensor *dl = &holder.managed.dl_tensor;
    assert_ptr_equal(dl->data, data);
    assert_int_equal(dl->ndim, 3);
    assert_int_equal(dl->byte_offset, 0);
    assert_int_equal(dl->shape[2], 5);
    assert_int_equal(dl->strides[0], 20);
    assert_int_equal(dl->device.device_type, kDLCPU);
    assert_true(holder.managed.deleter == NULL);
    assert_ok(qn_tensor_from_dlpack(dl, &back));
    assert_memory_equal(&t, &back, sizeof t);
    /* A scalar, and a tensor on a GPU. */
    t = qn_tensor_make(data, QN_F64, 0, NULL);
    assert_ok(qn_tensor_to_dlpack(&t, NULL, NULL, &holder));
    assert_ok(qn_tensor_from_dlpack(dl, &back));
    assert_memory_equal(&t, &back, sizeof t);
    t.device = (qn_device){QN_CUDA, 2};
    assert_ok(qn_tensor_to_dlpack(&t, NULL, NULL, &holder));
    assert_int_equal(dl->device.device_type, kDLCUDA);
    assert_ok(qn_tensor_from_dlpack(dl, &back));
    assert_memory_equal(&t, &back, sizeof t);
}

/* strides NULL: row-major; byte_offset: part of the pointer. */
static void test_compact(void **state)
{
    (void)state;
    float data[40];
    int64_t dims[3] = {2, 3, 5};
    DLTensor dl = {.data = data,
                   .device = {kDLCPU, 0},
                   .ndim = 3,
                   .dtype = {kDLFloat, 32, 1},
                   .shape = dims,
                   .byte_offset = 16};
    const qn_tensor expected = qn_tensor_make(data + 4, QN_F32, 3, shape);
    qn_tensor t;
    assert_ok(qn_tensor_from_dlpack(&dl, &t));
    assert_memory_equal(&t, &expected, sizeof t);
    dims[1] = 0;
    dl.data = NULL;
    assert_ok(qn_tensor_from_dlpack(&dl, &t));
    assert_null(t.data);
    assert_int_equal(t.shape[1], 0);
}

static void test_bad_tensors(void **state)
{
    (void)state;
    float data[40];
    int64_t dims[8] = {2, 3, 5, 1, 1, 1, 1, 1}, strides[8] = {15, 5, 1, 1, 1, 1, 1, 1};
    const DLTensor good = {.data = data,
                           .device = {kDLCPU, 0},
                           .ndim = 3,
                           .dtype = {kDLFloat, 32, 1},
                           .shape = dims,
                           .strides = strides};
    qn_tensor t = qn_tensor_none();
    const qn_tensor none = t;
    DLTensor bad = good;
    assert_status(qn_tensor_from_dlpack(NULL, &t), QN_E_ARGUMENT);
    assert_status(qn_tensor_from_dlpack(&good, NULL), QN_E_ARGUMENT);
    bad.shape = NULL;
    assert_status(qn_tensor_from_dlpack(&bad, &t), QN_E_ARGUMENT);
    bad = good;
    bad.ndim = 7;
    assert_status(qn_tensor_from_dlpack(&bad, &t), QN_E_SHAPE);
    bad.ndim = -1;
    assert_status(qn_tensor_from_dlpack(&bad, &t), QN_E_SHAPE);
    bad = good;
    bad.dtype.lanes = 4;
    assert_status(qn_tensor_from_dlpack(&bad, &t), QN_E_DTYPE);
    bad = good;
    bad.device.device_type = kDLMetal;
    assert_status(qn_tensor_from_dlpack(&bad, &t), QN_E_DEVICE);
    dims[1] = -3;
    assert_status(qn_tensor_from_dlpack(&good, &t), QN_E_SHAPE);
    dims[1] = 3;
    strides[1] = -5;
    assert_status(qn_tensor_from_dlpack(&good, &t), QN_E_STRIDE);
    bad = good;
    bad.strides = NULL;
    dims[0] = dims[1] = dims[2] = (int64_t)1 << 40;
    assert_status(qn_tensor_from_dlpack(&bad, &t), QN_E_STRIDE);
    assert_memory_equal(&t, &none, sizeof t);

    qn_dlpack holder;
    qn_tensor out = qn_tensor_make(data, QN_F32, 3, shape);
    assert_status(qn_tensor_to_dlpack(NULL, NULL, NULL, &holder), QN_E_ARGUMENT);
    assert_status(qn_tensor_to_dlpack(&out, NULL, NULL, NULL), QN_E_ARGUMENT);
    out.rank = QN_MAX_RANK + 1;
    assert_status(qn_tensor_to_dlpack(&out, NULL, NULL, &holder), QN_E_SHAPE);
    out.rank = 3;
    out.dtype = 50;
    assert_status(qn_tensor_to_dlpack(&out, NULL, NULL, &holder), QN_E_DTYPE);
    out.dtype = QN_F32;
    out.device.kind = 9;
    assert_status(qn_tensor_to_dlpack(&out, NULL, NULL, &holder), QN_E_DEVICE);
}

/* Owned by the consumer: its deleter frees the tensor and the holder, once. */
struct owned {
    qn_dlpack holder;
    float *data;
    int *released;
};
static void release(void *arg)
{
    struct owned *owned = arg;
    ++*owned->released;
    free(owned->data);
    free(owned);
}
static void test_owned(void **state)
{
    (void)state;
    int released = 0;
    struct owned *owned = calloc(1, sizeof *owned);
    owned->data = calloc(30, sizeof *owned->data);
    owned->released = &released;
    const qn_tensor t = qn_tensor_make(owned->data, QN_F32, 3, shape);
    assert_ok(qn_tensor_to_dlpack(&t, release, owned, &owned->holder));
    DLManagedTensor *managed = &owned->holder.managed;
    qn_tensor view;
    assert_ok(qn_tensor_from_dlpack(&managed->dl_tensor, &view));
    assert_memory_equal(&view, &t, sizeof t);
    assert_int_equal(released, 0);
    managed->deleter(managed);
    assert_int_equal(released, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),   cmocka_unit_test(test_bad_types),
        cmocka_unit_test(test_devices), cmocka_unit_test(test_borrowed),
        cmocka_unit_test(test_compact), cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_owned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
