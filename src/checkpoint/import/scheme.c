/* SPDX-License-Identifier: Apache-2.0 */
/* config_groups of compressed-tensors: what weights and activations are. A group's targets are
 * names, classes or regular expressions; they are not resolved, since the tensors tell most of it.
 * Where groups differ in what only they can tell, that is said instead of guessed. */
#include <string.h>

#include "../settings.h"
#include "import.h"

static int32_t first_group(const qn_checkpoint *c)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const int32_t groups = qni_checkpoint_setting(c, "config_groups");
    return groups < 0 ? -1 : s->list[groups].child;
}

static bool is_same(const struct qni_settings *s, int32_t a, int32_t b, const char *key)
{
    const int32_t x = qni_setting_at(s, a, key), y = qni_setting_at(s, b, key);
    const bool has_x = x >= 0 && s->list[x].kind != 'n', has_y = y >= 0 && s->list[y].kind != 'n';
    return has_x == has_y && (!has_x || (s->list[x].kind == s->list[y].kind &&
                                         strcmp(s->list[x].text, s->list[y].text) == 0));
}

int32_t qni_scheme_weights(const qn_checkpoint *c, const char *type, int64_t bits)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    int32_t found = -1;
    for (int32_t g = first_group(c); g >= 0; g = s->list[g].next) {
        const int32_t weights = qni_setting_at(s, g, "weights");
        const char *own = qni_setting_text(s, qni_setting_at(s, weights, "type"));
        int64_t has = 0;
        qni_setting_integer(s, qni_setting_at(s, weights, "num_bits"), &has);
        if (weights < 0 || (own != NULL && strcmp(own, type) != 0) || (bits > 0 && has != bits))
            continue;
        if (found >= 0 &&
            !(is_same(s, found, weights, "num_bits") && is_same(s, found, weights, "group_size") &&
              is_same(s, found, weights, "symmetric")))
            return -2;
        found = weights;
    }
    return found;
}

static bool is_text(const struct qni_settings *s, int32_t node, const char *key, const char *text)
{
    const char *own = qni_setting_text(s, qni_setting_at(s, node, key));
    return own != NULL && strcmp(own, text) == 0;
}

void qni_scheme_activation(const qn_checkpoint *c, const struct qni_tensor *scale,
                           const struct qni_tensor *zero, struct qni_found *found)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const int32_t g = first_group(c);
    const int32_t a = qni_setting_at(s, g, "input_activations");
    int64_t bits = 0;
    if (a < 0 || s->list[a].kind != '{') {
        qni_note(&found->notes, "activations: as they are, no input_activations");
        return;
    }
    for (int32_t i = s->list[g].next; i >= 0; i = s->list[i].next) {
        const int32_t other = qni_setting_at(s, i, "input_activations");
        if (!is_same(s, a, other, "num_bits") || !is_same(s, a, other, "dynamic") ||
            !is_same(s, a, other, "strategy") || !is_same(s, a, other, "type")) {
            found->activation = QN_ACTIVATION_OTHER;
            qni_note(&found->notes, "activations: several config_groups differ in them");
            return;
        }
    }
    const bool is_int8 = is_text(s, a, "type", "int") &&
                         qni_setting_integer(s, qni_setting_at(s, a, "num_bits"), &bits) &&
                         bits == 8;
    const int32_t dynamic = qni_setting_flag(s, qni_setting_at(s, a, "dynamic"));
    found->activation = QN_ACTIVATION_OTHER;
    if (is_int8 && dynamic == 1 && is_text(s, a, "strategy", "token")) {
        found->activation = QN_ACTIVATION_INT8_ROW;
        qni_note(&found->notes, "activations: int8, a scale a row at run time, input_activations");
    } else if (is_int8 && dynamic == 0 && scale->data != NULL &&
               qni_import_is_float(scale->dtype) && scale->bytes >= 2 && scale->rank <= 1) {
        found->activation = QN_ACTIVATION_INT8_STATIC;
        found->input_scale = qni_import_float(scale, 0);
        if (zero->data != NULL && zero->bytes >= 1 && zero->dtype == QN_I8)
            found->input_zero = (int32_t)qni_import_int(zero, 0);
        qni_note(&found->notes, "activations: int8 of a fixed scale, tensor .input_scale");
    } else {
        qni_note(&found->notes, "activations: others than int8 a row or of a fixed scale");
    }
}
