// The manifest of a checkpoint as a structure. A rank's record and the manifest have the same form, tables of files
// and slices, so one function writes both and one reads both.
#pragma once
#include "base/hash.h"
#include "checkpoint/checkpoint.h"

// ---- fields.c: the state of the run and the shape of the model as rows ------------------------------------------

// Writes a JSON object of all fields.
void state_write(const RunState *state, Text *out);
void shape_write(const ModelShape *shape, Text *out);
void skipped_write(const RunState *state, Text *out); // the samples that are left out, and the rewinds
// Fails with ERR_DATA for a field that is missing, of another type or out of range. Messages begin with `what`.
Status state_read(const Json *object, const char *what, RunState *state);
Status shape_read(const Json *object, const char *what, ModelShape *shape);
Status skipped_read(const Json *object, const char *what, RunState *state); // NULL: nothing is left out

// ---- model_tokens.c ------------------------------------------------------------------------------------

// Reads bos_token_id, eos_token_id and pad_token_id of an object. Fails with ERR_DATA for another type.
Status tokens_read(const Json *object, const char *what, ModelTokens *tokens);
bool tokens_said(const ModelTokens *tokens); // whether there is any of them
void tokens_write(const ModelTokens *tokens, Text *out);
void tokens_write_ends(const int *ends, int count, Text *out); // a number, a list of several, or null

// ---- manifest.c, manifest_write.c, cover.c -------------------------------------------------------------

#define MANIFEST_FORMAT "trireme checkpoint"
enum { MANIFEST_VERSION = 6, PATH_ROOM = 4400, MAX_NAME = 200, SLICE_NAME = 256 };

typedef struct {
    const char *name; // in the checkpoint's folder
    int64_t bytes, header_bytes;
    uint64_t header_hash;
} ShardFile;

typedef struct {
    const char *tensor;
    int64_t rows, cols; // of the tensor
    Rect rect;
    int file;
    Hash hash;      // of its elements in the file, row after row
    int64_t offset; // of the first element in the file; known once the file is open
    bool verified;
} SliceEntry;

typedef struct {
    const char *name;
    int64_t bytes;
    Hash hash;
} OtherFile;

typedef struct {
    int first, count; // slices
} TensorEntry;

// Names are borrowed from `roots` or from the caller.
typedef struct {
    CheckpointInfo info;
    ShardFile *files;
    SliceEntry *slices; // manifest_finish sorts them by tensor, row, column
    OtherFile *others;
    TensorEntry *tensors; // made by manifest_finish: weights before moments; embedding, layers, head
    Json **roots;
    int num_files, num_slices, num_others, num_tensors, num_roots;
} Manifest;

void manifest_free(Manifest *manifest);
// Adds the files and slices of a record or of a whole manifest. Messages begin with `what`. The text need not outlive
// the call.
Status manifest_add(Manifest *manifest, const char *text, size_t size, const char *what);
void manifest_add_other(Manifest *manifest, OtherFile file);
// Groups the slices by tensor. Fails with ERR_DATA unless the slices of each tensor cover it exactly once.
Status manifest_finish(Manifest *manifest, const char *what);
int manifest_find(const Manifest *manifest, const char *tensor);  // -1: none
bool manifest_keeps(const Manifest *manifest, StateTensor which); // such a tensor of any parameter

// Writes a rank's record: an object with the tables alone.
void manifest_write_record(const Manifest *manifest, Text *out);
// Writes the whole manifest with its last line.
void manifest_write(const Manifest *manifest, Text *out);
// Writes the last line that belongs to `size` bytes of text.
void manifest_write_last_line(const char *text, size_t size, Text *out);
// Reads a manifest: checks the last line, the version and everything else, and calls manifest_finish.
Status manifest_read(Manifest *manifest, const char *text, size_t size, const char *what);

// ---- check_model.c ------------------------------------------------------------------------------------

// Fails with ERR_DATA unless a checkpoint has every weight of its model in its shape, every moment where it has
// moments, and nothing else. Of a model with adapters it has those of the adapters alone.
Status checkpoint_check_model(const Checkpoint *checkpoint);

// ---- shard.c: one file of slices, written in pieces --------------------------------------------------

// The name of a slice in its file: NAME where it is the whole tensor, else NAME[r0:r1,c0:c1], ends excluded.
void slice_name(const SliceEntry *slice, char name[SLICE_NAME]);
Status path_join(char path[PATH_ROOM], const char *folder, const char *name);

typedef struct {
    char path[PATH_ROOM], name[32];
    SafetensorsWriter file;
    Manifest record;
    Hasher hasher;
    int slice;    // the one that is being written
    int64_t left; // its elements that are still missing
} ShardWriter;

// The names and places of `slices` are written; their data is not read. They are borrowed until the end.
Status shard_open(ShardWriter *writer, const CheckpointNames *names, int rank, const Slice *slices,
                  int count);
// Adds the next elements, all of one slice.
Status shard_add(ShardWriter *writer, const float *data, int64_t count);
Status shard_finish(ShardWriter *writer, Text *record);
void shard_abandon(ShardWriter *writer);
