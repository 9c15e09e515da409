// Index files (--data-cache-path): the same samples as without, made once, repaired when damaged.
#include "base/file.h"
#include "base/hash.h"
#include "dataset_sets.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { S = 8, N = 60, NUM_DOCUMENTS = 12 };
static const int lengths[NUM_DOCUMENTS] = {5, 9, 3, 7, 6, 4, 8, 10, 40, 2, 30, 11};

typedef struct {
    char prefix[2][512];
    const char *words[4];
    GptSource source;
} Fixture;

static void set_up(Fixture *f, const char *cache) {
    snprintf(f->prefix[0], 512, "%s", write_set("a", 0, lengths, NUM_DOCUMENTS));
    snprintf(f->prefix[1], 512, "%s", write_set("b", 10000, lengths + 2, NUM_DOCUMENTS - 2));
    f->words[0] = "1";
    f->words[1] = f->prefix[0];
    f->words[2] = "2.5";
    f->words[3] = f->prefix[1];
    f->source = (GptSource){.words = f->words,
                            .num_words = 4,
                            .named = "--data-path",
                            .split = "70,30",
                            .num_samples = N,
                            .seq_length = S,
                            .seed = 1234,
                            .vocab_size = 70000,
                            .cache = cache};
}

// A checksum of all samples in order; 0 when they cannot be read.
static uint64_t digest(const GptSource *source) {
    GptDataset *set;
    uint64_t sum = 1;
    if (gpt_dataset_open_source(&set, source) != OK) return 0;
    for (int64_t i = 0; i < gpt_dataset_num_samples(set); i++) {
        int32_t tokens[S + 1] = {0};
        if (gpt_dataset_sample(set, i, tokens) != OK) sum = 0;
        for (int k = 0; k <= S; k++) sum = sum * 6364136223846793005U + (uint64_t)tokens[k] + 1;
    }
    gpt_dataset_close(set);
    return sum;
}

static uint64_t digest_without_cache(const Fixture *f) {
    GptSource source = f->source;
    source.cache = NULL;
    return digest(&source);
}

// What a call prints on stderr, at most `size` bytes of it.
static uint64_t digest_quietly(const GptSource *source, char *said, size_t size) {
    char path[512], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s", harness_path("stderr"));
    fflush(stderr);
    int kept = dup(2), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(file, 2);
    uint64_t sum = digest(source);
    fflush(stderr);
    dup2(kept, 2);
    close(file);
    close(kept);
    EXPECT_OK(file_read(path, 1 << 16, &text, &bytes));
    snprintf(said, size, "%s", text);
    free(text);
    return sum;
}

// ---- files ------------------------------------------------------------------------------------------------

typedef struct {
    char **names;
    int count;
    char *bytes[64];
    size_t sizes[64];
    ino_t inodes[64];
} Folder;

static const char *in_folder(const char *folder, const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static Folder read_folder(const char *path) {
    Folder f = {0};
    EXPECT_OK(folder_list(path, &f.names, &f.count));
    for (int i = 0; i < f.count && i < 64; i++) {
        struct stat st;
        const char *file = in_folder(path, f.names[i]);
        EXPECT_OK(file_read(file, 1 << 20, &f.bytes[i], &f.sizes[i]));
        f.inodes[i] = stat(file, &st) ? 0 : st.st_ino;
    }
    return f;
}

static void free_folder(Folder *f) {
    for (int i = 0; i < f->count; i++) free(f->bytes[i]);
    free(f->names);
}

static void expect_same(const Folder *a, const Folder *b, bool same_files) {
    EXPECT(a->count == b->count, "%d and %d files", a->count, b->count);
    for (int i = 0; i < a->count && i < b->count; i++) {
        EXPECT(!strcmp(a->names[i], b->names[i]), "%s and %s", a->names[i], b->names[i]);
        EXPECT(a->sizes[i] == b->sizes[i] && !memcmp(a->bytes[i], b->bytes[i], a->sizes[i]), "%s differs",
               a->names[i]);
        EXPECT(!same_files || a->inodes[i] == b->inodes[i], "%s was made again", a->names[i]);
    }
}

// ---- tests ------------------------------------------------------------------------------------------------

static void samples_are_the_same(void) {
    Fixture f;
    char cache[512];
    snprintf(cache, sizeof cache, "%s/deep", harness_path("same"));
    set_up(&f, cache);
    uint64_t want = digest_without_cache(&f);
    EXPECT(want != 0, "%s", fail_message());
    EXPECT(digest(&f.source) == want, "made: %s", fail_message());
    Folder first = read_folder(cache);
    EXPECT(first.count == 4 + 4 + 3, "%d files", first.count); // two members and the blend
    EXPECT(digest(&f.source) == want, "mapped: %s", fail_message());
    Folder second = read_folder(cache);
    expect_same(&first, &second, true);
    free_folder(&first);
    free_folder(&second);
}

// What NumPy reads: magic, version 1.0, a dictionary, data at a multiple of 64.
static void files_are_numpys(void) {
    static const struct {
        const char *ending, *type, *shape;
        size_t data_bytes;
    } rows[] = {{"-document_index.npy", "'descr': '<i4'", "'shape': (36,)", 4 * 36},
                {"-sample_index.npy", "'descr': '<i4'", "'shape': (51, 2)", 8 * 51},
                {"-shuffle_index.npy", "'descr': '<u4'", "'shape': (50,)", 4 * 50}};
    Fixture f;
    char cache[512];
    snprintf(cache, sizeof cache, "%s", harness_path("numpy"));
    set_up(&f, cache);
    f.source.words = (const char *const *)&f.words[1];
    f.source.num_words = 1;
    f.source.split = NULL;
    f.source.num_samples = 40; // 135 tokens an epoch
    EXPECT(digest(&f.source) != 0, "%s", fail_message());
    Folder folder = read_folder(cache);
    for (size_t r = 0; r < 3; r++)
        for (int i = 0; i < folder.count; i++) {
            if (!strstr(folder.names[i], rows[r].ending)) continue;
            const char *bytes = folder.bytes[i];
            size_t header = 10 + (unsigned char)bytes[8] + 256 * (size_t)(unsigned char)bytes[9];
            EXPECT(strstr(folder.names[i], "-GPTDataset-train-"), "%s", folder.names[i]);
            EXPECT(!memcmp(bytes, "\x93NUMPY\x01\x00", 8), "magic of %s", folder.names[i]);
            EXPECT(header % 64 == 0 && bytes[header - 1] == '\n', "%zu bytes of header", header);
            EXPECT(strstr(bytes + 10, rows[r].type) && strstr(bytes + 10, rows[r].shape), "%s", bytes + 10);
            EXPECT(folder.sizes[i] == header + rows[r].data_bytes, "%s: %zu bytes", folder.names[i],
                   folder.sizes[i]);
        }
    EXPECT(folder.count == 4, "%d files", folder.count);
    free_folder(&folder);
}

// Anything that changes the order has files of its own; where the data lie does not.
static void keys_are_complete(void) {
    Fixture f;
    char cache[512], said[64];
    snprintf(cache, sizeof cache, "%s", harness_path("keys"));
    set_up(&f, cache);
    GptSource all[] = {f.source, f.source, f.source, f.source, f.source};
    all[1].seed = 1235;
    all[2].num_samples = N + 20;
    all[3].seq_length = S - 1;
    all[4].split = "60,40";
    for (int i = 0; i < 5; i++) {
        GptSource plain = all[i];
        plain.cache = NULL;
        uint64_t want = digest(&plain);
        EXPECT(digest_quietly(&all[i], said, sizeof said) == want && !*said, "variant %d: %s", i, said);
    }
    Folder folder = read_folder(cache);
    EXPECT(folder.count == 5 * 8 + 2 * 3, "%d files", folder.count);
    free_folder(&folder);
    // Another data set under the same name, of as many tokens.
    static const int others[NUM_DOCUMENTS] = {9, 5, 3, 7, 6, 4, 8, 10, 40, 2, 30, 11};
    write_set("a", 0, others, NUM_DOCUMENTS);
    EXPECT(digest(&f.source) == digest_without_cache(&f), "an index of the earlier data set");
}

static void many_at_once_make_what_one_makes(void) {
    Fixture f;
    char one[512], many[512];
    snprintf(one, sizeof one, "%s", harness_path("one"));
    snprintf(many, sizeof many, "%s", harness_path("many"));
    set_up(&f, one);
    uint64_t want = digest(&f.source);
    f.source.cache = many;
    int start[2], failures = 0;
    EXPECT(pipe(start) == 0, "a pipe");
    for (int i = 0; i < 4; i++)
        if (fork() == 0) {
            char byte;
            close(start[1]);
            if (read(start[0], &byte, 1)) _exit(2); // its end starts all
            _exit(digest(&f.source) == want ? 0 : 1);
        }
    close(start[0]);
    close(start[1]);
    for (int i = 0, status; i < 4; i++) failures += wait(&status) < 0 || status != 0;
    EXPECT(failures == 0, "%d of 4 processes failed", failures);
    Folder a = read_folder(one), b = read_folder(many);
    expect_same(&a, &b, false);
    free_folder(&a);
    free_folder(&b);
}

typedef enum { CUT, LONGER, FLIP_HEADER, FLIP_DATA, EMPTY, GONE, NUM_DAMAGES } Damage;

static void hurt(const char *path, const char *bytes, size_t size, Damage damage) {
    Text text = {0};
    text_add_bytes(&text, bytes, size);
    if (damage == LONGER) text_add_bytes(&text, "x", 1);
    if (damage == FLIP_HEADER) text.data[3] ^= 4;
    if (damage == FLIP_DATA) text.data[size - 2] ^= 1;
    unlink(path);
    if (damage != GONE)
        EXPECT_OK(file_write(path, text.data, damage == CUT ? size - 1 : damage == EMPTY ? 0 : text.size));
    text_free(&text);
}

static void damage_is_repaired(void) {
    Fixture f;
    char cache[512], said[1024];
    snprintf(cache, sizeof cache, "%s", harness_path("damaged"));
    set_up(&f, cache);
    f.source.num_words = 2; // a blend of one
    uint64_t want = digest(&f.source);
    Folder good = read_folder(cache);
    for (int i = 0; i < good.count; i++)
        for (Damage damage = CUT; damage < NUM_DAMAGES; damage++) {
            hurt(in_folder(cache, good.names[i]), good.bytes[i], good.sizes[i], damage);
            EXPECT(digest_quietly(&f.source, said, sizeof said) == want, "%s, damage %d", good.names[i],
                   damage);
            bool is_reported = strstr(said, "made again") != NULL;
            EXPECT(is_reported == (damage != GONE), "%s, damage %d: %s", good.names[i], damage, said);
            Folder repaired = read_folder(cache);
            expect_same(&good, &repaired, false);
            free_folder(&repaired);
        }
    free_folder(&good);
}

// The last document index becomes `value`, with the checksum that belongs to it.
static void forge(const char *cache, const Folder *folder, int32_t value) {
    char path[1024] = "", line[128], *at;
    Text text = {0};
    for (int i = 0; i < folder->count; i++) {
        if (!strstr(folder->names[i], "document_index")) continue;
        char *bytes = folder->bytes[i];
        size_t header = 128, size = folder->sizes[i];
        memcpy(bytes + size - sizeof value, &value, sizeof value);
        EXPECT_OK(file_write(in_folder(cache, folder->names[i]), bytes, size));
        Hash hash = hash_of(bytes + header, size - header);
        snprintf(line, sizeof line, "document_index: %zu bytes, xxh3 %016llx%016llx", size - header,
                 (unsigned long long)hash.high, (unsigned long long)hash.low);
    }
    for (int i = 0; i < folder->count; i++) {
        if (!strstr(folder->names[i], "description")) continue;
        snprintf(path, sizeof path, "%s", in_folder(cache, folder->names[i]));
        at = strstr(folder->bytes[i], "document_index: ");
        text_add(&text, "%.*s%s%s", (int)(at - folder->bytes[i]), folder->bytes[i], line,
                 at + strcspn(at, "\n"));
    }
    EXPECT_OK(file_write(path, text.data, text.size));
    text_free(&text);
}

// Right checksums do not make a foreign file's values right: nothing is read outside the data.
static void forged_values_are_refused(void) {
    Fixture f;
    char cache[512], said[1024];
    snprintf(cache, sizeof cache, "%s", harness_path("forged"));
    set_up(&f, cache);
    f.source.words = (const char *const *)&f.words[1];
    f.source.num_words = 1;
    uint64_t want = digest(&f.source);
    static const struct {
        int32_t value;
        bool is_sound;
    } rows[] = {{0, true}, {NUM_DOCUMENTS, false}, {-1, false}, {INT32_MAX, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Folder folder = read_folder(cache);
        forge(cache, &folder, rows[i].value);
        uint64_t sum = digest_quietly(&f.source, said, sizeof said);
        bool is_reported = strstr(said, "values out of range: made again") != NULL;
        EXPECT(is_reported == !rows[i].is_sound, "%d: %s", rows[i].value, said);
        EXPECT(rows[i].is_sound || sum == want, "%d is believed", rows[i].value);
        free_folder(&folder);
    }
}

static void a_folder_that_cannot_be_is_an_error(void) {
    Fixture f;
    char cache[512];
    EXPECT_OK(file_write(harness_path("file"), "x", 1));
    snprintf(cache, sizeof cache, "%s/cache", harness_path("file"));
    set_up(&f, cache);
    GptDataset *set = NULL;
    Status status = gpt_dataset_open_source(&set, &f.source);
    EXPECT(status != OK && !set && strstr(fail_message(), "/file"), "%d: %s", status, fail_message());
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"samples_are_the_same", samples_are_the_same},
        {"files_are_numpys", files_are_numpys},
        {"keys_are_complete", keys_are_complete},
        {"many_at_once_make_what_one_makes", many_at_once_make_what_one_makes},
        {"damage_is_repaired", damage_is_repaired},
        {"forged_values_are_refused", forged_values_are_refused},
        {"a_folder_that_cannot_be_is_an_error", a_folder_that_cannot_be_is_an_error},
        {0},
    };
    return harness_run(tests, argc, argv);
}
