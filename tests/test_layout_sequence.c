// Golden cuts of sequences over ranks, and that the orders of their rows are each other's inverse.
#include "harness.h"
#include "layout/sequence.h"
#include <stdio.h>
#include <string.h>

static void expect_positions(const SequenceCut *cut, int rank, const char *golden) {
    int32_t positions[64];
    char text[256] = "";
    sequence_positions(cut, rank, positions);
    for (int64_t i = 0; i < cut->positions / cut->ranks; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? " " : "", positions[i]);
    EXPECT(!strcmp(text, golden), "c %d, rank %d has %s, not %s", cut->ranks, rank, text, golden);
}

// As Megatron-LM cuts 16 positions.
static void zigzag_is_golden(void) {
    static const char *const two[] = {"0 1 2 3 12 13 14 15", "4 5 6 7 8 9 10 11"};
    static const char *const four[] = {"0 1 14 15", "2 3 12 13", "4 5 10 11", "6 7 8 9"};
    static SequenceCut cut;
    sequence_cut_zigzag(&cut, 16, 2);
    for (int r = 0; r < 2; r++) expect_positions(&cut, r, two[r]);
    sequence_cut_zigzag(&cut, 16, 4);
    for (int r = 0; r < 4; r++) expect_positions(&cut, r, four[r]);
    sequence_cut_zigzag(&cut, 5, 1);
    expect_positions(&cut, 0, "0 1 2 3 4");
}

// Pairs of a query and a key that it sees.
static void ranks_have_equal_areas(void) {
    static SequenceCut cut;
    int32_t positions[16];
    sequence_cut_zigzag(&cut, 64, 4);
    for (int r = 0; r < 4; r++) {
        int64_t area = 0;
        sequence_positions(&cut, r, positions);
        for (int i = 0; i < 16; i++) area += positions[i] + 1;
        EXPECT(area == 520, "rank %d sees %lld pairs", r, (long long)area);
    }
}

static int64_t area_of(const SequenceCut *cut, int rank, int samples, const int32_t *first_keys) {
    int32_t positions[64];
    int64_t area = 0;
    sequence_positions(cut, rank, positions);
    for (int i = 0; i < cut->positions / cut->ranks; i++)
        for (int b = 0; b < samples; b++) area += positions[i] - first_keys[positions[i] * samples + b] + 1;
    return area;
}

// Documents of 40, 8 and 16 tokens; each cut by its own zig-zag they have 248 pairs on each of four ranks.
static void documents_are_cut_by_area(void) {
    static SequenceCut cut;
    int32_t first_keys[64];
    for (int i = 0; i < 64; i++) first_keys[i] = i < 40 ? 0 : i < 48 ? 40 : 48;
    sequence_cut_by_area(&cut, 64, 4, 1, first_keys);
    for (int r = 0; r < 4; r++)
        EXPECT(area_of(&cut, r, 1, first_keys) == 248, "rank %d sees %lld pairs", r,
               (long long)area_of(&cut, r, 1, first_keys));
}

static void one_document_is_cut_in_a_zigzag(void) {
    static SequenceCut cut, zigzag;
    static const int32_t first_keys[2 * 48];
    for (int ranks = 2; ranks <= 8; ranks++) {
        if (48 % (2 * ranks)) continue;
        sequence_cut_by_area(&cut, 48, ranks, 2, first_keys);
        sequence_cut_zigzag(&zigzag, 48, ranks);
        EXPECT(cut.blocks == zigzag.blocks &&
                   !memcmp(cut.owners, zigzag.owners, (size_t)cut.blocks * sizeof *cut.owners),
               "c %d: %d blocks", ranks, cut.blocks);
    }
}

static void orders_are_inverse(void) {
    enum { SAMPLES = 3, POSITIONS = 24, ROWS = SAMPLES * POSITIONS };
    static SequenceCut cut;
    int32_t from[ROWS], to[ROWS], positions[POSITIONS];
    for (int ranks = 1; ranks <= 4; ranks++) {
        int each = POSITIONS / ranks;
        sequence_cut_zigzag(&cut, POSITIONS, ranks);
        sequence_orders(&cut, SAMPLES, from, to);
        for (int row = 0; row < ROWS; row++) EXPECT(to[from[row]] == row, "c %d, row %d", ranks, row);
        for (int row = 0; row < ROWS; row++) {
            sequence_positions(&cut, row / SAMPLES / each, positions);
            EXPECT(to[row] == positions[row / SAMPLES % each] * SAMPLES + row % SAMPLES,
                   "c %d, row %d of all ranks", ranks, row);
        }
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"zig-zag is golden", zigzag_is_golden},
                                      {"ranks have equal areas", ranks_have_equal_areas},
                                      {"documents are cut by area", documents_are_cut_by_area},
                                      {"one document is cut in a zig-zag", one_document_is_cut_in_a_zigzag},
                                      {"orders are inverse", orders_are_inverse},
                                      {0}},
                       argc, argv);
}
