// Pairs of a forward and a backward: how much of the rows' travel they hide, and that the replay is the walk there, too.
#include "base/rng.h"
#include "harness.h"
#include "layout/kinds.h"
#include <limits.h>
#include <math.h>
#include <string.h>

enum { MAX_STAGES = 64 };

static Simulation replay_of(const ScheduleSpec *spec, ScheduleCosts costs) {
    Schedule order;
    Simulation out;
    EXPECT_OK(schedule_order(&order, spec));
    schedule_replay(&order, costs, &out);
    schedule_destroy(&order);
    return out;
}

static double total_us(const ScheduleSpec *spec, ScheduleCosts costs) {
    Simulation out = replay_of(spec, costs);
    double us = out.total_us;
    simulation_destroy(&out, NULL);
    return us;
}

// ---- the published table ----------------------------------------------------------------------------------

// Every part of a layer takes 1: attention and experts of a forward, and each half of a backward of both; rows travel
// for `x`, four times.
static StageExchange unit_layers(int layers, double x) {
    return (StageExchange){
        .layers = layers,
        .forward = {.before_us = 1, .rows_us = 1, .exchange_us = x},
        .backward = {
            .before_us = 2, .rows_us = 2, .exchange_us = x, .before_weight_us = 1, .rows_weight_us = 1}};
}

// The time of one pair in a step of one rank, which begins with a forward alone and ends with a backward alone.
static double unit_pair_us(int layers, double x, bool together) {
    enum { MICROBATCHES = 8 };
    double forward_us = layers * (2 + 2 * x), backward_us = layers * (4 + 2 * x);
    StageExchange exchange = unit_layers(layers, x);
    ScheduleSpec spec = {.kind = "paired", .ranks = 1, .chunks = 1, .microbatches = MICROBATCHES};
    ScheduleCosts costs = {
        .forward_us = forward_us, .backward_us = backward_us, .stage_exchanges = together ? &exchange : NULL};
    return (total_us(&spec, costs) - forward_us - backward_us) / (MICROBATCHES - 1);
}

// Until a message takes longer than the compute beside it all is hidden; then what the first compute is too short for;
// at last the messages alone count.
static void travel_is_hidden_as_published(void) {
    static const int layers[] = {1, 4, 16};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        int l = layers[i];
        const struct {
            double x, us;
        } rows[] = {{0, 6.0 * l},   {0.3, 6.0 * l},       {0.6, 6.0 * l},
                    {0.9, 6.0 * l}, {1.2, 6.0 * l + 0.2}, {2.0, 8.0 * l}};
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            double us = unit_pair_us(l, rows[r].x, true), apart = unit_pair_us(l, rows[r].x, false);
            EXPECT(fabs(us - rows[r].us) < 1e-9, "%d layers, x %g: %.12g, not %.12g", l, rows[r].x, us,
                   rows[r].us);
            EXPECT(fabs(apart - l * (6 + 4 * rows[r].x)) < 1e-9, "%d layers, x %g apart: %.12g", l, rows[r].x,
                   apart);
        }
    }
}

// ---- any costs --------------------------------------------------------------------------------------------

typedef struct {
    double forward_us[MAX_STAGES], backward_us[MAX_STAGES], hop_us[MAX_STAGES];
    StageExchange exchanges[MAX_STAGES];
} Times;

static double draw(uint64_t seed, int stage, int i) {
    return 0.25 + rng_word(rng_key(seed, "times of pairs", 0), (uint64_t)stage, (uint64_t)i) / 4294967296.0;
}

static LayerExchange drawn_layer(uint64_t seed, int stage, int i) {
    LayerExchange layer = {draw(seed, stage, i), draw(seed, stage, i + 1), draw(seed, stage, i + 2), 0, 0};
    layer.before_weight_us = layer.before_us / 3, layer.rows_weight_us = layer.rows_us / 2;
    return layer;
}

static double layer_us(LayerExchange one) { return one.before_us + one.rows_us + 2 * one.exchange_us; }

// Stages of 0 to 3 layers with experts, and of work without.
static ScheduleCosts uneven(Times *t, uint64_t seed) {
    for (int s = 0; s < MAX_STAGES; s++) {
        t->exchanges[s] =
            (StageExchange){(int)(seed + (uint64_t)s) % 4, drawn_layer(seed, s, 0), drawn_layer(seed, s, 3)};
        t->forward_us[s] = draw(seed, s, 6) + t->exchanges[s].layers * layer_us(t->exchanges[s].forward);
        t->backward_us[s] = draw(seed, s, 7) + t->exchanges[s].layers * layer_us(t->exchanges[s].backward);
        t->hop_us[s] = draw(seed, s, 8) / 4;
    }
    return (ScheduleCosts){.stage_forward_us = t->forward_us,
                           .stage_backward_us = t->backward_us,
                           .weight_fraction = 0.4,
                           .edge_hop_us = t->hop_us,
                           .stage_exchanges = t->exchanges};
}

static void expect_the_walk(const ScheduleSpec *spec, ScheduleCosts costs) {
    Schedule whole;
    Simulation walked, replayed = replay_of(spec, costs);
    EXPECT_OK(schedule_create(&whole, spec));
    whole.num_sending = INT_MAX;
    schedule_simulate(&whole, costs, &walked);
    EXPECT(replayed.total_us == walked.total_us && replayed.ends_us == walked.ends_us &&
               !memcmp(replayed.busy_us, walked.busy_us, (size_t)spec->ranks * sizeof(double)),
           "p %d v %d m %d: %.17g, walked %.17g", spec->ranks, spec->chunks, spec->microbatches,
           replayed.total_us, walked.total_us);
    simulation_destroy(&walked, &whole);
    simulation_destroy(&replayed, NULL);
    schedule_destroy(&whole);
}

// Together a rank is busy for less than apart, and for no less than it computes.
static void expect_bounds(const ScheduleSpec *spec, const Times *t, ScheduleCosts costs) {
    Simulation together = replay_of(spec, costs);
    costs.stage_exchanges = NULL;
    Simulation apart = replay_of(spec, costs);
    for (int rank = 0; rank < spec->ranks; rank++) {
        double travel_us = 0;
        for (int chunk = 0; chunk < spec->chunks; chunk++) {
            const StageExchange *e = &t->exchanges[chunk * spec->ranks + rank];
            travel_us +=
                2 * e->layers * (e->forward.exchange_us + e->backward.exchange_us) * spec->microbatches;
        }
        bool pairs = travel_us > 0 && spec->microbatches > 2 * spec->ranks * spec->chunks;
        EXPECT(together.busy_us[rank] <= apart.busy_us[rank] * (1 + 1e-12) &&
                   together.busy_us[rank] >= apart.busy_us[rank] - travel_us - 1e-9,
               "p %d v %d m %d rank %d: %g of %g, of which %g is travel", spec->ranks, spec->chunks,
               spec->microbatches, rank, together.busy_us[rank], apart.busy_us[rank], travel_us);
        EXPECT(!pairs || together.busy_us[rank] < apart.busy_us[rank],
               "p %d v %d m %d rank %d: nothing is hidden", spec->ranks, spec->chunks, spec->microbatches,
               rank);
    }
    simulation_destroy(&apart, NULL);
    simulation_destroy(&together, NULL);
}

static void any_times_are_simulated(void) {
    for (int i = 0; i < 7 * 3 * 24; i++) {
        int p = 1 + i % 7, v = 1 + i / 7 % 3, m = 1 + i / 21;
        ScheduleSpec spec = {.kind = "paired", .ranks = p, .chunks = v, .microbatches = m};
        char why[256];
        Times times;
        if (schedule_kind_refuse(schedule_kind("paired"), &spec, why, sizeof why)) continue;
        ScheduleCosts costs = uneven(&times, (uint64_t)i);
        expect_the_walk(&spec, costs);
        expect_bounds(&spec, &times, costs);
    }
}

// A pair of stages without such layers takes what both take.
static void without_experts_nothing_changes(void) {
    static const StageExchange none[MAX_STAGES];
    for (int p = 1; p <= 4; p++) {
        ScheduleSpec spec = {.kind = "paired", .ranks = p, .chunks = 2, .microbatches = 2 * p};
        ScheduleCosts costs = {.forward_us = 2, .backward_us = 4};
        double us = total_us(&spec, costs);
        costs.stage_exchanges = none;
        EXPECT(total_us(&spec, costs) == us, "p %d", p);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"travel is hidden as published", travel_is_hidden_as_published},
                                      {"any times are simulated", any_times_are_simulated},
                                      {"without experts nothing changes", without_experts_nothing_changes},
                                      {0}},
                       argc, argv);
}
