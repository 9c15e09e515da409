// Tensors of the wrong shape or type are named before anything is computed.
#include "device_mistakes.h"

static void pass_wrong_shape(Fixture *b) {
    add(b->device, b->stream, (Add){normals(b, 2, 3), normals(b, 3, 2)});
}

static void pass_wrong_columns(Fixture *b) {
    add(b->device, b->stream, (Add){normals(b, 2, 3), normals(b, 2, 4)});
}

static void leave_out_tensor(Fixture *b) {
    add(b->device, b->stream, (Add){normals(b, 2, 3), {NULL, 2, 3, F32}});
}

static void pass_wrong_type(Fixture *b) {
    add(b->device, b->stream, (Add){normals(b, 1, 3), integers(b, 3, 5)});
}

static void mix_types(Fixture *b) {
    add(b->device, b->stream, (Add){tensor_of(b, BF16, 1, 3), tensor_of(b, F16, 1, 3)});
}

static void accumulate_narrow(Fixture *b) {
    Tensor x = tensor_of(b, BF16, 2, 2);
    matmul(b->device, b->stream, (Matmul){.a = x, .b = x, .d = x, .accumulate = true});
}

static void sum_narrow(Fixture *b) {
    column_sum(b->device, b->stream, (ColumnSum){tensor_of(b, F16, 2, 3), tensor_of(b, F16, 1, 3)});
}

static void narrow_integers(Fixture *b) {
    add(b->device, b->stream, (Add){integers(b, 3, 5), integers(b, 3, 5)});
}

static void half_a_layer_norm(Fixture *b) {
    Tensor x = normals(b, 2, 3), row = normals(b, 1, 3), statistic = normals(b, 1, 2);
    norm_forward(b->device, b->stream, (NormForward){x, row, row, x, {0}, statistic, 1e-5f, 0});
}

static void uneven_groups(Fixture *b) {
    Rotary args = {tensor(b, 1, 2), tensor(b, 1, 14), {1, 1, 3, 2, 2, 0, 0, 0, 0, 0}, false};
    rotary(b->device, b->stream, args);
}

static void part_of_a_row(Fixture *b) {
    Dropout dropout = dropout_of(0.5f, 2);
    dropout.first_row = 3;
    dropout_backward(b->device, b->stream, (DropoutBackward){normals(b, 2, 3), normals(b, 2, 3), dropout});
}

static void narrow_over_logits(Fixture *b) {
    Tensor x = tensor(b, 1, 4), row = tensor(b, 1, 1), narrow = {x.data, 1, 4, BF16};
    loss_finish(b->device, b->stream,
                (LossFinish){integers(b, 1, 4), row, row, row, {0}, x, narrow, row, 0, 4, 1});
}

static void too_large_to_square(Fixture *b) {
    Device *reference;
    EXPECT_OK(device_open(&reference, (DeviceOptions){.kind = "reference", .threads = 1}));
    float x = -4.5f;
    double sum[3] = {0};
    sum_squares(reference, device_stream(reference),
                (SumSquares){{&x, 1, 1, F32}, {sum, 1, 3, F64}, {0}, 2, 0, NULL});
    (void)b;
}

static void too_small_workspace(Fixture *b) {
    AttentionShape shape = {1, 2048, 1, 1, 1, 0, 0, 0, 0, 0};
    AttentionForward args = {
        .qkv = tensor(b, 2048, 3), .out = tensor(b, 2048, 1), .stats = tensor(b, 1, 2048)};
    args.shape = shape;
    Device *poor;
    EXPECT_OK(
        device_open(&poor, (DeviceOptions){.kind = "reference", .threads = 1, .workspace_bytes = 4096}));
    attention_forward(poor, device_stream(poor), args);
}

// The third query of a sample sees more than the second.
static void falling_first_keys(Fixture *b) {
    int32_t first[] = {0, 1, 0};
    float qkv[9] = {0}, out[3], stats[3];
    Device *reference;
    EXPECT_OK(
        device_open(&reference, (DeviceOptions){.kind = "reference", .threads = 1, .workspace_bytes = 4096}));
    attention_forward(reference, device_stream(reference),
                      (AttentionForward){.qkv = {qkv, 3, 3, F32},
                                         .first_key = {first, 1, 3, I32},
                                         .out = {out, 3, 1, F32},
                                         .stats = {stats, 1, 3, F32},
                                         .shape = {1, 3, 1, 1, 1, 0, 0, 0, 0, 0}});
    (void)b;
}

static void shapes_are_named(void) {
    expect_death(pass_wrong_shape, ERR_BUG, "add: y is [3, 2] f32, wanted [2, 3] f32");
    expect_death(pass_wrong_columns, ERR_BUG, "add: y is [2, 4] f32, wanted [2, 3] f32");
    expect_death(pass_wrong_type, ERR_BUG, "add: y is [1, 3] i32, wanted [1, 3] f32");
    expect_death(mix_types, ERR_BUG, "add: y is [1, 3] f16, wanted [1, 3] bf16");
    expect_death(accumulate_narrow, ERR_BUG, "matmul: d is [2, 2] bf16, wanted [2, 2] f32");
    expect_death(sum_narrow, ERR_BUG, "column_sum: sum is [1, 3] f16, wanted [1, 3] f32");
    expect_death(narrow_integers, ERR_BUG, "add of i32 tensors");
    expect_death(half_a_layer_norm, ERR_BUG, "norm_forward: of beta and mean one is absent");
    expect_death(uneven_groups, ERR_BUG, "rotary: B 1, S 1, N/t 3, G/t 2");
    expect_death(part_of_a_row, ERR_BUG, "dropout_backward: dropout from row 3 on, of 2 samples");
    expect_death(narrow_over_logits, ERR_BUG, "loss_finish: bf16 dlogits over f32 logits");
    expect_death(too_large_to_square, ERR_BUG, "sum_squares: x[0] = -4.5 is above 2^2");
    expect_death(leave_out_tensor, ERR_BUG, "add: y is absent");
    expect_death(falling_first_keys, ERR_BUG, "attention_forward: the first key of row 2 is 0");
    expect_death(too_small_workspace, ERR_BUG, "attention_forward needs 16384 bytes of workspace");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shapes_are_named", shapes_are_named}, {0}}, argc, argv);
}
