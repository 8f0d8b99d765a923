/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that the sweep can run on. Another one is a row of the list and its functions. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static qn_tensor itself(struct check *c, const qn_tensor *host)
{
    (void)c;
    return *host;
}

static void stay(struct check *c, const qn_tensor *device, const qn_tensor *host)
{
    (void)c;
    (void)device;
    (void)host;
}

static void *host_scratch(struct check *c, size_t bytes)
{
    return bytes > 0 ? check_memory(c, "scratch", bytes, 64) : NULL;
}

static void nothing(struct check *c)
{
    (void)c;
}

static const struct check_device devices[] = {
    {"cpu", QN_CPU, itself, stay, stay, host_scratch, nothing},
    {"cuda", QN_CUDA, check_cuda_make, check_cuda_send, check_cuda_fetch, check_cuda_scratch,
     check_cuda_end},
};

const struct check_device *check_device_find(const char *name, int32_t *index)
{
    const size_t length = strcspn(name, ":");
    *index = name[length] == ':' ? atoi(name + length + 1) : 0;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strlen(devices[i].name) == length && strncmp(devices[i].name, name, length) == 0)
            return &devices[i];
    return NULL;
}
