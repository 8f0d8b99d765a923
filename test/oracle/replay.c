/* SPDX-License-Identifier: Apache-2.0 */
/* quern-replay: the reference for programs in other languages. Reads one operation, writes what
 * src/ref makes of it. Used by test_onnx.py to compare with ONNX Runtime.
 *
 *     quern-replay CASE.txt CASE.bin RESULT.bin
 *
 * CASE.txt: one fact a line, `key value...`. Arrays lie in CASE.bin: `key dtype offset dim...`,
 * contiguous. op matmul | conv2d | conv_transpose2d | quantize_rows        strategy float |
 * int8-static format bits group shift                                       geometry kh kw
 * conv_groups codes, scale, zero, offset: of the canonical weight           x, bias: of the
 * operation x_quant scale zero      y_quant scale zero      y dtype dim... stride h w    dilation h
 * w    pad top left bottom right RESULT.bin: float: P in f64, then the allowed error in f64; int8:
 * y in its own type; quantize_rows: codes u8, scale f32, offset f32, for one block a row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/op.h"
#include "ref/ref.h"

struct job {
    char op[32];
    bool is_float;
    uint8_t *bin;
    struct qn_weight w;
    qn_tensor x, y, bias;
    qn_quant_args quant;
    float y_scale;
    int32_t y_zero;
    int32_t stride[2], dilation[2], pad[4];
};

static int bad(const char *what, const char *detail)
{
    fprintf(stderr, "quern-replay: %s: %s\n", what, detail);
    return 2;
}

static qn_dtype dtype_of(const char *name)
{
    static const char *const names[] = {"f32", "f16", "bf16", "i8", "u8", "i32"};
    for (int i = 0; i < 6; i++)
        if (strcmp(name, names[i]) == 0)
            return i + 1; /* the values of qn_dtype */
    return QN_DTYPE_NONE;
}

static size_t element_bytes(qn_dtype t)
{
    return t == QN_F32 || t == QN_I32 ? 4 : t == QN_F16 || t == QN_BF16 ? 2 : 1;
}

static int64_t elements(const qn_tensor *t)
{
    int64_t n = 1;
    for (int32_t d = 0; d < t->rank; d++)
        n *= t->shape[d];
    return n;
}

/* dtype offset dim... */
static qn_tensor read_tensor(const struct job *job, const char *text, bool in_bin)
{
    char type[16];
    long long offset = 0;
    int used = 0;
    qn_tensor t = {.device = {QN_CPU, 0}};
    if (sscanf(text, "%15s%n", type, &used) != 1)
        return t;
    text += used;
    if (in_bin && sscanf(text, "%lld%n", &offset, &used) == 1)
        text += used;
    t.dtype = dtype_of(type);
    long long dim;
    while (t.rank < QN_MAX_RANK && sscanf(text, "%lld%n", &dim, &used) == 1) {
        t.shape[t.rank++] = dim;
        text += used;
    }
    int64_t stride = 1;
    for (int32_t d = t.rank - 1; d >= 0; d--) {
        t.stride[d] = stride;
        stride *= t.shape[d];
    }
    t.data = in_bin ? job->bin + offset : NULL;
    return t;
}

static bool read_line(struct job *job, const char *key, const char *rest)
{
    struct qn_weight *w = &job->w;
    qn_tensor t;
    if (strcmp(key, "op") == 0)
        return sscanf(rest, "%31s", job->op) == 1;
    if (strcmp(key, "strategy") == 0) {
        job->is_float = strncmp(rest, "float", 5) == 0;
        return true;
    }
    if (strcmp(key, "format") == 0) {
        long long group;
        w->format.code = QN_CODE_INT;
        if (sscanf(rest, "%d %lld %d", &w->format.bits, &group, &w->format.shift) != 3)
            return false;
        w->format.group = group;
        return true;
    }
    if (strcmp(key, "geometry") == 0)
        return sscanf(rest, "%d %d %d", &w->kh, &w->kw, &w->conv_groups) == 3;
    if (strcmp(key, "x_quant") == 0)
        return sscanf(rest, "%a %d", &job->quant.x_scale, &job->quant.x_zero) == 2;
    if (strcmp(key, "y_quant") == 0)
        return sscanf(rest, "%a %d", &job->y_scale, &job->y_zero) == 2;
    if (strcmp(key, "stride") == 0)
        return sscanf(rest, "%d %d", &job->stride[0], &job->stride[1]) == 2;
    if (strcmp(key, "dilation") == 0)
        return sscanf(rest, "%d %d", &job->dilation[0], &job->dilation[1]) == 2;
    if (strcmp(key, "pad") == 0)
        return sscanf(rest, "%d %d %d %d", &job->pad[0], &job->pad[1], &job->pad[2],
                      &job->pad[3]) == 4;
    if (strcmp(key, "y") == 0) {
        job->y = read_tensor(job, rest, false);
        return job->y.dtype != QN_DTYPE_NONE;
    }
    t = read_tensor(job, rest, true);
    if (t.dtype == QN_DTYPE_NONE)
        return false;
    if (strcmp(key, "x") == 0) {
        job->x = t;
    } else if (strcmp(key, "bias") == 0) {
        job->bias = t;
    } else if (strcmp(key, "codes") == 0) {
        w->codes = t.data;
        w->n = t.shape[0];
        w->k = t.shape[1];
    } else if (strcmp(key, "scale") == 0) {
        w->scale = t.data;
        w->n_groups = t.shape[1];
    } else if (strcmp(key, "zero") == 0) {
        w->zero = t.data;
    } else if (strcmp(key, "offset") == 0) {
        w->offset = t.data;
    } else {
        return false;
    }
    return true;
}

static uint8_t *read_file(const char *name)
{
    FILE *f = fopen(name, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        return NULL;
    const long bytes = ftell(f);
    uint8_t *data = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    rewind(f);
    if (data != NULL && fread(data, 1, (size_t)bytes, f) == (size_t)bytes)
        data[bytes] = 0;
    fclose(f);
    return data;
}

static bool is_conv(const struct job *job)
{
    return strncmp(job->op, "conv", 4) == 0;
}

static void make_op(const struct job *job, const struct qn_weight *const *w, struct qni_ref_op *op)
{
    qn_epilogue epilogue;
    qn_epilogue_init(&epilogue);
    epilogue.bias = job->bias;
    epilogue.y_scale = job->y_scale;
    epilogue.y_zero = job->y_zero;
    if (!is_conv(job)) {
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.x = job->x;
        args.y = job->y;
        args.quant = job->quant;
        args.epilogue = epilogue;
        args.strategy = job->is_float ? QN_STRATEGY_FLOAT : QN_STRATEGY_INT8_STATIC;
        qni_ref_matmul(&args, w, op);
        return;
    }
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.x = job->x;
    args.y = job->y;
    args.quant = job->quant;
    args.epilogue = epilogue;
    args.strategy = job->is_float ? QN_STRATEGY_FLOAT : QN_STRATEGY_INT8_STATIC;
    memcpy(args.stride, job->stride, sizeof args.stride);
    memcpy(args.dilation, job->dilation, sizeof args.dilation);
    memcpy(args.pad, job->pad, sizeof args.pad);
    if (strcmp(job->op, "conv2d") == 0)
        qni_ref_conv2d(&args, w, op);
    else
        qni_ref_conv_transpose2d(&args, w, op);
}

/* P, or y with the epilogue, and its bound, in the order of y. */
static qn_status run_float(const struct qni_ref_op *op, FILE *out)
{
    const size_t n = (size_t)(op->m * op->n);
    double *p = calloc(3 * n + 1, sizeof *p), *bound = p + n, *y = p + 2 * n;
    qn_status status = p == NULL ? QN_E_MEMORY : qni_ref_product(op, p, bound);
    for (int pass = 0; pass < 2 && status == QN_OK; pass++) {
        for (int64_t i = 0; i < op->m; i++)
            for (int64_t j = 0; j < op->n; j++) {
                double error = bound[i * op->n + j];
                const double v = qni_ref_epilogue(op, i, j, p[i * op->n + j], &error);
                y[qni_ref_at(op, &op->y, i, j)] = pass == 0 ? v : error;
            }
        if (fwrite(y, sizeof *y, n, out) != n)
            status = QN_E_WRITE;
    }
    free(p);
    return status;
}

static qn_status run_int8(const struct qni_ref_op *op, FILE *out)
{
    const size_t n = (size_t)(op->m * op->n), element = element_bytes(op->y.dtype);
    float *v = calloc(n + 1, sizeof *v);
    int32_t *d = calloc(n + 1, sizeof *d);
    uint8_t *y = calloc(n + 1, element);
    qn_status status =
        v == NULL || d == NULL || y == NULL ? QN_E_MEMORY : qni_ref_exact(op, v, d, NULL);
    for (int64_t i = 0; i < op->m && status == QN_OK; i++)
        for (int64_t j = 0; j < op->n; j++) {
            const uint32_t bits = op->y.dtype == QN_I32
                                      ? (uint32_t)d[i * op->n + j]
                                      : qni_ref_epilogue_bits(op, i, j, v[i * op->n + j]);
            memcpy(y + (size_t)qni_ref_at(op, &op->y, i, j) * element, &bits, element);
        }
    if (status == QN_OK && fwrite(y, element, n, out) != n)
        status = QN_E_WRITE;
    free(v);
    free(d);
    free(y);
    return status;
}

static qn_status run_quantize_rows(const struct job *job, FILE *out)
{
    const int64_t m = job->x.shape[0], one[2] = {m, 1};
    const size_t codes_bytes = (size_t)elements(&job->x), facts_bytes = (size_t)m * sizeof(float);
    uint8_t *memory = calloc(codes_bytes + 2 * facts_bytes + 1 + 8, 1);
    float *facts = calloc((size_t)(2 * m) + 1, sizeof *facts);
    qn_quantize_rows_args args;
    qn_quantize_rows_args_init(&args);
    args.x = args.codes = job->x;
    args.codes.dtype = QN_U8;
    args.codes.data = memory;
    args.scale = (qn_tensor){facts, QN_F32, 2, {QN_CPU, 0}, {one[0], one[1]}, {1, 1}};
    args.offset = args.scale;
    args.offset.data = facts + m;
    qn_status status = memory == NULL || facts == NULL ? QN_E_MEMORY : qni_ref_quantize_rows(&args);
    if (status == QN_OK && (fwrite(memory, 1, codes_bytes, out) != codes_bytes ||
                            fwrite(facts, 1, 2 * facts_bytes, out) != 2 * facts_bytes))
        status = QN_E_WRITE;
    free(memory);
    free(facts);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return bad("usage", "quern-replay CASE.txt CASE.bin RESULT.bin");
    struct job job = {.y_scale = 1.0f, .quant.x_scale = 1.0f, .stride = {1, 1}, .dilation = {1, 1}};
    job.w.kh = job.w.kw = job.w.conv_groups = 1;
    char *text = (char *)read_file(argv[1]);
    job.bin = read_file(argv[2]);
    if (text == NULL || job.bin == NULL)
        return bad("cannot read", text == NULL ? argv[1] : argv[2]);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char key[32];
        int used = 0;
        if (sscanf(line, "%31s%n", key, &used) != 1 ||
            !read_line(&job, key, line + used + (line[used] == ' ')))
            return bad("cannot understand", line);
    }
    job.w.ci = job.w.k / (job.w.kh * job.w.kw);
    FILE *out = fopen(argv[3], "wb");
    if (out == NULL)
        return bad("cannot write", argv[3]);
    qn_status status;
    if (strcmp(job.op, "quantize_rows") == 0) {
        status = run_quantize_rows(&job, out);
    } else {
        const struct qn_weight *const w = &job.w;
        struct qni_ref_op op;
        make_op(&job, &w, &op);
        status = job.is_float ? run_float(&op, out) : run_int8(&op, out);
    }
    free(text);
    free(job.bin);
    return fclose(out) != 0 || status != QN_OK ? bad("the reference failed", job.op) : 0;
}
