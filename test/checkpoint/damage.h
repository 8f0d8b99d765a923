/* SPDX-License-Identifier: Apache-2.0 */
/* What every importer must stand: a small file cut at every byte and with every single bit turned
 * over, its configuration too, and each allocation failing once. What still opens answers every
 * question, and loads or is refused in words. */
#ifndef TEST_CHECKPOINT_DAMAGE_H
#define TEST_CHECKPOINT_DAMAGE_H

#include "files.h"

#include "checkpoint/checkpoint.h"

/* The status of the one module's loading, or of opening. */
static inline qn_status use_checkpoint(const qn_ctx *ctx, const uint8_t *bytes, size_t size,
                                       const char *config, size_t config_bytes,
                                       const char *importer)
{
    qn_file *file = NULL;
    qn_checkpoint *c = NULL;
    qn_error err = {QN_OK, -1, ""};
    char text[256];
    qn_status status = open_bytes(ctx, bytes, size, &file, &err);
    if (status == QN_OK)
        status = qn_checkpoint_open_files(ctx, &file, 1, config, config_bytes, NULL, &c, &err);
    if (status != QN_OK) {
        assert_true(err.status == status && err.text[0] != 0);
        return status;
    }
    for (int64_t i = 0; i < qn_checkpoint_count(c); i++) {
        qn_module m;
        qn_weight *weight = NULL;
        qn_module_init(&m);
        const qn_status found = qn_checkpoint_module(c, i, &m, &err);
        if (m.importer[0] == 0)
            continue;
        assert_true(found == QN_OK || err.text[0] != 0);
        assert_int_equal(qn_checkpoint_find(c, m.name), i);
        qn_checkpoint_provenance(c, i, text, sizeof text);
        qn_checkpoint_forget(c, i);
        status = qn_checkpoint_load(ctx, c, i, 0, -1, &weight, NULL, &err);
        assert_true((status == QN_OK) == (weight != NULL));
        assert_true(found == QN_OK || found == QN_E_MEMORY || status == found);
        if (importer != NULL)
            assert_string_equal(m.importer, importer);
        qn_weight_destroy(weight);
        /* Straight to packed weights it is refused where it is refused here. */
        const qn_module_part part = {i, 0, -1};
        qn_packed *packed = NULL;
        const qn_status packs = qn_checkpoint_pack(ctx, c, 1, &part, NULL, &packed, NULL, &err);
        assert_true((packs == QN_OK) == (packed != NULL));
        assert_true((packs == QN_OK) == (status == QN_OK) || packs == QN_E_MEMORY ||
                    status == QN_E_MEMORY);
        qn_packed_destroy(packed);
        status = status == QN_OK ? packs : status;
    }
    qn_checkpoint_close(c);
    return status;
}

static inline void check_damage(uint8_t *bytes, size_t size, const char *text, const char *importer)
{
    struct counted_ctx c;
    const size_t text_bytes = text == NULL ? 0 : strlen(text);
    counted_make(&c);
    const qn_status good = use_checkpoint(c.ctx, bytes, size, text, text_bytes, importer);
    if (good != QN_OK)
        fail_msg("%s does not load: %s", importer, qn_status_name(good));
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = malloc(cut + 1);
        assert_non_null(copy);
        memcpy(copy, bytes, cut);
        use_checkpoint(c.ctx, copy, cut, text, text_bytes, NULL);
        free(copy);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        use_checkpoint(c.ctx, bytes, size, text, text_bytes, NULL);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    counted_check(&c);
    char *config = malloc(text_bytes + 1);
    assert_non_null(config);
    memcpy(config, text == NULL ? "" : text, text_bytes);
    for (size_t bit = 0; bit < 8 * text_bytes; bit++) {
        config[bit / 8] ^= (char)(1u << bit % 8);
        use_checkpoint(c.ctx, bytes, size, config, text_bytes, NULL);
        config[bit / 8] ^= (char)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < text_bytes; cut++)
        use_checkpoint(c.ctx, bytes, size, config, cut, NULL);
    assert_true(c.counter.largest_bytes < 1 << 16);
    counted_destroy(&c);
    free(config);
}

static inline void check_no_memory(const uint8_t *bytes, size_t size, const char *text)
{
    bool is_last = false;
    for (int64_t refuse = 1; !is_last; refuse++) {
        struct counted_ctx c;
        counted_make(&c);
        c.counter.refuse = c.counter.calls + refuse;
        const qn_status status =
            use_checkpoint(c.ctx, bytes, size, text, text == NULL ? 0 : strlen(text), NULL);
        is_last = c.counter.calls < c.counter.refuse;
        /* Where only a question failed for want of memory, loading asks again. */
        assert_true(status == QN_OK || (status == QN_E_MEMORY && !is_last));
        c.counter.refuse = 0;
        counted_destroy(&c);
    }
}

#endif
