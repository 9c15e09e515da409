// Perplexities and log-likelihoods, with models that are functions of the tokens they have seen.
#include "harness.h"
#include "infer/score.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- a model ------------------------------------------------------------------------------------

// The nll of a label depends on all tokens before it, so a wrong row, place or padding shows. In sixteenths
// of a nat: sums are exact.
typedef struct {
    int batch, longest, calls, stop_after;
    bool cache;
    uint32_t *seen; // with a cache: of row b after so many tokens of calls, [longest + 1, B]
    int held;       // tokens of each row that it has seen
    int64_t computed;
    int done; // continuations that it has been told of
} Model;

static float model_nll(uint32_t seen, int32_t label) { return (float)((seen ^ (uint32_t)label) % 60) / 16; }

static uint32_t see(uint32_t seen, int32_t token) { return (seen + (uint32_t)token + 1) * 2654435761u >> 3; }

static bool score(void *self, int position, int32_t *tokens, int32_t *labels, int n, float *nll,
                  float *margin) {
    Model *m = self;
    EXPECT(n >= 1 && n <= m->longest, "%d tokens", n);
    EXPECT(m->cache ? position <= m->held : position == 0 && labels, "%d tokens before", position);
    if (m->stop_after && m->calls == m->stop_after) return false;
    m->calls++;
    m->computed += (int64_t)n * m->batch;
    for (int b = 0; b < m->batch; b++) {
        uint32_t seen = position ? m->seen[position * m->batch + b] : 0;
        for (int i = b; i < n * m->batch; i += m->batch) {
            seen = see(seen, tokens[i]);
            if (m->cache) m->seen[(position + 1) * m->batch + i] = seen;
            if (labels) nll[i] = model_nll(seen, labels[i]);
            if (labels) margin[i] = nll[i] < 3 ? 0 : -nll[i];
        }
    }
    m->held = position + n;
    return true;
}

static void count_done(void *self, int count) { ((Model *)self)->done += count; }

static ScoreModel score_model(Model *m) {
    return (ScoreModel){.self = m,
                        .batch = m->batch,
                        .longest = m->longest,
                        .cache = m->cache,
                        .score = score,
                        .done = count_done};
}

// ---- perplexity ---------------------------------------------------------------------------------

static const char *data_prefix(void) {
    static char prefix[512];
    snprintf(prefix, sizeof prefix, "%s/data", harness_folder());
    return prefix;
}

// Documents of 0 to 12 tokens, most ended by 100, the null tokenizer's end; all tokens to `all`.
static void write_data(TokenList *all) {
    IndexedWriter *writer;
    EXPECT_OK(indexed_writer_open(&writer, data_prefix(), 101));
    for (int d = 0; d < 9; d++) {
        int32_t tokens[16];
        int count = d * 5 % 13;
        for (int i = 0; i < count; i++) tokens[i] = (d * 31 + i * 7) % 100;
        if (count && d % 3) tokens[count - 1] = 100;
        EXPECT_OK(indexed_writer_add(writer, tokens, (size_t)count));
        token_list_add(all, tokens, (size_t)count);
    }
    EXPECT_OK(indexed_writer_finish(writer));
    indexed_writer_close(writer);
}

// Windows start at multiples of S, from nothing.
static double expected_nats(const TokenList *all, int window) {
    double nats = 0;
    uint32_t seen = 0;
    for (size_t i = 0; i + 1 < all->count; i++) {
        seen = see(i % (size_t)window ? seen : 0, all->ids[i]);
        nats += (double)model_nll(seen, all->ids[i + 1]);
    }
    return nats;
}

// As the null tokenizer writes them: numbers with blanks between, apart at ends of documents and windows.
static int64_t expected_bytes(const TokenList *all, int window) {
    int64_t bytes = 0;
    bool open = false;
    for (size_t i = 1; i < all->count; i++) {
        if ((i - 1) % (size_t)window == 0 || all->ids[i - 1] == 100) open = false;
        if (all->ids[i] == 100) continue;
        bytes += open + (all->ids[i] < 10 ? 1 : 2);
        open = true;
    }
    return bytes;
}

static void every_token_once(void) {
    TokenList all = {0};
    Tokenizer *tokenizer;
    IndexedDataset *data;
    write_data(&all);
    EXPECT_OK(tokenizer_open_null(&tokenizer, 100));
    EXPECT_OK(indexed_dataset_open(&data, data_prefix(), 101));
    SplitRange range = {0, indexed_dataset_num_sequences(data)};
    for (int window = 1; window < 70; window++)
        for (int batch = 1; batch < 5; batch++) {
            Model m = {.batch = batch, .longest = window + batch % 2};
            ScoreModel model = score_model(&m);
            ScoreText text = {data, range, tokenizer, window};
            Perplexity p;
            EXPECT_OK(score_text(&model, &text, &p));
            EXPECT(p.tokens == (int64_t)all.count - 1, "%lld tokens of %zu", (long long)p.tokens, all.count);
            EXPECT(p.nats == expected_nats(&all, window), "S %d, B %d: %g nats, not %g", window, batch,
                   p.nats, expected_nats(&all, window));
            EXPECT(p.bytes == expected_bytes(&all, window), "S %d: %lld bytes, not %lld", window,
                   (long long)p.bytes, (long long)expected_bytes(&all, window));
        }
    indexed_dataset_close(data);
    tokenizer_close(tokenizer);
    token_list_free(&all);
}

static void too_little_and_stopped(void) {
    TokenList all = {0};
    IndexedDataset *data;
    write_data(&all);
    EXPECT_OK(indexed_dataset_open(&data, data_prefix(), 101));
    Model m = {.batch = 2, .longest = 4};
    ScoreModel model = score_model(&m);
    Perplexity p;
    ScoreText nothing = {data, {2, 2}, NULL, 4}, everything = {data, {0, 8}, NULL, 4};
    EXPECT(score_text(&model, &nothing, &p) == ERR_DATA, "an empty range has a perplexity");
    m.stop_after = 2;
    EXPECT(score_text(&model, &everything, &p) == INTERRUPTED && m.calls == 2, "%d calls", m.calls);
    indexed_dataset_close(data);
    token_list_free(&all);
}

// ---- conversations ------------------------------------------------------------------------------

static bool trained(int chat, int i) { return i > 0 && (chat + i) % 3 == 0; }

// Conversations of 2 to 12 tokens, two to a sample. The first token's mask is set, too: nothing comes before it.
static void write_chats(IndexedDataset **data, IndexedDataset **mask) {
    char name[600];
    IndexedWriter *tokens, *marks;
    snprintf(name, sizeof name, "%s_loss_mask", data_prefix());
    EXPECT_OK(indexed_writer_open(&tokens, data_prefix(), 101));
    EXPECT_OK(indexed_writer_open(&marks, name, 2));
    for (int chat = 0; chat < 8; chat++) {
        for (int32_t i = 0; i < 2 + chat * 5 % 11; i++) {
            EXPECT_OK(indexed_writer_extend(tokens, &(int32_t){(chat * 31 + i * 7) % 100}, 1));
            EXPECT_OK(indexed_writer_extend(marks, &(int32_t){i == 0 || trained(chat, i)}, 1));
        }
        EXPECT_OK(indexed_writer_end_sequence(tokens));
        EXPECT_OK(indexed_writer_end_sequence(marks));
        if (chat % 2) EXPECT_OK(indexed_writer_end_document(tokens, -1));
        if (chat % 2) EXPECT_OK(indexed_writer_end_document(marks, -1));
    }
    EXPECT_OK(indexed_writer_finish(tokens));
    EXPECT_OK(indexed_writer_finish(marks));
    indexed_writer_close(tokens);
    indexed_writer_close(marks);
    EXPECT_OK(indexed_dataset_open(data, data_prefix(), 101));
    EXPECT_OK(loss_mask_open(mask, *data, data_prefix(), false));
}

static Perplexity expected_of_chats(int first, int end) {
    Perplexity p = {0};
    for (int chat = first; chat < end; chat++) {
        uint32_t seen = 0;
        for (int i = 0; i + 1 < 2 + chat * 5 % 11; i++) {
            seen = see(seen, (chat * 31 + i * 7) % 100);
            if (!trained(chat, i + 1)) continue;
            p.tokens++;
            p.nats += (double)model_nll(seen, (chat * 31 + (i + 1) * 7) % 100);
        }
    }
    return p;
}

static void answers_of_conversations(void) {
    IndexedDataset *data, *mask;
    Perplexity p;
    write_chats(&data, &mask);
    for (int batch = 1; batch < 6; batch++) {
        Model m = {.batch = batch, .longest = 11 + batch};
        ScoreModel model = score_model(&m);
        Perplexity expected = expected_of_chats(2, 8);
        EXPECT_OK(score_chats(&model, &(ScoreChats){data, mask, {2, 8}, NULL}, &p));
        EXPECT(p.tokens == expected.tokens && p.nats == expected.nats,
               "B %d: %lld tokens, %g nats, not %lld, %g", batch, (long long)p.tokens, p.nats,
               (long long)expected.tokens, expected.nats);
    }
    Model small = {.batch = 2, .longest = 10}, stops = {.batch = 2, .longest = 12, .stop_after = 1};
    ScoreModel model = score_model(&small);
    EXPECT(score_chats(&model, &(ScoreChats){data, mask, {0, 8}, NULL}, &p) == ERR_DATA &&
               strstr(fail_message(), "conversation 2 has 12 tokens, but --seq-length 10"),
           "%s", fail_message());
    EXPECT(score_chats(&model, &(ScoreChats){data, mask, {0, 0}, NULL}, &p) == ERR_DATA, "nothing is scored");
    model = score_model(&stops);
    EXPECT(score_chats(&model, &(ScoreChats){data, mask, {0, 8}, NULL}, &p) == INTERRUPTED, "it goes on");
    indexed_dataset_close(data);
    indexed_dataset_close(mask);
}

// ---- requests -----------------------------------------------------------------------------------

// Bytes in GPT-2's order and the end token, and "ab" as one.
static Tokenizer *pair_tokenizer(void) {
    PieceCounter *counter;
    Tokenizer *tokenizer = NULL;
    EXPECT_OK(piece_counter_open(&counter));
    for (int i = 0; i < 3; i++) EXPECT_OK(piece_counter_add(counter, "ab", 2));
    EXPECT_OK(tokenizer_train(&tokenizer, counter, 258, NULL, NULL));
    EXPECT(tokenizer_vocab_size(tokenizer) == 258, "%d tokens", tokenizer_vocab_size(tokenizer));
    piece_counter_close(counter);
    return tokenizer;
}

static Requests parse(const Tokenizer *tokenizer, const char *text, int positions) {
    Requests requests;
    EXPECT_OK(requests_parse(&requests, text, strlen(text), "file", tokenizer, positions));
    return requests;
}

// The tokens of a continuation with its context as text, "|" before the first that is scored, "$" the end
// token.
static void expect_row(const Tokenizer *tokenizer, const char *line, int positions, const char *expected) {
    Requests r = parse(tokenizer, line, positions);
    Text row = {0};
    for (size_t i = 0; r.count && i < r.continuations.items[0].tokens.count; i++) {
        const Continuation *c = &r.continuations.items[0];
        if ((int)(c->tokens.count - i) == c->scored) text_add(&row, "|");
        if (c->tokens.ids[i] == tokenizer_eod(tokenizer))
            text_add(&row, "$");
        else
            EXPECT_OK(tokenizer_decode(tokenizer, &c->tokens.ids[i], 1, &row));
        text_add(&row, ",");
    }
    EXPECT(!strcmp(text_string(&row), expected), "%s gives %s, not %s", line, text_string(&row), expected);
    text_free(&row);
    requests_free(&r);
}

static void rows_of_requests(void) {
    Tokenizer *t = pair_tokenizer();
    expect_row(t, "{\"context\": \"xy\", \"continuation\": \"ab\"}", 9, "x,y,|ab,");
    expect_row(t, "{\"context\": \"xy \", \"continuation\": \"ab\"}", 9, "x,y,| ,ab,");
    // A token across the border: the context keeps its own, the continuation is what is left of the whole.
    expect_row(t, "{\"context\": \"xa\", \"continuation\": \"bc\"}", 9, "x,a,|c,");
    expect_row(t, "{\"context\": \"\", \"continuation\": \"ab\"}", 9, "$,|ab,");
    expect_row(t, "{\"context\": \" \", \"continuation\": \"x\"}", 9, "$,| ,x,");
    expect_row(t, "{\"context\": \"abxyz\", \"continuation\": \"c\"}", 3, "x,y,z,|c,");
    expect_row(t, "{\"context\": \"xyz\", \"continuation\": \"c\"}", 3, "x,y,z,|c,");
    expect_row(t, "{\"context\": \"xyz\", \"continuation\": \"def\"}", 3, "z,|d,e,f,");
    tokenizer_close(t);
}

static void refused_requests(void) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"context\": 1, \"continuation\": \"a\"}", ":1: \"context\""},
        {"{\"continuation\": \"a\"}", ":1: \"context\""},
        {"\n{\"context\": \"a\"}", ":2: needs either"},
        {"{\"context\": \"a\", \"continuation\": \"b\", \"continuations\": [\"c\"]}", "needs either"},
        {"{\"context\": \"a\", \"continuations\": []}", "needs either"},
        {"{\"context\": \"a\", \"continuations\": [\"b\", 2]}", "a continuation must be"},
        {"{\"context\": \"a\", \"continuation\": \"\"}", "a continuation must be"},
        {"{\"context\": \"a\", \"continuations\": [\"b\"], \"label\": 1}", "from 0 to 0"},
        {"{\"context\": \"x\", \"continuation\": \"bcdefg\"}", "6 tokens, but the model sees 5"},
        {"{\"context\": \"a\", \"continuation\": \"b\"}\n{", "file:2"},
        {"[]", "\"context\""},
        {"\n \n", "no request"},
    };
    Tokenizer *tokenizer = pair_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Requests r;
        Status status = requests_parse(&r, cases[i].text, strlen(cases[i].text), "file", tokenizer, 5);
        EXPECT(status == ERR_DATA && strstr(fail_message(), cases[i].message), "%s: status %d, %s",
               cases[i].text, (int)status, fail_message());
        requests_free(&r);
    }
    tokenizer_close(tokenizer);
}

// 30 lines, some with choices; contexts and continuations of many lengths.
static void add_many(Text *text) {
    for (int i = 0; i < 30; i++) {
        text_add(text, "{\"context\": \"%.*s\", ", i * 7 % 20, "abcabxaybzababcdefgh");
        if (i % 3 == 0)
            text_add(text, "\"continuations\": [\"%.*s\", \"q\", \"zz\"], \"label\": %d}\n", 1 + i % 5,
                     "fghij", i % 2);
        else
            text_add(text, "\"continuation\": \"%.*s\"}\n", 1 + i % 6, "b abcd");
    }
}

static Continuation answer_alone(const Continuation *c) {
    Continuation alone = {.greedy = true};
    uint32_t seen = 0;
    int count = (int)c->tokens.count - 1;
    for (int i = 0; i < count; i++) {
        seen = see(seen, c->tokens.ids[i]);
        if (i < count - c->scored) continue;
        float nll = model_nll(seen, c->tokens.ids[i + 1]);
        alone.log_likelihood -= (double)nll;
        alone.greedy = alone.greedy && nll < 3;
    }
    return alone;
}

// Scores them in batches of so many, and returns how many tokens the model has computed.
static int64_t score_many(Requests *r, int batch, bool cache) {
    Model m = {.batch = batch, .longest = r->continuations.longest, .cache = cache};
    m.seen = calloc((size_t)(2 * m.longest + 1) * (size_t)batch, sizeof *m.seen);
    ScoreModel model = score_model(&m);
    EXPECT_OK(continuations_score(&model, &r->continuations));
    free(m.seen);
    int scored = 0;
    for (int i = 0; i < r->continuations.count; i++) scored += r->continuations.items[i].scored > 0;
    EXPECT(m.done == scored, "%d of %d continuations are done", m.done, scored);
    for (int i = 0; i < r->continuations.count; i++) {
        const Continuation *c = &r->continuations.items[i];
        Continuation alone = answer_alone(c);
        EXPECT(c->log_likelihood == alone.log_likelihood, "continuation %d: %g, not %g", i, c->log_likelihood,
               alone.log_likelihood);
        EXPECT(c->greedy == alone.greedy, "continuation %d: not as greedy", i);
    }
    return m.computed;
}

static void batches_do_not_matter(void) {
    Tokenizer *tokenizer = pair_tokenizer();
    Text text = {0}, first = {0};
    add_many(&text);
    for (int batch = 1; batch < 9; batch += 3)
        for (int cache = 0; cache < 2; cache++) {
            Requests r = parse(tokenizer, text.data, 12);
            score_many(&r, batch, cache);
            EXPECT(r.continuations.longest == 12 && r.continuations.num_cut > 3, "%d tokens, %lld cut",
                   r.continuations.longest, (long long)r.continuations.num_cut);
            Text out = {0};
            requests_write(&r, &out);
            if (!first.size) text_add(&first, "%s", out.data);
            EXPECT(!strcmp(first.data, out.data), "B %d: %s", batch, out.data);
            text_free(&out);
            requests_free(&r);
        }
    text_free(&text);
    text_free(&first);
    tokenizer_close(tokenizer);
}

// With a cache the context of four choices is computed once, without one four times.
static void contexts_are_computed_once(void) {
    Tokenizer *tokenizer = pair_tokenizer();
    Text text = {0};
    for (int i = 0; i < 6; i++)
        text_add(&text, "{\"context\": \"%.*s\", \"continuations\": [\"x\", \"yy\", \"z\", \"q\"]}\n", 20 - i,
                 "cdefghijklmnopqrstuvwxyz");
    Requests r = parse(tokenizer, text.data, 50);
    int64_t each = score_many(&r, 2, false), once = score_many(&r, 2, true);
    // Twelve batches of two rows of 15 to 21 tokens; or three of 20 and 19, 18 and 17, 16 and 15 tokens of context: the
    // shorter one's but for the last, and then 2, 3, 2 and 2 more.
    EXPECT(each == 2 * 216, "%lld tokens without a cache", (long long)each);
    EXPECT(once == 2 * (18 + 16 + 14 + 3 * 9), "%lld tokens with a cache", (long long)once);
    requests_free(&r);
    text_free(&text);
    tokenizer_close(tokenizer);
}

// Choices by log-likelihood and per character, of which a blank in front is none and an umlaut is one.
static void choices(void) {
    Tokenizer *tokenizer = pair_tokenizer();
    Requests r = parse(tokenizer,
                       "{\"context\": \"a\", \"continuations\": [\" b\", \" \xc3\xbc"
                       "d\", \"xyz\"], \"label\": 2}\n"
                       "{\"context\": \"a\", \"continuations\": [\"b\", \"c\"]}\n"
                       "{\"context\": \"a\", \"continuation\": \"d\", \"label\": 0}",
                       9);
    static const double answers[] = {-2.25, -4, -5, -1, -1, -5};
    EXPECT(r.continuations.count == 6, "%d continuations", r.continuations.count);
    for (int i = 0; i < r.continuations.count; i++) r.continuations.items[i].log_likelihood = answers[i];
    Choices c = requests_choices(&r);
    EXPECT(c.labelled == 2 && c.right == 1 && c.right_by_length == 2, "%d labelled, %d, %d right", c.labelled,
           c.right, c.right_by_length);
    Text out = {0};
    requests_write(&r, &out);
    static const char expected[] =
        "{\"continuations\": ["
        "{\"log_likelihood\": -2.25, \"num_tokens\": 2, \"num_bytes\": 2, \"is_greedy\": false}, "
        "{\"log_likelihood\": -4, \"num_tokens\": 4, \"num_bytes\": 4, \"is_greedy\": false}, "
        "{\"log_likelihood\": -5, \"num_tokens\": 3, \"num_bytes\": 3, \"is_greedy\": false}], "
        "\"best\": 0, \"best_per_character\": 2, \"label\": 2}\n";
    EXPECT(!strncmp(text_string(&out), expected, strlen(expected)), "%s", text_string(&out));
    text_free(&out);
    requests_free(&r);
    tokenizer_close(tokenizer);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every token once", every_token_once},
                                      {"too little and stopped", too_little_and_stopped},
                                      {"answers of conversations", answers_of_conversations},
                                      {"rows of requests", rows_of_requests},
                                      {"refused requests", refused_requests},
                                      {"batches do not matter", batches_do_not_matter},
                                      {"contexts are computed once", contexts_are_computed_once},
                                      {"choices", choices},
                                      {0}},
                       argc, argv);
}
