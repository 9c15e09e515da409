// What a plan knows of sequences that several ranks share: the trainer's work in each way, its rules, and shards that are
// cut within instances.
#include "plan_fixtures.h"
#include <string.h>

static const ContextWay ways[] = {CONTEXT_ALL_GATHER, CONTEXT_ALL_TO_ALL, CONTEXT_RING};

static ParallelConfig shared_by(int c, ContextWay way) {
    ParallelConfig config = candidate_of(2, 1, 2, 1);
    config.grid.size[AXIS_CP] = c, config.context_way = way;
    config.attention = ATTENTION_FUSED, config.recompute = RECOMPUTE_NOTHING, config.dtype = BF16;
    return config;
}

static double attention_flops(const WorkList *list) {
    double flops = 0;
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        bool attends = item->op == OP_ATTENTION_FORWARD || item->op == OP_ATTENTION_BACKWARD;
        if (item->kind == WORK_OP && attends) flops += item->flops;
    }
    return flops;
}

// Bytes that a rank sends to the others of its sequence.
static double sent_bytes(const WorkList *list, int ranks) {
    double bytes = 0;
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        if (item->kind != WORK_COLLECTIVE || item->role != ROLE_CONTEXT) continue;
        bytes += item->op == COMM_SEND ? item->bytes : item->bytes * (ranks - 1) / ranks;
    }
    return bytes;
}

// Of keys and values of the whole sequence 1 - 1/c go to each rank; heads go away with the queries, and come back.
static void ranks_share_the_work(void) {
    ModelShape model = llama_of(2, 1024, 32);
    ParallelConfig alone = shared_by(1, CONTEXT_RING);
    Work whole, share;
    EXPECT_OK(work_record(&whole, &model, &alone));
    double keys = 2.0 * 2 * model.sequence * (model.groups / 2) * model.head_size;
    double heads = 2.0 * model.sequence * (2 * 32 + 2 * model.groups) / 2 * model.head_size;
    for (int i = 0; i < 3; i++)
        for (int c = 2; c <= 4; c *= 2) {
            ParallelConfig config = shared_by(c, ways[i]);
            EXPECT_OK(work_record(&share, &model, &config));
            const WorkList *forward = &share.forward[PART_LAYER], *backward = &share.backward[PART_LAYER];
            double expected = attention_flops(&whole.forward[PART_LAYER]) / c,
                   flops = attention_flops(forward);
            EXPECT(expected > 0 && near(flops, expected, 1e-9), "way %d of %d: %g FLOPs, not %g", i, c, flops,
                   expected);
            EXPECT(near(attention_flops(backward), 2.5 * expected, 1e-9), "way %d of %d: backward", i, c);
            double all = ways[i] == CONTEXT_ALL_TO_ALL ? heads / c : keys, part = (c - 1.0) / c;
            EXPECT(near(sent_bytes(forward, c), all * part, 1e-9), "way %d of %d: %g bytes sent, not %g", i,
                   c, sent_bytes(forward, c), all * part);
            EXPECT(sent_bytes(backward, c) >= 1.5 * all * part, "way %d of %d: %g bytes sent back", i, c,
                   sent_bytes(backward, c));
            EXPECT(share.stage_message_bytes * c == whole.stage_message_bytes, "between stages");
            work_free(&share);
        }
    work_free(&whole);
}

// All of them do what one rank does; how they do it has its own time.
static void ways_have_their_times(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = llama_of(2, 1024, 32);
    PlanCache *cache;
    Prediction whole, out[3];
    EXPECT_OK(plan_cache_open(&cache));
    ParallelConfig alone = shared_by(1, CONTEXT_RING);
    EXPECT_OK(predict(cache, &costs, &model, &alone, &whole));
    for (int i = 0; i < 3; i++) {
        ParallelConfig config = shared_by(4, ways[i]);
        EXPECT_OK(predict(cache, &costs, &model, &config, &out[i]));
        EXPECT(near(out[i].hardware_flops, whole.hardware_flops, 1e-9), "way %d: %g FLOPs, not %g", i,
               out[i].hardware_flops, whole.hardware_flops);
        EXPECT(out[i].parts.tensor > whole.parts.tensor / 4, "way %d: messages cost nothing", i);
        for (int j = 0; j < i; j++)
            EXPECT(out[i].step_s != out[j].step_s, "ways %d and %d take %g s", i, j, out[i].step_s);
    }
    plan_cache_close(cache);
}

static void expect_refused(const ModelShape *model, const ParallelConfig *config, const char *words) {
    Machine machine = plain_machine();
    char why[240] = "";
    bool refused = parallel_config_refuse(model, &machine, config, why, sizeof why);
    EXPECT(*words ? refused && strstr(why, words) : !refused, "'%s', not '%s'", why, words);
}

static void rules_say_what_would_work(void) {
    ModelShape model = llama_of(2, 1024, 32), odd = model;
    ParallelConfig c = shared_by(8, CONTEXT_ALL_TO_ALL);
    expect_refused(&model, &c, "use c = 4, or --cp-comm-type all_gather");
    c.context_way = CONTEXT_ALL_GATHER;
    expect_refused(&model, &c, "");
    odd.sequence = 2046;
    expect_refused(&odd, &c, "2 c = 16 does not divide the sequence, 2046: use c = 3");
    c.context_way = CONTEXT_RING;
    expect_refused(&model, &c, "");
    c.attention = ATTENTION_UNFUSED;
    expect_refused(&model, &c, "use --attention-backend flash");
    c = candidate_of(1, 2, 4, 2);
    c.zero_stage = 2, c.reduce_every = true;
    expect_refused(&model, &c, "");
    c.muon.iterations = 5;
    expect_refused(&model, &c, "Muon");
    c.muon.iterations = 0, c.schedule = "zb-h1";
    expect_refused(&model, &c, "the schedule zb-h1 adds to those of all layers in turn: use 1f1b");
    c.reduce_every = false;
    expect_refused(&model, &c, "");
    c.grid.instances = 3;
    expect_refused(&model, &c, "use 2");
}

// ---- instances ----------------------------------------------------------------------------------

// Instances are neighbours, and the same shards lie as far apart as one has ranks.
static void shards_lie_where_the_ranks_are(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ParallelConfig whole = candidate_of(1, 1, 8, 1), apart = candidate_of(8, 1, 2, 1),
                   c = candidate_of(1, 1, 16, 1);
    c.grid.instances = 2;
    double inside = price_collective(&costs, &c, COMM_ALL_GATHER, ROLE_REPLICAS_SHARDS, 1e9);
    EXPECT(inside == price_collective(&costs, &whole, COMM_ALL_GATHER, ROLE_REPLICAS, 1e9), "%g s", inside);
    double across = price_collective(&costs, &c, COMM_ALL_REDUCE, ROLE_REPLICAS_COPIES, 1e9);
    EXPECT(across == price_collective(&costs, &apart, COMM_ALL_REDUCE, ROLE_REPLICAS, 1e9), "%g s", across);
    EXPECT(across > inside, "across nodes %g s, inside %g", across, inside);
}

// Each instance has all of the optimizer, steps it, and sums its shards of gradients with the others.
static void instances_have_all_shards(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = gpt_of(4, 1024, 16);
    PlanCache *cache;
    Prediction one, two;
    ParallelConfig c = candidate_of(1, 1, 16, 2);
    c.zero_stage = 1;
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict(cache, &costs, &model, &c, &one));
    c.grid.instances = 2;
    EXPECT_OK(predict(cache, &costs, &model, &c, &two));
    EXPECT(near(two.memory.optimizer, 2 * one.memory.optimizer, 1e-12), "%g bytes, of one instance %g",
           two.memory.optimizer, one.memory.optimizer);
    double parameters = one.memory.parameters / 2;
    double expected =
        price_collective(&costs, &c, COMM_REDUCE_SCATTER, ROLE_REPLICAS_SHARDS, 2 * parameters) +
        price_collective(&costs, &c, COMM_ALL_GATHER, ROLE_REPLICAS_SHARDS, 2 * parameters) +
        price_collective(&costs, &c, COMM_ALL_REDUCE, ROLE_REPLICAS_COPIES, 2 * parameters / 8);
    EXPECT(near(two.parts.data, expected, 1e-9), "%g s, not %g", two.parts.data, expected);
    EXPECT(two.parts.optimizer > one.parts.optimizer, "%g s to step, of one instance %g", two.parts.optimizer,
           one.parts.optimizer);
    plan_cache_close(cache);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"ranks_share_the_work", ranks_share_the_work},
                                      {"ways_have_their_times", ways_have_their_times},
                                      {"rules_say_what_would_work", rules_say_what_would_work},
                                      {"shards_lie_where_the_ranks_are", shards_lie_where_the_ranks_are},
                                      {"instances_have_all_shards", instances_have_all_shards},
                                      {0}},
                       argc, argv);
}
