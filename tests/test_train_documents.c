// What a run with documents reads: on every stage, also one between the first and the last, the first key that each token
// sees and its position, which start again behind the token that ends a document.
#include "config_words.h"
#include "harness.h"
#include "train/internal.h"

enum { SEQUENCE = 400, SAMPLES = 2, MICROBATCHES = 3, VOCABULARY = 10, END = 9 };
#define WORDS                                                                                                \
    "--mock-data --vocab-size 10 --num-layers 3 --hidden-size 8 --num-attention-heads 2 --seq-length 400 "   \
    "--micro-batch-size 2 --global-batch-size 6 --train-iters 4 --lr 1e-3 --eval-iters 0 --ranks 3 "         \
    "--pipeline-model-parallel-size 3 "

// Follows the definition: what comes behind the last end of a document before the token.
static void expect_documents(const Batch *batch, const char *words) {
    int ends = 0;
    for (int64_t i = 0; i < (int64_t)MICROBATCHES * SEQUENCE * SAMPLES; i++) {
        int64_t s = i / SAMPLES % SEQUENCE, first = s;
        while (first > 0 && batch->tokens[i - (s - first + 1) * SAMPLES] != END) first--;
        EXPECT(batch->first_keys[i] == first && batch->positions[i] == s - first,
               "%s: token %lld sees from %d on and is at %d, not %lld and %lld", words, (long long)i,
               batch->first_keys[i], batch->positions[i], (long long)first, (long long)(s - first));
        ends += batch->tokens[i] == END;
    }
    EXPECT(ends > MICROBATCHES * SAMPLES, "only %d documents end", ends);
}

static Status read_batch(Comm *world, void *arg) {
    const char *words = arg;
    Options o;
    Batches b = {0};
    Batch batch;
    Topology topology = topology_of((Grid)GRID(1, 1, 3), comm_rank(world));
    char line[1024];
    snprintf(line, sizeof line, "%s%s", WORDS, words);
    TRY(parse_line(&o, FOR_TRAIN, line));
    TRY(options_resolve(&o, 3));
    TRY(batches_look(&b, &o, world));
    TRY(batches_open(&b, &o, &topology));
    TRY(batches_load(&b, b.train, 0, MICROBATCHES, &batch));
    bool inner = !topology_is_first(&topology) && !topology_is_last(&topology);
    EXPECT(!inner || (b.train != NULL) == (*words != 0), "%s: a stage between reads %s", words,
           b.train ? "all" : "nothing");
    if (*words) expect_documents(&batch, words);
    batches_close(&b);
    options_destroy(&o);
    return OK;
}

static void every_stage_finds_documents(void) {
    static const char *const WAYS[] = {"", "--reset-attention-mask", "--reset-position-ids",
                                       "--reset-attention-mask --reset-position-ids"};
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++)
        EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = 3, .timeout_s = 60}, read_batch,
                              (void *)(uintptr_t)WAYS[i]));
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every stage finds documents", every_stage_finds_documents}, {0}},
                       argc, argv);
}
