// Appends lines to the ledger of a run, and splits a ledger into its lines.
#include "base/ledger.h"
#include "base/rank.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BOOT_DIGITS = 8 };

// Reads the first digits of the boot id. Without /proc all lines have the same one.
static void boot_id(char boot[BOOT_DIGITS + 1]) {
    memset(boot, '0', BOOT_DIGITS);
    boot[BOOT_DIGITS] = 0;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    char digits[BOOT_DIGITS];
    if (read(fd, digits, BOOT_DIGITS) == BOOT_DIGITS) memcpy(boot, digits, BOOT_DIGITS);
    close(fd);
}

static void add_line(const Text *object, Text *line) {
    struct timespec now;
    struct tm utc;
    char when[32], boot[BOOT_DIGITS + 1];
    double mono_s = clock_s();
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
    boot_id(boot);
    text_add(line, "{\"at\": \"%s.%03ldZ\", \"mono_s\": %.6f, \"boot\": \"%s\", \"pid\": %d, ", when,
             now.tv_nsec / 1000000, mono_s, boot, getpid());
    text_add_bytes(line, object->data + 1, object->size - 1);
    text_add(line, "\n");
}

// While another process writes, its line may look torn: then an empty line follows it, which readers leave out.
static bool is_torn(int fd, int64_t size) {
    char last;
    return size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

static Status append(int fd, const char *path, const Text *object) {
    struct stat st;
    Text line = {0};
    if (fstat(fd, &st)) return fail(errno_status(), "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return fail(ERR_CREATE, "%s: a ledger must be a regular file", path);
    if (is_torn(fd, st.st_size)) text_add(&line, "\n");
    add_line(object, &line);
    ssize_t n;
    do n = write(fd, line.data, line.size);
    while (n < 0 && errno == EINTR);
    Status status = OK;
    if (n < 0)
        status = fail(errno_status(), "%s: cannot write: %s", path, strerror(errno));
    else if ((size_t)n < line.size)
        status = fail(ERR_IO, "%s: %zd of the %zu bytes of a line were written: is the disk full?", path, n,
                      line.size);
    text_free(&line);
    return status;
}

Status ledger_append(const char *path, const Text *object) {
    CHECK(object->size > 2 && object->data[0] == '{' && object->data[object->size - 1] == '}' &&
              !memchr(object->data, '\n', object->size),
          "a line of a ledger is one JSON object with members: %s", text_string(object));
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0) return fail(create_status(), "%s: cannot open: %s", path, strerror(errno));
    Status status = append(fd, path, object);
    close(fd);
    return status;
}

Status ledger_lines(const char *text, size_t size, LedgerLine *visit, void *self) {
    const char *end = text + size, *feed;
    for (int64_t number = 1; text < end; number++, text = feed + 1) {
        feed = memchr(text, '\n', (size_t)(end - text));
        if (!feed) return OK;
        if (feed > text) TRY(visit(self, number, text, (size_t)(feed - text)));
    }
    return OK;
}
