// Starts and tests messages over MPI, by MPI_Isend, MPI_Irecv and MPI_Testsome.
#include "comm/mpi/mail.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MPI_DO(call)                                                                                         \
    do {                                                                                                     \
        int rc_ = (call);                                                                                    \
        CHECK(rc_ == MPI_SUCCESS, "MPI error %d in " #call, rc_);                                            \
    } while (0)

// A count and a type for so many bytes: MPI's counts are int, so a longer message is one element of its own type.
static MPI_Datatype bytes_as(size_t bytes, int *count) {
    enum { UNIT = 1 << 20 };
    *count = (int)bytes;
    if (bytes <= INT_MAX) return MPI_BYTE;
    MPI_Datatype unit, whole;
    int lengths[2] = {(int)(bytes / UNIT), (int)(bytes % UNIT)};
    MPI_Aint at[2] = {0, (MPI_Aint)(bytes - bytes % UNIT)};
    MPI_DO(MPI_Type_contiguous(UNIT, MPI_BYTE, &unit));
    MPI_DO(MPI_Type_create_struct(2, lengths, at, (MPI_Datatype[]){unit, MPI_BYTE}, &whole));
    MPI_DO(MPI_Type_commit(&whole));
    MPI_DO(MPI_Type_free(&unit));
    *count = 1;
    return whole;
}

MPI_Request mpi_send(MPI_Comm comm, const void *from, size_t bytes, int to, int tag) {
    int count;
    MPI_Request request;
    MPI_Datatype type = bytes_as(bytes, &count);
    MPI_DO(MPI_Isend(from, count, type, to, tag, comm, &request));
    if (type != MPI_BYTE) MPI_DO(MPI_Type_free(&type)); // lives on until the message is sent
    return request;
}

MPI_Request mpi_recv(MPI_Comm comm, void *to, size_t bytes, int from, int tag) {
    int count;
    MPI_Request request;
    MPI_Datatype type = bytes_as(bytes, &count);
    MPI_DO(MPI_Irecv(to, count, type, from, tag, comm, &request));
    if (type != MPI_BYTE) MPI_DO(MPI_Type_free(&type));
    return request;
}

// ---- the table ------------------------------------------------------------------------------------------

_Static_assert(sizeof(MPI_Request) <= sizeof(Mail), "a request fits in a Mail");

static Mail mail_of(MPI_Request request) {
    Mail mail = MAIL_NONE;
    if (request != MPI_REQUEST_NULL) memcpy(&mail, &request, sizeof request);
    return mail;
}

static MPI_Request request_of(Mail mail) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (mail != MAIL_NONE) memcpy(&request, &mail, sizeof request);
    return request;
}

static Mail send_mail(void *self, const void *from, size_t bytes, int to, int tag) {
    return mail_of(mpi_send(((MpiMail *)self)->comm, from, bytes, to, tag));
}

static Mail recv_mail(void *self, void *to, size_t bytes, int from, int tag) {
    return mail_of(mpi_recv(((MpiMail *)self)->comm, to, bytes, from, tag));
}

static MailState test_mail(void *self, Mail *mail, size_t *bytes) {
    (void)self;
    int done;
    MPI_Status status;
    MPI_Request request = request_of(*mail);
    if (MPI_Test(&request, &done, &status) != MPI_SUCCESS) return MAIL_TOO_LONG;
    *mail = mail_of(request);
    if (!done) return MAIL_STUCK;
    MPI_Count count = 0;
    MPI_DO(MPI_Get_elements_x(&status, MPI_BYTE, &count));
    *bytes = (size_t)count;
    return MAIL_DONE;
}

static CallProgress test_mails(void *self, Mail *mails, int count) {
    MpiMail *m = self;
    int done = 0;
    for (int i = 0; i < count; i++) m->requests[i] = request_of(mails[i]);
    MPI_DO(MPI_Testsome(count, m->requests, &done, m->indices, MPI_STATUSES_IGNORE));
    if (done == MPI_UNDEFINED) return DONE;
    for (int i = 0; i < done; i++) mails[m->indices[i]] = MAIL_NONE;
    return done ? MOVED : STUCK;
}

static Mail sum_mail(void *self, void *x, size_t count, DType dtype) {
    MPI_Request request;
    MPI_DO(MPI_Iallreduce(MPI_IN_PLACE, x, (int)count, dtype == F64 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM,
                          ((MpiMail *)self)->comm, &request));
    return mail_of(request);
}

void mpi_mail_open(MpiMail *mail, MPI_Comm comm, int size) {
    *mail = (MpiMail){.comm = comm,
                      .requests = comm_allocate(2 * (size_t)size, sizeof(MPI_Request)),
                      .indices = comm_allocate(2 * (size_t)size, sizeof(int))};
}

void mpi_mail_close(MpiMail *mail) {
    free(mail->requests);
    free(mail->indices);
}

MailTable mpi_mail_table(MpiMail *mail, bool sums) {
    return (MailTable){.self = mail,
                       .send = send_mail,
                       .recv = recv_mail,
                       .test = test_mail,
                       .test_all = test_mails,
                       .sum = sums ? sum_mail : NULL};
}
