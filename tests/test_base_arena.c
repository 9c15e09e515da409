// Tests that arenas hold exactly what was measured, aligned and apart, and that misuse is found.
#include "base/arena.h"
#include "base/text.h"
#include "harness.h"
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t SIZES[] = {1, 0, 255, 256, 257, 4096, 3};
enum { NUM_SIZES = sizeof SIZES / sizeof *SIZES };

static void take_all(Arena *arena, char **blocks) {
    for (int i = 0; i < NUM_SIZES; i++) blocks[i] = arena_take(arena, "block", SIZES[i]);
}

static void measuring_gives_the_capacity(void) {
    Arena measured, real;
    char *nowhere[NUM_SIZES], *blocks[NUM_SIZES];
    arena_open_measuring(&measured, "measured");
    take_all(&measured, nowhere);
    EXPECT_OK(arena_open(&real, "real", memory_host(), measured.peak));
    take_all(&real, blocks);
    EXPECT(real.used == real.capacity && real.peak == measured.peak, "%zu of %zu", real.used, real.capacity);
    for (int i = 0; i < NUM_SIZES; i++)
        EXPECT(blocks[i] - real.base == nowhere[i] - measured.base && nowhere[i], "offset of block %d", i);
    arena_close(&real);
    arena_close(&measured);
}

static void blocks_are_aligned_and_apart(void) {
    Arena arena;
    char *blocks[NUM_SIZES];
    EXPECT_OK(arena_open(&arena, "arena", memory_host(), 16384));
    take_all(&arena, blocks);
    for (int i = 0; i < NUM_SIZES; i++) {
        EXPECT((uintptr_t)blocks[i] % ARENA_ALIGNMENT == 0, "block %d at %p", i, (void *)blocks[i]);
        memset(blocks[i], i + 1, SIZES[i]);
    }
    for (int i = 0; i < NUM_SIZES; i++)
        for (size_t byte = 0; byte < SIZES[i]; byte++)
            EXPECT(blocks[i][byte] == i + 1, "block %d overwritten", i);
    arena_close(&arena);
}

static void release_goes_back_to_the_mark(void) {
    Arena arena;
    EXPECT_OK(arena_open(&arena, "arena", memory_host(), 4096));
    arena_take(&arena, "stays", 100);
    ArenaMark mark = arena_mark(&arena);
    void *first = arena_take(&arena, "goes", 1000);
    arena_take(&arena, "goes too", 500);
    size_t peak = arena.used;
    arena_release(&arena, mark);
    EXPECT(arena.used == mark.used && arena.num_blocks == 1 && arena.peak == peak, "used %zu", arena.used);
    EXPECT(arena_take(&arena, "again", 8) == first, "the same place");
    arena_close(&arena);
}

static void add_line(void *self, const char *line) { text_add(self, "%s\n", line); }

static void print_names_every_block(void) {
    Arena arena;
    Text text = {0};
    EXPECT_OK(arena_open(&arena, "run", memory_host(), 4 << 20));
    arena_take(&arena, "weights", 1 << 20);
    arena_take(&arena, "gradients", 2 << 20);
    arena_print(&arena, add_line, &text);
    EXPECT(strstr(text_string(&text), "weights") && strstr(text_string(&text), "gradients") &&
               strstr(text_string(&text), "3.000 MiB"),
           "%s", text_string(&text));
    text_free(&text);
    arena_close(&arena);
}

static void *take_nothing(void *self, const char *name, size_t bytes, const char **why) {
    (void)self, (void)bytes;
    EXPECT(!strcmp(name, "stash"), "%s", name);
    *why = "the device is full";
    return NULL;
}

static void no_memory_is_an_error(void) {
    Arena arena;
    EXPECT(arena_open(&arena, "stash", (Memory){.take = take_nothing}, 1 << 20) == ERR_OS, "the status");
    EXPECT(strstr(fail_message(), "stash") && strstr(fail_message(), "1.0 MiB wanted (the device is full)"),
           "%s", fail_message());
    arena_close(&arena);
    arena_close(&(Arena){0});
}

static void too_much_is_a_bug(void) {
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        Arena arena;
        if (arena_open(&arena, "small", memory_host(), 512) == OK) arena_take(&arena, "big", 513);
        _exit(0);
    }
    int state = 0;
    EXPECT(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == ERR_BUG,
           "status %#x", (unsigned)state);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"measuring_gives_the_capacity", measuring_gives_the_capacity},
                                      {"blocks_are_aligned_and_apart", blocks_are_aligned_and_apart},
                                      {"release_goes_back_to_the_mark", release_goes_back_to_the_mark},
                                      {"print_names_every_block", print_names_every_block},
                                      {"no_memory_is_an_error", no_memory_is_an_error},
                                      {"too_much_is_a_bug", too_much_is_a_bug},
                                      {0}},
                       argc, argv);
}
