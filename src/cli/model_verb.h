// Starts the ranks of the verbs that use a trained model.
#pragma once
#include "cli/cli.h"
#include "comm/comm.h"
#include "infer/model_job.h"

// Checks the options (`check` has the verb's own rules, before anything is opened), finds the model, and runs
// rank_main on every rank with the ModelJob. `measured`: see there.
Status model_verb(const Options *options, Status (*check)(const Options *options),
                  Status (*prepare)(const ModelJob *job), RankMain *rank_main, struct Perplexity *measured);
