// A tokenizer.json that cannot be read beside a model that can; what others put around a text, and the template
// of a conversation.
#include "base/file.h"
#include "small_sentencepiece.h"
#include "small_tokenizer.h"
#include "tokenizer/internal.h"

// A folder as Llama 2 comes: its tokenizer.json cannot be read, but there is the model that it was made of.
static void the_model_beside_is_taken(void) {
    static const char config[] = "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_eos_token\": true}";
    Parts parts = plain;
    parts.model = "\"type\": \"BPE\", \"byte_fallback\": true";
    Text json = json_of(parts), model = sentencepiece_model();
    Tokenizer *t = NULL;
    EXPECT_OK(folder_make(harness_path("both")));
    EXPECT_OK(file_write(harness_path("both/tokenizer.json"), json.data, json.size));
    EXPECT(tokenizer_open_path(&t, harness_path("both")) == ERR_UNAVAILABLE && !t, "there is no other yet");
    EXPECT_OK(file_write(harness_path("both/tokenizer.model"), model.data, model.size));
    EXPECT_OK(file_write(harness_path("both/tokenizer_config.json"), config, strlen(config)));
    EXPECT_OK(tokenizer_open_path(&t, harness_path("both")));
    if (t) {
        TokenizerUse use;
        const char *note = text_string(&t->note);
        EXPECT(tokenizer_kind(t) == TOKENIZER_SENTENCEPIECE, "kind");
        expect_ids(t, "abab", "3 4 5");
        EXPECT(strstr(note, "both/tokenizer.model, since ") &&
                   strstr(note, "byte_fallback is not supported") && strstr(note, "1 added tokens"),
               "%s", note);
        EXPECT_OK(tokenizer_use_read(&use, t));
        EXPECT(use.adds_bos && use.adds_eos && !use.chat_template, "by its class and configuration");
        tokenizer_use_free(&use);
    }
    tokenizer_close(t);
    EXPECT(tokenizer_open_path(&t, harness_path("both/tokenizer.json")) == ERR_UNAVAILABLE,
           "that file was meant");
    EXPECT_OK(file_write(harness_path("both/tokenizer.json"), "{", 1));
    EXPECT(tokenizer_open_path(&t, harness_path("both")) == ERR_DATA && !t, "a damaged one is told");
    text_free(&json);
    text_free(&model);
}

// ---- What others do with one ----------------------------------------------------------------------------

static void expect_use(const char *processor, const char *config, bool bos, bool eos, const char *template) {
    Parts parts = plain;
    Text json = {0}, whole = json_of(parts);
    Tokenizer *t = NULL;
    TokenizerUse use = {0};
    text_add(&json, "{\"post_processor\": %s, %s", processor, text_string(&whole) + 1);
    EXPECT_OK(file_write(harness_path("use.tokenizer_config.json"), config, strlen(config)));
    t = opened_text("use.tokenizer.json", &json);
    if (t) EXPECT_OK(tokenizer_use_read(&use, t));
    const char *found = use.chat_template ? use.chat_template : "";
    EXPECT(use.adds_bos == bos && use.adds_eos == eos, "%s, %s: %d %d", processor, config, use.adds_bos,
           use.adds_eos);
    EXPECT(!strcmp(found, template), "the template '%s' of %s", found, config);
    tokenizer_use_free(&use);
    tokenizer_close(t);
    text_free(&json);
    text_free(&whole);
}

static void uses(void) {
#define TOKEN(name)  "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": 0}}"
#define TEMPLATE(of) "{\"type\": \"TemplateProcessing\", \"single\": [" of "]}"
#define SEQUENCE     "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"
#define ENDS         "\"bos_token\": \"ab\", \"eos_token\": \"bc\""
#define LLAMA3                                                                                               \
    "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, " TEMPLATE(                        \
        TOKEN("ab") ", " SEQUENCE) "]}"
    expect_use("null", "{" ENDS "}", false, false, "");
    expect_use(LLAMA3, "{" ENDS "}", true, false, "");
    expect_use(TEMPLATE(SEQUENCE ", " TOKEN("bc")), "{" ENDS "}", false, true, "");
    expect_use(TEMPLATE(TOKEN("abc") ", " SEQUENCE), "{" ENDS "}", false, false, "");
    expect_use(LLAMA3, "{" ENDS ", \"add_bos_token\": false, \"add_eos_token\": true}", false, true, "");
    expect_use("null", "{" ENDS ", \"add_bos_token\": true, \"chat_template\": \"{{ x }}\"}", true, false,
               "{{ x }}");
    expect_use("null",
               "{" ENDS ", \"chat_template\": [{\"name\": \"tools\", \"template\": \"t\"}, "
               "{\"name\": \"default\", \"template\": \"d\"}]}",
               false, false, "d");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"the_model_beside_is_taken", the_model_beside_is_taken}, {"uses", uses}, {0}}, argc,
        argv);
}
