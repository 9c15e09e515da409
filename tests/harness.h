// A small test harness: each file lists its tests as rows; a test is silent unless an expectation fails.
//
//   static void sums(void) { EXPECT(1 + 1 == 2, "arithmetic"); }
//   int main(int argc, char **argv) { return harness_run((const Test[]){{"sums", sums}, {0}}, argc, argv); }
//
// With arguments only the tests whose name contains one of them run.
#pragma once
#include "base/error.h"
#include <stdbool.h>

typedef struct {
    const char *name;
    void (*run)(void);
} Test;

// Counts a failure, printing file, line, the condition and the message. Thread safe. Does not stop the test.
#define EXPECT(cond, ...)                                                                                    \
    do {                                                                                                     \
        if (!(cond)) harness_failure(__FILE__, __LINE__, #cond, __VA_ARGS__);                                \
    } while (0)
// Expects that a call returns OK; prints the message of fail() otherwise.
#define EXPECT_OK(call) EXPECT((call) == OK, "%s", fail_message())

void harness_failure(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int harness_run(const Test *tests, int argc, char **argv); // the exit code for main

// Returns whether TRIREME_TEST_SHORT is set, as for the sanitizers: a test then takes each path through the code once,
// with fewer numbers.
bool harness_short(void);
// Returns whether an expectation has failed so far, for programs that scripts run as workers.
bool harness_failed(void);
// Returns the kind of device that the laws run on: TRIREME_TEST_DEVICE where that is set, else `usual`.
const char *harness_device(const char *usual);
// Returns the kind that gives the same bits as harness_device(usual) in the plainest way: the check device computes as
// the cpu does.
const char *harness_plain_device(const char *usual);

// Returns CommOptions.device_transport for the laws: TRIREME_TEST_DEVICE_TRANSPORT, or NULL.
const char *harness_device_transport(void);

// Returns the path of a new folder under TMPDIR, which is removed when the program ends.
const char *harness_folder(void);
// Returns the path of a name in that folder. The last eight paths of a thread stay valid.
const char *harness_path(const char *name);
// Expects that two files, given by their paths, have the same bytes.
void expect_same_file(const char *a, const char *b);
