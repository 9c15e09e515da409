// Gradients of the operations that only some families of models need agree with finite differences.
#include "gradients.h"

static void check_gradients(const char *name, void (*declare)(Fixture *, Problem *), Step *forward,
                            Step *backward) {
    check_gradients_on("reference", name, declare, forward, backward);
}

// ---- other MLPs: x [T, F], or [T, 2F] with a gate -----------------------------------------------------------

static void declare_plain(Fixture *b, Problem *p) {
    add_input(b, p, 0, 6, 5);
    set_y(b, p, 6, 5);
}

static void declare_gated(Fixture *b, Problem *p) {
    add_input(b, p, 0, 6, 10);
    set_y(b, p, 6, 5);
}

static void geglu_forward(Fixture *b, Problem *p) {
    swiglu_forward(b->device, b->stream, (SwigluForward){p->inputs[0], p->inputs[1], p->y, GATE_GELU, 0, 0});
}

static void geglu_backward(Fixture *b, Problem *p) {
    swiglu_backward(b->device, b->stream,
                    (SwigluBackward){p->dy, p->inputs[0], p->inputs[1], p->gradients[0], GATE_GELU, 0, 0});
}

static void geglu(void) { check_gradients("geglu", declare_gated, geglu_forward, geglu_backward); }

// Values on both sides of the clamp, none of them so near that a difference would straddle it.
static void declare_clamped(Fixture *b, Problem *p) {
    float x[60];
    declare_gated(b, p);
    for (int i = 0; i < 60; i++) x[i] = -3 + 0.2f * (float)(i * 7 % 31);
    device_upload(b->device, b->stream, p->inputs[0], x);
}

static const float CLAMP = 1.3f;

static void quick_forward(Fixture *b, Problem *p) {
    swiglu_forward(b->device, b->stream,
                   (SwigluForward){p->inputs[0], p->inputs[1], p->y, GATE_QUICK, 1, CLAMP});
}

static void quick_backward(Fixture *b, Problem *p) {
    swiglu_backward(
        b->device, b->stream,
        (SwigluBackward){p->dy, p->inputs[0], p->inputs[1], p->gradients[0], GATE_QUICK, 1, CLAMP});
}

static void quick_geglu(void) {
    check_gradients("quick geglu", declare_clamped, quick_forward, quick_backward);
}

// Gates, ups, and what each form makes of them: computed with the formulas in 30 digits. The last one is cut off.
static void gates(void) {
    static const float gate[] = {1, -2, 8}, up[] = {2, 0.5f, -9};
    static const double wanted[3][3] = {{1.462117157, -0.119202922, -71.975854791},
                                        {1.682383981, -0.022701153, -72.000000000},
                                        {2.537387298, -0.096512065, -41.999718770}};
    static const char *const devices[] = {"reference", "cpu"};
    for (int k = 0; k < 2; k++)
        for (int form = 0; form < 3; form++) {
            Fixture b = fixture_open(devices[k], 1);
            Tensor x = tensor_f32(&b, 3, 2), y = tensor_f32(&b, 3, 1);
            float in[6];
            for (int i = 0; i < 3; i++) in[2 * i] = gate[i], in[2 * i + 1] = up[i];
            device_upload(b.device, b.stream, x, in);
            swiglu_forward(b.device, b.stream, (SwigluForward){x, {0}, y, (GateForm)form, 1, 7});
            float *values = values_of(&b, y);
            for (int i = 0; i < 3; i++)
                EXPECT(fabs((double)values[i] - wanted[form][i]) < 3e-7 * fmax(1, fabs(wanted[form][i])),
                       "%s, form %d: (%g, %g) gives %.9g, not %.9g", devices[k], form, (double)gate[i],
                       (double)up[i], (double)values[i], wanted[form][i]);
            free(values);
            fixture_close(&b);
        }
}

static void squared_forward(Fixture *b, Problem *p) {
    bias_gelu_forward(b->device, b->stream, (BiasGeluForward){p->inputs[0], {0}, p->y, RELU_SQUARED});
}

static void squared_backward(Fixture *b, Problem *p) {
    bias_gelu_backward(b->device, b->stream,
                       (BiasGeluBackward){p->dy, p->inputs[0], {0}, p->gradients[0], RELU_SQUARED});
}

static void squared_relu(void) {
    check_gradients("squared relu", declare_plain, squared_forward, squared_backward);
}

// ---- factors and soft caps: x [T, V] -----------------------------------------------------------------------

static void scale_forward(Fixture *b, Problem *p) {
    scale(b->device, b->stream, (Scale){p->inputs[0], p->y, -1.7f});
}

static void scale_backward(Fixture *b, Problem *p) {
    scale(b->device, b->stream, (Scale){p->dy, p->gradients[0], -1.7f});
}

static void factor_of(void) { check_gradients("scale", declare_plain, scale_forward, scale_backward); }

static void cap_forward(Fixture *b, Problem *p) {
    soft_cap(b->device, b->stream, (SoftCap){p->inputs[0], p->y, 0.8f});
}

static void cap_backward(Fixture *b, Problem *p) {
    soft_cap_backward(b->device, b->stream, (SoftCapBackward){p->dy, p->y, p->gradients[0], 0.8f});
}

static void cap(void) { check_gradients("soft_cap", declare_plain, cap_forward, cap_backward); }

// ---- norms of queries and keys: qkv [T, (N + 2G) D], gammas; other: sums, rstd, sums of gradients -----------

static const AttentionShape QK_SHAPE = {.batch = 1, .sequence = 4, .heads = 4, .groups = 2, .head_size = 3};

static void declare_heads(Fixture *b, Problem *p) {
    add_input(b, p, 0, 4, 24);
    add_input(b, p, 1, 1, 3);
    add_input(b, p, 2, 1, 3);
    set_y(b, p, 4, 24);
    p->other[1] = tensor(b, 4, 6);
}

static void declare_all_heads(Fixture *b, Problem *p) {
    add_input(b, p, 0, 4, 24);
    add_input(b, p, 1, 1, 12);
    add_input(b, p, 2, 1, 6);
    set_y(b, p, 4, 24);
    p->other[0] = tensor(b, 4, 2), p->other[1] = tensor(b, 4, 6), p->other[2] = tensor(b, 4, 2);
}

static void qk_forward(Fixture *b, Problem *p) {
    if (p->other[0].data)
        qk_sums(b->device, b->stream, (QkSums){.qkv = p->inputs[0], .sums = p->other[0], .shape = QK_SHAPE});
    qk_norm_forward(b->device, b->stream,
                    (QkNormForward){p->inputs[0], p->inputs[1], p->inputs[2], p->other[0], p->y, p->other[1],
                                    QK_SHAPE, 1, 1e-5f, 1});
}

static void qk_backward(Fixture *b, Problem *p) {
    qk_norm_backward_weight(
        b->device, b->stream,
        (QkNormBackwardWeight){p->dy, p->inputs[0], p->other[1], p->gradients[1], p->gradients[2], QK_SHAPE});
    if (p->other[0].data)
        qk_sums(
            b->device, b->stream,
            (QkSums){p->inputs[0], p->dy, p->inputs[1], p->inputs[2], p->other[1], p->other[2], QK_SHAPE, 1});
    qk_norm_backward_input(b->device, b->stream,
                           (QkNormBackwardInput){p->dy, p->inputs[0], p->inputs[1], p->inputs[2], p->other[1],
                                                 p->other[2], p->gradients[0], QK_SHAPE, 1, 1});
}

static void qk_norms(void) {
    check_gradients("qk_norm", declare_heads, qk_forward, qk_backward);
    check_gradients("qk_norm of all heads", declare_all_heads, qk_forward, qk_backward);
}

// ---- columns: a [T, 2 * 5], b [T, 2 * 3], c [T, 2] ---------------------------------------------------------

static void declare_columns(Fixture *b, Problem *p) {
    add_input(b, p, 0, 3, 10);
    add_input(b, p, 1, 3, 6);
    add_input(b, p, 2, 3, 2);
    set_y(b, p, 3, 22);
}

// A block is two columns of a, two that all blocks share, three of b, one zero, and three of a.
static void columns_forward(Fixture *b, Problem *p) {
    arrange_columns(b->device, b->stream,
                    (ArrangeColumns){.a = p->inputs[0],
                                     .b = p->inputs[1],
                                     .c = p->inputs[2],
                                     .y = p->y,
                                     .blocks = 2,
                                     .pieces = {{SOURCE_A, 1, 2, 3, 5, 0},
                                                {SOURCE_C, 1, 2, 0, 0, 0},
                                                {SOURCE_B, 1, 3, 0, 3, 0},
                                                {SOURCE_ZEROS, 1, 1, 0, 0, 0},
                                                {SOURCE_A, 1, 3, 0, 5, 0}}});
}

static void columns_backward(Fixture *b, Problem *p) {
    ArrangeColumns da = {.a = p->dy,
                         .y = p->gradients[0],
                         .blocks = 2,
                         .pieces = {{SOURCE_A, 1, 3, 8, 11, 0}, {SOURCE_A, 1, 2, 0, 11, 0}}};
    ArrangeColumns db = {
        .a = p->dy, .y = p->gradients[1], .blocks = 2, .pieces = {{SOURCE_A, 1, 3, 4, 11, 0}}};
    ArrangeColumns dc = {
        .a = p->dy, .y = p->gradients[2], .blocks = 1, .pieces = {{SOURCE_A, 2, 2, 2, 0, 11}}};
    arrange_columns(b->device, b->stream, da);
    arrange_columns(b->device, b->stream, db);
    arrange_columns(b->device, b->stream, dc);
}

static void columns(void) {
    check_gradients("arrange_columns", declare_columns, columns_forward, columns_backward);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"geglu", geglu},
                                      {"quick_geglu", quick_geglu},
                                      {"gates", gates},
                                      {"squared_relu", squared_relu},
                                      {"scale", factor_of},
                                      {"soft_cap", cap},
                                      {"qk_norms", qk_norms},
                                      {"columns", columns},
                                      {0}},
                       argc, argv);
}
