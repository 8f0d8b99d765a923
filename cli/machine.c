/* SPDX-License-Identifier: Apache-2.0 */
/* The machine in words, from /proc/cpuinfo or the GPU's driver: never its name or address. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <unistd.h>

#include "measure.h"

/* The first value of a key in the kernel's list, or "". */
static void cpu_fact(const char *key, char *out, size_t capacity)
{
    char line[256];
    const size_t length = strlen(key);
    out[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && out[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, length) == 0 && (line[length] == '\t' || line[length] == ' ') &&
            line[length + strspn(line + length, "\t ")] == ':' && colon[1] != '\0')
            snprintf(out, capacity, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (file != NULL)
        fclose(file);
}

void cpu_model(char *out, size_t capacity)
{
    cpu_fact("model name", out, capacity);
}

void machine_words(const qn_ctx *ctx, char *out, size_t capacity)
{
    qn_cuda_info gpu;
    qn_cuda_info_init(&gpu);
    const qn_device device = device_of(ctx);
    if (device.kind == QN_CUDA && qn_cuda_query(device.index, &gpu, NULL) == QN_OK) {
        snprintf(out, capacity, "%s, %d multiprocessors", gpu.name, gpu.multiprocessors);
        return;
    }
    char name[128], family[16], model[16];
    cpu_fact("model name", name, sizeof name);
    cpu_fact("cpu family", family, sizeof family);
    cpu_fact("model", model, sizeof model);
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (family[0] != '\0')
        snprintf(out, capacity, "%s, family %s model %s, %ld CPUs", name, family, model, cpus);
    else
        snprintf(out, capacity, "%s, %ld CPUs", name[0] != '\0' ? name : "a CPU", cpus);
}
