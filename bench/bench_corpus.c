// How fast `trireme preprocess` is, for each core: text and JSON lines, as files and as archives, from
// made-up words that are about as frequent and as long as those of a natural language (Zipf).
//
//   bench_corpus [MEGABYTES]     default 128
#include "base/rank.h"
#include "base/rng.h"
#include "corpus/corpus.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum { NUM_WORDS = 50000, VOCABULARY = 32000 };

static char words[NUM_WORDS][16];
static char folder[] = "/tmp/trireme-bench-XXXXXX";

static void make_words(void) {
    static const char letters[] = "eeeeetttaaaooiiinnnsssrrhhllddccuummffppggwwyybvk";
    RngKey key = rng_key(1, "bench words", 0);
    for (uint32_t i = 0; i < NUM_WORDS; i++) {
        int length = 2 + (int)(log2(i + 2) / 2 + rng_word(key, i, 0) % 5);
        for (int c = 0; c < length; c++)
            words[i][c] = letters[rng_word(key, i, (uint64_t)c + 1) % (sizeof letters - 1)];
    }
}

// Word of rank r with a frequency of about 1/r: the exponential of a uniform number.
static const char *next_word(RngKey key, uint64_t *used) {
    double uniform = rng_word(key, 0, (*used)++) / 4294967296.0;
    return words[(int)(exp(uniform * log(NUM_WORDS)) - 1)];
}

static const char *path_of(const char *name) {
    static char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// One paragraph of about 3 KB a document. `json`: as lines; as an archive, too.
static void make_text(const char *name, int64_t bytes, bool json) {
    char archive[32];
    snprintf(archive, sizeof archive, "%s.gz", name);
    FILE *out = fopen(path_of(name), "wb");
    gzFile gz = gzopen(path_of(archive), "wb1");
    RngKey key = rng_key(2, "bench text", 0);
    Text text = {0};
    uint64_t used = 0;
    for (int64_t done = 0; out && gz && done < bytes; done += (int64_t)text.size) {
        text.size = 0;
        text_add(&text, json ? "{\"text\": \"" : "");
        for (int i = 0; i < 500; i++)
            text_add(&text, "%s%s", next_word(key, &used), i % 17 == 16 ? (json ? ".\\n" : ".\n") : " ");
        text_add(&text, json ? "\"}\n" : "\n");
        fwrite(text.data, 1, text.size, out);
        gzwrite(gz, text.data, (unsigned)text.size);
    }
    text_free(&text);
    if (out) fclose(out);
    if (gz) gzclose(gz);
}

static double process_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static Status measure(const char *name, const char *tokenizer, int workers) {
    char input[64], prefix[64];
    snprintf(input, sizeof input, "%s", path_of(name));
    snprintf(prefix, sizeof prefix, "%s", path_of("out"));
    const char *inputs[] = {input}, *keys[] = {"text"};
    PreprocessJob job = {.inputs = inputs,
                         .num_inputs = 1,
                         .output_prefix = prefix,
                         .json_keys = keys,
                         .num_json_keys = 1,
                         .append_eod = true,
                         .workers = workers,
                         .tokenizer_path = tokenizer,
                         .vocab_size = VOCABULARY};
    PreprocessSummary s;
    double before_s = process_s();
    TRY(preprocess_run(&job, &s));
    double cpu_s = process_s() - before_s, mb = (double)s.bytes / 1e6;
    printf("%-14s %d workers  %6.1f MB/s  %6.1f MB/s for each second of a core", name, workers,
           mb / s.encode_s, mb / cpu_s);
    if (s.vocab_trained) printf("  (with %.1f s to train %d tokens)", s.train_s, s.vocab_size);
    putchar('\n');
    return OK;
}

static Status run(int64_t bytes) {
    static const char *const names[] = {"text.txt", "text.txt.gz", "lines.jsonl", "lines.jsonl.gz"};
    char tokenizer[64];
    make_words();
    make_text("text.txt", bytes, false);
    make_text("lines.jsonl", bytes, true);
    TRY(measure("text.txt", NULL, 1));
    snprintf(tokenizer, sizeof tokenizer, "%s", path_of("out"));
    for (int i = 0; i < 4; i++) TRY(measure(names[i], tokenizer, 1));
    return measure("lines.jsonl", tokenizer, 2);
}

int main(int argc, char **argv) {
    int64_t megabytes = 128;
    if (argc > 1 && (!parse_int(argv[1], &megabytes) || megabytes < 1)) return ERR_USAGE;
    if (!mkdtemp(folder)) return ERR_CREATE;
    Status status = run(megabytes * 1000000);
    if (status != OK) fprintf(stderr, "%s\n", fail_message());
    static const char *const names[] = {"text.txt", "text.txt.gz", "lines.jsonl",       "lines.jsonl.gz",
                                        "out.bin",  "out.idx",     "out.tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(path_of(names[i]));
    rmdir(folder);
    return (int)status;
}
