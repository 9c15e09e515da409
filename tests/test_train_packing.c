// Documents in one sample are the documents alone: losses and gradients, with the same bits on the reference device. And
// a loss per token does not depend on how tokens that do not count lie in microbatches and over data-parallel ranks.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCE = 96, MAX_GRADIENTS = 1 << 17 };
static const int LENGTHS[] = {1, 7, 66, 20, 2};
enum { DOCUMENTS = sizeof LENGTHS / sizeof *LENGTHS };

// A step of one microbatch of one sample, tokens [first, first + count) of a text; a document of it may count alone.
typedef struct {
    EngineSpec spec;
    int first, count, counted_first, counted; // counted 0: all count, and the sample is one document
    float loss;
    float *gradients; // of all parameters, one after the other
    int64_t num_gradients;
} Step;

static int32_t token_at(int position) { return run_token(3, position, 67); }

static void fill(const Step *s, int32_t *tokens, int32_t *labels, int32_t *first_keys, int32_t *positions,
                 float *mask) {
    int document = 0, start = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->counted && i == start + LENGTHS[document]) start = i, document++;
        tokens[i] = token_at(s->first + i), labels[i] = token_at(s->first + i + 1);
        first_keys[i] = start, positions[i] = i - start;
        mask[i] = !s->counted || (i >= s->counted_first && i < s->counted_first + s->counted);
    }
}

static void collect(Engine *engine, Step *s) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    s->gradients = malloc(MAX_GRADIENTS * sizeof *s->gradients);
    CHECK(s->gradients, "no memory for gradients");
    for (int i = 0; i < params->count; i++) {
        Tensor gradient = params->items[i]->grad;
        if (params->items[i]->spec.tied_to ||
            !strcmp(params->items[i]->spec.name, "embedding.position_embeddings.weight"))
            gradient = tensor_rows(gradient, 0, gradient.rows > LENGTHS[2] ? LENGTHS[2] : gradient.rows);
        CHECK(s->num_gradients + tensor_count(gradient) <= MAX_GRADIENTS, "no room for gradients");
        device_download(c->device, c->stream, s->gradients + s->num_gradients, gradient);
        s->num_gradients += tensor_count(gradient);
    }
}

static Status run_step(Comm *world, void *arg) {
    Step *s = arg;
    int32_t tokens[SEQUENCE], labels[SEQUENCE], first_keys[SEQUENCE], positions[SEQUENCE];
    float mask[SEQUENCE];
    Engine *engine;
    fill(s, tokens, labels, first_keys, positions, mask);
    TRY(engine_open(&engine, &s->spec, world));
    Batch batch = {.num_microbatches = 1, .tokens = tokens, .labels = labels, .mask = mask};
    batch.first_keys = first_keys, batch.positions = positions;
    s->loss = engine_gradients(engine, batch, 1).loss;
    collect(engine, s);
    engine_close(engine);
    return OK;
}

static void take_step(Step *s) {
    s->spec.shape.sequence = s->count;
    EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = 1, .timeout_s = 60}, run_step, s));
}

// Compares bits, or of the largest gradient.
static void expect_alike(const Step *packed, const Step *alone, const char *name, double off) {
    double largest = 0, error = 0;
    EXPECT(packed->num_gradients == alone->num_gradients, "%s: %lld and %lld gradients", name,
           (long long)packed->num_gradients, (long long)alone->num_gradients);
    for (int64_t i = 0; i < alone->num_gradients; i++) {
        largest = fmax(largest, fabs((double)alone->gradients[i]));
        error = fmax(error, fabs((double)alone->gradients[i] - (double)packed->gradients[i]));
    }
    EXPECT(fabs((double)packed->loss - (double)alone->loss) <= off * (double)alone->loss,
           "%s: loss %.9g, alone %.9g", name, (double)packed->loss, (double)alone->loss);
    EXPECT(largest > 0 && error <= off * largest, "%s: gradients differ by %g of %g", name, error, largest);
}

static void compare_documents(const char *device, bool llama, bool limited, double off) {
    EngineSpec spec = run_spec((Grid)GRID(1, 1, 1), "1f1b", 1, 3, 1);
    if (llama) run_make_llama(&spec);
    if (limited) run_limit_attention(&spec);
    spec.device = device;
    spec.shape.positions = SEQUENCE;
    spec.shape.hidden_dropout = spec.shape.attention_dropout = 0;
    spec.masked = spec.first_keys = spec.positions = true;
    for (int i = 0, first = 0; i < DOCUMENTS; first += LENGTHS[i++]) {
        Step packed = {.spec = spec, .count = SEQUENCE, .counted_first = first, .counted = LENGTHS[i]};
        Step alone = {.spec = spec, .first = first, .count = LENGTHS[i]};
        char name[80];
        snprintf(name, sizeof name, "%s, %s, document %d", device, llama ? "llama" : "gpt", i);
        alone.spec.first_keys = alone.spec.positions = false;
        take_step(&packed), take_step(&alone);
        expect_alike(&packed, &alone, name, off);
        free(packed.gradients), free(alone.gradients);
    }
}

static void packed_is_alone_on(const char *device, double off) {
    for (int i = 0; i < 4; i++)
        if (!harness_short() || i == 3) compare_documents(device, i & 1, i & 2, off);
}

static void bits_of_the_reference(void) { packed_is_alone_on("reference", 0); }
static void numbers_of_the_cpu(void) { packed_is_alone_on(harness_device("cpu"), 1e-6); }

// ---- a loss per token -------------------------------------------------------------------------------------

// Returns the norm of the gradients of four samples of which few tokens count in some.
static double norm_of(int data_ranks, int microbatch, bool per_token) {
    RunPlan plan = {
        .spec = run_spec((Grid)GRID(1, data_ranks, 1), "1f1b", 1, 2, 4), .steps = 1, .transport = "threads"};
    EngineSpec *spec = &plan.spec;
    RunResult result;
    spec->shape.hidden_dropout = spec->shape.attention_dropout = 0;
    spec->masked = true, spec->per_token = per_token;
    spec->mode.microbatch = microbatch, spec->num_microbatches /= microbatch;
    return run_or_complain(&plan, "per token", &result) ? result.norm[0] : NAN;
}

static void tokens_count_alike(void) {
    double one = norm_of(1, 4, true), mean = norm_of(1, 4, false);
    for (int d = 1; d <= 4; d *= 2)
        for (int b = 1; b * d <= 4; b *= 2) {
            double norm = norm_of(d, b, true);
            EXPECT(fabs(norm - one) <= 1e-6 * one, "d %d, b %d: norm %.9g, not %.9g", d, b, norm, one);
        }
    EXPECT(fabs(one - mean) <= 1e-6 * one, "one microbatch is its own mean: %.9g, %.9g", one, mean);
    EXPECT(fabs(norm_of(2, 1, false) - mean) > 1e-4 * mean, "means of means do not differ here");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"bits of the reference", bits_of_the_reference},
                                      {"numbers of the cpu", numbers_of_the_cpu},
                                      {"tokens count alike", tokens_count_alike},
                                      {0}},
                       argc, argv);
}
