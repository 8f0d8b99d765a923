/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of torch: its stable C interface (functions whose names begin with aoti_torch_ and
 * torch_), declared here by hand and looked up when the package asks for it. No header of torch is
 * included and nothing of torch is linked, so one binary serves every torch that has the
 * functions. All of them return 0 when all went well, but those that are told otherwise below. */
#ifndef QUERN_SRC_TORCH_ABI_H
#define QUERN_SRC_TORCH_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* torch's own tensor, and a list of operators that are being registered. */
typedef struct torch_tensor torch_tensor;
typedef struct torch_library torch_library;

/* An operator as torch calls it: arguments lie on the stack as 64-bit words, tensors as handles
 * that now belong to the operator, and results are left from stack[0] on. A `Tensor?` is 0, or the
 * address of a word that holds the handle and is to be freed. */
typedef void (*torch_operator)(uint64_t *stack, uint64_t n_in, uint64_t n_out);

struct torch_abi {
    int32_t (*library_init_fragment)(const char *space, const char *file, uint32_t line,
                                     torch_library **library);
    int32_t (*library_init_impl)(const char *space, const char *key, const char *file,
                                 uint32_t line, torch_library **library);
    int32_t (*library_def)(torch_library *library, const char *schema);
    int32_t (*library_impl)(torch_library *library, const char *name, torch_operator op);
    int32_t (*delete_library)(torch_library *library);
    int32_t (*data_ptr)(torch_tensor *tensor, void **data);
    int32_t (*dim)(torch_tensor *tensor, int64_t *dim);
    int32_t (*sizes)(torch_tensor *tensor, int64_t **sizes);
    int32_t (*strides)(torch_tensor *tensor, int64_t **strides);
    int32_t (*dtype)(torch_tensor *tensor, int32_t *dtype);
    int32_t (*device_type)(torch_tensor *tensor, int32_t *type);
    int32_t (*device_index)(torch_tensor *tensor, int32_t *index);
    int32_t (*empty_strided)(int64_t dim, const int64_t *sizes, const int64_t *strides,
                             int32_t dtype, int32_t device_type, int32_t device_index,
                             torch_tensor **tensor);
    int32_t (*copy)(torch_tensor *to, torch_tensor *from, int32_t non_blocking);
    int32_t (*zero)(torch_tensor *tensor);
    int32_t (*delete_tensor)(torch_tensor *tensor);
    /* Throws torch's exception if the condition does not hold. */
    void (*check)(bool condition, const char *function, const char *file, uint32_t line,
                  const char *text);
    /* From torch 2.13 on; before, such words were made by C++'s new. One of both is there. */
    int32_t (*delete_word)(uint64_t *word);
    void (*cpp_delete)(void *memory);
    /* Only where torch has CUDA. */
    int32_t (*current_cuda_stream)(int32_t device, void **stream);
    /* Numbers of devices and types. */
    int32_t type_cuda, f32, f16, bf16, i8, u8, i32, i64;
};

/* Filled by qni_torch_find(), once, before any operator is registered. */
extern struct torch_abi qni_torch;

/* Look all functions up. @return NULL, or the name of the one that this torch lacks. */
const char *qni_torch_find(void);

#endif
