// Parts of verbs that `trireme finetune` puts together.
#pragma once
#include "cli/cli.h"
#include "corpus/chat.h"
#include "infer/score.h"

// The jobs that the options of `prepare-chat` and `preprocess` describe. They borrow the options.
ChatJob chat_job_of(const Options *options);
PreprocessJob preprocess_job_of(const Options *options);
// `train`; with `brief` it prints short lines (TrainJob.brief), and of the notes those that are no news of the model.
Status train_verb(Options *options, bool brief);
// `evaluate --data-path`, but the result is not printed.
Status evaluate_quietly(Options *options, Perplexity *result);
