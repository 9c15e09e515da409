// Delayed scaling: the scale of a tensor comes from its largest magnitudes in earlier steps. A row of the history
// belongs to one factor (x, W, dy) of one linear layer of the whole model, or of one expert's, on every grid, and every
// rank knows all rows: after a step the largest magnitudes are those of all ranks. So a scale does not depend on the
// grid, and no product waits for other ranks.
// Source: Micikevicius 2022; Transformer Engine's DelayedScaling.
#pragma once
#include "nn/params.h"
#include "nn/shape.h"
#include "nn/stage.h"

typedef struct AmaxHistory {
    DelayedScaling rule;
    int rows;       // 3 for each matrix; 0: there is no delayed scaling
    Tensor now;     // F32 [1, rows] the largest magnitudes of the step under way
    Tensor used;    // F32 [1, rows] those that scales are made of, times 2^margin
    float *history; // [rows, rule.history] of the last steps that changed something, the newest first
    float *largest; // [rows] as in `used`, without the margin
    double *host;   // [rows]
    float *staged;  // [rows], on their way to the device or from it
    bool uploaded;  // `used` holds what `largest` says
} AmaxHistory;

bool amax_is_wanted(const ModelMode *mode);
// Returns the rows of a whole model: three for each of the matrices qkv, proj, fc1 and fc2, the latter two of an MLP or
// of each expert.
int64_t amax_rows(const ModelShape *shape);
// Takes 8 bytes a row from `arena`, once the linear layers are declared; all magnitudes are 0, of which scales of 1 are
// made. For a mode without delayed scaling it does nothing.   ERR_OS without host memory.
Status amax_open(AmaxHistory *amax, const ModelMode *mode, const Params *params, Arena *arena);
void amax_close(AmaxHistory *amax);  // takes what was only zeroed
void amax_forget(AmaxHistory *amax); // all magnitudes are 0 again, also those that are uploaded next
// Begins a step, or an evaluation, whose magnitudes nobody keeps.
void amax_begin(AmaxHistory *amax, Device *device, Stream *stream);
// Ends a step that changes something: its magnitudes become the newest.   Collective over `world`.
void amax_end(AmaxHistory *amax, Device *device, Stream *stream, Comm *world);
// Computes what scales are made of from the history, after a step or after it was read from a checkpoint. A row without
// any magnitude above 0 keeps what it had.
void amax_follow(AmaxHistory *amax);
