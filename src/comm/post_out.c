// Sends the messages of a post: connections to other ranks, and the frames that wait for room in them.
#include "comm/post_parts.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static void await_room(OutLane *out, bool wants) {
    if (out->wants_room == wants) return;
    out->wants_room = wants;
    watch_socket(out->post, out->fd, &out->watched, wants ? EPOLLOUT : 0, EPOLL_CTL_MOD);
}

static ssize_t write_frame(const OutLane *out, const Frame *f) {
    size_t head = sizeof f->head, skip = f->sent > head ? f->sent - head : 0;
    struct iovec parts[2] = {{.iov_base = (char *)(uintptr_t)&f->head + f->sent, .iov_len = head - f->sent},
                             {.iov_base = (char *)(uintptr_t)f->data + skip, .iov_len = f->bytes - skip}};
    int first = f->sent >= head, count = (first ? 0 : 1) + (f->bytes > skip);
    struct msghdr message = {.msg_iov = parts + first, .msg_iovlen = (size_t)count};
    return sendmsg(out->fd, &message, MSG_NOSIGNAL);
}

static void end_frame(OutLane *out) {
    Frame *f = out->first;
    out->first = f->next;
    if (!out->first) out->end = &out->first;
    if (f->parcel) parcel_finish(out->post, f->parcel);
    f->next = out->post->free_frames;
    out->post->free_frames = f;
}

static void write_frames(OutLane *out) {
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
static void greet(OutLane *out) {
    Greeting greeting = {.rank = (uint32_t)out->post->rank};
    memcpy(greeting.magic, GREETING_MAGIC, sizeof greeting.magic);
    memcpy(greeting.secret, out->post->meeting->secret, SECRET_BYTES);
    ssize_t n = send(out->fd, &greeting, sizeof greeting, MSG_NOSIGNAL);
    out->greeted = n == (ssize_t)sizeof greeting;
    if (!out->greeted) break_off(out->post, out->peer, &out->fd, n < 0 ? errno : EMSGSIZE);
}

void out_lane_ready(Watched *self, uint32_t events) {
    OutLane *out = (OutLane *)self;
    if (out->fd < 0) return;
    int error = events & (EPOLLERR | EPOLLHUP) ? socket_error(out->fd) : 0;
    if (events & (EPOLLERR | EPOLLHUP)) {
        break_off(out->post, out->peer, &out->fd, error ? error : ECONNRESET);
        return;
    }
    if (!out->greeted) greet(out);
    write_frames(out);
}

static void connect_lane(OutLane *out) {
    out->fd = socket_connect(&out->post->meeting->attendees[out->peer].address);
    if (out->fd < 0) {
        out->post->peers[out->peer].broken_s = clock_s();
        out->post->peers[out->peer].error = errno;
        return;
    }
    out->wants_room = true;
    watch_socket(out->post, out->fd, &out->watched, EPOLLOUT, EPOLL_CTL_ADD);
}

void send_frame(Post *post, int to, FrameHead head, const char *data, Parcel *parcel) {
    OutLane *out = &post->peers[to].out;
    Frame *f = post->free_frames;
    if (f)
        post->free_frames = f->next;
    else
        f = comm_allocate(1, sizeof *f);
    *f = (Frame){.head = head, .data = data ? data : "", .bytes = data ? head.bytes : 0, .parcel = parcel};
    *out->end = f;
    out->end = &f->next;
    if (out->fd < 0 && !out->greeted && post->peers[to].broken_s <= 0) connect_lane(out);
    if (out->greeted && out->first == f) write_frames(out);
}

Mail post_send(Post *post, uint64_t group, const void *from, size_t bytes, int to, int tag) {
    Parcel *parcel = parcel_new(post);
    *parcel =
        (Parcel){.group = group, .tag = tag, .peer = to, .data = (char *)(uintptr_t)from, .bytes = bytes};
    FrameHead head = {.kind = MESSAGE, .tag = tag, .group = group, .bytes = bytes};
    if (to == post->rank) {
        send_here(post, parcel);
    } else if (bytes > AT_ONCE_BYTES) {
        head.kind = ANNOUNCE;
        head.number = parcel->number = ++post->next_number;
        parcels_append(&post->peers[to].awaiting, parcel);
        send_frame(post, to, head, NULL, NULL);
    } else {
        send_frame(post, to, head, bytes ? from : "", parcel);
    }
    return (Mail)parcel;
}
