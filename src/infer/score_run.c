// `trireme evaluate`: the ranks that compute together, and its evaluations but for tasks (task_run.c).
#include "base/rank.h"
#include "infer/evaluate.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    USUAL_BATCH_TOKENS = 2048, // of a batch without --micro-batch-size
    MAX_USUAL_BATCH = 32,
};

// ---- from batch to batch together ---------------------------------------------------------------

// What all ranks compute next: n tokens of each row, which come after `position` others. n = 0 ends the work.
typedef struct {
    int n, position;
    bool labels, logits; // the tokens have labels; the logits of the next token are wanted
} Call;

// Computes the call of rank 0 on all ranks. Only rank 0 needs its logits, which go to nll.
static void compute_together(EvaluateRun *run, Call call, int32_t *tokens, int32_t *labels, float *nll,
                             float *margin) {
    size_t bytes = (size_t)call.n * (size_t)run->batch * sizeof *tokens;
    comm_broadcast_host(run->world, tokens, bytes, 0);
    if (call.labels) comm_broadcast_host(run->world, labels, bytes, 0);
    if (call.labels && !call.position) {
        infer_score(run->infer, tokens, labels, call.n, nll, margin);
        return;
    }
    infer_rewind(run->infer, call.position);
    if (call.logits)
        infer_next(run->infer, tokens, call.n, run->leads ? nll : NULL);
    else
        infer_append(run->infer, tokens, call.labels ? labels : NULL, call.n, nll, margin);
}

static bool asked_to_stop(void *self) {
    const EvaluateRun *run = self;
    return run->job->stopped && atomic_load(run->job->stopped);
}

static bool lead(void *self, int position, int32_t *tokens, int32_t *labels, int n, float *nll,
                 float *margin) {
    EvaluateRun *run = self;
    Call call = {.n = n, .position = position, .labels = labels != NULL};
    if (asked_to_stop(run)) return false;
    comm_broadcast_host(run->world, &call, sizeof call, 0);
    compute_together(run, call, tokens, labels, nll, margin);
    return true;
}

// The first call of a batch of samples begins at position 0.
static void lead_next(void *self, int position, const int32_t *tokens, int n, float *logits) {
    EvaluateRun *run = self;
    Call call = {.n = n, .position = position, .logits = true};
    comm_broadcast_host(run->world, &call, sizeof call, 0);
    memcpy(run->tokens, tokens, (size_t)n * (size_t)run->batch * sizeof *tokens);
    compute_together(run, call, run->tokens, NULL, logits, NULL);
}

TokenModel evaluate_token_model(EvaluateRun *run) {
    return (TokenModel){.self = run,
                        .batch = run->batch,
                        .capacity = run->capacity,
                        .longest = run->longest,
                        .vocabulary = run->job->shape.vocabulary,
                        .next = lead_next,
                        .stopped = asked_to_stop};
}

static void follow(EvaluateRun *run) {
    size_t count = (size_t)run->longest * (size_t)run->batch;
    int32_t *labels = malloc(count * sizeof *labels);
    float *nll = malloc(2 * count * sizeof *nll);
    CHECK(labels && nll, "no memory for a batch of %zu tokens", count);
    for (Call call = {.n = 1}; call.n > 0;) {
        comm_broadcast_host(run->world, &call, sizeof call, 0);
        if (call.n > 0) compute_together(run, call, run->tokens, labels, nll, nll + count);
    }
    free(labels);
    free(nll);
}

Status evaluate_together(EvaluateRun *run, Status (*work)(EvaluateRun *, const ScoreModel *)) {
    Status status = OK;
    if (run->leads) {
        ScoreModel model = {.self = run,
                            .batch = run->batch,
                            .longest = run->longest,
                            .cache = run->capacity > 0,
                            .score = lead};
        status = work(run, &model);
        comm_broadcast_host(run->world, &(Call){0}, sizeof(Call), 0);
    } else {
        follow(run);
    }
    return comm_agree(run->world, status);
}

Status evaluate_open(EvaluateRun *run) {
    comm_broadcast_host(run->world, &run->longest, sizeof run->longest, 0);
    comm_broadcast_host(run->world, &run->capacity, sizeof run->capacity, 0);
    int batch = USUAL_BATCH_TOKENS / run->longest, asked = run->job->options->micro_batch_size;
    batch = batch < 1 ? 1 : batch > MAX_USUAL_BATCH ? MAX_USUAL_BATCH : batch;
    run->batch = asked != INT_UNSET ? asked : batch;
    run->tokens = malloc((size_t)run->longest * (size_t)run->batch * sizeof *run->tokens);
    CHECK(run->tokens, "no memory for a batch of %d rows", run->batch);
    InferSpec spec = {.batch = run->batch,
                      .capacity = run->capacity > run->longest ? run->capacity : run->longest,
                      .longest = run->longest,
                      .cache = run->capacity > 0};
    return model_job_infer(run->job, run->world, spec, &run->infer);
}

Status evaluate_sequence(const ModelJob *job, int *length) {
    int asked = job->options->seq_length, most = model_job_positions(job);
    *length = asked != INT_UNSET ? asked : model_job_trained_positions(job);
    if (*length <= most) return OK;
    return fail(ERR_CONFIG, "--seq-length %d, but the model has %d positions: use that or less", *length,
                most);
}

// ---- --data-path --------------------------------------------------------------------------------

// --split cuts sequences, and of conversations documents, as training does.
static Status find_range(EvaluateRun *run) {
    const Options *o = run->job->options;
    if (!options_have_conversations(o))
        return split_range(o->split, indexed_dataset_num_sequences(run->data), SPLIT_VALID, &run->range);
    SplitRange samples;
    TRY(split_range(o->split, indexed_dataset_num_documents(run->data), SPLIT_VALID, &samples));
    run->range = (SplitRange){indexed_dataset_document(run->data, samples.first),
                              indexed_dataset_document(run->data, samples.end)};
    return OK;
}

static Status open_data(EvaluateRun *run) {
    const Options *o = run->job->options;
    const char *prefix = o->data_path.items[0];
    TRY(indexed_dataset_open(&run->data, prefix, run->job->shape.vocabulary));
    if (options_have_conversations(o)) TRY(loss_mask_open(&run->mask, run->data, prefix, o->dpo));
    TRY(find_range(run));
    if (run->range.first < run->range.end) return OK;
    return fail(ERR_CONFIG,
                "--split %s has no validation share; --split 0,1,0 takes the whole data set for validation",
                o->split);
}

static void print_perplexity(const EvaluateRun *run, const Perplexity *p) {
    const Options *o = run->job->options;
    double nats = p->nats / (double)p->tokens;
    printf("%s, validation share of --split %s: %" PRId64 " tokens ", o->data_path.items[0], o->split,
           p->tokens);
    if (o->sft)
        printf("of the answers in %" PRId64 " conversations\n", run->range.end - run->range.first);
    else
        printf("in windows of %d\n", run->longest);
    printf("nats/token %.6f", nats);
    if (p->bytes) printf(", bits/byte %.6f", p->nats / log(2) / (double)p->bytes);
    printf(", perplexity %.6f\n", exp(nats));
}

static Status score_data(EvaluateRun *run, const ScoreModel *model) {
    ScoreText text = {
        .data = run->data, .range = run->range, .tokenizer = run->job->tokenizer, .window = run->longest};
    ScoreChats chats = {.data = run->data, .mask = run->mask, .range = run->range};
    Perplexity perplexity;
    TRY(run->mask ? score_chats(model, &chats, &perplexity) : score_text(model, &text, &perplexity));
    if (run->job->measured)
        *run->job->measured = perplexity;
    else
        print_perplexity(run, &perplexity);
    return OK;
}

// No conversation is longer than the longest one.
static void limit_to_longest(EvaluateRun *run) {
    int32_t longest = 2;
    for (int64_t s = run->range.first; s < run->range.end; s++)
        if (indexed_dataset_length(run->data, s) > longest) longest = indexed_dataset_length(run->data, s);
    if (longest - 1 < run->longest) run->longest = longest - 1;
}

Status evaluate_open_data(EvaluateRun *run) {
    TRY(evaluate_sequence(run->job, &run->longest));
    TRY(comm_agree(run->world, run->leads ? open_data(run) : OK));
    if (run->mask) limit_to_longest(run);
    return OK;
}

static Status evaluate_data(EvaluateRun *run) {
    TRY(evaluate_open_data(run));
    TRY(evaluate_open(run));
    return evaluate_together(run, score_data);
}

Status evaluate_finish_file(FileWriter *file, const Text *text) {
    TRY(file_writer_add(file, text_string(text), text->size));
    return file_writer_finish(file);
}

// ---- --requests ---------------------------------------------------------------------------------

static Status read_requests(EvaluateRun *run) {
    const Options *o = run->job->options;
    char *text;
    size_t size;
    int positions;
    TRY(evaluate_sequence(run->job, &positions));
    TRY(input_read(o->requests, MAX_REQUEST_BYTES, &text, &size));
    const char *what = strcmp(o->requests, "-") ? o->requests : "standard input";
    Status status = requests_parse(&run->requests, text, size, what, run->job->tokenizer, positions);
    run->longest = run->requests.continuations.longest;
    if (run->longest < 1) run->longest = 1;
    run->capacity = run->longest;
    free(text);
    return status == OK && o->output ? file_writer_open(&run->answers, o->output) : status;
}

static Status write_answers(EvaluateRun *run) {
    Text text = {0};
    Status status = OK;
    requests_write(&run->requests, &text);
    if (run->job->options->output)
        status = evaluate_finish_file(&run->answers, &text);
    else
        fwrite(text.data, 1, text.size, stdout);
    text_free(&text);
    return status;
}

// Where the answers go to standard output, the summary goes to standard error.
static void print_summary(const Requests *r, FILE *out) {
    Choices choices = requests_choices(r);
    fprintf(out, "%d requests, %d continuations", r->count, r->continuations.count);
    if (r->continuations.num_cut)
        fprintf(out, "; of %" PRId64 " the context was cut on the left to what the model can see",
                r->continuations.num_cut);
    fputc('\n', out);
    if (choices.labelled)
        fprintf(out, "acc %.4f, acc_norm %.4f (by character) of %d with a label\n",
                (double)choices.right / choices.labelled, (double)choices.right_by_length / choices.labelled,
                choices.labelled);
}

static Status score_requests(EvaluateRun *run, const ScoreModel *model) {
    TRY(continuations_score(model, &run->requests.continuations));
    TRY(write_answers(run));
    print_summary(&run->requests, run->job->options->output ? stdout : stderr);
    return OK;
}

static Status evaluate_requests(EvaluateRun *run) {
    TRY(comm_agree(run->world, run->leads ? read_requests(run) : OK));
    TRY(evaluate_open(run));
    return evaluate_together(run, score_requests);
}

// ---- the run ------------------------------------------------------------------------------------

Status evaluate_run(Comm *world, void *arg) {
    EvaluateRun run = {.job = arg, .world = world, .leads = comm_rank(world) == 0};
    const Options *o = run.job->options;
    Status status = o->task.count ? evaluate_tasks(&run)
                    : o->requests ? evaluate_requests(&run)
                    : o->dpo      ? evaluate_pairs(&run)
                                  : evaluate_data(&run);
    infer_close(run.infer);
    indexed_dataset_close(run.data);
    indexed_dataset_close(run.mask);
    requests_free(&run.requests);
    tasks_free(&run.tasks);
    task_filters_close(run.filters);
    file_writer_abandon(&run.answers);
    free(run.tokens);
    return status;
}
