// The hosts of --hosts: how many ranks each takes, and which may be used now. Internal to supervise/.
#pragma once
#include "supervise/supervise.h"

typedef struct {
    char *name;
    int slots;
} HostEntry;

typedef struct {
    HostEntry *items;
    int count;         // 0: without --hosts
    const char *check; // --host-check, or NULL
} Hosts;

// Reads "a,b:4,c:4".   ERR_USAGE
Status hosts_open(Hosts *hosts, const Options *options, const RunCommand *command);
void hosts_close(Hosts *hosts);
// Fails where the hosts have no room for the ranks and `spares` hosts more (INT_UNSET: none).   ERR_CONFIG
Status hosts_suffice(const Hosts *hosts, int ranks, int spares);
// The ranks that the hosts take which may be used now; `struck`: also those that have failed twice.
int hosts_slots(const Hosts *hosts, const StartEnding *endings, int count, bool struck);
// Adds as many of them as `ranks` need, "a:4,b:4"; those that have failed twice only where the others do not suffice.
void hosts_list(const Hosts *hosts, const StartEnding *endings, int count, int ranks, Text *out);
