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

// The text has a key of conversations, as far as it was read.
static bool mentions_conversation(const char *text, size_t size) {
    static const char *const keys[] = {
        "\"messages\":", "\"conversations\":", "\"instruction\":", "\"prompt\":"};
    for (size_t i = 0; size && i < sizeof keys / sizeof *keys; i++)
        if (memmem(text, size, keys[i], strlen(keys[i]))) return true;
    return false;
}

static Status look_at(const DocumentBatch *batch, const char *input, const char *const *keys, int num_keys,
                      CorpusContents *contents, Text *place) {
    Json *line;
    *contents = HOLDS_TEXT;
    if (!batch->count)
        return fail(ERR_DATA, "%s: it is empty: there is no conversation and no text to train on", input);
    const Document *first = &batch->documents[0];
    text_add(place, "%s", first->path);
    if (!first->line) return OK;
    text_add(place, ":%" PRId64, first->line);
    Status status = json_parse(&line, batch->raw + first->start, first->bytes, place->data);
    if (status != OK) TRY(refuse_list(place->data, NULL, batch->raw[first->start]));
    TRY(status);
    status = refuse_list(place->data, line, 0);
    if (status == OK) status = look_at_line(line, place->data, keys, num_keys, contents);
    json_free(line);
    return status;
}

static Status look_at_corpus(const Corpus *corpus, const char *input, const char *const *keys, int num_keys,
                             CorpusContents *contents, Text *place, bool *chats) {
    CorpusReader reader;
    DocumentBatch batch = {0};
    place->size = 0;
    corpus_reader_open(&reader, corpus, (ReadOptions){.may_cut = true});
    Status status = corpus_read(&reader, &batch);
    if (status == OK) status = look_at(&batch, input, keys, num_keys, contents, place);
    *chats = status == OK ? *contents != HOLDS_TEXT : mentions_conversation(batch.raw, batch.raw_bytes);
    batch_free(&batch);
    corpus_reader_close(&reader);
    return status;
}

Status corpus_look(const char *input, const char *const *keys, int num_keys, CorpusContents *contents,
                   Text *place) {
    Corpus corpus;
    bool chats;
    TRY(corpus_open(&corpus, &input, 1));
    FolderLines lines = corpus_keep_lines(&corpus);
    Status status = look_at_corpus(&corpus, input, keys, num_keys, contents, place, &chats);
    corpus_close(&corpus);
    if (lines != LINES_JSON || chats) return status;
    // Such .json files are texts, as preprocess reads them: those of a program, say.
    TRY(corpus_open(&corpus, &input, 1));
    status = look_at_corpus(&corpus, input, keys, num_keys, contents, place, &chats);
    corpus_close(&corpus);
    return status;
}
