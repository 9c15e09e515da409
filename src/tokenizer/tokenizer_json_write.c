// Writes tokenizer.json and tokenizer_config.json for tokenizers that were not opened from such files: trained
// here, or opened from GPT-2's two files, tiktoken's ranks, or made of integers.
#include "tokenizer/internal.h"
#include <string.h>

static const char byte_level[] =
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
    "\"use_regex\": %s}";

static void write_pre_tokenizer(const Tokenizer *t, Text *out) {
    if (strcmp(t->patterns[0], gpt2_pattern) == 0) {
        text_add(out, byte_level, "true");
        return;
    }
    text_add(
        out,
        "{\"type\": \"Sequence\", \"pretokenizers\": [\n  {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    json_add_string(out, t->patterns[0], strlen(t->patterns[0]));
    text_add(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n  ");
    text_add(out, byte_level, "false");
    text_add(out, "]}");
}

static void write_model(const Bpe *bpe, Text *out) {
    text_add(
        out,
        "{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null,\n"
        "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": "
        "%s,\n\"vocab\": {",
        bpe->ignore_merges ? "true" : "false");
    for (uint32_t i = 0; i < bpe->spellings.count; i++) {
        size_t size;
        const char *spelling = bytes_map_at(&bpe->spellings, i, &size);
        text_add(out, "%s", i ? ",\n" : "\n");
        json_add_string(out, spelling, size);
        text_add(out, ": %u", i);
    }
    text_add(out, "},\n\"merges\": [");
    Text merge = {0};
    for (uint32_t i = 0; i < bpe->pairs.count; i++) {
        merge.size = 0;
        bpe_write_merge(bpe, i, &merge);
        text_add(out, "%s", i ? ",\n" : "\n");
        json_add_string(out, merge.data, merge.size);
    }
    text_free(&merge);
    text_add(out, "]}");
}

// The end token is not made an added token: otherwise text that contains its name would become that token.
void tokenizer_write_json(const Tokenizer *t, Text *out) {
    if (t->kind == TOKENIZER_NULL) {
        text_add(out, "{\"model\": {\"type\": \"Null\", \"size\": %d}}\n", t->null_size);
        return;
    }
    text_add(out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [],\n"
                  "\"normalizer\": null,\n\"pre_tokenizer\": ");
    write_pre_tokenizer(t, out);
    text_add(out, ",\n\"post_processor\": null,\n\"decoder\": ");
    text_add(out, byte_level, "true");
    text_add(out, ",\n\"model\": ");
    write_model(&t->bpe, out);
    text_add(out, "}\n");
}

static void write_end(const Tokenizer *t, const char *name, int id, Text *out) {
    if (id < 0) return;
    const char *spelling = tokenizer_spelling(t, id);
    text_add(out, ",\n  \"%s\": ", name);
    json_add_string(out, spelling, strlen(spelling));
}

void tokenizer_write_config(const Tokenizer *t, Text *out) {
    bool is_bpe = t->kind == TOKENIZER_BPE;
    text_add(out, "{\n  \"tokenizer_class\": \"%s\",\n  \"clean_up_tokenization_spaces\": false",
             is_bpe ? "PreTrainedTokenizerFast" : "LlamaTokenizer");
    if (!is_bpe) text_add(out, ",\n  \"add_bos_token\": false,\n  \"add_eos_token\": false");
    write_end(t, "bos_token", t->bos, out);
    write_end(t, "eos_token", t->eod, out);
    write_end(t, "unk_token", tokenizer_unknown(t), out);
    text_add(out, "\n}\n");
}
