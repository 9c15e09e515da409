// The logits of a model from anywhere, for other programs to compare with:
//   print_logits PATH TOKEN...    a line for each token: the logits of what follows it, fp32 as hexadecimal
// With TRIREME_APART set the adapter of a model is not merged.
#include "infer/infer.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *path;
    int32_t *tokens;
    int count;
    bool apart;
} Job;

static void print(const float *logits, int count) {
    for (int i = 0; i < count; i++) printf("%s%a", i ? " " : "", (double)logits[i]);
    puts("");
}

static Status print_all(Infer *infer, const Job *job) {
    int vocabulary = infer_shape(infer)->vocabulary;
    float *logits = malloc((size_t)vocabulary * sizeof *logits);
    if (!logits) return fail(ERR_OS, "no memory for %d logits", vocabulary);
    for (int i = 0; i < job->count; i++) {
        infer_next(infer, &job->tokens[i], 1, logits);
        print(logits, vocabulary);
    }
    free(logits);
    return OK;
}

static Status run(Comm *world, void *arg) {
    const Job *job = arg;
    ModelSource *source;
    Infer *infer;
    InferSpec spec = {.grid = GRID(1, 1, 1),
                      .device = "cpu",
                      .threads = 1,
                      .batch = 1,
                      .capacity = job->count,
                      .longest = 1,
                      .cache = true};
    TRY(model_source_open(&source, job->path, -1));
    Status status = job->apart ? OK : model_source_merge(source);
    if (status == OK) status = infer_open(&infer, source, &spec, world);
    if (status == OK) {
        status = print_all(infer, job);
        infer_close(infer);
    }
    model_source_close(source);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 3) return ERR_USAGE;
    Job job = {.path = argv[1], .count = argc - 2, .tokens = calloc((size_t)argc, sizeof *job.tokens)};
    if (!job.tokens) return ERR_OS;
    job.apart = getenv("TRIREME_APART") != NULL;
    for (int i = 0; i < job.count; i++) job.tokens[i] = atoi(argv[i + 2]);
    CommOptions options = {.transport = "threads", .ranks = 1, .timeout_s = 60, .deterministic = true};
    Status status = comm_launch(options, run, &job);
    if (status != OK) fprintf(stderr, "print_logits: %s\n", fail_message());
    free(job.tokens);
    return (int)status;
}
