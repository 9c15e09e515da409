// The MLP sublayer: norm, fc1, activation, fc2.
#include "nn/activation.h"
#include "nn/adapter.h"
#include "nn/branch.h"

typedef struct {
    Branch branch; // in: fc1, out: fc2
    MlpActivation activation;
} Mlp;

static int64_t inner_width(const ModelShape *s) { return activation_inputs(s, s->ffn); } // outputs of fc1

static LinearSpec fc1_spec(const ModelShape *s) {
    LinearSpec fc1 = {.name = "mlp.linear_fc1",
                      .out = inner_width(s),
                      .bias = model_has_mlp_bias(s),
                      .blocks = model_is_gated(s) ? 2 : 1,
                      .parts = {{LORA_NUMBER_FC1, .own = 1}}};
    if (model_is_gated(s)) {
        fc1.parts[1] = (LinearPart){LORA_NUMBER_GATE, 0, 1, 2, 0};
        fc1.parts[2] = (LinearPart){LORA_NUMBER_UP, 1, 1, 2, 0};
    }
    return fc1;
}

static LinearSpec fc2_spec(const ModelShape *s) {
    return (LinearSpec){.name = "mlp.linear_fc2",
                        .in = s->ffn,
                        .bias = model_has_mlp_bias(s),
                        .parts = {{LORA_NUMBER_FC2, .own = 1}}};
}

static void declare(const Builder *b, int layer, void *self) {
    const ModelShape *shape = b->shape;
    Mlp *m = self;
    LinearSpec fc1 = fc1_spec(shape), fc2 = fc2_spec(shape);
    m->branch =
        branch_declare(b, layer, "pre_mlp_layernorm", "post_mlp_layernorm", fc1, fc2, "mlp output dropout");
    m->activation = activation_of(shape);
}

static void core_forward(const SublayerArgs *args) {
    const Mlp *m = args->self;
    const BranchStash *s = args->stash;
    activation_forward(args->context, &m->activation, s->inner, param_value(m->branch.in.bias), s->core);
}

static void core_backward(const SublayerArgs *args, Tensor dy, Tensor dx) {
    const Mlp *m = args->self;
    const BranchStash *s = args->stash;
    activation_backward(args->context, &m->activation, dy, s->inner, param_value(m->branch.in.bias), dx);
}

static bool is_gelu(const SublayerArgs *args) {
    const Mlp *m = args->self;
    return !m->activation.is_gated && m->activation.form == GELU_TANH;
}

static const Core core = {.inner_name = "fc1 output",
                          .core_name = "activation output",
                          .core_gradient_name = "gradient of activation output",
                          .fused_bias = true,
                          .is_gelu = is_gelu,
                          .forward = core_forward,
                          .backward = core_backward};

static void forward(const SublayerArgs *args) { branch_forward(args, &core); }
static void backward(const SublayerArgs *args) { branch_backward(args, &core); }

// ---- closed forms -----------------------------------------------------------------------------------------

static ParamCount parameters(const ModelShape *s) {
    int64_t h = s->hidden, inner = inner_width(s);
    bool bias = model_has_mlp_bias(s);
    return (ParamCount){.cut = h * (inner + s->ffn) + (bias ? inner : 0),
                        .whole = branch_norm_parameters(s) + (bias ? h : 0)};
}

static double flops(const ModelShape *s) { return 2.0 * s->hidden * (double)(inner_width(s) + s->ffn); }

static int stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *out) {
    double e = (double)dtype_bytes(mode->dtype), tokens = stash_tokens(s, mode);
    double fc1 = tokens * (double)inner_width(s) / tp, activated = tokens * s->ffn / tp;
    int n = branch_stash_terms(s, mode, tp, LORA_FC1 | LORA_GATE | LORA_UP | LORA_FC2, out);
    out[n++] = (StashTerm){"fc1 output", e * fc1, e * fc1, false};
    out[n++] = (StashTerm){"activation output", e * activated, e * activated, false};
    out[n++] = (StashTerm){"mlp dropout mask", stash_rows(s, mode, tp) * s->hidden, 0, false};
    return n;
}

const SublayerKind mlp_sublayer = {.self_bytes = sizeof(Mlp),
                                   .stash_bytes = sizeof(BranchStash),
                                   .has_weights = true,
                                   .declare = declare,
                                   .forward = forward,
                                   .backward = backward,
                                   .parameters = parameters,
                                   .flops = flops,
                                   .stash_terms = stash_terms};
