// Records the operations and messages that the trainer executes for each part of a model.
#include "plan/plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Records one part: stage i of the recorded pipeline is part i and nothing else.
typedef struct {
    Work *work;
    const Params *params; // of the run that is recorded
    ModelPart part;
    bool unfused;
    bool past_loss;  // the loss is computed: the rest of the forward makes gradients
    bool incomplete; // memory ran out
} Recorder;

// ---- lists --------------------------------------------------------------------------------------

// Returns false without memory.
static bool add_item(WorkList *list, WorkItem item) {
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 32;
        WorkItem *items = realloc(list->items, (size_t)capacity * sizeof *items);
        if (!items) return false;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return true;
}

double work_flops(const WorkList *list) {
    double sum = 0;
    for (int i = 0; i < list->count; i++) sum += list->items[i].flops;
    return sum;
}

void work_free(Work *work) {
    for (int part = 0; part < NUM_PARTS; part++) {
        free(work->forward[part].items);
        free(work->backward[part].items);
    }
    free(work->muon.items);
    *work = (Work){0};
}

// ---- listening ----------------------------------------------------------------------------------

static void note(Recorder *r, const Instr *at, WorkItem item) {
    bool is_forward = at->op == OP_FORWARD && !r->past_loss;
    WorkList *lists = is_forward ? r->work->forward : r->work->backward;
    if (!add_item(&lists[r->part], item)) r->incomplete = true;
}

// Outside of instructions a step has products of matrices in Muon alone, and its gathers over tp.
static void note_muon(Recorder *r, WorkItem item) {
    if (!add_item(&r->work->muon, item)) r->incomplete = true;
}

// The tensor of which an operation makes a factor with 8 bits; none for others.
static Tensor factor_source(DeviceOp op, const void *args) {
    if (op == OP_ABS_MAX) return ((const AbsMax *)args)->x;
    return op == OP_QUANTIZE ? ((const Quantize *)args)->x : (Tensor){0};
}

// On a device that computes nothing, tensors of two arenas may have one address.
static bool is_weight(const Params *params, Tensor x) {
    for (int i = 0; x.data && i < params->count; i++) {
        Tensor value = params->items[i]->value;
        if (value.data == x.data && value.rows == x.rows && value.cols == x.cols) return true;
    }
    return false;
}

static void on_operation(void *self, const Instr *at, DeviceOp op, const void *args, OpCount one) {
    Recorder *r = self;
    if (!at && op == OP_MATMUL && r->part == PART_LAYER) note_muon(r, work_item(op, args, one, r->unfused));
    if (!at) return;
    WorkItem item = work_item(op, args, one, r->unfused);
    item.of_weight = is_weight(r->params, factor_source(op, args));
    note(r, at, item);
    if (op == OP_LOSS_FINISH || op == OP_LOSS_WHOLE) r->past_loss = true;
}

static Role role_of(const Comm *group) {
    for (Role role = 0; role < NUM_ROLES; role++)
        if (!strcmp(comm_name(group), topology_roles[role].name)) return role;
    CHECK(false, "no role has the group %s", comm_name(group));
}

// Communicators count the whole tensor plus the rank's share in a scatter or gather, and both tensors of an all-to-all.
static double whole_bytes(const Comm *group, CommOp op, size_t bytes) {
    double size = comm_size(group);
    if (op == COMM_ALL_TO_ALL) return (double)bytes / 2;
    return (double)bytes * (op == COMM_REDUCE_SCATTER || op == COMM_ALL_GATHER ? size / (size + 1) : 1);
}

static void on_call(void *self, const Instr *at, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    Recorder *r = self;
    if (comm_size(group) == 1) return;
    bool of_muon = r->work->matrices && r->part == PART_LAYER;
    bool gathers = of_muon && op == COMM_ALL_GATHER && role_of(group) == ROLE_TENSOR;
    if (!at && !gathers) return;
    WorkItem item = {.kind = WORK_COLLECTIVE,
                     .op = (uint8_t)op,
                     .role = (uint8_t)role_of(group),
                     .dtype = (uint8_t)dtype,
                     .bytes = whole_bytes(group, op, bytes)};
    if (at)
        note(r, at, item);
    else
        note_muon(r, item);
}

static void on_opened(void *self, const Params *params) {
    Recorder *r = self;
    r->params = params;
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->spec.stage != (int)r->part || p->spec.tied_to) continue;
        r->work->parameters[r->part] += param_local_count(p);
        r->work->tensors[r->part]++;
        if (!placement_reductions[p->place.reduction].matrices) continue;
        r->work->matrices++;
        r->work->matrix_parameters += param_local_count(p);
    }
}

// ---- the recorded run ---------------------------------------------------------------------------

static const int layers_of_stage[NUM_PARTS] = {[PART_LAYER] = 1};

static Status check_cuts(const ModelShape *model, const ParallelConfig *c) {
    int t = grid_along(c->grid, AXIS_TP), shares = c->sequence_parallel ? t : 1;
    const struct {
        const char *what;
        int64_t size, by;
    } cuts[] = {{"attention heads, in query groups", model->heads, model_groups(model)},
                {"query groups, over tensor-parallel ranks", model_groups(model), t},
                {"columns of the mlp, over tensor-parallel ranks", model->ffn, t},
                {"tokens of a microbatch, over tensor-parallel ranks",
                 (int64_t)model->sequence * c->microbatch, shares}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (cuts[i].by < 1 || cuts[i].size < 1 || cuts[i].size % cuts[i].by)
            return fail(ERR_CONFIG, "%lld %s: they do not divide by %lld", (long long)cuts[i].size,
                        cuts[i].what, (long long)cuts[i].by);
    if (model->position == POSITION_LEARNED && model->positions < model->sequence)
        return fail(ERR_CONFIG, "a sequence of %d in a model with positions for %d", model->sequence,
                    model->positions);
    return OK;
}

// The layer that stands for all has the window that leaves the mean of their scores: w S - w (w - 1) / 2 of the
// S (S + 1) / 2 causal ones.
static ModelShape one_layer(const ModelShape *model) {
    ModelShape shape = *model;
    double s = model->sequence,
           root = (2 * s + 1) * (2 * s + 1) - 4 * model_visible_share(model) * s * (s + 1);
    if (model->window_period) shape.window = (int)lround((2 * s + 1 - sqrt(root)) / 2);
    shape.window_period = 0;
    shape.layers = 1;
    return shape;
}

// All microbatches execute the same, so one is recorded. Where the program is not trireme on a GPU, the head works on
// all tokens at once.
static EngineSpec spec_of(const ModelShape *model, const ParallelConfig *c) {
    const char *device = parallel_config_device(c);
    return (EngineSpec){.grid = GRID(grid_along(c->grid, AXIS_TP), 1, NUM_PARTS),
                        .shape = one_layer(model),
                        .mode = {.microbatch = c->microbatch,
                                 .padded_vocabulary = padded_vocabulary(model->vocabulary, VOCABULARY_DIVISOR,
                                                                        grid_along(c->grid, AXIS_TP)),
                                 .dtype = c->dtype,
                                 .float8 = c->factors ? FLOAT8_HYBRID : FLOAT8_NONE,
                                 .sequence_parallel = c->sequence_parallel,
                                 .keep_probabilities = c->attention == ATTENTION_UNFUSED,
                                 .recompute = c->recompute,
                                 .recompute_layers = 1,
                                 .whole_logits = !c->device},
                        .split = {.layers = 1, .counts = layers_of_stage},
                        .schedule = schedule_kind_default(1)->name,
                        .num_chunks = 1,
                        .num_microbatches = 1,
                        .adam = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
                        .muon = c->muon,
                        .bucket_elements = INT64_MAX / 2,
                        .device = device ? device : "reference",
                        .threads = 1};
}

Status work_record(Work *work, const ModelShape *model, const ParallelConfig *config) {
    *work = (Work){0};
    TRY(check_cuts(model, config));
    EngineSpec spec = spec_of(model, config);
    work->stage_message_bytes =
        (double)model->sequence * config->microbatch * model->hidden * (double)dtype_bytes(spec.mode.dtype);
    Status status = OK;
    for (ModelPart part = 0; part < NUM_PARTS && status == OK; part++) {
        Recorder recorder = {.work = work, .part = part, .unfused = spec.mode.keep_probabilities};
        StepListener listener = {&recorder, on_opened, on_operation, on_call};
        status = engine_record(&spec, grid_rank(spec.grid, (Place){.at[AXIS_PP] = (int)part}), &listener);
        if (status == OK && recorder.incomplete) status = fail(ERR_OS, "no memory for recorded work");
    }
    if (status != OK) work_free(work);
    return status;
}
