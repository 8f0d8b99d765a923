/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights from a damaged file. The input is a list of edits of a good file made here (a blob
 * of random bytes would never get past its head): first byte the format, then (u16 place, u8 value)
 * triples; an odd first byte counts places from the beginning of the blob's head. What loads must
 * survive a product; what unpacks must be a weight by the rules of qn_weight_create(), and no value
 * of it is NaN. */
#include "fuzz.h"

#include "checkpoint/packed.h"

static const char *const specs[] = {"int4:g32",         "int4:g24:zp", "int8:pc", "nf4:g16",
                                    "int3:g32:off:f16", "fp8:pc",      "int5:c4", "int8:pt"};
enum { N_SPECS = 8, N = 18, K = 72, HEADER = 640 };

struct good {
    uint8_t *bytes;
    size_t size;
};

/* A file with the packed weights "w", as qn_packed_save() would write it. */
static struct good make_file(const char *spec)
{
    const qn_ctx *ctx = fuzz_context();
    qn_quantize_options options;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    struct good file;
    float dense[N * K];
    qn_quantize_options_init(&options);
    for (int i = 0; i < N * K; i++)
        dense[i] = (float)(i * 37 % 101 - 50) * 0.01f;
    const qn_tensor t = qn_tensor_2d(dense, QN_F32, N, K);
    FUZZ_EXPECT(qn_format_parse(spec, &options.format, NULL) == QN_OK);
    options.kh = options.format.blocks == QN_BLOCKS_CHANNELS ? 3 : 1;
    FUZZ_EXPECT(qn_quantize(ctx, &t, &options, &weight, NULL) == QN_OK);
    FUZZ_EXPECT(qn_pack(ctx, weight, NULL, &packed, NULL) == QN_OK);
    const size_t bytes = (size_t)(packed->head->bytes + 63) / 64 * 64;
    const uint64_t length = HEADER - 8;
    file.size = HEADER + bytes;
    file.bytes = calloc(file.size, 1);
    FUZZ_EXPECT(file.bytes != NULL);
    memcpy(file.bytes, &length, 8);
    memset(file.bytes + 8, ' ', length);
    char words[QNI_PACKED_WORDS], text[HEADER];
    qni_packed_words(packed->head, words);
    int used = snprintf(text, sizeof text, "{\"__metadata__\":{\"" QNI_PACKED_KEY "w\":\"");
    for (const char *c = words; *c != 0; c++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "%s%c", *c == '"' ? "\\" : "", *c);
    used +=
        snprintf(text + used, sizeof text - (size_t)used,
                 "\"},\"w.packed\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}",
                 bytes, bytes);
    FUZZ_EXPECT((size_t)used <= length);
    memcpy(file.bytes + 8, text, (size_t)used);
    memcpy(file.bytes + HEADER, packed->blob, (size_t)packed->head->bytes);
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    return file;
}

static void multiply(const qn_packed *packed)
{
    const qn_ctx *ctx = fuzz_context();
    qn_packed_info info;
    qn_matmul_args args;
    qn_packed_info_init(&info);
    FUZZ_EXPECT(qn_packed_query(packed, &info) == QN_OK);
    if (info.kh * info.kw * info.conv_groups != 1 || info.n > 4096 || info.k > 4096)
        return;
    float *x = calloc((size_t)info.k * 2 + 1, sizeof *x),
          *y = calloc((size_t)info.n * 2 + 1, sizeof *y);
    FUZZ_EXPECT(x != NULL && y != NULL);
    qn_matmul_args_init(&args);
    args.x = qn_tensor_2d(x, QN_F32, 2, info.k);
    args.y = qn_tensor_2d(y, QN_F32, 2, info.n);
    args.w = packed;
    for (qn_strategy s = QN_STRATEGY_FLOAT; s <= QN_STRATEGY_INT8_BLOCK; s++) {
        size_t bytes = 0;
        args.strategy = s;
        if (qn_matmul_scratch(ctx, &args, &bytes) != QN_OK || bytes > 1 << 24)
            continue;
        void *scratch = NULL;
        FUZZ_EXPECT(posix_memalign(&scratch, 64, bytes > 0 ? bytes : 64) == 0);
        qn_matmul(ctx, &args, scratch, bytes);
        free(scratch);
    }
    free(x);
    free(y);
}

/* Created again from its own parts, and every value computed. */
static void use(const qn_weight *weight)
{
    const qn_ctx *ctx = fuzz_context();
    qn_weight_parts parts;
    qn_weight *again = NULL;
    qn_weight_parts_init(&parts);
    FUZZ_EXPECT(qn_weight_view(weight, &parts) == QN_OK);
    FUZZ_EXPECT(qn_weight_create(ctx, &parts, &again, NULL) == QN_OK);
    qn_weight_destroy(again);
    if (parts.n > 4096 || parts.k > 4096)
        return;
    const size_t elements = (size_t)(parts.n * parts.k);
    float *out = calloc(elements + 1, sizeof *out);
    FUZZ_EXPECT(out != NULL);
    const qn_tensor t = qn_tensor_2d(out, QN_F32, parts.n, parts.k);
    FUZZ_EXPECT(qn_weight_dequantize(ctx, weight, false, &t) == QN_OK);
    for (size_t i = 0; i < elements; i++)
        FUZZ_EXPECT(out[i] == out[i]);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct good files[N_SPECS];
    if (size == 0)
        return 0;
    const int which = data[0] / 2 % N_SPECS;
    if (files[which].bytes == NULL)
        files[which] = make_file(specs[which]);
    uint8_t *copy = fuzz_copy(files[which].bytes, files[which].size);
    const size_t start = data[0] % 2 == 1 ? HEADER : 0;
    for (size_t at = 1; at + 3 <= size; at += 3) {
        const size_t place = start + (size_t)data[at] + 256 * (size_t)data[at + 1];
        if (place < files[which].size)
            copy[place] = data[at + 2];
    }
    qn_file *file = fuzz_open(copy, files[which].size);
    qn_packed *packed = NULL;
    qn_weight *weight = NULL;
    if (file != NULL)
        qn_packed_load(fuzz_context(), file, "w", &packed, NULL);
    qn_file_close(file);
    if (packed != NULL) {
        if (qn_unpack(fuzz_context(), packed, &weight, NULL) == QN_OK)
            use(weight);
        multiply(packed);
    }
    FUZZ_EXPECT(size >= 4 || weight != NULL); /* without an edit all is well */
    qn_weight_destroy(weight);
    qn_packed_destroy(packed);
    free(copy);
    return 0;
}
