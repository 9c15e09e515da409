// Prints the help of a verb: its first screen, or every option from the table.
#include "config/table.h"
#include <string.h>

enum { NAME_COLUMNS = 44, MAX_COMMON = 18 };

// The first screen of a verb: what follows it on the command line (a line for each of its forms), examples, and the
// options that most runs set.
typedef struct {
    Verb verb;
    const char *words;
    const char *examples;
    int common[MAX_COMMON]; // ends with -1
} Screen;

static const Screen screens[] = {
    {FOR_TRAIN,
     "[options]",
     "trireme train --data-path corpus --layers 4 --hidden 128 --heads 4 --seq 128 --mbs 4 "
     "--steps 200 --lr 1e-3\n"
     "trireme train ... --ranks 8 --tp 2 --pp 2          # 8 ranks as threads: "
     "2 tensor x 2 pipeline x 2 data\n"
     "mpirun -n 8 trireme train --config run.yaml        # ranks as processes, options from a file\n"
     "trireme train --load MODEL --finetune --sft --data-path chats ... --save tuned    # MODEL: also Hugging Face\n",
     {OPT_data_path, OPT_load, OPT_finetune, OPT_save, OPT_sft, OPT_lora_rank, OPT_model, OPT_num_layers,
      OPT_seq_length, OPT_micro_batch_size, OPT_global_batch_size, OPT_train_iters, OPT_lr, OPT_bf16,
      OPT_dry_run, -1}},
    {FOR_FINETUNE,
     "MODEL DATA [options]",
     "trireme finetune MODEL chats.jsonl              # MODEL: a Hugging Face folder, a checkpoint, a GGUF file\n"
     "trireme finetune MODEL book.txt --save tuned --epochs 2 --lr 1e-5    # options of train win over its choices\n"
     "trireme finetune MODEL chats.jsonl --dry-run    # prepares the data and says what it would do\n"
     "\nStopped by Ctrl-C, or killed, the same command goes on. The --save folder (unset: MODEL-tuned) gets the model as\n"
     "hf/ and model.gguf. Conversations and text (\"text\") are told apart by the first line.\n",
     {OPT_save, OPT_epochs, OPT_lr, OPT_lora_rank, OPT_seq_length, OPT_global_batch_size, OPT_memory_gb,
      OPT_chat_template, OPT_too_long, OPT_train_on, OPT_tokenizer_model, OPT_dtype, OPT_dry_run, -1}},
    {FOR_SUPERVISE,
     "[options] -- COMMAND [ARGUMENT ...]",
     "trireme supervise -- train --ranks 8 ... --save checkpoints --save-interval 100   # ranks as threads\n"
     "trireme supervise -- mpirun -n 8 trireme train ... --save checkpoints             # any launcher\n"
     "trireme supervise --hosts a:4,b:4,c:4 -- mpirun -n 8 --host {hosts} trireme train ... --save checkpoints\n",
     {OPT_elastic, OPT_machine, OPT_max_restarts, OPT_hosts, OPT_spares, OPT_host_check, OPT_cores,
      OPT_hang_factor, OPT_grace_s, OPT_grow_interval_s, OPT_state_dir, -1}},
    {FOR_PREPROCESS,
     "[options]",
     "trireme preprocess --input book.txt --output-prefix corpus --vocab-size 4096\n"
     "trireme preprocess --input *.jsonl.zst --output-prefix corpus --tokenizer-model tokenizer.json "
     "--append-eod\n",
     {OPT_input, OPT_output_prefix, OPT_vocab_size, OPT_tokenizer_model, OPT_vocab_file, OPT_merge_file,
      OPT_json_keys, OPT_append_eod, OPT_workers, OPT_max_bytes, OPT_config, -1}},
    {FOR_PREPARE_CHAT,
     "[options]",
     "trireme prepare-chat --input chats.jsonl --tokenizer-model FOLDER --seq-length 2048 --preview 3\n"
     "trireme prepare-chat --input chats.jsonl --tokenizer-model FOLDER --seq-length 2048 --output-prefix chats\n"
     "trireme prepare-chat --chat-template chatml --print-template >mine.jinja   # to change it\n",
     {OPT_input, OPT_tokenizer_model, OPT_output_prefix, OPT_seq_length, OPT_chat_template, OPT_preview,
      OPT_preferences, OPT_too_long, OPT_pack, OPT_train_on, OPT_workers, OPT_config, -1}},
    {FOR_TOKENIZER,
     "train --input PATH ... --vocab-size V --output FOLDER [options]\n"
     "encode [FILE ...] [options]\n"
     "decode [FILE ...] [options]\n"
     "inspect [options]",
     "trireme tokenizer train --input src/ --vocab-size 32768 --output FOLDER # tokenizer.json and more\n"
     "trireme tokenizer encode --tokenizer-model PATH [FILE ...]              # ids, a line for each file\n"
     "trireme tokenizer decode --tokenizer-model PATH [FILE ...]              # ids back to text\n"
     "trireme tokenizer inspect --tokenizer-model PATH                        # kind, size, patterns\n"
     "\nWithout FILE encode and decode read standard input.\n",
     {OPT_tokenizer_model, OPT_vocab_file, OPT_merge_file, OPT_input, OPT_vocab_size, OPT_output,
      OPT_json_keys, OPT_max_bytes, -1}},
    {FOR_SCHEDULE,
     "[options]",
     "trireme schedule --pp 4 --microbatches 8                              # draw 1F1B on four ranks\n"
     "trireme schedule --pp 4 --vp 2 --microbatches 8 --svg timeline.svg    # interleaved, as a picture\n"
     "trireme schedule --pp 4 --schedule zb-h1 --microbatches 8             # with weight gradients put off\n"
     "trireme schedule --from mine.txt                                      # check a schedule of your own\n"
     "trireme schedule --trace trace.json                                   "
     "# what `trireme train --trace` saw\n",
     {OPT_schedule, OPT_pipeline_model_parallel_size, OPT_num_virtual_stages_per_pipeline_rank,
      OPT_microbatches, OPT_forward_us, OPT_backward_us, OPT_hop_us, OPT_exchange_us,
      OPT_schedule_stash_limit, OPT_from, OPT_svg, OPT_trace, OPT_width, -1}},
    {FOR_MEMORY,
     "[options]",
     "trireme memory --model llama2-7b --mbs 1 --ranks 8 --tp 8 --bf16                    # rank by rank\n"
     "trireme memory --config run.yaml --ranks 64 --pp 8 --recompute-activations         # of a run to be\n",
     {OPT_model, OPT_vocab_size, OPT_micro_batch_size, OPT_global_batch_size, OPT_ranks,
      OPT_tensor_model_parallel_size, OPT_pipeline_model_parallel_size, OPT_schedule,
      OPT_use_distributed_optimizer, OPT_sequence_parallel, OPT_context_parallel_size,
      OPT_recompute_granularity, OPT_recompute_method, OPT_bf16, OPT_config, -1}},
    {FOR_PLAN,
     "[options]",
     "trireme plan --model gpt3-175b --gpus 1024 --machine dgx-a100 --gbs 1536 --tokens 300B   # the best\n"
     "trireme plan --model gpt3-175b --gbs 1536 --vary machine=dgx-a100,dgx-h100 gpus=512,1024    # a table\n"
     "trireme plan --rows measured.csv --stack megatron-lm-2021 --loo         # errors on measured runs\n"
     "trireme plan --calibrate measured.csv --stack megatron-lm-2021 --output mine.yaml\n"
     "Sizes that are given are kept, the others are searched; with t, p and b given only that run is priced.\n",
     {OPT_model, OPT_gpus, OPT_machine, OPT_global_batch_size, OPT_tensor_model_parallel_size,
      OPT_pipeline_model_parallel_size, OPT_micro_batch_size, OPT_tokens, OPT_price, OPT_stack, OPT_json,
      OPT_html, OPT_rows, OPT_calibrate, -1}},
    {FOR_BENCH,
     "[options]",
     "trireme bench --machine laptop.yaml           # a minute; then: trireme plan --machine laptop.yaml ...\n"
     "trireme bench --machine node.yaml --stack node-trireme.yaml --device cuda      # the same of GPUs\n"
     "trireme bench --product-algorithms mine.txt --device cuda --model gpt2-124m --mbs 16 --bf16\n"
     "                                              # then: trireme train --product-algorithms mine.txt ...\n",
     {OPT_machine, OPT_stack, OPT_threads, OPT_bf16, OPT_device, OPT_product_algorithms, -1}},
    {FOR_DEVICES,
     "[options]",
     "trireme devices                               # what can compute here, and what is missing for a GPU\n"
     "trireme devices --json                        # the same for a program\n",
     {OPT_json, -1}},
    {FOR_GOODPUT,
     "RUN [options]",
     "trireme goodput checkpoints                   # of a supervised run: its --save folder\n"
     "trireme goodput ledger.jsonl --html page.html # of what `trireme train --ledger FILE` wrote\n",
     {OPT_json, OPT_html, -1}},
    {FOR_WATCH,
     "RUN [options]",
     "trireme watch checkpoints                     # of a run: its --save folder, its run.json, or its metrics\n"
     "trireme watch checkpoints --once              # one picture, for scripts\n",
     {OPT_once, OPT_plain, -1}},
    {FOR_REPORT,
     "RUN ... --html FILE [options]",
     "trireme report checkpoints --html run.html                        # of a run: its --save folder\n"
     "trireme report before.jsonl after.jsonl --html compared.html      # several: their metrics, or run.json\n"
     "trireme report checkpoints --trace trace.json --html run.html     # with the timeline of a step\n",
     {OPT_html, OPT_trace, -1}},
    {FOR_SELFTEST,
     "--faults DIR",
     "trireme selftest --faults /scratch/me         # a folder of the file system that is to hold checkpoints\n"
     "\nEvery call of the save of a small checkpoint fails in turn, and its process is killed in front of each.\n",
     {OPT_faults, -1}},
    {FOR_VERIFY_MACHINE,
     "[options]",
     "trireme verify-machine                        # every core in turn, for a minute\n"
     "trireme verify-machine --minutes 60 --all-cores    # all cores at the same time, for an hour\n"
     "\nExit status 80: a core computed something wrong; the message names it.\n",
     {OPT_minutes, OPT_all_cores, -1}},
    {FOR_MODELS,
     "",
     "trireme models                                # then: trireme train --model NAME ...\n",
     {OPT_help_all, -1}},
    {FOR_GENERATE,
     "[options]",
     "trireme generate --load checkpoints --prompt \"Once upon\"                # the newest checkpoint\n"
     "trireme generate --load llama-hf --chat --prompt \"Who are you?\"        # by its chat template\n"
     "trireme generate --load llama-hf --prompt - --temperature 0 --bf16 <question.txt\n"
     "trireme generate --load checkpoints --tp 2 --pp 2 --ranks 4 --num-samples 8 --top-p 0.9\n",
     {OPT_load, OPT_adapter, OPT_prompt, OPT_chat, OPT_prompts, OPT_max_new_tokens, OPT_temperature,
      OPT_top_k, OPT_top_p, OPT_num_samples, OPT_stop, OPT_tokenizer_model, OPT_ranks,
      OPT_tensor_model_parallel_size, OPT_bf16, -1}},
    {FOR_EVALUATE,
     "[options]",
     "trireme evaluate --load checkpoints --data-path corpus           # perplexity of the validation share\n"
     "trireme evaluate --load checkpoints --task hellaswag.jsonl --task wikitext.jsonl\n"
     "trireme evaluate --load tuned --sft --data-path chats           # loss of the answers of conversations\n"
     "trireme evaluate --load checkpoints --requests requests.jsonl --output answers.jsonl\n",
     {OPT_load, OPT_adapter, OPT_task, OPT_filter, OPT_data_path, OPT_sft, OPT_dpo, OPT_split, OPT_seq_length,
      OPT_requests, OPT_output, OPT_micro_batch_size, OPT_tokenizer_model, OPT_ranks, OPT_bf16, -1}},
    {FOR_DATA,
     "inspect [PREFIX ...] [options]\n"
     "verify [PREFIX ...] [options]\n"
     "sample [[WEIGHT] PREFIX ...] --seq-length S [options]",
     "trireme data inspect PREFIX                   # documents, tokens, lengths\n"
     "trireme data verify PREFIX                    # every token, against the tokenizer beside it\n"
     "trireme data sample PREFIX --seq 128          # what training reads, in its order\n"
     "\nsample takes a blend too: WEIGHT PREFIX WEIGHT PREFIX ...\n",
     {OPT_seq_length, OPT_samples, OPT_first_sample, OPT_train_samples, OPT_split, OPT_tokenizer_model, -1}},
    {FOR_CHECKPOINT,
     "list FOLDER\n"
     "inspect PATH\n"
     "verify PATH\n"
     "diff PATH PATH\n"
     "reshard PATH --output FOLDER [options]",
     "trireme checkpoint list FOLDER                # steps, sizes, dates, grids\n"
     "trireme checkpoint inspect PATH               # state, model and tensors\n"
     "trireme checkpoint verify PATH                # every byte; of a folder: all its checkpoints\n"
     "trireme checkpoint diff PATH PATH             # exit status 1 when they differ\n"
     "trireme checkpoint reshard PATH --output FOLDER --files 4\n"
     "\nPATH is a checkpoint, or a folder of them: the newest.\n",
     {OPT_output, OPT_files, -1}},
    {FOR_EXPORT,
     "--load PATH --output PATH [options]",
     "trireme export --load checkpoints --output model-hf                   # the newest, for transformers\n"
     "trireme export --load checkpoints --to gguf --dtype q8_0 --output model.gguf        # for llama.cpp\n"
     "trireme export --load llama-hf --adapter lora --output merged         # a LoRA adapter, merged\n",
     {OPT_load, OPT_ckpt_step, OPT_adapter, OPT_to, OPT_dtype, OPT_output, -1}},
    {FOR_IMPORT,
     "SOURCE --save FOLDER [options]",
     "trireme import SmolLM2-135M --save checkpoints          # a Hugging Face folder of any family it knows\n"
     "trireme import model.gguf --tokenizer-model FOLDER --save checkpoints    # quantised ones become fp32\n"
     "\nThen: trireme train --load checkpoints ... `train` and `generate` also take such a model itself by --load.\n",
     {OPT_save, OPT_tokenizer_model, OPT_vocab_file, OPT_merge_file, OPT_allow_non_finite, -1}},
};

static void add_name_and_help(const OptionInfo *option, Text *out) {
    char name[80];
    int length = (int)strcspn(option->spellings, " ");
    snprintf(name, sizeof name, "--%.*s %s", length, option->spellings, option->value);
    text_add(out, "  %-*s %s\n", NAME_COLUMNS, name, option->help);
}

static void help_short(const Screen *screen, const char *verb, Text *out) {
    text_add(out, "%s\n", screen->examples);
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
    if (strstr(option->range, "repeat")) {
        text_add(out, ", may be given several times");
    } else if (*option->range && strcmp(option->range, "text")) {
        text_add(out, option->type == WORD ? " " : " in ");
        option_choices(option, out);
    }
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

static const Screen *screen_of(Verb verb) {
    for (size_t i = 0; i < sizeof screens / sizeof screens[0]; i++)
        if (screens[i].verb == verb) return &screens[i];
    CHECK(false, "no screen of verb %u", (unsigned)verb);
    return NULL;
}

const char *verb_examples(Verb verb) { return screen_of(verb)->examples; }

bool verb_form(Verb verb, int index, Text *words) {
    const char *line = screen_of(verb)->words;
    for (; index > 0 && *line; index--) line += strcspn(line, "\n") + (strchr(line, '\n') != NULL);
    if (index > 0 || (!*line && line != screen_of(verb)->words)) return false;
    text_add(words, "%.*s", (int)strcspn(line, "\n"), line);
    return true;
}

void options_first_words(Verb verb, Text *out) {
    Text words = {0};
    for (int i = 0; verb_form(verb, i, &words); i++) {
        size_t size = strspn(text_string(&words), "abcdefghijklmnopqrstuvwxyz");
        if (size) text_add(out, "%s%.*s", i ? " " : "", (int)size, words.data);
        text_free(&words);
    }
}

Status options_no_word(Verb verb, const char *word) {
    enum { MAX_WORDS = 8 };
    const char *names[MAX_WORDS], *nearest = NULL, *verb_word = verb_name(verb);
    int count = 0;
    Text words = {0}, list = {0};
    options_first_words(verb, &words);
    for (char *rest = words.data, *name; (name = strtok_r(rest, " ", &rest)) && count < MAX_WORDS;) {
        text_add(&list, "%s%s", count ? ", " : "", name);
        names[count++] = name;
    }
    if (word) nearest = text_nearest(word, names, count);
    if (!word)
        fail(ERR_USAGE, "%s needs one of %s", verb_word, text_string(&list));
    else
        fail(ERR_USAGE, "%s %s: %s%s; it is one of %s", verb_word, word,
             nearest ? "did you mean " : "unknown", nearest ? nearest : "", text_string(&list));
    text_free(&words);
    text_free(&list);
    return ERR_USAGE;
}

static void add_usage(Verb verb, Text *out) {
    Text words = {0};
    for (int i = 0; verb_form(verb, i, &words); i++) {
        text_add(out, "%s trireme %s%s%s\n", i ? "      " : "usage:", verb_name(verb), words.size ? " " : "",
                 text_string(&words));
        text_free(&words);
    }
    text_add(out, "\n");
}

void options_help(Verb verb, bool all, Text *out) {
    if (all) {
        add_usage(verb, out);
        help_all(verb, out);
    } else {
        help_short(screen_of(verb), verb_name(verb), out);
    }
}

Status options_misused(Verb verb, int form, const char *more) {
    Text words = {0};
    CHECK(verb_form(verb, form, &words), "%s has no form %d", verb_name(verb), form);
    fail(ERR_USAGE, "usage: trireme %s %s%s", verb_name(verb), text_string(&words), more);
    text_free(&words);
    return ERR_USAGE;
}
