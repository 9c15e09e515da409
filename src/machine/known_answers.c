// Computes small known answers with every family of kernels.
#include "machine/known_answers.h"
#include "base/half.h"
#include "base/hash.h"
#include "device/ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 48,
    COLS = 300,
    M = 80,
    N = 112,
    K = 520,
    TOKENS = 32,
    NUMBERS = 64 << 10,
    WORDS = 8192,
    HASHED = 64 << 10
};

static const char *const names[] = {
#define X(name, text, exact) text,
    ANSWER_FAMILIES(X)
#undef X
};

static const bool exact[] = {
#define X(name, text, is_exact) is_exact,
    ANSWER_FAMILIES(X)
#undef X
};

const char *answer_name(AnswerFamily family) { return names[family]; }
bool answer_is_exact(AnswerFamily family) { return exact[family]; }

// ---- tensors ------------------------------------------------------------------------------------

// Whole numbers from -3 to 3: their products and sums have no rounding in fp32.
static float whole(uint64_t which, int64_t i) {
    return (float)((int)(rng_word(rng_key(17, "known answers", which), 0, (uint64_t)i) % 7) - 3);
}

// Numbers between -2 and 2 that every type of elements holds exactly: multiples of 1/64.
static float fraction(uint64_t which, int64_t i) {
    return (float)((int)(rng_word(rng_key(18, "known answers", which), 0, (uint64_t)i) % 255) - 127) / 64;
}

static Tensor upload(AnswerBench *b, int64_t rows, int64_t cols, DType type, const char *name) {
    Tensor x = tensor_take(&b->arena, name, rows, cols, type);
    uint16_t *halves = (uint16_t *)(void *)b->numbers;
    CHECK(rows * cols <= NUMBERS, "%lld numbers", (long long)(rows * cols));
    for (int64_t i = 0; i < rows * cols && type == BF16; i++) halves[i] = bf16_of_f32(b->numbers[i]);
    device_upload(b->device, device_stream(b->device), x, b->numbers);
    return x;
}

static Tensor tensor_of(AnswerBench *b, float (*number)(uint64_t, int64_t), uint64_t which, int64_t rows,
                        int64_t cols, DType type) {
    for (int64_t i = 0; i < rows * cols; i++) b->numbers[i] = number(which, i);
    return upload(b, rows, cols, type, "known numbers");
}

static Tensor zeros(AnswerBench *b, int64_t rows, int64_t cols, DType type) {
    Tensor x = tensor_take(&b->arena, "known result", rows, cols, type);
    device_zero(b->device, device_stream(b->device), x);
    return x;
}

static void *part(KnownAnswer *answer, DType type, int64_t count) {
    unsigned char *at = answer->data + answer->bytes;
    answer->types[answer->num_parts] = type, answer->counts[answer->num_parts++] = count;
    answer->bytes += (size_t)count * dtype_bytes(type);
    CHECK(answer->bytes <= ANSWER_BYTES && answer->num_parts <= ANSWER_PARTS, "%zu bytes", answer->bytes);
    return at;
}

static void keep(AnswerBench *b, KnownAnswer *answer, Tensor x) {
    device_download(b->device, device_stream(b->device), part(answer, x.dtype, tensor_count(x)), x);
}

// ---- exact families -----------------------------------------------------------------------------

static void products(AnswerBench *b, DType type, KnownAnswer *answer) {
    Tensor x = tensor_of(b, whole, 1, M, K, type), y = tensor_of(b, whole, 2, K, N, type);
    Tensor z = tensor_of(b, whole, 3, N, K, type), d = zeros(b, M, N, F32);
    matmul(b->device, device_stream(b->device), (Matmul){.a = x, .b = y, .d = d});
    keep(b, answer, d);
    matmul(b->device, device_stream(b->device),
           (Matmul){.a = x, .b = z, .d = d, .transpose_b = true, .accumulate = true});
    keep(b, answer, d);
}

static void exact_products(KnownAnswer *answer) {
    float *first = part(answer, F32, M * N), *both = part(answer, F32, M * N);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            float one = 0, other = 0;
            for (int64_t k = 0; k < K; k++) {
                one += whole(1, i * K + k) * whole(2, k * N + j);
                other += whole(1, i * K + k) * whole(3, j * K + k);
            }
            first[i * N + j] = one, both[i * N + j] = one + other;
        }
}

static void products_f32(AnswerBench *b, KnownAnswer *answer) { products(b, F32, answer); }
static void products_bf16(AnswerBench *b, KnownAnswer *answer) { products(b, BF16, answer); }

static void sums(AnswerBench *b, KnownAnswer *answer) {
    Stream *stream = device_stream(b->device);
    Tensor x = tensor_of(b, whole, 4, ROWS, COLS, F32), columns = zeros(b, 1, COLS, F32);
    Tensor squares = zeros(b, 1, 3, F64), max = zeros(b, 1, 1, F32);
    column_sum(b->device, stream, (ColumnSum){x, columns});
    sum_squares(b->device, stream, (SumSquares){.x = x, .sum = squares, .exponent = 2});
    abs_max(b->device, stream, (AbsMax){x, max});
    keep(b, answer, columns), keep(b, answer, squares), keep(b, answer, max);
}

// The squares are multiples of 1/16: all of each is in the first sum.
static void exact_sums(KnownAnswer *answer) {
    float *columns = part(answer, F32, COLS);
    double *squares = part(answer, F64, 3);
    float *max = part(answer, F32, 1);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        float x = whole(4, i);
        columns[i % COLS] += x;
        squares[0] += (double)(x * x) / 16;
        *max = fmaxf(*max, fabsf(x));
    }
}

static void checksums(AnswerBench *b, KnownAnswer *answer) {
    unsigned char *bytes = (unsigned char *)b->numbers;
    for (size_t i = 0; i < HASHED; i++) bytes[i] = (unsigned char)(i * i * 31 + i / 7);
    uint64_t *out = part(answer, F64, 3);
    Hash hash = hash_of(bytes, HASHED);
    out[0] = hash64_of(bytes, HASHED), out[1] = hash.high, out[2] = hash.low;
}

static void random_words(AnswerBench *b, KnownAnswer *answer) {
    uint32_t *words = (uint32_t *)(void *)b->numbers;
    for (uint64_t i = 0; i < WORDS; i++) words[i] = rng_word(rng_key(19, "known answers", 0), i / 64, i);
    *(uint64_t *)part(answer, F64, 1) = hash64_of(words, WORDS * sizeof *words);
}

// XXH3 and Philox have one result everywhere.
static void exact_table(KnownAnswer *answer, const uint64_t *table, int64_t count) {
    memcpy(part(answer, F64, count), table, (size_t)count * sizeof *table);
}

void answer_exact(AnswerFamily family, KnownAnswer *answer) {
    static const uint64_t hashes[] = {UINT64_C(0xba12490061613481), UINT64_C(0xbc16cb4371e19b07),
                                      UINT64_C(0xba12490061613481)};
    static const uint64_t words[] = {UINT64_C(0x831b532ccc7dae1f)};
    *answer = (KnownAnswer){0};
    switch (family) {
    case ANSWER_products_f32:
    case ANSWER_products_bf16: exact_products(answer); return;
    case ANSWER_sums: exact_sums(answer); return;
    case ANSWER_checksums: exact_table(answer, hashes, 3); return;
    case ANSWER_random_words: exact_table(answer, words, 1); return;
    default: CHECK(false, "%s has no exact answer", answer_name(family));
    }
}

// ---- families that round ------------------------------------------------------------------------

static void attention(AnswerBench *b, KnownAnswer *answer) {
    AttentionShape s = {2, 48, 4, 2, 16, 0, 0, 0, 0, 0};
    int64_t rows = s.sequence * s.batch, width = (s.heads + 2 * s.groups) * s.head_size;
    Stream *stream = device_stream(b->device);
    for (int t = 0; t < 2; t++) {
        DType type = t ? BF16 : F32;
        Tensor qkv = tensor_of(b, fraction, 5, rows, width, type), dqkv = zeros(b, rows, width, type);
        Tensor out = zeros(b, rows, s.heads * s.head_size, type),
               stats = zeros(b, s.batch * s.heads, s.sequence, F32);
        Tensor dout = tensor_of(b, fraction, 6, rows, s.heads * s.head_size, type);
        attention_forward(b->device, stream,
                          (AttentionForward){.qkv = qkv, .out = out, .stats = stats, .shape = s});
        attention_backward(
            b->device, stream,
            (AttentionBackward){
                .dout = dout, .qkv = qkv, .out = out, .stats = stats, .dqkv = dqkv, .shape = s});
        if (t == 0) keep(b, answer, stats);
        if (t == 1) keep(b, answer, out), keep(b, answer, dqkv);
    }
}

static void norms(AnswerBench *b, KnownAnswer *answer) {
    Stream *stream = device_stream(b->device);
    Tensor x = tensor_of(b, fraction, 7, ROWS, COLS, F32), dy = tensor_of(b, fraction, 8, ROWS, COLS, F32);
    Tensor gamma = tensor_of(b, fraction, 9, 1, COLS, F32), beta = tensor_of(b, fraction, 10, 1, COLS, F32);
    Tensor mean = zeros(b, 1, ROWS, F32), rstd = zeros(b, 1, ROWS, F32), y = zeros(b, ROWS, COLS, F32);
    Tensor dx = zeros(b, ROWS, COLS, F32), dgamma = zeros(b, 1, COLS, F32), dbeta = zeros(b, 1, COLS, F32),
           none = {0};
    norm_forward(b->device, stream, (NormForward){x, gamma, beta, y, mean, rstd, 1e-5f, 0});
    keep(b, answer, y);
    norm_backward_weight(b->device, stream, (NormBackwardWeight){dy, x, mean, rstd, dgamma, dbeta});
    keep(b, answer, dgamma), keep(b, answer, dbeta);
    norm_backward_input(b->device, stream, (NormBackwardInput){dy, x, gamma, mean, rstd, none, dx, 0});
    keep(b, answer, tensor_rows(dx, 0, ROWS / 2));
}

static void activations(AnswerBench *b, KnownAnswer *answer) {
    Stream *stream = device_stream(b->device);
    enum { SOME = ROWS / 4 };
    Tensor x = tensor_of(b, fraction, 11, SOME, 2 * COLS, F32),
           dy = tensor_of(b, fraction, 12, SOME, 2 * COLS, F32);
    Tensor none = {0}, y = zeros(b, SOME, 2 * COLS, F32), dx = zeros(b, SOME, 2 * COLS, F32),
           gated = zeros(b, SOME, COLS, F32);
    bias_gelu_forward(b->device, stream, (BiasGeluForward){x, none, y, false});
    bias_gelu_backward(b->device, stream, (BiasGeluBackward){dy, x, none, dx, false});
    keep(b, answer, y), keep(b, answer, dx);
    swiglu_forward(b->device, stream, (SwigluForward){x, none, gated, GATE_SILU, 0, 0});
    keep(b, answer, gated);
}

static void loss(AnswerBench *b, KnownAnswer *answer) {
    Stream *stream = device_stream(b->device);
    Tensor logits = tensor_of(b, fraction, 13, TOKENS, COLS, F32), none = {0}, max = zeros(b, 1, TOKENS, F32);
    Tensor sum = zeros(b, 1, TOKENS, F32), target = zeros(b, 1, TOKENS, F32), one = zeros(b, 1, TOKENS, F32);
    Tensor dlogits = zeros(b, TOKENS, COLS, F32),
           labels = tensor_take(&b->arena, "known labels", 1, TOKENS, I32);
    int32_t *label = (int32_t *)(void *)b->numbers;
    for (int i = 0; i < TOKENS; i++) label[i] = i * 37 % COLS;
    device_upload(b->device, stream, labels, label);
    loss_max(b->device, stream, (LossMax){logits, max, 0, COLS});
    loss_sum(b->device, stream, (LossSum){logits, labels, max, sum, target, 0, COLS});
    loss_finish(b->device, stream,
                (LossFinish){labels, max, sum, target, none, logits, dlogits, one, 0, COLS, 0.5f});
    keep(b, answer, sum), keep(b, answer, one), keep(b, answer, dlogits);
}

static float positive(uint64_t which, int64_t i) { return 0.5f + fabsf(fraction(which, i)); }

static void optimizer(AnswerBench *b, KnownAnswer *answer) {
    enum { COUNT = 6007 };
    Tensor g = tensor_of(b, fraction, 14, 1, COUNT, F32), p = tensor_of(b, fraction, 15, 1, COUNT, F32);
    Tensor m = tensor_of(b, fraction, 16, 1, COUNT, F32), v = tensor_of(b, positive, 17, 1, COUNT, F32);
    Tensor value = zeros(b, 1, COUNT, BF16);
    adamw(b->device, device_stream(b->device),
          (AdamW){g, p, m, v, value, 0.01, 0.9, 0.999, 1e-8, 0.1, 0.19, 0.002, 0.5, 0, NULL});
    keep(b, answer, p), keep(b, answer, m), keep(b, answer, v), keep(b, answer, value);
}

// ---- all of them --------------------------------------------------------------------------------

void answer_compute(AnswerBench *bench, AnswerFamily family, KnownAnswer *answer) {
    static void (*const run[])(AnswerBench *, KnownAnswer *) = {
#define X(name, text, is_exact) name,
        ANSWER_FAMILIES(X)
#undef X
    };
    ArenaMark mark = arena_mark(&bench->arena);
    answer->bytes = 0, answer->num_parts = 0;
    run[family](bench, answer);
    arena_release(&bench->arena, mark);
}

static float number_at(const KnownAnswer *answer, int number, const unsigned char *data, int64_t i) {
    if (answer->types[number] == BF16) return bf16_to_f32(((const uint16_t *)(const void *)data)[i]);
    return ((const float *)(const void *)data)[i];
}

// Each part to a share of its largest value; a number that is not finite is far.
bool answer_is_near(const KnownAnswer *answer, const KnownAnswer *reference) {
    const unsigned char *got = answer->data, *want = reference->data;
    for (int n = 0; n < answer->num_parts; n++) {
        double largest = 0, worst = 0, share = answer->types[n] == BF16 ? 0.02 : 1e-4;
        for (int64_t i = 0; i < answer->counts[n]; i++) {
            double x = (double)number_at(answer, n, got, i), y = (double)number_at(answer, n, want, i);
            largest = fmax(largest, fabs(y));
            worst = fabs(x - y) <= worst ? worst : fabs(x - y); // a NaN stays
        }
        if (!(worst <= share * largest)) return false;
        got += (size_t)answer->counts[n] * dtype_bytes(answer->types[n]);
        want += (size_t)answer->counts[n] * dtype_bytes(answer->types[n]);
    }
    return true;
}

static Status open_bench(AnswerBench *b, DeviceOptions options, size_t bytes) {
    b->numbers = calloc(NUMBERS, sizeof *b->numbers);
    if (!b->numbers) return fail(ERR_OS, "no memory for known answers");
    TRY(device_open(&b->device, options));
    if (device_computes(b->device))
        return arena_open(&b->arena, "known answers", device_memory(b->device), bytes);
    arena_open_measuring(&b->arena, "known answers");
    return OK;
}

Status answer_bench_open(AnswerBench *bench, const char *kind) {
    AnswerBench measured = {0};
    KnownAnswer *answer = malloc(sizeof *answer);
    CHECK(answer, "no memory for an answer");
    *bench = (AnswerBench){0};
    Status status =
        open_bench(&measured, (DeviceOptions){.kind = "null", .stands_for = kind, .threads = 1}, 0);
    for (AnswerFamily f = 0; f < NUM_ANSWERS && status == OK; f++) answer_compute(&measured, f, answer);
    free(answer);
    if (status == OK)
        status = open_bench(bench,
                            (DeviceOptions){.kind = kind,
                                            .threads = 1,
                                            .workspace_bytes = device_workspace_peak(measured.device)},
                            measured.arena.peak);
    answer_bench_close(&measured);
    if (status != OK) answer_bench_close(bench);
    return status;
}

void answer_bench_close(AnswerBench *b) {
    arena_close(&b->arena);
    if (b->device) device_close(b->device);
    free(b->numbers);
    *b = (AnswerBench){0};
}
