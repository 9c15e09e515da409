// Brings the ranks of a job together: rank 0 collects what the others say of themselves, and answers all of them.
#include "comm/meeting.h"
#include "base/hash.h"
#include "base/rank.h"
#include "comm/transport.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_GUESTS = 256, MAX_REFUSAL = 512 };
// A guest has so long to introduce itself, an attempt to connect to succeed; and so long it is until the next one.
#define GUEST_S   10.0
#define ATTEMPT_S 5.0
#define PAUSE_US  200000

static const char HELLO_MAGIC[8] = "trireme\x02", ANSWER_MAGIC[8] = "trireme\x03";

// What a rank says of itself, and what rank 0 answers: a status, then as many bytes of secret and table, or of text.
typedef struct {
    char magic[8];
    uint64_t job;
    uint32_t rank, size;
    Attendee attendee;
} Hello;
typedef struct {
    char magic[8];
    uint32_t status, bytes;
} Answer;

// ---- what this rank says of itself ------------------------------------------------------------------------

// Names of machines may be the same where they are called "localhost": this number is drawn at each start.
static uint64_t host_number(void) {
    char text[512] = "", *end = text;
    gethostname(text, 255);
    end += strlen(text);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file && !fgets(end, 64, file)) *end = 0;
    if (file) fclose(file);
    return hash64_of(text, strlen(text));
}

static Status introduce(Meeting *meeting, const MeetingPlan *plan, Hello *hello) {
    memset(hello, 0, sizeof *hello); // its gaps are sent, too
    memcpy(hello->magic, HELLO_MAGIC, sizeof HELLO_MAGIC);
    hello->job = plan->job;
    hello->rank = (uint32_t)plan->rank;
    hello->size = (uint32_t)plan->size;
    meeting->listener = socket_listen(0);
    if (meeting->listener < 0) return fail(ERR_OS, "cannot listen for the other ranks: %s", strerror(errno));
    hello->attendee.address.port = socket_port(meeting->listener);
    hello->attendee.host = host_number();
    return OK;
}

static bool is_stopped(const MeetingPlan *plan) { return plan->stopped && atomic_load(plan->stopped); }

static Status check_stopped(const MeetingPlan *plan) {
    return is_stopped(plan) ? fail(INTERRUPTED, "stopped by a signal before all ranks had come") : OK;
}

// ---- rank 0 -----------------------------------------------------------------------------------------------

typedef struct {
    int fd;
    size_t got; // of its hello
    double until_s;
    Hello hello;
} Guest;

typedef struct {
    Meeting *meeting;
    const MeetingPlan *plan;
    int master, num_guests, missing;
    int told; // ranks 1 to this one know the others
    Guest guests[MAX_GUESTS];
} Host;

static bool answer(int fd, Status status, const void *bytes, size_t size) {
    Answer head = {.status = (uint32_t)status, .bytes = (uint32_t)size};
    memcpy(head.magic, ANSWER_MAGIC, sizeof ANSWER_MAGIC);
    double deadline_s = clock_s() + GUEST_S;
    return socket_write(fd, &head, sizeof head, deadline_s) && socket_write(fd, bytes, size, deadline_s);
}

static void dismiss(Host *host, int i) {
    if (host->guests[i].fd >= 0) close(host->guests[i].fd);
    host->num_guests--;
    memmove(host->guests + i, host->guests + i + 1, (size_t)(host->num_guests - i) * sizeof *host->guests);
}

// While there is no room, others wait in the system's queue.
static bool has_room(const Host *host) {
    int most = host->plan->max_guests ? host->plan->max_guests : MAX_GUESTS;
    return host->num_guests < most;
}

static void let_in(Host *host) {
    for (int fd; has_room(host) && (fd = socket_accept(host->master)) >= 0;) {
        host->guests[host->num_guests++] = (Guest){.fd = fd, .until_s = clock_s() + GUEST_S};
    }
}

static void missing_ranks(const Host *host, Text *text) {
    int named = 0;
    for (int r = 1; r < host->plan->size && named < 20; r++)
        if (host->meeting->links[r] < 0) text_add(text, " %d", r), named++;
    if (named < host->missing) text_add(text, " and %d more", host->missing - named);
}

// What is wrong with a rank of some job, in `why`; else it gets its place.
static Status seat(Host *host, Guest *guest, Text *why) {
    const Hello *hello = &guest->hello;
    Address from;
    Text where = {0};
    if (!socket_peer(guest->fd, &from)) return OK;
    address_print(&from, &where);
    if (hello->size != (uint32_t)host->plan->size)
        text_add(why,
                 "the rank %u at %s was started as one of %u ranks, rank 0 as one of %d: WORLD_SIZE must be "
                 "the same on all, and every job on a machine needs a MASTER_PORT of its own",
                 hello->rank, text_string(&where), hello->size, host->plan->size);
    else if (!hello->rank || hello->rank >= hello->size)
        text_add(why, "the rank at %s has the number %u of %u: RANK is %s", text_string(&where), hello->rank,
                 hello->size, hello->rank ? "too large" : "0 on two processes");
    else if (host->meeting->links[hello->rank] >= 0)
        text_add(
            why,
            "rank %u has come twice, the second time from %s: every process needs a RANK of its own, and "
            "every job on a machine a MASTER_PORT of its own",
            hello->rank, text_string(&where));
    text_free(&where);
    if (why->size) return ERR_CONFIG;
    Attendee *attendee = &host->meeting->attendees[hello->rank];
    *attendee = hello->attendee;
    memset(attendee->address.ip, 0, sizeof attendee->address.ip);
    if (!address_is_local(&from)) memcpy(attendee->address.ip, from.ip, sizeof from.ip);
    host->meeting->links[hello->rank] = guest->fd;
    guest->fd = -1;
    host->missing--;
    return OK;
}

// Whoever says anything else is closed without a word. Ranks of another job are told, and do not disturb this one.
static Status hear(Host *host, int i) {
    Guest *guest = &host->guests[i];
    bool stranger = !socket_read_some(guest->fd, &guest->hello, sizeof guest->hello, &guest->got);
    size_t known = guest->got < sizeof HELLO_MAGIC ? guest->got : sizeof HELLO_MAGIC;
    stranger |= memcmp(guest->hello.magic, HELLO_MAGIC, known) != 0;
    if (!stranger && guest->got < sizeof guest->hello) return OK;
    Text why = {0};
    Status status = OK;
    if (!stranger && guest->hello.job != host->plan->job) {
        static const char other[] = "rank 0 at this MASTER_PORT belongs to another job: choose another port";
        answer(guest->fd, ERR_CONFIG, other, strlen(other));
    } else if (!stranger && (status = seat(host, guest, &why)) != OK) {
        answer(guest->fd, status, why.data, why.size < MAX_REFUSAL ? why.size : MAX_REFUSAL);
        fail(status, "%s", text_string(&why));
    }
    text_free(&why);
    dismiss(host, i);
    return status;
}

static Status attend(Host *host) {
    struct pollfd fds[MAX_GUESTS + 1] = {{.fd = host->master, .events = has_room(host) ? POLLIN : 0}};
    for (int i = 0; i < host->num_guests; i++)
        fds[i + 1] = (struct pollfd){.fd = host->guests[i].fd, .events = POLLIN};
    int ready = poll(fds, (nfds_t)host->num_guests + 1, 100);
    for (int i = host->num_guests - 1; ready > 0 && i >= 0; i--)
        if (fds[i + 1].revents) TRY(hear(host, i));
    for (int i = host->num_guests - 1; i >= 0; i--)
        if (host->guests[i].until_s < clock_s()) dismiss(host, i);
    if (ready > 0 && fds[0].revents) let_in(host);
    return OK;
}

static Status wait_for_ranks(Host *host) {
    double deadline_s = clock_s() + host->plan->timeout_s;
    while (host->missing) {
        TRY(check_stopped(host->plan));
        TRY(attend(host));
        if (!host->missing || clock_s() < deadline_s) continue;
        Text names = {0};
        missing_ranks(host, &names);
        Status status =
            fail(ERR_UNAVAILABLE,
                 "rank%s%s of %d did not come to port %u of this machine within %.3g s: they are started "
                 "with this machine's MASTER_ADDR and MASTER_PORT=%u, and a firewall must let them in",
                 host->missing > 1 ? "s" : "", text_string(&names), host->plan->size,
                 (unsigned)host->plan->port, host->plan->timeout_s, (unsigned)host->plan->port);
        text_free(&names);
        return status;
    }
    return OK;
}

static Status draw_secret(Meeting *meeting) {
    ssize_t n = getrandom(meeting->secret, SECRET_BYTES, 0);
    return n == SECRET_BYTES ? OK : fail(ERR_OS, "no random numbers: %s", strerror(errno));
}

// The same bytes for all.
static Status tell_all(Host *host) {
    size_t table = (size_t)host->plan->size * sizeof(Attendee);
    char *bytes = comm_allocate(1, SECRET_BYTES + table);
    memcpy(bytes, host->meeting->secret, SECRET_BYTES);
    memcpy(bytes + SECRET_BYTES, host->meeting->attendees, table);
    Status status = OK;
    for (int r = 1; r < host->plan->size && status == OK; r++) {
        if (answer(host->meeting->links[r], OK, bytes, SECRET_BYTES + table))
            host->told = r;
        else
            status = fail(ERR_UNAVAILABLE, "rank %d ended before all ranks had come: %s", r, strerror(errno));
    }
    free(bytes);
    return status;
}

static Status host_ranks(Meeting *meeting, const MeetingPlan *plan, const Hello *hello) {
    Host *host = comm_allocate(1, sizeof *host);
    *host = (Host){
        .meeting = meeting, .plan = plan, .master = socket_listen(plan->port), .missing = plan->size - 1};
    meeting->attendees[0] = hello->attendee;
    Status status = draw_secret(meeting);
    if (host->master < 0)
        status =
            fail(ERR_UNAVAILABLE, "cannot listen at port %u: %s%s", (unsigned)plan->port, strerror(errno),
                 errno == EADDRINUSE ? "; another job may use it: give all ranks another MASTER_PORT" : "");
    if (status == OK) status = wait_for_ranks(host);
    if (status == OK) status = tell_all(host);
    // The others end in silence: rank 0 prints the message.
    for (int r = host->told + 1; status != OK && r < plan->size; r++)
        if (meeting->links[r] >= 0) answer(meeting->links[r], status, "", 0);
    while (host->num_guests) dismiss(host, 0);
    if (host->master >= 0) close(host->master);
    free(host);
    return status;
}

// ---- the other ranks --------------------------------------------------------------------------------------

// Returns the connection, or -1 and errno.
static int try_to_connect(const MeetingPlan *plan, const Address *to, double deadline_s) {
    int fd = socket_connect(to);
    if (fd < 0) return -1;
    if (deadline_s > clock_s() + ATTEMPT_S) deadline_s = clock_s() + ATTEMPT_S;
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    int ready;
    do ready = poll(&one, 1, 100);
    while (ready <= 0 && clock_s() < deadline_s && !is_stopped(plan));
    int error = ready <= 0 ? ETIMEDOUT : socket_error(fd);
    if (!error) return fd;
    close(fd);
    errno = error;
    return -1;
}

// Until it is there: rank 0 may start later.
static Status reach_rank_0(const MeetingPlan *plan, double deadline_s, int *fd) {
    Address found[MAX_ADDRESSES];
    for (int error = 0;; usleep(PAUSE_US)) {
        int count = 0;
        TRY(check_stopped(plan));
        Status status = address_find(plan->host, plan->port, found, &count);
        for (int i = 0; i < count; i++) {
            *fd = try_to_connect(plan, &found[i], deadline_s);
            if (*fd >= 0) return OK;
            error = errno;
        }
        if (clock_s() < deadline_s) continue;
        if (status != OK) return fail(status, "MASTER_ADDR %s", fail_message());
        return fail(
            ERR_UNAVAILABLE,
            "rank %d cannot reach rank 0 at %s:%u within %.3g s: %s; rank 0 is to be started there, and "
            "MASTER_ADDR and MASTER_PORT to be the same on all ranks",
            plan->rank, plan->host, (unsigned)plan->port, plan->timeout_s, strerror(error));
    }
}

static Status refused(int fd, const Answer *head, double deadline_s) {
    char text[MAX_REFUSAL + 1] = "";
    size_t size = head->bytes < MAX_REFUSAL ? head->bytes : MAX_REFUSAL;
    if (!socket_read(fd, text, size, deadline_s)) text[0] = 0;
    return fail(head->status < 255 ? (Status)head->status : ERR_CONFIG, "%s", text);
}

// Returns when the answer begins to arrive, the connection ends or the time is over.
static Status wait_for_answer(const MeetingPlan *plan, int fd, double deadline_s) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    while (poll(&one, 1, 100) <= 0 && clock_s() < deadline_s) TRY(check_stopped(plan));
    return OK;
}

static Status read_answer(Meeting *meeting, const MeetingPlan *plan, int fd, double deadline_s) {
    Answer head = {0};
    size_t table = (size_t)plan->size * sizeof(Attendee);
    bool here = socket_read(fd, &head, sizeof head, deadline_s);
    if (here && memcmp(head.magic, ANSWER_MAGIC, sizeof ANSWER_MAGIC) != 0)
        return fail(ERR_CONFIG,
                    "what listens at %s:%u is no rank 0 of trireme: give all ranks another MASTER_PORT",
                    plan->host, (unsigned)plan->port);
    if (here && head.status != OK) return refused(fd, &head, deadline_s);
    here = here && head.bytes == SECRET_BYTES + table &&
           socket_read(fd, meeting->secret, SECRET_BYTES, deadline_s) &&
           socket_read(fd, meeting->attendees, table, deadline_s);
    if (here) return OK;
    return fail(ERR_UNAVAILABLE, "rank %d has no answer from rank 0 at %s:%u: %s", plan->rank, plan->host,
                (unsigned)plan->port,
                errno == ETIMEDOUT ? "it waits for ranks that have not come" : "it has ended");
}

static Status join(Meeting *meeting, const MeetingPlan *plan, const Hello *hello) {
    double deadline_s = clock_s() + plan->timeout_s;
    int *fd = &meeting->links[0];
    TRY(reach_rank_0(plan, deadline_s, fd));
    if (!socket_write(*fd, hello, sizeof *hello, deadline_s))
        return fail(ERR_UNAVAILABLE, "rank %d lost its connection to rank 0 at %s:%u: %s", plan->rank,
                    plan->host, (unsigned)plan->port, strerror(errno));
    TRY(wait_for_answer(plan, *fd, deadline_s + GUEST_S));
    return read_answer(meeting, plan, *fd, deadline_s + GUEST_S);
}

// ---- both -------------------------------------------------------------------------------------------------

// Ranks that have come to rank 0 by a loopback address, from its own machine, have an unknown address. Others reach
// them at the address by which they have reached rank 0, and rank 0 by a loopback address.
static void complete_addresses(Meeting *meeting, const MeetingPlan *plan) {
    static const unsigned char unknown[16];
    Address zero = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    if (plan->rank && !socket_peer(meeting->links[0], &zero)) return;
    for (int r = 0; r < plan->size; r++) {
        Address *address = &meeting->attendees[r].address;
        if (!memcmp(address->ip, unknown, sizeof unknown)) memcpy(address->ip, zero.ip, sizeof zero.ip);
    }
}

Status meeting_hold(Meeting *meeting, const MeetingPlan *plan) {
    *meeting = (Meeting){.listener = -1,
                         .links = comm_allocate((size_t)plan->size, sizeof(int)),
                         .attendees = comm_allocate((size_t)plan->size, sizeof(Attendee))};
    for (int r = 0; r < plan->size; r++) meeting->links[r] = -1;
    Hello hello;
    Status status = introduce(meeting, plan, &hello);
    if (status == OK) status = (plan->rank ? join : host_ranks)(meeting, plan, &hello);
    if (status == OK) complete_addresses(meeting, plan);
    if (status != OK) meeting_close(meeting, plan->size);
    return status;
}

void meeting_close(Meeting *meeting, int size) {
    for (int r = 0; meeting->links && r < size; r++)
        if (meeting->links[r] >= 0) close(meeting->links[r]);
    if (meeting->links && meeting->listener >= 0) close(meeting->listener);
    free(meeting->links);
    free(meeting->attendees);
    *meeting = (Meeting){0};
}
