// Sets up standard output and standard error: under a launcher, which mixes the output of many processes, they write
// whole lines; in training runs, writes never wait for a reader.
#include "base/outlet.h"
#include "base/rank.h"
#include "cli/cli.h"
#include "comm/comm.h"
#include <signal.h>
#include <unistd.h>

// Static, because the streams live as long as the program.
static Outlet output, errors;

static void whole_lines(void) {
    static char output_lines[1 << 16], error_lines[1 << 14];
    setvbuf(stdout, output_lines, _IOLBF, sizeof output_lines);
    setvbuf(stderr, error_lines, _IOLBF, sizeof error_lines);
}

void streams_open(void) {
    if (launcher_ranks()) whole_lines();
}

// Other ranks may write meanwhile.
static void finish(FILE *stream, Outlet *outlet) {
    flockfile(stream);
    outlet_finish(outlet);
    funlockfile(stream);
}

// Standard error first: it has the reason.
static void finish_streams(void) {
    finish(stderr, &errors);
    finish(stdout, &output);
}

const Outlet *streams_do_not_wait(void) {
    signal(SIGPIPE, SIG_IGN);
    output.fd = errors.fd = -1;
    outlet_replace(&output, STDOUT_FILENO, &stdout);
    outlet_replace(&errors, STDERR_FILENO, &stderr);
    if (launcher_ranks()) whole_lines();
    rank_before_abort(finish_streams);
    return &output;
}

size_t streams_lost(void) { return output.lost; }

void streams_wait(void) {
    fflush(stdout);
    outlet_wait(&output);
    outlet_wait(&errors);
}
