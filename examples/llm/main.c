/* SPDX-License-Identifier: Apache-2.0 */
/* llm: text from a language model, by quern.
 *
 *     llm MODEL -p "The capital of France is"          prompt in, text out, tokens a second
 *     llm MODEL --chat -p "What is a prime number?"    as a turn of a conversation (ChatML)
 *     llm MODEL --perplexity FILE                      how well the model predicts a text
 *     mpirun -np 2 llm --ranks MODEL -p TEXT           the model over two processes
 *
 * MODEL is a GGUF file or a Hugging Face folder, in any weight format that quern reads. */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model.h"
#include "ranks.h"

struct command {
    const char *model, *prompt, *strategy, *quantize, *perplexity;
    int32_t tokens, longest, block, threads, top_k;
    float temperature, top_p;
    uint64_t seed;
    bool is_chat, is_quiet, prints_ids, tokenizes, has_ranks;
};

static const char usage[] =
    "usage: llm MODEL [-p TEXT] [options]\n"
    "  -p TEXT             prompt\n"
    "  --chat              the prompt is a turn of a conversation (ChatML models)\n"
    "  -n N                tokens to make at most (128)\n"
    "  --context N         tokens of prompt and answer together (2048)\n"
    "  --block N           tokens of a prompt that are computed at once (256)\n"
    "  --strategy WORD     float, int8-row, int8-block (default)\n"
    "  --quantize FORMAT   for weights that are not quantized in the file (int8:g32)\n"
    "  --temperature X     0 (default): the likeliest token; else sample\n"
    "  --top-k N, --top-p X, --seed N\n"
    "  --perplexity FILE   of a text, instead of making any\n"
    "  -t N                threads (all)\n"
    "  --ranks             the processes of mpirun share the model\n"
    "  --ids               the numbers of the tokens instead of text\n"
    "  --tokenize          the numbers of the prompt's tokens, and nothing else\n"
    "  --quiet             the text alone\n";

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- options --------------------------------------------------------------------------------- */

static bool number(const char *text, double lo, double hi, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == 0 && *value >= lo && *value <= hi;
}

static bool take_option(struct command *c, const char *name, const char *value)
{
    const struct {
        const char *name;
        const char **text;
        int32_t *whole;
        float *real;
        double lo, hi;
    } options[] = {
        {"-p", &c->prompt, NULL, NULL, 0, 0},
        {"--strategy", &c->strategy, NULL, NULL, 0, 0},
        {"--quantize", &c->quantize, NULL, NULL, 0, 0},
        {"--perplexity", &c->perplexity, NULL, NULL, 0, 0},
        {"-n", NULL, &c->tokens, NULL, 0, 1e6},
        {"--context", NULL, &c->longest, NULL, 2, 1e6},
        {"--block", NULL, &c->block, NULL, 1, 4096},
        {"-t", NULL, &c->threads, NULL, 1, 1024},
        {"--top-k", NULL, &c->top_k, NULL, 0, 1e6},
        {"--temperature", NULL, NULL, &c->temperature, 0, 100},
        {"--top-p", NULL, NULL, &c->top_p, 0, 1},
    };
    double v;
    if (strcmp(name, "--seed") == 0 && number(value, 0, 1e15, &v)) {
        c->seed = (uint64_t)v;
        return true;
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (strcmp(name, options[i].name) != 0)
            continue;
        if (options[i].text != NULL)
            *options[i].text = value;
        else if (!number(value, options[i].lo, options[i].hi, &v))
            break;
        else if (options[i].whole != NULL)
            *options[i].whole = (int32_t)v;
        else
            *options[i].real = (float)v;
        return true;
    }
    fprintf(stderr, "llm: %s %s is not understood\n%s", name, value, usage);
    return false;
}

static bool read_command(int argc, char **argv, struct command *c)
{
    *c = (struct command){.strategy = "int8-block",
                          .quantize = "int8:g32",
                          .tokens = 128,
                          .longest = 2048,
                          .block = 256,
                          .top_k = 40,
                          .top_p = 0.95f,
                          .seed = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--chat") == 0) {
            c->is_chat = true;
        } else if (strcmp(argv[i], "--ids") == 0) {
            c->prints_ids = true;
        } else if (strcmp(argv[i], "--tokenize") == 0) {
            c->tokenizes = true;
        } else if (strcmp(argv[i], "--ranks") == 0) {
            c->has_ranks = true;
        } else if (strcmp(argv[i], "--quiet") == 0) {
            c->is_quiet = true;
        } else if (argv[i][0] == '-') {
            if (i + 1 == argc || !take_option(c, argv[i], argv[i + 1]))
                return i + 1 == argc ? (fputs(usage, stderr), false) : false;
            i++;
        } else {
            c->model = argv[i];
        }
    }
    if (c->model == NULL || (c->prompt == NULL && c->perplexity == NULL))
        return fputs(usage, stderr), false;
    return true;
}

/* ---- sampling -------------------------------------------------------------------------------- */

struct choice {
    float p;
    int32_t id;
};

static int by_falling_p(const void *a, const void *b)
{
    const float x = ((const struct choice *)a)->p, y = ((const struct choice *)b)->p;
    return (x < y) - (x > y);
}

static int32_t likeliest(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* room: one choice a token. */
static int32_t sample(const struct command *c, const float *logits, int32_t n, struct choice *room,
                      uint64_t *state)
{
    if (c->temperature <= 0.0f)
        return likeliest(logits, n);
    const float most = logits[likeliest(logits, n)];
    for (int32_t i = 0; i < n; i++)
        room[i] = (struct choice){expf((logits[i] - most) / c->temperature), i};
    qsort(room, (size_t)n, sizeof *room, by_falling_p);
    const int32_t limit = c->top_k > 0 && c->top_k < n ? c->top_k : n;
    double all = 0.0, kept = 0.0;
    int32_t count = 0;
    for (int32_t i = 0; i < limit; i++)
        all += (double)room[i].p;
    while (count < limit && (count == 0 || kept < (double)c->top_p * all))
        kept += (double)room[count++].p;
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    double at = (double)(*state >> 11) * 0x1p-53 * kept;
    for (int32_t i = 0; i + 1 < count; i++) {
        at -= (double)room[i].p;
        if (at < 0.0)
            return room[i].id;
    }
    return room[count - 1].id;
}

/* ---- text ------------------------------------------------------------------------------------ */

static char *prompt_of(const struct command *c, const struct tokenizer *t)
{
    const bool can_chat = tokenizer_find(t, "<|im_start|>") >= 0;
    if (c->is_chat && !can_chat)
        fprintf(stderr, "llm: the model has no <|im_start|>, so --chat is left out\n");
    const char *before = c->is_chat && can_chat ? "<|im_start|>user\n" : "";
    const char *after = c->is_chat && can_chat ? "<|im_end|>\n<|im_start|>assistant\n" : "";
    const size_t bytes = strlen(before) + strlen(c->prompt) + strlen(after) + 1;
    char *text = malloc(bytes);
    if (text != NULL)
        snprintf(text, bytes, "%s%s%s", before, c->prompt, after);
    return text;
}

static bool generate(const struct command *c, struct session *s, const struct model *model,
                     const int32_t *tokens, int32_t n)
{
    const struct tokenizer *t = model->tokenizer;
    struct choice *room = malloc((size_t)model->config.vocabulary * sizeof *room);
    uint64_t state = c->seed * 2 + 1;
    const double start = now();
    const float *logits = room == NULL ? NULL : session_feed(s, tokens, n);
    const double prompt_seconds = now() - start;
    int32_t made = 0;
    if (!c->is_quiet && !c->prints_ids)
        fputs(c->prompt, stdout);
    while (logits != NULL && made < c->tokens && session_length(s) < c->longest) {
        char bytes[512];
        const int32_t id = sample(c, logits, model->config.vocabulary, room, &state);
        if (id == t->eos || id == t->end_of_turn)
            break;
        if (c->prints_ids)
            printf("%d ", id);
        else
            fwrite(bytes, 1, tokenizer_decode(t, id, bytes, sizeof bytes), stdout);
        fflush(stdout);
        made++;
        logits = session_feed(s, &id, 1);
    }
    const double seconds = now() - start - prompt_seconds;
    putchar('\n');
    free(room);
    if (!c->is_quiet)
        fprintf(stderr, "prompt: %d tokens, %.1f a second; text: %d tokens, %.1f a second\n", n,
                n / prompt_seconds, made, made / (seconds > 0 ? seconds : 1));
    return logits != NULL;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long size = 0;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 &&
        fseek(f, 0, SEEK_SET) == 0)
        text = calloc(1, (size_t)size + 1);
    if (text == NULL || fread(text, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "llm: %s: %s\n", path, strerror(errno));
        free(text);
        text = NULL;
    }
    if (f != NULL)
        fclose(f);
    return text;
}

/* The text in stretches of the context's length, each from an empty cache. */
static bool perplexity(const struct command *c, struct model *model,
                       const struct session_options *options)
{
    const int32_t vocabulary = model->config.vocabulary;
    char *text = read_file(c->perplexity);
    int32_t n = 0, scored = 0;
    int32_t *tokens =
        text == NULL ? NULL : tokenizer_encode(model->tokenizer, text, true, false, &n);
    float *logits = malloc((size_t)options->longest * (size_t)vocabulary * sizeof *logits);
    double sum = 0.0;
    bool is_good = tokens != NULL && logits != NULL;
    for (int32_t at = 0; is_good && at + 1 < n; at += options->longest) {
        const int32_t m = n - at < options->longest ? n - at : options->longest;
        struct session *s = session_create(model, options);
        is_good = s != NULL && session_feed_all(s, tokens + at, m, logits);
        for (int32_t i = 0; is_good && i + 1 < m; i++) {
            const float *row = logits + (size_t)i * (size_t)vocabulary;
            const float most = row[likeliest(row, vocabulary)];
            double all = 0.0;
            for (int32_t v = 0; v < vocabulary; v++)
                all += exp((double)(row[v] - most));
            sum += log(all) - (double)(row[tokens[at + i + 1]] - most);
            scored++;
        }
        session_destroy(s);
    }
    if (is_good)
        printf("perplexity %.4f over %d tokens\n", exp(sum / (scored > 0 ? scored : 1)), scored);
    free(logits);
    free(tokens);
    free(text);
    return is_good;
}

static bool run(const struct command *c, struct model *model)
{
    struct session_options options = {.longest = c->longest, .block = c->block};
    qn_error err = {QN_OK, -1, ""};
    int32_t n = 0;
    if (qn_strategy_parse(c->strategy, &options.strategy, &err) != QN_OK)
        return fprintf(stderr, "llm: %s\n", err.text), false;
    if (c->longest > model->config.longest)
        fprintf(stderr, "llm: the model was trained for %d tokens, not %d\n", model->config.longest,
                c->longest);
    if (c->perplexity != NULL)
        return perplexity(c, model, &options);
    char *text = prompt_of(c, model->tokenizer);
    int32_t *tokens =
        text == NULL ? NULL : tokenizer_encode(model->tokenizer, text, true, true, &n);
    for (int32_t i = 0; c->tokenizes && i < n; i++)
        printf("%d ", tokens[i]);
    struct session *s = n > 0 && !c->tokenizes ? session_create(model, &options) : NULL;
    const bool is_good = c->tokenizes || (s != NULL && generate(c, s, model, tokens, n));
    session_destroy(s);
    free(tokens);
    free(text);
    return is_good;
}

int main(int argc, char **argv)
{
    struct command c;
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_comm comm;
    qn_error err = {QN_OK, -1, ""};
    setlocale(LC_CTYPE, "C.UTF-8"); /* iswalpha() of letters beyond ASCII */
    if (!read_command(argc, argv, &c))
        return 2;
    if (c.has_ranks && !ranks_open(&comm))
        return 1;
    c.is_quiet |= c.has_ranks && comm.rank > 0; /* what all would say, the first one says */
    qn_ctx_options_init(&options);
    options.n_threads = c.threads;
    struct model *model = NULL;
    const struct load_options how = {
        .quantize = c.quantize, .comm = c.has_ranks ? &comm : NULL, .is_quiet = c.is_quiet};
    if (qn_ctx_create(&options, &ctx, &err) != QN_OK)
        fprintf(stderr, "llm: %s\n", err.text);
    else
        model = load_model(ctx, c.model, &how);
    const bool has_model = c.has_ranks ? ranks_agree(&comm, model != NULL) : model != NULL;
    const bool is_good = has_model && run(&c, model);
    free_model(model);
    qn_ctx_destroy(ctx);
    if (c.has_ranks)
        ranks_close(has_model && !is_good);
    return is_good ? 0 : 1;
}
