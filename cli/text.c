/* SPDX-License-Identifier: Apache-2.0 */
/* Names come out of untrusted files and paths are any bytes: what a terminal would obey, and what
 * no JSON may hold, is replaced by '?', byte by byte, so nothing moves and nothing grows. In JSON,
 * whose readers want the name itself, it is escaped. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

/* Bytes of the UTF-8 letter at `at`, its number in *code; 0: none begins there. Overlong forms,
 * surrogates and numbers beyond U+10FFFF are none. */
static int decode(const unsigned char *at, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const int length = at[0] < 0x80    ? 1
                       : at[0] < 0xc0  ? 0
                       : at[0] < 0xe0  ? 2
                       : at[0] < 0xf0  ? 3
                       : at[0] <= 0xf4 ? 4
                                       : 0;
    if (length == 0)
        return 0;
    *code = length == 1 ? at[0] : at[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) /* the end of the text, too */
            return 0;
        *code = *code << 6 | (at[i] & 0x3fu);
    }
    const int is_good =
        *code >= least[length] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
    return is_good ? length : 0;
}

/* Controls of both kinds, and those that turn the direction of what follows. */
static int is_obeyed(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
           code == 0x200e || code == 0x200f || code == 0x61c ||
           (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

static char *replace(char *text, int with_controls)
{
    for (char *at = text; *at != '\0';) {
        uint32_t code = 0;
        const int length = decode((const unsigned char *)at, &code);
        if (length == 0)
            *at = '?';
        else if (with_controls && is_obeyed(code))
            memset(at, '?', (size_t)length);
        at += length > 0 ? length : 1;
    }
    return text;
}

/* All of these are in strings: the rest of JSON is ASCII, and cJSON has escaped what is below 0x20
 * there. Each takes at most six bytes for one. */
char *text_escaped(const char *json)
{
    char *out = must_alloc(6 * strlen(json) + 1), *to = out;
    while (*json != '\0') {
        uint32_t code = 0;
        const int length = decode((const unsigned char *)json, &code);
        const int taken = length > 0 ? length : 1;
        if (length > 0 && is_obeyed(code) && code >= 0x20) {
            to += snprintf(to, 7, "\\u%04x", (unsigned)code);
        } else {
            memcpy(to, json, (size_t)taken);
            to += taken;
        }
        json += taken;
    }
    *to = '\0';
    return out;
}

char *text_shown(char *text)
{
    return replace(text, 1);
}

char *text_utf8(char *text)
{
    return replace(text, 0);
}
