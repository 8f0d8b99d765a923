/* SPDX-License-Identifier: Apache-2.0 */
/* Problems from the command line: every layer (or the one shape given) x m x weights x strategy. */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

const struct option_row options_problem[] = {
    {"op", 0, "matmul|grouped|conv2d|conv_transpose2d", "the operation (default matmul)"},
    {"n", 'n', "N", "outputs; of a convolution: output channels"},
    {"k", 'k', "N", "reduction length of matmul and grouped"},
    {"m", 'm', "LIST", "rows of x, tokens or images, as in 1,8,128 (default 1)"},
    {"layers", 'l', "MODEL[/LAYER]",
     "layers of a model instead of a shape: llama3-8b, resnet50/layer4*, ...; 'list' shows all"},
    {"weights", 'w', "SPEC,...",
     "formats: int4:g128, int4:g128:zp, int8:pc, q4_k, ... "
     "(default int4:g128)"},
    {"strategy", 's', "LIST",
     "float, int8-row, int8-block, int8-static, dense, fp8-row, fp8-block (default float)"},
    {"x", 'x', "f32|f16|bf16|i8|u8", "type of the activations (default f32; int8-static: i8)"},
    {"y", 'y', "f32|f16|bf16|i8|u8|i32", "type of the output (default f32)"},
    {"experts", 0, "N", "grouped: experts (default 8)"},
    {"top-k", 0, "N", "grouped: experts of each token (default 2)"},
    {"ci", 0, "N", "conv2d: input channels"},
    {"size", 0, "HxW", "conv2d: height and width of the image"},
    {"kernel-size", 0, "HxW", "conv2d: height and width of the kernel (default 1x1)"},
    {"stride", 0, "HxW", "conv2d: (default 1x1)"},
    {"pad", 0, "T,L,B,R", "conv2d: padding, one number or four (default 0)"},
    {"dilation", 0, "HxW", "conv2d: (default 1x1)"},
    {"out-pad", 0, "HxW", "conv_transpose2d: rows and columns added at the end (default 0)"},
    {"groups", 0, "N", "conv2d: convolution groups (default 1)"},
    {"image", 0, "nchw|nhwc", "conv2d: order of x and y (default nchw)"},
    {"kernel", 0, "NAME", "use this row of the kernel table, or fail"},
    {"strict", 0, NULL, "fail rather than fall back to a slower class of kernel"},
    {NULL, 0, NULL, NULL},
};

enum { MAX_M = 64, MAX_WORDS = 16, MAX_SIZE = 1 << 30 };

struct words {
    char *at[MAX_WORDS];
    int n;
};

/* Text that lives as long as the list. */
static char *keep(struct problem_list *list, char *text)
{
    list->texts = must_grow(list->texts, sizeof *list->texts * (size_t)(list->n_texts + 1));
    list->texts[list->n_texts++] = text;
    return text;
}

static int split(struct problem_list *list, const char *what, const char *text, struct words *words)
{
    char *rest = NULL, *copy = keep(list, must_copy(text));
    words->n = 0;
    for (char *word = strtok_r(copy, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (words->n == MAX_WORDS)
            return complain(EXIT_USAGE, "run the command several times",
                            "%s '%s': more than %d words", what, text, MAX_WORDS);
        words->at[words->n++] = word;
    }
    if (words->n == 0)
        return complain(EXIT_USAGE, "give at least one", "%s: empty", what);
    return 0;
}

int parse_pair(const char *what, const char *text, int64_t lo, int64_t out[2])
{
    const char *cross = strchr(text, 'x');
    char *first = cross == NULL ? must_copy(text) : must_print("%.*s", (int)(cross - text), text);
    int status = parse_int(what, first, lo, 1 << 20, &out[0]);
    out[1] = out[0];
    if (status == 0 && cross != NULL)
        status = parse_int(what, cross + 1, lo, 1 << 20, &out[1]);
    free(first);
    return status;
}

int parse_pads(const char *what, const char *text, int32_t pad[4])
{
    int64_t values[4];
    int n;
    const int status = parse_list(what, text, 0, 1 << 20, values, 4, &n);
    if (status != 0)
        return status;
    if (n != 1 && n != 4)
        return complain(EXIT_USAGE, "give one number, or top,left,bottom,right",
                        "%s '%s': %d numbers", what, text, n);
    for (int i = 0; i < 4; i++)
        pad[i] = (int32_t)values[n == 1 ? 0 : i];
    return 0;
}

char *kernel_name(const char *text)
{
    return must_print("%s%s", strncmp(text, "qni_", 4) == 0 ? "" : "qni_", text);
}

static int read_pair(const struct args *args, const char *name, int64_t lo, int32_t out[2])
{
    const char *text = args_text(args, name, NULL);
    int64_t pair[2];
    char label[32];
    if (text == NULL)
        return 0;
    snprintf(label, sizeof label, "--%s", name);
    const int status = parse_pair(label, text, lo, pair);
    if (status == 0) {
        out[0] = (int32_t)pair[0];
        out[1] = (int32_t)pair[1];
    }
    return status;
}

static int need_options(const struct args *args, const char *op, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (!args_has(args, names[i]))
            return complain(EXIT_USAGE, "give it, or --layers with the name of a model",
                            "--%s: missing, %s needs it", names[i], op);
    }
    return 0;
}

/* The shape that --op and its numbers describe. */
static int read_shape(const struct args *args, struct problem *p)
{
    const char *op = args_text(args, "op", "matmul");
    static const char *const plain[] = {"n", "k", NULL}, *const conv[] = {"n", "ci", "size", NULL};
    p->op = strncmp(op, "conv", 4) == 0  ? OP_CONV2D
            : strcmp(op, "grouped") == 0 ? OP_GROUPED
                                         : OP_MATMUL;
    p->conv.is_transposed = strcmp(op, "conv_transpose2d") == 0;
    if (!p->conv.is_transposed && args_has(args, "out-pad"))
        return complain(EXIT_USAGE, "add --op conv_transpose2d",
                        "--out-pad: of no other operation");
    int status = need_options(args, op, p->op == OP_CONV2D ? conv : plain);
    status = status != 0 ? status : args_int(args, "n", 0, MAX_SIZE, &p->n);
    status = status != 0 ? status : args_int(args, "k", 0, MAX_SIZE, &p->k);
    int64_t experts = 8, top_k = 2, ci = 1, groups = 1;
    status = status != 0 ? status : args_int(args, "experts", 1, 4096, &experts);
    top_k = experts < top_k ? experts : top_k;
    status = status != 0 ? status : args_int(args, "top-k", 1, experts, &top_k);
    status = status != 0 ? status : args_int(args, "ci", 1, MAX_SIZE, &ci);
    status = status != 0 ? status : args_int(args, "groups", 1, MAX_SIZE, &groups);
    if (p->op == OP_GROUPED) {
        p->experts = (int32_t)experts;
        p->top_k = (int32_t)top_k;
    }
    struct conv_shape *c = &p->conv;
    int32_t size[2] = {1, 1}, kernel[2] = {1, 1};
    c->stride[0] = c->stride[1] = c->dilation[0] = c->dilation[1] = 1;
    status = status != 0 ? status : read_pair(args, "size", 1, size);
    status = status != 0 ? status : read_pair(args, "kernel-size", 1, kernel);
    status = status != 0 ? status : read_pair(args, "stride", 1, c->stride);
    status = status != 0 ? status : read_pair(args, "dilation", 1, c->dilation);
    status = status != 0 ? status : read_pair(args, "out-pad", 0, c->out_pad);
    const char *pad = args_text(args, "pad", NULL);
    if (status == 0 && pad != NULL)
        status = parse_pads("--pad", pad, c->pad);
    c->ci = ci;
    c->groups = (int32_t)groups;
    c->h = size[0];
    c->w = size[1];
    c->kh = kernel[0];
    c->kw = kernel[1];
    return status;
}

qn_dtype dtype_parse(const char *text)
{
    for (qn_dtype d = QN_F32; d <= QN_E5M2; d++) {
        if (strcmp(text, qn_dtype_name(d)) == 0)
            return d;
    }
    return QN_DTYPE_NONE;
}

static int add_one(struct problem_list *list, struct problem p, int64_t m)
{
    if (p.op == OP_CONV2D)
        p.conv.batch = m;
    else
        p.m = m;
    if (p.x == QN_DTYPE_NONE)
        p.x = p.strategy == QN_STRATEGY_INT8_STATIC ? QN_I8 : QN_F32;
    const int status = problem_complete(&p);
    if (status != 0)
        return status;
    list->items = must_grow(list->items, sizeof *list->items * (size_t)(list->n + 1));
    list->items[list->n++] = p;
    return 0;
}

/* Every m x weights x strategy of one shape. */
static int add_shape(const struct args *args, struct problem_list *list, struct problem p)
{
    struct words weights, strategies;
    int64_t m[MAX_M];
    int n_m;
    qn_error err = {0};
    int status = parse_list("--m", args_text(args, "m", "1"), 0, MAX_SIZE, m, MAX_M, &n_m);
    status = status != 0
                 ? status
                 : split(list, "--weights", args_text(args, "weights", "int4:g128"), &weights);
    status = status != 0
                 ? status
                 : split(list, "--strategy", args_text(args, "strategy", "float"), &strategies);
    for (int w = 0; status == 0 && w < weights.n; w++) {
        if (qn_format_parse(weights.at[w], &p.format, &err) != QN_OK)
            return complain_status("--weights", QN_E_FORMAT, &err);
        qn_format_print(&p.format, p.weights, sizeof p.weights);
        for (int s = 0; status == 0 && s < strategies.n; s++) {
            if (qn_strategy_parse(strategies.at[s], &p.strategy, &err) != QN_OK)
                return complain(EXIT_USAGE,
                                "float, int8-row, int8-block, int8-static and dense are possible",
                                "--strategy '%s': no such strategy", strategies.at[s]);
            for (int i = 0; status == 0 && i < n_m; i++)
                status = add_one(list, p, m[i]);
        }
    }
    return status;
}

static int add_layers(const struct args *args, struct problem_list *list, struct problem p,
                      const char *text)
{
    const char *slash = strchr(text, '/');
    const int length = slash != NULL ? (int)(slash - text) : (int)strlen(text);
    int found = 0, status = 0;
    for (int i = 0; layer_at(i) != NULL && status == 0; i++) {
        const struct layer *layer = layer_at(i);
        if ((int)strlen(layer->model) != length || strncmp(layer->model, text, (size_t)length) != 0)
            continue;
        if (slash != NULL && fnmatch(slash + 1, layer->name, 0) != 0)
            continue;
        struct problem one = p;
        problem_of_layer(&one, layer, 1);
        one.layer = keep(list, must_print("%s %s", layer->model, layer->name));
        status = add_shape(args, list, one);
        found = 1;
    }
    if (!found)
        return complain(EXIT_USAGE, "'quern bench --layers list' shows all",
                        "--layers '%s': no such model or layer", text);
    return status;
}

int problems_from_args(const struct args *args, struct problem_list *list)
{
    *list = (struct problem_list){0};
    struct problem p = {.layer = ""};
    const char *layers = args_text(args, "layers", NULL);
    const char *x = args_text(args, "x", NULL);
    p.x = x != NULL ? dtype_parse(x) : QN_DTYPE_NONE;
    p.y = dtype_parse(args_text(args, "y", "f32"));
    const char *kernel = args_text(args, "kernel", NULL);
    if (kernel != NULL)
        p.kernel = keep(list, kernel_name(kernel));
    p.strict = args_has(args, "strict");
    p.conv.image = strcmp(args_text(args, "image", "nchw"), "nhwc") == 0 ? QN_NHWC : QN_NCHW;
    static const char *const of_shape[] = {"n",        "k",           "experts", "top-k",
                                           "ci",       "kernel-size", "stride",  "pad",
                                           "dilation", "groups",      "size",    "out-pad"};
    for (size_t i = 0; layers != NULL && i < sizeof of_shape / sizeof *of_shape; i++) {
        if (args_has(args, of_shape[i]))
            return complain(EXIT_USAGE, "give one or the other",
                            "--%s: contradicts --layers, which has shapes of its own", of_shape[i]);
    }
    if (layers != NULL)
        return add_layers(args, list, p, layers);
    const int status = read_shape(args, &p);
    return status != 0 ? status : add_shape(args, list, p);
}

void problems_free(struct problem_list *list)
{
    for (int i = 0; i < list->n_texts; i++)
        free(list->texts[i]);
    free(list->texts);
    free(list->items);
    *list = (struct problem_list){0};
}
