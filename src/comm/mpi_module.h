// The transports of MPI are modules: libraries that the program loads when a launcher of MPI has started it, so that
// one program serves machines without MPI, with Open MPI 4 or 5, and with MPICH or what has its binary interface (Intel
// MPI, MVAPICH). Each kind of MPI has a module, because its types and constants are its own; a module is not linked
// with MPI's library, of which the program loads the one of the machine. It takes `fail`, `world_run` and so on from
// the program.
#pragma once
#include "comm/transport.h"

// A module exports one of these under the name `trireme_mpi`.
typedef struct {
    // MPI_INTERFACE: a hash of the headers that the program and the module share, made when they are built.
    const char *interface;
    Status (*launch)(const CommOptions *options, RankMain *rank_main, void *arg);
} MpiModule;

// Returns whether the ranks of this job, or where none was started those of another, could use MPI here. A module that is
// wrong counts as here: mpi_launch says what is wrong with it.
bool mpi_is_here(void);
// Appends a line for each kind of MPI: the library and its version, or what is missing for it.
void mpi_describe(Text *out);
