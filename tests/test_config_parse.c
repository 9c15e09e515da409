// The command line: every type, every form, and an answer to every mistake.
#include "config/table.h"
#include "config_words.h"
#include <math.h>

static void types(void) {
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN,
                         "--num-layers 12.0 --train-samples 40M --lr 1.5e-4 --schedule gpipe --dry-run "
                         "--data-path 0.5 a 0.5 -"));
    EXPECT(o.num_layers == 12, "%d", o.num_layers);
    EXPECT(o.train_samples == 40000000, "%lld", (long long)o.train_samples);
    EXPECT(o.lr == 1.5e-4, "%g", o.lr);
    EXPECT(!strcmp(o.schedule, "gpipe"), "%s", o.schedule);
    EXPECT(o.dry_run, "flag");
    EXPECT(o.data_path.count == 4 && !strcmp(o.data_path.items[3], "-"), "%d items", o.data_path.count);
    options_destroy(&o);
}

static void defaults_and_unset(void) {
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, ""));
    EXPECT(o.num_layers == INT_UNSET && o.train_iters == INT_UNSET && isnan(o.lr) && !o.metrics &&
               !o.data_path.count,
           "unset");
    EXPECT(o.seed == 1234 && o.clip_grad == 1.0 && o.adam_eps == 1e-8, "Megatron-LM's defaults");
    EXPECT(o.check_for_nan_in_loss_and_grad && !o.eod_mask_loss, "flags");
    EXPECT(!strcmp(o.split, "969,30,1"), "%s", o.split);
    EXPECT(options_origin(&o, "seed") == FROM_DEFAULT, "origin");
    EXPECT(!*options_notes(&o), "%s", options_notes(&o));
    options_destroy(&o);
}

// Any spelling, with '-' or '_', with a blank or '=', sets the same field.
static void forms(void) {
    static const char *const lines[] = {"--tensor-model-parallel-size 4",
                                        "--tensor-model-parallel-size=4",
                                        "--tp 4",
                                        "--tensor_model_parallel_size 4",
                                        "--tp=4",
                                        "--tp 2 --tp 4"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Options o;
        EXPECT_OK(parse_line(&o, FOR_TRAIN, lines[i]));
        EXPECT(o.tensor_model_parallel_size == 4, "%s", lines[i]);
        EXPECT(options_origin(&o, "tensor_model_parallel_size") == FROM_COMMAND_LINE, "%s", lines[i]);
        options_destroy(&o);
    }
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, "-n 3 one --data-path=a two --encoder-num-layers 5"));
    EXPECT(o.ranks == 3 && o.data_path.count == 1, "-n and =");
    EXPECT(o.num_layers == 5, "an answer to --encoder-* is not about an option's value");
    EXPECT(o.positional.count == 2 && !strcmp(o.positional.items[1], "two"), "%d words", o.positional.count);
    options_destroy(&o);
}

static void flags(void) {
    static const struct {
        const char *line;
        bool value;
    } rows[] = {{"", true},
                {"--no-deterministic-mode", false},
                {"--no-deterministic-mode=false", true},
                {"--deterministic-mode=false", false},
                {"--deterministic-mode=off", false},
                {"--no-deterministic-mode --deterministic_mode", true},
                {"--no_deterministic_mode=yes", false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options o;
        EXPECT_OK(parse_line(&o, FOR_TRAIN, rows[i].line));
        EXPECT(o.deterministic_mode == rows[i].value, "%s", rows[i].line);
        options_destroy(&o);
    }
}

// The table's own laws: names are unique, canonical spellings are the fields' names, every number has a
// range.
static void table_is_sound(void) {
    for (int i = 0; i < NUM_OPTIONS; i++) {
        const OptionInfo *option = &option_table[i];
        char spellings[256], *rest = NULL;
        snprintf(spellings, sizeof spellings, "%s", option->spellings);
        for (char *word = strtok_r(spellings, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
            EXPECT(meaning_of(EVERY_VERB, word).option == option, "--%s of %s is another option's too", word,
                   option->field);
        EXPECT(meaning_of(EVERY_VERB, option->field).option == option, "%s is not spelled first",
               option->field);
        bool number = option->type == INT || option->type == LONG || option->type == REAL;
        EXPECT(!number || strchr("[(", option->range[0]), "%s has no range", option->field);
        EXPECT(*option->help && (option->type == FLAG || *option->value), "%s has no help", option->field);
    }
}

static const Answer answers[] = {
#define ANSWER(...)                                     ANSWER_FOR(EVERY_VERB, __VA_ARGS__)
#define ANSWER_FOR(verbs, kind, arity, spellings, text) {verbs, kind, arity, spellings, text},
#include "config/answers.def"
#undef ANSWER_FOR
#undef ANSWER
};
enum { NUM_ANSWERS = sizeof answers / sizeof answers[0] };

static void check_answer(const Answer *row, Verb verb, const char *spelling) {
    char name[128];
    snprintf(name, sizeof name, "%s", spelling);
    const Answer *answer = answer_to(verb, name);
    EXPECT(answer && answer->kind == row->kind && !strcmp(answer->text, row->text),
           "an earlier row of %s hides '%s'", verb_name(verb), spelling);
    name[strcspn(name, "=")] = 0;
    Meaning meaning = meaning_of(verb, name);
    EXPECT(meaning.option || meaning.answer || !(verb & FOR_RUN), "'%s' means nothing without a value",
           spelling);
    EXPECT(strchr(spelling, '=') || !meaning.option, "'%s' is an option of %s", spelling, verb_name(verb));
}

// What another verb has as an option has no answer, or one to this very name.
static void options_of_others_are_named(void) {
    for (int i = 0; i < NUM_OPTIONS; i++)
        for (unsigned verb = 1; verb & EVERY_VERB; verb <<= 1) {
            const char *field = option_table[i].field;
            if (option_table[i].verbs & verb) continue;
            const Answer *answer = meaning_of((Verb)verb, field).answer;
            char name[64], rest[1024];
            snprintf(name, sizeof name, " %s ", field);
            for (char *c = name; *c; c++)
                if (*c == '_') *c = '-';
            snprintf(rest, sizeof rest, " %s ", answer ? answer->spellings : name);
            EXPECT(strstr(rest, name), "%s has no option --%s, and says of all names of '%s': %s",
                   verb_name(verb), field, answer->spellings, answer->text);
        }
}

// What a row says to use instead, where that is an option, is one of each of its verbs.
static void check_replacement(const Answer *row, Verb verb) {
    if (row->kind != RENAMED || strncmp(row->text, "--", 2)) return;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(row->text + 2, " :,"), row->text + 2);
    Meaning meaning = meaning_of(verb, name);
    EXPECT(meaning.option || (meaning.answer && meaning.answer->kind == STANDS_FOR),
           "%s has no option --%s, the answer to '%s'", verb_name(verb), name, row->spellings);
}

// Every answer can be given: no row hides another, and none is hidden by an option. Rows for every verb are
// about training and text.
static void answers_are_reachable(void) {
    for (const Answer *row = answers; row < answers + NUM_ANSWERS; row++) {
        for (unsigned verb = 1; verb & EVERY_VERB; verb <<= 1) {
            if (!(row->verbs & verb) || (row->verbs == EVERY_VERB && !(verb & (FOR_RUN | FOR_TEXT))))
                continue;
            char spellings[1024], *rest = NULL;
            snprintf(spellings, sizeof spellings, "%s", row->spellings);
            for (char *word = strtok_r(spellings, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
                check_answer(row, (Verb)verb, word);
            check_replacement(row, (Verb)verb);
        }
    }
}

// What other programs call by another name is set.
static void other_names(void) {
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, "--optimizer AdamW --no-pad-vocab-size"));
    EXPECT(!strcmp(o.optimizer, "adam") && o.make_vocab_size_divisible_by == 1, "%s", o.optimizer);
    options_destroy(&o);
}

static void accepted(void) {
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN,
                         "--num-workers 2 --use-mcore-models --profile-ranks 0 1 --seed 7 --use-mcore-models "
                         "--expert-model-parallel-size 1 --tp-comm-overlap-rs --attention-backend auto"));
    const char *notes = options_notes(&o);
    EXPECT(o.seed == 7 && !o.positional.count, "values of accepted flags are skipped");
    const char *first = strstr(notes, "--use-mcore-models");
    EXPECT(first && !strstr(first + 1, "--use-mcore-models"), "one note each: %s", notes);
    EXPECT(strstr(notes, "--num-workers has no effect: "), "%s", notes);
    options_destroy(&o);
}

static const struct {
    Verb verb;
    const char *line, *text;
    Status status;
} mistaken[] = {
    {FOR_TRAIN, "--nun-layers 3", "did you mean --num-layers?", ERR_USAGE},
    {FOR_TRAIN, "--zzzzzzzzzz", "trireme train --help-all", ERR_USAGE},
    {FOR_TRAIN, "--num-lay 3", "unknown option --num-lay", ERR_USAGE}, // no abbreviations
    {FOR_TRAIN, "--", "unknown option --", ERR_USAGE},
    {FOR_TRAIN, "--seed", "--seed needs a value", ERR_USAGE},
    {FOR_TRAIN, "--seed --lr 1", "--seed needs a value", ERR_USAGE},
    {FOR_TRAIN, "--seed=", "empty", ERR_USAGE},
    {FOR_TRAIN, "--seed 1e3", "'1e3' is not a whole number", ERR_USAGE},
    {FOR_TRAIN, "--seed 1.", "'1.' is not a whole number", ERR_USAGE},
    {FOR_TRAIN, "--seed 1.0x", "'1.0x' is not a whole number", ERR_USAGE},
    {FOR_TRAIN, "--seed 1.01", "'1.01' is not a whole number", ERR_USAGE},
    {FOR_TRAIN, "--seed 1K.0", "'1K.0' is not a whole number", ERR_USAGE},
    {FOR_TRAIN, "--seq 3G", "[1,16777216]", ERR_USAGE},
    {FOR_TRAIN, "--exit-interval 3G", "at most 2147483647", ERR_USAGE},
    {FOR_TRAIN, "--train-iters 99999999999999999999", "not a whole number", ERR_USAGE},
    {FOR_TRAIN, "--lr nan", "'nan' is not a number", ERR_USAGE},
    {FOR_TRAIN, "--lr -1", "[0,)", ERR_USAGE},
    {FOR_TRAIN, "--hidden-dropout 1", "[0,0.9999999]", ERR_USAGE},
    {FOR_TRAIN, "--adam-eps 0", "(0,)", ERR_USAGE},
    {FOR_TRAIN, "--schedule 2f2b", "choose from gpipe|", ERR_USAGE},
    {FOR_TRAIN, "--plain=maybe", "'maybe' is neither true nor false", ERR_USAGE},
    {FOR_TRAIN, "-np 4", "unknown option -np; did you mean --np?", ERR_USAGE},
    {FOR_TRAIN, "-np=4", "unknown option -np; did you mean --np?", ERR_USAGE},
    {FOR_TRAIN, "-nun-layers 3", "did you mean --num-layers?", ERR_USAGE},
    {FOR_TRAIN, "-xyzzyxyz", "trireme train --help-all", ERR_USAGE},
    {FOR_PREPROCESS, "--workers 257", "[1,256]", ERR_USAGE},
    {FOR_TRAIN, "--no-lr", "unknown option --no-lr", ERR_USAGE},
    {FOR_TRAIN, "--microbatches 3",
     "an option of `trireme schedule`, not of `trireme train`; `trireme train --help` shows what it takes",
     ERR_USAGE},
    {FOR_SCHEDULE, "--lr 3", "an option of `trireme train`, not of `trireme schedule`", ERR_USAGE},
    {FOR_IMPORT, "--from gpt2", "--from is not an option of `trireme import`; use `trireme import SOURCE",
     ERR_USAGE},
    {FOR_IMPORT, "gpt2 --output c", "--output is not an option of `trireme import`; use --save FOLDER",
     ERR_USAGE},
    {FOR_IMPORT, "gpt2 --to c", "use --save FOLDER", ERR_USAGE},
    {FOR_IMPORT, "gpt2 --n-layer 3", "unknown option --n-layer",
     ERR_USAGE}, // no option of import stands for it
    {FOR_EXPORT, "--model c", "use --load PATH", ERR_USAGE},
    {FOR_EXPORT, "--load c --save m", "use --output PATH", ERR_USAGE},
    {FOR_EXPORT, "--load c --format gguf", "use --to hf, gguf or peft", ERR_USAGE},
    {FOR_GENERATE, "--checkpoint c", "use --load FOLDER", ERR_USAGE},
    {FOR_GENERATE, "--output c", "use > FILE, since the text goes to standard output", ERR_USAGE},
    {FOR_EVALUATE, "--load c --data d", "use --data-path PREFIX", ERR_USAGE},
    {FOR_TRAIN, "-i d", "-i is not an option of `trireme train`; use --data-path PREFIX", ERR_USAGE},
    {FOR_TRAIN, "--output c", "use --save FOLDER", ERR_USAGE},
    {FOR_PREPROCESS, "--data-path t.txt", "use --input PATH", ERR_USAGE},
    {FOR_PREPROCESS, "--input t.txt -o c", "use --output-prefix PREFIX", ERR_USAGE},
    {FOR_DATA, "--input c", "use --data-path PREFIX", ERR_USAGE},
    {FOR_CHECKPOINT, "--load c", "use the path itself, as in `trireme checkpoint verify PATH`", ERR_USAGE},
    {FOR_SCHEDULE, "--input c", "use --from FILE", ERR_USAGE},
    {FOR_PLAN, "--ranks 8", "use --gpus", ERR_USAGE},
    {FOR_BENCH, "--output c", "use --machine FILE.yaml", ERR_USAGE},
    {FOR_TRAIN, "--batch-size 4", "use --micro-batch-size", ERR_USAGE},
    {FOR_TRAIN, "--model-parallel-size 4", "use --tensor-model-parallel-size", ERR_USAGE},
    {FOR_TRAIN, "--warmup .1", "use --lr-warmup-fraction", ERR_USAGE},
    {FOR_TRAIN, "--n_embd 4", "use --hidden-size", ERR_USAGE},
    {FOR_TRAIN, "--nproc_per_node 4", "use --ranks", ERR_USAGE},
    {FOR_TRAIN, "--rerun-mode report_stats", "--rerun-mode report_stats is not supported", ERR_CONFIG},
    {FOR_TRAIN, "--activations-checkpoint-method x", "--activations-checkpoint-method: 'x' is not known",
     ERR_USAGE},
    {FOR_TRAIN, "--activations-checkpoint-method", "--activations-checkpoint-method needs a value",
     ERR_USAGE},
    {FOR_TRAIN, "--enable-zero-bubble=2", "'2' is neither true nor false", ERR_USAGE},
    {FOR_MODELS, "--lr 3", "an option of `trireme train`, not of `trireme models`", ERR_USAGE},
    {FOR_MODELS, "--config c", "an option of `trireme train`, not of `trireme models`", ERR_USAGE},
    {FOR_MEMORY, "--dry-run", "an option of `trireme train`, not of `trireme memory`", ERR_USAGE},
    {FOR_PLAN, "--moe-expert-capacity-factor 1.0",
     "--moe-expert-capacity-factor is an option of `trireme train`, not of `trireme plan`", ERR_USAGE},
    {FOR_PLAN, "--moe_dispatch_rows=8", "an option of `trireme train`, not of `trireme plan`", ERR_USAGE},
    {FOR_GENERATE, "--moe-z-loss-coeff 1e-3", "an option of `trireme train`, not of `trireme generate`",
     ERR_USAGE},
    {FOR_GENERATE, "--no-moe-router-pre-softmax", "an option of `trireme train`, not of `trireme generate`",
     ERR_USAGE},
    {FOR_PLAN, "--moe-latent-size 2", "--moe-latent-size 2 is not supported: experts are", ERR_CONFIG},
    {FOR_MEMORY, "--nun-layers 3", "did you mean --num-layers?", ERR_USAGE},
    {FOR_TRAIN, "--moe-latent-size 2 --mtp-num-layers 8",
     "lists; remove it; likewise not supported: "
     "--mtp-num-layers",
     ERR_CONFIG},
    {FOR_TRAIN, "--config /nowhere/run.yaml", "/nowhere/run.yaml", ERR_NO_INPUT},
    {FOR_TRAIN, "--yaml-cfg /nowhere/run.yaml", "/nowhere/run.yaml", ERR_NO_INPUT},
};

static void mistakes(void) {
    for (size_t i = 0; i < sizeof mistaken / sizeof mistaken[0]; i++) {
        Options o = {0};
        expect_failure(parse_line(&o, mistaken[i].verb, mistaken[i].line), mistaken[i].status,
                       mistaken[i].text, mistaken[i].line);
        EXPECT(!o.store, "%s: nothing is left to destroy", mistaken[i].line);
        options_destroy(&o);
    }
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, "--fp16=false")); // what is refused may be off
    options_destroy(&o);
}

// Megatron-LM v2.6, examples/pretrain_gpt_distributed_with_mp.sh.
static const char distributed_with_mp[] =
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 24 --hidden-size 1024 "
    "--num-attention-heads 16 --micro-batch-size 4 --global-batch-size 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --train-iters 500000 --lr-decay-iters 320000 --data-path D --vocab-file "
    "gpt2-vocab.json --merge-file gpt2-merges.txt --data-impl mmap --split 949,50,1 "
    "--distributed-backend nccl --lr 0.00015 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 "
    "--clip-grad 1.0 --lr-warmup-fraction .01 --log-interval 100 --eval-interval 1000 --eval-iters 10 "
    "--activations-checkpoint-method uniform --fp16 --save C --load C --save-interval 10000 ";

static void script_distributed_with_mp(void) {
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, distributed_with_mp));
    EXPECT_OK(options_resolve(&o, 8));
    EXPECT(o.shape.dp == 2 && o.shape.num_microbatches == 2 && !strcmp(o.shape.schedule, "1f1b"), "grid");
    EXPECT(o.shape.lr_decay_samples == 5120000 && o.shape.lr_warmup_samples == 51200, "%g",
           o.shape.lr_warmup_samples);
    EXPECT(o.fp16 && o.shape.dynamic_loss_scale && !o.check_for_nan_in_loss_and_grad, "precision");
    EXPECT(!strcmp(o.shape.recompute, "uniform") && o.shape.recompute_layers == 1, "%s", o.shape.recompute);
    EXPECT(strstr(options_notes(&o), "--data-impl has no effect"), "%s", options_notes(&o));
    EXPECT(!strcmp(o.save, "C") && !strcmp(o.load, "C") && o.save_interval == 10000, "checkpoints");
    options_destroy(&o);
}

static void auto_is_a_word_of_its_options(void) {
    Options o;
    Text saved = {0};
    EXPECT_OK(parse_line(&o, FOR_TRAIN, "--save C --save-interval auto"));
    EXPECT(o.save_interval == INT_AUTO, "%lld", (long long)o.save_interval);
    options_save(&o, FOR_TRAIN, &saved);
    EXPECT(strstr(text_string(&saved), "save_interval: auto") != NULL, "%s", text_string(&saved));
    text_free(&saved);
    options_destroy(&o);
    EXPECT(parse_line(&o, FOR_TRAIN, "--train-iters auto") == ERR_USAGE, "train-iters");
    options_destroy(&o);
    EXPECT(parse_line(&o, FOR_TRAIN, "--save-interval 0") == ERR_USAGE && strstr(fail_message(), "[1,)|auto"),
           "%s", fail_message());
    options_destroy(&o);
}

// Megatron-LM, examples/sc21: the flags of CONFIG.sh and run_table_1.sh, on a grid that interleaves.
static void script_sc21(void) {
    static const char sc21[] =
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --micro-batch-size 1 "
        "--global-batch-size 512 --num-layers 32 --hidden-size 3072 --num-attention-heads 32 "
        "--DDP-impl local --data-path D --vocab-file V --merge-file M --log-interval 5 --seq-length 2048 "
        "--max-position-embeddings 2048 --train-iters 500 --lr-decay-iters 320 --lr 0.0001 "
        "--min-lr 0.00001 --lr-decay-style cosine --lr-warmup-fraction 0.01 --split 969,30,1 "
        "--eval-iters 100 --eval-interval 1000 --clip-grad 1.0 --loss-scale 8192 "
        "--num-layers-per-virtual-pipeline-stage 2 --fp16 --activations-checkpoint-method uniform";
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, sc21));
    EXPECT_OK(options_resolve(&o, 64));
    EXPECT(o.shape.vp == 4 && o.shape.dp == 8 && o.shape.num_microbatches == 64, "v %d d %d", o.shape.vp,
           o.shape.dp);
    EXPECT(!strcmp(o.shape.schedule, "interleaved"), "%s", o.shape.schedule);
    EXPECT(o.fp16 && o.loss_scale == 8192 && !o.shape.dynamic_loss_scale, "a fixed scale");
    options_destroy(&o);
}

// Megatron-LM v2.6, examples/pretrain_gpt3_175B.sh: a batch that grows.
static void script_gpt3(void) {
    static const char gpt3[] =
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --num-layers 96 "
        "--hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 "
        "--micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 "
        "--train-samples 146484375 --lr-decay-samples 126953125 --lr-warmup-samples 183105 --lr 6.0e-5 "
        "--min-lr 6.0e-6 --lr-decay-style cosine --log-interval 10 --eval-iters 40 --eval-interval 1000 "
        "--data-path D --vocab-file V --merge-file M --split 98,2,0 --clip-grad 1.0 --weight-decay 0.1 "
        "--adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --tensorboard-dir T --fp16 "
        "--activations-checkpoint-method uniform";
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, gpt3));
    EXPECT_OK(options_resolve(&o, 1024));
    // 19802 steps grow the batch and consume 5859424 samples; the rest are full.
    EXPECT(o.shape.train_iters == 19802 + (146484375 - 5859424) / 1536, "%lld steps",
           (long long)o.shape.train_iters);
    EXPECT(o.shape.rampup_start == 16 && o.shape.rampup_increment == 16 && o.shape.rampup_samples == 5859375,
           "ramp-up");
    EXPECT(o.shape.num_microbatches == 192, "m %d", o.shape.num_microbatches);
    options_destroy(&o);
}

// Megatron-LM, examples/llama/train_llama3_8b_h100_fp8.sh, without what belongs to fp8 and to other losses.
static void script_llama3(void) {
    static const char llama3[] =
        "--use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 "
        "--seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope "
        "--rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0 "
        "--swiglu --normalization RMSNorm --init-method-std 0.0134 --attention-backend fused "
        "--untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 "
        "--global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748 "
        "--lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 --lr-decay-style cosine "
        "--clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 "
        "--cross-entropy-loss-fusion --manual-gc --empty-unused-memory-level 1 "
        "--exit-duration-in-mins 235 --use-distributed-optimizer --overlap-grad-reduce "
        "--overlap-param-gather --tensor-model-parallel-size 1 --context-parallel-size 1 "
        "--sequence-parallel --data-path D --tokenizer-type NullTokenizer --vocab-size 128256 "
        "--data-cache-path C --tiktoken-pattern v2 --split '99,1,0' "
        "--no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1 --log-interval 1 "
        "--eval-iters 32 --eval-interval 100 --log-throughput --profile --profile-step-start 4 "
        "--profile-step-end 6 --distributed-timeout-minutes 60";
    Options o;
    EXPECT_OK(parse_line(&o, FOR_TRAIN, llama3));
    EXPECT_OK(options_resolve(&o, 8));
    EXPECT(o.shape.query_groups == 8 && o.shape.rotary_columns == 128, "%d groups", o.shape.query_groups);
    EXPECT(!o.shape.sequence_parallel, "there is one tensor rank");
    EXPECT(!strcmp(o.data_cache_path, "C") && !strcmp(o.data_path.items[0], "D"), "data");
    EXPECT(strstr(options_notes(&o), "--sequence-parallel has no effect"), "%s", options_notes(&o));
    options_destroy(&o);
}

// The same words once more, with others behind them.
static void again(void) {
    char *words[] = {"--tp", "4", "--global-batch-size=8", "--seq-length", "128"};
    char *more[] = {"--seq-length=256", "--pp=2"}, *wrong[] = {"--tp=many"};
    Options o, other;
    EXPECT_OK(options_parse(&o, FOR_PLAN, 5, words));
    EXPECT_OK(options_again(&other, &o, 2, more));
    EXPECT(other.tensor_model_parallel_size == 4 && other.global_batch_size == 8, "what was there");
    EXPECT(other.seq_length == 256 && other.pipeline_model_parallel_size == 2, "what is behind it");
    EXPECT(o.seq_length == 128 && o.pipeline_model_parallel_size == 1, "the first stays as it is");
    options_destroy(&other);
    EXPECT(options_again(&other, &o, 1, wrong) == ERR_USAGE, "no failure");
    options_destroy(&o);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"types", types},
                                      {"defaults and unset", defaults_and_unset},
                                      {"forms", forms},
                                      {"flags", flags},
                                      {"again", again},
                                      {"table is sound", table_is_sound},
                                      {"answers are reachable", answers_are_reachable},
                                      {"options of others are named", options_of_others_are_named},
                                      {"other names", other_names},
                                      {"accepted", accepted},
                                      {"mistakes", mistakes},
                                      {"script pretrain_gpt_distributed_with_mp", script_distributed_with_mp},
                                      {"auto is a word of its options", auto_is_a_word_of_its_options},
                                      {"script sc21", script_sc21},
                                      {"script pretrain_gpt3_175B", script_gpt3},
                                      {"script train_llama3_8b", script_llama3},
                                      {0}},
                       argc, argv);
}
