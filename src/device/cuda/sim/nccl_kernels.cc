// Runs the kernels of the simulated NCCL on the simulated streams.
#include "device/cuda/sim/nccl_kernels.h"
#include "base/half.h"
#include "device/cuda/sim/runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

std::mutex &cliques_lock() {
    static std::mutex *const lock = new std::mutex;
    return *lock;
}

static std::map<int, int> &residents() { // kernels on each GPU
    static auto *const count = new std::map<int, int>;
    return *count;
}

static int most_resident() {
    const char *text = getenv("TRIREME_SIM_RESIDENT");
    return text ? static_cast<int>(strtol(text, nullptr, 10)) : INT_MAX;
}

size_t bytes_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    case ncclFloat64: return 8;
    }
    return 0;
}

static bool is_message(const Part &part) {
    return part.operation == Operation::SEND || part.operation == Operation::RECEIVE;
}

static size_t bytes_of(const Part &part) { return part.count * bytes_of(part.type); }

// ---- words ------------------------------------------------------------------------------------------------

static std::string text_of(const Part &part) {
    static const char *const names[] = {"send to",   "receive from", "all-gather",
                                        "broadcast", "all-reduce",   "reduce-scatter"};
    std::string text = names[static_cast<int>(part.operation)];
    if (is_message(part)) text += " " + std::to_string(part.peer);
    text += " of " + std::to_string(part.count) + " x " + std::to_string(bytes_of(part.type)) + " bytes";
    if (part.operation == Operation::BROADCAST) text += " by " + std::to_string(part.peer);
    return text;
}

static std::string text_of(const Kernel &kernel) {
    std::string text = "rank " + std::to_string(kernel.rank) + ":";
    for (const Part &part : kernel.parts) text += " " + text_of(part) + ";";
    return text;
}

// ---- meeting ----------------------------------------------------------------------------------------------

static bool is_complete(const Kernel &kernel) {
    return std::all_of(kernel.meetings.begin(), kernel.meetings.end(),
                       [](const Rendezvous *meeting) { return !meeting->missing; });
}

// The meeting of a rank's next operation of this kind.
static Rendezvous &next_meeting(Clique &clique, int rank, const Part &part) {
    const bool message = is_message(part), sends = part.operation == Operation::SEND;
    const int from = sends ? rank : part.peer, to = sends ? part.peer : rank;
    int64_t &begun = clique.begun[sends][message ? Key{from, to, 0} : Key{rank, -1, 0}];
    Rendezvous &meeting = clique.meetings[message ? Key{from, to, begun} : Key{-1, -1, begun}];
    begun++;
    if (meeting.parts.empty()) {
        const size_t ranks = message ? 2 : clique.members.size();
        meeting.parts.resize(ranks);
        meeting.kernels.resize(ranks);
        meeting.missing = meeting.staying = static_cast<int>(ranks);
    }
    return meeting;
}

static bool fits(const Part &a, const Part &b) {
    if (a.count != b.count || a.type != b.type || is_message(a) != is_message(b)) return false;
    return is_message(a) || (a.operation == b.operation && a.sum == b.sum && a.peer == b.peer);
}

// What is wrong with a meeting to which all have come, or "".
static std::string wrong_meeting(const Clique &clique, const Rendezvous &meeting) {
    for (size_t i = 1; i < meeting.parts.size(); i++)
        if (!fits(meeting.parts[0], meeting.parts[i]))
            return "operations of the communicator '" + clique.name + "' that meet differ: rank " +
                   std::to_string(meeting.kernels[0]->rank) + ": " + text_of(meeting.parts[0]) + "; rank " +
                   std::to_string(meeting.kernels[i]->rank) + ": " + text_of(meeting.parts[i]);
    return "";
}

// Whether every rank that the kernel waits for makes progress, and may come to it later.
static bool gets_on(const Kernel &kernel, const std::vector<bool> &able) {
    for (size_t p = 0; p < kernel.parts.size(); p++)
        for (size_t i = 0; i < kernel.meetings[p]->kernels.size(); i++) {
            const size_t rank = static_cast<size_t>(!is_message(kernel.parts[p]) ? static_cast<int>(i)
                                                                                 : kernel.parts[p].peer);
            if (!kernel.meetings[p]->kernels[i] && !able[rank]) return false;
        }
    return true;
}

// The kernels of one communicator run one after the other: one that is there and waits holds up those that it waits
// for.
static std::string wrong_order(const Clique &clique) {
    std::vector<bool> able;
    for (const Member &m : clique.members) able.push_back(!m.resident || is_complete(*m.resident));
    for (bool more = true; more;) {
        more = false;
        for (size_t r = 0; r < able.size(); r++)
            if (!able[r] && gets_on(*clique.members[r].resident, able)) able[r] = more = true;
    }
    if (std::find(able.begin(), able.end(), false) == able.end()) return "";
    std::string text = "ranks of the communicator '" + clique.name + "' wait for each other:";
    for (size_t r = 0; r < able.size(); r++)
        if (!able[r]) text += " " + text_of(*clique.members[r].resident);
    return text;
}

static void end_simulation(const std::string &why) {
    if (why.empty()) return;
    fprintf(stderr, "simulated GPU: NCCL: %s\n", why.c_str());
    sim_fault(cudaErrorLaunchFailure);
}

static std::string come_to_meetings(const std::shared_ptr<Kernel> &kernel) {
    Clique &clique = *kernel->clique;
    std::string wrong;
    for (const Part &part : kernel->parts) {
        Rendezvous &meeting = next_meeting(clique, kernel->rank, part);
        const size_t place =
            is_message(part) ? part.operation == Operation::RECEIVE : static_cast<size_t>(kernel->rank);
        meeting.kernels[place] = kernel;
        meeting.parts[place] = part;
        kernel->meetings.push_back(&meeting);
        if (!--meeting.missing && wrong.empty()) wrong = wrong_meeting(clique, meeting);
    }
    return wrong.empty() ? wrong_order(clique) : wrong;
}

// ---- moving data ------------------------------------------------------------------------------------------

static float number(ncclDataType_t type, const char *x, size_t i) {
    uint16_t half;
    float single;
    memcpy(&half, x + 2 * i, type == ncclFloat32 ? 0 : sizeof half);
    memcpy(&single, x + 4 * i, type == ncclFloat32 ? sizeof single : 0);
    return type == ncclFloat32 ? single : type == ncclBfloat16 ? bf16_to_f32(half) : f16_to_f32(half);
}

static void set_number(ncclDataType_t type, char *x, size_t i, float value) {
    const uint16_t half = type == ncclBfloat16 ? bf16_of_f32(value) : f16_of_f32(value);
    memcpy(x + i * bytes_of(type), type == ncclFloat32 ? static_cast<const void *>(&value) : &half,
           bytes_of(type));
}

// As NVIDIA's: along a ring that begins behind the rank that gets the slice, rounded at every hop; a maximum loses NaN.
static void reduce(const Rendezvous &meeting, bool scatters) {
    const size_t ranks = meeting.parts.size(), count = meeting.parts[0].count,
                 slice = scatters ? count : (count + ranks - 1) / ranks,
                 all = scatters ? ranks * count : count;
    const ncclDataType_t type = meeting.parts[0].type;
    std::vector<char> sums(all * bytes_of(type));
    for (size_t i = 0; i < all; i++) {
        const size_t owner = i / slice;
        for (size_t hop = 0; hop < ranks; hop++) {
            const char *from = static_cast<const char *>(meeting.parts[(owner + 1 + hop) % ranks].from);
            const float x = number(type, from, i), sum = hop ? number(type, sums.data(), i) : 0;
            set_number(type, sums.data(), i,
                       !hop                              ? x
                       : meeting.parts[0].sum == ncclMax ? (x > sum || sum != sum ? x : sum)
                                                         : sum + x);
        }
    }
    for (size_t r = 0; r < ranks; r++)
        memcpy(meeting.parts[r].to, sums.data() + (scatters ? r * bytes_of(meeting.parts[r]) : 0),
               bytes_of(meeting.parts[r]));
}

static void gather(const Rendezvous &meeting) {
    const size_t bytes = bytes_of(meeting.parts[0]);
    for (const Part &into : meeting.parts)
        for (size_t r = 0; r < meeting.parts.size(); r++)
            memmove(static_cast<char *>(into.to) + r * bytes, meeting.parts[r].from, bytes);
}

static void move_data(const Rendezvous &meeting) {
    const Part &first = meeting.parts[0];
    switch (first.operation) {
    case Operation::SEND:
    case Operation::RECEIVE: memmove(meeting.parts[1].to, first.from, bytes_of(first)); return;
    case Operation::GATHER: gather(meeting); return;
    case Operation::BROADCAST:
        for (const Part &into : meeting.parts)
            memmove(into.to, meeting.parts[static_cast<size_t>(first.peer)].from, bytes_of(first));
        return;
    case Operation::REDUCE:
    case Operation::SCATTER: reduce(meeting, first.operation == Operation::SCATTER); return;
    }
}

// ---- the two entries of a kernel --------------------------------------------------------------------------

static bool may_begin(const Kernel &kernel) {
    CliquesLock lock(cliques_lock());
    const Member &m = kernel.clique->members[static_cast<size_t>(kernel.rank)];
    return m.aborted || (m.ended == kernel.number && residents()[kernel.gpu] < most_resident());
}

static void begin(const std::shared_ptr<Kernel> &kernel) {
    std::string wrong;
    {
        CliquesLock lock(cliques_lock());
        Member &m = kernel->clique->members[static_cast<size_t>(kernel->rank)];
        if (m.aborted) return;
        residents()[kernel->gpu]++;
        m.resident = kernel;
        wrong = come_to_meetings(kernel);
    }
    end_simulation(wrong);
}

static bool may_end(const Kernel &kernel) {
    CliquesLock lock(cliques_lock());
    return kernel.clique->members[static_cast<size_t>(kernel.rank)].aborted || is_complete(kernel);
}

static void leave_meetings(Kernel &kernel) {
    auto &meetings = kernel.clique->meetings;
    for (Rendezvous *meeting : kernel.meetings)
        if (!--meeting->staying)
            meetings.erase(std::find_if(meetings.begin(), meetings.end(),
                                        [=](const auto &row) { return &row.second == meeting; }));
    kernel.meetings.clear();
}

// Whoever of those that meet ends first moves the data of all.
static void end(const std::shared_ptr<Kernel> &kernel) {
    CliquesLock lock(cliques_lock());
    Member &m = kernel->clique->members[static_cast<size_t>(kernel->rank)];
    if (m.aborted) return;
    for (Rendezvous *meeting : kernel->meetings)
        if (!meeting->moved) {
            move_data(*meeting);
            meeting->moved = true;
        }
    leave_meetings(*kernel);
    residents()[kernel->gpu]--;
    m.resident = nullptr;
    m.ended++;
}

void launch_kernel(const std::shared_ptr<Clique> &clique, int rank, std::vector<Part> parts,
                   cudaStream_t stream) {
    auto kernel = std::make_shared<Kernel>();
    kernel->clique = clique;
    kernel->rank = rank;
    kernel->parts = std::move(parts);
    {
        CliquesLock lock(cliques_lock());
        Member &m = clique->members[static_cast<size_t>(rank)];
        kernel->gpu = m.gpu;
        kernel->number = m.launched++;
    }
    sim_launch_when(
        stream, "an NCCL kernel", [kernel] { return may_begin(*kernel); }, [kernel] { begin(kernel); });
    sim_launch_when(
        stream, "an NCCL kernel", [kernel] { return may_end(*kernel); }, [kernel] { end(kernel); });
}

void abort_kernels(Clique &clique, int rank) {
    {
        CliquesLock lock(cliques_lock());
        Member &m = clique.members[static_cast<size_t>(rank)];
        m.aborted = true;
        if (m.resident) residents()[m.gpu]--;
        m.resident = nullptr;
        if (std::all_of(clique.members.begin(), clique.members.end(),
                        [](const Member &x) { return x.aborted; }))
            clique.meetings.clear(); // kernels that hold the clique
    }
    sim_get_on(0);
}

bool kernels_ended(const Clique &clique, int rank) {
    CliquesLock lock(cliques_lock());
    const Member &m = clique.members[static_cast<size_t>(rank)];
    return m.ended == m.launched;
}
