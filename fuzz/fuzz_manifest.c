// The manifest.json of a checkpoint whose other files are whole. Its last line, the checksum, is appended to
// the input, unless that ends with a NUL. Law: of what opens every tensor is read, or is damaged. The seed
// "whole" is the manifest that this checkpoint is written with.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "fuzz.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, COLS = 4, MAX_ELEMENTS = 1 << 16 };

static const float values[ROWS * COLS] = {1, 2, 3};

// One rank, a matrix in two slices and a vector: the bytes are the same each time.
static void make_checkpoint(const CheckpointNames *names) {
    static const Slice SLICES[] = {
        {"embedding.word_embeddings.weight", ROWS, COLS, {0, 0, 2, COLS}, COLS, .data = values},
        {"embedding.word_embeddings.weight", ROWS, COLS, {2, 0, ROWS - 2, COLS}, COLS, .data = values},
        {"decoder.final_layernorm.weight", 1, COLS, {0, 0, 1, COLS}, COLS, .data = values},
    };
    CheckpointInfo info = {
        .shape =
            {.layers = 1, .hidden = COLS, .heads = 1, .head_size = COLS, .ffn = COLS, .norm_epsilon = 1e-5f},
        .state = {.iteration = 3, .consumed = 24},
        .grid = GRID(1, 1, 1),
        .num_chunks = 1,
        .dtype = "f32",
        .config = "layers: 1\n",
        .program = "fuzz"};
    info.shape.sequence = info.shape.positions = COLS;
    info.shape.vocabulary = ROWS;
    Text record = {0};
    Status status = checkpoint_begin(names, sizeof values);
    if (status == OK) status = checkpoint_write_shard(names, 0, SLICES, 3, &record);
    if (status == OK) status = checkpoint_commit(names, -1, &info, NULL, &record, 1);
    CHECK(status == OK, "%s", fail_message());
    text_free(&record);
}

static const char *checkpoint(void) {
    static CheckpointNames names;
    if (names.final[0]) return names.final;
    CHECK(checkpoint_names(fuzz_folder(), 3, &names) == OK, "%s", fail_message());
    make_checkpoint(&names);
    return names.final;
}

static void write_manifest(const uint8_t *data, size_t size) {
    char name[64];
    Text text = {0};
    text_add_bytes(&text, data, size);
    if (!size || data[size - 1]) manifest_write_last_line((const char *)data, size, &text);
    snprintf(name, sizeof name, "%s/manifest.json", strrchr(checkpoint(), '/') + 1);
    fuzz_file(name, text.data, text.size);
    text_free(&text);
}

static void read_tensor(Checkpoint *c, int i) {
    CheckpointTensor tensor = checkpoint_tensor(c, i);
    int64_t elements;
    CHECK(tensor.rows > 0 && tensor.cols > 0, "%s is empty", tensor.name);
    if (__builtin_mul_overflow(tensor.rows, tensor.cols, &elements) || elements > MAX_ELEMENTS) return;
    float *out = malloc((size_t)elements * sizeof *out);
    CHECK(out, "no memory for %s", tensor.name);
    Status status = checkpoint_read(c, i, (Rect){0, 0, tensor.rows, tensor.cols}, out, tensor.cols);
    CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
    CHECK(checkpoint_find(c, tensor.name) == i, "%s is not found", tensor.name);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Checkpoint *c;
    write_manifest(data, size);
    Status status = checkpoint_open(&c, checkpoint());
    CHECK(status == OK || status == ERR_DATA || status == ERR_UNAVAILABLE || status == ERR_NO_INPUT,
          "status %d: %s", (int)status, fail_message());
    if (status != OK) return 0;
    for (int i = 0; i < checkpoint_num_tensors(c); i++) read_tensor(c, i);
    status = checkpoint_verify(c);
    CHECK(status == OK || status == ERR_DATA || status == ERR_NO_INPUT, "status %d: %s", (int)status,
          fail_message());
    checkpoint_close(c);
    return 0;
}
