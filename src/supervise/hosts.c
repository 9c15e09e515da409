// Keeps the list of hosts: their slots, strikes, and what --host-check says of them.
#include "supervise/hosts.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static Status read_host(HostEntry *host, const char *word, size_t length) {
    const char *colon = memchr(word, ':', length);
    size_t name = colon ? (size_t)(colon - word) : length;
    char number[16] = "1";
    int64_t slots;
    if (colon) snprintf(number, sizeof number, "%.*s", (int)(length - name - 1), colon + 1);
    if (!name || !parse_int(number, &slots) || slots < 1 || slots > 1 << 16)
        return fail(ERR_USAGE, "--hosts: '%.*s' is no NAME or NAME:SLOTS", (int)length, word);
    host->name = strndup(word, name);
    host->slots = (int)slots;
    CHECK(host->name, "no memory for a host");
    return OK;
}

Status hosts_open(Hosts *hosts, const Options *options, const RunCommand *command) {
    const char *at = options->hosts;
    hosts->check = options->host_check;
    if (!at && command->wants_hosts)
        return fail(ERR_USAGE, "the command has {hosts}, but there is no --hosts A,B,...");
    if (!at) return OK;
    if (!command->wants_hosts)
        return fail(
            ERR_USAGE,
            "--hosts: write {hosts} where the launcher's list of hosts belongs, as in -- mpirun -n 8 --host {hosts} "
            "trireme train ...");
    for (size_t length; *at; at += length + (at[length] == ',')) {
        length = strcspn(at, ",");
        HostEntry *more = realloc(hosts->items, ((size_t)hosts->count + 1) * sizeof *more);
        CHECK(more, "no memory for hosts");
        hosts->items = more;
        TRY(read_host(&hosts->items[hosts->count], at, length));
        hosts->count++;
    }
    return OK;
}

void hosts_close(Hosts *hosts) {
    for (int i = 0; i < hosts->count; i++) free(hosts->items[i].name);
    free(hosts->items);
}

Status hosts_suffice(const Hosts *hosts, int ranks, int spares) {
    int slots = 0, kept = spares == INT_UNSET ? 0 : spares;
    for (int i = 0; i + kept < hosts->count; i++) slots += hosts->items[i].slots;
    if (slots >= ranks) return OK;
    return fail(
        ERR_CONFIG,
        "--hosts: %d hosts without %d spares take %d ranks, and the run has %d: name more hosts, or slots as in a:4",
        hosts->count, kept, slots, ranks);
}

// Runs the program of --host-check with the host's name; it has ten seconds.
static bool check_passes(const char *program, const char *host) {
    char *argv[] = {strdup(program), strdup(host), NULL};
    pid_t child = child_start(argv);
    int status = -1;
    for (int tenths = 0; child > 0 && tenths < 1000; tenths++) {
        if (waitpid(child, &status, WNOHANG) == child) break;
        if (tenths == 999) kill(-child, SIGKILL), waitpid(child, &status, 0);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    free(argv[0]);
    free(argv[1]);
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool is_struck(const Hosts *hosts, int i, const StartEnding *endings, int count) {
    return host_strikes(endings, count, hosts->items[i].name) >= STRIKES_TO_EXCLUDE;
}

static bool is_there(const Hosts *hosts, int i) {
    return !hosts->check || check_passes(hosts->check, hosts->items[i].name);
}

int hosts_slots(const Hosts *hosts, const StartEnding *endings, int count, bool struck) {
    int slots = 0;
    for (int i = 0; i < hosts->count; i++)
        if ((struck || !is_struck(hosts, i, endings, count)) && is_there(hosts, i))
            slots += hosts->items[i].slots;
    return slots;
}

void hosts_list(const Hosts *hosts, const StartEnding *endings, int count, int ranks, Text *out) {
    for (int struck = 0; struck <= 1; struck++)
        for (int i = 0; i < hosts->count && ranks > 0; i++) {
            if (is_struck(hosts, i, endings, count) != struck || !is_there(hosts, i)) continue;
            text_add(out, "%s%s:%d", out->size ? "," : "", hosts->items[i].name, hosts->items[i].slots);
            ranks -= hosts->items[i].slots;
        }
}
