// The loss of a step or an evaluation: what the losses of microbatches are divided by, and their mean over all ranks.
#include "train/engine/engine.h"
#include <math.h>

static int64_t step_tokens(const Engine *e) { return engine_step_tokens(e); }

// The tokens of a microbatch that count, or its pairs.
static double num_counted(const Engine *e, const Batch *batch, int microbatch) {
    int64_t tokens = step_tokens(e);
    if (e->spec.preference.loss) return e->spec.mode.microbatch;
    if (!batch->mask) return (double)tokens;
    double count = 0;
    for (int64_t i = 0; i < tokens; i++) count += (double)batch->mask[microbatch * tokens + i];
    return count;
}

// What the sum of a microbatch's losses is divided by in the pipeline. Per token it is all tokens, the same on every
// rank; the step then divides once by the share of them that count (gradient_scale).
double engine_counted_tokens(const Engine *e, const Batch *batch, int microbatch) {
    if (e->spec.per_token) return (double)step_tokens(e);
    return fmax(num_counted(e, batch, microbatch), 1);
}

// Sums over the microbatches of leaves [first, first + count) of this rank, added as their gradients are: of their mean
// losses, or per token of their losses; of the tokens that count; and of the means of their pairs.
typedef struct {
    double loss, tokens;
    PairMeans pairs;
} LossSums;
enum { NUM_LOSS_SUMS = sizeof(LossSums) / sizeof(double) };

static void add_sums(LossSums *sums, const LossSums *more) {
    double *to = &sums->loss;
    const double *from = &more->loss;
    for (int i = 0; i < NUM_LOSS_SUMS; i++) to[i] += from[i];
}

static LossSums sums_of_pairs(const Engine *e, int microbatch) {
    LossSums sums = {0};
    double each = 1.0 / e->spec.mode.microbatch;
    const PairBatch *pairs = &e->pairs[microbatch];
    for (int64_t i = 0; i < pairs->samples; i++) {
        const PairOutcome *one = &pairs->outcomes[i];
        sums.loss += each * one->loss;
        sums.pairs.accuracy += one->reward[CHOSEN] > one->reward[REJECTED] ? each : 0;
        for (int a = 0; a < NUM_ANSWERS; a++) {
            sums.pairs.reward[a] += each * one->reward[a];
            sums.pairs.log_probability[a] += each * one->log_probability[a];
        }
    }
    return sums;
}

static LossSums sums_of_microbatch(const Engine *e, const Batch *batch, int k) {
    int64_t tokens = step_tokens(e);
    double one = 0;
    if (e->pairs) return sums_of_pairs(e, k);
    for (int64_t i = 0; i < tokens; i++) one += (double)e->host_losses[k * tokens + i];
    return (LossSums){.loss = e->spec.per_token ? one : one / engine_counted_tokens(e, batch, k),
                      .tokens = num_counted(e, batch, k)};
}

static LossSums sums_of_leaves(const Engine *e, const Batch *batch, int first, int count) {
    LossSums sums = {0}, more;
    if (count > 1) {
        sums = sums_of_leaves(e, batch, first, count / 2);
        more = sums_of_leaves(e, batch, first + count / 2, count / 2);
        add_sums(&sums, &more);
        return sums;
    }
    int each = batch->num_microbatches / e->leaves.count;
    for (int k = first * each; k < (first + 1) * each; k++) {
        more = sums_of_microbatch(e, batch, k);
        add_sums(&sums, &more);
    }
    return sums;
}

static void set_pair_means(Engine *e, const PairMeans *sums, double count) {
    e->pair_means.accuracy = sums->accuracy / count;
    for (int a = 0; a < NUM_ANSWERS; a++) {
        e->pair_means.reward[a] = sums->reward[a] / count;
        e->pair_means.log_probability[a] = sums->log_probability[a] / count;
    }
}

// The mean over microbatches and data ranks of each microbatch's mean loss, or per token the mean over all tokens that
// count. The last stage computes it and sends it to all ranks.
double engine_mean_loss(Engine *e, const Batch *batch) {
    const Context *c = &e->runtime.context;
    int m = batch->num_microbatches;
    double microbatches = m * context_ranks(c, ROLE_DATA);
    LossSums sums = {0};
    rank_doing("mean loss");
    if (e->last) {
        if (!e->pairs) sequences_download_losses(e, m);
        sums = sums_of_leaves(e, batch, 0, e->leaves.count);
        comm_all_reduce_host(context_group(c, ROLE_DATA), &sums.loss,
                             e->pairs            ? NUM_LOSS_SUMS
                             : e->spec.per_token ? 2
                                                 : 1,
                             e->leaves.tree ? REDUCE_TREE : REDUCE_SUM);
    }
    comm_broadcast_host(context_group(c, ROLE_PIPELINE), &sums, sizeof sums, c->groups.topology.ends[1]);
    e->step_tokens = fmax(sums.tokens, 1);
    set_pair_means(e, &sums.pairs, microbatches);
    return sums.loss / (e->spec.per_token ? e->step_tokens : microbatches);
}

// What the gradients of a step must be divided by: the loss scale, and per token the share of the tokens that count.
double engine_gradient_scale(const Engine *e, const Batch *batch, double loss_scale) {
    double all =
        (double)step_tokens(e) * batch->num_microbatches * context_ranks(&e->runtime.context, ROLE_DATA);
    return e->spec.per_token ? loss_scale * (e->step_tokens / all) : loss_scale;
}

// Per token the step divides all gradients by the share of its tokens that count, which losses of routers have no part
// in: they are means over microbatches.
double engine_router_share(const Engine *e, const Batch *batch) {
    const Context *c = &e->runtime.context;
    const RouterTraining *router = &e->spec.mode.router;
    double tokens = 0, all = (double)step_tokens(e) * batch->num_microbatches * context_ranks(c, ROLE_DATA);
    if (!e->spec.per_token || !(router->balance > 0 || router->z > 0)) return 1;
    for (int k = 0; e->last && k < batch->num_microbatches; k++) tokens += num_counted(e, batch, k);
    if (e->last) comm_all_reduce_host(context_group(c, ROLE_DATA), &tokens, 1, REDUCE_SUM);
    comm_broadcast_host(context_group(c, ROLE_PIPELINE), &tokens, sizeof tokens, c->groups.topology.ends[1]);
    return fmax(tokens, 1) / all;
}
