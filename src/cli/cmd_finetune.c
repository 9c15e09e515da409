// `trireme finetune`: makes a model better with conversations or texts: prepares the data, plans, trains, evaluates
// before and after, exports. Each step is a verb of its own, which is shown as one would type it.
#include "base/file.h"
#include "base/rank.h"
#include "cli/finetune.h"
#include "train/train.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 110 }; // of a printed command

void finetune_free(Finetune *f) {
    words_free(&f->import);
    words_free(&f->prepare);
    words_free(&f->train);
    text_free(&f->why);
    text_free(&f->place);
}

// ---- what is asked --------------------------------------------------------------------------------

// Options of train that follow from MODEL, DATA and the folder.
static Status check_decided(const Options *o) {
    static const struct {
        const char *field, *name, *follows;
    } rows[] = {
        {"load", "--load", "MODEL"},
        {"finetune", "--finetune", "MODEL"},
        {"ckpt_step", "--ckpt-step", "MODEL, which may be a step's folder"},
        {"exit_on_missing_checkpoint", "--exit-on-missing-checkpoint", "MODEL"},
        {"data_path", "--data-path", "DATA"},
        {"train_data_path", "--train-data-path", "DATA"},
        {"valid_data_path", "--valid-data-path", "DATA"},
        {"test_data_path", "--test-data-path", "DATA"},
        {"data_args_path", "--data-args-path", "DATA"},
        {"per_split_data_args_path", "--per-split-data-args-path", "DATA"},
        {"mock_data", "--mock-data", "DATA"},
        {"sft", "--sft", "DATA"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (options_given(o, rows[i].field))
            return fail(ERR_USAGE, "%s follows from %s: leave it out, or use `trireme train`", rows[i].name,
                        rows[i].follows);
    if (o->epochs != INT_UNSET && (o->train_iters != INT_UNSET || o->train_samples != INT_UNSET))
        return fail(ERR_USAGE, "--epochs and %s both say how long to train: keep one",
                    o->train_iters != INT_UNSET ? "--train-iters" : "--train-samples");
    return OK;
}

// MODEL-tuned, in the present folder.
static void name_folder(Finetune *f) {
    const Options *o = f->options;
    if (o->save && *o->save) {
        snprintf(f->folder, sizeof f->folder, "%s", o->save);
        for (size_t size = strlen(f->folder); size > 1 && f->folder[size - 1] == '/';) f->folder[--size] = 0;
        return;
    }
    char name[4096];
    model_name(f->model, name);
    snprintf(f->folder, sizeof f->folder, "%.2900s-tuned", name);
}

static Status check_options(Finetune *f) {
    const Options *o = f->options;
    if (launcher_ranks())
        return fail(
            ERR_USAGE,
            "finetune runs on one machine, its ranks are threads: start it without a launcher. For more "
            "machines launch the `trireme train` command that it prints");
    if (o->positional.count != 2)
        return options_misused(
            FOR_FINETUNE, 0,
            "; MODEL is a Hugging Face folder, a checkpoint or a GGUF file, DATA a file of "
            "conversations (.jsonl) or text");
    f->model = o->positional.items[0], f->data = o->positional.items[1];
    if (!strcmp(f->data, "-"))
        return fail(ERR_USAGE, "DATA is read twice, so that it cannot be standard input: write it to a file");
    if (!file_exists(f->data)) return fail(ERR_NO_INPUT, "%s: there is no such file or folder", f->data);
    TRY(check_decided(o));
    name_folder(f);
    return OK;
}

static Status look_at_model(Finetune *f, const char *path) {
    ModelSource *source;
    Tokenizer *tokenizer = NULL;
    TRY(model_source_open(&source, path, -1));
    model_source_warn(source);
    snprintf(f->model_path, sizeof f->model_path, "%s", model_source_path(source));
    f->shape = model_source_info(source)->shape;
    snprintf(f->files, sizeof f->files, "%s", model_source_files_path(source));
    f->tokenizer = f->options->tokenizer_model ? f->options->tokenizer_model : f->files;
    Status status = f->options->tokenizer_model ? OK : model_source_tokenizer(source, &tokenizer);
    tokenizer_close(status == OK ? tokenizer : NULL);
    model_source_close(source);
    if (f->shape.lora_rank && options_given(f->options, "lora_rank") && !f->options->lora_rank)
        return fail(
            ERR_CONFIG,
            "%s is an adapter, so that --lora-rank 0 cannot train the whole model: merge it by `trireme "
            "export --load %s --to hf --output FOLDER`, and name that folder",
            f->model, f->model);
    if (status != ERR_NO_INPUT || strstr(fail_message(), "--tokenizer-model")) return status;
    return fail(status, "%s has no tokenizer: name the model's by --tokenizer-model", f->model);
}

Status finetune_parse(const CommandWords *words, Verb verb, Options *options) {
    return options_parse(options, verb, (int)words->count - 1, words->items + 1);
}

// A GGUF file becomes a checkpoint first, in DIR/base: with its tokenizer beside it, and without its quantisation,
// which would be undone again at each start.
static Status import_gguf(Finetune *f) {
    Options options;
    char base[4096];
    size_t size = strlen(f->model_path);
    if (size < 6 || strcmp(f->model_path + size - 5, ".gguf") != 0) return OK;
    snprintf(base, sizeof base, "%.3000s/base", f->folder);
    words_add(&f->import, "import");
    words_add(&f->import, "%s", f->model);
    if (f->options->tokenizer_model) {
        words_add(&f->import, "--tokenizer-model");
        words_add(&f->import, "%s", f->tokenizer);
    }
    words_add(&f->import, "--save");
    words_add(&f->import, "%s", base);
    int64_t *steps;
    int count;
    Status status = checkpoint_steps(base, &steps, &count);
    free(steps);
    if (status == OK && !count) status = finetune_parse(&f->import, FOR_IMPORT, &options);
    if (status == OK && !count) {
        status = cmd_import(&options);
        options_destroy(&options);
    }
    return status == OK ? look_at_model(f, base) : status;
}

// ---- what is said -------------------------------------------------------------------------------------

static void print_command(const CommandWords *words) {
    Text text = {0};
    words_print(words, COLUMNS, &text);
    printf("  trireme %s\n", text_string(&text));
    text_free(&text);
}

static void print_plan(const Finetune *f) {
    printf("%s: %.2f M parameters, %d layers, hidden size %d\n", f->model,
           (double)model_parameters(&f->shape) / 1e6, f->shape.layers, f->shape.hidden);
    if (f->conversations)
        printf("%s: %" PRId64 " conversations, %" PRId64 " tokens, %" PRId64
               " of them in answers, which are trained\n",
               f->data, f->count, f->tokens, f->trained);
    else
        printf("%s: %" PRId64 " documents, %" PRId64 " tokens of text\n", f->data, f->count, f->tokens);
    if (f->place.size)
        printf("  these are %s by their first document, %s\n", f->conversations ? "conversations" : "texts",
               text_string(&f->place));
    printf("chosen:\n%s", text_string(&f->why));
    printf("the same by hand:\n");
    if (f->import.count) print_command(&f->import);
    print_command(&f->prepare);
    CommandWords train = {0};
    words_join(&train, &f->train);
    words_add(&train, "--load");
    words_add(&train, "%s", f->model_path);
    words_add(&train, "--finetune");
    print_command(&train);
    words_free(&train);
    fflush(stdout);
}

// The command of the user.
static void own_command(const Finetune *f, Text *out) {
    CommandWords words = {0};
    words_split(&words, "trireme finetune");
    words_add(&words, "%s", f->model);
    words_add(&words, "%s", f->data);
    options_words(f->options, FOR_FINETUNE, (const char *const[]){NULL}, &words);
    words_print(&words, 0, out);
    words_free(&words);
}

// ---- the steps ------------------------------------------------------------------------------------------

static Status interrupted(const Finetune *f, Status status, int64_t steps) {
    Text command = {0};
    if (status != INTERRUPTED) return status;
    own_command(f, &command);
    int64_t step = finetune_newest_step(f);
    if (step > 0)
        fail(status,
             "stopped after step %" PRId64 " of %" PRId64 ", which is saved. The same command goes on: %s",
             step, steps, text_string(&command));
    else
        fail(status, "stopped before the first step was saved. The same command goes on: %s",
             text_string(&command));
    text_free(&command);
    return status;
}

// Evaluates the model at `path` on the held-out share, with the options of the training.
static Status evaluate(Finetune *f, const Options *train, const char *path, double *nats) {
    CommandWords words = {0};
    Options options;
    Perplexity p = {0};
    words_split(&words, "evaluate --load");
    words_add(&words, "%s", path);
    words_add(&words, "--data-path");
    words_add(&words, "%s", train->data_path.items[0]);
    words_add(&words, "--split");
    words_add(&words, "%s", train->split);
    words_add(&words, "--seq-length");
    words_add(&words, "%d", train->seq_length);
    words_split(&words, train->sft ? "--sft" : "");
    words_split(&words, train->bf16 ? "--bf16" : train->fp16 ? "--fp16" : "");
    if (train->allow_non_finite) words_add(&words, "--allow-non-finite");
    if (strcmp(train->device, "cpu") != 0) words_add(&words, "--device=%s", train->device);
    Status status = finetune_parse(&words, FOR_EVALUATE, &options);
    if (status == OK) {
        status = evaluate_quietly(&options, &p);
        options_destroy(&options);
    }
    words_free(&words);
    TRY(status);
    *nats = p.nats / (double)p.tokens;
    f->scored = p.tokens;
    return finetune_record_save(f);
}

static bool holds_out(const Options *train) {
    double shares[2];
    return sscanf(train->split, "%lf,%lf", &shares[0], &shares[1]) == 2 && shares[1] > 0;
}

static void print_loss(const Finetune *f, const char *when, double nats) {
    printf("%s: loss %.4f, perplexity %.2f, on %" PRId64 " tokens of the held-out %s\n", when, nats,
           exp(nats), f->scored, f->conversations ? "answers" : "text");
    fflush(stdout);
}

// The options of the training: from the newest checkpoint; where there is none yet, from MODEL.
static Status training_options(const Finetune *f, Options *options) {
    CommandWords words = {0};
    char path[4096];
    bool begins = finetune_newest_step(f) < 0;
    finetune_checkpoints(f, path);
    words_join(&words, &f->train);
    words_add(&words, "--load");
    words_add(&words, "%s", begins ? f->model_path : path);
    if (begins) words_add(&words, "--finetune");
    Status status = finetune_parse(&words, FOR_TRAIN, options);
    words_free(&words);
    return status;
}

static Status train_on(const Finetune *f) {
    Options options;
    TRY(training_options(f, &options));
    Status status = train_verb(&options, true);
    options_destroy(&options);
    return status;
}

// An export is whole or not there.
static Status export_as(const Finetune *f, const char *to, const char *name, const char *dtype) {
    CommandWords words = {0};
    Options options;
    char path[4096], checkpoints[4096];
    snprintf(path, sizeof path, "%.3000s/%s", f->folder, name);
    if (file_exists(path)) return OK;
    finetune_checkpoints(f, checkpoints);
    words_split(&words, "export --load");
    words_add(&words, "%s", checkpoints);
    words_split(&words, "--to");
    words_add(&words, "%s", to);
    if (dtype) words_split(&words, "--dtype");
    if (dtype) words_add(&words, "%s", dtype);
    words_split(&words, "--output");
    words_add(&words, "%s", path);
    Status status = finetune_parse(&words, FOR_EXPORT, &options);
    if (status == OK) {
        status = cmd_export(&options);
        options_destroy(&options);
    }
    words_free(&words);
    return status;
}

// llama.cpp does not know every family.
static Status export_all(const Finetune *f, bool adapters) {
    do_not_stop_on_signals();
    if (adapters) TRY(export_as(f, "peft", "adapter", NULL));
    TRY(export_as(f, "hf", "hf", NULL));
    Status status = export_as(f, "gguf", "model.gguf", f->options->dtype ? f->options->dtype : "f16");
    if (status != ERR_UNAVAILABLE) return status;
    fprintf(stderr, "note: no GGUF file is written: %s\n", fail_message());
    return OK;
}

static void print_end(const Finetune *f) {
    char gguf[4096];
    snprintf(gguf, sizeof gguf, "%.3000s/model.gguf", f->folder);
    bool has_gguf = file_exists(gguf);
    char adapter[4096];
    snprintf(adapter, sizeof adapter, "%.3000s/adapter", f->folder);
    printf("the model is in\n  %s/hf            for transformers, vLLM and trireme\n", f->folder);
    if (has_gguf) printf("  %s    for llama.cpp, Ollama, LM Studio\n", gguf);
    if (file_exists(adapter)) printf("  %s    the adapter alone, for PEFT\n", adapter);
    printf("try it:\n  trireme generate --load %s/hf%s --prompt \"...\"\n", f->folder,
           f->conversations ? " --chat" : "");
    if (has_gguf) printf("  llama-cli -m %s\n", gguf);
    fflush(stdout);
}

// --exit-interval or --exit-duration-in-mins has ended the training.
static Status unfinished(const Finetune *f, int64_t steps) {
    printf("%" PRId64 " of %" PRId64 " steps are done; the same command goes on\n", finetune_newest_step(f),
           steps);
    return OK;
}

// `train`: resolved.
static Status run(Finetune *f, const Options *train) {
    char path[4096];
    int64_t step = finetune_newest_step(f), end = train->shape.train_iters;
    finetune_checkpoints(f, path);
    if (step > 0) printf("%s: goes on after step %" PRId64 "\n", f->folder, step);
    if (holds_out(train) && isnan(f->before))
        TRY(interrupted(f, evaluate(f, train, f->model_path, &f->before), end));
    if (!isnan(f->before)) print_loss(f, "before", f->before);
    if (step < end) {
        printf("training; Ctrl-C saves, and the same command goes on:\n");
        fflush(stdout);
        TRY(interrupted(f, train_on(f), end));
    }
    if (finetune_newest_step(f) < end) return unfinished(f, end);
    if (holds_out(train) && isnan(f->after)) TRY(interrupted(f, evaluate(f, train, path, &f->after), end));
    if (!isnan(f->after)) print_loss(f, "after", f->after);
    TRY(export_all(f, train->lora_rank > 0));
    print_end(f);
    return OK;
}

static Status finetune(Finetune *f) {
    Options train;
    TRY(check_options(f));
    TRY(look_at_model(f, f->model));
    TRY(finetune_record_open(f));
    TRY(import_gguf(f));
    bool planned = f->train.count > 0;
    if (!planned) TRY(interrupted(f, finetune_prepare(f), 0));
    if (!planned) TRY(finetune_plan(f));
    if (!planned) print_plan(f);
    if (f->options->dry_run) {
        printf("nothing was trained (--dry-run)\n");
        return OK;
    }
    TRY(finetune_record_save(f));
    TRY(training_options(f, &train));
    Status status = train_resolve(&train, train.ranks != INT_UNSET ? train.ranks : 1);
    if (status == OK) status = run(f, &train);
    options_destroy(&train);
    return status;
}

Status cmd_finetune(Options *o) {
    Finetune f = {.options = o};
    tell_notes(o);
    Status status = finetune(&f);
    finetune_free(&f);
    return status;
}
