// Losses of preferences: of a pair of answers to one prompt, the chosen one should become likelier and the rejected one
// less likely. A loss sees four numbers of a pair: the log-probabilities of both answers, by the model and by a
// reference model. It is a row of a table, computed on the host, in double precision: the same on every device.
//
// A pair is one sample of two documents, chosen and rejected; the loss mask marks the tokens of the answers.
// Sources: DPO, Rafailov 2023; IPO, Azar 2023; hinge, Zhao 2023 (SLiC); robust, Chowdhury 2024; SimPO, Meng 2024; ORPO,
// Hong 2024. Where papers leave a choice it is that of Hugging Face's TRL.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct PreferenceLoss PreferenceLoss;

typedef struct {
    const PreferenceLoss *loss;
    double beta;            // how strongly the model is held to the reference
    double label_smoothing; // the share of pairs whose labels are thought to be wrong
    double gamma;           // simpo: the margin that is wanted between the rewards
} PreferenceRule;

const PreferenceLoss *preference_loss_named(const char *name); // NULL: there is none
bool preference_reads_reference(const PreferenceLoss *loss);

enum { CHOSEN, REJECTED, NUM_ANSWERS };

// The answers of a pair as a model sees them.
typedef struct {
    double log_probability[NUM_ANSWERS]; // sums over the trained tokens
    double reference[NUM_ANSWERS];       // the same by the reference model; 0 where the loss reads none
    int64_t tokens[NUM_ANSWERS];         // that are trained
} PairScores;

typedef struct {
    double loss;
    double reward[NUM_ANSWERS]; // beta times what the model's log-probability has beyond the reference's
    double slope[NUM_ANSWERS];  // the derivative of the loss by the log-probability
    double log_probability[NUM_ANSWERS]; // as scored
} PairOutcome;
PairOutcome preference_outcome(const PreferenceRule *rule, const PairScores *scores);

// The pairs of a microbatch [S*B], on the host. Row s*B + b is token s of pair b.
typedef struct {
    PreferenceRule rule;
    int64_t samples; // B
    // NULL, all three: there are no data, as in a measurement. `reference` [B] may be NULL alone.
    const float *mask;                      // 1 for labels that are trained, else 0
    const int32_t *starts;                  // above 0: the token is in the rejected answer's document
    const double (*reference)[NUM_ANSWERS]; // log-probabilities by the reference model
    float *room;                            // [3, S*B], for what goes between host and device
    PairOutcome *outcomes;                  // [B], of the last forward
} PairBatch;

// Whether any of rows [first, first + count) is trained; without data: true.
bool pairs_train(const PairBatch *pairs, int64_t first, int64_t count);
// Computes the outcomes from two parts of the probability of each of `tokens` = S*B labels: the sum over the vocabulary
// of exp(logit - max), and the label's logit less max. Writes to weights [S*B] the factor of the gradient of each
// label's cross-entropy; 0 where the label is not trained. Without data all are 0.
void pairs_compute(const PairBatch *pairs, int64_t tokens, const float *sums, const float *targets,
                   float *weights);
