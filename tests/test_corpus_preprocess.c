// Text to dataset: the same bytes with any number of workers, the text back, clear refusals.
#include "dataset/dataset.h"
#include "preprocess_fixture.h"
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

// Files of some KB, so that several batches are in flight.
static void put_long(const char *name, int lines, int seed) {
    Text text = {0};
    for (int i = 0; i < lines; i++)
        text_add(&text, "line %d of %s: %d squared is %d\n", i, name, i + seed, (i + seed) * (i + seed));
    put_text(name, text_string(&text));
    text_free(&text);
}

static void make_folder(void) {
    if (file_exists(harness_path("in"))) return;
    mkdir(harness_path("in"), 0700);
    mkdir(harness_path("in/sub"), 0700);
    mkdir(harness_path("in/.git"), 0700);
    put_text("in/b.txt", "second file, b\n");
    put_text("in/a.txt", "first file\n");
    put_text("in/sub/c.txt", "third: caf\xc3\xa9 \xff\n");
    put_text("in/.git/config", "hidden");
    put_text("in/empty.txt", "");
    put("in/program", "\177ELF\0\1", 6);
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "in/sub/long%02d.txt", i);
        put_long(name, 2000 + 100 * i, i);
    }
}

static void workers_do_not_change_a_byte(void) {
    make_folder();
    static const char *const prefixes[] = {"w1", "w2", "w4"};
    static const char *const endings[] = {"bin", "idx", "tokenizer.json"};
    for (int i = 0; i < 3; i++) {
        PreprocessSummary s;
        PreprocessJob job = job_of((const char *[]){harness_path("in")}, harness_path(prefixes[i]));
        job.workers = 1 << i;
        EXPECT_OK(preprocess_run(&job, &s));
        EXPECT(s.documents == 16 && s.files == 16 && s.skipped_binary == 1, "%lld documents, %lld files",
               (long long)s.documents, (long long)s.files);
        EXPECT(s.vocab_size == 400 && s.tokens > 0, "vocabulary %d", s.vocab_size);
        for (int e = 0; i && e < 3; e++) {
            char a[64], b[64];
            snprintf(a, sizeof a, "w1.%s", endings[e]);
            snprintf(b, sizeof b, "%s.%s", prefixes[i], endings[e]);
            expect_same_file(harness_path(a), harness_path(b));
        }
    }
}

// Sequence `i` of the dataset as text, without its EOD.
static void expect_document(const char *prefix, int64_t i, const char *want) {
    Tokenizer *t = NULL;
    IndexedDataset *data = NULL;
    Text text = {0};
    EXPECT_OK(tokenizer_open_beside(&t, harness_path("w1")));
    EXPECT_OK(indexed_dataset_open(&data, harness_path(prefix), tokenizer_vocab_size(t)));
    int32_t tokens[4096], length = indexed_dataset_length(data, i);
    EXPECT_OK(indexed_dataset_read(data, i, 0, length, tokens, 1));
    EXPECT(tokens[length - 1] == tokenizer_eod(t), "ends with %d", tokens[length - 1]);
    EXPECT_OK(tokenizer_decode(t, tokens, (size_t)length - 1, &text));
    EXPECT(strcmp(text_string(&text), want) == 0, "document %lld is \"%s\"", (long long)i,
           text_string(&text));
    text_free(&text);
    indexed_dataset_close(data);
    tokenizer_close(t);
}

// The data set "w1", for tests that come after it or run alone.
static void make_w1(void) {
    if (!file_exists(harness_path("w1.idx"))) workers_do_not_change_a_byte();
}

static void documents_come_back_in_order(void) {
    make_w1();
    expect_document("w1", 0, "first file\n");
    expect_document("w1", 1, "second file, b\n");
    expect_document("w1", 2, "third: caf\xc3\xa9 \xff\n"); // the empty file has a document but no sequence
}

static PreprocessJob with_saved_tokenizer(PreprocessJob job) {
    job.vocab_size = 0;
    job.tokenizer_path = harness_path("w1");
    return job;
}

static void json_lines(void) {
    make_w1();
    put_text("two.jsonl", "{\"text\": \"a \\u00e9\\n\", \"title\": \"One\"}\n\n"
                          "{\"title\": \"Two\", \"text\": \"nul\\u0000!\"}");
    PreprocessSummary s;
    PreprocessJob job =
        with_saved_tokenizer(job_of((const char *[]){harness_path("two.jsonl")}, harness_path("json")));
    EXPECT_OK(preprocess_run(&job, &s));
    EXPECT(s.documents == 2 && s.files == 1, "%lld documents", (long long)s.documents);
    EXPECT(s.text_bytes == 5 + 5, "%lld bytes of text, without the JSON around it", (long long)s.text_bytes);
    expect_document("json", 0, "a \xc3\xa9\n");
    job.json_keys = (const char *const[]){"text", "title"};
    job.num_json_keys = 2;
    EXPECT_OK(preprocess_run(&job, &s));
    expect_same_file(harness_path("json.bin"), harness_path("json_text_document.bin"));
    expect_document("json_title_document", 1, "Two");
    expect_same_file(harness_path("json.tokenizer.json"), harness_path("json_title_document.tokenizer.json"));
    expect_same_file(harness_path("json.tokenizer.json"), harness_path("json_text_document.tokenizer.json"));
    job.inputs = (const char *[]){harness_path("in/a.txt")};
    EXPECT(preprocess_run(&job, &s) == ERR_CONFIG, "a text file has no keys");
}

static void refuse_line(const char *line, const char *words) {
    Text text = {0};
    text_add(&text, "{\"text\": \"good\"}\n%s\n{\"bad\": 1}\n", line);
    put_text("bad.jsonl", text_string(&text));
    text_free(&text);
    for (int workers = 1; workers <= 2; workers++) {
        PreprocessSummary s;
        PreprocessJob job = job_of((const char *[]){harness_path("bad.jsonl")}, harness_path("bad"));
        job.workers = workers;
        EXPECT(preprocess_run(&job, &s) == ERR_DATA, "%s", line);
        EXPECT(strstr(fail_message(), "bad.jsonl:2: ") && strstr(fail_message(), words), "%s",
               fail_message());
    }
}

static void bad_lines_are_named(void) {
    refuse_line("{\"text\": \"cut", "ends too early");
    refuse_line("{\"text\": 'x'}", "byte 9");
    refuse_line("{\"text\": \"x\"} trailing", "byte");
    refuse_line("[\"text\"]", "a JSON object is expected");
    refuse_line("{\"body\": \"x\"}", "no key \"text\"");
    refuse_line("{\"text\": 5}", "\"text\" is not a string");
    EXPECT(!file_exists(harness_path("bad.bin")) && !file_exists(harness_path("bad.idx")) &&
               !file_exists(harness_path("bad.tokenizer.json")),
           "a failed run leaves files");
}

static Status run_on(const char *input, int64_t max_bytes, PreprocessSummary *s) {
    PreprocessJob job = job_of(&input, harness_path("limits"));
    job.max_bytes = max_bytes;
    return preprocess_run(&job, s);
}

static void inputs_are_checked(void) {
    make_folder();
    PreprocessSummary s;
    EXPECT(run_on(harness_path("missing"), 0, &s) == ERR_NO_INPUT && strstr(fail_message(), "missing"), "%s",
           fail_message());
    EXPECT(run_on(harness_path("in/empty.txt"), 0, &s) == ERR_DATA && strstr(fail_message(), "no text"), "%s",
           fail_message());
    EXPECT(run_on(harness_path("in/program"), 0, &s) == ERR_DATA && strstr(fail_message(), "1 binary"), "%s",
           fail_message());
    PreprocessJob job = job_of((const char *[]){harness_path("in")}, harness_path("no/folder/x"));
    EXPECT(preprocess_run(&job, &s) == ERR_CREATE, "%s", fail_message());
    job = job_of((const char *[]){harness_path("in")}, harness_path("limits"));
    job.vocab_size = 0;
    EXPECT(preprocess_run(&job, &s) == ERR_CONFIG && strstr(fail_message(), "--vocab-size"), "%s",
           fail_message());
}

// a.txt has 11 bytes, b.txt 15: whole documents only.
static void max_bytes_ends_at_a_document(void) {
    make_folder();
    PreprocessSummary s;
    EXPECT_OK(run_on(harness_path("in"), 26, &s));
    EXPECT(s.bytes == 26 && s.documents == 3, "%lld bytes of %lld documents (one is empty)",
           (long long)s.bytes, (long long)s.documents);
    EXPECT_OK(run_on(harness_path("in"), 25, &s));
    EXPECT(s.bytes == 11 && s.documents == 1, "%lld bytes", (long long)s.bytes);
    EXPECT(run_on(harness_path("in"), 10, &s) == ERR_CONFIG && strstr(fail_message(), "a.txt"), "%s",
           fail_message());
}

static int files_beginning_with(const char *beginning) {
    int count = 0;
    FTS *tree = fts_open((char *[]){(char *)(uintptr_t)harness_folder(), NULL}, FTS_PHYSICAL, NULL);
    for (FTSENT *e; tree && (e = fts_read(tree));)
        count += strncmp(e->fts_name, beginning, strlen(beginning)) == 0;
    if (tree) fts_close(tree);
    return count;
}

// Asks for an end as soon as documents are encoded. A slow machine also reports on the passes before, and on
// encoding before the first document is done. The stream itself goes nowhere.
static ssize_t stop_at_encoding(void *stopped, const char *text, size_t size) {
    static const char nothing[] = "encoding  0.0 %";
    if (memmem(text, size, "encoding", 8) && !memmem(text, size, nothing, sizeof nothing - 1))
        *(atomic_int *)stopped = 1;
    return (ssize_t)size;
}

static void a_signal_leaves_nothing(void) {
    make_folder();
    atomic_int stopped = 1;
    PreprocessSummary s;
    PreprocessJob job = job_of((const char *[]){harness_path("in")}, harness_path("stopped"));
    job.stopped = &stopped;
    EXPECT(preprocess_run(&job, &s) == INTERRUPTED && strstr(fail_message(), "signal"), "%s", fail_message());
    for (int workers = 1; workers <= 2; workers++) {
        FILE *progress = fopencookie(&stopped, "w", (cookie_io_functions_t){.write = stop_at_encoding});
        job.workers = workers;
        job.progress = progress;
        job.log_documents = 4;
        stopped = 0;
        EXPECT(preprocess_run(&job, &s) == INTERRUPTED, "in the middle: %s", fail_message());
        EXPECT(s.documents > 0 && s.documents < 16, "%lld documents", (long long)s.documents);
        fclose(progress);
    }
    EXPECT(files_beginning_with("stopped") == 0, "%d files are left", files_beginning_with("stopped"));
}

// Between the old and the new data set there is none: no .idx ever stands beside a foreign tokenizer.
static void the_old_index_goes_first(void) {
    make_folder();
    PreprocessSummary s;
    PreprocessJob job = job_of((const char *[]){harness_path("in")}, harness_path("again"));
    EXPECT_OK(preprocess_run(&job, &s));
    EXPECT(remove(harness_path("again.tokenizer.json")) == 0 &&
               mkdir(harness_path("again.tokenizer.json"), 0700) == 0,
           "a folder in the way of the tokenizer");
    EXPECT(preprocess_run(&job, &s) == ERR_CREATE, "%s", fail_message());
    EXPECT(!file_exists(harness_path("again.idx")), "the old .idx is still there");
    EXPECT(remove(harness_path("again.tokenizer.json")) == 0, "folder");
    EXPECT_OK(preprocess_run(&job, &s));
}

static void a_null_data_set_has_no_tokenizer(void) {
    put_text("few.txt", "1 2 3\n");
    put_text("few.vocab.json", "of an earlier run");
    put_text("few.merges.txt", "of an earlier run");
    PreprocessSummary s;
    PreprocessJob job = job_of((const char *[]){harness_path("few.txt")}, harness_path("few"));
    job.null_size = 9;
    EXPECT_OK(preprocess_run(&job, &s));
    EXPECT(!file_exists(harness_path("few.vocab.json")) && !file_exists(harness_path("few.merges.txt")),
           "both are stale");
    EXPECT(file_exists(harness_path("few.idx")), "the data set is there");
}

static void null_tokens(void) {
    make_folder();
    put_text("numbers.txt", "1 2 3\n99999 7\n");
    PreprocessSummary s;
    PreprocessJob job = job_of((const char *[]){harness_path("numbers.txt")}, harness_path("numbers"));
    job.null_size = 99999;
    EXPECT_OK(preprocess_run(&job, &s));
    EXPECT(s.tokens == 6 && s.vocab_size == 100000, "%lld tokens", (long long)s.tokens);
    IndexedDataset *data;
    int32_t tokens[6];
    EXPECT_OK(indexed_dataset_open(&data, harness_path("numbers"), 100000));
    EXPECT_OK(indexed_dataset_read(data, 0, 0, 6, tokens, 1));
    EXPECT(tokens[3] == 99999 && tokens[5] == 99999 && tokens[4] == 7, "%d", tokens[3]);
    indexed_dataset_close(data);
    job.inputs = (const char *[]){harness_path("in/a.txt")};
    EXPECT(preprocess_run(&job, &s) == ERR_DATA && strstr(fail_message(), "a.txt: byte 0"), "%s",
           fail_message());
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"workers_do_not_change_a_byte", workers_do_not_change_a_byte},
        {"documents_come_back_in_order", documents_come_back_in_order},
        {"json_lines", json_lines},
        {"bad_lines_are_named", bad_lines_are_named},
        {"inputs_are_checked", inputs_are_checked},
        {"max_bytes_ends_at_a_document", max_bytes_ends_at_a_document},
        {"a_signal_leaves_nothing", a_signal_leaves_nothing},
        {"the_old_index_goes_first", the_old_index_goes_first},
        {"a_null_data_set_has_no_tokenizer", a_null_data_set_has_no_tokenizer},
        {"null_tokens", null_tokens},
        {0},
    };
    return harness_run(tests, argc, argv);
}
