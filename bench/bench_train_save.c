// What saving costs: how fast a checkpoint reaches the disk beside a plain file of its size, and how much
// longer a training step takes while one is being written (--async-save). One rank of one thread, so that a
// core is left for the writing where the machine has two; a GPT of 40 M parameters, 480 MB of state. Usage:
// bench_train_save [FOLDER]      on the disk that is to be measured; by default the working folder
#include "median.h"
#include "train/internal.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 24, SAVE_EVERY = 6, ROUNDS = 5, SEQUENCE = 512, VOCABULARY = 8192 };

static EngineSpec spec(void) {
    EngineSpec s = {.grid = GRID(1, 1, 1),
                    .schedule = "1f1b",
                    .num_chunks = 1,
                    .num_microbatches = 2,
                    .device = "cpu",
                    .threads = 1,
                    .bucket_elements = 40000000,
                    .adam = {0.9, 0.95, 1e-8, 1.0}};
    s.shape = (ModelShape){.layers = 11,
                           .hidden = 512,
                           .heads = 8,
                           .head_size = 64,
                           .ffn = 2048,
                           .sequence = SEQUENCE,
                           .positions = SEQUENCE,
                           .vocabulary = VOCABULARY,
                           .norm_epsilon = 1e-5f,
                           .init_std = 0.02f,
                           .seed = 1};
    s.mode = (ModelMode){.microbatch = 1, .padded_vocabulary = VOCABULARY};
    s.split.layers = s.shape.layers;
    return s;
}

// ---- the disk -----------------------------------------------------------------------------------

// Seconds to write so many bytes to a new file and have them there.
static double write_plain(const char *folder, const char *bytes, int64_t count) {
    enum { PIECE = 8 << 20 };
    char path[4096];
    snprintf(path, sizeof path, "%s/plain", folder);
    double start = clock_s();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    CHECK(fd >= 0, "%s cannot be made", path);
    for (int64_t at = 0; at < count;) {
        ssize_t size = write(fd, bytes + at, (size_t)(count - at < PIECE ? count - at : PIECE));
        CHECK(size > 0, "%s cannot be written", path);
        at += size;
    }
    CHECK(fsync(fd) == 0 && close(fd) == 0, "%s cannot be finished", path);
    double seconds = clock_s() - start;
    unlink(path);
    return seconds;
}

static Status save_now(Saver *saver, Engine *engine, int64_t iteration) {
    RunState state = {.iteration = iteration, .consumed = iteration};
    TRY(saver_start(saver, engine, &state, false));
    return saver_finish(saver);
}

// Turn about, because disks change their pace.
static Status measure_disk(Saver *saver, Engine *engine, const char *folder) {
    double plain[ROUNDS], save[ROUNDS];
    TRY(save_now(saver, engine, 1));
    int64_t bytes = saver->state.bytes;
    char *memory = malloc((size_t)bytes);
    if (!memory) return fail(ERR_OS, "no memory for %lld bytes", (long long)bytes);
    for (int64_t i = 0; i < bytes; i++) memory[i] = (char)(i * 2654435761u >> 13);
    for (int i = 0; i < ROUNDS; i++) {
        plain[i] = write_plain(folder, memory, bytes);
        double start = clock_s();
        TRY(save_now(saver, engine, i + 2));
        save[i] = clock_s() - start;
    }
    free(memory);
    double rate = (double)bytes / 1e6;
    double a = rate / median(plain, ROUNDS), b = rate / median(save, ROUNDS);
    printf("%.0f MB, medians of %d: a plain file at %.0f MB/s, a checkpoint at %.0f MB/s: %.2f of it\n", rate,
           ROUNDS, a, b, b / a);
    return OK;
}

// ---- the steps ----------------------------------------------------------------------------------

static double step(Engine *engine, const Batch *batch, Saver *saver, int i, bool *saving) {
    double start = clock_s();
    RunState state = {.iteration = 100 + i, .consumed = 100 + i};
    if (saver && i % SAVE_EVERY == 0)
        CHECK(saver_start(saver, engine, &state, false) == OK, "%s", fail_message());
    *saving = saver && saver->phase != SAVER_IDLE;
    engine_train(engine, *batch, (StepOptions){1e-3, 0.1, 1});
    if (saver && !saver_is_busy(saver)) CHECK(saver_advance(saver) == OK, "%s", fail_message());
    return clock_s() - start;
}

static void measure_steps(Saver *saver, Engine *engine, const Batch *batch) {
    double quiet[STEPS], during[STEPS], longest = 0;
    int num_quiet = 0, num_during = 0;
    bool saving;
    step(engine, batch, NULL, 1, &saving);
    for (int i = 0; i < STEPS; i++) {
        double seconds = step(engine, batch, saver, i, &saving);
        if (saving)
            during[num_during++] = seconds;
        else
            quiet[num_quiet++] = seconds;
        if (saving && seconds > longest) longest = seconds;
    }
    CHECK(saver_finish(saver) == OK && num_quiet > 0, "%s", fail_message());
    double usual = median(quiet, num_quiet);
    printf(
        "%d steps without a save: median %.0f ms; %d during one, copy included: median %.3f times as long, the "
        "longest %.3f\n",
        num_quiet, 1e3 * usual, num_during, median(during, num_during) / usual, longest / usual);
}

static Status run(Comm *world, void *arg) {
    char *folder = arg, kept[] = "1";
    char *words[] = {"--save",           folder,          "--async-save", "--keep-last", kept,
                     "--tokenizer-type", "NullTokenizer", "--vocab-size", "8191"};
    static int32_t tokens[2 * SEQUENCE], labels[2 * SEQUENCE];
    for (int i = 0; i < 2 * SEQUENCE; i++)
        tokens[i] = i * 7919 % VOCABULARY, labels[i] = i * 7907 % VOCABULARY;
    Batch batch = {.num_microbatches = 2, .tokens = tokens, .labels = labels};
    EngineSpec made = spec();
    Options options;
    Engine *engine;
    Saver saver;
    TRY(options_parse(&options, FOR_TRAIN, (int)(sizeof words / sizeof words[0]), words));
    TRY(engine_open(&engine, &made, world));
    TRY(saver_open(&saver, &options, NULL, world, NULL));
    options.async_save = false; // written straight from the state, without a copy
    TRY(measure_disk(&saver, engine, folder));
    options.async_save = true;
    TRY(saver_take_memory(&saver, engine, false));
    measure_steps(&saver, engine, &batch);
    saver_close(&saver);
    engine_close(engine);
    options_destroy(&options);
    return OK;
}

int main(int argc, char **argv) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/bench-save-XXXXXX", argc > 1 ? argv[1] : ".");
    CHECK(mkdtemp(folder), "no folder can be made in %s", argc > 1 ? argv[1] : ".");
    CommOptions one = {.transport = "threads", .ranks = 1, .timeout_s = 600, .deterministic = true};
    Status status = comm_launch(one, run, folder);
    if (status != OK) fprintf(stderr, "bench_train_save: %s\n", fail_message());
    if (folder_remove(folder) != OK) fprintf(stderr, "bench_train_save: %s\n", fail_message());
    return (int)status;
}
