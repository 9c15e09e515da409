// Joined operations against finite differences of their forwards, on the reference device, which makes the basic ones, and on
// a device that makes each as one.
#include "gradients.h"

static void check_joined(const char *name, void (*declare)(Fixture *, Problem *), Step *forward,
                         Step *backward) {
    check_gradients_on("reference", name, declare, forward, backward);
    if (is_wanted("cuda-sim")) check_gradients_on("cuda-sim", name, declare, forward, backward);
}

// ---- y = gelu(x W^T + b) V^T; other: aux, gelu's output, V ---------------------------------------

static void declare_mlp(Fixture *b, Problem *p) {
    add_input(b, p, 0, 5, 7);
    add_input(b, p, 1, 8, 7);
    add_input(b, p, 2, 1, 8);
    set_y(b, p, 5, 3);
    p->other[0] = tensor(b, 5, 8), p->other[1] = tensor(b, 5, 8), p->other[2] = normals(b, 3, 8);
}

static void mlp_forward(Fixture *b, Problem *p) {
    matmul_gelu(b->device, b->stream,
                (MatmulGelu){p->inputs[0], p->inputs[1], p->inputs[2], p->other[1], p->other[0]});
    matmul(b->device, b->stream,
           (Matmul){.a = p->other[1], .b = p->other[2], .d = p->y, .transpose_b = true});
}

static void mlp_backward(Fixture *b, Problem *p) {
    Tensor dinner = tensor(b, 5, 8);
    matmul_gelu_backward(b->device, b->stream, (MatmulGeluBackward){p->dy, p->other[2], p->other[0], dinner});
    matmul_sums(b->device, b->stream,
                (MatmulSums){.a = dinner, .b = p->inputs[0], .d = p->gradients[1], .sums = p->gradients[2]});
    matmul(b->device, b->stream, (Matmul){.a = dinner, .b = p->inputs[1], .d = p->gradients[0]});
}

static void mlp(void) { check_joined("linear, gelu, linear", declare_mlp, mlp_forward, mlp_backward); }

// ---- layer norm: z = x + norm(x), so dx = dy + the norm's; other: mean, rstd, residual --------------------

static void declare_norm(Fixture *b, Problem *p) {
    add_input(b, p, 0, 4, 12);
    add_input(b, p, 1, 1, 12);
    add_input(b, p, 2, 1, 12);
    set_y(b, p, 4, 12);
    p->other[0] = tensor(b, 1, 4);
    p->other[1] = tensor(b, 1, 4);
    p->other[2] = (Tensor){0};
}

static void layer_norm_forward(Fixture *b, Problem *p) {
    norm_forward(
        b->device, b->stream,
        (NormForward){p->inputs[0], p->inputs[1], p->inputs[2], p->y, p->other[0], p->other[1], 1e-5f, 0});
}

static void layer_norm_at_once(Fixture *b, Problem *p) {
    norm_backward(b->device, b->stream,
                  (NormBackward){.dy = p->dy,
                                 .x = p->inputs[0],
                                 .gamma = p->inputs[1],
                                 .mean = p->other[0],
                                 .rstd = p->other[1],
                                 .residual = p->other[2],
                                 .dx = p->gradients[0],
                                 .dgamma = p->gradients[1],
                                 .dbeta = p->gradients[2]});
}

static void declare_norm_residual(Fixture *b, Problem *p) {
    declare_norm(b, p);
    p->other[2] = p->dy;
}

static void layer_norm_residual_forward(Fixture *b, Problem *p) {
    layer_norm_forward(b, p);
    add(b->device, b->stream, (Add){p->inputs[0], p->y});
}

static void norm(void) {
    check_joined("norm at once + x", declare_norm_residual, layer_norm_residual_forward, layer_norm_at_once);
}

// ---- loss: logits [T, V] with padding; y = loss; other: labels, max sum target in rows, mask --------------

static void declare_loss(Fixture *b, Problem *p) {
    static const float ONES[6] = {1, 1, 1, 1, 1, 1};
    add_input(b, p, 0, 6, 11);
    p->y = tensor(b, 1, 6);
    p->dy = from_floats(b, 1, 6, ONES);
    p->other[0] = integers(b, 6, 9);
    p->other[1] = tensor(b, 3, 6);
    p->other[2] = normals(b, 1, 6);
}

// Turns its copy of the logits into the gradient of the sum of the losses.
static void whole_cross_entropy(Fixture *b, Problem *p) {
    device_copy(b->device, b->stream, p->gradients[0], p->inputs[0]);
    loss_whole(b->device, b->stream,
               (LossWhole){.logits = p->gradients[0],
                           .labels = p->other[0],
                           .mask = p->other[2],
                           .dlogits = p->gradients[0],
                           .loss = p->y,
                           .max = tensor_rows(p->other[1], 0, 1),
                           .sum = tensor_rows(p->other[1], 1, 1),
                           .target = tensor_rows(p->other[1], 2, 1),
                           .vocabulary = 9,
                           .scale = 1});
}

static void nothing(Fixture *b, Problem *p) { (void)b, (void)p; }

static void loss(void) { check_joined("loss at once", declare_loss, whole_cross_entropy, nothing); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"mlp", mlp}, {"norm", norm}, {"loss", loss}, {0}}, argc, argv);
}
