// Messages between pairs of ranks of a group, as the collectives of messages.h need them: a table that MPI
// (mpi_mail.h) and connections of our own (tcp.c) fill in.
//
// A message is started, and done when a test says so: only then may its memory be used again. Messages of one pair of
// ranks with one tag are received in the order in which they were sent. Ranks are those of the group.
#pragma once
#include "comm/transport.h"

// One message under way, as the table's owner writes it; MAIL_NONE: none.
typedef uintptr_t Mail;
#define MAIL_NONE ((Mail)0)

typedef enum {
    MAIL_STUCK,
    MAIL_MOVED, // some of its bytes have moved since the last test
    MAIL_DONE,
    MAIL_TOO_LONG, // more bytes were sent than are expected
} MailState;

typedef struct {
    void *self;
    Mail (*send)(void *self, const void *from, size_t bytes, int to, int tag);
    Mail (*recv)(void *self, void *to, size_t bytes, int from, int tag);
    // Tests one message and makes it MAIL_NONE when it is done; then a receive has got `bytes`.
    MailState (*test)(void *self, Mail *mail, size_t *bytes);
    // Tests all of `mails` that are not MAIL_NONE and makes those MAIL_NONE that are done. Returns DONE when none is
    // left, MOVED when some are done now or have moved.
    CallProgress (*test_all)(void *self, Mail *mails, int count);
    // Optional: sums x [count] over the ranks, in place, in an order of its own.
    Mail (*sum)(void *self, void *x, size_t count, DType dtype);
} MailTable;
