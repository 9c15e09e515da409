// Moves the bytes of messages: frames in and out of connections, and which message a frame belongs to.
#include "comm/post.h"
#include "base/rank.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    AT_ONCE_BYTES = 64 << 10,
    READ_AT_ONCE = 4 << 20, // of one connection, before the next has its turn
    MAX_STRANGERS = 64,
    DISCARD_BYTES = 4096,
};
// Polls without a wait are no nearer to each other. A broken connection is the other rank's end, of which rank 0 says
// more, unless it says nothing for so long.
#define POLL_GAP_S    5e-6
#define BROKEN_WAIT_S 3.0

typedef enum {
    MESSAGE,  // with its bytes
    ANNOUNCE, // of a longer one, by the sender's number
    ALLOW,    // to send that one; `other`: the receiver's number
    CONTENT,  // its bytes; `number`: the receiver's
    NUM_KINDS
} FrameKind;

typedef struct {
    uint32_t kind;
    int32_t tag;
    uint64_t group, bytes, number, other;
} FrameHead;

// One message of this rank that is under way, or one that has come and is not wanted yet.
typedef struct Parcel {
    struct Parcel *next;
    uint64_t group, number;
    int tag, peer;
    bool done;
    bool here;              // a send of this rank to itself
    bool announced, coming; // of one that is not wanted yet: without bytes; with bytes that are not all here
    char *data;             // of the user; of one that is not wanted yet: memory of its own
    size_t bytes;           // room of a receive
    size_t got;             // bytes of the message that came
    size_t moved, seen;
} Parcel;

typedef struct {
    Parcel *first, **end;
} Parcels;

typedef struct Frame {
    struct Frame *next;
    FrameHead head;
    const char *data;
    size_t bytes, sent; // sent: of head and data
    Parcel *parcel;     // done when all is sent; NULL: none
} Frame;

typedef struct {
    Watched watched;
    Post *post;
    int peer, fd; // -1: not there, or broken
    bool greeted, wants_room;
    Frame *first, **end;
} Outlet;

typedef struct {
    Watched watched;
    Post *post;
    int peer, fd;
    size_t head_got;
    FrameHead head;
    Parcel *parcel; // whose bytes are read; NULL: a head is
    size_t left;
} Inlet;

typedef struct {
    char magic[8];
    unsigned char secret[SECRET_BYTES];
    uint32_t rank;
} Greeting;

typedef struct {
    Watched watched;
    Post *post;
    int fd;
    size_t got;
    Greeting greeting;
} Stranger;

typedef struct {
    Outlet out;
    Inlet in;
    Parcels wanted;   // receives without a message
    Parcels kept;     // messages, and announcements, without a receive
    Parcels awaiting; // announced sends, then allowed receives, by number
    double broken_s;  // since when a connection is broken; 0: none is
    int error;
} Peer;

struct Post {
    int rank, size, epoll;
    const Meeting *meeting;
    Peer *peers; // [size]
    Watched door;
    Stranger *strangers[MAX_STRANGERS];
    int num_strangers;
    uint64_t next_number, moves, moves_seen;
    double polled_s;
    Parcel *free_parcels;
    Frame *free_frames;
};

static const char MAGIC[8] = "trirpost";

// ---- lists ------------------------------------------------------------------------------------------------

static void append(Parcels *list, Parcel *parcel) {
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

static Parcel *take_matching(Parcels *list, uint64_t group, int tag) {
    for (Parcel **at = &list->first; *at; at = &(*at)->next)
        if ((*at)->group == group && (*at)->tag == tag) return take(list, at);
    return NULL;
}

static Parcel *take_numbered(Parcels *list, uint64_t number) {
    for (Parcel **at = &list->first; *at; at = &(*at)->next)
        if ((*at)->number == number) return take(list, at);
    return NULL;
}

static Parcel *new_parcel(Post *post) {
    Parcel *parcel = post->free_parcels;
    if (!parcel) return comm_allocate(1, sizeof *parcel);
    post->free_parcels = parcel->next;
    *parcel = (Parcel){0};
    return parcel;
}

static void free_parcel(Post *post, Parcel *parcel) {
    parcel->next = post->free_parcels;
    post->free_parcels = parcel;
}

static void finish(Post *post, Parcel *parcel) {
    parcel->done = true;
    post->moves++;
}

// ---- sending ----------------------------------------------------------------------------------------------

static void watch_socket(Post *post, int fd, Watched *watched, uint32_t events, int how) {
    struct epoll_event event = {.events = events, .data.ptr = watched};
    CHECK(epoll_ctl(post->epoll, how, fd, &event) == 0, "cannot watch a connection: %s", strerror(errno));
}

static void break_off(Post *post, int peer, int *fd, int error) {
    close(*fd);
    *fd = -1;
    if (post->peers[peer].broken_s > 0) return;
    post->peers[peer].broken_s = clock_s();
    post->peers[peer].error = error;
}

static void await_room(Outlet *out, bool wants) {
    if (out->wants_room == wants) return;
    out->wants_room = wants;
    watch_socket(out->post, out->fd, &out->watched, wants ? EPOLLOUT : 0, EPOLL_CTL_MOD);
}

static ssize_t write_frame(const Outlet *out, const Frame *f) {
    size_t head = sizeof f->head, skip = f->sent > head ? f->sent - head : 0;
    struct iovec parts[2] = {{.iov_base = (char *)(uintptr_t)&f->head + f->sent, .iov_len = head - f->sent},
                             {.iov_base = (char *)(uintptr_t)f->data + skip, .iov_len = f->bytes - skip}};
    int first = f->sent >= head, count = (first ? 0 : 1) + (f->bytes > skip);
    struct msghdr message = {.msg_iov = parts + first, .msg_iovlen = (size_t)count};
    return sendmsg(out->fd, &message, MSG_NOSIGNAL);
}

static void end_frame(Outlet *out) {
    Frame *f = out->first;
    out->first = f->next;
    if (!out->first) out->end = &out->first;
    if (f->parcel) finish(out->post, f->parcel);
    f->next = out->post->free_frames;
    out->post->free_frames = f;
}

static void write_frames(Outlet *out) {
    while (out->first && out->fd >= 0) {
        Frame *f = out->first;
        ssize_t n = write_frame(out, f);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            await_room(out, true);
            return;
        }
        if (n < 0) {
            break_off(out->post, out->peer, &out->fd, errno);
            return;
        }
        f->sent += (size_t)n;
        if (f->parcel) f->parcel->moved += (size_t)n;
        if (f->sent == sizeof f->head + f->bytes) end_frame(out);
    }
    if (out->fd >= 0) await_room(out, false);
}

// The connection is there: the first bytes say who comes. They fit into the empty buffer of a new connection.
static void greet(Outlet *out) {
    Greeting greeting = {.rank = (uint32_t)out->post->rank};
    memcpy(greeting.magic, MAGIC, sizeof MAGIC);
    memcpy(greeting.secret, out->post->meeting->secret, SECRET_BYTES);
    ssize_t n = send(out->fd, &greeting, sizeof greeting, MSG_NOSIGNAL);
    out->greeted = n == (ssize_t)sizeof greeting;
    if (!out->greeted) break_off(out->post, out->peer, &out->fd, n < 0 ? errno : EMSGSIZE);
}

static void outlet_ready(Watched *self, uint32_t events) {
    Outlet *out = (Outlet *)self;
    if (out->fd < 0) return;
    int error = events & (EPOLLERR | EPOLLHUP) ? socket_error(out->fd) : 0;
    if (events & (EPOLLERR | EPOLLHUP)) {
        break_off(out->post, out->peer, &out->fd, error ? error : ECONNRESET);
        return;
    }
    if (!out->greeted) greet(out);
    write_frames(out);
}

static void connect_outlet(Outlet *out) {
    out->fd = socket_connect(&out->post->meeting->attendees[out->peer].address);
    if (out->fd < 0) {
        out->post->peers[out->peer].broken_s = clock_s();
        out->post->peers[out->peer].error = errno;
        return;
    }
    out->wants_room = true;
    watch_socket(out->post, out->fd, &out->watched, EPOLLOUT, EPOLL_CTL_ADD);
}

static void send_frame(Post *post, int to, FrameHead head, const char *data, Parcel *parcel) {
    Outlet *out = &post->peers[to].out;
    Frame *f = post->free_frames;
    if (f)
        post->free_frames = f->next;
    else
        f = comm_allocate(1, sizeof *f);
    *f = (Frame){.head = head, .data = data ? data : "", .bytes = data ? head.bytes : 0, .parcel = parcel};
    *out->end = f;
    out->end = &f->next;
    if (out->fd < 0 && !out->greeted && post->peers[to].broken_s <= 0) connect_outlet(out);
    if (out->greeted && out->first == f) write_frames(out);
}

// Both are of this rank. The sender's memory is read when there is a receive, and no sooner.
static void deliver_here(Post *post, Parcel *wanted, Parcel *sent) {
    size_t fits = sent->bytes < wanted->bytes ? sent->bytes : wanted->bytes;
    if (fits) memcpy(wanted->data, sent->data, fits);
    wanted->got = sent->bytes;
    finish(post, wanted);
    finish(post, sent);
}

static void send_here(Post *post, Parcel *sent) {
    Parcels *kept = &post->peers[post->rank].kept;
    Parcel *wanted = take_matching(&post->peers[post->rank].wanted, sent->group, sent->tag);
    sent->here = true;
    if (wanted)
        deliver_here(post, wanted, sent);
    else
        append(kept, sent);
}

Mail post_send(Post *post, uint64_t group, const void *from, size_t bytes, int to, int tag) {
    Parcel *parcel = new_parcel(post);
    *parcel =
        (Parcel){.group = group, .tag = tag, .peer = to, .data = (char *)(uintptr_t)from, .bytes = bytes};
    FrameHead head = {.kind = MESSAGE, .tag = tag, .group = group, .bytes = bytes};
    if (to == post->rank) {
        send_here(post, parcel);
    } else if (bytes > AT_ONCE_BYTES) {
        head.kind = ANNOUNCE;
        head.number = parcel->number = ++post->next_number;
        append(&post->peers[to].awaiting, parcel);
        send_frame(post, to, head, NULL, NULL);
    } else {
        send_frame(post, to, head, bytes ? from : "", parcel);
    }
    return (Mail)parcel;
}

// ---- receiving --------------------------------------------------------------------------------------------

static void allow(Post *post, Parcel *wanted, const Parcel *announced) {
    wanted->got = announced->got;
    wanted->number = ++post->next_number;
    append(&post->peers[wanted->peer].awaiting, wanted);
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
        finish(post, wanted);
    }
    free_parcel(post, kept);
}

Mail post_recv(Post *post, uint64_t group, void *to, size_t bytes, int from, int tag) {
    Parcel *parcel = new_parcel(post), *kept;
    *parcel = (Parcel){.group = group, .tag = tag, .peer = from, .data = to, .bytes = bytes};
    if ((kept = take_matching(&post->peers[from].kept, group, tag)))
        hand_over(post, parcel, kept);
    else
        append(&post->peers[from].wanted, parcel);
    return (Mail)parcel;
}

// A message without a receive: its bytes, or its announcement, are kept.
static Parcel *keep(Post *post, const FrameHead *head, int from) {
    Parcel *parcel = new_parcel(post);
    *parcel = (Parcel){.group = head->group, .tag = head->tag, .peer = from, .got = head->bytes};
    parcel->announced = head->kind == ANNOUNCE;
    parcel->coming = !parcel->announced;
    parcel->number = head->number;
    if (parcel->coming) parcel->data = comm_allocate(head->bytes, 1), parcel->bytes = head->bytes;
    return parcel;
}

// All bytes of the inlet's message are here.
static void end_message(Inlet *in) {
    Post *post = in->post;
    Peer *peer = &post->peers[in->peer];
    Parcel *parcel = in->parcel, *wanted;
    in->parcel = NULL;
    if (!parcel->coming) {
        finish(post, parcel);
        return;
    }
    parcel->coming = false;
    post->moves++;
    wanted = take_matching(&peer->wanted, parcel->group, parcel->tag);
    if (wanted)
        hand_over(post, wanted, parcel);
    else
        append(&peer->kept, parcel);
}

static void begin_bytes(Inlet *in, Parcel *parcel) {
    in->parcel = parcel;
    in->left = parcel->got = in->head.bytes;
    if (!in->left) end_message(in);
}

// An announced message that may be sent: its bytes follow.
static void send_content(Post *post, const FrameHead *head, int to) {
    Parcel *parcel = take_numbered(&post->peers[to].awaiting, head->number);
    CHECK(parcel, "rank %d allows a message that was not announced to it", to);
    send_frame(post, to, (FrameHead){.kind = CONTENT, .bytes = parcel->bytes, .number = head->other},
               parcel->data, parcel);
}

static void take_head(Inlet *in) {
    Post *post = in->post;
    Peer *peer = &post->peers[in->peer];
    const FrameHead *head = &in->head;
    Parcel *parcel;
    in->head_got = 0;
    CHECK(head->kind < NUM_KINDS && (head->kind != MESSAGE || head->bytes <= AT_ONCE_BYTES),
          "rank %d has sent what is no message", in->peer);
    switch ((FrameKind)head->kind) {
    case MESSAGE:
        parcel = take_matching(&peer->wanted, head->group, head->tag);
        if (!parcel) parcel = keep(post, head, in->peer);
        begin_bytes(in, parcel);
        break;
    case ANNOUNCE:
        parcel = take_matching(&peer->wanted, head->group, head->tag);
        if (parcel)
            allow(post, parcel, &(Parcel){.got = head->bytes, .number = head->number});
        else
            append(&peer->kept, keep(post, head, in->peer));
        post->moves++;
        break;
    case ALLOW: send_content(post, head, in->peer); break;
    case CONTENT:
        parcel = take_numbered(&peer->awaiting, head->number);
        CHECK(parcel && parcel->got == head->bytes, "rank %d has sent what is not awaited", in->peer);
        begin_bytes(in, parcel);
        break;
    case NUM_KINDS: break;
    }
}

// What does not fit into the memory of a receive is read and lost: the one who tests it is told the size.
static ssize_t read_bytes(Inlet *in) {
    char discarded[DISCARD_BYTES];
    Parcel *parcel = in->parcel;
    size_t at = parcel->got - in->left;
    if (at >= parcel->bytes)
        return recv(in->fd, discarded, in->left < sizeof discarded ? in->left : sizeof discarded, 0);
    size_t room = parcel->bytes - at;
    return recv(in->fd, parcel->data + at, in->left < room ? in->left : room, 0);
}

static void inlet_ready(Watched *self, uint32_t events) {
    Inlet *in = (Inlet *)self;
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
    Inlet *in = &post->peers[rank].in;
    in->fd = stranger->fd;
    watch_socket(post, in->fd, &in->watched, EPOLLIN, EPOLL_CTL_MOD);
    forget_stranger(post, stranger);
    inlet_ready(&in->watched, EPOLLIN);
}

static void stranger_ready(Watched *self, uint32_t events) {
    Stranger *stranger = (Stranger *)self;
    (void)events;
    ssize_t n = recv(stranger->fd, (char *)&stranger->greeting + stranger->got,
                     sizeof stranger->greeting - stranger->got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) stranger->got += (size_t)n;
    size_t known = stranger->got < sizeof MAGIC ? stranger->got : sizeof MAGIC;
    if (n <= 0 || memcmp(stranger->greeting.magic, MAGIC, known) != 0)
        dismiss(stranger);
    else if (stranger->got == sizeof stranger->greeting)
        welcome(stranger);
}

// The oldest stranger makes room: ranks of the job say at once who they are.
static void door_ready(Watched *self, uint32_t events) {
    Post *post = (Post *)((char *)self - offsetof(Post, door));
    (void)events;
    int fd = socket_accept(post->meeting->listener);
    if (fd < 0) return;
    if (post->num_strangers == MAX_STRANGERS) dismiss(post->strangers[0]);
    Stranger *stranger = comm_allocate(1, sizeof *stranger);
    *stranger = (Stranger){.watched = {stranger_ready}, .post = post, .fd = fd};
    post->strangers[post->num_strangers++] = stranger;
    watch_socket(post, fd, &stranger->watched, EPOLLIN, EPOLL_CTL_ADD);
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
    if (knocks) door_ready(&post->door, EPOLLIN); // last: it may dismiss a stranger, whose event comes before
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
    free_parcel(post, parcel);
    *mail = MAIL_NONE;
    return fits ? MAIL_DONE : MAIL_TOO_LONG;
}

// ---- open, close ------------------------------------------------------------------------------------------

void post_watch(Post *post, int fd, Watched *watched) {
    watch_socket(post, fd, watched, EPOLLIN, EPOLL_CTL_ADD);
}

Post *post_open(int rank, int size, Meeting *meeting) {
    Post *post = comm_allocate(1, sizeof *post);
    *post = (Post){.rank = rank, .size = size, .meeting = meeting, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    CHECK(post->epoll >= 0, "no epoll: %s", strerror(errno));
    post->peers = comm_allocate((size_t)size, sizeof *post->peers);
    for (int r = 0; r < size; r++) {
        Peer *p = &post->peers[r];
        p->out = (Outlet){.watched = {outlet_ready}, .post = post, .peer = r, .fd = -1, .end = &p->out.first};
        p->in = (Inlet){.watched = {inlet_ready}, .post = post, .peer = r, .fd = -1};
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
    while (post->num_strangers) dismiss(post->strangers[0]);
    for (Frame *f = post->free_frames, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    free_parcels(post->free_parcels);
    close(post->epoll);
    free(post->peers);
    free(post);
}
