// Reads the files that train/trace_file.c writes: the first line opens the object and describes the run, every other
// line is an event. They are read line by line, so a file may have any size, and one that was cut off is recognised.
#include "base/file.h"
#include "formats/formats.h"
#include "report/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 1 << 20 };

typedef struct {
    const char *path;
    TracedRun *run;
    FILE *file;
    char *line;
    size_t capacity;
    long long number; // of the line
    Text head;
} Reader;

// ---- values of objects, checked -----------------------------------------------------------------

static Status bad(const Reader *r, const char *what) {
    return fail(ERR_DATA, "%s: line %lld: %s; a file of `trireme train --trace` is expected", r->path,
                r->number, what);
}

static bool get_int(const Json *object, const char *name, int64_t least, int64_t most, int64_t *value) {
    return json_int(json_member(object, name), value) && *value >= least && *value <= most;
}

static const char *get_string(const Json *object, const char *name) {
    return json_string(json_member(object, name));
}

static bool get_time(const Json *object, const char *name, double *us) {
    return json_double(json_member(object, name), us) && *us >= 0 && *us < 1e15;
}

static const Json *get_object(const Json *object, const char *name) {
    const Json *member = json_member(object, name);
    return member && member->type == JSON_OBJECT ? member : NULL;
}

// Parses a line that is exactly one JSON object; NULL otherwise.
static Json *parse_object(const Reader *r, const char *text, size_t size) {
    Json *object;
    if (json_parse(&object, text, size, r->path) != OK) return NULL;
    if (object->type == JSON_OBJECT) return object;
    json_free(object);
    return NULL;
}

// ---- the first line -----------------------------------------------------------------------------

// Multiplies the numbers of ranks along the axes of a view that are set. Returns false beyond MAX_RANKS.
static bool fits_view(Grid grid, View view) {
    int64_t ranks = 1;
    for (Axis axis = 0; axis < NUM_AXES && ranks <= MAX_RANKS; axis++)
        if (topology_axes[axis].views & view && grid.size[axis]) ranks *= grid.size[axis];
    return ranks <= MAX_RANKS;
}

// Axes that have no name in every file count as 1 where they are absent, which they are in files of older versions.
static bool get_grid(const Json *sizes, Grid *grid) {
    for (Axis axis = 0; axis < NUM_AXES; axis++) {
        int64_t size = 0;
        if (axis == AXIS_EDP) continue;
        bool absent = !topology_axes[axis].named && !json_member(sizes, topology_axes[axis].name);
        if (!absent && !get_int(sizes, topology_axes[axis].name, 1, MAX_RANKS, &size)) return false;
        grid->size[axis] = (int)size;
    }
    return grid_along(*grid, AXIS_PP) <= SCHEDULE_MAX_RANKS && fits_view(*grid, VIEW_DENSE) &&
           fits_view(*grid, VIEW_EXPERTS) && grid_check(*grid) == OK;
}

static Status take_grid(Reader *r, const Json *data) {
    const Json *sizes = get_object(data, "grid");
    if (!sizes || !get_grid(sizes, &r->run->grid)) return bad(r, "no \"grid\" of ranks");
    int ranks = grid_size(r->run->grid);
    r->run->ranks = calloc((size_t)ranks, sizeof *r->run->ranks);
    if (!r->run->ranks) return fail(ERR_OS, "%s: no memory for %d ranks", r->path, ranks);
    r->run->num_ranks = ranks;
    return OK;
}

static Status take_schedule(Reader *r, const Json *data) {
    const char *kind = get_string(data, "schedule_kind"), *text = get_string(data, "schedule");
    if (!kind || !text || strlen(kind) >= sizeof r->run->kind) return bad(r, "no \"schedule\"");
    snprintf(r->run->kind, sizeof r->run->kind, "%s", kind);
    Schedule schedule;
    Status status = schedule_parse(&schedule, text);
    if (status != OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", fail_message());
        return fail(status, "%s: line 1: its schedule: %s", r->path, why);
    }
    r->run->schedule = schedule;
    if (schedule.num_ranks != grid_along(r->run->grid, AXIS_PP))
        return bad(r, "a schedule of another number of ranks");
    return OK;
}

// The first line ends where the array of events begins; closing the array makes it an object.
static Status read_head(Reader *r, size_t size) {
    static const char opening[] = "\"traceEvents\":[\n";
    size_t tail = sizeof opening - 1;
    if (size < tail || memcmp(r->line + size - tail, opening, tail)) return bad(r, "it opens no trace");
    text_add_bytes(&r->head, r->line, size);
    text_add(&r->head, "]}");
    Json *object = parse_object(r, r->head.data, r->head.size);
    const Json *data = object ? get_object(object, "otherData") : NULL;
    int64_t version;
    Status status = OK;
    if (!data || !get_int(data, "version", 1, 1, &version)) status = bad(r, "it opens no trace of version 1");
    if (status == OK) status = take_grid(r, data);
    if (status == OK) status = take_schedule(r, data);
    json_free(object);
    return status;
}

// ---- events -------------------------------------------------------------------------------------

static void *grow(void *items, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return items;
    *capacity = *capacity ? 2 * *capacity : 256;
    void *grown = realloc(items, *capacity * size);
    CHECK(grown, "no memory for %zu events of a trace", *capacity);
    return grown;
}

static Status add_compute(Reader *r, TracedRank *rank, const Json *arguments, const char *name, Span span) {
    const Schedule *schedule = &r->run->schedule;
    int op = 0;
    int64_t chunk, microbatch;
    while (op < NUM_SCHEDULE_OPS && strcmp(name, schedule_ops[op].text)) op++;
    if (op == NUM_SCHEDULE_OPS || schedule_ops[op].kind != COMPUTE) return OK;
    if (!get_int(arguments, "chunk", 0, schedule->num_chunks - 1, &chunk) ||
        !get_int(arguments, "microbatch", 0, schedule->num_microbatches - 1, &microbatch))
        return bad(r, "a compute that the schedule does not have");
    rank->computes =
        grow(rank->computes, rank->num_computes, &rank->compute_capacity, sizeof *rank->computes);
    rank->computes[rank->num_computes++] =
        (TracedCompute){span, (uint8_t)op, (uint8_t)chunk, (int32_t)microbatch};
    return OK;
}

static Status add_step(Reader *r, TracedRank *rank, const Json *arguments, Span span) {
    int64_t iteration;
    if (!get_int(arguments, "iteration", 0, INT64_MAX, &iteration)) return bad(r, "a step without a number");
    rank->steps = grow(rank->steps, rank->num_steps, &rank->step_capacity, sizeof *rank->steps);
    rank->steps[rank->num_steps++] = (TracedStep){span, iteration};
    return OK;
}

// By the name of the group, which is that of a role. Groups of replicas are those of data parallelism, whatever part of
// the replicas they hold.
static WaitKind kind_of_wait(const char *group) {
    static const WaitKind kinds[NUM_ROLES] = {
        [ROLE_TENSOR] = WAIT_TP,
        [ROLE_CONTEXT] = WAIT_CP,
        [ROLE_DATA] = WAIT_DP,
        [ROLE_REPLICAS] = WAIT_DP,
        [ROLE_PIPELINE] = WAIT_STAGES,
        [ROLE_MODEL] = WAIT_OTHERS,
        [ROLE_ENDS] = WAIT_OTHERS,
        [ROLE_EXPERT_TENSOR] = WAIT_TP,
        [ROLE_EXPERT] = WAIT_EP,
        [ROLE_EXPERT_REPLICAS] = WAIT_DP,
        [ROLE_REPLICAS_SHARDS] = WAIT_DP,
        [ROLE_REPLICAS_COPIES] = WAIT_DP,
        [ROLE_EXPERT_REPLICAS_SHARDS] = WAIT_DP,
        [ROLE_EXPERT_REPLICAS_COPIES] = WAIT_DP,
    };
    for (Role role = 0; group && role < NUM_ROLES; role++)
        if (!strcmp(group, topology_roles[role].name)) return kinds[role];
    return WAIT_OTHERS;
}

static Status add_wait(TracedRank *rank, const Json *arguments, Span span) {
    rank->waits = grow(rank->waits, rank->num_waits, &rank->wait_capacity, sizeof *rank->waits);
    rank->waits[rank->num_waits++] = (TracedWait){span, kind_of_wait(get_string(arguments, "group"))};
    return OK;
}

static Status find_rank(Reader *r, const Json *event, TracedRank **rank) {
    int64_t pid;
    if (!get_int(event, "pid", 0, INT64_MAX, &pid)) return bad(r, "an event without \"pid\", its rank");
    if (pid >= r->run->num_ranks)
        return fail(
            ERR_DATA,
            "%s: line %lld: an event of rank %lld, but the \"grid\" of line 1 has %d rank%s: the file is "
            "damaged, or of a run with context parallelism and a version of trireme that left \"cp\" out "
            "of the grid; record the run again",
            r->path, r->number, (long long)pid, r->run->num_ranks, r->run->num_ranks > 1 ? "s" : "");
    *rank = &r->run->ranks[pid];
    return OK;
}

// The name of a rank says how many of its events were dropped for lack of room.
static Status take_rank_name(Reader *r, const Json *event) {
    const Json *arguments = get_object(event, "args");
    TracedRank *rank;
    TRY(find_rank(r, event, &rank));
    if (!arguments || !get_int(arguments, "lost", 0, INT64_MAX, &rank->lost))
        return bad(r, "a rank without \"lost\"");
    return OK;
}

static Status take_event(Reader *r, const Json *event) {
    const char *phase = get_string(event, "ph"), *name = get_string(event, "name"),
               *row = get_string(event, "cat");
    if (!phase || !name) return bad(r, "no event");
    if (!strcmp(name, "process_name")) return take_rank_name(r, event);
    if (strcmp(phase, "X") || !row) return OK;
    const Json *arguments = get_object(event, "args");
    TracedRank *rank;
    double start, duration;
    TRY(find_rank(r, event, &rank));
    if (!arguments || !get_time(event, "ts", &start) || !get_time(event, "dur", &duration))
        return bad(r, "a span without time");
    Span span = {start, start + duration};
    if (!strcmp(name, "wait")) return add_wait(rank, arguments, span);
    if (!strcmp(name, "step")) return add_step(r, rank, arguments, span);
    return strcmp(row, "pipeline") ? OK : add_compute(r, rank, arguments, name, span);
}

// The line without its comma and line end.
static size_t trimmed(const char *line, size_t size) {
    while (size && strchr(",\r\n ", line[size - 1])) size--;
    return size;
}

static Status read_events(Reader *r) {
    for (;;) {
        ssize_t size = getline(&r->line, &r->capacity, r->file);
        r->number++;
        if (size < 0) return bad(r, "it ends too early");
        if (!strcmp(r->line, "]}\n")) return OK;
        Json *event = parse_object(r, r->line, trimmed(r->line, (size_t)size));
        Status status = event ? take_event(r, event) : bad(r, "no event");
        json_free(event);
        TRY(status);
    }
}

// ---- all of it ----------------------------------------------------------------------------------

// Items of every list start with their Span.
static int earlier(const void *a, const void *b) {
    const Span *x = a, *y = b;
    return (x->start_us > y->start_us) - (x->start_us < y->start_us);
}

static void order_by_time(TracedRank *rank) {
    if (rank->num_computes) qsort(rank->computes, rank->num_computes, sizeof *rank->computes, earlier);
    if (rank->num_waits) qsort(rank->waits, rank->num_waits, sizeof *rank->waits, earlier);
    if (rank->num_steps) qsort(rank->steps, rank->num_steps, sizeof *rank->steps, earlier);
}

static Status read_file(Reader *r) {
    int fd;
    int64_t bytes;
    TRY(file_open_regular(r->path, &fd, &bytes));
    r->file = fdopen(fd, "r");
    if (!r->file) return fail(ERR_OS, "%s: no memory to read it", r->path);
    r->number = 1;
    ssize_t size = getline(&r->line, &r->capacity, r->file);
    if (size < 0) return bad(r, "it is empty");
    TRY(read_head(r, (size_t)size));
    return read_events(r);
}

Status traced_run_read(TracedRun *run, const char *path) {
    *run = (TracedRun){0};
    Reader reader = {.path = path, .run = run};
    Status status = read_file(&reader);
    for (int r = 0; r < run->num_ranks; r++) order_by_time(&run->ranks[r]);
    if (reader.file) fclose(reader.file);
    free(reader.line);
    text_free(&reader.head);
    return status;
}

void traced_run_close(TracedRun *run) {
    for (int r = 0; r < run->num_ranks; r++) {
        free(run->ranks[r].computes);
        free(run->ranks[r].waits);
        free(run->ranks[r].steps);
    }
    free(run->ranks);
    if (run->schedule.programs) schedule_destroy(&run->schedule);
    *run = (TracedRun){0};
}
