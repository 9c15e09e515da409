// Everything that turns a model into a parallel training step: the interpreter that runs a pipeline schedule, the
// reduction of gradients over their replicas, and the optimizer with its global gradient norm.
#pragma once
#include "layout/buffers.h"
#include "nn/params.h"
#include "nn/stage.h"

// ---- buckets: what is reduced or gathered at once --------------------------------------------------

// A range of a chunk's flat buffers that lies in one region of ChunkParams, and the replicas that reduce it. With the
// distributed optimizer each of the replicas keeps and steps one of `replicas` equal shards of the bucket; without
// it, every one the whole.
typedef struct {
    int chunk;
    Reduction reduction;              // of its region
    bool frozen;                      // its parameters are: it has values alone
    Comm *group;                      // the replicas, or with shards those of one instance, borrowed
    int replicas, replica;            // the number of ranks in the group, and this rank's number among them
    Comm *copies_group;               // with shards the ranks of all instances with the same shard, borrowed
    int copies, copy;                 // the same of this group
    int64_t begin, count;             // elements
    int num_units;                    // that it holds values of
    bool deferred;                    // its gradients are complete only at the end of the step
    bool sharded;                     // never when this rank is the only replica
    int64_t shard_begin, shard_count; // this rank's, in the chunk's buffers
    int64_t kept_begin;               // of the same shard in ChunkParams.values
    int64_t grads_begin;              // of its gradients in ChunkParams.grads
    bool grads_cut;                   // which are this rank's shard alone (Params.cut_grads)
} Bucket;

typedef struct {
    Bucket *items; // chunk by chunk; within a chunk from its end to its start, as backwards finish them
    int count;
    int num_frozen; // that follow those, where parameters that are frozen are cut into shards, too
    bool sharded;   // any bucket of any rank may be: the same on all ranks, also on one without parameters
} Buckets;

// Cuts the chunks by Params.sharding. Buckets hold at most `elements`, rounded down so that shards start on
// PARAM_ALIGNMENT, but at least PARAM_ALIGNMENT for each replica. Where units are apart (params_units_apart) a bucket
// is a span, whatever its size.   ERR_OS without memory.
// Source: Rajbhandari 2020 (ZeRO, stage 1); Megatron-LM's distributed optimizer cuts the same way.
Status buckets_create(Buckets *buckets, const Context *context, const Params *params, int64_t elements);
void buckets_destroy(Buckets *buckets);
// Return this rank's shard of the bucket's gradients, and of its values.
Tensor bucket_grads(const Params *params, const Bucket *bucket);
Tensor bucket_values(const Params *params, const Bucket *bucket);
// Returns the gradients of the whole bucket, which are not cut.
Tensor bucket_whole_grads(const Params *params, const Bucket *bucket);
// Returns whether the bucket has values of the unit's parameters.
bool bucket_holds(const Bucket *bucket, const Params *params, int unit);

// ---- windows of units, where values or gradients are cut into shards -------------------------------

// Where the whole values, or the whole gradients, of the units in use lie in a window. The units of a chunk in turn lie
// at its begin and at its end, so that neighbours do not overlap; it holds the two neighbours that take most.
typedef struct {
    int bucket;
    int64_t begin; // of what the bucket has, in the window
} RoomPart;

typedef struct {
    int first_part, num_parts;
    int64_t begin, count; // elements of the window
} UnitRoom;

typedef struct {
    const Params *params;
    const Buckets *buckets;
    UnitRoom *units; // [params->num_units]; of other ranks' units, and where nothing is cut: no parts
    RoomPart *parts;
    int num_parts;
    int64_t elements; // of the window
} UnitRooms;

// Of the values, or of the gradients that are cut.   ERR_OS without host memory.
Status unit_rooms_create(UnitRooms *rooms, const Params *params, const Buckets *buckets, bool of_grads);
void unit_rooms_destroy(UnitRooms *rooms);
bool unit_rooms_overlap(const UnitRooms *rooms, int a, int b);
const Bucket *room_bucket(const UnitRooms *rooms, const RoomPart *part);
// Returns where a parameter's share lies in the room of a unit, and NULL where it does not. `memory` is the window.
void *unit_rooms_find(const UnitRooms *rooms, Tensor memory, int unit, const Param *param);

// Whole values of the units in use, where replicas cut values into shards (SHARD_VALUES). Where they share memory
// (Params.shared) every value is there, and ranks only wait for each other after shards have changed. Else each replica
// keeps its shards alone: a unit that is acquired is gathered into the window, and the one that the model says it uses
// next is gathered meanwhile. Units stay there until others need their memory, or their shards change.
typedef struct {
    bool there; // its values have been gathered, or are being gathered
    bool in_use;
} WindowUnit;

typedef struct {
    Context *context;
    const Params *params;
    bool shared;  // every value is there
    bool settled; // then: no other rank still writes its shards
    UnitRooms rooms;
    Tensor memory;           // [1, elements], in the run's element type
    WindowUnit *units;       // [params->num_units]
    CommRequest **gathering; // [rooms.num_parts]
} Window;

// Takes the memory from `arena`.   ERR_OS without host memory.
Status window_create(Window *window, Context *context, const Params *params, const Buckets *buckets,
                     Arena *arena);
void window_destroy(Window *window);
// Gathers the values of a unit, unless they are there, and sets Param.value of its parameters. Starts to gather those
// of `next` (-1: none), unless their memory is in use.   Collective over the replicas: all of them acquire and release
// the same units in the same order.
void window_acquire(Window *window, int unit, int next);
void window_release(Window *window, int unit);
// Shards are about to change, or have changed: no unit is there any more. No unit may be in use.
void window_forget(Window *window);

// Whole gradients of the unit that a microbatch adds to, and of the one before it, which is being reduced
// (Params.cut_grads). The first sum of a step becomes the shard, the others are added to it in the order of the
// microbatches.
typedef struct {
    CommRequest *reducing;
    bool due; // the sum has been posted and not been awaited
} GradPart;

typedef struct {
    Context *context;
    const Params *params;
    UnitRooms rooms;
    Tensor memory;   // F32 [1, elements]
    bool *begun;     // [params->num_units] a microbatch adds to it
    GradPart *parts; // [rooms.num_parts]
    int *sums;       // [buckets->count] that have been posted in this step
} GradWindow;

// Takes the memory from `arena`.   ERR_OS without host memory.
Status grad_window_create(GradWindow *window, Context *context, const Params *params, const Buckets *buckets,
                          Arena *arena);
void grad_window_destroy(GradWindow *window);
// Gives the gradients of a unit memory, where they are cut: their next contributions are written.   Collective over the
// replicas, as all that follow.
void grad_window_begin(GradWindow *window, int unit);
// Posts the sums over replicas of a unit that has begun; with `stays` its gradients are dropped. They have no memory
// any more.
void grad_window_reduce(GradWindow *window, int unit, ReduceOp op, bool stays);
// Waits for all sums.
void grad_window_settle(GradWindow *window);
// Ends a step. CHECK: every bucket that is cut has been summed.
void grad_window_finish(GradWindow *window);

// ---- gradients and weights over data parallelism --------------------------------------------------

// Sums gradients over their replicas, bucket by bucket: an all-reduce, or with shards a reduce-scatter in place, and
// where there are several instances an all-reduce of the shards over them at the end of the step. With
// `overlap` a bucket is posted once all units that it holds are finished (UnitWatch.finish), else when its chunk is
// complete (REDUCE_GRADS). Deferred buckets come last, after the first sum of their reduction. With `tree` the sum over
// replicas goes on in the tree of their leaves (Params.leaves), so that the number of replicas changes no bit; then it
// comes before the first sum, whose order of additions would depend on that number otherwise. The mean is in the loss
// scale, not here. The reducer also gathers the weights that sharded steps have changed: at once, or with
// `overlap_gather` posted, and awaited by the first that acquires a unit with such weights (UnitWatch.acquire). With a
// window of values it gathers nothing itself. With a window of gradients their sums are posted after each microbatch,
// whether or not they overlap.
typedef struct {
    Context *context;
    const Params *params;
    const Buckets *buckets;
    bool overlap, overlap_gather, tree;
    // Set for a run of the pipeline whose gradients stay on this rank: no unit is finished, nothing is reduced, and its
    // time does not count.
    bool paused;
    CommRequest **reducing, **gathering; // [buckets->count]
    bool *reduced;                       // [buckets->count] posted in this step
    int *unfinished; // [buckets->count] units that the bucket holds and that are not finished in this step
    int num_gathering;
    // Set after grad_reducer_create where values, or gradients, are cut into shards; else NULL. Borrowed.
    Window *window;
    GradWindow *grad_window;
} GradReducer;

Status grad_reducer_create(GradReducer *reducer, Context *context, const Params *params,
                           const Buckets *buckets, bool overlap, bool overlap_gather, bool tree);
void grad_reducer_destroy(GradReducer *reducer);
UnitWatch grad_reducer_watch(GradReducer *reducer); // the callbacks for Context.watch; borrowed
// Posts the remaining buckets of a chunk whose gradients are complete, but the deferred ones.   Collective over the
// replicas: all of them call it for the chunks in the same order.
void grad_reducer_start(GradReducer *reducer, int chunk);
// Ends the reduction of a step: makes the first sums, posts the deferred buckets and waits for all buckets, and for all
// gathers. With shards, gradients outside this rank's shards are then undefined.   Collective over the world.
void grad_reducer_finish(GradReducer *reducer);
// Gathers the values of all shards after a step of the optimizer; without shards it does nothing.   Collective over the
// replicas.
void grad_reducer_gather(GradReducer *reducer);
// Waits for all gathers: to be called before values are read other than through units.
void grad_reducer_gather_wait(GradReducer *reducer);

// ---- pipeline -----------------------------------------------------------------------------------

// The interpreter of schedules. It runs this rank's program of a verified schedule on a Stage, one instruction after
// another. A rank has as many buffers for inputs, stashes and messages as schedule_pool says, and messages are posts
// on channels, so a verified program cannot hang. With `scatter_gather` a message whose rows all tp ranks hold
// crosses the edge once: each rank sends 1/t of its rows and the receivers gather it (Narayanan 2021, section 4.1).
typedef struct Pipeline Pipeline;

// The times of one rank's chunk, summed since pipeline_create.
typedef struct {
    double forward_s, backward_s; // inside the stage: processor time of a rank of one thread, else wall time
    double weight_s;              // the part of backward_s in weight halves that ran on their own
    // Wall time inside the stage without the host's waits for other ranks: it includes what other programs took.
    double forward_own_s, backward_own_s;
} ChunkTimes;

typedef struct {
    double total_s; // wall time from first to last instruction of training steps
    double wait_s;  // the part of total_s spent waiting for other stages
    const ChunkTimes *chunks;
} PipelineTimes;

typedef struct {
    const Schedule *schedule;       // for the largest batch; borrowed
    int capacity[NUM_BUFFER_KINDS]; // the size of each pool where a smaller batch needs a larger one; else 0
    Stage stage;
    Arena *arena; // the arena of the run, from which inputs and messages are allocated
    // The sizes of the two arenas of a microbatch: its stash, and the recomputed activations that its weight half
    // needs; and that of the scratch memory of the forward in a pair. With `measuring` these sizes are still unknown:
    // the arenas only count, on a null device.
    size_t stash_bytes, recomputed_bytes, beside_bytes;
    bool measuring;
    bool scatter_gather; // ignored where t does not divide the rows, or sequence parallelism has cut them
} PipelineSpec;

Status pipeline_create(Pipeline **pipeline, Context *context, const PipelineSpec *spec);
// Opens the channels of its messages (comm_open_channels), before the first run.   Collective over pp.
Status pipeline_connect(Pipeline *pipeline);
void pipeline_destroy(Pipeline *pipeline);
// Changes to another schedule. ERR_CONFIG unless it places stages alike and needs no larger pools.
Status pipeline_use(Pipeline *pipeline, const Schedule *schedule);
// The number of arenas in the pool BUFFER_STASH or BUFFER_RECOMPUTED, and the most bytes that one of them has needed.
int pipeline_pool_count(const Pipeline *pipeline, BufferKind kind);
size_t pipeline_pool_peak(const Pipeline *pipeline, BufferKind kind);
// The scratch memory of the forward in a pair; NULL: the schedule has no pairs here.
const Arena *pipeline_beside(const Pipeline *pipeline);
// The arena of such a pool that has most in use at the moment, for printing; NULL where the pool is empty.
const Arena *pipeline_pool_fullest(const Pipeline *pipeline, BufferKind kind);
// Runs one training step over all microbatches: forwards, backwards, and the start of reductions.   Collective over the
// world.
void pipeline_train(Pipeline *pipeline, const Microbatch *microbatches, GradReducer *reducer);
// Runs the forwards of all microbatches in the schedule's order.   Collective over the model's ranks.
void pipeline_evaluate(Pipeline *pipeline, const Microbatch *microbatches);
// The times of all training steps so far; waits for the device to end the last one. Borrowed until the next run.
PipelineTimes pipeline_times(Pipeline *pipeline);

// ---- optimizer ----------------------------------------------------------------------------------

typedef struct {
    double beta1, beta2, epsilon;
    double clip; // global norm above which gradients are scaled down; 0: never
} AdamOptions;

// Muon (Jordan 2024) for hidden matrices, of which each update is made orthogonal by Newton-Schulz iterations in fp32.
// Its scale for a matrix [out, in] is `extra_scale` times
typedef enum {
    MUON_SPECTRAL,      // sqrt(max(out, in)): with 0.2 the size of AdamW's updates (Liu 2025)
    MUON_SHAPE_SCALING, // sqrt(max(1, out / in)) (Jordan 2024)
    MUON_UNIT_RMS_NORM  // sqrt(out / in) (Bernstein 2024)
} MuonScale;

typedef struct {
    int iterations; // 0: AdamW steps all parameters
    double momentum;
    bool nesterov;
    bool split_qkv;           // queries, keys and values are matrices of their own
    const char *coefficients; // "simple", "quintic", "polar_express", "deepseekv4"
    MuonScale scale;
    double extra_scale;
} MuonOptions;

// State of AdamW that lies in the host's memory: the host steps it, and sends the device the new values.
// Source: Ren 2021 (ZeRO-Offload); Megatron-LM, HybridDeviceOptimizer.
typedef struct {
    double fraction; // of each shard's elements; 0: none
    Device *device;  // a device of the host, which steps them
    Arena *arena;    // in device_host_memory of the device that has the gradients
} OffloadOptions;

typedef struct {
    AdamOptions adam;
    MuonOptions muon;
    double ema_decay; // of the moving average of the weights; 0: there is none
    OffloadOptions offload;
} OptimizerOptions;

typedef struct Muon Muon;
typedef struct Offload Offload;
// A part of the shard of one bucket that this rank steps: [1, count] each, moments in F32. The fp32 parameter is
// the value itself in an fp32 run, beside it (F32) in an fp16 run; of a bf16 run `main` is what bf16_split
// leaves out of the value (U16), since a copy would hold the value's 16 bits again.
// A bucket of matrices (ReductionInfo) has no v. `ema` is the moving average of the fp32 parameters, F32, where there
// is one.
typedef struct {
    int64_t begin, count; // elements of the shard
    // `value`: the device's values; on the host a copy of them. In fp16 the first step writes that copy.
    Tensor value, main, m, v, ema;
    // The parts of parameters that lie in it; positions count from its begin.
    int num_pieces;
    OpSegment *pieces;
    const Param **params; // [num_pieces]
} ShardState;

typedef struct {
    Context *context;
    const Params *params;
    const Buckets *buckets;
    OptimizerOptions options;
    Muon *muon; // NULL: AdamW steps all parameters
    // [buckets->count] each: the begin of a shard is on the host, the rest on the device. Either may be empty.
    ShardState *offloaded, *shards;
    Offload *offload; // NULL: nothing is on the host
    // The ranks that add up the norm: those of one replica of the model, or all, with shards or where replicas of the
    // experts are others than those of the rest.
    Comm *owners;
    bool all_own;
    Tensor max, sums; // F32 [1, 1]; F64 [parameters, 3]: sums of squares of each
    double *sums_on_host;
    int exponent;  // of the largest gradient of the step before
    int64_t steps; // done so far
} Optimizer;

// Takes the state from `arena`, all zeros: per parameter 8 bytes, in bf16 10, in fp16 12; 4 less where Muon steps it, 4
// more with an average; cut over their replicas with shards. With Muon the parameters are placed with matrices_apart.
// What is offloaded takes the arena of OffloadOptions: 12 bytes a parameter, in fp16 14; 4 more with an average; and
// the gradients of two blocks. Muon's state stays on the device: with it nothing is offloaded (CHECK).
// `world` must hold exactly the ranks of the run.   ERR_OS without host memory.
Status optimizer_create(Optimizer *optimizer, Context *context, Comm *world, const Params *params,
                        const Buckets *buckets, Arena *arena, OptimizerOptions options);
void optimizer_destroy(Optimizer *optimizer);
// A stretch of a parameter's local share whose state this rank keeps: elements [begin, begin + count) of the
// share; value, main, m, v and ema as in ShardState are [1, count]; v and ema are absent where they are not kept.
typedef struct {
    const Param *param;
    int64_t begin, count;
    Device *device; // of its tensors: the rank's, or the host's where they are offloaded
    Stream *stream;
    Tensor value, main, m, v, ema;
    int copies, copy; // the number of replicas that keep it, and this rank's number among them
} OwnedPart;
// Calls `visit` for every such stretch, bucket by bucket, until it fails. The stretches of all replicas make up the
// share of a parameter; without shards every replica has all of them.
typedef Status VisitPart(void *self, const OwnedPart *part);
Status optimizer_visit(const Optimizer *optimizer, VisitPart *visit, void *self);
// A WriteMaster for params_init: keeps the fp32 share of a parameter that this rank owns. Its average begins there.
void optimizer_write_master(void *optimizer, const Param *param, const float *local);
// The L2 norm of all gradients of the model over `loss_scale`, every parameter counted once: shares cut over
// tp are added, replicas and the tied copy are left out. Squares are added exactly, so p, v, schedule,
// buckets and shards cannot change a bit. Infinite when any gradient that is counted is not finite. Reads the gradients
// once, and again where the largest one has another exponent than in the step before.   Collective over `owners`: one
// maximum, then 3 sums per parameter of the model.
double optimizer_grad_norm(Optimizer *optimizer, double loss_scale);
// The largest magnitude in the gradients' memory of one reduction.   Collective over `owners`.
double optimizer_largest(Optimizer *optimizer, Reduction reduction);
// Steps this rank's shards with clipping by the given norm, of gradients that are loss_scale times too large. Weight
// decay on matrices only. With Muon the gradients of matrices are overwritten.   Collective over the world with Muon.
void optimizer_step(Optimizer *optimizer, double grad_norm, double loss_scale, double lr,
                    double weight_decay);
