// Cuts sequences over context-parallel ranks.
#include "layout/sequence.h"
#include "base/error.h"
#include <stdlib.h>

static int64_t block_positions(const SequenceCut *cut) { return cut->positions / cut->blocks; }

void sequence_cut_zigzag(SequenceCut *cut, int64_t positions, int ranks) {
    int blocks = ranks > 1 ? 2 * ranks : 1;
    CHECK(ranks <= MAX_CONTEXT_RANKS && positions % blocks == 0, "%lld positions in %d blocks",
          (long long)positions, blocks);
    cut->ranks = ranks, cut->blocks = blocks, cut->positions = positions;
    for (int i = 0; i < blocks; i++) {
        cut->owners[i] = (uint16_t)(i < ranks ? i : blocks - 1 - i);
        cut->first_keys[i] = 0;
    }
}

int sequence_pieces(const SequenceCut *cut) { return cut->blocks / cut->ranks; }

SequencePiece sequence_piece(const SequenceCut *cut, int rank, int i) {
    int64_t count = block_positions(cut);
    int block = 0, held = 0;
    while (block < cut->blocks && (cut->owners[block] != rank || held++ < i)) block++;
    CHECK(block < cut->blocks, "rank %d has no piece %d of a sequence", rank, i);
    return (SequencePiece){block * count, count, i * count};
}

bool sequence_sees(const SequenceCut *cut, SequencePiece queries, SequencePiece keys) {
    return keys.first + keys.count > cut->first_keys[queries.first / block_positions(cut)];
}

void sequence_positions(const SequenceCut *cut, int rank, int32_t *positions) {
    for (int i = 0; i < sequence_pieces(cut); i++) {
        SequencePiece piece = sequence_piece(cut, rank, i);
        for (int64_t s = 0; s < piece.count; s++) positions[piece.local + s] = (int32_t)(piece.first + s);
    }
}

void sequence_orders(const SequenceCut *cut, int samples, int32_t *from_ranks, int32_t *to_ranks) {
    int64_t each = cut->positions / cut->ranks * samples;
    for (int rank = 0; rank < cut->ranks; rank++)
        for (int i = 0; i < sequence_pieces(cut); i++) {
            SequencePiece piece = sequence_piece(cut, rank, i);
            int64_t whole = piece.first * samples, gathered = rank * each + piece.local * samples;
            for (int64_t row = 0; row < piece.count * samples; row++) {
                if (from_ranks) from_ranks[whole + row] = (int32_t)(gathered + row);
                if (to_ranks) to_ranks[gathered + row] = (int32_t)(whole + row);
            }
        }
}

void sequence_shares(int64_t rows, int ranks, int32_t *apart, int32_t *together) {
    for (int64_t row = 0; row < rows; row++)
        for (int share = 0; share < ranks; share++) {
            int64_t in_row = row * ranks + share, in_share = share * rows + row;
            if (apart) apart[in_share] = (int32_t)in_row;
            if (together) together[in_row] = (int32_t)in_share;
        }
}

// ---- cuts by area ---------------------------------------------------------------------------------------

typedef struct {
    int64_t area;
    int block;
} BlockArea;

// The largest first; of equal ones the later, so that without documents the cut is the zig-zag.
static int by_area(const void *a, const void *b) {
    const BlockArea *x = a, *y = b;
    if (x->area != y->area) return x->area < y->area ? 1 : -1;
    return y->block - x->block;
}

// The pairs of a query and a key that it sees, in each of `blocks` blocks of all samples.
static void find_areas(const SequenceCut *cut, int blocks, int samples, const int32_t *first_keys,
                       BlockArea *areas) {
    int64_t rows = cut->positions / blocks * samples;
    for (int i = 0; i < blocks; i++) {
        areas[i] = (BlockArea){.block = i};
        for (int64_t row = i * rows; row < (i + 1) * rows; row++)
            areas[i].area += row / samples - first_keys[row] + 1;
    }
}

static int largest_of(const int64_t *sums, int ranks) {
    int largest = 0;
    for (int r = 1; r < ranks; r++)
        if (sums[r] > sums[largest]) largest = r;
    return largest;
}

// Gives the blocks, largest first, each to the rank with the least area that has room. Source: Graham 1969.
static void deal(SequenceCut *cut, const BlockArea *areas, int64_t *sums) {
    int held[MAX_CONTEXT_RANKS] = {0}, room = cut->blocks / cut->ranks;
    for (int r = 0; r < cut->ranks; r++) sums[r] = 0;
    for (int i = 0; i < cut->blocks; i++) {
        int to = -1;
        for (int r = 0; r < cut->ranks; r++)
            if (held[r] < room && (to < 0 || sums[r] < sums[to])) to = r;
        held[to]++, sums[to] += areas[i].area;
        cut->owners[areas[i].block] = (uint16_t)to;
    }
}

// Swaps a block of the rank with the largest area for one of another rank, so that the larger area of the two falls
// most. Returns whether there is such a swap.
static bool swap_best(SequenceCut *cut, const BlockArea *areas, int64_t *sums) {
    int from = largest_of(sums, cut->ranks), best_a = -1, best_b = -1;
    int64_t least = sums[from];
    for (int a = 0; a < cut->blocks; a++) {
        if (cut->owners[areas[a].block] != from) continue;
        for (int b = a + 1; b < cut->blocks; b++) {
            int other = cut->owners[areas[b].block];
            int64_t less = areas[a].area - areas[b].area, here = sums[from] - less,
                    there = sums[other] + less;
            int64_t most = here > there ? here : there;
            if (other != from && less > 0 && most < least) least = most, best_a = a, best_b = b;
        }
    }
    if (best_a < 0) return false;
    uint16_t *mine = &cut->owners[areas[best_a].block], *theirs = &cut->owners[areas[best_b].block];
    int64_t less = areas[best_a].area - areas[best_b].area;
    sums[*mine] -= less, sums[*theirs] += less;
    *mine = *theirs, *theirs = (uint16_t)from;
    return true;
}

// Returns the largest area of a rank.
static int64_t cut_into(SequenceCut *cut, int blocks, int samples, const int32_t *first_keys) {
    enum { MOST_SWAPS = 64 };
    BlockArea areas[MAX_SEQUENCE_BLOCKS];
    int64_t sums[MAX_CONTEXT_RANKS];
    cut->blocks = blocks;
    find_areas(cut, blocks, samples, first_keys, areas);
    qsort(areas, (size_t)blocks, sizeof *areas, by_area);
    deal(cut, areas, sums);
    for (int i = 0; i < MOST_SWAPS && swap_best(cut, areas, sums); i++) continue;
    return sums[largest_of(sums, cut->ranks)];
}

static int most_blocks(int ranks) {
    enum { MOST_EACH = 32 }; // every block is a call of attention of its own
    return MOST_EACH * ranks < MAX_SEQUENCE_BLOCKS ? MOST_EACH * ranks : MAX_SEQUENCE_BLOCKS;
}

void sequence_cut_by_area(SequenceCut *cut, int64_t positions, int ranks, int samples,
                          const int32_t *first_keys) {
    int64_t all = 0, best = 0;
    int chosen = 2 * ranks;
    sequence_cut_zigzag(cut, positions, ranks);
    if (ranks == 1) return;
    for (int64_t row = 0; row < positions * samples; row++) all += row / samples - first_keys[row] + 1;
    for (int blocks = chosen; positions % blocks == 0 && blocks <= most_blocks(ranks); blocks *= 2) {
        int64_t most = cut_into(cut, blocks, samples, first_keys);
        if (blocks == 2 * ranks || most < best) best = most, chosen = blocks;
        if (best * ranks <= all + all / 64) break;
    }
    if (cut->blocks != chosen) cut_into(cut, chosen, samples, first_keys);
    for (int i = 0; i < cut->blocks; i++) {
        const int32_t *of_samples = first_keys + i * block_positions(cut) * samples;
        cut->first_keys[i] = of_samples[0];
        for (int b = 1; b < samples; b++)
            if (of_samples[b] < cut->first_keys[i]) cut->first_keys[i] = of_samples[b];
    }
}
