// The tokenizer inside a GGUF file: the ids of the one that it was written from, and what is refused.
#include "checkpoint/foreign/gguf_tokenizer.h"
#include "checkpoint_models.h"
#include "small_sentencepiece.h"
#include "small_tokenizer.h"

static const char *const texts[] = {"abc abca 1234 bc", "a\n\n b'll I'VE <|endoftext|>ab<tool> \t",
                                    "caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac 12345", " a  b", ""};
enum { NUM_TEXTS = sizeof texts / sizeof *texts };

static void expect_same_ids(const Tokenizer *wanted, const Tokenizer *found) {
    for (int i = 0; i < NUM_TEXTS; i++) {
        TokenList a = {0}, b = {0};
        EXPECT_OK(tokenizer_encode(wanted, texts[i], strlen(texts[i]), &a));
        EXPECT_OK(tokenizer_encode(found, texts[i], strlen(texts[i]), &b));
        EXPECT(a.count == b.count && (!a.count || !memcmp(a.ids, b.ids, a.count * sizeof *a.ids)),
               "other ids of \"%s\"", texts[i]);
        token_list_free(&a);
        token_list_free(&b);
    }
}

static void expect_same(const Tokenizer *wanted, const Tokenizer *found) {
    int count = tokenizer_vocab_size(wanted);
    EXPECT(tokenizer_kind(found) == tokenizer_kind(wanted) && tokenizer_vocab_size(found) == count &&
               tokenizer_eod(found) == tokenizer_eod(wanted) &&
               tokenizer_bos(found) == tokenizer_bos(wanted) &&
               tokenizer_unknown(found) == tokenizer_unknown(wanted) &&
               tokenizer_hash(found) == tokenizer_hash(wanted),
           "%d tokens, end %d, begin %d", tokenizer_vocab_size(found), tokenizer_eod(found),
           tokenizer_bos(found));
    for (int id = 0; id < count && id < tokenizer_vocab_size(found); id++)
        EXPECT(tokenizer_token_type(found, id) == tokenizer_token_type(wanted, id) &&
                   tokenizer_score(found, id) == tokenizer_score(wanted, id),
               "token %d", id);
    expect_same_ids(wanted, found);
}

// ---- of trireme's files -------------------------------------------------------------------------------------

// A model whose folder has the tokenizer, as a GGUF file.
static Path model_with(const char *name, const char *file, const Text *tokenizer, const char *config,
                       int rows) {
    ModelShape shape = llama();
    shape.vocabulary = rows, shape.hidden = 16, shape.heads = shape.groups = 2;
    Path save = path_of(name), folder = inside(save.text, "hf"), path = inside(save.text, "model.gguf");
    ModelSource *source;
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, folder.text, FILE_F32);
    EXPECT_OK(file_write(inside(folder.text, file).text, tokenizer->data, tokenizer->size));
    EXPECT_OK(file_write(inside(folder.text, "tokenizer_config.json").text, config, strlen(config)));
    EXPECT_OK(model_source_open(&source, folder.text, -1));
    if (source) EXPECT_OK(export_gguf(source, path.text, GGUF_F32));
    model_source_close(source);
    return path;
}

static Tokenizer *inside_of(const char *path) {
    ModelSource *source;
    Tokenizer *t = NULL;
    EXPECT_OK(model_source_open(&source, path, -1));
    if (source) EXPECT_OK(model_source_tokenizer(source, &t));
    model_source_close(source);
    return t;
}

static void expect_comes_back(const char *name, const char *file, const Text *text, const char *config,
                              int rows) {
    Path path = model_with(name, file, text, config, rows);
    Path folder = inside(path_of(name).text, "hf"), again = inside(path_of(name).text, "again");
    Tokenizer *wanted = NULL, *found = inside_of(path.text), *saved = NULL;
    EXPECT_OK(tokenizer_open_path(&wanted, folder.text));
    if (wanted && found) {
        TokenizerUse a, b;
        expect_same(wanted, found);
        EXPECT_OK(tokenizer_use_read(&a, wanted));
        EXPECT_OK(tokenizer_use_read(&b, found));
        EXPECT(a.adds_bos == b.adds_bos && a.adds_eos == b.adds_eos, "%s: what begins and ends texts", name);
        EXPECT(!a.chat_template == !b.chat_template &&
                   (!a.chat_template || !strcmp(a.chat_template, b.chat_template)),
               "%s: the chat template", name);
        tokenizer_use_free(&a);
        tokenizer_use_free(&b);
        // What is saved of it is opened as any other tokenizer.
        EXPECT_OK(folder_make(again.text));
        EXPECT_OK(tokenizer_save_folder(found, again.text));
        EXPECT_OK(tokenizer_open_path(&saved, again.text));
        if (saved) expect_same(wanted, saved);
    }
    tokenizer_close(wanted);
    tokenizer_close(found);
    tokenizer_close(saved);
}

static const char added[] = "{\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true}, {\"id\": 262, "
                            "\"content\": \"<tool>\", \"special\": false, \"normalized\": false}";
static const char config[] = "{\"eos_token\": \"<|endoftext|>\", \"bos_token\": \"<|endoftext|>\", "
                             "\"add_bos_token\": true, \"chat_template\": \"{{ messages }}\"}";

static const char every_merge[] = "\"a b\", \"ab c\", \"\xc4\xa0 a\", \"b c\", \"abc a\"";

// Each way to cut text that has a name; the table of the model has rows behind the vocabulary.
static void byte_level(void) {
#define SPLIT(pattern)                                                                                       \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern \
    "\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}"
#define CUT(digits)                                                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits                           \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
    static const struct {
        const char *cut, *model, *merges; // NULL: of the plain one
    } cases[] = {
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "\"type\": \"BPE\"", NULL},
        {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}, "
         "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}",
         "\"type\": \"BPE\"", NULL},
        {SPLIT(CUT("\\\\p{N}")), "\"type\": \"BPE\"", NULL},
        {SPLIT(CUT("\\\\p{N}{1,3}")), "\"type\": \"BPE\"", NULL},
        {SPLIT(CUT("\\\\p{N}{1,3}")), "\"type\": \"BPE\", \"ignore_merges\": true", NULL},
        // llama.cpp knows this cut without ignore_merges alone, which changes nothing where merges make all tokens.
        {SPLIT(CUT("\\\\p{N}")), "\"type\": \"BPE\", \"ignore_merges\": true", every_merge},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        Parts parts = plain;
        parts.pre_tokenizer = cases[i].cut, parts.model = cases[i].model, parts.added = added;
        if (cases[i].merges) parts.merges = cases[i].merges;
        Text text = json_of(parts);
        snprintf(name, sizeof name, "cut%zu", i);
        expect_comes_back(name, "tokenizer.json", &text, config, i % 2 ? 263 : 270);
        text_free(&text);
    }
#undef SPLIT
#undef CUT
}

// The plain one lacks the merge that makes "abca".
static void merges_that_make_all(void) {
    Path folder = path_of("merges");
    EXPECT_OK(folder_make(folder.text));
    for (int all = 0; all < 2; all++) {
        Tokenizer *t;
        Parts parts = plain;
        if (all) parts.merges = every_merge;
        Text text = json_of(parts);
        EXPECT_OK(file_write(inside(folder.text, "tokenizer.json").text, text.data, text.size));
        EXPECT_OK(tokenizer_open_path(&t, folder.text));
        if (t) EXPECT(tokenizer_merges_suffice(t) == all, "%d", all);
        tokenizer_close(t);
        text_free(&text);
    }
}

static void add_field(Text *out, unsigned field, char value) {
    text_add_bytes(out, (const char[]){(char)(field << 3), value}, 2);
}

// SentencePiece's BPE as Llama 2 has it, with and without a blank before a text, and one that removes blanks.
static void pieces(void) {
    static const char unigram_config[] =
        "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": false}";
    Text unigram = sentencepiece_model();
    expect_comes_back("unigram", "tokenizer.model", &unigram, unigram_config, 9);
    text_free(&unigram);
    for (int i = 0; i < 3; i++) {
        static const char spelling[] = "{\"tokenizer_class\": \"LlamaTokenizer\"}";
        char name[32];
        Text model = sentencepiece_model();
        enum { TAIL = 16 }; // trainer and normalizer
        model.size -= TAIL;
        add_piece(&model, "a", 1);
        add_piece(&model, "\xe2\x96\x81", 1);
        for (int b = 0; b < 256; b++) {
            char byte[8];
            snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)b);
            add_piece(&model, byte, 6);
        }
        text_add_bytes(&model, "\x12\x05\x18\x02\x98\x02\x01", 7); // BPE with byte_fallback
        text_add_bytes(&model, "\x1a\x0e\n\x08identity", 12);
        add_field(&model, 3, i != 1); // add_dummy_prefix
        add_field(&model, 4, i == 2); // remove_extra_whitespaces
        snprintf(name, sizeof name, "pieces%d", i);
        expect_comes_back(name, "tokenizer.model", &model, spelling, 270);
        text_free(&model);
    }
}

// ---- of others' files, and broken ones ----------------------------------------------------------------------

typedef struct {
    const char *model, *pre; // NULL: the key is left out
    int types, scores;       // how many; -1: the key is left out
    bool no_merges;
} Keys;

static Status read_with(Keys keys, Tokenizer **t) {
    static const char *const tokens[] = {"ab", "abc", "<|endoftext|>", "[PAD259]"};
    enum { COUNT = 260 };
    static int count;
    char name[32];
    snprintf(name, sizeof name, "keys%d.gguf", count++);
    Path path = path_of(name);
    GgufMetadata m = {0};
    GgufWriter writer;
    GgufTensor tensor = {.name = "x", .type = GGML_F32, .ndim = 1, .dims = {1}};
    int32_t types[COUNT];
    float scores[COUNT + 1] = {0}, zero = 0;
    for (int i = 0; i < COUNT; i++)
        types[i] = i == 258 ? TOKEN_CONTROL : i == 259 ? TOKEN_UNUSED : TOKEN_NORMAL;
    gguf_set_string(&m, "general.architecture", "llama");
    if (keys.model) gguf_set_string(&m, "tokenizer.ggml.model", keys.model);
    if (keys.pre) gguf_set_string(&m, "tokenizer.ggml.pre", keys.pre);
    gguf_begin_strings(&m, "tokenizer.ggml.tokens", COUNT);
    for (int b = 0; b < COUNT; b++) {
        char spelling[2];
        size_t size = b < 256 ? bpe_spell_byte((unsigned char)b, spelling) : strlen(tokens[b - 256]);
        gguf_add_string(&m, b < 256 ? spelling : tokens[b - 256], size);
    }
    if (keys.types >= 0) gguf_set_i32s(&m, "tokenizer.ggml.token_type", types, (uint64_t)keys.types);
    if (keys.scores >= 0) gguf_set_f32s(&m, "tokenizer.ggml.scores", scores, (uint64_t)keys.scores);
    gguf_begin_strings(&m, "tokenizer.ggml.merges", keys.no_merges ? 0 : 2);
    if (!keys.no_merges) gguf_add_string(&m, "a b", 3), gguf_add_string(&m, "ab c", 4);
    EXPECT_OK(gguf_create(&writer, path.text, &m, &tensor, 1));
    EXPECT_OK(gguf_add(&writer, &zero, sizeof zero));
    EXPECT_OK(gguf_finish(&writer));
    text_free(&m.bytes);
    Gguf *file;
    EXPECT_OK(gguf_open(&file, path.text));
    Status status = gguf_read_tokenizer(file, t);
    gguf_close(file);
    return status;
}

// The end of texts by its name alone, a row that fills the table, and another name of a way.
static void of_others(void) {
    static const char *const names[] = {"gpt-2", "olmo", "phi-2"};
    for (int i = 0; i < 3; i++) {
        Tokenizer *t;
        EXPECT_OK(read_with((Keys){"gpt2", names[i], 260, -1, false}, &t));
        if (!t) continue;
        EXPECT(tokenizer_vocab_size(t) == 259 && tokenizer_eod(t) == 258, "%d tokens, end %d",
               tokenizer_vocab_size(t), tokenizer_eod(t));
        expect_ids(t, "abcab<|endoftext|>c", "257 256 258 99");
        tokenizer_close(t);
    }
}

static void refused(void) {
    static const struct {
        Keys keys;
        Status status;
        const char *told;
    } cases[] = {
        {{NULL, "gpt-2", 260, -1, false}, ERR_NO_INPUT, ".gguf has no tokenizer: give --tokenizer-model"},
        {{"none", NULL, 260, -1, false}, ERR_NO_INPUT, "has no tokenizer"},
        {{"bert", "gpt-2", 260, -1, false},
         ERR_UNAVAILABLE,
         "than gpt2, llama and t5: give --tokenizer-model"},
        {{"gpt2", "viking", 260, -1, false},
         ERR_UNAVAILABLE,
         "is \"viking\"; known: gpt-2, smollm, llama-bpe"},
        {{"gpt2", NULL, 260, -1, false}, ERR_UNAVAILABLE, "give --tokenizer-model"},
        {{"gpt2", "gpt-2", 259, -1, false},
         ERR_DATA,
         "token_type is not a list of numbers, one for each token"},
        {{"gpt2", "gpt-2", -1, -1, false}, ERR_DATA, "token_type is not a list"},
        {{"llama", NULL, 260, -1, false}, ERR_DATA, "scores is not a list of numbers, one for each token"},
        {{"llama", NULL, 260, 261, false}, ERR_DATA, "scores is not a list"},
        {{"llama", NULL, 260, 260, false}, ERR_DATA, "SentencePiece: "},
        {{"gpt2", "gpt-2", 260, -1, true}, OK, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Tokenizer *t;
        Status status = read_with(cases[i].keys, &t);
        EXPECT(status == cases[i].status && !t == (status != OK), "case %zu: %d: %s", i, status,
               fail_message());
        EXPECT(status == OK || strstr(fail_message(), cases[i].told), "case %zu: %s", i, fail_message());
        tokenizer_close(t);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"byte_level", byte_level},
                                      {"merges_that_make_all", merges_that_make_all},
                                      {"pieces", pieces},
                                      {"of_others", of_others},
                                      {"refused", refused},
                                      {0}},
                       argc, argv);
}
