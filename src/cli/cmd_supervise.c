// `trireme supervise`: keeps a training run going.
#include "cli/cli.h"
#include "supervise/supervise.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

Status cmd_supervise(Options *options) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return fail(ERR_OS, "/proc/self/exe: %s", strerror(errno));
    self[length] = 0;
    return supervise(options, self);
}
