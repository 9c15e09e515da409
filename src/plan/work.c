// Records the operations and messages that the trainer executes for each part of a model.
#include "plan/plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDED_STAGES = 3 };

static int stage_of(ModelPart part) { return part == PART_DENSE ? (int)PART_LAYER : (int)part; }

// Records one part: stage i of the recorded pipeline is part i and nothing else.
typedef struct {
    Work *work;
    const Params *params; // of the run that is recorded
    const ParallelConfig *config;
    ModelPart part;
    bool unfused;
    bool past_loss;  // the loss is computed: the rest of the forward makes gradients
    bool at_experts; // the operations are those of experts
    bool incomplete; // memory ran out
} Recorder;

int model_dense_layers(const ModelShape *model, int first, int count) {
    int dense = 0;
    if (!model->experts || !model->experts_period) return 0;
    for (int layer = first; layer < first + count; layer++) dense += !model_layer_has_experts(model, layer);
    return dense;
}

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

// ---- items --------------------------------------------------------------------------------------

static WorkList *list_of(Recorder *r, const Instr *at) {
    bool is_forward = at->op == OP_FORWARD && !r->past_loss;
    return is_forward ? &r->work->forward[r->part] : &r->work->backward[r->part];
}

static void note(Recorder *r, const Instr *at, WorkItem item) {
    if (!add_item(list_of(r, at), item)) r->incomplete = true;
}

// Outside of instructions a step has products of matrices in Muon alone, and its gathers over tp.
static void note_muon(Recorder *r, WorkItem item) {
    if (!add_item(&r->work->muon, item)) r->incomplete = true;
}

// ---- experts ------------------------------------------------------------------------------------

// Whether the operation starts, goes on or ends the work on the rows of experts: these lie between the rows' gathering,
// or the gradient of what they add up to, and their sum or whatever else a layer does. Factors are made among them.
static bool is_at_experts(bool at_experts, DeviceOp op, const WorkItem *item) {
    switch (op) {
    case OP_GATHER_ROWS:
    case OP_COMBINE_BACKWARD: return true;
    case OP_ABS_MAX:
    case OP_QUANTIZE:
    case OP_BIAS_GELU_FORWARD:
    case OP_BIAS_GELU_BACKWARD:
    case OP_SWIGLU_FORWARD:
    case OP_SWIGLU_BACKWARD:
    case OP_COLUMN_SUM: return at_experts;
    default: return at_experts && work_item_is_product(item);
    }
}

// Two of the same kind whose sizes differ by the one row that some experts have more than others.
static bool are_alike(const WorkItem *a, const WorkItem *b) {
    return a->op == b->op && work_item_is_product(a) && a->of_experts && b->of_experts && a->n == b->n &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           llabs(a->m - b->m) + llabs(a->k - b->k) <= 1;
}

// Adds the product to that before it, if that is another expert's.
static bool join(WorkList *list, const WorkItem *item) {
    WorkItem *last = list->count ? &list->items[list->count - 1] : NULL;
    if (!last || !are_alike(last, item)) return false;
    last->batch += item->batch, last->bytes += item->bytes, last->flops += item->flops;
    return true;
}

// ---- factors that the trainer does not make -----------------------------------------------------------

// A product of experts or latents: all of a layer with factors but those that the trainer makes, and the router's.
static bool lacks_factors(const WorkItem *item, int router_columns) {
    bool router = item->m == router_columns || item->n == router_columns || item->k == router_columns;
    return work_item_is_product(item) && !item->low && item->dtype == BF16 && (item->of_experts || !router);
}

static WorkItem factor_of(const WorkItem *product, int64_t numbers, bool of_weight) {
    enum { MOVED = 5 }; // bytes of a number: read for its largest magnitude, read again, written
    return (WorkItem){.op = OP_QUANTIZE,
                      .dtype = BF16,
                      .of_weight = of_weight,
                      .of_experts = product->of_experts,
                      .bytes = MOVED * (double)numbers * (double)product->batch};
}

// Makes those products ones of factors, after the making of their first factor, and of the second one where it is a
// weight in a forward; the product that makes a gradient finds both.
//   Source: Transformer Engine, which makes the factors of a tensor once, for both directions
static bool add_factors(WorkList *list, int router_columns) {
    WorkList out = {0};
    bool done = true;
    for (int i = 0; i < list->count; i++) {
        WorkItem item = list->items[i];
        if (lacks_factors(&item, router_columns)) {
            item.low = true;
            if (!item.transpose_a) done = done && add_item(&out, factor_of(&item, item.m * item.k, false));
            if (item.transpose_b) done = done && add_item(&out, factor_of(&item, item.n * item.k, true));
        }
        done = done && add_item(&out, item);
    }
    free(list->items);
    *list = out;
    return done;
}

// ---- listening ----------------------------------------------------------------------------------

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
    item.of_experts = r->at_experts = is_at_experts(r->at_experts, op, &item);
    if (r->config->groups_experts && join(list_of(r, at), &item)) return;
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
    if (comm_size(group) == 1 || op == COMM_RECV) return;
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
        if (p->spec.stage != stage_of(r->part) || p->spec.tied_to) continue;
        r->work->parameters[r->part] += param_local_count(p);
        if (p->spec.experts) r->work->expert_parameters += param_local_count(p);
        r->work->tensors[r->part]++;
        if (!placement_reductions[p->place.reduction].matrices) continue;
        r->work->matrices++;
        r->work->matrix_parameters += param_local_count(p);
    }
}

// ---- the recorded run ---------------------------------------------------------------------------

static const int layers_of_stage[RECORDED_STAGES] = {[PART_LAYER] = 1};

static Status check_cuts(const ModelShape *model, const ParallelConfig *c) {
    int t = grid_along(c->grid, AXIS_TP), ranks = grid_along(c->grid, AXIS_CP);
    int shares = ranks * (c->sequence_parallel ? t : 1), parts = ranks > 1 ? 2 * ranks : 1;
    const struct {
        const char *what;
        int64_t size, by;
    } cuts[] = {{"attention heads, in query groups", model->heads, model_groups(model)},
                {"query groups, over tensor-parallel ranks", model_groups(model), t},
                {"columns of the mlp, over tensor-parallel ranks", model->ffn, t},
                {"positions, over two parts of each context-parallel rank", model->sequence, parts},
                {"tokens of a microbatch, over tensor- and context-parallel ranks",
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
static ModelShape one_layer(const ModelShape *model, ModelPart part) {
    ModelShape shape = *model;
    shape.experts_period = 0;
    if (part == PART_DENSE) shape.experts = 0;
    double s = model->sequence,
           root = (2 * s + 1) * (2 * s + 1) - 4 * model_visible_share(model) * s * (s + 1);
    if (model->window_period) shape.window = (int)lround((2 * s + 1 - sqrt(root)) / 2);
    shape.window_period = 0;
    shape.layers = 1;
    return shape;
}

// As many replicas as the experts of a layer need.
static Grid recorded_grid(const ParallelConfig *c) {
    int t = grid_along(c->grid, AXIS_TP), ranks = grid_along(c->grid, AXIS_CP), replicas = 1;
    int etp = grid_along(c->grid, AXIS_ETP), ep = grid_along(c->grid, AXIS_EP);
    while (t * ranks * replicas % (etp * ep)) replicas++;
    Grid grid = GRID(t, replicas, RECORDED_STAGES);
    grid.size[AXIS_CP] = ranks, grid.size[AXIS_ETP] = etp, grid.size[AXIS_EP] = ep;
    return grid;
}

// Pairs of a token and an expert that a rank sends to another one; 0: the trainer's own rule, which leaves room.
static int64_t slot_of(const ModelShape *model, const ParallelConfig *c) {
    int ranks = grid_along(c->grid, AXIS_EP), t = grid_along(c->grid, AXIS_TP);
    int64_t pairs =
        (int64_t)model->sequence / grid_along(c->grid, AXIS_CP) * c->microbatch * model->experts_topk;
    bool own_rows = c->sequence_parallel && grid_along(c->grid, AXIS_ETP) == 1;
    if (!c->groups_experts || ranks == 1) return 0;
    if (own_rows) pairs /= t;
    return (pairs + ranks - 1) / ranks;
}

// All microbatches execute the same, so one is recorded. Where the program is not trireme on a GPU, the head works on
// all tokens at once.
static EngineSpec spec_of(const ModelShape *model, const ParallelConfig *c, ModelPart part) {
    const char *device = parallel_config_device(c);
    return (EngineSpec){.grid = recorded_grid(c),
                        .shape = one_layer(model, part),
                        .mode = {.microbatch = c->microbatch,
                                 .padded_vocabulary = padded_vocabulary(model->vocabulary, VOCABULARY_DIVISOR,
                                                                        grid_along(c->grid, AXIS_TP)),
                                 .dtype = c->dtype,
                                 .float8 = c->factors ? FLOAT8_HYBRID : FLOAT8_NONE,
                                 .wide_experts = c->groups_experts, // add_factors makes theirs
                                 .context_ranks = grid_along(c->grid, AXIS_CP),
                                 .context_way = c->context_way,
                                 .sequence_parallel = c->sequence_parallel,
                                 .keep_probabilities = c->attention == ATTENTION_UNFUSED,
                                 .recompute = c->recompute,
                                 .recompute_layers = 1,
                                 .whole_logits = !c->device,
                                 .dispatch_slot = slot_of(model, c)},
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

static Status record_part(Work *work, const ModelShape *model, const ParallelConfig *config, ModelPart part) {
    EngineSpec spec = spec_of(model, config, part);
    Recorder recorder = {
        .work = work, .config = config, .part = part, .unfused = spec.mode.keep_probabilities};
    StepListener listener = {&recorder, on_opened, on_operation, on_call};
    TRY(engine_record(&spec, grid_rank(spec.grid, (Place){.at[AXIS_PP] = stage_of(part)}), &listener));
    bool is_layer = part == PART_LAYER || part == PART_DENSE;
    if (config->factors && config->groups_experts && is_layer && !recorder.incomplete)
        recorder.incomplete = !add_factors(&work->forward[part], spec.shape.experts) ||
                              !add_factors(&work->backward[part], spec.shape.experts);
    return recorder.incomplete ? fail(ERR_OS, "no memory for recorded work") : OK;
}

Status work_record(Work *work, const ModelShape *model, const ParallelConfig *config) {
    *work = (Work){.stage_message_bytes = (double)model->sequence / grid_along(config->grid, AXIS_CP) *
                                          config->microbatch * model->hidden *
                                          (double)dtype_bytes(config->dtype)};
    TRY(check_cuts(model, config));
    Status status = OK;
    for (ModelPart part = 0; part < NUM_PARTS && status == OK; part++)
        if (part != PART_DENSE || model_dense_layers(model, 0, model->layers))
            status = record_part(work, model, config, part);
    if (status != OK) work_free(work);
    return status;
}
