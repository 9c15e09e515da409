// Generates with the model of a job, as the options of `generate` say.
#include "infer/generate.h"

static void next(void *self, int position, const int32_t *tokens, int n, float *logits) {
    JobModel *model = self;
    (void)position; // the model goes on after what it has seen
    infer_next(model->infer, tokens, n, logits);
    if (model->seen) token_list_add(model->seen, tokens, (size_t)n);
}

static bool stopped(void *self) {
    JobModel *model = self;
    return model_job_stopped(model->job, model->world);
}

SampleSpec job_sample(const ModelJob *job, const TokenList *prompt, int max_new_tokens) {
    return (SampleSpec){.prompt = prompt->ids,
                        .prompt_tokens = (int)prompt->count,
                        .max_new_tokens = max_new_tokens,
                        .stops = job->options->stop.items,
                        .num_stops = job->options->stop.count};
}

GenerateSpec job_generate_spec(const ModelJob *job, const SampleSpec *samples) {
    const Options *o = job->options;
    return (GenerateSpec){.tokenizer = job->tokenizer,
                          .ends = job->ends.ids,
                          .num_ends = job->ends.count,
                          .samples = samples,
                          .sampling = {o->temperature, o->top_k, o->top_p, (uint64_t)o->seed}};
}

Status job_generate(JobModel *model, const GenerateSpec *spec, GenerateReport *report) {
    TokenModel tokens = {.self = model,
                         .batch = model->batch,
                         .capacity = model->capacity,
                         .longest = model->longest,
                         .vocabulary = model->job->shape.vocabulary,
                         .next = next,
                         .stopped = stopped};
    return token_model_generate(&tokens, spec, report);
}
