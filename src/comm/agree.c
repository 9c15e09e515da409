// Agreement between the ranks of a group: whether all of them succeeded, and whether values that must be the same are.
#include "comm/comm.h"
#include "comm/queue.h"
#include <stdlib.h>
#include <string.h>

// ---- one status for all ---------------------------------------------------------------------------------

// What the first failing rank says to all.
typedef struct {
    int blamed; // a rank of the job
    char text[sizeof((Rank *)0)->message];
} Finding;

// A message that was agreed before names its rank already.
static void compose(Finding *found, int others) {
    char who[64], *text = found->text;
    size_t size = sizeof found->text;
    rank_describe(rank_current(), who, sizeof who);
    const char *message = fail_message();
    bool agreed = !strncmp(message, "[rank", 5);
    if (agreed && rank_current()->blamed) found->blamed = rank_current()->blamed - 1;
    if (agreed)
        snprintf(text, size, "%s", message);
    else if (others)
        snprintf(text, size, "%s%s%s (and %d other rank%s failed)", who, *who ? " " : "", message, others,
                 others > 1 ? "s" : "");
    else
        snprintf(text, size, "%s%s%s", who, *who ? " " : "", message);
}

Status comm_agree(Comm *comm, Status mine) {
    int size = comm_size(comm), first = -1, failed = 0;
    int *all = comm_allocate((size_t)size, sizeof *all), status = (int)mine, worst = OK;
    comm_all_gather_host(comm, &status, all, sizeof status);
    for (int i = size - 1; i >= 0; i--) {
        if (all[i] == OK) continue;
        first = i, failed++;
        if (all[i] > worst) worst = all[i];
    }
    free(all);
    if (first < 0) return OK;
    Finding found = {.blamed = comm->group->members[first]};
    if (first == comm_rank(comm)) compose(&found, failed - 1);
    comm_broadcast_host(comm, &found, sizeof found, first);
    rank_blame(found.blamed);
    return fail((Status)worst, "%s", found.text);
}

// ---- the same text on all -------------------------------------------------------------------------------

typedef struct {
    const char *name, *value; // in a text of lines
    int name_size, value_size;
    size_t size; // with the end of the line; 0: the text has ended
} Line;

static Line line_at(const char *text) {
    size_t size = strcspn(text, "\n"), name = strcspn(text, "\t\n");
    const char *value = text + name + (text[name] == '\t');
    return (Line){text, value, (int)name, (int)(text + size - value), size + (text[size] == '\n')};
}

static bool same(const char *a, int a_size, const char *b, int b_size) {
    return a_size == b_size && !memcmp(a, b, (size_t)a_size);
}

static bool same_name(Line a, Line b) { return same(a.name, a.name_size, b.name, b.name_size); }
static bool same_value(Line a, Line b) { return same(a.value, a.value_size, b.value, b.value_size); }

// At most SHOWN characters of a value are printed: its beginning, or a part that begins BEFORE characters ahead of the
// first difference.
enum { SHOWN = 160, BEFORE = 40 };

static void add_value(Text *out, Line line, int difference) {
    int from = difference > SHOWN - BEFORE ? difference - BEFORE : 0, left = line.value_size - from;
    text_add(out, "%s%.*s%s", from ? "..." : "", left > SHOWN ? SHOWN : left, line.value + from,
             left > SHOWN ? "..." : "");
}

static int common_start(Line a, Line b) {
    int i = 0;
    while (i < a.value_size && i < b.value_size && a.value[i] == b.value[i]) i++;
    return i;
}

// A line that only one of the two ranks has: their programs make different lists.
static Status differ(int rank, Line first, Line mine) {
    Text text = {0};
    int difference = same_name(first, mine) ? common_start(first, mine) : 0;
    Line named = first.size ? first : mine;
    text_add(&text, "%.*s is ", named.name_size, named.name);
    add_value(&text, first, difference);
    text_add(&text, " on rank 0 and ");
    if (same_name(first, mine))
        add_value(&text, mine, difference);
    else
        text_add(&text, "missing");
    Status status = fail(ERR_CONFIG, "%s on rank %d: it must be the same on all ranks of a run",
                         text_string(&text), rank);
    text_free(&text);
    return status;
}

static Status compare(int rank, const char *first, const char *mine) {
    Line a = line_at(first), b = line_at(mine);
    for (; a.size || b.size; a = line_at(a.name + a.size), b = line_at(b.name + b.size))
        if (!same_name(a, b) || !same_value(a, b)) return differ(rank, a, b);
    return OK;
}

Status comm_compare(Comm *world, const char *lines) {
    uint64_t size = strlen(lines) + 1;
    comm_broadcast_host(world, &size, sizeof size, 0);
    char *first = comm_allocate(size, 1);
    if (comm_rank(world) == 0) memcpy(first, lines, size);
    comm_broadcast_host(world, first, size, 0);
    Status status = compare(comm_rank(world), first, lines);
    free(first);
    return comm_agree(world, status);
}
