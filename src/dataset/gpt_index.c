// Computes the three indices of a dataset: shuffled documents, starts of samples, shuffled samples.
#include "dataset/gpt_index.h"
#include "base/hash.h"
#include "base/text.h"
#include "dataset/random_state.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// The numbers that decide the sizes of the indices.
typedef struct {
    int64_t num_tokens;    // T, of one epoch
    int64_t num_sequences; // of one epoch
    int64_t num_epochs;    // E
    int64_t samples;       // of all epochs
    int64_t whole_samples; // P, of all epochs but the last when that one is separate, else of all
    bool separate;
} Plan;

enum { DOCUMENTS, STARTS, DRAWN };

static int64_t count_tokens(const IndexedDataset *data, SplitRange range) {
    int64_t tokens = 0;
    for (int64_t i = range.first; i < range.end; i++) tokens += indexed_dataset_length(data, i);
    return tokens;
}

// Finds the least E with E*T >= wanted*s + 1, and whether the last epoch is separate. It is when less than 80 % of
// its samples are wanted: shuffled with the others, it would repeat some of its documents and never show the rest.
static void plan_epochs(Plan *plan, int64_t wanted, int64_t s) {
    int64_t tokens = plan->num_tokens;
    plan->num_epochs = wanted ? (wanted * s + 1 + tokens - 1) / tokens : 1;
    plan->samples = (plan->num_epochs * tokens - 1) / s;
    plan->whole_samples = plan->samples;
    if (plan->num_epochs == 1) return;
    int64_t before = ((plan->num_epochs - 1) * tokens - 1) / s, last = wanted - before,
            per_epoch = (tokens - 1) / s;
    CHECK(last >= 0 && last <= per_epoch + 1, "%" PRId64 " samples in the last epoch of at most %" PRId64,
          last, per_epoch);
    plan->separate = last < (int64_t)(0.80 * (double)per_epoch);
    if (plan->separate) plan->whole_samples = before;
}

static Status make_plan(Plan *plan, const GptIndexSpec *spec) {
    SplitRange range = spec->range;
    const char *name = indexed_dataset_name(spec->data);
    *plan = (Plan){.num_tokens = count_tokens(spec->data, range), .num_sequences = range.end - range.first};
    if (plan->num_tokens == 0)
        return fail(ERR_DATA, "%s: sequences %" PRId64 " to %" PRId64 " hold no token", name, range.first,
                    range.end);
    int64_t need, total, positions;
    bool overflow = __builtin_mul_overflow(spec->num_samples, (int64_t)spec->seq_length, &need) ||
                    __builtin_add_overflow(need, plan->num_tokens, &total);
    if (!overflow) plan_epochs(plan, spec->num_samples, spec->seq_length);
    if (overflow || __builtin_mul_overflow(plan->num_epochs, plan->num_sequences, &positions))
        return fail(ERR_UNAVAILABLE, "%" PRId64 " samples of %d tokens are more than can be counted",
                    spec->num_samples, spec->seq_length);
    if (plan->samples == 0)
        return fail(ERR_DATA,
                    "%s: sequences %" PRId64 " to %" PRId64 " hold %" PRId64
                    " tokens, one sample takes %d: shorten --seq-length or give more text",
                    name, range.first, range.end, plan->num_tokens, spec->seq_length + 1);
    return OK;
}

static IndexArray numbers(const char *name, const char *type, int64_t rows, int columns) {
    return (IndexArray){
        .name = name, .type = type, .item_bytes = (size_t)(type[2] - '0'), .rows = rows, .columns = columns};
}

// Numbers are as wide as in Megatron-LM's files. A sequence has less than 2^31 tokens.
static void describe(GptIndex *index, const Plan *plan, const GptIndexSpec *spec) {
    index->num_epochs = plan->num_epochs;
    index->separate = plan->separate;
    index->num_documents = plan->num_epochs * plan->num_sequences;
    index->num_samples = plan->samples;
    bool wide_starts = spec->wide || index->num_documents > INT32_MAX;
    bool wide_drawn = spec->wide || index->num_samples >= UINT32_MAX - 1;
    index->arrays.items[DOCUMENTS] = numbers("document_index", "<i4", index->num_documents, 0);
    index->arrays.items[STARTS] =
        numbers("sample_index", wide_starts ? "<i8" : "<i4", index->num_samples + 1, 2);
    index->arrays.items[DRAWN] = numbers("shuffle_index", wide_drawn ? "<i8" : "<u4", index->num_samples, 0);
    index->arrays.count = 3;
}

// ---- Filling ----------------------------------------------------------------------------------------------

static void fill_documents(int32_t *documents, const Plan *plan, SplitRange range, RandomState *random) {
    int64_t count = plan->num_epochs * plan->num_sequences;
    for (int64_t i = 0; i < count; i++) documents[i] = (int32_t)(range.first + i % plan->num_sequences);
    int64_t together = count - (plan->separate ? plan->num_sequences : 0);
    random_state_shuffle(random, documents, together);
    random_state_shuffle(random, documents + together, count - together);
}

// Moves from the start of a sample to its last token, where the next one starts: a sample has s + 1 tokens.
static SampleStart next_start(const IndexArray *documents, const IndexedDataset *data, SampleStart at,
                              int64_t s) {
    const int32_t *sequences = documents->data;
    int64_t left = s + 1;
    for (;;) {
        CHECK(at.position < documents->rows, "the sample index walks past %" PRId64 " documents",
              documents->rows);
        int64_t length = indexed_dataset_length(data, sequences[at.position]) - at.offset;
        if (left <= length) break;
        left -= length;
        at = (SampleStart){at.position + 1, 0};
    }
    at.offset += left - 1;
    return at;
}

static void fill_starts(IndexArrays *arrays, const IndexedDataset *data, int64_t s) {
    const IndexArray *starts = &arrays->items[STARTS];
    int32_t *narrow = starts->data;
    int64_t *wide = starts->data;
    SampleStart at = {0, 0};
    for (int64_t i = 0; i < starts->rows; i++) {
        if (i) at = next_start(&arrays->items[DOCUMENTS], data, at, s);
        if (starts->item_bytes == 8) {
            wide[2 * i] = at.position;
            wide[2 * i + 1] = at.offset;
        } else {
            narrow[2 * i] = (int32_t)at.position;
            narrow[2 * i + 1] = (int32_t)at.offset;
        }
    }
}

// The shuffle moves unsigned numbers of 32 bits as signed ones.
static void fill_drawn(IndexArray *drawn, const Plan *plan, RandomState *random) {
    int64_t whole = plan->whole_samples, *wide = drawn->data;
    if (drawn->item_bytes == 8) {
        for (int64_t i = 0; i < drawn->rows; i++) wide[i] = i;
        random_state_shuffle_wide(random, wide, whole);
        random_state_shuffle_wide(random, wide + whole, drawn->rows - whole);
        return;
    }
    uint32_t *narrow = drawn->data;
    for (int64_t i = 0; i < drawn->rows; i++) narrow[i] = (uint32_t)i;
    random_state_shuffle(random, drawn->data, whole);
    random_state_shuffle(random, (int32_t *)drawn->data + whole, drawn->rows - whole);
}

typedef struct {
    const GptIndexSpec *spec;
    const Plan *plan;
} Job;

static void fill(const void *self, IndexArrays *arrays) {
    const Job *job = self;
    RandomState random;
    random_state_seed(&random, (uint32_t)job->spec->seed);
    fill_documents(arrays->items[DOCUMENTS].data, job->plan, job->spec->range, &random);
    fill_starts(arrays, job->spec->data, job->spec->seq_length);
    fill_drawn(&arrays->items[DRAWN], job->plan, &random);
}

// ---- Reading ----------------------------------------------------------------------------------------------

static SampleStart start_at(const IndexArray *starts, int64_t i) {
    if (starts->item_bytes == 8) return ((const SampleStart *)starts->data)[i];
    const int32_t *narrow = starts->data;
    return (SampleStart){narrow[2 * i], narrow[2 * i + 1]};
}

static int64_t drawn_at(const IndexArray *drawn, int64_t i) {
    return drawn->item_bytes == 8 ? ((const int64_t *)drawn->data)[i] : ((const uint32_t *)drawn->data)[i];
}

SampleStart gpt_index_start(const GptIndex *index, int64_t sample) {
    return start_at(&index->arrays.items[STARTS], sample);
}

int64_t gpt_index_drawn(const GptIndex *index, int64_t i) { return drawn_at(&index->arrays.items[DRAWN], i); }

// Checks that reading any sample stays inside the data and the arrays.
static bool is_sound(const void *self, const IndexArrays *arrays) {
    const SplitRange range = ((const Job *)self)->spec->range;
    const IndexArray *documents = &arrays->items[DOCUMENTS], *starts = &arrays->items[STARTS];
    const IndexArray *drawn = &arrays->items[DRAWN];
    const int32_t *sequences = documents->data;
    bool sound = true;
    for (int64_t i = 0; i < documents->rows; i++)
        sound &= sequences[i] >= range.first && sequences[i] < range.end;
    for (int64_t i = 0; i < starts->rows; i++) {
        SampleStart at = start_at(starts, i);
        sound &= at.position >= 0 && at.position < documents->rows && at.offset >= 0;
    }
    for (int64_t i = 0; i < drawn->rows; i++)
        sound &= drawn_at(drawn, i) >= 0 && drawn_at(drawn, i) < drawn->rows;
    return sound;
}

// The order depends on the lengths of sequences, not on their tokens or paths.
static uint64_t hash_lengths(const IndexedDataset *data, SplitRange range) {
    enum { BLOCK = 4096 };
    int32_t lengths[BLOCK];
    uint64_t hash = 0;
    for (int64_t first = range.first; first < range.end; first += BLOCK) {
        int count = range.end - first < BLOCK ? (int)(range.end - first) : BLOCK;
        for (int i = 0; i < count; i++) lengths[i] = indexed_dataset_length(data, first + i);
        hash = hash64_from(lengths, (size_t)count * sizeof *lengths, hash);
    }
    return hash;
}

static void add_description(Text *out, const GptIndexSpec *spec) {
    text_add(out,
             "trireme, order of samples, version 1\n"
             "sequences %" PRId64 " to %" PRId64 ", lengths %016" PRIx64 "\n"
             "samples wanted %" PRId64 "\nsequence length %d\nseed %d\n%s",
             spec->range.first, spec->range.end, hash_lengths(spec->data, spec->range), spec->num_samples,
             spec->seq_length, spec->seed, spec->wide ? "64 bits\n" : "");
}

Status gpt_index_open(GptIndex *index, const GptIndexSpec *spec) {
    CHECK(spec->num_samples >= 0 && spec->seq_length > 0 && spec->seed >= 0,
          "%" PRId64 " samples, length %d, seed %d", spec->num_samples, spec->seq_length, spec->seed);
    *index = (GptIndex){0};
    if (spec->conversations) return chat_index_open(index, spec);
    Plan plan;
    TRY(make_plan(&plan, spec));
    describe(index, &plan, spec);
    Text description = {0};
    char kind[32];
    snprintf(kind, sizeof kind, "GPTDataset-%s", split_name(spec->split));
    if (spec->cache) add_description(&description, spec);
    IndexRecipe recipe = {spec->cache, kind, text_string(&description), fill, is_sound, &(Job){spec, &plan}};
    Status status = index_arrays_open(&index->arrays, &recipe);
    text_free(&description);
    index->documents = index->arrays.items[DOCUMENTS].data;
    return status;
}

void gpt_index_close(GptIndex *index) {
    index_arrays_close(&index->arrays);
    *index = (GptIndex){0};
}
