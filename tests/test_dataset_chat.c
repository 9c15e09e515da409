// Tests samples of conversations: whole, padded, each once an epoch, with their masks and starts; and what is refused.
#include "dataset_sets.h"
#include <stdlib.h>

enum { SAMPLES = 13, LENGTH = 20, VOCABULARY = 1000 };

// Sample i has i % 3 + 1 conversations; conversation c of it has 2 + (i + c) % 5 tokens.
static int conversations_of(int i) { return i % 3 + 1; }
static int tokens_of(int i, int c) { return 2 + (i + c) % 5; }
static int32_t token_of(int i, int c, int k) { return 50 * i + 10 * c + k; }
static bool trained(int i, int c, int k) { return (i + c + k) % 2 == 0; }

static void write_both(const char *name, int samples, int longer) {
    IndexedWriter *writers[2];
    char mask_name[64];
    snprintf(mask_name, sizeof mask_name, "%s_loss_mask", name);
    EXPECT_OK(indexed_writer_open(&writers[0], harness_path(name), VOCABULARY));
    EXPECT_OK(indexed_writer_open(&writers[1], harness_path(mask_name), 2));
    for (int i = 0; i < samples; i++)
        for (int w = 0; w < 2; w++) {
            for (int c = 0; c < conversations_of(i); c++) {
                int count = tokens_of(i, c) + (w ? longer : 0);
                for (int k = 0; k < count; k++) {
                    int32_t value = w ? trained(i, c, k) : token_of(i, c, k);
                    EXPECT_OK(indexed_writer_extend(writers[w], &value, 1));
                }
                EXPECT_OK(indexed_writer_end_sequence(writers[w]));
            }
            EXPECT_OK(indexed_writer_end_document(writers[w], -1));
        }
    for (int w = 0; w < 2; w++) {
        EXPECT_OK(indexed_writer_finish(writers[w]));
        indexed_writer_close(writers[w]);
    }
}

static GptSource source_of(const char *const *words, int64_t samples) {
    return (GptSource){.words = words,
                       .num_words = 1,
                       .named = "--data-path",
                       .num_samples = samples,
                       .seq_length = LENGTH,
                       .seed = 7,
                       .vocab_size = VOCABULARY,
                       .eod = 999,
                       .conversations = true};
}

// Compares one column of a batch with sample i.
static void expect_sample(int i, const int32_t *tokens, const int32_t *labels, const float *mask,
                          const int32_t *starts, int stride) {
    int at = 0, begin = 0;
    for (int c = 0; c < conversations_of(i); c++, begin = at)
        for (int k = 0; k < tokens_of(i, c); k++, at++) {
            if (at < LENGTH) EXPECT(tokens[at * stride] == token_of(i, c, k), "sample %d, token %d", i, at);
            if (at < LENGTH) EXPECT(starts[at * stride] == begin, "sample %d, start of %d", i, at);
            if (at == 0) continue;
            EXPECT(labels[(at - 1) * stride] == token_of(i, c, k), "sample %d, label %d", i, at - 1);
            EXPECT(mask[(at - 1) * stride] == (float)(k > 0 && trained(i, c, k)), "sample %d, mask %d", i,
                   at - 1);
        }
    for (int s = at; s < LENGTH; s++)
        EXPECT(tokens[s * stride] == 999 && starts[s * stride] == at, "sample %d, padding %d", i, s);
    for (int s = at - 1; s < LENGTH; s++)
        EXPECT(labels[s * stride] == 999 && mask[s * stride] == 0, "sample %d, padded label %d", i, s);
}

static void samples_are_documents(void) {
    enum { BATCH = 2, EPOCHS = 3 };
    write_both("chat", SAMPLES, 0);
    const char *words[] = {harness_path("chat")};
    GptSource source = source_of(words, SAMPLES * EPOCHS - 1);
    GptDataset *set;
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    EXPECT(gpt_dataset_num_samples(set) == SAMPLES * EPOCHS && gpt_dataset_num_epochs(set) == EPOCHS,
           "samples");
    int seen[SAMPLES] = {0}, order[SAMPLES * EPOCHS];
    double sum = 0;
    for (int s = 0; s + BATCH <= SAMPLES * EPOCHS; s += BATCH) {
        int32_t tokens[LENGTH * BATCH], labels[LENGTH * BATCH], starts[LENGTH * BATCH];
        float mask[LENGTH * BATCH];
        BatchPlace place = {.consumed = s, .micro_batch = BATCH, .leaves = 1};
        EXPECT_OK(batch_fill(set, place, tokens, labels));
        EXPECT_OK(batch_fill_mask(set, place, mask));
        batch_fill_starts(set, place, starts);
        for (int j = 0; j < BATCH; j++) {
            int i = order[s + j] = tokens[j] / 50;
            if (i < 0 || i >= SAMPLES) continue;
            expect_sample(i, tokens + j, labels + j, mask + j, starts + j, BATCH);
            seen[i]++;
        }
        for (int k = 0; k < LENGTH * BATCH; k++) sum += (double)mask[k];
    }
    int shuffled = 0;
    for (int i = 0; i < SAMPLES; i++) shuffled += order[i] != order[SAMPLES + i];
    for (int i = 0; i < SAMPLES; i++)
        EXPECT(seen[i] >= EPOCHS - 1 && seen[i] <= EPOCHS, "sample %d: %d times", i, seen[i]);
    EXPECT(shuffled > SAMPLES / 2 && sum > 0, "%d places differ between epochs", shuffled);
    gpt_dataset_close(set);
}

// A mask that is read in several blocks.
static void long_conversations_have_masks(void) {
    enum { LONG = 2500 };
    IndexedWriter *writers[2];
    EXPECT_OK(indexed_writer_open(&writers[0], harness_path("long"), VOCABULARY));
    EXPECT_OK(indexed_writer_open(&writers[1], harness_path("long_loss_mask"), 2));
    for (int w = 0; w < 2; w++) {
        for (int32_t k = 0; k < LONG; k++)
            EXPECT_OK(indexed_writer_extend(writers[w], &(int32_t){w ? k % 7 == 0 : k % 900}, 1));
        EXPECT_OK(indexed_writer_end_document(writers[w], -1));
        EXPECT_OK(indexed_writer_finish(writers[w]));
        indexed_writer_close(writers[w]);
    }
    const char *words[] = {harness_path("long")};
    GptSource source = source_of(words, 1);
    source.seq_length = LONG + 3;
    GptDataset *set;
    float mask[LONG + 3];
    EXPECT_OK(gpt_dataset_open_source(&set, &source));
    EXPECT_OK(batch_fill_mask(set, (BatchPlace){.micro_batch = 1, .leaves = 1}, mask));
    for (int s = 0; s < LONG + 3; s++)
        EXPECT(mask[s] == (float)(s + 1 < LONG && (s + 1) % 7 == 0), "label %d", s);
    gpt_dataset_close(set);
}

static void a_cache_changes_nothing(void) {
    write_both("cached", SAMPLES, 0);
    const char *words[] = {harness_path("cached")};
    GptSource source = source_of(words, 30);
    source.split = "80,20,0";
    GptDataset *plain, *made, *mapped;
    EXPECT_OK(gpt_dataset_open_source(&plain, &source));
    source.cache = harness_path("order");
    EXPECT_OK(gpt_dataset_open_source(&made, &source));
    EXPECT_OK(gpt_dataset_open_source(&mapped, &source));
    int64_t count = gpt_dataset_num_samples(plain);
    EXPECT(count == gpt_dataset_num_samples(mapped) && count == 30, "%d samples of ten", (int)count);
    for (int64_t i = 0; i < count; i++) {
        int32_t tokens[3][LENGTH + 1];
        EXPECT_OK(gpt_dataset_sample(plain, i, tokens[0]));
        EXPECT_OK(gpt_dataset_sample(made, i, tokens[1]));
        EXPECT_OK(gpt_dataset_sample(mapped, i, tokens[2]));
        EXPECT(!memcmp(tokens[0], tokens[1], sizeof tokens[0]) &&
                   !memcmp(tokens[0], tokens[2], sizeof tokens[0]),
               "sample %d", (int)i);
    }
    gpt_dataset_close(plain);
    gpt_dataset_close(made);
    gpt_dataset_close(mapped);
}

static void expect_refused(const char *name, int length, Status status, const char *words) {
    const char *prefix[] = {harness_path(name)};
    GptSource source = source_of(prefix, 5);
    source.seq_length = length;
    GptDataset *set;
    Status got = gpt_dataset_open_source(&set, &source);
    EXPECT(got == status && strstr(fail_message(), words), "%s is expected: %d, %s", words, (int)got,
           fail_message());
    if (got == OK) gpt_dataset_close(set);
}

static void what_does_not_fit_is_refused(void) {
    static const int lengths[] = {5, 6};
    write_set("plain", 0, lengths, 2);
    expect_refused("plain", LENGTH, ERR_NO_INPUT, "plain is no data set of conversations: there is no ");
    write_both("differs", SAMPLES, 1);
    expect_refused("differs", LENGTH, ERR_DATA, "differs_loss_mask.idx has other sequences than ");
    write_both("fits", SAMPLES, 0);
    const char *prefix[] = {harness_path("fits")};
    GptSource text = source_of(prefix, 5);
    GptDataset *set;
    text.conversations = false;
    EXPECT(gpt_dataset_open_source(&set, &text) == ERR_CONFIG && strstr(fail_message(), "add --sft"), "%s",
           fail_message());
    expect_refused("fits", 11, ERR_DATA,
                   "sample 2 has 15 tokens, but --seq-length 11 and the one that follows are 12");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"samples_are_documents", samples_are_documents},
                                      {"long_conversations_have_masks", long_conversations_have_masks},
                                      {"a_cache_changes_nothing", a_cache_changes_nothing},
                                      {"what_does_not_fit_is_refused", what_does_not_fit_is_refused},
                                      {0}},
                       argc, argv);
}
