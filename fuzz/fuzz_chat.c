// A line of a conversation, in any of its shapes. Laws: what is accepted is a list of messages, each with a role that
// is known, and one of them an answer; it is accepted again as messages, the same ones.
#include "corpus/chat_messages.h"
#include "fuzz.h"
#include <string.h>

static size_t check_messages(const Conversation *c) {
    size_t answers = 0;
    CHECK(c->messages->type == JSON_ARRAY && c->messages->count, "no list of messages");
    for (size_t i = 0; i < c->messages->count; i++) {
        CHECK(json_string(json_member(&c->messages->items[i], "role")), "message %zu has no role", i);
        answers += message_is_answer(&c->messages->items[i]);
    }
    CHECK(answers, "no answer");
    return answers;
}

// The same messages under the key of messages.
static void read_again(const Conversation *c, size_t answers) {
    Conversation again;
    Json messages = *c->messages, line = {.type = JSON_OBJECT, .items = &messages, .count = 1};
    messages.key = "messages";
    messages.key_size = strlen(messages.key);
    CHECK(conversation_read(&again, &line) == OK, "%s", fail_message());
    CHECK(again.messages->count == c->messages->count && check_messages(&again) == answers, "other messages");
    conversation_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Json *line;
    Conversation c;
    if (json_parse(&line, (const char *)data, size, "line") != OK) return 0;
    Status status = conversation_read(&c, line);
    CHECK(status == OK || (status == ERR_DATA && *fail_message()), "status %d", (int)status);
    if (status == OK) read_again(&c, check_messages(&c));
    conversation_free(&c);
    json_free(line);
    return 0;
}
