/* SPDX-License-Identifier: Apache-2.0 */
/* Peers as child processes: a socket pair is standard input and output of each. x, w and y travel
 * through files in a folder of their own, which is gone at the end. A peer that dies or answers
 * nonsense is left out from then on, with a sentence. */
#define _GNU_SOURCE
#include "peers.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PEERS = 16 };

struct peer {
    char *program;
    pid_t child;
    int fd;
    FILE *from;
    char name[48], version[64];
};

struct peers {
    struct peer at[MAX_PEERS];
    int n;
    char folder[64];
};

/* --------------------------------------------------------------------------------- conversation */

static void end_peer(struct peer *p)
{
    if (p->from != NULL)
        fclose(p->from); /* its standard input ends, and so does the peer */
    p->from = NULL;
    if (p->child > 0)
        waitpid(p->child, NULL, 0);
    p->child = 0;
}

static void lose(struct peer *p, const char *why)
{
    complain(0, "it is left out from here on", "peer %s: %s", p->program, why);
    if (p->child > 0)
        kill(p->child, SIGKILL);
    end_peer(p);
}

static cJSON *hear(struct peer *p)
{
    char *line = NULL;
    size_t capacity = 0;
    cJSON *o = NULL;
    if (p->from != NULL && getline(&line, &capacity, p->from) > 0)
        o = cJSON_Parse(line);
    free(line);
    if (p->from != NULL && o == NULL && !is_stopped())
        lose(p, "it ended, or said what is not JSON");
    return o;
}

/* One question, one answer; frees the question. NULL: the peer is gone. */
static cJSON *ask(struct peer *p, cJSON *question)
{
    char *text = cJSON_PrintUnformatted(question);
    char *line = must_print("%s\n", text);
    size_t done = 0;
    const size_t length = strlen(line);
    while (p->from != NULL && done < length) {
        const ssize_t n = send(p->fd, line + done, length - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    free(line);
    free(text);
    cJSON_Delete(question);
    return hear(p);
}

static const char *text_of(const cJSON *o, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(o, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

/* ------------------------------------------------------------------------------- start and stop */

static void spawn(struct peer *p)
{
    int pair[2];
    p->fd = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return;
    p->child = fork();
    if (p->child == 0) {
        signal(SIGINT, SIG_IGN); /* Ctrl-C is for the command, which then ends its peers */
        dup2(pair[1], STDIN_FILENO);
        dup2(pair[1], STDOUT_FILENO);
        execl(p->program, p->program, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    if (p->child < 0) {
        close(pair[0]);
        return;
    }
    p->fd = pair[0];
    p->from = fdopen(pair[0], "r");
}

/* A program and its first words. */
static int greet(struct peer *p)
{
    spawn(p);
    cJSON *hello = hear(p);
    const char *name = text_of(hello, "peer"), *version = text_of(hello, "version");
    const char *skip = text_of(hello, "skip");
    snprintf(p->name, sizeof p->name, "%s", name != NULL ? name : "");
    snprintf(p->version, sizeof p->version, "%s", version != NULL ? version : "");
    if (name == NULL && p->from != NULL) {
        fprintf(stderr, "quern: peer %s: left out: %s\n", p->program,
                skip != NULL ? skip : "its first line names no peer");
        end_peer(p);
    }
    cJSON_Delete(hello);
    return p->from != NULL;
}

static int is_program(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Is name one of the words of "a,b,c"? */
static int is_among(const char *words, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = words; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && memcmp(at, name, length) == 0)
            return 1;
    return 0;
}

/* A file of the folder that may be started: a program, and one of those that are wanted. */
static int is_wanted(const char *program, const char *only)
{
    struct stat facts;
    return (only == NULL || is_among(only, strrchr(program, '/') + 1)) &&
           stat(program, &facts) == 0 && S_ISREG(facts.st_mode) && access(program, X_OK) == 0;
}

/* Every word of only names a program of the folder. */
static int check_wanted(const char *folder, const char *only)
{
    const char *comma = NULL;
    for (const char *at = only; at != NULL; at = comma != NULL ? comma + 1 : NULL) {
        comma = strchr(at, ',');
        char *program = must_print("%s/%.*s", folder, (int)strcspn(at, ","), at);
        const int is_there = is_wanted(program, NULL);
        if (!is_there)
            complain(EXIT_INPUT, "'make bench-peers' builds those whose libraries are there",
                     "--peer %s: %s: no such program", only, program);
        free(program);
        if (!is_there)
            return EXIT_INPUT;
    }
    return 0;
}

static char *folder_beside(void)
{
    char self[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    return must_print("%.*s/peers", slash != NULL ? (int)(slash - self) : 0, self);
}

int peers_start(const char *folder, const char *only, struct peers **out)
{
    struct dirent **names = NULL;
    char *beside = folder == NULL ? folder_beside() : must_copy(folder);
    int status = check_wanted(beside, only);
    const int n = status == 0 ? scandir(beside, &names, is_program, alphasort) : 0;
    struct peers *peers = must_alloc(sizeof *peers);
    for (int i = 0; i < n; i++) {
        struct peer *p = &peers->at[peers->n];
        p->program = must_print("%s/%s", beside, names[i]->d_name);
        free(names[i]);
        if (peers->n < MAX_PEERS - 1 && is_wanted(p->program, only) && greet(p)) {
            peers->n++;
            continue;
        }
        free(p->program);
        *p = (struct peer){0};
    }
    free(names);
    if (status == 0 && peers->n == 0)
        status = complain(EXIT_INPUT, "'make bench-peers' builds those whose libraries are there",
                          "%s: no peer in this folder", beside);
    snprintf(peers->folder, sizeof peers->folder, "/tmp/quern-peers-XXXXXX");
    if (status == 0 && mkdtemp(peers->folder) == NULL)
        status =
            complain(EXIT_LIBRARY, "make room there", "%s: %s", peers->folder, strerror(errno));
    free(beside);
    *out = peers;
    if (status == 0)
        return 0;
    peers->folder[0] = '\0';
    peers_stop(peers);
    *out = NULL;
    return status;
}

void peers_stop(struct peers *peers)
{
    for (int i = 0; i < peers->n; i++) {
        end_peer(&peers->at[i]);
        free(peers->at[i].program);
    }
    static const char *const files[] = {"x", "w", "y"};
    for (int i = 0; i < 3 && peers->folder[0] != '\0'; i++) {
        char *path = must_print("%s/%s", peers->folder, files[i]);
        unlink(path);
        free(path);
    }
    if (peers->folder[0] != '\0')
        rmdir(peers->folder);
    free(peers);
}

/* ---------------------------------------------------------------------------------- the problem */

static void add_pair(cJSON *o, const char *key, const int32_t *values, int n)
{
    cJSON_AddItemToObject(o, key, cJSON_CreateIntArray(values, n));
}

static cJSON *describe(const struct peers *peers, const struct workload *w, int threads,
                       size_t rotate_bytes)
{
    const struct problem *p = &w->p;
    const struct conv_shape *c = &p->conv;
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"m", (double)p->m},
        {"n", (double)p->n},
        {"k", (double)p->k},
        {"threads", threads},
        {"rotate_bytes", (double)rotate_bytes},
        {"bits", p->format.bits},
        {"group", (double)p->format.group},
        {"x_elements", (double)w->x_elements},
        {"y_elements", (double)w->y_elements},
        {"x_scale", (double)w->quant.x_scale},
        {"x_zero", w->quant.x_zero},
        {"y_scale", (double)w->y_scale},
    };
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "do", "make");
    cJSON_AddStringToObject(o, "op", problem_op_name(p));
    cJSON_AddStringToObject(o, "weights", p->weights);
    cJSON_AddStringToObject(o, "strategy", qn_strategy_name(p->strategy));
    cJSON_AddStringToObject(o, "x", qn_dtype_name(p->x));
    cJSON_AddStringToObject(o, "y", qn_dtype_name(p->y));
    json_add_images(o, c);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(o, numbers[i].key, numbers[i].value);
    add_pair(o, "stride", c->stride, 2);
    add_pair(o, "pad", c->pad, 4);
    add_pair(o, "dilation", c->dilation, 2);
    char *x = must_print("%s/x", peers->folder), *weights = must_print("%s/w", peers->folder);
    cJSON_AddStringToObject(o, "x_file", x);
    cJSON_AddStringToObject(o, "w_file", weights);
    free(x);
    free(weights);
    return o;
}

static int write_x(const struct workload *w, FILE *f)
{
    const size_t n = (size_t)w->x_elements;
    return fwrite(w->x_exact, sizeof *w->x_exact, n, f) == n;
}

/* The quantized weights, by input column, in f32. */
static int write_w(const struct workload *w, FILE *f)
{
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    qn_weight_view(w->weights[0], &parts);
    double *row = must_alloc(sizeof *row * (size_t)w->p.k);
    float *out = must_alloc(sizeof *out * (size_t)w->p.k);
    int good = 1;
    for (int64_t j = 0; j < w->p.n && good; j++) {
        weight_row(&parts, j, row, NULL);
        for (int64_t i = 0; i < w->p.k; i++)
            out[i] = (float)row[i];
        good = fwrite(out, sizeof *out, (size_t)w->p.k, f) == (size_t)w->p.k;
    }
    free(row);
    free(out);
    return good;
}

static int write_file(const struct peers *peers, const char *name, const struct workload *w,
                      int (*write)(const struct workload *, FILE *))
{
    char *path = must_print("%s/%s", peers->folder, name);
    FILE *f = fopen(path, "wb");
    int good = f != NULL && write(w, f);
    if (f != NULL && fclose(f) != 0)
        good = 0;
    if (!good)
        complain(0, "make room there", "%s: %s", path, strerror(errno));
    free(path);
    return good;
}

int peers_make(struct peers *peers, const struct workload *w, size_t rotate_bytes,
               struct contest contests[MAX_CONTESTS])
{
    int n = 0;
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(w->ctx, &info);
    if (w->p.op == OP_GROUPED || w->p.y == QN_I32 || !write_file(peers, "x", w, write_x) ||
        !write_file(peers, "w", w, write_w))
        return 0;
    for (int i = 0; i < peers->n; i++) {
        struct peer *p = &peers->at[i];
        if (p->from == NULL)
            continue;
        cJSON *reply = ask(p, describe(peers, w, info.n_threads, rotate_bytes));
        const cJSON *ways = cJSON_GetObjectItem(reply, "ways");
        for (int way = 0; way < cJSON_GetArraySize(ways) && n < MAX_CONTESTS; way++) {
            const cJSON *name = cJSON_GetArrayItem(ways, way);
            struct contest *c = &contests[n++];
            *c = (struct contest){.peer = p->name,
                                  .version = p->version,
                                  .error = -1,
                                  .is_good = 1,
                                  .peer_index = i,
                                  .way_index = way};
            snprintf(c->way, sizeof c->way, "%s", cJSON_IsString(name) ? name->valuestring : "");
        }
        if (text_of(reply, "error") != NULL)
            lose(p, text_of(reply, "error"));
        cJSON_Delete(reply);
    }
    return n;
}

void peers_drop(struct peers *peers, struct contest *contests, int n)
{
    for (int i = 0; i < n; i++)
        samples_free(&contests[i].samples);
    for (int i = 0; i < peers->n; i++) {
        cJSON *question = cJSON_CreateObject();
        cJSON_AddStringToObject(question, "do", "drop");
        cJSON_Delete(ask(&peers->at[i], question));
    }
}

/* --------------------------------------------------------------------------------------- a turn */

static cJSON *question_of(const struct contest *c, const char *what)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "do", what);
    cJSON_AddNumberToObject(o, "way", c->way_index);
    return o;
}

static void fail(struct contest *c, const char *why)
{
    c->is_good = 0;
    snprintf(c->why, sizeof c->why, "%s", why != NULL ? why : "no answer");
}

void peers_run(struct peers *peers, struct contest *c, double seconds)
{
    if (!c->is_good)
        return;
    cJSON *question = question_of(c, "run");
    cJSON_AddNumberToObject(question, "seconds", seconds);
    cJSON *reply = ask(&peers->at[c->peer_index], question);
    const cJSON *list = cJSON_GetObjectItem(reply, "us"), *item = NULL;
    if (cJSON_GetArraySize(list) == 0)
        fail(c, text_of(reply, "error"));
    cJSON_ArrayForEach(item, list) samples_add(&c->samples, item->valuedouble * 1e-6);
    cJSON_Delete(reply);
}

static float *read_y(const char *path, size_t n)
{
    float *y = must_alloc(sizeof *y * n);
    FILE *f = fopen(path, "rb");
    const size_t got = f != NULL ? fread(y, sizeof *y, n, f) : 0;
    if (f != NULL)
        fclose(f);
    if (got == n)
        return y;
    free(y);
    return NULL;
}

/* f32 results as the type of y. */
static void *as_outputs(const struct workload *w, const float *y)
{
    const size_t n = (size_t)w->y_elements;
    uint8_t *out = must_alloc(n * qn_dtype_bytes(w->p.y));
    if (w->p.y != QN_I8 && w->p.y != QN_U8) {
        floats_to(y, w->p.y, w->y_elements, out);
        return out;
    }
    for (size_t i = 0; i < n; i++) {
        const float code = y[i] / w->y_scale, lo = w->p.y == QN_I8 ? -128 : 0;
        const float hi = w->p.y == QN_I8 ? 127 : 255;
        const float inside = code < lo ? lo : code > hi ? hi : code;
        out[i] = (uint8_t)(int32_t)(inside + (inside < 0 ? -0.5f : 0.5f));
    }
    return out;
}

void peers_check(struct peers *peers, const struct workload *w, struct contest *c)
{
    const double most = 0.1; /* what 8 bits for a whole x with outliers can be off; a wrong layout
                                gives about 1.4 */
    if (!c->is_good)
        return;
    char *path = must_print("%s/y", peers->folder);
    cJSON *question = question_of(c, "result");
    cJSON_AddStringToObject(question, "y_file", path);
    cJSON *reply = ask(&peers->at[c->peer_index], question);
    float *y = NULL;
    if (cJSON_IsTrue(cJSON_GetObjectItem(reply, "ok")))
        y = read_y(path, (size_t)w->y_elements);
    if (y == NULL) {
        fail(c, text_of(reply, "error"));
    } else {
        struct workload theirs = *w;
        struct verdict verdict;
        theirs.y = as_outputs(w, y);
        workload_check(&theirs, 0, &verdict);
        free(theirs.y);
        c->error = verdict.error;
        if (!(c->error <= most))
            fail(c, "its y is not the product");
    }
    free(y);
    free(path);
    cJSON_Delete(reply);
}
