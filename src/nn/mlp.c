// The MLP sublayer: norm, fc1, activation, fc2.
#include "nn/branch.h"

typedef struct {
    Branch branch; // in: fc1, out: fc2
    Activation activation;
} Mlp;

// Outputs of fc1: gate and up, or one.
static int64_t inner_width(const ModelShape *s) {
    return (s->activation == ACTIVATION_SWIGLU ? 2 : 1) * (int64_t)s->ffn;
}

static void declare(const Builder *b, int layer, void *self) {
    const ModelShape *shape = b->shape;
    Mlp *m = self;
    LinearSpec fc1 = {.name = "mlp.linear_fc1",
                      .out = inner_width(shape),
                      .bias = model_has_mlp_bias(shape),
                      .blocks = shape->activation == ACTIVATION_SWIGLU ? 2 : 1};
    LinearSpec fc2 = {.name = "mlp.linear_fc2", .in = shape->ffn, .bias = model_has_mlp_bias(shape)};
    m->branch = branch_declare(b, layer, "pre_mlp_layernorm", fc1, fc2, "mlp output dropout");
    m->activation = shape->activation;
}

static void core_forward(const SublayerArgs *args) {
    Context *c = args->context;
    const Mlp *m = args->self;
    const BranchStash *s = args->stash;
    Tensor bias = param_value(m->branch.in.bias);
    if (m->activation == ACTIVATION_SWIGLU)
        swiglu_forward(c->device, c->stream, (SwigluForward){.x = s->inner, .bias = bias, .y = s->core});
    else
        bias_gelu_forward(
            c->device, c->stream,
            (BiasGeluForward){
                .x = s->inner, .bias = bias, .y = s->core, .exact = m->activation == ACTIVATION_GELU_ERF});
}

static void core_backward(const SublayerArgs *args, Tensor dy, Tensor dx) {
    Context *c = args->context;
    const Mlp *m = args->self;
    const BranchStash *s = args->stash;
    Tensor bias = param_value(m->branch.in.bias);
    if (m->activation == ACTIVATION_SWIGLU)
        swiglu_backward(c->device, c->stream,
                        (SwigluBackward){.dy = dy, .x = s->inner, .bias = bias, .dx = dx});
    else
        bias_gelu_backward(c->device, c->stream,
                           (BiasGeluBackward){.dy = dy,
                                              .x = s->inner,
                                              .bias = bias,
                                              .dx = dx,
                                              .exact = m->activation == ACTIVATION_GELU_ERF});
}

static bool is_gelu(const SublayerArgs *args) {
    const Mlp *m = args->self;
    return m->activation == ACTIVATION_GELU;
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
                        .whole = norm_parameters(s) + (bias ? h : 0)};
}

static double flops(const ModelShape *s) { return 2.0 * s->hidden * (double)(inner_width(s) + s->ffn); }

static int stash_terms(const ModelShape *s, const ModelMode *mode, int tp, StashTerm *out) {
    double e = (double)dtype_bytes(mode->dtype), tokens = (double)s->sequence * mode->microbatch;
    double fc1 = tokens * (double)inner_width(s) / tp, activated = tokens * s->ffn / tp;
    int n = branch_stash_terms(s, mode, tp, out);
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
