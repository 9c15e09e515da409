// Buckets and the sums over them: every grid, bucket size, overlap and sharding gives the gradients of a
// plain loop over all ranks, bit for bit, and gathered weights are their owners'.
#include "parallel_fixture.h"

static const Setup setups[] = {
    {.grid = GRID(1, 1, 1), .bucket_elements = 500},
    {.grid = GRID(1, 2, 1), .bucket_elements = 500},
    {.grid = GRID(1, 2, 1), .bucket_elements = 500, .overlap = true},
    {.grid = GRID(1, 3, 1), .bucket_elements = 1, .overlap = true},
    {.grid = GRID(1, 3, 1), .bucket_elements = 1, .sharded = true, .overlap = true, .overlap_gather = true},
    {.grid = GRID(1, 4, 1), .bucket_elements = 1000000, .sharded = true},
    {.grid = GRID(1, 4, 1),
     .bucket_elements = 700,
     .sharded = true,
     .overlap_gather = true,
     .check_comm = true},
    {.grid = GRID(2, 1, 1), .bucket_elements = 300, .sharded = true},
    {.grid = GRID(2, 2, 1), .bucket_elements = 300, .sharded = true, .overlap = true, .device = "cpu"},
    {.grid = GRID(2, 2, 1), .num_chunks = 3, .bucket_elements = 200, .overlap = true, .check_comm = true},
    {.grid = GRID(1, 1, 2), .bucket_elements = 300},
    {.grid = GRID(1, 2, 2), .bucket_elements = 300, .overlap = true, .overlap_gather = true},
    {.grid = GRID(1, 2, 2), .bucket_elements = 300, .sharded = true, .overlap = true, .overlap_gather = true},
    {.grid = GRID(2, 2, 2), .num_chunks = 2, .bucket_elements = 300, .sharded = true, .dtype = BF16},
    {.grid = GRID(2, 3, 2),
     .num_chunks = 2,
     .bucket_elements = 130,
     .sharded = true,
     .overlap = true,
     .overlap_gather = true,
     .dtype = BF16,
     .device = "check"},
    {.grid = GRID(2, 2, 2),
     .num_chunks = 2,
     .vee = true,
     .bucket_elements = 300,
     .sharded = true,
     .dtype = F16},
    {.grid = GRID(1, 2, 2), .num_chunks = 2, .vee = true, .bucket_elements = 64, .overlap = true},
    {.grid = GRID(1, 2, 3), .num_chunks = 2, .bucket_elements = 400, .sharded = true, .overlap = true},
};
enum { NUM_SETUPS = sizeof setups / sizeof *setups };

// ---- buckets ------------------------------------------------------------------------------------

// The buckets of a chunk tile its buffers from the end to the start, none across a region's border.
static void expect_tiling(const Share *s, int chunk, int *next) {
    const ChunkParams *c = &s->params.chunks[chunk];
    int64_t end = c->count, unit = (int64_t)PARAM_ALIGNMENT * grid_along(s->setup->grid, AXIS_DP);
    int64_t largest = s->setup->bucket_elements > unit ? s->setup->bucket_elements : unit;
    for (; *next < s->buckets.count && s->buckets.items[*next].chunk == chunk; ++*next) {
        const Bucket *b = &s->buckets.items[*next];
        EXPECT(b->begin + b->count == end && b->count > 0, "a gap at %lld", (long long)end);
        EXPECT(b->begin % unit == 0 && b->count % unit == 0 && b->count <= largest, "[%lld, +%lld)",
               (long long)b->begin, (long long)b->count);
        for (int border = 0; border < 2; border++) {
            int64_t at = border ? c->region[REDUCTION_TIED] : c->region[REDUCTION_PARTIAL];
            EXPECT(at <= b->begin || at >= end, "a bucket lies across %lld", (long long)at);
        }
        EXPECT(b->deferred == (b->begin >= c->region[REDUCTION_PARTIAL]), "deferred %d at %lld", b->deferred,
               (long long)b->begin);
        end = b->begin;
    }
    EXPECT(end == 0, "chunk %d has no bucket below %lld", chunk, (long long)end);
}

static void expect_shard(const Share *s, const Bucket *b) {
    bool sharded = s->setup->sharded && grid_along(s->setup->grid, AXIS_DP) > 1;
    int64_t count = sharded ? b->count / grid_along(s->setup->grid, AXIS_DP) : b->count;
    EXPECT(s->buckets.sharded == sharded && b->shard_count == count, "shards of %lld",
           (long long)b->shard_count);
    EXPECT(b->shard_begin ==
               b->begin + (sharded ? count * context_rank(&s->runtime.context, ROLE_REPLICAS) : 0),
           "a shard at %lld", (long long)b->shard_begin);
}

static Status buckets_on_rank(Comm *world, void *arg) {
    Share s;
    share_open(&s, arg, world);
    int next = 0;
    for (int chunk = 0; chunk < s.params.num_chunks; chunk++) expect_tiling(&s, chunk, &next);
    EXPECT(next == s.buckets.count, "%d of %d buckets: %s", next, s.buckets.count, setup_name(s.setup));
    for (int i = 0; i < s.buckets.count; i++) expect_shard(&s, &s.buckets.items[i]);
    share_close(&s);
    return OK;
}

static void buckets_tile_the_regions(void) {
    for (int i = 0; i < NUM_SETUPS; i++) {
        Setup setup = setups[i];
        EXPECT_OK(setup_launch(&setup, buckets_on_rank, &setup));
    }
}

// ---- sums ---------------------------------------------------------------------------------------

static void add_to(float *sum, const float *x) {
    for (int64_t k = 0; k < FIXTURE_LARGEST; k++) sum[k] += x[k];
}

// What the ranks of one copy of the model have of a whole parameter: rows of all tensor ranks, both ends of a
// tie.
static void gradient_of_copy(const ParamSpec *spec, Grid grid, int step, int dp, float *sum) {
    float x[FIXTURE_LARGEST] = {0};
    contribution(spec, step, dp, 0, sum);
    for (int tp = 1; spec->reduction == REDUCTION_PARTIAL && tp < grid_along(grid, AXIS_TP); tp++) {
        contribution(spec, step, dp, tp, x);
        add_to(sum, x);
    }
    if (strcmp(spec->name, "table") && strcmp(spec->name, "head")) return;
    ParamSpec table = *spec, head = *spec;
    snprintf(table.name, sizeof table.name, "table");
    snprintf(head.name, sizeof head.name, "head");
    contribution(&table, step, dp, 0, sum);
    contribution(&head, step, dp, 0, x);
    add_to(sum, x);
}

static void plain_sums(const Setup *setup, int step, Whole *want) {
    Params params = {0};
    declare_model(&params, grid_along(setup->grid, AXIS_PP) * setup_chunks(setup));
    for (int i = 0; i < params.count; i++) {
        const ParamSpec *spec = &params.items[i]->spec;
        float sum[FIXTURE_LARGEST] = {0}, one[FIXTURE_LARGEST] = {0};
        gradient_of_copy(spec, setup->grid, step, 0, sum);
        for (int dp = 1; dp < grid_along(setup->grid, AXIS_DP); dp++) {
            gradient_of_copy(spec, setup->grid, step, dp, one);
            add_to(sum, one);
        }
        memcpy(want->of[i], sum, (size_t)(spec->rows * spec->cols) * sizeof *sum);
    }
    params_free(&params);
}

typedef struct {
    Setup setup;
    Whole *whole;
} Job;

enum { STEPS = 2 };

static Status sums_on_rank(Comm *world, void *arg) {
    Job *job = arg;
    Share s;
    share_open(&s, &job->setup, world);
    for (int step = 0; step < STEPS; step++) {
        run_backward(&s, step);
        grad_reducer_finish(&s.reducer);
        collect_owned(&job->whole[step], &s, GRADS);
    }
    share_close(&s);
    return OK;
}

static void sums_equal_plain_loops(void) {
    for (int i = 0; i < NUM_SETUPS; i++) {
        Job job = {setups[i], calloc(STEPS + 1, sizeof *job.whole)};
        CHECK(job.whole, "no memory");
        for (int step = 0; step <= STEPS; step++) whole_open(&job.whole[step]);
        EXPECT_OK(setup_launch(&job.setup, sums_on_rank, &job));
        for (int step = 0; step < STEPS; step++) {
            plain_sums(&job.setup, step, &job.whole[STEPS]);
            expect_same_whole(&job.whole[step], &job.whole[STEPS], "gradients", &job.setup);
        }
        free(job.whole);
    }
}

// ---- overlap ------------------------------------------------------------------------------------

// Whether a bucket holds values of any unit from `first` to before `end`.
static bool holds_any(const Share *s, const Bucket *b, int first, int end) {
    for (int unit = first; unit < end; unit++)
        if (bucket_holds(b, &s->params, unit)) return true;
    return false;
}

// Units are finished from the last one on. A bucket is under way exactly once all units that it holds are finished, a
// deferred one never before the end. Padding alone leaves with its chunk.
static void expect_posted(const Share *s, int first_finished, bool overlap) {
    for (int i = 0; i < s->buckets.count; i++) {
        const Bucket *b = &s->buckets.items[i];
        bool due = !b->deferred && overlap && b->num_units && !holds_any(s, b, 0, first_finished);
        EXPECT(s->reducer.reduced[i] == due, "bucket %d at %lld after unit %d", i, (long long)b->begin,
               first_finished);
    }
}

static void expect_chunk_posted(const Share *s, int chunk) {
    for (int i = 0; i < s->buckets.count; i++) {
        const Bucket *b = &s->buckets.items[i];
        EXPECT(b->chunk != chunk || s->reducer.reduced[i] == !b->deferred, "bucket %d of chunk %d", i, chunk);
    }
}

static Status overlap_on_rank(Comm *world, void *arg) {
    Share s;
    share_open(&s, arg, world);
    bool overlap = s.setup->overlap;
    int units = s.params.num_units;
    UnitWatch watch = grad_reducer_watch(&s.reducer);
    params_zero_grads(&s.params, s.runtime.device);
    for (int step = 0; step < 2; step++) {
        expect_posted(&s, units, overlap);
        for (int unit = units - 1; unit >= 0; unit--) {
            watch.finish(watch.self, unit, true);
            expect_posted(&s, unit, overlap);
        }
        for (int chunk = 0; chunk < s.params.num_chunks; chunk++) {
            grad_reducer_start(&s.reducer, chunk);
            expect_chunk_posted(&s, chunk);
        }
        grad_reducer_finish(&s.reducer);
    }
    expect_posted(&s, units, overlap);
    share_close(&s);
    return OK;
}

static void buckets_leave_when_passed(void) {
    for (int overlap = 0; overlap < 2; overlap++) {
        Setup setup = {.grid = GRID(2, 2, 1), .num_chunks = 2, .bucket_elements = 300, .overlap = overlap};
        EXPECT_OK(setup_launch(&setup, overlap_on_rank, &setup));
    }
}

// ---- weights ------------------------------------------------------------------------------------

// Small integers, exact in every element type; no two neighbours are equal.
static float owner_value(int chunk, int64_t at, int round) {
    return (float)((at * 7 + chunk * 31 + round * 13) % 251);
}

static void write_own(const Share *s, int b, int round) {
    const Bucket *bucket = &s->buckets.items[b];
    Tensor values = s->params.chunks[bucket->chunk].values;
    float *own = malloc((size_t)bucket->shard_count * (sizeof *own + sizeof(uint16_t)));
    CHECK(own, "no memory");
    uint16_t *half = (uint16_t *)(own + bucket->shard_count);
    for (int64_t k = 0; k < bucket->shard_count; k++) {
        own[k] = owner_value(bucket->chunk, bucket->shard_begin + k, round);
        half[k] = values.dtype == BF16 ? bf16_of_f32(own[k]) : f16_of_f32(own[k]);
    }
    device_upload(s->runtime.device, s->runtime.context.stream,
                  tensor_part(values, bucket->shard_begin, bucket->shard_count),
                  values.dtype == F32 ? (void *)own : half);
    free(own);
}

// Elements [begin, end) of a chunk are what their owners wrote.
static void expect_owners(const Share *s, int chunk, int64_t begin, int64_t end, int round) {
    int64_t bad = 0;
    float *got = downloaded(s, tensor_part(s->params.chunks[chunk].values, begin, end - begin));
    for (int64_t at = begin; at < end; at++) bad += got[at - begin] != owner_value(chunk, at, round);
    free(got);
    EXPECT(!bad, "%lld of [%lld, %lld) of chunk %d in round %d: %s", (long long)bad, (long long)begin,
           (long long)end, chunk, round, setup_name(s->setup));
}

// A unit that is acquired has the values of its owners, and a tied copy those of its original.
static void expect_acquired(Share *s, int unit, int round) {
    UnitWatch watch = grad_reducer_watch(&s->reducer);
    if (s->setup->overlap_gather) watch.acquire(watch.self, unit, -1);
    for (int i = s->params.units[unit].first; i < s->params.units[unit].end; i++) {
        const Param *p = s->params.items[i], *owner = p->tied_value ? p->tied_value : p;
        if (p->chunk >= 0)
            expect_owners(s, owner->chunk, owner->offset, owner->offset + param_local_count(owner), round);
    }
}

// Round by round, reading what a forward may read as soon as it may. Some forwards ask for half, one for all.
static Status gather_on_rank(Comm *world, void *arg) {
    Share s;
    share_open(&s, arg, world);
    for (int round = 0; round < 3; round++) {
        for (int b = 0; b < s.buckets.count; b++) write_own(&s, b, round);
        grad_reducer_gather(&s.reducer);
        int units = round < 2 ? s.params.num_units / 2 : s.params.num_units;
        for (int unit = 0; unit < units; unit++) expect_acquired(&s, unit, round);
        if (round == 1)
            grad_reducer_gather_wait(&s.reducer);
        else
            run_backward(&s, round), grad_reducer_finish(&s.reducer);
        for (int b = 0; b < s.buckets.count; b++)
            EXPECT(!s.reducer.gathering[b], "bucket %d is on its way", b);
        for (int chunk = 0; chunk < s.params.num_chunks; chunk++)
            expect_owners(&s, chunk, 0, s.params.chunks[chunk].count, round);
    }
    share_close(&s);
    return OK;
}

static void gathered_weights_are_their_owners(void) {
    for (int i = 0; i < NUM_SETUPS; i++) {
        Setup setup = setups[i];
        EXPECT_OK(setup_launch(&setup, gather_on_rank, &setup));
    }
}

// A forward waits for the buckets that hold its unit and leaves the rest on their way.
static Status need_on_rank(Comm *world, void *arg) {
    Share s;
    share_open(&s, arg, world);
    UnitWatch watch = grad_reducer_watch(&s.reducer);
    grad_reducer_gather(&s.reducer);
    for (int unit = 0; unit < s.params.num_units; unit++) {
        watch.acquire(watch.self, unit, -1);
        for (int i = 0; i < s.buckets.count; i++)
            EXPECT(!s.reducer.gathering[i] == holds_any(&s, &s.buckets.items[i], 0, unit + 1),
                   "bucket %d at %lld, unit %d", i, (long long)s.buckets.items[i].begin, unit);
    }
    grad_reducer_gather_wait(&s.reducer);
    for (int i = 0; i < s.buckets.count; i++) EXPECT(!s.reducer.gathering[i], "bucket %d", i);
    share_close(&s);
    return OK;
}

static void forwards_wait_for_what_they_need(void) {
    Setup setup = {.grid = GRID(2, 2, 1),
                   .num_chunks = 2,
                   .bucket_elements = 300,
                   .sharded = true,
                   .overlap_gather = true};
    EXPECT_OK(setup_launch(&setup, need_on_rank, &setup));
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"buckets_tile_the_regions", buckets_tile_the_regions},
                       {"sums_equal_plain_loops", sums_equal_plain_loops},
                       {"buckets_leave_when_passed", buckets_leave_when_passed},
                       {"gathered_weights_are_their_owners", gathered_weights_are_their_owners},
                       {"forwards_wait_for_what_they_need", forwards_wait_for_what_they_need},
                       {0}},
        argc, argv);
}
