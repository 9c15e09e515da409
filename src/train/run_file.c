// Writes run.json: the state of a run and how it ended, for the program that started it. The exit status of a launcher
// does not say that (docs/runs.md).
#include "base/beat.h"
#include "base/file.h"
#include "base/version.h"
#include "formats/formats.h"
#include "train/internal.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_NAME = 128 };

// ---- the text -------------------------------------------------------------------------------------

static void add_string(Text *out, const char *name, const char *value) {
    text_add(out, ",\n \"%s\": ", name);
    if (value && *value)
        json_add_string(out, value, strlen(value));
    else
        text_add(out, "null");
}

// As another program finds it, wherever that was started.
static void add_path(Text *out, const char *name, const char *path) {
    char folder[PATH_MAX] = "";
    Text whole = {0};
    if (path && *path && *path != '/' && getcwd(folder, sizeof folder)) text_add(&whole, "%s/", folder);
    if (path && *path) text_add(&whole, "%s", path);
    add_string(out, name, text_string(&whole));
    text_free(&whole);
}

static void add_int(Text *out, const char *name, int64_t value, bool known) {
    if (known)
        text_add(out, ",\n \"%s\": %" PRId64, name, value);
    else
        text_add(out, ",\n \"%s\": null", name);
}

static void add_time(Text *out, const char *name, time_t when) {
    char text[32] = "";
    struct tm utc;
    if (when) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&when, &utc));
    add_string(out, name, text);
}

static void add_all(Text *out, const RunFile *f) {
    static const char *const states[] = {[RUN_RUNNING] = "running",
                                         [RUN_DONE] = "done",
                                         [RUN_INTERRUPTED] = "interrupted",
                                         [RUN_FAILED] = "failed"};
    char host[HOST_NAME] = "";
    gethostname(host, sizeof host - 1);
    time_t now = time(NULL);
    bool ended = f->state != RUN_RUNNING;
    text_add(out, "{\"format\": \"trireme run\",\n \"version\": 1");
    add_string(out, "state", states[f->state]);
    add_int(out, "status", f->status, ended);
    add_string(out, "signal", f->signal ? sigabbrev_np(f->signal) : NULL);
    add_string(out, "reason", f->reason);
    int blamed = rank_current()->blamed;
    add_int(out, "blamed_rank", blamed - 1, f->state == RUN_FAILED && blamed > 0);
    add_int(out, "iteration", f->iteration, true);
    add_int(out, "train_iters", f->end, true);
    add_int(out, "saved_iteration", f->saved, f->saved >= 0);
    add_string(out, "save", f->options->save);
    add_path(out, "metrics", f->options->metrics);
    add_path(out, "ledger", f->options->ledger ? f->options->ledger : getenv("TRIREME_LEDGER"));
    add_path(out, "trace", f->options->trace);
    add_string(out, "beats", getenv(BEAT_VARIABLE));
    add_int(out, "ranks", f->options->shape.world_size, true);
    add_int(out, "memory_bytes", f->memory_bytes, f->memory_bytes > 0);
    add_string(out, "host", host);
    add_int(out, "pid", getpid(), true);
    add_time(out, "started", f->started);
    add_time(out, "updated", now);
    add_time(out, "ended", ended ? now : 0);
    add_string(out, "program", TRIREME_VERSION);
    text_add(out, "}\n");
}

// ---- the file -------------------------------------------------------------------------------------

static Status write_file(RunFile *f) {
    const Options *o = f->options;
    Text path = {0}, text = {0};
    if (!o->run_file) TRY(checkpoint_lock_check(o->save, f->lock));
    text_add(&path, "%s%s", o->run_file ? o->run_file : o->save, o->run_file ? "" : "/run.json");
    add_all(&text, f);
    Status status = file_write(text_string(&path), text.data, text.size);
    text_free(&path);
    text_free(&text);
    return status;
}

// A file that cannot be replaced does not end the run; it prints one warning.
static void rewrite(RunFile *f) {
    char why[sizeof rank_current()->message];
    snprintf(why, sizeof why, "%s", fail_message());
    if (write_file(f) != OK && !f->warned) {
        fprintf(stderr, "WARNING: the state of the run is not kept: %s\n", fail_message());
        f->warned = true;
    }
    fail(OK, "%s", why);
}

static bool is_process(int64_t pid) {
    return pid > 0 && pid <= INT_MAX && pid != getpid() && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

static bool says_running(const Json *file) {
    const char *state = json_string(json_member(file, "state"));
    const char *host = json_string(json_member(file, "host"));
    char here[HOST_NAME] = "";
    gethostname(here, sizeof here - 1);
    int64_t pid;
    return state && host && !strcmp(state, "running") && !strcmp(host, here) &&
           json_int(json_member(file, "pid"), &pid) && is_process(pid);
}

// True when another run on this host, which is still alive, writes the file.
static bool is_anothers(const char *path) {
    enum { MAX_BYTES = 1 << 16 };
    char why[sizeof rank_current()->message], *data;
    size_t size;
    Json *file;
    snprintf(why, sizeof why, "%s", fail_message());
    bool is = false;
    if (file_read(path, MAX_BYTES, &data, &size) == OK) {
        if (json_parse(&file, data, size, path) == OK) {
            is = says_running(file);
            json_free(file);
        }
        free(data);
    }
    fail(OK, "%s", why);
    return is;
}

Status run_file_start(RunFile *f, int64_t end, int lock) {
    if (!f || (!f->options->run_file && !f->options->save)) return OK;
    f->state = RUN_RUNNING;
    f->end = end;
    f->lock = lock;
    TRY(write_file(f));
    f->open = true;
    return OK;
}

void run_file_saved(RunFile *f, int64_t iteration, int64_t saved) {
    if (!f || !f->open || f->saved == saved) return;
    f->iteration = iteration;
    f->saved = saved;
    rewrite(f);
}

void run_file_end(RunFile *f, RunEnd end, Status status) {
    if (!f || (!f->open && !f->options->run_file)) return;
    if (!f->open && is_anothers(f->options->run_file)) {
        fprintf(stderr, "WARNING: --run-file %s is left as it is: it belongs to another run, which goes on\n",
                f->options->run_file);
        return;
    }
    f->state = status == OK || status == INTERRUPTED ? end : RUN_FAILED;
    f->status = (int)status;
    if (status != OK)
        f->reason = fail_message();
    else if (end == RUN_INTERRUPTED)
        f->reason = "--exit-interval or --exit-duration-in-mins ended it";
    rewrite(f);
    f->reason = NULL;
    f->open = false;
    f->ended = true;
}
