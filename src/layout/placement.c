// Computes the shares of cut tensors: their sizes, their elements, their rectangles of the whole tensor.
#include "layout/placement.h"

#define X(reduction, first, replicas, alone, matrices, doing)                                                \
    {                                                                                                        \
        first,                                                                                               \
        ROLE_##replicas,                                                                                     \
        ROLE_##replicas##_SHARDS,                                                                            \
        ROLE_##replicas##_COPIES,                                                                            \
        REDUCTION_##alone,                                                                                   \
        matrices,                                                                                            \
        doing},
const ReductionInfo placement_reductions[NUM_REDUCTIONS] = {PLACEMENT_REDUCTIONS(X)};
#undef X

#define X(what, name) name,
const char *const sharding_names[NUM_SHARDINGS] = {PLACEMENT_SHARDINGS(X)};
#undef X

Reduction reduction_on(Grid grid, Reduction reduction) {
    const ReductionInfo *info = &placement_reductions[reduction];
    bool alone = info->first != NO_ROLE && grid_count(grid, (Role)info->first) == 1;
    return alone ? info->alone : reduction;
}

// ---- sizes ----------------------------------------------------------------------------------------

// The coordinates that tell the ranks with the same share apart: neither the stage, nor the slice, nor the replicas.
static bool is_first(const Topology *t, Cut cut, bool experts, const RoleInfo *replicas) {
    for (Axis axis = 0; axis < NUM_AXES; axis++) {
        bool slices = (cut.dim >= 0 && axis == cut.axis) || (experts && axis == AXIS_EP);
        bool other = axis == AXIS_PP || slices || replicas->axes & 1u << axis;
        if (topology_axes[axis].views & replicas->view && !other && t->place.at[axis]) return false;
    }
    return true;
}

// The rows and blocks of this rank's experts.
static void choose_experts(Placement *p, const Topology *t, int experts) {
    int ep = grid_along(t->grid, AXIS_EP), here = experts / ep;
    CHECK(experts % ep == 0 && p->rows % experts == 0, "%lld rows of %d experts over %d ranks",
          (long long)p->rows, experts, ep);
    p->height = p->rows / ep;
    p->first_row = t->place.at[AXIS_EP] * p->height;
    p->cut.axis = AXIS_ETP;
    if (p->cut.dim == 0) p->cut.blocks = here * (p->cut.blocks ? p->cut.blocks : 1);
}

Placement placement_of(const Topology *t, PlacedTensor x) {
    Placement p = {.cut = x.cut,
                   .rows = x.rows,
                   .cols = x.cols,
                   .real_rows = x.real_rows,
                   .height = x.rows,
                   .parts = 1,
                   .reduction = reduction_on(t->grid, x.reduction)};
    if (x.experts) choose_experts(&p, t, x.experts);
    const Cut *cut = &p.cut;
    if (cut->dim >= 0) p.parts = grid_along(t->grid, cut->axis), p.part = t->place.at[cut->axis];
    p.first = is_first(t, *cut, x.experts, &topology_roles[placement_reductions[p.reduction].replicas]);
    if (cut->dim < 0 || !cut->blocks) p.cut.blocks = 1;
    int64_t size = cut->dim == 0 ? p.height : p.cols;
    CHECK(cut->dim < 0 || size % ((int64_t)cut->blocks * p.parts) == 0,
          "%lld do not divide into %d blocks over %d ranks", (long long)size, cut->blocks, p.parts);
    return p;
}

int64_t placement_rows(const Placement *p) { return p->cut.dim == 0 ? p->height / p->parts : p->height; }
int64_t placement_cols(const Placement *p) { return p->cut.dim == 1 ? p->cols / p->parts : p->cols; }
int64_t placement_count(const Placement *p) { return placement_rows(p) * placement_cols(p); }

bool placement_is_replicated(const Placement *p, Role role) {
    const RoleInfo *info = &topology_roles[role], *replicas;
    replicas = &topology_roles[placement_reductions[p->reduction].replicas];
    if (role == ROLE_ENDS) return p->reduction == REDUCTION_TIED;
    if (info->view != replicas->view || role == ROLE_EXPERT) return false;
    return p->cut.dim < 0 || !(info->axes & 1u << p->cut.axis);
}

// ---- elements -------------------------------------------------------------------------------------

int64_t placement_runs(const Placement *p) {
    return placement_rows(p) * (p->cut.dim == 1 ? p->cut.blocks : 1);
}

PlacementRun placement_run(const Placement *p, int64_t i) {
    int64_t blocks = p->cut.blocks, size = p->cut.dim == 0 ? p->height : p->cols;
    int64_t block = size / blocks, slice = block / p->parts;
    if (p->cut.dim == 0) {
        int64_t row = i / slice * block + slice * p->part + i % slice;
        return (PlacementRun){p->first_row + row, 0, p->cols, i * p->cols};
    }
    if (p->cut.dim == 1)
        return (PlacementRun){p->first_row + i / blocks, i % blocks * block + slice * p->part, slice,
                              i * slice};
    return (PlacementRun){p->first_row + i, 0, p->cols, i * p->cols};
}

// ---- rectangles -----------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Elements [begin, begin + count) of rows of `width`: the end of a row, whole rows, the start of a row.
static int areas_of(int64_t begin, int64_t count, int64_t width, PlacementArea areas[3]) {
    int n = 0;
    int64_t end = begin + count, first = begin / width, col = begin % width;
    if (col || end < (first + 1) * width) {
        int64_t stop = end < (first + 1) * width ? end - first * width : width;
        areas[n++] = (PlacementArea){first++, col, 1, stop - col};
    }
    int64_t whole = end / width - first;
    if (whole > 0) areas[n++] = (PlacementArea){first, 0, whole, width};
    if (end / width >= first && end % width) areas[n++] = (PlacementArea){end / width, 0, 1, end % width};
    return n;
}

// The part of an area that lies in block `b` of the share, which is one rectangle of the whole tensor too.
static bool rect_of(const Placement *p, int b, PlacementArea area, PlacementRect *rect) {
    int64_t width = placement_cols(p), height = placement_rows(p);
    PlacementArea block = {0, 0, height, width};
    int64_t row = p->first_row, col = 0; // of the block in the whole tensor
    if (p->cut.dim == 0) {
        block.rows = height / p->cut.blocks, block.row = b * block.rows;
        row += b * (p->height / p->cut.blocks) + p->part * block.rows;
    } else if (p->cut.dim == 1) {
        block.cols = width / p->cut.blocks, block.col = b * block.cols;
        col = b * (p->cols / p->cut.blocks) + p->part * block.cols;
    }
    int64_t top = larger(area.row, block.row), left = larger(area.col, block.col);
    int64_t bottom = smaller(area.row + area.rows, block.row + block.rows);
    int64_t right = smaller(area.col + area.cols, block.col + block.cols);
    row += top - block.row, col += left - block.col;
    bottom = smaller(bottom, top + p->real_rows - row);
    *rect = (PlacementRect){row, col, bottom - top, right - left, top * width + left, width};
    return rect->rows > 0 && rect->cols > 0;
}

PlacementRects placement_rects(const Placement *p, int64_t begin, int64_t count) {
    PlacementRects rects = {.placement = p};
    if (count > 0) rects.num_areas = areas_of(begin, count, placement_cols(p), rects.areas);
    return rects;
}

bool placement_next_rect(PlacementRects *rects, PlacementRect *rect) {
    for (; rects->area < rects->num_areas; rects->area++, rects->block = 0)
        while (rects->block < rects->placement->cut.blocks)
            if (rect_of(rects->placement, rects->block++, rects->areas[rects->area], rect)) return true;
    return false;
}
