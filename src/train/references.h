// What the reference model of --dpo says of pairs: the log-probabilities of both answers. They are computed once,
// before the first step, by an evaluation with the reference model's weights in the run's own engine, so that there
// is no second model in memory. They are kept in the file dpo-reference of the --save folder, from where a run that
// goes on reads them.
#pragma once
#include "train/train.h"

#define REFERENCE_FILE "dpo-reference"

typedef struct {
    // By split and member: the place of its first pair. A pair has one place for training and one for validation.
    int64_t *first[NUM_SPLITS];
    int64_t count;
    double (*values)[NUM_ANSWERS]; // [count]; NaN: not known
    bool complete;                 // all that the run reads are known
    Text data;                     // lines that name the data sets by their checksums
} References;

// Takes the places of all pairs of two data sets; either may be NULL.
Status references_open(References *references, const GptDataset *train, const GptDataset *valid);
void references_close(References *references);
void references_forget(References *references); // all values
// The place of the pair that is read as sample `sample` (gpt_dataset_pair).
int64_t references_place(const References *references, const GptDataset *set, Split split, int64_t sample);
// Fills in the pairs of a microbatch [B].
void references_fill(const References *references, const GptDataset *set, Split split, BatchPlace place,
                     double (*out)[NUM_ANSWERS]);

// ---- the file -----------------------------------------------------------------------------------

// What the values in a file were computed with.
typedef struct {
    char model[4096];    // path; "": unknown
    char arithmetic[64]; // element type
    uint64_t weights;    // parameters_sum, and of adapters the hash of the model beside them
} ReferenceModel;

// Reads the values of these data sets. Sets *found where the file is there, whole, and of the same data; a note says
// where it is there and is not used. Values may be partly known.
Status references_read(References *references, const char *path, ReferenceModel *model, bool *found,
                       Text *note);
Status references_write(const References *references, const char *path, const ReferenceModel *model);
