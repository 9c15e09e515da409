// However text comes, it gives the same data set: as a file, an archive of several members, through standard
// input; one long text in stretches as in one piece. Archives that are damaged and texts that are too long
// are refused by name.
#include "corpus/corpus_reader.h"
#include "corpus/encoding.h"
#include "preprocess_fixture.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static Status run_on(const char *input, const char *prefix, PreprocessSummary *s) {
    PreprocessJob job = job_of(&input, harness_path(prefix));
    job.workers = 2;
    return preprocess_run(&job, s);
}

static void expect_same_set(const char *a, const char *b) {
    static const char *const endings[] = {"bin", "idx", "tokenizer.json"};
    for (int e = 0; e < 3; e++) {
        char x[64], y[64];
        snprintf(x, sizeof x, "%s.%s", a, endings[e]);
        snprintf(y, sizeof y, "%s.%s", b, endings[e]);
        expect_same_file(harness_path(x), harness_path(y));
    }
}

// ---- The same text in other clothes -----------------------------------------------------------------------

// JSON lines of more than two batches.
static Text make_lines(void) {
    Text text = {0};
    for (int i = 0; text.size < 3 * BATCH_BYTES; i++)
        text_add(&text, "{\"text\": \"line %d has the square %d\\nand an end\"}\n", i, i * i);
    return text;
}

static size_t gzip(const Text *text, char *out, size_t room) {
    size_t made = 0;
    for (int member = 0; member < 2; member++) {
        size_t begin = member ? text->size / 3 : 0, end = member ? text->size : text->size / 3;
        z_stream z = {0};
        EXPECT(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
        z.next_in = (unsigned char *)text->data + begin;
        z.avail_in = (unsigned)(end - begin);
        z.next_out = (unsigned char *)out + made;
        z.avail_out = (unsigned)(room - made);
        EXPECT(deflate(&z, Z_FINISH) == Z_STREAM_END, "zlib");
        made += z.total_out;
        deflateEnd(&z);
    }
    return made;
}

static size_t zstandard(const Text *text, char *out, size_t room) {
    size_t third = text->size / 3, first = ZSTD_compress(out, room, text->data, third, 1);
    return first + ZSTD_compress(out + first, room - first, text->data + third, text->size - third, 1);
}

static void run_standard_input(const char *file, const char *prefix) {
    PreprocessSummary s;
    int saved = dup(STDIN_FILENO), fd = open(harness_path(file), O_RDONLY);
    EXPECT(fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO, "standard input");
    EXPECT_OK(run_on("-", prefix, &s));
    dup2(saved, STDIN_FILENO);
    close(saved);
    close(fd);
}

static void make_inputs(void) {
    if (file_exists(harness_path("plain.idx"))) return;
    Text text = make_lines();
    size_t room = text.size;
    char *archive = malloc(room);
    put("lines.jsonl", text.data, text.size);
    put("lines.jsonl.gz", archive, gzip(&text, archive, room));
    put("lines.jsonl.zst", archive, zstandard(&text, archive, room));
    free(archive);
    text_free(&text);
    PreprocessSummary s;
    EXPECT_OK(run_on(harness_path("lines.jsonl"), "plain", &s));
}

static void archives_and_pipes_give_the_same(void) {
    make_inputs();
    PreprocessSummary s;
    EXPECT_OK(run_on(harness_path("lines.jsonl.gz"), "gz", &s));
    expect_same_set("plain", "gz");
    EXPECT_OK(run_on(harness_path("lines.jsonl.zst"), "zst", &s));
    expect_same_set("plain", "zst");
    static const char *const files[] = {"lines.jsonl", "lines.jsonl.gz", "lines.jsonl.zst"};
    for (int i = 0; i < 3; i++) {
        run_standard_input(files[i], "standard");
        expect_same_set("plain", "standard");
    }
    PreprocessJob job = job_of((const char *const[]){"-", "-"}, harness_path("twice"));
    job.num_inputs = 2;
    EXPECT(preprocess_run(&job, &s) == ERR_USAGE && strstr(fail_message(), "twice"), "%s", fail_message());
}

// Cut off or with a byte changed: refused, by file and byte, and nothing is written.
static void refuse_damaged(const char *name, size_t keep, size_t change) {
    char *data = NULL;
    size_t size;
    PreprocessSummary s;
    EXPECT_OK(file_read(harness_path(name), 1 << 26, &data, &size));
    if (change) data[change] = (char)~data[change];
    char bad[64];
    snprintf(bad, sizeof bad, "bad-%s", name);
    put(bad, data, keep ? keep - 1 : size);
    EXPECT(run_on(harness_path(bad), "bad", &s) == ERR_DATA, "%s of %zu bytes, %zu changed", name, keep,
           change);
    EXPECT(strstr(fail_message(), bad) && strstr(fail_message(), ": byte "), "%s", fail_message());
    EXPECT(!file_exists(harness_path("bad.bin.tmp")) && !file_exists(harness_path("bad.idx")),
           "files are left");
    free(data);
}

static void damaged_archives_are_refused(void) {
    make_inputs();
    static const size_t keep[] = {1, 2, 12, 5000};
    for (int i = 0; i < 4; i++) {
        refuse_damaged("lines.jsonl.gz", keep[i], 0);
        refuse_damaged("lines.jsonl.zst", keep[i], 0);
    }
    refuse_damaged("lines.jsonl.gz", 0, 3000);
    refuse_damaged("lines.jsonl.zst", 0, 2);
    refuse_damaged("lines.jsonl.gz", 0, 1);
}

// ---- One long text ----------------------------------------------------------------------------------------

static Text make_text(void) {
    Text text = {0};
    for (int i = 0; text.size < 5 * BATCH_BYTES / 2; i++)
        text_add(&text, "it's %d  times\n\n  the word,%s and\ttabs \xc3\xa9t\xc3\xa9 !\n", i,
                 i % 7 ? "" : "\n");
    return text;
}

static void a_long_text_is_one_document(void) {
    Text text = make_text();
    put("long.txt", text.data, text.size);
    PreprocessSummary s;
    EXPECT_OK(run_on(harness_path("long.txt"), "long", &s));
    EXPECT(s.documents == 1 && s.bytes == (int64_t)text.size, "%lld documents", (long long)s.documents);
    Tokenizer *t = NULL;
    IndexedDataset *data = NULL;
    TokenList whole = {0};
    EXPECT_OK(tokenizer_open_beside(&t, harness_path("long")));
    EXPECT_OK(indexed_dataset_open(&data, harness_path("long"), tokenizer_vocab_size(t)));
    EXPECT_OK(tokenizer_encode(t, text.data, text.size, &whole));
    int32_t length = indexed_dataset_length(data, 0), *ids = calloc((size_t)length, sizeof *ids);
    EXPECT(indexed_dataset_num_sequences(data) == 1, "one sequence");
    EXPECT(length == (int32_t)whole.count + 1, "%d tokens and %zu in one piece", length, whole.count);
    EXPECT_OK(indexed_dataset_read(data, 0, 0, length, ids, 1));
    EXPECT(!memcmp(ids, whole.ids, whole.count * sizeof *ids), "the tokens of the whole");
    EXPECT(ids[length - 1] == tokenizer_eod(t), "one end of document, at the end");
    free(ids);
    token_list_free(&whole);
    indexed_dataset_close(data);
    tokenizer_close(t);
    run_standard_input("long.txt", "piped");
    expect_same_set("long", "piped");
    text_free(&text);
}

static void cuts_follow_a_letter_or_digit(void) {
    EXPECT(cut_place("a  b", 4) == 1, "between two blanks: %zu", cut_place("a  b", 4));
    EXPECT(cut_place("a\n1 .", 5) == 3, "the last one: %zu", cut_place("a\n1 .", 5));
    EXPECT(cut_place(". \n\xc3\xa9 ", 6) == 0, "not at all: %zu", cut_place(". \n\xc3\xa9 ", 6));
    static const struct {
        const char *text;
        size_t place;
    } others[] = {{"\xd1\x8f ", 2},
                  {"\xd1\x90 ", 0},
                  {"\xe5\xad\x97\n", 3},
                  {"\xe3\x80\x82\n", 0},
                  {"\xe3\x81\x82\n", 3},
                  {"\xed\x95\x9c ", 3},
                  {"\xad\x97\n", 0},
                  {"\xe5\xad \xe5\xad\n", 0},
                  {"\x97 ", 0},
                  {"\xf0\xa5\xad\x97\n", 0},
                  {NULL, 0}};
    for (int i = 0; others[i].text; i++)
        EXPECT(cut_place(others[i].text, strlen(others[i].text)) == others[i].place, "text %d: %zu", i,
               cut_place(others[i].text, strlen(others[i].text)));
}

// A tokenizer whose tokens reach over words must see a text as a whole, whatever it makes of a few of them.
static void tokens_over_words_forbid_cuts(void) {
    Tokenizer *t;
    PieceCounter *counter;
    Text json = {0};
    bool may;
    EXPECT_OK(piece_counter_open(&counter));
    EXPECT_OK(tokenizer_train(&t, counter, 257, NULL, NULL));
    EXPECT_OK(may_be_cut(t, &may));
    EXPECT(may, "GPT-2's pattern may be cut");
    EXPECT_OK(tokenizer_save(t, harness_path("over")));
    tokenizer_close(t);
    char *text = NULL;
    size_t size = 0;
    EXPECT_OK(file_read(harness_path("over.tokenizer.json"), 1 << 20, &text, &size));
    char *pre = text ? strstr(text, "\"use_regex\": true") : NULL, *end = strstr(text, ": 256}");
    EXPECT(pre && end, "another tokenizer.json");
    text_add(&json,
             "%.*s\"use_regex\": false%.*s: 256, \"x\\u0120\": 257, \"x\\u0120y\": 258},\n\"merges\": "
             "[\"x \\u0120\", \"x\\u0120 y\"]}}",
             (int)(pre - text), text, (int)(end - pre - 17), pre + 17);
    put("over.tokenizer.json", json.data, json.size);
    EXPECT_OK(tokenizer_open_beside(&t, harness_path("over")));
    EXPECT_OK(may_be_cut(t, &may));
    EXPECT(!may, "a token reaches over words");
    tokenizer_close(t);
    text_free(&json);
    free(text);
    piece_counter_close(counter);
}

static void too_long_is_refused(void) {
    size_t size = (size_t)MAX_LINE_BYTES + 2;
    char *data = malloc(size);
    memset(data, 'a', size);
    PreprocessSummary s;
    put("word.txt", data, (size_t)MAX_STRETCH_BYTES + 2);
    EXPECT(run_on(harness_path("word.txt"), "word", &s) == ERR_DATA &&
               strstr(fail_message(), "16 MiB without a place to cut"),
           "%s", fail_message());
    put("line.jsonl", data, size);
    EXPECT(run_on(harness_path("line.jsonl"), "word", &s) == ERR_DATA &&
               strstr(fail_message(), "line.jsonl:1: a line of more than 64 MiB"),
           "%s", fail_message());
    free(data);
}

// Of an unknown length: the limit cuts it. Of a known one: it is left out whole.
static void max_bytes_of_a_stream(void) {
    Text text = make_text();
    put("stream.txt", text.data, text.size);
    PreprocessSummary s;
    const char *input = harness_path("stream.txt");
    PreprocessJob job = job_of(&input, harness_path("limit"));
    job.workers = 2;
    job.max_bytes = 2 * BATCH_BYTES;
    EXPECT(preprocess_run(&job, &s) == ERR_CONFIG, "%s", fail_message());
    char *archive = malloc(text.size);
    put("stream.txt.gz", archive, gzip(&text, archive, text.size));
    input = harness_path("stream.txt.gz");
    EXPECT_OK(preprocess_run(&job, &s));
    EXPECT(s.documents == 1 && s.bytes > BATCH_BYTES && s.bytes <= job.max_bytes, "%lld bytes",
           (long long)s.bytes);
    free(archive);
    text_free(&text);
}

// ---- Sentences, spools and locks --------------------------------------------------------------------------

static void a_list_is_sentences(void) {
    static const char lines[] =
        "{\"text\": [\"one two\", \"\", \"three\"]}\n{\"text\": []}\n{\"text\": \"four\"}\n";
    put("sentences.jsonl", lines, strlen(lines));
    PreprocessSummary s;
    EXPECT_OK(run_on(harness_path("sentences.jsonl"), "sentences", &s));
    IndexedDataset *data = NULL;
    EXPECT_OK(indexed_dataset_open(&data, harness_path("sentences"), 0));
    EXPECT(indexed_dataset_num_documents(data) == 3 && indexed_dataset_num_sequences(data) == 3,
           "%lld sequences", (long long)indexed_dataset_num_sequences(data));
    int32_t last = -1, length = indexed_dataset_length(data, 1);
    EXPECT_OK(indexed_dataset_read(data, 1, length - 1, 1, &last, 1));
    EXPECT(last == s.vocab_size - 1, "the document's end belongs to its last sentence: %d", last);
    indexed_dataset_close(data);
    static const char bad[] = "{\"text\": [\"one\", 2]}\n";
    put("bad-list.jsonl", bad, strlen(bad));
    EXPECT(run_on(harness_path("bad-list.jsonl"), "sentences", &s) == ERR_DATA &&
               strstr(fail_message(), ":1: the value"),
           "%s", fail_message());
}

// What a killed run has left is used again; what a living one writes is left alone.
static void temporary_files_belong_to_the_living(void) {
    make_inputs();
    PreprocessSummary s;
    char *rubbish = calloc(1, 4 << 20);
    put("left.bin.tmp", rubbish, 4 << 20);
    free(rubbish);
    put("left.idx.tmp", "rubbish", 7);
    put("left.lengths.tmp", "rubbish", 7);
    EXPECT_OK(run_on(harness_path("lines.jsonl"), "left", &s));
    expect_same_set("plain", "left");
    EXPECT(!file_exists(harness_path("left.bin.tmp")) && !file_exists(harness_path("left.lengths.tmp")),
           "left behind");
    put("held.bin.tmp", "of a living run", 15);
    int fd = open(harness_path("held.bin.tmp"), O_RDWR);
    EXPECT(flock(fd, LOCK_EX) == 0, "lock");
    EXPECT(run_on(harness_path("lines.jsonl"), "held", &s) == ERR_CREATE &&
               strstr(fail_message(), "another run"),
           "%s", fail_message());
    EXPECT(file_exists(harness_path("held.bin.tmp")), "the other's file is gone");
    close(fd);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"archives_and_pipes_give_the_same", archives_and_pipes_give_the_same},
        {"damaged_archives_are_refused", damaged_archives_are_refused},
        {"a_long_text_is_one_document", a_long_text_is_one_document},
        {"cuts_follow_a_letter_or_digit", cuts_follow_a_letter_or_digit},
        {"tokens_over_words_forbid_cuts", tokens_over_words_forbid_cuts},
        {"too_long_is_refused", too_long_is_refused},
        {"max_bytes_of_a_stream", max_bytes_of_a_stream},
        {"a_list_is_sentences", a_list_is_sentences},
        {"temporary_files_belong_to_the_living", temporary_files_belong_to_the_living},
        {0},
    };
    return harness_run(tests, argc, argv);
}
