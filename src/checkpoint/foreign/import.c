// Imports a model of another program as a checkpoint of weights, shard by shard.
#include "checkpoint/foreign/hugging_face.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// A shard holds what fits into memory at once, so that larger models can be imported: whole tensors while there is
// room, or some rows of a tensor that is larger.
enum { MAX_SHARD_ELEMENTS = 128 << 20 };

typedef struct {
    ModelSource *source;
    const Tokenizer *tokenizer; // NULL: the source's
    const WeightSpec *weights;
    int count;
    float *room;   // of one shard
    int64_t most;  // elements of `room`
    Slice *slices; // of one shard: [count]
    Text *records; // of the shards written so far
    int num_shards, max_shards;
} Import;

// The place where the next shard begins.
typedef struct {
    int weight;
    int64_t row;
} Cursor;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Reads the next rows, as many as fit. Sets `full` when none fits.
static Status read_slice(Import *import, Cursor *at, int64_t *used, Slice *slice, bool *full) {
    const WeightSpec *w = &import->weights[at->weight];
    int64_t rows = smaller(w->rows - at->row, (import->most - *used) / w->cols);
    *full = rows == 0;
    if (*full) return OK;
    *slice = (Slice){.rows = w->rows,
                     .cols = w->cols,
                     .rect = {at->row, 0, rows, w->cols},
                     .data = import->room + *used,
                     .stride = w->cols};
    snprintf(slice->tensor, sizeof slice->tensor, "%s", w->name);
    TRY(model_source_read(import->source, w->name, slice->rect, import->room + *used, w->cols));
    *used += rows * w->cols;
    at->row += rows;
    if (at->row == w->rows) *at = (Cursor){at->weight + 1, 0};
    return OK;
}

static Status add_record(Import *import, Text **record) {
    if (import->num_shards == import->max_shards) {
        int max = import->max_shards ? 2 * import->max_shards : 16;
        Text *more = realloc(import->records, (size_t)max * sizeof *more);
        if (!more) return fail(ERR_OS, "no memory for the records of %d files", max);
        import->records = more;
        import->max_shards = max;
    }
    *record = &import->records[import->num_shards++];
    **record = (Text){0};
    return OK;
}

static Status write_shard(Import *import, const CheckpointNames *names, Cursor *at) {
    int64_t used = 0;
    int slices = 0;
    for (bool full = false; at->weight < import->count && slices < import->count;) {
        TRY(read_slice(import, at, &used, &import->slices[slices], &full));
        if (full) break;
        slices++;
    }
    CHECK(slices > 0, "no row of %s fits into a shard", import->weights[at->weight].name);
    Text *record = NULL;
    TRY(add_record(import, &record));
    return checkpoint_write_shard(names, import->num_shards - 1, import->slices, slices, record);
}

static Status write_shards(Import *import, const CheckpointNames *names, int64_t elements) {
    TRY(checkpoint_begin(names, elements * (int64_t)sizeof(float)));
    for (Cursor at = {0}; at.weight < import->count;) TRY(write_shard(import, names, &at));
    return OK;
}

// Writes the options of the model for --config. The size of the vocabulary follows from the tokenizer.
static void add_configuration(const ModelSource *source, Text *out) {
    ModelOption rows[MAX_MODEL_OPTIONS];
    int count = model_options(&model_source_info(source)->shape, rows);
    text_add(
        out,
        "# The model of %s as options of a training run. Read back with --config; --load takes it too.\n",
        model_source_path(source));
    for (int i = 0; i < count; i++) {
        bool left_out = !*rows[i].value || !strcmp(rows[i].option, "vocab_size");
        if (!left_out) text_add(out, "%s: %s\n", rows[i].option, rows[i].value);
    }
}

// Opens the tokenizer of the source; NULL: it has none, or another one is used.
static Status own_tokenizer(const Import *import, Tokenizer **own) {
    *own = NULL;
    if (import->tokenizer) return OK;
    Status status = model_source_tokenizer(import->source, own);
    if (status != OK) *own = NULL;
    tokenizer_print_note(*own);
    return status == ERR_NO_INPUT ? OK : status;
}

static Status commit_with(Import *import, const CheckpointNames *names, int lock, const char *config) {
    CheckpointInfo info = *model_source_info(import->source);
    Tokenizer *own = NULL;
    if (!info.config) info.config = config;
    info.state = (RunState){0};
    info.grid = (Grid)GRID(1, 1, 1);
    info.num_chunks = 1;
    info.has_optimizer = false;
    TRY(own_tokenizer(import, &own));
    Companions companions;
    Status status = companions_read(&companions, import->source, own);
    if (status == OK) status = companions_write(&companions, names->temporary, true);
    if (status == OK)
        status = checkpoint_commit(names, lock, &info, import->tokenizer ? import->tokenizer : own,
                                   import->records, import->num_shards);
    companions_free(&companions);
    tokenizer_close(own);
    return status;
}

static Status commit(Import *import, const CheckpointNames *names, int lock) {
    Text config = {0};
    add_configuration(import->source, &config);
    Status status = commit_with(import, names, lock, config.data);
    text_free(&config);
    return status;
}

static Status take_room(Import *import, int64_t *elements) {
    int64_t widest = 0;
    *elements = 0;
    for (int i = 0; i < import->count; i++) {
        *elements += import->weights[i].rows * import->weights[i].cols;
        if (import->weights[i].cols > widest) widest = import->weights[i].cols;
    }
    import->most = smaller(*elements, MAX_SHARD_ELEMENTS);
    if (import->most < widest) import->most = widest;
    import->room = malloc((size_t)import->most * sizeof *import->room);
    import->slices = calloc((size_t)import->count, sizeof *import->slices);
    if (import->room && import->slices) return OK;
    return fail(ERR_OS, "no memory for %" PRId64 " weights", import->most);
}

static Status import_weights(Import *import, const char *save, double lock_wait_s) {
    CheckpointNames names;
    int64_t elements;
    TRY(checkpoint_names(save, 0, &names));
    int lock;
    TRY(checkpoint_lock_new(&names, save, lock_wait_s, &lock));
    Status status = take_room(import, &elements);
    if (status == OK) status = write_shards(import, &names, elements);
    if (status == OK) status = commit(import, &names, lock);
    if (status != OK) checkpoint_abandon(&names, lock);
    checkpoint_unlock(lock);
    return status;
}

Status import_model(ModelSource *source, const Tokenizer *tokenizer, const char *save, double lock_wait_s) {
    WeightSpec *weights;
    Import import = {.source = source, .tokenizer = tokenizer};
    TRY(model_weights(&model_source_info(source)->shape, &weights, &import.count));
    import.weights = weights;
    Status status = import_weights(&import, save, lock_wait_s);
    for (int i = 0; i < import.num_shards; i++) text_free(&import.records[i]);
    free(import.records);
    free(import.slices);
    free(import.room);
    free(weights);
    return status;
}
