// Messages between processes over connections of TCP. A connection carries the messages of one rank to one other; it is
// opened with the first of them. All are advanced by polls: nothing blocks, and no thread works behind the program.
//
//   up to 64 KiB   is sent at once; the receiver keeps it until it is wanted
//   more           is announced, and sent when the receiver has memory for it: it goes there directly
//
// So a sender of much waits for its receiver, as with MPI, and no rank needs memory for what others send ahead.
#pragma once
#include "comm/mail.h"
#include "comm/meeting.h"
#include <sys/epoll.h>

typedef struct Post Post;

// A connection that the post's polls watch: `ready` is called when it can be read, or with `error` has failed.
typedef struct Watched {
    void (*ready)(struct Watched *self, uint32_t events);
} Watched;

// The meeting stays alive; the post takes its listener.
Post *post_open(int rank, int size, Meeting *meeting);
void post_close(Post *post); // takes NULL
void post_watch(Post *post, int fd, Watched *watched);

// As in mail.h. Ranks are those of the world, `group` tells the messages of groups apart.
Mail post_send(Post *post, uint64_t group, const void *from, size_t bytes, int to, int tag);
Mail post_recv(Post *post, uint64_t group, void *to, size_t bytes, int from, int tag);
MailState post_test(Post *post, Mail *mail, size_t *bytes);

// Does what can be done; waits for it at most `seconds`, and not at all where something has happened since the last
// wait.
void post_poll(Post *post, double seconds);
