// Cuts sequences over context-parallel ranks.
#include "layout/sequence.h"
#include "base/error.h"

static int64_t block_positions(const SequenceCut *cut) { return cut->positions / cut->blocks; }

void sequence_cut_zigzag(SequenceCut *cut, int64_t positions, int ranks) {
    int blocks = ranks > 1 ? 2 * ranks : 1;
    CHECK(blocks <= MAX_SEQUENCE_BLOCKS && positions % blocks == 0, "%lld positions in %d blocks",
          (long long)positions, blocks);
    cut->ranks = ranks, cut->blocks = blocks, cut->positions = positions;
    for (int i = 0; i < blocks; i++) cut->owners[i] = (uint16_t)(i < ranks ? i : blocks - 1 - i);
}

int sequence_pieces(const SequenceCut *cut) { return cut->blocks / cut->ranks; }

SequencePiece sequence_piece(const SequenceCut *cut, int rank, int i) {
    int64_t count = block_positions(cut);
    int block = 0, held = 0;
    while (block < cut->blocks && (cut->owners[block] != rank || held++ < i)) block++;
    CHECK(block < cut->blocks, "rank %d has no piece %d of a sequence", rank, i);
    return (SequencePiece){block * count, count, i * count};
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
