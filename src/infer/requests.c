// Reads the requests of `evaluate`, has their continuations scored, and writes the answers.
#include "infer/score.h"
#include <stdlib.h>
#include <string.h>

// ---- reading ------------------------------------------------------------------------------------

typedef struct {
    Requests *requests;
    Encoder *encoder;
    const Tokenizer *tokenizer;
    int positions;
    char where[512]; // file and line
} Parser;

// Makes room for one more item; the capacity doubles.
static void *grown(void *items, int count, size_t size) {
    if (count & (count - 1)) return items;
    void *more = realloc(items, (count ? 2 * (size_t)count : 1) * size);
    CHECK(more, "no memory for %d requests", count);
    return more;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }

// Counts Unicode characters, without one blank at the start, which only joins the text to its context.
static int64_t count_characters(const Json *text) {
    int64_t characters = 0;
    for (size_t i = text->size && text->string[0] == ' '; i < text->size; i++)
        characters += (text->string[i] & 0xc0) != 0x80;
    return characters;
}

// Takes the tokens of the context alone, and then those of the whole text after as many tokens.
static Status encode_pair(Parser *p, const Json *context, const Json *continuation, Continuation *out) {
    size_t alone = context->size;
    while (alone > 0 && is_blank(context->string[alone - 1])) alone--;
    Text whole = {0};
    text_add_bytes(&whole, context->string, context->size);
    text_add_bytes(&whole, continuation->string, continuation->size);
    TokenList all = {0};
    Status status = encoder_encode(p->encoder, context->string, alone, &out->tokens);
    if (status == OK) status = encoder_encode(p->encoder, text_string(&whole), whole.size, &all);
    if (status == OK && all.count > out->tokens.count) {
        out->scored = (int)(all.count - out->tokens.count);
        token_list_add(&out->tokens, all.ids + out->tokens.count, (size_t)out->scored);
    }
    token_list_free(&all);
    text_free(&whole);
    return status;
}

// The first token can only be predicted from the token that starts a text.
static Status start_text(Parser *p, Continuation *out) {
    int32_t start = text_start(p->tokenizer);
    if ((size_t)out->scored < out->tokens.count) return OK;
    if (start < 0)
        return fail(ERR_DATA, "%s: the context is empty, and the tokenizer has no token that starts a text",
                    p->where);
    TokenList tokens = {0};
    token_list_add(&tokens, &start, 1);
    token_list_add(&tokens, out->tokens.ids, out->tokens.count);
    token_list_free(&out->tokens);
    out->tokens = tokens;
    return OK;
}

// The last token is predicted but not seen, so positions + 1 tokens fit.
static Status cut_left(Parser *p, Continuation *out) {
    size_t most = (size_t)p->positions + 1, count = out->tokens.count;
    if (out->scored > p->positions)
        return fail(ERR_DATA, "%s: the continuation has %d tokens, but the model sees %d at once", p->where,
                    out->scored, p->positions);
    if (count > most) {
        memmove(out->tokens.ids, out->tokens.ids + (count - most), most * sizeof *out->tokens.ids);
        out->tokens.count = most;
        out->cut = true;
        p->requests->num_cut++;
    }
    if ((int)out->tokens.count - 1 > p->requests->longest) p->requests->longest = (int)out->tokens.count - 1;
    return OK;
}

static Status add_continuation(Parser *p, const Json *context, const Json *continuation) {
    Requests *r = p->requests;
    if (continuation->type != JSON_STRING || !continuation->size)
        return fail(ERR_DATA, "%s: a continuation must be a text that is not empty", p->where);
    r->continuations = grown(r->continuations, r->num_continuations, sizeof *r->continuations);
    Continuation *out = &r->continuations[r->num_continuations++];
    *out = (Continuation){.bytes = (int64_t)continuation->size, .characters = count_characters(continuation)};
    TRY(encode_pair(p, context, continuation, out));
    TRY(start_text(p, out));
    return cut_left(p, out);
}

static Status read_label(Parser *p, const Json *line, TextRequest *request) {
    const Json *label = json_member(line, "label");
    int64_t value = -1;
    if (label && (!json_int(label, &value) || value < 0 || value >= request->count))
        return fail(ERR_DATA, "%s: \"label\" must be a whole number from 0 to %d", p->where,
                    request->count - 1);
    request->label = (int)value;
    return OK;
}

static Status add_request(Parser *p, const Json *line) {
    const Json *context = json_member(line, "context"), *one = json_member(line, "continuation"),
               *several = json_member(line, "continuations");
    if (!context || context->type != JSON_STRING)
        return fail(ERR_DATA, "%s: \"context\" is missing, or no text", p->where);
    if (!one == !several || (several && (several->type != JSON_ARRAY || !several->count)))
        return fail(ERR_DATA,
                    "%s: needs either \"continuation\", a text, or \"continuations\", a list of them",
                    p->where);
    Requests *r = p->requests;
    r->items = grown(r->items, r->count, sizeof *r->items);
    TextRequest *request = &r->items[r->count++];
    *request = (TextRequest){
        .first = r->num_continuations, .count = one ? 1 : (int)several->count, .choices = several != NULL};
    TRY(read_label(p, line, request));
    for (int i = 0; i < request->count; i++)
        TRY(add_continuation(p, context, one ? one : &several->items[i]));
    return OK;
}

static Status add_line(Parser *p, const char *line, size_t size) {
    while (size > 0 && is_blank(line[size - 1])) size--;
    if (!size) return OK;
    Json *root;
    TRY(json_parse(&root, line, size, p->where));
    Status status = add_request(p, root);
    json_free(root);
    return status;
}

static Status add_lines(Parser *p, const char *text, size_t size, const char *what) {
    const char *end = text + size;
    for (int64_t number = 1; text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *line_end = newline ? newline : end;
        snprintf(p->where, sizeof p->where, "%s, line %lld", what, (long long)number);
        TRY(add_line(p, text, (size_t)(line_end - text)));
        text = line_end + 1;
    }
    return p->requests->count ? OK : fail(ERR_DATA, "%s: it contains no request", what);
}

Status requests_parse(Requests *requests, const char *text, size_t size, const char *what,
                      const Tokenizer *tokenizer, int positions) {
    *requests = (Requests){0};
    Parser parser = {.requests = requests, .tokenizer = tokenizer, .positions = positions};
    TRY(encoder_open(&parser.encoder, tokenizer));
    Status status = add_lines(&parser, text, size, what);
    encoder_close(parser.encoder);
    return status;
}

void requests_free(Requests *r) {
    for (int i = 0; i < r->num_continuations; i++) token_list_free(&r->continuations[i].tokens);
    free(r->continuations);
    free(r->items);
    *r = (Requests){0};
}

// ---- answers ------------------------------------------------------------------------------------

static void write_continuation(const Continuation *c, Text *out) {
    text_add(out, "{\"log_likelihood\": ");
    json_add_double(out, c->log_likelihood);
    text_add(out, ", \"num_tokens\": %d, \"num_bytes\": %lld, \"is_greedy\": %s%s}", c->scored,
             (long long)c->bytes, c->greedy ? "true" : "false", c->cut ? ", \"truncated\": true" : "");
}

static double per_character(const Continuation *c) {
    return c->log_likelihood / (double)(c->characters ? c->characters : 1);
}

static double log_likelihood(const Continuation *c) { return c->log_likelihood; }

// The first of equally good ones.
static int best(const Requests *r, const TextRequest *request, double (*value)(const Continuation *)) {
    const Continuation *c = r->continuations + request->first;
    int first = 0;
    for (int i = 1; i < request->count; i++)
        if (value(&c[i]) > value(&c[first])) first = i;
    return first;
}

static void write_choices(const Requests *r, const TextRequest *request, Text *out) {
    text_add(out, "{\"continuations\": [");
    for (int i = 0; i < request->count; i++) {
        if (i) text_add(out, ", ");
        write_continuation(&r->continuations[request->first + i], out);
    }
    text_add(out, "], \"best\": %d, \"best_per_character\": %d", best(r, request, log_likelihood),
             best(r, request, per_character));
    if (request->label >= 0) text_add(out, ", \"label\": %d", request->label);
    text_add(out, "}");
}

void requests_write(const Requests *r, Text *out) {
    for (int i = 0; i < r->count; i++) {
        if (r->items[i].choices)
            write_choices(r, &r->items[i], out);
        else
            write_continuation(&r->continuations[r->items[i].first], out);
        text_add(out, "\n");
    }
}

Choices requests_choices(const Requests *r) {
    Choices choices = {0};
    for (int i = 0; i < r->count; i++) {
        const TextRequest *request = &r->items[i];
        if (request->label < 0) continue;
        choices.labelled++;
        choices.right += best(r, request, log_likelihood) == request->label;
        choices.right_by_length += best(r, request, per_character) == request->label;
    }
    return choices;
}
