// `trireme generate --prompts`: continues the prompts of a file one after the other, each with the adapter that it
// names.
#include "base/array.h"
#include "infer/generate.h"
#include "infer/score.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_BYTES = 1 << 30,
    PIECE = 512, // tokens that the model sees at once
};

typedef struct {
    TokenList tokens;
    int adapter; // -1: none
    int max_new_tokens;
} Prompt;

typedef struct {
    const ModelJob *job;
    Comm *world;
    char (*names)[64]; // of the adapters
    Prompt *prompts;
    int count;
    size_t room; // of `prompts`
    int capacity, longest;
    ModelSource *source;
    Infer *infer;
    int64_t new_tokens;
    double seconds;
} PromptsRun;

// ---- the file -------------------------------------------------------------------------------------

static Status read_names(PromptsRun *run) {
    const Options *o = run->job->options;
    run->names = calloc((size_t)o->adapter.count + 1, sizeof *run->names);
    CHECK(run->names, "no memory for %d names", o->adapter.count);
    for (int i = 0; i < o->adapter.count; i++) {
        AdapterOption adapter;
        TRY(options_adapter(o, i, &adapter));
        memcpy(run->names[i], adapter.name, sizeof run->names[i]);
    }
    return OK;
}

static Status unknown_adapter(const PromptsRun *run, const char *where, const char *name) {
    Text known = {0};
    int count = run->job->options->adapter.count;
    for (int i = 0; i < count; i++) text_add(&known, "%s%s", i ? ", " : "", run->names[i]);
    Status status = fail(ERR_DATA, "%s: no adapter is named \"%.80s\"; --adapter NAME=FOLDER names %s", where,
                         name, count ? text_string(&known) : "none");
    text_free(&known);
    return status;
}

static Status find_adapter(const PromptsRun *run, const Json *line, const char *where, int *adapter) {
    const Json *member = json_member(line, "adapter");
    const char *name = json_string(member);
    *adapter = -1;
    if (!member || member->type == JSON_NULL) return OK;
    if (!name) return fail(ERR_DATA, "%s: \"adapter\" is no text", where);
    for (int i = 0; i < run->job->options->adapter.count; i++)
        if (!strcmp(run->names[i], name)) return *adapter = i, OK;
    return unknown_adapter(run, where, name);
}

static Status read_prompt(const PromptsRun *run, const Json *line, const char *where, Prompt *out) {
    static const char *const known[] = {"prompt", "adapter", "max_new_tokens"};
    const Json *text = json_member(line, "prompt"), *most = json_member(line, "max_new_tokens");
    int64_t count = run->job->options->max_new_tokens;
    if (!text || text->type != JSON_STRING)
        return fail(ERR_DATA,
                    "%s: \"prompt\" is missing, or no text: a line is {\"prompt\": \"...\", \"adapter\": "
                    "\"NAME\", \"max_new_tokens\": 128}, of which the last two may be left out",
                    where);
    for (size_t i = 0; i < line->count; i++) {
        bool found = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            found |= !strcmp(line->items[i].key, known[k]);
        if (!found)
            return fail(ERR_DATA, "%s: \"%.80s\" is no member of a prompt: leave it out", where,
                        line->items[i].key);
    }
    if (most && (!json_int(most, &count) || count < 1 || count > 1 << 20))
        return fail(ERR_DATA, "%s: \"max_new_tokens\" is no whole number from 1 to %d", where, 1 << 20);
    out->max_new_tokens = (int)count;
    TRY(find_adapter(run, line, where, &out->adapter));
    return prompt_encode(run->job->tokenizer, text->string, text->size, run->job->options->add_bos,
                         &out->tokens);
}

static Status add_prompt(void *self, const Json *line, const char *where) {
    PromptsRun *run = self;
    array_grow(&run->prompts, sizeof *run->prompts, (size_t)run->count + 1, &run->room);
    run->prompts[run->count] = (Prompt){0};
    return read_prompt(run, line, where, &run->prompts[run->count++]);
}

static Status add_prompts(PromptsRun *run, const char *text, size_t size) {
    const char *what = run->job->options->prompts;
    if (!strcmp(what, "-")) what = "standard input";
    TRY(json_lines_read(text, size, what, add_prompt, run));
    return run->count ? OK : fail(ERR_DATA, "%s: it contains no prompt", what);
}

// Gives every rank the file of rank 0.
static Status read_prompts(PromptsRun *run) {
    char *text = NULL;
    size_t size = 0;
    Status status = OK;
    if (comm_rank(run->world) == 0) status = input_read(run->job->options->prompts, MAX_BYTES, &text, &size);
    TRY(comm_agree(run->world, status));
    comm_broadcast_host(run->world, &size, sizeof size, 0);
    if (!text) text = calloc(size + 1, 1);
    CHECK(text, "no memory for %zu bytes", size);
    comm_broadcast_host(run->world, text, size, 0);
    status = add_prompts(run, text, size);
    free(text);
    return status;
}

// ---- opening ------------------------------------------------------------------------------------------

static Status choose_lengths(PromptsRun *run) {
    int positions = model_job_positions(run->job);
    run->longest = 1;
    for (int i = 0; i < run->count; i++) {
        int tokens = (int)run->prompts[i].tokens.count;
        int64_t wanted = (int64_t)tokens + run->prompts[i].max_new_tokens - 1;
        if (tokens > positions)
            return fail(ERR_CONFIG, "prompt %d has %d tokens, but the model has %d positions: shorten it",
                        i + 1, tokens, positions);
        if (wanted > positions) wanted = positions;
        if (wanted > run->capacity) run->capacity = (int)wanted;
        if (tokens > run->longest) run->longest = tokens < PIECE ? tokens : PIECE;
    }
    if (!run->job->options->kv_cache) run->longest = run->capacity;
    return OK;
}

static Status open_run(PromptsRun *run) {
    TRY(read_names(run));
    TRY(read_prompts(run));
    TRY(choose_lengths(run));
    InferSpec spec = {
        .batch = 1, .capacity = run->capacity, .longest = run->longest, .cache = run->job->options->kv_cache};
    TRY(model_job_source(run->job, run->world, &run->source));
    return model_job_infer_from(run->job, run->source, run->world, spec, &run->infer);
}

// ---- one prompt after the other -------------------------------------------------------------------------

static void take_piece(void *self, int sample, const char *text, size_t size) {
    (void)sample; // there is one
    text_add_bytes(self, text, size);
}

static void print_answer(const PromptsRun *run, const Prompt *prompt, const Text *answer) {
    Text line = {0};
    text_add(&line, "{\"adapter\": ");
    if (prompt->adapter < 0)
        text_add(&line, "null");
    else
        json_add_string(&line, run->names[prompt->adapter], strlen(run->names[prompt->adapter]));
    text_add(&line, ", \"text\": ");
    json_add_string(&line, text_string(answer), answer->size);
    text_add(&line, "}");
    puts(text_string(&line));
    fflush(stdout);
    text_free(&line);
}

static Status answer(PromptsRun *run, const Prompt *prompt) {
    Text text = {0};
    JobModel model = {.job = run->job,
                      .world = run->world,
                      .infer = run->infer,
                      .batch = 1,
                      .capacity = run->capacity,
                      .longest = run->longest};
    SampleSpec sample = job_sample(run->job, &prompt->tokens, prompt->max_new_tokens);
    GenerateSpec spec = job_generate_spec(run->job, &sample);
    spec.give = take_piece, spec.self = &text;
    GenerateReport report;
    infer_rewind(run->infer, 0);
    Status status = job_generate(&model, &spec, &report);
    if (status == OK && comm_rank(run->world) == 0) print_answer(run, prompt, &text);
    text_free(&text);
    TRY(status);
    run->new_tokens += report.new_tokens;
    run->seconds += report.prompt_s + report.new_s;
    return report.num_endings[END_SIGNAL] ? fail(INTERRUPTED, "stopped by a signal") : OK;
}

static Status answer_all(PromptsRun *run) {
    int chosen = 0; // what the model was opened with
    for (int i = 0; i < run->count; i++) {
        const Prompt *prompt = &run->prompts[i];
        if (prompt->adapter != chosen)
            TRY(infer_choose(run->infer, run->source, prompt->adapter, run->world));
        chosen = prompt->adapter;
        TRY(answer(run, prompt));
    }
    if (comm_rank(run->world) == 0)
        fprintf(stderr, "%d prompts; generated: %" PRId64 " tokens, %.1f tokens/s\n", run->count,
                run->new_tokens, (double)run->new_tokens / (run->seconds + 1e-9));
    return OK;
}

Status generate_prompts_run(Comm *world, void *arg) {
    PromptsRun run = {.job = arg, .world = world};
    Status status = open_run(&run);
    if (status == OK) status = answer_all(&run);
    infer_close(run.infer);
    model_source_close(run.source);
    for (int i = 0; i < run.count; i++) token_list_free(&run.prompts[i].tokens);
    free(run.prompts);
    free(run.names);
    return status;
}
