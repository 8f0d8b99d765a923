/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON reader (RFC 8259, without extensions). Every byte is looked at once; the depth is
 * bounded; no number overflows; no string is longer than its quotes. It exists because the core of
 * quern needs nothing but libc (docs/adr/0005-container-format.md). It never allocates and never
 * accepts more than the grammar. */
#include "json.h"

#include <string.h>

void qni_json_start(struct qni_json *j, const void *text, size_t size, char *strings)
{
    memset(j, 0, sizeof *j);
    j->text = text;
    j->size = size;
    j->strings = strings;
}

static bool fail_at(struct qni_json *j, size_t at, const char *why)
{
    if (j->why == NULL) {
        j->why = why;
        j->why_at = at;
    }
    return false;
}

bool qni_json_refuse(struct qni_json *j, const char *why)
{
    return fail_at(j, j->at, why);
}

/* The next byte that is no blank, or -1 at the end. */
static int next(struct qni_json *j)
{
    while (j->at < j->size) {
        const uint8_t c = j->text[j->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return c;
        j->at++;
    }
    return -1;
}

static bool expect(struct qni_json *j, char c, const char *why)
{
    if (j->why != NULL)
        return false;
    const int found = next(j);
    if (found != c)
        return qni_json_refuse(j, found < 0 ? "the text ends too early" : why);
    j->at++;
    return true;
}

bool qni_json_end(struct qni_json *j)
{
    if (j->why != NULL)
        return false;
    return next(j) < 0 || qni_json_refuse(j, "something follows the end of the text");
}

static bool enter(struct qni_json *j, char open, const char *why)
{
    if (!expect(j, open, why))
        return false;
    if (j->depth == QNI_JSON_DEPTH)
        return qni_json_refuse(j, "nested too deeply");
    j->fresh |= 1u << j->depth++;
    return true;
}

bool qni_json_object(struct qni_json *j)
{
    return enter(j, '{', "an object was expected");
}

bool qni_json_array(struct qni_json *j)
{
    return enter(j, '[', "an array was expected");
}

/* Is there another member before `close`? Takes the comma, or leaves the container. */
static bool more(struct qni_json *j, char close)
{
    if (j->why != NULL)
        return false;
    const uint32_t bit = 1u << (j->depth - 1);
    const int c = next(j);
    if (c < 0)
        return qni_json_refuse(j, "the text ends too early");
    if (c == close) {
        j->at++;
        j->depth--;
        j->fresh &= ~bit;
        return false;
    }
    if ((j->fresh & bit) != 0) {
        j->fresh &= ~bit;
        return true;
    }
    return expect(j, ',', "a comma or the end of the container was expected");
}

bool qni_json_item(struct qni_json *j)
{
    return more(j, ']');
}

bool qni_json_key(struct qni_json *j, const char **key)
{
    return more(j, '}') && qni_json_string(j, key) && expect(j, ':', "a colon was expected");
}

char qni_json_peek(struct qni_json *j)
{
    const int c = j->why != NULL ? -1 : next(j);
    if (c == '-' || (c >= '0' && c <= '9'))
        return '0';
    return c == '{' || c == '[' || c == '"' || c == 't' || c == 'f' || c == 'n' ? (char)c : 0;
}

/* ---- strings -------------------------------------------------------------------------------- */

size_t qni_utf8_length(const uint8_t *text, size_t size)
{
    if (size == 0)
        return 0;
    const uint8_t c = text[0];
    if (c < 0x80)
        return 1;
    const size_t length = c >= 0xc2 && c <= 0xdf   ? 2
                          : (c & 0xf0) == 0xe0     ? 3
                          : c >= 0xf0 && c <= 0xf4 ? 4
                                                   : 0;
    if (length == 0 || length > size)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    /* The second byte rules out overlong forms, surrogates and what lies above 10ffff. */
    const uint8_t d = text[1];
    if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d > 0x9f) || (c == 0xf0 && d < 0x90) ||
        (c == 0xf4 && d > 0x8f))
        return 0;
    return length;
}

/* Four hexadecimal digits behind "\u"; -1 if they are not. */
static int32_t hex4(const struct qni_json *j, size_t at)
{
    if (j->size - at < 4)
        return -1;
    int32_t value = 0;
    for (size_t i = at; i < at + 4; i++) {
        const uint8_t c = j->text[i], low = (uint8_t)(c | 0x20);
        const int32_t digit = c >= '0' && c <= '9'       ? c - '0'
                              : low >= 'a' && low <= 'f' ? low - 'a' + 10
                                                         : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void put_utf8(struct qni_json *j, int32_t c)
{
    char *out = j->strings + j->strings_used;
    size_t n = 0;
    if (c < 0x80) {
        out[n++] = (char)c;
    } else {
        if (c < 0x800) {
            out[n++] = (char)(0xc0 | c >> 6);
        } else {
            if (c < 0x10000) {
                out[n++] = (char)(0xe0 | c >> 12);
            } else {
                out[n++] = (char)(0xf0 | c >> 18);
                out[n++] = (char)(0x80 | (c >> 12 & 0x3f));
            }
            out[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        }
        out[n++] = (char)(0x80 | (c & 0x3f));
    }
    j->strings_used += n;
}

/* The escape whose backslash was just read. At least as long in the text as what it becomes. */
static bool escape(struct qni_json *j)
{
    static const char plain[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    if (j->at == j->size)
        return qni_json_refuse(j, "the text ends inside a string");
    const uint8_t c = j->text[j->at];
    const char *known = c == 0 ? NULL : strchr(plain, c);
    if (known != NULL) {
        j->at++;
        put_utf8(j, meaning[known - plain]);
        return true;
    }
    int32_t code = c == 'u' ? hex4(j, j->at + 1) : -1;
    if (code < 0)
        return qni_json_refuse(j, "an unknown escape in a string");
    if (code == 0)
        return qni_json_refuse(j, "a NUL character in a string");
    j->at += 5;
    if (code >= 0xd800 && code <= 0xdfff) {
        const bool paired =
            code <= 0xdbff && j->size - j->at >= 6 && memcmp(j->text + j->at, "\\u", 2) == 0;
        const int32_t low = paired ? hex4(j, j->at + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return qni_json_refuse(j, "half a surrogate pair in a string");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        j->at += 6;
    }
    put_utf8(j, code);
    return true;
}

bool qni_json_string(struct qni_json *j, const char **text)
{
    if (!expect(j, '"', "a string was expected"))
        return false;
    const size_t start = j->strings_used;
    for (;;) {
        if (j->at == j->size)
            return qni_json_refuse(j, "the text ends inside a string");
        const uint8_t c = j->text[j->at];
        if (c == '"')
            break;
        if (c < 0x20)
            return qni_json_refuse(j, "a control character in a string");
        if (c == '\\') {
            j->at++;
            if (!escape(j))
                return false;
            continue;
        }
        const size_t length = qni_utf8_length(j->text + j->at, j->size - j->at);
        if (length == 0)
            return qni_json_refuse(j, "a string is not valid UTF-8");
        memcpy(j->strings + j->strings_used, j->text + j->at, length);
        j->strings_used += length;
        j->at += length;
    }
    j->at++;
    j->strings[j->strings_used++] = 0;
    *text = j->strings + start;
    return true;
}

/* ---- numbers and the rest ------------------------------------------------------------------- */

static bool is_digit(const struct qni_json *j, size_t at)
{
    return at < j->size && j->text[at] >= '0' && j->text[at] <= '9';
}

bool qni_json_integer(struct qni_json *j, int64_t *value)
{
    if (j->why != NULL)
        return false;
    next(j);
    const size_t start = j->at;
    if (!is_digit(j, start))
        return qni_json_refuse(j, j->at == j->size ? "the text ends too early"
                                                   : "an integer of at least 0 was expected");
    int64_t sum = 0;
    while (is_digit(j, j->at)) {
        if (__builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, j->text[j->at] - '0', &sum))
            return fail_at(j, start, "an integer is larger than 2^63 - 1");
        j->at++;
    }
    if (j->text[start] == '0' && j->at - start > 1)
        return fail_at(j, start, "a number begins with a superfluous 0");
    if (j->at < j->size && strchr(".eE", j->text[j->at]) != NULL && j->text[j->at] != 0)
        return fail_at(j, start, "an integer was expected, not a fraction");
    *value = sum;
    return true;
}

static bool skip_digits(struct qni_json *j)
{
    if (!is_digit(j, j->at))
        return qni_json_refuse(j, "a number lacks digits");
    while (is_digit(j, j->at))
        j->at++;
    return true;
}

static bool skip_number(struct qni_json *j)
{
    j->at += j->text[j->at] == '-';
    if (is_digit(j, j->at) && j->text[j->at] == '0')
        j->at++;
    else if (!skip_digits(j))
        return false;
    if (j->at < j->size && j->text[j->at] == '.') {
        j->at++;
        if (!skip_digits(j))
            return false;
    }
    if (j->at < j->size && (j->text[j->at] | 0x20) == 'e') {
        j->at++;
        if (j->at < j->size && (j->text[j->at] == '+' || j->text[j->at] == '-'))
            j->at++;
        return skip_digits(j);
    }
    return true;
}

static bool skip_word(struct qni_json *j, const char *word)
{
    const size_t length = strlen(word);
    if (j->size - j->at < length || memcmp(j->text + j->at, word, length) != 0)
        return qni_json_refuse(j, "an unknown word");
    j->at += length;
    return true;
}

/* Recursion is bounded by QNI_JSON_DEPTH. */
bool qni_json_skip(struct qni_json *j)
{
    const size_t kept = j->strings_used;
    const char *dropped;
    bool fine = false;
    switch (qni_json_peek(j)) {
    case '{':
        fine = qni_json_object(j);
        while (fine && qni_json_key(j, &dropped))
            fine = qni_json_skip(j);
        break;
    case '[':
        fine = qni_json_array(j);
        while (fine && qni_json_item(j))
            fine = qni_json_skip(j);
        break;
    case '"':
        fine = qni_json_string(j, &dropped);
        break;
    case '0':
        fine = skip_number(j);
        break;
    case 't':
        fine = skip_word(j, "true");
        break;
    case 'f':
        fine = skip_word(j, "false");
        break;
    case 'n':
        fine = skip_word(j, "null");
        break;
    default:
        fine = qni_json_refuse(j, j->at == j->size ? "the text ends too early"
                                                   : "a value was expected");
    }
    j->strings_used = kept;
    return fine && j->why == NULL;
}
