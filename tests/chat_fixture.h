// Jobs of `trireme prepare-chat` on a few lines, with a small tokenizer and template. Included by the tests of
// conversations and of pairs.
#pragma once
#include "corpus/chat.h"
#include "small_tokenizer.h"
#include <string.h>

static const char MARKED[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// No built-in template writes the same text, because of the message "first answer".
static const char UNMARKED[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ 'x' if m.content == 'first answer' else m.content }}<|im_end|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// ---- a model's folder -----------------------------------------------------------------------------------------

static inline void put(const char *name, const char *text) {
    EXPECT_OK(file_write(harness_path(name), text, strlen(text)));
}

static inline void make_folder(const char *template) {
    Parts parts = plain;
    parts.added = "{\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true},"
                  "{\"id\": 262, \"content\": \"<|im_start|>\", \"special\": true},"
                  "{\"id\": 263, \"content\": \"<|im_end|>\", \"special\": true}";
    Text tokenizer = json_of(parts), config = {0};
    EXPECT_OK(folder_make(harness_path("model")));
    text_add(&config, "{\"eos_token\": \"<|im_end|>\"");
    if (template) {
        text_add(&config, ", \"chat_template\": ");
        json_add_string(&config, template, strlen(template));
    }
    text_add(&config, "}");
    EXPECT_OK(file_write(harness_path("model/tokenizer.json"), tokenizer.data, tokenizer.size));
    EXPECT_OK(file_write(harness_path("model/tokenizer_config.json"), config.data, config.size));
    text_free(&tokenizer);
    text_free(&config);
}

// The job of one file of lines.
typedef struct {
    char input[4096], prefix[4096], folder[4096];
    const char *inputs[1];
    ChatJob job;
} Small;

static inline void small_job(Small *s, const char *lines) {
    put("chats.jsonl", lines);
    snprintf(s->input, sizeof s->input, "%s", harness_path("chats.jsonl"));
    snprintf(s->prefix, sizeof s->prefix, "%s", harness_path("chats"));
    snprintf(s->folder, sizeof s->folder, "%s", harness_path("model"));
    s->inputs[0] = s->input;
    s->job = (ChatJob){.inputs = s->inputs,
                       .num_inputs = 1,
                       .output_prefix = s->prefix,
                       .tokenizer_path = s->folder,
                       .seq_length = 255,
                       .pack = true,
                       .workers = 1};
}

// ---- shapes and masks ---------------------------------------------------------------------------------------

// Adds the text, with '[' and ']' around what is trained.
static inline Status note(void *self, const ChatSample *sample) {
    Text *out = self;
    for (size_t i = 0; i < sample->count; i++) {
        int before = i ? sample->mask[i - 1] : 0;
        if (sample->mask[i] != before) text_add(out, "%s", before ? "]" : "[");
        TRY(tokenizer_decode(sample->tokenizer, &sample->tokens[i], 1, out));
    }
    text_add(out, "%s\n", sample->mask[sample->count - 1] ? "]" : "");
    return OK;
}

static inline void expect_refused(Small *small, Status status, const char *words) {
    ChatSummary summary;
    Status got = chat_prepare(&small->job, &summary);
    EXPECT(got == status && strstr(fail_message(), words), "%s\nis expected, got %d:\n%s", words, (int)got,
           fail_message());
    if (got == OK) text_free(&summary.left_out);
    Text made = {0};
    text_add(&made, "%s.idx", small->prefix);
    EXPECT(!file_exists(made.data), "a data set was written");
    text_free(&made);
}

// The conversations of the lines are shown as `expected`, and nothing is written.
static void expect_shown(Small *small, const char *lines, const char *expected) {
    Text text = {0};
    ChatSummary summary;
    small->job.output_prefix = NULL;
    small->job.show = note;
    small->job.self = &text;
    small->job.num_shown = 100;
    EXPECT_OK(chat_prepare(&small->job, &summary));
    EXPECT(!strcmp(text_string(&text), expected), "%s\ngives\n%s\ninstead of\n%s", lines, text_string(&text),
           expected);
    text_free(&text);
    text_free(&summary.left_out);
}
