// Keeps the list of hosts: their slots, strikes, and what --host-check says of them.
#include "supervise/hosts.h"
#include "base/rank.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_S 10.0

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

// ---- checks ---------------------------------------------------------------------------------------

void hosts_begin_check(Hosts *hosts) {
    hosts->began_s = clock_s();
    for (int i = 0; i < hosts->count; i++) {
        HostEntry *host = &hosts->items[i];
        host->is_there = !hosts->check;
        if (!hosts->check) continue;
        char *argv[] = {strdup(hosts->check), strdup(host->name), NULL};
        CHECK(argv[0] && argv[1], "no memory for the check of a host");
        host->checking = child_start(argv);
        free(argv[0]);
        free(argv[1]);
    }
}

void hosts_reaped(Hosts *hosts, pid_t pid, int wait_status) {
    for (int i = 0; i < hosts->count; i++) {
        HostEntry *host = &hosts->items[i];
        if (host->checking != pid) continue;
        host->checking = 0;
        host->is_there = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
    }
}

bool hosts_are_known(Hosts *hosts) {
    bool late = clock_s() - hosts->began_s > CHECK_S, known = true;
    for (int i = 0; i < hosts->count; i++) {
        HostEntry *host = &hosts->items[i];
        if (!host->checking) continue;
        if (late && is_below(host->checking, getpid())) kill(-host->checking, SIGKILL);
        if (late) host->checking = 0;
        known = known && late;
    }
    return known;
}

// ---- which may be used ----------------------------------------------------------------------------

static bool is_struck(const Hosts *hosts, int i, const StartEnding *endings, int count) {
    return host_strikes(endings, count, hosts->items[i].name) >= STRIKES_TO_EXCLUDE;
}

int hosts_slots(const Hosts *hosts, const StartEnding *endings, int count, bool struck) {
    int slots = 0;
    for (int i = 0; i < hosts->count; i++)
        if ((struck || !is_struck(hosts, i, endings, count)) && hosts->items[i].is_there)
            slots += hosts->items[i].slots;
    return slots;
}

void hosts_list(const Hosts *hosts, const StartEnding *endings, int count, int ranks, Text *out) {
    for (int struck = 0; struck <= 1; struck++)
        for (int i = 0; i < hosts->count && ranks > 0; i++) {
            if (is_struck(hosts, i, endings, count) != struck || !hosts->items[i].is_there) continue;
            text_add(out, "%s%s:%d", out->size ? "," : "", hosts->items[i].name, hosts->items[i].slots);
            ranks -= hosts->items[i].slots;
        }
}

void host_of_rank(const char *list, int rank, char host[BEAT_HOST]) {
    size_t known = strlen(host);
    const char *found = NULL;
    size_t found_size = 0;
    int first = 0;
    for (size_t length; *list; list += length + (list[length] == ',')) {
        length = strcspn(list, ",");
        size_t name = strcspn(list, ":,");
        if (known && name == known && !strncmp(list, host, name)) return;
        int slots = list[name] == ':' ? atoi(list + name + 1) : 1;
        if (rank >= first && rank < first + slots) found = list, found_size = name;
        first += slots;
    }
    if (found) snprintf(host, BEAT_HOST, "%.*s", (int)found_size, found);
}
