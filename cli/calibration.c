/* SPDX-License-Identifier: Apache-2.0 */
/* Activations by tensor name, and what GPTQ, the scale search, AWQ and SmoothQuant take from them.
 *
 * The activations of weight "layer.weight" are the tensor of that name in the calibration file, or
 * "layer", or "layer.input": any leading dimensions, the last one k long. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

static const struct source_tensor *find(const struct source *activations, const char *weight)
{
    const struct source_tensor *found = source_find(activations, weight);
    const size_t length = strlen(weight);
    if (found != NULL || length <= 7 || strcmp(weight + length - 7, ".weight") != 0)
        return found;
    char *stem = must_print("%.*s", (int)(length - 7), weight);
    char *input = must_print("%s.input", stem);
    found = source_find(activations, stem);
    if (found == NULL)
        found = source_find(activations, input);
    free(stem);
    free(input);
    return found;
}

/* Finds the activations of an item: of its own expert, or of all experts in the same tensor. */
static const struct source_tensor *find_for(const struct source *activations,
                                            const struct item *item)
{
    const struct source_tensor *found = find(activations, item->name);
    return found != NULL ? found : find(activations, item->tensor->name);
}

int calibration_check(const struct source *activations, const struct items *items)
{
    for (int64_t i = 0; i < items->n; i++) {
        const struct item *item = &items->at[i];
        if (!item->is_quantized)
            continue;
        const struct source_tensor *x = find_for(activations, item);
        if (x == NULL)
            return complain(EXIT_INPUT, "add them, or leave the tensor out with --exclude",
                            "tensor '%s': the calibration file has no activations for it",
                            item->tensor->name);
        const qn_tensor *t = &x->entry.tensor;
        if (t->rank < 2 || t->shape[t->rank - 1] != item->k)
            return complain(EXIT_INPUT, "each row must hold the inputs of the weight",
                            "activations '%s': the last dimension of at least two should be %lld",
                            x->name, (long long)item->k);
    }
    return 0;
}

static void statistics(const qn_tensor *x, float *mean, float *most, float *square)
{
    const int64_t rows = x->shape[0], k = x->shape[1];
    const float *at = x->data;
    double *sums = must_alloc(sizeof *sums * 2 * (size_t)k);
    for (int64_t j = 0; j < k; j++)
        most[j] = 0;
    for (int64_t i = 0; i < rows * k; i++) {
        const double value = fabs((double)at[i]);
        sums[i % k] += value;
        sums[k + i % k] += value * value;
        most[i % k] = (float)value > most[i % k] ? (float)value : most[i % k];
    }
    for (int64_t j = 0; j < k; j++) {
        mean[j] = (float)(sums[j] / (double)(rows > 0 ? rows : 1));
        square[j] = (float)(sums[k + j] / (double)(rows > 0 ? rows : 1));
    }
    free(sums);
}

static qn_status find_prescale(struct calibration *c, qn_ctx *ctx, const struct recipe *r,
                               const qn_tensor *dense, const float *mean, const float *most,
                               qn_error *err)
{
    const int64_t k = dense->shape[1];
    c->prescale = must_alloc(sizeof *c->prescale * (size_t)k);
    const qn_status status =
        r->prescale == PRESCALE_AWQ
            ? qn_awq_scales(ctx, dense, mean, &c->samples, &r->format, c->prescale, err)
            : qn_smooth_scales(ctx, dense, most, r->alpha, c->prescale, err);
    if (status != QN_OK)
        return status;
    /* The weights are multiplied by these scales, the inputs divided: what is stored is for x. */
    for (int64_t j = 0; j < k; j++)
        c->prescale[j] = 1.0f / c->prescale[j];
    float *x = c->samples.data;
    for (int64_t i = 0; i < c->samples.shape[0] * k; i++)
        x[i] *= c->prescale[i % k];
    return QN_OK;
}

int calibration_make(struct calibration *c, qn_ctx *ctx, const struct source *activations,
                     const struct item *item, const struct recipe *r, const qn_tensor *dense)
{
    *c = (struct calibration){0};
    if (activations->n_tensors == 0)
        return 0;
    const struct source_tensor *x = find_for(activations, item);
    qn_tensor loaded;
    const int failed = entry_load(x->name, &x->entry, QN_F32, &loaded);
    if (failed != 0)
        return failed;
    int64_t elements;
    size_t bytes;
    qn_tensor_extent(&loaded, &elements, &bytes);
    c->samples = qn_tensor_2d(loaded.data, QN_F32, elements / item->k, item->k);
    qn_file_forget(x->file, &x->entry);

    float *facts = must_alloc(sizeof *facts * 3 * (size_t)item->k);
    float *mean = facts, *most = facts + item->k;
    c->importance = must_alloc(sizeof *c->importance * (size_t)item->k);
    statistics(&c->samples, mean, most, c->importance);
    qn_error err;
    qn_status status = QN_OK;
    if (r->prescale != PRESCALE_NONE) {
        status = find_prescale(c, ctx, r, dense, mean, most, &err);
        statistics(&c->samples, mean, most, c->importance);
    }
    free(facts);
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

void calibration_free(struct calibration *c)
{
    free(c->samples.data);
    free(c->importance);
    free(c->prescale);
    *c = (struct calibration){0};
}
