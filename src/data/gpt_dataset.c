#include "data/data.h"
#include "data/gpt_index.h"
#include <inttypes.h>
#include <stdlib.h>

struct GptDataset {
    const IndexedDataset *data;
    GptIndex index;
    int seq_length;
};

Status gpt_dataset_open(GptDataset **set, const IndexedDataset *data, SplitRange range, int64_t num_samples,
                        int seq_length, int seed) {
    *set = calloc(1, sizeof **set);
    if (!*set) return fail(ERR_OS, "no memory for a dataset");
    (*set)->data = data;
    (*set)->seq_length = seq_length;
    Status status = gpt_index_build(&(*set)->index, data, range, num_samples, seq_length, seed);
    if (status == OK) return OK;
    free(*set);
    *set = NULL;
    return status;
}

void gpt_dataset_close(GptDataset *set) {
    if (!set) return;
    gpt_index_free(&set->index);
    free(set);
}

int64_t gpt_dataset_num_samples(const GptDataset *set) { return set->index.num_samples; }

int64_t gpt_dataset_num_epochs(const GptDataset *set) { return set->index.num_epochs; }

// Tokens [skip, skip + count) of a sample, to out[0], out[stride], ...
static Status gather(const GptDataset *set, int64_t sample, int64_t skip, int64_t count, int32_t *out,
                     size_t stride) {
    const GptIndex *index = &set->index;
    CHECK(sample >= 0 && sample < index->num_samples, "sample %" PRId64 " of %" PRId64, sample,
          index->num_samples);
    SampleStart start = index->starts[index->shuffle[sample]];
    int64_t position = start.position, offset = start.offset + skip;
    for (; count > 0; position++) {
        int32_t sequence = index->documents[position];
        int64_t left = indexed_dataset_length(set->data, sequence) - offset;
        if (left <= 0) {
            offset = -left;
            continue;
        }
        int64_t take = left < count ? left : count;
        TRY(indexed_dataset_read(set->data, sequence, offset, take, out, stride));
        out += (size_t)take * stride;
        count -= take;
        offset = 0;
    }
    return OK;
}

Status gpt_dataset_sample(const GptDataset *set, int64_t index, int32_t *tokens) {
    return gather(set, index, 0, set->seq_length + 1, tokens, 1);
}

Status batch_fill(const GptDataset *set, BatchPlace p, int32_t *tokens, int32_t *labels) {
    CHECK(p.micro_batch > 0 && p.dp_rank >= 0 && p.dp_rank < p.dp && p.microbatch >= 0,
          "microbatch %d, dp rank %d of %d", p.microbatch, p.dp_rank, p.dp);
    int64_t first = p.consumed + ((int64_t)p.microbatch * p.dp + p.dp_rank) * p.micro_batch;
    size_t stride = (size_t)p.micro_batch;
    for (int j = 0; j < p.micro_batch; j++) {
        if (tokens) TRY(gather(set, first + j, 0, set->seq_length, tokens + j, stride));
        if (labels) TRY(gather(set, first + j, 1, set->seq_length, labels + j, stride));
    }
    return OK;
}
