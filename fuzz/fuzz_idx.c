// The .idx of an indexed data set; the first two bytes of an input say how large the .bin beside it is.
// Law: what opens can be read to its last token.
#include "dataset/dataset.h"
#include "fuzz.h"
#include <stdio.h>

enum { MAX_READ = 64, VOCABULARY = 50257, ROOM = 256 };

// The first and the last tokens of a sequence.
static void read_ends(const IndexedDataset *set, int64_t sequence) {
    int32_t out[ROOM];
    int64_t length = indexed_dataset_length(set, sequence), count = length < ROOM ? length : ROOM;
    Status first = indexed_dataset_read(set, sequence, 0, count, out, 1);
    Status last = indexed_dataset_read(set, sequence, length - count, count, out, 1);
    CHECK((first == OK || first == ERR_DATA) && (last == OK || last == ERR_DATA), "%s", fail_message());
}

static void read_some(const IndexedDataset *set) {
    int64_t sequences = indexed_dataset_num_sequences(set);
    CHECK(sequences >= 0 && indexed_dataset_num_documents(set) >= 0 && indexed_dataset_num_tokens(set) >= 0,
          "%lld sequences", (long long)sequences);
    for (int64_t i = 0; i < sequences && i < MAX_READ; i++) {
        read_ends(set, i);
        read_ends(set, sequences - 1 - i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t TOKENS[1 << 16] = {1, 0, 2, 0, 0xff, 0xff};
    FuzzInput input = {data, size};
    fuzz_file("input.bin", TOKENS, fuzz_take(&input, 2));
    fuzz_file("input.idx", input.data, input.size);
    for (int vocabulary = 0; vocabulary <= VOCABULARY; vocabulary += VOCABULARY) {
        char prefix[320];
        snprintf(prefix, sizeof prefix, "%s/input", fuzz_folder());
        IndexedDataset *set;
        Status status = indexed_dataset_open(&set, prefix, vocabulary);
        CHECK(status == OK || status == ERR_DATA, "status %d: %s", (int)status, fail_message());
        if (status != OK) continue;
        read_some(set);
        indexed_dataset_close(set);
    }
    return 0;
}
