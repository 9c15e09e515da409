// Chooses the grid of a start: the asked one, or the best for fewer cores or hosts.
#include "supervise/supervise.h"
#include <string.h>

static bool changes_no_bit(const GridRequest *r, GridChoice g) {
    if (g.t != r->asked.t) return false;
    return g.d == r->asked.d ||
           (r->virtual_dp > 0 && r->virtual_dp % g.d == 0 && r->virtual_dp % r->asked.d == 0);
}

static bool is_allowed(const GridRequest *r, GridChoice g) {
    return (r->elastic == ELASTIC_ROUNDING || changes_no_bit(r, g)) && r->possible(r->self, g);
}

// The documented rule.
static bool is_before(GridChoice a, GridChoice b, int asked_v) {
    if (grid_ranks(a) != grid_ranks(b)) return grid_ranks(a) > grid_ranks(b);
    if (a.d != b.d) return a.d > b.d;
    if (a.p != b.p) return a.p < b.p;
    return a.v == asked_v && b.v != asked_v;
}

typedef struct {
    GridChoice grid;
    double step_s;
    bool any;
} BestGrid;

static void consider(const GridRequest *r, GridChoice g, BestGrid *best) {
    if (best->any && !r->step_s && !is_before(g, best->grid, r->asked.v)) return;
    if (!is_allowed(r, g)) return;
    double step_s = r->step_s ? r->step_s(r->self, g) : 0;
    bool differ = step_s > 0 && best->step_s > 0 && step_s != best->step_s;
    if (best->any && (differ ? step_s > best->step_s : !is_before(g, best->grid, r->asked.v))) return;
    *best = (BestGrid){g, step_s, true};
}

bool grid_choose(const GridRequest *r, int most, GridChoice *chosen) {
    BestGrid best = {0};
    *chosen = r->asked;
    if (grid_ranks(r->asked) <= most) return true;
    if (r->elastic == ELASTIC_OFF) return false;
    int c = r->asked.c, room = most / c;
    for (int d = 1; d <= room; d++)
        for (int t = 1; t <= room / d; t++)
            for (int p = 1; p <= room / d / t; p++) {
                consider(r, (GridChoice){t, p, r->asked.v, d, c}, &best);
                if (r->asked.v > 1) consider(r, (GridChoice){t, p, 1, d, c}, &best);
            }
    if (best.any) *chosen = best.grid;
    return best.any;
}
