// The CUDA device's kernels against plain C (gpu_models.h), to the bit: of every operation whose kernels are made of the
// operations of IEEE 754, in every case and element type. What the simulated GPU gives is thereby what any GPU must give, not
// what its emulator happens to do. TRIREME_TEST_DEVICE=cuda compares a GPU; there a product that joins other operations is
// compared where its sums are exact in every order, as that of cuBLASLt is not known.
#include "device_cases.h"
#include "gpu_model_heads.h"
#include "gpu_model_products.h"

// ---- models of the loss and the optimizer -----------------------------------------------------------------

static int64_t used_columns(Tensor logits, int64_t first_col, int64_t vocabulary) {
    return smaller_of(logits.cols, larger_of(vocabulary - first_col, 0));
}

// The largest one; no NaN is among them.
static void model_loss_max(const LossMax *p) {
    const int64_t used = used_columns(p->logits, p->first_col, p->vocabulary);
    for (int64_t row = 0; row < p->logits.rows; row++) {
        float most = -INFINITY;
        for (int64_t c = 0; c < used; c++) most = fmaxf(most, value(p->logits, row * p->logits.cols + c));
        put(p->max, row, most);
    }
}

// Thread i of 256 has quads i, i + 256, ... of a row.
static void model_loss_sum(const LossSum *p) {
    const int64_t cols = p->logits.cols, used = used_columns(p->logits, p->first_col, p->vocabulary);
    for (int64_t row = 0; row < p->logits.rows; row++) {
        float sums[MODEL_THREADS] = {0}, max = value(p->max, row);
        const int64_t label = token_row(p->labels, row, p->first_col, used);
        for (int64_t c = 0; c < used; c++)
            sums[c / 4 % MODEL_THREADS] += model_exp(value(p->logits, row * cols + c) - max);
        put(p->sum, row, team_sum(sums, MODEL_THREADS));
        put(p->target, row, label < 0 ? 0 : value(p->logits, row * cols + label) - max);
    }
}

static void model_loss_finish(const LossFinish *p) {
    const int64_t cols = p->logits.cols, used = used_columns(p->logits, p->first_col, p->vocabulary);
    for (int64_t row = 0; row < p->logits.rows; row++) {
        const float max = value(p->max, row), sum = value(p->sum, row),
                    mask = p->mask.data ? value(p->mask, row) : 1;
        const float weight = p->scale * mask, factor = weight / sum;
        const int64_t label = token_row(p->labels, row, p->first_col, used);
        for (int64_t c = 0; c < cols; c++) {
            const float share = model_exp(value(p->logits, row * cols + c) - max);
            put(p->dlogits, row * cols + c, c < used ? fmaf(share, factor, c == label ? -weight : -0.0f) : 0);
        }
        put(p->loss, row, mask * (model_log(sum) - value(p->target, row)));
    }
}

// Of the numbers so far: their maximum, and the sum of exp(x - maximum).
typedef struct {
    float max, sum;
} ModelSoftmax;

static float model_below(float x, float max) { return model_exp(x - (max == -INFINITY ? 0 : max)); }

// A thread's next numbers of a row, at most four.
static void model_add_quad(ModelSoftmax *own, Tensor logits, int64_t at, int64_t count) {
    float max = own->max;
    for (int64_t i = 0; i < count; i++) max = fmaxf(max, value(logits, at + i));
    if (max > own->max) *own = (ModelSoftmax){max, own->sum * model_below(own->max, max)};
    for (int64_t i = 0; i < count; i++) own->sum += model_below(value(logits, at + i), max);
}

// Thread i of 256, or of 1024 for more than 8192 columns, has quads i, i + threads, ... of a row, and a maximum of its own
// until it has met all of them.
static ModelSoftmax model_row_softmax(Tensor logits, int64_t row, int64_t used) {
    enum { MOST = 1024 };
    const int threads = logits.cols <= 8192 ? MODEL_THREADS : MOST;
    ModelSoftmax own[MOST], all = {-INFINITY, 0};
    float sums[MOST];
    for (int i = 0; i < threads; i++) own[i] = all;
    for (int64_t c = 0; c < used; c += 4)
        model_add_quad(&own[c / 4 % threads], logits, row * logits.cols + c, smaller_of(4, used - c));
    for (int i = 0; i < threads; i++) all.max = fmaxf(all.max, own[i].max);
    for (int i = 0; i < threads; i++) sums[i] = own[i].sum * model_below(own[i].max, all.max);
    all.sum = team_sum(sums, threads);
    return all;
}

static void model_loss_whole(const LossWhole *p) {
    const int64_t used = used_columns(p->logits, 0, p->vocabulary);
    for (int64_t row = 0; row < p->logits.rows; row++) {
        const ModelSoftmax all = model_row_softmax(p->logits, row, used);
        const int64_t label = token_row(p->labels, row, 0, used);
        put(p->max, row, all.max);
        put(p->sum, row, all.sum);
        put(p->target, row, label < 0 ? 0 : value(p->logits, row * p->logits.cols + label) - all.max);
    }
    model_loss_finish(&(LossFinish){.labels = p->labels,
                                    .max = p->max,
                                    .sum = p->sum,
                                    .target = p->target,
                                    .mask = p->mask,
                                    .logits = p->logits,
                                    .dlogits = p->dlogits,
                                    .loss = p->loss,
                                    .vocabulary = p->vocabulary,
                                    .scale = p->scale});
}

static void model_abs_max(const AbsMax *p) {
    float most = value(p->max, 0);
    for (int64_t i = 0; i < tensor_count(p->x); i++) most = fmaxf(most, fabsf(value(p->x, i)));
    put(p->max, 0, most);
}

// The digits to the base 2^20 of squares in units of 2^-60, and then their sums, once for each row.
static void model_sum_squares(const SumSquares *p) {
    static const double quanta[] = {0x1p-20, 0x1p-40, 0x1p-60};
    const OpSegment all = {0, tensor_count(p->x), 0, false}, *segments = p->num_segments ? p->segments : &all;
    for (int64_t row = 0; row < p->sum.rows; row++) {
        uint64_t digits[3] = {0};
        for (int k = 0; k < segments_or_one(p->num_segments); k++) {
            for (int64_t i = 0; segments[k].row == row && i < segments[k].count; i++) {
                const double root = ldexp(load(p->x, segments[k].begin + i), 30 - p->exponent);
                const uint64_t square = (uint64_t)(root * root);
                digits[0] += square >> 40, digits[1] += square >> 20 & 0xfffff, digits[2] += square & 0xfffff;
            }
        }
        for (int i = 0; i < 3; i++)
            store(p->sum, 3 * row + i, load(p->sum, 3 * row + i) + quanta[i] * (double)digits[i]);
    }
}

// The number that a tensor has, or of two parts makes.
static float joined(Tensor x, Tensor high, int64_t i) {
    return x.dtype == U16 ? bf16_join(((uint16_t *)high.data)[i], ((uint16_t *)x.data)[i]) : value(x, i);
}

static void model_adamw_element(const AdamW *p, int64_t i, float decay) {
    const float g = value(p->gradient, i) * (float)p->grad_scale, old = value(p->parameter, i);
    const float m = value(p->m, i) * (float)p->beta1 + g * (float)(1 - p->beta1);
    const float v = value(p->v, i) * (float)p->beta2 + g * g * (float)(1 - p->beta2);
    const float step =
        m * (float)(1 / p->correction1) / (sqrtf(v * (float)(1 / p->correction2)) + (float)p->epsilon);
    put(p->m, i, m);
    put(p->v, i, v);
    put(p->parameter, i, old - (float)p->lr * (step + decay * old));
    if (p->value.data) put(p->value, i, value(p->parameter, i));
}

static void model_adamw(const AdamW *p) {
    const OpSegment all = {0, tensor_count(p->parameter), 0, true},
                    *segments = p->num_segments ? p->segments : &all;
    for (int k = 0; k < segments_or_one(p->num_segments); k++)
        for (int64_t i = 0; i < segments[k].count; i++)
            model_adamw_element(p, segments[k].begin + i, segments[k].decays ? (float)p->weight_decay : 0);
}

static void model_blend(const Blend *p) {
    const float keep = (float)p->keep, factor = (float)p->factor, own = (float)p->own;
    for (int64_t i = 0; i < tensor_count(p->x); i++) {
        const float x = joined(p->x, p->x_value, i), y = blend_reads(p) ? joined(p->y, p->y_value, i) : 0;
        const float sum = y * keep + (x + y * own) * factor;
        if (p->y.dtype == U16) {
            ((uint16_t *)p->y_value.data)[i] = bf16_split(sum, &((uint16_t *)p->y.data)[i]);
            continue;
        }
        put(p->y, i, sum);
        if (p->y_value.data) put(p->y_value, i, sum);
    }
}

// ---- all of them ------------------------------------------------------------------------------------------

// Computes a call on the host; returns whether the operation has a model.
static bool model_run(DeviceOp op, const void *args) {
    switch (op) {
#define MODEL(NAME, function)                                                                                \
    case OP_##NAME: model_##function(args); return true;
        MODEL(BIAS_GELU_FORWARD, bias_gelu_forward)
        MODEL(BIAS_GELU_BACKWARD, bias_gelu_backward)
        MODEL(SWIGLU_FORWARD, swiglu_forward)
        MODEL(SWIGLU_BACKWARD, swiglu_backward)
        MODEL(BIAS_DROPOUT_ADD, bias_dropout_add)
        MODEL(DROPOUT_BACKWARD, dropout_backward)
        MODEL(SCALE, scale)
        MODEL(SCALE_PRODUCT, scale_product)
        MODEL(SOFT_CAP, soft_cap)
        MODEL(SOFT_CAP_BACKWARD, soft_cap_backward)
        MODEL(COLUMN_SUM, column_sum)
        MODEL(NORM_FORWARD, norm_forward)
        MODEL(NORM_BACKWARD_INPUT, norm_backward_input)
        MODEL(NORM_BACKWARD_WEIGHT, norm_backward_weight)
        MODEL(QK_SUMS, qk_sums)
        MODEL(QK_NORM_FORWARD, qk_norm_forward)
        MODEL(QK_NORM_BACKWARD_INPUT, qk_norm_backward_input)
        MODEL(QK_NORM_BACKWARD_WEIGHT, qk_norm_backward_weight)
        MODEL(ROTARY, rotary)
        MODEL(EMBEDDING_FORWARD, embedding_forward)
        MODEL(EMBEDDING_BACKWARD, embedding_backward)
        MODEL(POSITION_DROPOUT, position_dropout)
        MODEL(POSITION_BACKWARD, position_backward)
        MODEL(LOSS_MAX, loss_max)
        MODEL(LOSS_SUM, loss_sum)
        MODEL(LOSS_FINISH, loss_finish)
        MODEL(ABS_MAX, abs_max)
        MODEL(SUM_SQUARES, sum_squares)
        MODEL(ADAMW, adamw)
        MODEL(BLEND, blend)
        MODEL(ADD, add)
        MODEL(ARRANGE_COLUMNS, arrange_columns)
        MODEL(MATMUL_SUMS, matmul_sums)
        MODEL(MATMUL_GELU, matmul_gelu)
        MODEL(MATMUL_GELU_BACKWARD, matmul_gelu_backward)
        MODEL(NORM_BACKWARD, norm_backward)
        MODEL(LOSS_WHOLE, loss_whole)
#undef MODEL
    // Without models: products and attention, by libraries and on tensor cores; attention to a cache, held by the law of
    // its cuts (test_device_cached.c); codes of few bits, which have the same bits on every device; routers and rows of
    // experts, defined in test_device_experts.c.
    default: return false;
    }
}

// The call under way on the device: what its model has made of copies of its tensors.
typedef struct {
    const Case *c;
    Fixture *fixture;
    DeviceOp op;
    bool is_pending;
    Tensor device[MAX_TENSORS], host[MAX_TENSORS];
    int compared;
} Watch;

static void forget(Watch *w) {
    for (int i = 0; i < MAX_TENSORS; i++) free(w->host[i].data);
    memset(w->host, 0, sizeof w->host);
    w->is_pending = false;
}

// Compares what the device has made with what its model has.
static void settle(Watch *w) {
    if (!w->is_pending) return;
    const OpRow *row = &op_rows[w->op];
    for (int i = row->reads; i < row->reads + row->writes; i++) {
        if (!w->device[i].data) continue;
        void *got = values_of(w->fixture, w->device[i]);
        EXPECT(!memcmp(got, w->host[i].data, tensor_bytes(w->device[i])),
               "%s in %s: %s of %s has not the bits of its model", w->c->name,
               dtype_name(w->fixture->element), row->tensors[i], row->name);
        free(got);
        w->compared++;
    }
    forget(w);
}

// Before the device runs a call: copies its tensors and computes the model.
static void watch(void *self, DeviceOp op, const void *args, OpCount one) {
    Watch *w = self;
    const OpRow *row = &op_rows[op];
    union {
        Tensor tensors[MAX_TENSORS];
        AdamW largest;
        LossFinish other;
        char bytes[1024];
    } copy;
    (void)one;
    settle(w);
    CHECK(row->args_bytes <= sizeof copy, "%s has larger arguments", row->name);
    memcpy(&copy, args, row->args_bytes);
    for (int i = 0; i < row->reads + row->writes; i++) {
        w->device[i] = copy.tensors[i];
        if (copy.tensors[i].data) copy.tensors[i].data = values_of(w->fixture, copy.tensors[i]);
        w->host[i] = copy.tensors[i];
    }
    w->op = op;
    w->is_pending = true;
    if (!model_run(op, &copy)) forget(w);
}

static int watch_case(const Case *c, const char *kind, DType element) {
    Fixture b = fixture_open_as(kind, 1, element, element);
    Watch w = {.c = c, .fixture = &b};
    bool known = !case_joins_product(c) || case_is_exact(c) || !strncmp(kind, "cuda-sim", strlen("cuda-sim"));
    if (known) device_on_operation(b.device, watch, &w);
    c->run(&b, c->n, c->p);
    settle(&w);
    device_on_operation(b.device, NULL, NULL);
    fixture_close(&b);
    return w.compared;
}

// Longer rows and more of them than the cases of all devices have: teams of 32, 128 and 256 threads up to the lengths in 16
// bits where they change, rows that are read again, many parts.
static const Case LONG_CASES[] = {
    {"norm_forward of the longest row of a warp", run_norm_forward, 0, 0, {3, 1024, 1}, 0},
    {"norm_forward of the longest row of 4 warps", run_norm_forward, 0, 0, {3, 4096, 0}, 0},
    {"norm_forward of a middle team", run_norm_forward, 0, 0, {3, 1536, 1}, 0},
    {"norm_forward of a large team", run_norm_forward, 0, 0, {2, 8200, 1}, 0},
    {"norm_forward that is not kept", run_norm_forward, 0, 0, {2, 8192 + 64, 0}, 0},
    {"norm_backward of the longest row of a warp", run_norm_backward, 0, 0, {3, 1024, 1, 1}, 0},
    {"norm_backward of a middle team", run_norm_backward, 0, 0, {3, 1537, 0, 1}, 0},
    {"norm_backward of a large team", run_norm_backward, 0, 0, {2, 5000, 1, 0}, 0},
    {"norm_backward at once of a large team", run_norm_joined, 0, 0, {17, 8192, 1, 1, 1}, 0},
    {"loss_whole of the longest row of 256 threads", run_loss_whole, 0, 0, {2, 8192, 8191, 1, 1}, 0},
    {"column_sum of many parts", run_column_sum, 0, 0, {9000, 8}, 0},
    {"loss of a long row", run_loss, 0, 0, {2, 3001, 0, 3001, 1, 1}, 0},
};
enum { NUM_LONG_CASES = sizeof LONG_CASES / sizeof *LONG_CASES };

static void gpu_gives_what_models_predict(void) {
    const char *kind = harness_device("cuda-sim");
    int compared = 0;
    for (int i = 0; i < NUM_CASES * NUM_ELEMENTS; i++)
        if (case_is_chosen(&CASES[i / NUM_ELEMENTS]))
            compared += watch_case(&CASES[i / NUM_ELEMENTS], kind, ELEMENTS[i % NUM_ELEMENTS]);
    for (int i = 0; i < NUM_LONG_CASES * NUM_ELEMENTS && !chosen_case(); i++)
        if (!harness_short() || i % NUM_ELEMENTS == 1)
            compared += watch_case(&LONG_CASES[i / NUM_ELEMENTS], kind, ELEMENTS[i % NUM_ELEMENTS]);
    EXPECT(compared > 300 || chosen_case(), "%d results were compared", compared);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"gpu_gives_what_models_predict", gpu_gives_what_models_predict}, {0}},
                       argc, argv);
}
