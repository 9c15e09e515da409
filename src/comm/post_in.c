// Receives the messages of a post: which receive a frame belongs to, and who may send any.
#include "comm/post_parts.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_AT_ONCE = 4 << 20, // of one connection, before the next has its turn
    DISCARD_BYTES = 4096,
};
#define STRANGER_S 10.0 // a stranger may stay for so long where others wait

// Both are of this rank. The sender's memory is read when there is a receive, and no sooner.
static void deliver_here(Post *post, Parcel *wanted, Parcel *sent) {
    size_t fits = sent->bytes < wanted->bytes ? sent->bytes : wanted->bytes;
    if (fits) memcpy(wanted->data, sent->data, fits);
    wanted->got = sent->bytes;
    parcel_finish(post, wanted);
    parcel_finish(post, sent);
}

void send_here(Post *post, Parcel *sent) {
    Parcel *wanted = parcels_take(&post->peers[post->rank].wanted, sent->group, sent->tag);
    sent->here = true;
    if (wanted)
        deliver_here(post, wanted, sent);
    else
        parcels_append(&post->peers[post->rank].kept, sent);
}

static void allow(Post *post, Parcel *wanted, const Parcel *announced) {
    wanted->got = announced->got;
    wanted->number = ++post->next_number;
    parcels_append(&post->peers[wanted->peer].awaiting, wanted);
    send_frame(post, wanted->peer,
               (FrameHead){.kind = ALLOW, .number = announced->number, .other = wanted->number}, NULL, NULL);
}

// A message that is kept goes to the receive that wants it.
static void hand_over(Post *post, Parcel *wanted, Parcel *kept) {
    if (kept->here) {
        deliver_here(post, wanted, kept);
        return;
    }
    if (kept->announced) {
        allow(post, wanted, kept);
    } else {
        wanted->got = kept->got;
        size_t fits = kept->got < wanted->bytes ? kept->got : wanted->bytes;
        if (fits) memcpy(wanted->data, kept->data, fits);
        free(kept->data);
        parcel_finish(post, wanted);
    }
    parcel_free(post, kept);
}

Mail post_recv(Post *post, uint64_t group, void *to, size_t bytes, int from, int tag) {
    Parcel *parcel = parcel_new(post), *kept;
    *parcel = (Parcel){.group = group, .tag = tag, .peer = from, .data = to, .bytes = bytes};
    if ((kept = parcels_take(&post->peers[from].kept, group, tag)))
        hand_over(post, parcel, kept);
    else
        parcels_append(&post->peers[from].wanted, parcel);
    return (Mail)parcel;
}

// A message without a receive: its bytes, or its announcement, are kept.
static Parcel *keep(Post *post, const FrameHead *head, int from) {
    Parcel *parcel = parcel_new(post);
    *parcel = (Parcel){.group = head->group, .tag = head->tag, .peer = from, .got = head->bytes};
    parcel->announced = head->kind == ANNOUNCE;
    parcel->coming = !parcel->announced;
    parcel->number = head->number;
    if (parcel->coming) parcel->data = comm_allocate(head->bytes, 1), parcel->bytes = head->bytes;
    return parcel;
}

// All bytes of the message of the lane are here.
static void end_message(InLane *in) {
    Post *post = in->post;
    Peer *peer = &post->peers[in->peer];
    Parcel *parcel = in->parcel, *wanted;
    in->parcel = NULL;
    if (!parcel->coming) {
        parcel_finish(post, parcel);
        return;
    }
    parcel->coming = false;
    post->moves++;
    wanted = parcels_take(&peer->wanted, parcel->group, parcel->tag);
    if (wanted)
        hand_over(post, wanted, parcel);
    else
        parcels_append(&peer->kept, parcel);
}

static void begin_bytes(InLane *in, Parcel *parcel) {
    in->parcel = parcel;
    in->left = parcel->got = in->head.bytes;
    if (!in->left) end_message(in);
}

// An announced message that may be sent: its bytes follow.
static void send_content(Post *post, const FrameHead *head, int to) {
    Parcel *parcel = parcels_take_numbered(&post->peers[to].awaiting, head->number);
    CHECK(parcel, "rank %d allows a message that was not announced to it", to);
    send_frame(post, to, (FrameHead){.kind = CONTENT, .bytes = parcel->bytes, .number = head->other},
               parcel->data, parcel);
}

static void take_head(InLane *in) {
    Post *post = in->post;
    Peer *peer = &post->peers[in->peer];
    const FrameHead *head = &in->head;
    Parcel *parcel;
    in->head_got = 0;
    CHECK(head->kind < NUM_KINDS && (head->kind != MESSAGE || head->bytes <= AT_ONCE_BYTES),
          "rank %d has sent what is no message", in->peer);
    switch ((FrameKind)head->kind) {
    case MESSAGE:
        parcel = parcels_take(&peer->wanted, head->group, head->tag);
        if (!parcel) parcel = keep(post, head, in->peer);
        begin_bytes(in, parcel);
        break;
    case ANNOUNCE:
        parcel = parcels_take(&peer->wanted, head->group, head->tag);
        if (parcel)
            allow(post, parcel, &(Parcel){.got = head->bytes, .number = head->number});
        else
            parcels_append(&peer->kept, keep(post, head, in->peer));
        post->moves++;
        break;
    case ALLOW: send_content(post, head, in->peer); break;
    case CONTENT:
        parcel = parcels_take_numbered(&peer->awaiting, head->number);
        CHECK(parcel && parcel->got == head->bytes, "rank %d has sent what is not awaited", in->peer);
        begin_bytes(in, parcel);
        break;
    case NUM_KINDS: break;
    }
}

// What does not fit into the memory of a receive is read and lost: the one who tests it is told the size.
static ssize_t read_bytes(InLane *in) {
    char discarded[DISCARD_BYTES];
    Parcel *parcel = in->parcel;
    size_t at = parcel->got - in->left;
    if (at >= parcel->bytes)
        return recv(in->fd, discarded, in->left < sizeof discarded ? in->left : sizeof discarded, 0);
    size_t room = parcel->bytes - at;
    return recv(in->fd, parcel->data + at, in->left < room ? in->left : room, 0);
}

void in_lane_ready(Watched *self, uint32_t events) {
    InLane *in = (InLane *)self;
    (void)events;
    for (size_t taken = 0; taken < READ_AT_ONCE && in->fd >= 0;) {
        ssize_t n = in->parcel
                        ? read_bytes(in)
                        : recv(in->fd, (char *)&in->head + in->head_got, sizeof in->head - in->head_got, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            break_off(in->post, in->peer, &in->fd, n < 0 ? errno : ECONNRESET);
            return;
        }
        taken += (size_t)n;
        if (in->parcel) {
            in->left -= (size_t)n;
            in->parcel->moved += (size_t)n;
            if (!in->left) end_message(in);
        } else if ((in->head_got += (size_t)n) == sizeof in->head) {
            take_head(in);
        }
    }
}

// ---- strangers --------------------------------------------------------------------------------------------

static void forget_stranger(Post *post, Stranger *stranger) {
    for (int i = 0; i < post->num_strangers; i++)
        if (post->strangers[i] == stranger) {
            post->num_strangers--;
            memmove(post->strangers + i, post->strangers + i + 1,
                    (size_t)(post->num_strangers - i) * sizeof *post->strangers);
        }
    free(stranger);
}

static void dismiss(Stranger *stranger) {
    close(stranger->fd);
    forget_stranger(stranger->post, stranger);
}

// Who knows the secret of the job is the rank that it says, if that is none that is here already.
static void welcome(Stranger *stranger) {
    Post *post = stranger->post;
    uint32_t rank = stranger->greeting.rank;
    if (memcmp(stranger->greeting.secret, post->meeting->secret, SECRET_BYTES) != 0 ||
        rank >= (uint32_t)post->size || post->peers[rank].in.fd >= 0) {
        dismiss(stranger);
        return;
    }
    InLane *in = &post->peers[rank].in;
    in->fd = stranger->fd;
    watch_socket(post, in->fd, &in->watched, EPOLLIN, EPOLL_CTL_MOD);
    forget_stranger(post, stranger);
    in_lane_ready(&in->watched, EPOLLIN);
}

static void stranger_ready(Watched *self, uint32_t events) {
    Stranger *stranger = (Stranger *)self;
    (void)events;
    Greeting *greeting = &stranger->greeting;
    bool there = socket_read_some(stranger->fd, greeting, sizeof *greeting, &stranger->got);
    size_t known = stranger->got < sizeof greeting->magic ? stranger->got : sizeof greeting->magic;
    if (!there || memcmp(greeting->magic, GREETING_MAGIC, known) != 0)
        dismiss(stranger);
    else if (stranger->got == sizeof *greeting)
        welcome(stranger);
}

// A rank of the job says at once who it is: only those that have been silent for long make room. False: there is none.
static bool make_room(Post *post) {
    if (post->num_strangers < post->max_strangers) return true;
    if (clock_s() < post->strangers[0]->since_s + STRANGER_S) return false;
    dismiss(post->strangers[0]);
    return true;
}

// While there is no room those that connect wait in the system's queue, and the polls do not return for them.
static void set_full(Post *post, bool full) {
    if (post->full != full)
        watch_socket(post, post->meeting->listener, &post->door, full ? 0 : EPOLLIN, EPOLL_CTL_MOD);
    post->full = full;
}

void door_ready(Watched *self, uint32_t events) {
    Post *post = (Post *)((char *)self - offsetof(Post, door));
    bool room;
    (void)events;
    for (int fd; (room = make_room(post)) && (fd = socket_accept(post->meeting->listener)) >= 0;) {
        Stranger *stranger = comm_allocate(1, sizeof *stranger);
        *stranger = (Stranger){.watched = {stranger_ready}, .post = post, .fd = fd, .since_s = clock_s()};
        post->strangers[post->num_strangers++] = stranger;
        watch_socket(post, fd, &stranger->watched, EPOLLIN, EPOLL_CTL_ADD);
    }
    set_full(post, !room);
}

void strangers_close(Post *post) {
    while (post->num_strangers) dismiss(post->strangers[0]);
}
