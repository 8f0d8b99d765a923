/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of an engine: weights are packed once into a file, mapped at the next start, planned
 * once, and then multiplied token after token. The loop allocates nothing and asks for nothing:
 * plan, scratch and threads are there before it begins.
 *
 *     decode [FILE]     default: quern-decode.safetensors in the current folder, removed at the end
 */
#include <stdio.h>
#include <stdlib.h>

#include <quern/quern.h>

enum { LAYERS = 4, WIDTH = 256, TOKENS = 16, PROMPT = 8 };

static int fail(const qn_error *err)
{
    fprintf(stderr, "decode: %s\n", err->text);
    return 1;
}

/* Once, at conversion time: quantize, pack and keep. */
static qn_status make_file(const qn_ctx *ctx, const char *path, qn_error *err)
{
    static float dense[WIDTH * WIDTH];
    static char name[LAYERS][16];
    const char *names[LAYERS];
    qn_packed *packed[LAYERS] = {NULL};
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    qn_status status = qn_format_parse("int4:g64", &how.format, err);
    for (int l = 0; status == QN_OK && l < LAYERS; l++) {
        for (int i = 0; i < WIDTH * WIDTH; i++)
            dense[i] = (float)((i * 37 + l * 11) % 31 - 15) / 1024.0f; /* your weights, [n, k] */
        const qn_tensor w = qn_tensor_2d(dense, QN_F32, WIDTH, WIDTH);
        qn_weight *weight = NULL;
        snprintf(name[l], sizeof name[l], "layer.%d", l);
        names[l] = name[l];
        status = qn_quantize(ctx, &w, &how, &weight, err);
        if (status == QN_OK)
            status = qn_pack(ctx, weight, NULL, &packed[l], err);
        qn_weight_destroy(weight);
    }
    if (status == QN_OK)
        status = qn_packed_save(ctx, path, LAYERS, names, (const qn_packed *const *)packed, 1, err);
    for (int l = 0; l < LAYERS; l++)
        qn_packed_destroy(packed[l]);
    return status;
}

/* y = x + relu(x . W^T): the residual is added after the activation. */
static void fill_args(qn_matmul_args *args, const qn_packed *w, float *x, float *y, int64_t m)
{
    qn_matmul_args_init(args);
    args->w = w;
    args->x = qn_tensor_2d(x, QN_F32, m, WIDTH);
    args->y = qn_tensor_2d(y, QN_F32, m, WIDTH);
    args->strategy = QN_STRATEGY_INT8_BLOCK;
    args->epilogue.act = QN_ACT_RELU;
    args->epilogue.residual = args->x;
    args->epilogue.residual_after = 1;
}

struct model {
    qn_packed *w[LAYERS];
    qn_plan *plan; /* all layers have one shape, format and strategy: one plan serves them */
    void *scratch;
    size_t scratch_bytes;
};

static qn_status load_model(const qn_ctx *ctx, const char *path, struct model *model, qn_error *err)
{
    qn_file *file = NULL;
    qn_matmul_args args;
    char name[16];
    qn_status status = qn_file_open(ctx, path, &file, err);
    for (int l = 0; status == QN_OK && l < LAYERS; l++) {
        snprintf(name, sizeof name, "layer.%d", l);
        status = qn_packed_load(ctx, file, name, &model->w[l], err); /* no copy: mapped */
    }
    qn_file_close(file); /* the weights keep the mapping */
    if (status != QN_OK)
        return status;
    /* A plan for the largest number of rows serves every smaller one, too. */
    fill_args(&args, model->w[0], NULL, NULL, PROMPT);
    status = qn_matmul_plan(ctx, &args, &model->plan, err);
    if (status == QN_OK) {
        model->scratch_bytes = qn_plan_scratch_bytes(model->plan);
        model->scratch = aligned_alloc(64, (model->scratch_bytes + 64) / 64 * 64);
    }
    return status;
}

static qn_status run_layers(const struct model *model, float *a, float *b, int64_t m)
{
    for (int l = 0; l < LAYERS; l++) {
        qn_matmul_args args;
        fill_args(&args, model->w[l], l % 2 == 0 ? a : b, l % 2 == 0 ? b : a, m);
        const qn_status status =
            qn_matmul_run(model->plan, &args, model->scratch, model->scratch_bytes);
        if (status != QN_OK)
            return status;
    }
    return QN_OK;
}

int main(int argc, char **argv)
{
    static float a[PROMPT * WIDTH], b[PROMPT * WIDTH];
    const char *path = argc > 1 ? argv[1] : "quern-decode.safetensors";
    struct model model = {{NULL}, NULL, NULL, 0};
    qn_error err = {QN_OK, -1, ""};
    qn_ctx *ctx = NULL;
    if (qn_ctx_create(NULL, &ctx, &err) != QN_OK || make_file(ctx, path, &err) != QN_OK ||
        load_model(ctx, path, &model, &err) != QN_OK)
        return fail(&err);

    for (int i = 0; i < PROMPT * WIDTH; i++)
        a[i] = (float)(i % 13 - 6) / 16.0f;
    qn_status status = run_layers(&model, a, b, PROMPT); /* the prompt, all rows at once */
    for (int t = 0; status == QN_OK && t < TOKENS; t++)
        status = run_layers(&model, a, b, 1); /* then a row at a time */
    printf("%d layers, %d tokens after a prompt of %d: %s, a[0] = %g\n", LAYERS, TOKENS, PROMPT,
           qn_status_name(status), (double)a[0]);

    free(model.scratch);
    qn_plan_destroy(model.plan);
    for (int l = 0; l < LAYERS; l++)
        qn_packed_destroy(model.w[l]);
    qn_ctx_destroy(ctx);
    if (argc < 2)
        remove(path);
    return status != QN_OK;
}
