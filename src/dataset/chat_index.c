// The order of samples of a data set of conversations, in which a document is a sample.
#include "base/hash.h"
#include "base/text.h"
#include "dataset/gpt_index.h"
#include "dataset/random_state.h"
#include <inttypes.h>
#include <stdio.h>

enum { SEQUENCES, STARTS, DRAWN };

static int64_t num_documents(const GptIndexSpec *spec) { return spec->range.end - spec->range.first; }

static int64_t first_sequence(const GptIndexSpec *spec) {
    return indexed_dataset_document(spec->data, spec->range.first);
}

static void fill(const void *self, IndexArrays *arrays) {
    const GptIndexSpec *spec = self;
    int32_t *sequences = arrays->items[SEQUENCES].data;
    int64_t *starts = arrays->items[STARTS].data, *drawn = arrays->items[DRAWN].data,
            count = num_documents(spec);
    for (int64_t i = 0; i < arrays->items[SEQUENCES].rows; i++)
        sequences[i] = (int32_t)(first_sequence(spec) + i);
    for (int64_t i = 0; i <= count; i++) {
        starts[2 * i] = indexed_dataset_document(spec->data, spec->range.first + i) - first_sequence(spec);
        starts[2 * i + 1] = 0;
    }
    RandomState random;
    random_state_seed(&random, (uint32_t)spec->seed);
    for (int64_t at = 0; at < arrays->items[DRAWN].rows; at += count) {
        for (int64_t i = 0; i < count; i++) drawn[at + i] = i;
        random_state_shuffle_wide(&random, drawn + at, count);
    }
}

static bool is_sound(const void *self, const IndexArrays *arrays) {
    const GptIndexSpec *spec = self;
    const int32_t *sequences = arrays->items[SEQUENCES].data;
    const int64_t *starts = arrays->items[STARTS].data, *drawn = arrays->items[DRAWN].data;
    int64_t rows = arrays->items[SEQUENCES].rows;
    bool sound = true;
    for (int64_t i = 0; i < rows; i++) sound &= sequences[i] == first_sequence(spec) + i;
    for (int64_t i = 0; i < arrays->items[STARTS].rows; i++)
        sound &= starts[2 * i] >= 0 && starts[2 * i] <= rows && starts[2 * i + 1] == 0;
    for (int64_t i = 0; i < arrays->items[DRAWN].rows; i++)
        sound &= drawn[i] >= 0 && drawn[i] < num_documents(spec);
    return sound;
}

// A sample has at most seq_length + 1 tokens, and at least two, the least that trains something.
static Status check_lengths(const GptIndexSpec *spec, uint64_t *hash) {
    for (int64_t d = spec->range.first; d < spec->range.end; d++) {
        int64_t tokens = 0, first = indexed_dataset_document(spec->data, d),
                end = indexed_dataset_document(spec->data, d + 1);
        for (int64_t s = first; s < end; s++) tokens += indexed_dataset_length(spec->data, s);
        if (tokens < 2 || tokens > (int64_t)spec->seq_length + 1)
            return fail(ERR_DATA,
                        "%s: sample %" PRId64 " has %" PRId64
                        " tokens, but --seq-length %d and the one that follows are "
                        "%d: give --seq-length as it was given to `trireme prepare-chat`",
                        indexed_dataset_name(spec->data), d, tokens, spec->seq_length, spec->seq_length + 1);
        int64_t both[] = {first, tokens};
        *hash = hash64_from(both, sizeof both, *hash);
    }
    return OK;
}

Status chat_index_open(GptIndex *index, const GptIndexSpec *spec) {
    int64_t count = num_documents(spec), samples;
    uint64_t hash = 0;
    if (count <= 0) return fail(ERR_DATA, "%s: there is no sample", indexed_dataset_name(spec->data));
    TRY(check_lengths(spec, &hash));
    index->num_epochs = spec->num_samples > count ? (spec->num_samples - 1) / count + 1 : 1;
    if (__builtin_mul_overflow(index->num_epochs, count, &samples) || samples > INT64_MAX / 16)
        return fail(ERR_UNAVAILABLE, "%" PRId64 " samples are more than can be counted", spec->num_samples);
    index->num_samples = samples;
    index->num_documents = indexed_dataset_document(spec->data, spec->range.end) - first_sequence(spec);
    index->arrays.items[SEQUENCES] =
        (IndexArray){.name = "document_index", .type = "<i4", .item_bytes = 4, .rows = index->num_documents};
    index->arrays.items[STARTS] =
        (IndexArray){.name = "sample_index", .type = "<i8", .item_bytes = 8, .rows = count + 1, .columns = 2};
    index->arrays.items[DRAWN] =
        (IndexArray){.name = "shuffle_index", .type = "<i8", .item_bytes = 8, .rows = samples};
    index->arrays.count = 3;
    Text description = {0};
    char kind[40];
    snprintf(kind, sizeof kind, "ChatDataset-%s", split_name(spec->split));
    text_add(&description,
             "trireme, order of conversations, version 1\ndocuments %" PRId64 " to %" PRId64
             ", lengths %016" PRIx64 "\nsamples %" PRId64 "\nseed %d\n",
             spec->range.first, spec->range.end, hash, samples, spec->seed);
    IndexRecipe recipe = {spec->cache, kind, text_string(&description), fill, is_sound, spec};
    Status status = index_arrays_open(&index->arrays, &recipe);
    text_free(&description);
    index->documents = index->arrays.items[SEQUENCES].data;
    return status;
}

int64_t chat_index_end(const GptIndex *index, int64_t sample) {
    return gpt_index_start(index, sample + 1).position;
}
