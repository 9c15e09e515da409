// The registry of parameters. A layer declares its parameters once (global name, global shape, how it is cut
// over which axis, init, decay, tie); placing allocates the local shares. Values have the run's element type E,
// gradients F32. Global sizes appear in declarations only.
#pragma once
#include "device/device.h"
#include "layout/leaves.h"
#include "layout/placement.h"
#include "layout/topology.h"

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_UNIFORM } Init;

enum { MAX_MATRICES = 3 };

typedef struct {
    char name[96];      // global, as in Megatron-LM: "decoder.layers.3.mlp.linear_fc1.weight"
    int64_t rows, cols; // global shape; a vector is one row
    Cut cut;            // how it is cut, and over which axis
    Init init;
    float stddev;      // of INIT_NORMAL; of INIT_UNIFORM the largest magnitude
    int64_t real_rows; // rows from this one on are padding and stay zero; 0: none are
    bool decay;        // weight decay applies (matrices, not biases and norms)
    bool adapter;      // it is trained where all others are frozen (Params.adapters_only)
    // A rule steps it, no gradient: it is F32, whole on every rank of its stage, and apart from the flat buffers.
    bool by_rule;
    Reduction reduction; // how its gradient becomes whole; TIED follows from tied_to
    int stage;           // the model stage that holds it
    const char *tied_to; // the name of the parameter that this one is a copy of, or NULL
    // It holds the matrices of so many experts, one after the other along its rows. `cut` is that of each of them, and
    // the reduction follows. 0: it is of no experts.
    int experts;
    // Of a hidden matrix, which an optimizer may step as a whole (Params.matrices_apart), how many of its rows in turn
    // are of one matrix, then of the next: queries, keys, values; {1} where all are of one, or of one expert. All
    // zeros: it is no such matrix, but a table, a bias, a gain. A slice over tp has whole turns.
    int64_t matrices[MAX_MATRICES];
} ParamSpec;

// The levels of the tree in which a rank adds the gradients of its leaves (Params.leaves).
enum { MAX_LEAF_LEVELS = 12 };

struct Param;
// Sees the gradient of each local parameter once in a step: when it holds the contributions of the first microbatches
// of a leaf, up to that of `last`, and nothing else.
typedef struct {
    LeafPlace last;
    void (*see)(void *self, const struct Param *param);
    void *self;
} GradWatch;

typedef struct Param {
    ParamSpec spec;
    // Set by params_place: the share that this rank holds, or would hold if the parameter were on its stage.
    Placement place;
    int unit;    // the unit that it belongs to
    int chunk;   // of this rank; -1: it is on another pipeline rank, and the tensors are absent
    bool frozen; // training does not change it: it has no gradient, and the optimizer keeps nothing of it
    int64_t
        offset; // of its first element in the flat buffers of its chunk; -1: it uses another's value; by_rule: their end
    // Local share, in the run's element type. Where the rank keeps shards alone it has memory only while its unit is
    // acquired (UnitWatch); else its address is NULL, and its shape stays.
    Tensor value;
    // What this rank keeps of the value: [1, count], elements [kept_begin, kept_begin + count) of the local share.
    // It is the whole share unless values are sharded; absent where the value is another's.
    Tensor kept;
    int64_t kept_begin;
    // F32 accumulator. Where the rank keeps a shard of it alone it has memory only from unit_begin to unit_finish.
    Tensor grad;
    bool
        grad_uninitialized; // the next contribution is written to the gradient, not added: the first one of a leaf
    // `grad` is the sum of its leaf up to this microbatch. partial[k] is the sum of the last 2^k leaves whose other
    // half is still missing.
    LeafPlace last;
    Tensor partial[MAX_LEAF_LEVELS];
    const GradWatch *watch; // that has not seen the gradient yet, or NULL
    // The local parameter whose value this one uses (a tie within one rank), or NULL.
    struct Param *tied_value;
    // With Params.sources, of experts: stand for the parameter where the tokens are those of another source than 0;
    // [sources - 1]. NULL: the gradient is one for all.
    struct Param *sources;
} Param;

// The parameter with the gradient for the tokens of a source.
static inline Param *param_of_source(Param *param, int source) {
    return source ? &param->sources[source - 1] : param;
}

// The values and the gradients of a chunk as two flat buffers, with a parameter at the same offset in both.
// Reductions, shards and gathers work on these buffers. Every reduction (layout/placement.h) has a region,
// [region[r], region[r + 1]), in which its parameters lie in the model's order. The length of a region is a
// multiple of PARAM_ALIGNMENT times the number of its replicas. Parameters that are frozen have regions of their own
// after those, region[NUM_REDUCTIONS + r] for reduction r, in the values alone.
// With params_units_apart the parameters of a unit in a region are a span of such a length, too, so that each of its
// replicas may keep an equal shard of it. Where a rank keeps shards alone (params_keep_shards) `values` holds them, one
// after the other.
enum { NUM_REGIONS = 2 * NUM_REDUCTIONS };
typedef struct {
    int region, unit;
    int64_t begin, count; // in the flat buffers
    int64_t kept;         // where this rank's shard of the values begins in ChunkParams.values
    // Where its gradients begin in ChunkParams.grads: all of them, or with `grads_cut` this rank's shard. Not of a span
    // that is frozen.
    int64_t grads;
    bool grads_cut;
} ParamSpan;
typedef struct {
    // In the run's element type; F32 [1, region[NUM_REDUCTIONS]], less where a rank keeps shards (ParamSpan.grads_cut).
    Tensor values, grads;
    Tensor partial[MAX_LEAF_LEVELS]; // F32 [1, region[NUM_REDUCTIONS]]
    int64_t region[NUM_REGIONS + 1];
    int64_t count;    // the end of the last region
    ParamSpan *spans; // with params_units_apart, from the start of the chunk to its end
    int num_spans;
} ChunkParams;

enum { PARAM_ALIGNMENT = 64 }; // elements; every parameter starts on it

// Parameters [first, end) of the registry, which are used together: the embedding, a layer, the head.
typedef struct {
    int first, end;
} ParamUnit;

typedef struct {
    Param **items; // in the model's order, the same list on every rank
    int count, capacity;
    ParamUnit *units;
    int num_units;
    ChunkParams *chunks;
    int num_chunks;
    int num_matrices;    // of linear layers and experts of transformer layers that are declared
    bool values_only;    // set before placing: a model that is not trained takes no gradients
    bool adapters_only;  // set before declaring: all parameters but those of adapters are frozen
    bool matrices_apart; // set before placing: hidden matrices lie apart: MATRIX, EXPERT_MATRIX
    Sharding sharding;   // set before placing: what replicas cut into shards
    // Set before placing, with units apart and one leaf: a rank keeps its shard of the gradients alone, and the whole
    // gradients of a unit have memory while a microbatch adds to them. It holds where a gradient is final as soon as
    // its unit is (ReductionInfo.first), but not of matrices that are stepped whole.
    bool cut_grads;
    // Set before placing, with shards of values: memory that all replicas share. Each replica writes its shards there,
    // and every value is whole. NULL: there is none, each keeps its shards alone.
    Arena *shared;
    // Set before placing. The microbatches of a step are divided into so many leaves (a power of two; 0 is 1), one
    // after the other. A rank adds the gradients of a leaf in the order of its microbatches, and the leaves in a binary
    // tree.
    int leaves;
    // Set before placing. Experts keep the gradients of the tokens of so many ranks apart (a power of two; 0 is 1),
    // each the tree of that rank's leaves, and add these in the same tree: as if each rank had all experts.
    int sources;
} Params;

// Returns whether this rank keeps its shards of the values alone, so that a unit must be gathered before it is used.
bool params_keep_shards(const Params *params);
// Returns whether the parameters of a unit are apart from those of others, in each region.
bool params_units_apart(const Params *params);
// Returns the role of the replicas that add up a gradient first and cut what follows from it: all of them, or where
// anything is cut those of one instance.
Role params_sharers(const Params *params, Reduction reduction);
// Returns the gradients of a region of a chunk: of one that is not cut.
Tensor params_region_grads(const Params *params, int chunk, Reduction reduction);
// Begins a unit, to which the parameters belong that are declared next. Returns its number.
int params_begin_unit(Params *params);
Param *params_declare(Params *params, ParamSpec spec);      // in the unit that began last
Param *params_find(const Params *params, const char *name); // NULL when there is none
// Allocates the local parameters, once all are declared. `stage_of_chunk[c]` is the stage that chunk c of this rank
// holds. The gradient of a parameter that uses another's value is outside the flat buffers.
void params_place(Params *params, Arena *arena, const Topology *topology, DType dtype,
                  const int *stage_of_chunk, int num_chunks);
// Sets the values of all local parameters: calls `fill`, which writes the local share of one in fp32 (`local` holds
// zeros), passes it to the optional callback `write_master`, rounds it and uploads it. A parameter that uses another's
// value is left out; the elements between parameters become zero.
//   ERR_OS without host memory for the largest share; else the first failure of `fill`.
typedef Status FillParam(void *self, const Param *param, float *local);
typedef void WriteMaster(void *self, const Param *param, const float *local);
Status params_fill(const Params *params, Device *device, FillParam *fill, void *source,
                   WriteMaster *write_master, void *self);
// The same for the parameters of adapters alone: all others stay as they are.
Status params_fill_adapters(const Params *params, Device *device, FillParam *fill, void *source);
// The same for the parameter of this name and a copy that is tied to it: all others stay as they are.
Status params_fill_one(const Params *params, Device *device, const char *name, FillParam *fill, void *source,
                       WriteMaster *write_master, void *self);
// Sets the initial values. Every element is a function of (seed, name, global index), so the model is the same on any
// grid and for any number of threads.   ERR_OS without host memory.
Status params_init(const Params *params, Device *device, uint64_t seed, WriteMaster *write_master,
                   void *self);
// The initial values of one parameter, as params_init sets them: a FillParam. `self` is an InitialValues.
typedef struct {
    const Device *device;
    uint64_t seed;
} InitialValues;
FillParam param_init;
// Zeroes all gradients and the elements between parameters, which are reduced with them. Called once, before the first
// step.
void params_zero_grads(const Params *params, Device *device);
// Begins a step: marks every gradient as uninitialized, so that its first contribution is written and nothing need be
// zeroed.
void params_begin_grads(const Params *params);
// Sets a watch on all gradients, for the step that params_begin_grads begins next.
void params_watch_grads(const Params *params, const GradWatch *watch);
// Shows the watch the gradients of a unit, where they are due.
void params_show_grads(const Params *params, int unit);
// Shows the watch the gradients that nothing has been added to since they were due. Afterwards it has seen all of them.
void params_end_watch(const Params *params);
void params_free(Params *params);
int64_t param_local_count(const Param *param); // elements of the local share
Tensor param_value(const Param *param);        // absent for NULL, as for a bias that a layer does not have
// A gradient for a contribution of the microbatch at `place`, which may make several. Calls for a parameter give leaves
// in ascending order, and the microbatches of a leaf, too.
typedef struct {
    Tensor sum;
    bool adds; // false: the contribution is to be written, and its caller writes it
} GradSum;
GradSum param_grad_sum(Param *param, Device *device, LeafPlace place);
// Returns the same to add to: it is zeroed where param_grad_sum would have it written. Absent for NULL.
Tensor param_grad(Param *param, Device *device, LeafPlace place);
// Completes the gradients of a unit after their last contribution: adds the leaves that are still apart.
void params_finish_grads(const Params *params, Device *device, int unit);
// Copy the local share out of a whole tensor in host memory, and back into it.
void param_slice(const Param *param, const float *whole, float *local);
void param_unslice(const Param *param, const float *local, float *whole);
