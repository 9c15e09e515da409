// Checkpoints in the memory of the machines of a run (--memory-save-interval): the folder that each machine has for
// them, and what machines send each other. A folder in /dev/shm outlives the ranks and whoever has started them, and
// holds checkpoints in the format of those on disk. With several machines each rank's file is also in the folder of the
// next machine, so that the loss of one machine loses nothing.
#pragma once
#include "checkpoint/checkpoint.h"
#include "config/config.h"

// A file that this rank sends to the next machine, or gets from a rank of the machine before.
typedef struct {
    int peer;
    char *bytes; // the file, mapped; NULL: not yet, or there is none
    int64_t size;
    CommRequest *request;
} FileMessage;

// A checkpoint that at least one machine has, or a part of it.
typedef struct {
    int64_t step;
    uint64_t hash; // of its manifest
    int machine;   // its first rank
    int count;     // files
    char *present; // [count] '1' where the machine has the file, else '0'; owned
} Holding;

typedef struct {
    Comm *world; // NULL: the run has no checkpoints in memory; then the functions do nothing
    char folder[4096];
    Text identity; // of the run: the contents of the file `run` in the folder
    int lock;      // of the first rank of each machine; -1: none
    int *machines; // [ranks] the first rank of each rank's machine
    int num_machines;
    int64_t newest; // step of the newest checkpoint that is whole; -1: none
    bool settled;   // store_settle was called
    Holding *holdings;
    int num_holdings;
    FileMessage sent, *received;
    int num_received;
} MemoryStore;

// ---- memory_store.c: the folder -------------------------------------------------------------------------

// Opens the folder of this run on each machine, where --memory-save-interval is given: makes it, locks it, empties it
// unless this run of --save has left it there, and removes folders of runs whose --save folder is gone. Without the
// option a folder that an earlier run has left is not this run's any more. Rank 0 holds the lock on --save.
// Collective over the world.
Status store_open(MemoryStore *store, const Options *options, const atomic_int *stopped, Comm *world);
// Removes the folder if the newest checkpoint on disk, that of step `on_disk` (-1: none), is as new as those in memory.
void store_close(MemoryStore *store, int64_t on_disk);
bool store_is_first(const MemoryStore *store); // this rank is the first one on its machine
// Fails with ERR_CREATE where a machine has no room for two checkpoints of a run whose rank has `bytes` of tensors.
// Collective over the world.
Status store_check_room(const MemoryStore *store, int64_t bytes);
// Removes all checkpoints in memory but the one of `step`, which the run goes on from. -1: the run goes on from
// elsewhere, or has gone back. Then --save gets another number as well, so that what is in the memory of machines that
// are not part of this job is never taken again: the run may go another way.   Collective over the world.
Status store_settle(MemoryStore *store, const Options *options, int64_t step);
// What one checkpoint takes in the memory of this rank's machine, if each rank has the given bytes of tensors. [ranks]
int64_t store_bytes_here(const MemoryStore *store, const double *bytes_of_rank);

// ---- memory_messages.c: between machines ---------------------------------------------------------------------

int store_buddy(const MemoryStore *store,
                int rank); // which rank has a copy of its file; -1: there is one machine
// The steps of a copy, after all ranks have written their files.
// 1. Says to all ranks how long each file is.   Collective over the world.
void store_share_sizes(MemoryStore *store, const CheckpointNames *names);
// 2. Makes room for the files that this rank gets, on any thread.
Status store_prepare(MemoryStore *store, const CheckpointNames *names);
// 3. Starts the messages; says whether they are over, for this rank alone; waits for them.
void store_exchange(MemoryStore *store);
bool store_exchange_is_over(MemoryStore *store);
void store_finish_exchange(MemoryStore *store);
void store_abandon_exchange(MemoryStore *store); // before 3., when a rank has failed

// Finds what the machines have. The ranks then know the same holdings. `why` receives, on rank 0, what is damaged or
// incomplete in steps after `on_disk`.   Collective over the world.
Status store_survey(MemoryStore *store, int64_t on_disk, Text *why);
// Lists the holdings whose checkpoint is whole on all machines together, one for each checkpoint, newest first. The
// caller frees the list.
Status store_candidates(const MemoryStore *store, int **holdings, int *count);
// Sends the files of a checkpoint to the machines that lack them. Then each has all of it.   Collective over the world.
Status store_fetch(MemoryStore *store, int holding);
