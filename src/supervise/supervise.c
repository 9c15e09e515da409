// The supervisor's loop: choose a grid, start the run, see how it ends, decide.
#include "supervise/supervise.h"
#include "base/file.h"
#include "base/rank.h"
#include "supervise/hosts.h"
#include "supervise/prices.h"
#include "supervise/session.h"
#include "train/train.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

// An instruction that was not measured yet; ranks that wait for another have limits of their own.
#define SETUP_S      1800.0
#define LOOK_AGAIN_S 2.0 // for cores and hosts, where there are too few

typedef struct {
    const Options *options;
    RunCommand command;
    Options train; // of the command as it is written, resolved
    Text extra;    // further options of train
    char *state_dir, *ledger, *run_file;
    char *save; // of train
    FirstLoad first_load;
    int lock; // of state_dir; -1: none
    Hosts hosts;
    Prices *prices; // NULL: without --machine
    GridRequest request;
    GridChoice grid; // of the present start
    int asked_cores;
    Session session;
    StartEnding *endings;
    int num_endings;
} Supervisor;

// ---- the command ----------------------------------------------------------------------------------

static char *join_path(const char *folder, const char *name) {
    Text path = {0};
    text_add(&path, "%s/%s", folder, name);
    return path.data;
}

// Parses and resolves the arguments of train on a grid (NULL: as they are written).
static Status read_train(const Supervisor *s, const GridChoice *grid, Options *train) {
    RunCommand alone = s->command;
    alone.num_launcher = 0;
    alone.launches = false;
    char **argv = command_build(&alone, grid, "", &s->extra);
    int argc = 0;
    while (argv[argc]) argc++;
    Status status = options_parse(train, FOR_TRAIN, argc - 2, argv + 2);
    int ranks = grid ? grid_ranks(*grid) : 1;
    if (status == OK && !grid && s->command.ranks_word >= 0)
        ranks = command_ranks(&s->command);
    else if (status == OK && !grid && train->ranks != INT_UNSET)
        ranks = train->ranks;
    if (status == OK && !grid && s->command.launches && s->command.ranks_word < 0) {
        command_free(argv); // only the launcher knows how many ranks there are, and the ranks will check
        return OK;
    }
    if (status == OK) {
        status = train_resolve(train, ranks);
        if (status != OK) options_destroy(train);
    }
    command_free(argv);
    return status;
}

static bool grid_is_possible(void *self, GridChoice grid) {
    Options train;
    if (read_train(self, &grid, &train) != OK) return false;
    options_destroy(&train);
    return true;
}

static double grid_step_s(void *self, GridChoice grid) {
    Supervisor *s = self;
    Options train;
    if (read_train(self, &grid, &train) != OK) return 0;
    double step_s = prices_step_s(s->prices, &train);
    options_destroy(&train);
    return step_s;
}

static char *copy(const char *text) {
    char *made = strdup(text);
    CHECK(made, "no memory for a path");
    return made;
}

static Status add_options(Supervisor *s) {
    Options given;
    TRY(options_parse(&given, FOR_TRAIN, s->command.num_arguments, s->command.arguments));
    if (!given.save) {
        options_destroy(&given);
        return fail(
            ERR_USAGE,
            "supervise needs --save FOLDER in the train command: a run without checkpoints starts anew each time");
    }
    const Options *o = s->options;
    s->command.save = s->save = copy(given.save);
    s->state_dir = o->state_dir ? copy(o->state_dir) : join_path(given.save, "supervise");
    s->ledger = given.ledger ? copy(given.ledger) : join_path(s->state_dir, "ledger.jsonl");
    s->run_file = given.run_file ? copy(given.run_file) : join_path(s->state_dir, "run.json");
    if (!given.load) text_add(&s->extra, "--load\n%s\n", given.save);
    if (!given.run_file) text_add(&s->extra, "--run-file\n%s\n", s->run_file);
    if (!given.data_cache_path) text_add(&s->extra, "--data-cache-path\n%s/indices\n", s->state_dir);
    first_load_read(&s->first_load, &given);
    options_destroy(&given);
    return OK;
}

static Status ask_for_grid(Supervisor *s) {
    static const char *const words[] = {"off", "exact", "rounding"};
    const RunShape *shape = &s->train.shape;
    bool known = shape->world_size > 0;
    s->request = (GridRequest){.asked = {1, 1, 1, 1, 1},
                               .virtual_dp = known ? shape->virtual_data : 0,
                               .possible = grid_is_possible,
                               .self = s};
    if (known) s->request.asked = (GridChoice){shape->tp, shape->pp, shape->vp, shape->dp, shape->cp};
    for (int i = 0; i < 3; i++)
        if (!strcmp(s->options->elastic, words[i])) s->request.elastic = (Elastic)i;
    bool counts = known && (!s->command.launches || s->command.ranks_word >= 0);
    if (!counts) s->request.elastic = ELASTIC_OFF; // the launcher alone knows the number of ranks
    int each = s->train.threads != INT_UNSET ? s->train.threads : 1, here = cores_usable();
    int wanted = grid_ranks(s->request.asked) * each;
    s->asked_cores = s->options->cores != INT_UNSET ? s->options->cores : wanted < here ? wanted : here;
    if (!s->options->machine || !counts) return OK;
    s->request.step_s = grid_step_s;
    return prices_open(&s->prices, s->options);
}

// ---- grids ----------------------------------------------------------------------------------------

// As many ranks as there is room for now: where ranks share cores they go on to do so in the same proportion.
static int room(Supervisor *s, bool struck) {
    int asked = grid_ranks(s->request.asked);
    if (s->hosts.count) return hosts_slots(&s->hosts, s->endings, s->num_endings, struck);
    if (s->command.launches) return asked;
    int here = cores_usable() - (s->options->spares != INT_UNSET ? s->options->spares : 0);
    if (here >= s->asked_cores) return asked;
    int most = (int)((int64_t)asked * (here > 0 ? here : 1) / s->asked_cores);
    return most > 0 ? most : 1;
}

static bool is_same_grid(GridChoice a, GridChoice b) {
    return a.t == b.t && a.p == b.p && a.v == b.v && a.d == b.d;
}

// Threads can share cores, so without another grid the asked one runs, more slowly. Hosts must be there.
static bool choose(Supervisor *s, GridChoice *grid) {
    if (grid_choose(&s->request, room(s, false), grid)) return true;
    if (s->hosts.count && grid_choose(&s->request, room(s, true), grid)) return true;
    *grid = s->request.asked;
    return !s->hosts.count;
}

static void reaped(void *self, pid_t pid, int wait_status) {
    hosts_reaped(&((Supervisor *)self)->hosts, pid, wait_status);
}

// What the checks say that were begun the last time.
static bool may_grow(void *self) {
    Supervisor *s = self;
    GridChoice grid;
    if (is_same_grid(s->grid, s->request.asked) || !hosts_are_known(&s->hosts)) return false;
    bool may = choose(s, &grid) && grid_ranks(grid) > grid_ranks(s->grid);
    hosts_begin_check(&s->hosts);
    if (!may) return false;
    fprintf(stderr, "supervise: there is room for %d ranks again: the run saves and starts on them\n",
            grid_ranks(grid));
    return true;
}

static void tell_grid(Supervisor *s, GridChoice grid) {
    GridChoice asked = s->request.asked;
    if (is_same_grid(grid, asked) || is_same_grid(grid, s->grid)) return;
    bool exact = grid.t == asked.t && (grid.d == asked.d || s->request.virtual_dp > 0);
    double now = s->prices ? grid_step_s(s, grid) : 0, before = s->prices ? grid_step_s(s, asked) : 0;
    double slower = now > 0 && before > 0 ? now / before : (double)grid_ranks(asked) / grid_ranks(grid);
    fprintf(
        stderr,
        "supervise: room for %d ranks instead of %d: t = %d, p = %d, v = %d, d = %d instead of t = %d, p = %d, v = %d, "
        "d = %d (%s); steps take about %.2f times as long (%s); %s\n",
        room(s, false), grid_ranks(asked), grid.t, grid.p, grid.v, grid.d, asked.t, asked.p, asked.v, asked.d,
        s->prices ? "the shortest step predicted" : "most ranks, then the largest d", slower,
        s->prices ? "predicted" : "by the number of ranks",
        exact ? "no bit changes" : "sums are rounded differently");
}

// False: somebody asks to stop.
static bool check_hosts(Supervisor *s) {
    hosts_begin_check(&s->hosts);
    while (!s->session.stop.signal && !hosts_are_known(&s->hosts)) session_wait(&s->session, 0.05);
    return !s->session.stop.signal;
}

// Waits until there is room; false: somebody asks to stop.
static bool await_room(Supervisor *s) {
    GridChoice grid;
    for (bool told = false; check_hosts(s) && !choose(s, &grid); told = true) {
        if (!told)
            fprintf(stderr, "supervise: room for %d ranks, and no grid that is allowed: waiting for hosts\n",
                    room(s, false));
        session_wait(&s->session, LOOK_AGAIN_S);
    }
    if (s->session.stop.signal) return false;
    tell_grid(s, grid);
    s->grid = grid;
    return true;
}

// ---- starts ---------------------------------------------------------------------------------------

static void record_start(Supervisor *s, char **argv, const char *hosts) {
    Text line = {0}, command = {0};
    char here[BEAT_HOST] = "";
    gethostname(here, sizeof here - 1);
    for (int i = 0; argv[i]; i++) text_add(&command, "%s%s", i ? " " : "", argv[i]);
    entry_begin(&line, "started", s->session.start);
    entry_string(&line, "command", text_string(&command));
    text_add(&line, ", \"ranks\": %d, \"grid\": {\"t\": %d, \"p\": %d, \"v\": %d, \"d\": %d}",
             grid_ranks(s->grid), s->grid.t, s->grid.p, s->grid.v, s->grid.d);
    entry_string(&line, "host", here);
    entry_string(&line, "hosts", hosts);
    entry_string(&line, "first_load", text_string(&s->first_load.words));
    text_add(&line, ", \"resumes\": %s", s->command.resumes ? "true" : "false");
    entry_write(&line, s->ledger);
    text_free(&command);
}

static void start_once(Supervisor *s) {
    Text hosts = {0};
    bool known = s->train.shape.world_size > 0;
    bool asked = is_same_grid(s->grid, s->request.asked);
    if (first_load_choose(&s->first_load, s->ledger, &s->command) != OK)
        fprintf(stderr, "supervise: WARNING: %s\n", fail_message());
    hosts_list(&s->hosts, s->endings, s->num_endings, grid_ranks(s->grid), &hosts);
    char **argv =
        command_build(&s->command, known && !asked ? &s->grid : NULL, text_string(&hosts), &s->extra);
    s->session.start++;
    record_start(s, argv, text_string(&hosts));
    StartEnding *more = realloc(s->endings, ((size_t)s->num_endings + 1) * sizeof *more);
    CHECK(more, "no memory for %d endings", s->num_endings + 1);
    s->endings = more;
    s->session.hosts = text_string(&hosts);
    session_run(&s->session, argv, &s->endings[s->num_endings]);
    s->num_endings++;
    command_free(argv);
    text_free(&hosts);
}

static void record_decision(Supervisor *s, const char *action, const NextStep *next) {
    Text line = {0};
    entry_begin(&line, "decided", s->session.start);
    entry_string(&line, "action", action);
    text_add(&line, ", \"wait_s\": %.3f, \"status\": %d", next->wait_s, next->status);
    entry_string(&line, "why", next->why);
    entry_write(&line, s->ledger);
}

static void describe_ending(const StartEnding *e, Text *text) {
    if (e->kind == END_SIGNAL)
        text_add(text, "was ended by %s%s", e->signal ? "SIG" : "a signal",
                 e->signal ? sigabbrev_np(e->signal) : "");
    else if (e->kind == END_HANG)
        text_add(text, "made no progress");
    else
        text_add(text, "ended with status %d", e->status);
    text_add(text, " in iteration %lld", (long long)e->iteration);
    if (e->rank >= 0)
        text_add(text, e->blamed ? ", because of rank %d on %s" : ", rank %d on %s first", e->rank,
                 *e->host ? e->host : "another host");
    if (e->rank >= 0 && *e->doing) text_add(text, ", at %s", e->doing);
}

// After an end; true: the run starts again.
static bool go_on(Supervisor *s, Status *status) {
    const StartEnding *last = &s->endings[s->num_endings - 1];
    NextStep next = decide(s->endings, s->num_endings, s->options->max_restarts);
    int asked = s->session.stop.signal;
    bool early = last->kind == END_EARLY;
    Text text = {0};
    if (last->kind != END_DONE && (asked || (early && last->status == INTERRUPTED && !s->session.grows))) {
        int code = asked == SIGINT ? INTERRUPTED : STATUS_REQUEUE;
        next = (NextStep){.status = code};
        snprintf(next.why, sizeof next.why, "it was asked to stop%s%s; the same command goes on",
                 asked ? " by SIG" : "", asked ? sigabbrev_np(asked) : "");
    } else if (early && s->session.grows) {
        next = (NextStep){.restart = true, .why = "there is more room"};
    }
    record_decision(s, next.restart ? "restart" : "stop", &next);
    describe_ending(last, &text);
    if (next.restart)
        fprintf(stderr, "supervise: start %d %s: %s; it starts again%s\n", s->session.start,
                text_string(&text), next.why, next.wait_s > 0 ? " after a pause" : "");
    else if (last->kind != END_DONE || last->status)
        fprintf(stderr, "supervise: start %d %s: %s\n", s->session.start, text_string(&text), next.why);
    text_free(&text);
    *status = (Status)next.status;
    if (next.restart) session_wait(&s->session, next.wait_s);
    return next.restart;
}

// ---- the whole ------------------------------------------------------------------------------------

static int open_signals(void) {
    enum { ALWAYS_HEARD = 2 };
    static const int requests[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGXCPU};
    struct sigaction action;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    // As train does: what nohup ignores stays ignored, but not INT and TERM, which shells ignore for what runs behind
    // them.
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        if (i < ALWAYS_HEARD || sigaction(requests[i], NULL, &action) != 0 || action.sa_handler != SIG_IGN)
            sigaddset(&set, requests[i]);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static Status open_session(Supervisor *s) {
    const Options *o = s->options;
    enum { MORE_SLOTS = 1024 };
    int ranks = grid_ranks(s->request.asked);
    int slots = ranks + MORE_SLOTS < BEAT_MAX_SLOTS ? ranks + MORE_SLOTS : BEAT_MAX_SLOTS;
    bool known = s->train.shape.world_size > 0;
    double minutes = s->train.distributed_timeout_minutes;
    s->session = (Session){.ledger = s->ledger,
                           .run_file = s->run_file,
                           .save = s->train.save,
                           .start = records_read(s->ledger, "").last_start,
                           .factor = o->hang_factor,
                           .grace_s = o->grace_s,
                           .grow_s = o->grow_interval_s,
                           .setup_s = isnan(minutes) ? SETUP_S : 60 * minutes,
                           .reaped = reaped,
                           .may_grow = s->request.elastic != ELASTIC_OFF ? may_grow : NULL,
                           .self = s,
                           .num_views = known ? ranks : slots,
                           .is_process = !s->command.launches};
    s->session.views = calloc((size_t)s->session.num_views, sizeof *s->session.views);
    CHECK(s->session.views, "no memory for %d ranks", s->session.num_views);
    TRY(beat_page_open(&s->session.page, slots));
    setenv(BEAT_VARIABLE, s->session.page.path, 1);
    setenv("TRIREME_LEDGER", s->ledger, 1);
    if (!beat_watch_over()) return fail(ERR_OS, "no memory for the environment");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    s->session.signals = open_signals();
    return s->session.signals >= 0 ? OK : fail(ERR_OS, "cannot receive signals: %s", strerror(errno));
}

// Two supervisors of one run would remove each other's files.
static Status lock_state(Supervisor *s) {
    char *path = join_path(s->state_dir, ".lock");
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    int error = errno;
    free(path);
    if (s->lock < 0) return fail(ERR_CREATE, "%s/.lock: %s", s->state_dir, strerror(error));
    if (flock(s->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return OK;
    return fail(
        ERR_UNAVAILABLE,
        "another supervisor works in %s: stop it, or save elsewhere (or give each its own --state-dir)",
        s->state_dir);
}

static Status prepare(Supervisor *s, const char *self) {
    StringList words = s->options->positional;
    TRY(command_read(&s->command, (char **)words.items, words.count, self));
    TRY(add_options(s));
    TRY(first_load_choose(&s->first_load, s->ledger, &s->command));
    TRY(first_load_can_be_left(&s->first_load, &s->command));
    TRY(read_train(s, NULL, &s->train));
    TRY(hosts_open(&s->hosts, s->options, &s->command));
    TRY(ask_for_grid(s));
    if (s->hosts.count) TRY(hosts_suffice(&s->hosts, grid_ranks(s->request.asked), s->options->spares));
    TRY(folder_make(s->state_dir));
    TRY(lock_state(s));
    return open_session(s);
}

static void supervisor_close(Supervisor *s) {
    if (s->train.store) options_destroy(&s->train);
    beat_page_close(&s->session.page);
    if (s->session.signals > 0) close(s->session.signals);
    free(s->session.views);
    prices_close(s->prices);
    hosts_close(&s->hosts);
    text_free(&s->extra);
    free(s->endings);
    free(s->state_dir);
    free(s->ledger);
    free(s->run_file);
    free(s->save);
    text_free(&s->first_load.words);
    if (s->lock >= 0) close(s->lock);
}

static Status run(Supervisor *s) {
    Status status = OK;
    Text line = {0};
    do {
        if (!await_room(s)) {
            status = s->session.stop.signal == SIGINT ? INTERRUPTED : (Status)STATUS_REQUEUE;
            break;
        }
        start_once(s);
    } while (go_on(s, &status)); // after a request during its pause await_room ends the loop
    entry_begin(&line, "done", s->session.start);
    text_add(&line, ", \"status\": %d", (int)status);
    entry_write(&line, s->ledger);
    return status;
}

Status supervise(const Options *options, const char *self) {
    Supervisor s = {.options = options, .lock = -1};
    Status status = prepare(&s, self);
    if (status == OK) {
        status = run(&s);
        fail(status, "%s", ""); // all has been said
    }
    supervisor_close(&s);
    return status;
}
