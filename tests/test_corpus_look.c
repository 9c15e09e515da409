// What training data hold, by their first line; and a question as a model reads it.
#include "corpus/chat.h"
#include "corpus/corpus.h"
#include "harness.h"
#include "small_tokenizer.h"
#include <string.h>

static const char *const keys[] = {"text"};

static CorpusContents contents_of(const char *name, const char *text) {
    CorpusContents contents;
    EXPECT_OK(file_write(harness_path(name), text, strlen(text)));
    EXPECT_OK(corpus_look(harness_path(name), keys, 1, &contents));
    return contents;
}

static void expect_refused(const char *name, const char *text, const char *words) {
    CorpusContents contents;
    EXPECT_OK(file_write(harness_path(name), text, strlen(text)));
    Status status = corpus_look(harness_path(name), keys, 1, &contents);
    EXPECT(status == ERR_DATA && strstr(fail_message(), words), "%d: %s", status, fail_message());
}

static void contents(void) {
    static const char *const chats[] = {"messages", "conversations", "instruction", "prompt"};
    for (int i = 0; i < 4; i++) {
        char line[100];
        snprintf(line, sizeof line, "\n{\"%s\": 1, \"text\": \"x\"}\n{\"text\": \"x\"}\n", chats[i]);
        EXPECT(contents_of("a.jsonl", line) == HOLDS_CONVERSATIONS, "%s", chats[i]);
    }
    EXPECT(contents_of("a.jsonl", "{\"prompt\": 1, \"chosen\": 1, \"rejected\": 1}\n") == HOLDS_PAIRS,
           "pairs");
    EXPECT(contents_of("a.jsonl", "{\"text\": \"messages\"}\n{\"messages\": 1}\n") == HOLDS_TEXT, "text");
    EXPECT(contents_of("a.txt", "{\"messages\": 1}\n") == HOLDS_TEXT, "a text file");
    expect_refused("empty.jsonl", "", "empty.jsonl: it is empty");
    expect_refused("blank.jsonl", "\n \n", "blank.jsonl: it is empty");
    expect_refused("a.jsonl", "\n{\"body\": \"x\"}\n", "a.jsonl:2: neither a conversation");
    expect_refused("a.jsonl", "[\n{\"messages\": 1}\n]\n", "a.jsonl:1: a list over many lines");
    expect_refused("a.json", "[{\"messages\": 1}, {\"messages\": 1}]\n",
                   "a.json:1: a list on one line is no JSON lines: `jq -c '.[]' FILE` makes them of it");
    expect_refused("a.jsonl", "{\"messages\": \n", "a.jsonl:1");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"contents", contents}, {0}}, argc, argv);
}
