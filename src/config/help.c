#include "config/table.h"
#include <string.h>

enum { NAME_COLUMNS = 44, MOST_COMMON = 17 };

// The first screen of a verb: how it is used, and the options that most runs set.
typedef struct {
    Verb verb;
    const char *usage;
    int common[MOST_COMMON]; // ends with -1
} Screen;

static const Screen screens[] = {
    {FOR_TRAIN,
     "trireme train --data-path corpus --layers 4 --hidden 128 --heads 4 --seq 128 --mbs 4 "
     "--steps 200 --lr 1e-3\n"
     "trireme train ... --ranks 8 --tp 2 --pp 2          # 8 ranks as threads: "
     "2 tensor x 2 pipeline x 2 data\n"
     "mpirun -n 8 trireme train --config run.yaml        # ranks as processes, options from a file\n",
     {OPT_data_path, OPT_model, OPT_num_layers, OPT_hidden_size, OPT_num_attention_heads, OPT_seq_length,
      OPT_micro_batch_size, OPT_global_batch_size, OPT_train_iters, OPT_lr, OPT_ranks,
      OPT_tensor_model_parallel_size, OPT_pipeline_model_parallel_size, OPT_schedule, OPT_bf16, OPT_dry_run,
      -1}},
    {FOR_PREPROCESS,
     "trireme preprocess --input book.txt --output-prefix corpus --vocab-size 4096\n"
     "trireme preprocess --input *.jsonl --output-prefix corpus --vocab-file vocab.json "
     "--merge-file merges.txt\n",
     {OPT_input, OPT_output_prefix, OPT_vocab_size, OPT_vocab_file, OPT_merge_file, OPT_json_keys,
      OPT_append_eod, OPT_workers, OPT_max_bytes, OPT_config, -1}},
    {FOR_SCHEDULE,
     "trireme schedule --pp 4 --microbatches 8                              # draw 1F1B on four ranks\n"
     "trireme schedule --pp 4 --vp 2 --microbatches 8 --svg timeline.svg    # interleaved, as a picture\n"
     "trireme schedule --pp 4 --schedule zb-h1 --microbatches 8             # with weight gradients put off\n"
     "trireme schedule --from mine.txt                                      # check a schedule of your own\n"
     "trireme schedule --trace run.json                                     "
     "# what `trireme train --trace` saw\n",
     {OPT_schedule, OPT_pipeline_model_parallel_size, OPT_num_virtual_stages_per_pipeline_rank,
      OPT_microbatches, OPT_forward_us, OPT_backward_us, OPT_hop_us, OPT_schedule_stash_limit, OPT_from,
      OPT_svg, OPT_trace, OPT_width, -1}},
    {FOR_MEMORY,
     "trireme memory --model llama2-7b --mbs 1 --ranks 8 --tp 8 --bf16                    # rank by rank\n"
     "trireme memory --config run.yaml --ranks 64 --pp 8 --recompute-activations         # of a run to be\n",
     {OPT_model, OPT_vocab_size, OPT_micro_batch_size, OPT_global_batch_size, OPT_ranks,
      OPT_tensor_model_parallel_size, OPT_pipeline_model_parallel_size, OPT_schedule,
      OPT_use_distributed_optimizer, OPT_sequence_parallel, OPT_recompute_granularity, OPT_recompute_method,
      OPT_bf16, OPT_config, -1}},
    {FOR_MODELS,
     "trireme models                                # then: trireme train --model NAME ...\n",
     {OPT_help_all, -1}},
};

static void add_name_and_help(const OptionInfo *option, Text *out) {
    char name[80];
    int length = (int)strcspn(option->spellings, " ");
    snprintf(name, sizeof name, "--%.*s %s", length, option->spellings, option->value);
    text_add(out, "  %-*s %s\n", NAME_COLUMNS, name, option->help);
}

static void help_short(const Screen *screen, const char *verb, Text *out) {
    text_add(out, "%s\n", screen->usage);
    for (const int *index = screen->common; *index >= 0; index++)
        add_name_and_help(&option_table[*index], out);
    text_add(out, "\nEvery option, with defaults and ranges: trireme %s --help-all\n", verb);
}

static const char *type_name(OptionType type) {
    static const char *const names[] = {"whole number", "whole number", "number", "flag", "word", "words"};
    return names[type];
}

static void add_facts(const OptionInfo *option, Text *out) {
    text_add(out, "  %-*s %s", NAME_COLUMNS, "", type_name(option->type));
    if (*option->range) text_add(out, " %s%s", option->type == WORD ? "" : "in ", option->range);
    bool on = option->type == FLAG && *option->default_value;
    if (on)
        text_add(out, ", on; --no-%s turns it off", option->spellings);
    else if (*option->default_value)
        text_add(out, ", default %s", option->default_value);
    const char *aliases = option->spellings + strcspn(option->spellings, " ");
    for (const char *alias = aliases; *alias; alias += strcspn(alias, " ")) {
        text_add(out, "%s --%.*s", alias == aliases ? "; also" : "", (int)strcspn(alias + 1, " "), alias + 1);
        alias++;
    }
    text_add(out, "\n");
}

static void help_all(Verb verb, Text *out) {
    const char *section = "";
    for (const OptionInfo *option = option_table; option < option_table + NUM_OPTIONS; option++) {
        if (!(option->verbs & verb)) continue;
        if (strcmp(section, option->section)) text_add(out, "%s%s\n", *section ? "\n" : "", option->section);
        section = option->section;
        add_name_and_help(option, out);
        add_facts(option, out);
    }
    text_add(out, "\n--name=value works too. In a --config file: `name: value` lines, with '_' or '-', "
                  "in sections or not.\n");
}

void options_help(Verb verb, bool all, Text *out) {
    for (size_t i = 0; i < sizeof screens / sizeof screens[0]; i++) {
        if (screens[i].verb != verb) continue;
        if (all)
            help_all(verb, out);
        else
            help_short(&screens[i], verb_name(verb), out);
    }
}
