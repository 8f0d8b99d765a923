/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that another program has quantized, recognised by the names and types of the tensors that
 * belong together. They are no weights to quantize, and to copy half of them is no good either. */
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

enum { MAX_PARTS = 10 };
struct scheme {
    const char *words;
    const char *evidence;         /* a tensor that only this scheme has */
    const char *codes;            /* beside it, of no float type; NULL: of any */
    const char *parts[MAX_PARTS]; /* endings; "" ends */
};

static const struct scheme schemes[] = {
    {"GPTQ", ".qweight", NULL, {".qweight", ".qzeros", ".scales", ".g_idx"}},
    {"bitsandbytes, 4 bits",
     ".weight.absmax",
     ".weight",
     {".weight", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax",
      ".weight.nested_quant_map", ".weight.quant_state.bitsandbytes__nf4",
      ".weight.quant_state.bitsandbytes__fp4"}},
    {"bitsandbytes, 8 bits", ".SCB", ".weight", {".weight", ".SCB", ".weight_format"}},
    {"compressed-tensors",
     ".weight_packed",
     NULL,
     {".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx",
      ".weight_global_scale", ".input_global_scale"}},
    {"fp8 with a scale a block", ".weight_scale_inv", ".weight", {".weight", ".weight_scale_inv"}},
    {"compressed-tensors or fp8",
     ".weight_scale",
     ".weight",
     {".weight", ".weight_scale", ".weight_scale_2", ".weight_zero_point", ".input_scale"}},
    {"MLX", ".scales", ".weight", {".weight", ".scales", ".biases"}},
    {"MXFP4", "_blocks", "_scales", {"_blocks", "_scales"}},
};

static const struct source_tensor *sibling(const struct source *s, const char *name, size_t stem,
                                           const char *ending)
{
    char *full = must_print("%.*s%s", (int)stem, name, ending);
    const struct source_tensor *found = source_find(s, full);
    free(full);
    return found;
}

static int is_real(const struct source_tensor *t)
{
    const qn_dtype d = t->entry.tensor.dtype;
    return d == QN_F64 || d == QN_F32 || d == QN_F16 || d == QN_BF16;
}

/* GPTQ keeps a row of qweight for some inputs and a column an output, AWQ the other way round. */
static int is_awq(const struct source *s, const char *name, size_t stem)
{
    const struct source_tensor *codes = sibling(s, name, stem, ".qweight");
    const struct source_tensor *scales = sibling(s, name, stem, ".scales");
    return codes != NULL && scales != NULL && codes->entry.tensor.rank == 2 &&
           scales->entry.tensor.rank == 2 && sibling(s, name, stem, ".g_idx") == NULL &&
           codes->entry.tensor.shape[1] < scales->entry.tensor.shape[1];
}

/* Blocks of a GGUF file, whose types the library has not as a tensor's. */
static int is_ggml_block(const struct source *s, const char *name)
{
    const struct source_tensor *t = source_find(s, name);
    return t != NULL && qn_file_get_kind(t->file) == QN_FILE_GGUF &&
           t->entry.tensor.dtype == QN_DTYPE_NONE;
}

const char *foreign_scheme(const struct source *s, const char *name)
{
    const size_t length = strlen(name);
    if (is_ggml_block(s, name))
        return "GGUF";
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        const struct scheme *scheme = &schemes[i];
        for (int p = 0; p < MAX_PARTS && scheme->parts[p] != NULL; p++) {
            const size_t tail = strlen(scheme->parts[p]);
            if (length < tail || strcmp(name + length - tail, scheme->parts[p]) != 0)
                continue;
            const size_t stem = length - tail;
            const struct source_tensor *codes = NULL;
            if (sibling(s, name, stem, scheme->evidence) == NULL)
                continue;
            if (scheme->codes != NULL)
                codes = sibling(s, name, stem, scheme->codes);
            if (scheme->codes != NULL && (codes == NULL || is_real(codes)))
                continue;
            return i == 0 && is_awq(s, name, stem) ? "AWQ" : scheme->words;
        }
    }
    return NULL;
}
