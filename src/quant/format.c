/* SPDX-License-Identifier: Apache-2.0 */
/* The small language for weight formats: a base, then words after colons. docs/formats.md has the
 * grammar. parse(print(f)) == f for every format that qn_format_check() accepts. */
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "format.h"

struct named {
    const char *name;
    qn_format format;
    qn_range range;
};

static const struct named named[] = {
#define QNI_FORMAT(name, code, bits, group, shift, scale, superblock, superbits, range)            \
    {name,                                                                                         \
     {QN_CODE_##code, bits, group, QN_BLOCKS_RUN, QN_SHIFT_##shift, QN_##scale, superblock,        \
      superbits, 0},                                                                               \
     QN_RANGE_##range},
#include "formats.inc"
#undef QNI_FORMAT
};
enum { N_NAMED = (int)(sizeof named / sizeof named[0]) };

enum { MAX_GROUP = INT32_MAX, MAX_SUPERBLOCK = 1024 };

/* ---- facts ---- */

static bool equal(const qn_format *a, const qn_format *b)
{
    return a->code == b->code && a->bits == b->bits && a->group == b->group &&
           a->blocks == b->blocks && a->shift == b->shift && a->scale_dtype == b->scale_dtype &&
           a->superblock == b->superblock && a->superbits == b->superbits;
}

static const struct named *find_named(const qn_format *format)
{
    for (int i = 0; i < N_NAMED; i++)
        if (equal(&named[i].format, format))
            return &named[i];
    return NULL;
}

const char *qn_format_name(int32_t i)
{
    return i >= 0 && i < N_NAMED ? named[i].name : NULL;
}

qn_range qni_format_range(const qn_format *format, qn_range wanted)
{
    const struct named *n = find_named(format);
    return wanted == QN_RANGE_NARROW && n != NULL ? n->range : wanted;
}

int64_t qn_format_groups(const qn_format *format, int64_t k, int64_t ci)
{
    if (qn_format_check(format, NULL) != QN_OK || k < 0 || ci < 0 || (k > 0 && ci == 0) ||
        (ci > 0 && k % ci != 0))
        return 0;
    if (format->group < 0)
        return 1;
    return qni_ceil_div(format->blocks == QN_BLOCKS_CHANNELS ? ci : k, format->group);
}

/* ---- check ---- */

static qn_status check_code(const qn_format *f, qn_error *err)
{
    if (f->code < QN_CODE_INT || f->code > QN_CODE_FLOAT)
        return qni_fail(err, QN_E_FORMAT, "code %d is none of QN_CODE_INT to QN_CODE_FLOAT",
                        (int)f->code);
    if (f->code == QN_CODE_FLOAT && find_named(f) == NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "floats are f32, f16 or bf16, of 32 and 16 bits, one group per tensor "
                        "and no shift");
    if (f->code == QN_CODE_FLOAT)
        return QN_OK;
    const bool is_fp4 =
        f->code == QN_CODE_NF4 || f->code == QN_CODE_IQ4_NL || f->code == QN_CODE_E2M1;
    const int32_t lo = is_fp4 ? 4 : f->code == QN_CODE_E4M3 ? 8 : 2;
    const int32_t hi = is_fp4 ? 4 : 8;
    if (f->bits < lo || f->bits > hi)
        return qni_fail(err, QN_E_FORMAT, "%d bits are impossible for this code; %d to %d are not",
                        (int)f->bits, (int)lo, (int)hi);
    return QN_OK;
}

static qn_status check_groups(const qn_format *f, qn_error *err)
{
    const bool is_whole = f->group == QN_GROUP_PER_CHANNEL || f->group == QN_GROUP_PER_TENSOR;
    if (!is_whole && (f->group < 1 || f->group > MAX_GROUP))
        return qni_fail(err, QN_E_FORMAT,
                        "a group of %lld is impossible; 1 to %d, per channel or per tensor",
                        (long long)f->group, (int)MAX_GROUP);
    if (f->blocks != QN_BLOCKS_RUN && f->blocks != QN_BLOCKS_CHANNELS)
        return qni_fail(err, QN_E_FORMAT, "blocks %d are neither QN_BLOCKS_RUN nor _CHANNELS",
                        (int)f->blocks);
    if (f->blocks == QN_BLOCKS_CHANNELS && is_whole)
        return qni_fail(err, QN_E_FORMAT, "blocks of channels need a number of channels");
    return QN_OK;
}

static qn_status check_scale(const qn_format *f, qn_error *err)
{
    const qn_dtype d = f->scale_dtype;
    if (d != QN_F32 && d != QN_F16 && d != QN_BF16 && d != QN_E8M0 && d != QN_E4M3)
        return qni_fail(err, QN_E_FORMAT,
                        "a scale of type %s is impossible; f32, f16, bf16, e8m0 and e4m3 are not",
                        qn_dtype_name(d));
    const bool is_float = f->shift == QN_SHIFT_OFFSET || f->shift == QN_SHIFT_MIN;
    if (f->shift != QN_SHIFT_NONE && f->shift != QN_SHIFT_ZERO && !is_float)
        return qni_fail(err, QN_E_FORMAT, "shift %d is none of QN_SHIFT_NONE, _ZERO, _OFFSET, _MIN",
                        (int)f->shift);
    if (f->shift == QN_SHIFT_ZERO && f->code != QN_CODE_INT)
        return qni_fail(err, QN_E_FORMAT, "only integer codes have a zero point");
    if (f->shift == QN_SHIFT_MIN && f->code != QN_CODE_INT)
        return qni_fail(err, QN_E_FORMAT,
                        "only integer codes have a minimum; codebooks have offsets");
    if (is_float && (d == QN_E8M0 || d == QN_E4M3))
        return qni_fail(err, QN_E_FORMAT, "an offset cannot be of type %s; use f32, f16 or bf16",
                        qn_dtype_name(d));
    return QN_OK;
}

static qn_status check_super(const qn_format *f, qn_error *err)
{
    if (f->superblock == 0 && f->superbits == 0)
        return QN_OK;
    if (f->superblock < 1 || f->superblock > MAX_SUPERBLOCK || f->superbits < 2 || f->superbits > 8)
        return qni_fail(err, QN_E_FORMAT,
                        "super-blocks of %d groups with scales of %d bits are impossible; 1 to %d "
                        "groups, 2 to 8 bits",
                        (int)f->superblock, (int)f->superbits, (int)MAX_SUPERBLOCK);
    if (f->group < 0 || f->blocks != QN_BLOCKS_RUN)
        return qni_fail(err, QN_E_FORMAT, "super-blocks hold groups of a fixed length (g32)");
    if (f->shift == QN_SHIFT_ZERO)
        return qni_fail(err, QN_E_FORMAT, "super-blocks have minima or offsets, not zero points");
    if (f->scale_dtype != QN_F32 && f->scale_dtype != QN_F16 && f->scale_dtype != QN_BF16)
        return qni_fail(err, QN_E_FORMAT, "the common scale of a super-block is f32, f16 or bf16");
    return QN_OK;
}

qn_status qn_format_check(const qn_format *format, qn_error *err)
{
    if (format == NULL)
        return qni_fail(err, QN_E_FORMAT, "no format is given");
    if (format->reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "format.reserved is not 0");
    QNI_TRY(check_code(format, err));
    QNI_TRY(check_groups(format, err));
    QNI_TRY(check_scale(format, err));
    return check_super(format, err);
}

/* ---- print ---- */

static const char *base_name(const qn_format *f, char text[16])
{
    switch (f->code) {
    case QN_CODE_NF4:
        return "nf4";
    case QN_CODE_IQ4_NL:
        return "iq4nl";
    case QN_CODE_E2M1:
        return "e2m1";
    case QN_CODE_E4M3:
        return "fp8";
    default:
        snprintf(text, 16, "%s%d", f->code == QN_CODE_TABLE ? "table" : "int", (int)f->bits);
        return text;
    }
}

size_t qn_format_print(const qn_format *format, char *text, size_t capacity)
{
    char base[16], group[32] = "pt", scale[16] = "", super[32] = "";
    static const char *const shifts[] = {"", ":zp", ":off", ":min"};
    int length;
    if (text == NULL)
        capacity = 0;
    if (qn_format_check(format, NULL) != QN_OK) {
        length = snprintf(text, capacity, "?");
    } else if (find_named(format) != NULL) {
        length = snprintf(text, capacity, "%s", find_named(format)->name);
    } else {
        if (format->group > 0)
            snprintf(group, sizeof group, "%c%lld",
                     format->blocks == QN_BLOCKS_CHANNELS ? 'c' : 'g', (long long)format->group);
        else if (format->group == QN_GROUP_PER_CHANNEL)
            snprintf(group, sizeof group, "pc");
        if (format->scale_dtype != QN_F32)
            snprintf(scale, sizeof scale, ":%s", qn_dtype_name(format->scale_dtype));
        if (format->superblock > 0)
            snprintf(super, sizeof super, ":s%dx%d", (int)format->superblock,
                     (int)format->superbits);
        length = snprintf(text, capacity, "%s:%s%s%s%s", base_name(format, base), group,
                          shifts[format->shift], scale, super);
    }
    return length < 0 ? 0 : (size_t)length;
}

/* ---- parse ---- */

static const char *const possible_bases =
    "int2 to int8, nf4, iq4nl, e2m1, fp8, table2 to table8, or a name: q4_0 q4_1 q5_0 q5_1 q8_0 "
    "q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 nvfp4 f32 f16 bf16";
static const char *const possible_words =
    "g<n> (groups of n), c<n> (blocks of n input channels), pc (per channel), pt (per tensor), zp, "
    "off, min, f32, f16, bf16, e8m0, e4m3, s<groups>x<bits>";

/* One word of the text: [at, at + length). */
struct word {
    const char *at;
    size_t length;
};

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is(struct word w, const char *name)
{
    for (size_t i = 0; i < w.length; i++)
        if (name[i] == 0 || lower(w.at[i]) != name[i])
            return false;
    return name[w.length] == 0;
}

/* The decimal number from `from` to the end of the word or to the letter `stop`: 1 to limit, or 0
 * if there is none. *next is what comes after it. */
static int64_t number(struct word w, size_t from, int64_t limit, size_t *next)
{
    int64_t value = 0;
    size_t i = from;
    for (; i < w.length && w.at[i] >= '0' && w.at[i] <= '9'; i++) {
        value = value * 10 + (w.at[i] - '0');
        if (value > limit)
            return 0;
    }
    *next = i;
    return i == from ? 0 : value;
}

static bool starts(struct word w, const char *prefix)
{
    const size_t n = strlen(prefix);
    return w.length > n && is((struct word){w.at, n}, prefix);
}

static bool parse_base(struct word w, qn_format *f)
{
    static const struct {
        const char *name;
        qn_code code;
        int32_t bits;
    } bases[] = {{"nf4", QN_CODE_NF4, 4},
                 {"iq4nl", QN_CODE_IQ4_NL, 4},
                 {"e2m1", QN_CODE_E2M1, 4},
                 {"fp8", QN_CODE_E4M3, 8}};
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++)
        if (is(w, bases[i].name)) {
            f->code = bases[i].code;
            f->bits = bases[i].bits;
            return true;
        }
    const bool is_table = starts(w, "table");
    if (!is_table && !starts(w, "int"))
        return false;
    size_t next;
    f->code = is_table ? QN_CODE_TABLE : QN_CODE_INT;
    f->bits = (int32_t)number(w, is_table ? 5 : 3, 8, &next);
    return f->bits >= 2 && next == w.length;
}

enum { SEEN_GROUP = 1, SEEN_SHIFT = 2, SEEN_SCALE = 4, SEEN_SUPER = 8 };

static int parse_scale(struct word w, qn_format *f)
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16, QN_E8M0, QN_E4M3};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (is(w, qn_dtype_name(types[i]))) {
            f->scale_dtype = types[i];
            return SEEN_SCALE;
        }
    return 0;
}

/* What the word was about, or 0 if it is no word of the language. */
static int parse_word(struct word w, qn_format *f)
{
    size_t next;
    if (is(w, "pc") || is(w, "pt")) {
        f->group = is(w, "pc") ? QN_GROUP_PER_CHANNEL : QN_GROUP_PER_TENSOR;
        return SEEN_GROUP;
    }
    if (is(w, "zp") || is(w, "off") || is(w, "min")) {
        f->shift = is(w, "zp") ? QN_SHIFT_ZERO : is(w, "off") ? QN_SHIFT_OFFSET : QN_SHIFT_MIN;
        return SEEN_SHIFT;
    }
    if (starts(w, "g") || starts(w, "c")) {
        f->group = number(w, 1, MAX_GROUP, &next);
        f->blocks = starts(w, "c") ? QN_BLOCKS_CHANNELS : QN_BLOCKS_RUN;
        return f->group > 0 && next == w.length ? SEEN_GROUP : 0;
    }
    if (starts(w, "s")) {
        f->superblock = (int32_t)number(w, 1, MAX_SUPERBLOCK, &next);
        if (f->superblock == 0 || next >= w.length || lower(w.at[next]) != 'x')
            return 0;
        f->superbits = (int32_t)number(w, next + 1, 8, &next);
        return f->superbits > 0 && next == w.length ? SEEN_SUPER : 0;
    }
    return parse_scale(w, f);
}

static qn_status wrong(qn_error *err, const char *text, struct word w, const char *why,
                       const char *possible)
{
    return qni_fail(err, QN_E_FORMAT, "weight format \"%.80s\": \"%.*s\" %s; possible are %s", text,
                    (int)(w.length < 40 ? w.length : 40), w.at, why, possible);
}

static struct word next_word(const char *at)
{
    return (struct word){at, strcspn(at, ":")};
}

static qn_status parse_words(const char *text, const char *rest, qn_format *f, qn_error *err)
{
    int seen = 0;
    while (*rest == ':') {
        const struct word w = next_word(rest + 1);
        const int about = parse_word(w, f);
        if (about == 0)
            return wrong(err, text, w, "is no word of the language", possible_words);
        if ((seen & about) != 0)
            return wrong(err, text, w, "says a second time what was said before", possible_words);
        seen |= about;
        rest = w.at + w.length;
    }
    if ((seen & SEEN_GROUP) == 0)
        return qni_fail(err, QN_E_FORMAT,
                        "weight format \"%.80s\": how codes are grouped is missing; add :g128, "
                        ":pc (per channel), :pt (per tensor) or :c64 (channels of a convolution)",
                        text);
    return QN_OK;
}

qn_status qn_format_parse(const char *text, qn_format *format, qn_error *err)
{
    if (text == NULL || format == NULL)
        return qni_fail(err, QN_E_FORMAT, "%s is NULL", text == NULL ? "text" : "format");
    const struct word base = next_word(text);
    for (int i = 0; i < N_NAMED; i++)
        if (is(base, named[i].name)) {
            if (text[base.length] != 0)
                return wrong(err, text, next_word(text + base.length + 1),
                             "follows a name that says everything", "the name alone");
            *format = named[i].format;
            return QN_OK;
        }
    qn_format f;
    memset(&f, 0, sizeof f);
    f.scale_dtype = QN_F32;
    if (!parse_base(base, &f))
        return wrong(err, text, base, "is no kind of weights", possible_bases);
    QNI_TRY(parse_words(text, text + base.length, &f, err));
    qn_error why;
    if (qn_format_check(&f, &why) != QN_OK)
        return qni_fail(err, QN_E_FORMAT, "weight format \"%.80s\": %s", text, why.text);
    *format = f;
    return QN_OK;
}
