// The record of which operations wrote and read which bytes of the check device's memory, and checks that each comes
// after those that it depends on.
#include "base/rank.h"
#include "device/check/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- what comes after what --------------------------------------------------------------------------------

void clock_join(StreamClock *clock, const StreamClock *other) {
    for (int i = 0; i <= MAX_STREAMS; i++)
        if (other->at[i] > clock->at[i]) clock->at[i] = other->at[i];
}

static bool is_over(const StreamClock *clock, const Use *use) {
    return !use->what || clock->at[use->stream] >= use->number;
}

void use_describe(const CheckDevice *device, const Use *use, char *text, size_t size) {
    const char *stream = use->stream == HOST ? "the host" : device->queues[use->stream].name;
    snprintf(text, size, "%s%s%s (%s%s%s%s)", use->what, use->tensor ? " of " : "",
             use->tensor ? use->tensor : "", use->doing, *use->doing ? ", " : "",
             use->stream == HOST ? "" : "stream ", stream);
}

// ---- segments ---------------------------------------------------------------------------------------------

// The index of the segment that holds a byte before the end.
static int find_segment(const Region *r, size_t offset) {
    int low = 0, high = r->num_segments - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (r->segments[middle].begin <= offset)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Makes a segment begin at this byte; returns its index.
static int cut(Region *r, size_t offset) {
    if (offset >= r->bytes) return r->num_segments;
    int i = find_segment(r, offset);
    if (r->segments[i].begin == offset) return i;
    if (r->num_segments == r->max_segments) {
        int wanted = 2 * r->max_segments;
        Segment *grown = realloc(r->segments, (size_t)wanted * sizeof *grown);
        CHECK(grown, "no memory for %d segments of the arena %s", wanted, r->name);
        r->segments = grown;
        r->max_segments = wanted;
    }
    Segment *s = &r->segments[i];
    memmove(s + 1, s, (size_t)(r->num_segments++ - i) * sizeof *s);
    s[0].end = s[1].begin = offset;
    return i + 1;
}

// Segments first to last - 1 become one.
static void merge(Region *r, int first, int last) {
    if (last - first < 2) return;
    Segment *s = &r->segments[first];
    s->end = r->segments[last - 1].end;
    memmove(s + 1, r->segments + last, (size_t)(r->num_segments - last) * sizeof *s);
    r->num_segments -= last - first - 1;
}

// Adds the uses of `from` to those that must be over before `into` is written.
static void absorb(Segment *into, const Segment *from) {
    if (from->write.what) {
        Use *last = &into->reads[from->write.stream];
        if (!last->what || from->write.number > last->number) *last = from->write;
    }
    for (int i = 0; i <= MAX_STREAMS; i++)
        if (from->reads[i].what && (!into->reads[i].what || from->reads[i].number > into->reads[i].number))
            into->reads[i] = from->reads[i];
}

void record_begin(void *state, const char *name, void *address, size_t bytes) {
    if (!bytes) return;
    Region *r;
    char *plain = memory_plain(state, "arena_take", name, address, bytes, &r);
    size_t begin = (size_t)(plain - r->plain);
    int first = cut(r, begin), last = cut(r, begin + bytes);
    Segment all = {.begin = begin, .end = begin + bytes, .block = name};
    for (int i = first; i < last; i++) absorb(&all, &r->segments[i]);
    merge(r, first, last);
    r->segments[first] = all;
}

void segment_describe(const CheckDevice *device, const Region *r, size_t offset, char *text, size_t size) {
    if (offset >= r->bytes) {
        snprintf(text, size, "beyond its end");
        return;
    }
    const Segment *s = &r->segments[find_segment(r, offset)];
    char use[128] = "no operation";
    if (s->write.what) use_describe(device, &s->write, use, sizeof use);
    snprintf(text, size, "%s, last written by %s", s->block ? s->block : "no block", use);
}

// ---- uses -------------------------------------------------------------------------------------------------

static void fault(const CheckDevice *device, const Use *now, const char *what, const Segment *s,
                  const Use *other, const char *why) {
    char a[128], b[128];
    use_describe(device, now, a, sizeof a);
    use_describe(device, other, b, sizeof b);
    CHECK(false, "%s %s %s, %s %s", a, what, s && s->block ? s->block : "memory", b, why);
}

// Bytes that are read were written, by something that is over; bytes that are written are not in use.
static void check_segment(const CheckDevice *device, const Use *use, const StreamClock *clock,
                          const Segment *s, bool reads, bool writes) {
    if (reads && !s->write.what) {
        char text[128];
        use_describe(device, use, text, sizeof text);
        CHECK(false, "%s reads bytes of %s that nothing has written", text, s->block ? s->block : "no block");
    }
    if (!is_over(clock, &s->write))
        fault(device, use, reads ? "reads" : "writes", s, &s->write, "may still write it: a wait is missing");
    for (int i = 0; writes && i <= MAX_STREAMS; i++)
        if (!is_over(clock, &s->reads[i]))
            fault(device, use, "writes", s, &s->reads[i], "may still read it: a wait is missing");
}

static void check_accesses(const CheckDevice *device, const Use *use, const Region *r, size_t begin,
                           size_t end, bool writes) {
    for (int i = 0; i < device->num_accesses; i++) {
        const OpenAccess *a = &device->accesses[i];
        if (!a->number || a->region != r || begin >= a->end || end <= a->begin || (!writes && !a->writes))
            continue;
        fault(device, use, writes ? "writes" : "reads", &r->segments[find_segment(r, begin)], &a->use,
              a->writes ? "is writing it" : "is reading it");
    }
}

static void note(Region *r, int first, int last, const Use *use, bool reads, bool writes) {
    for (int i = first; i < last; i++) {
        Segment *s = &r->segments[i];
        if (writes) {
            s->write = *use;
            memset(s->reads, 0, sizeof s->reads);
        } else if (reads)
            s->reads[use->stream] = *use;
    }
    for (int i = last - 1; writes && i > first; i--)
        if (r->segments[i].block == r->segments[i - 1].block) merge(r, i - 1, i + 1);
}

bool record_use(CheckDevice *device, const Use *use, const StreamClock *clock, void *data, size_t bytes,
                bool reads, bool writes, Region **region, void **plain) {
    Region *r;
    char *start = memory_plain(device, use->what, use->tensor ? use->tensor : "tensor", data, bytes, &r);
    if (region) *region = r;
    if (plain) *plain = start;
    if (!bytes) return false;
    size_t begin = (size_t)(start - r->plain), end = begin + bytes;
    int first = cut(r, begin), last = cut(r, end);
    bool fresh = true;
    for (int i = first; i < last; i++) {
        check_segment(device, use, clock, &r->segments[i], reads, writes);
        fresh &= !r->segments[i].write.what;
    }
    check_accesses(device, use, r, begin, end, writes);
    note(r, first, last, use, reads, writes);
    return fresh;
}

// ---- host code --------------------------------------------------------------------------------------------

static OpenAccess *free_access(CheckDevice *device) {
    int at = 0, old = device->num_accesses;
    while (at < old && device->accesses[at].number) at++;
    if (at < old) return &device->accesses[at];
    int wanted = old ? 2 * old : 16;
    OpenAccess *grown = realloc(device->accesses, (size_t)wanted * sizeof *grown);
    CHECK(grown, "no memory for %d messages", wanted);
    memset(grown + old, 0, (size_t)(wanted - old) * sizeof *grown);
    device->accesses = grown;
    device->num_accesses = wanted;
    return &grown[old];
}

void record_access(CheckDevice *device, const Use *use, const StreamClock *clock, HostAccess *access) {
    Region *r;
    record_use(device, use, clock, access->data, access->bytes, access->reads, access->writes, &r,
               &access->address);
    size_t begin = (size_t)((char *)access->address - r->plain);
    access->number = ++device->last_access;
    *free_access(device) =
        (OpenAccess){access->number, r, begin, begin + access->bytes, access->writes, *use};
}

void record_access_end(CheckDevice *device, const HostAccess *access) {
    for (int i = 0; i < device->num_accesses; i++)
        if (device->accesses[i].number == access->number) {
            device->accesses[i].number = 0;
            return;
        }
    CHECK(false, "%s ended twice", access->what);
}

void record_check_freeing(const CheckDevice *device, const Region *r) {
    for (int i = 0; i < device->num_accesses; i++)
        CHECK(!device->accesses[i].number || device->accesses[i].region != r,
              "the arena %s was freed while %s was under way", r->name, device->accesses[i].use.what);
}

void record_check_host(const CheckDevice *device, const char *who, const void *data, size_t bytes) {
    Region *r;
    char *plain = memory_plain(device, who, "tensor", data, bytes, &r);
    size_t begin = (size_t)(plain - r->plain);
    for (int i = find_segment(r, begin); i < r->num_segments && r->segments[i].begin < begin + bytes; i++) {
        const Segment *s = &r->segments[i];
        if (is_over(&device->host, &s->write)) continue;
        char text[128];
        use_describe(device, &s->write, text, sizeof text);
        CHECK(false, "%s: host code looks at %s, which %s may still write: the host has not waited for it",
              who, s->block ? s->block : "memory", text);
    }
}
