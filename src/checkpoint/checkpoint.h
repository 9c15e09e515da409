// Models in files: our own checkpoints, which any grid reads and which are complete and verified or do not
// exist, and the weights of other people's formats.
//
// A checkpoint is a folder, SAVE/step-00000500:
//   manifest.json           what it is: model, state of the run, and every slice of every tensor with the
//                           checksum of its bytes; its last line is the checksum of all lines above
//   rank-00000.safetensors  what each rank wrote: rectangles of global tensors, in fp32
//   config.yaml             the run's configuration, for --config
//   tokenizer.json, ...     the tokenizer
// It is written under a temporary name (SAVE/.tmp-step-00000500), every file synced, and committed by one
// rename; whoever is killed at any moment leaves the older ones as they were. Tensors are known by their
// global name and shape (Megatron-LM's, without padding of the vocabulary), so a slice fits any grid. Random
// numbers and the order of data are functions of counters: none are saved.
#pragma once
#include "comm/comm.h"
#include "formats/formats.h"
#include "layout/topology.h"
#include "nn/params.h"
#include "nn/shape.h"
#include "tokenizer/tokenizer.h"
#include <float.h>
#include <stdatomic.h>

// ---- what is saved ------------------------------------------------------------------------------

// A rectangle of a global tensor [rows, cols].
typedef struct {
    int64_t row, col, rows, cols;
} Rect;

// The three tensors of a parameter: NAME is the fp32 weight, and where the optimizer is saved
// "optimizer.exp_avg.NAME" and "optimizer.exp_avg_sq.NAME" are AdamW's moments.
typedef enum { STATE_WEIGHT, STATE_EXP_AVG, STATE_EXP_AVG_SQ, NUM_STATE_TENSORS } StateTensor;
void state_tensor_name(StateTensor which, const char *param, char name[160]);

// How far a run has come; everything else follows from these. INT64 or DOUBLE fields, by name in the
// manifest, each with the most that it can be; none is below zero.
#define RUN_STATE(X)                                                                                         \
    X(INT64, iteration, 1e12)              /* steps done */                                                  \
    X(INT64, consumed, 9e15)               /* samples read for training */                                   \
    X(INT64, evaluated, 1e12)              /* iteration of the last evaluation */                            \
    X(INT64, consumed_valid, 9e15)         /* and for evaluation */                                          \
    X(INT64, stepped, 9e15)                /* of `consumed`, those of steps that changed the parameters */   \
    X(INT64, optimizer_steps, 1e12)        /* AdamW's */                                                     \
    X(INT64, skipped_in_a_row, INT32_MAX)  /* steps up to now that changed nothing */                        \
    X(DOUBLE, usual_loss, FLT_MAX)         /* running mean, for spikes */                                    \
    X(INT64, num_losses, 1e12)             /* in it */                                                       \
    X(DOUBLE, loss_scale, FLT_MAX)         /* of fp16, where it is dynamic; else 0 */                        \
    X(INT64, loss_scale_growth, INT32_MAX) /* clean steps so far */                                          \
    X(INT64, loss_scale_left, INT32_MAX)   /* overflows until it halves */

#define RUN_STATE_INT64     int64_t
#define RUN_STATE_DOUBLE    double
#define X(TYPE, name, most) RUN_STATE_##TYPE name;
typedef struct {
    RUN_STATE(X)
} RunState;
#undef X

// What a manifest says besides its slices. Strings are borrowed.
typedef struct {
    ModelShape shape; // of the run: sizes, kinds and probabilities
    RunState state;
    Grid grid; // that wrote it, to be told
    int num_chunks;
    const char *dtype;   // "f32", "bf16", "f16": the run's
    bool has_optimizer;  // moments are there
    const char *config;  // text of config.yaml, or NULL
    const char *program; // version that wrote it
} CheckpointInfo;

// ---- writing ------------------------------------------------------------------------------------

// A rectangle of a global tensor in memory: row i of it starts at element i * stride.
typedef struct {
    char tensor[160];
    int64_t rows, cols; // of the whole tensor, without padding
    Rect rect;
    const float *data;
    int64_t stride; // elements
    // data NULL: the same numbers as bf16_split (half.h) left them, apart.
    const uint16_t *values, *remainders;
} Slice;

// The names of a checkpoint's folder in `save` while it is written and when it is committed.
typedef struct {
    char temporary[4096], final[4096];
} CheckpointNames;
Status checkpoint_names(const char *save, int64_t iteration, CheckpointNames *names);

// The steps of a save. Only the first is collective in spirit: rank 0 makes the folder before others write.
// 1. By rank 0: makes `save` and the temporary folder, replacing a stale one of an earlier run; makes sure
//    that the file system has room for `bytes` of tensors with a tenth to spare.
Status checkpoint_begin(const CheckpointNames *names, int64_t bytes);
// 2. By every rank, on any thread: writes, checksums and syncs its file. `record` receives what the manifest
//    is to say of it.
Status checkpoint_write_shard(const CheckpointNames *names, int rank, const Slice *slices, int count,
                              Text *record);
// 3. By rank 0, with the records of all ranks in rank order: checks that the slices of every tensor cover it
//    exactly once, writes configuration, tokenizer (may be NULL) and manifest, syncs, renames, syncs. An
//    older checkpoint of the same name is exchanged with it and removed after. After a failure the temporary
//    folder is gone and older checkpoints are as they were.
//    ERR_CREATE when `lock` (-1: none is held) is lost: see checkpoint_lock_check.
Status checkpoint_commit(const CheckpointNames *names, int lock, const CheckpointInfo *info,
                         const Tokenizer *tokenizer, const Text *records, int num_ranks);
// Removes the temporary folder, unless `lock` is lost: then it may be that of another run. Keeps fail_message.
void checkpoint_abandon(const CheckpointNames *names, int lock);
// Steps of checkpoints of which every byte is known to be intact on the disk: this process wrote them, which reads
// them back, or has read them since. Zero-initialise.
typedef struct {
    int64_t *items;
    int count;
} VerifiedSteps;
void verified_steps_add(VerifiedSteps *steps, int64_t step);
void verified_steps_free(VerifiedSteps *steps);
// Of the checkpoints of `save` up to step `last`, the one just saved, removes those that are older than the
// newest `keep` intact ones (0: keeps all), and never one whose step is a multiple of `retain_interval` (0: none
// is). Before anything goes, every byte of those that count and are not yet in `verified` is read; they are
// then added. One that is damaged does not count and goes when it is older than those that do. Later ones, of
// a run that was left for an older checkpoint, neither count nor go. A failure says what is damaged or cannot
// be removed; nothing else happens.
Status checkpoint_prune(const char *save, int64_t last, int keep, int64_t retain_interval,
                        VerifiedSteps *verified);
// Removes what killed saves and removals have left in `save`, of whatever step, and gives a checkpoint that
// was being replaced its name back. Only while nobody else writes there.
Status checkpoint_settle(const char *save);
// Makes `save`, keeps others from writing there as long as the process lives or until checkpoint_unlock, and
// settles it. Another run that holds the lock is waited for, at most `wait_s` seconds, which standard error is
// told; then ERR_CREATE says who it is, or that a checkpoint's paths would be too long there. INTERRUPTED when
// `*stopped` becomes another value than 0 meanwhile; NULL: it never does. On a file system without locks nothing
// is locked and nothing settled.
Status checkpoint_lock(const char *save, double wait_s, const atomic_int *stopped, int *lock);
// The same for a checkpoint that must not be there yet: ERR_CREATE when it is, also when it was made meanwhile.
Status checkpoint_lock_new(const CheckpointNames *names, const char *save, double wait_s, int *lock);
// ERR_CREATE when what is locked is not at `save` any more: the folder was moved or its .lock removed, and
// others may write there. Before anything is made or committed in `save`. Takes -1.
Status checkpoint_lock_check(const char *save, int lock);
void checkpoint_unlock(int lock); // takes -1
// ERR_CREATE unless the file system of `save` has room for `count` checkpoints of `bytes` of tensors each.
Status checkpoint_check_room(const char *save, int64_t bytes, int count);

// ---- reading ------------------------------------------------------------------------------------

// An opened checkpoint: its manifest is verified, its files are there with the sizes and headers it says.
// One thread each.
typedef struct Checkpoint Checkpoint;

// `folder` is the checkpoint itself. ERR_DATA names what is damaged; ERR_UNAVAILABLE: of a newer version.
Status checkpoint_open(Checkpoint **checkpoint, const char *folder);
// That of SAVE/step-...: one of another step, under this one's name, is as good as damaged.
Status checkpoint_open_step(Checkpoint **checkpoint, const char *save, int64_t step);
void checkpoint_close(Checkpoint *checkpoint);
const CheckpointInfo *checkpoint_info(const Checkpoint *checkpoint);
const char *checkpoint_folder(const Checkpoint *checkpoint);

typedef struct {
    const char *name;
    int64_t rows, cols;
    int num_slices;
} CheckpointTensor;
int checkpoint_num_tensors(const Checkpoint *checkpoint);
// Weights, then moments; embedding, layers, head. Names are valid until the checkpoint is closed.
CheckpointTensor checkpoint_tensor(const Checkpoint *checkpoint, int i);
// -1 when there is none.
int checkpoint_find(const Checkpoint *checkpoint, const char *tensor);
// A rectangle of tensor i to out: row j goes to out + j * stride. The checksum of every slice it touches is
// verified once per opening; ERR_DATA names file, tensor and slice.
Status checkpoint_read(Checkpoint *checkpoint, int i, Rect rect, float *out, int64_t stride);
// Verifies every byte of every file, as the disk has it: the page cache is dropped before, where the system
// does that.
Status checkpoint_verify(Checkpoint *checkpoint);
// After it: how many values are NaN or infinite, and the tensor of the first.
int64_t checkpoint_non_finite(const Checkpoint *checkpoint, const char **tensor);
// State and model for people, a line per field: "iteration  500".
void checkpoint_describe(const CheckpointInfo *info, Text *out);
// Writes the same tensors and other files as SAVE/step-..., whole tensors spread evenly over at most
// `num_files` files, piece by piece: no tensor need fit in memory. ERR_CREATE when that checkpoint exists, or another
// run is writing there for longer than `lock_wait_s`.
Status checkpoint_reshard(Checkpoint *checkpoint, const char *save, int num_files, double lock_wait_s);

// The steps of committed checkpoints in a folder, newest first; the caller frees. A folder that does not
// exist has none.
Status checkpoint_steps(const char *save, int64_t **steps, int *count);

// ---- a model from anywhere ------------------------------------------------------------------------

// The weights of a model, by global name and in fp32, from a checkpoint or from a Hugging Face folder
// (config.json with safetensors, one file or several with an index): GPT-2 and Llama. Tensors are read
// piece by piece: none need fit in memory.
typedef struct ModelSource ModelSource;

// `path`: a checkpoint; a folder of checkpoints (the newest that opens; `step` >= 0: that one); a Hugging
// Face folder. Every weight is there in its shape, in a checkpoint with moments these too, and nothing else.
// ERR_NO_INPUT, ERR_DATA, ERR_UNAVAILABLE (an architecture that we do not have, with its name).
Status model_source_open(ModelSource **source, const char *path, int64_t step);
void model_source_close(ModelSource *source);
const char *model_source_path(const ModelSource *source); // what was chosen
// Fails on all ranks unless all have opened the same model: the same path, with the same hash of manifest.json or, in
// a Hugging Face folder, of config.json. Otherwise shards of different models could be mixed: a run that still trains
// may have saved a newer checkpoint, and another machine may have another model of this name.
// Collective over the world.
Status model_source_compare(const ModelSource *source, Comm *world);
// Says on standard error what is wrong with the newer checkpoints that were not, if any.
void model_source_warn(const ModelSource *source);
// As CheckpointInfo.shape. state is all zeros for other people's models.
const CheckpointInfo *model_source_info(const ModelSource *source);
// A rectangle of the weight NAME (Megatron-LM's global name, as in the registry). ERR_DATA names the first value
// in it that is NaN or infinite.
Status model_source_read(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride);
// Lets such values pass: standard error is told of the first, the others are only counted.
void model_source_allow_non_finite(ModelSource *source, bool allow);
int64_t model_source_non_finite(const ModelSource *source); // how many have passed
// The checkpoint behind it, or NULL for other people's models: for its moments.
Checkpoint *model_source_checkpoint(ModelSource *source);
// The tokenizer that lies beside the weights; ERR_NO_INPUT when there is none.
Status model_source_tokenizer(const ModelSource *source, Tokenizer **tokenizer);

// What lies at a path where model_source_open finds nothing to open, in words that follow "PATH: ". FOREIGN: what
// others made, or no folder, so that nothing of ours belongs there. NOTHING: a run may make its checkpoints there.
typedef enum { FOUND_NOTHING, FOUND_FOREIGN } FoundThere;
FoundThere model_absent(const char *path, Text *what);

// A model as the options that make it: what `train` takes from --load, and what import writes as config.yaml.
typedef struct {
    const char *option; // the field of Options
    char value[32];     // as one would type it; "": the model has no such thing
    bool is_fixed;      // the weights mean something else with another value
    bool follows;       // from the other rows, where it is not given
    bool is_training;   // only training uses it
} ModelOption;
enum { MOST_MODEL_OPTIONS = 40 };
// Returns how many. Always the same options in the same order, so that two models can be compared row by row.
int model_options(const ModelShape *shape, ModelOption out[MOST_MODEL_OPTIONS]);

// Every parameter of a model of this shape, in the model's order, without padding: name and sizes. The caller
// frees. From the registry that a run declares.
typedef struct {
    char name[96];
    int64_t rows, cols;
} WeightSpec;
Status model_weights(const ModelShape *shape, WeightSpec **weights, int *count);

// ---- other people's formats -----------------------------------------------------------------------

// Writes FOLDER/config.json, model.safetensors and the tokenizer's files, as Hugging Face's transformers
// reads them: GPT2LMHeadModel or LlamaForCausalLM. `type` F32, BF16 or F16. The bytes are a function of the
// weights, so export, import, export gives the same file. ERR_UNAVAILABLE names what the architecture does
// not have. FOLDER appears by one rename.
Status export_hugging_face(ModelSource *source, const char *folder, FileType type);
typedef enum { GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0 } GgufKind;
// One GGUF file as llama.cpp reads it, with the tokenizer inside.
Status export_gguf(ModelSource *source, const char *path, GgufKind kind);
// Makes SAVE/step-00000000 of a source: weights alone, from which --load starts, with the source's other files
// and its tokenizer, or `tokenizer` unless that is NULL. ERR_CREATE when it exists.
Status import_model(ModelSource *source, const Tokenizer *tokenizer, const char *save, double lock_wait_s);
