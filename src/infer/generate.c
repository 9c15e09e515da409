// Generates text: feeds the model its own tokens and turns them into pieces of text until every sample has ended.
#include "infer/generate.h"
#include "base/rank.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    TextStream text;
    int32_t last; // token
    int new_tokens;
    bool ended;
} Sample;

typedef struct {
    const TokenModel *model;
    const GenerateSpec *spec;
    GenerateReport *report;
    Sample *samples; // [B]
    int living;
    int vocabulary;  // entries that the tokenizer knows
    int fed;         // tokens of each sequence that the model has been given
    int32_t *tokens; // [longest, B]
    float *logits;   // [B, vocabulary of the model]
    TokenLogit *scratch;
    Text piece; // the piece of text for the callback
} Generation;

// ---- tokens to text -----------------------------------------------------------------------------

static void hand_over(Generation *g, int b) {
    const GenerateSpec *spec = g->spec;
    if (spec->give && g->piece.size) spec->give(spec->self, b, g->piece.data, g->piece.size);
    text_free(&g->piece);
}

static void end_sample(Generation *g, int b, Ending why) {
    g->samples[b].ended = true;
    g->living--;
    g->report->num_endings[why]++;
    text_stream_finish(&g->samples[b].text, &g->piece);
    hand_over(g, b);
}

// The byte of a token of SentencePiece such as "<0x0A>"; -1: it is another token.
static int byte_of(const Tokenizer *tokenizer, int32_t token) {
    if (tokenizer_kind(tokenizer) != TOKENIZER_SENTENCEPIECE) return -1;
    if (tokenizer_token_type(tokenizer, token) != TOKEN_BYTE) return -1;
    return (int)strtol(tokenizer_spelling(tokenizer, token) + 1, NULL, 16);
}

// The text of a token may depend on the token before it: some tokenizers put blanks between words.
static Status token_text(const Tokenizer *tokenizer, int32_t last, int32_t token, Text *out) {
    int byte = byte_of(tokenizer, token);
    if (byte >= 0) {
        text_add_bytes(out, &(unsigned char){(unsigned char)byte}, 1);
        return OK;
    }
    int32_t pair[2] = {last, token};
    Text before = {0}, both = {0};
    Status status = tokenizer_decode(tokenizer, pair, 1, &before);
    if (status == OK) status = tokenizer_decode(tokenizer, pair, 2, &both);
    if (both.size > before.size) text_add_bytes(out, both.data + before.size, both.size - before.size);
    text_free(&before);
    text_free(&both);
    return status;
}

// NaN can be neither compared nor drawn from.
static Status check_logits(const Generation *g, const float *logits) {
    for (int i = 0; i < g->vocabulary; i++)
        if (!isfinite(logits[i]))
            return fail(
                ERR_NUMERIC,
                "the logit of token %d is %g after %d tokens: the weights are damaged, or too large for the "
                "precision (try without --fp16)",
                i, (double)logits[i], g->fed);
    return OK;
}

static bool is_end(const GenerateSpec *spec, int32_t token) {
    for (size_t i = 0; i < spec->num_ends; i++)
        if (spec->ends[i] == token) return true;
    return false;
}

static Status take_token(Generation *g, int b) {
    Sample *sample = &g->samples[b];
    const float *logits = g->logits + (size_t)b * (size_t)g->model->vocabulary;
    TRY(check_logits(g, logits));
    int32_t token = sample_token(logits, g->vocabulary, &g->spec->sampling, b, g->fed, g->scratch);
    sample->new_tokens++;
    g->report->new_tokens++;
    if (is_end(g->spec, token)) {
        end_sample(g, b, END_TOKEN);
        return OK;
    }
    Text bytes = {0};
    TRY(token_text(g->spec->tokenizer, sample->last, token, &bytes));
    bool stop = text_stream_add(&sample->text, text_string(&bytes), bytes.size, &g->piece);
    text_free(&bytes);
    sample->last = token;
    if (stop)
        end_sample(g, b, END_STOP);
    else if (sample->new_tokens == g->spec->samples[b].max_new_tokens)
        end_sample(g, b, END_COUNT);
    else
        hand_over(g, b);
    return OK;
}

// ---- the loop -----------------------------------------------------------------------------------

static void end_all(Generation *g, Ending why) {
    for (int b = 0; b < g->model->batch; b++)
        if (!g->samples[b].ended) end_sample(g, b, why);
}

// Gives the model `tokens`. Returns false when a signal came first.
static bool feed(Generation *g, int n) {
    if (g->model->stopped(g->model->self)) {
        end_all(g, END_SIGNAL);
        return false;
    }
    g->model->next(g->model->self, g->fed, g->tokens, n, g->logits);
    g->fed += n;
    return true;
}

// The first tokens of the prompts, as many as the shortest one has.
static bool feed_prompts(Generation *g) {
    int batch = g->model->batch, shortest = g->spec->samples[0].prompt_tokens, n;
    for (int b = 1; b < batch; b++)
        if (g->spec->samples[b].prompt_tokens < shortest) shortest = g->spec->samples[b].prompt_tokens;
    g->fed = g->spec->known_tokens;
    for (int done = g->fed; done < shortest; done += n) {
        n = shortest - done < g->model->longest ? shortest - done : g->model->longest;
        for (int i = 0; i < n * batch; i++)
            g->tokens[i] = g->spec->samples[i % batch].prompt[done + i / batch];
        if (!feed(g, n)) return false;
    }
    return true;
}

static bool in_prompt(const Generation *g, int b) { return g->fed < g->spec->samples[b].prompt_tokens; }

static bool feed_tokens(Generation *g) {
    if (g->fed == g->model->capacity) {
        end_all(g, END_CAPACITY);
        return false;
    }
    for (int b = 0; b < g->model->batch; b++)
        g->tokens[b] = in_prompt(g, b) ? g->spec->samples[b].prompt[g->fed] : g->samples[b].last;
    return feed(g, 1);
}

static Status run(Generation *g) {
    double start = clock_s();
    bool more = feed_prompts(g);
    g->report->prompt_s = clock_s() - start;
    while (more) {
        for (int b = 0; b < g->model->batch; b++)
            if (!g->samples[b].ended && !in_prompt(g, b)) TRY(take_token(g, b));
        more = g->living > 0 && feed_tokens(g);
    }
    g->report->new_s = clock_s() - start - g->report->prompt_s;
    return OK;
}

static Status open_generation(Generation *g, const TokenModel *model, const GenerateSpec *spec) {
    size_t batch = (size_t)model->batch, vocabulary = (size_t)model->vocabulary;
    int known = tokenizer_vocab_size(spec->tokenizer);
    g->vocabulary = known < model->vocabulary ? known : model->vocabulary;
    g->living = model->batch;
    g->samples = calloc(batch, sizeof *g->samples);
    g->tokens = malloc((size_t)model->longest * batch * sizeof *g->tokens);
    g->logits = malloc(batch * vocabulary * sizeof *g->logits);
    g->scratch = malloc(vocabulary * sizeof *g->scratch);
    if (!g->samples || !g->tokens || !g->logits || !g->scratch)
        return fail(ERR_OS, "no memory for the logits of %d samples", model->batch);
    for (int b = 0; b < model->batch; b++) {
        const SampleSpec *sample = &spec->samples[b];
        g->samples[b] = (Sample){.text = {.stops = sample->stops, .num_stops = sample->num_stops},
                                 .last = sample->prompt[sample->prompt_tokens - 1]};
    }
    return OK;
}

static void close_generation(Generation *g) {
    for (int b = 0; g->samples && b < g->model->batch; b++) text_stream_free(&g->samples[b].text);
    free(g->samples);
    free(g->tokens);
    free(g->logits);
    free(g->scratch);
    text_free(&g->piece);
}

Status token_model_generate(const TokenModel *model, const GenerateSpec *spec, GenerateReport *report) {
    for (int b = 0; b < model->batch; b++) {
        const SampleSpec *s = &spec->samples[b];
        CHECK(s->prompt_tokens > spec->known_tokens && s->prompt_tokens <= model->capacity &&
                  s->max_new_tokens > 0,
              "a prompt of %d tokens, %d new ones, capacity %d", s->prompt_tokens, s->max_new_tokens,
              model->capacity);
    }
    *report = (GenerateReport){0};
    Generation g = {.model = model, .spec = spec, .report = report};
    Status status = open_generation(&g, model, spec);
    if (status == OK) status = run(&g);
    close_generation(&g);
    return status;
}

Status prompt_encode(const Tokenizer *tokenizer, const char *text, size_t size, bool adds_bos,
                     TokenList *out) {
    int32_t begin = -1, start = text_start(tokenizer);
    TokenList tokens = {0};
    if (adds_bos) TRY(text_beginning(tokenizer, &begin));
    Status status = tokenizer_encode(tokenizer, text, size, &tokens);
    if (status == OK) text_add_tokens(begin, &tokens, out);
    token_list_free(&tokens);
    TRY(status);
    if (out->count) return OK;
    if (start < 0)
        return fail(ERR_CONFIG,
                    "--prompt is empty, and the tokenizer has no token that starts or ends a text");
    token_list_add(out, &start, 1);
    return OK;
}
