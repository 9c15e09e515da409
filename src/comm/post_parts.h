// The insides of a post, which its files share: post_poll.c has its life and its polls, post_out.c what leaves,
// post_in.c what comes, and who may come.
#pragma once
#include "comm/post.h"

enum { AT_ONCE_BYTES = 64 << 10, MAX_STRANGERS = 256 };

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
} OutLane;

typedef struct {
    Watched watched;
    Post *post;
    int peer, fd;
    size_t head_got;
    FrameHead head;
    Parcel *parcel; // whose bytes are read; NULL: a head is
    size_t left;
} InLane;

// The first bytes of a connection.
typedef struct {
    char magic[8];
    unsigned char secret[SECRET_BYTES];
    uint32_t rank;
} Greeting;
#define GREETING_MAGIC "trirpost" // without its NUL

typedef struct {
    Watched watched;
    Post *post;
    int fd;
    double since_s;
    size_t got;
    Greeting greeting;
} Stranger;

typedef struct {
    OutLane out;
    InLane in;
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
    Stranger *strangers[MAX_STRANGERS]; // the oldest first
    int num_strangers, max_strangers;
    bool full; // the door is not watched
    uint64_t next_number, moves, moves_seen;
    double polled_s;
    Parcel *free_parcels;
    Frame *free_frames;
};

// ---- lists, and the memory of what is under way (post_poll.c) --------------------------------------------------

void parcels_append(Parcels *list, Parcel *parcel);
// Take the first that matches out of the list; NULL: there is none.
Parcel *parcels_take(Parcels *list, uint64_t group, int tag);
Parcel *parcels_take_numbered(Parcels *list, uint64_t number);
Parcel *parcel_new(Post *post);
void parcel_free(Post *post, Parcel *parcel);
void parcel_finish(Post *post, Parcel *parcel); // it is done

// ---- connections ------------------------------------------------------------------------------------------

// Watches a socket for events, or for others than before; `how` is epoll_ctl's word.
void watch_socket(Post *post, int fd, Watched *watched, uint32_t events, int how);
// Closes a connection to or from `peer` that has failed, and remembers it.
void break_off(Post *post, int peer, int *fd, int error);
// Sends a frame to another rank, with `head.bytes` bytes of `data` where that is not NULL. `parcel`, where it is not
// NULL, is done when all has left.
void send_frame(Post *post, int to, FrameHead head, const char *data, Parcel *parcel);
void out_lane_ready(Watched *self, uint32_t events);
void in_lane_ready(Watched *self, uint32_t events);
// Lets in all that connect, as far as there is room: each is a stranger until it has said the secret of the job.
void door_ready(Watched *self, uint32_t events);
void strangers_close(Post *post);
// A message of this rank to itself.
void send_here(Post *post, Parcel *sent);
