/* SPDX-License-Identifier: Apache-2.0 */
/* The harness of quern-check must notice what it is there for: each case below does one wrong
 * thing, and the run must fail with the right words and go on to the next case. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/harness.h"

/* Addresses that the compiler may not reason about. */
static uint8_t *volatile address;
static volatile uint8_t sink;

static void good(struct check *c, const void *arg)
{
    (void)arg;
    memset(check_memory(c, "operand", 100, 4), 1, 100);
}

static void fails(struct check *c, const void *arg)
{
    (void)arg;
    check_fail(c, "as it was told");
}

static void reads_past(struct check *c, const void *arg)
{
    (void)arg;
    c->random.state = 7; /* whatever side it is flush with, one of the two is a crash */
    for (int i = 0; i < 40; i++) {
        address = check_memory(c, "operand", 4096, 1);
        sink = address[4096];
    }
}

static void writes_before(struct check *c, const void *arg)
{
    (void)arg;
    address = check_memory(c, "operand", 4096, 1);
    address[-1] = 1;
}

/* Not beyond the page, but beyond the operand: the pattern tells. */
static void writes_near(struct check *c, const void *arg)
{
    (void)arg;
    address = check_memory(c, "operand", 61, 64);
    address[61] = 1;
}

static void writes_input(struct check *c, const void *arg)
{
    (void)arg;
    address = check_memory(c, "operand", 64, 64);
    check_memory_freeze(address);
    address[3] = 1;
}

static void leaks(struct check *c, const void *arg)
{
    const qn_ctx *ctx = check_context(c, QN_ISA_PORTABLE, 1);
    const uint8_t code = 8;
    const float scale = 1.0f;
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    (void)arg;
    qn_weight_parts_init(&parts);
    parts.format.code = QN_CODE_INT;
    parts.format.bits = 4;
    parts.format.group = 32;
    parts.format.scale_dtype = QN_F32;
    parts.n = parts.k = 1;
    parts.codes = &code;
    parts.scale = &scale;
    check_status(c, "qn_weight_create", qn_weight_create(ctx, &parts, &weight, NULL), QN_OK, NULL);
}

static void wrong_y(struct check *c, const void *arg)
{
    struct check_weight_options o = {.n = 3, .k = 5, .kh = 1, .kw = 1, .conv_groups = 1};
    struct check_weight weight;
    const struct check_format *formats;
    struct check_expected expected;
    struct qni_ref_op op;
    qn_matmul_args args;
    const int which = *(const int *)arg;
    check_formats(&formats);
    o.format = formats[0].format;
    o.data = CHECK_NORMAL;
    check_weight_make(c, &o, &weight);
    qn_matmul_args_init(&args);
    args.x = check_tensor(c, "x", QN_F32, 2, (const int64_t[]){2, 5}, false);
    args.y = check_tensor(c, "y", QN_F32, 2, (const int64_t[]){2, 3}, false);
    args.y.stride[0] = 3;
    check_fill_x(c, &args.x, CHECK_NORMAL, false);
    const struct qn_weight *const w = &weight.w;
    qni_ref_matmul(&args, &w, &op);
    check_expect(c, &op, CHECK_NORMAL, &expected);
    double p[6], bound[6];
    check_status(c, "qni_ref_product", qni_ref_product(&op, p, bound), QN_OK, NULL);
    for (int i = 0; i < 6; i++)
        ((float *)args.y.data)[i] = (float)(p[i] + (i == 4 && which != 0 ? 3.0 * bound[i] : 0.0));
    check_y(c, &expected, "qni_matmul_f32_q4n16_mr1_scalar", "a kernel");
}

static void suite(struct check_suite *s, const struct check_options *options)
{
    static const int right = 0, wrong = 1;
    (void)options;
    check_case(s, good, NULL, "good");
    check_case(s, fails, NULL, "fails");
    check_case(s, reads_past, NULL, "reads_past");
    check_case(s, writes_before, NULL, "writes_before");
    check_case(s, writes_near, NULL, "writes_near");
    check_case(s, writes_input, NULL, "writes_input");
    check_case(s, leaks, NULL, "leaks");
    check_case(s, wrong_y, &right, "right_y");
    check_case(s, wrong_y, &wrong, "wrong_y");
}

/* Runs the suite with its output in a file; returns the text. */
static char *run(const char *filter, int32_t jobs, int *status)
{
    static char text[16384];
    static check_suite_fn *const suites[] = {suite};
    static const char *const names[] = {"self"};
    struct check_options o = {.isa = QN_ISA_PORTABLE, .seed = 1, .filter = filter, .jobs = jobs};
    o.device = check_device_find("cpu", &o.device_index);
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with its own tests in the worker */
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int saved = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    *status = check_run(&o, suites, names, 1);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void expect(const char *filter, const char *words)
{
    int status;
    const char *text = run(filter, 2, &status);
    if (words == NULL) {
        if (status != 0)
            fail_msg("%s fails:\n%s", filter, text);
    } else if (status != 1 || strstr(text, words) == NULL ||
               strstr(text, "--filter 'self/") == NULL) {
        fail_msg("%s: status %d, not the words '%s':\n%s", filter, status, words, text);
    }
}

static void notices(void **state)
{
    (void)state;
    expect("self/good", NULL);
    expect("self/right_y", NULL);
    expect("self/fails", "as it was told");
    expect("self/writes_near", "1 bytes past the operand 'operand'");
    expect("self/leaks", "not freed");
    expect("self/wrong_y", "1 of 6 elements are wrong; y[1, 1]");
}

/* Sanitizers end the process themselves, with words of their own. */
static void notices_crashes(void **state)
{
    (void)state;
    expect("self/reads_past", "1 bytes past the end of the operand 'operand'");
    expect("self/writes_input", "a write to byte 3 of the input 'operand'");
    int status;
    run("self/writes_before", 1,
        &status); /* a crash, or damage in the pattern: by the seed's choice */
    assert_int_equal(status, 1);
}

/* A crash costs one case: the others are run and counted. */
static void goes_on(void **state)
{
    (void)state;
    int status;
    for (int32_t jobs = 1; jobs <= 3; jobs++) {
        const char *text = run(NULL, jobs, &status);
        assert_int_equal(status, 1);
        assert_non_null(strstr(text, "9 cases, 7 failed"));
    }
    run("no such case", 1, &status);
    assert_int_equal(status, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notices),
        cmocka_unit_test(notices_crashes),
        cmocka_unit_test(goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
