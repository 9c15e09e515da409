// Who may connect to a post, and in what order: posts of several ranks in one thread, with little room for strangers.
#include "comm/post_parts.h"
#include "harness.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 7, ROOM = 2 };

typedef struct {
    Attendee attendees[RANKS];
    Meeting meetings[RANKS];
    Post *posts[RANKS];
    int sent[RANKS], got[RANKS];
    Mail sends[RANKS], receives[RANKS];
} Job;

static void open_job(Job *job) {
    *job = (Job){0};
    for (int r = 0; r < RANKS; r++) {
        job->meetings[r] =
            (Meeting){.attendees = job->attendees, .listener = socket_listen(0), .secret = "it is a secret"};
        CHECK(job->meetings[r].listener >= 0, "cannot listen: %s", strerror(errno));
        job->attendees[r].address = (Address){.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1},
                                              .port = socket_port(job->meetings[r].listener)};
        job->posts[r] = post_open(r, RANKS, &job->meetings[r]);
        job->posts[r]->max_strangers = ROOM;
    }
}

static void close_job(Job *job) {
    for (int r = 0; r < RANKS; r++) {
        post_close(job->posts[r]);
        close(job->meetings[r].listener);
    }
}

// A message to rank 0, which connects.
static void send_to_0(Job *job, int from) {
    job->sent[from] = 100 + from;
    job->sends[from] = post_send(job->posts[from], 1, &job->sent[from], sizeof(int), 0, 5);
    job->receives[from] = post_recv(job->posts[0], 1, &job->got[from], sizeof(int), from, 5);
}

// Polls the posts until rank 0 has the message, or for so long. Returns whether it has it.
static bool arrives(Job *job, int from, double seconds) {
    Mail *send = &job->sends[from], *receive = &job->receives[from];
    size_t bytes = 0;
    for (double end_s = clock_s() + seconds; *receive != MAIL_NONE && clock_s() < end_s;) {
        for (int r = 1; r < RANKS; r++) post_poll(job->posts[r], 0);
        post_poll(job->posts[0], 0.001);
        if (*send != MAIL_NONE) post_test(job->posts[from], send, &bytes);
        post_test(job->posts[0], receive, &bytes);
    }
    return *receive == MAIL_NONE && *send == MAIL_NONE && job->got[from] == 100 + from;
}

static int connect_to_0(const Job *job) {
    int fd = socket_connect(&job->attendees[0].address);
    CHECK(fd >= 0, "cannot connect: %s", strerror(errno));
    return fd;
}

// More ranks than there is room for have connected, before any of them has said who it is.
static void ranks_wait_for_room(void) {
    Job job;
    open_job(&job);
    for (int r = 1; r < RANKS; r++) send_to_0(&job, r);
    for (int i = 0; i < 2 * RANKS; i++) post_poll(job.posts[0], 0.002);
    EXPECT(job.posts[0]->num_strangers == ROOM, "%d strangers", job.posts[0]->num_strangers);
    for (int r = RANKS - 1; r > 0; r--) EXPECT(arrives(&job, r, 20), "no message of rank %d", r);
    EXPECT(!job.posts[0]->full && !job.posts[0]->num_strangers, "rank 0 lets nobody in");
    close_job(&job);
}

// Those that are silent for long make room, and no sooner. Meanwhile polls wait.
static void silent_strangers_make_room(void) {
    Job job;
    char byte;
    int silent[ROOM];
    open_job(&job);
    for (int i = 0; i < ROOM; i++) silent[i] = connect_to_0(&job);
    while (job.posts[0]->num_strangers < ROOM) post_poll(job.posts[0], 0.01);
    send_to_0(&job, 1);
    EXPECT(!arrives(&job, 1, 0.2), "a stranger has made room for a rank");
    double start_s = clock_s();
    post_poll(job.posts[0], 0.05);
    EXPECT(clock_s() - start_s > 0.04, "a poll returns after %.3g s", clock_s() - start_s);
    job.posts[0]->strangers[0]->since_s -= 60;
    EXPECT(arrives(&job, 1, 20), "no message of rank 1");
    EXPECT(recv(silent[0], &byte, 1, 0) == 0, "the oldest stranger is still there");
    EXPECT(recv(silent[1], &byte, 1, 0) < 0 && errno == EAGAIN, "another stranger has gone, too");
    for (int i = 0; i < ROOM; i++) close(silent[i]);
    close_job(&job);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"ranks_wait_for_room", ranks_wait_for_room},
                                      {"silent_strangers_make_room", silent_strangers_make_room},
                                      {0}},
                       argc, argv);
}
