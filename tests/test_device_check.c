// The checking device names each mistake and ends the job: every test makes one in a forked child and reads
// what it said.
#include "base/rank.h"
#include "device_fixture.h"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

// Runs `mistake` in a child; expects that it ends with `status` and that its words contain `words`.
static void expect_death(void (*mistake)(Bench *b), int status, const char *words) {
    int ends[2];
    CHECK(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    CHECK(child >= 0, "no child");
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        Bench b = bench_open("check", 1);
        mistake(&b);
        bench_close(&b);
        _exit(0);
    }
    close(ends[1]);
    char said[4096];
    size_t length = 0;
    ssize_t got;
    while (length < sizeof said - 1 && (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = 0;
    close(ends[0]);
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child, "no child to wait for");
    EXPECT(WIFEXITED(state) && WEXITSTATUS(state) == status, "wait status %#x, wanted exit %d",
           (unsigned)state, status);
    EXPECT(strstr(said, words), "\"%s\" in: %s", words, said);
}

static void pass_host_pointer(Bench *b) {
    float host[4] = {0};
    Tensor x = normals(b, 1, 4), y = {host, 1, 4, F32};
    add(b->device, b->stream, (Add){x, y});
}

static void pass_device_pointer(Bench *b) {
    Tensor x = normals(b, 1, 4);
    device_upload(b->device, b->stream, x, x.data);
}

static void reach_beyond(Bench *b) {
    Tensor x = tensor(b, 1, BENCH_BYTES / 4), y = {(float *)x.data + 1, 1, x.cols, F32};
    device_zero(b->device, b->stream, x);
    add(b->device, b->stream, (Add){x, y});
}

static void write_beyond(Bench *b, ptrdiff_t byte) {
    char *arena = device_address(b->device, b->arena.base);
    arena[byte] = 1;
}

static void overwrite_then_compute(Bench *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    write_beyond(b, BENCH_BYTES);
    add(b->device, b->stream, (Add){x, y});
}

static void overwrite_then_compute_before(Bench *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    write_beyond(b, -1);
    add(b->device, b->stream, (Add){x, y});
}

static void overwrite_then_upload(Bench *b) {
    write_beyond(b, -1);
    normals(b, 1, 4);
}

static void overwrite_then_close(Bench *b) { write_beyond(b, BENCH_BYTES); }

// What the front sees after a backend that wrote too far.
static void write_narrow_nan(Bench *b) {
    b->element = BF16;
    Tensor x = from_floats(b, 2, 3, (const float[]){1, 2, 3, 4, NAN, 6}), y = normals(b, 2, 3);
    add(b->device, b->stream, (Add){x, y});
}

static void read_narrow_poison(Bench *b) {
    Tensor x = tensor_of(b, F16, 3, 5);
    column_sum(b->device, b->stream, (ColumnSum){x, zeros_of(b, F32, 1, 5)});
}

// Beyond 65504, fp16's largest.
static void overflow_narrow(Bench *b) {
    b->element = F16;
    Tensor x = from_floats(b, 1, 1, (const float[]){6e4f});
    add(b->device, b->stream, (Add){x, copy_of(b, x)});
}

static void use_closed_arena(Bench *b) {
    Arena gone;
    EXPECT_OK(arena_open(&gone, "gone", device_memory(b->device), 4096));
    Tensor x = tensor_take(&gone, "x", 1, 4, F32);
    arena_close(&gone);
    device_zero(b->device, b->stream, x);
}

static void leave_arena_open(Bench *b) { device_close(b->device); }

static void write_nan(Bench *b) {
    float values[6] = {1, 2, 3, 4, NAN, 6};
    Tensor x = from_floats(b, 2, 3, values), y = normals(b, 2, 3);
    rank_doing("F3.1");
    add(b->device, b->stream, (Add){x, y});
}

static void read_poison(Bench *b) {
    Tensor x = tensor(b, 1, 4), sum = normals(b, 1, 4);
    column_sum(b->device, b->stream, (ColumnSum){x, sum});
}

static void read_released(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    normals(b, 1, 4);
    arena_release(&b->arena, mark);
    read_poison(b);
}

static void read_fresh_arena(Bench *b) {
    Tensor x = {arena_take(&b->arena, "x", 16), 1, 4, F32};
    column_sum(b->device, b->stream, (ColumnSum){x, normals(b, 1, 4)});
}

static void overflow(Bench *b) {
    Tensor x = from_floats(b, 1, 1, (const float[]){3e38f}), y = from_floats(b, 1, 1, (const float[]){3e38f});
    add(b->device, b->stream, (Add){x, y});
}

static void pass_wrong_shape(Bench *b) {
    add(b->device, b->stream, (Add){normals(b, 2, 3), normals(b, 3, 2)});
}

static void pass_wrong_columns(Bench *b) {
    add(b->device, b->stream, (Add){normals(b, 2, 3), normals(b, 2, 4)});
}

static void leave_out_tensor(Bench *b) {
    add(b->device, b->stream, (Add){normals(b, 2, 3), {NULL, 2, 3, F32}});
}

static void pass_wrong_type(Bench *b) {
    add(b->device, b->stream, (Add){normals(b, 1, 3), integers(b, 3, 5)});
}

static void mix_types(Bench *b) {
    add(b->device, b->stream, (Add){tensor_of(b, BF16, 1, 3), tensor_of(b, F16, 1, 3)});
}

static void accumulate_narrow(Bench *b) {
    Tensor x = tensor_of(b, BF16, 2, 2);
    matmul(b->device, b->stream, (Matmul){.a = x, .b = x, .d = x, .accumulate = true});
}

static void sum_narrow(Bench *b) {
    column_sum(b->device, b->stream, (ColumnSum){tensor_of(b, F16, 2, 3), tensor_of(b, F16, 1, 3)});
}

static void narrow_integers(Bench *b) {
    add(b->device, b->stream, (Add){integers(b, 3, 5), integers(b, 3, 5)});
}

static void half_a_layer_norm(Bench *b) {
    Tensor x = normals(b, 2, 3), row = normals(b, 1, 3), statistic = normals(b, 1, 2);
    norm_forward(b->device, b->stream, (NormForward){x, row, row, x, {0}, statistic, 1e-5f});
}

static void uneven_groups(Bench *b) {
    Rotary args = {tensor(b, 1, 2), tensor(b, 1, 14), {1, 1, 3, 2, 2, 0}, false};
    rotary(b->device, b->stream, args);
}

static void part_of_a_row(Bench *b) {
    Dropout dropout = dropout_of(0.5f, 2);
    dropout.first_row = 3;
    dropout_backward(b->device, b->stream, (DropoutBackward){normals(b, 2, 3), normals(b, 2, 3), dropout});
}

static void narrow_over_logits(Bench *b) {
    Tensor x = tensor(b, 1, 4), row = tensor(b, 1, 1), narrow = {x.data, 1, 4, BF16};
    loss_finish(b->device, b->stream,
                (LossFinish){integers(b, 1, 4), row, row, row, {0}, x, narrow, row, 0, 4, 1});
}

static void too_large_to_square(Bench *b) {
    Device *reference;
    EXPECT_OK(device_open(&reference, (DeviceOptions){"reference", NULL, 1, 0}));
    float x = -4.5f;
    double sum[3] = {0};
    sum_squares(reference, device_stream(reference), (SumSquares){{&x, 1, 1, F32}, {sum, 1, 3, F64}, 2});
    (void)b;
}

static void too_small_workspace(Bench *b) {
    AttentionShape shape = {1, 2048, 1, 1, 1, 0};
    AttentionForward args = {
        .qkv = tensor(b, 2048, 3), .out = tensor(b, 2048, 1), .stats = tensor(b, 1, 2048)};
    args.shape = shape;
    Device *poor;
    EXPECT_OK(device_open(&poor, (DeviceOptions){"reference", NULL, 1, 4096}));
    attention_forward(poor, device_stream(poor), args);
}

static void mistakes_are_named(void) {
    expect_death(pass_host_pointer, ERR_BUG, "add: y is a host pointer");
    expect_death(pass_device_pointer, ERR_BUG, "device_upload: a device pointer");
    expect_death(reach_beyond, ERR_BUG, "add: y of 4194304 bytes reaches beyond the end");
    expect_death(overwrite_then_compute, ERR_BUG, "add: memory was overwritten after the end");
    expect_death(overwrite_then_upload, ERR_BUG, "device_upload: memory was overwritten before the start");
    expect_death(overwrite_then_close, ERR_BUG, "arena_close: memory was overwritten after the end");
    expect_death(overwrite_then_compute_before, ERR_BUG, "add: memory was overwritten before the start");
    expect_death(use_closed_arena, ERR_BUG, "device_zero: tensor lies in no live arena");
    expect_death(leave_arena_open, ERR_BUG, "before 1 of its arenas");
}

static void numbers_are_named(void) {
    expect_death(write_nan, ERR_NUMERIC, "add wrote nan to y[1, 1] of [2, 3] while at F3.1");
    expect_death(overflow, ERR_NUMERIC, "add wrote inf to y[0, 0]");
    expect_death(read_poison, ERR_NUMERIC, "column_sum wrote");
    expect_death(read_fresh_arena, ERR_NUMERIC, "column_sum wrote");
    expect_death(read_released, ERR_NUMERIC, "column_sum wrote");
    expect_death(write_narrow_nan, ERR_NUMERIC, "add wrote nan to y[1, 1] of [2, 3]");
    expect_death(read_narrow_poison, ERR_NUMERIC, "column_sum wrote");
    expect_death(overflow_narrow, ERR_NUMERIC, "add wrote inf to y[0, 0]");
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
    expect_death(too_small_workspace, ERR_BUG, "attention_forward needs 16384 bytes of workspace");
}

// A rank whose slice of the vocabulary is all padding has no largest logit; that is no fault.
static void padding_is_no_fault(void) {
    Bench b = bench_open("check", 1);
    Tensor max = tensor(&b, 1, 2);
    loss_max(b.device, b.stream, (LossMax){normals(&b, 2, 8), max, 16, 10});
    float *values = values_of(&b, max);
    EXPECT(values[0] == -INFINITY && values[1] == -INFINITY, "%g", (double)values[0]);
    free(values);
    bench_close(&b);
}

// Nor are gradients that overflowed: that is what the operation is asked.
static void infinite_gradients_are_no_fault(void) {
    Bench b = bench_open("check", 1);
    Tensor x = from_floats(&b, 1, 3, (const float[]){1, NAN, 2}), max = zeros_of(&b, F32, 1, 1);
    abs_max(b.device, b.stream, (AbsMax){x, max});
    double *value = doubles_of(&b, max);
    EXPECT(*value == INFINITY, "%g", *value);
    free(value);
    bench_close(&b);
}

static void unknown_kind_is_refused(void) {
    Device *device;
    EXPECT(device_open(&device, (DeviceOptions){"chek", NULL, 1, 0}) == ERR_CONFIG, "the status");
    EXPECT(strstr(fail_message(), "did you mean check?"), "%s", fail_message());
    EXPECT(device == NULL, "a device");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"mistakes_are_named", mistakes_are_named},
                                      {"numbers_are_named", numbers_are_named},
                                      {"shapes_are_named", shapes_are_named},
                                      {"padding_is_no_fault", padding_is_no_fault},
                                      {"infinite_gradients_are_no_fault", infinite_gradients_are_no_fault},
                                      {"unknown_kind_is_refused", unknown_kind_is_refused},
                                      {0}},
                       argc, argv);
}
