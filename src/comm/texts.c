// Sends texts between ranks that do not know their length.
#include "comm/comm.h"
#include "comm/transport.h"
#include <stdlib.h>
#include <string.h>

void comm_send_text(Comm *comm, const Text *text, int to) {
    uint64_t size = text->size;
    comm_send_host(comm, &size, sizeof size, to);
    if (size) comm_send_host(comm, text->data, text->size, to);
}

void comm_recv_text(Comm *comm, Text *text, int from) {
    uint64_t size;
    text->size = 0;
    comm_recv_host(comm, &size, sizeof size, from);
    if (!size) return;
    char *bytes = comm_allocate(size, 1);
    comm_recv_host(comm, bytes, size, from);
    text_add_bytes(text, bytes, size);
    free(bytes);
}

void comm_broadcast_text(Comm *comm, Text *text, int root) {
    uint64_t size = text->size;
    comm_broadcast_host(comm, &size, sizeof size, root);
    char *bytes = comm_allocate(size + 1, 1);
    if (comm_rank(comm) == root && size) memcpy(bytes, text->data, size);
    if (size) comm_broadcast_host(comm, bytes, size, root);
    text->size = 0;
    text_add_bytes(text, bytes, size);
    free(bytes);
}
