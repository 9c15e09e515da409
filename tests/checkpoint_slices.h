// Random models for the tests of checkpoints: tensors with values that are a function of their place, cut at
// random into the slices of several ranks.
#pragma once
#include "base/file.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "harness.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 12, MAX_SLICES = 400, MAX_RANKS = 6 };

typedef struct {
    char name[96];
    int64_t rows, cols;
    float *values;
} ModelTensor;

typedef struct {
    ModelTensor tensors[MAX_TENSORS];
    int num_tensors;
    Slice slices[MAX_RANKS][MAX_SLICES];
    int num_slices[MAX_RANKS], num_ranks;
} Model;

// Draws that are a function of (seed, how many before).
typedef struct {
    RngKey key;
    uint64_t drawn;
} Dice;

static inline Dice dice_of(uint64_t seed) { return (Dice){rng_key(seed, "tests of checkpoints", 0), 0}; }
static inline int64_t roll(Dice *dice, int64_t below) {
    return (int64_t)(rng_word(dice->key, 0, dice->drawn++) % (uint64_t)below);
}

static inline void give_slice(Model *m, const ModelTensor *t, Rect r, Dice *dice) {
    int rank = (int)roll(dice, m->num_ranks);
    CHECK(m->num_slices[rank] < MAX_SLICES, "too many slices");
    Slice *s = &m->slices[rank][m->num_slices[rank]++];
    *s = (Slice){.rows = t->rows,
                 .cols = t->cols,
                 .rect = r,
                 .data = t->values + r.row * t->cols + r.col,
                 .stride = t->cols};
    memcpy(s->tensor, t->name, sizeof t->name);
}

// A flat range, as a rank of the distributed optimizer has it: the end of a row, whole rows, a start.
static inline int64_t flat_part(Model *m, const ModelTensor *t, Rect whole, int64_t begin, int64_t end,
                                Dice *dice) {
    int64_t row = begin / whole.cols, col = begin % whole.cols;
    if (col || end - begin < whole.cols) {
        int64_t stop = end < (row + 1) * whole.cols ? end : (row + 1) * whole.cols;
        give_slice(m, t, (Rect){whole.row + row, whole.col + col, 1, stop - begin}, dice);
        return stop;
    }
    int64_t rows = end / whole.cols - row;
    give_slice(m, t, (Rect){whole.row + row, whole.col, rows, whole.cols}, dice);
    return (row + rows) * whole.cols;
}

static inline void cut(Model *m, const ModelTensor *t, Rect r, int depth, Dice *dice) {
    int64_t how = depth ? roll(dice, 4) : 3;
    if (how == 0 && r.rows > 1) {
        int64_t top = 1 + roll(dice, r.rows - 1);
        cut(m, t, (Rect){r.row, r.col, top, r.cols}, depth - 1, dice);
        cut(m, t, (Rect){r.row + top, r.col, r.rows - top, r.cols}, depth - 1, dice);
    } else if (how == 1 && r.cols > 1) {
        int64_t left = 1 + roll(dice, r.cols - 1);
        cut(m, t, (Rect){r.row, r.col, r.rows, left}, depth - 1, dice);
        cut(m, t, (Rect){r.row, r.col + left, r.rows, r.cols - left}, depth - 1, dice);
    } else if (how == 2) {
        int64_t count = r.rows * r.cols;
        for (int64_t at = 0; at < count;) {
            int64_t end = at + 1 + roll(dice, count - at);
            while (at < end) at = flat_part(m, t, r, at, end, dice);
        }
    } else {
        give_slice(m, t, r, dice);
    }
}

// `most`: rows and columns. `depth`: how often a tensor is cut; 0: not at all.
static inline Model *model_make(uint64_t seed, int num_ranks, int64_t most, int depth) {
    static const char *const parts[] = {"embedding.word_embeddings.weight", "decoder.layers.%d.mlp.weight",
                                        "decoder.final_layernorm.bias",
                                        "optimizer.exp_avg.decoder.layers.%d.mlp.weight"};
    Dice dice = dice_of(seed);
    Model *m = calloc(1, sizeof *m);
    CHECK(m, "no memory for a model");
    m->num_ranks = num_ranks;
    m->num_tensors = 4 + (int)roll(&dice, MAX_TENSORS - 4);
    for (int i = 0; i < m->num_tensors; i++) {
        ModelTensor *t = &m->tensors[i];
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const char *part = parts[i == 0 ? 0 : i == 1 ? 2 : 1 + 2 * (i % 2)], *mark = strstr(part, "%d");
        snprintf(t->name, sizeof t->name, "%.*s%s%s", mark ? (int)(mark - part) : 40, part,
                 mark ? number : "", mark ? mark + 2 : "");
        t->rows = i == 1 ? 1 : 1 + roll(&dice, most);
        t->cols = 1 + roll(&dice, most);
        t->values = malloc((size_t)(t->rows * t->cols) * sizeof *t->values);
        CHECK(t->values, "no memory for a tensor");
        rng_fill_normal(rng_key(seed, t->name, 1), 0, (uint64_t)(t->rows * t->cols), 0, 1, t->values);
        cut(m, t, (Rect){0, 0, t->rows, t->cols}, depth, &dice);
    }
    return m;
}

static inline void model_free(Model *m) {
    for (int i = 0; i < m->num_tensors; i++) free(m->tensors[i].values);
    free(m);
}

static inline CheckpointInfo info_at(int64_t iteration) {
    return (CheckpointInfo){.shape = {.layers = 2,
                                      .hidden = 8,
                                      .heads = 2,
                                      .head_size = 4,
                                      .ffn = 32,
                                      .sequence = 16,
                                      .groups = 1,
                                      .positions = 16,
                                      .vocabulary = 50,
                                      .activation = ACTIVATION_SWIGLU,
                                      .position = POSITION_ROTARY,
                                      .rotary_base = 10000,
                                      .rotary_columns = 4,
                                      .rms_norm = true,
                                      .hidden_dropout = 0.1f,
                                      .attention_dropout = 0x1.fffffep-1f, // the largest below 1
                                      .norm_epsilon = 1e-5f,
                                      .init_std = 0.02f,
                                      .seed = 1234},
                            .state = {.iteration = iteration,
                                      .consumed = 8 * iteration,
                                      .usual_loss = 1.0 / 3,
                                      .loss_scale = 65536},
                            .grid = GRID(2, 3, 1),
                            .num_chunks = 1,
                            .dtype = "bf16",
                            .has_optimizer = true,
                            .config = "# of the run\nnum-layers: 2\n",
                            .program = "trireme test"};
}

// The whole protocol, as a run does it.
static inline Status model_save(const Model *m, const char *save, int64_t iteration) {
    CheckpointNames names;
    CheckpointInfo info = info_at(iteration);
    Text records[MAX_RANKS] = {0};
    TRY(checkpoint_names(save, iteration, &names));
    TRY(checkpoint_begin(&names, 1000));
    Status status = OK;
    for (int r = 0; r < m->num_ranks && status == OK; r++)
        status = checkpoint_write_shard(&names, r, m->slices[r], m->num_slices[r], &records[r]);
    if (status == OK)
        status = checkpoint_commit(&names, -1, &info, NULL, records, m->num_ranks);
    else
        checkpoint_abandon(&names, -1);
    for (int r = 0; r < m->num_ranks; r++) text_free(&records[r]);
    return status;
}

// Every tensor, whole, has the model's bytes.
static inline void expect_model(Checkpoint *c, const Model *m) {
    EXPECT(checkpoint_num_tensors(c) == m->num_tensors, "%d tensors", checkpoint_num_tensors(c));
    for (int i = 0; i < m->num_tensors; i++) {
        const ModelTensor *t = &m->tensors[i];
        int at = checkpoint_find(c, t->name);
        EXPECT(at >= 0, "%s is not found", t->name);
        if (at < 0) continue;
        CheckpointTensor found = checkpoint_tensor(c, at);
        EXPECT(!strcmp(found.name, t->name) && found.rows == t->rows && found.cols == t->cols, "%s is %s",
               t->name, found.name);
        size_t bytes = (size_t)(t->rows * t->cols) * sizeof(float);
        float *values = malloc(bytes);
        CHECK(values, "no memory for a tensor");
        EXPECT_OK(checkpoint_read(c, at, (Rect){0, 0, t->rows, t->cols}, values, t->cols));
        EXPECT(!memcmp(values, t->values, bytes), "%s has other values", t->name);
        free(values);
    }
}

static inline void expect_saved(const Model *m, const char *save, int64_t iteration) {
    CheckpointNames names;
    Checkpoint *c = NULL;
    EXPECT_OK(checkpoint_names(save, iteration, &names));
    EXPECT_OK(checkpoint_open(&c, names.final));
    if (!c) return;
    EXPECT_OK(checkpoint_verify(c));
    expect_model(c, m);
    checkpoint_close(c);
}

// Valid until the program ends.
static inline const char *path_in(const char *name) {
    static char paths[64][600];
    char path[600];
    int i = 0;
    snprintf(path, sizeof path, "%s/%s", harness_folder(), name);
    while (paths[i][0] && strcmp(paths[i], path) != 0) i++;
    CHECK(i < 63, "too many paths");
    return memcpy(paths[i], path, sizeof path);
}

// In memory where there is a place for it: a disk would spend the tests' time on syncing.
static inline void use_memory_for_files(void) {
    if (file_exists("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1);
}
