// Data sets of tasks: the shapes that a line may have, what is refused, filters of answers, metrics and their errors.
#include "harness.h"
#include "infer/task.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POSITIONS = 40 };

// Bytes in GPT-2's order and the end token.
static Tokenizer *byte_tokenizer(void) {
    PieceCounter *counter;
    Tokenizer *tokenizer = NULL;
    EXPECT_OK(piece_counter_open(&counter));
    EXPECT_OK(piece_counter_add(counter, "a b", 3));
    EXPECT_OK(tokenizer_train(&tokenizer, counter, 257, NULL, NULL));
    piece_counter_close(counter);
    return tokenizer;
}

static Status read_text(Tasks *tasks, const char *path, const char *text, int64_t limit) {
    Tokenizer *tokenizer = byte_tokenizer();
    Status status = task_add(tasks, path, text, strlen(text), limit, tokenizer, POSITIONS);
    tokenizer_close(tokenizer);
    return status;
}

static void add_tokens(const Tokenizer *tokenizer, const int32_t *ids, size_t count, Text *out) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] == tokenizer_eod(tokenizer))
            text_add(out, "$");
        else
            EXPECT_OK(tokenizer_decode(tokenizer, &ids[i], 1, out));
}

// An item as text: each continuation as CONTEXT|SCORED with * where it is right, a prompt with its stops and targets.
static void describe(const Tasks *tasks, const TaskItem *item, Text *out) {
    Tokenizer *tokenizer = byte_tokenizer();
    for (int i = 0; i < item->count; i++) {
        const Continuation *c = &tasks->continuations.items[item->first + i];
        size_t seen = c->tokens.count - (size_t)c->scored;
        add_tokens(tokenizer, c->tokens.ids, seen, out);
        text_add(out, "|");
        add_tokens(tokenizer, c->tokens.ids + seen, (size_t)c->scored, out);
        text_add(out, item->right && item->right[i] ? "* " : " ");
    }
    add_tokens(tokenizer, item->prompt.ids, item->prompt.count, out);
    for (int i = 0; i < item->num_stops; i++) text_add(out, " stop:%s", item->stops[i]);
    for (int i = 0; i < item->num_targets; i++) text_add(out, " target:%s", item->targets[i]);
    if (item->max_new_tokens) text_add(out, " %d", item->max_new_tokens);
    if (item->words) text_add(out, "%lld words, %lld bytes", (long long)item->words, (long long)item->bytes);
    tokenizer_close(tokenizer);
}

// ---- shapes -------------------------------------------------------------------------------------

// One line of each shape becomes what it should.
static void shapes(void) {
    static const struct {
        const char *line, *item;
        TaskKind kind;
    } cases[] = {
        {"{\"context\": \"Q\", \"choices\": [\"x\", \"yz\"], \"gold\": 1}", "Q| x Q| yz* ", TASK_CHOICE},
        // What joins a choice to its context.
        {"{\"context\": \"Q\", \"choices\": [\" x\", \"y\"], \"gold\": 0}", "Q| x* Q| y ", TASK_CHOICE},
        {"{\"context\": \"Q\", \"choices\": [\"1\", \"0\"], \"gold\": \"1\"}", "Q| 1* Q| 0 ", TASK_CHOICE},
        {"{\"context\": \"Q \", \"choices\": [\"x\"], \"gold\": 0}", "Q| x* ", TASK_CHOICE},
        {"{\"context\": \"\", \"choices\": [\"x\"], \"gold\": 0}", "$|x* ", TASK_CHOICE},
        {"{\"context\": \"Q\", \"choices\": [\"x\"], \"gold\": 0, \"delimiter\": \"\"}", "Q|x* ",
         TASK_CHOICE},
        // A context for each choice; several right ones.
        {"{\"context\": [\"Q\", \"R\"], \"choices\": [\"x\", \"y\"], \"gold\": [0, 1]}", "Q| x* R| y* ",
         TASK_CHOICE},
        {"{\"context\": \"Q\", \"continuations\": [\" x\", \"y\"], \"label\": 0}", "Q| x* Q|y ", TASK_CHOICE},
        {"{\"context\": \"Q\", \"continuation\": \" x\"}", "Q| x ", TASK_CONTINUATION},
        {"{\"text\": \"a b\\n c\"}", "$|a b\n c 3 words, 6 bytes", TASK_TEXT},
        {"{\"prompt\": \"P\", \"until\": [\"\\n\", \"\"], \"target\": \"t\", \"max_new_tokens\": 30}",
         "P stop:\n target:t 30", TASK_UNTIL},
        // The rest of the window, 40 tokens, is for the prompt.
        {"{\"prompt\": \"12345\", \"until\": \"S\", \"target\": [\"t\", \"u\"], \"max_new_tokens\": 37}",
         "345 stop:S target:t target:u 37", TASK_UNTIL},
        {"{\"prompt\": \"P\", \"target\": \"\", \"max_new_tokens\": 3}", "P target: 3", TASK_UNTIL},
        // lm-evaluation-harness's, as objects and as lists.
        {"{\"doc\": {}, \"target\": \"1\", \"arguments\": {\"gen_args_0\": {\"arg_0\": \"Q\", \"arg_1\": \" 7\"}, "
         "\"gen_args_1\": {\"arg_0\": \"R\", \"arg_1\": \" 1\"}}}",
         "Q| 7 R| 1* ", TASK_CHOICE},
        {"{\"target\": \" y\", \"arguments\": [[\"Q\", \" x\"], [\"Q\", \" y\"]]}", "Q| x Q| y* ",
         TASK_CHOICE},
        {"{\"target\": \"[0, 1]\", \"arguments\": [[\"Q\", \" x\"], [\"Q\", \" y\"]]}", "Q| x* Q| y* ",
         TASK_CHOICE},
        {"{\"target\": \" x\", \"arguments\": {\"gen_args_0\": {\"arg_0\": \"Q\", \"arg_1\": \" x\"}}}",
         "Q| x ", TASK_CONTINUATION},
        {"{\"target\": \"x\", \"arguments\": {\"gen_args_0\": {\"arg_0\": \"Q\", \"arg_1\": {\"until\": [\"E\"], "
         "\"max_gen_toks\": 9}}}}",
         "Q stop:E target:x 9", TASK_UNTIL},
        {"{\"target\": \"x\", \"arguments\": {\"gen_args_0\": {\"arg_0\": \"a  b\"}}}",
         "$|a  b 2 words, 4 bytes", TASK_TEXT},
        {"{\"doc\": {\"page\": \"a @,@ b\"}, \"target\": \"a, b\", \"arguments\": {\"gen_args_0\": {\"arg_0\": "
         "\"a, b\"}}}",
         "$|a, b 3 words, 7 bytes", TASK_TEXT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Tasks tasks = {0};
        Text item = {0};
        EXPECT_OK(read_text(&tasks, "f", cases[i].line, 0));
        if (tasks.count && tasks.tasks[0].count) describe(&tasks, &tasks.tasks[0].items[0], &item);
        EXPECT(!strcmp(text_string(&item), cases[i].item), "%s gives '%s', not '%s'", cases[i].line,
               text_string(&item), cases[i].item);
        EXPECT(tasks.tasks[0].kind == cases[i].kind, "%s is of kind %d", cases[i].line, tasks.tasks[0].kind);
        text_free(&item);
        tasks_free(&tasks);
    }
}

static void refused(void) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "f.jsonl: it is empty"},
        {"\n \n", "f.jsonl: it is empty"},
        {"{\"text\": \"a\"}\n{", "f.jsonl:2"},
        {"[\n{}]", "f.jsonl:1: a list over many lines"},
        {"\n{\"question\": \"a\"}", "f.jsonl:2: a line of no known shape: write"},
        {"{\"text\": \"a\"}\n{\"prompt\": \"a\", \"target\": \"\"}",
         "f.jsonl:2: a prompt to be answered, but the lines before are a text"},
        {"{\"choices\": [\"x\"], \"gold\": 0}", "f.jsonl:1: \"context\" is missing"},
        {"{\"context\": 3, \"choices\": [\"x\"], \"gold\": 0}", "\"context\" is no string"},
        {"{\"context\": [\"Q\"], \"choices\": [\"x\", \"y\"], \"gold\": 0}", "\"context\" is missing"},
        {"{\"context\": \"Q\", \"choices\": [], \"gold\": 0}", "1 to 999 choices"},
        {"{\"context\": \"Q\", \"choices\": [\"x\", 3], \"gold\": 0}", "\"choices/1\" is no string"},
        {"{\"context\": \"Q\", \"choices\": [\"x\", \"\"], \"gold\": 0}", "choice 1 is empty"},
        {"{\"context\": \"Q\", \"choices\": [\"x\"]}", "\"gold\" is missing"},
        {"{\"context\": \"Q\", \"choices\": [\"x\"], \"gold\": 1}",
         "\"gold\" is 1, but the choices are 0 to 0"},
        {"{\"context\": \"Q\", \"choices\": [\"x\"], \"gold\": -1}", "\"gold\" is -1"},
        {"{\"context\": \"Q\", \"choices\": [\"x\"], \"gold\": 0.5}", "\"gold\" is no whole number"},
        {"{\"context\": \"Q\", \"choices\": [\"x\"], \"gold\": [0, \"x\"]}", "\"gold\" is no whole number"},
        {"{\"context\": \"Q\", \"choices\": [\"x\", \"y\"], \"gold\": \"z\"}", "is none of the choices"},
        {"{\"context\": \"Q\", \"choices\": [\"x\", \" x\"], \"gold\": \"x\"}", "is several of the choices"},
        {"{\"prompt\": \"P\", \"until\": \"x\"}", "\"target\" is missing"},
        {"{\"prompt\": \"P\", \"until\": [3], \"target\": \"x\"}", "\"until\" has to be a string"},
        {"{\"prompt\": \"P\", \"target\": \"x\", \"max_new_tokens\": 0}", "\"max_new_tokens\" has to be"},
        {"{\"prompt\": \"P\", \"target\": \"x\", \"max_new_tokens\": 40}", "leave no room"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Tasks tasks = {0};
        Status status = read_text(&tasks, "f.jsonl", cases[i].text, 0);
        EXPECT(status == ERR_DATA && strstr(fail_message(), cases[i].message), "%s: status %d, %s",
               cases[i].text, (int)status, fail_message());
        tasks_free(&tasks);
    }
}

// A text of 95 tokens, 40 at a time: the last window sees 40, too, and predicts what is left.
static void windows(void) {
    Tasks tasks = {0};
    Text line = {0};
    text_add(&line, "{\"text\": \"");
    for (int i = 0; i < 95; i++) text_add(&line, "%c", 'a' + i % 26);
    text_add(&line, "\"}");
    EXPECT_OK(read_text(&tasks, "f", line.data, 0));
    const Continuation *c = tasks.continuations.items;
    EXPECT(tasks.continuations.count == 3, "%d windows", tasks.continuations.count);
    for (int i = 0; i < 3 && tasks.continuations.count == 3; i++) {
        EXPECT(c[i].tokens.count == POSITIONS + 1, "%zu tokens", c[i].tokens.count);
        EXPECT(c[i].scored == (i < 2 ? 40 : 15), "%d are predicted", c[i].scored);
        // The last token is the 40th, 80th, 95th of the text.
        int last = i < 2 ? 40 * (i + 1) - 1 : 94;
        EXPECT(c[i].tokens.ids[POSITIONS] == 'a' + last % 26 - '!', "window %d ends with %d", i,
               c[i].tokens.ids[POSITIONS]);
    }
    text_free(&line);
    tasks_free(&tasks);
}

// The harness writes a question for every filter; its own name of a file is no part of the task's.
static void files(void) {
    static const char repeated[] =
        "{\"filter\": \"strict\", \"target\": \"t\", \"arguments\": [[\"P\", {}]]}\n"
        "{\"filter\": \"flexible\", \"target\": \"t\", \"arguments\": [[\"P\", {}]]}\n"
        "{\"filter\": \"strict\", \"target\": \"t\", \"arguments\": [[\"P\", {}]]}\n";
    static const struct {
        const char *path, *name;
    } names[] = {{"a/samples_gsm8k_2026-01-31T12-00-00.123456.jsonl", "gsm8k"},
                 {"samples_arc_easy.jsonl", "arc_easy"},
                 {"my.task.jsonl", "my.task"},
                 {"standard input", "standard input"}};
    Tasks tasks = {0};
    Tokenizer *tokenizer = byte_tokenizer();
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(task_add(&tasks, names[i].path, repeated, strlen(repeated), i == 3, tokenizer, 400));
        EXPECT(!strcmp(tasks.tasks[i].name, names[i].name), "%s is called %s", names[i].path,
               tasks.tasks[i].name);
        EXPECT(tasks.tasks[i].count == (i == 3 ? 1 : 2), "%d items", tasks.tasks[i].count);
        EXPECT(tasks.tasks[i].left_out == (i == 3 ? 0 : 1), "%lld left out",
               (long long)tasks.tasks[i].left_out);
    }
    tokenizer_close(tokenizer);
    tasks_free(&tasks);
}

// ---- filters ------------------------------------------------------------------------------------

static void filters(void) {
    static const struct {
        const char *words[3];
        const char *answer, *filtered, *target;
        bool matches;
    } cases[] = {
        {{0}, " x", " x", "x", false},
        {{0}, "", "", "", true},
        {{"strip"}, " \n x y\t", "x y", "x y", true},
        {{"lowercase"},
         "\xc3\x84"
         "bC",
         "\xc3\xa4"
         "bc",
         "\xc3\x84"
         "bC",
         false},
        {{"uppercase"},
         "\xc3\xa4"
         "bc",
         "\xc3\x84"
         "BC",
         "\xc3\x84"
         "BC",
         true},
        {{"ignore-case"}, "Yes", "yes", "YES", true},
        {{"ignore-punctuation", "ignore-numbers"}, "a, b. 3!", "a b ", "a 7b ", true},
        {{"first=#### (-?[0-9.,]+)"}, "so #### 12, or #### 13", "12,", "12,", true},
        {{"last=([a-z])=|([0-9]+)"}, "x=1 y=", "y", "y", true},
        {{"last=[0-9]+", "strip"}, "1 22 333.", "333", "333", true},
        {{"first=[0-9]+"}, "none", "[invalid]", "none", false},
        {{"first=(x?)y"}, "y", "[invalid]", "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int count = 0;
        while (count < 3 && cases[i].words[count]) count++;
        TaskFilters *f;
        const char *target = cases[i].target;
        TaskItem item = {.targets = &target, .num_targets = 1};
        text_add(&item.answer, "%s", cases[i].answer);
        EXPECT_OK(task_filters_open(&f, cases[i].words, count));
        EXPECT_OK(task_filters_apply(f, &item));
        EXPECT(!strcmp(text_string(&item.filtered), cases[i].filtered), "case %zu gives '%s'", i,
               text_string(&item.filtered));
        EXPECT(item.matches == cases[i].matches, "case %zu: matches %d", i, item.matches);
        task_filters_close(f);
        text_free(&item.answer);
        text_free(&item.filtered);
    }
}

static void refused_filters(void) {
    static const char *const cases[][2] = {{"lowercas", "did you mean lowercase?"},
                                           {"strip=x", "takes no value"},
                                           {"first", "needs a regular expression"},
                                           {"last=", "needs a regular expression"},
                                           {"first=(", "--filter first=(: the pattern"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        TaskFilters *f;
        Status status = task_filters_open(&f, cases[i], 1);
        const char *message = status == OK ? "" : fail_message();
        EXPECT(status == ERR_USAGE && strstr(message, cases[i][1]), "%s: %s", cases[i][0], message);
        if (status == OK) task_filters_close(f);
    }
}

// ---- answers ------------------------------------------------------------------------------------

// Says "xy" and then a token that ends texts, after prompts of several lengths.
typedef struct {
    int batch, vocabulary, done;
    int32_t end;
} Speaker;

static void speak(void *self, int position, const int32_t *tokens, int n, float *logits) {
    Speaker *s = self;
    (void)position;
    for (int b = 0; b < s->batch; b++) {
        int32_t last = tokens[(n - 1) * s->batch + b];
        int32_t next = last == 'x' - '!' ? 'y' - '!' : last == 'y' - '!' ? s->end : 'x' - '!';
        for (int v = 0; v < s->vocabulary; v++) logits[b * s->vocabulary + v] = v == next;
    }
}

static bool never(void *self) {
    (void)self;
    return false;
}

static void count_answers(void *self, int count) { ((Speaker *)self)->done += count; }

static void answers(void) {
    Tokenizer *tokenizer = byte_tokenizer();
    TokenList ends = {0};
    Tasks tasks = {0};
    Speaker s = {.batch = 2, .vocabulary = 257, .end = 'E' - '!'};
    token_list_add(&ends, &s.end, 1);
    EXPECT_OK(read_text(&tasks, "f",
                        "{\"prompt\": \"P\", \"target\": \"xy\", \"max_new_tokens\": 9}\n"
                        "{\"prompt\": \"PPP\", \"until\": \"y\", \"target\": \"x\", \"max_new_tokens\": 9}\n"
                        "{\"prompt\": \"PP\", \"target\": \"x\", \"max_new_tokens\": 1}",
                        0));
    TokenModel model = {.self = &s,
                        .batch = s.batch,
                        .capacity = tasks.longest_answered,
                        .longest = tasks.longest_prompt,
                        .vocabulary = s.vocabulary,
                        .next = speak,
                        .stopped = never};
    EXPECT_OK(tasks_generate(&model, tokenizer, &ends, &tasks, count_answers));
    for (int i = 0; i < 3; i++) {
        const TaskItem *item = &tasks.tasks[0].items[i];
        EXPECT(!strcmp(text_string(&item->answer), item->targets[0]), "prompt %d is answered '%s'", i,
               text_string(&item->answer));
    }
    EXPECT(s.done == 3, "%d answers are counted", s.done);
    token_list_free(&ends);
    tasks_free(&tasks);
    tokenizer_close(tokenizer);
}

// ---- metrics ------------------------------------------------------------------------------------

static void expect_result(const TaskResult *r, const char *metric, double value, double error) {
    EXPECT(!strcmp(r->metric, metric), "%s, not %s", r->metric, metric);
    EXPECT(fabs(r->value - value) < 1e-12, "%s is %.15g, not %.15g", metric, r->value, value);
    EXPECT(isnan(error) ? isnan(r->error) : fabs(r->error - error) < 1e-12, "the error of %s is %g, not %g",
           metric, r->error, error);
}

static void metrics(void) {
    Tasks tasks = {0};
    // Of the first question x has the best log-likelihood, xxx per character, and the right one per byte; of the second
    // x, then yyy, as long as the blank before them is no part of them.
    EXPECT_OK(
        read_text(&tasks, "choices",
                  "{\"context\": \"Q\", \"choices\": [\"x\", \"\xc3\xbc\xc3\xbc\", \"xxx\"], \"gold\": 1}\n"
                  "{\"context\": \"Q\", \"choices\": [\"x\", \"yyy\"], \"gold\": 0}",
                  0));
    EXPECT_OK(read_text(
        &tasks, "words",
        "{\"context\": \"Q\", \"continuation\": \"x\"}\n{\"context\": \"Q\", \"continuation\": \"y\"}", 0));
    EXPECT_OK(read_text(&tasks, "texts", "{\"text\": \"a b\"}\n{\"text\": \"c\"}", 0));
    EXPECT_OK(read_text(&tasks, "until", "{\"prompt\": \"P\", \"target\": \"x\", \"max_new_tokens\": 2}", 0));
    static const double log_likelihoods[] = {-3, -4, -4.5, -1, -2.5, /* words */ -1, -3, /* texts */ -5, -3};
    EXPECT(tasks.continuations.count == 9, "%d continuations", tasks.continuations.count);
    for (int i = 0; i < tasks.continuations.count; i++) {
        tasks.continuations.items[i].log_likelihood = log_likelihoods[i];
        tasks.continuations.items[i].greedy = i == 5;
    }
    tasks.tasks[3].items[0].matches = true;
    TaskResult results[4 * MAX_TASK_METRICS];
    int count = tasks_measure(&tasks, results);
    EXPECT(count == 9, "%d metrics", count);
    expect_result(&results[0], "acc", 0.5, 0.5);
    expect_result(&results[1], "acc_norm", 0, 0);
    expect_result(&results[2], "acc_bytes", 0.5, 0.5);
    expect_result(&results[3], "acc", 0.5, 0.5);
    expect_result(&results[4], "perplexity", exp(2), exp(2));
    expect_result(&results[5], "word_perplexity", exp(8.0 / 3), NAN);
    expect_result(&results[6], "byte_perplexity", exp(8.0 / 4), NAN);
    expect_result(&results[7], "bits_per_byte", 2 / log(2), NAN);
    expect_result(&results[8], "exact_match", 1, NAN);
    Text json = {0};
    task_results_json(results + 7, 2, "m", &json);
    EXPECT(strstr(json.data,
                  "{\"task\": \"until\", \"metric\": \"exact_match\", \"value\": 1, \"stderr\": null, "
                  "\"n\": 1}]}"),
           "%s", json.data);
    text_free(&json);
    tasks_free(&tasks);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shapes", shapes},
                                      {"refused", refused},
                                      {"windows", windows},
                                      {"files", files},
                                      {"filters", filters},
                                      {"refused filters", refused_filters},
                                      {"answers", answers},
                                      {"metrics", metrics},
                                      {0}},
                       argc, argv);
}
