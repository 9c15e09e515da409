// `trireme generate`: reads the prompt, opens the model, and prints the samples.
#include "corpus/chat.h"
#include "infer/generate.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PROMPT_BYTES = 64 << 20,
    PROMPT_PIECE = 512, // tokens that the model sees at once
};

typedef struct {
    const ModelJob *job;
    Comm *world;
    TokenList prompt;
    int num_samples, capacity;
    int longest; // tokens of one call
    Infer *infer;
    SampleSpec *samples; // [num_samples], all alike
    Text *texts;         // [num_samples] of several, on the rank that prints
    bool line_open;
} GenerateRun;

// ---- the prompt ---------------------------------------------------------------------------------

// Gives every rank the text of rank 0: under a launcher only rank 0 has a standard input.
static Status read_prompt(const GenerateRun *run, char **text, size_t *size) {
    const char *prompt = run->job->options->prompt;
    bool from_input = prompt && !strcmp(prompt, "-");
    *text = NULL;
    *size = prompt ? strlen(prompt) : 0;
    if (!from_input) return (*text = strdup(prompt ? prompt : "")) ? OK : fail(ERR_OS, "no memory");
    Status status = OK;
    if (comm_rank(run->world) == 0) status = input_read("-", MAX_PROMPT_BYTES, text, size);
    TRY(comm_agree(run->world, status));
    comm_broadcast_host(run->world, size, sizeof *size, 0);
    if (!*text) *text = malloc(*size + 1);
    CHECK(*text, "no memory for a prompt of %zu bytes", *size);
    comm_broadcast_host(run->world, *text, *size, 0);
    return OK;
}

static Status encode_prompt(GenerateRun *run) {
    char *text;
    size_t size;
    TRY(read_prompt(run, &text, &size));
    Status status = prompt_encode(run->job->tokenizer, text, size, run->job->options->add_bos, &run->prompt);
    free(text);
    return status;
}

// The last token is never given to the model, so this capacity is enough. Without a cache a call sees all tokens.
static Status choose_lengths(GenerateRun *run) {
    int positions = model_job_positions(run->job);
    if (run->prompt.count > (size_t)positions)
        return fail(ERR_CONFIG, "--prompt has %zu tokens, but the model has %d positions: shorten it",
                    run->prompt.count, positions);
    int64_t wanted = (int64_t)run->prompt.count + run->job->options->max_new_tokens - 1;
    run->capacity = wanted < positions ? (int)wanted : positions;
    run->longest = run->prompt.count < PROMPT_PIECE ? (int)run->prompt.count : PROMPT_PIECE;
    if (!run->job->options->kv_cache) run->longest = run->capacity;
    return OK;
}

static void note_length(const GenerateRun *run) {
    int trained = model_job_trained_positions(run->job);
    if (run->capacity > trained)
        fprintf(stderr, "up to %d tokens, but the model was trained on %d: the text after them may be poor\n",
                run->capacity, trained);
}

// ---- what is printed ----------------------------------------------------------------------------

static void print_piece(void *self, int sample, const char *text, size_t size) {
    GenerateRun *run = self;
    if (run->num_samples > 1) {
        text_add_bytes(&run->texts[sample], text, size);
        return;
    }
    fwrite(text, 1, size, stdout);
    if (!launcher_ranks()) fflush(stdout); // a launcher would mix other lines into this one
    run->line_open = text[size - 1] != '\n';
}

static void print_texts(GenerateRun *run) {
    for (int i = 0; run->num_samples > 1 && i < run->num_samples; i++) {
        const Text *text = &run->texts[i];
        printf("--- sample %d of %d ---\n", i + 1, run->num_samples);
        fwrite(text_string(text), 1, text->size, stdout);
        if (!text->size || text->data[text->size - 1] != '\n') putchar('\n');
    }
    if (run->line_open) putchar('\n');
    fflush(stdout);
}

static void print_report(const GenerateRun *run, const GenerateReport *report) {
    static const char *const ends[NUM_ENDINGS] = {
        [END_TOKEN] = "the end token",    [END_STOP] = "--stop",
        [END_COUNT] = "--max-new-tokens", [END_CAPACITY] = "the end of the model's positions",
        [END_SIGNAL] = "a signal",
    };
    double prompt = (double)run->prompt.count * run->num_samples;
    fprintf(stderr,
            "prompt: %zu tokens, %.1f tokens/s; generated: %" PRId64 " tokens, %.1f tokens/s; ended by",
            run->prompt.count, prompt / (report->prompt_s + 1e-9), report->new_tokens,
            (double)report->new_tokens / (report->new_s + 1e-9));
    const char *comma = "";
    for (int e = 0; e < NUM_ENDINGS; e++) {
        if (!report->num_endings[e]) continue;
        fprintf(stderr, "%s %s", comma, ends[e]);
        if (run->num_samples > 1) fprintf(stderr, " (%d)", report->num_endings[e]);
        comma = ",";
    }
    fputc('\n', stderr);
}

// ---- the run ------------------------------------------------------------------------------------

static Status open_run(GenerateRun *run) {
    const Options *o = run->job->options;
    run->num_samples = o->num_samples;
    TRY(encode_prompt(run));
    TRY(choose_lengths(run));
    if (comm_rank(run->world) == 0) note_length(run);
    run->texts = calloc((size_t)run->num_samples, sizeof *run->texts);
    run->samples = malloc((size_t)run->num_samples * sizeof *run->samples);
    CHECK(run->texts && run->samples, "no memory for %d texts", run->num_samples);
    for (int i = 0; i < run->num_samples; i++)
        run->samples[i] = job_sample(run->job, &run->prompt, o->max_new_tokens);
    InferSpec spec = {
        .batch = run->num_samples, .capacity = run->capacity, .longest = run->longest, .cache = o->kv_cache};
    return model_job_infer(run->job, run->world, spec, &run->infer);
}

static Status generate_texts(GenerateRun *run) {
    bool prints = comm_rank(run->world) == 0;
    JobModel model = {.job = run->job,
                      .world = run->world,
                      .infer = run->infer,
                      .batch = run->num_samples,
                      .capacity = run->capacity,
                      .longest = run->longest};
    GenerateSpec spec = job_generate_spec(run->job, run->samples);
    spec.give = prints ? print_piece : NULL, spec.self = run;
    GenerateReport report;
    TRY(job_generate(&model, &spec, &report));
    if (prints) {
        print_texts(run);
        print_report(run, &report);
    }
    if (!report.num_endings[END_SIGNAL]) return OK;
    return fail(INTERRUPTED, "stopped by a signal after %" PRId64 " tokens", report.new_tokens);
}

Status generate_run(Comm *world, void *arg) {
    GenerateRun run = {.job = arg, .world = world};
    Status status = open_run(&run);
    if (status == OK) status = generate_texts(&run);
    infer_close(run.infer);
    for (int i = 0; run.texts && i < run.num_samples; i++) text_free(&run.texts[i]);
    free(run.texts);
    free(run.samples);
    token_list_free(&run.prompt);
    return status;
}
