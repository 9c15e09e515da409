// Routers of experts. A warp treats a token; its lanes take every 32nd expert.
#include "device/cuda/portable.h"

enum { WARPS = 4 };

// The logits of a token, and what softmax and scores need of them; all lanes have it.
typedef struct {
    const float *logits;
    int n; // E
    bool sigmoid;
    float max, sum; // of the logits; of exp(logit - max)
    float score_sum;
} Token;

DEVICE float softmax_of(const Token &t, int i) { return exponential(t.logits[i] - t.max) / t.sum; }
DEVICE float score_of(const Token &t, int i) {
    return t.sigmoid ? 1.0f / (1.0f + exponential(-fmaxf(t.logits[i], -88.0f))) : softmax_of(t, i);
}

DEVICE Token token_of(const float *logits, int n, bool sigmoid) {
    Token t = {logits, n, sigmoid, -INFINITY, 0, 0};
    float max = -INFINITY, sum = 0, scores = 0;
    for (int i = (int)threadIdx.x % WARP; i < n; i += WARP) max = larger(max, logits[i]);
    t.max = warp_max(max);
    for (int i = (int)threadIdx.x % WARP; i < n; i += WARP) sum += exponential(logits[i] - t.max);
    t.sum = warp_sum(sum);
    for (int i = (int)threadIdx.x % WARP; i < n; i += WARP) scores += score_of(t, i);
    t.score_sum = warp_sum(scores);
    return t;
}

DEVICE float log_sum_of(const Token &t) { return t.max + logarithm(t.sum); }

// ---- the largest values -----------------------------------------------------------------------------------

typedef struct {
    float value;
    int index;
} Best;

// Larger values come first, and of equal ones the lowest number. What is no number counts as -infinity.
DEVICE bool comes_before(Best a, Best b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The best of values [0, n), every `step`-th from `first` on, that comes after another one.
DEVICE Best best_after(Best after, const float *values, int first, int n, int step) {
    Best best = {-INFINITY, 1 << 30};
    for (int i = first; i < n; i += step) {
        const Best own = {values[i] == values[i] ? values[i] : -INFINITY, i};
        if (comes_before(after, own) && comes_before(own, best)) best = own;
    }
    return best;
}

DEVICE Best best_of_warp(Best best) {
    UNROLL
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const Best other = {__shfl_xor_sync(ALL_LANES, best.value, distance),
                            __shfl_xor_sync(ALL_LANES, best.index, distance)};
        if (comes_before(other, best)) best = other;
    }
    return best;
}

// Experts of groups that are not among the best become -infinity. A lane takes a group.
DEVICE void close_groups(float *values, int n, RouterRules rules) {
    const int lane = (int)threadIdx.x % WARP, size = n / rules.groups;
    const int wanted = rules.topk / rules.group_topk, count = wanted < 1 ? 1 : wanted > size ? size : wanted;
    float score = -INFINITY;
    if (lane < rules.groups) {
        Best best = {INFINITY, -1};
        score = 0;
        for (int i = 0; i < count; i++) {
            best = best_after(best, values + lane * size, 0, size, 1);
            score += best.value;
        }
    }
    int place = 0; // of this group among all
    for (int g = 0; g < rules.groups; g++) {
        const Best other = {__shfl_sync(ALL_LANES, score, g), g}, own = {score, lane};
        place += comes_before(other, own);
    }
    __syncwarp();
    if (lane < rules.groups && place >= rules.group_topk)
        for (int i = 0; i < size; i++) values[lane * size + i] = -INFINITY;
    __syncwarp();
}

// ---- forward ----------------------------------------------------------------------------------------------

// At most 64 registers.
__global__ void __launch_bounds__(WARPS *WARP)
    router_forward_kernel(const float *logits, const float *bias, float *weights, int32_t *experts,
                          int64_t rows, int n, RouterRules rules, float factor) {
    SHARED(float, room, WARPS *MAX_EXPERTS);
    const int lane = (int)threadIdx.x % WARP, k = rules.topk;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    float *values = room + threadIdx.x / WARP * MAX_EXPERTS;
    const Token t = token_of(logits + row * n, n, rules.sigmoid);
    const bool by_score = rules.sigmoid ? bias || rules.groups : rules.pre_softmax && rules.groups;
    for (int i = lane; i < n; i += WARP)
        values[i] = by_score ? score_of(t, i) + (bias ? bias[i] : 0.0f) : t.logits[i];
    __syncwarp();
    if (rules.groups) close_groups(values, n, rules);
    Best best = {INFINITY, -1};
    int own = 0; // the expert of this lane's slot
    for (int j = 0; j < k; j++) {
        best = best_of_warp(best_after(best, values, lane, n, WARP));
        if (j == lane) own = best.index;
    }
    const bool chosen = lane < k, scored = rules.sigmoid || rules.pre_softmax;
    const float max = warp_max(chosen ? t.logits[own] : -INFINITY);
    float weight = !chosen ? 0.0f : scored ? score_of(t, own) : exponential(t.logits[own] - max);
    const float sum = warp_sum(weight);
    if (rules.sigmoid ? k > 1 : !rules.pre_softmax) weight /= rules.sigmoid ? sum + 1e-20f : sum;
    if (!chosen) return;
    weights[row * k + lane] = factor * weight;
    experts[row * k + lane] = own;
}

static float factor_of(const RouterRules *rules) { return rules->scale > 0 ? rules->scale : 1.0f; }

extern "C" void cuda_router_forward(const Exec *exec, const RouterForward *p) {
    if (!p->logits.rows) return;
    LAUNCH(router_forward_kernel, blocks_of(p->logits.rows, WARPS), WARPS * WARP, 0, stream_of(exec),
           (const float *)p->logits.data, (const float *)p->bias.data, (float *)p->weights.data,
           (int32_t *)p->experts.data, p->logits.rows, (int)p->logits.cols, p->rules, factor_of(&p->rules));
}

// ---- sums -------------------------------------------------------------------------------------------------

// A block takes a sample. Each of its warps adds up every WARPS-th token; then the warps are added in their order.
// At most 72 registers.
__global__ void __launch_bounds__(WARPS *WARP)
    router_sums_kernel(const float *logits, float *counts, float *sums, int64_t rows, int samples, int n,
                       int k, bool sigmoid) {
    SHARED(float, count_room, WARPS *MAX_EXPERTS);
    SHARED(float, sum_room, WARPS *(MAX_EXPERTS + 1));
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, sample = (int)blockIdx.x;
    float *own_counts = count_room + warp * MAX_EXPERTS, *own_sums = sum_room + warp * (MAX_EXPERTS + 1);
    float squares = 0;
    for (int i = lane; i < n; i += WARP) own_counts[i] = own_sums[i] = 0;
    for (int64_t row = sample + (int64_t)warp * samples; row < rows; row += (int64_t)WARPS * samples) {
        const Token t = token_of(logits + row * n, n, sigmoid);
        Best best = {INFINITY, -1};
        for (int j = 0; j < k; j++) {
            best = best_of_warp(best_after(best, t.logits, lane, n, WARP));
            if (best.index % WARP == lane) own_counts[best.index] += 1;
        }
        for (int i = lane; i < n; i += WARP) own_sums[i] += score_of(t, i) / t.score_sum;
        squares += log_sum_of(t) * log_sum_of(t);
    }
    if (lane == 0) own_sums[n] = squares;
    __syncthreads();
    for (int i = (int)threadIdx.x; i <= n; i += WARPS * WARP) {
        float count = 0, sum = 0;
        for (int w = 0; w < WARPS; w++) {
            sum += sum_room[w * (MAX_EXPERTS + 1) + i];
            if (i < n) count += count_room[w * MAX_EXPERTS + i];
        }
        sums[(int64_t)sample * (n + 1) + i] = sum;
        if (i < n) counts[(int64_t)sample * n + i] = count;
    }
}

extern "C" void cuda_router_sums(const Exec *exec, const RouterSums *p) {
    LAUNCH(router_sums_kernel, p->counts.rows, WARPS * WARP, 0, stream_of(exec),
           (const float *)p->logits.data, (float *)p->counts.data, (float *)p->sums.data, p->logits.rows,
           (int)p->counts.rows, (int)p->logits.cols, p->rules.topk, p->rules.sigmoid);
}

// ---- backward ---------------------------------------------------------------------------------------------

typedef struct {
    float factor, balance, z;
} Factors;

// At most 64 registers.
template <class E>
__global__ void __launch_bounds__(WARPS *WARP)
    router_backward_kernel(const float *logits, const int32_t *experts, const float *dweights,
                           const float *counts, E *dlogits, int64_t rows, int samples, int n,
                           RouterRules rules, Factors f) {
    const int lane = (int)threadIdx.x % WARP, k = rules.topk;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const Token t = token_of(logits + row * n, n, rules.sigmoid);
    const bool chosen = lane < k, scored = rules.sigmoid || rules.pre_softmax,
               plain = rules.sigmoid && k == 1;
    const int own = chosen ? experts[row * k + lane] : 0;
    const float max = warp_max(chosen ? t.logits[own] : -INFINITY), score = score_of(t, own);
    float weight = !chosen ? 0.0f : scored ? score : exponential(t.logits[own] - max);
    const float sum = rules.sigmoid ? warp_sum(weight) + 1e-20f : warp_sum(weight);
    if (rules.sigmoid ? k > 1 : !rules.pre_softmax) weight /= sum;
    const float d = chosen ? f.factor * dweights[row * k + lane] : 0.0f, inner = warp_sum(d * weight);
    float mine = weight * (d - inner); // what comes to the logit of this lane's expert
    if (rules.sigmoid) mine = (plain ? d : (d - inner) / sum) * (score * (1.0f - score));
    if (!rules.sigmoid && rules.pre_softmax) mine = weight * d;
    const float *count = counts ? counts + row % samples * n : NULL;
    float balance = 0;
    for (int i = lane; i < n && count; i += WARP)
        balance += f.balance * count[i] * (score_of(t, i) / t.score_sum);
    balance = warp_sum(balance);
    const float z = 2.0f * f.z * log_sum_of(t);
    for (int first = 0; first < n; first += WARP) {
        const int i = first + lane;
        float sum_here = 0;
        for (int j = 0; j < k; j++) {
            const float other = __shfl_sync(ALL_LANES, mine, j);
            if (__shfl_sync(ALL_LANES, own, j) == i) sum_here += other;
        }
        if (i >= n) continue;
        const float s = score_of(t, i), share = softmax_of(t, i);
        float total = z * share;
        if (!rules.sigmoid && rules.pre_softmax) total -= share * inner;
        total += sum_here;
        if (count) {
            const float slope = (f.balance * count[i] - balance) / t.score_sum;
            total += rules.sigmoid ? slope * (s * (1.0f - s)) : slope * s;
        }
        dlogits[row * n + i] = from_float<E>(total);
    }
}

template <class E> static void router_backward_of(const Exec *exec, const RouterBackward *p) {
    LAUNCH((router_backward_kernel<E>), blocks_of(p->logits.rows, WARPS), WARPS * WARP, 0, stream_of(exec),
           (const float *)p->logits.data, (const int32_t *)p->experts.data, (const float *)p->dweights.data,
           (const float *)p->counts.data, (E *)p->dlogits.data, p->logits.rows,
           (int)(p->counts.data ? p->counts.rows : 1), (int)p->logits.cols, p->rules,
           (Factors{factor_of(&p->rules), p->balance, p->z}));
}

extern "C" void cuda_router_backward(const Exec *exec, const RouterBackward *args) {
    if (args->logits.rows) BY_ELEMENT(args->dlogits.dtype, router_backward_of, exec, args);
}
