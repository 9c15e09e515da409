// Streams that never wait: what a reader takes late arrives whole, what no reader takes is told.
#include "base/file.h"
#include "base/outlet.h"
#include "base/rank.h"
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINES = 20000, LINE_BYTES = 16 }; // more than a pipe holds

static const char *pipe_path(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s/pipe", harness_folder());
    unlink(path);
    EXPECT(mkfifo(path, 0600) == 0, "mkfifo: %s", strerror(errno));
    return path;
}

static void write_lines(FILE *stream) {
    for (int i = 0; i < LINES; i++) {
        fprintf(stream, "line %10d\n", i);
        fflush(stream);
    }
}

static void expect_lines(int fd) {
    char line[LINE_BYTES + 1] = "", want[LINE_BYTES + 1];
    int wrong = 0;
    for (int i = 0; i < LINES; i++) {
        size_t done = 0;
        for (ssize_t n = 1; done < LINE_BYTES && n > 0; done += n > 0 ? (size_t)n : 0)
            n = read(fd, line + done, LINE_BYTES - done);
        snprintf(want, sizeof want, "line %10d\n", i);
        wrong += done != LINE_BYTES || memcmp(line, want, LINE_BYTES) != 0;
    }
    EXPECT(!wrong, "%d lines are wrong", wrong);
}

static void *read_lines(void *fd) {
    expect_lines(*(int *)fd);
    return NULL;
}

// All is written while the reader sleeps, and read while the stream closes.
static void a_sleeping_reader_loses_nothing(void) {
    const char *path = pipe_path();
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    Outlet outlet;
    FILE *stream = NULL;
    EXPECT_OK(outlet_create(&outlet, path, false, NULL, &stream));
    write_lines(stream);
    EXPECT(outlet.pending.size > 0, "a pipe holds %d bytes", LINES * LINE_BYTES);
    pthread_t thread;
    fcntl(reader, F_SETFL, 0);
    pthread_create(&thread, NULL, read_lines, &reader);
    EXPECT(fclose(stream) == 0 && outlet_close(&outlet), "not everything was written");
    pthread_join(thread, NULL);
    close(reader);
}

static Outlet last_words;
static void finish_last_words(void) { outlet_finish(&last_words); }

// A rank that aborts waits for a reader that is slow.
static void an_abort_waits_for_the_reader(void) {
    const char *path = pipe_path();
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    pid_t child = fork();
    CHECK(child >= 0, "no process");
    if (child == 0) {
        FILE *stream = NULL;
        if (outlet_create(&last_words, path, false, NULL, &stream) != OK) _exit(1);
        rank_before_abort(finish_last_words);
        write_lines(stream);
        rank_abort_job(last_words.pending.size ? ERR_HANG : 1);
    }
    poll(NULL, 0, 200);
    fcntl(reader, F_SETFL, 0);
    expect_lines(reader);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == ERR_HANG, "status %d", status);
    close(reader);
}

static void a_reader_that_left_is_reported(void) {
    const char *path = pipe_path();
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    Outlet outlet;
    FILE *stream = NULL;
    signal(SIGPIPE, SIG_IGN);
    EXPECT_OK(outlet_create(&outlet, path, false, NULL, &stream));
    fprintf(stream, "first\n");
    EXPECT(fflush(stream) == 0 && !outlet_is_unread(&outlet), "a reader is there");
    close(reader);
    fprintf(stream, "second\n");
    EXPECT(fflush(stream) != 0 && outlet_is_unread(&outlet), "nobody reads");
    fclose(stream);
    EXPECT(!outlet_close(&outlet), "everything was written");
}

// A reader that never reads costs memory up to a limit, and some seconds at the end.
static void what_is_kept_has_a_limit(void) {
    enum { PIECE = 1 << 16 };
    const char *path = pipe_path();
    int reader = open(path, O_RDONLY | O_NONBLOCK), kept = 0;
    static char piece[PIECE];
    Outlet outlet;
    FILE *stream = NULL;
    memset(piece, 'x', sizeof piece);
    EXPECT_OK(outlet_create(&outlet, path, false, NULL, &stream));
    while (kept < 1000 && !outlet.lost && fwrite(piece, 1, PIECE, stream) == PIECE && fflush(stream) == 0)
        kept++;
    EXPECT(kept > 16 && kept < 200, "%d pieces of %d bytes were taken", kept, PIECE);
    fclose(stream);
    EXPECT(!outlet_close(&outlet), "everything was written");
    close(reader);
}

// Reads all that is there. Returns how many 'x' come first; adds what follows them to `after`.
static size_t read_all(int fd, char *after, size_t room) {
    static char data[1 << 16];
    size_t before = 0, rest = strlen(after);
    for (ssize_t n; (n = read(fd, data, sizeof data)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            if (!rest && data[i] == 'x')
                before++;
            else if (rest + 1 < room)
                after[rest++] = data[i];
    after[rest] = 0;
    return before;
}

// What came before the loss arrives, then a line that says it, then what is written later.
static void a_stream_goes_on_after_a_loss(void) {
    enum { PIECE = 1 << 16, PIECES = 100 };
    const char *path = pipe_path();
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    static char piece[PIECE];
    char after[256] = "", want[256];
    Outlet outlet;
    FILE *stream = NULL;
    memset(piece, 'x', sizeof piece);
    EXPECT_OK(outlet_create(&outlet, path, false, NULL, &stream));
    outlet.tells = true;
    setvbuf(stream, NULL, _IONBF, 0);
    for (int i = 0; i < PIECES; i++) fwrite(piece, 1, PIECE, stream);
    EXPECT(outlet.lost > 0 && !ferror(stream), "%zu bytes are lost", outlet.lost);
    size_t before = 0, later = 0;
    for (; outlet.dropping && later < 1000; later++) {
        before += read_all(reader, after, sizeof after);
        fputs("y", stream);
    }
    size_t lost = outlet.lost;
    before += read_all(reader, after, sizeof after);
    fputs("the last message\n", stream);
    EXPECT(!outlet.error && fclose(stream) == 0 && !outlet_close(&outlet), "a loss is not told");
    EXPECT(read_all(reader, after, sizeof after) == 0, "text comes twice");
    snprintf(want, sizeof want, "%zu bytes of output were lost: the reader paused\nythe last message\n",
             lost);
    EXPECT(!strcmp(after, want), "'%s' is not '%s'", after, want);
    EXPECT(before + lost == (size_t)PIECES * PIECE + later - 1, "%zu bytes arrived, %zu were lost", before,
           lost);
    close(reader);
}

static void a_signal_ends_the_wait_for_a_reader(void) {
    atomic_int stopped = SIGTERM;
    Outlet outlet;
    FILE *stream = NULL;
    double start = clock_s();
    int said = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO); // it says that it waits
    EXPECT(outlet_create(&outlet, pipe_path(), false, &stopped, &stream) == INTERRUPTED, "%s",
           fail_message());
    dup2(said, STDERR_FILENO);
    close(said);
    close(nowhere);
    EXPECT(clock_s() - start < 20, "it took %.1f s", clock_s() - start);
}

static void files_are_created_and_continued(void) {
    char path[512], *data = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/file", harness_folder());
    for (int i = 0; i < 3; i++) {
        Outlet outlet;
        FILE *stream = NULL;
        EXPECT_OK(outlet_create(&outlet, path, i == 2, NULL, &stream));
        fprintf(stream, "%d\n", i);
        EXPECT(fclose(stream) == 0 && outlet_close(&outlet), "%s", strerror(errno));
    }
    EXPECT_OK(file_read(path, 100, &data, &size));
    EXPECT(size == 4 && !memcmp(data, "1\n2\n", 4), "%zu bytes", size);
    free(data);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"a_sleeping_reader_loses_nothing", a_sleeping_reader_loses_nothing},
                       {"an_abort_waits_for_the_reader", an_abort_waits_for_the_reader},
                       {"a_reader_that_left_is_reported", a_reader_that_left_is_reported},
                       {"what_is_kept_has_a_limit", what_is_kept_has_a_limit},
                       {"a_stream_goes_on_after_a_loss", a_stream_goes_on_after_a_loss},
                       {"a_signal_ends_the_wait_for_a_reader", a_signal_ends_the_wait_for_a_reader},
                       {"files_are_created_and_continued", files_are_created_and_continued},
                       {0}},
        argc, argv);
}
