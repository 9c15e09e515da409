// Reads the conversation of a line: messages, prompt and completion, ShareGPT, Alpaca.
#include "corpus/chat_messages.h"
#include <string.h>

static bool same(const Json *value, const char *string) {
    return value && value->type == JSON_STRING && value->size == strlen(string) &&
           !memcmp(value->string, string, value->size);
}

static void begin_message(Text *out, const char *role, const Json *content) {
    text_add(out, "%s{\"role\": \"%s\", \"content\": ", out->data[out->size - 1] == '[' ? "" : ", ", role);
    json_add_string(out, content->string, content->size);
}

static void add_message(Text *out, const char *role, const Json *content) {
    begin_message(out, role, content);
    text_add(out, "}");
}

// A member that may be left out: *string is NULL where it is absent, null or empty.
static Status may_have_string(const Json *line, const char *key, const Json **string) {
    *string = json_member(line, key);
    if (*string && (*string)->type == JSON_NULL) *string = NULL;
    if (*string && (*string)->type != JSON_STRING)
        return fail(ERR_DATA, "\"%s\" is no string: it has to be one, or to be left out", key);
    if (*string && !(*string)->size) *string = NULL;
    return OK;
}

static Status need_string(const Json *line, const char *key, const Json **string) {
    *string = json_member(line, key);
    if (*string && (*string)->type == JSON_STRING) return OK;
    return fail(ERR_DATA, "\"%s\" is %s: it has to be a string", key, *string ? "no string" : "missing");
}

void json_add_value(const Json *value, Text *out) {
    static const char *const WORDS[] = {"null", "false", "true"};
    if (value->type <= JSON_TRUE) text_add(out, "%s", WORDS[value->type]);
    if (value->type == JSON_NUMBER) text_add_bytes(out, value->string, value->size);
    if (value->type == JSON_STRING) json_add_string(out, value->string, value->size);
    if (value->type < JSON_ARRAY) return;
    text_add(out, value->type == JSON_ARRAY ? "[" : "{");
    for (size_t i = 0; i < value->count; i++) {
        if (i) text_add(out, ", ");
        if (value->items[i].key) json_add_string(out, value->items[i].key, value->items[i].key_size);
        if (value->items[i].key) text_add(out, ": ");
        json_add_value(&value->items[i], out);
    }
    text_add(out, value->type == JSON_ARRAY ? "]" : "}");
}

static void add_values(const Json *list, Text *out) {
    for (size_t i = 0; i < list->count; i++) {
        if (out->data[out->size - 1] != '[') text_add(out, ", ");
        json_add_value(&list->items[i], out);
    }
}

// ---- ShareGPT: {"conversations": [{"from": "human", "value": "..."}]} --------------------------------------

static const struct {
    const char *from, *role;
} SPEAKERS[] = {{"human", "user"},          {"user", "user"},         {"gpt", "assistant"},
                {"assistant", "assistant"}, {"chatgpt", "assistant"}, {"bing", "assistant"},
                {"bard", "assistant"},      {"model", "assistant"},   {"system", "system"},
                {"tool", "tool"},           {"observation", "tool"}};

static const char *role_of(const Json *from) {
    for (size_t i = 0; i < sizeof SPEAKERS / sizeof *SPEAKERS; i++)
        if (same(from, SPEAKERS[i].from)) return SPEAKERS[i].role;
    return NULL;
}

static Status of_share_gpt(const Json *turns, Text *out) {
    const Json *value;
    for (size_t i = 0; i < turns->count; i++) {
        const Json *weight = json_member(&turns->items[i], "weight");
        const Json *from = json_member(&turns->items[i], "from");
        const char *role = role_of(from);
        if (!role)
            return fail(
                ERR_DATA,
                "conversations, turn %zu: \"from\" is \"%.40s\"; human, gpt, system and tool are known",
                i + 1, from && from->type == JSON_STRING ? from->string : "missing");
        TRY(need_string(&turns->items[i], "value", &value));
        begin_message(out, role, value);
        if (weight) text_add(out, ", \"weight\": ");
        if (weight) json_add_value(weight, out);
        text_add(out, "}");
    }
    return OK;
}

// ---- Alpaca: {"instruction": "...", "input": "...", "output": "..."} ----------------------------------------

static Status add_history(const Json *history, Text *out) {
    if (history && history->type == JSON_NULL) return OK;
    if (history && history->type != JSON_ARRAY)
        return fail(ERR_DATA, "\"history\" is no list: it has to be one of pairs of strings");
    for (size_t i = 0; history && i < history->count; i++) {
        const Json *turn = &history->items[i];
        bool pair = turn->type == JSON_ARRAY && turn->count == 2 && turn->items[0].type == JSON_STRING &&
                    turn->items[1].type == JSON_STRING;
        if (!pair) return fail(ERR_DATA, "\"history\", turn %zu: it has to be a list of two strings", i + 1);
        add_message(out, "user", &turn->items[0]);
        add_message(out, "assistant", &turn->items[1]);
    }
    return OK;
}

static Status add_instruction(const Json *line, Text *out) {
    const Json *instruction, *input;
    TRY(need_string(line, "instruction", &instruction));
    TRY(may_have_string(line, "input", &input));
    TRY(add_history(json_member(line, "history"), out));
    Text both = {0};
    text_add_bytes(&both, instruction->string, instruction->size);
    if (input) {
        text_add(&both, "\n");
        text_add_bytes(&both, input->string, input->size);
    }
    Json question = {.type = JSON_STRING, .string = text_string(&both), .size = both.size};
    add_message(out, "user", &question);
    text_free(&both);
    return OK;
}

static Status of_alpaca(const Json *line, Text *out) {
    const Json *output;
    TRY(add_instruction(line, out));
    TRY(need_string(line, "output", &output));
    add_message(out, "assistant", output);
    return OK;
}

// ---- {"prompt": ..., "completion": ...}: strings, or lists of messages ---------------------------------------

// A string is a message of this role.
static Status add_part(const Json *line, const char *key, const char *role, Text *out) {
    const Json *part = json_member(line, key);
    if (!part || (part->type != JSON_STRING && part->type != JSON_ARRAY))
        return fail(ERR_DATA, "\"%s\" is %s: it has to be a string or a list of messages", key,
                    part ? "neither" : "missing");
    if (part->type == JSON_STRING)
        add_message(out, role, part);
    else
        add_values(part, out);
    return OK;
}

static Status of_prompt(const Json *line, Text *out) {
    TRY(add_part(line, "prompt", "user", out));
    return add_part(line, "completion", "assistant", out);
}

// ---- which shape ----------------------------------------------------------------------------------------------

typedef enum { MESSAGES, SHARE_GPT, ALPACA, PROMPT, NUM_SHAPES } Shape;
static const char *const KEYS[NUM_SHAPES] = {"messages", "conversations", "instruction", "prompt"};

static Status find_shape(const Json *line, Shape *shape) {
    int found = -1;
    if (line->type != JSON_OBJECT) return fail(ERR_DATA, "a line has to be an object: {\"messages\": [...]}");
    for (int i = 0; i < NUM_SHAPES; i++) {
        if (!json_member(line, KEYS[i])) continue;
        if (found >= 0)
            return fail(ERR_DATA, "\"%s\" and \"%s\" are both there: keep the one that is the conversation",
                        KEYS[found], KEYS[i]);
        found = i;
    }
    if (found < 0)
        return fail(
            ERR_DATA,
            "no conversation: \"messages\", \"conversations\" (ShareGPT), \"instruction\" (Alpaca) or "
            "\"prompt\" with \"completion\" is expected");
    *shape = (Shape)found;
    return OK;
}

Status refuse_list(const char *what, const Json *line, char begin) {
    if (line ? line->type != JSON_ARRAY : begin != '[') return OK;
    return fail(ERR_DATA, "%s: a list %s is no JSON lines: `jq -c '.[]' FILE` makes them of it", what,
                line ? "on one line" : "over many lines");
}

static Status check_list(const Json *list, const char *key) {
    if (list->type != JSON_ARRAY || !list->count)
        return fail(ERR_DATA, "\"%s\" has to be a list of turns", key);
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].type != JSON_OBJECT)
            return fail(ERR_DATA, "\"%s\", turn %zu is no object", key, i + 1);
    return OK;
}

// Replaces the messages by those of a text, `[...]`.
static Status replace(Conversation *c, const Text *text) {
    Json *made;
    TRY(json_parse(&made, text->data, text->size, "the conversation"));
    json_free(c->made);
    c->messages = c->made = made;
    return OK;
}

static Status make(Conversation *c, const Json *line, Shape shape) {
    Text text = {0};
    text_add(&text, "[");
    Status status = shape == SHARE_GPT ? of_share_gpt(json_member(line, KEYS[shape]), &text)
                    : shape == ALPACA  ? of_alpaca(line, &text)
                                       : of_prompt(line, &text);
    text_add(&text, "]");
    if (status == OK) status = replace(c, &text);
    text_free(&text);
    return status;
}

// ---- a system message beside the conversation ------------------------------------------------------------------

// Puts the member "system" of the line before all messages, unless they have this system message themselves.
static Status add_system(Conversation *c, const Json *line) {
    const Json *system;
    TRY(may_have_string(line, "system", &system));
    for (size_t i = 0; system && i < c->messages->count; i++) {
        const Json *content = json_member(&c->messages->items[i], "content");
        if (!same(json_member(&c->messages->items[i], "role"), "system")) continue;
        if (content && content->type == JSON_STRING && content->size == system->size &&
            !memcmp(content->string, system->string, system->size))
            return OK;
        return fail(ERR_DATA,
                    "\"system\" and the system message %zu differ: keep the one that the model is to read",
                    i + 1);
    }
    if (!system) return OK;
    Text text = {0};
    text_add(&text, "[");
    add_message(&text, "system", system);
    add_values(c->messages, &text);
    text_add(&text, "]");
    Status status = replace(c, &text);
    text_free(&text);
    return status;
}

// ---- what every conversation needs -----------------------------------------------------------------------------

bool message_is_answer(const Json *message) { return same(json_member(message, "role"), "assistant"); }

// The weight of a message; 1 where it has none, and -1 for one that is not known.
static int weight_of(const Json *message) {
    const Json *weight = json_member(message, "weight");
    double value;
    if (!weight || weight->type == JSON_NULL) return 1;
    return !json_double(weight, &value) || (value != 0 && value != 1) ? -1 : (int)value;
}

static bool is_trained(const Json *message) { return message_is_answer(message) && weight_of(message) == 1; }

bool conversation_trains(const Conversation *c, size_t message) {
    return message >= c->prompt && is_trained(&c->messages->items[message]);
}

const char *const chat_roles[NUM_CHAT_ROLES] = {"system", "user", "assistant", "tool", "developer"};

static int role_index(const Json *message) {
    const char *role = json_string(json_member(message, "role"));
    int known = 0;
    while (role && known < NUM_CHAT_ROLES && strcmp(role, chat_roles[known]) != 0) known++;
    return role ? known : NUM_CHAT_ROLES;
}

static bool has_member(const Json *message, const char *key) {
    const Json *member = json_member(message, key);
    return member && member->type != JSON_NULL;
}

// Templates write null as the word None. An answer may call a tool in the place of a text.
static Status check_content(const Json *message, size_t i) {
    const Json *content = json_member(message, "content");
    if (!content || content->type != JSON_NULL) return OK;
    if (message_is_answer(message) &&
        (has_member(message, "tool_calls") || has_member(message, "function_call")))
        return OK;
    return fail(
        ERR_DATA,
        "message %zu: \"content\" is null, which a template writes as the word None: write its text, or "
        "leave the message out",
        i + 1);
}

static Status check_messages(const Json *messages) {
    bool answered = false, trained = false;
    for (size_t i = 0; i < messages->count; i++) {
        const char *role = json_string(json_member(&messages->items[i], "role"));
        if (role_index(&messages->items[i]) == NUM_CHAT_ROLES)
            return fail(
                ERR_DATA,
                "message %zu: the role is \"%.40s\"; system, user, assistant, tool and developer are known",
                i + 1, role ? role : "missing");
        if (weight_of(&messages->items[i]) < 0)
            return fail(ERR_DATA,
                        "message %zu: \"weight\" is neither 0 nor 1: an answer is trained or it is not",
                        i + 1);
        TRY(check_content(&messages->items[i], i));
        answered = answered || message_is_answer(&messages->items[i]);
        trained = trained || is_trained(&messages->items[i]);
    }
    if (answered && !trained)
        return fail(ERR_DATA,
                    "every answer has the weight 0: there is nothing to train on; leave the line out");
    return answered
               ? OK
               : fail(ERR_DATA,
                      "a conversation without an answer: there is nothing to train on; add a turn of the "
                      "assistant, or leave the line out");
}

static Status is_no_pair(const Json *line) {
    if (!json_member(line, "chosen") || !json_member(line, "rejected")) return OK;
    return fail(ERR_DATA,
                "\"chosen\" and \"rejected\" are a pair of answers: add --preferences, with which all "
                "lines are pairs, or name the one to train on \"completion\"");
}

// Checks the messages, and adds what the line has beside them.
static Status complete(Conversation *c, const Json *line) {
    const Json *tools = json_member(line, "tools");
    TRY(check_list(c->messages, "messages"));
    TRY(add_system(c, line));
    if (tools && tools->type == JSON_ARRAY && tools->count) c->tools = tools;
    if (tools && tools->type != JSON_ARRAY && tools->type != JSON_NULL)
        return fail(ERR_DATA, "\"tools\" has to be a list of JSON schemas");
    return check_messages(c->messages);
}

Status conversation_read(Conversation *c, const Json *line) {
    *c = (Conversation){0};
    Shape shape = MESSAGES;
    TRY(is_no_pair(line));
    TRY(find_shape(line, &shape));
    const Json *turns = json_member(line, KEYS[shape]);
    if (shape == MESSAGES || shape == SHARE_GPT) TRY(check_list(turns, KEYS[shape]));
    // Some data sets have messages under ShareGPT's key.
    bool ready = shape == MESSAGES || (shape == SHARE_GPT && json_member(&turns->items[0], "role"));
    if (ready)
        c->messages = turns;
    else
        TRY(make(c, line, shape));
    return complete(c, line);
}

// ---- contents that are lists of parts ---------------------------------------------------------------------------

// Appends the texts of the parts. Sets *other to the first part that is no text, NULL: all are.
static void join(const Json *parts, Text *out, const Json **other) {
    *other = NULL;
    for (size_t i = 0; i < parts->count && !*other; i++) {
        const Json *text = json_member(&parts->items[i], "text");
        if (same(json_member(&parts->items[i], "type"), "text") && text && text->type == JSON_STRING)
            text_add_bytes(out, text->string, text->size);
        else
            *other = &parts->items[i];
    }
}

static Status no_text(const Json *content, const Json *part, size_t i) {
    const char *type = part ? json_string(json_member(part, "type")) : NULL;
    if (content->type == JSON_ARRAY)
        return fail(
            ERR_DATA,
            "message %zu: \"content\" is a list with a part of type \"%.40s\", but the template writes text "
            "alone: leave this part out, or the line",
            i + 1, type ? type : "missing");
    return fail(ERR_DATA,
                "message %zu: \"content\" is no string: it has to be one, or a list of parts of text", i + 1);
}

// Appends the message with `content` in the place of its own.
static void add_with_content(const Json *message, const Text *content, Text *out) {
    text_add(out, "{");
    for (size_t i = 0; i < message->count; i++) {
        const Json *member = &message->items[i];
        if (i) text_add(out, ", ");
        json_add_string(out, member->key, member->key_size);
        text_add(out, ": ");
        if (member == json_member(message, "content"))
            json_add_string(out, text_string(content), content->size);
        else
            json_add_value(member, out);
    }
    text_add(out, "}");
}

static bool is_for_template(const Json *message, const bool *parts) {
    const Json *content = json_member(message, "content");
    return !content || content->type == JSON_STRING || content->type == JSON_NULL ||
           parts[role_index(message)];
}

static Status add_joined(const Json *messages, const bool *parts, Text *out) {
    Text content = {0};
    for (size_t i = 0; i < messages->count; i++) {
        const Json *message = &messages->items[i], *value = json_member(message, "content"), *other = value;
        if (i) text_add(out, ", ");
        if (is_for_template(message, parts)) {
            json_add_value(message, out);
            continue;
        }
        content.size = 0;
        if (value->type == JSON_ARRAY) join(value, &content, &other);
        if (other) {
            text_free(&content);
            return no_text(value, other, i);
        }
        add_with_content(message, &content, out);
    }
    text_free(&content);
    return OK;
}

Status conversation_join_parts(Conversation *c, const bool parts[NUM_CHAT_ROLES]) {
    size_t ready = 0;
    while (ready < c->messages->count && is_for_template(&c->messages->items[ready], parts)) ready++;
    if (ready == c->messages->count) return OK;
    Text text = {0};
    text_add(&text, "[");
    Status status = add_joined(c->messages, parts, &text);
    text_add(&text, "]");
    if (status == OK) status = replace(c, &text);
    text_free(&text);
    return status;
}

// ---- parts of a pair -------------------------------------------------------------------------------------------

Status conversation_of_text(Conversation *c, const Text *text, const Json *line) {
    *c = (Conversation){0};
    TRY(replace(c, text));
    return complete(c, line);
}

static Status add_turns(const Json *turns, const char *key, Text *out) {
    TRY(check_list(turns, key));
    if (json_member(&turns->items[0], "from")) return of_share_gpt(turns, out);
    add_values(turns, out);
    return OK;
}

Status prompt_add(const Json *line, Text *out) {
    Shape shape = MESSAGES;
    TRY(find_shape(line, &shape));
    if (shape == PROMPT) return add_part(line, "prompt", "user", out);
    if (shape == ALPACA) return add_instruction(line, out);
    return add_turns(json_member(line, KEYS[shape]), KEYS[shape], out);
}

bool has_prompt(const Json *line) {
    for (int i = 0; i < NUM_SHAPES; i++)
        if (json_member(line, KEYS[i])) return true;
    return false;
}

bool turn_is_answer(const Json *turn) {
    const char *role = role_of(json_member(turn, "from"));
    return message_is_answer(turn) || (role && !strcmp(role, "assistant"));
}

Status answer_add(const Json *line, const char *key, Text *out) {
    const Json *answer = json_member(line, key);
    if (answer->type == JSON_STRING) {
        add_message(out, "assistant", answer);
        return OK;
    }
    Json one = {.type = JSON_ARRAY, .items = answer, .count = 1};
    return add_turns(answer->type == JSON_OBJECT ? &one : answer, key, out);
}

void conversation_free(Conversation *c) {
    json_free(c->made);
    *c = (Conversation){0};
}
