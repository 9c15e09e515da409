// The entry of the program: it finds the verb and leaves everything else to it. Without a launcher no MPI is started
// here, so that help, mistakes and the verbs of one process answer at once and on every machine.
#include "base/cores.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/manual.h"
#include "comm/comm.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const Command commands[] = {
    {"preprocess", FOR_PREPROCESS, cmd_preprocess, "make a data set (and a tokenizer) from text"},
    {"prepare-chat", FOR_PREPARE_CHAT, cmd_prepare_chat,
     "make a data set of conversations, to train on the answers"},
    {"tokenizer", FOR_TOKENIZER, cmd_tokenizer, "train and inspect tokenizers, encode and decode text"},
    {"data", FOR_DATA, cmd_data, "inspect and verify data sets, show samples as training reads them"},
    {"finetune", FOR_FINETUNE, cmd_finetune,
     "make a published model better with your conversations or texts, in one command"},
    {"train", FOR_TRAIN, cmd_train, "train a GPT on any grid of tensor, pipeline and data parallel ranks"},
    {"supervise", FOR_SUPERVISE, cmd_supervise,
     "keep a training run going: watch it, start it again, on what is left"},
    {"generate", FOR_GENERATE, cmd_generate, "continue a text with a trained model"},
    {"evaluate", FOR_EVALUATE, cmd_evaluate, "compute perplexity and log-likelihoods of text"},
    {"memory", FOR_MEMORY, cmd_memory, "say what memory each rank of a run would take, without its data"},
    {"plan", FOR_PLAN, cmd_plan, "say which grid is fastest on a cluster, how fast, and at what cost"},
    {"bench", FOR_BENCH, cmd_bench, "measure this machine and write its description for plan"},
    {"devices", FOR_DEVICES, cmd_devices,
     "say what can compute on this machine, and what is missing for a GPU"},
    {"selftest", FOR_SELFTEST, cmd_selftest, "try whether a file system keeps checkpoints whole"},
    {"verify-machine", FOR_VERIFY_MACHINE, cmd_verify_machine, "find cores that compute wrongly"},
    {"schedule", FOR_SCHEDULE, cmd_schedule, "print, draw and check pipeline schedules"},
    {"goodput", FOR_GOODPUT, cmd_goodput,
     "say what share of a run's time was training, and what took the rest"},
    {"watch", FOR_WATCH, cmd_watch, "show what a run does now: who computes, who waits for whom, since when"},
    {"report", FOR_REPORT, cmd_report,
     "write a page of one run or several: losses, rates, time, memory, events"},
    {"models", FOR_MODELS, cmd_models, "list the published models that --model knows"},
    {"checkpoint", FOR_CHECKPOINT, cmd_checkpoint, "list, show, verify, compare and rewrite checkpoints"},
    {"export", FOR_EXPORT, cmd_export, "write a model for others: Hugging Face, or GGUF for llama.cpp"},
    {"import", FOR_IMPORT, cmd_import, "make a checkpoint of a Hugging Face folder or a GGUF file"},
};

enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static Status print_overview(void) {
    puts(
        "trireme: GPT training with composed tensor, pipeline and data parallelism\n\n"
        "  trireme finetune MODEL chats.jsonl\n"
        "  trireme preprocess --input book.txt --output-prefix corpus --vocab-size 4096\n"
        "  trireme train --data-path corpus --layers 4 --hidden 128 --heads 4 --seq 128 --mbs 4 "
        "--steps 200 --lr 1e-3\n"
        "  trireme train ... --ranks 8 --tp 2 --pp 2      (or: mpirun -n 8 trireme train ... --tp 2 --pp 2)\n"
        "  trireme train ... --save checkpoints --load checkpoints --save-interval 100\n"
        "  trireme supervise -- train ... --save checkpoints --save-interval 100\n"
        "  trireme generate --load checkpoints --prompt \"Once upon a time\"\n"
        "  trireme memory --model gpt3-175b --mbs 1 --gbs 1536 --ranks 1024 --tp 8 --pp 16 --bf16\n"
        "  trireme plan --model gpt3-175b --gpus 1024 --machine dgx-a100 --gbs 1536 --tokens 300B\n"
        "  trireme schedule --pp 4 --microbatches 8\n");
    for (int i = 0; i < NUM_COMMANDS; i++) printf("  %-14s %s\n", commands[i].name, commands[i].summary);
    puts("\ntrireme help VERB shows a verb's common options, trireme VERB --help-all every option.");
    return OK;
}

static const Command *find_command(const char *name) {
    for (int i = 0; i < NUM_COMMANDS; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

static Status unknown_verb(const char *name) {
    const char *names[NUM_COMMANDS];
    for (int i = 0; i < NUM_COMMANDS; i++) names[i] = commands[i].name;
    const char *nearest = text_nearest(name, names, NUM_COMMANDS);
    if (nearest) return fail(ERR_USAGE, "unknown verb '%s'; did you mean trireme %s?", name, nearest);
    return fail(ERR_USAGE, "unknown verb '%s'; trireme --help lists them", name);
}

static Status print_help(const Command *command, bool all) {
    Text text = {0};
    options_help(command->verb, all, &text);
    printf("trireme %s: %s\n\n%s", command->name, command->summary, text_string(&text));
    text_free(&text);
    return OK;
}

// Returns whether the arguments have the flag, alone or with a value that means yes.
static bool asks(int argc, char **argv, const char *flag) {
    static const char *const endings[] = {"", "=true", "=yes", "=on", "=1"};
    size_t length = strlen(flag);
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        for (size_t e = 0; e < sizeof endings / sizeof endings[0]; e++)
            if (!strncmp(argv[i], flag, length) && !strcmp(argv[i] + length, endings[e])) return true;
    return false;
}

void tell_notes(const Options *options) {
    if (launcher_rank() == 0) fputs(options_notes(options), stderr);
}

// Returns whether this process prints the message. In a launched job process 0 prints for all, but each process prints
// failures about files, which only its machine may have.
static bool speaks_of(Status status) {
    bool of_files =
        status == ERR_NO_INPUT || status == ERR_IO || status == ERR_PERMISSION || status == ERR_CREATE;
    return launcher_rank() == 0 || of_files;
}

// Process 0 ends the job soon after it has printed the message that all processes have. A process that is still there
// then has failed alone, for example because of an option of its own, and prints its own message.
static Status speak_later(Status status) {
    char message[sizeof rank_current()->message];
    snprintf(message, sizeof message, "%s", fail_message());
    launcher_wait_for_rank_0();
    return fail(status, "[rank %d] %s", launcher_rank(), message);
}

static Status run_command(const Command *command, int argc, char **argv) {
    Options options;
    Status status = options_parse(&options, command->verb, argc, argv);
    if (status == OK)
        status = command->run(&options);
    else if (command->verb & (FOR_TRAIN | FOR_MODEL))
        status = refuse_command_line(command->verb, status);
    options_destroy(&options);
    if (status == OK || speaks_of(status) || !*fail_message()) return status;
    return speak_later(status);
}

static Status run_verb(const char *name, int argc, char **argv) {
    const Command *command = find_command(name);
    if (!command) return unknown_verb(name);
    if (asks(argc, argv, "--help-all")) return print_help(command, true);
    if (asks(argc, argv, "--help") || asks(argc, argv, "-h")) return print_help(command, false);
    if (asks(argc, argv, "--version") || asks(argc, argv, "-V")) return print_version();
    return run_command(command, argc, argv);
}

static Status help_verb(const char *name) {
    const Command *command = find_command(name);
    return command ? print_help(command, false) : unknown_verb(name);
}

// `trireme help` with words after it: a verb, or what is installed beside the program.
static Status help_with(int argc, char **argv) {
    Text text = {0};
    Status status = OK;
    const Command *command = argc > 1 ? find_command(argv[1]) : NULL;
    if (!strcmp(argv[0], "--completion")) {
        if (argc != 2) return fail(ERR_USAGE, "usage: trireme help --completion bash|zsh|fish");
        status = completion_add(argv[1], commands, NUM_COMMANDS, &text);
    } else if (!strcmp(argv[0], "--verbs")) {
        for (int i = 0; i < NUM_COMMANDS; i++) text_add(&text, "%s\n", commands[i].name);
    } else if (!strcmp(argv[0], "--man")) {
        if (argc > 1 && !command) return unknown_verb(argv[1]);
        if (command)
            manual_add(command, &text);
        else
            manual_add_overview(commands, NUM_COMMANDS, &text);
    } else {
        return help_verb(argv[0]);
    }
    fputs(text_string(&text), stdout);
    text_free(&text);
    return status;
}

static Status run(int argc, char **argv) {
    if (argc < 2) {
        print_overview();
        return ERR_USAGE;
    }
    const char *first = argv[1];
    if (!strcmp(first, "--version") || !strcmp(first, "-V")) return print_version();
    if (!strcmp(first, "--help") || !strcmp(first, "-h")) return print_overview();
    if (!strcmp(first, "help")) return argc > 2 ? help_with(argc - 2, argv + 2) : print_overview();
    return run_verb(first, argc - 2, argv + 2);
}

// Fails when results could not be written, for example on a full disk.
static Status finish_output(void) {
    bool earlier = ferror(stdout);
    bool written = fflush(stdout) == 0 && !earlier;
    if (written && streams_lost())
        return fail(ERR_IO, "standard output: %zu bytes were lost: its reader paused", streams_lost());
    if (written) return OK;
    return fail(ERR_IO, "standard output: not everything could be written: %s",
                earlier ? "an earlier write failed" : strerror(errno));
}

static bool computes(int argc, char **argv) {
    const Command *command = argc > 1 ? find_command(argv[1]) : NULL;
    return command && command->verb & (FOR_TRAIN | FOR_FINETUNE | FOR_MODEL | FOR_BENCH | FOR_VERIFY_MACHINE);
}

int main(int argc, char **argv) {
    Status status = standard_files_open(); // before anything else opens a file
    keep_ignored_signals();
    if (status == OK && computes(argc, argv)) cores_wait_briefly(argv);
    streams_open();
    if (status == OK) status = run(argc, argv);
    if (status == OK) status = finish_output();
    if (status != OK && *fail_message()) fprintf(stderr, "trireme: error: %s\n", fail_message());
    return (int)status;
}
