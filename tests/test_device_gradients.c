// Every backward operation against finite differences of its forward, on the reference device.
#include "gradients.h"

static void check_gradients(const char *name, void (*declare)(Fixture *, Problem *), Step *forward,
                            Step *backward) {
    check_gradients_on("reference", name, declare, forward, backward);
}

// ---- linear: x [T, I], weight [O, I], bias [1, O] ---------------------------------------------------------

static void declare_linear(Fixture *b, Problem *p) {
    add_input(b, p, 0, 5, 7);
    add_input(b, p, 1, 4, 7);
    add_input(b, p, 2, 1, 4);
    set_y(b, p, 5, 4);
}

static void linear_forward(Fixture *b, Problem *p) {
    matmul(
        b->device, b->stream,
        (Matmul){.a = p->inputs[0], .b = p->inputs[1], .bias = p->inputs[2], .d = p->y, .transpose_b = true});
}

static void linear_backward(Fixture *b, Problem *p) {
    matmul(b->device, b->stream, (Matmul){.a = p->dy, .b = p->inputs[1], .d = p->gradients[0]});
    matmul(b->device, b->stream,
           (Matmul){
               .a = p->dy, .b = p->inputs[0], .d = p->gradients[1], .transpose_a = true, .accumulate = true});
    column_sum(b->device, b->stream, (ColumnSum){p->dy, p->gradients[2]});
}

static void linear(void) { check_gradients("linear", declare_linear, linear_forward, linear_backward); }

// ---- bias + gelu: x [T, F], bias [1, F] -------------------------------------------------------------------

static void declare_gelu(Fixture *b, Problem *p) {
    add_input(b, p, 0, 6, 5);
    add_input(b, p, 1, 1, 5);
    set_y(b, p, 6, 5);
}

static void gelu_forward(Fixture *b, Problem *p) {
    bias_gelu_forward(b->device, b->stream, (BiasGeluForward){p->inputs[0], p->inputs[1], p->y, false});
}

static void gelu_backward(Fixture *b, Problem *p) {
    bias_gelu_backward(b->device, b->stream,
                       (BiasGeluBackward){p->dy, p->inputs[0], p->inputs[1], p->gradients[0], false});
    column_sum(b->device, b->stream, (ColumnSum){p->gradients[0], p->gradients[1]});
}

static void bias_gelu(void) { check_gradients("bias_gelu", declare_gelu, gelu_forward, gelu_backward); }

static void exact_forward(Fixture *b, Problem *p) {
    bias_gelu_forward(b->device, b->stream,
                      (BiasGeluForward){p->inputs[0], p->inputs[1], p->y, .form = GELU_EXACT});
}

static void exact_backward(Fixture *b, Problem *p) {
    bias_gelu_backward(
        b->device, b->stream,
        (BiasGeluBackward){p->dy, p->inputs[0], p->inputs[1], p->gradients[0], .form = GELU_EXACT});
    column_sum(b->device, b->stream, (ColumnSum){p->gradients[0], p->gradients[1]});
}

static void exact_gelu(void) { check_gradients("exact gelu", declare_gelu, exact_forward, exact_backward); }

static void declare_plain_gelu(Fixture *b, Problem *p) {
    add_input(b, p, 0, 6, 5);
    set_y(b, p, 6, 5);
}

static void plain_gelu_backward(Fixture *b, Problem *p) {
    bias_gelu_backward(b->device, b->stream,
                       (BiasGeluBackward){p->dy, p->inputs[0], {0}, p->gradients[0], false});
}

static void plain_gelu(void) {
    check_gradients("gelu", declare_plain_gelu, gelu_forward, plain_gelu_backward);
}

// ---- swiglu: x [T, 2F], bias [1, 2F] or absent ------------------------------------------------------------

static void declare_plain_swiglu(Fixture *b, Problem *p) {
    add_input(b, p, 0, 6, 10);
    set_y(b, p, 6, 5);
}

static void declare_swiglu(Fixture *b, Problem *p) {
    declare_plain_swiglu(b, p);
    add_input(b, p, 1, 1, 10);
}

static void gated_forward(Fixture *b, Problem *p) {
    swiglu_forward(b->device, b->stream, (SwigluForward){p->inputs[0], p->inputs[1], p->y, GATE_SILU, 0, 0});
}

static void gated_backward(Fixture *b, Problem *p) {
    swiglu_backward(b->device, b->stream,
                    (SwigluBackward){p->dy, p->inputs[0], p->inputs[1], p->gradients[0], GATE_SILU, 0, 0});
    if (p->inputs[1].data) column_sum(b->device, b->stream, (ColumnSum){p->gradients[0], p->gradients[1]});
}

static void swiglu(void) {
    check_gradients("swiglu", declare_plain_swiglu, gated_forward, gated_backward);
    check_gradients("swiglu with bias", declare_swiglu, gated_forward, gated_backward);
}

// ---- bias + dropout + residual: x [T, H], bias [1, H], residual [T, H] ------------------------------------

static void declare_residual(Fixture *b, Problem *p) {
    add_input(b, p, 0, 6, 9);
    add_input(b, p, 1, 1, 9);
    add_input(b, p, 2, 6, 9);
    set_y(b, p, 6, 9);
    p->dropout = dropout_of(0.3f, 2);
}

static void residual_forward(Fixture *b, Problem *p) {
    bias_dropout_add(b->device, b->stream,
                     (BiasDropoutAdd){p->inputs[0], p->inputs[1], p->inputs[2], p->y, p->dropout});
}

static void residual_backward(Fixture *b, Problem *p) {
    dropout_backward(b->device, b->stream, (DropoutBackward){p->dy, p->gradients[0], p->dropout});
    column_sum(b->device, b->stream, (ColumnSum){p->gradients[0], p->gradients[1]});
    add(b->device, b->stream, (Add){p->dy, p->gradients[2]});
}

static void dropout_add(void) {
    check_gradients("bias_dropout_add", declare_residual, residual_forward, residual_backward);
}

// ---- layer norm: x [T, H], gamma, beta [1, H]; other: mean, rstd ------------------------------------------

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

static void layer_norm_backward(Fixture *b, Problem *p) {
    norm_backward_input(b->device, b->stream,
                        (NormBackwardInput){p->dy, p->inputs[0], p->inputs[1], p->other[0], p->other[1],
                                            p->other[2], p->gradients[0], 0});
    norm_backward_weight(b->device, b->stream,
                         (NormBackwardWeight){p->dy, p->inputs[0], p->other[0], p->other[1], p->gradients[1],
                                              p->gradients[2]});
}

static void layer_norm(void) {
    check_gradients("norm", declare_norm, layer_norm_forward, layer_norm_backward);
}

// With a residual z = x + norm(x): dx = dy + the norm's.
static void declare_norm_residual(Fixture *b, Problem *p) {
    declare_norm(b, p);
    p->other[2] = p->dy;
}

static void layer_norm_residual_forward(Fixture *b, Problem *p) {
    layer_norm_forward(b, p);
    add(b->device, b->stream, (Add){p->inputs[0], p->y});
}

static void layer_norm_residual(void) {
    check_gradients("norm + x", declare_norm_residual, layer_norm_residual_forward, layer_norm_backward);
}

// ---- RMS norm: x [T, H], gamma [1, H]; other: rstd, residual ----------------------------------------------

static void declare_rms_norm(Fixture *b, Problem *p) {
    add_input(b, p, 0, 5, 7);
    add_input(b, p, 1, 1, 7);
    set_y(b, p, 5, 7);
    p->other[1] = tensor(b, 1, 5);
}

static void rms_norm_forward(Fixture *b, Problem *p) {
    norm_forward(b->device, b->stream,
                 (NormForward){p->inputs[0], p->inputs[1], {0}, p->y, {0}, p->other[1], 1e-5f, 0});
}

static void rms_norm_backward(Fixture *b, Problem *p) {
    norm_backward_input(
        b->device, b->stream,
        (NormBackwardInput){
            p->dy, p->inputs[0], p->inputs[1], {0}, p->other[1], p->other[2], p->gradients[0], 0});
    norm_backward_weight(b->device, b->stream,
                         (NormBackwardWeight){p->dy, p->inputs[0], {0}, p->other[1], p->gradients[1], {0}});
}

static void declare_rms_norm_residual(Fixture *b, Problem *p) {
    declare_rms_norm(b, p);
    p->other[2] = p->dy;
}

static void rms_norm_residual_forward(Fixture *b, Problem *p) {
    rms_norm_forward(b, p);
    add(b->device, b->stream, (Add){p->inputs[0], p->y});
}

static void rms_norm(void) {
    check_gradients("rms norm", declare_rms_norm, rms_norm_forward, rms_norm_backward);
    check_gradients("rms norm + x", declare_rms_norm_residual, rms_norm_residual_forward, rms_norm_backward);
}

// ---- rotary: the gradient is the transposed rotation; other: table ----------------------------------------

static void declare_rotary(Fixture *b, Problem *p) {
    p->shape = (AttentionShape){2, 4, 2, 1, 6, 0, 0, 0, 0, 0};
    add_input(b, p, 0, 8, 24);
    set_y(b, p, 8, 24);
    p->other[0] = angles(b, 4, 4); // of six columns four turn
}

static void rotary_forward(Fixture *b, Problem *p) {
    device_copy(b->device, b->stream, p->y, p->inputs[0]);
    rotary(b->device, b->stream, (Rotary){p->other[0], p->y, p->shape, false});
}

static void rotary_backward(Fixture *b, Problem *p) {
    device_copy(b->device, b->stream, p->gradients[0], p->dy);
    rotary(b->device, b->stream, (Rotary){p->other[0], p->gradients[0], p->shape, true});
}

static void rotary_embedding(void) {
    check_gradients("rotary", declare_rotary, rotary_forward, rotary_backward);
}

// ---- attention: qkv; other: stats, probabilities ----------------------------------------------------------

static void declare_attention_of(Fixture *b, Problem *p, int64_t groups, float probability) {
    p->shape = (AttentionShape){2, 5, 4, groups, 3, 4, 0, 0, 0, 0};
    p->dropout = dropout_of(probability, 2);
    add_input(b, p, 0, 10, (4 + 2 * groups) * 3);
    set_y(b, p, 10, 12);
    p->other[0] = tensor(b, 8, 5);
}

static void declare_attention(Fixture *b, Problem *p) { declare_attention_of(b, p, 4, 0); }
static void declare_two_groups(Fixture *b, Problem *p) { declare_attention_of(b, p, 2, 0); }
static void declare_one_group(Fixture *b, Problem *p) { declare_attention_of(b, p, 1, 0.3f); }
static void declare_attention_dropout(Fixture *b, Problem *p) { declare_attention_of(b, p, 4, 0.3f); }

static void declare_stored(Fixture *b, Problem *p) {
    declare_attention_of(b, p, 2, 0.3f);
    p->other[1] = tensor(b, 40, 5);
}

static void declare_rules(Fixture *b, Problem *p, AttentionRules rules, bool stores) {
    declare_attention_of(b, p, 2, 0.3f);
    p->rules = rules;
    if (stores) p->other[1] = tensor(b, 40, 5);
}

static void declare_window(Fixture *b, Problem *p) {
    declare_rules(b, p, (AttentionRules){.window = 2}, false);
}

// Sample 0 has documents of 2 and 3 tokens, sample 1 of 1, 1 and 3.
static void declare_documents(Fixture *b, Problem *p) {
    static const int32_t FIRST[] = {0, 0, 0, 1, 2, 2, 2, 2, 2, 2};
    declare_rules(b, p, (AttentionRules){0}, true);
    p->other[2] = tensor_of(b, I32, 1, 10);
    device_upload(b->device, b->stream, p->other[2], FIRST);
}

static void declare_cap(Fixture *b, Problem *p) {
    declare_rules(b, p, (AttentionRules){.cap = 1.25f, .scale = 0.8f}, false);
}

static void declare_capped_stored(Fixture *b, Problem *p) {
    declare_rules(b, p, (AttentionRules){.cap = 1.25f, .off_by_one = true}, true);
}

static void declare_sinks(Fixture *b, Problem *p) {
    declare_documents(b, p);
    p->rules = (AttentionRules){.window = 2, .cap = 2};
    add_input(b, p, 1, 1, 4);
}

static void self_attention_forward(Fixture *b, Problem *p) {
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = p->inputs[0],
                                         .first_key = p->other[2],
                                         .sinks = p->inputs[1],
                                         .rules = p->rules,
                                         .out = p->y,
                                         .stats = p->other[0],
                                         .probabilities = p->other[1],
                                         .shape = p->shape,
                                         .dropout = p->dropout});
}

static void self_attention_backward(Fixture *b, Problem *p) {
    attention_backward(b->device, b->stream,
                       (AttentionBackward){.dout = p->dy,
                                           .qkv = p->inputs[0],
                                           .out = p->y,
                                           .stats = p->other[0],
                                           .probabilities = p->other[1],
                                           .first_key = p->other[2],
                                           .sinks = p->inputs[1],
                                           .dqkv = p->gradients[0],
                                           .dsinks = p->gradients[1],
                                           .rules = p->rules,
                                           .shape = p->shape,
                                           .dropout = p->dropout});
}

static void attention(void) {
    check_gradients("attention", declare_attention, self_attention_forward, self_attention_backward);
    check_gradients("attention of two groups", declare_two_groups, self_attention_forward,
                    self_attention_backward);
    check_gradients("attention of one group", declare_one_group, self_attention_forward,
                    self_attention_backward);
    check_gradients("attention with dropout", declare_attention_dropout, self_attention_forward,
                    self_attention_backward);
    check_gradients("attention with stored probabilities", declare_stored, self_attention_forward,
                    self_attention_backward);
    check_gradients("attention of a window", declare_window, self_attention_forward, self_attention_backward);
    check_gradients("attention of documents", declare_documents, self_attention_forward,
                    self_attention_backward);
    check_gradients("attention of capped scores", declare_cap, self_attention_forward,
                    self_attention_backward);
    check_gradients("attention of capped scores, stored", declare_capped_stored, self_attention_forward,
                    self_attention_backward);
    check_gradients("attention of sinks", declare_sinks, self_attention_forward, self_attention_backward);
}

// ---- embedding: table [V/t, H]; other: tokens -------------------------------------------------------------

static void declare_embedding(Fixture *b, Problem *p) {
    add_input(b, p, 0, 6, 4);
    set_y(b, p, 15, 4);
    p->other[0] = integers(b, 15, 9); // rows 2..7 are local
}

static void token_forward(Fixture *b, Problem *p) {
    embedding_forward(b->device, b->stream, (EmbeddingForward){p->other[0], p->inputs[0], p->y, 2});
}

static void token_backward(Fixture *b, Problem *p) {
    embedding_backward(b->device, b->stream, (EmbeddingBackward){p->other[0], p->dy, p->gradients[0], 2});
}

static void embedding(void) {
    check_gradients("embedding", declare_embedding, token_forward, token_backward);
}

// ---- position: x [S*B, H], position [S, H] ----------------------------------------------------------------

static void declare_position(Fixture *b, Problem *p) {
    add_input(b, p, 0, 8, 5);
    add_input(b, p, 1, 7, 5);
    set_y(b, p, 8, 5);
    p->dropout = dropout_of(0.25f, 2);
    p->dropout.first_row = 6;
}

static void position_forward(Fixture *b, Problem *p) {
    position_dropout(b->device, b->stream, (PositionDropout){p->inputs[0], p->inputs[1], p->y, p->dropout});
}

static void position_gradient(Fixture *b, Problem *p) {
    dropout_backward(b->device, b->stream, (DropoutBackward){p->dy, p->gradients[0], p->dropout});
    position_backward(b->device, b->stream,
                      (PositionBackward){p->gradients[0], p->gradients[1], 2, p->dropout.first_row});
}

static void position(void) {
    check_gradients("position", declare_position, position_forward, position_gradient);
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

// The last step turns its copy of the logits into the gradient of the sum of the losses.
static void cross_entropy(Fixture *b, Problem *p) {
    Tensor logits = p->gradients[0], max = tensor_rows(p->other[1], 0, 1);
    Tensor sum = tensor_rows(p->other[1], 1, 1), target = tensor_rows(p->other[1], 2, 1);
    device_copy(b->device, b->stream, logits, p->inputs[0]);
    loss_max(b->device, b->stream, (LossMax){logits, max, 0, 9});
    loss_sum(b->device, b->stream, (LossSum){logits, p->other[0], max, sum, target, 0, 9});
    loss_finish(b->device, b->stream,
                (LossFinish){p->other[0], max, sum, target, p->other[2], logits, logits, p->y, 0, 9, 1.0f});
}

static void nothing(Fixture *b, Problem *p) { (void)b, (void)p; }

static void loss(void) { check_gradients("loss", declare_loss, cross_entropy, nothing); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"linear", linear},
                                      {"bias_gelu", bias_gelu},
                                      {"gelu", plain_gelu},
                                      {"exact_gelu", exact_gelu},
                                      {"swiglu", swiglu},
                                      {"bias_dropout_add", dropout_add},
                                      {"norm", layer_norm},
                                      {"norm_residual", layer_norm_residual},
                                      {"rms_norm", rms_norm},
                                      {"rotary", rotary_embedding},
                                      {"attention", attention},
                                      {"embedding", embedding},
                                      {"position", position},
                                      {"loss", loss},
                                      {0}},
                       argc, argv);
}
