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
    swiglu_forward(b->device, b->stream, (SwigluForward){p->inputs[0], p->inputs[1], p->y, true});
}

static void geglu_backward(Fixture *b, Problem *p) {
    swiglu_backward(b->device, b->stream,
                    (SwigluBackward){p->dy, p->inputs[0], p->inputs[1], p->gradients[0], true});
}

static void geglu(void) { check_gradients("geglu", declare_gated, geglu_forward, geglu_backward); }

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
                                      {"squared_relu", squared_relu},
                                      {"scale", factor_of},
                                      {"soft_cap", cap},
                                      {"qk_norms", qk_norms},
                                      {"columns", columns},
                                      {0}},
                       argc, argv);
}
