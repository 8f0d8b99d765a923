/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE writes every byte as a printable character (GPT-2's alphabet), cuts text into
 * words and merges, in each word, the neighbours whose merge came first in training. SentencePiece
 * merges the neighbours whose result has the best score, and spells what it lacks in bytes. */
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

/* ---- a table from spellings to numbers ------------------------------------------------------- */

struct table {
    size_t slots; /* a power of two, more than twice the entries */
    const char **key;
    int32_t *value;
    char **owned;
    size_t n_owned;
};

static size_t hash_of(const char *text, size_t length)
{
    size_t h = 1469598103934665603u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static struct table *table_create(size_t entries)
{
    struct table *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    for (t->slots = 64; t->slots < 2 * entries + 2;)
        t->slots *= 2;
    t->key = calloc(t->slots, sizeof *t->key);
    t->value = calloc(t->slots, sizeof *t->value);
    return t;
}

static void table_destroy(struct table *t)
{
    if (t == NULL)
        return;
    free(t->key);
    free(t->value);
    free(t);
}

/* The slot of a spelling: its own, or the empty one where it would be. */
static size_t slot_of(const struct table *t, const char *text, size_t length)
{
    size_t at = hash_of(text, length) & (t->slots - 1);
    while (t->key[at] != NULL &&
           (strncmp(t->key[at], text, length) != 0 || t->key[at][length] != 0))
        at = (at + 1) & (t->slots - 1);
    return at;
}

static int32_t table_get(const struct table *t, const char *text, size_t length)
{
    const size_t at = slot_of(t, text, length);
    return t->key[at] == NULL ? -1 : t->value[at];
}

/* key must outlive the table. The first of equal keys stays. */
static void table_put(struct table *t, const char *key, int32_t value)
{
    const size_t at = slot_of(t, key, strlen(key));
    if (t->key[at] == NULL) {
        t->key[at] = key;
        t->value[at] = value;
    }
}

/* ---- making one ------------------------------------------------------------------------------ */

enum { MAX_MERGES = 1 << 20 };

struct tokenizer *tokenizer_create(enum tokenizer_kind kind, int32_t count)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL || count < 1)
        return free(t), NULL;
    t->kind = kind;
    t->count = count;
    t->bos = t->eos = t->end_of_turn = -1;
    t->token = calloc((size_t)count, sizeof *t->token);
    t->score = calloc((size_t)count, sizeof *t->score);
    t->is_special = calloc((size_t)count, 1);
    t->ids = table_create((size_t)count);
    t->ranks = table_create(kind == TOKENIZER_BPE ? MAX_MERGES : 1);
    if (t->token == NULL || t->score == NULL || t->is_special == NULL || t->ids == NULL ||
        t->ranks == NULL)
        return tokenizer_destroy(t), NULL;
    return t;
}

bool tokenizer_index(struct tokenizer *t)
{
    for (int32_t i = 0; i < t->count; i++) {
        if (t->token[i] == NULL)
            return false;
        table_put(t->ids, t->token[i], i);
        t->n_special += t->is_special[i];
    }
    t->special = calloc((size_t)t->n_special + 1, sizeof *t->special);
    for (int32_t i = 0, n = 0; t->special != NULL && i < t->count; i++)
        if (t->is_special[i])
            t->special[n++] = i;
    return t->special != NULL;
}

bool tokenizer_add_merge(struct tokenizer *t, const char *pair, int32_t rank)
{
    const size_t bytes = strlen(pair) + 1;
    char *copy = rank < MAX_MERGES ? malloc(bytes) : NULL;
    char **owned =
        copy == NULL ? NULL
                     : realloc(t->ranks->owned, (t->ranks->n_owned + 1) * sizeof *t->ranks->owned);
    if (owned == NULL)
        return free(copy), false;
    memcpy(copy, pair, bytes);
    t->ranks->owned = owned;
    owned[t->ranks->n_owned++] = copy;
    table_put(t->ranks, copy, rank);
    return true;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (t == NULL)
        return;
    for (int32_t i = 0; t->token != NULL && i < t->count; i++)
        free(t->token[i]);
    for (size_t i = 0; t->ranks != NULL && i < t->ranks->n_owned; i++)
        free(t->ranks->owned[i]);
    if (t->ranks != NULL)
        free(t->ranks->owned);
    free(t->token);
    free(t->score);
    free(t->is_special);
    free(t->special);
    table_destroy(t->ids);
    table_destroy(t->ranks);
    free(t);
}

int32_t tokenizer_find(const struct tokenizer *t, const char *token)
{
    return table_get(t->ids, token, strlen(token));
}

/* ---- characters ------------------------------------------------------------------------------ */

/* A UTF-8 character and its length; a byte that begins none stands for itself. */
static uint32_t character(const char *text, size_t left, size_t *length)
{
    const unsigned char *s = (const unsigned char *)text;
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
    *length = 1;
    if (s[0] >= 0x80 && (s[0] < 0xc2 || s[0] > 0xf4 || n > left))
        return s[0];
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return s[0];
        c = c << 6 | (s[i] & 0x3f);
    }
    *length = n;
    return c;
}

static size_t put_character(uint32_t c, char *out)
{
    if (c < 0x80)
        return (size_t)((out[0] = (char)c), 1);
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3f));
    out[2] = (char)(0x80 | (c & 0x3f));
    return 3;
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for 256 and up. */
static uint32_t byte_character(unsigned char byte)
{
    if ((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae)
        return byte;
    return byte <= 0x20 ? 256u + byte : byte <= 0xa0 ? 256u + 33 + (byte - 0x7fu) : 323u;
}

static int character_byte(uint32_t c)
{
    if (c < 256)
        return (int)c;
    return c <= 256 + 32 ? (int)(c - 256) : c < 323 ? (int)(c - 256 - 33 + 0x7f) : 0xad;
}

static bool is_letter(uint32_t c)
{
    return c < 0x80 ? (c | 32) >= 'a' && (c | 32) <= 'z'
                    : iswalpha((wint_t)c) != 0 && iswdigit((wint_t)c) == 0;
}

static bool is_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_blank(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x3000 ||
           (c >= 0x2000 && c <= 0x200a);
}

/* ---- words ----------------------------------------------------------------------------------- */

typedef bool class_fn(uint32_t c);

static bool is_other(uint32_t c)
{
    return !is_letter(c) && !is_digit(c) && !is_blank(c);
}

static size_t run_of(class_fn *in, const char *text, size_t left, size_t most)
{
    size_t at = 0, length;
    for (size_t n = 0; at < left && n < most && in(character(text + at, left - at, &length)); n++)
        at += length;
    return at;
}

/* 's, 't, 're, 've, 'm, 'll, 'd. */
static size_t contraction(const char *text, size_t left, bool any_case)
{
    static const char *const ends[] = {"re", "ve", "ll", "s", "t", "m", "d"};
    if (left < 2 || text[0] != '\'')
        return 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i]);
        size_t same = 0;
        while (same < n && 1 + same < left &&
               (any_case ? text[1 + same] | 32 : text[1 + same]) == ends[i][same])
            same++;
        if (same == n)
            return 1 + n;
    }
    return 0;
}

/* Blanks: up to a line's end where the rule has lines, else all but the last before a word (and
 * all of them before a digit that is cut off first). */
static size_t blanks(enum word_rule rule, const char *text, size_t left)
{
    const size_t run = run_of(is_blank, text, left, SIZE_MAX);
    const bool has_lines = rule == WORDS_QWEN || rule == WORDS_LLAMA3;
    if (rule == WORDS_DIGITS && run < left && is_digit((unsigned char)text[run]))
        return run;
    for (size_t at = run; has_lines && at > 0; at--)
        if (text[at - 1] == '\n' || text[at - 1] == '\r')
            return at;
    if (run == left || run == 1)
        return run;
    size_t last = run - 1;
    while (last > 0 && ((unsigned char)text[last] & 0xc0) == 0x80)
        last--;
    return last > 0 ? last : run;
}

/* The length of the next word. */
static size_t next_word(enum word_rule rule, const char *text, size_t left)
{
    const bool is_new = rule == WORDS_QWEN || rule == WORDS_LLAMA3;
    size_t first, word = contraction(text, left, is_new);
    const uint32_t c = character(text, left, &first);
    if (word > 0)
        return word;
    if (is_digit(c))
        return run_of(is_digit, text, left,
                      rule == WORDS_GPT2     ? SIZE_MAX
                      : rule == WORDS_LLAMA3 ? 3
                                             : 1);
    if (is_letter(c))
        return run_of(is_letter, text, left, SIZE_MAX);
    const bool leads = is_new ? c != '\r' && c != '\n' : c == ' ';
    const size_t letters = leads ? run_of(is_letter, text + first, left - first, SIZE_MAX) : 0;
    if (letters > 0)
        return first + letters;
    if (rule == WORDS_GPT2 && c == ' ' && left > 1 && is_digit((unsigned char)text[1]))
        return 1 + run_of(is_digit, text + 1, left - 1, SIZE_MAX);
    const size_t skip = c == ' ' ? first : 0;
    word = run_of(is_other, text + skip, left - skip, SIZE_MAX);
    if (word == 0)
        return blanks(rule, text, left);
    word += skip;
    while (is_new && word < left && (text[word] == '\r' || text[word] == '\n'))
        word++;
    return word;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Neighbouring stretches of a spelling. */
struct parts {
    const char *text;
    uint32_t *at, *length;
    int32_t n;
};

/* How much a merge of parts i and i + 1 is worth: less is better; 1e30: none. */
static double merge_cost(const struct tokenizer *t, const struct parts *p, int32_t i, char *pair,
                         size_t capacity)
{
    const size_t a = p->length[i], b = p->length[i + 1];
    if (t->kind == TOKENIZER_PIECES) {
        const int32_t id = table_get(t->ids, p->text + p->at[i], a + b);
        return id < 0 ? 1e30 : -(double)t->score[id];
    }
    if (a + b + 1 >= capacity)
        return 1e30;
    memcpy(pair, p->text + p->at[i], a);
    pair[a] = ' ';
    memcpy(pair + a + 1, p->text + p->at[i + 1], b);
    const int32_t rank = table_get(t->ranks, pair, a + b + 1);
    return rank < 0 ? 1e30 : (double)rank;
}

static void merge_all(const struct tokenizer *t, struct parts *p)
{
    enum { LONGEST = 512 };
    char pair[LONGEST];
    for (;;) {
        double best = 1e30;
        int32_t where = -1;
        for (int32_t i = 0; i + 1 < p->n; i++) {
            const double cost = merge_cost(t, p, i, pair, sizeof pair);
            if (cost < best) {
                best = cost;
                where = i;
            }
        }
        if (where < 0)
            return;
        p->length[where] += p->length[where + 1];
        p->n--;
        for (int32_t i = where + 1; i < p->n; i++) {
            p->at[i] = p->at[i + 1];
            p->length[i] = p->length[i + 1];
        }
    }
}

/* Tokens found so far. */
struct output {
    int32_t *id;
    int32_t n;
};

static void put_part(const struct tokenizer *t, const char *text, size_t length, struct output *out)
{
    const int32_t id = table_get(t->ids, text, length);
    if (id >= 0) {
        out->id[out->n++] = id;
        return;
    }
    for (size_t i = 0; i < length; i++) { /* <0x0A>: a byte of its own */
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)(unsigned char)text[i]);
        const int32_t byte = tokenizer_find(t, name);
        if (byte >= 0)
            out->id[out->n++] = byte;
    }
}

/* A spelling that no merge crosses. at: room for one number a byte, twice. */
static void encode_spelling(const struct tokenizer *t, const char *text, size_t length,
                            uint32_t *at, struct output *out)
{
    struct parts p = {text, at, at + length, 0};
    const int32_t whole = t->kind == TOKENIZER_BPE ? table_get(t->ids, text, length) : -1;
    if (whole >= 0) {
        out->id[out->n++] = whole;
        return;
    }
    for (size_t i = 0, n; i < length; i += n) {
        character(text + i, length - i, &n);
        p.at[p.n] = (uint32_t)i;
        p.length[p.n++] = (uint32_t)n;
    }
    merge_all(t, &p);
    for (int32_t i = 0; i < p.n; i++)
        put_part(t, text + p.at[i], p.length[i], out);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The spelling of text in the vocabulary's alphabet; at most three bytes for one. */
static size_t spell_bytes(const char *text, size_t length, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += put_character(byte_character((unsigned char)text[i]), out + n);
    return n;
}

static size_t spell_blanks(const char *text, size_t length, bool with_space, char *out)
{
    size_t n = with_space ? put_character(0x2581, out) : 0;
    for (size_t i = 0; i < length; i++)
        n += text[i] == ' ' ? put_character(0x2581, out + n) : (size_t)((out[n] = text[i]), 1);
    return n;
}

/* room: 3 (length + 1) bytes; at: twice as many numbers. */
static void encode_text(const struct tokenizer *t, const char *text, size_t length, bool is_first,
                        char *room, uint32_t *at, struct output *out)
{
    if (t->kind == TOKENIZER_PIECES) {
        const size_t n = spell_blanks(text, length, t->adds_space && is_first, room);
        encode_spelling(t, room, n, at, out);
        return;
    }
    for (size_t done = 0; done < length;) {
        const size_t word = next_word(t->words, text + done, length - done);
        const size_t n = spell_bytes(text + done, word, room);
        encode_spelling(t, room, n, at, out);
        done += word;
    }
}

/* The longest special token that begins here, or -1. */
static int32_t special_at(const struct tokenizer *t, const char *text, size_t *length)
{
    int32_t best = -1;
    *length = 0;
    for (int32_t i = 0; i < t->n_special; i++) {
        const char *token = t->token[t->special[i]];
        const size_t n = token[0] == text[0] ? strlen(token) : 0;
        if (n > *length && strncmp(text, token, n) == 0) {
            best = t->special[i];
            *length = n;
        }
    }
    return best;
}

int32_t *tokenizer_encode(const struct tokenizer *t, const char *text, bool with_bos,
                          bool with_special, int32_t *count)
{
    const size_t length = strlen(text), most = 3 * (length + 2);
    struct output out = {malloc(most * sizeof *out.id), 0};
    char *room = malloc(most);
    uint32_t *at = malloc(2 * most * sizeof *at);
    if (out.id != NULL && room != NULL && at != NULL) {
        if (with_bos && t->adds_bos && t->bos >= 0)
            out.id[out.n++] = t->bos;
        for (size_t begin = 0, end = 0; begin < length; begin = end) {
            size_t n = 0;
            int32_t id = -1;
            for (end = begin; end < length; end++) {
                id = with_special ? special_at(t, text + end, &n) : -1;
                if (id >= 0)
                    break;
            }
            if (end > begin)
                encode_text(t, text + begin, end - begin, begin == 0, room, at, &out);
            if (id >= 0) {
                out.id[out.n++] = id;
                end += n;
            }
        }
    } else {
        free(out.id);
        out.id = NULL;
    }
    free(room);
    free(at);
    *count = out.n;
    return out.id;
}

size_t tokenizer_decode(const struct tokenizer *t, int32_t id, char *bytes, size_t capacity)
{
    if (id < 0 || id >= t->count || t->is_special[id])
        return 0;
    const char *s = t->token[id];
    const size_t length = strlen(s);
    unsigned byte;
    size_t n = 0, step;
    if (t->kind == TOKENIZER_PIECES && sscanf(s, "<0x%02X>", &byte) == 1 && length == 6) {
        if (capacity > 0)
            bytes[n++] = (char)byte;
        return n;
    }
    for (size_t i = 0; i < length && n < capacity; i += step) {
        const uint32_t c = character(s + i, length - i, &step);
        if (t->kind == TOKENIZER_BPE) {
            bytes[n++] = (char)character_byte(c);
        } else if (c == 0x2581) {
            bytes[n++] = ' ';
        } else {
            for (size_t b = 0; b < step && n < capacity; b++)
                bytes[n++] = s[i + b];
        }
    }
    return n;
}
