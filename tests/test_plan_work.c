// What the planner has on record of a model's parts is what training asks for: the flops of whole grids, the
// published volumes of messages, parameters and their optimizer.
#include "harness.h"
#include "plan/plan.h"
#include <math.h>
#include <string.h>

enum { VOCABULARY = 300, DIVISOR = 128, LAYERS = 4, MICROBATCHES = 3, WAYS = 48 };

static ModelShape gpt(void) {
    return (ModelShape){.layers = LAYERS,
                        .hidden = 48,
                        .heads = 8,
                        .head_size = 6,
                        .ffn = 192,
                        .sequence = 32,
                        .positions = 40,
                        .vocabulary = VOCABULARY,
                        .hidden_dropout = 0.1f,
                        .attention_dropout = 0.1f,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.02f};
}

static ModelShape llama(void) {
    ModelShape shape = gpt();
    shape.groups = 4, shape.ffn = 96;
    shape.activation = ACTIVATION_SWIGLU, shape.position = POSITION_ROTARY, shape.rotary_base = 10000;
    shape.rms_norm = shape.no_linear_bias = shape.untied = true;
    shape.hidden_dropout = shape.attention_dropout = 0;
    return shape;
}

static ParallelConfig config(int tp) {
    return (ParallelConfig){
        .grid = GRID(tp, 1, 1), .chunks = 1, .microbatch = 2, .batch = 2, .schedule = "1f1b", .dtype = BF16};
}

// t 1, 2, 4; all that is computed again; sequence parallel; attention; GPT and Llama.
static ParallelConfig candidate_of(int way, ModelShape *model) {
    static const Recompute recompute[] = {RECOMPUTE_NOTHING, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM};
    ParallelConfig c = config(1 << way % 3);
    c.recompute = recompute[way / 3 % 3];
    c.sequence_parallel = way & 1 && grid_along(c.grid, AXIS_TP) > 1;
    c.attention = way & 4 ? ATTENTION_UNFUSED : ATTENTION_FUSED;
    c.dtype = way % 5 ? BF16 : F32;
    *model = way & 2 ? llama() : gpt();
    return c;
}

static Work recorded(const ModelShape *model, const ParallelConfig *c) {
    Work work;
    EXPECT_OK(work_record(&work, model, c));
    return work;
}

// The same run of the trainer on p stages, with the whole model.
static EngineSpec spec_of(const ModelShape *model, const ParallelConfig *c, int pp) {
    EngineSpec spec = {.grid = GRID(grid_along(c->grid, AXIS_TP), 1, pp),
                       .shape = *model,
                       .mode = {.dtype = c->dtype,
                                .sequence_parallel = c->sequence_parallel,
                                .keep_probabilities = c->attention == ATTENTION_UNFUSED,
                                .recompute = c->recompute,
                                .recompute_layers = 1},
                       .split = {.layers = model->layers},
                       .schedule = "1f1b",
                       .num_chunks = 1,
                       .num_microbatches = MICROBATCHES,
                       .adam = {0.9, 0.95, 1e-8, 1},
                       .bucket_elements = 5000,
                       .device = "reference",
                       .threads = 1};
    spec.mode.microbatch = c->microbatch;
    spec.mode.padded_vocabulary = padded_vocabulary(model->vocabulary, DIVISOR, grid_along(c->grid, AXIS_TP));
    return spec;
}

static double part_flops(const Work *w, ModelPart part) {
    return work_flops(&w->forward[part]) + work_flops(&w->backward[part]);
}

static double whole_flops(const Work *w, int layers) {
    return part_flops(w, PART_EMBEDDING) + layers * part_flops(w, PART_LAYER) + part_flops(w, PART_HEAD);
}

// ---- flops --------------------------------------------------------------------------------------

static void parts_add_up_to_what_grids_compute(void) {
    for (int way = 0; way < WAYS; way++) {
        ModelShape model;
        ParallelConfig c = candidate_of(way, &model);
        Work work = recorded(&model, &c);
        EngineSpec spec = spec_of(&model, &c, way % 7 ? 2 : 4);
        double flops = 0;
        for (int pp = 0; pp < grid_along(spec.grid, AXIS_PP); pp++) {
            EngineMemory measured;
            EXPECT_OK(
                engine_measure(&spec, grid_rank(spec.grid, (Place){.at[AXIS_PP] = pp}), &measured, NULL));
            flops += measured.flops;
        }
        double parts = MICROBATCHES * whole_flops(&work, LAYERS);
        EXPECT(parts > 0 && parts == flops, "way %d: %.0f flops, the grid %.0f", way, parts, flops);
        work_free(&work);
    }
}

// The trainer's attention computes its scores a second time in the backward; the published formula does not.
static void nothing_recomputed_is_the_published_formula(void) {
    for (int way = 0; way < 12; way++) {
        ModelShape model = way & 1 ? llama() : gpt();
        ParallelConfig c = config(1 << way % 3);
        c.sequence_parallel = grid_along(c.grid, AXIS_TP) > 1;
        if (way % 4 > 1) model.window = model.sequence / 2;
        EngineSpec spec = spec_of(&model, &c, 1);
        Work work = recorded(&model, &c);
        double s = model.sequence, scores = 2.0 * c.microbatch * s * s * model.heads * model.head_size;
        double said = model_flops(&spec.shape, spec.mode.padded_vocabulary, c.microbatch);
        said += LAYERS * scores * model_visible_share(&model);
        double flops = grid_along(c.grid, AXIS_TP) * whole_flops(&work, LAYERS);
        EXPECT(fabs(flops - said) <= 1e-12 * said, "way %d: %.0f flops, not %.0f", way, flops, said);
        EXPECT(part_flops(&work, PART_EMBEDDING) == 0, "way %d: products in the embedding", way);
        double forward = work_flops(&work.forward[PART_HEAD]);
        EXPECT(forward > 0 && work_flops(&work.backward[PART_HEAD]) == 2 * forward,
               "way %d: the head's backward is not twice its forward", way);
        work_free(&work);
    }
}

static void expect_shapes_explain_flops(const WorkList *list, DType dtype) {
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        double mnk = (double)item->m * (double)item->n * (double)item->k * (double)item->batch;
        int times = 0;
        if (work_item_is_product(item)) times = 2;
        if (item->kind == WORK_OP && item->op == OP_ATTENTION_FORWARD) times = 4;
        if (item->kind == WORK_OP && item->op == OP_ATTENTION_BACKWARD) times = 10;
        EXPECT(item->flops == times * mnk && item->bytes > 0, "item %d: %.0f flops, %.0f bytes", i,
               item->flops, item->bytes);
        EXPECT(!times || item->dtype == dtype, "item %d of %s", i, dtype_name((DType)item->dtype));
        EXPECT(times || item->kind == WORK_COLLECTIVE || item->m * item->n > 0, "item %d has no size", i);
    }
}

static void shapes_explain_flops(void) {
    for (int way = 0; way < WAYS; way++) {
        ModelShape model;
        ParallelConfig c = candidate_of(way, &model);
        Work work = recorded(&model, &c);
        for (int part = 0; part < NUM_PARTS; part++) {
            expect_shapes_explain_flops(&work.forward[part], c.dtype);
            expect_shapes_explain_flops(&work.backward[part], c.dtype);
        }
        work_free(&work);
    }
}

// On a GPU some operations are one: the same products, and less memory that is read and written.
static void joined_work_is_the_same_work(void) {
    for (int way = 0; way < WAYS && device_check("cuda-sim") == OK; way++) {
        ModelShape model;
        ParallelConfig c = candidate_of(way, &model);
        if (c.attention == ATTENTION_UNFUSED) continue;
        Work apart = recorded(&model, &c);
        c.device = "cuda-sim";
        Work joined = recorded(&model, &c);
        for (int part = 0; part < NUM_PARTS; part++) {
            double flops = part_flops(&apart, (ModelPart)part), now = part_flops(&joined, (ModelPart)part);
            EXPECT(flops == now, "way %d, part %d: %.0f flops joined, %.0f apart", way, part, now, flops);
            expect_shapes_explain_flops(&joined.forward[part], c.dtype);
            expect_shapes_explain_flops(&joined.backward[part], c.dtype);
        }
        EXPECT(joined.backward[PART_LAYER].count < apart.backward[PART_LAYER].count, "way %d: not joined",
               way);
        work_free(&apart);
        work_free(&joined);
    }
}

// ---- what is computed again -----------------------------------------------------------------------

static bool is_item(WorkItem a, WorkItem b) {
    return a.kind == b.kind && a.op == b.op && a.role == b.role && a.dtype == b.dtype && a.m == b.m &&
           a.n == b.n && a.k == b.k && a.batch == b.batch && a.bytes == b.bytes && a.flops == b.flops &&
           a.probabilities == b.probabilities && a.dropout == b.dropout && a.accumulate == b.accumulate;
}

static bool is_concatenation(const WorkList *whole, const WorkList *first, const WorkList *second) {
    if (whole->count != first->count + second->count) return false;
    for (int i = 0; i < whole->count; i++) {
        bool in_first = i < first->count;
        const WorkItem *part = in_first ? &first->items[i] : &second->items[i - first->count];
        if (!is_item(*part, whole->items[i])) return false;
    }
    return true;
}

static void a_recomputed_layer_runs_forward_again(void) {
    for (int way = 0; way < 8; way++) {
        ModelShape model = way & 1 ? llama() : gpt();
        ParallelConfig c = config(way & 2 ? 2 : 1);
        c.sequence_parallel = way & 4 && grid_along(c.grid, AXIS_TP) > 1;
        Work once = recorded(&model, &c);
        c.recompute = RECOMPUTE_UNIFORM;
        Work again = recorded(&model, &c);
        EXPECT(is_concatenation(&again.backward[PART_LAYER], &once.forward[PART_LAYER],
                                &once.backward[PART_LAYER]),
               "way %d: not a forward, then a backward", way);
        EXPECT(again.forward[PART_LAYER].count == once.forward[PART_LAYER].count,
               "way %d: the forward is another", way);
        work_free(&once);
        work_free(&again);
    }
}

static void selective_recomputation_runs_the_core_again(void) {
    ModelShape model = gpt();
    ParallelConfig c = config(2);
    for (int unfused = 0; unfused < 2; unfused++) {
        c.attention = unfused ? ATTENTION_UNFUSED : ATTENTION_FUSED;
        c.recompute = RECOMPUTE_NOTHING;
        Work once = recorded(&model, &c);
        c.recompute = RECOMPUTE_SELECTIVE;
        Work again = recorded(&model, &c);
        double s = model.sequence,
               core = 4.0 * c.microbatch * s * s * model.hidden / grid_along(c.grid, AXIS_TP);
        double more = work_flops(&again.backward[PART_LAYER]) - work_flops(&once.backward[PART_LAYER]);
        EXPECT(more == core, "%.0f flops more, the core has %.0f", more, core);
        EXPECT(again.backward[PART_LAYER].count == once.backward[PART_LAYER].count + 1,
               "more than the core runs again");
        EXPECT(is_concatenation(&again.forward[PART_LAYER], &once.forward[PART_LAYER], &(WorkList){0}),
               "the forward is another");
        work_free(&once);
        work_free(&again);
    }
}

static const WorkItem *find_op(const WorkList *list, DeviceOp op) {
    for (int i = 0; i < list->count; i++)
        if (list->items[i].kind == WORK_OP && list->items[i].op == op) return &list->items[i];
    return NULL;
}

// The S x S matrix of every local head, in the element type.
static void unfused_attention_has_its_matrix(void) {
    ModelShape model = gpt();
    ParallelConfig c = config(2);
    Work fused = recorded(&model, &c);
    c.attention = ATTENTION_UNFUSED;
    Work unfused = recorded(&model, &c);
    const WorkList *lists[2][2] = {{&fused.forward[PART_LAYER], &unfused.forward[PART_LAYER]},
                                   {&fused.backward[PART_LAYER], &unfused.backward[PART_LAYER]}};
    double matrix = 2.0 * c.microbatch * model.heads / 2 * model.sequence * model.sequence;
    for (int i = 0; i < 2; i++) {
        DeviceOp op = i ? OP_ATTENTION_BACKWARD : OP_ATTENTION_FORWARD;
        const WorkItem *a = find_op(lists[i][0], op), *b = find_op(lists[i][1], op);
        EXPECT(a && b && !a->probabilities && b->probabilities && a->dropout && b->dropout, "list %d", i);
        if (!a || !b) continue;
        EXPECT(b->bytes - a->bytes == matrix, "list %d: %.0f bytes more, not %.0f", i, b->bytes - a->bytes,
               matrix);
        EXPECT(a->m == model.sequence && a->k == a->m && a->n == model.head_size &&
                   a->batch == c.microbatch * model.heads / 2,
               "list %d: shape", i);
    }
    work_free(&fused);
    work_free(&unfused);
}

// ---- messages -----------------------------------------------------------------------------------

// Bytes that a rank of a ring sends for the collectives of a list.
static double ring_bytes(const WorkList *list, int t) {
    double sum = 0;
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        if (item->kind != WORK_COLLECTIVE) continue;
        EXPECT(item->role == ROLE_TENSOR, "%s over role %d", comm_op_name((CommOp)item->op), item->role);
        sum += item->bytes * (item->op == COMM_ALL_REDUCE ? 2 : 1) * (t - 1) / t;
    }
    return sum;
}

// Of a layer 4 bsh (t-1)/t each way (Narayanan 2021, section 3.2), in elements. With sequence parallelism
// the backward gathers both halves' inputs once more for the gradients of weights (Korthikanti 2022).
static void layers_move_the_published_volumes(void) {
    ModelShape model = gpt();
    for (int way = 0; way < 8; way++) {
        ParallelConfig c = config(way & 1 ? 4 : 2);
        c.sequence_parallel = way & 2;
        c.recompute = way & 4 ? RECOMPUTE_UNIFORM : RECOMPUTE_NOTHING;
        int t = grid_along(c.grid, AXIS_TP);
        double unit = 2.0 * c.microbatch * model.sequence * model.hidden * (t - 1) / t;
        Work work = recorded(&model, &c);
        double forward = ring_bytes(&work.forward[PART_LAYER], t) / unit;
        double backward = ring_bytes(&work.backward[PART_LAYER], t) / unit;
        double expected = 4 + (c.sequence_parallel ? 2 : 0) + (c.recompute ? 4 : 0);
        EXPECT(forward == 4 && backward == expected, "way %d: %g forward, %g backward, not 4 and %g", way,
               forward, backward, expected);
        EXPECT(work.stage_message_bytes == 2.0 * c.microbatch * model.sequence * model.hidden,
               "way %d: %.0f bytes between stages", way, work.stage_message_bytes);
        work_free(&work);
    }
}

// The ends reduce the embedding and the gradient of the head's input, and three F32 for each token's loss.
static void ends_move_little(void) {
    ModelShape model = gpt();
    ParallelConfig c = config(2);
    Work work = recorded(&model, &c);
    double tokens = c.microbatch * model.sequence, hidden = 2 * tokens * model.hidden;
    EXPECT(ring_bytes(&work.forward[PART_EMBEDDING], 2) == hidden, "embedding, forward");
    EXPECT(ring_bytes(&work.backward[PART_EMBEDDING], 2) == 0, "embedding, backward");
    EXPECT(ring_bytes(&work.forward[PART_HEAD], 2) == 3 * 4 * tokens, "head, forward");
    EXPECT(ring_bytes(&work.backward[PART_HEAD], 2) == hidden, "head, backward");
    work_free(&work);
    c = config(1);
    work = recorded(&model, &c);
    for (int part = 0; part < NUM_PARTS; part++)
        for (int i = 0; i < work.backward[part].count; i++)
            EXPECT(work.backward[part].items[i].kind == WORK_OP, "a collective of one rank");
    work_free(&work);
}

// ---- parameters ---------------------------------------------------------------------------------

static void parameters_are_the_model_s(void) {
    for (int way = 0; way < 2; way++) {
        ModelShape model = way ? llama() : gpt();
        model.vocabulary = 384;
        ParallelConfig c = config(1);
        Work work = recorded(&model, &c);
        int64_t all = work.parameters[PART_EMBEDDING] + LAYERS * work.parameters[PART_LAYER] +
                      work.parameters[PART_HEAD];
        EXPECT(all == model_parameters(&model), "%lld parameters, not %lld", (long long)all,
               (long long)model_parameters(&model));
        EXPECT(work.tensors[PART_LAYER] == (way ? 6 : 12), "%d tensors of a layer", work.tensors[PART_LAYER]);
        c.grid.size[AXIS_TP] = 3, model.heads = 12, model.groups = 0;
        Work share = recorded(&model, &c);
        EXPECT(share.parameters[PART_EMBEDDING] ==
                   128 * model.hidden + (way ? 0 : (int64_t)model.positions * model.hidden),
               "%lld parameters of a share of the table", (long long)share.parameters[PART_EMBEDDING]);
        work_free(&share);
        work_free(&work);
    }
}

// ---- a whole recorded step ------------------------------------------------------------------------

typedef struct {
    double flops[NUM_SCHEDULE_OPS + 1]; // by the compute that asked; the last: outside
    double adam_bytes, sent_bytes, elements;
    int chunk, microbatch; // most of both
    int in_8_bits;         // factors that were made
} Step;

static void on_opened(void *self, const Params *params) {
    Step *step = self;
    for (int i = 0; i < params->count; i++)
        if (params->items[i]->chunk >= 0) step->elements += (double)tensor_count(params->items[i]->value);
}

static void on_operation(void *self, const Instr *at, DeviceOp op, const void *args, OpCount one) {
    Step *step = self;
    WorkItem item = work_item(op, args, one, false);
    EXPECT(!dtype_is_float8((DType)item.dtype), "%s has a price in 8 bits", device_op_name(op));
    if (op == OP_QUANTIZE) step->in_8_bits++;
    step->flops[at ? at->op : NUM_SCHEDULE_OPS] += one.flops;
    if (op == OP_ADAMW) step->adam_bytes += one.bytes;
    if (at && at->microbatch > step->microbatch) step->microbatch = at->microbatch;
    if (at && at->chunk > step->chunk) step->chunk = at->chunk;
    EXPECT(!at || op <= OP_ABS_MAX || op == OP_ADD, "%s within a compute", device_op_name(op));
}

static void on_call(void *self, const Instr *at, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    Step *step = self;
    EXPECT(!at || !strcmp(comm_name(group), "tp"), "%s of %s within a compute", comm_op_name(op),
           comm_name(group));
    EXPECT(!at || dtype_is_element(dtype), "of %s", dtype_name(dtype));
    if (op == COMM_SEND) step->sent_bytes += (double)bytes;
}

static Step recorded_step(const EngineSpec *spec, int pp) {
    Step step = {.microbatch = -1};
    StepListener listener = {&step, on_opened, on_operation, on_call};
    EXPECT_OK(engine_record(spec, grid_rank(spec->grid, (Place){.at[AXIS_PP] = pp}), &listener));
    return step;
}

// Products in 8 bits are the same products; their factors and scales are further operations. One layer of two is in bf16.
static void products_in_8_bits(void) {
    ModelShape model = gpt();
    ParallelConfig c = config(2);
    c.dtype = BF16;
    EngineSpec spec = spec_of(&model, &c, 2);
    Step wide = recorded_step(&spec, 1);
    spec.mode.float8 = FLOAT8_HYBRID, spec.mode.wide_last = 1;
    Step narrow = recorded_step(&spec, 1);
    for (int op = 0; op <= NUM_SCHEDULE_OPS; op++)
        EXPECT(narrow.flops[op] == wide.flops[op], "%.0f flops, in bf16 %.0f", narrow.flops[op],
               wide.flops[op]);
    EXPECT(narrow.adam_bytes == wide.adam_bytes && narrow.sent_bytes == wide.sent_bytes, "other bytes");
    // 4 products of 3 kinds with 2 factors
    int layers = model.layers / grid_along(spec.grid, AXIS_PP),
        made = (layers - 1) * 24 * (narrow.microbatch + 1);
    EXPECT(wide.in_8_bits == 0 && narrow.in_8_bits == made && made > 0, "%d factors, not %d",
           narrow.in_8_bits, made);
}

// 4 for each of gradient, weight and both moments; in bf16 the weight is the value and what that leaves out.
static void adamw_reads_what_a_parameter_has(void) {
    for (int way = 0; way < 2; way++) {
        ModelShape model = gpt();
        ParallelConfig c = config(2);
        c.dtype = way ? F32 : BF16;
        EngineSpec spec = spec_of(&model, &c, 2);
        Step step = recorded_step(&spec, 1);
        double expected = 16 * step.elements;
        EXPECT(step.elements > 0 && step.adam_bytes == expected, "%.0f bytes of %.0f parameters",
               step.adam_bytes, step.elements);
    }
}

static void stages_send_what_is_said(void) {
    for (int way = 0; way < 4; way++) {
        ModelShape model = gpt();
        ParallelConfig c = config(2);
        c.sequence_parallel = way & 1;
        EngineSpec spec = spec_of(&model, &c, 2);
        spec.scatter_gather = way & 2;
        Work work = recorded(&model, &c);
        Step step = recorded_step(&spec, 0);
        double expected = MICROBATCHES * work.stage_message_bytes / (way ? grid_along(c.grid, AXIS_TP) : 1);
        EXPECT(step.sent_bytes == expected, "way %d: %.0f bytes sent, not %.0f", way, step.sent_bytes,
               expected);
        work_free(&work);
    }
}

static void steps_name_the_compute_that_asks(void) {
    ModelShape model = gpt();
    ParallelConfig c = config(2);
    EngineSpec spec = spec_of(&model, &c, 2);
    EngineMemory measured;
    EXPECT_OK(engine_measure(&spec, 0, &measured, NULL));
    Step whole = recorded_step(&spec, 0);
    EXPECT(whole.flops[OP_FORWARD] + whole.flops[OP_BACKWARD] == measured.flops, "flops are missing");
    EXPECT(whole.microbatch == MICROBATCHES - 1 && whole.chunk == 0, "microbatch %d, chunk %d",
           whole.microbatch, whole.chunk);
    spec.schedule = "zb-v", spec.num_chunks = 2, spec.num_microbatches = 4;
    Step split = recorded_step(&spec, 0);
    EXPECT(split.flops[OP_BACKWARD_INPUT] > 0 && split.flops[OP_BACKWARD_WEIGHT] > 0, "no halves");
    EXPECT(split.chunk == 1 && split.microbatch == 3, "chunk %d of microbatch %d", split.chunk,
           split.microbatch);
    EXPECT(split.flops[NUM_SCHEDULE_OPS] == 0 && whole.flops[NUM_SCHEDULE_OPS] == 0, "products outside");
}

// ---- errors, printing ---------------------------------------------------------------------------

static void expect_refused(const ModelShape *model, const ParallelConfig *c, const char *word) {
    Work work;
    EXPECT(work_record(&work, model, c) == ERR_CONFIG, "%s: not refused", word);
    EXPECT(strstr(fail_message(), word), "got: %s, without %s", fail_message(), word);
}

static void models_that_cannot_be_cut(void) {
    ModelShape model = gpt();
    ParallelConfig c = config(16);
    expect_refused(&model, &c, "groups");
    c = config(8);
    model.ffn = 196;
    expect_refused(&model, &c, "mlp");
    model = gpt();
    c.sequence_parallel = true, model.sequence = 33, c.microbatch = 1;
    expect_refused(&model, &c, "33");
    model = gpt();
    model.sequence = 64;
    expect_refused(&model, &c, "positions for 40");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){
            {"parts_add_up_to_what_grids_compute", parts_add_up_to_what_grids_compute},
            {"nothing_recomputed_is_the_published_formula", nothing_recomputed_is_the_published_formula},
            {"shapes_explain_flops", shapes_explain_flops},
            {"joined_work_is_the_same_work", joined_work_is_the_same_work},
            {"a_recomputed_layer_runs_forward_again", a_recomputed_layer_runs_forward_again},
            {"selective_recomputation_runs_the_core_again", selective_recomputation_runs_the_core_again},
            {"unfused_attention_has_its_matrix", unfused_attention_has_its_matrix},
            {"layers_move_the_published_volumes", layers_move_the_published_volumes},
            {"ends_move_little", ends_move_little},
            {"parameters_are_the_model_s", parameters_are_the_model_s},
            {"products_in_8_bits", products_in_8_bits},
            {"adamw_reads_what_a_parameter_has", adamw_reads_what_a_parameter_has},
            {"stages_send_what_is_said", stages_send_what_is_said},
            {"steps_name_the_compute_that_asks", steps_name_the_compute_that_asks},
            {"models_that_cannot_be_cut", models_that_cannot_be_cut},
            {0}},
        argc, argv);
}
