// The kinds of sublayers, which layer has which, and the closed forms of a model as sums over it.
#include "nn/sublayer.h"
#include <string.h>

const SublayerKind *const sublayer_kinds[NUM_SUBLAYERS] = {
#define SUBLAYER(name) &name##_sublayer,
#include "nn/sublayers.def"
#undef SUBLAYER
};

bool model_layer_has_experts(const ModelShape *s, int layer) {
    if (!s->experts) return false;
    return !s->experts_period || s->experts_layers >> layer % s->experts_period & 1;
}

int model_sublayer(const ModelShape *s, int layer, int i) {
    if (i == 0) return SUBLAYER_attention;
    return model_layer_has_experts(s, layer) ? SUBLAYER_experts : SUBLAYER_mlp;
}

int model_widest_layer(const ModelShape *s) {
    for (int layer = 0; layer < s->layers; layer++)
        if (model_layer_has_experts(s, layer)) return layer;
    return 0;
}

static const SublayerKind *kind_of(const ModelShape *s, int layer, int i) {
    return sublayer_kinds[model_sublayer(s, layer, i)];
}

static ParamCount parameters_of(const ModelShape *s, int layer) {
    ParamCount sum = {0};
    for (int i = 0; i < LAYER_SUBLAYERS; i++) {
        ParamCount one = kind_of(s, layer, i)->parameters(s);
        sum.cut += one.cut, sum.whole += one.whole;
    }
    return sum;
}

ParamCount model_layer_parameters(const ModelShape *s) { return parameters_of(s, model_widest_layer(s)); }

int64_t model_parameters(const ModelShape *s) {
    ParamCount embedding = model_embedding_parameters(s, s->vocabulary),
               head = model_head_parameters(s, s->vocabulary);
    int64_t sum = embedding.cut + embedding.whole + head.cut + head.whole;
    for (int layer = 0; layer < s->layers; layer++) {
        ParamCount one = parameters_of(s, layer);
        sum += one.cut + one.whole;
    }
    return sum;
}

// The model with as many experts as a token has, and the whole routers.
int64_t model_active_parameters(const ModelShape *s) {
    ModelShape used = *s;
    used.experts = s->experts_topk;
    int64_t sum = model_parameters(&used), columns = s->hidden + model_has_mlp_bias(s);
    for (int layer = 0; layer < s->layers; layer++)
        if (model_layer_has_experts(s, layer)) sum += (int64_t)(s->experts - s->experts_topk) * columns;
    return sum;
}

// Of the forward of one token in all layers.
static double layers_flops(const ModelShape *s) {
    double of_kind[NUM_SUBLAYERS] = {0}, sum = 0;
    for (int layer = 0; layer < s->layers; layer++)
        for (int i = 0; i < LAYER_SUBLAYERS; i++) of_kind[model_sublayer(s, layer, i)]++;
    for (int kind = 0; kind < NUM_SUBLAYERS; kind++)
        if (of_kind[kind] > 0) sum += of_kind[kind] * sublayer_kinds[kind]->flops(s);
    return sum;
}

// A backward takes twice the FLOPs of its forward, but for weights that are frozen: of these it needs no gradient.
double model_flops(const ModelShape *s, int table_rows, double samples) {
    double layers = layers_flops(s), head = 2.0 * table_rows * s->hidden;
    if (!s->lora_rank) return samples * s->sequence * (3 * (layers + head));
    ModelShape products = *s;
    products.sequence = products.window = 0;
    double weights = layers_flops(&products), adapters = 2.0 * (double)model_adapter_parameters(s);
    return samples * s->sequence * (3 * (layers + adapters) - weights + 2 * head);
}

double stash_tokens(const ModelShape *s, const ModelMode *mode) {
    int ranks = mode->context_ranks ? mode->context_ranks : 1;
    return (double)s->sequence / ranks * mode->microbatch;
}

double stash_rows(const ModelShape *s, const ModelMode *mode, int tp) {
    double tokens = stash_tokens(s, mode);
    return mode->sequence_parallel ? tokens / tp : tokens;
}

static StashTerm *find_term(StashTerm *terms, int count, const char *what) {
    for (int i = 0; i < count; i++)
        if (!strcmp(terms[i].what, what)) return &terms[i];
    return NULL;
}

// Terms of one name add up; statistics come last.
static int add_term(StashTerm *terms, int count, const StashTerm *one) {
    StashTerm *same = find_term(terms, count, one->what);
    if (same) {
        same->published += one->published, same->kept += one->kept;
        return count;
    }
    CHECK(count < MAX_STASH_TERMS, "a layer keeps more than %d kinds of tensors", MAX_STASH_TERMS);
    int at = count;
    for (; at > 0 && !one->is_statistic && terms[at - 1].is_statistic; at--) terms[at] = terms[at - 1];
    terms[at] = *one;
    return count + 1;
}

int model_stash_terms(const ModelShape *shape, const ModelMode *mode, int tp, StashTerm *terms) {
    int count = 0;
    for (int i = 0, layer = model_widest_layer(shape); i < LAYER_SUBLAYERS; i++) {
        StashTerm own[MAX_STASH_TERMS];
        int num_own = kind_of(shape, layer, i)->stash_terms(shape, mode, tp, own);
        for (int n = 0; n < num_own; n++) count = add_term(terms, count, &own[n]);
    }
    return count;
}

// Names are not compared: the planner asks for many sums.
StashSum model_stash_sum(const ModelShape *shape, const ModelMode *mode, int tp) {
    StashSum sum = {0};
    for (int i = 0, layer = model_widest_layer(shape); i < LAYER_SUBLAYERS; i++) {
        StashTerm own[MAX_STASH_TERMS];
        int num_own = kind_of(shape, layer, i)->stash_terms(shape, mode, tp, own);
        for (int n = 0; n < num_own; n++) sum.published += own[n].published, sum.kept += own[n].kept;
    }
    return sum;
}
