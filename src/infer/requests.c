// Reads the requests of `evaluate`, has their continuations scored, and writes the answers.
#include "base/array.h"
#include "infer/score.h"
#include <stdlib.h>
#include <string.h>

// ---- reading ------------------------------------------------------------------------------------

typedef struct {
    Requests *requests;
    PairEncoder pairs;
} Parser;

static Status add_continuation(Parser *p, const Json *context, const Json *continuation) {
    if (continuation->type != JSON_STRING || !continuation->size)
        return fail(ERR_DATA, "%s: a continuation must be a text that is not empty", p->pairs.where);
    return pair_encoder_add(&p->pairs, context->string, context->size, continuation->string,
                            continuation->size);
}

static Status read_label(Parser *p, const Json *line, TextRequest *request) {
    const Json *label = json_member(line, "label");
    int64_t value = -1;
    if (label && (!json_int(label, &value) || value < 0 || value >= request->count))
        return fail(ERR_DATA, "%s: \"label\" must be a whole number from 0 to %d", p->pairs.where,
                    request->count - 1);
    request->label = (int)value;
    return OK;
}

static Status add_request(void *self, const Json *line, const char *where) {
    Parser *p = self;
    const Json *context = json_member(line, "context"), *one = json_member(line, "continuation"),
               *several = json_member(line, "continuations");
    p->pairs.where = where;
    if (!context || context->type != JSON_STRING)
        return fail(ERR_DATA, "%s: \"context\" is missing, or no text", where);
    if (!one == !several || (several && (several->type != JSON_ARRAY || !several->count)))
        return fail(ERR_DATA,
                    "%s: needs either \"continuation\", a text, or \"continuations\", a list of them", where);
    Requests *r = p->requests;
    array_grow(&r->items, sizeof *r->items, (size_t)r->count + 1, &r->capacity);
    TextRequest *request = &r->items[r->count++];
    *request = (TextRequest){
        .first = r->continuations.count, .count = one ? 1 : (int)several->count, .choices = several != NULL};
    TRY(read_label(p, line, request));
    for (int i = 0; i < request->count; i++)
        TRY(add_continuation(p, context, one ? one : &several->items[i]));
    r->continuations.questions++;
    return OK;
}

Status requests_parse(Requests *requests, const char *text, size_t size, const char *what,
                      const Tokenizer *tokenizer, int positions) {
    *requests = (Requests){0};
    Parser parser = {.requests = requests};
    TRY(pair_encoder_open(&parser.pairs, &requests->continuations, tokenizer, positions));
    Status status = json_lines_read(text, size, what, add_request, &parser);
    pair_encoder_close(&parser.pairs);
    TRY(status);
    return requests->count ? OK : fail(ERR_DATA, "%s: it contains no request", what);
}

void requests_free(Requests *r) {
    continuations_free(&r->continuations);
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

static double normalised(const Continuation *c, Normalised by) {
    int64_t length = by == PER_CHARACTER ? c->characters : by == PER_BYTE ? c->bytes - c->blank : 1;
    return c->log_likelihood / (double)(length ? length : 1);
}

int best_continuation(const Continuation *c, int count, Normalised by) {
    int first = 0;
    for (int i = 1; i < count; i++)
        if (normalised(&c[i], by) > normalised(&c[first], by)) first = i;
    return first;
}

static int best(const Requests *r, const TextRequest *request, Normalised by) {
    return best_continuation(r->continuations.items + request->first, request->count, by);
}

static void write_choices(const Requests *r, const TextRequest *request, Text *out) {
    text_add(out, "{\"continuations\": [");
    for (int i = 0; i < request->count; i++) {
        if (i) text_add(out, ", ");
        write_continuation(&r->continuations.items[request->first + i], out);
    }
    text_add(out, "], \"best\": %d, \"best_per_character\": %d", best(r, request, PER_CONTINUATION),
             best(r, request, PER_CHARACTER));
    if (request->label >= 0) text_add(out, ", \"label\": %d", request->label);
    text_add(out, "}");
}

void requests_write(const Requests *r, Text *out) {
    for (int i = 0; i < r->count; i++) {
        if (r->items[i].choices)
            write_choices(r, &r->items[i], out);
        else
            write_continuation(&r->continuations.items[r->items[i].first], out);
        text_add(out, "\n");
    }
}

Choices requests_choices(const Requests *r) {
    Choices choices = {0};
    for (int i = 0; i < r->count; i++) {
        const TextRequest *request = &r->items[i];
        if (request->label < 0) continue;
        choices.labelled++;
        choices.right += best(r, request, PER_CONTINUATION) == request->label;
        choices.right_by_length += best(r, request, PER_CHARACTER) == request->label;
    }
    return choices;
}
