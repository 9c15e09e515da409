// Laws of which keys queries see, on every device that computes: documents in one sample are the documents alone, a
// window is what its first keys say, a cache sees what training sees, and a sink joins the denominator alone.
#include "device_fixture.h"
#include <math.h>

enum { BATCH = 2, SEQUENCE = 150, HEADS = 2, GROUPS = 1, SIZE = 8, WIDTH = HEADS * SIZE };
enum { QKV_WIDTH = (HEADS + 2 * GROUPS) * SIZE, ROWS = BATCH * SEQUENCE };

// One forward and backward, and all that it leaves.
typedef struct {
    AttentionShape shape;
    AttentionRules rules;
    Tensor first_key, sinks;
    Tensor qkv, dout;
    Tensor out, stats, dqkv, dsinks;
} Attention;

static Attention attention_of(Fixture *b, int64_t batch, int64_t sequence, AttentionRules rules) {
    int64_t rows = batch * sequence;
    return (Attention){.shape = {batch, sequence, HEADS, GROUPS, SIZE, 0, 0, 0, 0, 0},
                       .rules = rules,
                       .qkv = normals(b, rows, QKV_WIDTH),
                       .dout = normals(b, rows, WIDTH),
                       .out = tensor(b, rows, WIDTH),
                       .stats = tensor_f32(b, batch * HEADS, sequence),
                       .dqkv = tensor(b, rows, QKV_WIDTH)};
}

static void attend(Fixture *b, const Attention *a) {
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = a->qkv,
                                         .first_key = a->first_key,
                                         .sinks = a->sinks,
                                         .out = a->out,
                                         .stats = a->stats,
                                         .shape = a->shape,
                                         .rules = a->rules});
    attention_backward(b->device, b->stream,
                       (AttentionBackward){.dout = a->dout,
                                           .qkv = a->qkv,
                                           .out = a->out,
                                           .stats = a->stats,
                                           .first_key = a->first_key,
                                           .sinks = a->sinks,
                                           .dqkv = a->dqkv,
                                           .dsinks = a->dsinks,
                                           .shape = a->shape,
                                           .rules = a->rules});
}

// How far sums in another order are apart.
static double rounding(const Fixture *b) { return b->element == F32 ? 2e-6 : 8 * precision_of(b->element); }

// ---- documents --------------------------------------------------------------------------------------------

// Rows `first` to `first` + `count` of sample `sample`.
static Tensor rows_of_sample(Fixture *b, Tensor x, int64_t sample, int64_t first, int64_t count) {
    Tensor y = tensor_of(b, x.dtype, count, x.cols);
    for (int64_t s = 0; s < count; s++)
        device_copy(b->device, b->stream, tensor_rows(y, s, 1),
                    tensor_rows(x, (first + s) * BATCH + sample, 1));
    return y;
}

static void expect_document(Fixture *b, const Attention *packed, int64_t sample, int64_t first, int64_t count,
                            double off) {
    Attention alone = attention_of(b, 1, count, packed->rules);
    alone.sinks = packed->sinks;
    alone.qkv = rows_of_sample(b, packed->qkv, sample, first, count);
    alone.dout = rows_of_sample(b, packed->dout, sample, first, count);
    if (alone.sinks.data) alone.dsinks = zeros_of(b, F32, 1, HEADS);
    attend(b, &alone);
    expect_near(b, "out of a document", rows_of_sample(b, packed->out, sample, first, count), alone.out, off);
    expect_near(b, "dqkv of a document", rows_of_sample(b, packed->dqkv, sample, first, count), alone.dqkv,
                off);
    for (int64_t h = 0; h < HEADS; h++)
        expect_near(b, "stats of a document",
                    tensor_part(packed->stats, (sample * HEADS + h) * SEQUENCE + first, count),
                    tensor_part(alone.stats, h * count, count), off);
}

static void pack(Fixture *b, double off) {
    static const int64_t LENGTHS[BATCH][8] = {{1, 1, 5, 63, 80}, {70, 64, 16}};
    static const AttentionRules RULES[] = {{.window = 0}, {.window = 20, .cap = 2}};
    for (int r = 0; r < 2; r++) {
        Attention packed = attention_of(b, BATCH, SEQUENCE, RULES[r]);
        int32_t first[ROWS];
        for (int64_t sample = 0; sample < BATCH; sample++)
            for (int64_t k = 0, s = 0, start = 0; s < SEQUENCE; s++) {
                if (s == start + LENGTHS[sample][k]) start = s, k++;
                first[s * BATCH + sample] = (int32_t)start;
            }
        packed.first_key = tensor_of(b, I32, 1, ROWS);
        device_upload(b->device, b->stream, packed.first_key, first);
        if (r) packed.sinks = normals(b, 1, HEADS), packed.dsinks = zeros_of(b, F32, 1, HEADS);
        attend(b, &packed);
        for (int64_t sample = 0; sample < BATCH; sample++)
            for (int64_t k = 0, start = 0; start < SEQUENCE; start += LENGTHS[sample][k++])
                expect_document(b, &packed, sample, start, LENGTHS[sample][k], off);
    }
}

static void packed_is_alone(Fixture *b) { pack(b, rounding(b)); }

// The reference adds along what is seen alone.
static void packed_has_the_bits_of_alone(void) {
    const DType types[] = {F32, BF16, F16};
    for (int i = 0; i < 3; i++) {
        Fixture b = fixture_open_as("reference", 1, types[i], types[i]);
        pack(&b, 0);
        fixture_close(&b);
    }
}

// ---- windows ----------------------------------------------------------------------------------------------

static void window_is_first_keys(Fixture *b) {
    static const int64_t WINDOWS[] = {1, 31, 64, 65, 149, 1000};
    for (size_t i = 0; i < sizeof WINDOWS / sizeof *WINDOWS; i++) {
        Attention rule = attention_of(b, BATCH, SEQUENCE, (AttentionRules){.window = WINDOWS[i]}),
                  keys = rule;
        int32_t first[ROWS];
        for (int64_t row = 0; row < ROWS; row++)
            first[row] = (int32_t)(row / BATCH < WINDOWS[i] ? 0 : row / BATCH - WINDOWS[i] + 1);
        keys.rules.window = 0, keys.first_key = tensor_of(b, I32, 1, ROWS);
        keys.out = tensor(b, ROWS, WIDTH), keys.dqkv = tensor(b, ROWS, QKV_WIDTH);
        device_upload(b->device, b->stream, keys.first_key, first);
        attend(b, &rule);
        attend(b, &keys);
        // A window that is no shorter than the sequence is none, and none may have other bits than first keys of 0.
        double off = WINDOWS[i] < SEQUENCE ? 0 : rounding(b);
        expect_near(b, "out of a window", rule.out, keys.out, off);
        expect_near(b, "dqkv of a window", rule.dqkv, keys.dqkv, off);
    }
}

static void cache_sees_a_window(Fixture *b) {
    AttentionRules rules = {.window = 21, .scale = 0.5f, .cap = 3};
    Attention whole = attention_of(b, BATCH, SEQUENCE, rules);
    whole.sinks = normals(b, 1, HEADS), whole.dsinks = zeros_of(b, F32, 1, HEADS);
    attend(b, &whole);
    Tensor keys = zeros_of(b, b->element, ROWS, GROUPS * SIZE),
           values = zeros_of(b, b->element, ROWS, GROUPS * SIZE);
    Tensor out = tensor(b, ROWS, WIDTH);
    for (int64_t position = 0, count; position < SEQUENCE; position += count) {
        count = position == 0 ? 40 : position < 100 ? 30 : 10;
        int64_t row = position * BATCH, rows = count * BATCH;
        AttentionShape shape = whole.shape;
        shape.sequence = count;
        attention_cached(b->device, b->stream,
                         (AttentionCached){.qkv = tensor_rows(whole.qkv, row, rows),
                                           .sinks = whole.sinks,
                                           .out = tensor_rows(out, row, rows),
                                           .keys = tensor_rows(keys, 0, row + rows),
                                           .values = tensor_rows(values, 0, row + rows),
                                           .shape = shape,
                                           .rules = rules,
                                           .position = position});
    }
    expect_near(b, "out over a cache", out, whole.out, 8 * precision_of(b->element));
}

// ---- goldens, computed in fp64 ------------------------------------------------------------------------------

// S 8, D 2, one head: q = sin(1 + 2i + j), k = cos(2 + 2i + j), v = (2i + j) / 8, dout = (1, -1/2), sink 0.3.
static void golden_sink(Fixture *b) {
    float qkv[8 * 6], gradient[16];
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 2; j++) {
            qkv[i * 6 + j] = sinf((float)(1 + 2 * i + j)), qkv[i * 6 + 2 + j] = cosf((float)(2 + 2 * i + j));
            qkv[i * 6 + 4 + j] = (float)(2 * i + j) / 8, gradient[2 * i + j] = j ? -0.5f : 1;
        }
    Attention a = {.shape = {1, 8, 1, 1, 2, 0, 0, 0, 0, 0},
                   .sinks = from_floats(b, 1, 1, (const float[]){0.3f}),
                   .qkv = from_floats(b, 8, 6, qkv),
                   .dout = from_floats(b, 8, 2, gradient),
                   .out = tensor(b, 8, 2),
                   .stats = tensor_f32(b, 1, 8),
                   .dqkv = tensor(b, 8, 6),
                   .dsinks = zeros_of(b, F32, 1, 1)};
    attend(b, &a);
    expect_near(b, "stats of row 0", tensor_part(a.stats, 0, 1),
                from_floats(b, 1, 1, (const float[]){0.566974f}), 1e-6);
    expect_near(b, "stats of row 7", tensor_part(a.stats, 7, 1),
                from_floats(b, 1, 1, (const float[]){2.235083f}), 1e-6);
    expect_near(b, "out of row 7", tensor_rows(a.out, 7, 1),
                from_floats(b, 1, 2, (const float[]){0.743874f, 0.850822f}), 2e-6);
    expect_near(b, "dsinks", a.dsinks, from_floats(b, 1, 1, (const float[]){-0.1591308f}), 1e-6);
}

// Two tokens, D = 1, products 60 and 60 against a key of 0: with a cap of 50 scores are 41.6827304 and 0.
static void golden_cap(Fixture *b) {
    Tensor qkv = from_floats(b, 2, 3, (const float[]){6, 10, 1, 6, 0, 3}), out = tensor(b, 2, 1);
    Tensor stats = tensor_f32(b, 1, 2);
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = qkv,
                                         .out = out,
                                         .stats = stats,
                                         .shape = {1, 2, 1, 1, 1, 0, 0, 0, 0, 0},
                                         .rules = {.cap = 50}});
    expect_near(b, "stats", stats, from_floats(b, 1, 2, (const float[]){41.6827304f, 41.6827304f}), 8e-6);
}

static void documents(void) { in_every_type(packed_is_alone); }
static void windows(void) { on_every_device(window_is_first_keys); }
static void cache(void) { in_every_type(cache_sees_a_window); }
static void sink(void) { on_every_device(golden_sink); }
static void cap(void) { on_every_device(golden_cap); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"packed is alone", documents},
                                      {"packed has the bits of alone", packed_has_the_bits_of_alone},
                                      {"a window is its first keys", windows},
                                      {"a cache sees a window", cache},
                                      {"golden sink", sink},
                                      {"golden cap", cap},
                                      {0}},
                       argc, argv);
}
