// Fuzzing: one program per parser of what comes from outside, and what they share. libFuzzer calls the target
// with inputs that it makes up from a corpus of seeds, and keeps those that reach code not seen before; the
// sanitizers and CHECK tell what goes wrong (./run fuzz). The same targets replay their seeds as tests
// (replay.c).
#pragma once
#include "base/error.h"
#include <stddef.h>
#include <stdint.h>

// By each target: one input. What it accepts is checked to obey its laws, with CHECK; the result is 0.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
// Before the first input: makes a failed CHECK a crash, so that its input is kept.
int LLVMFuzzerInitialize(int *argc, char ***argv);

// The program's own folder, in /dev/shm or under TMPDIR; removed when the program ends by itself.
const char *fuzz_folder(void);
// A file there with these bytes, in place of what it was. The path is valid until the next but three.
const char *fuzz_file(const char *name, const void *data, size_t size);

// The next `bytes` (1 to 8) of an input as a number, little-endian; 0 for those that it does not have.
typedef struct {
    const uint8_t *data;
    size_t size;
} FuzzInput;
uint64_t fuzz_take(FuzzInput *input, int bytes);
