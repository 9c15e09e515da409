// What belongs to a model beside its weights comes in with it, stays in our checkpoints and goes out again.
#include "base/file.h"
#include "checkpoint_models.h"
#include "formats/gguf.h"
#include "small_sentencepiece.h"

static void put(const char *folder, const char *name, const char *text, size_t size) {
    EXPECT_OK(file_write(inside(folder, name).text, text, size));
}

// The model in a Hugging Face folder with a tokenizer, and with one member of config.json replaced.
static Path their_model(const char *save, const char *name, const char *member, const char *value) {
    ModelShape shape = llama();
    Text pieces = sentencepiece_model(), wanted = {0}, edited = {0};
    Path folder = inside(save, name);
    char *config;
    size_t size;
    if (!file_exists(inside(save, "step-00000007").text)) make_checkpoint(save, &shape, 7, 5);
    export_to(save, folder.text, FILE_F32);
    EXPECT_OK(file_read(inside(folder.text, "config.json").text, 1 << 20, &config, &size));
    text_add(&wanted, "\"%s\": null", member);
    char *at = strstr(config, wanted.data);
    EXPECT(at, "config.json has no %s", wanted.data);
    if (at)
        text_add(&edited, "%.*s\"%s\": %s%s", (int)(at - config), config, member, value, at + wanted.size);
    put(folder.text, "config.json", text_string(&edited), edited.size);
    put(folder.text, "tokenizer.model", pieces.data, pieces.size);
    free(config);
    text_free(&pieces);
    text_free(&wanted);
    text_free(&edited);
    return folder;
}

static void expect_ends(const char *path, const char *wanted) {
    ModelSource *source;
    Tokenizer *tokenizer = NULL;
    TokenList ends = {0};
    Text found = {0};
    EXPECT_OK(model_source_open(&source, path, -1));
    if (!source) return;
    if (model_source_tokenizer(source, &tokenizer) != OK) tokenizer = NULL;
    EXPECT_OK(model_source_ends(source, tokenizer, &ends));
    for (size_t i = 0; i < ends.count; i++) text_add(&found, " %d", (int)ends.ids[i]);
    EXPECT(!strcmp(text_string(&found), wanted), "%s: ends are%s, not%s", path, text_string(&found), wanted);
    text_free(&found);
    token_list_free(&ends);
    tokenizer_close(tokenizer);
    model_source_close(source);
}

static int64_t number(const Gguf *file, const char *key) {
    int64_t value = -1;
    (void)gguf_int(gguf_find(file, key), &value);
    return value;
}

// eos_token_id is a number, or a list of them.
static void end_tokens(void) {
    Path save = path_of("ends"), theirs = their_model(save.text, "theirs", "eos_token_id", "[2, 40]"),
         imported = inside(save.text, "imported"), back = inside(save.text, "back"),
         file = inside(save.text, "model.gguf");
    ModelSource *source;
    Gguf *gguf;
    import_to(theirs.text, imported.text);
    export_to(imported.text, back.text, FILE_F32);
    char *config;
    size_t size;
    EXPECT_OK(file_read(inside(back.text, "config.json").text, 1 << 20, &config, &size));
    EXPECT(strstr(config, "\"eos_token_id\": [2, 40],"), "%s", config);
    EXPECT(strstr(config, "\"bos_token_id\": null,"), "what the file says, not the tokenizer: %s", config);
    free(config);
    expect_same_file(inside(theirs.text, "config.json").text, inside(back.text, "config.json").text);
    expect_ends(theirs.text, " 2 40");
    expect_ends(imported.text, " 2 40");
    put(theirs.text, "generation_config.json", "{\"eos_token_id\": [40, 50, 2, 67, -1]}", 37);
    expect_ends(theirs.text, " 2 40 50");
    EXPECT_OK(model_source_open(&source, imported.text, -1));
    EXPECT_OK(export_gguf(source, file.text, GGUF_F32));
    model_source_close(source);
    EXPECT_OK(gguf_open(&gguf, file.text));
    EXPECT(number(gguf, "tokenizer.ggml.eos_token_id") == 2 &&
               number(gguf, "tokenizer.ggml.eot_token_id") == 40,
           "the end of a turn");
    gguf_close(gguf);
    expect_ends(file.text, " 2 40");
}

// The chat template inside a GGUF file is the model's.
static void template_of_gguf(void) {
    Path save = path_of("template"), theirs = their_model(save.text, "theirs", "eos_token_id", "2"),
         imported = inside(save.text, "imported"), file = inside(save.text, "model.gguf");
    ModelSource *source;
    put(theirs.text, "chat_template.jinja", "{{ messages }}", 14);
    EXPECT_OK(model_source_open(&source, theirs.text, -1));
    EXPECT_OK(export_gguf(source, file.text, GGUF_F32));
    model_source_close(source);
    import_to(file.text, imported.text);
    expect_same_file(inside(theirs.text, "chat_template.jinja").text,
                     inside(imported.text, "step-00000000/chat_template.jinja").text);
}

// Templates with names come in and go out, and nothing else of their folder.
static void named_templates(void) {
    Path save = path_of("named"), theirs = their_model(save.text, "theirs", "eos_token_id", "2"),
         imported = inside(save.text, "imported"), back = inside(save.text, "back"),
         folder = inside(theirs.text, "additional_chat_templates");
    EXPECT_OK(folder_make(folder.text));
    put(folder.text, "rag.jinja", "{{ documents }}", 15);
    put(folder.text, "a.jinja", "{{ tools }}", 11);
    put(folder.text, "notes.txt", "x", 1);
    put(folder.text, ".jinja", "x", 1);
    import_to(theirs.text, imported.text);
    export_to(imported.text, back.text, FILE_F32);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "additional_chat_templates/rag.jinja" : "additional_chat_templates/a.jinja";
        expect_same_file(inside(theirs.text, name).text, inside(back.text, name).text);
    }
    EXPECT(!file_exists(inside(back.text, "additional_chat_templates/notes.txt").text) &&
               !file_exists(inside(back.text, "additional_chat_templates/.jinja").text),
           "other files went along");
}

static void refuse_ends(const char *save, const char *name, const char *value, const char *words) {
    Path folder = their_model(save, name, "eos_token_id", value);
    ModelSource *source;
    EXPECT(model_source_open(&source, folder.text, -1) == ERR_DATA && strstr(fail_message(), words), "%s: %s",
           value, fail_message());
}

static void bad_tokens(void) {
    Path save = path_of("bad");
    Text many = {0};
    refuse_ends(save.text, "word", "\"</s>\"", "\"eos_token_id\" is neither null nor the number of a token");
    refuse_ends(save.text, "half", "[1, 1.5]", "nor a list of at most 32");
    for (int i = 0; i < 33; i++) text_add(&many, "%s%d", i ? "," : "[", i);
    text_add(&many, "]");
    refuse_ends(save.text, "many", many.data, "nor a list of at most 32");
    text_free(&many);
    Path folder = their_model(save.text, "broken", "eos_token_id", "7");
    ModelSource *source;
    TokenList ends = {0};
    put(folder.text, "generation_config.json", "{\"eos_token_id\": {}}", 20);
    EXPECT_OK(model_source_open(&source, folder.text, -1));
    EXPECT(model_source_ends(source, NULL, &ends) == ERR_DATA &&
               strstr(fail_message(), "generation_config.json: byte 17"),
           "%s", fail_message());
    token_list_free(&ends);
    model_source_close(source);
}

// Tokens behind a SentencePiece model, as Phi-3 has them, are rows of the table: a GGUF file names them.
static void added_words(void) {
    static const char config[] =
        "{\"added_tokens_decoder\": {\"2\": {\"content\": \"</s>\"}, \"40\": {\"content\": "
        "\"<|end|>\", \"special\": true}, \"41\": {\"content\": \"word\"}, \"x\": 1}}";
    Path save = path_of("added"), theirs = their_model(save.text, "theirs", "eos_token_id", "[2, 40]"),
         file = inside(save.text, "model.gguf");
    ModelSource *source;
    Gguf *gguf;
    put(theirs.text, "tokenizer_config.json", config, strlen(config));
    EXPECT_OK(model_source_open(&source, theirs.text, -1));
    EXPECT_OK(export_gguf(source, file.text, GGUF_F32));
    model_source_close(source);
    EXPECT_OK(gguf_open(&gguf, file.text));
    const GgufPair *tokens = gguf_find(gguf, "tokenizer.ggml.tokens"),
                   *types = gguf_find(gguf, "tokenizer.ggml.token_type");
    CHECK(tokens && types && tokens->count == 67 && types->count == 67, "no tokens");
    EXPECT(!strncmp(tokens->text[40].data, "<|end|>", 7) && !strncmp(tokens->text[41].data, "word", 4) &&
               !strncmp(tokens->text[42].data, "[PAD42]", 7),
           "%.7s %.4s", tokens->text[40].data, tokens->text[41].data);
    int32_t type[67];
    memcpy(type, types->data, sizeof type);
    EXPECT(type[0] == 2 && type[2] == 3 && type[3] == 1 && type[40] == 3 && type[41] == 4 && type[42] == 5,
           "types %d %d %d %d %d %d", type[0], type[2], type[3], type[40], type[41], type[42]);
    gguf_close(gguf);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"end_tokens", end_tokens},
                                      {"template_of_gguf", template_of_gguf},
                                      {"named_templates", named_templates},
                                      {"bad_tokens", bad_tokens},
                                      {"added_words", added_words},
                                      {0}},
                       argc, argv);
}
