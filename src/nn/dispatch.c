// Moves rows of tokens to the ranks of their experts and back, in rounds of one all-to-all each.
#include "nn/dispatch.h"
#include "layout/rounds.h"
#include <string.h>

// ---- sizes ------------------------------------------------------------------------------------------------

Dispatch dispatch_of(const Context *c, int experts, int64_t pairs, DispatchRules rules) {
    int ranks = context_ranks(c, ROLE_EXPERT);
    CHECK(experts <= MAX_EXPERTS && experts % ranks == 0, "%d experts over %d ranks", experts, ranks);
    CHECK(!rules.grads_apart || (rules.apart && rules.whole), "gradients are apart in several rounds");
    int64_t slot = rules.slot, enough = (pairs * 5 / 4 + ranks - 1) / ranks;
    if (!slot) slot = enough;
    if (rules.whole || slot > pairs) slot = pairs;
    if (!rules.unit) rules.unit = 1;
    if (!rules.tokens) rules.tokens = pairs;
    int64_t stride = slot + rules.unit - 1;
    return (Dispatch){experts, experts / ranks, ranks, slot, stride < pairs ? stride : pairs, rules};
}

int64_t dispatch_rows(const Dispatch *d) { return d->ranks * d->stride; }

static int64_t sum_of(const int32_t *counts, int count) {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += counts[i];
    return sum;
}

typedef struct {
    int64_t begin, count;
} Pairs;

// Where a round begins in a list of the pairs of a rank's experts, of which `counts` are each one's: at element
// round * slot, or the last whole unit of the expert before it.
static int64_t begin_of(const Dispatch *d, const int32_t *counts, int round) {
    int64_t at = round * d->slot, begin = 0;
    if (d->rules.unit == 1) {
        int64_t all = sum_of(counts, d->here);
        return at < all ? at : all;
    }
    for (int e = 0; e < d->here; begin += counts[e++])
        if (at < begin + counts[e]) return at - (at - begin) % d->rules.unit;
    return begin;
}

// The part of a stretch of such a list that travels in a round: places in the list's slot.
static Pairs in_round(const Dispatch *d, const int32_t *counts, int round, int64_t begin, int64_t count) {
    int64_t first = begin_of(d, counts, round), next = begin_of(d, counts, round + 1), end = begin + count;
    if (begin < first) begin = first;
    if (begin > next) begin = next;
    if (end > next) end = next;
    return (Pairs){begin - first, end > begin ? end - begin : 0};
}

// All of a list that travels in a round.
static int64_t count_in_round(const Dispatch *d, const int32_t *counts, int round) {
    return begin_of(d, counts, round + 1) - begin_of(d, counts, round);
}

// Of this rank's pairs, those for another rank in a round: places among the sorted ones.
static Pairs sent_to(const Dispatch *d, const DispatchPlan *plan, int round, int to) {
    const int32_t *counts = plan->mine + to * d->here;
    return (Pairs){sum_of(plan->mine, to * d->here) + begin_of(d, counts, round),
                   count_in_round(d, counts, round)};
}

// Of the pairs from a rank, those of this rank's e-th expert in a round: places in its slot.
static Pairs come_from(const Dispatch *d, const DispatchPlan *plan, int round, int from, int e) {
    const int32_t *counts = plan->come + from * d->here;
    return in_round(d, counts, round, sum_of(counts, e), counts[e]);
}

int dispatch_stretches(const Dispatch *d) { return d->rules.apart ? d->ranks * d->here : d->here; }

DispatchStretch dispatch_stretch(const Dispatch *d, const DispatchPlan *plan, int round, int i) {
    int source = i / d->here;
    DispatchStretch stretch = {.expert = i % d->here, .first_sample = plan->first_sample[source]};
    if (d->rules.grads_apart) stretch.source = source;
    if (d->rules.apart) {
        Pairs pairs = come_from(d, plan, round, source, stretch.expert);
        stretch.begin = source * d->stride + pairs.begin, stretch.count = pairs.count;
        return stretch;
    }
    for (int e = 0; e <= i; e++) {
        stretch.begin += stretch.count, stretch.count = 0;
        for (int from = 0; from < d->ranks; from++) stretch.count += come_from(d, plan, round, from, e).count;
    }
    return stretch;
}

// ---- what the ranks have for each other -------------------------------------------------------------------

// At least one: a round tells every rank that it has nothing to do.
static int rounds_for(const Dispatch *d, const DispatchPlan *plan) {
    int64_t most = 1;
    for (int to = 0; to < d->ranks; to++) {
        int64_t pairs = sum_of(plan->mine + to * d->here, d->here);
        most = pairs > most ? pairs : most;
    }
    return (int)((most + d->slot - 1) / d->slot);
}

static void balance(const Dispatch *d, int64_t pairs, DispatchPlan *plan) {
    for (int e = 0; e < d->experts; e++)
        plan->mine[e] = (int32_t)((e + 1) * pairs / d->experts - e * pairs / d->experts);
    for (int i = 0; i < d->experts; i++) plan->come[i] = plan->mine[i % d->here];
}

// The ranks agree on the number of rounds, and tell each other their first samples.
static void agree(const Context *c, const Dispatch *d, DispatchPlan *plan) {
    double numbers[1 + MAX_EXPERTS] = {rounds_for(d, plan)};
    int own = context_rank(c, ROLE_EXPERT), ranks = d->rules.samples ? d->ranks : 0;
    numbers[1 + own] = (double)c->first_sample;
    if (d->ranks > 1) comm_all_reduce_host(context_group(c, ROLE_EXPERT), numbers, 1 + ranks, REDUCE_MAX);
    plan->rounds = (int)numbers[0];
    for (int i = 0; i < d->ranks; i++) plan->first_sample[i] = (int64_t)numbers[1 + i];
}

void dispatch_plan(Context *c, const Dispatch *d, Tensor counts, int64_t pairs, DispatchPlan *plan) {
    Comm *group = context_group(c, ROLE_EXPERT);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor come = {0};
    if (d->ranks > 1) {
        come = tensor_take(c->scratch, "pairs of each rank", 1, d->experts, I32);
        comm_all_to_all(group, c->stream, counts, come);
    }
    if (device_computes(c->device)) {
        device_download(c->device, c->stream, plan->mine, counts);
        if (d->ranks > 1)
            device_download(c->device, c->stream, plan->come, come);
        else
            memcpy(plan->come, plan->mine, sizeof plan->come);
    } else {
        balance(d, pairs, plan);
    }
    agree(c, d, plan);
    arena_release(c->scratch, mark);
}

// ---- a round ----------------------------------------------------------------------------------------------

static void copy_rows(const Context *c, Tensor to, int64_t at, Tensor from, int64_t begin, int64_t count) {
    if (count) device_copy(c->device, c->stream, tensor_rows(to, at, count), tensor_rows(from, begin, count));
}

// What a slot holds beyond its pairs is sent, too.
static void fill_slot(const Context *c, const Dispatch *d, Tensor slots, int slot, int64_t count) {
    if (count < d->stride)
        device_zero(c->device, c->stream, tensor_rows(slots, slot * d->stride + count, d->stride - count));
}

// Between the slots of all ranks and the rows of this rank's experts: where a pair is in both.
static void sort_rows(const Context *c, const Dispatch *d, const DispatchPlan *plan, int round, Tensor slots,
                      Tensor rows, bool back) {
    int64_t at = 0;
    for (int e = 0; e < d->here; e++)
        for (int from = 0; from < d->ranks; from++) {
            Pairs pairs = come_from(d, plan, round, from, e);
            int64_t place = from * d->stride + pairs.begin;
            if (back)
                copy_rows(c, slots, place, rows, at, pairs.count);
            else
                copy_rows(c, rows, at, slots, place, pairs.count);
            at += pairs.count;
        }
}

static Tensor take_slots(const Context *c, const Dispatch *d, const char *name, Tensor like) {
    return tensor_take(c->scratch, name, dispatch_rows(d), like.cols, like.dtype);
}

static void exchange(Context *c, int round, Tensor out, Tensor in) {
    CommRequest *request = comm_all_to_all_start(context_group(c, ROLE_EXPERT), c->stream, out, in);
    if (rounds_give_turn(round)) context_meanwhile(c);
    comm_wait(context_group(c, ROLE_EXPERT), c->stream, &request);
}

void dispatch_send(Context *c, const Dispatch *d, const DispatchPlan *plan, int round, Tensor sorted,
                   Tensor rows) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor out = take_slots(c, d, "rows to send", rows);
    Tensor in = d->rules.apart ? rows : take_slots(c, d, "rows received", rows);
    for (int to = 0; to < d->ranks; to++) {
        Pairs pairs = sent_to(d, plan, round, to);
        copy_rows(c, out, to * d->stride, sorted, pairs.begin, pairs.count);
        fill_slot(c, d, out, to, pairs.count);
    }
    exchange(c, round, out, in);
    if (!d->rules.apart) sort_rows(c, d, plan, round, in, rows, false);
    arena_release(c->scratch, mark);
}

void dispatch_return(Context *c, const Dispatch *d, const DispatchPlan *plan, int round, Tensor rows,
                     Tensor sorted) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor out = d->rules.apart ? rows : take_slots(c, d, "rows to send", rows);
    Tensor in = take_slots(c, d, "rows received", rows);
    if (!d->rules.apart) sort_rows(c, d, plan, round, out, rows, true);
    for (int from = 0; from < d->ranks; from++)
        fill_slot(c, d, out, from, count_in_round(d, plan->come + from * d->here, round));
    exchange(c, round, out, in);
    for (int to = 0; to < d->ranks; to++) {
        Pairs pairs = sent_to(d, plan, round, to);
        copy_rows(c, sorted, pairs.begin, in, to * d->stride, pairs.count);
    }
    arena_release(c->scratch, mark);
}
