#include "checkpoint/checkpoint.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

// The holder's name is for the message of others.
static void sign(int lock) {
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    if (ftruncate(lock, 0) == 0) dprintf(lock, "process %ld on %s", (long)getpid(), host);
}

static Status held_by_another(int lock, const char *save) {
    char holder[256] = "";
    if (read(lock, holder, sizeof holder - 1) < 0) holder[0] = 0;
    return fail(ERR_CREATE, "%s: another run is writing there%s%s%s", save, *holder ? " (" : "", holder,
                *holder ? ")" : "");
}

Status checkpoint_lock(const char *save, int *lock) {
    char path[4096];
    *lock = -1;
    TRY(folder_make(save));
    if (snprintf(path, sizeof path, "%s/.lock", save) >= (int)sizeof path)
        return fail(ERR_CREATE, "%s: the name is too long", save);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return fail(create_status(), "%s: cannot create: %s", path, strerror(errno));
    Status status = OK;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) {
        sign(file);
        status = checkpoint_settle(save);
    } else if (errno == EWOULDBLOCK) {
        status = held_by_another(file, save);
    }
    if (status == OK)
        *lock = file;
    else
        close(file);
    return status;
}

void checkpoint_unlock(int lock) {
    if (lock >= 0) close(lock);
}
