// Holds the table of the kinds of schedules, answers questions about a kind, and makes a schedule of one.
#include "layout/kinds.h"
#include "layout/parts.h"
#include "layout/walk.h"
#include <stdio.h>
#include <string.h>

#define KIND(name) extern const ScheduleKind kind_##name;
#include "layout/kinds.def"
#undef KIND

const ScheduleKind *const schedule_kinds[] = {
#define KIND(name) &kind_##name,
#include "layout/kinds.def"
#undef KIND
};
const int num_schedule_kinds = sizeof schedule_kinds / sizeof schedule_kinds[0];

const ScheduleKind *schedule_kind(const char *name) {
    for (int i = 0; i < num_schedule_kinds; i++)
        if (!strcmp(schedule_kinds[i]->name, name)) return schedule_kinds[i];
    return NULL;
}

static bool takes_chunks(const ScheduleKind *kind, int chunks) {
    return chunks >= kind->min_chunks && chunks <= kind->max_chunks;
}

const ScheduleKind *schedule_kind_default(int chunks) {
    const ScheduleKind *best = NULL;
    for (int i = 0; i < num_schedule_kinds; i++) {
        const ScheduleKind *kind = schedule_kinds[i];
        if (!kind->is_default || kind->min_chunks > chunks) continue;
        if (!best || kind->min_chunks > best->min_chunks) best = kind;
    }
    CHECK(best, "no default kind of schedule takes %d chunks", chunks);
    return best;
}

void schedule_kind_names(unsigned settings, const char *separator, Text *out) {
    for (int i = 0, count = 0; i < num_schedule_kinds; i++)
        if (!settings || schedule_kinds[i]->settings & settings)
            text_add(out, "%s%s", count++ ? separator : "", schedule_kinds[i]->name);
}

const ScheduleKind *schedule_kind_paired(void) {
    int i = 0;
    while (!schedule_kinds[i]->pairs) i++;
    return schedule_kinds[i];
}

int schedule_kind_chunks(const ScheduleKind *kind) {
    return kind->min_chunks == kind->max_chunks ? kind->min_chunks : 0;
}

// ---- what a kind refuses ----------------------------------------------------------------------------------

static const char *refuse_chunks(const ScheduleKind *kind, int chunks, char *why, size_t size) {
    int least = kind->min_chunks, most = kind->max_chunks;
    const char *other = schedule_kind_default(chunks)->name;
    if (least == most)
        snprintf(why, size, "takes %d chunk%s per pipeline rank, not %d; %s takes %s", least,
                 least > 1 ? "s" : "", chunks, other, chunks > 1 ? "several" : "one");
    else if (chunks < least)
        snprintf(why, size, "needs %d or more chunks per pipeline rank, not %d; %s takes one", least, chunks,
                 other);
    else
        snprintf(why, size, "takes up to %d chunks per pipeline rank, not %d", most, chunks);
    return why;
}

static const char *refuse_ranks(const ScheduleKind *kind, int ranks, char *why, size_t size) {
    snprintf(why, size, "needs %d or more pipeline ranks, not %d; %s takes one", kind->min_ranks, ranks,
             schedule_kind_default(1)->name);
    return why;
}

const char *schedule_kind_refuse(const ScheduleKind *kind, const ScheduleSpec *spec, char *why, size_t size) {
    if (!takes_chunks(kind, spec->chunks)) return refuse_chunks(kind, spec->chunks, why, size);
    if (spec->ranks < kind->min_ranks) return refuse_ranks(kind, spec->ranks, why, size);
    return kind->refuse ? kind->refuse(spec, why, size) : NULL;
}

// ---- facts ------------------------------------------------------------------------------------------------

int schedule_kind_stage(const ScheduleKind *kind, const ScheduleSpec *spec, int rank, int chunk) {
    return kind->stage ? kind->stage(spec, rank, chunk) : chunk * spec->ranks + rank;
}

int schedule_kind_stash(const ScheduleKind *kind, const ScheduleSpec *spec, int rank) {
    int all = spec->microbatches * spec->chunks, most = kind->stash ? kind->stash(spec, rank) : all;
    return most < all ? most : all;
}

double schedule_kind_window(const ScheduleKind *kind, const ScheduleSpec *spec) {
    return kind->window ? kind->window(spec) : 1;
}

// ---- create -------------------------------------------------------------------------------------------

static Status find_kind(const char *name, const ScheduleKind **kind) {
    *kind = schedule_kind(name);
    if (*kind) return OK;
    Text known = {0};
    schedule_kind_names(0, ", ", &known);
    Status status = fail(ERR_CONFIG, "schedule %s is not one of %s", name, text_string(&known));
    text_free(&known);
    return status;
}

static Status sizes_allowed(const ScheduleSpec *spec) {
    int ranks = spec->ranks, chunks = spec->chunks, microbatches = spec->microbatches;
    if (ranks < 1 || ranks > SCHEDULE_MAX_RANKS)
        return fail(ERR_CONFIG, "schedule: %d pipeline ranks, 1 to %d are possible", ranks,
                    SCHEDULE_MAX_RANKS);
    if (chunks < 1 || chunks > SCHEDULE_MAX_CHUNKS)
        return fail(ERR_CONFIG, "schedule: %d chunks per rank, 1 to %d are possible", chunks,
                    SCHEDULE_MAX_CHUNKS);
    if (microbatches < 1 || microbatches > SCHEDULE_MAX_MICROBATCHES)
        return fail(ERR_CONFIG, "schedule: %d microbatches, 1 to %d are possible", microbatches,
                    SCHEDULE_MAX_MICROBATCHES);
    if ((int64_t)ranks * chunks * microbatches > SCHEDULE_MAX_FORWARDS)
        return fail(ERR_CONFIG,
                    "schedule: %d ranks x %d chunks x %d microbatches, at most %d in all are possible", ranks,
                    chunks, microbatches, SCHEDULE_MAX_FORWARDS);
    if (spec->receive_ahead < 0)
        return fail(ERR_CONFIG, "schedule: receives %d computes ahead, 0 or more are possible",
                    spec->receive_ahead);
    return OK;
}

// Places the stages as the kind says.
static void place_stages(const ScheduleKind *kind, const ScheduleSpec *spec, Schedule *schedule) {
    int v = spec->chunks, stages = spec->ranks * v;
    for (int place = 0; place < stages; place++)
        schedule->stage[place] = schedule_kind_stage(kind, spec, place / v, place % v);
    for (int stage = 0; stage < stages; stage++) schedule->stage_place[stage] = -1;
    for (int place = 0; place < stages; place++) {
        int stage = schedule->stage[place];
        CHECK(stage >= 0 && stage < stages && schedule->stage_place[stage] < 0, "stage %d at place %d", stage,
              place);
        schedule->stage_place[stage] = place;
    }
}

Status schedule_order(Schedule *schedule, const ScheduleSpec *spec) {
    *schedule = (Schedule){0};
    const ScheduleKind *kind;
    char why[256];
    TRY(find_kind(spec->kind, &kind));
    TRY(sizes_allowed(spec));
    if (schedule_kind_refuse(kind, spec, why, sizeof why))
        return fail(ERR_CONFIG, "schedule %s %s", kind->name, why);
    schedule_shape(schedule, spec->ranks, spec->chunks, spec->microbatches);
    place_stages(kind, spec, schedule);
    kind->generate(spec, schedule);
    return OK;
}

Status schedule_create(Schedule *schedule, const ScheduleSpec *spec) {
    TRY(schedule_order(schedule, spec));
    schedule_lower(schedule, spec->receive_ahead);
    Status proved = schedule_prove(schedule);
    CHECK(proved == OK, "%s of %d ranks, %d chunks, %d microbatches: %s", spec->kind, spec->ranks,
          spec->chunks, spec->microbatches, fail_message());
    return OK;
}
