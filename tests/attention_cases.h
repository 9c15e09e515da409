// Cases of attention for device_cases.h: windows, documents, sinks, caps, stored probabilities, in place.
#pragma once
#include "device_fixture.h"

// A drawn vector, or an absent one.
static Tensor optional(Fixture *b, bool present, int64_t rows, int64_t cols) {
    return present ? normals(b, rows, cols) : (Tensor){0};
}

enum {
    STORED = 1,
    IN_PLACE = 2,
    WINDOW = 4,
    DOCUMENTS = 8,
    SINKS = 16,
    OFF_BY_ONE = 32,
    CAP = 64,
    SCALE = 128
};

static AttentionRules rules_of(int64_t flags) {
    return (AttentionRules){.window = flags & WINDOW ? 13 : 0,
                            .scale = flags & SCALE ? 0.6f : 0,
                            .cap = flags & CAP ? 1.5f : 0,
                            .off_by_one = flags & OFF_BY_ONE};
}

// The first keys of samples with documents of 1, 2, 3 and more tokens, other ones in each sample.
static Tensor documents_of(Fixture *b, int64_t samples, int64_t sequence) {
    int32_t *first = calloc((size_t)(samples * sequence), sizeof *first);
    CHECK(first, "no memory");
    for (int64_t sample = 0; sample < samples; sample++)
        for (int64_t s = 1, length = 1 + sample, start = 0; s < sequence; s++) {
            if (s - start == length) start = s, length = 1 + (5 * length + sample) % 97;
            first[s * samples + sample] = (int32_t)start;
        }
    Tensor x = tensor_of(b, I32, 1, samples * sequence);
    device_upload(b->device, b->stream, x, first);
    free(first);
    return x;
}

static void run_attention(Fixture *b, const int64_t *n, float p) {
    AttentionShape shape = {n[0], n[1], n[2], n[3], n[4], n[5], 0, 0, 0, 0};
    int64_t rows = n[0] * n[1], width = n[2] * n[4], qkv_width = (n[2] + 2 * n[3]) * n[4];
    Tensor qkv = normals(b, rows, qkv_width), out = output(b, "out", tensor(b, rows, width));
    Tensor stats = output(b, "stats", tensor_f32(b, n[0] * n[2], n[1])), stored = {0};
    if (n[6] & STORED) stored = output(b, "probabilities", tensor(b, n[0] * n[2] * n[1], n[1]));
    Dropout dropout = dropout_of(p, n[0]);
    Tensor first_key = n[6] & DOCUMENTS ? documents_of(b, n[0], n[1]) : (Tensor){0};
    Tensor sinks = optional(b, n[6] & SINKS, 1, n[2]), dsinks = {0};
    if (n[6] & SINKS) dsinks = output(b, "dsinks", normals_f32(b, 1, n[2]));
    attention_forward(b->device, b->stream,
                      (AttentionForward){.qkv = qkv,
                                         .first_key = first_key,
                                         .sinks = sinks,
                                         .rules = rules_of(n[6]),
                                         .out = out,
                                         .stats = stats,
                                         .probabilities = stored,
                                         .shape = shape,
                                         .dropout = dropout});
    Tensor dout = normals(b, rows, width), dqkv = n[6] & IN_PLACE ? qkv : tensor(b, rows, qkv_width);
    attention_backward(b->device, b->stream,
                       (AttentionBackward){.dout = dout,
                                           .qkv = qkv,
                                           .out = out,
                                           .stats = stats,
                                           .probabilities = stored,
                                           .first_key = first_key,
                                           .sinks = sinks,
                                           .dqkv = output(b, "dqkv", dqkv),
                                           .dsinks = dsinks,
                                           .rules = rules_of(n[6]),
                                           .shape = shape,
                                           .dropout = dropout});
}

static void run_cached(Fixture *b, const int64_t *n, float p) {
    (void)p;
    AttentionShape shape = {n[0], n[1], n[2], n[3], n[4], 0, 0, 0, 0, 0};
    int64_t rows = n[0] * n[1], so_far = n[0] * (n[5] + n[1]), size = n[4];
    Tensor sinks = optional(b, n[6] & SINKS, 1, n[2]);
    Tensor qkv = normals(b, rows, (n[2] + 2 * n[3]) * size);
    Tensor out = output(b, "out", tensor(b, rows, n[2] * size));
    Tensor keys = output(b, "keys", normals(b, so_far, n[3] * size));
    Tensor values = output(b, "values", normals(b, so_far, n[3] * size));
    attention_cached(b->device, b->stream,
                     (AttentionCached){.qkv = qkv,
                                       .sinks = sinks,
                                       .rules = rules_of(n[6]),
                                       .out = out,
                                       .keys = keys,
                                       .values = values,
                                       .shape = shape,
                                       .position = n[5]});
}
