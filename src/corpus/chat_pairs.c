// Reads the pair of a line: two conversations that differ in their answers, the chosen and the rejected one.
#include "corpus/chat_messages.h"
#include <string.h>

static const char *const ANSWERS[] = {"chosen", "rejected"};

static Status need_both(const Json *line) {
    if (line->type != JSON_OBJECT)
        return fail(ERR_DATA,
                    "a line has to be an object: {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}");
    for (int i = 0; i < 2; i++) {
        const Json *answer = json_member(line, ANSWERS[i]);
        if (!answer)
            return fail(
                ERR_DATA,
                "\"%s\" is missing: a pair has a \"chosen\" and a \"rejected\" answer; add it, or leave "
                "the line out",
                ANSWERS[i]);
        bool empty = answer->type == JSON_ARRAY ? !answer->count : !answer->size;
        if (answer->type != JSON_OBJECT &&
            ((answer->type != JSON_STRING && answer->type != JSON_ARRAY) || empty))
            return fail(ERR_DATA, "\"%s\" is %s: it has to be a text, a message or a list of messages",
                        ANSWERS[i], empty ? "empty" : "none of these");
    }
    return OK;
}

// The list begins with a message that is not the answer.
static bool holds_prompt(const Json *answer) {
    return answer->type == JSON_ARRAY && answer->items[0].type == JSON_OBJECT &&
           !turn_is_answer(&answer->items[0]);
}

static Status find_prompt(const Json *line, bool *inside) {
    bool both[2];
    for (int i = 0; i < 2; i++) both[i] = holds_prompt(json_member(line, ANSWERS[i]));
    *inside = both[0];
    if (both[0] != both[1])
        return fail(ERR_DATA, "\"%s\" begins with the prompt and \"%s\" does not: write both in the same way",
                    ANSWERS[both[1]], ANSWERS[!both[1]]);
    if (*inside || has_prompt(line)) return OK;
    return fail(
        ERR_DATA,
        "there is no prompt: add \"prompt\", or make \"chosen\" and \"rejected\" lists of messages that "
        "begin with the question");
}

// Two values with the same members, in any order.
static bool same_message(const Json *a, const Json *b) {
    Text first = {0}, second = {0};
    bool same = a->type == JSON_OBJECT && b->type == JSON_OBJECT && a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) {
        const Json *other = json_member(b, a->items[i].key);
        first.size = second.size = 0;
        json_add_value(&a->items[i], &first);
        if (other) json_add_value(other, &second);
        same = other && first.size == second.size && !memcmp(first.data, second.data, first.size);
    }
    text_free(&first);
    text_free(&second);
    return same;
}

static size_t num_alike(const Json *a, const Json *b) {
    size_t i = 0;
    while (i < a->count && i < b->count && same_message(&a->items[i], &b->items[i])) i++;
    return i;
}

static Status make(Conversation *c, const Json *line, int answer, bool inside) {
    Text text = {0};
    text_add(&text, "[");
    Status status = inside ? OK : prompt_add(line, &text);
    if (status == OK) status = answer_add(line, ANSWERS[answer], &text);
    text_add(&text, "]");
    if (status == OK) status = conversation_of_text(c, &text, line);
    text_free(&text);
    return status;
}

// The prompt beside lists that begin with it has to be the end of what they have in common.
static Status check_prompt(const Json *line, const Json *messages, size_t common) {
    Text text = {0};
    Json *prompt = NULL;
    if (!has_prompt(line)) return OK;
    text_add(&text, "[");
    Status status = prompt_add(line, &text);
    text_add(&text, "]");
    if (status == OK) status = json_parse(&prompt, text.data, text.size, "the prompt");
    text_free(&text);
    TRY(status);
    bool same = prompt->count <= common;
    for (size_t i = 0; same && i < prompt->count; i++)
        same = same_message(&prompt->items[i], &messages->items[common - prompt->count + i]);
    json_free(prompt);
    if (same) return OK;
    return fail(
        ERR_DATA,
        "the prompts differ: the line's own is not the one with which \"chosen\" and \"rejected\" begin");
}

static size_t num_turns(const Json *answer) { return answer->type == JSON_ARRAY ? answer->count : 1; }

static Status divide(Conversation pair[2], const Json *line, bool inside) {
    const Json *chosen = pair[0].messages, *rejected = pair[1].messages;
    size_t common = num_alike(chosen, rejected);
    for (int i = 0; i < 2; i++)
        pair[i].prompt = inside ? common : pair[i].messages->count - num_turns(json_member(line, ANSWERS[i]));
    if (common == chosen->count && common == rejected->count)
        return fail(ERR_DATA,
                    "\"chosen\" and \"rejected\" are the same: there is nothing to prefer; leave the line "
                    "out");
    for (int i = 0; i < 2; i++) {
        const Json *messages = pair[i].messages;
        if (pair[i].prompt >= messages->count || !message_is_answer(&messages->items[pair[i].prompt]))
            return fail(
                ERR_DATA,
                "the prompts differ: message %zu of \"%s\" is no answer, and \"%s\" does not have it: "
                "both need the same messages before their answers",
                pair[i].prompt + 1, ANSWERS[i], ANSWERS[!i]);
    }
    return inside ? check_prompt(line, chosen, common) : OK;
}

Status pair_read(Conversation pair[2], const Json *line) {
    bool inside;
    pair[0] = pair[1] = (Conversation){0};
    TRY(need_both(line));
    TRY(find_prompt(line, &inside));
    for (int i = 0; i < 2; i++) {
        Status status = make(&pair[i], line, i, inside);
        if (status != OK) {
            char why[400];
            snprintf(why, sizeof why, "%s", fail_message());
            return fail(status, "\"%s\": %s", ANSWERS[i], why);
        }
    }
    return divide(pair, line, inside);
}
