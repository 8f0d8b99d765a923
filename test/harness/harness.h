/* SPDX-License-Identifier: Apache-2.0 */
/* What a case of quern-check sees: its seed, ways to fail, guarded memory, contexts, data,
 * comparison.
 *
 * A suite is a function that names its cases one after another with check_case(); it is run once to
 * count them and once in every worker process, so enumerating must be cheap and always the same.
 * The body of a case runs in one worker only. A crash of any kind (also in a thread of the library,
 * or in memory that it has destroyed) ends that worker, is reported as that case's failure, and the
 * next worker goes on behind it. */
#ifndef CHECK_HARNESS_H
#define CHECK_HARNESS_H

#include <quern/quern.h>

#include "../../src/base/compiler.h"
#include "../../src/ref/ref.h"

/* -------------------------------------------------------------------------------------- options */

struct check;
/* Where operations run. Operands are made and compared on the host; an operation gets their
 * counterparts over there, which live until the case ends. On the CPU an operand is its own
 * counterpart, so that guard pages are around what the kernels touch. */
struct check_device {
    const char *name;
    int32_t kind;
    qn_tensor (*make)(struct check *c, const qn_tensor *host);
    void (*send)(struct check *c, const qn_tensor *device, const qn_tensor *host);
    void (*fetch)(struct check *c, const qn_tensor *device, const qn_tensor *host);
    void *(*scratch)(struct check *c, size_t bytes);
    /* The case ends: compare what must not have changed, free its memory. */
    void (*end)(struct check *c);
};
/* NULL: no such device in this build. index: behind a colon, as in cuda:1. */
const struct check_device *check_device_find(const char *name, int32_t *index);

struct check_options {
    const char *filter; /* part of a name, or a pattern with * and ?; NULL: every case */
    uint64_t isa;       /* features that may be used at most */
    bool isa_given;     /* only this mask, no sweep */
    uint64_t seed;
    int32_t threads; /* 0: the sweep over thread counts; else this one only */
    int32_t jobs;    /* worker processes; 0: none, everything in this one (for a debugger) */
    bool list, quick, verbose;
    bool separate; /* on a GPU: an allocation for each operand, for compute-sanitizer */
    const struct check_device *device;
    int32_t device_index;
};

enum { CHECK_ABOUT_BYTES = 400 };

/* ---------------------------------------------------------------------------------------- cases */

/* splitmix64: every 64-bit state is a good one. */
struct check_random {
    uint64_t state;
};

struct check {
    const struct check_options *options;
    const char *name;
    uint64_t seed;              /* of this case: from its name and the seed of the run */
    struct check_random random; /* begins with that seed */
    bool failed;
    char text[1600]; /* why, one finding a line */
    char *about;     /* what the case has drawn: shape, types; shown with a failure */
};

struct check_suite; /* the enumeration of the cases of one suite */
typedef void check_case_fn(struct check *c, const void *arg);
typedef void check_suite_fn(struct check_suite *suite, const struct check_options *options);

/* arg must live until the call returns, no longer. */
void check_case(struct check_suite *suite, check_case_fn *fn, const void *arg, const char *format,
                ...) QNI_PRINTF(4, 5);
/* A case goes on after a failure; only the first few are kept. */
void check_fail(struct check *c, const char *format, ...) QNI_PRINTF(2, 3);
void check_about(struct check *c, const char *format, ...) QNI_PRINTF(2, 3);
/* Fails unless status is the expected one. what: the call. Returns whether it was. */
bool check_status(struct check *c, const char *what, qn_status got, qn_status expected,
                  const qn_error *err);

uint64_t check_random_next(struct check_random *r);
/* In [lo, hi], both included. */
int64_t check_random_in(struct check_random *r, int64_t lo, int64_t hi);
bool check_random_chance(struct check_random *r, int32_t percent);
/* Roughly normal, mean 0, deviation 1. */
double check_random_normal(struct check_random *r);
/* One of a list. */
int64_t check_random_of(struct check_random *r, const int64_t *list, size_t n);
#define CHECK_OF(random, ...)                                                                      \
    check_random_of((random), (const int64_t[]){__VA_ARGS__},                                      \
                    sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* --------------------------------------------------------------------------------------- memory */

/* bytes between two inaccessible pages, flush with the one behind (or, by the seed's choice, with
 * the one before), the rest of the pages filled with a pattern that is compared when the case ends.
 * name must be static. alignment: a power of two; flush with the end only as far as it allows. */
void *check_memory(struct check *c, const char *name, size_t bytes, size_t alignment);
/* From now on a write is a crash. */
void check_memory_freeze(void *memory);
void check_memory_thaw(void *memory);

/* ------------------------------------------------------------------------------------- contexts */

/* ISA masks from everything down to portable, the newest feature removed first. */
int32_t check_masks(const struct check_options *options, const uint64_t **masks);
/* A context that lives as long as the worker. threads: 1, 2, 5, ...; 0: a caller's parallel-for
 * that runs the items one after another, last one first. All its memory is guarded, counted and
 * watched for leaks. Never NULL: failing to make one fails the case and ends it. */
enum { CHECK_SERIAL = 0 };
/* On a GPU one context serves every mask and count. */
const qn_ctx *check_context(struct check *c, uint64_t mask, int32_t threads);
/* Allocations made so far through the contexts of this worker. */
int64_t check_allocations(void);
/* "vnni512" for a mask: the newest feature in it; "portable". */
const char *check_mask_name(uint64_t mask);

/* ----------------------------------------------------------------------------------------- data */

/* The three generators of docs/architecture.md. */
enum { CHECK_EXACT = 0, CHECK_EXTREME = 1, CHECK_NORMAL = 2, CHECK_N_DATA = 3 };
extern const char *const check_data_names[CHECK_N_DATA];

/* A canonical weight made by the harness alone; free of src/quant, so that the reference is as
 * well. */
struct check_weight {
    struct qn_weight w;    /* for src/ref and packers of tests */
    qn_weight_parts parts; /* for qn_weight_create() */
    float table[256];
};
struct check_weight_options {
    qn_format format;
    int64_t n, k; /* k = kh * kw * ci */
    int32_t kh, kw, conv_groups;
    int32_t data;
    bool perm, prescale;
    bool f16_scales; /* scales and offsets that f16 can hold */
    bool small;      /* CHECK_EXTREME: scales and offsets so small that any x gives a number */
};
void check_weight_make(struct check *c, const struct check_weight_options *options,
                       struct check_weight *weight);

struct check_format {
    const char *name;
    qn_format format;
};
/* The formats of the sweep. */
int32_t check_formats(const struct check_format **formats);
/* Can int8 strategies read it: integers, halves of integers of E2M1, or a table of at most 16
 * integers? */
bool check_weight_is_integer(const struct check_weight *weight);

/* A tensor of the given shape in guarded memory; rows (all but the last stride) are longer than
 * need be by a random amount if padded. The contents are random bytes. */
qn_tensor check_tensor(struct check *c, const char *name, qn_dtype dtype, int32_t rank,
                       const int64_t *shape, bool padded);
/* Fill activations. Rows (the first dimension): CHECK_EXTREME makes some hold one NaN or infinity
 * when bad_rows. */
void check_fill_x(struct check *c, const qn_tensor *x, int32_t data, bool bad_rows);
/* Make many of them as large as their type allows: for weights that are small. */
void check_enlarge_x(struct check *c, const qn_tensor *x);
void check_put(const qn_tensor *t, int64_t at, double value);

/* ----------------------------------------------------------------------------------- comparison */

/* What y must be, for one op: bits where the numbers are EXACT, a bound elsewhere. */
struct check_expected {
    struct qni_ref_op op;
    int32_t data;
    bool exact;
    bool one_nan; /* y comes from the API: NaN of int8 strategies and of 16 bits have one form */
    uint32_t *bits;   /* [m, n] */
    double *y;        /* [m, n], before rounding to the type of y */
    double *error[4]; /* [m, n] of float kernels, by class (compare.c). NULL: not needed yet */
    uint8_t *before;  /* image of y before the calls */
    uint8_t *after;
    size_t y_bytes;
    struct check_expected *dense; /* of kernels that round weights; NULL: not needed yet */
};
/* data: of weights and activations together; CHECK_EXACT asks for equal bits of float strategies
 * too. */
void check_expect(struct check *c, const struct qni_ref_op *op, int32_t data,
                  struct check_expected *expected);
/* Forget what an earlier call has written to y. */
void check_prepare_y(struct check *c, struct check_expected *expected);
/* Compare y and everything around it. who: the kernel or context, for the text. Returns false if it
 * differs. */
bool check_y(struct check *c, struct check_expected *expected, const char *kernel, const char *who);
/* y as it is now, for a comparison of bits with the y of a later call. */
uint8_t *check_remember_y(struct check *c, const struct check_expected *expected);
bool check_same_y(struct check *c, const struct check_expected *expected, const uint8_t *image,
                  const char *who);

/* ------------------------------------------------------------ inside the harness, not for cases */

enum { CHECK_NOWHERE = 0, CHECK_BEFORE, CHECK_BEHIND, CHECK_INSIDE };
struct check_crash { /* written by a dying worker, read by its parent: where the address lies */
    int32_t place;
    int64_t distance;
    char operand[48];
};
/* Of cuda.c, for the list of device.c. */
qn_tensor check_cuda_make(struct check *c, const qn_tensor *host);
void check_cuda_send(struct check *c, const qn_tensor *device, const qn_tensor *host);
void check_cuda_fetch(struct check *c, const qn_tensor *device, const qn_tensor *host);
void *check_cuda_scratch(struct check *c, size_t bytes);
void check_cuda_end(struct check *c);

void check_crash_handlers(struct check_crash *crash);
/* Compares the patterns, frees the case's memory, finds leaks. */
void check_memory_end(struct check *c);
void check_contexts_end(void);
/* Live blocks of the contexts' allocator; and that so many more are there to stay. */
size_t check_memory_of_contexts(void);
void check_memory_keep(size_t blocks);
int check_run(const struct check_options *options, check_suite_fn *const *suites,
              const char *const *names, int32_t n_suites);
void *check_alloc(void *arg, size_t bytes, size_t alignment);
void check_free(void *arg, void *data, size_t bytes);

#endif
