/* SPDX-License-Identifier: Apache-2.0 */
/* quern run: one product or convolution from files to a file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "models.h"
#include "output.h"
#include "problem.h"
#include "run.h"
#include "source.h"
#include "term.h"

static const struct option_row own[] = {
    {"weights", 'w', "FILE[:NAME]",
     "quantized or packed weights; plain ones with --format; FOLDER:NAME of any model"},
    {"x", 'x', "FILE[:NAME]", "activations [..., k], or an image of rank 4 (3 without height)"},
    {"out", 'o', "FILE", "the npy to write"},
    {"format", 'f', "SPEC", "quantize plain weights to this format first"},
    {"axes", 0, "ORDER",
     "what the dimensions of plain weights are: oi (default), io (Conv1D), oihw (default), hwio, "
     "oiw, iohw or iow (transposed convolutions)"},
    {"conv-groups", 0, "N", "groups of plain weights (default: as x needs them; 1 if transposed)"},
    {"op", 0, "matmul|conv2d|conv_transpose2d",
     "the operation (default: what the weights are made for)"},
    {"strategy", 's', "float|int8-row|int8-block|int8-static|dense",
     "what is done about x (default float)"},
    {"y", 'y', "f32|f16|i8|u8|i32", "type of the output (default f32)"},
    {"bias", 0, "FILE[:NAME]", "added to each output"},
    {"residual", 0, "FILE[:NAME]", "added before the activation; of the output's shape"},
    {"act", 0, "none|relu|relu6|gelu|gelu-tanh|silu", "the activation"},
    {"clamp", 0, "LO,HI", "limits of the output"},
    {"x-scale", 0, "X", "int8-static: scale of x (default 1)"},
    {"x-zero", 0, "N", "int8-static: zero point of x (default 0)"},
    {"y-scale", 0, "X", "scale of an i8 or u8 output (default 1)"},
    {"y-zero", 0, "N", "its zero point (default 0)"},
    {"symmetric", 0, NULL, "int8-block without offsets"},
    {"image", 0, "nchw|nhwc", "order of x and y (default nchw)"},
    {"stride", 0, "HxW", "(default 1x1)"},
    {"pad", 0, "T,L,B,R", "one number or four (default 0)"},
    {"dilation", 0, "HxW", "(default 1x1)"},
    {"out-pad", 0, "HxW", "conv_transpose2d: extra rows and columns (default 0x0)"},
    {"parallel", 0, "column|row|block",
     "over the processes of mpirun: how the weights are cut; block: with --down"},
    {"down", 0, "FILE[:NAME]",
     "--parallel block: the weights of the second product, behind the activation"},
    {"kernel", 0, "NAME", "use this row of the kernel table, or fail"},
    {"strict", 0, NULL, "fail rather than fall back to a slower class of kernel"},
    {"force", 0, NULL, "replace the output if it exists"},
    {"json", 0, NULL, "say what was done as one JSON object"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"one layer of a quantized model",
     "quern run -w model-int4.safetensors:layers.0.mlp.up.weight -x x.npy -o y.npy "
     "-s int8-block --act silu"},
    {"a convolution", "quern run -w resnet-int8.safetensors:layer1.0.conv2.weight -x image.npy "
                      "--pad 1 -o y.npy"},
    {"plain weights, quantized on the way",
     "quern run -w w.npy --format int4:g64 -x x.npy -o y.npy"},
    {"a matrix of GPT-2, which is stored the other way round",
     "quern run -w gpt2.safetensors:h.0.mlp.c_fc.weight --axes io --format int8:pc -x x.npy -o "
     "y.npy"},
    {"a feed-forward block over two processes",
     "mpirun -np 2 quern run --parallel block -w m.safetensors:up --down m.safetensors:down -x "
     "x.npy --act silu -o y.npy"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_run = {
    .name = "run",
    .summary = "one matmul or convolution, from files to a file",
    .operands = "",
    .about = "Computes y = act(x . W^T + bias) with quantized weights W, or a convolution with "
             "them, and writes y as npy. FILE:NAME picks a tensor of a safetensors file.",
    .tables = {own, options_imports, options_ranks, options_context, options_tuning,
               options_common},
    .examples = examples,
    .max_operands = 0,
    .run = run,
};

/* -------------------------------------------------------------------------------------- inputs */

static qn_status pack(struct task *t, qn_weight *weight, qn_error *err)
{
    if (t->way != NULL)
        return run_pack_shard(t, weight, err);
    const qn_status status = qn_pack(t->ctx, weight, NULL, &t->w, err);
    qn_weight_destroy(weight);
    return status;
}

/* Before any work: a matmul's x has as many columns as the weights. */
static int check_columns(const struct task *t, const char *path, int64_t k)
{
    /* Else a convolution, or wrong; or the second product of a block, which reads no x. */
    const int64_t columns = t->x.rank == 2 && !t->is_down ? t->x.shape[1] : k;
    if (columns == k)
        return 0;
    return complain(EXIT_INPUT, "'quern inspect FILE' shows the shapes",
                    "%s: the weights take %lld columns of x, which has %lld", path, (long long)k,
                    (long long)columns);
}

/* The number of groups is as many as the channels of x need, unless the option says how many. The
 * groups of a transposed convolution divide its inputs, which are all channels of x in any case. */
static int64_t groups_of(const struct task *t, const qn_tensor *weights)
{
    if (t->conv_groups > 0)
        return t->conv_groups;
    if (t->axes.at[AXIS_W] < 0 || axes_are_transposed(&t->axes) || t->x.rank < 3)
        return 1;
    const int64_t inputs = axes_size(&t->axes, weights, AXIS_I);
    const int64_t channels = t->x.shape[t->conv.image == QN_NHWC ? t->x.rank - 1 : 1];
    return inputs > 0 && channels > 0 && channels % inputs == 0 ? channels / inputs : 1;
}

/* Plain weights in the library's order, f32. */
static int load_ordered(struct task *t, const struct picked *p, const qn_entry *entry,
                        qn_quantize_options *options, qn_tensor *rows)
{
    int64_t n, k;
    qn_tensor all;
    if (t->axes.rank == 0)
        axes_parse(entry->tensor.rank == 2 ? "oi" : "oihw", &t->axes);
    if (t->axes.rank != entry->tensor.rank)
        return complain(EXIT_INPUT, "a letter for each of them",
                        "%s: its weights have %d dimensions, --axes '%s' has %d", p->path,
                        entry->tensor.rank, t->axes.text, t->axes.rank);
    const int64_t groups = groups_of(t, &entry->tensor);
    if (!axes_geometry(&t->axes, &entry->tensor, groups, &n, &k))
        return complain(EXIT_INPUT, "give --conv-groups, or another order of --axes",
                        "%s: %lld groups do not divide the weights' %s", p->path, (long long)groups,
                        axes_are_transposed(&t->axes) ? "inputs" : "outputs");
    int failed = t->axes.at[AXIS_W] < 0 ? check_columns(t, p->path, k) : 0;
    if (failed == 0)
        failed = entry_load(p->path, entry, QN_F32, &all);
    if (failed != 0)
        return failed;
    *rows = qn_tensor_2d(must_alloc((size_t)n * (size_t)k * sizeof(float)), QN_F32, n, k);
    axes_gather(&t->axes, &all, 0, groups, rows);
    free(all.data);
    options->kh = (int32_t)axes_size(&t->axes, &entry->tensor, AXIS_H);
    options->kw = (int32_t)axes_size(&t->axes, &entry->tensor, AXIS_W);
    options->conv_groups = (int32_t)groups;
    return 0;
}

static int quantize_plain(struct task *t, const struct picked *p, const char *format)
{
    qn_entry entry;
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    qn_error err = {0};
    int failed = pick_entry(p, &entry);
    if (failed != 0)
        return failed;
    const qn_dtype type = entry.tensor.dtype;
    if (format == NULL && (type == QN_F32 || type == QN_F16 || type == QN_BF16))
        format = qn_dtype_name(type); /* the same numbers */
    if (format == NULL)
        return complain(EXIT_USAGE, "add --format SPEC, or 'quern quantize' the file",
                        "%s: plain tensors", p->path);
    qn_status status = qn_format_parse(format, &options.format, &err);
    if (status != QN_OK)
        return complain_status("--format", status, &err);
    qn_tensor rows;
    failed = t->axes.rank > 0 || entry.tensor.rank == 2 || entry.tensor.rank == 4
                 ? load_ordered(t, p, &entry, &options, &rows)
                 : entry_load_rows(p->path, &entry, QN_F32, &rows);
    if (failed != 0)
        return failed;
    qn_weight *weight = NULL;
    status = qn_quantize(t->ctx, &rows, &options, &weight, &err);
    free(rows.data);
    if (status == QN_OK)
        status = pack(t, weight, &err);
    return status == QN_OK ? 0 : complain_status(p->path, status, &err);
}

/* The only packed weights of the file, or the name asked for. */
static const char *packed_name(const struct picked *p)
{
    const char *key, *value;
    for (int64_t i = 0; qn_file_metadata(p->file, i, &key, &value) == QN_OK; i++) {
        if (strncmp(key, "quern.packed.", 13) == 0 &&
            (p->name[0] == '\0' || strcmp(p->name, key + 13) == 0))
            return key + 13;
    }
    return NULL;
}

/* Packed without a canonical weight in between, unless a rank keeps a part of it. */
static qn_status pack_module(struct task *t, const qn_checkpoint *c, int64_t at, qn_error *err)
{
    const qn_module_part whole = {at, 0, -1};
    qn_weight *weight = NULL;
    if (t->way == NULL)
        return qn_checkpoint_pack(t->ctx, c, 1, &whole, NULL, &t->w, NULL, err);
    const qn_status status = qn_checkpoint_load(t->ctx, c, at, 0, -1, &weight, NULL, err);
    return status == QN_OK ? run_pack_shard(t, weight, err) : status;
}

/* A module of a model that another program wrote. */
static int load_module(struct task *t, const struct args *args, const char *text)
{
    struct picked_module p;
    qn_error err = {0};
    int failed = model_pick(args, t->ctx, text, &p);
    const qn_module *const m = &p.facts;
    if (failed == 0 && p.c != NULL && m->kh * m->kw * m->conv_groups == 1)
        failed = check_columns(t, text, m->k);
    if (failed == 0 && p.c != NULL) {
        const qn_status status = pack_module(t, p.c, p.at, &err);
        failed = status == QN_OK ? 0 : complain_status(text, status, &err);
    }
    qn_checkpoint_close(p.c);
    return failed;
}

/* A quantized weight of quern's own file, which becomes the checkpoint's. */
static int load_own(struct task *t, struct picked *p, const char *name)
{
    qn_checkpoint *c = NULL;
    qn_weight_parts parts;
    qn_error err = {0};
    qn_weight_parts_init(&parts);
    qn_status status = qn_file_weight_info(p->file, name, &parts, NULL, &err);
    const int failed = status == QN_OK && parts.kh * parts.kw * parts.conv_groups == 1
                           ? check_columns(t, p->path, parts.k)
                           : 0;
    if (status == QN_OK && failed == 0) {
        status = qn_checkpoint_open_files(t->ctx, &p->file, 1, NULL, 0, NULL, &c, &err);
        p->file = NULL;
    }
    if (status == QN_OK && failed == 0)
        status = pack_module(t, c, qn_checkpoint_find(c, name), &err);
    qn_checkpoint_close(c);
    return status == QN_OK ? failed : complain_status(p->path, status, &err);
}

static int load_weights(struct task *t, const struct args *args, const char *text,
                        const char *format)
{
    struct picked p;
    qn_error err = {0};
    int failed = load_module(t, args, text);
    if (failed != 0 || (t->is_down ? t->down : t->w) != NULL)
        return failed;
    failed = pick_open(&p, t->ctx, text);
    if (failed == 0) {
        const char *name = pick_weight(&p), *packed = packed_name(&p);
        qn_status status = QN_OK;
        if ((name != NULL || packed != NULL) && (t->axes.rank > 0 || t->conv_groups > 0)) {
            failed = complain(EXIT_USAGE, "leave it out: quantized weights say what they are",
                              "%s: --axes and --conv-groups are for plain weights", p.path);
        } else if (name != NULL) {
            failed = load_own(t, &p, name);
        } else if (packed != NULL && t->way != NULL) {
            failed = complain(EXIT_INPUT, "give the quantized weights they were made from",
                              "%s: packed weights cannot be cut for --parallel", p.path);
        } else if (packed != NULL) {
            status = qn_packed_load(t->ctx, p.file, packed, &t->w, &err);
        } else if (p.name[0] == '\0' && qn_file_weight_count(p.file) > 1) {
            failed = complain(
                EXIT_INPUT, "choose one as FILE:NAME", "%s: it holds %lld quantized weights, as %s",
                p.path, (long long)qn_file_weight_count(p.file), qn_file_weight_name(p.file, 0));
        } else {
            failed = quantize_plain(t, &p, format);
        }
        if (status != QN_OK)
            failed = complain_status(p.path, status, &err);
    }
    pick_close(&p);
    return failed;
}

/* A tensor in a type that operations take: int8, int32, small floats stay, others become f32. */
static int load_tensor(struct task *t, const char *text, qn_tensor *out)
{
    struct picked p;
    qn_entry entry;
    if (text == NULL)
        return 0;
    int failed = pick_open(&p, t->ctx, text);
    if (failed == 0)
        failed = pick_entry(&p, &entry);
    if (failed == 0) {
        const qn_dtype d = entry.tensor.dtype;
        const int stays = d == QN_F16 || d == QN_BF16 || d == QN_I8 || d == QN_U8 || d == QN_I32;
        failed = entry_load(text, &entry, stays ? d : QN_F32, out);
    }
    pick_close(&p);
    return failed;
}

/* ------------------------------------------------------------------------------------- options */

static qn_act act_of(const char *text)
{
    static const char *const names[] = {"none", "relu", "relu6", "gelu", "gelu-tanh", "silu"};
    qn_act act = QN_ACT_NONE;
    while (strcmp(names[act], text) != 0)
        act++;
    return act;
}

static int read_clamp(const char *text, qn_epilogue *epilogue)
{
    const char *comma = text != NULL ? strchr(text, ',') : NULL;
    double lo, hi;
    if (text == NULL)
        return 0;
    if (comma == NULL)
        return complain(EXIT_USAGE, "write it as LO,HI", "--clamp '%s': one number", text);
    char *first = must_print("%.*s", (int)(comma - text), text);
    int status = parse_real("--clamp", first, -INFINITY, INFINITY, &lo);
    free(first);
    status = status != 0 ? status : parse_real("--clamp", comma + 1, -INFINITY, INFINITY, &hi);
    if (status == 0) {
        epilogue->clamp_lo = (float)lo;
        epilogue->clamp_hi = (float)hi;
    }
    return status;
}

static int read_pair(const struct args *args, const char *name, int64_t lo, int32_t out[2])
{
    const char *text = args_text(args, name, NULL);
    int64_t pair[2];
    if (text == NULL)
        return 0;
    char label[32];
    snprintf(label, sizeof label, "--%s", name);
    const int status = parse_pair(label, text, lo, pair);
    out[0] = status == 0 ? (int32_t)pair[0] : 1;
    out[1] = status == 0 ? (int32_t)pair[1] : 1;
    return status;
}

static int read_axes(const struct args *args, struct task *t)
{
    const char *order = args_text(args, "axes", NULL);
    if (args_has(args, "axes") && !axes_parse(order, &t->axes))
        return complain(EXIT_USAGE, "such as io or iohw", "--axes '%s': no order of o, i, h and w",
                        order);
    if (t->axes.rank > 0 && t->axes.at[AXIS_E] >= 0)
        return complain(EXIT_USAGE, "'quern quantize' makes a weight of each expert",
                        "--axes '%s': one product has no experts", order);
    return args_int(args, "conv-groups", 1, INT32_MAX, &t->conv_groups);
}

static int read_options(const struct args *args, struct task *t)
{
    double x_scale = 1, y_scale = 1;
    int64_t x_zero = 0, y_zero = 0;
    qn_epilogue_init(&t->epilogue);
    qn_conv_args_init(&t->conv);
    t->epilogue.act = act_of(args_text(args, "act", "none"));
    t->conv.image = strcmp(args_text(args, "image", "nchw"), "nhwc") == 0 ? QN_NHWC : QN_NCHW;
    t->y_dtype = dtype_parse(args_text(args, "y", "f32"));
    const char *kernel = args_text(args, "kernel", NULL);
    t->kernel = kernel != NULL ? kernel_name(kernel) : NULL;
    t->strict = args_has(args, "strict");
    qn_strategy_parse(args_text(args, "strategy", "float"), &t->strategy, NULL);
    int status = read_axes(args, t);
    status = status != 0 ? status : read_clamp(args_text(args, "clamp", NULL), &t->epilogue);
    status = status != 0 ? status : args_real(args, "x-scale", 1e-30, 1e30, &x_scale);
    status = status != 0 ? status : args_real(args, "y-scale", 1e-30, 1e30, &y_scale);
    status = status != 0 ? status : args_int(args, "x-zero", -128, 255, &x_zero);
    status = status != 0 ? status : args_int(args, "y-zero", -128, 255, &y_zero);
    status = status != 0 ? status : read_pair(args, "stride", 1, t->conv.stride);
    status = status != 0 ? status : read_pair(args, "dilation", 1, t->conv.dilation);
    status = status != 0 ? status : read_pair(args, "out-pad", 0, t->conv.out_pad);
    const char *pad = args_text(args, "pad", NULL);
    if (status == 0 && pad != NULL)
        status = parse_pads("--pad", pad, t->conv.pad);
    t->quant = (qn_quant_args){.x_scale = (float)x_scale, .x_zero = (int32_t)x_zero};
    t->quant.symmetric = args_has(args, "symmetric");
    t->epilogue.y_scale = (float)y_scale;
    t->epilogue.y_zero = (int32_t)y_zero;
    static const char *const needed[] = {"weights", "x", "out"};
    for (int i = 0; i < 3 && status == 0; i++) {
        if (!args_has(args, needed[i]))
            status = complain(EXIT_USAGE, "'quern help run' has examples", "run: --%s is missing",
                              needed[i]);
    }
    return status;
}

/* ------------------------------------------------------------------------------------- running */

static int choose_op(const struct args *args, struct task *t)
{
    static const char *const of_conv[] = {"stride", "pad", "dilation", "image", "out-pad"};
    const char *op = args_text(args, "op", NULL);
    if (op != NULL)
        t->op = strcmp(op, "matmul") == 0 ? MATMUL : strcmp(op, "conv2d") == 0 ? CONV : TRANSPOSE;
    else if (t->axes.rank > 0 && axes_are_transposed(&t->axes))
        t->op = TRANSPOSE;
    else
        t->op = t->facts.kh * t->facts.kw > 1 || t->facts.conv_groups > 1 ? CONV : MATMUL;
    for (int i = 0; i < 5; i++) {
        const int is_known = t->op == TRANSPOSE || (t->op == CONV && i < 4);
        if (!is_known && args_has(args, of_conv[i]))
            return complain(EXIT_USAGE, "leave it out, or give --op", "--%s: the operation is %s",
                            of_conv[i], t->op == CONV ? "conv2d" : "matmul");
    }
    return 0;
}

qn_tensor run_shaped(const qn_tensor *tensor, const qn_tensor *like)
{
    int64_t a = 0, b = 0;
    size_t bytes;
    if (tensor->rank == 0)
        return qn_tensor_none();
    qn_tensor_extent(tensor, &a, &bytes);
    qn_tensor_extent(like, &b, &bytes);
    return a == b ? qn_tensor_make(tensor->data, tensor->dtype, like->rank, like->shape) : *tensor;
}

/* Replace operands of a run by counterparts on the context's device; y's is not filled. */
static qn_status send_operands(struct task *t, qn_tensor *const operands[], int n, qn_error *err)
{
    qn_status status = QN_OK;
    for (int i = 0; i < n && status == QN_OK && device_of(t->ctx).kind != QN_CPU; i++) {
        int64_t elements = 0;
        size_t bytes = 0;
        if (operands[i]->rank == 0)
            continue;
        status = qn_tensor_extent(operands[i], &elements, &bytes);
        if (status == QN_OK)
            status = qn_cuda_alloc(t->ctx, bytes, &t->sent[t->n_sent], err);
        if (status == QN_OK)
            status = qn_cuda_upload(t->ctx, t->sent[t->n_sent], operands[i]->data, bytes, err);
        operands[i]->data = t->sent[t->n_sent++];
        operands[i]->device = device_of(t->ctx);
    }
    return status;
}

/* What a run has left in `from` to t->y, which is as large. */
static qn_status receive_y(struct task *t, const qn_tensor *from, qn_error *err)
{
    int64_t elements = 0;
    size_t bytes = 0;
    if (from->device.kind == QN_CPU)
        return QN_OK;
    qn_tensor_extent(from, &elements, &bytes);
    return qn_cuda_download(t->ctx, t->y.data, from->data, bytes, err);
}

static void note_plan(struct task *t, const qn_plan *plan)
{
    qn_plan_info info;
    qn_plan_info_init(&info);
    qn_plan_query(plan, &info);
    snprintf(t->kernel_used, sizeof t->kernel_used, "%s", info.kernel);
}

static qn_status run_matmul(struct task *t, qn_error *err)
{
    qn_matmul_args a;
    qn_matmul_args_init(&a);
    const int32_t last = t->x.rank - 1;
    int64_t m = 1;
    for (int32_t i = 0; i < last; i++)
        m *= t->x.shape[i];
    /* y keeps the leading dimensions of x. */
    t->y = t->x;
    t->y.shape[last] = t->facts.n;
    t->y = qn_tensor_make(NULL, t->y_dtype, t->y.rank, t->y.shape);
    t->y.data = must_alloc(qn_dtype_bytes(t->y_dtype) * (size_t)m * (size_t)t->facts.n + 64);
    a.w = t->w;
    a.x = qn_tensor_2d(t->x.data, t->x.dtype, m, t->x.shape[last]);
    a.y = qn_tensor_2d(t->y.data, t->y_dtype, m, t->facts.n);
    a.epilogue = t->epilogue;
    a.epilogue.residual = run_shaped(&t->residual, &a.y);
    a.strategy = t->strategy;
    a.quant = t->quant;
    a.kernel = t->kernel;
    a.strict = t->strict;
    qn_plan *plan = NULL;
    qn_tensor *const operands[] = {&a.x, &a.y, &a.epilogue.bias, &a.epilogue.residual};
    qn_status status = send_operands(t, operands, 4, err);
    if (status == QN_OK)
        status = qn_matmul_plan(t->ctx, &a, &plan, err);
    if (status == QN_OK)
        status = qn_ctx_reserve(t->ctx, qn_plan_scratch_bytes(plan));
    if (status == QN_OK) {
        note_plan(t, plan);
        const double begin = seconds_now();
        status = qn_matmul_run(plan, &a, NULL, 0);
        if (status == QN_OK)
            status = receive_y(t, &a.y, err);
        t->seconds = seconds_now() - begin;
    }
    qn_plan_destroy(plan);
    return status;
}

static qn_status run_conv(struct task *t, qn_error *err)
{
    qn_conv_args *a = &t->conv;
    const int is_transposed = t->op == TRANSPOSE;
    int64_t elements;
    size_t bytes;
    a->w = t->w;
    a->x = t->x;
    a->strategy = t->strategy;
    a->quant = t->quant;
    a->epilogue = t->epilogue;
    a->kernel = t->kernel;
    a->strict = t->strict;
    a->y = qn_tensor_make(NULL, t->y_dtype, t->x.rank, t->x.shape);
    qn_plan *plan = NULL;
    qn_status status = is_transposed ? qn_conv_transpose2d_shape(a) : qn_conv2d_shape(a);
    if (status != QN_OK) { /* a plan says why in a sentence */
        const qn_status why = is_transposed ? qn_conv_transpose2d_plan(t->ctx, a, &plan, err)
                                            : qn_conv2d_plan(t->ctx, a, &plan, err);
        qn_plan_destroy(plan);
        return why != QN_OK ? why : status;
    }
    status = qn_tensor_extent(&a->y, &elements, &bytes);
    if (status != QN_OK)
        return status;
    a->y.data = must_alloc(bytes + 64);
    t->y = a->y;
    a->epilogue.residual = run_shaped(&t->residual, &a->y);
    qn_tensor *const operands[] = {&a->x, &a->y, &a->epilogue.bias, &a->epilogue.residual};
    status = send_operands(t, operands, 4, err);
    if (status == QN_OK)
        status = is_transposed ? qn_conv_transpose2d_plan(t->ctx, a, &plan, err)
                               : qn_conv2d_plan(t->ctx, a, &plan, err);
    if (status == QN_OK)
        status = qn_ctx_reserve(t->ctx, qn_plan_scratch_bytes(plan));
    if (status == QN_OK) {
        note_plan(t, plan);
        const double begin = seconds_now();
        status = is_transposed ? qn_conv_transpose2d_run(plan, a, NULL, 0)
                               : qn_conv2d_run(plan, a, NULL, 0);
        if (status == QN_OK)
            status = receive_y(t, &a->y, err);
        t->seconds = seconds_now() - begin;
    }
    qn_plan_destroy(plan);
    return status;
}

static void report(const struct task *t, const char *out, int is_json)
{
    char text[SHAPE_TEXT], a[HUMAN], format[64];
    qn_format_print(&t->facts.format, format, sizeof format);
    if (!is_json) {
        printf("%s: %s %s, %s weights, %s, %s\n", out, shape_text(&t->y, text),
               qn_dtype_name(t->y.dtype), format, t->kernel_used, human_time(t->seconds, a));
        return;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "out", out);
    cJSON *shape = cJSON_AddArrayToObject(o, "shape");
    for (int32_t i = 0; i < t->y.rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->y.shape[i]));
    cJSON_AddStringToObject(o, "dtype", qn_dtype_name(t->y.dtype));
    cJSON_AddStringToObject(o, "weights", format);
    cJSON_AddStringToObject(o, "strategy", qn_strategy_name(t->strategy));
    cJSON_AddStringToObject(o, "kernel", t->kernel_used);
    if (t->way != NULL) {
        cJSON_AddStringToObject(o, "parallel", t->way);
        cJSON_AddNumberToObject(o, "ranks", t->ranks.comm.n_ranks);
    }
    cJSON_AddNumberToObject(o, "us", t->seconds * 1e6);
    json_print(o, 0);
}

static int compute(struct task *t, const struct args *args)
{
    const char *out = args_text(args, "out", NULL);
    qn_error err = {0};
    qn_packed_info_init(&t->facts);
    qn_packed_query(t->w, &t->facts);
    const int contradicts = choose_op(args, t);
    if (contradicts != 0)
        return contradicts;
    t->epilogue.bias = t->bias;
    const int64_t k = t->way != NULL ? t->k : t->facts.k;
    if (t->x.rank < 1 || (t->op == MATMUL && t->x.shape[t->x.rank - 1] != k))
        return complain(EXIT_INPUT, "the last dimension of x must be k",
                        "x: its rows have %lld elements, the weights take %lld",
                        t->x.rank > 0 ? (long long)t->x.shape[t->x.rank - 1] : 0, (long long)k);
    const qn_status status = t->way != NULL      ? run_over_ranks(t, &err)
                             : t->op == MATMUL ? run_matmul(t, &err)
                                                 : run_conv(t, &err);
    if (status != QN_OK)
        return complain_status("run", status, &err);
    const int changed = inputs_check();
    if (changed != 0 || t->ranks.comm.rank != 0) /* every rank has y; one writes it */
        return changed;
    const qn_status written = qn_npy_write(out, &t->y, args_has(args, "force"), &err);
    if (written != QN_OK)
        return complain_output(out, written, &err);
    report(t, out, args_has(args, "json"));
    return EXIT_GOOD;
}

/* The processes of mpirun, and what they can do together. */
static int open_ranks(const struct args *args, struct task *t)
{
    const int is_block = args_has(args, "parallel") &&
                         strcmp(args_text(args, "parallel", "?"), "block") == 0;
    t->way = args_text(args, "parallel", NULL);
    qn_comm_init(&t->ranks.comm);
    if (is_block != args_has(args, "down"))
        return complain(EXIT_USAGE, "give both, or none of them",
                        "--parallel block and --down go together");
    if (t->way != NULL && t->kernel != NULL)
        return complain(EXIT_USAGE, "leave it out", "--kernel: each rank of --parallel chooses");
    return t->way != NULL ? ranks_open(args, &t->ranks) : 0;
}

static int load_all(struct task *t, const struct args *args)
{
    const char *const format = args_text(args, "format", NULL);
    int status = load_tensor(t, args_text(args, "x", NULL), &t->x);
    status = status != 0 ? status : load_tensor(t, args_text(args, "bias", NULL), &t->bias);
    status = status != 0 ? status : load_tensor(t, args_text(args, "residual", NULL), &t->residual);
    t->is_down = args_has(args, "down"); /* first: it says which outputs of the other are wanted */
    if (status == 0 && t->is_down)
        status = load_weights(t, args, args_text(args, "down", NULL), format);
    t->is_down = 0;
    return status != 0 ? status
                       : load_weights(t, args, args_text(args, "weights", NULL), format);
}

static int run(const struct args *args)
{
    struct task t = {.bias = qn_tensor_none(), .residual = qn_tensor_none()};
    int status = read_options(args, &t);
    status = status != 0 ? status : open_ranks(args, &t);
    status = status != 0 ? status : context_make(args, &t.ctx);
    status = status != 0 ? status : load_all(&t, args);
    status = status != 0 || t.ranks.comm.rank != 0 ? status : output_place(args);
    if (status == 0)
        status = compute(&t, args);
    for (int i = 0; i < t.n_sent; i++)
        qn_cuda_free(t.ctx, t.sent[i]);
    free(t.kernel);
    free(t.x.data);
    free(t.y.data);
    free(t.bias.data);
    free(t.residual.data);
    free(t.columns);
    qn_packed_destroy(t.w);
    qn_packed_destroy(t.down);
    qn_ctx_destroy(t.ctx);
    return ranks_close(&t.ranks, status);
}
