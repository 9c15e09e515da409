// A model of a Hugging Face folder on any grid, for other programs to compare with: the gradients of a batch, then ten
// steps of AdamW.
//   family_steps FOLDER OUT T P D WAY     WAY: plain, or words joined by '+': sequence, selective, full, sharded, zb,
//                                         ep (the replicas share the experts of a layer)
// Prints the tokens of each sample, one more than the model reads, then "loss norm" of each step as hexadecimal. Rank 0 writes OUT-gradients.safetensors and OUT-weights.safetensors,
// after the last step, with the names and shapes of the folder. Its batch is run_token's: microbatch k of a step is
// sample k, and all steps read the same.
#include "checkpoint/fields.h"
#include "formats/formats.h"
#include "harness.h"
#include "runs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 4, STEPS = 10, SEQUENCE = 24 };

typedef struct {
    const char *folder, *out, *way;
    Grid grid;
    float **whole; // of each parameter of the model, put together by the ranks that hold it
} Job;

static bool has(const Job *job, const char *word) { return strstr(job->way, word); }

// ---- what is written ------------------------------------------------------------------------------------

static void gather(Engine *engine, Comm *world, float **whole, bool gradients) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    for (int turn = 0; turn < comm_size(world); turn++) {
        comm_barrier(world);
        for (int i = 0; turn == comm_rank(world) && i < params->count; i++) {
            const Param *p = params->items[i];
            if (p->chunk < 0 || p->spec.tied_to || (gradients && p->spec.by_rule)) continue;
            float *local = calloc((size_t)tensor_count(p->value), sizeof *local);
            CHECK(local, "no memory for %s", p->spec.name);
            device_download(c->device, c->stream, local, gradients ? p->grad : p->value);
            param_unslice(p, local, whole[i]);
            free(local);
        }
    }
    comm_barrier(world);
}

static const float *weight_named(const Params *params, float **whole, const char *name) {
    for (int i = 0; i < params->count; i++)
        if (!strcmp(params->items[i]->spec.name, name)) return whole[i];
    CHECK(false, "no parameter %s", name);
}

// Puts row `row` of a tensor in its place, among the columns of its matrix where the file has these as lines.
static void put_row(const TheirTensor *t, int64_t row, const float *ours, float *out) {
    int64_t height = tensor_matrix_rows(t), step = t->transposed ? height : 1;
    float *to = out + (t->transposed ? row / height * height * t->cols + row % height : row * t->cols);
    for (int64_t c = 0; c < t->cols; c++) to[c * step] = ours[c];
}

// Puts a tensor of theirs together from the rows of ours.
static void fill_tensor(const Mapping *m, const TheirTensor *t, const Params *params, float **whole,
                        float *out) {
    for (int n = 0; n < t->strips; n++) {
        const WeightStrip *s = &m->strips[t->strip + n];
        const float *ours = weight_named(params, whole, m->weights[s->weight].name);
        for (int64_t i = 0; i < s->per * s->groups; i++)
            put_row(t, s->first + tensor_row_stored(t, i), ours + strip_row(s, i) * t->cols, out);
    }
}

static Status write_tensors(const Job *job, const ModelShape *shape, const Params *params, const char *what) {
    char path[4200];
    const Family *family;
    Mapping m;
    SafetensorsWriter writer;
    snprintf(path, sizeof path, "%s-%s.safetensors", job->out, what);
    remove(path);
    TRY(family_of(shape, &family));
    TRY(mapping_create(&m, shape, family, FORMAT_HUGGING_FACE));
    SafeTensor *tensors = calloc((size_t)m.num_tensors, sizeof *tensors);
    CHECK(tensors, "no memory for %d tensors", m.num_tensors);
    for (int i = 0; i < m.num_tensors; i++) {
        const TheirTensor *t = &m.tensors[i];
        tensors[i] = (SafeTensor){.name = t->name, .type = FILE_F32};
        tensors[i].ndim = tensor_shape(t, tensors[i].shape);
    }
    TRY(safetensors_create(&writer, path, tensors, m.num_tensors, NULL, 0));
    for (int i = 0; i < m.num_tensors; i++) {
        int64_t count = m.tensors[i].rows * m.tensors[i].cols;
        float *data = calloc((size_t)count, sizeof *data);
        CHECK(data, "no memory for %s", m.tensors[i].name);
        fill_tensor(&m, &m.tensors[i], params, job->whole, data);
        TRY(safetensors_add(&writer, data, (size_t)count * sizeof *data));
        free(data);
    }
    free(tensors);
    mapping_destroy(&m);
    return safetensors_finish(&writer);
}

// ---- the run ------------------------------------------------------------------------------------------------

static EngineSpec spec_of(const Job *job, const ModelShape *shape) {
    bool zero_bubble = has(job, "zb");
    EngineSpec spec = run_spec(job->grid, zero_bubble ? "zb-h1" : "1f1b", 1, shape->layers, SAMPLES);
    spec.shape = *shape;
    spec.shape.sequence = SEQUENCE;
    spec.shape.hidden_dropout = spec.shape.attention_dropout = 0;
    spec.mode.padded_vocabulary = padded_vocabulary(shape->vocabulary, 8, grid_along(job->grid, AXIS_TP));
    spec.mode.sequence_parallel = has(job, "sequence");
    if (has(job, "selective")) spec.mode.recompute = RECOMPUTE_SELECTIVE;
    if (has(job, "full")) spec.mode.recompute = RECOMPUTE_UNIFORM, spec.mode.recompute_layers = 1;
    spec.sharding = has(job, "sharded");
    spec.adam = (AdamOptions){0.9, 0.95, 1e-8, 1.0};
    return spec;
}

static void print_tokens(const ModelShape *shape) {
    for (int sample = 0; sample < SAMPLES; sample++)
        for (int i = 0; i <= SEQUENCE; i++)
            printf("%d%c", run_token(sample, i, shape->vocabulary), i < SEQUENCE ? ' ' : '\n');
}

static Status steps(Engine *engine, const Job *job, const EngineSpec *spec, Comm *world) {
    const Params *params = engine_params(engine);
    bool judge = comm_rank(world) == 0;
    Batch batch = run_batch(spec, engine_context(engine), 0, spec->num_microbatches);
    engine_gradients(engine, batch, 1);
    gather(engine, world, job->whole, true);
    if (judge) print_tokens(&spec->shape);
    if (judge) TRY(write_tensors(job, &spec->shape, params, "gradients"));
    comm_barrier(world);
    for (int step = 0; step < STEPS; step++) {
        StepResult r = engine_train(engine, batch, (StepOptions){1e-3, 0.1, 1});
        if (judge) printf("%a %a\n", (double)r.loss, r.grad_norm);
    }
    run_batch_free(&batch);
    gather(engine, world, job->whole, false);
    run_expect_predicted_memory(engine, NULL);
    return judge ? write_tensors(job, &spec->shape, params, "weights") : OK;
}

static Status run(Comm *world, void *arg) {
    const Job *job = arg;
    ModelSource *source;
    Engine *engine;
    TRY(model_source_open(&source, job->folder, -1));
    EngineSpec spec = spec_of(job, &model_source_info(source)->shape);
    TRY(engine_open(&engine, &spec, world));
    TRY(engine_read(engine, source, false, false, 0));
    model_source_close(source);
    const Params *params = engine_params(engine);
    for (int i = 0; comm_rank(world) == 0 && i < params->count; i++) {
        const ParamSpec *p = &params->items[i]->spec;
        job->whole[i] = calloc((size_t)(p->rows * p->cols), sizeof **job->whole);
        CHECK(job->whole[i], "no memory for %s", p->name);
    }
    comm_barrier(world);
    Status status = steps(engine, job, &spec, world);
    engine_close(engine);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 7) return ERR_USAGE;
    Grid grid = GRID(atoi(argv[3]), atoi(argv[5]), atoi(argv[4]));
    Job job = {.folder = argv[1], .out = argv[2], .way = argv[6]};
    if (has(&job, "ep")) grid.size[AXIS_EP] = grid_along(grid, AXIS_DP);
    job.grid = grid;
    job.whole = calloc(4096, sizeof *job.whole);
    if (!job.whole) return ERR_OS;
    CommOptions options = {
        .transport = "threads", .ranks = grid_size(grid), .timeout_s = 60, .deterministic = true};
    Status status = comm_launch(options, run, &job);
    if (status != OK) fprintf(stderr, "family_steps: %s\n", fail_message());
    for (int i = 0; i < 4096; i++) free(job.whole[i]);
    free(job.whole);
    return status == OK && harness_failed() ? ERR_BUG : (int)status;
}
