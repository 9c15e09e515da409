// Text out of a model, with models that say what they are told to: streams of characters, stop strings, ends.
#include "base/rng.h"
#include "harness.h"
#include "infer/generate.h"
#include "small_tokenizer.h"
#include <stdlib.h>
#include <string.h>

// ---- text streams -------------------------------------------------------------------------------

static int random_number(int key, int i, int below) {
    return (int)(rng_word(rng_key((uint64_t)key, "test", 0), 0, (uint64_t)i) % (unsigned)below);
}

static bool is_text(const char *s, size_t size) {
    TextStream stream = {0};
    Text out = {0};
    text_stream_add(&stream, s, size, &out);
    bool same = out.size == size && (!size || !memcmp(out.data, s, size));
    text_stream_free(&stream);
    text_free(&out);
    return same;
}

// Feeds `s` in pieces of random sizes (key < 0: at once); what comes out.
static Text streamed(const char *s, size_t size, const char *stop, int key) {
    TextStream stream = {.stops = &stop, .num_stops = stop != NULL};
    Text all = {0};
    bool ended = false;
    for (size_t done = 0, i = 0; done < size && !ended; i++) {
        size_t n = key < 0 ? size : 1 + (size_t)random_number(key, (int)i, 3);
        if (n > size - done) n = size - done;
        Text piece = {0};
        ended = text_stream_add(&stream, s + done, n, &piece);
        EXPECT(is_text(text_string(&piece), piece.size), "a piece is no whole text: '%s'",
               text_string(&piece));
        EXPECT(stream.held.size < 4 + (stop ? strlen(stop) : 0), "%zu bytes wait", stream.held.size);
        text_add_bytes(&all, text_string(&piece), piece.size);
        text_free(&piece);
        done += n;
    }
    if (!ended) text_stream_finish(&stream, &all);
    text_stream_free(&stream);
    return all;
}

// Whatever the pieces, the text is the one of all bytes at once, and ends before the stop string.
static void pieces_do_not_matter(void) {
    static const char *const parts[] = {
        "a",        "b",        "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\x80",
        "\xe2\x82", "\xf0\x9f", "\xff",     "ab",           "\xed\xa0\x80"};
    static const char *const stops[] = {NULL,
                                        "ab",
                                        "aab",
                                        "\xc3\xa9",
                                        "b\xc3\xa9"
                                        "a",
                                        "\xe2\x82\xac"};
    for (int key = 0; key < 400; key++) {
        const char *stop = stops[key % 6];
        Text text = {0};
        for (int i = 0; i < 12; i++) text_add(&text, "%s", parts[random_number(1000 + key, i, 11)]);
        Text whole = streamed(text.data, text.size, stop, -1),
             pieces = streamed(text.data, text.size, stop, key);
        EXPECT(!strcmp(text_string(&whole), text_string(&pieces)), "'%s' and in pieces '%s'",
               text_string(&whole), text_string(&pieces));
        const char *at = stop ? strstr(text.data, stop) : NULL;
        Text before = streamed(text.data, at ? (size_t)(at - text.data) : text.size, NULL, -1);
        EXPECT(!strcmp(text_string(&whole), text_string(&before)), "'%s' instead of '%s'",
               text_string(&whole), text_string(&before));
        text_free(&text);
        text_free(&whole);
        text_free(&pieces);
        text_free(&before);
    }
}

// One U+FFFD for each longest start of a character that goes wrong (Unicode 15, section 3.9).
static void bad_bytes(void) {
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"\x80", "\xef\xbf\xbd"},
                 {"a\xf0\x9f\x98z", "a\xef\xbf\xbdz"},
                 {"\xf0\x80\x80\x41", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                      "A"},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xf4\x90\xc3\xa9", "\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9"},
                 {"x\xe2\x82", "x\xef\xbf\xbd"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Text text = streamed(cases[i].bytes, strlen(cases[i].bytes), NULL, -1);
        EXPECT(!strcmp(text_string(&text), cases[i].text), "case %zu gives '%s'", i, text_string(&text));
        text_free(&text);
    }
}

static void first_of_several_stops(void) {
    const char *const stops[] = {"b cd", "cx", "bcx", "b c", "y"};
    TextStream stream = {.stops = stops, .num_stops = 5};
    Text out = {0};
    EXPECT(!text_stream_add(&stream, "a b", 3, &out), "ended early");
    EXPECT(!strcmp(text_string(&out), "a "), "'%s' instead of 'a '", text_string(&out));
    EXPECT(text_stream_add(&stream, " cx", 3, &out), "no end");
    EXPECT(!strcmp(text_string(&out), "a "), "'%s' instead of 'a '", text_string(&out));
    text_stream_free(&stream);
    text_free(&out);
}

// ---- the loop -----------------------------------------------------------------------------------

// Bytes in GPT-2's order and the end token: 257 tokens.
static Tokenizer *byte_tokenizer(void) {
    PieceCounter *counter;
    Tokenizer *tokenizer = NULL;
    EXPECT_OK(piece_counter_open(&counter));
    EXPECT_OK(piece_counter_add(counter, "a b", 3));
    EXPECT_OK(tokenizer_train(&tokenizer, counter, 257, NULL, NULL));
    piece_counter_close(counter);
    return tokenizer;
}

enum { MAX_SAMPLES = 3, MAX_TOKENS = 64, PADDING = 5 };

// Sample b says lines[b] after the prompt, then the end token. Two more logits than the tokenizer has tokens
// are the largest: they must never be drawn.
typedef struct {
    const char *lines[MAX_SAMPLES];
    TokenList tokens[MAX_SAMPLES]; // of the lines
    int32_t seen[MAX_SAMPLES][MAX_TOKENS];
    TokenList prompts[MAX_SAMPLES];
    int batch, fed, longest_call, vocabulary, end;
    int stop_after; // calls of `stopped`; 0: never
    int asked;
    Text given[MAX_SAMPLES];
} Script;

static void script_next(void *self, int position, const int32_t *tokens, int n, float *logits) {
    Script *s = self;
    EXPECT(position == s->fed, "position %d, not %d", position, s->fed);
    for (int i = 0; i < n * s->batch; i++) s->seen[i % s->batch][s->fed + i / s->batch] = tokens[i];
    s->fed += n;
    if (n > s->longest_call) s->longest_call = n;
    for (int b = 0; b < s->batch; b++) {
        float *row = logits + b * (s->vocabulary + PADDING);
        int place = s->fed - (int)s->prompts[b].count;
        for (int v = 0; v < s->vocabulary + PADDING; v++) row[v] = v < s->vocabulary ? 0.0f : 9.0f;
        if (place >= 0) row[place < (int)s->tokens[b].count ? s->tokens[b].ids[place] : s->end] = 1;
    }
}

static bool script_stopped(void *self) {
    Script *s = self;
    return s->stop_after && ++s->asked >= s->stop_after;
}

static void script_give(void *self, int sample, const char *text, size_t size) {
    Script *s = self;
    EXPECT(size > 0, "an empty piece");
    text_add_bytes(&s->given[sample], text, size);
}

typedef struct {
    int batch, capacity, longest, most;
    const char *prompt, *stop;
    const char *prompts[MAX_SAMPLES]; // of one sample each; NULL: `prompt`
    int32_t also_ends;                // a second end token; 0: none
} Asked;

static GenerateReport play(Script *s, const Tokenizer *tokenizer, Asked asked) {
    GenerateReport report = {0};
    SampleSpec samples[MAX_SAMPLES];
    s->batch = asked.batch;
    s->vocabulary = tokenizer_vocab_size(tokenizer);
    s->end = tokenizer_eod(tokenizer);
    for (int b = 0; b < asked.batch; b++) {
        const char *prompt = asked.prompts[b] ? asked.prompts[b] : asked.prompt;
        EXPECT_OK(prompt_encode(tokenizer, prompt, strlen(prompt), true, &s->prompts[b]));
        EXPECT_OK(tokenizer_encode(tokenizer, s->lines[b], strlen(s->lines[b]), &s->tokens[b]));
        samples[b] = (SampleSpec){.prompt = s->prompts[b].ids,
                                  .prompt_tokens = (int)s->prompts[b].count,
                                  .max_new_tokens = asked.most,
                                  .stops = &asked.stop,
                                  .num_stops = asked.stop != NULL};
    }
    TokenModel model = {s,           asked.batch,   asked.capacity, asked.longest, s->vocabulary + PADDING,
                        script_next, script_stopped};
    GenerateSpec spec = {.tokenizer = tokenizer,
                         .ends = (int32_t[]){s->end, asked.also_ends},
                         .num_ends = 1 + (asked.also_ends > 0),
                         .samples = samples,
                         .sampling = {.top_p = 1},
                         .give = script_give,
                         .self = s};
    EXPECT_OK(token_model_generate(&model, &spec, &report));
    for (int b = 0; b < asked.batch; b++) {
        for (int i = 0; i < (int)s->prompts[b].count && i < s->fed; i++)
            EXPECT(s->seen[b][i] == s->prompts[b].ids[i], "token %d of prompt %d is wrong", i, b);
        token_list_free(&s->tokens[b]);
        token_list_free(&s->prompts[b]);
    }
    return report;
}

static void expect_text(Script *s, int sample, const char *text) {
    EXPECT(!strcmp(text_string(&s->given[sample]), text), "sample %d gives '%s', not '%s'", sample,
           text_string(&s->given[sample]), text);
    text_free(&s->given[sample]);
}

static void samples_end_on_their_own(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    Script s = {.lines = {"one", "t\xc3\xa9o", "three and more"}};
    GenerateReport report = play(&s, tokenizer, (Asked){3, 60, 4, 9, "prompt", NULL, {0}, 0});
    EXPECT(report.num_endings[END_TOKEN] == 2 && report.num_endings[END_COUNT] == 1, "wrong ends");
    EXPECT(report.new_tokens == 4 + 5 + 9, "%lld tokens", (long long)report.new_tokens);
    EXPECT(s.longest_call == 4 && s.fed == 6 + 8, "calls of %d tokens, %d in all", s.longest_call, s.fed);
    expect_text(&s, 0, "one");
    expect_text(&s, 1, "t\xc3\xa9o");
    expect_text(&s, 2, "three and");
    tokenizer_close(tokenizer);
}

// A model may have several end tokens, as the end of a turn beside the end of a document.
static void any_end_token_ends(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    Script s = {.lines = {"one|two", "three"}};
    GenerateReport report = play(&s, tokenizer, (Asked){2, 60, 60, 50, "p", NULL, {0}, '|' - '!'});
    EXPECT(report.num_endings[END_TOKEN] == 2, "wrong ends");
    expect_text(&s, 0, "one");
    expect_text(&s, 1, "three");
    tokenizer_close(tokenizer);
}

// Each sample goes on where its own prompt ends, though the shortest is the only one that is computed at once.
static void prompts_of_several_lengths(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    Script s = {.lines = {"one", "two and more", "three"}};
    GenerateReport report =
        play(&s, tokenizer,
             (Asked){.batch = 3, .capacity = 60, .longest = 4, .most = 6, .prompts = {"longer", "p", "mid"}});
    EXPECT(report.num_endings[END_TOKEN] == 2 && report.num_endings[END_COUNT] == 1, "wrong ends");
    EXPECT(s.longest_call == 1 && s.fed == 6 + 3, "calls of %d tokens, %d in all", s.longest_call, s.fed);
    expect_text(&s, 0, "one");
    expect_text(&s, 1, "two an");
    expect_text(&s, 2, "three");
    tokenizer_close(tokenizer);
}

static void stops_straddle_tokens(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    Script s = {.lines = {"a\nQ: b", "\nQ", "\nQ:"}};
    GenerateReport report = play(&s, tokenizer, (Asked){3, 60, 60, 50, "p", "\nQ:", {0}, 0});
    EXPECT(report.num_endings[END_STOP] == 2 && report.num_endings[END_TOKEN] == 1, "wrong ends");
    expect_text(&s, 0, "a");
    expect_text(&s, 1, "\nQ"); // it was none, after all
    expect_text(&s, 2, "");
    tokenizer_close(tokenizer);
}

// A full capacity still says which token follows it; a character cut by it becomes U+FFFD.
static void capacity_ends(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    Script s = {.lines = {"abc\xe2\x82\xac"}};
    GenerateReport report = play(&s, tokenizer, (Asked){1, 8, 3, 50, "1234", NULL, {0}, 0});
    EXPECT(report.num_endings[END_CAPACITY] == 1 && s.fed == 8, "%d fed", s.fed);
    expect_text(&s, 0, "abc\xef\xbf\xbd");
    s = (Script){.lines = {"abc"}};
    report = play(&s, tokenizer, (Asked){1, 4, 4, 50, "1234", NULL, {0}, 0});
    EXPECT(report.num_endings[END_CAPACITY] == 1 && s.fed == 4, "%d fed", s.fed);
    expect_text(&s, 0, "a");
    tokenizer_close(tokenizer);
}

static void signals_end(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    Script s = {.lines = {"abcdef", "g"}, .stop_after = 4};
    GenerateReport report = play(&s, tokenizer, (Asked){2, 60, 60, 50, "p", "bcx", {0}, 0});
    EXPECT(report.num_endings[END_SIGNAL] == 1 && report.num_endings[END_TOKEN] == 1, "wrong ends");
    expect_text(&s, 0, "abc"); // what waited for a stop string is given
    expect_text(&s, 1, "g");
    s = (Script){.lines = {"abcdef"}, .stop_after = 1};
    play(&s, tokenizer, (Asked){1, 60, 60, 50, "p", NULL, {0}, 0});
    EXPECT(s.fed == 0, "%d tokens were fed", s.fed);
    tokenizer_close(tokenizer);
}

// Text is continued: the blank between two numbers belongs to the second.
static void blanks_of_the_null_tokenizer(void) {
    Tokenizer *tokenizer;
    EXPECT_OK(tokenizer_open_null(&tokenizer, 100));
    Script s = {.lines = {"7 99 0"}};
    play(&s, tokenizer, (Asked){1, 60, 60, 50, "1 2 3", NULL, {0}, 0});
    expect_text(&s, 0, " 7 99 0");
    tokenizer_close(tokenizer);
}

static void empty_prompts(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    TokenList tokens = {0};
    EXPECT_OK(prompt_encode(tokenizer, "", 0, true, &tokens));
    EXPECT(tokens.count == 1 && tokens.ids[0] == tokenizer_eod(tokenizer), "%zu tokens", tokens.count);
    token_list_free(&tokens);
    tokenizer_close(tokenizer);
}

// The tokenizer of the library puts the beginning of text before what it encodes, and so does a prompt.
static void prompts_begin_as_texts_do(void) {
    static const char PROCESSOR[] = "{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
                                    "[{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
                                    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}]}, ";
    static const struct {
        const char *prompt;
        bool adds_bos;
        int32_t ids[3];
        size_t count;
    } rows[] = {{"!", true, {262, 33}, 2},
                {"<s>!", true, {262, 33}, 2},
                {"<s><s>!", true, {262, 262, 33}, 3},
                {"!", false, {33}, 1},
                {"", true, {262}, 1}};
    Parts parts = plain;
    parts.added = "{\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true},"
                  "{\"id\": 262, \"content\": \"<s>\", \"special\": true}";
    Text whole = json_of(parts), json = {0};
    text_add(&json, "%s%s", PROCESSOR, text_string(&whole) + 1);
    Tokenizer *tokenizer = opened_text("begins.tokenizer.json", &json);
    for (size_t i = 0; tokenizer && i < sizeof rows / sizeof *rows; i++) {
        TokenList out = {0};
        EXPECT_OK(prompt_encode(tokenizer, rows[i].prompt, strlen(rows[i].prompt), rows[i].adds_bos, &out));
        EXPECT(out.count == rows[i].count && !memcmp(out.ids, rows[i].ids, out.count * sizeof *out.ids),
               "'%s': %zu tokens from %d on", rows[i].prompt, out.count, (int)out.ids[0]);
        token_list_free(&out);
    }
    tokenizer_close(tokenizer);
    text_free(&json);
    text_free(&whole);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"pieces do not matter", pieces_do_not_matter},
                                      {"bad bytes", bad_bytes},
                                      {"first of several stops", first_of_several_stops},
                                      {"samples end on their own", samples_end_on_their_own},
                                      {"any end token ends", any_end_token_ends},
                                      {"prompts of several lengths", prompts_of_several_lengths},
                                      {"stops straddle tokens", stops_straddle_tokens},
                                      {"capacity ends", capacity_ends},
                                      {"signals end", signals_end},
                                      {"blanks of the null tokenizer", blanks_of_the_null_tokenizer},
                                      {"empty prompts", empty_prompts},
                                      {"prompts begin as texts do", prompts_begin_as_texts_do},
                                      {0}},
                       argc, argv);
}
