/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "abi.h"

#include <dlfcn.h>
#include <string.h>

struct torch_abi qni_torch;

#define AT(field) offsetof(struct torch_abi, field)
#define AOTI(field, name) {AT(field), "aoti_torch_" name}

static const struct {
    size_t at;
    const char *name;
} needed[] = {
    AOTI(library_init_fragment, "library_init_fragment"),
    AOTI(library_init_impl, "library_init_impl"),
    AOTI(library_def, "library_def"),
    AOTI(library_impl, "library_impl"),
    AOTI(delete_library, "delete_library_object"),
    AOTI(data_ptr, "get_data_ptr"),
    AOTI(dim, "get_dim"),
    AOTI(sizes, "get_sizes"),
    AOTI(strides, "get_strides"),
    AOTI(dtype, "get_dtype"),
    AOTI(device_type, "get_device_type"),
    AOTI(device_index, "get_device_index"),
    AOTI(empty_strided, "empty_strided"),
    AOTI(copy, "copy_"),
    AOTI(zero, "zero_"),
    AOTI(delete_tensor, "delete_tensor_object"),
    AOTI(check, "check"),
}, numbers[] = {
    AOTI(type_cuda, "device_type_cuda"),
    AOTI(f32, "dtype_float32"),
    AOTI(f16, "dtype_float16"),
    AOTI(bf16, "dtype_bfloat16"),
    AOTI(i8, "dtype_int8"),
    AOTI(u8, "dtype_uint8"),
    AOTI(i32, "dtype_int32"),
    AOTI(i64, "dtype_int64"),
}, wished[] = {
    {AT(delete_word), "torch_delete_stable_ivalue"},
    {AT(cpp_delete), "_ZdlPv"},
    AOTI(current_cuda_stream, "get_current_cuda_stream"),
};

static void *look_up(size_t at, const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    memcpy((char *)&qni_torch + at, &found, sizeof found);
    return found;
}

const char *qni_torch_find(void)
{
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (look_up(needed[i].at, needed[i].name) == NULL)
            return needed[i].name;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int32_t (*number)(void);
        void *found = dlsym(RTLD_DEFAULT, numbers[i].name);
        if (found == NULL)
            return numbers[i].name;
        memcpy(&number, &found, sizeof number);
        const int32_t value = number();
        memcpy((char *)&qni_torch + numbers[i].at, &value, sizeof value);
    }
    for (size_t i = 0; i < sizeof wished / sizeof *wished; i++)
        look_up(wished[i].at, wished[i].name);
    if (qni_torch.delete_word == NULL && qni_torch.cpp_delete == NULL)
        return "torch_delete_stable_ivalue";
    return NULL;
}
