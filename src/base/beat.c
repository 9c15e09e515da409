// Keeps the heartbeat page: ranks write their slots, a supervisor reads them.
#include "base/beat.h"
#include "base/process.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 2, NUM_WORDS = sizeof(Beat) / 8, MAX_KINDS = 48, STEPS_TO_LEARN_FROM = 3, MAX_TRIES = 100 };
#define MAGIC 0x7374616562697274ull // "tribeats"

_Static_assert(sizeof(Beat) % 8 == 0, "a slot is made of words of 64 bits");

// All words are atomic, so a reader may look at any moment; `sequence` is odd while they are written.
typedef struct {
    _Alignas(64) _Atomic uint64_t sequence;
    _Atomic uint64_t turns;
    _Atomic uint64_t words[NUM_WORDS];
} Slot;

struct BeatHeader {
    uint64_t magic;
    int32_t version, num_slots;
    _Atomic int32_t start;
    char host[BEAT_HOST]; // a path may lead to another page on another machine
    Slot slots[];
};

// What a rank keeps for itself.
struct BeatWriter {
    struct BeatHeader *page;
    size_t bytes;
    Slot *slot;
    Beat now;
    int64_t moved_ns; // the last heartbeat
    int64_t steps;    // begun
    int kind;         // of the present instruction; -1: none, or there is no room for more kinds
    int num_kinds;
    struct {
        uint64_t hash;
        int64_t longest_ns;
    } kinds[MAX_KINDS];
    int64_t longest_turn_ns; // between two looks of a rank that waits
};

const char *beat_phase_name(int phase) {
    static const char *const names[NUM_BEAT_PHASES] = {"connecting", "starting", "loading", "training",
                                                       "evaluating", "saving",   "ending",  "done"};
    return phase >= 0 && phase < NUM_BEAT_PHASES ? names[phase] : "?";
}

static size_t page_bytes(int slots) { return sizeof(struct BeatHeader) + (size_t)slots * sizeof(Slot); }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void host_here(char host[BEAT_HOST]) {
    memset(host, 0, BEAT_HOST);
    gethostname(host, BEAT_HOST - 1);
}

// ---- whose supervisor -----------------------------------------------------------------------------------

static const char SUPERVISOR_VARIABLE[] = "TRIREME_SUPERVISOR";

// "NAMESPACE HOST ": what a process number means something in. Containers of one host may have numbers of their own.
static void place_here(char place[BEAT_HOST + 64]) {
    char space[64] = "", host[BEAT_HOST];
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) *space = 0;
    host_here(host);
    snprintf(place, BEAT_HOST + 64, "%s %s ", space, host);
}

bool beat_watch_over(void) {
    char place[BEAT_HOST + 64], text[BEAT_HOST + 96];
    place_here(place);
    snprintf(text, sizeof text, "%s%d", place, (int)getpid());
    return setenv(SUPERVISOR_VARIABLE, text, 1) == 0;
}

// The number of the process in `text`, which place_here and beat_watch_over have made; 0: it is of another place.
static pid_t supervisor_here(const char *text) {
    char place[BEAT_HOST + 64];
    place_here(place);
    return strncmp(text, place, strlen(place)) != 0 ? 0 : (pid_t)strtol(text + strlen(place), NULL, 10);
}

// A process that has ended and that its parent has not waited for, as parents may never, counts as ended.
bool beat_is_abandoned(void) {
    const char *text = getenv(SUPERVISOR_VARIABLE);
    pid_t pid = text ? supervisor_here(text) : 0;
    char state = pid ? process_status(pid, NULL) : PROCESS_UNKNOWN;
    return !state || state == 'Z' || state == 'X';
}

// ---- the rank's side ------------------------------------------------------------------------------

// Only this rank writes here, so it reads its own numbers without order.
static void publish(BeatWriter *w) {
    uint64_t words[NUM_WORDS];
    memcpy(words, &w->now, sizeof words);
    uint64_t sequence = atomic_load_explicit(&w->slot->sequence, memory_order_relaxed);
    atomic_store_explicit(&w->slot->sequence, sequence + 1, memory_order_relaxed);
    // Each word is released after the odd number, so whoever sees a new word sees that number, too.
    for (int i = 0; i < NUM_WORDS; i++)
        atomic_store_explicit(&w->slot->words[i], words[i], memory_order_release);
    atomic_store_explicit(&w->slot->sequence, sequence + 2, memory_order_release);
}

static const char PAGE_NAME[] = "trireme beats";

// The path is a file of a process by its number. In another place that number is of another process, whose file may be
// anything: nothing else than such a page is opened.
static bool leads_to_page(const char *path) {
    const char *supervisor = getenv(SUPERVISOR_VARIABLE);
    char target[64] = "";
    if (supervisor && !supervisor_here(supervisor)) return false;
    if (readlink(path, target, sizeof target - 1) < 0) return false;
    return !strncmp(target, "/memfd:", 7) && !strncmp(target + 7, PAGE_NAME, strlen(PAGE_NAME));
}

static struct BeatHeader *map_page(const char *path, bool writes, size_t *bytes) {
    struct stat about;
    if (!leads_to_page(path)) return NULL;
    int fd = open(path, (writes ? O_RDWR : O_RDONLY) | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return NULL;
    bool fits =
        fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size >= (off_t)sizeof(struct BeatHeader);
    *bytes = fits ? (size_t)about.st_size : 0;
    void *page =
        fits ? mmap(NULL, *bytes, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    return page == MAP_FAILED ? NULL : page;
}

static bool is_our_page(const struct BeatHeader *page, size_t bytes) {
    char host[BEAT_HOST];
    host_here(host);
    return page->magic == MAGIC && page->version == VERSION && page->num_slots > 0 &&
           page->num_slots <= BEAT_MAX_SLOTS && page_bytes(page->num_slots) == bytes &&
           memcmp(page->host, host, BEAT_HOST) == 0;
}

static BeatWriter *writer_create(struct BeatHeader *page, size_t bytes, int rank, int size) {
    BeatWriter *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->page = page;
    w->bytes = bytes;
    w->slot = &page->slots[rank];
    w->kind = -1;
    w->moved_ns = now_ns();
    w->now = (Beat){.pid = getpid(),
                    .rank = rank,
                    .size = size,
                    .start = atomic_load(&page->start),
                    .since_ns = w->moved_ns};
    memcpy(w->now.host, page->host, BEAT_HOST);
    publish(w);
    return w;
}

BeatWriter *beat_join(int rank, int size) {
    const char *path = getenv(BEAT_VARIABLE);
    size_t bytes;
    if (!path || !*path) return NULL;
    struct BeatHeader *page = map_page(path, true, &bytes);
    if (!page) return NULL;
    BeatWriter *w = NULL;
    if (is_our_page(page, bytes) && rank >= 0 && rank < page->num_slots)
        w = writer_create(page, bytes, rank, size);
    if (!w) munmap(page, bytes);
    return w;
}

static bool is_over(const BeatWriter *w) { return !w || w->now.phase == BEAT_DONE; }

void beat_end(BeatWriter *w, int status) {
    if (is_over(w)) return;
    w->now.phase = BEAT_DONE;
    w->now.status = status;
    w->now.since_ns = now_ns();
    publish(w);
}

void beat_blame(BeatWriter *w, int rank) {
    if (is_over(w)) return;
    w->now.blamed = rank + 1;
    publish(w);
}

void beat_leave(BeatWriter *w, int status) {
    if (!w) return;
    beat_end(w, status);
    munmap(w->page, w->bytes);
    free(w);
}

// Microbatches and chunks have numbers; "F3.1" and "F4.0" are of one kind.
static uint64_t hash_of_kind(const char *doing) {
    uint64_t hash = 14695981039346656037ull;
    for (; *doing; doing++)
        if (*doing < '0' || *doing > '9') hash = (hash ^ (unsigned char)*doing) * 1099511628211ull;
    return hash;
}

static int find_kind(BeatWriter *w, uint64_t hash) {
    for (int i = 0; i < w->num_kinds; i++)
        if (w->kinds[i].hash == hash) return i;
    if (w->num_kinds == MAX_KINDS) return -1;
    w->kinds[w->num_kinds].hash = hash;
    return w->num_kinds++;
}

// Notes a heartbeat of the rank after it has worked for itself.
static int64_t moved(BeatWriter *w) {
    int64_t now = now_ns(), own = now - w->moved_ns;
    int64_t *longest = *w->now.wait   ? &w->longest_turn_ns
                       : w->kind >= 0 ? &w->kinds[w->kind].longest_ns
                                      : NULL;
    if (longest && own > *longest) *longest = own;
    w->moved_ns = now;
    return now;
}

static int64_t usual(const BeatWriter *w) {
    if (w->steps <= STEPS_TO_LEARN_FROM) return 0;
    return *w->now.wait ? w->longest_turn_ns : w->kind >= 0 ? w->kinds[w->kind].longest_ns : 0;
}

void beat_doing(BeatWriter *w, const char *doing) {
    if (is_over(w)) return;
    w->now.since_ns = moved(w);
    snprintf(w->now.doing, sizeof w->now.doing, "%s", doing);
    w->kind = find_kind(w, hash_of_kind(doing));
    w->now.usual_ns = usual(w);
    publish(w);
}

void beat_phase(BeatWriter *w, BeatPhase phase, int64_t iteration) {
    if (is_over(w)) return;
    w->now.since_ns = moved(w);
    w->now.phase = (int32_t)phase;
    if (iteration >= 0) w->now.iteration = iteration;
    w->steps += phase == BEAT_TRAINING;
    publish(w);
}

static int list_ranks(const char *ranks, int32_t list[BEAT_MAX_WAITS]) {
    int count = 0;
    char *end;
    for (; ranks && count < BEAT_MAX_WAITS; ranks = end) {
        long rank = strtol(ranks, &end, 10);
        if (end == ranks) break;
        list[count++] = (int32_t)rank;
    }
    return count;
}

void beat_wait(BeatWriter *w, const char *what, const char *group, const char *ranks) {
    if (is_over(w)) return;
    Beat *now = &w->now, before = *now;
    int64_t at = moved(w);
    memset(now->wait, 0, sizeof now->wait);
    memset(now->waits, 0, sizeof now->waits);
    snprintf(now->wait, sizeof now->wait, "%s of %s", what, group);
    now->num_waits = list_ranks(ranks, now->waits);
    now->usual_ns = usual(w);
    if (!*before.wait) now->since_ns = at;
    // The same wait again is a look, not another wait.
    bool same = before.num_waits == now->num_waits && !memcmp(before.waits, now->waits, sizeof now->waits) &&
                !strcmp(before.wait, now->wait);
    if (same)
        beat_turn(w);
    else
        publish(w);
}

void beat_turn(BeatWriter *w) {
    if (is_over(w)) return;
    moved(w);
    uint64_t turns = atomic_load_explicit(&w->slot->turns, memory_order_relaxed);
    atomic_store_explicit(&w->slot->turns, turns + 1, memory_order_relaxed);
}

void beat_resume(BeatWriter *w) {
    if (is_over(w) || !*w->now.wait) return;
    w->now.since_ns = moved(w);
    memset(w->now.wait, 0, sizeof w->now.wait);
    w->now.num_waits = 0;
    w->now.usual_ns = usual(w);
    publish(w);
}

// ---- the supervisor's side ------------------------------------------------------------------------

Status beat_page_open(BeatPage *page, int slots) {
    CHECK(slots > 0 && slots <= BEAT_MAX_SLOTS, "%d slots", slots);
    *page = (BeatPage){.bytes = page_bytes(slots)};
    page->fd = memfd_create(PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    // Sealed: nobody can make it smaller under those who have mapped it.
    bool made = page->fd >= 0 && ftruncate(page->fd, (off_t)page->bytes) == 0 &&
                fcntl(page->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
    void *memory =
        made ? mmap(NULL, page->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        if (page->fd >= 0) close(page->fd);
        *page = (BeatPage){0};
        return fail(ERR_OS, "no memory for the heartbeats of %d ranks", slots);
    }
    page->header = memory;
    page->header->version = VERSION;
    page->header->num_slots = slots;
    host_here(page->header->host);
    page->header->magic = MAGIC;
    snprintf(page->path, sizeof page->path, "/proc/%d/fd/%d", (int)getpid(), page->fd);
    return OK;
}

bool beat_page_look(BeatPage *page, const char *path) {
    *page = (BeatPage){.fd = -1};
    page->header = map_page(path, false, &page->bytes);
    if (page->header && is_our_page(page->header, page->bytes)) return true;
    beat_page_close(page);
    return false;
}

double beat_since_s(const Beat *beat) { return 1e-9 * (double)(now_ns() - beat->since_ns); }

void beat_page_close(BeatPage *page) {
    if (!page->header) return;
    munmap(page->header, page->bytes);
    if (page->fd >= 0) close(page->fd);
    *page = (BeatPage){0};
}

static int num_slots(const BeatPage *page) {
    return (int)((page->bytes - sizeof(struct BeatHeader)) / sizeof(Slot)); // the header may be overwritten
}

void beat_page_start(BeatPage *page, int start) {
    for (int i = 0; i < num_slots(page); i++) {
        Slot *slot = &page->header->slots[i];
        // Most pages were never touched, and need not be taken from the system.
        if (!atomic_load(&slot->sequence) && !atomic_load(&slot->words[0])) continue;
        for (int j = 0; j < NUM_WORDS; j++) atomic_store(&slot->words[j], 0);
        atomic_store(&slot->sequence, 0);
        atomic_store(&slot->turns, 0);
    }
    atomic_store(&page->header->start, start);
}

uint64_t beat_signs(const BeatPage *page, int slot) {
    if (slot < 0 || slot >= num_slots(page)) return 0;
    const Slot *s = &page->header->slots[slot];
    return atomic_load(&s->sequence) * 0x9e3779b97f4a7c15ull + atomic_load(&s->turns);
}

static bool copy_slot(const Slot *slot, Beat *out) {
    uint64_t words[NUM_WORDS];
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        uint64_t before = atomic_load_explicit(&slot->sequence, memory_order_acquire);
        if (!before) return false;
        for (int i = 0; i < NUM_WORDS; i++)
            words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
        uint64_t after = atomic_load_explicit(&slot->sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0) {
            memcpy(out, words, sizeof words);
            return true;
        }
    }
    return false;
}

// Texts go to terminals and files of JSON.
static void clean(char *text, size_t size) {
    text[size - 1] = 0;
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

static bool is_sensible(const Beat *b, int slot) {
    if (b->pid <= 1 || b->rank != slot || b->size <= b->rank || b->iteration < 0) return false;
    if (b->phase < 0 || b->phase >= NUM_BEAT_PHASES || b->usual_ns < 0) return false;
    if (b->num_waits < 0 || b->num_waits > BEAT_MAX_WAITS) return false;
    for (int i = 0; i < b->num_waits; i++)
        if (b->waits[i] < 0 || b->waits[i] >= b->size) return false;
    return true;
}

bool beat_read(const BeatPage *page, int slot, Beat *out) {
    Beat beat;
    if (slot < 0 || slot >= num_slots(page) || !copy_slot(&page->header->slots[slot], &beat)) return false;
    if (!is_sensible(&beat, slot) || beat.start != atomic_load(&page->header->start)) return false;
    clean(beat.doing, sizeof beat.doing);
    clean(beat.wait, sizeof beat.wait);
    clean(beat.host, sizeof beat.host);
    *out = beat;
    return true;
}
