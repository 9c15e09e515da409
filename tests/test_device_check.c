// The checking device names each mistake and ends the job: every test makes one in a forked child and reads
// what it said.
#include "base/rank.h"
#include "device_mistakes.h"

static void pass_host_pointer(Fixture *b) {
    float host[4] = {0};
    Tensor x = normals(b, 1, 4), y = {host, 1, 4, F32};
    add(b->device, b->stream, (Add){x, y});
}

static void pass_device_pointer(Fixture *b) {
    Tensor x = normals(b, 1, 4);
    device_upload(b->device, b->stream, x, x.data);
}

static void reach_beyond(Fixture *b) {
    Tensor x = tensor(b, 1, FIXTURE_BYTES / 4), y = {(float *)x.data + 1, 1, x.cols, F32};
    device_zero(b->device, b->stream, x);
    add(b->device, b->stream, (Add){x, y});
}

static void write_beyond(Fixture *b, ptrdiff_t byte) {
    device_sync(b->device, b->stream);
    char *arena = device_address(b->device, (Tensor){b->arena.base, 1, 1, F32});
    arena[byte] = 1;
}

static void overwrite_then_compute(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    write_beyond(b, FIXTURE_BYTES);
    add(b->device, b->stream, (Add){x, y});
}

static void overwrite_then_compute_before(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    write_beyond(b, -1);
    add(b->device, b->stream, (Add){x, y});
}

static void overwrite_then_upload(Fixture *b) {
    write_beyond(b, -1);
    normals(b, 1, 4);
}

static void overwrite_then_close(Fixture *b) { write_beyond(b, FIXTURE_BYTES); }

static void write_narrow_nan(Fixture *b) {
    b->element = BF16;
    Tensor x = from_floats(b, 2, 3, (const float[]){1, 2, 3, 4, NAN, 6}), y = normals(b, 2, 3);
    add(b->device, b->stream, (Add){x, y});
}

static void read_narrow_poison(Fixture *b) {
    Tensor x = tensor_of(b, F16, 3, 5);
    column_sum(b->device, b->stream, (ColumnSum){x, zeros_of(b, F32, 1, 5)});
}

// Beyond 65504, fp16's largest.
static void overflow_narrow(Fixture *b) {
    b->element = F16;
    Tensor x = from_floats(b, 1, 1, (const float[]){6e4f});
    add(b->device, b->stream, (Add){x, copy_of(b, x)});
}

static void use_closed_arena(Fixture *b) {
    Arena gone;
    EXPECT_OK(arena_open(&gone, "gone", device_memory(b->device), 4096));
    Tensor x = tensor_take(&gone, "x", 1, 4, F32);
    arena_close(&gone);
    device_zero(b->device, b->stream, x);
}

static void leave_arena_open(Fixture *b) { device_close(b->device); }

// ---- waits that are missing -------------------------------------------------------------------------------

static void follow_pointer(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    rank_doing("F3.1");
    add(b->device, b->stream, (Add){x, y});
    device_sync(b->device, b->stream);
    rank_doing("sf3.1");
    printf("%g\n", (double)((volatile float *)y.data)[1]);
}

static void follow_freed_pointer(Fixture *b) {
    Arena gone;
    EXPECT_OK(arena_open(&gone, "gone", device_memory(b->device), 4096));
    Tensor x = tensor_take(&gone, "x", 1, 4, F32);
    arena_close(&gone);
    ((volatile float *)x.data)[0] = 1;
}

static void look_without_wait(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    rank_doing("F3.1");
    add(b->device, b->stream, (Add){x, y});
    device_address(b->device, y);
}

static Stream *second_stream(Fixture *b) {
    Stream *stream;
    EXPECT_OK(device_stream_open(b->device, "second", &stream));
    return stream;
}

static void read_other_stream(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4), z = tensor(b, 1, 4);
    Stream *second = second_stream(b);
    device_sync(b->device, b->stream);
    rank_doing("F3.1");
    add(b->device, b->stream, (Add){x, y});
    rank_doing("F4.1");
    device_copy(b->device, second, z, y);
}

static void write_under_other_stream(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    Stream *second = second_stream(b);
    device_sync(b->device, b->stream);
    add(b->device, b->stream, (Add){x, y});
    device_zero(b->device, second, x);
}

// A wait that comes before what it should wait for.
static void wait_too_early(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    Stream *second = second_stream(b);
    stream_wait(b->device, second, event_record(b->device, b->stream));
    add(b->device, b->stream, (Add){x, y});
    device_zero(b->device, second, y);
}

// The scratch memory of one stream, taken again by another.
static void reuse_block(Fixture *b) {
    Stream *second = second_stream(b);
    ArenaMark mark = arena_mark(&b->arena);
    device_zero(b->device, second, tensor(b, 1, 4));
    arena_release(&b->arena, mark);
    device_zero(b->device, b->stream, tensor(b, 1, 4));
}

static void send_before_done(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    add(b->device, b->stream, (Add){x, y});
    HostAccess send = device_access(b->device, b->stream, y, true, false, "send");
    device_access_address(b->device, &send);
}

static void write_what_is_sent(Fixture *b) {
    Tensor x = normals(b, 1, 4);
    rank_doing("sf3.1");
    HostAccess send = device_access(b->device, b->stream, x, true, false, "send");
    device_sync(b->device, b->stream);
    device_access_address(b->device, &send);
    rank_doing("F4.1");
    device_zero(b->device, b->stream, x);
}

static void read_what_is_received(Fixture *b) {
    Tensor x = normals(b, 1, 4), y = normals(b, 1, 4);
    (void)device_access(b->device, b->stream, x, false, true, "receive");
    add(b->device, b->stream, (Add){x, y});
}

static void send_nothing(Fixture *b) {
    (void)device_access(b->device, b->stream, tensor(b, 1, 4), true, false, "send");
}

static void free_what_is_sent(Fixture *b) {
    (void)device_access(b->device, b->stream, normals(b, 1, 4), true, false, "send");
    arena_close(&b->arena);
}

static void write_nan(Fixture *b) {
    float values[6] = {1, 2, 3, 4, NAN, 6};
    Tensor x = from_floats(b, 2, 3, values), y = normals(b, 2, 3);
    rank_doing("F3.1");
    add(b->device, b->stream, (Add){x, y});
}

static void read_poison(Fixture *b) {
    Tensor x = tensor(b, 1, 4), sum = normals(b, 1, 4);
    column_sum(b->device, b->stream, (ColumnSum){x, sum});
}

static void read_released(Fixture *b) {
    ArenaMark mark = arena_mark(&b->arena);
    normals(b, 1, 4);
    arena_release(&b->arena, mark);
    read_poison(b);
}

static void read_fresh_arena(Fixture *b) {
    Tensor x = {arena_take(&b->arena, "x", 16), 1, 4, F32};
    column_sum(b->device, b->stream, (ColumnSum){x, normals(b, 1, 4)});
}

static void overflow(Fixture *b) {
    Tensor x = from_floats(b, 1, 1, (const float[]){3e38f}), y = from_floats(b, 1, 1, (const float[]){3e38f});
    add(b->device, b->stream, (Add){x, y});
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

static void early_reads_are_named(void) {
    expect_death(read_poison, ERR_BUG,
                 "column_sum of x (stream compute) reads bytes of tensor that nothing has written");
    expect_death(read_fresh_arena, ERR_BUG, "column_sum of x (stream compute) reads bytes of x that nothing");
    expect_death(read_released, ERR_BUG, "column_sum of x (stream compute) reads bytes of tensor");
    expect_death(read_narrow_poison, ERR_BUG, "column_sum of x (stream compute) reads bytes of tensor");
    expect_death(send_nothing, ERR_BUG, "send (the host) reads bytes of tensor that nothing has written");
}

static void missing_waits_are_named(void) {
    expect_death(follow_pointer, ERR_BUG,
                 "the arena fixture while at sf3.1: tensor, last written by add of y (F3.1, stream compute)");
    expect_death(follow_freed_pointer, ERR_BUG, "byte 0 of the arena gone: it was freed");
    expect_death(
        look_without_wait, ERR_BUG,
        "device_address (F3.1, the host) writes tensor, add of y (F3.1, stream compute) may still write");
    expect_death(read_other_stream, ERR_BUG,
                 "device_copy (F4.1, stream second) reads tensor, add of y (F3.1, stream compute) may still");
    expect_death(write_under_other_stream, ERR_BUG,
                 "device_zero (stream second) writes tensor, add of x (stream compute) may still read it");
    expect_death(wait_too_early, ERR_BUG,
                 "device_zero (stream second) writes tensor, add of y (stream compute) may still write it");
    expect_death(reuse_block, ERR_BUG,
                 "device_zero (stream compute) writes tensor, device_zero (stream second)");
    expect_death(send_before_done, ERR_BUG,
                 "send: host code looks at tensor, which add of y (stream compute)");
    expect_death(write_what_is_sent, ERR_BUG,
                 "device_zero (F4.1, stream compute) writes tensor, send (sf3.1, the host) is reading it");
    expect_death(read_what_is_received, ERR_BUG,
                 "add of x (stream compute) reads tensor, receive (the host) is writing it");
    expect_death(free_what_is_sent, ERR_BUG, "the arena fixture was freed while send was under way");
}

static void numbers_are_named(void) {
    expect_death(write_nan, ERR_NUMERIC, "add wrote nan to y[1, 1] of [2, 3] while at F3.1");
    expect_death(overflow, ERR_NUMERIC, "add wrote inf to y[0, 0]");
    expect_death(write_narrow_nan, ERR_NUMERIC, "add wrote nan to y[1, 1] of [2, 3]");
    expect_death(overflow_narrow, ERR_NUMERIC, "add wrote inf to y[0, 0]");
}

// ---- what is no fault -------------------------------------------------------------------------------------

// Two streams that take turns at the same tensors: the numbers of one stream.
static void waits_suffice(void) {
    Fixture b = fixture_open("check", 1);
    Stream *second = second_stream(&b);
    Tensor x = from_floats(&b, 1, 1, (const float[]){1}), y = from_floats(&b, 1, 1, (const float[]){0});
    for (int turn = 0; turn < 300; turn++) {
        stream_wait(b.device, second, event_record(b.device, b.stream));
        add(b.device, second, (Add){x, y}); // y += 1
        stream_wait(b.device, b.stream, event_record(b.device, second));
        HostAccess access = device_access(b.device, b.stream, y, true, turn % 2, "message");
        while (!device_access_ready(b.device, &access)) event_wait_for(b.device, access.since, 1e-4);
        float *value = device_access_address(b.device, &access);
        EXPECT(*value == (float)(turn + 1), "%g in turn %d", (double)*value, turn);
        device_access_end(b.device, &access);
    }
    device_stream_close(b.device, second);
    fixture_close(&b);
}

static void marks_are_in_order(void) {
    Fixture b = fixture_open("check", 2);
    Tensor x = zeros_of(&b, F32, 1, 4);
    DeviceMark marks[3];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            marks[i] = device_mark(b.device, b.stream);
            device_zero(b.device, b.stream, x);
        }
        for (int i = 2; i >= 0; i--) device_mark_read(b.device, &marks[i]);
        EXPECT(marks[0].wall_s <= marks[1].wall_s && marks[1].wall_s <= marks[2].wall_s, "their order");
    }
    fixture_close(&b);
}

// A rank whose slice of the vocabulary is all padding has no largest logit; that is no fault.
static void padding_is_no_fault(void) {
    Fixture b = fixture_open("check", 1);
    Tensor max = tensor(&b, 1, 2);
    loss_max(b.device, b.stream, (LossMax){normals(&b, 2, 8), max, 16, 10});
    float *values = values_of(&b, max);
    EXPECT(values[0] == -INFINITY && values[1] == -INFINITY, "%g", (double)values[0]);
    free(values);
    fixture_close(&b);
}

// Nor are gradients that overflowed: that is what the operation is asked.
static void infinite_gradients_are_no_fault(void) {
    Fixture b = fixture_open("check", 1);
    Tensor x = from_floats(&b, 1, 3, (const float[]){1, NAN, 2}), max = zeros_of(&b, F32, 1, 1);
    abs_max(b.device, b.stream, (AbsMax){x, max});
    double *value = doubles_of(&b, max);
    EXPECT(*value == INFINITY, "%g", *value);
    free(value);
    fixture_close(&b);
}

static void unknown_kind_is_refused(void) {
    Device *device;
    EXPECT(device_open(&device, (DeviceOptions){.kind = "chek", .threads = 1}) == ERR_CONFIG, "the status");
    EXPECT(strstr(fail_message(), "did you mean check?"), "%s", fail_message());
    EXPECT(device == NULL, "a device");
}

static void seed_that_is_no_number_is_refused(void) {
    Device *device;
    setenv("TRIREME_CHECK_SEED", "1x", 1);
    EXPECT(device_check("check") == ERR_CONFIG, "the status of the check");
    EXPECT(device_open(&device, (DeviceOptions){.kind = "check", .threads = 1}) == ERR_CONFIG, "the status");
    EXPECT(strstr(fail_message(), "TRIREME_CHECK_SEED=1x is not a whole number"), "%s", fail_message());
    EXPECT(device == NULL, "a device");
    unsetenv("TRIREME_CHECK_SEED");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"mistakes_are_named", mistakes_are_named},
                       {"early_reads_are_named", early_reads_are_named},
                       {"missing_waits_are_named", missing_waits_are_named},
                       {"waits_suffice", waits_suffice},
                       {"marks_are_in_order", marks_are_in_order},
                       {"numbers_are_named", numbers_are_named},
                       {"padding_is_no_fault", padding_is_no_fault},
                       {"infinite_gradients_are_no_fault", infinite_gradients_are_no_fault},
                       {"unknown_kind_is_refused", unknown_kind_is_refused},
                       {"seed_that_is_no_number_is_refused", seed_that_is_no_number_is_refused},
                       {0}},
        argc, argv);
}
