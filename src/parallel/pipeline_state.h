// The structure behind Pipeline, shared by the files that open it and run it. Internal to parallel/.
#pragma once
#include "base/turns.h"
#include "parallel/parallel.h"

// The memory of one message, and the request that is filling or sending it.
typedef struct {
    Tensor message; // [rows, hidden]; absent in the pools of arenas
    CommRequest *pending;
} Buffer;

// Buffers of one kind. The current schedule uses `size` of the `capacity` buffers. `free` is a ring of the indices of
// free buffers; the one that has been free longest comes first.
typedef struct {
    Buffer *buffers;
    int *free, capacity, size, first_free, num_free;
} Pool;

// One microbatch of one chunk: the index of the buffer that it holds in each pool, -1 for none.
typedef struct {
    int buffer[NUM_BUFFER_KINDS];
} Item;

// When the device began an instruction and ended it.
typedef struct {
    Instr in;
    DeviceMark start, end;
    double waited_s; // of the host for other ranks, in between; while it runs: before it
} TimedInstr;

// The times of the last run that are not yet added up. The host is ahead of the device and would wait for it where it
// reads a mark, so it reads them when the next run begins, in pipeline_times, before the list is replaced, and at once
// for a trace.
typedef struct {
    bool training, traced;
    double start_s, end_s; // the host's part
    TimedInstr *spans;     // [capacity], of the timed instructions; of a pair's, one for each turn
    int num_spans, capacity;
} LastRun;

struct Pipeline {
    Context *context;
    Stage stage;
    const Schedule *schedule;
    const Program *program;
    Pool pools[NUM_BUFFER_KINDS];
    Slot *slots;       // [capacity of the pool of stashes]: each with its arena
    Arena *recomputed; // [capacity of the pool of recomputed activations]
    Turns *turns;      // of pairs; NULL: the schedule has none
    Arena beside;      // the scratch memory of the forward in a pair
    Item *items;       // [chunks * microbatches]
    size_t num_items;
    int *last_weight; // [chunks]: where the program completes the chunk's gradients
    // The rows of a message that this rank sends and receives. Where these are not all rows, the receivers gather them.
    int64_t first_row, num_rows;
    double total_s, wait_s;
    ChunkTimes *chunk_times;
    LastRun last;
    Instr running; // in a pair
};

// Adds up the times of the last run, which ends where host and device have both ended it. Does nothing the second time.
void pipeline_read_last_run(Pipeline *pipeline);
size_t pipeline_items(const Schedule *schedule); // microbatches of all chunks of a rank
