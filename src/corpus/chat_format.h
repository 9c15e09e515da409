// How a model reads a conversation: its chat template and its tokenizer; and the tokens of a conversation with the mask
// of those that are trained.
//
// The tokens are those of the whole text, as transformers' apply_chat_template(tokenize=True) has them. A token is
// trained when it lies, as a whole or in part, in a stretch of text that an answer takes. Which stretches these are:
//
// 1. Where the template has {% generation %} blocks, what these write. Where an answer k has the weight 0, the blocks
//    that messages up to and with k have beyond messages before k are left out. So are answers in the prompt of a pair.
// 2. Where it has none and a built-in template writes the conversation with the same text, the blocks of that one.
// 3. Else, for each answer k, the text is rendered twice more: messages before k, with add_generation_prompt true (P),
//    and messages up to and with k, without it (Q). P must begin Q, and Q must begin the whole text: then the answer is
//    what Q has beyond P, less blanks at its end that follow a special token (the line end behind <|im_end|>). Where
//    this does not hold the template writes a conversation in another way while it goes on, so that its answers have no
//    place of their own: it is refused. Answers of weight 0 are left out.
#pragma once
#include "corpus/chat_messages.h"
#include "template/jinja.h"
#include "tokenizer/tokenizer.h"
#include <stdatomic.h>

// Steps of templates that all renderings of one conversation may take together.
enum { CHAT_MAX_STEPS = 64 * JINJA_MAX_STEPS };

typedef struct {
    JinjaTemplate *template;
    // A built-in template that writes conversations as the model's own, and marks answers, which that does not. NULL:
    // none is known.
    JinjaTemplate *marked;
    Text carried; // the source of a template that was named, without its marks; empty: it is the model's own
    const Tokenizer *tokenizer; // borrowed
    TokenizerUse use;
    time_t now;
    bool last_answer_only;
    // Of each role: the template reads a content that is a list of parts. A template without them would write the list
    // as Python prints it.
    bool parts[NUM_CHAT_ROLES];
    bool writes_none; // for an answer that has no text but calls a tool
    // The tokenizer takes the tokens that begin and end a text for characters where they are in one.
    bool splits;
    const atomic_int *stopped; // optional
} ChatFormat;

// Opens the template: of `named`, a file or the name of a built-in one, or where that is NULL the model's own, as
// tokenizer_use_read has it. `tokenizer_path` is where the tokenizer is from. Fails with ERR_CONFIG where there is none
// or where the tokenizer lacks a token that a built-in template writes, with ERR_DATA for a template that does not
// parse and for a config.json of a smaller vocabulary than the tokenizer's.
Status chat_format_open(ChatFormat *format, const Tokenizer *tokenizer, const char *tokenizer_path,
                        const char *named);
void chat_format_close(ChatFormat *format);

// The tools of one thread.
typedef struct {
    const ChatFormat *format;
    const JinjaTemplate *template; // that of the format which is used for the conversation
    Encoder *encoder;
    JinjaOutput whole, part;
    int64_t steps; // of all renderings of the conversation
    size_t *ends;  // of the tokens of a conversation
    size_t capacity;
} ChatWorker;

Status chat_worker_open(ChatWorker *worker, const ChatFormat *format);
void chat_worker_close(ChatWorker *worker);
// Appends the tokens of the conversation, and for each 1 or 0: it is trained or not; the first one never is. Fails with
// ERR_DATA, in words to which the caller adds the place; INTERRUPTED when `stopped` is set.
Status chat_encode(ChatWorker *worker, const Json *line, TokenList *tokens, TokenList *mask);
// The same for both conversations of a pair, the chosen one first: it has `chosen` tokens.
Status chat_encode_pair(ChatWorker *worker, const Json *line, TokenList *tokens, TokenList *mask,
                        size_t *chosen);

// Appends the tokens of messages, a list of objects with role and content, and of what asks for an answer to them.
// Fails with ERR_DATA where the template refuses them.
Status chat_prompt(ChatWorker *worker, const Json *messages, TokenList *tokens);
// Finds the built-in template that writes a conversation of two questions as the format's own, which marks no answers.
Status chat_find_marked(ChatFormat *format);
// Finds for which roles the template reads lists of parts: it writes their text, and not in Python's quotes.
// And whether it writes a content that is null as the word None.
Status chat_find_parts(ChatFormat *format);
// Finds the token by which the template ends an answer; -1: it ends with no special token, or refuses a conversation of
// a question and an answer.
Status chat_turn_end(ChatWorker *worker, int32_t *end);

// Appends the source of a template with {% if true %} in the place of {% generation %}, which few others know.
void template_without_marks(const char *source, size_t size, Text *out);

// A built-in template.
typedef struct {
    const char *name, *source;
    const char *markers; // tokens that it writes, separated by blanks, each one token of the vocabulary
} ChatTemplate;

const ChatTemplate *chat_template_named(const char *name); // NULL: there is none
void chat_template_names(Text *names);                     // appends all, for messages
extern const ChatTemplate chat_templates[];
extern const int num_chat_templates;
