/* SPDX-License-Identifier: Apache-2.0 */
/* The machine in words, from /proc/cpuinfo or the GPU's driver: never its name or address. */
#define _DEFAULT_SOURCE /* getloadavg */
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

const char *date_words(char text[DATE_TEXT])
{
    const time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) == NULL ||
        strftime(text, DATE_TEXT, "%Y-%m-%d %H:%M UTC", &parts) == 0)
        snprintf(text, DATE_TEXT, "an unknown date");
    return text;
}

double load_average(void)
{
    double load[1];
    return getloadavg(load, 1) == 1 ? load[0] : -1;
}
