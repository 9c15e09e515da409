// Sends and receives the few words by which a job ends.
#include "comm/star.h"
#include "base/rank.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TEXT = 1024 };
#define WRITE_S 1.0

typedef enum {
    LEAVES,    // a rank has come to its end
    ALL_LEAVE, // all have
    ABORTS,    // because of `rank`
} WordKind;

typedef struct {
    uint32_t kind;
    int32_t rank, status;
    char text[MAX_TEXT];
} Word;

typedef struct {
    Watched watched;
    Star *star;
    int peer, fd;
    size_t got;
    Word word;
    bool left;
    Status status; // with which it has left
    char text[MAX_TEXT];
} Link;

struct Star {
    int rank, size;
    Post *post;
    Link *links; // [size] of rank 0: to the others; else the first one, to rank 0
    bool aborts, ended;
    Word end; // ALL_LEAVE
};

static bool say(const Link *link, const Word *word) {
    return link->fd < 0 || socket_write(link->fd, word, sizeof *word, clock_s() + WRITE_S);
}

static void say_to_all(const Star *star, const Word *word, int but) {
    for (int r = 0; r < star->size; r++)
        if (r != but) (void)say(&star->links[r], word);
}

void star_abort(Star *star, int status) {
    if (star->aborts) return;
    star->aborts = true;
    say_to_all(star, &(Word){.kind = ABORTS, .rank = star->rank, .status = status}, star->rank);
}

// ---- what others say --------------------------------------------------------------------------------------

// Ends this rank because of another; rank 0 passes it on.
static _Noreturn void end_because_of(Star *star, int rank, int status, const char *what) {
    char who[64];
    if (status != ERR_HANG) rank_blame(rank); // who tells of a hang has waited for another
    rank_describe(rank_current(), who, sizeof who);
    if (star->rank == 0 && !star->aborts)
        say_to_all(star, &(Word){.kind = ABORTS, .rank = rank, .status = status}, rank);
    star->aborts = true;
    fprintf(stderr, "trireme: %s%srank %d %s: the job ends with status %d\n", who, *who ? " " : "", rank,
            what, status);
    rank_abort_job(status);
}

static void hear(Link *link) {
    Star *star = link->star;
    const Word *word = &link->word;
    switch ((WordKind)word->kind) {
    case LEAVES:
        link->left = true;
        link->status = (Status)word->status;
        memcpy(link->text, word->text, sizeof link->text);
        link->text[MAX_TEXT - 1] = 0;
        break;
    case ALL_LEAVE:
        star->ended = true;
        star->end = *word;
        star->end.text[MAX_TEXT - 1] = 0;
        break;
    case ABORTS: end_because_of(star, word->rank, word->status, "has failed");
    }
}

static void link_ready(Watched *self, uint32_t events) {
    Link *link = (Link *)self;
    (void)events;
    if (link->fd < 0) return;
    if (socket_read_some(link->fd, &link->word, sizeof link->word, &link->got)) {
        if (link->got < sizeof link->word) return;
        link->got = 0;
        hear(link);
        return;
    }
    int error = errno;
    close(link->fd);
    link->fd = -1;
    if (link->left || link->star->ended) return;
    char what[160];
    snprintf(what, sizeof what,
             "ended without saying why (%s): it was killed, or its machine or the network failed",
             error ? strerror(error) : "its connection was closed");
    end_because_of(link->star, link->peer, ERR_OS, what);
}

// ---- the end ----------------------------------------------------------------------------------------------

static bool all_have_left(const Star *star) {
    for (int r = 1; r < star->size; r++)
        if (!star->links[r].left) return false;
    return true;
}

// Rank 0: what is said to all.
static void conclude(Star *star, Status mine) {
    Word *end = &star->end;
    *end = (Word){.kind = ALL_LEAVE, .rank = -1, .status = (int32_t)mine};
    if (mine != OK) {
        end->rank = 0;
        snprintf(end->text, sizeof end->text, "%s", fail_message());
    }
    for (int r = 1; r < star->size; r++) {
        const Link *link = &star->links[r];
        if ((int32_t)link->status > end->status) end->status = (int32_t)link->status;
        if (link->status == OK || end->rank >= 0) continue;
        end->rank = r;
        memcpy(end->text, link->text, sizeof end->text);
    }
    say_to_all(star, end, 0);
    star->ended = true;
}

Status star_leave(Star *star, Status mine) {
    double deadline_s = clock_s() + LEAVE_GRACE_S;
    Word word = {.kind = LEAVES, .rank = star->rank, .status = (int32_t)mine};
    snprintf(word.text, sizeof word.text, "%s", mine == OK ? "" : fail_message());
    if (star->rank) (void)say(&star->links[0], &word);
    while (!star->ended) {
        if (star->rank == 0 && all_have_left(star)) conclude(star, mine);
        if (!star->ended) post_poll(star->post, 0.05);
        if (!star->ended && mine != OK && clock_s() > deadline_s) abort_after_error(mine);
    }
    return star->end.status == OK ? OK : fail((Status)star->end.status, "%s", star->end.text);
}

// ---- open, close ------------------------------------------------------------------------------------------

Star *star_open(int rank, int size, Meeting *meeting, Post *post) {
    Star *star = comm_allocate(1, sizeof *star);
    *star =
        (Star){.rank = rank, .size = size, .post = post, .links = comm_allocate((size_t)size, sizeof(Link))};
    for (int r = 0; r < size; r++) {
        star->links[r] = (Link){.watched = {link_ready}, .star = star, .peer = r, .fd = meeting->links[r]};
        meeting->links[r] = -1;
        if (star->links[r].fd >= 0) post_watch(post, star->links[r].fd, &star->links[r].watched);
    }
    return star;
}

void star_close(Star *star) {
    if (!star) return;
    for (int r = 0; r < star->size; r++)
        if (star->links[r].fd >= 0) close(star->links[r].fd);
    free(star->links);
    free(star);
}
