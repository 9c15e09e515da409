// The synthetic data set: NumPy's default generator, tokens, samples.
#include "dataset/mock.h"
#include "dataset_sets.h"
#include <stdlib.h>

// CRC-32 of zlib, bit by bit.
static uint32_t checksum(const void *data, size_t bytes) {
    const unsigned char *c = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= c[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return ~crc;
}

static void lengths_are_numpys(void) {
    static const int first[] = {3484, 2609, 2094, 1105, 1261, 168,  309,  68,
                                718,  3331, 2660, 3738, 2063, 2485, 3976, 2988};
    static const int last[] = {2592, 61, 100, 769};
    int32_t *lengths = malloc(MOCK_SEQUENCES * sizeof *lengths);
    mock_lengths(lengths);
    for (int i = 0; i < 16; i++) EXPECT(lengths[i] == first[i], "length %d is %d", i, lengths[i]);
    for (int i = 0; i < 4; i++)
        EXPECT(lengths[MOCK_SEQUENCES - 4 + i] == last[i], "length %d from the end", 4 - i);
    uint32_t found = checksum(lengths, MOCK_SEQUENCES * sizeof *lengths);
    EXPECT(found == 0x421c0652, "all of them: %x", found);
    free(lengths);
}

static void sequences_count_up_to_the_end_token(void) {
    IndexedDataset *data = NULL;
    EXPECT_OK(indexed_dataset_open_mock(&data, 50, 49));
    EXPECT(indexed_dataset_num_tokens(data) == 204637097, "%lld",
           (long long)indexed_dataset_num_tokens(data));
    EXPECT(indexed_dataset_num_sequences(data) == 100000, "sequences");
    int32_t tokens[2 * 68] = {0};
    EXPECT_OK(indexed_dataset_read(data, 7, 0, 68, tokens, 2));
    for (int i = 0; i < 68; i++)
        EXPECT(tokens[2 * i] == (i == 67 ? 49 : (i + 1) % 50) && !tokens[2 * i + 1], "%d: %d", i,
               tokens[2 * i]);
    EXPECT_OK(indexed_dataset_read(data, 7, 66, 2, tokens, 1));
    EXPECT(tokens[0] == 67 % 50 && tokens[1] == 49, "the last two alone: %d %d", tokens[0], tokens[1]);
    indexed_dataset_close(data);
}

static void a_run_needs_no_files(void) {
    GptSource source = {.split = "1,1,1",
                        .which = SPLIT_VALID,
                        .num_samples = 100,
                        .seq_length = 64,
                        .seed = 1234,
                        .vocab_size = 5000,
                        .eod = 4999};
    GptDataset *set = NULL;
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    EXPECT(gpt_dataset_num_epochs(set) == 1 && gpt_dataset_num_samples(set) > 1000000, "%lld samples",
           (long long)gpt_dataset_num_samples(set));
    for (int i = 0; i < 100; i++) {
        int32_t tokens[65];
        EXPECT_OK(gpt_dataset_sample(set, i, tokens));
        for (int k = 1; k < 65; k++)
            EXPECT(tokens[k] == (tokens[k - 1] == 4999 ? 1 : tokens[k - 1] + 1) || tokens[k] == 4999,
                   "sample %d, token %d: %d after %d", i, k, tokens[k], tokens[k - 1]);
    }
    gpt_dataset_close(set);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"lengths_are_numpys", lengths_are_numpys},
        {"sequences_count_up_to_the_end_token", sequences_count_up_to_the_end_token},
        {"a_run_needs_no_files", a_run_needs_no_files},
        {0},
    };
    return harness_run(tests, argc, argv);
}
