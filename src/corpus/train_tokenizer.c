// Trains a tokenizer on files: the first pass of preprocess, on one thread.
#include "corpus/encoding.h"

static Status count_pieces(const Corpus *corpus, Worker *worker, BatchSlot *slot, int64_t max_bytes,
                           PieceCounter *counter, LeftOut *left_out) {
    atomic_bool cancelled = false;
    StandardInput standard_input = {0};
    ReadOptions options = {.max_bytes = max_bytes,
                           .enough_bytes = PREPROCESS_TRAIN_BYTES,
                           .may_cut = true,
                           .skip_bad_lines = worker->skip_bad_lines,
                           .standard_input = &standard_input,
                           .cancelled = &cancelled};
    CorpusReader reader;
    corpus_reader_open(&reader, corpus, options);
    Status status = corpus_read(&reader, &slot->batch);
    while (status == OK && slot->batch.count) {
        status = encode_batch(worker, slot);
        piece_counter_merge(counter, slot->counter);
        slot_note_bad(slot, &left_out->bad_lines, &left_out->which);
        slot_trim(slot, worker->json.num_keys);
        if (status == OK) status = corpus_read(&reader, &slot->batch);
    }
    corpus_reader_close(&reader);
    return status;
}

static bool go_on(void *self, int num_tokens) {
    const TrainingText *text = self;
    (void)num_tokens;
    return !text->stopped || !*text->stopped;
}

static Status train(Tokenizer **tokenizer, const Corpus *corpus, TrainingText *text, Worker *worker,
                    BatchSlot *slot, PieceCounter *counter, int vocab_size, LeftOut *left_out) {
    TRY(piece_counter_open(&slot->counter));
    TRY(count_pieces(corpus, worker, slot, text->max_bytes, counter, left_out));
    TRY(tokenizer_train(tokenizer, counter, vocab_size, go_on, text));
    if (go_on(text, 0)) return OK;
    tokenizer_close(*tokenizer);
    *tokenizer = NULL;
    return fail(INTERRUPTED, "stopped by a signal: no tokenizer was written");
}

Status tokenizer_train_text(Tokenizer **tokenizer, TrainingText text, int vocab_size, LeftOut *left_out) {
    Corpus corpus;
    Worker worker = {0};
    BatchSlot slot = {0};
    *tokenizer = NULL;
    TRY(corpus_open(&corpus, text.inputs, text.num_inputs));
    worker_open(&worker, text.json_keys, text.num_json_keys, text.skip_bad_lines, text.stopped);
    slot_open(&slot, text.num_json_keys);
    PieceCounter *counter;
    Status status = piece_counter_open(&counter);
    if (status == OK)
        status = train(tokenizer, &corpus, &text, &worker, &slot, counter, vocab_size, left_out);
    piece_counter_close(counter);
    slot_close(&slot, text.num_json_keys);
    worker_close(&worker);
    corpus_close(&corpus);
    return status;
}
