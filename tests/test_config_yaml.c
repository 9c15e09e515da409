// Configuration files: what they mean, where their mistakes are, and that a saved one reads back.
#include "base/file.h"
#include "config/table.h"
#include "config_words.h"
#include <math.h>
#include <stdlib.h>

static const char *write_file(const char *name, const void *data, size_t size) {
    static _Thread_local char path[512];
    snprintf(path, sizeof path, "%s/%s", harness_folder(), name);
    EXPECT_OK(file_write(path, data, size));
    return path;
}

// The options of a file with this content, and of the words behind it on the command line.
static Status parse_file(Options *options, const char *content, size_t size, const char *line) {
    char whole[1024];
    snprintf(whole, sizeof whole, "--config %s %s", write_file("run.yaml", content, size), line);
    return parse_line(options, FOR_TRAIN, whole);
}

static Status parse_yaml(Options *options, const char *content, const char *line) {
    return parse_file(options, content, strlen(content), line);
}

static void values(void) {
    Options o;
    EXPECT_OK(parse_yaml(&o,
                         "# a run\n"
                         "num_layers: 12\n"
                         "hidden-size: \"768\"\n"
                         "Learning rate:\n"
                         "  lr: 1e-4\n"
                         "  lr_decay_style: cosine\n"
                         "data_path: [0.5, my corpus]\n"
                         "split: 969,30,1\n"
                         "metrics: no\n" // a word is a word, whatever YAML takes it for
                         "deterministic_mode: no\n"
                         "no_check_for_nan_in_loss_and_grad: true\n"
                         "fp16: false\n"
                         "recompute_activations: true\n"
                         "enable_zero_bubble: false\n"
                         "rampup_batch_size: [16, 16, 1000]\n"
                         "num_workers: 4\n",
                         ""));
    EXPECT(o.num_layers == 12 && o.hidden_size == 768 && o.lr == 1e-4, "numbers");
    EXPECT(o.data_path.count == 2 && !strcmp(o.data_path.items[1], "my corpus"), "list");
    EXPECT(!strcmp(o.metrics, "no") && !strcmp(o.lr_decay_style, "cosine"), "words");
    EXPECT(!strcmp(o.recompute_granularity, "selective") && !o.schedule, "names that stand for others");
    EXPECT(o.rampup_batch_size.count == 3 && !o.fp16, "%d words", o.rampup_batch_size.count);
    EXPECT(!o.deterministic_mode && !o.check_for_nan_in_loss_and_grad, "flags");
    EXPECT(strstr(options_notes(&o), "num_workers has no effect"), "%s", options_notes(&o));
    options_destroy(&o);
    EXPECT_OK(parse_yaml(&o, "metrics: \"null\"\ndata_path: ['~']\n", "")); // in quotes they are words
    EXPECT(!strcmp(o.metrics, "null") && !strcmp(o.data_path.items[0], "~"), "%s", o.metrics);
    options_destroy(&o);
    EXPECT_OK(parse_yaml(&o, "# nothing\n", ""));
    options_destroy(&o);
    EXPECT_OK(parse_yaml(&o, "", ""));
    options_destroy(&o);
}

static void precedence(void) {
    Options o;
    EXPECT_OK(parse_yaml(&o, "seed: 1\nclip_grad: 2\nplain: true\n", "--seed 3 --no-plain"));
    EXPECT(o.seed == 3 && options_origin(&o, "seed") == FROM_COMMAND_LINE, "the command line wins");
    EXPECT(!o.plain && options_origin(&o, "plain") == FROM_COMMAND_LINE, "also with a negative");
    EXPECT(o.clip_grad == 2 && options_origin(&o, "clip_grad") == FROM_FILE,
           "the file wins over the default");
    EXPECT(o.weight_decay == 0.01 && options_origin(&o, "weight_decay") == FROM_DEFAULT, "default");
    options_destroy(&o);
    expect_failure(parse_yaml(&o, "seed: x\n", "--seed 3"), ERR_CONFIG, "run.yaml:1:1: seed: 'x'",
                   "replaced, yet checked");
}

static void mistakes(void) {
    static const struct {
        const char *content, *text;
    } rows[] = {
        {"num_layers: 3\nnun_layers: 4\n",
         "run.yaml:2:1: unknown option nun_layers; did you mean num-layers?"},
        {"a:\n  seed: x\n", "run.yaml:2:3: seed: 'x' is not a whole number"},
        {"seed: 1\nlr: 1\nseed: 2\n", "run.yaml:3:1: seed is given twice; the first is in line 1"},
        {"tp: 1\na:\n  tensor-model-parallel-size: 1\n",
         "run.yaml:3:3: tensor-model-parallel-size is given twice"},
        {"a:\n  b:\n    seed: 1\n", "run.yaml:2:3: a section holds options, not sections"},
        {"seed:\n  lr: 1\n", "run.yaml:1:1: an option needs a value"},
        {"seed: [1, 2]\n", "run.yaml:1:1: seed takes one value, not 2"},
        {"data_path: [[a]]\n", "run.yaml:1:13: a list holds single values only"},
        {"seed: []\n", "run.yaml:1:1: seed needs a value"},
        {"plain: []\n", "run.yaml:1:8: true or false is expected, not a list"},
        {"no_plain: [true]\n", "run.yaml:1:11: true or false is expected, not a list"},
        {"seed: 1\nfp16: [false]\n", "run.yaml:2:7: true or false is expected, not a list"},
        {"num_workers: []\n", "run.yaml:1:14: the list is empty"},
        {"fp16: banana\n", "run.yaml:1:1: fp16: 'banana' is neither true nor false"},
        {"seed: 1\nmetrics: ~\n", "run.yaml:2:10: ~ is no value"},
        {"split: null\n", "run.yaml:1:8: null is no value"},
        {"data_path: [a, NULL]\n", "run.yaml:1:16: NULL is no value"},
        {"data_path: []\n", "run.yaml:1:1: data_path needs a value"},
        {"metrics:\n", "run.yaml:1:1: metrics: the value is empty"},
        {"metrics: \"a\\0b\"\n", "run.yaml:1:10: the value has a NUL character"},
        {"metrics: \"a\\eb\"\n", "run.yaml:1:1: metrics: the value has a control character at byte 1"},
        {"\"se\\nd\": 1\n", "run.yaml:1:1: a name has letters"},
        {"seed: &a 1\nlr: *a\n", "run.yaml:2:1: aliases have no meaning here"},
        {"[seed, 1]: 2\n", "run.yaml:1:1: the name of an option is expected"},
        {"- seed\n", "run.yaml:1:1: lines of `option: value` are expected"},
        {"seed: 1\n---\nlr: 1\n", "run.yaml:2:1: one document is expected"},
        {"seed: 1\nlr: 2: 3\n", "run.yaml:2:6: mapping values are not allowed"},
        {"seed: 'open\n", "run.yaml:2:1: found unexpected end of stream"},
        {"seed: \xff\n", "run.yaml:1:"},
        {"config: other.yaml\n", "run.yaml:1:1: config belongs on the command line"},
        {"microbatches: 3\n", "run.yaml:1:1: microbatches is an option of `trireme schedule`"},
        {"n_layer: 3\n", "run.yaml:1:1: n_layer is not an option of `trireme train`; use --num-layers"},
        {"seed: 1\nresume: out\nfp16: true\n", "run.yaml:2:1: resume out is not supported: use --load"},
        {"recompute_activations: true\nrecompute_granularity: full\n",
         "run.yaml:2:1: recompute_granularity is given twice; the first is in line 1"},
        {"activations-checkpoint-method: [block, uniform]\n", "takes one value, not 2"},
        {"enable_zero_bubble: maybe\n",
         "run.yaml:1:1: enable_zero_bubble: 'maybe' is neither true nor false"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o = {0};
        expect_failure(parse_yaml(&o, rows[i].content, ""), ERR_CONFIG, rows[i].text, rows[i].content);
        EXPECT(!o.store, "%s: nothing is left to destroy", rows[i].content);
        options_destroy(&o);
    }
}

static void long_lists_and_files(void) {
    Options o;
    Text text = {0};
    text_add(&text, "data_path: [a");
    for (int i = 0; i < 2000; i++) text_add(&text, ", a");
    text_add(&text, "]\n");
    expect_failure(parse_yaml(&o, text.data, ""), ERR_CONFIG, "the list is too long", "2001 items");
    while (text.size <= 1 << 20) text_add(&text, "# %80s\n", "");
    expect_failure(parse_yaml(&o, text.data, ""), ERR_DATA, "bytes, at most", "more than 1 MiB");
    text_free(&text);
}

// A value that differs from the default, written for a command line whose words are split at blanks.
static void add_sample(const OptionInfo *option, int number, Text *line) {
    static const char nasty[] = "a~\"b\"\\c:~#d'{[,*&!";
    if (option->type == FLAG) {
        text_add(line, "--%s%s ", *option->default_value ? "no-" : "", option->field);
    } else if (option->type == LIST) {
        text_add(line, "--%s %s x%d ", option->field, nasty, number);
    } else if (option->type == WORD) {
        Text choices = {0};
        option_choices(option, &choices);
        const char *word = choices.size ? choices.data : nasty;
        text_add(line, "--%s %.*s ", option->field, choices.size ? (int)strcspn(word, "|") : 64, word);
        text_free(&choices);
    } else {
        bool below_one =
            option->type == REAL && (strstr(option->range, ",1") || strstr(option->range, ",0."));
        text_add(line, "--%s %s%d%s ", option->field, below_one ? "0." : "", 20 + number % 12,
                 option->type == REAL ? below_one ? "45678901234567" : ".45678901234567" : "");
    }
}

static void expect_same_values(const Options *a, const Options *b) {
    for (int i = 0; i < NUM_OPTIONS; i++) {
        Text left = {0}, right = {0};
        if (option_table[i].verbs & COMMAND_LINE_ONLY) continue;
        const void *bits_a = (const char *)a + option_table[i].offset,
                   *bits_b = (const char *)b + option_table[i].offset;
        EXPECT(option_table[i].type != REAL || !memcmp(bits_a, bits_b, sizeof(double)) ||
                   isnan(*(const double *)bits_a),
               "%s is not the same double", option_table[i].field);
        value_print(a, &option_table[i], &left);
        value_print(b, &option_table[i], &right);
        EXPECT(!strcmp(text_string(&left), text_string(&right)), "%s: %s became %s", option_table[i].field,
               text_string(&left), text_string(&right));
        text_free(&left), text_free(&right);
    }
}

// Law: whatever the values, parse(save(options)) has the same ones; of every verb and every option.
static void saved_reads_back(void) {
    static const Verb verbs[] = {FOR_TRAIN,  FOR_PREPROCESS, FOR_SCHEDULE,
                                 FOR_MEMORY, FOR_GENERATE,   FOR_EVALUATE};
    for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        Text line = {0}, saved = {0};
        for (int i = 0; i < NUM_OPTIONS; i++)
            if ((option_table[i].verbs & verbs[v]) && !(option_table[i].verbs & COMMAND_LINE_ONLY))
                add_sample(&option_table[i], i, &line);
        Options set = {0}, read = {0};
        EXPECT_OK(parse_line(&set, verbs[v], text_string(&line)));
        options_save(&set, verbs[v], &saved);
        line.size = 0;
        text_add(&line, "--config %s", write_file("saved.yaml", saved.data, saved.size));
        EXPECT_OK(parse_line(&read, verbs[v], line.data));
        expect_same_values(&set, &read);
        options_destroy(&set), options_destroy(&read);
        text_free(&line), text_free(&saved);
    }
}

// Law: a saved run, read back and resolved for the same ranks, is the same run.
static void resolved_reads_back(void) {
    static const struct {
        const char *line;
        int ranks;
    } runs[] = {
        {"", 1},
        {"--ranks 4 --tp 2 --pp 2 --num-layers-per-virtual-pipeline-stage 1 --gbs 8 "
         "--clip-grad 0.30000000000000004",
         4},
        {"--gbs 7 --decrease-batch-size-if-needed --lr-warmup-iters 3", 1},
        {"--ranks 2 --pp 2 --gbs 4 --pipeline-model-parallel-layout Et|(tt|)*2tttL", 2},
        {"--ranks 4 --pp 4 --schedule zb-v", 4},
        {"--model llama3-8b --no-swiglu --hidden-dropout 0.1", 1},
        {"--fp16 --no-position-embedding --split 100 --checkpoint-activations", 1},
        {"--seed 1234 --no-deterministic-mode --log-interval=10", 1},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        Options set, read;
        Text saved = {0};
        EXPECT_OK(resolve_run(&set, runs[i].line));
        options_save(&set, FOR_TRAIN, &saved);
        EXPECT_OK(parse_yaml(&read, saved.data, ""));
        EXPECT_OK(options_resolve(&read, runs[i].ranks));
        expect_same_values(&set, &read);
        EXPECT(!strcmp(set.shape.schedule, read.shape.schedule) && set.shape.vp == read.shape.vp &&
                   set.shape.global_batch == read.shape.global_batch &&
                   set.shape.lr_warmup_samples == read.shape.lr_warmup_samples,
               "%s: another run", runs[i].line);
        options_destroy(&set), options_destroy(&read);
        text_free(&saved);
    }
}

// What nobody has chosen is a comment, so that it is the reader's to choose, or --model's.
static void what_is_saved(void) {
    Options set, read;
    Text saved = {0};
    EXPECT_OK(resolve_run(&set, "--ranks 4 --tp 2 --pp 2 --num-layers-per-virtual-pipeline-stage 1 --gbs 9 "
                                "--decrease-batch-size-if-needed --seed 1234"));
    options_save(&set, FOR_TRAIN, &saved);
    static const char *const lines[] = {
        "# schedule: \"interleaved\"  # derived\n", "global_batch_size: 9  # command line\n",
        "# normalization: \"LayerNorm\"  # default\n", "# metrics: unset\n", "seed: 1234  # command line\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const char *line = strstr(saved.data, lines[i]);
        EXPECT(line && line[-1] == '\n', "lacks %s in\n%s", lines[i], saved.data);
    }
    EXPECT_OK(parse_yaml(&read, saved.data, "--model llama3-8b"));
    EXPECT_OK(options_resolve(&read, 4));
    EXPECT(!strcmp(read.normalization, "RMSNorm") && read.swiglu && read.hidden_dropout == 0, "a Llama");
    EXPECT(read.num_layers == 8 && options_origin(&read, "num_layers") == FROM_FILE, "of the file's size");
    text_free(&saved);
    options_save(&read, FOR_TRAIN, &saved);
    EXPECT(strstr(saved.data, "\nseed: 1234  # file\n"), "a file's values are live again: %s", saved.data);
    options_destroy(&set), options_destroy(&read);
    text_free(&saved);
}

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

// Damaged and random files give a configuration or one clean error, never anything else.
static void random_bytes(void) {
    static const char seedling[] = "num_layers: 12\nA:\n  data_path: [a, \"b\"]\nlr: &x 1e-3\nplain: yes\n";
    uint32_t state = 1;
    for (int round = 0; round < 600; round++) {
        char bytes[sizeof seedling];
        memcpy(bytes, seedling, sizeof seedling);
        size_t size = sizeof seedling - 1;
        uint32_t changes = 1 + (next_random(&state) >> 8) % (round % 3 ? 4 : 300);
        for (uint32_t i = 0; i < changes; i++)
            bytes[(next_random(&state) >> 8) % size] = (char)(next_random(&state) >> 16);
        Options o = {0};
        Status status = parse_file(&o, bytes, size, "");
        EXPECT(status == OK || status == ERR_CONFIG, "round %d: status %d: %s", round, (int)status,
               fail_message());
        EXPECT(status == OK || strstr(fail_message(), "run.yaml:"), "round %d: %s", round, fail_message());
        options_destroy(&o);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"values", values},
                                      {"precedence", precedence},
                                      {"mistakes", mistakes},
                                      {"long lists and files", long_lists_and_files},
                                      {"saved reads back", saved_reads_back},
                                      {"resolved reads back", resolved_reads_back},
                                      {"what is saved", what_is_saved},
                                      {"random bytes", random_bytes},
                                      {0}},
                       argc, argv);
}
