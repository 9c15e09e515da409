// Laws of attention and of its rotary positions on every device that computes: a cut by heads or groups
// changes nothing, shared keys are repeated keys, and stored probabilities or working in place do not show.
#include "device_fixture.h"

enum { BATCH = 2, SEQUENCE = 21, HEADS = 4, SIZE = 8, ROWS = BATCH * SEQUENCE, WIDTH = HEADS * SIZE };

static int64_t qkv_width(AttentionShape s) { return (s.heads + 2 * s.groups) * s.head_size; }

// dqkv of one forward and backward; `stored` may be absent.
static void attend(Fixture *b, Tensor qkv, Tensor dout, Tensor out, Tensor stored, Tensor dqkv,
                   AttentionShape shape, Dropout dropout) {
    Tensor stats = tensor_f32(b, shape.batch * shape.heads, shape.sequence);
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = qkv,
                                         .out = out,
                                         .stats = stats,
                                         .probabilities = stored,
                                         .shape = shape,
                                         .dropout = dropout});
    attention_backward(b->device, b->stream,
                       (AttentionBackward){.dout = dout,
                                           .qkv = qkv,
                                           .out = out,
                                           .stats = stats,
                                           .probabilities = stored,
                                           .dqkv = dqkv,
                                           .shape = shape,
                                           .dropout = dropout});
}

// ---- the parts and the whole ------------------------------------------------------------------------------

// Two ranks with half the groups each: half the columns of every tensor.
static void cut_of_groups(Fixture *b, int64_t groups) {
    AttentionShape whole = {BATCH, SEQUENCE, HEADS, groups, SIZE, 0, 0, 0, 0, 0};
    AttentionShape half = {BATCH, SEQUENCE, HEADS / 2, groups / 2, SIZE, 0, 0, 0, 0, 0};
    int64_t width = qkv_width(half);
    Tensor qkv = normals(b, ROWS, 2 * width), dout = normals(b, ROWS, WIDTH);
    Tensor out = tensor(b, ROWS, WIDTH), dqkv = tensor(b, ROWS, 2 * width);
    Dropout dropout = dropout_of(0.2f, BATCH);
    attend(b, qkv, dout, out, (Tensor){0}, dqkv, whole, dropout);
    for (int64_t part = 0; part < 2; part++, half.first_head += half.heads) {
        Tensor part_out = tensor(b, ROWS, WIDTH / 2), part_dqkv = tensor(b, ROWS, width);
        attend(b, columns_of(b, qkv, part * width, width), columns_of(b, dout, part * WIDTH / 2, WIDTH / 2),
               part_out, (Tensor){0}, part_dqkv, half, dropout);
        expect_near(b, "out of half the heads", part_out, columns_of(b, out, part * WIDTH / 2, WIDTH / 2), 0);
        expect_near(b, "dqkv of half the heads", part_dqkv, columns_of(b, dqkv, part * width, width), 0);
    }
}

static void attention_parts(Fixture *b) {
    cut_of_groups(b, HEADS);
    cut_of_groups(b, 2);
}

// Adds `count` columns of x from `from` on to, or copies them over, the columns of y from `to` on.
static void columns_into(Fixture *b, Tensor y, int64_t to, Tensor x, int64_t from, int64_t count,
                         bool added) {
    for (int64_t row = 0; row < x.rows; row++) {
        Tensor source = tensor_part(x, row * x.cols + from, count);
        Tensor place = tensor_part(y, row * y.cols + to, count);
        if (added)
            add(b->device, b->stream, (Add){source, place});
        else
            device_copy(b->device, b->stream, place, source);
    }
}

// Groups are the attention in which every head has its own copy of its group's keys and values; the gradients
// of the copies add up.
static void groups_are_repeated_keys(Fixture *b) {
    enum { PER = 2, GROUPS = HEADS / PER, PARTS = PER + 2 };
    AttentionShape grouped = {BATCH, SEQUENCE, HEADS, GROUPS, SIZE, 2, 0, 0, 0, 0}, plain = grouped;
    plain.groups = HEADS;
    Tensor qkv = normals(b, ROWS, qkv_width(grouped)), dqkv = tensor(b, ROWS, qkv.cols);
    Tensor wide = tensor(b, ROWS, 3 * WIDTH), dwide = tensor(b, ROWS, 3 * WIDTH);
    Tensor folded = zeros_of(b, F32, ROWS, qkv.cols), dout = normals(b, ROWS, WIDTH);
    Tensor out = tensor(b, ROWS, WIDTH), wide_out = tensor(b, ROWS, WIDTH);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t part = 0; part < 3; part++) {
            int64_t from = h / PER * PARTS + (part == 0 ? h % PER : PER + part - 1);
            columns_into(b, wide, (h * 3 + part) * SIZE, qkv, from * SIZE, SIZE, false);
        }
    Dropout dropout = dropout_of(0.2f, BATCH);
    attend(b, qkv, dout, out, (Tensor){0}, dqkv, grouped, dropout);
    attend(b, wide, dout, wide_out, (Tensor){0}, dwide, plain, dropout);
    expect_near(b, "out", out, wide_out, 4e-6);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t part = 0; part < 3; part++) {
            int64_t to = h / PER * PARTS + (part == 0 ? h % PER : PER + part - 1);
            columns_into(b, folded, to * SIZE, dwide, (h * 3 + part) * SIZE, SIZE, true);
        }
    expect_near(b, "dqkv", dqkv, folded, 1e-5);
}

// Sample 1 of a batch of two, and the same sample alone: rows 2s + 1 of the first are rows s of the second.
static void mask_does_not_depend_on_the_batch(Fixture *b) {
    Dropout both = dropout_of(0.3f, 2), one = both;
    one.first_sample++, one.samples = 1;
    AttentionShape shape = {2, SEQUENCE, HEADS, HEADS, SIZE, 0, 0, 0, 0, 0}, alone = shape;
    alone.batch = 1;
    Tensor pair = normals(b, ROWS, 3 * WIDTH), single = tensor(b, SEQUENCE, 3 * WIDTH);
    for (int64_t s = 0; s < SEQUENCE; s++)
        device_copy(b->device, b->stream, tensor_rows(single, s, 1), tensor_rows(pair, 2 * s + 1, 1));
    Tensor out = tensor(b, ROWS, WIDTH), single_out = tensor(b, SEQUENCE, WIDTH), stats[2], none = {0};
    stats[0] = tensor_f32(b, 2 * HEADS, SEQUENCE), stats[1] = tensor_f32(b, HEADS, SEQUENCE);
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = pair,
                                         .out = out,
                                         .stats = stats[0],
                                         .probabilities = none,
                                         .shape = shape,
                                         .dropout = both});
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = single,
                                         .out = single_out,
                                         .stats = stats[1],
                                         .probabilities = none,
                                         .shape = alone,
                                         .dropout = one});
    expect_near(b, "stats of the sample", stats[1], tensor_rows(stats[0], HEADS, HEADS), 0);
    dropout_backward(b->device, b->stream, (DropoutBackward){out, out, both});
    dropout_backward(b->device, b->stream, (DropoutBackward){single_out, single_out, one});
    for (int64_t s = 0; s < SEQUENCE; s++)
        expect_near(b, "a row of the sample", tensor_rows(single_out, s, 1), tensor_rows(out, 2 * s + 1, 1),
                    0);
}

// ---- probabilities, in place ------------------------------------------------------------------------------

// Stored as they are computed again, but for their rounding; rows of weights that sum to one, causal.
static void stored_probabilities(Fixture *b) {
    AttentionShape shape = {BATCH, SEQUENCE, HEADS, 2, SIZE, 0, 0, 0, 0, 0};
    int64_t width = qkv_width(shape);
    Tensor qkv = normals(b, ROWS, width), dout = normals(b, ROWS, WIDTH), out[2], dqkv[2];
    for (int i = 0; i < 2; i++) out[i] = tensor(b, ROWS, WIDTH), dqkv[i] = tensor(b, ROWS, width);
    Tensor stored = tensor(b, BATCH * HEADS * SEQUENCE, SEQUENCE);
    Dropout dropout = dropout_of(0.2f, BATCH);
    attend(b, qkv, dout, out[0], (Tensor){0}, dqkv[0], shape, dropout);
    attend(b, qkv, dout, out[1], stored, dqkv[1], shape, dropout);
    double precision = precision_of(b->element);
    expect_near(b, "out", out[1], out[0], 16 * precision);
    expect_near(b, "dqkv", dqkv[1], dqkv[0], 16 * precision);
    double *p = doubles_of(b, stored), error = 0, above = 0;
    for (int64_t row = 0; row < stored.rows; row++) {
        double sum = 0;
        for (int64_t key = 0; key <= row % SEQUENCE; key++) sum += p[row * SEQUENCE + key];
        for (int64_t key = row % SEQUENCE + 1; key < SEQUENCE; key++)
            above = fmax(above, fabs(p[row * SEQUENCE + key]));
        error = fmax(error, fabs(sum - 1));
    }
    EXPECT(error < precision + 1e-6 && above == 0, "sums off by %g, %g above the diagonal", error, above);
    free(p);
}

static void dqkv_over_qkv(Fixture *b) {
    for (int64_t groups = 1; groups <= HEADS; groups *= 2)
        for (int stores = 0; stores < 2; stores++) {
            AttentionShape shape = {BATCH, SEQUENCE, HEADS, groups, SIZE, 0, 0, 0, 0, 0};
            int64_t width = qkv_width(shape);
            Tensor qkv = normals(b, ROWS, width), dqkv = tensor(b, ROWS, width), stored = {0};
            if (stores) stored = tensor(b, BATCH * HEADS * SEQUENCE, SEQUENCE);
            Tensor dout = normals(b, ROWS, WIDTH), out = tensor(b, ROWS, WIDTH);
            Dropout dropout = dropout_of(0.2f, BATCH);
            attend(b, qkv, dout, out, stored, dqkv, shape, dropout);
            attend(b, qkv, dout, out, stored, qkv, shape, dropout);
            expect_near(b, "dqkv in the place of qkv", qkv, dqkv, 0);
        }
}

// ---- rotary -----------------------------------------------------------------------------------------------

static const AttentionShape TURNED = {BATCH, SEQUENCE, HEADS, 2, SIZE, 0, 0, 0, 0, 0};
enum { TURNED_WIDTH = (HEADS + 2 * 2) * SIZE, COLUMNS = 6 };

// Columns from R on and all of the values stay; so does position 0.
static void rotary_leaves_the_rest(Fixture *b) {
    Tensor qkv = normals(b, ROWS, TURNED_WIDTH), x = copy_of(b, qkv);
    rotary(b->device, b->stream, (Rotary){angles(b, SEQUENCE, COLUMNS), x, TURNED, false});
    for (int64_t head = 0; head < HEADS + 2 * 2; head++) {
        bool is_value = head % 4 == 3; // of [q q k v]
        int64_t first = head * SIZE + (is_value ? 0 : COLUMNS), count = is_value ? SIZE : SIZE - COLUMNS;
        expect_near(b, "what does not turn", columns_of(b, x, first, count), columns_of(b, qkv, first, count),
                    0);
    }
    expect_near(b, "position 0", tensor_rows(x, 0, BATCH), tensor_rows(qkv, 0, BATCH), 0);
}

static void rotary_turns_back(Fixture *b) {
    Tensor qkv = normals(b, ROWS, TURNED_WIDTH), x = copy_of(b, qkv), table = angles(b, SEQUENCE, COLUMNS);
    rotary(b->device, b->stream, (Rotary){table, x, TURNED, false});
    rotary(b->device, b->stream, (Rotary){table, x, TURNED, true});
    expect_near(b, "there and back", x, qkv, 8 * precision_of(b->element));
}

// What rotations are for: scores depend on distances alone, so it is all the same where in the table a
// sequence of one repeated token begins.
static void rotary_knows_distances(Fixture *b) {
    AttentionShape shape = {1, SEQUENCE, 1, 1, SIZE, 0, 0, 0, 0, 0};
    Tensor token = normals(b, 1, 3 * SIZE), table = angles(b, 2 * SEQUENCE, SIZE), stats[2];
    for (int i = 0; i < 2; i++) {
        Tensor qkv = tensor(b, SEQUENCE, 3 * SIZE), out = tensor(b, SEQUENCE, SIZE);
        for (int64_t s = 0; s < SEQUENCE; s++)
            device_copy(b->device, b->stream, tensor_rows(qkv, s, 1), token);
        Tensor part = tensor_rows(table, i * SEQUENCE, SEQUENCE);
        rotary(b->device, b->stream, (Rotary){part, qkv, shape, false});
        stats[i] = tensor_f32(b, 1, SEQUENCE);
        attention_forward(b->device, b->stream,
                          (AttentionForward){.qkv = qkv,
                                             .out = out,
                                             .stats = stats[i],
                                             .probabilities = {0},
                                             .shape = shape,
                                             .dropout = {.probability = 0}});
    }
    expect_near(b, "stats", stats[1], stats[0], 1e-5);
}

// ---- goldens ----------------------------------------------------------------------------------------------

// Two tokens, D = 1: scores 6, then 10 and 10, so the second query halves between v = 1 and v = 5.
static void golden_attention(Fixture *b) {
    Tensor qkv = from_floats(b, 2, 3, (const float[]){3, 2, 1, 5, 2, 5}), stored = tensor(b, 2, 2);
    Tensor out = tensor(b, 2, 1), stats = tensor_f32(b, 1, 2);
    AttentionForward args = {.qkv = qkv,
                             .out = out,
                             .stats = stats,
                             .probabilities = stored,
                             .shape = {1, 2, 1, 1, 1, 0, 0, 0, 0, 0},
                             .dropout = {.probability = 0}};
    attention_forward(b->device, b->stream, args);
    expect_near(b, "out", out, from_floats(b, 2, 1, (const float[]){1, 3}), 1e-6);
    expect_near(b, "stats", stats, from_floats(b, 1, 2, (const float[]){6, 10.693147181f}), 2e-6);
    expect_near(b, "probabilities", stored, from_floats(b, 2, 2, (const float[]){1, 0, 0.5f, 0.5f}), 1e-6);
}

// Two query heads, one key, one value of D = 3, R = 2: by a quarter turn (x1, x2) become (-x2, x1).
static void golden_rotary(Fixture *b) {
    Tensor table = from_floats_of(b, F32, 1, 2, (const float[]){0, 1});
    Tensor qkv = from_floats(b, 1, 12, (const float[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    Tensor turned = from_floats(b, 1, 12, (const float[]){-2, 1, 3, -5, 4, 6, -8, 7, 9, 10, 11, 12});
    rotary(b->device, b->stream, (Rotary){table, qkv, {1, 1, 2, 1, 3, 0, 0, 0, 0, 0}, false});
    expect_near(b, "a quarter turn", qkv, turned, 0);
}

static void parts(void) { in_every_type(attention_parts); }
static void groups(void) { on_every_device(groups_are_repeated_keys); }
static void batch(void) { in_every_type(mask_does_not_depend_on_the_batch); }
static void stored(void) { in_every_type(stored_probabilities); }
static void in_place(void) { in_every_type(dqkv_over_qkv); }
static void rotary_rest(void) { in_every_type(rotary_leaves_the_rest); }
static void rotary_back(void) { in_every_type(rotary_turns_back); }
static void rotary_distances(void) { on_every_device(rotary_knows_distances); }
static void two_tokens(void) { on_every_device(golden_attention); }
static void quarter_turn(void) { in_every_type(golden_rotary); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"parts", parts},
                                      {"groups", groups},
                                      {"batch", batch},
                                      {"stored", stored},
                                      {"in_place", in_place},
                                      {"rotary_rest", rotary_rest},
                                      {"rotary_back", rotary_back},
                                      {"rotary_distances", rotary_distances},
                                      {"golden_attention", two_tokens},
                                      {"golden_rotary", quarter_turn},
                                      {0}},
                       argc, argv);
}
