// The process grid and the placement of layers: laws over many grids, then Megatron-LM's groups for three of them.
#include "harness.h"
#include "layout/layout.h"
#include <stdlib.h>
#include <string.h>

enum { TP = 1 << AXIS_TP, DP = 1 << AXIS_DP, PP = 1 << AXIS_PP, MOST_RANKS = 64 };

static void ranks_and_places_are_inverse(void) {
    for (int i = 0; i < 64; i++) {
        Grid grid = {1 + i % 4, 1 + i / 4 % 4, 1 + i / 16};
        for (int rank = 0; rank < grid_size(grid); rank++) {
            Place place = grid_place(grid, rank);
            EXPECT(grid_rank(grid, place) == rank, "rank %d of grid %d", rank, i);
            EXPECT(place.tp < grid.tp && place.dp < grid.dp && place.pp < grid.pp, "rank %d of grid %d", rank,
                   i);
        }
    }
}

// Groups of a mask partition the ranks: each holds its own rank, is the same seen from every member, and has the size
// that the masked axes say.
static void check_partition(Grid grid, unsigned mask) {
    int size = (mask & TP ? grid.tp : 1) * (mask & DP ? grid.dp : 1) * (mask & PP ? grid.pp : 1);
    for (int rank = 0; rank < grid_size(grid); rank++) {
        int group[MOST_RANKS], seen[MOST_RANKS], count = grid_group(grid, rank, mask, group);
        bool member = false;
        EXPECT(count == size, "mask %u rank %d: %d ranks", mask, rank, count);
        for (int i = 0; i < count; i++) {
            member |= group[i] == rank;
            EXPECT(i == 0 || group[i - 1] < group[i], "mask %u rank %d", mask, rank);
            EXPECT(grid_group(grid, group[i], mask, seen) == count &&
                       !memcmp(group, seen, sizeof *seen * (size_t)count),
                   "mask %u: ranks %d and %d see other groups", mask, rank, group[i]);
        }
        EXPECT(member, "mask %u rank %d is not in its own group", mask, rank);
    }
}

static void groups_partition_the_ranks(void) {
    for (int i = 0; i < 64; i++)
        for (unsigned mask = 0; mask < 8; mask++)
            check_partition((Grid){1 + i % 4, 1 + i / 4 % 4, 1 + i / 16}, mask);
}

// The groups of a mask in the order of their first rank, as "0,1 2,3".
static void print_groups(Grid grid, unsigned mask, Text *out) {
    for (int rank = 0; rank < grid_size(grid); rank++) {
        int group[MOST_RANKS], count = grid_group(grid, rank, mask, group);
        if (group[0] != rank) continue;
        for (int i = 0; i < count; i++) text_add(out, "%s%d", i ? "," : out->size ? " " : "", group[i]);
    }
}

// Source: the rank groups that Megatron-LM makes in its order tp-cp-ep-dp-pp.
static void groups_are_those_of_megatron(void) {
    static const struct {
        Grid grid;
        unsigned mask;
        const char *groups;
    } cases[] = {
        {{2, 2, 2}, TP, "0,1 2,3 4,5 6,7"},
        {{2, 2, 2}, DP, "0,2 1,3 4,6 5,7"},
        {{2, 2, 2}, PP, "0,4 1,5 2,6 3,7"},
        {{2, 2, 2}, TP | PP, "0,1,4,5 2,3,6,7"},
        {{2, 2, 4}, TP, "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15"},
        {{2, 2, 4}, DP, "0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15"},
        {{2, 2, 4}, PP, "0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15"},
        {{2, 2, 4}, TP | PP, "0,1,4,5,8,9,12,13 2,3,6,7,10,11,14,15"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text groups = {0};
        print_groups(cases[i].grid, cases[i].mask, &groups);
        EXPECT(!strcmp(text_string(&groups), cases[i].groups), "%zu: %s, not %s", i, text_string(&groups),
               cases[i].groups);
        text_free(&groups);
    }
}

static void embeddings_live_at_both_ends(void) {
    int ends[2];
    for (int rank = 0; rank < 16; rank++) {
        EXPECT(grid_embedding_group((Grid){2, 2, 4}, rank, ends) == 2, "rank %d", rank);
        EXPECT(ends[0] == rank % 4 && ends[1] == rank % 4 + 12, "rank %d: %d %d", rank, ends[0], ends[1]);
        EXPECT(grid_embedding_group((Grid){4, 4, 1}, rank, ends) == 1 && ends[0] == rank, "rank %d alone",
               rank);
    }
}

static void layers_are_dealt_once_in_stage_order(void) {
    for (int i = 0; i < 60; i++) {
        int p = 1 + i % 5, v = 1 + i / 5 % 4, per_stage = 1 + i / 20, expected = 0;
        for (int stage = 0; stage < p * v; stage++) {
            int first, count;
            layer_range((LayerSplit){p * v * per_stage, 0, 0}, p, v, stage, &first, &count);
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
            layer_range((LayerSplit){8, 0, 0}, 2, 2, chunk * 2 + pp, &first, &count);
            EXPECT(first == firsts[pp][chunk] && count == 2, "rank %d chunk %d: %d + %d", pp, chunk, first,
                   count);
        }
}

// Few layers on the last rank make room for the head: 12 layers, the last of 3 ranks has 2; two chunks of half each.
static void ends_may_be_uneven(void) {
    static const int firsts[6] = {0, 2, 5, 6, 8, 11}, counts[6] = {2, 3, 1, 2, 3, 1};
    for (int stage = 0; stage < 6; stage++) {
        int first, count;
        layer_range((LayerSplit){12, 4, 2}, 3, 2, stage, &first, &count);
        EXPECT(first == firsts[stage] && count == counts[stage], "stage %d: %d + %d", stage, first, count);
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"ranks and places are inverse", ranks_and_places_are_inverse},
        {"groups partition the ranks", groups_partition_the_ranks},
        {"groups are those of Megatron-LM", groups_are_those_of_megatron},
        {"embeddings live at both ends", embeddings_live_at_both_ends},
        {"layers are dealt once, in stage order", layers_are_dealt_once_in_stage_order},
        {"layers are placed as in Megatron-LM", layers_are_placed_as_in_megatron},
        {"ends may be uneven", ends_may_be_uneven},
        {0},
    };
    return harness_run(tests, argc, argv);
}
