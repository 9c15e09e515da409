// Mistakes with a device, each made in a forked child that the device ends.
#pragma once
#include "device_fixture.h"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

// Runs `mistake` in a child, on a device of a kind; expects that it ends with `status` and that its words contain `words`.
static inline void expect_death_on(const char *kind, void (*mistake)(Fixture *b), int status,
                                   const char *words) {
    int ends[2];
    CHECK(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    CHECK(child >= 0, "no child");
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        Fixture b = fixture_open(kind, 1);
        mistake(&b);
        fixture_close(&b);
        _exit(0);
    }
    close(ends[1]);
    char said[4096];
    size_t length = 0;
    ssize_t got;
    while (length < sizeof said - 1 && (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = 0;
    close(ends[0]);
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child, "no child to wait for");
    EXPECT(WIFEXITED(state) && WEXITSTATUS(state) == status, "wait status %#x, wanted exit %d",
           (unsigned)state, status);
    EXPECT(strstr(said, words), "\"%s\" in: %s", words, said);
}

// The same on the check device.
static inline void expect_death(void (*mistake)(Fixture *b), int status, const char *words) {
    expect_death_on("check", mistake, status, words);
}
