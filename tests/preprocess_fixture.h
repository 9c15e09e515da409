// Shared by the tests of preprocess: files in the test's folder, and a small job.
#pragma once
#include "base/file.h"
#include "corpus/corpus.h"
#include "harness.h"

static inline void put(const char *name, const void *data, size_t size) {
    EXPECT_OK(file_write(harness_path(name), data, size));
}

// One input, its key "text", one worker, and a tokenizer of 400 tokens that is trained on it.
static inline PreprocessJob job_of(const char *const *input, const char *prefix) {
    static const char *const text_key[] = {"text"};
    return (PreprocessJob){.inputs = input,
                           .num_inputs = 1,
                           .output_prefix = prefix,
                           .json_keys = text_key,
                           .num_json_keys = 1,
                           .append_eod = true,
                           .workers = 1,
                           .vocab_size = 400};
}
