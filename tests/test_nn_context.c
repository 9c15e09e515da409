// Attention to sequences that ranks share is that of whole ones, for every way of sharing, cut and rule. Where heads are
// exchanged every result has the bits of one rank, gradients too; where keys are gathered the outputs have; the rest
// is within the rounding of its sums.
#include "base/rng.h"
#include "harness.h"
#include "nn/runtime.h"
#include "nn/shared_attention.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, SEQUENCE = 64, HEADS = 8, GROUPS = 4, SIZE = 6, ROWS = BATCH * SEQUENCE };
enum { WIDTH = HEADS * SIZE, QKV = (HEADS + 2 * GROUPS) * SIZE, MOST_RANKS = 4 };

typedef struct {
    AttentionRules rules;
    bool documents, sinks;
    float dropout;
} Rule;

static const Rule rules[] = {
    {.dropout = 0},
    {.documents = true, .dropout = 0.2f},
    {.rules = {.window = 13, .cap = 2}, .sinks = true},
    {.documents = true, .rules = {.window = 21, .off_by_one = true}, .dropout = 0.1f}};

// What the ranks compute, in the order of whole sequences.
typedef struct {
    float out[ROWS * WIDTH], dqkv[ROWS * QKV], dsinks[HEADS];
} Results;

typedef struct {
    const char *device;
    int ranks;
    ContextWay way;
    const Rule *rule;
    Results results[MOST_RANKS]; // of each rank, zeros where it computes nothing
} Job;

static float value(uint64_t tensor, int64_t i) {
    return (float)rng_word(rng_key(tensor, "values", 0), 0, (uint64_t)i) * 0x1p-31f - 1;
}

static void first_keys(const Rule *rule, int32_t first[ROWS]) {
    for (int i = 0; i < ROWS; i++)
        first[i] = !rule->documents || i / BATCH < 19 + i % BATCH ? 0 : i / BATCH < 50 ? 19 + i % BATCH : 50;
}

// The whole sequences' numbers of this rank's rows.
static void rows_of_rank(const Context *c, const SequenceCut *cut, int32_t rows[ROWS]) {
    int32_t all[ROWS];
    int64_t each = ROWS / cut->ranks;
    sequence_orders(cut, BATCH, NULL, all);
    memcpy(rows, all + context_rank(c, ROLE_CONTEXT) * each, (size_t)each * sizeof *rows);
}

static Tensor upload(Runtime *r, const void *values, int64_t rows, int64_t cols, DType type) {
    Tensor x = tensor_take(&r->run, "test", rows, cols, type);
    device_upload(r->device, r->context.stream, x, values);
    return x;
}

static Tensor upload_rows(Runtime *r, uint64_t tensor, const int32_t *rows, int64_t count, int64_t cols) {
    float *values = malloc((size_t)(count * cols) * sizeof *values);
    CHECK(values, "no memory");
    for (int64_t i = 0; i < count * cols; i++) values[i] = value(tensor, rows[i / cols] * cols + i % cols);
    Tensor x = upload(r, values, count, cols, F32);
    free(values);
    return x;
}

static void download_rows(Runtime *r, Tensor x, const int32_t *rows, float *to) {
    float *values = malloc(tensor_bytes(x));
    CHECK(values, "no memory");
    device_download(r->device, r->context.stream, values, x);
    for (int64_t i = 0; i < x.rows; i++)
        memcpy(to + rows[i] * x.cols, values + i * x.cols, (size_t)x.cols * sizeof *to);
    free(values);
}

// A microbatch as the engine makes it (train/engine/sequences.c).
static Microbatch microbatch_of(Runtime *r, const Job *job, const SequenceCut *cut, const int32_t *rows) {
    int32_t first[ROWS], mine[ROWS], order[ROWS];
    int64_t each = ROWS / job->ranks;
    bool whole = job->way == CONTEXT_ALL_TO_ALL;
    Microbatch mb = {.samples = BATCH, .sequence = SEQUENCE / job->ranks, .training = true};
    first_keys(job->rule, first);
    for (int64_t i = 0; i < each; i++) mine[i] = first[rows[i]];
    if (job->rule->documents) mb.first_key = upload(r, whole ? first : mine, 1, whole ? ROWS : each, I32);
    if (job->ranks == 1) return mb;
    mb.cut = cut;
    sequence_orders(cut, BATCH, order, NULL);
    mb.from_ranks = upload(r, order, 1, ROWS, I32);
    sequence_orders(cut, BATCH, NULL, order);
    mb.to_ranks = upload(r, order, 1, ROWS, I32);
    sequence_shares(each, job->ranks, order, NULL);
    mb.to_heads = upload(r, order, 1, ROWS, I32);
    sequence_shares(each, job->ranks, NULL, order);
    mb.from_heads = upload(r, order, 1, ROWS, I32);
    return mb;
}

static AttentionForward forward_of(Runtime *r, const Job *job, const Microbatch *mb, const int32_t *rows) {
    static const int32_t one[] = {0};
    int64_t each = ROWS / job->ranks;
    return (AttentionForward){
        .qkv = upload_rows(r, 1, rows, each, QKV),
        .first_key = mb->first_key,
        .sinks = job->rule->sinks ? upload_rows(r, 2, one, 1, HEADS) : (Tensor){0},
        .out = tensor_take(&r->run, "out", each, WIDTH, F32),
        .stats = tensor_take(&r->run, "stats", BATCH * HEADS, mb->sequence, F32),
        .rules = job->rule->rules,
        .shape = {.batch = BATCH,
                  .sequence = mb->sequence,
                  .heads = HEADS,
                  .groups = GROUPS,
                  .head_size = SIZE,
                  .first_head = 8},
        .dropout = {.key = rng_key(3, "test", 0), .probability = job->rule->dropout, .samples = BATCH}};
}

static void attend(Runtime *r, Job *job, const SequenceCut *cut) {
    Context *c = &r->context;
    int32_t rows[ROWS];
    Results *results = &job->results[context_rank(c, ROLE_CONTEXT)];
    rows_of_rank(c, cut, rows);
    Microbatch mb = microbatch_of(r, job, cut, rows);
    AttentionForward f = forward_of(r, job, &mb, rows);
    Tensor dsinks = {0};
    if (job->rule->sinks) dsinks = tensor_take(&r->run, "gradient of sinks", 1, HEADS, F32);
    if (job->rule->sinks) device_zero(c->device, c->stream, dsinks);
    shared_attention_forward(c, &mb, f);
    AttentionBackward b = {.dout = upload_rows(r, 4, rows, f.out.rows, WIDTH),
                           .qkv = f.qkv,
                           .out = f.out,
                           .stats = f.stats,
                           .first_key = f.first_key,
                           .sinks = f.sinks,
                           .dqkv = tensor_take(&r->run, "dqkv", f.qkv.rows, QKV, F32),
                           .dsinks = dsinks,
                           .shape = f.shape,
                           .rules = f.rules,
                           .dropout = f.dropout};
    shared_attention_backward(c, &mb, b);
    download_rows(r, f.out, rows, results->out);
    download_rows(r, b.dqkv, rows, results->dqkv);
    if (dsinks.data) device_download(c->device, c->stream, results->dsinks, dsinks);
    EXPECT(r->scratch.used == 0, "scratch memory stays taken");
}

static Status on_rank(Comm *world, void *arg) {
    Job *job = arg;
    RuntimeMemory memory = {.run = 1 << 20, .scratch = 1 << 20, .workspace = 1 << 20};
    Grid grid = {.size = {[AXIS_CP] = job->ranks}};
    RuntimeSpec spec = {.topology = topology_of(grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = job->device,
                        .threads = 1,
                        .mode = {.dtype = F32, .context_way = job->way},
                        .memory = &memory};
    int32_t first[ROWS];
    SequenceCut *cut = malloc(sizeof *cut);
    Runtime runtime = {0};
    CHECK(cut, "no memory");
    first_keys(job->rule, first);
    sequence_cut_by_area(cut, SEQUENCE, job->ranks, BATCH, first);
    Status status = runtime_open(&runtime, &spec, world);
    if (status == OK) status = context_connect(&runtime.context);
    if (status == OK) attend(&runtime, job, cut);
    runtime_close(&runtime);
    free(cut);
    return status;
}

// The sum of what the ranks have: each row is one rank's, and the gradients of sinks are sums.
static void sum(const Job *job, Results *sums) {
    float *to = (float *)sums;
    memset(sums, 0, sizeof *sums);
    for (int rank = 0; rank < job->ranks; rank++) {
        const float *from = (const float *)&job->results[rank];
        for (size_t i = 0; i < sizeof *sums / sizeof *to; i++) to[i] += from[i];
    }
}

static void run(Job *job, Results *sums) {
    memset(job->results, 0, sizeof job->results);
    CommOptions options = {.transport = "threads", .ranks = job->ranks, .timeout_s = 60, .check = true};
    EXPECT_OK(comm_launch(options, on_rank, job));
    sum(job, sums);
}

static void expect_close(const Job *job, const char *what, const float *x, const float *y, int64_t count,
                         bool bits) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++) worst = fmax(worst, fabs((double)(x[i] - y[i])));
    EXPECT(bits ? !memcmp(x, y, (size_t)count * sizeof *x) : worst < 2e-5,
           "%s, %d ranks, way %d, rule %d: %s differs by %.2g", job->device, job->ranks, (int)job->way,
           (int)(job->rule - rules), what, worst);
}

static void compare(const char *device, const Rule *rule) {
    static Job one, job;
    static Results whole, parts;
    one = (Job){.device = device, .ranks = 1, .rule = rule};
    run(&one, &whole);
    for (ContextWay way = 0; way < NUM_CONTEXT_WAYS; way++)
        for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2) {
            job = (Job){.device = device, .ranks = ranks, .way = way, .rule = rule};
            bool heads = way == CONTEXT_ALL_TO_ALL;
            run(&job, &parts);
            expect_close(&job, "out", parts.out, whole.out, ROWS * WIDTH, way != CONTEXT_RING);
            expect_close(&job, "dqkv", parts.dqkv, whole.dqkv, ROWS * QKV, heads);
            expect_close(&job, "dsinks", parts.dsinks, whole.dsinks, HEADS, heads);
        }
}

static void for_rules(const char *device) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) compare(device, &rules[i]);
}

static void on_the_reference(void) { for_rules("reference"); }
static void on_the_cpu(void) { for_rules(harness_plain_device("cpu")); }
static void on_a_checking_device(void) { for_rules("check"); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"on the reference", on_the_reference},
                                      {"on the cpu", on_the_cpu},
                                      {"on a checking device", on_a_checking_device},
                                      {0}},
                       argc, argv);
}
