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
    Text place = {0};
    EXPECT_OK(corpus_look(harness_path(name), keys, 1, &contents, &place));
    text_free(&place);
    return contents;
}

static void expect_refused(const char *name, const char *text, const char *words) {
    CorpusContents contents;
    EXPECT_OK(file_write(harness_path(name), text, strlen(text)));
    Text place = {0};
    Status status = corpus_look(harness_path(name), keys, 1, &contents, &place);
    text_free(&place);
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

// ---- folders -----------------------------------------------------------------------------------------------

static void put(const char *name, const char *text) {
    EXPECT_OK(file_write(harness_path(name), text, strlen(text)));
}

static void expect_folder(const char *name, CorpusContents contents, const char *decides) {
    CorpusContents found;
    Text place = {0}, expected = {0};
    text_add(&expected, "%s", harness_path(decides));
    EXPECT_OK(corpus_look(harness_path(name), keys, 1, &found, &place));
    EXPECT(found == contents && !strcmp(text_string(&place), text_string(&expected)), "%s: %d by %s", name,
           (int)found, text_string(&place));
    text_free(&place);
    text_free(&expected);
}

// Files of JSON decide, and not what comes with them.
static void folders(void) {
    CorpusContents found;
    Text place = {0};
    EXPECT_OK(folder_make(harness_path("chats")));
    put("chats/README.md", "# Chats\n");
    put("chats/dataset_info.json", "{\"splits\": 1}\n");
    put("chats/a.json", "{\"text\": 1}\n");
    put("chats/train.jsonl", "\n{\"messages\": 1}\n");
    expect_folder("chats", HOLDS_CONVERSATIONS, "chats/train.jsonl:2");
    EXPECT_OK(folder_make(harness_path("json")));
    put("json/README.md", "# Chats\n");
    put("json/a.json", "{\"messages\": 1}\n{\"messages\": 1}\n");
    expect_folder("json", HOLDS_CONVERSATIONS, "json/a.json:1");
    static const char *const LISTS[] = {"[{\"messages\": 1}]", "[\n{\"messages\": 1}\n]\n"};
    for (int i = 0; i < 2; i++) {
        put("json/a.json", LISTS[i]);
        EXPECT(corpus_look(harness_path("json"), keys, 1, &found, &place) == ERR_DATA &&
                   strstr(fail_message(), "a.json:1: a list "),
               "%s", fail_message());
    }
    // Of a program.
    put("json/a.json", "{\n\"version\": 1\n}\n");
    expect_folder("json", HOLDS_TEXT, "json/README.md");
    text_free(&place);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"contents", contents}, {"folders", folders}, {0}}, argc, argv);
}
