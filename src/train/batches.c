#include "train/internal.h"
#include <stdlib.h>
#include <string.h>

static bool is_null_tokenizer(const Options *o) {
    return o->tokenizer_type && !strcmp(o->tokenizer_type, "NullTokenizer");
}

static Status open_tokenizer(const Options *o, Tokenizer **tokenizer) {
    if (is_null_tokenizer(o)) return tokenizer_open_null(tokenizer, o->vocab_size);
    if (o->vocab_file && o->merge_file) return tokenizer_open(tokenizer, o->vocab_file, o->merge_file);
    if (o->tokenizer_model) return tokenizer_open_beside(tokenizer, o->tokenizer_model);
    return tokenizer_open_beside(tokenizer, o->data_path.items[0]);
}

// Whether the options name a tokenizer; without one --vocab-size alone will do.
static bool names_tokenizer(const Options *o) {
    return is_null_tokenizer(o) || o->vocab_file || o->merge_file || o->tokenizer_model;
}

static Status read_tokenizer(const Options *o, int *vocabulary, int *eod) {
    Tokenizer *tokenizer;
    Status status = open_tokenizer(o, &tokenizer);
    if (status == ERR_NO_INPUT && !names_tokenizer(o)) {
        char why[512];
        snprintf(why, sizeof why, "%s", fail_message());
        return fail(status,
                    "no tokenizer beside --data-path %s: %s. Give --tokenizer-model, --vocab-file with "
                    "--merge-file, or --vocab-size",
                    o->data_path.items[0], why);
    }
    TRY(status);
    *vocabulary = tokenizer_vocab_size(tokenizer);
    *eod = tokenizer_eod(tokenizer);
    tokenizer_close(tokenizer);
    if (is_null_tokenizer(o) || o->vocab_size == INT_UNSET || o->vocab_size == *vocabulary) return OK;
    return fail(ERR_CONFIG, "--vocab-size %d differs from the tokenizer's %d: leave it out", o->vocab_size,
                *vocabulary);
}

Status batches_vocabulary(const Options *o, int *vocabulary, int *eod) {
    *vocabulary = o->vocab_size;
    *eod = -1;
    bool needed = o->vocab_size == INT_UNSET || o->eod_mask_loss || names_tokenizer(o);
    return needed ? read_tokenizer(o, vocabulary, eod) : OK;
}

Status batches_look(Batches *b, const Options *o) {
    IndexedDataset *data;
    TRY(indexed_dataset_open(&data, o->data_path.items[0], 0));
    indexed_dataset_close(data);
    return batches_vocabulary(o, &b->vocabulary, &b->eod);
}

// ---- how many samples (Megatron-LM's rule) ------------------------------------------------------

static int64_t wanted_validation_samples(const Options *o) {
    return (o->shape.train_iters / o->eval_interval + 1) * o->shape.eval_iters * o->shape.global_batch;
}

static Status open_split(const Options *o, const IndexedDataset *data, Split which, int64_t samples,
                         GptDataset **set) {
    SplitRange range;
    TRY(split_range(o->split, indexed_dataset_num_sequences(data), which, &range));
    return gpt_dataset_open(set, data, range, samples, o->seq_length, (int)o->seed);
}

// A small data set leaves nothing for validation in the default split: then nothing is evaluated.
static Status open_validation(Batches *b, const Options *o) {
    if (o->shape.eval_iters == 0 || !(o->shape.split[SPLIT_VALID] > 0)) return OK;
    Status status = open_split(o, b->data, SPLIT_VALID, wanted_validation_samples(o), &b->valid);
    return status == ERR_CONFIG && options_origin(o, "split") == FROM_DEFAULT ? OK : status;
}

static Status open_data(Batches *b, const Options *o) {
    if (!b->tokens && !b->labels) return OK;
    TRY(indexed_dataset_open(&b->data, o->data_path.items[0], b->vocabulary));
    TRY(open_split(o, b->data, SPLIT_TRAIN, o->shape.train_samples, &b->train));
    return open_validation(b, o);
}

Status batches_open(Batches *b, const Options *o, Place place, bool first, bool last) {
    b->tokens = first;
    b->labels = last;
    b->masked = o->eod_mask_loss;
    b->micro_batch = o->micro_batch_size;
    b->sequence = o->seq_length;
    b->dp = o->shape.dp;
    b->dp_rank = place.dp;
    TRY(open_data(b, o));
    if (!b->data) return OK;
    size_t count = (size_t)o->shape.num_microbatches * (size_t)b->micro_batch * (size_t)b->sequence;
    b->token_buffer = malloc(count * sizeof *b->token_buffer);
    b->label_buffer = malloc(count * sizeof *b->label_buffer);
    b->mask_buffer = malloc(count * sizeof *b->mask_buffer);
    if (!b->token_buffer || !b->label_buffer || !b->mask_buffer)
        return fail(ERR_OS, "no memory for a step's batches");
    return OK;
}

void batches_close(Batches *b) {
    gpt_dataset_close(b->train);
    gpt_dataset_close(b->valid);
    indexed_dataset_close(b->data);
    free(b->token_buffer);
    free(b->label_buffer);
    free(b->mask_buffer);
    *b = (Batches){0};
}

static void mask_ends(const Batches *b, size_t count) {
    for (size_t i = 0; i < count; i++) b->mask_buffer[i] = b->token_buffer[i] == b->eod ? 0.0f : 1.0f;
}

Status batches_load(Batches *b, const GptDataset *set, int64_t consumed, int num_microbatches, Batch *batch) {
    size_t one = (size_t)b->micro_batch * (size_t)b->sequence;
    *batch = (Batch){.num_microbatches = num_microbatches,
                     .consumed = consumed,
                     .tokens = b->token_buffer,
                     .labels = b->label_buffer,
                     .mask = b->masked ? b->mask_buffer : NULL};
    if (!b->data) return OK;
    bool tokens = b->tokens || b->masked;
    for (int k = 0; k < num_microbatches; k++) {
        BatchPlace place = {consumed, b->micro_batch, b->dp, b->dp_rank, k};
        TRY(batch_fill(set, place, tokens ? b->token_buffer + (size_t)k * one : NULL,
                       b->labels ? b->label_buffer + (size_t)k * one : NULL));
    }
    if (b->masked) mask_ends(b, one * (size_t)num_microbatches);
    return OK;
}
