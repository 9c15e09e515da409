// Renders a conversation, encodes it, and finds the tokens of its answers.
#include "base/array.h"
#include "corpus/chat_format.h"
#include <stdlib.h>
#include <string.h>

Status chat_worker_open(ChatWorker *w, const ChatFormat *format) {
    *w = (ChatWorker){.format = format, .template = format->template};
    return encoder_open(&w->encoder, format->tokenizer);
}

void chat_worker_close(ChatWorker *w) {
    encoder_close(w->encoder);
    jinja_output_free(&w->whole);
    jinja_output_free(&w->part);
    free(w->ends);
    *w = (ChatWorker){0};
}

// ---- the text ------------------------------------------------------------------------------------------------

static Json string_of(const char *text) {
    return (Json){.type = JSON_STRING, .string = text ? text : "", .size = text ? strlen(text) : 0};
}

static Status render(ChatWorker *w, const Conversation *c, size_t count, bool prompt, JinjaOutput *out) {
    const TokenizerUse *use = &w->format->use;
    Json messages = *c->messages, flag = {.type = prompt ? JSON_TRUE : JSON_FALSE};
    const struct {
        const char *name, *text;
    } TOKENS[] = {{"bos_token", use->bos_token},
                  {"eos_token", use->eos_token},
                  {"pad_token", use->pad_token},
                  {"unk_token", use->unk_token}};
    enum { NUM_TOKENS = sizeof TOKENS / sizeof *TOKENS };
    JinjaVariable variables[4 + NUM_TOKENS] = {
        {"messages", &messages}, {"tools", c->tools}, {"documents", NULL}, {"add_generation_prompt", &flag}};
    Json strings[NUM_TOKENS];
    int number = 4;
    messages.count = count;
    for (int i = 0; i < NUM_TOKENS; i++) {
        if (!TOKENS[i].text) continue; // undefined for the template, too
        strings[i] = string_of(TOKENS[i].text);
        variables[number++] = (JinjaVariable){TOKENS[i].name, &strings[i]};
    }
    Status status = jinja_render(w->template, variables, number, w->format->now, out);
    w->steps += out->steps;
    return status;
}

// ---- stretches of answers by rendering less of the conversation -------------------------------------------------

static bool starts_whole(const ChatWorker *w) {
    const Text *whole = &w->whole.text, *part = &w->part.text;
    return part->size <= whole->size && (!part->size || !memcmp(part->data, whole->data, part->size));
}

static Status ambiguous(size_t message) {
    return fail(
        ERR_DATA,
        "message %zu: the template writes the conversation up to this answer in another way than within the whole, "
        "so the answer has no place of its own: mark answers with {%% generation %%} in a copy of the template, "
        "and name it by --chat-template FILE",
        message + 1);
}

static Status add_span(JinjaOutput *out, size_t start, size_t end) {
    array_grow(&out->spans, sizeof *out->spans, out->num_spans + 1, &out->capacity);
    if (end > start) out->spans[out->num_spans++] = (JinjaSpan){start, end};
    return OK;
}

// Renders a beginning of the conversation. There are two of them for an answer, so that the time would grow with the
// square of the number of answers.
static Status render_part(ChatWorker *w, const Conversation *c, size_t count, bool prompt) {
    const atomic_int *stopped = w->format->stopped;
    if (stopped && *stopped) return fail(INTERRUPTED, "stopped by a signal: nothing was written");
    if (w->steps > CHAT_MAX_STEPS)
        return fail(
            ERR_DATA,
            "a conversation of %zu messages: to find its answers the template is run twice for each, which "
            "takes more than %d steps: mark answers with {%% generation %%} in a copy of the template, name "
            "that by --chat-template FILE, and give answers no weight 0; or divide the conversation",
            c->messages->count, CHAT_MAX_STEPS);
    return render(w, c, count, prompt, &w->part);
}

static Status find_answer(ChatWorker *w, const Conversation *c, size_t k) {
    TRY(render_part(w, c, k, true));
    size_t start = w->part.text.size;
    if (!starts_whole(w)) return ambiguous(k);
    TRY(render_part(w, c, k + 1, false));
    if (!starts_whole(w) || w->part.text.size < start) return ambiguous(k);
    return add_span(&w->whole, start, w->part.text.size);
}

static Status find_answers(ChatWorker *w, const Conversation *c) {
    for (size_t k = 0; k < c->messages->count; k++)
        if (conversation_trains(c, k)) TRY(find_answer(w, c, k));
    return OK;
}

// ---- stretches of a template that marks them ----------------------------------------------------------------------

// Sets *count to the stretches that the first `messages` messages have. They have to be the first ones of the whole.
static Status count_spans(ChatWorker *w, const Conversation *c, size_t messages, size_t *count) {
    TRY(render_part(w, c, messages, false));
    *count = w->part.num_spans;
    bool same = *count <= w->whole.num_spans &&
                (!*count || !memcmp(w->part.spans, w->whole.spans, *count * sizeof *w->part.spans));
    if (same) return OK;
    return fail(
        ERR_DATA,
        "the template marks the answers of the first %zu messages in another way than within the whole "
        "conversation, so it is not known which stretches the weight 0 is for: leave \"weight\" out, or "
        "name another template by --chat-template FILE",
        messages);
}

// Leaves out the stretches of answers that are not trained: from the last to the first, so that what is before stays in
// place.
static Status leave_out(ChatWorker *w, const Conversation *c) {
    JinjaOutput *o = &w->whole;
    for (size_t k = c->messages->count, first, end; k-- > 0;) {
        if (!message_is_answer(&c->messages->items[k]) || conversation_trains(c, k)) continue;
        TRY(count_spans(w, c, k, &first));
        TRY(count_spans(w, c, k + 1, &end));
        if (first >= end) continue;
        memmove(o->spans + first, o->spans + end, (o->num_spans - end) * sizeof *o->spans);
        o->num_spans -= end - first;
    }
    return OK;
}

// ---- tokens ---------------------------------------------------------------------------------------------------------

static bool is_special(const Tokenizer *t, int32_t id) {
    TokenType type = tokenizer_token_type(t, id);
    return type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED;
}

// The bytes of the token that begins or ends a text, or of another control piece, that stands at `text`, and its id; 0:
// there is none.
static size_t control_at(const Tokenizer *t, const char *text, size_t size, int32_t *id) {
    const int ids[] = {tokenizer_bos(t), tokenizer_eod(t)};
    for (int i = 0; i < 2; i++) {
        const char *spelling = ids[i] < 0 ? "" : tokenizer_spelling(t, ids[i]);
        size_t length = strlen(spelling);
        *id = ids[i];
        if (length && length <= size && !memcmp(text, spelling, length)) return length;
    }
    return tokenizer_control_at(t, text, size, id);
}

// Some tokenizers take <s> and the marks of turns in a text for characters. Here, as in transformers, they are tokens,
// and what is between two of them is encoded by itself.
static Status encode(ChatWorker *w, const char *text, size_t size, TokenList *out) {
    const Tokenizer *t = w->format->tokenizer;
    if (!w->format->splits) return encoder_encode(w->encoder, text, size, out);
    size_t start = 0, length;
    int32_t id;
    for (size_t at = 0; at < size; at += length ? length : 1) {
        length = control_at(t, text + at, size - at, &id);
        if (!length) continue;
        TRY(encoder_encode(w->encoder, text + start, at - start, out));
        token_list_add(out, &id, 1);
        start = at + length;
    }
    return encoder_encode(w->encoder, text + start, size - start, out);
}

static bool is_blank(const char *text, size_t from, size_t to) {
    while (from < to && strchr(" \t\r\n", text[from]) && text[from]) from++;
    return from == to;
}

// Sets the mask of tokens [first, end) of a stretch. Blanks behind its last special token are not trained.
static void mask_span(const ChatWorker *w, const TokenList *tokens, size_t before, size_t first, size_t end,
                      bool trims, int32_t *mask) {
    size_t last = end;
    while (trims && last > first &&
           is_blank(w->whole.text.data, last - 1 ? w->ends[last - 2] : 0, w->ends[last - 1]))
        last--;
    bool ends_turn =
        last > first && last < end && is_special(w->format->tokenizer, tokens->ids[before + last - 1]);
    if (!ends_turn) last = end;
    for (size_t i = first; i < last; i++) mask[i] = 1;
}

// Tokens that overlap a stretch; both are in the order of the text.
static void mask_spans(const ChatWorker *w, const TokenList *tokens, size_t before, bool trims,
                       int32_t *mask) {
    size_t count = tokens->count - before, first = 0;
    const JinjaOutput *o = &w->whole;
    size_t from = w->format->last_answer_only && o->num_spans ? o->num_spans - 1 : 0;
    for (size_t s = from; s < o->num_spans; s++) {
        while (first < count && w->ends[first] <= o->spans[s].start) first++;
        size_t end = first;
        while (end < count && (end ? w->ends[end - 1] : 0) < o->spans[s].end) end++;
        mask_span(w, tokens, before, first, end, trims, mask);
    }
}

static Status encode_and_mask(ChatWorker *w, bool trims, TokenList *tokens, TokenList *mask) {
    const Text *text = &w->whole.text;
    size_t before = tokens->count;
    TRY(encode(w, text_string(text), text->size, tokens));
    size_t count = tokens->count - before;
    array_grow(&w->ends, sizeof *w->ends, count + 1, &w->capacity);
    TRY(tokenizer_locate(w->format->tokenizer, text_string(text), text->size, tokens->ids + before, count,
                         w->ends));
    array_grow(&mask->ids, sizeof *mask->ids, mask->count + count + 1, &mask->capacity);
    int32_t *own = mask->ids + mask->count;
    memset(own, 0, (count + 1) * sizeof *own);
    mask_spans(w, tokens, before, trims, own);
    own[0] = 0; // nothing comes before it that could predict it
    mask->count += count;
    return OK;
}

static bool same_text(const Text *a, const Text *b) {
    return a->size == b->size && (!a->size || !memcmp(a->data, b->data, a->size));
}

// Renders the conversation, where it is possible with marks of the answers.
static Status render_whole(ChatWorker *w, const Conversation *c, bool *marks) {
    const ChatFormat *format = w->format;
    w->template = format->template;
    *marks = jinja_marks_generation(format->template);
    TRY(render(w, c, c->messages->count, false, &w->whole));
    if (*marks || !format->marked || c->tools) return OK;
    w->template = format->marked;
    Status status = render(w, c, c->messages->count, false, &w->part);
    *marks = status == OK && same_text(&w->whole.text, &w->part.text);
    JinjaOutput whole = w->whole;
    if (*marks) w->whole = w->part, w->part = whole;
    if (!*marks) w->template = format->template;
    return status == ERR_DATA ? OK : status; // it does not write such a conversation
}

// A template that does not write calls of tools would have the model answer None.
static Status no_null(const Conversation *c) {
    for (size_t i = 0; i < c->messages->count; i++) {
        const Json *content = json_member(&c->messages->items[i], "content");
        if (content && content->type == JSON_NULL)
            return fail(
                ERR_DATA,
                "message %zu: \"content\" is null, which the template writes as the word None: write a text, "
                "or name a template that writes tool calls by --chat-template FILE",
                i + 1);
    }
    return OK;
}

static Status encode_conversation(ChatWorker *w, Conversation *c, TokenList *tokens, TokenList *mask) {
    bool marks = false;
    if (c->tools && !jinja_reads(w->format->template, "tools"))
        return fail(ERR_DATA,
                    "the conversation has tools, which the template does not write: name one that does, or "
                    "remove \"tools\"");
    TRY(conversation_join_parts(c, w->format->parts));
    if (w->format->writes_none) TRY(no_null(c));
    w->steps = 0;
    TRY(render_whole(w, c, &marks));
    TRY(marks ? leave_out(w, c) : find_answers(w, c));
    if (!w->whole.num_spans)
        return fail(ERR_DATA, "the template writes no text for the answers of this conversation");
    return encode_and_mask(w, !marks, tokens, mask);
}

Status chat_encode(ChatWorker *w, const Json *line, TokenList *tokens, TokenList *mask) {
    Conversation c;
    Status status = conversation_read(&c, line);
    if (status == OK) status = encode_conversation(w, &c, tokens, mask);
    conversation_free(&c);
    return status;
}

static bool same_tokens(const TokenList *tokens, size_t before, size_t middle) {
    size_t chosen = middle - before, rejected = tokens->count - middle;
    return chosen == rejected &&
           !memcmp(tokens->ids + before, tokens->ids + middle, chosen * sizeof *tokens->ids);
}

Status chat_encode_pair(ChatWorker *w, const Json *line, TokenList *tokens, TokenList *mask, size_t *chosen) {
    Conversation pair[2];
    size_t before = tokens->count;
    *chosen = 0;
    Status status = pair_read(pair, line);
    if (status == OK) status = encode_conversation(w, &pair[0], tokens, mask);
    if (status == OK) *chosen = tokens->count - before;
    if (status == OK) status = encode_conversation(w, &pair[1], tokens, mask);
    conversation_free(&pair[0]);
    conversation_free(&pair[1]);
    if (status == OK && same_tokens(tokens, before, before + *chosen))
        status = fail(ERR_DATA,
                      "\"chosen\" and \"rejected\" have the same tokens: there is nothing to prefer; leave "
                      "the line out");
    return status;
}

// ---- a built-in template in the place of one that marks nothing ---------------------------------------------------

// Whether the template writes the conversation as the format's own.
static Status try_marked(ChatFormat *f, ChatWorker *w, const ChatTemplate *built_in, const Conversation *c,
                         bool *suits) {
    TRY(jinja_parse(&f->marked, built_in->source, strlen(built_in->source), built_in->name));
    Status status = render_whole(w, c, suits);
    if (*suits) return status;
    jinja_free(f->marked);
    f->marked = NULL;
    return status;
}

Status chat_find_marked(ChatFormat *f) {
    static const char LINE[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"first question\"}, "
                               "{\"role\": \"assistant\", \"content\": \"first answer\"}, "
                               "{\"role\": \"user\", \"content\": \"second question\"}, "
                               "{\"role\": \"assistant\", \"content\": \"second answer\"}]}";
    ChatWorker w = {.format = f};
    Json *line;
    bool suits = jinja_marks_generation(f->template);
    TRY(json_parse(&line, LINE, strlen(LINE), "a conversation"));
    Conversation c = {.messages = json_member(line, "messages")};
    Status status = OK;
    for (int i = 0; i < num_chat_templates && !suits && status == OK; i++)
        status = try_marked(f, &w, &chat_templates[i], &c, &suits);
    json_free(line);
    chat_worker_close(&w);
    return status == ERR_DATA ? OK : status; // the model's template refuses the conversation
}

// ---- which roles may have parts ----------------------------------------------------------------------------------

#define CALLS                                                                                                \
    ", \"tool_calls\": [{\"id\": \"abcdefghi\", \"type\": \"function\", \"function\": {\"name\": \"f\", "    \
    "\"arguments\": {}}}]"

// Adds a message; of the role `in_parts` as a part.
static void add_trial(Text *out, const char *role, const char *in_parts, const char *more) {
    static const char PARTS[] = "[{\"type\": \"text\", \"text\": \"a part\"}]";
    text_add(out, "%s{\"role\": \"%s\", \"content\": %s%s}", out->size > 1 ? ", " : "", role,
             strcmp(role, in_parts) ? "\"a text\"" : PARTS, more);
}

// A conversation that has the role, with its content in parts.
static void make_trial(Text *out, const char *role) {
    bool tool = !strcmp(role, "tool"), first = !strcmp(role, "system") || !strcmp(role, "developer");
    out->size = 0;
    text_add(out, "[");
    if (first) add_trial(out, role, role, "");
    add_trial(out, "user", role, "");
    if (tool) add_trial(out, "assistant", role, CALLS);
    if (tool) add_trial(out, "tool", role, ", \"name\": \"f\", \"tool_call_id\": \"abcdefghi\"");
    add_trial(out, "assistant", role, "");
    text_add(out, "]");
}

// Sets w->whole to the text of the messages; empty: the template refuses them.
static Status render_trial(ChatWorker *w, const Text *trial) {
    Json *messages;
    TRY(json_parse(&messages, trial->data, trial->size, "a conversation"));
    Conversation c = {.messages = messages};
    w->template = w->format->template;
    Status status = render(w, &c, messages->count, false, &w->whole);
    if (status != OK) w->whole.text.size = 0;
    json_free(messages);
    return status == ERR_DATA ? OK : status; // the template has no such role, or takes texts alone
}

static bool wrote(ChatWorker *w, const char *words) {
    return strstr(text_string(&w->whole.text), words) != NULL;
}

Status chat_find_parts(ChatFormat *f) {
    ChatWorker w = {.format = f};
    Text trial = {0};
    Status status = OK;
    for (int i = 0; i < NUM_CHAT_ROLES && status == OK; i++) {
        make_trial(&trial, chat_roles[i]);
        status = render_trial(&w, &trial);
        f->parts[i] = wrote(&w, "a part") && !wrote(&w, "'a part'");
    }
    for (int i = 0; i < 2 && status == OK; i++) { // with an empty text, with null
        trial.size = 0;
        text_add(&trial,
                 "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": %s" CALLS
                 "}]",
                 i ? "null" : "\"\"");
        status = render_trial(&w, &trial);
        f->writes_none = wrote(&w, "None") != f->writes_none;
    }
    text_free(&trial);
    chat_worker_close(&w);
    return status;
}

// ---- for a model that answers ---------------------------------------------------------------------------------------

Status chat_prompt(ChatWorker *w, const Json *messages, TokenList *tokens) {
    Conversation c = {.messages = messages};
    w->steps = 0;
    w->template = w->format->template;
    TRY(render(w, &c, messages->count, true, &w->whole));
    return encode(w, text_string(&w->whole.text), w->whole.text.size, tokens);
}

Status chat_turn_end(ChatWorker *w, int32_t *end) {
    static const char LINE[] = "{\"prompt\": \"a\", \"completion\": \"b\"}";
    Json *line;
    TokenList tokens = {0}, mask = {0};
    *end = -1;
    TRY(json_parse(&line, LINE, strlen(LINE), "a question"));
    Status status = chat_encode(w, line, &tokens, &mask);
    for (size_t i = 0; status == OK && i < tokens.count; i++)
        if (mask.ids[i]) *end = tokens.ids[i];
    const Tokenizer *t = w->format->tokenizer;
    if (*end >= 0 && *end != tokenizer_eod(t) && !is_special(t, *end)) *end = -1;
    json_free(line);
    token_list_free(&tokens);
    token_list_free(&mask);
    return status == ERR_DATA || status == ERR_UNAVAILABLE ? OK : status;
}
