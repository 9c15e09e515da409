// The grid of ranks, the roles of ranks and the placement of layers: laws over many grids, then the groups that
// Megatron-LM makes for some of them.
#include "base/text.h"
#include "harness.h"
#include "layout/layers.h"
#include "layout/topology.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 64 };

#define MASK(axis) (1u << AXIS_##axis)

// Any sizes of all axes, from the digits of `number`; edp follows.
static Grid any_grid(int number) {
    Grid grid = GRID(1 + number % 4, 1 + number / 4 % 4, 1 + number / 16 % 2);
    grid.size[AXIS_CP] = 1 + number / 32 % 2;
    if (grid_along(grid, AXIS_TP) % 2 == 0 && number / 64 % 2) grid.size[AXIS_ETP] = 1;
    if (grid_along(grid, AXIS_DP) % 2 == 0 && number / 128 % 2) grid.size[AXIS_EP] = 2;
    return grid;
}

enum { NUM_GRIDS = 256 };

static void ranks_and_places_are_inverse(void) {
    for (int i = 0; i < NUM_GRIDS; i++) {
        Grid grid = any_grid(i);
        for (int rank = 0; rank < grid_size(grid); rank++) {
            Place place = grid_place(grid, rank);
            EXPECT(grid_rank(grid, place) == rank, "rank %d of grid %d", rank, i);
            for (Axis axis = 0; axis < NUM_AXES; axis++)
                EXPECT(place.at[axis] >= 0 && place.at[axis] < grid_along(grid, axis), "rank %d of grid %d",
                       rank, i);
        }
    }
}

// The groups of a mask partition the ranks: each holds its own rank, is the same seen from every member, and has
// the size that the masked axes say.
static void check_partition(Grid grid, View view, unsigned mask) {
    int size = 1;
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (mask & 1u << axis) size *= grid_along(grid, axis);
    for (int rank = 0; rank < grid_size(grid); rank++) {
        int group[MAX_RANKS], seen[MAX_RANKS], count = grid_group(grid, rank, view, mask, group);
        bool member = false;
        EXPECT(count == size, "mask %u rank %d: %d ranks", mask, rank, count);
        for (int i = 0; i < count; i++) {
            member |= group[i] == rank;
            EXPECT(i == 0 || group[i - 1] < group[i], "mask %u rank %d", mask, rank);
        }
        EXPECT(grid_group(grid, group[0], view, mask, seen) == count &&
                   !memcmp(group, seen, sizeof *seen * (size_t)count),
               "mask %u: ranks %d and %d see other groups", mask, rank, group[0]);
        EXPECT(member, "mask %u rank %d is not in its own group", mask, rank);
    }
}

static unsigned axes_of(View view) {
    unsigned axes = 0;
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (topology_axes[axis].views & view) axes |= 1u << axis;
    return axes;
}

static void groups_partition_the_ranks(void) {
    for (int i = 0; i < NUM_GRIDS; i += 17)
        for (unsigned mask = 0; mask < 1u << NUM_AXES; mask++) {
            if (!(mask & ~axes_of(VIEW_DENSE))) check_partition(any_grid(i), VIEW_DENSE, mask);
            if (!(mask & ~axes_of(VIEW_EXPERTS))) check_partition(any_grid(i), VIEW_EXPERTS, mask);
        }
}

// Sizes and numbers of a role are those of its list of ranks; two roles are the same where all lists are.
static void roles_agree_with_their_ranks(void) {
    int group[MAX_RANKS], other[MAX_RANKS];
    for (int i = 0; i < NUM_GRIDS; i += 7)
        for (Role role = 0; role < NUM_ROLES; role++) {
            Grid grid = any_grid(i);
            bool same = true;
            for (int rank = 0; rank < grid_size(grid) && role != ROLE_ENDS; rank++) {
                Topology t = topology_of(grid, rank);
                int count = topology_ranks(&t, role, group), like;
                EXPECT(count == topology_size(&t, role) && group[topology_rank(&t, role)] == rank,
                       "grid %d, role %s, rank %d", i, topology_roles[role].name, rank);
                like = topology_ranks(&t, topology_roles[role].like, other);
                same &= count == like && !memcmp(group, other, sizeof *group * (size_t)count);
            }
            EXPECT(same == grid_same(grid, role, topology_roles[role].like), "grid %d, role %s", i,
                   topology_roles[role].name);
        }
}

static void ends_are_the_first_and_the_last_stage(void) {
    int ranks[MAX_RANKS];
    for (int rank = 0; rank < 12; rank++) {
        Topology t = topology_of((Grid)GRID(2, 1, 6), rank);
        int tp = rank % 2, pp = rank / 2, count = topology_ranks(&t, ROLE_ENDS, ranks);
        EXPECT(count == topology_size(&t, ROLE_ENDS) && count == (pp == 0 || pp == 5 ? 2 : 0), "rank %d",
               rank);
        EXPECT(!count || (ranks[0] == tp && ranks[1] == 10 + tp), "rank %d", rank);
        EXPECT(topology_is_first(&t) == (pp == 0) && topology_is_last(&t) == (pp == 5), "rank %d", rank);
        t.ends[1] = 0;
        count = topology_ranks(&t, ROLE_ENDS, ranks);
        EXPECT(count == topology_size(&t, ROLE_ENDS) && count == (pp == 0), "rank %d", rank);
        EXPECT(!count || ranks[0] == rank, "rank %d", rank);
    }
}

// The groups in the order of their first rank, as "0,1 2,3".
static void print_groups(Grid grid, View view, unsigned mask, Text *out) {
    for (int rank = 0; rank < grid_size(grid); rank++) {
        int group[MAX_RANKS], count = grid_group(grid, rank, view, mask, group);
        if (group[0] != rank) continue;
        for (int i = 0; i < count; i++) text_add(out, "%s%d", i ? "," : out->size ? " " : "", group[i]);
    }
}

static void expect_groups(Grid grid, View view, unsigned mask, const char *expected) {
    Text groups = {0};
    print_groups(grid, view, mask, &groups);
    EXPECT(!strcmp(text_string(&groups), expected), "%s, not %s", text_string(&groups), expected);
    text_free(&groups);
}

// Source: the rank groups that Megatron-LM makes in its order tp-cp-ep-dp-pp.
static void groups_are_those_of_megatron(void) {
    static const struct {
        Grid grid;
        unsigned mask;
        const char *groups;
    } cases[] = {
        {GRID(2, 2, 2), MASK(TP), "0,1 2,3 4,5 6,7"},
        {GRID(2, 2, 2), MASK(DP), "0,2 1,3 4,6 5,7"},
        {GRID(2, 2, 2), MASK(PP), "0,4 1,5 2,6 3,7"},
        {GRID(2, 2, 2), MASK(TP) | MASK(PP), "0,1,4,5 2,3,6,7"},
        {GRID(2, 2, 4), MASK(TP), "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15"},
        {GRID(2, 2, 4), MASK(DP), "0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15"},
        {GRID(2, 2, 4), MASK(PP), "0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15"},
        {GRID(2, 2, 4), MASK(TP) | MASK(PP), "0,1,4,5,8,9,12,13 2,3,6,7,10,11,14,15"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_groups(cases[i].grid, VIEW_DENSE, cases[i].mask, cases[i].groups);
}

// 16 ranks, t 2, c 2, d 2, p 2: the same ranks seen by experts of several sizes.
static void groups_of_context_and_experts_are_those_of_megatron(void) {
    static const struct {
        int etp, ep;
        Role role;
        const char *groups;
    } cases[] = {
        {0, 1, ROLE_CONTEXT, "0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15"},
        {0, 1, ROLE_REPLICAS, "0,2,4,6 1,3,5,7 8,10,12,14 9,11,13,15"},
        {0, 1, ROLE_EXPERT_REPLICAS, "0,2,4,6 1,3,5,7 8,10,12,14 9,11,13,15"},
        {1, 8, ROLE_EXPERT, "0,1,2,3,4,5,6,7 8,9,10,11,12,13,14,15"},
        {1, 8, ROLE_EXPERT_REPLICAS, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"},
        {1, 4, ROLE_EXPERT, "0,1,2,3 4,5,6,7 8,9,10,11 12,13,14,15"},
        {1, 4, ROLE_EXPERT_REPLICAS, "0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15"},
        {2, 2, ROLE_EXPERT, "0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15"},
        {2, 2, ROLE_EXPERT_REPLICAS, "0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15"},
        {2, 2, ROLE_EXPERT_TENSOR, "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15"},
        {2, 4, ROLE_EXPERT, "0,2,4,6 1,3,5,7 8,10,12,14 9,11,13,15"},
    };
    Grid grid = GRID(2, 2, 2);
    grid.size[AXIS_CP] = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const RoleInfo *role = &topology_roles[cases[i].role];
        grid.size[AXIS_ETP] = cases[i].etp, grid.size[AXIS_EP] = cases[i].ep;
        expect_groups(grid, role->view, role->axes, cases[i].groups);
    }
    expect_groups(grid, VIEW_EXPERTS, MASK(ETP) | MASK(EP) | MASK(PP),
                  "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15");
}

static void names_show_what_they_must(void) {
    Grid grid = GRID(2, 2, 1);
    EXPECT(!strcmp(place_name(grid, grid_place(grid, 3)).text, "tp1 dp1 pp0"), "another name");
    grid.size[AXIS_CP] = 2;
    EXPECT(!strcmp(place_name(grid, grid_place(grid, 6)).text, "tp0 cp1 dp1 pp0"), "another name");
}

static void ranks_that_experts_do_not_divide_are_refused(void) {
    static const struct {
        int t, d, etp, ep;
        const char *message; // NULL: it fits
    } cases[] = {
        {4, 2, 0, 1, NULL},
        {2, 2, 1, 4, NULL},
        {1, 4, 4, 1, NULL},
        {2, 2, 0, 4, "--expert-model-parallel-size 4 times 2 ranks of each expert does not divide the 4"},
        {1, 6, 0, 4, "use 3"},
        {2, 2, 3, 1,
         "--expert-tensor-parallel-size 3 does not divide the 4 ranks of a pipeline stage: use 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Grid grid = GRID(cases[i].t, cases[i].d, 3);
        grid.size[AXIS_ETP] = cases[i].etp, grid.size[AXIS_EP] = cases[i].ep;
        Status status = grid_check(grid);
        EXPECT((status == OK) == !cases[i].message, "case %zu: %d", i, (int)status);
        EXPECT(status == OK || !cases[i].message || strstr(fail_message(), cases[i].message), "case %zu: %s",
               i, fail_message());
    }
}

static void layers_are_dealt_once_in_stage_order(void) {
    for (int i = 0; i < 60; i++) {
        int p = 1 + i % 5, v = 1 + i / 5 % 4, per_stage = 1 + i / 20, expected = 0;
        for (int stage = 0; stage < p * v; stage++) {
            int first, count;
            layer_range((LayerSplit){.layers = p * v * per_stage}, p, v, stage, &first, &count);
            EXPECT(first == expected && count == per_stage, "p %d v %d stage %d: %d + %d", p, v, stage, first,
                   count);
            expected = first + count;
        }
    }
}

// Megatron-LM: 8 layers, p 2, v 2: rank 0 has {0,1} {4,5}, rank 1 has {2,3} {6,7}.
static void layers_are_placed_as_in_megatron(void) {
    static const int firsts[2][2] = {{0, 4}, {2, 6}};
    for (int pp = 0; pp < 2; pp++)
        for (int chunk = 0; chunk < 2; chunk++) {
            int first, count;
            layer_range((LayerSplit){.layers = 8}, 2, 2, chunk * 2 + pp, &first, &count);
            EXPECT(first == firsts[pp][chunk] && count == 2, "rank %d chunk %d: %d + %d", pp, chunk, first,
                   count);
        }
}

// Few layers on the last rank make room for the head: 12 layers, the last of 3 ranks has 2; two
// chunks of half each.
static void ends_may_be_uneven(void) {
    static const int firsts[6] = {0, 2, 5, 6, 8, 11}, counts[6] = {2, 3, 1, 2, 3, 1};
    for (int stage = 0; stage < 6; stage++) {
        int first, count;
        layer_range((LayerSplit){.layers = 12, .first = 4, .last = 2}, 3, 2, stage, &first, &count);
        EXPECT(first == firsts[stage] && count == counts[stage], "stage %d: %d + %d", stage, first, count);
    }
}

// Counts rule over all else; a stage may have no layer.
static void counts_may_be_given(void) {
    static const int counts[4] = {2, 0, 3, 1};
    LayerSplit split = {.layers = 6, .first = 1, .counts = counts};
    for (int stage = 0, expected = 0; stage < 4; stage++) {
        int first, count;
        layer_range(split, 2, 2, stage, &first, &count);
        EXPECT(first == expected && count == counts[stage], "stage %d: %d + %d", stage, first, count);
        expected += counts[stage];
    }
}

// ---- balance --------------------------------------------------------------------------------------------

static double load(const int *counts, int stages, double embedding, double head, int stage) {
    return counts[stage] + (stage == 0 ? embedding : 0) + (stage == stages - 1 ? head : 0);
}

static double most_loaded(const int *counts, int stages, double embedding, double head) {
    double most = 0;
    for (int i = 0; i < stages; i++) most = fmax(most, load(counts, stages, embedding, head, i));
    return most;
}

// The least that the most loaded stage can have: tries all ways to deal the layers.
static double least_possible(int layers, int stages, double embedding, double head) {
    enum { MAX_STAGES = 4 };
    int counts[MAX_STAGES] = {0}, ways = 1;
    double least = INFINITY;
    for (int i = 0; i < stages; i++) ways *= layers + 1;
    for (int way = 0; way < ways; way++) {
        int dealt = 0, rest = way;
        for (int i = 0; i < stages; i++, rest /= layers + 1) dealt += counts[i] = rest % (layers + 1);
        if (dealt == layers) least = fmin(least, most_loaded(counts, stages, embedding, head));
    }
    return least;
}

// No layer is better placed on an earlier stage, and the sum is right.
static void check_balanced(const int *counts, int layers, int stages, double embedding, double head) {
    int sum = 0;
    for (int i = 0; i < stages; i++) {
        sum += counts[i];
        for (int earlier = 0; earlier < i && counts[i]; earlier++)
            EXPECT(load(counts, stages, embedding, head, earlier) + 1 >
                       load(counts, stages, embedding, head, i),
                   "%d layers: stage %d has %d, stage %d has %d", layers, earlier, counts[earlier], i,
                   counts[i]);
    }
    EXPECT(sum == layers, "%d of %d layers are dealt", sum, layers);
}

static void loads_are_balanced(void) {
    for (int i = 0; i < 4 * 8 * 5 * 5; i++) {
        int stages = 1 + i % 4, layers = i / 4 % 8, counts[4];
        double embedding = i / 32 % 5 * 0.75, head = i / 160 * 1.25;
        layer_balance(layers, stages, embedding, head, counts);
        check_balanced(counts, layers, stages, embedding, head);
        EXPECT(most_loaded(counts, stages, embedding, head) ==
                   least_possible(layers, stages, embedding, head),
               "%d layers, %d stages, %g, %g: %g", layers, stages, embedding, head,
               most_loaded(counts, stages, embedding, head));
    }
    int counts[64];
    for (int layers = 0; layers < 300; layers += 7) {
        layer_balance(layers, 64, 0.5, 2.5, counts);
        check_balanced(counts, layers, 64, 0.5, 2.5);
    }
}

static void expect_counts(const int *counts, int stages, const char *expected) {
    Text text = {0};
    for (int i = 0; i < stages; i++) text_add(&text, "%s%d", i ? " " : "", counts[i]);
    EXPECT(!strcmp(text_string(&text), expected), "%s, not %s", text_string(&text), expected);
    text_free(&text);
}

static void balances_that_one_would_choose(void) {
    int counts[8];
    layer_balance(24, 4, 0, 0, counts);
    expect_counts(counts, 4, "6 6 6 6");
    layer_balance(10, 4, 0, 0, counts);
    expect_counts(counts, 4, "3 3 2 2");
    layer_balance(30, 4, 0.1, 2, counts);
    expect_counts(counts, 4, "8 8 8 6");
    layer_balance(30, 4, 1, 1, counts);
    expect_counts(counts, 4, "7 8 8 7");
    layer_balance(3, 4, 5, 5, counts);
    expect_counts(counts, 4, "0 2 1 0");
}

// ---- layouts as text --------------------------------------------------------------------------------------

// Stages of `counts` as one would write them by hand: single letters, or t*n, with commas here and there.
static void print_layout(const int *counts, int stages, int way, Text *out) {
    text_add(out, "E");
    for (int i = 0; i < stages; i++) {
        if (way && counts[i])
            text_add(out, "t*%d", counts[i]);
        else
            for (int layer = 0; layer < counts[i]; layer++) text_add(out, layer % 3 ? "t" : ",t");
        if (i < stages - 1) text_add(out, "|");
    }
    text_add(out, "L");
}

static void layouts_come_back(void) {
    for (unsigned i = 0; i < 200; i++) {
        int counts[6], read[6], stages = 1 + (int)i % 6, layers = 0;
        for (int stage = 0; stage < stages; stage++)
            layers += counts[stage] = (int)(i * 2654435761u >> (5 * stage) & 7);
        for (int way = 0; way < 2; way++) {
            Text text = {0};
            print_layout(counts, stages, way, &text);
            EXPECT_OK(layer_parse(text_string(&text), layers, stages, read));
            EXPECT(!memcmp(counts, read, (size_t)stages * sizeof *read), "%s", text_string(&text));
            text_free(&text);
        }
    }
}

static void layouts_of_megatron(void) {
    static const struct {
        const char *text;
        int layers, stages;
        const char *counts;
    } cases[] = {
        {"Et*3|(tt|)*2,t|L", 8, 5, "3 2 2 1 0"},
        {"E|(t|)*3L", 3, 5, "0 1 1 1 0"},
        {"Et|(tt|)*2tL", 6, 4, "1 2 2 1"},
        {"E(t|)*2(t(t|)*2)*2L", 8, 7, "1 1 2 1 2 1 0"},
        {"EttL", 2, 1, "2"},
        {"EL", 0, 1, "0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int counts[8];
        EXPECT_OK(layer_parse(cases[i].text, cases[i].layers, cases[i].stages, counts));
        expect_counts(counts, cases[i].stages, cases[i].counts);
    }
}

static void bad_layouts_are_refused(void) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "pipeline layout: it is empty"},
        {",,", "pipeline layout: it is empty"},
        {"Ett|ttx|L",
         "pipeline layout, character 7: only E, t, L, |, *, digits after *, ( ) and , are known"},
        {"Ett |ttL", "pipeline layout, character 4: only E, t, L, |, *, digits after *, ( ) and , are known"},
        {"*2", "pipeline layout, character 1: a letter or a group must come right before '*'"},
        {"Et,*2|ttL", "pipeline layout, character 4: a letter or a group must come right before '*'"},
        {"Et*2*2|L", "pipeline layout, character 5: a letter or a group must come right before '*'"},
        {"Et*|ttL", "pipeline layout, character 3: a number from 1 to 999999999 must follow '*'"},
        {"Et*0|ttL", "pipeline layout, character 3: a number from 1 to 999999999 must follow '*'"},
        {"Et*-1|ttL", "pipeline layout, character 3: a number from 1 to 999999999 must follow '*'"},
        {"Et*9999999999|L", "pipeline layout, character 3: a number from 1 to 999999999 must follow '*'"},
        {"Et*999999999|L",
         "pipeline layout, character 3: by here there are more layers or stages than the run has"},
        {"E((((t*3)*3)*3)*999999999)*999999999|L",
         "pipeline layout, character 13: by here there are more layers or stages than the run has"},
        {"Ett|tt)L", "pipeline layout, character 7: this ')' closes nothing"},
        {"E(tt|tt", "pipeline layout: a '(' is not closed at its end"},
        {"E()*3tt|ttL", "pipeline layout, character 3: the group holds nothing"},
        {"((((((((((((((((((", "pipeline layout, character 17: groups are nested deeper than 16"},
        {"tt|ttL",
         "pipeline layout, stage 1: E, the embedding, must be at the very start, L, head and loss, at the "
         "very end, and neither anywhere else"},
        {"Ett|Ett|L",
         "pipeline layout, stage 2: E, the embedding, must be at the very start, L, head and loss, at "
         "the very end, and neither anywhere else"},
        {"Ett|ttLt",
         "pipeline layout, stage 2: E, the embedding, must be at the very start, L, head and loss, at the "
         "very end, and neither anywhere else"},
        {"Ett|tt",
         "pipeline layout, stage 2: E, the embedding, must be at the very start, L, head and loss, at the "
         "very end, and neither anywhere else"},
        {"Ett|t|tL",
         "pipeline layout: 4 layers (t) in 3 stages (separated by |); the run has 4 layers and 2 stages "
         "(pipeline ranks x chunks)"},
        {"Ett|tttL",
         "pipeline layout: 5 layers (t) in 2 stages (separated by |); the run has 4 layers and 2 stages "
         "(pipeline ranks x chunks)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int counts[2];
        Status status = layer_parse(cases[i].text, 4, 2, counts);
        EXPECT(status == ERR_CONFIG && !strcmp(fail_message(), cases[i].message), "%s: %s", cases[i].text,
               status == OK ? "accepted" : fail_message());
    }
}

// Any text is either refused or gives counts that add up.
static void hostile_layouts_do_no_harm(void) {
    static const char letters[] = "EtL|,*()0123459 x";
    uint64_t state = 1;
    int accepted = 0;
    for (int i = 0; i < 20000; i++) {
        char text[] = "Et*3|(tt|)*2,t|L";
        for (int change = 0; change < 1 + i % 3; change++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text[(state >> 33) % (sizeof text - 1)] = letters[(state >> 45) % (sizeof letters - 1)];
        }
        int counts[5], sum = 0;
        Status status = layer_parse(text, 8, 5, counts);
        for (int stage = 0; stage < 5; stage++) sum += counts[stage];
        EXPECT(status == ERR_CONFIG || sum == 8, "%s: %d layers", text, sum);
        accepted += status == OK;
    }
    EXPECT(accepted > 100 && accepted < 19000, "%d texts are accepted", accepted);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"ranks and places are inverse", ranks_and_places_are_inverse},
        {"groups partition the ranks", groups_partition_the_ranks},
        {"roles agree with their ranks", roles_agree_with_their_ranks},
        {"ends are the first and the last stage", ends_are_the_first_and_the_last_stage},
        {"groups are those of Megatron-LM", groups_are_those_of_megatron},
        {"groups of context and experts are those of Megatron-LM",
         groups_of_context_and_experts_are_those_of_megatron},
        {"names show what they must", names_show_what_they_must},
        {"ranks that experts do not divide are refused", ranks_that_experts_do_not_divide_are_refused},
        {"layers are dealt once, in stage order", layers_are_dealt_once_in_stage_order},
        {"layers are placed as in Megatron-LM", layers_are_placed_as_in_megatron},
        {"ends may be uneven", ends_may_be_uneven},
        {"counts may be given", counts_may_be_given},
        {"loads are balanced", loads_are_balanced},
        {"balances that one would choose", balances_that_one_would_choose},
        {"layouts come back", layouts_come_back},
        {"layouts of Megatron-LM", layouts_of_megatron},
        {"bad layouts are refused", bad_layouts_are_refused},
        {"hostile layouts do no harm", hostile_layouts_do_no_harm},
        {0},
    };
    return harness_run(tests, argc, argv);
}
