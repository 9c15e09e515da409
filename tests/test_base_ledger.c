// The ledger of a run: lines of processes that write at the same time, torn lines, files that cannot be written.
#include "base/file.h"
#include "base/ledger.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static Status append(const char *path, const char *object) {
    Text text = {0};
    text_add(&text, "%s", object);
    Status status = ledger_append(path, &text);
    text_free(&text);
    return status;
}

typedef struct {
    int lines, bad;
    int64_t last; // number of the last line
    Text all;
} Seen;

static Status see(void *self, int64_t number, const char *line, size_t size) {
    Seen *seen = self;
    seen->lines++;
    seen->last = number;
    seen->bad += strncmp(line, "{\"at\": \"", 8) != 0 || line[size - 1] != '}';
    text_add_bytes(&seen->all, line, size);
    text_add(&seen->all, "|");
    return OK;
}

static Seen read_lines(const char *path) {
    Seen seen = {0};
    char *data;
    size_t size;
    EXPECT_OK(file_read(path, 1 << 24, &data, &size));
    EXPECT_OK(ledger_lines(data, size, see, &seen));
    free(data);
    return seen;
}

static void a_line_says_when_and_who(void) {
    const char *path = harness_path("one.jsonl");
    EXPECT_OK(append(path, "{\"event\": \"ready\", \"seconds\": 1.5}"));
    Seen seen = read_lines(path);
    char pid[32];
    snprintf(pid, sizeof pid, "\"pid\": %d, ", getpid());
    const char *line = text_string(&seen.all);
    EXPECT(seen.lines == 1 && !seen.bad, "%d lines: %s", seen.lines, line);
    EXPECT(strstr(line, pid) && strstr(line, "\"event\": \"ready\", \"seconds\": 1.5}|"), "%s", line);
    EXPECT(strlen(line) > 40 && line[27] == '.' && line[31] == 'Z', "%s", line);
    EXPECT(strstr(line, "\"mono_s\": ") && strstr(line, "\"boot\": \""), "%s", line);
    text_free(&seen.all);
}

// Every line of every process is there and whole.
static void processes_append_at_the_same_time(void) {
    enum { WRITERS = 6, LINES = 300 };
    const char *path = harness_path("many.jsonl");
    pid_t children[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        children[w] = fork();
        if (children[w]) continue;
        int failed = 0;
        for (int i = 0; i < LINES; i++) {
            char object[400];
            snprintf(object, sizeof object, "{\"event\": \"w%d\", \"n\": %d, \"pad\": \"%0*d\"}", w, i, 1 + i,
                     0);
            failed += append(path, object) != OK;
        }
        _exit(failed);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status = 0;
        EXPECT(waitpid(children[w], &status, 0) == children[w] && status == 0, "writer %d: %d", w, status);
    }
    Seen seen = read_lines(path);
    EXPECT(seen.lines == WRITERS * LINES && !seen.bad, "%d lines, %d bad", seen.lines, seen.bad);
    for (int w = 0; w < WRITERS; w++)
        for (int i = 0; i < LINES; i++) {
            char words[64];
            snprintf(words, sizeof words, "\"event\": \"w%d\", \"n\": %d, ", w, i);
            EXPECT(strstr(text_string(&seen.all), words) != NULL, "no line %s", words);
        }
    text_free(&seen.all);
}

// A torn end is left out; the next line begins on a line of its own.
static void a_torn_line_damages_no_other(void) {
    const char *path = harness_path("torn.jsonl");
    EXPECT_OK(append(path, "{\"event\": \"first\"}"));
    FILE *file = fopen(path, "a");
    fputs("{\"at\": \"2026", file);
    fclose(file);
    Seen torn = read_lines(path);
    EXPECT(torn.lines == 1 && !torn.bad, "%s", text_string(&torn.all));
    EXPECT_OK(append(path, "{\"event\": \"second\"}"));
    EXPECT_OK(append(path, "{\"event\": \"third\"}"));
    Seen after = read_lines(path);
    EXPECT(after.lines == 4 && after.bad == 1 && after.last == 4, "%s", text_string(&after.all));
    EXPECT(strstr(text_string(&after.all), "2026|{\"at\": ") != NULL, "%s", text_string(&after.all));
    text_free(&torn.all);
    text_free(&after.all);
}

static void what_cannot_be_written_is_named(void) {
    const char *missing = harness_path("no-such-folder/a.jsonl");
    EXPECT(append(missing, "{\"a\": 1}") == ERR_CREATE && strstr(fail_message(), missing), "%s",
           fail_message());
    const char *pipe = harness_path("pipe");
    EXPECT(mkfifo(pipe, 0600) == 0, "mkfifo");
    EXPECT(append(pipe, "{\"a\": 1}") == ERR_CREATE && strstr(fail_message(), "regular file"), "%s",
           fail_message());
    EXPECT(append("/dev/full", "{\"a\": 1}") != OK, "a device is no ledger");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"a_line_says_when_and_who", a_line_says_when_and_who},
                       {"processes_append_at_the_same_time", processes_append_at_the_same_time},
                       {"a_torn_line_damages_no_other", a_torn_line_damages_no_other},
                       {"what_cannot_be_written_is_named", what_cannot_be_written_is_named},
                       {0}},
        argc, argv);
}
