// Writes the file of --trace, in the JSON of Chrome's and Perfetto's viewers: one process per rank, one thread per row.
//
// The first line opens the object and describes the run under "otherData"; then every event is a line. Each rank
// formats its own events; rank 0 receives them one rank after another, block by block.
#include "base/trace.h"
#include "formats/formats.h"
#include "train/internal.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BLOCK_BYTES = 1 << 20, // of text per message
    CLOCK_ROUNDS = 8,
    MAX_LANES = 16, // of one row
    MAX_DEPTH = 16, // of spans within spans
    NS_PER_US = 1000
};

// ---- opening: before the first step -----------------------------------------------------------------------

static Status open_temporary(TraceFile *trace) {
    trace->file = fopen(text_string(&trace->temporary), "w");
    if (trace->file) return OK;
    return fail(create_status(), "--trace %s: cannot create %s: %s", trace->path,
                text_string(&trace->temporary), strerror(errno));
}

static void remove_temporary(TraceFile *trace) {
    if (!trace->file) return;
    fclose(trace->file);
    unlink(text_string(&trace->temporary));
    trace->file = NULL;
}

// The file exists only while it is written, so a killed run leaves none.
static Status try_file(TraceFile *trace) {
    struct stat st;
    if (stat(trace->path, &st) == 0 && !S_ISREG(st.st_mode))
        return fail(ERR_CREATE, "--trace %s: it is there, and not a regular file", trace->path);
    text_add(&trace->temporary, "%s.tmp", trace->path);
    TRY(open_temporary(trace));
    remove_temporary(trace);
    return OK;
}

// Measures how far the clock of `rank` is ahead of rank 0's, by the fastest of some round trips (Cristian 1989). The
// error is at most half a round trip; a smaller difference counts as none.
static double ask_clock(Comm *world, int rank) {
    double quickest = INFINITY, ahead = 0;
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        double asked = clock_s(), theirs;
        comm_send_host(world, &asked, sizeof asked, rank);
        comm_recv_host(world, &theirs, sizeof theirs, rank);
        double took = clock_s() - asked;
        if (took < quickest) quickest = took, ahead = theirs - (asked + took / 2);
    }
    return fabs(ahead) <= quickest / 2 ? 0 : ahead;
}

static void answer_clock(Comm *world) {
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        double theirs, mine;
        comm_recv_host(world, &theirs, sizeof theirs, 0);
        mine = clock_s();
        comm_send_host(world, &mine, sizeof mine, 0);
    }
}

// Sets time 0 of the trace on the clock of this rank, the same moment on all ranks.   Collective over the world.
static double agree_origin(Comm *world) {
    double origin = clock_s();
    comm_broadcast_host(world, &origin, sizeof origin, 0);
    if (comm_rank(world) > 0) {
        double ahead;
        answer_clock(world);
        comm_recv_host(world, &ahead, sizeof ahead, 0);
        return origin + ahead;
    }
    for (int rank = 1; rank < comm_size(world); rank++) {
        double ahead = ask_clock(world, rank);
        comm_send_host(world, &ahead, sizeof ahead, rank);
    }
    return origin;
}

Status trace_file_open(TraceFile *trace, const Options *o, Comm *world) {
    *trace = (TraceFile){.world = world};
    if (!o->trace || o->dry_run) return OK;
    trace->path = o->trace;
    return comm_agree(world, comm_rank(world) == 0 ? try_file(trace) : OK);
}

Status trace_file_start(TraceFile *trace, const Options *o) {
    if (!trace->path) return OK;
    bool opened = trace_open((size_t)o->trace_events);
    TRY(comm_agree(trace->world,
                   opened ? OK : fail(ERR_OS, "no memory for --trace-events %d", o->trace_events)));
    trace->origin_s = agree_origin(trace->world);
    rank_current()->trace->count = 0; // the messages up to here are not part of the run
    return OK;
}

void trace_file_close(TraceFile *trace) {
    trace_close();
    remove_temporary(trace);
    text_free(&trace->temporary);
    *trace = (TraceFile){0};
}

// ---- the description of the run --------------------------------------------------------------

static void add_head(const EngineSpec *spec, const Schedule *schedule, Text *out) {
    const ModelShape *m = &spec->shape;
    Text programs = {0};
    schedule_print(schedule, &programs);
    text_add(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"trireme\",\"version\":1,");
    text_add(out, "\"grid\":{");
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (axis != AXIS_EDP) // which follows from the others
            text_add(out, "%s\"%s\":%d", axis ? "," : "", topology_axes[axis].name,
                     grid_along(spec->grid, axis));
    text_add(out, "},");
    text_add(out, "\"model\":{\"layers\":%d,\"hidden\":%d,\"heads\":%d,\"ffn\":%d,\"sequence\":%d,",
             m->layers, m->hidden, m->heads, m->ffn, m->sequence);
    text_add(out, "\"vocabulary\":%d,\"microbatch\":%d,\"dtype\":\"%s\"},", m->vocabulary,
             spec->mode.microbatch, dtype_name(spec->mode.dtype));
    text_add(out, "\"schedule_kind\":\"%s\",\"schedule\":", spec->schedule);
    json_add_string(out, text_string(&programs), programs.size);
    text_add(out, "},\"traceEvents\":[\n");
    text_free(&programs);
}

// ---- one rank's events --------------------------------------------------------------------------

// The rows of a rank in the file: those it records, and one for its waits, which never overlap.
enum { ROW_WAITS = NUM_TRACE_ROWS, NUM_ROWS };

static const char *const row_names[NUM_ROWS] = {"pipeline", "communication", "step", "waits"};

static int row_of(const TraceEvent *event) {
    return strcmp(event->name, "wait") ? (int)event->row : (int)ROW_WAITS;
}

// In the viewers the spans of one thread must be nested or separate. A row whose spans overlap otherwise, such as
// messages under way at the same time, gets several lanes.
typedef struct {
    int64_t ends_ns[MAX_DEPTH]; // of the open spans, outermost first
    int depth;
} Lane;

typedef struct {
    TraceFile *trace;
    Trace *events; // of this rank
    int rank;
    Lane lanes[NUM_ROWS][MAX_LANES];
    int num_lanes[NUM_ROWS];
    Text text;
    bool begun;  // a line has been written and not ended
    bool failed; // a write to the file has failed
} Writer;

static int64_t nanoseconds(const TraceFile *trace, double s) {
    return (int64_t)llround((s - trace->origin_s) * 1e9);
}

// Orders spans by their start, and a span before those that it contains.
static int compare_events(const void *a, const void *b) {
    const TraceEvent *x = a, *y = b;
    if (x->start_s < y->start_s || x->start_s > y->start_s) return x->start_s < y->start_s ? -1 : 1;
    return (x->end_s < y->end_s) - (x->end_s > y->end_s);
}

static bool lane_takes(Lane *lane, int64_t start_ns, int64_t end_ns) {
    while (lane->depth && lane->ends_ns[lane->depth - 1] <= start_ns) lane->depth--;
    if (lane->depth == MAX_DEPTH || (lane->depth && lane->ends_ns[lane->depth - 1] < end_ns)) return false;
    lane->ends_ns[lane->depth++] = end_ns;
    return true;
}

// The lane of this span. The last lane takes spans that fit into no other.
static int choose_lane(Writer *w, int row, int64_t start_ns, int64_t end_ns) {
    int lane = 0;
    while (lane < MAX_LANES - 1 && !lane_takes(&w->lanes[row][lane], start_ns, end_ns)) lane++;
    return lane;
}

static int thread_id(int row, int lane) { return row * MAX_LANES + lane; }

// The lines of all ranks follow each other; a comma ends the line before.
static void begin_line(Writer *w) {
    text_add(&w->text, "%s", w->begun ? ",\n" : "");
    w->begun = true;
}

static void add_lane_name(Writer *w, int row, int lane) {
    char number[16] = "";
    if (lane) snprintf(number, sizeof number, " %d", lane + 1);
    begin_line(w);
    text_add(&w->text,
             "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s%s\"}}",
             w->rank, thread_id(row, lane), row_names[row], number);
    w->num_lanes[row] = lane + 1;
}

static void add_arguments(Text *out, const TraceEvent *event) {
    const char *comma = "";
    const struct {
        const char *name;
        int64_t value;
        bool known;
    } numbers[] = {
        {"chunk", event->chunk, event->chunk >= 0},
        {event->row == TRACE_STEP ? "iteration" : "microbatch", event->microbatch, event->microbatch >= 0},
        {"peer", event->peer, event->peer >= 0},
        {"bytes", event->bytes, event->bytes > 0},
    };
    text_add(out, "\"args\":{");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!numbers[i].known) continue;
        text_add(out, "%s\"%s\":%" PRId64, comma, numbers[i].name, numbers[i].value);
        comma = ",";
    }
    if (event->group) text_add(out, "%s\"group\":\"%s\"", comma, event->group);
    text_add(out, "}");
}

static void add_event(Writer *w, const TraceEvent *event) {
    int64_t start = nanoseconds(w->trace, event->start_s), end = nanoseconds(w->trace, event->end_s);
    int64_t ns = end > start ? end - start : 0, from = start > 0 ? start : 0;
    int row = row_of(event), lane = choose_lane(w, row, from, from + ns);
    if (lane >= w->num_lanes[row]) add_lane_name(w, row, lane);
    begin_line(w);
    text_add(&w->text,
             "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64
             ".%03" PRId64 ",\"dur\":%" PRId64 ".%03" PRId64 ",",
             event->name, row_names[row], w->rank, thread_id(row, lane), from / NS_PER_US, from % NS_PER_US,
             ns / NS_PER_US, ns % NS_PER_US);
    add_arguments(&w->text, event);
    text_add(&w->text, "}");
}

static void add_rank_name(Writer *w, Grid grid, uint64_t lost) {
    begin_line(w);
    text_add(&w->text,
             "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d %s\","
             "\"lost\":%" PRIu64 "}}",
             w->rank, w->rank, place_name(grid, grid_place(grid, w->rank)).text, lost);
}

// ---- from all ranks into the file ----------------------------------------------------------------

static void write_block(Writer *w, const char *bytes, size_t size) {
    if (w->trace->file && !w->failed) w->failed = fwrite(bytes, 1, size, w->trace->file) != size;
}

// An empty block ends the events of a rank.
static void pass_on(Writer *w) {
    if (w->rank == 0) {
        write_block(w, text_string(&w->text), w->text.size);
    } else {
        uint64_t size = w->text.size;
        comm_send_host(w->trace->world, &size, sizeof size, 0);
        if (size) comm_send_host(w->trace->world, w->text.data, size, 0);
    }
    w->text.size = 0;
}

static void write_rank(Writer *w, const EngineSpec *spec) {
    Trace *trace = w->events;
    uint64_t lost = trace_lost(trace), count = trace->count - lost;
    qsort(trace->events, count, sizeof *trace->events, compare_events);
    add_rank_name(w, spec->grid, lost);
    for (int row = 0; row < NUM_ROWS; row++) add_lane_name(w, row, 0);
    for (uint64_t i = 0; i < count; i++) {
        add_event(w, &trace->events[i]);
        if (w->text.size >= BLOCK_BYTES) pass_on(w);
    }
    if (w->text.size) pass_on(w);
}

static void take_rank(Writer *w, char *block, size_t capacity, int from) {
    for (;;) {
        uint64_t size;
        comm_recv_host(w->trace->world, &size, sizeof size, from);
        if (!size) return;
        CHECK(size <= capacity, "a block of %" PRIu64 " bytes from rank %d", size, from);
        comm_recv_host(w->trace->world, block, size, from);
        write_block(w, block, size);
    }
}

static Status finish_file(Writer *w) {
    TraceFile *trace = w->trace;
    const char *temporary = text_string(&trace->temporary);
    write_block(w, "\n]}\n", 4);
    bool written = fclose(trace->file) == 0 && !w->failed;
    trace->file = NULL;
    if (written && rename(temporary, trace->path) == 0) return OK;
    Status status = fail(create_status(), "--trace %s: cannot write it: %s", trace->path, strerror(errno));
    unlink(temporary);
    return status;
}

static Status write_all(Writer *w, const EngineSpec *spec, const Schedule *schedule) {
    enum { LONGEST_LINE = 4096 };
    size_t capacity = BLOCK_BYTES + LONGEST_LINE;
    char *block = malloc(capacity);
    CHECK(block, "no memory for %zu bytes of the trace", capacity);
    Status opened = open_temporary(w->trace); // the other ranks send in any case
    add_head(spec, schedule, &w->text);
    pass_on(w);
    write_rank(w, spec);
    for (int rank = 1; rank < comm_size(w->trace->world); rank++) take_rank(w, block, capacity, rank);
    free(block);
    return opened == OK ? finish_file(w) : opened;
}

// The rank records nothing while it sends its events.
Status trace_file_write(TraceFile *trace, const EngineSpec *spec, const Schedule *schedule, uint64_t *lost) {
    Rank *rank = rank_current();
    Writer *w = calloc(1, sizeof *w);
    CHECK(w, "no memory to write the trace");
    *w = (Writer){.trace = trace, .events = rank->trace, .rank = comm_rank(trace->world)};
    w->begun = w->rank > 0;
    rank->trace = NULL;
    rank_doing("writing the trace");
    double most_lost = (double)trace_lost(w->events);
    Status status = OK;
    if (w->rank == 0) {
        status = write_all(w, spec, schedule);
    } else {
        write_rank(w, spec);
        pass_on(w);
    }
    comm_all_reduce_host(trace->world, &most_lost, 1, REDUCE_MAX);
    *lost = (uint64_t)most_lost;
    status = comm_agree(trace->world, status);
    rank->trace = w->events;
    text_free(&w->text);
    free(w);
    return status;
}
