// The conversation of a line of JSON, in any of the four shapes that data sets have, as a list of messages with role
// and content; and the two conversations of a line that is a pair of answers to one prompt. docs/finetune.md has the
// shapes.
#pragma once
#include "formats/formats.h"

typedef struct {
    const Json *messages; // of the line, or of `made`
    const Json *tools;    // of the line; NULL: none
    Json *made;           // owned; NULL: the line has messages itself
    size_t prompt;        // messages before this one are read and not trained
} Conversation;

// Reads the conversation of an object, which has to live as long. Fails with ERR_DATA, in words to which the caller
// adds the place: no shape that is known, or two; a role that is not known; a member of a wrong type; no answer to
// train on; a pair.
Status conversation_read(Conversation *conversation, const Json *line);
void conversation_free(Conversation *conversation);
// Fails with ERR_DATA for a line at `what` that is a list, or, where it is NULL, no JSON but the begin of a list: says
// how to make lines of it. Else OK.
Status refuse_list(const char *what, const Json *line, char begin);
bool message_is_answer(const Json *message);

enum { NUM_CHAT_ROLES = 5 };
extern const char *const chat_roles[NUM_CHAT_ROLES];
// Makes a text of each list of parts, {"type": "text", "text": "..."}, in the messages of a role whose `parts`, in the
// order of chat_roles, is false: the texts of the parts in a row, as a template without parts needs it. Fails with
// ERR_DATA for a content of such a role that is neither a text, nor a list of texts, nor null.
Status conversation_join_parts(Conversation *conversation, const bool parts[NUM_CHAT_ROLES]);
// The message is an answer behind the prompt, and its "weight" is not 0.
bool conversation_trains(const Conversation *conversation, size_t message);

// Reads the two conversations of a pair: the prompt with "chosen", the prompt with "rejected". The prompt is the line's
// own, or what both lists of messages begin with. Fails with ERR_DATA: an answer or the prompt is missing, the prompts
// differ, or the answers do not. Free both also after a failure.
Status pair_read(Conversation pair[2], const Json *line);

// ---- for pair_read: parts of conversations as text, `[...` -----------------------------------------------------

bool has_prompt(const Json *line);                               // in one of the shapes
Status prompt_add(const Json *line, Text *out);                  // appends its messages
bool turn_is_answer(const Json *turn);                           // a message, or a turn of ShareGPT
Status answer_add(const Json *line, const char *key, Text *out); // a text, a turn or a list of turns
void json_add_value(const Json *value, Text *out);               // appends any value
// Makes a conversation of messages `[...]`, with the members that the line has beside them.
Status conversation_of_text(Conversation *conversation, const Text *text, const Json *line);
