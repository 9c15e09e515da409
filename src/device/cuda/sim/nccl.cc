// Simulates NCCL's communicators: how they are made, asked, ended, and given operations. nccl_kernels.h has what the
// operations do.
//
// As in NVIDIA's library with `blocking` 0, the only way that is simulated: a call may return before what it wants is
// done. Until ncclCommGetAsyncError has said so as often as was drawn, the communicator takes nothing else, and its
// kernels are on no stream. A group that is a single call says ncclSuccess all the same. Two ranks of a communicator on
// one GPU are refused, from 2.30 on unless NCCL_MULTI_RANK_GPU_ENABLE is 1.
//
//   TRIREME_SIM_NCCL=NNNNN,...   the version, of each GPU; 22809 if unset
//   TRIREME_SIM_FAIL=ncclGroupEnd:COUNT, and the same of ncclGetUniqueId, ncclCommInitRankConfig and ncclCommFinalize;
//   of ncclCommGetAsyncError: a remote rank is gone, from then on
#include "device/cuda/sim/nccl_kernels.h"
#include "device/cuda/sim/runtime.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

enum { MOST_POLLS = 4, FIRST_OF_SHARED_GPUS = 23000 };

struct Pending { // parts of a communicator, for one kernel
    std::vector<Part> parts;
    cudaStream_t stream;
};

struct ncclComm {
    std::shared_ptr<Clique> clique;
    int rank, size, gpu;
    ncclResult_t state; // ncclSuccess once it was made; an error stays
    int polls;          // so many answers to ncclCommGetAsyncError say that the last call is in progress
    std::vector<Pending> pending;
    bool finalizing;
};

static const char *const RESULTS[] = {
    "no error",
    "unhandled cuda error",
    "unhandled system error",
    "internal error - please report this issue to the NCCL developers",
    "invalid argument",
    "invalid usage",
    "remote process exited or there was a network error",
    "NCCL operation in progress",
};

static thread_local std::string last_error;

struct Communicators {
    std::set<const ncclComm *> alive;
    std::map<std::string, std::shared_ptr<Clique>> cliques; // by id
};

// With the lock of all cliques. They live as long as the process.
static Communicators &communicators() {
    static auto *const all = new Communicators;
    return *all;
}

extern "C" size_t sim_num_communicators() {
    CliquesLock lock(cliques_lock());
    return communicators().alive.size();
}

static bool is_alive(const ncclComm *comm) {
    CliquesLock lock(cliques_lock());
    return communicators().alive.count(comm);
}

static ncclResult_t refused(ncclResult_t result, const std::string &why) {
    last_error = why;
    return result;
}

// An error of the caller.
static ncclResult_t misuse(const char *call, const std::string &what) {
    fprintf(stderr, "simulated GPU: %s: %s\n", call, what.c_str());
    return refused(ncclInvalidUsage, what);
}

const char *ncclGetErrorString(ncclResult_t result) {
    const auto i = static_cast<size_t>(result);
    return i < sizeof RESULTS / sizeof *RESULTS ? RESULTS[i] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

static int version_here() {
    const char *text = getenv("TRIREME_SIM_NCCL");
    for (int gpu = 0; text && gpu < sim_gpu() && strchr(text, ','); gpu++) text = strchr(text, ',') + 1;
    return text ? static_cast<int>(strtol(text, nullptr, 10)) : 22809;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = version_here();
    return ncclSuccess;
}

// ---- making -----------------------------------------------------------------------------------------------

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static std::atomic<int64_t> count;
    if (sim_fails("ncclGetUniqueId"))
        return refused(ncclSystemError, "Call to socket failed: Address already in use");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "clique %lld", static_cast<long long>(count++));
    return ncclSuccess;
}

static int drawn_polls() { return static_cast<int>(sim_draw() % MOST_POLLS); }

static const char *wrong_config(const ncclConfig_t *config) {
    if (!config || config->magic != NCCL_CONFIG_MAGIC || config->size != sizeof *config)
        return "a configuration that NCCL_CONFIG_INITIALIZER has not made";
    if (config->blocking) return "communicators that block are not simulated";
    return config->maxCTAs < 1 && config->maxCTAs != INT_MIN ? "maxCTAs of less than one" : nullptr;
}

// The ranks of a communicator give the same id and the same size, each its own rank.
static const char *join(const std::string &id, int size, int rank, const ncclConfig_t *config,
                        std::shared_ptr<Clique> *clique) {
    CliquesLock lock(cliques_lock());
    auto &found = communicators().cliques[id];
    if (!found) {
        found = std::make_shared<Clique>();
        found->name = config->commName ? config->commName : id;
        found->members.resize(static_cast<size_t>(size));
    }
    if (found->members.size() != static_cast<size_t>(size)) return "ranks that give different sizes";
    Member &m = found->members[static_cast<size_t>(rank)];
    if (m.joined) return "two ranks with the same number";
    m.joined = true;
    m.gpu = sim_gpu();
    *clique = found;
    return nullptr;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    const char *call = "ncclCommInitRankConfig";
    std::shared_ptr<Clique> clique;
    *comm = nullptr;
    if (const char *what = wrong_config(config)) return misuse(call, what);
    if (size < 1 || rank < 0 || rank >= size) return misuse(call, "a rank that is not among the ranks");
    if (sim_fails(call)) return refused(ncclSystemError, "Call to connect failed: Connection refused");
    if (const char *what = join(id.internal, size, rank, config, &clique)) return misuse(call, what);
    *comm = new ncclComm{clique, rank, size, sim_gpu(), ncclInProgress, drawn_polls(), {}, false};
    CliquesLock lock(cliques_lock());
    communicators().alive.insert(*comm);
    return ncclInProgress;
}

static bool shares_gpus() {
    const char *text = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return version_here() >= FIRST_OF_SHARED_GPUS && text && !strcmp(text, "1");
}

// Once all ranks have come.
static ncclResult_t made(const Clique &clique) {
    for (size_t a = 0; a < clique.members.size(); a++)
        for (size_t b = 0; b < a; b++)
            if (clique.members[a].gpu == clique.members[b].gpu && !shares_gpus())
                return refused(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(a) +
                                                     " and rank " + std::to_string(b) +
                                                     " both on CUDA device " +
                                                     std::to_string(clique.members[a].gpu));
    return ncclSuccess;
}

template <class Property> static bool all_members(const Clique &clique, Property holds) {
    CliquesLock lock(cliques_lock());
    return std::all_of(clique.members.begin(), clique.members.end(), holds);
}

static ncclResult_t launch_pending(ncclComm *comm) {
    for (Pending &kernel : comm->pending)
        launch_kernel(comm->clique, comm->rank, std::move(kernel.parts), kernel.stream);
    comm->pending.clear();
    return ncclSuccess;
}

// What an operation under way is now.
static ncclResult_t get_on(ncclComm *comm) {
    if (comm->polls-- > 0) return ncclInProgress;
    comm->polls = 0;
    if (!comm->finalizing && comm->state == ncclInProgress && comm->pending.empty()) {
        if (!all_members(*comm->clique, [](const Member &m) { return m.joined; })) return ncclInProgress;
        return made(*comm->clique);
    }
    if (!comm->finalizing) return launch_pending(comm);
    sim_get_on(1);
    if (!kernels_ended(*comm->clique, comm->rank)) return ncclInProgress;
    if (!all_members(*comm->clique, [](const Member &m) { return !m.aborted; }))
        return refused(ncclRemoteError, "a remote rank has aborted");
    return all_members(*comm->clique, [](const Member &m) { return m.finalized; }) ? ncclSuccess
                                                                                   : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    if (!is_alive(comm)) return misuse("ncclCommGetAsyncError", "a communicator that does not exist");
    if (sim_fails("ncclCommGetAsyncError")) {
        comm->state = ncclRemoteError;
        last_error = "NET/Socket : remote peer closed the connection";
    }
    if (comm->state == ncclInProgress) comm->state = get_on(comm);
    *state = comm->state;
    return ncclSuccess;
}

// ---- ending -----------------------------------------------------------------------------------------------

// Why a communicator takes no call now, or NULL.
static const char *not_ready(const ncclComm *comm) {
    if (!is_alive(comm)) return "a communicator that does not exist";
    if (comm->state == ncclInProgress)
        return "Attempt to use communicator before the previous operation returned ncclSuccess";
    return comm->finalizing ? "a communicator that was finalized" : nullptr;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (const char *what = not_ready(comm)) return misuse("ncclCommFinalize", what);
    if (sim_fails("ncclCommFinalize"))
        return refused(ncclSystemError, "Call to close failed: Bad file descriptor");
    comm->finalizing = true;
    comm->state = ncclInProgress;
    comm->polls = drawn_polls();
    CliquesLock lock(cliques_lock());
    comm->clique->members[static_cast<size_t>(comm->rank)].finalized = true;
    return ncclInProgress;
}

static void forget(ncclComm *comm) {
    {
        CliquesLock lock(cliques_lock());
        auto &cliques = communicators().cliques;
        communicators().alive.erase(comm);
        for (auto row = cliques.begin(); row != cliques.end();)
            row = row->second.use_count() <= 2 && row->second == comm->clique ? cliques.erase(row) : ++row;
    }
    delete comm;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!is_alive(comm)) return misuse("ncclCommDestroy", "a communicator that does not exist");
    if (!comm->finalizing || comm->state == ncclInProgress)
        return misuse("ncclCommDestroy", "a communicator that is in use");
    forget(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!is_alive(comm)) return misuse("ncclCommAbort", "a communicator that does not exist");
    abort_kernels(*comm->clique, comm->rank);
    forget(comm);
    return ncclSuccess;
}

// ---- operations -------------------------------------------------------------------------------------------

// The operations of a thread since its first ncclGroupStart.
struct Group {
    int depth = 0;
    std::map<ncclComm *, Pending> parts;
    ncclResult_t wrong = ncclSuccess;
};
static thread_local Group group;

ncclResult_t ncclGroupStart() {
    group.depth++;
    return ncclSuccess;
}

// `alone`: the group is one call, which does not say that its kernel is not on the stream yet.
static ncclResult_t end_group(bool alone) {
    Group done = std::move(group);
    group = {};
    ncclResult_t result = done.wrong;
    if (result == ncclSuccess && sim_fails("ncclGroupEnd"))
        result = refused(ncclSystemError, "Call to ibv_create_qp failed");
    for (auto &row : done.parts) {
        if (result != ncclSuccess && result != ncclInProgress) return result;
        row.first->pending.push_back(std::move(row.second));
        row.first->polls = drawn_polls();
        if (row.first->polls == 0)
            launch_pending(row.first);
        else
            row.first->state = result = ncclInProgress;
    }
    return alone && result == ncclInProgress ? ncclSuccess : result;
}

ncclResult_t ncclGroupEnd() {
    if (!group.depth) return misuse("ncclGroupEnd", "there is no group");
    return --group.depth ? ncclSuccess : end_group(false);
}

static const char *wrong_part(const ncclComm *comm, const Part &part, size_t bytes_from, size_t bytes_to,
                              cudaStream_t stream) {
    if (const char *what = not_ready(comm)) return what;
    if (comm->state != ncclSuccess) return "a communicator with an error";
    if (!stream) return "the default stream is not simulated";
    if (comm->gpu != sim_gpu()) return "a communicator of another GPU";
    if (part.peer < 0 || part.peer >= comm->size) return "a rank that is not in the communicator";
    if (part.from && bytes_from && !sim_is_device(part.from, bytes_from))
        return "memory to read that is not the GPU's";
    return part.to && bytes_to && !sim_is_device(part.to, bytes_to) ? "memory to write that is not the GPU's"
                                                                    : nullptr;
}

// `reads` and `writes`: how often its count.
static ncclResult_t add(const char *call, ncclComm_t comm, cudaStream_t stream, Part part, int reads,
                        int writes) {
    const size_t bytes = part.count * bytes_of(part.type);
    const char *what = wrong_part(comm, part, bytes * static_cast<size_t>(reads),
                                  bytes * static_cast<size_t>(writes), stream);
    if (!what && group.parts.count(comm) && group.parts[comm].stream != stream)
        what = "several streams for one communicator in a group";
    if (what) {
        const ncclResult_t result = misuse(call, what);
        if (group.depth) group.wrong = result;
        return result;
    }
    group.parts[comm].stream = stream;
    group.parts[comm].parts.push_back(part);
    return group.depth ? ncclSuccess : end_group(true);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream) {
    return add("ncclSend", comm, stream, {Operation::SEND, from, nullptr, count, type, ncclSum, to}, 1, 0);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream) {
    return add("ncclRecv", comm, stream, {Operation::RECEIVE, nullptr, to, count, type, ncclSum, from}, 0, 1);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return add("ncclAllGather", comm, stream, {Operation::GATHER, from, to, count, type, ncclSum, 0}, 1,
               comm ? comm->size : 1);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return add("ncclBroadcast", comm, stream, {Operation::BROADCAST, from, to, count, type, ncclSum, root}, 1,
               1);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return add("ncclAllReduce", comm, stream, {Operation::REDUCE, from, to, count, type, op, 0}, 1, 1);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return add("ncclReduceScatter", comm, stream, {Operation::SCATTER, from, to, count, type, op, 0},
               comm ? comm->size : 1, 1);
}
