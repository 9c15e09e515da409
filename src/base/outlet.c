// Implements streams that buffer the text for a slow reader instead of waiting.
#include "base/outlet.h"
#include "base/rank.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PENDING = 4 << 20, READER_PATIENCE_S = 60, CLOSE_PATIENCE_S = 5, POLL_MS = 50 };

// ---- writing --------------------------------------------------------------------------------------

// Writes as much as is possible without waiting (to a blocking descriptor: all). Returns the number of bytes written.
static size_t write_now(Outlet *outlet, const char *data, size_t size) {
    size_t done = 0;
    while (done < size && !outlet->error) {
        ssize_t n = write(outlet->fd, data + done, size - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            outlet->error = errno;
    }
    return done;
}

static void drain(Outlet *outlet) {
    Text *pending = &outlet->pending;
    if (!pending->size) return;
    size_t done = write_now(outlet, pending->data, pending->size);
    memmove(pending->data, pending->data + done, pending->size - done);
    pending->size -= done;
}

// After dropped text, writes a line that says so as soon as the text before it is written.
static void write_pending(Outlet *outlet) {
    drain(outlet);
    if (!outlet->dropping || outlet->pending.size || outlet->error) return;
    if (outlet->tells)
        text_add(&outlet->pending, "%zu bytes of output were lost: the reader paused\n", outlet->dropping);
    outlet->dropping = 0;
    drain(outlet);
}

// The write callback of the stdio stream (fopencookie). Returns 0 on an error.
static ssize_t take(void *self, const char *data, size_t size) {
    Outlet *outlet = self;
    write_pending(outlet);
    size_t done = outlet->pending.size ? 0 : write_now(outlet, data, size), left = size - done;
    if (outlet->error) {
        text_free(&outlet->pending);
        errno = outlet->error;
        return 0;
    }
    if (outlet->dropping || outlet->pending.size + left > MAX_PENDING) {
        outlet->dropping += left;
        outlet->lost += left;
    } else if (left)
        text_add_bytes(&outlet->pending, data + done, left);
    return (ssize_t)size;
}

static FILE *stream_of(Outlet *outlet) {
    return fopencookie(outlet, "w", (cookie_io_functions_t){.write = take});
}

// ---- opening --------------------------------------------------------------------------------------

// Opens a pipe that has no reader yet (ENXIO) as soon as one opens it.
static Status await_reader(const char *path, int flags, const atomic_int *stopped, int *fd) {
    double until = clock_s() + READER_PATIENCE_S;
    fprintf(stderr, "%s is a pipe that no process reads yet: waiting up to %d s for a reader\n", path,
            READER_PATIENCE_S);
    while ((*fd = open(path, flags, 0666)) < 0 && errno == ENXIO) {
        if (stopped && atomic_load(stopped))
            return fail(INTERRUPTED, "%s: stopped by a signal while waiting for a reader of this pipe", path);
        if (clock_s() > until)
            return fail(ERR_CREATE,
                        "%s: no process has opened this pipe for reading for %d s: start its reader, or name "
                        "a file",
                        path, READER_PATIENCE_S);
        poll(NULL, 0, POLL_MS);
    }
    return OK;
}

Status outlet_create(Outlet *outlet, const char *path, bool append, const atomic_int *stopped,
                     FILE **stream) {
    int flags = O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int fd = open(path, flags, 0666);
    if (fd < 0 && errno == ENXIO) TRY(await_reader(path, flags, stopped, &fd));
    *outlet = (Outlet){.fd = fd};
    *stream = fd >= 0 ? stream_of(outlet) : NULL;
    if (*stream) return OK;
    Status status = fail(create_status(), "%s: cannot create the file: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return status;
}

// Opens the pipe or terminal a second time: this open file description has its own flags. Where opening is not allowed,
// writes wait as before.
void outlet_replace(Outlet *outlet, int fd, FILE **stream) {
    char path[32];
    struct stat st;
    if (fstat(fd, &st) || (!S_ISFIFO(st.st_mode) && !isatty(fd))) return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own < 0) own = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (own < 0) return;
    *outlet = (Outlet){.fd = own, .tells = true};
    FILE *replacement = stream_of(outlet);
    if (!replacement) {
        close(own);
        return;
    }
    fflush(*stream);
    setvbuf(replacement, NULL, fd == STDERR_FILENO ? _IONBF : _IOLBF, BUFSIZ);
    *stream = replacement;
}

bool outlet_is_unread(const Outlet *outlet) { return outlet->error == EPIPE; }

// ---- the end --------------------------------------------------------------------------------------

void outlet_wait(Outlet *outlet) {
    int flags = outlet->fd > 0 ? fcntl(outlet->fd, F_GETFL) : -1;
    if (flags < 0 || fcntl(outlet->fd, F_SETFL, flags & ~O_NONBLOCK)) return;
    write_pending(outlet);
}

void outlet_finish(Outlet *outlet) {
    double until = clock_s() + CLOSE_PATIENCE_S;
    struct pollfd writable = {.fd = outlet->fd, .events = POLLOUT};
    while (outlet->pending.size && !outlet->error && clock_s() < until) {
        poll(&writable, 1, POLL_MS);
        write_pending(outlet);
    }
}

bool outlet_close(Outlet *outlet) {
    outlet_finish(outlet);
    bool all = !outlet->pending.size && !outlet->error && !outlet->lost;
    if (outlet->fd >= 0 && close(outlet->fd) && errno != EINTR) all = false;
    text_free(&outlet->pending);
    *outlet = (Outlet){.fd = -1};
    return all;
}
