// Measures operations in short training steps of reference models; on a CPU on one rank and on all ranks at once. An
// operation is timed from where the device has got to when it is launched, to the same of the next one.
#include "machine/rates.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the reference models ------------------------------------------------------------------------

// Their sizes enclose what a CPU trains in reasonable time; every class of operations occurs in at least four.
static const Reference references[] = {
    {256, 4, 1024, 128, 4, 2048, false, true, false},  {768, 12, 3072, 512, 1, 16384, false, true, false},
    {128, 4, 512, 512, 2, 16384, false, true, false},  {512, 4, 2048, 256, 2, 4096, false, true, false},
    {256, 8, 1024, 1024, 1, 1024, false, true, false}, {512, 8, 2048, 256, 2, 8192, false, true, true},
    {384, 6, 1536, 64, 8, 1024, false, true, true},    {1024, 16, 4096, 128, 1, 4096, false, true, true},
    {256, 2, 1024, 512, 1, 1024, false, true, true},   {256, 4, 704, 256, 1, 4096, true, false, false},
    {768, 12, 2048, 256, 2, 8192, true, false, false}, {512, 4, 1408, 128, 4, 2048, true, false, false},
    {128, 4, 352, 1024, 1, 2048, true, false, false},  {384, 6, 1024, 512, 2, 1024, false, false, false},
    {512, 8, 1408, 128, 8, 1024, true, false, true},   {640, 10, 1728, 1024, 1, 2048, true, false, true},
    {320, 5, 1280, 512, 2, 1024, false, false, true},  {256, 8, 704, 256, 2, 1024, true, false, true},
};
// The first microbatch of a step writes gradients, the others add to them. With three the median is one that adds.
enum { NUM_REFERENCES = sizeof references / sizeof references[0], MICROBATCHES = 3, LAYERS = 2, STEPS = 2 };

static ModelShape shape_of(const Reference *r) {
    return (ModelShape){.layers = LAYERS,
                        .hidden = r->hidden,
                        .heads = r->heads,
                        .groups = r->llama && r->heads % 4 == 0 ? r->heads / 4 : r->heads,
                        .head_size = r->hidden / r->heads,
                        .ffn = r->ffn,
                        .sequence = r->sequence,
                        .positions = r->sequence,
                        .vocabulary = r->vocabulary,
                        .activation = r->llama ? ACTIVATION_SWIGLU : ACTIVATION_GELU,
                        .position = r->llama ? POSITION_ROTARY : POSITION_LEARNED,
                        .rotary_base = 10000,
                        .rms_norm = r->llama,
                        .no_linear_bias = r->llama,
                        .untied = r->llama,
                        .hidden_dropout = r->dropout ? 0.1f : 0,
                        .attention_dropout = r->dropout ? 0.1f : 0,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.02f,
                        .seed = 1};
}

static EngineSpec spec_of(const Reference *r, DType dtype, const char *device, int threads) {
    return (EngineSpec){.grid = GRID(1, 1, 1),
                        .shape = shape_of(r),
                        .mode = {.microbatch = r->microbatch,
                                 .padded_vocabulary = r->vocabulary,
                                 .dtype = dtype,
                                 .keep_probabilities = r->unfused},
                        .split = {.layers = LAYERS},
                        .schedule = schedule_kind_default(1)->name,
                        .num_chunks = 1,
                        .num_microbatches = MICROBATCHES,
                        .adam = {0.9, 0.95, 1e-8, 1.0},
                        .bucket_elements = 40000000,
                        .device = device,
                        .threads = threads};
}

// ---- one rank's recording ------------------------------------------------------------------------

// An operation, and when it began.
typedef struct {
    Sample sample;
    DeviceMark mark;
} Begun;

typedef struct {
    Samples *samples;
    Device *device;
    Stream *stream;
    int sms;      // of a GPU; 0: a CPU
    Begun *begun; // of this step
    int count, capacity;
    bool listening, unfused;
    Status status;
} Recorder;

static Begun *next_begun(Recorder *r) {
    if (r->count == r->capacity) {
        int capacity = r->capacity ? 2 * r->capacity : 1024;
        Begun *begun = realloc(r->begun, (size_t)capacity * sizeof *begun);
        if (!begun) {
            r->status = fail(ERR_OS, "no memory for %d measurements", capacity);
            return NULL;
        }
        r->begun = begun;
        r->capacity = capacity;
    }
    return &r->begun[r->count++];
}

static void begin(Recorder *r, Terms terms, DType dtype) {
    Begun *begun = r->listening && r->status == OK ? next_begun(r) : NULL;
    if (begun) *begun = (Begun){{.terms = terms, .dtype = dtype}, device_mark(r->device, r->stream)};
}

static void on_operation(void *self, DeviceOp op, const void *args, OpCount one) {
    Recorder *r = self;
    WorkItem item = work_item(op, args, one, r->unfused);
    // The results of sums may have a wider type than elements.
    begin(r, r->sms ? rate_terms_gpu(&item, r->sms) : rate_terms(&item),
          dtype_is_element((DType)item.dtype) ? (DType)item.dtype : F32);
}

// A CPU rank with one thread measures its processor time, which other programs disturb less.
static void end_step(Recorder *r) {
    begin(r, (Terms){0}, F32);
    for (int i = 0; i < r->count; i++) device_mark_read(r->device, &r->begun[i].mark);
    for (int i = 0; i + 1 < r->count && r->status == OK; i++) {
        const DeviceMark *from = &r->begun[i].mark, *to = &r->begun[i + 1].mark;
        Sample sample = r->begun[i].sample;
        sample.seconds = to->work_s - from->work_s;
        if (sample.seconds > 0) r->status = samples_add(r->samples, sample);
    }
    r->count = 0;
}

static void take_step(Engine *engine, Recorder *recorder, const Batch *batch) {
    engine_train(engine, *batch, (StepOptions){.lr = 1e-4, .weight_decay = 0.01, .loss_scale = 1});
    end_step(recorder);
}

static Status run_steps(Engine *engine, Recorder *recorder) {
    const EngineSpec *spec = engine_spec_of(engine);
    int64_t count = (int64_t)MICROBATCHES * spec->shape.sequence * spec->mode.microbatch;
    int32_t *tokens = malloc((size_t)count * sizeof *tokens);
    if (!tokens) return fail(ERR_OS, "no memory for %lld tokens", (long long)count);
    for (int64_t i = 0; i < count; i++)
        tokens[i] =
            (int32_t)(rng_word(rng_key(1, "bench", 0), 0, (uint64_t)i) % (uint32_t)spec->shape.vocabulary);
    Batch batch = {.num_microbatches = MICROBATCHES, .tokens = tokens, .labels = tokens};
    recorder->device = engine_context(engine)->device, recorder->stream = engine_context(engine)->stream;
    device_on_operation(recorder->device, on_operation, recorder);
    for (int step = 0; step <= STEPS; step++) {
        recorder->listening = step > 0; // the first one touches fresh memory
        take_step(engine, recorder, &batch);
    }
    free(tokens);
    free(recorder->begun);
    return recorder->status;
}

// Every rank trains a model of its own at the same time; the times of rank 0 are used.
static Status run_reference(Comm *alone, const EngineSpec *spec, int sms, Samples *samples) {
    Engine *engine;
    Recorder recorder = {.samples = samples, .sms = sms, .unfused = spec->mode.keep_probabilities};
    TRY(engine_open(&engine, spec, alone));
    Status status = run_steps(engine, &recorder);
    engine_close(engine);
    return status;
}

Status rates_of_references(Comm *alone, const Reference *models, int count, DType dtype, const char *device,
                           int threads, int sms, Samples *samples) {
    for (int i = 0; i < count; i++) {
        EngineSpec spec = spec_of(&models[i], dtype, device, threads);
        TRY(run_reference(alone, &spec, sms, samples));
    }
    return OK;
}

// ---- collectives and messages --------------------------------------------------------------------

enum { REPEATS = 9 };

typedef struct {
    Comm *world;
    float *memory; // twice the largest tensor
} Wire;

static void call_once(const Wire *wire, CommOp op, int64_t count) {
    int n = comm_size(wire->world), me = comm_rank(wire->world);
    Tensor whole = {wire->memory, 1, count, F32}, other = {wire->memory + count, 1, count, F32};
    Tensor part = tensor_part(other, 0, count / n);
    CommRequest *request = NULL;
    switch (op) {
    case COMM_ALL_REDUCE: comm_all_reduce(wire->world, NULL, whole, REDUCE_SUM); return;
    case COMM_REDUCE_SCATTER: comm_reduce_scatter(wire->world, NULL, whole, part, REDUCE_SUM); return;
    case COMM_ALL_GATHER: comm_all_gather(wire->world, NULL, part, whole); return;
    case COMM_ALL_TO_ALL: comm_all_to_all(wire->world, NULL, whole, other); return;
    default: break;
    }
    if (me > 1) return;
    for (int turn = 0; turn < 2; turn++) {
        request = turn == me ? comm_send(wire->world, NULL, whole, 1 - me, 0)
                             : comm_recv(wire->world, NULL, whole, 1 - me, 0);
        comm_wait(wire->world, NULL, &request);
    }
}

// The time of a message is half of a round trip.
static Status time_calls(const Wire *wire, CommOp op, int64_t count, Samples *samples) {
    double share = op == COMM_SEND ? 0.5 : 1;
    for (int i = 0; i <= REPEATS; i++) {
        comm_barrier(wire->world);
        double start = clock_s();
        call_once(wire, op, count);
        double seconds = share * (clock_s() - start);
        Sample sample = {rate_terms_of_bytes(comm_op_name(op), 4 * (double)count), F32, seconds};
        if (i) TRY(samples_add(samples, sample));
    }
    return OK;
}

static Status time_wires(Comm *world, Samples *samples) {
    static const CommOp ops[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_ALL_TO_ALL,
                                 COMM_SEND};
    static const int64_t counts[] = {1 << 8, 1 << 12, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23};
    int64_t n = comm_size(world), most = counts[6] * n;
    Wire wire = {world, calloc((size_t)(2 * most), sizeof(float))};
    Status status =
        wire.memory ? OK : fail(ERR_OS, "no memory for messages of %lld MiB", (long long)most >> 18);
    TRY(comm_agree(world, status));
    for (int o = 0; o < 5 && status == OK; o++)
        for (int i = 0; i < 7 && status == OK; i++)
            status = time_calls(&wire, ops[o], counts[i] * n, samples);
    free(wire.memory);
    return comm_agree(world, status);
}

// ---- peaks ------------------------------------------------------------------------------------

// The peak is the rate of the arithmetic term alone, which large matrix products approach.
static double peak_tflops(const Machine *machine, DType dtype) {
    double best = 0;
    for (int i = 0; i < machine->num_rates; i++) {
        const Rate *row = &machine->rates[i];
        if (row->dtype != dtype || strncmp(row->op, "matmul", 6) || row->seconds[1] <= 0) continue;
        double rate = 2e-12 / row->seconds[1];
        best = rate > best ? rate : best;
    }
    return best;
}

// Measured by AdamW on many weights, which memory bandwidth alone limits.
static double memory_gbs(const Machine *machine, int ranks) {
    enum { BYTES = 1 << 28 };
    WorkItem item = {.op = OP_ADAMW, .dtype = F32, .bytes = BYTES};
    return 1e-9 * ranks * BYTES / price_operation_by_rates(machine, &item, ranks);
}

// ---- all of it -----------------------------------------------------------------------------------

typedef struct {
    Machine *machine;
    const RatesBench *bench;
} Job;

static void tell(const Comm *world, const Job *job, const char *what, int ranks) {
    if (job->bench->tell && comm_rank(world) == 0) job->bench->tell(what, ranks);
}

// `ranks` ranks compute, the others wait.
static Status measure(Comm *world, Comm *alone, const Job *job, int ranks) {
    static const DType dtypes[] = {F32, BF16};
    Samples samples = {0};
    Status status = OK;
    for (int i = 0; i < 1 + job->bench->bf16 && status == OK; i++) {
        tell(world, job, dtype_name(dtypes[i]), ranks);
        if (comm_rank(world) < ranks)
            status = rates_of_references(alone, references, NUM_REFERENCES, dtypes[i], "cpu",
                                         job->bench->threads, 0, &samples);
        status = comm_agree(world, status);
    }
    if (status == OK && ranks > 1) {
        tell(world, job, "messages", ranks);
        status = time_wires(world, &samples);
    }
    if (status == OK && comm_rank(world) == 0) status = rates_fit(job->machine, &samples, ranks);
    samples_free(&samples);
    return comm_agree(world, status);
}

static Status rank_main(Comm *world, void *arg) {
    const Job *job = arg;
    Comm *alone;
    int me = comm_rank(world), ranks = comm_size(world);
    TRY(comm_agree(world, comm_split(world, "alone", &me, 1, &alone)));
    Status status = measure(world, alone, job, 1);
    if (status == OK && ranks > 1) status = measure(world, alone, job, ranks);
    comm_close(alone);
    return status;
}

static double memory_gb(void) {
    return 1e-9 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

Status rates_bench(Machine *machine, const RatesBench *bench) {
    Job job = {machine, bench};
    int ranks = bench->ranks;
    CommOptions options = {.transport = comm_transport_here(),
                           .ranks = ranks,
                           .timeout_s = 600,
                           .deterministic = true,
                           .threads = bench->threads,
                           .bind_cores = true};
    *machine = (Machine){.is_cpu = true, .devices_per_node = ranks};
    TRY(comm_launch(options, rank_main, &job));
    if (!machine->num_rates) return OK; // not rank 0
    machine->peak_tflops[F32] = peak_tflops(machine, F32);
    machine->peak_tflops[BF16] = peak_tflops(machine, BF16);
    machine->memory_gb = memory_gb() / ranks;
    machine->usable_gb = 0.95 * machine->memory_gb;
    machine->memory_gbs = memory_gbs(machine, ranks) / ranks;
    return OK;
}
