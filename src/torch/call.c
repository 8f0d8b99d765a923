/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <stdio.h>
#include <string.h>

void call_begin(call *c, const char *name, int64_t number)
{
    memset(c, 0, offsetof(call, error));
    c->error.status = QN_OK;
    c->error.offset = -1;
    c->error.text[0] = c->text[0] = '\0';
    c->name = name;
    c->weights = held_take(number);
    if (c->weights == NULL)
        call_fail(c, "its weights are gone: the layer that held them was deleted, or the graph "
                     "was made in another process (quern.torch.load_program() brings both)");
}

void call_end(call *c, uint64_t *stack)
{
    for (int i = 0; i < c->n_owned; i++)
        qni_torch.delete_tensor(c->owned[i]);
    if (c->weights != NULL)
        held_release(c->weights);
    if (!c->is_failed) {
        stack[0] = (uint64_t)(uintptr_t)c->result;
        return;
    }
    if (c->result != NULL)
        qni_torch.delete_tensor(c->result);
    qni_torch.check(false, c->name, "quern", 0, c->text); /* does not return */
}

void call_fail(call *c, const char *text)
{
    if (!c->is_failed)
        snprintf(c->text, sizeof c->text, "quern::%s: %s", c->name, text);
    c->is_failed = true;
}

bool call_check(call *c, qn_status status)
{
    if (status != QN_OK)
        call_fail(c, c->error.text[0] != '\0' ? c->error.text : qn_status_text(status));
    return status == QN_OK;
}

static torch_tensor *own(call *c, torch_tensor *tensor)
{
    if (tensor != NULL)
        c->owned[c->n_owned++] = tensor; /* no operator has more than CALL_TENSORS / 2 */
    return tensor;
}

torch_tensor *call_tensor(call *c, uint64_t word)
{
    return own(c, (torch_tensor *)(uintptr_t)word);
}

torch_tensor *call_optional(call *c, uint64_t word)
{
    if (word == 0)
        return NULL;
    uint64_t *cell = (uint64_t *)(uintptr_t)word;
    torch_tensor *found = (torch_tensor *)(uintptr_t)*cell;
    if (qni_torch.delete_word != NULL)
        qni_torch.delete_word(cell);
    else
        qni_torch.cpp_delete(cell);
    return own(c, found);
}

static qn_dtype dtype_of(int32_t torch_dtype)
{
    return torch_dtype == qni_torch.f32    ? QN_F32
           : torch_dtype == qni_torch.bf16 ? QN_BF16
           : torch_dtype == qni_torch.f16  ? QN_F16
           : torch_dtype == qni_torch.i64  ? QN_I64
           : torch_dtype == qni_torch.i32  ? QN_I32
           : torch_dtype == qni_torch.i8   ? QN_I8
           : torch_dtype == qni_torch.u8   ? QN_U8
                                           : QN_DTYPE_NONE;
}

static void fail_about(call *c, const char *name, const char *text)
{
    char words[200];
    snprintf(words, sizeof words, "%s %s", name, text);
    call_fail(c, words);
}

bool call_look(call *c, torch_tensor *tensor, const char *name, array *to)
{
    int64_t *sizes = NULL, *strides = NULL;
    to->tensor = tensor;
    if (c->is_failed)
        return false;
    if (qni_torch.dim(tensor, &to->rank) != 0 || qni_torch.dtype(tensor, &to->torch_dtype) != 0 ||
        qni_torch.device_type(tensor, &to->device_type) != 0 ||
        qni_torch.device_index(tensor, &to->device_index) != 0 ||
        qni_torch.sizes(tensor, &sizes) != 0 || qni_torch.strides(tensor, &strides) != 0 ||
        qni_torch.data_ptr(tensor, &to->data) != 0) {
        fail_about(c, name, "is no dense tensor");
        return false;
    }
    to->dtype = dtype_of(to->torch_dtype);
    if (to->dtype == QN_DTYPE_NONE) {
        fail_about(c, name, "is of a type that quern does not take: float32, float16 or bfloat16");
        return false;
    }
    if (to->rank > CALL_RANK) {
        fail_about(c, name, "has more dimensions than quern takes");
        return false;
    }
    const bool is_cuda = to->device_type == qni_torch.type_cuda;
    to->device = (qn_device){is_cuda ? QN_CUDA : QN_CPU, is_cuda ? to->device_index : 0};
    for (int64_t i = 0; i < to->rank; i++) {
        to->size[i] = sizes[i];
        to->stride[i] = strides[i];
    }
    return true;
}

bool call_new(call *c, const array *like, int32_t torch_dtype, int64_t rank, const int64_t *sizes,
              array *to, bool is_result)
{
    int64_t natural = 1;
    torch_tensor *made = NULL;
    if (c->is_failed)
        return false;
    to->rank = rank;
    for (int64_t i = rank; i-- > 0; natural *= sizes[i] > 1 ? sizes[i] : 1) {
        to->size[i] = sizes[i];
        to->stride[i] = natural;
    }
    to->torch_dtype = torch_dtype;
    to->dtype = dtype_of(torch_dtype);
    to->device_type = like->device_type;
    to->device_index = like->device_index;
    to->device = like->device;
    if (qni_torch.empty_strided(rank, sizes, to->stride, torch_dtype, like->device_type,
                                like->device_index, &made) != 0 ||
        qni_torch.data_ptr(made, &to->data) != 0) {
        call_fail(c, "torch has no memory for a new tensor");
        return false;
    }
    to->tensor = made;
    if (is_result)
        c->result = made;
    else
        own(c, made);
    return true;
}

static bool lies_together(const array *a)
{
    int64_t natural = 1;
    for (int64_t i = a->rank; i-- > 0; natural *= a->size[i] > 1 ? a->size[i] : 1) {
        if (a->size[i] == 0)
            return true;
        if (a->size[i] > 1 && a->stride[i] != natural)
            return false;
    }
    return true;
}

/* Strides that nobody follows may be anything in torch; the library wants natural ones. */
static void make_strides_natural(array *a)
{
    int64_t natural = 1;
    for (int64_t i = a->rank; i-- > 0; natural *= a->size[i] > 1 ? a->size[i] : 1)
        if (a->size[i] <= 1)
            a->stride[i] = natural;
}

bool call_together(call *c, array *a)
{
    array made;
    if (c->is_failed)
        return false;
    if (lies_together(a)) {
        make_strides_natural(a);
        return true;
    }
    if (!call_new(c, a, a->torch_dtype, a->rank, a->size, &made, false))
        return false;
    if (qni_torch.copy(made.tensor, a->tensor, 0) != 0) {
        call_fail(c, "torch cannot copy a tensor whose elements do not follow each other");
        return false;
    }
    *a = made;
    return true;
}

/* The distance of rows, or -1. */
static int64_t distance_of_rows(const array *a, int64_t *count)
{
    const int64_t k = a->size[a->rank - 1];
    int64_t step = k;
    *count = 1;
    for (int64_t i = a->rank - 1; i-- > 0;)
        if (a->size[i] == 0)
            *count = 0;
    if (*count == 0)
        return k > 0 ? k : 1;
    if (k > 1 && a->stride[a->rank - 1] != 1)
        return -1;
    for (int64_t i = a->rank - 1; i-- > 0;) {
        if (a->size[i] == 1)
            continue;
        if (*count == 1)
            step = a->stride[i];
        else if (a->stride[i] != step * *count)
            return -1;
        *count *= a->size[i];
    }
    return step >= k ? step : -1;
}

bool call_rows(call *c, array *a, qn_tensor *to)
{
    int64_t count;
    if (c->is_failed)
        return false;
    if (a->rank < 1) {
        call_fail(c, "x has no dimension: a row at least");
        return false;
    }
    int64_t step = distance_of_rows(a, &count);
    if (step < 0) {
        if (!call_together(c, a))
            return false;
        step = distance_of_rows(a, &count);
    }
    const int64_t k = a->size[a->rank - 1];
    *to = qn_tensor_2d(a->data, a->dtype, count, k);
    to->device = a->device;
    to->stride[0] = step > 0 ? step : 1;
    return true;
}

bool call_as(call *c, const array *a, const char *name, qn_tensor *to)
{
    if (c->is_failed)
        return false;
    if (a->rank > QN_MAX_RANK) {
        fail_about(c, name, "has more dimensions than quern takes");
        return false;
    }
    memset(to, 0, sizeof *to);
    to->data = a->data;
    to->dtype = a->dtype;
    to->rank = (int32_t)a->rank;
    to->device = a->device;
    for (int64_t i = 0; i < a->rank; i++) {
        to->shape[i] = a->size[i];
        to->stride[i] = a->stride[i];
    }
    return true;
}

bool call_operand(call *c, uint64_t word, const char *name, qn_tensor *to)
{
    torch_tensor *tensor = call_optional(c, word);
    array found;
    *to = qn_tensor_none();
    if (tensor == NULL)
        return !c->is_failed;
    return call_look(c, tensor, name, &found) && call_together(c, &found) &&
           call_as(c, &found, name, to);
}
