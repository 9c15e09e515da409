// The check device: the cpu backend as a GPU would be, so that code that passes here does not trip over one.
//   later      Operations and copies are queued and run later, on one thread per stream, with random delays (queue.c).
//              TRIREME_CHECK_SEED chooses the delays.
//   apart      The host sees addresses that it may not touch: an access ends the job (memory.c). Freed memory stays
//              forbidden until the device is closed. Every allocation lies between canaries.
//   order      A record of who wrote and read which bytes (record.c) finds, when an operation is launched, what a
//              stream does without having waited for another stream, what host code or a message uses at the same time,
//              and what is read before it is written. It looks at the waits alone, not at the time: a missing wait is
//              found in every run that comes past it.
//   numbers    The first number that an operation writes and that is not finite ends the job with ERR_NUMERIC.
// All faults but that one are bugs (ERR_BUG). A message names both operations and the instructions they belong to.
//
// Threads. The rank's own thread launches: it alone reads and changes the record and the list of regions. The streams'
// threads run entries; `lock` guards the queues and the marks.
#pragma once
#include "device/backend.h"
#include <pthread.h>

enum {
    MAX_STREAMS = 4,
    HOST = MAX_STREAMS,
    QUEUE_ENTRIES = 512,
    MAX_JOINS = 64,
    MAX_ARGS_BYTES = 544,
    DOING_BYTES = 20
};

// One use of some bytes, by an operation of a stream or by the host, whose uses are over when they are recorded.
typedef struct {
    const char *what, *tensor; // "matmul", "d"; NULL: there was no use
    int stream;                // index, or HOST
    int64_t number;            // in the order of its stream
    char doing[DOING_BYTES];   // the rank's instruction then
} Use;

// Bytes [begin, end) of a region that have the same history.
typedef struct {
    size_t begin, end;
    const char *block; // its name, NULL: none has begun here
    Use write;
    Use reads[MAX_STREAMS + 1]; // since the last write, the last one of each stream
} Segment;

typedef struct Region {
    struct Region *next;
    char name[32];
    char *seen;  // what the host is given: no access
    char *plain; // the same bytes for the streams' threads; between canaries
    size_t bytes;
    bool freed;
    Segment *segments; // in order, all of [0, bytes)
    int num_segments, max_segments;
} Region;

// A use of memory that is under way on the host: a message or a collective.
typedef struct {
    int64_t number; // 0: the place is free
    Region *region;
    size_t begin, end;
    bool writes;
    Use use;
} OpenAccess;

// For each stream, up to which of its operations all are known to be over.
typedef struct {
    int64_t at[MAX_STREAMS + 1];
} StreamClock;

typedef enum {
    ENTRY_OP,
    ENTRY_COPY,
    ENTRY_ZERO,
    ENTRY_UPLOAD,
    ENTRY_DOWNLOAD,
    ENTRY_WAIT,
    ENTRY_MARK
} EntryKind;

typedef struct {
    EntryKind kind;
    DeviceOp op;
    _Alignas(16) char args[MAX_ARGS_BYTES]; // with plain addresses
    unsigned fresh;                         // tensors that hold nothing yet: bit i of tensor i
    Exec exec;
    void *to, *from; // plain; of an upload `from` is a copy, freed when it is done
    size_t bytes;
    const Region *regions[MAX_TENSORS]; // whose canaries are looked at
    int stream;                         // of a wait
    int64_t number;                     // of a wait or a mark
    const char *name;
    char doing[DOING_BYTES];
} QueueEntry;

typedef struct Queue Queue;
typedef struct CheckDevice CheckDevice;

struct Queue {
    CheckDevice *device;
    int index;
    const char *name;
    pthread_t thread;
    QueueEntry *entries; // a ring: [QUEUE_ENTRIES]
    // Numbers of entries: the last launched, the last run, the last that a thread waits for, and the first after which
    // waiting threads must be woken.
    int64_t launched, done, wanted, wake_at;
    int64_t hold;      // that the thread lets gather before it starts
    uint64_t random;   // of the delays
    bool open, ends;   // in use; the thread is to leave
    StreamClock clock; // what the next operation comes after
    // The last waits of the stream: the number of each wait's entry, and what was over once it was done.
    struct {
        int64_t number;
        StreamClock clock;
    } joins[MAX_JOINS];
    int num_joins;
};

// A mark is a place in a list until it is read.
typedef struct {
    bool used;
    const Queue *queue;
    int64_t entry;
    DeviceMark times;
} PendingMark;

struct CheckDevice {
    CheckDevice *next; // of all devices of the process
    struct Rank *rank;
    int threads;
    Queue queues[MAX_STREAMS];
    StreamClock host; // what the rank's thread has waited for
    Region *regions;
    OpenAccess *accesses;
    int num_accesses;
    int64_t last_access;
    PendingMark *marks; // DeviceMark.number is a place and one
    int num_marks;
    pthread_mutex_t lock;
    pthread_cond_t moved;
};

// ---- memory.c ---------------------------------------------------------------------------------------------

Status memory_open(CheckDevice *device); // lists it for the handler of SIGSEGV
void memory_close(CheckDevice *device);
void *memory_take(void *device, const char *name, size_t bytes, const char **why);
void memory_give_back(void *device, void *base, size_t bytes);
// The region that holds an address, also a freed one; NULL: it is no device memory of this device.
Region *memory_find(const CheckDevice *device, const void *address);
// The plain address of [data, data + bytes), with its region. CHECKs that it is live device memory.
void *memory_plain(const CheckDevice *device, const char *who, const char *what, const void *data,
                   size_t bytes, Region **region);
void memory_check_host(const CheckDevice *device, const char *who, const void *pointer);
void memory_check_canaries(const Region *region, const char *who);

// ---- record.c ---------------------------------------------------------------------------------------------

void record_begin(void *device, const char *name, void *address,
                  size_t bytes); // a block, of which nothing is written
// Records a use of [data, data + bytes). CHECKs that it comes after all uses that must be over before it. `plain` (may
// be NULL) gets the plain address. Returns whether nothing had been written there.
bool record_use(CheckDevice *device, const Use *use, const StreamClock *clock, void *data, size_t bytes,
                bool reads, bool writes, Region **region, void **plain);
void record_access(CheckDevice *device, const Use *use, const StreamClock *clock, HostAccess *access);
void record_access_end(CheckDevice *device, const HostAccess *access);
// CHECKs that no message uses the region.
void record_check_freeing(const CheckDevice *device, const Region *region);
// CHECKs that the host has waited for the last writes.
void record_check_host(const CheckDevice *device, const char *who, const void *data, size_t bytes);
void clock_join(StreamClock *clock, const StreamClock *other);
// Describes a use, for messages: "matmul of d (F3.1, stream compute)".
void use_describe(const CheckDevice *device, const Use *use, char *text, size_t size);
// Describes the block at a byte of a region, and who wrote there last.
void segment_describe(const CheckDevice *device, const Region *region, size_t offset, char *text,
                      size_t size);

// ---- queue.c ----------------------------------------------------------------------------------------------

// The seed of the delays, TRIREME_CHECK_SEED or 1. ERR_CONFIG where the variable holds no whole number.
Status device_queue_seed(int64_t *seed);
Status device_queue_open(void *device, const char *name, void **queue);
void device_queue_close(void *device, void *queue);
// A place for the next entry of a stream, which has its name, its number and the rank's instruction; then its launch.
QueueEntry *device_queue_next(Queue *queue, EntryKind kind, const char *name);
void device_queue_launch(Queue *queue);
void doing_now(char doing[DOING_BYTES]); // the rank's instruction
Use device_queue_use(const Queue *queue, const char *what,
                     const char *tensor); // by the entry that is to be launched
int64_t device_queue_event(const Exec *exec);
bool device_queue_wait(const Exec *exec, int64_t event, double seconds);
void device_queue_stream_wait(const Exec *exec, const Exec *of, int64_t event);
void device_queue_mark(const Exec *exec, DeviceMark *mark);
void device_queue_mark_read(void *device, DeviceMark *mark);
// Waits until everything that was launched is done.
void device_queue_settle(CheckDevice *device);
// Runs an entry, on its stream's thread.
void entry_run(QueueEntry *entry);
