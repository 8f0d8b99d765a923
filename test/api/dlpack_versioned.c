/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack 1's versioned struct. The system's header may be older, so the structs of DLPack 1 are
 * declared here, as its specification lays them out, under that header's guard. */
#include "api.h"

#define DLPACK_DLPACK_H_
#define DLPACK_MAJOR_VERSION          1
#define DLPACK_MINOR_VERSION          1
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)

enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2 };
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 } DLDeviceType;
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
typedef struct {
    uint32_t major, minor;
} DLPackVersion;
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#include <quern/dlpack.h>

static void count(void *arg)
{
    ++*(int *)arg;
}

static void test_round_trip(void **state)
{
    (void)state;
    float data[12];
    int released = 0;
    const qn_tensor t = qn_tensor_2d(data, QN_BF16, 3, 4);
    qn_dlpack_versioned holder;
    qn_tensor back;
    bool read_only = true;
    assert_ok(qn_tensor_to_dlpack_versioned(&t, 0, count, &released, &holder));
    assert_int_equal(holder.managed.version.major, 1);
    assert_int_equal(holder.managed.dl_tensor.dtype.code, 4);
    assert_ok(qn_tensor_from_dlpack_versioned(&holder.managed, &read_only, &back));
    assert_memory_equal(&t, &back, sizeof t);
    assert_false(read_only);
    holder.managed.deleter(&holder.managed);
    assert_int_equal(released, 1);
    assert_ok(
        qn_tensor_to_dlpack_versioned(&t, DLPACK_FLAG_BITMASK_READ_ONLY, NULL, NULL, &holder));
    assert_true(holder.managed.deleter == NULL);
    assert_ok(qn_tensor_from_dlpack_versioned(&holder.managed, &read_only, &back));
    assert_true(read_only);
    assert_ok(qn_tensor_from_dlpack_versioned(&holder.managed, NULL, &back));
}

static void test_bad(void **state)
{
    (void)state;
    float data[12];
    const qn_tensor t = qn_tensor_2d(data, QN_F32, 3, 4);
    qn_dlpack_versioned holder;
    qn_tensor back;
    assert_status(qn_tensor_to_dlpack_versioned(NULL, 0, NULL, NULL, &holder), QN_E_ARGUMENT);
    assert_status(qn_tensor_to_dlpack_versioned(&t, 0, NULL, NULL, NULL), QN_E_ARGUMENT);
    assert_ok(qn_tensor_to_dlpack_versioned(&t, 0, NULL, NULL, &holder));
    assert_status(qn_tensor_from_dlpack_versioned(NULL, NULL, &back), QN_E_ARGUMENT);
    assert_status(qn_tensor_from_dlpack_versioned(&holder.managed, NULL, NULL), QN_E_ARGUMENT);
    holder.managed.version.major = 2;
    assert_status(qn_tensor_from_dlpack_versioned(&holder.managed, NULL, &back), QN_E_VERSION);
    holder.managed.version.major = 1;
    holder.managed.version.minor = 99;
    assert_ok(qn_tensor_from_dlpack_versioned(&holder.managed, NULL, &back));
    holder.managed.dl_tensor.dtype.lanes = 2;
    assert_status(qn_tensor_from_dlpack_versioned(&holder.managed, NULL, &back), QN_E_DTYPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
