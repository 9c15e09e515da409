// Models for libtrireme: their weights by name, and text that they generate.
#include "api/tensors.h"
#include "api/trireme.h"
#include "api/worker.h"
#include "base/version.h"
#include "base/words.h"
#include "cli/cli.h"
#include "device/device.h"
#include "infer/generate.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>

enum { PROMPT_PIECE = 512, MOST_POSITIONS = 8192 }; // as `trireme generate --chat`

// The model on ranks that stay, to generate with the options of one call. Where the next call has others, it begins
// anew.
typedef struct {
    Text words; // of the options
    Options options;
    ModelJob job;
    Text common;
    RankWorker worker;
    bool parsed, running;
} Generator;

struct TriremeModel {
    char *path;
    ModelSource *source;
    WeightList weights;
    Generator generator;
};

typedef struct {
    const char *prompt; // NULL: the ranks end
    Text *text;
} Request;

const char *trireme_version(void) { return TRIREME_VERSION; }
const char *trireme_message(void) { return fail_message(); }
void trireme_free(void *memory) { free(memory); }

// ---- weights --------------------------------------------------------------------------------------------

int trireme_model_open(TriremeModel **out, const char *path) {
    TriremeModel *model = calloc(1, sizeof *model);
    *out = NULL;
    if (!model) return (int)fail(ERR_OS, "no memory for a model");
    Status status = model_source_open(&model->source, path, -1);
    if (status == OK) status = weights_list(&model_source_info(model->source)->shape, &model->weights);
    if (status == OK) model->path = strdup(path);
    if (status != OK) {
        trireme_model_close(model);
        return (int)status;
    }
    model_source_warn(model->source);
    *out = model;
    return 0;
}

int trireme_model_tensors(const TriremeModel *model) { return model->weights.count; }
TriremeTensor trireme_model_tensor(const TriremeModel *model, int i) {
    return weights_tensor(&model->weights, i);
}

int trireme_model_read(TriremeModel *model, const char *name, int64_t row, int64_t col, int64_t rows,
                       int64_t cols, float *out) {
    Rect rect = {row, col, rows, cols};
    Status checked = weights_check(&model->weights, name, rect);
    if (checked != OK) return (int)checked;
    return (int)model_source_read(model->source, name, rect, out, cols);
}

// ---- on a rank ------------------------------------------------------------------------------------------

static void take_piece(void *self, int sample, const char *text, size_t size) {
    (void)sample; // there is one
    text_add_bytes(self, text, size);
}

static Status encode(const ModelJob *job, const char *prompt, TokenList *tokens) {
    TRY(prompt_encode(job->tokenizer, prompt, strlen(prompt), true, tokens));
    int most = model_job_positions(job);
    if (tokens->count <= (size_t)most && tokens->count <= MOST_POSITIONS) return OK;
    return fail(ERR_CONFIG, "the prompt has %zu tokens, and the model is given %d at most", tokens->count,
                most < MOST_POSITIONS ? most : MOST_POSITIONS);
}

static Status generate(JobModel *model, const Request *request) {
    TokenList prompt = {0};
    GenerateReport report;
    Status status = encode(model->job, request->prompt, &prompt);
    if (status == OK) {
        SampleSpec sample = job_sample(model->job, &prompt, model->job->options->max_new_tokens);
        GenerateSpec spec = job_generate_spec(model->job, &sample);
        if (comm_rank(model->world) == 0) spec.give = take_piece, spec.self = request->text;
        infer_rewind(model->infer, 0);
        status = job_generate(model, &spec, &report);
    }
    token_list_free(&prompt);
    return status;
}

static Status serve(Comm *world, void *arg) {
    Generator *g = arg;
    int positions = model_job_positions(&g->job),
        capacity = positions < MOST_POSITIONS ? positions : MOST_POSITIONS;
    bool cached = g->options.kv_cache;
    JobModel model = {.job = &g->job,
                      .world = world,
                      .batch = 1,
                      .capacity = capacity,
                      .longest = cached && capacity > PROMPT_PIECE ? PROMPT_PIECE : capacity};
    InferSpec spec = {.batch = 1, .capacity = capacity, .longest = model.longest, .cache = cached};
    Status status = model_job_infer(&g->job, world, spec, &model.infer), last = OK;
    while (status == OK) {
        const Request *request = worker_fetch(&g->worker, comm_rank(world), last);
        if (!request->prompt) break;
        last = generate(&model, request);
    }
    infer_close(model.infer);
    return status;
}

// ---- for the caller ---------------------------------------------------------------------------------------

static Status run_ranks(void *self) {
    Generator *g = self;
    return start_ranks(&g->options, OK, &g->common, g->job.threads, NULL, serve, g);
}

static void stop(Generator *g) {
    if (g->running) (void)worker_end(&g->worker, &(Request){0});
    model_job_close(&g->job);
    if (g->parsed) options_destroy(&g->options);
    text_free(&g->words);
    text_free(&g->common);
    *g = (Generator){0};
}

static Status start(Generator *g, const char *path, const char *const *words, int count) {
    CommandWords all = {0};
    words_add(&all, "--load");
    words_add(&all, "%s", path);
    for (int i = 0; i < count; i++) words_add(&all, "%s", words[i]);
    Status status = options_parse(&g->options, FOR_GENERATE, (int)all.count, all.items);
    words_free(&all);
    g->parsed = true;
    TRY(status);
    int ranks = g->options.ranks != INT_UNSET ? g->options.ranks : 1;
    list_common(&g->options, &g->common);
    TRY(device_check(g->options.device));
    TRY(model_job_open(&g->job, &g->options, ranks));
    TRY(model_job_needs_tokenizer(&g->job));
    g->job.threads = threads_per_rank(&g->options, ranks);
    g->worker = (RankWorker){.ranks = ranks, .run = run_ranks, .self = g};
    TRY(worker_start(&g->worker));
    g->running = true;
    return OK;
}

static void add_words(const char *const *words, int count, Text *out) {
    for (int i = 0; i < count; i++) text_add_bytes(out, words[i], strlen(words[i]) + 1);
}

int trireme_model_generate(TriremeModel *model, const char *prompt, const char *const *words, int count,
                           char **text) {
    Generator *g = &model->generator;
    Text asked = {0}, answer = {0};
    Status status = OK;
    *text = NULL;
    add_words(words, count, &asked);
    bool same = g->running && asked.size == g->words.size &&
                !memcmp(text_string(&asked), text_string(&g->words), asked.size);
    if (!same) {
        stop(g);
        status = start(g, model->path, words, count);
        text_add_bytes(&g->words, text_string(&asked), asked.size);
    }
    if (status == OK) status = worker_ask(&g->worker, &(Request){prompt, &answer});
    if (status == OK) *text = strdup(text_string(&answer));
    if (status != OK && !g->running) {
        char why[1024];
        snprintf(why, sizeof why, "%s", fail_message());
        stop(g);
        status = fail(status, "%s", why);
    }
    text_free(&asked);
    text_free(&answer);
    return (int)status;
}

void trireme_model_close(TriremeModel *model) {
    if (!model) return;
    stop(&model->generator);
    model_source_close(model->source);
    weights_free(&model->weights);
    free(model->path);
    free(model);
}
