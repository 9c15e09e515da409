// Whole training steps of GPT-2 124M, in fp32 and in bf16, as a fraction of the matrix products this
// machine does at the same shapes, what two ranks of one thread make of it against one rank of two threads,
// and what --trace costs. Medians; commands in `./run bench`. Usage: bench_train [fp32|bf16|trace], all in
// turn without one.
#include "base/trace.h"
#include "median.h"
#include "train/train.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    Grid grid;
    int threads, microbatches, steps; // microbatches of one rank; steps counted after a first one, to warm up
    int last_layers;                  // of the last stage, which has the head too; 0: as many as the others
} Case;

typedef struct {
    ModelShape shape;
    DType dtype;
    const Case *which;
    bool trace;              // every other step
    double step_s, traced_s; // out: medians
} Job;

static ModelShape gpt2_124m(int sequence, float dropout) {
    return (ModelShape){.layers = 12,
                        .hidden = 768,
                        .heads = 12,
                        .head_size = 64,
                        .ffn = 3072,
                        .sequence = sequence,
                        .positions = sequence,
                        .vocabulary = 50257,
                        .microbatch = 1,
                        .hidden_dropout = dropout,
                        .attention_dropout = dropout,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.02f,
                        .seed = 1};
}

// ---- matrix products at the model's shapes --------------------------------------------------------------

typedef struct {
    double flops, seconds, best; // of all products of one microbatch; the highest rate of a single shape
} Products;

static double time_product(Device *device, Tensor a, Tensor b, Tensor d, bool ta, bool tb, bool accumulate) {
    enum { REPEATS = 5 };
    double seconds[REPEATS];
    Matmul args = {.a = a, .b = b, .d = d, .transpose_a = ta, .transpose_b = tb, .accumulate = accumulate};
    matmul(device, device_stream(device), args);
    for (int i = 0; i < REPEATS; i++) {
        double start = clock_s();
        matmul(device, device_stream(device), args);
        seconds[i] = clock_s() - start;
    }
    return median(seconds, REPEATS);
}

// y = x W^T, dx = dy W, dW += dy^T x for W [out, in], `times` of them in the model. Memory of zeros has room.
static void add_linear(Device *device, DType dtype, float *memory, int64_t tokens, int64_t in, int64_t out,
                       int times, Products *sum) {
    Tensor x = {memory, tokens, in, dtype}, y = {memory + tokens * in, tokens, out, dtype};
    Tensor w = {memory + tokens * (in + out), out, in, dtype}, dw = w;
    dw.data = memory + tokens * (in + out) + in * out, dw.dtype = F32;
    double flops = 2.0 * (double)tokens * (double)in * (double)out;
    double seconds[3] = {time_product(device, x, w, y, false, true, false),
                         time_product(device, y, w, x, false, false, false),
                         time_product(device, y, x, dw, true, false, true)};
    for (int i = 0; i < 3; i++) {
        sum->seconds += times * seconds[i];
        if (flops / seconds[i] > sum->best) sum->best = flops / seconds[i];
    }
    sum->flops += 3 * times * flops;
}

static Products measure_products(const ModelShape *s, DType dtype, int threads) {
    Device *device;
    Status status =
        device_open(&device, (DeviceOptions){.kind = "cpu", .threads = threads, .workspace_bytes = 1 << 26});
    CHECK(status == OK, "%s", fail_message());
    int64_t tokens = s->sequence, h = s->hidden, v = padded_vocabulary(s->vocabulary, 128, 1);
    float *memory = calloc((size_t)(tokens * (h + v) + 2 * h * v), sizeof *memory);
    CHECK(memory, "no memory for the products");
    Products sum = {0};
    add_linear(device, dtype, memory, tokens, h, 3 * h, s->layers, &sum);
    add_linear(device, dtype, memory, tokens, h, h, s->layers, &sum);
    add_linear(device, dtype, memory, tokens, h, s->ffn, s->layers, &sum);
    add_linear(device, dtype, memory, tokens, s->ffn, h, s->layers, &sum);
    add_linear(device, dtype, memory, tokens, h, v, 1, &sum);
    free(memory);
    device_close(device);
    return sum;
}

// ---- steps ----------------------------------------------------------------------------------------------

static int32_t *random_tokens(const EngineSpec *spec, uint64_t stream) {
    int64_t count = (int64_t)spec->num_microbatches * spec->shape.sequence * spec->shape.microbatch;
    int32_t *tokens = malloc((size_t)count * sizeof *tokens);
    CHECK(tokens, "no memory for tokens");
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(rng_word(rng_key(1, "bench", stream), 0, (uint64_t)i) %
                              (uint32_t)spec->shape.vocabulary);
    return tokens;
}

static Status rank_main(Comm *world, void *arg) {
    Job *job = arg;
    const Case *which = job->which;
    EngineSpec spec = {.grid = which->grid,
                       .shape = job->shape,
                       .mode = {.dtype = job->dtype},
                       .split = {.layers = job->shape.layers, .last = which->last_layers},
                       .schedule = "1f1b",
                       .num_chunks = 1,
                       .receive_ahead = 1,
                       .overlap_gradients = true,
                       .scatter_gather = true,
                       .num_microbatches = which->microbatches,
                       .adam = {0.9, 0.999, 1e-8, 1.0},
                       .bucket_elements = 40000000,
                       .device = "cpu",
                       .threads = which->threads};
    spec.shape.padded_vocabulary = padded_vocabulary(spec.shape.vocabulary, 128, spec.grid.tp);
    Engine *engine;
    TRY(engine_open(&engine, &spec, world));
    int32_t *tokens = random_tokens(&spec, 0), *labels = random_tokens(&spec, 1);
    double seconds[2][16]; // without and with a trace, in turn: the machine's moods strike both
    Rank *rank = rank_current();
    CHECK(!job->trace || trace_open(100000), "no memory for a trace");
    Trace *trace = rank->trace;
    int ways = job->trace ? 2 : 1;
    for (int step = 0; step <= ways * which->steps; step++) {
        rank->trace = step % ways ? trace : NULL;
        comm_barrier(world);
        double start = clock_s();
        Batch batch = {.num_microbatches = spec.num_microbatches, .tokens = tokens, .labels = labels};
        engine_train(engine, batch, (StepOptions){.lr = 1e-5, .weight_decay = 0.01, .loss_scale = 1});
        comm_barrier(world);
        if (step) seconds[step % ways][(step - 1) / ways] = clock_s() - start;
    }
    rank->trace = trace;
    trace_close();
    if (comm_rank(world) == 0) job->step_s = median(seconds[0], which->steps);
    if (comm_rank(world) == 0 && job->trace) job->traced_s = median(seconds[1], which->steps);
    free(tokens), free(labels);
    engine_close(engine);
    return OK;
}

static void run_job(Job *job) {
    const Case *which = job->which;
    int launched = comm_launcher_ranks();
    CommOptions options = {.transport = launched ? "mpi" : "threads",
                           .ranks = grid_size(which->grid),
                           .timeout_s = 600,
                           .deterministic = true};
    Status status = comm_launch(options, rank_main, job);
    CHECK(status == OK, "%s: %s", which->name, fail_message());
}

static double run_case(const ModelShape *shape, DType dtype, const Case *which) {
    Job job = {.shape = *shape, .dtype = dtype, .which = which};
    run_job(&job);
    return job.step_s;
}

// Small layers, so that there are many events for the time.
static void run_traced(void) {
    const Case which = {"2 ranks x 1 thread, p=2 m=16", {1, 1, 2}, 1, 16, 9, 0};
    Job job = {.shape = gpt2_124m(64, 0.1f), .dtype = F32, .which = &which, .trace = true};
    job.shape.layers = 4, job.shape.hidden = 256, job.shape.ffn = 1024;
    job.shape.heads = 4, job.shape.head_size = 64, job.shape.vocabulary = 1024;
    run_job(&job);
    printf(
        "\n--trace: a step of 4 layers of 256, sequence 64, %s takes %.2f ms, traced %.2f ms: %.3f times\n",
        which.name, 1e3 * job.step_s, 1e3 * job.traced_s, job.traced_s / job.step_s);
}

static void print_case(const Case *c, double step_s, double flops, double peak, double base_s) {
    int samples = c->microbatches * c->grid.dp;
    double rate = flops * samples / step_s, bubble = (double)(c->grid.pp - 1) / c->microbatches;
    printf("%-46s %9.3f s/step %8.1f tokens/s %8.1f GFLOP/s %6.1f %% of the product peak", c->name, step_s,
           samples * 1024.0 / step_s, rate / 1e9, 100 * rate / peak);
    if (base_s > 0)
        printf("   %6.1f %% of one rank x 2 threads", 100 * base_s * samples * (1 + bubble) / step_s);
    if (bubble > 0) printf(" (bubble %.1f %% taken off)", 100 * bubble);
    printf("\n");
    fflush(stdout);
}

static const char *type_name(DType dtype) { return dtype == BF16 ? "bf16" : "fp32"; }

// Under mpirun: one case alone, since MPI starts once; peak and base come from the run before.
static int run_launched(const ModelShape *shape, char **argv) {
    const Case cases[] = {{"2 ranks x 1 thread, t=2, mpi", {2, 1, 1}, 1, 2, 3, 0},
                          {"2 ranks x 1 thread, d=2, mpi", {1, 2, 1}, 1, 1, 3, 0},
                          {"2 ranks x 1 thread, p=2 (8+4 layers) m=16, mpi", {1, 1, 2}, 1, 16, 1, 4}};
    const Case *c = &cases[atoi(argv[2])];
    double step_s = run_case(shape, strcmp(argv[1], "bf16") ? F32 : BF16, c);
    if (step_s > 0) print_case(c, step_s, model_flops(shape, 1), atof(argv[3]) * 1e9, atof(argv[4]));
    return 0;
}

// Seconds per sample of one rank of two threads, from the second of two runs around the others.
static double run_all(const ModelShape *shape, DType dtype) {
    const Case base = {"1 rank x 2 threads", {1, 1, 1}, 2, 2, 3, 0};
    const Case others[] = {{"2 ranks x 1 thread, t=2", {2, 1, 1}, 1, 2, 3, 0},
                           {"2 ranks x 1 thread, d=2", {1, 2, 1}, 1, 1, 3, 0},
                           {"2 ranks x 1 thread, p=2 (8+4 layers) m=16", {1, 1, 2}, 1, 16, 1, 4}};
    Products products = measure_products(shape, dtype, 2);
    double flops = model_flops(shape, 1);
    printf("\n%s: matrix products of one sample, 2 threads: %.1f GFLOP/s over all shapes, %.1f at the best "
           "shape (the peak below)\n",
           type_name(dtype), products.flops / products.seconds / 1e9, products.best / 1e9);
    double base_s = run_case(shape, dtype, &base) / base.microbatches;
    print_case(&base, base_s * base.microbatches, flops, products.best, 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        print_case(&others[i], run_case(shape, dtype, &others[i]), flops, products.best, base_s);
    base_s = run_case(shape, dtype, &base) / base.microbatches;
    print_case(&base, base_s * base.microbatches, flops, products.best, 0);
    printf("base for MPI: %s %.1f %.4f\n", type_name(dtype), products.best / 1e9, base_s);
    return base_s;
}

int main(int argc, char **argv) {
    ModelShape shape = gpt2_124m(1024, 0.1f);
    shape.padded_vocabulary = padded_vocabulary(shape.vocabulary, 128, 1);
    if (argc == 5) return run_launched(&shape, argv);
    printf(
        "GPT-2 124M, sequence 1024, dropout 0.1; %.1f GFLOP per sample by 72 B L S H^2 (1 + S/6H + V/12LH)\n",
        model_flops(&shape, 1) / 1e9);
    if (argc == 2 && !strcmp(argv[1], "trace")) return run_traced(), 0;
    bool both = argc == 1;
    double single_s = both || strcmp(argv[1], "bf16") ? run_all(&shape, F32) : 0;
    double half_s = both || !strcmp(argv[1], "bf16") ? run_all(&shape, BF16) : 0;
    if (both)
        printf("\n1 rank x 2 threads: bf16 trains %.2f times as many tokens per second as fp32\n",
               single_s / half_s);
    if (both) run_traced();
    return 0;
}
