// Attention of some positions of a sequence, to keys and values of all, or to those of one part after the other, is that
// of the whole sequence: its outputs, their statistics, and the sums of all gradients.
#include "device_fixture.h"
#include <math.h>
#include <string.h>

enum { BATCH = 2, SEQUENCE = 100, HEADS = 4, GROUPS = 2, SIZE = 12, WIDTH = HEADS * SIZE };
enum { ROWS = BATCH * SEQUENCE, QKV_WIDTH = (HEADS + 2 * GROUPS) * SIZE, KV_WIDTH = 2 * GROUPS * SIZE };

typedef struct {
    AttentionRules rules;
    bool documents, sinks, stored;
    float dropout;
} Way;

// The first takes no path that the others do not take: the short form leaves it out.
static const Way ways[] = {{.dropout = 0},
                           {.dropout = 0.2f, .stored = true},
                           {.rules = {.window = 37, .cap = 2}, .sinks = true, .dropout = 0.1f},
                           {.documents = true, .rules = {.scale = 0.4f, .off_by_one = true}}};

// One call of the whole, and what its pieces share.
typedef struct {
    const Way *way;
    Tensor qkv, kv, dout, first_key, sinks;
    Tensor out, stats, dqkv, dsinks;
    Tensor of_pieces, dq, dkv, dsinks_of_pieces; // out, and the gradients
} Whole;

static AttentionShape shape_of(int64_t first, int64_t count) {
    bool all = count == SEQUENCE;
    return (AttentionShape){.batch = BATCH,
                            .sequence = count,
                            .heads = HEADS,
                            .groups = GROUPS,
                            .head_size = SIZE,
                            .first_head = 2,
                            .keys = all ? 0 : SEQUENCE,
                            .first_position = first};
}

static Tensor documents(Fixture *b) {
    int32_t first[ROWS];
    for (int i = 0; i < ROWS; i++)
        first[i] = i / BATCH < 31 + i % BATCH ? 0 : i / BATCH < 70 ? 31 + i % BATCH : 70;
    Tensor x = tensor_of(b, I32, 1, ROWS);
    device_upload(b->device, b->stream, x, first);
    return x;
}

static Dropout dropout_of_way(const Way *way) {
    return (Dropout){
        .key = rng_key(3, "test", 0), .probability = way->dropout, .first_sample = 5, .samples = BATCH};
}

static void attend(Fixture *b, const Whole *w, int64_t first, int64_t count, Tensor kv, Tensor out,
                   Tensor stats, Tensor dqkv, Tensor dkv, Tensor dsinks) {
    AttentionShape shape = shape_of(first, count);
    int64_t row = first * BATCH, rows = count * BATCH, keys = kv.data ? SEQUENCE : count;
    Tensor probabilities = {0}, qkv = tensor_rows(w->qkv, row, rows);
    Tensor first_key = w->first_key.data ? tensor_part(w->first_key, row, rows) : w->first_key;
    Dropout dropout = dropout_of_way(w->way);
    if (w->way->stored) probabilities = tensor(b, BATCH * HEADS * count, keys);
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = qkv,
                                         .kv = kv,
                                         .first_key = first_key,
                                         .sinks = w->sinks,
                                         .out = out,
                                         .stats = stats,
                                         .probabilities = probabilities,
                                         .shape = shape,
                                         .rules = w->way->rules,
                                         .dropout = dropout});
    attention_backward(b->device, b->stream,
                       (AttentionBackward){.dout = tensor_rows(w->dout, row, rows),
                                           .qkv = qkv,
                                           .kv = kv,
                                           .out = out,
                                           .stats = stats,
                                           .probabilities = probabilities,
                                           .first_key = first_key,
                                           .sinks = w->sinks,
                                           .dqkv = dqkv,
                                           .dkv = dkv,
                                           .dsinks = dsinks,
                                           .shape = shape,
                                           .rules = w->way->rules,
                                           .dropout = dropout});
}

static Whole whole_of(Fixture *b, const Way *way) {
    Whole w = {.way = way, .qkv = normals(b, ROWS, QKV_WIDTH), .dout = normals(b, ROWS, WIDTH)};
    w.out = tensor(b, ROWS, WIDTH), w.stats = tensor_f32(b, BATCH * HEADS, SEQUENCE);
    w.dqkv = tensor(b, ROWS, QKV_WIDTH), w.of_pieces = tensor(b, ROWS, WIDTH), w.dq = tensor(b, ROWS, WIDTH);
    w.kv = tensor(b, ROWS, KV_WIDTH), w.dkv = zeros_of(b, b->element, ROWS, KV_WIDTH);
    if (way->documents) w.first_key = documents(b);
    if (way->sinks) {
        w.sinks = normals(b, 1, HEADS);
        w.dsinks = zeros_of(b, F32, 1, HEADS), w.dsinks_of_pieces = zeros_of(b, F32, 1, HEADS);
    }
    ColumnPiece keys = {SOURCE_A, 1, 2 * SIZE, HEADS / GROUPS * SIZE, (HEADS / GROUPS + 2) * SIZE, 0};
    arrange_columns(b->device, b->stream,
                    (ArrangeColumns){.a = w.qkv, .y = w.kv, .blocks = GROUPS, .pieces = {keys}});
    attend(b, &w, 0, SEQUENCE, (Tensor){0}, w.out, w.stats, w.dqkv, (Tensor){0}, w.dsinks);
    return w;
}

// The part of a call that sees keys [from, end).
static void forward_to(Fixture *b, const Whole *w, AttentionForward call, int64_t from, int64_t end) {
    int64_t batch = call.shape.batch;
    call.kv = tensor_rows(w->kv, from * batch, (end - from) * batch);
    call.shape.first_kept = from, call.shape.kept = end - from;
    call.continues = from != call.shape.first_position;
    attention_forward(b->device, b->stream, call);
}

static void backward_to(Fixture *b, const Whole *w, AttentionForward call, int64_t from, int64_t end) {
    int64_t batch = call.shape.batch, row = call.shape.first_position * batch;
    bool own = from == call.shape.first_position;
    call.shape.first_kept = from, call.shape.kept = end - from;
    attention_backward(b->device, b->stream,
                       (AttentionBackward){.dout = tensor_rows(w->dout, row, call.qkv.rows),
                                           .qkv = call.qkv,
                                           .kv = tensor_rows(w->kv, from * batch, (end - from) * batch),
                                           .out = call.out,
                                           .stats = call.stats,
                                           .first_key = call.first_key,
                                           .sinks = call.sinks,
                                           .dqkv = tensor_rows(w->dq, row, call.qkv.rows),
                                           .dkv = tensor_rows(w->dkv, from * batch, (end - from) * batch),
                                           .dsinks = own ? w->dsinks_of_pieces : (Tensor){0},
                                           .adds = !own,
                                           .shape = call.shape,
                                           .rules = call.rules,
                                           .dropout = call.dropout});
}

// Where a part of the keys is there at a time: first those of the queries, then each before them.
static void attend_in_parts(Fixture *b, const Whole *w, const int64_t *ends, int64_t first, int64_t end,
                            Tensor stats) {
    int64_t row = first * BATCH, rows = (end - first) * BATCH;
    AttentionForward call = {.qkv = tensor_rows(w->qkv, row, rows),
                             .first_key = w->first_key,
                             .sinks = w->sinks,
                             .out = tensor_rows(w->of_pieces, row, rows),
                             .stats = stats,
                             .shape = shape_of(first, end - first),
                             .rules = w->way->rules,
                             .dropout = dropout_of_way(w->way)};
    if (w->first_key.data) call.first_key = tensor_part(w->first_key, row, rows);
    forward_to(b, w, call, first, end);
    for (int64_t from = 0, k = 0; from < first; from = ends[k++]) forward_to(b, w, call, from, ends[k]);
    backward_to(b, w, call, first, end);
    for (int64_t from = 0, k = 0; from < first; from = ends[k++]) backward_to(b, w, call, from, ends[k]);
}

// `parts`: keys come in parts.
static void piece(Fixture *b, const Whole *w, const int64_t *ends, int64_t first, int64_t end, bool parts,
                  double off) {
    int64_t row = first * BATCH, count = end - first, rows = count * BATCH;
    Tensor stats = tensor_f32(b, BATCH * HEADS, count);
    if (parts)
        attend_in_parts(b, w, ends, first, end, stats);
    else
        attend(b, w, first, count, w->kv, tensor_rows(w->of_pieces, row, rows), stats,
               tensor_rows(w->dq, row, rows), w->dkv, w->dsinks_of_pieces);
    for (int64_t head = 0; head < BATCH * HEADS; head++)
        expect_near(b, "stats", tensor_rows(stats, head, 1),
                    tensor_part(w->stats, head * SEQUENCE + first, count), parts ? off : 0);
}

static void compare(Fixture *b, const int64_t *ends, bool parts, double off) {
    for (size_t i = harness_short() ? 1 : 0; i < sizeof ways / sizeof *ways; i++) {
        if (parts && ways[i].stored) continue;
        ArenaMark mark = arena_mark(&b->arena);
        Whole w = whole_of(b, &ways[i]);
        for (int64_t first = 0, k = 0; first < SEQUENCE; first = ends[k++])
            piece(b, &w, ends, first, ends[k], parts, off);
        expect_near(b, "out", w.of_pieces, w.out, parts ? off : 0);
        Tensor dqkv = tensor(b, ROWS, QKV_WIDTH);
        ColumnPiece queries = {SOURCE_A, 1, HEADS / GROUPS * SIZE, 0, HEADS / GROUPS * SIZE, 0};
        ColumnPiece keys = {SOURCE_B, 1, 2 * SIZE, 0, 2 * SIZE, 0};
        arrange_columns(
            b->device, b->stream,
            (ArrangeColumns){.a = w.dq, .b = w.dkv, .y = dqkv, .blocks = GROUPS, .pieces = {queries, keys}});
        expect_near(b, "dqkv", dqkv, w.dqkv, off);
        if (w.sinks.data) expect_near(b, "dsinks", w.dsinks_of_pieces, w.dsinks, off);
        arena_release(&b->arena, mark);
    }
}

// ---- goldens, computed in fp64 ------------------------------------------------------------------------------

// S 8, D 2, one head: q = sin(1 + 2i + j), k = cos(2 + 2i + j), v = (2i + j) / 8, dout = (1, -1/2).
enum { GOLDEN_S = 8, GOLDEN_D = 2, PART = 2 };

static Whole golden_whole(Fixture *b) {
    float qkv[GOLDEN_S * 6], kv[GOLDEN_S * 4], gradient[GOLDEN_S * GOLDEN_D];
    for (int i = 0; i < GOLDEN_S; i++)
        for (int j = 0; j < GOLDEN_D; j++) {
            qkv[i * 6 + j] = sinf((float)(1 + 2 * i + j));
            kv[i * 4 + j] = qkv[i * 6 + 2 + j] = cosf((float)(2 + 2 * i + j));
            kv[i * 4 + 2 + j] = qkv[i * 6 + 4 + j] = (float)(2 * i + j) / 8;
            gradient[i * GOLDEN_D + j] = j ? -0.5f : 1;
        }
    return (Whole){.qkv = from_floats(b, GOLDEN_S, 6, qkv),
                   .kv = from_floats(b, GOLDEN_S, 4, kv),
                   .dout = from_floats(b, GOLDEN_S, GOLDEN_D, gradient),
                   .of_pieces = tensor(b, GOLDEN_S, GOLDEN_D),
                   .stats = tensor_f32(b, GOLDEN_S / PART, PART),
                   .dq = tensor(b, GOLDEN_S, GOLDEN_D),
                   .dkv = zeros_of(b, F32, GOLDEN_S, 4)};
}

// Of all keys; NAN: it is not known.
static const float golden_stats[GOLDEN_S] = {-.884147f, .889695f,  1.262601f, 1.493736f,
                                             1.642854f, 2.018072f, 2.082846f, 2.079117f};
static const float golden_out[GOLDEN_S * GOLDEN_D] = {0,        .125f,    .082660f, .207660f, NAN, NAN,
                                                      NAN,      NAN,      NAN,      NAN,      NAN, NAN,
                                                      .808543f, .933543f, .869430f, .994430f};

// What two queries have of some keys.
typedef struct {
    float stats[PART], out[PART * GOLDEN_D];
} GoldenResult;

// Of the last two: after the first turn, and of the keys of the second turn alone.
static const GoldenResult golden_own = {{.721697f, 1.290060f}, {.567893f, .692893f, .889292f, 1.014292f}};
static const GoldenResult golden_other = {{1.786640f, 1.473480f}, {.891507f, 1.016507f, .852897f, .977897f}};

typedef struct {
    int64_t from, end; // of keys
    const GoldenResult *result;
} GoldenPart;

// On a ring of two ranks the first has positions 0, 1, 6 and 7. A rank attends to its own keys, then to those of the other.
static const struct {
    int64_t first; // of the queries
    GoldenPart parts[3];
} golden_ring[] = {{0, {{0, 2, NULL}}},
                   {6, {{6, 8, NULL}, {0, 2, &golden_own}, {2, 6, NULL}}},
                   {2, {{2, 4, NULL}, {0, 2, NULL}}},
                   {4, {{4, 6, NULL}, {2, 4, NULL}, {0, 2, NULL}}}};
enum { GOLDEN_QUERIES = sizeof golden_ring / sizeof *golden_ring };

static void expect_golden(Fixture *b, const char *what, Tensor got, const float *want) {
    double *values = doubles_of(b, got);
    for (int64_t i = 0; i < tensor_count(got); i++)
        EXPECT(isnan(want[i]) || fabs(values[i] - (double)want[i]) <= 2e-6, "%s: number %d is %.7f, not %.7f",
               what, (int)i, values[i], (double)want[i]);
    free(values);
}

static AttentionForward golden_call(const Whole *w, int64_t first) {
    return (AttentionForward){.qkv = tensor_rows(w->qkv, first, PART),
                              .out = tensor_rows(w->of_pieces, first, PART),
                              .stats = tensor_rows(w->stats, first / PART, 1),
                              .shape = {.batch = 1,
                                        .sequence = PART,
                                        .heads = 1,
                                        .groups = 1,
                                        .head_size = GOLDEN_D,
                                        .keys = GOLDEN_S,
                                        .first_position = first}};
}

static void expect_result(Fixture *b, const AttentionForward *call, const GoldenResult *want) {
    expect_golden(b, "stats", call->stats, want->stats);
    expect_golden(b, "out", call->out, want->out);
}

static void golden_alone(Fixture *b, const Whole *w) {
    Tensor out = tensor(b, GOLDEN_S, GOLDEN_D), stats = tensor_f32(b, 1, GOLDEN_S);
    attention_forward(
        b->device, b->stream,
        (AttentionForward){
            .qkv = w->qkv,
            .out = out,
            .stats = stats,
            .shape = {.batch = 1, .sequence = GOLDEN_S, .heads = 1, .groups = 1, .head_size = GOLDEN_D}});
    expect_golden(b, "stats of one rank", stats, golden_stats);
    expect_golden(b, "out of one rank", out, golden_out);
}

// It goes on from a result of scores so low that nothing is left of it.
static void golden_second_turn(Fixture *b, const Whole *w) {
    AttentionForward call = golden_call(w, 6);
    call.stats = from_floats(b, 1, PART, (const float[]){-1e30f, -1e30f});
    call.out = zeros_of(b, F32, PART, GOLDEN_D);
    forward_to(b, w, call, 2, 6);
    expect_result(b, &call, &golden_other);
}

static void golden_turns(Fixture *b, const Whole *w, int64_t first, const GoldenPart *parts) {
    AttentionForward call = golden_call(w, first);
    for (int k = 0; k < 3 && parts[k].end; k++) {
        forward_to(b, w, call, parts[k].from, parts[k].end);
        if (parts[k].result) expect_result(b, &call, parts[k].result);
    }
    expect_golden(b, "stats of the ring", call.stats, golden_stats + first);
    expect_golden(b, "out of the ring", call.out, golden_out + first * GOLDEN_D);
    for (int k = 0; k < 3 && parts[k].end; k++) backward_to(b, w, call, parts[k].from, parts[k].end);
}

static void golden_law(Fixture *b) {
    Whole w = golden_whole(b);
    golden_alone(b, &w);
    golden_second_turn(b, &w);
    for (int i = 0; i < GOLDEN_QUERIES; i++) golden_turns(b, &w, golden_ring[i].first, golden_ring[i].parts);
    double *out = doubles_of(b, tensor_rows(w.of_pieces, 7, 1)), delta = out[0] - out[1] / 2;
    EXPECT(fabs(delta - .372215) <= 2e-6, "the sum of dout * out is %.7f", delta);
    free(out);
    expect_golden(b, "dq", tensor_rows(w.dq, 7, 1), (const float[]){.002079f, .007115f});
    expect_golden(b, "dkv", tensor_rows(w.dkv, 0, 1),
                  (const float[]){.013523f, .053464f, 2.909947f, -1.454973f});
}

// ---- laws -------------------------------------------------------------------------------------------------

static double tolerance_of(const Fixture *b) {
    return b->element == F32 ? 4e-6 : 16 * precision_of(b->element);
}

static void law(Fixture *b) {
    static const int64_t cuts[][6] = {{64, SEQUENCE}, {1, 30, 77, 99, SEQUENCE}};
    int count = b->element == F32 && !harness_short() ? 2 : 1;
    for (int i = 0; i < count; i++) compare(b, cuts[i], false, tolerance_of(b));
}

static void law_of_parts(Fixture *b) {
    static const int64_t cut[] = {30, 77, SEQUENCE};
    compare(b, cut, true, tolerance_of(b));
}

static void in_types(void (*check)(Fixture *b)) {
    on_every_device_as(check, F32);
    on_every_device_as(check, BF16);
    if (!harness_short()) on_every_device_as(check, F16);
}

static void pieces_are_the_whole(void) { in_types(law); }
static void parts_of_keys_are_all_keys(void) { in_types(law_of_parts); }
static void ring_has_the_golden_numbers(void) { on_every_device(golden_law); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"pieces are the whole", pieces_are_the_whole},
                                      {"parts of keys are all keys", parts_of_keys_are_all_keys},
                                      {"golden ring", ring_has_the_golden_numbers},
                                      {0}},
                       argc, argv);
}
