/* SPDX-License-Identifier: Apache-2.0 */
/* One call of an operator: what it owns and gives back whatever happens, tensors as quern sees
 * them, and how it fails. */
#ifndef QUERN_SRC_TORCH_CALL_H
#define QUERN_SRC_TORCH_CALL_H

#include "abi.h"
#include "held.h"

enum { CALL_TENSORS = 12, CALL_RANK = 16 };

typedef struct call {
    const char *name; /* Of the operator, for its sentences. */
    held *weights;
    torch_tensor *owned[CALL_TENSORS];
    int n_owned;
    torch_tensor *result; /* Not among those owned. */
    bool is_failed;
    qn_error error;
    char text[640];
} call;

/* A tensor of torch's: how it lies, with as many dimensions as it has. */
typedef struct array {
    torch_tensor *tensor;
    void *data;
    qn_dtype dtype;
    int32_t torch_dtype, device_type, device_index;
    qn_device device;
    int64_t rank;
    int64_t size[CALL_RANK], stride[CALL_RANK];
} array;

void call_begin(call *c, const char *name, int64_t number);
/* Give everything back; the result goes to stack[0], or torch's exception is thrown. */
void call_end(call *c, uint64_t *stack);
/* Note why the call fails. The first reason counts. */
void call_fail(call *c, const char *text);
/* Checks what a function of quern's returned; its sentence, if any, is in c->error. */
bool call_check(call *c, qn_status status);

/* A word of the stack is a tensor, or an optional one: from now on the call's. */
torch_tensor *call_tensor(call *c, uint64_t word);
torch_tensor *call_optional(call *c, uint64_t word);
/* Look at a tensor. @return false: it failed. */
bool call_look(call *c, torch_tensor *tensor, const char *name, array *to);
/* A new tensor whose elements follow each other, of the type and device of another. is_result: it
 * becomes the call's result. */
bool call_new(call *c, const array *like, int32_t torch_dtype, int64_t rank, const int64_t *sizes,
              array *to, bool is_result);
/* Brings the elements one behind the other: into a copy where they do not lie so. */
bool call_together(call *c, array *a);
/* As a matrix of rows; a copy where rows do not lie at one distance. */
bool call_rows(call *c, array *a, qn_tensor *to);
/* As a tensor of quern's of the same rank. */
bool call_as(call *c, const array *a, const char *name, qn_tensor *to);
/* An optional operand: none where word is 0. */
bool call_operand(call *c, uint64_t word, const char *name, qn_tensor *to);

#endif
