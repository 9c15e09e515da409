// The numbers of a run for other programs: JSON lines (--metrics), event files of TensorBoard (--tensorboard-dir), and
// a file for Prometheus (--metrics-prom). Rank 0 writes them. A file that cannot be written does not end a run: a
// warning says so once, and the run's status is ERR_IO at its end.
#pragma once
#include "base/outlet.h"
#include "train/train.h"

// The numbers of a step, then those of pairs, and of experts. The tags are Megatron-LM's, those of pairs are TRL's.
//  number, name in JSON, factor of its value there, tag in TensorBoard, name and help for Prometheus
#define RUN_NUMBERS(X)                                                                                       \
    X(LOSS, "lm_loss", 1, "lm loss", "lm_loss", "Mean loss of the tokens that are trained")                  \
    X(GRAD_NORM, "grad_norm", 1, "grad-norm", "grad_norm", "L2 norm of all gradients before clipping")       \
    X(LEARNING_RATE, "learning_rate", 1, "learning-rate", "learning_rate", "Learning rate of the next step") \
    X(STEP_TIME, "elapsed_ms", 1e3, "iteration-time", "step_seconds", "Time of the step")                    \
    X(TOKENS, "tokens_per_s", 1, "tokens-per-second", "tokens_per_second", "Tokens of all ranks a second")   \
    X(TFLOPS, "tflops_per_rank", 1, "throughput", "tflops_per_rank", "Model TFLOP/s of a rank")              \
    X(LOSS_SCALE, "loss_scale", 1, "loss-scale", "loss_scale", "Loss scale of the next step")                \
    X(BATCH, "global_batch_size", 1, "batch-size", "global_batch_size", "Samples of the step")               \
    X(SKIPPED, "skipped", 1, "skipped", "skipped", "1 where the step changed nothing")                       \
    X(CHOSEN_REWARD, "rewards_chosen", 1, "rewards/chosen", "rewards_chosen",                                \
      "Mean reward of chosen answers")                                                                       \
    X(REJECTED_REWARD, "rewards_rejected", 1, "rewards/rejected", "rewards_rejected",                        \
      "Mean reward of rejected answers")                                                                     \
    X(MARGIN, "rewards_margin", 1, "rewards/margins", "rewards_margin", "Mean difference of rewards")        \
    X(ACCURACY, "rewards_accuracy", 1, "rewards/accuracies", "rewards_accuracy",                             \
      "Share of pairs whose chosen answer has the larger reward")                                            \
    X(CHOSEN_LOGP, "logps_chosen", 1, "logps/chosen", "logps_chosen",                                        \
      "Mean log-probability of chosen answers")                                                              \
    X(REJECTED_LOGP, "logps_rejected", 1, "logps/rejected", "logps_rejected",                                \
      "Mean log-probability of rejected answers")                                                            \
    X(BALANCE_LOSS, "load_balancing_loss", 1, "load_balancing_loss", "load_balancing_loss",                  \
      "Mean loss of unequal loads of experts, without its coefficient")                                      \
    X(Z_LOSS, "z_loss", 1, "z_loss", "z_loss",                                                               \
      "Mean loss of large logits of routers, without its coefficient")                                       \
    X(LOAD_MAX, "expert_load_max", 1, "experts/load_max", "expert_load_max",                                 \
      "Largest load of an expert, in means of its layer")                                                    \
    X(LOAD_ENTROPY, "expert_load_entropy", 1, "experts/load_entropy", "expert_load_entropy",                 \
      "Least entropy of the loads of a layer's experts, 1 where they are alike")                             \
    X(DROPPED, "expert_dropped", 1, "experts/dropped", "expert_dropped",                                     \
      "Largest share of a layer's pairs of a token and an expert that are dropped")

#define X(number, ...) NUMBER_##number,
typedef enum { RUN_NUMBERS(X) NUM_NUMBERS } RunNumber;
#undef X
enum { NUM_STEP_NUMBERS = NUMBER_CHOSEN_REWARD, NUM_PAIR_NUMBERS = NUMBER_BALANCE_LOSS - NUM_STEP_NUMBERS };

// The numbers of one step.
typedef struct {
    int64_t iteration, consumed, end;
    bool pairs, experts;      // there are those of pairs, and of experts
    const ExpertLoads *loads; // of experts, during the call
    double value[NUM_NUMBERS];
    bool summed; // `checksum` is that of the parameters
    uint64_t checksum;
} StepNumbers;

typedef struct {
    const Options *options;
    FILE *json, *events;
    Outlet json_outlet;
    char events_path[4096];
    StepNumbers last;     // of the last step
    double validation;    // the last one's loss; NaN: none yet
    double prom_written;  // when, by clock_s
    int64_t went_on_from; // the iteration of the checkpoint that was loaded; -1: none
    // What could not be written first, of JSON and of all else; `told` is the caller's.
    Text trouble;
    bool failed, told;
} Metrics;

void pair_numbers(const PairMeans *pairs, double values[NUM_PAIR_NUMBERS]);
// Sets the values of experts. A loss without a coefficient is NaN, and not written.
void expert_numbers(const ExpertLoads *loads, const Options *options, double values[NUM_NUMBERS]);
// Opens what the options name, but in a dry run. `stopped` ends the wait for a reader of --metrics, where that is a
// pipe. Fails where a file or folder cannot be made.
Status metrics_open(Metrics *metrics, const Options *options, const atomic_int *stopped);
Status metrics_close(Metrics *metrics); // ERR_IO where something was not written
void metrics_step(Metrics *metrics, const StepNumbers *step);
// `pairs` is NULL but for an evaluation of pairs.
void metrics_validation(Metrics *metrics, int64_t iteration, int64_t consumed, double loss,
                        const PairMeans *pairs);
// A line of JSON alone.
void metrics_event(Metrics *metrics, const char *json);
// The run goes on after this iteration, or back to it: what readers have of later ones is no part of it. `json` is the
// line that says so.
void metrics_go_on(Metrics *metrics, int64_t iteration, const char *json);
