// The cut of sequences over context-parallel ranks: which positions of every sample each rank holds.
//
// A sequence is cut into equal blocks of neighbouring positions. Every rank holds as many blocks, in the order of their
// positions, so that all ranks have as many tokens; all samples of a microbatch are cut alike. Rows of a whole
// microbatch are in the order of positions (row = position * B + sample), those of a rank in the order of the positions
// that it holds.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { MAX_CONTEXT_RANKS = 2048, MAX_SEQUENCE_BLOCKS = 2 * MAX_CONTEXT_RANKS };

typedef struct {
    int ranks, blocks;                       // c, which divides the number of blocks
    int64_t positions;                       // S, which `blocks` divides
    uint16_t owners[MAX_SEQUENCE_BLOCKS];    // the rank that holds each block
    int32_t first_keys[MAX_SEQUENCE_BLOCKS]; // of each block, the first key that one of its queries sees
} SequenceCut;

// Cuts a sequence of one document into 2c blocks, of which rank r holds block r and block 2c - 1 - r: each rank has as
// many causal pairs of query and key as the others. CHECK: 2c divides `positions`. One rank holds all as one block.
// Source: Brandon 2023 (Striped Attention); Megatron-LM, get_batch_on_this_cp_rank.
void sequence_cut_zigzag(SequenceCut *cut, int64_t positions, int ranks);

// Cuts the sequences of a microbatch of documents, so that no rank has many more pairs of a query and a key that it
// sees than another: into 2c blocks or 2, 4, ... times as many, until the largest area is within 1/64 of the mean or
// blocks are too many. `first_keys` [S*B] is that of attention_forward. With one document in each sample it is the
// zig-zag.
void sequence_cut_by_area(SequenceCut *cut, int64_t positions, int ranks, int samples,
                          const int32_t *first_keys);

// Neighbouring positions: `count` from `first` on, of which the rank holds the first as its position number `local`.
typedef struct {
    int64_t first, count, local;
} SequencePiece;
int sequence_pieces(const SequenceCut *cut); // of each rank
// Returns piece i of a rank, ascending; 0 <= i < sequence_pieces.
SequencePiece sequence_piece(const SequenceCut *cut, int rank, int i);

// Whether documents leave a query of one piece any of the keys of another piece, which lies before it.
bool sequence_sees(const SequenceCut *cut, SequencePiece queries, SequencePiece keys);

// Writes the position of each of a rank's S/c positions.
void sequence_positions(const SequenceCut *cut, int rank, int32_t *positions);
// The rows of a microbatch of `samples` samples as they lie when those of all ranks are put one after the other:
// row i of the whole microbatch is row `from_ranks[i]` of these, and row i of these is row `to_ranks[i]` of the whole.
// Either may be NULL.
void sequence_orders(const SequenceCut *cut, int samples, int32_t *from_ranks, int32_t *to_ranks);

// Rows of a rank that are cut into `ranks` shares of their columns, as they lie when the first shares of all rows come
// first, then the second ones: share i of these is share `apart[i]` of the rows, and share i of the rows is share
// `together[i]` of these. Either may be NULL.
void sequence_shares(int64_t rows, int ranks, int32_t *apart, int32_t *together);
