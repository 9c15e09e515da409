// The indexed dataset on disk: golden bytes, round trips, damage.
#include "base/file.h"
#include "base/text.h"
#include "dataset/dataset.h"
#include "harness.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_documents(const char *prefix, int vocab_size, int documents, const int *lengths) {
    IndexedWriter *writer;
    EXPECT_OK(indexed_writer_open(&writer, prefix, vocab_size));
    int32_t next = 1;
    for (int i = 0; i < documents; i++) {
        int32_t tokens[64];
        for (int k = 0; k < lengths[i]; k++) tokens[k] = next++;
        EXPECT_OK(indexed_writer_add(writer, tokens, (size_t)lengths[i]));
    }
    EXPECT(!file_exists(harness_path("x.idx")), "nothing has its name before the end");
    EXPECT_OK(indexed_writer_finish(writer));
    indexed_writer_close(writer);
}

static void index_is_byte_exact(void) {
    char *golden, *idx, *bin;
    size_t size, idx_bytes, bin_bytes, at = 0;
    write_documents(harness_path("golden"), 1000, 2, (const int[]){3, 2});
    EXPECT_OK(file_read(TEST_FOLDER "/golden/data_two_documents.idx.txt", 4096, &golden, &size));
    EXPECT_OK(file_read(harness_path("golden.idx"), 4096, &idx, &idx_bytes));
    for (char *word = strtok(golden, " \n"); word; word = strtok(NULL, " \n"), at++)
        EXPECT(at < idx_bytes && (unsigned char)idx[at] == strtoul(word, NULL, 16), "byte %zu is not %s", at,
               word);
    EXPECT(at == 82 && idx_bytes == 82, "%zu and %zu bytes", at, idx_bytes);
    EXPECT_OK(file_read(harness_path("golden.bin"), 4096, &bin, &bin_bytes));
    EXPECT(bin_bytes == 10 && memcmp(bin, "\1\0\2\0\3\0\4\0\5\0", 10) == 0, "%zu bytes", bin_bytes);
    free(golden);
    free(idx);
    free(bin);
}

static void documents_come_back(void) {
    static const int lengths[] = {3, 0, 2, 64, 1, 0};
    static const int sizes[] = {65499, 65500};
    for (int wide = 0; wide < 2; wide++) {
        IndexedDataset *data = NULL;
        write_documents(harness_path("back"), sizes[wide], 6, lengths);
        EXPECT_OK(indexed_dataset_open(&data, harness_path("back"), sizes[wide]));
        EXPECT(indexed_dataset_num_sequences(data) == 4 && indexed_dataset_num_documents(data) == 6,
               "empty documents have no sequence");
        EXPECT(indexed_dataset_num_tokens(data) == 70, "%" PRId64, indexed_dataset_num_tokens(data));
        int32_t tokens[128] = {0}, next = 6;
        EXPECT(indexed_dataset_length(data, 2) == 64, "%d", indexed_dataset_length(data, 2));
        EXPECT_OK(indexed_dataset_read(data, 2, 0, 64, tokens, 2));
        for (int i = 0; i < 64; i++)
            EXPECT(tokens[2 * i] == next + i && tokens[2 * i + 1] == 0, "token %d: %d", i, tokens[2 * i]);
        char *bin;
        size_t bytes;
        EXPECT_OK(file_read(harness_path("back.bin"), 4096, &bin, &bytes));
        EXPECT(bytes == (wide ? 280 : 140), "%zu bytes for a vocabulary of %d", bytes, sizes[wide]);
        free(bin);
        indexed_dataset_close(data);
    }
}

static void an_empty_dataset_opens(void) {
    IndexedDataset *data = NULL;
    write_documents(harness_path("none"), 10, 1, (const int[]){0});
    EXPECT_OK(indexed_dataset_open(&data, harness_path("none"), 10));
    EXPECT(indexed_dataset_num_sequences(data) == 0 && indexed_dataset_num_documents(data) == 1,
           "one document of nothing");
    indexed_dataset_close(data);
}

static void unfinished_leaves_nothing(void) {
    IndexedWriter *writer;
    EXPECT_OK(indexed_writer_open(&writer, harness_path("part"), 10));
    EXPECT_OK(indexed_writer_add(writer, (const int32_t[]){1, 2}, 2));
    indexed_writer_close(writer);
    EXPECT(!file_exists(harness_path("part.bin")) && !file_exists(harness_path("part.idx")),
           "an unfinished dataset has a name");
    EXPECT(indexed_writer_open(&writer, harness_path("no/such/folder/x"), 10) == ERR_CREATE, "%s",
           fail_message());
    EXPECT(indexed_dataset_open(&(IndexedDataset *){NULL}, harness_path("part"), 0) == ERR_NO_INPUT, "%s",
           fail_message());
}

// Opens it, and when that works reads every token.
static Status open_and_read(const char *prefix) {
    IndexedDataset *data;
    TRY(indexed_dataset_open(&data, prefix, 16));
    Status status = OK;
    for (int64_t i = 0; status == OK && i < indexed_dataset_num_sequences(data); i++) {
        int32_t tokens[64];
        status = indexed_dataset_read(data, i, 0, indexed_dataset_length(data, i), tokens, 1);
    }
    indexed_dataset_close(data);
    return status;
}

static void cut_anywhere_is_refused(const char *name) {
    char *bytes, path[512];
    size_t size;
    snprintf(path, sizeof path, "%s", harness_path(name));
    EXPECT_OK(file_read(path, 4096, &bytes, &size));
    for (size_t cut = 0; cut < size; cut++) {
        EXPECT_OK(file_write(path, bytes, cut));
        EXPECT(open_and_read(harness_path("hurt")) == ERR_DATA, "%s cut to %zu of %zu bytes", name, cut,
               size);
    }
    Text longer = {0};
    text_add_bytes(&longer, bytes, size);
    text_add_bytes(&longer, "\0", 1);
    EXPECT_OK(file_write(path, longer.data, longer.size));
    EXPECT(open_and_read(harness_path("hurt")) == ERR_DATA, "%s with a byte too many", name);
    text_free(&longer);
    EXPECT_OK(file_write(path, bytes, size));
    EXPECT_OK(open_and_read(harness_path("hurt")));
    free(bytes);
}

// Returns how many flips were not noticed.
static int flip_every_bit(const char *name) {
    char *bytes, path[512];
    size_t size;
    int unnoticed = 0;
    snprintf(path, sizeof path, "%s", harness_path(name));
    EXPECT_OK(file_read(path, 4096, &bytes, &size));
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
        EXPECT_OK(file_write(path, bytes, size));
        Status status = open_and_read(harness_path("hurt"));
        EXPECT(status == OK || status == ERR_DATA, "%s bit %zu: %d", name, bit, status);
        unnoticed += status == OK;
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
    }
    EXPECT_OK(file_write(path, bytes, size));
    free(bytes);
    return unnoticed;
}

static void damage_is_noticed(void) {
    write_documents(harness_path("hurt"), 16, 3, (const int[]){3, 2, 4});
    cut_anywhere_is_refused("hurt.idx");
    cut_anywhere_is_refused("hurt.bin");
    // Two flips of document indices still rise (1 -> 0, 2 -> 3); flips of a token's low four bits stay below
    // 16.
    EXPECT(flip_every_bit("hurt.idx") == 2, "flips of the index that look valid");
    EXPECT(flip_every_bit("hurt.bin") == 9 * 4, "flips of the tokens that stay in the vocabulary");
}

static void refuse(const char *idx, size_t bytes, const char *words) {
    EXPECT_OK(file_write(harness_path("bad.idx"), idx, bytes));
    EXPECT_OK(file_write(harness_path("bad.bin"), "", 0));
    EXPECT(indexed_dataset_open(&(IndexedDataset *){NULL}, harness_path("bad"), 0) == ERR_DATA, "%s", words);
    EXPECT(strstr(fail_message(), words) && strstr(fail_message(), "bad.idx"), "\"%s\" says not \"%s\"",
           fail_message(), words);
}

static void messages_name_the_fault(void) {
    char idx[64] = "TNTIDX";
    refuse(idx, sizeof idx, "older format TNTIDX");
    memcpy(idx, "MMIDIDX\0\0\2\0\0\0\0\0\0\0", 17);
    refuse(idx, sizeof idx, "byte 9: version 2");
    idx[9] = 1;
    idx[17] = 7;
    refuse(idx, sizeof idx, "byte 17: type 7");
    idx[17] = 8;
    memset(idx + 18, 0xff, 16);
    refuse(idx, sizeof idx, "byte 18: 18446744073709551615 sequences");
    memset(idx + 18, 0, 16);
    refuse(idx, 34, "at least 1");
    idx[18] = 1;
    idx[26] = 1;
    refuse(idx, 34 + 12 + 8 + 1, "multimodal");
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"index_is_byte_exact", index_is_byte_exact},
        {"documents_come_back", documents_come_back},
        {"an_empty_dataset_opens", an_empty_dataset_opens},
        {"unfinished_leaves_nothing", unfinished_leaves_nothing},
        {"damage_is_noticed", damage_is_noticed},
        {"messages_name_the_fault", messages_name_the_fault},
        {0},
    };
    return harness_run(tests, argc, argv);
}
