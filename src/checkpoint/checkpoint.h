// Models in files: our own checkpoints, and the formats of other programs. Any grid reads a checkpoint; it is
// complete and verified, or it does not exist.
//
// A checkpoint is a folder, SAVE/step-00000500:
//   manifest.json           the model, the state of the run, and every slice of every tensor with the checksum
//                           of its bytes; the last line is the checksum of all lines above
//   rank-00000.safetensors  the slices of each rank: rectangles of global tensors, in fp32
//   config.yaml             the run's configuration, for --config
//   tokenizer.json, ...     the tokenizer
// It is written under a temporary name (SAVE/.tmp-step-00000500), every file is synced, and one rename commits
// it. A run that is killed at any moment leaves older checkpoints as they were. Tensors have their global names
// and shapes (Megatron-LM's, without padding of the vocabulary), so a slice fits any grid. Random numbers and
// the order of data are functions of counters, so neither is saved.
#pragma once
#include "base/ranges.h"
#include "comm/comm.h"
#include "formats/formats.h"
#include "layout/topology.h"
#include "nn/params.h"
#include "nn/shape.h"
#include "tokenizer/tokenizer.h"
#include <float.h>
#include <stdatomic.h>

// ---- contents ------------------------------------------------------------------------------

// A rectangle of a global tensor [rows, cols].
typedef struct {
    int64_t row, col, rows, cols;
} Rect;

// The tensors of a parameter: NAME is the fp32 weight. Where the optimizer is saved, AdamW's moments are
// "optimizer.exp_avg.NAME" and "optimizer.exp_avg_sq.NAME"; a matrix that Muon steps has "optimizer.momentum.NAME" in
// their place. "ema.NAME" is the moving average of the weight, where the run keeps it.
typedef enum {
    STATE_WEIGHT,
    STATE_EXP_AVG,
    STATE_EXP_AVG_SQ,
    STATE_MOMENTUM,
    STATE_EMA,
    NUM_STATE_TENSORS
} StateTensor;
void state_tensor_name(StateTensor which, const char *param, char name[160]);
// With delayed scaling of 8 bits there is one more tensor beside the moments: a row for each factor of each linear
// layer, and of each expert's, the largest magnitude that its scale is made of, then those of the last steps, the
// newest first (nn/amax.h).
#define STATE_AMAX_NAME "fp8.amax_history"

// The progress of a run; all other state follows from it. Each row is a field of the manifest with its type,
// smallest and largest value.
#define RUN_STATE(X)                                                                                         \
    X(INT64, iteration, 0, 1e12)                     /* steps done */                                        \
    X(INT64, consumed, 0, 9e15)                      /* samples read for training */                         \
    X(INT64, evaluated, 0, 1e12)                     /* iteration of the last evaluation */                  \
    X(INT64, consumed_valid, 0, 9e15)                /* samples read for evaluation */                       \
    X(INT64, stepped, 0, 9e15)                       /* samples of steps that changed the parameters */      \
    X(INT64, optimizer_steps, 0, 1e12)               /* steps of AdamW */                                    \
    X(INT64, skipped_in_a_row, 0, INT32_MAX)         /* the last steps that changed nothing */               \
    X(DOUBLE, usual_loss, 0, FLT_MAX)                /* running mean, to detect spikes */                    \
    X(INT64, num_losses, 0, 1e12)                    /* losses in that mean */                               \
    X(DOUBLE, loss_scale, 0, FLT_MAX)                /* the dynamic one of fp16; else 0 */                   \
    X(INT64, loss_scale_growth, 0, INT32_MAX)        /* steps since its last overflow */                     \
    X(INT64, loss_scale_left, -INT32_MAX, INT32_MAX) /* overflows until it halves; below 0 as 0 */

#define RUN_STATE_INT64            int64_t
#define RUN_STATE_DOUBLE           double
#define X(TYPE, name, least, most) RUN_STATE_##TYPE name;
typedef struct {
    RUN_STATE(X)
    // Samples that the run leaves out, by their numbers in its order, and how often it has gone back because of a spike
    // of the loss. Both are one member of the manifest, which is there only when a sample is left out.
    Ranges skipped;
    int64_t rewinds;
} RunState;
#undef X

// The tokens that the configuration of a model names by number: bos_token_id, eos_token_id and pad_token_id of
// config.json. Where it does not say, they follow from the tokenizer.
enum { MAX_END_TOKENS = 32, NO_TOKEN = INT32_MIN };
typedef struct {
    bool says_begin, says_ends, says_pad; // there is such a member, if only with null
    int begin, pad;                       // NO_TOKEN: null
    int ends[MAX_END_TOKENS], num_ends;   // 0: null
} ModelTokens;

// The model beside which adapters (LoRA) are trained. It is not in their checkpoint, which names it.
typedef struct {
    const char *path; // absolute
    uint64_t hash;    // see model_source_base
} BaseModel;

// The contents of a manifest without its slices. Strings are borrowed.
typedef struct {
    ModelShape shape; // of the run: sizes, kinds and probabilities
    ModelTokens tokens;
    RunState state;
    Grid grid; // of the run that wrote it, for information
    int num_chunks;
    const char *dtype;   // of the run: "f32", "bf16", "f16"
    bool has_optimizer;  // it contains moments
    BaseModel base;      // of a shape with adapters, of which alone it has weights and moments; else zeros
    const char *config;  // text of config.yaml, or NULL
    const char *program; // version of the program that wrote it
} CheckpointInfo;

// ---- writing ------------------------------------------------------------------------------------

// A rectangle of a global tensor: row i of it starts at element i * stride of what one of three gives.
typedef struct Slice {
    char tensor[160];
    int64_t rows, cols; // of the whole tensor, without padding
    Rect rect;
    int64_t stride;                      // elements
    const float *data;                   // numbers in memory
    const uint16_t *values, *remainders; // or as bf16_split (half.h) left them, apart
    // or a function that copies elements [at, at + count) to `to`; it is called by the thread that writes the file.
    void (*read)(const struct Slice *slice, int64_t at, int64_t count, float *to);
    const void *source; // for `read`; alive as long as the slice
} Slice;

void slice_read(const Slice *slice, int64_t at, int64_t count, float *to); // elements from `at` on

// The names of a checkpoint's folder in `save`: while it is written, and after the commit.
typedef struct {
    char temporary[4096], final[4096];
    bool in_memory; // of a machine: nothing is synced or read back. checkpoint_names leaves it false
} CheckpointNames;
Status checkpoint_names(const char *save, int64_t iteration, CheckpointNames *names);

enum { CHECKPOINT_FILE_NAME = 256 };

// The steps of a save. Rank 0 must complete the first one before others begin the second.
// 1. Rank 0 creates `save` and the temporary folder, replacing one that an earlier run left. Checks that the file
//    system has room for `bytes` of tensors and a tenth more.
Status checkpoint_begin(const CheckpointNames *names, int64_t bytes);
// 2. Every rank writes, checksums and syncs its file, on any thread. `record` receives the entries for the
//    manifest. A rank without slices writes none.
Status checkpoint_write_shard(const CheckpointNames *names, int rank, const Slice *slices, int count,
                              Text *record);
// 3. Rank 0 commits, with the records of all ranks in rank order. Checks that the slices of every tensor cover it
//    exactly once, writes configuration, tokenizer (may be NULL) and manifest, syncs, renames, and syncs again. An
//    older checkpoint of the same name is exchanged with the new one and then removed. After a failure the
//    temporary folder is removed and older checkpoints are as they were. Fails with ERR_CREATE when `lock` (-1:
//    none is held) is lost: see checkpoint_lock_check.
Status checkpoint_commit(const CheckpointNames *names, int lock, const CheckpointInfo *info,
                         const Tokenizer *tokenizer, const Text *records, int num_ranks);
// Removes the temporary folder, unless `lock` is lost: then it may belong to another run. fail_message stays as it
// was.
void checkpoint_abandon(const CheckpointNames *names, int lock);
// Steps of checkpoints. Zero-initialise it.
typedef struct {
    int64_t *items;
    int count;
} StepList;
bool step_list_has(const StepList *steps, int64_t step);
void step_list_add(StepList *steps, int64_t step); // unless it has it
void step_list_free(StepList *steps);
// Removes old checkpoints in `save`. Of those up to step `last`, which has just been saved, it keeps the newest
// `keep` intact ones (0: all), and those whose step is a multiple of `retain_interval` (0: none). Before it removes
// any, it reads every byte of the ones that it counts, unless they are in `verified`, and adds them there: in that
// list are those that this process has written and read back, or has read since. A damaged
// checkpoint does not count; it is removed when it is older than those that do. Checkpoints of later steps, left
// when a run continued from an older one, neither count nor are removed. A failure names what is damaged or cannot
// be removed; then nothing else has happened.
Status checkpoint_prune(const char *save, int64_t last, int keep, int64_t retain_interval,
                        StepList *verified);
// Removes the checkpoints in `save` of the steps after `after` up to `last`, the newest first.
Status checkpoint_remove_steps(const char *save, int64_t after, int64_t last);
// Removes all checkpoints in `save` but the one of `step`.
Status checkpoint_keep_one(const char *save, int64_t step);
// Removes the remains of killed saves and removals of any step in `save`, and gives a checkpoint that was being
// replaced its name back. Call it only while no other process writes there.
Status checkpoint_settle(const char *save);
// Creates `save`, locks it against other runs until checkpoint_unlock or the end of the process, and settles it.
// While another run holds the lock it waits for at most `wait_s` seconds and says so on standard error; then it fails
// with ERR_UNAVAILABLE, which names that run. ERR_CREATE says that the paths of a checkpoint would be too long there.
// Returns INTERRUPTED when `*stopped` (NULL: never) becomes other than 0. On a file system without locks it neither
// locks nor settles.
Status checkpoint_lock(const char *save, double wait_s, const atomic_int *stopped, int *lock);
// The same for a checkpoint that must not exist yet. Fails with ERR_CREATE when it does, before or after the wait.
Status checkpoint_lock_new(const CheckpointNames *names, const char *save, double wait_s, int *lock);
// Fails with ERR_CREATE when the locked file is not at `save` any more: the folder was moved or its .lock removed, so
// others may write there. Call it before anything is created or committed in `save`. Takes -1.
Status checkpoint_lock_check(const char *save, int lock);
void checkpoint_unlock(int lock); // takes -1
// Fails with ERR_CREATE unless the file system of `save` has room for `count` checkpoints of `bytes` of tensors each.
Status checkpoint_check_room(const char *save, int64_t bytes, int count);

// ---- reading ------------------------------------------------------------------------------------

// An open checkpoint. Its manifest is verified, and its files have the sizes and headers of the manifest. Only one
// thread may use it at a time.
typedef struct Checkpoint Checkpoint;

// `folder` is the checkpoint itself. Fails with ERR_DATA, which names what is damaged, or with ERR_UNAVAILABLE for a
// newer version of the format.
Status checkpoint_open(Checkpoint **checkpoint, const char *folder);
// Opens SAVE/step-... A checkpoint of another step under this name counts as damaged.
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
// Tensor i: weights come before moments, and among them embedding, layers, head. Names are valid until the checkpoint
// is closed.
CheckpointTensor checkpoint_tensor(const Checkpoint *checkpoint, int i);
// The number of a tensor; -1: it has none of this name.
int checkpoint_find(const Checkpoint *checkpoint, const char *tensor);
// Returns whether it has such a tensor of any parameter.
bool checkpoint_keeps(const Checkpoint *checkpoint, StateTensor which);
// Reads a rectangle of tensor i: row j goes to out + j * stride. The checksum of every slice that it touches is
// verified once per opening. Fails with ERR_DATA, which names file, tensor and slice.
Status checkpoint_read(Checkpoint *checkpoint, int i, Rect rect, float *out, int64_t stride);
// Verifies every byte of every file as it is on disk: it drops the page cache first, where the system allows that.
Status checkpoint_verify(Checkpoint *checkpoint);
// After checkpoint_verify: the number of values that are NaN or infinite, and the tensor of the first one.
int64_t checkpoint_non_finite(const Checkpoint *checkpoint, const char **tensor);
// Prints state and model for a reader, one line per field: "iteration  500".
void checkpoint_describe(const CheckpointInfo *info, Text *out);
// Writes a copy as SAVE/step-... with whole tensors spread evenly over at most `num_files` files. It copies piece by
// piece, so no tensor need fit in memory. Fails with ERR_CREATE when that checkpoint exists, with
// ERR_UNAVAILABLE when another run holds the lock there for longer than `lock_wait_s`.
Status checkpoint_reshard(Checkpoint *checkpoint, const char *save, int num_files, double lock_wait_s);

// Lists the steps of committed checkpoints in a folder, newest first; the caller frees them. A folder that does not
// exist has none.
Status checkpoint_steps(const char *save, int64_t **steps, int *count);

// ---- a checkpoint whose files are spread over machines ---------------------------------------------------

// What a folder has of a checkpoint. Each machine's memory has the files of its own ranks, of some others, and all that
// is no rank's (train/memory_store.c).
typedef struct {
    uint64_t hash;                       // of manifest.json: the same on all machines
    int count;                           // files that the manifest names
    char (*names)[CHECKPOINT_FILE_NAME]; // [count]
    bool *present; // [count] with the size that the manifest says; contents are not read
} CheckpointPart;
// Fails with ERR_DATA where the manifest is damaged or of another step.
Status checkpoint_part(const char *save, int64_t step, CheckpointPart *part);
void checkpoint_part_free(CheckpointPart *part);

// ---- a model from any format ------------------------------------------------------------------------

// The weights of a model, by global name and in fp32. They come from a checkpoint, from a Hugging Face folder of a
// known family (config.json and safetensors: one file, or several with an index) or from a GGUF file (NAME.gguf), whose
// quantised tensors become fp32. Tensors are read piece by piece, so none need fit in memory. A LoRA adapter, a folder
// of PEFT (adapter_config.json), is a model together with its base: it has the weights of the base, and A and B as
// weights of their own; merged it is a model without adapters, whose weights are changed as the adapter says.
typedef struct ModelSource ModelSource;

// `path` is a checkpoint, a Hugging Face folder, a GGUF file, a folder of PEFT that says where its base is, the name
// (ORG/NAME) or folder (models--ORG--NAME) of a model in Hugging Face's cache, or a folder of checkpoints, of which it
// opens the newest that can be opened, or the one of `step` where that is >= 0. Checks that every weight exists in its
// shape, and every moment where the checkpoint has moments, and that there is nothing else. A checkpoint of adapters
// (LoRA) is opened together with the model that it names, from which all other weights are read. Fails with
// ERR_NO_INPUT, ERR_DATA, or ERR_UNAVAILABLE, which names an architecture that is not supported.
Status model_source_open(ModelSource **source, const char *path, int64_t step);
// Adds an adapter, a folder of PEFT or a checkpoint of adapters, to an open model: `*source` becomes the model with the
// adapter, which owns the base. More can be added. The model that a checkpoint names as its base need not be there;
// where it has another hash than the open one, model_source_warn says so. `use_ema` takes the moving average of a
// checkpoint of adapters, and with a folder of PEFT, which has none, that of the base.   ERR_DATA for an adapter of
// another model, ERR_UNAVAILABLE for one that is not plain LoRA, ERR_CONFIG for an adapter of an adapter or without an
// average.
Status model_source_adapt(ModelSource **source, const char *adapter, bool use_ema);
// Merges the adapter of a source that has one: from now on its shape is the base's, and its weights are W + scale * B
// A, computed in fp32. Fails as model_source_read does.
Status model_source_merge(ModelSource *source);
// Makes the source a model with experts, of which each is a copy of the layer's MLP, and each token uses `topk`.
// ERR_UNAVAILABLE where the model's MLPs cannot be experts.   Source: Komatsuzaki 2022.
Status model_source_upcycle(ModelSource *source, int experts, int topk);
// Prepares a source for the use of its adapters one at a time, unmerged: all together have one shape, and choosing one,
// by its number in the order in which they were added, changes A and B alone. -1: none, the base.
void model_source_serve(ModelSource *source);
void model_source_choose(ModelSource *source, int adapter);
void model_source_close(ModelSource *source);
const char *model_source_path(const ModelSource *source);      // of what was opened
const char *model_source_base_path(const ModelSource *source); // the same, of an adapter's base
// The folder of the files that belong to the model beside its weights: with a folder of PEFT that of its base.
const char *model_source_files_path(const ModelSource *source);
// Fails on all ranks unless all have opened the same model: the same path, with the same hash of manifest.json or, in
// a Hugging Face folder, of config.json, or of what a GGUF file has before its tensors. Otherwise shards of different
// models could be mixed: a run that still trains may have saved a newer checkpoint, and another machine may have
// another model of this name.
// Collective over the world.
Status model_source_compare(const ModelSource *source, Comm *world);
// Prints on standard error why newer checkpoints were not opened, and which adapters were trained beside another
// model.
void model_source_warn(const ModelSource *source);
// The shape is as in a checkpoint. The state is all zeros for models of other programs.
const CheckpointInfo *model_source_info(const ModelSource *source);
// Reads a rectangle of the weight NAME (Megatron-LM's global name, as in the registry). Fails with ERR_DATA, which
// names the first value that is NaN or infinite.
Status model_source_read(ModelSource *source, const char *name, Rect rect, float *out, int64_t stride);
// Reads a rectangle of the weight NAME in fp32 from any source: row j of it goes to out + j * stride.
typedef struct {
    Status (*read)(void *self, const char *name, Rect rect, float *out, int64_t stride);
    void *self;
} WeightReader;
WeightReader model_source_reader(ModelSource *source);
// Reads this rank's share of a weight. A FillParam (params_fill): `self` is the WeightReader.
Status weight_reader_fill(void *self, const Param *param, float *local);
// Accepts values that are NaN or infinite: the first is reported on standard error, the others are only counted.
void model_source_allow_non_finite(ModelSource *source, bool allow);
int64_t model_source_non_finite(const ModelSource *source); // how many were accepted
// Says which model adapters that are trained from here on have to name: this one, or the one that it names itself. The
// hash is that of a checkpoint's manifest, or of what describes the model and the start of every weight. The path lives
// as long as the source.   ERR_DATA, ERR_OS.
Status model_source_base(ModelSource *source, BaseModel *base);
// Has weights read from their moving average. ERR_CONFIG where the source keeps none.
Status model_source_use_ema(ModelSource *source);
// The checkpoint behind it, for its moments. NULL for models of other programs.
Checkpoint *model_source_checkpoint(ModelSource *source);
// Appends the chat template inside a GGUF file; nothing for another model, or where there is none.
void model_source_template(const ModelSource *source, Text *out);
// Opens the tokenizer in the folder of the weights, of an adapter in that of its base, or inside a GGUF file. Fails
// with ERR_NO_INPUT when there is none, with ERR_UNAVAILABLE for one that is not supported.
Status model_source_tokenizer(const ModelSource *source, Tokenizer **tokenizer);
// Appends the tokens of which each ends a text of the model, each once: the end of document of `tokenizer` (may be
// NULL), those of the model's configuration, and those of generation_config.json beside the weights. Numbers outside
// the vocabulary are left out. Fails with ERR_DATA, which names that file.
Status model_source_ends(const ModelSource *source, const Tokenizer *tokenizer, TokenList *ends);

// The files beside the weights of a model that say how it is used and that Tokenizer does not write:
// generation_config.json, chat templates, special_tokens_map.json and the like (companions.c). Zero-initialise it.
enum { NUM_COMPANIONS = 6 };
typedef struct {
    Text files[NUM_COMPANIONS]; // empty: there is none
    char **template_names;      // "NAME.jinja", of additional_chat_templates/: [num_templates]
    Text *templates;
    int num_templates;
} Companions;
// Reads those in the folder of a model; of a GGUF file its chat template. `own` is the tokenizer of that folder, whose
// files are read as well; NULL: it has none, or another tokenizer is used.
Status companions_read(Companions *companions, const ModelSource *source, const Tokenizer *own);
// Writes them to a folder; `checkpoint`: of ours, which has no folders in it.
Status companions_write(const Companions *companions, const char *folder, bool checkpoint);
// Adds a token to eos_token_id of generation_config.json, unless it is there: `ends` are those of a model without that
// file or member. Without the file nothing is done where `ends` has the token. All other bytes of the file stay. Fails
// with ERR_DATA where it is no JSON object.
Status companions_add_end(Companions *companions, const TokenList *ends, int end);
// Reads the tokens that a generation_config.json names. Fails with ERR_DATA, which names the file.
Status generation_config_read(const char *path, ModelTokens *tokens);
void companions_free(Companions *companions);

// Whether a path is itself a checkpoint, a Hugging Face folder, a GGUF file or the folder of `trireme finetune`.
bool model_is_there(const char *path);
// The same of the path that model_source_open would open for this one: ORG/NAME names a model in Hugging Face's cache.
bool model_is_named(const char *path);
// Writes what people call the model at a path: the last name in it without .gguf, or NAME of a model in Hugging Face's
// cache.
void model_name(const char *path, char name[4096]);
// Describes what is at a path where model_source_open finds no model, in words that follow "PATH: ". FOUND_FOREIGN:
// files of another program, or no folder, so a run must not save there. FOUND_NOTHING: a run may save there.
typedef enum { FOUND_NOTHING, FOUND_FOREIGN } FoundThere;
FoundThere model_absent(const char *path, Text *what);

enum { MAX_MODEL_VALUE = 24 * MAX_ROPE_FACTORS }; // the longest are lists of factors
// One option of a model. `train` takes these from --load, and import writes them to config.yaml.
typedef struct {
    const char *option;          // the name of the field of Options
    char value[MAX_MODEL_VALUE]; // as a user types it; "": the model has no such part
    bool is_fixed;               // with another value the weights would not fit or mean something else
    bool follows;                // where it is not given, it follows from the other rows
    bool is_training;            // only training uses it
} ModelOption;
enum { MAX_MODEL_OPTIONS = 120 };
// The options that make a model of this shape. Returns their number. They are the same options in the same order for
// every model, so two models can be compared row by row.
int model_options(const ModelShape *shape, ModelOption out[MAX_MODEL_OPTIONS]);

// Lists name and sizes of every parameter of a model of this shape, in the model's order and without padding. The list
// comes from the same declarations as a run's parameters. The caller frees it.
typedef struct {
    char name[96];
    int64_t rows, cols;
    bool is_hidden_matrix; // that Muon may step
    bool is_frozen;        // it is of the base of a model with adapters
    bool is_by_rule;       // no optimizer steps it (ParamSpec.by_rule)
} WeightSpec;
Status model_weights(const ModelShape *shape, WeightSpec **weights, int *count);

// ---- formats of other programs -----------------------------------------------------------------------

// Writes FOLDER/config.json, model.safetensors and the tokenizer's files for Hugging Face's transformers, as
// GPT2LMHeadModel or LlamaForCausalLM. `type` is F32, BF16 or F16. The bytes are a function of the weights, so export,
// import and export give the same file. Fails with ERR_UNAVAILABLE, which names a part of the model that these
// architectures lack. FOLDER appears by one rename.
Status export_hugging_face(ModelSource *source, const char *folder, FileType type);
// Writes FOLDER/adapter_config.json and adapter_model.safetensors for PEFT, with the adapter of a source that has one.
// Fails with ERR_CONFIG where it has none, with ERR_UNAVAILABLE where the tensors of the family cannot have it.
Status export_peft(const ModelSource *source, const char *folder, FileType type);
typedef enum { GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0 } GgufKind;
// Writes one GGUF file for llama.cpp, with the tokenizer inside.
Status export_gguf(ModelSource *source, const char *path, GgufKind kind);
// Appends what the family that a model remembers lacks: "Gemma2ForCausalLM has no GELU, which this model has". Exports
// are then of another family. Appends nothing where the family holds the model, or it remembers none.
void family_lack(const ModelShape *shape, Text *out);
// Writes SAVE/step-00000000 with the weights of a source, for --load, and with its other files and its tokenizer, or
// with `tokenizer` where that is not NULL. Fails with ERR_CREATE when it exists.
Status import_model(ModelSource *source, const Tokenizer *tokenizer, const char *save, double lock_wait_s);
