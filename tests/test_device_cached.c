// Laws of attention over a cache, on every device that computes and in every element type: it is the
// attention of training, however its positions are cut into calls, and it touches no other row of the cache.
#include "device_fixture.h"

enum { BATCH = 2, SEQUENCE = 37, HEADS = 4, SIZE = 12, WIDTH = HEADS * SIZE };

// A sequence, and what is computed of it.
typedef struct {
    int64_t groups;
    Tensor qkv, out, keys, values; // all SEQUENCE positions
} Sequence;

static Sequence sequence_of(Fixture *b, int64_t groups) {
    int64_t rows = BATCH * SEQUENCE;
    return (Sequence){.groups = groups,
                      .qkv = normals(b, rows, (HEADS + 2 * groups) * SIZE),
                      .out = tensor(b, rows, WIDTH),
                      .keys = zeros_of(b, b->element, rows, groups * SIZE),
                      .values = zeros_of(b, b->element, rows, groups * SIZE)};
}

// The next `count` positions.
static void feed(Fixture *b, Sequence *s, int64_t position, int64_t count) {
    int64_t row = position * BATCH, rows = count * BATCH;
    AttentionShape shape = {BATCH, count, HEADS, s->groups, SIZE, 0, 0, 0, 0, 0};
    attention_cached(b->device, b->stream,
                     (AttentionCached){.qkv = tensor_rows(s->qkv, row, rows),
                                       .out = tensor_rows(s->out, row, rows),
                                       .keys = tensor_rows(s->keys, 0, row + rows),
                                       .values = tensor_rows(s->values, 0, row + rows),
                                       .shape = shape,
                                       .position = position});
}

static void equals_attention_of(Fixture *b, int64_t groups) {
    Sequence s = sequence_of(b, groups);
    feed(b, &s, 0, SEQUENCE);
    Tensor out = tensor(b, BATCH * SEQUENCE, WIDTH), stats = tensor_f32(b, BATCH * HEADS, SEQUENCE);
    AttentionShape shape = {BATCH, SEQUENCE, HEADS, groups, SIZE, 0, 0, 0, 0, 0};
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = s.qkv, .out = out, .stats = stats, .shape = shape});
    expect_near(b, "out", s.out, out, 4 * precision_of(b->element));
}

static void equals_attention(Fixture *b) {
    equals_attention_of(b, HEADS);
    equals_attention_of(b, 2);
    equals_attention_of(b, 1);
}

static void cuts_do_not_show_of(Fixture *b, int64_t groups) {
    static const int64_t CUTS[][SEQUENCE] = {{1, 1, 1, 5, 29}, {36, 1}, {16, 16, 5}};
    Sequence whole = sequence_of(b, groups);
    feed(b, &whole, 0, SEQUENCE);
    for (int i = 0; i < 4; i++) {
        Sequence pieces = sequence_of(b, groups);
        pieces.qkv = whole.qkv;
        for (int64_t position = 0, k = 0, count; position < SEQUENCE; position += count, k++)
            feed(b, &pieces, position, count = i < 3 ? CUTS[i][k] : 1);
        expect_near(b, "out", pieces.out, whole.out, 0);
        expect_near(b, "keys", pieces.keys, whole.keys, 0);
        expect_near(b, "values", pieces.values, whole.values, 0);
    }
}

static void cuts_do_not_show(Fixture *b) {
    cuts_do_not_show_of(b, HEADS);
    cuts_do_not_show_of(b, 2);
}

// What lies behind the position in the cache is not seen: feeding again after other tokens gives the same.
static void later_rows_are_forgotten(Fixture *b) {
    Sequence s = sequence_of(b, 2), other = sequence_of(b, 2);
    feed(b, &s, 0, SEQUENCE);
    Tensor once = copy_of(b, s.out), wrong = s.qkv;
    s.qkv = other.qkv;
    feed(b, &s, 20, SEQUENCE - 20);
    s.qkv = wrong;
    feed(b, &s, 20, SEQUENCE - 20);
    expect_near(b, "out", s.out, once, 0);
}

static void attention_twice(void) { in_every_type(equals_attention); }
static void any_cut(void) { in_every_type(cuts_do_not_show); }
static void going_back(void) { in_every_type(later_rows_are_forgotten); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"equals_attention", attention_twice},
                                      {"cuts_do_not_show", any_cut},
                                      {"later_rows_are_forgotten", going_back},
                                      {0}},
                       argc, argv);
}
