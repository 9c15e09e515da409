// Connections between processes: addresses, listening, connecting, reading and writing whole messages with a deadline.
#pragma once
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Of IPv6, or of IPv4 as IPv6 writes it (::ffff:a.b.c.d). All zero: none is known.
typedef struct {
    unsigned char ip[16];
    uint16_t port;
} Address;

enum { MAX_ADDRESSES = 8 };

// The addresses of a host by name. ERR_UNAVAILABLE: it has none.
Status address_find(const char *host, uint16_t port, Address found[MAX_ADDRESSES], int *count);
void address_print(const Address *address, Text *text); // "10.0.0.7:29500"
bool address_is_local(const Address *address); // a loopback address, which other machines cannot reach
// The address at the other end of a connection.
bool socket_peer(int fd, Address *address);

// Listens on all interfaces; port 0: the system chooses one. Returns the socket, or -1 and errno.
int socket_listen(uint16_t port);
uint16_t socket_port(int fd);
// Starts to connect. Returns the socket, which is writable when the connection is there or has failed; -1 and errno.
int socket_connect(const Address *to);
// 0, or the error with which a connection has failed: ECONNREFUSED also where it has met itself.
int socket_error(int fd);
// Accepts a connection; -1: there is none.
int socket_accept(int listener);

// Write and read all bytes until clock_s() is `deadline_s`. False, and errno, when that fails: ETIMEDOUT, or
// ECONNRESET where the other end has closed the connection.
bool socket_write(int fd, const void *bytes, size_t size, double deadline_s);
bool socket_read(int fd, void *bytes, size_t size, double deadline_s);
// Reads what has come of `size` bytes, of which *got were read before, without a wait. False when the connection has
// ended, and errno: 0 where the other end has closed it.
bool socket_read_some(int fd, void *bytes, size_t size, size_t *got);
