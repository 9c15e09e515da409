// The conversation of a line of JSON, in any of the four shapes that data sets have, as a list of messages with role
// and content. docs/finetune.md has the shapes.
#pragma once
#include "formats/formats.h"

typedef struct {
    const Json *messages; // of the line, or of `made`
    const Json *tools;    // of the line; NULL: none
    Json *made;           // owned; NULL: the line has messages itself
} Conversation;

// Reads the conversation of an object, which has to live as long. Fails with ERR_DATA, in words to which the caller
// adds the place: no shape that is known, or two; a role that is not known; a member of a wrong type; no answer to
// train on.
Status conversation_read(Conversation *conversation, const Json *line);
void conversation_free(Conversation *conversation);
bool message_is_answer(const Json *message);
bool message_is_trained(const Json *message); // it is an answer, and its "weight" is not 0
