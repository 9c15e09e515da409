// Encodes texts as continuations of contexts: pairs of texts, whole texts in windows, prompts.
#include "base/array.h"
#include "infer/score.h"
#include <string.h>

bool is_python_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }

Status pair_encoder_open(PairEncoder *p, Continuations *out, const Tokenizer *tokenizer, int positions) {
    *p = (PairEncoder){.out = out, .tokenizer = tokenizer, .positions = positions, .where = ""};
    TRY(text_beginning(tokenizer, &p->begin));
    return encoder_open(&p->encoder, tokenizer);
}

void pair_encoder_close(PairEncoder *p) { encoder_close(p->encoder); }

// Appends the tokens of a text. `whole`: with the beginning of text.
static Status encode(PairEncoder *p, const char *text, size_t bytes, bool whole, TokenList *out) {
    TokenList tokens = {0};
    Status status = encoder_encode(p->encoder, text, bytes, &tokens);
    if (status == OK) text_add_tokens(whole ? p->begin : -1, &tokens, out);
    token_list_free(&tokens);
    if (status == OK || !*p->where) return status;
    char why[500];
    snprintf(why, sizeof why, "%s", fail_message());
    return fail(status, "%s: %s", p->where, why);
}

Status pair_encoder_prompt(PairEncoder *p, const char *text, size_t bytes, TokenList *out) {
    int32_t start = text_start(p->tokenizer);
    TRY(encode(p, text, bytes, true, out));
    if (out->count) return OK;
    if (start < 0)
        return fail(ERR_DATA, "%s: the prompt is empty, and the tokenizer has no token that starts a text",
                    p->where);
    token_list_add(out, &start, 1);
    return OK;
}

// Counts Unicode characters.
static int64_t count_characters(const char *text, size_t bytes) {
    int64_t characters = 0;
    for (size_t i = 0; i < bytes; i++) characters += (text[i] & 0xc0) != 0x80;
    return characters;
}

// Takes the tokens of the context alone, and then those of the whole text after as many tokens.
static Status encode_pair(PairEncoder *p, const char *context, size_t context_bytes, const char *continuation,
                          size_t bytes, Continuation *out) {
    size_t alone = context_bytes;
    while (alone > 0 && is_python_blank(context[alone - 1])) alone--;
    Text whole = {0};
    text_add_bytes(&whole, context, context_bytes);
    text_add_bytes(&whole, continuation, bytes);
    TokenList all = {0};
    // Without a context the token that starts a text is put there later.
    Status status = encode(p, context, alone, alone > 0, &out->tokens);
    if (status == OK) status = encode(p, text_string(&whole), whole.size, alone > 0, &all);
    if (status == OK && all.count > out->tokens.count) {
        out->scored = (int)(all.count - out->tokens.count);
        token_list_add(&out->tokens, all.ids + out->tokens.count, (size_t)out->scored);
    }
    token_list_free(&all);
    text_free(&whole);
    return status;
}

// The first token can only be predicted from the token that starts a text.
static Status start_text(PairEncoder *p, Continuation *out) {
    int32_t start = text_start(p->tokenizer);
    if ((size_t)out->scored < out->tokens.count) return OK;
    if (start < 0)
        return fail(ERR_DATA, "%s: the context is empty, and the tokenizer has no token that starts a text",
                    p->where);
    if (out->scored && out->tokens.ids[0] == start) {
        out->scored--;
        return OK;
    }
    TokenList tokens = {0};
    token_list_add(&tokens, &start, 1);
    token_list_add(&tokens, out->tokens.ids, out->tokens.count);
    token_list_free(&out->tokens);
    out->tokens = tokens;
    return OK;
}

// The last token is predicted but not seen, so positions + 1 tokens fit.
static Status cut_left(PairEncoder *p, Continuation *out) {
    size_t most = (size_t)p->positions + 1, count = out->tokens.count;
    if (out->scored > p->positions)
        return fail(ERR_DATA, "%s: the continuation has %d tokens, but the model sees %d at once", p->where,
                    out->scored, p->positions);
    if (count > most) {
        memmove(out->tokens.ids, out->tokens.ids + (count - most), most * sizeof *out->tokens.ids);
        out->tokens.count = most;
        out->cut = true;
        p->out->num_cut++;
    }
    if ((int)out->tokens.count - 1 > p->out->longest) p->out->longest = (int)out->tokens.count - 1;
    return OK;
}

static Continuation *add_item(Continuations *c) {
    array_grow(&c->items, sizeof *c->items, (size_t)c->count + 1, &c->capacity);
    Continuation *out = &c->items[c->count++];
    *out = (Continuation){.question = c->questions};
    return out;
}

Status pair_encoder_add(PairEncoder *p, const char *context, size_t context_bytes, const char *continuation,
                        size_t bytes) {
    Continuation *out = add_item(p->out);
    out->blank = bytes && continuation[0] == ' ';
    out->bytes = (int64_t)bytes;
    out->characters = count_characters(continuation, bytes) - out->blank;
    TRY(encode_pair(p, context, context_bytes, continuation, bytes, out));
    TRY(start_text(p, out));
    return cut_left(p, out);
}

// Adds the window that predicts tokens [first, end) and sees as many tokens as the model can, but for the last.
static void add_window(PairEncoder *p, const int32_t *tokens, size_t first, size_t end) {
    size_t most = (size_t)p->positions, seen = end - 1 < most ? end - 1 : most;
    Continuation *out = add_item(p->out);
    p->out->questions++;
    out->scored = (int)(end - first);
    token_list_add(&out->tokens, tokens + (end - seen - 1), seen + 1);
    if ((int)seen > p->out->longest) p->out->longest = (int)seen;
}

Status pair_encoder_add_text(PairEncoder *p, const char *text, size_t bytes) {
    int32_t start = text_start(p->tokenizer);
    if (start < 0)
        return fail(ERR_DATA, "%s: the tokenizer has no token that starts a text, which predicts the first",
                    p->where);
    TokenList tokens = {0};
    token_list_add(&tokens, &start, 1);
    Status status = encode(p, text, bytes, true, &tokens);
    for (size_t first = 1, end; status == OK && first < tokens.count; first = end) {
        end = first + (size_t)p->positions;
        if (end > tokens.count) end = tokens.count;
        add_window(p, tokens.ids, first, end);
    }
    token_list_free(&tokens);
    return status;
}

Status json_lines_read(const char *text, size_t size, const char *what,
                       Status (*take)(void *self, const Json *line, const char *where), void *self) {
    const char *end = text + size;
    char where[600];
    for (long long number = 1; text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text)), *next = newline ? newline + 1 : end;
        size_t bytes = (size_t)((newline ? newline : end) - text);
        while (bytes > 0 && is_python_blank(text[bytes - 1])) bytes--;
        snprintf(where, sizeof where, "%s:%lld", what, number);
        Json *root = NULL;
        Status status = bytes ? json_parse(&root, text, bytes, where) : OK;
        if (status != OK && number == 1 && text[0] == '[')
            return fail(ERR_DATA,
                        "%s: a list over many lines is no JSON lines: `jq -c '.[]' FILE` makes them of it",
                        where);
        TRY(status);
        if (bytes) status = take(self, root, where);
        json_free(root);
        TRY(status);
        text = next;
    }
    return OK;
}
