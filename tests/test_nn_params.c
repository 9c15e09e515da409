// The registry of parameters: where they lie in the flat buffers, which part of a whole tensor a rank holds,
// and what is in it at the start.
#include "base/half.h"
#include "base/rng.h"
#include "params_fixture.h"

static float element(int64_t row, int64_t col) { return (float)(row * 1000 + col); }

static void fill_whole(const Param *p, float *whole) {
    for (int64_t r = 0; r < p->spec.rows; r++)
        for (int64_t c = 0; c < p->spec.cols; c++) whole[r * p->spec.cols + c] = element(r, c);
}

static Param *declare_one(Params *params, int64_t rows, int64_t cols, Cut cut) {
    params_begin_unit(params);
    return params_declare(params, (ParamSpec){.name = "w", .rows = rows, .cols = cols, .cut = cut});
}

// ---- shares -------------------------------------------------------------------------------------

static void slices_put_together_are_the_whole(void) {
    static const Cut cuts[] = {{.dim = -1},
                               {.dim = 0},
                               {.dim = 1},
                               {.dim = 0, .blocks = 1},
                               {.dim = 0, .blocks = 2},
                               {.dim = 1, .blocks = 2},
                               {.dim = 0, .blocks = 3},
                               {.dim = 1, .blocks = 3}};
    enum { ROWS = 24, COLS = 48 };
    float whole[ROWS * COLS], back[ROWS * COLS] = {0}, local[ROWS * COLS];
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        for (int tp = 1; tp <= 4; tp += tp) {
            Params params = {0};
            Param *p = declare_one(&params, ROWS, COLS, cuts[i]);
            fill_whole(p, whole);
            for (int k = 0; k < ROWS * COLS; k++) back[k] = -1;
            int64_t count = 0;
            for (int rank = 0; rank < tp; rank++) {
                param_hold(p, tp, rank);
                param_slice(p, whole, local);
                param_unslice(p, local, back);
                count += param_local_count(p);
            }
            EXPECT(!memcmp(whole, back, sizeof whole), "dim %d blocks %d over %d", cuts[i].dim,
                   cuts[i].blocks, tp);
            EXPECT(count == (cuts[i].dim < 0 ? tp : 1) * ROWS * COLS, "%lld elements", (long long)count);
            params_free(&params);
        }
    }
}

// A gated MLP's weight is gate over up; each rank holds a slice of the gate, then the same slice of up.
static void blocks_are_cut_one_by_one(void) {
    Params params = {0};
    Param *p = declare_one(&params, 8, 2, (Cut){.dim = 0, .blocks = 2});
    float whole[16], local[8];
    fill_whole(p, whole);
    param_hold(p, 2, 1);
    param_slice(p, whole, local);
    static const int rows[] = {2, 3, 6, 7};
    for (int r = 0; r < 4; r++)
        EXPECT(local[2 * r + 1] == element(rows[r], 1), "row %d is %g", r, (double)local[2 * r + 1]);
    params_free(&params);

    p = declare_one(&params, 3, 8, (Cut){.dim = 1, .blocks = 2});
    float wide[24], half[12];
    fill_whole(p, wide);
    param_hold(p, 2, 1);
    param_slice(p, wide, half);
    static const int cols[] = {2, 3, 6, 7};
    for (int k = 0; k < 12; k++)
        EXPECT(half[k] == element(k / 4, cols[k % 4]), "element %d is %g", k, (double)half[k]);
    params_free(&params);
}

// However a share is cut into stretches, the rectangles of each are where its elements are in the whole
// tensor, and leave out the padding alone.
static void expect_rects(const Param *p, int pieces) {
    enum { MAX_ELEMENTS = 24 * 48 };
    float whole[MAX_ELEMENTS], local[MAX_ELEMENTS], back[MAX_ELEMENTS];
    int64_t count = param_local_count(p), found = 0, real = 0;
    fill_whole(p, whole);
    param_slice(p, whole, local);
    for (int64_t i = 0; i < count; i++) real += local[i] < element(p->spec.real_rows, 0), back[i] = -1;
    for (int k = 0; k < pieces; k++) {
        int64_t begin = count * k / pieces, end = count * (k + 1) / pieces;
        PlacementRects rects = placement_rects(&p->place, begin, end - begin);
        for (PlacementRect r; placement_next_rect(&rects, &r);)
            for (int64_t e = 0; e < r.rows * r.cols; e++) {
                int64_t row = e / r.cols, col = e % r.cols, at = r.local + row * r.stride + col;
                EXPECT(at >= begin && at < end, "element %lld is not of the stretch", (long long)at);
                back[at] = element(r.row + row, r.col + col);
                found++;
            }
    }
    EXPECT(found == real, "%lld of %lld elements", (long long)found, (long long)real);
    for (int64_t i = 0; i < count; i++)
        EXPECT(back[i] < 0 || back[i] == local[i], "element %lld is %g, not %g", (long long)i,
               (double)back[i], (double)local[i]);
}

static void rectangles_are_the_share(void) {
    static const Cut cuts[] = {{.dim = -1},
                               {.dim = 0},
                               {.dim = 1},
                               {.dim = 0, .blocks = 2},
                               {.dim = 1, .blocks = 2},
                               {.dim = 0, .blocks = 3}};
    static const int pieces[] = {1, 2, 3, 7, 50, 1152};
    for (size_t s = 0; s < sizeof cuts / sizeof *cuts; s++)
        for (int padding = 0; padding <= 5; padding += 5)
            for (int tp = 1; tp <= 4; tp += tp) {
                Params params = {0};
                Param *p = declare_one(&params, 24, 48, cuts[s]);
                p->spec.real_rows -= padding;
                for (int rank = 0; rank < tp; rank++) {
                    param_hold(p, tp, rank);
                    for (int k = 0; k < 6; k++) expect_rects(p, pieces[k]);
                }
                params_free(&params);
            }
}

// ---- experts ------------------------------------------------------------------------------------

static const Cut expert_cuts[] = {
    {.dim = -1}, {.dim = 0}, {.dim = 1}, {.dim = 0, .blocks = 2}, {.dim = 1, .blocks = 2}};
enum {
    NUM_EXPERT_CUTS = sizeof expert_cuts / sizeof *expert_cuts,
    EXPERTS = 4,
    EXPERT_ROWS = 24,
    EXPERT_COLS = 48
};

static Grid expert_grid(int etp, int ep, int dp) {
    Grid grid = GRID(etp, ep * dp, 1);
    grid.size[AXIS_EP] = ep;
    return grid;
}

// What a rank holds is what it would hold of each of its experts alone, one after the other.
static void expect_experts(const Param *p, Grid grid, int rank) {
    enum { ROWS = EXPERT_ROWS / EXPERTS, ALL = EXPERT_ROWS * EXPERT_COLS };
    float whole[ALL], local[ALL], alone[ALL];
    Place at = grid_place(grid, rank);
    int etp = grid_along(grid, AXIS_ETP), here = EXPERTS / grid_along(grid, AXIS_EP);
    fill_whole(p, whole);
    param_slice(p, whole, local);
    int64_t count = param_local_count(p) / here;
    for (int e = 0; e < here; e++) {
        Params one = {0};
        Param *expert = declare_one(&one, ROWS, EXPERT_COLS, p->spec.cut);
        int number = at.at[AXIS_EP] * here + e;
        param_hold(expert, etp, at.at[AXIS_ETP]);
        param_slice(expert, whole + number * ROWS * EXPERT_COLS, alone);
        EXPECT(param_local_count(expert) == count &&
                   !memcmp(alone, local + e * count, (size_t)count * sizeof *alone),
               "expert %d on rank %d, dim %d", number, rank, p->spec.cut.dim);
        params_free(&one);
    }
}

static void experts_are_cut_one_by_one(void) {
    static const int pieces[] = {1, 3, 7, 100};
    for (int c = 0; c < NUM_EXPERT_CUTS; c++)
        for (int i = 0; i < 12; i++) {
            Grid grid = expert_grid(1 + i % 2 * 2, 1 << i / 2 % 3, 1 + i / 6);
            Params params = {0};
            Param *p = declare_one(&params, EXPERT_ROWS, EXPERT_COLS, expert_cuts[c]);
            p->spec.experts = EXPERTS;
            int64_t firsts = 0;
            for (int rank = 0; rank < grid_size(grid); rank++) {
                param_hold_on(p, grid, rank);
                expect_experts(p, grid, rank);
                for (int k = 0; k < 4; k++) expect_rects(p, pieces[k]);
                firsts += p->place.first && !grid_place(grid, rank).at[AXIS_EDP] ? param_local_count(p) : 0;
                EXPECT(!placement_is_replicated(&p->place, ROLE_EXPERT) &&
                           !placement_is_replicated(&p->place, ROLE_TENSOR) &&
                           placement_is_replicated(&p->place, ROLE_EXPERT_REPLICAS) &&
                           placement_is_replicated(&p->place, ROLE_EXPERT_TENSOR) == (p->spec.cut.dim < 0),
                       "replicas on rank %d", rank);
            }
            EXPECT(firsts == EXPERT_ROWS * EXPERT_COLS, "%lld elements once", (long long)firsts);
            params_free(&params);
        }
}

// ---- places -------------------------------------------------------------------------------------

typedef struct {
    Grid grid;
    int chunks;
    bool vee;
    DType dtype;
} Case;

static const Case cases[] = {
    {GRID(1, 1, 1), 1, false, F32},  {GRID(2, 3, 1), 1, false, BF16}, {GRID(1, 2, 2), 1, false, F32},
    {GRID(2, 2, 2), 2, false, BF16}, {GRID(4, 4, 2), 2, true, F16},   {GRID(2, 1, 4), 2, false, F32},
    {GRID(2, 5, 1), 4, false, BF16},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

typedef struct {
    Device *device;
    Arena arena;
    Params params;
} Placed;

static Placed place(const Case *one, int pp_rank, int tp_rank) {
    Placed p = {0};
    Place at = {.at[AXIS_PP] = pp_rank, .at[AXIS_TP] = tp_rank};
    Topology topology = topology_of(one->grid, grid_rank(one->grid, at));
    int stages[8];
    EXPECT_OK(device_open(&p.device, (DeviceOptions){.kind = "reference", .threads = 1}));
    EXPECT_OK(arena_open(&p.arena, "run", device_memory(p.device), 1 << 20));
    declare_model(&p.params, grid_along(one->grid, AXIS_PP) * one->chunks);
    for (int c = 0; c < one->chunks; c++) stages[c] = fixture_stage(one->grid, one->vee, pp_rank, c);
    params_place(&p.params, &p.arena, &topology, one->dtype, stages, one->chunks);
    return p;
}

static void unplace(Placed *p) {
    params_free(&p->params);
    arena_close(&p->arena);
    device_close(p->device);
}

static void expect_in_region(const Param *p, const ChunkParams *chunk, const Case *one) {
    bool tied = p->spec.tied_to || !strcmp(p->spec.name, "table"),
         partial = p->spec.reduction == REDUCTION_PARTIAL && grid_along(one->grid, AXIS_TP) > 1;
    int64_t begin = tied ? chunk->region[REDUCTION_TIED] : partial ? chunk->region[REDUCTION_PARTIAL] : 0;
    int64_t end = tied      ? chunk->count
                  : partial ? chunk->region[REDUCTION_TIED]
                            : chunk->region[REDUCTION_PARTIAL];
    int64_t n = param_local_count(p);
    EXPECT(p->offset >= begin && p->offset + n <= end, "%s at %lld is outside [%lld, %lld)", p->spec.name,
           (long long)p->offset, (long long)begin, (long long)end);
    EXPECT(p->offset % PARAM_ALIGNMENT == 0, "%s starts at %lld", p->spec.name, (long long)p->offset);
    EXPECT(p->value.data == tensor_part(chunk->values, p->offset, n).data && p->value.dtype == one->dtype,
           "the value of %s lies elsewhere", p->spec.name);
    EXPECT(p->grad.data == tensor_part(chunk->grads, p->offset, n).data && p->grad.dtype == F32,
           "the gradient of %s lies elsewhere", p->spec.name);
    EXPECT(tensor_count(p->value) == n && tensor_count(p->grad) == n, "shapes of %s", p->spec.name);
}

// A chunk's parameters follow each other in the model's order within their region, and none overlaps another.
static void expect_in_order(const Params *params, int chunk, const Case *one) {
    const ChunkParams *c = &params->chunks[chunk];
    int64_t ends[3] = {0, c->region[REDUCTION_PARTIAL], c->region[REDUCTION_TIED]};
    int64_t unit = (int64_t)PARAM_ALIGNMENT * grid_along(one->grid, AXIS_DP);
    EXPECT(c->region[REDUCTION_PARTIAL] % unit == 0 && c->region[REDUCTION_TIED] % unit == 0 &&
               c->count % unit == 0,
           "borders of chunk %d", chunk);
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->chunk != chunk || p->tied_value) continue;
        expect_in_region(p, c, one);
        int64_t *end = &ends[p->offset >= c->region[REDUCTION_TIED]      ? 2
                             : p->offset >= c->region[REDUCTION_PARTIAL] ? 1
                                                                         : 0];
        EXPECT(p->offset >= *end && p->offset < *end + PARAM_ALIGNMENT, "a gap before %s", p->spec.name);
        *end = p->offset + param_local_count(p);
    }
}

static void regions_are_as_promised(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        int placed = 0;
        for (int rank = 0; rank < grid_along(cases[i].grid, AXIS_PP); rank++) {
            Placed p = place(&cases[i], rank, 0);
            for (int c = 0; c < cases[i].chunks; c++) expect_in_order(&p.params, c, &cases[i]);
            for (int k = 0; k < p.params.count; k++) placed += p.params.items[k]->chunk >= 0;
            unplace(&p);
        }
        EXPECT(placed == FIXTURE_PARAMS, "%d parameters on all ranks of case %d", placed, i);
    }
}

static void ties_within_a_rank_share_the_value(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        Placed p = place(&cases[i], 0, 0);
        const Param *table = params_find(&p.params, "table"), *head = params_find(&p.params, "head");
        bool here = grid_along(cases[i].grid, AXIS_PP) == 1 || cases[i].vee;
        EXPECT((head->tied_value == table) == here && !table->tied_value, "case %d", i);
        if (here) {
            EXPECT(head->value.data == table->value.data && head->offset == -1, "case %d", i);
            const ChunkParams *c = &p.params.chunks[table->chunk];
            EXPECT((char *)head->grad.data >= (char *)c->grads.data + tensor_bytes(c->grads), "case %d", i);
            EXPECT(tensor_same_shape(head->grad, table->grad), "case %d", i);
        }
        unplace(&p);
    }
}

static void ties_between_ranks_have_one_layout(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        if (grid_along(cases[i].grid, AXIS_PP) == 1 || cases[i].vee) continue;
        Placed first = place(&cases[i], 0, 0),
               last = place(&cases[i], grid_along(cases[i].grid, AXIS_PP) - 1, 0);
        const Param *table = params_find(&first.params, "table"), *head = params_find(&last.params, "head");
        const ChunkParams *a = &first.params.chunks[table->chunk], *b = &last.params.chunks[head->chunk];
        EXPECT(a->count - a->region[REDUCTION_TIED] == b->count - b->region[REDUCTION_TIED] &&
                   a->count > a->region[REDUCTION_TIED],
               "sizes in case %d", i);
        EXPECT(table->offset - a->region[REDUCTION_TIED] == head->offset - b->region[REDUCTION_TIED],
               "places in case %d", i);
        unplace(&first);
        unplace(&last);
    }
}

static void gradients_start_at_zero(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        Placed p = place(&cases[i], 0, 0);
        memset(p.arena.base, 0xff, p.arena.used);
        params_zero_grads(&p.params, p.device);
        for (int c = 0; c < p.params.num_chunks; c++) {
            const float *grads = p.params.chunks[c].grads.data;
            int64_t bad = 0;
            for (int64_t k = 0; k < p.params.chunks[c].count; k++) bad += bits_of_float(grads[k]) != 0;
            EXPECT(!bad, "%lld gradients of chunk %d, case %d", (long long)bad, c, i);
        }
        const Param *head = params_find(&p.params, "head");
        for (int64_t k = 0; head->tied_value && k < tensor_count(head->grad); k++)
            EXPECT(((float *)head->grad.data)[k] == 0, "gradient %lld of the copy", (long long)k);
        unplace(&p);
    }
}

// The first to ask for a gradient in a step finds zeros, the second what the first left; nothing else is touched.
static void a_step_begins_gradients(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        Placed p = place(&cases[i], 0, 0);
        params_begin_grads(&p.params);
        memset(p.arena.base, 0xff, p.arena.used);
        int64_t bad = 0, written = 0, places = 0;
        for (int j = 0; j < p.params.count; j++) {
            Param *param = p.params.items[j];
            if (param->chunk < 0) continue;
            float *grad = param_grad(param, p.device, (LeafPlace){0}).data;
            for (int64_t k = 0; k < tensor_count(param->grad); k++) {
                bad += bits_of_float(grad[k]) != 0;
                grad[k] = 1;
            }
            bad += ((float *)param_grad(param, p.device, (LeafPlace){0}).data)[0] != 1;
            places += param->tied_value ? 0 : tensor_count(param->grad);
        }
        for (int c = 0; c < p.params.num_chunks; c++)
            for (int64_t k = 0; k < p.params.chunks[c].count; k++)
                written += ((float *)p.params.chunks[c].grads.data)[k] == 1;
        EXPECT(!bad && written == places, "case %d: %lld wrong, %lld of %lld written", i, (long long)bad,
               (long long)written, (long long)places);
        params_begin_grads(&p.params);
        params_zero_grads(&p.params, p.device); // what is zero may be added to
        for (int j = 0; j < p.params.count; j++)
            EXPECT(!p.params.items[j]->grad_uninitialized, "parameter %d", j);
        unplace(&p);
    }
}

// ---- initial values -----------------------------------------------------------------------------

static void whole_init(const Param *p, float *whole) {
    RngKey key = rng_key(1234, p->spec.tied_to ? p->spec.tied_to : p->spec.name, 0);
    for (int64_t k = 0; k < p->spec.rows * p->spec.cols; k++) {
        whole[k] = p->spec.init == INIT_ONE ? 1 : 0;
        if (p->spec.init != INIT_NORMAL || k >= p->spec.real_rows * p->spec.cols) continue;
        rng_fill_normal(key, (uint64_t)k, 1, 0, p->spec.stddev, &whole[k]);
    }
}

static void check_master(void *self, const Param *p, const float *local) {
    int *calls = self;
    float whole[FIXTURE_LARGEST], want[FIXTURE_LARGEST];
    whole_init(p, whole);
    param_slice(p, whole, want);
    size_t bytes = (size_t)param_local_count(p) * sizeof *want;
    EXPECT(!memcmp(want, local, bytes), "the fp32 values of %s", p->spec.name);
    EXPECT(p->chunk >= 0 && !p->tied_value, "%s is not this rank's", p->spec.name);
    ++*calls;
}

static uint32_t bits_at(Tensor x, int64_t i) {
    return x.dtype == F32 ? ((uint32_t *)x.data)[i] : ((uint16_t *)x.data)[i];
}

static uint32_t rounded_bits(float x, DType dtype) {
    return dtype == F32 ? bits_of_float(x) : dtype == BF16 ? bf16_of_f32(x) : f16_of_f32(x);
}

// Every local value is the rounded element of the whole; all else in the buffers is zero.
static void expect_values(const Placed *p, const Case *one) {
    int64_t nonzero = 0, found = 0, bad = 0;
    for (int c = 0; c < p->params.num_chunks; c++)
        for (int64_t k = 0; k < p->params.chunks[c].count; k++)
            found += bits_at(p->params.chunks[c].values, k) != 0;
    for (int i = 0; i < p->params.count; i++) {
        const Param *param = p->params.items[i];
        if (param->chunk < 0) continue;
        float whole[FIXTURE_LARGEST], local[FIXTURE_LARGEST];
        whole_init(param, whole);
        param_slice(param, whole, local);
        for (int64_t k = 0; k < tensor_count(param->value); k++) {
            uint32_t want = rounded_bits(local[k], one->dtype);
            bad += bits_at(param->value, k) != want;
            nonzero += want != 0 && !param->tied_value;
        }
    }
    EXPECT(!bad, "%lld values differ", (long long)bad);
    EXPECT(found == nonzero, "%lld values are not zero, %lld should be", (long long)found,
           (long long)nonzero);
}

static void values_do_not_depend_on_the_grid(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        const Case *one = &cases[i];
        for (int rank = 0; rank < grid_along(one->grid, AXIS_TP) * grid_along(one->grid, AXIS_PP); rank++) {
            int tp = grid_along(one->grid, AXIS_TP), calls = 0, own = 0;
            Placed p = place(one, rank / tp, rank % tp);
            memset(p.arena.base, 0xff, p.arena.used);
            EXPECT_OK(params_init(&p.params, p.device, 1234, check_master, &calls));
            expect_values(&p, one);
            for (int k = 0; k < p.params.count; k++) own += p.params.items[k]->offset >= 0;
            EXPECT(calls == own, "%d of %d parameters were handed out", calls, own);
            unplace(&p);
        }
    }
}

// Large enough for several threads, with rows that begin within a block of random numbers, and padding.
enum { WIDE_ROWS = 384, WIDE_COLS = 257 };

static void copy_local(void *self, const Param *p, const float *local) {
    memcpy(self, local, (size_t)tensor_count(p->value) * sizeof *local);
}

// The local share of a rank as params_init makes it with so many threads, put into `whole`.
static void init_wide(int threads, int tp, int rank, float *whole) {
    Device *device;
    Arena arena;
    Params params = {0};
    float *local = malloc(WIDE_ROWS * WIDE_COLS * sizeof *local);
    CHECK(local, "no memory");
    EXPECT_OK(device_open(&device, (DeviceOptions){.kind = "cpu", .threads = threads}));
    EXPECT_OK(arena_open(&arena, "run", device_memory(device), 1 << 20));
    Param *p = declare_one(&params, WIDE_ROWS, WIDE_COLS, (Cut){.dim = 0, .blocks = 2});
    p->spec.init = INIT_NORMAL, p->spec.stddev = 0.02f, p->spec.real_rows = WIDE_ROWS - 5;
    Topology topology = topology_of((Grid)GRID(tp, 1, 1), rank);
    params_place(&params, &arena, &topology, F32, (int[]){0}, 1);
    EXPECT_OK(params_init(&params, device, 1234, copy_local, local));
    param_unslice(p, local, whole);
    free(local);
    params_free(&params);
    arena_close(&arena);
    device_close(device);
}

// Source: Fowler, Noll and Vo 1991, over 32-bit words.
static uint64_t hash_of(const float *x, int64_t count) {
    uint64_t hash = 14695981039346656037u;
    for (int64_t i = 0; i < count; i++) hash = (hash ^ bits_of_float(x[i])) * 1099511628211u;
    return hash;
}

static void threads_draw_the_same_values(void) {
    static const uint64_t golden = 0x2c476c9fb60cc0bc; // drawn by one thread
    float *whole = malloc(WIDE_ROWS * WIDE_COLS * sizeof *whole);
    CHECK(whole, "no memory");
    for (int threads = 1; threads <= 5; threads++)
        for (int tp = 1; tp <= 3; tp++) {
            memset(whole, 0xff, WIDE_ROWS * WIDE_COLS * sizeof *whole);
            for (int rank = 0; rank < tp; rank++) init_wide(threads, tp, rank, whole);
            uint64_t hash = hash_of(whole, WIDE_ROWS * WIDE_COLS);
            EXPECT(hash == golden, "%d threads, t %d: 0x%llx", threads, tp, (unsigned long long)hash);
        }
    free(whole);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"slices_put_together_are_the_whole", slices_put_together_are_the_whole},
                       {"blocks_are_cut_one_by_one", blocks_are_cut_one_by_one},
                       {"rectangles_are_the_share", rectangles_are_the_share},
                       {"experts_are_cut_one_by_one", experts_are_cut_one_by_one},
                       {"regions_are_as_promised", regions_are_as_promised},
                       {"ties_within_a_rank_share_the_value", ties_within_a_rank_share_the_value},
                       {"ties_between_ranks_have_one_layout", ties_between_ranks_have_one_layout},
                       {"gradients_start_at_zero", gradients_start_at_zero},
                       {"a_step_begins_gradients", a_step_begins_gradients},
                       {"values_do_not_depend_on_the_grid", values_do_not_depend_on_the_grid},
                       {"threads_draw_the_same_values", threads_draw_the_same_values},
                       {0}},
        argc, argv);
}
