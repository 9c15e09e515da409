// The hosts of --hosts: how many ranks each takes, and which may be used now. Internal to supervise/.
#pragma once
#include "supervise/supervise.h"

typedef struct {
    char *name;
    int slots;
    pid_t checking; // the process of its check; 0: none
    bool is_there;  // it passed its last check, or there is none
} HostEntry;

typedef struct {
    HostEntry *items;
    int count;         // 0: without --hosts
    const char *check; // --host-check, or NULL
    double began_s;    // of the checks
} Hosts;

// Reads "a,b:4,c:4".   ERR_USAGE
Status hosts_open(Hosts *hosts, const Options *options, const RunCommand *command);
void hosts_close(Hosts *hosts);
// Fails where the hosts have no room for the ranks and `spares` hosts more (INT_UNSET: none).   ERR_CONFIG
Status hosts_suffice(const Hosts *hosts, int ranks, int spares);
// Starts the check of every host, which have ten seconds. Without --host-check all hosts are there.
void hosts_begin_check(Hosts *hosts);
// A process has ended: does nothing where it was none of the checks.
void hosts_reaped(Hosts *hosts, pid_t pid, int wait_status);
bool hosts_are_known(Hosts *hosts); // whether all checks have ended; ends those that are late
// The ranks that the hosts take which may be used now; `struck`: also those that have failed twice.
int hosts_slots(const Hosts *hosts, const StartEnding *endings, int count, bool struck);
// Adds as many of them as `ranks` need, "a:4,b:4"; those that have failed twice only where the others do not suffice.
void hosts_list(const Hosts *hosts, const StartEnding *endings, int count, int ranks, Text *out);
// Names the host of a rank, where the ranks fill the hosts of `list`, "a:4,b:4", in this order. A name that is in the
// list already stays.
void host_of_rank(const char *list, int rank, char host[BEAT_HOST]);
