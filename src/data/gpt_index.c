#include "data/gpt_index.h"
#include "data/random_state.h"
#include <inttypes.h>
#include <stdlib.h>

// What the sizes follow from.
typedef struct {
    int64_t num_tokens;    // T, of one epoch
    int64_t num_sequences; // of one epoch
    int64_t num_epochs;    // E
    int64_t samples;       // of all epochs
    int64_t whole_samples; // P, of all epochs but the last when that one is separate, else of all
    bool separate;
} Plan;

static int64_t count_tokens(const IndexedDataset *data, SplitRange range) {
    int64_t tokens = 0;
    for (int64_t i = range.first; i < range.end; i++) tokens += indexed_dataset_length(data, i);
    return tokens;
}

// The least E with E*T >= wanted*s + 1, and whether the last epoch stands apart: when fewer than 80 % of the
// samples it could give are wanted, shuffling it into the others would repeat some of its documents and never
// show the rest.
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

static Status make_plan(Plan *plan, const IndexedDataset *data, SplitRange range, int64_t wanted,
                        int seq_length) {
    *plan = (Plan){.num_tokens = count_tokens(data, range), .num_sequences = range.end - range.first};
    if (plan->num_tokens == 0)
        return fail(ERR_DATA, "sequences %" PRId64 " to %" PRId64 " of the dataset hold no token",
                    range.first, range.end);
    int64_t need, total;
    bool overflow = __builtin_mul_overflow(wanted, (int64_t)seq_length, &need) ||
                    __builtin_add_overflow(need, plan->num_tokens, &total) || wanted > INT32_MAX;
    if (!overflow) plan_epochs(plan, wanted, seq_length);
    int64_t positions;
    if (overflow || __builtin_mul_overflow(plan->num_epochs, plan->num_sequences, &positions) ||
        positions > INT32_MAX || plan->samples >= INT32_MAX)
        return fail(ERR_UNAVAILABLE,
                    "%" PRId64 " samples of %d tokens from %" PRId64 " sequences (%" PRId64
                    " tokens): an index would pass 2^31 entries",
                    wanted, seq_length, plan->num_sequences, plan->num_tokens);
    if (plan->samples == 0)
        return fail(ERR_DATA,
                    "sequences %" PRId64 " to %" PRId64 " hold %" PRId64
                    " tokens, one sample takes %d: shorten --seq-length or give more text",
                    range.first, range.end, plan->num_tokens, seq_length + 1);
    return OK;
}

static Status take_memory(GptIndex *index, const Plan *plan) {
    index->num_epochs = plan->num_epochs;
    index->separate = plan->separate;
    index->num_documents = plan->num_epochs * plan->num_sequences;
    index->num_samples = plan->samples;
    index->documents = calloc((size_t)index->num_documents, sizeof *index->documents);
    index->starts = calloc((size_t)plan->samples + 1, sizeof *index->starts);
    index->shuffle = calloc((size_t)plan->samples, sizeof *index->shuffle);
    if (index->documents && index->starts && index->shuffle) return OK;
    return fail(ERR_OS,
                "no memory for the indices of %" PRId64 " samples and %" PRId64 " sequences (%" PRId64 " MB)",
                index->num_samples, index->num_documents,
                (12 * index->num_samples + 4 * index->num_documents) / 1000000);
}

static void fill_documents(GptIndex *index, const Plan *plan, SplitRange range, RandomState *random) {
    for (int64_t i = 0; i < index->num_documents; i++)
        index->documents[i] = (int32_t)(range.first + i % plan->num_sequences);
    int64_t together = index->num_documents - (plan->separate ? plan->num_sequences : 0);
    random_state_shuffle(random, index->documents, together);
    random_state_shuffle(random, index->documents + together, index->num_documents - together);
}

// From the start of one sample to the start of the next, its last token: s + 1 tokens in all.
static SampleStart next_start(const GptIndex *index, const IndexedDataset *data, SampleStart at, int64_t s) {
    int64_t left = s + 1;
    for (;;) {
        CHECK(at.position < index->num_documents, "the sample index walks past %" PRId64 " documents",
              index->num_documents);
        int64_t length = indexed_dataset_length(data, index->documents[at.position]) - at.offset;
        if (left <= length) break;
        left -= length;
        at = (SampleStart){at.position + 1, 0};
    }
    at.offset += (int32_t)left - 1;
    return at;
}

static void fill_samples(GptIndex *index, const Plan *plan, const IndexedDataset *data, int64_t s,
                         RandomState *random) {
    for (int64_t i = 0; i < index->num_samples; i++) {
        index->starts[i + 1] = next_start(index, data, index->starts[i], s);
        index->shuffle[i] = (int32_t)i;
    }
    random_state_shuffle(random, index->shuffle, plan->whole_samples);
    random_state_shuffle(random, index->shuffle + plan->whole_samples,
                         index->num_samples - plan->whole_samples);
}

Status gpt_index_build(GptIndex *index, const IndexedDataset *data, SplitRange range, int64_t num_samples,
                       int seq_length, int seed) {
    CHECK(num_samples >= 0 && seq_length > 0 && seed >= 0, "%" PRId64 " samples, length %d, seed %d",
          num_samples, seq_length, seed);
    *index = (GptIndex){0};
    Plan plan;
    TRY(make_plan(&plan, data, range, num_samples, seq_length));
    Status status = take_memory(index, &plan);
    if (status != OK) {
        gpt_index_free(index);
        return status;
    }
    RandomState random;
    random_state_seed(&random, (uint32_t)seed);
    fill_documents(index, &plan, range, &random);
    fill_samples(index, &plan, data, seq_length, &random);
    return OK;
}

void gpt_index_free(GptIndex *index) {
    free(index->documents);
    free(index->starts);
    free(index->shuffle);
    *index = (GptIndex){0};
}
