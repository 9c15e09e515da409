// The three indices behind GPT samples: in which order sequences are laid end to end, where each sample
// starts in that line, and in which order samples are drawn. Source: Megatron-LM, GPTDataset and
// build_sample_idx.
#pragma once
#include "data/data.h"

typedef struct {
    int32_t position; // in GptIndex.documents
    int32_t offset;   // token within that sequence
} SampleStart;

typedef struct {
    int64_t num_epochs;
    bool separate;      // the last epoch is shuffled alone, because little of it is used
    int32_t *documents; // [num_documents] sequence numbers, num_epochs times the split's, shuffled
    int64_t num_documents;
    SampleStart *starts; // [num_samples + 1]
    int32_t *shuffle;    // [num_samples] sample drawn i-th -> index into starts
    int64_t num_samples;
} GptIndex;

// The contract is gpt_dataset_open's.
Status gpt_index_build(GptIndex *index, const IndexedDataset *data, SplitRange range, int64_t num_samples,
                       int seq_length, int seed);
void gpt_index_free(GptIndex *index);
