// The life of a post, its lists and its polls.
#include "base/rank.h"
#include "comm/post_parts.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Polls without a wait are no nearer to each other. A broken connection is the other rank's end, of which rank 0 says
// more, unless it says nothing for so long.
#define POLL_GAP_S    5e-6
#define BROKEN_WAIT_S 3.0

// ---- lists ------------------------------------------------------------------------------------------------

void parcels_append(Parcels *list, Parcel *parcel) {
    parcel->next = NULL;
    *list->end = parcel;
    list->end = &parcel->next;
}

static Parcel *take(Parcels *list, Parcel **at) {
    Parcel *parcel = *at;
    *at = parcel->next;
    if (list->end == &parcel->next) list->end = at;
    return parcel;
}

Parcel *parcels_take(Parcels *list, uint64_t group, int tag) {
    for (Parcel **at = &list->first; *at; at = &(*at)->next)
        if ((*at)->group == group && (*at)->tag == tag) return take(list, at);
    return NULL;
}

Parcel *parcels_take_numbered(Parcels *list, uint64_t number) {
    for (Parcel **at = &list->first; *at; at = &(*at)->next)
        if ((*at)->number == number) return take(list, at);
    return NULL;
}

Parcel *parcel_new(Post *post) {
    Parcel *parcel = post->free_parcels;
    if (!parcel) return comm_allocate(1, sizeof *parcel);
    post->free_parcels = parcel->next;
    *parcel = (Parcel){0};
    return parcel;
}

void parcel_free(Post *post, Parcel *parcel) {
    parcel->next = post->free_parcels;
    post->free_parcels = parcel;
}

void parcel_finish(Post *post, Parcel *parcel) {
    parcel->done = true;
    post->moves++;
}

// ---- connections ------------------------------------------------------------------------------------------

void watch_socket(Post *post, int fd, Watched *watched, uint32_t events, int how) {
    struct epoll_event event = {.events = events, .data.ptr = watched};
    CHECK(epoll_ctl(post->epoll, how, fd, &event) == 0, "cannot watch a connection: %s", strerror(errno));
}

void break_off(Post *post, int peer, int *fd, int error) {
    close(*fd);
    *fd = -1;
    if (post->peers[peer].broken_s > 0) return;
    post->peers[peer].broken_s = clock_s();
    post->peers[peer].error = error;
}

// ---- polls ------------------------------------------------------------------------------------------------

void post_poll(Post *post, double seconds) {
    enum { EVENTS = 64 };
    struct epoll_event events[EVENTS];
    double now = clock_s();
    bool waits = seconds > 0 && post->moves == post->moves_seen;
    if (!waits && now - post->polled_s < POLL_GAP_S) return;
    int count = epoll_wait(post->epoll, events, EVENTS, waits ? (int)(1000 * seconds) : 0);
    bool knocks = false;
    for (int i = 0; i < count; i++) {
        Watched *watched = events[i].data.ptr;
        knocks |= watched == &post->door;
        if (watched != &post->door) watched->ready(watched, events[i].events);
    }
    // Last: it may dismiss a stranger, whose event comes before.
    if (knocks || post->full) door_ready(&post->door, EPOLLIN);
    post->polled_s = clock_s();
    if (seconds > 0) post->moves_seen = post->moves;
}

static void check_connection(const Post *post, int peer) {
    const Peer *p = &post->peers[peer];
    if (p->broken_s <= 0 || clock_s() < p->broken_s + BROKEN_WAIT_S) return;
    Text where = {0};
    address_print(&post->meeting->attendees[peer].address, &where);
    fail(ERR_OS, "the connection to rank %d at %s is broken: %s", peer, text_string(&where),
         strerror(p->error));
    abort_after_error(ERR_OS);
}

MailState post_test(Post *post, Mail *mail, size_t *bytes) {
    Parcel *parcel = (Parcel *)*mail;
    if (!parcel->done) post_poll(post, 0);
    if (!parcel->done) {
        check_connection(post, parcel->peer);
        bool moved = parcel->moved != parcel->seen;
        parcel->seen = parcel->moved;
        return moved ? MAIL_MOVED : MAIL_STUCK;
    }
    bool fits = parcel->got <= parcel->bytes;
    *bytes = parcel->got;
    parcel_free(post, parcel);
    *mail = MAIL_NONE;
    return fits ? MAIL_DONE : MAIL_TOO_LONG;
}

// ---- open, close ------------------------------------------------------------------------------------------

void post_watch(Post *post, int fd, Watched *watched) {
    watch_socket(post, fd, watched, EPOLLIN, EPOLL_CTL_ADD);
}

Post *post_open(int rank, int size, Meeting *meeting) {
    Post *post = comm_allocate(1, sizeof *post);
    *post = (Post){.rank = rank, .size = size, .meeting = meeting, .max_strangers = MAX_STRANGERS};
    post->epoll = epoll_create1(EPOLL_CLOEXEC);
    CHECK(post->epoll >= 0, "no epoll: %s", strerror(errno));
    post->peers = comm_allocate((size_t)size, sizeof *post->peers);
    for (int r = 0; r < size; r++) {
        Peer *p = &post->peers[r];
        p->out =
            (OutLane){.watched = {out_lane_ready}, .post = post, .peer = r, .fd = -1, .end = &p->out.first};
        p->in = (InLane){.watched = {in_lane_ready}, .post = post, .peer = r, .fd = -1};
        p->wanted.end = &p->wanted.first;
        p->kept.end = &p->kept.first;
        p->awaiting.end = &p->awaiting.first;
    }
    post->door.ready = door_ready;
    post_watch(post, meeting->listener, &post->door);
    return post;
}

static void free_parcels(Parcel *first) {
    for (Parcel *next; first; first = next) {
        next = first->next;
        free(first);
    }
}

static void close_peer(Peer *p) {
    if (p->out.fd >= 0) close(p->out.fd);
    if (p->in.fd >= 0) close(p->in.fd);
    for (Frame *f = p->out.first, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    for (Parcel *kept = p->kept.first; kept; kept = kept->next)
        if (!kept->here) free(kept->data);
    free_parcels(p->wanted.first);
    free_parcels(p->kept.first);
    free_parcels(p->awaiting.first);
}

void post_close(Post *post) {
    if (!post) return;
    for (int r = 0; r < post->size; r++) close_peer(&post->peers[r]);
    strangers_close(post);
    for (Frame *f = post->free_frames, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    free_parcels(post->free_parcels);
    close(post->epoll);
    free(post->peers);
    free(post);
}
