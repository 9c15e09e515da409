// Compares replicas: copies of weights, master weights and moments that must have the same bits on several ranks. Ranks
// compare one checksum; where it differs, they compare the checksums of every tensor.
#include "checkpoint/manifest.h"
#include "train/internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// The tensors that a rank holds of one parameter.
typedef enum { WEIGHT, MASTER_WEIGHT, FIRST_MOMENT, SECOND_MOMENT, MOMENTUM, AVERAGE, NUM_KEPT } Kept;

static const char *const kept_names[NUM_KEPT] = {"weights",
                                                 "master weights beside the weights",
                                                 "AdamW's first moment",
                                                 "AdamW's second moment",
                                                 "Muon's momentum",
                                                 "the average of weights"};

// The roles whose ranks may hold replicas, in the order in which they are compared. Replicas of the gradient's
// reduction (the first two) get the same gradients: there a difference stays in its tensor. Over tp, etp and ENDS (of
// the tied embedding) it spreads with the next step, so that the first tensor need not be the one where it began. Over
// ep nothing has replicas.
static const Role sharing[] = {ROLE_REPLICAS,      ROLE_EXPERT_REPLICAS, ROLE_TENSOR,
                               ROLE_EXPERT_TENSOR, ROLE_EXPERT,          ROLE_ENDS};
enum {
    NUM_SHARING = sizeof sharing / sizeof *sharing,
    ALL_SHARING = (1 << NUM_SHARING) - 1,
    OF_REDUCTION = 1 << 0 | 1 << 1
};

typedef struct {
    Context *context;
    const Params *params;
    bool sharded;     // the optimizer's state, over dp
    uint64_t *hashes; // [params->count * NUM_KEPT]; 0: this rank keeps nothing of it that another has, too
    int cursor;       // the parameter of the last part of the optimizer
    void *piece;      // [TENSOR_PIECE_BYTES]: what is downloaded of a tensor
} Checksums;

// ---- replicas -------------------------------------------------------------------------

// The index of the parameter that is a copy of this one, or -1.
static int copy_of(const Params *params, int param) {
    for (int i = 0; i < params->count; i++) {
        const char *original = params->items[i]->spec.tied_to;
        if (original && !strcmp(original, params->items[param]->spec.name)) return i;
    }
    return -1;
}

static bool is_replicated(const Checksums *sums, int param, Kept kept, Role role) {
    const Placement *place = &sums->params->items[param]->place;
    if (role == placement_reductions[place->reduction].replicas)
        return kept == WEIGHT ? sums->params->sharding != SHARD_VALUES : !sums->sharded;
    return placement_is_replicated(place, role);
}

static bool any_is_replicated(const Checksums *sums, Role role) {
    for (int i = 0; i < sums->params->count * NUM_KEPT; i++)
        if (is_replicated(sums, i / NUM_KEPT, (Kept)(i % NUM_KEPT), role)) return true;
    return false;
}

// True when another rank of the grid has a replica. The answer is the same on all ranks.
static bool has_replicas(const Checksums *sums, int param, Kept kept) {
    for (int i = 0; i < NUM_SHARING; i++)
        if (grid_count(sums->context->groups.topology.grid, sharing[i]) > 1 &&
            is_replicated(sums, param, kept, sharing[i]))
            return true;
    return false;
}

static bool any_has_replicas(const Checksums *sums) {
    for (int i = 0; i < sums->params->count * NUM_KEPT; i++)
        if (has_replicas(sums, i / NUM_KEPT, (Kept)(i % NUM_KEPT))) return true;
    return false;
}

// ---- this rank's checksums ----------------------------------------------------------------------

static void add_tensor(Checksums *sums, int param, Kept kept, Device *device, Stream *stream, Tensor x) {
    if (!has_replicas(sums, param, kept)) return;
    uint64_t *hash = &sums->hashes[param * NUM_KEPT + (int)kept];
    *hash = tensor_hash(device, stream, x, sums->piece, *hash);
    if (!*hash) *hash = 1;
}

// The parts of a bucket come in the order of the parameters.
static Status add_part(void *self, const OwnedPart *part) {
    Checksums *sums = self;
    const Params *params = sums->params;
    while (params->items[sums->cursor] != part->param) sums->cursor = (sums->cursor + 1) % params->count;
    const struct {
        Kept kept;
        Tensor x;
    } all[] = {{MASTER_WEIGHT, part->value.dtype != F32 ? part->main : (Tensor){0}},
               {part->v.data ? FIRST_MOMENT : MOMENTUM, part->m},
               {SECOND_MOMENT, part->v},
               {AVERAGE, part->ema}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].x.data) add_tensor(sums, sums->cursor, all[i].kept, part->device, part->stream, all[i].x);
    return OK;
}

static void take_checksums(Checksums *sums, const Optimizer *optimizer) {
    const Context *c = sums->context;
    for (int i = 0; i < sums->params->count; i++) {
        const Param *p = sums->params->items[i];
        if (p->chunk >= 0 && !p->tied_value) add_tensor(sums, i, WEIGHT, c->device, c->stream, p->kept);
    }
    optimizer_visit(optimizer, add_part, sums);
}

// ---- comparison -------------------------------------------------------------------------

// Two integers of 32 bits and their negatives: where ranks agree, the largest values of a pair add up to 0.
static bool alike(Comm *group, uint64_t hash) {
    double high = (double)(hash >> 32), low = (double)(hash & UINT32_MAX), ends[4] = {high, low, -high, -low};
    comm_all_reduce_host(group, ends, 4, REDUCE_MAX);
    return ends[0] == -ends[2] && ends[1] == -ends[3];
}

static bool agree_over(const Checksums *sums, Role role) {
    Comm *group = context_group(sums->context, role);
    if (!group || comm_size(group) == 1 || !any_is_replicated(sums, role)) return true;
    uint64_t hash = 0;
    for (int i = 0; i < sums->params->count * NUM_KEPT; i++)
        if (sums->hashes[i] && is_replicated(sums, i / NUM_KEPT, (Kept)(i % NUM_KEPT), role))
            hash = hash * 0x9E3779B97F4A7C15u + sums->hashes[i];
    return alike(group, hash);
}

static bool all_agree(const Checksums *sums, Comm *world) {
    bool agree = true;
    for (int i = 0; i < NUM_SHARING; i++) agree &= agree_over(sums, sharing[i]);
    double differ = !agree;
    comm_all_reduce_host(world, &differ, 1, REDUCE_MAX);
    return !(differ > 0);
}

// ---- which replicas differ --------------------------------------------------------------------------

// Every rank has all checksums and so finds the same differences.
typedef struct {
    const Checksums *sums;
    const uint64_t *all; // [ranks][params->count * NUM_KEPT]
    int ranks;
} Evidence;

// A tensor on one rank and its replicas over some of the roles of `sharing`: bit i stands for sharing[i].
typedef struct {
    int param;
    Kept kept;
    unsigned over;
    int rank;
} Suspect;

static uint64_t hash_on(const Evidence *e, const Suspect *s, int rank) {
    const uint64_t *hashes = e->all + (size_t)rank * (size_t)(e->sums->params->count * NUM_KEPT);
    uint64_t own = hashes[s->param * NUM_KEPT + (int)s->kept];
    int copy = s->over & 1u << (NUM_SHARING - 1) && !own ? copy_of(e->sums->params, s->param) : -1;
    return copy < 0 ? own : hashes[copy * NUM_KEPT + (int)s->kept];
}

static bool differ_on(Place a, Place b, unsigned axes) {
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (axes & 1u << axis && a.at[axis] != b.at[axis]) return true;
    return false;
}

// True when `rank` has a replica of the suspect.
static bool has_replica(const Evidence *e, const Suspect *s, int rank) {
    Grid grid = e->sums->context->groups.topology.grid;
    Place a = grid_place(grid, s->rank), b = grid_place(grid, rank);
    Reduction reduction = e->sums->params->items[s->param]->place.reduction;
    View view = topology_roles[placement_reductions[reduction].replicas].view;
    for (int i = 0; i < NUM_SHARING; i++) {
        const RoleInfo *info = &topology_roles[sharing[i]];
        bool may_differ = s->over & 1u << i && is_replicated(e->sums, s->param, s->kept, sharing[i]);
        if (info->view == view && sharing[i] != ROLE_ENDS && !may_differ && differ_on(a, b, info->axes))
            return false;
    }
    return hash_on(e, s, rank) != 0;
}

// Compares the suspect with its first replica.
static bool differs(const Evidence *e, const Suspect *s) {
    uint64_t own = hash_on(e, s, s->rank);
    if (!own) return false;
    int first = 0;
    while (!has_replica(e, s, first)) first++;
    return hash_on(e, s, first) != own;
}

// Finds the first tensor whose replicas differ over the roles of `over`, and counts such tensors.
static int find_suspect(const Evidence *e, unsigned over, Suspect *first) {
    int count = 0;
    for (int i = 0; i < e->sums->params->count * NUM_KEPT; i++) {
        Suspect s = {i / NUM_KEPT, (Kept)(i % NUM_KEPT), over, 0};
        while (s.rank < e->ranks && !differs(e, &s)) s.rank++;
        if (s.rank < e->ranks && !count++) *first = s;
    }
    return count;
}

// The checksum of more than half of the replicas, or 0.
static uint64_t majority(const Evidence *e, const Suspect *s) {
    int size = 0, votes = 0;
    uint64_t leader = 0;
    for (int r = 0; r < e->ranks; r++) {
        if (!has_replica(e, s, r)) continue;
        uint64_t hash = hash_on(e, s, r);
        size++;
        if (!votes) leader = hash;
        votes += hash == leader ? 1 : -1;
    }
    votes = 0;
    for (int r = 0; r < e->ranks; r++) votes += has_replica(e, s, r) && hash_on(e, s, r) == leader;
    return 2 * votes > size ? leader : 0;
}

// Appends "rank 1" or "ranks 0, 2, 3": the replicas whose checksum is `hash`, or with `others` all other replicas.
// Returns the rank where it is one, else -1.
static int add_ranks(const Evidence *e, const Suspect *s, uint64_t hash, bool others, Text *out) {
    enum { MAX_SHOWN = 8 };
    Text list = {0};
    int count = 0, last = -1;
    for (int r = 0; r < e->ranks; r++) {
        if (!has_replica(e, s, r) || (hash_on(e, s, r) == hash) == others) continue;
        last = r;
        if (count < MAX_SHOWN) text_add(&list, "%s%d", count ? ", " : "", r);
        count++;
    }
    text_add(out, "rank%s %s", count > 1 ? "s" : "", text_string(&list));
    if (count > MAX_SHOWN) text_add(out, " and %d more", count - MAX_SHOWN);
    text_free(&list);
    return count == 1 ? last : -1;
}

static void add_finding(const Evidence *e, Suspect s, Text *out) {
    const char *name = e->sums->params->items[s.param]->spec.name, *kept = kept_names[s.kept];
    unsigned narrow = s.over;
    s.over = ALL_SHARING;
    uint64_t right = majority(e, &s);
    if (!right) s.over = narrow, right = majority(e, &s);
    if (right) {
        rank_blame(add_ranks(e, &s, right, true, out));
        text_add(out, " and ");
        add_ranks(e, &s, right, false, out);
        text_add(out, " hold different %s of %s; the latter are the majority", kept, name);
    } else {
        rank_blame(-1);
        add_ranks(e, &s, 0, true, out);
        text_add(out, " hold different %s of %s", kept, name);
    }
}

static Status disagreement(const Evidence *e, int64_t iteration) {
    Suspect suspect;
    int count = 0;
    for (int roles = 1; roles <= NUM_SHARING && !count; roles++)
        count = find_suspect(e, (1u << roles) - 1, &suspect);
    CHECK(count, "replicas disagree, but not in any tensor");
    Text text = {0};
    add_finding(e, suspect, &text);
    if (count > 1) text_add(&text, ", and %d other tensor%s", count - 1, count > 2 ? "s differ" : " differs");
    if (count > 1 && suspect.over & ~(unsigned)OF_REDUCTION)
        text_add(&text, " (it may have begun in another of them)");
    Status status =
        fail(ERR_REPLICAS,
             "after iteration %" PRId64 " %s: memory or a processor may be faulty; no checkpoint is made "
             "of this; go on from the last one with --load",
             iteration, text_string(&text));
    text_free(&text);
    return status;
}

static Status examine(const Checksums *sums, Comm *world, int64_t iteration) {
    size_t bytes = (size_t)(sums->params->count * NUM_KEPT) * sizeof(uint64_t);
    Evidence evidence = {.sums = sums, .ranks = comm_size(world)};
    uint64_t *all = malloc(bytes * (size_t)evidence.ranks);
    CHECK(all, "no memory for the checksums of %d ranks", evidence.ranks);
    comm_all_gather_host(world, sums->hashes, all, bytes);
    evidence.all = all;
    Status status = disagreement(&evidence, iteration);
    free(all);
    return status;
}

Status replicas_compare(Engine *engine, Comm *world, int64_t iteration) {
    Context *c = engine_context(engine);
    const Optimizer *optimizer = engine_optimizer(engine);
    Checksums sums = {.context = c, .params = engine_params(engine), .sharded = optimizer->buckets->sharded};
    if (!any_has_replicas(&sums)) return OK;
    rank_doing("comparing replicas");
    sums.hashes = calloc((size_t)(sums.params->count * NUM_KEPT) + 1, sizeof *sums.hashes);
    sums.piece = malloc(TENSOR_PIECE_BYTES);
    CHECK(sums.hashes && sums.piece, "no memory for the checksums of %d parameters", sums.params->count);
    take_checksums(&sums, optimizer);
    Status status = all_agree(&sums, world) ? OK : examine(&sums, world, iteration);
    free(sums.piece);
    free(sums.hashes);
    return status;
}
