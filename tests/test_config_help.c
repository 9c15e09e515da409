// Help and the printed block cannot drift from the table, and the first screen fits a terminal.
#include "config/table.h"
#include "config_words.h"

static const Verb verbs[] = {
    FOR_TRAIN,          FOR_PREPROCESS,   FOR_SCHEDULE, FOR_MEMORY,  FOR_MODELS,    FOR_TOKENIZER,
    FOR_DATA,           FOR_CHECKPOINT,   FOR_EXPORT,   FOR_IMPORT,  FOR_GENERATE,  FOR_EVALUATE,
    FOR_PLAN,           FOR_BENCH,        FOR_DEVICES,  FOR_GOODPUT, FOR_SUPERVISE, FOR_SELFTEST,
    FOR_VERIFY_MACHINE, FOR_PREPARE_CHAT, FOR_FINETUNE, FOR_WATCH,   FOR_REPORT};
enum { NUM_VERBS = sizeof verbs / sizeof verbs[0] };

static void no_verb_is_left_out(void) {
    unsigned all = 0;
    for (int v = 0; v < NUM_VERBS; v++) all |= verbs[v];
    EXPECT(all == EVERY_VERB, "%u", all);
}

static int count_lines(const char *text) {
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

// Law: the full help of a verb names each of its options and none of another's.
static void every_option_is_explained(void) {
    for (int v = 0; v < NUM_VERBS; v++) {
        Text text = {0};
        options_help(verbs[v], true, &text);
        EXPECT(text.size, "verb %d has no help", (int)verbs[v]);
        for (int i = 0; i < NUM_OPTIONS; i++) {
            const OptionInfo *option = &option_table[i];
            char name[128];
            snprintf(name, sizeof name, "\n  --%.*s ", (int)strcspn(option->spellings, " "),
                     option->spellings);
            bool explained = strstr(text_string(&text), name) != NULL, belongs = option->verbs & verbs[v];
            EXPECT(explained == belongs, "%s in the help of verb %d", name, (int)verbs[v]);
            EXPECT(!belongs || strstr(text.data, option->help), "%s", option->help);
        }
        text_free(&text);
    }
}

static void sections_are_whole(void) {
    Text text = {0};
    options_help(FOR_TRAIN, true, &text);
    for (int i = 0; i < NUM_OPTIONS; i++) {
        char heading[64];
        snprintf(heading, sizeof heading, "\n%s\n", option_table[i].section);
        const char *first = strstr(text.data, heading);
        EXPECT(!first || !strstr(first + 1, heading), "section %s is in two parts", option_table[i].section);
    }
    text_free(&text);
}

static void first_screen_fits(void) {
    for (int v = 0; v < NUM_VERBS; v++) {
        Text text = {0};
        options_help(verbs[v], false, &text);
        EXPECT(!strncmp(text_string(&text), "trireme ", 8), "examples come first");
        EXPECT(count_lines(text.data) <= 22, "%d lines, and two of a title", count_lines(text.data));
        for (const char *line = text.data; *line; line += strcspn(line, "\n") + 1)
            EXPECT(strcspn(line, "\n") <= 120, "%.*s", (int)strcspn(line, "\n"), line);
        text_free(&text);
    }
}

// Benchmarks of GPUs need both files.
static void bench_names_its_files(void) {
    static const char *const words[] = {"\n  --machine ", "\n  --stack ", "\n  --product-algorithms ",
                                        " --stack node-trireme.yaml --device cuda"};
    Text text = {0};
    options_help(FOR_BENCH, false, &text);
    for (int i = 0; i < 4; i++) EXPECT(strstr(text_string(&text), words[i]), "no '%s'", words[i]);
    text_free(&text);
}

// The rows that a first screen must not lack: what its examples use, and what fine-tuning takes.
static void first_screens_name(void) {
    static const struct {
        Verb verb;
        const char *options[3];
    } rows[] = {{FOR_TRAIN, {"\n  --save ", "\n  --finetune ", "\n  --lora-rank "}},
                {FOR_FINETUNE, {"\n  --save ", "\n  --epochs ", "\n  --lora-rank "}},
                {FOR_EVALUATE, {"\n  --load ", "\n  --sft ", "\n  --dpo "}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Text text = {0};
        options_help(rows[i].verb, false, &text);
        for (int k = 0; k < 3; k++)
            EXPECT(strstr(text_string(&text), rows[i].options[k]), "no '%s'", rows[i].options[k] + 1);
        text_free(&text);
    }
}

// The block that scripts search for in Megatron-LM's logs.
static void arguments_block(void) {
    Options o;
    Text text = {0};
    EXPECT_OK(resolve_run(&o, "--adam-eps 1e-8 --clip-grad 1.0"));
    options_print(&o, FOR_TRAIN, &text);
    static const char *const lines[] = {
        ("------------------------ arguments ------------------------\n"
         "  account_for_embedding_in_pipeline_split "),
        "\n  num_layers ...................................... 8\n",
        "\n  clip_grad ....................................... 1.0\n",
        "\n  adam_eps ........................................ 1e-08\n",
        "\n  train_samples ................................... None\n",
        "\n  eod_mask_loss ................................... False\n",
        "\n  data_path ....................................... ['corpus']\n",
        "\n-------------------- end of arguments ---------------------\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        EXPECT(strstr(text.data, lines[i]), "lacks %s in\n%s", lines[i], text.data);
    text_free(&text);
    options_destroy(&o);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"no verb is left out", no_verb_is_left_out},
                                      {"every option is explained", every_option_is_explained},
                                      {"sections are whole", sections_are_whole},
                                      {"first screen fits", first_screen_fits},
                                      {"bench names its files", bench_names_its_files},
                                      {"first screens name", first_screens_name},
                                      {"arguments block", arguments_block},
                                      {0}},
                       argc, argv);
}
