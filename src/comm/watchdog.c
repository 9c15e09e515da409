// Ends a job that hangs, and says which rank waits for whom, in which operation, at which instruction.
#include "comm/queue.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

WaitTime wait_time_start(void) { return (WaitTime){.last_s = clock_s()}; }

double wait_time_add(WaitTime *time) {
    double now_s = clock_s(), passed_s = now_s - time->last_s;
    double added_s = passed_s < POLL_S ? passed_s : POLL_S;
    time->waited_s += added_s;
    time->last_s = now_s;
    return added_s;
}

double watchdog_limit_s(const World *world) {
    return world->timeout_s > 0 ? world->timeout_s : world->options->timeout_s;
}

static void add_operation(const CommRequest *r, Text *text) {
    text_add(text, " %s", comm_op_name(r->call.op));
    if (is_message(&r->call)) text_add(text, " on channel %d", r->call.channel);
    text_add(text, " of %s", r->lane->group->name);
}

// Of several ranks it is not known which one the others wait for.
static void blame_one(const char *ranks) {
    char *end;
    long rank = strtol(ranks, &end, 10);
    rank_blame(end > ranks && !*end ? (int)rank : -1);
}

// The host waits until others have done their part of an operation.
static void describe_call(const CommRequest *r, Text *text) {
    Group *group = r->lane->group;
    Text ranks = {0};
    if (r->started) group->transport->waits_for(group, &r->call, r->op, &ranks);
    blame_one(text_string(&ranks));
    text_add(text, r->started ? " for rank%s in" : " for its device%s to reach", text_string(&ranks));
    add_operation(r, text);
    text_free(&ranks);
}

// The host waits for its device, where an operation has not ended since it was posted.
static void describe_running(const CommRequest *r, Text *text) {
    const Group *group = r->lane->group;
    text_add(text, " for its device, for rank");
    for (int i = 0; i < group->size; i++)
        if (is_message(&r->call) ? i == r->call.peer : i != group->rank)
            text_add(text, " %d", group->members[i]);
    text_add(text, " in");
    add_operation(r, text);
    text_add(text, *r->doing ? ", which was posted at %s and does not end" : ", which does not end",
             r->doing);
}

_Noreturn void watchdog_hang(World *world, const CommRequest *r, double waited_s) {
    const Rank *me = rank_current();
    char who[64];
    rank_describe(me, who, sizeof who);
    Text text = {0};
    text_add(&text, "trireme: hang: %s%shas waited %.3g s%s%s", who, *who ? " " : "", waited_s,
             *me->doing ? " at " : "", me->doing);
    if (r->done)
        describe_running(r, &text);
    else
        describe_call(r, &text);
    const char *reason = world->timeout_reason;
    text_add(&text, " (limit %.3g s%s%s; --distributed-timeout-minutes sets another)",
             watchdog_limit_s(world), reason ? ": " : "", reason ? reason : "");
    fprintf(stderr, "%s\n", text_string(&text));
    text_free(&text);
    rank_dump_events(me);
    Group *group = world->comm.group;
    if (group->transport->report) group->transport->report(group);
    sleep(1); // the other ranks' watchdogs are about to print as well
    rank_abort_job(ERR_HANG);
}
