// Starts a run, watches it, and ends what is left of it.
#include "supervise/session.h"
#include "base/file.h"
#include "base/rank.h"
#include "formats/formats.h"
#include "supervise/hosts.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_S 0.02
#define JOIN_S 300.0 // until the first rank says what it does
#define BY_ITSELF_S                                                                                          \
    0.3 // a launcher whose ranks were killed has so long to end by itself; mpirun often takes seconds
#define LAUNCHER_S    2.0  // and so long after TERM
#define AFTER_ERROR_S 5.0  // the other ranks have so long after one has ended with an error
#define STOPPED_S     6.0  // a process that is no rank yet, or no more, may be stopped for so long
#define LEAVE_S       60.0 // a process has so long after all of its ranks have left
#define FULL_BYTES    (1 << 20)

// ---- signals --------------------------------------------------------------------------------------

static void take_request(StopRequest *stop, int number) {
    if (number == SIGINT && stop->signal == SIGINT) stop->at_once = true;
    if (stop->signal) return;
    stop->signal = number;
    stop->asked_s = clock_s();
}

// The child stays a zombie until all of its process group has been killed: no other group can have its number.
static void reap(Session *s) {
    for (int status;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || !info.si_pid) return;
        if (info.si_pid == s->child) {
            s->child_ended = true;
            return;
        }
        if (waitpid(info.si_pid, &status, WNOHANG) > 0) s->reaped(s->self, info.si_pid, status);
    }
}

// Waits for a signal, at most `seconds`.
static void await_signal(Session *s, double seconds) {
    struct pollfd wanted = {.fd = s->signals, .events = POLLIN};
    struct signalfd_siginfo info;
    if (poll(&wanted, 1, (int)ceil(1000 * seconds)) <= 0) return;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD) take_request(&s->stop, (int)info.ssi_signo);
    reap(s);
}

void session_wait(Session *s, double seconds) {
    double end = clock_s() + seconds;
    for (double now; !s->stop.signal && (now = clock_s()) < end;) await_signal(s, fmin(0.5, end - now));
}

// ---- ending ---------------------------------------------------------------------------------------

static void await_end(Session *s, double seconds) {
    double end = clock_s() + seconds;
    for (double now; !s->child_ended && (now = clock_s()) < end;) await_signal(s, fmin(TICK_S, end - now));
}

// The page is written by others: only processes below this one are killed.
static void kill_ranks(const Session *s) {
    for (int i = 0; i < s->num_views; i++) {
        const RankView *v = &s->views[i];
        if (v->joined && !v->gone && v->beat.pid != s->child && is_below(v->beat.pid, getpid()))
            kill(v->beat.pid, SIGKILL);
    }
}

// A launcher whose ranks are dead tidies up after itself, given a moment.
static void end_all(Session *s) {
    if (!s->child_ended && !s->is_process) {
        kill(s->child, SIGCONT);
        kill_ranks(s);
        await_end(s, BY_ITSELF_S);
        if (!s->child_ended) kill(s->child, SIGTERM);
        await_end(s, LAUNCHER_S);
    }
    kill(-s->child, SIGKILL);
    await_end(s, 10);
    if (s->child_ended) waitpid(s->child, &s->wait_status, 0);
    kill_strays();
}

// ---- what is known of an end ----------------------------------------------------------------------

static void take_rank(StartEnding *e, const RankView *v) {
    e->rank = v->beat.rank;
    e->pid = v->beat.pid;
    snprintf(e->host, sizeof e->host, "%s", v->beat.host);
    snprintf(e->doing, sizeof e->doing, "%s", v->beat.doing);
}

typedef struct {
    char state[16];
    int64_t iteration, blamed; // a rank; -1: none
} RunSays;

static void read_run_file(const char *path, RunSays *says) {
    enum { MOST_BYTES = 1 << 16 };
    char *data;
    size_t size;
    Json *file;
    if (file_read(path, MOST_BYTES, &data, &size) != OK) return;
    if (json_parse(&file, data, size, path) == OK) {
        const char *word = json_string(json_member(file, "state"));
        snprintf(says->state, sizeof says->state, "%s", word ? word : "");
        json_int(json_member(file, "iteration"), &says->iteration);
        json_int(json_member(file, "blamed_rank"), &says->blamed);
        json_free(file);
    }
    free(data);
}

static bool disk_is_full(const char *path) {
    struct statvfs disk;
    return statvfs(path, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < FULL_BYTES;
}

// The first rank that has left with an error, and a rank whose process has disappeared.
static const RankView *first_failed(const Session *s, bool gone) {
    const RankView *first = NULL;
    for (int i = 0; i < s->num_views; i++) {
        const RankView *v = &s->views[i];
        bool failed = gone ? v->gone : v->joined && v->beat.phase == BEAT_DONE && v->beat.status;
        if (failed && (!first || v->beat.since_ns < first->beat.since_ns)) first = v;
    }
    return first;
}

static void end_of_child(const Session *s, StartEnding *e) {
    if (WIFSIGNALED(s->wait_status)) {
        e->kind = END_SIGNAL;
        e->signal = WTERMSIG(s->wait_status);
        return;
    }
    int status = WEXITSTATUS(s->wait_status);
    // A shell or launcher says so that something under it was killed.
    bool killed = !s->is_process && status > 128 && status < 128 + SIGRTMIN && status != INTERRUPTED;
    e->kind = killed ? END_SIGNAL : END_STATUS;
    e->signal = killed ? status - 128 : 0;
    e->status = killed ? 0 : status ? status : ERR_OTHER; // no error, and not done either
}

// Names the rank that the failed one holds responsible, which may be on another machine.
static void take_blamed(const Session *s, const RankView *failed, int64_t blamed, StartEnding *e) {
    int rank = failed && failed->beat.blamed ? failed->beat.blamed - 1 : (int)blamed;
    if (rank < 0 || rank >= BEAT_MAX_SLOTS) return;
    e->blamed = true;
    if (rank < s->num_views && s->views[rank].joined) {
        take_rank(e, &s->views[rank]);
        return;
    }
    e->rank = rank;
    e->pid = -1;
    *e->host = *e->doing = 0;
}

static int count_joined(const Session *s, bool left) {
    int count = 0;
    for (int i = 0; i < s->num_views; i++)
        count += s->views[i].joined && (!left || s->views[i].beat.phase == BEAT_DONE || s->views[i].gone);
    return count;
}

static int64_t furthest(const Session *s, int64_t iteration) {
    for (int i = 0; i < s->num_views; i++)
        if (s->views[i].joined && s->views[i].beat.iteration > iteration)
            iteration = s->views[i].beat.iteration;
    return iteration;
}

// `gone`: a rank whose process had disappeared while the launcher went on; NULL: none.
static void describe_error(const Session *s, const RankView *gone, const RunSays *says, StartEnding *e) {
    const RankView *failed = first_failed(s, false);
    bool failed_in_order = says->blamed >= 0 && !gone && WIFEXITED(s->wait_status);
    if (failed) {
        e->kind = END_STATUS;
        e->status = failed->beat.status;
        take_rank(e, failed);
    } else if (gone) {
        e->kind = END_SIGNAL;
        e->unproved = strchr(s->hosts, ',') && count_joined(s, true) == count_joined(s, false);
        take_rank(e, gone);
    } else {
        end_of_child(s, e);
        e->launcher = !s->is_process && strcmp(says->state, "failed") != 0;
        if (s->is_process && s->num_views && s->views[0].joined)
            e->pid = s->child, snprintf(e->host, sizeof e->host, "%s", s->views[0].beat.host);
    }
    if (failed || failed_in_order) take_blamed(s, failed, says->blamed, e);
}

static void describe_end(const Session *s, const RankView *gone, StartEnding *e) {
    RunSays says = {.blamed = -1};
    read_run_file(s->run_file, &says);
    e->iteration = furthest(s, says.iteration);
    if (e->kind == END_HANG) return;
    bool ended = WIFEXITED(s->wait_status);
    int status = ended ? WEXITSTATUS(s->wait_status) : 0;
    if (!strcmp(says.state, "done") && ended) {
        e->kind = END_DONE;
        e->status = status; // nothing is left to train: what failed is the launcher, or the log's last lines
    } else if (!strcmp(says.state, "interrupted") || (s->stop.signal && WIFSIGNALED(s->wait_status))) {
        e->kind = END_EARLY;
        e->status = status;
    } else {
        describe_error(s, gone, &says, e);
    }
    e->disk_full = (e->status == ERR_IO || e->status == ERR_CREATE) && disk_is_full(s->save);
}

// ---- watching -------------------------------------------------------------------------------------

typedef struct {
    double last_s;                      // clock_s() of the last look
    double attended_s;                  // since the start
    double processes_s, load_s, grow_s; // attended when these were looked at last
    double load, stopped_s;
    pid_t stopped; // a process of the run that a signal has stopped, for so long; 0: none
    double since_error_s, since_left_s; // attended when a rank had failed, when all had left; 0: not yet
    bool passed;                        // the request to stop has been passed on
} Watch;

static int64_t file_bytes(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

static void look(Session *s, Watch *w, double tick_s) {
    w->attended_s += tick_s;
    for (int i = 0; i < s->num_views; i++) view_look(&s->views[i], &s->page, i, tick_s);
    if (w->attended_s - w->load_s > 1)
        w->load_s = w->attended_s, w->load = machine_load(count_joined(s, false));
    if (w->attended_s - w->processes_s < 0.25) return;
    w->stopped = find_stopped(s->child);
    w->stopped_s = w->stopped ? w->stopped_s + w->attended_s - w->processes_s : 0;
    w->processes_s = w->attended_s;
    for (int i = 0; i < s->num_views; i++)
        if (s->views[i].joined && s->views[i].quiet_s > 0.5) view_process(&s->views[i]);
}

static void say_blame(const Session *s, const Blame *b, const RankView *v) {
    Text line = {0};
    const char *what = *v->beat.doing ? v->beat.doing : "its start";
    fprintf(stderr, "supervise: rank %d (process %d on %s) makes no progress: %.1f s at %s%s%s", b->rank,
            v->beat.pid, v->beat.host, b->quiet_s, what, v->stopped ? ", its process is stopped" : "",
            v->gone ? ", its process is gone" : "");
    if (b->next >= 0) fprintf(stderr, ", and waits for rank %d, which waits for it", b->next);
    fprintf(stderr, "; limit %.1f s; %d ranks wait for it\n", b->limit_s, b->waiters);
    entry_begin(&line, "detected", s->start);
    text_add(
        &line,
        ", \"rank\": %d, \"rank_pid\": %d, \"waiters\": %d, \"quiet_s\": %.3f, \"limit_s\": %.3f, \"since_s\": %.3f",
        b->rank, v->beat.pid, b->waiters, b->quiet_s, b->limit_s, 1e-9 * (double)v->beat.since_ns);
    entry_string(&line, "host", v->beat.host);
    entry_string(&line, "doing", v->beat.doing);
    entry_string(&line, "waits_in", v->beat.wait);
    entry_string(&line, "process", v->stopped ? "stopped" : v->gone ? "gone" : "there");
    entry_write(&line, s->ledger);
}

// Ranks of other machines have no heartbeat here; what the first rank writes says that they have begun.
static bool has_begun(const Session *s) {
    bool connected = false;
    for (int i = 0; i < s->num_views; i++)
        connected = connected || (s->views[i].joined && s->views[i].beat.phase > BEAT_CONNECTING);
    return connected || access(s->run_file, F_OK) == 0 || file_bytes(s->ledger) > s->ledger_bytes;
}

// Returns whether the run is to be ended; fills `ending` for a hang, and `gone`.
static bool is_stuck(Session *s, const Watch *w, StartEnding *ending, const RankView **gone) {
    HangRule rule = {.factor = s->factor, .load = w->load, .setup_s = s->setup_s};
    Blame blame = blame_find(s->views, s->num_views, &rule);
    if (blame.rank >= 0) {
        const RankView *v = &s->views[blame.rank];
        say_blame(s, &blame, v);
        if (v->gone) {
            *gone = v;
            return true;
        }
        ending->kind = END_HANG;
        ending->status = ERR_HANG;
        ending->frozen = v->stopped;
        take_rank(ending, v);
        return true;
    }
    bool frozen = w->stopped_s > STOPPED_S, silent = w->attended_s > JOIN_S * w->load && !has_begun(s);
    if (!frozen && !silent) return false;
    if (frozen)
        fprintf(stderr, "supervise: process %d was stopped by a signal, and is not continued\n",
                (int)w->stopped);
    else
        fprintf(stderr, "supervise: no rank has come to its start\n");
    ending->kind = END_HANG;
    ending->status = ERR_HANG;
    ending->frozen = frozen;
    ending->pid = frozen ? w->stopped : s->child;
    return true;
}

// Ranks that have left are followed by their processes, one that fails by the others.
static bool is_left_over(Session *s, Watch *w) {
    int joined = count_joined(s, false);
    bool error = first_failed(s, false) != NULL, left = joined && joined == count_joined(s, true);
    if (error && w->since_error_s <= 0) w->since_error_s = w->attended_s;
    if (left && w->since_left_s <= 0) w->since_left_s = w->attended_s;
    double error_s = error ? w->attended_s - w->since_error_s : 0,
           left_s = left ? w->attended_s - w->since_left_s : 0;
    bool stops = s->views[0].joined && s->views[0].beat.status == INTERRUPTED;
    return left_s > LEAVE_S * w->load || (error_s > AFTER_ERROR_S * w->load && !stops && !left);
}

// Passes a request on as USR1, which mpirun and srun forward to all ranks. Returns whether the time for it is over.
static bool is_overdue_stop(Session *s, Watch *w) {
    if (s->stop.at_once) return true;
    if (!s->stop.signal && !s->grows) return false;
    if (!w->passed) {
        kill(s->child, SIGUSR1);
        w->passed = true;
        if (!s->stop.signal) s->stop.asked_s = clock_s();
        return false;
    }
    // A larger grid is worth waiting for a save; a scheduler kills after its own time.
    return s->stop.signal && clock_s() - s->stop.asked_s > s->grace_s;
}

static const RankView *watch(Session *s, StartEnding *ending) {
    Watch w = {.last_s = clock_s(), .load = 1};
    const RankView *gone = NULL;
    while (!s->child_ended) {
        await_signal(s, TICK_S);
        double now = clock_s(), gap = now - w.last_s;
        w.last_s = now;
        look(s, &w, fmin(gap, 2 * TICK_S));
        if (s->child_ended) break;
        if (is_overdue_stop(s, &w)) break;
        if (is_stuck(s, &w, ending, &gone) || is_left_over(s, &w)) break;
        if (s->may_grow && !s->grows && !s->stop.signal && w.attended_s - w.grow_s > s->grow_s) {
            w.grow_s = w.attended_s;
            s->grows = s->may_grow(s->self);
        }
    }
    return gone;
}

static void record_ending(const Session *s, const StartEnding *e) {
    Text line = {0};
    entry_begin(&line, "ended", s->start);
    entry_string(&line, "kind", end_kind_name(e->kind));
    text_add(&line, ", \"status\": %d", e->status);
    entry_string(&line, "signal", e->signal ? sigabbrev_np(e->signal) : NULL);
    text_add(&line, ", \"iteration\": %lld, \"first\": {\"rank\": ", (long long)e->iteration);
    text_add(&line, e->rank >= 0 ? "%d" : "null", e->rank);
    text_add(&line, e->pid >= 0 ? ", \"pid\": %d" : ", \"pid\": null", e->pid);
    entry_string(&line, "host", e->host);
    entry_string(&line, "doing", e->doing);
    text_add(&line, ", \"frozen\": %s}", e->frozen ? "true" : "false");
    entry_write(&line, s->ledger);
}

void session_run(Session *s, char **argv, StartEnding *ending) {
    Text line = {0};
    *ending = (StartEnding){.rank = -1, .pid = -1};
    memset(s->views, 0, (size_t)s->num_views * sizeof *s->views);
    beat_page_start(&s->page, s->start);
    unlink(s->run_file); // what it says must be of this start
    s->child_ended = s->grows = false;
    s->ledger_bytes = file_bytes(s->ledger);
    s->child = child_start(argv);
    if (!s->child) {
        *ending = (StartEnding){.kind = END_STATUS, .status = ERR_OS, .rank = -1, .pid = -1};
        record_ending(s, ending);
        return;
    }
    const RankView *gone = watch(s, ending);
    entry_begin(&line, "stopping", s->start);
    entry_write(&line, s->ledger);
    for (int i = 0; i < s->num_views; i++)
        beat_read(&s->page, i, &s->views[i].beat); // what they have said last
    end_all(s);
    describe_end(s, gone, ending);
    if (ending->rank >= 0) host_of_rank(s->hosts, ending->rank, ending->host);
    s->child = 0;
    record_ending(s, ending);
}
