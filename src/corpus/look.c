// Finds what training data hold, conversations or text, by their first document.
#include "corpus/chat_messages.h"
#include "corpus/corpus.h"
#include "corpus/corpus_reader.h"
#include <inttypes.h>
#include <string.h>

// The keys by which chat_messages.c knows the shapes of conversations.
static bool is_conversation(const Json *line) {
    static const char *const keys[] = {"messages", "conversations", "instruction", "prompt"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_member(line, keys[i])) return true;
    return false;
}

static Status look_at_line(const Json *line, const char *what, const char *const *keys, int num_keys,
                           CorpusContents *contents) {
    bool pair = json_member(line, "chosen") && json_member(line, "rejected");
    *contents = pair ? HOLDS_PAIRS : is_conversation(line) ? HOLDS_CONVERSATIONS : HOLDS_TEXT;
    if (*contents != HOLDS_TEXT) return OK;
    for (int i = 0; i < num_keys; i++)
        if (json_member(line, keys[i])) return OK;
    return fail(
        ERR_DATA,
        "%s: neither a conversation (\"messages\", \"conversations\", \"instruction\" or \"prompt\") nor "
        "a text (\"%s\"): name the key of the text by --json-keys",
        what, num_keys ? keys[0] : "text");
}

static Status look_at(const DocumentBatch *batch, const char *input, const char *const *keys, int num_keys,
                      CorpusContents *contents) {
    char what[4200];
    Json *line;
    *contents = HOLDS_TEXT;
    if (!batch->count)
        return fail(ERR_DATA, "%s: it is empty: there is no conversation and no text to train on", input);
    const Document *first = &batch->documents[0];
    if (!first->line) return OK;
    snprintf(what, sizeof what, "%s:%" PRId64, first->path, first->line);
    Status status = json_parse(&line, batch->raw + first->start, first->bytes, what);
    if (status != OK) TRY(refuse_list(what, NULL, batch->raw[first->start]));
    TRY(status);
    status = refuse_list(what, line, 0);
    if (status == OK) status = look_at_line(line, what, keys, num_keys, contents);
    json_free(line);
    return status;
}

Status corpus_look(const char *input, const char *const *keys, int num_keys, CorpusContents *contents) {
    Corpus corpus;
    CorpusReader reader;
    DocumentBatch batch = {0};
    TRY(corpus_open(&corpus, &input, 1));
    corpus_reader_open(&reader, &corpus, (ReadOptions){.may_cut = true});
    Status status = corpus_read(&reader, &batch);
    if (status == OK) status = look_at(&batch, input, keys, num_keys, contents);
    batch_free(&batch);
    corpus_reader_close(&reader);
    corpus_close(&corpus);
    return status;
}
