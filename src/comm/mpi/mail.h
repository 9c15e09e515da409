// Messages of any number of bytes over MPI, and the table of them for messages.h.
#pragma once
#include "comm/mail.h"
#include <mpi.h>

MPI_Request mpi_send(MPI_Comm comm, const void *from, size_t bytes, int to, int tag);
MPI_Request mpi_recv(MPI_Comm comm, void *to, size_t bytes, int from, int tag);

typedef struct {
    MPI_Comm comm;
    MPI_Request *requests; // [2 * size] those of one test
    int *indices;          // [2 * size]
} MpiMail;

void mpi_mail_open(MpiMail *mail, MPI_Comm comm, int size);
void mpi_mail_close(MpiMail *mail); // takes what was only zeroed
// With `sums` MPI's own MPI_Iallreduce may add.
MailTable mpi_mail_table(MpiMail *mail, bool sums);
