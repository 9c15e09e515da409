// Built-in chat templates: what takes their marks out, and where they mark the answers of a model's own template.
#include "corpus/chat_format.h"
#include "small_sentencepiece.h"
#include "small_tokenizer.h"
#include <string.h>

// Other programs know no {% generation %}: what stands in its place writes the same text.
static void marks_are_taken_out(void) {
    static const char SOURCE[] =
        "{{ a }}{%- generation %}b{% endgeneration -%} {% generations %}{% generation";
    Text out = {0};
    template_without_marks(SOURCE, strlen(SOURCE), &out);
    EXPECT(!strcmp(text_string(&out), "{{ a }}{%- if true %}b{% endif -%} {% generations %}{% generation"),
           "%s", text_string(&out));
    text_free(&out);
}

// A model's folder with a template that marks nothing.
static Tokenizer *folder_with(const char *template) {
    Parts parts = plain;
    parts.added = "{\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true},"
                  "{\"id\": 262, \"content\": \"<|im_start|>\", \"special\": true},"
                  "{\"id\": 263, \"content\": \"<|im_end|>\", \"special\": true}";
    Text json = json_of(parts), source = {0};
    Tokenizer *tokenizer = NULL;
    template_without_marks(template, strlen(template), &source);
    EXPECT_OK(folder_make(harness_path("own")));
    EXPECT_OK(file_write(harness_path("own/tokenizer.json"), json.data, json.size));
    EXPECT_OK(file_write(harness_path("own/chat_template.jinja"), source.data, source.size));
    EXPECT_OK(tokenizer_open_path(&tokenizer, harness_path("own")));
    text_free(&json);
    text_free(&source);
    return tokenizer;
}

// The text of a conversation with '[' and ']' around what is trained; or the message of a failure.
static void write_marked(const ChatFormat *format, const char *line, Text *out) {
    ChatWorker worker;
    Json *root;
    TokenList tokens = {0}, mask = {0};
    EXPECT_OK(chat_worker_open(&worker, format));
    EXPECT_OK(json_parse(&root, line, strlen(line), "line"));
    if (chat_encode(&worker, root, &tokens, &mask) != OK) text_add(out, "%s", fail_message());
    for (size_t i = 0; i < mask.count; i++) {
        int before = i ? mask.ids[i - 1] : 0;
        if (mask.ids[i] != before) text_add(out, "%s", before ? "]" : "[");
        EXPECT_OK(tokenizer_decode(format->tokenizer, &tokens.ids[i], 1, out));
    }
    json_free(root);
    token_list_free(&tokens);
    token_list_free(&mask);
    chat_worker_close(&worker);
}

static void expect_marked(const ChatFormat *format, const char *line, const char *wanted) {
    Text found = {0};
    write_marked(format, line, &found);
    EXPECT(strstr(text_string(&found), wanted), "%s\ngives\n%s\ninstead of\n%s", line, text_string(&found),
           wanted);
    text_free(&found);
}

// Qwen3's template leaves thoughts out once another question has come, so that rendering less does not find answers.
static void thoughts_are_no_obstacle(void) {
    static const char LINE[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
        "\"<think>\\nhm\\n</think>\\n\\na\"}, {\"role\": \"user\", \"content\": \"r\"}, {\"role\": \"assistant\", "
        "\"content\": \"<think>\\nso\\n</think>\\n\\nb\"}]}";
    ChatFormat format;
    int32_t end;
    ChatWorker worker;
    Tokenizer *tokenizer = folder_with(chat_template_named("qwen3")->source);
    EXPECT_OK(chat_format_open(&format, tokenizer, harness_path("own"), NULL));
    EXPECT(format.marked, "no template is found");
    expect_marked(&format, LINE,
                  "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n<|im_start|>user\nr"
                  "<|im_end|>\n<|im_start|>assistant\n[<think>\nso\n</think>\n\nb<|im_end|>]\n");
    expect_marked(&format, "{\"prompt\": \"q\", \"completion\": \"a\"}",
                  "<|im_start|>assistant\n[<think>\n\n</think>\n\na<|im_end|>]\n");
    EXPECT_OK(chat_worker_open(&worker, &format));
    EXPECT_OK(chat_turn_end(&worker, &end));
    EXPECT(end == 263, "an answer ends with token %d", (int)end);
    chat_worker_close(&worker);
    jinja_free(format.marked);
    format.marked = NULL;
    expect_marked(&format, LINE, "mark answers with {% generation %}");
    chat_format_close(&format);
    tokenizer_close(tokenizer);
}

// A template that writes another text is not taken, also where it does so in some conversations alone.
static void another_text_is_not_taken(void) {
    static const char LIKE[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | replace('x', 'y') }}"
        "<|im_end|>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    ChatFormat format;
    Tokenizer *tokenizer = folder_with(LIKE);
    EXPECT_OK(chat_format_open(&format, tokenizer, harness_path("own"), NULL));
    EXPECT(format.marked, "chatml");
    expect_marked(&format, "{\"prompt\": \"q\", \"completion\": \"x\"}",
                  "<|im_start|>assistant\n[y<|im_end|>]\n");
    chat_format_close(&format);
    tokenizer_close(tokenizer);
    tokenizer = folder_with("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
    EXPECT_OK(chat_format_open(&format, tokenizer, harness_path("own"), NULL));
    EXPECT(!format.marked, "a template that writes something else");
    chat_format_close(&format);
    tokenizer_close(tokenizer);
}

// Marks of turns that are control pieces of a SentencePiece model, as Gemma's, are tokens of a conversation.
static void control_pieces_are_tokens(void) {
    static const char TEMPLATE[] =
        "{{ bos_token }}{% for m in messages %}<turn>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<turn>{% endif %}";
    static const int32_t WANTED[] = {1, 3, 5, 4, 3, 5, 6, 4}; // <s> <turn> _a <end> <turn> _a b <end>
    Text model = {0};
    Tokenizer *tokenizer = NULL;
    ChatFormat format;
    ChatWorker worker;
    Json *line;
    TokenList tokens = {0}, mask = {0};
    add_piece(&model, "<unk>", 2);
    add_piece(&model, "<s>", 3);
    add_piece(&model, "</s>", 3);
    add_piece(&model, "<turn>", 3);
    add_piece(&model, "<end>", 3);
    add_piece(&model, "\xe2\x96\x81\x61", 1);
    add_piece(&model, "b", 1);
    text_add_bytes(&model, "\x12\x02\x18\x01", 4);
    text_add_bytes(&model, "\x1a\x0a\n\x08identity", 12);
    EXPECT_OK(folder_make(harness_path("gemma")));
    EXPECT_OK(file_write(harness_path("gemma/tokenizer.model"), model.data, model.size));
    EXPECT_OK(file_write(harness_path("gemma/chat_template.jinja"), TEMPLATE, strlen(TEMPLATE)));
    EXPECT_OK(tokenizer_open_path(&tokenizer, harness_path("gemma")));
    EXPECT_OK(chat_format_open(&format, tokenizer, harness_path("gemma"), NULL));
    EXPECT_OK(chat_worker_open(&worker, &format));
    EXPECT_OK(json_parse(&line, "{\"prompt\": \"a\", \"completion\": \"ab\"}", 35, "line"));
    EXPECT_OK(chat_encode(&worker, line, &tokens, &mask));
    EXPECT(tokens.count == 8 && !memcmp(tokens.ids, WANTED, sizeof WANTED), "%zu tokens", tokens.count);
    for (size_t i = 0; i < mask.count; i++) EXPECT(mask.ids[i] == (i > 4), "the mask of token %zu", i);
    json_free(line);
    token_list_free(&tokens);
    token_list_free(&mask);
    chat_worker_close(&worker);
    chat_format_close(&format);
    tokenizer_close(tokenizer);
    text_free(&model);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"marks_are_taken_out", marks_are_taken_out},
                                      {"thoughts_are_no_obstacle", thoughts_are_no_obstacle},
                                      {"another_text_is_not_taken", another_text_is_not_taken},
                                      {"control_pieces_are_tokens", control_pieces_are_tokens},
                                      {0}},
                       argc, argv);
}
