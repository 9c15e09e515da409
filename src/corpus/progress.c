// Prints the progress of a long pass over the input.
#include "corpus/progress.h"
#include "base/rank.h"
#include "base/text.h"
#include <math.h>
#include <unistd.h>

static const double terminal_every_s = 0.2, line_every_s = 1;

ProgressLine progress_start(FILE *out, bool plain, const char *what, const char *unit, double unit_size) {
    bool terminal = out && !plain && isatty(fileno(out));
    double now = clock_s();
    return (ProgressLine){
        out, terminal, what, unit, unit_size, now, now + (terminal ? terminal_every_s : line_every_s)};
}

static void add_time(Text *line, double seconds) {
    long s = lround(fmin(seconds, 359999));
    text_add(line, ", %ld:%02ld:%02ld left", s / 3600, s / 60 % 60, s % 60);
}

// "encoding  37.1 %  (123.4 MB, 45.1 MB/s, 0:00:05 left)"
static void print(const ProgressLine *p, Done done, double now) {
    double elapsed_s = now - p->start_s, scaled = (double)done.count / p->unit_size;
    int decimals = p->unit_size > 1;
    Text line = {0};
    text_add(&line, "%s%s", p->terminal ? "\r" : "", p->what);
    if (!isnan(done.share)) text_add(&line, "  %.1f %%", 100 * done.share);
    text_add(&line, "  (%.*f %s, %.*f %s/s", decimals, scaled, p->unit, decimals, scaled / (elapsed_s + 1e-9),
             p->unit);
    if (done.share > 0 && done.share < 1) add_time(&line, elapsed_s / done.share * (1 - done.share));
    // Blanks cover the rest of a longer line before.
    text_add(&line, ")%s", p->terminal ? "      " : "\n");
    fputs(text_string(&line), p->out);
    fflush(p->out);
    text_free(&line);
}

static void print_now(ProgressLine *p, Done done, double now) {
    print(p, done, now);
    p->next_s = now + (p->terminal ? terminal_every_s : line_every_s);
}

void progress_update(ProgressLine *p, Done done) {
    if (!p->out) return;
    double now = clock_s();
    if (now >= p->next_s) print_now(p, done, now);
}

void progress_line(ProgressLine *p, Done done) {
    if (p->out && !p->terminal) print_now(p, done, clock_s());
}

void progress_end(ProgressLine *p, Done done) {
    if (!p->out || !p->terminal) return;
    print(p, done, clock_s());
    fputc('\n', p->out);
}
