// Computes the shares of cut tensors: their sizes, their elements, their rectangles of the whole tensor.
#include "layout/placement.h"

#define X(reduction, first, replicas, alone, doing) {first, replicas, REDUCTION_##alone, doing},
const ReductionInfo placement_reductions[NUM_REDUCTIONS] = {PLACEMENT_REDUCTIONS(X)};
#undef X

Reduction reduction_on(Grid grid, Reduction reduction) {
    const ReductionInfo *info = &placement_reductions[reduction];
    bool alone = info->first != NO_ROLE && grid_count(grid, (Role)info->first) == 1;
    return alone ? info->alone : reduction;
}

// ---- sizes ----------------------------------------------------------------------------------------

// The coordinates that tell the ranks with the same share apart: neither the stage, nor the slice, nor the replicas.
static bool is_first(const Topology *t, Cut cut, const RoleInfo *replicas) {
    for (Axis axis = 0; axis < NUM_AXES; axis++) {
        bool other = axis == AXIS_PP || (cut.dim >= 0 && axis == cut.axis) || replicas->axes & 1u << axis;
        if (topology_axes[axis].views & replicas->view && !other && t->place.at[axis]) return false;
    }
    return true;
}

Placement placement_of(const Topology *t, Cut cut, Reduction reduction, int64_t rows, int64_t cols,
                       int64_t real_rows) {
    Placement p = {cut, rows, cols, real_rows, 1, 0, reduction_on(t->grid, reduction), false};
    if (cut.dim >= 0) p.parts = grid_along(t->grid, cut.axis), p.part = t->place.at[cut.axis];
    p.first = is_first(t, cut, &topology_roles[placement_reductions[p.reduction].replicas]);
    if (cut.dim < 0 || !cut.blocks) p.cut.blocks = 1;
    int64_t size = cut.dim == 0 ? rows : cols;
    CHECK(cut.dim < 0 || size % ((int64_t)p.cut.blocks * p.parts) == 0,
          "%lld do not divide into %d blocks over %d ranks", (long long)size, p.cut.blocks, p.parts);
    return p;
}

int64_t placement_rows(const Placement *p) { return p->cut.dim == 0 ? p->rows / p->parts : p->rows; }
int64_t placement_cols(const Placement *p) { return p->cut.dim == 1 ? p->cols / p->parts : p->cols; }
int64_t placement_count(const Placement *p) { return placement_rows(p) * placement_cols(p); }

bool placement_is_replicated(const Placement *p, Role role) {
    if (role == ROLE_ENDS) return p->reduction == REDUCTION_TIED;
    return p->cut.dim < 0 || !(topology_roles[role].axes & 1u << p->cut.axis);
}

// ---- elements -------------------------------------------------------------------------------------

int64_t placement_runs(const Placement *p) {
    return placement_rows(p) * (p->cut.dim == 1 ? p->cut.blocks : 1);
}

PlacementRun placement_run(const Placement *p, int64_t i) {
    int64_t blocks = p->cut.blocks, size = p->cut.dim == 0 ? p->rows : p->cols;
    int64_t block = size / blocks, slice = block / p->parts;
    if (p->cut.dim == 0) {
        int64_t row = i / slice * block + slice * p->part + i % slice;
        return (PlacementRun){row, 0, p->cols, i * p->cols};
    }
    if (p->cut.dim == 1)
        return (PlacementRun){i / blocks, i % blocks * block + slice * p->part, slice, i * slice};
    return (PlacementRun){i, 0, p->cols, i * p->cols};
}

// ---- rectangles -----------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

typedef struct {
    int64_t row, col, rows, cols;
} Area; // of a local share

// Elements [begin, begin + count) of rows of `width`: the end of a row, whole rows, the start of a row.
static int areas_of(int64_t begin, int64_t count, int64_t width, Area areas[3]) {
    int n = 0;
    int64_t end = begin + count, first = begin / width, col = begin % width;
    if (col || end < (first + 1) * width) {
        int64_t stop = end < (first + 1) * width ? end - first * width : width;
        areas[n++] = (Area){first++, col, 1, stop - col};
    }
    int64_t whole = end / width - first;
    if (whole > 0) areas[n++] = (Area){first, 0, whole, width};
    if (end / width >= first && end % width) areas[n++] = (Area){end / width, 0, 1, end % width};
    return n;
}

// The part of an area that lies in block `b` of the share, which is one rectangle of the whole tensor too.
static bool rect_of(const Placement *p, int b, Area area, PlacementRect *rect) {
    int64_t width = placement_cols(p), height = placement_rows(p);
    Area block = {0, 0, height, width};
    int64_t row = 0, col = 0; // of the block in the whole tensor
    if (p->cut.dim == 0) {
        block.rows = height / p->cut.blocks, block.row = b * block.rows;
        row = b * (p->rows / p->cut.blocks) + p->part * block.rows;
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

int placement_rects(const Placement *p, int64_t begin, int64_t count,
                    PlacementRect rects[MAX_PLACEMENT_RECTS]) {
    Area areas[3];
    int num_areas = count > 0 ? areas_of(begin, count, placement_cols(p), areas) : 0, n = 0;
    int blocks = p->cut.blocks;
    CHECK(3 * blocks <= MAX_PLACEMENT_RECTS, "a tensor of %d blocks", blocks);
    for (int a = 0; a < num_areas; a++)
        for (int b = 0; b < blocks; b++) n += rect_of(p, b, areas[a], &rects[n]);
    return n;
}
