// The three indices behind GPT samples: in which order sequences are laid end to end, where each sample
// starts in that line, and in which order samples are drawn. Source: Megatron-LM, GPTDataset and
// build_sample_idx.
#pragma once
#include "dataset/cache.h"
#include "dataset/dataset.h"

typedef struct {
    int64_t position; // in GptIndex.documents
    int64_t offset;   // token within that sequence
} SampleStart;

typedef struct {
    int64_t num_epochs;
    bool separate;            // the last epoch is shuffled alone, because little of it is used
    const int32_t *documents; // [num_documents] sequence numbers, num_epochs times the split's, shuffled
    int64_t num_documents;
    int64_t num_samples;
    IndexArrays arrays; // documents; starts [num_samples + 1]; the sample drawn i-th [num_samples]
} GptIndex;

typedef struct {
    const IndexedDataset *data;
    SplitRange range;
    int64_t num_samples;
    int seq_length, seed;
    Split split;       // names the files in
    const char *cache; //   this folder, or NULL
    bool wide;         // 64 bits per number also where 32 would do
} GptIndexSpec;

// The contract is gpt_dataset_open's.
Status gpt_index_open(GptIndex *index, const GptIndexSpec *spec);
void gpt_index_close(GptIndex *index);
SampleStart gpt_index_start(const GptIndex *index, int64_t sample); // 0 <= sample <= num_samples
int64_t gpt_index_drawn(const GptIndex *index, int64_t i);          // the sample that is drawn i-th
