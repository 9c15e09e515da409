// What cannot be read: bad lines end a run or are left out and counted; files of foreign formats are named,
// together with what makes text of them.
#include "corpus/corpus_reader.h"
#include "dataset/dataset.h"
#include "preprocess_fixture.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static Status run_on(const char *input, const char *prefix, bool skip, int workers, PreprocessSummary *s) {
    char path[512], out[512];
    snprintf(path, sizeof path, "%s", harness_path(input));
    snprintf(out, sizeof out, "%s", harness_path(prefix));
    PreprocessJob job = job_of((const char *[]){path}, out);
    job.skip_bad_lines = skip;
    job.workers = workers;
    return preprocess_run(&job, s);
}

// ---- bad lines --------------------------------------------------------------------------------------------

static const struct {
    const char *line, *why;
} bad_lines[] = {
    {"{\"text\": broken", "a value is expected"},
    {"{\"other\": \"no text\"}", "no key \"text\""},
    {"{\"text\": 3}", "is not a string or a list of strings"},
    {"{\"text\": [\"counted in vain\", 3]}", "is not a string or a list of strings"},
    {"plain words", "a value is expected"},
    {"{\"text\": \"cut", "the line ends too early"},
    {"[1]", "a JSON object is expected"},
};
enum { NUM_BAD = sizeof bad_lines / sizeof bad_lines[0], NUM_GOOD = 9000, NUM_SHOWN = 5 };

// Good lines of several batches; where wanted, behind each thousand of them a bad one.
static void put_lines(const char *name, bool with_bad) {
    Text text = {0};
    for (int i = 0; i < NUM_GOOD; i++) {
        text_add(&text, "{\"text\": \"line %d of a text, whose square is %d\", \"id\": %d}\n", i, i * i, i);
        if (with_bad && i % 1000 == 999 && i / 1000 < NUM_BAD)
            text_add(&text, "%s\n", bad_lines[i / 1000].line);
    }
    put(name, text.data, text.size);
    text_free(&text);
}

static void expect_shown(const char *left_out) {
    for (int i = 0; i < NUM_BAD; i++) {
        char where[32];
        snprintf(where, sizeof where, "mixed.jsonl:%d: ", 1001 * (i + 1));
        bool shown = strstr(left_out, where) && strstr(left_out, bad_lines[i].why);
        EXPECT(shown == (i < NUM_SHOWN), "%s in %s", where, left_out);
    }
}

// The same data set as of the good lines alone, whatever the number of workers.
static void bad_lines_leave_nothing(void) {
    PreprocessSummary s;
    put_lines("good.jsonl", false);
    put_lines("mixed.jsonl", true);
    EXPECT_OK(run_on("good.jsonl", "good", true, 1, &s));
    EXPECT(s.documents == NUM_GOOD && s.bad_lines == 0 && !s.left_out.size, "%lld", (long long)s.bad_lines);
    for (int workers = 1; workers <= 3; workers++) {
        EXPECT_OK(run_on("mixed.jsonl", "mixed", true, workers, &s));
        EXPECT(s.documents == NUM_GOOD && s.bad_lines == NUM_BAD, "%lld documents, %lld bad lines",
               (long long)s.documents, (long long)s.bad_lines);
        expect_shown(text_string(&s.left_out));
        text_free(&s.left_out);
        expect_same_file(harness_path("good.bin"), harness_path("mixed.bin"));
        expect_same_file(harness_path("good.idx"), harness_path("mixed.idx"));
        expect_same_file(harness_path("good.tokenizer.json"), harness_path("mixed.tokenizer.json"));
    }
}

static void without_skipping_the_first_ends_the_run(void) {
    PreprocessSummary s;
    for (int i = 0; i < NUM_BAD; i++) {
        put("one.jsonl", bad_lines[i].line, strlen(bad_lines[i].line));
        EXPECT(run_on("one.jsonl", "one", false, 1, &s) == ERR_DATA, "%s", bad_lines[i].line);
        EXPECT(strstr(fail_message(), "one.jsonl:1: ") && strstr(fail_message(), bad_lines[i].why) &&
                   strstr(fail_message(), "; --skip-bad-lines leaves such lines out"),
               "%s", fail_message());
        EXPECT(run_on("one.jsonl", "one", true, 1, &s) == ERR_DATA, "%s", bad_lines[i].line);
        EXPECT(strstr(fail_message(), "0 binary files and 1 bad lines are left out, the first is /"), "%s",
               fail_message());
    }
}

// Lines 2 and 6 have more than 64 MiB; line 4 has three sequences, the last without a place to cut for 16.
static void put_long_lines(void) {
    size_t line = (size_t)MAX_LINE_BYTES + 1, word = (size_t)MAX_STRETCH_BYTES + 1;
    Text text = {0};
    char *filler = malloc(line);
    memset(filler, 'a', line);
    text_add(&text, "{\"text\": \"first, and some words more\"}\n");
    text_add_bytes(&text, filler, line);
    text_add(&text, "\n{\"text\": \"second, which is line 3\"}\n{\"text\": [\"one\", \"two\", \"");
    text_add_bytes(&text, filler, word);
    text_add(&text, "\"]}\n{\"text\": \"third\"}\n");
    text_add_bytes(&text, filler, line); // without an end
    put("long.jsonl", text.data, text.size);
    text_free(&text);
    free(filler);
}

static void lines_that_are_too_long(void) {
    PreprocessSummary s;
    put_long_lines();
    EXPECT(run_on("long.jsonl", "long", false, 1, &s) == ERR_DATA, "a line is too long");
    EXPECT(
        strstr(fail_message(), "long.jsonl:2: a line of more than 64 MiB: JSON lines have one object a line"),
        "%s", fail_message());
    EXPECT_OK(run_on("long.jsonl", "long", true, 2, &s));
    EXPECT(s.documents == 3 && s.bad_lines == 3, "%lld documents, %lld bad lines", (long long)s.documents,
           (long long)s.bad_lines);
    const char *left_out = text_string(&s.left_out);
    EXPECT(strstr(left_out, "long.jsonl:2: a line of more than 64 MiB\n"), "%s", left_out);
    EXPECT(strstr(left_out, "long.jsonl:4: 16 MiB of a text without a place to cut"), "%s", left_out);
    EXPECT(strstr(left_out, "long.jsonl:6: a line of more than 64 MiB\n"), "%s", left_out);
    text_free(&s.left_out);
    IndexedDataset *data = NULL;
    EXPECT_OK(indexed_dataset_open(&data, harness_path("long"), s.vocab_size));
    EXPECT(indexed_dataset_num_sequences(data) == 3, "nothing of a bad line is there");
    indexed_dataset_close(data);
}

static void a_file_of_one_value_is_recognised(void) {
    PreprocessSummary s;
    static const char list[] = "[\n{\"text\": \"a\"}\n]\n", object[] = "{\n\"text\": \"a\"\n}\n";
    put("list.json", list, strlen(list));
    EXPECT(run_on("list.json", "x", false, 1, &s) == ERR_DATA, "a list");
    EXPECT(strstr(fail_message(), "`jq -c '.[]' FILE`"), "%s", fail_message());
    put("object.json", object, strlen(object));
    EXPECT(run_on("object.json", "x", false, 1, &s) == ERR_DATA, "an object on several lines");
    EXPECT(strstr(fail_message(), "`jq -c . FILE`"), "%s", fail_message());
}

// ---- foreign files ----------------------------------------------------------------------------------------

static const struct {
    const char *file, *begin;
    size_t offset, bytes;
    const char *name, *advice;
} foreign[] = {
    {"x.parquet", "PAR1\x15\x04", 0, 6, "a Parquet file", "pandas.read_parquet('"},
    {"x.feather", "ARROW1\0\0", 0, 8, "an Arrow file", "pandas.read_feather('"},
    {"x.arrow", "\xff\xff\xff\xff\x10", 0, 5, "an Arrow stream", "datasets.Dataset.from_file('"},
    {"x.zip", "PK\3\4\x14", 0, 5, "a zip archive", "unzip '"},
    {"x.tar", "ustar", 257, 5, "a tar archive", "tar -xf '"},
    {"x.7z", "7z\xbc\xaf\x27\x1c", 0, 6, "a 7-Zip archive", "7z x '"},
    {"x.bz2", "BZh91AY&SY", 0, 10, "a bzip2 archive", "bzip2 -dc '"},
    {"x.xz", "\xfd\x37zXZ\0", 0, 6, "an xz archive", "xz -dc '"},
    {"x.lz4", "\x04\x22\x4d\x18", 0, 4, "an LZ4 archive", "lz4 -dc '"},
    {"x.pdf", "%PDF-1.7", 0, 8, "a PDF file", "pdftotext '"},
    {"gzipped", "\x1f\x8b\x08", 0, 3, "a gzip archive whose name does not end in .gz", "--input -"},
    {"zstd", "\x28\xb5\x2f\xfd", 0, 4, "a Zstandard archive whose name does not", "--input -"},
    {"utf16.txt", "\xff\xfe\x61\0", 0, 4, "text in UTF-16", "iconv -f UTF-16"},
    {"set.idx", "MMIDIDX\0\0", 0, 9, "the index of a data set", "train --data-path"},
};
enum { NUM_FOREIGN = sizeof foreign / sizeof foreign[0], PARQUET = 0, PDF = 9 };

static void put_foreign(const char *folder, int i) {
    char name[128], data[512] = {0};
    for (size_t b = 0; b < foreign[i].offset; b++) data[b] = 'n';
    memcpy(data + foreign[i].offset, foreign[i].begin, foreign[i].bytes);
    snprintf(name, sizeof name, "%s/%s", folder, foreign[i].file);
    put(name, data, foreign[i].offset + foreign[i].bytes);
}

static void named_foreign_files_are_refused(void) {
    PreprocessSummary s;
    mkdir(harness_path("foreign"), 0700);
    for (int i = 0; i < NUM_FOREIGN; i++) {
        char name[128];
        put_foreign("foreign", i);
        snprintf(name, sizeof name, "foreign/%s", foreign[i].file);
        EXPECT(run_on(name, "x", false, 1, &s) == ERR_DATA, "%s", name);
        EXPECT(strstr(fail_message(), foreign[i].name) && strstr(fail_message(), foreign[i].advice), "%s",
               fail_message());
    }
}

static void in_a_folder_they_are_left_out(void) {
    PreprocessSummary s;
    mkdir(harness_path("folder"), 0700);
    put_foreign("folder", PARQUET);
    EXPECT(run_on("folder", "x", false, 1, &s) == ERR_DATA, "no text");
    EXPECT(strstr(fail_message(), "no text in 0 files; 1 binary files and 0 bad lines are left out"), "%s",
           fail_message());
    EXPECT(strstr(fail_message(), "the first is /") &&
               strstr(fail_message(), "x.parquet: this is a Parquet file, which is not read here; make JSON"),
           "%s", fail_message());
    put_foreign("folder", PDF); // without a NUL
    put("folder/a.txt", "text of its own\n", 16);
    EXPECT_OK(run_on("folder", "out", false, 1, &s));
    EXPECT(s.documents == 1 && s.skipped_binary == 2, "%lld documents, %lld binary files",
           (long long)s.documents, (long long)s.skipped_binary);
    EXPECT(strstr(text_string(&s.left_out), "x.parquet: this is a Parquet file"), "%s",
           text_string(&s.left_out));
    text_free(&s.left_out);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"bad_lines_leave_nothing", bad_lines_leave_nothing},
        {"without_skipping_the_first_ends_the_run", without_skipping_the_first_ends_the_run},
        {"lines_that_are_too_long", lines_that_are_too_long},
        {"a_file_of_one_value_is_recognised", a_file_of_one_value_is_recognised},
        {"named_foreign_files_are_refused", named_foreign_files_are_refused},
        {"in_a_folder_they_are_left_out", in_a_folder_they_are_left_out},
        {0},
    };
    return harness_run(tests, argc, argv);
}
