/* SPDX-License-Identifier: Apache-2.0 */
/* The entry of the package: registers the operators with the torch of this process. Schemas come
 * from the package, which has them for its own operators, too, where torch lacks these functions.
 * What is registered stays for the life of the process, so this object must not be unloaded. */
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"
#include "operators.h"

static const struct {
    const char *name;
    torch_operator op;
    bool is_for_gpus;
} operators[] = {
    {"matmul", qni_torch_matmul, true},
    {"matmul_inference", qni_torch_matmul, true},
    {"grouped", qni_torch_grouped, true},
    {"grouped_inference", qni_torch_grouped, true},
    {"conv2d", qni_torch_conv2d, true},
    {"conv2d_inference", qni_torch_conv2d, true},
    {"conv_transpose2d", qni_torch_conv_transpose2d, true},
    {"conv_transpose2d_inference", qni_torch_conv_transpose2d, true},
    {"embedding", qni_torch_embedding, false},
    {"dense", qni_torch_dense, false},
};

static int32_t register_for(const char *space, const char *key, bool is_gpu)
{
    torch_library *library;
    int32_t failed = qni_torch.library_init_impl(space, key, "libquern_torch", __LINE__, &library);
    for (size_t i = 0; failed == 0 && i < sizeof operators / sizeof *operators; i++)
        if (!is_gpu || operators[i].is_for_gpus)
            failed = qni_torch.library_impl(library, operators[i].name, operators[i].op);
    return failed;
}

/* Define `schemas` ("matmul(Tensor x, ...) -> Tensor") in torch's namespace `space` and bring their
 * kernels for the CPU and, where torch has CUDA, for GPUs. @return 0; 1: text (of `capacity` bytes)
 * has the sentence, and nothing of the package is usable through torch's C interface. */
QN_API int32_t qn_torch_register(const char *space, const char *const *schemas, int32_t n_schemas,
                                 char *text, size_t capacity);
int32_t qn_torch_register(const char *space, const char *const *schemas, int32_t n_schemas,
                          char *text, size_t capacity)
{
    torch_library *library;
    const char *lacking = qni_torch_find();
    if (lacking != NULL) {
        snprintf(text, capacity, "this torch lacks %s", lacking);
        return 1;
    }
    int32_t failed = qni_torch.library_init_fragment(space, "libquern_torch", __LINE__, &library);
    for (int32_t i = 0; failed == 0 && i < n_schemas; i++)
        failed = qni_torch.library_def(library, schemas[i]);
    failed = failed != 0 ? failed : register_for(space, "CPU", false);
    if (failed == 0 && qni_torch.current_cuda_stream != NULL)
        failed = register_for(space, "CUDA", true);
    if (failed != 0)
        snprintf(text, capacity, "torch refuses to register operators in the namespace %s", space);
    return failed != 0 ? 1 : 0;
}
