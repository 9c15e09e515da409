// `trireme evaluate --dpo`: what a model and its reference model say of held-out pairs of answers.
#include "infer/evaluate.h"
#include "nn/preference.h"
#include <inttypes.h>
#include <stdlib.h>

static Status score_answers(EvaluateRun *run, const ScoreModel *model) {
    Perplexity all;
    ScoreChats chats = {.data = run->data, .mask = run->mask, .range = run->range, .each = run->scored};
    return score_chats(model, &chats, &all);
}

// Asks a model about the data of `run`. The caller frees `scored`.
static Status ask(const EvaluateRun *run, const ModelJob *job, Perplexity **scored) {
    EvaluateRun own = *run;
    size_t count = (size_t)(run->range.end - run->range.first);
    own.job = job;
    own.scored = *scored = calloc(count + 1, sizeof **scored);
    CHECK(own.scored, "no memory for %zu answers", count);
    Status status = evaluate_open(&own);
    if (status == OK) status = evaluate_together(&own, score_answers);
    infer_close(own.infer);
    free(own.tokens);
    return status;
}

// Rank 0 checks the reference model, as the other one was checked before the ranks started.
static Status check_reference(const EvaluateRun *run, const Options *own) {
    ModelJob job = {0};
    Status status = run->leads ? model_job_open(&job, own, comm_size(run->world)) : OK;
    if (status == OK && run->leads && job.shape.vocabulary != run->job->shape.vocabulary)
        status =
            fail(ERR_CONFIG,
                 "--dpo-reference %s has a vocabulary of %d, but --load %s one of %d: they read other tokens",
                 own->load, job.shape.vocabulary, run->job->path, run->job->shape.vocabulary);
    model_job_close(&job);
    return comm_agree(run->world, status);
}

static Status ask_reference(const EvaluateRun *run, Perplexity **scored) {
    Options own = *run->job->options;
    ModelJob job = *run->job;
    own.load = own.dpo_reference, own.ckpt_step = INT_UNSET, own.use_ema = false;
    own.adapter = (StringList){0}; // it is the model's
    job.options = &own, job.path = (char *)(uintptr_t)own.load;
    TRY(check_reference(run, &own));
    return ask(run, &job, scored);
}

static PairOutcome outcome_of(const PreferenceRule *rule, const Perplexity *model,
                              const Perplexity *reference) {
    PairScores scores = {0};
    for (int a = 0; a < NUM_ANSWERS; a++) {
        scores.log_probability[a] = -model[a].nats;
        scores.reference[a] = reference ? -reference[a].nats : 0;
        scores.tokens[a] = model[a].tokens;
    }
    return preference_outcome(rule, &scores);
}

static void print_pairs(const EvaluateRun *run, const Perplexity *model, const Perplexity *reference) {
    const Options *o = run->job->options;
    PreferenceRule rule = {preference_loss_named(o->dpo_loss), o->dpo_beta, o->dpo_label_smoothing,
                           o->simpo_gamma};
    int64_t count = (run->range.end - run->range.first) / NUM_ANSWERS;
    PairOutcome sum = {0};
    double each = 1 / (double)count, accuracy = 0;
    for (int64_t i = 0; i < count; i++) {
        PairOutcome one =
            outcome_of(&rule, model + NUM_ANSWERS * i, reference ? reference + NUM_ANSWERS * i : NULL);
        sum.loss += each * one.loss;
        accuracy += one.reward[CHOSEN] > one.reward[REJECTED] ? each : 0;
        for (int a = 0; a < NUM_ANSWERS; a++) {
            sum.reward[a] += each * one.reward[a];
            sum.log_probability[a] += each * one.log_probability[a];
        }
    }
    printf("%s, validation share of --split %s: %" PRId64 " pairs\n", o->data_path.items[0], o->split, count);
    printf("loss (%s) %.6f, rewards chosen %.6f, rejected %.6f, margin %.6f, accuracy %.4f\n", o->dpo_loss,
           sum.loss, sum.reward[CHOSEN], sum.reward[REJECTED], sum.reward[CHOSEN] - sum.reward[REJECTED],
           accuracy);
    printf("log-probabilities chosen %.6f, rejected %.6f\n", sum.log_probability[CHOSEN],
           sum.log_probability[REJECTED]);
}

Status evaluate_pairs(EvaluateRun *run) {
    Perplexity *model = NULL, *reference = NULL;
    TRY(evaluate_open_data(run));
    Status status = ask(run, run->job, &model);
    if (status == OK && options_have_reference(run->job->options)) status = ask_reference(run, &reference);
    if (status == OK && run->leads) print_pairs(run, model, reference);
    free(model);
    free(reference);
    return status;
}
