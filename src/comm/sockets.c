// Calls the system's sockets. All of them are non-blocking, and waits have deadlines.
#include "comm/sockets.h"
#include "base/rank.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// ---- addresses --------------------------------------------------------------------------------------------

static const unsigned char v4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static bool is_v4(const Address *a) { return !memcmp(a->ip, v4_prefix, sizeof v4_prefix); }

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} SystemAddress;

static bool from_system(const SystemAddress *system, Address *address) {
    *address = (Address){0};
    if (system->any.sa_family == AF_INET) {
        memcpy(address->ip, v4_prefix, sizeof v4_prefix);
        memcpy(address->ip + sizeof v4_prefix, &system->v4.sin_addr, 4);
        address->port = ntohs(system->v4.sin_port);
        return true;
    }
    if (system->any.sa_family != AF_INET6) return false;
    memcpy(address->ip, &system->v6.sin6_addr, sizeof address->ip);
    address->port = ntohs(system->v6.sin6_port);
    return true;
}

// IPv4 goes by sockets of its own: a system may have no IPv6.
static socklen_t to_system(const Address *address, SystemAddress *system) {
    memset(system, 0, sizeof *system);
    if (is_v4(address)) {
        system->v4.sin_family = AF_INET;
        memcpy(&system->v4.sin_addr, address->ip + sizeof v4_prefix, 4);
        system->v4.sin_port = htons(address->port);
        return sizeof system->v4;
    }
    system->v6.sin6_family = AF_INET6;
    memcpy(&system->v6.sin6_addr, address->ip, sizeof address->ip);
    system->v6.sin6_port = htons(address->port);
    return sizeof system->v6;
}

Status address_find(const char *host, uint16_t port, Address found[MAX_ADDRESSES], int *count) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int error = getaddrinfo(host, NULL, &hints, &list);
    *count = 0;
    for (struct addrinfo *a = list; a && *count < MAX_ADDRESSES; a = a->ai_next) {
        SystemAddress system = {0};
        if (a->ai_addrlen > sizeof system) continue;
        memcpy(&system, a->ai_addr, a->ai_addrlen);
        if (from_system(&system, &found[*count])) found[(*count)++].port = port;
    }
    if (list) freeaddrinfo(list);
    return *count ? OK : fail(ERR_UNAVAILABLE, "%s: no address of this host: %s", host, gai_strerror(error));
}

void address_print(const Address *address, Text *text) {
    char ip[INET6_ADDRSTRLEN] = "?";
    inet_ntop(is_v4(address) ? AF_INET : AF_INET6, address->ip + (is_v4(address) ? sizeof v4_prefix : 0), ip,
              sizeof ip);
    text_add(text, is_v4(address) ? "%s:%u" : "[%s]:%u", ip, (unsigned)address->port);
}

bool address_is_local(const Address *address) {
    static const unsigned char v6[16] = {[15] = 1};
    return is_v4(address) ? address->ip[12] == 127 : !memcmp(address->ip, v6, sizeof v6);
}

bool socket_peer(int fd, Address *address) {
    SystemAddress system = {0};
    socklen_t size = sizeof system;
    return getpeername(fd, &system.any, &size) == 0 && from_system(&system, address);
}

// ---- connections ------------------------------------------------------------------------------------------

// Small messages leave at once. A machine that is gone is noticed in a minute.
static void tune(int fd) {
    static const struct {
        int level, option, value;
    } settings[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                    {SOL_SOCKET, SO_KEEPALIVE, 1},
                    {IPPROTO_TCP, TCP_KEEPIDLE, 30},
                    {IPPROTO_TCP, TCP_KEEPINTVL, 10},
                    {IPPROTO_TCP, TCP_KEEPCNT, 3}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        (void)setsockopt(fd, settings[i].level, settings[i].option, &settings[i].value, sizeof(int));
}

static int open_socket(int family) {
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) tune(fd);
    return fd;
}

static int close_failed(int fd) {
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

// An IPv6 socket takes IPv4 as well.
int socket_listen(uint16_t port) {
    int off = 0, on = 1, fd = open_socket(AF_INET6);
    SystemAddress here = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
    socklen_t size = sizeof here.v6;
    if (fd < 0) {
        here = (SystemAddress){.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
        size = sizeof here.v4;
        fd = open_socket(AF_INET);
    } else {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (fd < 0) return -1;
    // The port may have connections that an earlier job has closed. A second one that listens is refused all the same.
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return bind(fd, &here.any, size) || listen(fd, SOMAXCONN) ? close_failed(fd) : fd;
}

uint16_t socket_port(int fd) {
    SystemAddress here = {0};
    Address address = {0};
    socklen_t size = sizeof here;
    if (getsockname(fd, &here.any, &size) == 0) from_system(&here, &address);
    return address.port;
}

int socket_connect(const Address *to) {
    SystemAddress system;
    socklen_t size = to_system(to, &system);
    int fd = open_socket(system.any.sa_family);
    if (fd < 0) return -1;
    return connect(fd, &system.any, size) == 0 || errno == EINPROGRESS ? fd : close_failed(fd);
}

// The system may give a connection the very port that it goes to, where nobody listens: it then meets itself.
static bool is_with_itself(int fd) {
    SystemAddress ends[2] = {{.any = {0}}, {.any = {0}}};
    socklen_t sizes[2] = {sizeof ends[0], sizeof ends[1]};
    if (getsockname(fd, &ends[0].any, &sizes[0]) || getpeername(fd, &ends[1].any, &sizes[1])) return false;
    return sizes[0] == sizes[1] && !memcmp(&ends[0], &ends[1], sizes[0]);
}

int socket_error(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size)) return errno;
    return !error && is_with_itself(fd) ? ECONNREFUSED : error;
}

int socket_accept(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) tune(fd);
    return fd;
}

// ---- whole messages ---------------------------------------------------------------------------------------

// Returns whether the socket is ready for the events before the deadline.
static bool wait_for(int fd, short events, double deadline_s) {
    double left = deadline_s - clock_s();
    struct pollfd one = {.fd = fd, .events = events};
    int ready = left > 0 ? poll(&one, 1, left > 1 ? 1000 : (int)(1000 * left) + 1) : 0;
    if (left <= 0) errno = ETIMEDOUT;
    return left > 0 && (ready >= 0 || errno == EINTR);
}

bool socket_write(int fd, const void *bytes, size_t size, double deadline_s) {
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, (const char *)bytes + done, size - done, MSG_NOSIGNAL);
        if (n > 0) done += (size_t)n;
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n < 0 && !wait_for(fd, POLLOUT, deadline_s)) return false;
    }
    return true;
}

bool socket_read(int fd, void *bytes, size_t size, double deadline_s) {
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(fd, (char *)bytes + done, size - done, 0);
        if (n > 0) done += (size_t)n;
        if (n == 0) errno = ECONNRESET;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (n < 0 && !wait_for(fd, POLLIN, deadline_s)) return false;
    }
    return true;
}

bool socket_read_some(int fd, void *bytes, size_t size, size_t *got) {
    ssize_t n = recv(fd, (char *)bytes + *got, size - *got, 0);
    if (n > 0) *got += (size_t)n;
    if (n == 0) errno = 0;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}
