// Built-in chat templates, written from the documented formats of the model families, with their answers marked.
#include "corpus/chat_format.h"
#include <string.h>

// <|im_start|>role, a line end, the content, <|im_end|>, a line end. ChatML; Qwen, SmolLM.
static const char CHATML[] =
    "{% for message in messages %}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}\n"
    "{% if message['role'] == 'assistant' %}\n"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{- '\\n' -}}\n"
    "{% else %}\n"
    "{{- message['content'] + '<|im_end|>\\n' -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{% endif %}\n";

// Of Llama 3: each message is a header and a text without blanks around it.
static const char LLAMA3[] =
    "{{- bos_token -}}\n"
    "{% for message in messages %}\n"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}\n"
    "{% if message['role'] == 'assistant' %}\n"
    "{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}\n"
    "{% else %}\n"
    "{{- message['content'] | trim + '<|eot_id|>' -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n"
    "{% endif %}\n";

// [INST] question [/INST] answer</s>; a system message stands before the first question.
static const char MISTRAL[] =
    "{% set ns = namespace(before='') %}\n"
    "{{- bos_token -}}\n"
    "{% for message in messages %}\n"
    "{% if message['role'] == 'system' %}\n"
    "{% if not loop.first %}{{ raise_exception('a system message comes first') }}{% endif %}\n"
    "{% set ns.before = message['content'] + '\\n\\n' %}\n"
    "{% elif message['role'] == 'user' %}\n"
    "{{- '[INST] ' + ns.before + message['content'] + ' [/INST]' -}}\n"
    "{% set ns.before = '' %}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}\n"
    "{% else %}\n"
    "{{- raise_exception('the roles are system, user and assistant') -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n";

// Turns of user and model; a system message stands before the first question.
static const char GEMMA[] =
    "{% set ns = namespace(before='') %}\n"
    "{{- bos_token -}}\n"
    "{% for message in messages %}\n"
    "{% if message['role'] == 'system' %}\n"
    "{% if not loop.first %}{{ raise_exception('a system message comes first') }}{% endif %}\n"
    "{% set ns.before = message['content'] | trim + '\\n\\n' %}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "{{- '<start_of_turn>model\\n' -}}\n"
    "{% generation %}{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{{- '\\n' -}}\n"
    "{% elif message['role'] == 'user' %}\n"
    "{{- '<start_of_turn>user\\n' + ns.before + message['content'] | trim + '<end_of_turn>\\n' -}}\n"
    "{% set ns.before = '' %}\n"
    "{% else %}\n"
    "{{- raise_exception('the roles are system, user and assistant') -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "{{- '<start_of_turn>model\\n' -}}\n"
    "{% endif %}\n";

// <|role|>, a line end, the content, <|end|>, a line end. Phi-3.
static const char PHI3[] =
    "{% for message in messages %}\n"
    "{{- '<|' + message['role'] + '|>\\n' -}}\n"
    "{% if message['role'] == 'assistant' %}\n"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}{{- '\\n' -}}\n"
    "{% else %}\n"
    "{{- message['content'] + '<|end|>\\n' -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "{{- '<|assistant|>\\n' -}}\n"
    "{% endif %}\n";

// <|role|>, a line end, the content, the token that ends a text, a line end. The roles are no tokens.
static const char ZEPHYR[] =
    "{% for message in messages %}\n"
    "{{- '<|' + message['role'] + '|>\\n' -}}\n"
    "{% if message['role'] == 'assistant' %}\n"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{- '\\n' -}}\n"
    "{% else %}\n"
    "{{- message['content'] + eos_token + '\\n' -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "{{- '<|assistant|>\\n' -}}\n"
    "{% endif %}\n";

// As ChatML. Thoughts of an answer stand between <think> and </think>; those of answers before the last question are
// left out. The last answer has the two marks also where there are no thoughts. Qwen3.
static const char QWEN3[] =
    "{% set ns = namespace(last=messages | length - 1, found=false) %}\n"
    "{% for message in messages[::-1] %}\n"
    "{% if not ns.found and message['role'] == 'user' %}\n"
    "{% set ns.found = true %}\n"
    "{% set ns.last = messages | length - 1 - loop.index0 %}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% for message in messages %}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}\n"
    "{% if message['role'] == 'assistant' %}\n"
    "{% set parts = message['content'].split('</think>') %}\n"
    "{% set thoughts = '' %}\n"
    "{% set content = message['content'] %}\n"
    "{% if message['reasoning_content'] is string %}\n"
    "{% set thoughts = message['reasoning_content'] %}\n"
    "{% elif parts | length > 1 %}\n"
    "{% set thoughts = parts[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"
    "{% set content = parts[-1].lstrip('\\n') %}\n"
    "{% endif %}\n"
    "{% generation %}\n"
    "{% if loop.index0 > ns.last and (loop.last or thoughts) %}\n"
    "{{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}\n"
    "{% else %}\n"
    "{{- content -}}\n"
    "{% endif %}\n"
    "{{- '<|im_end|>' -}}\n"
    "{% endgeneration %}{{- '\\n' -}}\n"
    "{% elif message['role'] in ['user', 'system'] %}\n"
    "{{- message['content'] + '<|im_end|>\\n' -}}\n"
    "{% else %}\n"
    "{{- raise_exception('the roles are system, user and assistant') -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{% endif %}\n";

// A system message stands before the last question, if a question is what comes last. Mistral 7B v0.3.
static const char MISTRAL3[] =
    "{% set ns = namespace(before='') %}\n"
    "{{- bos_token -}}\n"
    "{% for message in messages %}\n"
    "{% if message['role'] == 'system' %}\n"
    "{% if not loop.first %}{{ raise_exception('a system message comes first') }}{% endif %}\n"
    "{% set ns.before = message['content'] + '\\n\\n' %}\n"
    "{% elif message['role'] == 'user' %}\n"
    "{{- '[INST] ' + (ns.before if loop.last else '') + message['content'] + '[/INST]' -}}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "{% generation %}{{ ' ' + message['content'] | trim + eos_token }}{% endgeneration %}\n"
    "{% else %}\n"
    "{{- raise_exception('the roles are system, user and assistant') -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n";

// Headings of plain text, for tokenizers without tokens for conversations.
static const char ALPACA[] =
    "{% for message in messages %}\n"
    "{% if message['role'] == 'system' %}\n"
    "{{- message['content'] + '\\n\\n' -}}\n"
    "{% elif message['role'] == 'user' %}\n"
    "{{- '### Instruction:\\n' + message['content'] + '\\n\\n' -}}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "{{- '### Response:\\n' -}}\n"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{- '\\n\\n' -}}\n"
    "{% else %}\n"
    "{{- raise_exception('the roles are system, user and assistant') -}}\n"
    "{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "{{- '### Response:\\n' -}}\n"
    "{% endif %}\n";

const ChatTemplate chat_templates[] = {
    {"chatml", CHATML, "<|im_start|> <|im_end|>"},
    {"qwen3", QWEN3, "<|im_start|> <|im_end|>"},
    {"llama3", LLAMA3, "<|start_header_id|> <|end_header_id|> <|eot_id|>"},
    {"mistral", MISTRAL, ""},
    {"mistral3", MISTRAL3, "[INST] [/INST]"},
    {"gemma", GEMMA, "<start_of_turn> <end_of_turn>"},
    {"phi3", PHI3, "<|user|> <|assistant|> <|end|>"},
    {"zephyr", ZEPHYR, ""},
    {"alpaca", ALPACA, ""},
};
const int num_chat_templates = sizeof chat_templates / sizeof *chat_templates;

const ChatTemplate *chat_template_named(const char *name) {
    for (int i = 0; i < num_chat_templates; i++)
        if (!strcmp(name, chat_templates[i].name)) return &chat_templates[i];
    return NULL;
}

void chat_template_names(Text *names) {
    for (int i = 0; i < num_chat_templates; i++)
        text_add(names, "%s%s", i ? ", " : "", chat_templates[i].name);
}

// ---- for other programs ------------------------------------------------------------------------------------------

// The bytes of a tag {% WORD %} at `at`, also with signs that strip blanks; 0: it is none.
static size_t tag_at(const char *at, const char *end, const char *word) {
    const char *c = at;
    if (end - c < 4 || c[0] != '{' || c[1] != '%') return 0;
    c += 2;
    if (*c == '-' || *c == '+') c++;
    while (c < end && strchr(" \t\r\n", *c) && *c) c++;
    size_t size = strlen(word);
    if ((size_t)(end - c) < size || memcmp(c, word, size) != 0) return 0;
    for (c += size; c < end && strchr(" \t\r\n", *c) && *c; c++) continue;
    if (c < end && (*c == '-' || *c == '+')) c++;
    return end - c >= 2 && c[0] == '%' && c[1] == '}' ? (size_t)(c + 2 - at) : 0;
}

static void add_tag(const char *tag, size_t size, const char *word, Text *out) {
    char before = tag[2], after = tag[size - 3];
    text_add(out, "{%%%s %s %s%%}",
             before == '-'   ? "-"
             : before == '+' ? "+"
                             : "",
             word,
             after == '-'   ? "-"
             : after == '+' ? "+"
                            : "");
}

void template_without_marks(const char *source, size_t size, Text *out) {
    const char *end = source + size;
    for (const char *at = source; at < end;) {
        size_t begins = tag_at(at, end, "generation"), ends = begins ? 0 : tag_at(at, end, "endgeneration");
        if (begins) add_tag(at, begins, "if true", out);
        if (ends) add_tag(at, ends, "endif", out);
        if (!begins && !ends) text_add_bytes(out, at, 1);
        at += begins + ends ? begins + ends : 1;
    }
}
