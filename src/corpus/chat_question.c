// Writes a question by a chat template, for a model to answer.
#include "corpus/chat.h"
#include "corpus/chat_format.h"
#include <ctype.h>
#include <string.h>

// An answer that no template writes itself.
static const char ANSWER[] = "(answer)";

static Json string_of(const char *text) {
    return (Json){.type = JSON_STRING, .string = text, .size = strlen(text)};
}

// A message: its members are `members` [2].
static Json message_of(const char *role, const char *content, Json *members) {
    members[0] = string_of(role), members[1] = string_of(content);
    members[0].key = "role", members[0].key_size = 4;
    members[1].key = "content", members[1].key_size = 7;
    return (Json){.type = JSON_OBJECT, .items = members, .count = 2};
}

// What follows the answer, without blanks at both ends.
static void find_end(const Text *whole, Text *end) {
    const char *at = whole->size ? strstr(whole->data, ANSWER) : NULL;
    if (!at) return;
    for (at += strlen(ANSWER); isspace((unsigned char)*at);) at++;
    size_t size = strlen(at);
    while (size && isspace((unsigned char)at[size - 1])) size--;
    text_add_bytes(end, at, size);
}

static Status write_question(ChatWorker *w, const char *question, Text *prompt, Text *end) {
    Json members[2][2],
        messages[2] = {message_of("user", question, members[0]), message_of("assistant", ANSWER, members[1])};
    Json list = {.type = JSON_ARRAY, .items = messages, .count = 1};
    Conversation asked = {.messages = &list};
    TRY(chat_render(w, &asked, 1, true, &w->whole));
    text_add_bytes(prompt, text_string(&w->whole.text), w->whole.text.size);
    list.count = 2;
    TRY(chat_render(w, &asked, 2, false, &w->part));
    find_end(&w->part.text, end);
    return OK;
}

Status chat_question(const Tokenizer *tokenizer, const char *folder, const char *named, const char *question,
                     Text *prompt, Text *end) {
    ChatFormat format;
    ChatWorker worker;
    TRY(chat_format_open(&format, tokenizer, folder, named));
    Status status = chat_worker_open(&worker, &format);
    if (status == OK) {
        status = write_question(&worker, question, prompt, end);
        chat_worker_close(&worker);
    }
    chat_format_close(&format);
    return status;
}
