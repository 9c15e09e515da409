// Makes a dataset from text, and a tokenizer where asked: the two passes of `trireme preprocess`.
#include "base/rank.h"
#include "corpus/corpus.h"
#include "corpus/encoding.h"
#include "corpus/ordered_pool.h"
#include "corpus/progress.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const PreprocessJob *job;
    PreprocessSummary *summary;
    Corpus corpus;
    StandardInput standard_input;
    CorpusReader reader;
    atomic_bool cancelled; // the reader must stop waiting
    PieceCounter *counter; // of all slots, while a tokenizer is trained
    Tokenizer *tokenizer;
    bool may_cut; // this tokenizer allows to cut long texts
    Worker *workers;
    BatchSlot *slots;
    int num_slots, num_outputs; // outputs: one per JSON key
    IndexedWriter **writers;    // [num_outputs]
    Text *prefixes;             // [num_outputs]
    int32_t eod;                // the token that ends each document; -1: none
    ProgressLine progress;
    Done done;
    const ForeignFormat *foreign; // format of the first file that was left out for its format; NULL: none
    const char *foreign_path;     // the path of that file, borrowed from the corpus
} Run;

static Status check_stop(const Run *run) {
    if (!run->job->stopped || !*run->job->stopped) return OK;
    return fail(INTERRUPTED, "stopped by a signal: nothing was written to --output-prefix %s",
                run->job->output_prefix);
}

// ---- The steps of a pass over the corpus --------------------------------------------------------------

static Status produce(void *self, int at, size_t *weight, bool *end) {
    Run *run = self;
    DocumentBatch *batch = &run->slots[at].batch;
    TRY(corpus_read(&run->reader, batch));
    *weight = batch->raw_bytes;
    *end = batch->count == 0;
    return OK;
}

static Status work(void *self, int worker, int at) {
    Run *run = self;
    return encode_batch(&run->workers[worker], &run->slots[at]);
}

// Notes the progress: the share of the files or of the wanted bytes, whichever is larger.
static void note_done(Run *run, const DocumentBatch *batch) {
    const ReadOptions *options = &run->reader.options;
    int64_t most = options->enough_bytes ? options->enough_bytes : options->max_bytes;
    double share = NAN;
    if (!run->corpus.endless && run->corpus.bytes)
        share = (double)batch->position / (double)run->corpus.bytes;
    if (most) share = fmax(share, (double)batch->bytes_read / (double)most);
    run->done = (Done){batch->bytes_read, share > 1 ? 1 : share};
}

static Status consume_counts(void *self, int at) {
    Run *run = self;
    BatchSlot *slot = &run->slots[at];
    note_done(run, &slot->batch);
    piece_counter_merge(run->counter, slot->counter); // in the order of the text
    slot_trim(slot, run->num_outputs);
    return check_stop(run);
}

static int64_t num_ends(const DocumentBatch *batch) {
    int64_t ends = 0;
    for (size_t i = 0; i < batch->count; i++) ends += batch->documents[i].ends;
    return ends;
}

static Status consume_tokens(void *self, int at) {
    Run *run = self;
    BatchSlot *slot = &run->slots[at];
    TRY(check_stop(run));
    TRY(write_batch(slot, run->writers, run->num_outputs, run->eod));
    int64_t before = run->summary->documents, interval = run->job->log_documents;
    run->summary->documents += num_ends(&slot->batch) - slot->num_bad;
    slot_note_bad(slot, &run->summary->bad_lines, &run->summary->left_out);
    run->summary->text_bytes += slot->text_bytes;
    note_done(run, &slot->batch);
    slot_trim(slot, run->num_outputs);
    if (interval > 0 && before / interval != run->summary->documents / interval)
        progress_line(&run->progress, run->done);
    return OK;
}

static Status tick(void *self) {
    Run *run = self;
    progress_update(&run->progress, run->done);
    return check_stop(run);
}

static void cancel(void *self) { ((Run *)self)->cancelled = true; }

static size_t most_in_flight(const Run *run) {
    size_t batches = (size_t)run->num_slots * BATCH_BYTES;
    return batches > MAX_STRETCH_BYTES ? batches : MAX_STRETCH_BYTES;
}

static Status pass(Run *run, const char *what, ReadOptions options, Status (*consume)(void *, int)) {
    options.max_bytes = run->job->max_bytes;
    options.skip_bad_lines = run->job->skip_bad_lines;
    options.standard_input = &run->standard_input;
    options.cancelled = &run->cancelled;
    run->progress = progress_start(run->job->progress, run->job->plain, what, "MB", 1e6);
    run->done = (Done){0, NAN};
    corpus_reader_open(&run->reader, &run->corpus, options);
    PoolSteps steps = {produce, work, consume, tick, cancel};
    Status status = ordered_pool_run(&steps, run, run->job->workers, most_in_flight(run));
    run->cancelled = false;
    progress_end(&run->progress, run->done);
    run->summary->bytes = run->reader.bytes;
    run->summary->skipped_binary = run->reader.skipped_binary;
    run->summary->files = run->reader.num_files;
    run->foreign = run->reader.foreign;
    run->foreign_path = run->reader.foreign_path;
    corpus_reader_close(&run->reader);
    return status;
}

// ---- The tokenizer ------------------------------------------------------------------------------

static bool train_tick(void *self, int num_tokens) {
    Run *run = self;
    progress_update(&run->progress, (Done){num_tokens, (double)num_tokens / run->job->vocab_size});
    return !run->job->stopped || !*run->job->stopped;
}

static Status train_from_counts(Run *run) {
    run->progress =
        progress_start(run->job->progress, run->job->plain, "training the tokenizer", "tokens", 1);
    Status status = tokenizer_train(&run->tokenizer, run->counter, run->job->vocab_size, train_tick, run);
    progress_end(&run->progress, (Done){run->job->vocab_size, 1});
    return status == OK ? check_stop(run) : status;
}

static void close_slot_counters(Run *run) {
    for (int i = 0; i < run->num_slots; i++) {
        piece_counter_close(run->slots[i].counter);
        run->slots[i].counter = NULL;
    }
}

static Status count_and_train(Run *run) {
    ReadOptions options = {.enough_bytes = PREPROCESS_TRAIN_BYTES, .may_cut = true};
    TRY(piece_counter_open(&run->counter));
    for (int i = 0; i < run->num_slots; i++) TRY(piece_counter_open(&run->slots[i].counter));
    run->standard_input.keep = true;
    TRY(pass(run, "counting words", options, consume_counts));
    run->standard_input.keep = false;
    close_slot_counters(run);
    return train_from_counts(run);
}

static Status train_tokenizer(Run *run) {
    double start_s = clock_s();
    Status status = count_and_train(run);
    close_slot_counters(run);
    piece_counter_close(run->counter);
    run->counter = NULL;
    run->summary->train_s = clock_s() - start_s;
    run->summary->vocab_trained = true;
    return status;
}

static Status get_tokenizer(Run *run) {
    const PreprocessJob *job = run->job;
    if (job->vocab_file && job->merge_file)
        return tokenizer_open(&run->tokenizer, job->vocab_file, job->merge_file);
    if (job->tokenizer_path) {
        TRY(tokenizer_open_path(&run->tokenizer, job->tokenizer_path));
        tokenizer_print_note(run->tokenizer);
        return OK;
    }
    if (job->null_size > 0) return tokenizer_open_null(&run->tokenizer, job->null_size);
    if (job->vocab_size > 0) return train_tokenizer(run);
    return fail(ERR_CONFIG, "no tokenizer: give --vocab-size to train one, or --tokenizer-model to load one");
}

// ---- The whole job ----------------------------------------------------------------------------------------

static Status check_job(const Run *run) {
    const PreprocessJob *job = run->job;
    for (size_t i = 0; job->num_json_keys > 1 && i < run->corpus.num_files; i++)
        if (run->corpus.files[i].kind == TEXT_FILE)
            return fail(ERR_CONFIG, "%s: a text file has no keys, but --json-keys names %d",
                        run->corpus.files[i].path, job->num_json_keys);
    char folder[PATH_MAX];
    const char *slash = strrchr(job->output_prefix, '/');
    int length = slash ? (int)(slash - job->output_prefix) + 1 : 0;
    snprintf(folder, sizeof folder, "%.*s", length, job->output_prefix);
    if (access(length ? folder : ".", W_OK | X_OK))
        return fail(create_status(), "--output-prefix %s: cannot create files in %s: %s", job->output_prefix,
                    length ? folder : "this folder", strerror(errno));
    return OK;
}

static void open_tools(Run *run) {
    run->num_outputs = run->job->num_json_keys;
    run->num_slots = ordered_pool_slots(run->job->workers);
    run->workers = calloc((size_t)run->job->workers, sizeof *run->workers);
    run->slots = calloc((size_t)run->num_slots, sizeof *run->slots);
    run->writers = calloc((size_t)run->num_outputs, sizeof(IndexedWriter *));
    run->prefixes = calloc((size_t)run->num_outputs, sizeof *run->prefixes);
    CHECK(run->workers && run->slots && run->writers && run->prefixes, "no memory for %d workers",
          run->job->workers);
    for (int i = 0; i < run->num_slots; i++) slot_open(&run->slots[i], run->num_outputs);
    for (int i = 0; i < run->job->workers; i++)
        worker_open(&run->workers[i], run->job->json_keys, run->job->num_json_keys, run->job->skip_bad_lines,
                    run->job->stopped);
}

static Status open_outputs(Run *run) {
    const PreprocessJob *job = run->job;
    int vocab_size = run->summary->vocab_size = tokenizer_vocab_size(run->tokenizer);
    run->eod = job->append_eod ? tokenizer_eod(run->tokenizer) : -1;
    if (job->append_eod && run->eod < 0)
        return fail(ERR_CONFIG, "--append-eod: this tokenizer has no token that ends a document");
    TRY(may_be_cut(run->tokenizer, &run->may_cut));
    for (int i = 0; i < job->workers; i++)
        TRY(worker_encodes(&run->workers[i], run->tokenizer, run->may_cut));
    for (int k = 0; k < run->num_outputs; k++) {
        text_add(&run->prefixes[k], "%s", job->output_prefix);
        if (run->num_outputs > 1) text_add(&run->prefixes[k], "_%s_document", job->json_keys[k]);
        TRY(indexed_writer_open(&run->writers[k], run->prefixes[k].data, vocab_size));
    }
    return OK;
}

// Renames the files in an order such that an .idx always belongs to the files beside it, even when this is interrupted.
static Status publish(Run *run) {
    for (int k = 0; k < run->num_outputs; k++) TRY(indexed_writer_retire_old(run->writers[k]));
    for (int k = 0; k < run->num_outputs; k++) TRY(tokenizer_save(run->tokenizer, run->prefixes[k].data));
    for (int k = 0; k < run->num_outputs; k++) TRY(indexed_writer_finish(run->writers[k]));
    return OK;
}

static void note_foreign(const Run *run) {
    Text *out = &run->summary->left_out;
    text_add(out, "    ");
    foreign_describe(run->foreign, run->foreign_path, out);
    text_add(out, "\n");
}

static Status no_text(const Run *run) {
    const PreprocessSummary *s = run->summary;
    const char *first = text_string(&s->left_out) + strspn(text_string(&s->left_out), " ");
    const char *more = run->job->num_inputs > 1 ? " ..." : "";
    if (run->corpus.num_files == 0)
        return fail(ERR_DATA, "--input %s%s: no text: the folder has no files", run->job->inputs[0], more);
    if (s->bytes == 0 && !s->skipped_binary)
        return fail(ERR_DATA, "--input %s%s: no text: %s", run->job->inputs[0], more,
                    run->corpus.num_files == 1 ? "the input is empty" : "all files are empty");
    return fail(ERR_DATA,
                "--input %s%s: no text in %" PRId64 " files; %" PRId64 " binary files and %" PRId64
                " bad lines are left out%s%.*s",
                run->job->inputs[0], more, s->files, s->skipped_binary, s->bad_lines,
                *first ? ", the first is " : "", (int)strcspn(first, "\n"), first);
}

// Encodes everything before any file gets its name.
static Status encode_all(Run *run) {
    TRY(open_outputs(run));
    ReadOptions options = {.may_cut = run->may_cut};
    double start_s = clock_s();
    TRY(pass(run, "encoding", options, consume_tokens));
    run->summary->encode_s = clock_s() - start_s;
    for (int k = 0; k < run->num_outputs; k++)
        run->summary->tokens += indexed_writer_num_tokens(run->writers[k]);
    if (run->foreign) note_foreign(run);
    if (run->summary->tokens == 0) return no_text(run);
    return publish(run);
}

static Status run_all(Run *run) {
    TRY(corpus_open(&run->corpus, run->job->inputs, run->job->num_inputs));
    TRY(check_job(run));
    open_tools(run);
    TRY(get_tokenizer(run));
    return encode_all(run);
}

static void close_tools(Run *run) {
    for (int k = 0; run->writers && k < run->num_outputs; k++) indexed_writer_close(run->writers[k]);
    for (int k = 0; run->prefixes && k < run->num_outputs; k++) text_free(&run->prefixes[k]);
    free(run->prefixes);
    free(run->writers);
    for (int i = 0; run->slots && i < run->num_slots; i++) slot_close(&run->slots[i], run->num_outputs);
    free(run->slots);
    for (int i = 0; run->workers && i < run->job->workers; i++) worker_close(&run->workers[i]);
    free(run->workers);
    tokenizer_close(run->tokenizer);
    corpus_close(&run->corpus);
    text_free(&run->standard_input.kept);
}

Status preprocess_run(const PreprocessJob *job, PreprocessSummary *summary) {
    CHECK(job->num_inputs > 0 && job->output_prefix && job->num_json_keys > 0,
          "a preprocess job without input, output or keys");
    CHECK(job->workers >= 1 && job->workers <= MAX_WORKERS && job->max_bytes >= 0,
          "a preprocess job of %d workers and %" PRId64 " bytes", job->workers, job->max_bytes);
    *summary = (PreprocessSummary){0};
    Run run = {.job = job, .summary = summary};
    Status status = run_all(&run);
    close_tools(&run);
    if (status != OK) text_free(&summary->left_out);
    return status;
}
