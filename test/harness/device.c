/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that the sweep can run on. Operands are made and compared on the host; push gives the
 * device's copy of one, pull brings a result back. On the CPU both are the operand itself, so that
 * guard pages are around what the kernels touch. */
#include <string.h>

#include "harness.h"

static qn_tensor stay(struct check *c, const qn_tensor *host)
{
    (void)c;
    return *host;
}

static void nothing(struct check *c, const qn_tensor *device, const qn_tensor *host)
{
    (void)c;
    (void)device;
    (void)host;
}

static const struct check_device devices[] = {
    {"cpu", QN_CPU, stay, nothing},
};

const struct check_device *check_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i].name, name) == 0)
            return &devices[i];
    return NULL;
}
