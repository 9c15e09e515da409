// Reads conversations on many threads, packs and writes them: the work of `trireme prepare-chat`.
#include "base/array.h"
#include "base/rank.h"
#include "corpus/chat.h"
#include "corpus/chat_format.h"
#include "corpus/chat_pack.h"
#include "corpus/corpus_reader.h"
#include "corpus/ordered_pool.h"
#include "corpus/progress.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BAD_SHOWN = 5 };

// A conversation of a batch, in the lists of its slot.
typedef struct {
    const char *path;
    int64_t line, whole;
    size_t count, chosen; // chosen: of a pair, the tokens of the chosen answer's conversation; else 0
} Encoded;

typedef struct {
    DocumentBatch batch;
    TokenList tokens, mask;
    Encoded *encoded;
    size_t num_encoded, capacity;
    int64_t num_bad, dropped, longest;
    Text bad;
} ChatSlot;

typedef struct {
    const ChatJob *job;
    ChatSummary *summary;
    Corpus corpus;
    StandardInput standard_input;
    CorpusReader reader;
    atomic_bool cancelled;
    Tokenizer *tokenizer;
    ChatFormat format;
    ChatWorker *workers;
    ChatSlot *slots;
    int num_slots;
    ChatPacker packer;
    int64_t shown;
    bool enough; // nothing is written, and what is to be shown has been
    ProgressLine progress;
    Done done;
} ChatRun;

static Status check_stop(const ChatRun *run) {
    if (!run->job->stopped || !*run->job->stopped) return OK;
    return fail(INTERRUPTED, "stopped by a signal: nothing was written");
}

// ---- one conversation, on a thread ------------------------------------------------------------------------

// The last message, without control characters of the data, after its place.
static Status about(const Document *d, Status status) {
    Text why = {0};
    text_add_visible(&why, fail_message(), strlen(fail_message()));
    (void)fail(status, "%s:%" PRId64 ": %.700s", d->path, d->line, text_string(&why));
    text_free(&why);
    return status;
}

static Status read_line(const ChatRun *run, ChatWorker *w, ChatSlot *slot, const Document *d,
                        size_t *chosen) {
    const char *line = slot->batch.raw + d->start;
    Json *root;
    if (!d->line)
        return fail(ERR_DATA,
                    "%s: conversations are read from JSON lines: name the file .jsonl, one object a line; "
                    "`jq -c '.[]' FILE` makes lines of a list",
                    d->path);
    if (d->too_long) return fail(ERR_DATA, "%s:%" PRId64 ": a line of more than 64 MiB", d->path, d->line);
    char what[4200];
    snprintf(what, sizeof what, "%s:%" PRId64, d->path, d->line);
    Status status = json_parse(&root, line, d->bytes, what);
    if (status != OK && d->line == 1) TRY(refuse_list(what, NULL, line[0]));
    TRY(status);
    status = refuse_list(what, root, 0);
    if (status != OK) json_free(root);
    TRY(status);
    status = run->job->preferences ? chat_encode_pair(w, root, &slot->tokens, &slot->mask, chosen)
                                   : chat_encode(w, root, &slot->tokens, &slot->mask);
    json_free(root);
    return status == OK || status == INTERRUPTED ? status : about(d, status);
}

static bool any_trained(const int32_t *mask, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (mask[i]) return true;
    return false;
}

static Status refuse_long(const ChatRun *run, const Document *d, size_t count, size_t chosen) {
    char parts[80] = "", longer[100] = "give a larger --seq-length, or ";
    int length = run->job->seq_length, window = run->job->window;
    bool pair = run->job->preferences;
    if (pair)
        snprintf(parts, sizeof parts, " (%zu with the chosen answer, %zu with the other)", chosen,
                 count - chosen);
    if (window > length)
        snprintf(longer, sizeof longer, "give a larger --seq-length (the model's window: %d), or ", window);
    else if (window)
        snprintf(longer, sizeof longer, "the model's window is %d: give ", window);
    return fail(
        ERR_DATA,
        "%s:%" PRId64
        ": a %s of %zu tokens%s, but a sample has %d (--seq-length %d and the one that follows): %s--too-long "
        "%s",
        d->path, d->line, pair ? "pair" : "conversation", count, parts, length + 1, length, longer,
        pair ? "drop" : "truncate or drop");
}

// Both answers of a pair need tokens that are trained.
static bool can_train(const int32_t *mask, size_t count, size_t chosen) {
    return any_trained(mask + chosen, count - chosen) && (!chosen || any_trained(mask, chosen));
}

// Refuses, truncates or drops a conversation, or a pair, that is longer than a sample. Sets *keep.
static Status fit(const ChatRun *run, const Document *d, ChatSlot *slot, size_t before, size_t chosen,
                  bool *keep) {
    size_t count = slot->tokens.count - before, room = (size_t)run->job->seq_length + 1;
    bool too_long = count > room;
    if ((int64_t)count > slot->longest) slot->longest = (int64_t)count;
    *keep = true;
    if (too_long && run->job->too_long == CHAT_REFUSE) return refuse_long(run, d, count, chosen);
    if (too_long) slot->tokens.count = slot->mask.count = before + room;
    *keep = !(too_long && run->job->too_long == CHAT_DROP) &&
            can_train(slot->mask.ids + before, slot->mask.count - before, chosen);
    if (!*keep && !too_long)
        return fail(ERR_DATA,
                    "%s:%" PRId64
                    ": the answers of this conversation are empty: there is nothing to train on",
                    d->path, d->line);
    return OK;
}

static Status take_document(const ChatRun *run, ChatWorker *w, ChatSlot *slot, const Document *d) {
    size_t before = slot->tokens.count, chosen = 0;
    bool keep;
    Status status = read_line(run, w, slot, d, &chosen);
    int64_t whole = (int64_t)(slot->tokens.count - before);
    if (status == OK) status = fit(run, d, slot, before, chosen, &keep);
    if (status != OK || !keep) {
        slot->tokens.count = slot->mask.count = before;
        slot->dropped += status == OK;
        return status;
    }
    array_grow(&slot->encoded, sizeof *slot->encoded, slot->num_encoded + 1, &slot->capacity);
    slot->encoded[slot->num_encoded++] =
        (Encoded){d->path, d->line, whole, slot->tokens.count - before, chosen};
    return OK;
}

// Leaves a bad line out with skip_bad_lines.
static Status forgive(const ChatRun *run, ChatSlot *slot, const Document *d, Status status) {
    if (status != ERR_DATA || !d->line) return status;
    char why[700];
    snprintf(why, sizeof why, "%s", fail_message());
    if (!run->job->skip_bad_lines) return fail(status, "%s; --skip-bad-lines leaves such lines out", why);
    if (slot->num_bad++ < MAX_BAD_SHOWN) text_add(&slot->bad, "    %s\n", why);
    return OK;
}

// ---- the steps of the pool ------------------------------------------------------------------------------------

static Status produce(void *self, int at, size_t *weight, bool *end) {
    ChatRun *run = self;
    DocumentBatch *batch = &run->slots[at].batch;
    TRY(corpus_read(&run->reader, batch));
    *weight = batch->raw_bytes;
    *end = batch->count == 0;
    return OK;
}

static Status work(void *self, int worker, int at) {
    ChatRun *run = self;
    ChatSlot *slot = &run->slots[at];
    slot->tokens.count = slot->mask.count = slot->num_encoded = slot->bad.size = 0;
    slot->num_bad = slot->dropped = slot->longest = 0;
    for (size_t i = 0; i < slot->batch.count; i++) {
        const Document *d = &slot->batch.documents[i];
        TRY(check_stop(run));
        Status status = take_document(run, &run->workers[worker], slot, d);
        if (status != OK) TRY(forgive(run, slot, d, status));
    }
    return OK;
}

static Status show_part(ChatRun *run, const Encoded *e, const char *answer, const int32_t *tokens,
                        const int32_t *mask, size_t count) {
    return run->job->show(run->job->self,
                          &(ChatSample){.path = e->path,
                                        .line = e->line,
                                        .answer = answer,
                                        .tokenizer = run->tokenizer,
                                        .tokens = tokens,
                                        .mask = mask,
                                        .count = count,
                                        .whole = (int64_t)count + e->whole - (int64_t)e->count});
}

static Status show(ChatRun *run, const Encoded *e, const int32_t *tokens, const int32_t *mask) {
    if (!run->job->show || run->shown == run->job->num_shown) return OK;
    run->shown++;
    if (!e->chosen) return show_part(run, e, NULL, tokens, mask, e->count);
    TRY(show_part(run, e, "chosen", tokens, mask, e->chosen));
    return show_part(run, e, "rejected", tokens + e->chosen, mask + e->chosen, e->count - e->chosen);
}

static Status keep(ChatRun *run, const Encoded *e, const int32_t *tokens, const int32_t *mask) {
    ChatSummary *s = run->summary;
    s->conversations++;
    s->tokens += (int64_t)e->count;
    s->truncated += e->whole > (int64_t)e->count;
    for (size_t i = 0; i < e->count; i++) s->trained += mask[i];
    TRY(show(run, e, tokens, mask));
    if (!run->job->output_prefix) return OK;
    return e->chosen ? chat_packer_add_pair(&run->packer, tokens, mask, e->chosen, e->count - e->chosen)
                     : chat_packer_add(&run->packer, tokens, mask, e->count);
}

static void note(ChatRun *run, const ChatSlot *slot) {
    ChatSummary *s = run->summary;
    const char *line = text_string(&slot->bad);
    for (int64_t i = s->bad_lines; i < MAX_BAD_SHOWN && *line; i++) {
        int length = (int)strcspn(line, "\n");
        text_add(&s->left_out, "%.*s\n", length, line);
        line += length + 1;
    }
    s->bad_lines += slot->num_bad;
    s->dropped += slot->dropped;
    if (slot->longest > s->longest) s->longest = slot->longest;
    double share = run->corpus.endless || !run->corpus.bytes
                       ? NAN
                       : fmin(1, (double)slot->batch.position / (double)run->corpus.bytes);
    run->done = (Done){slot->batch.bytes_read, share};
}

static Status consume(void *self, int at) {
    ChatRun *run = self;
    ChatSlot *slot = &run->slots[at];
    const int32_t *tokens = slot->tokens.ids, *mask = slot->mask.ids;
    TRY(check_stop(run));
    for (size_t i = 0; i < slot->num_encoded; i++) {
        run->enough = !run->job->output_prefix && run->shown == run->job->num_shown;
        if (run->enough) return fail(ERR_OTHER, "enough was shown");
        TRY(keep(run, &slot->encoded[i], tokens, mask));
        tokens += slot->encoded[i].count;
        mask += slot->encoded[i].count;
    }
    note(run, slot);
    return OK;
}

static Status tick(void *self) {
    ChatRun *run = self;
    progress_update(&run->progress, run->done);
    return check_stop(run);
}

static void cancel(void *self) { ((ChatRun *)self)->cancelled = true; }

// ---- the whole job ----------------------------------------------------------------------------------------------

static Status open_tools(ChatRun *run) {
    const ChatJob *job = run->job;
    run->num_slots = ordered_pool_slots(job->workers);
    run->workers = calloc((size_t)job->workers, sizeof *run->workers);
    run->slots = calloc((size_t)run->num_slots, sizeof *run->slots);
    CHECK(run->workers && run->slots, "no memory for %d workers", job->workers);
    TRY(tokenizer_open_path(&run->tokenizer, job->tokenizer_path));
    tokenizer_print_note(run->tokenizer);
    run->summary->vocab_size = tokenizer_vocab_size(run->tokenizer);
    TRY(chat_format_open(&run->format, run->tokenizer, job->tokenizer_path, job->template));
    run->format.last_answer_only = job->last_answer_only;
    run->format.stopped = job->stopped;
    for (int i = 0; i < job->workers; i++) TRY(chat_worker_open(&run->workers[i], &run->format));
    if (!job->output_prefix) return OK;
    return chat_packer_open(&run->packer, job->output_prefix, run->summary->vocab_size,
                            (size_t)job->seq_length + 1,
                            job->preferences ? PACK_PAIRS
                            : job->pack      ? PACK
                                             : PACK_NOTHING);
}

static void close_tools(ChatRun *run) {
    chat_packer_close(&run->packer);
    for (int i = 0; run->slots && i < run->num_slots; i++) {
        token_list_free(&run->slots[i].tokens);
        token_list_free(&run->slots[i].mask);
        free(run->slots[i].encoded);
        text_free(&run->slots[i].bad);
        batch_free(&run->slots[i].batch);
    }
    free(run->slots);
    for (int i = 0; run->workers && i < run->job->workers; i++) chat_worker_close(&run->workers[i]);
    free(run->workers);
    chat_format_close(&run->format);
    tokenizer_close(run->tokenizer);
    corpus_close(&run->corpus);
    text_free(&run->standard_input.kept);
}

static Status read_all(ChatRun *run) {
    ReadOptions options = {.max_bytes = run->job->max_bytes,
                           .skip_bad_lines = run->job->skip_bad_lines,
                           .standard_input = &run->standard_input,
                           .cancelled = &run->cancelled};
    run->progress = progress_start(run->job->progress, run->job->plain, "encoding conversations", "MB", 1e6);
    run->done = (Done){0, NAN};
    corpus_reader_open(&run->reader, &run->corpus, options);
    PoolSteps steps = {produce, work, consume, tick, cancel};
    Status status = ordered_pool_run(&steps, run, run->job->workers, (size_t)run->num_slots * BATCH_BYTES);
    progress_end(&run->progress, run->done);
    run->summary->bytes = run->reader.bytes;
    corpus_reader_close(&run->reader);
    return run->enough ? OK : status;
}

// A run that trains on the data writes both into its checkpoints: the template, and the token that ends an answer.
static Status save_use(ChatRun *run) {
    const Text *template = &run->format.carried;
    Text path = {0}, text = {0};
    int32_t end;
    if (template->size) tokenizer_set_template(run->tokenizer, template->data, template->size);
    TRY(chat_turn_end(&run->workers[0], &end));
    text_add(&path, "%s.generation_config.json", run->job->output_prefix);
    text_add(&text, "{\"eos_token_id\": %d}\n", end);
    Status status = OK;
    if (end >= 0)
        status = file_write(path.data, text.data, text.size);
    else
        (void)remove(path.data); // of an earlier run
    text_free(&path);
    text_free(&text);
    return status;
}

// The mask gets its name before the tokens do, so that tokens are never there without it.
static Status publish(ChatRun *run) {
    TRY(chat_packer_flush(&run->packer));
    run->summary->samples = run->packer.samples;
    TRY(indexed_writer_retire_old(run->packer.tokens));
    TRY(indexed_writer_retire_old(run->packer.mask));
    TRY(save_use(run));
    TRY(tokenizer_save(run->tokenizer, run->job->output_prefix));
    TRY(indexed_writer_finish(run->packer.mask));
    return indexed_writer_finish(run->packer.tokens);
}

static Status run_all(ChatRun *run) {
    TRY(corpus_open(&run->corpus, run->job->inputs, run->job->num_inputs));
    (void)corpus_keep_lines(&run->corpus);
    run->summary->other_files = run->corpus.left_out;
    TRY(open_tools(run));
    TRY(read_all(run));
    if (!run->summary->conversations && !run->summary->bytes)
        return fail(ERR_DATA, "--input %s: no conversation: %s", run->job->inputs[0],
                    run->corpus.num_files == 0   ? "the folder has no files"
                    : run->corpus.num_files == 1 ? "the input is empty"
                                                 : "all files are empty");
    if (!run->summary->conversations)
        return fail(ERR_DATA,
                    "--input %s: no %s is left: %" PRId64 " are too long, %" PRId64 " lines are left out",
                    run->job->inputs[0], run->job->preferences ? "pair" : "conversation",
                    run->summary->dropped, run->summary->bad_lines);
    return run->job->output_prefix ? publish(run) : OK;
}

Status chat_prepare(const ChatJob *job, ChatSummary *summary) {
    CHECK(job->num_inputs > 0 && job->workers >= 1 && job->workers <= MAX_WORKERS && job->seq_length >= 1,
          "a job of %d inputs and %d workers", job->num_inputs, job->workers);
    *summary = (ChatSummary){0};
    ChatRun *run = calloc(1, sizeof *run);
    CHECK(run, "no memory for a job");
    run->job = job;
    run->summary = summary;
    Status status = run_all(run);
    close_tools(run);
    free(run);
    if (status != OK) text_free(&summary->left_out);
    return status;
}

const char *chat_template_source(const char *name, Text *names) {
    const ChatTemplate *found = chat_template_named(name);
    chat_template_names(names);
    return found ? found->source : NULL;
}
