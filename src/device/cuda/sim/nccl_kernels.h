// Kernels of the simulated NCCL: what a communicator puts on a stream, and how the kernels of its ranks meet.
//
// A kernel is on its GPU from when it begins until each of its operations has met those of the other ranks; meanwhile
// its stream stands. The kernels of one communicator on one rank run one after the other, on whatever streams they are.
// At most TRIREME_SIM_RESIDENT of them are on a GPU at once; unset: any number.
//
// Ends the job, with a word on standard error: operations that meet and differ in kind, elements, type or root; kernels
// of one communicator that wait for each other.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <string>
#include <tuple>
#include <vector>

enum class Operation { SEND, RECEIVE, GATHER, BROADCAST, REDUCE, SCATTER };

struct Part { // an operation of one rank
    Operation operation;
    const void *from; // NULL: it reads nothing
    void *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t sum;
    int peer; // of a message; the root
};

size_t bytes_of(ncclDataType_t type);

struct Clique;

struct Kernel {
    std::shared_ptr<Clique> clique;
    int rank, gpu;
    std::vector<Part> parts;
    std::vector<struct Rendezvous *> meetings; // of each part, once the kernel has begun
    int64_t number;                            // among the kernels of this rank's communicator
};

// Where the parts of one operation meet: those of all ranks, or of a sender and a receiver.
struct Rendezvous {
    std::vector<std::shared_ptr<Kernel>>
        kernels; // [all ranks, or sender and receiver]; NULL: it has not begun
    std::vector<Part> parts;
    int missing, staying; // kernels that have not begun; that have not ended
    bool moved;           // the data
};

// A rank's place in a clique.
struct Member {
    bool joined = false, finalized = false, aborted = false;
    int gpu = 0;
    int64_t launched = 0, ended = 0; // kernels
    std::shared_ptr<Kernel> resident;
};

// (from, to, number), or (-1, -1, number) of a collective.
using Key = std::tuple<int, int, int64_t>;

// A communicator as all of its ranks see it.
struct Clique {
    std::string name;
    std::vector<Member> members;
    std::map<Key, int64_t>
        begun[2]; // how many operations of (rank or from, to, 0) a rank has begun, sending or receiving
    std::map<Key, Rendezvous> meetings;
};

// The lock of all cliques. It may be taken while the simulation is locked, which must not be locked while it is held.
std::mutex &cliques_lock();
using CliquesLock = std::lock_guard<std::mutex>;

// Puts one kernel with all the parts on a stream.
void launch_kernel(const std::shared_ptr<Clique> &clique, int rank, std::vector<Part> parts,
                   cudaStream_t stream);
// The kernels of a rank end, and do nothing.
void abort_kernels(Clique &clique, int rank);
bool kernels_ended(const Clique &clique, int rank);
