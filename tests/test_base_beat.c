// The heartbeat page: what ranks write is what a supervisor reads, whole at any moment, and nothing that a page holds
// is believed. One test reads while ranks write, which is also for the thread sanitizer.
#include "base/beat.h"
#include "base/process.h"
#include "base/rank.h"
#include "harness.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static BeatPage open_page(int slots) {
    BeatPage page;
    EXPECT_OK(beat_page_open(&page, slots));
    beat_page_start(&page, 7);
    setenv(BEAT_VARIABLE, page.path, 1);
    return page;
}

static void close_page(BeatPage *page) {
    beat_page_close(page);
    unsetenv(BEAT_VARIABLE);
}

static void leave(Rank *rank, int status) {
    beat_leave(rank->beat, status);
    rank->beat = NULL;
}

static void what_a_rank_does_is_read(void) {
    BeatPage page = open_page(4);
    Rank rank = {.rank = 2, .size = 4};
    Beat beat;
    rank_enter(&rank);
    EXPECT(!beat_read(&page, 2, &beat), "nobody has joined");
    rank.beat = beat_join(rank.rank, rank.size);
    EXPECT(rank.beat && beat_read(&page, 2, &beat), "rank 2 has joined");
    EXPECT(beat.pid == getpid() && beat.size == 4 && beat.start == 7 && beat.phase == BEAT_CONNECTING,
           "who it is");
    EXPECT(!beat_read(&page, 1, &beat) && !beat_read(&page, 4, &beat) && !beat_read(&page, -1, &beat),
           "others");
    beat_phase(rank.beat, BEAT_TRAINING, 12);
    rank_doing("F%d.%d", 3, 1);
    EXPECT(beat_read(&page, 2, &beat) && !strcmp(beat.doing, "F3.1") && beat.iteration == 12, "%s",
           beat.doing);
    uint64_t signs = beat_signs(&page, 2);
    beat_wait(rank.beat, "recv", "pp", " 1 3");
    EXPECT(beat_read(&page, 2, &beat) && !strcmp(beat.wait, "recv of pp") && beat.num_waits == 2 &&
               beat.waits[0] == 1 && beat.waits[1] == 3,
           "%s", beat.wait);
    EXPECT(signs != beat_signs(&page, 2), "a wait is a heartbeat");
    signs = beat_signs(&page, 2);
    beat_turn(rank.beat);
    EXPECT(signs != beat_signs(&page, 2), "and so is every look");
    beat_resume(rank.beat);
    EXPECT(beat_read(&page, 2, &beat) && !*beat.wait && !strcmp(beat.doing, "F3.1"), "it goes on");
    leave(&rank, 65);
    EXPECT(beat_read(&page, 2, &beat) && beat.phase == BEAT_DONE && beat.status == 65, "how it ended");
    EXPECT(!rank.beat, "it has left");
    beat_page_start(&page, 8);
    EXPECT(!beat_read(&page, 2, &beat), "another start knows only ranks of its own");
    rank_enter(NULL);
    close_page(&page);
}

static void sleep_ms(long ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL); }

// From the fourth step on; of the kind of instruction, whatever its numbers; without waits for others.
static void the_usual_time_is_learnt(void) {
    BeatPage page = open_page(1);
    Rank rank = {.size = 1};
    Beat beat;
    rank_enter(&rank);
    rank.beat = beat_join(rank.rank, rank.size);
    for (int step = 1; step <= 4; step++) {
        beat_phase(rank.beat, BEAT_TRAINING, step);
        for (int mb = 0; mb < 2; mb++) {
            rank_doing("F%d.0", mb);
            if (mb) sleep_ms(10);
            EXPECT(beat_read(&page, 0, &beat) && (step < 4) == (beat.usual_ns == 0), "step %d: %lld ns", step,
                   (long long)beat.usual_ns);
            rank_doing("B%d.0", mb);
            beat_wait(rank.beat, "recv", "pp", NULL);
            sleep_ms(40);
            beat_resume(rank.beat);
        }
    }
    rank_doing("F1.0");
    EXPECT(beat_read(&page, 0, &beat) && beat.usual_ns >= 10000000, "%lld ns", (long long)beat.usual_ns);
    rank_doing("B1.0");
    int64_t forward = beat.usual_ns;
    EXPECT(beat_read(&page, 0, &beat) && beat.usual_ns < forward, "the wait counts: %lld ns",
           (long long)beat.usual_ns);
    leave(&rank, 0);
    rank_enter(NULL);
    close_page(&page);
}

static void without_a_page_nothing_happens(void) {
    static const char *const paths[] = {"", "/nowhere/page", "/dev/null", "/proc/self/status", NULL};
    Rank rank = {.size = 1};
    rank_enter(&rank);
    unsetenv(BEAT_VARIABLE);
    for (int i = -1; i < 0 || paths[i]; i++) {
        if (i >= 0) setenv(BEAT_VARIABLE, paths[i], 1);
        rank.beat = beat_join(rank.rank, rank.size);
        EXPECT(!rank.beat, "path %d", i);
        rank_doing("x");
        beat_phase(rank.beat, BEAT_SAVING, 1);
        beat_wait(rank.beat, "recv", "pp", " 1");
        beat_turn(rank.beat), beat_resume(rank.beat), leave(&rank, 0);
    }
    unsetenv(BEAT_VARIABLE);
    rank_enter(NULL);
}

static bool joins(const char *path) {
    setenv(BEAT_VARIABLE, path, 1);
    BeatWriter *writer = beat_join(0, 1);
    beat_leave(writer, 0);
    return writer != NULL;
}

// What the path means elsewhere, and a file with the bytes of a page.
static void only_a_page_of_this_place_is_opened(void) {
    BeatPage page = open_page(1);
    char path[sizeof page.path];
    memcpy(path, page.path, sizeof path);
    EXPECT(beat_watch_over() && joins(path), "the page of a supervisor here");
    setenv("TRIREME_SUPERVISOR", "pid:[1] another 5", 1);
    EXPECT(!joins(path), "the path is of another place");
    unsetenv("TRIREME_SUPERVISOR");
    EXPECT(joins(path), "without a supervisor");
    const char *copy = harness_path("page");
    FILE *file = fopen(copy, "w");
    EXPECT(file && fwrite(page.header, 1, page.bytes, file) == page.bytes && !fclose(file), "a copy");
    EXPECT(!joins(copy), "a file is no page");
    close_page(&page);
}

static void states_of_processes_are_read(void) {
    pid_t parent, child = fork();
    if (!child) _exit(0);
    while (process_status(child, &parent) != 'Z') sleep_ms(1); // until it has ended
    EXPECT(parent == getpid(), "its parent is %d", (int)parent);
    EXPECT(waitpid(child, NULL, 0) == child && process_status(child, NULL) == 0, "it is gone");
    EXPECT(process_status(getpid(), &parent) == 'R' && parent == getppid(), "this process");
}

// ---- a page of another content --------------------------------------------------------------------

static void hostile_pages_are_not_believed(void) {
    BeatPage page = open_page(3);
    Rank rank = {.rank = 1, .size = 3};
    rank_enter(&rank);
    rank.beat = beat_join(rank.rank, rank.size);
    rank_doing("\x1b]0;title\a\n");
    unsigned char *bytes = (unsigned char *)page.header;
    Beat beat;
    EXPECT(beat_read(&page, 1, &beat) && !strpbrk(beat.doing, "\x1b\a\n"), "control characters: %s",
           beat.doing);
    unsigned char *whole = malloc(page.bytes);
    memcpy(whole, bytes, page.bytes);
    srand(1);
    int read = 0;
    for (int trial = 0; trial < 20000; trial++) {
        memcpy(bytes, whole, page.bytes);
        for (int i = 0; i < 1 + trial % 40; i++) bytes[(size_t)rand() % page.bytes] = (unsigned char)rand();
        for (int slot = -1; slot <= 3; slot++) {
            if (!beat_read(&page, slot, &beat)) continue;
            read++;
            EXPECT(beat.rank == slot && beat.size > slot && beat.pid > 1, "rank %d", beat.rank);
            EXPECT(memchr(beat.doing, 0, sizeof beat.doing) && memchr(beat.wait, 0, sizeof beat.wait) &&
                       memchr(beat.host, 0, sizeof beat.host),
                   "a text without an end");
            EXPECT(beat.num_waits >= 0 && beat.num_waits <= BEAT_MAX_WAITS &&
                       *beat_phase_name(beat.phase) != '?',
                   "out of range");
            for (int i = 0; i < beat.num_waits; i++)
                EXPECT(beat.waits[i] >= 0 && beat.waits[i] < beat.size, "waits for %d", beat.waits[i]);
        }
    }
    EXPECT(read > 100, "only %d slots were read", read);
    memcpy(bytes, whole, page.bytes);
    free(whole);
    leave(&rank, 0);
    rank_enter(NULL);
    close_page(&page);
}

// ---- a reader beside writers ----------------------------------------------------------------------

enum { WRITERS = 3 };

static atomic_bool over;

// Everything that a slot says has the same number.
static void *write_beats(void *self) {
    Rank rank = {.rank = *(int *)self, .size = WRITERS};
    rank_enter(&rank);
    rank.beat = beat_join(rank.rank, rank.size);
    for (int64_t i = 1; !atomic_load(&over); i++) {
        beat_phase(rank.beat, BEAT_TRAINING, i);
        rank_doing("step %lld of rank %d and some more words", (long long)i, rank.rank);
        if (i % 7 == 0) {
            beat_wait(rank.beat, "recv", "dp", i % 2 ? " 0 1" : " 1");
            beat_resume(rank.beat);
        }
    }
    leave(&rank, 0);
    rank_enter(NULL);
    return NULL;
}

// Between beat_phase and rank_doing the iteration is one ahead of the text.
static bool is_whole(const Beat *beat) {
    long long step;
    int rank, length = 0;
    if (!*beat->doing) return beat->iteration <= 1;
    return sscanf(beat->doing, "step %lld of rank %d%n", &step, &rank, &length) == 2 && length &&
           rank == beat->rank && (step == beat->iteration || step == beat->iteration - 1);
}

// However slowly: until each writer was seen at that iteration, in that many reads.
static void readers_see_whole_slots(void) {
    BeatPage page = open_page(WRITERS);
    pthread_t threads[WRITERS];
    int ranks[WRITERS], reads = 0;
    int64_t seen[WRITERS] = {0};
    atomic_store(&over, false);
    for (int i = 0; i < WRITERS; i++) ranks[i] = i, pthread_create(&threads[i], NULL, write_beats, &ranks[i]);
    int wanted = harness_short() ? 1000 : 100000;
    for (Beat beat; reads < wanted || seen[0] < wanted || seen[1] < wanted || seen[2] < wanted;)
        for (int i = 0; i < WRITERS; i++) {
            if (!beat_read(&page, i, &beat)) continue;
            reads++, seen[i] = beat.iteration;
            EXPECT(is_whole(&beat), "rank %d, iteration %lld: %s", beat.rank, (long long)beat.iteration,
                   beat.doing);
        }
    atomic_store(&over, true);
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    close_page(&page);
}

int main(int argc, char **argv) {
    static const Test tests[] = {{"what a rank does is read", what_a_rank_does_is_read},
                                 {"the usual time is learnt", the_usual_time_is_learnt},
                                 {"without a page nothing happens", without_a_page_nothing_happens},
                                 {"only a page of this place is opened", only_a_page_of_this_place_is_opened},
                                 {"states of processes are read", states_of_processes_are_read},
                                 {"hostile pages are not believed", hostile_pages_are_not_believed},
                                 {"readers see whole slots", readers_see_whole_slots},
                                 {0}};
    return harness_run(tests, argc, argv);
}
