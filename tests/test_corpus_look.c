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
    EXPECT(contents_of("a.jsonl", "{\"text\": \"messages\"}\n{\"messages\": 1}\n") == HOLDS_TEXT, "text");
    EXPECT(contents_of("a.txt", "{\"messages\": 1}\n") == HOLDS_TEXT, "a text file");
    expect_refused("empty.jsonl", "", "empty.jsonl: it is empty");
    expect_refused("blank.jsonl", "\n \n", "blank.jsonl: it is empty");
    expect_refused("a.jsonl", "\n{\"body\": \"x\"}\n", "a.jsonl:2: neither a conversation");
    expect_refused("a.jsonl", "[\n{\"messages\": 1}\n]\n", "a.jsonl:1: a list over many lines");
    expect_refused("a.jsonl", "{\"messages\": \n", "a.jsonl:1");
}

// The question of this template, and what is behind an answer.
static void expect_question(const char *template, const char *prompt, const char *end) {
    Text tokenizer = json_of(plain), found = {0}, ends = {0};
    Tokenizer *t;
    EXPECT_OK(folder_make(harness_path("model")));
    EXPECT_OK(file_write(harness_path("model/tokenizer.json"), tokenizer.data, tokenizer.size));
    EXPECT_OK(file_write(harness_path("mine.jinja"), template, strlen(template)));
    EXPECT_OK(tokenizer_open_path(&t, harness_path("model")));
    EXPECT_OK(chat_question(t, harness_path("model"), harness_path("mine.jinja"), "who?", &found, &ends));
    EXPECT(!strcmp(text_string(&found), prompt), "'%s', not '%s'", text_string(&found), prompt);
    EXPECT(!strcmp(text_string(&ends), end), "'%s', not '%s'", text_string(&ends), end);
    tokenizer_close(t);
    text_free(&tokenizer);
    text_free(&found);
    text_free(&ends);
}

static void questions(void) {
    expect_question("{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}"
                    "{% if add_generation_prompt %}<assistant>{% endif %}",
                    "<user>who?</s>\n<assistant>", "</s>");
    expect_question("{% for m in messages %}{{ m.content }}\n{% endfor %}", "who?\n", "");
    expect_question("no messages", "no messages", "");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"contents", contents}, {"questions", questions}, {0}}, argc, argv);
}
