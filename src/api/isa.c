/* SPDX-License-Identifier: Apache-2.0 */
/* Names of instruction-set features and the little language of masks. Pure but for
 * qn_isa_detect(). */
#include "isa.h"

#include <string.h>

#include "../base/error.h"
#include "../cpu/cpuid.h"

/* Foundations come before what stands on them. */
static const struct feature {
    uint64_t bit;
    uint64_t below; /* the feature it extends, 0 for none */
    const char *name;
} features[] = {
    {QN_ISA_AVX2, 0, "avx2"},
    {QN_ISA_AVX_VNNI, QN_ISA_AVX2, "avx_vnni"},
    {QN_ISA_AVX512, QN_ISA_AVX2, "avx512"},
    {QN_ISA_VNNI512, QN_ISA_AVX512, "vnni512"},
    {QN_ISA_BF16_512, QN_ISA_VNNI512, "bf16_512"},
    {QN_ISA_FP16_512, QN_ISA_BF16_512, "fp16_512"},
    {QN_ISA_AMX_INT8, QN_ISA_BF16_512, "amx_int8"},
    {QN_ISA_AMX_BF16, QN_ISA_BF16_512, "amx_bf16"},
    {QN_ISA_NEON, 0, "neon"},
    {QN_ISA_DOTPROD, QN_ISA_NEON, "dotprod"},
    {QN_ISA_I8MM, QN_ISA_DOTPROD, "i8mm"},
};
enum { N_FEATURES = (int)(sizeof features / sizeof *features) };

uint64_t qni_isa_usable(uint64_t isa)
{
    for (int i = 0; i < N_FEATURES; i++) {
        if ((features[i].below & ~isa) != 0)
            isa &= ~features[i].bit;
    }
    return isa;
}

uint64_t qn_isa_detect(void)
{
    return qni_isa_usable(qni_cpuid_detect());
}

const char *qn_isa_name(uint64_t bit)
{
    for (int i = 0; i < N_FEATURES; i++) {
        if (features[i].bit == bit)
            return features[i].name;
    }
    return NULL;
}

/* The feature and all that it stands on; walking down the list meets foundations after what
 * needs them. */
static uint64_t with_below(int feature)
{
    uint64_t set = features[feature].bit;
    for (int i = feature; i >= 0; i--) {
        if ((set & features[i].bit) != 0)
            set |= features[i].below;
    }
    return set;
}

/* The feature and all that stands on it. */
static uint64_t with_above(int feature)
{
    uint64_t set = features[feature].bit;
    for (int i = feature + 1; i < N_FEATURES; i++) {
        if ((set & features[i].below) != 0)
            set |= features[i].bit;
    }
    return set;
}

static bool word_is(const char *word, size_t length, const char *name)
{
    return strlen(name) == length && memcmp(word, name, length) == 0;
}

static int find_feature(const char *word, size_t length)
{
    for (int i = 0; i < N_FEATURES; i++) {
        if (word_is(word, length, features[i].name))
            return i;
    }
    return -1;
}

static qn_status fail_unknown(qn_error *err, const char *word, size_t length)
{
    char known[256] = "all, portable";
    size_t at = strlen(known);
    for (int i = 0; i < N_FEATURES; i++) {
        const size_t bytes = strlen(features[i].name);
        if (at + bytes + 3 > sizeof known)
            break;
        memcpy(known + at, ", ", 2);
        memcpy(known + at + 2, features[i].name, bytes + 1);
        at += bytes + 2;
    }
    return qni_fail(err, QN_E_ARGUMENT, "isa: no feature is called '%.*s'; there are: %s",
                    length > 60 ? 60 : (int)length, word, known);
}

qn_status qn_isa_parse(const char *text, uint64_t *mask, qn_error *err)
{
    if (text == NULL || mask == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "isa: text or mask is NULL");
    uint64_t wanted = 0, unwanted = 0;
    bool has_wanted = false;
    for (const char *word = text;; word++) {
        const bool minus = *word == '-';
        word += minus;
        const size_t length = strcspn(word, ",");
        const int feature = find_feature(word, length);
        if (feature >= 0 && minus)
            unwanted |= with_above(feature);
        else if (feature >= 0)
            wanted |= with_below(feature);
        else if (!minus && word_is(word, length, "all"))
            wanted = QN_ISA_ALL;
        else if (minus || !word_is(word, length, "portable"))
            return fail_unknown(err, word - minus, length + (size_t)minus);
        has_wanted = has_wanted || !minus;
        word += length;
        if (*word == '\0')
            break;
    }
    *mask = (has_wanted ? wanted : QN_ISA_ALL) & ~unwanted;
    return QN_OK;
}
