/* SPDX-License-Identifier: Apache-2.0 */
/* The conversation of peer.h, for a peer in C. Timing is what quern bench does to itself: calls one
 * after another until the time is over, each with the next copy of the weights; the first two of a
 * stretch wake threads and fill caches and do not count. */
#define _POSIX_C_SOURCE 200809L
#include "peer.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNCOUNTED = 2, MOST_RUNS = 4000 };

static struct peer_way ways[PEER_WAYS];
static int n_ways;
static float *x_values, *w_values;
static struct peer_problem problem;

void *peer_alloc(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes > 0 ? bytes : 64) != 0) {
        fprintf(stderr, "%s: out of memory\n", peer_name);
        exit(1);
    }
    return memory;
}

int peer_copies(const struct peer_problem *p, size_t bytes)
{
    const size_t copies = bytes == 0 ? 1 : (p->rotate_bytes + bytes - 1) / bytes;
    return copies < 1 ? 1 : copies > 2048 ? 2048 : (int)copies;
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void answer(cJSON *object)
{
    char *text = cJSON_PrintUnformatted(object);
    puts(text);
    fflush(stdout);
    free(text);
    cJSON_Delete(object);
}

static void answer_text(const char *key, const char *value)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, key, value);
    answer(o);
}

static void answer_ok(void)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddBoolToObject(o, "ok", 1);
    answer(o);
}

static double number(const cJSON *o, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static const char *text(const cJSON *o, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(o, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static void numbers(const cJSON *o, const char *key, int64_t *to, int n)
{
    const cJSON *list = cJSON_GetObjectItem(o, key);
    for (int i = 0; i < n; i++) {
        const cJSON *item = cJSON_GetArrayItem(list, i);
        to[i] = cJSON_IsNumber(item) ? (int64_t)item->valuedouble : 0;
    }
}

static float *read_floats(const char *path, size_t n)
{
    float *values = peer_alloc(n * sizeof *values);
    FILE *f = fopen(path, "rb");
    const size_t got = f != NULL ? fread(values, sizeof *values, n, f) : 0;
    if (f != NULL)
        fclose(f);
    if (got == n)
        return values;
    free(values);
    return NULL;
}

static void drop(void)
{
    for (int i = 0; i < n_ways; i++)
        ways[i].drop(ways[i].state);
    n_ways = 0;
    free(x_values);
    free(w_values);
    x_values = w_values = NULL;
}

static void read_problem(const cJSON *o, struct peer_problem *p)
{
    memset(p, 0, sizeof *p);
    p->is_conv = strcmp(text(o, "op"), "conv2d") == 0;
    p->is_nhwc = strcmp(text(o, "image"), "nhwc") == 0;
    p->m = (int64_t)number(o, "m");
    p->n = (int64_t)number(o, "n");
    p->k = (int64_t)number(o, "k");
    p->threads = (int)number(o, "threads");
    p->rotate_bytes = (size_t)number(o, "rotate_bytes");
    snprintf(p->strategy, sizeof p->strategy, "%s", text(o, "strategy"));
    snprintf(p->x, sizeof p->x, "%s", text(o, "x"));
    snprintf(p->y, sizeof p->y, "%s", text(o, "y"));
    p->x_scale = (float)number(o, "x_scale");
    p->x_zero = (int32_t)number(o, "x_zero");
    p->y_scale = (float)number(o, "y_scale");
    p->x_elements = (size_t)number(o, "x_elements");
    p->y_elements = (size_t)number(o, "y_elements");
    if (!p->is_conv)
        return;
    p->batch = (int64_t)number(o, "batch");
    p->ci = (int64_t)number(o, "ci");
    p->h = (int64_t)number(o, "h");
    p->w = (int64_t)number(o, "w");
    p->oh = (int64_t)number(o, "oh");
    p->ow = (int64_t)number(o, "ow");
    p->kh = (int64_t)number(o, "kh");
    p->kw = (int64_t)number(o, "kw");
    p->groups = (int64_t)number(o, "groups");
    numbers(o, "stride", p->stride, 2);
    numbers(o, "pad", p->pad, 4);
    numbers(o, "dilation", p->dilation, 2);
}

static void make(const cJSON *o)
{
    drop();
    read_problem(o, &problem);
    x_values = read_floats(text(o, "x_file"), problem.x_elements);
    w_values = read_floats(text(o, "w_file"), (size_t)problem.n * (size_t)problem.k);
    if (x_values == NULL || w_values == NULL) {
        answer_text("error", "x_file or w_file cannot be read");
        return;
    }
    problem.x_values = x_values;
    problem.w_values = w_values;
    n_ways = peer_make(&problem, ways);
    cJSON *reply = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(reply, "ways");
    for (int i = 0; i < n_ways; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(ways[i].name));
    answer(reply);
}

static void run(const struct peer_way *way, double seconds)
{
    static double samples[MOST_RUNS];
    int n = 0;
    for (int i = 0; i < UNCOUNTED; i++) {
        if (way->run(way->state) != 0) {
            answer_text("error", "the library failed");
            return;
        }
    }
    const double begin = now_us();
    double now = begin;
    while (n == 0 || (now - begin < seconds * 1e6 && n < MOST_RUNS)) {
        way->run(way->state);
        const double after = now_us();
        samples[n++] = after - now;
        now = after;
    }
    cJSON *reply = cJSON_CreateObject();
    cJSON_AddItemToObject(reply, "us", cJSON_CreateDoubleArray(samples, n));
    answer(reply);
}

static void result(const struct peer_way *way, const char *path)
{
    float *y = peer_alloc(problem.y_elements * sizeof *y);
    way->result(way->state, y);
    FILE *f = fopen(path, "wb");
    const int good = f != NULL && fwrite(y, sizeof *y, problem.y_elements, f) == problem.y_elements;
    if (f != NULL && fclose(f) == 0 && good)
        answer_ok();
    else
        answer_text("error", "y_file cannot be written");
    free(y);
}

static void obey(const cJSON *o)
{
    const char *what = text(o, "do");
    const int way = (int)number(o, "way");
    if (strcmp(what, "make") == 0) {
        make(o);
    } else if (strcmp(what, "drop") == 0) {
        drop();
        answer_ok();
    } else if (way < 0 || way >= n_ways) {
        answer_text("error", "no such way");
    } else if (strcmp(what, "run") == 0) {
        run(&ways[way], number(o, "seconds"));
    } else if (strcmp(what, "result") == 0) {
        result(&ways[way], text(o, "y_file"));
    } else {
        answer_text("error", "what to do is not known");
    }
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    cJSON *hello = cJSON_CreateObject();
    cJSON_AddStringToObject(hello, "peer", peer_name);
    cJSON_AddStringToObject(hello, "version", peer_version());
    answer(hello);
    while (getline(&line, &capacity, stdin) > 0) {
        cJSON *o = cJSON_Parse(line);
        obey(o);
        cJSON_Delete(o);
    }
    drop();
    free(line);
    return 0;
}
