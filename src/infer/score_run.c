// `trireme evaluate`: the perplexity of a data set, or the answers to requests.
#include "base/rank.h"
#include "infer/score.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_REQUEST_BYTES = 1 << 30,
    USUAL_BATCH_TOKENS = 2048, // of a batch without --micro-batch-size
    MAX_USUAL_BATCH = 32,
};

typedef struct {
    const ModelJob *job;
    Comm *world;
    bool leads; // rank 0
    int batch, longest;
    Infer *infer;
    // Rank 0 scores one of these.
    Requests requests;
    FileWriter answers;          // --output; opened first, so that a wrong path fails before the work
    IndexedDataset *data, *mask; // mask: with --sft
    SplitRange range;            // of sequences
} EvaluateRun;

// ---- from batch to batch together ---------------------------------------------------------------

// Calls infer_score on all ranks with the rows of rank 0. n = 0 ends the work: nothing is computed.
static void score_together(EvaluateRun *run, int32_t *tokens, int32_t *labels, int n, float *nll,
                           float *margin) {
    size_t bytes = (size_t)n * (size_t)run->batch * sizeof *tokens;
    comm_broadcast_host(run->world, tokens, bytes, 0);
    comm_broadcast_host(run->world, labels, bytes, 0);
    infer_score(run->infer, tokens, labels, n, nll, margin);
}

static bool lead(void *self, int32_t *tokens, int32_t *labels, int n, float *nll, float *margin) {
    EvaluateRun *run = self;
    if (run->job->stopped && atomic_load(run->job->stopped)) return false;
    comm_broadcast_host(run->world, &n, sizeof n, 0);
    score_together(run, tokens, labels, n, nll, margin);
    return true;
}

static void follow(EvaluateRun *run) {
    size_t count = (size_t)run->longest * (size_t)run->batch;
    int32_t *tokens = malloc(2 * count * sizeof *tokens);
    float *nll = malloc(2 * count * sizeof *nll);
    CHECK(tokens && nll, "no memory for a batch of %zu tokens", count);
    for (int n = 1; n > 0;) {
        comm_broadcast_host(run->world, &n, sizeof n, 0);
        if (n > 0) score_together(run, tokens, tokens + count, n, nll, nll + count);
    }
    free(tokens);
    free(nll);
}

// Runs `work` on rank 0, while the other ranks compute its batches. Returns the same status on all ranks.
static Status work_together(EvaluateRun *run, Status (*work)(EvaluateRun *, const ScoreModel *)) {
    Status status = OK;
    if (run->leads) {
        ScoreModel model = {.self = run, .batch = run->batch, .longest = run->longest, .score = lead};
        status = work(run, &model);
        comm_broadcast_host(run->world, &(int){0}, sizeof(int), 0);
    } else {
        follow(run);
    }
    return comm_agree(run->world, status);
}

static Status open_model(EvaluateRun *run) {
    comm_broadcast_host(run->world, &run->longest, sizeof run->longest, 0);
    int batch = USUAL_BATCH_TOKENS / run->longest, asked = run->job->options->micro_batch_size;
    batch = batch < 1 ? 1 : batch > MAX_USUAL_BATCH ? MAX_USUAL_BATCH : batch;
    run->batch = asked != INT_UNSET ? asked : batch;
    InferSpec spec = {.batch = run->batch, .capacity = run->longest, .longest = run->longest};
    return model_job_infer(run->job, run->world, spec, &run->infer);
}

// The number of tokens that the model sees at once.
static Status sequence(const ModelJob *job, int *length) {
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
    if (!o->sft)
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
    if (o->sft) TRY(loss_mask_open(&run->mask, run->data, prefix, false));
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

static Status evaluate_data(EvaluateRun *run) {
    TRY(sequence(run->job, &run->longest));
    TRY(comm_agree(run->world, run->leads ? open_data(run) : OK));
    if (run->mask) limit_to_longest(run);
    TRY(open_model(run));
    return work_together(run, score_data);
}

// ---- --requests ---------------------------------------------------------------------------------

static Status read_requests(EvaluateRun *run) {
    const Options *o = run->job->options;
    char *text;
    size_t size;
    int positions;
    TRY(sequence(run->job, &positions));
    TRY(input_read(o->requests, MAX_REQUEST_BYTES, &text, &size));
    const char *what = strcmp(o->requests, "-") ? o->requests : "standard input";
    Status status = requests_parse(&run->requests, text, size, what, run->job->tokenizer, positions);
    run->longest = run->requests.longest > 0 ? run->requests.longest : 1;
    free(text);
    return status == OK && o->output ? file_writer_open(&run->answers, o->output) : status;
}

static Status write_answers(EvaluateRun *run) {
    Text text = {0};
    Status status = OK;
    requests_write(&run->requests, &text);
    if (run->job->options->output) {
        status = file_writer_add(&run->answers, text.data, text.size);
        if (status == OK) status = file_writer_finish(&run->answers);
    } else {
        fwrite(text.data, 1, text.size, stdout);
    }
    text_free(&text);
    return status;
}

// Where the answers go to standard output, the summary goes to standard error.
static void print_summary(const Requests *r, FILE *out) {
    Choices choices = requests_choices(r);
    fprintf(out, "%d requests, %d continuations", r->count, r->num_continuations);
    if (r->num_cut)
        fprintf(out, "; of %" PRId64 " the context was cut on the left to what the model can see",
                r->num_cut);
    fputc('\n', out);
    if (choices.labelled)
        fprintf(out, "acc %.4f, acc_norm %.4f (by character) of %d with a label\n",
                (double)choices.right / choices.labelled, (double)choices.right_by_length / choices.labelled,
                choices.labelled);
}

static Status score_requests(EvaluateRun *run, const ScoreModel *model) {
    TRY(requests_score(model, &run->requests));
    TRY(write_answers(run));
    print_summary(&run->requests, run->job->options->output ? stdout : stderr);
    return OK;
}

static Status evaluate_requests(EvaluateRun *run) {
    TRY(comm_agree(run->world, run->leads ? read_requests(run) : OK));
    TRY(open_model(run));
    return work_together(run, score_requests);
}

// ---- the run ------------------------------------------------------------------------------------

Status evaluate_run(Comm *world, void *arg) {
    EvaluateRun run = {.job = arg, .world = world, .leads = comm_rank(world) == 0};
    Status status = run.job->options->requests ? evaluate_requests(&run) : evaluate_data(&run);
    infer_close(run.infer);
    indexed_dataset_close(run.data);
    indexed_dataset_close(run.mask);
    requests_free(&run.requests);
    file_writer_abandon(&run.answers);
    return status;
}
