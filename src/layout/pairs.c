// Times a forward and a backward that run together, layer by layer: the first layer of the one beside the last layer of
// the other. The two take turns (parallel/pipeline.c): who has sent rows lets the other compute, and waits only when
// its turn comes again. Of a pair of layers the order is
//   rows travel    combine' |        dispatch  dispatch' |         combine
//   computes       before   | rows'  rows' weights  rows | before'  before' weights
// with ' for the backward; its weight gradients run right after what it sends, so that they hide it, too.
// Source: Megatron-LM, --overlap-moe-expert-parallel-comm with --delay-wgrad-compute
#include "layout/pairs.h"

typedef struct {
    double computed_us, travelled_us; // when each stream is free
} Streams;

static double later(double a_us, double b_us) { return a_us > b_us ? a_us : b_us; }

// A compute that needs rows that arrive at `ready_us`.
static void compute(Streams *s, double ready_us, double us) {
    s->computed_us = later(s->computed_us, ready_us) + us;
}

// Sends what has just been computed. Returns when it arrives.
static double send(Streams *s, double us) {
    s->travelled_us = later(s->travelled_us, s->computed_us) + us;
    return s->travelled_us;
}

static double outside_us(const StageExchange *stage, const LayerExchange *one, double us) {
    return us - stage->layers * (one->before_us + one->rows_us + 2 * one->exchange_us);
}

double pair_us(const StageExchange *forward, double forward_us, const StageExchange *backward,
               double backward_us) {
    const LayerExchange *f = &forward->forward, *b = &backward->backward;
    int layers = forward->layers > backward->layers ? forward->layers : backward->layers;
    double forward_arrives_us = 0, backward_arrives_us = 0, weights_us = 0;
    Streams s = {0};
    for (int i = 0; i < layers; i++) {
        bool goes = i < forward->layers, returns = i < backward->layers;
        if (returns) backward_arrives_us = send(&s, b->exchange_us);
        compute(&s, 0, weights_us); // of the layer before
        weights_us = 0;
        if (goes) compute(&s, forward_arrives_us, f->before_us);
        if (goes) forward_arrives_us = send(&s, f->exchange_us);
        if (returns) compute(&s, backward_arrives_us, b->rows_us - b->rows_weight_us);
        if (returns) backward_arrives_us = send(&s, b->exchange_us);
        if (returns) compute(&s, 0, b->rows_weight_us);
        if (goes) compute(&s, forward_arrives_us, f->rows_us);
        if (goes) forward_arrives_us = send(&s, f->exchange_us);
        if (returns) compute(&s, backward_arrives_us, b->before_us - b->before_weight_us);
        if (returns) weights_us = b->before_weight_us;
    }
    compute(&s, 0, weights_us);
    compute(&s, forward_arrives_us, 0);
    return s.computed_us + outside_us(forward, f, forward_us) + outside_us(backward, b, backward_us);
}
