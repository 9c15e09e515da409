#include "data/progress.h"
#include "base/rank.h"
#include <unistd.h>

static const double terminal_every_s = 0.2, line_every_s = 5;

Progress progress_start(FILE *out, bool plain, const char *what, int64_t total, const char *unit,
                        double unit_size) {
    bool terminal = out && !plain && isatty(fileno(out));
    double now = clock_s();
    return (Progress){out,       terminal, what, unit,
                      unit_size, total,    now,  now + (terminal ? terminal_every_s : line_every_s)};
}

static void print(const Progress *p, int64_t done, double now) {
    double scaled = (double)done / p->unit_size, total = (double)p->total / p->unit_size;
    double percent = p->total > 0 ? 100 * scaled / total : 100, rate = scaled / (now - p->start_s + 1e-9);
    fprintf(p->out, "%s%s  %3.0f %%  (%.*f/%.*f %s, %.*f %s/s)%s", p->terminal ? "\r" : "", p->what, percent,
            p->unit_size > 1, scaled, p->unit_size > 1, total, p->unit, p->unit_size > 1, rate, p->unit,
            p->terminal ? "   " : "\n");
    fflush(p->out);
}

static void print_now(Progress *p, int64_t done, double now) {
    print(p, done, now);
    p->next_s = now + (p->terminal ? terminal_every_s : line_every_s);
}

void progress_update(Progress *p, int64_t done) {
    if (!p->out) return;
    double now = clock_s();
    if (now >= p->next_s) print_now(p, done, now);
}

void progress_line(Progress *p, int64_t done) {
    if (p->out && !p->terminal) print_now(p, done, clock_s());
}

void progress_end(Progress *p, int64_t done) {
    if (!p->out || !p->terminal) return;
    print(p, done, clock_s());
    fputc('\n', p->out);
}
