#include "base/rank.h"
#include "data/corpus.h"
#include "data/data.h"
#include "data/maps.h"
#include "data/pipeline.h"
#include "data/progress.h"
#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What travels through the pipeline: documents in, tokens of each output out.
typedef struct {
    Batch batch;
    TokenList *tokens; // [num_outputs] of all documents, one after another
    size_t *counts;    // [documents][num_outputs]
    size_t counts_capacity;
    int64_t text_bytes; // of all documents
} Slot;

// One thread's tools: a counter in the first pass, an encoder in the second.
typedef struct {
    PieceCounter *counter;
    Encoder *encoder;
    struct json_tokener *json;
} Worker;

typedef struct {
    const PreprocessJob *job;
    PreprocessSummary *summary;
    Corpus corpus;
    CorpusReader reader;
    Tokenizer *tokenizer;
    Worker *workers;
    Slot *slots;
    int num_slots, num_outputs; // outputs: one per JSON key
    IndexedWriter **writers;    // [num_outputs]
    Text *prefixes;             // [num_outputs]
    Progress progress;
    int64_t bytes_done;
} Run;

static Status check_stop(const Run *run) {
    if (!run->job->stopped || !*run->job->stopped) return OK;
    return fail(INTERRUPTED, "stopped by a signal: nothing was written to --output-prefix %s",
                run->job->output_prefix);
}

// ---- One document -------------------------------------------------------------------------------------

static Status parse_line(Worker *w, const Document *d, const char *text, struct json_object **object) {
    json_tokener_reset(w->json);
    *object = json_tokener_parse_ex(w->json, text, (int)d->bytes);
    enum json_tokener_error error = json_tokener_get_error(w->json);
    if (error == json_tokener_success && json_object_is_type(*object, json_type_object)) return OK;
    json_object_put(*object);
    const char *why = error == json_tokener_success    ? "a JSON object is expected"
                      : error == json_tokener_continue ? "not valid JSON: the line ends too early"
                                                       : json_tokener_error_desc(error);
    return fail(ERR_DATA, "%s:%" PRId64 ": byte %zu: %s", d->path, d->line,
                json_tokener_get_parse_end(w->json), why);
}

static Status encode_text(Worker *w, const Document *d, const char *text, size_t bytes, TokenList *out) {
    Status status = encoder_encode(w->encoder, text, bytes, out);
    if (status == OK) return OK;
    return d->line ? fail(status, "%s:%" PRId64 ": %s", d->path, d->line, fail_message())
                   : fail(status, "%s: %s", d->path, fail_message());
}

// Counts or encodes one text; `count` receives the number of its tokens.
static Status take_text(const Run *run, Worker *w, const Document *d, const char *text, size_t bytes,
                        TokenList *out, size_t *count) {
    if (w->counter) {
        piece_counter_add(w->counter, text, bytes);
        return OK;
    }
    size_t before = out->count;
    TRY(encode_text(w, d, text, bytes, out));
    if (run->job->append_eod && out->count > before)
        token_list_add(out, &(int32_t){tokenizer_eod(run->tokenizer)}, 1);
    *count = out->count - before;
    return OK;
}

static Status take_key(const Run *run, Worker *w, const Document *d, struct json_object *object, int k,
                       Slot *slot, size_t *count) {
    const char *key = run->job->json_keys[k];
    struct json_object *value;
    if (!json_object_object_get_ex(object, key, &value))
        return fail(ERR_DATA, "%s:%" PRId64 ": no key \"%s\" (--json-keys names the keys to read)", d->path,
                    d->line, key);
    if (!json_object_is_type(value, json_type_string))
        return fail(ERR_DATA, "%s:%" PRId64 ": the value of \"%s\" is not a string", d->path, d->line, key);
    size_t bytes = (size_t)json_object_get_string_len(value);
    slot->text_bytes += (int64_t)bytes;
    return take_text(run, w, d, json_object_get_string(value), bytes, &slot->tokens[k], count);
}

static Status take_document(const Run *run, Worker *w, Slot *slot, size_t i) {
    const Document *d = &slot->batch.documents[i];
    const char *raw = slot->batch.raw.data + d->start;
    size_t *counts = slot->counts + i * (size_t)run->num_outputs;
    if (!d->line) {
        slot->text_bytes += (int64_t)d->bytes;
        return take_text(run, w, d, raw, d->bytes, &slot->tokens[0], counts);
    }
    struct json_object *object;
    TRY(parse_line(w, d, raw, &object));
    Status status = OK;
    for (int k = 0; status == OK && k < run->num_outputs; k++)
        status = take_key(run, w, d, object, k, slot, counts + k);
    json_object_put(object);
    return status;
}

// ---- The steps of a pass over the corpus --------------------------------------------------------------

static Status produce(void *self, int at, bool *end) {
    Run *run = self;
    Slot *slot = &run->slots[at];
    TRY(corpus_read(&run->reader, &slot->batch));
    *end = slot->batch.count == 0;
    grow_array(&slot->counts, sizeof *slot->counts, slot->batch.count * (size_t)run->num_outputs,
               &slot->counts_capacity);
    slot->text_bytes = 0;
    for (int k = 0; k < run->num_outputs; k++) slot->tokens[k].count = 0;
    return OK;
}

static Status work(void *self, int worker, int at) {
    Run *run = self;
    Slot *slot = &run->slots[at];
    for (size_t i = 0; i < slot->batch.count; i++) {
        TRY(check_stop(run));
        TRY(take_document(run, &run->workers[worker], slot, i));
    }
    return OK;
}

static Status consume_counts(void *self, int at) {
    Run *run = self;
    run->bytes_done = run->slots[at].batch.bytes_read;
    return OK;
}

static Status write_tokens(Run *run, const Slot *slot, int output) {
    size_t done = 0;
    for (size_t i = 0; i < slot->batch.count; i++) {
        size_t count = slot->counts[i * (size_t)run->num_outputs + (size_t)output];
        TRY(indexed_writer_add(run->writers[output], count ? slot->tokens[output].ids + done : NULL, count));
        done += count;
    }
    run->summary->tokens += (int64_t)done;
    return OK;
}

static Status consume_tokens(void *self, int at) {
    Run *run = self;
    const Slot *slot = &run->slots[at];
    TRY(check_stop(run));
    for (int k = 0; k < run->num_outputs; k++) TRY(write_tokens(run, slot, k));
    int64_t before = run->summary->documents, interval = run->job->log_documents;
    run->summary->documents += (int64_t)slot->batch.count;
    run->summary->text_bytes += slot->text_bytes;
    run->bytes_done = slot->batch.bytes_read;
    if (interval > 0 && before / interval != run->summary->documents / interval)
        progress_line(&run->progress, run->bytes_done);
    return OK;
}

static void tick(void *self) {
    Run *run = self;
    progress_update(&run->progress, run->bytes_done);
}

static int64_t smaller_cap(int64_t a, int64_t b) { return a == 0 || (b && b < a) ? b : a; }

static Status pass(Run *run, const char *what, int64_t max_bytes, Status (*consume)(void *, int)) {
    int64_t total = smaller_cap(run->corpus.bytes, max_bytes);
    run->progress = progress_start(run->job->progress, run->job->plain, what, total, "MB", 1e6);
    run->bytes_done = 0;
    corpus_reader_open(&run->reader, &run->corpus, max_bytes);
    PipelineSteps steps = {produce, work, consume, tick};
    Status status = pipeline_run(&steps, run, run->job->workers);
    progress_end(&run->progress, run->bytes_done);
    run->summary->bytes = run->reader.bytes;
    run->summary->skipped_binary = run->reader.skipped_binary;
    run->summary->files = run->reader.num_files;
    corpus_reader_close(&run->reader);
    return status;
}

// ---- Getting a tokenizer ------------------------------------------------------------------------------

static bool train_tick(void *self, int num_tokens) {
    Run *run = self;
    progress_update(&run->progress, num_tokens);
    return !run->job->stopped || !*run->job->stopped;
}

static Status train_from_counts(Run *run) {
    for (int i = 1; i < run->job->workers; i++)
        piece_counter_merge(run->workers[0].counter, run->workers[i].counter);
    run->progress = progress_start(run->job->progress, run->job->plain, "training the tokenizer",
                                   run->job->vocab_size, "tokens", 1);
    Status status =
        tokenizer_train(&run->tokenizer, run->workers[0].counter, run->job->vocab_size, train_tick, run);
    progress_end(&run->progress, run->job->vocab_size);
    return status == OK ? check_stop(run) : status;
}

static Status count_and_train(Run *run) {
    int64_t cap = smaller_cap(run->job->max_bytes, PREPROCESS_TRAIN_BYTES);
    for (int i = 0; i < run->job->workers; i++) TRY(piece_counter_open(&run->workers[i].counter));
    TRY(pass(run, "counting words", cap, consume_counts));
    return train_from_counts(run);
}

static Status train_tokenizer(Run *run) {
    double start_s = clock_s();
    Status status = count_and_train(run);
    for (int i = 0; i < run->job->workers; i++) {
        piece_counter_close(run->workers[i].counter);
        run->workers[i].counter = NULL;
    }
    run->summary->train_s = clock_s() - start_s;
    run->summary->vocab_trained = true;
    return status;
}

static Status get_tokenizer(Run *run) {
    const PreprocessJob *job = run->job;
    if (job->vocab_file && job->merge_file)
        return tokenizer_open(&run->tokenizer, job->vocab_file, job->merge_file);
    if (job->tokenizer_prefix) return tokenizer_open_beside(&run->tokenizer, job->tokenizer_prefix);
    if (job->null_size > 0) return tokenizer_open_null(&run->tokenizer, job->null_size);
    if (job->vocab_size > 0) return train_tokenizer(run);
    return fail(ERR_CONFIG,
                "no tokenizer: give --vocab-size to train one, or --vocab-file with --merge-file");
}

// ---- The whole ----------------------------------------------------------------------------------------

static Status check_job(const Run *run) {
    const PreprocessJob *job = run->job;
    for (size_t i = 0; job->num_json_keys > 1 && i < run->corpus.num_files; i++)
        if (!run->corpus.files[i].json)
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

static Status open_tools(Run *run) {
    run->num_outputs = run->job->num_json_keys > 1 ? run->job->num_json_keys : 1;
    run->num_slots = pipeline_num_slots(run->job->workers);
    run->workers = calloc((size_t)run->job->workers, sizeof *run->workers);
    run->slots = calloc((size_t)run->num_slots, sizeof *run->slots);
    run->writers = calloc((size_t)run->num_outputs, sizeof(IndexedWriter *));
    run->prefixes = calloc((size_t)run->num_outputs, sizeof *run->prefixes);
    CHECK(run->workers && run->slots && run->writers && run->prefixes, "no memory for %d workers",
          run->job->workers);
    for (int i = 0; i < run->num_slots; i++) {
        run->slots[i].tokens = calloc((size_t)run->num_outputs, sizeof *run->slots[i].tokens);
        CHECK(run->slots[i].tokens, "no memory for %d workers", run->job->workers);
    }
    for (int i = 0; i < run->job->workers; i++) {
        run->workers[i].json = json_tokener_new_ex(64);
        CHECK(run->workers[i].json, "no memory for %d workers", run->job->workers);
        json_tokener_set_flags(run->workers[i].json, JSON_TOKENER_STRICT);
    }
    return OK;
}

static Status open_outputs(Run *run) {
    const PreprocessJob *job = run->job;
    int vocab_size = run->summary->vocab_size = tokenizer_vocab_size(run->tokenizer);
    for (int i = 0; i < job->workers; i++) TRY(encoder_open(&run->workers[i].encoder, run->tokenizer));
    for (int k = 0; k < run->num_outputs; k++) {
        text_add(&run->prefixes[k], "%s", job->output_prefix);
        if (run->num_outputs > 1) text_add(&run->prefixes[k], "_%s_document", job->json_keys[k]);
        TRY(indexed_writer_open(&run->writers[k], run->prefixes[k].data, vocab_size));
    }
    return OK;
}

// Wherever this ends early, no .idx stands beside a tokenizer or a .bin that is not its own.
static Status publish(Run *run) {
    for (int k = 0; k < run->num_outputs; k++) TRY(indexed_writer_retire_old(run->writers[k]));
    for (int k = 0; k < run->num_outputs; k++) TRY(tokenizer_save(run->tokenizer, run->prefixes[k].data));
    for (int k = 0; k < run->num_outputs; k++) TRY(indexed_writer_finish(run->writers[k]));
    return OK;
}

// Nothing appears under its name before everything is encoded.
static Status encode_all(Run *run) {
    TRY(open_outputs(run));
    double start_s = clock_s();
    TRY(pass(run, "encoding", run->job->max_bytes, consume_tokens));
    run->summary->encode_s = clock_s() - start_s;
    if (run->summary->tokens == 0)
        return fail(ERR_DATA, "--input %s%s: no text in %" PRId64 " files (%" PRId64 " binary ones left out)",
                    run->job->inputs[0], run->job->num_inputs > 1 ? " ..." : "", run->summary->files,
                    run->summary->skipped_binary);
    return publish(run);
}

static Status run_all(Run *run) {
    TRY(corpus_open(&run->corpus, run->job->inputs, run->job->num_inputs));
    TRY(check_job(run));
    TRY(open_tools(run));
    TRY(get_tokenizer(run));
    return encode_all(run);
}

static void close_tools(Run *run) {
    for (int k = 0; run->writers && k < run->num_outputs; k++) indexed_writer_close(run->writers[k]);
    for (int k = 0; run->prefixes && k < run->num_outputs; k++) text_free(&run->prefixes[k]);
    free(run->prefixes);
    free(run->writers);
    for (int i = 0; run->slots && i < run->num_slots; i++) {
        for (int k = 0; k < run->num_outputs; k++) token_list_free(&run->slots[i].tokens[k]);
        free(run->slots[i].tokens);
        free(run->slots[i].counts);
        batch_free(&run->slots[i].batch);
    }
    free(run->slots);
    for (int i = 0; run->workers && i < run->job->workers; i++) {
        encoder_close(run->workers[i].encoder);
        json_tokener_free(run->workers[i].json);
    }
    free(run->workers);
    tokenizer_close(run->tokenizer);
    corpus_close(&run->corpus);
}

Status preprocess_run(const PreprocessJob *job, PreprocessSummary *summary) {
    CHECK(job->num_inputs > 0 && job->output_prefix, "a preprocess job without input or output");
    CHECK(job->workers >= 1 && job->workers <= MAX_WORKERS && job->max_bytes >= 0,
          "a preprocess job of %d workers and %" PRId64 " bytes", job->workers, job->max_bytes);
    *summary = (PreprocessSummary){0};
    Run run = {.job = job, .summary = summary};
    Status status = run_all(&run);
    close_tools(&run);
    return status;
}
