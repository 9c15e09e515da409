// Attention over a cache, of one instruction set and element type: one query of one head at a time,
// which adds along its own row alone, so that its bits do not depend on how many queries came with it. With
// few of them the time goes into reading the cache, which products of blocks would not make faster.
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"
#include "device/visible.h"
#include <omp.h>

// One head of one sample; rows of its tensors lie `stride` elements apart.
typedef struct {
    const Element *data;
    int64_t stride;
} Rows;

typedef struct {
    Rows queries, keys, values;
    Element *out;
    int64_t size, out_stride;
    float scale, cap; // of the scores
    bool has_sink;
    float sink, *scores; // of the calling thread: of one query
} Head;

static int64_t qkv_width(const AttentionShape *s) { return (s->heads + 2 * s->groups) * s->head_size; }

// Returns the offset of a group of sample b in a row of the sample's first position.
static int64_t group_in_qkv(const AttentionShape *s, int64_t b, int64_t group) {
    return b * qkv_width(s) + group * (s->heads / s->groups + 2) * s->head_size;
}

static int64_t group_in_cache(const AttentionShape *s, int64_t b, int64_t group) {
    return (b * s->groups + group) * s->head_size;
}

// Stores the new keys and values of a group.
static void remember_group(const AttentionCached *p, int64_t b, int64_t group) {
    const AttentionShape *s = &p->shape;
    int64_t size = s->head_size, stride = s->batch * s->groups * size;
    size_t bytes = (size_t)size * sizeof(Element);
    const Element *key =
        (const Element *)p->qkv.data + group_in_qkv(s, b, group) + s->heads / s->groups * size;
    int64_t to = group_in_cache(s, b, group) + p->position * stride;
    for (int64_t i = 0; i < s->sequence; i++, key += s->batch * qkv_width(s), to += stride) {
        memcpy((Element *)p->keys.data + to, key, bytes);
        memcpy((Element *)p->values.data + to, key + size, bytes);
    }
}

static Head head_of(const AttentionCached *p, int64_t b, int64_t h, float *scores) {
    const AttentionShape *s = &p->shape;
    int64_t size = s->head_size, per_group = s->heads / s->groups, group = h / per_group;
    int64_t query = group_in_qkv(s, b, group) + h % per_group * size, cached = group_in_cache(s, b, group);
    int64_t cache_stride = s->batch * s->groups * size;
    return (Head){
        .queries = {(const Element *)p->qkv.data + query, s->batch * qkv_width(s)},
        .keys = {(const Element *)p->keys.data + cached, cache_stride},
        .values = {(const Element *)p->values.data + cached, cache_stride},
        .out = (Element *)p->out.data + (b * s->heads + h) * size,
        .size = size,
        .out_stride = s->batch * s->heads * size,
        .scale = attention_scale(s, &p->rules),
        .cap = p->rules.cap,
        .has_sink = p->sinks.data || p->rules.off_by_one,
        .sink = p->sinks.data ? load_e((const Element *)p->sinks.data + h, 1)[0] : 0,
        .scores = scores,
    };
}

// The scores become exp(score - max), and zeros up to a whole vector. Returns their sum, with the sink's.
static float exponentials(const Head *head, int64_t keys) {
    float *scores = head->scores;
    Floats most = splat(-INFINITY), sum = {0};
    for (int64_t key = keys; key % LANES; key++) scores[key] = -INFINITY;
    for (int64_t key = 0; key < keys; key += LANES) most = larger(most, load(scores + key, LANES));
    float max = max_lanes(most);
    if (head->has_sink && head->sink > max) max = head->sink;
    for (int64_t key = 0; key < keys; key += LANES) {
        Floats e = exponential(load(scores + key, LANES) - max);
        store(scores + key, LANES, e);
        sum += e;
    }
    return sum_lanes(sum) + (head->has_sink ? exponential(splat(head->sink - max))[0] : 0);
}

static void cap_scores(const Head *head, int64_t keys) {
    for (int64_t key = 0; key < keys; key += LANES) {
        Floats x = load(head->scores + key, keys - key);
        store(head->scores + key, keys - key, hyperbolic_tangent(x / head->cap) * head->cap);
    }
}

// A query sees `keys` keys from `first` on.
static void attend(const Head *head, int64_t query, int64_t first, int64_t keys) {
    const Element *q = head->queries.data + query * head->queries.stride;
    Element *out = head->out + query * head->out_stride;
    for (int64_t key = 0; key < keys; key++)
        head->scores[key] =
            head->scale * dot(q, head->keys.data + (first + key) * head->keys.stride, head->size);
    if (head->cap > 0) cap_scores(head, keys);
    float total = exponentials(head, keys);
    for (int64_t c = 0; c < head->size; c += LANES) {
        Floats sum = {0};
        const Element *value = head->values.data + first * head->values.stride + c;
        for (int64_t key = 0; key < keys; key++, value += head->values.stride)
            sum = fused(splat(head->scores[key]), load_e(value, head->size - c), sum);
        store_e(out + c, head->size - c, sum / total);
    }
}

void CPU_NAME(cpu_attention_cached)(const Exec *exec, const AttentionCached *p) {
    const AttentionShape *s = &p->shape;
    int64_t positions = p->position + s->sequence, heads = s->batch * s->heads;
#pragma omp parallel num_threads(cpu_team(exec, heads * s->sequence * positions * s->head_size))
    {
        float *scores = (float *)exec->workspace + omp_get_thread_num() * cpu_cached_floats(p);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < s->batch * s->groups; i++) remember_group(p, i / s->groups, i % s->groups);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < heads; i++) {
            Head head = head_of(p, i / s->heads, i % s->heads, scores);
            for (int64_t query = 0; query < s->sequence; query++) {
                int64_t position = p->position + query;
                int64_t first = attention_first_key((Tensor){0}, p->rules.window, &p->shape, 0, position);
                attend(&head, query, first, position + 1 - first);
            }
        }
    }
}
