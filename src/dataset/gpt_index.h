// The three indices of GPT samples: the order in which sequences are laid end to end, the start of each sample in
// that line, and the order in which samples are drawn. Source: Megatron-LM, GPTDataset and build_sample_idx.
#pragma once
#include "dataset/cache.h"
#include "dataset/dataset.h"

typedef struct {
    int64_t position; // in GptIndex.documents
    int64_t offset;   // token within that sequence
} SampleStart;

typedef struct {
    int64_t num_epochs;
    bool separate;            // the last epoch is shuffled by itself, because little of it is used
    const int32_t *documents; // [num_documents] numbers of sequences: the split's, num_epochs times, shuffled
    int64_t num_documents;
    int64_t num_samples;
    IndexArrays arrays; // documents; starts [num_samples + 1]; samples in the order of drawing [num_samples]
} GptIndex;

typedef struct {
    const IndexedDataset *data;
    SplitRange range;
    int64_t num_samples;
    int seq_length, seed;
    Split split;        // for the names of files
    const char *cache;  // the folder of the files, or NULL
    bool wide;          // use 64 bits per number also where 32 are enough
    bool conversations; // a document is a sample (chat_index.c); the range is one of documents
} GptIndexSpec;

// Fails as gpt_dataset_open does.
Status gpt_index_open(GptIndex *index, const GptIndexSpec *spec);
// The index of a set whose documents are samples: `documents` are all sequences of the range in their order, sample i
// is the sequences from the i-th start up to the next one, and the samples are drawn in another order in each epoch.
Status chat_index_open(GptIndex *index, const GptIndexSpec *spec);
// The sequences of sample `sample` of such a set: positions [its start's, the returned one).
int64_t chat_index_end(const GptIndex *index, int64_t sample);
void gpt_index_close(GptIndex *index);
SampleStart gpt_index_start(const GptIndex *index, int64_t sample); // 0 <= sample <= num_samples
int64_t gpt_index_drawn(const GptIndex *index, int64_t i);          // the sample that is drawn i-th
