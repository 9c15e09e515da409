// Training steps of whole models on one GPU, run by the program itself (runs.h), beside PyTorch's.
//
//   bench_train_gpu small|large|tiny TRIREME [--device KIND] [--json FILE]             models up to, beyond a billion
//   bench_train_gpu pytorch small|large TRIREME PYTHON [--device KIND] [--json FILE]   pytorch_gpt.py, by PYTHON
//
// KIND is cuda unless given; tiny is for simulated GPUs. In bf16, or with products of 8-bit factors where a row says
// so; without dropout, on mock data; the median of the steps after the first. "MFU" is the share of the GPU's published
// rate of dense bf16 products, in rows with 8 bits, too: of 6 FLOPs for each weight of a product and token, and of
// attention's products, of which "causal" counts those below the diagonal and "full" all. A model that needs more
// memory than the GPU has is left out, with a note.
#include "base/text.h"
#include "device/survey.h"
#include "median.h"
#include "runs.h"
#include "table.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WORDS = 1024, TORCH_STEPS = 5 };

// The sizes stand here for the counts; the program takes them from --model.
typedef struct {
    const char *set, *name, *model;
    double layers, hidden, heads, groups, ffn, vocabulary, sequence; // vocabulary: padded
    bool gated;                                                      // SwiGLU: three products a layer
    int microbatch, batch, steps;
    double gib; // of memory, at least; by --dry-run
} Row;

static const Row ROWS[] = {
    {"small", "gpt2-124m, microbatch 16", "--model gpt2-124m", 12, 768, 12, 12, 3072, 50304, 1024, false, 16,
     64, 10, 8},
    {"small", "gpt2-124m, microbatch 64", "--model gpt2-124m", 12, 768, 12, 12, 3072, 50304, 1024, false, 64,
     64, 10, 24},
    {"small", "gpt2-124m, microbatch 16, 8 bits", "--model gpt2-124m --fp8-format hybrid", 12, 768, 12, 12,
     3072, 50304, 1024, false, 16, 64, 10, 9},
    {"large", "gpt2-1558m, microbatch 8", "--model gpt2-1.5b", 48, 1600, 25, 25, 6400, 50304, 1024, false, 8,
     16, 5, 46},
    {"large", "llama3-8b, 12 layers, microbatch 1", "--model llama3-8b --num-layers 12 --seq-length 4096", 12,
     4096, 32, 8, 14336, 128256, 4096, true, 1, 4, 5, 64},
    {"large", "llama3-8b, 12 layers, microbatch 1, 8 bits",
     "--model llama3-8b --num-layers 12 --seq-length 4096 --fp8-format hybrid", 12, 4096, 32, 8, 14336,
     128256, 4096, true, 1, 4, 5, 65},
    {"large", "llama2-7b, microbatch 1", "--model llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096, true, 1,
     4, 5, 119},
    {"large", "llama3-8b, microbatch 1", "--model llama3-8b --seq-length 4096", 32, 4096, 32, 8, 14336,
     128256, 4096, true, 1, 4, 5, 139},
    {"tiny", "tiny",
     "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32",
     2, 64, 2, 2, 256, 512, 32, false, 2, 4, 2, 0.1},
    {"tiny", "tiny, 8 bits",
     "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32 --fp8-format hybrid",
     2, 64, 2, 2, 256, 512, 32, false, 2, 4, 2, 0.1},
};
enum { NUM_ROWS = sizeof ROWS / sizeof *ROWS };

typedef struct {
    const char *trireme, *kind;
    double peak, memory; // FLOP/s of dense bf16 products, or NAN; bytes
    Tables tables;
    int failed;
} Bench;

static const Column COLUMNS[] = {{"ms/step", 1, LOWER_IS_BETTER},
                                 {"tokens/s", 0, HIGHER_IS_BETTER},
                                 {"MFU % causal", 1, INFORMS},
                                 {"MFU % full", 1, INFORMS}};
enum { NUM_COLUMNS = sizeof COLUMNS / sizeof *COLUMNS };

// ---- the GPU ----------------------------------------------------------------------------------------------

// NVIDIA's data sheets: A100, H100 and H200 as SXM, B200; without sparsity.
static double published_rate(const GpuSurvey *gpu) {
    switch (10 * gpu->major + gpu->minor) {
    case 80: return 312e12;
    case 90: return 989.5e12;
    case 100: return 2250e12;
    default: return NAN;
    }
}

static Status find_gpu(Bench *b) {
    DeviceSurvey survey = {0};
    Text module = {0};
    Status status = device_survey(b->kind, false, &survey, &module);
    text_free(&module);
    TRY(status);
    if (!survey.num_gpus) return fail(ERR_UNAVAILABLE, "--device %s has no GPU", b->kind);
    b->peak = published_rate(&survey.gpus[0]);
    b->memory = (double)survey.gpus[0].memory_bytes;
    return OK;
}

// ---- rows -------------------------------------------------------------------------------------------------

// The FLOPs of a token's products, forward and backward, without attention.
static double product_flops(const Row *r) {
    double size = r->hidden / r->heads;
    double layer = r->hidden * ((r->heads + 2 * r->groups) * size + r->hidden + (r->gated ? 3 : 2) * r->ffn);
    return 6 * (r->layers * layer + r->vocabulary * r->hidden);
}

static void add_row(Bench *b, const Row *r, const char *name, double step_s) {
    double tokens = r->batch * r->sequence, attention = 12 * r->layers * r->hidden * r->sequence;
    double full = tokens * (product_flops(r) + attention), causal = full - tokens * attention / 2;
    table_row(&b->tables, name,
              (double[]){1e3 * step_s, tokens / step_s, 100 * causal / step_s / b->peak,
                         100 * full / step_s / b->peak});
}

// A row that fails leaves the others.
static void bench_row(Bench *b, const Row *r) {
    char words[MAX_WORDS];
    double seconds[MAX_RUN_STEPS];
    snprintf(words, sizeof words,
             "%s --vocab-size %.0f --micro-batch-size %d --global-batch-size %d --hidden-dropout 0 "
             "--attention-dropout 0 --bf16 --device %s",
             r->model, r->vocabulary - 1, r->microbatch, r->batch, b->kind);
    Run run = {b->trireme, "", words, NULL, r->steps};
    if (run_steps(&run, seconds) == OK) {
        add_row(b, r, r->name, median(seconds, r->steps));
        return;
    }
    fprintf(stderr, "bench_train_gpu: %s: %s\n", r->name, fail_message());
    table_row(&b->tables, r->name, (double[]){NAN, NAN, NAN, NAN});
    b->failed++;
}

static bool fits(const Bench *b, const Row *r) { return r->gib * 0x1p30 <= b->memory; }

static void bench_set(Bench *b, const char *set) {
    char title[80];
    snprintf(title, sizeof title, "steps on one GPU, bf16, %s", set);
    table_begin(&b->tables, title, COLUMNS, NUM_COLUMNS);
    for (int i = 0; i < NUM_ROWS; i++)
        if (!strcmp(ROWS[i].set, set) && fits(b, &ROWS[i])) bench_row(b, &ROWS[i]);
    for (int i = 0; i < NUM_ROWS; i++)
        if (!strcmp(ROWS[i].set, set) && !fits(b, &ROWS[i]))
            table_note(&b->tables, "%s needs %.0f GiB, and the GPU has %.0f", ROWS[i].name, ROWS[i].gib,
                       b->memory / 0x1p30);
}

// ---- pytorch ----------------------------------------------------------------------------------------------

static Status torch_step(const char *python, const Row *r, bool compile, double *step_s) {
    char command[MAX_WORDS];
    snprintf(
        command, sizeof command,
        "%s -B bench/pytorch_gpt.py --device cuda --dtype bf16 --dropout 0 --batch %d --microbatches %d --layers %.0f "
        "--hidden %.0f --heads %.0f --vocabulary %.0f --seq %.0f --steps %d%s",
        python, r->microbatch, r->batch / r->microbatch, r->layers, r->hidden, r->heads, r->vocabulary,
        r->sequence, TORCH_STEPS, compile ? " --compile" : "");
    return run_number(command, "step_s", step_s);
}

static bool has_8_bits(const Row *r) { return strstr(r->model, "--fp8-format") != NULL; }

// The GPT models of a set, in bf16: the others are not written in pytorch_gpt.py.
static void bench_torch(Bench *b, const char *set, const char *python) {
    char title[80], name[120];
    snprintf(title, sizeof title, "PyTorch's steps on one GPU, bf16, %s", set);
    table_begin(&b->tables, title, COLUMNS, NUM_COLUMNS);
    for (int i = 0; i < 2 * NUM_ROWS; i++) {
        const Row *r = &ROWS[i / 2];
        double step_s;
        if (strcmp(r->set, set) != 0 || r->gated || has_8_bits(r) || !fits(b, r)) continue;
        snprintf(name, sizeof name, "%s, %s", r->name, i % 2 ? "torch.compile" : "eager");
        if (torch_step(python, r, i % 2, &step_s) == OK) {
            add_row(b, r, name, step_s);
            continue;
        }
        fprintf(stderr, "bench_train_gpu: %s: %s\n", name, fail_message());
        table_row(&b->tables, name, (double[]){NAN, NAN, NAN, NAN});
        b->failed++;
    }
}

// ---- all of it --------------------------------------------------------------------------------------------

static bool is_set(const char *word) {
    for (int i = 0; i < NUM_ROWS; i++)
        if (!strcmp(ROWS[i].set, word)) return true;
    return false;
}

// The value behind --device at the end of a command line, which is made shorter by it.
static const char *kind_of(int *argc, char **argv) {
    if (*argc < 3 || strcmp(argv[*argc - 2], "--device") != 0) return "cuda";
    *argc -= 2;
    return argv[*argc + 1];
}

static Status bench_train_gpu(int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    Bench b = {.kind = kind_of(&argc, argv)};
    bool torch = argc == 5 && !strcmp(argv[1], "pytorch");
    if (!(torch && is_set(argv[2])) && !(argc == 3 && is_set(argv[1])))
        return fail(ERR_USAGE,
                    "usage: bench_train_gpu small|large|tiny TRIREME, or pytorch small|large TRIREME PYTHON, "
                    "then [--device KIND] [--json FILE]");
    b.trireme = argv[torch ? 3 : 2];
    TRY(find_gpu(&b));
    if (torch)
        bench_torch(&b, argv[2], argv[4]);
    else
        bench_set(&b, argv[1]);
    char part[80];
    snprintf(part, sizeof part, "%s%s", torch ? "gpu-pytorch-" : "gpu-steps-", argv[torch ? 2 : 1]);
    TRY(tables_finish(&b.tables, part, json));
    return b.failed ? fail(ERR_OTHER, "%d rows failed; their messages are above", b.failed) : OK;
}

int main(int argc, char **argv) {
    Status status = bench_train_gpu(argc, argv);
    if (status) fprintf(stderr, "bench_train_gpu: %s\n", fail_message());
    return (int)status;
}
